//! All memory that the stack holds is charged to an owner, from before it is made until it is gone.

mod wire;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ethernet::NoLink;
use network::{Configuration, ConnectionId, Error, Held, ListenerId, Owner, Sharing, Stack, TcpOptions};
use wire::*;

/// An owner with a limit in bytes, which lists its charges.
#[derive(Default)]
struct Account {
    limit: AtomicUsize,
    held: Mutex<Vec<(Held, usize)>>,
}

impl Account {
    fn with_limit(limit: usize) -> Arc<Account> {
        Arc::new(Account { limit: AtomicUsize::new(limit), ..Account::default() })
    }

    /// Number of charges of this kind.
    fn count(&self, kind: Held) -> usize {
        self.held.lock().unwrap().iter().filter(|(held, _)| *held == kind).count()
    }

    /// Bytes of all charges.
    fn bytes(&self) -> usize {
        self.held.lock().unwrap().iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Owner for Account {
    fn charge(&self, held: Held, bytes: usize, free: usize) -> Result<(), Error> {
        assert!(bytes > 0 && free > 0);
        if self.bytes() + bytes > self.limit.load(Ordering::Relaxed) {
            return Err(Error::OutOfMemory);
        }
        self.held.lock().unwrap().push((held, bytes));
        Ok(())
    }

    fn refund(&self, held: Held, bytes: usize) {
        let mut all = self.held.lock().unwrap();
        let place = all.iter().position(|one| *one == (held, bytes)).expect("it was charged");
        all.swap_remove(place);
    }
}

const REMOTE: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 80);

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
    assert!(owner.bytes() >= TcpOptions::default().memory());
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
    let owner = Account::with_limit(TcpOptions::default().memory() + 512);
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
    let one = TcpOptions::default().memory();
    let owner = Account::with_limit(one + one / 2);
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
