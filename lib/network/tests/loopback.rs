//! Connections within one host whose segments go through the loopback interface: programs see no difference to joined
//! ends, so that figures can be compared.

mod wire;

use std::net::{Ipv4Addr, SocketAddr};

use ethernet::NoLink;
use network::{
    Address, Addressing, Coalescing, Configuration, ConnectionId, Error, Interest, Limits, ListenerId,
    LocalConnections, Received, Sent, Sharing, Shutdown, Stack, TcpOptions,
};
use proptest::prelude::*;
use wire::{Bell, MILLISECOND, SECOND, receive, send};

const BOTH: [LocalConnections; 2] = [LocalConnections::Joined, LocalConnections::Packets];

/// A host and its clock.
struct Alone {
    stack: Stack<NoLink>,
    now: u64,
}

fn options() -> TcpOptions {
    TcpOptions { receive_buffer: 2048, send_buffer: 2048, coalescing: Coalescing::None, ..TcpOptions::SMALL }
}

impl Alone {
    fn new(local_connections: LocalConnections) -> Alone {
        Alone::with_limits(local_connections, Limits::default())
    }

    fn with_limits(local_connections: LocalConnections, limits: Limits) -> Alone {
        let configuration =
            Configuration { seeds: network::Seeds::default(), limits, local_connections, ..Configuration::default() };
        Alone { stack: Stack::new(NoLink, &configuration, SECOND).unwrap(), now: SECOND }
    }

    /// Acts as a kernel does after each operation: does all work that is due at once.
    fn flush(&mut self) {
        for _ in 0..1000 {
            if self.stack.flush(self.now).is_none_or(|at| at > self.now) {
                return;
            }
        }
        panic!("the two ends never come to rest");
    }

    fn pass(&mut self, time: u64) {
        let end = self.now + time;
        while let Some(at) = self.stack.poll(self.now).filter(|&at| at <= end) {
            self.now = at.max(self.now + 1);
        }
        self.now = end;
    }

    fn listen(&mut self, port: u16, backlog: usize) -> ListenerId {
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        let binding = self.stack.tcp_bind(any, Sharing::Exclusive).unwrap();
        self.stack.tcp_listen(binding, backlog, &options()).unwrap()
    }

    fn connect(&mut self, port: u16) -> ConnectionId {
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let id = self.stack.tcp_connect(None, to, &options(), self.now).unwrap();
        self.flush();
        id
    }

    /// Both ends of a connection: the client's and the server's.
    fn pair(&mut self) -> (ConnectionId, ConnectionId) {
        let listener = self.listen(80, 1);
        let (bell, waker) = Bell::new();
        self.stack.register_accept(listener, &waker).unwrap();
        let client = self.connect(80);
        // Without any time passing.
        assert_eq!(self.stack.connected(client), Ok(true));
        assert_eq!(bell.rings(), 1);
        let (server, remote) = self.stack.accept(listener).unwrap().unwrap();
        assert_eq!(Ok(remote), self.stack.local_endpoint(client));
        self.stack.close_listener(listener, self.now).unwrap();
        self.flush();
        (client, server)
    }

    fn send(&mut self, id: ConnectionId, data: &[u8]) -> Result<Sent, Error> {
        let sent = send(&mut self.stack, id, data, self.now);
        self.flush();
        sent
    }

    fn receive(&mut self, id: ConnectionId, into: &mut Vec<u8>) -> Result<Received, Error> {
        let received = receive(&mut self.stack, id, into, self.now);
        self.flush();
        received
    }
}

#[test]
fn a_request_and_its_answer_take_no_time() {
    for local_connections in BOTH {
        let mut host = Alone::new(local_connections);
        let (client, server) = host.pair();
        let mut got = Vec::new();
        for _ in 0..1000 {
            for (from, to) in [(client, server), (server, client)] {
                let (bell, waker) = Bell::new();
                assert_eq!(host.receive(to, &mut got), Ok(Received::Nothing));
                host.stack.register(to, Interest::Receive, &waker).unwrap();
                assert_eq!(host.send(from, b"12345678"), Ok(Sent::Bytes(8)));
                assert_eq!(bell.rings(), 1);
                assert_eq!(host.receive(to, &mut got), Ok(Received::Bytes(8)));
            }
        }
        assert_eq!(got.len(), 16_000);
        let counters = host.stack.counters();
        match local_connections {
            LocalConnections::Joined => assert_eq!((counters.local_connections, counters.loopback_packets), (1, 0)),
            LocalConnections::Packets => {
                assert_eq!(counters.local_connections, 0);
                // The data itself, and little more: acknowledgements travel with answers.
                assert!((2000..2100).contains(&counters.loopback_packets), "{counters:?}");
            }
        }
        assert_eq!(counters.frames_received, 0);
    }
}

#[test]
fn much_data_gets_through_buffers_that_are_small() {
    for local_connections in BOTH {
        let mut host = Alone::new(local_connections);
        let (client, server) = host.pair();
        let data: Vec<u8> = (0..1_000_000u32).map(|index| ((index * 31) >> 3) as u8).collect();
        let (mut sent, mut got) = (0, Vec::new());
        let start = host.now;
        while got.len() < data.len() {
            while let Sent::Bytes(count @ 1..) = host.send(client, &data[sent..]).unwrap() {
                sent += count;
            }
            let before = got.len();
            while let Received::Bytes(1..) = host.receive(server, &mut got).unwrap() {}
            if got.len() == before {
                host.pass(MILLISECOND);
            }
            assert!(host.now - start < SECOND, "waits for timers: {} bytes", got.len());
        }
        assert!(got == data);
    }
}

#[test]
fn a_full_buffer_wakes_its_writer() {
    for local_connections in BOTH {
        let mut host = Alone::new(local_connections);
        let (client, server) = host.pair();
        while let Sent::Bytes(1..) = host.send(client, &[7; 1000]).unwrap() {}
        let (bell, waker) = Bell::new();
        host.stack.register(client, Interest::Send, &waker).unwrap();
        let mut got = Vec::new();
        while let Received::Bytes(1..) = host.receive(server, &mut got).unwrap() {}
        assert!(got.len() >= 2048);
        assert_eq!(bell.rings(), 1);
        assert!(host.stack.readiness(client).unwrap().send);
    }
}

#[test]
fn connecting_without_a_listener_is_refused() {
    for local_connections in BOTH {
        let mut host = Alone::new(local_connections);
        let client = host.connect(80);
        assert_eq!(host.stack.connected(client), Err(Error::Refused));
        host.stack.close(client, host.now).unwrap();
        host.flush();
        assert_eq!(host.stack.connection_counts(), (0, 0));
    }
}

#[test]
fn each_direction_ends_by_itself_and_nothing_is_left() {
    for local_connections in BOTH {
        let mut host = Alone::new(local_connections);
        let (client, server) = host.pair();
        host.send(client, b"question").unwrap();
        host.stack.shutdown(client, Shutdown::Send, host.now).unwrap();
        host.flush();
        assert_eq!(host.send(client, b"more"), Err(Error::Closed));
        let mut got = Vec::new();
        assert_eq!(host.receive(server, &mut got), Ok(Received::Bytes(8)));
        assert_eq!(host.receive(server, &mut got), Ok(Received::End));
        host.send(server, b"answer").unwrap();
        host.stack.close(server, host.now).unwrap();
        host.flush();
        assert_eq!(host.receive(client, &mut got), Ok(Received::Bytes(6)));
        assert_eq!(host.receive(client, &mut got), Ok(Received::End));
        assert_eq!(got, b"questionanswer");
        host.stack.close(client, host.now).unwrap();
        host.pass(20 * SECOND);
        assert_eq!(host.stack.connection_counts(), (0, 0));
        assert_eq!(host.stack.poll(host.now), None);
    }
}

#[test]
fn an_abort_is_a_reset_and_so_is_unread_data() {
    for local_connections in BOTH {
        for abort in [true, false] {
            let mut host = Alone::new(local_connections);
            let (client, server) = host.pair();
            host.send(client, b"unread").unwrap();
            let (bell, waker) = Bell::new();
            host.stack.register(client, Interest::Receive, &waker).unwrap();
            match abort {
                true => host.stack.abort(server, host.now).unwrap(),
                false => host.stack.close(server, host.now).unwrap(),
            }
            host.flush();
            assert_eq!(bell.rings(), 1);
            assert_eq!(host.receive(client, &mut Vec::new()), Err(Error::Reset));
            assert_eq!(host.receive(client, &mut Vec::new()), Ok(Received::End));
            assert_eq!(host.send(client, b"x"), Err(Error::Closed));
            host.stack.close(client, host.now).unwrap();
            host.flush();
            assert_eq!(host.stack.connection_counts(), (0, 0));
        }
    }
}

#[test]
fn a_connection_without_room_gets_it_later() {
    for local_connections in BOTH {
        let mut host = Alone::new(local_connections);
        let listener = host.listen(80, 2);
        let clients: Vec<_> = (0..5).map(|_| host.connect(80)).collect();
        let mut accepted = 0;
        for _ in 0..20 {
            while host.stack.accept(listener).unwrap().is_some() {
                accepted += 1;
            }
            host.pass(SECOND);
        }
        assert_eq!(accepted, 5);
        for client in clients {
            assert_eq!(host.stack.connected(client), Ok(true));
        }
    }
}

#[test]
fn the_own_address_leads_home() {
    for local_connections in BOTH {
        let own = Ipv4Addr::new(10, 0, 2, 15);
        let address = Addressing::Fixed(Address { address: own, prefix: 24, gateway: None });
        let configuration = Configuration { address, local_connections, ..Configuration::default() };
        let mut host = Alone { stack: Stack::new(NoLink, &configuration, SECOND).unwrap(), now: SECOND };
        let listener = host.listen(80, 1);
        let to = SocketAddr::new(own.into(), 80);
        let client = host.stack.tcp_connect(None, to, &options(), host.now).unwrap();
        host.flush();
        let (server, remote) = host.stack.accept(listener).unwrap().unwrap();
        assert_eq!(remote.ip(), own);
        host.send(client, b"home").unwrap();
        let mut got = Vec::new();
        assert_eq!(host.receive(server, &mut got), Ok(Received::Bytes(4)));
    }
}

#[test]
fn limits_hold_and_nothing_leaks() {
    for local_connections in BOTH {
        let limits = Limits { connections: 11, backlog: 100, ..Limits::default() };
        let mut host = Alone::with_limits(local_connections, limits);
        let listener = host.listen(80, 100);
        for _ in 0..3 {
            let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
            let clients: Vec<_> = (0..11)
                .map(|_| {
                    let client = host.stack.tcp_connect(None, to, &options(), host.now);
                    host.flush();
                    client
                })
                .collect();
            // Five pairs and one whose other end is beyond the limit.
            assert_eq!(clients.iter().filter(|client| client.is_ok()).count(), 6);
            for client in clients.into_iter().flatten() {
                host.stack.close(client, host.now).unwrap();
                host.flush();
            }
            while let Some((server, _)) = host.stack.accept(listener).unwrap() {
                assert_eq!(host.receive(server, &mut Vec::new()), Ok(Received::End));
                host.stack.close(server, host.now).unwrap();
                host.flush();
            }
            host.pass(20 * SECOND);
            assert_eq!(host.stack.connection_counts(), (0, 0));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(bool, usize),
    Receive(bool, usize),
    Shut(bool),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Beside a segment's payload and the buffers' size.
    let count = || property::edges(0..5000usize, &[1460, 2048, 4096]);
    prop_oneof![
        8 => (any::<bool>(), count()).prop_map(|(end, count)| Step::Send(end, count)),
        8 => (any::<bool>(), count()).prop_map(|(end, count)| Step::Receive(end, count)),
        1 => any::<bool>().prop_map(Step::Shut),
        2 => (0..50 * MILLISECOND).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(property::cases(100))]

    /// All bytes are received in order, then the end: nothing else is visible of the segments.
    #[test]
    fn a_pair_is_two_queues(nagle in any::<bool>(), steps in prop::collection::vec(step(), 1..60)) {
        let mut host = Alone::new(LocalConnections::Packets);
        let (client, server) = host.pair();
        let ends = [client, server];
        if nagle {
            for end in ends {
                host.stack.set_coalescing(end, Coalescing::Nagle, host.now).unwrap();
            }
        }
        let mut sent = [0u32; 2];
        let mut received = [0u32; 2];
        let mut shut = [false; 2];
        let byte = |position: u32| ((position * 31) >> 3) as u8;
        let take = |host: &mut Alone, end: usize, limit: usize, received: &mut [u32; 2]| {
            let (mut left, mut right) = (limit, true);
            let position = &mut received[end];
            let outcome = host.stack.tcp_receive_with(ends[end], |bytes| {
                let taken = bytes.len().min(left);
                left -= taken;
                for found in &bytes[..taken] {
                    right &= *found == byte(*position);
                    *position += 1;
                }
                taken
            }, host.now);
            host.flush();
            assert!(right, "the bytes are in disorder");
            outcome
        };
        for step in steps {
            match step {
                Step::Send(end, count) => {
                    let end = usize::from(end);
                    let data: Vec<u8> = (0..count as u32).map(|offset| byte(sent[end] + offset)).collect();
                    match host.send(ends[end], &data) {
                        Ok(Sent::Bytes(count)) => sent[end] += count as u32,
                        Ok(Sent::Full) => {}
                        other => prop_assert!(shut[end] && other == Err(Error::Closed), "{:?}", other),
                    }
                }
                Step::Receive(end, count) => {
                    let end = usize::from(end);
                    match take(&mut host, end, count, &mut received).unwrap() {
                        Received::End => prop_assert!(shut[1 - end] && received[end] == sent[1 - end]),
                        Received::Bytes(_) | Received::Nothing => {}
                    }
                }
                Step::Shut(end) => {
                    let end = usize::from(end);
                    let outcome = host.stack.shutdown(ends[end], Shutdown::Send, host.now);
                    host.flush();
                    prop_assert!(outcome.is_ok() || shut[0] && shut[1]);
                    shut[end] = true;
                }
                Step::Pass(time) => host.pass(time),
            }
        }
        for end in ends {
            let _ = host.stack.shutdown(end, Shutdown::Send, host.now);
            host.flush();
        }
        for end in 0..2 {
            for round in 0.. {
                match take(&mut host, end, usize::MAX, &mut received).unwrap() {
                    Received::End => break,
                    Received::Bytes(_) => {}
                    Received::Nothing => {
                        prop_assert!(round < 1000, "the end does not come");
                        host.pass(100 * MILLISECOND);
                    }
                }
            }
            prop_assert_eq!(received[end], sent[1 - end]);
        }
        for end in ends {
            host.stack.close(end, host.now).unwrap();
            host.flush();
        }
        host.pass(100 * SECOND);
        prop_assert_eq!(host.stack.connection_counts(), (0, 0));
    }
}
