//! The lock inside the runtime's own objects: short, and aware that its holder may not be running.
//!
//! It guards a few dozen instructions at a time (a list operation, a map insertion), never an `await`. A worker that
//! meets it held spins briefly and then gives its turn back to the kernel: with more workers than harts the holder may
//! have been preempted, and spinning on would only keep it from finishing. Within a worker nobody meets it held,
//! because who holds it is not put aside for another coroutine ([`Section`]). Programs want [`crate::sync::Mutex`].

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{Ordering, compiler_fence};

use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::RelaxStrategy;

use crate::local;

/// What a worker does while it finds the lock held.
#[derive(Debug)]
pub struct Yielding;

impl RelaxStrategy for Yielding {
    fn relax() {
        // A holder that runs on another hart is done within these turns; one that does not run needs this hart.
        for _ in 0..32 {
            core::hint::spin_loop();
        }
        unix::worker::yield_now();
    }
}

/// While it lives, the coroutine is not put aside for a more important one of its worker. Not to be kept over an
/// `await`.
#[derive(Debug)]
pub struct Section(PhantomData<*mut ()>);

impl Section {
    /// Begins one; they nest.
    #[inline(always)]
    pub fn begin() -> Section {
        let sections = &local::current().sections;
        sections.set(sections.get() + 1);
        // The handler of interrupts, on this hart, sees it before anything that follows.
        compiler_fence(Ordering::SeqCst);
        Section(PhantomData)
    }
}

impl Drop for Section {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let sections = &local::current().sections;
        sections.set(sections.get() - 1);
    }
}

/// A mutual exclusion for short sections.
#[derive(Debug, Default)]
pub struct Lock<T>(SpinMutex<T, Yielding>);

impl<T> Lock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Lock<T> {
        Lock(SpinMutex::new(value))
    }

    /// Waits for it, and takes it.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        let section = Section::begin();
        Guard { value: self.0.lock(), _section: section }
    }
}

/// The lock is held.
#[derive(Debug)]
pub struct Guard<'a, T> {
    // Dropped in this order.
    value: SpinMutexGuard<'a, T, Yielding>,
    _section: Section,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
