//! The state of a coroutine: one word ([`Word`]), and every transition of it as a method.
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
//! block, so that a wake with a cid that is stale reads memory that is still there, and its compare-and-exchange fails
//! on the generation: *check and act are one instruction*, which no reference count or lock could make cheaper.
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
//! * **created**: a header that was never given to `spawn`. The executor does not know it.
//! * **ready**: the executor holds it (HELD, or WOKEN or CANCELLED alone) *and* it is linked into a list of its shard.
//! * **running**: the executor holds it and it is not linked: a worker polls it, or stands just before or after the
//!   poll.
//! * **blocked**: none of HELD, WOKEN, CANCELLED, SUSPENDED.
//! * **suspended**: SUSPENDED without HELD: interrupted in the middle of a poll, it keeps its stack.
//! * **exited**: FREE, or another generation.
//!
//! Whether a held coroutine is ready or running is not written in the word: it *is* where the block is. That makes
//! yield and take free of atomic operations of their own; they happen under the shard's lock anyway.
//!
//! # The transitions
//!
//! | transition | who | how | order, and why |
//! |---|---|---|---|
//! | created → ready, or → blocked if the header says so | spawner, holding a shard's lock | store | release: a waker that reads the word sees the slot's header pointer |
//! | blocked → ready | waker, holding the lock of its shard | fetch-add of HELD, after a look under the lock | acquire: sees the header that spawn or the last poll left. release: the poll to come sees what the waker did before |
//! | the same, coming to the waker's shard | waker, holding the lock of its old shard; it links it under that of the new one | fetch-add of HELD and the shards' difference | acquire and release as above; whoever takes the lock of the new shard meanwhile finds it held and not linked, as if it ran |
//! | ready, running, suspended: woken | waker | compare-exchange `+WOKEN` (also if set already) | release: as above, the poll that clears WOKEN acquires |
//! | ready → running | worker, holding the shard's lock | unlink | the lock orders it after the link |
//! | the same with WOKEN set | the worker that took it | fetch-and/or: `-WOKEN +HELD` | acquire: pairs with the waker's release |
//! | running → ready (yielded) | its worker, holding its shard's lock | link | the lock |
//! | running → blocked, or → ready if WOKEN or CANCELLED | its worker | one fetch-sub of HELD; what remains decides | release: the next worker sees what this poll wrote. (If WOKEN was set, the next take acquires what its waker wrote.) |
//! | running → suspended | its worker | compare-exchange, adds SUSPENDED − HELD | release: whoever resumes it sees its stack |
//! | suspended → ready | resumer, holding its shard's lock | fetch-add of HELD | acquire and release, as for a wake |
//! | running → exited | its worker, holding its shard's lock | swap with the next generation | release: whoever finds the cid stale sees what the coroutine did; every older compare-exchange fails |
//! | priority changes | anybody | compare-exchange of the field | relaxed but for the failure case: whoever links next reads the word after, and if it is linked already, the setter goes on to move it under the lock |
//! | cancelled | anybody | compare-exchange `+CANCELLED`, for a blocked one as wake | as wake |
//! | shard changes | a thief, holding the lock of the shard it takes from | fetch-add | release: whoever takes the lock of the new shard sees it unlinked, which happened under the lock of the old one |
//!
//! # Invariants
//!
//! * **Home**: a coroutine that runs on worker *w* has shard *w*; a linked one has the shard whose list it is in.
//! * **Alive**: under the lock of shard *k*, a word that is held, of the right generation and of shard *k* means that
//!   the caller's control block exists, because the block is given back only after an exit, and an exit needs that
//!   lock.
//! * **One holder**: HELD, WOKEN and CANCELLED together are cleared by the worker of a poll only, and whoever sets the
//!   first of them on a blocked coroutine is the one that links it. So a coroutine is linked at most once and polled by
//!   at most one worker.
//!
//! Two tempting wrong ways. To mark a blocked coroutine as ready first and to take the shard's lock afterwards: then
//! somebody who changes its priority in between finds it neither blocked nor linked, and it is linked at the old
//! priority. And to let a waker link into another shard when the coroutine's own is locked: then the lock's holder, who
//! has just seen the coroutine running, may look at a control block that was woken elsewhere, finished and given back
//! meanwhile.

use crate::sync::{AtomicU64, Ordering};
use crate::{PRIORITIES, SHARDS};

/// The executor holds the coroutine: ready or running.
const HELD: u64 = 1 << 0;
/// The coroutine was woken while it was held; the next poll answers the wake.
const WOKEN: u64 = 1 << 1;
/// The coroutine is to be finished without another poll.
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

/// A value of the word. It may be out of date as soon as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Value(u64);

impl Value {
    /// The value of a free slot, whose next coroutine will have this generation.
    const fn free(index: u32, generation: u32) -> Value {
        Value((generation as u64) << 32 | (index as u64) << INDEX_SHIFT | FREE)
    }

    /// Slot index in the value of a free slot.
    const fn index_of_free(self) -> u32 {
        self.0 as u32 >> INDEX_SHIFT
    }

    /// Cid of the coroutine that takes this free slot.
    #[inline(always)]
    pub(crate) const fn cid_of_free(self) -> u64 {
        self.0 & GENERATION_FIELD | self.index_of_free() as u64
    }

    /// First value of the coroutine that takes this free slot.
    #[inline(always)]
    const fn spawned(self, initial: Initial, shard: usize) -> Value {
        Value((self.0 & GENERATION_FIELD | initial.0 | (shard as u64) << SHARD_SHIFT) ^ HELD)
    }

    /// Whether the value belongs to the generation that the cid names. A free slot has the generation of its next
    /// coroutine, so that only a cid that was never given can name it.
    #[inline(always)]
    pub(crate) const fn is_of_generation(self, cid: u64) -> bool {
        (self.0 ^ cid) >> 32 == 0
    }

    /// Whether the cid names this coroutine, and the coroutine exists.
    #[inline(always)]
    pub(crate) const fn belongs_to(self, cid: u64) -> bool {
        self.is_of_generation(cid) && self.0 & FREE == 0
    }

    /// Whether a coroutine exists and is blocked.
    #[inline(always)]
    pub(crate) const fn is_blocked(self) -> bool {
        self.0 & (HELD | WOKEN | CANCELLED | SUSPENDED | FREE) == 0
    }

    /// Whether the coroutine is ready or running, or will be linked or polled because of a mark.
    #[inline(always)]
    pub(crate) const fn is_awake(self) -> bool {
        self.0 & (HELD | WOKEN | CANCELLED) != 0
    }

    /// Whether the executor holds the coroutine.
    #[inline(always)]
    pub(crate) const fn is_held(self) -> bool {
        self.0 & HELD != 0
    }

    /// Whether the coroutine keeps the stack of an interrupted poll, be it ready again or not.
    #[inline(always)]
    pub(crate) const fn has_stack(self) -> bool {
        self.0 & SUSPENDED != 0
    }

    /// Whether the coroutine is suspended and was not resumed yet.
    #[inline(always)]
    pub(crate) const fn is_suspended(self) -> bool {
        self.0 & (FREE | SUSPENDED | HELD) == SUSPENDED
    }

    /// Whether a worker that takes the coroutine has more to do than to poll it.
    #[inline(always)]
    pub(crate) const fn is_marked(self) -> bool {
        self.0 & (WOKEN | CANCELLED | SUSPENDED) != 0
    }

    /// Shard of the coroutine.
    #[inline(always)]
    pub(crate) const fn shard(self) -> usize {
        (self.0 >> SHARD_SHIFT) as usize & (SHARDS - 1)
    }

    /// Priority of the coroutine.
    #[inline(always)]
    pub(crate) const fn priority(self) -> usize {
        (self.0 >> PRIORITY_SHIFT) as usize & (PRIORITIES - 1)
    }

    /// The value with another priority.
    const fn with_priority(self, priority: usize) -> Value {
        Value(self.0 & !PRIORITY_FIELD | (priority as u64) << PRIORITY_SHIFT)
    }

    /// Kind that the spawner gave.
    pub(crate) const fn kind(self) -> u16 {
        (self.0 >> KIND_SHIFT) as u16
    }
}

/// The part of the first value that the spawner chooses: kind, priority, and whether the coroutine begins blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Initial(u64);

impl Initial {
    /// A coroutine that begins ready. The priority is below [`PRIORITIES`].
    #[inline(always)]
    pub(crate) const fn ready(kind: u16, priority: usize) -> Initial {
        Initial((kind as u64) << KIND_SHIFT | (priority as u64) << PRIORITY_SHIFT)
    }

    /// The same kind and priority for a coroutine that begins blocked. The flag lies where HELD does, so that one
    /// operation gives both beginnings.
    #[inline(always)]
    pub(crate) const fn blocked(self) -> Initial {
        Initial(self.0 | HELD)
    }
}

/// Addend that moves a word from one shard to another (wrapping).
const fn shard_difference(from: usize, to: usize) -> u64 {
    (to as u64).wrapping_sub(from as u64).wrapping_mul(1 << SHARD_SHIFT)
}

/// A reason to make a coroutine ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// To be polled.
    Wake,
    /// To be finished without another poll.
    Cancel,
}

impl Reason {
    /// The flag that is left in a coroutine that is not blocked.
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
    /// Blocked: the next waker holds it.
    Blocked,
    /// Woken or cancelled during the poll: ready, and still held by this worker.
    Ready,
}

/// What the worker that has taken a marked coroutine does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a taken coroutine is polled, resumed or finished by its worker"]
pub(crate) enum Taken {
    /// Poll it: it had been woken while it was held.
    Poll,
    /// Continue the interrupted poll on its own stack.
    Resume,
    /// Finish it without another poll.
    Finish,
}

/// Whether a freed slot can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a slot whose generations are used up must never be used again"]
pub(crate) enum Freed {
    /// The slot has another generation to give.
    Reusable,
    /// All generations are used up: no cid may ever mean two coroutines.
    UsedUp,
}

/// The state word of a slot. Each method that changes it is one transition of the table above.
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

impl Word {
    /// A free slot's first word.
    pub(crate) fn free(index: u32) -> Word {
        Word(AtomicU64::new(Value::free(index, 1).0))
    }

    /// Reads the word. Relaxed: a hint without the shard's lock, ordered by the lock with it.
    #[inline(always)]
    pub(crate) fn read(&self) -> Value {
        Value(self.0.load(Ordering::Relaxed))
    }

    /// Reads the word under a shard's lock to find out whether the coroutine is linked there. Acquire: a coroutine that
    /// was stolen into this shard was unlinked under another lock.
    #[inline(always)]
    pub(crate) fn read_for_links(&self) -> Value {
        Value(self.0.load(Ordering::Acquire))
    }

    /// free → ready, or → blocked if `initial` says so. The caller has taken the slot, whose word was `free`, from a
    /// free list, holds the shard's lock, and has written slot and header. Release: a waker that reads the word sees
    /// the slot's header pointer.
    #[inline(always)]
    pub(crate) fn spawn(&self, free: Value, initial: Initial, shard: usize) -> Value {
        let value = free.spawned(initial, shard);
        self.0.store(value.0, Ordering::Release);
        value
    }

    /// blocked → ready. The caller holds the lock of the coroutine's shard and has seen it blocked under that lock,
    /// which every other transition out of blocked needs too. Gives the value before, whose priority is the last one:
    /// it may change at any moment. Acquire: sees the header that the spawn or the last poll left. Release: the poll to
    /// come sees what the waker did before.
    #[inline(always)]
    pub(crate) fn make_ready(&self, reason: Reason) -> Value {
        let flags = match reason {
            Reason::Wake => HELD,
            Reason::Cancel => HELD | CANCELLED,
        };
        Value(self.0.fetch_add(flags, Ordering::AcqRel))
    }

    /// blocked → ready in another shard. As [`make_ready`](Self::make_ready); the coroutine is then held and linked
    /// nowhere, as one that a worker steals, and the caller links it under the lock of `to`. Release also for the
    /// next holder of that lock, which finds the coroutine unlinked.
    #[inline(always)]
    pub(crate) fn make_ready_elsewhere(&self, from: usize, to: usize) {
        self.0.fetch_add(HELD.wrapping_add(shard_difference(from, to)), Ordering::AcqRel);
    }

    /// Leaves a mark in a coroutine that is not blocked: the next poll, or its end, answers it. Written also when the
    /// mark is there already, because the write hands the caller's memory to the poll: release, and the poll that
    /// clears the mark acquires.
    ///
    /// # Errors
    /// The value now, if it is not `seen` any more; nothing was changed.
    #[inline(always)]
    pub(crate) fn mark(&self, seen: Value, reason: Reason) -> Result<(), Value> {
        self.exchange(seen, Value(seen.0 | reason.mark()), Ordering::Release)
    }

    /// Changes the priority. Relaxed: whoever links next reads the word after, and if the coroutine is linked already
    /// the caller goes on to move it under the lock.
    ///
    /// # Errors
    /// The value now, if it is not `seen` any more; nothing was changed.
    #[inline(always)]
    pub(crate) fn set_priority(&self, seen: Value, priority: usize) -> Result<(), Value> {
        self.exchange(seen, seen.with_priority(priority), Ordering::Relaxed)
    }

    /// ready → running of a coroutine with a mark, by the worker that has unlinked it. A suspended coroutine keeps
    /// WOKEN: its poll has begun before the wake, so it must be polled again afterwards. Acquire: the poll sees what
    /// the waker did before.
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

    /// running → blocked, or → ready if a wake or a cancellation came during the poll. One subtraction decides: if
    /// nothing is left, the next waker is the holder, otherwise this worker still is. Release: the next poll sees what
    /// this one wrote, if another worker does it.
    #[inline(always)]
    pub(crate) fn leave_pending(&self) -> AfterPending {
        let before = self.0.fetch_sub(HELD, Ordering::Release);
        if before & (WOKEN | CANCELLED) == 0 { AfterPending::Blocked } else { AfterPending::Ready }
    }

    /// running → suspended, by the coroutine's worker in an interruption of its poll. `false` if the cid is not one
    /// that is being polled. Release: whoever finds it suspended sees what its poll has done.
    #[must_use = "a coroutine that is not suspended goes on running"]
    pub(crate) fn suspend(&self, cid: u64) -> bool {
        let suspended = |word: u64| {
            let is_polled = Value(word).is_of_generation(cid) && word & (FREE | SUSPENDED | HELD) == HELD;
            is_polled.then(|| word + (SUSPENDED - HELD))
        };
        self.0.fetch_update(Ordering::Release, Ordering::Relaxed, suspended).is_ok()
    }

    /// suspended → ready. The caller holds the lock of its shard and has seen it suspended under that lock; nothing
    /// else ends a suspension. Gives the value before, as [`make_ready`](Self::make_ready), whose orders it has.
    pub(crate) fn resume(&self) -> Value {
        Value(self.0.fetch_add(HELD, Ordering::AcqRel))
    }

    /// Moves a held coroutine to another shard. The caller holds the lock of `from` and has unlinked it. Release:
    /// whoever finds it in the other shard, and so takes that lock, finds it unlinked.
    #[inline(always)]
    pub(crate) fn move_to(&self, from: usize, to: usize) {
        self.0.fetch_add(shard_difference(from, to), Ordering::Release);
    }

    /// running → exited, by its worker, which holds its shard's lock: from here on the cid is stale, and every older
    /// compare-exchange fails. The spawner that takes the slot is ordered by the lock. Release: whoever finds the cid
    /// stale sees what the coroutine did.
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

    /// Each transition as the table has it, one after the other on one word.
    #[cfg(not(loom))]
    #[test]
    fn a_life_goes_through_the_table() {
        let word = Word::free(9);
        let free = word.read();
        let cid = free.cid_of_free();
        assert!(free.is_of_generation(cid) && !free.belongs_to(cid), "a free slot is nobody's");
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
