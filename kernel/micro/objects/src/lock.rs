//! The kernel's lock.
//!
//! With the feature `smp` it is a spinlock. Without the feature one hart runs the kernel (ONE-HART: the binary starts
//! no other), so there is no other hart to exclude, and taking the lock costs nothing.
//!
//! The lock is not fair by itself. A ticket lock was tried: if a hypervisor or emulator has fewer processors than the
//! machine has harts, each turn waits for a hart that does not run, and a million calls took minutes, not seconds. So
//! the kernel bounds only how often a waiting hart is overtaken (`kernel_micro`, module `smp`).

#[cfg(any(feature = "smp", not(target_os = "none")))]
mod place {
    /// The kernel's lock and the state that it protects.
    pub type Lock<T> = spin::Mutex<T>;
    /// Exclusive access to the state, until it is dropped.
    pub type Locked<'lock, T> = spin::MutexGuard<'lock, T>;

    /// Takes the lock; while another hart holds it, calls `meanwhile` repeatedly, which pauses.
    #[inline(always)]
    pub fn lock_with<T>(lock: &Lock<T>, mut meanwhile: impl FnMut()) -> Locked<'_, T> {
        loop {
            if let Some(locked) = lock.try_lock() {
                return locked;
            }
            while lock.is_locked() {
                meanwhile();
            }
        }
    }
}

#[cfg(not(any(feature = "smp", not(target_os = "none"))))]
mod place {
    /// The kernel's state, without a lock.
    pub struct Lock<T>(T);
    /// Access to the state.
    pub struct Locked<'lock, T>(&'lock T);

    impl<T> core::ops::Deref for Locked<'_, T> {
        type Target = T;

        #[inline(always)]
        fn deref(&self) -> &T {
            self.0
        }
    }

    // SAFETY: ONE-HART: without the feature no other hart shares it.
    unsafe impl<T: Send> Sync for Lock<T> {}

    impl<T> Lock<T> {
        /// Makes a lock that is free.
        pub const fn new(state: T) -> Lock<T> {
            Lock(state)
        }

        /// Gives access to the state, which is shared and never exclusive.
        #[inline(always)]
        pub fn lock(&self) -> Locked<'_, T> {
            Locked(&self.0)
        }
    }

    /// Takes the lock, without waiting.
    #[inline(always)]
    pub fn lock_with<T>(lock: &Lock<T>, _: impl FnMut()) -> Locked<'_, T> {
        lock.lock()
    }
}

pub use place::{Lock, Locked, lock_with};
