//! Connections for hyper, whose services then run in coroutines.
//!
//! ```ignore
//! let connection = cops::hyper::Connection::new(stream);
//! hyper::server::conn::http1::Builder::new().serve_connection(connection, service).await?;
//! ```

use alloc::sync::Arc;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;

use futures_io::{AsyncBufRead, AsyncWrite};
use hyper::rt::{Read, ReadBufCursor, Write};

use crate::io::{BufReader, BufWriter};
use crate::net::TcpStream;

/// Bytes of the buffer of each direction.
const CAPACITY: usize = 4096;

/// A connection with a buffer for each direction, since hyper reads into memory of its own and a call owns its buffer.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<Arc<TcpStream>>,
    writer: BufWriter<Arc<TcpStream>>,
}

impl Connection {
    /// Wraps a connection.
    pub fn new(stream: impl Into<Arc<TcpStream>>) -> Connection {
        let stream = stream.into();
        Connection {
            reader: BufReader::with_capacity(CAPACITY, stream.clone()),
            writer: BufWriter::with_capacity(CAPACITY, stream),
        }
    }
}

impl Read for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut reader = Pin::new(&mut self.reader);
        let bytes = ready!(reader.as_mut().poll_fill_buf(context))?;
        let count = bytes.len().min(into.remaining());
        into.put_slice(&bytes[..count]);
        AsyncBufRead::consume(reader, count);
        Poll::Ready(Ok(()))
    }
}

impl Write for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.writer), context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.writer), context)
    }

    /// Ends this direction of the connection, behind all bytes that were written.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_close(Pin::new(&mut self.writer), context)
    }
}
