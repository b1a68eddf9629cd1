//! The calls on sockets.

use abi_unix::Errno;
use abi_unix::types::{self, SocketAddress, message};

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding};
use crate::calls::messages;
use crate::files::file::OpenFile;
use crate::files::gathered::MOST_BYTES;
use crate::files::local_socket::LocalSocket;
use crate::network::socket::Socket;
use crate::process::Process;
use crate::process::user::{AddressOut, OptionOut};

/// Flags of `recvfrom` that [`messages`] has.
const OF_MESSAGES: u32 = message::TRUNC | message::WAITALL | message::CMSG_CLOEXEC;

/// Returns the socket of a call that is for sockets of the network. `EOPNOTSUPP` for a local one: it has no name, and
/// is connected for ever.
fn with_name(file: &OpenFile) -> Result<&Socket, Errno> {
    Socket::of(file).map_err(|error| LocalSocket::of(file).map_or(error, |_| Errno::EOPNOTSUPP))
}

#[inline(never)]
pub(super) fn create(call: Call<'_>) -> Decoding {
    Socket::create(call.admitted()?, call.unsigned(0), call.unsigned(1), call.unsigned(2)).map(Into::into)
}

#[inline(never)]
pub(super) fn bind(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    let socket = with_name(&file)?;
    socket
        .bind(address_in(call.process(), call.address(1), call.unsigned(2))?.ok_or(Errno::EAFNOSUPPORT)?)
        .map(Into::into)
}

#[inline(never)]
pub(super) fn listen(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let file = call.file(0)?;
    let done = with_name(&file)?.listen(call.signed(1))?;
    // The stack has a new object for the socket.
    file.wake_watchers(call.process().id);
    Ok(done.into())
}

#[inline(always)]
pub(super) fn accept(call: Call<'_>) -> Decoding {
    accept_with(call, 0)
}

#[inline(always)]
pub(super) fn accept_with_flags(call: Call<'_>) -> Decoding {
    let flags = call.unsigned(3);
    accept_with(call, flags)
}

#[inline(never)]
fn accept_with(call: Call<'_>, flags: u32) -> Decoding {
    call.admitted()?;
    if flags & !(types::SOCK_NONBLOCK | types::SOCK_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = call.file(0)?;
    with_name(&file)?;
    Ok(Operation::Accept { file, address: address_out(&call, 1), flags }.into())
}

#[inline(never)]
pub(super) fn connect(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let file = call.file(0)?;
    let socket = with_name(&file)?;
    match address_in(process, call.address(1), call.unsigned(2))? {
        Some(address) => Ok(Operation::Connect { file, address, started: false }.into()),
        None => socket.dissolve().map(Into::into),
    }
}

#[inline(never)]
pub(super) fn local_address(call: Call<'_>) -> Decoding {
    let (file, out) = (call.file(0)?, AddressOut { address: call.address(1), size: call.address(2) });
    if LocalSocket::of(&file).is_ok() {
        return LocalSocket::write_address(out, &**call.process()).map(Into::into);
    }
    out.write(&**call.process(), Socket::of(&file)?.local_address()?).map(Into::into)
}

#[inline(never)]
pub(super) fn remote_address(call: Call<'_>) -> Decoding {
    let (file, out) = (call.file(0)?, AddressOut { address: call.address(1), size: call.address(2) });
    if LocalSocket::of(&file).is_ok() {
        return LocalSocket::write_address(out, &**call.process()).map(Into::into);
    }
    out.write(&**call.process(), Socket::of(&file)?.remote_address()?).map(Into::into)
}

#[inline(always)]
pub(super) fn send(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    if Socket::of(&file).is_err() {
        return messages::send_local(call, file);
    }
    let address = match call.address(4) {
        0 => None,
        address => Some(address_in(call.process(), address, call.unsigned(5))?.ok_or(Errno::EAFNOSUPPORT)?),
    };
    let (buffer, flags) = (call.buffer(1)?, call.unsigned(3));
    if buffer.len() > MOST_BYTES && file.must_gather(&[buffer]).is_some() {
        return messages::send_gathered(file, buffer, flags, address);
    }
    Ok(Operation::Send { file, buffer, flags, address, sent: 0 }.into())
}

#[inline(always)]
pub(super) fn receive(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    if Socket::of(&file).is_err() || call.unsigned(3) & OF_MESSAGES != 0 {
        return messages::receive_as_message(call, file);
    }
    let address = address_out(&call, 4);
    Ok(Operation::Receive { file, buffer: call.buffer(1)?, flags: call.unsigned(3), address }.into())
}

#[inline(never)]
pub(super) fn set_option(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    let (level, option) = (call.unsigned(1), call.unsigned(2));
    let value = call.buffer(3)?;
    if LocalSocket::of(&file).is_ok() {
        return LocalSocket::set_option(level, option, value).map(Into::into);
    }
    Socket::of(&file)?.set_option(&**call.process(), level, option, value).map(Into::into)
}

#[inline(never)]
pub(super) fn get_option(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    let option = (call.unsigned(1), call.unsigned(2));
    let (process, out) = (&**call.process(), OptionOut::new(call.address(3), call.address(4)));
    if let Ok(socket) = LocalSocket::of(&file) {
        return socket.get_option(process, option, out).map(Into::into);
    }
    Socket::of(&file)?.get_option(process, option, out).map(Into::into)
}

#[inline(never)]
pub(super) fn shut_down(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    match LocalSocket::of(&file) {
        Ok(socket) => socket.shutdown(call.unsigned(1)),
        Err(_) => Socket::of(&file)?.shutdown(call.unsigned(1)),
    }
    .map(Into::into)
}

/// Returns the place for a socket's address: address and size in this argument and the next; `None` for address 0.
#[inline(always)]
pub(super) fn address_out(call: &Call<'_>, argument: usize) -> Option<AddressOut> {
    match call.address(argument) {
        0 => None,
        address => Some(AddressOut { address, size: call.address(argument + 1) }),
    }
}

/// Reads a socket address of a process; `None` if its family is `AF_UNSPEC`.
pub(super) fn address_in(process: &Process, address: usize, size: u32) -> Result<Option<SocketAddress>, Errno> {
    if !(2..=128).contains(&size) {
        return Err(Errno::EINVAL);
    }
    let mut family = [0; 2];
    process.copy_in(address, &mut family)?;
    match u16::from_le_bytes(family) {
        types::AF_UNSPEC => return Ok(None),
        types::AF_INET => {}
        _ => return Err(Errno::EAFNOSUPPORT),
    }
    if (size as usize) < SocketAddress::SIZE {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; SocketAddress::SIZE];
    process.copy_in(address, &mut bytes)?;
    SocketAddress::from_bytes(bytes).ok_or(Errno::EAFNOSUPPORT).map(Some)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::run;

    #[test]
    fn socket_addresses_are_read_with_their_length_and_family() {
        run(|program| {
            let process = program.process();
            let address = SocketAddress { address: [127, 0, 0, 1], port: 80 };
            let place = program.store(&address.to_bytes());
            assert_eq!(address_in(&process, place, 16), Ok(Some(address)));
            assert_eq!(address_in(&process, place, 128), Ok(Some(address)));
            for size in [0, 1, 15, 129, u32::MAX] {
                assert_eq!(address_in(&process, place, size), Err(Errno::EINVAL), "{size}");
            }
            let nowhere = program.store(&[0; 16]);
            assert_eq!(address_in(&process, nowhere, 16), Ok(None));
            let other = program.store(&[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(address_in(&process, other, 16), Err(Errno::EAFNOSUPPORT));
            assert_eq!(address_in(&process, 0x1000, 16), Err(Errno::EFAULT));
        });
    }

    /// Within the machine: a connection, bytes both ways, and its end.
    #[test]
    fn a_connection_within_the_machine_carries_bytes_both_ways() {
        run(|program| {
            let listener = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
            let address = program.store(&SocketAddress { address: [127, 0, 0, 1], port: 4711 }.to_bytes());
            assert_eq!(program.call(SystemCall::Bind, [listener, address, 16]), Ok(0));
            assert_eq!(program.call(SystemCall::Listen, [listener, 4]), Ok(0));
            program
                .add_worker(move |program| {
                    let client = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
                    assert_eq!(program.call(SystemCall::Connect, [client, address, 16]), Ok(0));
                    assert_eq!(program.write_to(client, b"question"), Ok(8));
                    assert_eq!(program.read_from(client, 100), Ok(b"answer".to_vec()));
                    assert_eq!(program.read_from(client, 100), Ok(vec![]));
                    program.close(client).unwrap();
                })
                .unwrap();
            let server = program.call(SystemCall::Accept, [listener, 0, 0]).unwrap();
            assert_eq!(program.read_from(server, 100), Ok(b"question".to_vec()));
            let place = program.place(8);
            let do_not_wait = [server, place, 8, message::DONTWAIT as usize, 0, 0];
            assert_eq!(program.call(SystemCall::ReceiveFrom, do_not_wait), Err(Errno::EAGAIN));
            assert_eq!(program.write_to(server, b"answer"), Ok(6));
            assert_eq!(program.call(SystemCall::Shutdown, [server, 1]), Ok(0));
            assert_eq!(program.read_from(server, 100), Ok(vec![]), "the other end is closed");
            assert_eq!(program.write_to(server, b"x"), Err(Errno::EPIPE));
        });
    }
}
