//! The longest stretch between two looks for interrupts, for each call.
//!
//! A stretch begins when a program traps, when the executor's loop has looked, or when long work has
//! ([`steps`](crate::scheduling::steps)); it ends with the next of these, or when a hart returns to user mode. At each
//! end the time since the beginning is compared with the longest so far of the call that was in progress. Under QEMU
//! with one hart and one nanosecond for each instruction that time is a number of instructions, as exact as the
//! machine's clock.
//!
//! Off until a `snapshot` call begins it. While it is off, traps and returns to user mode pay nothing for it (both
//! check already whether they are watched), and a turn of the executor's loop one load and a branch that is never
//! taken.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi_unix::SystemCall;
use abi_unix::trace::stretch::{self as cause, CAUSES};
use hal_api::{MAXIMUM_HARTS, Machine as _};
use platform::Machine;

use crate::observing::trace;
use crate::time;

static ON: AtomicBool = AtomicBool::new(false);

/// A hart's stretch: the tick at which it began, and its cause. Only the hart itself accesses it.
struct Stretch {
    since: AtomicU64,
    cause: AtomicU64,
}

static STRETCHES: [Stretch; MAXIMUM_HARTS] =
    [const { Stretch { since: AtomicU64::new(0), cause: AtomicU64::new(0) } }; MAXIMUM_HARTS];

/// Longest stretch so far, in ticks, by cause.
static LONGEST: [AtomicU64; CAUSES] = [const { AtomicU64::new(0) }; CAUSES];

/// Begins to measure, or forgets the measurements and begins anew.
#[doc(alias = "irqsoff")]
#[doc(alias = "preemptoff")]
pub(crate) fn begin_anew() {
    for stretch in &STRETCHES {
        stretch.since.store(Machine::now(), Ordering::Relaxed);
    }
    for longest in &LONGEST {
        longest.store(0, Ordering::Relaxed);
    }
    // Watching makes every trap and every return pass these places.
    trace::watch_traps();
    watch_returns();
    ON.store(true, Ordering::Relaxed);
}

/// Returns whether stretches are measured.
#[inline(always)]
pub(crate) fn is_measured() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Returns the number under which the stretches of a call are kept: its own, or for one of our calls a number behind
/// Linux's.
fn index(number: usize) -> usize {
    let place = if number >= cause::FIRST_OF_OURS { number - cause::FIRST_OF_OURS + cause::OURS } else { number };
    if place < CAUSES { place } else { cause::OTHER }
}

fn begin(cause: usize) {
    let stretch = &STRETCHES[Machine::hart()];
    stretch.cause.store(cause as u64, Ordering::Relaxed);
    stretch.since.store(Machine::now(), Ordering::Relaxed);
}

/// Begins a stretch: a program has trapped, to make this call or for another reason.
#[cold]
pub(crate) fn trapped(call: Option<usize>) {
    if is_measured() {
        begin(call.map_or(cause::TRAP, index));
    }
}

/// Assigns the stretch in progress to this call.
#[inline(always)]
pub(crate) fn goes_on_with(call: SystemCall) {
    if is_measured() {
        STRETCHES[Machine::hart()].cause.store(index(call as usize) as u64, Ordering::Relaxed);
    }
}

/// Assigns the stretch in progress to this cause, which is no call.
#[inline(always)]
pub(crate) fn goes_on_as(cause: usize) {
    if is_measured() {
        STRETCHES[Machine::hart()].cause.store(cause as u64, Ordering::Relaxed);
    }
}

/// Ends a stretch and begins the next for the same call: the hart has looked, or is about to return to user mode.
#[inline(always)]
pub(crate) fn looked() {
    if is_measured() {
        note();
    }
}

#[cold]
fn note() {
    let (now, stretch) = (Machine::now(), &STRETCHES[Machine::hart()]);
    let took = now.saturating_sub(stretch.since.swap(now, Ordering::Relaxed));
    LONGEST[stretch.cause.load(Ordering::Relaxed) as usize % CAUSES].fetch_max(took, Ordering::Relaxed);
}

/// Ends a stretch after the look of the executor's loop; the next one belongs to no call that is known yet.
#[inline(always)]
pub(crate) fn looked_by_the_executor() {
    if is_measured() {
        note();
        begin(cause::OTHER);
    }
}

/// Begins a stretch: the idle time up to now was none.
#[inline(always)]
pub(crate) fn waited() {
    if is_measured() {
        begin(cause::OTHER);
    }
}

/// Returns the longest stretch of a cause, in nanoseconds.
pub(crate) fn longest_ns(cause: usize) -> u64 {
    LONGEST.get(cause).map_or(0, |ticks| time::ns_at_ticks(ticks.load(Ordering::Relaxed)))
}

static RETURNS_ARE_WATCHED: AtomicBool = AtomicBool::new(false);

/// Returns whether each return to user mode must update the global bitmap, because an executor may look at it before
/// each poll.
#[inline(always)]
pub(crate) fn returns_are_watched() -> bool {
    RETURNS_ARE_WATCHED.load(Ordering::Relaxed)
}

/// Makes each return to user mode take the way on which the bitmap is updated, for a measurement that looks there.
pub(crate) fn watch_returns() {
    RETURNS_ARE_WATCHED.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{alone, simulation};

    fn measured(cause: usize) -> u64 {
        longest_ns(cause) / time::ns_at_ticks(1).max(1)
    }

    #[test]
    fn calls_of_ours_and_of_linux_have_places_of_their_own() {
        let mut places: Vec<_> = SystemCall::ALL.iter().map(|&call| index(call as usize)).collect();
        places.sort();
        assert!(places.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(places.iter().all(|&place| place < cause::TRAP));
        assert_eq!(index(usize::MAX), cause::OTHER);
        for &call in SystemCall::ALL {
            assert_eq!(cause::call(index(call as usize)), Some(call as usize), "{}", call.name());
        }
    }

    #[test]
    fn a_stretch_lasts_from_the_trap_to_the_look_and_the_longest_is_kept() {
        let _guard = alone();
        let simulation = simulation();
        let _hart = simulation.attach(0);
        begin_anew();
        let (read, write) = (SystemCall::Read as usize, SystemCall::Write as usize);
        trapped(Some(read));
        simulation.advance(30);
        looked();
        simulation.advance(20);
        looked();
        assert_eq!((measured(read), measured(write)), (30, 0));
        // A stretch that was begun for one call may turn out to be another's.
        simulation.advance(40);
        goes_on_with(SystemCall::Write);
        simulation.advance(5);
        looked();
        assert_eq!((measured(read), measured(write)), (30, 45));
        goes_on_as(cause::COMPLETER);
        simulation.advance(3);
        looked_by_the_executor();
        simulation.advance(1000);
        waited();
        simulation.advance(2);
        looked();
        assert_eq!((measured(cause::COMPLETER), measured(cause::OTHER)), (3, 2), "idle time is none");
        trapped(None);
        simulation.advance(9);
        looked();
        assert_eq!(measured(cause::TRAP), 9);
        begin_anew();
        assert_eq!((measured(read), measured(cause::TRAP)), (0, 0));
        assert_eq!(longest_ns(CAUSES), 0);
        ON.store(false, Ordering::Relaxed);
        trapped(Some(read));
        simulation.advance(100);
        looked();
        assert_eq!(measured(read), 0, "it is off");
    }
}
