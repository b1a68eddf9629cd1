//! The suite on the host, and tests that only a host can run: attention, exhaustion, threads.

extern crate std;

use std::boxed::Box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::vec::Vec;

use crate::{
    Cancelled, Cid, Executor, InitialiseError, JoinHandle, Outcome, Platform, Priority, ReadyWord, Sharing, Signals,
    SpawnError, Stale, State, Table, Worker, WorkerError, yield_now,
};

struct OneWorker;

impl Platform for OneWorker {
    fn worker(&self) -> usize {
        0
    }
    fn notify(&self, _: usize) {}
}

type Ready = &'static [ReadyWord; 8];

/// Makes an executor without workers.
fn executor_on<P: Platform>(platform: &'static P) -> (&'static Executor, Ready) {
    let executor: &'static Executor = Box::leak(Box::new(Executor::new()));
    let ready: Ready = Box::leak(Box::new([const { ReadyWord::new() }; 8]));
    executor.initialise(Table::native(), ready, platform).unwrap();
    (executor, ready)
}

fn executor() -> (&'static Executor, Worker) {
    let (executor, _) = executor_on(&OneWorker);
    let worker = executor.worker(0, Signals::default()).unwrap();
    (executor, worker)
}

#[test]
fn the_suite_holds() {
    let (executor, mut worker) = executor();
    crate::suite::run(executor, &mut worker, |_| ());
}

/// A platform whose answers the test sets, with a record of its calls. Everything is on one thread.
#[derive(Default)]
struct Scripted<const HAS_AFFINITY: bool> {
    worker: AtomicUsize,
    brings_to: Mutex<Option<usize>>,
    told: Mutex<Vec<Told>>,
    sharing: Sharing,
}

#[derive(Debug, PartialEq)]
enum Told {
    Notify(usize),
    LeftAtHome(Cid),
    Resume(Cid),
}

impl<const HAS_AFFINITY: bool> Scripted<HAS_AFFINITY> {
    fn told(&self) -> Vec<Told> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    fn run(&self, worker: &mut Worker) -> Outcome {
        self.worker.store(worker.number(), Ordering::Relaxed);
        worker.run()
    }
}

impl<const HAS_AFFINITY: bool> Platform for Scripted<HAS_AFFINITY> {
    const HAS_AFFINITY: bool = HAS_AFFINITY;
    const RESUMES: bool = true;
    fn worker(&self) -> usize {
        self.worker.load(Ordering::Relaxed)
    }
    fn notify(&self, worker: usize) {
        self.told.lock().unwrap().push(Told::Notify(worker));
    }
    fn wake_affinity(&self) -> Option<usize> {
        *self.brings_to.lock().unwrap()
    }
    fn woken_at_home(&self, cid: Cid) {
        self.told.lock().unwrap().push(Told::LeftAtHome(cid));
    }
    fn resume(&self, cid: Cid) {
        self.told.lock().unwrap().push(Told::Resume(cid));
    }
    fn sharing(&self) -> Sharing {
        self.sharing
    }
}

fn scripted<P: Platform>(platform: P) -> (&'static Executor, &'static P, Ready) {
    let platform: &'static P = Box::leak(Box::new(platform));
    let (executor, ready) = executor_on(platform);
    (executor, platform, ready)
}

fn ready_in(ready: Ready, worker: usize) -> u64 {
    ready[worker].0.load(Ordering::Relaxed)
}

/// Makes a coroutine that waits for ever, at home on a worker.
fn sleeper<const HAS_AFFINITY: bool>(
    executor: &'static Executor,
    platform: &Scripted<HAS_AFFINITY>,
    worker: &mut Worker,
) -> JoinHandle<()> {
    platform.worker.store(worker.number(), Ordering::Relaxed);
    let handle = executor.spawn(Priority::DEFAULT, std::future::pending());
    assert_eq!(platform.run(worker), Outcome::Idle);
    handle
}

#[test]
fn a_waker_brings_where_the_platform_says_so() {
    let (executor, platform, ready) = scripted(Scripted::<true>::default());
    let mut workers = [0, 1].map(|number| executor.worker(number, Signals::default()).unwrap());
    let handle = sleeper(executor, platform, &mut workers[1]);
    let waker = executor.waker(handle.cid());
    platform.told();
    waker.wake_by_ref();
    assert_ne!(ready_in(ready, 1), 0, "it stays at home");
    assert_eq!(platform.told().last(), Some(&Told::LeftAtHome(handle.cid())));
    assert_eq!(executor.ready(), ready_in(ready, 1));
    assert_eq!(platform.run(&mut workers[1]), Outcome::Idle);
    *platform.brings_to.lock().unwrap() = Some(0);
    platform.told();
    waker.wake_by_ref();
    assert_eq!(ready_in(ready, 1), 0);
    assert_ne!(ready_in(ready, 0), 0, "it comes to worker 0");
    assert_eq!(executor.ready(), ready_in(ready, 0));
    assert!(!platform.told().contains(&Told::LeftAtHome(handle.cid())));
}

/// A platform with the minimum of functions, and with lazy sharing.
struct Terse<const HAS_AFFINITY: bool>(AtomicUsize, Mutex<Vec<usize>>);

impl<const HAS_AFFINITY: bool> Platform for Terse<HAS_AFFINITY> {
    const HAS_AFFINITY: bool = HAS_AFFINITY;
    fn worker(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
    fn notify(&self, worker: usize) {
        self.1.lock().unwrap().push(worker);
    }
    fn sharing(&self) -> Sharing {
        Sharing::Lazy
    }
}

#[test]
fn by_default_the_worker_that_wakes_is_the_one_that_calls_and_brings_nothing() {
    // Worker 2 only makes a third home available.
    for [home, caller] in [[0, 1], [1, 0], [2, 0]] {
        let (executor, platform, ready) = scripted(Terse::<false>(AtomicUsize::new(home), Mutex::default()));
        let mut workers = [0, 1, 2].map(|number| executor.worker(number, Signals::default()).unwrap());
        let waits = executor.spawn(Priority::DEFAULT, std::future::pending::<()>());
        assert_eq!(workers[home].run(), Outcome::Idle);
        platform.0.store(caller, Ordering::Relaxed);
        let wakes = executor.spawn(Priority::DEFAULT, async move { executor.wake(waits.cid()) });
        platform.1.lock().unwrap().clear();
        assert_eq!(workers[caller].run_one(), Outcome::Ran);
        assert!(wakes.is_finished());
        assert_ne!(
            ready_in(ready, caller),
            0,
            "it migrates to the worker that woke it, instead of waking its own worker"
        );
        assert_eq!(*platform.1.lock().unwrap(), []);

        // Without the platform's affinity, a waker leaves the coroutine at home.
        let (executor, platform, ready) = scripted(Terse::<true>(AtomicUsize::new(home), Mutex::default()));
        let mut workers = [0, 1, 2].map(|number| executor.worker(number, Signals::default()).unwrap());
        let waits = executor.spawn(Priority::DEFAULT, std::future::pending::<()>());
        assert_eq!(workers[home].run(), Outcome::Idle);
        assert_eq!(workers[home].run_one(), Outcome::Idle);
        platform.0.store(usize::MAX, Ordering::Relaxed);
        executor.waker(waits.cid()).wake();
        assert_ne!(ready_in(ready, home), 0);
    }
}

#[test]
fn a_suspended_coroutine_keeps_its_stack_until_it_is_resumed() {
    let (executor, platform, _) = scripted(Scripted::<false>::default());
    let mut worker = executor.worker(0, Signals::default()).unwrap();
    let interrupted = executor.spawn(Priority::DEFAULT, async move {
        // As in an interruption; the nested runs represent another stack. SAFETY: this is worker 0, inside a poll,
        // whose other stacks do not run.
        let (cid, mut other) = unsafe { (executor.suspend(0).unwrap(), executor.worker_on_another_stack(0).unwrap()) };
        assert_eq!(executor.state(cid), Ok(State::Suspended));
        assert_eq!(executor.current(), None);
        // SAFETY: as above.
        assert_eq!(unsafe { executor.suspend(0) }, None);
        let bystander = executor.spawn(Priority::DEFAULT, yield_now());
        assert_eq!(other.run(), Outcome::Idle);
        assert!(bystander.is_finished());
        executor.resume(cid).unwrap();
        assert_eq!(other.run_one(), Outcome::Ran);
        assert_eq!(platform.told().last(), Some(&Told::Resume(cid)));
        cid
    });
    let cid = interrupted.cid();
    assert_eq!(worker.run(), Outcome::Idle);
    assert!(interrupted.is_finished());
    assert_eq!(executor.resume(cid), Err(Stale));
    // The handle for the other stack is gone, and the worker still exists.
    assert_eq!(executor.worker(0, Signals::default()).err(), Some(WorkerError::Taken));
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl std::task::Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_handle_keeps_the_last_waker_that_it_was_polled_with() {
    let (executor, mut worker) = executor();
    let bells: [Arc<Bell>; 2] = Default::default();
    // Each bell has two references, here and in the test's waker, and one more in the handle.
    let wakers = bells.clone().map(Waker::from);
    let counts = || bells.each_ref().map(|bell| (bell.0.load(Ordering::Relaxed), Arc::strong_count(bell) - 2));
    for cancels in [false, true] {
        let mut handle = executor.spawn(Priority::DEFAULT, async { 7 });
        let mut poll = |which: usize| std::pin::Pin::new(&mut handle).poll(&mut Context::from_waker(&wakers[which]));
        assert_eq!(counts(), [(0, 0), (0, 0)]);
        for _ in 0..2 {
            assert_eq!(poll(0), Poll::Pending);
            assert_eq!(counts(), [(0, 1), (0, 0)]);
        }
        for _ in 0..2 {
            assert_eq!(poll(1), Poll::Pending);
            assert_eq!(counts(), [(0, 0), (0, 1)]);
        }
        if cancels {
            handle.cancel();
        }
        assert_eq!(worker.run(), Outcome::Idle);
        assert_eq!(counts(), [(0, 0), (1, 1)], "it was woken by reference");
        let mut poll = |which: usize| std::pin::Pin::new(&mut handle).poll(&mut Context::from_waker(&wakers[which]));
        assert_eq!(poll(0), Poll::Ready(if cancels { Err(Cancelled) } else { Ok(7) }));
        assert_eq!(counts(), [(0, 0), (1, 0)]);
        drop(handle);
        bells[1].0.store(0, Ordering::Relaxed);
    }
    // The waker of a dropped handle is dropped at the latest when the coroutine ends, and is not woken.
    let mut handle = executor.spawn(Priority::DEFAULT, async {});
    assert!(std::pin::Pin::new(&mut handle).poll(&mut Context::from_waker(&wakers[0])).is_pending());
    drop(handle);
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(counts()[0].1, 0);
}

#[test]
fn a_strict_worker_gives_way() {
    use std::sync::atomic::AtomicU64;
    static ELSEWHERE: AtomicU64 = AtomicU64::new(1 << 3);
    let (executor, mut worker) = executor();
    let [more, less] = [3, 4].map(|number| executor.spawn(Priority::saturating(number), async {}));
    assert_eq!(worker.run_strictly(&ELSEWHERE, Priority::HIGHEST), Outcome::Outranked);
    assert!(more.is_finished() && !less.is_finished());
    ELSEWHERE.store(0, Ordering::Relaxed);
    assert_eq!(worker.run_strictly(&ELSEWHERE, Priority::HIGHEST), Outcome::Idle);
    assert!(less.is_finished());
}

#[test]
fn readiness_covers_all_workers() {
    let (executor, platform, _) = scripted(Scripted::<false>::default());
    for (worker, priority) in [(0, 5), (1, 5), (1, 7)] {
        platform.worker.store(worker, Ordering::Relaxed);
        // A shard is used only after its worker has existed.
        drop(executor.worker(worker, Signals::default()));
        executor.spawn(Priority::saturating(priority), async {}).detach();
    }
    assert_eq!(executor.ready(), 1 << 5 | 1 << 7);
}

#[test]
fn debug_output_names_types_and_numbers() {
    let (executor, worker) = executor();
    let handle = executor.spawn(Priority::DEFAULT, async {});
    let cid = handle.cid();
    assert_eq!(std::format!("{cid:?}"), std::format!("Cid({})", cid.raw()));
    assert_eq!(std::format!("{handle:?}"), std::format!("JoinHandle({cid:?})"));
    assert_eq!(std::format!("{worker:?}"), "Worker { number: 0, .. }");
    assert_eq!(std::format!("{:?}", SpawnError(())), "SpawnError");
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
fn a_coroutine_is_ready_in_the_shard_of_the_worker_that_spawns_it() {
    let (executor, ready) = executor_on(&OneWorker);
    let _workers = [0, 1].map(|number| executor.worker(number, Signals::default()).unwrap());
    let bit = Priority::DEFAULT.bit();
    executor.spawn_from(1, Priority::DEFAULT, async {}).detach();
    assert_eq!((ready_in(ready, 0), ready_in(ready, 1)), (0, bit));
    // The platform says that worker 0 calls.
    executor.spawn(Priority::DEFAULT, async {}).detach();
    assert_eq!((ready_in(ready, 0), ready_in(ready, 1)), (bit, bit));
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
    let (executor, ready) = executor_on(&WithRing);
    let signals = Signals { attention: Some(&ATTENTION), completions: Some((&TAIL, &HEAD)) };
    let mut worker = executor.worker(0, signals).unwrap();
    assert!(executor.worker(0, signals).is_err());
    assert!(executor.worker(8, signals).is_err());
    let handle = executor.spawn(Priority::DEFAULT, async {
        TAIL.store(1, Ordering::Relaxed);
        yield_now().await;
        assert_eq!(FETCHED.load(Ordering::Relaxed), 1);
        ATTENTION.store(1, Ordering::Relaxed);
        yield_now().await;
        ATTENTION.store(1, Ordering::Relaxed);
    });
    assert_eq!(worker.run(), Outcome::Attention);
    assert_eq!(worker.run_one(), Outcome::Attention);
    assert!(!handle.is_finished());
    assert_eq!(executor.state(handle.cid()), Ok(State::Ready));
    ATTENTION.store(0, Ordering::Relaxed);
    // The coroutine finishes before the attention word is read.
    assert_eq!(worker.run(), Outcome::Attention);
    assert!(handle.is_finished());
    ATTENTION.store(0, Ordering::Relaxed);
    assert_eq!(worker.run(), Outcome::Idle);
    assert_eq!(ready[0].0.load(Ordering::Relaxed), 0);
}

/// A poll may take long, so the worker leaves its run before one although the hook was called for something else.
#[test]
fn attention_raised_while_completions_are_fetched_comes_before_the_next_poll() {
    use std::sync::atomic::AtomicU64;
    static ATTENTION: AtomicU64 = AtomicU64::new(0);
    static TAIL: AtomicU64 = AtomicU64::new(0);
    static HEAD: AtomicU64 = AtomicU64::new(0);
    struct Interrupted;
    impl Platform for Interrupted {
        fn worker(&self) -> usize {
            0
        }
        fn notify(&self, _: usize) {}
        fn completions(&self, _: usize) {
            HEAD.store(TAIL.load(Ordering::Relaxed), Ordering::Relaxed);
            ATTENTION.store(1, Ordering::Relaxed);
        }
    }
    let (executor, _) = executor_on(&Interrupted);
    let signals = Signals { attention: Some(&ATTENTION), completions: Some((&TAIL, &HEAD)) };
    let mut worker = executor.worker(0, signals).unwrap();
    let handle = executor.spawn(Priority::LOWEST, async {});
    TAIL.store(1, Ordering::Relaxed);
    assert_eq!(worker.run(), Outcome::Attention);
    assert!(!handle.is_finished());
    ATTENTION.store(0, Ordering::Relaxed);
    assert_eq!(worker.run(), Outcome::Idle);
    assert!(handle.is_finished());
}

#[test]
fn a_hundred_thousand_coroutines() {
    let (executor, mut worker) = executor();
    const COUNT: usize = 100_000;
    let handles: Vec<_> = (0..COUNT).map(|_| executor.spawn(Priority::DEFAULT, yield_now())).collect();
    assert_eq!(worker.run(), Outcome::Idle);
    assert!(handles.iter().all(|handle| handle.is_finished()));
}

/// Slots are never given back, so an executor has as many as coroutines have existed at once, and no more.
#[test]
fn later_coroutines_have_the_slots_of_earlier_ones() {
    const COUNT: usize = if cfg!(miri) { 50 } else { 1000 };
    let (executor, mut worker) = executor();
    let mut wave = |is_run: bool| {
        let handles: Vec<_> = (0..COUNT).map(|_| executor.spawn(Priority::DEFAULT, yield_now())).collect();
        let largest = handles.iter().map(|handle| handle.cid().raw() as u32).max().unwrap_or_default();
        if is_run {
            assert_eq!(worker.run(), Outcome::Idle);
        }
        drop(handles);
        assert_eq!(worker.run(), Outcome::Idle);
        largest
    };
    let largest = wave(true);
    assert!((largest as usize) < COUNT.next_multiple_of(scheduler::SLOTS_IN_CHUNK));
    for number in 0..20 {
        assert!(wave(number % 2 == 0) <= largest);
    }
}

#[test]
fn a_spawn_beyond_the_last_slot_gives_the_future_back() {
    let (executor, mut worker) = executor();
    let mut count = 0;
    let token = Arc::new(());
    let refused = loop {
        let token = token.clone();
        match executor.try_spawn(Priority::DEFAULT, 0, async move { drop(token) }) {
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
    executor.spawn(Priority::DEFAULT, async {}).detach();
    worker.run();
}

/// A wait is reported in each poll that is observed, a wait that goes on as such, and nothing in other polls.
#[test]
fn waits_are_reported_while_the_executor_is_observed() {
    use crate::Observer;
    static WAITS: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    static FORGOTTEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    static OBSERVER: Observer =
        Observer { waits: |cid| WAITS.lock().unwrap().push(cid), forgets: |cid| FORGOTTEN.lock().unwrap().push(cid) };
    let (executor, mut worker) = executor();
    let kept = Arc::new(Mutex::new(None::<Waker>));
    let keeps = |until: usize| {
        let (kept, mut polls) = (kept.clone(), 0);
        std::future::poll_fn(move |context| {
            polls += 1;
            if polls == until {
                return Poll::Ready(());
            }
            let mut kept = kept.lock().unwrap();
            if kept.as_ref().is_none_or(|kept: &Waker| !kept.will_wake(context.waker())) {
                *kept = Some(context.waker().clone());
            }
            Poll::Pending
        })
    };
    let waiting = executor.spawn(Priority::DEFAULT, keeps(6));
    let joining = executor.spawn(Priority::DEFAULT, waiting);
    let yielding = executor.spawn(Priority::DEFAULT, yield_now());
    let [joins, yields] = [joining.cid(), yielding.cid()];
    let waits = executor.coroutines().find(|cid| ![joins, yields].contains(cid)).unwrap();
    assert_eq!(executor.coroutines().count(), 3);
    let mut look = |woken: &[Cid]| {
        woken.iter().for_each(|cid| executor.wake(*cid).unwrap());
        assert_eq!(worker.run(), Outcome::Idle);
        let take = |list: &Mutex<Vec<u64>>| std::mem::take(&mut *list.lock().unwrap());
        (take(&WAITS), take(&FORGOTTEN))
    };
    assert_eq!(look(&[]), (Vec::new(), Vec::new()));
    executor.observe(Some(&OBSERVER));
    let both = [waits.raw(), joins.raw()];
    assert_eq!(look(&[waits, joins]), (both.into(), Vec::new()));
    executor.observe(None);
    assert_eq!(look(&[joins]), (Vec::new(), [joins.raw()].into()), "a poll in between ends the same wait");
    executor.observe(Some(&OBSERVER));
    assert_eq!(look(&[waits, joins]), (both.into(), [waits.raw()].into()));
    executor.observe(None);
    // A marked waker wakes as any other.
    let marked = kept.lock().unwrap().take().unwrap();
    marked.wake_by_ref();
    let copy = marked.clone();
    copy.wake();
    assert_eq!(look(&[]).0, []);
    executor.wake(waits).unwrap();
    look(&[]);
    executor.wake(waits).unwrap();
    look(&[]);
    assert!(joining.is_finished());
    assert_eq!(executor.coroutines().count(), 0);
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

/// A bell on which a worker thread sleeps.
#[derive(Default)]
struct Bed {
    notified: Mutex<bool>,
    changed: Condvar,
}

/// Eight threads, on any number of processors of the host.
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

    let threads: &'static Threads =
        Box::leak(Box::new(Threads { beds: Default::default(), stop: AtomicBool::new(false) }));
    let (executor, _) = executor_on(threads);
    let workers: Vec<_> = (0..8).map(|number| std::thread::spawn(move || threads.work(executor, number))).collect();

    let finished = Arc::new((Mutex::new(0), Condvar::new()));
    for ring in 0..RINGS {
        let finished = finished.clone();
        let body = async move {
            let mut sum = 0;
            for round in 0..ROUNDS {
                let priority = Priority::saturating(((ring * 7 + round) % 64) as u64);
                let child = executor.spawn(priority, async move {
                    yield_now().await;
                    round
                });
                let victim = executor.spawn(priority, std::future::pending::<()>());
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
                        executor.spawn(priority, async move { waker.wake() }).detach();
                        Poll::Pending
                    })
                    .await;
                }
            }
            assert_eq!(sum, ROUNDS * (ROUNDS - 1) / 2);
            *finished.0.lock().unwrap() += 1;
            finished.1.notify_one();
        };
        executor.spawn(Priority::DEFAULT, body).detach();
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
