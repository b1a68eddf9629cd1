//! Raw sockets: packets of one protocol, whichever it is (raw(7)).
//!
//! They are datagram sockets without ports. A packet that has come for this host goes to each raw socket of its
//! protocol, beside its other receivers: one of IPv4 with its header, one of IPv6 without. Messages of ICMP can be left
//! out by their kind. The port of a sender is the hop limit with which its packet has come. There are few raw sockets,
//! since each gets its copy while a packet is handled.
//!
//! A packet that is sent gets its header here, or has one of IPv4 whose protocol and hop limit count and whose source
//! does if there is one: length, checksum and receiver are put into it. Within this host, packets go to raw sockets
//! only, and echo requests are answered.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use alloc::vec::Vec;
use ethernet::ETHERNET_HEADER;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet};

use crate::Error;
use crate::checksum;
use crate::configuration::Sent;
use crate::echo::{ECHO_REPLY_OF_SIX, HEADER_OF_FOUR, HOP_LIMIT, REPLY, REQUEST, REQUEST_OF_SIX};
use crate::frame::PROTOCOL_ICMP_OF_SIX;
use crate::host::{Host, Via};
use crate::reply::parse_ip;
use crate::reports::{Report, is_report};
use crate::slab::DatagramId;
use crate::table::LocalEnd;
use crate::tcp::zeroed;
use crate::udp::{DatagramOptions, DatagramProtocol, Datagrams, LONGEST, Payload, Way};

/// Raw sockets of the host.
pub(crate) const MOST_RAW_SOCKETS: usize = 16;
/// Bytes that are copied of one packet for all raw sockets: enough for all of them if it came over a wire. Of a longer
/// one within the host, some of them get none.
const MOST_COPIED: usize = 24 * 1024;
/// Bytes of the header of ICMPv6 up to the end of its checksum.
const CHECKED: usize = 4;

const ICMP: u8 = 1;

/// The choices of a raw socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawChoices {
    /// Packets that are sent have a header of IPv4.
    pub(crate) has_header: bool,
    /// Kinds of messages of ICMP that are not received, as bits.
    pub(crate) left_out: [u32; 8],
}

/// A packet for raw sockets.
struct RawPacket<'packet> {
    protocol: u8,
    from: IpAddr,
    to: IpAddr,
    hop_limit: u8,
    /// The bytes that a receiver gets.
    shown: &'packet [u8],
    /// The bytes behind the header.
    payload: &'packet [u8],
}

impl<'packet> RawPacket<'packet> {
    fn of_six(protocol: u8, (from, to): (Ipv6Addr, Ipv6Addr), hop_limit: u8, payload: &'packet [u8]) -> Self {
        RawPacket { protocol, from: from.into(), to: to.into(), hop_limit, shown: payload, payload }
    }

    /// Reads a packet of either family, if its lengths and the checksum of its header are right.
    fn read(packet: &'packet [u8], checksums: &ChecksumCapabilities) -> Option<RawPacket<'packet>> {
        let (from, to, payload) = parse_ip(packet, checksums)?;
        let (from, to) = (IpAddr::from(from), IpAddr::from(to));
        if from.is_ipv6() {
            let six = Ipv6Packet::new_unchecked(packet);
            let (protocol, hop_limit) = (six.next_header().into(), six.hop_limit());
            return Some(RawPacket { protocol, from, to, hop_limit, shown: payload, payload });
        }
        let four = Ipv4Packet::new_unchecked(packet);
        let (protocol, hop_limit) = (four.next_header().into(), four.hop_limit());
        let shown = packet.get(..usize::from(four.total_len()))?;
        Some(RawPacket { protocol, from, to, hop_limit, shown, payload })
    }

    /// Returns whether its checksum is right, if it is a message of ICMPv6. Those of other protocols are the receiver's
    /// to check.
    fn is_intact(&self) -> bool {
        match (self.from, self.to) {
            (IpAddr::V6(from), IpAddr::V6(to)) if self.protocol == PROTOCOL_ICMP_OF_SIX => {
                self.payload.len() >= CHECKED && Icmpv6Packet::new_unchecked(self.payload).verify_checksum(&from, &to)
            }
            _ => true,
        }
    }
}

impl Datagrams {
    /// Returns whether it is a raw socket that can have sent a packet of this protocol between these addresses.
    fn has_sent(&self, protocol: u8, from: IpAddr, to: IpAddr) -> bool {
        let own = self.local.address.ip();
        self.options.protocol == DatagramProtocol::Raw(protocol)
            && own.is_ipv4() == from.is_ipv4()
            && (own.is_unspecified() || own == from)
            && self.remote.is_none_or(|remote| remote.ip() == to)
    }

    /// Returns whether it is a raw socket that receives this packet.
    fn takes(&self, packet: &RawPacket<'_>) -> bool {
        let DatagramProtocol::Raw(protocol) = self.options.protocol else { return false };
        let (own, remote) = (self.local.address.ip(), self.remote.map(|remote| remote.ip()));
        let is_of_messages = matches!(protocol, ICMP | PROTOCOL_ICMP_OF_SIX);
        let is_left_out = is_of_messages
            && packet
                .payload
                .first()
                .is_some_and(|&kind| self.raw.left_out[usize::from(kind) / 32] >> (kind % 32) & 1 != 0);
        protocol == packet.protocol
            && own.is_ipv4() == packet.to.is_ipv4()
            && (own.is_unspecified() || own == packet.to)
            && remote.is_none_or(|remote| remote == packet.from)
            && !is_left_out
    }
}

impl Host {
    /// Makes a raw socket.
    #[cold]
    pub(crate) fn raw_bind(&mut self, local: LocalEnd, options: &DatagramOptions) -> Result<DatagramId, Error> {
        if self.raws.len() >= MOST_RAW_SOCKETS {
            return Err(Error::Limit);
        }
        self.raws.try_reserve(1)?;
        let index = self.datagrams.next_index()?;
        self.datagram_work.reserve(index)?;
        self.datagram_timers.reserve(index)?;
        let local = LocalEnd::from(SocketAddr::new(local.address.ip(), 0));
        let index = self.datagrams.insert(Datagrams::new(local, *options)?)?;
        self.raws.push(index);
        Ok(DatagramId { index, generation: self.datagrams.generation(index) })
    }

    /// Gives a raw socket another local address. Its packets and its waiters stay.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has a peer.
    #[cold]
    pub(crate) fn raw_rebind(&mut self, id: DatagramId, local: LocalEnd) -> Result<(), Error> {
        if !self.may_bind(local) {
            return Err(Error::AddressUnavailable);
        }
        let socket = self.datagram(id)?;
        if socket.remote.is_some() {
            return Err(Error::Invalid);
        }
        socket.local = LocalEnd::from(SocketAddr::new(local.address.ip(), 0));
        Ok(())
    }

    /// Gives a packet that has come in this frame to the raw sockets of its protocol.
    #[cold]
    pub(crate) fn raw_input(&mut self, frame: &[u8]) {
        let packet = frame.get(ETHERNET_HEADER..).unwrap_or_default();
        if packet.is_empty() {
            return;
        }
        let checksums = self.checksums.clone();
        let Some(packet) = RawPacket::read(packet, &checksums) else { return };
        let is_for_many = match packet.to {
            IpAddr::V4(to) => self.is_broadcast(to),
            IpAddr::V6(to) => self.six.is_member(to),
        };
        // No other host has this one's address.
        let is_for_us = self.is_own(packet.to) && !packet.to.is_loopback() || is_for_many;
        if is_for_us && !self.is_own(packet.from) && packet.is_intact() {
            self.report_to_raw(&packet, frame);
            self.give_raw(&packet);
        }
    }

    /// Reports to the raw sockets whose packet a message is about.
    fn report_to_raw(&mut self, packet: &RawPacket<'_>, frame: &[u8]) {
        let is_six = packet.to.is_ipv6();
        let kind = packet.payload.first().copied().filter(|kind| is_report(is_six, *kind));
        if kind.is_none() || packet.protocol != if is_six { PROTOCOL_ICMP_OF_SIX } else { ICMP } {
            return;
        }
        let Some((report, protocol, quoted)) = Report::read(frame) else { return };
        for at in 0..self.raws.len() {
            let socket = self.raws.get(at).and_then(|index| self.datagrams.get_mut(*index));
            if let Some(socket) = socket.filter(|socket| socket.has_sent(protocol, packet.to, report.to.ip())) {
                socket.take_report(report, quoted);
            }
        }
    }

    fn give_raw(&mut self, packet: &RawPacket<'_>) {
        let shown = packet.shown;
        let mut left = MOST_COPIED;
        for at in 0..self.raws.len() {
            let socket = self.raws.get(at).and_then(|index| self.datagrams.get_mut(*index));
            if let Some(socket) = socket.filter(|socket| socket.takes(packet)) {
                let Some(rest) = left.checked_sub(shown.len()) else {
                    self.counters.datagrams_dropped += 1;
                    continue;
                };
                left = rest;
                let from = SocketAddr::new(packet.from, packet.hop_limit.into());
                let fill = |room: &mut [u8]| room.copy_from_slice(shown);
                let taken = socket.deliver(from, packet.hop_limit, shown.len(), fill);
                self.counters.datagrams_dropped += u64::from(!taken);
            }
        }
    }

    /// Sends a packet of a raw socket on its way.
    #[cold]
    pub(crate) fn raw_send(
        &mut self,
        id: DatagramId,
        way: Way,
        protocol: u8,
        payload: Payload<impl FnOnce(&mut [u8])>,
    ) -> Result<Sent, Error> {
        let Payload { length, fill } = payload;
        let socket = self.datagram(id)?;
        let (has_header, hop_limit) = (socket.raw.has_header, socket.hop_limit.unwrap_or(HOP_LIMIT));
        let (IpAddr::V6(from), IpAddr::V6(to)) = (way.from.ip(), way.to.ip()) else {
            let header = if has_header { 0 } else { HEADER_OF_FOUR };
            if header + length < HEADER_OF_FOUR {
                return Err(Error::Invalid);
            }
            let fill = |room: &mut [u8]| {
                fill(&mut room[header..]);
                write_header(room, &way, (!has_header).then_some((protocol, hop_limit)));
            };
            let sent = self.raw_send_four(id, way, header, Payload { length: header + length, fill })?;
            return Ok(if sent == Sent::Full { sent } else { Sent::Bytes(length) });
        };
        // The checksum of ICMPv6 has the addresses in it.
        let has_checksum = protocol == PROTOCOL_ICMP_OF_SIX;
        if has_checksum && length < CHECKED {
            return Err(Error::Invalid);
        }
        let fill = |room: &mut [u8]| {
            fill(room);
            if has_checksum {
                checksum::complete_message(&from, &to, room);
            }
        };
        if way.via != Via::Local {
            return self.udp_send_six(id, way, Payload { length, fill });
        }
        let mut packet = LocalPacket::make(0, Payload { length, fill })?;
        let bytes = packet.bytes();
        self.give_raw(&RawPacket::of_six(protocol, (from, to), hop_limit, bytes));
        if has_checksum && bytes[0] == REQUEST_OF_SIX {
            // The other order of the addresses has the same sum.
            checksum::change_kind(bytes, ECHO_REPLY_OF_SIX);
            self.give_raw(&RawPacket::of_six(protocol, (to, from), HOP_LIMIT, bytes));
        }
        Ok(Sent::Bytes(length))
    }

    /// Puts a packet of IPv4, with its header, into the socket's send buffer, or gives it to sockets of this host. Its
    /// first bytes are a header that is not the caller's.
    fn raw_send_four(
        &mut self,
        id: DatagramId,
        way: Way,
        header: usize,
        payload: Payload<impl FnOnce(&mut [u8])>,
    ) -> Result<Sent, Error> {
        let length = payload.length;
        if way.via == Via::Local {
            let mut packet = LocalPacket::make(header, payload)?;
            let bytes = packet.bytes();
            let checksums = ChecksumCapabilities::ignored();
            if let Some(packet) = RawPacket::read(bytes, &checksums) {
                // The answer to a source that is another host's is not this host's to receive.
                let asks =
                    packet.protocol == ICMP && packet.payload.first() == Some(&REQUEST) && self.is_own(packet.from);
                self.give_raw(&packet);
                if asks {
                    answer(bytes);
                    if let Some(packet) = RawPacket::read(bytes, &checksums) {
                        self.give_raw(&packet);
                    }
                }
            }
            return Ok(Sent::Bytes(length));
        }
        // Fragments are not sent.
        let mtu = self.ethernet_mtu;
        if length > mtu {
            return Err(self.datagram(id)?.is_too_long_for(mtu, way.to));
        }
        let socket = self.departing_from_here(id, length)?;
        let Some(departing) = socket.departing_packets()? else { return Ok(Sent::Full) };
        let Ok(room) = departing.send(length) else { return Ok(Sent::Full) };
        (payload.fill)(room);
        self.datagram_work.push(id.index);
        Ok(Sent::Bytes(length))
    }

    /// Takes a raw socket that is closed from the list.
    #[cold]
    pub(crate) fn raw_close(&mut self, index: u32) {
        self.raws.retain(|other| *other != index);
    }
}

/// A packet within this host.
struct LocalPacket {
    bytes: Vec<u8>,
    /// The byte at which it begins.
    start: usize,
}

impl LocalPacket {
    /// Makes one whose message is behind so many bytes: the message begins with a word, like the one that it is copied
    /// from, which makes the copy half as long.
    fn make(header: usize, payload: Payload<impl FnOnce(&mut [u8])>) -> Result<LocalPacket, Error> {
        if payload.length > LONGEST {
            return Err(Error::TooLong);
        }
        let start = header.next_multiple_of(size_of::<u64>()) - header;
        let mut packet = LocalPacket { bytes: zeroed(0, start + payload.length)?, start };
        (payload.fill)(packet.bytes());
        Ok(packet)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

/// Writes the header of a packet of IPv4 with this protocol and hop limit, or puts the fields that the host decides
/// into one that is there.
fn write_header(bytes: &mut [u8], way: &Way, new: Option<(u8, u8)>) {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (way.from.ip(), way.to.ip()) else { return };
    let length = bytes.len();
    let mut packet = Ipv4Packet::new_unchecked(bytes);
    let given = if new.is_some() { Ipv4Addr::UNSPECIFIED } else { packet.src_addr() };
    let (protocol, hop_limit) = new.unwrap_or_else(|| (packet.next_header().into(), packet.hop_limit()));
    let header = Ipv4Repr {
        src_addr: if given.is_unspecified() { from } else { given },
        dst_addr: to,
        next_header: IpProtocol::from(protocol),
        payload_len: length - HEADER_OF_FOUR,
        hop_limit,
    };
    header.emit(&mut packet, &ChecksumCapabilities::default());
}

/// Makes the answer of an echo request over IPv4.
fn answer(bytes: &mut [u8]) {
    let mut packet = Ipv4Packet::new_unchecked(bytes);
    let (from, to) = (packet.src_addr(), packet.dst_addr());
    packet.set_src_addr(to);
    packet.set_dst_addr(from);
    packet.set_hop_limit(HOP_LIMIT);
    packet.fill_checksum();
    checksum::change_kind(packet.payload_mut(), REPLY);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smoltcp::wire::Icmpv4Packet;

    use super::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn the_answer_of_a_right_request_is_right(code: u8, rest in prop::collection::vec(any::<u8>(), 2..100)) {
            let mut bytes = [&[0; HEADER_OF_FOUR][..], &[REQUEST, code, 0, 0], &rest].concat();
            let mut packet = Ipv4Packet::new_unchecked(&mut bytes[..]);
            packet.set_version(4);
            packet.set_header_len(HEADER_OF_FOUR as u8);
            packet.set_total_len((HEADER_OF_FOUR + CHECKED + rest.len()) as u16);
            Icmpv4Packet::new_unchecked(packet.payload_mut()).fill_checksum();
            answer(&mut bytes);
            let packet = Ipv4Packet::new_unchecked(&bytes[..]);
            prop_assert!(packet.verify_checksum());
            prop_assert_eq!(&packet.payload()[..2], &[REPLY, code]);
            prop_assert!(Icmpv4Packet::new_unchecked(packet.payload()).verify_checksum());
        }

        #[test]
        fn messages_of_six_and_their_answers_are_right(
            from: u128, to: u128, code: u8, rest in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let (from, to) = (Ipv6Addr::from_bits(from), Ipv6Addr::from_bits(to));
            let mut bytes = [&[REQUEST_OF_SIX, code, 7, 9][..], &rest].concat();
            checksum::complete_message(&from, &to, &mut bytes);
            prop_assert!(Icmpv6Packet::new_unchecked(&bytes[..]).verify_checksum(&from, &to));
            checksum::change_kind(&mut bytes, ECHO_REPLY_OF_SIX);
            prop_assert_eq!(bytes[0], ECHO_REPLY_OF_SIX);
            prop_assert!(Icmpv6Packet::new_unchecked(&bytes[..]).verify_checksum(&to, &from));
        }
    }
}
