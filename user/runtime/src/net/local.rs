//! Local sockets: connections and datagrams between programs of the machine (unix(7)).

use core::fmt;

use abi_unix::SystemCall;
use abi_unix::types::{SHUT_RD, SHUT_RDWR, SHUT_WR, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_STREAM};
use alloc::boxed::Box;
use alloc::vec::Vec;
use unix::network::{LONGEST_LOCAL_ADDRESS as LONGEST, LocalAddress};
use unix::{Descriptor, Result};

use super::{BACKLOG, Shutdown, close_unseen};
use crate::buffer::{Buffer, BufferMut};
use crate::call::Operation;
use crate::io::{owns_descriptor, stream};

/// The name of a local socket: a path, an abstract name, which begins with a NUL, or none.
#[derive(Clone, PartialEq, Eq, Hash)]
#[doc(alias("SocketAddr", "sockaddr_un"))]
pub struct SocketName {
    bytes: Vec<u8>,
}

impl SocketName {
    /// Returns the bytes: a path, an abstract name with the NUL before it, or none for a socket without a name.
    #[doc(alias("as_pathname", "as_abstract_name"))]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether it is none.
    pub fn is_unnamed(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl fmt::Debug for SocketName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{}\"", self.bytes.escape_ascii())
    }
}

/// Memory for a name and its length, which the kernel writes.
#[repr(C)]
struct NameBuffer {
    bytes: [u8; LONGEST],
    size: u32,
}

impl NameBuffer {
    fn empty() -> NameBuffer {
        NameBuffer { bytes: [0; LONGEST], size: LONGEST as u32 }
    }

    fn get(&self) -> SocketName {
        let bytes = self.bytes.get(2..(self.size as usize).min(LONGEST)).unwrap_or_default();
        // The NUL behind a path is no part of it.
        let bytes = if bytes.first() == Some(&0) { bytes } else { bytes.strip_suffix(&[0]).unwrap_or(bytes) };
        SocketName { bytes: bytes.to_vec() }
    }
}

/// Reads the name of a socket.
fn name_of(descriptor: &Descriptor) -> Result<SocketName> {
    let mut place = NameBuffer::empty();
    place.size = unix::network::local_name(descriptor.raw(), &mut place.bytes)? as u32;
    Ok(place.get())
}

/// A local socket that accepts connections.
///
/// ```no_run
/// # async fn serve() -> cops::system::Result<()> {
/// use cops::net::UnixListener;
///
/// let listener = UnixListener::bind("/tmp/service")?;
/// loop {
///     let (stream, _) = listener.accept().await?;
///     cops::spawn(async move { stream.write_all(&b"hello"[..]).await.0 }).detach();
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct UnixListener {
    descriptor: Descriptor,
}

impl UnixListener {
    /// Listens at a path, whose file is made and stays, or at an abstract name, which begins with a NUL.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` if the name is in use or the file is there, `EINVAL` for a name of more than 108 bytes, `EMFILE`,
    /// `ENOMEM`, and those of making a file.
    pub fn bind(name: impl AsRef<[u8]>) -> Result<UnixListener> {
        let address = LocalAddress::new(name.as_ref())?;
        let descriptor = unix::network::local_socket(SOCK_STREAM | SOCK_CLOEXEC)?;
        unix::network::bind_local(descriptor.raw(), &address)?;
        unix::network::listen(descriptor.raw(), BACKLOG)?;
        Ok(UnixListener { descriptor })
    }

    /// Waits for a connection and returns it with the peer's name, which is mostly none.
    ///
    /// # Errors
    ///
    /// `EMFILE` and `ENOMEM`: try again later.
    ///
    /// # Cancellation
    ///
    /// Weak. A connection that had been accepted by then is closed; others stay for the next call.
    pub async fn accept(&self) -> Result<(UnixStream, SocketName)> {
        let mut place = Box::new(NameBuffer::empty());
        let arguments = [
            self.descriptor.raw() as usize,
            place.bytes.as_mut_ptr() as usize,
            &raw mut place.size as usize,
            SOCK_CLOEXEC as usize,
        ];
        // SAFETY: the kernel writes to the box only.
        let operation = unsafe { Operation::new(SystemCall::AcceptWith, arguments, place) }.or_discard(close_unseen);
        let (result, place) = operation.await;
        let descriptor = Descriptor::from_result(result?);
        Ok((UnixStream { descriptor }, place.get()))
    }

    /// Returns the name at which it listens.
    ///
    /// # Errors
    ///
    /// None while it is open.
    #[doc(alias("local_addr", "getsockname"))]
    pub fn local_name(&self) -> Result<SocketName> {
        name_of(&self.descriptor)
    }
}

/// A connection between two local sockets. Several coroutines may use it at once through shared references.
#[derive(Debug)]
pub struct UnixStream {
    descriptor: Descriptor,
}

stream!(UnixStream, read);
stream!(
    UnixStream,
    write,
    fn end(&self) {
        // A peer that has gone already is no error of this end.
        let _ = self.shutdown(Shutdown::Write);
    }
);
owns_descriptor!(UnixListener, UnixStream, UnixDatagram);

impl UnixStream {
    /// Connects to the listener with this name; waits for a place in its backlog.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if nobody listens there, `ENOENT`, `EPROTOTYPE` for a socket of another kind, `EMFILE`, `ENOMEM`.
    ///
    /// # Cancellation
    ///
    /// Weak. The connection is given up.
    pub async fn connect(name: impl AsRef<[u8]>) -> Result<UnixStream> {
        let address = Box::new(LocalAddress::new(name.as_ref())?);
        let descriptor = unix::network::local_socket(SOCK_STREAM | SOCK_CLOEXEC)?;
        let bytes = address.bytes();
        let arguments = [descriptor.raw() as usize, bytes.as_ptr() as usize, bytes.len()];
        // SAFETY: the kernel reads the box only.
        let (result, _) = unsafe { Operation::new(SystemCall::Connect, arguments, address) }.await;
        result.map(|_| UnixStream { descriptor })
    }

    /// Makes two ends of a connection.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENOMEM`.
    #[doc(alias = "socketpair")]
    pub fn pair() -> Result<(UnixStream, UnixStream)> {
        let (first, second) = unix::network::socket_pair(SOCK_STREAM | SOCK_CLOEXEC)?;
        Ok((UnixStream { descriptor: first }, UnixStream { descriptor: second }))
    }

    /// Ends one or both directions.
    ///
    /// # Errors
    ///
    /// None while it is open.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let how = match how {
            Shutdown::Read => SHUT_RD,
            Shutdown::Write => SHUT_WR,
            Shutdown::Both => SHUT_RDWR,
        };
        unix::network::shutdown(self.descriptor.raw(), how)
    }

    /// Returns the name of the other end.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`.
    #[doc(alias("peer_addr", "getpeername"))]
    pub fn peer_name(&self) -> Result<SocketName> {
        let mut place = NameBuffer::empty();
        place.size = unix::network::local_peer_name(self.descriptor.raw(), &mut place.bytes)? as u32;
        Ok(place.get())
    }
}

/// A local socket of datagrams, none of which is lost.
#[derive(Debug)]
pub struct UnixDatagram {
    descriptor: Descriptor,
}

impl UnixDatagram {
    /// Opens a socket with a name, as [`UnixListener::bind`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn bind(name: impl AsRef<[u8]>) -> Result<UnixDatagram> {
        let address = LocalAddress::new(name.as_ref())?;
        let socket = UnixDatagram::unbound()?;
        unix::network::bind_local(socket.descriptor.raw(), &address)?;
        Ok(socket)
    }

    /// Opens a socket without a name, to which nobody can answer.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENOMEM`.
    pub fn unbound() -> Result<UnixDatagram> {
        unix::network::local_socket(SOCK_DGRAM | SOCK_CLOEXEC).map(|descriptor| UnixDatagram { descriptor })
    }

    /// Makes two sockets that are connected to each other.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENOMEM`.
    #[doc(alias = "socketpair")]
    pub fn pair() -> Result<(UnixDatagram, UnixDatagram)> {
        let (first, second) = unix::network::socket_pair(SOCK_DGRAM | SOCK_CLOEXEC)?;
        Ok((UnixDatagram { descriptor: first }, UnixDatagram { descriptor: second }))
    }

    /// Has datagrams go to the socket with this name, and come from it alone.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED`, `ENOENT`, `EPROTOTYPE` for a socket of another kind, `EPERM` if it is connected to another.
    pub fn connect(&self, name: impl AsRef<[u8]>) -> Result<()> {
        unix::network::connect_local(self.descriptor.raw(), &LocalAddress::new(name.as_ref())?)
    }

    /// Sends one datagram to the peer; waits for room there.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`, `ECONNREFUSED` if the peer is closed, `EMSGSIZE`.
    ///
    /// # Cancellation
    ///
    /// Weak. The datagram may have been sent.
    pub async fn send<B: Buffer>(&self, buffer: B) -> (Result<usize>, B) {
        let arguments = [self.descriptor.raw() as usize, buffer.pointer() as usize, buffer.length(), 0, 0, 0];
        // SAFETY: the kernel reads the buffer only.
        unsafe { Operation::new(SystemCall::SendTo, arguments, buffer) }.await
    }

    /// Sends one datagram to the socket with this name; waits for room there.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if it is closed, `ENOENT`, `EPERM` if it is connected to another, `EMSGSIZE`.
    ///
    /// # Cancellation
    ///
    /// Weak. The datagram may have been sent.
    pub async fn send_to<B: Buffer>(&self, buffer: B, name: impl AsRef<[u8]>) -> (Result<usize>, B) {
        let address = match LocalAddress::new(name.as_ref()) {
            Ok(address) => Box::new(address),
            Err(error) => return (Err(error), buffer),
        };
        let to = address.bytes();
        let arguments = [
            self.descriptor.raw() as usize,
            buffer.pointer() as usize,
            buffer.length(),
            0,
            to.as_ptr() as usize,
            to.len(),
        ];
        // SAFETY: the kernel reads the buffer and the box only.
        let (result, (buffer, _)) = unsafe { Operation::new(SystemCall::SendTo, arguments, (buffer, address)) }.await;
        (result, buffer)
    }

    /// Receives one datagram; bytes beyond the buffer are lost.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` if the peer has gone to another with datagrams of this socket.
    ///
    /// # Cancellation
    ///
    /// Weak. A datagram that had been received by then is lost.
    #[doc(alias = "recv")]
    pub async fn receive<B: BufferMut>(&self, mut buffer: B) -> (Result<usize>, B) {
        let arguments = [self.descriptor.raw() as usize, buffer.pointer_mut() as usize, buffer.length(), 0, 0, 0];
        // SAFETY: the kernel writes to the buffer only.
        unsafe { Operation::new(SystemCall::ReceiveFrom, arguments, buffer) }.await
    }

    /// Receives one datagram and the name of its sender; bytes beyond the buffer are lost.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    ///
    /// # Cancellation
    ///
    /// Weak. A datagram that had been received by then is lost.
    #[doc(alias = "recv_from")]
    pub async fn receive_from<B: BufferMut>(&self, mut buffer: B) -> (Result<(usize, SocketName)>, B) {
        let mut place = Box::new(NameBuffer::empty());
        let arguments = [
            self.descriptor.raw() as usize,
            buffer.pointer_mut() as usize,
            buffer.length(),
            0,
            place.bytes.as_mut_ptr() as usize,
            &raw mut place.size as usize,
        ];
        // SAFETY: the kernel writes to the buffer and the box only.
        let (result, (buffer, place)) =
            unsafe { Operation::new(SystemCall::ReceiveFrom, arguments, (buffer, place)) }.await;
        (result.map(|count| (count, place.get())), buffer)
    }

    /// Returns its name.
    ///
    /// # Errors
    ///
    /// None while it is open.
    #[doc(alias("local_addr", "getsockname"))]
    pub fn local_name(&self) -> Result<SocketName> {
        name_of(&self.descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_without_the_nul_of_a_path() {
        for (name, size, expected) in [
            (&b"/a\0"[..], 5, &b"/a"[..]),
            (b"\0a\0", 5, b"\0a\0"),
            (b"", 2, b""),
            (b"", 0, b""),
            (b"/abc", 6, b"/abc"),
        ] {
            let mut place = NameBuffer { size, ..NameBuffer::empty() };
            place.bytes[2..2 + name.len()].copy_from_slice(name);
            assert_eq!(place.get().as_bytes(), expected);
        }
        assert!(NameBuffer { size: u32::MAX, ..NameBuffer::empty() }.get().as_bytes().len() <= LONGEST);
    }
}
