//! Traces: what happens, in which order, on one worker.

extern crate std;

use std::boxed::Box;
use std::string::String;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::vec::Vec;

use crate::{
    Cancelled, Executor, Outcome, Platform, Priority, ReadyWord, Signals, Stale, State, Table, Worker, yield_now,
};

struct OneWorker;

impl Platform for OneWorker {
    fn worker(&self) -> usize {
        0
    }
    fn notify(&self, _: usize) {}
}

fn executor() -> (&'static Executor, Worker) {
    let executor: &'static Executor = Box::leak(Box::new(Executor::new()));
    let ready = Box::leak(Box::new([const { ReadyWord::new() }; 8]));
    executor.initialise(Table::native(), ready, &OneWorker).unwrap();
    let worker = executor.worker(0, Signals::default()).unwrap();
    (executor, worker)
}

fn priority(number: u8) -> Priority {
    Priority::new(number).unwrap()
}

/// Awaits one wake.
async fn block(place: &Mutex<Option<Waker>>) {
    let mut waited = false;
    std::future::poll_fn(|context: &mut Context<'_>| {
        if waited {
            return Poll::Ready(());
        }
        waited = true;
        *place.lock().unwrap() = Some(context.waker().clone());
        Poll::Pending
    })
    .await
}

#[test]
fn more_important_first_and_equal_in_order() {
    let (executor, mut worker) = executor();
    let log = Arc::new(Mutex::new(String::new()));
    for (name, number) in [('a', 5), ('b', 3), ('c', 5), ('d', 0), ('e', 63), ('f', 3)] {
        let log = log.clone();
        executor
            .spawn(
                async move {
                    log.lock().unwrap().push(name);
                    yield_now().await;
                    log.lock().unwrap().push(name.to_ascii_uppercase());
                },
                priority(number),
            )
            .detach();
    }
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(*log.lock().unwrap(), "dDbfBFacACeE");
}

#[test]
fn a_handle_gives_the_output() {
    let (executor, mut worker) = executor();
    let inner = executor.spawn(async { String::from("forty-two") }, Priority::DEFAULT);
    let cid = inner.cid();
    let outer = executor.spawn(async move { inner.await.unwrap().len() }, Priority::HIGHEST);
    assert!(!outer.is_finished());
    assert_eq!(executor.state(cid), Ok(State::Ready));
    assert_eq!(worker.run(), Outcome::Idle);
    assert!(outer.is_finished());
    assert_eq!(executor.state(cid), Err(Stale));
    assert_eq!(executor.wake(cid), Err(Stale));
    assert_eq!(executor.cancel(cid), Err(Stale));
    assert_eq!(executor.set_priority(cid, Priority::HIGHEST), Err(Stale));
    assert_eq!(executor.priority(cid), Err(Stale));
    let mut outer = outer;
    let mut context = Context::from_waker(Waker::noop());
    let answer = std::pin::Pin::new(&mut outer).poll(&mut context);
    assert_eq!(answer, Poll::Ready(Ok(9)));
}

#[test]
fn outputs_and_futures_are_dropped_once() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPS.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (executor, mut worker) = executor();

    // Detached before and after the end; taken; cancelled before the first poll and while blocked.
    executor.spawn(async { Counted }, Priority::DEFAULT).detach();
    worker.run();
    assert_eq!(DROPS.swap(0, Ordering::Relaxed), 1);

    let handle = executor.spawn(async { Counted }, Priority::DEFAULT);
    worker.run();
    assert_eq!(DROPS.swap(0, Ordering::Relaxed), 0);
    drop(handle);
    assert_eq!(DROPS.swap(0, Ordering::Relaxed), 1);

    let handle = executor.spawn(async { Counted }, Priority::DEFAULT);
    let waiter = executor.spawn(async move { handle.await.is_ok() }, Priority::HIGHEST);
    worker.run();
    assert_eq!(DROPS.swap(0, Ordering::Relaxed), 1);
    drop(waiter);

    let captured = Counted;
    let handle = executor.spawn(async move { drop(captured) }, Priority::DEFAULT);
    handle.cancel();
    assert_eq!(DROPS.load(Ordering::Relaxed), 0, "a worker drops it, not the canceller");
    worker.run();
    assert_eq!(DROPS.swap(0, Ordering::Relaxed), 1);
    assert!(handle.is_finished());
    drop(handle);

    let place = Arc::new(Mutex::new(None));
    let captured = Counted;
    let handle = executor.spawn(
        {
            let place = place.clone();
            async move {
                block(&place).await;
                drop(captured);
            }
        },
        Priority::DEFAULT,
    );
    worker.run();
    assert_eq!(executor.state(handle.cid()), Ok(State::Blocked));
    handle.cancel();
    let waiter = executor.spawn(handle, Priority::LOWEST);
    let seen = executor.spawn(async move { waiter.await.unwrap() }, Priority::LOWEST);
    worker.run();
    assert_eq!(DROPS.swap(0, Ordering::Relaxed), 1);
    let mut seen = seen;
    let answer = std::pin::Pin::new(&mut seen).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(answer, Poll::Ready(Ok(Err(Cancelled))));
    // The waker that outlived its coroutine names nobody.
    place.lock().unwrap().take().unwrap().wake();
    assert_eq!(worker.run(), Outcome::Idle);
}

#[test]
fn priorities_change_in_every_state() {
    let (executor, mut worker) = executor();
    let log = Arc::new(Mutex::new(Vec::new()));
    let place = Arc::new(Mutex::new(None));
    let record = |name: &'static str| {
        let log = log.clone();
        move || log.lock().unwrap().push(name)
    };

    // Blocked.
    let blocked = {
        let (place, record) = (place.clone(), record("blocked"));
        executor.spawn(
            async move {
                block(&place).await;
                record();
            },
            priority(1),
        )
    };
    worker.run();
    executor.set_priority(blocked.cid(), priority(9)).unwrap();
    // Ready.
    let ready = {
        let record = record("ready");
        executor.spawn(async move { record() }, priority(20))
    };
    let other = {
        let record = record("other");
        executor.spawn(async move { record() }, priority(10))
    };
    executor.set_priority(ready.cid(), priority(2)).unwrap();
    // Running: changes itself, and goes on only after the others.
    let running = {
        let record = record("running");
        executor.spawn(
            async move {
                let me = executor.current().unwrap();
                assert_eq!(executor.state(me), Ok(State::Running));
                executor.set_priority(me, priority(30)).unwrap();
                yield_now().await;
                record();
                executor.priority(me)
            },
            priority(0),
        )
    };
    place.lock().unwrap().take().unwrap().wake();
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(*log.lock().unwrap(), ["ready", "blocked", "other", "running"]);
    for handle in [blocked, ready, other] {
        assert!(handle.is_finished());
    }
    assert!(running.is_finished());
    assert_eq!(executor.current(), None);
}

#[test]
fn a_wake_during_the_poll_is_not_lost_and_counts_once() {
    let (executor, mut worker) = executor();
    let polls = Arc::new(AtomicUsize::new(0));
    let handle = {
        let polls = polls.clone();
        executor.spawn(
            std::future::poll_fn(move |context| {
                if polls.fetch_add(1, Ordering::Relaxed) == 0 {
                    context.waker().wake_by_ref();
                    let clone = context.waker().clone();
                    clone.wake();
                }
                Poll::<()>::Pending
            }),
            Priority::DEFAULT,
        )
    };
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(polls.load(Ordering::Relaxed), 2);
    executor.wake(handle.cid()).unwrap();
    executor.wake(handle.cid()).unwrap();
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(polls.load(Ordering::Relaxed), 3);
    handle.cancel();
    worker.run();
}

#[test]
fn a_waker_and_its_clone_are_the_same() {
    let (executor, mut worker) = executor();
    let handle = executor.spawn(
        std::future::poll_fn(|context| Poll::Ready(context.waker().clone().will_wake(context.waker()))),
        Priority::DEFAULT,
    );
    worker.run();
    let mut handle = handle;
    let answer = std::pin::Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(answer, Poll::Ready(Ok(true)));
}

#[test]
fn a_yield_under_another_waker_wakes_that() {
    struct Flag(AtomicUsize);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let flag = Arc::new(Flag(AtomicUsize::new(0)));
    let waker = Waker::from(flag.clone());
    let mut future = Box::pin(yield_now());
    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(flag.0.load(Ordering::Relaxed), 1);
    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn attention_stops_the_loop_and_completions_are_fetched_before_each_poll() {
    use std::sync::atomic::AtomicU64;
    static ATTENTION: AtomicU64 = AtomicU64::new(0);
    static TAIL: AtomicU64 = AtomicU64::new(0);
    static HEAD: AtomicU64 = AtomicU64::new(0);
    static FETCHED: AtomicUsize = AtomicUsize::new(0);
    struct WithRing;
    impl Platform for WithRing {
        fn worker(&self) -> usize {
            0
        }
        fn notify(&self, _: usize) {}
        fn completions(&self, worker: usize) {
            assert_eq!(worker, 0);
            HEAD.store(TAIL.load(Ordering::Relaxed), Ordering::Relaxed);
            FETCHED.fetch_add(1, Ordering::Relaxed);
        }
    }
    let executor: &'static Executor = Box::leak(Box::new(Executor::new()));
    let ready = Box::leak(Box::new([const { ReadyWord::new() }; 8]));
    executor.initialise(Table::native(), ready, &WithRing).unwrap();
    let signals = Signals { attention: Some(&ATTENTION), completions: Some((&TAIL, &HEAD)) };
    let mut worker = executor.worker(0, signals).unwrap();
    assert!(executor.worker(0, signals).is_err());
    assert!(executor.worker(8, signals).is_err());
    let handle = executor.spawn(
        async {
            TAIL.store(1, Ordering::Relaxed);
            yield_now().await;
            assert_eq!(FETCHED.load(Ordering::Relaxed), 1);
            ATTENTION.store(1, Ordering::Relaxed);
            yield_now().await;
            ATTENTION.store(1, Ordering::Relaxed);
        },
        Priority::DEFAULT,
    );
    assert_eq!(worker.run(), Outcome::Attention);
    assert_eq!(worker.run_one(), Outcome::Attention);
    assert!(!handle.is_finished());
    assert_eq!(executor.state(handle.cid()), Ok(State::Ready));
    ATTENTION.store(0, Ordering::Relaxed);
    // It is finished before attention is paid.
    assert_eq!(worker.run(), Outcome::Attention);
    assert!(handle.is_finished());
    ATTENTION.store(0, Ordering::Relaxed);
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(ready[0].0.load(Ordering::Relaxed), 0);
}

#[test]
fn a_hundred_thousand_coroutines() {
    let (executor, mut worker) = executor();
    const COUNT: usize = 100_000;
    let done = Arc::new(AtomicUsize::new(0));
    let mut handles = Vec::new();
    for index in 0..COUNT {
        let done = done.clone();
        handles.push(executor.spawn(
            async move {
                yield_now().await;
                done.fetch_add(index, Ordering::Relaxed);
                index
            },
            priority((index % 64) as u8),
        ));
    }
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(done.load(Ordering::Relaxed), COUNT * (COUNT - 1) / 2);
    let mut context = Context::from_waker(Waker::noop());
    for (index, mut handle) in handles.into_iter().enumerate() {
        assert_eq!(std::pin::Pin::new(&mut handle).poll(&mut context), Poll::Ready(Ok(index)));
    }
}
