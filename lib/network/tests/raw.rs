//! Raw sockets on the wire and within the host: packets with and without headers, filters, and answers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use network::{
    Addressing, Configuration, DatagramId, DatagramOptions, DatagramProtocol, Error, LocalEnd, Sent, SixAddressing,
    TcpOptions,
};
use proptest::prelude::*;

mod wire;
use wire::{Faults, MILLISECOND, Net, SECOND};

const SERVER_OF_SIX: &str = "fe80::ff:fe00:f";

fn bind(net: &mut Net, any: &str, protocol: u8) -> Result<DatagramId, Error> {
    let options = DatagramOptions { protocol: DatagramProtocol::Raw(protocol), ..DatagramOptions::default() };
    net.client.udp_bind(LocalEnd::from(any.parse::<SocketAddr>().unwrap()), &options)
}

fn send(net: &mut Net, id: DatagramId, to: IpAddr, bytes: &[u8]) -> Result<Sent, Error> {
    net.client.udp_send_with(id, Some(SocketAddr::new(to, 0)), bytes.len(), |room| room.copy_from_slice(bytes))
}

fn receive(net: &mut Net, id: DatagramId) -> Option<(SocketAddr, Vec<u8>)> {
    let mut taken = None;
    net.client.udp_receive_with(id, |from, bytes| taken = Some((from, bytes.to_vec()))).unwrap();
    taken
}

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// An echo request over IPv4, with its checksum.
fn request(identifier: u16, data: &[u8]) -> Vec<u8> {
    let mut message = [&[8, 0, 0, 0], &identifier.to_be_bytes()[..], &[0, 1], data].concat();
    let checksum = sum(&message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

#[test]
fn another_host_answers_a_request_of_a_raw_socket() {
    let mut net = Net::new(Faults::default(), 1);
    let [own, other, of_tcp] = [1, 1, 6].map(|protocol| bind(&mut net, "0.0.0.0:0", protocol).unwrap());
    let message = request(0x1234, b"some data");
    assert_eq!(send(&mut net, own, wire::SERVER.into(), &message), Ok(Sent::Bytes(message.len())));
    net.pass(100 * MILLISECOND);
    for socket in [own, other] {
        let (from, packet) = receive(&mut net, socket).expect("each has a copy");
        assert_eq!(from, SocketAddr::new(wire::SERVER.into(), 64), "the port is the hop limit");
        assert_eq!((packet[0], packet[9], packet.len()), (0x45, 1, 20 + message.len()));
        assert_eq!((packet[20], &packet[24..]), (0, &message[4..]));
        assert!(receive(&mut net, socket).is_none());
    }
    assert!(receive(&mut net, of_tcp).is_none());
    // Answers are left out by their kind.
    let mut left_out = [0; 8];
    left_out[0] = 1;
    net.client.set_raw_filter(other, left_out).unwrap();
    send(&mut net, own, wire::SERVER.into(), &message).unwrap();
    net.pass(100 * MILLISECOND);
    assert!(receive(&mut net, own).is_some() && receive(&mut net, other).is_none());
    // A peer is the only sender that counts.
    net.client.udp_connect(own, Some("10.0.2.77:0".parse().unwrap())).unwrap();
    send(&mut net, own, wire::SERVER.into(), &message).unwrap();
    net.pass(100 * MILLISECOND);
    assert!(receive(&mut net, own).is_none());
    assert_eq!(net.client.udp_send_with(other, None, 8, |_| ()), Err(Error::NotConnected));
    assert_eq!(send(&mut net, own, wire::SERVER.into(), &[0; 1481]), Err(Error::TooLong));
    for socket in [own, other, of_tcp] {
        net.client.udp_close(socket).unwrap();
    }
}

/// A header that the program gives: protocol, hop limit and source count.
#[test]
fn a_program_may_write_the_header() {
    let mut net = Net::new(Faults::default(), 1);
    let own = bind(&mut net, "0.0.0.0:0", 255).unwrap();
    let echoes = bind(&mut net, "0.0.0.0:0", 1).unwrap();
    net.client.set_raw_header(own, true).unwrap();
    let message = request(7, b"");
    let header = [&[0x45, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0][..], &[0; 8]].concat();
    let packet = [header, message.clone()].concat();
    send(&mut net, own, wire::SERVER.into(), &packet).unwrap();
    net.pass(10 * MILLISECOND);
    assert!(receive(&mut net, echoes).is_some());
    assert_eq!(send(&mut net, own, wire::SERVER.into(), &packet[..19]), Err(Error::Invalid));
    // The hop limit of one without a header.
    net.client.set_datagram_hop_limit(echoes, Some(9)).unwrap();
    send(&mut net, echoes, wire::SERVER.into(), &message).unwrap();
    let now = net.now;
    net.client.poll(now);
    let limits: Vec<u8> =
        net.to_server.borrow().iter().filter(|frame| frame[12..14] == [8, 0]).map(|f| f[22]).collect();
    assert_eq!(limits, [9]);
}

#[test]
fn packets_within_the_host_go_to_raw_sockets_and_echoes_are_answered() {
    let mut net = Net::new(Faults::default(), 1);
    let own = bind(&mut net, "0.0.0.0:0", 1).unwrap();
    let elsewhere = bind(&mut net, "10.0.2.15:0", 1);
    for to in [Ipv4Addr::LOCALHOST, wire::CLIENT] {
        let message = request(9, b"data");
        send(&mut net, own, to.into(), &message).unwrap();
        let (from, asked) = receive(&mut net, own).unwrap();
        assert_eq!((from, &asked[20..]), (SocketAddr::new(to.into(), 64), &message[..]));
        let (_, answer) = receive(&mut net, own).unwrap();
        assert_eq!((answer[20], sum(&answer[20..]), sum(&answer[..20])), (0, 0, 0), "with right checksums");
        assert!(receive(&mut net, own).is_none());
    }
    if let Ok(socket) = elsewhere {
        while receive(&mut net, socket).is_some() {}
    }
    let six = bind(&mut net, "[::]:0", 58).unwrap();
    let message = [128, 0, 0, 0, 0, 9, 0, 1, 7];
    send(&mut net, six, "::1".parse().unwrap(), &message).unwrap();
    let kinds = [receive(&mut net, six), receive(&mut net, six)].map(|one| one.unwrap().1[0]);
    assert_eq!(kinds, [128, 129]);
    assert_eq!(send(&mut net, six, "::1".parse().unwrap(), &[128, 0]), Err(Error::Invalid));
}

#[test]
fn packets_of_six_have_no_header_and_a_checksum() {
    let six = |_| Configuration { address: Addressing::Nowhere, six: SixAddressing::LinkLocal, ..Default::default() };
    let mut net = Net::configured(Faults::default(), 1, [0, 1].map(six));
    net.pass(3 * SECOND);
    let own = bind(&mut net, "[::]:0", 58).unwrap();
    let server = SERVER_OF_SIX.parse().unwrap();
    send(&mut net, own, server, &[128, 0, 0, 0, 0x12, 0x34, 0, 1, 5, 6, 7]).unwrap();
    net.pass(100 * MILLISECOND);
    let mut answers = Vec::new();
    while let Some((from, message)) = receive(&mut net, own) {
        assert_eq!(from.ip(), server);
        answers.push(message);
    }
    // Neighbours are solicited and advertised, too.
    let answer = answers.iter().find(|message| message[0] == 129).expect("there is an answer");
    assert_eq!(answer[4..], [0x12, 0x34, 0, 1, 5, 6, 7]);
}

/// Few sockets get copies, and a connection goes on beside one.
#[test]
fn raw_sockets_are_few_and_take_nothing_from_others() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 4);
    let mut all = Vec::new();
    let refusal = loop {
        match bind(&mut net, "0.0.0.0:0", 6) {
            Ok(socket) => all.push(socket),
            Err(error) => break error,
        }
    };
    assert_eq!((all.len(), refusal), (16, Error::Limit));
    let to = SocketAddr::new(wire::SERVER.into(), 80);
    let now = net.now;
    let connection = net.client.tcp_connect(None, to, &TcpOptions::default(), now).unwrap();
    net.pass(SECOND);
    assert_eq!(net.client.connected(connection), Ok(true));
    assert!(net.server.accept(listener).unwrap().is_some());
    let (_, segment) = receive(&mut net, all[0]).unwrap();
    assert_eq!((segment[9], segment[20..22].to_vec()), (6, 80u16.to_be_bytes().to_vec()));
    for socket in all {
        net.client.udp_close(socket).unwrap();
    }
    assert!(bind(&mut net, "0.0.0.0:0", 6).is_ok());
}

/// A socket that gets an address keeps what it has received, and needs no place for a second one.
#[test]
fn the_last_raw_socket_can_be_bound() {
    let mut net = Net::new(Faults::default(), 1);
    let all: Vec<_> = (0..16).map(|_| bind(&mut net, "0.0.0.0:0", 1).unwrap()).collect();
    send(&mut net, all[15], Ipv4Addr::LOCALHOST.into(), &request(9, b"data")).unwrap();
    let at = |address: &str| LocalEnd::from(address.parse::<SocketAddr>().unwrap());
    assert_eq!(net.client.raw_rebind(all[15], at("10.9.9.9:0")), Err(Error::AddressUnavailable));
    net.client.raw_rebind(all[15], at("10.0.2.2:0")).unwrap();
    assert!(receive(&mut net, all[15]).is_some());
    while receive(&mut net, all[15]).is_some() {}
    // Packets to another address are no longer its own.
    send(&mut net, all[0], Ipv4Addr::LOCALHOST.into(), &request(9, b"data")).unwrap();
    assert!(receive(&mut net, all[15]).is_none() && receive(&mut net, all[1]).is_some());
    net.client.udp_connect(all[15], Some("10.0.2.15:0".parse().unwrap())).unwrap();
    assert_eq!(net.client.raw_rebind(all[15], at("0.0.0.0:0")), Err(Error::Invalid));
}

/// The answer to an echo within the host whose source a program has made up is another host's.
#[test]
fn a_made_up_source_gets_no_answer_here() {
    let mut net = Net::new(Faults::default(), 1);
    let own = bind(&mut net, "0.0.0.0:0", 1).unwrap();
    net.client.set_raw_header(own, true).unwrap();
    for (source, kinds) in [([8, 8, 8, 8], vec![8]), ([0, 0, 0, 0], vec![8, 0]), ([10, 0, 2, 2], vec![8, 0])] {
        let header = [&[0x45, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0][..], &source, &[0; 4]].concat();
        let packet = [header, request(7, b"")].concat();
        send(&mut net, own, Ipv4Addr::LOCALHOST.into(), &packet).unwrap();
        let mut seen = Vec::new();
        while let Some((_, packet)) = receive(&mut net, own) {
            seen.push(packet[20]);
        }
        assert_eq!(seen, kinds, "{source:?}");
    }
}

/// Messages of ICMPv6 to the groups of this host come to raw sockets, and those that are damaged or forged do not.
#[test]
fn messages_of_six_are_whole_and_from_others() {
    let six = |_| Configuration { address: Addressing::Nowhere, six: SixAddressing::LinkLocal, ..Default::default() };
    let mut net = Net::configured(Faults::default(), 1, [0, 1].map(six));
    net.pass(3 * SECOND);
    let own = bind(&mut net, "[::]:0", 58).unwrap();
    let (to, other): (std::net::Ipv6Addr, std::net::Ipv6Addr) =
        ("ff02::1".parse().unwrap(), SERVER_OF_SIX.parse().unwrap());
    let here = net.client.six_addresses().next().unwrap().address;
    for (source, damage, count) in [(other, 0, 1), (other, 1, 0), (here, 0, 0)] {
        let mut message = vec![200, 0, 0, 0, 1, 2, 3, 4];
        let pseudo = [&source.octets()[..], &to.octets(), &[0, 0, 0, 8, 0, 0, 0, 58], &message].concat();
        let checksum = sum(&pseudo);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        message[7] ^= damage;
        let header = [&[0x60, 0, 0, 0, 0, 8, 58, 255][..], &source.octets(), &to.octets()].concat();
        let frame = [vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 15, 0x86, 0xdd], header, message].concat();
        net.to_client.borrow_mut().push_back(frame);
        net.pass(100 * MILLISECOND);
        let mut seen = 0;
        while let Some((_, message)) = receive(&mut net, own) {
            seen += usize::from(message[0] == 200);
        }
        assert_eq!(seen, count, "{source} {damage}");
    }
}

/// Of a long packet within the host, as many sockets get a copy as takes no longer than a short one for all.
#[test]
fn copies_of_a_packet_have_a_bound() {
    let mut net = Net::new(Faults::default(), 1);
    let all: Vec<_> = (0..16).map(|_| bind(&mut net, "0.0.0.0:0", 200).unwrap()).collect();
    for (length, expected) in [(1480, 16), (8000, 3)] {
        send(&mut net, all[0], Ipv4Addr::LOCALHOST.into(), &vec![7; length]).unwrap();
        let count = all.iter().filter(|socket| receive(&mut net, **socket).is_some()).count();
        assert_eq!(count, expected, "{length}");
    }
}

proptest! {
    #![proptest_config(property::cases(256))]

    /// Any bytes from a program or from the wire are survived, and no packet is received that is damaged.
    #[test]
    fn any_packet_is_survived(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        has_header in any::<bool>(),
        protocol in any::<u8>(),
        is_local in any::<bool>(),
    ) {
        let mut net = Net::new(Faults::default(), 1);
        let own = bind(&mut net, "0.0.0.0:0", protocol).unwrap();
        net.client.set_raw_header(own, has_header).unwrap();
        let to = if is_local { Ipv4Addr::LOCALHOST } else { wire::SERVER };
        let sent = send(&mut net, own, to.into(), &bytes);
        prop_assert_eq!(sent.is_ok(), !has_header || bytes.len() >= 20);
        net.pass(100 * MILLISECOND);
        while receive(&mut net, own).is_some() {}
        let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 15, 8, 0][..], &bytes].concat();
        net.to_client.borrow_mut().push_back(frame);
        net.pass(100 * MILLISECOND);
        while let Some((_, packet)) = receive(&mut net, own) {
            prop_assert!(packet[0] >> 4 == 4 && packet[9] == protocol);
        }
    }
}
