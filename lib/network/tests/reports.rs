//! Reports about datagrams that did not arrive: of the wire, of this host, for datagrams, echoes and raw sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use network::{DatagramId, DatagramOptions, DatagramProtocol, Error, LocalEnd, Report, Sent};
use proptest::prelude::*;

mod wire;
use wire::{Faults, MILLISECOND, Net};

fn bind(net: &mut Net, port: u16, protocol: DatagramProtocol) -> DatagramId {
    let options = DatagramOptions { protocol, ..DatagramOptions::default() };
    net.client.udp_bind(LocalEnd::from(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)), &options).unwrap()
}

fn send(net: &mut Net, id: DatagramId, to: SocketAddr, bytes: &[u8]) -> Result<Sent, Error> {
    net.client.udp_send_with(id, Some(to), bytes.len(), |room| room.copy_from_slice(bytes))
}

fn report(net: &mut Net, id: DatagramId) -> Option<(Report, Vec<u8>)> {
    net.client.take_datagram_report(id, |report, bytes| (*report, bytes.to_vec())).unwrap()
}

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// A packet of IPv4 with a right header.
fn packet(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len()) as u16;
    let [high, low] = length.to_be_bytes();
    let mut header =
        [&[0x45, 0, high, low, 0, 0, 0, 0, hop_limit, protocol, 0, 0][..], &from.octets(), &to.octets()].concat();
    let checksum = sum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    [header, payload.to_vec()].concat()
}

/// The frame of a router's message about a packet of the client.
fn message(kind: u8, code: u8, rest: [u8; 4], quoted: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], &rest, quoted].concat();
    let checksum = sum(&message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let router = Ipv4Addr::new(10, 0, 2, 77);
    [vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 77, 8, 0], packet(router, wire::CLIENT, 1, 200, &message)].concat()
}

/// A datagram of the client to a host behind the router.
fn datagram(port: u16, payload: &[u8]) -> (SocketAddr, Vec<u8>) {
    let to = Ipv4Addr::new(10, 0, 2, 99);
    let udp = [&port.to_be_bytes()[..], &9u16.to_be_bytes(), &[0, 8 + payload.len() as u8, 0, 0], payload].concat();
    (SocketAddr::new(to.into(), 9), packet(wire::CLIENT, to, 17, 1, &udp))
}

#[test]
fn a_host_that_refuses_a_datagram_is_told_with_its_bytes() {
    let mut net = Net::new(Faults::default(), 1);
    let own = bind(&mut net, 0, DatagramProtocol::Udp);
    let to = SocketAddr::new(wire::SERVER.into(), 33434);
    // Without the wish nothing is told to a socket without a peer.
    send(&mut net, own, to, b"nothing").unwrap();
    net.pass(100 * MILLISECOND);
    assert_eq!(report(&mut net, own), None);
    let before = net.client.datagram_memory(own).unwrap();
    net.client.set_datagram_reports(own, true).unwrap();
    assert!(net.client.datagram_memory(own).unwrap() - before <= network::MEMORY_OF_REPORTS);
    net.client.set_datagram_clock(own, Some(|| 77)).unwrap();
    send(&mut net, own, to, b"some data").unwrap();
    net.pass(100 * MILLISECOND);
    let readiness = net.client.udp_readiness(own).unwrap();
    assert!(readiness.failed && readiness.receive);
    let (told, bytes) = report(&mut net, own).expect("it is told");
    assert_eq!((told.to, told.from, told.kind, told.code), (to, Some(wire::SERVER.into()), 3, 3));
    assert_eq!((told.hop_limit, told.at_ns, &bytes[..]), (64, 77, &b"some data"[..]));
    // The failure has gone with its report.
    let readiness = net.client.udp_readiness(own).unwrap();
    assert!(!readiness.failed && !readiness.receive);
    assert_eq!(net.client.udp_receive_with(own, |_, _| ()), Ok(None));
    // One that is not read is a failure of the next call, and stays to be read.
    send(&mut net, own, to, b"more").unwrap();
    net.pass(100 * MILLISECOND);
    assert_eq!(net.client.udp_receive_with(own, |_, _| ()), Err(Error::Refused));
    let readiness = net.client.udp_readiness(own).unwrap();
    assert!(readiness.failed && !readiness.receive, "a reader has nothing to receive");
    assert!(report(&mut net, own).is_some());
    net.client.set_datagram_reports(own, false).unwrap();
    assert_eq!(net.client.datagram_memory(own).unwrap(), before);
}

#[test]
fn routers_report_to_the_socket_that_has_sent() {
    let mut net = Net::new(Faults::default(), 1);
    let own = bind(&mut net, 4000, DatagramProtocol::Udp);
    let other = bind(&mut net, 4001, DatagramProtocol::Udp);
    for socket in [own, other] {
        net.client.set_datagram_reports(socket, true).unwrap();
    }
    let (to, quoted) = datagram(4000, b"probe");
    for (kind, code, rest, failure, size) in [
        (11, 0, [0; 4], Error::HostUnreachable, 0),
        (3, 0, [0; 4], Error::Unreachable, 0),
        (3, 1, [0; 4], Error::HostUnreachable, 0),
        (3, 4, [0, 0, 2, 88], Error::TooLong, 600),
        (12, 0, [0; 4], Error::HostUnreachable, 0),
    ] {
        net.to_client.borrow_mut().push_back(message(kind, code, rest, &quoted));
        net.pass(10 * MILLISECOND);
        assert_eq!(net.client.take_datagram_failure(own), Ok(Some(failure)), "{kind} {code}");
        let (told, bytes) = report(&mut net, own).expect("it is told");
        assert_eq!((told.to, told.kind, told.code, told.size, told.hop_limit), (to, kind, code, size, 200));
        assert_eq!((told.from, &bytes[..]), (Some(IpAddr::V4(Ipv4Addr::new(10, 0, 2, 77))), &b"probe"[..]));
        assert_eq!(report(&mut net, other), None);
    }
    // A connected socket without the wish hears only of what is final.
    net.client.set_datagram_reports(own, false).unwrap();
    net.client.udp_connect(own, Some(to)).unwrap();
    for (kind, code, failure) in
        [(11, 0, None), (3, 1, None), (3, 13, Some(Error::HostUnreachable)), (3, 3, Some(Error::Refused))]
    {
        net.to_client.borrow_mut().push_back(message(kind, code, [0; 4], &quoted));
        net.pass(10 * MILLISECOND);
        assert_eq!(net.client.take_datagram_failure(own), Ok(failure), "{kind} {code}");
    }
    // A damaged message is none.
    net.client.set_datagram_reports(own, true).unwrap();
    let mut damaged = message(11, 0, [0; 4], &quoted);
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    net.to_client.borrow_mut().push_back(damaged);
    net.pass(10 * MILLISECOND);
    assert_eq!(report(&mut net, own), None);
}

#[test]
fn echoes_and_raw_sockets_have_reports() {
    let mut net = Net::new(Faults::default(), 1);
    let echoes = bind(&mut net, 0x1234, DatagramProtocol::Echo);
    let (raw, other) = (bind(&mut net, 0, DatagramProtocol::Raw(1)), bind(&mut net, 0, DatagramProtocol::Raw(17)));
    for socket in [echoes, raw, other] {
        net.client.set_datagram_reports(socket, true).unwrap();
    }
    let to = Ipv4Addr::new(10, 0, 2, 99);
    let request = [8, 0, 0, 0, 0x12, 0x34, 0, 1, b'x'];
    net.to_client.borrow_mut().push_back(message(11, 0, [0; 4], &packet(wire::CLIENT, to, 1, 1, &request)));
    net.pass(10 * MILLISECOND);
    for socket in [echoes, raw] {
        let (told, bytes) = report(&mut net, socket).expect("it is told");
        assert_eq!((told.to, told.kind, &bytes[..]), (SocketAddr::new(to.into(), 0), 11, &request[..]));
    }
    assert_eq!(report(&mut net, other), None);
    net.client.take_datagram_failure(raw).unwrap();
    // The message itself comes to the raw socket, too.
    let mut kinds = Vec::new();
    while let Some(kind) = net.client.udp_receive_with(raw, |_, bytes| bytes[20]).unwrap() {
        kinds.push(kind);
    }
    assert_eq!(kinds, [11]);
}

#[test]
fn this_host_reports_what_it_does_not_send() {
    let mut net = Net::new(Faults::default(), 1);
    let own = bind(&mut net, 0, DatagramProtocol::Udp);
    net.client.set_datagram_reports(own, true).unwrap();
    let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 5999);
    assert_eq!(send(&mut net, own, here, b"nobody"), Ok(Sent::Bytes(6)));
    let (told, bytes) = report(&mut net, own).unwrap();
    assert_eq!((told.to, told.from, told.kind, told.code), (here, Some(here.ip()), 3, 3));
    assert_eq!(bytes, b"nobody");
    let far = SocketAddr::new(wire::SERVER.into(), 9);
    assert_eq!(send(&mut net, own, far, &[0; 1473]), Err(Error::TooLong));
    let (told, bytes) = report(&mut net, own).unwrap();
    assert_eq!((told.to, told.from, told.size, bytes.len()), (far, None, 1500, 0));
    // The oldest reports are kept, and no more than a few.
    for _ in 0..100 {
        let _ = send(&mut net, own, here, &[7; 2000]);
    }
    let mut count = 0;
    while let Some((_, bytes)) = report(&mut net, own) {
        assert!(bytes.len() <= 1024);
        count += 1;
    }
    assert!((2..=16).contains(&count), "{count}");
}

proptest! {
    #![proptest_config(property::cases(256))]

    /// Any message about any packet is survived, and what is told names a datagram of the socket.
    #[test]
    fn any_message_is_survived(
        kind in prop_oneof![Just(3u8), Just(11), Just(12), any::<u8>()],
        code in any::<u8>(),
        rest in any::<[u8; 4]>(),
        mut quoted in prop::collection::vec(any::<u8>(), 0..80),
        own in any::<bool>(),
    ) {
        let mut net = Net::new(Faults::default(), 1);
        let sockets = [(4000, DatagramProtocol::Udp), (4000, DatagramProtocol::Echo), (0, DatagramProtocol::Raw(1))]
            .map(|(port, protocol)| bind(&mut net, port, protocol));
        for socket in sockets {
            net.client.set_datagram_reports(socket, true).unwrap();
        }
        if own {
            let real = datagram(4000, b"probe").1;
            let count = real.len().min(quoted.len());
            quoted[..count].copy_from_slice(&real[..count]);
        }
        net.to_client.borrow_mut().push_back(message(kind, code, rest, &quoted));
        net.pass(10 * MILLISECOND);
        while let Some((told, bytes)) = report(&mut net, sockets[0]) {
            prop_assert!(matches!(told.kind, 3 | 11 | 12) && bytes.len() <= 80);
        }
    }
}
