//! The executor: shards, slots, and all operations except the run loop.
//!
//! # Protection of the fields
//!
//! * A shard's lists, its `free` list, `sleepers`, `wakes`, and writes to its ready bitmap: the shard's lock.
//! * Reads of a shard's ready bitmap; its running word, `current`, `polls`, `steals`, `spins`: atomic; written by the
//!   worker, or under the lock.
//! * A shard's `retries`: atomic; any thread adds to it.
//! * A shard's `signals`: written by `add_worker`, read by the worker's `run`; the caller promises that the two do not
//!   run at the same time.
//! * A slot's word: atomic; see [`crate::state`].
//! * A slot's header pointer: written by the thread that takes or frees the slot, under a shard's lock; read by the
//!   thread that has made the coroutine ready.
//! * A header's links: the lock of the coroutine's shard.
//! * `idle`, `shards`, `chunks`, `directory`: atomic.
//!
//! No thread waits for a shard lock while it holds another: it only *tries* the second. So there is no deadlock, and no
//! lock order.

use core::ffi::c_void;

use crate::order::{Image, Order};
use crate::shard::{Link, Shard, add, is_linked};
use crate::state::{Initial, Reason, StateWord, Value};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, Plain, ReadyWord, fence, put};
use crate::{CHUNKS, PRIORITIES, SHARDS, SLOTS_IN_CHUNK};

/// Polls a coroutine, or takes its control block back, as [`step_of`] tells.
///
/// One function for both, because with very many coroutines each turn fetches the control block from memory, and a
/// table of two functions would be in yet another page.
pub type Step<O = Image> = unsafe extern "C" fn(header: *mut Header<O>, argument: *mut c_void, cid: u64) -> u32;

/// The meaning of the arguments of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOf {
    /// Poll the coroutine, which has this cid, and answer one of [`PENDING`], [`DONE`], [`YIELDED`].
    Poll {
        /// The argument of `run`: data of the stack that polls.
        frame: *mut c_void,
        /// The coroutine's own.
        cid: u64,
    },
    /// The executor will never access the control block again. The answer does not matter.
    Finish {
        /// One of [`COMPLETED`], [`CANCELLED_OUTCOME`].
        outcome: u32,
    },
}

/// Returns the meaning of the arguments of a [`Step`]: a cid is never 0.
#[inline(always)]
pub fn step_of(argument: *mut c_void, cid: u64) -> StepOf {
    match cid {
        0 => StepOf::Finish { outcome: argument.addr() as u32 },
        cid => StepOf::Poll { frame: argument, cid },
    }
}

/// Answer of a poll: the coroutine blocks until it is woken.
pub const PENDING: u32 = 0;
/// Answer of a poll: the coroutine is polled again after others.
pub const YIELDED: u32 = 1;
/// Answer of a poll: the coroutine has ended.
pub const DONE: u32 = 2;

/// Outcome of a coroutine whose poll answered [`DONE`].
pub const COMPLETED: u32 = 0;
/// Outcome of a coroutine that was cancelled: its poll will not be called again.
pub const CANCELLED_OUTCOME: u32 = 1;

/// The control block of a coroutine, in the caller's memory, at a fixed address from `spawn` until `finish` is called.
///
/// It is small, because with very many coroutines each turn fetches it from memory: one function, and no word for the
/// properties that only a spawn reads.
#[repr(C)]
pub struct Header<O: Order = Image> {
    pub(crate) link: Link,
    /// The slot; before `spawn`, the bits of an [`Initial`] instead of an address.
    pub(crate) slot: Plain<*const Slot>,
    pub(crate) cid: Plain<u64>,
    pub(crate) step: Step<O>,
    /// Place among equals; protected like the links.
    pub(crate) key: Plain<O::Key>,
}

impl<O: Order> Header<O> {
    /// Makes a control block for a coroutine that is not spawned yet.
    ///
    /// The scheduler does not interpret `kind`. A `priority` of 64 or more counts as 63.
    #[inline]
    pub fn new(step: Step<O>, kind: u16, priority: u8) -> Header<O> {
        Header {
            link: Link::unlinked(),
            slot: Plain::new(Initial::ready(kind, (priority as usize).min(PRIORITIES - 1)).in_place_of_slot()),
            cid: Plain::new(0),
            step,
            key: Plain::new(O::Key::default()),
        }
    }

    /// Makes the coroutine begin blocked: it is polled for the first time when it is woken.
    #[inline]
    pub fn blocked(self) -> Header<O> {
        // SAFETY: the header is the caller's alone.
        let initial = Initial::from_place_of_slot(unsafe { self.slot.get() });
        Header { slot: Plain::new(initial.blocked().in_place_of_slot()), ..self }
    }

    /// Sets the key of the coroutine, which determines its place among its equals.
    #[inline]
    pub fn with_key(self, key: O::Key) -> Header<O> {
        Header { key: Plain::new(key), ..self }
    }

    /// Replaces the function of a coroutine that is not spawned yet.
    #[inline]
    pub fn set_step(&mut self, step: Step<O>) {
        self.step = step;
    }

    /// Changes the key of the coroutine, which takes effect when it becomes ready next.
    ///
    /// # Safety
    /// The caller is the coroutine's own poll; or the coroutine is not spawned yet; or it is blocked, and no other code
    /// makes it ready meanwhile.
    pub unsafe fn set_key(&self, key: O::Key) {
        // SAFETY: a key is read only while the coroutine is in a list or is being linked, by the lock's holder, and the
        // caller excludes both.
        unsafe { self.key.set(key) };
    }

    /// Overwrites the fields that a scheduler could still read by mistake.
    #[cfg(all(test, loom))]
    pub(crate) unsafe fn poison(&self) {
        // SAFETY: the caller's claim, which loom checks.
        unsafe { self.link.poison() };
    }

    /// Returns the control block to the caller, with an outcome of any number.
    ///
    /// # Safety
    /// The scheduler has done so before, or the coroutine was never spawned.
    #[inline]
    pub unsafe fn finish(header: *mut Header<O>, outcome: u32) {
        // SAFETY: the caller's promise; the step was made for such control blocks.
        unsafe { ((*header).step)(header, core::ptr::without_provenance_mut(outcome as usize), 0) };
    }

    /// Returns the cid from `spawn`; 0 before.
    ///
    /// # Safety
    /// No `spawn` of this header runs at the same time.
    pub unsafe fn cid(&self) -> u64 {
        // SAFETY: only `spawn` writes it, and the caller excludes that.
        unsafe { self.cid.get() }
    }
}

/// One place for a coroutine: its state, and a pointer to its control block.
#[repr(C)]
pub struct Slot {
    pub(crate) word: StateWord,
    /// The header; in a free slot, the next free slot.
    pub(crate) header: Plain<*const c_void>,
}

/// Functions of the caller that the executor calls, never while it holds a lock.
#[repr(C)]
pub struct Hooks<O: Order = Image> {
    /// First argument of each hook.
    pub context: *mut c_void,
    /// Makes this worker, which was idle, call `run` again.
    pub notify: Option<unsafe extern "C" fn(context: *mut c_void, worker: u32)>,
    /// Takes completions and wakes their coroutines. Called when the completion counters of this worker differ.
    pub completions: Option<unsafe extern "C" fn(context: *mut c_void, worker: u32)>,
    /// Continues a coroutine that was suspended inside a poll, on its own stack. Returns when this stack is used again.
    pub resume: Option<unsafe extern "C" fn(context: *mut c_void, header: *mut Header<O>)>,
    /// Yields the processor to the holder of a lock that has been busy for long, and so probably has none.
    pub relax: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Returns the calling worker, which is awake; an invalid number if the caller is not a worker. Called only if
    /// sharing is lazy.
    pub worker: Option<unsafe extern "C" fn(context: *mut c_void) -> u32>,
    /// The policy for notifying an idle worker of coroutines that a busy worker could run.
    pub sharing: Sharing,
}

/// The policy for notifying an idle worker that a coroutine has become ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Sharing {
    /// An idle worker is notified at once, preferably the worker of the shard. Right if polls may be long and a
    /// notification is cheap: in a kernel, whose longest poll is a process.
    #[default]
    Eager = 0,
    /// No worker is notified of a single coroutine that is as important as the one that a busy worker polls: it gets
    /// its turn after that poll. If its own worker is idle, the coroutine migrates to the worker that wakes it. Right
    /// if polls are short and a notification is a system call: coroutines that wake each other in turn then stay on one
    /// worker, instead of notifying another for each message.
    Lazy = 1,
}

// Not derived, because a derive would require `O: Copy`, and the hooks contain no `O`.
impl<O: Order> Clone for Hooks<O> {
    fn clone(&self) -> Hooks<O> {
        *self
    }
}
impl<O: Order> Copy for Hooks<O> {}

impl<O: Order> Hooks<O> {
    /// No hooks: sufficient for one worker whose caller decides when to run.
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

/// Words that a worker reads before each take. A null pointer disables the check.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Signals {
    /// Attention word: while it is not 0, `run` returns [`Outcome::Attention`].
    pub attention: *const AtomicU64,
    /// Number of completions that were posted.
    pub completion_tail: *const AtomicU64,
    /// Number of completions that were taken.
    pub completion_head: *const AtomicU64,
}

impl Signals {
    /// No words.
    pub const NONE: Signals = Signals {
        attention: core::ptr::null(),
        completion_tail: core::ptr::null(),
        completion_head: core::ptr::null(),
    };
}

/// The reason why `run` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// No coroutine is ready. The worker will be notified.
    Idle = 0,
    /// The attention word is not 0.
    Attention = 1,
    /// One coroutine was polled (`run_one` only).
    Ran = 2,
    /// A priority outside of this executor is more important than every ready coroutine in it (`run_strictly` only).
    Outranked = 3,
}

/// The cid identifies no coroutine of this executor: it has exited, or never existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// The reason why a coroutine was not spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnError {
    /// The executor needs memory from `add_slots` before the next try.
    NeedSlots,
}

/// The executor has the largest possible number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The state of a coroutine.
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

/// The counters of a shard since the executor was initialised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Number of polls by its worker.
    pub polls: u64,
    /// Number of blocked coroutines that became ready in it.
    pub wakes: u64,
    /// Number of coroutines that its worker stole from other shards.
    pub steals: u64,
    /// Number of spins while waiting for its lock.
    pub spins: u64,
    /// Number of atomic operations on it, and on the states of its coroutines, that were repeated or abandoned because
    /// another thread's came first.
    pub retries: u64,
}

/// The executor, in the caller's memory. It must not move.
#[repr(C, align(128))]
pub struct Executor<O: Order = Image> {
    // First, so that a shard's address is cheap to compute.
    shards_memory: [Shard; SHARDS],
    pub(crate) hooks: Hooks<O>,
    /// Idle workers, as bits: they found no ready coroutine and returned.
    ///
    /// Changed by read-modify-writes with AcqRel: of the callers that notify a worker one takes its bit, and the worker
    /// sees, when it finds its bit taken, what that caller has linked. A look that only guesses is relaxed: the mark
    /// among a shard's `sleepers`, under its lock, decides.
    pub(crate) idle: AtomicU32,
    chunks: AtomicU32,
    /// Always 0: the target of the pointers of disabled signals.
    zero: AtomicU64,
    directory: [AtomicPtr<Slot>; CHUNKS],
}

/// Names and values of the offsets and sizes, in bytes, with which a debugger finds the coroutines of an executor.
pub const DEBUGGER_LAYOUT: [(&str, usize); 6] = [
    ("directory", core::mem::offset_of!(Executor, directory)),
    ("shard_size", size_of::<Shard>()),
    ("shard_current", core::mem::offset_of!(Shard, current)),
    ("slot_size", size_of::<Slot>()),
    ("slot_header", core::mem::offset_of!(Slot, header)),
    ("header_step", core::mem::offset_of!(Header, step)),
];

// SAFETY: the list at the top of this file states the protection of each field.
unsafe impl<O: Order> Sync for Executor<O> {}
// SAFETY: no field belongs to a thread.
unsafe impl<O: Order> Send for Executor<O> {}

impl<O: Order> Executor<O> {
    /// Makes an executor in `memory`, with one shard and no worker.
    ///
    /// # Safety
    /// `memory` is valid for writes, aligned, and not in use yet; it does not move while the executor is used. `ready`
    /// stays valid as long, and only this executor writes it. The hooks may be called from any thread that calls the
    /// executor.
    pub unsafe fn initialise(memory: *mut Executor<O>, ready: *const [ReadyWord; SHARDS], hooks: Hooks<O>) {
        // SAFETY: every write goes to a field of `memory`, which the caller allows.
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

    /// Adds slots for [`SLOTS_IN_CHUNK`] more coroutines.
    ///
    /// # Errors
    /// [`Full`]: the executor has [`CHUNKS`] chunks already; `memory` is unused.
    ///
    /// # Safety
    /// `memory` is valid for writes of [`CHUNK_BYTES`](crate::CHUNK_BYTES), aligned to 16, unused, and belongs to the
    /// executor as long as that is used.
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
            // SAFETY: as above; no other thread has a pointer to the chunk yet.
            unsafe {
                put(slot, Slot { word: StateWord::free(index), header: Plain::new(next.cast()) });
            }
        }
        if let Some(place) = self.directory.get(chunk as usize) {
            // Release: a thread that finds the chunk by a cid sees its words. (Spawn finds it under the lock.)
            place.store(slots, Ordering::Release);
        }
        let shard = self.shard_for(hint);
        shard.lock(&self.hooks);
        // SAFETY: the last slot is in the chunk, and this thread has the lock of the free list.
        unsafe {
            (*slots.add(SLOTS_IN_CHUNK - 1)).header.set(shard.free.get().cast());
            shard.free.set(slots);
        }
        shard.unlock();
        Ok(())
    }

    /// Adds a worker, from whose shard other workers may take from now on.
    ///
    /// # Safety
    /// The signals' words outlive the worker, and the worker does not run at the same time.
    pub unsafe fn add_worker(&self, worker: usize, signals: Signals) {
        let shard = self.shard(worker);
        let or_zero = |word: *const AtomicU64| if word.is_null() { &raw const self.zero } else { word };
        // SAFETY: the worker does not run, so no thread reads the signals.
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
            // A worker that goes to sleep at this moment either sees the new shard, and sets its mark in it, or this
            // thread sees the worker's idle bit. Each side writes its own word and then reads the other's, which only
            // fences can order.
            fence(Ordering::SeqCst);
            let idle = self.idle.load(Ordering::Relaxed);
            shard.lock(&self.hooks);
            // SAFETY: we have the lock.
            unsafe { shard.sleepers.set(shard.sleepers.get() | idle) };
            shard.unlock();
        }
    }

    /// Removes a worker, which will not run until `add_worker` is called again. Other workers take the coroutines in
    /// its shard.
    ///
    /// The worker must not be inside `run`.
    pub fn remove_worker(&self, worker: usize) {
        let worker = self.shard(worker).index;
        self.idle.fetch_and(!(1 << worker), Ordering::AcqRel);
        // A thread that has linked a coroutine here and found the worker in a poll did so before this lock, so this
        // thread sees the coroutine.
        self.shard(worker).lock(&self.hooks);
        self.shard(worker).unlock();
        // The worker may have been notified of coroutines that it will never run, so another worker is notified.
        if (0..SHARDS).any(|shard| self.shard(shard).ready().load(Ordering::Relaxed) != 0) {
            self.notify_one(worker);
        }
    }

    /// Spawns a coroutine, ready at once unless its header makes it begin [`blocked`](Header::blocked), and returns its
    /// cid. `hint` is the number of the worker that probably calls.
    ///
    /// # Errors
    /// [`SpawnError::NeedSlots`]; the executor is unchanged.
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

    // The most used functions have two parts: a fast path for the uncontended case, which needs no stack frame, and a
    // slow path for all cases, as a tail call.

    /// Spawns as [`spawn`](Self::spawn) does; returns the cid, or 0 if slots are needed.
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

    /// Spawns into the first slot of the shard's free list, and unlocks the shard.
    ///
    /// # Safety
    /// The caller has the lock; `header` as for [`spawn`](Self::spawn).
    #[inline(always)]
    unsafe fn spawn_into(&self, shard: &Shard, slot: *const Slot, header: *mut Header<O>) -> u64 {
        // SAFETY: the slot is free and in the free list, whose lock this thread has, so no other thread uses it; the
        // caller promises that the header is fresh.
        unsafe {
            shard.free.set((*slot).header.get().cast());
            let free = (*slot).word.read();
            let cid = free.cid_of_free();
            (*slot).header.set(header.cast_const().cast());
            let initial = Initial::from_place_of_slot((*header).slot.get());
            (*header).slot.set(slot);
            (*header).cid.set(cid);
            let word = (*slot).word.spawn(free, initial, shard.index);
            if !word.is_held() {
                shard.unlock();
                return cid;
            }
            shard.link(header, word);
            self.unlock_and_notify(shard, header, cid)
        }
    }

    /// Takes the free slots of another shard for this one, which is locked and has none; returns the first, or null.
    fn free_slots_of_others(&self, shard: &Shard) -> *const Slot {
        let others = shard.others.load(Ordering::Relaxed);
        for index in 0..SHARDS {
            let other = self.shard(index);
            if others & 1 << index != 0 && other.try_lock() {
                // SAFETY: this thread has both locks. The second was only tried, so there is no circular wait.
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

    /// Makes a blocked coroutine ready. A ready, running or suspended coroutine will be polled once more.
    ///
    /// That poll sees everything that the caller wrote before.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more). Nothing happened.
    #[doc(alias = "try_to_wake_up")]
    pub fn wake(&self, cid: u64) -> Result<(), Stale> {
        if self.wake_or_1(cid) == 0 { Ok(()) } else { Err(Stale) }
    }

    /// Wakes as [`wake`](Self::wake) does; returns 0, or 1 if the cid is stale.
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

    /// Wakes a coroutine from a worker that will soon look for ready coroutines: a blocked coroutine migrates to that
    /// worker, whose processor is awake and has the relevant data in its cache, instead of notifying the worker on
    /// which it ran last. Other workers are notified only if this worker has more than its current poll and one ready
    /// coroutine. Otherwise as [`wake`](Self::wake).
    ///
    /// Migrating at every wake is tempting and wrong. A worker that wakes a coroutine in the middle of a long operation
    /// delays it unless it notifies another worker, and then the worker on which the coroutine ran last is the better
    /// choice.
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
        // The coroutine is blocked, and every other transition to ready needs the lock that this thread has.
        slot.word.make_ready_elsewhere(home.index, here.index);
        // SAFETY: the addition made this thread its only holder, so the header exists and stays.
        let header: *const Header<O> = unsafe { slot.header.get().cast() };
        if home.index != here.index {
            home.unlock();
            here.lock(&self.hooks);
        }
        add(&here.wakes, 1);
        // The priority may have changed meanwhile: the value read under the lock of the list is the last one, or the
        // thread that changes it waits for the lock. SAFETY: this thread holds the coroutine, it is not linked, and
        // this thread has the lock of its shard.
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

    /// Marks a coroutine that is not blocked, or makes a blocked one ready.
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

    /// Makes a blocked coroutine ready, links it, and unlocks its shard; returns 0.
    ///
    /// # Safety
    /// The caller has the lock of the coroutine's shard, and has seen the coroutine blocked under the lock.
    #[inline(always)]
    unsafe fn make_ready(&self, shard: &Shard, slot: &Slot, reason: Reason) -> isize {
        let word = slot.word.make_ready(reason);
        add(&shard.wakes, 1);
        // SAFETY: the addition made this thread its only holder, and the header exists until a worker takes it from the
        // list.
        unsafe {
            let header = slot.header.get().cast();
            shard.link(header, word);
            self.unlock_and_notify(shard, header, 0)
        }
    }

    /// Cancels a coroutine. It will not be polled again after a poll that runs now; a worker calls its `finish` with
    /// [`CANCELLED_OUTCOME`]. A poll that runs now may still complete it normally.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn cancel(&self, cid: u64) -> Result<(), Stale> {
        let slot = self.slot(cid)?;
        self.mark(slot, cid, Reason::Cancel)
    }

    /// Changes a coroutine's priority. A ready coroutine moves to the end of its new list at once; a blocked or running
    /// one is linked there when it becomes ready. Numbers from 64 on count as 63.
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
        // the thread that did that read the new priority.
        let shard = self.shard(word.shard());
        shard.lock(&self.hooks);
        if let Some((header, word)) = self.linked(slot, cid, shard) {
            // SAFETY: it is linked in this shard, whose lock this thread has.
            unsafe {
                shard.unlink(header);
                shard.link(header, word);
            }
        }
        shard.unlock();
        Ok(())
    }

    /// Returns the coroutine's header and word if it is linked in a list of this shard, whose lock the caller has.
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

    /// Returns the state of a coroutine at some moment during the call.
    ///
    /// # Errors
    /// [`Stale`]: it has exited, or never existed.
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
            // If it is still held and in the same shard, it was not linked in another shard at that moment.
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

    /// Returns a coroutine's priority.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn priority(&self, cid: u64) -> Result<u8, Stale> {
        self.word(cid).map(|word| word.priority() as u8)
    }

    /// Returns the kind with which a coroutine was spawned.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn kind(&self, cid: u64) -> Result<u16, Stale> {
        self.word(cid).map(Value::kind)
    }

    /// Returns the cid of the coroutine that a worker polls at this moment; `None` outside a poll.
    pub fn current(&self, worker: usize) -> Option<u64> {
        match self.shard(worker).current.load(Ordering::Relaxed) {
            0 => None,
            cid => Some(cid),
        }
    }

    /// Returns the cid of the coroutine in a slot, by the slot's index: `Ok(None)` if the slot is free.
    ///
    /// # Errors
    /// [`Stale`]: there is no such slot, nor one with a larger index.
    pub fn cid_at(&self, index: u32) -> Result<Option<u64>, Stale> {
        let cid = self.slot(index.into())?.word.read().generation() | u64::from(index);
        Ok(self.word(cid).is_ok().then_some(cid))
    }

    /// Returns the counters of a shard.
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

    /// Marks the coroutine that `worker` polls as suspended: its poll was interrupted, and it keeps its stack. The
    /// worker may then run other coroutines on another stack. Returns the cid; `None` outside a poll.
    ///
    /// Wakes mark the coroutine but do not make it ready; [`resume`](Self::resume) does. The next take then calls the
    /// `resume` hook, on the same worker, because the interrupted poll returns into the `run` of that worker.
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

    /// Makes a suspended coroutine ready again, before its equals: its turn is not over. The state of any other
    /// coroutine is unchanged.
    ///
    /// # Errors
    /// [`Stale`]: there is no such coroutine (any more).
    pub fn resume(&self, cid: u64) -> Result<(), Stale> {
        let slot = self.slot(cid)?;
        let shard = self.shard(slot.word.read().shard());
        shard.lock(&self.hooks);
        // Only this function ends the suspension, and only its own worker moves the coroutine, so one check is enough.
        let word = slot.word.read();
        if word.is_of_generation(cid) && word.is_suspended() && word.shard() == shard.index {
            let word = slot.word.resume();
            // SAFETY: this thread has the lock of its shard; the addition made it the only holder.
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

    // ---- parts of the run loop and of the functions above ----

    #[inline(always)]
    fn slot(&self, cid: u64) -> Result<&Slot, Stale> {
        let index = cid as u32;
        let Some(chunk) = self.directory.get((index / SLOTS_IN_CHUNK as u32) as usize) else { return Err(Stale) };
        // Acquire: pairs with `add_slots`, for cids that do not come from a spawn.
        let chunk = chunk.load(Ordering::Acquire);
        if chunk.is_null() {
            return Err(Stale);
        }
        // SAFETY: a chunk has that many slots and lives as long as the executor.
        Ok(unsafe { &*chunk.add(cid as usize % SLOTS_IN_CHUNK) })
    }

    fn word(&self, cid: u64) -> Result<Value, Stale> {
        let word = self.slot(cid)?.word.read();
        if word.belongs_to(cid) { Ok(word) } else { Err(Stale) }
    }

    #[inline(always)]
    pub(crate) fn shard(&self, index: usize) -> &Shard {
        // The mask has no effect, as in `Shard::list`.
        &self.shards_memory[index & (SHARDS - 1)]
    }

    /// Returns the shard of this worker, or shard 0 if that worker never existed.
    #[inline(always)]
    fn shard_for(&self, hint: usize) -> &Shard {
        let shard = self.shard(hint);
        if shard.open.load(Ordering::Relaxed) != 0 { shard } else { self.shard(0) }
    }

    /// Unlocks after `header` was linked, and notifies a worker that sleeps because this shard was empty, if there is
    /// one. Returns `result`.
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
        // Without this the compiler would see that the result is the argument, and callers would keep it across the
        // call, in a stack frame.
        core::hint::black_box(result)
    }

    /// Returns the idle workers that rely on this shard being empty.
    ///
    /// # Safety
    /// The caller has the lock.
    unsafe fn sleepers_of(&self, shard: &Shard) -> u32 {
        // A worker sets its idle bit before its mark here. So if the mark is set and the idle bit is not, another
        // thread has claimed the worker since, and it will check every shard before it sleeps again: the mark can be
        // cleared. SAFETY: the caller has the lock.
        unsafe {
            let sleepers = shard.sleepers.get() & self.idle.load(Ordering::Relaxed);
            shard.sleepers.set(sleepers);
            sleepers
        }
    }

    /// Unlocks after `header` was linked. If the worker of this shard sleeps, and the calling worker is awake and has
    /// little to do, the coroutine migrates to the calling worker. No worker is notified of a coroutine that an awake
    /// worker will soon run.
    ///
    /// # Safety
    /// The caller has the lock.
    unsafe fn unlock_lazily(&self, shard: &Shard, header: *const Header<O>) {
        // SAFETY: the caller has the lock, and a linked header exists.
        let (sleepers, slot, cid) = unsafe { (self.sleepers_of(shard), (*header).slot.get(), (*header).cid.get()) };
        // The hook is not called under a lock, like all hooks.
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
            // SAFETY: slots live for ever.
            let slot = unsafe { &*slot };
            let running = caller.running().load(Ordering::Relaxed);
            let is_next = |word: Value| running == 0 || running == 1 << word.priority();
            match self.linked(slot, cid, shard) {
                // Another thread has taken it already.
                None => return shard.unlock(),
                Some((_, word)) if word.has_stack() || !is_next(word) => shard.unlock(),
                Some((header, _)) => {
                    // The calling worker steals the coroutine. SAFETY: this thread has the lock of the one shard, then
                    // of the other.
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

    /// Unlocks after a coroutine was linked that stays in this shard, and notifies an idle worker unless this shard's
    /// worker will soon run it: the worker is in a poll, or is the caller, and one coroutine is ready whose turn comes
    /// after that poll. `calls` states that the caller is this shard's worker and will not poll more important
    /// coroutines for ever.
    ///
    /// # Safety
    /// The caller has the lock.
    unsafe fn unlock_and_notify_idle(&self, shard: &Shard, calls: bool) {
        // SAFETY: the caller has the lock.
        let (sleepers, is_one_turn) = unsafe { (self.sleepers_of(shard), shard.is_one_turn(calls)) };
        // A worker in a poll will check its shard again: it clears its running word only under the lock, when it has
        // found the shard empty.
        let is_in_a_poll = shard.running().load(Ordering::Relaxed) != 0;
        shard.unlock();
        if sleepers == 0 {
            return;
        }
        // A worker that has set its idle bit, and was then interrupted by the caller, must be notified.
        let says_that_it_is_idle = sleepers & 1 << shard.index != 0;
        // A poll may wait in a system call. If the caller is another worker, it checks all shards before it sleeps, and
        // the kernel checks for ready coroutines if that worker blocks before it does. A caller that is not a worker
        // does neither.
        let will_be_looked_at =
            || calls || self.calling_worker().is_some_and(|caller| is_in_a_poll || caller.index == shard.index);
        if !is_one_turn || says_that_it_is_idle || !will_be_looked_at() {
            self.notify_one(shard.index);
        }
    }

    /// Returns the shard of the calling worker; `None` if the caller is not a worker.
    fn calling_worker(&self) -> Option<&Shard> {
        // SAFETY: the caller of `initialise` allowed it; no lock is held.
        let worker = unsafe { self.hooks.worker?(self.hooks.context) } as usize;
        (worker < SHARDS && self.shard(worker).open.load(Ordering::Relaxed) != 0).then(|| self.shard(worker))
    }

    /// Claims an idle worker, the preferred one if possible, and notifies it.
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

    /// Claims this worker if it is idle, and notifies it; returns whether it was idle.
    pub(crate) fn notify_if_idle(&self, worker: usize) -> bool {
        // AcqRel: the claim orders the worker's last check before the notification.
        if self.idle.fetch_and(!(1 << worker), Ordering::AcqRel) & 1 << worker == 0 {
            return false;
        }
        if let Some(notify) = self.hooks.notify {
            // SAFETY: the caller of `initialise` allowed it; no lock is held.
            unsafe { notify(self.hooks.context, worker as u32) };
        }
        true
    }

    /// Marks the worker as idle if every shard is empty; returns whether it is idle.
    ///
    /// The worker first sets its idle bit, then checks each shard under its lock and sets a mark there. A thread that
    /// makes a coroutine ready holds that lock: either before the check, and the worker sees the coroutine, or after
    /// it, and the thread sees the mark and then the idle bit. The lock that a wake needs anyway replaces the fence
    /// that a flag would need at each wake.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle(&self, worker: usize) -> bool {
        let bit = 1 << worker;
        self.idle.fetch_or(bit, Ordering::AcqRel);
        // Pairs with `add_worker`: this worker sees the new shard, or `add_worker` sees the idle bit.
        fence(Ordering::SeqCst);
        let shards = self.shard(worker).others.load(Ordering::Relaxed) | bit;
        for index in 0..SHARDS {
            if shards >> index == 0 {
                break;
            }
            if shards & 1 << index == 0 {
                continue;
            }
            let shard = self.shard(index);
            shard.lock(&self.hooks);
            // Coroutines that only another worker can run do not count; that worker runs or was notified. SAFETY: we
            // have the lock.
            let empty = shard.ready().load(Ordering::Relaxed) == 0
                || index != worker && unsafe { shard.first_for_others::<O>().0.is_null() };
            if empty {
                // SAFETY: as above.
                unsafe { shard.sleepers.set(shard.sleepers.get() | bit) };
            }
            shard.unlock();
            if !empty {
                // If another thread has claimed this worker meanwhile, its notification is spurious.
                self.idle.fetch_and(!bit, Ordering::AcqRel);
                return false;
            }
        }
        true
    }
}

impl<O: Order> Header<O> {
    /// Calls the caller's poll, of a coroutine with this cid.
    ///
    /// # Safety
    /// The caller is the header's holder.
    #[inline(always)]
    pub(crate) unsafe fn call_poll(header: *const Header<O>, frame: *mut c_void, cid: u64) -> u32 {
        // SAFETY: the spawner promised that it can be polled on any worker.
        unsafe { ((*header).step)(header.cast_mut(), frame, cid) }
    }

    /// Returns the block to the caller.
    ///
    /// # Safety
    /// The caller has freed the slot and holds no lock.
    #[inline(always)]
    pub(crate) unsafe fn call_finish(header: *const Header<O>, outcome: u32) {
        // SAFETY: this thread is its last user.
        unsafe { Header::finish(header.cast_mut(), outcome) }
    }
}
