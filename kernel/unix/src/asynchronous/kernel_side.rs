//! Models of the kernel's side of calls: coroutines, as in the rest of the kernel, or kernel threads, to compare them.
//!
//! The papers compare four models: kernel and user side can each work with coroutines or threads. The user side is the
//! program's choice; the kernel's side is chosen by the `kernel_side` call, for the caller and for all workers and
//! threads that its process starts from then on:
//!
//! * **Coroutines** (kcuc, kcut): the switching coroutine awaits a call that must wait; an asynchronous one has a
//!   coroutine of its own.
//! * **Threads that wait** (ktut with a wait queue, ktuc with epoll): each worker or thread of the process has a kernel
//!   thread, on whose stack it enters user mode and its calls are made. A call that must wait registers the thread's
//!   waker in the place of a coroutine's, and the thread sleeps inside the call. Nothing runs until it is woken.
//! * **Threads that retry** (ktut as in the papers): a thread as above, but a transfer that must wait (read, write,
//!   send, receive, accept, connect) is tried again and again, with others having their turn in between. It finds out
//!   by itself, and costs processor time while it waits. Waits for a time, a child or a futex sleep, as in the papers.
//! * **A polling thread** (ktuc as in the papers): asynchronous transfers that must wait are given to one kernel thread
//!   of the process, which tries all of them in turn, for as long as there are any. A try costs as much as a call that
//!   finds nothing; so with many in flight most of the time is spent on trying those that are not ready.
//!
//! # Locks
//!
//! The inbox of a polling thread is locked under the table of calls in flight, for a few instructions.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, Ordering};
use core::task::Poll;

use abi_unix::Errno;
use kernel_thread::{Current, Stack, Thread};
use spin::Mutex;

use crate::asynchronous::operation::Operation;
use crate::asynchronous::submission::Submitted;
use crate::process::Process;
use crate::process::accounts::{Charge, Resource};
use crate::scheduling::executor::{self, Cid, SpawnError};
use crate::scheduling::{standing, steps, stretch};

/// The model of the kernel's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Side {
    /// Coroutines.
    Coroutines = 0,
    /// Kernel threads that wait in queues.
    WaitingThreads = 1,
    /// Kernel threads that try again until a transfer is done.
    RetryingThreads = 2,
    /// Kernel threads that wait; and one that polls all asynchronous transfers.
    PollingThread = 3,
}

impl Side {
    /// Decodes the argument of the call.
    pub(crate) fn from_number(number: usize) -> Result<Side, Errno> {
        Ok(match number {
            0 => Side::Coroutines,
            1 => Side::WaitingThreads,
            2 => Side::RetryingThreads,
            3 => Side::PollingThread,
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// A process's choice, and its polling thread.
#[derive(Default)]
pub(crate) struct Choice {
    side: AtomicU8,
    poller: Mutex<Poller>,
}

#[derive(Default)]
struct Poller {
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

impl Choice {
    /// Returns the model for workers and threads that start now.
    pub(crate) fn side(&self) -> Side {
        match self.side.load(Ordering::Relaxed) {
            1 => Side::WaitingThreads,
            2 => Side::RetryingThreads,
            3 => Side::PollingThread,
            _ => Side::Coroutines,
        }
    }

    /// Chooses a model, and starts the polling thread if it needs one. `ENOMEM` if that is impossible; then nothing has
    /// changed.
    pub(crate) fn choose(&self, process: &Arc<Process>, side: Side) -> Result<(), Errno> {
        if side == Side::PollingThread {
            let mut poller = self.poller.lock();
            if poller.thread.is_none() {
                let charge = process.account.charge(Resource::Memory, kernel_thread::STACK_SIZE + 1024)?;
                let stack = Stack::new().map_err(|_| Errno::ENOMEM)?;
                let owner = process.clone();
                let thread = Thread::new(stack, move |current| poll_transfers(&owner, current));
                let spawned = executor::spawn_for(process.clone(), process.claimed_priority(), thread);
                poller.thread = Some(spawned.map_err(|SpawnError(_)| Errno::ENOMEM)?);
                poller.charge = Some(charge);
            }
        }
        self.side.store(side as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Returns to coroutines, for another program.
    pub(crate) fn reset(&self) {
        self.side.store(Side::Coroutines as u8, Ordering::Relaxed);
    }

    /// Gives a transfer to the polling thread and returns that thread's coroutine; returns the transfer if there is no
    /// memory.
    pub(crate) fn submit(&self, operation: Operation, call: Submitted) -> Result<Cid, Operation> {
        let mut poller = self.poller.lock();
        let Some(thread) = poller.thread else { return Err(operation) };
        if poller.inbox.try_reserve(1).is_err() {
            return Err(operation);
        }
        poller.inbox.push(PolledTransfer { operation, call });
        executor::wake(thread);
        Ok(thread)
    }

    /// Gives the polling thread the present effective priority of the process's claim.
    pub(crate) fn order_anew(&self, process: &Process) {
        if let Some(thread) = self.poller.lock().thread {
            executor::set_priority(thread, process.claimed_priority());
        }
    }

    /// Makes the polling thread see that the process has ended.
    pub(crate) fn wake_poller(&self) {
        if let Some(thread) = self.poller.lock().thread {
            executor::wake(thread);
        }
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
        let mut arrived = core::mem::take(&mut process.kernel_side.poller.lock().inbox);
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
            let mut poller = process.kernel_side.poller.lock();
            if poller.inbox.is_empty() {
                // A later `submit` finds no thread.
                poller.thread = None;
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
    use super::*;
    use crate::testing::run;

    #[test]
    fn models_have_their_numbers() {
        for side in [Side::Coroutines, Side::WaitingThreads, Side::RetryingThreads, Side::PollingThread] {
            assert_eq!(Side::from_number(side as usize), Ok(side));
        }
        assert_eq!(Side::from_number(4), Err(Errno::EINVAL));
        assert_eq!(Side::from_number(usize::MAX), Err(Errno::EINVAL));
    }

    /// Only the polling model has a thread to give transfers to; another program begins with coroutines.
    #[test]
    fn a_choice_holds_until_another_program_begins() {
        run(|program| {
            let (process, choice) = (program.process(), Choice::default());
            assert_eq!(choice.side(), Side::Coroutines);
            for side in [Side::WaitingThreads, Side::RetryingThreads, Side::Coroutines, Side::RetryingThreads] {
                assert_eq!(choice.choose(&process, side), Ok(()));
                assert_eq!(choice.side(), side);
            }
            choice.reset();
            assert_eq!(choice.side(), Side::Coroutines);
            assert!(choice.poller.lock().thread.is_none());
        });
    }
}
