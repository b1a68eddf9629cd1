//! Sockets for echoes (ping): messages of ICMP (RFC 792) and ICMPv6 (RFC 4443, section 4).
//!
//! They are datagram sockets with another protocol. A program gives a request from its header on; the socket's
//! identifier and the checksum are put into it, so that no program can send another message, or take another one's
//! answers. An answer is given to the program from its header on; the port of its sender is the hop limit with which it
//! has come. Echoes of this host are answered without a packet.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use alloc::vec::Vec;
use ethernet::ETHERNET_HEADER;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::phy::TxToken;
use smoltcp::socket::raw;
use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, IpProtocol, IpVersion, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr};

use crate::Error;
use crate::configuration::Sent;
use crate::host::{Host, Via};
use crate::reply::parse_ip;
use crate::slab::DatagramId;
use crate::table::Key;
use crate::tcp::zeroed;
use crate::udp::{Datagrams, DepartingDatagrams, LONGEST, Payload, Way, set_of};

/// Kinds of messages.
pub(crate) const REQUEST: u8 = 8;
pub(crate) const REPLY: u8 = 0;
pub(crate) const REQUEST_OF_SIX: u8 = 128;
/// The kind of an answer over IPv6.
pub(crate) const ECHO_REPLY_OF_SIX: u8 = 129;
/// Bytes of a message's header.
const HEADER: usize = 8;
/// Bytes of the header of an IPv4 packet.
pub(crate) const HEADER_OF_FOUR: usize = 20;
/// Place of the hop limit in such a header.
const HOP_LIMIT_OF_FOUR_AT: usize = 8;
/// Routers that a message passes at most.
pub(crate) const HOP_LIMIT: u8 = 64;

/// Makes a message of this kind of the bytes that a program gave.
fn complete(message: &mut [u8], kind: u8, identifier: u16, from: IpAddr, to: IpAddr) {
    message[0] = kind;
    message[1] = 0;
    message[4..6].copy_from_slice(&identifier.to_be_bytes());
    match (from, to) {
        (IpAddr::V6(from), IpAddr::V6(to)) => Icmpv6Packet::new_unchecked(message).fill_checksum(&from, &to),
        _ => Icmpv4Packet::new_unchecked(message).fill_checksum(),
    }
}

fn socket_in<'a>(sockets: &'a SocketSet<'static>) -> &'a raw::Socket<'static> {
    sockets.get(SocketHandle::default())
}

/// Returns whether there is room for another packet.
pub(crate) fn can_send_packets(sockets: &SocketSet<'static>) -> bool {
    socket_in(sockets).can_send()
}

/// Returns whether packets wait to leave.
pub(crate) fn have_packets(sockets: &SocketSet<'static>) -> bool {
    socket_in(sockets).send_queue() > 0
}

impl Datagrams {
    /// Returns the smoltcp socket for packets of IPv4, made if there is none yet; `None` while some of IPv6 wait.
    pub(crate) fn departing_packets(&mut self) -> Result<Option<&mut raw::Socket<'static>>, Error> {
        if self.have_departing_six() {
            return Ok(None);
        }
        if !matches!(self.departing, DepartingDatagrams::Packets(_)) {
            self.departing = DepartingDatagrams::None;
            let records = zeroed(raw::PacketMetadata::EMPTY, self.options.datagrams)?;
            let socket = raw::Socket::new(
                Some(IpVersion::Ipv4),
                None,
                raw::PacketBuffer::new(Vec::new(), Vec::new()),
                raw::PacketBuffer::new(records, zeroed(0, self.options.send_buffer)?),
            );
            self.departing = DepartingDatagrams::Packets(set_of(socket)?);
        }
        match &mut self.departing {
            DepartingDatagrams::Packets(sockets) => Ok(Some(sockets.get_mut(SocketHandle::default()))),
            _ => Err(Error::OutOfMemory),
        }
    }
}

impl Host {
    /// Returns the socket that receives an answer.
    pub(crate) fn find_echoes(&self, key: Key) -> Option<u32> {
        self.echo_table.find_receiver(key)
    }

    /// Handles an answer over IPv4.
    #[cold]
    pub(crate) fn echo_input(&mut self, key: Key, frame: &[u8]) {
        let Some(packet) = frame.get(ETHERNET_HEADER..) else { return };
        let Some((_, _, message)) = parse_ip(packet, &self.checksums) else { return };
        let Some(&hop_limit) = packet.get(HOP_LIMIT_OF_FOUR_AT) else { return };
        let is_right = message.len() >= HEADER && Icmpv4Packet::new_unchecked(message).verify_checksum();
        if is_right && self.is_own(key.local().ip()) {
            self.echo_reply(key.local().ip(), key.remote().ip(), hop_limit, message);
        }
    }

    /// Gives an answer to the socket with its identifier.
    pub(crate) fn echo_reply(&mut self, own: IpAddr, from: IpAddr, hop_limit: u8, message: &[u8]) {
        let Some([0, high, low]) = message.get(1..2).and_then(|code| {
            let identifier = message.get(4..6)?;
            Some([code[0], identifier[0], identifier[1]])
        }) else {
            return;
        };
        let key = Key::new(SocketAddr::new(own, u16::from_be_bytes([high, low])), SocketAddr::new(from, 0));
        let from = SocketAddr::new(from, hop_limit.into());
        let Some(socket) = self.find_echoes(key).and_then(|index| self.datagrams.get_mut(index)) else { return };
        if !socket.deliver(from, hop_limit, message.len(), |room| room.copy_from_slice(message)) {
            self.counters.datagrams_dropped += 1;
        }
    }

    /// Sends a request on its way.
    #[cold]
    pub(crate) fn echo_send(
        &mut self,
        id: DatagramId,
        way: Way,
        payload: Payload<impl FnOnce(&mut [u8])>,
    ) -> Result<Sent, Error> {
        let Payload { length, fill } = payload;
        if length < HEADER {
            return Err(Error::Invalid);
        }
        let (from, to) = (way.from.ip(), way.to.ip());
        let identifier = way.from.port();
        match way.via {
            Via::Local => {
                if length > LONGEST {
                    return Err(Error::TooLong);
                }
                // This host answers itself.
                let kind = if to.is_ipv4() { REPLY } else { ECHO_REPLY_OF_SIX };
                let index = self.find_echoes(Key::new(way.from, way.to));
                if let Some(socket) = index.and_then(|index| self.datagrams.get_mut(index)) {
                    let sender = SocketAddr::new(to, HOP_LIMIT.into());
                    let taken = socket.deliver(sender, HOP_LIMIT, length, |room| {
                        fill(room);
                        complete(room, kind, identifier, to, from);
                    });
                    self.counters.datagrams_dropped += u64::from(!taken);
                }
                Ok(Sent::Bytes(length))
            }
            Via::Ethernet => self.echo_send_out(id, way, Payload { length, fill }),
            Via::Six | Via::NarrowSix => {
                let fill = |room: &mut [u8]| {
                    fill(room);
                    complete(room, REQUEST_OF_SIX, identifier, from, to);
                };
                self.udp_send_six(id, way, Payload { length, fill })
            }
        }
    }

    /// Puts a request over IPv4 into the socket's send buffer.
    fn echo_send_out(
        &mut self,
        id: DatagramId,
        Way { from, to, via: _ }: Way,
        Payload { length, fill }: Payload<impl FnOnce(&mut [u8])>,
    ) -> Result<Sent, Error> {
        // Fragments are not sent.
        let mtu = self.ethernet_mtu;
        if length + HEADER_OF_FOUR > mtu {
            return Err(self.datagram(id)?.is_too_long_for(mtu, to));
        }
        let (IpAddr::V4(own), IpAddr::V4(remote)) = (from.ip(), to.ip()) else { return Err(Error::Invalid) };
        let checksums = self.checksums.clone();
        let socket = self.departing_from_here(id, length + HEADER_OF_FOUR)?;
        let hop_limit = socket.hop_limit.unwrap_or(HOP_LIMIT);
        let Some(departing) = socket.departing_packets()? else { return Ok(Sent::Full) };
        let Ok(room) = departing.send(length + HEADER_OF_FOUR) else { return Ok(Sent::Full) };
        let (header, message) = room.split_at_mut(HEADER_OF_FOUR);
        let packet =
            Ipv4Repr { src_addr: own, dst_addr: remote, next_header: IpProtocol::Icmp, payload_len: length, hop_limit };
        packet.emit(&mut Ipv4Packet::new_unchecked(header), &checksums);
        fill(message);
        complete(message, REQUEST, from.port(), from.ip(), to.ip());
        self.datagram_work.push(id.index);
        Ok(Sent::Bytes(length))
    }
}

/// Sends a packet over IPv6, which is complete but for its header.
pub(crate) fn send_packet_of_six<T: TxToken>(
    (from, to, hop_limit): (Ipv6Addr, Ipv6Addr, u8),
    protocol: IpProtocol,
    payload: &[u8],
    token: T,
) {
    let ip = Ipv6Repr { src_addr: from, dst_addr: to, next_header: protocol, payload_len: payload.len(), hop_limit };
    token.consume(ip.buffer_len() + payload.len(), |bytes| {
        let (header, rest) = bytes.split_at_mut(ip.buffer_len());
        ip.emit(&mut Ipv6Packet::new_unchecked(header));
        rest.copy_from_slice(payload);
    });
}
