//! Traces on one thread, and random histories against a model that is too simple to be wrong.

use core::cell::{Cell, RefCell};
use core::ffi::c_void;
use std::alloc::{Layout, alloc_zeroed};
use std::collections::VecDeque;

use proptest::prelude::*;

use crate::sync::{AtomicU64, Ordering};
use crate::*;

/// An executor in memory of its own, never freed.
struct World {
    executor: &'static Executor,
    ready: &'static [ReadyWord; SHARDS],
}

thread_local! {
    /// What hooks and polls have noted.
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
    // SAFETY: no spawn of this header is going on.
    log(format!("resume {:x}", unsafe { (*header).cid() }));
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
            // SAFETY: nobody runs.
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
}

/// A coroutine whose poll is a closure.
#[repr(C)]
struct Task {
    header: Header,
    body: Box<dyn Fn() -> u32>,
    finished: Cell<Option<u32>>,
}

unsafe extern "C" fn poll(header: *mut Header, _: *mut c_void) -> u32 {
    // SAFETY: the header is the first field of a task.
    (unsafe { &*header.cast::<Task>() }.body)()
}

unsafe extern "C" fn finish(header: *mut Header, outcome: u32) {
    // SAFETY: as above.
    let task = unsafe { &*header.cast::<Task>() };
    assert_eq!(task.finished.replace(Some(outcome)), None, "finished twice");
}

fn task(priority: u8, body: impl Fn() -> u32 + 'static) -> &'static Task {
    Box::leak(Box::new(Task {
        header: Header::new(poll, finish, 0, priority),
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
    let world = World::new(2);
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
fn lazy_sharing_brings_what_sleeps_elsewhere_to_the_worker_that_wakes_it() {
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
        "what is more important is not kept waiting"
    );
    assert_eq!(world.run(1), Outcome::Idle);
    assert_eq!(
        wake_in_a_poll_of_0(&[0, 2]),
        ["notify 1", "woken", "polled by 0", "polled by 0"],
        "the second one is too many"
    );
    assert_eq!(world.run(1), Outcome::Idle);
    // Nor what is less important: the poll may go on for ever with turns of its own.
    executor.set_priority(woken[0], 9).unwrap();
    assert_eq!(wake_in_a_poll_of_0(&[0]), ["notify 1", "woken", "polled by 0"]);
    executor.set_priority(woken[0], 5).unwrap();
    assert_eq!(world.run(1), Outcome::Idle);
    take_log();
    // A worker in a poll may wait in it. Who is no worker does not look after it, and calls another one.
    world.spawn(task(5, move || {
        CALLER.set(u32::MAX);
        take_log();
        executor.wake(woken[0]).unwrap();
        log("woken");
        CALLER.set(0);
        DONE
    }));
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(take_log(), ["notify 1", "woken", "polled by 0"]);
    assert_eq!(world.run(1), Outcome::Idle);
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
    // Somebody who is no worker.
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
    // Worker 0 does not run yet, so worker 1 hears of it, once.
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
fn what_is_woken_here_comes_here() {
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
    // One that does not wait stays where it is.
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
    // It goes away instead of looking.
    world.executor.remove_worker(1);
    assert_eq!(take_log(), ["notify 0"]);
    assert_eq!(world.run(0), Outcome::Idle);
    assert_eq!(left.finished.get(), Some(COMPLETED));
    // And what is woken there later is found too.
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
fn a_strict_worker_gives_way_to_what_is_more_important_elsewhere() {
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
    // Whoever was chosen in spite of it makes progress, by one poll.
    assert_eq!(strictly(0), Outcome::Outranked);
    assert_eq!(take_log(), ["4"]);
    // What another worker has ready counts, since this one could take it.
    world.spawn_at(1, note("other 1", 1));
    assert_eq!(strictly(0), Outcome::Outranked);
    assert_eq!(take_log(), ["other 1"]);
    elsewhere.store(0, Ordering::Relaxed);
    assert_eq!(strictly(0), Outcome::Idle);
    assert_eq!(take_log(), ["4", "4", "5"]);
    // Nothing outranks a worker that has nothing to do.
    elsewhere.store(1, Ordering::Relaxed);
    assert_eq!(strictly(0), Outcome::Idle);
    // Beyond its ceiling nothing of it counts.
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
        // What an interruption would do, on the interrupted stack: the nested calls stand for another one.
        // SAFETY: this is worker 0, inside a poll.
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
        // Another worker cannot take it, and does not wait for it either.
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
fn a_suspended_coroutine_goes_before_its_equals_and_holds_up_nobody_elsewhere() {
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
        // SAFETY: as above, and in none now.
        assert_eq!(unsafe { executor.suspend(0) }, None);
        executor.resume(cid).unwrap();
        // What stands behind it is not for somebody who has better, and is for somebody who has not.
        // SAFETY: the tasks are fresh and never freed.
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
    // A chunk as it is after four thousand million uses of its first slot.
    let task_before = task(0, || DONE);
    let cid = world.spawn(task_before);
    world.run(0);
    // SAFETY: everything is on one thread; the slot is free.
    unsafe {
        let slot = &*task_before.header.slot.get();
        slot.word.store(crate::state::free(cid as u32, u32::MAX), Ordering::Relaxed);
    }
    let last = world.spawn(task(0, || DONE));
    assert_eq!(last, u64::from(u32::MAX) << 32 | u64::from(cid as u32));
    world.run(0);
    assert_eq!(world.executor.wake(last), Err(Stale));
    let next = world.spawn(task(0, || DONE));
    assert_ne!(next as u32, cid as u32, "the slot is not used again");
    world.run(0);
}

// ---- the model ----

/// What a history is made of. Numbers choose among the coroutines there are.
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
    /// A poll: what the coroutine does to itself during it, and its answer.
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

/// Lists of ready coroutines by shard, in the order of their arrival; the rest in each coroutine.
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

    /// The coroutine that a worker takes now.
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
    // Few priorities and few coroutines, so that histories meet.
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
    /// Who was polled.
    static POLLED: Cell<Option<usize>> = const { Cell::new(None) };
    /// What whoever is polled next does, and answers.
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
                    Ok(State::Suspended) => unreachable!("nobody suspends here"),
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
        // Polls of the run that goes on.
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
                // Those who wait are woken, all of them; slots are numbered from 0.
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
