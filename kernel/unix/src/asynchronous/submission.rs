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

/// A call that has begun and that its request ring holds.
pub(crate) type HeldCall = (Operation, Submission);

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

    /// Ends the call. The operation lets go of its files and buffers before, because readers of the completion may rely
    /// on that.
    pub(crate) fn complete(&self, process: &Process, operation: &mut Operation, result: Result<usize, Errno>) {
        operation.let_go();
        process.complete_calls(&[self.completion(result)], self.priority());
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::types::TimeSpec;
    use abi_unix::{Errno, SystemCall};

    use crate::testing::{Program, run};

    fn time(program: &mut Program, ns: u64) -> usize {
        program.store(&TimeSpec::from_ns(ns).to_bytes())
    }

    #[test]
    fn a_call_that_need_not_wait_is_done_at_once_and_posts_nothing() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let place = program.place(8);
            assert_eq!(program.submit(SystemCall::Write, [writer, place, 3], 1), Some(Ok(3)));
            assert_eq!(program.submit(SystemCall::Read, [reader, place, 8], 2), Some(Ok(3)));
            assert_eq!(program.submit(SystemCall::Read, [77, place, 8], 3), Some(Err(Errno::EBADF)));
            assert_eq!(program.submit(SystemCall::Wait, [usize::MAX, 0, 0, 0], 4), Some(Err(Errno::ECHILD)));
            assert_eq!(program.completions(), []);
            assert_eq!(program.call(SystemCall::Cancel, [1]), Err(Errno::ENOENT));
        });
    }

    #[test]
    fn completions_carry_the_token_and_the_coroutine_and_come_as_calls_end() {
        run(|program| {
            let (late, soon) = (time(program, 3_000_000), time(program, 1_000_000));
            assert_eq!(program.submit(SystemCall::Sleep, [late, 0], 1), None);
            assert_eq!(program.submit(SystemCall::Sleep, [soon, 0], 2), None);
            program.sleep_ns(10_000_000);
            let found: Vec<_> = program.completions().iter().map(|done| (done.token, done.cid, done.result)).collect();
            assert_eq!(found, [(2, 1002, 0), (1, 1001, 0)]);
        });
    }

    #[test]
    fn a_token_names_one_call_at_a_time() {
        run(|program| {
            let time = time(program, 1_000_000);
            assert_eq!(program.submit(SystemCall::Sleep, [time, 0], 9), None);
            assert_eq!(program.submit(SystemCall::Sleep, [time, 0], 9), Some(Err(Errno::EEXIST)));
            assert_eq!(program.await_completions(), [(9, Ok(0))]);
            assert_eq!(program.submit(SystemCall::Sleep, [time, 0], 9), None);
            assert_eq!(program.await_completions(), [(9, Ok(0))]);
        });
    }

    #[test]
    fn calls_in_flight_have_a_limit() {
        run(|program| {
            let which = abi_unix::types::limit::CALLS_IN_FLIGHT as usize;
            let limit = program.store(&abi_unix::types::limit::to_bytes(3, 3));
            assert_eq!(program.call(SystemCall::ProcessLimit, [0, which, limit, 0]), Ok(0));
            let time = time(program, 1_000_000);
            for token in 0..3 {
                assert_eq!(program.submit(SystemCall::Sleep, [time, 0], token), None);
            }
            assert_eq!(program.submit(SystemCall::Sleep, [time, 0], 3), Some(Err(Errno::EBUSY)));
            let mut done = 0;
            while done < 3 {
                done += program.await_completions().len();
            }
            assert_eq!(program.submit(SystemCall::Sleep, [time, 0], 3), None);
        });
    }
}
