//! The positions of all workers and the await points of all coroutines, printed on request: by a break on the serial
//! line, which no program can keep from the kernel, or by the `snapshot` call.
//!
//! A worker prints its own position when it next looks around, since its registers are its coroutine's: one that runs
//! is called back from user mode, one that waits in a call looks while it waits. Coroutines of a program are in memory
//! of its own, whose layout the kernel neither knows nor trusts: a process that has said that it answers is asked, by a
//! completion, and prints them itself. So no byte of a program is interpreted here, and nothing is recorded before
//! someone asks.
//!
//! The console is slow and lines that find it busy are dropped, so the teller, a kernel coroutine, asks one worker
//! after the other and pauses in between.

use alloc::sync::Arc;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::Poll;

use abi_queue::Priority;
use abi_unix::Errno;
use abi_unix::trace::ProgramName;
use coroutine::State;
use platform::println;

use crate::process::worker::Worker;
use crate::process::{Process, table};
use crate::scheduling::Pace;
use crate::scheduling::executor::{self, Attendant};
use crate::time::limit::TimeLimit;

/// Time after each question, for the answer and for the console.
const PAUSE_NS: u64 = 4_000_000;
/// No process.
const NONE: u32 = 0;
/// All processes.
const ALL: u32 = u32::MAX;

static TELLER: Attendant = Attendant::new();
/// The process that is asked for, [`ALL`] or [`NONE`].
static ASKED: AtomicU32 = AtomicU32::new(NONE);

/// Starts the teller, and listens to breaks.
pub(crate) fn start() {
    executor::spawn_for_kernel(Priority::HIGHEST, tell_when_asked());
    platform::set_break_listener(|| ask(ALL));
}

/// Has the positions of one process printed, or of all for number 0.
///
/// # Errors
///
/// `ESRCH`: there is no such process.
pub(crate) fn request(process: u32) -> Result<(), Errno> {
    match process {
        0 => ask(ALL),
        _ => ask(table::find(process).ok_or(Errno::ESRCH)?.id),
    }
    Ok(())
}

fn ask(process: u32) {
    // Two questions that come together become one for all.
    if let Err(other) = ASKED.compare_exchange(NONE, process, Ordering::AcqRel, Ordering::Relaxed)
        && other != process
    {
        ASKED.store(ALL, Ordering::Release);
    }
    TELLER.summon();
}

async fn tell_when_asked() {
    loop {
        TELLER.summoned().await;
        let (above, last) = match ASKED.swap(NONE, Ordering::AcqRel) {
            NONE => continue,
            ALL => (0, u32::MAX),
            process => (process - 1, process),
        };
        let (mut walk, mut pace) = (table::Walk::above(above), Pace::default());
        while let Some(process) = walk.next_at_pace(&mut pace).await.filter(|process| process.id <= last) {
            tell(&process).await;
        }
        println!("all positions have been told");
    }
}

/// Has the workers of a process and its coroutines tell where they are.
async fn tell(process: &Arc<Process>) {
    let name = ProgramName::from_words(process.name());
    let name = core::str::from_utf8(name.as_bytes()).unwrap_or("?");
    let (workers, (calls, _)) = (process.live_workers(), process.waiting_calls());
    let ends = if process.has_ended() { ", and ends" } else { "" };
    process.lines.print(format_args!("{name}: {workers} workers and threads, {calls} calls in flight{ends}"));
    let mut slot = 0;
    while let Some(worker) = process.next_worker_or_thread(slot) {
        slot = worker.index() + 1;
        worker.ask_position();
        pause(PAUSE_NS).await;
        if worker.take_position_request() {
            process.lines.print(format_args!("worker {} {}", worker.index(), silence(&worker)));
        }
    }
    if process.ask_for_await_points() {
        pause(PAUSE_NS).await;
    }
}

/// Returns the reason why a worker has not told its position.
fn silence(worker: &Worker) -> &'static str {
    match executor::state(worker.coroutine()) {
        Some(State::Ready) => "is ready and has no hart",
        Some(State::Running) => "works in the kernel",
        Some(State::Blocked | State::Suspended) => "waits in a call that signals do not interrupt",
        None => "has ended",
    }
}

/// Waits for so long.
pub(crate) async fn pause(ns: u64) {
    let mut limit = TimeLimit::after_ns(ns);
    poll_fn(|cx| {
        // Without memory for an alarm there is no pause, and perhaps a line is lost.
        if limit.has_passed() || limit.arm(cx.waker()).is_err() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    limit.clear();
}

#[cfg(test)]
mod tests {
    use std::string::String;
    use std::vec::Vec;

    use abi_queue::completion::TELL_AWAIT_POINTS;
    use abi_queue::pages::PROCESS_PAGE_OFFSET;
    use abi_unix::SystemCall;
    use abi_unix::trace::subject;

    use super::*;
    use crate::testing::{run, simulation};

    /// Returns what was printed since a moment at which the output had this length.
    fn since(length: usize) -> String {
        simulation().output()[length..].into()
    }

    #[test]
    fn processes_that_do_not_exist_have_no_position() {
        run(|program| {
            for process in [program.id + 1000, u32::MAX, u32::MAX - 1] {
                assert_eq!(request(process), Err(Errno::ESRCH));
            }
            let own = program.call(SystemCall::Snapshot, [subject::POSITIONS as usize, program.id as usize, 0, 0]);
            assert_eq!(own, Err(Errno::EPERM), "it has no right to look at others");
        });
    }

    #[test]
    fn workers_tell_whether_they_run_wait_or_sleep() {
        run(|program| {
            let (reader, _writer) = program.pipe(0);
            program
                .add_worker(move |program| {
                    let _ = program.read_from(reader, 1);
                })
                .unwrap();
            program
                .add_worker(|program| {
                    let _ = program.call(SystemCall::WorkerWait, [0, usize::MAX]);
                })
                .unwrap();
            program.sleep_ns(1_000_000);
            let before = simulation().output().len();
            assert_eq!(request(program.id), Ok(()));
            program.sleep_ns(10 * PAUSE_NS as usize);
            let (text, id) = (since(before), program.id);
            for expected in [
                ": 3 workers and threads, 0 calls in flight\n",
                "] worker 0 waits in nanosleep: callers in ",
                "] worker 1 waits in read: callers in ",
                "] worker 2 sleeps: none of its coroutines is ready\n",
                "all positions have been told\n",
            ] {
                assert!(text.contains(expected), "{text}");
            }
            assert!(text.lines().all(|line| line.starts_with(&std::format!("[{id}] ")) || line.starts_with("all ")));
            assert!(program.completions().is_empty(), "it has not said that it answers");
        });
    }

    #[test]
    fn a_process_that_answers_is_asked_if_its_ring_has_room() {
        run(|program| {
            let page = program.process().shared.address(PROCESS_PAGE_OFFSET);
            let word = page + core::mem::offset_of!(abi_queue::ProcessPage, answers);
            for (answers, asked) in [(0, 0), (2, 0), (u64::MAX, 0), (1, 1)] {
                program.write(word, &answers.to_le_bytes());
                assert_eq!(request(program.id), Ok(()));
                program.sleep_ns(10 * PAUSE_NS as usize);
                let tokens: Vec<u64> = program.completions().iter().map(|completion| completion.token).collect();
                assert_eq!(tokens, std::vec![TELL_AWAIT_POINTS; asked], "{answers}");
            }
            let process = program.process();
            while process.ask_for_await_points() {}
            assert_eq!(program.completions().len(), abi_queue::completion::INITIAL_CAPACITY);
        });
    }

    #[test]
    fn two_questions_become_one_for_all() {
        run(|program| {
            let before = simulation().output().len();
            ask(program.id);
            ask(program.id + 1);
            program.sleep_ns(20 * PAUSE_NS as usize);
            let text = since(before);
            assert_eq!(text.matches("all positions have been told").count(), 1, "{text}");
            assert!(text.contains("[1] ") && text.contains(&std::format!("[{}] ", program.id)), "{text}");
        });
    }
}
