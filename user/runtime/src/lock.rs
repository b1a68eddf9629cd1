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

/// The implementation of the crate `critical-section`: one lock for all workers and threads, which its holder may take
/// again.
#[cfg(feature = "critical-section")]
mod critical {
    use core::sync::atomic::AtomicUsize;

    use critical_section::RawRestoreState;

    use super::{Ordering, RelaxStrategy, Section, Yielding};
    use crate::local;

    /// Address of the holder's block; 0 while it is free.
    static HOLDER: AtomicUsize = AtomicUsize::new(0);

    pub(super) struct Critical;

    #[cfg(target_os = "none")]
    critical_section::set_impl!(Critical);

    // SAFETY: one worker or thread at a time has its block's address in `HOLDER`, and only its holder takes it out; the
    // coroutine is not preempted in between, so no other code of that worker runs.
    unsafe impl critical_section::Impl for Critical {
        unsafe fn acquire() -> RawRestoreState {
            core::mem::forget(Section::begin());
            let own = core::ptr::from_ref(local::current()).addr();
            // Relaxed: only this worker or thread writes its own address.
            if HOLDER.load(Ordering::Relaxed) == own {
                return true;
            }
            while HOLDER.compare_exchange_weak(0, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
                Yielding::relax();
            }
            false
        }

        unsafe fn release(was_held: RawRestoreState) {
            if !was_held {
                HOLDER.store(0, Ordering::Release);
            }
            drop(Section(core::marker::PhantomData));
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use critical_section::Impl;

        #[test]
        fn a_section_excludes_all_threads_and_nests() {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let threads: std::vec::Vec<_> = (0..4)
                .map(|_| {
                    std::thread::spawn(|| {
                        for _ in 0..50 {
                            // SAFETY: each is released in the reverse order, with its own state.
                            unsafe {
                                let outer = Critical::acquire();
                                let inner = Critical::acquire();
                                assert_eq!((outer, inner), (false, true));
                                let count = COUNT.load(Ordering::Relaxed);
                                std::thread::yield_now();
                                Critical::release(inner);
                                COUNT.store(count + 1, Ordering::Relaxed);
                                Critical::release(outer);
                            }
                        }
                        assert_eq!(local::current().sections.get(), 0);
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(COUNT.load(Ordering::Relaxed), 200);
        }
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

    /// Takes the lock if it is free.
    #[cfg(target_os = "none")]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let section = Section::begin();
        Some(Guard { value: self.0.try_lock()?, _section: section })
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
