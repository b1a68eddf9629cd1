//! A lock whose waiters sleep.
//!
//! Threads of one program can have different priorities, and the kernel runs the most important one and nobody else. A
//! thread that spins for a lock whose holder is less important would spin for ever, so whoever finds the lock taken
//! waits on a notification. It is a counter of the holder and of those who wait: each who leaves behind a waiter
//! signals once, and that signal wakes one. Two signals never meet in the notification, because the second is sent by
//! whom the first has woken.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::capability::Notification;

/// A value for one thread at a time.
pub(crate) struct Lock<T> {
    /// The holder and those who wait.
    count: AtomicU64,
    /// Where they wait; 0 as long as the program has no second thread that could find the lock taken.
    notification: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: the count lets one thread at a time to the value.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to use the value.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { count: AtomicU64::new(0), notification: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    /// Lets threads wait on this notification, which nobody else uses, from now on.
    pub(crate) fn set_notification(&self, notification: Notification) {
        self.notification.store(notification.pointer(), Ordering::Relaxed);
    }

    /// Whether there is one.
    pub(crate) fn has_notification(&self) -> bool {
        self.notification.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        // Acquire, here and below: what the last holder did is seen.
        if self.count.fetch_add(1, Ordering::Acquire) != 0 {
            match self.notification.load(Ordering::Relaxed) {
                // There is no second thread yet, so that this one waits for itself: a mistake that must not be silent.
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
        // SAFETY: whoever has the guard is the one that the count let in.
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
        // Release: the next holder sees what this one did.
        if self.0.count.fetch_sub(1, Ordering::Release) > 1 {
            Notification::from_pointer(self.0.notification.load(Ordering::Relaxed)).signal();
        }
    }
}
