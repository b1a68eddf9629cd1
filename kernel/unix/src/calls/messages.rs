//! The calls on pairs of local sockets and on messages with open files.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::authority::Act;
use abi_unix::types::{self, MessageHeader, message, socket_option};
use abi_unix::{Errno, SystemCall};
use filesystem::Access;
use spin::Mutex;

use crate::asynchronous::batch::{BatchMessage, BatchOwner, MessageBatch};
use crate::asynchronous::messages::{CONTROL_HEADER, MessageOut, MessageToReceive, MessageToSend};
use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding, kept};
use crate::calls::files::add_two;
use crate::calls::local_sockets::{self, require_kind};
use crate::calls::sockets::{address_in, address_out};
use crate::calls::transfers::vector;
use crate::files::descriptor::Descriptors;
use crate::files::file::{self, OpenFile};
use crate::files::local_socket::LocalSocket;
use crate::files::message::Recipient;
use crate::files::sent_files::SentFiles;
use crate::network::netlink::NetlinkSocket;
use crate::network::packet_socket::PacketSocket;
use crate::network::socket::Socket;
use crate::process::Process;
use crate::process::user::{Buffers, Caller, Credentials, UserBuffer, read_time};

/// Most bytes of control messages.
const LONGEST_CONTROL: usize = 8192;
/// Flags of sending calls.
const SENDING: u32 = message::DONTWAIT | message::NOSIGNAL | message::CONFIRM;
/// Flags of receiving calls.
const RECEIVING: u32 = message::DONTWAIT
    | message::NOSIGNAL
    | message::PEEK
    | message::TRUNC
    | message::WAITALL
    | message::ERRQUEUE
    | message::CMSG_CLOEXEC;

/// Performs `socketpair`.
#[inline(never)]
pub(super) fn pair(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let (family, kind, protocol) = (call.unsigned(0), call.unsigned(1), call.unsigned(2));
    if family != types::AF_UNIX as u32 {
        return Err(if [types::AF_INET, types::AF_INET6].map(u32::from).contains(&family) {
            Errno::EOPNOTSUPP
        } else {
            Errno::EAFNOSUPPORT
        });
    }
    let flags = kind & (types::SOCK_NONBLOCK | types::SOCK_CLOEXEC);
    let kind = require_kind(kind & !flags, protocol)?;
    let charges = (file::charge(&process.account)?, file::charge(&process.account)?);
    let [first, second] = LocalSocket::pair(kind, &**process)?;
    let is_non_blocking = flags & types::SOCK_NONBLOCK != 0;
    let open = |socket, charge| OpenFile::new(socket, Access::ReadWrite, is_non_blocking, charge);
    let files = [open(first, charges.0), open(second, charges.1)];
    add_two(process, files, flags & types::SOCK_CLOEXEC != 0, call.address(3)).map(Into::into)
}

/// Performs `sendto` on a local socket, or one of requests to the kernel.
#[cold]
#[inline(never)]
pub(super) fn send_local(call: Call<'_>, file: Arc<OpenFile>) -> Decoding {
    if PacketSocket::of(&file).is_ok() {
        let to = PacketSocket::recipient(&**call.process(), call.address(4), call.unsigned(5))?;
        return send_gathered(file, call.buffer(1)?, call.unsigned(3), to);
    }
    let named = match (call.address(4), NetlinkSocket::of(&file)) {
        (0, Ok(_)) => None,
        (to, Ok(_)) => {
            NetlinkSocket::require_kernel(NetlinkSocket::port_in(&**call.process(), to, call.unsigned(5))?)?;
            None
        }
        (to, Err(_)) => {
            let socket = LocalSocket::of(&file)?;
            local_sockets::receiver(call.process(), socket, to, call.unsigned(5))?
        }
    };
    let (buffer, flags) = (call.buffer(1)?, call.unsigned(3));
    if flags & !SENDING != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let sending = MessageToSend::new(file, buffer.into(), flags, Recipient::Peer, None).for_local(named);
    Ok(Operation::SendMessage(kept(sending)).into())
}

/// Performs `sendto` with a message that must be gathered, or may have to be.
#[cold]
#[inline(never)]
pub(super) fn send_gathered(file: Arc<OpenFile>, buffer: UserBuffer, flags: u32, to: Recipient) -> Decoding {
    if flags & !SENDING != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let sending = MessageToSend::new(file, buffer.into(), flags, to, None);
    Ok(Operation::SendMessage(kept(sending)).into())
}

/// Performs `recvfrom` on such a socket, or with flags that only messages have.
#[cold]
#[inline(never)]
pub(super) fn receive_as_message(call: Call<'_>, file: Arc<OpenFile>) -> Decoding {
    require_socket(&file)?;
    let (buffers, flags) = (Buffers::from(call.buffer(1)?), call.unsigned(3));
    if flags & !RECEIVING != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let out = MessageOut::Address(address_out(&call, 4));
    Ok(Operation::ReceiveMessage(kept(MessageToReceive::new(file, buffers, flags, out))).into())
}

/// Performs `sendmsg`.
#[inline(never)]
pub(super) fn send(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    require_socket(&file)?;
    let sending = to_send(call.process(), file, call.address(1), call.unsigned(2))?;
    Ok(Operation::SendMessage(kept(sending)).into())
}

/// Performs `sendmmsg`.
#[inline(never)]
pub(super) fn send_several(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let file = call.file(0)?;
    require_socket(&file)?;
    let count = call.unsigned(2) as usize;
    let batch = MessageBatch::new(call.number, file, call.address(1), count).with_flags(call.unsigned(3));
    Ok(Operation::Messages(kept(batch)).into())
}

/// Reads the message at an address, to be sent.
fn to_send(process: &Arc<Process>, file: Arc<OpenFile>, at: usize, flags: u32) -> Result<MessageToSend, Errno> {
    let (header, buffers) = read_header(process, at)?;
    if flags & !SENDING != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut named = None;
    let to = match (header.name, LocalSocket::of(&file)) {
        (0, _) => Recipient::Peer,
        // As on Linux, an address without bytes is none.
        _ if header.name_length == 0 => Recipient::Peer,
        (name, Ok(socket)) => {
            named = local_sockets::receiver(process, socket, name as usize, header.name_length)?;
            Recipient::Peer
        }
        (name, Err(_)) if PacketSocket::of(&file).is_ok() => {
            PacketSocket::recipient(&**process, name as usize, header.name_length)?
        }
        (name, Err(_)) if NetlinkSocket::of(&file).is_ok() => {
            NetlinkSocket::require_kernel(NetlinkSocket::port_in(&**process, name as usize, header.name_length)?)?;
            Recipient::Peer
        }
        (name, Err(_)) => {
            let end = address_in(process, name as usize, header.name_length)?;
            Recipient::Network(end.ok_or(Errno::EAFNOSUPPORT)?)
        }
    };
    let files = match (header.control, header.control_length) {
        (0, _) | (_, 0) => None,
        (address, length) => {
            process.account.admit()?;
            read_control(process, address as usize, length)?
        }
    };
    Ok(MessageToSend::new(file, buffers, flags, to, files).for_local(named))
}

/// Performs `recvmsg`.
#[inline(never)]
pub(super) fn receive(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    require_socket(&file)?;
    let receiving = to_receive(call.process(), file, call.address(1), call.unsigned(2))?;
    Ok(Operation::ReceiveMessage(kept(receiving)).into())
}

/// Performs `recvmmsg`.
#[inline(never)]
pub(super) fn receive_several(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let limit = match call.address(4) {
        0 => None,
        address => Some((read_time(&**process, address)?, address)),
    };
    let file = call.file(0)?;
    require_socket(&file)?;
    let count = call.unsigned(2) as usize;
    let batch = MessageBatch::new(call.number, file, call.address(1), count).with_flags(call.unsigned(3));
    let batch = match limit {
        Some((limit_ns, address)) => batch.with_limit(limit_ns, address),
        None => batch,
    };
    Ok(Operation::Messages(kept(batch)).into())
}

/// Reads the header at an address of a message to be received.
fn to_receive(process: &Process, file: Arc<OpenFile>, at: usize, flags: u32) -> Result<MessageToReceive, Errno> {
    let (header, buffers) = read_header(process, at)?;
    if flags & !RECEIVING != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let out = MessageOut::Header(at, header);
    Ok(MessageToReceive::new(file, buffers, flags, out))
}

impl BatchOwner for Arc<Process> {
    fn caller(&self) -> &dyn Caller {
        &**self
    }

    fn descriptors(&self) -> &Mutex<Descriptors> {
        &self.descriptors
    }

    fn begin(&self, call: SystemCall, file: Arc<OpenFile>, at: usize, flags: u32) -> Result<BatchMessage, Errno> {
        Ok(match call {
            SystemCall::SendMessages => BatchMessage::Send(kept(to_send(self, file, at, flags)?)),
            _ => BatchMessage::Receive(kept(to_receive(self, file, at, flags)?)),
        })
    }
}

pub(super) fn require_socket(file: &OpenFile) -> Result<(), Errno> {
    let is_other = LocalSocket::of(file).is_ok() || NetlinkSocket::of(file).is_ok() || PacketSocket::of(file).is_ok();
    Socket::of(file).map(|_| ()).or_else(|error| if is_other { Ok(()) } else { Err(error) })
}

/// Reads the header of a message, once, and the list of its buffers.
fn read_header(process: &Process, at: usize) -> Result<(MessageHeader, Buffers), Errno> {
    let mut bytes = [0; MessageHeader::SIZE];
    process.copy_in(at, &mut bytes)?;
    let header = MessageHeader::from_bytes(bytes);
    if header.name_length > i32::MAX as u32 {
        return Err(Errno::EINVAL);
    }
    // Linux's answer to a list that is too long is another one here than for `readv`.
    let count = usize::try_from(header.count).ok().filter(|count| *count <= super::transfers::MOST_BUFFERS);
    let buffers = vector(process, header.buffers as usize, count.ok_or(Errno::EMSGSIZE)?)?;
    Ok((header, buffers))
}

/// Reads control messages; returns the open files that they send.
fn read_control(process: &Process, address: usize, length: u64) -> Result<Option<SentFiles>, Errno> {
    let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST_CONTROL).ok_or(Errno::ENOBUFS)?;
    let mut control = Vec::new();
    control.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
    control.resize(length, 0);
    process.copy_in(address, &mut control)?;
    let mut files = Vec::new();
    if let Err(error) = parse_control(process, &control, &mut files) {
        // Closed in steps, if they are not open any more.
        drop(SentFiles::new(files, process));
        return Err(error);
    }
    if files.is_empty() {
        return Ok(None);
    }
    let is_free = process.authority.permits(Act::RaiseLimit);
    Ok(Some(SentFiles::new(files, process)?.of_sender_who(is_free)))
}

/// Adds the files of control messages to a list.
fn parse_control(process: &Process, control: &[u8], files: &mut Vec<Arc<OpenFile>>) -> Result<(), Errno> {
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut rest = control;
    // As on Linux, bytes that are too few for a header are none.
    while rest.len() >= CONTROL_HEADER {
        let length = u64::from_le_bytes(core::array::from_fn(|index| rest[index]));
        let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
        let data = rest.get(CONTROL_HEADER..length).ok_or(Errno::EINVAL)?;
        match (word(&rest[8..]), word(&rest[12..])) {
            (socket_option::SOL_SOCKET, message::SCM_RIGHTS) => {
                let count = data.len() / 4;
                if files.len() + count > message::MOST_FILES {
                    return Err(Errno::EINVAL);
                }
                files.try_reserve(count).map_err(|_| Errno::ENOMEM)?;
                let descriptors = process.descriptors.lock();
                for number in data.chunks_exact(4) {
                    let number = usize::try_from(word(number) as i32).map_err(|_| Errno::EBADF)?;
                    files.push(descriptors.get(number)?.clone());
                }
            }
            (socket_option::SOL_SOCKET, message::SCM_CREDENTIALS) if data.len() == 12 => {
                // They are sent anyway; none may be made up.
                if data != Credentials::of_sender(process).to_bytes() {
                    return Err(Errno::EPERM);
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        rest = rest.get(length.next_multiple_of(8)..).unwrap_or(&[]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Program, run};

    /// An address at which no program has memory.
    const NOWHERE: usize = 0x10;

    fn pair(program: &mut Program) -> (usize, usize) {
        program.socket_pair(types::SOCK_STREAM | types::SOCK_NONBLOCK)
    }

    /// Sends a byte with these control messages.
    fn send(program: &mut Program, socket: usize, control: &[u8]) -> Result<usize, Errno> {
        let byte = program.store(b"x");
        let buffers = program.store(&[byte, 1].map(usize::to_le_bytes).concat());
        let control_place = program.store(control);
        let header = MessageHeader {
            buffers: buffers as u64,
            count: 1,
            control: control_place as u64,
            control_length: control.len() as u64,
            ..MessageHeader::default()
        };
        let header = program.store(&header.to_bytes());
        program.call(SystemCall::SendMessage, [socket, header, 0])
    }

    fn control(length: usize, kind: u32, data: &[u32]) -> Vec<u8> {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([socket_option::SOL_SOCKET, kind].map(u32::to_le_bytes).concat());
        bytes.extend(data.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    #[test]
    fn pairs_that_are_not_there_are_refused() {
        run(|program| {
            let place = program.place(8);
            let (unix, stream) = (types::AF_UNIX as usize, types::SOCK_STREAM as usize);
            for (family, kind, protocol, place, error) in [
                (types::AF_INET as usize, stream, 0, place, Errno::EOPNOTSUPP),
                (99, stream, 0, place, Errno::EAFNOSUPPORT),
                (unix, 4, 0, place, Errno::ESOCKTNOSUPPORT),
                (unix, stream, 9, place, Errno::EPROTONOSUPPORT),
                (unix, stream, 0, NOWHERE, Errno::EFAULT),
            ] {
                assert_eq!(program.call(SystemCall::SocketPair, [family, kind, protocol, place]), Err(error));
            }
            // The last one has kept no descriptor.
            let (first, second) = pair(program);
            assert_eq!(second, first + 1);
            let third = pair(program).0;
            assert_eq!(third, second + 1);
        });
    }

    #[test]
    fn headers_that_cannot_be_used_are_refused() {
        run(|program| {
            let (socket, _) = pair(program);
            let (reader, _) = program.pipe(0);
            let good = MessageHeader::default();
            for (header, error) in [
                (MessageHeader { name_length: u32::MAX, ..good }, Errno::EINVAL),
                (MessageHeader { count: 1025, ..good }, Errno::EMSGSIZE),
                (MessageHeader { count: u64::MAX, ..good }, Errno::EMSGSIZE),
                (MessageHeader { count: 1, buffers: NOWHERE as u64, ..good }, Errno::EFAULT),
            ] {
                let place = program.store(&header.to_bytes());
                for call in [SystemCall::SendMessage, SystemCall::ReceiveMessage] {
                    assert_eq!(program.call(call, [socket, place, 0]), Err(error), "{header:?}");
                }
            }
            let place = program.store(&good.to_bytes());
            for call in [SystemCall::SendMessage, SystemCall::ReceiveMessage] {
                assert_eq!(program.call(call, [socket, NOWHERE, 0]), Err(Errno::EFAULT));
                assert_eq!(program.call(call, [socket, place, 0x8000_0000]), Err(Errno::EOPNOTSUPP));
                assert_eq!(program.call(call, [reader, place, 0]), Err(Errno::ENOTSOCK));
                assert_eq!(program.call(call, [99, place, 0]), Err(Errno::EBADF));
            }
        });
    }

    #[test]
    fn control_messages_that_lie_are_refused_and_keep_no_file() {
        run(|program| {
            let (socket, _) = pair(program);
            let (reader, writer) = program.pipe(0);
            let (rights, file) = (message::SCM_RIGHTS, writer as u32);
            let id = program.process().id;
            let good = control(20, rights, &[file, 0]);
            for (bytes, error) in [
                (control(15, rights, &[file]), Errno::EINVAL),
                (control(21, rights, &[file]), Errno::EINVAL),
                (control(usize::MAX, rights, &[file]), Errno::EINVAL),
                (control(20, 9, &[file]), Errno::EINVAL),
                (control(20, rights, &[u32::MAX]), Errno::EBADF),
                (control(20, rights, &[99]), Errno::EBADF),
                (control(16 + 4 * 254, rights, &[file; 254]), Errno::EINVAL),
                (control(28, message::SCM_CREDENTIALS, &[id + 1, 0, 0]), Errno::EPERM),
                (control(24, message::SCM_CREDENTIALS, &[id, 0]), Errno::EINVAL),
                ([good.clone(), control(20, 9, &[0])].concat(), Errno::EINVAL),
                (alloc::vec![0; LONGEST_CONTROL + 1], Errno::ENOBUFS),
            ] {
                assert_eq!(send(program, socket, &bytes), Err(error), "{:?}", &bytes[..bytes.len().min(32)]);
            }
            assert_eq!(send(program, socket, &control(28, message::SCM_CREDENTIALS, &[id, 0, 0])), Ok(1));
            // Nothing has kept the writing end.
            program.close(writer).unwrap();
            assert_eq!(program.read_from(reader, 1), Ok(Vec::new()));
        });
    }
}
