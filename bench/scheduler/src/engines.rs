//! The executors, each behind the same few operations.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::futures::{Pair, yield_by_waker};

/// Maximum number of workers that are measured.
pub const WORKERS: usize = 8;

/// Measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Two coroutines for each worker yield to each other, in the engine's own way.
    Yield,
    /// Two coroutines for each worker yield by waking themselves, which works in any executor.
    YieldByWaker,
    /// Pairs of coroutines, one for each worker, wake each other in turn and wait.
    Wake,
    /// A coroutine spawns another, detached, and yields until that has run to its end. (embassy's is spawned between
    /// two polls and needs no yield, which is in its favour.)
    Spawn,
    /// A coroutine spawns another and waits for its end; one such for each worker.
    Join,
}

impl Operation {
    pub const ALL: [Operation; 5] =
        [Operation::Yield, Operation::YieldByWaker, Operation::Wake, Operation::Spawn, Operation::Join];

    pub fn name(self) -> &'static str {
        match self {
            Operation::Yield => "yield",
            Operation::YieldByWaker => "yield-by-waker",
            Operation::Wake => "wake",
            Operation::Spawn => "spawn",
            Operation::Join => "join",
        }
    }

    pub fn find(name: &str) -> Result<Operation, String> {
        Self::ALL
            .into_iter()
            .find(|operation| operation.name() == name)
            .ok_or_else(|| format!("there is no operation `{name}`"))
    }

    /// Whether several workers can do it at once.
    pub fn has_workers(self) -> bool {
        matches!(self, Operation::Yield | Operation::Wake | Operation::Join)
    }

    /// Returns the number of operations that a count of one makes, for each worker.
    pub fn times_each(self) -> u64 {
        match self {
            Operation::Yield | Operation::YieldByWaker | Operation::Wake => 2,
            Operation::Spawn | Operation::Join => 1,
        }
    }
}

/// An executor.
pub struct Engine {
    pub name: &'static str,
    run: fn(Operation, u64, usize),
}

/// All engines, ours first.
pub const ENGINES: &[Engine] = &[
    Engine { name: "cops", run: cops },
    Engine { name: "embassy", run: embassy },
    Engine { name: "tokio-current-thread", run: tokio_current_thread },
    Engine { name: "tokio-multi-thread", run: tokio_multi_thread },
    Engine { name: "async-executor", run: async_executor },
];

impl Engine {
    pub fn find(name: &str) -> Result<&'static Engine, String> {
        ENGINES.iter().find(|engine| engine.name == name).ok_or_else(|| format!("there is no engine `{name}`"))
    }

    pub fn is_ours(&self) -> bool {
        self.name == "cops"
    }

    fn has_workers(&self) -> bool {
        !["embassy", "tokio-current-thread"].contains(&self.name)
    }

    /// Whether the engine can do this with so many workers.
    pub fn offers(&self, operation: Operation, workers: usize) -> bool {
        (self.name != "embassy" || operation != Operation::Join)
            && (workers == 1 || self.has_workers() && operation.has_workers())
    }

    pub fn run(&self, operation: Operation, count: u64, workers: usize) -> Result<(), String> {
        if !self.offers(operation, workers) {
            return Err(format!("{} does not offer {} with {workers} workers", self.name, operation.name()));
        }
        (self.run)(operation, count, workers);
        Ok(())
    }
}

/// Makes two sides for each worker, which live for ever.
fn pairs(workers: usize) -> &'static [Pair] {
    (0..workers).map(|_| Pair::new()).collect::<Vec<_>>().leak()
}

/// Counts coroutines that have ended, for a thread that waits for all.
#[derive(Default)]
struct Countdown {
    ended: Mutex<usize>,
    changed: Condvar,
}

impl Countdown {
    fn end(&self) {
        *self.ended.lock().expect("no thread panics") += 1;
        self.changed.notify_all();
    }

    fn wait(&self, number: usize) {
        let mut ended = self.ended.lock().expect("no thread panics");
        while *ended < number {
            ended = self.changed.wait(ended).expect("no thread panics");
        }
    }
}

// ---- ours ----

mod threads {
    //! Worker threads for our executor.

    use coroutine::{Executor, Outcome, Platform, ReadyWord, Sharing, Signals, Table, Worker};

    use super::*;

    pub static EXECUTOR: Executor = Executor::new();
    static READY: [ReadyWord; 8] = [const { ReadyWord::new() }; 8];
    static THREADS: Threads = Threads {
        beds: [const { Bed { notified: AtomicBool::new(false), thread: Mutex::new(None) } }; 8],
        stop: AtomicBool::new(false),
    };

    std::thread_local! {
        static WORKER: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    struct Threads {
        beds: [Bed; 8],
        stop: AtomicBool,
    }

    struct Bed {
        notified: AtomicBool,
        thread: Mutex<Option<std::thread::Thread>>,
    }

    impl Platform for Threads {
        fn worker(&self) -> usize {
            WORKER.get()
        }

        fn notify(&self, worker: usize) {
            self.beds[worker].notified.store(true, Ordering::Release);
            if let Some(thread) = &*self.beds[worker].thread.lock().expect("no thread panics") {
                thread.unpark();
            }
        }

        fn relax(&self) {
            std::thread::yield_now();
        }

        fn sharing(&self) -> Sharing {
            Sharing::Lazy
        }
    }

    pub fn initialise() {
        EXECUTOR.initialise(Table::native(), &READY, &THREADS).expect("this is the only time");
    }

    pub fn worker(number: usize) -> Worker {
        WORKER.set(number);
        *THREADS.beds[number].thread.lock().expect("no thread panics") = Some(std::thread::current());
        EXECUTOR.worker(number, Signals::default()).expect("each is made once")
    }

    /// Runs as a worker until `stop`.
    pub fn work(number: usize) {
        let mut worker = worker(number);
        while !THREADS.stop.load(Ordering::Relaxed) {
            assert_eq!(worker.run(), Outcome::Idle);
            while !THREADS.beds[number].notified.swap(false, Ordering::Acquire) {
                std::thread::park();
            }
        }
    }

    pub fn stop(workers: usize) {
        THREADS.stop.store(true, Ordering::Relaxed);
        (0..workers).for_each(|worker| THREADS.notify(worker));
    }
}

fn cops(operation: Operation, count: u64, workers: usize) {
    use coroutine::{Priority, yield_now};
    use threads::EXECUTOR;

    threads::initialise();
    let priority = Priority::DEFAULT;
    let ended = Arc::new(Countdown::default());
    let number;
    match operation {
        Operation::Yield | Operation::YieldByWaker | Operation::Wake => {
            let pairs = pairs(workers);
            for pair in pairs {
                for side in 0..2 {
                    let ended = ended.clone();
                    let body = async move {
                        match operation {
                            Operation::Wake => pair.play(side, count).await,
                            Operation::Yield => {
                                for _ in 0..count {
                                    yield_now().await;
                                }
                            }
                            _ => {
                                for _ in 0..count {
                                    yield_by_waker().await;
                                }
                            }
                        }
                        ended.end();
                    };
                    EXECUTOR.spawn(priority, body).detach();
                }
            }
            number = 2 * workers;
        }
        Operation::Join => {
            for _ in 0..workers {
                let ended = ended.clone();
                let body = async move {
                    for _ in 0..count {
                        EXECUTOR.spawn(priority, std::future::ready(())).await.expect("no task is cancelled");
                    }
                    ended.end();
                };
                EXECUTOR.spawn(priority, body).detach();
            }
            number = workers;
        }
        Operation::Spawn => {
            static ENDED: AtomicU64 = AtomicU64::new(0);
            let ended = ended.clone();
            let body = async move {
                for done in 1..=count {
                    let short = async {
                        ENDED.fetch_add(1, Ordering::Relaxed);
                    };
                    EXECUTOR.spawn(priority, short).detach();
                    while ENDED.load(Ordering::Relaxed) < done {
                        yield_now().await;
                    }
                }
                ended.end();
            };
            EXECUTOR.spawn(priority, body).detach();
            number = 1;
        }
    }
    if workers == 1 {
        threads::worker(0).run();
        return;
    }
    let workers_running: Vec<_> =
        (0..workers).map(|worker| std::thread::spawn(move || threads::work(worker))).collect();
    ended.wait(number);
    threads::stop(workers);
    for worker in workers_running {
        worker.join().expect("no worker panics");
    }
}

// ---- embassy-executor ----

/// Called by Embassy when a task becomes ready; we poll in a loop anyway.
#[unsafe(export_name = "__pender")]
fn pender(_: *mut ()) {}

fn embassy(operation: Operation, count: u64, _: usize) {
    use embassy_executor::raw::{Executor, TaskPool, TaskStorage};

    static ENDED: AtomicUsize = AtomicUsize::new(0);

    let executor: &'static Executor = Box::leak(Box::new(Executor::new(core::ptr::null_mut())));
    let poll = || {
        // SAFETY: this thread alone polls, and not from inside a poll.
        unsafe { executor.poll() }
    };
    if operation == Operation::Spawn {
        static POOL: TaskPool<std::future::Ready<()>, 1> = TaskPool::new();
        for _ in 0..count {
            executor.spawner().spawn(POOL.spawn(|| std::future::ready(())).expect("the last has ended"));
            poll();
        }
        return;
    }
    fn spawn<F: Future<Output = ()> + 'static>(executor: &'static Executor, body: F) {
        let storage: &'static TaskStorage<F> = Box::leak(Box::new(TaskStorage::new()));
        executor.spawner().spawn(storage.spawn(|| body).expect("it is fresh"));
    }
    let pair = &pairs(1)[0];
    for side in 0..2 {
        spawn(executor, async move {
            if operation == Operation::Wake {
                pair.play(side, count).await;
            } else {
                for _ in 0..count {
                    yield_by_waker().await;
                }
            }
            ENDED.fetch_add(1, Ordering::Relaxed);
        });
    }
    while ENDED.load(Ordering::Relaxed) < 2 {
        poll();
    }
}

// ---- tokio ----

fn tokio_current_thread(operation: Operation, count: u64, _: usize) {
    tokio(tokio::runtime::Builder::new_current_thread(), operation, count, 1);
}

fn tokio_multi_thread(operation: Operation, count: u64, workers: usize) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(workers);
    tokio(builder, operation, count, workers);
}

fn tokio(mut builder: tokio::runtime::Builder, operation: Operation, count: u64, workers: usize) {
    let runtime = builder.build().expect("the runtime starts");
    runtime.block_on(async {
        let mut handles = Vec::new();
        match operation {
            Operation::Spawn => {
                // From inside a worker, as ours is; a yield lets the spawned task run.
                static ENDED: AtomicU64 = AtomicU64::new(0);
                handles.push(tokio::spawn(async move {
                    for done in 1..=count {
                        tokio::spawn(async {
                            ENDED.fetch_add(1, Ordering::Relaxed);
                        });
                        while ENDED.load(Ordering::Relaxed) < done {
                            yield_by_waker().await;
                        }
                    }
                }));
            }
            Operation::Join => {
                for _ in 0..workers {
                    handles.push(tokio::spawn(async move {
                        for _ in 0..count {
                            tokio::spawn(std::future::ready(())).await.expect("no task is cancelled");
                        }
                    }));
                }
            }
            _ => {
                for pair in pairs(workers) {
                    for side in 0..2 {
                        handles.push(tokio::spawn(async move {
                            match operation {
                                Operation::Wake => pair.play(side, count).await,
                                Operation::Yield => {
                                    for _ in 0..count {
                                        tokio::task::yield_now().await;
                                    }
                                }
                                _ => {
                                    for _ in 0..count {
                                        yield_by_waker().await;
                                    }
                                }
                            }
                        }));
                    }
                }
            }
        }
        for handle in handles {
            handle.await.expect("no coroutine panics");
        }
    });
}

// ---- async-executor ----

fn async_executor(operation: Operation, count: u64, workers: usize) {
    use ::async_executor::Executor;

    let executor: &'static Executor<'static> = Box::leak(Box::new(Executor::new()));
    let body = async move {
        let mut tasks = Vec::new();
        match operation {
            Operation::Spawn => {
                static ENDED: AtomicU64 = AtomicU64::new(0);
                for done in 1..=count {
                    executor
                        .spawn(async {
                            ENDED.fetch_add(1, Ordering::Relaxed);
                        })
                        .detach();
                    while ENDED.load(Ordering::Relaxed) < done {
                        yield_by_waker().await;
                    }
                }
            }
            Operation::Join => {
                for _ in 0..workers {
                    tasks.push(executor.spawn(async move {
                        for _ in 0..count {
                            executor.spawn(std::future::ready(())).await;
                        }
                    }));
                }
            }
            _ => {
                for pair in pairs(workers) {
                    for side in 0..2 {
                        tasks.push(executor.spawn(async move {
                            if operation == Operation::Wake {
                                pair.play(side, count).await;
                            } else {
                                for _ in 0..count {
                                    yield_by_waker().await;
                                }
                            }
                        }));
                    }
                }
            }
        }
        for task in tasks {
            task.await;
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (1..workers)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                block_on(executor.run(std::future::poll_fn(move |context| {
                    if stop.load(Ordering::Acquire) {
                        return std::task::Poll::Ready(());
                    }
                    WAITING.lock().expect("no thread panics").push(context.waker().clone());
                    std::task::Poll::Pending
                })))
            })
        })
        .collect();
    block_on(executor.run(executor.spawn(body)));
    stop.store(true, Ordering::Release);
    while !others.iter().all(|thread| thread.is_finished()) {
        WAITING.lock().expect("no thread panics").drain(..).for_each(std::task::Waker::wake);
        std::thread::yield_now();
    }
}

/// Threads of `async-executor` that wait for the end.
static WAITING: Mutex<Vec<std::task::Waker>> = Mutex::new(Vec::new());

/// Polls a future on this thread, which sleeps in between.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Parked(std::thread::Thread);
    impl std::task::Wake for Parked {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(Arc::new(Parked(std::thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_offers_all_operations_without_a_handle() {
        for engine in ENGINES {
            for operation in Operation::ALL {
                let expected = (engine.name, operation) != ("embassy", Operation::Join);
                assert_eq!(engine.offers(operation, 1), expected, "{} {operation:?}", engine.name);
                assert!(!engine.offers(operation, 2) || engine.offers(operation, 1));
            }
        }
        let able: Vec<_> =
            ENGINES.iter().filter(|engine| engine.offers(Operation::Wake, 8)).map(|it| it.name).collect();
        assert_eq!(able, ["cops", "tokio-multi-thread", "async-executor"]);
        assert!(ENGINES[1].run(Operation::Yield, 1, 2).is_err());
    }

    #[test]
    fn names_lead_back() {
        for operation in Operation::ALL {
            assert_eq!(Operation::find(operation.name()), Ok(operation));
        }
        assert!(Operation::find("sleep").is_err() && Engine::find("other").is_err());
        assert_eq!(Engine::find("cops").map(Engine::is_ours), Ok(true));
    }

    // Several in one process, where ours and embassy's can be run once.
    #[test]
    fn workloads_end() {
        for (engine, operation) in [("cops", Operation::Join), ("embassy", Operation::Wake)] {
            let engine = Engine::find(engine).unwrap();
            let workers = if engine.offers(operation, 3) { 3 } else { 1 };
            assert_eq!(engine.run(operation, 50, workers), Ok(()));
        }
    }
}
