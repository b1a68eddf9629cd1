//! Interleavings of a few threads with at most three to five preemptions (each model names its bound), with the memory
//! model's freedom: run with
//! `RUSTFLAGS="--cfg loom" cargo test -p scheduler --profile models --lib loom`.
//!
//! Besides deadlocks and failed assertions, loom reports every [`Plain`](crate::sync::Plain) that two threads touch
//! without an order between them: links, free lists, header pointers, and the data that the tests hand from a waker to
//! a poll.

use core::alloc::Layout;
use core::ffi::c_void;
use std::alloc::{alloc, dealloc};
use std::sync::atomic::{AtomicUsize as RealAtomicUsize, Ordering as RealOrdering};

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::sync::Plain;
use crate::{
    CANCELLED_OUTCOME, CHUNK_BYTES, COMPLETED, DONE, Executor, Header, Hooks, Outcome, PENDING, ReadyWord, SHARDS,
    Sharing, Signals, Slot, SpawnError, State, StepOf, YIELDED, step_of,
};

/// An executor with its ready words, and a place to sleep for each worker.
struct World {
    executor: *mut Executor,
    ready: Box<[ReadyWord; SHARDS]>,
    slots: *mut c_void,
    beds: Box<[Bed; SHARDS]>,
}

#[derive(Default)]
struct Bed {
    notified: Mutex<bool>,
    changed: Condvar,
}

// SAFETY: the executor is Sync, the other fields are only read.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

unsafe extern "C" fn notify(beds: *mut c_void, worker: u32) {
    // SAFETY: the beds live as long as the executor.
    let bed = unsafe { &(*beds.cast::<[Bed; SHARDS]>())[worker as usize] };
    *bed.notified.lock().unwrap() = true;
    bed.changed.notify_one();
}

impl World {
    fn new() -> Arc<World> {
        World::sharing(Sharing::Eager)
    }

    fn sharing(sharing: Sharing) -> Arc<World> {
        World::with(sharing, None)
    }

    fn with(sharing: Sharing, worker: Option<unsafe extern "C" fn(*mut c_void) -> u32>) -> Arc<World> {
        let ready = Box::new(core::array::from_fn(|_| ReadyWord::default()));
        let beds: Box<[Bed; SHARDS]> = Box::default();
        let hooks = Hooks {
            context: core::ptr::from_ref(&*beds).cast_mut().cast(),
            notify: Some(notify),
            worker,
            sharing,
            ..Hooks::NONE
        };
        // SAFETY: fresh memory of the right layout; the ready words and beds live as long.
        unsafe {
            let executor = alloc(Layout::new::<Executor>()).cast::<Executor>();
            Executor::initialise(executor, &*ready, hooks);
            let slots = alloc(slots_layout()).cast::<c_void>();
            (*executor).add_slots(slots, 0).unwrap();
            Arc::new(World { executor, ready, slots, beds })
        }
    }

    fn executor(&self) -> &Executor {
        // SAFETY: it lives as long as the world.
        unsafe { &*self.executor }
    }

    fn add_workers(&self, count: usize) {
        for worker in 0..count {
            // SAFETY: no worker runs yet.
            unsafe { self.executor().add_worker(worker, Signals::NONE) };
        }
    }

    fn spawn(&self, task: &'static Task, hint: usize) -> u64 {
        loop {
            // SAFETY: the task is fresh and lives until `take_back`.
            match unsafe { self.executor().spawn(core::ptr::from_ref(task).cast::<Header>().cast_mut(), hint) } {
                Ok(cid) => return cid,
                // The shard with the free slots was locked.
                Err(SpawnError::NeedSlots) => thread::yield_now(),
            }
        }
    }

    fn run(&self, worker: usize) -> Outcome {
        // SAFETY: each test runs each worker on one thread.
        unsafe { self.executor().run(worker, core::ptr::null_mut()) }
    }

    /// Runs a worker, which sleeps while it is idle, until the tasks have ended. A lost wake is a deadlock.
    fn run_until_finished(&self, worker: usize, tasks: &[&'static Task]) {
        loop {
            assert_eq!(self.run(worker), Outcome::Idle);
            if tasks.iter().all(|task| task.is_finished()) {
                return;
            }
            let bed = &self.beds[worker];
            let mut notified = bed.notified.lock().unwrap();
            while !*notified {
                notified = bed.changed.wait(notified).unwrap();
            }
            *notified = false;
        }
    }

    fn ready(&self) -> u64 {
        self.ready.iter().fold(0, |all, word| all | word.0.load(Ordering::Relaxed))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: no thread uses it any more.
        unsafe {
            for slot in 0..crate::SLOTS_IN_CHUNK {
                core::ptr::drop_in_place(self.slots.cast::<Slot>().add(slot));
            }
            core::ptr::drop_in_place(self.executor);
            dealloc(self.executor.cast(), Layout::new::<Executor>());
            dealloc(self.slots.cast(), slots_layout());
        }
    }
}

fn slots_layout() -> Layout {
    Layout::from_size_align(CHUNK_BYTES, 64).unwrap()
}

/// A coroutine whose polls are counted.
#[repr(C)]
struct Task {
    header: Header,
    body: fn(&Task, usize) -> u32,
    polls: AtomicUsize,
    finished: AtomicUsize,
    outcome: RealAtomicUsize,
    /// Data passed from a waker to a poll.
    data: Plain<usize>,
}

// SAFETY: loom checks the other fields.
unsafe impl Sync for Task {}

unsafe extern "C" fn step(header: *mut Header, argument: *mut c_void, cid: u64) -> u32 {
    // SAFETY: the header is the first field of a task.
    let task = unsafe { &*header.cast::<Task>() };
    if let StepOf::Finish { outcome } = step_of(argument, cid) {
        finish(task, outcome);
        return DONE;
    }
    let before = task.polls.fetch_add(1, Ordering::Relaxed);
    (task.body)(task, before)
}

fn finish(task: &Task, outcome: u32) {
    task.outcome.store(outcome as usize, RealOrdering::Relaxed);
    // The block belongs to the test again: loom reports a scheduler that still reads it at these writes. SAFETY: loom
    // checks this claim.
    unsafe {
        task.header.slot.set(core::ptr::null());
        task.header.cid.set(0);
        task.header.poison();
    }
    assert_eq!(task.finished.fetch_add(1, Ordering::Release), 0, "finished twice");
}

impl Task {
    fn new(priority: u8, body: fn(&Task, usize) -> u32) -> &'static Task {
        Task::with(Header::new(step, 0, priority), body)
    }

    fn beginning_blocked(priority: u8, body: fn(&Task, usize) -> u32) -> &'static Task {
        Task::with(Header::new(step, 0, priority).blocked(), body)
    }

    fn with(header: Header, body: fn(&Task, usize) -> u32) -> &'static Task {
        Box::leak(Box::new(Task {
            header,
            body,
            polls: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            outcome: RealAtomicUsize::new(usize::MAX),
            data: Plain::new(0),
        }))
    }

    fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire) == 1
    }

    /// Frees a task, so that loom's objects do not accumulate.
    fn take_back(&'static self) -> (usize, u32) {
        assert!(self.is_finished());
        let result = (self.polls.load(Ordering::Relaxed), self.outcome.load(RealOrdering::Relaxed) as u32);
        // SAFETY: it came from `new`, and no thread uses it any more.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(self).cast_mut()) });
        result
    }
}

fn check(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 5_000;
    builder.check(test);
}

/// The body of a task that ends at its second poll, in which it reads the data that the waker wrote.
fn wait_for_data(task: &Task, polls: usize) -> u32 {
    if polls == 0 {
        return PENDING;
    }
    // SAFETY: the claim under test: the waker's write comes before the poll that its wake causes.
    assert_eq!(unsafe { task.data.get() }, 7);
    DONE
}

#[test]
fn a_wake_meets_the_first_poll() {
    check(5, || {
        let world = World::new();
        world.add_workers(1);
        // The wake may come before, during and after the first poll, so the poll must not read plain data. It reads a
        // relaxed flag.
        let task = Task::new(0, |task, _| if task.data_is_there() { DONE } else { PENDING });
        let cid = world.spawn(task, 0);
        let waker = thread::spawn({
            let world = world.clone();
            move || {
                task.outcome.store(1, RealOrdering::Relaxed);
                task.announce();
                let _ = world.executor().wake(cid);
            }
        });
        world.run_until_finished(0, &[task]);
        waker.join().unwrap();
        assert!(world.executor().wake(cid).is_err());
        assert_eq!(world.ready(), 0);
        task.take_back();
    });
}

impl Task {
    // Sets a relaxed flag, in the poll counter's upper bits.
    fn announce(&self) {
        self.polls.fetch_add(1 << 16, Ordering::Relaxed);
    }
    fn data_is_there(&self) -> bool {
        self.polls.load(Ordering::Relaxed) >> 16 != 0
    }
}

#[test]
fn a_wake_publishes_earlier_writes() {
    check(5, || {
        let world = World::new();
        world.add_workers(1);
        let task = Task::new(0, wait_for_data);
        let cid = world.spawn(task, 0);
        assert_eq!(world.run(0), Outcome::Idle);
        let waker = thread::spawn({
            let world = world.clone();
            move || {
                // SAFETY: it is blocked, so it is not polled before the wake.
                unsafe { task.data.set(7) };
                world.executor().wake(cid).unwrap();
            }
        });
        world.run_until_finished(0, &[task]);
        waker.join().unwrap();
        assert_eq!(task.take_back(), (2, COMPLETED));
    });
}

#[test]
fn a_coroutine_spawned_blocked_sees_writes_before_the_wake() {
    check(5, || {
        let world = World::new();
        world.add_workers(1);
        let task = Task::beginning_blocked(0, |task, _| {
            // SAFETY: the claim under test: there is no poll before the wake.
            assert_eq!(unsafe { task.data.get() }, 7);
            DONE
        });
        let spawner = thread::spawn({
            let world = world.clone();
            move || {
                let cid = world.spawn(task, 0);
                // SAFETY: as above.
                unsafe { task.data.set(7) };
                world.executor().wake(cid).unwrap();
            }
        });
        world.run_until_finished(0, &[task]);
        spawner.join().unwrap();
        assert_eq!(task.take_back(), (1, COMPLETED));
    });
}

#[test]
fn a_wake_during_a_poll_hands_over_too() {
    check(3, || {
        let world = World::new();
        world.add_workers(1);
        let task = Task::new(0, wait_for_data);
        let cid = world.spawn(task, 0);
        let waker = thread::spawn({
            let world = world.clone();
            move || {
                // SAFETY: the first poll does not access it, and the second comes after a wake.
                unsafe { task.data.set(7) };
                world.executor().wake(cid).unwrap();
            }
        });
        world.run(0);
        waker.join().unwrap();
        world.run(0);
        if !task.is_finished() {
            // The wake came before the first poll and was answered by it.
            world.executor().wake(cid).unwrap();
            world.run(0);
        }
        assert_eq!(task.take_back(), (2, COMPLETED));
    });
}

#[test]
fn the_next_worker_sees_writes_of_the_last_poll() {
    check(3, || {
        let world = World::new();
        world.add_workers(2);
        let task = Task::new(0, |task, polls| {
            // SAFETY: the claim under test: one poll comes after the other, on any worker.
            unsafe { task.data.set(task.data.get() + 1) };
            if polls == 0 { PENDING } else { DONE }
        });
        let cid = world.spawn(task, 0);
        let other = thread::spawn({
            let world = world.clone();
            move || {
                world.executor().wake(cid).unwrap();
                world.run(1);
            }
        });
        world.run(0);
        other.join().unwrap();
        if !task.is_finished() {
            // The wake came before the first poll and was answered by it.
            world.executor().wake(cid).unwrap();
            world.run(0);
        }
        assert_eq!(task.take_back(), (2, COMPLETED));
    });
}

#[test]
fn two_wakes_are_one_or_two_polls() {
    check(3, || {
        let world = World::new();
        world.add_workers(1);
        let task = Task::new(0, |_, _| PENDING);
        let cid = world.spawn(task, 0);
        assert_eq!(world.run(0), Outcome::Idle);
        let wakers = [(); 2].map(|()| {
            let world = world.clone();
            thread::spawn(move || world.executor().wake(cid).unwrap())
        });
        world.run(0);
        for waker in wakers {
            waker.join().unwrap();
        }
        assert_eq!(world.run(0), Outcome::Idle);
        let polls = task.polls.load(Ordering::Relaxed);
        assert!(polls == 2 || polls == 3, "{polls}");
        assert_eq!(world.executor().state(cid), Ok(State::Blocked));
        world.executor().cancel(cid).unwrap();
        world.run(0);
        assert_eq!(task.take_back().1, CANCELLED_OUTCOME);
    });
}

#[test]
fn an_idle_worker_hears_of_work_in_another_shard() {
    check(3, || {
        let world = World::new();
        world.add_workers(2);
        let task = Task::new(0, |_, _| DONE);
        let worker = thread::spawn({
            let world = world.clone();
            // No thread runs worker 0, so worker 1 must be notified.
            move || world.run_until_finished(1, &[task])
        });
        world.spawn(task, 0);
        worker.join().unwrap();
        assert_eq!(task.take_back(), (1, COMPLETED));
    });
}

#[test]
fn a_coroutine_left_to_a_busy_worker_is_run() {
    check(4, || {
        let world = World::sharing(Sharing::Lazy);
        world.add_workers(2);
        // Worker 1 sleeps and does not run again.
        assert_eq!(world.run(1), Outcome::Idle);
        let (first, second) = (Task::new(1, |_, _| DONE), Task::new(1, |_, _| DONE));
        world.spawn(first, 0);
        let spawner = thread::spawn({
            let world = world.clone();
            move || world.spawn(second, 0)
        });
        world.run_until_finished(0, &[first, second]);
        spawner.join().unwrap();
        first.take_back();
        second.take_back();
    });
}

/// Makes a world with lazy sharing, in which worker 0 is the caller.
fn world_of_worker_0() -> Arc<World> {
    unsafe extern "C" fn worker_0(_: *mut c_void) -> u32 {
        0
    }
    World::with(Sharing::Lazy, Some(worker_0))
}

#[test]
fn a_coroutine_moved_to_the_waking_worker_is_seen_by_all() {
    check(3, || {
        let world = world_of_worker_0();
        world.add_workers(2);
        let task = Task::new(1, wait_for_data);
        let cid = world.spawn(task, 1);
        assert_eq!(world.run(1), Outcome::Idle);
        // Worker 1 sleeps, or wakes up for another reason, or another thread changes the priority.
        let other = thread::spawn({
            let world = world.clone();
            move || {
                let _ = world.executor().set_priority(cid, 3);
                world.run(1);
            }
        });
        // SAFETY: it is blocked, so it is not polled before the wake.
        unsafe { task.data.set(7) };
        world.executor().wake(cid).unwrap();
        world.run(0);
        other.join().unwrap();
        assert!(task.is_finished(), "no worker has polled it");
        assert_eq!(task.take_back(), (2, COMPLETED));
        assert_eq!(world.ready(), 0);
    });
}

#[test]
fn a_coroutine_moved_to_the_waking_worker_can_be_cancelled_and_woken_by_others() {
    check(3, || {
        let world = world_of_worker_0();
        world.add_workers(2);
        let task = Task::new(1, |_, _| PENDING);
        let cid = world.spawn(task, 1);
        assert_eq!(world.run(1), Outcome::Idle);
        let other = thread::spawn({
            let world = world.clone();
            move || {
                let _ = world.executor().cancel(cid);
                world.run(1)
            }
        });
        let _ = world.executor().wake(cid);
        world.run(0);
        other.join().unwrap();
        world.run(0);
        assert_eq!(task.take_back().1, CANCELLED_OUTCOME);
        assert_eq!(world.ready(), 0);
    });
}

#[test]
fn a_worker_that_is_added_late_is_looked_at() {
    check(3, || {
        let world = World::new();
        // SAFETY: it does not run yet.
        unsafe { world.executor().add_worker(0, Signals::NONE) };
        let task = Task::new(0, |_, _| DONE);
        let worker = thread::spawn({
            let world = world.clone();
            move || world.run_until_finished(0, &[task])
        });
        // SAFETY: worker 1 never runs.
        unsafe { world.executor().add_worker(1, Signals::NONE) };
        world.spawn(task, 1);
        worker.join().unwrap();
        assert_eq!(task.take_back(), (1, COMPLETED));
    });
}

#[test]
fn two_workers_share_two_coroutines() {
    check(3, || {
        let world = World::new();
        world.add_workers(2);
        let body = |_: &Task, polls: usize| if polls == 0 { YIELDED } else { DONE };
        let (first, second) = (Task::new(0, body), Task::new(1, body));
        world.spawn(first, 0);
        world.spawn(second, 0);
        let worker = thread::spawn({
            let world = world.clone();
            move || world.run(1)
        });
        assert_eq!(world.run(0), Outcome::Idle);
        assert_eq!(worker.join().unwrap(), Outcome::Idle);
        assert_eq!(world.ready(), 0);
        assert_eq!(first.take_back(), (2, COMPLETED));
        assert_eq!(second.take_back(), (2, COMPLETED));
    });
}

#[test]
fn a_priority_that_changes_during_a_wake_is_the_one_it_is_linked_at() {
    check(5, || {
        let world = World::new();
        world.add_workers(1);
        let task = Task::new(1, |_, polls| if polls == 0 { PENDING } else { DONE });
        let cid = world.spawn(task, 0);
        world.run(0);
        let setter = thread::spawn({
            let world = world.clone();
            move || world.executor().set_priority(cid, 0).unwrap()
        });
        world.executor().wake(cid).unwrap();
        setter.join().unwrap();
        assert_eq!(world.ready(), 1);
        world.run(0);
        assert_eq!(world.ready(), 0);
        assert_eq!(task.take_back(), (2, COMPLETED));
    });
}

#[test]
fn a_priority_that_changes_during_a_poll_is_the_one_it_is_requeued_at() {
    check(5, || {
        let world = World::new();
        world.add_workers(1);
        let task = Task::new(1, |_, polls| if polls == 0 { YIELDED } else { DONE });
        let cid = world.spawn(task, 0);
        let setter = thread::spawn({
            let world = world.clone();
            move || world.executor().set_priority(cid, 0).unwrap()
        });
        // SAFETY: the only run of this worker.
        assert_eq!(unsafe { world.executor().run_one(0, core::ptr::null_mut()) }, Outcome::Ran);
        setter.join().unwrap();
        assert_eq!(world.ready(), 1);
        world.run(0);
        assert_eq!(world.ready(), 0);
        assert_eq!(task.take_back(), (2, COMPLETED));
    });
}

#[test]
fn a_coroutine_moved_to_another_worker_is_woken_once_and_has_its_last_priority() {
    check(3, || {
        let world = World::new();
        world.add_workers(2);
        let task = Task::new(1, |_, polls| if polls == 0 { PENDING } else { DONE });
        let cid = world.spawn(task, 0);
        world.run(0);
        let others = [
            thread::spawn({
                let world = world.clone();
                move || world.executor().set_priority(cid, 0).unwrap()
            }),
            thread::spawn({
                let world = world.clone();
                move || world.executor().wake_here(cid, 0).unwrap()
            }),
        ];
        world.executor().wake_here(cid, 1).unwrap();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(world.ready(), 1);
        world.run(1);
        assert_eq!(world.ready(), 0);
        assert_eq!(task.take_back(), (2, COMPLETED));
    });
}

#[test]
fn a_coroutine_moved_to_another_worker_sees_earlier_writes() {
    check(3, || {
        let world = World::new();
        world.add_workers(2);
        let task = Task::new(0, wait_for_data);
        let cid = world.spawn(task, 0);
        world.run(0);
        let waker = thread::spawn({
            let world = world.clone();
            move || {
                // SAFETY: it is blocked, so it is not polled before the wake.
                unsafe { task.data.set(7) };
                world.executor().wake_here(cid, 1).unwrap();
            }
        });
        world.run_until_finished(1, &[task]);
        waker.join().unwrap();
        assert_eq!(task.take_back(), (2, COMPLETED));
    });
}

#[test]
fn a_cancellation_meets_a_wake_that_brings() {
    check(3, || {
        let world = World::new();
        world.add_workers(2);
        let task = Task::new(0, |_, polls| if polls < 2 { PENDING } else { DONE });
        let cid = world.spawn(task, 0);
        world.run(0);
        let others = [
            thread::spawn({
                let world = world.clone();
                move || {
                    let _ = world.executor().wake_here(cid, 1);
                }
            }),
            thread::spawn({
                let world = world.clone();
                move || world.executor().cancel(cid).unwrap()
            }),
        ];
        world.run(1);
        for other in others {
            other.join().unwrap();
        }
        // The thread that made the coroutine ready chose the worker that it notified, so both run.
        world.run(1);
        world.run(0);
        let (polls, outcome) = task.take_back();
        assert!(polls <= 2);
        assert_eq!(outcome, CANCELLED_OUTCOME);
    });
}

#[test]
fn no_worker_reads_a_block_that_was_given_back() {
    check(5, || {
        let world = World::new();
        world.add_workers(1);
        let task = Task::new(1, |_, _| DONE);
        let cid = world.spawn(task, 0);
        let other = thread::spawn({
            let world = world.clone();
            move || {
                let _ = world.executor().set_priority(cid, 0);
                let _ = world.executor().state(cid);
                let _ = world.executor().wake(cid);
                let _ = world.executor().cancel(cid);
            }
        });
        world.run(0);
        other.join().unwrap();
        world.run(0);
        assert!(task.is_finished());
        assert!(world.executor().wake(cid).is_err());
        assert_eq!(world.ready(), 0);
        task.take_back();
    });
}

#[test]
fn no_worker_reads_a_block_that_was_stolen_and_given_back() {
    check(3, || {
        let world = World::new();
        world.add_workers(2);
        let task = Task::new(1, |_, _| DONE);
        let cid = world.spawn(task, 0);
        let thief = thread::spawn({
            let world = world.clone();
            move || world.run(1)
        });
        let _ = world.executor().set_priority(cid, 0);
        let _ = world.executor().state(cid);
        thief.join().unwrap();
        world.run(0);
        assert_eq!(task.take_back(), (1, COMPLETED));
    });
}

#[test]
fn a_cancellation_meets_a_wake_and_a_poll() {
    check(3, || {
        let world = World::new();
        world.add_workers(1);
        let task = Task::new(0, |_, polls| if polls < 2 { PENDING } else { DONE });
        let cid = world.spawn(task, 0);
        world.run(0);
        let others = [
            thread::spawn({
                let world = world.clone();
                move || {
                    let _ = world.executor().wake(cid);
                }
            }),
            thread::spawn({
                let world = world.clone();
                move || world.executor().cancel(cid).unwrap()
            }),
        ];
        world.run_until_finished(0, &[task]);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(world.run(0), Outcome::Idle);
        let (polls, outcome) = task.take_back();
        assert!(polls <= 2);
        assert_eq!(outcome, CANCELLED_OUTCOME);
    });
}

#[test]
fn slots_go_round_between_two_spawners() {
    check(3, || {
        let world = World::new();
        world.add_workers(2);
        let body = |_: &Task, _: usize| DONE;
        let tasks = [Task::new(0, body), Task::new(0, body)];
        let spawner = thread::spawn({
            let world = world.clone();
            move || world.spawn(tasks[0], 1)
        });
        let second = world.spawn(tasks[1], 0);
        let first = spawner.join().unwrap();
        assert_ne!(first, second);
        world.run(0);
        for task in tasks {
            assert_eq!(task.take_back(), (1, COMPLETED));
        }
        // Both slots can be used again, with new cids.
        let tasks = [Task::new(0, body), Task::new(0, body)];
        for task in tasks {
            let cid = world.spawn(task, 0);
            assert!(cid != first && cid != second);
        }
        assert!(world.executor().wake(first).is_err());
        world.run(1);
        for task in tasks {
            task.take_back();
        }
    });
}
