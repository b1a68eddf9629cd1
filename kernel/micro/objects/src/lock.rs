//! The kernel's lock.
//!
//! Where there are several harts it is a lock. Without the feature `smp` one hart runs the kernel (ONE-HART: the binary
//! starts no other), so there is nothing to exclude, and taking it costs nothing.
//!
//! It is not fair. A lock that is given in the order of asking was tried: where a hypervisor or emulator has fewer
//! processors than the machine has harts, each turn then waits for a hart that does not run, and a million calls took
//! minutes instead of seconds.

#[cfg(any(feature = "smp", not(target_os = "none")))]
mod place {
    /// The kernel's state behind its lock.
    pub type Lock<T> = spin::Mutex<T>;
    /// The right to touch it, until it is dropped.
    pub type Locked<'lock, T> = spin::MutexGuard<'lock, T>;

    /// Takes the lock; while another hart has it, does this again and again.
    #[inline(always)]
    pub fn lock_with<T>(lock: &Lock<T>, mut meanwhile: impl FnMut()) -> Locked<'_, T> {
        loop {
            if let Some(locked) = lock.try_lock() {
                return locked;
            }
            while lock.is_locked() {
                meanwhile();
                core::hint::spin_loop();
            }
        }
    }
}

#[cfg(not(any(feature = "smp", not(target_os = "none"))))]
mod place {
    /// The kernel's state.
    pub struct Lock<T>(T);
    /// The right to touch it.
    pub struct Locked<'lock, T>(&'lock T);

    impl<T> core::ops::Deref for Locked<'_, T> {
        type Target = T;

        #[inline(always)]
        fn deref(&self) -> &T {
            self.0
        }
    }

    // SAFETY: ONE-HART: without the feature there is no other hart to share it with.
    unsafe impl<T: Send> Sync for Lock<T> {}

    impl<T> Lock<T> {
        /// As a lock that nobody has taken.
        pub const fn new(state: T) -> Lock<T> {
            Lock(state)
        }

        /// Whoever asks has it: the state is shared, never exclusive.
        #[inline(always)]
        pub fn lock(&self) -> Locked<'_, T> {
            Locked(&self.0)
        }
    }

    /// Takes the lock, at once.
    #[inline(always)]
    pub fn lock_with<T>(lock: &Lock<T>, _: impl FnMut()) -> Locked<'_, T> {
        lock.lock()
    }
}

pub use place::{Lock, Locked, lock_with};
