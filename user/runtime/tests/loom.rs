//! Every interleaving of small cases of channels and mutexes: no wake-up is lost, and a guard excludes all others.
//!
//! The modules are compiled here a second time, over a lock of loom's, because the rest of the runtime has static words
//! that loom's atomics cannot be. The lock is thereby taken as correct; it is that of the crate `spin`.
#![cfg(loom)]
#![allow(dead_code, reason = "the models use a part of each module")]

extern crate alloc;

#[path = "../src/channel.rs"]
mod channel;
#[path = "../src/mutex.rs"]
mod mutex;
#[path = "../src/waiting.rs"]
mod waiting;

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
