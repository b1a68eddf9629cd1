//! Every interleaving of small cases of channels, mutexes, records of calls and the flusher of a ring: no wake-up is
//! lost, a guard excludes all others, and a result or a buffer reaches one side.
//!
//! The modules are compiled here a second time, over a lock of loom's, because the rest of the runtime has static words
//! that loom's atomics cannot be. The lock is thereby taken as correct; it is that of the crate `spin`.
#![cfg(loom)]
#![allow(dead_code, reason = "the models use a part of each module")]

extern crate alloc;

#[path = "../src/channel.rs"]
mod channel;
#[path = "../src/meeting.rs"]
mod meeting;
#[path = "../src/sync/mutex.rs"]
mod mutex;
#[path = "../src/waiting.rs"]
mod waiting;

mod atomics {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

mod lock {
    //! The runtime's lock, as a model.

    use core::ops::{Deref, DerefMut};

    /// A mutual exclusion for short sections.
    pub struct Lock<T>(loom::sync::Mutex<T>);

    impl<T> Lock<T> {
        pub fn new(value: T) -> Lock<T> {
            Lock(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> Guard<'_, T> {
            Guard(self.0.lock().unwrap())
        }
    }

    pub struct Guard<'a, T>(loom::sync::MutexGuard<'a, T>);

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.0
        }
    }
}

mod inheritance {
    //! Threads that are no coroutines: they lend and borrow nothing.

    use abi_queue::Priority;

    pub enum Loan {
        None { changed: bool },
        Made { changed: bool },
    }

    pub fn caller() -> u64 {
        0
    }

    pub fn priority_of(_: u64) -> Priority {
        Priority::DEFAULT
    }

    pub fn lend(_holder: u64, _lock: usize, _priority: Priority, _again: bool) -> Loan {
        Loan::None { changed: false }
    }

    pub fn repay(_holder: u64, _lock: usize) -> Loan {
        Loan::None { changed: false }
    }
}

mod executor {
    pub fn wake_raw(_: u64) {
        unreachable!("no priority changes");
    }
}

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;

use loom::cell::Cell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex as LoomMutex};
use loom::thread;

/// A thread's sleep: a lost wake-up is a deadlock, which loom reports.
struct Bell {
    is_rung: LoomMutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn new() -> Arc<Bell> {
        Arc::new(Bell { is_rung: LoomMutex::new(false), changed: Condvar::new() })
    }

    fn sleep(&self) {
        let mut is_rung = self.is_rung.lock().unwrap();
        while !*is_rung {
            is_rung = self.changed.wait(is_rung).unwrap();
        }
        *is_rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        *self.is_rung.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let bell = Bell::new();
    let waker = Waker::from(bell.clone());
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => bell.sleep(),
        }
    }
}

/// Polls a future once, and drops it.
fn poll_and_drop<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    let waker = Waker::from(Bell::new());
    match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Bounded, so that the models end in a second. A wake-up that is lost between a look and a sleep needs one.
    builder.preemption_bound = Some(3);
    builder.check(body);
}

#[test]
fn a_full_and_an_empty_channel_wake_each_other() {
    model(|| {
        let (sender, receiver) = channel::bounded(1);
        let sending = thread::spawn(move || {
            for value in 0..2 {
                assert_eq!(block_on(sender.send(value)), Ok(()));
            }
        });
        assert_eq!(block_on(receiver.receive()), Some(0));
        assert_eq!(block_on(receiver.receive()), Some(1));
        // The last sender that goes wakes the receiver.
        assert_eq!(block_on(receiver.receive()), None);
        sending.join().unwrap();
    });
}

#[test]
fn a_receiver_that_goes_passes_its_wake_up_on() {
    model(|| {
        let (sender, receiver) = channel::unbounded();
        let (back, other) = (sender.clone(), receiver.clone());
        let goes = thread::spawn(move || {
            if let Some(Some(value)) = poll_and_drop(other.receive()) {
                assert_eq!(back.try_send(value), Ok(()));
            }
            // Both ends live on in the caller.
            (back, other)
        });
        let sends = thread::spawn(move || {
            assert_eq!(sender.try_send(7), Ok(()));
            sender
        });
        assert_eq!(block_on(receiver.receive()), Some(7));
        let _ends = (goes.join().unwrap(), sends.join().unwrap());
    });
}

#[test]
fn the_last_receiver_that_goes_wakes_senders() {
    model(|| {
        let (sender, receiver) = channel::bounded(1);
        assert_eq!(sender.try_send(1), Ok(()));
        let goes = thread::spawn(move || drop(receiver));
        assert_eq!(block_on(sender.send(2)), Err(channel::Closed(2)));
        goes.join().unwrap();
    });
}

/// A buffer that future and completion hand over.
struct Payload(Cell<u32>);

// SAFETY: loom reports accesses by two threads without an order between them.
unsafe impl Sync for Payload {}

/// The future of a call: polled as a coroutine, or first with a waker and then as a coroutine.
fn result_of(meeting: &meeting::Meeting, bell: &Bell, waker_first: bool) -> usize {
    if meeting.is_done() || waker_first && meeting.wait_with_waker() || meeting.wait_as(5) {
        return meeting.result();
    }
    bell.sleep();
    // The only wake-up that there is comes behind the result.
    assert!(meeting.is_done());
    meeting.result()
}

#[test]
fn a_call_gives_its_future_the_result() {
    for (in_interrupt, waker_first) in [(false, false), (true, false), (false, true), (true, true)] {
        model(move || {
            let meeting = Arc::new(meeting::Meeting::new());
            let bell = Bell::new();
            let (other, rung) = (meeting.clone(), bell.clone());
            let completes = thread::spawn(move || {
                let simply = in_interrupt.then(|| other.complete_simply(7)).flatten();
                match simply.unwrap_or_else(|| other.complete(7)) {
                    meeting::Awaiting::Own(cid) => {
                        assert_eq!(cid, 5);
                        rung.wake();
                    }
                    // Between its two polls, the future finds the result by itself at the second.
                    meeting::Awaiting::Foreign => assert!(waker_first),
                    meeting::Awaiting::None => {}
                    meeting::Awaiting::Abandoned => unreachable!(),
                }
            });
            assert_eq!(result_of(&meeting, &bell, waker_first), 7);
            completes.join().unwrap();
        });
    }
}

/// loom reports two threads that access the cell without an order between them.
#[test]
fn the_payload_of_an_abandoned_call_reaches_one_side() {
    for was_polled in [false, true] {
        model(move || {
            let shared = Arc::new((meeting::Meeting::new(), Payload(Cell::new(0))));
            let other = shared.clone();
            let completes = thread::spawn(move || {
                let (meeting, Payload(payload)) = &*other;
                let is_left = meeting.complete(7) == meeting::Awaiting::Abandoned;
                if is_left {
                    payload.set(payload.get() + 1);
                }
                is_left
            });
            let (meeting, Payload(payload)) = &*shared;
            let is_done = was_polled && meeting.wait_as(5);
            payload.set(10);
            let is_back = is_done || meeting.abandon();
            if is_back {
                assert_eq!(meeting.result(), 7);
                payload.set(payload.get() + 1);
            }
            assert_ne!(completes.join().unwrap(), is_back);
            assert_eq!(payload.get(), 11);
        });
    }
}

#[test]
fn a_completion_in_an_interrupt_leaves_an_abandoned_call_alone() {
    model(|| {
        let shared = Arc::new((meeting::Meeting::new(), Payload(Cell::new(0))));
        let other = shared.clone();
        let completes = thread::spawn(move || match other.0.complete_simply(7) {
            Some(waiter) => assert_eq!(waiter, meeting::Awaiting::None),
            // The executor does the rest, with the payload.
            None => {
                assert_eq!(other.0.complete(7), meeting::Awaiting::Abandoned);
                assert_eq!(other.1.0.get(), 10);
            }
        });
        shared.1.0.set(10);
        if shared.0.abandon() {
            assert_eq!((shared.0.result(), shared.1.0.get()), (7, 10));
        }
        completes.join().unwrap();
    });
}

/// A request is published before the flag is set; the flusher clears the flag before it looks.
#[test]
fn a_flusher_misses_no_request() {
    model(|| {
        let shared = Arc::new((meeting::Armed::new(), AtomicUsize::new(0)));
        let bell = Bell::new();
        let (other, rung) = (shared.clone(), bell.clone());
        let submits = thread::spawn(move || {
            for request in 1..=2 {
                other.1.store(request, Ordering::Relaxed);
                if other.0.set() {
                    rung.clone().wake();
                }
            }
        });
        let mut seen = 0;
        while seen < 2 {
            bell.sleep();
            if shared.0.take() {
                seen = shared.1.load(Ordering::Relaxed);
            }
        }
        submits.join().unwrap();
    });
}

/// loom reports two threads that access the cell without an order between them.
#[test]
fn a_guard_excludes_all_others() {
    model(|| {
        let mutex = Arc::new(mutex::Mutex::new(Cell::new(0)));
        let add = |mutex: &mutex::Mutex<Cell<u32>>| {
            let cell = block_on(mutex.lock());
            cell.set(cell.get() + 1);
        };
        let other = mutex.clone();
        let adds = thread::spawn(move || add(&other));
        add(&mutex);
        adds.join().unwrap();
        assert_eq!(block_on(mutex.lock()).get(), 2);
    });
}

#[test]
fn a_waiter_that_goes_passes_the_lock_on() {
    model(|| {
        let mutex = Arc::new(mutex::Mutex::new(Cell::new(0)));
        let held = mutex.try_lock().unwrap();
        let other = mutex.clone();
        let goes = thread::spawn(move || drop(poll_and_drop(other.lock())));
        let other = mutex.clone();
        let waits = thread::spawn(move || {
            let cell = block_on(other.lock());
            cell.set(cell.get() + 1);
        });
        held.set(1);
        drop(held);
        goes.join().unwrap();
        waits.join().unwrap();
        assert_eq!(block_on(mutex.lock()).get(), 2);
    });
}
