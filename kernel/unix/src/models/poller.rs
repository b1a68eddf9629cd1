//! The polling thread of a process: one kernel thread that tries all asynchronous transfers in turn.
//!
//! # Locks
//!
//! Its inbox is locked under the table of calls in flight, for a few instructions.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Poll;

use abi_unix::Errno;
use kernel_thread::{Current, STACK_SIZE, Stack, Thread};
use spin::Mutex;

use crate::asynchronous::operation::Operation;
use crate::asynchronous::submission::Submitted;
use crate::process::Process;
use crate::process::accounts::{Charge, Resource};
use crate::scheduling::executor::{self, Cid, SpawnError};
use crate::scheduling::{standing, steps, stretch};

/// A process's polling thread, if it has one.
#[derive(Default)]
pub(super) struct Poller(Mutex<Polling>);

#[derive(Default)]
struct Polling {
    /// The thread's coroutine, once there is one.
    thread: Option<Cid>,
    /// Charge for its stack.
    charge: Option<Charge>,
    /// Transfers that the thread has not seen yet.
    inbox: Vec<PolledTransfer>,
}

/// An asynchronous transfer that is polled.
struct PolledTransfer {
    operation: Operation,
    call: Submitted,
}

impl Poller {
    /// Starts the thread, unless there is one. `ENOMEM`.
    pub(super) fn start(&self, process: &Arc<Process>) -> Result<(), Errno> {
        let mut state = self.0.lock();
        if state.thread.is_none() {
            let charge = process.account.charge(Resource::Memory, STACK_SIZE + 1024)?;
            let stack = Stack::new().map_err(|_| Errno::ENOMEM)?;
            let owner = process.clone();
            let thread = Thread::new(stack, move |current| poll_transfers(&owner, current));
            let spawned = executor::spawn_for(process.clone(), process.claimed_priority(), thread);
            state.thread = Some(spawned.map_err(|SpawnError(_)| Errno::ENOMEM)?);
            state.charge = Some(charge);
        }
        Ok(())
    }

    /// Gives a transfer to the thread and returns the thread's coroutine; returns the transfer if there is no memory.
    pub(super) fn submit(&self, operation: Operation, call: Submitted) -> Result<Cid, Operation> {
        let mut state = self.0.lock();
        let Some(thread) = state.thread else { return Err(operation) };
        if state.inbox.try_reserve(1).is_err() {
            return Err(operation);
        }
        state.inbox.push(PolledTransfer { operation, call });
        executor::wake(thread);
        Ok(thread)
    }

    /// Returns the thread's coroutine.
    pub(super) fn thread(&self) -> Option<Cid> {
        self.0.lock().thread
    }
}

/// Tries a transfer; returns whether it is done and its completion posted.
fn try_transfer(process: &Arc<Process>, transfer: &mut PolledTransfer) -> bool {
    let result = if transfer.call.is_given_up(process, &transfer.operation) {
        transfer.operation.give_up(Errno::ECANCELED)
    } else {
        match transfer.operation.attempt(process) {
            Poll::Ready(result) => result,
            Poll::Pending => return false,
        }
    };
    transfer.call.complete(process, &mut transfer.operation, result);
    true
}

/// Runs the polling thread of a process: until that ends, tries all given transfers in turn.
fn poll_transfers(process: &Arc<Process>, current: &Current<'_>) {
    let mut transfers: Vec<PolledTransfer> = Vec::new();
    loop {
        // As important as the process claims now: the thread works for its coroutines.
        let priority = if process.has_ended() { standing::MOST_CLAIM } else { process.claimed_priority() };
        executor::set_priority(executor::current(), priority);
        let mut arrived = core::mem::take(&mut process.model.poller.0.lock().inbox);
        if transfers.is_empty() {
            transfers = arrived;
        } else {
            transfers.append(&mut arrived);
        }
        let (mut at, mut tried) = (0, 0);
        while at < transfers.len() {
            stretch::goes_on_as(abi_unix::trace::stretch::POLLING);
            if try_transfer(process, &mut transfers[at]) {
                // The order has no meaning: all of them are tried in each turn.
                transfers.swap_remove(at);
            } else {
                at += 1;
            }
            tried += 1;
            if tried % steps::ENTRIES == 0 {
                current.block_on(steps::pause_at_the_end());
            }
        }
        if process.has_ended() && transfers.is_empty() {
            let mut state = process.model.poller.0.lock();
            if state.inbox.is_empty() {
                // A later `submit` finds no thread.
                state.thread = None;
                return;
            }
        } else if transfers.is_empty() {
            // `submit` wakes the thread, also if it comes just now; so does the end of the process.
            current.suspend();
        } else {
            current.yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::models::Side;
    use crate::testing::run;

    /// The host has no stacks: the choice fails, changes nothing, and gives the charge back.
    #[test]
    fn without_a_stack_the_polling_model_is_refused() {
        run(|program| {
            let process = program.process();
            let before = process.account.used(Resource::Memory);
            assert_eq!(program.call(SystemCall::KernelSide, [3]), Err(Errno::ENOMEM));
            assert_eq!(process.account.used(Resource::Memory), before);
            assert_eq!(process.model.side(), Side::Coroutines);
            assert_eq!(process.model.poller.thread(), None);
        });
    }
}
