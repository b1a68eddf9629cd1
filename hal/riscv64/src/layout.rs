//! The mapping of physical addresses into the kernel's half of the address space, and the ranges that are memory.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Virtual address of physical address 0 in the direct map.
pub const DIRECT_MAP: u64 = 0xffff_ffc0_0000_0000;
/// Size in bytes of the direct map, and of the device window.
pub const DIRECT_MAP_SIZE: u64 = 64 << 30;
/// Virtual address of physical address 0 in the device window.
pub const DEVICE_WINDOW: u64 = 0xffff_ffd0_0000_0000;
/// The largest number of memory ranges.
pub const MAXIMUM_RANGES: usize = 32;

static NOT_DEVICES: [[AtomicU64; 2]; MAXIMUM_RANGES] = [const { [const { AtomicU64::new(0) }; 2] }; MAXIMUM_RANGES];

/// Stores the physical ranges that belong to no device, at most [`MAXIMUM_RANGES`].
pub fn remember(not_devices: &[(u64, u64)]) {
    for (remembered, &(start, end)) in NOT_DEVICES.iter().zip(not_devices) {
        remembered[0].store(start, Relaxed);
        remembered[1].store(end, Relaxed);
    }
}

/// Returns whether any byte of `[start, end)` is memory.
pub fn is_memory(start: u64, end: u64) -> bool {
    NOT_DEVICES.iter().any(|range| start < range[1].load(Relaxed) && range[0].load(Relaxed) < end)
}
