//! Snapshots of the system's present state, for tools that show it: the `snapshot` call.

use alloc::sync::Arc;

use abi_unix::trace::stretch::{CAUSES, STRETCH_WORDS};
use abi_unix::trace::{HART_WORDS, HartSnapshot, LATENCY_WORDS, PROCESS_WORDS, ProcessSnapshot, subject};
use abi_unix::{Act, Counter, Errno};

use crate::observing::{counters, latency, positions};
use crate::process::user::UserBuffer;
use crate::process::{Process, authority, table};
use crate::scheduling::{attributes, executor, stretch};

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
    let scheduled = attributes::describe(process);
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
#[doc(alias = "procfs")]
#[doc(alias = "sysrq")]
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
            for number in 0..crate::machine::harts().min(buffer.len() / (HART_WORDS * 8)) {
                write(&hart(number).to_words())?;
                count += 1;
            }
        }
        subject::PROCESSES => {
            let mut id = above;
            // A few at a time: the call does not wait, and looks at the calls of each.
            for _ in 0..(buffer.len() / (PROCESS_WORDS * 8)).min(32) {
                let Some(next) = table::next_after(id) else { break };
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
        subject::POSITIONS => positions::request(above)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use abi_queue::Priority;
    use abi_unix::SystemCall;
    use abi_unix::types::TimeSpec;

    use super::*;
    use crate::testing::{OF_THE_FIRST, run};

    fn first() -> Arc<Process> {
        table::find(crate::process::FIRST).unwrap()
    }

    fn buffer(length: usize) -> UserBuffer {
        UserBuffer::new(OF_THE_FIRST, length).unwrap()
    }

    fn words<const N: usize>(at: usize) -> [u64; N] {
        let mut bytes = vec![0; N * 8];
        first().copy_in(OF_THE_FIRST + at * N * 8, &mut bytes).unwrap();
        core::array::from_fn(|index| u64::from_le_bytes(bytes[8 * index..][..8].try_into().unwrap()))
    }

    #[test]
    fn processes_are_described_as_they_are() {
        run(|program| {
            let child = program.spawn_given(0, 20, |program| {
                let time = program.store(&TimeSpec::from_ns(1 << 40).to_bytes());
                for (token, priority) in [(1, 3), (2, 3), (3, 7), (4, 50)] {
                    program.submit_at(Priority::saturating(priority), SystemCall::Sleep, [time, 0], token);
                }
                program.add_worker(|program| program.sleep_ns(1 << 40)).unwrap();
                program.sleep_ns(1 << 40);
            });
            let child = child.unwrap();
            program.sleep_ns(1_000_000);
            let count = take(&first(), subject::PROCESSES, child as u32 - 1, buffer(PROCESS_WORDS * 8)).unwrap();
            assert_eq!(count, 1);
            let found = ProcessSnapshot::from_words(words(0));
            assert_eq!((found.process, found.parent), (child as u64, program.id.into()));
            assert_eq!((found.workers, found.priority, found.calls_in_flight), (2, 20, 4));
            let waiting: Vec<_> = (0..8).map(|priority| found.waiting_at(priority)).collect();
            assert_eq!(waiting, [0, 0, 0, 2, 0, 0, 0, 2]);
            assert_eq!(found.name, abi_unix::trace::name_words(b"test"));
            assert!(found.cpu_ns > 0);
            // All of them, in the order of their numbers, and as many as fit.
            let all = take(&first(), subject::PROCESSES, 0, buffer(PROCESS_WORDS * 8 * 10)).unwrap();
            let numbers: Vec<u64> = (0..all).map(|at| ProcessSnapshot::from_words(words(at)).process).collect();
            assert_eq!(numbers, [1, program.id.into(), child as u64]);
            assert_eq!(take(&first(), subject::PROCESSES, 0, buffer(PROCESS_WORDS * 16 + 7)), Ok(2));
            assert_eq!(take(&first(), subject::PROCESSES, child as u32, buffer(PROCESS_WORDS * 8)), Ok(0));
            program.call(SystemCall::Kill, [child, 9]).unwrap();
        });
    }

    #[test]
    fn snapshots_name_the_process_each_hart_visits() {
        run(|program| {
            assert_eq!(take(&first(), subject::HARTS, 0, buffer(HART_WORDS * 8 * 4)), Ok(1));
            let [hart, _, running, visited, ..]: [u64; HART_WORDS] = words(0);
            assert_eq!((hart, visited), (0, program.id.into()));
            assert_eq!(running.count_ones(), 1);
            assert_eq!(take(&first(), subject::HARTS, 0, buffer(HART_WORDS * 8 - 1)), Ok(0));
        });
    }

    #[test]
    fn stretches_are_listed_behind_a_cause() {
        run(|program| {
            assert_eq!(take(&first(), subject::BEGIN_STRETCHES, 0, buffer(0)), Ok(0));
            for _ in 0..10 {
                program.call(SystemCall::GetProcess, []).unwrap();
                crate::testing::simulation().advance(5);
                program.call(SystemCall::GetThread, []).unwrap();
            }
            let count = take(&first(), subject::STRETCHES, 0, buffer(STRETCH_WORDS * 8 * 50)).unwrap();
            let causes: Vec<u64> = (0..count).map(|at| words::<STRETCH_WORDS>(at)[0]).collect();
            assert!(causes.is_sorted(), "{causes:?}");
            let behind = causes.first().copied().unwrap_or(0);
            let rest = take(&first(), subject::STRETCHES, behind as u32, buffer(STRETCH_WORDS * 8 * 50)).unwrap();
            assert_eq!(rest, count.saturating_sub(1));
        });
    }

    #[test]
    fn nonsense_and_strangers_are_refused() {
        run(|program| {
            assert_eq!(take(&first(), 99, 0, buffer(100)), Err(Errno::EINVAL));
            assert_eq!(take(&first(), subject::LATENCIES, u32::MAX, buffer(8)), Err(Errno::ENODEV));
            let nowhere = UserBuffer::new(0x1000, HART_WORDS * 8).unwrap();
            assert_eq!(take(&first(), subject::HARTS, 0, nowhere), Err(Errno::EFAULT));
            let place = program.place(64);
            let own = program.call(SystemCall::Snapshot, [subject::HARTS as usize, 0, place, 64]);
            assert_eq!(own.is_ok(), authority::permit(&program.process(), Act::TakeSnapshot).is_ok());
        });
    }
}
