//! Snapshots of the system's present state, for tools that show it: the `snapshot` call.

use alloc::sync::Arc;

use abi_unix::trace::stretch::{CAUSES, STRETCH_WORDS};
use abi_unix::trace::{HART_WORDS, HartSnapshot, LATENCY_WORDS, PROCESS_WORDS, ProcessSnapshot, subject};
use abi_unix::{Act, Counter, Errno};

use crate::observing::{counters, latency};
use crate::process::user::UserBuffer;
use crate::process::{self, Process, authority};
use crate::scheduling::{self, executor, stretch};

fn hart(number: usize) -> HartSnapshot {
    let (ready, running) = executor::words(number);
    let count = |counter| counters::of_hart(number, counter);
    HartSnapshot {
        hart: number as u64,
        ready,
        running,
        process: executor::visited_process(number).into(),
        traps: count(Counter::Traps),
        switches: count(Counter::Switches),
        user_interrupts: count(Counter::UserInterrupts),
        system_calls: count(Counter::SystemCalls),
    }
}

fn process(process: &Process) -> ProcessSnapshot {
    let scheduled = scheduling::describe(process);
    let (calls_in_flight, waiting) = process.waiting_calls();
    ProcessSnapshot {
        process: process.id.into(),
        parent: process.parent().into(),
        workers: process.live_workers() as u64,
        priority: scheduled.priority,
        ceiling: scheduled.ceiling,
        mode: scheduled.mode,
        ready: process.shared.ready_only(),
        running: process.shared.running_only(),
        calls_in_flight,
        cpu_ns: scheduled.cpu_ns,
        exhausted: scheduled.exhausted,
        boosts: scheduled.boosts,
        waiting,
        name: process.name(),
    }
}

/// Performs the `snapshot` call: writes as many records as fit, and returns their number.
pub(crate) fn take(caller: &Arc<Process>, which: u32, above: u32, buffer: UserBuffer) -> Result<usize, Errno> {
    authority::permit(caller, Act::TakeSnapshot)?;
    let mut done = 0;
    let mut write = |words: &[u64]| {
        for word in words {
            caller.copy_out(buffer.address() + done, &word.to_le_bytes())?;
            done += 8;
        }
        Ok::<(), Errno>(())
    };
    let mut count = 0;
    match which {
        subject::HARTS => {
            for number in 0..crate::harts().min(buffer.len() / (HART_WORDS * 8)) {
                write(&hart(number).to_words())?;
                count += 1;
            }
        }
        subject::PROCESSES => {
            let mut id = above;
            // A few at a time: the call does not wait, and looks at the calls of each.
            for _ in 0..(buffer.len() / (PROCESS_WORDS * 8)).min(32) {
                let Some(next) = process::next_after(id) else { break };
                id = next.id;
                write(&process(&next).to_words())?;
                count += 1;
            }
        }
        subject::LATENCIES => {
            let mut words = latency::of(above as usize).ok_or(Errno::ENODEV)?;
            if buffer.len() < LATENCY_WORDS * 8 {
                return Err(Errno::EINVAL);
            }
            words.try_for_each(|word| write(&[word]))?;
            count = 1;
        }
        subject::STRETCHES => {
            let mut room = buffer.len() / (STRETCH_WORDS * 8);
            for cause in (above as usize).saturating_add(1)..CAUSES {
                let ns = stretch::longest_ns(cause);
                if ns == 0 {
                    continue;
                }
                if room == 0 {
                    break;
                }
                room -= 1;
                write(&[cause as u64, ns])?;
                count += 1;
            }
        }
        subject::BEGIN_STRETCHES => stretch::begin_anew(),
        _ => return Err(Errno::EINVAL),
    }
    Ok(count)
}
