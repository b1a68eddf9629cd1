//! The switching coroutine of a worker, from its start to its last steps.
//!
//! The kernel side of a [`Worker`] is one coroutine, the *switching coroutine*: it enters user mode, which is a call
//! that returns a reason, handles the reason, and enters again. It ends only with the worker. Its priority follows the
//! process's: whenever it gives the hart up it takes the priority of the most important coroutine that the process has
//! published, so that the kernel's executor orders kernel coroutines and processes by one measure, and the most
//! important switching coroutine of all runs next.
//!
//! A synchronous call that must wait is an `await` in this coroutine. There is no other kernel stack, and no other
//! memory, for a worker that is blocked.
//!
//! # Yielding the hart
//!
//! * After a call: only to something that became ready on this hart and is more important than the process's present
//!   claim.
//! * After an interrupt: also to something equally important that became ready on this hart. So completions are posted
//!   before the process goes on, and equals alternate at the tick.
//! * By a call of the process: a strict executor yields as soon as it is outranked.
//!
//! The effective priority of a claim, the charges for time, and exceptions from the order are in
//! [`scheduling`](crate::scheduling).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::task::Waker;

use abi_unix::{Errno, SystemCall, errno};
use hal_api::{Access, Machine as _, Trap, UserContext};
use platform::Machine;

use crate::asynchronous::operation::Operation;
use crate::asynchronous::{ring, user_interrupts};
use crate::calls::call::{Pause, admitted};
use crate::calls::fetching::Fetch;
use crate::models::{Carrier, threads};
use crate::process::exit_status::Ending;
use crate::process::identity;
use crate::process::program::{Execution, Plan};
use crate::process::signals::Interruption;
use crate::process::visit::{self, visit};
use crate::process::worker::{Means, Worker, awaited};
use crate::process::{Process, fork, oom_killer, signal_delivery, thread};
use crate::scheduling::executor::{self, SpawnError};
use crate::scheduling::steps::Long;
use crate::scheduling::stretch;

/// Creates a worker, calls `prepare` with it, and starts it with these registers. `EAGAIN` if the process may not have
/// another; `ENOMEM`. After an error nothing has happened.
#[doc(alias = "kernel_clone")]
pub(crate) fn start_worker(
    process: &Arc<Process>,
    context: Box<UserContext>,
    prepare: impl FnOnce(&Worker),
) -> Result<Arc<Worker>, Errno> {
    let means = Means::new(process, 0)?;
    let mut refused = None;
    let worker = process.add_worker(|index| {
        let worker = Arc::new(Worker::new(process, index, means));
        prepare(&worker);
        match executor::spawn_for(worker.clone(), worker.own_priority(), run(worker.clone(), context)) {
            Ok(cid) => {
                worker.was_spawned_as(cid);
                Ok(worker)
            }
            Err(SpawnError(coroutine)) => {
                refused = Some(coroutine);
                Err(Errno::ENOMEM)
            }
        }
    });
    // Dropped outside of the lock of the process's workers.
    drop(refused);
    worker
}

/// Creates a thread that blocks its creator's signals, calls `prepare` with it, and starts it with these registers.
/// `EAGAIN` if the process may not have another; `ENOMEM`.
#[doc(alias = "copy_process")]
#[doc(alias = "CLONE_THREAD")]
pub(crate) fn start_thread(
    process: &Arc<Process>,
    context: Box<UserContext>,
    creator: &Worker,
    prepare: impl FnOnce(&Worker),
) -> Result<Arc<Worker>, Errno> {
    let carrier = process.model.carrier();
    let means = match carrier {
        Carrier::Coroutine => Means::new(process, 0)?,
        Carrier::Thread => Means::new(process, threads::STACK_SIZE)?,
    };
    let thread = process.add_thread(|slot| {
        let thread = Arc::new(Worker::new(process, slot, means));
        // Before senders of signals can find it.
        thread.signals.inherit(&creator.signals);
        thread.set_name(creator.name());
        thread.inherit_settings(creator);
        thread
    })?;
    prepare(&thread);
    let started = match carrier {
        Carrier::Coroutine => {
            let body = run(thread.clone(), context);
            let spawned = executor::spawn_for(thread.clone(), thread.own_priority(), body);
            spawned.map_err(|SpawnError(coroutine)| drop(coroutine))
        }
        Carrier::Thread => threads::start(&thread, context),
    };
    match started {
        Ok(cid) => {
            thread.was_spawned_as(cid);
            Ok(thread)
        }
        Err(()) => {
            // The caller is one more, so it was not the last.
            let _ = process.worker_is_gone(&thread);
            Err(Errno::ENOMEM)
        }
    }
}

/// Runs the switching coroutine of a worker.
#[doc(alias = "schedule")]
#[doc(alias = "ret_to_user_from_fork")]
async fn run(worker: Arc<Worker>, mut context: Box<UserContext>) {
    // Before the coroutine can wait for anything, so that its wakers know it.
    worker.runs_in(executor::current());
    loop {
        let pause = visit(&worker, &mut context);
        ring::leave_to_server(&worker);
        // From now on, and until the process publishes something else, its priority is that of the process's claim.
        if !matches!(pause, Pause::GiveWay) {
            worker.forget_credit();
        }
        match pause {
            Pause::GiveWay => executor::set_priority(executor::current(), worker.priority_in_queue()),
            _ => executor::set_priority(executor::current(), worker.priority()),
        }
        match pause {
            Pause::Leave => break,
            Pause::MoveToThread => {
                context = match threads::carry_on(&worker, context) {
                    Ok(()) => return,
                    Err(mut context) => {
                        context.set_result(errno::encode(Err(Errno::ENOMEM)) as u64);
                        context
                    }
                };
            }
            pause => go_on(&worker, &mut context, pause).await,
        }
    }
    exit(&worker, context).await;
}

/// Handles a pause in which the worker keeps its coroutine or its thread.
pub(crate) async fn go_on(worker: &Arc<Worker>, context: &mut Box<UserContext>, pause: Pause) {
    worker.awaits(match pause {
        Pause::GiveWay => awaited::TURN,
        Pause::Fetch(..) => awaited::PAGE,
        Pause::Stopped => awaited::CONTINUATION,
        _ => context.call_number() as u32,
    });
    let result = match pause {
        Pause::GiveWay => return executor::yield_now().await,
        Pause::Wait(operation) => {
            let restart = operation.restart();
            let look = |operation: &Operation, waker: &Waker| look_at_signals(worker, context, operation, waker);
            let result = operation.wait(worker, look).await;
            if result == Err(Errno::EINTR) && !signal_delivery::ends_call(worker, context, restart) {
                return;
            }
            if let Err(error) = result
                && let Some(fetch) = Fetch::missed(&worker.process, error)
            {
                context.pc = context.pc.wrapping_sub(4);
                return fetch_pages(worker, context, fetch.into_work(), None).await;
            }
            result
        }
        Pause::Fetch(work, address) => return fetch_pages(worker, context, work, address).await,
        Pause::WaitForSignal(wait) => {
            let result = wait.wait(worker, context).await;
            if result == Err(Errno::EINTR) {
                worker.signals.were_interrupted();
            }
            result
        }
        Pause::Stopped => return signal_delivery::until_continued(worker).await,
        Pause::Park { seen, deadline } => {
            let result =
                worker.park(seen, deadline, |waker| signal_delivery::interruption(worker, context, waker)).await;
            // If there was news the worker has not waited, and coroutines that became ready meanwhile may be more
            // important.
            if worker.is_outranked() {
                executor::yield_now().await;
            }
            result
        }
        // In memory of its own, for which the call was admitted: it would make the future of every worker larger.
        Pause::Lend(copied) => in_kernel(worker, admitted(fork::lend(worker.clone(), *copied))).await,
        // As large as the future of the whole rest together.
        Pause::Execute(execution) => return in_kernel(worker, admitted(execute(worker, context, execution))).await,
        Pause::MoveToThread | Pause::Leave => return,
    };
    context.set_result(errno::encode(result) as u64);
}

/// Waits for pages that the program touches by an instruction at this address, or by its next call.
#[doc(alias = "filemap_fault")]
async fn fetch_pages(worker: &Arc<Worker>, context: &mut UserContext, work: Long, address: Option<u64>) {
    let operation = Operation::Long(SystemCall::Map, work);
    let look = |operation: &Operation, waker: &Waker| look_at_signals(worker, context, operation, waker);
    match (operation.wait(worker, look).await, address) {
        // A worker that is to stop finds that out before it touches them.
        (Ok(_) | Err(Errno::EINTR), _) => {}
        (Err(Errno::ENOMEM), Some(_)) => oom_killer::find_memory(),
        (Err(_), Some(address)) => visit::bus_error(worker, context, Trap::PageFault { address, access: Access::Read }),
        (Err(error), None) => {
            let error = if error == Errno::ENOMEM { error } else { Errno::EFAULT };
            context.pc = context.pc.wrapping_add(4);
            context.set_result(errno::encode(Err(error)) as u64);
        }
    }
}

/// Replaces the program, when all other workers and calls have gone.
#[doc(alias = "execve")]
#[doc(alias = "bprm")]
async fn execute(worker: &Arc<Worker>, context: &mut Box<UserContext>, execution: Execution) {
    stretch::goes_on_with(SystemCall::Execute);
    let read = Plan::read(&worker.process, execution).await;
    // Behind the next lines nothing may be refused.
    let (plan, identity) = match read.and_then(|plan| Ok((plan, identity::charge(&worker.process.account)?))) {
        Ok(read) => read,
        Err(error) => return context.set_result(errno::encode(Err(error)) as u64),
    };
    if !worker.process.keep_only(worker).await {
        // The next look finds this too, and this worker leaves.
        return;
    }
    thread::give_up_locks(worker).await;
    worker.process.forget_others(worker);
    user_interrupts::give_up(worker);
    worker.process.model.reset();
    worker.process.barriers.reset();
    worker.process.signals.start_afresh();
    worker.start_afresh();
    stretch::goes_on_with(SystemCall::Execute);
    match plan.carry_out(&worker.process, identity).await {
        Ok(fresh) => **context = fresh,
        Err(error) => {
            // The old program is gone, so no caller can get the error.
            worker.process.lines.print(format_args!("execve failed after the point of no return: {error}"));
            worker.process.end(Ending::Killed(abi_unix::types::signal::KILL as u8));
        }
    }
}

/// Performs a worker's last steps.
#[doc(alias = "do_exit")]
pub(crate) async fn exit(worker: &Arc<Worker>, context: Box<UserContext>) {
    let process = &worker.process;
    process.dump.keep_registers(worker, context);
    // The last worker reports the process's time to the parent; only the time from here on is missing from that.
    let now = Machine::now();
    worker.charge(now, now);
    thread::depart(worker).await;
    user_interrupts::give_up(worker);
    let is_last = process.worker_is_gone(worker);
    // Looked at after the departure: if the process ends later than that, its end finds another worker.
    if process.has_ended() {
        stretch::goes_on_as(abi_unix::trace::stretch::END);
        process.call_all().await;
    }
    if is_last {
        let mut end = pin!(process.take_apart());
        poll_fn(|cx| worker.measure(|| end.as_mut().poll(cx))).await;
    }
}

/// Does long work of a worker, which is measured as the kernel's.
async fn in_kernel<R>(worker: &Worker, mut work: Pin<Box<impl Future<Output = R>>>) -> R {
    poll_fn(|cx| worker.measure(|| work.as_mut().poll(cx))).await
}

/// Returns whether a worker may go on with its wait.
#[inline(always)]
pub(crate) fn look_at_signals(
    worker: &Worker,
    context: &UserContext,
    operation: &Operation,
    waker: &Waker,
) -> Interruption {
    match operation.can_be_interrupted() {
        true => signal_delivery::interruption(worker, context, waker),
        false if worker.is_to_stop() => Interruption::Leave,
        false => Interruption::GoOn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, run_to_its_end};

    /// A blocked thread keeps this memory, however few threads execute programs or end.
    #[test]
    fn the_coroutine_of_a_worker_is_small() {
        fn size<A, B, F>(_: fn(A, B) -> F) -> usize {
            size_of::<F>()
        }
        assert!(size(super::run) <= 1024, "{}", size(super::run));
    }

    /// The process lives as long as one of its workers, and has the status that the first one gave.
    #[test]
    fn the_last_worker_ends_the_process() {
        let ending = run_to_its_end(|program| {
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    let _ = program.call(SystemCall::Exit, [9]);
                })
                .unwrap();
            let _ = program.call(SystemCall::Exit, [4]);
        });
        assert_eq!(ending, Ending::Exited(4));
    }

    /// Another program takes the place of hundreds of threads and calls: they end in steps, with looks in between.
    #[test]
    fn threads_and_calls_of_the_old_program_end_in_steps() {
        use crate::observing::counters;
        use crate::scheduling::steps;
        use abi_unix::Counter;
        use abi_unix::types::clone;

        const MANY: usize = 1500;
        run(|program| {
            let child = program.spawn(|program| {
                let word = program.place(8);
                for token in 0..MANY {
                    assert_eq!(program.submit(SystemCall::Futex, [word, 0, 0, 0], token as u64 + 1), None);
                }
                let flags = (clone::SHARED | clone::SETTLS) as usize;
                for _ in 0..40 {
                    let waits = program.identity_for(move |program| {
                        let _ = program.call(SystemCall::Futex, [word, 0, 0, 0]);
                    });
                    program.call(SystemCall::Clone, [flags, 0x3_0000, 0, waits, 0]).unwrap();
                }
                program.sleep_ns(1_000_000);
                assert_eq!(program.process().live_workers(), 41);
                let looks = counters::read(Counter::Looks);
                let calls = counters::read(Counter::CallsInFlight);
                program.goes_on_as(move |program| {
                    assert_eq!(program.process().live_workers(), 1);
                    assert!(counters::read(Counter::CallsInFlight) <= calls - MANY as u64);
                    let steps = counters::read(Counter::Looks) - looks;
                    assert!(steps >= (MANY / steps::ENTRIES) as u64, "{steps} looks");
                });
                let path = program.store(crate::testing::PATH);
                let _ = program.call(SystemCall::Execute, [path, 0, 0]);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    #[test]
    fn the_first_end_counts_and_ends_all_workers() {
        let ending = run_to_its_end(|program| {
            for status in [7, 8] {
                program
                    .add_worker(move |program| {
                        program.sleep_ns(1_000_000);
                        let _ = program.call(SystemCall::ExitGroup, [status]);
                    })
                    .unwrap();
            }
            // One worker that runs for ever, and one that sleeps for ever.
            program
                .add_worker(|program| {
                    loop {
                        program.call(SystemCall::GetProcess, []).unwrap();
                    }
                })
                .unwrap();
            let _ = program.call(SystemCall::WorkerWait, [0, usize::MAX]);
        });
        assert!(matches!(ending, Ending::Exited(7 | 8)), "{ending:?}");
    }

    /// `execve` ends the other workers, keeps number and descriptors but those to be closed, and begins anew.
    #[test]
    fn another_program_keeps_the_process_and_nothing_of_its_memory() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            assert_eq!(program.call(SystemCall::FileControl, [reader, 2, 1]), Ok(0));
            let place = program.store(b"old");
            program.add_worker(|program| program.sleep_ns(usize::MAX >> 1)).unwrap();
            let time = program.store(&abi_unix::types::TimeSpec::from_ns(1 << 60).to_bytes());
            assert_eq!(program.submit(SystemCall::Sleep, [time, 0], 5), None);
            let id = program.id as usize;
            let path = program.store(crate::testing::PATH);
            let list = program.store(&[path.to_le_bytes(), [0; 8]].concat());
            let missing = program.store(b"/bin/missing\0");
            assert_eq!(program.call(SystemCall::Execute, [missing, list, 0]), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::Execute, [0x1000, list, 0]), Err(Errno::EFAULT));
            assert_eq!(program.process().live_workers(), 2, "nothing has happened");
            program.goes_on_as(move |program| {
                assert_eq!(program.call(SystemCall::GetProcess, []), Ok(id));
                assert_eq!(program.process().live_workers(), 1);
                assert_eq!(program.read(place, 3), [0; 3]);
                assert_eq!(program.write_to(writer, b"x"), Err(Errno::EPIPE), "the other end is closed");
                assert_eq!(program.read_from(reader, 1), Err(Errno::EBADF));
                assert_eq!(program.call(SystemCall::Cancel, [5]), Err(Errno::ENOENT));
            });
            let _ = program.call(SystemCall::Execute, [path, list, 0]);
            panic!("the old program goes on");
        });
    }
}
