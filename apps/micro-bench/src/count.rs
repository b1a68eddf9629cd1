//! Counting instructions.
//!
//! The counter of cycles counts instructions when the emulator is started for that (`-icount shift=0`). It is read by
//! the instruction before the `ecall` or the faulting one, and again by the one behind it, so that a figure contains no
//! other instruction of the program.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi_sel4::SystemCall;
use sel4::capability::Arrival;

/// Number of measurements of everything.
pub const ROUNDS: usize = 65;

/// A count for each round, which another thread may read later.
pub struct Counts([AtomicU64; ROUNDS]);

impl Counts {
    /// Creates a row without counts.
    pub const fn new() -> Counts {
        Counts([const { AtomicU64::new(0) }; ROUNDS])
    }

    /// Stores the count of a round; further rounds are ignored.
    pub fn set(&self, round: usize, count: u64) {
        if let Some(place) = self.0.get(round) {
            place.store(count, Relaxed);
        }
    }

    /// Returns the median of the differences between these counts and later ones.
    pub fn until(&self, later: &Counts) -> u64 {
        let mut between = [0; ROUNDS];
        for (place, (start, end)) in between.iter_mut().zip(self.0.iter().zip(&later.0)) {
            *place = end.load(Relaxed).saturating_sub(start.load(Relaxed));
        }
        median(&mut between)
    }
}

/// Returns the median, which a single tick in between does not affect.
fn median(values: &mut [u64; ROUNDS]) -> u64 {
    values.sort_unstable();
    // The counter is read once between two reads.
    values[ROUNDS / 2] - 1
}

/// Reads the counter.
#[inline(always)]
pub fn now() -> u64 {
    let count;
    // SAFETY: only reads a counter.
    unsafe { asm!("rdcycle {}", out(reg) count, options(nomem, nostack)) };
    count
}

/// Makes a system call; returns the counts before and after it, and `a0` to `a5` after it.
#[inline(always)]
pub fn system_call(call: SystemCall, arguments: [u64; 6]) -> (u64, u64, [u64; 6]) {
    let [mut a0, mut a1, mut a2, mut a3, mut a4, mut a5] = arguments;
    let (before, after);
    // SAFETY: as `sel4::raw::system_call`.
    unsafe {
        asm!(
            "rdcycle {before}",
            "ecall",
            "rdcycle {after}",
            before = out(reg) before, after = out(reg) after,
            inlateout("a0") a0, inlateout("a1") a1, inlateout("a2") a2,
            inlateout("a3") a3, inlateout("a4") a4, inlateout("a5") a5,
            in("a7") call.number(),
            options(nostack),
        );
    }
    (before, after, [a0, a1, a2, a3, a4, a5])
}

/// Executes an instruction that does not exist, behind which a handler resumes the thread; returns the counts before
/// and after.
#[inline(always)]
pub fn fault() -> (u64, u64) {
    let (before, after);
    // SAFETY: the handler changes the program counter only.
    unsafe {
        asm!(
            ".option push",
            ".option norvc",
            "rdcycle {before}",
            // An opcode reserved for custom extensions, of which this machine has none.
            ".4byte 0x0000000b",
            "rdcycle {after}",
            ".option pop",
            before = out(reg) before, after = out(reg) after,
            options(nostack),
        );
    }
    (before, after)
}

/// Bytes of the instruction that does not exist.
pub const FAULT_LENGTH: u64 = 4;

/// Returns the median cost of a system call that returns to the caller.
pub fn median_of(mut call: impl FnMut(usize) -> (u64, u64)) -> u64 {
    let mut costs = [0; ROUNDS];
    for (round, cost) in costs.iter_mut().enumerate() {
        let (before, after) = call(round);
        *cost = after - before;
    }
    median(&mut costs)
}

/// Reads a device's register of 32 bits.
pub fn read_register(address: u64) -> u32 {
    let value: u64;
    // SAFETY: reads memory in which no object of Rust lives.
    unsafe { asm!("lwu {}, 0({})", out(reg) value, in(reg) address, options(nostack)) };
    value as u32
}

/// Writes a device's register of 32 bits.
pub fn write_register(address: u64, value: u32) {
    // SAFETY: as in `read_register`.
    unsafe { asm!("sw {}, 0({})", in(reg) value, in(reg) address, options(nostack)) };
}

/// Count at the beginning of the last handler.
pub static ENTERED: AtomicU64 = AtomicU64::new(0);

// Handlers of user interrupts, through the kernel, by stores and by instructions, that store the count first and then
// return.
core::arch::global_asm!(
    ".section .text",
    ".balign 4",
    "count_handler:",
    "rdcycle a0",
    "addi sp, sp, -16",
    "sd t0, 0(sp)",
    "lla t0, {entered}",
    "sd a0, 0(t0)",
    "ld t0, 0(sp)",
    "addi sp, sp, 16",
    "mv a0, a7",
    "li a7, {return_from}",
    "ecall",
    "unimp",
    ".balign 4",
    "count_store_handler:",
    "csrw sscratch, t0",
    "rdcycle t0",
    "addi sp, sp, -16",
    "sd t1, 0(sp)",
    "lla t1, {entered}",
    "sd t0, 0(t1)",
    // Claims the pending identities.
    "csrw 0x15c, zero",
    "ld t1, 0(sp)",
    "addi sp, sp, 16",
    "csrr t0, sscratch",
    "sret",
    ".balign 4",
    "count_software_handler:",
    "csrw 0x040, t0",
    "rdcycle t0",
    "addi sp, sp, -16",
    "sd t1, 0(sp)",
    "lla t1, {entered}",
    "sd t0, 0(t1)",
    // Clears the interrupt, and takes the pending bits: uipi_read t1.
    "csrci 0x044, 1",
    ".insn r 0x7b, 6, 1, t1, x0, x0",
    "ld t1, 0(sp)",
    "addi sp, sp, 16",
    "csrr t0, 0x040",
    // uret
    ".insn i 0x73, 0, x0, x0, 2",
    entered = sym ENTERED,
    return_from = const SystemCall::ReturnFromUserInterrupt.number(),
);

unsafe extern "C" {
    safe fn count_handler();
    safe fn count_store_handler();
    safe fn count_software_handler();
}

/// Returns the address of the handler of signals through the kernel.
pub fn handler() -> u64 {
    count_handler as *const () as u64
}

/// Returns the address of the handler of hints that arrive in this way.
pub fn vector(arrival: Arrival) -> u64 {
    match arrival {
        Arrival::Signals => 0,
        Arrival::Stores => count_store_handler as *const () as u64,
        Arrival::Instructions => count_software_handler as *const () as u64,
    }
}
