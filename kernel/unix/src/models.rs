//! The models for comparison: everything in the kernel that exists only to compare coroutines with kernel threads.
//!
//! The papers compare four models of a server: kernel and user side can each work with coroutines or threads. The user
//! side is the program's choice; the kernel's side is chosen by the call `kernel_side`, for the caller and for all
//! workers and threads that its process starts from then on:
//!
//! * **Coroutines** (kcuc, kcut): the switching coroutine awaits a call that must wait; an asynchronous one has a
//!   coroutine of its own. The rest of the kernel is this model, and no other file knows of the three below.
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
//! # The seam
//!
//! A process has one [`Model`]. The rest of the kernel uses it and [`threads`] in these places, and in no other:
//!
//! * `kernel_side` chooses a model ([`Model::choose`]), and another program begins with coroutines ([`Model::reset`]).
//! * A worker that has chosen threads is moved to one, and threads of the process are started on one: the switching
//!   coroutine and `clone` hand over to [`threads::carry_on`] and [`threads::start`].
//! * A call in flight is left to the polling thread if that takes it ([`Model::takes`], [`Model::submit`]).
//! * The polling thread follows its process: in priority ([`Model::order_anew`]) and to its end ([`Model::call_back`]).

mod poller;
pub(crate) mod threads;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, Ordering};

use abi_unix::Errno;

use crate::asynchronous::operation::Operation;
use crate::asynchronous::submission::Submitted;
use crate::models::poller::Poller;
use crate::process::Process;
use crate::scheduling::executor::{self, Cid};

/// The kernel's side of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Side {
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
    fn from_number(number: usize) -> Result<Side, Errno> {
        Ok(match number {
            0 => Side::Coroutines,
            1 => Side::WaitingThreads,
            2 => Side::RetryingThreads,
            3 => Side::PollingThread,
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// The carrier of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// Its switching coroutine.
    Coroutine,
    /// A kernel thread.
    Thread,
}

/// The model of a process.
#[derive(Default)]
pub(crate) struct Model {
    side: AtomicU8,
    poller: Poller,
}

impl Model {
    /// Returns the side for workers and threads that start now.
    fn side(&self) -> Side {
        // Relaxed: the number alone is shared; the polling thread is found under its own lock.
        match self.side.load(Ordering::Relaxed) {
            1 => Side::WaitingThreads,
            2 => Side::RetryingThreads,
            3 => Side::PollingThread,
            _ => Side::Coroutines,
        }
    }

    /// Returns the carrier of workers and threads that start now.
    pub(crate) fn carrier(&self) -> Carrier {
        if self.side() == Side::Coroutines { Carrier::Coroutine } else { Carrier::Thread }
    }

    /// Chooses a model by its number, and starts the polling thread if it needs one; returns the carrier that the
    /// caller must have. `EINVAL`, or `ENOMEM` if there is no memory for the polling thread; then nothing has changed.
    pub(crate) fn choose(&self, process: &Arc<Process>, number: usize) -> Result<Carrier, Errno> {
        let side = Side::from_number(number)?;
        if side == Side::PollingThread {
            self.poller.start(process)?;
        }
        self.side.store(side as u8, Ordering::Relaxed);
        Ok(if side == Side::Coroutines { Carrier::Coroutine } else { Carrier::Thread })
    }

    /// Returns to coroutines, for another program.
    pub(crate) fn reset(&self) {
        self.side.store(Side::Coroutines as u8, Ordering::Relaxed);
    }

    /// Returns whether an asynchronous call that must wait is left to the polling thread.
    #[inline(always)]
    pub(crate) fn takes(&self, operation: &Operation) -> bool {
        is_transfer(operation) && self.side() == Side::PollingThread
    }

    /// Gives a transfer to the polling thread and returns that thread's coroutine; returns the transfer if there is no
    /// memory.
    pub(crate) fn submit(&self, operation: Operation, call: Submitted) -> Result<Cid, Operation> {
        self.poller.submit(operation, call)
    }

    /// Gives the polling thread the present effective priority of the process's claim.
    pub(crate) fn order_anew(&self, process: &Process) {
        if let Some(thread) = self.poller.thread() {
            executor::set_priority(thread, process.claimed_priority());
        }
    }

    /// Makes the polling thread see that the process has ended.
    pub(crate) fn call_back(&self) {
        if let Some(thread) = self.poller.thread() {
            executor::wake(thread);
        }
    }
}

/// Returns whether an operation moves something through a file, so that trying again is a way of waiting.
fn is_transfer(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Read { .. }
            | Operation::Write { .. }
            | Operation::Accept { .. }
            | Operation::Connect { .. }
            | Operation::Send { .. }
            | Operation::Receive { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;
    use abi_unix::SystemCall;

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
            let (process, model) = (program.process(), Model::default());
            assert_eq!((model.side(), model.carrier()), (Side::Coroutines, Carrier::Coroutine));
            for side in [Side::WaitingThreads, Side::RetryingThreads, Side::Coroutines, Side::RetryingThreads] {
                let carrier = if side == Side::Coroutines { Carrier::Coroutine } else { Carrier::Thread };
                assert_eq!(model.choose(&process, side as usize), Ok(carrier));
                assert_eq!((model.side(), model.carrier()), (side, carrier));
            }
            model.reset();
            assert_eq!(model.side(), Side::Coroutines);
            assert!(model.poller.thread().is_none());
        });
    }

    #[test]
    fn a_model_of_the_kernel_s_side_is_one_of_four() {
        run(|program| {
            assert_eq!(program.call(SystemCall::KernelSide, [4]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::KernelSide, [0]), Ok(0));
            assert_eq!(program.process().model.side(), Side::Coroutines);
        });
    }
}
