//! The traits of `embedded-io-async` for readers and writers with a buffer, for crates that are written for these.

use core::fmt;

use embedded_io_async::{BufRead, Error, ErrorKind, ErrorType, Read, Write};
use unix::Errno;

use crate::io::{AsyncRead, AsyncWrite, BufReader, BufWriter};

/// An [`Errno`] as an error of `embedded-io-async`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError(pub Errno);

impl fmt::Display for IoError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl core::error::Error for IoError {}

impl From<IoError> for Errno {
    fn from(error: IoError) -> Errno {
        error.0
    }
}

impl Error for IoError {
    fn kind(&self) -> ErrorKind {
        match self.0 {
            Errno::ENOENT => ErrorKind::NotFound,
            Errno::EACCES | Errno::EPERM => ErrorKind::PermissionDenied,
            Errno::ECONNREFUSED => ErrorKind::ConnectionRefused,
            Errno::ECONNRESET => ErrorKind::ConnectionReset,
            Errno::ECONNABORTED => ErrorKind::ConnectionAborted,
            Errno::ENOTCONN => ErrorKind::NotConnected,
            Errno::EADDRINUSE => ErrorKind::AddrInUse,
            Errno::EADDRNOTAVAIL => ErrorKind::AddrNotAvailable,
            Errno::EPIPE => ErrorKind::BrokenPipe,
            Errno::EEXIST => ErrorKind::AlreadyExists,
            Errno::EINVAL => ErrorKind::InvalidInput,
            Errno::ETIMEDOUT => ErrorKind::TimedOut,
            Errno::EINTR => ErrorKind::Interrupted,
            Errno::ENOSYS => ErrorKind::Unsupported,
            Errno::ENOMEM => ErrorKind::OutOfMemory,
            _ => ErrorKind::Other,
        }
    }
}

impl<R: AsyncRead> ErrorType for BufReader<R> {
    type Error = IoError;
}

impl<R: AsyncRead> Read for BufReader<R> {
    async fn read(&mut self, into: &mut [u8]) -> Result<usize, IoError> {
        BufReader::read(self, into).await.map_err(IoError)
    }
}

impl<R: AsyncRead> BufRead for BufReader<R> {
    async fn fill_buf(&mut self) -> Result<&[u8], IoError> {
        BufReader::fill_buf(self).await.map_err(IoError)
    }

    fn consume(&mut self, count: usize) {
        BufReader::consume(self, count);
    }
}

impl<W: AsyncWrite> ErrorType for BufWriter<W> {
    type Error = IoError;
}

impl<W: AsyncWrite> Write for BufWriter<W> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        BufWriter::write(self, bytes).await.map_err(IoError)
    }

    async fn flush(&mut self) -> Result<(), IoError> {
        BufWriter::flush(self).await.map_err(IoError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_kinds() {
        let kind = |error| IoError(error).kind();
        assert_eq!((kind(Errno::EPIPE), kind(Errno::EIO)), (ErrorKind::BrokenPipe, ErrorKind::Other));
        assert_eq!(Errno::from(IoError(Errno::EIO)), Errno::EIO);
    }
}
