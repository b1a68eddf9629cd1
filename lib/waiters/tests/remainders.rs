//! With a registered function for remainders, a change wakes one portion and hands the others on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use waiters::{PORTION, Remainder, Waiters, wake_remainders_with};

static REMAINDERS: Mutex<Vec<Remainder>> = Mutex::new(Vec::new());

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_rest_is_handed_on_and_the_first_that_is_named_gets_it() {
    wake_remainders_with(|remainder| REMAINDERS.lock().unwrap().push(remainder));
    wake_remainders_with(|_| panic!("only the first registration counts"));
    let bells: Vec<_> = (0..3 * PORTION).map(|_| Arc::new(Bell::default())).collect();
    let rings = || bells.iter().map(|bell| bell.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let mut waiters = Waiters::new();
    for bell in &bells {
        waiters.register(&Waker::from(bell.clone())).unwrap();
    }
    waiters.wake_all();
    // The very first waiter is not in the queue that portions are taken from.
    let at_once = PORTION + 1;
    let expected = |rung: usize| (0..bells.len()).map(|index| usize::from(index < rung)).collect::<Vec<_>>();
    assert_eq!(rings(), expected(at_once));
    assert!(waiters.is_empty(), "the others do not wait here any more");
    let mut remainder = REMAINDERS.lock().unwrap().pop().unwrap();
    assert!(REMAINDERS.lock().unwrap().is_empty(), "there is one remainder");
    assert!(remainder.wake_portion());
    assert_eq!(rings(), expected(at_once + PORTION));
    assert!(!remainder.wake_portion());
    assert_eq!(rings(), expected(bells.len()));
    // As many as one portion leave nothing to hand on.
    for bell in &bells[..at_once] {
        waiters.register(&Waker::from(bell.clone())).unwrap();
    }
    waiters.wake_all();
    assert_eq!(rings().iter().sum::<usize>(), bells.len() + at_once);
    assert!(REMAINDERS.lock().unwrap().is_empty());
}
