//! A lock whose waiters sleep, and one whose waiters spin.
//!
//! Threads of one program can have different priorities, and the kernel runs only the most important ready one. A
//! thread that spins for a lock with a less important holder would spin for ever, so a thread that finds the lock taken
//! waits on a notification. The lock is a counter of the holder and the waiters: each holder that unlocks with a waiter
//! left signals once, and that signal wakes one. Two signals never meet in the notification, because the second is sent
//! by the thread that the first has woken.
//!
//! The second lock, [`Spin`], is for the executor's data, which nearly always only the worker's thread uses.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::capability::Notification;

/// A value for one thread at a time.
pub(crate) struct Lock<T> {
    /// Number of the holder and the waiters.
    count: AtomicU64,
    /// Notification for the waiters; 0 as long as the program has no second thread that could find the lock taken.
    notification: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: the count lets one thread at a time use the value.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to use the value.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { count: AtomicU64::new(0), notification: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    /// Sets the notification for waiters, which has no other use.
    pub(crate) fn set_notification(&self, notification: Notification) {
        self.notification.store(notification.pointer(), Ordering::Relaxed);
    }

    /// Returns whether a notification is set.
    pub(crate) fn has_notification(&self) -> bool {
        self.notification.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        // Acquire, here and below: publishes the last holder's writes.
        if self.count.fetch_add(1, Ordering::Acquire) != 0 {
            match self.notification.load(Ordering::Relaxed) {
                // There is no second thread yet, so this one waits for itself: a bug that must not hang silently.
                0 => panic!("a lock was taken twice"),
                notification => _ = Notification::from_pointer(notification).wait(),
            }
            core::sync::atomic::fence(Ordering::Acquire);
        }
        Guard(self)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: a guard belongs to the one thread that holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Release: publishes this holder's writes to the next one.
        if self.0.count.fetch_sub(1, Ordering::Release) > 1 {
            Notification::from_pointer(self.0.notification.load(Ordering::Relaxed)).signal();
        }
    }
}

/// A value for one thread at a time, for short uses by threads of one priority. The lock is a whole word, which takes
/// one atomic instruction where a byte takes a sequence of ten.
pub(crate) struct Spin<T> {
    is_taken: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the word lets one thread at a time use the value.
unsafe impl<T: Send> Sync for Spin<T> {}

/// The right to use the value of a [`Spin`].
pub(crate) struct SpinGuard<'a, T>(&'a Spin<T>);

impl<T> Spin<T> {
    pub(crate) const fn new(value: T) -> Spin<T> {
        Spin { is_taken: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        // Acquire: publishes the last holder's writes. No guard is made, and dropped, by a thread that does not get the
        // lock: it would release the holder's.
        (self.is_taken.swap(1, Ordering::Acquire) == 0).then(|| SpinGuard(self))
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_slowly(),
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self) -> SpinGuard<'_, T> {
        loop {
            core::hint::spin_loop();
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a guard belongs to the one thread that holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: publishes this holder's writes to the next one.
        self.0.is_taken.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::Spin;

    #[test]
    fn a_spinning_lock_has_one_holder_at_a_time() {
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };
        let counter = Spin::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut value = counter.lock();
                        let before = *value;
                        std::hint::spin_loop();
                        *value = before + 1;
                    }
                });
            }
        });
        assert_eq!(*counter.lock(), 3 * ROUNDS);
        let held = counter.lock();
        // Also after an attempt that failed.
        assert!(counter.try_lock().is_none() && counter.try_lock().is_none());
        drop(held);
        assert!(counter.try_lock().is_some());
    }
}
