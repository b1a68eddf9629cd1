//! The kernel's executor: the same scheduler as in every process, with one worker for each hart.
//!
//! A worker's number is its hart's. A hart that finds nothing ready waits for an interrupt; whoever makes something ready for
//! it sends one ([`platform::Machine`]'s interprocessor interrupt), which stays pending until the hart looks, so that it cannot
//! come too early.

use core::future::Future;
use core::sync::atomic::Ordering;

use abi_queue::{MAXIMUM_WORKERS, Priority, ReadyWord};
use abi_unix::Counter;
use coroutine::{Executor, Outcome, Signals, Table};
use hal_api::Machine as _;
use platform::Machine;

pub use coroutine::{Cid, yield_now};

use crate::counters;

static EXECUTOR: Executor = Executor::new();
static READY: [ReadyWord; MAXIMUM_WORKERS] = [const { ReadyWord::new() }; MAXIMUM_WORKERS];

struct Harts;
static HARTS: Harts = Harts;

impl coroutine::Platform for Harts {
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

/// Starts a kernel coroutine, which goes on by itself.
///
/// The call that leads here has been admitted (see [`crate::call`]), so that there is memory for it.
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

fn ready_here() -> u64 {
    READY[Machine::hart()].0.load(Ordering::Relaxed)
}

/// Whether something more important than `priority` is ready on this hart.
#[inline]
pub fn is_ready_above(priority: Priority) -> bool {
    ready_here() & (priority.bit() - 1) != 0
}

/// Whether something at least as important as `priority` is ready on this hart.
#[inline]
pub fn is_ready_at_least(priority: Priority) -> bool {
    ready_here() & ((priority.bit() - 1) | priority.bit()) != 0
}

/// The priorities at which something is ready or runs, over all harts.
pub fn ready() -> u64 {
    READY.iter().fold(0, |all, word| all | word.0.load(Ordering::Relaxed) | word.1.load(Ordering::Relaxed))
}
