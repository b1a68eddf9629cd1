//! Asynchronous system calls: a trap that returns at once, or a request in a ring, and a completion if the call has to
//! wait.
//!
//! # Path of a call
//!
//! An [`Operation`] traps when it is first polled. Most calls can be done at once and end there: nothing was allocated,
//! queued or locked. Only if the kernel answers *will be posted* does the call occupy a *record*, where its completion
//! finds the waker, and the coroutine waits. The executor looks at the completion ring before each take and hands the
//! completions to the records ([`drain`]).
//!
//! The kernel needs the token with the call, before it is known whether a record is needed. So each worker keeps one
//! *spare* record whose token it passes with every call, and replaces it only when the kernel kept it.
//!
//! That is the direct way, the default. After [`set_way`] calls may go through the worker's request ring instead, with
//! the same token; such a call always occupies the record (the module `submission` says when and why).
//!
//! # Dropping
//!
//! A future that is dropped while its call is in flight asks the kernel to cancel the call and leaves its buffer in
//! the record. The buffer stays there until the completion says that the kernel has let go of it; then it is freed. If
//! the call had succeeded in the meantime its effect is not undone, except that a descriptor which no future will
//! receive is closed.
//!
//! # A record's states
//!
//! ```text
//!              future polled            kernel posts               future polled
//!   waiting ------------------> own ------------------> done ------------------------> free (next generation)
//!     |  |                    foreign                    ^                               ^
//!     |  |                       |                       |                               |
//!     |  +-----------------------|-----------------------+                               |
//!     |          kernel posts    |                                                       |
//!     +--------------------------+---> abandoned ----------------------------------------+
//!                 future dropped                      kernel posts
//! ```
//!
//! *Own* and *foreign* tell the waker with which the future was polled. Nearly always it is the executor's, which is a
//! cid; then only the cid is kept, and waking it is allowed anywhere, even in an interrupt handler. The waker of a
//! combinator may run anything, including allocation, so it is kept in an `AtomicWaker` and woken by the executor only.
//!
//! Every change of the state is one read-modify-write, so the changes have one order. The tempting wrong way is to
//! store the cid and then only *load* the state: the completion could come between the two without either side seeing
//! the other.
//!
//! `Meeting` has the three words of these changes, with a method for each, and room for `has_waker`. Access to the
//! fields: the *drainer* is the code that takes completions, the *releaser* the code that frees the record:
//!
//! * `state`: all: the future (to own, foreign, abandoned), the drainer (to done), the releaser (to waiting).
//! * `result`: the drainer, before `done` (release); the future after it (acquire).
//! * `cid`: the future before `own` (release, or before it publishes the request); the drainer after it (acquire).
//! * `waker`: future and drainer; an `AtomicWaker` orders them.
//! * `has_waker`: the future.
//! * `abandoned`: the future before `abandoned` (release); the drainer after it (acquire).
//! * `token`: the releaser, before the record is offered again.
//! * `next`: the owner of the free list that holds the record.
//!
//! A drainer that has made a record done may find it freed and in use again when it comes to waking. Then it wakes the
//! new user, a spurious wake-up; the old one has its result.

use core::cell::{Cell, UnsafeCell};
use core::future::Future;
use core::mem::MaybeUninit;
use core::pin::Pin;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll};

use abi_queue::Priority;
use abi_queue::{CompletionHeader, completion};
use abi_unix::errno::decode;
use abi_unix::{Errno, SystemCall, WILL_BE_POSTED};
use alloc::boxed::Box;
use alloc::vec::Vec;
use atomic_waker::AtomicWaker;
use ring::Completions;

use crate::executor;
use crate::local;
use crate::lock::{Lock, Section};
use crate::meeting::{Awaiting, Meeting};
use crate::observing;
use crate::room::ROOM;
use crate::submission;
use unix::Result;

pub use crate::submission::{Way, set_way, way};

/// Number of records that are allocated at a time.
const CHUNK: usize = 128;
/// Most chunks: records for over a million calls in flight.
const CHUNKS: usize = 8192;
/// Free records that a worker keeps before it gives half of them to the others.
const LOCAL_RECORDS: u32 = 128;

/// The remains of an abandoned call: in a box, since there is a record for each call in flight, and few are abandoned.
struct Abandoned {
    payload: *mut (),
    /// Drops the payload and undoes the call's success.
    release: unsafe fn(*mut (), usize),
}

/// The meeting point of a call's future and its completion.
struct Record {
    token: AtomicU64,
    meeting: Meeting,
    waker: AtomicWaker,
    abandoned: UnsafeCell<MaybeUninit<Abandoned>>,
    next: Cell<*const Record>,
}

// A server has one for each connection that waits, and a chunk of them fills a size class of the heap.
const _: () = assert!(size_of::<Record>() <= 80);

// SAFETY: the list in the module docs says which code may use the cells when; `state` orders them.
unsafe impl Sync for Record {}

impl Record {
    fn new(index: usize) -> Record {
        Record {
            token: AtomicU64::new(index as u64 | 1 << 32),
            meeting: Meeting::new(),
            waker: AtomicWaker::new(),
            abandoned: UnsafeCell::new(MaybeUninit::uninit()),
            next: Cell::new(ptr::null()),
        }
    }
}

/// A worker's records.
pub struct LocalCalls {
    /// The record that is offered with the next call; null only before the first.
    spare: Cell<*const Record>,
    /// Token of the spare record; 0 if there is none.
    spare_token: Cell<u64>,
    /// Free records, and their number.
    free: Cell<*const Record>,
    count: Cell<u32>,
}

impl LocalCalls {
    /// Creates the state of a worker without records.
    pub const fn new() -> LocalCalls {
        LocalCalls {
            spare: Cell::new(ptr::null()),
            spare_token: Cell::new(0),
            free: Cell::new(ptr::null()),
            count: Cell::new(0),
        }
    }

    #[inline(always)]
    fn has_spare(&self) -> bool {
        self.spare_token.get() != 0
    }

    /// Returns the spare record and its token. The record is this worker's alone until the kernel has the token.
    #[inline(always)]
    fn spare(&self) -> core::result::Result<(&'static Record, u64), Errno> {
        if self.spare_token.get() == 0 {
            self.refill()?;
        }
        // SAFETY: it is not null when there is a token, and records are never freed.
        Ok((unsafe { &*self.spare.get() }, self.spare_token.get()))
    }

    /// Marks the spare record as in use, because the kernel has its token, and returns it.
    #[inline(always)]
    fn keep(&self) -> &'static Record {
        self.spare_token.set(0);
        // SAFETY: the caller had a token, so there is a record, and records are never freed.
        unsafe { &*self.spare.get() }
    }

    /// Takes a spare record from the free ones.
    #[inline]
    fn refill(&self) -> core::result::Result<(), Errno> {
        if self.free.get().is_null() {
            POOL.refill(self)?;
        }
        // SAFETY: `free` is not null now, and records in this list are this worker's.
        let record = unsafe { &*self.free.get() };
        self.free.set(record.next.get());
        self.count.set(self.count.get() - 1);
        self.spare.set(record);
        // Relaxed: the token was written before the record came to this list.
        self.spare_token.set(record.token.load(Ordering::Relaxed));
        Ok(())
    }
}

impl Default for LocalCalls {
    fn default() -> Self {
        LocalCalls::new()
    }
}

/// All records.
struct RecordPool {
    chunks: [AtomicPtr<[Record; CHUNK]>; CHUNKS],
    shared: Lock<FreeRecords>,
}

/// The part of the pool behind the lock.
struct FreeRecords {
    /// Free records in one list. Lists of [`LOCAL_RECORDS`] / 2 each would be quicker to hand over; one list is enough,
    /// because handing over is rare.
    free: *const Record,
    chunks: usize,
}

// SAFETY: the list's records belong to the pool alone.
unsafe impl Send for FreeRecords {}

static POOL: RecordPool = RecordPool {
    chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
    shared: Lock::new(FreeRecords { free: ptr::null(), chunks: 0 }),
};

impl RecordPool {
    /// Gives the worker free records: some that other workers gave back, or new ones.
    #[cold]
    #[inline(never)]
    fn refill(&self, calls: &LocalCalls) -> core::result::Result<(), Errno> {
        let mut shared = self.shared.lock();
        for _ in 0..LOCAL_RECORDS / 2 {
            let record = shared.free;
            if record.is_null() {
                break;
            }
            // SAFETY: records are never freed, and those in this list are the pool's.
            shared.free = unsafe { (*record).next.get() };
            calls.push(record);
        }
        if !calls.free.get().is_null() {
            return Ok(());
        }
        let chunk = shared.chunks;
        if chunk == CHUNKS {
            return Err(Errno::ENOMEM);
        }
        let mut records = Box::<[Record; CHUNK]>::new_uninit();
        let first = records.as_mut_ptr().cast::<Record>();
        for index in 0..CHUNK {
            // SAFETY: the box has room for that many records.
            unsafe { first.add(index).write(Record::new(chunk * CHUNK + index)) };
        }
        // SAFETY: every record was written.
        let records = Box::into_raw(unsafe { records.assume_init() });
        // Release: a worker that finds a token of this chunk sees the records.
        self.chunks[chunk].store(records, Ordering::Release);
        shared.chunks += 1;
        drop(shared);
        for index in (0..CHUNK).rev() {
            // SAFETY: the chunk has that many records and is never freed.
            calls.push(unsafe { records.cast::<Record>().add(index) });
        }
        Ok(())
    }

    /// Returns the record of a token, unless the token is of an earlier generation.
    fn find(&self, token: u64) -> Option<&'static Record> {
        let index = token as u32 as usize;
        let records = self.chunks.get(index / CHUNK)?.load(Ordering::Acquire);
        if records.is_null() {
            return None;
        }
        // SAFETY: chunks in the table are complete and never freed.
        let record = unsafe { &(*records)[index % CHUNK] };
        (record.token.load(Ordering::Relaxed) == token).then_some(record)
    }
}

impl LocalCalls {
    fn push(&self, record: *const Record) {
        // SAFETY: records are never freed; this one is free and thereby the caller's.
        unsafe { (*record).next.set(self.free.get()) };
        self.free.set(record);
        self.count.set(self.count.get() + 1);
    }
}

/// Makes a record that is done free for the next call.
// Rare cases are tail calls, so that the common path needs no stack frame.
#[inline(never)]
fn release(record: &'static Record) {
    if record.meeting.has_waker() { forget_and_release(record) } else { recycle(record) }
}

#[cold]
#[inline(never)]
fn forget_and_release(record: &'static Record) {
    forget_waker(record);
    recycle(record);
}

#[inline(always)]
fn recycle(record: &'static Record) {
    // The next generation; no generation has the number 0.
    let mut token = record.token.load(Ordering::Relaxed).wrapping_add(1 << 32);
    if token >> 32 == 0 {
        token += 1 << 32;
    }
    record.token.store(token, Ordering::Relaxed);
    record.meeting.reuse();
    let calls = &local::current().calls;
    if calls.spare_token.get() == 0 {
        // The last call took the spare record: this is the next one.
        calls.spare.set(record);
        calls.spare_token.set(token);
        return;
    }
    calls.push(record);
    if calls.count.get() > LOCAL_RECORDS {
        give_back(calls);
    }
}

/// Gives half of a worker's free records to the pool: records are freed where calls end, and needed where they begin.
#[cold]
fn give_back(calls: &LocalCalls) {
    let mut shared = POOL.shared.lock();
    for _ in 0..LOCAL_RECORDS / 2 {
        let record = calls.free.get();
        if record.is_null() {
            break;
        }
        // SAFETY: records in this list are this worker's, and then the pool's.
        unsafe {
            calls.free.set((*record).next.get());
            (*record).next.set(shared.free);
        }
        shared.free = record;
        calls.count.set(calls.count.get() - 1);
    }
}

/// Address of the process's completion ring; null before the start-up code has found it.
static RING: AtomicPtr<CompletionHeader> = AtomicPtr::new(ptr::null_mut());
/// Number of the ring's entries. Changed, and used for taking, only by the code that has set `DRAINING`.
static CAPACITY: AtomicUsize = AtomicUsize::new(completion::INITIAL_CAPACITY);

/// Sets the address of the completion ring.
///
/// # Safety
///
/// It must be the process's completion ring, and stay mapped.
pub(crate) unsafe fn set_ring(ring: *mut CompletionHeader) {
    RING.store(ring, Ordering::Relaxed);
}

/// Returns the first page of the completion ring, once its address is set.
#[inline(always)]
pub(crate) fn ring_header() -> Option<&'static CompletionHeader> {
    // SAFETY: it stays mapped by the promise of `set_ring`'s caller; every word of it is atomic.
    unsafe { RING.load(Ordering::Relaxed).as_ref() }
}

/// Returns the completion ring, once its address is set.
#[inline(always)]
fn ring() -> Option<Completions<'static>> {
    let header = ring_header()?;
    // Relaxed: `DRAINING` orders it.
    let capacity = CAPACITY.load(Ordering::Relaxed);
    // SAFETY: as above; the kernel has mapped that many entries behind the header.
    let entries = unsafe {
        let first = ptr::from_ref(header).cast::<u8>().add(completion::ENTRIES_OFFSET);
        core::slice::from_raw_parts(first.cast::<completion::Entry>(), capacity)
    };
    Some(Completions::new(header, entries))
}

/// Makes a call that can enlarge the completion ring to this capacity, while no worker takes from the ring and it is
/// empty. If it does not become empty, the call is made without enlarging it (capacity 0).
pub(crate) fn enlarge_while<T>(mut call: impl FnMut(usize) -> Result<T>, capacity: usize) -> Result<T> {
    for _ in 0..4 {
        drain();
        let _section = Section::begin();
        if DRAINING.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue;
        }
        let result = call(capacity);
        if result.is_ok() {
            let now = ring_header().map_or(0, |header| header.capacity.load(Ordering::Relaxed)) as usize;
            // Written by the kernel, but in memory of the process: an impossible value is ignored.
            if now.is_power_of_two() && now <= completion::LARGEST_CAPACITY {
                CAPACITY.store(now, Ordering::Relaxed);
            }
        }
        DRAINING.store(false, Ordering::Release);
        match result {
            Err(Errno::EBUSY) => {}
            other => return other,
        }
    }
    call(0)
}

/// Set while a worker takes completions: the ring has one taker at a time.
static DRAINING: AtomicBool = AtomicBool::new(false);

/// Number of consecutive looks that found another worker taking completions.
static HELD_UP: AtomicUsize = AtomicUsize::new(0);

/// A taker that runs on another hart is done within this many looks; one that does not run needs a hart.
const LOOKS: usize = 32;

/// Takes the completions that the kernel has posted and wakes their waiters. Cheap if there is none.
#[inline]
pub fn drain() {
    if has_completions() {
        drain_ring();
    }
}

/// Returns whether the completion ring has entries; a cheap look without any guarantee for the next moment.
#[inline(always)]
pub(crate) fn has_completions() -> bool {
    ring_header().is_some_and(|header| header.tail.load(Ordering::Relaxed) != header.head.load(Ordering::Relaxed))
}

#[cold]
#[inline(never)]
fn drain_ring() {
    // A drainer that is preempted here would keep other workers from the ring.
    let _section = Section::begin();
    while has_completions() {
        // Acquire: the ring's `head` as the last taker left it. If another worker is taking, it looks once more after
        // it has cleared `DRAINING`, so no entry is left behind.
        if DRAINING.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // The taker may have been preempted and wait for a hart behind this worker, whose priority the unread
            // completions raise: the ring would stay full while this worker makes ever more calls. When a worker
            // yields, the kernel prefers waiting workers of its process.
            if HELD_UP.fetch_add(1, Ordering::Relaxed) % LOOKS == LOOKS - 1 {
                unix::worker::yield_now();
            }
            return;
        }
        HELD_UP.store(0, Ordering::Relaxed);
        let Some(ring) = ring() else { return };
        // Completions that come meanwhile are found by the next look, above.
        let taken = ring.take_all(|completion| complete(completion.token, completion.cid, completion.result as usize));
        DRAINING.store(false, Ordering::Release);
        ROOM.made(taken);
    }
}

/// Handles completions in the handler of user interrupts: wakes the coroutines whose completions have come while
/// another one runs, so that the process publishes its ready priorities now, and not when that coroutine next pauses.
///
/// It runs between any two instructions of a coroutine, so it takes only completions that need neither a lock nor the
/// heap, and leaves the rest, in order, to the executor's next look.
pub(crate) fn on_interrupt() {
    crate::executor::look_at_mode_if_changed();
    // Coroutines that wait for room are woken under a lock, and by each completion: they are all left to the executor.
    while has_completions() {
        if DRAINING.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // The interrupted code, or another worker, is taking, and looks again when it is done.
            return;
        }
        let Some(ring) = ring() else { return };
        let mut rest = LeftBehind::Nothing;
        while let Some(completion) = ring.peek() {
            // Checked after the look at the ring: a call that was refused before this completion was posted is in the
            // queue by now.
            if ROOM.is_short() || !complete_simply(completion.token, completion.cid, completion.result as usize) {
                rest = LeftBehind::ForTheExecutor;
                break;
            }
            ring.advance();
        }
        DRAINING.store(false, Ordering::Release);
        if matches!(rest, LeftBehind::ForTheExecutor) {
            return;
        }
    }
}

/// The completions that the interrupt handler leaves behind.
enum LeftBehind {
    Nothing,
    ForTheExecutor,
}

/// Does the part of [`complete`] that is allowed in an interrupt; `false` if this completion needs more.
fn complete_simply(token: u64, cid: u64, result: usize) -> bool {
    if token == 0 {
        executor::wake_raw_in_handler(cid);
        return true;
    }
    if crate::time::is_alarm(token) {
        // Left in the ring, it would keep the completions behind it from their coroutines until this worker pauses.
        crate::time::alarm_came_in_handler();
        return true;
    }
    let Some(record) = POOL.find(token) else {
        observing::note_request(token);
        return true;
    };
    match record.meeting.complete_simply(result) {
        Some(Awaiting::Own(cid)) => executor::wake_raw_in_handler(cid),
        Some(_) => {}
        // A combinator's waker, or an abandoned buffer, needs more than is allowed here.
        None => return false,
    }
    true
}

/// Hands a result to its waiter. A token that is unknown, old or done already is ignored: only this process can have
/// written it to the ring.
#[inline(always)]
fn complete(token: u64, cid: u64, result: usize) {
    // No record has the token 0 or an alarm's.
    let Some(record) = POOL.find(token) else { return complete_without_record(token, cid) };
    match record.meeting.complete(result) {
        Awaiting::Own(cid) => executor::wake_raw(cid),
        Awaiting::Foreign => record.waker.wake(),
        Awaiting::Abandoned => {
            // SAFETY: the dropped future wrote this before it set the state, and left it to the drainer.
            unsafe {
                let abandoned = (*record.abandoned.get()).assume_init_read();
                (abandoned.release)(abandoned.payload, result);
            }
            release(record);
        }
        Awaiting::None => {}
    }
}

#[cold]
#[inline(never)]
fn complete_without_record(token: u64, cid: u64) {
    if token == 0 {
        executor::wake_raw(cid);
    } else if crate::time::is_alarm(token) {
        crate::time::alarm_came();
    } else {
        observing::note_request(token);
    }
}

/// The kernel's answer to a call beyond the limit of calls in flight.
const TOO_MANY: usize = abi_unix::errno::encode(Err(Errno::EBUSY));

enum Stage {
    /// Not made yet. The number is the cid of the waiting coroutine, or 0 if that is the running one.
    New(u64),
    /// Refused because too many calls are in flight; the number is the place in [`ROOM`].
    Waiting(u64),
    InFlight(&'static Record),
    /// Done at once; the result was not taken yet.
    Done(usize),
    Finished,
}

/// An asynchronous system call as a future: its output is the result, and the buffer that the call owned.
///
/// # Cancellation
///
/// Weak. Dropped before the first poll, or while it waits because too many calls are in flight, the call has no effect.
/// If the future is dropped in flight, the kernel is asked to cancel; the buffer is freed when the kernel has let go of
/// it. A call that had succeeded by then has had its effect: bytes that were read are lost, bytes that were
/// written stay written; a connection that was accepted is closed.
#[must_use = "a call that is not awaited is not made"]
pub struct Operation<B, const N: usize> {
    buffer: Option<B>,
    arguments: [usize; N],
    discard: fn(usize),
    /// [`abandon`] for this buffer. Only `new` has the bounds that it needs: bounds on the type itself would be
    /// required again wherever a coroutine that holds one is to be sent, and there the compiler cannot check lifetimes.
    abandon: fn(&'static Record, B, fn(usize)),
    call: SystemCall,
    stage: Stage,
}

// The arguments hold addresses of memory that `buffer` owns elsewhere; the future itself can move.
impl<B, const N: usize> Unpin for Operation<B, N> {}

impl<B, const N: usize> Operation<B, N> {
    /// Prepares a call.
    ///
    /// # Safety
    ///
    /// All memory that the arguments name for the kernel to read or write must belong to `buffer`, not move with it,
    /// and be used by no other code; or be static.
    #[inline]
    pub unsafe fn new(call: SystemCall, arguments: [usize; N], buffer: B) -> Operation<B, N>
    where
        B: Send + 'static,
    {
        const { assert!(N <= 6) };
        Operation {
            buffer: Some(buffer),
            arguments,
            discard: |_| (),
            abandon: abandon::<B>,
            call,
            stage: Stage::New(0),
        }
    }

    /// Sets the function that undoes a success whose future was dropped.
    #[inline]
    pub fn or_discard(mut self, discard: fn(usize)) -> Self {
        self.discard = discard;
        self
    }

    /// Passes the cid of the waiting coroutine to the kernel. The runtime itself uses the waker that the call is polled
    /// with. No effect on a call that was made already.
    #[inline]
    pub fn with_waiter(mut self, cid: u64) -> Self {
        if let Stage::New(waiter) = &mut self.stage {
            *waiter = cid;
        }
        self
    }

    /// Waits for the call no longer than a duration, and gives the buffer back in any case: when the time is over the
    /// call is ended as by [`until`](Operation::until), so no byte is lost.
    ///
    /// ```no_run
    /// # async fn example(stream: cops::net::TcpStream) {
    /// let (result, buffer) = stream.read(vec![0; 64]).timeout(core::time::Duration::from_secs(5)).await;
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As the call; `ETIMEDOUT` if it had no effect before the time was over.
    ///
    /// # Cancellation
    ///
    /// Weak, as [`Operation`].
    pub async fn timeout(self, duration: core::time::Duration) -> (Result<usize>, B) {
        let (result, buffer) = self.until(crate::time::sleep(duration)).await;
        (result.map_err(|error| if error == Errno::ECANCELED { Errno::ETIMEDOUT } else { error }), buffer)
    }

    /// Waits for the call until another future is done, and gives the buffer back in any case: then the kernel is asked
    /// to cancel the call, and its answer is awaited. A call that succeeds nevertheless has succeeded, so no byte is
    /// lost. Use it where [`select`](crate::select::select) would drop a read whose bytes others want.
    ///
    /// ```no_run
    /// # async fn example(stream: cops::net::TcpStream, mut shutdown: cops::sync::oneshot::Receiver<()>) {
    /// let (result, buffer) = stream.read(vec![0; 64]).until(async { drop(shutdown.await) }).await;
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As the call; `ECANCELED` if it had no effect before the other future was done.
    ///
    /// # Cancellation
    ///
    /// Weak, as [`Operation`].
    pub async fn until(mut self, end: impl Future<Output = ()>) -> (Result<usize>, B) {
        let end = core::pin::pin!(end);
        if let crate::select::Either::First(output) = crate::select::select(&mut self, end).await {
            return output;
        }
        self.request_end();
        self.await
    }

    /// Asks for the end of a call that has been polled. Its result is still to be awaited.
    fn request_end(&mut self) {
        const NOT_MADE: usize = abi_unix::errno::encode(Err(Errno::ECANCELED));
        match self.stage {
            Stage::InFlight(record) => {
                // Its completion may have come by now; then the kernel knows of no such call.
                let _ = unix::worker::cancel(record.token.load(Ordering::Relaxed));
            }
            Stage::Waiting(ticket) => {
                ROOM.leave(ticket);
                self.stage = Stage::Done(NOT_MADE);
            }
            Stage::New(_) => self.stage = Stage::Done(NOT_MADE),
            Stage::Done(_) | Stage::Finished => {}
        }
    }

    fn finish(&mut self, result: usize) -> Poll<(Result<usize>, B)> {
        self.stage = Stage::Finished;
        match self.buffer.take() {
            Some(buffer) => Poll::Ready((decode(result), buffer)),
            None => panic!("a finished call was polled"),
        }
    }

    /// Returns result and buffer of a call that is done.
    #[inline(always)]
    fn into_done(mut self) -> (Result<usize>, B) {
        match (core::mem::replace(&mut self.stage, Stage::Finished), self.buffer.take()) {
            (Stage::Done(result), Some(buffer)) => (decode(result), buffer),
            _ => panic!("a call was polled that is not done, or finished"),
        }
    }

    /// Makes the call directly, with a token in case it has to wait, and returns the kernel's answer.
    #[inline(always)]
    fn trap(&self, priority: Priority, token: u64) -> usize {
        // The completion is matched by the token; the cid tells the kernel the waiter, if `with_waiter` was used.
        let waiter = match self.stage {
            Stage::New(waiter) => waiter,
            _ => 0,
        };
        // SAFETY: the memory is the buffer's, which stays in this future or in the record until the completion.
        unsafe {
            unix::syscall_asynchronous(self.call as usize, self.six_arguments(), waiter, priority.number(), token)
        }
    }

    #[inline(always)]
    fn six_arguments(&self) -> [usize; 6] {
        let mut arguments = [0; 6];
        arguments[..N].copy_from_slice(&self.arguments);
        arguments
    }

    /// Handles an answer of the kernel other than immediate success.
    #[inline]
    fn answered(&mut self, answer: usize) -> Poll<usize> {
        if answer != WILL_BE_POSTED {
            return Poll::Ready(answer);
        }
        self.stage = Stage::InFlight(local::current().calls.keep());
        Poll::Pending
    }

    /// Makes the call directly; pending if its completion will come.
    #[inline]
    fn make(&mut self, priority: Priority) -> Poll<usize> {
        match local::current().calls.spare() {
            Ok((_, token)) => {
                let answer = self.trap(priority, token);
                self.answered(answer)
            }
            Err(error) => Poll::Ready(abi_unix::errno::encode(Err(error))),
        }
    }

    /// Makes the call through the ring, so that its completion wakes the coroutine with this cid, or none if it is 0;
    /// `false` if the call has to be made directly.
    // All fields are written before the request is published: a flusher that has to be woken for it is woken last, and
    // no register has to be kept for after that.
    #[inline(always)]
    fn request(&mut self, priority: Priority, cid: u64) -> bool {
        let calls = &local::current().calls;
        let Ok((record, token)) = calls.spare() else { return false };
        if cid != 0 {
            record.meeting.belongs_to(cid);
        }
        self.stage = Stage::InFlight(calls.keep());
        submission::submit(self.call, || self.six_arguments(), priority, token) || self.take_request_back()
    }

    /// Frees the record of a request that was not published after all; returns `false`.
    #[cold]
    #[inline(never)]
    fn take_request_back(&mut self) -> bool {
        if let Stage::InFlight(record) = core::mem::replace(&mut self.stage, Stage::New(0)) {
            // There may be another spare record by now: setting up a ring takes completions.
            release(record);
        }
        false
    }

    /// Makes the call through the ring, and waits for its completion; makes it directly if there is no ring.
    #[inline(never)]
    fn submit_through_ring(&mut self, context: &Context<'_>) -> Poll<usize> {
        match executor::cid_of(context.waker()) {
            Some(cid) if local::current().calls.has_spare() => {
                if self.request(executor::current_priority(), cid) {
                    Poll::Pending
                } else {
                    self.advance_slowly(context)
                }
            }
            _ => self.submit_unusually(context),
        }
    }

    /// Submits without a spare record, or for a foreign waker.
    #[cold]
    #[inline(never)]
    fn submit_unusually(&mut self, context: &Context<'_>) -> Poll<usize> {
        if self.request(executor::current_priority(), 0) {
            self.wait_if_in_flight(Poll::Pending, context)
        } else {
            self.submit(context)
        }
    }

    /// Makes the call directly, and waits for its completion if one will come.
    #[inline]
    fn submit(&mut self, context: &Context<'_>) -> Poll<usize> {
        match self.make(executor::current_priority()) {
            Poll::Ready(TOO_MANY) => self.submit_when_there_is_room(context),
            polled => self.wait_if_in_flight(polled, context),
        }
    }

    /// Makes the call directly, and waits for its completion if one will come; [`TOO_MANY`] if it has to be tried again
    /// when another call has ended.
    fn try_submit(&mut self, context: &Context<'_>) -> Poll<usize> {
        let polled = self.make(executor::current_priority());
        self.wait_if_in_flight(polled, context)
    }

    #[inline(always)]
    fn wait_if_in_flight(&mut self, made: Poll<usize>, context: &Context<'_>) -> Poll<usize> {
        match self.stage {
            Stage::InFlight(record) if made.is_pending() => self.wait(record, context),
            _ => made,
        }
    }

    /// Advances the call by one step, in any stage.
    #[inline]
    fn advance(&mut self, context: &Context<'_>) -> Poll<usize> {
        let polled = match self.stage {
            Stage::New(_) => return self.submit(context),
            Stage::Waiting(ticket) => return self.submit_again(ticket, context),
            Stage::InFlight(record) => self.wait(record, context),
            Stage::Done(result) => Poll::Ready(result),
            Stage::Finished => panic!("a finished call was polled"),
        };
        match polled {
            // A call made through a ring learns of the refusal only now.
            Poll::Ready(TOO_MANY) => self.submit_when_there_is_room(context),
            polled => polled,
        }
    }

    /// Waits with other coroutines for the end of some call.
    #[cold]
    #[inline(never)]
    fn submit_when_there_is_room(&mut self, context: &Context<'_>) -> Poll<usize> {
        let mut ticket = match self.stage {
            Stage::Waiting(ticket) => Some(ticket),
            _ => None,
        };
        ROOM.enter(&mut ticket, context.waker());
        match self.try_submit(context) {
            Poll::Ready(TOO_MANY) => {
                self.stage = ticket.map_or(Stage::New(0), Stage::Waiting);
                Poll::Pending
            }
            polled => {
                ticket.into_iter().for_each(|ticket| ROOM.leave(ticket));
                polled
            }
        }
    }

    /// Tries again, after a wait for room.
    #[cold]
    #[inline(never)]
    fn submit_again(&mut self, ticket: u64, context: &Context<'_>) -> Poll<usize> {
        match self.try_submit(context) {
            Poll::Ready(TOO_MANY) => self.submit_when_there_is_room(context),
            polled => {
                ROOM.leave(ticket);
                polled
            }
        }
    }

    /// Waits for the completion.
    fn wait(&mut self, record: &'static Record, context: &Context<'_>) -> Poll<usize> {
        if !record.meeting.is_done() {
            let waker = context.waker();
            let is_done = match executor::cid_of(waker) {
                Some(cid) => record.meeting.wait_as(cid),
                None => {
                    record.meeting.set_has_waker(true);
                    record.waker.register(waker);
                    record.meeting.wait_with_waker()
                }
            };
            if !is_done {
                return Poll::Pending;
            }
        }
        let result = record.meeting.result();
        self.stage = Stage::Finished;
        release(record);
        Poll::Ready(result)
    }
}

impl<B, const N: usize> Future for Operation<B, N> {
    type Output = (Result<usize>, B);

    // The common path is here; everything else is a function of its own, so that a coroutine which awaits many calls
    // stays small, and saves no registers for the rare paths.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = match self.stage {
            Stage::New(_) if submission::prefers_ring() => self.submit_through_ring(context),
            Stage::New(_) => {
                let local = local::current();
                let token = local.calls.spare_token.get();
                if token == 0 {
                    self.advance_slowly(context)
                } else {
                    let answer = self.trap(local.priority(), token);
                    if answer < WILL_BE_POSTED { Poll::Ready(answer) } else { self.go_on(answer, context) }
                }
            }
            Stage::InFlight(record) if record.meeting.is_done() => {
                let result = record.meeting.result();
                release(record);
                if result < WILL_BE_POSTED { Poll::Ready(result) } else { self.fail(result, context) }
            }
            _ => self.advance_slowly(context),
        };
        match polled {
            Poll::Ready(result) => self.finish(result),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<B, const N: usize> Operation<B, N> {
    #[inline(never)]
    fn advance_slowly(&mut self, context: &Context<'_>) -> Poll<usize> {
        self.advance(context)
    }

    /// Continues after a direct call that has not succeeded at once.
    #[inline(never)]
    fn go_on(&mut self, answer: usize, context: &Context<'_>) -> Poll<usize> {
        match self.answered(answer) {
            Poll::Ready(TOO_MANY) => self.submit_when_there_is_room(context),
            polled => self.wait_if_in_flight(polled, context),
        }
    }

    /// Handles a completion with an error.
    #[cold]
    fn fail(&mut self, result: usize, context: &Context<'_>) -> Poll<usize> {
        self.stage = Stage::Finished;
        // A call made through a ring learns of the refusal only now.
        if result == TOO_MANY { self.submit_when_there_is_room(context) } else { Poll::Ready(result) }
    }
}

/// Makes many calls at once and waits for all of them: results and buffers in the order of the calls.
///
/// With the ring they share traps as far as possible: the kernel takes them from the ring together, and the coroutine
/// is woken once for calls that are done together. The order in which they take effect is undefined.
///
/// # Cancellation
///
/// Weak. Drops every call; see [`Operation`].
#[doc(alias = "join_all")]
pub fn all<B, const N: usize>(operations: Vec<Operation<B, N>>) -> All<B, N> {
    All { left: operations.len(), operations, made: false }
}

/// Future of [`all`].
#[must_use = "calls that are not awaited are not made"]
pub struct All<B, const N: usize> {
    operations: Vec<Operation<B, N>>,
    /// Number of the first operations that may not be done.
    left: usize,
    made: bool,
}

impl<B, const N: usize> Unpin for All<B, N> {}

impl<B, const N: usize> Future for All<B, N> {
    type Output = Vec<(Result<usize>, B)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if !this.made {
            this.made = true;
            let priority = executor::current_priority();
            let through_ring = submission::prefers_ring_for(this.operations.len());
            // A caller may have polled an operation before it came here; that one is in flight.
            for operation in this.operations.iter_mut().filter(|operation| matches!(operation.stage, Stage::New(_))) {
                if through_ring && operation.request(priority, 0) {
                    continue;
                }
                if let Poll::Ready(result) = operation.make(priority) {
                    operation.stage = Stage::Done(result);
                }
            }
        }
        // From the last to the first: the last one is usually done last, and is the only one to wake the coroutine. The
        // others are found done.
        while let Some(operation) = this.operations[..this.left].last_mut() {
            let Poll::Ready(result) = operation.advance(context) else { return Poll::Pending };
            operation.stage = Stage::Done(result);
            this.left -= 1;
        }
        let operations = core::mem::take(&mut this.operations);
        Poll::Ready(operations.into_iter().map(Operation::into_done).collect())
    }
}

impl<B, const N: usize> Drop for Operation<B, N> {
    #[inline(always)]
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::New(_) | Stage::Finished) {
            self.give_up();
        }
    }
}

impl<B, const N: usize> Operation<B, N> {
    /// Cancels the call, because its future is dropped.
    #[cold]
    #[inline(never)]
    fn give_up(&mut self) {
        match self.stage {
            Stage::InFlight(record) => {
                if let Some(buffer) = self.buffer.take() {
                    (self.abandon)(record, buffer, self.discard);
                }
            }
            Stage::Waiting(ticket) => ROOM.leave(ticket),
            Stage::Done(result) => {
                // Undo the success, which no future will receive.
                if let Ok(value) = decode(result) {
                    (self.discard)(value);
                }
            }
            Stage::New(_) | Stage::Finished => {}
        }
    }
}

/// Drops the waker of a combinator, if the record has one. Called by the future that owns the record.
#[inline(always)]
fn forget_waker(record: &Record) {
    if record.meeting.has_waker() {
        record.meeting.set_has_waker(false);
        record.waker.take();
    }
}

/// Leaves the buffer of a call in flight to its record.
#[cold]
fn abandon<B: Send + 'static>(record: &'static Record, buffer: B, discard: fn(usize)) {
    /// # Safety
    ///
    /// The payload must be of a box with a `(B, fn(usize))`, and must not be used again.
    unsafe fn release_payload<B>(payload: *mut (), result: usize) {
        // SAFETY: the caller's promise.
        let (buffer, discard) = *unsafe { Box::from_raw(payload.cast::<(B, fn(usize))>()) };
        if let Ok(value) = decode(result) {
            discard(value);
        }
        drop(buffer);
    }
    let token = record.token.load(Ordering::Relaxed);
    forget_waker(record);
    let payload = Box::into_raw(Box::new((buffer, discard))).cast();
    // SAFETY: until the state is `abandoned` only the future uses the cell.
    unsafe { (*record.abandoned.get()).write(Abandoned { payload, release: release_payload::<B> }) };
    // An earlier waker need not be woken: its future is dropped.
    if record.meeting.abandon() {
        // SAFETY: the call is done, so only this code has the payload, which was made just now.
        unsafe { release_payload::<B>(payload, record.meeting.result()) };
        release(record);
    }
    // If the completion has come by now the answer is ENOENT, and everything is done.
    let _ = unix::worker::cancel(token);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// Makes an operation whose call the kernel has kept, and its token.
    fn in_flight<B: Send + 'static>(buffer: B) -> (Operation<B, 0>, u64) {
        let calls = &local::current().calls;
        if calls.spare_token.get() == 0 {
            calls.refill().unwrap();
        }
        let token = calls.spare_token.take();
        // SAFETY: there is a token, so there is a record; the call names no memory.
        let (record, mut operation) = unsafe { (&*calls.spare.get(), Operation::new(SystemCall::Read, [], buffer)) };
        operation.stage = Stage::InFlight(record);
        (operation, token)
    }

    #[test]
    fn results_come_before_or_after_the_first_look() {
        let (wakes, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        let (mut early, token) = in_flight(7);
        complete(token, 0, 5);
        assert_eq!(Pin::new(&mut early).poll(&mut context), Poll::Ready((Ok(5), 7)));
        let (mut late, token) = in_flight("buffer");
        assert!(Pin::new(&mut late).poll(&mut context).is_pending());
        assert!(Pin::new(&mut late).poll(&mut context).is_pending());
        complete(token, 0, -(Errno::EPIPE.number() as isize) as usize);
        assert_eq!(wakes.count(), 1);
        assert_eq!(Pin::new(&mut late).poll(&mut context), Poll::Ready((Err(Errno::EPIPE), "buffer")));
    }

    #[test]
    fn an_end_that_is_requested_is_still_awaited_and_gives_the_buffer_back() {
        let (_, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        let (mut operation, token) = in_flight("buffer");
        operation.request_end();
        assert!(Pin::new(&mut operation).poll(&mut context).is_pending());
        complete(token, 0, 3);
        assert_eq!(Pin::new(&mut operation).poll(&mut context), Poll::Ready((Ok(3), "buffer")));
        // SAFETY: the call names no memory, and is never made.
        let mut unmade = unsafe { Operation::new(SystemCall::Read, [], "other") };
        unmade.request_end();
        assert_eq!(Pin::new(&mut unmade).poll(&mut context), Poll::Ready((Err(Errno::ECANCELED), "other")));
    }

    #[test]
    fn old_and_unknown_tokens_are_ignored() {
        let (_, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        let (mut operation, token) = in_flight(());
        for wrong in [token ^ 1 << 32, token ^ 1 << 63, 0xffff_fffd, u64::MAX - 1, token + (1 << 20)] {
            complete(wrong, 0, 1);
        }
        assert!(Pin::new(&mut operation).poll(&mut context).is_pending());
        complete(token, 0, 2);
        complete(token, 0, 3);
        assert!(Pin::new(&mut operation).poll(&mut context).is_ready());
        complete(token, 0, 4);
    }

    /// A coroutine that a completion wakes is in the trace, whether the completion names it itself or its call's record
    /// does.
    #[test]
    fn wakes_by_completions_are_recorded() {
        use crate::trace;
        const AWAITING: u64 = 0x11_0000_0011;
        const NAMED: u64 = 0x12_0000_0012;
        let waker = executor::waker_for_tests(coroutine::Cid::from_raw(AWAITING));
        let _tests = trace::start_for_tests();
        let (mut operation, token) = in_flight("buffer");
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut operation).poll(&mut context).is_pending());
        assert_eq!((trace::recorded_wakes(AWAITING), trace::recorded_wakes(NAMED)), (0, 0));
        complete(token, 0, 5);
        assert_eq!((trace::recorded_wakes(AWAITING), trace::recorded_wakes(NAMED)), (1, 0));
        complete(0, NAMED, 0);
        assert_eq!((trace::recorded_wakes(AWAITING), trace::recorded_wakes(NAMED)), (1, 1));
        assert_eq!(Pin::new(&mut operation).poll(&mut context), Poll::Ready((Ok(5), "buffer")));
        // A completion that comes before the first look wakes nothing.
        let (mut early, token) = in_flight(());
        complete(token, 0, 5);
        assert!(Pin::new(&mut early).poll(&mut context).is_ready());
        assert_eq!(trace::recorded_wakes(AWAITING), 1);
        // Nor does the handler of user interrupts, which may have interrupted code that is recording.
        assert!(complete_simply(0, NAMED, 0));
        assert_eq!(trace::recorded_wakes(NAMED), 1);
    }

    #[test]
    fn the_handler_of_interrupts_leaves_foreign_wakers_alone() {
        let (wakes, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        let (mut operation, token) = in_flight(());
        assert!(Pin::new(&mut operation).poll(&mut context).is_pending());
        // The waker is foreign.
        assert!(!complete_simply(token, 0, 2));
        complete(token, 0, 2);
        assert!(complete_simply(token, 0, 2));
        assert_eq!(wakes.count(), 1);
        assert!(Pin::new(&mut operation).poll(&mut context).is_ready());
        // Not polled yet: there is no coroutine to wake.
        let (mut operation, token) = in_flight(());
        assert!(complete_simply(token, 0, 9));
        assert_eq!(Pin::new(&mut operation).poll(&mut context), Poll::Ready((Ok(9), ())));
        let (operation, token) = in_flight(());
        drop(operation);
        assert!(!complete_simply(token, 0, 9));
        complete(token, 0, 9);
    }

    #[test]
    fn a_buffer_outlives_its_future_until_the_kernel_has_let_go() {
        static DISCARDED: AtomicUsize = AtomicUsize::new(0);
        fn discard(value: usize) {
            DISCARDED.fetch_add(value, Ordering::Relaxed);
        }
        let buffer = Arc::new([0u8; 100]);
        // A small buffer, and a larger one.
        let (operation, token) = in_flight(buffer.clone());
        drop(operation.or_discard(discard));
        assert_eq!(Arc::strong_count(&buffer), 2);
        complete(token, 0, 10);
        assert_eq!((Arc::strong_count(&buffer), DISCARDED.load(Ordering::Relaxed)), (1, 10));
        let (operation, token) = in_flight((buffer.clone(), [0u64; 20]));
        drop(operation.or_discard(discard));
        assert_eq!(Arc::strong_count(&buffer), 2);
        complete(token, 0, usize::MAX);
        assert_eq!((Arc::strong_count(&buffer), DISCARDED.load(Ordering::Relaxed)), (1, 10));
        // The completion comes before the drop.
        let (operation, token) = in_flight(buffer.clone());
        complete(token, 0, 3);
        drop(operation.or_discard(discard));
        assert_eq!((Arc::strong_count(&buffer), DISCARDED.load(Ordering::Relaxed)), (1, 13));
    }

    #[test]
    fn completing_and_dropping_race() {
        let buffer = Arc::new(());
        for round in 0..2000 {
            let operations: Vec<_> = (0..8).map(|_| in_flight(buffer.clone())).collect();
            let tokens: Vec<_> = operations.iter().map(|(_, token)| *token).collect();
            std::thread::scope(|scope| {
                scope.spawn(move || tokens.into_iter().for_each(|token| complete(token, 0, round)));
                let (wakes, waker) = Wakes::counted();
                for (index, (mut operation, _)) in operations.into_iter().enumerate() {
                    let mut polled = Poll::Pending;
                    for _ in 0..index % 3 {
                        if polled.is_pending() {
                            polled = Pin::new(&mut operation).poll(&mut Context::from_waker(&waker));
                        }
                    }
                    // Like a coroutine: polled again only when woken.
                    while index % 3 == 2 && polled.is_pending() {
                        if wakes.take() > 0 {
                            polled = Pin::new(&mut operation).poll(&mut Context::from_waker(&waker));
                        }
                        std::thread::yield_now();
                    }
                    if let Poll::Ready((result, _)) = polled {
                        assert_eq!(result, Ok(round));
                    }
                }
            });
            assert_eq!(Arc::strong_count(&buffer), 1);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Start,
        Poll(usize),
        Complete(usize),
        Drop(usize),
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Against a list of the calls in flight: every result reaches its own future once, every buffer is freed once.
        #[test]
        fn every_completion_finds_its_call(
            steps in prop::collection::vec(
                prop_oneof![
                    Just(Step::Start),
                    any::<usize>().prop_map(Step::Poll),
                    any::<usize>().prop_map(Step::Complete),
                    any::<usize>().prop_map(Step::Drop),
                ],
                1..400,
            )
        ) {
            let buffer = Arc::new(());
            let (_, waker) = Wakes::counted();
            let mut operations: Vec<(Operation<Arc<()>, 0>, u64)> = Vec::new();
            // Tokens in flight, and whether the future still waits.
            let mut tokens: Vec<u64> = Vec::new();
            let mut results = std::collections::BTreeMap::new();
            let mut next = 1;
            for step in steps {
                match step {
                    Step::Start => {
                        let (operation, token) = in_flight(buffer.clone());
                        prop_assert!(!tokens.contains(&token));
                        tokens.push(token);
                        operations.push((operation, token));
                    }
                    Step::Poll(which) if !operations.is_empty() => {
                        let which = which % operations.len();
                        let (operation, token) = &mut operations[which];
                        let expected = results.get(token).copied();
                        match Pin::new(operation).poll(&mut Context::from_waker(&waker)) {
                            Poll::Ready((result, _)) => {
                                prop_assert_eq!(result.ok(), expected);
                                drop(operations.swap_remove(which));
                            }
                            Poll::Pending => prop_assert_eq!(None, expected),
                        }
                    }
                    Step::Complete(which) if !tokens.is_empty() => {
                        let token = tokens.swap_remove(which % tokens.len());
                        next += 1;
                        results.insert(token, next);
                        complete(token, 0, next);
                    }
                    Step::Drop(which) if !operations.is_empty() => {
                        let which = which % operations.len();
                        drop(operations.swap_remove(which));
                    }
                    _ => {}
                }
                // Each buffer is in its future, or in the record of an abandoned call in flight.
                let abandoned = tokens.iter().filter(|token| !operations.iter().any(|(_, other)| other == *token)).count();
                prop_assert_eq!(Arc::strong_count(&buffer), 1 + operations.len() + abandoned);
            }
            for token in tokens {
                complete(token, 0, 1);
            }
            drop(operations);
            prop_assert_eq!(Arc::strong_count(&buffer), 1);
        }
    }
}
