//! The machine's time.

/// Returns ticks of the machine's time since some moment; the device tree has the number of ticks in a second.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
#[inline]
pub fn now() -> u64 {
    let ticks;
    // SAFETY: only reads a counter that user mode may read.
    unsafe { core::arch::asm!("rdtime {}", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// This machine has no such time.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
pub fn now() -> u64 {
    0
}
