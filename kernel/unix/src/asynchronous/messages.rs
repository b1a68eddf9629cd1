//! The operations of `sendmsg` and `recvmsg`: messages in several buffers, with open files.
//!
//! The header of a message was read once, when the call was decoded; only results are written to it.

use alloc::sync::Arc;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::{MessageHeader, SocketAddress, message, socket_option};

use crate::asynchronous::operation::Buffers;
use crate::files::file::{Attempt, OpenFile, ReceivedMessage};
use crate::files::sent_files::SentFiles;
use crate::process::Process;
use crate::process::user::{AddressOut, length_of};
use crate::scheduling::steps;

/// A message to send.
#[doc(alias = "sendmsg")]
pub(crate) struct MessageToSend {
    /// The socket.
    pub file: Arc<OpenFile>,
    /// The bytes.
    pub buffers: Buffers,
    /// Flags of the call.
    pub flags: u32,
    /// The receiver.
    pub address: Option<SocketAddress>,
    /// Open files, until they are sent.
    pub files: Option<SentFiles>,
    /// Bytes that were sent.
    pub sent: usize,
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
    pub file: Arc<OpenFile>,
    /// The place for the bytes.
    pub buffers: Buffers,
    /// Flags of the call.
    pub flags: u32,
    /// The place for everything else.
    pub out: MessageOut,
    /// Bytes of a stream that were received, and told to the caller.
    pub done: usize,
}

/// Bytes before the data of a control message (`struct cmsghdr`).
pub(crate) const CONTROL_HEADER: usize = 16;

impl MessageToSend {
    /// Tries to send.
    pub(crate) fn poll(&mut self, caller: &Process, waker: Option<&Waker>) -> Attempt {
        let how = (self.flags, self.address);
        self.file.send_message(caller, &self.buffers, how, &mut self.files, &mut self.sent, waker)
    }
}

impl MessageToReceive {
    /// Tries to receive: one message, or the part of a stream that is there. With `MSG_WAITALL` goes on until the
    /// buffers are full, or files came.
    pub(crate) fn poll(&mut self, process: &Process, waker: Option<&Waker>) -> Attempt {
        loop {
            let object = self.file.object();
            let received = match object.receive_message(process, &self.buffers, self.done, self.flags, waker) {
                Poll::Ready(Ok(received)) => received,
                Poll::Ready(Err(_)) if self.done > 0 => return Poll::Ready(Ok(self.done)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            };
            let waits_for_all = self.flags & (message::WAITALL | message::PEEK) == message::WAITALL;
            let goes_on = waits_for_all && received.goes_on && received.files.is_none() && received.count > 0;
            let (count, length) = (received.count, received.length);
            self.tell(process, received)?;
            if !goes_on || self.done + count == length_of(&self.buffers) {
                let value = if self.flags & message::TRUNC != 0 { length } else { count };
                return Poll::Ready(Ok(self.done + value));
            }
            self.done += count;
            if steps::must_pause(process, waker) {
                return Poll::Pending;
            }
        }
    }

    /// Tells the caller about a message: its sender, its files, and what did not fit.
    fn tell(&self, process: &Process, received: ReceivedMessage) -> Result<(), Errno> {
        let sender = received.sender.map(SocketAddress::to_bytes);
        let sender = sender.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        let (address, header) = match &self.out {
            MessageOut::Address(None) => return Ok(()),
            MessageOut::Address(Some(out)) => return out.write_bytes(process, sender),
            MessageOut::Header(address, header) => (*address, header),
        };
        let mut flags = if received.length > received.count { message::TRUNC } else { 0 };
        let control_length = match received.files {
            Some(files) => {
                let close = self.flags & message::CMSG_CLOEXEC != 0;
                let (length, all) = receive_files(process, files, header, close);
                flags |= if all { 0 } else { message::CTRUNC };
                length
            }
            None => 0,
        };
        if header.name != 0 {
            let room = (header.name_length as usize).min(sender.len());
            process.copy_out(header.name as usize, &sender[..room])?;
            process.copy_out(address + MessageHeader::NAME_LENGTH, &(sender.len() as u32).to_le_bytes())?;
        }
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&(control_length as u64).to_le_bytes());
        bytes[8..].copy_from_slice(&flags.to_le_bytes());
        process.copy_out(address + MessageHeader::CONTROL_LENGTH, &bytes)
    }
}

/// Gives files of a message descriptors, as many as there are free ones and room for in the caller's control messages,
/// and writes those. Returns the bytes that were written, and whether these were all files. The others are closed.
fn receive_files(process: &Process, sent: SentFiles, header: &MessageHeader, close: bool) -> (usize, bool) {
    let room = if header.control == 0 { 0 } else { header.control_length as usize };
    let most = room.saturating_sub(CONTROL_HEADER) / 4;
    if most == 0 || process.account.admit().is_err() {
        return (0, false);
    }
    let files = sent.files();
    let mut control = [0; CONTROL_HEADER + 4 * message::MOST_FILES];
    let mut count = 0;
    // Locked until the numbers are written: another thread could give one of them to a file of its own otherwise, which
    // a failure would then close.
    let mut descriptors = process.descriptors.lock();
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
    if process.copy_out(header.control as usize, &control[..length]).is_err() {
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
