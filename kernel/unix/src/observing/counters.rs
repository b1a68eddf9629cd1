//! Counters of the kernel: one block of words for each hart, so that counting never moves a cache line. The `counters`
//! call adds them up.

use core::sync::atomic::{AtomicU64, Ordering};

use abi_unix::Counter;
use hal_api::{MAXIMUM_HARTS, Machine as _};
use platform::Machine;

const COUNTERS: usize = Counter::ALL.len();

// A power of two, so that a hart finds its block by a shift: every call counts.
#[repr(align(256))]
struct Block([AtomicU64; COUNTERS]);

const _: () = assert!(size_of::<Block>().is_power_of_two());

static BLOCKS: [Block; MAXIMUM_HARTS] = [const { Block([const { AtomicU64::new(0) }; COUNTERS]) }; MAXIMUM_HARTS];

/// Adds one.
///
/// Only the hart itself writes its block, so a load and a store suffice; relaxed, since nothing is derived from the
/// order.
pub(crate) fn count(counter: Counter) {
    add(counter, 1);
}

/// Adds a number, which may be negative in two's complement: only the sum over all harts has a meaning.
pub(crate) fn add(counter: Counter, number: u64) {
    let word = &BLOCKS[Machine::hart()].0[counter as usize];
    word.store(word.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
}

/// Returns one hart's count. The hart may be counting at this moment.
pub(crate) fn of_hart(hart: usize, counter: Counter) -> u64 {
    let counted = |counter| BLOCKS[hart].0[counter as usize].load(Ordering::Relaxed);
    match counter {
        // A system call is counted once, as a system call.
        Counter::Traps => counted(Counter::Traps).wrapping_add(counted(Counter::SystemCalls)),
        _ => counted(counter),
    }
}

/// Subtracts one.
pub(crate) fn uncount(counter: Counter) {
    add(counter, u64::MAX);
}

/// Returns the sum over all harts; for gauges that another part of the kernel keeps, that part's value.
pub(crate) fn read(counter: Counter) -> u64 {
    match counter {
        Counter::FramesTotal => memory::frames::total_frames() as u64,
        Counter::FramesFree => {
            // Memory that the heap keeps for later counts as free, so that two readings can be compared.
            memory::heap::trim();
            memory::frames::free_frames() as u64
        }
        Counter::HeapBytes => memory::heap::bytes_in_use() as u64,
        Counter::HeapFootprint => memory::heap::statistics().footprint as u64,
        Counter::UptimeNs => crate::time::now_ns(),
        Counter::Connections => crate::network::stack::connections(),
        _ => (0..MAXIMUM_HARTS).fold(0, |sum, hart| sum.wrapping_add(of_hart(hart, counter))),
    }
}
