//! The state of a coroutine: one word, and every transition of it.
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

/// The executor holds the coroutine: ready or running.
pub(crate) const HELD: u64 = 1 << 0;
/// It was woken while it was held; the next poll answers this.
pub(crate) const WOKEN: u64 = 1 << 1;
/// It is to be finished without another poll.
pub(crate) const CANCELLED: u64 = 1 << 2;
/// It was interrupted inside a poll and keeps a stack.
pub(crate) const SUSPENDED: u64 = 1 << 3;
/// Nobody has this slot.
pub(crate) const FREE: u64 = 1 << 4;

/// None of these: blocked.
pub(crate) const NOT_BLOCKED: u64 = HELD | WOKEN | CANCELLED | SUSPENDED | FREE;
/// One of these: somebody else will link or poll it, or has done so.
pub(crate) const AWAKE: u64 = HELD | WOKEN | CANCELLED;

const GENERATION_FIELD: u64 = (u32::MAX as u64) << 32;
const SHARD_SHIFT: u32 = 5;
const PRIORITY_SHIFT: u32 = 8;
const PRIORITY_FIELD: u64 = 0b11_1111 << PRIORITY_SHIFT;
const KIND_SHIFT: u32 = 16;
const INDEX_SHIFT: u32 = 8;

/// The word of a free slot: it will be used with this generation.
pub(crate) const fn free(index: u32, generation: u32) -> u64 {
    (generation as u64) << 32 | (index as u64) << INDEX_SHIFT | FREE
}

/// The index in the word of a free slot.
pub(crate) const fn index_of_free(word: u64) -> u32 {
    word as u32 >> INDEX_SHIFT
}

/// The cid of the coroutine that takes this free slot.
pub(crate) const fn cid_of_free(word: u64) -> u64 {
    word & GENERATION_FIELD | index_of_free(word) as u64
}

/// Kind and priority in their places.
pub(crate) const fn initial(kind: u16, priority: usize) -> u64 {
    (kind as u64) << KIND_SHIFT | (priority as u64) << PRIORITY_SHIFT
}

/// In the initial word: the coroutine begins blocked. It lies where HELD does, so that one operation gives both
/// beginnings.
pub(crate) const BEGINS_BLOCKED: u64 = HELD;

/// The first word of a coroutine, from the word of the free slot: that of a ready one, or of a blocked one if it begins
/// so.
pub(crate) const fn spawned(free: u64, initial: u64, shard: usize) -> u64 {
    (free & GENERATION_FIELD | initial | (shard as u64) << SHARD_SHIFT) ^ HELD
}

/// Whether a word and a cid are of the same generation.
pub(crate) const fn same_generation(word: u64, cid: u64) -> bool {
    (word ^ cid) >> 32 == 0
}

/// The word's shard.
pub(crate) const fn shard(word: u64) -> usize {
    (word >> SHARD_SHIFT) as usize & (crate::SHARDS - 1)
}

/// What to add (wrapping) to a word to move it from one shard to another.
pub(crate) const fn shard_difference(from: usize, to: usize) -> u64 {
    (to as u64).wrapping_sub(from as u64).wrapping_mul(1 << SHARD_SHIFT)
}

/// The word's priority.
pub(crate) const fn priority(word: u64) -> usize {
    (word >> PRIORITY_SHIFT) as usize & (crate::PRIORITIES - 1)
}

/// The same word with another priority.
pub(crate) const fn with_priority(word: u64, priority: usize) -> u64 {
    word & !PRIORITY_FIELD | (priority as u64) << PRIORITY_SHIFT
}

/// The kind that the spawner gave.
pub(crate) const fn kind(word: u64) -> u16 {
    (word >> KIND_SHIFT) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let word = spawned(free(0xab_cdef, 0x1234_5678), initial(0xbeef, crate::PRIORITIES - 1), crate::SHARDS - 1);
        assert_eq!(index_of_free(free(0xab_cdef, 1)), 0xab_cdef);
        assert_eq!(word >> 32, 0x1234_5678);
        assert_eq!(kind(word), 0xbeef);
        assert_eq!(priority(word), crate::PRIORITIES - 1);
        assert_eq!(shard(word), crate::SHARDS - 1);
        assert_eq!(word & NOT_BLOCKED, HELD);
        let blocked = spawned(free(5, 7), initial(0xbeef, 3) | BEGINS_BLOCKED, 2);
        assert_eq!(blocked | HELD, spawned(free(5, 7), initial(0xbeef, 3), 2));
        assert_eq!(blocked & NOT_BLOCKED, 0);
        for from in 0..crate::SHARDS {
            for to in 0..crate::SHARDS {
                let word = spawned(free(5, 0x1234_5678), initial(0xbeef, 1), from);
                let moved = with_priority(word, 0).wrapping_add(shard_difference(from, to));
                assert_eq!(moved, spawned(free(5, 0x1234_5678), initial(0xbeef, 0), to));
            }
        }
        assert!(same_generation(word, 0x1234_5678_0000_0000));
        assert!(!same_generation(word, 0x1234_5679_0000_0000));
    }
}
