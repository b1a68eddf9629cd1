//! All memory that the stack holds is charged to an owner, from before it is made until it is gone.

mod wire;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ethernet::NoLink;
use network::{
    Configuration, ConnectionId, ConnectionMemory, Error, Held, ListenerId, Need, Owner, Received, Sent, Sharing,
    Stack, TcpOptions,
};
use wire::*;

/// An owner with a limit in bytes, which lists its charges. Of what only makes connections faster it pays up to half.
#[derive(Default)]
struct Account {
    limit: AtomicUsize,
    held: Mutex<Vec<Held>>,
    bytes: AtomicUsize,
}

impl Account {
    fn with_limit(limit: usize) -> Arc<Account> {
        Arc::new(Account { limit: AtomicUsize::new(limit), ..Account::default() })
    }

    /// Number of charges of this kind.
    fn count(&self, kind: Held) -> usize {
        self.held.lock().unwrap().iter().filter(|held| **held == kind).count()
    }

    /// Bytes of all charges.
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize, limit: usize) -> Result<(), Error> {
        if self.bytes() + bytes > limit {
            return Err(Error::OutOfMemory);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Owner for Account {
    fn charge(&self, held: Held, bytes: usize, free: usize, _: Need) -> Result<(), Error> {
        assert!(bytes > 0 && free > 0);
        self.take(bytes, self.limit.load(Ordering::Relaxed))?;
        self.held.lock().unwrap().push(held);
        Ok(())
    }

    fn charge_more(&self, bytes: usize, need: Need) -> Result<(), Error> {
        assert!(bytes > 0);
        let limit = self.limit.load(Ordering::Relaxed);
        self.take(bytes, if need == Need::Speed { limit / 2 } else { limit })
    }

    fn refund_some(&self, bytes: usize) {
        assert!(bytes > 0 && bytes <= self.bytes());
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn refund(&self, held: Held, bytes: usize) {
        let mut all = self.held.lock().unwrap();
        let place = all.iter().position(|one| *one == held).expect("it was charged");
        all.swap_remove(place);
        drop(all);
        self.refund_some(bytes);
    }
}

const REMOTE: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 80);

/// Returns what is charged for a connection that holds no bytes: with the first memory of each buffer.
fn one() -> usize {
    ConnectionMemory::of_this_build().wire + 2 * 512
}

/// A network whose server listens for this owner.
fn net_for(owner: &Arc<Account>, backlog: usize) -> (Net, ListenerId) {
    let mut net = Net::new(Faults::default(), 1);
    let listener = net.listen(80, backlog);
    net.server.set_listener_owner(listener, owner.clone()).unwrap();
    // Each learns of the other's hardware address.
    net.client.tcp_connect(None, SocketAddr::new(SERVER.into(), 81), &TcpOptions::default(), net.now).unwrap();
    net.settle();
    (net, listener)
}

fn connect(net: &mut Net) -> ConnectionId {
    net.client.tcp_connect(None, REMOTE, &TcpOptions::default(), net.now).unwrap()
}

#[test]
fn a_connection_is_its_listeners_from_the_request_to_the_end() {
    let owner = Account::with_limit(usize::MAX);
    let (mut net, listener) = net_for(&owner, 10);
    let client = connect(&mut net);
    // The answer is under way.
    net.client.poll(net.now);
    net.server.poll(net.now);
    assert_eq!((owner.count(Held::Request), owner.count(Held::Connection)), (1, 0));
    net.settle();
    // It is not accepted yet.
    assert_eq!((owner.count(Held::Request), owner.count(Held::Connection)), (0, 1));
    assert_eq!(owner.bytes(), one());
    let (server, _) = net.server.accept(listener).unwrap().unwrap();
    assert_eq!(owner.count(Held::Connection), 1);
    // Closed here first, with bytes that the other side has not acknowledged: an orphan, but still there.
    send(&mut net.server, server, b"last words", net.now).unwrap();
    net.server.close(server, net.now).unwrap();
    assert_eq!((owner.count(Held::Connection), owner.count(Held::Record)), (1, 0));
    net.settle();
    net.client.close(client, net.now).unwrap();
    net.pass(SECOND);
    // With its buffers gone, a record stays for a while; the listener need not.
    net.server.close_listener(listener, net.now).unwrap();
    net.settle();
    let (connections, records) = net.server.connection_counts();
    assert_eq!((owner.count(Held::Connection), owner.count(Held::Record)), (connections, records));
    net.pass(100 * SECOND);
    assert_eq!((net.server.connection_counts(), owner.bytes()), ((0, 0), 0));
}

#[test]
fn a_record_of_an_end_is_charged_until_it_is_forgotten() {
    let owner = Account::with_limit(usize::MAX);
    let (mut net, listener) = net_for(&owner, 10);
    let (client, server) = net.pair(listener);
    net.server.close(server, net.now).unwrap();
    net.settle();
    net.client.close(client, net.now).unwrap();
    net.settle();
    assert_eq!(net.server.connection_counts(), (0, 1));
    assert_eq!((owner.count(Held::Connection), owner.count(Held::Record)), (0, 1));
    assert!(owner.bytes() < 512);
    net.pass(11 * SECOND);
    assert_eq!((net.server.connection_counts(), owner.bytes()), ((0, 0), 0));
}

#[test]
fn an_owner_without_memory_for_a_record_closes_without_one() {
    let owner = Account::with_limit(one() + 512);
    let (mut net, listener) = net_for(&owner, 10);
    let (client, server) = net.pair(listener);
    net.server.close(server, net.now).unwrap();
    owner.limit.store(0, Ordering::Relaxed);
    net.settle();
    net.client.close(client, net.now).unwrap();
    net.settle();
    assert_eq!((net.server.connection_counts(), owner.bytes()), ((0, 0), 0));
    // Its port is free.
    net.server.close_listener(listener, net.now).unwrap();
    net.listen(80, 1);
}

#[test]
fn unacknowledged_requests_are_charged_until_they_are_given_up() {
    let owner = Account::with_limit(usize::MAX);
    let (mut net, listener) = net_for(&owner, 3);
    for _ in 0..5 {
        connect(&mut net);
        net.client.poll(net.now);
        net.server.poll(net.now);
        // The answers are lost.
        net.to_client.borrow_mut().clear();
    }
    assert_eq!(net.server.half_open_count(), owner.count(Held::Request));
    // The backlog bounds them; further ones get cookies, of which no record is kept.
    assert_eq!(owner.count(Held::Request), 3);
    assert!(owner.bytes() < 3 * 1024);
    net.server.close_listener(listener, net.now).unwrap();
    for _ in 0..100 {
        net.now += SECOND;
        net.server.poll(net.now);
        net.to_client.borrow_mut().clear();
    }
    assert_eq!((net.server.half_open_count(), owner.bytes()), (0, 0));
}

#[test]
fn a_request_that_its_owner_does_not_pay_for_is_dropped() {
    let owner = Account::with_limit(0);
    let (mut net, _) = net_for(&owner, 3);
    for dropped in 1..4 {
        connect(&mut net);
        net.client.poll(net.now);
        net.server.poll(net.now);
        assert_eq!((net.server.half_open_count(), net.server.counters().requests_dropped), (0, dropped));
        assert!(net.to_client.borrow().is_empty());
    }
}

#[test]
fn a_connection_over_its_owners_limit_waits_for_room() {
    let owner = Account::with_limit(one() + one() / 2);
    let (mut net, listener) = net_for(&owner, 10);
    let wanted = [connect(&mut net), connect(&mut net)];
    net.pass(3 * SECOND);
    // All have sent their requests, and one has got room.
    assert!(net.server.counters().requests_dropped > 0);
    assert_eq!(owner.count(Held::Connection), 1);
    assert_eq!(net.server.connection_counts().0, 1);
    let (first, _) = net.server.accept(listener).unwrap().unwrap();
    assert_eq!(net.server.accept(listener), Ok(None));
    net.server.abort(first, net.now).unwrap();
    net.settle();
    assert_eq!(owner.count(Held::Connection), 0);
    let lost = wanted.into_iter().filter(|id| net.client.readiness(*id).unwrap().failed).count();
    assert_eq!(lost, 1);
    // The other side of the second repeats itself as soon as it has something to say.
    let left = wanted.into_iter().find(|id| !net.client.readiness(*id).unwrap().failed).unwrap();
    if net.client.connected(left) == Ok(true) {
        send(&mut net.client, left, b"is anybody there?", net.now).unwrap();
    }
    net.run_until(100 * SECOND, |net| net.server.listener_readiness(listener).unwrap().receive);
    assert_eq!(owner.count(Held::Connection), 1);
}

#[test]
fn within_the_host_each_end_has_its_owner() {
    let configuration = Configuration::default();
    let mut stack: Stack<NoLink> = Stack::new(NoLink, &configuration, SECOND).unwrap();
    let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
    let (client, server) = (Account::with_limit(usize::MAX), Account::with_limit(0));
    let binding = stack.tcp_bind(local, Sharing::Exclusive).unwrap();
    let listener = stack.tcp_listen(binding, 10, &TcpOptions::default()).unwrap();
    stack.set_listener_owner(listener, server.clone()).unwrap();
    let owner: Arc<dyn Owner> = client.clone();
    let id = stack.tcp_connect_for(&owner, None, local, &TcpOptions::default(), SECOND).unwrap();
    // The listener's owner has no room.
    assert_eq!(stack.connected(id), Ok(false));
    assert_eq!((client.count(Held::Connection), server.count(Held::Connection)), (1, 0));
    assert_eq!(stack.accept(listener), Ok(None));
    server.limit.store(usize::MAX, Ordering::Relaxed);
    stack.poll(2 * SECOND);
    assert_eq!(stack.connected(id), Ok(true));
    assert_eq!((client.count(Held::Connection), server.count(Held::AcceptedEnd)), (1, 1));
    assert_eq!(server.count(Held::Connection), 0, "it may have as many from outside as before");
    let (accepted, _) = stack.accept(listener).unwrap().unwrap();
    stack.close(id, 2 * SECOND).unwrap();
    assert_eq!((client.bytes(), server.count(Held::AcceptedEnd)), (0, 1));
    stack.close(accepted, 2 * SECOND).unwrap();
    assert_eq!(server.bytes(), 0);
    // And an owner without memory connects to no other.
    client.limit.store(0, Ordering::Relaxed);
    let refused = stack.tcp_connect_for(&owner, None, local, &TcpOptions::default(), 2 * SECOND);
    assert_eq!(refused, Err(Error::OutOfMemory));
    assert_eq!(stack.connection_counts(), (0, 0));
}

/// Buffers are charged as they grow, and refunded when they have had a rest.
#[test]
fn buffers_are_charged_while_there_are_bytes() {
    let owner = Account::with_limit(usize::MAX);
    let (mut net, listener) = net_for(&owner, 10);
    let large = TcpOptions { receive_buffer: 1 << 20, send_buffer: 1 << 20, ..TcpOptions::default() };
    net.server.set_listener_options(listener, &large).unwrap();
    let (client, server) = net.pair(listener);
    assert_eq!(owner.bytes(), one());
    let data: Vec<u8> = (0..300_000u32).map(|index| (index / 3) as u8).collect();
    // Both ways, and the server does not read: it holds what it has told and what it could write.
    let mut written = [0; 2];
    for _ in 0..100 {
        let [to_server, to_client] = written.map(|written| &data[written..]);
        for (index, sent) in [
            send(&mut net.client, client, to_server, net.now).unwrap(),
            send(&mut net.server, server, to_client, net.now).unwrap(),
        ]
        .into_iter()
        .enumerate()
        {
            if let Sent::Bytes(bytes) = sent {
                written[index] += bytes;
            }
        }
        net.settle();
    }
    let held = owner.bytes();
    let memory = net.server.connection_memory(server).unwrap();
    assert!(memory <= held && held <= memory + 1024, "{held} for {memory}");
    assert!((16_384 + one()..=2 * (1 << 20)).contains(&held), "{held}");
    // Then it reads all, and so does the client.
    let mut got = [Vec::new(), Vec::new()];
    while got.each_ref().map(Vec::len) != written || written[0] < data.len() {
        if let Ok(Sent::Bytes(bytes)) = send(&mut net.client, client, &data[written[0]..], net.now) {
            written[0] += bytes;
        }
        let _ = receive(&mut net.server, server, &mut got[0], net.now);
        let _ = receive(&mut net.client, client, &mut got[1], net.now);
        net.pass(SECOND / 100);
    }
    assert!(got[0] == data && got[1] == data[..written[1]]);
    for _ in 0..20 {
        net.pass(SECOND);
    }
    assert_eq!((owner.bytes(), net.server.connection_memory(server)), (one(), Ok(one() - 1024)));
}

/// An owner without memory for arriving bytes has them sent again until it has; what only makes a connection faster
/// stops at the half.
#[test]
fn bytes_without_memory_come_again() {
    let owner = Account::with_limit(one() + 600);
    let (mut net, listener) = net_for(&owner, 10);
    let large = TcpOptions { receive_buffer: 1 << 20, ..TcpOptions::default() };
    net.server.set_listener_options(listener, &large).unwrap();
    let (client, server) = net.pair(listener);
    let data: Vec<u8> = (0..8000u32).map(|index| (index / 5) as u8).collect();
    assert_eq!(send(&mut net.client, client, &data, net.now), Ok(Sent::Bytes(data.len())));
    net.pass(SECOND / 10);
    let before = net.server.connection_memory(server).unwrap();
    assert!(net.server.counters().arrivals_without_memory > 0 && before <= one() + 600, "{before}");
    owner.limit.store(4 * one() + (1 << 16), Ordering::Relaxed);
    let mut got = Vec::new();
    net.run_until(100 * SECOND, |net| {
        let _ = receive(&mut net.server, server, &mut got, net.now);
        got.len() == data.len()
    });
    assert!(got == data);
    // The bytes are not read, and another connection has all that it was told.
    let (client, server) = net.pair(listener);
    got.clear();
    let mut written = 0;
    for _ in 0..50 {
        if let Ok(Sent::Bytes(bytes)) = send(&mut net.client, client, &data, net.now) {
            written += bytes;
        }
        net.pass(SECOND / 10);
    }
    let held = owner.bytes();
    assert!((16_384..=2 * one() + (1 << 15)).contains(&held) && written >= 16_384, "{held} of {written}");
    net.run_until(100 * SECOND, |net| {
        let _ = receive(&mut net.server, server, &mut got, net.now);
        got.len() == written
    });
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Nothing));
    assert!(got[..8000] == data);
}

/// Options with buffers that grow.
fn large() -> TcpOptions {
    TcpOptions { receive_buffer: 1 << 20, send_buffer: 1 << 20, ..TcpOptions::default() }
}

/// Both ends of a connection with large buffers, to an owner with this limit.
fn large_pair(limit: usize) -> (Net, Arc<Account>, ListenerId, [ConnectionId; 2]) {
    let owner = Account::with_limit(limit);
    let (mut net, listener) = net_for(&owner, 100);
    net.server.set_listener_options(listener, &large()).unwrap();
    let client = net.client.tcp_connect(None, REMOTE, &large(), net.now).unwrap();
    let mut server = None;
    net.run_until(100 * SECOND, |net| {
        server = server.or_else(|| net.server.accept(listener).unwrap().map(|(id, _)| id));
        server.is_some() && net.client.connected(client).unwrap()
    });
    (net, owner, listener, [client, server.unwrap()])
}

/// Sends much in one direction to a server that reads at once; returns the time that it took.
fn pour(net: &mut Net, [client, server]: [ConnectionId; 2]) -> u64 {
    let data: Vec<u8> = (0..300_000u32).map(|index| (index / 7) as u8).collect();
    let (mut written, mut got, begun) = (0, Vec::new(), net.now);
    net.run_until(1000 * SECOND, |net| {
        if let Ok(Sent::Bytes(bytes)) = send(&mut net.client, client, &data[written..], net.now) {
            written += bytes;
        }
        let _ = receive(&mut net.server, server, &mut got, net.now);
        got.len() == data.len()
    });
    assert!(got == data);
    net.now - begun
}

/// A limit of which a connection has what it needs, and no more is spare.
fn scarce() -> usize {
    2 * (one() + 16 * 1024)
}

#[test]
fn an_owner_without_spare_memory_is_not_much_slower() {
    let [plenty, little] = [usize::MAX, scarce()].map(|limit| {
        let (mut net, _, _, ends) = large_pair(limit);
        pour(&mut net, ends)
    });
    assert!(little < 4 * plenty, "{} ms and {} ms", plenty / 1_000_000, little / 1_000_000);
}

/// A reader that is away for long loses no connection, and bytes come as soon as it is back.
#[test]
fn a_connection_without_spare_memory_outlives_a_rest_of_its_reader() {
    for limit in [usize::MAX, scarce()] {
        let (mut net, owner, _, [client, server]) = large_pair(limit);
        for _ in 0..20 {
            let _ = send(&mut net.client, client, &[7; 60_000], net.now);
            net.pass(SECOND / 10);
        }
        assert!(net.server.receivable(server).unwrap() >= 10_000);
        net.pass(400 * SECOND);
        let have_failed = [net.client.readiness(client), net.server.readiness(server)].map(|end| end.unwrap().failed);
        assert_eq!(have_failed, [false; 2]);
        owner.limit.store(usize::MAX, Ordering::Relaxed);
        let (mut got, begun) = (Vec::new(), net.now);
        receive(&mut net.server, server, &mut got, net.now).unwrap();
        let first = got.len();
        net.run_until(400 * SECOND, |net| {
            let _ = receive(&mut net.server, server, &mut got, net.now);
            got.len() > first
        });
        assert!(net.now - begun < SECOND / 5, "{} ms", (net.now - begun) / 1_000_000);
    }
}

/// Connections that nobody has accepted, or will ever receive from, leave the others' memory alone.
#[test]
fn bytes_that_nobody_takes_are_few() {
    let (mut net, owner, listener, ends) = large_pair(4 << 20);
    let hostile: Vec<_> = (0..40).map(|_| net.client.tcp_connect(None, REMOTE, &large(), net.now).unwrap()).collect();
    net.pass(SECOND);
    for _ in 0..5 {
        for &id in &hostile {
            let _ = send(&mut net.client, id, &[0; 60_000], net.now);
        }
        net.pass(SECOND / 10);
    }
    assert_eq!(owner.count(Held::Connection), 41);
    assert!(owner.bytes() < 42 * (one() + 24 * 1024), "{}", owner.bytes());
    assert!(pour(&mut net, ends) < SECOND);
    // A closed connection to which more is sent is reset.
    let (closed, _) = net.server.accept(listener).unwrap().unwrap();
    let mut got = Vec::new();
    while receive(&mut net.server, closed, &mut got, net.now) != Ok(Received::Nothing) {}
    net.pass(SECOND);
    let _ = receive(&mut net.server, closed, &mut got, net.now);
    net.server.close(closed, net.now).unwrap();
    net.pass(2 * SECOND);
    assert_eq!(owner.count(Held::Connection), 40);
}

/// An end within the host whose owner has no spare memory takes what it may, and its sender is told when there is room.
#[test]
fn a_sender_within_the_host_is_told_of_room_that_there_is() {
    let mut stack: Stack<NoLink> = Stack::new(NoLink, &Configuration::default(), SECOND).unwrap();
    let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
    let server = Account::with_limit(16_000);
    let binding = stack.tcp_bind(local, Sharing::Exclusive).unwrap();
    let listener = stack.tcp_listen(binding, 10, &large()).unwrap();
    stack.set_listener_owner(listener, server.clone()).unwrap();
    let client = stack.tcp_connect(None, local, &large(), SECOND).unwrap();
    let (accepted, _) = stack.accept(listener).unwrap().unwrap();
    let Ok(Sent::Bytes(taken)) = send(&mut stack, client, &[1; 100_000], SECOND) else { panic!("there is room") };
    assert!((4096..16_000).contains(&taken));
    assert_eq!(send(&mut stack, client, &[1; 10], SECOND), Ok(Sent::Full));
    assert!(!stack.readiness(client).unwrap().send);
    let mut got = Vec::new();
    assert_eq!(receive(&mut stack, accepted, &mut got, SECOND), Ok(Received::Bytes(taken)));
    assert!(stack.readiness(client).unwrap().send);
    // The bytes that are looked at lie in several blocks.
    assert_eq!(send(&mut stack, client, &[2; 6000], SECOND), Ok(Sent::Bytes(6000)));
    let mut left = 4000;
    let take = |bytes: &[u8]| {
        let count = bytes.len().min(left);
        left -= count;
        count
    };
    assert_eq!(stack.tcp_receive_with(accepted, take, SECOND), Ok(Received::Bytes(4000)));
    let mut seen = 0;
    let look = |bytes: &[u8]| {
        seen += bytes.len();
        true
    };
    stack.tcp_peek_with(accepted, 0, 1000, look).unwrap();
    assert_eq!(seen, 1000);
}

/// The first bytes each way have memory that was charged with the connection.
#[test]
fn an_idle_connection_has_memory_for_its_first_bytes() {
    let (mut net, owner, _, [client, server]) = large_pair(usize::MAX);
    owner.limit.store(0, Ordering::Relaxed);
    assert!(net.server.readiness(server).unwrap().send);
    assert_eq!(send(&mut net.server, server, b"x", net.now), Ok(Sent::Bytes(1)));
    assert_eq!(send(&mut net.client, client, &[7; 500], net.now), Ok(Sent::Bytes(500)));
    net.pass(SECOND / 10);
    let mut got = Vec::new();
    assert_eq!(receive(&mut net.server, server, &mut got, net.now), Ok(Received::Bytes(500)));
    assert_eq!(receive(&mut net.client, client, &mut got, net.now), Ok(Received::Bytes(1)));
}
