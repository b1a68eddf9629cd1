//! The operations of `sendmsg` and `recvmsg`: messages in several buffers, with open files.
//!
//! The header of a message was read once, when the call was decoded; only results are written to it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::slice;
use core::task::{Poll, Waker, ready};

use abi_unix::Errno;
use abi_unix::types::{MessageHeader, message, socket_option};
use spin::Mutex;

use crate::files::descriptor::Descriptors;
use crate::files::file::{Attempt, OpenFile};
use crate::files::gathered::{Gathered, are_many_to_fill};
use crate::files::local_socket::connecting::NamedSocket;
use crate::files::message::{AddressRoom, ControlKind, LONGEST_DETAIL, MessageSpace, Recipient};
use crate::files::sent_files::{OutgoingMessage, Receipt, ReceivedMessage, SentFiles};
use crate::process::user::{AddressOut, Buffers, Caller, UserBuffer, length_of};
use crate::scheduling::steps::{self, Effort};

/// A message to send.
#[doc(alias = "sendmsg")]
pub(crate) struct MessageToSend {
    /// The socket.
    file: Arc<OpenFile>,
    /// The bytes.
    buffers: Buffers,
    /// Flags of the call.
    flags: u32,
    /// The receiver, once it is found.
    to: Recipient,
    /// The local socket that is to be the receiver.
    named: Option<NamedSocket>,
    /// Open files, until they are sent.
    files: Option<SentFiles>,
    /// Bytes that were sent.
    sent: usize,
    /// Bytes of many buffers that are inseparable.
    gathered: Option<Box<Gathered>>,
    /// There was a look at interrupts before it began.
    has_looked: bool,
}

/// The place for a message's sender and control messages.
pub(crate) enum MessageOut {
    /// `recvfrom`: an address, or nothing.
    Address(Option<AddressOut>),
    /// `recvmsg`: a header at this address, which was read.
    Header(usize, MessageHeader),
}

/// A message to receive.
#[doc(alias = "recvmsg")]
pub(crate) struct MessageToReceive {
    /// The socket.
    file: Arc<OpenFile>,
    /// The place for the bytes.
    buffers: Buffers,
    /// Flags of the call.
    flags: u32,
    /// The place for everything else.
    out: MessageOut,
    /// Bytes of a stream that were received, and told to the caller.
    done: usize,
    /// A message that was received for many buffers.
    gathered: Option<Box<GatheredMessage>>,
    /// A message of which the caller is still to be told, and whether there was a look before that.
    taken: Option<Box<ReceivedMessage>>,
    has_looked: bool,
}

/// A message in the kernel's buffer, until it is in those of the program.
struct GatheredMessage {
    gathered: Gathered,
    /// All about it but its bytes, once it is there.
    received: Option<ReceivedMessage>,
}

/// Bytes before the data of a control message (`struct cmsghdr`).
pub(crate) const CONTROL_HEADER: usize = 16;

/// Returns whether a call on a socket with these flags must not wait.
pub(crate) fn must_not_wait(file: &OpenFile, flags: u32) -> bool {
    file.is_non_blocking() || flags & message::DONTWAIT != 0
}

impl MessageToSend {
    /// Makes a message of which nothing was sent.
    pub(crate) fn new(
        file: Arc<OpenFile>,
        buffers: Buffers,
        flags: u32,
        to: Recipient,
        files: Option<SentFiles>,
    ) -> MessageToSend {
        MessageToSend { file, buffers, flags, to, named: None, files, sent: 0, gathered: None, has_looked: false }
    }

    /// Has it go to this local socket, if there is one.
    pub(crate) fn for_local(self, named: Option<NamedSocket>) -> MessageToSend {
        MessageToSend { named, ..self }
    }

    /// Returns the socket.
    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Takes back the registration of [`poll`](Self::poll).
    pub(crate) fn forget(&self, waker: &Waker) {
        self.file.object().forget_sender(&self.to, waker);
    }

    /// Returns the number of bytes to be sent.
    pub(crate) fn length(&self) -> usize {
        length_of(&self.buffers)
    }

    /// Returns the number of bytes that were sent.
    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    /// Tries to send; inseparable bytes of many buffers are gathered first, in steps. Pending is a step that comes
    /// next, or a wait, which a call that must not wait has not.
    pub(crate) fn poll(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Attempt {
        // Lists of many buffers and files were read in this stretch.
        if !self.has_looked {
            self.has_looked = true;
            if are_many_to_fill(&self.buffers) && steps::must_stop(caller, waker) {
                return Poll::Pending;
            }
        }
        if let Some(named) = &mut self.named {
            self.to = Recipient::Local(ready!(named.poll(waker))?);
            self.named = None;
        }
        if self.gathered.is_none()
            && let Some(length) = self.file.must_gather(&self.buffers)
        {
            self.gathered = Some(Box::new(Gathered::new(caller.account(), length)?));
        }
        let must_not_wait = must_not_wait(&self.file, self.flags);
        let to_wait = if must_not_wait { None } else { waker };
        let (flags, files, sent) = (self.flags, &mut self.files, &mut self.sent);
        let attempt = match &mut self.gathered {
            Some(gathered) => {
                ready!(gathered.gather(caller, &self.buffers, waker))?;
                let (memory, buffer) = gathered.caller(caller);
                let message = OutgoingMessage::new(slice::from_ref(&buffer), &self.to, files, sent);
                self.file.send_message(&memory, message, flags, to_wait)
            }
            None => {
                let message = OutgoingMessage::new(&self.buffers, &self.to, files, sent);
                self.file.send_message(caller, message, flags, to_wait)
            }
        };
        if must_not_wait && attempt.is_pending() && !steps::stops_for_interrupts(waker) {
            self.file.is_filled_by(caller);
            return Poll::Ready(if self.sent > 0 { Ok(self.sent) } else { Err(Errno::EAGAIN) });
        }
        attempt
    }
}

impl MessageToReceive {
    /// Makes a message of which nothing was received.
    pub(crate) fn new(file: Arc<OpenFile>, buffers: Buffers, flags: u32, out: MessageOut) -> MessageToReceive {
        MessageToReceive { file, buffers, flags, out, done: 0, gathered: None, taken: None, has_looked: false }
    }

    /// Returns the socket.
    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Returns whether it has taken a message, which would be lost if it went on no more.
    #[cold]
    #[inline(never)]
    pub(crate) fn must_be_completed(&self) -> bool {
        self.taken.is_some() || self.gathered.as_ref().is_some_and(|message| message.received.is_some())
    }

    /// Returns the number of bytes of a stream that the caller has.
    pub(crate) fn received(&self) -> usize {
        self.done
    }

    /// Tries to receive: one message, or the part of a stream that is there. With `MSG_WAITALL` goes on until the
    /// buffers are full, or files came.
    pub(crate) fn poll(&mut self, caller: &dyn Caller, table: &Mutex<Descriptors>, waker: Option<&Waker>) -> Attempt {
        let space = self.file.must_scatter(&self.buffers);
        loop {
            let received = match self.taken.take() {
                Some(received) => *received,
                None => {
                    let attempt = match space {
                        Some(space) => self.take_scattered(caller, space, waker),
                        None => self.receive(caller, &self.buffers, waker),
                    };
                    match attempt {
                        Poll::Ready(Ok(received)) => received,
                        Poll::Ready(Err(_)) if self.done > 0 => return Poll::Ready(Ok(self.done)),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => return Poll::Pending,
                    }
                }
            };
            let may_have_stopped = are_many_to_fill(&self.buffers) || received.count >= Effort::BYTES;
            if received.goes_on && may_have_stopped && self.flags & message::PEEK == 0 {
                // It may have ended at an interrupt: an edge-triggered epoll tells of the bytes that are left.
                self.file.wake_watchers(caller.number());
            }
            // Hundreds of files are work of their own.
            if received.files.is_some() && !self.has_looked {
                self.has_looked = true;
                // Without memory to keep the message, the work is done in one stretch.
                if steps::must_stop(caller, waker) && caller.account().admit().is_ok() {
                    self.taken = Some(Box::new(received));
                    return Poll::Pending;
                }
            }
            let waits_for_all = self.flags & (message::WAITALL | message::PEEK) == message::WAITALL;
            let goes_on = waits_for_all && received.goes_on && received.files.is_none() && received.count > 0;
            let (count, length) = (received.count, received.length);
            self.tell(caller, table, received)?;
            if !goes_on || self.done + count == length_of(&self.buffers) {
                let value = if self.flags & message::TRUNC != 0 { length } else { count };
                return Poll::Ready(Ok(self.done + value));
            }
            self.done += count;
            if steps::must_pause(caller, waker) {
                return Poll::Pending;
            }
        }
    }

    /// Tries to receive a message into many buffers: takes it, and scatters it in steps.
    #[cold]
    fn take_scattered(&mut self, caller: &dyn Caller, space: usize, waker: Option<&Waker>) -> Receipt {
        let mut message = match self.gathered.take() {
            Some(message) => message,
            None => {
                let gathered = Gathered::new(caller.account(), space)?;
                let message = Box::new(GatheredMessage { gathered, received: None });
                // The list of the buffers was read in this stretch.
                if steps::must_stop(caller, waker) {
                    self.gathered = Some(message);
                    return Poll::Pending;
                }
                message
            }
        };
        let scattered = self.scatter(&mut message, caller, waker);
        let received = message.received.take();
        if scattered.is_pending() {
            message.received = received;
            self.gathered = Some(message);
            return Poll::Pending;
        }
        // As on Linux, a message for a bad address is lost.
        scattered.map_ok(|()| received.unwrap_or_default())
    }

    /// Goes on with a message for many buffers: receives it, or copies some of it to them.
    fn scatter(
        &self,
        message: &mut GatheredMessage,
        caller: &dyn Caller,
        waker: Option<&Waker>,
    ) -> Poll<Result<(), Errno>> {
        let count = match &message.received {
            Some(received) => received.count,
            None => {
                if message.gathered.fill() && steps::must_stop(caller, waker) {
                    return Poll::Pending;
                }
                let (memory, buffer) = message.gathered.caller(caller);
                let taken = ready!(self.receive(&memory, &[buffer], waker))?;
                let count = message.received.insert(taken).count;
                if steps::must_stop(caller, waker) {
                    return Poll::Pending;
                }
                count
            }
        };
        message.gathered.scatter(caller, &self.buffers, count, waker)
    }

    /// Tries to receive from the socket, into these buffers of this caller. `EAGAIN` if it has to wait and must not.
    fn receive(&self, memory: &dyn Caller, buffers: &[UserBuffer], waker: Option<&Waker>) -> Receipt {
        let must_not_wait = must_not_wait(&self.file, self.flags);
        let to_wait = if must_not_wait { None } else { waker };
        let object = self.file.object();
        let attempt = object.receive_message(memory, MessageSpace::new(buffers, self.done, self.flags), to_wait);
        if must_not_wait && attempt.is_pending() {
            object.is_asked_by(memory);
            return Poll::Ready(Err(Errno::EAGAIN));
        }
        attempt
    }

    /// Tells the caller about a message: its sender, its files, and what did not fit.
    fn tell(
        &self,
        caller: &dyn Caller,
        descriptors: &Mutex<Descriptors>,
        received: ReceivedMessage,
    ) -> Result<(), Errno> {
        let mut room: AddressRoom = [0; _];
        let sender = received.sender.write_to(&mut room);
        let (address, header) = match &self.out {
            MessageOut::Address(None) => return Ok(()),
            MessageOut::Address(Some(out)) => return out.write_bytes(caller, sender),
            MessageOut::Header(address, header) => (*address, header),
        };
        let mut flags = if received.length > received.count { message::TRUNC } else { 0 };
        flags |= if received.details.is_report() { message::ERRQUEUE } else { 0 };
        let (mut rest, mut is_whole) = (*header, true);
        received.details.tell(&received.sender, |kind, data| {
            let (length, all) = put_control(caller, kind, data, &rest);
            rest = behind(&rest, length);
            is_whole &= all;
        });
        if let Some(files) = received.files {
            let close = self.flags & message::CMSG_CLOEXEC != 0;
            let (length, all) = receive_files(caller, descriptors, files, &rest, close);
            rest = behind(&rest, length);
            is_whole &= all;
        }
        let control_length = header.control_length - rest.control_length;
        flags |= if is_whole { 0 } else { message::CTRUNC };
        if header.name != 0 {
            let room = (header.name_length as usize).min(sender.len());
            caller.copy_out(header.name as usize, &sender[..room])?;
            caller.copy_out(address + MessageHeader::NAME_LENGTH, &(sender.len() as u32).to_le_bytes())?;
        }
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&control_length.to_le_bytes());
        bytes[8..].copy_from_slice(&flags.to_le_bytes());
        caller.copy_out(address + MessageHeader::CONTROL_LENGTH, &bytes)
    }
}

/// Returns a header with the place for control messages that begins behind so many bytes of that of another.
fn behind(header: &MessageHeader, length: usize) -> MessageHeader {
    let (length, control) = (length as u64, header.control);
    let control = if control == 0 { 0 } else { control + length };
    MessageHeader { control, control_length: header.control_length - length, ..*header }
}

/// Writes the first control message, of this level and kind, as far as there is room. Returns the bytes that it takes,
/// and whether it is whole.
fn put_control(caller: &dyn Caller, kind: ControlKind, data: &[u8], header: &MessageHeader) -> (usize, bool) {
    let whole = CONTROL_HEADER + data.len();
    let room = if header.control == 0 { 0 } else { header.control_length as usize };
    let mut control = [0; CONTROL_HEADER + LONGEST_DETAIL];
    let Some(place) = control.get_mut(CONTROL_HEADER..whole).filter(|_| room >= CONTROL_HEADER) else {
        return (0, false);
    };
    place.copy_from_slice(data);
    let length = whole.min(room);
    control[..8].copy_from_slice(&(length as u64).to_le_bytes());
    control[8..12].copy_from_slice(&kind.0.to_le_bytes());
    control[12..16].copy_from_slice(&kind.1.to_le_bytes());
    if caller.copy_out(header.control as usize, &control[..length]).is_err() {
        return (0, false);
    }
    (whole.next_multiple_of(8).min(room), length == whole)
}

/// Gives files of a message descriptors, as many as there are free ones and room for in the caller's control messages,
/// and writes those. Returns the bytes that were written, and whether these were all files. The others are closed.
fn receive_files(
    caller: &dyn Caller,
    descriptors: &Mutex<Descriptors>,
    sent: SentFiles,
    header: &MessageHeader,
    close: bool,
) -> (usize, bool) {
    let room = if header.control == 0 { 0 } else { header.control_length as usize };
    let most = room.saturating_sub(CONTROL_HEADER) / 4;
    if most == 0 || caller.account().admit().is_err() {
        return (0, false);
    }
    let files = sent.files();
    let mut control = [0; CONTROL_HEADER + 4 * message::MOST_FILES];
    let (numbers, mut count) = (control[CONTROL_HEADER..].as_chunks_mut::<4>().0, 0);
    // Locked until the numbers are written: another thread could give one of them to a file of its own otherwise, which
    // a failure would then close.
    let mut descriptors = descriptors.lock();
    descriptors.add_many(&files[..files.len().min(most).min(message::MOST_FILES)], close, |descriptor| {
        numbers[count] = (descriptor as i32).to_le_bytes();
        count += 1;
    });
    if count == 0 {
        return (0, false);
    }
    let length = CONTROL_HEADER + 4 * count;
    control[..8].copy_from_slice(&(length as u64).to_le_bytes());
    control[8..12].copy_from_slice(&socket_option::SOL_SOCKET.to_le_bytes());
    control[12..16].copy_from_slice(&message::SCM_RIGHTS.to_le_bytes());
    if caller.copy_out(header.control as usize, &control[..length]).is_err() {
        // Descriptors of which the caller does not learn would stay open.
        for number in control[CONTROL_HEADER..length].chunks_exact(4) {
            let descriptor = i32::from_le_bytes([number[0], number[1], number[2], number[3]]) as usize;
            // It closes nothing: the message still has the file.
            drop(descriptors.remove(descriptor));
        }
        return (0, false);
    }
    // The next message would begin at a multiple of eight bytes.
    (length.next_multiple_of(8).min(room), count == files.len())
}

#[cfg(test)]
mod tests {
    use ::signals::{Action, Set};
    use abi_unix::SystemCall;
    use abi_unix::types;
    use hal_api::Machine as _;
    use platform::Machine;

    use super::*;
    use crate::process::accounts::Resource;
    use crate::testing::{Program, SIGNAL_HANDLER, run};

    /// Offset of the flags of a received message.
    const FLAGS: usize = 48;

    fn pair(program: &mut Program) -> (usize, usize) {
        program.socket_pair(types::SOCK_DGRAM | types::SOCK_NONBLOCK)
    }

    fn send(program: &mut Program, socket: usize, bytes: &[u8], control: &[u8]) {
        let (place, control_place) = (program.store(bytes), program.store(control));
        let header = program.message_header(&[(place, bytes.len())], (control_place, control.len()));
        assert_eq!(program.call(SystemCall::SendMessage, [socket, header, 0]), Ok(bytes.len()));
    }

    #[test]
    fn a_message_fills_buffers_in_their_order_and_tells_what_did_not_fit() {
        run(|program| {
            let (sender, receiver) = pair(program);
            let places = (program.place(8), program.place(8));
            let header = program.message_header(&[(places.0, 2), (places.1, 3)], (0, 0));
            for (bytes, flags, result, told) in [
                (&b"abcd"[..], 0, 4, 0),
                (b"efghijk", 0, 5, message::TRUNC),
                (b"lmnopqr", message::TRUNC, 7, message::TRUNC),
            ] {
                send(program, sender, bytes, &[]);
                assert_eq!(program.call(SystemCall::ReceiveMessage, [receiver, header, flags as usize]), Ok(result));
                assert_eq!(program.read_u32(header + FLAGS), told);
                assert_eq!(program.read(places.0, 2), bytes[..2]);
                assert_eq!(program.read(places.1, 2), bytes[2..4]);
            }
            let call = [receiver, header, 0];
            assert_eq!(program.call(SystemCall::ReceiveMessage, call), Err(Errno::EAGAIN));
        });
    }

    #[test]
    fn files_without_room_or_a_place_for_their_numbers_are_closed() {
        run(|program| {
            let (sender, receiver) = pair(program);
            let place = program.place(8);
            // No room, too little room, and memory that is not there.
            for control in [(0, 0), (program.place(16), 19), (0x10, 64)] {
                let (reader, writer) = program.pipe(0);
                let mut rights = 20usize.to_le_bytes().to_vec();
                let words = [socket_option::SOL_SOCKET, message::SCM_RIGHTS, writer as u32];
                rights.extend(words.map(u32::to_le_bytes).concat());
                send(program, sender, b"x", &rights);
                program.close(writer).unwrap();
                let header = program.message_header(&[(place, 8)], control);
                assert_eq!(program.call(SystemCall::ReceiveMessage, [receiver, header, 0]), Ok(1));
                assert_eq!(program.read_u32(header + FLAGS), message::CTRUNC);
                assert_eq!(program.read_u64(header + MessageHeader::CONTROL_LENGTH), 0);
                assert_eq!(program.read_from(reader, 1), Ok(Vec::new()), "{control:x?}");
                program.close(reader).unwrap();
            }
        });
    }

    /// Makes a message of 1,000 buffers of this length, each its own.
    fn many(program: &mut Program, length: usize) -> (usize, usize) {
        let place = program.place(1000 * length);
        let buffers: Vec<_> = (0..1000).map(|index| (place + index * length, length)).collect();
        (place, program.message_header(&buffers, (0, 0)))
    }

    /// Gathered and scattered in steps, with an interrupt at the first; the bytes of a stream may come in parts then.
    #[test]
    fn messages_of_many_buffers_are_whole() {
        run(|program| {
            let (from, message) = many(program, 5);
            let (to, place) = many(program, 5);
            let bytes: Vec<u8> = (0..5000).map(|index| (index % 251) as u8).collect();
            program.write(from, &bytes);
            for kind in [types::SOCK_STREAM, types::SOCK_DGRAM, types::SOCK_SEQPACKET] {
                let (sender, receiver) = program.socket_pair(kind | types::SOCK_NONBLOCK);
                let is_stream = kind == types::SOCK_STREAM;
                Machine::send_ipi(Machine::hart());
                assert_eq!(program.call(SystemCall::SendMessage, [sender, message, 0]), Ok(5000), "{kind}");
                let received = if is_stream { 5 } else { 5000 };
                for flags in [message::PEEK as usize, 0] {
                    program.write(to, &[0; 5000]);
                    Machine::send_ipi(Machine::hart());
                    assert_eq!(program.call(SystemCall::ReceiveMessage, [receiver, place, flags]), Ok(received));
                    assert_eq!(program.read(to, received), bytes[..received]);
                }
                if is_stream {
                    for flags in [message::PEEK as usize, 0] {
                        assert_eq!(program.call(SystemCall::ReceiveMessage, [receiver, place, flags]), Ok(4995));
                        assert_eq!(program.read(to, 4995), bytes[5..]);
                    }
                }
                assert_eq!(program.call(SystemCall::ReceiveMessage, [receiver, place, 0]), Err(Errno::EAGAIN));
                // Without an interrupt a stream is not cut either, and one buffer may take what many sent.
                assert_eq!(program.call(SystemCall::SendMessage, [sender, message, 0]), Ok(5000));
                assert_eq!(program.read_from(receiver, 6000), Ok(bytes.clone()));
                assert_eq!(program.write_to(sender, &bytes), Ok(5000));
                assert_eq!(program.call(SystemCall::ReceiveMessage, [receiver, place, 0]), Ok(5000));
                assert_eq!(program.read(to, 5000), bytes);
                program.write_to(sender, &[7; 50_000]).unwrap();
                let result = program.call(SystemCall::ReceiveMessage, [receiver, place, message::TRUNC as usize]);
                assert_eq!(result, Ok(if is_stream { 5000 } else { 50_000 }));
                let told = program.read_u32(place + FLAGS);
                assert_eq!(told, if is_stream { 0 } else { message::TRUNC });
            }
        });
    }

    #[test]
    fn a_message_that_does_not_fit_or_has_a_bad_buffer_is_not_sent() {
        run(|program| {
            let (sender, receiver) = pair(program);
            let (from, message) = many(program, 60);
            let place = program.place(8);
            assert_eq!(program.call(SystemCall::SendMessage, [sender, message, 0]), Ok(60_000));
            assert_eq!(program.call(SystemCall::SendMessage, [sender, message, 0]), Err(Errno::EAGAIN));
            assert_eq!(program.call(SystemCall::ReceiveFrom, [receiver, place, 1, 0, 0, 0]), Ok(1));
            // The last one but 99.
            let mut buffers: Vec<_> = (0..1000).map(|index| (from + index, 1)).collect();
            buffers[900].0 = 0x10;
            let bad = program.message_header(&buffers, (0, 0));
            assert_eq!(program.call(SystemCall::SendMessage, [sender, bad, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::ReceiveFrom, [receiver, place, 1, 0, 0, 0]), Err(Errno::EAGAIN));
            // As on Linux, a message that is received into it is lost.
            assert_eq!(program.call(SystemCall::SendMessage, [sender, message, 0]), Ok(60_000));
            assert_eq!(program.call(SystemCall::ReceiveMessage, [receiver, bad, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::ReceiveFrom, [receiver, place, 1, 0, 0, 0]), Err(Errno::EAGAIN));
            let too_long = program.message_header(&[(from, 60_000), (from, 5_537)], (0, 0));
            assert_eq!(program.call(SystemCall::SendMessage, [sender, too_long, 0]), Err(Errno::EMSGSIZE));
        });
    }

    /// The kernel's buffer is charged to the caller as long as the call is in flight.
    #[test]
    fn what_was_gathered_is_given_back_with_the_call() {
        run(|program| {
            let (sender, receiver) = program.socket_pair(types::SOCK_DGRAM);
            let (_, message) = many(program, 60);
            let charged = |program: &Program| program.process().account.used(Resource::Memory);
            assert_eq!(program.call(SystemCall::SendMessage, [sender, message, 0]), Ok(60_000));
            let before = charged(program);
            assert_eq!(program.submit(SystemCall::SendMessage, [sender, message, 0], 1), None);
            program.sleep_ns(100_000);
            assert!(charged(program) >= before + 60_000, "it waits with its bytes");
            assert_eq!(program.call(SystemCall::Cancel, [1]), Ok(0));
            assert_eq!(program.await_completions(), [(1, Err(Errno::ECANCELED))]);
            assert!(charged(program) < before + 30_000, "{} {before}", charged(program));
            assert_eq!(program.read_from(receiver, 1), Ok(vec![0]));
        });
    }

    /// The list of a call's buffers is the caller's as long as the call is in flight.
    #[test]
    fn lists_of_buffers_are_charged() {
        run(|program| {
            let (_, receiver) = program.socket_pair(types::SOCK_DGRAM);
            let (reader, _writer) = program.pipe(0);
            let place = program.place(1024);
            let buffers: Vec<_> = (0..1024).map(|index| (place + index, 1)).collect();
            let header = program.message_header(&buffers, (0, 0));
            let list = usize::from_le_bytes(program.read(header + 16, 8).try_into().unwrap());
            let charged = |program: &Program| program.process().account.used(Resource::Memory);
            let calls =
                [(SystemCall::ReadVector, [reader, list, 1024]), (SystemCall::ReceiveMessage, [receiver, header, 0])];
            for (token, (call, arguments)) in (1..).zip(calls) {
                const LIST: usize = 1024 * size_of::<[usize; 2]>();
                let before = charged(program);
                assert_eq!(program.submit(call, arguments, token), None);
                program.sleep_ns(100_000);
                let during = charged(program);
                assert!(during >= before + LIST, "{}: {before} {during}", call.name());
                assert_eq!(program.call(SystemCall::Cancel, [token as usize]), Ok(0));
                assert_eq!(program.await_completions(), [(token, Err(Errno::ECANCELED))]);
                let after = charged(program);
                assert!(after + LIST <= during, "{}: {during} {after}", call.name());
            }
        });
    }

    /// All bytes of a call belong to the files that came with its first one, however many parts they went in, and
    /// whatever interrupts come.
    #[test]
    fn files_of_many_buffers_come_with_all_of_them() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let bytes = program.place(5000);
            let buffers: Vec<_> = (0..1000).map(|index| (bytes + index * 5, 5)).collect();
            let mut rights = 20usize.to_le_bytes().to_vec();
            rights
                .extend([socket_option::SOL_SOCKET, message::SCM_RIGHTS, writer as u32].map(u32::to_le_bytes).concat());
            let rights = program.store(&rights);
            let header = program.message_header(&buffers, (rights, 20));
            let control = program.place(64);
            let place = program.message_header(&buffers, (control, 64));
            for (kind, is_interrupted) in [types::SOCK_STREAM, types::SOCK_DGRAM]
                .into_iter()
                .flat_map(|kind| [(false, false), (true, false), (false, true), (true, true)].map(|when| (kind, when)))
            {
                let (sender, receiver) = program.socket_pair(kind);
                let interrupt = |is_wanted: bool| {
                    if is_wanted {
                        Machine::send_ipi(Machine::hart());
                    }
                };
                interrupt(is_interrupted.0);
                assert_eq!(program.call(SystemCall::SendMessage, [sender, header, 0]), Ok(5000));
                for flags in [message::PEEK, message::WAITALL] {
                    program.write(place + MessageHeader::CONTROL_LENGTH, &64u64.to_le_bytes());
                    interrupt(is_interrupted.1);
                    let count = program.call(SystemCall::ReceiveMessage, [receiver, place, flags as usize]).unwrap();
                    let case = (kind, is_interrupted, flags);
                    assert!(count == 5000 || count > 0 && kind == types::SOCK_STREAM, "{count} {case:?}");
                    assert_eq!(program.read_u32(place + FLAGS), 0, "{case:?}");
                    assert_eq!(program.read_u64(place + MessageHeader::CONTROL_LENGTH), 24, "{case:?}");
                    let received = program.read_u32(control + CONTROL_HEADER) as usize;
                    assert_eq!(program.write_to(received, b"x"), Ok(1));
                    assert_eq!(program.read_from(reader, 2), Ok(b"x".to_vec()));
                    program.close(received).unwrap();
                }
                program.close(sender).unwrap();
                program.close(receiver).unwrap();
            }
        });
    }

    /// Starts a less important process with these descriptors that makes a call, and sends it a signal in the middle.
    /// Returns its status.
    fn signal_in_the_middle(
        program: &mut Program,
        descriptors: [usize; 3],
        signal: usize,
        prepare_and_call: impl FnOnce(&mut Program, fn()) + Send + 'static,
    ) -> u32 {
        let descriptors = program.store(&descriptors.map(|number| (number as u32).to_le_bytes()).concat());
        let child = program.spawn_given(descriptors, 60, |program| {
            prepare_and_call(program, || crate::testing::simulation().advance(1_000_000));
        });
        let child = child.unwrap();
        // The child goes on at once, and lets time pass before its call.
        program.sleep_ns(1_000_000);
        assert_eq!(program.call(SystemCall::Kill, [child, signal]), Ok(0));
        program.wait_for(child).unwrap().1
    }

    /// Its process is killed while a message of many buffers is half in its memory: the message is gone with its files.
    #[test]
    fn a_receiver_is_killed_while_its_message_is_copied() {
        run(|program| {
            let (sender, receiver) = program.socket_pair(types::SOCK_DGRAM | types::SOCK_NONBLOCK);
            let (reader, writer) = program.pipe(0);
            let mut rights = 20usize.to_le_bytes().to_vec();
            rights
                .extend([socket_option::SOL_SOCKET, message::SCM_RIGHTS, writer as u32].map(u32::to_le_bytes).concat());
            send(program, sender, &[7; 40_000], &rights);
            program.close(writer).unwrap();
            let buffers = |program: &mut Program| {
                // As many as are looked at before the message is taken from its queue.
                let place = program.place(40_000);
                program.message_header(&[0; 8].map(|offset| (place + offset, 5_000)), (0, 0))
            };
            let status = signal_in_the_middle(program, [receiver; 3], 9, move |program, let_time_pass| {
                let header = buffers(program);
                let_time_pass();
                let _ = program.call(SystemCall::ReceiveMessage, [0, header, 0]);
                unreachable!("it is killed before");
            });
            assert_eq!(status, 9);
            assert_eq!(program.read_from(reader, 1), Ok(Vec::new()), "the end of the pipe in the message is closed");
            let header = buffers(program);
            assert_eq!(program.call(SystemCall::ReceiveMessage, [receiver, header, 0]), Err(Errno::EAGAIN));
        });
    }

    /// A signal comes while a message is half copied: the message is whole before the handler runs, and the call ends
    /// with it.
    #[test]
    fn a_signal_while_a_message_is_copied_comes_after_it() {
        run(|program| {
            let (sender, receiver) = program.socket_pair(types::SOCK_DGRAM);
            for call in [SystemCall::SendMessage, SystemCall::ReceiveMessage] {
                let status = signal_in_the_middle(program, [sender, receiver, 2], 10, move |program, let_time_pass| {
                    let action = Action { handler: SIGNAL_HANDLER as u64, flags: 0, mask: Set::EMPTY };
                    let action = program.store(&action.to_bytes());
                    assert_eq!(program.call(SystemCall::SignalAction, [10, action, 0, 8]), Ok(0));
                    let (place, header) = many(program, 5);
                    let bytes: Vec<u8> = (0..5000).map(|index| (index % 251) as u8).collect();
                    let socket = if call == SystemCall::SendMessage { 0 } else { 1 };
                    program.write(place, if socket == 0 { &bytes } else { &[0; 5000] });
                    let_time_pass();
                    assert_eq!(program.call(call, [socket, header, 0]), Ok(5000), "{call:?}");
                    assert_eq!(program.signals().len(), 1, "it came in the middle");
                    assert_eq!(program.read(place, 5000), bytes);
                });
                assert_eq!(status, 0);
            }
        });
    }
}
