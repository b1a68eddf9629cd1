//! Several messages of one call: `sendmmsg` and `recvmmsg`.
//!
//! A batch makes one message after the other ([`BatchOwner::begin`]), and moves it. The program's memory has the
//! length and the sender before the next one begins, so a batch can end between any two, with the number of messages
//! that are done. A failure after the first is no failure of the call; one that its socket still has is left there for
//! the next call.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::task::{Poll, Waker};

use abi_unix::types::{MessageHeader, TimeSpec, epoll as event, message};
use abi_unix::{Errno, SystemCall};
use spin::Mutex;

use crate::asynchronous::messages::{MessageToReceive, MessageToSend};
use crate::files::descriptor::Descriptors;
use crate::files::file::{Attempt, OpenFile};
use crate::process::user::Caller;
use crate::scheduling::steps;
use crate::time;

/// One message of a batch.
pub(crate) enum BatchMessage {
    /// To be sent.
    Send(Box<MessageToSend>),
    /// To be received.
    Receive(Box<MessageToReceive>),
}

impl BatchMessage {
    /// Returns the bytes that were moved, and told to the program, before the message is done.
    fn part(&self) -> usize {
        match self {
            BatchMessage::Send(sending) => sending.sent(),
            BatchMessage::Receive(receiving) => receiving.received(),
        }
    }

    fn must_be_completed(&self) -> bool {
        match self {
            BatchMessage::Send(_) => false,
            BatchMessage::Receive(receiving) => receiving.must_be_completed(),
        }
    }

    fn poll(&mut self, owner: &dyn BatchOwner, waker: Option<&Waker>) -> Attempt {
        match self {
            BatchMessage::Send(sending) => sending.poll(owner.caller(), waker),
            BatchMessage::Receive(receiving) => receiving.poll(owner.caller(), owner.descriptors(), waker),
        }
    }
}

/// The process of a batch.
pub(crate) trait BatchOwner {
    /// Returns it as the caller of its messages.
    fn caller(&self) -> &dyn Caller;

    /// Returns the descriptors for files that are received.
    fn descriptors(&self) -> &Mutex<Descriptors>;

    /// Makes the message of this call whose header is at this address, with these flags.
    fn begin(&self, call: SystemCall, file: Arc<OpenFile>, at: usize, flags: u32) -> Result<BatchMessage, Errno>;
}

/// Greatest number of messages of one call (Linux: `UIO_MAXIOV`).
const MOST_MESSAGES: usize = 1024;

/// The time limit of a batch, and the address at which the program is told what is left of it.
struct BatchLimit {
    deadline_ns: u64,
    address: usize,
}

/// A `sendmmsg` or `recvmmsg`, decoded.
#[doc(alias = "mmsghdr")]
pub(crate) struct MessageBatch {
    call: SystemCall,
    file: Arc<OpenFile>,
    /// Address of the next message's header, or of that which is under way.
    header: usize,
    /// Messages that are not done.
    left: usize,
    /// Messages that are done.
    done: usize,
    flags: u32,
    limit: Option<BatchLimit>,
    /// The message that is under way.
    current: Option<BatchMessage>,
}

impl MessageBatch {
    /// Makes one of so many messages, at most, whose headers are at this address.
    pub(crate) fn new(call: SystemCall, file: Arc<OpenFile>, header: usize, count: usize) -> MessageBatch {
        let left = count.min(MOST_MESSAGES);
        MessageBatch { call, file, header, left, done: 0, flags: 0, limit: None, current: None }
    }

    /// Sets the flags of the call.
    pub(crate) fn with_flags(self, flags: u32) -> MessageBatch {
        MessageBatch { flags, ..self }
    }

    /// Sets a time limit from now on, of which the program is told at this address.
    pub(crate) fn with_limit(self, limit_ns: u64, address: usize) -> MessageBatch {
        let deadline_ns = time::now_ns().saturating_add(limit_ns);
        MessageBatch { limit: Some(BatchLimit { deadline_ns, address }), ..self }
    }

    /// Returns the socket.
    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Returns the call.
    pub(crate) fn call(&self) -> SystemCall {
        self.call
    }

    /// Returns whether a message was taken that would be lost if the batch went on no more.
    pub(crate) fn must_be_completed(&self) -> bool {
        self.current.as_ref().is_some_and(BatchMessage::must_be_completed)
    }

    /// Returns the number of messages that are done, with one of which a part is.
    pub(crate) fn done(&self) -> usize {
        self.done + usize::from(self.part() > 0)
    }

    /// Returns the bytes that were moved of the message that is under way.
    fn part(&self) -> usize {
        self.current.as_ref().map_or(0, BatchMessage::part)
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&self, waker: &Waker) {
        match &self.current {
            Some(BatchMessage::Send(sending)) => sending.forget(waker),
            Some(BatchMessage::Receive(_)) => self.file.object().forget_reader(waker),
            None => {}
        }
    }

    /// Does messages until all are done, or one fails.
    pub(crate) fn poll(&mut self, owner: &dyn BatchOwner, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
        let mut has_begun = false;
        while self.left > 0 {
            if has_begun && steps::must_stop(owner.caller(), waker) {
                return Poll::Pending;
            }
            has_begun = true;
            match self.poll_current(owner, waker) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => break,
                Poll::Ready(Err(_)) if self.done > 0 => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    // A call that is given up in the middle of a message counts it.
                    if self.part() > 0 {
                        let _ = self.tell_length(owner, self.part());
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(self.done))
    }

    /// Goes on with the message that is under way, or begins the next. Returns whether another may follow.
    fn poll_current(&mut self, owner: &dyn BatchOwner, waker: Option<&Waker>) -> Poll<Result<bool, Errno>> {
        // Found by the message itself, a failure would be taken from the socket, and lost.
        let may_end = self.part() == 0 && !self.must_be_completed();
        if self.done > 0 && may_end && self.file.readiness(owner.caller(), event::ERR, None)? != 0 {
            return Poll::Ready(Ok(false));
        }
        let mut current = match self.current.take() {
            Some(current) => current,
            None => {
                owner.caller().account().admit()?;
                let wait = if self.done > 0 && self.flags & message::WAITFORONE != 0 { message::DONTWAIT } else { 0 };
                let flags = self.flags & !message::WAITFORONE | wait;
                owner.begin(self.call, self.file.clone(), self.header, flags)?
            }
        };
        let length = match current.poll(owner, waker) {
            Poll::Ready(length) => length?,
            Poll::Pending => {
                self.current = Some(current);
                return Poll::Pending;
            }
        };
        self.tell_length(owner, length)?;
        (self.header, self.left, self.done) =
            (self.header + MessageHeader::SIZE_IN_ARRAY, self.left - 1, self.done + 1);
        let is_whole = match &current {
            BatchMessage::Send(sending) => length == sending.length(),
            BatchMessage::Receive(_) => true,
        };
        Poll::Ready(Ok(is_whole && self.is_within_limit(owner)?))
    }

    /// Writes the length of the message that is under way behind its header.
    fn tell_length(&self, owner: &dyn BatchOwner, length: usize) -> Result<(), Errno> {
        owner.caller().copy_out(self.header + MessageHeader::SIZE, &(length as u32).to_le_bytes())
    }

    /// Tells the program what is left of its time; returns whether anything is.
    fn is_within_limit(&self, owner: &dyn BatchOwner) -> Result<bool, Errno> {
        let Some(limit) = &self.limit else { return Ok(true) };
        let left_ns = limit.deadline_ns.saturating_sub(time::now_ns());
        owner.caller().copy_out(limit.address, &TimeSpec::from_ns(left_ns).to_bytes())?;
        Ok(left_ns > 0)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use abi_unix::types::{self, SocketAddress, socket_option};

    use super::*;
    use crate::testing::{Program, run};

    /// An address at which no program has memory.
    const NOWHERE: usize = 0x10;

    /// Stores the headers of several messages of one buffer each; returns their address.
    fn headers(program: &mut Program, buffers: &[(usize, usize)]) -> usize {
        let list: Vec<u8> = buffers
            .iter()
            .flat_map(|buffer| {
                let place = program.store(&[buffer.0, buffer.1].map(usize::to_le_bytes).concat());
                let header = MessageHeader { buffers: place as u64, count: 1, ..MessageHeader::default() };
                [&header.to_bytes()[..], &[0xff; 8]].concat()
            })
            .collect();
        program.store(&list)
    }

    fn lengths(program: &Program, headers: usize, count: usize) -> Vec<u32> {
        let at = |index| headers + index * MessageHeader::SIZE_IN_ARRAY + MessageHeader::SIZE;
        (0..count).map(|index| program.read_u32(at(index))).collect()
    }

    const UNTOLD: u32 = u32::MAX;

    #[test]
    fn several_messages_go_in_one_call_each_way() {
        run(|program| {
            for kind in [types::SOCK_DGRAM, types::SOCK_SEQPACKET] {
                let (a, b) = program.socket_pair(kind | types::SOCK_NONBLOCK);
                let bytes = program.store(b"abcdef");
                let sent = headers(program, &[(bytes, 1), (bytes + 1, 2), (bytes + 3, 3)]);
                assert_eq!(program.call(SystemCall::SendMessages, [a, sent, 3, 0]), Ok(3));
                assert_eq!(lengths(program, sent, 3), [1, 2, 3]);
                let place = program.place(40);
                let received = headers(program, &[0, 10, 20, 30].map(|at| (place + at, 2)));
                assert_eq!(program.call(SystemCall::ReceiveMessages, [b, received, 4, 0, 0]), Ok(3));
                assert_eq!(lengths(program, received, 4), [1, 2, 2, UNTOLD]);
                assert_eq!([0, 10, 20].map(|at| program.read(place + at, 2)), [*b"a\0", *b"bc", *b"de"]);
                let call = [b, received, 4, 0, 0];
                assert_eq!(program.call(SystemCall::ReceiveMessages, call), Err(Errno::EAGAIN));
                // None is asked for; a second one fails; more than the greatest number.
                assert_eq!(program.call(SystemCall::SendMessages, [a, sent, 0, 0]), Ok(0));
                let half_bad = headers(program, &[(bytes, 1), (NOWHERE, 1)]);
                assert_eq!(program.call(SystemCall::SendMessages, [a, half_bad, 2, 0]), Ok(1));
                assert_eq!(lengths(program, half_bad, 2), [1, UNTOLD]);
                assert_eq!(program.call(SystemCall::SendMessages, [a, NOWHERE, 2, 0]), Err(Errno::EFAULT));
                assert_eq!(program.call(SystemCall::SendMessages, [a, sent, 3, 0x8000_0000]), Err(Errno::EOPNOTSUPP));
                assert_eq!(program.read_from(b, 9), Ok(b"a".to_vec()));
            }
            let (reader, _) = program.pipe(0);
            for call in [SystemCall::SendMessages, SystemCall::ReceiveMessages] {
                assert_eq!(program.call(call, [reader, NOWHERE, 1, 0, 0]), Err(Errno::ENOTSOCK));
                assert_eq!(program.call(call, [99, NOWHERE, 1, 0, 0]), Err(Errno::EBADF));
            }
        });
    }

    /// One that does not fit is sent as far as there is room, and then no other.
    #[test]
    fn a_message_that_is_cut_is_the_last_one() {
        run(|program| {
            let (a, b) = program.socket_pair(types::SOCK_STREAM | types::SOCK_NONBLOCK);
            let bytes = program.place(50_000);
            let sent = headers(program, &[(bytes, 50_000), (bytes, 50_000), (bytes, 1)]);
            assert_eq!(program.call(SystemCall::SendMessages, [a, sent, 3, 0]), Ok(2));
            assert_eq!(lengths(program, sent, 3), [50_000, 15_536, UNTOLD]);
            assert_eq!(program.call(SystemCall::SendMessages, [a, sent, 3, 0]), Err(Errno::EAGAIN));
            let place = program.place(50_000);
            let received = headers(program, &[(place, 50_000), (place, 50_000)]);
            assert_eq!(program.call(SystemCall::ReceiveMessages, [b, received, 2, 0, 0]), Ok(2));
            assert_eq!(lengths(program, received, 2), [50_000, 15_536]);
        });
    }

    /// A receiver waits for all messages, for the first one, or until its time is over when one comes.
    #[test]
    fn a_receiver_waits_as_its_flags_and_its_time_say() {
        run(|program| {
            let (a, b) = program.socket_pair(types::SOCK_DGRAM);
            let place = program.place(16);
            let second = TimeSpec::from_ns(1_000_000_000).to_bytes();
            let time = program.store(&second);
            for (flags, time, received) in [(0, 0, 3), (message::WAITFORONE, 0, 1), (0, time, 2)] {
                let sender = program.fork(move |program| {
                    for _ in 0..3 {
                        program.sleep_ns(600_000_000);
                        assert_eq!(program.write_to(a, b"x"), Ok(1));
                    }
                });
                let headers = headers(program, &[(place, 8); 3]);
                let call = [b, headers, 3, flags as usize, time];
                assert_eq!(program.call(SystemCall::ReceiveMessages, call), Ok(received), "{flags:#x} {time}");
                if time != 0 {
                    assert_eq!(program.read(time, 16), [0; 16], "nothing is left");
                    program.write(time, &second);
                    let call = [b, headers, 1, message::DONTWAIT as usize, time];
                    assert_eq!(program.call(SystemCall::ReceiveMessages, call), Err(Errno::EAGAIN));
                    assert_eq!(program.read(time, 16), second, "without a message it is as it was");
                }
                program.wait_for(sender.unwrap()).unwrap();
                for _ in received..3 {
                    assert_eq!(program.read_from(b, 8), Ok(b"x".to_vec()));
                }
            }
            let bad = program.store(&[0xff; 16]);
            assert_eq!(program.call(SystemCall::ReceiveMessages, [b, place, 1, 0, bad]), Err(Errno::EINVAL));
        });
    }

    /// With `IP_RECVERR` a socket without a peer has the failures of all of its datagrams. One that comes after a
    /// message ends the call, and is the next one's.
    #[test]
    fn a_failure_after_a_message_is_left_for_the_next_call() {
        run(|program| {
            let socket = program.call(SystemCall::Socket, [2, 2, 0]).unwrap();
            let at = |program: &mut Program, port| {
                program.store(&SocketAddress { address: [127, 0, 0, 1], port }.to_bytes())
            };
            let (itself, nobody) = (at(program, 4712), at(program, 4713));
            assert_eq!(program.call(SystemCall::Bind, [socket, itself, 16]), Ok(0));
            let byte = program.store(b"x");
            let send = move |program: &mut Program, to| {
                assert_eq!(program.call(SystemCall::SendTo, [socket, byte, 1, 0, to, 16]), Ok(1));
            };
            let failure = move |program: &mut Program| {
                let (value, size) = (program.place(8), program.store(&4u32.to_le_bytes()));
                let asked = [socket_option::SOL_SOCKET, socket_option::SO_ERROR].map(|word| word as usize);
                let call = [socket, asked[0], asked[1], value, size];
                assert_eq!(program.call(SystemCall::GetSocketOption, call), Ok(0));
                program.read_u32(value)
            };
            send(program, nobody);
            assert_eq!(failure(program), 0);
            let one = program.store(&1u32.to_le_bytes());
            let option = [socket_option::IPPROTO_IP, socket_option::IP_RECVERR].map(|word| word as usize);
            assert_eq!(program.call(SystemCall::SetSocketOption, [socket, option[0], option[1], one, 4]), Ok(0));
            send(program, nobody);
            assert_eq!([failure(program), failure(program)], [111, 0]);
            let sender = program.fork(move |program| {
                program.sleep_ns(1_000_000);
                send(program, itself);
                program.sleep_ns(1_000_000);
                send(program, nobody);
            });
            let place = program.place(16);
            let headers = headers(program, &[(place, 8); 2]);
            assert_eq!(program.call(SystemCall::ReceiveMessages, [socket, headers, 2, 0, 0]), Ok(1));
            let again = program.call(SystemCall::ReceiveMessages, [socket, headers, 2, 0, 0]);
            assert_eq!(again, Err(Errno::ECONNREFUSED));
            program.wait_for(sender.unwrap()).unwrap();
        });
    }
}
