//! Running: take the most important ready coroutine, poll it, put it where the answer says.
//!
//! The loop keeps the coroutine that was just polled in its hands until it has to take the shard's lock for the next
//! one anyway: requeueing or freeing the last and taking the next are one critical section. What is between two polls
//! is therefore: two or three loads for the signals, one lock, a few stores.
//!
//! The same loop exists a second time for *strict* global priority, where each poll is preceded by a comparison with
//! the bitmap of what is ready elsewhere. It is another function and not a flag, so that whoever does not want it pays
//! nothing.

use core::ffi::c_void;

use crate::executor::{CANCELLED_OUTCOME, COMPLETED, DONE, Executor, Header, Outcome, PENDING};
use crate::order::Order;
use crate::shard::{Shard, add};
use crate::state::{AfterPending, Taken, Value};
use crate::sync::{AtomicU64, Ordering};
use crate::{PRIORITIES, SHARDS};

/// After this many polls a worker prefers other shards to its own once, at equal priority.
///
/// While every worker has coroutines of the same priority in its own shard, nobody would otherwise look into the shard
/// of a worker that was removed or does not get a processor.
const FAIRNESS_TURN: u64 = 64;

impl<O: Order> Executor<O> {
    /// Polls ready coroutines, most important first, until nothing is ready or the attention word is set.
    ///
    /// # Safety
    /// No other `run` of this worker is going on, except below a suspended poll. `frame` is what the polls expect.
    pub unsafe fn run(&self, worker: usize, frame: *mut c_void) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.run_loop::<false, false>(worker, frame, Elsewhere::NOTHING) }
    }

    /// As [`run`](Self::run), but compares the most important ready coroutine with `elsewhere` before each poll but the
    /// first, and returns with [`Outcome::Outranked`] if something more important is ready there.
    ///
    /// The first poll is free so that a caller who was outranked, let others run and was chosen again makes progress,
    /// even if the bitmap is out of date or what it tells of runs on another processor. `ceiling` is the most important
    /// priority that counts for this executor: what is ready in it beyond that is compared as if it were there.
    ///
    /// # Safety
    /// As for [`run`](Self::run); `elsewhere` is valid until this returns.
    pub unsafe fn run_strictly(
        &self,
        worker: usize,
        frame: *mut c_void,
        elsewhere: *const AtomicU64,
        ceiling: u32,
    ) -> Outcome {
        let least = 1 << (ceiling as usize & (PRIORITIES - 1));
        // SAFETY: the caller's promise is the same, and the word is valid.
        unsafe { self.run_loop::<false, true>(worker, frame, Elsewhere { bitmap: elsewhere, least }) }
    }

    /// As [`run`](Self::run), but returns after one coroutine was polled, resumed or finished.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    pub unsafe fn run_one(&self, worker: usize, frame: *mut c_void) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.run_loop::<true, false>(worker, frame, Elsewhere::NOTHING) }
    }

    #[inline(always)]
    unsafe fn run_loop<const ONE: bool, const STRICT: bool>(
        &self,
        worker: usize,
        frame: *mut c_void,
        elsewhere: Elsewhere,
    ) -> Outcome {
        let shard = self.shard(worker);
        // SAFETY: `add_worker` of this worker is not going on, as its caller promised.
        let signals = unsafe { shard.signals.get() };
        // SAFETY: the caller of `add_worker` promised that they live; or they are our own zero.
        let (attention, tail, head) =
            unsafe { (&*signals.attention, &*signals.completion_tail, &*signals.completion_head) };
        let bit = 1 << shard.index;
        if self.idle.load(Ordering::Relaxed) & bit != 0 {
            self.idle.fetch_and(!bit, Ordering::AcqRel);
        }

        let published = shard.published();
        // Relaxed: the words only say that something is to be done; whoever does it orders itself.
        let is_signalled =
            || attention.load(Ordering::Relaxed) != 0 || tail.load(Ordering::Relaxed) != head.load(Ordering::Relaxed);
        let mut polls: u64 = 0;
        loop {
            // Here the worker has no coroutine in its hands.
            if is_signalled() {
                if attention.load(Ordering::Relaxed) != 0 {
                    shard.leave(polls);
                    return Outcome::Attention;
                }
                if let Some(completions) = self.hooks.completions {
                    // SAFETY: the caller of `initialise` allowed it; no lock is held.
                    unsafe { completions(self.hooks.context, shard.index as u32) };
                }
            }
            // SAFETY: the word is valid, as the caller of `run_strictly` promised.
            if STRICT && polls != 0 && unsafe { self.is_outranked(shard, elsewhere, 0) } {
                shard.leave(polls);
                return Outcome::Outranked;
            }
            shard.lock(&self.hooks);
            let bitmap = published.0.load(Ordering::Relaxed);
            let mut header;
            if shard.others.load(Ordering::Relaxed) == 0 && bitmap != 0 {
                // SAFETY: we have the lock, and are its worker.
                header = unsafe { shard.take(published, bitmap) };
                shard.unlock();
            } else {
                // SAFETY: we have the lock.
                header = unsafe { self.take_among(shard, polls) };
                if header.is_null() {
                    if self.settle(shard.index) {
                        shard.leave(polls);
                        return Outcome::Idle;
                    }
                    continue;
                }
            }

            // And here it has one, and goes on as long as there is one to go on with.
            // SAFETY: we took it from a list, so we are its holder, nobody else polls it, and its block exists until we
            // finish it.
            unsafe {
                loop {
                    if Header::word(header).is_marked() && !self.take_marked(shard, header) {
                        break;
                    }
                    shard.current.store((*header).cid.get(), Ordering::Relaxed);
                    let answer = Header::call_poll(header, frame);
                    // Hooks may be interrupted, and what is interrupted must not be taken for a poll.
                    shard.current.store(0, Ordering::Relaxed);
                    polls += 1;
                    if answer == PENDING {
                        match (*(*header).slot.get()).word.leave_pending() {
                            AfterPending::Blocked => break,
                            AfterPending::Ready => unlikely(),
                        }
                    } else if answer == DONE {
                        self.finish(shard, header, COMPLETED);
                        break;
                    }
                    if ONE
                        || is_signalled()
                        || STRICT && self.is_outranked(shard, elsewhere, 1 << Header::word(header).priority())
                    {
                        self.requeue(shard, header);
                        break;
                    }
                    shard.lock(&self.hooks);
                    let word = Header::word(header);
                    if shard.others.load(Ordering::Relaxed) == 0 {
                        header = shard.rotate(published, header, word);
                        if !header.is_null() {
                            shard.unlock();
                            continue;
                        }
                    } else {
                        shard.link(header, word);
                    }
                    header = self.take_among(shard, polls);
                    if header.is_null() {
                        break;
                    }
                }
            }
            if ONE {
                shard.leave(polls);
                return Outcome::Ran;
            }
        }
    }

    /// Whether something elsewhere is more important than all that is ready in the open shards and `held`, the bit of a
    /// coroutine that is ready but not linked. Nothing outranks an executor in which nothing is ready: it has other
    /// reasons to return.
    ///
    /// # Safety
    /// The word is valid.
    #[inline(always)]
    unsafe fn is_outranked(&self, shard: &Shard, elsewhere: Elsewhere, held: u64) -> bool {
        // SAFETY: the caller's promise. Relaxed: a hint, as every bitmap that is read without its lock.
        let theirs = unsafe { (*elsewhere.bitmap).load(Ordering::Relaxed) };
        let mut ours = shard.ready().load(Ordering::Relaxed) | held;
        let others = shard.others.load(Ordering::Relaxed);
        if others != 0 {
            for index in 0..SHARDS {
                if others & 1 << index != 0 {
                    ours |= self.shard(index).ready().load(Ordering::Relaxed);
                }
            }
        }
        // The bits of all that is more important than ours, which begins at the ceiling at best.
        let best = (ours & ours.wrapping_neg()).max(elsewhere.least);
        ours != 0 && theirs & (best - 1) != 0
    }

    /// Links the coroutine that this worker polled last, at once.
    ///
    /// # Safety
    /// The header is held by this worker, whose shard this is.
    #[cold]
    #[inline(never)]
    unsafe fn requeue(&self, shard: &Shard, header: *const Header<O>) {
        shard.lock(&self.hooks);
        // SAFETY: the caller's promise, and we have the lock.
        unsafe { shard.link(header, Header::word(header)) };
        shard.unlock();
    }

    /// Ends a coroutine.
    ///
    /// # Safety
    /// The worker, whose shard this is, has just polled it, or taken it.
    #[inline(always)]
    unsafe fn finish(&self, shard: &Shard, header: *const Header<O>, outcome: u32) {
        shard.lock(&self.hooks);
        // SAFETY: the caller's promise; then we have the lock; then not any more.
        unsafe {
            shard.free_slot(header);
            shard.unlock();
            Header::call_finish(header, outcome);
        }
    }

    /// For a coroutine that was taken with a mark in its word. Says whether it is to be polled; if not, it is dealt
    /// with.
    ///
    /// # Safety
    /// The worker, whose shard this is, has just taken it.
    #[cold]
    #[inline(never)]
    unsafe fn take_marked(&self, shard: &Shard, header: *const Header<O>) -> bool {
        // SAFETY: we are its holder, so its slot is there.
        let slot = unsafe { &*(*header).slot.get() };
        let mut word = slot.word.read();
        let taken = loop {
            match slot.word.take_marked(word) {
                Ok(taken) => break taken,
                Err(now) => {
                    shard.count_retry();
                    word = now;
                }
            }
        };
        match taken {
            Taken::Poll => true,
            Taken::Resume => {
                // SAFETY: we are its holder.
                shard.current.store(unsafe { (*header).cid.get() }, Ordering::Relaxed);
                if let Some(resume) = self.hooks.resume {
                    // SAFETY: the caller of `initialise` allowed it; no lock is held.
                    unsafe { resume(self.hooks.context, header.cast_mut()) };
                }
                // Its poll has gone on, and ended or was interrupted again.
                shard.current.store(0, Ordering::Relaxed);
                false
            }
            Taken::Finish => {
                // SAFETY: we have just taken it.
                unsafe { self.finish(shard, header, CANCELLED_OUTCOME) };
                false
            }
        }
    }

    /// Takes the most important coroutine of all shards, the own one first at equal importance; null if there is none.
    ///
    /// # Safety
    /// The worker has the lock of its shard, which is given up.
    #[inline(never)]
    unsafe fn take_among(&self, shard: &Shard, polls: u64) -> *const Header<O> {
        // Shards from which a steal has just failed.
        let mut avoid = 0;
        loop {
            let bitmap = shard.ready().load(Ordering::Relaxed);
            let bit = bitmap & bitmap.wrapping_neg();
            let Some(other) = self.better_shard(shard.index, bit, polls, avoid) else {
                let mut header = core::ptr::null();
                if bit != 0 {
                    // SAFETY: we have the lock.
                    header = unsafe { shard.take(shard.published(), bitmap) };
                } else {
                    shard.running().store(0, Ordering::Relaxed);
                }
                shard.unlock();
                return header;
            };
            shard.unlock();
            // SAFETY: no lock is held.
            let header = unsafe { self.steal(other, shard, bit) };
            if !header.is_null() {
                return header;
            }
            // Somebody was faster, or is at it.
            avoid |= 1 << other.index;
            shard.lock(&self.hooks);
        }
    }

    /// A shard that has something more important than `ours` (one bit, or 0 for nothing).
    fn better_shard(&self, worker: usize, ours: u64, polls: u64, avoid: u32) -> Option<&Shard> {
        let shards = self.shard(worker).others.load(Ordering::Relaxed) & !avoid;
        if shards == 0 {
            return None;
        }
        // One less turns "nothing" into the greatest number.
        let mut best = ours.wrapping_sub(1);
        if polls % FAIRNESS_TURN == FAIRNESS_TURN - 1 && best != u64::MAX {
            best += 1;
        }
        let mut found = None;
        for step in 1..SHARDS {
            // Each worker begins behind itself, so that they do not all go for the same one.
            let index = (worker + step) & (SHARDS - 1);
            if shards & 1 << index == 0 {
                continue;
            }
            let shard = self.shard(index);
            let bitmap = shard.ready().load(Ordering::Relaxed);
            let theirs = (bitmap & bitmap.wrapping_neg()).wrapping_sub(1);
            if theirs < best {
                best = theirs;
                found = Some(shard);
            }
        }
        found
    }

    /// Takes the most important coroutine of another shard, unless that is locked: its holder may have lost its
    /// processor, and whoever waited for it would lose one too. Null if there was nothing to take.
    ///
    /// The stack of a suspended coroutine belongs to its worker. What stands behind one is taken only if it is more
    /// important than `ours`, the bit of the best that this worker has (0 for nothing): the shard's bitmap promised
    /// more than it is.
    ///
    /// # Safety
    /// The worker, whose shard is `to`, holds no lock.
    unsafe fn steal(&self, from: &Shard, to: &Shard, ours: u64) -> *const Header<O> {
        if !from.try_lock() {
            from.count_retry();
            return core::ptr::null();
        }
        let bitmap = from.ready().load(Ordering::Relaxed);
        // SAFETY: we have the lock.
        let (header, bit) = unsafe { from.first_for_others() };
        let is_first = bit == bitmap & bitmap.wrapping_neg();
        if header.is_null() || !is_first && ours != 0 && ours <= bit {
            from.unlock();
            if bitmap != 0 {
                self.notify_if_idle(from.index);
            }
            return core::ptr::null();
        }
        // SAFETY: we have the lock.
        unsafe {
            from.unlink(header);
            (*(*header).slot.get()).word.move_to(from.index, to.index);
        }
        from.unlock();
        add(&to.steals, 1);
        to.running().store(bit, Ordering::Relaxed);
        header
    }
}

/// What `run_strictly` compares with.
#[derive(Clone, Copy)]
struct Elsewhere {
    bitmap: *const AtomicU64,
    /// The bit of the most important priority that counts for this executor.
    least: u64,
}

impl Elsewhere {
    /// For the loops that do not look.
    const NOTHING: Elsewhere = Elsewhere { bitmap: core::ptr::null(), least: 1 };
}

/// Marks a branch as one that is seldom taken.
#[cold]
#[inline(always)]
fn unlikely() {}

impl<O: Order> Header<O> {
    /// The state of a coroutine.
    ///
    /// # Safety
    /// It is held by the caller.
    #[inline(always)]
    unsafe fn word(header: *const Header<O>) -> Value {
        // SAFETY: whoever holds it may read its block, and slots stay for ever.
        unsafe { (*(*header).slot.get()).word.read() }
    }
}

impl Shard {
    /// What a worker has to say when `run` returns.
    fn leave(&self, polls: u64) {
        self.running().store(0, Ordering::Relaxed);
        add(&self.polls, polls);
    }
}
