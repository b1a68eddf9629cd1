//! The join state: from the end of a coroutine to the handle that waits for it.
//!
//! A coroutine's block has two owners: the executor and the join handle. One word states which of them remain, whether
//! there is a result and whether the handle's waker is registered:
//!
//! ```text
//!  EXECUTOR|HANDLE --complete--> COMPLETE|HANDLE --handle dropped--> (given back by the handle)
//!        |      \
//!        |       +--handle waits--> EXECUTOR|HANDLE|WAKER --complete--> EXECUTOR|HANDLE|WAKER|COMPLETE --+
//!        |                                                                                               |
//!        |                                        woken, executor leaves: COMPLETE|HANDLE|WAKER <--------+
//!        +--handle dropped--> EXECUTOR --complete--> (given back by the executor)
//! ```
//!
//! Permitted access to the fields:
//!
//! * The waker: without WAKER, the handle, which leaves none behind then. With WAKER and without COMPLETE, the handle
//!   reads and no thread writes. From COMPLETE on, the executor reads while EXECUTOR is set, if WAKER was set; the last
//!   owner drops it.
//! * The output: without COMPLETE, the executor. Then the handle, which sets TAKEN when it leaves; else the last owner.
//!
//! The executor's last step is none if the handle has left before: then no other thread has the block. It is one
//! exchange when no waker is registered. With a waker, it needs two: the first
//! publishes the result, and, after the wake, the second gives up the executor's share of the block. Until the second
//! the executor still uses the block, which a handle dropped after the first must not free.

use core::task::Waker;

#[cfg(not(loom))]
use core::cell::UnsafeCell;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering, fence},
};

const EXECUTOR: u32 = 1;
const HANDLE: u32 = 2;
const COMPLETE: u32 = 4;
const CANCELLED: u32 = 8;
const WAKER: u32 = 16;
const TAKEN: u32 = 32;

/// The word and the waker.
pub(crate) struct Join {
    state: AtomicU32,
    /// Offset of the output in the block, in bytes. It is stored here because there is room for it.
    output: u32,
    waker: UnsafeCell<Option<Waker>>,
}

// SAFETY: the list above states the permitted accesses to the waker.
unsafe impl Sync for Join {}
// SAFETY: a waker may be sent.
unsafe impl Send for Join {}

/// The caller's next step with the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum After {
    /// Nothing: the other owner remains.
    Leave,
    /// Free the block, which has no other owner; first drop the output, if there is one.
    Free { output: bool },
}

/// Answer to a handle's poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Not yet; the waker is registered.
    Pending,
    /// The output exists and belongs to the handle.
    Output,
    /// There will be no output.
    Cancelled,
}

/// The end of a coroutine: with an output or cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Output,
    Cancelled,
}

impl Join {
    /// Makes the state of a coroutine that has not ended and whose handle exists.
    pub fn new(output: u32) -> Join {
        Join { state: AtomicU32::new(EXECUTOR | HANDLE), output, waker: UnsafeCell::new(None) }
    }

    /// Returns the offset of the output in the block, in bytes.
    pub fn output(&self) -> u32 {
        self.output
    }

    /// Returns whether the executor is the block's only owner and no waker is in it: the handle has left and never
    /// waited.
    #[inline(always)]
    pub fn is_left_without_waker(&self) -> bool {
        // No other thread will change the word, so that the end needs no exchange.
        let is_left = self.state.load(Ordering::Relaxed) == EXECUTOR;
        if is_left {
            // The handle's accesses happen before this thread frees the block.
            fence(Ordering::Acquire);
        }
        is_left
    }

    /// Publishes the end of the coroutine, wakes the handle and gives up the executor's share of the block.
    #[inline]
    pub fn complete(&self, end: End) -> After {
        let complete = match end {
            End::Output => COMPLETE,
            End::Cancelled => COMPLETE | CANCELLED,
        };
        // In most cases no handle waits (yet): publish the result and leave in one exchange. Release: the handle sees
        // the output. Acquire: this thread may free the block after the handle has used it.
        let mut state = self.state.load(Ordering::Relaxed);
        while state & WAKER == 0 {
            match self.state.compare_exchange(state, state & !EXECUTOR | complete, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) if state & HANDLE == 0 => return After::Free { output: end == End::Output },
                Ok(_) => return After::Leave,
                Err(now) => state = now,
            }
        }
        self.complete_and_wake(complete)
    }

    #[cold]
    fn complete_and_wake(&self, complete: u32) -> After {
        // Acquire: the waker was written before WAKER was set. Release: as above.
        let state = self.state.fetch_or(complete, Ordering::AcqRel);
        if state & WAKER != 0 {
            with(&self.waker, |waker| {
                if let Some(waker) = waker {
                    waker.wake_by_ref();
                }
            });
        }
        // Release: the use of the waker here happens before its drop, if the handle frees the block. Acquire: the
        // handle's accesses happen before this thread frees the block.
        let state = self.state.fetch_and(!EXECUTOR, Ordering::AcqRel);
        if state & HANDLE == 0 { After::Free { output: has_output(state) } } else { After::Leave }
    }

    /// Tells whether the coroutine has ended. If not, registers `waker`, which is woken at the end.
    pub fn poll(&self, waker: &Waker) -> Ready {
        // Acquire: pairs with `complete`, so that the output is visible.
        let state = self.state.load(Ordering::Acquire);
        if state & COMPLETE != 0 {
            return ended(state);
        }
        if state & WAKER != 0 {
            if with(&self.waker, |old| old.as_ref().is_some_and(|old| old.will_wake(waker))) {
                return Ready::Pending;
            }
            // Deregister the old waker before it is replaced. Acquire as above.
            let state = self.state.fetch_and(!WAKER, Ordering::Acquire);
            if state & COMPLETE != 0 {
                // Too late: the executor may be reading the waker.
                return ended(state);
            }
        }
        with_mut(&self.waker, |place| *place = Some(waker.clone()));
        // Release: the executor sees the waker. Acquire as above.
        let state = self.state.fetch_or(WAKER, Ordering::AcqRel);
        if state & COMPLETE != 0 { ended(state) } else { Ready::Pending }
    }

    /// Returns whether the coroutine has ended.
    pub fn is_complete(&self) -> bool {
        self.state.load(Ordering::Relaxed) & COMPLETE != 0
    }

    /// Gives up the handle's share of the block. `taken` tells whether the handle has taken the output.
    pub fn leave(&self, taken: bool) -> After {
        let add = if taken { TAKEN } else { 0 };
        // AcqRel: as in `complete`, from the other side.
        let state = self.state.fetch_add(add.wrapping_sub(HANDLE), Ordering::AcqRel) | add;
        if state & EXECUTOR == 0 { After::Free { output: has_output(state) } } else { After::Leave }
    }
}

fn has_output(state: u32) -> bool {
    state & (COMPLETE | CANCELLED | TAKEN) == COMPLETE
}

fn ended(state: u32) -> Ready {
    if state & CANCELLED != 0 { Ready::Cancelled } else { Ready::Output }
}

fn with<R>(waker: &UnsafeCell<Option<Waker>>, then: impl FnOnce(&Option<Waker>) -> R) -> R {
    // SAFETY: by the list above, no thread writes the waker now.
    #[cfg(not(loom))]
    unsafe {
        then(&*waker.get())
    }
    // SAFETY: as above, and loom checks it.
    #[cfg(loom)]
    waker.with(|waker| unsafe { then(&*waker) })
}

fn with_mut<R>(waker: &UnsafeCell<Option<Waker>>, then: impl FnOnce(&mut Option<Waker>) -> R) -> R {
    // SAFETY: by the list above, no other thread uses the waker now.
    #[cfg(not(loom))]
    unsafe {
        then(&mut *waker.get())
    }
    // SAFETY: as above, and loom checks it.
    #[cfg(loom)]
    waker.with_mut(|waker| unsafe { then(&mut *waker) })
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc as RealArc;
    use std::sync::atomic::{AtomicUsize as RealAtomicUsize, Ordering as RealOrdering};
    use std::task::{Wake, Waker};

    use loom::sync::{Arc, Notify};
    use loom::thread;

    use super::*;

    /// A block whose output and freeing are checked: by loom, as plain memory, and by counters.
    struct Block {
        join: Join,
        output: UnsafeCell<u32>,
        freed: AtomicU32,
    }

    impl Block {
        fn new() -> Arc<Block> {
            Arc::new(Block { join: Join::new(0), output: UnsafeCell::new(0), freed: AtomicU32::new(0) })
        }

        /// Acts as the executor: writes the output and completes.
        fn complete(&self) {
            // SAFETY: loom checks that no thread reads it yet.
            self.output.with_mut(|output| unsafe { *output = 7 });
            if self.join.is_left_without_waker() {
                with(&self.join.waker, |waker| assert!(waker.is_none()));
                self.after(After::Free { output: true });
            } else {
                self.after(self.join.complete(End::Output));
            }
        }

        fn after(&self, after: After) {
            if let After::Free { output } = after {
                // The thread that frees accesses both cells, so that loom detects a concurrent use. SAFETY: this is the
                // property under test.
                self.output.with_mut(|value| unsafe { assert!(!output || *value == 7) });
                with_mut(&self.join.waker, |waker| *waker = None);
                assert_eq!(self.freed.fetch_add(1, Ordering::Relaxed), 0, "freed twice");
            }
        }

        /// Starts an executor that completes.
        fn complete_beside(block: &Arc<Block>) -> thread::JoinHandle<()> {
            let block = block.clone();
            thread::spawn(move || block.complete())
        }

        /// Polls as the handle until the coroutine is done.
        fn wait(&self, bell: &Bell, waker: &Waker) {
            while self.join.poll(waker) == Ready::Pending {
                bell.0.wait();
            }
        }

        /// Waits for the end of the executor, and checks that the block was freed once.
        fn end(&self, executor: thread::JoinHandle<()>) {
            executor.join().unwrap();
            assert_eq!(self.freed.load(Ordering::Relaxed), 1);
        }

        fn take(&self) {
            // SAFETY: the property under test is that the output exists and belongs to the handle.
            self.output.with(|output| unsafe { assert_eq!(*output, 7) });
            self.after(self.join.leave(true));
        }
    }

    struct Bell(Notify, RealAtomicUsize);

    impl Wake for Bell {
        fn wake(self: RealArc<Self>) {
            self.1.fetch_add(1, RealOrdering::Relaxed);
            self.0.notify();
        }
    }

    fn bell() -> (RealArc<Bell>, Waker) {
        let bell = RealArc::new(Bell(Notify::new(), RealAtomicUsize::new(0)));
        (bell.clone(), Waker::from(bell))
    }

    #[test]
    fn a_handle_that_waits_is_woken_and_gets_the_output() {
        loom::model(|| {
            let block = Block::new();
            let executor = Block::complete_beside(&block);
            let (bell, waker) = bell();
            block.wait(&bell, &waker);
            block.take();
            block.end(executor);
        });
    }

    #[test]
    fn the_waker_may_change() {
        loom::model(|| {
            let block = Block::new();
            let (_, first) = bell();
            assert_eq!(block.join.poll(&first), Ready::Pending);
            let executor = Block::complete_beside(&block);
            let (bell, second) = bell();
            block.wait(&bell, &second);
            block.take();
            block.end(executor);
        });
    }

    #[test]
    fn a_handle_may_be_dropped_at_any_moment() {
        for polls in 0..2 {
            loom::model(move || {
                let block = Block::new();
                let executor = Block::complete_beside(&block);
                let (_, waker) = bell();
                for _ in 0..polls {
                    block.join.poll(&waker);
                }
                block.after(block.join.leave(false));
                block.end(executor);
            });
        }
    }

    #[test]
    fn a_cancelled_coroutine_has_no_output() {
        loom::model(|| {
            let block = Block::new();
            let executor = thread::spawn({
                let block = block.clone();
                move || block.after(block.join.complete(End::Cancelled))
            });
            let (bell, waker) = bell();
            block.wait(&bell, &waker);
            assert_eq!(block.join.poll(&waker), Ready::Cancelled);
            block.after(block.join.leave(false));
            block.end(executor);
        });
    }
}
