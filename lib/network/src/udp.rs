//! Datagram sockets.
//!
//! Receiving is a ring of packets which the stack fills itself: a datagram needs no protocol state. Between two sockets
//! of this host that is the whole way. Only what leaves through the Ethernet interface goes through a smoltcp
//! socket, because address resolution is smoltcp's; it is made with the first such datagram.

use core::net::SocketAddrV4;

use alloc::vec::Vec;
use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::udp;
use smoltcp::storage::{PacketBuffer, PacketMetadata};
use smoltcp::wire::{IpAddress, IpListenEndpoint};

use crate::Error;
use crate::tcp::zeroed;
use crate::waiters::Waiters;

/// How a datagram socket is to behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramOptions {
    /// Bytes that may arrive before they are read; what does not fit is dropped.
    pub receive_buffer: usize,
    /// Bytes that may wait for the device or for address resolution.
    pub send_buffer: usize,
    /// How many datagrams may wait in either buffer.
    pub datagrams: usize,
}

impl Default for DatagramOptions {
    /// 8 KiB and 16 datagrams each way.
    fn default() -> Self {
        DatagramOptions { receive_buffer: 8 * 1024, send_buffer: 8 * 1024, datagrams: 16 }
    }
}

/// The longest payload of one datagram: what an IPv4 packet can carry.
pub(crate) const LONGEST: usize = 65_507;

pub(crate) struct Datagrams {
    pub(crate) local: SocketAddrV4,
    pub(crate) remote: Option<SocketAddrV4>,
    pub(crate) options: DatagramOptions,
    pub(crate) arrived: PacketBuffer<'static, SocketAddrV4>,
    pub(crate) departing: Option<SocketSet<'static>>,
    pub(crate) failure: Option<Error>,
    pub(crate) receivers: Waiters,
    pub(crate) senders: Waiters,
}

impl Datagrams {
    pub(crate) fn new(local: SocketAddrV4, options: DatagramOptions) -> Result<Self, Error> {
        let limit = 4 * 1024 * 1024;
        let options = DatagramOptions {
            receive_buffer: options.receive_buffer.clamp(256, limit),
            send_buffer: options.send_buffer.clamp(256, limit),
            datagrams: options.datagrams.clamp(1, 4096),
        };
        Ok(Datagrams {
            local,
            remote: None,
            options,
            arrived: PacketBuffer::new(
                zeroed(PacketMetadata::EMPTY, options.datagrams)?,
                zeroed(0, options.receive_buffer)?,
            ),
            departing: None,
            failure: None,
            receivers: Waiters::default(),
            senders: Waiters::default(),
        })
    }

    /// The smoltcp socket, made if there is none yet.
    pub(crate) fn departing(&mut self) -> Result<&mut udp::Socket<'static>, Error> {
        if self.departing.is_none() {
            let count = self.options.datagrams;
            let mut socket = udp::Socket::new(
                udp::PacketBuffer::new(Vec::new(), Vec::new()),
                udp::PacketBuffer::new(
                    zeroed(udp::PacketMetadata::EMPTY, count)?,
                    zeroed(0, self.options.send_buffer)?,
                ),
            );
            let address = self.local.ip();
            socket
                .bind(IpListenEndpoint {
                    addr: (!address.is_unspecified()).then_some(IpAddress::Ipv4(*address)),
                    port: self.local.port(),
                })
                .map_err(|_| Error::Invalid)?;
            let mut storage = Vec::new();
            storage.try_reserve_exact(1)?;
            storage.push(SocketStorage::EMPTY);
            let mut sockets = SocketSet::new(storage);
            sockets.add(socket);
            self.departing = Some(sockets);
        }
        match &mut self.departing {
            Some(sockets) => Ok(sockets.get_mut(SocketHandle::default())),
            None => Err(Error::OutOfMemory),
        }
    }

    /// Takes in a datagram of `length` bytes that `fill` writes, or drops it if there is no room, as everybody who uses
    /// UDP must expect. Returns whether it was taken.
    pub(crate) fn deliver(&mut self, from: SocketAddrV4, length: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        match self.arrived.enqueue(length, from) {
            Ok(room) => {
                fill(room);
                self.receivers.wake();
                true
            }
            Err(_) => false,
        }
    }
}
