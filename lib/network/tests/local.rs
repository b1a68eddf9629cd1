//! Connections whose two ends are on one host.

mod wire;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ethernet::NoLink;
use network::{
    Configuration, ConnectionId, ConnectionMemory, DatagramOptions, Error, Interest, Limits, ListenerId,
    LocalConnections, LocalEnd, Readiness, Received, Sent, Sharing, Shutdown, Stack, TcpOptions,
};
use proptest::prelude::*;
use wire::{Bell, SECOND, receive, send};

const NOW: u64 = SECOND;

fn local(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

fn host(limits: Limits) -> Stack<NoLink> {
    let configuration = Configuration { seeds: network::Seeds::default(), limits, ..Configuration::default() };
    Stack::new(NoLink, &configuration, NOW).unwrap()
}

fn options(size: usize) -> TcpOptions {
    TcpOptions { receive_buffer: size, send_buffer: size, ..TcpOptions::default() }
}

fn listen(stack: &mut Stack<NoLink>, port: u16, backlog: usize) -> ListenerId {
    let binding = stack.tcp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), Sharing::Exclusive).unwrap();
    stack.tcp_listen(binding, backlog, &options(2048)).unwrap()
}

fn connect(stack: &mut Stack<NoLink>, port: u16) -> ConnectionId {
    stack.tcp_connect(None, local(port), &options(2048), NOW).unwrap()
}

fn pair(stack: &mut Stack<NoLink>) -> (ConnectionId, ConnectionId) {
    let listener = listen(stack, 80, 1);
    let client = connect(stack, 80);
    let (server, remote) = stack.accept(listener).unwrap().unwrap();
    assert_eq!(stack.connected(client), Ok(true));
    assert_eq!(Ok(remote), stack.local_endpoint(client));
    assert_eq!(stack.remote_endpoint(client), Ok(local(80)));
    stack.close_listener(listener, NOW).unwrap();
    (client, server)
}

#[test]
fn nothing_is_left_to_be_polled() {
    let mut stack = host(Limits::default());
    let (client, server) = pair(&mut stack);
    let (bell, waker) = Bell::new();
    let mut got = Vec::new();
    assert_eq!(receive(&mut stack, server, &mut got, NOW), Ok(Received::Nothing));
    stack.register(server, Interest::Receive, &waker).unwrap();
    assert_eq!(send(&mut stack, client, b"hello", NOW), Ok(Sent::Bytes(5)));
    assert_eq!(bell.rings(), 1);
    // Only the memory for the bytes, which has a rest when they are read.
    assert_eq!(stack.flush(NOW), Some(NOW + SECOND));
    assert_eq!(stack.poll(NOW), Some(NOW + SECOND));
    assert_eq!(stack.unacknowledged(client), Ok(0));
    assert_eq!(stack.receivable(server), Ok(5));
    let mut seen = Vec::new();
    let look = |bytes: &[u8]| {
        seen.extend_from_slice(bytes);
        true
    };
    assert_eq!(stack.tcp_peek_with(server, 0, 3, look), Ok(()));
    assert_eq!(seen, b"hel");
    assert_eq!(receive(&mut stack, server, &mut got, NOW), Ok(Received::Bytes(5)));
    assert_eq!(got, b"hello");
    assert_eq!(stack.poll(NOW + SECOND), None);
    assert_eq!(stack.connection_memory(server), Ok(ConnectionMemory::of_this_build().local));
}

#[test]
fn connecting_without_a_listener_is_refused() {
    let mut stack = host(Limits::default());
    let client = connect(&mut stack, 80);
    assert!(stack.readiness(client).unwrap().failed);
    assert_eq!(stack.connected(client), Err(Error::Refused));
    assert_eq!(stack.connected(client), Err(Error::NotConnected));
    assert_eq!(send(&mut stack, client, b"x", NOW), Err(Error::Closed));
    stack.close(client, NOW).unwrap();
    assert_eq!(stack.connection_counts(), (0, 0));
}

#[test]
fn a_connection_without_room_waits_for_it() {
    let mut stack = host(Limits::default());
    let listener = listen(&mut stack, 80, 2);
    let clients: Vec<_> = (0..5).map(|_| connect(&mut stack, 80)).collect();
    let (bell, waker) = Bell::new();
    stack.register(clients[2], Interest::Send, &waker).unwrap();
    assert_eq!(stack.connected(clients[1]), Ok(true));
    assert_eq!(stack.connected(clients[2]), Ok(false));
    assert_eq!(send(&mut stack, clients[2], b"x", NOW), Err(Error::NotConnected));
    assert_eq!(receive(&mut stack, clients[2], &mut Vec::new(), NOW), Err(Error::NotConnected));
    // One gives up, and one gets its turn with each that is accepted.
    stack.close(clients[3], NOW).unwrap();
    for client in [0, 1, 2, 4] {
        let (_, remote) = stack.accept(listener).unwrap().unwrap();
        assert_eq!(Ok(remote), stack.local_endpoint(clients[client]));
    }
    assert_eq!(stack.accept(listener), Ok(None));
    assert_eq!(bell.rings(), 1);
    assert_eq!(stack.connected(clients[4]), Ok(true));
}

#[test]
fn without_memory_connections_wait_and_senders_are_held_back() {
    static MEMORY: AtomicBool = AtomicBool::new(false);
    let mut stack = host(Limits::default());
    stack.set_admission(|_| MEMORY.load(Ordering::Relaxed));
    let listener = listen(&mut stack, 80, 4);
    let client = connect(&mut stack, 80);
    assert_eq!(stack.connected(client), Ok(false));
    assert_eq!(stack.accept(listener), Ok(None));
    // Tried again by itself, and not too often.
    let (bell, waker) = Bell::new();
    stack.register(client, Interest::Send, &waker).unwrap();
    let mut now = NOW;
    for _ in 0..10 {
        let next = stack.poll(now).expect("a connection waits");
        assert!(next > now && next <= now + SECOND);
        now = next;
    }
    assert_eq!((stack.connected(client), bell.rings()), (Ok(false), 0));
    MEMORY.store(true, Ordering::Relaxed);
    stack.poll(now);
    assert_eq!((stack.connected(client), bell.rings()), (Ok(true), 1));
    let (server, _) = stack.accept(listener).unwrap().expect("it was let in");

    let before = stack.connection_memory(server).unwrap();
    MEMORY.store(false, Ordering::Relaxed);
    // The first bytes have memory in any case.
    assert_eq!(send(&mut stack, client, b"first", now), Ok(Sent::Bytes(5)));
    let after = stack.connection_memory(server).unwrap();
    assert!(after > before && after < before + 2048, "{before} bytes before, {after} after");
    // The memory that is left is used, and then the sender waits for it to be received.
    let Ok(Sent::Bytes(more)) = send(&mut stack, client, &[7; 4000], now) else { panic!("there was room") };
    assert!(more < 4000);
    assert_eq!(send(&mut stack, client, b"more", now), Ok(Sent::Full));
    stack.register(client, Interest::Send, &waker).unwrap();
    let mut got = Vec::new();
    assert_eq!(receive(&mut stack, server, &mut got, now), Ok(Received::Bytes(5 + more)));
    assert_eq!(bell.rings(), 2);
    assert_eq!(send(&mut stack, client, b"more", now), Ok(Sent::Bytes(4)));
    assert_eq!(stack.connection_memory(server), Ok(after));
}

#[test]
fn memory_that_was_short_for_a_moment_delays_a_connection_for_a_moment() {
    static REFUSALS: AtomicUsize = AtomicUsize::new(0);
    let mut stack = host(Limits::default());
    let admits = |_| REFUSALS.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err();
    stack.set_admission(admits);
    listen(&mut stack, 80, 4);
    for refusals in 1..5 {
        REFUSALS.store(refusals, Ordering::Relaxed);
        let client = connect(&mut stack, 80);
        let mut now = NOW;
        while stack.connected(client) == Ok(false) {
            let Some(next) = stack.poll(now) else { break };
            assert!(next > now && next <= now + SECOND);
            now = next;
        }
        assert_eq!(stack.connected(client), Ok(true));
        stack.close(client, now).unwrap();
    }
}

#[test]
fn a_connection_that_waits_for_room_comes_in_after_memory_was_short() {
    static REFUSALS: AtomicUsize = AtomicUsize::new(0);
    let mut stack = host(Limits::default());
    let admits = |_| REFUSALS.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err();
    stack.set_admission(admits);
    let listener = listen(&mut stack, 80, 1);
    let first = connect(&mut stack, 80);
    let second = connect(&mut stack, 80);
    assert_eq!(stack.connected(second), Ok(false));
    REFUSALS.store(1, Ordering::Relaxed);
    assert!(stack.accept(listener).unwrap().is_some());
    let mut now = NOW;
    while stack.connected(second) == Ok(false) {
        let Some(next) = stack.poll(now) else { break };
        assert!(next < NOW + 3 * SECOND);
        now = next;
    }
    assert_eq!(stack.connected(second), Ok(true));
    stack.close(first, now).unwrap();
}

#[test]
fn a_connection_that_was_refused_does_not_come_in_later() {
    let mut stack = host(Limits::default());
    let listener = listen(&mut stack, 80, 1);
    let first = connect(&mut stack, 80);
    let late = connect(&mut stack, 80);
    let mut now = NOW;
    while let Some(next) = stack.poll(now) {
        now = next;
    }
    let last = connect(&mut stack, 80);
    for client in [first, last] {
        let (_, remote) = stack.accept(listener).unwrap().expect("it is next");
        assert_eq!(Ok(remote), stack.local_endpoint(client));
    }
    assert_eq!(stack.accept(listener), Ok(None));
    assert_eq!(stack.connected(late), Err(Error::TimedOut));
    assert_eq!(stack.connected(last), Ok(true));
}

#[test]
fn waiting_for_room_ends() {
    let mut stack = host(Limits::default());
    let listener = listen(&mut stack, 80, 1);
    let first = connect(&mut stack, 80);
    let second = connect(&mut stack, 80);
    let mut now = NOW;
    while stack.connected(second) == Ok(false) {
        let Some(next) = stack.poll(now) else { break };
        assert!(next > now);
        now = next;
    }
    assert_eq!(stack.connected(second), Err(Error::TimedOut));
    assert!(now > NOW + 30 * SECOND);
    let third = connect(&mut stack, 80);
    stack.close_listener(listener, NOW).unwrap();
    assert_eq!(stack.connected(third), Err(Error::Refused));
    assert_eq!(stack.connected(first), Err(Error::Reset));
    for client in [first, second, third] {
        stack.close(client, NOW).unwrap();
    }
    assert_eq!(stack.connection_counts(), (0, 0));
}

#[test]
fn each_direction_ends_by_itself() {
    let mut stack = host(Limits::default());
    let (client, server) = pair(&mut stack);
    send(&mut stack, client, b"question", NOW).unwrap();
    stack.shutdown(client, Shutdown::Send, NOW).unwrap();
    assert_eq!(send(&mut stack, client, b"more", NOW), Err(Error::Closed));
    let mut got = Vec::new();
    assert_eq!(receive(&mut stack, server, &mut got, NOW), Ok(Received::Bytes(8)));
    assert_eq!(receive(&mut stack, server, &mut got, NOW), Ok(Received::End));
    assert!(stack.readiness(server).unwrap().receive_end);
    assert!(!stack.readiness(server).unwrap().hang_up);
    send(&mut stack, server, b"answer", NOW).unwrap();
    stack.close(server, NOW).unwrap();
    assert!(stack.readiness(client).unwrap().hang_up);
    assert_eq!(receive(&mut stack, client, &mut got, NOW), Ok(Received::Bytes(6)));
    assert_eq!(receive(&mut stack, client, &mut got, NOW), Ok(Received::End));
    assert_eq!(got, b"questionanswer");
    stack.close(client, NOW).unwrap();
    assert_eq!(stack.connection_counts(), (0, 0));
}

#[test]
fn an_abort_is_a_reset_and_so_is_unread_data() {
    for abort in [true, false] {
        let mut stack = host(Limits::default());
        let (client, server) = pair(&mut stack);
        send(&mut stack, client, b"unread", NOW).unwrap();
        send(&mut stack, server, b"last words", NOW).unwrap();
        let (bell, waker) = Bell::new();
        stack.register(client, Interest::Receive, &waker).unwrap();
        if abort {
            stack.abort(server, NOW).unwrap();
        } else {
            stack.close(server, NOW).unwrap();
        }
        assert_eq!(bell.rings(), 1);
        assert_eq!(stack.connected(server), Err(Error::Stale));
        let mut got = Vec::new();
        assert_eq!(receive(&mut stack, client, &mut got, NOW), Ok(Received::Bytes(10)));
        assert_eq!(receive(&mut stack, client, &mut got, NOW), Err(Error::Reset));
        assert_eq!(receive(&mut stack, client, &mut got, NOW), Ok(Received::End));
        assert_eq!(send(&mut stack, client, b"x", NOW), Err(Error::Closed));
    }
}

#[test]
fn a_full_ring_wakes_its_writer() {
    let mut stack = host(Limits::default());
    let (client, server) = pair(&mut stack);
    let mut total = 0;
    while let Sent::Bytes(count) = send(&mut stack, client, &[7; 1000], NOW).unwrap() {
        total += count;
    }
    // The sender's buffer and the receiver's.
    assert_eq!(total, 4096);
    assert!(!stack.readiness(client).unwrap().send);
    let (bell, waker) = Bell::new();
    stack.register(client, Interest::Send, &waker).unwrap();
    stack.tcp_receive_with(server, |_| 100, NOW).unwrap();
    assert_eq!(bell.rings(), 0);
    stack.tcp_receive_with(server, |bytes| bytes.len(), NOW).unwrap();
    assert_eq!(bell.rings(), 1);
    assert!(stack.readiness(client).unwrap().send);
}

/// An end whose other end is gone has nothing to wait for.
#[test]
fn an_end_that_is_alone_is_ready_for_everything() {
    for (aborts, ends, failed) in [(false, false, false), (false, true, false), (true, false, true), (true, true, true)]
    {
        let mut stack = host(Limits::default());
        let (client, server) = pair(&mut stack);
        assert_eq!(stack.readiness(server), Ok(Readiness { send: true, ..Readiness::default() }));
        if ends {
            stack.shutdown(client, Shutdown::Send, NOW).unwrap();
            let ended = Readiness { receive: true, send: true, receive_end: true, ..Readiness::default() };
            assert_eq!(stack.readiness(server), Ok(ended));
        }
        if aborts {
            stack.abort(client, NOW).unwrap();
        } else {
            stack.close(client, NOW).unwrap();
        }
        let all = Readiness { receive: true, send: true, receive_end: true, hang_up: true, failed };
        assert_eq!(stack.readiness(server), Ok(all), "{aborts} {ends}");
    }
}

/// A ring has no memory at first, then twice as much whenever it is full, up to both buffers.
#[test]
fn a_ring_doubles_its_memory_up_to_its_limit() {
    let mut stack = host(Limits::default());
    let (client, server) = pair(&mut stack);
    let empty = stack.connection_memory(server).unwrap();
    for (bytes, memory) in [(1, 512), (510, 512), (2, 1024), (1000, 2048), (1000, 4096), (1582, 4096)] {
        assert_eq!(send(&mut stack, client, &vec![7; bytes], NOW), Ok(Sent::Bytes(bytes)));
        assert_eq!(stack.connection_memory(server), Ok(empty + memory), "after {bytes} more");
    }
    assert_eq!(send(&mut stack, client, &[7; 10], NOW), Ok(Sent::Bytes(1)));
    assert_eq!(send(&mut stack, client, &[7; 10], NOW), Ok(Sent::Full));
    assert_eq!(stack.connection_memory(server), Ok(empty + 4096));
}

#[test]
fn a_ring_that_grows_keeps_its_bytes_in_order() {
    let mut stack = host(Limits::default());
    let (client, server) = pair(&mut stack);
    let bytes: Vec<u8> = (0..3000u32).map(|number| (number / 7) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    // Its beginning is moved before it is filled again, and so its bytes lie around its end when it grows.
    for (more, taken) in [(500, 100), (300, 200), (1000, 700), (1200, 900)] {
        assert_eq!(send(&mut stack, client, &bytes[sent..sent + more], NOW), Ok(Sent::Bytes(more)));
        sent += more;
        let mut left = taken;
        let take = |part: &[u8]| {
            let count = part.len().min(left);
            left -= count;
            got.extend_from_slice(&part[..count]);
            count
        };
        assert_eq!(stack.tcp_receive_with(server, take, NOW), Ok(Received::Bytes(taken)));
    }
    while stack.receivable(server) != Ok(0) {
        receive(&mut stack, server, &mut got, NOW).unwrap();
    }
    assert!(got == bytes);
}

#[test]
fn an_end_without_another_cannot_be_shut_down() {
    let mut stack = host(Limits::default());
    listen(&mut stack, 80, 1);
    let (_joined, waiting, refused) = (connect(&mut stack, 80), connect(&mut stack, 80), connect(&mut stack, 81));
    let mut other = host(Limits::default());
    let (client, alone) = pair(&mut other);
    other.close(client, NOW).unwrap();
    for how in [Shutdown::Receive, Shutdown::Send, Shutdown::Both] {
        assert_eq!([waiting, refused].map(|id| stack.shutdown(id, how, NOW)), [Err(Error::NotConnected); 2]);
        assert_eq!(other.shutdown(alone, how, NOW), Err(Error::NotConnected));
    }
    assert_eq!((stack.connected(waiting), stack.connected(refused)), (Ok(false), Err(Error::Refused)));
}

#[test]
fn a_fifth_of_a_ring_is_room_enough() {
    let mut stack = host(Limits::default());
    let (client, server) = pair(&mut stack);
    while send(&mut stack, client, &[7; 1024], NOW).unwrap() != Sent::Full {}
    let (bell, waker) = Bell::new();
    stack.register(client, Interest::Send, &waker).unwrap();
    for (received, has_room) in [(819, false), (1, true)] {
        assert_eq!(stack.tcp_receive_with(server, |_| received, NOW), Ok(Received::Bytes(received)));
        assert_eq!((bell.rings(), stack.readiness(client).unwrap().send), (usize::from(has_room), has_room));
    }
}

#[test]
fn nothing_sent_wakes_no_reader() {
    let mut stack = host(Limits::default());
    let (client, server) = pair(&mut stack);
    let (bell, waker) = Bell::new();
    stack.register(server, Interest::Receive, &waker).unwrap();
    assert_eq!(stack.tcp_send_with(client, |_| 0, NOW), Ok(Sent::Bytes(0)));
    assert_eq!(bell.rings(), 0);
    assert_eq!(stack.tcp_send_with(client, |_| 1, NOW), Ok(Sent::Bytes(1)));
    assert_eq!(bell.rings(), 1);
}

/// Bytes that are left unread are no failure for an end that has said all and heard all.
#[test]
fn unread_bytes_reset_a_connection_that_has_not_ended_both_ways() {
    for (client_ends, server_ends) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut stack = host(Limits::default());
        let (client, server) = pair(&mut stack);
        send(&mut stack, client, b"unread", NOW).unwrap();
        for (id, ends) in [(client, client_ends), (server, server_ends)] {
            if ends {
                stack.shutdown(id, Shutdown::Send, NOW).unwrap();
            }
        }
        stack.close(server, NOW).unwrap();
        let failure = if client_ends && server_ends { None } else { Some(Error::Reset) };
        assert_eq!(stack.take_failure(client), Ok(failure), "{client_ends} {server_ends}");
    }
}

/// Room is told of, and looked for once in a second nevertheless; memory is not, and looked for more often.
#[test]
fn a_connection_waits_longer_for_room_than_for_memory() {
    static MEMORY: AtomicBool = AtomicBool::new(true);
    let mut stack = host(Limits::default());
    stack.set_admission(|_| MEMORY.load(Ordering::Relaxed));
    listen(&mut stack, 80, 1);
    listen(&mut stack, 81, 1);
    connect(&mut stack, 80);
    assert_eq!(stack.poll(NOW), None);
    let waits = connect(&mut stack, 80);
    assert_eq!((stack.connected(waits), stack.poll(NOW)), (Ok(false), Some(NOW + SECOND)));
    assert_eq!(stack.counters().requests_dropped, 0);
    MEMORY.store(false, Ordering::Relaxed);
    let waits = connect(&mut stack, 81);
    assert_eq!((stack.connected(waits), stack.poll(NOW)), (Ok(false), Some(NOW + SECOND / 10)));
    assert_eq!(stack.counters().requests_dropped, 1);
}

#[test]
fn the_longest_datagram_within_the_host_fills_a_packet() {
    let mut stack = host(Limits::default());
    let options = DatagramOptions { receive_buffer: 70_000, ..DatagramOptions::default() };
    let receiver = stack.udp_bind(local(53), &options).unwrap();
    let sender = stack.udp_bind(local(0), &options).unwrap();
    for (length, outcome) in [(65_507, Ok(Sent::Bytes(65_507))), (65_508, Err(Error::TooLong))] {
        assert_eq!(stack.udp_send_with(sender, Some(local(53)), length, |_| ()), outcome);
    }
    assert_eq!(stack.udp_receive_with(receiver, |_, bytes| bytes.len()), Ok(Some(65_507)));
    assert_eq!(stack.udp_receive_with(receiver, |_, bytes| bytes.len()), Ok(None));
}

/// Many coroutines, each in a loop of `accept`: with nothing to accept they come to rest.
#[test]
fn hundreds_wait_for_one_listener_and_come_to_rest() {
    const WAITERS: usize = 500;
    const ROUNDS: usize = 20;
    let mut stack = host(Limits::default());
    let listener = listen(&mut stack, 80, 1);
    let bells: Vec<_> = (0..WAITERS).map(|_| Bell::new()).collect();
    let mut seen = [0; WAITERS];
    let mut ready: VecDeque<usize> = (0..WAITERS).collect();
    let mut accepted = Vec::new();
    for _ in 0..ROUNDS {
        let mut polls = 0;
        while let Some(waiter) = ready.pop_front() {
            polls += 1;
            assert!(polls <= WAITERS + 1, "the waiters wake each other");
            match stack.accept(listener).unwrap() {
                Some(_) => {
                    accepted.push(waiter);
                    ready.push_back(waiter);
                }
                None => stack.register_accept(listener, &bells[waiter].1).unwrap(),
            }
            let rung = bells.iter().zip(&mut seen).enumerate();
            ready.extend(rung.filter_map(|(waiter, ((bell, _), seen))| {
                let before = core::mem::replace(seen, bell.rings());
                (*seen > before).then_some(waiter)
            }));
        }
        let client = connect(&mut stack, 80);
        assert_eq!(stack.connected(client), Ok(true));
        ready.extend(0..WAITERS);
        for (waiter, (bell, _)) in bells.iter().enumerate() {
            assert_eq!(bell.rings(), seen[waiter] + 1);
            seen[waiter] += 1;
        }
    }
    assert_eq!(accepted.len(), ROUNDS - 1);
}

#[test]
fn a_client_that_gives_up_waiting_leaves_nothing_behind() {
    let mut stack = host(Limits::default());
    let listener = listen(&mut stack, 80, 1);
    let (bell, waker) = Bell::new();
    let (stays, other) = Bell::new();
    for waker in [&other, &waker] {
        stack.register_accept(listener, waker).unwrap();
    }
    stack.forget_accept(listener, &waker);
    let client = connect(&mut stack, 80);
    let (server, _) = stack.accept(listener).unwrap().unwrap();
    while let Sent::Bytes(_) = send(&mut stack, client, &[7; 1000], NOW).unwrap() {}
    for waker in [&other, &waker] {
        stack.register(client, Interest::Send, waker).unwrap();
        stack.register(client, Interest::Receive, waker).unwrap();
    }
    stack.forget(client, Interest::Send, &waker);
    stack.forget(client, Interest::Receive, &waker);
    send(&mut stack, server, b"x", NOW).unwrap();
    stack.tcp_receive_with(server, |bytes| bytes.len(), NOW).unwrap();
    let datagrams = stack.udp_bind(local(53), &DatagramOptions::default()).unwrap();
    for waker in [&waker, &other] {
        stack.udp_register(datagrams, Interest::Receive, waker).unwrap();
    }
    stack.udp_forget(datagrams, Interest::Receive, &waker);
    stack.udp_send_with(datagrams, Some(local(53)), 1, |_| ()).unwrap();
    stack.close(client, NOW).unwrap();
    stack.close(server, NOW).unwrap();
    stack.close_listener(listener, NOW).unwrap();
    stack.udp_close(datagrams).unwrap();
    assert_eq!((bell.rings(), stays.rings()), (0, 4));
    assert_eq!(Arc::strong_count(&bell), 2);
    // A closed connection has no registration to forget.
    stack.forget(client, Interest::Send, &waker);
    stack.forget_accept(listener, &waker);
    stack.udp_forget(datagrams, Interest::Send, &waker);
}

#[test]
fn datagrams_stay_on_the_host() {
    let mut stack = host(Limits::default());
    let small = DatagramOptions { receive_buffer: 300, send_buffer: 300, datagrams: 4, ..DatagramOptions::default() };
    let server = stack.udp_bind(local(53), &small).unwrap();
    assert_eq!(stack.udp_bind(local(53), &small), Err(Error::AddressInUse));
    let client = stack.udp_bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), &small).unwrap();
    let from = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), stack.udp_local_endpoint(client).unwrap().port());
    let (bell, waker) = Bell::new();
    stack.udp_register(server, Interest::Receive, &waker).unwrap();
    let sent = stack.udp_send_with(client, Some(local(53)), 4, |room| room.copy_from_slice(b"ping"));
    assert_eq!(sent, Ok(Sent::Bytes(4)));
    assert_eq!(bell.rings(), 1);
    assert!(stack.udp_readiness(server).unwrap().receive);
    assert_eq!(stack.udp_peek_with(server, |_, bytes| bytes.len()), Ok(Some(4)));
    let got = stack.udp_receive_with(server, |from, bytes| (from, bytes.to_vec()));
    assert_eq!(got, Ok(Some((from, b"ping".to_vec()))));
    assert_eq!(stack.udp_receive_with(server, |_, _| ()), Ok(None));
    // An empty datagram counts too.
    stack.udp_send_with(client, Some(local(53)), 0, |_| ()).unwrap();
    assert_eq!(stack.udp_receive_with(server, |_, bytes| bytes.len()), Ok(Some(0)));
    // Datagrams that do not fit are dropped.
    for _ in 0..10 {
        stack.udp_send_with(client, Some(local(53)), 100, |room| room.fill(1)).unwrap();
    }
    assert!(stack.counters().datagrams_dropped >= 7);
    while stack.udp_receive_with(server, |_, _| ()).unwrap().is_some() {}
    // A connected socket receives from its peer only, and is told of a port without a socket.
    stack.udp_connect(client, Some(local(53))).unwrap();
    let other = stack.udp_bind(local(0), &small).unwrap();
    stack.udp_send_with(other, Some(from), 5, |room| room.fill(2)).unwrap();
    assert_eq!(stack.udp_receive_with(client, |_, _| ()), Ok(None));
    stack.udp_send_with(server, Some(from), 5, |room| room.fill(2)).unwrap();
    assert_eq!(stack.udp_receive_with(client, |from, _| from), Ok(Some(local(53))));
    stack.udp_close(server).unwrap();
    stack.udp_send_with(client, None, 1, |_| ()).unwrap();
    let failed = Readiness { receive: true, send: true, failed: true, ..Readiness::default() };
    assert_eq!(stack.udp_readiness(client), Ok(failed));
    // A peek reports the error too, once.
    assert_eq!(stack.udp_peek_with(client, |_, _| ()), Err(Error::Refused));
    assert_eq!(stack.udp_peek_with(client, |_, _| ()), Ok(None));
    stack.udp_send_with(client, None, 1, |_| ()).unwrap();
    assert_eq!(stack.udp_receive_with(client, |_, _| ()), Err(Error::Refused));
    assert_eq!(stack.udp_receive_with(client, |_, _| ()), Ok(None));
    stack.udp_connect(client, None).unwrap();
    assert_eq!(stack.udp_send_with(client, None, 1, |_| ()), Err(Error::NotConnected));
    assert_eq!(
        stack.udp_send_with(client, Some(SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 1)), 1, |_| ()),
        Err(Error::Unreachable)
    );
}

#[test]
fn limits_hold_and_nothing_leaks() {
    let limits = Limits { connections: 11, backlog: 100, ..Limits::default() };
    let mut stack = host(limits);
    let listener = listen(&mut stack, 80, 100);
    for _ in 0..3 {
        let clients: Vec<_> = (0..11).map(|_| stack.tcp_connect(None, local(80), &options(1024), NOW)).collect();
        // Five pairs and one that waits for the limit to allow its other end.
        assert_eq!(clients.iter().filter(|client| client.is_ok()).count(), 6);
        assert_eq!(clients[10], Err(Error::Limit));
        for client in clients.into_iter().flatten() {
            stack.close(client, NOW).unwrap();
        }
        while let Some((server, _)) = stack.accept(listener).unwrap() {
            assert_eq!(receive(&mut stack, server, &mut Vec::new(), NOW), Ok(Received::End));
            stack.close(server, NOW).unwrap();
        }
        assert_eq!(stack.connection_counts(), (0, 0));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(bool, usize),
    Receive(bool, usize),
    Shut(bool),
}

fn step() -> impl Strategy<Value = Step> {
    // Beside a segment's payload and the buffers' size.
    let count = || property::edges(0..5000usize, &[1460, 2048, 4096]);
    prop_oneof![
        8 => (any::<bool>(), count()).prop_map(|(end, count)| Step::Send(end, count)),
        8 => (any::<bool>(), count()).prop_map(|(end, count)| Step::Receive(end, count)),
        1 => any::<bool>().prop_map(Step::Shut),
    ]
}

proptest! {
    #![proptest_config(property::cases(256))]

    /// Two queues of bytes are all that is visible.
    #[test]
    fn a_pair_is_two_queues(steps in prop::collection::vec(step(), 1..100)) {
        let mut stack = host(Limits::default());
        let (client, server) = pair(&mut stack);
        let ends = [client, server];
        let mut sent = [0u32; 2];
        let mut received = [0u32; 2];
        let mut shut = [false; 2];
        for step in steps {
            match step {
                Step::Send(end, count) => {
                    let end = usize::from(end);
                    let data: Vec<u8> = (0..count as u32).map(|offset| (((sent[end] + offset) * 31) >> 3) as u8).collect();
                    let mut total = 0;
                    let outcome = loop {
                        let outcome = send(&mut stack, ends[end], &data[total..], NOW);
                        match outcome {
                            Ok(Sent::Bytes(count)) if count > 0 => total += count,
                            other => break other,
                        }
                    };
                    sent[end] += total as u32;
                    if shut[end] {
                        prop_assert_eq!(outcome, Err(Error::Closed));
                    } else {
                        let waiting = (sent[end] - received[1 - end]) as usize;
                        prop_assert!(waiting <= 4096);
                        prop_assert_eq!(waiting == 4096 && total < count, outcome == Ok(Sent::Full) && total < count);
                        prop_assert!(total == count || waiting == 4096);
                    }
                }
                Step::Receive(end, count) => {
                    let end = usize::from(end);
                    let mut left = count;
                    let first = received[end];
                    let mut position = first;
                    let mut right = true;
                    let outcome = stack.tcp_receive_with(ends[end], |bytes| {
                        let taken = bytes.len().min(left);
                        left -= taken;
                        for byte in &bytes[..taken] {
                            right &= *byte == ((position * 31) >> 3) as u8;
                            position += 1;
                        }
                        taken
                    }, NOW);
                    prop_assert!(right);
                    let available = (sent[1 - end] - first) as usize;
                    received[end] = position;
                    let expected = if available > 0 {
                        Received::Bytes(available.min(count))
                    } else if shut[1 - end] {
                        Received::End
                    } else {
                        Received::Nothing
                    };
                    prop_assert_eq!(outcome, Ok(expected));
                    prop_assert_eq!(stack.receivable(ends[end]), Ok(available - available.min(count)));
                }
                Step::Shut(end) => {
                    let end = usize::from(end);
                    stack.shutdown(ends[end], Shutdown::Send, NOW).unwrap();
                    shut[end] = true;
                }
            }
        }
    }
}

/// IPv6 within the host is joined in either case: the loopback interface has none.
#[test]
fn ends_over_ipv6_are_joined() {
    for local_connections in [LocalConnections::Joined, LocalConnections::Packets] {
        let configuration = Configuration { local_connections, ..Configuration::default() };
        let mut stack = Stack::new(NoLink, &configuration, 0).unwrap();
        let here = |port| SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port);
        let options = TcpOptions::default();
        let binding = stack.tcp_bind(LocalEnd::of_both(80), Sharing::Exclusive).unwrap();
        assert_eq!(stack.binding_endpoint(binding), Ok("[::]:80".parse().unwrap()));
        let listener = stack.tcp_listen(binding, 4, &options).unwrap();
        let taken = stack.tcp_bind(local(80), Sharing::Exclusive);
        assert_eq!(taken.err(), Some(Error::AddressInUse), "it is for both families");
        let client = stack.tcp_connect(None, here(80), &options, 0).unwrap();
        let (server, from) = stack.accept(listener).unwrap().unwrap();
        assert_eq!((stack.local_endpoint(client), stack.remote_endpoint(client)), (Ok(from), Ok(here(80))));
        assert_eq!((stack.local_endpoint(server), from.ip()), (Ok(here(80)), here(80).ip()));
        assert_eq!(send(&mut stack, client, b"question", 0), Ok(Sent::Bytes(8)));
        let mut got = Vec::new();
        assert_eq!(receive(&mut stack, server, &mut got, 0), Ok(Received::Bytes(8)));
        // A listener that is closed is found over neither family, and its port is free.
        stack.close_listener(listener, 0).unwrap();
        for to in [here(80), local(80)] {
            let refused = stack.tcp_connect(None, to, &options, 0).unwrap();
            stack.poll(0);
            assert_eq!(stack.connected(refused), Err(Error::Refused), "{to}");
        }
        assert!(stack.tcp_bind(local(80), Sharing::Reuse).is_ok());
        let elsewhere = SocketAddr::new("2001:db8::1".parse().unwrap(), 80);
        assert_eq!(stack.tcp_connect(None, elsewhere, &options, 0).err(), Some(Error::Unreachable));
        assert_eq!(stack.tcp_bind(elsewhere, Sharing::Exclusive).err(), Some(Error::AddressUnavailable));
    }
}

/// A datagram socket on all addresses of both families that connects to one is on its family alone.
#[test]
fn datagrams_of_both_families_find_one_socket() {
    let mut stack = Stack::new(NoLink, &Configuration::default(), 0).unwrap();
    let options = DatagramOptions::default();
    let six = |port| SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port);
    let both = stack.udp_bind(LocalEnd::of_both(53), &options).unwrap();
    let (of_four, of_six) = (stack.udp_bind(local(0), &options).unwrap(), stack.udp_bind(six(0), &options).unwrap());
    let receives = |stack: &mut Stack<NoLink>, sender, to: SocketAddr| {
        assert_eq!(stack.udp_send_with(sender, Some(to), 1, |_| ()), Ok(Sent::Bytes(1)));
        stack.udp_receive_with(both, |from, _| from).unwrap().map(|from| from.ip())
    };
    for peer in [None, Some(of_six), Some(of_four), None] {
        let peer_end = peer.map(|peer| stack.udp_local_endpoint(peer).unwrap());
        stack.udp_connect(both, peer_end).unwrap();
        let hears = |sender| peer.is_none_or(|peer| peer == sender);
        assert_eq!(receives(&mut stack, of_four, local(53)), hears(of_four).then(|| local(53).ip()));
        assert_eq!(receives(&mut stack, of_six, six(53)), hears(of_six).then(|| six(53).ip()));
    }
    // A mixed pair of ends is none.
    assert_eq!(stack.udp_send_with(of_four, Some(six(53)), 1, |_| ()), Err(Error::Unreachable));
    stack.udp_close(both).unwrap();
    assert!(stack.udp_bind(local(53), &options).is_ok() && stack.udp_bind(six(53), &options).is_ok());
}
