//! The host's address from a DHCP server: asked for, renewed, lost, and refused from liars.

use std::net::{Ipv4Addr, SocketAddr};

use network::{Address, Addressing, Configuration, DatagramOptions, Error, Lease, Sharing, TcpOptions};
use proptest::prelude::*;

mod wire;
use wire::{Faults, Net, SECOND, configuration, send};

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// A DHCP server, which lends one address on its terms.
#[derive(Clone)]
struct Server {
    address: Ipv4Addr,
    lent: Ipv4Addr,
    /// Options of its answers, without the kind.
    options: Vec<u8>,
    /// Whether it refuses requests.
    refuses: bool,
}

fn option(kind: u8, data: &[u8]) -> Vec<u8> {
    [&[kind, data.len() as u8], data].concat()
}

fn number(kind: u8, value: u32) -> Vec<u8> {
    option(kind, &value.to_be_bytes())
}

impl Server {
    fn new(time: u32) -> Server {
        let options = [
            number(54, ROUTER.to_bits()),
            number(1, 0xffff_ff00),
            option(3, &[ROUTER.octets(), [10, 0, 2, 4]].concat()),
            option(6, &[[10, 0, 2, 3], [255, 0, 0, 1], [1, 1, 1, 1]].concat()),
            number(51, time),
        ];
        Server { address: ROUTER, lent: OWN, options: options.concat(), refuses: false }
    }

    /// Returns the answer to a client's message.
    fn answer(&self, request: &Request) -> Vec<u8> {
        let kind = match request.kind {
            1 => 2,
            3 if self.refuses => 6,
            3 => 5,
            other => panic!("a message of kind {other}"),
        };
        let mut message = vec![0; 240];
        message[..4].copy_from_slice(&[2, 1, 6, 0]);
        message[4..8].copy_from_slice(&request.exchange);
        message[16..20].copy_from_slice(&self.lent.octets());
        message[28..34].copy_from_slice(&request.hardware);
        message[236..240].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
        message.extend(option(53, &[kind]));
        message.extend(&self.options);
        message.push(255);
        datagram(self.address, self.lent, &message)
    }
}

/// A frame to the client's port; its checksum of UDP is absent.
fn datagram(from: Ipv4Addr, to: Ipv4Addr, message: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet[2..4].copy_from_slice(&(28 + message.len() as u16).to_be_bytes());
    let sum: u32 = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    packet[10..12].copy_from_slice(&(!((sum + (sum >> 16)) as u16)).to_be_bytes());
    packet.extend([0, 67, 0, 68]);
    packet.extend((8 + message.len() as u16).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(message);
    [&[2, 0, 0, 0, 0, 15, 2, 0, 0, 0, 0, 2, 8, 0][..], &packet].concat()
}

/// A client's message on the wire.
#[derive(Debug)]
struct Request {
    kind: u8,
    exchange: [u8; 4],
    hardware: [u8; 6],
    from: Ipv4Addr,
    to: Ipv4Addr,
    wanted: Option<Ipv4Addr>,
}

/// Takes the messages that the client has sent; other frames are lost.
fn requests(net: &mut Net) -> Vec<Request> {
    let frames: Vec<Vec<u8>> = net.to_client.borrow_mut().drain(..).collect();
    frames.iter().filter_map(|frame| request(frame)).collect()
}

fn request(frame: &[u8]) -> Option<Request> {
    if frame.get(12..14)? != [8, 0] || frame.get(34..38)? != [0, 68, 0, 67] {
        return None;
    }
    let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap());
    let message = &frame[42..];
    let (mut options, mut kind, mut wanted) = (&message[240..], 0, None);
    while let [code, length, rest @ ..] = options
        && *code != 255
    {
        let (data, behind) = rest.split_at(usize::from(*length));
        match code {
            53 => kind = data[0],
            50 => wanted = Some(Ipv4Addr::from(<[u8; 4]>::try_from(data).unwrap())),
            _ => {}
        }
        options = behind;
    }
    Some(Request {
        kind,
        exchange: message[4..8].try_into().unwrap(),
        hardware: message[28..34].try_into().unwrap(),
        from: address(26),
        to: address(30),
        wanted,
    })
}

fn leased() -> Net {
    faulty(Faults::default(), 1)
}

fn faulty(faults: Faults, seed: u64) -> Net {
    let server = Configuration { address: Addressing::Leased, ..Configuration::default() };
    let client = configuration(ROUTER, server.limits, server.patience);
    Net::configured(faults, seed, [server, client])
}

/// Lets the asking host alone work for a time, and answers its messages. Returns their number.
fn serve(net: &mut Net, time: u64, mut answer: impl FnMut(&Request) -> Vec<Vec<u8>>) -> usize {
    let (end, mut count) = (net.now + time, 0);
    loop {
        let mut next = net.server.poll(net.now);
        for request in requests(net) {
            count += 1;
            net.to_server.borrow_mut().extend(answer(&request));
        }
        if !net.to_server.borrow().is_empty() {
            next = Some(net.now);
        }
        if net.now >= end {
            return count;
        }
        net.now = next.unwrap_or(end).clamp(net.now, end).max(net.now + u64::from(next.is_some_and(|at| at > net.now)));
    }
}

fn expected() -> Lease {
    let address = Address { address: OWN, prefix: 24, gateway: Some(ROUTER) };
    Lease {
        address,
        name_servers: [Some(Ipv4Addr::new(10, 0, 2, 3)), Some(Ipv4Addr::new(1, 1, 1, 1)), None],
        mtu: None,
    }
}

/// Two messages and the address is there; nothing is sent until half of the time is over.
#[test]
fn an_address_is_lent_and_renewed() {
    let mut net = leased();
    let server = Server::new(1000);
    let mut seen = Vec::new();
    serve(&mut net, SECOND, |request| {
        seen.push((request.kind, request.from, request.to, request.wanted));
        vec![server.answer(request)]
    });
    let (none, all) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    assert_eq!(seen, [(1, none, all, None), (3, none, all, Some(OWN))]);
    assert_eq!((net.server.address(), net.server.lease()), (Some(OWN), Some(&expected())));
    assert_eq!(serve(&mut net, 498 * SECOND, |_| Vec::new()), 0);
    // The server is asked alone and with the address, then everyone is.
    seen.clear();
    serve(&mut net, 2 * SECOND, |request| {
        seen.push((request.kind, request.from, request.to, request.wanted));
        vec![server.answer(request)]
    });
    assert_eq!(seen, [(3, OWN, ROUTER, None)]);
    seen.clear();
    serve(&mut net, 998 * SECOND, |request| {
        seen.push((request.kind, request.from, request.to, request.wanted));
        Vec::new()
    });
    assert!(seen.iter().all(|one| (one.0, one.1) == (3, OWN)) && seen.len() < 10, "{seen:?}");
    assert_eq!((seen[0].2, seen[seen.len() - 1].2), (ROUTER, all));
    assert_eq!(net.server.address(), Some(OWN));
    // The time is over.
    serve(&mut net, 2 * SECOND, |_| Vec::new());
    assert_eq!((net.server.address(), net.server.lease()), (None, None));
    serve(&mut net, 100 * SECOND, |request| vec![server.answer(request)]);
    assert_eq!(net.server.address(), Some(OWN));
}

/// A lost address takes its connections along, in steps, and silently; a renewed one does not.
/// A message of address resolution of another host, which claims an address.
fn claim(address: Ipv4Addr) -> Vec<u8> {
    let mut frame = [[0xff; 6], [2, 0, 0, 0, 0, 9]].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 9]);
    frame.extend(address.octets());
    frame.extend([[0; 4], [0; 4]].concat());
    frame.extend([0; 2]);
    frame
}

/// Frames of address resolution that the asking host has sent: their senders and targets.
fn questions(frames: &[Vec<u8>]) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    let address = |frame: &[u8], at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap());
    let of_resolution = frames.iter().filter(|frame| frame[12..14] == [8, 6]);
    of_resolution.map(|frame| (address(frame, 28), address(frame, 38))).collect()
}

/// The address is probed for and announced. A host that has it makes this one decline it, and ask again after a pause;
/// later the address is kept and defended (RFC 5227).
#[test]
fn another_host_with_the_address_is_found() {
    for is_taken in [false, true] {
        let mut net = leased();
        let server = Server::new(1000);
        let (mut asked, mut frames) = (Vec::new(), Vec::new());
        let end = net.now + 9 * SECOND;
        while net.now < end {
            net.server.poll(net.now);
            let sent: Vec<Vec<u8>> = net.to_client.borrow_mut().drain(..).collect();
            for frame in &sent {
                if let Some(request) = request(frame) {
                    asked.push((request.kind, request.wanted));
                    if request.kind != 4 {
                        net.to_server.borrow_mut().push_back(server.answer(&request));
                    }
                }
            }
            if is_taken && questions(&sent).contains(&(Ipv4Addr::UNSPECIFIED, OWN)) {
                net.to_server.borrow_mut().push_back(claim(OWN));
            }
            frames.extend(sent);
            net.now += SECOND / 20;
        }
        let probe = (Ipv4Addr::UNSPECIFIED, OWN);
        if is_taken {
            assert_eq!(asked, [(1, None), (3, Some(OWN)), (4, Some(OWN))]);
            assert_eq!(questions(&frames), [probe]);
            assert_eq!((net.server.address(), net.server.counters().conflicts), (None, 1));
            // It asks again, but not at once.
            let mut kinds = Vec::new();
            serve(&mut net, 20 * SECOND, |request| {
                kinds.push(request.kind);
                Vec::new()
            });
            assert_eq!(kinds[0], 1);
        } else {
            assert_eq!(asked, [(1, None), (3, Some(OWN))]);
            assert_eq!(questions(&frames), [probe, probe, probe, (OWN, OWN), (OWN, OWN)]);
            // A claim is answered once in ten seconds, and the address stays.
            for _ in 0..3 {
                net.to_server.borrow_mut().push_back(claim(OWN));
                net.server.poll(net.now);
                net.server.poll(net.now);
            }
            let sent: Vec<Vec<u8>> = net.to_client.borrow_mut().drain(..).collect();
            assert_eq!(questions(&sent), [(OWN, OWN)]);
            assert_eq!((net.server.address(), net.server.counters().conflicts), (Some(OWN), 0));
        }
    }
}

/// Packets are as large as a server says, from the lease on and until it is lost; sizes that no host must be content
/// with count as none, and so do those that the device cannot send.
#[test]
fn a_server_tells_how_large_packets_may_be() {
    for (told, expected) in [(1400u16, 1400), (576, 576), (575, 1500), (0, 1500), (9000, 1500)] {
        let mut net = leased();
        let usual = Server::new(1000);
        let server = Server { options: [usual.options, option(26, &told.to_be_bytes())].concat(), ..Server::new(1000) };
        assert_eq!(net.server.interface().1, 1500);
        serve(&mut net, SECOND, |request| vec![server.answer(request)]);
        assert_eq!(net.server.interface().1, expected, "{told}");
        let lease = *net.server.lease().unwrap();
        assert_eq!(lease.mtu, (told >= 576).then_some(told));
        assert_eq!(net.server.place().map(|place| (place.address, place.gateway)), Some((OWN, Some(ROUTER))));
        // Datagrams of that size go, and no longer ones.
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let socket = net.server.udp_bind(any, &DatagramOptions::default()).unwrap();
        let to = Some(SocketAddr::new(ROUTER.into(), 7));
        let send = |net: &mut Net, length: usize| net.server.udp_send_with(socket, to, length, |room| room.fill(7));
        assert_eq!(send(&mut net, expected - 27), Err(Error::TooLong));
        assert_eq!(send(&mut net, expected - 28), Ok(network::Sent::Bytes(expected - 28)));
        net.pass(SECOND);
        // A renewal without the option.
        serve(&mut net, 600 * SECOND, |request| vec![Server::new(1000).answer(request)]);
        assert_eq!(net.server.interface().1, 1500);
    }
}

#[test]
fn connections_end_with_their_address() {
    let mut net = leased();
    let server = Server::new(1000);
    serve(&mut net, SECOND, |request| vec![server.answer(request)]);
    let listener = net.listen(80, 300);
    let pairs: Vec<_> = (0..200).map(|_| net.pair(listener)).collect();
    let inside = TcpOptions::default();
    let at = SocketAddr::new(OWN.into(), 80);
    let local = net.server.tcp_connect(None, at, &inside, net.now).unwrap();
    let (own, _) = net.server.accept(listener).unwrap().unwrap();
    serve(&mut net, 500 * SECOND, |request| vec![server.answer(request)]);
    assert!(pairs.iter().all(|&(_, end)| net.server.readiness(end).is_ok_and(|ready| !ready.failed)));
    let other = Server { lent: Ipv4Addr::new(10, 0, 2, 77), refuses: true, ..Server::new(1000) };
    serve(&mut net, 501 * SECOND, |request| vec![other.answer(request)]);
    assert_eq!(net.server.address(), None);
    let unreachable = net.server.tcp_connect(None, SocketAddr::new(ROUTER.into(), 1), &inside, net.now);
    assert_eq!(unreachable, Err(Error::Unreachable));
    for &(_, end) in &pairs {
        let failure = net.server.tcp_receive_with(end, |bytes| bytes.len(), net.now);
        assert_eq!(failure, Err(Error::Aborted));
    }
    assert_eq!((net.server.connected(local), net.server.connected(own)), (Ok(true), Ok(true)), "within the host");
    // With another address the host begins anew.
    let other = Server { refuses: false, ..other };
    serve(&mut net, 100 * SECOND, |request| vec![other.answer(request)]);
    assert_eq!(net.server.address(), Some(other.lent));
    assert!(net.server.tcp_connect(None, SocketAddr::new(ROUTER.into(), 1), &inside, net.now).is_ok());
}

#[test]
fn sockets_are_bound_before_there_is_an_address() {
    let mut net = leased();
    let listener = net.listen(80, 10);
    let any = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let datagrams = DatagramOptions::default();
    assert!(net.server.udp_bind(any(53), &datagrams).is_ok());
    assert_eq!(net.server.udp_bind(any(68), &datagrams), Err(Error::AddressInUse), "the client's own port");
    let at = SocketAddr::new(OWN.into(), 81);
    assert_eq!(net.server.tcp_bind(at, Sharing::Exclusive), Err(Error::AddressUnavailable));
    let server = Server::new(1000);
    serve(&mut net, SECOND, |request| vec![server.answer(request)]);
    net.pair(listener);
}

/// Each of them is no answer; what they cause is a bounded number of requests.
#[test]
fn liars_are_not_believed() {
    let good = Server::new(1000);
    let with = |replaced: Vec<u8>| {
        // The first of two options counts.
        let options = [replaced, good.options.clone()].concat();
        Server { options, ..good.clone() }
    };
    let lent = |address: [u8; 4]| Server { lent: address.into(), ..good.clone() };
    let without = |kind: u8| {
        let (mut options, mut rest) = (Vec::new(), &good.options[..]);
        while let [code, length, ..] = rest {
            let (one, behind) = rest.split_at(2 + usize::from(*length));
            options.extend(one.iter().filter(|_| *code != kind));
            rest = behind;
        }
        Server { options, ..good.clone() }
    };
    let liars = [
        with(number(51, 0)),
        with(number(51, 9)),
        with(number(1, 0)),
        with(number(1, 0xff00_ff00)),
        with(number(54, 0)),
        with(number(54, u32::MAX)),
        without(51),
        without(54),
        without(1),
        lent([0; 4]),
        lent([255; 4]),
        lent([10, 0, 2, 255]),
        lent([10, 0, 2, 0]),
        lent([127, 0, 0, 1]),
        lent([224, 0, 0, 1]),
        lent([240, 0, 0, 1]),
        Server { options: vec![3; 1200], ..good.clone() },
        Server { options: [vec![0; 400], vec![51]].concat(), ..good.clone() },
        Server { options: vec![6, 255, 10], ..good.clone() },
    ];
    for (number, liar) in liars.iter().enumerate() {
        let mut net = leased();
        let count = serve(&mut net, 600 * SECOND, |request| vec![liar.answer(request); 3]);
        assert_eq!(net.server.address(), None, "liar {number}");
        assert!((8..16).contains(&count), "liar {number} causes {count} requests");
        serve(&mut net, 100 * SECOND, |request| vec![good.answer(request)]);
        assert_eq!(net.server.lease(), Some(&expected()), "after liar {number}");
    }
    // Answers to another exchange, to another host, from another port, and from another server's refusal.
    for change in [46, 70, 35, 42] {
        let mut net = leased();
        serve(&mut net, 100 * SECOND, |request| {
            let mut frame = good.answer(request);
            frame[change] ^= 1;
            vec![frame]
        });
        assert_eq!(net.server.address(), None, "byte {change}");
    }
    let mut other = Server { refuses: true, ..good.clone() };
    other.options[2..6].copy_from_slice(&[10, 0, 2, 9]);
    let mut net = leased();
    serve(&mut net, SECOND, |request| match request.kind {
        1 => vec![good.answer(request)],
        _ => vec![other.answer(request), good.answer(request)],
    });
    assert_eq!(net.server.address(), Some(OWN));
}

/// Times that never end, and those of a server which wants to be asked for ever.
#[test]
fn hostile_times_cause_no_storm() {
    for (time, renewal, rebinding, most) in [
        (u32::MAX, None, None, 2),
        (u32::MAX, Some(0), Some(0), 2),
        (10, Some(0), Some(1), 2 + 2 * 120),
        (1000, Some(u32::MAX), Some(u32::MAX), 4),
        (1000, Some(5), Some(6), 2 + 120),
    ] {
        let mut server = Server::new(time);
        server.options.extend(renewal.map(|value| number(58, value)).unwrap_or_default());
        server.options.extend(rebinding.map(|value| number(59, value)).unwrap_or_default());
        let mut net = leased();
        let count = serve(&mut net, 600 * SECOND, |request| vec![server.answer(request)]);
        assert!(count <= most, "{count} requests with {time}, {renewal:?}, {rebinding:?}");
        assert_eq!(net.server.address(), Some(OWN));
    }
    // A server that refuses what it has offered.
    let server = Server { refuses: true, ..Server::new(1000) };
    let mut net = leased();
    let count = serve(&mut net, 600 * SECOND, |request| vec![server.answer(request)]);
    assert!(count < 30, "{count} requests");
}

#[test]
fn requests_survive_a_bad_wire() {
    for seed in 0..20 {
        let mut net = faulty(Faults { lost: 30, repeated: 20, delayed: 20, damaged: 20, unstamps: false }, seed);
        let server = Server::new(100);
        for _ in 0..20 {
            // Damaged requests may be without sense for a server.
            serve(&mut net, 20 * SECOND, |request| match request.kind {
                1 | 3 => vec![server.answer(request)],
                _ => Vec::new(),
            });
        }
        assert_eq!(net.server.address(), Some(OWN), "seed {seed}");
    }
}

/// A datagram that waits for a hardware address does not leave when the host's own address is gone, nor from the next.
#[test]
fn waiting_datagrams_are_lost_with_their_address() {
    for next in [None, Some(Ipv4Addr::new(10, 0, 2, 77)), Some(OWN)] {
        let mut net = leased();
        let server = Server::new(1000);
        serve(&mut net, SECOND, |request| vec![server.answer(request)]);
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let socket = net.server.udp_bind(any, &DatagramOptions::default()).unwrap();
        let to = SocketAddr::new(Ipv4Addr::new(10, 0, 2, 9).into(), 53);
        serve(&mut net, 490 * SECOND, |_| Vec::new());
        net.server.udp_send_with(socket, Some(to), 3, |room| room.copy_from_slice(b"old")).unwrap();
        net.server.poll(net.now);
        // The server refuses to lend the address for longer, and lends the next one.
        let lent = next.unwrap_or(OWN);
        let refusing = Server { refuses: true, ..server.clone() };
        serve(&mut net, 15 * SECOND, |request| vec![refusing.answer(request)]);
        assert_eq!(net.server.address(), None);
        if next.is_some() {
            let other = Server { lent, ..server.clone() };
            serve(&mut net, 100 * SECOND, |request| vec![other.answer(request)]);
            assert_eq!(net.server.address(), next);
        }
        // Now the receiver tells its hardware address.
        let mut arp =
            vec![2, 0, 0, 0, 0, 15, 2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 9, 10, 0, 2, 9];
        arp.extend([2, 0, 0, 0, 0, 15]);
        arp.extend(lent.octets());
        net.to_server.borrow_mut().push_back(arp);
        net.to_client.borrow_mut().clear();
        serve_nothing(&mut net, 10 * SECOND);
        let leaves = |net: &Net| net.to_client.borrow().iter().any(|frame| frame.ends_with(b"old"));
        // (The same address again is the same: it was never another host's as far as this one knows.)
        assert!(!leaves(&net) || next == Some(OWN), "{next:?}");
        if next.is_some() {
            net.server.udp_send_with(socket, Some(to), 3, |room| room.copy_from_slice(b"new")).unwrap();
            serve_nothing(&mut net, 10 * SECOND);
            assert!(net.to_client.borrow().iter().any(|frame| frame.ends_with(b"new")));
        }
    }
}

/// From the moment at which the address is lost no segment leaves from it, however many connections have one to send.
#[test]
fn nothing_is_sent_from_a_lost_address() {
    let mut net = leased();
    let server = Server::new(1000);
    serve(&mut net, SECOND, |request| vec![server.answer(request)]);
    let listener = net.listen(80, 300);
    let pairs: Vec<_> = (0..200).map(|_| net.pair(listener)).collect();
    // One that both sides have ended, in the order in which nothing is left to wait for.
    let (theirs, ended) = pairs[0];
    net.client.close(theirs, net.now).unwrap();
    net.settle();
    net.server.shutdown(ended, network::Shutdown::Send, net.now).unwrap();
    net.settle();
    serve(&mut net, 480 * SECOND, |request| vec![server.answer(request)]);
    let refusing = Server { refuses: true, ..server.clone() };
    let (mut sent, end) = (0, net.now + 30 * SECOND);
    while net.server.address().is_some() && net.now < end {
        let next = net.server.poll(net.now);
        let frames: Vec<Vec<u8>> = net.to_client.borrow_mut().drain(..).collect();
        if let Some(request) = frames.iter().find_map(|frame| request(frame)) {
            // Something to send for each connection, in the very poll in which the address is lost.
            for &(_, end) in &pairs[1..] {
                sent += usize::from(send(&mut net.server, end, b"late", net.now).is_ok());
            }
            net.to_server.borrow_mut().push_back(refusing.answer(&request));
        } else {
            net.now = next.unwrap_or(end).clamp(net.now + 1, end);
        }
    }
    assert_eq!((sent, net.server.address()), (199, None));
    serve_nothing(&mut net, 5 * SECOND);
    let own = OWN.octets();
    let late = net.to_client.borrow().iter().filter(|frame| frame[23] == 6 && frame[26..30] == own).count();
    assert_eq!(late, 0, "segments from a lost address");
    for &(_, end) in &pairs[1..] {
        assert_eq!(net.server.take_failure(end), Ok(Some(Error::Aborted)));
    }
    assert_eq!(net.server.take_failure(ended), Ok(None), "it had ended well");
}

/// Lets the host alone work for a time, unanswered, and keeps what it sends.
fn serve_nothing(net: &mut Net, time: u64) {
    let end = net.now + time;
    while net.now < end {
        let next = net.server.poll(net.now);
        net.now = next.unwrap_or(end).clamp(net.now + 1, end);
    }
}

/// A server that makes offers faster than any other, and never keeps them, has no second chance before the other.
#[test]
fn a_silent_server_does_not_win_again_and_again() {
    let silent = Ipv4Addr::new(10, 0, 2, 9);
    let good = Server::new(1000);
    let mut first = Server { address: silent, lent: Ipv4Addr::new(10, 0, 2, 66), ..good.clone() };
    first.options[2..6].copy_from_slice(&silent.octets());
    let mut net = leased();
    let both = |request: &Request| match request.kind {
        1 => vec![first.answer(request), good.answer(request)],
        _ if request.wanted == Some(OWN) => vec![good.answer(request)],
        _ => Vec::new(),
    };
    serve(&mut net, 300 * SECOND, both);
    assert_eq!(net.server.address(), Some(OWN));
    // Where it is alone, its offers are taken in the end.
    let mut net = leased();
    let alone = |request: &Request| if request.kind == 1 { vec![first.answer(request)] } else { Vec::new() };
    serve(&mut net, 120 * SECOND, alone);
    assert_eq!(net.server.address(), None);
    serve(&mut net, 300 * SECOND, |request| vec![first.answer(request)]);
    assert_eq!(net.server.address(), Some(first.lent));
}

/// Messages have the length that relays insist on, and the rest is padding.
#[test]
fn messages_are_as_long_as_relays_want() {
    let mut net = leased();
    net.server.poll(net.now);
    let frame = net.to_client.borrow_mut().pop_front().unwrap();
    assert!(frame.len() >= 14 + 20 + 8 + 300, "{}", frame.len());
    let end = frame.iter().rposition(|&byte| byte != 0).unwrap();
    assert_eq!(frame[end], 255);
}

/// A device without room is not asked a thousand times a second.
#[test]
fn a_full_device_is_asked_rarely_for_a_lease() {
    let mut net = leased();
    net.server.link().is_full = true;
    let (end, mut polls) = (net.now + SECOND, 0);
    while net.now < end {
        let next = net.server.poll(net.now);
        net.now = next.unwrap_or(end).clamp(net.now + 1, end);
        polls += 1;
    }
    assert!((2..=20).contains(&polls), "{polls}");
    net.server.link().is_full = false;
    let server = Server::new(1000);
    serve(&mut net, SECOND, |request| vec![server.answer(request)]);
    assert_eq!(net.server.address(), Some(OWN));
}

proptest! {
    #![proptest_config(property::cases(64))]

    /// Any options, and any damage to the answer: nothing breaks, a strange address is not taken, and a good server is
    /// heard afterwards.
    #[test]
    fn any_answer_is_survived(
        options in prop::collection::vec(any::<u8>(), 0..600),
        keeps in any::<bool>(),
        damage in prop::collection::vec((42usize..300, any::<u8>()), 0..4),
        cut in 0usize..400,
        lent in any::<u32>(),
    ) {
        let good = Server::new(1000);
        let base = if keeps { good.options.clone() } else { Vec::new() };
        let lent = if keeps { good.lent } else { lent.into() };
        let liar = Server { options: [base, options].concat(), lent, ..good.clone() };
        let mut net = leased();
        let count = serve(&mut net, 100 * SECOND, |request| {
            let mut frame = liar.answer(request);
            for &(at, value) in &damage {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            frame.truncate(frame.len() - if keeps { 0 } else { cut.min(frame.len() - 42) });
            vec![frame]
        });
        prop_assert!(count < 50, "{count} requests");
        if let Some(own) = net.server.address() {
            prop_assert!(!own.is_unspecified() && !own.is_broadcast() && !own.is_multicast() && !own.is_loopback());
        }
    }
}
