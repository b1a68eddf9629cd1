//! Workers and threads of a process on kernel threads.
//!
//! A worker's code is the same in both models: [`visit`], [`go_on`] and [`exit`]. A switching coroutine awaits them; a
//! kernel thread blocks on them.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::poll_fn;
use core::task::Poll;

use abi_unix::{Errno, errno};
use hal_api::UserContext;
use kernel_thread::{Current, Stack, Thread};
use spin::Mutex;

use crate::asynchronous::operation::Operation;
use crate::calls::call::Pause;
use crate::models::{Side, is_transfer};
use crate::process::signal_delivery;
use crate::process::signals::Interruption;
use crate::process::switching::{exit, go_on, look_at_signals};
use crate::process::visit::visit;
use crate::process::worker::Worker;
use crate::scheduling::executor::{self, Cid, SpawnError};

pub(crate) use kernel_thread::STACK_SIZE;

/// Starts a thread of a process on a kernel thread, and returns the coroutine of that. An error if there is no memory.
pub(crate) fn start(thread: &Arc<Worker>, context: Box<UserContext>) -> Result<Cid, ()> {
    let stack = Stack::new().map_err(|_| ())?;
    let side = thread.process.model.side();
    let own = thread.clone();
    let body = Thread::new(stack, move |current: &Current<'_>| run_on_thread(&own, context, current, side));
    executor::spawn_for(thread.clone(), thread.own_priority(), body).map_err(|SpawnError(_)| ())
}

/// Moves a worker from its coroutine to a kernel thread; returns the registers if there is no memory.
pub(crate) fn carry_on(worker: &Arc<Worker>, context: Box<UserContext>) -> Result<(), Box<UserContext>> {
    if worker.charge_also(STACK_SIZE).is_err() {
        return Err(context);
    }
    let Ok(stack) = Stack::new() else { return Err(context) };
    // Place of the registers while their next owner is undecided.
    let between = Arc::new(Mutex::new(Some(context)));
    let (own, theirs) = (worker.clone(), between.clone());
    let thread = Thread::new(stack, move |current| {
        let context = theirs.lock().take();
        if let Some(context) = context {
            let side = own.process.model.side();
            run_on_thread(&own, context, current, side);
        }
    });
    match executor::spawn_for(worker.clone(), worker.priority(), thread) {
        Ok(cid) => {
            worker.runs_in(cid);
            Ok(())
        }
        Err(SpawnError(_)) => match between.lock().take() {
            Some(context) => Err(context),
            // Impossible: only the thread takes them, and it never ran.
            None => Ok(()),
        },
    }
}

/// Runs a worker on the stack of a kernel thread, as its switching coroutine does otherwise: a call that must wait
/// blocks the thread.
fn run_on_thread(worker: &Arc<Worker>, mut context: Box<UserContext>, current: &Current<'_>, side: Side) {
    worker.runs_in(executor::current());
    loop {
        let pause = visit(worker, &mut context);
        if !matches!(pause, Pause::GiveWay) {
            worker.forget_credit();
        }
        executor::set_priority(executor::current(), worker.priority());
        match pause {
            Pause::Leave => break,
            Pause::Wait(operation) if side == Side::RetryingThreads && is_transfer(&operation) => {
                let restart = operation.restart();
                let result = retry(worker, &context, operation, current);
                if result != Err(Errno::EINTR) || signal_delivery::ends_call(worker, &mut context, restart) {
                    context.set_result(errno::encode(result) as u64);
                }
            }
            // A worker that must move to a thread has one already.
            pause => current.block_on(go_on(worker, &mut context, pause)),
        }
    }
    current.block_on(exit(worker, context));
}

/// Attempts an operation again and again, and lets others run in between, until it is done.
fn retry(
    worker: &Arc<Worker>,
    context: &UserContext,
    mut operation: Operation,
    current: &Current<'_>,
) -> Result<usize, Errno> {
    loop {
        let look = poll_fn(|cx| Poll::Ready(look_at_signals(worker, context, &operation, cx.waker())));
        match current.block_on(look) {
            Interruption::GoOn => {}
            Interruption::Hold => current.block_on(signal_delivery::until_continued(worker)),
            Interruption::Handler | Interruption::Leave => return operation.give_up(Errno::EINTR),
        }
        current.block_on(executor::yield_now());
        // Each try is a turn: a thread that only waits must not count as starving.
        worker.count_turn();
        if worker.has_credit() {
            worker.forget_credit();
            executor::set_priority(executor::current(), worker.priority());
        }
        if let Poll::Ready(result) = operation.attempt(&worker.process) {
            return result;
        }
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::clone;

    use super::*;
    use crate::testing::run;

    /// The host has no stacks: a worker keeps its coroutine, a thread is not started, and the program goes on.
    #[test]
    fn without_a_stack_a_worker_stays_and_no_thread_begins() {
        run(|program| {
            let id = program.id as usize;
            assert_eq!(program.call(SystemCall::KernelSide, [1]), Err(Errno::ENOMEM));
            assert_eq!(program.call(SystemCall::GetProcess, []), Ok(id));
            let never = program.identity_for(|_| panic!("a thread without a stack runs"));
            let flags = (clone::SHARED | clone::SETTLS) as usize;
            assert_eq!(program.call(SystemCall::Clone, [flags, 0x3_0000, 0, never, 0]), Err(Errno::ENOMEM));
            assert_eq!(program.process().live_workers(), 1);
            assert_eq!(program.call(SystemCall::KernelSide, [0]), Ok(0));
            assert_eq!(program.call(SystemCall::GetProcess, []), Ok(id));
        });
    }
}
