//! The time.

/// Ticks of the machine's time since some moment; the device tree says how many a second has.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
#[inline]
pub fn now() -> u64 {
    let ticks;
    // SAFETY: only reads a counter, which programs may.
    unsafe { core::arch::asm!("rdtime {}", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// There is no such time on this machine.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
pub fn now() -> u64 {
    0
}
