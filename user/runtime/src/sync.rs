//! Locks and signals between coroutines: a coroutine that waits here lets others run.
//!
//! [`Mutex`] is our own, because its holder inherits the priority of its waiters. The other types are those of
//! `async-lock` and `event-listener`, which work with any executor and never spin. For a few instructions that never
//! await, a spin lock is cheaper ([`crate::Lock`]); to hand values over, see [`crate::channel`].

pub use crate::mutex::{Acquire, Mutex, MutexGuard};
pub use crate::waker_map::WakerMap;
pub use async_lock::{Barrier, OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphoreGuard};
pub use event_listener::{Event, EventListener};

use event_listener::listener;

/// A signal that wakes coroutines that wait for it.
///
/// A notification without a waiter is kept, once: the next coroutine that waits continues at once.
#[derive(Debug, Default)]
pub struct Notify {
    event: Event,
    kept: core::sync::atomic::AtomicBool,
}

impl Notify {
    /// Creates a signal without a kept notification.
    pub const fn new() -> Notify {
        Notify { event: Event::new(), kept: core::sync::atomic::AtomicBool::new(false) }
    }

    /// Wakes the first waiter, or the next one to come.
    pub fn notify_one(&self) {
        // Release: the notifier's earlier writes are visible to the coroutine that takes the notification.
        self.kept.store(true, core::sync::atomic::Ordering::Release);
        self.event.notify(1);
    }

    /// Waits for a notification.
    ///
    /// # Cancellation
    ///
    /// Strict. A notification that has come stays for the next waiter.
    pub async fn notified(&self) {
        loop {
            if self.take() {
                return;
            }
            listener!(self.event => listener);
            // A notification between the first look and the listening must not be missed.
            if self.take() {
                return;
            }
            listener.await;
        }
    }

    fn take(&self) -> bool {
        // Acquire: pairs with the notifier's release.
        self.kept.swap(false, core::sync::atomic::Ordering::Acquire)
    }
}
