//! Control and status registers.
//!
//! A macro of its own and not the `riscv` crate, because that crate has no `stimecmp`, no `stopei`, `siselect` or `sireg`,
//! and no hypervisor registers; so one form serves all.

/// Reads a register by number.
macro_rules! read_csr {
    ($number:expr) => {{
        let value: u64;
        // SAFETY: reading the supervisor registers that this crate names changes no memory.
        unsafe { ::core::arch::asm!("csrr {}, {}", out(reg) value, const $number, options(nostack)) };
        value
    }};
}

/// Writes a register by number. The caller's module says why the new value keeps the kernel's invariants.
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
/// Which counters user code may read.
pub const SCOUNTEREN: u16 = 0x106;
/// Cause of the last trap.
pub const SCAUSE: u16 = 0x142;
/// Value that belongs to the last trap.
pub const STVAL: u16 = 0x143;
/// Program counter at the last trap.
pub const SEPC: u16 = 0x141;
/// Supervisor interrupt pending.
pub const SIP: u16 = 0x144;
/// Timer comparison (Sstc).
pub const STIMECMP: u16 = 0x14d;
/// Which indirect register `sireg` stands for (Ssaia).
pub const SISELECT: u16 = 0x150;
/// The indirect register (Ssaia).
pub const SIREG: u16 = 0x151;
/// The most important external interrupt that is pending and enabled; writing claims it (Ssaia).
pub const STOPEI: u16 = 0x15c;
/// Address translation.
pub const SATP: u16 = 0x180;
/// The time.
pub const TIME: u16 = 0xc01;
/// Instructions retired.
pub const INSTRET: u16 = 0xc02;

/// Interrupt bits in `sie` and `sip`.
pub const SOFTWARE: u64 = 1 << 1;
/// Timer interrupt.
pub const TIMER: u64 = 1 << 5;
/// External interrupt.
pub const EXTERNAL: u64 = 1 << 9;

/// The interrupts that are pending on this hart.
#[inline(always)]
pub fn pending() -> hal_api::Interrupts {
    // All three are enabled from start to end, so the pending register alone tells.
    let bits = read_csr!(SIP);
    hal_api::Interrupts { timer: bits & TIMER != 0, ipi: bits & SOFTWARE != 0, external: bits & EXTERNAL != 0 }
}

/// Takes back this hart's interprocessor interrupt.
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
    // SAFETY: the platform calls this only on machines with an IMSIC; the file only decides which interrupts are pending.
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
