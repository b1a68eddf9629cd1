//! Ports with several listeners or datagram sockets, and listeners that wait for the first bytes of a connection.

mod wire;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use network::{DatagramOptions, Error, ListenerId, LocalEnd, Received, Sharing, TcpOptions};
use wire::*;

const PORT: u16 = 80;
const EVERYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

fn spread(address: IpAddr, user: u32) -> LocalEnd {
    LocalEnd { spread: Some(user), ..SocketAddr::new(address, PORT).into() }
}

fn listen(net: &mut Net, end: LocalEnd) -> Result<ListenerId, Error> {
    let binding = net.server.tcp_bind(end, Sharing::Reuse)?;
    net.server.tcp_listen(binding, 1000, &TcpOptions::default())
}

/// Connects that many times, from outside or within the host; returns how many connections came to each listener.
fn come(net: &mut Net, listeners: &[ListenerId], connections: usize, is_outside: bool) -> Vec<usize> {
    let to = SocketAddr::new(SERVER.into(), PORT);
    for _ in 0..connections {
        let stack = if is_outside { &mut net.client } else { &mut net.server };
        stack.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
    }
    let mut come = vec![0; listeners.len()];
    net.run_until(10 * SECOND, |net| {
        for (listener, come) in listeners.iter().zip(&mut come) {
            while net.server.accept(*listener).unwrap().is_some() {
                *come += 1;
            }
        }
        come.iter().sum::<usize>() == connections
    });
    come
}

#[test]
fn connections_are_spread_over_listeners() {
    for is_outside in [false, true] {
        let mut net = Net::new(Faults::default(), 1);
        let mut listeners: Vec<_> = (0..4).map(|_| listen(&mut net, spread(EVERYWHERE, 7)).unwrap()).collect();
        let come_to = come(&mut net, &listeners, 200, is_outside);
        assert!(come_to.iter().all(|count| (25..=75).contains(count)), "{come_to:?}");
        // Those that stay take all, down to the last one.
        for left in (1..4).rev() {
            net.server.close_listener(listeners.remove(left / 2), net.now).unwrap();
            let come_to = come(&mut net, &listeners, 60, is_outside);
            assert!(come_to.iter().all(|count| *count > 60 / left / 3), "{come_to:?}");
        }
        net.server.close_listener(listeners[0], net.now).unwrap();
        let binding = net.server.tcp_bind(SocketAddr::new(EVERYWHERE, PORT), Sharing::Reuse).unwrap();
        net.server.release(binding).unwrap();
    }
}

#[test]
fn a_port_is_shared_with_the_same_user_only() {
    let mut net = Net::new(Faults::default(), 1);
    let own = IpAddr::V4(SERVER);
    let first = listen(&mut net, spread(EVERYWHERE, 7)).unwrap();
    for end in [spread(EVERYWHERE, 8), spread(own, 8), SocketAddr::new(EVERYWHERE, PORT).into()] {
        assert_eq!(listen(&mut net, end), Err(Error::AddressInUse));
    }
    // One of its own address goes before one of all.
    let nearer = listen(&mut net, spread(own, 7)).unwrap();
    assert_eq!(come(&mut net, &[first, nearer], 20, true), [0, 20]);
    net.server.close_listener(nearer, net.now).unwrap();
    assert_eq!(come(&mut net, &[first], 5, true), [5]);
    net.server.close_listener(first, net.now).unwrap();
    assert!(listen(&mut net, SocketAddr::new(EVERYWHERE, PORT).into()).is_ok());
    assert_eq!(listen(&mut net, spread(own, 7)), Err(Error::AddressInUse));
}

#[test]
fn an_end_for_both_families_is_shared_in_both() {
    let mut net = Net::new(Faults::default(), 1);
    let both = LocalEnd { spread: Some(1), ..LocalEnd::of_both(PORT) };
    let listeners = [both, both, spread(EVERYWHERE, 1)].map(|end| listen(&mut net, end).unwrap());
    assert!(come(&mut net, &listeners, 90, true).iter().all(|count| *count > 10));
    net.server.close_listener(listeners[0], net.now).unwrap();
    net.server.close_listener(listeners[2], net.now).unwrap();
    assert_eq!(come(&mut net, &listeners[1..2], 10, true), [10]);
    let six = spread(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 2);
    assert_eq!(listen(&mut net, six), Err(Error::AddressInUse));
}

#[test]
fn datagrams_are_spread_over_sockets() {
    let mut net = Net::new(Faults::default(), 1);
    let options = DatagramOptions { datagrams: 100, ..DatagramOptions::default() };
    let mut sockets: Vec<_> = (0..3).map(|_| net.server.udp_bind(spread(EVERYWHERE, 0), &options).unwrap()).collect();
    assert_eq!(net.server.udp_bind(spread(EVERYWHERE, 1), &options), Err(Error::AddressInUse));
    let to = SocketAddr::new(SERVER.into(), PORT);
    let say = |net: &mut Net, sockets: &[network::DatagramId]| {
        for _ in 0..60 {
            let from = net.client.udp_bind(SocketAddr::new(EVERYWHERE, 0), &Default::default()).unwrap();
            net.client.udp_connect(from, Some(to)).unwrap();
            for _ in 0..2 {
                net.client.udp_send_with(from, None, 1, |room| room.fill(1)).unwrap();
            }
            net.settle();
            net.client.udp_close(from).unwrap();
        }
        let mut counts = vec![];
        for socket in sockets {
            let mut senders = std::collections::BTreeMap::new();
            while let Ok(Some(origin)) = net.server.udp_receive_with(*socket, |origin, _| origin) {
                *senders.entry(origin).or_insert(0) += 1;
            }
            // A sender stays with one socket.
            assert!(senders.values().all(|count| count % 2 == 0), "{senders:?}");
            counts.push(senders.len());
        }
        counts
    };
    let counts = say(&mut net, &sockets);
    assert!(counts.iter().all(|count| *count > 8), "{counts:?}");
    // A connected one has what its peer sends, and leaves the others theirs.
    net.server.udp_connect(sockets[0], Some(SocketAddr::new(CLIENT.into(), 9))).unwrap();
    let counts = say(&mut net, &sockets);
    assert!(counts[0] == 0 && counts[1] > 10 && counts[2] > 10, "{counts:?}");
    net.server.udp_close(sockets.remove(1)).unwrap();
    let counts = say(&mut net, &sockets);
    assert!(counts[0] == 0 && counts[1] > 40, "{counts:?}");
}

#[test]
fn a_listener_waits_for_the_first_bytes() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(PORT, 10);
    net.server.set_deferral(listener, 15).unwrap();
    let to = SocketAddr::new(SERVER.into(), PORT);
    let [speaks, ends, is_silent] =
        [0; 3].map(|_| net.client.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap());
    net.pass(5 * SECOND);
    assert!(net.client.connected(is_silent).unwrap(), "the other side does not notice");
    assert_eq!(net.server.accept(listener), Ok(None));
    send(&mut net.client, speaks, b"!", net.now).unwrap();
    net.pass(SECOND);
    let (first, _) = net.server.accept(listener).unwrap().unwrap();
    let mut got = vec![];
    assert_eq!(receive(&mut net.server, first, &mut got, net.now), Ok(Received::Bytes(1)));
    net.client.close(ends, net.now).unwrap();
    net.pass(SECOND);
    assert!(net.server.accept(listener).unwrap().is_some(), "its end is as good as bytes");
    net.pass(7 * SECOND);
    assert_eq!(net.server.accept(listener), Ok(None));
    // After that time it is there without bytes.
    net.pass(15 * SECOND);
    let (last, _) = net.server.accept(listener).unwrap().unwrap();
    // That wait was nobody's way.
    assert!(net.server.information(last).unwrap().1.unwrap().timeout <= 3_000_000);
    send(&mut net.client, is_silent, b"late", net.now).unwrap();
    net.pass(SECOND);
    got.clear();
    assert_eq!(receive(&mut net.server, last, &mut got, net.now), Ok(Received::Bytes(4)));
    assert_eq!(got, b"late");
    // Within the host none waits.
    net.server.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
    assert!(net.server.accept(listener).unwrap().is_some());
}

/// A request whose answer nobody acknowledges, as a forged one, is kept no longer for a listener that waits.
#[test]
fn forged_requests_do_not_wait_with_a_listener() {
    let answers = |seconds: u32| {
        let mut net = Net::new(Faults::default(), 1);
        let listener = net.listen(PORT, 10);
        net.server.set_deferral(listener, seconds).unwrap();
        let to = SocketAddr::new(SERVER.into(), PORT);
        let client = net.client.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
        net.client.poll(net.now);
        // The address is resolved, and the request sent.
        net.server.poll(net.now);
        net.client.poll(net.now);
        net.client.abort(client, net.now).unwrap();
        net.client.link().faults.lost = 100;
        let before = net.server.link().sent;
        net.pass(10_000 * SECOND);
        net.server.link().sent - before
    };
    let usual = answers(0);
    assert!((3..20).contains(&usual), "{usual}");
    assert_eq!(answers(29_887), usual);
}

/// The wait of a connection for room is not measured as its way.
#[test]
fn a_wait_for_room_is_no_round_trip() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(PORT, 2);
    let to = SocketAddr::new(SERVER.into(), PORT);
    for connections in [1, 2] {
        for _ in 0..connections {
            net.client.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
        }
        net.pass(4 * SECOND);
    }
    net.pass(4 * SECOND);
    for accepted in 0..3 {
        let (server, _) = net.server.accept(listener).unwrap().unwrap();
        let timeout = net.server.information(server).unwrap().1.unwrap().timeout;
        assert!(timeout <= 3_000_000, "{accepted}: {timeout}");
        net.pass(20 * SECOND);
    }
}
