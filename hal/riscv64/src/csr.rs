//! Control and status registers.
//!
//! These macros replace the `riscv` crate, because that crate has no `stimecmp`, no `stopei`, `siselect` or `sireg`,
//! and no hypervisor registers. One form serves all registers.

/// Reads a register by number.
macro_rules! read_csr {
    ($number:expr) => {{
        let value: u64;
        // SAFETY: reading the supervisor registers that this crate names changes no memory.
        unsafe { ::core::arch::asm!("csrr {}, {}", out(reg) value, const $number, options(nostack)) };
        value
    }};
}

/// Writes a register by number. The caller's module states why the new value keeps the kernel's invariants.
macro_rules! write_csr {
    ($number:expr, $value:expr) => {
        ::core::arch::asm!("csrw {}, {}", const $number, in(reg) $value, options(nostack))
    };
}

/// Sets bits of a register by number.
macro_rules! set_csr {
    ($number:expr, $bits:expr) => {
        ::core::arch::asm!("csrs {}, {}", const $number, in(reg) $bits, options(nostack))
    };
}

/// Clears bits of a register by number.
macro_rules! clear_csr {
    ($number:expr, $bits:expr) => {
        ::core::arch::asm!("csrc {}, {}", const $number, in(reg) $bits, options(nostack))
    };
}

pub(crate) use {clear_csr, read_csr, set_csr, write_csr};

/// Supervisor status.
pub const SSTATUS: u16 = 0x100;
/// Supervisor interrupt enable.
pub const SIE: u16 = 0x104;
/// Trap vector.
pub const STVEC: u16 = 0x105;
/// Counters that user code may read.
pub const SCOUNTEREN: u16 = 0x106;
/// Cause of the last trap.
pub const SCAUSE: u16 = 0x142;
/// Machine features that user code may use.
pub const SENVCFG: u16 = 0x10a;
/// Value that belongs to the last trap.
pub const STVAL: u16 = 0x143;
/// Program counter at the last trap.
pub const SEPC: u16 = 0x141;
/// Supervisor interrupt pending.
pub const SIP: u16 = 0x144;
/// Timer comparison (Sstc).
pub const STIMECMP: u16 = 0x14d;
/// Number of the indirect register that `sireg` accesses (Ssaia).
pub const SISELECT: u16 = 0x150;
/// The indirect register (Ssaia).
pub const SIREG: u16 = 0x151;
/// The most important external interrupt that is pending and enabled; writing claims it (Ssaia).
pub const STOPEI: u16 = 0x15c;
/// Address translation.
pub const SATP: u16 = 0x180;
/// Cycle counter.
pub const CYCLE: u16 = 0xc00;
/// The time.
pub const TIME: u16 = 0xc01;
/// Instructions retired.
pub const INSTRET: u16 = 0xc02;

/// The N extension: a program's own status, interrupt enable, vector, scratch, program counter, cause, value and
/// deadline.
pub const USTATUS: u16 = 0x000;
pub const UIE: u16 = 0x004;
pub const UTVEC: u16 = 0x005;
pub const USCRATCH: u16 = 0x040;
pub const UEPC: u16 = 0x041;
pub const UCAUSE: u16 = 0x042;
pub const UTVAL: u16 = 0x043;
pub const UTIMECMP: u16 = 0x04d;
/// The N extension: exceptions and interrupts that programs handle themselves.
pub const SEDELEG: u16 = 0x102;
pub const SIDELEG: u16 = 0x103;
/// UIPI: the program's sender table, its slot, and the address of the controller.
pub const SUIST: u16 = 0x1b0;
pub const SUIRS: u16 = 0x1b1;
pub const SUICFG: u16 = 0x1b2;

/// Hypervisor: status of virtualised programs.
pub const HSTATUS: u16 = 0x600;
/// Exceptions that go to virtualised programs.
pub const HEDELEG: u16 = 0x602;
/// Interrupts that go to virtualised programs.
pub const HIDELEG: u16 = 0x603;
/// Hypervisor interrupt enable.
pub const HIE: u16 = 0x604;
/// Counters that virtualised programs may read.
pub const HCOUNTEREN: u16 = 0x606;
/// Guest interrupt files that interrupt the kernel.
pub const HGEIE: u16 = 0x607;
/// Offset of the time that virtualised programs read.
pub const HTIMEDELTA: u16 = 0x605;
/// Machine features that virtualised programs may use.
pub const HENVCFG: u16 = 0x60a;
/// Interrupts that the kernel makes pending for virtualised programs.
pub const HVIP: u16 = 0x645;
/// Priorities of virtualised programs' interrupts (Ssaia).
pub const HVIPRIO1: u16 = 0x646;
pub const HVIPRIO2: u16 = 0x647;
/// Address translation of virtualised programs.
pub const HGATP: u16 = 0x680;
/// Guest interrupt files in which an interrupt is pending.
pub const HGEIP: u16 = 0xe12;
/// The virtualised program's own status, interrupt enable, vector, scratch, program counter, cause and translation.
pub const VSSTATUS: u16 = 0x200;
pub const VSIE: u16 = 0x204;
pub const VSTVEC: u16 = 0x205;
pub const VSSCRATCH: u16 = 0x240;
pub const VSEPC: u16 = 0x241;
pub const VSCAUSE: u16 = 0x242;
pub const VSTVAL: u16 = 0x243;
pub const VSTIMECMP: u16 = 0x24d;
pub const VSISELECT: u16 = 0x250;
pub const VSIREG: u16 = 0x251;
pub const VSATP: u16 = 0x280;

/// Bits of the counter enables: programs may read cycle, time and instret. The vDSO's clock needs the time.
pub const USER_COUNTERS: u64 = 7;

/// Interrupt bits in `sie` and `sip`.
pub const SOFTWARE: u64 = 1 << 1;
/// Timer interrupt.
pub const TIMER: u64 = 1 << 5;
/// External interrupt.
pub const EXTERNAL: u64 = 1 << 9;

/// Clears this hart's interprocessor interrupt.
pub fn clear_ipi() {
    // SAFETY: clearing the software-interrupt pending bit changes nothing else.
    unsafe { clear_csr!(SIP, SOFTWARE) };
}

/// Claims the most important external interrupt of this hart's IMSIC file; 0 if there is none.
pub fn claim_external() -> u32 {
    let value: u64;
    // SAFETY: the platform calls this only on machines with an IMSIC; claiming changes only the interrupt file.
    unsafe { core::arch::asm!("csrrw {}, {}, zero", out(reg) value, const STOPEI, options(nostack)) };
    (value >> 16) as u32 & 0x7ff
}

/// Writes a register of this hart's IMSIC file.
pub fn write_imsic(select: u64, value: u64) {
    // SAFETY: the platform calls this only on machines with an IMSIC; the file only decides which interrupts are
    // pending.
    unsafe {
        write_csr!(SISELECT, select);
        write_csr!(SIREG, value);
    }
}

/// Reads a register of this hart's IMSIC file.
pub fn read_imsic(select: u64) -> u64 {
    // SAFETY: as for `write_imsic`.
    unsafe { write_csr!(SISELECT, select) };
    read_csr!(SIREG)
}

/// Instructions that this hart has retired.
pub fn instructions() -> u64 {
    read_csr!(INSTRET)
}
