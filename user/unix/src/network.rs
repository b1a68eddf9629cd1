//! Sockets.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use abi_unix::types::{
    AF_INET, AF_INET6, AF_UNIX, LONGEST_ADDRESS, LONGEST_LOCAL_NAME, MessageHeader, address_of_bytes, bytes_of_address,
    message, socket_option,
};

use crate::{Descriptor, Errno, Result, call};

/// Creates an IPv4 socket; `kind` is `SOCK_STREAM` or `SOCK_DGRAM` with flags.
///
/// # Errors
///
/// `EAFNOSUPPORT`, `EPROTONOSUPPORT`, `EINVAL`, `EMFILE`, `ENOMEM`.
pub fn socket(kind: u32) -> Result<Descriptor> {
    socket_of(AF_INET, kind)
}

/// Creates a socket for addresses of this one's version of IP. One of IPv6 is for both versions, unless it has the
/// option `IPV6_V6ONLY`.
///
/// # Errors
///
/// As [`socket`].
pub fn socket_for(address: SocketAddr, kind: u32) -> Result<Descriptor> {
    socket_of(if address.is_ipv4() { AF_INET } else { AF_INET6 }, kind)
}

/// The address of a local socket, as it lies in memory (`struct sockaddr_un`).
///
/// A name is a path; or, if it begins with a NUL, an abstract name, which is in no file system.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "sockaddr_un")]
pub struct LocalAddress {
    bytes: [u8; 2 + LONGEST_LOCAL_NAME],
    length: usize,
}

impl LocalAddress {
    /// Returns the address with this name. An empty one is for [`bind_local`], which chooses a name.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a name of more than 108 bytes.
    pub fn new(name: &[u8]) -> Result<LocalAddress> {
        let mut bytes = [0; 2 + LONGEST_LOCAL_NAME];
        bytes[..2].copy_from_slice(&AF_UNIX.to_le_bytes());
        bytes[2..].get_mut(..name.len()).ok_or(Errno::EINVAL)?.copy_from_slice(name);
        Ok(LocalAddress { bytes, length: 2 + name.len() })
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Creates a local socket; `kind` is `SOCK_STREAM`, `SOCK_DGRAM` or `SOCK_SEQPACKET` with flags.
///
/// # Errors
///
/// `ESOCKTNOSUPPORT` for other kinds, `EMFILE`, `ENOMEM`.
#[doc(alias = "AF_UNIX")]
pub fn local_socket(kind: u32) -> Result<Descriptor> {
    socket_of(AF_UNIX, kind)
}

fn socket_of(family: u16, kind: u32) -> Result<Descriptor> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Socket, family, kind, 0) }.map(Descriptor::from_result)
}

/// Gives a local socket its name. The file of a path is made, and stays when the socket is closed.
///
/// # Errors
///
/// `EADDRINUSE` if the name is in use or the file is there, `EINVAL` if the socket has a name, and those of making a
/// file.
#[doc(alias = "bind")]
pub fn bind_local(descriptor: i32, address: &LocalAddress) -> Result<()> {
    let bytes = address.bytes();
    // SAFETY: the address lives through the call.
    unsafe { call!(Bind, descriptor, bytes.as_ptr(), bytes.len()) }.map(drop)
}

/// Takes the next connection of a local socket; waits for one.
///
/// # Errors
///
/// `EMFILE`, `ENOMEM`, `EINVAL` if the socket does not listen, `EAGAIN` if it must not wait.
#[doc(alias = "accept")]
pub fn accept_local(descriptor: i32) -> Result<Descriptor> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Accept, descriptor, 0, 0) }.map(Descriptor::from_result)
}

/// Connects a local socket to the one with this name; waits for a place in its backlog.
///
/// # Errors
///
/// `ECONNREFUSED` if nobody listens there, `ENOENT`, `EPROTOTYPE` for a socket of another kind, `EISCONN`, `EAGAIN` if
/// it must not wait.
#[doc(alias = "connect")]
pub fn connect_local(descriptor: i32, address: &LocalAddress) -> Result<()> {
    let bytes = address.bytes();
    // SAFETY: the address lives through the call.
    unsafe { call!(Connect, descriptor, bytes.as_ptr(), bytes.len()) }.map(drop)
}

/// Sends a datagram to the local socket with this name.
///
/// # Errors
///
/// `ECONNREFUSED` if it is closed, `EPERM` if it is connected to another, `EMSGSIZE`, `EAGAIN` if it must not wait.
#[doc(alias = "sendto")]
pub fn send_to_local(descriptor: i32, buffer: &[u8], flags: u32, address: &LocalAddress) -> Result<usize> {
    let bytes = address.bytes();
    // SAFETY: buffer and address live through the call.
    unsafe { call!(SendTo, descriptor, buffer.as_ptr(), buffer.len(), flags, bytes.as_ptr(), bytes.len()) }
}

/// Bytes of the longest address of a local socket that the kernel writes: a path of 108 bytes with its NUL.
pub const LONGEST_LOCAL_ADDRESS: usize = 2 + LONGEST_LOCAL_NAME + 1;

/// Writes the address of a local socket to a buffer; returns its length.
///
/// # Errors
///
/// `EBADF`, `ENOTSOCK`.
#[doc(alias = "getsockname")]
pub fn local_name(descriptor: i32, address: &mut [u8; LONGEST_LOCAL_ADDRESS]) -> Result<usize> {
    let mut size = address.len() as u32;
    // SAFETY: the kernel writes at most as many bytes as there are, and the length, to exclusively borrowed memory.
    unsafe { call!(GetSocketName, descriptor, address.as_mut_ptr(), &raw mut size) }.map(|_| size as usize)
}

/// Writes the address of a local socket's peer to a buffer; returns its length.
///
/// # Errors
///
/// `EBADF`, `ENOTSOCK`, `ENOTCONN`.
#[doc(alias = "getpeername")]
pub fn local_peer_name(descriptor: i32, address: &mut [u8; LONGEST_LOCAL_ADDRESS]) -> Result<usize> {
    let mut size = address.len() as u32;
    // SAFETY: as in `local_name`.
    unsafe { call!(GetPeerName, descriptor, address.as_mut_ptr(), &raw mut size) }.map(|_| size as usize)
}

/// Creates two local sockets that are connected to each other; `kind` is `SOCK_STREAM`, `SOCK_DGRAM` or
/// `SOCK_SEQPACKET` with flags.
///
/// # Errors
///
/// `ESOCKTNOSUPPORT` for other kinds, `EMFILE`, `ENOMEM`.
#[doc(alias = "socketpair")]
pub fn socket_pair(kind: u32) -> Result<(Descriptor, Descriptor)> {
    let mut ends = [-1i32; 2];
    // SAFETY: the kernel writes two `i32` to exclusively borrowed memory.
    unsafe { call!(SocketPair, AF_UNIX, kind, 0, ends.as_mut_ptr()) }?;
    Ok((Descriptor::from_raw(ends[0]), Descriptor::from_raw(ends[1])))
}

/// Room for control messages with as many files as one message may have, in words.
const CONTROL_WORDS: usize = 2 + message::MOST_FILES.div_ceil(2);

/// Sends a message through a local socket with open files, of which the first 253 are sent.
///
/// # Errors
///
/// `EPIPE`, `ECONNREFUSED`, `EMSGSIZE`, `EBADF` for a file, `ETOOMANYREFS` if too many were not received yet, `EAGAIN`
/// if it must not wait.
#[doc(alias("sendmsg", "SCM_RIGHTS"))]
pub fn send_files(descriptor: i32, buffer: &[u8], files: &[i32], flags: u32) -> Result<usize> {
    let files = &files[..files.len().min(message::MOST_FILES)];
    let mut control = [0u64; CONTROL_WORDS];
    control[0] = (16 + 4 * files.len()) as u64;
    control[1] = (socket_option::SOL_SOCKET as u64) | (message::SCM_RIGHTS as u64) << 32;
    for (index, file) in files.iter().enumerate() {
        control[2 + index / 2] |= (*file as u32 as u64) << (32 * (index % 2));
    }
    let vector = [buffer.as_ptr() as u64, buffer.len() as u64];
    let header = MessageHeader {
        buffers: vector.as_ptr() as u64,
        count: 1,
        control: control.as_ptr() as u64,
        control_length: if files.is_empty() { 0 } else { control[0] },
        ..MessageHeader::default()
    };
    let bytes = header.to_bytes();
    // SAFETY: header, list, buffer and control message live through the call.
    unsafe { call!(SendMessage, descriptor, bytes.as_ptr(), flags) }
}

/// Receives a message and the open files that came with it, for which there is room for `files.len()`. Returns the
/// number of bytes and of files; files without room are closed.
///
/// # Errors
///
/// `ECONNRESET`, `EAGAIN` if it must not wait.
#[doc(alias("recvmsg", "SCM_RIGHTS"))]
pub fn receive_files(
    descriptor: i32,
    buffer: &mut [u8],
    files: &mut [Descriptor],
    flags: u32,
) -> Result<(usize, usize)> {
    let mut control = [0u64; CONTROL_WORDS];
    let room = files.len().min(message::MOST_FILES);
    let vector = [buffer.as_mut_ptr() as u64, buffer.len() as u64];
    let header = MessageHeader {
        buffers: vector.as_ptr() as u64,
        count: 1,
        control: control.as_mut_ptr() as u64,
        control_length: if room == 0 { 0 } else { (16 + 4 * room) as u64 },
        ..MessageHeader::default()
    };
    let mut bytes = header.to_bytes();
    // SAFETY: the kernel writes to the buffer, the control messages and the header, which are exclusively borrowed.
    let count = unsafe { call!(ReceiveMessage, descriptor, bytes.as_mut_ptr(), flags) }?;
    let written = MessageHeader::from_bytes(bytes).control_length;
    let number = if written == 0 { 0 } else { ((control[0] - 16) / 4) as usize };
    for (index, place) in files.iter_mut().enumerate().take(number) {
        *place = Descriptor::from_raw((control[2 + index / 2] >> (32 * (index % 2))) as i32);
    }
    Ok((count, number))
}

/// Gives a socket its local address.
///
/// # Errors
///
/// `EADDRINUSE`, `EADDRNOTAVAIL`, `EINVAL` if it has one.
pub fn bind(descriptor: i32, address: impl Into<SocketAddr>) -> Result<()> {
    let (bytes, length) = bytes_of_address(address.into());
    // SAFETY: the address lives through the call.
    unsafe { call!(Bind, descriptor, bytes.as_ptr(), length) }.map(drop)
}

/// Makes a socket accept connections; `backlog` is the number that may wait for that.
///
/// # Errors
///
/// `EADDRINUSE`, `EOPNOTSUPP`, `EINVAL`.
pub fn listen(descriptor: i32, backlog: u32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Listen, descriptor, backlog) }.map(drop)
}

/// Takes the next connection and the peer's address; waits for one.
///
/// # Errors
///
/// `EMFILE`, `ENOMEM`, `ECONNABORTED`, `EINVAL` if the socket does not listen, `EAGAIN` if it must not wait.
pub fn accept(descriptor: i32) -> Result<(Descriptor, SocketAddr)> {
    let (result, address) = with_address(|address, size| {
        // SAFETY: the kernel writes at most 28 bytes of address and its length to exclusively borrowed memory.
        unsafe { call!(Accept, descriptor, address, size) }
    });
    Ok((Descriptor::from_result(result?), address?))
}

/// Connects to a remote address; waits until that is done.
///
/// # Errors
///
/// `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`, `EISCONN`, `EADDRINUSE`.
pub fn connect(descriptor: i32, address: impl Into<SocketAddr>) -> Result<()> {
    let (bytes, length) = bytes_of_address(address.into());
    // SAFETY: the address lives through the call.
    unsafe { call!(Connect, descriptor, bytes.as_ptr(), length) }.map(drop)
}

/// Sends a message, to `address` or to the connected peer.
///
/// # Errors
///
/// `EMSGSIZE`, `EDESTADDRREQ`, `ENOTCONN`, `EPIPE`, `ECONNREFUSED`, `EAGAIN` if it must not wait.
#[doc(alias("sendto", "send"))]
pub fn send_to(descriptor: i32, buffer: &[u8], flags: u32, address: Option<SocketAddr>) -> Result<usize> {
    let bytes = address.map(bytes_of_address);
    let (pointer, length) = bytes.as_ref().map_or((core::ptr::null(), 0), |(bytes, length)| (bytes.as_ptr(), *length));
    // SAFETY: buffer and address live through the call.
    unsafe { call!(SendTo, descriptor, buffer.as_ptr(), buffer.len(), flags, pointer, length) }
}

/// Receives a message and the address of its sender (of a stream: the peer's).
///
/// # Errors
///
/// `ENOTCONN`, `ECONNRESET`, `ECONNREFUSED`, `EAGAIN` if it must not wait.
#[doc(alias("recvfrom", "recv"))]
pub fn receive_from(descriptor: i32, buffer: &mut [u8], flags: u32) -> Result<(usize, SocketAddr)> {
    let (result, address) = with_address(|address, size| {
        // SAFETY: the kernel writes at most `len` bytes, 28 bytes of address and its length to exclusively borrowed
        // memory.
        unsafe { call!(ReceiveFrom, descriptor, buffer.as_mut_ptr(), buffer.len(), flags, address, size) }
    });
    Ok((result?, address.unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into())))
}

/// Returns the local address of a socket.
///
/// # Errors
///
/// `EBADF`, `ENOTSOCK`.
#[doc(alias = "getsockname")]
pub fn local_address(descriptor: i32) -> Result<SocketAddr> {
    let (result, address) = with_address(|address, size| {
        // SAFETY: as in `accept`.
        unsafe { call!(GetSocketName, descriptor, address, size) }
    });
    result.and(address)
}

/// Returns the remote address of a socket.
///
/// # Errors
///
/// `EBADF`, `ENOTSOCK`, `ENOTCONN`.
#[doc(alias = "getpeername")]
pub fn peer_address(descriptor: i32) -> Result<SocketAddr> {
    let (result, address) = with_address(|address, size| {
        // SAFETY: as in `accept`.
        unsafe { call!(GetPeerName, descriptor, address, size) }
    });
    result.and(address)
}

/// Ends one or both directions of a connection.
///
/// # Errors
///
/// `ENOTCONN`, `EINVAL`.
pub fn shutdown(descriptor: i32, how: u32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Shutdown, descriptor, how) }.map(drop)
}

/// Sets an option whose value is an `i32`.
///
/// # Errors
///
/// `ENOPROTOOPT`, `EINVAL`.
#[doc(alias = "setsockopt")]
pub fn set_option(descriptor: i32, level: u32, option: u32, value: i32) -> Result<()> {
    // SAFETY: the value lives through the call.
    unsafe { call!(SetSocketOption, descriptor, level, option, &raw const value, size_of::<i32>()) }.map(drop)
}

/// Reads an option whose value is an `i32`.
///
/// # Errors
///
/// `ENOPROTOOPT`, `EINVAL`.
#[doc(alias = "getsockopt")]
pub fn option(descriptor: i32, level: u32, option: u32) -> Result<i32> {
    let (mut value, mut size) = (0i32, size_of::<i32>() as u32);
    // SAFETY: the kernel writes at most four bytes and the length to exclusively borrowed memory.
    unsafe { call!(GetSocketOption, descriptor, level, option, &raw mut value, &raw mut size) }.map(|_| value)
}

/// Runs a call that writes an address, and returns the address. Not a system call of its own.
fn with_address(call: impl FnOnce(*mut u8, *mut u32) -> Result<usize>) -> (Result<usize>, Result<SocketAddr>) {
    let mut bytes = [0u8; LONGEST_ADDRESS];
    let mut size = bytes.len() as u32;
    let result = call(bytes.as_mut_ptr(), &raw mut size);
    (result, address_of_bytes(&bytes).ok_or(Errno::EAFNOSUPPORT))
}
