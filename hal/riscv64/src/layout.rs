//! Where physical memory appears in the kernel's half of the address space, and what of it is memory.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where physical address 0 appears in the direct map.
pub const DIRECT_MAP: u64 = 0xffff_ffc0_0000_0000;
/// Bytes that direct map and device window cover.
pub const DIRECT_MAP_SIZE: u64 = 64 << 30;
/// Where physical address 0 appears in the device window.
pub const DEVICE_WINDOW: u64 = 0xffff_ffd0_0000_0000;
/// How many memory ranges are remembered.
pub const MAXIMUM_RANGES: usize = 32;

static NOT_DEVICES: [[AtomicU64; 2]; MAXIMUM_RANGES] = [const { [const { AtomicU64::new(0) }; 2] }; MAXIMUM_RANGES];

/// Remembers which physical addresses belong to no device: at most [`MAXIMUM_RANGES`] ranges.
pub fn remember(not_devices: &[(u64, u64)]) {
    for (remembered, &(start, end)) in NOT_DEVICES.iter().zip(not_devices) {
        remembered[0].store(start, Relaxed);
        remembered[1].store(end, Relaxed);
    }
}

/// Whether any byte of `[start, end)` is memory.
pub fn is_memory(start: u64, end: u64) -> bool {
    NOT_DEVICES.iter().any(|range| start < range[1].load(Relaxed) && range[0].load(Relaxed) < end)
}
