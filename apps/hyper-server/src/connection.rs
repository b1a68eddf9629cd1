//! A connection of COPS as hyper wants it: polled reads and writes of borrowed bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cops::io::{BufReader, BufWriter};
use cops::net::{Shutdown, TcpStream};
use futures_io::{AsyncBufRead, AsyncWrite};
use hyper::rt::{Read, ReadBufCursor, Write};

/// Bytes of the buffer of each direction.
const CAPACITY: usize = 4096;

/// A connection with a buffer for each direction.
pub struct Connection {
    reader: BufReader<Arc<TcpStream>>,
    writer: BufWriter<Arc<TcpStream>>,
}

impl Connection {
    /// Wraps a connection.
    pub fn new(stream: Arc<TcpStream>) -> Connection {
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
        reader.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl Write for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.writer), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(AsyncWrite::poll_flush(Pin::new(&mut self.writer), context))?;
        // A peer that has gone already is no error of this end.
        let _ = self.writer.get_ref().shutdown(Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}
