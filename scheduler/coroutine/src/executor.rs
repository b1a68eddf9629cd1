//! The executor as safe Rust.

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::panic::Location;
use core::pin::Pin;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};

use abi_queue::{MAXIMUM_WORKERS, Priority, ReadyWord};
use scheduler::{CHUNK_BYTES, Counters, Hooks, entry};

use crate::frame::{Frame, is_vtable_of, register, set_observed, vtable_of};
use crate::join::{After, Ready};
use crate::observer::{Observer, set_observer};
use crate::table::Table;
use crate::task::{Begins, Block};
use crate::trace::{Tracer, tracer};

/// Identifier of a coroutine of one executor. It is never reused, so that an old identifier is stale.
#[doc(alias("task id", "Id"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Cid(u64);

impl Cid {
    /// Makes an identifier from an unvalidated number. Functions answer [`Stale`] if it identifies no coroutine.
    pub const fn from_raw(raw: u64) -> Cid {
        Cid(raw)
    }

    /// Returns the number: generation in the upper half, index in the lower half. Never 0 for a coroutine.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// The interface between an executor and the system that it runs in.
///
/// The scheduler holds no lock when it calls one of these functions.
pub trait Platform: Sync + 'static {
    /// Returns the number of the calling worker; any number if the caller is not a worker.
    fn worker(&self) -> usize;

    /// Returns the calling worker; `None` if the caller is not a worker. Called only if [`sharing`](Self::sharing) is
    /// lazy.
    fn calling_worker(&self) -> Option<usize> {
        Some(self.worker())
    }

    /// Makes a worker call [`run`](Worker::run) again after it has returned [`Outcome::Idle`]. A notification may be
    /// early, late or spurious; one that arrives before the worker sleeps must keep it from sleeping.
    fn notify(&self, worker: usize);

    /// Takes completions and wakes their coroutines. Called when the completion counters of this worker differ.
    fn completions(&self, worker: usize) {
        let _ = worker;
    }

    /// Whether coroutines are suspended inside a poll ([`Executor::suspend`]), so that [`resume`](Self::resume) is
    /// needed.
    const RESUMES: bool = false;

    /// Continues a coroutine that was suspended inside a poll, on its own stack. Returns when the calling stack is used
    /// again.
    fn resume(&self, cid: Cid) {
        let _ = cid;
    }

    /// Called while a lock has been busy for long, so that its holder probably has no processor.
    fn relax(&self) {}

    /// Whether [`wake_affinity`](Self::wake_affinity) is called at each use of a waker.
    const HAS_AFFINITY: bool = false;

    /// Returns the worker to which a woken coroutine migrates: the calling worker, if it will soon look for ready
    /// coroutines. `None` leaves the coroutine to the worker on which it ran last.
    #[inline]
    fn wake_affinity(&self) -> Option<usize> {
        None
    }

    /// Called after a coroutine was woken and left to the worker on which it ran last, because
    /// [`wake_affinity`](Self::wake_affinity) returned `None`. An idle worker has been notified; only the platform can
    /// decide whether a busy one should stop for the coroutine.
    fn woken_at_home(&self, cid: Cid) {
        let _ = cid;
    }

    /// Returns the policy for notifying an idle worker of coroutines that a busy worker could run. Called once, by
    /// `initialise`.
    fn sharing(&self) -> Sharing {
        Sharing::Eager
    }
}

/// Words that a worker reads before each poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signals {
    /// Attention word: while it is not 0, [`Worker::run`] returns [`Outcome::Attention`].
    pub attention: Option<&'static AtomicU64>,
    /// Tail and head of the completion queue: if they differ, [`Platform::completions`] is called.
    pub completions: Option<(&'static AtomicU64, &'static AtomicU64)>,
}

pub use scheduler::{Outcome, Sharing, State};

/// The cid identifies no coroutine of this executor: it has exited, or never existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// The coroutine was cancelled and has no result.
#[doc(alias = "JoinError")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

/// The reason why an executor cannot be initialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialiseError {
    /// It was initialised before.
    Twice,
    /// The program has too many executors.
    TooMany,
}

/// The reason why a worker cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerError {
    /// There is no worker of this number, or it exists already.
    Taken,
    /// The program has too many workers.
    TooMany,
}

/// There is no memory for a coroutine. Contains the future.
pub struct SpawnError<F>(pub F);

impl<F> fmt::Debug for SpawnError<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SpawnError")
    }
}

/// Runs coroutines, most important first, on up to eight workers.
///
/// It is a static: `static EXECUTOR: Executor = Executor::new();`, then [`initialise`](Self::initialise) once, then a
/// [`worker`](Self::worker) for each stack that is to run coroutines.
///
/// # Panics
/// Every function but `new`, `set_mark`, `mark` and `initialise` panics if the executor is not initialised.
#[repr(C, align(128))]
pub struct Executor {
    table: UnsafeCell<MaybeUninit<Table>>,
    platform: UnsafeCell<MaybeUninit<PlatformFunctions>>,
    ready: UnsafeCell<Option<&'static [ReadyWord; MAXIMUM_WORKERS]>>,
    /// Index in `EXECUTORS`.
    number: UnsafeCell<usize>,
    /// [`EMPTY`], [`BUSY`] or [`INITIALISED`].
    // As a lock: taken with acquire, let go with release. A thread that sees INITIALISED sees the executor whole.
    phase: AtomicU32,
    /// One bit for each worker that exists.
    // Taken with acquire and given back with release: a worker finds the place as the last one has left it.
    workers: AtomicU32,
    /// See [`set_mark`](Executor::set_mark).
    mark: AtomicU32,
    core: UnsafeCell<MaybeUninit<scheduler::Executor>>,
}

/// Offset of the scheduler's executor in an [`Executor`], for debuggers.
pub const OFFSET_OF_SCHEDULER: usize = core::mem::offset_of!(Executor, core);

const EMPTY: u32 = 0;
const BUSY: u32 = 1;
const INITIALISED: u32 = 2;

// SAFETY: the cells are written once, by the thread that changes `phase` from EMPTY to BUSY, and read only after it is
// INITIALISED; the scheduler's executor is Sync.
unsafe impl Sync for Executor {}

/// The functions of the platform that the scheduler does not call itself.
#[derive(Clone, Copy)]
struct PlatformFunctions {
    platform: *const (),
    worker: unsafe fn(*const ()) -> usize,
    wake_affinity: Option<unsafe fn(*const ()) -> Option<usize>>,
    woken_at_home: unsafe fn(*const (), u64),
}

impl PlatformFunctions {
    /// Returns the functions of a platform.
    fn of<P: Platform>(platform: &'static P) -> PlatformFunctions {
        unsafe fn worker<P: Platform>(platform: *const ()) -> usize {
            // SAFETY: this is the platform of these functions.
            unsafe { (*platform.cast::<P>()).worker() }
        }
        unsafe fn wake_affinity<P: Platform>(platform: *const ()) -> Option<usize> {
            // SAFETY: as above.
            unsafe { (*platform.cast::<P>()).wake_affinity() }
        }
        unsafe fn woken_at_home<P: Platform>(platform: *const (), cid: u64) {
            // SAFETY: as above.
            unsafe { (*platform.cast::<P>()).woken_at_home(Cid(cid)) }
        }

        PlatformFunctions {
            platform: core::ptr::from_ref(platform).cast(),
            worker: worker::<P>,
            wake_affinity: if P::HAS_AFFINITY { Some(wake_affinity::<P>) } else { None },
            woken_at_home: woken_at_home::<P>,
        }
    }
}

/// Returns the functions by which the scheduler calls the platform.
fn hooks<P: Platform>(platform: &'static P) -> Hooks {
    unsafe extern "C" fn notify<P: Platform>(platform: *mut c_void, worker: u32) {
        // SAFETY: this is the platform of the context.
        unsafe { (*platform.cast::<P>()).notify(worker as usize) }
    }
    unsafe extern "C" fn completions<P: Platform>(platform: *mut c_void, worker: u32) {
        // SAFETY: as above.
        unsafe { (*platform.cast::<P>()).completions(worker as usize) }
    }
    unsafe extern "C" fn resume<P: Platform>(platform: *mut c_void, header: *mut scheduler::Header) {
        // SAFETY: as above, and the header is that of a spawned coroutine.
        unsafe { (*platform.cast::<P>()).resume(Cid((*header).cid())) }
    }
    unsafe extern "C" fn relax<P: Platform>(platform: *mut c_void) {
        // SAFETY: as above.
        unsafe { (*platform.cast::<P>()).relax() }
    }
    unsafe extern "C" fn calling<P: Platform>(platform: *mut c_void) -> u32 {
        // SAFETY: as above.
        let worker = unsafe { (*platform.cast::<P>()).calling_worker() };
        worker.and_then(|worker| u32::try_from(worker).ok()).unwrap_or(u32::MAX)
    }

    Hooks {
        context: core::ptr::from_ref(platform).cast_mut().cast(),
        notify: Some(notify::<P>),
        completions: Some(completions::<P>),
        resume: if P::RESUMES { Some(resume::<P>) } else { None },
        relax: Some(relax::<P>),
        worker: Some(calling::<P>),
        sharing: platform.sharing(),
    }
}

impl Executor {
    /// Creates an executor, which must be initialised before it is used.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Executor {
        Executor {
            table: UnsafeCell::new(MaybeUninit::uninit()),
            platform: UnsafeCell::new(MaybeUninit::uninit()),
            ready: UnsafeCell::new(None),
            number: UnsafeCell::new(0),
            phase: AtomicU32::new(EMPTY),
            workers: AtomicU32::new(0),
            mark: AtomicU32::new(0),
            core: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Sets a number that means nothing to the executor, before it is initialised or afterwards. It lies beside the
    /// executor's own words: a program that asks for it before each wake needs no further line of the cache.
    pub fn set_mark(&self, mark: u32) {
        self.mark.store(mark, Ordering::Relaxed);
    }

    /// Returns the number of the last [`set_mark`](Self::set_mark); 0 before.
    #[inline(always)]
    pub fn mark(&self) -> u32 {
        self.mark.load(Ordering::Relaxed)
    }

    /// Makes the executor ready for use. It publishes the priorities of its ready coroutines in `ready`: in a process,
    /// these words are in the process page. They must not be given to two executors.
    ///
    /// # Errors
    /// [`InitialiseError`]; the executor is unchanged.
    pub fn initialise<P: Platform>(
        &'static self,
        table: Table,
        ready: &'static [ReadyWord; MAXIMUM_WORKERS],
        platform: &'static P,
    ) -> Result<(), InitialiseError> {
        if self.phase.compare_exchange(EMPTY, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Err(InitialiseError::Twice);
        }
        let hooks = hooks(platform);
        // SAFETY: BUSY gives this thread exclusive access to the cells. The executor is static, so it neither moves nor
        // ends, and neither do the ready words, which the scheduler writes only through atomics.
        unsafe {
            (*self.table.get()).write(table);
            (*self.platform.get()).write(PlatformFunctions::of(platform));
            *self.ready.get() = Some(ready);
            (table.executor_init)((*self.core.get()).as_mut_ptr(), ready, &hooks);
        }
        let Some(number) = register(self) else {
            self.phase.store(EMPTY, Ordering::Release);
            return Err(InitialiseError::TooMany);
        };
        // SAFETY: as above.
        unsafe { *self.number.get() = number };
        // Release: a thread that sees INITIALISED sees all writes above.
        self.phase.store(INITIALISED, Ordering::Release);
        Ok(())
    }

    /// Makes a worker. A number can be used again after the worker is dropped.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn worker(&'static self, number: usize, signals: Signals) -> Result<Worker, WorkerError> {
        let table = self.table();
        if number >= MAXIMUM_WORKERS || self.workers.fetch_or(1 << number, Ordering::Acquire) & 1 << number != 0 {
            return Err(WorkerError::Taken);
        }
        // SAFETY: initialised, as `table` has checked.
        let Some(frame) = Frame::claim(unsafe { *self.number.get() }) else {
            self.workers.fetch_and(!(1 << number), Ordering::Release);
            return Err(WorkerError::TooMany);
        };
        let pointer = |word: Option<&'static AtomicU64>| word.map_or(core::ptr::null(), core::ptr::from_ref);
        let signals = scheduler::Signals {
            attention: pointer(signals.attention).cast(),
            completion_tail: pointer(signals.completions.map(|(tail, _)| tail)).cast(),
            completion_head: pointer(signals.completions.map(|(_, head)| head)).cast(),
        };
        // SAFETY: the words are static, and the worker does not run yet.
        unsafe { (table.add_worker)(self.core(), number as u32, &signals) };
        Ok(Worker { executor: self, number, frame, is_first: true, not_shared: PhantomData })
    }

    /// Makes another handle to a worker, for another of its stacks, on which it runs while a poll on the previous stack
    /// is suspended.
    ///
    /// # Errors
    /// [`WorkerError::TooMany`].
    ///
    /// # Safety
    /// There is a worker of this number. Only one of its handles runs at a time; every other is in a run that waits in
    /// a suspended poll or in [`Platform::resume`], or in no run.
    pub unsafe fn worker_on_another_stack(&'static self, number: usize) -> Result<Worker, WorkerError> {
        self.table();
        // SAFETY: initialised, as `table` has checked.
        let frame = Frame::claim(unsafe { *self.number.get() }).ok_or(WorkerError::TooMany)?;
        Ok(Worker { executor: self, number, frame, is_first: false, not_shared: PhantomData })
    }

    /// Suspends the coroutine that a worker polls at this moment, which keeps its stack; returns `None` outside of a
    /// poll.
    ///
    /// # Safety
    /// The caller is that worker, in an interruption of the poll itself and not of the executor's code, and continues
    /// the poll only when [`Platform::resume`] is called for it.
    pub unsafe fn suspend(&'static self, worker: usize) -> Option<Cid> {
        // SAFETY: initialised, as `table` has checked; the rest is the caller's promise.
        match unsafe { (self.table().suspend)(self.core(), worker as u32) } {
            0 => None,
            cid => Some(Cid(cid)),
        }
    }

    /// Makes a suspended coroutine ready: its worker will call [`Platform::resume`] to continue it.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn resume(&'static self, cid: Cid) -> Result<(), Stale> {
        // SAFETY: initialised, as `table` has checked.
        status(unsafe { (self.table().resume)(self.core(), cid.0) })
    }

    /// Spawns a coroutine for the future, ready at once. Dropping the handle detaches the coroutine.
    ///
    /// A spawn makes one allocation. When the scheduler's table of slots is full, a page is allocated for it.
    ///
    /// # Panics
    /// As [`alloc::boxed::Box::new`], if there is no memory, or the executor has all the coroutines it can have
    /// ([`scheduler::CHUNKS`] times [`scheduler::SLOTS_IN_CHUNK`]). See [`try_spawn`](Self::try_spawn).
    #[inline]
    #[track_caller]
    pub fn spawn<F>(&'static self, priority: Priority, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self.try_spawn(priority, 0, future) {
            Ok(handle) => handle,
            Err(_) => alloc::alloc::handle_alloc_error(Layout::new::<F>()),
        }
    }

    /// Spawns as [`spawn`](Self::spawn) does, with a kind, which the scheduler stores and does not interpret.
    ///
    /// # Errors
    /// [`SpawnError`], with the future, if there is no memory or the executor has all the coroutines it can have.
    #[inline]
    #[track_caller]
    pub fn try_spawn<F>(
        &'static self,
        priority: Priority,
        kind: u16,
        future: F,
    ) -> Result<JoinHandle<F::Output>, SpawnError<F>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.spawn_as(|| self.calling_worker(), priority, kind, Begins::Ready, future)
    }

    /// As [`try_spawn`](Self::try_spawn), but the coroutine begins blocked: it is polled for the first time when it is
    /// woken. For a coroutine whose first poll would only register its [waker](Self::waker): the caller registers it
    /// instead.
    ///
    /// # Errors
    /// As there.
    #[inline]
    #[track_caller]
    pub fn try_spawn_blocked<F>(
        &'static self,
        priority: Priority,
        kind: u16,
        future: F,
    ) -> Result<JoinHandle<F::Output>, SpawnError<F>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.spawn_as(|| self.calling_worker(), priority, kind, Begins::Blocked, future)
    }

    /// Spawns as [`spawn`](Self::spawn) does, for a caller that knows which worker it is.
    ///
    /// # Panics
    /// As there.
    #[inline]
    #[track_caller]
    pub fn spawn_from<F>(&'static self, worker: usize, priority: Priority, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self.spawn_as(|| worker, priority, 0, Begins::Ready, future) {
            Ok(handle) => handle,
            Err(_) => alloc::alloc::handle_alloc_error(Layout::new::<F>()),
        }
    }

    #[inline]
    #[track_caller]
    fn spawn_as<F>(
        &'static self,
        worker: impl FnOnce() -> usize,
        priority: Priority,
        kind: u16,
        begins: Begins,
        future: F,
    ) -> Result<JoinHandle<F::Output>, SpawnError<F>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.table();
        let block = Block::allocate(future, kind, priority, begins).map_err(SpawnError)?;
        let worker = worker();
        // Only the block is common to the two paths, so that without a tracer the caller's place is in no register, and
        // the future never in memory outside of the block.
        // SAFETY: initialised, as `table` has checked, and the block is fresh.
        let cid = unsafe {
            match tracer() {
                None => self.enter(block, worker),
                Some(tracer) => self.enter_traced::<F>(tracer, Location::caller(), block, worker),
            }
        };
        match cid {
            // SAFETY: the block was not spawned.
            None => Err(SpawnError(unsafe { Block::withdraw(block) })),
            Some(cid) => Ok(JoinHandle { block: Some(block), cid, executor: self, output: PhantomData }),
        }
    }

    /// Spawns a coroutine whose polls tell the tracer.
    ///
    /// # Safety
    /// As for [`enter`](Self::enter); the block was allocated for `F`.
    #[cold]
    #[inline(never)]
    unsafe fn enter_traced<F: Future>(
        &'static self,
        tracer: &Tracer,
        place: &'static Location<'static>,
        block: NonNull<Block>,
        worker: usize,
    ) -> Option<Cid> {
        // SAFETY: the caller's promise.
        let cid = unsafe {
            Block::trace::<F>(block);
            self.enter(block, worker)
        }?;
        (tracer.spawned)(cid.0, place);
        Some(cid)
    }

    /// Spawns the coroutine of a block, from this worker; `None` if there is no memory, or the executor is full.
    ///
    /// # Safety
    /// The executor is initialised; the block is fresh, and only its finish function frees it.
    #[inline(always)]
    unsafe fn enter(&'static self, block: NonNull<Block>, worker: usize) -> Option<Cid> {
        loop {
            // SAFETY: the caller's promise.
            let cid = unsafe {
                let table = (*self.table.get()).assume_init_ref();
                (table.spawn)(self.core(), Block::header(block), worker as u32)
            };
            if cid != 0 {
                return Some(Cid(cid));
            }
            if !self.add_slots(worker) {
                return None;
            }
        }
    }

    /// Returns the worker that calls, by the platform.
    #[inline]
    fn calling_worker(&'static self) -> usize {
        self.table();
        // SAFETY: initialised, as `table` has checked.
        unsafe {
            let platform = (*self.platform.get()).assume_init_ref();
            (platform.worker)(platform.platform)
        }
    }

    #[cold]
    fn add_slots(&'static self, hint: usize) -> bool {
        // The scheduler writes the whole page, but an allocator may have zeroed pages ready.
        let Ok(layout) = Layout::from_size_align(CHUNK_BYTES, 4096) else { return false };
        // SAFETY: not of size 0.
        let page = unsafe { alloc_zeroed(layout) };
        // SAFETY: a fresh page, which is never freed once the scheduler has it.
        if !page.is_null() && unsafe { (self.table().add_slots)(self.core(), page.cast(), hint as u32) } == entry::OK {
            return true;
        }
        if !page.is_null() {
            // SAFETY: the scheduler refused it.
            unsafe { dealloc(page, layout) };
        }
        false
    }

    /// Makes a blocked coroutine ready. A ready or running coroutine will be polled once more.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn wake(&'static self, cid: Cid) -> Result<(), Stale> {
        // SAFETY: initialised, as `table` has checked.
        status(unsafe { (self.table().wake)(self.core(), cid.0) })
    }

    /// Cancels a coroutine: a worker drops its future, never during a poll.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn cancel(&'static self, cid: Cid) -> Result<(), Stale> {
        // SAFETY: initialised, as `table` has checked.
        status(unsafe { (self.table().cancel)(self.core(), cid.0) })
    }

    /// Changes a coroutine's priority, in any state. For a running coroutine the change takes effect when it is next
    /// made ready.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn set_priority(&'static self, cid: Cid, priority: Priority) -> Result<(), Stale> {
        // SAFETY: initialised, as `table` has checked.
        status(unsafe { (self.table().set_priority)(self.core(), cid.0, priority.number().into()) })
    }

    /// Returns a coroutine's priority.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn priority(&'static self, cid: Cid) -> Result<Priority, Stale> {
        // SAFETY: initialised, as `table` has checked.
        let priority = unsafe { (self.table().priority)(self.core(), cid.0) };
        u8::try_from(priority).ok().and_then(Priority::new).ok_or(Stale)
    }

    /// Returns the kind that a coroutine was spawned with.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn kind(&'static self, cid: Cid) -> Result<u16, Stale> {
        // SAFETY: initialised, as `table` has checked.
        let kind = unsafe { (self.table().kind)(self.core(), cid.0) };
        u16::try_from(kind).map_err(|_| Stale)
    }

    /// Returns the state of a coroutine at some moment during the call.
    ///
    /// # Errors
    /// [`Stale`]: it has exited, or never existed.
    pub fn state(&'static self, cid: Cid) -> Result<State, Stale> {
        // SAFETY: initialised, as `table` has checked.
        let state = unsafe { (self.table().state)(self.core(), cid.0) };
        [State::Ready, State::Running, State::Blocked, State::Suspended]
            .into_iter()
            .find(|&known| known as isize == state)
            .ok_or(Stale)
    }

    /// Returns the calling coroutine; `None` outside of a poll.
    pub fn current(&'static self) -> Option<Cid> {
        let worker = self.calling_worker();
        // SAFETY: initialised, as `calling_worker` has checked.
        let cid = unsafe { (self.table().current)(self.core(), worker as u32) };
        if cid == 0 { None } else { Some(Cid(cid)) }
    }

    /// Returns the coroutine that a waker wakes; `None` if the waker is not this executor's, for example because a
    /// combinator made it. Storing the cid instead of the waker takes half the memory.
    #[inline]
    pub fn cid_of(&'static self, waker: &Waker) -> Option<Cid> {
        self.table();
        // SAFETY: initialised, as `table` has checked.
        let ours = is_vtable_of(unsafe { *self.number.get() }, waker.vtable());
        if ours { Some(Cid(waker.data().addr() as u64)) } else { None }
    }

    /// Returns the waker of a coroutine, as in the context of its polls. For a coroutine that has exited it has no
    /// effect.
    #[inline]
    pub fn waker(&'static self, cid: Cid) -> Waker {
        self.table();
        // SAFETY: initialised, as `table` has checked.
        let vtable = vtable_of(unsafe { *self.number.get() });
        // SAFETY: the functions of this vtable take any number for a cid, and look for its coroutine each time.
        unsafe { Waker::new(core::ptr::without_provenance(cid.0 as usize), vtable) }
    }

    /// Returns all coroutines that exist, in no particular order. Those that come or go meanwhile may be missing.
    pub fn coroutines(&'static self) -> impl Iterator<Item = Cid> {
        let table = self.table();
        // SAFETY: initialised, as `table` has checked.
        let cids = (0..).map(move |index| unsafe { (table.cid_at)(self.core(), index) });
        cids.take_while(|cid| *cid != entry::NO_SLOT).filter(|cid| *cid != 0).map(Cid)
    }

    /// Begins to report where coroutines wait, to this observer, or ends it. Only coroutines that are polled meanwhile
    /// report: [`wake`](Self::wake) those of interest.
    pub fn observe(&'static self, observer: Option<&'static Observer>) {
        self.table();
        observer.into_iter().for_each(set_observer);
        // SAFETY: initialised, as `table` has checked.
        set_observed(unsafe { *self.number.get() }, observer.is_some());
    }

    /// Returns the priorities with ready coroutines, one bit each, over all workers: only a hint, since it may be stale
    /// at once.
    pub fn ready(&'static self) -> u64 {
        self.table();
        // SAFETY: initialised.
        let ready = unsafe { *self.ready.get() };
        ready.map_or(0, |ready| ready.iter().fold(0, |all, word| all | word.0.load(Ordering::Relaxed)))
    }

    /// Returns the counters of a worker's shard.
    pub fn counters(&'static self, worker: usize) -> Counters {
        let mut counters = Counters::default();
        // SAFETY: initialised, as `table` has checked.
        unsafe { (self.table().counters)(self.core(), worker as u32, &mut counters) };
        counters
    }

    /// Wakes a coroutine from a waker, with the platform's affinity.
    ///
    /// # Safety
    /// The executor is initialised.
    #[inline(always)]
    pub(crate) unsafe fn wake_from_waker(&'static self, cid: u64) {
        // SAFETY: initialised. A stale cid is no error here: its coroutine has ended.
        unsafe {
            let table = (*self.table.get()).assume_init_ref();
            let platform = (*self.platform.get()).assume_init_ref();
            match platform.wake_affinity {
                Some(wake_affinity) => match wake_affinity(platform.platform) {
                    Some(worker) => {
                        (table.wake_here)(self.core(), cid, worker as u32);
                    }
                    None => {
                        (table.wake)(self.core(), cid);
                        (platform.woken_at_home)(platform.platform, cid);
                    }
                },
                None => {
                    (table.wake)(self.core(), cid);
                }
            }
        }
    }

    /// Returns the scheduler's functions. Panics if the executor is not initialised.
    #[inline(always)]
    fn table(&'static self) -> &'static Table {
        // Acquire: pairs with the end of `initialise`.
        if self.phase.load(Ordering::Acquire) != INITIALISED {
            not_initialised();
        }
        // SAFETY: written before the phase.
        unsafe { (*self.table.get()).assume_init_ref() }
    }

    fn core(&self) -> *const scheduler::Executor {
        self.core.get().cast()
    }
}

#[cold]
fn not_initialised() -> ! {
    panic!("an executor was used before it was initialised")
}

fn status(status: isize) -> Result<(), Stale> {
    if status == entry::OK { Ok(()) } else { Err(Stale) }
}

/// The right to run an executor's coroutines as one of its workers. Dropping it leaves the coroutines in its shard to
/// the other workers.
pub struct Worker {
    executor: &'static Executor,
    number: usize,
    frame: &'static Frame,
    is_first: bool,
    /// Makes the worker `Send` but not `Sync`.
    not_shared: PhantomData<core::cell::Cell<()>>,
}

impl Worker {
    /// Returns the number of the worker.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Polls ready coroutines, most important first, until none is ready ([`Outcome::Idle`]: the next wake calls
    /// [`Platform::notify`]) or the attention word is set ([`Outcome::Attention`]).
    pub fn run(&mut self) -> Outcome {
        // SAFETY: the executor is initialised; `&mut self` of the only worker of this number excludes another run of
        // it.
        outcome(unsafe { (self.executor.table().run)(self.executor.core(), self.number as u32, self.frame()) })
    }

    /// Polls at most one coroutine ([`Outcome::Ran`]); otherwise as [`run`](Self::run).
    pub fn run_one(&mut self) -> Outcome {
        // SAFETY: as in `run`.
        outcome(unsafe { (self.executor.table().run_one)(self.executor.core(), self.number as u32, self.frame()) })
    }

    /// Polls as [`run`](Self::run) does, but returns [`Outcome::Outranked`] when the bitmap `elsewhere` has a priority
    /// that is more important than every coroutine that is ready here, of which none counts for more than `ceiling`.
    /// The first poll is made in any case, so that a worker that was outranked and chosen again makes progress.
    pub fn run_strictly(&mut self, elsewhere: &'static AtomicU64, ceiling: Priority) -> Outcome {
        let run = self.executor.table().run_strictly;
        let elsewhere: *const AtomicU64 = elsewhere;
        // SAFETY: as in `run`, and the bitmap is static.
        outcome(unsafe {
            run(self.executor.core(), self.number as u32, self.frame(), elsewhere.cast(), ceiling.number().into())
        })
    }

    fn frame(&self) -> *mut c_void {
        core::ptr::from_ref(self.frame).cast_mut().cast()
    }
}

fn outcome(outcome: u32) -> Outcome {
    match outcome {
        0 => Outcome::Idle,
        1 => Outcome::Attention,
        3 => Outcome::Outranked,
        _ => Outcome::Ran,
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.frame.release();
        if !self.is_first {
            return;
        }
        // SAFETY: the executor is initialised, and the worker does not run.
        unsafe { (self.executor.table().remove_worker)(self.executor.core(), self.number as u32) };
        self.executor.workers.fetch_and(!(1 << self.number), Ordering::Release);
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Worker").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A future that waits for the end of a coroutine and returns its result. Dropping it detaches the coroutine, which
/// continues.
///
/// # Cancellation
/// Dropping it while it is awaited detaches the coroutine too.
#[must_use = "dropping a handle detaches the coroutine; say so with `detach`"]
pub struct JoinHandle<T> {
    /// `None` after the result was taken.
    block: Option<NonNull<Block>>,
    cid: Cid,
    executor: &'static Executor,
    output: PhantomData<T>,
}

// SAFETY: the data shared with the executor are protected by the join state, and the output may be sent.
unsafe impl<T: Send> Send for JoinHandle<T> {}
// SAFETY: `&JoinHandle` gives no access to the output.
unsafe impl<T: Send> Sync for JoinHandle<T> {}
impl<T> Unpin for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// Returns the coroutine's cid.
    pub fn cid(&self) -> Cid {
        self.cid
    }

    /// Cancels the coroutine. The handle still returns the result if the coroutine had finished first, else
    /// [`Cancelled`].
    #[doc(alias = "abort")]
    pub fn cancel(&self) {
        // A stale cid means that the coroutine has ended already, so that no coroutine is left to cancel.
        let _ = self.executor.cancel(self.cid);
    }

    /// Detaches the coroutine, which continues.
    pub fn detach(self) {}

    /// Returns whether the coroutine has ended.
    pub fn is_finished(&self) -> bool {
        // SAFETY: the handle owns a share of the block while it has the pointer.
        self.block.is_none_or(|block| unsafe { (*block.as_ptr()).join.is_complete() })
    }

    /// Gives up the handle's share of the block.
    fn leave(&mut self, block: NonNull<Block>, taken: bool) {
        self.block = None;
        // SAFETY: the handle owns a share of the block, which it gives up here.
        unsafe {
            let after: After = (*block.as_ptr()).join.leave(taken);
            Block::after(block, after);
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Cancelled>;

    /// # Panics
    /// If it is polled again after it has returned its result.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let block = self.block.expect("a join handle was polled after it had given its result");
        // SAFETY: the handle owns a share of the block.
        match unsafe { (*block.as_ptr()).join.poll(context.waker()) } {
            Ready::Pending => Poll::Pending,
            Ready::Cancelled => {
                self.leave(block, false);
                Poll::Ready(Err(Cancelled))
            }
            Ready::Output => {
                // SAFETY: according to the join state the output exists and belongs to the handle, which then gives up
                // the block.
                let output = unsafe { Block::take_output(block) };
                self.leave(block, true);
                Poll::Ready(Ok(output))
            }
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(block) = self.block {
            self.leave(block, false);
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("JoinHandle").field(&self.cid).finish()
    }
}
