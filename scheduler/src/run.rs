//! Running: take the most important ready coroutine, poll it, put it where the answer says.
//!
//! The loop keeps the coroutine that was just polled in its hands until it has to take the shard's lock for the next one
//! anyway: requeueing or freeing the last and taking the next are one critical section. What is between two polls is
//! therefore: two or three loads for the signals, one lock, a few stores.

use core::ffi::c_void;

use crate::SHARDS;
use crate::executor::{CANCELLED_OUTCOME, COMPLETED, DONE, Executor, Header, Outcome, PENDING};
use crate::state::{self, CANCELLED, HELD, SUSPENDED, WOKEN};
use crate::sync::{AtomicU64, Ordering};

/// After this many polls a worker prefers other shards to its own once, at equal priority.
///
/// While every worker has coroutines of the same priority in its own shard, nobody would otherwise look into the shard of a
/// worker that was removed or does not get a processor.
const FAIRNESS_TURN: u64 = 64;

/// What the loop still has to do with the coroutine it polled last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Nothing: it is blocked or suspended, or there was none.
    Gone,
    /// It goes to the end of its list.
    Requeue,
    /// Its slot becomes free, and `finish` is called with this outcome.
    Finish(u32),
}

impl Executor {
    /// Polls ready coroutines, most important first, until nothing is ready or the attention word is set.
    ///
    /// # Safety
    /// No other `run` of this worker is going on, except below a suspended poll. `frame` is what the polls expect.
    #[inline]
    pub unsafe fn run(&self, worker: usize, frame: *mut c_void) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.run_loop::<false>(worker, frame) }
    }

    /// As [`run`](Self::run), but returns after one poll.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    pub unsafe fn run_one(&self, worker: usize, frame: *mut c_void) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.run_loop::<true>(worker, frame) }
    }

    #[inline(always)]
    unsafe fn run_loop<const ONE: bool>(&self, worker: usize, frame: *mut c_void) -> Outcome {
        let worker = worker & (SHARDS - 1);
        let only_us = 1 << worker;
        let shard = self.shard(worker);
        let published = self.ready(worker);
        // SAFETY: `add_worker` of this worker is not going on, as its caller promised.
        let signals = unsafe { shard.signals.get() };
        // SAFETY: the caller of `add_worker` promised that they live; or they are our own zero.
        let (attention, tail, head) =
            unsafe { (&*signals.attention, &*signals.completion_tail, &*signals.completion_head) };
        if self.idle.load(Ordering::Relaxed) & only_us != 0 {
            self.idle.fetch_and(!only_us, Ordering::AcqRel);
        }

        let mut last = Last::Gone;
        let mut header: *const Header = core::ptr::null();
        let mut polls: u64 = 0;
        // Shards from which a steal has just failed; nothing was taken since.
        let mut avoid: u32 = 0;
        loop {
            // Relaxed: the words only say that something is to be done; whoever does it orders itself.
            if attention.load(Ordering::Relaxed) != 0 || tail.load(Ordering::Relaxed) != head.load(Ordering::Relaxed) {
                // SAFETY: `header` and `last` are from our last poll.
                unsafe { self.put_back(worker, header, last) };
                last = Last::Gone;
                shard.current.store(0, Ordering::Relaxed);
                if attention.load(Ordering::Relaxed) != 0 {
                    self.leave(worker, polls);
                    return Outcome::Attention;
                }
                if let Some(completions) = self.hooks.completions {
                    // SAFETY: the caller of `initialise` allowed it; no lock is held.
                    unsafe { completions(self.hooks.context, worker as u32) };
                }
            }

            self.lock(worker);
            let mut bitmap = published.0.load(Ordering::Relaxed);
            let before = bitmap;
            // SAFETY: `header` is from our last poll, its shard is ours, and we have the lock.
            unsafe {
                match last {
                    Last::Gone => {}
                    Last::Requeue => {
                        let priority = state::priority((*(*header).slot.get()).word.load(Ordering::Relaxed));
                        self.link(worker, priority, header);
                        bitmap |= 1 << priority;
                    }
                    Last::Finish(_) => self.free_slot(worker, header),
                }
            }
            let previous = header;
            let ours = bitmap & bitmap.wrapping_neg();
            if self.shards.load(Ordering::Relaxed) != only_us
                && let Some(other) = self.better_shard(worker, ours, polls, avoid)
            {
                published.0.store(bitmap, Ordering::Relaxed);
                self.unlock(worker);
                // SAFETY: no lock is held, and the header was freed above.
                unsafe { self.call_finish(previous, last) };
                last = Last::Gone;
                // SAFETY: no lock is held.
                match unsafe { self.steal(other, worker) } {
                    Some(stolen) => header = stolen,
                    // Somebody was faster, or is at it: look again, but elsewhere.
                    None => {
                        avoid |= 1 << other;
                        continue;
                    }
                }
            } else if bitmap == 0 {
                published.0.store(0, Ordering::Relaxed);
                self.unlock(worker);
                if let Last::Finish(_) = last {
                    // SAFETY: as above. It may have made something ready.
                    unsafe { self.call_finish(previous, last) };
                    last = Last::Gone;
                    continue;
                }
                shard.current.store(0, Ordering::Relaxed);
                published.1.store(0, Ordering::Relaxed);
                if self.settle(worker) {
                    self.leave(worker, polls);
                    return Outcome::Idle;
                }
                avoid = 0;
                continue;
            } else {
                let list = self.list(worker, ours.trailing_zeros() as usize);
                // SAFETY: we have the lock, and the bitmap says that the list is not empty.
                let (first, emptied) = unsafe { self.take_first(list) };
                header = first;
                if emptied {
                    bitmap &= !ours;
                }
                if bitmap != before {
                    published.0.store(bitmap, Ordering::Relaxed);
                }
                published.1.store(ours, Ordering::Relaxed);
                self.unlock(worker);
                // SAFETY: no lock is held, and the header was freed above.
                unsafe { self.call_finish(previous, last) };
            }

            avoid = 0;
            // SAFETY: we took it from a list, so we are its holder and its block exists until we finish it.
            let slot = unsafe { &*(*header).slot.get() };
            let word = slot.word.load(Ordering::Relaxed);
            if word & (WOKEN | CANCELLED | SUSPENDED) != 0 {
                // SAFETY: as above.
                match unsafe { self.take_marked(worker, slot, header) } {
                    None => {}
                    Some(instead) => {
                        last = instead;
                        continue;
                    }
                }
            }
            // SAFETY: as above; nobody polls it, as we are its holder.
            let answer = unsafe {
                shard.current.store((*header).cid.get(), Ordering::Relaxed);
                ((*header).poll)(header.cast_mut(), frame)
            };
            polls += 1;
            last = if answer == PENDING {
                // One subtraction decides: if nothing is left, whoever wakes it next is its holder. If a wake or a
                // cancellation came meanwhile, we still are.
                if slot.word.fetch_sub(HELD, Ordering::AcqRel) & (WOKEN | CANCELLED) == 0 {
                    Last::Gone
                } else {
                    Last::Requeue
                }
            } else if answer == DONE {
                Last::Finish(COMPLETED)
            } else {
                Last::Requeue
            };
            if ONE {
                // SAFETY: as above.
                unsafe { self.put_back(worker, header, last) };
                shard.current.store(0, Ordering::Relaxed);
                self.leave(worker, polls);
                return Outcome::Ran;
            }
        }
    }

    /// What is left to do before `run` returns.
    #[inline]
    fn leave(&self, worker: usize, polls: u64) {
        self.ready(worker).1.store(0, Ordering::Relaxed);
        add(&self.shard(worker).polls, polls);
    }

    /// Does what is still to be done with the last coroutine, at once.
    ///
    /// # Safety
    /// `header` is the coroutine that this worker polled last, and `last` what it has not done with it yet.
    #[cold]
    #[inline(never)]
    unsafe fn put_back(&self, worker: usize, header: *const Header, last: Last) {
        if last == Last::Gone {
            return;
        }
        self.lock(worker);
        // SAFETY: it is ours and so is the lock.
        unsafe {
            if last == Last::Requeue {
                let priority = state::priority((*(*header).slot.get()).word.load(Ordering::Relaxed));
                self.link(worker, priority, header);
                self.publish(worker, priority);
            } else {
                self.free_slot(worker, header);
            }
        }
        self.unlock(worker);
        // SAFETY: no lock is held.
        unsafe { self.call_finish(header, last) };
    }

    /// Gives the control block back if the coroutine has ended.
    ///
    /// # Safety
    /// The slot was freed, and no lock is held.
    #[inline(always)]
    unsafe fn call_finish(&self, header: *const Header, last: Last) {
        if let Last::Finish(outcome) = last {
            // SAFETY: we are its last user.
            unsafe { ((*header).finish)(header.cast_mut(), outcome) };
        }
    }

    /// For a coroutine that was taken with a mark in its word. `None`: poll it.
    ///
    /// # Safety
    /// The worker has just taken it.
    #[cold]
    #[inline(never)]
    unsafe fn take_marked(&self, worker: usize, slot: &crate::executor::Slot, header: *const Header) -> Option<Last> {
        let mut word = slot.word.load(Ordering::Relaxed);
        loop {
            // A suspended one keeps WOKEN: its poll has begun before the wake, so it must be polled again afterwards.
            let new = if word & SUSPENDED != 0 { word & !SUSPENDED | HELD } else { word & !WOKEN | HELD };
            // Acquire: the poll sees what the waker did before.
            match slot.word.compare_exchange(word, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if word & SUSPENDED != 0 {
            // SAFETY: we are its holder.
            self.shard(worker).current.store(unsafe { (*header).cid.get() }, Ordering::Relaxed);
            if let Some(resume) = self.hooks.resume {
                // SAFETY: the caller of `initialise` allowed it; no lock is held.
                unsafe { resume(self.hooks.context, header.cast_mut()) };
            }
            return Some(Last::Gone);
        }
        if word & CANCELLED != 0 {
            return Some(Last::Finish(CANCELLED_OUTCOME));
        }
        None
    }

    /// Another shard that has something more important than `ours` (one bit, or 0 for nothing).
    #[inline(never)]
    fn better_shard(&self, worker: usize, ours: u64, polls: u64, avoid: u32) -> Option<usize> {
        let shards = self.shards.load(Ordering::Relaxed) & !avoid;
        // One less turns "nothing" into the greatest number.
        let mut best = ours.wrapping_sub(1);
        if polls % FAIRNESS_TURN == FAIRNESS_TURN - 1 && best != u64::MAX {
            best += 1;
        }
        let mut found = None;
        for step in 1..SHARDS {
            let other = (worker + step) & (SHARDS - 1);
            if shards & 1 << other == 0 {
                continue;
            }
            let bitmap = self.ready(other).0.load(Ordering::Relaxed);
            let theirs = (bitmap & bitmap.wrapping_neg()).wrapping_sub(1);
            if theirs < best {
                best = theirs;
                found = Some(other);
            }
        }
        found
    }

    /// Takes the most important coroutine of another shard, unless that is locked: its holder may have lost its processor,
    /// and whoever waited for it would lose one too.
    ///
    /// # Safety
    /// The worker holds no lock.
    #[inline(never)]
    unsafe fn steal(&self, from: usize, worker: usize) -> Option<*const Header> {
        if !self.try_lock(from) {
            return None;
        }
        let mut pinned = false;
        let published = &self.ready(from).0;
        let bitmap = published.load(Ordering::Relaxed);
        let best = bitmap & bitmap.wrapping_neg();
        // SAFETY: we have the lock, and look into the list only if it is not empty.
        let taken = unsafe {
            let list = self.list(from, best.trailing_zeros() as usize);
            // The stack of a suspended coroutine belongs to its worker.
            if best == 0 {
                None
            } else if self.first_is_suspended(list) {
                pinned = true;
                None
            } else {
                let (header, emptied) = self.take_first(list);
                if emptied {
                    published.store(bitmap & !best, Ordering::Relaxed);
                }
                // Relaxed: invariant Home is about the lock, which we have.
                (*(*header).slot.get()).word.fetch_add(state::shard_difference(from, worker), Ordering::Relaxed);
                Some(header)
            }
        };
        self.unlock(from);
        if pinned {
            self.notify_if_idle(from);
        }
        if taken.is_some() {
            add(&self.shard(worker).steals, 1);
            self.ready(worker).1.store(best, Ordering::Relaxed);
        }
        taken
    }
}

/// Adds to a counter that only one worker writes.
fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed) + value, Ordering::Relaxed);
}
