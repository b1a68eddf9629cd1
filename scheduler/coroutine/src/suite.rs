//! The contract of an executor, as cases that run anywhere: on the host against the scheduler that is linked in, on the
//! target against the image. Each case needs an idle executor with one worker, and leaves it idle; a violation is a
//! panic.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};

use crate::{Cancelled, Executor, JoinHandle, Outcome, Priority, Stale, State, Worker, yield_now};

/// A case: its name and its function.
pub type Case = (&'static str, fn(&'static Executor, &mut Worker));

/// All cases.
pub const CASES: &[Case] = &[
    ("more important first, and equal in order", more_important_first_and_equal_in_order),
    ("a handle gives the output", a_handle_gives_the_output),
    ("outputs are dropped once", outputs_are_dropped_once),
    ("futures of cancelled coroutines are dropped once", futures_of_cancelled_coroutines_are_dropped_once),
    ("cancellation is seen by the waiter", cancellation_is_seen_by_the_waiter),
    ("priorities change in every state", priorities_change_in_every_state),
    ("a wake during the poll is not lost and counts once", a_wake_during_the_poll_is_not_lost_and_counts_once),
    ("a waker and its clone are the same", a_waker_and_its_clone_are_the_same),
    ("a stale cid is an error", a_stale_cid_is_an_error),
    ("a coroutine spawned blocked waits for a wake", a_coroutine_spawned_blocked_waits_for_a_wake),
    ("kinds and counters", kinds_and_counters),
    ("very many coroutines", very_many_coroutines),
];

/// Runs all cases; calls `begin` with each name before the case.
pub fn run(executor: &'static Executor, worker: &mut Worker, mut begin: impl FnMut(&str)) {
    for (name, case) in CASES {
        begin(name);
        case(executor, worker);
        assert_eq!(executor.ready(), 0, "something is still ready");
        assert_eq!(executor.current(), None);
    }
}

fn priority(number: u8) -> Priority {
    Priority::saturating(number.into())
}

/// Letters in the order in which they were written, up to eight in each word.
#[derive(Clone, Default)]
struct Log(Arc<[AtomicUsize; 2]>);

impl Log {
    fn write(&self, letter: char) {
        let [first, second] = &*self.0;
        let word = if first.load(Ordering::Relaxed) >> 56 == 0 { first } else { second };
        word.store(word.load(Ordering::Relaxed) << 8 | letter as usize, Ordering::Relaxed);
    }

    fn is(&self, letters: &str) -> bool {
        let written =
            self.0.iter().flat_map(|word| word.load(Ordering::Relaxed).to_be_bytes()).filter(|&byte| byte != 0);
        written.eq(letters.bytes())
    }
}

/// Takes the result of a finished coroutine.
fn result<T>(mut handle: JoinHandle<T>) -> Result<T, Cancelled> {
    match Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it has not finished"),
    }
}

/// Waits for a second poll, which any wake causes.
async fn one_wake() {
    let mut waited = false;
    poll_fn(|_| if core::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }).await
}

fn more_important_first_and_equal_in_order(executor: &'static Executor, worker: &mut Worker) {
    let log = Log::default();
    for (name, number) in [('a', 5), ('b', 3), ('c', 5), ('d', 0), ('e', 63), ('f', 3)] {
        let log = log.clone();
        let body = async move {
            log.write(name);
            yield_now().await;
            log.write(name.to_ascii_uppercase());
        };
        executor.spawn(priority(number), body).detach();
    }
    assert_eq!(executor.ready(), 1 << 0 | 1 << 3 | 1 << 5 | 1 << 63);
    assert_eq!(worker.run(), Outcome::Idle);
    assert!(log.is("dDbfBFacACeE"));
}

fn a_handle_gives_the_output(executor: &'static Executor, worker: &mut Worker) {
    let inner = executor.spawn(Priority::DEFAULT, async { Vec::from([4, 2]) });
    let cid = inner.cid();
    let outer = executor.spawn(Priority::HIGHEST, async move { inner.await.map(|numbers| numbers.len()) });
    assert!(!outer.is_finished());
    assert_eq!(executor.state(cid), Ok(State::Ready));
    assert_eq!(worker.run(), Outcome::Idle);
    assert!(outer.is_finished());
    assert_eq!(result(outer), Ok(Ok(2)));
}

/// The number of values that were dropped since the last look.
struct Drops(Arc<AtomicUsize>);

/// A value whose drop is counted.
struct Counted(Arc<AtomicUsize>);

impl Drops {
    fn new() -> Drops {
        Drops(Arc::new(AtomicUsize::new(0)))
    }

    fn counted(&self) -> Counted {
        Counted(self.0.clone())
    }

    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn outputs_are_dropped_once(executor: &'static Executor, worker: &mut Worker) {
    let drops = Drops::new();
    let output = drops.counted();
    executor.spawn(Priority::DEFAULT, async move { output }).detach();
    worker.run();
    assert_eq!(drops.take(), 1, "detached before its end");

    let output = drops.counted();
    let handle = executor.spawn(Priority::DEFAULT, async move { output });
    worker.run();
    assert_eq!(drops.take(), 0);
    drop(handle);
    assert_eq!(drops.take(), 1, "detached after its end");

    let output = drops.counted();
    let handle = executor.spawn(Priority::DEFAULT, async move { output });
    let waiter = executor.spawn(Priority::HIGHEST, async move { handle.await.is_ok() });
    worker.run();
    assert_eq!(drops.take(), 1, "taken");
    assert_eq!(result(waiter), Ok(true));
}

fn futures_of_cancelled_coroutines_are_dropped_once(executor: &'static Executor, worker: &mut Worker) {
    let drops = Drops::new();
    let captured = drops.counted();
    let handle = executor.spawn(Priority::DEFAULT, async move { drop(captured) });
    handle.cancel();
    assert_eq!(drops.take(), 0, "a worker drops it, not the canceller");
    worker.run();
    assert_eq!(drops.take(), 1, "cancelled before its first poll");
    assert_eq!(result(handle), Err(Cancelled));

    let captured = drops.counted();
    let body = async move {
        one_wake().await;
        drop(captured);
    };
    let handle = executor.spawn(Priority::DEFAULT, body);
    worker.run();
    assert_eq!(executor.state(handle.cid()), Ok(State::Blocked));
    handle.cancel();
    worker.run();
    assert_eq!(drops.take(), 1, "cancelled while it was blocked");
    assert_eq!(result(handle), Err(Cancelled));

    let captured = drops.counted();
    let body = async move {
        let _captured = captured;
        let me = executor.current().expect("a coroutine calls");
        assert_eq!(executor.cancel(me), Ok(()));
        assert_eq!(executor.state(me), Ok(State::Running));
        yield_now().await;
        panic!("it was cancelled");
    };
    let handle = executor.spawn(Priority::DEFAULT, body);
    worker.run();
    assert_eq!(drops.take(), 1, "cancelled by itself");
    assert_eq!(result(handle), Err::<(), _>(Cancelled));
}

fn cancellation_is_seen_by_the_waiter(executor: &'static Executor, worker: &mut Worker) {
    let victim = executor.spawn(Priority::DEFAULT, core::future::pending::<()>());
    let cid = victim.cid();
    let waiter = executor.spawn(Priority::DEFAULT, victim);
    worker.run();
    assert_eq!(executor.cancel(cid), Ok(()));
    assert_eq!(executor.cancel(cid), Ok(()), "once more is the same");
    worker.run();
    assert_eq!(executor.cancel(cid), Err(Stale));
    assert_eq!(result(waiter), Ok(Err(Cancelled)));
}

fn priorities_change_in_every_state(executor: &'static Executor, worker: &mut Worker) {
    let log = Log::default();
    // Blocked.
    let blocked = executor.spawn(priority(1), {
        let log = log.clone();
        async move {
            one_wake().await;
            log.write('b');
        }
    });
    worker.run();
    assert_eq!(executor.set_priority(blocked.cid(), priority(9)), Ok(()));
    // Ready.
    let spawn = |letter, number| {
        let log = log.clone();
        executor.spawn(priority(number), async move { log.write(letter) })
    };
    let ready = spawn('r', 20);
    let other = spawn('o', 10);
    let same = spawn('s', 10);
    assert_eq!(executor.set_priority(ready.cid(), priority(2)), Ok(()));
    assert_eq!(executor.set_priority(other.cid(), priority(10)), Ok(()), "no change, no move");
    // Running: changes its own priority, and continues only after the others.
    let running = executor.spawn(priority(0), {
        let log = log.clone();
        async move {
            let me = executor.current().expect("a coroutine calls");
            assert_eq!(executor.state(me), Ok(State::Running));
            assert_eq!(executor.set_priority(me, priority(30)), Ok(()));
            yield_now().await;
            log.write('x');
            executor.priority(me)
        }
    });
    assert_eq!(executor.wake(blocked.cid()), Ok(()));
    assert_eq!(worker.run(), Outcome::Idle);
    assert!(log.is("rbosx"));
    assert_eq!(result(running), Ok(Ok(priority(30))));
    for handle in [blocked, ready, other, same] {
        assert_eq!(result(handle), Ok(()));
    }
}

fn a_wake_during_the_poll_is_not_lost_and_counts_once(executor: &'static Executor, worker: &mut Worker) {
    let polls = Arc::new(AtomicUsize::new(0));
    let body = {
        let polls = polls.clone();
        poll_fn(move |context| {
            if polls.fetch_add(1, Ordering::Relaxed) == 0 {
                let clone = context.waker().clone();
                context.waker().wake_by_ref();
                clone.wake();
            }
            Poll::<()>::Pending
        })
    };
    let handle = executor.spawn(Priority::DEFAULT, body);
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(polls.load(Ordering::Relaxed), 2);
    assert_eq!(executor.wake(handle.cid()), Ok(()));
    assert_eq!(executor.wake(handle.cid()), Ok(()));
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(polls.load(Ordering::Relaxed), 3);
    handle.cancel();
    worker.run();
}

fn a_waker_and_its_clone_are_the_same(executor: &'static Executor, worker: &mut Worker) {
    let body = poll_fn(move |context| {
        let clone = context.waker().clone();
        assert_eq!(executor.cid_of(context.waker()), executor.current());
        Poll::Ready(clone.will_wake(context.waker()) && context.waker().will_wake(&clone))
    });
    let handle = executor.spawn(Priority::DEFAULT, body);
    worker.run();
    assert_eq!(result(handle), Ok(true));
    assert_eq!(executor.cid_of(Waker::noop()), None);
}

fn a_stale_cid_is_an_error(executor: &'static Executor, worker: &mut Worker) {
    let handle = executor.spawn(Priority::DEFAULT, poll_fn(|context| Poll::Ready(context.waker().clone())));
    let cid = handle.cid();
    worker.run();
    let Ok(waker) = result(handle) else { panic!("it was not cancelled") };
    // The next coroutine has the same slot.
    let next = executor.spawn(Priority::DEFAULT, core::future::pending::<()>());
    worker.run();
    let polls = executor.counters(worker.number()).polls;
    assert_ne!(next.cid(), cid);
    for stale in
        [cid, crate::Cid::from_raw(0), crate::Cid::from_raw(u64::MAX), crate::Cid::from_raw(cid.raw() + (7 << 32))]
    {
        assert_eq!(executor.wake(stale), Err(Stale));
        assert_eq!(executor.cancel(stale), Err(Stale));
        assert_eq!(executor.set_priority(stale, Priority::HIGHEST), Err(Stale));
        assert_eq!(executor.priority(stale), Err(Stale));
        assert_eq!(executor.kind(stale), Err(Stale));
        assert_eq!(executor.state(stale), Err(Stale));
    }
    waker.wake();
    worker.run();
    assert_eq!(executor.counters(worker.number()).polls, polls, "no coroutine was polled");
    next.cancel();
    worker.run();
}

fn a_coroutine_spawned_blocked_waits_for_a_wake(executor: &'static Executor, worker: &mut Worker) {
    let own = poll_fn(|context| Poll::Ready(context.waker().clone()));
    let Ok(handle) = executor.try_spawn_blocked(Priority::DEFAULT, 3, own) else { panic!("there is memory") };
    let waker = executor.waker(handle.cid());
    assert_eq!(worker.run_one(), Outcome::Idle);
    assert_eq!(executor.state(handle.cid()), Ok(State::Blocked));
    assert_eq!(executor.kind(handle.cid()), Ok(3));
    waker.wake_by_ref();
    assert_eq!(executor.state(handle.cid()), Ok(State::Ready));
    assert_eq!(worker.run_one(), Outcome::Ran);
    assert!(result(handle).is_ok_and(|own| own.will_wake(&waker)));

    let Ok(handle) = executor.try_spawn_blocked(Priority::DEFAULT, 0, core::future::pending::<()>()) else {
        panic!("there is memory")
    };
    assert_eq!(executor.cancel(handle.cid()), Ok(()));
    worker.run();
    assert_eq!(result(handle), Err(Cancelled));
}

fn kinds_and_counters(executor: &'static Executor, worker: &mut Worker) {
    let before = executor.counters(worker.number());
    let Ok(handle) = executor.try_spawn(Priority::DEFAULT, 0xabcd, one_wake()) else { panic!("there is memory") };
    assert_eq!(executor.kind(handle.cid()), Ok(0xabcd));
    assert_eq!(worker.run_one(), Outcome::Ran);
    assert_eq!(worker.run_one(), Outcome::Idle);
    assert_eq!(executor.wake(handle.cid()), Ok(()));
    assert_eq!(worker.run_one(), Outcome::Ran);
    assert_eq!(result(handle), Ok(()));
    let after = executor.counters(worker.number());
    assert_eq!((after.polls - before.polls, after.wakes - before.wakes), (2, 1));
}

fn very_many_coroutines(executor: &'static Executor, worker: &mut Worker) {
    const COUNT: usize = 20_000;
    let sum = Arc::new(AtomicUsize::new(0));
    let mut handles = Vec::new();
    for index in 0..COUNT {
        let sum = sum.clone();
        let body = async move {
            yield_now().await;
            sum.fetch_add(index, Ordering::Relaxed);
            index
        };
        handles.push(executor.spawn(priority((index % 64) as u8), body));
    }
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(sum.load(Ordering::Relaxed), COUNT * (COUNT - 1) / 2);
    for (index, handle) in handles.into_iter().enumerate() {
        assert_eq!(result(handle), Ok(index));
    }
}
