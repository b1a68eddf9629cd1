//! The requests of a stream of bytes, for a server that keeps a buffer for each connection.

use alloc::vec::Vec;
use core::fmt;

use crate::{Decoded, HEADER_BYTES, Malformed, Request};

/// The received part of a stream of requests.
///
/// A server takes the complete requests, receives further bytes into the [room](Requests::room), and repeats both until
/// the peer closes the stream. The buffer grows with the peer's requests.
#[derive(Debug)]
pub struct Requests {
    buffer: Vec<u8>,
    /// The bytes that were received and not taken are `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Bytes of the request at `start`, as far as its received part tells.
    needed: usize,
}

impl Requests {
    /// Makes the beginning of a stream, with a buffer of `bytes` bytes at first.
    pub fn new(bytes: usize) -> Requests {
        Requests { buffer: alloc::vec![0; bytes.max(HEADER_BYTES)], start: 0, end: 0, needed: HEADER_BYTES }
    }

    /// Takes the next complete request, decoded and as its bytes.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: the stream has no boundary to go on from.
    pub fn take(&mut self) -> Result<Option<(Request<'_>, &[u8])>, Malformed> {
        let received = &self.buffer[self.start..self.end];
        match Request::decode(received)? {
            Decoded::Complete(request, length) => {
                self.start += length;
                Ok(Some((request, &received[..length])))
            }
            Decoded::NeedBytes(needed) => {
                self.needed = needed;
                Ok(None)
            }
        }
    }

    /// Returns the place for further bytes: at least the missing part of the first request.
    ///
    /// To be called when there is no complete request left.
    pub fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < self.needed {
            self.buffer.resize(self.needed, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// Adds the first `count` bytes of the [room](Requests::room), which were received.
    ///
    /// # Panics
    ///
    /// If the room is smaller.
    pub fn add(&mut self, count: usize) {
        assert!(count <= self.buffer.len() - self.end, "more bytes than there is room for");
        self.end += count;
    }

    /// Ends the stream, which the peer has closed.
    ///
    /// # Errors
    ///
    /// [`Reason::Unfinished`] in the middle of a request.
    pub fn finish<Failure>(self) -> Result<(), Reason<Failure>> {
        match self.end - self.start {
            0 => Ok(()),
            bytes => Err(Reason::Unfinished(bytes)),
        }
    }
}

/// The reason why a server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason<Failure> {
    /// The peer has sent no request.
    Malformed(Malformed),
    /// The connection has failed.
    Failed(Failure),
    /// The peer closed it in the middle of a request, of which this many bytes had come.
    Unfinished(usize),
}

impl<Failure: fmt::Display> fmt::Display for Reason<Failure> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Malformed(malformed) => malformed.fmt(formatter),
            Reason::Failed(failure) => failure.fmt(formatter),
            Reason::Unfinished(bytes) => write!(formatter, "the peer closed it {bytes} bytes into a request"),
        }
    }
}
