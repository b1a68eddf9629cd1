//! Virtualised programs: user code in VS-mode, under the hypervisor extension (RISC-V privileged specification, chapter
//! "H" Extension; Advanced Interrupt Architecture, chapters 3 and 6).
//!
//! A virtualised program is still a program: its addresses are translated by a page table of the kernel's, and its
//! calls and faults go to the kernel. But it has supervisor registers of its own, so that it takes interrupts without
//! the kernel: from a guest interrupt file of the hart's IMSIC, from its own timer, and a software interrupt that the
//! kernel makes pending. The following measures make that safe:
//!
//! * `vsatp` is Bare, and `hstatus.VTVM` makes the program's access to it a fault: the program reaches only memory that
//!   `hgatp` maps. The root of `hgatp` is the root of the process's table, of four frames; its kernel entries lack the
//!   user bit, and this stage refuses entries without it. QEMU before 8 does not implement VTVM for `satp`. A program
//!   that writes `satp` there has a first stage of its own above the mappings of `hgatp`, and reaches no further
//!   memory; its first fault in that stage ends it, and the next program finds Bare.
//! * `hedeleg` is 0: every exception goes to the kernel. `hideleg` delegates the three interrupts of VS-mode, no
//!   others.
//! * `hstatus.VTW` makes `wfi` a fault, since no program may stop a hart. `sret` is allowed, because a handler ends
//!   with it.
//! * [`load`] writes every register that the previous program could write and the next could read, including those that
//!   VS-mode shares with the kernel (`scounteren`, `senvcfg`): no value leaks from one program to the next, by mistake
//!   or on purpose. [`resume`] leaves that out for the program whose registers were the last to be loaded: each
//!   register then holds a value of its own, or one of the kernel's.
//!
//! All address spaces have the virtual-machine identifier 0, and the hart invalidates all translations of virtualised
//! programs when it switches between spaces. Identifiers would avoid refilling the TLB on hardware.
//!
//! # The software interrupt stays pending
//!
//! While a program with a guest interrupt file runs, the software interrupt of VS-mode is pending in `hvip` and
//! disabled in `vsie`. Hardware does not need that. QEMU (7.2 and some later versions) checks external interrupts of
//! VS-mode only while an interrupt is pending in `mip`, which does not contain them; a message that arrived while the
//! hart was in the kernel would be missed on the return to the program. An interrupt that is always pending and never
//! taken forces the check. The kernel notifies such a program through its file instead.
//!
//! # The origin of a trap
//!
//! `hstatus.SPV` and `sstatus.SPP` select the mode to which `sret` returns, and a trap sets them to the mode that it
//! came from. So they need to be written only when the table changes: [`activate`] and [`deactivate`] do that. No other
//! code may set SPV, for VS-mode without a table in `hgatp` reaches all of physical memory.
//!
//! A program that is entered again after a trap of its own, with nothing else run in between, therefore needs neither:
//! SPV, `hgatp` and the translations are as it left them. (SPP may select VU-mode, if the program was there, and
//! VU-mode is its own.) Between a virtualised program and another program, in contrast, none of the three can stay. SPV
//! would run the other program under the wrong table. A table in `hgatp` could be walked speculatively while the kernel
//! runs, even after its memory has been freed. And `hgatp` must not become Bare before SPV is clear: `deactivate`
//! writes them in this order, and `activate` in the opposite one.
//!
//! # Registers that stay loaded
//!
//! The supervisor registers of a virtualised program have no effect while V = 0, with one exception: an interrupt that
//! is pending and enabled in `vsie` ends `wfi`. So [`keep`] leaves all of them in the hart, and [`deactivate`] clears
//! only `vsie`. (A hart that waits for a kernel's lock before that may poll instead of sleeping.) `keep` also copies
//! them to memory at each trap, because another hart may be the next to read or change them. As with floating point, a
//! token in the program's context names the contents; it is equal to the hart's while the hart holds them. Loading on
//! another hart makes a new token, changing the copy clears the program's, and no two programs ever have the same one;
//! so a hart never mistakes the registers of an earlier program, in the same memory or elsewhere, for the program's
//! own.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hal_api::{InterruptRegisters, PAGE_SIZE, UserContext};

use crate::csr::{self, clear_csr, read_csr, set_csr, write_csr};
use crate::hart;

/// `hstatus`: the virtualised mode's registers have 64 bits.
const VSXL_64: u64 = 2 << 32;
/// `hstatus`: access to address translation is a fault.
const VTVM: u64 = 1 << 20;
/// `hstatus`: waiting for interrupts is a fault.
const VTW: u64 = 1 << 21;
/// `hstatus`: the mode before the trap was VS, not VU.
const SPVP: u64 = 1 << 8;
/// `hstatus`: the trap came from a virtualised mode, and the next return goes there.
const SPV: u64 = 1 << 7;
/// `hstatus`: position of the guest interrupt file.
const VGEIN_SHIFT: u32 = 12;
/// `sstatus`: the last trap came from a mode other than user mode, and the next return goes there.
const SPP: u64 = 1 << 8;
/// `vsstatus`: the floating-point unit is on as far as the program's own status is concerned, and registers have 64
/// bits.
const VS_FIXED: u64 = 3 << 13 | 2 << 32;
/// Bits of `vsstatus` that a program controls: its interrupt enables and the mode to which its handler returns.
const VS_STATUS: u64 = 1 << 1 | 1 << 5 | 1 << 8;
/// Software, timer and external interrupts of VS-mode, in `hideleg` and `hvip`.
const VS_SOFTWARE: u64 = 1 << 2;
const VS_INTERRUPTS: u64 = VS_SOFTWARE | 1 << 6 | 1 << 10;
/// The software interrupt, in `vsie`.
const SOFTWARE_ENABLE: u64 = 1 << 1;
/// `hie`: interrupts from watched guest interrupt files.
const GUEST_EXTERNAL: u64 = 1 << 12;
/// `hgatp`: modes Sv39x4 and Sv48x4.
const SV39X4: u64 = 8 << 60;
const SV48X4: u64 = 9 << 60;
/// `henvcfg`: virtualised programs have a timer.
const STCE: u64 = 1 << 63;

/// Registers of a guest interrupt file, as in `drivers::imsic`.
const DELIVERY: u64 = 0x70;
const THRESHOLD: u64 = 0x72;
const PENDING: u64 = 0x80;
const ENABLE: u64 = 0xc0;

/// The largest number of pages to flush one by one; beyond it, flushing everything is cheaper.
const MAXIMUM_PAGES: usize = 64;

static FILES: AtomicUsize = AtomicUsize::new(0);
/// Whether `hgatp` has the mode Sv48x4.
static HAS_FOUR_LEVELS: AtomicBool = AtomicBool::new(false);
/// The greatest identity of a guest file.
static IDENTITIES: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of guest files of each hart; 0 if programs cannot be virtualised.
#[inline(always)]
pub fn files() -> usize {
    FILES.load(Relaxed)
}

/// Returns whether tables can have four levels.
#[inline(always)]
pub fn has_four_levels() -> bool {
    files() > 0 && HAS_FOUR_LEVELS.load(Relaxed)
}

/// Prepares this hart to virtualise programs, with at most `limit` guest interrupt files. Each hart calls this before
/// it runs any program. According to the device tree, which the platform has read, the harts have the hypervisor
/// extension, Sstc, and an IMSIC with guest interrupt files with identities up to `identities`. All harts have at least
/// as many files as the first.
pub fn use_guest_files(limit: usize, identities: u32) {
    // SAFETY: the platform guarantees that the registers exist. They affect virtualised modes only, and no program runs
    // in one yet; the module documentation justifies their values.
    unsafe {
        write_csr!(csr::HEDELEG, 0u64);
        write_csr!(csr::HIDELEG, VS_INTERRUPTS);
        write_csr!(csr::HCOUNTEREN, 7u64);
        write_csr!(csr::HTIMEDELTA, 0u64);
        // No other bit: a program that may discard cache blocks, for example, would see earlier contents of frames.
        write_csr!(csr::HENVCFG, STCE);
        // A mode that the hart does not have is not kept. No program runs virtualised meanwhile, and the kernel makes
        // no access through this register.
        write_csr!(csr::HGATP, SV48X4);
    }
    let has_four_levels = read_csr!(csr::HGATP) == SV48X4;
    // SAFETY: as above.
    unsafe {
        write_csr!(csr::HGATP, 0u64);
        write_csr!(csr::VSATP, 0u64);
        write_csr!(csr::HVIP, 0u64);
        // Each bit that stays set is a file that exists.
        write_csr!(csr::HGEIE, u64::MAX);
    }
    let exist = read_csr!(csr::HGEIE);
    // SAFETY: as above.
    unsafe {
        write_csr!(csr::HGEIE, 0u64);
        set_csr!(csr::HIE, GUEST_EXTERNAL);
    }
    let has_timer = read_csr!(csr::HENVCFG) & STCE != 0;
    let count = if has_timer { ((exist >> 1).trailing_ones() as usize).min(limit) } else { 0 };
    if hart::this().index.load(Relaxed) == 0 {
        FILES.store(count, Relaxed);
        IDENTITIES.store(identities as usize, Relaxed);
        HAS_FOUR_LEVELS.store(has_four_levels, Relaxed);
    }
    assert!(has_four_levels || !HAS_FOUR_LEVELS.load(Relaxed), "this hart has fewer levels of tables than the first");
    assert!(count >= files(), "this hart has fewer guest interrupt files than the first");
}

/// Runs programs virtualised from now on.
///
/// # Safety
/// The root must have four frames, aligned to their size, and live until [`deactivate`]; everything that it maps for
/// users must belong to the program.
pub unsafe fn activate(root_ppn: u64) {
    // SAFETY: the caller's promise.
    unsafe { enter_table(SV39X4 | root_ppn) };
}

/// As [`activate`], with a root above that of an ordinary table: its first entry points there, and the others are
/// empty.
///
/// # Safety
/// As for [`activate`]; the machine has four levels.
pub unsafe fn activate_above(root_ppn: u64) {
    // SAFETY: the caller's promise. Of the lower table's entries, those of the kernel lack the user bit.
    unsafe { enter_table(SV48X4 | root_ppn) };
}

/// # Safety
/// As for [`activate`] and [`activate_above`].
unsafe fn enter_table(hgatp: u64) {
    // SAFETY: the caller's promise. The next entry goes to VS-mode, under that table.
    unsafe {
        write_csr!(csr::HGATP, hgatp);
        set_csr!(csr::HSTATUS, SPV | SPVP | VTVM | VTW);
        set_csr!(csr::SSTATUS, SPP);
    }
    flush(0, usize::MAX);
    hart::this().virtualised.store(1, Relaxed);
}

/// Runs programs in user mode from now on.
#[inline]
pub fn deactivate() {
    if hart::this().virtualised.load(Relaxed) != 0 {
        deactivate_now();
    }
}

#[cold]
fn deactivate_now() {
    hart::this().virtualised.store(0, Relaxed);
    // SAFETY: the next return goes to user mode, as without this module. `scounteren` and `senvcfg` are shared with
    // VS-mode, whose program may have changed `senvcfg`.
    unsafe {
        write_csr!(csr::SCOUNTEREN, csr::USER_COUNTERS);
        write_csr!(csr::SENVCFG, 0u64);
        // The program's registers may still be loaded, and its interrupts must not end `wfi`.
        write_csr!(csr::VSIE, 0u64);
        write_csr!(csr::HSTATUS, VSXL_64);
        clear_csr!(csr::SSTATUS, SPP);
        write_csr!(csr::HGATP, 0u64);
    }
    flush(0, usize::MAX);
}

/// Assigns a file to the program whose registers are loaded. The kernel notifies the program through the file from now
/// on.
pub fn choose_file(file: usize) {
    set_file(file);
    if file != 0 {
        // SAFETY: the program's own interrupts, as in `load`.
        unsafe {
            clear_csr!(csr::VSIE, SOFTWARE_ENABLE);
            write_csr!(csr::HVIP, VS_SOFTWARE);
        }
    }
}

fn set_file(file: usize) {
    let status = read_csr!(csr::HSTATUS) & !(63 << VGEIN_SHIFT);
    // SAFETY: the file is one of this hart's. A number without a file, which only a mistaken caller passes, selects
    // none.
    unsafe { write_csr!(csr::HSTATUS, status | (file as u64 & 63) << VGEIN_SHIFT) };
}

/// Returns whether the program that ran last has changed its own address translation, which VTVM should have prevented.
pub fn has_own_translation() -> bool {
    hart::this().virtualised.load(Relaxed) != 0 && read_csr!(csr::VSATP) != 0
}

/// Loads the registers that depend on a program's file.
fn load_with_file(registers: &InterruptRegisters, file: usize) {
    set_file(file);
    let (enabled, notified) = match file {
        0 => (registers.enabled, registers.notified << 2 & VS_SOFTWARE),
        _ => (registers.enabled & !SOFTWARE_ENABLE, VS_SOFTWARE),
    };
    // SAFETY: as in `load`.
    unsafe {
        write_csr!(csr::VSIE, enabled);
        write_csr!(csr::HVIP, notified);
    }
}

/// Loads a program's registers into the hart.
pub fn load(registers: &InterruptRegisters, file: usize) {
    load_with_file(registers, file);
    // The last program may have switched to VU-mode, which must not affect the next program.
    let mode = if hart::this().virtualised.load(Relaxed) != 0 { SPP } else { 0 };
    // SAFETY: the registers are the program's own and have no effect outside its mode. SPP selects VS-mode only
    // together with SPV.
    unsafe {
        set_csr!(csr::SSTATUS, mode);
        write_csr!(csr::VSSTATUS, registers.status & VS_STATUS | VS_FIXED);
        write_csr!(csr::VSTVEC, registers.vector);
        write_csr!(csr::VSSCRATCH, registers.scratch);
        write_csr!(csr::VSEPC, registers.interrupted);
        write_csr!(csr::VSCAUSE, registers.cause);
        write_csr!(csr::VSTIMECMP, registers.deadline);
        // Registers that the last program may have changed.
        write_csr!(csr::VSATP, 0u64);
        write_csr!(csr::VSTVAL, 0u64);
        write_csr!(csr::VSISELECT, 0u64);
        write_csr!(csr::HVIPRIO1, 0u64);
        write_csr!(csr::HVIPRIO2, 0u64);
        write_csr!(csr::SCOUNTEREN, csr::USER_COUNTERS);
        write_csr!(csr::SENVCFG, 0u64);
    }
}

/// Loads a program's registers into the hart, unless the hart still holds them since [`keep`].
#[inline]
pub fn resume(context: &mut UserContext, file: usize) {
    let area = hart::this();
    let token = context.supervisor_token();
    if token != 0 && token == area.supervisor_token.load(Relaxed) {
        // The file may be another one since then, and `deactivate` has disabled the program's interrupts.
        return load_with_file(&context.supervisor, file);
    }
    load(&context.supervisor, file);
    context.set_supervisor_token(area.new_supervisor_token());
}

/// Saves the registers of a program that [`resume`] has prepared with this file, and leaves them in the hart.
#[inline(always)]
pub fn keep(context: &mut UserContext, file: usize) {
    context.supervisor = read(file != 0);
}

/// Saves the program's registers and disables its interrupts.
pub fn save(registers: &mut InterruptRegisters) {
    let has_file = read_csr!(csr::HSTATUS) >> VGEIN_SHIFT & 63 != 0;
    *registers = read(has_file);
    // An interrupt that is pending for a program that does not run must not keep the hart from sleeping. SAFETY: no
    // program's registers are loaded any more.
    unsafe {
        write_csr!(csr::VSIE, 0u64);
        write_csr!(csr::HVIP, 0u64);
    }
}

#[inline(always)]
fn read(has_file: bool) -> InterruptRegisters {
    InterruptRegisters {
        status: read_csr!(csr::VSSTATUS),
        enabled: read_csr!(csr::VSIE) | if has_file { SOFTWARE_ENABLE } else { 0 },
        vector: read_csr!(csr::VSTVEC),
        scratch: read_csr!(csr::VSSCRATCH),
        interrupted: read_csr!(csr::VSEPC),
        cause: read_csr!(csr::VSCAUSE),
        deadline: read_csr!(csr::VSTIMECMP),
        notified: if has_file { 0 } else { read_csr!(csr::HVIP) >> 2 & 1 },
    }
}

/// Makes the software interrupt of the program whose registers are loaded pending.
pub fn notify() {
    // SAFETY: only virtualised programs get this interrupt.
    unsafe { set_csr!(csr::HVIP, VS_SOFTWARE) };
}

/// Disables the interrupts of the program whose registers are loaded; they stay pending.
pub fn disable() {
    // SAFETY: the program's own interrupts.
    unsafe { write_csr!(csr::VSIE, 0u64) };
}

/// Runs `act` while `hstatus` selects this guest file, so that `vsiselect` and `vsireg` access its registers.
fn with_file<R>(file: usize, act: impl FnOnce() -> R) -> R {
    let status = read_csr!(csr::HSTATUS);
    // SAFETY: the file only selects the registers that are accessed next, and is restored; no program runs in between.
    unsafe { write_csr!(csr::HSTATUS, status & !(63 << VGEIN_SHIFT) | (file as u64 & 63) << VGEIN_SHIFT) };
    let result = act();
    // SAFETY: this restores the old value. No program finds the number of a register that the kernel has accessed.
    unsafe {
        write_csr!(csr::VSISELECT, 0u64);
        write_csr!(csr::HSTATUS, status);
    }
    result
}

fn exists(file: usize) -> bool {
    (1..=files()).contains(&file)
}

fn write(register: u64, value: u64) {
    // SAFETY: `with_file` has selected a file that exists; its registers affect only the program's interrupts.
    unsafe {
        write_csr!(csr::VSISELECT, register);
        write_csr!(csr::VSIREG, value);
    }
}

/// Empties a file and enables exactly these identities, whichever the previous program has enabled.
pub fn prepare_file(file: usize, identities: u64) {
    if exists(file) {
        with_file(file, || {
            write(DELIVERY, 0);
            for word in words() {
                write(PENDING + 2 * word, 0);
            }
            enable(identities);
        });
    }
}

/// Enables exactly these identities in a file, whichever its program has enabled. Pending identities stay pending.
pub fn enable_file(file: usize, identities: u64) {
    if exists(file) {
        with_file(file, || enable(identities));
    }
}

/// Indices of the 64-bit words of the registers with a bit for each identity.
fn words() -> impl Iterator<Item = u64> {
    0..=IDENTITIES.load(Relaxed) as u64 / 64
}

/// The bits are written only where they change: QEMU (7.2 and some later versions) does so without regard to stores to
/// the file at the same time, which it may lose.
fn enable(identities: u64) {
    for word in words() {
        let wanted = if word == 0 { identities } else { 0 };
        // SAFETY: as in `write`.
        unsafe { write_csr!(csr::VSISELECT, ENABLE + 2 * word) };
        if read_csr!(csr::VSIREG) != wanted {
            // SAFETY: as in `write`.
            unsafe { write_csr!(csr::VSIREG, wanted) };
        }
    }
    write(THRESHOLD, 0);
    write(DELIVERY, 1);
}

/// Takes the pending identities below 64 out of a file while stores to it may arrive; identities stored meanwhile stay
/// pending.
#[inline]
pub fn take_file(file: usize) -> u64 {
    if !exists(file) {
        return 0;
    }
    with_file(file, || {
        // SAFETY: as in `write`.
        unsafe { write_csr!(csr::VSISELECT, PENDING) };
        let pending = read_csr!(csr::VSIREG);
        // SAFETY: as in `write`. Only the identities that were read are cleared.
        unsafe { clear_csr!(csr::VSIREG, pending) };
        pending
    })
}

/// Takes the pending identities below 64 out of a file, and disables it.
pub fn drain_file(file: usize) -> u64 {
    if !exists(file) {
        return 0;
    }
    with_file(file, || {
        write(DELIVERY, 0);
        // SAFETY: as in `write`.
        unsafe { write_csr!(csr::VSISELECT, PENDING) };
        let pending = read_csr!(csr::VSIREG);
        write(PENDING, 0);
        pending
    })
}

/// Selects the files that interrupt the kernel.
pub fn watch(files: u64) {
    // SAFETY: this affects only the interrupts that are pending for the kernel, which polls.
    unsafe { write_csr!(csr::HGEIE, files) };
}

/// Returns the files selected by [`watch`].
pub fn watched() -> u64 {
    if files() == 0 { 0 } else { read_csr!(csr::HGEIE) }
}

/// Returns the files in which an interrupt is pending, watched or not.
pub fn pending() -> u64 {
    if files() == 0 { 0 } else { read_csr!(csr::HGEIP) }
}

/// Returns whether an interrupt is pending in a watched file.
#[inline(always)]
pub fn is_waiting() -> bool {
    pending() & watched() != 0
}

/// Rounds a range of addresses to whole pages, or to everything if there are too many.
pub fn pages(start: usize, length: usize) -> (usize, usize) {
    let first = start & !(PAGE_SIZE - 1);
    let length = length.saturating_add(start - first);
    if length.div_ceil(PAGE_SIZE) > MAXIMUM_PAGES {
        (0, usize::MAX)
    } else {
        (first, length.next_multiple_of(PAGE_SIZE))
    }
}

/// Invalidates translations of virtualised programs on this hart.
pub fn flush(start: usize, length: usize) {
    let (first, length) = pages(start, length);
    // SAFETY: invalidating translations is always allowed. `.insn`, because the extension is not enabled in the
    // assembler: `hfence.gvma`, whose first operand is a guest physical address shifted by two.
    unsafe {
        if length == usize::MAX {
            core::arch::asm!(".insn r 0x73, 0, 0x31, x0, x0, x0", options(nostack));
        } else {
            for page in (first..first + length).step_by(PAGE_SIZE) {
                core::arch::asm!(".insn r 0x73, 0, 0x31, x0, {}, x0", in(reg) page >> 2, options(nostack));
            }
        }
    }
}
