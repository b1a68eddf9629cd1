//! Counters of the kernel: one block of words for each hart, so that counting never moves a cache line. The `counters`
//! call adds them up.

use core::sync::atomic::{AtomicU64, Ordering};

use abi_unix::Counter;
use hal_api::{MAXIMUM_HARTS, Machine as _};
use platform::Machine;
use spin::Once;

const COUNTERS: usize = Counter::ALL.len();

// A power of two, so that a hart finds its block by a shift: every call counts.
#[repr(align(256))]
struct Block([AtomicU64; COUNTERS]);

const _: () = assert!(size_of::<Block>().is_power_of_two());

static BLOCKS: [Block; MAXIMUM_HARTS] = [const { Block([const { AtomicU64::new(0) }; COUNTERS]) }; MAXIMUM_HARTS];

/// The gauge of connections, which the network keeps.
static CONNECTIONS: Once<fn() -> u64> = Once::new();

/// Registers the gauges that other parts of the kernel keep. Called once.
pub(crate) fn start_gauges(connections: fn() -> u64) {
    CONNECTIONS.call_once(|| connections);
}

/// Adds one.
///
/// Only the hart itself writes its block, so a load and a store suffice; relaxed, since nothing is derived from the
/// order.
#[doc(alias = "count_vm_event")]
#[doc(alias = "vmstat")]
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
        Counter::Connections => CONNECTIONS.get().map_or(0, |connections| connections()),
        _ => (0..MAXIMUM_HARTS).fold(0, |sum, hart| sum.wrapping_add(of_hart(hart, counter))),
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::{Errno, SystemCall};

    use super::*;
    use crate::testing::run;

    #[test]
    fn every_call_is_counted_once_and_is_a_trap() {
        run(|program| {
            let before = (read(Counter::SystemCalls), read(Counter::Traps));
            for _ in 0..100 {
                program.call(SystemCall::GetProcess, []).unwrap();
            }
            let after = (read(Counter::SystemCalls), read(Counter::Traps));
            assert_eq!(after.0 - before.0, 100);
            assert!(after.1 - before.1 >= 100, "an interrupt may have come, too");
            assert_eq!(of_hart(0, Counter::SystemCalls), after.0, "there is one hart");
        });
    }

    #[test]
    fn gauges_go_up_and_down() {
        run(|program| {
            let processes = read(Counter::Processes);
            let calls = read(Counter::CallsInFlight);
            let (reader, writer) = program.pipe(0);
            let place = program.place(8);
            program.submit(SystemCall::Read, [reader, place, 8], 1);
            assert_eq!(read(Counter::CallsInFlight), calls + 1);
            program.write_to(writer, b"x").unwrap();
            program.await_completions();
            assert_eq!(read(Counter::CallsInFlight), calls);
            let child = program.spawn(|program| program.sleep_ns(1_000_000)).unwrap();
            assert_eq!(read(Counter::Processes), processes + 1);
            program.sleep_ns(10_000_000);
            assert_eq!(read(Counter::Processes), processes + 1, "one that was not waited for counts");
            program.wait_for(child).unwrap();
            assert_eq!(read(Counter::Processes), processes);
        });
    }

    #[test]
    fn numbers_may_be_negative_and_harts_add_up() {
        run(|_| {
            let before = read(Counter::Looks);
            add(Counter::Looks, 5);
            uncount(Counter::Looks);
            add(Counter::Looks, 3u64.wrapping_neg());
            assert_eq!(read(Counter::Looks), before + 1);
            BLOCKS[3].0[Counter::Looks as usize].store(10, Ordering::Relaxed);
            assert_eq!(read(Counter::Looks), before + 11);
            // A count that goes up on one hart may go down on another.
            BLOCKS[3].0[Counter::Looks as usize].store(u64::MAX, Ordering::Relaxed);
            assert_eq!(read(Counter::Looks), before);
            BLOCKS[3].0[Counter::Looks as usize].store(0, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_permitted_caller_gets_as_many_counters_as_fit() {
        run(|program| {
            let place = program.store(&[0xaa; 32]);
            match program.call(SystemCall::Counters, [place, 20]) {
                Ok(count) => {
                    assert_eq!(count, COUNTERS);
                    assert_eq!(program.read(place + 16, 16), [0xaa; 16], "two whole words fit");
                }
                Err(error) => assert_eq!(error, Errno::EPERM),
            }
            assert!(read(Counter::FramesFree) <= read(Counter::FramesTotal));
            let now = read(Counter::UptimeNs);
            program.sleep_ns(1_000_000);
            assert!(read(Counter::UptimeNs) >= now + 1_000_000);
        });
    }
}
