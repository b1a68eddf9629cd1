//! The machine interface of `hal_api`, implemented on SBI firmware.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence};

use hal_api::{
    Configuration, Errata, Flush, HartSet, InterruptRegisters, Interrupts, MAXIMUM_HARTS, Machine, PAGE_SIZE, Scope,
    SenderTable, Status, Trap, UserContext, UserLevel, Virtualisation,
};

use crate::csr::{self, read_csr, write_csr};
use crate::device::Window;
use crate::layout::{self, DEVICE_WINDOW, DIRECT_MAP, DIRECT_MAP_SIZE, MAXIMUM_RANGES};
use crate::tables::{self, MapError, Permission};
use crate::{boot, guest, hart, trap, user_level};

/// The largest number of pages to flush one by one; beyond it, flushing the whole address space is cheaper.
const MAXIMUM_PAGES: usize = 64;

/// A RISC-V 64 machine under SBI firmware.
#[derive(Clone, Copy, Debug)]
pub struct Riscv64;

static HAS_TIMER_REGISTER: AtomicBool = AtomicBool::new(false);
static HAS_PAGE_TYPES: AtomicBool = AtomicBool::new(false);
static TEST_DEVICE: AtomicUsize = AtomicUsize::new(0);
static DOORBELLS: [AtomicUsize; MAXIMUM_HARTS] = [const { AtomicUsize::new(0) }; MAXIMUM_HARTS];
static MAXIMUM_ASID: AtomicU16 = AtomicU16::new(0);
static HART_COUNT: AtomicUsize = AtomicUsize::new(1);

/// Makes the direct map cover exactly the memory and the device window exactly the rest, and stores the machine's
/// abilities. Called once, on the first hart, before other harts are started.
///
/// # Errors
/// A sentence if the kernel cannot run on such a machine.
pub fn configure(configuration: &Configuration) -> Result<(), &'static str> {
    static CONFIGURED: AtomicBool = AtomicBool::new(false);
    if CONFIGURED.swap(true, Relaxed) {
        return Err("the machine is configured twice");
    }
    let ranges = configuration.memory;
    if configuration.not_devices.len() > MAXIMUM_RANGES {
        return Err("the memory is in too many pieces");
    }
    if configuration.hart_ids.len() > MAXIMUM_HARTS {
        return Err("there are too many harts");
    }
    boot::with_tables(|tables| {
        tables.clear_root(256, 384);
        #[cfg(feature = "thread-stacks")]
        {
            let (index, entry) = crate::stacks::root_entry();
            tables.set_root(index, entry)?;
        }
        let (constant_start, constant_end) = boot::constant_image();
        if configuration.has_page_types && constant_start < DIRECT_MAP_SIZE {
            let page = (DEVICE_WINDOW + constant_start, constant_start);
            let works = tables.with_page(page, Permission::Device, || probe_load(page.0));
            HAS_PAGE_TYPES.store(works == Some(true), Relaxed);
        }
        let of_devices = if has_page_types() { Permission::Device } else { Permission::ReadWrite };
        for &(start, end) in ranges {
            let mut map = |from: u64, to: u64, permission| match to > from {
                true => tables.map(DIRECT_MAP + from, from, to - from, permission),
                false => Ok(()),
            };
            map(start, end.min(constant_start).max(start), Permission::ReadWrite)?;
            map(start.max(constant_start), end.min(constant_end), Permission::Read)?;
            map(start.max(constant_end).min(end), end, Permission::ReadWrite)?;
        }
        let mut devices = Ok(());
        tables::complement(0, DIRECT_MAP_SIZE, configuration.not_devices, |from, to| {
            if devices.is_ok() {
                devices = tables.map(DEVICE_WINDOW + from, from, to - from, of_devices);
            }
        });
        devices
    })
    .map_err(|error| match error {
        MapError::NoFrame => "the memory is too scattered for the kernel's page table",
        MapError::Overlap => "the memory ranges overlap or do not consist of whole pages",
    })?;
    Riscv64::flush_tlb(Flush::Local(Scope::All));
    layout::remember(configuration.not_devices);
    for (index, &hart_id) in configuration.hart_ids.iter().enumerate() {
        hart::HARTS[index].hart_id.store(hart_id, Relaxed);
    }
    HART_COUNT.store(configuration.hart_ids.len(), Relaxed);
    let errata = errata();
    FLUSHES_LEAVE_PAGES.store(errata.flushes_leave_pages, Relaxed);
    trap::FETCH_FAULTS_LACK_SIGN.store(errata.fetch_faults_lack_sign, Relaxed);
    HAS_TIMER_REGISTER.store(configuration.has_timer_register && probe_timer_register(), Relaxed);
    MAXIMUM_ASID.store(probe_asid(), Relaxed);
    trap::probe_floating_point();
    Riscv64::set_timer(u64::MAX);
    if let Some(address) = configuration.test_device {
        use_test_device(address);
    }
    Ok(())
}

/// Whether the harts invalidate all their translations wherever fewer would do: some processors keep translations that
/// an instruction names by their page or their address space.
static FLUSHES_LEAVE_PAGES: AtomicBool = AtomicBool::new(false);

/// Returns the faults of this hart's processor, by the numbers that the firmware passes on. All harts that run the
/// kernel have the same.
pub fn errata() -> Errata {
    let numbers = [sbi_rt::get_mvendorid(), sbi_rt::get_marchid(), sbi_rt::get_mimpid()].map(|number| number as u64);
    Errata::of(numbers[0], numbers[1], numbers[2])
}

/// Returns whether the harts set their timers themselves, by a register. Until [`configure`] has found it, they do not.
pub fn has_timer_register() -> bool {
    HAS_TIMER_REGISTER.load(Relaxed)
}

/// Returns whether the page tables say that the registers of devices are such; [`configure`] has found out.
pub fn has_page_types() -> bool {
    HAS_PAGE_TYPES.load(Relaxed)
}

/// Executes one instruction; returns whether it did not trap.
///
/// # Safety
/// Interrupts are off, so that only this instruction can trap, and it changes nothing that Rust knows of. Its trap goes
/// on behind it, where the vector is put back. The trap's changes of the status are cleared as when a hart starts, and
/// no other register of the contract is touched.
macro_rules! guarded {
    ($instruction:literal, $($operand:tt)*) => {{
        let works: u64;
        core::arch::asm!(
            "lla {vector}, 2f",
            "csrrw {vector}, stvec, {vector}",
            "li {works}, 0",
            $instruction,
            "li {works}, 1",
            ".balign 4",
            "2:",
            "csrw stvec, {vector}",
            "csrc sstatus, {status}",
            vector = out(reg) _,
            works = out(reg) works,
            status = in(reg) trap::STATUS_CLEARED,
            $($operand)*,
            options(nostack),
        );
        works != 0
    }};
}

/// Returns whether an address can be read, whose page was mapped just now. A device tree can be wrong about types of
/// memory, and so can firmware that does not switch them on: a page with one is a fault then.
fn probe_load(address: u64) -> bool {
    Riscv64::flush_tlb(Flush::Local(Scope::All));
    // SAFETY: as `guarded` wants; the load is of the image's first word.
    unsafe { guarded!("lw zero, 0({address})", address = in(reg) address) }
}

/// Returns whether shutdown can pass the status on to the emulator.
pub(crate) fn has_test_device() -> bool {
    TEST_DEVICE.load(Relaxed) != 0
}

/// Writes this hart's timer register, so that the timer does not interrupt, and returns whether it has one that it may
/// use. A device tree can be wrong about it, and so can firmware that does not give it to the kernel: the write is an
/// illegal instruction then.
fn probe_timer_register() -> bool {
    // SAFETY: as `guarded` wants. The timer register affects only when the timer interrupt is pending.
    unsafe { guarded!("csrw {register}, {never}", register = const csr::STIMECMP, never = in(reg) u64::MAX) }
}

/// Makes shutdown use the "SiFive test" device at this physical address from now on, so that the status reaches the
/// emulator. For kernels that must give up before they have the information for [`configure`].
pub fn use_test_device(address: u64) {
    if let Some(window) = Window::new(address, 4) {
        TEST_DEVICE.store(window.address(), Relaxed);
    }
}

/// Sends interprocessor interrupts to a hart by a store of 1 to this register, which is the interrupt file of its
/// IMSIC, instead of a call to the firmware.
///
/// # Panics
/// If the hart cannot exist or the window has no 32-bit register.
pub fn set_doorbell(hart: usize, window: &Window) {
    assert!(window.length() >= 4);
    DOORBELLS[hart].store(window.address(), Relaxed);
}

/// Returns the hart's cycle counter.
#[inline(always)]
pub fn cycles() -> u64 {
    read_csr!(csr::CYCLE)
}

/// Returns the interrupts that are pending on this hart.
#[inline(always)]
pub fn pending() -> Interrupts {
    // These interrupts are always enabled, so the pending register suffices. Guest files have registers of their own.
    let bits = read_csr!(csr::SIP);
    Interrupts {
        timer: bits & csr::TIMER != 0,
        ipi: bits & csr::SOFTWARE != 0,
        external: bits & csr::EXTERNAL != 0,
        guest: guest::is_waiting(),
    }
}

/// Finds the largest address-space identifier: writes ones to the field and reads back those that stay.
fn probe_asid() -> u16 {
    let satp = hart::this().satp.load(Relaxed);
    // SAFETY: the same table under another identifier; all the kernel's translations are global.
    unsafe { write_csr!(csr::SATP, satp | 0xffff << 44) };
    let probed = read_csr!(csr::SATP);
    // SAFETY: as above.
    unsafe { write_csr!(csr::SATP, satp) };
    (probed >> 44) as u16
}

impl Machine for Riscv64 {
    #[inline(always)]
    fn hart() -> usize {
        hart::this().index.load(Relaxed)
    }

    #[inline(always)]
    fn now() -> u64 {
        read_csr!(csr::TIME)
    }

    fn set_timer(deadline_ticks: u64) {
        if HAS_TIMER_REGISTER.load(Relaxed) {
            // SAFETY: a probe has found the register; it affects only when the timer interrupt is pending.
            unsafe { write_csr!(csr::STIMECMP, deadline_ticks) };
        } else {
            sbi_rt::set_timer(deadline_ticks);
        }
    }

    fn wait_for_interrupt() {
        // SAFETY: waiting has no effect; the instruction returns when an enabled interrupt is pending, and none is
        // taken, because interrupts are off in the kernel.
        unsafe { core::arch::asm!("wfi", options(nostack)) };
    }

    fn send_ipi(hart: usize) {
        if hart >= HART_COUNT.load(Relaxed) {
            return;
        }
        match DOORBELLS[hart].load(Relaxed) {
            0 => {
                let hart_id = hart::HARTS[hart].hart_id.load(Relaxed) as usize;
                sbi_rt::send_ipi(sbi_rt::HartMask::from_mask_base(1, hart_id));
            }
            doorbell => {
                // SAFETY: `set_doorbell` stored the address of a mapped 32-bit device register. The fence makes this
                // hart's earlier stores visible to the hart that wakes up.
                unsafe {
                    core::arch::asm!("fence rw, o", options(nostack));
                    (doorbell as *mut u32).write_volatile(1);
                }
            }
        }
    }

    #[inline(always)]
    fn enter_user(context: &mut UserContext) -> Trap {
        trap::enter_user::<false>(context)
    }

    #[inline(always)]
    fn enter_user_and_keep(context: &mut UserContext) -> Trap {
        trap::enter_user::<true>(context)
    }

    #[inline(always)]
    fn keep_floating_point(context: &mut UserContext) {
        trap::keep_floating_point(context);
    }

    // Inlined, because the scope is a constant at most call sites, and one instruction then.
    #[inline(always)]
    fn flush_tlb(flush: Flush) {
        match flush {
            Flush::Local(scope) => flush_local(scope),
            Flush::Remote(harts, scope) => {
                let own = Riscv64::hart();
                if harts.contains(own) {
                    flush_local(scope);
                }
                let others = harts.without(own);
                if !others.is_empty() {
                    flush_remote(others, scope);
                }
            }
        }
    }

    fn synchronise_instructions(harts: HartSet) {
        let own = Riscv64::hart();
        if harts.contains(own) {
            // SAFETY: the instruction affects only later instruction fetches.
            unsafe { core::arch::asm!("fence.i", options(nostack)) };
        }
        let others = harts.without(own);
        if !others.is_empty() {
            // The new instructions must be visible in memory to the other harts before their `fence.i` (specification
            // of Zifencei).
            fence(SeqCst);
            call_for(others, "the firmware refuses to synchronise other harts", sbi_rt::remote_fence_i);
        }
    }

    #[inline(always)]
    unsafe fn activate(root_ppn: u64, asid: u16) {
        guest::deactivate();
        // SAFETY: the caller's promise.
        unsafe { set_root(root_ppn, asid) };
    }

    #[inline(always)]
    unsafe fn activate_without_asid(root_ppn: u64) {
        guest::deactivate();
        // SAFETY: the caller's promise.
        if unsafe { set_root(root_ppn, 0) } && MAXIMUM_ASID.load(Relaxed) != 0 {
            flush_local(Scope::AddressSpace { asid: 0 });
        }
    }

    fn kernel_root_ppn() -> u64 {
        boot::kernel_root_ppn()
    }

    fn maximum_asid() -> u16 {
        MAXIMUM_ASID.load(Relaxed)
    }

    #[inline(always)]
    fn direct_map(physical: u64) -> *mut u8 {
        (DIRECT_MAP + physical) as *mut u8
    }

    fn shutdown(status: Status) -> ! {
        let device = TEST_DEVICE.load(Relaxed);
        if device != 0 {
            let value = match status {
                Status::Success => 0x5555,
                Status::Failure(code) => 0x3333 | u32::from(code.max(1)) << 16,
            };
            // SAFETY: `configure` stored the address of a mapped 32-bit device register.
            unsafe { (device as *mut u32).write_volatile(value) };
        }
        match status {
            Status::Success => sbi_rt::system_reset(sbi_rt::Shutdown, sbi_rt::NoReason),
            Status::Failure(_) => sbi_rt::system_reset(sbi_rt::Shutdown, sbi_rt::SystemFailure),
        };
        loop {
            Riscv64::wait_for_interrupt();
        }
    }

    fn restart() -> ! {
        sbi_rt::system_reset(sbi_rt::ColdReboot, sbi_rt::NoReason);
        // Firmware without reset support: power off instead.
        Riscv64::shutdown(Status::Success)
    }
}

impl Virtualisation for Riscv64 {
    unsafe fn activate_virtualised(root_ppn: u64) {
        assert!(guest::files() > 0, "this machine cannot virtualise programs");
        // SAFETY: the caller's promise about the table; the kernel's own maps the kernel and lives for ever.
        unsafe {
            set_root(boot::kernel_root_ppn(), 0);
            guest::activate(root_ppn);
        }
    }

    unsafe fn activate_virtualised_above(root_ppn: u64) {
        assert!(guest::has_four_levels(), "this machine has no tables of four levels for virtualised programs");
        // SAFETY: as above.
        unsafe {
            set_root(boot::kernel_root_ppn(), 0);
            guest::activate_above(root_ppn);
        }
    }

    fn has_four_levels() -> bool {
        guest::has_four_levels()
    }

    fn guest_files() -> usize {
        guest::files()
    }

    fn load_supervisor(registers: &InterruptRegisters, file: usize) {
        guest::load(registers, file);
    }

    fn save_supervisor(registers: &mut InterruptRegisters) {
        guest::save(registers);
    }

    #[inline(always)]
    fn resume_supervisor(context: &mut UserContext, file: usize) {
        guest::resume(context, file);
    }

    #[inline(always)]
    fn keep_supervisor(context: &mut UserContext, file: usize) {
        guest::keep(context, file);
    }

    fn notify_virtualised() {
        guest::notify();
    }

    fn disable_supervisor_interrupts() {
        guest::disable();
    }

    fn prepare_guest_file(file: usize, identities: u64) {
        guest::prepare_file(file, identities);
    }

    fn drain_guest_file(file: usize) -> u64 {
        guest::drain_file(file)
    }

    #[inline]
    fn take_guest_file(file: usize) -> u64 {
        guest::take_file(file)
    }

    fn enable_guest_file(file: usize, identities: u64) {
        guest::enable_file(file, identities);
    }

    fn watch_guest_files(files: u64) {
        guest::watch(files);
    }

    fn choose_guest_file(file: usize) {
        guest::choose_file(file);
    }

    fn watched_guest_files() -> u64 {
        guest::watched()
    }

    fn pending_guest_files() -> u64 {
        guest::pending()
    }
}

impl UserLevel for Riscv64 {
    fn arm(registers: &InterruptRegisters) {
        user_level::arm(registers, None, None);
    }

    #[inline(always)]
    fn save_armed(registers: &mut InterruptRegisters) {
        *registers = user_level::saved();
    }

    fn forget_armed() {
        user_level::forget();
    }

    fn receive_in(slot: Option<u16>) {
        user_level::receive_in(slot);
    }

    fn send_through(table: Option<SenderTable>) {
        user_level::send_through(table);
    }

    fn raise_user_interrupt() {
        user_level::raise();
    }

    fn disable_user_interrupts() {
        user_level::disable();
    }

    #[inline(always)]
    fn is_user_interrupt_pending() -> bool {
        user_level::is_raised()
    }

    fn lower_user_interrupt() {
        user_level::lower();
    }
}

/// Makes this the root of the table for kernel and user mode, unless it is the root already. Returns whether it was
/// another one.
///
/// On a machine without identifiers the hart forgets its translations of the old table; those of the kernel, which are
/// global, stay.
///
/// # Safety
/// As for [`Machine::activate`].
#[inline]
unsafe fn set_root(root_ppn: u64, asid: u16) -> bool {
    let area = hart::this();
    let satp = 8 << 60 | u64::from(asid) << 44 | root_ppn;
    if area.satp.load(Relaxed) == satp {
        return false;
    }
    area.satp.store(satp, Relaxed);
    // SAFETY: the caller promises that the table maps the kernel as the present table does.
    unsafe { write_csr!(csr::SATP, satp) };
    if MAXIMUM_ASID.load(Relaxed) == 0 {
        flush_local(Scope::AddressSpace { asid: 0 });
    }
    true
}

#[inline(always)]
fn flush_local(scope: Scope) {
    let scope = as_it_works(scope);
    // SAFETY: invalidating translations is always allowed; the page table provides them again.
    unsafe {
        match scope {
            Scope::All => core::arch::asm!("sfence.vma", options(nostack)),
            Scope::AddressSpace { asid } => {
                core::arch::asm!("sfence.vma zero, {}", in(reg) u64::from(asid), options(nostack));
            }
            Scope::Page { address, asid } => flush_page(address, asid),
            Scope::Range { start, length, asid } => flush_range(start, length, asid),
            Scope::Virtualised { start, length } => guest::flush(start, length),
        }
    }
}

/// Returns the scope in which this machine invalidates translations of one that a kernel asks for.
#[inline(always)]
fn as_it_works(scope: Scope) -> Scope {
    match scope {
        Scope::All | Scope::Virtualised { .. } => scope,
        _ if FLUSHES_LEAVE_PAGES.load(Relaxed) => Scope::All,
        _ => scope,
    }
}

fn flush_range(start: usize, length: usize, asid: u16) {
    let first = start & !(PAGE_SIZE - 1);
    let pages = length.saturating_add(start - first).div_ceil(PAGE_SIZE);
    if pages > MAXIMUM_PAGES {
        return flush_local(Scope::AddressSpace { asid });
    }
    for page in 0..pages {
        flush_page(first + page * PAGE_SIZE, asid);
    }
}

#[inline(always)]
fn flush_page(address: usize, asid: u16) {
    // SAFETY: as in `flush_local`.
    unsafe { core::arch::asm!("sfence.vma {}, {}", in(reg) address, in(reg) u64::from(asid), options(nostack)) };
}

fn flush_remote(harts: HartSet, scope: Scope) {
    let call = |mask| match as_it_works(scope) {
        Scope::All => sbi_rt::remote_sfence_vma(mask, 0, usize::MAX),
        Scope::AddressSpace { asid } => sbi_rt::remote_sfence_vma_asid(mask, 0, usize::MAX, asid.into()),
        Scope::Page { address, asid } => {
            sbi_rt::remote_sfence_vma_asid(mask, address & !(PAGE_SIZE - 1), PAGE_SIZE, asid.into())
        }
        Scope::Range { start, length, asid } => {
            let first = start & !(PAGE_SIZE - 1);
            let length = length.saturating_add(start - first).next_multiple_of(PAGE_SIZE);
            let length = if length / PAGE_SIZE > MAXIMUM_PAGES { usize::MAX } else { length };
            sbi_rt::remote_sfence_vma_asid(mask, first, length, asid.into())
        }
        Scope::Virtualised { start, length } => {
            let (first, length) = guest::pages(start, length);
            sbi_rt::remote_hfence_gvma(mask, first, length)
        }
    };
    call_for(harts, "the firmware refuses to flush the translations of other harts", call);
}

/// Makes one or more calls to the firmware that together cover all these harts.
///
/// # Panics
/// With `refusal` as the message if the firmware returns an error.
fn call_for(harts: HartSet, refusal: &str, call: impl Fn(sbi_rt::HartMask) -> sbi_rt::SbiRet) {
    // One call covers harts whose numbers are less than 64 apart; a machine may number its harts arbitrarily.
    let count = HART_COUNT.load(Relaxed);
    let mut rest = harts.iter().filter(|&hart| hart < count).fold(HartSet::EMPTY, HartSet::with);
    while let Some(base) = rest.iter().map(hart_id).min() {
        let mut mask = 0;
        for hart in rest.iter() {
            if let distance @ 0..64 = hart_id(hart) - base {
                mask |= 1 << distance;
                rest = rest.without(hart);
            }
        }
        let result = call(sbi_rt::HartMask::from_mask_base(mask, base as usize));
        assert_eq!(result.error, 0, "{refusal}");
    }
}

fn hart_id(hart: usize) -> u64 {
    hart::HARTS[hart].hart_id.load(Relaxed)
}
