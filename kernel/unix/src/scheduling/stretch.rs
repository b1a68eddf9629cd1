//! The longest stretch between two looks for interrupts, for each call.
//!
//! A stretch begins when a program traps, when the executor's loop has looked, or when long work has
//! ([`steps`](crate::scheduling::steps)); it ends with the next of these, or when a hart returns to user mode. At each
//! end the time since the beginning is compared with the longest so far of the call that was in progress. Under QEMU
//! with one hart and one nanosecond for each instruction that time is a number of instructions, as exact as the
//! machine's clock.
//!
//! Off until somebody asks for it (`snapshot`). While it is off, traps and returns to user mode pay nothing for it
//! (both ask already whether somebody watches), and a turn of the executor's loop one load and a branch that is never
//! taken.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi_unix::SystemCall;
use abi_unix::trace::stretch::{self as cause, CAUSES};
use hal_api::{MAXIMUM_HARTS, Machine as _};
use platform::Machine;

use crate::observing::trace;
use crate::{scheduling, time};

static ON: AtomicBool = AtomicBool::new(false);

/// A hart's stretch: the tick at which it began, and for what. Only the hart itself touches it.
struct Stretch {
    since: AtomicU64,
    cause: AtomicU64,
}

static STRETCHES: [Stretch; MAXIMUM_HARTS] =
    [const { Stretch { since: AtomicU64::new(0), cause: AtomicU64::new(0) } }; MAXIMUM_HARTS];

/// The longest so far, in ticks, by cause.
static LONGEST: [AtomicU64; CAUSES] = [const { AtomicU64::new(0) }; CAUSES];

/// Begins to measure, or forgets what was measured and begins anew.
pub(crate) fn begin_anew() {
    for stretch in &STRETCHES {
        stretch.since.store(Machine::now(), Ordering::Relaxed);
    }
    for longest in &LONGEST {
        longest.store(0, Ordering::Relaxed);
    }
    // These make the places look that are on the way of every trap.
    trace::watch_traps();
    scheduling::watch_returns();
    ON.store(true, Ordering::Relaxed);
}

/// Whether stretches are measured.
#[inline(always)]
pub(crate) fn is_measured() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The number under which the stretches of a call are kept: its own, or if that is one of ours, a number behind
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

/// A program has trapped, to make this call or for another reason: a stretch begins.
#[cold]
pub(crate) fn trapped(call: Option<usize>) {
    if is_measured() {
        begin(call.map_or(cause::TRAP, index));
    }
}

/// The work that goes on now belongs to this call.
#[inline(always)]
pub(crate) fn goes_on_with(call: SystemCall) {
    if is_measured() {
        STRETCHES[Machine::hart()].cause.store(index(call as usize) as u64, Ordering::Relaxed);
    }
}

/// The work that goes on now belongs to this cause, which is no call.
#[inline(always)]
pub(crate) fn goes_on_as(cause: usize) {
    if is_measured() {
        STRETCHES[Machine::hart()].cause.store(cause as u64, Ordering::Relaxed);
    }
}

/// The hart has looked, or is about to return to user mode: one stretch ends, and the next begins for the same call.
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

/// The executor's loop has looked: what it runs next belongs to no call that is known yet.
#[inline(always)]
pub(crate) fn looked_by_the_executor() {
    if is_measured() {
        note();
        begin(cause::OTHER);
    }
}

/// The hart had nothing to do: the time up to now was no stretch.
#[inline(always)]
pub(crate) fn waited() {
    if is_measured() {
        begin(cause::OTHER);
    }
}

/// The longest stretch of a cause, in nanoseconds.
pub(crate) fn longest_ns(cause: usize) -> u64 {
    LONGEST.get(cause).map_or(0, |ticks| time::ns_at_ticks(ticks.load(Ordering::Relaxed)))
}
