//! The watchdog for processes that make no progress: one line in the log when a process has stood still for ten
//! seconds.
//!
//! A process that uses processor time is never reported, since nobody can tell honest work in a loop from a loop
//! without an end. There are two kinds of standstill, and honest work is neither:
//!
//! * **Held up**: the process says that coroutines are ready, and none of its workers has used any processor time: all
//!   of them wait in calls that keep their worker, and nothing else can run the coroutines. Processes that are stopped,
//!   have used up their budget, or wait for a hart behind more important ones are meant to stand still.
//! * **Asleep for good**: nothing is ready, all workers sleep without a deadline, no call is in flight and no timer is
//!   set, so that no time, file or child of the process will wake one, and it has neither a receiver of user interrupts
//!   nor a handler of signals. Its coroutines wait for each other, or for nothing.
//!
//! A standstill is reported once. The process's words about its coroutines are a claim; a false one gets a false line
//! about itself.

use alloc::sync::Arc;

use abi_queue::Priority;

use crate::observing::positions;
use crate::process::sightings::Standstill;
use crate::process::{Process, table};
use crate::scheduling::{self, Pace, executor};

/// Time between two looks.
const LOOK_NS: u64 = 5_000_000_000;

/// Starts the watchdog.
pub(crate) fn start() {
    executor::spawn_for_kernel(Priority::HIGHEST, watch());
}

async fn watch() {
    loop {
        positions::pause(LOOK_NS).await;
        let (mut walk, mut pace) = (table::Walk::above(0), Pace::default());
        while let Some(process) = walk.next_at_pace(&mut pace).await {
            look(&process);
            pace.step().await;
        }
    }
}

/// Looks at a process, and reports a standstill.
fn look(process: &Arc<Process>) {
    // The time of thousands of threads is added up for a process that stands still alone.
    let found = standstill_of(process).map(|kind| (kind, process.cpu_ticks()));
    let kind = process.sightings.lock().add(found);
    match kind {
        Some(Standstill::HeldUp(priority)) => process.lines.print(format_args!(
            "watchdog: coroutines of priority {} have been ready for 10 s, and no worker runs: all wait in calls",
            priority.number()
        )),
        Some(Standstill::AsleepForGood) => process.lines.print(format_args!(
            "watchdog: all workers have slept for 10 s, with no call in flight: its coroutines wait for each other"
        )),
        None => {}
    }
}

/// Returns the kind of standstill in which a process is at this moment, if it is in one. Moments of honest work look
/// the same.
fn standstill_of(process: &Arc<Process>) -> Option<Standstill> {
    if process.has_ended() || process.signals.are_stopped() || scheduling::has_no_claim(process) {
        return None;
    }
    let (ready, running) = (process.shared.ready_only(), process.shared.running_only());
    if let Some(priority) = Priority::most_important_in(ready) {
        return process.all_workers_wait().then_some(Standstill::HeldUp(priority));
    }
    let sleeps = running == 0
        && process.all_workers_sleep_without_limit()
        && !process.has_calls_in_flight()
        && process.timers.are_at_rest()
        && !process.signals.have_handlers()
        && process.receivers.lock().iter().all(Option::is_none);
    sleeps.then_some(Standstill::AsleepForGood)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{TimeSpec, signal};

    use super::*;
    use crate::process::sightings::LOOKS;
    use crate::testing::{Program, run, simulation};

    /// Looks at a child that sleeps as its closure says, until it would be reported, and returns whether it was.
    fn is_reported(program: &mut Program, child: impl FnOnce(&mut Program) + Send + 'static) -> bool {
        let child = program.spawn(child).unwrap();
        program.sleep_ns(1_000_000);
        let process = table::find(child as u32).unwrap();
        let before = simulation().output().len();
        for _ in 0..=LOOKS {
            look(&process);
        }
        let is_reported = simulation().output()[before..].contains("watchdog: ");
        assert_eq!(program.call(SystemCall::Kill, [child, signal::KILL as usize]), Ok(0));
        program.wait_for(child).unwrap();
        is_reported
    }

    fn sleep(program: &mut Program) {
        let _ = program.call(SystemCall::WorkerWait, [0, usize::MAX]);
    }

    #[test]
    fn a_process_sleeps_for_good_if_nothing_of_it_is_in_flight() {
        run(|program| {
            assert!(is_reported(program, sleep));
            assert!(!is_reported(program, |program| {
                let time = program.store(&TimeSpec::from_ns(1 << 60).to_bytes());
                assert_eq!(program.submit(SystemCall::Sleep, [time, 0], 5), None);
                sleep(program);
            }));
            assert!(!is_reported(program, |program| {
                let _ = program.call(SystemCall::WorkerWait, [0, usize::MAX >> 2]);
            }));
            assert!(!is_reported(program, |program| {
                let once = program.store(&[0u64, 0, 1 << 30, 0].map(u64::to_le_bytes).concat());
                assert_eq!(program.call(SystemCall::SetIntervalTimer, [0, once, 0]), Ok(0));
                sleep(program);
            }));
            assert!(!is_reported(program, |program| {
                let action = program.store(&[1u64 << 16, 0, 0].map(u64::to_le_bytes).concat());
                assert_eq!(program.call(SystemCall::SignalAction, [signal::HUP as usize, action, 0, 8]), Ok(0));
                sleep(program);
            }));
            assert!(!is_reported(program, |program| {
                program.call(SystemCall::InterruptReceiver, [1]).unwrap();
                sleep(program);
            }));
            assert!(!is_reported(program, |program| {
                program.add_worker(|program| program.sleep_ns(usize::MAX >> 1)).unwrap();
                sleep(program);
            }));
            assert!(!is_reported(program, |program| program.sleep_ns(usize::MAX >> 1)), "a call waits for its time");
            assert!(!is_reported(program, |program| {
                let own = program.id as usize;
                let _ = program.call(SystemCall::Kill, [own, signal::STOP as usize]);
                sleep(program);
            }));
        });
    }

    #[test]
    fn a_process_is_held_up_whose_workers_wait_while_it_says_that_coroutines_are_ready() {
        run(|program| {
            assert!(is_reported(program, |program| {
                let page = program.process().shared.address(abi_queue::pages::PROCESS_PAGE_OFFSET);
                program.write(page, &(1u64 << 9).to_le_bytes());
                program.sleep_ns(usize::MAX >> 1);
            }));
            assert!(simulation().output().contains("coroutines of priority 9 have been ready"));
        });
    }
}
