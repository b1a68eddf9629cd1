//! A waker for tests, which counts.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::Waker;

/// The number of times that a waker was used.
#[derive(Default)]
pub(crate) struct Wakes(AtomicUsize);

impl Wakes {
    /// Makes a waker, and the number of its wake-ups.
    pub(crate) fn counted() -> (Arc<Wakes>, Waker) {
        let wakes = Arc::<Wakes>::default();
        (wakes.clone(), Waker::from(wakes))
    }

    /// Returns the number of wake-ups.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the number of wake-ups since the last take.
    pub(crate) fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
