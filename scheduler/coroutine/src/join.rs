//! How a coroutine's end reaches whoever waits for it.
//!
//! A coroutine's block has two owners: the executor and the join handle. Which of them is left, whether there is a
//! result and whether the handle's waker is there, is one word:
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
//! | field | who may touch it |
//! |---|---|
//! | the waker | without WAKER: the handle. With WAKER and not COMPLETE: nobody writes, the handle reads. From COMPLETE on: the executor reads while EXECUTOR is set and WAKER was; whoever gives the block back drops it |
//! | the output | without COMPLETE: the executor. Then the handle, which says TAKEN when it leaves; else whoever gives the block back |
//!
//! The executor's last step is one exchange when nobody waits. When somebody does, it needs two: one that shows the
//! result, and, after the wake, one that lets go of the block, because after the first the handle may be dropped at any
//! moment.

use core::task::Waker;

#[cfg(not(loom))]
use core::cell::UnsafeCell;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
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
    /// Where the output is, in bytes from the beginning of the block. It is here because here is room for it.
    output: u32,
    waker: UnsafeCell<Option<Waker>>,
}

// SAFETY: the table above says who touches the waker when.
unsafe impl Sync for Join {}
// SAFETY: a waker may be sent.
unsafe impl Send for Join {}

/// What the caller has to do with the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum After {
    /// Nothing: the other owner is there.
    Leave,
    /// Give the block back, as there is no other owner; first drop the output, if this says that there is one.
    Free { output: bool },
}

/// What a handle finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Not yet; the waker is registered.
    Pending,
    /// The output is there and is the handle's.
    Output,
    /// There will be no output.
    Cancelled,
}

/// How a coroutine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Output,
    Cancelled,
}

impl Join {
    /// A coroutine that has not ended, and whose handle exists.
    pub fn new(output: u32) -> Join {
        Join { state: AtomicU32::new(EXECUTOR | HANDLE), output, waker: UnsafeCell::new(None) }
    }

    /// Where the output is, in bytes from the beginning of the block.
    pub fn output(&self) -> u32 {
        self.output
    }

    /// The executor's last step.
    #[inline]
    pub fn complete(&self, end: End) -> After {
        let complete = match end {
            End::Output => COMPLETE,
            End::Cancelled => COMPLETE | CANCELLED,
        };
        // In most cases nobody waits (yet): show the result and leave in one exchange.
        // Release: the handle sees the output. Acquire: we may give the block back after the handle has used it.
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
        // Release: our use of the waker comes before its end, if the handle gives the block back. Acquire: the other
        // way round.
        let state = self.state.fetch_and(!EXECUTOR, Ordering::AcqRel);
        if state & HANDLE == 0 { After::Free { output: has_output(state) } } else { After::Leave }
    }

    /// Whether the coroutine has ended. If not, `waker` is woken when it does.
    pub fn poll(&self, waker: &Waker) -> Ready {
        // Acquire: pairs with `complete`, so that the output is there.
        let state = self.state.load(Ordering::Acquire);
        if state & COMPLETE != 0 {
            return ended(state);
        }
        if state & WAKER != 0 {
            if with(&self.waker, |old| old.as_ref().is_some_and(|old| old.will_wake(waker))) {
                return Ready::Pending;
            }
            // Take the old one back before it is replaced. Acquire as above.
            let state = self.state.fetch_and(!WAKER, Ordering::Acquire);
            if state & COMPLETE != 0 {
                // Too late: the executor may be reading it.
                return ended(state);
            }
        }
        with_mut(&self.waker, |place| *place = Some(waker.clone()));
        // Release: the executor sees the waker. Acquire as above.
        let state = self.state.fetch_or(WAKER, Ordering::AcqRel);
        if state & COMPLETE != 0 { ended(state) } else { Ready::Pending }
    }

    /// Whether the coroutine has ended.
    pub fn is_complete(&self) -> bool {
        self.state.load(Ordering::Relaxed) & COMPLETE != 0
    }

    /// The handle's last step. `taken` says whether it took the output.
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
    // SAFETY: by the table above, nobody writes it now.
    #[cfg(not(loom))]
    unsafe {
        then(&*waker.get())
    }
    // SAFETY: as above, and loom checks it.
    #[cfg(loom)]
    waker.with(|waker| unsafe { then(&*waker) })
}

fn with_mut<R>(waker: &UnsafeCell<Option<Waker>>, then: impl FnOnce(&mut Option<Waker>) -> R) -> R {
    // SAFETY: by the table above, nobody else uses it now.
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

    /// A block whose output and freeing are watched: by loom, as plain memory, and by counters.
    struct Block {
        join: Join,
        output: UnsafeCell<u32>,
        freed: AtomicU32,
    }

    impl Block {
        fn new() -> Arc<Block> {
            Arc::new(Block { join: Join::new(0), output: UnsafeCell::new(0), freed: AtomicU32::new(0) })
        }

        /// As the executor: writes the output, ends.
        fn complete(&self) {
            // SAFETY: loom checks that nobody reads it yet.
            self.output.with_mut(|output| unsafe { *output = 7 });
            self.after(self.join.complete(End::Output));
        }

        fn after(&self, after: After) {
            if let After::Free { output } = after {
                // Whoever frees touches everything, so that loom sees a use that is still going on.
                // SAFETY: that is the claim.
                self.output.with_mut(|value| unsafe { assert!(!output || *value == 7) });
                with_mut(&self.join.waker, |waker| *waker = None);
                assert_eq!(self.freed.fetch_add(1, Ordering::Relaxed), 0, "freed twice");
            }
        }

        fn take(&self) {
            // SAFETY: the claim is that it is there and ours.
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
            let executor = thread::spawn({
                let block = block.clone();
                move || block.complete()
            });
            let (bell, waker) = bell();
            while block.join.poll(&waker) == Ready::Pending {
                bell.0.wait();
            }
            block.take();
            executor.join().unwrap();
            assert_eq!(block.freed.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn the_waker_may_change() {
        loom::model(|| {
            let block = Block::new();
            let (_, first) = bell();
            assert_eq!(block.join.poll(&first), Ready::Pending);
            let executor = thread::spawn({
                let block = block.clone();
                move || block.complete()
            });
            let (bell, second) = bell();
            while block.join.poll(&second) == Ready::Pending {
                bell.0.wait();
            }
            block.take();
            executor.join().unwrap();
            assert_eq!(block.freed.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_handle_may_be_dropped_at_any_moment() {
        for polls in 0..2 {
            loom::model(move || {
                let block = Block::new();
                let executor = thread::spawn({
                    let block = block.clone();
                    move || block.complete()
                });
                let (_, waker) = bell();
                for _ in 0..polls {
                    block.join.poll(&waker);
                }
                block.after(block.join.leave(false));
                executor.join().unwrap();
                assert_eq!(block.freed.load(Ordering::Relaxed), 1);
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
            while block.join.poll(&waker) == Ready::Pending {
                bell.0.wait();
            }
            assert_eq!(block.join.poll(&waker), Ready::Cancelled);
            block.after(block.join.leave(false));
            executor.join().unwrap();
            assert_eq!(block.freed.load(Ordering::Relaxed), 1);
        });
    }
}
