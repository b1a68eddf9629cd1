//! Tests of asynchronous IPC between programs.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use coroutine::Priority;
use sel4::capability::{Endpoint, Notification};
use sel4::channel::{self, Client, Connection, Error, Server, Side};
use sel4::process::{Ending, PANICKED, Process};
use sel4::{ObjectType, executor};

use crate::programs::{CALL, SCRIBBLE, SERVE, SERVE_BY_STORES, program};
use crate::{Bench, Outcome, Wrong, equal};

const LATER: u64 = 1;
const NEVER: u64 = 2;
const DIE: u64 = 3;

/// The peer's number of looks at the rings before it sleeps.
const PATIENCE: u64 = 20;

/// A running peer and this program's connections to it.
struct Peer {
    process: Process,
    supervisor: Endpoint,
    connections: Vec<Connection>,
    ends: Vec<channel::End>,
    /// The notification that this program waits on.
    doorbell: Notification,
}

impl Peer {
    /// Starts a peer with `count` connections to this program.
    fn start(bench: &mut Bench<'_>, count: usize, role: u64, parameter: u64) -> Result<Peer, Wrong> {
        let doorbell = bench.allocator.object(ObjectType::Notification)?;
        Peer::start_with(bench, doorbell, count, role, parameter)
    }

    /// Starts a peer, where this program waits on a notification that may have been used before.
    fn start_with(
        bench: &mut Bench<'_>,
        doorbell: u64,
        count: usize,
        role: u64,
        parameter: u64,
    ) -> Result<Peer, Wrong> {
        let supervisor = Endpoint::from_pointer(bench.allocator.object(ObjectType::Endpoint)?);
        let program = program(bench);
        let mut process = Process::load(&mut bench.allocator, &mut bench.window, &program, supervisor, 1)?;
        let notification = process.notification(&mut bench.allocator)?;
        let (mut connections, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let theirs = Side { process: &mut process, notification };
            let (connection, end) =
                channel::connect_to(&mut bench.allocator, &mut bench.window, 16, 1, doorbell, theirs)?;
            connections.push(connection);
            ends.push(end);
        }
        process.argument(role);
        process.argument(parameter);
        process.start(&mut bench.allocator)?;
        let doorbell = Notification::from_pointer(doorbell);
        Ok(Peer { process, supervisor, connections, ends, doorbell })
    }

    /// Waits for the peer's end.
    fn ending(&self) -> Option<Ending> {
        Ending::of(&self.supervisor.receive())
    }

    fn end(self, bench: &mut Bench<'_>) -> Outcome {
        for connection in self.connections {
            connection.close()?;
        }
        Ok(self.process.end(&mut bench.allocator)?)
    }
}

pub fn calls_are_answered_by_another_program(bench: &mut Bench<'_>) -> Outcome {
    let mut peer = Peer::start(bench, 1, SERVE, PATIENCE)?;
    let client = Client::new(peer.ends.remove(0));
    let right = executor::run(peer.doorbell, async move {
        // More at once than there are places: some wait for one.
        let calls: Vec<_> = (0..100)
            .map(|number: u64| {
                let client = client.clone();
                executor::spawn(Priority::DEFAULT, async move {
                    let mut right = 0;
                    for round in 0..20 {
                        let how = if (number + round).is_multiple_of(3) { LATER } else { 0 };
                        let word = number << 32 | round;
                        let expected = Ok([word + 1, how, 2, 3, 4, 5, 6]);
                        right += u64::from(client.call([word, how, 2, 3, 4, 5, 6]).await == expected);
                    }
                    right
                })
            })
            .collect();
        let mut right = 0;
        for call in calls {
            right += call.await.expect("it is never cancelled");
        }
        right
    });
    equal!(right, 2000);
    peer.end(bench)
}

pub fn a_server_has_many_clients(bench: &mut Bench<'_>) -> Outcome {
    // Peers are the clients this time, all of one notification, with priorities of their own.
    let doorbell = bench.allocator.object(ObjectType::Notification)?;
    let mut peers = Vec::new();
    for number in 0..3 {
        peers.push(Peer::start_with(bench, doorbell, 1, CALL, 300 + number)?);
    }
    let ends: Vec<_> = peers.iter_mut().flat_map(|peer| peer.ends.drain(..)).collect();
    let reasons = executor::run(Notification::from_pointer(doorbell), async move {
        let answer = |mut message: channel::Message| async move {
            if message[1] == LATER {
                coroutine::yield_now().await;
            }
            message[0] += 1;
            message
        };
        let serving: Vec<_> = (0..)
            .zip(ends)
            .map(|(number, end)| executor::spawn(Priority::saturating(number), Server::new(end).serve(answer)))
            .collect();
        let mut reasons = Vec::new();
        for serving in serving {
            reasons.push(serving.await);
        }
        reasons
    });
    equal!(reasons, [Ok(Error::Closed); 3]);
    for peer in peers {
        equal!(peer.ending(), Some(Ending::Exited(0)));
        peer.end(bench)?;
    }
    Ok(())
}

pub fn a_server_that_dies_ends_all_calls(bench: &mut Bench<'_>) -> Outcome {
    let mut peer = Peer::start(bench, 1, SERVE, PATIENCE)?;
    let client = Client::new(peer.ends.remove(0));
    let doorbell = peer.doorbell;
    let waiting = client.clone();
    let waiting = move || {
        let client = waiting.clone();
        async move { client.call([1, NEVER, 0, 0, 0, 0, 0]).await }
    };
    let dying = client.clone();
    // The peer dies with requests in flight. The supervisor learns of it and closes the connection.
    let handles = executor::run(doorbell, async move {
        let handles: Vec<_> = (0..20).map(|_| executor::spawn(Priority::DEFAULT, waiting())).collect();
        executor::spawn(Priority::HIGHEST, async move { dying.call([1, DIE, 0, 0, 0, 0, 0]).await }).detach();
        coroutine::yield_now().await;
        handles
    });
    // It may not have been signalled yet if it slept: this program's executor has ended first.
    let again = client.clone();
    executor::run(doorbell, async move {
        executor::spawn(Priority::HIGHEST, async move { again.call([1, DIE, 0, 0, 0, 0, 0]).await }).detach();
        for _ in 0..3 {
            coroutine::yield_now().await;
        }
    });
    equal!(peer.ending(), Some(Ending::Exited(PANICKED)));
    for connection in peer.connections.drain(..) {
        connection.close()?;
    }
    let closed = executor::run(doorbell, async move {
        let mut closed = 0;
        for handle in handles {
            closed += u64::from(handle.await == Ok(Err(Error::Closed)));
        }
        closed += u64::from(client.call([1, 0, 0, 0, 0, 0, 0]).await == Err(Error::Closed));
        closed
    });
    equal!(closed, 21);
    peer.end(bench)
}

pub fn a_client_that_dies_ends_its_requests(bench: &mut Bench<'_>) -> Outcome {
    // It is killed in the middle of its calls: more than it can make before this program sees the first.
    let mut peer = Peer::start(bench, 1, CALL, u64::MAX)?;
    let end = peer.ends.remove(0);
    let doorbell = peer.doorbell;
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let serving = executor::run(doorbell, async move {
        let answer = |mut message: channel::Message| async move {
            SEEN.fetch_add(1, Ordering::Relaxed);
            message[0] += 1;
            message
        };
        let serving = executor::spawn(Priority::DEFAULT, Server::new(end).serve(answer));
        while SEEN.load(Ordering::Relaxed) < 10 {
            // Sleeps in between: the client wakes it.
            executor::pause().await;
        }
        Some(serving)
    });
    peer.process.thread().suspend()?;
    for connection in peer.connections.drain(..) {
        connection.close()?;
    }
    let serving = serving.expect("it was started");
    equal!(executor::run(doorbell, serving), Ok(Error::Closed));
    peer.end(bench)
}

pub fn a_client_that_rings_with_stores_outlives_its_server(bench: &mut Bench<'_>) -> Outcome {
    let mut peer = Peer::start(bench, 2, SERVE_BY_STORES, 0)?;
    let mut ends = Vec::new();
    for end in peer.ends.drain(..) {
        ends.push(end.signalled_by_stores(&mut bench.allocator, &mut bench.window)?);
    }
    let (other, end) = (ends.remove(1), ends.remove(0));
    let client = Client::new(end);
    let right = executor::run(peer.doorbell, async move {
        let mut right = 0;
        for number in 0..200 {
            let how = if number % 3 == 0 { LATER } else { 0 };
            // A spurious signal, while the server serves the other connection.
            other.doorbell().signal();
            right += u64::from(client.call([number, how, 2, 3, 4, 5, 6]).await == Ok([number + 1, how, 2, 3, 4, 5, 6]));
        }
        (right, client, other)
    });
    let (right, client, other) = right;
    equal!(right, 200);
    for connection in peer.connections.drain(..) {
        connection.close()?;
    }
    // Its rights are revoked in the middle of its signals, and its faults are not handled.
    for _ in 0..100 {
        other.doorbell().signal();
    }
    equal!(executor::run(peer.doorbell, async move { client.call([1, 0, 0, 0, 0, 0, 0]).await }), Err(Error::Closed));
    peer.end(bench)
}

pub fn a_peer_that_scribbles_ends_only_its_connection(bench: &mut Bench<'_>) -> Outcome {
    for peer_serves in [true, false] {
        let mut peer = Peer::start(bench, 1, SCRIBBLE, 2_000_000)?;
        let end = peer.ends.remove(0);
        let doorbell = peer.doorbell;
        if peer_serves {
            let client = Client::new(end);
            executor::run(doorbell, async move {
                let mut number = 0;
                // Some answers may come that look valid.
                while client.failure().is_none() {
                    let client = client.clone();
                    let call = executor::spawn(Priority::DEFAULT, async move { client.call([number; 7]).await });
                    number += 1;
                    executor::pause().await;
                    if call.is_finished() {
                        let _ = call.await;
                    }
                }
            });
        } else {
            let answer = |message: channel::Message| async move {
                if message[0] & 1 == 0 {
                    coroutine::yield_now().await;
                }
                message
            };
            equal!(executor::run(doorbell, Server::new(end).serve(answer)), Error::Broken);
        }
        equal!(peer.ending(), Some(Ending::Exited(0)));
        peer.end(bench)?;
    }
    // Other peers are served as before.
    calls_are_answered_by_another_program(bench)
}

pub fn the_data_behind_the_rings_is_shared(bench: &mut Bench<'_>) -> Outcome {
    let peer = Peer::start(bench, 1, SERVE, 0)?;
    let data = peer.ends[0].data();
    equal!(data.len(), 4096);
    equal!(data.write(4090, b"123456"), true);
    equal!(data.write(4090, b"1234567"), false);
    let mut bytes = [0; 6];
    equal!(data.read(4090, &mut bytes) && bytes == *b"123456", true);
    peer.end(bench)
}
