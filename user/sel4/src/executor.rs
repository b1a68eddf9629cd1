//! Coroutines: the project's scheduler on one thread of a program, with that thread's sleep and wake-up.
//!
//! [`run`] makes the calling thread the program's *worker*. It polls coroutines, most important first, and looks at the
//! program's [`Source`]s: rings in shared memory that other programs, or the kernel, write to. When no coroutine is
//! ready and no ring has an entry, it tells the sources' other sides that it sleeps, looks once more, and waits on its
//! *doorbell*, a notification. Every holder of the right to signal that can wake it: another program that has written
//! to a ring, a device's interrupt, another thread of the program.
//!
//! The badges of the signals since the last wait come out of the wait as one word. Each bit is a [`signal`] that a
//! coroutine can await; the lowest, [`RINGS`], is for rings, which are looked at after every wait anyway.
//!
//! **While it is busy** the worker polls the doorbell now and then, which takes an entry into the kernel. After
//! [`receive_interrupts`] it need not: a signal is a user interrupt then ([`user_interrupt`]), and noticed before
//! the next poll.
//!
//! **Before sleeping** the worker spins for a while on the rings if there are several harts: the other side may be
//! about to answer on another one, and two entries into the kernel on each side cost more than the spinning
//! ([`set_patience`]). With one hart no answer could come meanwhile.
//!
//! **One thread.** A program that is to use several harts is split into several programs, which share rings. More
//! workers would need the sources behind locks, and a rule which of them sleeps last.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};

pub use abi_queue::Priority;
use abi_queue::{MAXIMUM_WORKERS, ReadyWord};
use atomic_waker::AtomicWaker;
use coroutine::{Executor, JoinHandle, Platform, Signals, Table};

use crate::capability::{Notification, Thread};
use crate::lock::Spin;
use crate::raw::Result;
use crate::user_interrupt;

/// Badge of the programs that write to a ring, and of this program's own threads.
pub const RINGS: u64 = 1;

/// Polls between two looks at the rings, while coroutines are always ready.
const BATCH: u64 = 64;
/// Looks at the rings between two polls of the doorbell, which take an entry into the kernel.
const BATCHES: u64 = 16;

static EXECUTOR: Executor = Executor::new();

/// The worker's state. One structure, so that the address of one field gives those of the others.
struct Work {
    /// Polls until the next look at the rings.
    polls_left: AtomicU64,
    /// Looks at the rings until the next look at the doorbell.
    batches_left: AtomicU64,
    /// The notification that the worker waits on.
    doorbell: AtomicU64,
    /// Whether the worker may be waiting: only then signals are needed.
    sleeping: AtomicBool,
    /// Whether a coroutine may have become ready since the scheduler's loop ended last.
    notified: AtomicBool,
    /// Number of looks at the rings before the worker sleeps.
    patience: AtomicU32,
    /// Whether the kernel can signal and wait in one system call.
    combines: AtomicBool,
    /// Whether a doorbell that is rung now can be rung together with the wait.
    may_owe: AtomicBool,
    /// A doorbell that is to be rung before the worker sleeps; 0 for none.
    owed: AtomicU64,
    /// System calls that the executor made for itself.
    entries: AtomicU64,
    /// The worker's thread, if the doorbell's signals interrupt it; 0 otherwise.
    interrupted_thread: AtomicU64,
    /// Not 0: the main coroutine has ended, and the worker is to stop.
    ended: AtomicU64,
    /// Number of complete looks at all sources.
    waits: AtomicU64,
    /// Wakers of the coroutines in [`pause`].
    pausing: Spin<Vec<Waker>>,
    /// Whether there are some. Only coroutines of the worker pause.
    has_pausing: AtomicBool,
    sources: Spin<Vec<Arc<dyn Source>>>,
}

static WORK: Work = Work {
    polls_left: AtomicU64::new(BATCH),
    batches_left: AtomicU64::new(BATCHES),
    doorbell: AtomicU64::new(0),
    sleeping: AtomicBool::new(false),
    notified: AtomicBool::new(false),
    patience: AtomicU32::new(0),
    combines: AtomicBool::new(false),
    may_owe: AtomicBool::new(false),
    owed: AtomicU64::new(0),
    entries: AtomicU64::new(0),
    interrupted_thread: AtomicU64::new(0),
    ended: AtomicU64::new(0),
    waits: AtomicU64::new(0),
    pausing: Spin::new(Vec::new()),
    has_pausing: AtomicBool::new(false),
    sources: Spin::new(Vec::new()),
};

/// Two words that differ, so that the scheduler calls [`Platform::completions`] before each poll.
static DIFFERENT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(1)];
static READY: [ReadyWord; MAXIMUM_WORKERS] = [const { ReadyWord::new() }; MAXIMUM_WORKERS];
static WORKER: WorkerThread = WorkerThread;
/// Whether [`run`] is under way. Taken and let go like a lock: a later run finds the executor as this one leaves it.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// Signals that have come and were not awaited yet.
// Set with release before the waiter is looked for, and taken by the waiter's read-modify-write after it has
// registered.
static CAME: AtomicU64 = AtomicU64::new(0);
static AWAITED: [AtomicWaker; 64] = [const { AtomicWaker::new() }; 64];

/// The scheduler's platform: one worker, on a microkernel.
struct WorkerThread;

impl Platform for WorkerThread {
    fn worker(&self) -> usize {
        0
    }

    fn notify(&self, _: usize) {
        // The worker looks at this before it sleeps, so a signal is needed only if another thread wakes a coroutine.
        // The fence pairs with the one in `sleep`: either this sees that the worker sleeps, or the worker sees the
        // word.
        WORK.notified.store(true, Ordering::Relaxed);
        core::sync::atomic::fence(Ordering::SeqCst);
        if WORK.sleeping.load(Ordering::Relaxed) {
            Notification::from_pointer(WORK.doorbell.load(Ordering::Relaxed)).signal();
        }
    }

    #[inline]
    fn completions(&self, _: usize) {
        // Called before each poll: see `run`. Relaxed: only the worker's thread comes here.
        let left = WORK.polls_left.load(Ordering::Relaxed);
        WORK.polls_left.store(left.wrapping_sub(1), Ordering::Relaxed);
        if left == 0 || user_interrupt::is_pending() {
            look(left == 0);
        }
    }

    fn relax(&self) {
        crate::raw::yield_now();
    }
}

/// Takes pending interrupts; looks at the rings after every [`BATCH`] polls, and now and then at the doorbell.
#[cold]
#[inline(never)]
fn look(is_batch: bool) {
    let interrupts = WORK.interrupted_thread.load(Ordering::Relaxed) != 0;
    // Without interrupts the word is the program's.
    if interrupts && user_interrupt::is_pending() {
        ring(user_interrupt::take());
        attend(false);
    }
    if is_batch {
        WORK.polls_left.store(BATCH, Ordering::Relaxed);
        attend(false);
        remove_sources();
        let left = WORK.batches_left.load(Ordering::Relaxed) - 1;
        WORK.batches_left.store(if left == 0 { BATCHES } else { left }, Ordering::Relaxed);
        if left == 0 && !interrupts {
            let doorbell = Notification::from_pointer(WORK.doorbell.load(Ordering::Relaxed));
            WORK.entries.fetch_add(1, Ordering::Relaxed);
            doorbell.poll().into_iter().for_each(ring);
        }
    }
}

/// A source of wake-ups outside of the program: the end of a ring.
///
/// The worker calls these functions between polls, never while another of them runs.
pub trait Source: Send + Sync {
    /// Takes the entries that have come and wakes their coroutines; then calls the other side if it sleeps and has new
    /// entries. Returns whether an entry had come.
    fn attend(&self) -> bool;

    /// Calls the other side if it sleeps and has new entries, and tells it that this one sleeps from now on. Returns
    /// whether that is so: it is not if an entry has come meanwhile.
    fn fall_asleep(&self) -> bool;

    /// Tells the other side that this one does not sleep any more.
    fn wake_up(&self);

    /// Returns whether no entry will come any more, so that the source can be removed.
    fn is_over(&self) -> bool;
}

/// Makes signals of the doorbell user interrupts of `thread`, the one that calls [`run`]; until [`end_interrupts`].
/// Returns whether the kernel supports them: seL4 does not, and then the doorbell is polled as before.
///
/// # Errors
///
/// The doorbell cannot be bound to the thread.
pub fn receive_interrupts(thread: Thread, doorbell: Notification) -> Result<bool> {
    let receives = user_interrupt::receive(thread, doorbell)?;
    if receives {
        WORK.interrupted_thread.store(thread.pointer(), Ordering::Relaxed);
    }
    Ok(receives)
}

/// Receives interrupts as [`receive_interrupts`] does, and lets programs that write to a ring signal with a store
/// ([`Signaller`](user_interrupt::Signaller)), if the machine can do that. Returns whether it can; if it cannot, or the
/// kernel is seL4, this is [`receive_interrupts`].
///
/// The thread has registers for its interrupts from now on. This is for a worker that is busy and makes few system
/// calls; for the costs see decisions 021 and 028.
///
/// # Errors
///
/// The doorbell cannot be bound to the thread.
pub fn receive_stores(thread: Thread, doorbell: Notification) -> Result<bool> {
    match user_interrupt::receive_stores(thread, doorbell, RINGS) {
        Ok(by_stores) => {
            WORK.interrupted_thread.store(thread.pointer(), Ordering::Relaxed);
            Ok(by_stores)
        }
        Err(_) => receive_interrupts(thread, doorbell).map(|_| false),
    }
}

/// Ends [`receive_interrupts`] or [`receive_stores`], if one was called.
///
/// # Errors
///
/// The kernel's error.
pub fn end_interrupts() -> Result<()> {
    match WORK.interrupted_thread.swap(0, Ordering::Relaxed) {
        0 => Ok(()),
        thread => {
            let ended = user_interrupt::end(Thread::from_pointer(thread));
            // Signals that have come by now are handled like later ones.
            ring(user_interrupt::take());
            ended
        }
    }
}

/// Returns the number of system calls that the executor has made to sleep and to poll its doorbell.
pub fn entries() -> u64 {
    WORK.entries.load(Ordering::Relaxed)
}

/// Adds a source, which is attended to until it is over.
pub fn add_source(source: Arc<dyn Source>) {
    WORK.sources.lock().push(source);
}

/// Sets how many times the rings are looked at before the worker sleeps. Sensible only if other programs run on other
/// harts meanwhile.
pub fn set_patience(looks: u32) {
    WORK.patience.store(looks, Ordering::Relaxed);
}

/// Returns the executor, for operations without a function of their own here: counters, states, priorities.
pub fn executor() -> &'static Executor {
    &EXECUTOR
}

/// Makes a coroutine of the future, ready at once. Dropping the handle detaches it.
///
/// # Panics
///
/// If memory is exhausted, or [`run`] was not called yet.
pub fn spawn<F>(priority: Priority, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    EXECUTOR.spawn(priority, future)
}

/// Runs `main` and the coroutines that it spawns on the calling thread, until `main` has ended; the others keep their
/// state, and continue if this is called again. Signals of `doorbell` wake the thread; no other thread may wait on it.
///
/// # Panics
///
/// If it runs already.
#[doc(alias = "block_on")]
pub fn run<F>(doorbell: Notification, main: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    assert!(!RUNNING.swap(true, Ordering::Acquire), "a program has one executor, which runs on one thread");
    WORK.doorbell.store(doorbell.pointer(), Ordering::Relaxed);
    // An earlier run may have initialised it.
    let _ = EXECUTOR.initialise(Table::native(), &READY, &WORKER);
    // The scheduler's own loop, which ends when no coroutine is ready, is quicker than a loop here around single polls;
    // so the look at the rings in between is made from within.
    let signals = Signals { attention: Some(&WORK.ended), completions: Some((&DIFFERENT[0], &DIFFERENT[1])) };
    WORK.ended.store(0, Ordering::Relaxed);
    let mut worker = EXECUTOR.worker(0, signals).expect("this is the only worker, and the last one is gone");
    let main = async move {
        let result = main.await;
        WORK.ended.store(1, Ordering::Relaxed);
        result
    };
    let mut main = pin!(EXECUTOR.spawn(Priority::DEFAULT, main));
    WORK.notified.store(true, Ordering::Relaxed);
    WORK.combines.store(crate::raw::has_own_calls(), Ordering::Relaxed);
    remove_sources();
    let mut looks = 0;
    let mut has_slept = false;
    loop {
        // Before the first poll too: after a wait the rings usually have an entry, and no coroutine is ready.
        let came = attend(core::mem::take(&mut has_slept));
        if WORK.ended.load(Ordering::Relaxed) != 0 && main.is_finished() {
            break;
        }
        let patience = WORK.patience.load(Ordering::Relaxed);
        if WORK.notified.load(Ordering::Relaxed) {
            // Cleared first: the scheduler's loop sees all coroutines that were ready before.
            WORK.notified.store(false, Ordering::Relaxed);
            looks = 0;
            worker.run();
            // Without patience the rings need no look of their own: falling asleep looks at them.
            if patience == 0 && WORK.ended.load(Ordering::Relaxed) == 0 {
                has_slept = true;
                sleep(doorbell);
            }
        } else if came {
            looks = 0;
        } else if looks < patience {
            looks += 1;
            core::hint::spin_loop();
        } else {
            looks = 0;
            has_slept = true;
            if !sleep(doorbell) {
                poll(doorbell);
            }
        }
    }
    drop(worker);
    RUNNING.store(false, Ordering::Release);
    match main.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(result)) => result,
        // No other code has its handle, and it has finished.
        _ => unreachable!("the main coroutine has ended and was not cancelled"),
    }
}

/// Looks at all sources, after they have been told that the worker is awake if it has slept; returns whether an entry
/// had come.
fn attend(has_slept: bool) -> bool {
    let sources = WORK.sources.lock();
    let mut came = false;
    for source in sources.iter() {
        if has_slept {
            source.wake_up();
        }
        came |= source.attend();
    }
    came
}

/// Removes the sources that are over.
fn remove_sources() {
    WORK.sources.lock().retain(|source| !source.is_over());
}

/// Takes the doorbell's signals without a wait.
#[cold]
fn poll(doorbell: Notification) {
    if WORK.interrupted_thread.load(Ordering::Relaxed) == 0 {
        WORK.entries.fetch_add(1, Ordering::Relaxed);
        doorbell.poll().into_iter().for_each(ring);
    }
}

/// Rings the doorbell of the other side of a ring: at once, or together with the worker's wait if that comes next. The
/// caller is a source that is attended to.
pub(crate) fn ring_soon(doorbell: Notification) {
    if WORK.may_owe.load(Ordering::Relaxed) {
        WORK.may_owe.store(false, Ordering::Relaxed);
        WORK.owed.store(doorbell.pointer(), Ordering::Relaxed);
    } else {
        // A signal through a deleted capability must do nothing: the other side has died.
        doorbell.signal_if_there();
    }
}

/// Returns whether the worker falls asleep or looks at the sources before it polls another coroutine: the caller is the
/// last one that is ready.
#[inline]
pub(crate) fn attends_next() -> bool {
    RUNNING.load(Ordering::Relaxed) && READY[0].0.load(Ordering::Relaxed) == 0
}

/// Waits for the doorbell, unless an entry has come after all; returns whether it has waited. The sources have to be
/// told that the worker is awake again.
fn sleep(doorbell: Notification) -> bool {
    WORK.sleeping.store(true, Ordering::Relaxed);
    // Pairs with the fence in `notify`; each source has its own.
    core::sync::atomic::fence(Ordering::SeqCst);
    let interrupts = WORK.interrupted_thread.load(Ordering::Relaxed) != 0;
    // Interrupts have a way of their own to wait.
    WORK.may_owe.store(!interrupts && WORK.combines.load(Ordering::Relaxed), Ordering::Relaxed);
    let asleep =
        !WORK.notified.load(Ordering::Relaxed) && WORK.sources.lock().iter().all(|source| source.fall_asleep());
    WORK.may_owe.store(false, Ordering::Relaxed);
    let owed = WORK.owed.load(Ordering::Relaxed);
    WORK.owed.store(0, Ordering::Relaxed);
    let badge = if asleep {
        // The rings are empty, and the doorbell's signals come with the wait.
        WORK.polls_left.store(BATCH, Ordering::Relaxed);
        WORK.entries.fetch_add(1, Ordering::Relaxed);
        match owed {
            _ if interrupts => user_interrupt::wait(doorbell),
            0 => doorbell.wait(),
            owed => doorbell.wait_after_signal(Notification::from_pointer(owed)),
        }
    } else {
        if owed != 0 {
            Notification::from_pointer(owed).signal_if_there();
        }
        if interrupts { user_interrupt::take() } else { 0 }
    };
    WORK.sleeping.store(false, Ordering::Relaxed);
    ring(badge);
    // Relaxed, without an atomic addition: only the worker's thread writes it.
    WORK.waits.store(WORK.waits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    if WORK.has_pausing.load(Ordering::Relaxed) {
        wake_pausing();
    }
    asleep
}

#[cold]
#[inline(never)]
fn wake_pausing() {
    WORK.has_pausing.store(false, Ordering::Relaxed);
    let woken = core::mem::take(&mut *WORK.pausing.lock());
    woken.into_iter().for_each(Waker::wake);
}

/// Publishes the signals of this badge to the coroutines that await them.
#[inline]
fn ring(badge: u64) {
    let signals = badge & !RINGS;
    if signals != 0 {
        publish(signals);
    }
}

#[cold]
fn publish(signals: u64) {
    CAME.fetch_or(signals, Ordering::Release);
    let mut left = signals;
    while left != 0 {
        AWAITED[left.trailing_zeros() as usize].wake();
        left &= left - 1;
    }
}

/// Lets all other coroutines run, and the worker sleep until any event has come.
///
/// # Cancellation
///
/// Strict. Nothing happens.
pub async fn pause() {
    let before = WORK.waits.load(Ordering::Relaxed);
    poll_fn(|context| {
        if WORK.waits.load(Ordering::Relaxed) != before {
            return Poll::Ready(());
        }
        let mut pausing = WORK.pausing.lock();
        if !pausing.iter().any(|waker| waker.will_wake(context.waker())) {
            pausing.push(context.waker().clone());
            WORK.has_pausing.store(true, Ordering::Relaxed);
        }
        Poll::Pending
    })
    .await;
}

/// Waits until the doorbell was signalled with this bit of the badge, 1 to 63, since the last time. One coroutine at a
/// time awaits a bit.
///
/// # Cancellation
///
/// Strict. A signal is taken when this is ready, and not before.
///
/// # Panics
///
/// If there is no such bit, or it is that of [`RINGS`].
#[doc(alias = "seL4_Wait")]
pub async fn signal(bit: u32) {
    assert!((1..64).contains(&bit), "a badge has no bit {bit} for signals");
    poll_fn(|context| {
        let take = || CAME.fetch_and(!(1 << bit), Ordering::Acquire) & 1 << bit != 0;
        if take() {
            return Poll::Ready(());
        }
        AWAITED[bit as usize].register(context.waker());
        // The signal may have come between the two.
        if take() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
