//! Reading and writing for files, pipes and sockets, with buffers that the call owns.
//!
//! Every function takes the buffer and gives it back with the result, also when it fails. A read fills the buffer from
//! its start and returns the number of bytes; the length of a vector does not change. To read or write elsewhere in a
//! buffer, wrap it in a [`Part`].
//!
//! [`BufReader`] and [`BufWriter`] keep the buffers themselves. They read lines, take and fill borrowed slices, and
//! lose nothing when their futures are dropped, because a call in flight stays in the reader or writer.
//!
//! ```no_run
//! use cops::io::BufReader;
//!
//! # async fn example() -> Result<(), cops::Errno> {
//! let (reader, writer) = cops::io::pipe()?;
//! // The buffer comes back with the result.
//! let (written, _) = writer.write_all(Vec::from(*b"one\ntwo\n")).await;
//! written?;
//! drop(writer);
//! let mut lines = BufReader::new(reader).lines();
//! while let Some(line) = lines.next_line().await? {
//!     cops::println!("{line}");
//! }
//! # Ok(())
//! # }
//! ```

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use abi_unix::SystemCall;

use crate::buffer::{Buffer, BufferMut, Part};
pub use crate::buffered::{BufReader, BufWriter, Lines, Split};
use crate::call::Operation;
use unix::{Descriptor, Errno, Result};

/// Future of a read; see [`Operation`] for the effect of dropping it.
pub type Read<B> = Operation<B, 3>;
/// Future of a write; see [`Operation`] for the effect of dropping it.
pub type Write<B> = Operation<B, 3>;

/// Reads at most the buffer's length from a descriptor.
///
/// # Cancellation
///
/// Weak, as for every [`Operation`]: bytes that had been read by then are lost.
#[inline]
pub fn read<B: BufferMut>(descriptor: i32, mut buffer: B) -> Read<B> {
    let arguments = [descriptor as usize, buffer.pointer_mut() as usize, buffer.length()];
    // SAFETY: the kernel writes to the buffer only, which does not move and is used by no other code.
    unsafe { Operation::new(SystemCall::Read, arguments, buffer) }
}

/// Writes at most the buffer's length to a descriptor.
///
/// # Cancellation
///
/// Weak, as for every [`Operation`]: bytes that had been written by then stay written.
#[inline]
pub fn write<B: Buffer>(descriptor: i32, buffer: B) -> Write<B> {
    let arguments = [descriptor as usize, buffer.pointer() as usize, buffer.length()];
    // SAFETY: the kernel reads the buffer only, which does not move and is not written meanwhile.
    unsafe { Operation::new(SystemCall::Write, arguments, buffer) }
}

/// The reason why a buffer was not filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadExactError {
    /// The file or the input ended before. As an [`Errno`], which has no number for it, this is `EIO`.
    UnexpectedEof,
    /// A read failed.
    Other(Errno),
}

impl From<ReadExactError> for Errno {
    fn from(error: ReadExactError) -> Errno {
        match error {
            ReadExactError::UnexpectedEof => Errno::EIO,
            ReadExactError::Other(error) => error,
        }
    }
}

impl From<Errno> for ReadExactError {
    fn from(error: Errno) -> ReadExactError {
        ReadExactError::Other(error)
    }
}

impl fmt::Display for ReadExactError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadExactError::UnexpectedEof => formatter.write_str("the end came before the buffer was full"),
            ReadExactError::Other(error) => error.fmt(formatter),
        }
    }
}

impl core::error::Error for ReadExactError {}

/// A source of bytes: files, pipes and connections, and references to them.
///
/// It is for [`BufReader`] and [`copy`]; programs that read use the methods of the type itself.
pub trait AsyncRead {
    /// Future of a read.
    type Reading: Future<Output = (Result<usize>, Part<Vec<u8>>)> + Unpin + Send;

    /// Begins to read into the range; 0 bytes are the end.
    fn start_read(&self, into: Part<Vec<u8>>) -> Self::Reading;
}

/// A sink for bytes: files, pipes and connections, and references to them.
///
/// It is for [`BufWriter`] and [`copy`]; programs that write use the methods of the type itself.
pub trait AsyncWrite {
    /// Future of a write.
    type Writing: Future<Output = (Result<usize>, Part<Vec<u8>>)> + Unpin + Send;

    /// Begins to write the range, or a part of it.
    fn start_write(&self, from: Part<Vec<u8>>) -> Self::Writing;

    /// Tells the other side that nothing follows, where both directions end by themselves: for connections.
    fn end(&self) {}
}

macro_rules! through_references {
    ($($reference:ty),*) => { $(
        impl<T: AsyncRead + ?Sized> AsyncRead for $reference {
            type Reading = T::Reading;

            fn start_read(&self, into: Part<Vec<u8>>) -> T::Reading {
                (**self).start_read(into)
            }
        }

        impl<T: AsyncWrite + ?Sized> AsyncWrite for $reference {
            type Writing = T::Writing;

            fn start_write(&self, from: Part<Vec<u8>>) -> T::Writing {
                (**self).start_write(from)
            }

            fn end(&self) {
                (**self).end();
            }
        }
    )* };
}

through_references!(&T, Arc<T>);

/// Copies all bytes from a source to a sink, and returns their number.
///
/// # Errors
///
/// As reading and writing; the bytes before have been copied.
///
/// # Cancellation
///
/// Weak. Bytes that were read and not written are lost.
pub async fn copy(from: &impl AsyncRead, to: &impl AsyncWrite) -> Result<u64> {
    let mut buffer = alloc::vec![0; 8192];
    let mut total = 0;
    loop {
        let length = buffer.len();
        let (result, part) = from.start_read(Part::new(buffer, 0, length)).await;
        buffer = part.into_inner();
        let count = result?;
        if count == 0 {
            return Ok(total);
        }
        let mut done = 0;
        while done < count {
            let (result, part) = to.start_write(Part::new(buffer, done, count)).await;
            buffer = part.into_inner();
            match result? {
                0 => return Err(Errno::EIO),
                written => done += written,
            }
        }
        total += count as u64;
    }
}

/// Reads until the buffer is full.
///
/// # Errors
///
/// [`ReadExactError`]; the number of bytes read before is not returned.
///
/// # Cancellation
///
/// Weak. The bytes read so far are lost.
pub async fn read_exact<B: BufferMut>(descriptor: i32, mut buffer: B) -> (core::result::Result<(), ReadExactError>, B) {
    let (mut done, length) = (0, buffer.length());
    while done < length {
        let (result, part) = read(descriptor, Part::new(buffer, done, length)).await;
        buffer = part.into_inner();
        match result {
            Ok(0) => return (Err(ReadExactError::UnexpectedEof), buffer),
            Ok(count) => done += count,
            Err(error) => return (Err(error.into()), buffer),
        }
    }
    (Ok(()), buffer)
}

/// Reads to the end of the file or of the input, and appends it to the buffer; returns the number of bytes read.
///
/// # Errors
///
/// As [`read()`], and `ENOMEM`; the bytes read before are in the buffer.
///
/// # Cancellation
///
/// Weak. The bytes read so far are lost.
pub async fn read_to_end(descriptor: i32, mut buffer: Vec<u8>) -> (Result<usize>, Vec<u8>) {
    const STEP: usize = 4096;
    let begin = buffer.len();
    loop {
        let done = buffer.len();
        if buffer.try_reserve(STEP).is_err() {
            return (Err(Errno::ENOMEM), buffer);
        }
        buffer.resize(buffer.capacity(), 0);
        let length = buffer.len();
        let (result, part) = read(descriptor, Part::new(buffer, done, length)).await;
        buffer = part.into_inner();
        buffer.truncate(done + result.unwrap_or(0));
        match result {
            Ok(0) => return (Ok(done - begin), buffer),
            Ok(_) => {}
            Err(error) => return (Err(error), buffer),
        }
    }
}

/// Writes the whole buffer.
///
/// # Errors
///
/// As [`write()`]; the number of bytes written before is not returned.
///
/// # Cancellation
///
/// Weak. Some bytes may have been written.
pub fn write_all<B: Buffer>(descriptor: i32, buffer: B) -> WriteAll<B> {
    let length = buffer.length();
    WriteAll { operation: write(descriptor, Part::new(buffer, 0, length)), descriptor, done: 0 }
}

/// Future of [`write_all`]. Nearly always the first write completes it.
#[must_use = "nothing is written unless this is awaited"]
pub struct WriteAll<B> {
    operation: Write<Part<B>>,
    descriptor: i32,
    done: usize,
}

// Movable, as an operation is.
impl<B> Unpin for WriteAll<B> {}

impl<B: Buffer> Future for WriteAll<B> {
    type Output = (Result<()>, B);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let Poll::Ready((result, part)) = Pin::new(&mut this.operation).poll(context) else {
                return Poll::Pending;
            };
            let length = part.end();
            match result {
                Ok(0) if this.done < length => return Poll::Ready((Err(Errno::EIO), part.into_inner())),
                Ok(count) if this.done + count < length => this.done += count,
                Ok(_) => return Poll::Ready((Ok(()), part.into_inner())),
                Err(error) => return Poll::Ready((Err(error), part.into_inner())),
            }
            this.operation = write(this.descriptor, Part::new(part.into_inner(), this.done, length));
        }
    }
}

/// Gives a type that owns a descriptor the reading and writing functions.
macro_rules! stream {
    ($type:ty, read) => {
        impl $type {
            /// Reads at most the buffer's length; 0 is the end. The result comes with the buffer.
            ///
            /// # Cancellation
            ///
            /// Weak, as for every [`Operation`](crate::call::Operation): bytes that had been read by then are lost.
            #[inline]
            pub fn read<B: $crate::buffer::BufferMut>(&self, buffer: B) -> $crate::io::Read<B> {
                $crate::io::read(self.descriptor.raw(), buffer)
            }

            /// Reads until the buffer is full.
            ///
            /// # Errors
            ///
            /// [`ReadExactError`](crate::io::ReadExactError), which tells an early end from a failure; the number of
            /// bytes read before is not returned.
            ///
            /// # Cancellation
            ///
            /// Weak. The bytes read so far are lost.
            pub async fn read_exact<B: $crate::buffer::BufferMut>(
                &self,
                buffer: B,
            ) -> (core::result::Result<(), $crate::io::ReadExactError>, B) {
                $crate::io::read_exact(self.descriptor.raw(), buffer).await
            }

            /// Reads to the end of the file or of the input, and appends it to the buffer; returns the number of bytes
            /// read.
            ///
            /// # Errors
            ///
            /// As `read`, and `ENOMEM`; the bytes read before are in the buffer.
            ///
            /// # Cancellation
            ///
            /// Weak. The bytes read so far are lost.
            pub async fn read_to_end(&self, buffer: alloc::vec::Vec<u8>) -> (unix::Result<usize>, alloc::vec::Vec<u8>) {
                $crate::io::read_to_end(self.descriptor.raw(), buffer).await
            }
        }

        impl $crate::io::AsyncRead for $type {
            type Reading = $crate::io::Read<$crate::buffer::Part<alloc::vec::Vec<u8>>>;

            fn start_read(&self, into: $crate::buffer::Part<alloc::vec::Vec<u8>>) -> Self::Reading {
                self.read(into)
            }
        }
    };
    ($type:ty, write $(, $end:item)?) => {
        impl $type {
            /// Writes at most the buffer's length and returns the number of bytes, with the buffer.
            ///
            /// # Cancellation
            ///
            /// Weak, as for every [`Operation`](crate::call::Operation): bytes that had been written by then stay
            /// written.
            #[inline]
            pub fn write<B: $crate::buffer::Buffer>(&self, buffer: B) -> $crate::io::Write<B> {
                $crate::io::write(self.descriptor.raw(), buffer)
            }

            /// Writes the whole buffer.
            ///
            /// # Errors
            ///
            /// As `write`; the number of bytes written before is not returned.
            ///
            /// # Cancellation
            ///
            /// Weak. Some bytes may have been written.
            #[inline]
            pub fn write_all<B: $crate::buffer::Buffer>(&self, buffer: B) -> $crate::io::WriteAll<B> {
                $crate::io::write_all(self.descriptor.raw(), buffer)
            }
        }

        impl $crate::io::AsyncWrite for $type {
            type Writing = $crate::io::Write<$crate::buffer::Part<alloc::vec::Vec<u8>>>;

            fn start_write(&self, from: $crate::buffer::Part<alloc::vec::Vec<u8>>) -> Self::Writing {
                self.write(from)
            }

            $($end)?
        }
    };
}
pub(crate) use stream;

/// The reading end of a pipe.
#[derive(Debug)]
pub struct PipeReader {
    descriptor: Descriptor,
}

/// The writing end of a pipe.
#[derive(Debug)]
pub struct PipeWriter {
    descriptor: Descriptor,
}

stream!(PipeReader, read);
stream!(PipeWriter, write);

/// Creates a pipe.
///
/// # Errors
///
/// `EMFILE`, `ENOMEM`.
#[doc(alias = "pipe2")]
pub fn pipe() -> Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = unix::file::pipe(abi_unix::types::open::CLOEXEC)?;
    Ok((PipeReader { descriptor: reader }, PipeWriter { descriptor: writer }))
}

macro_rules! owns_descriptor {
    ($($type:ty),*) => { $(
        impl $type {
            /// Takes over a descriptor. If it refers to an object of another kind, calls fail.
            pub fn from_descriptor(descriptor: unix::Descriptor) -> Self {
                Self { descriptor }
            }

            /// Returns the descriptor, for calls that have no function here.
            #[doc(alias("as_raw_fd", "as_fd"))]
            pub fn descriptor(&self) -> &unix::Descriptor {
                &self.descriptor
            }

            /// Gives up the descriptor.
            pub fn into_descriptor(self) -> unix::Descriptor {
                self.descriptor
            }
        }
    )* };
}
pub(crate) use owns_descriptor;

owns_descriptor!(PipeReader, PipeWriter);
