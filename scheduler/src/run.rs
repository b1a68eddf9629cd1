//! The run loop: takes the most important ready coroutine, polls it, and proceeds by its answer.
//!
//! The loop keeps the coroutine that was just polled until it takes the shard's lock for the next one anyway:
//! requeueing or freeing the last and taking the next are one critical section. So the work between two polls is two or
//! three loads for the signals, one lock, and a few stores.
//!
//! A second instance of the loop implements *strict* global priority: before each poll it compares with the bitmap of
//! ready priorities elsewhere. It is a function of its own and not a flag, so that other callers do not pay for it.

use core::ffi::c_void;

use crate::executor::{CANCELLED_OUTCOME, COMPLETED, DONE, Executor, Header, Outcome, PENDING};
use crate::order::Order;
use crate::shard::{Shard, add};
use crate::state::{AfterPending, Taken, Value};
use crate::sync::{AtomicU64, Ordering};
use crate::{PRIORITIES, SHARDS};

/// After this many polls in one `run` a worker prefers other shards to its own once, at equal priority. (`run_one`
/// never polls so often.)
///
/// While every worker has coroutines of the same priority in its own shard, no worker would otherwise take coroutines
/// from the shard of a worker that was removed or does not get a processor.
const FAIRNESS_TURN: u64 = 64;

impl<O: Order> Executor<O> {
    /// Polls ready coroutines, most important first, until none is ready or the attention word is set.
    ///
    /// # Safety
    /// No other `run` of this worker is active, except below a suspended poll. `frame` is the argument that the polls
    /// expect.
    pub unsafe fn run(&self, worker: usize, frame: *mut c_void) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.run_loop::<false, false>(worker, frame, Elsewhere::NOTHING) }
    }

    /// As [`run`](Self::run), but compares the most important ready coroutine with `elsewhere` before each poll but the
    /// first after a return with [`Outcome::Outranked`] or [`Outcome::Idle`], and returns with [`Outcome::Outranked`]
    /// if a more important priority is ready there.
    ///
    /// That first poll needs no comparison, so that a caller that was outranked, let others run and was chosen again
    /// makes progress, even if the bitmap is stale or refers to work that runs on another processor. A return with
    /// [`Outcome::Attention`] gives nothing away, and the next poll is compared as any other. `ceiling` is the
    /// most important priority that counts for this executor: a more important coroutine in it is compared as if it had
    /// this priority.
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
        // SAFETY: `add_worker` of this worker is not running, as its caller promised.
        let signals = unsafe { shard.signals.get() };
        // SAFETY: the caller of `add_worker` promised that they live; or they are the executor's own zero.
        let (attention, tail, head) =
            unsafe { (&*signals.attention, &*signals.completion_tail, &*signals.completion_head) };
        let bit = 1 << shard.index;
        if self.idle.load(Ordering::Relaxed) & bit != 0 {
            self.idle.fetch_and(!bit, Ordering::AcqRel);
        }

        let published = shard.published();
        // Relaxed: the words only request an action, which has its own ordering.
        let is_signalled =
            || attention.load(Ordering::Relaxed) != 0 || tail.load(Ordering::Relaxed) != head.load(Ordering::Relaxed);
        let mut polls: u64 = 0;
        loop {
            // Here the worker holds no coroutine.
            if is_signalled() {
                if attention.load(Ordering::Relaxed) == 0
                    && let Some(completions) = self.hooks.completions
                {
                    // SAFETY: the caller of `initialise` allowed it; no lock is held.
                    unsafe { completions(self.hooks.context, shard.index as u32) };
                }
                // Also if an interrupt of the hook has raised it: the next poll may be a long one.
                if attention.load(Ordering::Relaxed) != 0 {
                    shard.leave(polls);
                    return Outcome::Attention;
                }
            }
            // SAFETY: the word is valid, as the caller of `run_strictly` promised.
            if STRICT && !shard.was_chosen_anew(polls) && unsafe { self.is_outranked(shard, elsewhere, 0) } {
                shard.leave_and_give_away::<STRICT>(polls);
                return Outcome::Outranked;
            }
            shard.lock(&self.hooks);
            let bitmap = published.0.load(Ordering::Relaxed);
            let mut header;
            let is_alone = shard.others.load(Ordering::Relaxed) == 0;
            if is_alone && bitmap != 0 {
                // SAFETY: we have the lock, and are its worker.
                header = unsafe { shard.take(published, bitmap) };
                shard.unlock();
            } else {
                if is_alone {
                    published.1.store(0, Ordering::Relaxed);
                    shard.unlock();
                    header = core::ptr::null();
                } else {
                    // SAFETY: we have the lock.
                    header = unsafe { self.take_among(shard, polls) };
                }
                if header.is_null() {
                    if self.settle(shard.index) {
                        shard.leave_and_give_away::<STRICT>(polls);
                        return Outcome::Idle;
                    }
                    continue;
                }
            }

            // Here the worker holds a coroutine, and the inner loop continues as long as it gets a next one. SAFETY:
            // this worker took it from a list, so it is its holder, no other worker polls it, and its block exists
            // until this worker finishes it.
            unsafe {
                loop {
                    if Header::word(header).is_marked() && !self.take_marked(shard, header) {
                        break;
                    }
                    let cid = (*header).cid.get();
                    shard.current.store(cid, Ordering::Relaxed);
                    let answer = Header::call_poll(header, frame, cid);
                    // Hooks may be interrupted, and such an interruption must not be taken for one of a poll.
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

    /// Returns whether a ready priority elsewhere is more important than every coroutine that is ready in the open
    /// shards and than `held`, the bit of a coroutine that is ready but not linked. An executor without ready
    /// coroutines is never outranked: it has other reasons to return.
    ///
    /// # Safety
    /// The word is valid.
    #[inline(always)]
    unsafe fn is_outranked(&self, shard: &Shard, elsewhere: Elsewhere, held: u64) -> bool {
        // SAFETY: the caller's promise. Relaxed: a hint, like every bitmap that is read without its lock.
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
        // The bits of all priorities that are more important than this executor's best, which is limited by the
        // ceiling.
        let best = (ours & ours.wrapping_neg()).max(elsewhere.least);
        ours != 0 && theirs & (best - 1) != 0
    }

    /// Links the coroutine that this worker polled last.
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

    /// Frees the slot of a coroutine and returns its control block.
    ///
    /// # Safety
    /// The caller is the worker of this shard and has just polled the coroutine, or taken it.
    #[inline(always)]
    unsafe fn finish(&self, shard: &Shard, header: *const Header<O>, outcome: u32) {
        shard.lock(&self.hooks);
        // SAFETY: the caller's promise; the lock is held for the first call, and released before the last.
        unsafe {
            shard.free_slot(header);
            shard.unlock();
            Header::call_finish(header, outcome);
        }
    }

    /// Handles a coroutine that was taken with a mark in its word. Returns whether the caller must poll it; otherwise
    /// it was resumed or finished.
    ///
    /// # Safety
    /// The worker, whose shard this is, has just taken it.
    #[cold]
    #[inline(never)]
    unsafe fn take_marked(&self, shard: &Shard, header: *const Header<O>) -> bool {
        // SAFETY: this worker is its holder, so its slot exists.
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
                // Its poll has continued, and ended or was interrupted again.
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

    /// Takes the most important coroutine of all shards, from the worker's own shard first at equal importance; null if
    /// there is none.
    ///
    /// # Safety
    /// The worker has the lock of its shard, which is released.
    #[doc(alias = "work stealing")]
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
            // Another thread was faster, or has the lock.
            avoid |= 1 << other.index;
            shard.lock(&self.hooks);
        }
    }

    /// Finds a shard with a more important coroutine than `ours` (one bit, or 0 for none).
    fn better_shard(&self, worker: usize, ours: u64, polls: u64, avoid: u32) -> Option<&Shard> {
        let shards = self.shard(worker).others.load(Ordering::Relaxed) & !avoid;
        if shards == 0 {
            return None;
        }
        // Subtracting 1 turns "none" into the greatest number.
        let mut best = ours.wrapping_sub(1);
        if polls % FAIRNESS_TURN == FAIRNESS_TURN - 1 && best != u64::MAX {
            best += 1;
        }
        let mut found = None;
        for step in 1..SHARDS {
            // Each worker begins with the shard behind its own, so that workers do not all steal from the same one.
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

    /// Steals the most important coroutine of another shard, unless the shard is locked: the lock's holder may have
    /// lost its processor, and a waiting thread would waste another. Returns null if there is nothing to steal.
    ///
    /// The stack of a suspended coroutine belongs to its worker, so the coroutine is skipped. A coroutine behind it is
    /// taken only if it is more important than `ours`, the bit of the most important coroutine of this worker (0 for
    /// none): it may be less important than the shard's bitmap suggests.
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

/// The bitmap and the ceiling for `run_strictly`.
#[derive(Clone, Copy)]
struct Elsewhere {
    bitmap: *const AtomicU64,
    /// The bit of the most important priority that counts for this executor.
    least: u64,
}

impl Elsewhere {
    /// The value for loops without the comparison.
    const NOTHING: Elsewhere = Elsewhere { bitmap: core::ptr::null(), least: 1 };
}

/// Marks a branch as unlikely.
#[cold]
#[inline(always)]
fn unlikely() {}

impl<O: Order> Header<O> {
    /// Returns the state word of a coroutine.
    ///
    /// # Safety
    /// The caller is its holder.
    #[inline(always)]
    unsafe fn word(header: *const Header<O>) -> Value {
        // SAFETY: the holder may read the block, and slots exist for ever.
        unsafe { (*(*header).slot.get()).word.read() }
    }
}

impl Shard {
    /// Records that `run` returns: the worker runs nothing, and has made these polls.
    fn leave(&self, polls: u64) {
        self.running().store(0, Ordering::Relaxed);
        add(&self.polls, polls);
    }

    /// As [`leave`](Self::leave), for a caller that gives the processor away; strict runs need to know.
    #[inline(always)]
    fn leave_and_give_away<const STRICT: bool>(&self, polls: u64) {
        self.leave(polls);
        if STRICT {
            self.polls_when_given_away.store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns whether the worker has made no poll since its caller gave the processor away, with the polls of the
    /// current run.
    fn was_chosen_anew(&self, polls: u64) -> bool {
        // Relaxed: the worker's own counters.
        self.polls.load(Ordering::Relaxed) + polls == self.polls_when_given_away.load(Ordering::Relaxed)
    }
}
