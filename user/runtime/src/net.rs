//! TCP and UDP over IPv4 and IPv6, and local sockets.
//!
//! ```no_run
//! use cops::net::{TcpListener, TcpStream, UdpSocket};
//!
//! # async fn example() -> Result<(), cops::Errno> {
//! // Each connection is a coroutine, which answers with what it gets.
//! let listener = TcpListener::bind("0.0.0.0:7000")?;
//! let echo = cops::spawn_named("echo", async move {
//!     let (stream, peer) = listener.accept().await?;
//!     cops::println!("{peer} is there");
//!     let (mut length, mut buffer) = stream.read(vec![0; 512]).await;
//!     while length? > 0 {
//!         buffer.truncate(length?);
//!         let (written, mut used) = stream.write_all(buffer).await;
//!         written?;
//!         used.resize(512, 0);
//!         (length, buffer) = stream.read(used).await;
//!     }
//!     Ok::<_, cops::Errno>(())
//! });
//!
//! let stream = TcpStream::connect("127.0.0.1:7000").await?;
//! stream.write_all("hello").await.0?;
//! let (length, answer) = stream.read(vec![0; 512]).await;
//! assert_eq!(&answer[..length?], b"hello");
//! drop(stream);
//! echo.await.expect("nothing cancels it")?;
//!
//! let socket = UdpSocket::bind("0.0.0.0:0")?;
//! socket.send_to("a datagram", "10.0.2.2:9").await.0?;
//! # Ok(())
//! # }
//! ```

use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use abi_unix::SystemCall;
use abi_unix::types::{
    LONGEST_ADDRESS, SHUT_RD, SHUT_RDWR, SHUT_WR, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_STREAM, address_of_bytes,
    bytes_of_address, socket_option,
};
use alloc::boxed::Box;

use crate::buffer::{Buffer, BufferMut};
use crate::call::Operation;
use crate::io::{owns_descriptor, stream};
use unix::{Descriptor, Errno, Result};

mod local;

pub use local::{SocketName, UnixDatagram, UnixListener, UnixStream};

/// Default number of connections that may wait to be accepted.
pub const BACKLOG: u32 = 128;

/// Memory for an address and its length, which the kernel reads or writes.
#[repr(C)]
struct AddressBuffer {
    bytes: [u8; LONGEST_ADDRESS],
    size: u32,
}

impl AddressBuffer {
    fn empty() -> Box<AddressBuffer> {
        Box::new(AddressBuffer { bytes: [0; LONGEST_ADDRESS], size: LONGEST_ADDRESS as u32 })
    }

    fn of(address: SocketAddr) -> Box<AddressBuffer> {
        let (bytes, size) = bytes_of_address(address);
        Box::new(AddressBuffer { bytes, size: size as u32 })
    }

    /// Returns the address that the kernel has written.
    fn get(&self) -> SocketAddr {
        let unspecified = || SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into();
        address_of_bytes(&self.bytes).unwrap_or_else(unspecified)
    }
}

/// An address for a socket: an address of either version of IP and a port in any form, also as text (`"0.0.0.0:80"`,
/// `"[::1]:80"`). There is no name resolution. A socket at an address of IPv6 that is unspecified (`"[::]:80"`) is for
/// both versions; peers of IPv4 have mapped addresses there (`::ffff:10.0.2.2`).
#[doc(alias("ToSocketAddrs", "ToSocketAddr"))]
pub trait ToSocketAddress {
    /// Converts it.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a text that is no address with a port.
    fn to_socket_address(&self) -> Result<SocketAddr>;
}

impl ToSocketAddress for SocketAddr {
    fn to_socket_address(&self) -> Result<SocketAddr> {
        Ok(*self)
    }
}

impl ToSocketAddress for SocketAddrV4 {
    fn to_socket_address(&self) -> Result<SocketAddr> {
        Ok((*self).into())
    }
}

impl ToSocketAddress for SocketAddrV6 {
    fn to_socket_address(&self) -> Result<SocketAddr> {
        Ok((*self).into())
    }
}

impl<A: Into<IpAddr> + Copy> ToSocketAddress for (A, u16) {
    fn to_socket_address(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.0.into(), self.1))
    }
}

impl ToSocketAddress for str {
    fn to_socket_address(&self) -> Result<SocketAddr> {
        self.parse().map_err(|_| Errno::EINVAL)
    }
}

impl<A: ToSocketAddress + ?Sized> ToSocketAddress for &A {
    fn to_socket_address(&self) -> Result<SocketAddr> {
        (**self).to_socket_address()
    }
}

/// Closes a connection that was accepted for a dropped future.
fn close_unseen(result: usize) {
    drop(Descriptor::from_result(result));
}

/// A socket that accepts connections.
#[derive(Debug)]
pub struct TcpListener {
    descriptor: Descriptor,
}

impl TcpListener {
    /// Listens at an address; port 0 means any free port.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EMFILE`, `ENOMEM`, and those of [`ToSocketAddress`].
    pub fn bind(address: impl ToSocketAddress) -> Result<TcpListener> {
        TcpListener::bind_with_backlog(address, BACKLOG)
    }

    /// Listens with another number of connections that may wait to be accepted.
    ///
    /// # Errors
    ///
    /// As [`TcpListener::bind`].
    #[doc(alias = "listen")]
    pub fn bind_with_backlog(address: impl ToSocketAddress, backlog: u32) -> Result<TcpListener> {
        let address = address.to_socket_address()?;
        let descriptor = unix::network::socket_for(address, SOCK_STREAM | SOCK_CLOEXEC)?;
        unix::network::set_option(descriptor.raw(), socket_option::SOL_SOCKET, socket_option::SO_REUSEADDR, 1)?;
        unix::network::bind(descriptor.raw(), address)?;
        unix::network::listen(descriptor.raw(), backlog)?;
        Ok(TcpListener { descriptor })
    }

    /// Waits for a connection and returns it with the peer's address.
    ///
    /// # Errors
    ///
    /// `EMFILE` and `ENOMEM`: try again later; `ECONNABORTED`: try again at once.
    ///
    /// # Cancellation
    ///
    /// Weak. A connection that had been accepted by then is closed; others stay for the next call.
    pub async fn accept(&self) -> Result<(TcpStream, SocketAddr)> {
        let mut place = AddressBuffer::empty();
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
        Ok((TcpStream { descriptor }, place.get()))
    }

    /// Returns the address at which the socket listens.
    ///
    /// # Errors
    ///
    /// None while it is open.
    #[doc(alias("local_addr", "getsockname"))]
    pub fn local_address(&self) -> Result<SocketAddr> {
        unix::network::local_address(self.descriptor.raw())
    }
}

/// The directions of a connection to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Nothing more will be received.
    Read,
    /// Nothing more will be sent; the peer sees the end.
    Write,
    /// Both directions.
    Both,
}

/// A TCP connection. Several coroutines may use it at once through shared references (`Arc<TcpStream>`), usually one to
/// read and one to write.
#[derive(Debug)]
pub struct TcpStream {
    descriptor: Descriptor,
}

stream!(TcpStream, read);
stream!(
    TcpStream,
    write,
    fn end(&self) {
        // A peer that has gone already is no error of this end.
        let _ = self.shutdown(Shutdown::Write);
    }
);
owns_descriptor!(TcpListener, TcpStream, UdpSocket);

impl TcpStream {
    /// Connects to an address.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`, `EMFILE`, `ENOMEM`, `EADDRNOTAVAIL`, and those of
    /// [`ToSocketAddress`].
    ///
    /// # Cancellation
    ///
    /// Weak. The connection is given up.
    pub async fn connect(address: impl ToSocketAddress) -> Result<TcpStream> {
        let address = address.to_socket_address()?;
        let descriptor = unix::network::socket_for(address, SOCK_STREAM | SOCK_CLOEXEC)?;
        let place = AddressBuffer::of(address);
        let arguments = [descriptor.raw() as usize, place.bytes.as_ptr() as usize, place.size as usize];
        // SAFETY: the kernel reads the box only.
        let (result, _) = unsafe { Operation::new(SystemCall::Connect, arguments, place) }.await;
        result.map(|_| TcpStream { descriptor })
    }

    /// Ends one or both directions.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let how = match how {
            Shutdown::Read => SHUT_RD,
            Shutdown::Write => SHUT_WR,
            Shutdown::Both => SHUT_RDWR,
        };
        unix::network::shutdown(self.descriptor.raw(), how)
    }

    /// Sends small writes at once instead of collecting them (disables Nagle's algorithm).
    ///
    /// # Errors
    ///
    /// None while it is open.
    #[doc(alias("set_nodelay", "TCP_NODELAY"))]
    pub fn send_small_writes_at_once(&self) -> Result<()> {
        unix::network::set_option(self.descriptor.raw(), socket_option::IPPROTO_TCP, socket_option::TCP_NODELAY, 1)
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    ///
    /// None while it is open.
    #[doc(alias("local_addr", "getsockname"))]
    pub fn local_address(&self) -> Result<SocketAddr> {
        unix::network::local_address(self.descriptor.raw())
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`.
    #[doc(alias("peer_addr", "getpeername"))]
    pub fn peer_address(&self) -> Result<SocketAddr> {
        unix::network::peer_address(self.descriptor.raw())
    }
}

/// A UDP socket.
#[derive(Debug)]
pub struct UdpSocket {
    descriptor: Descriptor,
}

impl UdpSocket {
    /// Opens a socket at an address; port 0 means any free port.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EMFILE`, `ENOMEM`, and those of [`ToSocketAddress`].
    pub fn bind(address: impl ToSocketAddress) -> Result<UdpSocket> {
        let address = address.to_socket_address()?;
        let descriptor = unix::network::socket_for(address, SOCK_DGRAM | SOCK_CLOEXEC)?;
        unix::network::bind(descriptor.raw(), address)?;
        Ok(UdpSocket { descriptor })
    }

    /// Sends one datagram.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`, `ENETUNREACH`, `ENOBUFS`, and those of [`ToSocketAddress`].
    ///
    /// # Cancellation
    ///
    /// Weak. The datagram may have been sent.
    pub async fn send_to<B: Buffer>(&self, buffer: B, address: impl ToSocketAddress) -> (Result<usize>, B) {
        let address = match address.to_socket_address() {
            Ok(address) => address,
            Err(error) => return (Err(error), buffer),
        };
        let place = AddressBuffer::of(address);
        let arguments = [
            self.descriptor.raw() as usize,
            buffer.pointer() as usize,
            buffer.length(),
            0,
            place.bytes.as_ptr() as usize,
            place.size as usize,
        ];
        // SAFETY: the kernel reads the buffer and the box only.
        let (result, (buffer, _)) = unsafe { Operation::new(SystemCall::SendTo, arguments, (buffer, place)) }.await;
        (result, buffer)
    }

    /// Receives one datagram and the address of its sender; bytes beyond the buffer are lost.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if an earlier datagram met no receiver.
    ///
    /// # Cancellation
    ///
    /// Weak. A datagram that had been received by then is lost.
    #[doc(alias = "recv_from")]
    pub async fn receive_from<B: BufferMut>(&self, mut buffer: B) -> (Result<(usize, SocketAddr)>, B) {
        let mut place = AddressBuffer::empty();
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

    /// Returns the address of this end.
    ///
    /// # Errors
    ///
    /// None while it is open.
    #[doc(alias("local_addr", "getsockname"))]
    pub fn local_address(&self) -> Result<SocketAddr> {
        unix::network::local_address(self.descriptor.raw())
    }
}

/// Parses an address with a port, the form used by the commands of the demo programs: `a.b.c.d:port`, `[a:b::c]:port`.
///
/// # Errors
///
/// `EINVAL`.
pub fn parse_address(text: &str) -> Result<SocketAddr> {
    text.to_socket_address()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv6Addr;

    #[test]
    fn addresses_are_taken_in_every_form() {
        let four = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 15), 80);
        let expected = Ok(SocketAddr::V4(four));
        assert_eq!(four.to_socket_address(), expected);
        assert_eq!(SocketAddr::V4(four).to_socket_address(), expected);
        assert_eq!("10.0.2.15:80".to_socket_address(), expected);
        assert_eq!((Ipv4Addr::new(10, 0, 2, 15), 80).to_socket_address(), expected);
        assert_eq!(([10, 0, 2, 15], 80).to_socket_address(), expected);
        let six = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 80, 0, 0);
        assert_eq!(six.to_socket_address(), Ok(six.into()));
        assert_eq!("[::1]:80".to_socket_address(), Ok(six.into()));
        assert_eq!((Ipv6Addr::LOCALHOST, 80).to_socket_address(), Ok(six.into()));
        assert_eq!(([0u16, 0, 0, 0, 0, 0, 0, 1], 80).to_socket_address(), Ok(six.into()));
        for wrong in ["", "10.0.2.15", "10.0.2.15:65536", "localhost:80", ":80", "::1:80", "[::1]"] {
            assert_eq!(wrong.to_socket_address(), Err(Errno::EINVAL), "{wrong}");
        }
    }

    #[test]
    fn addresses_of_both_versions_have_room() {
        for text in ["10.0.2.15:80", "[fe80::1%3]:65535", "[::]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(AddressBuffer::of(address).get(), address);
        }
        assert_eq!(AddressBuffer::empty().get().port(), 0);
    }
}
