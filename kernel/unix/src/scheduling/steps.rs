//! Long work in steps, so that no call keeps a hart for longer than a stated time.
//!
//! Kernel code is not interrupted. An interrupt that comes during a call, and everything that it makes ready, waits
//! until the hart *looks*: until it is back in user mode or in the executor's loop, or until a long call calls
//! [`hart_is_wanted`]. So LONGEST STRETCH is a promise about work that goes in steps, and a goal for every call. The
//! promise: a step is a bounded number of bytes, pages, waiters or entries, no lock is held between two steps, and the
//! kernel looks after each. The goal: **between two looks there are at most 50,000 instructions**, whatever a program
//! asks for. [`stretch`] measures it, and `cargo xtask bench fairness --scenario longest_stretch` drives calls at their
//! largest.
//!
//! A look handles the interrupts that are pending, as the executor's loop does, and then tells whether the hart is
//! wanted: by something more important than the working coroutine, or, when that has worked for a slice, by anything,
//! since its process may have no budget left for more. If so, the operation is put aside like any other that has to
//! wait, and goes on when its coroutine has its turn again. If not, it goes on in place: a look costs little beside a
//! step, and long work is not slower on a hart that nothing else wants.
//!
//! # Tables
//!
//! A table that doubles copies all of its entries. So everything that a process can fill by the thousand is in
//! [`tables`], which grow and shrink a little at a time, or in a tree: calls in flight, completions that find their
//! ring full, waiters for one thing, deadlines, descriptors, the names of a directory. Objects that are dropped by the
//! thousand are taken apart in steps first. Waiters for one thing are woken in portions, if there are thousands
//! ([`deferred_wakes`](crate::scheduling::deferred_wakes)).
//!
//! # Work that may miss the goal
//!
//! All calls that the scenario drives meet it. Not driven, and not in steps:
//!
//! * packets of tens of kilobytes of ICMPv6 that a raw socket sends within the host, whose checksum is made at once;
//! * the snapshots of processes with many calls, and `trace_read`;
//! * the lists of processes whose budget is used up and of an epoll's ready items, which copy themselves when they
//!   grow;
//! * turns of the completer;
//! * links of /proc to files in directories that are thousands deep;
//! * skipping the gaps of a directory; cutting off files of some hundred megabytes;
//! * the OOM killer's search, over all processes and their descriptors.
//!
//! Frames of the network are not measured here.
//!
//! # In new code
//!
//! A call that does long work is an `async` function that awaits [`pause`] after each bounded step, without a lock. A
//! transfer counts its [`Effort`] and asks [`must_pause`]; inseparable bytes of many buffers are
//! [gathered](crate::files::gathered) first; work after the end of a process awaits [`pause_at_the_end`]; a coroutine
//! of the kernel itself counts its steps with [`Pace`](crate::scheduling::Pace).
//!
//! # Operations that go on
//!
//! There is one kernel stack for each hart, so work that is put aside has to be a value. Reading and writing keep the
//! number of bytes moved in their [`Operation`](crate::asynchronous::operation::Operation). All other long work is
//! written as an `async` function that awaits [`pause`] between its steps, and becomes a [`Long`] operation: awaited by
//! the worker's coroutine, or by a coroutine of its own if the call is asynchronous.
//!
//! # Cancellation
//!
//! A long operation that has begun is completed: cancelling an asynchronous one comes too late. It is dropped between
//! two steps when its process ends or executes another program, and then no program is left that could see half of the
//! work; each step leaves the kernel's own tables whole.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};

use abi_unix::{Counter, Errno};
use hal_api::{MAXIMUM_HARTS, Machine as _};
use platform::Machine;

use crate::observing::counters;
use crate::scheduling::{executor, stretch};
use crate::time;

/// Bytes that are copied in a step, with pages made for them.
pub(crate) const BYTES: usize = 8 * 1024;
/// Entries of a table in a step, each of which costs a few hundred instructions: a waiter is woken, a file's readiness
/// is looked up, or something is closed.
pub(crate) const ENTRIES: usize = 32;

/// A payer of long work, which stops between two steps when the payer ends.
pub(crate) trait Ends {
    /// Returns whether the payer has ended.
    fn has_ended(&self) -> bool;
}

impl<T: Ends> Ends for Arc<T> {
    fn has_ended(&self) -> bool {
        T::has_ended(self)
    }
}

/// The payer of work that is done although its process has ended.
pub(crate) struct Endless;

impl Ends for Endless {
    fn has_ended(&self) -> bool {
        false
    }
}

/// A call that goes on in steps until it is done.
pub(crate) type Long = Pin<Box<dyn Future<Output = Result<usize, Errno>> + Send>>;

/// The waker of an attempt in place, which wakes nothing.
// One static value, because `will_wake` compares addresses, and each use of `Waker::noop` can have one of its own.
pub(crate) static IN_PLACE: &Waker = Waker::noop();

/// Returns the waker of the task that polls; none for an attempt in place, after which the task polls with its own.
pub(crate) fn waker_of<'a>(cx: &Context<'a>) -> Option<&'a Waker> {
    Some(cx.waker()).filter(|waker| !waker.will_wake(IN_PLACE))
}

/// The coroutine that looked last on each hart, and the tick since which it works. Only the hart itself accesses its
/// words.
static TURNS: [(AtomicU64, AtomicU64); MAXIMUM_HARTS] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; MAXIMUM_HARTS];

/// Looks: handles pending interrupts, and returns whether the calling coroutine must leave the hart: at once for
/// something more important, and after a slice for anything that is ready. (It is charged at the end of its poll. If it
/// has budget left and is still the most important, it goes on at once.)
///
/// Called between two steps, outside of every lock that an interrupt's handler, or a coroutine that it wakes, may need.
#[doc(alias = "need_resched")]
pub(crate) fn hart_is_wanted() -> bool {
    let _ = crate::machine::on_interrupt();
    counters::count(Counter::Looks);
    stretch::looked();
    let coroutine = executor::current();
    let (holder, since) = &TURNS[Machine::hart()];
    let now = Machine::now();
    if holder.load(Ordering::Relaxed) != coroutine.raw() {
        holder.store(coroutine.raw(), Ordering::Relaxed);
        since.store(now, Ordering::Relaxed);
    }
    if !executor::is_anything_ready() {
        return false;
    }
    let Some(priority) = executor::priority(coroutine) else { return true };
    let is_over = now.saturating_sub(since.load(Ordering::Relaxed)) >= time::slice_ticks();
    let is_wanted = is_over || executor::is_ready_above(priority);
    if is_wanted {
        // Its next turn is a new one.
        holder.store(0, Ordering::Relaxed);
    }
    is_wanted
}

/// Looks in the middle of a visit to a program: returns whether an interrupt is pending, which stays so. The call must
/// end soon then. The interrupt is served when the hart is in user mode again, with everything that it means for the
/// visit: the end of its slice, and the looks for something more important on all harts.
pub(crate) fn has_interrupts() -> bool {
    counters::count(Counter::Looks);
    let has_interrupts = platform::has_interrupts();
    if !has_interrupts {
        stretch::looked();
    }
    has_interrupts
}

/// Looks after a step of an operation that is polled with this waker: returns whether the operation must pause. It then
/// goes on when it is polled again, which is as soon as nothing more important is ready.
///
/// Without a waker, which is the first attempt in place, one step is all: the rest goes on outside of the visit to the
/// program. The executor does not look in between, so an operation that has begun calls this before its next step.
pub(crate) fn must_pause(payer: &(impl Ends + ?Sized), waker: Option<&Waker>) -> bool {
    let Some(waker) = waker else { return true };
    let is_wanted = hart_is_wanted() || payer.has_ended();
    if is_wanted {
        waker.wake_by_ref();
    }
    is_wanted
}

/// Looks in the middle of a transfer that holds a lock: returns whether it must end here, because an interrupt is
/// pending. It has been woken then, to go on as soon as that was served.
pub(crate) fn stops_for_interrupts(waker: Option<&Waker>) -> bool {
    let stops = has_interrupts();
    if stops && let Some(waker) = waker {
        waker.wake_by_ref();
    }
    stops
}

/// Looks in the middle of a transfer, after a bounded [`Effort`]: returns whether it must stop here, to go on when it
/// is polled again. In place it goes on as long as no interrupt is pending.
pub(crate) fn must_stop(payer: &(impl Ends + ?Sized), waker: Option<&Waker>) -> bool {
    match waker {
        Some(_) => must_pause(payer, waker),
        None => has_interrupts(),
    }
}

/// The work that a transfer may do before its next look, in bytes. Each buffer counts as some bytes more, since it can
/// lie in a page of its own that has to be made.
pub(crate) struct Effort {
    left: usize,
    most: usize,
}

impl Effort {
    /// Bytes between two looks.
    pub(crate) const BYTES: usize = 32 * 1024;
    /// Buffers between two looks.
    pub(crate) const BUFFERS: usize = 8;

    /// The effort of a transfer that is short enough for no look.
    pub(crate) const SHORT: Effort = Effort { left: usize::MAX, most: usize::MAX };

    /// Makes one of so many bytes between two looks, if that is not too many.
    pub(crate) fn of(most: usize) -> Effort {
        let most = most.min(Effort::BYTES);
        Effort { left: most, most }
    }

    /// Makes one for a call with so many buffers. Reading a list of many was work, so the first look comes soon.
    pub(crate) fn with_buffers(most: usize, buffers: usize) -> Effort {
        let mut effort = Effort::of(most);
        if buffers > Effort::BUFFERS {
            effort.spend(effort.most);
        }
        effort
    }

    /// Returns the bytes that may be moved before the next look; at least one.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Counts other work as so many bytes. Some bytes are left: a transfer that stopped before its first one would look
    /// like one that has to wait.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes).max(self.most.min(512));
    }

    /// Returns whether other work has used it up.
    pub(crate) fn is_spent(&self) -> bool {
        self.left <= 512
    }

    /// Adds bytes of one buffer. Returns whether it is time to look, after which it counts anew.
    pub(crate) fn add(&mut self, bytes: usize) -> bool {
        self.left = self.left.saturating_sub(bytes + self.most / Effort::BUFFERS);
        let is_time = self.left == 0;
        if is_time {
            self.left = self.most;
        }
        is_time
    }
}

impl Default for Effort {
    fn default() -> Effort {
        Effort::of(Effort::BYTES)
    }
}

/// Ends a step of work for a process: looks, and leaves the hart if it is wanted, or if the process has ended.
///
/// # Cancellation
/// Dropping it has no effect.
#[doc(alias = "cond_resched")]
pub(crate) fn pause<P: Ends>(payer: &P) -> StepEnd<'_, P> {
    StepEnd { payer, state: StepEndState::Before }
}

/// Does as [`pause`], for work that is done although its process has ended, or because of that.
///
/// # Cancellation
/// Dropping it has no effect.
pub(crate) fn pause_at_the_end() -> StepEnd<'static, Endless> {
    StepEnd { payer: &Endless, state: StepEndState::Before }
}

/// The future of [`pause`].
pub(crate) struct StepEnd<'a, P> {
    payer: &'a P,
    state: StepEndState,
}

enum StepEndState {
    Before,
    /// The attempt in place was over.
    InPlace,
    /// Others have had their turn.
    Paused,
}

impl<P: Ends> Future for StepEnd<'_, P> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = waker_of(cx);
        self.state = match (&self.state, waker) {
            (StepEndState::Before, None) => StepEndState::InPlace,
            // No look has come since the attempt in place: its step and the next one would be one stretch.
            (StepEndState::Before | StepEndState::InPlace, Some(_)) if must_pause(self.payer, waker) => {
                StepEndState::Paused
            }
            _ => return Poll::Ready(()),
        };
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use core::pin::pin;

    use abi_queue::Priority;

    use super::*;
    use crate::testing::{Bell, run, simulation};

    #[test]
    fn a_hart_is_wanted_by_the_more_important_at_once_and_by_others_after_a_slice() {
        run(|program| {
            // Without a bound the watchdog, which would want the hart, does not look meanwhile.
            crate::scheduling::set_bound_ns(0);
            program.sleep_ns(1_000_000);
            assert!(!hart_is_wanted());
            let own = executor::priority(executor::current()).unwrap();
            let nothing = async {};
            executor::spawn_for_kernel(Priority::LOWEST, nothing);
            assert!(!hart_is_wanted(), "a less important one waits");
            simulation().advance(2 * time::slice_ticks());
            assert!(hart_is_wanted(), "not for longer than a slice");
            executor::spawn_for_kernel(own, async {});
            assert!(!hart_is_wanted(), "a new turn has begun");
            simulation().advance(time::slice_ticks() - 20);
            assert!(!hart_is_wanted());
            simulation().advance(40);
            assert!(hart_is_wanted());
            executor::spawn_for_kernel(Priority::HIGHEST, async {});
            assert!(hart_is_wanted() && hart_is_wanted());
            program.sleep_ns(1_000_000);
            assert!(!hart_is_wanted(), "they have had their turn");
            crate::scheduling::set_bound_ns(crate::scheduling::DEFAULT_BOUND_NS);
        });
    }

    #[test]
    fn many_small_buffers_are_as_much_effort_as_a_large_one() {
        let mut effort = Effort::of(usize::MAX);
        assert_eq!(effort.left(), Effort::BYTES);
        assert_eq!((0..100).map(|_| effort.add(0)).position(|is_time| is_time), Some(7));
        let mut effort = Effort::default();
        assert!(!effort.add(Effort::BYTES / 2));
        assert_eq!(effort.left(), Effort::BYTES / 2 - Effort::BYTES / Effort::BUFFERS);
        assert!(effort.add(effort.left()));
        assert_eq!(effort.left(), Effort::BYTES);
        effort.spend(1 << 20);
        assert_eq!((effort.left(), effort.add(effort.left())), (512, true));
        let mut small = Effort::of(100);
        assert_eq!((0..100).map(|_| small.add(1)).position(|is_time| is_time), Some(7));
        assert!(!Effort::of(1024).add(400));
    }

    /// The attempt in place does one step; then the work goes on as long as the hart is not wanted.
    #[test]
    fn a_pause_is_one_only_when_it_has_to_be() {
        run(|program| {
            let process = program.process();
            let bell = Arc::new(Bell::default());
            let waker = Waker::from(bell.clone());
            let rings = || bell.0.load(Ordering::Relaxed);
            let (mut later, mut in_place) = (Context::from_waker(&waker), Context::from_waker(IN_PLACE));

            assert!(must_pause(&process, None), "one step is all");
            assert!(!must_pause(&process, Some(&waker)));
            let mut free = pin!(pause(&process));
            assert_eq!(free.as_mut().poll(&mut in_place), Poll::Pending);
            assert_eq!((free.as_mut().poll(&mut later), rings()), (Poll::Ready(()), 0));

            executor::spawn_for_kernel(Priority::HIGHEST, async {});
            let mut wanted = pin!(pause(&process));
            assert_eq!(wanted.as_mut().poll(&mut in_place), Poll::Pending);
            assert_eq!((wanted.as_mut().poll(&mut later), rings()), (Poll::Pending, 1), "after the look it pauses");
            assert_eq!((wanted.as_mut().poll(&mut later), rings()), (Poll::Ready(()), 1), "once");
            program.sleep_ns(1_000_000);
        });
    }

    #[test]
    fn work_for_a_process_that_has_ended_stops_and_its_end_does_not() {
        run(|program| {
            let child = program.spawn(|program| program.sleep_ns(1_000_000_000)).unwrap();
            program.sleep_ns(1_000_000);
            let process = crate::process::table::find(child as u32).unwrap();
            process.end(crate::process::exit_status::Ending::Killed(9));
            let bell = Arc::new(Bell::default());
            let waker = Waker::from(bell.clone());
            let mut context = Context::from_waker(&waker);
            // The coroutines that end it are more important, and ready.
            program.sleep_ns(1_000_000);
            assert!(must_pause(&process, Some(&waker)));
            assert_eq!(pin!(pause(&process)).poll(&mut context), Poll::Pending);
            assert_eq!(pin!(pause_at_the_end()).poll(&mut context), Poll::Ready(()));
            drop(process);
            assert_eq!(program.wait_for(child), Ok((child, 9)));
        });
    }
}
