//! Asynchronous calls from their submission to their completion, whichever coroutine or thread goes on with them.

use abi_queue::{Completion, Priority};
use abi_unix::{Errno, errno};

use crate::asynchronous::operation::Operation;
use crate::process::Process;

/// Parameters of an asynchronous call, beside the call itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission {
    /// Returned with the completion.
    pub token: u64,
    /// The coroutine that waits.
    pub cid: u64,
    /// Priority of the call.
    pub priority: Priority,
}

/// A submission that is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    /// The key under which the process knows the call.
    pub key: u64,
    /// The program's parameters.
    pub submission: Submission,
}

impl Submitted {
    /// Returns the priority of the call.
    pub(crate) fn priority(&self) -> Priority {
        self.submission.priority
    }

    /// Returns whether the call is not to be attempted any more: its process has ended or has cancelled it.
    #[inline]
    pub(crate) fn is_given_up(&self, process: &Process, operation: &Operation) -> bool {
        process.has_ended() || !operation.must_be_completed() && process.call_is_cancelled(self.key)
    }

    /// Returns the completion of the call, with its key.
    #[inline]
    pub(crate) fn completion(&self, result: Result<usize, Errno>) -> (u64, Completion) {
        let Submission { token, cid, .. } = self.submission;
        (self.key, Completion { token, cid, result: errno::encode(result) as u64 })
    }

    /// Ends the call. Everything that the operation held is let go before, because readers of the completion may rely
    /// on that.
    pub(crate) fn complete(&self, process: &Process, operation: &mut Operation, result: Result<usize, Errno>) {
        operation.let_go();
        process.complete_calls(&[self.completion(result)], self.priority());
    }
}
