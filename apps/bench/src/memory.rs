//! The kernel's memory for idle connections, and for calls in flight.
//!
//! Connections here have both ends in this machine, so each is two endpoints; the figure is for one. Where buffers are
//! made when they are needed, it matters whether a connection has sent and received before it became idle, so both are
//! measured.

use abi_unix::Counter;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use cops::net::{TcpListener, TcpStream};
use cops::time::Duration;

use crate::{Outcome, attempt, figure};

const CONNECTIONS: usize = 256;
const CALLS: usize = 1000;

/// Returns the bytes of the kernel's heap in use, after a pause.
async fn heap() -> Result<f64, alloc::string::String> {
    cops::sleep(Duration::from_millis(50)).await;
    Ok(attempt!(cops::system::system::counter(Counter::HeapBytes)) as f64)
}

pub async fn measure() -> Outcome {
    let listener = attempt!(TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)));
    let address = attempt!(listener.local_address());
    // The first ones make tables grow.
    let first = connect(&listener, address, 16).await?;
    let before = heap().await?;
    let pairs = connect(&listener, address, CONNECTIONS).await?;
    let fresh = heap().await?;
    for (one, other) in &pairs {
        attempt!(one.write_all(&b"a request of some bytes"[..]).await.0);
        attempt!(other.read_exact(alloc::vec![0; 23]).await.0);
        attempt!(other.write_all(&b"an answer"[..]).await.0);
        attempt!(one.read_exact(alloc::vec![0; 9]).await.0);
    }
    let used = heap().await?;
    let each = |bytes: f64| bytes / (2 * CONNECTIONS) as f64;
    figure("connection", each(used - before), "bytes");
    figure("connection-fresh", each(fresh - before), "bytes");

    // Waiting calls, one for each endpoint of a connection, as in servers.
    let idle = heap().await?;
    let mut readers = Vec::new();
    for (one, other) in pairs {
        for stream in [one, other] {
            readers.push(cops::spawn(async move { stream.read(alloc::vec![0; 16]).await.0 }));
        }
    }
    let reading = heap().await?;
    figure("call", (reading - idle) / readers.len() as f64, "bytes");
    for reader in &readers {
        reader.cancel();
    }
    drop(readers);
    drop(first);

    // Waiting calls on one object.
    let (reader, _writer) = attempt!(cops::io::pipe());
    let reader = Arc::new(reader);
    let idle = heap().await?;
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        let reader = reader.clone();
        calls.push(cops::spawn(async move { reader.read(alloc::vec![0; 16]).await.0 }));
    }
    let blocked = heap().await?;
    figure("call-pipe", (blocked - idle) / CALLS as f64, "bytes");
    for call in calls {
        call.cancel();
    }
    crate::client::memory(each(used - before)).await
}

/// Makes connections, with both ends of each.
async fn connect(
    listener: &TcpListener,
    address: SocketAddr,
    count: usize,
) -> Result<Vec<(TcpStream, TcpStream)>, alloc::string::String> {
    let mut pairs = Vec::new();
    for _ in 0..count {
        let connecting = cops::spawn(TcpStream::connect(address));
        let (accepted, _) = attempt!(listener.accept().await);
        pairs.push((attempt!(attempt!(connecting.await)), accepted));
    }
    Ok(pairs)
}
