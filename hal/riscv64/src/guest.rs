//! Virtualised programs: user code in VS-mode, under the hypervisor extension (RISC-V privileged specification, chapter
//! "H" Extension; Advanced Interrupt Architecture, chapters 3 and 6).
//!
//! A virtualised program is still a program: its addresses go through a page table of the kernel's, its calls and
//! faults come to the kernel. But it has supervisor registers of its own, so that it takes interrupts without the
//! kernel: from a guest interrupt file of the hart's IMSIC, from its own timer, and one that the kernel makes pending.
//! What makes that safe:
//!
//! * `vsatp` is Bare, and `hstatus.VTVM` makes the program's access to it a fault: memory is what `hgatp` maps. The
//!   root of `hgatp` is of the process's table, of four frames; its kernel entries lack the user bit, which this stage
//!   refuses. QEMU before 8 does not know VTVM for `satp`. A program that writes it there has a first stage of its own
//!   above what `hgatp` maps, and reaches nothing more; its first fault in that stage ends it, and the next program
//!   finds Bare.
//! * `hedeleg` is 0: every exception comes to the kernel. `hideleg` gives away the three interrupts of VS-mode, no
//!   others.
//! * `hstatus.VTW` makes `wfi` a fault, since nobody may stop a hart. `sret` is allowed, for that is how a handler
//!   ends.
//! * [`load`] writes every register that the program before could write and the next could read, those included that
//!   VS-mode shares with the kernel (`scounteren`, `senvcfg`): nothing is handed on, by mistake or on purpose.
//!
//! All spaces have the virtual-machine identifier 0, and the hart forgets all translations of this kind when it changes
//! between them. Identifiers would spare refilling the TLB on hardware.
//!
//! # Why the software interrupt stays pending
//!
//! While a program with a guest interrupt file runs, `hvip` has the software interrupt of VS-mode pending and `vsie`
//! has it disabled. Hardware does not need that. QEMU (7.2 and some later) looks at external interrupts of VS-mode only
//! while something is pending in `mip`, where they do not stand; a message that came while the hart was in the kernel
//! would not be noticed on the way back. Something that is always pending and never taken makes it look. The kernel
//! speaks to such a program through its file instead.
//!
//! # Where a trap came from
//!
//! `hstatus.SPV` and `sstatus.SPP` say where `sret` goes, and a trap sets them to where it came from. So they need to
//! be written only when the table changes: [`activate`] and [`deactivate`] do. Nothing else may set SPV, for VS-mode
//! without a table in `hgatp` reaches all of physical memory.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hal_api::{PAGE_SIZE, SupervisorRegisters};

use crate::csr::{self, clear_csr, read_csr, set_csr, write_csr};
use crate::hart;

/// `hstatus`: the virtualised mode's registers have 64 bits.
const VSXL_64: u64 = 2 << 32;
/// `hstatus`: access to address translation is a fault.
const VTVM: u64 = 1 << 20;
/// `hstatus`: waiting for interrupts is a fault.
const VTW: u64 = 1 << 21;
/// `hstatus`: the virtualised mode before the trap was VS.
const SPVP: u64 = 1 << 8;
/// `hstatus`: the trap came from a virtualised mode, and the next return goes there.
const SPV: u64 = 1 << 7;
/// `hstatus`: position of the guest interrupt file.
const VGEIN_SHIFT: u32 = 12;
/// `sstatus`: where the last trap came from, and the next return goes to, was not user mode.
const SPP: u64 = 1 << 8;
/// `vsstatus`: the floating-point unit is on as far as the program's own status is concerned, and registers have 64
/// bits.
const VS_FIXED: u64 = 3 << 13 | 2 << 32;
/// What of `vsstatus` a program decides: its interrupt enables and where its handler returns to.
const VS_STATUS: u64 = 1 << 1 | 1 << 5 | 1 << 8;
/// Software, timer and external interrupts of VS-mode, in `hideleg` and `hvip`.
const VS_SOFTWARE: u64 = 1 << 2;
const VS_INTERRUPTS: u64 = VS_SOFTWARE | 1 << 6 | 1 << 10;
/// The software interrupt, in `vsie`.
const SOFTWARE_ENABLE: u64 = 1 << 1;
/// `hie`: a guest interrupt file wants the kernel.
const GUEST_EXTERNAL: u64 = 1 << 12;
/// `henvcfg`: virtualised programs have a timer.
const STCE: u64 = 1 << 63;

/// Registers of a guest interrupt file, as in `drivers::imsic`.
const DELIVERY: u64 = 0x70;
const THRESHOLD: u64 = 0x72;
const PENDING: u64 = 0x80;
const ENABLE: u64 = 0xc0;

/// With more pages than this, forgetting everything is cheaper.
const MAXIMUM_PAGES: usize = 64;

static FILES: AtomicUsize = AtomicUsize::new(0);
/// The greatest identity that a guest file knows.
static IDENTITIES: AtomicUsize = AtomicUsize::new(0);

/// How many guest files each hart has; 0 if programs cannot be virtualised.
#[inline(always)]
pub fn files() -> usize {
    FILES.load(Relaxed)
}

/// Prepares this hart to virtualise programs, with at most `limit` guest interrupt files. Each hart does so before it
/// runs any program; the platform has found in the device tree that harts have the hypervisor extension, Sstc, and an
/// IMSIC with guest interrupt files, which know identities up to `identities`. All harts have as many files as the
/// first.
pub fn use_guest_files(limit: usize, identities: u32) {
    // SAFETY: the platform says that the registers exist. They decide what happens in virtualised modes only, and no
    // program runs in one yet; what they say is this module's argument for safety.
    unsafe {
        write_csr!(csr::HEDELEG, 0u64);
        write_csr!(csr::HIDELEG, VS_INTERRUPTS);
        write_csr!(csr::HCOUNTEREN, 7u64);
        write_csr!(csr::HTIMEDELTA, 0u64);
        // Nothing else: who discards cache blocks, for one, would see what frames held before.
        write_csr!(csr::HENVCFG, STCE);
        write_csr!(csr::HGATP, 0u64);
        write_csr!(csr::VSATP, 0u64);
        write_csr!(csr::HVIP, 0u64);
        // Those bits that stay are files that exist.
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
    }
    assert!(count >= files(), "this hart has fewer guest interrupt files than the first");
}

/// Programs run virtualised from now on.
///
/// # Safety
/// The root must be of four frames, aligned to them, and live until [`deactivate`]; what it maps for users is the
/// program's.
pub unsafe fn activate(root_ppn: u64) {
    // SAFETY: the caller's promise; mode 8 is Sv39x4. The next entry goes to VS-mode, under that table.
    unsafe {
        write_csr!(csr::HGATP, 8u64 << 60 | root_ppn);
        set_csr!(csr::HSTATUS, SPV | SPVP | VTVM | VTW);
        set_csr!(csr::SSTATUS, SPP);
    }
    flush(0, usize::MAX);
    hart::this().virtualised.store(1, Relaxed);
}

/// Programs run as ordinary ones from now on.
#[inline]
pub fn deactivate() {
    if hart::this().virtualised.load(Relaxed) != 0 {
        deactivate_now();
    }
}

#[cold]
fn deactivate_now() {
    hart::this().virtualised.store(0, Relaxed);
    // SAFETY: the next return goes to user mode, as without this module. The last two are shared with VS-mode, whose
    // program may have changed them.
    unsafe {
        write_csr!(csr::SCOUNTEREN, csr::USER_COUNTERS);
        write_csr!(csr::SENVCFG, 0u64);
        write_csr!(csr::HSTATUS, VSXL_64);
        clear_csr!(csr::SSTATUS, SPP);
        write_csr!(csr::HGATP, 0u64);
    }
    flush(0, usize::MAX);
}

/// Makes a file that of the program whose registers are loaded. What the kernel has to say to it comes through the file
/// from now on.
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
    // SAFETY: the file is one of this hart's, or if the caller errs, one that does not exist, which is none.
    unsafe { write_csr!(csr::HSTATUS, status | (file as u64 & 63) << VGEIN_SHIFT) };
}

/// Whether the program that ran last has changed its own address translation, which VTVM should have kept it from.
pub fn has_own_translation() -> bool {
    hart::this().virtualised.load(Relaxed) != 0 && read_csr!(csr::VSATP) != 0
}

/// Puts a program's registers into the hart.
pub fn load(registers: &SupervisorRegisters, file: usize) {
    set_file(file);
    let (enabled, notified) = match file {
        0 => (registers.enabled, registers.notified << 2 & VS_SOFTWARE),
        _ => (registers.enabled & !SOFTWARE_ENABLE, VS_SOFTWARE),
    };
    // The last program may have gone to VU-mode, which is its own affair but not the next one's.
    let mode = if hart::this().virtualised.load(Relaxed) != 0 { SPP } else { 0 };
    // SAFETY: the registers are the program's own and decide nothing outside of its mode. SPP leads to VS-mode only
    // together with SPV.
    unsafe {
        set_csr!(csr::SSTATUS, mode);
        write_csr!(csr::VSSTATUS, registers.status & VS_STATUS | VS_FIXED);
        write_csr!(csr::VSIE, enabled);
        write_csr!(csr::VSTVEC, registers.vector);
        write_csr!(csr::VSSCRATCH, registers.scratch);
        write_csr!(csr::VSEPC, registers.interrupted);
        write_csr!(csr::VSCAUSE, registers.cause);
        write_csr!(csr::VSTIMECMP, registers.deadline);
        write_csr!(csr::HVIP, notified);
        // What the last program may have left.
        write_csr!(csr::VSATP, 0u64);
        write_csr!(csr::VSTVAL, 0u64);
        write_csr!(csr::VSISELECT, 0u64);
        write_csr!(csr::HVIPRIO1, 0u64);
        write_csr!(csr::HVIPRIO2, 0u64);
        write_csr!(csr::SCOUNTEREN, csr::USER_COUNTERS);
        write_csr!(csr::SENVCFG, 0u64);
    }
}

/// Takes the program's registers out of the hart.
pub fn save(registers: &mut SupervisorRegisters) {
    let has_file = read_csr!(csr::HSTATUS) >> VGEIN_SHIFT & 63 != 0;
    *registers = SupervisorRegisters {
        status: read_csr!(csr::VSSTATUS),
        enabled: read_csr!(csr::VSIE) | if has_file { SOFTWARE_ENABLE } else { 0 },
        vector: read_csr!(csr::VSTVEC),
        scratch: read_csr!(csr::VSSCRATCH),
        interrupted: read_csr!(csr::VSEPC),
        cause: read_csr!(csr::VSCAUSE),
        deadline: read_csr!(csr::VSTIMECMP),
        notified: if has_file { 0 } else { read_csr!(csr::HVIP) >> 2 & 1 },
    };
    // What is pending for a program that does not run must not keep the hart from sleeping.
    // SAFETY: no program's registers are loaded any more.
    unsafe {
        write_csr!(csr::VSIE, 0u64);
        write_csr!(csr::HVIP, 0u64);
    }
}

/// Makes the software interrupt of the program whose registers are loaded pending.
pub fn notify() {
    // SAFETY: only virtualised programs get this interrupt.
    unsafe { set_csr!(csr::HVIP, VS_SOFTWARE) };
}

/// Does something with a guest file's registers, which are those of the file in `hstatus`.
fn with_file<R>(file: usize, act: impl FnOnce() -> R) -> R {
    let status = read_csr!(csr::HSTATUS);
    // SAFETY: the file decides which registers are reached next, and is put back; no program runs in between.
    unsafe { write_csr!(csr::HSTATUS, status & !(63 << VGEIN_SHIFT) | (file as u64 & 63) << VGEIN_SHIFT) };
    let result = act();
    // SAFETY: as it was.
    unsafe { write_csr!(csr::HSTATUS, status) };
    result
}

fn exists(file: usize) -> bool {
    (1..=files()).contains(&file)
}

fn write(register: u64, value: u64) {
    // SAFETY: `with_file` has chosen a file that exists; it decides only which interrupts are pending.
    unsafe {
        write_csr!(csr::VSISELECT, register);
        write_csr!(csr::VSIREG, value);
    }
}

/// Empties a file and enables these identities; no other, though the program before may have done so.
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

/// Enables these identities in a file and no other, whatever its program has made of it. What is pending stays.
pub fn enable_file(file: usize, identities: u64) {
    if exists(file) {
        with_file(file, || enable(identities));
    }
}

/// The words of the registers with a bit for each identity.
fn words() -> impl Iterator<Item = u64> {
    0..=IDENTITIES.load(Relaxed) as u64 / 64
}

fn enable(identities: u64) {
    for word in words() {
        write(ENABLE + 2 * word, if word == 0 { identities } else { 0 });
    }
    write(THRESHOLD, 0);
    write(DELIVERY, 1);
}

/// Takes what is pending out of a file to which others may store meanwhile: what comes then stays.
pub fn take_file(file: usize) -> u64 {
    if !exists(file) {
        return 0;
    }
    with_file(file, || {
        // SAFETY: as in `write`.
        unsafe { write_csr!(csr::VSISELECT, PENDING) };
        let pending = read_csr!(csr::VSIREG);
        // SAFETY: as in `write`. Only what was seen is cleared.
        unsafe { clear_csr!(csr::VSIREG, pending) };
        pending
    })
}

/// Takes what is pending out of a file, and disables it.
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

/// Chooses the files that interrupt the kernel.
pub fn watch(files: u64) {
    // SAFETY: this decides only what is pending for the kernel, which polls.
    unsafe { write_csr!(csr::HGEIE, files) };
}

/// What [`watch`] chose.
pub fn watched() -> u64 {
    if files() == 0 { 0 } else { read_csr!(csr::HGEIE) }
}

/// The files in which something is pending, watched or not.
pub fn pending() -> u64 {
    if files() == 0 { 0 } else { read_csr!(csr::HGEIP) }
}

/// Whether something is pending in a watched file.
#[inline(always)]
pub fn is_waiting() -> bool {
    pending() & watched() != 0
}

/// A range of addresses as whole pages, or everything.
pub fn pages(start: usize, length: usize) -> (usize, usize) {
    let first = start & !(PAGE_SIZE - 1);
    let length = length.saturating_add(start - first);
    if length.div_ceil(PAGE_SIZE) > MAXIMUM_PAGES {
        (0, usize::MAX)
    } else {
        (first, length.next_multiple_of(PAGE_SIZE))
    }
}

/// Forgets translations of virtualised programs on this hart.
pub fn flush(start: usize, length: usize) {
    let (first, length) = pages(start, length);
    // SAFETY: forgetting translations is always allowed. `.insn`, because the assembler is not told of the extension:
    // `hfence.gvma`, whose first operand is a guest physical address shifted by two.
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
