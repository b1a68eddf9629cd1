//! The number of executors and workers of one program is limited; each of them has wakers and a frame of its own.
//!
//! This is a program of its own, because the limits are the program's.

use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use coroutine::{
    Executor, InitialiseError, MAXIMUM_WORKERS, Outcome, Platform, Priority, ReadyWord, Signals, Table, WorkerError,
    yield_now,
};

/// The largest numbers of executors and of workers in a program.
const EXECUTORS: usize = 32;
const WORKERS: usize = 64;

std::thread_local! {
    static WORKER: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

struct OneThread;

impl Platform for OneThread {
    fn worker(&self) -> usize {
        WORKER.get()
    }
    fn notify(&self, _: usize) {}
}

fn initialise() -> Result<&'static Executor, InitialiseError> {
    let executor: &'static Executor = Box::leak(Box::new(Executor::new()));
    let ready = Box::leak(Box::new([const { ReadyWord::new() }; 8]));
    executor.initialise(Table::native(), ready, &OneThread)?;
    Ok(executor)
}

#[test]
fn all_that_a_program_can_have_work_and_one_more_is_an_error() {
    let executors: Vec<_> = (0..EXECUTORS).map(|_| initialise().unwrap()).collect();
    let one_more: &'static Executor = Box::leak(Box::new(Executor::new()));
    let ready = Box::leak(Box::new([const { ReadyWord::new() }; 8]));
    for _ in 0..2 {
        assert_eq!(one_more.initialise(Table::native(), ready, &OneThread), Err(InitialiseError::TooMany));
    }

    let mut workers = Vec::new();
    for executor in &executors[..WORKERS / MAXIMUM_WORKERS] {
        for number in 0..MAXIMUM_WORKERS {
            workers.push((*executor, executor.worker(number, Signals::default()).unwrap()));
        }
    }
    // Each yields in its own frame and is woken by its own waker.
    for (executor, worker) in &mut workers {
        let executor = *executor;
        WORKER.set(worker.number());
        let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
        let place = waker.clone();
        let body = async move {
            yield_now().await;
            let mut waits = true;
            std::future::poll_fn(|context| {
                assert_eq!(executor.cid_of(context.waker()), executor.current());
                *place.lock().unwrap() = Some(context.waker().clone());
                if std::mem::take(&mut waits) { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
        };
        let handle = executor.spawn(Priority::DEFAULT, body);
        assert_eq!([worker.run_one(), worker.run_one(), worker.run_one()], [Outcome::Ran, Outcome::Ran, Outcome::Idle]);
        let waker = waker.lock().unwrap().take().unwrap();
        assert_eq!(executor.cid_of(&waker), Some(handle.cid()));
        for other in executors.iter().filter(|other| !std::ptr::eq(**other, executor)) {
            assert_eq!(other.cid_of(&waker), None);
        }
        waker.wake();
        assert_eq!([worker.run_one(), worker.run_one()], [Outcome::Ran, Outcome::Idle]);
        assert!(handle.is_finished());
    }

    // All frames are in use: one is free again when a worker is dropped.
    let other = executors[EXECUTORS - 1];
    let worker = |number| other.worker(number, Signals::default());
    assert_eq!(worker(3).err(), Some(WorkerError::TooMany));
    drop(workers.swap_remove(40));
    let first = worker(1).unwrap();
    assert_eq!(worker(3).err(), Some(WorkerError::TooMany));
    // SAFETY: none of the two runs.
    assert_eq!(unsafe { other.worker_on_another_stack(1) }.err(), Some(WorkerError::TooMany));
    assert_eq!(worker(1).err(), Some(WorkerError::Taken));
    drop(workers.swap_remove(7));
    // SAFETY: none of the two runs.
    let on_another_stack = unsafe { other.worker_on_another_stack(1) }.unwrap();
    assert_eq!(on_another_stack.number(), 1);
    assert_eq!(worker(3).err(), Some(WorkerError::TooMany));
    // Without its other stack the worker still exists.
    drop(on_another_stack);
    assert_eq!(worker(1).err(), Some(WorkerError::Taken));
    let third = worker(3).unwrap();
    drop(first);
    assert_eq!(worker(3).err(), Some(WorkerError::Taken));
    let first = worker(1).unwrap();
    // No frame is given to two workers.
    assert_eq!(worker(2).err(), Some(WorkerError::TooMany));
    drop((first, third, workers));
    let workers: Vec<_> = (0..MAXIMUM_WORKERS).map(|number| worker(number).unwrap()).collect();
    assert_eq!(workers.len(), MAXIMUM_WORKERS);
}
