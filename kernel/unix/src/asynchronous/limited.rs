//! Calls on sockets that wait for a limited time (`SO_RCVTIMEO`, `SO_SNDTIMEO`), and transfers that may not wait but
//! have stopped for an interrupt.
//!
//! The latter go on as long as they move bytes: programs expect, as on Linux, that a call which may not wait moves all
//! that there is room for.
//!
//! A call that must wait at a socket with a time limit is put into a [`LimitedWait`], which gives it up when its time
//! is over, as a call that may not wait at all is given up. Calls on other files are what they were.

use alloc::sync::Arc;
use core::task::{Poll, Waker};

use abi_unix::Errno;

use crate::asynchronous::operation::Operation;
use crate::process::Process;
use crate::time::limit::TimeLimit;

/// A call, and the end of its time.
#[doc(alias = "sk_rcvtimeo")]
#[doc(alias = "sk_sndtimeo")]
pub(crate) struct LimitedWait {
    operation: Operation,
    limit: TimeLimit,
    limit_ms: u64,
    /// Messages of several that were done when the time began.
    done: usize,
    /// Bytes that a transfer which may not wait had moved after the last try.
    moved: Option<usize>,
}

impl LimitedWait {
    /// Gives a call so many milliseconds from now.
    pub(crate) fn new(operation: Operation, limit_ms: u64) -> LimitedWait {
        let done = done_of(&operation);
        LimitedWait {
            operation,
            limit: TimeLimit::after_ns(limit_ms.saturating_mul(1_000_000)),
            limit_ms,
            done,
            moved: None,
        }
    }

    /// Lets a transfer that may not wait, and has stopped for an interrupt, go on.
    pub(crate) fn going_on(operation: Operation) -> LimitedWait {
        let moved = operation.give_up(Errno::EAGAIN).ok();
        LimitedWait { moved, ..LimitedWait::new(operation, 0) }
    }

    /// Returns the call.
    pub(crate) fn operation(&self) -> &Operation {
        &self.operation
    }

    /// Tries the call; gives it up when its time is over.
    pub(crate) fn poll(&mut self, process: &Arc<Process>, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
        let polled = self.operation.poll(process, waker);
        if polled.is_ready() {
            self.limit.clear();
            return polled;
        }
        if let (Some(before), Some(waker)) = (self.moved, waker) {
            let given_up = self.operation.give_up(Errno::EAGAIN);
            if given_up == Ok(before) {
                self.operation.note_caller(process);
                return Poll::Ready(given_up);
            }
            // It may have stopped for an interrupt again, or there is no more room: the next try tells.
            self.moved = given_up.ok();
            waker.wake_by_ref();
            return Poll::Pending;
        }
        // As on Linux, each of several messages has this time.
        let done = done_of(&self.operation);
        if done != self.done {
            self.limit.clear();
            (self.limit, self.done) = (TimeLimit::after_ns(self.limit_ms.saturating_mul(1_000_000)), done);
        }
        if self.limit.has_passed() && !self.operation.must_be_completed() {
            return Poll::Ready(self.operation.give_up(Errno::EAGAIN));
        }
        if let Some(waker) = waker
            && let Err(error) = self.limit.arm(waker)
            && !self.operation.must_be_completed()
        {
            // The call tells what it has moved before.
            return Poll::Ready(self.operation.give_up(error));
        }
        Poll::Pending
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&mut self, waker: &Waker) {
        self.limit.clear();
        self.operation.forget(waker);
    }
}

fn done_of(operation: &Operation) -> usize {
    match operation {
        Operation::Messages(batch) => batch.done(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{self, SocketAddress, socket_option as option};
    use hal_api::Machine as _;
    use platform::Machine;

    use super::*;
    use crate::testing::{Program, run};
    use crate::time;

    fn time(seconds: i64, microseconds: i64) -> Vec<u8> {
        [seconds, microseconds].map(i64::to_le_bytes).concat()
    }

    fn set(program: &mut Program, socket: usize, name: u32, value: &[u8]) -> Result<usize, Errno> {
        let place = program.store(value);
        let call = [socket, option::SOL_SOCKET as usize, name as usize, place, value.len()];
        program.call(SystemCall::SetSocketOption, call)
    }

    fn get(program: &mut Program, socket: usize, name: u32) -> Vec<u8> {
        let (place, size) = (program.place(16), program.store(&16u32.to_le_bytes()));
        let call = [socket, option::SOL_SOCKET as usize, name as usize, place, size];
        assert_eq!(program.call(SystemCall::GetSocketOption, call), Ok(0));
        program.read(place, program.read_u32(size) as usize)
    }

    /// Makes a call that must end with this error after 20 milliseconds.
    fn expect_in_time(program: &mut Program, call: SystemCall, arguments: [usize; 6], expected: Errno) {
        let begin = Machine::now();
        assert_eq!(program.call(call, arguments), Err(expected), "{}", call.name());
        let waited = time::ns_at_ticks(Machine::now() - begin);
        assert!((20_000_000..40_000_000).contains(&waited), "{}: {waited}", call.name());
    }

    /// Sockets of every kind: streams, datagrams, requests to the kernel, local ones; every call that waits there.
    #[test]
    fn every_kind_of_socket_has_time_limits() {
        run(|program| {
            let (place, pair) = (program.place(64), program.socket_pair(types::SOCK_STREAM));
            let buffers = program.store(&[place, 8].map(usize::to_le_bytes).concat());
            let header = types::MessageHeader { buffers: buffers as u64, count: 1, ..Default::default() };
            let header = program.store(&[&header.to_bytes()[..], &[0; 8]].concat());
            let kinds = [(2, 2, 0), (10, 2, 0), (2, 1, 0), (16, 3, 0)];
            let mut sockets = kinds
                .map(|(family, kind, protocol)| program.call(SystemCall::Socket, [family, kind, protocol]).unwrap());
            let listener = sockets[2];
            let address = program.store(&SocketAddress { address: [127, 0, 0, 1], port: 4720 }.to_bytes());
            assert_eq!(program.call(SystemCall::Bind, [listener, address, 16]), Ok(0));
            assert_eq!(program.call(SystemCall::Listen, [listener, 1]), Ok(0));
            for socket in sockets.into_iter().chain([pair.0]) {
                assert_eq!(get(program, socket, option::SO_RCVTIMEO), time(0, 0));
                assert_eq!(set(program, socket, option::SO_RCVTIMEO, &time(0, 19_001)), Ok(0));
                assert_eq!(get(program, socket, option::SO_RCVTIMEO), time(0, 20_000), "in whole milliseconds");
                assert_eq!(get(program, socket, option::SO_SNDTIMEO), time(0, 0));
            }
            expect_in_time(program, SystemCall::Accept, [listener, 0, 0, 0, 0, 0], Errno::EAGAIN);
            let client = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
            assert_eq!(program.call(SystemCall::Connect, [client, address, 16]), Ok(0));
            // A connection has the limits of its listener.
            sockets[2] = program.call(SystemCall::Accept, [listener, 0, 0]).unwrap();
            for socket in sockets.into_iter().chain([pair.0]) {
                expect_in_time(program, SystemCall::Read, [socket, place, 8, 0, 0, 0], Errno::EAGAIN);
                expect_in_time(program, SystemCall::ReceiveFrom, [socket, place, 8, 0, 0, 0], Errno::EAGAIN);
                expect_in_time(program, SystemCall::ReceiveMessage, [socket, header, 0, 0, 0, 0], Errno::EAGAIN);
                expect_in_time(program, SystemCall::ReceiveMessages, [socket, header, 1, 0, 0, 0], Errno::EAGAIN);
            }
            // Room, of which some is found first.
            let large = program.place(16 << 10);
            for socket in [sockets[2], pair.0] {
                assert_eq!(set(program, socket, option::SO_SNDTIMEO, &time(0, 20_000)), Ok(0));
                let mut sent = 0;
                while let Ok(more) = program.call(SystemCall::SendTo, [socket, large, 16 << 10, 0, 0, 0]) {
                    sent += more;
                }
                assert!(sent > 0);
                expect_in_time(program, SystemCall::Write, [socket, place, 8, 0, 0, 0], Errno::EAGAIN);
                assert_eq!(set(program, socket, option::SO_SNDTIMEO, &time(0, 0)), Ok(0));
            }
            // Bytes that come in time are received, and the alarm is taken back.
            program
                .add_worker(move |program| {
                    program.sleep_ns(5_000_000);
                    assert_eq!(program.write_to(pair.1, b"in time"), Ok(7));
                })
                .unwrap();
            assert_eq!(program.read_from(pair.0, 64), Ok(b"in time".to_vec()));
        });
    }

    /// The end of a process takes the alarm and the registration of its call back.
    #[test]
    fn a_process_is_killed_within_a_limited_wait() {
        run(|program| {
            let child = program.spawn(|program| {
                let socket = program.call(SystemCall::Socket, [2, 2, 0]).unwrap();
                assert_eq!(set(program, socket, option::SO_RCVTIMEO, &time(1, 0)), Ok(0));
                let _ = program.read_from(socket, 8);
                panic!("it was killed");
            });
            let child = child.unwrap();
            program.sleep_ns(1_000_000);
            let begin = Machine::now();
            assert_eq!(program.call(SystemCall::Kill, [child, types::signal::KILL as usize]), Ok(0));
            assert_eq!(program.wait_for(child), Ok((child, types::signal::KILL)));
            assert!(time::ns_at_ticks(Machine::now() - begin) < 500_000_000);
            // Behind the end of the time.
            program.sleep_ns(1_100_000_000);
        });
    }

    #[test]
    fn time_limits_are_checked() {
        run(|program| {
            let (reader, _) = program.pipe(0);
            let socket = program.call(SystemCall::Socket, [2, 2, 0]).unwrap();
            for name in [option::SO_RCVTIMEO, option::SO_SNDTIMEO, option::SO_RCVTIMEO_NEW, option::SO_SNDTIMEO_NEW] {
                assert_eq!(set(program, reader, name, &time(1, 0)), Err(Errno::ENOTSOCK));
                assert_eq!(set(program, socket, name, &time(1, 0)[..15]), Err(Errno::EINVAL));
                assert_eq!(set(program, socket, name, &time(1, 1_000_000)), Err(Errno::EDOM));
                assert_eq!(set(program, socket, name, &time(1, -1)), Err(Errno::EDOM));
                assert_eq!(set(program, socket, name, &time(2, 500_000)), Ok(0));
                assert_eq!(get(program, socket, name), time(2, 500_000));
                // Longer than any call waits.
                assert_eq!(set(program, socket, name, &time(i64::MAX, 0)), Ok(0));
                assert_eq!(get(program, socket, name), time(0, 0));
            }
            // A time in the past does not wait.
            assert_eq!(set(program, socket, option::SO_RCVTIMEO, &time(-1, 0)), Ok(0));
            assert_eq!(program.read_from(socket, 8), Err(Errno::EAGAIN));
        });
    }

    /// A limited asynchronous call ends by itself, and by cancellation.
    #[test]
    fn asynchronous_calls_have_time_limits() {
        run(|program| {
            let (a, b) = program.socket_pair(types::SOCK_STREAM);
            let place = program.place(8);
            assert_eq!(set(program, a, option::SO_RCVTIMEO, &time(0, 20_000)), Ok(0));
            assert_eq!(program.submit(SystemCall::Read, [a, place, 8], 1), None);
            assert_eq!(program.await_completions(), [(1, Err(Errno::EAGAIN))]);
            assert_eq!(program.submit(SystemCall::Read, [a, place, 8], 2), None);
            assert_eq!(program.call(SystemCall::Cancel, [2]), Ok(0));
            assert_eq!(program.await_completions(), [(2, Err(Errno::ECANCELED))]);
            assert_eq!(program.submit(SystemCall::Read, [a, place, 8], 3), None);
            program.write_to(b, b"x").unwrap();
            assert_eq!(program.await_completions(), [(3, Ok(1))]);
        });
    }
}
