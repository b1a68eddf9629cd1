//! Traces on one thread, and random histories against a naive model.

use core::cell::{Cell, RefCell};
use core::ffi::c_void;
use std::alloc::{Layout, alloc_zeroed};
use std::collections::VecDeque;

use proptest::prelude::*;

use crate::state::Freed;
use crate::sync::{AtomicU64, Ordering};
use crate::*;

/// An executor in memory of its own, never freed.
#[derive(Clone, Copy)]
struct World {
    executor: &'static Executor,
    ready: &'static [ReadyWord; SHARDS],
}

thread_local! {
    /// Records of hooks and polls.
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn log(entry: impl Into<String>) {
    LOG.with_borrow_mut(|log| log.push(entry.into()));
}

fn take_log() -> Vec<String> {
    LOG.take()
}

unsafe extern "C" fn note_notify(_: *mut c_void, worker: u32) {
    log(format!("notify {worker}"));
}

thread_local! {
    static CALLER: Cell<u32> = const { Cell::new(u32::MAX) };
}

unsafe extern "C" fn calling_worker(_: *mut c_void) -> u32 {
    CALLER.get()
}

unsafe extern "C" fn note_resume(_: *mut c_void, header: *mut Header) {
    // SAFETY: the spawn of this header is over.
    log(format!("resume {:x}", unsafe { (*header).cid() }));
}

thread_local! {
    /// A function that runs once while a call waits for a lock, which the function must release.
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

unsafe extern "C" fn meanwhile(_: *mut c_void) {
    MEANWHILE.take().expect("no function releases the lock")();
}

impl World {
    fn new(workers: usize) -> World {
        World::sharing(workers, Sharing::Eager)
    }

    fn sharing(workers: usize, sharing: Sharing) -> World {
        let ready: &'static [ReadyWord; SHARDS] = Box::leak(Box::new([const { ReadyWord::new() }; SHARDS]));
        let hooks = Hooks {
            notify: Some(note_notify),
            resume: Some(note_resume),
            relax: Some(meanwhile),
            worker: Some(calling_worker),
            sharing,
            ..Hooks::NONE
        };
        // SAFETY: fresh memory of the right layout that is never freed.
        let executor = unsafe {
            let memory = alloc_zeroed(Layout::new::<Executor>()).cast::<Executor>();
            Executor::initialise(memory, ready, hooks);
            &*memory
        };
        let world = World { executor, ready };
        world.add_slots().unwrap();
        for worker in 0..workers {
            // SAFETY: no worker runs.
            unsafe { executor.add_worker(worker, Signals::NONE) };
        }
        world
    }

    fn add_slots(&self) -> Result<(), Full> {
        // SAFETY: fresh memory that is never freed.
        unsafe {
            let slots = alloc_zeroed(Layout::from_size_align(CHUNK_BYTES, 16).unwrap());
            self.executor.add_slots(slots.cast(), 0)
        }
    }

    fn spawn_at(&self, worker: usize, task: &'static Task) -> u64 {
        // SAFETY: the task is fresh and never freed.
        unsafe { self.executor.spawn(core::ptr::from_ref(task).cast::<Header>().cast_mut(), worker).unwrap() }
    }

    fn spawn(&self, task: &'static Task) -> u64 {
        self.spawn_at(0, task)
    }

    fn run(&self, worker: usize) -> Outcome {
        let caller = CALLER.replace(worker as u32);
        // SAFETY: everything is on one thread.
        let outcome = unsafe { self.executor.run(worker, core::ptr::null_mut()) };
        CALLER.set(caller);
        outcome
    }

    fn run_one(&self, worker: usize) -> Outcome {
        // SAFETY: everything is on one thread.
        unsafe { self.executor.run_one(worker, core::ptr::null_mut()) }
    }

    fn bitmap(&self, worker: usize) -> u64 {
        self.ready[worker].0.load(Ordering::Relaxed)
    }

    /// Runs `call`, which has to wait for the lock of a shard, and meanwhile `other`, after the lock is released.
    fn while_waiting_for<T>(&self, shard: usize, other: impl FnOnce() + 'static, call: impl FnOnce() -> T) -> T {
        let shard = self.executor.shard(shard);
        assert!(shard.try_lock());
        MEANWHILE.set(Some(Box::new(move || {
            shard.unlock();
            other();
        })));
        let result = call();
        assert!(MEANWHILE.take().is_none(), "it did not wait");
        result
    }
}

/// A coroutine whose poll is a closure.
#[repr(C)]
struct Task {
    header: Header,
    body: Box<dyn Fn() -> u32>,
    finished: Cell<Option<u32>>,
}

unsafe extern "C" fn step_task(header: *mut Header, argument: *mut c_void, cid: u64) -> u32 {
    // SAFETY: the header is the first field of a task.
    let task = unsafe { &*header.cast::<Task>() };
    match step_of(argument, cid) {
        StepOf::Poll { .. } => (task.body)(),
        StepOf::Finish { outcome } => {
            assert_eq!(task.finished.replace(Some(outcome)), None, "finished twice");
            DONE
        }
    }
}

fn task(priority: u8, body: impl Fn() -> u32 + 'static) -> &'static Task {
    Box::leak(Box::new(Task {
        header: Header::new(step_task, 0, priority),
        body: Box::new(body),
        finished: Cell::new(None),
    }))
}

#[test]
fn an_idle_worker_is_notified_once_and_its_own_first() {
    let world = World::new(3);
    for worker in 0..3 {
        assert_eq!(world.run(worker), Outcome::Idle);
    }
    world.spawn_at(1, task(0, || DONE));
    world.spawn_at(1, task(0, || DONE));
    world.spawn_at(1, task(0, || DONE));
    world.spawn_at(1, task(0, || DONE));
    assert_eq!(take_log(), ["notify 1", "notify 0", "notify 2"]);
    assert_eq!(world.run(2), Outcome::Idle);
    assert_eq!(world.executor.counters(2).steals, 4);
    // Idle again, although the mark in shard 1 was never removed.
    world.spawn_at(1, task(0, || DONE));
    assert_eq!(take_log(), ["notify 2"]);
}

#[test]
fn a_busy_shard_is_passed_by_and_counted() {
    let world = World::new(3);
    let less_important = task(5, || DONE);
    world.spawn_at(1, task(0, || DONE));
    world.spawn_at(0, less_important);
    let busy = world.executor.shard(1);
    assert!(busy.try_lock());
    assert_eq!(world.run_one(0), Outcome::Ran);
    busy.unlock();
    assert_eq!(less_important.finished.get(), Some(COMPLETED));
    let counters = [0, 1].map(|shard| world.executor.counters(shard));
    assert_eq!(counters.map(|one| (one.polls, one.retries, one.spins)), [(1, 0, 0), (0, 1, 0)]);
}

#[test]
fn lazy_sharing_moves_a_woken_coroutine_from_a_sleeping_worker_to_the_waking_one() {
    let world = World::sharing(2, Sharing::Lazy);
    let executor = world.executor;
    let woken: &'static [u64] = [5, 4, 5]
        .map(|priority| {
            world.spawn_at(
                1,
                task(priority, move || {
                    log(format!("polled by {}", CALLER.get()));
                    PENDING
                }),
            )
        })
        .to_vec()
        .leak();
    let wake_in_a_poll_of_0 = |indexes: &'static [usize]| {
        world.spawn(task(5, move || {
            take_log();
            indexes.iter().for_each(|index| executor.wake(woken[*index]).unwrap());
            log("woken");
            DONE
        }));
        assert_eq!(world.run(0), Outcome::Idle);
        take_log()
    };
    assert_eq!(world.run(1), Outcome::Idle);
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(wake_in_a_poll_of_0(&[0]), ["woken", "polled by 0"], "worker 1 goes on sleeping");
    assert_eq!(wake_in_a_poll_of_0(&[0]), ["woken", "polled by 0"], "it has stayed there");
    assert_eq!(
        wake_in_a_poll_of_0(&[1]),
        ["notify 1", "woken", "polled by 0"],
        "a more important coroutine is announced at once"
    );
    assert_eq!(world.run(1), Outcome::Idle);
    assert_eq!(
        wake_in_a_poll_of_0(&[0, 2]),
        ["notify 1", "woken", "polled by 0", "polled by 0"],
        "the second one is too many"
    );
    assert_eq!(world.run(1), Outcome::Idle);
    // A less important coroutine is announced to worker 1, since the polled coroutine may yield for ever.
    executor.set_priority(woken[0], 9).unwrap();
    assert_eq!(wake_in_a_poll_of_0(&[0]), ["notify 1", "woken", "polled by 0"]);
    executor.set_priority(woken[0], 5).unwrap();
    assert_eq!(world.run(1), Outcome::Idle);
    take_log();
    // A worker in a poll will run the coroutine. A caller that is not a worker will not, and notifies a worker.
    for nobody in [2, SHARDS as u32, u32::MAX] {
        world.spawn(task(5, move || {
            CALLER.set(nobody);
            take_log();
            executor.wake(woken[0]).unwrap();
            log("woken");
            CALLER.set(0);
            DONE
        }));
        assert_eq!(world.run(0), Outcome::Idle);
        assert_eq!(take_log(), ["notify 1", "woken", "polled by 0"]);
        assert_eq!(world.run(1), Outcome::Idle);
    }
    // Between polls, as in the hook for completions.
    CALLER.set(0);
    world.spawn(task(5, || DONE));
    assert_eq!(take_log(), ["notify 0"], "a worker that has said that it sleeps is told");
    assert_eq!(world.run_one(0), Outcome::Ran);
    executor.wake(woken[0]).unwrap();
    assert_eq!(take_log(), [""; 0], "and one that will look is not, nor anybody else");
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(take_log(), ["polled by 0"]);
    executor.wake(woken[2]).unwrap();
    assert_eq!(take_log(), ["notify 0"]);
    // A caller that is not a worker.
    assert_eq!(world.run(0), Outcome::Idle);
    CALLER.set(u32::MAX);
    executor.wake(woken[2]).unwrap();
    assert_eq!(take_log(), ["polled by 0", "notify 0"]);
    assert_eq!(world.run(1), Outcome::Idle);
    assert_eq!(take_log(), ["polled by 1"]);
}

#[test]
fn lazy_sharing_leaves_one_coroutine_to_the_worker_that_polls() {
    let world = World::sharing(2, Sharing::Lazy);
    let executor = world.executor;
    assert_eq!(world.run(1), Outcome::Idle);
    let blocked: &'static [u64] =
        (0..4).map(|index| world.spawn(task([5, 5, 4, 5][index], || PENDING))).collect::<Vec<_>>().leak();
    // Worker 0 does not run yet, so worker 1 is notified, once.
    assert_eq!(take_log(), ["notify 1"]);
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(world.run(1), Outcome::Idle);
    world.spawn(task(5, move || {
        let wake = |index: usize| {
            executor.wake(blocked[index]).unwrap();
            log(format!("woken {index}"));
        };
        take_log();
        wake(0);
        wake(1);
        DONE
    }));
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(take_log(), ["woken 0", "notify 1", "woken 1"], "the second one is too many");
    assert_eq!(world.run(1), Outcome::Idle);
    world.spawn(task(5, move || {
        take_log();
        executor.wake(blocked[2]).unwrap();
        DONE
    }));
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(take_log(), ["notify 1"], "more important than what runs");
}

#[test]
fn a_coroutine_woken_here_moves_to_the_waking_worker() {
    let world = World::new(2);
    let executor = world.executor;
    let blocked: &'static [u64] = (0..3).map(|_| world.spawn_at(1, task(5, || PENDING))).collect::<Vec<_>>().leak();
    assert_eq!(world.run(1), Outcome::Idle);
    assert_eq!(world.run(0), Outcome::Idle);
    take_log();
    executor.wake_here(blocked[0], 0).unwrap();
    assert_eq!((world.bitmap(0), world.bitmap(1)), (1 << 5, 0));
    assert_eq!(take_log(), ["notify 0"], "a worker that sleeps hears of what comes to it");
    assert_eq!(world.run(0), Outcome::Idle);
    world.spawn_at(
        0,
        task(5, move || {
            take_log();
            for (index, cid) in blocked.iter().enumerate() {
                executor.wake_here(*cid, 0).unwrap();
                log(format!("woken {index}"));
            }
            DONE
        }),
    );
    assert_eq!(world.run_one(0), Outcome::Ran);
    assert_eq!(take_log(), ["woken 0", "notify 1", "woken 1", "woken 2"], "the second one is too many");
    assert_eq!((world.bitmap(0), world.bitmap(1)), (1 << 5, 0));
    assert_eq!(executor.wake_here(blocked[0] + (1 << 32), 0), Err(Stale));
    // A coroutine that is not blocked stays in its shard.
    executor.wake_here(blocked[0], 1).unwrap();
    assert_eq!((world.bitmap(0), world.bitmap(1)), (1 << 5, 0));
}

#[test]
fn a_removed_worker_passes_its_work_on() {
    let world = World::new(2);
    world.run(0);
    world.run(1);
    let left = task(0, || DONE);
    world.spawn_at(1, left);
    assert_eq!(take_log(), ["notify 1"]);
    // The worker is removed instead of running.
    world.executor.remove_worker(1);
    assert_eq!(take_log(), ["notify 0"]);
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(left.finished.get(), Some(COMPLETED));
    // A coroutine that becomes ready there later is found too.
    world.spawn_at(1, task(0, || DONE));
    assert_eq!(take_log(), ["notify 0"]);
}

#[test]
fn more_important_work_is_stolen_and_equal_work_is_not() {
    let world = World::new(2);
    let note = |name: &'static str, priority| {
        task(priority, move || {
            log(name);
            DONE
        })
    };
    world.spawn_at(0, note("own 5", 5));
    world.spawn_at(1, note("other 5", 5));
    world.spawn_at(1, note("other 4", 4));
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(take_log(), ["other 4", "own 5", "other 5"]);
}

#[test]
fn a_strict_worker_stops_for_more_important_work_elsewhere() {
    let world = World::new(2);
    let elsewhere: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(1 << 3)));
    let strictly = |ceiling| {
        // SAFETY: everything is on one thread.
        unsafe { world.executor.run_strictly(0, core::ptr::null_mut(), elsewhere, ceiling) }
    };
    let note = |name: &'static str, priority| {
        task(priority, move || {
            log(name);
            DONE
        })
    };
    // Equals do not outrank each other.
    world.spawn(note("2", 2));
    world.spawn(note("3", 3));
    let polls: &'static Cell<u32> = Box::leak(Box::default());
    world.spawn(task(4, || {
        log("4");
        if polls.replace(polls.get() + 1) < 2 { YIELDED } else { DONE }
    }));
    world.spawn(note("5", 5));
    assert_eq!(strictly(0), Outcome::Outranked);
    assert_eq!(take_log(), ["2", "3"]);
    assert_eq!(world.bitmap(0), 1 << 4 | 1 << 5);
    // A worker that was chosen although it is outranked makes progress, by one poll.
    assert_eq!(strictly(0), Outcome::Outranked);
    assert_eq!(take_log(), ["4"]);
    // Ready coroutines of another worker count, since this worker could take them.
    world.spawn_at(1, note("other 1", 1));
    assert_eq!(strictly(0), Outcome::Outranked);
    assert_eq!(take_log(), ["other 1"]);
    elsewhere.store(0, Ordering::Relaxed);
    assert_eq!(strictly(0), Outcome::Idle);
    assert_eq!(take_log(), ["4", "4", "5"]);
    // An idle worker is not outranked.
    elsewhere.store(1, Ordering::Relaxed);
    assert_eq!(strictly(0), Outcome::Idle);
    // Priorities above the ceiling count as the ceiling.
    elsewhere.store(1 << 4, Ordering::Relaxed);
    world.spawn(note("first", 0));
    world.spawn(note("second", 0));
    take_log();
    assert_eq!(strictly(5), Outcome::Outranked);
    assert_eq!(take_log(), ["first"]);
    assert_eq!(strictly(4), Outcome::Idle);
    assert_eq!(take_log(), ["second"]);
}

#[test]
fn attention_gives_no_poll_without_a_comparison() {
    let world = World::new(0);
    let elsewhere: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
    let attention: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
    // SAFETY: no worker runs.
    unsafe { world.executor.add_worker(0, Signals { attention, ..Signals::NONE }) };
    // SAFETY: everything is on one thread.
    let strictly = || unsafe { world.executor.run_strictly(0, core::ptr::null_mut(), elsewhere, 0) };
    // The first coroutine makes something else ready, and is interrupted.
    world.spawn(task(1, || {
        log("1");
        elsewhere.store(1 << 3, Ordering::Relaxed);
        attention.store(1, Ordering::Relaxed);
        DONE
    }));
    world.spawn(task(5, || {
        log("5");
        DONE
    }));
    assert_eq!(strictly(), Outcome::Attention);
    attention.store(0, Ordering::Relaxed);
    assert_eq!(strictly(), Outcome::Outranked);
    assert_eq!(take_log(), ["1"]);
    // Attention before the first poll of a worker that was chosen again takes that poll away from nobody.
    attention.store(1, Ordering::Relaxed);
    assert_eq!(strictly(), Outcome::Attention);
    attention.store(0, Ordering::Relaxed);
    assert_eq!(strictly(), Outcome::Idle);
    assert_eq!(take_log(), ["5"]);
}

#[test]
fn a_shard_without_a_worker_has_its_turn() {
    let world = World::new(2);
    let polls: &'static Cell<u32> = Box::leak(Box::default());
    world.spawn_at(0, task(5, || if polls.replace(polls.get() + 1) < 200 { YIELDED } else { DONE }));
    world.spawn_at(
        1,
        task(5, || {
            log(if polls.get() < 100 { "in time" } else { "late" });
            DONE
        }),
    );
    world.run(0);
    assert_eq!(take_log(), ["in time"]);
}

#[test]
fn a_suspended_coroutine_goes_on_where_it_was() {
    let world = World::new(2);
    let executor = world.executor;
    let bystander = task(3, || {
        log("bystander");
        DONE
    });
    let polls: &'static Cell<u32> = Box::leak(Box::default());
    let suspended = task(3, move || {
        if polls.replace(polls.get() + 1) > 0 {
            return DONE;
        }
        // As in an interruption, on the interrupted stack: the nested calls represent another stack. SAFETY: this is
        // worker 0, inside a poll.
        let cid = unsafe { executor.suspend(0) }.unwrap();
        assert_eq!(executor.state(cid), Ok(State::Suspended));
        assert_eq!(executor.current(0), None);
        let run_one = |worker| {
            // SAFETY: below a suspended poll.
            unsafe { executor.run_one(worker, core::ptr::null_mut()) }
        };
        assert_eq!(run_one(0), Outcome::Ran);
        executor.wake(cid).unwrap();
        executor.set_priority(cid, 2).unwrap();
        assert_eq!(executor.state(cid), Ok(State::Suspended), "a wake does not bring the stack back");
        assert_eq!(run_one(0), Outcome::Idle);
        executor.resume(cid).unwrap();
        executor.resume(cid).unwrap();
        assert_eq!(executor.state(cid), Ok(State::Ready));
        // Another worker can neither take it nor waits for it.
        assert_eq!(run_one(1), Outcome::Idle);
        assert_eq!(run_one(0), Outcome::Ran);
        assert_eq!(executor.state(cid), Ok(State::Running));
        log("goes on");
        PENDING
    });
    let cid = world.spawn(suspended);
    world.spawn(bystander);
    assert_eq!(world.run(0), Outcome::Idle);
    // Worker 0 had been idle, so `resume` notified it.
    assert_eq!(take_log(), ["bystander", "notify 0", &format!("resume {cid:x}"), "goes on"]);
    assert_eq!(polls.get(), 2, "the wake during the suspension makes it run again");
    assert_eq!(suspended.finished.get(), Some(COMPLETED));
    assert!(executor.resume(cid).is_err());
}

#[test]
fn a_suspended_coroutine_goes_before_its_equals_and_delays_no_other_worker() {
    let world = World::new(2);
    let executor = world.executor;
    let noting = |priority, name: &'static str| {
        task(priority, move || {
            log(name);
            DONE
        })
    };
    let run_one = move |worker| {
        // SAFETY: below a suspended poll.
        unsafe { executor.run_one(worker, core::ptr::null_mut()) }
    };
    let (equal, less, own) = (noting(3, "equal"), noting(5, "less important"), noting(4, "own"));
    let suspended = task(3, move || {
        // SAFETY: this is worker 0, inside a poll.
        let cid = unsafe { executor.suspend(0) }.unwrap();
        // SAFETY: as above, and the poll is suspended now.
        assert_eq!(unsafe { executor.suspend(0) }, None);
        executor.resume(cid).unwrap();
        // A coroutine behind it in the shard is taken by a worker without a more important one, and not by a worker
        // with one. SAFETY: the tasks are fresh and never freed.
        let spawn = |task: &'static Task, worker| unsafe {
            executor.spawn(core::ptr::from_ref(task).cast::<Header>().cast_mut(), worker).unwrap()
        };
        spawn(less, 0);
        spawn(own, 1);
        assert_eq!([run_one(1), run_one(1), run_one(1)], [Outcome::Ran, Outcome::Ran, Outcome::Idle]);
        assert_eq!(
            take_log().iter().filter(|entry| !entry.starts_with("notify")).collect::<Vec<_>>(),
            ["own", "less important"]
        );
        spawn(equal, 0);
        assert_eq!(run_one(0), Outcome::Ran);
        log("goes on");
        DONE
    });
    let cid = world.spawn(suspended);
    assert_eq!(world.run(0), Outcome::Idle);
    let entries = take_log();
    let entries: Vec<_> = entries.iter().filter(|entry| !entry.starts_with("notify")).collect();
    assert_eq!(entries, [&format!("resume {cid:x}"), "goes on", "equal"]);
    // SAFETY: this is worker 0, after its polls.
    assert_eq!(unsafe { executor.suspend(0) }, None);
}

#[test]
fn slots_are_used_again_with_other_cids_and_end_at_the_limit() {
    let world = World::new(1);
    let first = world.spawn(task(0, || DONE));
    world.run(0);
    let second = world.spawn(task(0, || DONE));
    assert_eq!(first as u32, second as u32);
    assert_ne!(first, second);
    assert_eq!(world.executor.wake(first), Err(Stale));
    assert_eq!(world.executor.wake(second), Ok(()));
    for _ in 1..CHUNKS {
        assert_eq!(world.add_slots(), Ok(()));
    }
    assert_eq!(world.add_slots(), Err(Full));
}

#[test]
fn a_generation_that_is_used_up_retires_its_slot() {
    let world = World::new(1);
    // A chunk whose first slot has been used four thousand million times.
    let task_before = task(0, || DONE);
    let cid = world.spawn(task_before);
    world.run(0);
    // SAFETY: everything is on one thread; the slot is free.
    unsafe {
        let slot = &*task_before.header.slot.get();
        let before_last = u64::from(u32::MAX - 1) << 32 | u64::from(cid as u32);
        assert_eq!(slot.word.exit(before_last), Freed::Reusable);
    }
    let last = world.spawn(task(0, || DONE));
    assert_eq!(last, u64::from(u32::MAX) << 32 | u64::from(cid as u32));
    world.run(0);
    assert_eq!(world.executor.wake(last), Err(Stale));
    let next = world.spawn(task(0, || DONE));
    assert_ne!(next as u32, cid as u32, "the slot is not used again");
    world.run(0);
}

#[test]
fn a_coroutine_that_begins_blocked_waits_for_a_wake() {
    let world = World::new(1);
    // `blocked` is idempotent.
    for times in 1..3 {
        let header = (0..times).fold(Header::new(step_task, 0xbeef, 7), |header, _| header.blocked());
        let task: &'static Task =
            Box::leak(Box::new(Task { header, body: Box::new(|| DONE), finished: Cell::new(None) }));
        let cid = world.spawn(task);
        assert_eq!(world.executor.state(cid), Ok(State::Blocked));
        assert_eq!(world.executor.priority(cid), Ok(7));
        assert_eq!(world.executor.kind(cid), Ok(0xbeef));
        assert_eq!(world.run(0), Outcome::Idle);
        assert_eq!(task.finished.get(), None);
        world.executor.wake(cid).unwrap();
        assert_eq!(world.bitmap(0), 1 << 7);
        assert_eq!(world.run(0), Outcome::Idle);
        assert_eq!(task.finished.get(), Some(COMPLETED));
    }
}

#[test]
fn numbers_beyond_the_least_important_priority_count_as_that() {
    let world = World::new(1);
    for number in [62, 63, 64, 65, 127, 128, 255] {
        let expected = number.min(63);
        let cid = world.spawn(task(number, || DONE));
        assert_eq!(world.executor.priority(cid), Ok(expected));
        assert_eq!(world.bitmap(0), 1 << expected);
        let other = world.spawn(task(0, || DONE));
        world.executor.set_priority(other, number).unwrap();
        assert_eq!(world.executor.priority(other), Ok(expected));
        assert_eq!(world.executor.kind(other), Ok(0));
        assert_eq!(world.bitmap(0), 1 << expected);
        assert_eq!(world.run(0), Outcome::Idle);
    }
}

#[test]
fn the_only_worker_is_notified_when_it_sleeps_and_only_then() {
    let world = World::new(1);
    world.spawn(task(0, || DONE));
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(take_log(), [""; 0]);
    world.spawn(task(0, || DONE));
    assert_eq!(take_log(), ["notify 0"]);
}

#[test]
fn a_removed_worker_is_not_notified_and_no_worker_without_need() {
    let world = World::new(3);
    for worker in 0..3 {
        assert_eq!(world.run(worker), Outcome::Idle);
    }
    world.executor.remove_worker(1);
    assert_eq!(take_log(), [""; 0], "nothing is ready");
    world.spawn_at(1, task(0, || DONE));
    world.spawn_at(1, task(0, || DONE));
    world.spawn_at(1, task(0, || DONE));
    assert_eq!(take_log(), ["notify 0", "notify 2"]);
}

#[test]
fn a_shard_without_slots_takes_those_of_another_unless_that_is_busy() {
    let world = World::new(2);
    for _ in 0..SLOTS_IN_CHUNK {
        world.spawn(task(0, || PENDING));
    }
    let spawn = || {
        let task = task(0, || DONE);
        // SAFETY: the task is fresh and never freed.
        unsafe { world.executor.spawn(core::ptr::from_ref(task).cast::<Header>().cast_mut(), 0) }
    };
    assert_eq!(spawn(), Err(SpawnError::NeedSlots));
    // SAFETY: fresh memory that is never freed.
    unsafe {
        let slots = alloc_zeroed(Layout::from_size_align(CHUNK_BYTES, 16).unwrap());
        world.executor.add_slots(slots.cast(), 1).unwrap();
    }
    let other = world.executor.shard(1);
    assert!(other.try_lock());
    assert_eq!(spawn(), Err(SpawnError::NeedSlots));
    assert!(!other.try_lock(), "the lock is still ours");
    other.unlock();
    for _ in 0..SLOTS_IN_CHUNK {
        spawn().unwrap();
    }
    assert_eq!(spawn(), Err(SpawnError::NeedSlots));
    assert!(other.try_lock(), "the lock was given back");
}

/// Between a call's first load of a coroutine's state and its lock, other threads may change the coroutine in any way.
#[test]
fn a_state_is_that_of_the_moment_under_the_lock() {
    let world = World::new(2);
    let executor = world.executor;
    let run_0 = move || assert_eq!(world.run_one(0), Outcome::Ran);

    let blocks = world.spawn(task(0, || PENDING));
    assert_eq!(world.while_waiting_for(0, run_0, || executor.state(blocks)), Ok(State::Blocked));

    let exits = world.spawn(task(0, || DONE));
    assert_eq!(world.while_waiting_for(0, run_0, || executor.state(exits)), Err(Stale));

    // Another coroutine in its slot, in the same shard.
    let replaced = world.spawn(task(0, || DONE));
    let replace = move || {
        run_0();
        assert_eq!(world.spawn(task(0, || DONE)) as u32, replaced as u32);
    };
    assert_eq!(world.while_waiting_for(0, replace, || executor.state(replaced)), Err(Stale));
    run_0();

    let moves = world.spawn(task(0, || PENDING));
    let move_to_1 = move || {
        run_0();
        executor.wake_here(moves, 1).unwrap();
    };
    assert_eq!(world.while_waiting_for(0, move_to_1, || executor.state(moves)), Ok(State::Ready));
    assert_eq!((world.bitmap(0), world.bitmap(1)), (0, 1));
}

#[test]
fn a_priority_changes_despite_a_race_before_the_lock() {
    let world = World::new(2);
    let executor = world.executor;
    let run_0 = move || assert_eq!(world.run_one(0), Outcome::Ran);

    let moves = world.spawn(task(5, || PENDING));
    let move_to_1 = move || {
        run_0();
        executor.wake_here(moves, 1).unwrap();
    };
    world.while_waiting_for(0, move_to_1, || executor.set_priority(moves, 6)).unwrap();
    assert_eq!((world.bitmap(0), world.bitmap(1)), (0, 1 << 6));
    assert_eq!(world.run(1), Outcome::Idle);

    let blocks = world.spawn(task(5, || PENDING));
    world.while_waiting_for(0, run_0, || executor.set_priority(blocks, 6)).unwrap();
    assert_eq!(executor.state(blocks), Ok(State::Blocked));
    assert_eq!(world.bitmap(0), 0);
    executor.wake(blocks).unwrap();
    assert_eq!(world.bitmap(0), 1 << 6);
    run_0();

    // Another coroutine in its slot keeps its place before its equals.
    let replaced = world.spawn(task(5, || DONE));
    let noting = |name: &'static str| {
        task(6, move || {
            log(name);
            DONE
        })
    };
    let (first, second) = (noting("first"), noting("second"));
    let replace = move || {
        run_0();
        assert_eq!(world.spawn(first) as u32, replaced as u32);
        world.spawn(second);
    };
    assert_eq!(world.while_waiting_for(0, replace, || executor.set_priority(replaced, 6)), Ok(()));
    take_log();
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(take_log(), ["first", "second"]);
}

#[test]
fn a_wake_survives_a_race_before_the_lock() {
    let world = World::new(2);
    let executor = world.executor;
    let polls: &'static Cell<u32> = Box::leak(Box::default());
    let cid = world.spawn(task(5, || {
        polls.set(polls.get() + 1);
        PENDING
    }));
    let run = || {
        assert_eq!(world.run(0), Outcome::Idle);
        polls.take()
    };
    assert_eq!(run(), 1);
    // Two wakes before a poll are one.
    let wake = move || executor.wake(cid).unwrap();
    world.while_waiting_for(0, wake, || executor.wake(cid)).unwrap();
    assert_eq!((executor.state(cid), world.bitmap(0)), (Ok(State::Ready), 1 << 5));
    assert_eq!(run(), 1);
    // It is linked at its last priority.
    let change = move || executor.set_priority(cid, 7).unwrap();
    world.while_waiting_for(0, change, || executor.wake(cid)).unwrap();
    assert_eq!(world.bitmap(0), 1 << 7);
    assert_eq!(run(), 1);
    world.while_waiting_for(0, move || executor.set_priority(cid, 5).unwrap(), || executor.wake_here(cid, 1)).unwrap();
    assert_eq!((world.bitmap(0), world.bitmap(1)), (1 << 5, 0), "a change meanwhile makes it an ordinary wake");
    assert_eq!(run(), 1);
    // A coroutine that migrates is woken once, too.
    world.while_waiting_for(0, wake, || executor.wake_here(cid, 1)).unwrap();
    assert_eq!((world.bitmap(0), world.bitmap(1)), (1 << 5, 0));
    assert_eq!(run(), 1);
    // No coroutine is woken if it has ended.
    let end = move || {
        executor.cancel(cid).unwrap();
        assert_eq!(world.run_one(0), Outcome::Ran);
    };
    assert_eq!(world.while_waiting_for(0, end, || executor.wake_here(cid, 1)), Err(Stale));
    assert_eq!((world.bitmap(0), world.bitmap(1), polls.get()), (0, 0, 0));
}

#[test]
fn a_cancellation_survives_a_race_before_the_lock() {
    let world = World::new(1);
    let executor = world.executor;
    let woken = task(5, || PENDING);
    let cid = world.spawn(woken);
    assert_eq!(world.run(0), Outcome::Idle);
    world.while_waiting_for(0, move || executor.wake(cid).unwrap(), || executor.cancel(cid)).unwrap();
    assert_eq!(woken.finished.get(), None);
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(woken.finished.get(), Some(CANCELLED_OUTCOME));
    let cancelled = task(5, || PENDING);
    let cid = world.spawn(cancelled);
    assert_eq!(world.run(0), Outcome::Idle);
    let end = move || {
        executor.cancel(cid).unwrap();
        assert_eq!(world.run(0), Outcome::Idle);
    };
    assert_eq!(world.while_waiting_for(0, end, || executor.cancel(cid)), Err(Stale));
    assert_eq!(cancelled.finished.get(), Some(CANCELLED_OUTCOME));
}

#[test]
fn waiting_for_a_lock_is_counted_and_gives_way_now_and_then() {
    let world = World::new(1);
    let cid = world.spawn(task(0, || DONE));
    let shard = world.executor.shard(0);
    assert!(shard.try_lock());
    // The holder runs again at the waiting thread's third call of `relax`.
    MEANWHILE.set(Some(Box::new(|| {
        log("first");
        MEANWHILE.set(Some(Box::new(|| {
            log("second");
            MEANWHILE.set(Some(Box::new(|| shard.unlock())));
        })));
    })));
    assert_eq!(world.executor.state(cid), Ok(State::Ready));
    assert!(MEANWHILE.take().is_none());
    assert_eq!(take_log(), ["first", "second"]);
    assert_eq!(world.executor.counters(0).spins, 3 * 256);
    assert!(shard.try_lock(), "the lock was given back");
}

#[test]
fn a_worker_does_not_sleep_beside_work_in_a_busy_shard() {
    let world = World::new(3);
    let left = task(0, || DONE);
    world.spawn_at(1, left);
    // The worker gives up stealing, since the shard is locked; before it sleeps it waits for the lock.
    let outcome = world.while_waiting_for(1, || (), || world.run(0));
    assert_eq!(outcome, Outcome::Idle);
    assert_eq!(left.finished.get(), Some(COMPLETED));
    // Work that arrives while it waits does not suppress later notifications of other workers.
    let left = task(0, || DONE);
    let come = move || {
        assert_eq!(world.run(2), Outcome::Idle);
        world.spawn_at(1, left);
    };
    assert_eq!(world.while_waiting_for(1, come, || world.run(0)), Outcome::Idle);
    assert_eq!(left.finished.get(), Some(COMPLETED));
    assert_eq!(take_log(), ["notify 0"]);
    world.spawn_at(1, task(0, || DONE));
    world.spawn_at(1, task(0, || DONE));
    assert_eq!(take_log(), ["notify 0", "notify 2"]);
}

#[test]
fn a_worker_takes_from_all_others_and_begins_behind_itself() {
    let world = World::new(SHARDS);
    for worker in 0..SHARDS {
        let others = (1..SHARDS).map(|step| (worker + step) % SHARDS);
        for other in others.clone() {
            world.spawn_at(
                other,
                task(5, move || {
                    log(format!("from {other}"));
                    DONE
                }),
            );
        }
        assert_eq!(world.run(worker), Outcome::Idle);
        assert_eq!(take_log(), others.map(|other| format!("from {other}")).collect::<Vec<_>>());
        world.executor.remove_worker(worker);
    }
}

/// The exported functions have the same effects as the methods.
#[test]
fn exported_functions_are_the_methods() {
    use crate::entry;
    assert_eq!(entry::version(), 0x3_0000);
    assert_eq!(entry::executor_size(), size_of::<Executor>());
    let ready: &'static [ReadyWord; SHARDS] = Box::leak(Box::new([const { ReadyWord::new() }; SHARDS]));
    let attention: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
    let elsewhere: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
    let hooks = Hooks { resume: Some(note_resume), ..Hooks::NONE };
    let polls: &'static Cell<u32> = Box::leak(Box::default());
    let this: &'static Cell<*const Executor> = Box::leak(Box::new(Cell::new(core::ptr::null())));
    let suspends: &'static Cell<bool> = Box::leak(Box::default());
    let body = move || {
        polls.set(polls.get() + 1);
        let executor = this.get();
        // SAFETY: this is worker 0, inside a poll; the nested call represents another stack.
        unsafe {
            let cid = entry::current(executor, 0);
            log(format!("current {cid:x}"));
            if suspends.take() {
                assert_eq!(entry::suspend(executor, 0), cid);
                assert_eq!(entry::suspend(executor, 0), 0);
                assert_eq!(entry::state(executor, cid), State::Suspended as isize);
                assert_eq!(entry::resume(executor, cid), entry::OK);
                assert_eq!(entry::run_one(executor, 0, core::ptr::null_mut()), Outcome::Ran as u32);
            }
        }
        PENDING
    };
    let header = Header::new(step_task, 0xbeef, 5);
    let task: &'static Task = Box::leak(Box::new(Task { header, body: Box::new(body), finished: Cell::new(None) }));
    let nothing = core::ptr::null_mut();
    // SAFETY: fresh memory of the right layout, a task, neither of which is ever freed, and one thread.
    unsafe {
        let memory = alloc_zeroed(Layout::from_size_align(entry::executor_size(), 128).unwrap()).cast::<Executor>();
        entry::executor_init(memory, ready, &hooks);
        this.set(memory);
        entry::add_worker(memory, 0, &Signals { attention, ..Signals::NONE });
        let header = core::ptr::from_ref(task).cast::<Header>().cast_mut();
        assert_eq!(entry::spawn(memory, header, 0), 0, "there are no slots");
        for chunk in 0..=CHUNKS {
            let slots = alloc_zeroed(Layout::from_size_align(CHUNK_BYTES, 16).unwrap());
            let expected = if chunk < CHUNKS { entry::OK } else { entry::FULL };
            assert_eq!(entry::add_slots(memory, slots.cast(), 0), expected);
        }
        let cid = entry::spawn(memory, header, 0);
        assert_eq!(cid >> 32, 1);
        let state = |state: State| state as isize;
        assert_eq!((entry::state(memory, cid), entry::kind(memory, cid)), (state(State::Ready), 0xbeef));
        assert_eq!((entry::priority(memory, cid), entry::current(memory, 0)), (5, 0));

        attention.store(1, Ordering::Relaxed);
        assert_eq!(entry::run(memory, 0, nothing), Outcome::Attention as u32);
        attention.store(0, Ordering::Relaxed);
        assert_eq!(entry::run_one(memory, 0, nothing), Outcome::Ran as u32);
        assert_eq!(take_log(), [format!("current {cid:x}")]);
        assert_eq!(entry::run(memory, 0, nothing), Outcome::Idle as u32);
        assert_eq!(entry::state(memory, cid), state(State::Blocked));

        assert_eq!(entry::set_priority(memory, cid, 256), entry::OK);
        assert_eq!(entry::priority(memory, cid), 63);
        assert_eq!(entry::wake(memory, cid), entry::OK);
        assert_eq!(ready[0].0.load(Ordering::Relaxed), 1 << 63);
        assert_eq!(entry::run(memory, 0, nothing), Outcome::Idle as u32);
        assert_eq!(entry::wake_here(memory, cid, 0), entry::OK);
        let other = Box::leak(Box::new(Header::new(step_once, 0, 63)));
        assert_ne!(entry::spawn(memory, other, 0), 0);
        elsewhere.store(1, Ordering::Relaxed);
        // Nothing was given away before; then one poll is made.
        for _ in 0..2 {
            assert_eq!(entry::run_strictly(memory, 0, nothing, elsewhere, 63), Outcome::Outranked as u32);
        }
        assert_eq!(entry::run_strictly(memory, 0, nothing, elsewhere, 0), Outcome::Idle as u32);
        take_log();

        suspends.set(true);
        assert_eq!(entry::wake(memory, cid), entry::OK);
        assert_eq!(entry::run(memory, 0, nothing), Outcome::Idle as u32);
        assert_eq!(take_log(), [format!("current {cid:x}"), format!("resume {cid:x}")]);

        assert_eq!(entry::cancel(memory, cid), entry::OK);
        assert_eq!(entry::run(memory, 0, nothing), Outcome::Idle as u32);
        let one_of = [
            entry::wake(memory, cid),
            entry::wake_here(memory, cid, 0),
            entry::cancel(memory, cid),
            entry::set_priority(memory, cid, 1),
            entry::resume(memory, cid),
        ];
        assert_eq!(one_of, [1; 5], "a stale cid");
        assert_eq!([entry::priority(memory, cid), entry::kind(memory, cid), entry::state(memory, cid)], [-1; 3]);

        let mut counters = Counters { polls: 99, ..Counters::default() };
        entry::counters(memory, 0, &mut counters);
        assert_eq!(counters, (*memory).counters(0));
        assert_eq!(counters.polls, u64::from(polls.get()) + 1);

        // A removed worker is not idle any more.
        entry::remove_worker(memory, 0);
        assert_eq!((*memory).idle.load(Ordering::Relaxed), 0);
    }
}

unsafe extern "C" fn step_once(_: *mut Header, argument: *mut c_void, cid: u64) -> u32 {
    if let StepOf::Finish { outcome } = step_of(argument, cid) {
        assert_eq!(outcome, COMPLETED);
    }
    DONE
}

// ---- the model ----

/// A step of a history. Numbers select one of the existing coroutines.
#[derive(Clone, Debug)]
enum Step {
    Spawn {
        worker: usize,
        priority: u8,
    },
    Wake(usize),
    WakeHere(usize, usize),
    SetPriority(usize, u8),
    Cancel(usize),
    /// A poll: the coroutine's operations on itself during the poll, and the poll's answer.
    Run {
        worker: usize,
        during: Vec<During>,
        answer: u32,
    },
}

#[derive(Clone, Copy, Debug)]
enum During {
    Wake,
    SetPriority(u8),
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Ready,
    Running,
    Blocked,
    Exited,
}

struct Naive {
    place: Where,
    priority: u8,
    shard: usize,
    woken: bool,
    cancelled: bool,
    outcome: Option<u32>,
}

/// Lists of ready coroutines by shard, in the order of their arrival; the other state is in each coroutine.
#[derive(Default)]
struct Model {
    coroutines: Vec<Naive>,
    ready: [VecDeque<usize>; 2],
    polls: [u64; 2],
}

impl Model {
    fn make_ready(&mut self, index: usize) {
        self.coroutines[index].place = Where::Ready;
        self.ready[self.coroutines[index].shard].push_back(index);
    }

    fn wake(&mut self, index: usize) -> bool {
        match self.coroutines[index].place {
            Where::Exited => return false,
            Where::Blocked => self.make_ready(index),
            Where::Running => self.coroutines[index].woken = true,
            Where::Ready => {}
        }
        true
    }

    fn wake_here(&mut self, index: usize, worker: usize) -> bool {
        if self.coroutines[index].place == Where::Blocked {
            self.coroutines[index].shard = worker;
        }
        self.wake(index)
    }

    fn set_priority(&mut self, index: usize, priority: u8) -> bool {
        let coroutine = &mut self.coroutines[index];
        if coroutine.place == Where::Exited {
            return false;
        }
        if coroutine.priority != priority {
            coroutine.priority = priority;
            if coroutine.place == Where::Ready {
                let list = &mut self.ready[coroutine.shard];
                list.retain(|&other| other != index);
                list.push_back(index);
            }
        }
        true
    }

    fn cancel(&mut self, index: usize) -> bool {
        if self.coroutines[index].place == Where::Exited {
            return false;
        }
        if self.coroutines[index].place == Where::Blocked {
            self.make_ready(index);
        }
        self.coroutines[index].cancelled = true;
        true
    }

    fn best(&self, shard: usize) -> Option<u8> {
        self.ready[shard].iter().map(|&index| self.coroutines[index].priority).min()
    }

    /// Takes the coroutine that a worker would take now.
    fn take(&mut self, worker: usize) -> Option<usize> {
        let (own, other) = (self.best(worker), self.best(1 - worker));
        let shard = match (own, other) {
            (None, None) => return None,
            (Some(own), Some(other)) if other < own => 1 - worker,
            (Some(_), _) => worker,
            (None, Some(_)) => 1 - worker,
        };
        let best = self.best(shard)?;
        let at = self.ready[shard].iter().position(|&index| self.coroutines[index].priority == best)?;
        let index = self.ready[shard].remove(at)?;
        self.coroutines[index].shard = worker;
        self.coroutines[index].place = Where::Running;
        self.coroutines[index].woken = false;
        Some(index)
    }

    fn bitmap(&self, shard: usize) -> u64 {
        self.ready[shard].iter().fold(0, |all, &index| all | 1 << self.coroutines[index].priority)
    }
}

fn step() -> impl Strategy<Value = Step> {
    // Few priorities and few coroutines, so that operations coincide.
    let priority = || prop_oneof![0u8..4, 60u8..64];
    let during = prop_oneof![Just(During::Wake), priority().prop_map(During::SetPriority), Just(During::Cancel),];
    prop_oneof![
        3 => (0usize..2, priority()).prop_map(|(worker, priority)| Step::Spawn { worker, priority }),
        3 => any::<usize>().prop_map(Step::Wake),
        3 => (any::<usize>(), 0usize..2).prop_map(|(index, worker)| Step::WakeHere(index, worker)),
        3 => (any::<usize>(), priority()).prop_map(|(index, priority)| Step::SetPriority(index, priority)),
        1 => any::<usize>().prop_map(Step::Cancel),
        8 => (0usize..2, prop::collection::vec(during, 0..3), 0u32..3)
            .prop_map(|(worker, during, answer)| Step::Run { worker, during, answer }),
    ]
}

thread_local! {
    /// The coroutine that was polled.
    static POLLED: Cell<Option<usize>> = const { Cell::new(None) };
    /// Operations and answer of the coroutine that is polled next.
    static SCRIPT: RefCell<(Vec<During>, u32)> = const { RefCell::new((Vec::new(), PENDING)) };
}

proptest! {
    #![proptest_config(property::cases(512))]

    #[test]
    fn histories_agree_with_the_model(steps in prop::collection::vec(step(), 1..120)) {
        let world = World::new(2);
        let executor = world.executor;
        let mut model = Model::default();
        let mut tasks: Vec<(&'static Task, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Spawn { worker, priority } => {
                    let index = tasks.len();
                    let task = task(priority, move || {
                        assert_eq!(POLLED.replace(Some(index)), None);
                        let cid = executor.current(0).into_iter().chain(executor.current(1)).next().unwrap();
                        let (during, answer) = SCRIPT.take();
                        for action in during {
                            match action {
                                During::Wake => executor.wake(cid).unwrap(),
                                During::SetPriority(priority) => executor.set_priority(cid, priority).unwrap(),
                                During::Cancel => executor.cancel(cid).unwrap(),
                            }
                            assert_eq!(executor.state(cid), Ok(State::Running));
                        }
                        answer
                    });
                    tasks.push((task, world.spawn_at(worker, task)));
                    model.coroutines.push(Naive {
                        place: Where::Ready, priority, shard: worker, woken: false, cancelled: false, outcome: None,
                    });
                    model.ready[worker].push_back(index);
                }
                Step::Wake(index) if !tasks.is_empty() => {
                    let index = index % tasks.len();
                    prop_assert_eq!(executor.wake(tasks[index].1).is_ok(), model.wake(index));
                }
                Step::WakeHere(index, worker) if !tasks.is_empty() => {
                    let index = index % tasks.len();
                    prop_assert_eq!(executor.wake_here(tasks[index].1, worker).is_ok(), model.wake_here(index, worker));
                }
                Step::SetPriority(index, priority) if !tasks.is_empty() => {
                    let index = index % tasks.len();
                    prop_assert_eq!(
                        executor.set_priority(tasks[index].1, priority).is_ok(),
                        model.set_priority(index, priority)
                    );
                }
                Step::Cancel(index) if !tasks.is_empty() => {
                    let index = index % tasks.len();
                    prop_assert_eq!(executor.cancel(tasks[index].1).is_ok(), model.cancel(index));
                }
                Step::Run { worker, during, answer } => {
                    SCRIPT.set((during.clone(), answer));
                    POLLED.set(None);
                    let outcome = world.run_one(worker);
                    let Some(index) = model.take(worker) else {
                        prop_assert_eq!(outcome, Outcome::Idle);
                        continue;
                    };
                    prop_assert_eq!(outcome, Outcome::Ran);
                    if model.coroutines[index].cancelled {
                        prop_assert_eq!(POLLED.get(), None);
                        model.coroutines[index].place = Where::Exited;
                        model.coroutines[index].outcome = Some(CANCELLED_OUTCOME);
                    } else {
                        prop_assert_eq!(POLLED.get(), Some(index));
                        model.polls[worker] += 1;
                        for action in during {
                            match action {
                                During::Wake => model.wake(index),
                                During::SetPriority(priority) => model.set_priority(index, priority),
                                During::Cancel => model.cancel(index),
                            };
                        }
                        let coroutine = &mut model.coroutines[index];
                        if answer == DONE {
                            coroutine.place = Where::Exited;
                            coroutine.outcome = Some(COMPLETED);
                        } else if answer == YIELDED || coroutine.woken || coroutine.cancelled {
                            model.make_ready(index);
                        } else {
                            coroutine.place = Where::Blocked;
                        }
                    }
                }
                _ => {}
            }
            take_log();
            for (index, (task, cid)) in tasks.iter().enumerate() {
                let naive = &model.coroutines[index];
                let place = match executor.state(*cid) {
                    Ok(State::Ready) => Where::Ready,
                    Ok(State::Running) => Where::Running,
                    Ok(State::Blocked) => Where::Blocked,
                    Ok(State::Suspended) => unreachable!("no coroutine is suspended here"),
                    Err(Stale) => Where::Exited,
                };
                prop_assert_eq!(place, naive.place);
                prop_assert_eq!(task.finished.get(), naive.outcome);
                if place != Where::Exited {
                    prop_assert_eq!(executor.priority(*cid), Ok(naive.priority));
                }
            }
            for worker in 0..2 {
                prop_assert_eq!(world.bitmap(worker), model.bitmap(worker));
                prop_assert_eq!(executor.counters(worker).polls, model.polls[worker]);
                prop_assert_eq!(executor.current(worker), None);
                prop_assert_eq!(world.ready[worker].1.load(Ordering::Relaxed), 0);
            }
        }
    }

    #[test]
    fn strict_runs_poll_nothing_that_is_outranked(
        scripts in prop::collection::vec((0u8..8, prop::collection::vec((property::edges(0..256u64, &[2, 128]), any::<bool>()), 0..4)), 1..20),
        ceiling in 0u32..8,
    ) {
        let world = World::new(1);
        let elsewhere: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
        // Number of polls in the current run.
        let polls: &'static Cell<u32> = Box::leak(Box::default());
        let mut expected = 0;
        for (priority, script) in scripts {
            expected += script.len() as u32 + 1;
            let script = RefCell::new(script);
            world.spawn(task(priority, move || {
                let more_important = (1u64 << u32::from(priority).max(ceiling)) - 1;
                assert!(polls.get() == 0 || elsewhere.load(Ordering::Relaxed) & more_important == 0);
                polls.set(polls.get() + 1);
                let Some((bitmap, yields)) = script.borrow_mut().pop() else { return DONE };
                elsewhere.store(bitmap, Ordering::Relaxed);
                if yields { YIELDED } else { PENDING }
            }));
        }
        let mut total = 0;
        loop {
            polls.set(0);
            // SAFETY: everything is on one thread.
            let outcome = unsafe { world.executor.run_strictly(0, core::ptr::null_mut(), elsewhere, ceiling) };
            total += polls.get();
            if outcome == Outcome::Idle {
                prop_assert_eq!(world.bitmap(0), 0);
                // All blocked coroutines are woken; slots are numbered from 0.
                let woken = (0..64u64).filter(|index| world.executor.state(1 << 32 | index) == Ok(State::Blocked));
                let woken = woken.map(|index| world.executor.wake(1 << 32 | index)).collect::<Vec<_>>();
                if woken.is_empty() {
                    break;
                }
                continue;
            }
            prop_assert_eq!(outcome, Outcome::Outranked);
            let best = world.bitmap(0).trailing_zeros();
            prop_assert!(best < 64, "outranked with nothing ready");
            prop_assert!(elsewhere.load(Ordering::Relaxed) & ((1 << best.max(ceiling)) - 1) != 0);
            prop_assert!(polls.get() > 0, "no progress");
        }
        prop_assert_eq!(total, expected);
    }

    #[test]
    fn forged_cids_are_errors(cids in prop::collection::vec(any::<u64>(), 64), near in 0u32..512, generation in 0u32..4) {
        let world = World::new(1);
        let real = world.spawn(task(0, || PENDING));
        world.run(0);
        let forged = u64::from(generation) << 32 | u64::from(near);
        for cid in cids.into_iter().chain([forged, real | 1 << 31, real + (1 << 32), real ^ 1 << 63]) {
            if cid == real {
                continue;
            }
            prop_assert_eq!(world.executor.wake(cid), Err(Stale));
            prop_assert_eq!(world.executor.wake_here(cid, 0), Err(Stale));
            prop_assert_eq!(world.executor.cancel(cid), Err(Stale));
            prop_assert_eq!(world.executor.set_priority(cid, 1), Err(Stale));
            prop_assert_eq!(world.executor.resume(cid), Err(Stale));
            prop_assert_eq!(world.executor.state(cid), Err(Stale));
            prop_assert_eq!(world.executor.priority(cid), Err(Stale));
            prop_assert_eq!(world.executor.kind(cid), Err(Stale));
        }
        prop_assert_eq!(world.executor.state(real), Ok(State::Blocked));
        prop_assert_eq!(world.executor.priority(real), Ok(0));
    }
}
