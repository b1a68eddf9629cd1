//! A kernel's view of connections: establishing, transferring, ending in every way.

mod wire;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use ethernet::NoLink;
use network::{
    BUFFER_LIMITS, Coalescing, Configuration, ConnectionId, ConnectionMemory, DatagramOptions, Error, Interest,
    Keepalive, Limits, LocalConnections, Patience, Readiness, Received, Sent, Sharing, Shutdown, Stack, TcpOptions,
};
use wire::*;

fn loopback() -> Stack<NoLink> {
    let configuration = Configuration { seeds: network::Seeds::default(), ..Configuration::default() };
    Stack::new(NoLink, &configuration, SECOND).unwrap()
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

#[test]
fn a_connection_has_the_buffer_that_was_promised_to_its_request() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let small = TcpOptions { receive_buffer: *BUFFER_LIMITS.start(), ..TcpOptions::default() };
    net.server.set_listener_options(listener, &small).unwrap();
    let wholly_small = net.pair(listener);
    // Between the request and its acknowledgement the listener changes its mind.
    let to = SocketAddr::new(SERVER.into(), 80);
    let client = net.client.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
    net.client.poll(net.now);
    net.server.poll(net.now);
    assert_eq!(net.server.half_open_count(), 1);
    net.server.set_listener_options(listener, &TcpOptions::default()).unwrap();
    net.settle();
    let promised_small = (client, net.server.accept(listener).unwrap().unwrap().0);
    let large = net.pair(listener);
    let mut held = |(client, server)| {
        while matches!(send(&mut net.client, client, &[7; 1000], net.now), Ok(Sent::Bytes(_))) {
            net.settle();
        }
        net.pass(SECOND / 10);
        let mut got = Vec::new();
        receive(&mut net.server, server, &mut got, net.now).unwrap();
        got.len()
    };
    let [whole, promised, large] = [wholly_small, promised_small, large].map(&mut held);
    assert!(whole <= 1024 && promised == whole && (4096..=8192).contains(&large), "{whole} {promised} {large}");
}

#[test]
fn datagrams_that_wait_for_an_address_take_room() {
    let mut net = Net::new(Faults::default(), 1);
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let client = net.client.udp_bind(any, &DatagramOptions::default()).unwrap();
    let to = Some(SocketAddr::new(SERVER.into(), 53));
    assert!(net.client.udp_readiness(client).unwrap().send);
    let fits = (0..10_000).take_while(|_| net.client.udp_send_with(client, to, 100, |_| ()) != Ok(Sent::Full)).count();
    assert!((1..10_000).contains(&fits), "{fits}");
    assert!(!net.client.udp_readiness(client).unwrap().send);
    net.settle();
    assert_eq!(net.client.udp_readiness(client), Ok(Readiness { send: true, ..Readiness::default() }));
}

#[test]
fn a_sender_of_datagrams_sleeps_while_nothing_can_leave() {
    let mut net = Net::new(Faults::default(), 1);
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let client = net.client.udp_bind(any, &DatagramOptions::default()).unwrap();
    let to = Some(SocketAddr::new(SERVER.into(), 53));
    net.client.link().is_full = true;
    while net.client.udp_send_with(client, to, 100, |_| ()) != Ok(Sent::Full) {}
    let (bell, waker) = Bell::new();
    net.client.udp_register(client, Interest::Send, &waker).unwrap();
    net.client.poll(net.now);
    assert_eq!(bell.rings(), 0);
    net.client.link().is_full = false;
    net.pass(SECOND);
    assert_eq!(bell.rings(), 1);
}

#[test]
fn a_request_and_an_answer_cross_the_wire() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    let (bell, waker) = Bell::new();
    assert_eq!(receive(&mut net.server, server, &mut Vec::new(), net.now), Ok(Received::Nothing));
    net.server.register(server, Interest::Receive, &waker).unwrap();
    assert_eq!(send(&mut net.client, client, b"hello", net.now), Ok(Sent::Bytes(5)));
    net.settle();
    assert_eq!(bell.rings(), 1);
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(5)));
    assert_eq!(got, b"hello");
    assert_eq!(send(&mut net.server, server, b"world!", net.now), Ok(Sent::Bytes(6)));
    net.settle();
    got.clear();
    assert_eq!(receive(&mut net.client, client, &mut got, net.now), Ok(Received::Bytes(6)));
    assert_eq!(got, b"world!");
    let remote = net.server.remote_endpoint(server).unwrap();
    assert_eq!(remote, net.client.local_endpoint(client).unwrap());
    assert_eq!(remote.ip(), CLIENT);
}

#[test]
fn connecting_without_a_listener_is_refused() {
    let mut net = Net::new(Faults::default(), 1);
    let id = net.client.tcp_connect(None, SocketAddr::new(SERVER.into(), 81), &TcpOptions::default(), net.now).unwrap();
    let (bell, waker) = Bell::new();
    assert_eq!(net.client.connected(id), Ok(false));
    net.client.register(id, Interest::Send, &waker).unwrap();
    net.settle();
    assert_eq!(bell.rings(), 1);
    assert_eq!(net.client.connected(id), Err(Error::Refused));
    assert_eq!(net.client.connected(id), Err(Error::NotConnected));
    net.client.close(id, net.now).unwrap();
    assert_eq!(net.client.connected(id), Err(Error::Stale));
    assert_eq!(net.client.connection_counts(), (0, 0));
}

#[test]
fn an_unanswered_request_times_out() {
    let mut net = Net::new(Faults::default(), 1);
    let absent = SocketAddr::new(Ipv4Addr::new(10, 0, 2, 99).into(), 80);
    let id = net.client.tcp_connect(None, absent, &TcpOptions::default(), net.now).unwrap();
    let mut outcome = Ok(false);
    net.run_until(100 * SECOND, |net| {
        outcome = net.client.connected(id);
        outcome.is_err()
    });
    assert_eq!(outcome, Err(Error::TimedOut));
    net.client.close(id, net.now).unwrap();
    assert_eq!(net.client.connection_counts(), (0, 0));
}

#[test]
fn each_direction_ends_by_itself() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    send(&mut net.client, client, b"question", net.now).unwrap();
    net.client.shutdown(client, Shutdown::Send, net.now).unwrap();
    net.settle();
    assert_eq!(send(&mut net.client, client, b"more", net.now), Err(Error::Closed));
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(8)));
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::End));
    assert!(net.server.readiness(server).unwrap().receive_end);
    // The other direction still works.
    send(&mut net.server, server, b"answer", net.now).unwrap();
    net.server.close(server, net.now).unwrap();
    net.settle();
    got.clear();
    assert_eq!(receive(&mut net.client, client, &mut got, net.now), Ok(Received::Bytes(6)));
    assert_eq!(receive(&mut net.client, client, &mut got, net.now), Ok(Received::End));
    net.client.close(client, net.now).unwrap();
    net.settle();
    // The client closed first, so it keeps the record.
    assert_eq!(net.server.connection_counts(), (0, 0));
    assert_eq!(net.client.connection_counts(), (0, 1));
    net.pass(11 * SECOND);
    assert_eq!(net.client.connection_counts(), (0, 0));
}

#[test]
fn bytes_that_arrived_before_the_end_can_be_read_long_after() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    net.client.shutdown(client, Shutdown::Send, net.now).unwrap();
    net.settle();
    send(&mut net.server, server, b"late", net.now).unwrap();
    net.server.close(server, net.now).unwrap();
    net.pass(100 * SECOND);
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.client, client, &mut got, net.now), Ok(Received::Bytes(4)));
    assert_eq!(receive(&mut net.client, client, &mut got, net.now), Ok(Received::End));
    net.client.close(client, net.now).unwrap();
    net.pass(20 * SECOND);
    assert_eq!(net.client.connection_counts(), (0, 0));
}

#[test]
fn an_abort_is_a_reset_for_the_other_side() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    send(&mut net.client, client, b"last words", net.now).unwrap();
    net.settle();
    let (bell, waker) = Bell::new();
    net.server.register(server, Interest::Receive, &waker).unwrap();
    net.client.abort(client, net.now).unwrap();
    net.settle();
    assert_eq!(bell.rings(), 1);
    assert!(net.server.readiness(server).unwrap().failed);
    // The data that had arrived is still there; then the failure, once; then the end.
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(10)));
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Err(Error::Reset));
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::End));
    assert_eq!(send(&mut net.server, server, b"x", net.now), Err(Error::Closed));
    net.server.close(server, net.now).unwrap();
    assert_eq!(net.server.connection_counts(), (0, 0));
    assert_eq!(net.client.connection_counts(), (0, 0));
}

#[test]
fn closing_with_unread_data_is_a_reset() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    send(&mut net.client, client, b"unread", net.now).unwrap();
    net.settle();
    net.server.close(server, net.now).unwrap();
    net.settle();
    assert_eq!(receive(&mut net.client, client, &mut Vec::new(), net.now), Err(Error::Reset));
}

#[test]
fn a_full_buffer_wakes_its_writer() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    let block = [7; 4096];
    let mut total = 0;
    while let Ok(Sent::Bytes(count)) = send(&mut net.client, client, &block, net.now) {
        total += count;
        net.pass(20 * MILLISECOND);
    }
    // Both buffers are full.
    assert_eq!(total, 16 * 1024);
    let (bell, waker) = Bell::new();
    net.client.register(client, Interest::Send, &waker).unwrap();
    assert!(!net.client.readiness(client).unwrap().send);
    let mut got = Vec::new();
    receive(&mut net.server, server, &mut got, net.now).unwrap();
    net.pass(2 * SECOND);
    assert_eq!(bell.rings(), 1);
    assert!(net.client.readiness(client).unwrap().send);
}

/// Of the segments that the client sends now, the first arrives and is acknowledged, and the others are lost.
fn one_segment_arrives(net: &mut Net) {
    net.client.poll(net.now);
    net.to_server.borrow_mut().truncate(1);
    // The acknowledgement waits a moment for data to travel with.
    for _ in 0..2 {
        net.server.poll(net.now);
        net.now += 10 * MILLISECOND;
    }
    net.client.poll(net.now);
    net.to_server.borrow_mut().clear();
}

/// A buffer is a ring of blocks: the holder is called for each part of its free room, or of its bytes, and for the next
/// one only after all of one was used.
#[test]
fn all_parts_of_a_ring_are_offered() {
    const SIZE: usize = 8192;
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    send(&mut net.client, client, &[7; 8000], net.now).unwrap();
    one_segment_arrives(&mut net);
    let acknowledged = 8000 - net.client.unacknowledged(client).unwrap();
    assert!((1000..8000).contains(&acknowledged));
    for (most, total) in [(100, 100), (usize::MAX, 92 + acknowledged)] {
        let mut offered = Vec::new();
        let fill = |room: &mut [u8]| {
            offered.push(room.len());
            room.fill(8);
            room.len().min(most)
        };
        assert_eq!(net.client.tcp_send_with(client, fill, net.now), Ok(Sent::Bytes(total)));
        match most {
            100 => assert!(offered.len() == 1 && offered[0] > 100, "{offered:?}"),
            _ => assert!(offered.len() > 1 && offered.iter().sum::<usize>() == total, "{offered:?}"),
        }
    }
    assert_eq!(net.client.unacknowledged(client), Ok(SIZE));
    assert_eq!(net.client.tcp_send_with(client, |_| unreachable!("it is full"), net.now), Ok(Sent::Full));
    // The receiver takes all but one byte, so that the rest of its ring begins near the end.
    let mut got = Vec::new();
    let mut read = |net: &mut Net, most: usize| {
        let (mut offered, mut left) = (Vec::new(), most);
        let take = |bytes: &[u8]| {
            offered.push(bytes.len());
            let taken = bytes.len().min(left);
            left -= taken;
            got.extend_from_slice(&bytes[..taken]);
            taken
        };
        (net.server.tcp_receive_with(server, take, net.now).unwrap(), offered)
    };
    net.pass(10 * SECOND);
    assert_eq!(net.server.receivable(server), Ok(SIZE));
    let (received, offered) = read(&mut net, SIZE - 1);
    assert!(received == Received::Bytes(SIZE - 1) && offered.iter().sum::<usize>() == SIZE, "{offered:?}");
    net.pass(10 * SECOND);
    let (waiting, sent) = (net.server.receivable(server).unwrap(), SIZE + acknowledged);
    assert_eq!(waiting, sent - (SIZE - 1));
    let (received, offered) = read(&mut net, 0);
    assert!(received == Received::Bytes(0) && offered.len() == 1, "{offered:?}");
    let (received, offered) = read(&mut net, usize::MAX);
    assert!(received == Received::Bytes(waiting) && offered.iter().sum::<usize>() == waiting, "{offered:?}");
    assert_eq!(read(&mut net, usize::MAX), (Received::Nothing, vec![]));
    assert!(got[..8000] == [7; 8000] && got[8000..].iter().all(|&byte| byte == 8));
    assert_eq!(got.len(), sent);
}

#[test]
fn one_byte_wakes_a_reader_that_has_taken_many() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    let mut got = Vec::new();
    for round in 1..4 {
        send(&mut net.client, client, b"many bytes", net.now).unwrap();
        net.pass(SECOND);
        assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(10)));
        let (bell, waker) = Bell::new();
        net.server.register(server, Interest::Receive, &waker).unwrap();
        send(&mut net.client, client, b"!", net.now).unwrap();
        net.pass(SECOND);
        assert_eq!(bell.rings(), 1);
        assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(1)));
        assert_eq!(got.len(), 11 * round);
    }
}

#[test]
fn the_backlog_limits_and_the_order_is_kept() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    let wanted: Vec<_> = (0..5)
        .map(|_| {
            let id = net
                .client
                .tcp_connect(None, SocketAddr::new(SERVER.into(), 80), &TcpOptions::default(), net.now)
                .unwrap();
            net.settle();
            id
        })
        .collect();
    assert_eq!(net.client.connected(wanted[2]), Ok(true));
    assert_eq!(net.client.connected(wanted[3]), Ok(false));
    assert!(net.server.counters().requests_dropped >= 2);
    for id in &wanted[..3] {
        let (_, remote) = net.server.accept(listener).unwrap().unwrap();
        assert_eq!(remote, net.client.local_endpoint(*id).unwrap());
    }
    assert_eq!(net.server.accept(listener), Ok(None));
    // The others ask again and get their turn.
    let (bell, waker) = Bell::new();
    net.server.register_accept(listener, &waker).unwrap();
    net.pass(4 * SECOND);
    assert!(bell.rings() > 0);
    assert_eq!(net.client.connected(wanted[4]), Ok(true));
    assert!(net.server.accept(listener).unwrap().is_some());
}

/// A listener has at least one place, and at most as many as the stack allows.
#[test]
fn a_listener_has_as_many_places_as_its_last_backlog() {
    let limits = Limits { backlog: 3, ..Limits::default() };
    for (backlog, places) in [(0, 1), (2, 2), (3, 3), (usize::MAX, 3)] {
        let mut net = Net::with_limits(Faults::default(), 1, limits);
        let closed = net.listen(81, 1);
        net.server.close_listener(closed, net.now).unwrap();
        assert_eq!(net.server.set_backlog(closed, backlog), Err(Error::Stale));
        let listener = net.listen(80, 1);
        assert_eq!(net.server.set_backlog(listener, backlog), Ok(()));
        let to = SocketAddr::new(SERVER.into(), 80);
        let clients = [(); 5].map(|()| {
            let client = net.client.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
            net.settle();
            client
        });
        let connected = clients.map(|client| net.client.connected(client).unwrap());
        assert_eq!(connected.into_iter().filter(|&is_connected| is_connected).count(), places, "{backlog}");
    }
}

#[test]
fn requests_are_dropped_while_memory_is_short() {
    static MEMORY: AtomicBool = AtomicBool::new(false);
    let mut net = Net::new(Faults::default(), 1);
    net.server.set_admission(|_| MEMORY.load(Ordering::Relaxed));
    let listener = net.listen(80, 3);
    let remote = SocketAddr::new(SERVER.into(), 80);
    let wanted = net.client.tcp_connect(None, remote, &TcpOptions::default(), net.now).unwrap();
    net.pass(3 * SECOND);
    assert_eq!(net.client.connected(wanted), Ok(false));
    assert_eq!(net.server.connection_counts(), (0, 0));
    assert!(net.server.counters().requests_dropped >= 2);
    assert_eq!(net.server.listener_memory(listener), Ok(0));
    // The other side asks again.
    MEMORY.store(true, Ordering::Relaxed);
    net.pass(8 * SECOND);
    assert_eq!(net.client.connected(wanted), Ok(true));
    let queued = net.server.listener_memory(listener).unwrap();
    let (accepted, _) = net.server.accept(listener).unwrap().expect("it waits");
    assert_eq!(net.server.connection_memory(accepted), Ok(queued));
    assert_eq!(queued, ConnectionMemory::of_this_build().wire, "there are no buffers before there are bytes");
}

#[test]
fn a_closed_listener_resets_waiting_connections() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    let id = net.client.tcp_connect(None, SocketAddr::new(SERVER.into(), 80), &TcpOptions::default(), net.now).unwrap();
    net.settle();
    assert_eq!(net.client.connected(id), Ok(true));
    net.server.close_listener(listener, net.now).unwrap();
    net.settle();
    assert_eq!(net.client.connected(id), Err(Error::Reset));
    assert_eq!(net.server.accept(listener), Err(Error::Stale));
    assert_eq!(net.server.connection_counts(), (0, 0));
    // The port is free again.
    net.listen(80, 1);
}

#[test]
fn ports_have_owners() {
    let mut stack = loopback();
    let first = stack.tcp_bind(local(80), Sharing::Exclusive).unwrap();
    assert_eq!(stack.tcp_bind(local(80), Sharing::Reuse), Err(Error::AddressInUse));
    assert_eq!(stack.tcp_bind(SocketAddr::new(SERVER.into(), 80), Sharing::Exclusive), Err(Error::AddressUnavailable));
    stack.release(first).unwrap();
    assert_eq!(stack.release(first), Err(Error::Stale));
    let again = stack.tcp_bind(local(80), Sharing::Exclusive).unwrap();
    assert_eq!(stack.binding_endpoint(again), Ok(local(80)));
    let any = stack.tcp_bind(local(0), Sharing::Exclusive).unwrap();
    assert!(stack.binding_endpoint(any).unwrap().port() >= 32768);
    // A connection from a bound port.
    let listener = stack.tcp_listen(again, 1, &TcpOptions::default()).unwrap();
    let from = stack.binding_endpoint(any).unwrap();
    let id = stack.tcp_connect(Some(any), local(80), &TcpOptions::default(), SECOND).unwrap();
    assert_eq!(stack.local_endpoint(id), Ok(from));
    stack.poll(SECOND);
    assert_eq!(stack.accept(listener).unwrap().unwrap().1, from);
}

/// A connection gets a free port that no program has bound, and that no connection to its other end has or had a moment
/// ago. Free ports lie so close that each search meets some.
#[test]
fn a_connection_gets_a_port_of_its_own() {
    const DISTANCE: u16 = 128;
    let limits = Limits { listeners: 40_000, ..Limits::default() };
    let mut net = Net::with_limits(Faults::default(), 1, limits);
    let listeners = [net.listen(80, 400), net.listen(81, 400)];
    let is_free = |port: u16| port.is_multiple_of(DISTANCE);
    for port in (32_768..=60_999).filter(|port| !is_free(*port)) {
        net.client.tcp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), Sharing::Exclusive).unwrap();
    }
    let free = (32_768..=60_999).filter(|port| is_free(*port)).count();
    let connect = |net: &mut Net, port: u16| {
        net.client.tcp_connect(None, SocketAddr::new(SERVER.into(), port), &TcpOptions::default(), net.now)
    };
    for (port, listener) in [80, 81].into_iter().zip(listeners) {
        let mut clients = Vec::new();
        let mut ports = BTreeSet::new();
        for _ in 0..free {
            // If many ports are taken the search may meet none that suits, and then looks elsewhere.
            let client = (0..1000).find_map(|_| connect(&mut net, port).ok()).expect("a port is free");
            let local = net.client.local_endpoint(client).unwrap().port();
            assert!(is_free(local) && ports.insert(local), "{local}");
            clients.push(client);
        }
        net.settle();
        assert_eq!(connect(&mut net, port), Err(Error::AddressUnavailable));
        // The client closes first, so it remembers the ports.
        for client in clients {
            net.client.close(client, net.now).unwrap();
        }
        net.settle();
        while let Some((server, _)) = net.server.accept(listener).unwrap() {
            net.server.close(server, net.now).unwrap();
        }
        net.settle();
        assert_eq!(net.client.connection_counts(), (0, free));
        assert_eq!(connect(&mut net, port), Err(Error::AddressUnavailable));
        net.pass(11 * SECOND);
        assert_eq!(net.client.connection_counts(), (0, 0));
        let client = connect(&mut net, port).unwrap();
        net.client.abort(client, net.now).unwrap();
        net.settle();
    }
}

#[test]
fn a_stack_knows_its_address_its_waiters_and_the_memory_of_its_datagrams() {
    let mut net = Net::new(Faults::default(), 1);
    assert_eq!((net.client.address(), loopback().address()), (Some(CLIENT), None));
    let listener = net.listen(80, 1);
    let (_, waker) = Bell::new();
    assert!(!net.server.is_accepted(listener));
    net.server.register_accept(listener, &waker).unwrap();
    assert!(net.server.is_accepted(listener));
    net.server.forget_accept(listener, &waker);
    assert!(!net.server.is_accepted(listener));
    let options = DatagramOptions::default();
    let socket = net.client.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), &options).unwrap();
    let before = net.client.datagram_memory(socket).unwrap();
    assert!((options.receive_buffer..options.memory()).contains(&before));
    net.client.udp_send_with(socket, Some(SocketAddr::new(SERVER.into(), 53)), 1, |_| ()).unwrap();
    let after = net.client.datagram_memory(socket).unwrap();
    assert!((before + options.send_buffer..options.memory()).contains(&after));
}

#[test]
fn free_counts_are_those_that_the_limits_leave() {
    let limits = Limits { connections: 5, datagrams: 7, ..Limits::default() };
    let mut net = Net::with_limits(Faults::default(), 1, limits);
    assert_eq!(net.client.free_counts(), (5, 7));
    let to = SocketAddr::new(SERVER.into(), 80);
    let connection = net.client.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    for left in [6, 5] {
        net.client.udp_bind(any, &DatagramOptions::default()).unwrap();
        assert_eq!(net.client.free_counts(), (4, left));
    }
    net.client.close(connection, net.now).unwrap();
    assert_eq!(net.client.free_counts(), (5, 5));
}

/// Requests within the host are not forged, so none gets a cookie: those beyond the backlog are counted and come again.
#[test]
fn requests_within_the_host_beyond_the_backlog_are_dropped() {
    let configuration = Configuration { local_connections: LocalConnections::Packets, ..Configuration::default() };
    let mut stack = Stack::new(NoLink, &configuration, SECOND).unwrap();
    let binding = stack.tcp_bind(local(80), Sharing::Exclusive).unwrap();
    stack.tcp_listen(binding, 2, &TcpOptions::default()).unwrap();
    for _ in 0..5 {
        stack.tcp_connect(None, local(80), &TcpOptions::default(), SECOND).unwrap();
    }
    stack.poll(SECOND);
    assert_eq!((stack.counters().requests_dropped, stack.counters().cookies_sent), (3, 0));
}

#[test]
fn the_loopback_interface_carries_both_ways() {
    let mut stack = loopback();
    let binding = stack.tcp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 7), Sharing::Exclusive).unwrap();
    let listener = stack.tcp_listen(binding, 4, &TcpOptions::default()).unwrap();
    for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 1, 2, 3), Ipv4Addr::UNSPECIFIED] {
        let client =
            stack.tcp_connect(None, SocketAddr::new(address.into(), 7), &TcpOptions::default(), SECOND).unwrap();
        stack.poll(SECOND);
        assert_eq!(stack.connected(client), Ok(true));
        let (server, _) = stack.accept(listener).unwrap().unwrap();
        let data: Vec<u8> = (0..50_000u32).map(|i| i as u8).collect();
        let (mut sent, mut got) = (0, Vec::new());
        while got.len() < data.len() {
            if let Ok(Sent::Bytes(count)) = send(&mut stack, client, &data[sent..], SECOND) {
                sent += count;
            }
            stack.poll(SECOND);
            receive(&mut stack, server, &mut got, SECOND).unwrap();
            stack.poll(SECOND);
        }
        assert_eq!(got, data);
        stack.close(client, SECOND).unwrap();
        stack.poll(SECOND);
        assert_eq!(receive(&mut stack, server, &mut got, SECOND), Ok(Received::End));
        stack.close(server, SECOND).unwrap();
        stack.poll(SECOND);
    }
    assert_eq!(stack.connection_counts().0, 0);
}

#[test]
fn a_silent_peer_is_probed_and_given_up() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    let (client, _server) = net.pair(listener);
    let keepalive = Keepalive { idle: 10, interval: 10, probes: 3 };
    net.client.set_keepalive(client, Some(keepalive), net.now).unwrap();
    // As long as the other side answers, the connection lives.
    net.pass(200 * SECOND);
    assert_eq!(net.client.connected(client), Ok(true));
    // The other side falls silent.
    let end = net.now + 60 * SECOND;
    while net.now < end {
        let next = net.client.poll(net.now);
        net.to_server.borrow_mut().clear();
        net.now = next.unwrap_or(end).clamp(net.now + 1, end);
    }
    assert_eq!(receive(&mut net.client, client, &mut Vec::new(), net.now), Err(Error::TimedOut));
}

#[test]
fn an_acknowledgement_travels_with_the_answer() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    let (client, server) = net.pair(listener);
    net.client.set_coalescing(client, Coalescing::None, net.now).unwrap();
    // The beginning, in which everything is acknowledged at once; then nothing is left to acknowledge.
    let mut got = Vec::new();
    let begin = |net: &mut Net, got: &mut Vec<u8>| {
        got.clear();
        let _ = receive(&mut net.server, server, got, net.now);
        got.clear();
        while got.len() < 30_000 {
            let _ = send(&mut net.client, client, &[7; 2920], net.now).unwrap();
            net.settle();
            let _ = receive(&mut net.server, server, got, net.now);
        }
        // And the client is told of the room.
        send(&mut net.server, server, b"well", net.now).unwrap();
        net.pass(SECOND);
        let _ = receive(&mut net.client, client, got, net.now);
    };
    begin(&mut net, &mut got);
    let arrive = |net: &mut Net, length: usize| {
        send(&mut net.client, client, &vec![7; length], net.now).unwrap();
        net.client.poll(net.now);
        let next = net.server.poll(net.now);
        let frames: Vec<_> = net.to_client.borrow().iter().map(Vec::len).collect();
        (frames, next)
    };
    let wait_for_an_acknowledgement = |net: &mut Net, length: usize| {
        let begun = net.now;
        let (frames, next) = arrive(net, length);
        assert_eq!(frames, []);
        net.now = next.expect("the acknowledgement has a time");
        assert!(net.now <= begun + 10 * MILLISECOND);
        net.server.poll(net.now);
        assert_eq!(net.to_client.borrow().iter().map(Vec::len).collect::<Vec<_>>(), [HEADERS]);
        net.settle();
    };
    // A bit more than one segment, received by the holder, or not, and answered.
    got.clear();
    assert_eq!(arrive(&mut net, 1808).0, []);
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(1808)));
    net.server.poll(net.now);
    assert_eq!(net.to_client.borrow().len(), 0);
    send(&mut net.server, server, b"answer", net.now).unwrap();
    net.server.poll(net.now);
    assert_eq!(net.to_client.borrow().iter().map(Vec::len).collect::<Vec<_>>(), [HEADERS + 6]);
    net.settle();
    // Without an answer the acknowledgement comes in time.
    wait_for_an_acknowledgement(&mut net, 1808);
    assert_eq!(net.client.unacknowledged(client), Ok(0));
    // That was no conversation, so acknowledgements do not wait for a while.
    assert_eq!(arrive(&mut net, 1808).0, [HEADERS]);
    begin(&mut net, &mut got);
    // Less than a segment waits as long, and no longer.
    wait_for_an_acknowledgement(&mut net, 1000);
    begin(&mut net, &mut got);
    // Two full segments are acknowledged at once, and so is the second half of them.
    let _ = receive(&mut net.server, server, &mut got, net.now);
    assert_eq!(arrive(&mut net, 2920).0, [HEADERS]);
    net.settle();
    let _ = receive(&mut net.server, server, &mut got, net.now);
    assert_eq!(arrive(&mut net, 1808).0, []);
    assert_eq!(arrive(&mut net, 1460).0, [HEADERS]);
    net.settle();
    assert_eq!(net.client.unacknowledged(client), Ok(0));
}

#[test]
fn a_sender_of_much_is_never_kept_waiting() {
    // For pieces of any size: all of it arrives in no time when the holder receives at once.
    for piece in [1, 500, 1460, 1461, 1808, 2919, 2920, 8192] {
        let mut net = Net::new(Faults::default(), 1);
        let listener = net.listen(80, 3);
        let (client, server) = net.pair(listener);
        net.client.set_coalescing(client, Coalescing::None, net.now).unwrap();
        let begun = net.now;
        let (mut sent, mut got) = (0, Vec::new());
        let total = 40 * piece;
        while got.len() < total {
            let started = sent;
            if sent < total
                && let Sent::Bytes(count) =
                    send(&mut net.client, client, &vec![7; piece.min(total - sent)], net.now).unwrap()
            {
                sent += count;
            }
            let next = net.settle();
            let before = (got.len(), sent);
            let _ = receive(&mut net.server, server, &mut got, net.now);
            if (got.len(), sent) == before && started == sent {
                net.now = next.expect("something is under way");
            }
        }
        assert_eq!(net.now, begun, "pieces of {piece} bytes");
    }
}

#[test]
fn unacknowledged_data_is_given_up() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    let (client, _server) = net.pair(listener);
    send(&mut net.client, client, b"into the void", net.now).unwrap();
    let end = net.now + 400 * SECOND;
    while net.now < end {
        let next = net.client.poll(net.now);
        net.to_server.borrow_mut().clear();
        net.now = next.unwrap_or(end).clamp(net.now + 1, end);
    }
    assert_eq!(receive(&mut net.client, client, &mut Vec::new(), net.now), Err(Error::TimedOut));
}

/// A network whose client has a patience of another length for everything that it waits for.
fn impatient() -> Net {
    let patience = Patience {
        connect_ns: 5 * SECOND,
        handshake_ns: 7 * SECOND,
        acknowledgement_ns: 30 * SECOND,
        orphan_ns: 11 * SECOND,
        time_wait_ns: 13 * SECOND,
    };
    Net::with(Faults::default(), 1, Limits::default(), patience)
}

#[test]
fn each_step_of_the_other_side_has_its_own_limit() {
    type Prepare = fn(&mut Net, ConnectionId, ConnectionId);
    let end: Prepare = |net, client, _| net.client.shutdown(client, Shutdown::Send, net.now).unwrap();
    let close: Prepare = |net, client, _| net.client.close(client, net.now).unwrap();
    let other_ends: Prepare = |net, _, server| net.server.shutdown(server, Shutdown::Send, net.now).unwrap();
    let carry: Prepare = |net, _, _| _ = net.settle();
    let lose: Prepare = |net, _, _| {
        net.client.poll(net.now);
        net.to_server.borrow_mut().clear();
    };
    let answer_late: Prepare = |net, _, _| {
        net.server.poll(net.now);
        net.client.poll(net.now);
    };
    let cases: [(&str, &[Prepare], Option<u64>); 8] = [
        ("FIN-WAIT-1", &[end], Some(30)),
        ("FIN-WAIT-1, closed", &[close], Some(11)),
        ("FIN-WAIT-2", &[end, carry], None),
        ("FIN-WAIT-2, closed", &[close, carry], Some(11)),
        ("CLOSING", &[end, lose, other_ends, answer_late], Some(30)),
        ("CLOSING, closed", &[close, lose, other_ends, answer_late], Some(11)),
        ("LAST-ACK", &[other_ends, carry, end], Some(30)),
        ("LAST-ACK, closed", &[other_ends, carry, close], Some(11)),
    ];
    for (name, steps, limit) in cases {
        let mut net = impatient();
        let listener = net.listen(80, 3);
        let (client, server) = net.pair(listener);
        steps.iter().for_each(|step| step(&mut net, client, server));
        let took = net.in_silence(1000 * SECOND, |net| match net.client.readiness(client) {
            Ok(readiness) => readiness.failed,
            Err(_) => net.client.connection_counts() == (0, 0),
        });
        assert_eq!(took, limit.map(|seconds| seconds * SECOND), "{name}");
        if net.client.readiness(client).is_ok() {
            let expected = if limit.is_some() { Err(Error::TimedOut) } else { Ok(Received::Nothing) };
            assert_eq!(receive(&mut net.client, client, &mut Vec::new(), net.now), expected, "{name}");
        }
    }
    let mut net = impatient();
    let absent = SocketAddr::new(Ipv4Addr::new(10, 0, 2, 99).into(), 80);
    let id = net.client.tcp_connect(None, absent, &TcpOptions::default(), net.now).unwrap();
    assert_eq!(net.in_silence(100 * SECOND, |net| net.client.connected(id).is_err()), Some(5 * SECOND));
}

/// RFC 9293, section 3.8.6.1: as long as it acknowledges the probes, a receiver may take its time.
#[test]
fn a_receiver_without_room_that_answers_is_waited_for() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    let (client, server) = net.pair(listener);
    let end = net.now + SECOND;
    while net.now < end {
        let _ = send(&mut net.client, client, &[7; 4000], net.now).unwrap();
        net.pass(SECOND / 100);
    }
    assert!(net.client.unacknowledged(client).unwrap() > 0);
    net.pass(3000 * SECOND);
    assert!(!net.client.readiness(client).unwrap().failed);
    // The bytes that waited arrive when there is room again.
    let mut got = Vec::new();
    let mut quiet = 0;
    while quiet < 200 {
        let before = got.len();
        let _ = receive(&mut net.server, server, &mut got, net.now).unwrap();
        quiet = if got.len() == before { quiet + 1 } else { 0 };
        net.pass(SECOND);
    }
    assert_eq!(net.client.unacknowledged(client), Ok(0));
    // A closed one is not: nobody would know that it is there.
    let end = net.now + SECOND;
    while net.now < end {
        let _ = send(&mut net.client, client, &[7; 4000], net.now).unwrap();
        net.pass(SECOND / 100);
    }
    net.client.close(client, net.now).unwrap();
    net.pass(100 * SECOND);
    assert_eq!(net.client.connection_counts(), (0, 0));
}

/// A receiver without room that falls silent is given up like any other.
#[test]
fn a_receiver_without_room_that_falls_silent_is_given_up() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    let (client, _server) = net.pair(listener);
    let end = net.now + SECOND;
    while net.now < end {
        let _ = send(&mut net.client, client, &[7; 4000], net.now).unwrap();
        net.pass(SECOND / 100);
    }
    let failed = |net: &mut Net| net.client.readiness(client).unwrap().failed;
    let took = net.in_silence(1000 * SECOND, failed).expect("it is given up");
    assert!(took <= 300 * SECOND, "{took}");
}

#[test]
fn the_limit_on_acknowledgements_begins_anew_with_each() {
    let mut net = impatient();
    let listener = net.listen(80, 3);
    let (client, _server) = net.pair(listener);
    send(&mut net.client, client, &[7; 4000], net.now).unwrap();
    let failed = |net: &mut Net| net.client.readiness(client).unwrap().failed;
    // Sent again after 1, 3, 7 and 15 seconds, for the last time with success.
    assert_eq!(net.in_silence(14 * SECOND, failed), None);
    while net.to_server.borrow().is_empty() {
        net.now = net.client.poll(net.now).expect("it is sent again");
        net.client.poll(net.now);
    }
    one_segment_arrives(&mut net);
    assert!((1..4000).contains(&net.client.unacknowledged(client).unwrap()));
    assert_eq!(net.in_silence(100 * SECOND, failed), Some(30 * SECOND));
    assert_eq!(receive(&mut net.client, client, &mut Vec::new(), net.now), Err(Error::TimedOut));
}

#[test]
fn more_bytes_do_not_postpone_the_limit_on_acknowledgements() {
    let mut net = impatient();
    let listener = net.listen(80, 3);
    let (client, _server) = net.pair(listener);
    let failed = |net: &mut Net| net.client.readiness(client).unwrap().failed;
    for _ in 0..2 {
        send(&mut net.client, client, b"is anybody there?", net.now).unwrap();
        assert_eq!(net.in_silence(10 * SECOND, failed), None);
    }
    assert_eq!(net.in_silence(100 * SECOND, failed), Some(10 * SECOND));
}

#[test]
fn two_connections_never_have_both_ends_in_common() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    assert_eq!(
        net.server.tcp_bind(SocketAddr::new(CLIENT.into(), 7), Sharing::Exclusive),
        Err(Error::AddressUnavailable),
        "an address of another host"
    );
    let connect = |net: &mut Net| {
        let from = net.client.tcp_bind(SocketAddr::new(CLIENT.into(), 4000), Sharing::Reuse).unwrap();
        let to = SocketAddr::new(SERVER.into(), 80);
        let made = net.client.tcp_connect(Some(from), to, &TcpOptions::default(), net.now);
        // A refused one leaves the port to its owner.
        assert_eq!(net.client.release(from).is_ok(), made.is_err());
        net.settle();
        made
    };
    let before = connect(&mut net).unwrap();
    assert_eq!(connect(&mut net), Err(Error::AddressInUse));
    // The client closes first, so it remembers the ends for a while.
    net.client.close(before, net.now).unwrap();
    net.settle();
    let (server, _) = net.server.accept(listener).unwrap().unwrap();
    net.server.close(server, net.now).unwrap();
    net.settle();
    assert_eq!(net.client.connection_counts(), (0, 1));
    assert_eq!(connect(&mut net), Err(Error::AddressInUse));
    net.pass(11 * SECOND);
    assert!(connect(&mut net).is_ok());
}

#[test]
fn an_idle_connection_lives_for_ever_and_still_closes_well() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    let (client, server) = net.pair(listener);
    // Without a word, and after one that was acknowledged.
    net.pass(10_000 * SECOND);
    send(&mut net.client, client, b"a word", net.now).unwrap();
    net.settle();
    assert_eq!(receive(&mut net.server, server, &mut Vec::new(), net.now), Ok(Received::Bytes(6)));
    net.pass(10_000 * SECOND);
    net.client.close(client, net.now).unwrap();
    net.settle();
    assert_eq!(receive(&mut net.server, server, &mut Vec::new(), net.now), Ok(Received::End));
}

#[test]
fn a_vanished_peer_does_not_keep_a_closed_connection() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    let (client, server) = net.pair(listener);
    // The server never closes: the client's closed end is dropped after a while.
    net.client.close(client, net.now).unwrap();
    net.pass(61 * SECOND);
    assert_eq!(net.client.connection_counts(), (0, 0));
    assert_eq!(net.server.connection_counts(), (1, 0));
    net.server.close(server, net.now).unwrap();
    net.pass(SECOND);
    assert_eq!(net.server.connection_counts(), (0, 0));
}

#[test]
fn a_new_connection_may_follow_an_old_one_at_once() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 3);
    let from = SocketAddr::new(CLIENT.into(), 4000);
    for round in 0..5 {
        let binding = net.client.tcp_bind(from, Sharing::Reuse).unwrap();
        let client = net
            .client
            .tcp_connect(Some(binding), SocketAddr::new(SERVER.into(), 80), &TcpOptions::default(), net.now)
            .unwrap();
        net.settle();
        let server = net.server.accept(listener).unwrap();
        // The server closes first, so it keeps the record; the client may come again with the same port.
        if let Some((server, _)) = server {
            net.server.close(server, net.now).unwrap();
            net.settle();
            net.client.close(client, net.now).unwrap();
            net.settle();
            assert_eq!(net.server.connection_counts(), (0, 1));
        } else {
            // Its sequence number happened to lie behind the old one: it gets an acknowledgement, and is not let in.
            assert!(round > 0);
            net.client.abort(client, net.now).unwrap();
            net.pass(11 * SECOND);
        }
    }
}

#[test]
fn small_writes_are_coalesced_unless_told_otherwise() {
    for (coalescing, most) in [(Coalescing::Nagle, 1), (Coalescing::None, 5)] {
        let mut net = Net::new(Faults::default(), 1);
        let listener = net.listen(80, 3);
        let (client, _server) = net.pair(listener);
        net.client.set_coalescing(client, coalescing, net.now).unwrap();
        let before = net.client.link().sent;
        for _ in 0..5 {
            send(&mut net.client, client, b"x", net.now).unwrap();
            net.client.poll(net.now);
        }
        assert_eq!(net.client.link().sent - before, most);
    }
}

#[test]
fn addresses_that_no_host_has_are_refused() {
    let make = |address, prefix, gateway| {
        let address = network::Addressing::Fixed(network::Address { address, prefix, gateway });
        Stack::new(NoLink, &Configuration { address, ..Configuration::default() }, SECOND).map(|stack| stack.address())
    };
    for prefix in [0, 24, 32, 33, 255] {
        let expected = if prefix <= 32 { Ok(Some(CLIENT)) } else { Err(Error::Invalid) };
        assert_eq!(make(CLIENT, prefix, None), expected, "/{prefix}");
    }
    let (loopback, many) = (Ipv4Addr::new(127, 1, 2, 3), Ipv4Addr::new(224, 0, 0, 1));
    let of_none = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST, loopback, many, Ipv4Addr::BROADCAST];
    for address in of_none {
        assert_eq!(make(address, 24, Some(SERVER)), Err(Error::Invalid), "{address}");
        assert_eq!(make(CLIENT, 0, Some(address)), Err(Error::Invalid), "by way of {address}");
    }
    assert_eq!(make(CLIENT, 24, Some(SERVER)), Ok(Some(CLIENT)));
    // The router is another host of the same network.
    for (gateway, prefix) in [(CLIENT, 24), (SERVER, 32), (Ipv4Addr::new(10, 0, 3, 1), 24)] {
        assert_eq!(make(CLIENT, prefix, Some(gateway)), Err(Error::Invalid), "by way of {gateway}");
    }
}

#[test]
fn a_gateway_leads_to_other_networks() {
    let (near, far) = (Ipv4Addr::new(10, 0, 2, 99), Ipv4Addr::new(192, 0, 2, 1));
    for gateway in [None, Some(SERVER)] {
        let address = network::Addressing::Fixed(network::Address { address: CLIENT, prefix: 24, gateway });
        let configuration = Configuration { address, ..Configuration::default() };
        let mut stack = Stack::new(NoLink, &configuration, SECOND).unwrap();
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let socket = stack.udp_bind(any, &DatagramOptions::default()).unwrap();
        for (to, is_reached) in [(near, true), (far, gateway.is_some()), (Ipv4Addr::BROADCAST, true)] {
            let outcome = if is_reached { Ok(Sent::Bytes(1)) } else { Err(Error::Unreachable) };
            assert_eq!(stack.udp_send_with(socket, Some(SocketAddr::new(to.into(), 53)), 1, |_| ()), outcome, "{to}");
            let made = stack.tcp_connect(None, SocketAddr::new(to.into(), 80), &TcpOptions::default(), SECOND);
            let is_one_host = to != Ipv4Addr::BROADCAST;
            assert_eq!(made.err(), (!is_reached || !is_one_host).then_some(Error::Unreachable), "{to}");
        }
    }
}

#[test]
fn a_datagram_socket_has_another_end_while_it_is_connected() {
    let mut stack = loopback();
    let socket = stack.udp_bind(local(53), &DatagramOptions::default()).unwrap();
    assert_eq!(stack.udp_remote_endpoint(socket), Ok(None));
    assert_eq!(stack.udp_connect(socket, Some(local(0))), Err(Error::Invalid));
    assert_eq!(stack.udp_remote_endpoint(socket), Ok(None));
    for remote in [Some(local(54)), Some(local(55)), None] {
        stack.udp_connect(socket, remote).unwrap();
        assert_eq!(stack.udp_remote_endpoint(socket), Ok(remote));
    }
    stack.udp_close(socket).unwrap();
    assert_eq!(stack.udp_remote_endpoint(socket), Err(Error::Stale));
}

/// Nothing was answered, so there is nothing to reset.
#[test]
fn a_request_that_is_taken_back_before_its_answer_leaves_nothing() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    net.pair(listener);
    let to = SocketAddr::new(SERVER.into(), 80);
    let client = net.client.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
    net.client.poll(net.now);
    assert_eq!(net.to_server.borrow_mut().split_off(0).len(), 1);
    assert_eq!(net.client.connection_counts(), (2, 0));
    net.client.close(client, net.now).unwrap();
    assert_eq!(net.client.connection_counts(), (1, 0));
    net.client.poll(net.now);
    assert!(net.to_server.borrow().is_empty());
}

/// The end takes one sequence number, in each of the states in which it is under way.
#[test]
fn an_end_counts_as_one_more_byte_until_it_is_acknowledged() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    send(&mut net.client, client, b"bytes", net.now).unwrap();
    assert_eq!(net.client.unacknowledged(client), Ok(5));
    net.client.shutdown(client, Shutdown::Send, net.now).unwrap();
    assert_eq!(net.client.unacknowledged(client), Ok(6));
    net.client.poll(net.now);
    net.to_server.borrow_mut().clear();
    assert_eq!(net.client.unacknowledged(client), Ok(6), "all is lost");
    net.pass(10 * SECOND);
    assert_eq!(net.client.unacknowledged(client), Ok(0));
    net.server.shutdown(server, Shutdown::Send, net.now).unwrap();
    assert_eq!(net.server.unacknowledged(server), Ok(1));
    net.settle();
    assert_eq!(net.server.unacknowledged(server), Ok(0));
    // Both at once: each hears of the other's end before its own is acknowledged.
    let (client, server) = net.pair(listener);
    net.client.shutdown(client, Shutdown::Send, net.now).unwrap();
    net.server.shutdown(server, Shutdown::Send, net.now).unwrap();
    net.client.poll(net.now);
    net.server.poll(net.now);
    assert_eq!([net.client.unacknowledged(client), net.server.unacknowledged(server)], [Ok(1), Ok(1)]);
    net.settle();
    assert_eq!([net.client.unacknowledged(client), net.server.unacknowledged(server)], [Ok(0), Ok(0)]);
}

/// An acknowledgement is not acknowledged, so nothing is due after it.
#[test]
fn an_acknowledgement_leaves_no_timer() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    net.pass(5 * SECOND);
    send(&mut net.client, client, b"!", net.now).unwrap();
    net.client.poll(net.now);
    // It waits a moment for data to travel with.
    net.now = net.server.poll(net.now).unwrap();
    assert!(net.to_client.borrow().is_empty());
    // Only the rest of the buffer, and the question whether the neighbour is still there, which has asked for this host
    // and told nothing since.
    let rest = net.server.poll(net.now).unwrap();
    assert_eq!(rest, net.now - 10 * MILLISECOND + SECOND);
    assert_eq!(net.to_client.borrow().len(), 1);
    let acknowledged = net.now;
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(1)));
    assert_eq!(net.server.poll(rest), Some(acknowledged + 5 * SECOND));
}

/// A connection that was closed delivers until the other side has all of it, and its end.
#[test]
fn a_closed_connection_delivers_until_all_has_arrived() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    assert_eq!(send(&mut net.client, client, &[7; 8000], net.now), Ok(Sent::Bytes(8000)));
    assert!(!net.client.is_delivering(), "its holder may wait for that");
    net.client.close(client, net.now).unwrap();
    assert!(net.client.is_delivering());
    let mut got = Vec::new();
    net.run_until(SECOND, |net| receive(&mut net.server, server, &mut got, net.now) == Ok(Received::End));
    net.pass(SECOND);
    assert!(got == [7; 8000] && !net.client.is_delivering());
}

#[test]
fn frames_and_connections_are_counted() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    for made in 1..4 {
        net.pair(listener);
        let counts = [net.client.counters(), net.server.counters()].map(|counters| counters.connections_made);
        assert_eq!(counts, [made; 2]);
    }
    let before = net.server.counters().frames_received;
    // Frames of no known kind are frames, too.
    net.to_server.borrow_mut().extend([vec![], vec![0; 60], vec![0xff; 1514]]);
    net.server.poll(net.now);
    assert_eq!(net.server.counters().frames_received, before + 3);
}

#[test]
fn nothing_is_sent_before_the_handshake_has_ended() {
    let mut net = Net::new(Faults::default(), 1);
    let to = SocketAddr::new(SERVER.into(), 80);
    let client = net.client.tcp_connect(None, to, &TcpOptions::default(), net.now).unwrap();
    assert_eq!(send(&mut net.client, client, b"early", net.now), Err(Error::NotConnected));
    for how in [Shutdown::Receive, Shutdown::Send, Shutdown::Both] {
        assert_eq!(net.client.shutdown(client, how, net.now), Err(Error::NotConnected));
    }
    assert_eq!(receive(&mut net.client, client, &mut Vec::new(), net.now), Err(Error::NotConnected));
    net.settle();
    assert_eq!(send(&mut net.client, client, b"late", net.now), Err(Error::Refused));
    assert_eq!(send(&mut net.client, client, b"late", net.now), Err(Error::Closed));
}

#[test]
fn a_connection_is_ready_for_what_would_not_wait() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    let idle = Readiness { send: true, ..Readiness::default() };
    assert_eq!(net.server.readiness(server), Ok(idle));
    send(&mut net.client, client, b"!", net.now).unwrap();
    net.settle();
    assert_eq!(net.server.readiness(server), Ok(Readiness { receive: true, ..idle }));
    receive(&mut net.server, server, &mut Vec::new(), net.now).unwrap();
    assert_eq!(net.server.readiness(server), Ok(idle));
    net.server.shutdown(server, Shutdown::Receive, net.now).unwrap();
    assert_eq!(net.server.readiness(server), Ok(Readiness { receive: true, receive_end: true, ..idle }));
    assert_eq!(receive(&mut net.server, server, &mut Vec::new(), net.now), Ok(Received::End));
}

#[test]
fn a_task_registers_for_input_unless_there_is_some() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    let (bell, waker) = Bell::new();
    let reader = network::Reader { owner: 3, level: 1 };
    assert!(!net.server.is_read(server));
    assert_eq!(net.server.register_for_input(server, &waker, reader), Ok(true));
    assert!(net.server.is_read(server));
    send(&mut net.client, client, b"!", net.now).unwrap();
    net.settle();
    assert_eq!(bell.rings(), 1);
    assert_eq!(net.server.register_for_input(server, &waker, reader), Ok(false));
    assert!(!net.server.is_read(server));
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let socket = net.server.udp_bind(any, &DatagramOptions::default()).unwrap();
    assert!(!net.server.are_datagrams_read(socket));
    net.server.udp_register(socket, Interest::Receive, &waker).unwrap();
    assert!(net.server.are_datagrams_read(socket));
    net.server.udp_forget(socket, Interest::Receive, &waker);
    assert!(!net.server.are_datagrams_read(socket));
}

#[test]
fn a_task_is_woken_for_what_it_waits_for_alone() {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 10);
    let (client, server) = net.pair(listener);
    let ((receives, receiver), (sends, sender)) = (Bell::new(), Bell::new());
    net.server.register(server, Interest::Receive, &receiver).unwrap();
    // An acknowledgement is nothing to receive.
    send(&mut net.server, server, b"?", net.now).unwrap();
    net.pass(SECOND);
    assert_eq!((net.server.unacknowledged(server), receives.rings()), (Ok(0), 0));
    // And bytes make no room.
    net.server.register(server, Interest::Send, &sender).unwrap();
    send(&mut net.client, client, b"!", net.now).unwrap();
    net.pass(SECOND);
    assert_eq!((receives.rings(), sends.rings()), (1, 0));
}

#[test]
fn a_writer_is_woken_when_a_fifth_of_its_buffer_is_free() {
    for (room, has_room) in [(1024, false), (1638, false), (1639, true), (4096, true)] {
        let mut net = Net::new(Faults::default(), 1);
        let listener = net.listen(80, 10);
        let options = TcpOptions { receive_buffer: room, ..TcpOptions::default() };
        net.server.set_listener_options(listener, &options).unwrap();
        let (client, _server) = net.pair(listener);
        assert_eq!(send(&mut net.client, client, &[7; 8192], net.now), Ok(Sent::Bytes(8192)));
        let (bell, waker) = Bell::new();
        net.client.register(client, Interest::Send, &waker).unwrap();
        net.pass(500 * MILLISECOND);
        assert_eq!(net.client.unacknowledged(client), Ok(8192 - room));
        assert_eq!((bell.rings(), net.client.readiness(client).unwrap().send), (usize::from(has_room), has_room));
    }
}

/// Both ends request the connection at once; the other side's request arrives, and then nothing more.
#[test]
fn two_requests_that_cross_have_the_limit_of_a_handshake() {
    let mut net = impatient();
    let listener = net.listen(80, 3);
    net.pair(listener);
    let ends = [SocketAddr::new(CLIENT.into(), 5000), SocketAddr::new(SERVER.into(), 6000)];
    let options = TcpOptions::default();
    let from = net.client.tcp_bind(ends[0], Sharing::Exclusive).unwrap();
    let client = net.client.tcp_connect(Some(from), ends[1], &options, net.now).unwrap();
    let from = net.server.tcp_bind(ends[1], Sharing::Exclusive).unwrap();
    net.server.tcp_connect(Some(from), ends[0], &options, net.now).unwrap();
    net.client.poll(net.now);
    net.to_server.borrow_mut().clear();
    net.server.poll(net.now);
    net.client.poll(net.now);
    net.to_server.borrow_mut().clear();
    assert_eq!(net.client.connected(client), Ok(false));
    let failed = |net: &mut Net| net.client.readiness(client).unwrap().failed;
    assert_eq!(net.in_silence(100 * SECOND, failed), Some(7 * SECOND));
    assert_eq!(net.client.connected(client), Err(Error::TimedOut));
}

/// A flush and a poll each send some of the segments and of the datagrams that wait, so that others have their turn.
#[test]
fn one_step_sends_some_of_much_that_waits() {
    const MANY: usize = 60;
    type Step = fn(&mut Net) -> Option<u64>;
    let steps: [Step; 2] = [|net| net.server.flush(net.now), |net| net.server.poll(net.now)];
    for step in steps {
        let mut net = Net::new(Faults::default(), 1);
        let listener = net.listen(80, 10);
        let pairs: Vec<_> = (0..MANY).map(|_| net.pair(listener)).collect();
        for (_, server) in &pairs {
            send(&mut net.server, *server, b"!", net.now).unwrap();
        }
        assert_eq!(step(&mut net), Some(net.now));
        let sent = net.to_client.borrow().len();
        assert!((32..=40).contains(&sent), "{sent} segments");
        net.settle();
        for (client, _) in &pairs {
            assert_eq!(net.client.receivable(*client), Ok(1));
        }
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let options = DatagramOptions { datagrams: 100, ..DatagramOptions::default() };
        let receiver = net.client.udp_bind(any, &options).unwrap();
        let to = SocketAddr::new(CLIENT.into(), net.client.udp_local_endpoint(receiver).unwrap().port());
        for _ in 0..MANY {
            let sender = net.server.udp_bind(any, &options).unwrap();
            net.server.udp_send_with(sender, Some(to), 1, |room| room.fill(7)).unwrap();
        }
        assert_eq!(step(&mut net), Some(net.now));
        let sent = net.to_client.borrow().len();
        assert!((32..=40).contains(&sent), "{sent} datagrams");
        net.settle();
        let received = (0..100).take_while(|_| net.client.udp_receive_with(receiver, |_, _| ()) == Ok(Some(())));
        assert_eq!(received.count(), MANY);
    }
}

#[test]
fn a_datagram_longer_than_its_buffer_is_refused() {
    let mut net = Net::new(Faults::default(), 1);
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let to = Some(SocketAddr::new(SERVER.into(), 53));
    let small = DatagramOptions { send_buffer: 300, ..DatagramOptions::default() };
    for (options, longest) in [(small, 300), (DatagramOptions::default(), 1500 - 28)] {
        let client = net.client.udp_bind(any, &options).unwrap();
        assert_eq!(net.client.udp_send_with(client, to, longest + 1, |_| ()), Err(Error::TooLong));
        assert_eq!(net.client.udp_send_with(client, to, longest, |_| ()), Ok(Sent::Bytes(longest)));
    }
}

/// A program that closes a connection can wait for the other side's acknowledgement of everything, and is woken by it,
/// by a reset, and by the end of all patience.
#[test]
fn the_delivery_of_a_closed_connection_can_be_waited_for() {
    for (case, is_woken) in [("read", true), ("silent", false), ("reset", true)] {
        let mut net = Net::new(Faults::default(), 1);
        let listener = net.listen(80, 5);
        let (client, server) = net.pair(listener);
        let (bell, waker) = Bell::new();
        send(&mut net.client, client, b"the last words", net.now).unwrap();
        assert_eq!(net.client.register_for_delivery(client, &waker), Ok(false), "it is open");
        if case == "silent" {
            net.server.link().faults.lost = 100;
        }
        net.client.close(client, net.now).unwrap();
        assert_eq!(net.client.register_for_delivery(client, &waker), Ok(true));
        if case == "reset" {
            net.server.abort(server, net.now).unwrap();
        }
        net.pass(SECOND);
        assert_eq!(bell.rings() > 0, is_woken, "{case}");
        assert_eq!(net.client.register_for_delivery(client, &waker), Ok(!is_woken), "{case}");
        if case == "silent" {
            net.pass(1000 * SECOND);
            assert!(bell.rings() > 0);
            assert_eq!(net.client.register_for_delivery(client, &waker), Ok(false));
        }
    }
    // Within the host everything is delivered at once.
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, 5);
    let here = SocketAddr::new(SERVER.into(), 80);
    let client = net.server.tcp_connect(None, here, &TcpOptions::default(), net.now).unwrap();
    net.server.accept(listener).unwrap().unwrap();
    net.server.close(client, net.now).unwrap();
    let (_, waker) = Bell::new();
    assert_eq!(net.server.register_for_delivery(client, &waker), Ok(false));
}
