//! The traits of `futures-io` for readers and writers with a buffer, for crates that are written for these.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use unix::Errno;

use crate::io::{BufReader, BufWriter};

/// Returns the error of the standard library with the same number.
fn error(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.number().into())
}

impl<R: crate::io::AsyncRead> AsyncRead for BufReader<R> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        BufReader::poll_read(&mut self, context, into).map_err(error)
    }
}

impl<R: crate::io::AsyncRead> AsyncBufRead for BufReader<R> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        this.poll_fill(context).map_err(error).map_ok(|()| this.buffer())
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        BufReader::consume(&mut self, count);
    }
}

impl<W: crate::io::AsyncWrite> AsyncWrite for BufWriter<W> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        BufWriter::poll_write(&mut self, context, bytes).map_err(error)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        BufWriter::poll_flush(&mut self, context).map_err(error)
    }

    /// Writes the bytes in the buffer, and ends this direction of a connection.
    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        BufWriter::poll_flush(&mut self, context).map_ok(|()| self.get_ref().end()).map_err(error)
    }
}

impl From<crate::io::ReadExactError> for io::Error {
    fn from(reason: crate::io::ReadExactError) -> io::Error {
        match reason {
            crate::io::ReadExactError::UnexpectedEof => io::ErrorKind::UnexpectedEof.into(),
            crate::io::ReadExactError::Other(reason) => error(reason),
        }
    }
}
