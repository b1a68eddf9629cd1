//! The process's executor: the scheduler of the shared image, with workers that the kernel lends.
//!
//! Each worker runs coroutines until none is ready, looks at what the kernel has posted and at the clock, and sleeps in
//! the kernel. It never spins: a completion, a wake-up by another worker ([`Platform::notify`]), or a deadline ends its
//! sleep. Nothing is missed in between: the worker tells the kernel how many completions have been *taken*, and if more
//! than that were posted it does not sleep; and a wake-up that comes before the sleep is kept for it.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::{RawWakerVTable, Waker};

use abi_queue::pages::mode_in_force;
use abi_queue::{MAXIMUM_WORKERS, Mode, Priority, ProcessPage};
use coroutine::{Cid, Executor, JoinHandle, Outcome, Platform, Sharing, Signals, Stale, Table, Worker};

use crate::call;
use crate::interrupt;
use crate::local;
use crate::lock::Section;
use crate::preemption;
use crate::time;
use crate::trace;
use unix::{Errno, Result};

/// Bytes of the stack of a worker that is not the first; below it lies a page that cannot be used.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const STACK: usize = 256 * 1024;
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
const GUARD: usize = 4096;

static EXECUTOR: Executor = Executor::new();
static PROCESS: Process = Process;
/// Where the process publishes what is ready and what runs; null before [`initialise`].
static PAGE: core::sync::atomic::AtomicPtr<ProcessPage> = core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());
/// How many workers there are.
static WORKERS: AtomicUsize = AtomicUsize::new(0);

/// What the scheduler needs from the kernel.
struct Process;

impl Platform for Process {
    #[inline]
    fn worker(&self) -> usize {
        local::current().index.get()
    }

    fn notify(&self, worker: usize) {
        let _section = Section::begin();
        // A worker that has just been made or ended gets the news some other way.
        let _ = unix::worker::wake(worker);
    }

    fn completions(&self, _: usize) {
        let _section = Section::begin();
        call::drain();
    }

    fn calling_worker(&self) -> Option<usize> {
        // Whoever is put aside here has made something ready of which nobody knows yet.
        let _section = Section::begin();
        Some(local::current().index.get()).filter(|index| *index != local::NO_WORKER)
    }

    /// Polls are short, and a notification is a system call and an interrupt of another hart.
    fn sharing(&self) -> Sharing {
        Sharing::Lazy
    }

    const RESUMES: bool = true;

    fn resume(&self, cid: Cid) {
        preemption::resume(cid);
    }

    fn relax(&self) {
        let _section = Section::begin();
        unix::worker::yield_now();
    }
}

/// Makes the executor.
///
/// # Panics
///
/// If it is made twice: it is the start-up code's.
pub(crate) fn initialise(table: Table, page: &'static ProcessPage) {
    PAGE.store(core::ptr::from_ref(page).cast_mut(), Ordering::Relaxed);
    interrupt::set_page(page);
    EXECUTOR.initialise(table, &page.ready, &PROCESS).expect("there is one start, and one executor");
}

/// Runs coroutines as the worker with this number, for ever.
pub(crate) fn work(number: usize) -> ! {
    let completions = call::ring_header().map(|ring| (&ring.tail, &ring.head));
    let worker: Worker = EXECUTOR
        .worker(number, Signals { attention: Some(interrupt::attention(number)), completions })
        .expect("each worker is made once, and there are no more than the kernel allows");
    // SAFETY: the handler uses atomics, and the scheduler's wake, which is never interrupted by it.
    let handled = unsafe { unix::interrupt::set_handler(interrupt::on_interrupt, || local::current().index.get()) };
    debug_assert!(handled.is_ok() || cfg!(not(target_os = "none")));
    work_as(worker, number)
}

/// Goes on with a worker's coroutines on another stack, while it has put one aside, for ever.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
pub(crate) fn work_on_another_stack(number: usize) -> ! {
    let worker = preemption::work_on_this_stack().expect("whoever makes a stack makes its worker");
    work_as(worker, number)
}

fn work_as(mut worker: Worker, number: usize) -> ! {
    // SAFETY: the page is there to stay, and every word of it is atomic.
    if let Some(page) = unsafe { PAGE.load(Ordering::Relaxed).as_ref() } {
        local::current().set_word(&page.ready[number]);
    }
    loop {
        let outranked_by = outranked_by();
        FOLLOWED[number].store(key(outranked_by), Ordering::Relaxed);
        let outcome = match outranked_by {
            None => worker.run(),
            Some((bitmap, ceiling)) => worker.run_strictly(bitmap, ceiling),
        };
        match outcome {
            Outcome::Idle => {}
            Outcome::Attention => {
                interrupt::attend(number);
                time::expire();
                continue;
            }
            Outcome::Outranked => {
                unix::worker::yield_now();
                continue;
            }
            Outcome::Ran => continue,
        }
        if time::expire() {
            continue;
        }
        if trace::is_on() {
            trace::flush();
        }
        // What was taken from the ring, by whichever worker, has been seen; if there is more this returns at once.
        let seen = call::ring_header().map_or(0, |ring| ring.head.load(Ordering::Acquire));
        let _ = unix::worker::wait(seen, time::longest_sleep_ns());
        preemption::rearm();
    }
}

/// What each worker went by when it last looked at the mode.
static FOLLOWED: [AtomicU64; MAXIMUM_WORKERS] = [const { AtomicU64::new(0) }; MAXIMUM_WORKERS];

/// A number that differs if the mode or the ceiling does.
fn key(outranked_by: Option<(&'static AtomicU64, Priority)>) -> u64 {
    outranked_by.map_or(0, |(_, ceiling)| u64::from(ceiling.number()) + 1)
}

/// Makes the worker look at the mode before its next poll, if that has changed. For the handler of user interrupts,
/// which the kernel enters when somebody else has changed it.
pub(crate) fn look_at_mode_if_changed() {
    let worker = local::current().index.get() % MAXIMUM_WORKERS;
    if FOLLOWED[worker].load(Ordering::Relaxed) != key(outranked_by()) {
        interrupt::attention(worker).store(1, Ordering::Relaxed);
    }
}

/// In strict mode, what to compare with before each poll: the global bitmap, and the ceiling.
fn outranked_by() -> Option<(&'static AtomicU64, Priority)> {
    let global = time::global_page()?;
    // SAFETY: the page is there to stay, and every word of it is atomic.
    let own = unsafe { PAGE.load(Ordering::Relaxed).as_ref() }?;
    let mode = mode_in_force(global.mode.load(Ordering::Relaxed), own.mode.load(Ordering::Relaxed));
    let ceiling = Priority::saturating(own.ceiling.load(Ordering::Relaxed));
    (mode == Mode::Strict).then_some((&global.ready, ceiling))
}

/// Which mode of global priority the process's executor follows now.
pub fn mode() -> Mode {
    if outranked_by().is_some() { Mode::Strict } else { Mode::Relaxed }
}

/// Chooses how closely the process keeps to the global order of priorities: [`Mode::Relaxed`], from one tick or kernel
/// entry to the next, or [`Mode::Strict`], with a look before each poll. Holds for all workers from their next poll on,
/// for children that are started afterwards, and unless the system has one mode for all.
///
/// # Errors
///
/// None from a kernel that knows the call.
pub fn set_mode(mode: Mode) -> Result<()> {
    unix::scheduling::set_mode(0, mode)?;
    look_at_mode();
    Ok(())
}

/// Makes all workers look at the mode before their next poll.
fn look_at_mode() {
    for worker in 0..MAXIMUM_WORKERS {
        interrupt::attention(worker).store(1, Ordering::Relaxed);
    }
}

/// Adds workers, each with a stack of its own, that run the process's coroutines from now on.
///
/// There can be [`MAXIMUM_WORKERS`] in all; more than there are harts do not harm, and do not help.
///
/// # Errors
///
/// `EAGAIN` if there would be too many, `ENOMEM`. Those that could be added stay.
pub fn alloc_cpu(count: usize) -> Result<()> {
    for _ in 0..count {
        add_worker()?;
    }
    Ok(())
}

#[cfg(all(target_arch = "riscv64", target_os = "none"))]
fn add_worker() -> Result<()> {
    extern "C" fn enter(number: usize, _: usize) -> ! {
        work(number)
    }
    // One at a time, so that the kernel's numbers are ours.
    static ADDING: crate::lock::Lock<()> = crate::lock::Lock::new(());
    let _adding = ADDING.lock();
    let number = WORKERS.load(Ordering::Relaxed);
    if number >= MAXIMUM_WORKERS {
        return Err(Errno::EAGAIN);
    }
    let stack = unix::memory::map(GUARD + STACK)?;
    // SAFETY: the mapping is new; nothing uses its first page.
    unsafe { unix::memory::protect(stack, GUARD, 0) }?;
    // SAFETY: `enter` does not return, the stack is the worker's for ever, and `tp` names the worker's own block.
    let created =
        unsafe { unix::worker::create(enter, stack.add(GUARD + STACK), number, local::thread_pointer(number)) };
    match created {
        Ok(_) => {
            WORKERS.store(number + 1, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => {
            // SAFETY: no worker got the stack.
            let _ = unsafe { unix::memory::unmap(stack, GUARD + STACK) };
            Err(error)
        }
    }
}

/// There are no workers to be had on this machine.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
fn add_worker() -> Result<()> {
    if workers() >= MAXIMUM_WORKERS { Err(Errno::EAGAIN) } else { Err(Errno::ENOSYS) }
}

/// Counts the worker that the process starts with.
pub(crate) fn first_worker() {
    WORKERS.store(1, Ordering::Relaxed);
}

/// How many workers the process has.
pub fn workers() -> usize {
    WORKERS.load(Ordering::Relaxed)
}

/// The executor, for what has no function of its own here: counters, states.
pub fn executor() -> &'static Executor {
    &EXECUTOR
}

/// Makes a coroutine of the future, ready at once, with the priority of the one that runs. Dropping the handle lets it
/// go on by itself.
///
/// # Panics
///
/// If there is no memory.
#[inline]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    EXECUTOR.spawn(future, current_priority())
}

/// The same with a priority.
///
/// # Panics
///
/// If there is no memory.
#[inline]
pub fn spawn_at<F>(priority: Priority, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    EXECUTOR.spawn(future, priority)
}

/// The cid of the coroutine that calls.
///
/// # Panics
///
/// Outside of a coroutine.
#[inline]
pub fn current() -> Cid {
    EXECUTOR.current().expect("only coroutines have a cid")
}

/// Makes a blocked coroutine ready; one that is ready or running is polled once more.
///
/// # Errors
///
/// [`Stale`] if there is no such coroutine (any more).
#[inline]
pub fn wake(cid: Cid) -> core::result::Result<(), Stale> {
    // Two ways that share nothing, so that a wake without a trace saves no register for one.
    if trace::is_on() { traced_wake(cid) } else { EXECUTOR.wake(cid) }
}

#[cold]
fn traced_wake(cid: Cid) -> core::result::Result<(), Stale> {
    trace::woken(cid.raw());
    EXECUTOR.wake(cid)
}

/// Changes a coroutine's own priority, in whatever state it is. While it holds a [`Mutex`](crate::sync::Mutex) for
/// which somebody more important waits, it goes on as important as that one.
///
/// # Errors
///
/// [`Stale`] if there is no such coroutine (any more).
#[inline]
pub fn set_priority(cid: Cid, priority: Priority) -> core::result::Result<(), Stale> {
    crate::inheritance::set_own(cid, priority)
}

/// The same without regard to what it was lent.
#[inline]
pub(crate) fn set_own_priority(cid: Cid, priority: Priority) -> core::result::Result<(), Stale> {
    EXECUTOR.set_priority(cid, priority)
}

/// The priority that a coroutine has now, lent or its own.
///
/// # Errors
///
/// [`Stale`] if there is no such coroutine (any more).
pub fn priority(cid: Cid) -> core::result::Result<Priority, Stale> {
    EXECUTOR.priority(cid)
}

/// The coroutine that calls, if it is one and there is an executor.
pub(crate) fn current_or_none() -> Option<Cid> {
    if PAGE.load(Ordering::Relaxed).is_null() { None } else { EXECUTOR.current() }
}

/// Wakes a coroutine that a completion names; what is stale is nobody's any more.
pub(crate) fn wake_raw(cid: u64) {
    let _ = EXECUTOR.wake(Cid::from_raw(cid));
}

/// The vtable of the executor's own wakers; null before the first coroutine runs.
static OWN_VTABLE: core::sync::atomic::AtomicPtr<RawWakerVTable> =
    core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());

/// Learns what the executor's wakers look like, from a coroutine that it polls directly.
pub(crate) fn learn_own_waker(waker: &Waker) {
    OWN_VTABLE.store(core::ptr::from_ref(waker.vtable()).cast_mut(), Ordering::Relaxed);
}

/// The cid that a waker of the executor stands for; `None` for a waker that a combinator has made.
#[inline]
pub(crate) fn cid_of(waker: &Waker) -> Option<u64> {
    let own = core::ptr::eq(waker.vtable(), OWN_VTABLE.load(Ordering::Relaxed));
    own.then(|| waker.data().addr() as u64)
}

/// The priority of the coroutine that runs; the default outside of one.
#[inline]
pub fn current_priority() -> Priority {
    local::current().priority()
}

/// Whether another coroutine that is at least as important as the one that runs is ready in this worker's shard.
#[inline(always)]
pub(crate) fn has_company() -> bool {
    let word = local::current().word();
    let ready = word.0.load(Ordering::Relaxed);
    if ready == 0 {
        return false;
    }
    // One bit, or none outside of a poll: then there is nobody to compare with.
    let running = word.1.load(Ordering::Relaxed);
    running != 0 && ready & (running | running.wrapping_sub(1)) != 0
}

/// Whether this worker has something to run after the coroutine that runs.
pub(crate) fn has_something_ready() -> bool {
    local::current().word().0.load(Ordering::Relaxed) != 0
}

/// Whether something is ready that is more important than what this worker runs, and that it can run: what another
/// worker has put aside is for that one.
pub(crate) fn has_more_important(worker: usize) -> bool {
    // SAFETY: the page is there to stay, and every word of it is atomic.
    let Some(page) = (unsafe { PAGE.load(Ordering::Relaxed).as_ref() }) else { return false };
    let running = page.ready[worker % MAXIMUM_WORKERS].1.load(Ordering::Relaxed);
    let better = running.wrapping_sub(1);
    let words = page.ready.iter().enumerate();
    let ready = words.fold(0, |all, (other, word)| {
        let kept = if other == worker { 0 } else { preemption::aside_of(other) };
        all | word.0.load(Ordering::Relaxed) & !kept
    });
    running != 0 && ready & better != 0
}

/// For the panic handler.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
pub(crate) fn current_raw() -> Option<u64> {
    EXECUTOR.current().map(Cid::raw)
}

/// The priority of coroutines that nobody gave one: [`coroutine_run`]'s.
static DEFAULT_PRIORITY: AtomicU64 = AtomicU64::new(Priority::DEFAULT.number() as u64);

/// Makes a coroutine as the papers do: with a priority, or with the default one if that is `None`, which does not
/// depend on who calls. (Starting the executor, their other half of it, has happened: a process begins with it.)
///
/// # Panics
///
/// If there is no memory.
#[inline]
pub fn coroutine_run<F>(future: F, priority: impl Into<Option<Priority>>) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    EXECUTOR.spawn(future, priority.into().unwrap_or_else(default_priority))
}

/// The priority that [`coroutine_run`] gives: [`Priority::DEFAULT`] unless it was changed.
pub fn default_priority() -> Priority {
    Priority::saturating(DEFAULT_PRIORITY.load(Ordering::Relaxed))
}

/// Changes the priority that [`coroutine_run`] gives to coroutines from now on.
pub fn set_default_priority(priority: Priority) {
    DEFAULT_PRIORITY.store(priority.number().into(), Ordering::Relaxed);
}
