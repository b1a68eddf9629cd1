//! TCP for programs of the microkernel: sockets whose other half is the network server, reached by asynchronous IPC.
//!
//! ```ignore
//! let network = Network::new(end);
//! let listener = network.listen(7, 64).await?;
//! loop {
//!     let mut stream = listener.accept().await?;
//!     executor::spawn(Priority::DEFAULT, async move {
//!         let mut bytes = [0; 64];
//!         while let Ok(count @ 1..) = stream.read(&mut bytes).await {
//!             stream.write_all(&bytes[..count]).await?;
//!         }
//!         Ok::<_, Error>(())
//!     })
//!     .detach();
//! }
//! ```
//!
//! The [`protocol`] is a handful of calls. Bytes travel in the memory behind the rings: each stream has a piece of it
//! for receiving and one for sending, which the client manages and the server only checks.
//!
//! A waiting call keeps a place in the rings, and a stream has at most one call that receives and one that sends. The
//! number of [`STREAMS`] is limited so that all their calls find places. Accepting more waits until a stream is closed,
//! and clients wait in the backlog.
//!
//! # Cancellation
//!
//! Sections of this name begin with one of the verdicts *Strict*, *Weak* and *None*, which the crate `cops`
//! (`user/runtime`) defines.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod protocol;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::{Ipv4Addr, SocketAddrV4};

use async_lock::{Semaphore, SemaphoreGuardArc};
use coroutine::Priority;
use sel4::channel::{self, Client, End, Message};
use sel4::{SharedMemory, executor};
use spin::Mutex;

use protocol::{Operation, Status};

/// Streams that a program can have at a time.
pub const STREAMS: usize = 500;
/// Bytes of memory behind the rings for each way of a stream.
pub const PIECE: usize = 2048;
/// Places in the rings of a program that has this many streams.
pub const CAPACITY: usize = 1024;
/// Pages behind the rings of a program that has this many streams.
pub const DATA_PAGES: u64 = (STREAMS * 2 * PIECE).div_ceil(4096) as u64;

const _: () = assert!(2 * STREAMS + 16 <= CAPACITY);

/// The reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The network server has refused the operation, or the other side has ended the connection.
    Refused(Status),
    /// The network server has ended.
    Gone(channel::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(status) => formatter.write_str(status.text()),
            Error::Gone(error) => write!(formatter, "the network server is gone: {error}"),
        }
    }
}

impl core::error::Error for Error {}

/// The result of an operation on sockets.
pub type Result<T> = core::result::Result<T, Error>;

/// A program's connection to the network server. Clones share it.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    client: Client,
    data: SharedMemory,
    /// Pieces for streams, by their offset; there are as many permits.
    pieces: Mutex<Vec<usize>>,
    permits: Arc<Semaphore>,
}

impl Inner {
    async fn call(&self, operation: Operation, words: [u64; 3]) -> Result<Message> {
        let [w1, w2, w3] = words;
        let answer = self.client.call([operation as u64, w1, w2, w3, 0, 0, 0]).await.map_err(Error::Gone)?;
        match Status::from_number(answer[0]) {
            Status::Done => Ok(answer),
            status => Err(Error::Refused(status)),
        }
    }
}

impl Network {
    /// Uses the network server at the other end. The number of streams depends on the memory behind the rings.
    pub fn new(end: End) -> Network {
        let data = end.data();
        // A listener's call takes a place too.
        let streams = (data.len() / (2 * PIECE)).min((end.capacity() - 16) / 2);
        let pieces = (0..streams).rev().map(|number| number * 2 * PIECE).collect();
        let permits = Arc::new(Semaphore::new(streams));
        Network(Arc::new(Inner { client: Client::new(end), data, pieces: Mutex::new(pieces), permits }))
    }

    /// Listens on a TCP port of all addresses.
    ///
    /// # Errors
    ///
    /// [`Error`]: for example, the port is taken.
    ///
    /// # Cancellation
    ///
    /// Weak. The port may stay taken until the program ends.
    pub async fn listen(&self, port: u16, backlog: usize) -> Result<Listener> {
        let answer = self.0.call(Operation::Listen, [port.into(), backlog as u64, 0]).await?;
        Ok(Listener { network: self.clone(), socket: answer[1] })
    }
}

/// A listening socket.
pub struct Listener {
    network: Network,
    socket: u64,
}

impl Listener {
    /// Waits for a connection. At the limit of streams, waits first for one of them to be closed.
    ///
    /// # Errors
    ///
    /// [`Error`].
    ///
    /// # Cancellation
    ///
    /// Weak. A connection that is accepted meanwhile stays open, unused, until the program ends.
    pub async fn accept(&self) -> Result<Stream> {
        let inner = &self.network.0;
        let permit = inner.permits.acquire_arc().await;
        let answer = inner.call(Operation::Accept, [self.socket, 0, 0]).await?;
        let piece = inner.pieces.lock().pop().expect("there is a piece for each permit");
        let peer = SocketAddrV4::new(Ipv4Addr::from_bits(answer[2] as u32), answer[3] as u16);
        let held = Held { network: self.network.clone(), socket: answer[1], piece, _permit: permit };
        Ok(Stream { held: Some(held), peer })
    }
}

/// The resources of a stream until it is closed.
struct Held {
    network: Network,
    socket: u64,
    /// Offset of its pieces: for receiving, then for sending.
    piece: usize,
    _permit: SemaphoreGuardArc,
}

/// A connection. Dropping it closes it: sent bytes are still delivered.
pub struct Stream {
    /// `None` only while the stream is being dropped.
    held: Option<Held>,
    peer: SocketAddrV4,
}

impl Stream {
    /// Returns the address of the other side.
    #[doc(alias = "peer_addr")]
    pub fn peer(&self) -> SocketAddrV4 {
        self.peer
    }

    fn held(&self) -> &Held {
        self.held.as_ref().expect("it is there until the stream is dropped")
    }

    /// Waits for bytes and copies up to [`PIECE`] of them; 0 if the slice is empty, or if the other side sends no more.
    ///
    /// # Errors
    ///
    /// [`Error`].
    ///
    /// # Cancellation
    ///
    /// Weak. Bytes that come for a dropped read are lost.
    #[doc(alias = "recv")]
    pub async fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let held = self.held();
        let inner = &held.network.0;
        let length = into.len().min(PIECE);
        let answer = inner.call(Operation::Receive, [held.socket, held.piece as u64, length as u64]).await?;
        // Reported by the server, and possibly wrong.
        let count = (answer[1] as usize).min(length);
        let inside = inner.data.read(held.piece, &mut into[..count]);
        debug_assert!(inside, "pieces are inside");
        Ok(count)
    }

    /// Sends all these bytes; waits while the other side does not take them.
    ///
    /// # Errors
    ///
    /// [`Error`]; how many bytes were sent is then unknown.
    ///
    /// # Cancellation
    ///
    /// None. Some of the bytes may have been sent, and the stream must not be used for sending until the dropped call
    /// is answered: close it.
    #[doc(alias = "send")]
    pub async fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let held = self.held();
        let inner = &held.network.0;
        let piece = held.piece + PIECE;
        for part in bytes.chunks(PIECE) {
            let inside = inner.data.write(piece, part);
            debug_assert!(inside, "pieces are inside");
            inner.call(Operation::Send, [held.socket, piece as u64, part.len() as u64]).await?;
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // The pieces are free when the server has closed the socket.
            executor::spawn(Priority::DEFAULT, async move {
                let _ = held.network.0.call(Operation::Close, [held.socket, 0, 0]).await;
                held.network.0.pieces.lock().push(held.piece);
            })
            .detach();
        }
    }
}
