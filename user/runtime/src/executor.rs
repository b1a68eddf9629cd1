//! The process's executor: the scheduler of the shared image, with workers that the kernel lends.
//!
//! Each worker runs coroutines until none is ready, looks at the completions that the kernel has posted and at the
//! clock, and sleeps in the kernel. It never spins: a completion, a wake-up by another worker ([`Platform::notify`]),
//! or a deadline ends its sleep. No event between the look and the sleep is missed: the worker passes the kernel the
//! number of completions *taken*, and if more were posted it does not sleep; a wake-up that comes before the sleep is
//! kept for it.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::{RawWakerVTable, Waker};

use alloc::borrow::Cow;

use abi_queue::pages::mode_in_force;
use abi_queue::{MAXIMUM_WORKERS, Mode, Priority, ProcessPage};
use coroutine::{Cid, Executor, JoinHandle, Outcome, Platform, Sharing, Signals, Stale, Table, Worker};

use crate::call;
use crate::interrupt;
use crate::local;
use crate::lock::Section;
use crate::names::{Name, Named};
use crate::observing;
use crate::preemption;
use crate::time;
use crate::trace;
use unix::{Errno, Result};

/// Bytes of the stack of a worker other than the first; a guard page lies below it.
#[cfg(on_cops)]
const STACK: usize = crate::thread::STACK;
#[cfg(on_cops)]
const GUARD: usize = 4096;

static EXECUTOR: Executor = Executor::new();
static PROCESS: Process = Process;
/// Page in which the process publishes its ready and running priorities; null before [`initialise`].
static PAGE: core::sync::atomic::AtomicPtr<ProcessPage> = core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());
/// Number of workers.
static WORKERS: AtomicUsize = AtomicUsize::new(0);

/// The scheduler's platform: workers, completions and notifications of this process.
struct Process;

impl Platform for Process {
    #[inline]
    fn worker(&self) -> usize {
        local::current().index.get()
    }

    fn notify(&self, worker: usize) {
        let _section = Section::begin();
        // An error means a worker that begins or has ended: it needs no notification.
        let _ = unix::worker::wake(worker);
    }

    fn completions(&self, _: usize) {
        let _section = Section::begin();
        call::drain();
    }

    fn calling_worker(&self) -> Option<usize> {
        // In a section: a caller preempted here has made a coroutine ready that is not published yet.
        let _section = Section::begin();
        Some(local::current().index.get()).filter(|index| *index != local::NO_WORKER)
    }

    /// Lazy: polls are short, and a notification is a system call and an interrupt of another hart.
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

/// Makes the executor. For the start-up code.
///
/// # Panics
///
/// If it is made twice.
pub(crate) fn initialise(table: Table, page: &'static ProcessPage) {
    PAGE.store(core::ptr::from_ref(page).cast_mut(), Ordering::Relaxed);
    interrupt::set_page(page);
    page.answers.store(1, Ordering::Relaxed);
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
    debug_assert!(handled.is_ok() || cfg!(not(on_cops)));
    // SAFETY: as above, without the scheduler; it computes with integers alone.
    unsafe { unix::interrupt::set_quick_handler(interrupt::on_interrupt_quickly) };
    work_as(worker, number)
}

/// Continues a worker's coroutines on another stack, while one of them is preempted, for ever.
#[cfg(target_os = "none")]
pub(crate) fn work_on_another_stack(number: usize) -> ! {
    let worker = preemption::work_on_this_stack().expect("the maker of a stack makes its worker");
    work_as(worker, number)
}

fn work_as(mut worker: Worker, number: usize) -> ! {
    // This frame is never left.
    local::current().stack_top.set(&raw const worker as usize);
    // SAFETY: the page stays mapped, and every word of it is atomic.
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
                observing::look();
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
        // Completions taken from the ring, by any worker, have been handled; with more in the ring this returns at
        // once.
        let seen = call::ring_header().map_or(0, |ring| ring.head.load(Ordering::Acquire));
        let _ = unix::worker::wait(seen, time::longest_sleep_ns());
        preemption::rearm();
    }
}

/// Key of the mode that each worker followed at its last look.
static FOLLOWED: [AtomicU64; MAXIMUM_WORKERS] = [const { AtomicU64::new(0) }; MAXIMUM_WORKERS];

/// Returns a number that differs if the mode or the ceiling does.
fn key(outranked_by: Option<(&'static AtomicU64, Priority)>) -> u64 {
    outranked_by.map_or(0, |(_, ceiling)| u64::from(ceiling.number()) + 1)
}

/// Makes the worker look at the mode before its next poll, if the mode has changed. For the handler of user interrupts,
/// which the kernel enters when another process has changed it.
pub(crate) fn look_at_mode_if_changed() {
    let worker = local::current().index.get() % MAXIMUM_WORKERS;
    if FOLLOWED[worker].load(Ordering::Relaxed) != key(outranked_by()) {
        interrupt::attention(worker).store(1, Ordering::Relaxed);
    }
}

/// Returns the words to compare before each poll in strict mode: the global bitmap, and the ceiling.
fn outranked_by() -> Option<(&'static AtomicU64, Priority)> {
    let global = time::global_page()?;
    // SAFETY: the page stays mapped, and every word of it is atomic.
    let own = unsafe { PAGE.load(Ordering::Relaxed).as_ref() }?;
    let mode = mode_in_force(global.mode.load(Ordering::Relaxed), own.mode.load(Ordering::Relaxed));
    let ceiling = Priority::saturating(own.ceiling.load(Ordering::Relaxed));
    (mode == Mode::Strict).then_some((&global.ready, ceiling))
}

/// Returns the mode of global priority that the process's executor follows now.
pub fn mode() -> Mode {
    if outranked_by().is_some() { Mode::Strict } else { Mode::Relaxed }
}

/// Chooses how closely the process keeps to the global order of priorities: [`Mode::Relaxed`], from one tick or kernel
/// entry to the next, or [`Mode::Strict`], with a look before each poll. Holds for all workers from their next poll on,
/// for children that are started afterwards, and unless the system has one mode for all.
///
/// # Errors
///
/// None, except from a kernel without the call.
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

/// Adds workers, each with a stack of its own, that run the process's coroutines from now on. (The papers' name; see
/// [`workers`] for their number.)
///
/// A process has at most [`MAXIMUM_WORKERS`]. More workers than harts do no harm and do not help.
///
/// # Errors
///
/// `EAGAIN` if there would be too many, `ENOMEM`. Workers added before the error stay.
#[doc(alias("add_workers", "worker_threads", "Builder"))]
pub fn alloc_cpu(count: usize) -> Result<()> {
    for _ in 0..count {
        add_worker()?;
    }
    Ok(())
}

#[cfg(on_cops)]
fn add_worker() -> Result<()> {
    extern "C" fn enter(number: usize, _: usize) -> ! {
        work(number)
    }
    // One at a time, so that the kernel's numbers equal ours.
    static ADDING: crate::lock::Lock<()> = crate::lock::Lock::new(());
    let _adding = ADDING.lock();
    let number = WORKERS.load(Ordering::Relaxed);
    if number >= MAXIMUM_WORKERS {
        return Err(Errno::EAGAIN);
    }
    let local = local::Prepared::new(number)?;
    let stack = unix::memory::map(GUARD + STACK)?;
    // SAFETY: the mapping is new; nothing uses its first page.
    unsafe { unix::memory::protect(stack, GUARD, 0) }?;
    // SAFETY: `enter` does not return, the stack is the worker's for ever, and `tp` names the worker's own block.
    let created = unsafe { unix::worker::create(enter, stack.add(GUARD + STACK), number, local.thread_pointer()) };
    match created {
        Ok(_) => {
            local.leave();
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

/// No workers can be added on this machine.
#[cfg(not(on_cops))]
fn add_worker() -> Result<()> {
    if workers() >= MAXIMUM_WORKERS { Err(Errno::EAGAIN) } else { Err(Errno::ENOSYS) }
}

/// Counts the worker that the process starts with.
pub(crate) fn first_worker() {
    WORKERS.store(1, Ordering::Relaxed);
}

/// Returns the number of workers of the process.
#[doc(alias = "num_workers")]
pub fn workers() -> usize {
    WORKERS.load(Ordering::Relaxed)
}

/// Returns the executor, for operations without a function of their own here: counters, states.
#[doc(alias("Runtime", "Handle", "RuntimeMetrics"))]
pub fn executor() -> &'static Executor {
    &EXECUTOR
}

/// Makes a coroutine of the future, ready at once, with the priority of the running coroutine. Dropping the handle
/// detaches the coroutine. For many of them, see [`JoinSet`](crate::JoinSet) and [`scope`](crate::scope()).
///
/// # Panics
///
/// If memory is exhausted, or the process has 262,144 coroutines.
#[doc(alias("spawn_local", "LocalSet"))]
#[inline]
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    spawn_at(current_priority(), future)
}

/// Makes a coroutine with a given priority.
///
/// # Panics
///
/// If memory is exhausted, or the process has 262,144 coroutines.
#[doc(alias = "spawn")]
#[inline]
#[track_caller]
pub fn spawn_at<F>(priority: Priority, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    EXECUTOR.spawn_from(local::current().index.get(), priority, future)
}

/// Makes a coroutine with a name, which the trace ([`trace`](crate::trace)) and the list of await points (`where` in
/// the shell) show. In a trace one without a name is called by the place of its spawn.
///
/// ```no_run
/// # async fn serve(_: cops::net::TcpListener) {}
/// # fn example(listener: cops::net::TcpListener, number: usize) {
/// cops::spawn_named("server", serve(listener)).detach();
/// cops::spawn_named(format!("connection {number}"), async {}).detach();
/// # }
/// ```
///
/// # Panics
///
/// If memory is exhausted, or the process has 262,144 coroutines.
#[doc(alias("Builder", "name"))]
#[track_caller]
pub fn spawn_named<F>(name: impl Into<Cow<'static, str>>, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    spawn_named_at(current_priority(), name, future)
}

/// Makes a coroutine with a given priority and a name, as [`spawn_named`] does.
///
/// # Panics
///
/// If memory is exhausted, or the process has 262,144 coroutines.
#[track_caller]
pub fn spawn_named_at<F>(priority: Priority, name: impl Into<Cow<'static, str>>, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let name = Name::from(name.into());
    let for_trace = trace::is_on().then(|| name.clone());
    let handle = spawn_at(priority, Named::new(name, future));
    if let Some(name) = for_trace {
        trace::named(handle.cid().raw(), name.text());
    }
    handle
}

/// Returns the cid of the calling coroutine.
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
/// [`Stale`] if the coroutine has ended.
#[inline]
pub fn wake(cid: Cid) -> core::result::Result<(), Stale> {
    // Two branches that share nothing, so that a wake without a trace saves no register for one.
    if trace::is_on() { traced_wake(cid) } else { EXECUTOR.wake(cid) }
}

#[cold]
fn traced_wake(cid: Cid) -> core::result::Result<(), Stale> {
    trace::woken(cid.raw());
    EXECUTOR.wake(cid)
}

/// Changes a coroutine's own priority, in any state. While it holds a [`Mutex`](crate::sync::Mutex) with a more
/// important waiter, it keeps that waiter's priority.
///
/// # Errors
///
/// [`Stale`] if the coroutine has ended.
#[inline]
pub fn set_priority(cid: Cid, priority: Priority) -> core::result::Result<(), Stale> {
    crate::inheritance::set_own(cid, priority)
}

/// Sets the priority that the scheduler uses, whatever the coroutine was lent.
#[inline]
pub(crate) fn set_own_priority(cid: Cid, priority: Priority) -> core::result::Result<(), Stale> {
    EXECUTOR.set_priority(cid, priority)
}

/// Returns the current priority of a coroutine, lent or its own.
///
/// # Errors
///
/// [`Stale`] if the coroutine has ended.
pub fn priority(cid: Cid) -> core::result::Result<Priority, Stale> {
    EXECUTOR.priority(cid)
}

/// Returns the calling coroutine, if it is one and there is an executor.
pub(crate) fn current_or_none() -> Option<Cid> {
    if PAGE.load(Ordering::Relaxed).is_null() { None } else { EXECUTOR.current() }
}

/// Wakes a coroutine named by a completion; a stale cid is ignored.
#[inline]
pub(crate) fn wake_raw(cid: u64) {
    let _ = wake(Cid::from_raw(cid));
}

/// Wakes as [`wake_raw`] does, in the handler of user interrupts: it is not recorded in a trace, since the interrupted
/// code may be recording.
pub(crate) fn wake_raw_in_handler(cid: u64) {
    let _ = EXECUTOR.wake(Cid::from_raw(cid));
}

/// The vtable of the executor's own wakers; null before the first coroutine runs.
static OWN_VTABLE: core::sync::atomic::AtomicPtr<RawWakerVTable> =
    core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());

/// Records the vtable of the executor's wakers, from a coroutine that it polls directly.
pub(crate) fn learn_own_waker(waker: &Waker) {
    OWN_VTABLE.store(core::ptr::from_ref(waker.vtable()).cast_mut(), Ordering::Relaxed);
}

/// Returns whether the vtable of the executor's wakers is known: a coroutine has been polled.
pub(crate) fn knows_own_waker() -> bool {
    !OWN_VTABLE.load(Ordering::Relaxed).is_null()
}

/// Makes the executor on the developer's computer, and returns its waker of a coroutine, which need not exist.
#[cfg(test)]
pub(crate) fn waker_for_tests(cid: Cid) -> Waker {
    use abi_queue::ReadyWord;
    use abi_queue::pages::InterruptWord;
    static PAGE: ProcessPage = ProcessPage {
        ready: [const { ReadyWord::new() }; MAXIMUM_WORKERS],
        interrupts: [const { InterruptWord(AtomicU64::new(0), AtomicU64::new(0)) }; MAXIMUM_WORKERS],
        mode: AtomicU64::new(0),
        ceiling: AtomicU64::new(0),
        answers: AtomicU64::new(0),
        attention: [const { AtomicU64::new(0) }; MAXIMUM_WORKERS],
    };
    static MADE: std::sync::Once = std::sync::Once::new();
    MADE.call_once(|| initialise(Table::native(), &PAGE));
    let waker = EXECUTOR.waker(cid);
    learn_own_waker(&waker);
    waker
}

/// Returns the cid behind one of the executor's wakers; `None` for a combinator's waker.
#[inline]
pub(crate) fn cid_of(waker: &Waker) -> Option<u64> {
    let own = core::ptr::eq(waker.vtable(), OWN_VTABLE.load(Ordering::Relaxed));
    own.then(|| waker.data().addr() as u64)
}

/// Returns the priority of the running coroutine; the default outside of one.
#[inline]
pub fn current_priority() -> Priority {
    local::current().priority()
}

/// Returns whether another coroutine that is at least as important as the running one is ready in this worker's shard.
#[inline(always)]
pub(crate) fn has_company() -> bool {
    let word = local::current().word();
    let ready = word.0.load(Ordering::Relaxed);
    if ready == 0 {
        return false;
    }
    // One bit, or none outside of a poll: then there is no running coroutine to compare with.
    let running = word.1.load(Ordering::Relaxed);
    running != 0 && ready & (running | running.wrapping_sub(1)) != 0
}

/// Returns whether this worker has a coroutine to run after the current one.
pub(crate) fn has_something_ready() -> bool {
    local::current().word().0.load(Ordering::Relaxed) != 0
}

/// Returns whether a coroutine is ready that is more important than the one that this worker runs, and that it can run.
/// Coroutines that another worker has preempted can run there only.
pub(crate) fn has_more_important(worker: usize) -> bool {
    // SAFETY: the page stays mapped, and every word of it is atomic.
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

/// Answers to the panic handler's questions.
#[cfg(target_os = "none")]
pub(crate) static FOR_PANICS: unix::panic::Coroutines = unix::panic::Coroutines {
    current: || EXECUTOR.current().map(Cid::raw),
    write_name: |cid, writer| {
        crate::names::without_waiting(cid).map_or(Ok(()), |name| write!(writer, " {:?}", name.text()))
    },
    stack_top: || local::current().stack_top.get(),
};

/// Priority of coroutines made by [`coroutine_run`] without one.
static DEFAULT_PRIORITY: AtomicU64 = AtomicU64::new(Priority::DEFAULT.number() as u64);

/// Makes a coroutine with a priority, or with the default one if that is `None`, which does not depend on the caller.
/// (The papers' function, with their order of arguments; [`spawn_at`] has the priority first. Theirs also starts the
/// executor; here a process begins with one.)
///
/// # Panics
///
/// If memory is exhausted, or the process has 262,144 coroutines.
#[doc(alias = "spawn")]
#[inline]
#[track_caller]
pub fn coroutine_run<F>(future: F, priority: impl Into<Option<Priority>>) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    EXECUTOR.spawn(priority.into().unwrap_or_else(default_priority), future)
}

/// Returns the priority that [`coroutine_run`] gives: [`Priority::DEFAULT`] unless it was changed.
pub fn default_priority() -> Priority {
    Priority::saturating(DEFAULT_PRIORITY.load(Ordering::Relaxed))
}

/// Changes the priority that [`coroutine_run`] gives to coroutines from now on. [`spawn`] does not use it: its
/// coroutines have the caller's.
pub fn set_default_priority(priority: Priority) {
    DEFAULT_PRIORITY.store(priority.number().into(), Ordering::Relaxed);
}
