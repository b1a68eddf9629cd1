//! TCP and UDP over IPv4, and local sockets.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use abi_unix::SystemCall;
use abi_unix::types::{
    SHUT_RD, SHUT_RDWR, SHUT_WR, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_STREAM, SocketAddress, socket_option,
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
    bytes: [u8; SocketAddress::SIZE],
    size: u32,
}

impl AddressBuffer {
    fn empty() -> Box<AddressBuffer> {
        Box::new(AddressBuffer { bytes: [0; SocketAddress::SIZE], size: SocketAddress::SIZE as u32 })
    }

    fn of(address: SocketAddrV4) -> Box<AddressBuffer> {
        Box::new(AddressBuffer { bytes: to_abi(address).to_bytes(), size: SocketAddress::SIZE as u32 })
    }

    fn get(&self) -> SocketAddrV4 {
        let address = SocketAddress::from_bytes(self.bytes).unwrap_or(SocketAddress { address: [0; 4], port: 0 });
        from_abi(address)
    }
}

fn to_abi(address: SocketAddrV4) -> SocketAddress {
    SocketAddress { address: address.ip().octets(), port: address.port() }
}

fn from_abi(address: SocketAddress) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(address.address), address.port)
}

/// An address for a socket: an address and a port in any form, also as text (`"0.0.0.0:80"`). There is no name
/// resolution, and no IPv6.
#[doc(alias("ToSocketAddrs", "ToSocketAddr"))]
pub trait ToSocketAddress {
    /// Converts it.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a text that is no address with a port, `EAFNOSUPPORT` for an address of IPv6.
    fn to_socket_address(&self) -> Result<SocketAddrV4>;
}

impl ToSocketAddress for SocketAddrV4 {
    fn to_socket_address(&self) -> Result<SocketAddrV4> {
        Ok(*self)
    }
}

impl ToSocketAddress for SocketAddr {
    fn to_socket_address(&self) -> Result<SocketAddrV4> {
        match self {
            SocketAddr::V4(address) => Ok(*address),
            SocketAddr::V6(_) => Err(Errno::EAFNOSUPPORT),
        }
    }
}

impl<A: Into<Ipv4Addr> + Copy> ToSocketAddress for (A, u16) {
    fn to_socket_address(&self) -> Result<SocketAddrV4> {
        Ok(SocketAddrV4::new(self.0.into(), self.1))
    }
}

impl ToSocketAddress for str {
    fn to_socket_address(&self) -> Result<SocketAddrV4> {
        self.parse::<SocketAddr>().map_err(|_| Errno::EINVAL)?.to_socket_address()
    }
}

impl<A: ToSocketAddress + ?Sized> ToSocketAddress for &A {
    fn to_socket_address(&self) -> Result<SocketAddrV4> {
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
        let descriptor = unix::network::socket(SOCK_STREAM | SOCK_CLOEXEC)?;
        unix::network::set_option(descriptor.raw(), socket_option::SOL_SOCKET, socket_option::SO_REUSEADDR, 1)?;
        unix::network::bind(descriptor.raw(), to_abi(address))?;
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
    pub async fn accept(&self) -> Result<(TcpStream, SocketAddrV4)> {
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
    pub fn local_address(&self) -> Result<SocketAddrV4> {
        unix::network::local_address(self.descriptor.raw()).map(from_abi)
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
        let descriptor = unix::network::socket(SOCK_STREAM | SOCK_CLOEXEC)?;
        let place = AddressBuffer::of(address);
        let arguments = [descriptor.raw() as usize, place.bytes.as_ptr() as usize, SocketAddress::SIZE];
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
    pub fn local_address(&self) -> Result<SocketAddrV4> {
        unix::network::local_address(self.descriptor.raw()).map(from_abi)
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`.
    #[doc(alias("peer_addr", "getpeername"))]
    pub fn peer_address(&self) -> Result<SocketAddrV4> {
        unix::network::peer_address(self.descriptor.raw()).map(from_abi)
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
        let descriptor = unix::network::socket(SOCK_DGRAM | SOCK_CLOEXEC)?;
        unix::network::bind(descriptor.raw(), to_abi(address))?;
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
            SocketAddress::SIZE,
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
    pub async fn receive_from<B: BufferMut>(&self, mut buffer: B) -> (Result<(usize, SocketAddrV4)>, B) {
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
    pub fn local_address(&self) -> Result<SocketAddrV4> {
        unix::network::local_address(self.descriptor.raw()).map(from_abi)
    }
}

/// Parses `a.b.c.d:port`, the form used by the commands of the demo programs.
///
/// # Errors
///
/// `EINVAL`.
pub fn parse_address(text: &str) -> Result<SocketAddrV4> {
    text.parse().map_err(|_| Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_in_every_form() {
        let expected = Ok(SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 15), 80));
        assert_eq!(expected.and_then(|address| address.to_socket_address()), expected);
        assert_eq!(expected.and_then(|address| SocketAddr::V4(address).to_socket_address()), expected);
        assert_eq!("10.0.2.15:80".to_socket_address(), expected);
        assert_eq!((Ipv4Addr::new(10, 0, 2, 15), 80).to_socket_address(), expected);
        assert_eq!(([10, 0, 2, 15], 80).to_socket_address(), expected);
        for wrong in ["", "10.0.2.15", "10.0.2.15:65536", "localhost:80", ":80"] {
            assert_eq!(wrong.to_socket_address(), Err(Errno::EINVAL), "{wrong}");
        }
        assert_eq!("[::1]:80".to_socket_address(), Err(Errno::EAFNOSUPPORT));
    }
}
