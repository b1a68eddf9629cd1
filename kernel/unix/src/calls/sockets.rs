//! The calls on sockets.

use core::net::SocketAddr;
use core::ops::Range;

use abi_unix::Errno;
use abi_unix::types::{
    self, LONGEST_ADDRESS, SocketAddress, TimeSpec, address_of_bytes, message, socket_option as option,
};

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding};
use crate::calls::messages::require_socket;
use crate::calls::{local_sockets, messages};
use crate::files::file::OpenFile;
use crate::files::gathered::MOST_BYTES;
use crate::files::local_socket::LocalSocket;
use crate::files::message::Recipient;
use crate::files::owners::Awaited;
use crate::network::netlink::NetlinkSocket;
use crate::network::packet_socket::PacketSocket;
use crate::network::socket::Socket;
use crate::process::Process;
use crate::process::user::{AddressOut, Credentials, OptionOut, UserBuffer};

/// Flags of `recvfrom` that [`messages`] has.
const OF_MESSAGES: u32 = message::TRUNC | message::WAITALL | message::ERRQUEUE | message::CMSG_CLOEXEC;

/// Returns the socket of a call that is for sockets of the network. `EOPNOTSUPP` for one of requests to the kernel.
fn with_name(file: &OpenFile) -> Result<&Socket, Errno> {
    let is_other = NetlinkSocket::of(file).is_ok() || PacketSocket::of(file).is_ok();
    Socket::of(file).map_err(|error| if is_other { Errno::EOPNOTSUPP } else { error })
}

#[inline(never)]
pub(super) fn create(call: Call<'_>) -> Decoding {
    if call.unsigned(0) == types::AF_UNIX.into() {
        return local_sockets::create(call);
    }
    Socket::create(call.admitted()?, call.unsigned(0), call.unsigned(1), call.unsigned(2)).map(Into::into)
}

#[inline(never)]
pub(super) fn bind(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    if let Ok(socket) = NetlinkSocket::of(&file) {
        let port = NetlinkSocket::port_in(&**call.process(), call.address(1), call.unsigned(2))?;
        return socket.bind(port).map(Into::into);
    }
    if LocalSocket::of(&file).is_ok() {
        return local_sockets::bind(call, file);
    }
    if let Ok(socket) = PacketSocket::of(&file) {
        let to = PacketSocket::address_in(&**call.process(), call.address(1), call.unsigned(2))?;
        return socket.bind(to).map(Into::into);
    }
    let socket = with_name(&file)?;
    let to = address_in(call.process(), call.address(1), call.unsigned(2))?.ok_or(Errno::EAFNOSUPPORT)?;
    if RESERVED_PORTS.contains(&to.port()) && call.process().whom().is_some_and(|whom| !whom.is_privileged()) {
        return Err(Errno::EACCES);
    }
    socket.bind(to).map(Into::into)
}

/// Ports that only user 0 gives to its sockets.
#[doc(alias = "CAP_NET_BIND_SERVICE")]
const RESERVED_PORTS: Range<u16> = 1..1024;

#[inline(never)]
pub(super) fn listen(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let file = call.file(0)?;
    if let Ok(socket) = LocalSocket::of(&file) {
        let own = Credentials::of_peer(&**call.process());
        return socket.listen(call.signed(1), own).map(Into::into);
    }
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
    if LocalSocket::of(&file).is_err() {
        with_name(&file)?;
    }
    Ok(Operation::Accept { file, address: address_out(&call, 1), flags }.into())
}

#[inline(never)]
pub(super) fn connect(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let file = call.file(0)?;
    if NetlinkSocket::of(&file).is_ok() {
        let port = NetlinkSocket::port_in(&**process, call.address(1), call.unsigned(2))?;
        return NetlinkSocket::require_kernel(port).map(|()| 0.into());
    }
    if LocalSocket::of(&file).is_ok() {
        return local_sockets::connect(call, file);
    }
    let socket = with_name(&file)?;
    match address_in(process, call.address(1), call.unsigned(2))? {
        Some(address) => Ok(Operation::Connect { file, address, started: false }.into()),
        None => socket.dissolve().map(Into::into),
    }
}

#[inline(never)]
pub(super) fn local_address(call: Call<'_>) -> Decoding {
    let (file, out) = (call.file(0)?, AddressOut { address: call.address(1), size: call.address(2) });
    if let Ok(socket) = LocalSocket::of(&file) {
        return socket.write_name(out, &**call.process()).map(Into::into);
    }
    if let Ok(socket) = NetlinkSocket::of(&file) {
        return socket.write_address(out, &**call.process()).map(Into::into);
    }
    if let Ok(socket) = PacketSocket::of(&file) {
        return socket.write_address(out, &**call.process()).map(Into::into);
    }
    out.write(&**call.process(), Socket::of(&file)?.local_address()?).map(Into::into)
}

#[inline(never)]
pub(super) fn remote_address(call: Call<'_>) -> Decoding {
    let (file, out) = (call.file(0)?, AddressOut { address: call.address(1), size: call.address(2) });
    if let Ok(socket) = LocalSocket::of(&file) {
        return socket.write_peer(out, &**call.process()).map(Into::into);
    }
    if NetlinkSocket::of(&file).is_ok() {
        return out.write_bytes(&**call.process(), &types::netlink_address(0)).map(Into::into);
    }
    out.write(&**call.process(), with_name(&file)?.remote_address()?).map(Into::into)
}

#[inline(always)]
pub(super) fn send(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    if Socket::of(&file).is_err() {
        return messages::send_local(call, file);
    }
    let to = match call.address(4) {
        0 => None,
        address => Some(address_in(call.process(), address, call.unsigned(5))?.ok_or(Errno::EAFNOSUPPORT)?),
    };
    let (buffer, flags) = (call.buffer(1)?, call.unsigned(3));
    let address = match to {
        None => None,
        Some(SocketAddr::V4(to)) => Some(SocketAddress { address: to.ip().octets(), port: to.port() }),
        Some(to @ SocketAddr::V6(_)) => {
            return messages::send_gathered(file, buffer, flags, Recipient::Network(to));
        }
    };
    if buffer.len() > MOST_BYTES && file.must_gather(&[buffer]).is_some() {
        return messages::send_gathered(file, buffer, flags, to.map_or(Recipient::Peer, Recipient::Network));
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

/// Returns what calls wait for whose time an option limits.
fn limited_by(named: (u32, u32)) -> Option<Awaited> {
    match named {
        (option::SOL_SOCKET, option::SO_RCVTIMEO | option::SO_RCVTIMEO_NEW) => Some(Awaited::Input),
        (option::SOL_SOCKET, option::SO_SNDTIMEO | option::SO_SNDTIMEO_NEW) => Some(Awaited::Room),
        _ => None,
    }
}

/// Sets the time for which calls wait at a socket, a `struct timeval`: rounded up, and any time if it is longer than a
/// file can tell.
fn set_time_limit(process: &Process, file: &OpenFile, awaited: Awaited, value: UserBuffer) -> Result<usize, Errno> {
    let mut bytes = [0; 16];
    if value.len() < bytes.len() {
        return Err(Errno::EINVAL);
    }
    process.copy_in(value.address(), &mut bytes)?;
    let TimeSpec { seconds, nanoseconds: microseconds } = TimeSpec::from_bytes(bytes);
    if !(0..1_000_000).contains(&microseconds) {
        return Err(Errno::EDOM);
    }
    let limit = match seconds {
        // As good as none: a time that is over.
        ..0 => 1,
        _ => (seconds as u64).saturating_mul(1000).saturating_add((microseconds as u64).div_ceil(1000)),
    };
    file.set_time_limit_ms(awaited, limit);
    Ok(0)
}

#[inline(never)]
pub(super) fn set_option(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    let (level, option) = (call.unsigned(1), call.unsigned(2));
    let value = call.buffer(3)?;
    if let Some(awaited) = limited_by((level, option)) {
        require_socket(&file)?;
        return set_time_limit(call.process(), &file, awaited, value).map(Into::into);
    }
    if let Ok(socket) = LocalSocket::of(&file) {
        return socket.set_option(&**call.process(), (level, option), value).map(Into::into);
    }
    if NetlinkSocket::of(&file).is_ok() {
        return NetlinkSocket::set_option(level, option, value).map(Into::into);
    }
    if let Ok(socket) = PacketSocket::of(&file) {
        return socket.set_option(&**call.process(), (level, option), value).map(Into::into);
    }
    Socket::of(&file)?.set_option(&**call.process(), (level, option), value).map(Into::into)
}

#[inline(never)]
pub(super) fn get_option(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    let option = (call.unsigned(1), call.unsigned(2));
    let (process, out) = (&**call.process(), OptionOut::new(call.address(3), call.address(4)));
    if let Some(awaited) = limited_by(option) {
        require_socket(&file)?;
        let limit = file.time_limit_ms(awaited);
        return out
            .write(process, [limit / 1000, limit % 1000 * 1000].map(u64::to_le_bytes).as_flattened())
            .map(Into::into);
    }
    if let Ok(socket) = LocalSocket::of(&file) {
        return socket.get_option(process, option, out).map(Into::into);
    }
    if let Ok(socket) = NetlinkSocket::of(&file) {
        return socket.get_option(process, option, out).map(Into::into);
    }
    if let Ok(socket) = PacketSocket::of(&file) {
        return socket.get_option(process, option, out).map(Into::into);
    }
    Socket::of(&file)?.get_option(process, option, out).map(Into::into)
}

#[inline(never)]
pub(super) fn shut_down(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    match LocalSocket::of(&file) {
        Ok(socket) => socket.shutdown(call.unsigned(1)),
        Err(_) => with_name(&file)?.shutdown(call.unsigned(1)),
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
pub(super) fn address_in(process: &Process, address: usize, size: u32) -> Result<Option<SocketAddr>, Errno> {
    if !(2..=128).contains(&size) {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; LONGEST_ADDRESS];
    process.copy_in(address, &mut bytes[..2])?;
    match u16::from_le_bytes([bytes[0], bytes[1]]) {
        types::AF_UNSPEC => return Ok(None),
        types::AF_INET | types::AF_INET6 => {}
        _ => return Err(Errno::EAFNOSUPPORT),
    }
    let bytes = &mut bytes[..LONGEST_ADDRESS.min(size as usize)];
    process.copy_in(address, bytes)?;
    address_of_bytes(bytes).map(Some).ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6};

    use abi_unix::SystemCall;
    use abi_unix::types::{bytes_of_address, socket_option};

    use super::*;
    use crate::testing::{Program, run};

    #[test]
    fn socket_addresses_are_read_with_their_length_and_family() {
        run(|program| {
            let process = program.process();
            let four = SocketAddr::from(([127, 0, 0, 1], 80));
            let six = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 80, 5, 2));
            for (address, shortest) in [(four, 16), (six, 24)] {
                let (bytes, length) = bytes_of_address(address);
                let place = program.store(&[&bytes[..], &[0xff; 100]].concat());
                for size in [length as u32, 128] {
                    assert_eq!(address_in(&process, place, size), Ok(Some(address)));
                }
                for size in [0, 1, shortest - 1, 129, u32::MAX] {
                    assert_eq!(address_in(&process, place, size), Err(Errno::EINVAL), "{address} {size}");
                }
            }
            // An address of the first form has no scope.
            let place = program.store(&bytes_of_address(six).0);
            let unscoped = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 80, 5, 0));
            assert_eq!(address_in(&process, place, 24), Ok(Some(unscoped)));
            let nowhere = program.store(&[0; 16]);
            assert_eq!(address_in(&process, nowhere, 16), Ok(None));
            let other = program.store(&[11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
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

    const FOUR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const SIX: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
    const ALL_OF_SIX: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

    fn mapped() -> IpAddr {
        Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()
    }

    fn socket(program: &mut Program, family: u16, kind: u32) -> usize {
        let kind = kind | types::SOCK_NONBLOCK;
        program.call(SystemCall::Socket, [family as usize, kind as usize, 0]).unwrap()
    }

    /// Makes a call with a socket and an address.
    fn with_address(
        program: &mut Program,
        call: SystemCall,
        socket: usize,
        address: IpAddr,
        port: u16,
    ) -> Result<usize, Errno> {
        let (bytes, length) = bytes_of_address(SocketAddr::new(address, port));
        let place = program.store(&bytes[..length]);
        program.call(call, [socket, place, length])
    }

    fn name(program: &mut Program, call: SystemCall, socket: usize) -> SocketAddr {
        let (place, size) = (program.place(32), program.store(&28u32.to_le_bytes()));
        assert_eq!(program.call(call, [socket, place, size]), Ok(0));
        let length = program.read_u32(size) as usize;
        address_of_bytes(&program.read(place, length)).unwrap()
    }

    fn set_six_only(program: &mut Program, socket: usize, value: u32) -> Result<usize, Errno> {
        let place = program.store(&value.to_le_bytes());
        let option = [socket_option::IPPROTO_IPV6, socket_option::IPV6_V6ONLY].map(|word| word as usize);
        program.call(SystemCall::SetSocketOption, [socket, option[0], option[1], place, 4])
    }

    /// A listener of IPv6 has connections of both families, with mapped addresses for IPv4's, or of IPv6 only.
    #[test]
    fn a_listener_of_ipv6_listens_to_both_families_unless_it_refuses() {
        run(|program| {
            let mut port = 5000;
            for (is_six_only, bound) in [(0, ALL_OF_SIX), (1, ALL_OF_SIX), (0, SIX), (0, mapped())] {
                port += 1;
                let listener = socket(program, types::AF_INET6, types::SOCK_STREAM);
                assert_eq!(set_six_only(program, listener, is_six_only), Ok(0));
                assert_eq!(with_address(program, SystemCall::Bind, listener, bound, port), Ok(0));
                assert_eq!(set_six_only(program, listener, 1), Err(Errno::EINVAL), "it has an address");
                assert_eq!(program.call(SystemCall::Listen, [listener, 4]), Ok(0));
                assert_eq!(name(program, SystemCall::GetSocketName, listener), SocketAddr::new(bound, port));
                for (family, to, from) in [
                    (types::AF_INET, FOUR, mapped()),
                    (types::AF_INET6, mapped(), mapped()),
                    (types::AF_INET6, SIX, SIX),
                ] {
                    let is_heard = if from == SIX { bound != mapped() } else { bound != SIX && is_six_only == 0 };
                    let client = socket(program, family, types::SOCK_STREAM);
                    let connected = with_address(program, SystemCall::Connect, client, to, port);
                    let case = (is_six_only, bound, to);
                    if !is_heard {
                        assert_eq!(connected, Err(Errno::ECONNREFUSED), "{case:?}");
                        continue;
                    }
                    assert_eq!(connected, Ok(0), "{case:?}");
                    let server = program.call(SystemCall::Accept, [listener, 0, 0]).unwrap();
                    assert_eq!(name(program, SystemCall::GetPeerName, client), SocketAddr::new(to, port));
                    assert_eq!(name(program, SystemCall::GetSocketName, server), SocketAddr::new(from, port));
                    let peer = name(program, SystemCall::GetPeerName, server);
                    assert_eq!(
                        (peer.ip(), peer.port()),
                        (from, name(program, SystemCall::GetSocketName, client).port())
                    );
                    assert_eq!(program.write_to(client, b"question"), Ok(8));
                    assert_eq!(program.read_from(server, 9), Ok(b"question".to_vec()));
                    program.close(client).unwrap();
                    program.close(server).unwrap();
                }
                // The port is taken from whom it serves, and from nobody else.
                let other = socket(program, types::AF_INET, types::SOCK_STREAM);
                let is_taken = bound == mapped() || bound == ALL_OF_SIX && is_six_only == 0;
                let expected = if is_taken { Err(Errno::EADDRINUSE) } else { Ok(0) };
                assert_eq!(with_address(program, SystemCall::Bind, other, FOUR, port), expected);
                program.close(other).unwrap();
            }
        });
    }

    #[test]
    fn datagrams_of_both_families_reach_a_socket_of_ipv6() {
        run(|program| {
            let server = socket(program, types::AF_INET6, types::SOCK_DGRAM);
            assert_eq!(with_address(program, SystemCall::Bind, server, ALL_OF_SIX, 5100), Ok(0));
            let byte = program.store(b"x");
            for (family, to, from) in
                [(types::AF_INET, FOUR, mapped()), (types::AF_INET6, mapped(), mapped()), (types::AF_INET6, SIX, SIX)]
            {
                let client = socket(program, family, types::SOCK_DGRAM);
                let (bytes, length) = bytes_of_address(SocketAddr::new(to, 5100));
                let place = program.store(&bytes[..length]);
                assert_eq!(program.call(SystemCall::SendTo, [client, byte, 1, 0, place, length]), Ok(1), "{to}");
                let (source, size) = (program.place(32), program.store(&28u32.to_le_bytes()));
                assert_eq!(program.call(SystemCall::ReceiveFrom, [server, byte, 1, 0, source, size]), Ok(1), "{to}");
                let sender = address_of_bytes(&program.read(source, program.read_u32(size) as usize)).unwrap();
                assert_eq!(sender.ip(), from);
                // Back to it, and connected.
                assert_eq!(program.call(SystemCall::SendTo, [server, byte, 1, 0, source, 28]), Ok(1));
                assert_eq!(program.read_from(client, 2), Ok(b"x".to_vec()));
                assert_eq!(with_address(program, SystemCall::Connect, client, to, 5100), Ok(0));
                assert_eq!(name(program, SystemCall::GetPeerName, client), SocketAddr::new(to, 5100));
                assert_eq!(name(program, SystemCall::GetSocketName, client).ip(), to, "the address it sends from");
                assert_eq!(program.write_to(client, b"y"), Ok(1));
                assert_eq!(program.read_from(server, 2), Ok(b"y".to_vec()));
            }
            // One for IPv6 only neither sends nor hears.
            let only = socket(program, types::AF_INET6, types::SOCK_DGRAM);
            assert_eq!(set_six_only(program, only, 1), Ok(0));
            assert_eq!(with_address(program, SystemCall::Connect, only, mapped(), 5100), Err(Errno::ENETUNREACH));
            assert_eq!(with_address(program, SystemCall::Connect, only, FOUR, 5100), Err(Errno::EAFNOSUPPORT));
            assert_eq!(with_address(program, SystemCall::Connect, only, SIX, 5100), Ok(0));
            assert_eq!(set_six_only(program, only, 0), Err(Errno::EINVAL));
        });
    }

    #[test]
    fn addresses_of_the_wrong_family_are_refused() {
        run(|program| {
            let (four, six) = (
                socket(program, types::AF_INET, types::SOCK_STREAM),
                socket(program, types::AF_INET6, types::SOCK_STREAM),
            );
            for call in [SystemCall::Bind, SystemCall::Connect] {
                assert_eq!(with_address(program, call, four, SIX, 5200), Err(Errno::EAFNOSUPPORT));
            }
            // Linux's `bind` looks at the length first.
            assert_eq!(with_address(program, SystemCall::Bind, six, FOUR, 5200), Err(Errno::EINVAL));
            assert_eq!(with_address(program, SystemCall::Connect, six, FOUR, 5200), Err(Errno::EAFNOSUPPORT));
            // An address of one network only belongs to an interface.
            for (scope, refused) in [(0, Errno::EINVAL), (9, Errno::ENODEV), (2, Errno::EADDRNOTAVAIL)] {
                let end = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 5200, 0, scope));
                let (bytes, length) = bytes_of_address(end);
                let place = program.store(&bytes[..length]);
                assert_eq!(program.call(SystemCall::Bind, [six, place, length]), Err(refused), "scope {scope}");
            }
            let elsewhere = IpAddr::V6("2001:db8::1".parse().unwrap());
            assert_eq!(with_address(program, SystemCall::Bind, six, elsewhere, 5200), Err(Errno::EADDRNOTAVAIL));
            assert_eq!(with_address(program, SystemCall::Connect, six, elsewhere, 5200), Err(Errno::ENETUNREACH));
            assert_eq!(set_six_only(program, four, 1), Err(Errno::ENOPROTOOPT));
            assert_eq!(set_six_only(program, six, 1), Ok(0));
            assert_eq!(with_address(program, SystemCall::Bind, six, mapped(), 5200), Err(Errno::EINVAL));
        });
    }

    /// Echoes of this host are answered with the socket's identifier, whatever a program puts there. Other messages
    /// are refused.
    #[test]
    fn echoes_of_this_host_are_answered() {
        run(|program| {
            use socket_option::{
                IP_RECVTTL, IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_IP, IPPROTO_IPV6, IPV6_RECVHOPLIMIT,
            };
            for (family, protocol, address, kinds, option) in [
                (types::AF_INET, IPPROTO_ICMP, FOUR, (8, 0), (IPPROTO_IP, IP_RECVTTL)),
                (types::AF_INET6, IPPROTO_ICMPV6, SIX, (128, 129), (IPPROTO_IPV6, IPV6_RECVHOPLIMIT)),
            ] {
                let make = |program: &mut Program| {
                    let kind = (types::SOCK_DGRAM | types::SOCK_NONBLOCK) as usize;
                    program.call(SystemCall::Socket, [family as usize, kind, protocol as usize]).unwrap()
                };
                let (own, other) = (make(program), make(program));
                let one = program.store(&1u32.to_le_bytes());
                let option = [own, option.0 as usize, option.1 as usize, one, 4];
                assert_eq!(program.call(SystemCall::SetSocketOption, option), Ok(0));
                let identifier = name(program, SystemCall::GetSocketName, own).port();
                assert!(identifier != 0 && identifier != name(program, SystemCall::GetSocketName, other).port());
                let (bytes, length) = bytes_of_address(SocketAddr::new(address, 0));
                let to = program.store(&bytes[..length]);
                let send = |program: &mut Program, message: &[u8]| {
                    let place = program.store(message);
                    program.call(SystemCall::SendTo, [own, place, message.len(), 0, to, length])
                };
                let request = [kinds.0, 0, 1, 2, 0xff, 0xff, 0, 7, b'x', b'y'];
                assert_eq!(send(program, &request), Ok(10));
                let (place, control) = (program.place(64), program.place(64));
                let header = program.message_header(&[(place, 64)], (control, 64));
                assert_eq!(program.call(SystemCall::ReceiveMessage, [own, header, 0]), Ok(10));
                let answer = program.read(place, 10);
                assert_eq!((answer[0], &answer[6..]), (kinds.1, &[0, 7, b'x', b'y'][..]));
                assert_eq!(u16::from_be_bytes([answer[4], answer[5]]), identifier);
                assert_eq!(program.read_u32(control + 16), 64, "the hop limit");
                assert_eq!(program.read_from(other, 10), Err(Errno::EAGAIN));
                for wrong in [&request[..7], &[kinds.1, 0, 0, 0, 0, 0, 0, 0], &[kinds.0, 1, 0, 0, 0, 0, 0, 0]] {
                    assert_eq!(send(program, wrong), Err(Errno::EINVAL), "{wrong:?}");
                }
                assert_eq!(program.call(SystemCall::Connect, [own, to, length]), Ok(0));
                assert_eq!(program.write_to(own, &request), Ok(10));
                assert_eq!(program.read_from(own, 10).map(|answer| answer.len()), Ok(10));
            }
            for (family, protocol) in [(types::AF_INET, IPPROTO_ICMPV6), (types::AF_INET6, IPPROTO_ICMP)] {
                let arguments = [family as usize, types::SOCK_DGRAM as usize, protocol as usize];
                assert_eq!(program.call(SystemCall::Socket, arguments), Err(Errno::EPROTONOSUPPORT));
            }
        });
    }
}
