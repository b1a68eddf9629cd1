//! Who waits for what.

use alloc::vec::Vec;
use core::task::Waker;

/// How many may wait for one thing before the longest waiting is woken to make room.
const LIMIT: usize = 8;

/// The wakers of those who wait for one condition. All are woken at once; each finds out for itself
/// whether it was meant, and registers again if not.
///
/// One waiter costs no allocation. When the list is full, or memory is short, another waiter is woken to make
/// room: that wake is spurious, which every waiter must bear anyhow, so nobody is ever forgotten.
#[derive(Default)]
pub(crate) struct Waiters {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Waiters {
    pub(crate) fn register(&mut self, waker: &Waker) {
        let Some(first) = &mut self.first else {
            self.first = Some(waker.clone());
            return;
        };
        if first.will_wake(waker) || self.more.iter().any(|other| other.will_wake(waker)) {
            return;
        }
        if self.more.len() + 1 < LIMIT && self.more.try_reserve(1).is_ok() {
            self.more.push(waker.clone());
        } else {
            core::mem::replace(first, waker.clone()).wake();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn wake(&mut self) {
        if let Some(first) = self.first.take() {
            first.wake();
            for waker in self.more.drain(..) {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use core::sync::atomic::{AtomicUsize, Ordering};

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn everyone_is_woken_even_beyond_the_limit() {
        let counts: Vec<_> = (0..LIMIT + 3).map(|_| Arc::new(Count(AtomicUsize::new(0)))).collect();
        let mut waiters = Waiters::default();
        for count in &counts {
            let waker = Waker::from(count.clone());
            waiters.register(&waker);
            waiters.register(&waker);
        }
        waiters.wake();
        assert!(waiters.is_empty());
        for count in &counts {
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
        }
        waiters.wake();
        assert_eq!(counts[0].0.load(Ordering::Relaxed), 1);
    }
}
