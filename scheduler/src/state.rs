//! The state of a coroutine: one word ([`StateWord`]), and every transition of it as a method.
//!
//! # The word
//!
//! ```text
//!  63            32 31        16 15 14 13       8 7     5 4      3         2         1     0
//! +----------------+------------+-----+----------+-------+----+---------+---------+-----+----+
//! |   generation   |    kind    |     | priority | shard |FREE|SUSPENDED|CANCELLED|WOKEN|HELD|
//! +----------------+------------+-----+----------+-------+----+---------+---------+-----+----+
//! ```
//!
//! While FREE is set, bits 8 to 31 are the slot's index instead. The word lies in the slot, not in the caller's control
//! block, so that a wake with a stale cid reads memory that still exists, and its compare-exchange fails on the
//! generation: *check and act are one instruction*, which no reference count or lock could make cheaper. (A wake of a
//! blocked coroutine checks under the shard's lock instead.)
//!
//! # The states
//!
//! ```text
//!                    spawn                    take                        poll: done
//!       created ---------------->  ready  -------------->  running  ---------------------->  exited
//!                                   ^ ^                     |  |  |                            ^
//!                                   | |    poll: yielded,   |  |  |                            |
//!                                   | +--- or pending and --+  |  | suspend                    |
//!                                   |      woken meanwhile     |  v                            |
//!                              wake,|                          |  suspended                     |
//!                            cancel |          poll: pending   |      |                         |
//!                                   +---------  blocked <------+      | resume: ready, and      |
//!                                                                     | a stack instead of a    |
//!                                   ready, CANCELLED set: taken       v poll next time          |
//!                                   and finished without a poll --------------------------------+
//! ```
//!
//! * **created**: a header that was never passed to `spawn`. No part of the executor refers to it.
//! * **ready**: the executor holds it (HELD, or WOKEN or CANCELLED alone) *and* it is linked in a list of its shard.
//! * **running**: the executor holds it and it is not linked: a worker polls it, or is just before or after the poll.
//! * **blocked**: none of HELD, WOKEN, CANCELLED, SUSPENDED.
//! * **suspended**: SUSPENDED without HELD: interrupted in the middle of a poll, it keeps its stack.
//! * **exited**: FREE, or another generation.
//!
//! The word does not distinguish a ready from a running coroutine: the links of its control block do. So yield and take
//! need no atomic operations of their own; they happen under the shard's lock anyway.
//!
//! # The transitions
//!
//! Each transition names the thread that makes it, its operation, and the reason for its memory order.
//!
//! * **created → ready**, or → blocked as the header determines. By the spawner, under a shard's lock: a store.
//!   Release: a waker that reads the word sees the slot's header pointer.
//! * **blocked → ready.** By the waker, under the lock of the coroutine's shard: fetch-add of HELD, after a check under
//!   the lock. Acquire: sees the header that the spawn or the last poll left. Release: the next poll sees everything
//!   that the waker did before.
//! * **blocked → ready in the waker's shard.** By the waker, under the lock of the old shard: fetch-add of HELD and the
//!   difference of the shards; then it links the coroutine under the lock of the new shard. Acquire and release as
//!   above. A thread that takes the lock of the new shard meanwhile finds the coroutine held and not linked, as if it
//!   ran.
//! * **ready, running, suspended: woken.** By the waker: compare-exchange that adds WOKEN (also if it is set already).
//!   Release: as above; the poll that clears WOKEN acquires.
//! * **ready → running.** By a worker, under the shard's lock: unlink. The lock orders it after the link.
//! * **ready → running with WOKEN set.** By the worker that has taken it: compare-exchange that clears WOKEN and sets
//!   HELD. Acquire: pairs with the waker's release.
//! * **running → ready** (yielded). By its worker, under its shard's lock: link. The lock orders it.
//! * **running → blocked**, or → ready if WOKEN or CANCELLED. By its worker: one fetch-sub of HELD; the remaining flags
//!   decide. Release: the next worker sees everything that this poll wrote. (If WOKEN was set, the next take acquires
//!   the writes of its waker.)
//! * **running → suspended.** By its worker: compare-exchange that adds SUSPENDED − HELD. Release: the resumer sees its
//!   stack.
//! * **suspended → ready.** By the resumer, under its shard's lock: fetch-add of HELD. Acquire and release as for a
//!   wake.
//! * **running → exited.** By its worker, under its shard's lock: swap with the next generation. Release: a thread that
//!   finds the cid stale sees everything that the coroutine did; every older compare-exchange fails.
//! * **priority changes.** By any thread: compare-exchange of the field. Relaxed: a thread that links the coroutine
//!   next reads the word afterwards, and if it is linked already, the setter moves it under the lock.
//! * **cancelled.** By any thread: compare-exchange that adds CANCELLED; for a blocked coroutine as a wake. Orders as
//!   for a wake.
//! * **shard changes.** By a thief, under the lock of the shard from which it steals: fetch-add. Release: a thread that
//!   takes the lock of the new shard sees the coroutine unlinked, which happened under the lock of the old one.
//!
//! # Invariants
//!
//! * **Home**: a coroutine that runs on worker *w* has shard *w*; a linked one has the shard whose list it is in.
//! * **Alive**: under the lock of shard *k*, a word that is held, of the right generation and of shard *k* means that
//!   the caller's control block exists, because the block is returned only after an exit, and an exit needs that lock.
//! * **One holder**: HELD, WOKEN and CANCELLED together are cleared by the worker of a poll only, and the thread that
//!   sets the first of them on a blocked coroutine links it. So a coroutine is linked at most once and polled by at
//!   most one worker.
//!
//! Two designs are tempting and wrong. The first marks a blocked coroutine as ready before it takes the shard's lock: a
//! thread that changes the priority in between then finds the coroutine neither blocked nor linked, and it is linked at
//! the old priority. The second lets a waker link the coroutine into another shard when its own is locked: the lock's
//! holder, which has just seen the coroutine running, may then read a control block that was woken elsewhere, finished
//! and returned meanwhile.

use crate::executor::Slot;
use crate::sync::{AtomicU64, Ordering};
use crate::{PRIORITIES, SHARDS};

/// The executor holds the coroutine: ready or running.
const HELD: u64 = 1 << 0;
/// The coroutine was woken while it was held; the next poll answers the wake.
const WOKEN: u64 = 1 << 1;
/// The coroutine will be finished without another poll.
const CANCELLED: u64 = 1 << 2;
/// The coroutine was interrupted inside a poll and keeps a stack.
const SUSPENDED: u64 = 1 << 3;
/// The slot has no coroutine.
const FREE: u64 = 1 << 4;

const GENERATION_FIELD: u64 = (u32::MAX as u64) << 32;
const SHARD_SHIFT: u32 = 5;
const PRIORITY_SHIFT: u32 = 8;
const PRIORITY_FIELD: u64 = 0b11_1111 << PRIORITY_SHIFT;
const KIND_SHIFT: u32 = 16;
const INDEX_SHIFT: u32 = 8;

/// A value of the word. It may be stale as soon as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Value(u64);

impl Value {
    /// Makes the value of a free slot, whose next coroutine will have this generation.
    const fn free(index: u32, generation: u32) -> Value {
        Value((generation as u64) << 32 | (index as u64) << INDEX_SHIFT | FREE)
    }

    /// Returns the slot index in the value of a free slot.
    const fn index_of_free(self) -> u32 {
        self.0 as u32 >> INDEX_SHIFT
    }

    /// Returns the cid of the coroutine that takes this free slot.
    #[inline(always)]
    pub(crate) const fn cid_of_free(self) -> u64 {
        self.0 & GENERATION_FIELD | self.index_of_free() as u64
    }

    /// Returns the first value of the coroutine that takes this free slot.
    #[inline(always)]
    const fn spawned(self, initial: Initial, shard: usize) -> Value {
        Value((self.0 & GENERATION_FIELD | initial.0 | (shard as u64) << SHARD_SHIFT) ^ HELD)
    }

    /// Returns whether the value has the generation of the cid. A free slot has the generation of its next coroutine,
    /// so that only a forged cid matches it.
    #[inline(always)]
    pub(crate) const fn is_of_generation(self, cid: u64) -> bool {
        (self.0 ^ cid) >> 32 == 0
    }

    /// Returns the generation, in the upper half of the result as in a cid.
    pub(crate) const fn generation(self) -> u64 {
        self.0 & GENERATION_FIELD
    }

    /// Returns whether the cid identifies this coroutine and the coroutine exists.
    #[inline(always)]
    pub(crate) const fn belongs_to(self, cid: u64) -> bool {
        self.is_of_generation(cid) && self.0 & FREE == 0
    }

    /// Returns whether a coroutine exists and is blocked.
    #[inline(always)]
    pub(crate) const fn is_blocked(self) -> bool {
        self.0 & (HELD | WOKEN | CANCELLED | SUSPENDED | FREE) == 0
    }

    /// Returns whether the coroutine is ready or running, or will be linked or polled because of a mark.
    #[inline(always)]
    pub(crate) const fn is_awake(self) -> bool {
        self.0 & (HELD | WOKEN | CANCELLED) != 0
    }

    /// Returns whether the executor holds the coroutine.
    #[inline(always)]
    pub(crate) const fn is_held(self) -> bool {
        self.0 & HELD != 0
    }

    /// Returns whether the coroutine keeps the stack of an interrupted poll, ready again or not.
    #[inline(always)]
    pub(crate) const fn has_stack(self) -> bool {
        self.0 & SUSPENDED != 0
    }

    /// Returns whether the coroutine is suspended and was not resumed yet.
    #[inline(always)]
    pub(crate) const fn is_suspended(self) -> bool {
        self.0 & (FREE | SUSPENDED | HELD) == SUSPENDED
    }

    /// Returns whether a worker that takes the coroutine must handle a mark before it polls.
    #[inline(always)]
    pub(crate) const fn is_marked(self) -> bool {
        self.0 & (WOKEN | CANCELLED | SUSPENDED) != 0
    }

    /// Returns the shard of the coroutine.
    #[inline(always)]
    pub(crate) const fn shard(self) -> usize {
        (self.0 >> SHARD_SHIFT) as usize & (SHARDS - 1)
    }

    /// Returns the priority of the coroutine.
    #[inline(always)]
    pub(crate) const fn priority(self) -> usize {
        (self.0 >> PRIORITY_SHIFT) as usize & (PRIORITIES - 1)
    }

    /// Returns the value with another priority.
    const fn with_priority(self, priority: usize) -> Value {
        Value(self.0 & !PRIORITY_FIELD | (priority as u64) << PRIORITY_SHIFT)
    }

    /// Returns the kind that the spawner chose.
    pub(crate) const fn kind(self) -> u16 {
        (self.0 >> KIND_SHIFT) as u16
    }
}

/// The part of the first value that the spawner chooses: kind, priority, and whether the coroutine begins ready or
/// blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Initial(u64);

impl Initial {
    /// Makes the value of a coroutine that begins ready. The priority must be below [`PRIORITIES`].
    #[inline(always)]
    pub(crate) const fn ready(kind: u16, priority: usize) -> Initial {
        Initial((kind as u64) << KIND_SHIFT | (priority as u64) << PRIORITY_SHIFT)
    }

    /// Makes the coroutine begin blocked. The flag is at the position of HELD, so that one operation computes the first
    /// value in both cases.
    #[inline(always)]
    pub(crate) const fn blocked(self) -> Initial {
        Initial(self.0 | HELD)
    }

    /// Returns the bits in the form in which a header that has no slot yet keeps them.
    #[inline(always)]
    pub(crate) const fn in_place_of_slot(self) -> *const Slot {
        core::ptr::without_provenance(self.0 as usize)
    }

    /// Returns the value that a header without a slot keeps.
    #[inline(always)]
    pub(crate) fn from_place_of_slot(place: *const Slot) -> Initial {
        Initial(place.addr() as u64)
    }
}

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "a pointer has room for a first value");

/// Computes the addend that moves a word from one shard to another (wrapping).
const fn shard_difference(from: usize, to: usize) -> u64 {
    (to as u64).wrapping_sub(from as u64).wrapping_mul(1 << SHARD_SHIFT)
}

/// A reason to make a coroutine ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The coroutine is polled.
    Wake,
    /// The coroutine is finished without another poll.
    Cancel,
}

impl Reason {
    /// Returns the flag that marks a coroutine that is not blocked.
    #[inline(always)]
    const fn mark(self) -> u64 {
        match self {
            Reason::Wake => WOKEN,
            Reason::Cancel => CANCELLED,
        }
    }
}

/// The state after a poll that answered "pending".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a coroutine that was woken during its poll is still held by this worker"]
pub(crate) enum AfterPending {
    /// Blocked: the next waker becomes its holder.
    Blocked,
    /// Woken or cancelled during the poll: ready, and still held by this worker.
    Ready,
}

/// The next step of the worker that has taken a marked coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a taken coroutine is polled, resumed or finished by its worker"]
pub(crate) enum Taken {
    /// Poll it: it was woken while it was held.
    Poll,
    /// Continue the interrupted poll on its own stack.
    Resume,
    /// Finish it without another poll.
    Finish,
}

/// Reusability of a freed slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a slot whose generations are used up must never be used again"]
pub(crate) enum Freed {
    /// The slot has a further generation.
    Reusable,
    /// All generations are used up: a cid must never identify two coroutines.
    UsedUp,
}

/// The state word of a slot. Each method that changes it is one transition of the list above.
#[repr(transparent)]
pub(crate) struct StateWord(AtomicU64);

impl StateWord {
    /// Makes the first word of a free slot.
    pub(crate) fn free(index: u32) -> StateWord {
        StateWord(AtomicU64::new(Value::free(index, 1).0))
    }

    /// Reads the word. Relaxed: without the shard's lock the value is a hint; with it, the lock orders the read.
    #[inline(always)]
    pub(crate) fn read(&self) -> Value {
        Value(self.0.load(Ordering::Relaxed))
    }

    /// Reads the word under a shard's lock, to check whether the coroutine is linked there. Acquire: a coroutine that
    /// was stolen into this shard was unlinked under another lock.
    #[inline(always)]
    pub(crate) fn read_for_links(&self) -> Value {
        Value(self.0.load(Ordering::Acquire))
    }

    /// Spawns a coroutine: free → ready, or → blocked, by `initial`. The caller has taken the slot, whose word was
    /// `free`, from a free list, holds the shard's lock, and has written slot and header. Release: a waker that reads
    /// the word sees the slot's header pointer.
    #[inline(always)]
    pub(crate) fn spawn(&self, free: Value, initial: Initial, shard: usize) -> Value {
        let value = free.spawned(initial, shard);
        self.0.store(value.0, Ordering::Release);
        value
    }

    /// Makes a coroutine ready: blocked → ready. The caller holds the lock of the coroutine's shard and has seen it
    /// blocked under that lock, which every other transition out of blocked needs too. Returns the old value, whose
    /// priority is current at this moment but may change at any time. Acquire: sees the header that the spawn or the
    /// last poll left. Release: the next poll sees everything that the waker did before.
    #[inline(always)]
    pub(crate) fn make_ready(&self, reason: Reason) -> Value {
        let flags = match reason {
            Reason::Wake => HELD,
            Reason::Cancel => HELD | CANCELLED,
        };
        Value(self.0.fetch_add(flags, Ordering::AcqRel))
    }

    /// Makes a coroutine ready in another shard: blocked → ready. As [`make_ready`](Self::make_ready). The coroutine is
    /// then held and not linked, like one that is being stolen, and the caller links it under the lock of `to`. Release
    /// also for the next holder of that lock, which finds the coroutine unlinked.
    #[inline(always)]
    pub(crate) fn make_ready_elsewhere(&self, from: usize, to: usize) {
        self.0.fetch_add(HELD.wrapping_add(shard_difference(from, to)), Ordering::AcqRel);
    }

    /// Marks a coroutine that is not blocked: the next poll, or its end, serves the mark. The word is written even if
    /// the mark is set already, because the write publishes the caller's memory to the poll: release, and the poll that
    /// clears the mark acquires.
    ///
    /// # Errors
    /// The value now, if it is not `seen` any more; nothing was changed.
    #[inline(always)]
    pub(crate) fn mark(&self, seen: Value, reason: Reason) -> Result<(), Value> {
        self.exchange(seen, Value(seen.0 | reason.mark()), Ordering::Release)
    }

    /// Changes the priority. Relaxed: a thread that links the coroutine next reads the word afterwards, and if it is
    /// linked already the caller moves it under the lock.
    ///
    /// # Errors
    /// The value now, if it is not `seen` any more; nothing was changed.
    #[inline(always)]
    pub(crate) fn set_priority(&self, seen: Value, priority: usize) -> Result<(), Value> {
        self.exchange(seen, seen.with_priority(priority), Ordering::Relaxed)
    }

    /// Takes a coroutine with a mark: ready → running, by the worker that has unlinked it. A suspended coroutine keeps
    /// WOKEN: its poll has begun before the wake, so it must be polled again afterwards. Acquire: the poll sees
    /// everything that the waker did before.
    ///
    /// # Errors
    /// The value now, if it is not `seen` any more; nothing was changed.
    #[inline(always)]
    pub(crate) fn take_marked(&self, seen: Value) -> Result<Taken, Value> {
        let cleared = if seen.has_stack() { SUSPENDED } else { WOKEN };
        self.exchange(seen, Value(seen.0 & !cleared | HELD), Ordering::AcqRel)?;
        Ok(if seen.has_stack() {
            Taken::Resume
        } else if seen.0 & CANCELLED != 0 {
            Taken::Finish
        } else {
            Taken::Poll
        })
    }

    /// Leaves a coroutine after a pending poll: running → blocked, or → ready if a wake or a cancellation came during
    /// the poll. One subtraction decides: if no flag is left, the next waker becomes the holder, otherwise this worker
    /// remains it. Release: the next poll sees everything that this one wrote, even on another worker.
    #[inline(always)]
    pub(crate) fn leave_pending(&self) -> AfterPending {
        let before = self.0.fetch_sub(HELD, Ordering::Release);
        if before & (WOKEN | CANCELLED) == 0 { AfterPending::Blocked } else { AfterPending::Ready }
    }

    /// Suspends a coroutine: running → suspended, by its worker in an interruption of its poll. Returns `false` if the
    /// coroutine of this cid is not being polled. Release: a thread that finds it suspended sees everything that its
    /// poll has done.
    #[must_use = "a coroutine that is not suspended goes on running"]
    pub(crate) fn suspend(&self, cid: u64) -> bool {
        let suspended = |word: u64| {
            let is_polled = Value(word).is_of_generation(cid) && word & (FREE | SUSPENDED | HELD) == HELD;
            is_polled.then(|| word + (SUSPENDED - HELD))
        };
        self.0.fetch_update(Ordering::Release, Ordering::Relaxed, suspended).is_ok()
    }

    /// Resumes a coroutine: suspended → ready. The caller holds the lock of its shard and has seen it suspended under
    /// that lock; no other transition ends a suspension. Returns the old value, with the memory orders of
    /// [`make_ready`](Self::make_ready).
    pub(crate) fn resume(&self) -> Value {
        Value(self.0.fetch_add(HELD, Ordering::AcqRel))
    }

    /// Moves a held coroutine to another shard. The caller holds the lock of `from` and has unlinked it. Release: a
    /// thread that finds it in the other shard, and so takes that lock, finds it unlinked.
    #[inline(always)]
    pub(crate) fn move_to(&self, from: usize, to: usize) {
        self.0.fetch_add(shard_difference(from, to), Ordering::Release);
    }

    /// Ends a coroutine: running → exited, by its worker, which holds its shard's lock: from here on the cid is stale,
    /// and every older compare-exchange fails. The lock orders the spawner that takes the slot. Release: a thread that
    /// finds the cid stale sees everything that the coroutine did.
    #[inline(always)]
    pub(crate) fn exit(&self, cid: u64) -> Freed {
        let generation = ((cid >> 32) as u32).wrapping_add(1);
        self.0.swap(Value::free(cid as u32, generation).0, Ordering::Release);
        if generation == 0 { Freed::UsedUp } else { Freed::Reusable }
    }

    #[inline(always)]
    fn exchange(&self, seen: Value, new: Value, success: Ordering) -> Result<(), Value> {
        match self.0.compare_exchange_weak(seen.0, new.0, success, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(now) => Err(Value(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let free = Value::free(0xab_cdef, 0x1234_5678);
        let value = free.spawned(Initial::ready(0xbeef, PRIORITIES - 1), SHARDS - 1);
        assert_eq!(Value::free(0xab_cdef, 1).index_of_free(), 0xab_cdef);
        assert_eq!(free.cid_of_free(), 0x1234_5678_00ab_cdef);
        assert_eq!(value.0 >> 32, 0x1234_5678);
        assert_eq!(value.kind(), 0xbeef);
        assert_eq!(value.priority(), PRIORITIES - 1);
        assert_eq!(value.shard(), SHARDS - 1);
        assert_eq!(value.0 & 0b1_1111, HELD);
        let free = Value::free(5, 7);
        let blocked = free.spawned(Initial::ready(0xbeef, 3 & (PRIORITIES - 1)).blocked(), SHARDS - 1);
        assert!(blocked.is_blocked());
        assert_eq!(blocked.0 | HELD, free.spawned(Initial::ready(0xbeef, 3 & (PRIORITIES - 1)), SHARDS - 1).0);
        for from in 0..SHARDS {
            for to in 0..SHARDS {
                let free = Value::free(5, 0x1234_5678);
                let value = free.spawned(Initial::ready(0xbeef, 1), from);
                let moved = value.with_priority(0).0.wrapping_add(shard_difference(from, to));
                assert_eq!(moved, free.spawned(Initial::ready(0xbeef, 0), to).0);
            }
        }
        assert!(value.is_of_generation(0x1234_5678_0000_0000));
        assert!(!value.is_of_generation(0x1234_5679_0000_0000));
    }

    /// All transitions of the list, one after the other on one word.
    #[cfg(not(loom))]
    #[test]
    fn a_life_goes_through_the_table() {
        let word = StateWord::free(9);
        let free = word.read();
        let cid = free.cid_of_free();
        assert!(free.is_of_generation(cid) && !free.belongs_to(cid), "a free slot belongs to no cid");
        assert!(!free.is_blocked() && !free.is_suspended());
        let spawned = word.spawn(free, Initial::ready(7, 3).blocked(), 2);
        assert_eq!(spawned, word.read());
        assert!(spawned.belongs_to(cid) && spawned.is_blocked() && !spawned.is_awake());

        assert_eq!(word.make_ready(Reason::Wake), spawned);
        assert!(word.read().is_held() && !word.read().is_marked());
        assert_eq!(word.leave_pending(), AfterPending::Blocked);

        word.make_ready_elsewhere(2, 5);
        let seen = word.read();
        assert_eq!((seen.shard(), seen.priority(), seen.kind(), seen.is_held()), (5, 3, 7, true));
        assert_eq!(word.set_priority(seen, 9), Ok(()));
        let now = word.read();
        assert_eq!(word.set_priority(seen, 1), Err(now), "a value that is out of date changes nothing");
        assert_eq!((now.priority(), now.shard()), (9, 5));
        word.move_to(5, 0);
        assert_eq!(word.read().shard(), 0);

        // Woken during its poll, twice: one more poll.
        for _ in 0..2 {
            assert_eq!(word.mark(word.read(), Reason::Wake), Ok(()));
        }
        assert_eq!(word.leave_pending(), AfterPending::Ready);
        assert!(word.read().is_marked() && word.read().is_awake() && !word.read().is_held());
        assert_eq!(word.take_marked(word.read()), Ok(Taken::Poll));
        assert!(word.read().is_held() && !word.read().is_marked());

        // Suspended, woken meanwhile: resumed, and polled again afterwards.
        assert!(!word.suspend(cid ^ 1 << 32), "another generation");
        assert!(word.suspend(cid));
        assert!(!word.suspend(cid), "it is suspended already");
        assert!(word.read().is_suspended() && word.read().has_stack() && !word.read().is_awake());
        assert_eq!(word.mark(word.read(), Reason::Wake), Ok(()));
        assert!(word.resume().is_suspended());
        assert!(word.read().has_stack() && !word.read().is_suspended());
        assert_eq!(word.take_marked(word.read()), Ok(Taken::Resume));
        assert!(!word.read().has_stack());
        assert_eq!(word.leave_pending(), AfterPending::Ready);
        assert_eq!(word.take_marked(word.read()), Ok(Taken::Poll));

        // Cancelled, while it runs and while it is blocked.
        assert_eq!(word.mark(word.read(), Reason::Cancel), Ok(()));
        assert_eq!(word.leave_pending(), AfterPending::Ready);
        assert_eq!(word.take_marked(word.read()), Ok(Taken::Finish));
        assert_eq!(word.exit(cid), Freed::Reusable);
        assert!(!word.read().is_of_generation(cid));
        let next = word.read().cid_of_free();
        assert_eq!((next as u32, next >> 32), (9, 2));
        word.spawn(word.read(), Initial::ready(7, 3).blocked(), 0);
        assert!(word.make_ready(Reason::Cancel).is_blocked());
        assert_eq!(word.take_marked(word.read()), Ok(Taken::Finish));
        assert_eq!(word.exit(u64::from(u32::MAX) << 32 | 9), Freed::UsedUp);
    }
}
