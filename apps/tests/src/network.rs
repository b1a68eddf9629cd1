//! TCP and UDP over the loopback device.

use abi_unix::SystemCall;
use abi_unix::types::{self, SocketAddress, socket_option};
use alloc::sync::Arc;
use alloc::vec::Vec;
use cops::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use cops::thread;
use cops::time::Duration;
use cops::{Errno, system};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use crate::harness::{self, LIMIT, Outcome, calls_in_flight, calls_in_flight_return_to, until};
use crate::{check, check_eq, must};

const ANY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);

/// Makes a listener; returns its address too.
fn listen() -> Result<(TcpListener, SocketAddr), Errno> {
    let listener = TcpListener::bind(ANY)?;
    let address = listener.local_address()?;
    Ok((listener, address))
}

/// Makes a connection; returns both ends.
async fn pair() -> Result<(TcpStream, TcpStream), Errno> {
    let (listener, address) = listen()?;
    let connecting = cops::spawn(TcpStream::connect(address));
    let (accepted, _) = listener.accept().await?;
    Ok((connecting.await.unwrap_or(Err(Errno::ECANCELED))?, accepted))
}

pub async fn echo() -> Outcome {
    let (listener, address) = must!(listen());
    check!(address.port() != 0);
    cops::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            cops::spawn(async move {
                let mut buffer = alloc::vec![0; 3000];
                loop {
                    let (result, returned) = stream.read(buffer).await;
                    let Ok(count @ 1..) = result else { return };
                    if stream.write_all(returned[..count].to_vec()).await.0.is_err() {
                        return;
                    }
                    buffer = returned;
                }
            })
            .detach();
        }
    })
    .detach();
    let stream = Arc::new(must!(TcpStream::connect(address).await));
    check_eq!(must!(stream.peer_address()), address);
    check_eq!(must!(stream.local_address()).ip(), Ipv4Addr::LOCALHOST);
    let data: Vec<u8> = (0..300_000u32).map(|index| (index * 7) as u8).collect();
    let sending = cops::spawn({
        let (stream, data) = (stream.clone(), data.clone());
        async move { stream.write_all(data).await.0 }
    });
    let (result, echoed) = stream.read_exact(alloc::vec![0; data.len()]).await;
    check_eq!(result, Ok(()));
    check!(echoed == data);
    check_eq!(sending.await, Ok(Ok(())));
    Ok(())
}

pub async fn synchronous_sockets() -> Outcome {
    let listener = must!(system::network::socket(abi_unix::types::SOCK_STREAM));
    must!(system::network::bind(listener.raw(), SocketAddress { address: [127, 0, 0, 1], port: 0 }));
    must!(system::network::listen(listener.raw(), 4));
    let address = must!(system::network::local_address(listener.raw()));
    let client = must!(system::network::socket(abi_unix::types::SOCK_STREAM));
    must!(cops::connect!(client.raw(), address));
    let server = must!(cops::accept!(listener.raw()));
    check_eq!(cops::send!(client.raw(), b"synchronous"), Ok(11));
    let mut buffer = [0; 32];
    check_eq!(cops::recv!(server, &mut buffer), Ok(11));
    check_eq!(&buffer[..11], b"synchronous");
    let (result, _) = cops::send!(server, &b"asynchronous"[..], cops::current());
    check_eq!(result, Ok(12));
    let (result, buffer) = cops::recv!(client.raw(), alloc::vec![0; 32], cops::current());
    check_eq!(result, Ok(12));
    check_eq!(&buffer[..12], b"asynchronous");
    drop(system::Descriptor::from_raw(server));
    check_eq!(system::file::read(client.raw(), &mut [0; 4]), Ok(0));
    Ok(())
}

pub async fn half_close() -> Outcome {
    let (client, server) = must!(pair().await);
    check_eq!(client.write_all(&b"question"[..]).await.0, Ok(()));
    must!(client.shutdown(Shutdown::Write));
    check_eq!(client.write(&b"x"[..]).await.0, Err(Errno::EPIPE));
    check_eq!(server.read(alloc::vec![0; 8]).await, (Ok(8), b"question".to_vec()));
    check_eq!(server.read(alloc::vec![0; 8]).await.0, Ok(0));
    check_eq!(server.write_all(&b"answer"[..]).await.0, Ok(()));
    check_eq!(client.read(alloc::vec![0; 6]).await, (Ok(6), b"answer".to_vec()));
    drop(server);
    check_eq!(client.read(alloc::vec![0; 6]).await.0, Ok(0));
    Ok(())
}

pub async fn reset() -> Outcome {
    let (client, server) = must!(pair().await);
    // Lingering for no time: close resets the connection.
    let linger = [1i32, 0];
    // SAFETY: the option's value lives through the call.
    let set = unsafe {
        system::call!(
            SetSocketOption,
            client.descriptor().raw(),
            socket_option::SOL_SOCKET,
            socket_option::SO_LINGER,
            linger.as_ptr(),
            8
        )
    };
    must!(set);
    let reading = cops::spawn(async move { (server.read(alloc::vec![0; 4]).await.0, server) });
    cops::sleep(Duration::from_millis(2)).await;
    drop(client);
    let (result, server) = must!(must!(cops::timeout(LIMIT, reading).await));
    check_eq!(result, Err(Errno::ECONNRESET));
    let result = server.write(&b"x"[..]).await.0;
    check!(harness::is_one_of(&result, &[Errno::EPIPE, Errno::ECONNRESET]), "{result:?}");
    Ok(())
}

pub async fn refused() -> Outcome {
    let (listener, address) = must!(listen());
    drop(listener);
    let result = TcpStream::connect(address).await;
    check_eq!(result.err(), Some(Errno::ECONNREFUSED));
    let (listener, address) = must!(listen());
    let second = TcpListener::bind(address);
    check_eq!(second.err(), Some(Errno::EADDRINUSE));
    drop(listener);
    check!(TcpListener::bind(address).is_ok());
    Ok(())
}

pub async fn backlog() -> Outcome {
    let listener = must!(TcpListener::bind_with_backlog(ANY, 4));
    let address = must!(listener.local_address());
    // More than the backlog: some wait or are refused, and none is lost without an error.
    let connecting: Vec<_> = (0..12).map(|_| cops::spawn(TcpStream::connect(address))).collect();
    cops::sleep(Duration::from_millis(50)).await;
    let mut accepted = Vec::new();
    while let Ok(result) = cops::timeout(Duration::from_millis(1500), listener.accept()).await {
        accepted.push(must!(result).0);
    }
    check!(accepted.len() >= 4, "only {} were accepted", accepted.len());
    // An accepted client is connected, and finds that out.
    harness::until(|| Ok(connecting.iter().filter(|handle| handle.is_finished()).count() >= accepted.len())).await?;
    let mut connected = 0;
    for handle in connecting.into_iter().filter(|handle| handle.is_finished()) {
        if let Ok(Ok(stream)) = handle.await {
            check_eq!(stream.write(&b"x"[..]).await.0, Ok(1));
            connected += 1;
        }
    }
    check!(connected >= accepted.len(), "only {connected} of {} are connected", accepted.len());
    Ok(())
}

pub async fn two_hundred_and_fifty_six_connections() -> Outcome {
    const CONNECTIONS: usize = 256;
    let listener = must!(TcpListener::bind_with_backlog(ANY, 64));
    let address = must!(listener.local_address());
    let serving = cops::spawn(async move {
        let mut handles = Vec::new();
        for _ in 0..CONNECTIONS {
            let (stream, _) = listener.accept().await?;
            handles.push(cops::spawn(async move {
                for _ in 0..5 {
                    let (result, buffer) = stream.read_exact(alloc::vec![0; 8]).await;
                    result?;
                    stream.write_all(buffer).await.0?;
                }
                Ok::<_, Errno>(())
            }));
        }
        for handle in handles {
            handle.await.map_err(|_| Errno::ECANCELED)??;
        }
        Ok::<_, Errno>(())
    });
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS as u64 {
        let stream = must!(TcpStream::connect(address).await);
        clients.push(cops::spawn(async move {
            for turn in 0..5u64 {
                let message = (number << 8 | turn).to_le_bytes();
                stream.write_all(message.to_vec()).await.0?;
                let (result, answer) = stream.read_exact(alloc::vec![0; 8]).await;
                result?;
                if answer != message {
                    return Err(Errno::EIO);
                }
            }
            Ok(())
        }));
    }
    for client in clients {
        check_eq!(client.await, Ok(Ok(())));
    }
    check_eq!(serving.await, Ok(Ok(())));
    Ok(())
}

/// Hundreds wait for one listener; without connections they do not run, and those that give up do not affect the
/// others.
pub async fn hundreds_accept_on_one_listener() -> Outcome {
    const WAITING: usize = 300;
    let (listener, address) = must!(listen());
    let listener = Arc::new(listener);
    let in_flight = calls_in_flight()?;
    let mut accepting: Vec<_> = (0..WAITING)
        .map(|_| {
            let listener = listener.clone();
            cops::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (result, buffer) = stream.read_exact(alloc::vec![0; 4]).await;
                    result?;
                    stream.write_all(buffer).await.0?;
                }
                Ok::<_, Errno>(())
            })
        })
        .collect();
    for round in 0..2 {
        // They are in flight when the kernel has taken them, which is not at once on a busy machine.
        let waiting = in_flight + accepting.len() as u64;
        until(|| Ok(calls_in_flight().is_ok_and(|now| now >= waiting))).await?;
        for _ in 0..10 {
            let stream = must!(TcpStream::connect(address).await);
            check_eq!(stream.write_all(&b"ping"[..]).await.0, Ok(()));
            let answer = cops::timeout(LIMIT, stream.read_exact(alloc::vec![0; 4])).await;
            check_eq!(must!(answer), (Ok(()), b"ping".to_vec()));
        }
        if round == 0 {
            // The oldest, the youngest and some between.
            let (cancelled, others): (Vec<_>, Vec<_>) =
                accepting.into_iter().enumerate().partition(|(index, _)| index % 3 == 0 || index + 1 == WAITING);
            accepting = others.into_iter().map(|(_, handle)| handle).collect();
            cancelled.iter().for_each(|(_, handle)| handle.cancel());
            for (_, handle) in cancelled {
                check!(handle.await.is_err(), "it was cancelled and ended by itself");
            }
        }
    }
    for handle in accepting {
        handle.cancel();
    }
    calls_in_flight_return_to(in_flight).await
}

/// A listener for both versions of IP, and datagrams of six.
pub async fn both_versions() -> Outcome {
    let listener = must!(TcpListener::bind("[::]:0"));
    let port = must!(listener.local_address()).port();
    for (from, seen) in [("::1", "::1"), ("127.0.0.1", "::ffff:127.0.0.1")] {
        let (from, seen): (IpAddr, IpAddr) = (must!(from.parse()), must!(seen.parse()));
        let connecting = cops::spawn(TcpStream::connect((from, port)));
        let (server, peer) = must!(must!(cops::timeout(LIMIT, listener.accept()).await));
        let client = must!(must!(connecting.await));
        check_eq!((peer.ip(), peer.port()), (seen, must!(client.local_address()).port()));
        check_eq!(must!(client.peer_address()), SocketAddr::new(from, port));
        check_eq!(client.write_all(&b"hello"[..]).await.0, Ok(()));
        check_eq!(server.read(alloc::vec![0; 5]).await, (Ok(5), b"hello".to_vec()));
    }
    let (one, two) = (must!(UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))), must!(UdpSocket::bind("[::1]:0")));
    check_eq!(one.send_to(&b"six"[..], must!(two.local_address())).await.0, Ok(3));
    check_eq!(two.receive_from(alloc::vec![0; 3]).await, (Ok((3, must!(one.local_address()))), b"six".to_vec()));
    // A socket of four reaches no address of six.
    let four = must!(UdpSocket::bind(ANY));
    check_eq!(four.send_to(&b"no"[..], "[::1]:9").await.0, Err(Errno::EAFNOSUPPORT));
    Ok(())
}

pub async fn datagrams() -> Outcome {
    let (one, two) = (must!(UdpSocket::bind(ANY)), must!(UdpSocket::bind(ANY)));
    let (first, second) = (must!(one.local_address()), must!(two.local_address()));
    for size in [0usize, 1, 100, 1400] {
        let data: Vec<u8> = (0..size).map(|index| index as u8).collect();
        check_eq!(one.send_to(data.clone(), second).await.0, Ok(size));
        let (result, buffer) = two.receive_from(alloc::vec![0; 2000]).await;
        check_eq!(result, Ok((size, first)));
        check!(buffer[..size] == data);
    }
    // A datagram is cut to the buffer's length; the next read begins with the next datagram.
    check_eq!(one.send_to(&b"long message"[..], second).await.0, Ok(12));
    check_eq!(one.send_to(&b"next"[..], second).await.0, Ok(4));
    let (result, buffer) = two.receive_from(alloc::vec![0; 4]).await;
    check_eq!(result, Ok((4, first)));
    check_eq!(buffer, b"long");
    check_eq!(two.receive_from(buffer).await.1, b"next");
    let result = one.send_to(alloc::vec![0; 70_000], second).await.0;
    check_eq!(result, Err(Errno::EMSGSIZE));
    Ok(())
}

pub async fn options() -> Outcome {
    use system::network::{option, set_option};
    let (client, _server) = must!(pair().await);
    let number = client.descriptor().raw();
    check_eq!(option(number, socket_option::SOL_SOCKET, socket_option::SO_TYPE), Ok(1));
    check_eq!(option(number, socket_option::SOL_SOCKET, socket_option::SO_ERROR), Ok(0));
    must!(set_option(number, socket_option::IPPROTO_TCP, socket_option::TCP_NODELAY, 1));
    check_eq!(option(number, socket_option::IPPROTO_TCP, socket_option::TCP_NODELAY), Ok(1));
    check_eq!(option(number, socket_option::SOL_SOCKET, 9999), Err(Errno::ENOPROTOOPT));
    check!(must!(option(number, socket_option::SOL_SOCKET, socket_option::SO_RCVBUF)) > 0);
    Ok(())
}

/// In QEMU's user network, whose router advertises `fec0::/64`.
pub async fn the_card_takes_part_in_six() -> Outcome {
    const OF_SITE: &str = " 02 40 40 00     eth0";
    let mut text = must!(cops::file::read_to_string("/proc/net/if_inet6").await);
    check!(text.starts_with("00000000000000000000000000000001 01 80 10 80       lo\n"));
    // Two addresses are asked for, one after the other, for up to two seconds each.
    for _ in 0..100 {
        if text.lines().any(|line| line.ends_with(OF_SITE)) {
            break;
        }
        cops::sleep(Duration::from_millis(50)).await;
        text = must!(cops::file::read_to_string("/proc/net/if_inet6").await);
    }
    let has_address = text.lines().any(|line| line.starts_with("fec00000000000005054") && line.ends_with(OF_SITE));
    check!(has_address, "{text}");
    let groups = must!(cops::file::read_to_string("/proc/net/igmp6").await);
    check!(groups.starts_with("1    lo              ff020000000000000000000000000001     1 00000004 0\n"), "{groups}");
    let of_card = |group: &str| groups.contains(&alloc::format!("2    eth0            ff02000000000000000000{group} "));
    check!(of_card("0000000001") && of_card("01ff123456"), "{groups}");
    let groups = must!(cops::file::read_to_string("/proc/net/igmp").await);
    check!(groups.contains("2\teth0      :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n"), "{groups}");
    // The other host answers that nothing listens there, or that it has no IPv6 itself.
    let raw = |call: SystemCall, arguments: [usize; 6]| harness::call(call, arguments);
    let stream = abi_unix::types::SOCK_STREAM as usize;
    let socket = must!(raw(SystemCall::Socket, [abi_unix::types::AF_INET6.into(), stream, 0, 0, 0, 0]));
    let connect = |address: SocketAddr| {
        let (bytes, length) = abi_unix::types::bytes_of_address(address);
        raw(SystemCall::Connect, [socket, bytes.as_ptr() as usize, length, 0, 0, 0])
    };
    let refused = connect("[fec0::2]:1".parse().unwrap_or(ANY.into()));
    check!(harness::is_one_of(&refused, &[Errno::ECONNREFUSED, Errno::ENETUNREACH]), "{refused:?}");
    check_eq!(connect("[fe80::2]:1".parse().unwrap_or(ANY.into())), Err(Errno::EINVAL));
    must!(raw(SystemCall::Close, [socket, 0, 0, 0, 0, 0]));
    Ok(())
}

pub async fn closing_wakes_waiters() -> Outcome {
    let (client, server) = must!(pair().await);
    let server = Arc::new(server);
    let reading = cops::spawn({
        let server = server.clone();
        async move { server.read(alloc::vec![0; 4]).await.0 }
    });
    cops::sleep(Duration::from_millis(2)).await;
    must!(server.shutdown(Shutdown::Both));
    let result = must!(must!(cops::timeout(LIMIT, reading).await));
    check!(result == Ok(0) || result.is_err());
    check_eq!(must!(cops::timeout(LIMIT, client.read(alloc::vec![0; 4])).await).0, Ok(0));
    Ok(())
}

/// Local sockets: bytes and messages both ways, asynchronously and with descriptors in them, and the end.
pub async fn local_sockets() -> Outcome {
    use abi_unix::types::{SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM, message};
    for kind in [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET] {
        let (first, second) = must!(system::network::socket_pair(kind));
        let receiving = cops::spawn({
            let second = second.raw();
            async move { cops::recv!(second, alloc::vec![0; 100], cops::current()) }
        });
        cops::yield_now().await;
        check_eq!(cops::send!(first.raw(), b"to the second"), Ok(13));
        let (result, bytes) = must!(receiving.await);
        check_eq!(result, Ok(13));
        check_eq!(&bytes[..13], b"to the second");
        let (reader, writer) = must!(system::file::pipe(0));
        check_eq!(system::network::send_files(second.raw(), b"a pipe", &[writer.raw(), reader.raw()], 0), Ok(6));
        drop((reader, writer));
        let mut buffer = [0; 10];
        let mut files = [(); 3].map(|()| system::Descriptor::from_raw(-1));
        let received = system::network::receive_files(first.raw(), &mut buffer, &mut files, message::CMSG_CLOEXEC);
        check_eq!(received, Ok((6, 2)));
        check_eq!(&buffer[..6], b"a pipe");
        check_eq!(system::file::write(files[0].raw(), b"through it"), Ok(10));
        check_eq!(system::file::read(files[1].raw(), &mut buffer), Ok(10));
        check_eq!(&buffer, b"through it");
        drop(second);
        let refused = if kind == SOCK_DGRAM { Errno::ECONNREFUSED } else { Errno::EPIPE };
        check_eq!(system::network::send_to(first.raw(), b"x", 0, None), Err(refused));
    }
    Ok(())
}

/// Raw sockets for echoes within the machine: each receives request and answer with their headers, without those kinds
/// that it leaves out, and none after it is closed.
pub async fn raw_sockets() -> Outcome {
    let call = |call: SystemCall, arguments: &[usize]| {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        // SAFETY: the arguments are memory of this function, of the lengths that stand beside it.
        abi_unix::errno::decode(unsafe { system::raw::syscall(call as usize, all) })
    };
    let kind = (types::SOCK_RAW | types::SOCK_NONBLOCK) as usize;
    let to = SocketAddress { address: [127, 0, 0, 1], port: 0 }.to_bytes();
    let message = [8u8, 0, 0xf7, 0xfd, 0, 1, 0, 1];
    for _ in 0..100 {
        let [first, second] =
            [must!(call(SystemCall::Socket, &[2, kind, 1])), must!(call(SystemCall::Socket, &[2, kind, 1]))];
        let answers = 1u32;
        let option = [second, socket_option::SOL_RAW as usize, socket_option::ICMP_FILTER as usize];
        let option = [option[0], option[1], option[2], &raw const answers as usize, 4];
        check_eq!(call(SystemCall::SetSocketOption, &option), Ok(0));
        let sent = [first, message.as_ptr() as usize, message.len(), 0, to.as_ptr() as usize, to.len()];
        check_eq!(call(SystemCall::SendTo, &sent), Ok(message.len()));
        let mut packet = [0u8; 64];
        let mut kinds = Vec::new();
        for socket in [first, first, first, second, second] {
            let read = [socket, packet.as_mut_ptr() as usize, packet.len()];
            match call(SystemCall::Read, &read) {
                Ok(length) => {
                    check_eq!((length, packet[0], packet[9]), (28, 0x45, 1));
                    kinds.push(packet[20]);
                }
                Err(error) => {
                    check_eq!(error, Errno::EAGAIN);
                    kinds.push(99);
                }
            }
        }
        check!(kinds == [8, 0, 99, 8, 99]);
        for socket in [first, second] {
            must!(call(SystemCall::Close, &[socket]));
        }
    }
    Ok(())
}

/// Local sockets with names: connections, asynchronously, of many clients at once, a full backlog, datagrams whose
/// sender is answered, and names of other threads.
pub async fn local_sockets_with_names() -> Outcome {
    use cops::net::{UnixDatagram, UnixListener, UnixStream};
    const PATH: &str = "/tmp/local-sockets";
    const CLIENTS: usize = 40;
    let before = must!(calls_in_flight());
    for name in [PATH, "\0local-sockets"] {
        check_eq!(
            UnixStream::connect(name).await.err(),
            Some(if name == PATH { Errno::ENOENT } else { Errno::ECONNREFUSED })
        );
        let listener = Arc::new(must!(UnixListener::bind(name)));
        check_eq!(must!(listener.local_name()).as_bytes(), name.as_bytes());
        check_eq!(UnixListener::bind(name).err(), Some(Errno::EADDRINUSE));
        let serving = cops::spawn({
            let listener = listener.clone();
            async move {
                for _ in 0..CLIENTS {
                    let (stream, peer) = listener.accept().await?;
                    if !peer.is_unnamed() {
                        return Err(Errno::EIO);
                    }
                    cops::spawn(async move {
                        let (result, bytes) = stream.read_exact(alloc::vec![0; 5000]).await;
                        if result.is_ok() {
                            let _ = stream.write_all(bytes).await;
                        }
                    })
                    .detach();
                }
                Ok(())
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                cops::spawn(async move {
                    let stream = UnixStream::connect(name).await?;
                    if stream.peer_name()?.as_bytes() != name.as_bytes() {
                        return Err(Errno::EIO);
                    }
                    let bytes = alloc::vec![number as u8; 5000];
                    stream.write_all(bytes.clone()).await.0?;
                    let (result, echo) = stream.read_exact(alloc::vec![0; 5000]).await;
                    result?;
                    if echo == bytes && stream.read(alloc::vec![0; 1]).await.0? == 0 { Ok(()) } else { Err(Errno::EIO) }
                })
            })
            .collect();
        for client in clients {
            check_eq!(must!(cops::timeout(LIMIT, client).await), Ok(Ok(())));
        }
        check_eq!(must!(serving.await), Ok(()));
        drop(listener);
        check_eq!(UnixStream::connect(name).await.err(), Some(Errno::ECONNREFUSED));
    }
    must!(cops::file::remove(PATH));
    let server = must!(UnixDatagram::bind(PATH));
    let answering = cops::spawn(async move {
        let (result, bytes) = server.receive_from(alloc::vec![0; 100]).await;
        let (count, sender) = result?;
        server.send_to(bytes[..count].to_vec(), sender.as_bytes()).await.0
    });
    let client = must!(UnixDatagram::bind("\0local-client"));
    check_eq!(client.send_to(&b"question"[..], PATH).await.0, Ok(8));
    let (result, bytes) = client.receive_from(alloc::vec![0; 100]).await;
    let (count, sender) = must!(result);
    check_eq!((&bytes[..count], sender.as_bytes()), (&b"question"[..], PATH.as_bytes()));
    check_eq!(must!(answering.await), Ok(8));
    check_eq!(client.send_to(&b"x"[..], PATH).await.0, Err(Errno::ECONNREFUSED));
    must!(cops::file::remove(PATH));
    // Futures that are dropped in the middle leave nothing.
    let listener = must!(UnixListener::bind("\0dropped"));
    check!(cops::timeout(Duration::from_millis(1), listener.accept()).await.is_err());
    let mut waiting = Vec::new();
    while let Ok(stream) = cops::timeout(Duration::from_millis(20), UnixStream::connect("\0dropped")).await {
        waiting.push(must!(stream));
    }
    check!(waiting.len() > 100);
    drop(waiting);
    drop(listener);
    calls_in_flight_return_to(before).await
}

/// A process is killed while it waits in a backlog, and one whose connections wait there.
pub async fn local_connections_of_processes_that_are_killed() -> Outcome {
    use abi_unix::types::{SOCK_STREAM, signal};
    let listener = must!(system::network::local_socket(SOCK_STREAM));
    let address = must!(system::network::LocalAddress::new(b"\0killed"));
    must!(system::network::bind_local(listener.raw(), &address));
    must!(system::network::listen(listener.raw(), 0));
    let (reader, writer) = must!(system::file::pipe(0));
    let child = must!(crate::fork::fork(|| {
        let connect = || {
            let socket = system::network::local_socket(SOCK_STREAM)?;
            system::network::connect_local(socket.raw(), &address).map(|()| socket)
        };
        let Ok(first) = connect() else { return 1 };
        let _ = system::network::send_files(first.raw(), b"x", &[listener.raw(), first.raw(), writer.raw()], 0);
        let _ = system::file::write(writer.raw(), b"x");
        let _ = connect();
        2
    }));
    let mut byte = [0; 1];
    check_eq!(system::file::read(reader.raw(), &mut byte), Ok(1));
    drop(writer);
    must!(system::process::kill(child as u32, signal::KILL));
    check_eq!(crate::fork::status_of(child), Ok(0x100 | signal::KILL));
    // The pipe is open in a message to a connection that nobody has accepted.
    let server = must!(system::network::accept_local(listener.raw()));
    let mut files = [(); 3].map(|()| system::Descriptor::from_raw(-1));
    check_eq!(system::network::receive_files(server.raw(), &mut byte, &mut files, 0), Ok((1, 3)));
    drop((server, listener, files));
    check_eq!(system::file::read(reader.raw(), &mut byte), Ok(0));
    Ok(())
}

/// Local sockets that only messages of each other hold are closed, and those that can be received are not, while
/// threads make and leave such circles all the time; also those of a process that is killed.
pub async fn sockets_that_carry_each_other_are_closed() -> Outcome {
    use abi_unix::types::{SOCK_DGRAM, SOCK_STREAM, signal};
    const ROUNDS: usize = 100;
    let circle = |kind: u32, witness: i32| {
        let pairs = [system::network::socket_pair(kind)?, system::network::socket_pair(kind)?];
        for (at, (sender, receiver)) in pairs.iter().enumerate() {
            let (other, last) = &pairs[1 - at];
            let files = [receiver.raw(), sender.raw(), other.raw(), last.raw(), witness];
            system::network::send_files(sender.raw(), b"x", &files, 0)?;
            system::network::send_files(receiver.raw(), b"x", &files, 0)?;
        }
        Ok::<_, Errno>(pairs)
    };
    let rounds = move |kind: u32| {
        // Beside all circles, a socket that is in two messages at a time, and works.
        let (near, far) = system::network::socket_pair(SOCK_STREAM)?;
        let (mut first, mut second) = system::network::socket_pair(kind)?;
        system::network::send_files(first.raw(), b"x", &[far.raw(), second.raw()], 0)?;
        drop(far);
        for _ in 0..ROUNDS {
            let (reader, writer) = system::file::pipe(0)?;
            drop(circle(kind, writer.raw())?);
            drop(writer);
            let mut byte = [0; 1];
            // It waits until all that carry the other end are closed.
            if system::file::read(reader.raw(), &mut byte)? != 0 {
                return Err(Errno::EIO);
            }
            let mut files = [(); 2].map(|()| system::Descriptor::from_raw(-1));
            system::network::receive_files(second.raw(), &mut byte, &mut files, 0)?;
            let [far, again] = files;
            system::network::send_files(again.raw(), b"x", &[far.raw(), first.raw()], 0)?;
            (first, second) = (again, first);
        }
        system::network::send_to(near.raw(), b"y", 0, None)?;
        let (mut byte, mut files) = ([0; 1], [(); 2].map(|()| system::Descriptor::from_raw(-1)));
        system::network::receive_files(second.raw(), &mut byte, &mut files, 0)?;
        system::file::read(files[0].raw(), &mut byte)?;
        if byte == *b"y" { Ok(()) } else { Err(Errno::EIO) }
    };
    let other = must!(thread::spawn(move || rounds(SOCK_DGRAM)));
    check_eq!(rounds(SOCK_STREAM), Ok(()));
    check_eq!(other.join(), Ok(()));
    let (reader, writer) = must!(system::file::pipe(0));
    let child = must!(crate::fork::fork(|| {
        let Ok(pairs) = circle(SOCK_DGRAM, writer.raw()) else { return 1 };
        let _ = system::file::write(writer.raw(), b"x");
        let mut byte = [0];
        let _ = system::file::read(pairs[0].0.raw(), &mut byte).and_then(|_| {
            system::file::read(pairs[0].0.raw(), &mut byte)?;
            system::file::read(pairs[0].0.raw(), &mut byte)
        });
        2
    }));
    let mut byte = [0; 1];
    check_eq!(system::file::read(reader.raw(), &mut byte), Ok(1));
    drop(writer);
    must!(system::process::kill(child as u32, signal::KILL));
    check_eq!(system::file::read(reader.raw(), &mut byte), Ok(0));
    check_eq!(crate::fork::status_of(child), Ok(0x100 | signal::KILL));
    Ok(())
}

/// A message whose control messages find no memory closes its own descriptors, and never those of another thread that
/// has got their numbers meanwhile.
pub async fn files_that_cannot_be_told_are_closed() -> Outcome {
    use abi_unix::SystemCall;
    use abi_unix::types::{MessageHeader, SOCK_DGRAM, control, open};
    const ROUNDS: usize = 2000;
    let (first, second) = must!(system::network::socket_pair(SOCK_DGRAM));
    let other = must!(thread::spawn(|| {
        for _ in 0..ROUNDS {
            let null = system::file::open(c"/dev/null", open::RDONLY, 0)?;
            for _ in 0..8 {
                let flags = [null.raw() as usize, control::GETFD as usize, 0, 0, 0, 0];
                harness::call(SystemCall::FileControl, flags)?;
            }
            null.close()?;
        }
        Ok::<(), Errno>(())
    }));
    let byte = [0u8; 1];
    let vector = [byte.as_ptr() as u64, 1];
    // The page at 0 is never there.
    let header = MessageHeader {
        buffers: vector.as_ptr() as u64,
        count: 1,
        control: 8,
        control_length: 64,
        ..MessageHeader::default()
    };
    for _ in 0..ROUNDS {
        must!(system::network::send_files(first.raw(), b"x", &[0; 4], 0));
        let header = header.to_bytes();
        let arguments = [second.raw() as usize, header.as_ptr() as usize, 0, 0, 0, 0];
        check_eq!(harness::call(SystemCall::ReceiveMessage, arguments), Ok(1));
    }
    check_eq!(other.join(), Ok(()));
    Ok(())
}
