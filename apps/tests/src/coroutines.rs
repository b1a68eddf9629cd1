//! Coroutines: order by priority, changes of priority, joining, cancelling, very many.

use alloc::sync::Arc;
use alloc::vec::Vec;
use cops::{Cancelled, Cid, Lock, Priority, Stale, State};

use crate::harness::Outcome;
use crate::{check_eq, must};

fn priority(number: u8) -> Priority {
    Priority::saturating(number.into())
}

pub async fn the_most_important_runs_first() -> Outcome {
    let order = Arc::new(Lock::new(Vec::new()));
    let mut running = Vec::new();
    for number in [40u8, 7, 63, 12, 5, 30] {
        let order = order.clone();
        running.push(cops::spawn_at(priority(number), async move { order.lock().push(number) }));
    }
    for handle in running {
        must!(handle.await);
    }
    check_eq!(*order.lock(), [5, 7, 12, 30, 40, 63]);
    Ok(())
}

pub async fn priorities_change_in_every_state() -> Outcome {
    let order = Arc::new(Lock::new(Vec::new()));
    // Ready.
    let handles: Vec<_> = (0..4u8)
        .map(|number| {
            let order = order.clone();
            cops::spawn_at(priority(20 + number), async move { order.lock().push(number) })
        })
        .collect();
    must!(cops::set_priority(handles[3].cid(), priority(10)).map_err(|_| "stale"));
    must!(cops::set_priority(handles[0].cid(), priority(40)).map_err(|_| "stale"));
    for handle in handles {
        must!(handle.await);
    }
    check_eq!(*order.lock(), [3, 1, 2, 0]);
    // Blocked: woken at the new priority.
    order.lock().clear();
    let notify = Arc::new(cops::sync::Event::new());
    let handles: Vec<_> = (0..2u8)
        .map(|number| {
            let (order, listener) = (order.clone(), notify.listen());
            cops::spawn_at(priority(20 + number), async move {
                listener.await;
                order.lock().push(number);
            })
        })
        .collect();
    // Both wait now.
    while cops::executor().state(handles[1].cid()) != Ok(State::Blocked) {
        cops::sleep(cops::time::Duration::from_micros(100)).await;
    }
    must!(cops::set_priority(handles[0].cid(), priority(50)).map_err(|_| "stale"));
    notify.notify(2);
    for handle in handles {
        must!(handle.await);
    }
    check_eq!(*order.lock(), [1, 0]);
    // Running: effective at the next turn.
    let own = cops::current();
    check_eq!(cops::current_priority(), Priority::DEFAULT);
    must!(cops::set_priority(own, priority(33)).map_err(|_| "stale"));
    cops::yield_now().await;
    check_eq!(cops::current_priority(), priority(33));
    check_eq!(cops::executor().priority(own), Ok(priority(33)));
    Ok(())
}

pub async fn results_and_cancellation() -> Outcome {
    check_eq!(cops::spawn(async { alloc::vec![1, 2, 3] }).await, Ok(alloc::vec![1, 2, 3]));
    let endless = cops::spawn(core::future::pending::<()>());
    let cid = endless.cid();
    cops::yield_now().await;
    check_eq!(cops::executor().state(cid), Ok(State::Blocked));
    endless.cancel();
    check_eq!(endless.await, Err(Cancelled));
    check_eq!(cops::wake(cid), Err(Stale));
    check_eq!(cops::set_priority(cid, Priority::HIGHEST), Err(Stale));
    check_eq!(cops::wake(Cid::from_raw(0xdead_beef_0000_0001)), Err(Stale));
    check_eq!(cops::wake(Cid::from_raw(u64::MAX)), Err(Stale));
    Ok(())
}

pub async fn waking_by_cid() -> Outcome {
    // The papers' producer and consumer: the queue is plain memory, and the producer wakes a known cid.
    let queue = Arc::new(Lock::new(alloc::collections::VecDeque::new()));
    let consumer = cops::spawn({
        let queue = queue.clone();
        async move {
            let mut sum = 0u64;
            for _ in 0..100 {
                let value = core::future::poll_fn(|_| match queue.lock().pop_front() {
                    Some(value) => core::task::Poll::Ready(value),
                    None => core::task::Poll::Pending,
                })
                .await;
                sum += value;
            }
            sum
        }
    });
    for value in 0..100u64 {
        queue.lock().push_back(value);
        must!(cops::wake(consumer.cid()).map_err(|_| "stale"));
        if value % 3 == 0 {
            cops::yield_now().await;
        }
    }
    check_eq!(consumer.await, Ok(4950));
    Ok(())
}

pub async fn a_hundred_thousand() -> Outcome {
    let handles: Vec<_> = (0..100_000u64)
        .map(|number| {
            cops::spawn(async move {
                cops::yield_now().await;
                number
            })
        })
        .collect();
    let mut sum = 0;
    for handle in handles {
        sum += must!(handle.await);
    }
    check_eq!(sum, 100_000 * 99_999 / 2);
    Ok(())
}

pub async fn futures_of_others_run_here() -> Outcome {
    // A combinator with wakers of its own, as the ecosystem's join_all.
    let barrier = Arc::new(cops::sync::Barrier::new(10));
    let handles: Vec<_> = (0..10)
        .map(|_| {
            let barrier = barrier.clone();
            cops::spawn(async move { barrier.wait().await.is_leader() })
        })
        .collect();
    let mut leaders = 0;
    for handle in handles {
        leaders += usize::from(must!(handle.await));
    }
    check_eq!(leaders, 1);
    Ok(())
}

/// Runs the cases that run on the host, on the image that the kernel has mapped here.
pub async fn the_schedulers_own_suite() -> Outcome {
    use coroutine::{Executor, ReadyWord, Signals, Table};

    struct OneWorker;
    impl coroutine::Platform for OneWorker {
        fn worker(&self) -> usize {
            0
        }
        fn notify(&self, _: usize) {}
    }
    static EXECUTOR: Executor = Executor::new();
    static READY: [ReadyWord; abi_queue::MAXIMUM_WORKERS] = [const { ReadyWord::new() }; abi_queue::MAXIMUM_WORKERS];

    let image = must!(cops::start::scheduler_image().ok_or("there is no image"));
    // SAFETY: the kernel has mapped the scheduler's image there, readable and executable, for the life of the process.
    let table = must!(unsafe { Table::from_image(image) });
    must!(EXECUTOR.initialise(table, &READY, &OneWorker));
    let mut worker = must!(EXECUTOR.worker(0, Signals::default()));
    let mut cases = 0;
    // A violated contract is a panic, which ends this process with the case's place in the source.
    coroutine::suite::run(&EXECUTOR, &mut worker, |_| cases += 1);
    check_eq!(cases, coroutine::suite::CASES.len());
    Ok(())
}
