//! Locks and signals between coroutines: a coroutine that waits here lets others run.
//!
//! [`Mutex`] is our own, because its holder inherits the priority of who waits. The others are `async-lock`'s and
//! `event-listener`'s, which work with any executor and never spin. For a few instructions
//! that never await, a spin lock is cheaper; for handing values over, see [`crate::channel`].

pub use crate::mutex::{Acquire, Mutex, MutexGuard};
pub use crate::waker_map::WakerMap;
pub use async_lock::{Barrier, OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphoreGuard};
pub use event_listener::{Event, EventListener};

use event_listener::listener;

/// A signal that wakes coroutines which wait for it.
///
/// A notification that nobody waits for is kept, once: the next one to wait goes on at once.
#[derive(Debug, Default)]
pub struct Notify {
    event: Event,
    kept: core::sync::atomic::AtomicBool,
}

impl Notify {
    /// Without a notification.
    pub const fn new() -> Notify {
        Notify { event: Event::new(), kept: core::sync::atomic::AtomicBool::new(false) }
    }

    /// Wakes the first of those who wait, or the next one to come.
    pub fn notify_one(&self) {
        // Release: what was done before is seen by the one who takes the notification.
        self.kept.store(true, core::sync::atomic::Ordering::Release);
        self.event.notify(1);
    }

    /// Waits for a notification.
    ///
    /// # Cancellation
    ///
    /// The notification stays for the next one.
    pub async fn notified(&self) {
        loop {
            if self.take() {
                return;
            }
            listener!(self.event => listener);
            // One that came between the look and the listening must not be missed.
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
