//! Hooks that report where coroutines wait, at the moment of asking.
//!
//! A coroutine records nothing when it begins to wait, so that waiting costs nothing more. To learn the await point,
//! all blocked coroutines are polled once more, with a waker that reports its clone: a future that goes on waiting
//! keeps a clone of the waker that it was polled with last, so the report comes from the innermost future of the await
//! point, with the whole chain of futures on the stack. A spurious poll is allowed at any time.
//!
//! The clone is *marked*, and reports its drop. If a coroutine drops a marked clone of its own waker during such a
//! poll, it has kept that clone since the previous one: it has not been polled in between, and it still waits for the
//! same thing.
//!
//! Rejected: a record of the await point at each poll, which costs a store and a read of the clock; and the state
//! numbers of the compiler's futures, whose meaning only full debug information tells.

use core::sync::atomic::{AtomicPtr, Ordering};

/// Functions that are called while an executor is [observed](crate::Executor::observe), on the thread that polls, in
/// the middle of any operation of a future: they must not wait, nor use the executor but for [`Executor::current`].
///
/// [`Executor::current`]: crate::Executor::current
#[derive(Clone, Copy, Debug)]
pub struct Observer {
    /// A future keeps the waker of the coroutine with this cid, which is polled.
    pub waits: fn(cid: u64),
    /// A waker is dropped that was kept while the executor was observed before.
    pub forgets: fn(cid: u64),
}

static OBSERVER: AtomicPtr<Observer> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the observer; it stays when observing ends.
pub(crate) fn set_observer(observer: &'static Observer) {
    // Release: a thread that loads the pointer sees the observer.
    OBSERVER.store(core::ptr::from_ref(observer).cast_mut(), Ordering::Release);
}

/// Returns the observer, if there has been one.
pub(crate) fn observer() -> Option<&'static Observer> {
    // SAFETY: only `set_observer` writes it, from a static reference.
    unsafe { OBSERVER.load(Ordering::Acquire).as_ref() }
}
