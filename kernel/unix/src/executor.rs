//! The kernel's executor: the same scheduler as in every process, with one worker for each hart.
//!
//! A worker's number is its hart's. A hart that finds nothing ready waits for an interrupt; whoever makes something ready for
//! it sends one ([`platform::Machine`]'s interprocessor interrupt), which stays pending until the hart looks, so that it cannot
//! come too early.

use core::future::Future;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::Waker;

use abi_queue::{MAXIMUM_WORKERS, Priority, ReadyWord};
use abi_unix::Counter;
use coroutine::{Executor, Outcome, Signals, State, Table};
use hal_api::Machine as _;
use platform::Machine;

pub use coroutine::{Cid, SpawnError, yield_now};

use crate::counters;

static EXECUTOR: Executor = Executor::new();
static READY: [ReadyWord; MAXIMUM_WORKERS] = [const { ReadyWord::new() }; MAXIMUM_WORKERS];

struct Harts;
static HARTS: Harts = Harts;

/// Harts that are in the middle of a visit to a program: what they wake may have to wait for long.
static VISITING: [AtomicBool; MAXIMUM_WORKERS] = [const { AtomicBool::new(false) }; MAXIMUM_WORKERS];

/// Says that this hart begins a visit to a program, or that it is back and will soon look for what is ready.
pub fn set_visiting(hart: usize, visiting: bool) {
    // Relaxed: only the hart itself looks.
    VISITING[hart].store(visiting, Ordering::Relaxed);
}

impl coroutine::Platform for Harts {
    const BRINGS: bool = true;

    /// What an interrupt or a kernel coroutine wakes runs on the hart that it came to, which is awake: so a packet is
    /// received, its call completed and the program that waits for it entered without another hart, unless there is more
    /// to do than one thing after the other.
    #[inline]
    fn bringing(&self) -> Option<usize> {
        let hart = Machine::hart();
        if VISITING[hart].load(Ordering::Relaxed) { None } else { Some(hart) }
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

/// Makes the executor of the scheduler's functions. Called once.
pub fn start(table: Table) -> Result<(), &'static str> {
    EXECUTOR.initialise(table, &READY, &HARTS).map_err(|_| "the executor was started twice")
}

/// The calling hart's worker.
pub struct Worker(coroutine::Worker);

impl Worker {
    /// Makes the calling hart a worker.
    ///
    /// # Panics
    /// If it is one already.
    pub fn of_this_hart() -> Worker {
        let worker = EXECUTOR.worker(Machine::hart(), Signals::default());
        Worker(worker.expect("each hart makes its worker once"))
    }

    /// Polls the most important ready coroutine; `false` if none is ready.
    pub fn run_one(&mut self) -> bool {
        self.0.run_one() == Outcome::Ran
    }
}

/// Starts a kernel coroutine that some process's call needs; it goes on by itself.
///
/// If there is no memory for it, or there are too many coroutines, the future comes back: what it holds may be wanted, or may
/// not be dropped under the caller's locks.
pub fn try_spawn<F>(priority: Priority, future: F) -> Result<Cid, SpawnError<F>>
where
    F: Future<Output = ()> + Send + 'static,
{
    let handle = EXECUTOR.try_spawn(future, priority, 0)?;
    let cid = handle.cid();
    handle.detach();
    Ok(cid)
}

/// As [`try_spawn`], for a coroutine that is polled for the first time when somebody wakes it, with [its waker](waker) for
/// instance.
pub fn try_spawn_blocked<F>(priority: Priority, future: F) -> Result<Cid, SpawnError<F>>
where
    F: Future<Output = ()> + Send + 'static,
{
    let handle = EXECUTOR.try_spawn_blocked(future, priority, 0)?;
    let cid = handle.cid();
    handle.detach();
    Ok(cid)
}

/// The waker of a coroutine.
pub fn waker(cid: Cid) -> Waker {
    EXECUTOR.waker(cid)
}

/// Starts a coroutine of the kernel itself, which goes on by itself, when the machine starts.
///
/// # Panics
/// If there is no memory for it.
pub fn spawn(priority: Priority, future: impl Future<Output = ()> + Send + 'static) -> Cid {
    let handle = EXECUTOR.spawn(future, priority);
    let cid = handle.cid();
    handle.detach();
    cid
}

/// Makes a coroutine ready. One that has ended is not waiting any more, so that is no error.
pub fn wake(cid: Cid) {
    let _ = EXECUTOR.wake(cid);
}

/// Changes a coroutine's priority; one that has ended has none.
pub fn set_priority(cid: Cid, priority: Priority) {
    let _ = EXECUTOR.set_priority(cid, priority);
}

/// The coroutine that calls.
///
/// # Panics
/// Outside of a coroutine.
pub fn current() -> Cid {
    EXECUTOR.current().expect("only coroutines ask who they are")
}

/// The priority at which the calling coroutine runs.
pub fn current_priority() -> Priority {
    let running = READY[Machine::hart()].1.load(Ordering::Relaxed);
    Priority::most_important_in(running).unwrap_or(Priority::DEFAULT)
}

/// The priority of a coroutine; `None` if it has ended.
pub fn priority(cid: Cid) -> Option<Priority> {
    EXECUTOR.priority(cid).ok()
}

/// Where a coroutine is at this moment; `None` if it has ended.
pub fn state(cid: Cid) -> Option<State> {
    EXECUTOR.state(cid).ok()
}

/// What is ready in the shard of this hart.
#[inline]
pub fn ready_here() -> &'static AtomicU64 {
    &READY[Machine::hart()].0
}

/// What is ready in the shard of a hart, and the bit of what it runs.
pub fn words(hart: usize) -> (u64, u64) {
    let word = &READY[hart % MAXIMUM_WORKERS];
    (word.0.load(Ordering::Relaxed), word.1.load(Ordering::Relaxed))
}

/// Whether anything at all is ready on this hart.
#[inline]
pub fn is_anything_ready() -> bool {
    ready_here().load(Ordering::Relaxed) != 0
}

/// Whether something more important than `priority` is ready on this hart.
#[inline]
pub fn is_ready_above(priority: Priority) -> bool {
    ready_here().load(Ordering::Relaxed) & (priority.bit() - 1) != 0
}

/// Whether something at least as important as `priority` is ready on this hart.
#[inline]
pub fn is_ready_at_least(priority: Priority) -> bool {
    ready_here().load(Ordering::Relaxed) & ((priority.bit() - 1) | priority.bit()) != 0
}

/// The priorities at which something is ready and waits for a hart, over all harts.
pub fn waiting() -> u64 {
    READY.iter().take(crate::harts()).fold(0, |all, word| all | word.0.load(Ordering::Relaxed))
}

/// Whether a hart other than this one has nothing to do; a look without any guarantee.
pub fn is_another_hart_idle() -> bool {
    let own = Machine::hart();
    let harts = READY.iter().take(crate::harts()).enumerate();
    harts
        .filter(|(hart, _)| *hart != own)
        .any(|(_, word)| word.0.load(Ordering::Relaxed) | word.1.load(Ordering::Relaxed) == 0)
}
