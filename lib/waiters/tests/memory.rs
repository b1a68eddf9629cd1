//! Without memory a newcomer is refused, and the other waiters are not affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use property::{Limited, with_memory};
use waiters::{OutOfMemory, Waiters};

#[global_allocator]
static MEMORY: Limited = Limited;

struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn newcomers_are_refused_when_memory_is_short() {
    let bells: Vec<_> = (0..1000).map(|_| Arc::new(Bell(AtomicUsize::new(0)))).collect();
    let wakers: Vec<_> = bells.iter().map(|bell| Waker::from(bell.clone())).collect();
    let mut outcomes = Vec::with_capacity(wakers.len());
    for bytes in (0..20_000).step_by(40) {
        let mut waiters = Waiters::new();
        outcomes.clear();
        with_memory(bytes, || {
            // Twice, because a refused waiter may try again, and an accepted one is registered.
            for _ in 0..2 {
                outcomes.clear();
                outcomes.extend(wakers.iter().map(|waker| waiters.register(waker)));
            }
        });
        assert_eq!(outcomes[0], Ok(()), "the first needs no memory");
        assert!(bells.iter().all(|bell| bell.0.swap(0, Ordering::Relaxed) == 0), "a newcomer wakes another");
        assert!(bytes > 0 || outcomes[1..].iter().all(|&outcome| outcome == Err(OutOfMemory)));
        waiters.wake_all();
        for (bell, outcome) in bells.iter().zip(&outcomes) {
            assert_eq!(bell.0.swap(0, Ordering::Relaxed), usize::from(outcome.is_ok()));
        }
    }
    assert!(outcomes.iter().filter(|outcome| outcome.is_ok()).count() > 100);
}

#[test]
fn a_refusal_says_that_memory_is_short() {
    assert_eq!(OutOfMemory.to_string(), "no memory for one more waiter");
}
