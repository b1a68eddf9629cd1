//! The operations of `sendmsg` and `recvmsg`: messages in several buffers, with open files.
//!
//! The header of a message was read once, when the call was decoded; only results are written to it.

use alloc::sync::Arc;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::{MessageHeader, SocketAddress, message, socket_option};
use spin::Mutex;

use crate::files::descriptor::Descriptors;
use crate::files::file::{Attempt, OpenFile, ReceivedMessage};
use crate::files::sent_files::SentFiles;
use crate::process::user::{AddressOut, Buffers, Caller, length_of};
use crate::scheduling::steps;

/// A message to send.
#[doc(alias = "sendmsg")]
pub(crate) struct MessageToSend {
    /// The socket.
    file: Arc<OpenFile>,
    /// The bytes.
    buffers: Buffers,
    /// Flags of the call.
    flags: u32,
    /// The receiver.
    address: Option<SocketAddress>,
    /// Open files, until they are sent.
    files: Option<SentFiles>,
    /// Bytes that were sent.
    sent: usize,
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
}

/// Bytes before the data of a control message (`struct cmsghdr`).
pub(crate) const CONTROL_HEADER: usize = 16;

impl MessageToSend {
    /// Makes a message of which nothing was sent.
    pub(crate) fn new(
        file: Arc<OpenFile>,
        buffers: Buffers,
        flags: u32,
        address: Option<SocketAddress>,
        files: Option<SentFiles>,
    ) -> MessageToSend {
        MessageToSend { file, buffers, flags, address, files, sent: 0 }
    }

    /// Returns the socket.
    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Returns whether the call must not wait.
    pub(crate) fn must_not_wait(&self) -> bool {
        self.file.is_non_blocking() || self.flags & message::DONTWAIT != 0
    }

    /// Returns the number of bytes that were sent.
    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    /// Tries to send.
    pub(crate) fn poll(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Attempt {
        let how = (self.flags, self.address);
        self.file.send_message(caller, &self.buffers, how, &mut self.files, &mut self.sent, waker)
    }
}

impl MessageToReceive {
    /// Makes a message of which nothing was received.
    pub(crate) fn new(file: Arc<OpenFile>, buffers: Buffers, flags: u32, out: MessageOut) -> MessageToReceive {
        MessageToReceive { file, buffers, flags, out, done: 0 }
    }

    /// Returns the socket.
    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Returns whether the call must not wait.
    pub(crate) fn must_not_wait(&self) -> bool {
        self.file.is_non_blocking() || self.flags & message::DONTWAIT != 0
    }

    /// Returns the number of bytes of a stream that the caller has.
    pub(crate) fn received(&self) -> usize {
        self.done
    }

    /// Tries to receive: one message, or the part of a stream that is there. With `MSG_WAITALL` goes on until the
    /// buffers are full, or files came.
    pub(crate) fn poll(&mut self, caller: &dyn Caller, table: &Mutex<Descriptors>, waker: Option<&Waker>) -> Attempt {
        loop {
            let object = self.file.object();
            let received = match object.receive_message(caller, &self.buffers, self.done, self.flags, waker) {
                Poll::Ready(Ok(received)) => received,
                Poll::Ready(Err(_)) if self.done > 0 => return Poll::Ready(Ok(self.done)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            };
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

    /// Tells the caller about a message: its sender, its files, and what did not fit.
    fn tell(
        &self,
        caller: &dyn Caller,
        descriptors: &Mutex<Descriptors>,
        received: ReceivedMessage,
    ) -> Result<(), Errno> {
        let sender = received.sender.map(SocketAddress::to_bytes);
        let sender = sender.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        let (address, header) = match &self.out {
            MessageOut::Address(None) => return Ok(()),
            MessageOut::Address(Some(out)) => return out.write_bytes(caller, sender),
            MessageOut::Header(address, header) => (*address, header),
        };
        let mut flags = if received.length > received.count { message::TRUNC } else { 0 };
        let control_length = match received.files {
            Some(files) => {
                let close = self.flags & message::CMSG_CLOEXEC != 0;
                let (length, all) = receive_files(caller, descriptors, files, header, close);
                flags |= if all { 0 } else { message::CTRUNC };
                length
            }
            None => 0,
        };
        if header.name != 0 {
            let room = (header.name_length as usize).min(sender.len());
            caller.copy_out(header.name as usize, &sender[..room])?;
            caller.copy_out(address + MessageHeader::NAME_LENGTH, &(sender.len() as u32).to_le_bytes())?;
        }
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&(control_length as u64).to_le_bytes());
        bytes[8..].copy_from_slice(&flags.to_le_bytes());
        caller.copy_out(address + MessageHeader::CONTROL_LENGTH, &bytes)
    }
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
    let mut count = 0;
    // Locked until the numbers are written: another thread could give one of them to a file of its own otherwise, which
    // a failure would then close.
    let mut descriptors = descriptors.lock();
    for file in files.iter().take(most.min(message::MOST_FILES)) {
        let Ok(descriptor) = descriptors.add(file.clone(), close, 0) else { break };
        control[CONTROL_HEADER + 4 * count..][..4].copy_from_slice(&(descriptor as i32).to_le_bytes());
        count += 1;
    }
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
    use abi_unix::SystemCall;
    use abi_unix::types;

    use super::*;
    use crate::testing::{Program, run};

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
}
