//! The suite on the host, and what only a host can test: attention, exhaustion, threads.

extern crate std;

use std::boxed::Box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::vec::Vec;

use crate::{
    Cancelled, Cid, Executor, InitialiseError, Outcome, Platform, Priority, ReadyWord, Signals, SpawnError, State,
    Table, Worker, WorkerError, yield_now,
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

#[test]
fn the_suite_holds() {
    let (executor, mut worker) = executor();
    crate::suite::run(executor, &mut worker, |_| ());
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
    let handles: Vec<_> = (0..COUNT).map(|_| executor.spawn(yield_now(), Priority::DEFAULT)).collect();
    assert_eq!(worker.run(), Outcome::Idle);
    assert!(handles.iter().all(|handle| handle.is_finished()));
}

#[test]
fn a_spawn_beyond_the_last_slot_gives_the_future_back() {
    let (executor, mut worker) = executor();
    let mut count = 0;
    let token = Arc::new(());
    let refused = loop {
        let token = token.clone();
        match executor.try_spawn(async move { drop(token) }, Priority::DEFAULT, 0) {
            Ok(handle) => handle.detach(),
            Err(SpawnError(future)) => break future,
        }
        count += 1;
    };
    assert_eq!(count, scheduler::CHUNKS * scheduler::SLOTS_IN_CHUNK);
    assert_eq!(Arc::strong_count(&token), count + 2);
    drop(refused);
    worker.run();
    assert_eq!(Arc::strong_count(&token), 1);
    executor.spawn(async {}, Priority::DEFAULT).detach();
    worker.run();
}

#[test]
fn an_executor_is_made_once_and_used_after() {
    let (executor, worker) = executor();
    let ready = Box::leak(Box::new([const { ReadyWord::new() }; 8]));
    assert_eq!(executor.initialise(Table::native(), ready, &OneWorker), Err(InitialiseError::Twice));
    assert_eq!(executor.worker(0, Signals::default()).err(), Some(WorkerError::Taken));
    assert_eq!(executor.worker(8, Signals::default()).err(), Some(WorkerError::Taken));
    drop(worker);
    assert!(executor.worker(0, Signals::default()).is_ok());
    static NEVER: Executor = Executor::new();
    assert!(std::panic::catch_unwind(|| NEVER.wake(Cid::from_raw(1 << 32))).is_err());
}

/// What a worker thread sleeps on.
#[derive(Default)]
struct Bed {
    notified: Mutex<bool>,
    changed: Condvar,
}

/// Eight threads, on however many processors the host has.
struct Threads {
    beds: [Bed; 8],
    stop: AtomicBool,
}

std::thread_local! {
    static WORKER: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Platform for Threads {
    fn worker(&self) -> usize {
        WORKER.get()
    }
    fn notify(&self, worker: usize) {
        *self.beds[worker].notified.lock().unwrap() = true;
        self.beds[worker].changed.notify_one();
    }
    fn relax(&self) {
        std::thread::yield_now();
    }
}

impl Threads {
    fn work(&'static self, executor: &'static Executor, number: usize) {
        WORKER.set(number);
        let mut worker = executor.worker(number, Signals::default()).unwrap();
        while !self.stop.load(Ordering::Relaxed) {
            assert_eq!(worker.run(), Outcome::Idle);
            let mut notified = self.beds[number].notified.lock().unwrap();
            while !std::mem::take(&mut *notified) {
                notified = self.beds[number].changed.wait(notified).unwrap();
            }
        }
    }
}

/// Everything at once: rings of coroutines that wake each other, change priorities, spawn, join, cancel and are
/// cancelled, on more workers than processors.
#[test]
fn eight_threads_lose_nothing() {
    const RINGS: usize = if cfg!(miri) { 3 } else { 24 };
    const ROUNDS: usize = if cfg!(miri) { 8 } else { 400 };

    let executor: &'static Executor = Box::leak(Box::new(Executor::new()));
    let ready = Box::leak(Box::new([const { ReadyWord::new() }; 8]));
    let threads: &'static Threads =
        Box::leak(Box::new(Threads { beds: Default::default(), stop: AtomicBool::new(false) }));
    executor.initialise(Table::native(), ready, threads).unwrap();
    let workers: Vec<_> = (0..8).map(|number| std::thread::spawn(move || threads.work(executor, number))).collect();

    let finished = Arc::new((Mutex::new(0), Condvar::new()));
    for ring in 0..RINGS {
        let finished = finished.clone();
        let body = async move {
            let mut sum = 0;
            for round in 0..ROUNDS {
                let priority = Priority::saturating(((ring * 7 + round) % 64) as u64);
                let child = executor.spawn(
                    async move {
                        yield_now().await;
                        round
                    },
                    priority,
                );
                let victim = executor.spawn(std::future::pending::<()>(), priority);
                let _ = executor.set_priority(child.cid(), Priority::saturating((round % 64) as u64));
                let _ = executor.set_priority(victim.cid(), Priority::LOWEST);
                victim.cancel();
                sum += child.await.unwrap();
                assert_eq!(victim.await, Err(Cancelled));
                let me = executor.current().unwrap();
                executor.set_priority(me, priority).unwrap();
                if round % 3 == 0 {
                    // A wake from another thread, at any time.
                    let mut woken = false;
                    std::future::poll_fn(|context| {
                        if std::mem::replace(&mut woken, true) {
                            return Poll::Ready(());
                        }
                        let waker = context.waker().clone();
                        executor.spawn(async move { waker.wake() }, priority).detach();
                        Poll::Pending
                    })
                    .await;
                }
            }
            assert_eq!(sum, ROUNDS * (ROUNDS - 1) / 2);
            *finished.0.lock().unwrap() += 1;
            finished.1.notify_one();
        };
        executor.spawn(body, Priority::DEFAULT).detach();
    }
    let mut count = finished.0.lock().unwrap();
    while *count < RINGS {
        let (guard, limit) = finished.1.wait_timeout(count, Duration::from_secs(60)).unwrap();
        assert!(!limit.timed_out(), "only {} of {RINGS} rings came round", *guard);
        count = guard;
    }
    threads.stop.store(true, Ordering::Relaxed);
    for worker in 0..8 {
        threads.notify(worker);
    }
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(executor.ready(), 0);
    let counters: Vec<_> = (0..8).map(|worker| executor.counters(worker)).collect();
    assert!(counters.iter().map(|counters| counters.polls).sum::<u64>() >= (RINGS * ROUNDS * 3) as u64);
}
