//! Packet sockets: frames that come and go, by protocol, and frames that a program writes.

use std::net::{Ipv4Addr, SocketAddr};

use network::{ALL_PROTOCOLS, DatagramOptions, Error, FrameKind, FrameOrigin, LocalEnd, PacketCounts, PacketSocketId};
use proptest::prelude::*;

mod wire;
use wire::{Bell, Faults, MILLISECOND, Net};

const ARP: u16 = 0x806;
const FOUR: u16 = 0x800;

fn receive(net: &mut Net, id: PacketSocketId) -> Option<(FrameOrigin, Vec<u8>)> {
    net.client.packet_receive_with(id, false, |origin, frame| (*origin, frame.to_vec())).unwrap()
}

/// Sends a datagram from the client to a socket of the server, which has come when this returns.
fn exchange(net: &mut Net) {
    let any = |port| LocalEnd::from(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
    let server = net.server.udp_bind(any(7), &DatagramOptions::default()).unwrap();
    let client = net.client.udp_bind(any(0), &DatagramOptions::default()).unwrap();
    let to = SocketAddr::new(wire::SERVER.into(), 7);
    net.client.udp_send_with(client, Some(to), 5, |room| room.copy_from_slice(b"bytes")).unwrap();
    net.pass(100 * MILLISECOND);
    let from = net.server.udp_receive_with(server, |from, _| from).unwrap().unwrap();
    net.server.udp_send_with(server, Some(from), 6, |room| room.copy_from_slice(b"answer")).unwrap();
    net.pass(100 * MILLISECOND);
    assert_eq!(net.client.udp_receive_with(client, |_, bytes| bytes.to_vec()), Ok(Some(b"answer".to_vec())));
    net.server.udp_close(server).unwrap();
    net.client.udp_close(client).unwrap();
}

#[test]
fn frames_are_shown_as_they_come_and_go() {
    let mut net = Net::new(Faults::default(), 1);
    let [all, arp, none] = [ALL_PROTOCOLS, ARP, 0].map(|protocol| net.client.packet_open(protocol).unwrap());
    net.client.packet_set_clock(all, Some(|| 5)).unwrap();
    let (bell, waker) = Bell::new();
    net.client.packet_register(all, &waker).unwrap();
    exchange(&mut net);
    assert_eq!(bell.rings(), 1);
    let mut seen = Vec::new();
    while let Some((origin, frame)) = receive(&mut net, all) {
        assert_eq!((origin.at_ns, origin.from[5]), (5, frame[11]));
        seen.push((origin.kind, origin.protocol, frame.len()));
    }
    // A question, its answer, the datagram, and the datagram that comes back.
    let expected = [
        (FrameKind::Leaving, ARP, 42),
        (FrameKind::Host, ARP, 42),
        (FrameKind::Leaving, FOUR, 47),
        (FrameKind::Host, FOUR, 48),
    ];
    assert_eq!(seen, expected);
    let (origin, frame) = receive(&mut net, arp).unwrap();
    assert_eq!((origin.kind, origin.at_ns, &frame[12..14]), (FrameKind::Host, 0, &[8, 6][..]));
    assert!(receive(&mut net, arp).is_none() && receive(&mut net, none).is_none());
    assert_eq!(net.client.packet_take_counts(all), Ok(PacketCounts { seen: 4, dropped: 0 }));
    assert_eq!(net.client.packet_take_counts(all), Ok(PacketCounts::default()));
    // Looked at, it stays; another protocol holds for what comes next.
    net.client.packet_set_protocol(none, FOUR).unwrap();
    exchange(&mut net);
    for stays in [true, true, false] {
        let length = net.client.packet_receive_with(none, stays, |_, frame| frame.len()).unwrap();
        assert_eq!(length, Some(48));
    }
    assert!(!net.client.packet_readiness(none).unwrap().receive);
}

/// Frames for others, of unknown protocols and with nonsense are shown, and go nowhere else.
#[test]
fn frames_that_the_host_drops_are_shown() {
    let mut net = Net::new(Faults::default(), 1);
    let raw = DatagramOptions { protocol: network::DatagramProtocol::Raw(1), ..DatagramOptions::default() };
    let raw = net.client.udp_bind(LocalEnd::from(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)), &raw).unwrap();
    let all = net.client.packet_open(ALL_PROTOCOLS).unwrap();
    let frame = |to: [u8; 6], protocol: [u8; 2]| [&to[..], &[2, 0, 0, 0, 0, 15], &protocol, &[0x45; 30]].concat();
    for (to, kind) in [
        ([2, 0, 0, 0, 0, 2], FrameKind::Host),
        ([0xff; 6], FrameKind::Broadcast),
        ([1, 0, 0x5e, 0, 0, 1], FrameKind::Group),
        ([2, 0, 0, 0, 0, 9], FrameKind::Other),
    ] {
        net.to_client.borrow_mut().push_back(frame(to, [0x88, 0xcc]));
        net.pass(MILLISECOND);
        let (origin, bytes) = receive(&mut net, all).unwrap();
        assert_eq!((origin.kind, origin.protocol, bytes.len()), (kind, 0x88cc, 44));
    }
    // A packet with the client's own address is forged: no other socket sees it.
    let mut forged = frame([2, 0, 0, 0, 0, 2], [8, 0]);
    forged[26..30].copy_from_slice(&wire::CLIENT.octets());
    net.to_client.borrow_mut().push_back(forged);
    net.to_client.borrow_mut().push_back(vec![1; 7]);
    net.pass(MILLISECOND);
    assert!(receive(&mut net, all).is_some() && receive(&mut net, all).is_none());
    assert_eq!(net.client.udp_receive_with(raw, |_, _| ()), Ok(None));
}

#[test]
fn a_frame_of_a_program_is_sent_as_it_is() {
    let mut net = Net::new(Faults::default(), 1);
    let (all, other) = (net.client.packet_open(ALL_PROTOCOLS).unwrap(), net.server.packet_open(0x88b5).unwrap());
    let frame = [&[2, 0, 0, 0, 0, 15][..], &[2, 0, 0, 0, 0, 77], &[0x88, 0xb5], b"what it likes"].concat();
    net.client.packet_send_with(frame.len(), |room| room.copy_from_slice(&frame)).unwrap();
    net.pass(MILLISECOND);
    let got = net.server.packet_receive_with(other, false, |origin, frame| (origin.kind, frame.to_vec())).unwrap();
    assert_eq!(got, Some((FrameKind::Host, frame.clone())));
    assert_eq!(receive(&mut net, all).map(|(origin, _)| origin.kind), Some(FrameKind::Leaving));
    assert_eq!(net.client.packet_send_with(13, |_| ()), Err(Error::Invalid));
    assert_eq!(net.client.packet_send_with(1515, |_| ()), Err(Error::TooLong));
    net.client.link().is_full = true;
    assert_eq!(net.client.packet_send_with(60, |_| ()), Err(Error::Limit));
}

#[test]
fn packet_sockets_are_few_and_hold_little() {
    let mut net = Net::new(Faults::default(), 1);
    let mut all = Vec::new();
    let refusal = loop {
        match net.client.packet_open(ALL_PROTOCOLS) {
            Ok(socket) => all.push(socket),
            Err(error) => break error,
        }
    };
    assert_eq!((all.len(), refusal), (8, Error::Limit));
    for number in 0..200u8 {
        let frame = [&[2, 0, 0, 0, 0, 2][..], &[2, 0, 0, 0, 0, 15], &[0x88, 0xcc], &[number; 1000]].concat();
        net.to_client.borrow_mut().push_back(frame);
    }
    net.pass(10 * MILLISECOND);
    for socket in all {
        let counts = net.client.packet_take_counts(socket).unwrap();
        assert_eq!(counts.seen, 200);
        let mut next = 0;
        while let Some((_, frame)) = receive(&mut net, socket) {
            assert_eq!(frame[14], next, "the oldest stay");
            next += 1;
        }
        assert!((1..=64).contains(&next) && u32::from(next) + counts.dropped == 200);
        net.client.packet_close(socket).unwrap();
        assert_eq!(net.client.packet_close(socket), Err(Error::Stale));
    }
    exchange(&mut net);
}

proptest! {
    #![proptest_config(property::cases(128))]

    /// Whatever comes, the socket gets it unchanged, and the host goes on.
    #[test]
    fn any_frame_is_shown_unchanged(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 14..200), 1..20)) {
        let mut net = Net::new(Faults::default(), 1);
        let all = net.client.packet_open(ALL_PROTOCOLS).unwrap();
        for frame in &frames {
            net.to_client.borrow_mut().push_back(frame.clone());
        }
        net.pass(10 * MILLISECOND);
        let mut shown = Vec::new();
        while let Some((origin, frame)) = receive(&mut net, all) {
            if origin.kind != FrameKind::Leaving {
                shown.push(frame);
            }
        }
        shown.sort();
        let mut expected = frames;
        expected.sort();
        prop_assert_eq!(shown, expected);
        exchange(&mut net);
    }
}
