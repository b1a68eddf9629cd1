//! The lock inside the runtime's own objects, for short sections; a waiter gives up its hart to a holder that does not
//! run.
//!
//! It guards a few dozen instructions at a time (a list operation, a map insertion), never an `await`. A worker that
//! finds it held spins briefly and then gives its turn back to the kernel: with more workers than harts the holder may
//! have been preempted, and further spinning would only delay it. Within one worker the lock is never found held,
//! because its holder is not preempted in favour of another coroutine ([`Section`]). Programs want
//! [`crate::sync::Mutex`] wherever a section is longer or awaits.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{Ordering, compiler_fence};

use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::RelaxStrategy;

use crate::local;

/// The relaxation of a worker that finds the lock held: it spins, then yields to the kernel.
#[derive(Debug)]
pub struct Yielding;

impl RelaxStrategy for Yielding {
    fn relax() {
        // A holder that runs on another hart is done within these rounds; a preempted holder needs this hart.
        for _ in 0..32 {
            core::hint::spin_loop();
        }
        unix::worker::yield_now();
    }
}

/// A section without preemption: while it lives, the coroutine is not preempted by a more important one of its worker.
/// Not to be kept over an `await`.
#[derive(Debug)]
pub struct Section(PhantomData<*mut ()>);

impl Section {
    /// Begins a section; sections nest.
    #[inline(always)]
    pub fn begin() -> Section {
        let sections = &local::current().sections;
        sections.set(sections.get() + 1);
        // The interrupt handler, on this hart, sees the count before anything that follows.
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
#[doc(alias = "spinlock")]
pub struct Lock<T>(SpinMutex<T, Yielding>);

impl<T> Lock<T> {
    /// Creates a free lock.
    pub const fn new(value: T) -> Lock<T> {
        Lock(SpinMutex::new(value))
    }

    /// Waits for the lock, and takes it.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        let section = Section::begin();
        Guard { value: self.0.lock(), _section: section }
    }
}

/// Proof that the lock is held; dropping it releases the lock.
#[derive(Debug)]
pub struct Guard<'a, T> {
    // Dropped in this order: the lock is free before the section ends.
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
