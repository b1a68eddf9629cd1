//! Latencies of requests in the machine: from the card to the answer, by the priority of the call that waits for them.
//!
//! A client outside measures more than the kernel's part: the way through the emulator or the wire, and the host's
//! delay in running a hart. So the kernel can measure its own part. A request's time begins with the interrupt by which
//! the card announces its last frame, or with the look that finds the frame if the card had no need to interrupt. The
//! time goes along with the call that waits for the connection's input, then with the socket, and ends when an answer
//! has been given to the card's queue. The level is the priority of the call that waited, which is that of its
//! coroutine.
//!
//! Off unless the boot command line has `latencies=on`; while it is off each place that would take a time costs one
//! load and a branch that is never taken. The `snapshot` call reports the measurements.
//!
//! Input that comes while no asynchronous call waits for it is not measured.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use abi_queue::{PRIORITIES, Priority};
use abi_unix::trace::{LATENCY_BUCKETS, LATENCY_WORDS, latency_bucket};
use hal_api::Machine as _;
use platform::{Machine, println};
use spin::Once;

/// The words of one priority: number of requests, sum, maximum, and the number in each range.
type LatencyWords = [AtomicU64; LATENCY_WORDS];

static ON: AtomicBool = AtomicBool::new(false);
static LEVELS: Once<Vec<LatencyWords>> = Once::new();
/// Time of the card's first interrupt since the last look at its queue; 0 if there was none.
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);
/// Arrival of the frame that is being handled; 0 if there is none. Written under the stack's lock.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

/// Returns whether latencies are measured.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Begins to measure if the boot command line enables it. Called once.
pub(crate) fn start(option: Option<&str>) {
    match option {
        None | Some("off") => return,
        Some("on") => {}
        Some(other) => return println!("latencies: `{other}` is neither on nor off; none are measured"),
    }
    let mut levels = Vec::new();
    if levels.try_reserve_exact(PRIORITIES).is_err() {
        return println!("latencies: there is no memory for them");
    }
    levels.resize_with(PRIORITIES, || [const { AtomicU64::new(0) }; LATENCY_WORDS]);
    LEVELS.call_once(|| levels);
    ON.store(true, Ordering::Relaxed);
}

/// Records an interrupt of the card.
pub(crate) fn card_interrupts() {
    if is_on() {
        let _ = INTERRUPTED.compare_exchange(0, Machine::now(), Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Begins a look at the card's queue; returns the arrival of the frames that are found there: the last interrupt, or
/// now.
pub(crate) fn look_begins() -> u64 {
    if is_on() {
        let at = INTERRUPTED.swap(0, Ordering::Relaxed);
        if at != 0 {
            return at;
        }
    }
    Machine::now()
}

/// Records that a frame with this arrival is being handled.
pub(crate) fn handles(arrived: u64) {
    if is_on() {
        ARRIVED.store(arrived, Ordering::Relaxed);
    }
}

/// Ends the look. Frames that arrived at `more` may have been left in the queue, if it is not 0.
pub(crate) fn look_ends(more: u64) {
    if is_on() {
        ARRIVED.store(0, Ordering::Relaxed);
        if more != 0 {
            INTERRUPTED.store(more, Ordering::Relaxed);
        }
    }
}

/// Returns the arrival of the frame that wakes a call at this moment; 0 if no frame does.
pub(crate) fn arrival() -> u64 {
    ARRIVED.load(Ordering::Relaxed)
}

/// The request for which a connection's next answer is.
#[derive(Default)]
pub(crate) struct Request {
    /// Arrival of its last frame; 0 for no request.
    arrived: AtomicU64,
    level: AtomicU8,
}

impl Request {
    /// Records that a call of this priority has received a frame with this arrival. Of a request that comes in several
    /// frames the last one counts: before that there is nothing to answer.
    pub(crate) fn begin(&self, arrived: u64, level: Priority) {
        if arrived != 0 {
            self.level.store(level.number(), Ordering::Relaxed);
            self.arrived.store(arrived, Ordering::Relaxed);
        }
    }

    /// Records that an answer is in the card's queue.
    #[cold]
    pub(crate) fn is_answered(&self) {
        let arrived = self.arrived.swap(0, Ordering::Relaxed);
        let level = usize::from(self.level.load(Ordering::Relaxed));
        let Some(level) = LEVELS.get().and_then(|levels| levels.get(level)) else { return };
        if arrived == 0 {
            return;
        }
        let latency = Machine::now().saturating_sub(arrived);
        level[0].fetch_add(1, Ordering::Relaxed);
        level[1].fetch_add(latency, Ordering::Relaxed);
        level[2].fetch_max(latency, Ordering::Relaxed);
        level[LATENCY_WORDS - LATENCY_BUCKETS + latency_bucket(latency)].fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the words of one priority; `None` if nothing is measured or there is no such priority.
pub(crate) fn of(priority: usize) -> Option<impl Iterator<Item = u64>> {
    let level = LEVELS.get()?.get(priority)?;
    Some(level.iter().map(|word| word.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{alone, simulation};

    fn level(priority: usize) -> Vec<u64> {
        of(priority).expect("it is measured").collect()
    }

    #[test]
    fn a_request_is_measured_from_its_interrupt_to_its_answer() {
        let _guard = alone();
        let simulation = simulation();
        let _hart = simulation.attach(0);
        start(Some("perhaps"));
        assert!(!is_on() && of(0).is_none(), "neither on nor off");
        // Time 0 means that there is none.
        simulation.advance(1);
        card_interrupts();
        handles(Machine::now());
        assert_eq!((arrival(), look_begins()), (0, Machine::now()), "nothing is noted while it is off");

        start(Some("on"));
        let interrupt = Machine::now();
        card_interrupts();
        simulation.advance(7);
        // A second interrupt before the look changes nothing.
        card_interrupts();
        simulation.advance(3);
        let arrived = look_begins();
        assert_eq!(arrived, interrupt);
        assert_eq!(look_begins(), Machine::now(), "the interrupt was taken");
        handles(arrived);
        assert_eq!(arrival(), interrupt);
        let request = Request::default();
        request.is_answered();
        assert_eq!(level(9)[0], 0, "there was no request");
        request.begin(arrived, Priority::saturating(9));
        look_ends(0);
        assert_eq!(arrival(), 0);
        simulation.advance(90);
        request.is_answered();
        request.is_answered();
        let measured = level(9);
        assert_eq!(measured[..3], [1, 100, 100], "number, sum and maximum");
        let buckets = &measured[LATENCY_WORDS - LATENCY_BUCKETS..];
        assert_eq!((buckets[latency_bucket(100)], buckets.iter().sum::<u64>()), (1, 1));

        // Of several frames the last one counts; one without arrival does not.
        request.begin(Machine::now(), Priority::saturating(9));
        simulation.advance(50);
        request.begin(Machine::now(), Priority::saturating(10));
        request.begin(0, Priority::saturating(11));
        simulation.advance(20);
        request.is_answered();
        assert_eq!((level(9)[0], level(10)[..3].to_vec(), level(11)[0]), (1, vec![1, 20, 20], 0));

        // Frames that were left in the queue keep their arrival.
        let left = Machine::now();
        look_ends(left);
        simulation.advance(5);
        assert_eq!(look_begins(), left);
        assert!(of(PRIORITIES).is_none());
        ON.store(false, Ordering::Relaxed);
    }
}
