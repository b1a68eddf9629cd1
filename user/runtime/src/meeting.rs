//! The words at which a call's future and its completion meet, and those at which a ring's owner and its flusher do.
//!
//! `call` describes the states of a record and their transitions; here each transition is a method. All of them are
//! single read-modify-writes of `state`, so that they have one order, with AcqRel: release for what the caller has
//! written before (the result, the cid, the payload of an abandoned call), acquire for what the other side has. The
//! words beside `state` are relaxed. `tests/loom.rs` compiles this file over loom's atomics and tries every
//! interleaving.

use core::sync::atomic::AtomicBool;

use crate::atomics::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

const WAITING: u32 = 0;
const OWN: u32 = 1;
const FOREIGN: u32 = 2;
const DONE: u32 = 3;
const ABANDONED: u32 = 4;

/// The meeting point of a call's future and its completion.
pub struct Meeting {
    state: AtomicU32,
    result: AtomicUsize,
    cid: AtomicU64,
    /// A note of the future's for itself, which has no room of its own beside this.
    has_waker: AtomicBool,
}

/// The side that a completion finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Awaiting {
    /// No future has been polled since, or the call was done before: nothing to do.
    None,
    /// The coroutine with this cid is to be woken.
    Own(u64),
    /// A waker is to be woken.
    Foreign,
    /// The future was dropped: its payload is the completion's.
    Abandoned,
}

impl Meeting {
    /// A meeting point that waits.
    #[cfg(not(loom))]
    pub const fn new() -> Meeting {
        Meeting {
            state: AtomicU32::new(WAITING),
            result: AtomicUsize::new(0),
            cid: AtomicU64::new(0),
            has_waker: AtomicBool::new(false),
        }
    }

    /// A meeting point that waits.
    #[cfg(loom)]
    pub fn new() -> Meeting {
        Meeting {
            state: AtomicU32::new(WAITING),
            result: AtomicUsize::new(0),
            cid: AtomicU64::new(0),
            has_waker: AtomicBool::new(false),
        }
    }

    /// Makes it wait for the next call. Only the caller has it.
    #[inline(always)]
    pub fn reuse(&self) {
        self.state.store(WAITING, Ordering::Relaxed);
    }

    /// Returns whether a waker was registered since the record was free. Only the future asks.
    #[inline(always)]
    pub fn has_waker(&self) -> bool {
        self.has_waker.load(Ordering::Relaxed)
    }

    /// Notes whether a waker was registered. Only the future does.
    #[inline(always)]
    pub fn set_has_waker(&self, has_waker: bool) {
        self.has_waker.store(has_waker, Ordering::Relaxed);
    }

    /// Makes the coroutine with this cid the waiter, before the call is made: no other code has the meeting point yet,
    /// and a reader of the request sees these stores.
    #[inline(always)]
    pub fn belongs_to(&self, cid: u64) {
        self.cid.store(cid, Ordering::Relaxed);
        self.state.store(OWN, Ordering::Relaxed);
    }

    /// Returns whether the call is done.
    #[inline(always)]
    pub fn is_done(&self) -> bool {
        // Acquire: pairs with the completion's release, for the result.
        self.state.load(Ordering::Acquire) == DONE
    }

    /// Returns the result of a call that the caller has seen done.
    #[inline(always)]
    pub fn result(&self) -> usize {
        self.result.load(Ordering::Relaxed)
    }

    /// Waits as the coroutine with this cid; returns whether the completion was quicker.
    #[inline(always)]
    #[must_use]
    pub fn wait_as(&self, cid: u64) -> bool {
        self.cid.store(cid, Ordering::Relaxed);
        self.leave_as(OWN)
    }

    /// Waits with a waker, which the caller has registered; returns whether the completion was quicker.
    #[inline(always)]
    #[must_use]
    pub fn wait_with_waker(&self) -> bool {
        self.leave_as(FOREIGN)
    }

    /// Leaves the call's payload to the completion; returns whether that was quicker: then the payload is the caller's
    /// again.
    #[inline(always)]
    #[must_use]
    pub fn abandon(&self) -> bool {
        self.leave_as(ABANDONED)
    }

    #[inline(always)]
    fn leave_as(&self, state: u32) -> bool {
        // Release: the cid or the payload before the state. Acquire: the result, if the completion was quicker.
        self.state.swap(state, Ordering::AcqRel) == DONE
    }

    /// Completes the call.
    #[inline(always)]
    pub fn complete(&self, result: usize) -> Awaiting {
        self.result.store(result, Ordering::Relaxed);
        // Release: the result before the state. Acquire: the cid, or the payload of an abandoned call.
        match self.state.swap(DONE, Ordering::AcqRel) {
            OWN => Awaiting::Own(self.cid.load(Ordering::Relaxed)),
            FOREIGN => Awaiting::Foreign,
            ABANDONED => Awaiting::Abandoned,
            _ => Awaiting::None,
        }
    }

    /// Completes the call if it finds no waiter or a coroutine; `None`, and no change, otherwise.
    #[inline(always)]
    pub fn complete_simply(&self, result: usize) -> Option<Awaiting> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            match state {
                WAITING | OWN => {}
                DONE => return Some(Awaiting::None),
                _ => return None,
            }
            self.result.store(result, Ordering::Relaxed);
            // As in `complete`.
            match self.state.compare_exchange(state, DONE, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(OWN) => return Some(Awaiting::Own(self.cid.load(Ordering::Relaxed))),
                Ok(_) => return Some(Awaiting::None),
                Err(now) => state = now,
            }
        }
    }
}

/// A flag by which one side learns that the other has left something for it: set after that, and cleared before the
/// look.
pub struct Armed(AtomicU32);

impl Armed {
    /// A flag that is not set.
    #[cfg(not(loom))]
    pub const fn new() -> Armed {
        Armed(AtomicU32::new(0))
    }

    /// A flag that is not set.
    #[cfg(loom)]
    pub fn new() -> Armed {
        Armed(AtomicU32::new(0))
    }

    /// Sets it; returns whether it was not set: then the other side is to be woken; otherwise it has not looked yet.
    #[inline(always)]
    pub fn set(&self) -> bool {
        // Release: publishes what was left. Acquire: nothing, but the two swaps have one order.
        self.0.swap(1, Ordering::AcqRel) == 0
    }

    /// Clears it; returns whether it was set.
    #[inline(always)]
    pub fn take(&self) -> bool {
        // Acquire: everything that was left before the flag was set. Release: nothing.
        self.0.swap(0, Ordering::AcqRel) != 0
    }
}
