//! Access to memory that tests have mapped themselves, and execution of instructions there.
//!
//! No object of Rust lives in this memory. An unmapped address makes the thread fault, as some tests intend.

use core::arch::{asm, global_asm};

/// Reads a word.
pub fn read(address: u64) -> u64 {
    let word;
    // SAFETY: reads memory in which no object of Rust lives, or faults.
    unsafe { asm!("ld {}, 0({})", out(reg) word, in(reg) address, options(nostack)) };
    word
}

/// Writes a word.
pub fn write(address: u64, word: u64) {
    // SAFETY: writes memory in which no object of Rust lives, or faults.
    unsafe { asm!("sd {}, 0({})", in(reg) word, in(reg) address, options(nostack)) };
}

/// Reads a device's register of 32 bits.
pub fn read_register(address: u64) -> u32 {
    let value: u64;
    // SAFETY: as in `read`.
    unsafe { asm!("lwu {}, 0({})", out(reg) value, in(reg) address, options(nostack)) };
    value as u32
}

/// Writes a device's register of 32 bits.
pub fn write_register(address: u64, value: u32) {
    // SAFETY: as in `write`.
    unsafe { asm!("sw {}, 0({})", in(reg) value, in(reg) address, options(nostack)) };
}

/// Calls the function at an address, or faults.
pub fn jump(address: u64) {
    // SAFETY: tests only place a return there, which changes nothing; all registers that a function may change are
    // declared.
    unsafe { asm!("jalr {}", in(reg) address, clobber_abi("C")) };
}

/// The instruction `ret`, as it is in memory, twice.
pub const RETURN: u64 = 0x0000_8067_0000_8067;

/// Returns the time, in the machine's ticks.
pub fn time() -> u64 {
    let time;
    // SAFETY: only reads a counter.
    unsafe { asm!("rdtime {}", out(reg) time, options(nomem, nostack)) };
    time
}

global_asm!(
    ".section .text",
    ".balign 4",
    "ecall_then_stop:",
    ".option push",
    ".option norvc",
    "ecall",
    ".globl ecall_then_stop_end",
    "ecall_then_stop_end:",
    "unimp",
    "j ecall_then_stop_end",
    ".option pop",
    ".globl ecall_then_stop",
);

unsafe extern "C" {
    static ecall_then_stop: [u8; 0];
    /// Addresses from the linker script: of constants, and of writable data.
    static __text_start: [u8; 0];
    static __data_start: [u8; 0];
}

/// Returns the address of this program's first instruction; its first stack is below.
pub fn text_start() -> u64 {
    (&raw const __text_start) as u64
}

/// Returns the address of this program's writable data.
pub fn data_start() -> u64 {
    (&raw const __data_start) as u64
}

/// Returns the address of an `ecall` that is followed by an instruction which does not exist. Both have four bytes.
pub fn ecall_address() -> u64 {
    (&raw const ecall_then_stop) as u64
}

/// Puts a floating-point number into `fs0` and returns it after `between`.
pub fn through_floating_point(value: u64, between: impl FnOnce()) -> u64 {
    // SAFETY: `fs0` is a register that functions preserve, and it is restored. The state of the FPU is the thread's
    // own.
    unsafe {
        let before: u64;
        asm!("fmv.x.d {}, fs0", "fmv.d.x fs0, {}", out(reg) before, in(reg) value, options(nomem, nostack));
        between();
        let after;
        asm!("fmv.x.d {}, fs0", "fmv.d.x fs0, {}", out(reg) after, in(reg) before, options(nomem, nostack));
        after
    }
}
