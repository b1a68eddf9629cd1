//! Echoes (ping) on the wire: requests of both families, answers, and messages that are none.

use std::net::SocketAddr;

use network::{
    Addressing, Configuration, DatagramId, DatagramOptions, DatagramProtocol, Error, LocalEnd, Sent, SixAddressing,
};
use proptest::prelude::*;

mod wire;
use wire::{Faults, MILLISECOND, Net, SECOND};

const SERVER_OF_SIX: &str = "fe80::ff:fe00:f";

fn options() -> DatagramOptions {
    DatagramOptions { protocol: DatagramProtocol::Echo, ..DatagramOptions::default() }
}

fn nets() -> [(Net, SocketAddr, SocketAddr, [u8; 2]); 2] {
    let four = Net::new(Faults::default(), 1);
    let six = |_| Configuration { address: Addressing::Nowhere, six: SixAddressing::LinkLocal, ..Default::default() };
    let mut net = Net::configured(Faults::default(), 1, [0, 1].map(six));
    net.pass(3 * SECOND);
    let server = SocketAddr::new(SERVER_OF_SIX.parse().unwrap(), 0);
    [
        (four, "0.0.0.0:0".parse().unwrap(), SocketAddr::new(wire::SERVER.into(), 0), [8, 0]),
        (net, "[::]:0".parse().unwrap(), server, [128, 129]),
    ]
}

fn receive(net: &mut Net, id: DatagramId) -> Option<(SocketAddr, Vec<u8>)> {
    let mut taken = None;
    net.client.udp_receive_with(id, |from, bytes| taken = Some((from, bytes.to_vec()))).unwrap();
    taken
}

#[test]
fn another_host_answers_with_the_bytes_of_the_request() {
    for (mut net, any, server, [request, reply]) in nets() {
        let bind = |net: &mut Net| net.client.udp_bind(LocalEnd::from(any), &options()).unwrap();
        let (own, other) = (bind(&mut net), bind(&mut net));
        let identifier = net.client.udp_local_endpoint(own).unwrap().port();
        for length in [8, 9, 64, 1400] {
            let message: Vec<u8> = (0..length).map(|at| if at == 0 { request } else { at as u8 }).collect();
            let sent = net.client.udp_send_with(own, Some(server), length, |room| room.copy_from_slice(&message));
            assert_eq!(sent, Ok(Sent::Bytes(length)));
            net.pass(100 * MILLISECOND);
            let (from, answer) = receive(&mut net, own).expect("there is an answer");
            assert_eq!((from.ip(), from.port()), (server.ip(), 64), "the port is the hop limit");
            assert_eq!((answer[0], answer[1], &answer[6..]), (reply, 0, &message[6..]));
            assert_eq!(answer[4..6], identifier.to_be_bytes());
            assert!(receive(&mut net, own).is_none() && receive(&mut net, other).is_none());
        }
        let send = |net: &mut Net, length| net.client.udp_send_with(own, Some(server), length, |room| room.fill(0));
        assert_eq!(send(&mut net, 7), Err(Error::Invalid));
        assert_eq!(send(&mut net, 1500), Err(Error::TooLong));
        // Without a receiver's address, and then with one.
        assert_eq!(net.client.udp_send_with(own, None, 8, |_| ()), Err(Error::NotConnected));
        net.client.udp_connect(own, Some(server)).unwrap();
        assert_eq!(net.client.udp_send_with(own, None, 8, |room| room.fill(0)), Ok(Sent::Bytes(8)));
        net.pass(100 * MILLISECOND);
        assert!(receive(&mut net, own).is_some());
        net.client.udp_close(own).unwrap();
        net.client.udp_close(other).unwrap();
    }
}

proptest! {
    #![proptest_config(property::cases(64))]

    /// A damaged answer is given to nobody, and a stranger's only if it has a socket's identifier.
    #[test]
    fn answers_are_checked(at in 0..50usize, bit in 0..8u32) {
        let mut net = Net::new(Faults::default(), 1);
        let own = net.client.udp_bind("0.0.0.0:0".parse::<SocketAddr>().unwrap(), &options()).unwrap();
        let server = SocketAddr::new(wire::SERVER.into(), 0);
        for round in 0..2 {
            net.client.udp_send_with(own, Some(server), 16, |room| room.fill(7)).unwrap();
            if round == 0 {
                // The hardware addresses become known.
                net.pass(100 * MILLISECOND);
                prop_assert!(receive(&mut net, own).is_some());
            }
        }
        let now = net.now;
        net.client.poll(now);
        net.server.poll(now);
        if let Some(frame) = net.to_client.borrow_mut().iter_mut().next() {
            let at = at % frame.len();
            frame[at] ^= 1 << bit;
        }
        net.client.poll(now);
        if let Some((from, answer)) = receive(&mut net, own) {
            // Hardware addresses, which are not checked, and what no checksum has.
            prop_assert!(at < 12, "{} {:?} {:?}", at, from, answer);
        }
    }
}
