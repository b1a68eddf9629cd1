//! The executor: shards, slots, and everything but running.
//!
//! # Who may touch what
//!
//! | field | protected by |
//! |---|---|
//! | a shard's lists, `free` list, `sleepers`, `wakes`, its ready bitmap (writes) | the shard's lock |
//! | a shard's ready bitmap (reads), running word, `current`, `polls`, `steals`, `spins` | atomic; written by the worker, or under the lock |
//! | a shard's `retries` | atomic; added to by anybody |
//! | a shard's `signals` | written by `add_worker`, read by the worker's `run`: one after the other, as the caller promises |
//! | a slot's word | atomic; see [`crate::state`] |
//! | a slot's header pointer | written by whoever takes or frees the slot, under a shard's lock; read by whoever made the coroutine ready |
//! | a header's links | the lock of the coroutine's shard |
//! | `idle`, `shards`, `chunks`, `directory` | atomic |
//!
//! No two shard locks are ever waited for together: whoever holds one only *tries* another. So there is no deadlock,
//! and no lock order to keep.

use core::ffi::c_void;

use crate::order::{Image, Order};
use crate::shard::{Link, Shard, add, is_linked};
use crate::state::{Initial, Reason, Value, Word};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, Plain, ReadyWord, fence, put};
use crate::{CHUNKS, PRIORITIES, SHARDS, SLOTS_IN_CHUNK};

/// Polls a coroutine; answers one of [`PENDING`], [`DONE`], [`YIELDED`].
///
/// `frame` is what the caller gave to `run`: something of its own for each stack that polls.
pub type Poll<O = Image> = unsafe extern "C" fn(header: *mut Header<O>, frame: *mut c_void) -> u32;
/// Takes a control block back: the executor will never touch it again. `outcome` is one of [`COMPLETED`],
/// [`CANCELLED_OUTCOME`].
pub type Finish<O = Image> = unsafe extern "C" fn(header: *mut Header<O>, outcome: u32);

/// Answer of a poll: wait until somebody wakes it.
pub const PENDING: u32 = 0;
/// Answer of a poll: others first, then poll it again.
pub const YIELDED: u32 = 1;
/// Answer of a poll: it has ended.
pub const DONE: u32 = 2;

/// Outcome of a coroutine whose poll answered [`DONE`].
pub const COMPLETED: u32 = 0;
/// Outcome of a coroutine that was cancelled: its poll will not be called again.
pub const CANCELLED_OUTCOME: u32 = 1;

/// The control block of a coroutine, in memory of the caller, at a fixed address from `spawn` until `finish` is called.
#[repr(C)]
pub struct Header<O: Order = Image> {
    pub(crate) link: Link,
    pub(crate) slot: Plain<*const Slot>,
    pub(crate) cid: Plain<u64>,
    pub(crate) poll: Poll<O>,
    pub(crate) finish: Finish<O>,
    /// Kind, priority and beginning, as the first word has them.
    pub(crate) initial: Initial,
    /// Place among equals; protected like the links.
    pub(crate) key: Plain<O::Key>,
}

impl<O: Order> Header<O> {
    /// A control block for a coroutine that is not spawned yet.
    ///
    /// `kind` means nothing to the scheduler. A `priority` of 64 or more counts as 63.
    #[inline]
    pub fn new(poll: Poll<O>, finish: Finish<O>, kind: u16, priority: u8) -> Header<O> {
        Header {
            link: Link::unlinked(),
            slot: Plain::new(core::ptr::null()),
            cid: Plain::new(0),
            poll,
            finish,
            initial: Initial::ready(kind, (priority as usize).min(PRIORITIES - 1)),
            key: Plain::new(O::Key::default()),
        }
    }

    /// The same for a coroutine that begins blocked: it is polled for the first time when somebody wakes it.
    #[inline]
    pub fn blocked(self) -> Header<O> {
        Header { initial: self.initial.blocked(), ..self }
    }

    /// The same for a coroutine whose place among its equals is `key`.
    #[inline]
    pub fn with_key(self, key: O::Key) -> Header<O> {
        Header { key: Plain::new(key), ..self }
    }

    /// Gives the coroutine another place among its equals, which counts when it becomes ready next.
    ///
    /// # Safety
    /// The caller is the coroutine's own poll; or the coroutine is not spawned yet.
    pub unsafe fn set_key(&self, key: O::Key) {
        // SAFETY: a key is read only of a coroutine that is in a list or on the way into one, by the lock's holder, and
        // the caller excludes both.
        unsafe { self.key.set(key) };
    }

    /// Writes the fields that a scheduler could still read by mistake.
    #[cfg(all(test, loom))]
    pub(crate) unsafe fn poison(&self) {
        // SAFETY: the caller's claim, which loom checks.
        unsafe { self.link.poison() };
    }

    /// What is called when the scheduler gives the control block back.
    pub fn finish(&self) -> Finish<O> {
        self.finish
    }

    /// The cid that `spawn` gave, 0 before.
    ///
    /// # Safety
    /// No `spawn` of this header runs at the same time.
    pub unsafe fn cid(&self) -> u64 {
        // SAFETY: only spawn writes it, and the caller excludes that.
        unsafe { self.cid.get() }
    }
}

/// One place for a coroutine: its state, and where its control block is.
#[repr(C)]
pub struct Slot {
    pub(crate) word: Word,
    /// The header; in a free slot, the next free slot.
    pub(crate) header: Plain<*const c_void>,
}

/// Functions of the caller that the executor calls, never while it holds a lock.
#[repr(C)]
pub struct Hooks<O: Order = Image> {
    /// Given to each of them.
    pub context: *mut c_void,
    /// Make this worker, which had found nothing to do, call `run` again.
    pub notify: Option<unsafe extern "C" fn(context: *mut c_void, worker: u32)>,
    /// The completion counters of this worker differ: take the completions and wake their coroutines.
    pub completions: Option<unsafe extern "C" fn(context: *mut c_void, worker: u32)>,
    /// Continue a coroutine that was suspended inside a poll, on its own stack. Returns when this stack is used again.
    pub resume: Option<unsafe extern "C" fn(context: *mut c_void, header: *mut Header<O>)>,
    /// A lock has been busy for long, so its holder probably has no processor: give it yours.
    pub relax: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// The worker that calls, and is awake; a number that no worker has if none does. Only asked where sharing is lazy.
    pub worker: Option<unsafe extern "C" fn(context: *mut c_void) -> u32>,
    /// When to notify an idle worker of work that a busy one could do.
    pub sharing: Sharing,
}

/// When to notify an idle worker that something has become ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Sharing {
    /// At once, and the worker of the shard if it is idle. Right where polls may be long and a notification is cheap:
    /// in a kernel, whose longest poll is a process.
    #[default]
    Eager = 0,
    /// Not for a single coroutine that is as important as the one that a busy worker polls: it gets its turn after that
    /// poll. If its own worker is idle it comes to the one that wakes it. Right where polls are short and a
    /// notification is a system call: coroutines that wake each other in turn then stay on one worker, instead of
    /// calling others for each message.
    Lazy = 1,
}

// Not derived, because a derive would ask for `O: Copy`, of which nothing is here.
impl<O: Order> Clone for Hooks<O> {
    fn clone(&self) -> Hooks<O> {
        *self
    }
}
impl<O: Order> Copy for Hooks<O> {}

impl<O: Order> Hooks<O> {
    /// No hook at all: enough for one worker whose caller knows when to run.
    pub const NONE: Hooks<O> = Hooks {
        context: core::ptr::null_mut(),
        notify: None,
        completions: None,
        resume: None,
        relax: None,
        worker: None,
        sharing: Sharing::Eager,
    };
}

/// Words that a worker looks at before each take. A null pointer means that there is nothing to look at.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Signals {
    /// Not 0: return from `run` with [`Outcome::Attention`].
    pub attention: *const AtomicU64,
    /// Counts completions that were posted.
    pub completion_tail: *const AtomicU64,
    /// Counts completions that were taken.
    pub completion_head: *const AtomicU64,
}

impl Signals {
    /// Nothing to look at.
    pub const NONE: Signals = Signals {
        attention: core::ptr::null(),
        completion_tail: core::ptr::null(),
        completion_head: core::ptr::null(),
    };
}

/// Why `run` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// Nothing is ready. The worker will be notified.
    Idle = 0,
    /// The attention word is not 0.
    Attention = 1,
    /// One coroutine was polled (`run_one` only).
    Ran = 2,
    /// Others outside of this executor are more important than all that is ready in it (`run_strictly` only).
    Outranked = 3,
}

/// The cid names no coroutine of this executor: it has exited, or never was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// Why a coroutine was not spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnError {
    /// Give the executor memory with `add_slots`, then try again.
    NeedSlots,
}

/// The executor already has all the slots it can ever have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Where a coroutine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// In a ready list.
    Ready = 1,
    /// Being polled.
    Running = 2,
    /// Waiting for a wake.
    Blocked = 3,
    /// Interrupted inside a poll, with a stack.
    Suspended = 4,
}

/// What a shard has counted since the executor was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Polls by its worker.
    pub polls: u64,
    /// Blocked coroutines that became ready in it.
    pub wakes: u64,
    /// Coroutines its worker took from other shards.
    pub steals: u64,
    /// Turns spent waiting for its lock.
    pub spins: u64,
    /// Atomic operations on it, and on the states of its coroutines, that had to be made again or given up because
    /// somebody else's came first.
    pub retries: u64,
}

/// The executor, in memory of the caller. It must not move.
#[repr(C, align(128))]
pub struct Executor<O: Order = Image> {
    // First, so that a shard's address is cheap to compute.
    shards_memory: [Shard; SHARDS],
    pub(crate) hooks: Hooks<O>,
    /// Workers that found nothing and returned.
    pub(crate) idle: AtomicU32,
    chunks: AtomicU32,
    /// Always 0: what signals that are not there point to.
    zero: AtomicU64,
    directory: [AtomicPtr<Slot>; CHUNKS],
}

// SAFETY: the table at the top of this file says what keeps the accesses to each field apart.
unsafe impl<O: Order> Sync for Executor<O> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl<O: Order> Send for Executor<O> {}

impl<O: Order> Executor<O> {
    /// Makes an executor in `memory`, with one shard and no worker.
    ///
    /// # Safety
    /// `memory` is valid for writes, aligned, and nobody uses it yet; it stays where it is for as long as the executor
    /// is used. `ready` stays valid as long; nobody but this executor writes it. The hooks may be called from whatever
    /// thread calls the executor.
    pub unsafe fn initialise(memory: *mut Executor<O>, ready: *const [ReadyWord; SHARDS], hooks: Hooks<O>) {
        // SAFETY: every write goes to a field of `memory`, which the caller says is ours to write.
        unsafe {
            put(&raw mut (*memory).hooks, hooks);
            put(&raw mut (*memory).idle, AtomicU32::new(0));
            put(&raw mut (*memory).chunks, AtomicU32::new(0));
            put(&raw mut (*memory).zero, AtomicU64::new(0));
            let zero = &raw const (*memory).zero;
            let signals = Signals { attention: zero, completion_tail: zero, completion_head: zero };
            for index in 0..SHARDS {
                Shard::initialise((&raw mut (*memory).shards_memory).cast::<Shard>().add(index), index, ready, signals);
            }
            let directory = (&raw mut (*memory).directory).cast::<AtomicPtr<Slot>>();
            for index in 0..CHUNKS {
                put(directory.add(index), AtomicPtr::new(core::ptr::null_mut()));
            }
        }
    }

    /// Gives the executor places for [`SLOTS_IN_CHUNK`] more coroutines.
    ///
    /// # Errors
    /// [`Full`]: it has [`CHUNKS`] chunks already; `memory` was not touched.
    ///
    /// # Safety
    /// `memory` is valid for writes of [`CHUNK_BYTES`](crate::CHUNK_BYTES), aligned to 16, unused, and stays the
    /// executor's for as long as that is used.
    pub unsafe fn add_slots(&self, memory: *mut c_void, hint: usize) -> Result<(), Full> {
        let slots = memory.cast::<Slot>();
        let mut chunk = self.chunks.load(Ordering::Relaxed);
        loop {
            if chunk as usize >= CHUNKS {
                return Err(Full);
            }
            // Relaxed: only the number matters; the chunk itself is published by the directory and by the free list.
            match self.chunks.compare_exchange(chunk, chunk + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => chunk = now,
            }
        }
        for place in 0..SLOTS_IN_CHUNK {
            // SAFETY: inside the caller's chunk.
            let (slot, next) = unsafe { (slots.add(place), slots.add(place + 1)) };
            let index = chunk * SLOTS_IN_CHUNK as u32 + place as u32;
            // SAFETY: as above; nobody knows the chunk yet.
            unsafe {
                put(slot, Slot { word: Word::free(index), header: Plain::new(next.cast()) });
            }
        }
        if let Some(place) = self.directory.get(chunk as usize) {
            // Release: whoever finds the chunk by a cid finds its words written. (Spawn finds it under the lock.)
            place.store(slots, Ordering::Release);
        }
        let shard = self.shard_for(hint);
        shard.lock(&self.hooks);
        // SAFETY: the last slot is in the chunk and the free list is ours, as we have the lock.
        unsafe {
            (*slots.add(SLOTS_IN_CHUNK - 1)).header.set(shard.free.get().cast());
            shard.free.set(slots);
        }
        shard.unlock();
        Ok(())
    }

    /// Announces a worker, from whose shard others may take from now on.
    ///
    /// # Safety
    /// The signals' words outlive the worker, and the worker does not run at the same time.
    pub unsafe fn add_worker(&self, worker: usize, signals: Signals) {
        let shard = self.shard(worker);
        let or_zero = |word: *const AtomicU64| if word.is_null() { &raw const self.zero } else { word };
        // SAFETY: the worker does not run, so nobody reads the signals.
        unsafe {
            shard.signals.set(Signals {
                attention: or_zero(signals.attention),
                completion_tail: or_zero(signals.completion_tail),
                completion_head: or_zero(signals.completion_head),
            });
        }
        let bit = 1 << shard.index;
        if shard.open.swap(1, Ordering::AcqRel) == 0 {
            for index in 0..SHARDS {
                if index != shard.index {
                    self.shard(index).others.fetch_or(bit, Ordering::AcqRel);
                }
            }
            // A worker that goes to sleep at this moment either sees the new shard, and leaves its mark in it, or we
            // see the worker. Each side writes its own word and then reads the other's, which only fences can order.
            fence(Ordering::SeqCst);
            let idle = self.idle.load(Ordering::Relaxed);
            shard.lock(&self.hooks);
            // SAFETY: we have the lock.
            unsafe { shard.sleepers.set(shard.sleepers.get() | idle) };
            shard.unlock();
        }
    }

    /// Says that a worker will not run any more, until `add_worker` is called again. Others take what is in its shard.
    ///
    /// The worker must not be inside `run`.
    pub fn remove_worker(&self, worker: usize) {
        let worker = self.shard(worker).index;
        self.idle.fetch_and(!(1 << worker), Ordering::AcqRel);
        // Whoever has linked something here and found the worker in a poll did so before this, and we see it.
        self.shard(worker).lock(&self.hooks);
        self.shard(worker).unlock();
        // It may have been notified of work that it will never look at, so pass that on.
        if (0..SHARDS).any(|shard| self.shard(shard).ready().load(Ordering::Relaxed) != 0) {
            self.notify_one(worker);
        }
    }

    /// Makes a coroutine, ready at once unless its header says that it begins [`blocked`](Header::blocked), and gives
    /// its cid.
    /// `hint` is the worker that probably calls.
    ///
    /// # Errors
    /// [`SpawnError::NeedSlots`]: nothing has changed.
    ///
    /// # Safety
    /// `header` was initialised and is not in use; it stays valid and in place until its `finish` is called; its
    /// functions may be called on any worker.
    pub unsafe fn spawn(&self, header: *mut Header<O>, hint: usize) -> Result<u64, SpawnError> {
        // SAFETY: the caller's promise is the same.
        match unsafe { self.spawn_or_0(header, hint) } {
            0 => Err(SpawnError::NeedSlots),
            cid => Ok(cid),
        }
    }

    // The functions that are called most come in two parts: one for the case that nothing is in the way, which needs no
    // stack, and one for all cases, which it jumps to.

    /// The cid, or 0 if slots are needed.
    ///
    /// # Safety
    /// As for [`spawn`](Self::spawn).
    #[inline(always)]
    pub(crate) unsafe fn spawn_or_0(&self, header: *mut Header<O>, hint: usize) -> u64 {
        let shard = self.shard_for(hint);
        if shard.try_lock() {
            // SAFETY: we have the lock.
            let slot = unsafe { shard.free.get() };
            if !slot.is_null() {
                // SAFETY: as above, and the caller's promise.
                return unsafe { self.spawn_into(shard, slot, header) };
            }
            shard.unlock();
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.spawn_slowly(shard, header) }
    }

    #[cold]
    #[inline(never)]
    unsafe fn spawn_slowly(&self, shard: &Shard, header: *mut Header<O>) -> u64 {
        shard.lock(&self.hooks);
        // SAFETY: we have the lock.
        let mut slot = unsafe { shard.free.get() };
        if slot.is_null() {
            slot = self.free_slots_of_others(shard);
        }
        if slot.is_null() {
            shard.unlock();
            return 0;
        }
        // SAFETY: as above, and the caller's promise.
        unsafe { self.spawn_into(shard, slot, header) }
    }

    /// Uses the first slot of the shard's free list; unlocks.
    ///
    /// # Safety
    /// The caller has the lock; `header` as for [`spawn`](Self::spawn).
    #[inline(always)]
    unsafe fn spawn_into(&self, shard: &Shard, slot: *const Slot, header: *mut Header<O>) -> u64 {
        // SAFETY: the slot is free and in the free list, whose lock we have, so nobody else uses it; the caller says
        // that the header is fresh.
        unsafe {
            shard.free.set((*slot).header.get().cast());
            let free = (*slot).word.read();
            let cid = free.cid_of_free();
            (*slot).header.set(header.cast_const().cast());
            (*header).slot.set(slot);
            (*header).cid.set(cid);
            let word = (*slot).word.spawn(free, (*header).initial, shard.index);
            if !word.is_held() {
                shard.unlock();
                return cid;
            }
            shard.link(header, word);
            self.unlock_and_notify(shard, header, cid)
        }
    }

    /// Takes the free slots of another shard for this one, which is locked and has none; gives the first, or null.
    fn free_slots_of_others(&self, shard: &Shard) -> *const Slot {
        let others = shard.others.load(Ordering::Relaxed);
        for index in 0..SHARDS {
            let other = self.shard(index);
            if others & 1 << index != 0 && other.try_lock() {
                // SAFETY: we have both locks. The second was only tried, so nobody waits in a circle.
                let slots = unsafe {
                    let slots = other.free.get();
                    other.free.set(core::ptr::null());
                    shard.free.set(slots);
                    slots
                };
                other.unlock();
                if !slots.is_null() {
                    return slots;
                }
            }
        }
        core::ptr::null()
    }

    /// Makes a blocked coroutine ready; one that is ready, running or suspended will be polled once more.
    ///
    /// What the caller wrote before is seen by that poll.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more). Nothing happened.
    pub fn wake(&self, cid: u64) -> Result<(), Stale> {
        if self.wake_or_1(cid) == 0 { Ok(()) } else { Err(Stale) }
    }

    /// 0, or 1 if the cid is stale.
    #[inline(always)]
    pub(crate) fn wake_or_1(&self, cid: u64) -> isize {
        let Ok(slot) = self.slot(cid) else { return 1 };
        let word = slot.word.read();
        if word.is_blocked() && word.is_of_generation(cid) {
            let shard = self.shard(word.shard());
            if shard.try_lock() {
                if slot.word.read() == word {
                    // SAFETY: we have the lock of its shard, and it is blocked.
                    return unsafe { self.make_ready(shard, slot, Reason::Wake) };
                }
                shard.unlock();
            }
        }
        self.wake_slowly(slot, cid)
    }

    /// As [`wake`](Self::wake), by a worker that will soon look for what is ready: a blocked coroutine comes to that
    /// worker, whose processor is awake and has just seen what it is about, in the place of calling the worker on which
    /// it ran last. Others are notified only if there is more for this worker than what it polls and one behind it.
    ///
    /// The tempting other way is to do so at every wake. But whoever wakes in the middle of something long keeps what
    /// it has woken waiting, unless it calls another worker, and then it better calls the one that knows the coroutine.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more). Nothing happened.
    pub fn wake_here(&self, cid: u64, worker: usize) -> Result<(), Stale> {
        let slot = self.slot(cid)?;
        let here = self.shard_for(worker);
        let word = slot.word.read();
        if !word.is_blocked() || !word.is_of_generation(cid) {
            return self.wake(cid);
        }
        let home = self.shard(word.shard());
        home.lock(&self.hooks);
        if slot.word.read() != word {
            home.unlock();
            return self.wake(cid);
        }
        // The coroutine is blocked, and every other way to make it ready needs the lock that we have.
        slot.word.make_ready_elsewhere(home.index, here.index);
        // SAFETY: the addition made us its one holder, so that the header is there and stays.
        let header: *const Header<O> = unsafe { slot.header.get().cast() };
        if home.index != here.index {
            home.unlock();
            here.lock(&self.hooks);
        }
        add(&here.wakes, 1);
        // The priority may have changed meanwhile: what we read under the lock of the list is the last one, or whoever
        // changes it waits for the lock.
        // SAFETY: we hold the coroutine, it is not linked, and we have the lock of its shard.
        unsafe {
            here.link(header, slot.word.read());
            if here.sleepers.get() != 0 {
                self.unlock_and_notify_idle(here, true);
            } else {
                here.unlock();
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn wake_slowly(&self, slot: &Slot, cid: u64) -> isize {
        isize::from(self.mark(slot, cid, Reason::Wake).is_err())
    }

    /// Leaves a mark in a coroutine that is not blocked, or makes a blocked one ready.
    #[inline(always)]
    fn mark(&self, slot: &Slot, cid: u64, reason: Reason) -> Result<(), Stale> {
        let mut word = slot.word.read();
        loop {
            if !word.belongs_to(cid) {
                return Err(Stale);
            }
            if word.is_blocked() {
                let shard = self.shard(word.shard());
                shard.lock(&self.hooks);
                let now = slot.word.read();
                if now == word {
                    // SAFETY: we have the lock of its shard, and it is blocked.
                    unsafe { self.make_ready(shard, slot, reason) };
                    return Ok(());
                }
                shard.unlock();
                word = now;
            } else {
                match slot.word.mark(word, reason) {
                    Ok(()) => return Ok(()),
                    Err(now) => {
                        self.shard(word.shard()).count_retry();
                        word = now;
                    }
                }
            }
        }
    }

    /// Links a blocked coroutine as ready; unlocks; gives 0.
    ///
    /// # Safety
    /// The caller has the lock of the coroutine's shard, and has seen the coroutine blocked under the lock.
    #[inline(always)]
    unsafe fn make_ready(&self, shard: &Shard, slot: &Slot, reason: Reason) -> isize {
        let word = slot.word.make_ready(reason);
        add(&shard.wakes, 1);
        // SAFETY: the addition made us its one holder, and the header exists until a worker takes it from the list.
        unsafe {
            let header = slot.header.get().cast();
            shard.link(header, word);
            self.unlock_and_notify(shard, header, 0)
        }
    }

    /// Asks for the end of a coroutine. It will not be polled again after a poll that is going on now; its `finish` is
    /// called with [`CANCELLED_OUTCOME`], by a worker. A poll that is going on may still complete it normally.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn cancel(&self, cid: u64) -> Result<(), Stale> {
        let slot = self.slot(cid)?;
        self.mark(slot, cid, Reason::Cancel)
    }

    /// Changes a coroutine's priority: a ready one moves to the end of its new list at once, a blocked or running one
    /// is linked there when it becomes ready. Numbers from 64 on count as 63.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn set_priority(&self, cid: u64, priority: u8) -> Result<(), Stale> {
        let priority = (priority as usize).min(PRIORITIES - 1);
        let slot = self.slot(cid)?;
        let mut word = slot.word.read();
        loop {
            if !word.belongs_to(cid) {
                return Err(Stale);
            }
            if word.priority() == priority {
                return Ok(());
            }
            match slot.word.set_priority(word, priority) {
                Ok(()) => break,
                Err(now) => {
                    self.shard(word.shard()).count_retry();
                    word = now;
                }
            }
        }
        if !word.is_awake() {
            return Ok(());
        }
        // It was held, so it may be linked at the old priority. If it has left this shard since, or was linked since,
        // the one who did that read the new priority.
        let shard = self.shard(word.shard());
        shard.lock(&self.hooks);
        if let Some((header, word)) = self.linked(slot, cid, shard) {
            // SAFETY: it is linked in this shard, whose lock we have.
            unsafe {
                shard.unlink(header);
                shard.link(header, word);
            }
        }
        shard.unlock();
        Ok(())
    }

    /// The coroutine's header, if it is linked in a list of this shard, whose lock the caller has; and its word.
    fn linked(&self, slot: &Slot, cid: u64, shard: &Shard) -> Option<(*const Header<O>, Value)> {
        let word = slot.word.read_for_links();
        if !word.belongs_to(cid) || !word.is_awake() || word.shard() != shard.index {
            return None;
        }
        // SAFETY: invariant Alive.
        let (header, linked) = unsafe {
            let header = slot.header.get().cast::<Header<O>>();
            (header, is_linked(header))
        };
        if linked { Some((header, word)) } else { None }
    }

    /// Where a coroutine is, at some moment during the call.
    ///
    /// # Errors
    /// [`Stale`]: it has exited, or never was.
    pub fn state(&self, cid: u64) -> Result<State, Stale> {
        let slot = self.slot(cid)?;
        let mut word = slot.word.read();
        loop {
            if !word.belongs_to(cid) {
                return Err(Stale);
            }
            if word.is_suspended() {
                return Ok(State::Suspended);
            }
            if !word.is_awake() {
                return Ok(State::Blocked);
            }
            let shard = self.shard(word.shard());
            shard.lock(&self.hooks);
            let linked = self.linked(slot, cid, shard).is_some();
            // If it is still held and in the same shard, it was not linked in another at that moment.
            let now = slot.word.read();
            shard.unlock();
            if linked {
                return Ok(State::Ready);
            }
            if now.is_of_generation(cid) && now.is_awake() && now.shard() == word.shard() {
                return Ok(State::Running);
            }
            word = now;
        }
    }

    /// A coroutine's priority.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn priority(&self, cid: u64) -> Result<u8, Stale> {
        self.word(cid).map(|word| word.priority() as u8)
    }

    /// The kind that a coroutine was spawned with.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn kind(&self, cid: u64) -> Result<u16, Stale> {
        self.word(cid).map(Value::kind)
    }

    /// The cid that a worker polls at this moment; `None` outside a poll.
    pub fn current(&self, worker: usize) -> Option<u64> {
        match self.shard(worker).current.load(Ordering::Relaxed) {
            0 => None,
            cid => Some(cid),
        }
    }

    /// What a shard has counted.
    pub fn counters(&self, shard: usize) -> Counters {
        let shard = self.shard(shard);
        Counters {
            polls: shard.polls.load(Ordering::Relaxed),
            wakes: shard.wakes.load(Ordering::Relaxed),
            steals: shard.steals.load(Ordering::Relaxed),
            spins: shard.spins.load(Ordering::Relaxed),
            retries: shard.retries.load(Ordering::Relaxed),
        }
    }

    /// Marks the coroutine that `worker` polls as suspended: its poll was interrupted and its stack is put aside. The
    /// worker may then run others on another stack. Gives its cid; `None` outside a poll.
    ///
    /// Wakes are remembered but do not make it ready; [`resume`](Self::resume) does, and the next take calls the
    /// `resume` hook on the same worker, because the interrupted poll returns into the `run` of that worker.
    ///
    /// # Safety
    /// The caller is the worker itself, in an interruption of the poll.
    pub unsafe fn suspend(&self, worker: usize) -> Option<u64> {
        let cid = self.current(worker)?;
        let slot = self.slot(cid).ok()?;
        if !slot.word.suspend(cid) {
            return None;
        }
        let shard = self.shard(worker);
        shard.current.store(0, Ordering::Relaxed);
        shard.running().store(0, Ordering::Relaxed);
        Some(cid)
    }

    /// Makes a suspended coroutine ready again, before its equals: its turn is not over. One that is not suspended
    /// stays as it is.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn resume(&self, cid: u64) -> Result<(), Stale> {
        let slot = self.slot(cid)?;
        let shard = self.shard(slot.word.read().shard());
        shard.lock(&self.hooks);
        // Nothing but this function ends the suspension, and nobody but its own worker moves it, so one look is enough.
        let word = slot.word.read();
        if word.is_of_generation(cid) && word.is_suspended() && word.shard() == shard.index {
            let word = slot.word.resume();
            // SAFETY: we have the lock of its shard; the addition made us its one holder.
            unsafe {
                let header = slot.header.get().cast();
                shard.link_first(header, word);
                self.unlock_and_notify(shard, header, 0);
            }
            return Ok(());
        }
        shard.unlock();
        if word.belongs_to(cid) { Ok(()) } else { Err(Stale) }
    }

    // ---- what run and the functions above are made of ----

    #[inline(always)]
    fn slot(&self, cid: u64) -> Result<&Slot, Stale> {
        let index = cid as u32;
        let Some(chunk) = self.directory.get((index / SLOTS_IN_CHUNK as u32) as usize) else { return Err(Stale) };
        // Acquire: pairs with `add_slots`, for cids that did not come from a spawn.
        let chunk = chunk.load(Ordering::Acquire);
        if chunk.is_null() {
            return Err(Stale);
        }
        // SAFETY: a chunk has that many slots and stays for as long as the executor.
        Ok(unsafe { &*chunk.add(cid as usize % SLOTS_IN_CHUNK) })
    }

    fn word(&self, cid: u64) -> Result<Value, Stale> {
        let word = self.slot(cid)?.word.read();
        if word.belongs_to(cid) { Ok(word) } else { Err(Stale) }
    }

    #[inline(always)]
    pub(crate) fn shard(&self, index: usize) -> &Shard {
        // The mask changes nothing, as in `Shard::list`.
        &self.shards_memory[index & (SHARDS - 1)]
    }

    /// The shard of this worker, or one that is looked at if that never had a worker.
    #[inline(always)]
    fn shard_for(&self, hint: usize) -> &Shard {
        let shard = self.shard(hint);
        if shard.open.load(Ordering::Relaxed) != 0 { shard } else { self.shard(0) }
    }

    /// Unlocks after `header` was linked; and if a worker sleeps that relied on this shard being empty, wakes one.
    /// Gives
    /// `result`.
    ///
    /// # Safety
    /// The caller has the lock.
    #[inline(always)]
    unsafe fn unlock_and_notify<T>(&self, shard: &Shard, header: *const Header<O>, result: T) -> T {
        // SAFETY: the lock protects it.
        if unsafe { shard.sleepers.get() } != 0 {
            // SAFETY: as above.
            return unsafe { self.unlock_with_sleepers(shard, header, result) };
        }
        shard.unlock();
        result
    }

    #[cold]
    #[inline(never)]
    unsafe fn unlock_with_sleepers<T>(&self, shard: &Shard, header: *const Header<O>, result: T) -> T {
        // SAFETY: the caller has the lock.
        unsafe {
            match self.hooks.sharing {
                Sharing::Eager => {
                    let is_anybody_there = self.sleepers_of(shard) != 0;
                    shard.unlock();
                    if is_anybody_there {
                        self.notify_one(shard.index);
                    }
                }
                Sharing::Lazy => self.unlock_lazily(shard, header),
            }
        }
        // If the compiler knew that the result is the argument, callers would need it back after the call, and a stack.
        core::hint::black_box(result)
    }

    /// Idle workers that rely on this shard being empty.
    ///
    /// # Safety
    /// The caller has the lock.
    unsafe fn sleepers_of(&self, shard: &Shard) -> u32 {
        // A worker sets its idle bit before its mark here. So if the mark is there and the idle bit is not, somebody
        // has claimed the worker since, and it will look at every shard before it sleeps again: the mark can go.
        // SAFETY: the caller has the lock.
        unsafe {
            let sleepers = shard.sleepers.get() & self.idle.load(Ordering::Relaxed);
            shard.sleepers.set(sleepers);
            sleepers
        }
    }

    /// Unlocks after `header` was linked. If the worker of this shard sleeps, and the calling one does not and has
    /// little to do, then that one gets the coroutine; and nobody is notified of what somebody who is awake will soon
    /// do.
    ///
    /// # Safety
    /// The caller has the lock.
    unsafe fn unlock_lazily(&self, shard: &Shard, header: *const Header<O>) {
        // SAFETY: the caller has the lock, and what is linked exists.
        let (sleepers, slot, cid) = unsafe { (self.sleepers_of(shard), (*header).slot.get(), (*header).cid.get()) };
        // The hook is not called under a lock, as all hooks.
        if sleepers & 1 << shard.index == 0 {
            // SAFETY: the caller has the lock.
            return unsafe { self.unlock_and_notify_idle(shard, false) };
        }
        shard.unlock();
        let caller = self.calling_worker().filter(|caller| caller.index != shard.index);
        if let Some(caller) = caller
            && self.idle.load(Ordering::Relaxed) & 1 << caller.index == 0
            && caller.ready().load(Ordering::Relaxed) == 0
        {
            shard.lock(&self.hooks);
            // SAFETY: slots stay for ever.
            let slot = unsafe { &*slot };
            let running = caller.running().load(Ordering::Relaxed);
            let is_next = |word: Value| running == 0 || running == 1 << word.priority();
            match self.linked(slot, cid, shard) {
                // Somebody has taken it already.
                None => return shard.unlock(),
                Some((_, word)) if word.has_stack() || !is_next(word) => shard.unlock(),
                Some((header, _)) => {
                    // As a theft by the calling worker.
                    // SAFETY: we have the lock, and then the other one.
                    unsafe {
                        shard.unlink(header);
                        slot.word.move_to(shard.index, caller.index);
                        shard.unlock();
                        caller.lock(&self.hooks);
                        // The priority may have changed meanwhile: as in `wake_here`.
                        caller.link(header, slot.word.read());
                        return self.unlock_and_notify_idle(caller, true);
                    }
                }
            }
        }
        self.notify_one(shard.index);
    }

    /// Unlocks after something was linked that stays in this shard, and notifies an idle worker unless this shard's
    /// worker will soon do it: the worker is in a poll, or is the one that calls, and what is ready is one coroutine
    /// whose turn comes after that poll. `calls` if it is known that it calls, and will not poll something more
    /// important for ever.
    ///
    /// # Safety
    /// The caller has the lock.
    unsafe fn unlock_and_notify_idle(&self, shard: &Shard, calls: bool) {
        // SAFETY: the caller has the lock.
        let (sleepers, is_one_turn) = unsafe { (self.sleepers_of(shard), shard.is_one_turn(calls)) };
        // A worker in a poll will look at its shard again: it says that it runs nothing only under the lock, when it
        // has found the shard empty.
        let is_in_a_poll = shard.running().load(Ordering::Relaxed) != 0;
        shard.unlock();
        if sleepers == 0 {
            return;
        }
        // A worker that has said that it is idle, and then was interrupted by who calls, must be told.
        let says_that_it_is_idle = sleepers & 1 << shard.index != 0;
        // A poll may wait in a call of the kernel. Another worker that calls looks at all shards before it sleeps, and
        // the kernel at what waits when it does not come to that; somebody who is no worker does not.
        let will_be_looked_at =
            || calls || self.calling_worker().is_some_and(|caller| is_in_a_poll || caller.index == shard.index);
        if !is_one_turn || says_that_it_is_idle || !will_be_looked_at() {
            self.notify_one(shard.index);
        }
    }

    /// The shard of the worker that calls, if one does.
    fn calling_worker(&self) -> Option<&Shard> {
        // SAFETY: the caller of `initialise` allowed it; no lock is held.
        let worker = unsafe { self.hooks.worker?(self.hooks.context) } as usize;
        (worker < SHARDS && self.shard(worker).open.load(Ordering::Relaxed) != 0).then(|| self.shard(worker))
    }

    /// Claims one idle worker, this one if possible, and notifies it.
    fn notify_one(&self, preferred: usize) {
        loop {
            let idle = self.idle.load(Ordering::Relaxed);
            if idle == 0 {
                return;
            }
            let worker = if idle & 1 << preferred != 0 { preferred } else { idle.trailing_zeros() as usize };
            if self.notify_if_idle(worker) {
                return;
            }
        }
    }

    /// Claims this worker if it is idle, and notifies it.
    pub(crate) fn notify_if_idle(&self, worker: usize) -> bool {
        // AcqRel: the claim is a link between the worker's last look and the notification.
        if self.idle.fetch_and(!(1 << worker), Ordering::AcqRel) & 1 << worker == 0 {
            return false;
        }
        if let Some(notify) = self.hooks.notify {
            // SAFETY: the caller of `initialise` allowed it; no lock is held.
            unsafe { notify(self.hooks.context, worker as u32) };
        }
        true
    }

    /// Marks the worker as idle if every shard is empty; says whether it is.
    ///
    /// The worker first sets its idle bit, then looks at each shard under its lock and leaves a mark there. Whoever
    /// makes something ready holds that lock: either before our look, and we see it, or after, and it sees the mark and
    /// then the idle bit. The lock that a wake needs anyway replaces the fence that a flag would need at each wake.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle(&self, worker: usize) -> bool {
        let bit = 1 << worker;
        self.idle.fetch_or(bit, Ordering::AcqRel);
        // With `add_worker`: we see the new shard, or it sees us.
        fence(Ordering::SeqCst);
        let shards = self.shard(worker).others.load(Ordering::Relaxed) | bit;
        for index in 0..SHARDS {
            if shards & 1 << index == 0 {
                continue;
            }
            let shard = self.shard(index);
            shard.lock(&self.hooks);
            // What only another worker can run is nothing for us; that worker runs or was notified.
            // SAFETY: we have the lock.
            let empty = shard.ready().load(Ordering::Relaxed) == 0
                || index != worker && unsafe { shard.first_for_others::<O>().0.is_null() };
            if empty {
                // SAFETY: as above.
                unsafe { shard.sleepers.set(shard.sleepers.get() | bit) };
            }
            shard.unlock();
            if !empty {
                // If somebody has claimed us meanwhile, a notification comes for nothing.
                self.idle.fetch_and(!bit, Ordering::AcqRel);
                return false;
            }
        }
        true
    }
}

impl<O: Order> Header<O> {
    /// Calls the caller's poll.
    ///
    /// # Safety
    /// The caller is the header's holder.
    #[inline(always)]
    pub(crate) unsafe fn call_poll(header: *const Header<O>, frame: *mut c_void) -> u32 {
        // SAFETY: whoever spawned it promised that it can be polled on any worker.
        unsafe { ((*header).poll)(header.cast_mut(), frame) }
    }

    /// Gives the block back to the caller.
    ///
    /// # Safety
    /// Its slot was freed by the caller, who holds no lock.
    #[inline(always)]
    pub(crate) unsafe fn call_finish(header: *const Header<O>, outcome: u32) {
        // SAFETY: we are its last user.
        unsafe { ((*header).finish)(header.cast_mut(), outcome) }
    }
}
