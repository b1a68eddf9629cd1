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
//! [`receive_interrupts`] it need not: a signal is a user interrupt then ([`interrupt`]), and noticed before the next
//! poll.
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

use abi_queue::{MAXIMUM_WORKERS, Priority, ReadyWord};
use atomic_waker::AtomicWaker;
use coroutine::{Executor, JoinHandle, Platform, Signals, Table};

use crate::capability::{Notification, Thread};
use crate::interrupt;
use crate::lock::Spin;
use crate::raw::Result;

/// Badge of the programs that write to a ring, and of this program's own threads.
pub const RINGS: u64 = 1;

/// Polls between two looks at the rings, while coroutines are always ready.
const BATCH: u64 = 64;
/// Looks at the rings between two polls of the doorbell, which take an entry into the kernel.
const BATCHES: u64 = 16;

static EXECUTOR: Executor = Executor::new();
/// Two words that differ, so that the scheduler calls [`Platform::completions`] before each poll.
static DIFFERENT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(1)];
/// Not 0: the main coroutine has ended, and the worker is to stop.
static ENDED: AtomicU64 = AtomicU64::new(0);
/// Polls until the next look at the rings.
static POLLS_LEFT: AtomicU64 = AtomicU64::new(BATCH);
/// Looks at the rings until the next look at the doorbell.
static BATCHES_LEFT: AtomicU64 = AtomicU64::new(BATCHES);
static READY: [ReadyWord; MAXIMUM_WORKERS] = [const { ReadyWord::new() }; MAXIMUM_WORKERS];
static WORKER: WorkerThread = WorkerThread;
static RUNNING: AtomicBool = AtomicBool::new(false);
/// The notification that the worker waits on.
static DOORBELL: AtomicU64 = AtomicU64::new(0);
/// Whether the worker may be waiting: only then signals are needed.
static SLEEPING: AtomicBool = AtomicBool::new(false);
/// Whether a coroutine may have become ready since the scheduler's loop ended last.
static NOTIFIED: AtomicBool = AtomicBool::new(false);
/// Number of looks at the rings before the worker sleeps.
static PATIENCE: AtomicU32 = AtomicU32::new(0);
/// System calls that the executor made for itself.
static ENTRIES: AtomicU64 = AtomicU64::new(0);
/// The worker's thread, if the doorbell's signals interrupt it; 0 otherwise.
static INTERRUPTED_THREAD: AtomicU64 = AtomicU64::new(0);
/// Signals that have come and were not awaited yet.
static CAME: AtomicU64 = AtomicU64::new(0);
static AWAITED: [AtomicWaker; 64] = [const { AtomicWaker::new() }; 64];
/// Number of complete looks at all sources.
static WAITS: AtomicU64 = AtomicU64::new(0);
/// Wakers of the coroutines in [`pause`].
static PAUSING: Spin<Vec<Waker>> = Spin::new(Vec::new());
static SOURCES: Spin<Vec<Arc<dyn Source>>> = Spin::new(Vec::new());

/// The scheduler's platform: one worker, on a microkernel.
struct WorkerThread;

impl Platform for WorkerThread {
    fn worker(&self) -> usize {
        0
    }

    fn notify(&self, _: usize) {
        // The worker looks at this before it sleeps, so a signal is needed only if another thread wakes a coroutine. The
        // fence pairs with the one in `sleep`: either this sees that the worker sleeps, or the worker sees the word.
        NOTIFIED.store(true, Ordering::Relaxed);
        core::sync::atomic::fence(Ordering::SeqCst);
        if SLEEPING.load(Ordering::Relaxed) {
            Notification::from_pointer(DOORBELL.load(Ordering::Relaxed)).signal();
        }
    }

    #[inline]
    fn completions(&self, _: usize) {
        // Called before each poll: see `run`. Relaxed: only the worker's thread comes here.
        let left = POLLS_LEFT.load(Ordering::Relaxed);
        POLLS_LEFT.store(left.wrapping_sub(1), Ordering::Relaxed);
        if left == 0 || interrupt::is_pending() {
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
    let interrupts = INTERRUPTED_THREAD.load(Ordering::Relaxed) != 0;
    // Without interrupts the word is the program's.
    if interrupts && interrupt::is_pending() {
        ring(interrupt::take());
        attend();
    }
    if is_batch {
        POLLS_LEFT.store(BATCH, Ordering::Relaxed);
        attend();
        // Sources that this program has ended report no entry.
        SOURCES.lock().retain(|source| !source.is_over());
        let left = BATCHES_LEFT.load(Ordering::Relaxed) - 1;
        BATCHES_LEFT.store(if left == 0 { BATCHES } else { left }, Ordering::Relaxed);
        if left == 0 && !interrupts {
            let doorbell = Notification::from_pointer(DOORBELL.load(Ordering::Relaxed));
            ENTRIES.fetch_add(1, Ordering::Relaxed);
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

    /// Tells the other side that this one sleeps from now on. Returns whether that is so: it is not if an entry has
    /// come meanwhile.
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
    let receives = interrupt::receive(thread, doorbell)?;
    if receives {
        INTERRUPTED_THREAD.store(thread.pointer(), Ordering::Relaxed);
    }
    Ok(receives)
}

/// Receives interrupts as [`receive_interrupts`] does, and lets programs that write to a ring signal with a store
/// ([`Signaller`](interrupt::Signaller)), if the machine can do that. Returns whether it can; if it cannot, or the
/// kernel is seL4, this is [`receive_interrupts`].
///
/// The thread runs virtualised from now on. This is for a worker that is busy and makes few system calls; for the costs
/// see decision 021.
///
/// # Errors
///
/// The doorbell cannot be bound to the thread.
pub fn receive_stores(thread: Thread, doorbell: Notification) -> Result<bool> {
    match interrupt::receive_stores(thread, doorbell, RINGS) {
        Ok(by_stores) => {
            INTERRUPTED_THREAD.store(thread.pointer(), Ordering::Relaxed);
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
    match INTERRUPTED_THREAD.swap(0, Ordering::Relaxed) {
        0 => Ok(()),
        thread => {
            let ended = interrupt::end(Thread::from_pointer(thread));
            // Signals that have come by now are handled like later ones.
            ring(interrupt::take());
            ended
        }
    }
}

/// Returns the number of system calls that the executor has made to sleep and to poll its doorbell.
pub fn entries() -> u64 {
    ENTRIES.load(Ordering::Relaxed)
}

/// Adds a source, which is attended to until it is over.
pub fn add_source(source: Arc<dyn Source>) {
    SOURCES.lock().push(source);
}

/// Sets how many times the rings are looked at before the worker sleeps. Sensible only if other programs run on other
/// harts meanwhile.
pub fn set_patience(looks: u32) {
    PATIENCE.store(looks, Ordering::Relaxed);
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
    EXECUTOR.spawn(future, priority)
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
    DOORBELL.store(doorbell.pointer(), Ordering::Relaxed);
    // An earlier run may have initialised it.
    let _ = EXECUTOR.initialise(Table::native(), &READY, &WORKER);
    // The scheduler's own loop, which ends when no coroutine is ready, is quicker than a loop here around single polls;
    // so the look at the rings in between is made from within.
    let signals = Signals { attention: Some(&ENDED), completions: Some((&DIFFERENT[0], &DIFFERENT[1])) };
    ENDED.store(0, Ordering::Relaxed);
    let mut worker = EXECUTOR.worker(0, signals).expect("this is the only worker, and the last one is gone");
    let main = async move {
        let result = main.await;
        ENDED.store(1, Ordering::Relaxed);
        result
    };
    let mut main = pin!(EXECUTOR.spawn(main, Priority::DEFAULT));
    let mut looks = 0;
    NOTIFIED.store(true, Ordering::Relaxed);
    loop {
        // Before the first poll too: after a wait the rings usually have an entry, and no coroutine is ready.
        let came = attend();
        if ENDED.load(Ordering::Relaxed) != 0 && main.is_finished() {
            break;
        }
        if NOTIFIED.load(Ordering::Relaxed) {
            // Cleared first: the scheduler's loop sees all coroutines that were ready before.
            NOTIFIED.store(false, Ordering::Relaxed);
            looks = 0;
            worker.run();
        } else if came {
            looks = 0;
        } else if looks < PATIENCE.load(Ordering::Relaxed) {
            looks += 1;
            core::hint::spin_loop();
        } else {
            looks = 0;
            sleep(doorbell);
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

/// Looks at all sources; returns whether an entry had come. Removes sources that are over by their last entry.
fn attend() -> bool {
    let mut sources = SOURCES.lock();
    let mut came = false;
    let mut over = false;
    for source in sources.iter() {
        if source.attend() {
            came = true;
            over |= source.is_over();
        }
    }
    if over {
        sources.retain(|source| !source.is_over());
    }
    came
}

/// Waits for the doorbell, unless an entry has come after all.
fn sleep(doorbell: Notification) {
    SLEEPING.store(true, Ordering::Relaxed);
    // Pairs with the fence in `notify`; each source has its own.
    core::sync::atomic::fence(Ordering::SeqCst);
    let asleep = !NOTIFIED.load(Ordering::Relaxed) && SOURCES.lock().iter().all(|source| source.fall_asleep());
    let badge = match INTERRUPTED_THREAD.load(Ordering::Relaxed) {
        0 => {
            ENTRIES.fetch_add(1, Ordering::Relaxed);
            if asleep { Some(doorbell.wait()) } else { doorbell.poll() }
        }
        _ if asleep => {
            ENTRIES.fetch_add(1, Ordering::Relaxed);
            Some(interrupt::wait(doorbell))
        }
        _ => Some(interrupt::take()),
    };
    SLEEPING.store(false, Ordering::Relaxed);
    SOURCES.lock().iter().for_each(|source| source.wake_up());
    if let Some(badge) = badge {
        ring(badge);
    }
    // Relaxed, without an atomic addition: only the worker's thread writes it.
    WAITS.store(WAITS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    let mut pausing = PAUSING.lock();
    if !pausing.is_empty() {
        let woken = core::mem::take(&mut *pausing);
        drop(pausing);
        woken.into_iter().for_each(Waker::wake);
    }
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
    let before = WAITS.load(Ordering::Relaxed);
    poll_fn(|context| {
        if WAITS.load(Ordering::Relaxed) != before {
            return Poll::Ready(());
        }
        let mut pausing = PAUSING.lock();
        if !pausing.iter().any(|waker| waker.will_wake(context.waker())) {
            pausing.push(context.waker().clone());
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
