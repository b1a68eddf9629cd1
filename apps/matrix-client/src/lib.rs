//! Load for the matrix server from inside the guest, where instructions can be counted: client, server and network are
//! then all in the one figure.
//!
//! Every connection is a coroutine that sends a request, waits for its answer, compares it with its own product, and
//! sends the next: at once (*closed loop*), or at regular moments (*timed*).
#![no_std]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddrV4;
use core::sync::atomic::{AtomicU64, Ordering};

use cops::buffer::Part;
use cops::net::TcpStream;
use cops::time::{Duration, Instant};
use cops::{Errno, JoinHandle};
use matrix::{Answer, Decoded, Order};

/// A load to send.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The server.
    pub server: SocketAddrV4,
    /// Connections at once.
    pub connections: usize,
    /// Rows and columns of the matrices.
    pub order: Order,
    /// Requests of each connection.
    pub requests: u32,
    /// From one request of a connection to its next; zero means at once.
    pub period: Duration,
}

/// The result of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of right answers.
    pub right: u64,
    /// Number of wrong answers.
    pub wrong: u64,
    /// Number of requests without an answer.
    pub lost: u64,
    /// Sum of the times from request to answer.
    pub latency_ns: u64,
    /// The longest of them.
    pub longest_ns: u64,
}

/// Counts of all connections together.
#[derive(Default)]
struct Counts {
    right: AtomicU64,
    wrong: AtomicU64,
    latency_ns: AtomicU64,
    longest_ns: AtomicU64,
}

/// A connection that is open and ready to send.
pub struct Connection {
    stream: TcpStream,
    number: u64,
}

/// Opens the connections, one after the other.
///
/// # Errors
///
/// The error of the first connection that could not be made.
///
/// # Cancellation
///
/// Weak. Closes the connections made so far.
pub async fn connect(load: &Load) -> Result<Vec<Connection>, Errno> {
    let mut connections = Vec::new();
    for number in 0..load.connections as u64 {
        let stream = TcpStream::connect(load.server).await?;
        let _ = stream.send_small_writes_at_once();
        connections.push(Connection { stream, number });
    }
    Ok(connections)
}

/// Sends the load over connections that were made before, and returns them.
///
/// # Cancellation
///
/// Weak. The connections' coroutines continue to their ends; the connections are lost.
pub async fn run(load: Load, connections: Vec<Connection>) -> (Outcome, Vec<Connection>) {
    let counts = Arc::new(Counts::default());
    let expected = connections.len() as u64 * u64::from(load.requests);
    let running: Vec<JoinHandle<Connection>> =
        connections.into_iter().map(|connection| cops::spawn(drive(load, connection, counts.clone()))).collect();
    let mut connections = Vec::new();
    for handle in running {
        if let Ok(connection) = handle.await {
            connections.push(connection);
        }
    }
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (right, wrong) = (read(&counts.right), read(&counts.wrong));
    let outcome = Outcome {
        right,
        wrong,
        lost: expected - right - wrong,
        latency_ns: read(&counts.latency_ns),
        longest_ns: read(&counts.longest_ns),
    };
    (outcome, connections)
}

/// Sends one connection's requests.
async fn drive(load: Load, connection: Connection, counts: Arc<Counts>) -> Connection {
    let elements = load.order.elements();
    let mut words = alloc::vec![0u32; 3 * elements];
    let mut message = alloc::vec![0u8; load.order.request_bytes()];
    let mut received = alloc::vec![0u8; load.order.answer_bytes()];
    let mut next = Instant::now();
    for sequence in 0..load.requests {
        let (left, rest) = words.split_at_mut(elements);
        let (right, product) = rest.split_at_mut(elements);
        // Different numbers for each request, and equal ones in each run.
        let mut seed = (connection.number as u32) << 16 ^ sequence;
        for word in left.iter_mut().chain(right.iter_mut()) {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *word = seed >> 8;
        }
        matrix::multiply(load.order, left, right, product);
        message.resize(load.order.request_bytes(), 0);
        matrix::encode_request(load.order, sequence, left, right, &mut message);

        if !load.period.is_zero() {
            cops::sleep_until(next).await;
            next = next + load.period;
        }
        let start = Instant::now();
        let (result, returned) = connection.stream.write_all(message).await;
        message = returned;
        if result.is_err() {
            break;
        }
        let (complete, returned) = receive(&connection.stream, received).await;
        received = returned;
        if !complete {
            break;
        }
        let latency = start.elapsed().as_nanos() as u64;
        let product = &words[2 * elements..];
        let is_right = matches!(
            Answer::decode(&received),
            Ok(Decoded::Complete(answer, _))
                if answer.order == load.order && answer.sequence == sequence
                    && answer.product.iter().eq(product.iter().copied())
        );
        let count = if is_right { &counts.right } else { &counts.wrong };
        count.fetch_add(1, Ordering::Relaxed);
        counts.latency_ns.fetch_add(latency, Ordering::Relaxed);
        counts.longest_ns.fetch_max(latency, Ordering::Relaxed);
    }
    connection
}

/// Fills the buffer; returns whether that succeeded.
async fn receive(stream: &TcpStream, mut buffer: Vec<u8>) -> (bool, Vec<u8>) {
    let (mut end, length) = (0, buffer.len());
    while end < length {
        let (result, part) = stream.read(Part::new(buffer, end, length)).await;
        buffer = part.into_inner();
        match result {
            Ok(count) if count > 0 => end += count,
            _ => return (false, buffer),
        }
    }
    (true, buffer)
}
