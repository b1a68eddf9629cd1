//! A tracer sees coroutines that are spawned, and wakes through wakers that are made, after it was installed.
//!
//! This is a program of its own, because the tracer is the program's.

use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use coroutine::{
    Cid, Executor, JoinHandle, Outcome, Platform, Priority, ReadyWord, Signals, Table, Tracer, trace_with, yield_now,
};
use scheduler::{DONE, PENDING, YIELDED};

struct OneWorker;

impl Platform for OneWorker {
    fn worker(&self) -> usize {
        0
    }
    fn notify(&self, _: usize) {}
}

#[derive(Debug, PartialEq)]
enum Event {
    Spawned(u64, &'static Location<'static>),
    Begins(u64),
    Ends(u64, u32),
    Woken(u64),
}

static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());

static TRACER: Tracer = Tracer {
    spawned: |cid, place| EVENTS.lock().unwrap().push(Event::Spawned(cid, place)),
    poll_begins: |cid| EVENTS.lock().unwrap().push(Event::Begins(cid)),
    poll_ends: |cid, answer| EVENTS.lock().unwrap().push(Event::Ends(cid, answer)),
    woken: |cid| EVENTS.lock().unwrap().push(Event::Woken(cid)),
};

fn events() -> Vec<Event> {
    std::mem::take(&mut EVENTS.lock().unwrap())
}

/// Returns a coroutine that yields and waits once, and its waker when it has waited.
#[track_caller]
fn spawn(executor: &'static Executor) -> (JoinHandle<()>, Arc<Mutex<Option<Waker>>>) {
    let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
    let place = waker.clone();
    let body = async move {
        yield_now().await;
        let mut waits = true;
        std::future::poll_fn(|context| {
            *place.lock().unwrap() = Some(context.waker().clone());
            if std::mem::take(&mut waits) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    };
    (executor.spawn(Priority::DEFAULT, body), waker)
}

#[test]
fn a_tracer_is_told_of_all_that_comes_after_it() {
    let executor: &'static Executor = Box::leak(Box::new(Executor::new()));
    let ready = Box::leak(Box::new([const { ReadyWord::new() }; 8]));
    executor.initialise(Table::native(), ready, &OneWorker).unwrap();
    let mut worker = executor.worker(0, Signals::default()).unwrap();
    let (older, waker) = spawn(executor);
    assert_eq!(worker.run(), Outcome::Idle);
    let older_waker = waker.lock().unwrap().take().unwrap();

    trace_with(&TRACER);
    older_waker.wake_by_ref();
    assert_eq!(worker.run(), Outcome::Idle);
    assert!(older.is_finished());
    assert_eq!(events(), []);
    assert_eq!(executor.cid_of(&older_waker), Some(older.cid()));

    drop(worker);
    let mut worker = executor.worker(0, Signals::default()).unwrap();
    let (line, (traced, waker)) = (line!(), spawn(executor));
    let cid = traced.cid().raw();
    let told = events();
    assert!(
        matches!(told[..], [Event::Spawned(spawned, place)] if spawned == cid && (place.file(), place.line()) == (file!(), line))
    );
    assert_eq!(worker.run(), Outcome::Idle);
    let polls =
        |answers: [u32; 2]| answers.into_iter().flat_map(|answer| [Event::Begins(cid), Event::Ends(cid, answer)]);
    assert_eq!(events(), polls([YIELDED, PENDING]).collect::<Vec<_>>());
    let waker = waker.lock().unwrap().take().unwrap();
    assert_eq!(executor.cid_of(&waker), Some(Cid::from_raw(cid)));
    assert!(executor.waker(traced.cid()).will_wake(&waker));
    let clone = waker.clone();
    assert!(clone.will_wake(&waker));
    drop(clone);
    assert_eq!(events(), []);
    let other = waker.clone();
    other.wake();
    waker.wake_by_ref();
    assert_eq!(events(), [Event::Woken(cid), Event::Woken(cid)]);
    assert_eq!(worker.run(), Outcome::Idle);
    assert!(traced.is_finished());
    assert_eq!(events(), [Event::Begins(cid), Event::Ends(cid, DONE)]);
}
