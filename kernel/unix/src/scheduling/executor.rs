//! The kernel's executor: the scheduler that every process has too, with one worker for each hart.
//!
//! A worker's number is its hart's. A hart that finds nothing ready waits for an interrupt. A hart that makes something
//! ready for it sends one ([`platform::Machine`]'s interprocessor interrupt), which stays pending until the idle hart
//! looks, so that it cannot come too early.
//!
//! There are two ways to start a coroutine. One [works for an owner](spawn_for): each of its polls is charged to a
//! process and has the effective priority of that process's claim ([`standing`](crate::scheduling::standing)). The
//! others are the [kernel's own](spawn_for_kernel), and there are a handful of them. EVERY-TICK rests on there being no
//! third way.
//!
//! # No hart visits a program while something more important waits
//!
//! A hart looks at all shards before each poll and takes the most important coroutine it finds there, so only a long
//! poll, a visit to a program, can keep something more important waiting. Two rules prevent that.
//!
//! * *Before a visit* a hart looks once more ([`may_visit`]). It leaves the visit for later if something more important
//!   is ready on any hart; and if the best ready coroutine goes before another hart's visit, it interrupts that hart.
//! * *During visits* only calls and interrupts make something ready. An interrupt brings the coroutine that it wakes to
//!   its own hart, which then looks. A call, which returns to its program, leaves the woken coroutine to the hart where
//!   it ran last; so the waking hart ([`find_hart`]) interrupts the hart that visits the least important process, if
//!   the woken coroutine goes before that visit and no hart is idle.
//!
//! A hart that begins a visit publishes it, and then looks at the shards; a waking hart enters the coroutine in a
//! shard, and then looks at the visits. With a fence on both sides one of the two sees the other. A hart that is
//! interrupted compares for itself: the interrupt is only a hint.
//!
//! Each hart publishes the importance of its visit in one word ([`Visits`]) when the visit begins and after each
//! interrupt. A claim that falls while the program runs is seen by others at the next interrupt or tick, as it is in
//! relaxed mode. A wake reads one word of each hart, and takes no lock.

use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use core::task::{Context, Poll, Waker};

use abi_queue::{MAXIMUM_WORKERS, Priority, ReadyWord};
use abi_unix::Counter;
use coroutine::{Executor, Outcome, Signals, State, Table};
use hal_api::Machine as _;
use pin_project_lite::pin_project;
use platform::Machine;
use spin::Mutex;

pub(crate) use coroutine::{Cid, SpawnError, yield_now};

use crate::observing::counters;
use crate::scheduling::payers;

/// Priority of a process whose budget is used up. Claims count for at least one more, so that this is behind all
/// others.
pub(crate) const EXHAUSTED: Priority = Priority::LOWEST;

static EXECUTOR: Executor = Executor::new();
static READY: [ReadyWord; MAXIMUM_WORKERS] = [const { ReadyWord::new() }; MAXIMUM_WORKERS];

struct Harts;
static HARTS: Harts = Harts;

/// The visit of each hart.
static VISITS: Visits = Visits([const { AtomicU64::new(0) }; MAXIMUM_WORKERS]);

/// For each hart one word: the process whose program the hart visits and the priority of the visit, or 0. Numbers of
/// processes begin with 1.
///
/// A hart writes its own word only. Relaxed everywhere: the word stands for itself, and its order with the ready
/// bitmaps is ensured by the fences of [`begin_visit`] and `find_hart`.
struct Visits([AtomicU64; MAXIMUM_WORKERS]);

impl Visits {
    fn begin(&self, hart: usize, process: u32, priority: Priority) {
        let word = u64::from(process) << 8 | u64::from(priority.number());
        self.0[hart].store(word, Ordering::Relaxed);
    }

    fn end(&self, hart: usize) {
        self.0[hart].store(0, Ordering::Relaxed);
    }

    fn process(&self, hart: usize) -> u32 {
        (self.0[hart].load(Ordering::Relaxed) >> 8) as u32
    }

    fn is_any(&self, hart: usize) -> bool {
        self.0[hart].load(Ordering::Relaxed) != 0
    }

    fn priority(&self, hart: usize) -> Option<Priority> {
        match self.0[hart].load(Ordering::Relaxed) {
            0 => None,
            word => Some(Priority::saturating(word & 0xff)),
        }
    }
}

/// Publishes that this hart begins a visit of this priority to a program of this process, or goes on with it after an
/// interrupt. Called before the hart looks whether something goes before the visit ([`may_visit`]).
#[inline]
pub(crate) fn begin_visit(hart: usize, process: u32, priority: Priority) {
    VISITS.begin(hart, process, priority);
    // Pairs with the fences of `find_hart` and of `HartWorker::call_back`: either those see this visit, or this hart
    // sees the change that they announce.
    fence(Ordering::SeqCst);
}

/// Publishes that this hart is back from its program, for good or for an interrupt, and will soon look for ready
/// coroutines.
#[inline]
pub(crate) fn end_visit(hart: usize) {
    VISITS.end(hart);
}

/// Returns the process whose program a hart visits; 0 for none.
pub(crate) fn visited_process(hart: usize) -> u32 {
    VISITS.process(hart)
}

/// Calls back all other harts that visit the program of a process: they look around before they enter it again. A
/// change that they must see was stored before.
pub(crate) fn call_visitors_back(process: u32) {
    // Pairs with the fence of `begin_visit`.
    fence(Ordering::SeqCst);
    let own = Machine::hart();
    for hart in (0..crate::machine::harts()).filter(|&hart| hart != own) {
        if visited_process(hart) == process {
            HARTS.interrupt(hart);
        }
    }
}

impl coroutine::Platform for Harts {
    const HAS_AFFINITY: bool = true;

    /// Returns the hart to which a woken coroutine comes. One that an interrupt or a kernel coroutine wakes comes to
    /// the waking hart, which is awake: so a packet is received, its call completed and the program that waits for it
    /// entered without another hart, unless there is more to do than one thing after the other.
    #[inline]
    fn wake_affinity(&self) -> Option<usize> {
        let hart = Machine::hart();
        if VISITS.is_any(hart) { None } else { Some(hart) }
    }

    fn woken_at_home(&self, cid: Cid) {
        if crate::machine::harts() > 1
            && let Ok(priority) = EXECUTOR.priority(cid)
        {
            find_hart(priority);
        }
    }

    #[inline]
    fn worker(&self) -> usize {
        Machine::hart()
    }

    fn notify(&self, worker: usize) {
        // A hart that runs this code looks for something ready before it waits.
        if worker != Machine::hart() {
            counters::count(Counter::HartInterrupts);
            Machine::send_ipi(worker);
        }
    }
}

/// Makes the executor from the scheduler's functions. Called once.
pub(crate) fn start(table: Table) -> Result<(), &'static str> {
    EXECUTOR.initialise(table, &READY, &HARTS).map_err(|_| "the executor was started twice")
}

/// The calling hart's worker. The run queue itself is the scheduler's shard.
pub(crate) struct HartWorker(coroutine::Worker);

impl HartWorker {
    /// Makes the calling hart a worker.
    ///
    /// # Panics
    /// If it is one already.
    pub(crate) fn of_this_hart() -> HartWorker {
        let worker = EXECUTOR.worker(Machine::hart(), Signals::default());
        HartWorker(worker.expect("each hart makes its worker once"))
    }

    /// Polls the most important ready coroutine; returns `false` if none is ready.
    pub(crate) fn run_one(&mut self) -> bool {
        self.0.run_one() == Outcome::Ran
    }
}

pin_project! {
    /// A future that works for a process: each poll is charged to its owner, and is made only at a priority that the
    /// owner's budget allows.
    pub struct Owned<O, F> {
        owner: O,
        #[pin]
        future: F,
    }
}

impl<O, F> Owned<O, F> {
    /// Returns the inner future.
    pub(crate) fn into_future(self) -> F {
        self.future
    }
}

/// Payer of a coroutine's polls.
pub(crate) trait Owner {
    /// Returns the number of the process that pays.
    fn number(&self) -> u32;

    /// Returns the [kind](kind) of its coroutine; 0 for any.
    fn kind(&self) -> u16 {
        0
    }

    /// Returns whether the budget of that process is used up: then nothing of it is polled at another priority than
    /// [`EXHAUSTED`].
    fn has_no_claim(&self) -> bool;

    /// Begins a poll.
    fn begins(&self) {}

    /// Ends a poll: charges the time up to now that has not been charged.
    fn ends(&self);
}

impl<O: Owner, F: Future<Output = ()>> Future for Owned<O, F> {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let owner: &O = this.owner;
        payers::begin(owner.number());
        owner.begins();
        memory::faults::works_for(owner.number());
        if owner.has_no_claim() && current_priority() != EXHAUSTED {
            // Lowered at its poll, not when the budget ran out: a process has more coroutines than one step may change.
            set_priority(current(), EXHAUSTED);
            cx.waker().wake_by_ref();
            owner.ends();
            payers::end(owner.number());
            return Poll::Pending;
        }
        let result = this.future.poll(cx);
        memory::faults::works_for(0);
        owner.ends();
        if result.is_pending() && owner.has_no_claim() {
            set_priority(current(), EXHAUSTED);
        }
        payers::end(owner.number());
        result
    }
}

pin_project! {
    /// A future of the kernel itself, whose polls no process pays for.
    struct OfTheKernel<F> {
        #[pin]
        future: F,
    }
}

impl<F: Future<Output = ()>> Future for OfTheKernel<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        payers::without(|| self.project().future.poll(cx))
    }
}

/// Starts a coroutine that works for a process; it goes on by itself.
///
/// If there is no memory for it, or there are too many coroutines, the future is returned: the caller may need its
/// contents, or may hold locks under which it must not be dropped.
pub(crate) fn spawn_for<O, F>(owner: O, priority: Priority, future: F) -> Result<Cid, SpawnError<F>>
where
    O: Owner + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let spawned = EXECUTOR.try_spawn(priority, owner.kind(), Owned { owner, future });
    let handle = spawned.map_err(|SpawnError(owned)| SpawnError(owned.into_future()))?;
    let cid = handle.cid();
    handle.detach();
    if crate::machine::harts() > 1 {
        find_hart(priority);
    }
    Ok(cid)
}

/// Does as [`spawn_for`], for a coroutine that is polled for the first time when it is woken, with [its waker](waker)
/// for instance.
pub(crate) fn spawn_blocked_for<O, F>(owner: O, priority: Priority, future: F) -> Result<Cid, SpawnError<F>>
where
    O: Owner + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let spawned = EXECUTOR.try_spawn_blocked(priority, owner.kind(), Owned { owner, future });
    let handle = spawned.map_err(|SpawnError(owned)| SpawnError(owned.into_future()))?;
    let cid = handle.cid();
    handle.detach();
    Ok(cid)
}

/// Returns the kind that a coroutine has from its owner; 0 for one that has gone.
pub(crate) fn kind(cid: Cid) -> u16 {
    EXECUTOR.kind(cid).unwrap_or(0)
}

/// Returns a coroutine's waker.
pub(crate) fn waker(cid: Cid) -> Waker {
    EXECUTOR.waker(cid)
}

/// Starts a coroutine of the kernel itself, which works for no process and goes on by itself, at the start of the
/// machine.
///
/// # Panics
/// If there is no memory for it.
#[doc(alias = "kthread_run")]
pub(crate) fn spawn_for_kernel(priority: Priority, future: impl Future<Output = ()> + Send + 'static) -> Cid {
    let handle = EXECUTOR.spawn(priority, OfTheKernel { future });
    let cid = handle.cid();
    handle.detach();
    cid
}

/// A coroutine of the kernel itself that has work now and then. Code that finds such work summons it.
pub(crate) struct Attendant {
    is_summoned: AtomicBool,
    coroutine: Mutex<Option<Cid>>,
}

impl Attendant {
    /// Creates an attendant without a coroutine.
    pub(crate) const fn new() -> Attendant {
        Attendant { is_summoned: AtomicBool::new(false), coroutine: Mutex::new(None) }
    }

    /// Makes the coroutine look for work.
    pub(crate) fn summon(&self) {
        // An attendant that was summoned and has not looked since will see the present work.
        if !self.is_summoned.swap(true, Ordering::AcqRel) {
            let coroutine = *self.coroutine.lock();
            if let Some(coroutine) = coroutine {
                wake(coroutine);
            }
        }
    }

    /// Waits, as the attendant, for a summons since its last look.
    pub(crate) async fn summoned(&self) {
        // Entered before the look: a summons after that look finds it.
        *self.coroutine.lock() = Some(current());
        poll_fn(|_| if self.is_summoned.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// Makes a coroutine ready. One that has ended waits no longer, so that is no error.
#[doc(alias = "try_to_wake_up")]
pub(crate) fn wake(cid: Cid) {
    if EXECUTOR.wake(cid).is_ok() && crate::machine::harts() > 1 {
        coroutine::Platform::woken_at_home(&HARTS, cid);
    }
}

/// Changes a coroutine's priority; does nothing if it has ended.
pub(crate) fn set_priority(cid: Cid, priority: Priority) {
    let _ = EXECUTOR.set_priority(cid, priority);
}

/// Returns the calling coroutine.
///
/// # Panics
/// Outside of a coroutine.
pub(crate) fn current() -> Cid {
    EXECUTOR.current().expect("only coroutines call this")
}

/// Returns the priority at which the calling coroutine runs.
pub(crate) fn current_priority() -> Priority {
    let running = READY[Machine::hart()].1.load(Ordering::Relaxed);
    Priority::most_important_in(running).unwrap_or(Priority::DEFAULT)
}

/// Returns the priority of a coroutine; `None` if it has ended.
pub(crate) fn priority(cid: Cid) -> Option<Priority> {
    EXECUTOR.priority(cid).ok()
}

/// Returns the present state of a coroutine; `None` if it has ended.
pub(crate) fn state(cid: Cid) -> Option<State> {
    EXECUTOR.state(cid).ok()
}

/// Returns the ready bitmap of this hart's shard.
#[inline]
pub(crate) fn ready_here() -> &'static AtomicU64 {
    &READY[Machine::hart()].0
}

/// Returns the ready bitmap of a hart's shard, and the bit of the priority that it runs.
pub(crate) fn words(hart: usize) -> (u64, u64) {
    let word = &READY[hart % MAXIMUM_WORKERS];
    (word.0.load(Ordering::Relaxed), word.1.load(Ordering::Relaxed))
}

/// Returns whether anything is ready on this hart.
#[inline]
pub(crate) fn is_anything_ready() -> bool {
    ready_here().load(Ordering::Relaxed) != 0
}

/// Returns whether something more important than `priority` is ready on this hart.
#[inline]
pub(crate) fn is_ready_above(priority: Priority) -> bool {
    ready_here().load(Ordering::Relaxed) & (priority.bit() - 1) != 0
}

/// Returns whether something at least as important as `priority` is ready on this hart.
#[inline]
pub(crate) fn is_ready_at_least(priority: Priority) -> bool {
    ready_here().load(Ordering::Relaxed) & ((priority.bit() - 1) | priority.bit()) != 0
}

/// Returns the priorities at which something is ready and waits for a hart, over all harts.
pub(crate) fn waiting() -> u64 {
    READY.iter().take(crate::machine::harts()).fold(0, |all, word| all | word.0.load(Ordering::Relaxed))
}

/// Returns whether something more important than `priority` waits, on any hart.
#[inline]
pub(crate) fn is_ready_above_anywhere(priority: Priority) -> bool {
    crate::machine::harts() > 1 && waiting() & (priority.bit() - 1) != 0
}

/// Returns whether a hart may visit a program of this priority, after publishing the visit: `false` if something more
/// important must run before. For other ready coroutines it interrupts an idle hart, or a hart whose visit they go
/// before.
#[inline]
pub(crate) fn may_visit(priority: Priority) -> bool {
    if crate::machine::harts() == 1 {
        return true;
    }
    match Priority::most_important_in(waiting()) {
        None => true,
        Some(waiting) if waiting.is_more_important_than(priority) => false,
        Some(waiting) => {
            share(waiting);
            true
        }
    }
}

/// Finds a hart for coroutines that are ready here after an interrupt of this hart's visit: an idle one; or, if there
/// is none and this hart goes on with its visit (it is not outranked), one whose visit is less important than they are.
pub(crate) fn share_ready_coroutines_of_this_hart(is_outranked: bool) {
    if crate::machine::harts() == 1 {
        return;
    }
    if let Some(waiting) = Priority::most_important_in(ready_here().load(Ordering::Relaxed)) {
        if is_outranked {
            interrupt_idle_hart();
        } else {
            share(waiting);
        }
    }
}

/// Finds another hart for the most important of all ready coroutines, for a hart that was interrupted, has published
/// its visit's importance and goes on with it.
pub(crate) fn pass_on() {
    if crate::machine::harts() > 1
        && let Some(waiting) = Priority::most_important_in(waiting())
    {
        find_hart(waiting);
    }
}

/// Interrupts an idle hart; returns whether there was one.
#[doc(alias = "smp_send_reschedule")]
fn interrupt_idle_hart() -> bool {
    let idle = (0..crate::machine::harts()).find(|&hart| does(hart) == Doing::Nothing);
    if let Some(hart) = idle {
        HARTS.interrupt(hart);
    }
    idle.is_some()
}

#[cold]
#[inline(never)]
fn share(waiting: Priority) {
    if !interrupt_idle_hart() {
        find_hart(waiting);
    }
}

/// Interrupts the hart whose visit to a program is the least important of all, for a coroutine of this priority that
/// was made ready, if the visit is less important than that. Does nothing if a hart is idle: it was notified when the
/// coroutine was made ready.
#[doc(alias = "select_task_rq")]
#[cold]
#[inline(never)]
pub(crate) fn find_hart(priority: Priority) {
    // Pairs with the fence in `begin_visit`; see the module's documentation.
    fence(Ordering::SeqCst);
    if let Some(hart) = hart_for(priority, (0..crate::machine::harts()).map(does)) {
        HARTS.interrupt(hart);
    }
}

/// Returns the hart to interrupt for a coroutine of this priority, given the state of each hart; `None` for no
/// interrupt.
fn hart_for(priority: Priority, harts: impl Iterator<Item = Doing>) -> Option<usize> {
    let mut least = priority;
    let mut found = None;
    for (hart, doing) in harts.enumerate() {
        match doing {
            Doing::Nothing => return None,
            // It looks at the ready bitmaps before it goes on to anything else.
            Doing::Kernel => {}
            Doing::Visit(visit) => {
                if least.is_more_important_than(visit) {
                    (least, found) = (visit, Some(hart));
                }
            }
        }
    }
    found
}

/// State of a hart, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    /// Polls a coroutine of the kernel, or is about to take another one.
    Kernel,
    /// Is in a program, on a visit of this priority.
    Visit(Priority),
}

fn does(hart: usize) -> Doing {
    let (ready, running) = words(hart);
    match VISITS.priority(hart) {
        Some(priority) => Doing::Visit(priority),
        None if ready | running == 0 => Doing::Nothing,
        None => Doing::Kernel,
    }
}

impl Harts {
    /// Interrupts a hart, which then looks around; the calling hart does so when it is back in its program.
    fn interrupt(&self, hart: usize) {
        counters::count(Counter::HartInterrupts);
        Machine::send_ipi(hart);
    }
}

/// Returns whether a hart other than this one is idle, at some moment during the call.
pub(crate) fn is_another_hart_idle() -> bool {
    let own = Machine::hart();
    let harts = READY.iter().take(crate::machine::harts()).enumerate();
    harts
        .filter(|(hart, _)| *hart != own)
        .any(|(_, word)| word.0.load(Ordering::Relaxed) | word.1.load(Ordering::Relaxed) == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn doing() -> impl Strategy<Value = Doing> {
        prop_oneof![
            1 => Just(Doing::Nothing),
            2 => Just(Doing::Kernel),
            6 => (0..64u64).prop_map(|number| Doing::Visit(Priority::saturating(number))),
        ]
    }

    #[test]
    fn a_visit_is_visible_to_other_harts() {
        let visits = Visits([const { AtomicU64::new(0) }; MAXIMUM_WORKERS]);
        for hart in 0..MAXIMUM_WORKERS {
            assert_eq!((visits.is_any(hart), visits.process(hart), visits.priority(hart)), (false, 0, None));
            for process in [1, 2, 0x1234_5678, u32::MAX] {
                for priority in [Priority::HIGHEST, Priority::DEFAULT, Priority::LOWEST] {
                    visits.begin(hart, process, priority);
                    let seen = (visits.is_any(hart), visits.process(hart), visits.priority(hart));
                    assert_eq!(seen, (true, process, Some(priority)));
                }
            }
        }
        visits.end(0);
        assert_eq!((visits.is_any(0), visits.process(0), visits.priority(0)), (false, 0, None));
        assert!(visits.is_any(1), "a hart has ended the visit of another");
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// The interrupted visit is less important than the waking coroutine, and no visit is less important than that
        /// one; if none is interrupted, there is an idle hart, or no visit is less important.
        #[test]
        fn the_least_important_visit_is_interrupted(
            number in 0..64u64,
            harts in proptest::collection::vec(doing(), 1..9),
        ) {
            let priority = Priority::saturating(number);
            let visits = harts.iter().filter_map(|doing| match doing {
                Doing::Visit(visit) => Some(visit.number()),
                _ => None,
            });
            let least = visits.max();
            match hart_for(priority, harts.iter().copied()) {
                Some(hart) => {
                    prop_assert!(matches!(harts[hart], Doing::Visit(visit) if Some(visit.number()) == least));
                    prop_assert!(least > Some(priority.number()));
                    prop_assert!(!harts.contains(&Doing::Nothing));
                }
                None => prop_assert!(harts.contains(&Doing::Nothing) || least <= Some(priority.number())),
            }
        }
    }
}
