//! Cost of a request and its answer in the stack: run under an instruction counter.
//!
//! `round_trips joined|packets|wire|unstamped CONNECTIONS ROUNDS` makes the connections, then exchanges a request of 8
//! bytes and an answer of 8 bytes `ROUNDS` times, each on the next connection, with the operations that a kernel's
//! system calls would make (including the attempt to receive before there is anything, and the waker it leaves). The
//! cost of one round is the difference of two runs with different `ROUNDS`:
//!
//! ```text
//! valgrind --tool=callgrind target/release/examples/round_trips joined 64 10000
//! ```
//!
//! `joined` and `packets` are the two ways in which the ends of connections within one host can be connected; with
//! `wire` there are two hosts, whose segments have timestamps; with `unstamped` they have none.
#[path = "../tests/wire/mod.rs"]
mod wire;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::task::Waker;

use ethernet::{Link, NoLink};
use network::{
    Coalescing, Configuration, ConnectionId, Interest, Limits, LocalConnections, Received, Sharing, Stack, TcpOptions,
};
use wire::{Faults, Net};

const OPTIONS: TcpOptions =
    TcpOptions { receive_buffer: 4096, send_buffer: 4096, coalescing: Coalescing::None, ..TcpOptions::SMALL };

fn await_nothing<L: Link>(stack: &mut Stack<L>, id: ConnectionId, now: u64, waker: &Waker) {
    let received = stack.tcp_receive_with(id, |bytes| bytes.len(), now);
    assert_eq!(received, Ok(Received::Nothing));
    stack.register(id, Interest::Receive, waker).unwrap();
}

fn send<L: Link>(stack: &mut Stack<L>, id: ConnectionId, now: u64) {
    let data = [7; 8];
    let mut rest = &data[..];
    let fill = |room: &mut [u8]| {
        let count = rest.len().min(room.len());
        room[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        count
    };
    stack.tcp_send_with(id, fill, now).unwrap();
    stack.flush(now);
}

fn receive<L: Link>(stack: &mut Stack<L>, id: ConnectionId, now: u64) {
    let mut data = [0; 8];
    let take = |bytes: &[u8]| {
        let count = bytes.len().min(8);
        data[..count].copy_from_slice(&bytes[..count]);
        count
    };
    assert_eq!(stack.tcp_receive_with(id, take, now), Ok(Received::Bytes(8)));
    assert_eq!(data, [7; 8]);
}

fn within(local_connections: LocalConnections, connections: usize, rounds: usize) {
    let limits = Limits { backlog: 65_536, ..Limits::default() };
    let configuration =
        Configuration { seeds: network::Seeds::default(), limits, local_connections, ..Configuration::default() };
    let mut now = 1_000_000_000;
    let mut stack = Stack::new(NoLink, &configuration, now).unwrap();
    let binding = stack.tcp_bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 80), Sharing::Exclusive).unwrap();
    let listener = stack.tcp_listen(binding, connections, &OPTIONS).unwrap();
    let pairs: Vec<_> = (0..connections)
        .map(|_| {
            let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);
            let client = stack.tcp_connect(None, to, &OPTIONS, now).unwrap();
            stack.poll(now);
            (client, stack.accept(listener).unwrap().unwrap().0)
        })
        .collect();
    let waker = Waker::noop();
    for round in 0..rounds {
        let (client, server) = pairs[round % connections];
        now += 10_000;
        await_nothing(&mut stack, server, now, waker);
        send(&mut stack, client, now);
        await_nothing(&mut stack, client, now, waker);
        receive(&mut stack, server, now);
        send(&mut stack, server, now);
        receive(&mut stack, client, now);
    }
    println!("{:?}", stack.counters());
}

fn wire(connections: usize, rounds: usize, unstamps: bool) {
    let mut net = Net::new(Faults { unstamps, ..Faults::default() }, 1);
    let listener = net.listen(80, connections);
    let pairs: Vec<_> = (0..connections).map(|_| net.pair(listener)).collect();
    (net.client.link().faults, net.server.link().faults) = (Faults::default(), Faults::default());
    let waker = Waker::noop();
    for round in 0..rounds {
        let (client, server) = pairs[round % connections];
        net.now += 10_000;
        await_nothing(&mut net.server, server, net.now, waker);
        send(&mut net.client, client, net.now);
        net.server.poll(net.now);
        receive(&mut net.server, server, net.now);
        send(&mut net.server, server, net.now);
        net.client.poll(net.now);
        receive(&mut net.client, client, net.now);
    }
    println!("{:?}", net.server.counters());
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |index: usize, default| arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (connections, rounds) = (number(2, 64), number(3, 10_000));
    match arguments.get(1).map(String::as_str) {
        Some("wire") => wire(connections, rounds, false),
        Some("unstamped") => wire(connections, rounds, true),
        Some("packets") => within(LocalConnections::Packets, connections, rounds),
        _ => within(LocalConnections::Joined, connections, rounds),
    }
}
