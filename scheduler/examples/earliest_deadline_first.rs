//! A second scheduling policy: earliest deadline first, beside the order that the image ships.
//!
//! Three periodic jobs share one worker in virtual time; each poll is one unit of work. Together they need
//! the whole processor: earliest deadline first meets every deadline, turns in order of arrival do not. Prints the
//! schedule of both:
//!
//! ```text
//! cargo run -p scheduler --example earliest_deadline_first
//! ```

use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::ffi::c_void;

use scheduler::{
    CHUNK_BYTES, DONE, Executor, Fifo, Header, Hooks, Order, Outcome, PENDING, ReadyWord, SHARDS, Signals, StepOf,
    YIELDED, step_of,
};

/// The policy: the coroutine whose deadline is nearest runs first.
enum EarliestDeadlineFirst {}

impl Order for EarliestDeadlineFirst {
    /// Absolute deadline in units of virtual time.
    type Key = u64;

    fn precedes(newer: u64, older: u64) -> bool {
        newer < older
    }
}

/// Units of virtual time that are simulated: three times the common multiple of all periods.
const END: u64 = 24;
/// (period, units of work in each period); a job is to be done before its next period begins.
const JOBS: [(u64, u64); 3] = [(2, 1), (8, 2), (8, 2)];

/// A periodic coroutine. Its control block comes first, as the scheduler requires.
#[repr(C)]
struct Job<O: Order> {
    header: Header<O>,
    name: char,
    period: u64,
    work: u64,
    remaining: Cell<u64>,
    missed: Cell<usize>,
    key: fn(u64) -> O::Key,
}

unsafe extern "C" fn step<O: Order>(header: *mut Header<O>, argument: *mut c_void, cid: u64) -> u32 {
    let StepOf::Poll { frame, .. } = step_of(argument, cid) else { return DONE };
    // SAFETY: the header is the first field of a job, which is never freed; `frame` is the schedule, as `simulate`
    // passes to `run_one`.
    let (job, schedule) = unsafe { (&*header.cast::<Job<O>>(), &mut *frame.cast::<String>()) };
    schedule.push(job.name);
    job.remaining.set(job.remaining.get() - 1);
    match job.remaining.get() {
        0 if schedule.len() as u64 >= END => DONE,
        0 => PENDING,
        _ => YIELDED,
    }
}

/// Runs the jobs under an order. Returns the schedule, a letter for each unit of time, and the missed deadlines.
fn simulate<O: Order>(key: fn(u64) -> O::Key) -> (String, usize) {
    let ready: &'static [ReadyWord; SHARDS] = Box::leak(Box::new([const { ReadyWord::new() }; SHARDS]));
    // SAFETY: fresh memory of the right layout and size that is never freed; one thread uses it.
    let executor = unsafe {
        let executor = alloc_zeroed(Layout::new::<Executor<O>>()).cast::<Executor<O>>();
        Executor::initialise(executor, ready, Hooks::NONE);
        let slots = alloc_zeroed(Layout::from_size_align(CHUNK_BYTES, 16).expect("a page is a valid layout"));
        (*executor).add_slots(slots.cast(), 0).expect("an executor without slots takes some");
        (*executor).add_worker(0, Signals::NONE);
        &*executor
    };
    let jobs: Vec<(u64, &'static Job<O>)> = JOBS
        .iter()
        .zip('a'..)
        .map(|(&(period, work), name)| {
            let job: &'static Job<O> = Box::leak(Box::new(Job {
                header: Header::new(step::<O>, 0, 0).blocked(),
                name,
                period,
                work,
                remaining: Cell::new(0),
                missed: Cell::new(0),
                key,
            }));
            // SAFETY: the header is fresh, and the job is never freed.
            let cid = unsafe { executor.spawn((&raw const job.header).cast_mut(), 0) };
            (cid.expect("a chunk has slots for all jobs"), job)
        })
        .collect();
    let mut schedule = String::new();
    for now in 0..END {
        for (cid, job) in jobs.iter().filter(|(_, job)| now % job.period == 0) {
            if job.remaining.get() == 0 {
                // SAFETY: the coroutine is blocked.
                unsafe { job.header.set_key((job.key)(now + job.period)) };
                executor.wake(*cid).expect("a job lives as long as the simulation");
            } else {
                job.missed.set(job.missed.get() + 1);
            }
            job.remaining.set(job.remaining.get() + job.work);
        }
        // SAFETY: there is one thread, and the frame has the type that `poll` expects.
        if unsafe { executor.run_one(0, (&raw mut schedule).cast()) } == Outcome::Idle {
            schedule.push('.');
        }
    }
    (schedule, jobs.iter().map(|(_, job)| job.missed.get()).sum())
}

fn main() {
    for (name, (schedule, missed)) in [
        ("order of arrival", simulate::<Fifo>(|_| ())),
        ("earliest deadline first", simulate::<EarliestDeadlineFirst>(|deadline| deadline)),
    ] {
        println!("{name:<24} {schedule}  deadlines missed: {missed}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_deadline_first_meets_a_deadline_that_arrival_order_misses() {
        assert!(simulate::<Fifo>(|_| ()).1 > 0);
        let (schedule, missed) = simulate::<EarliestDeadlineFirst>(|deadline| deadline);
        assert_eq!(missed, 0);
        assert_eq!(schedule.len() as u64, END);
    }
}
