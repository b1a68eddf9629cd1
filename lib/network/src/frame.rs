//! A first look at an arriving packet to find its receiver.
//!
//! Only the fields needed to find the socket are read, and every byte is read with a check. The packet's *validity*
//! (lengths, checksums, sequence numbers) is decided later by the protocol code; a packet that is misread here can at
//! worst be offered to the wrong socket, which then refuses it.

#[cfg(test)]
use core::net::SocketAddr;
use core::net::{Ipv4Addr, Ipv6Addr};

use ethernet::ETHERNET_HEADER;

use crate::discovery::is_of_a_host;
use crate::groups::{QUERY, may_be_query};
use crate::reports::is_report;
use crate::table::Key;

const ETHERNET_TYPE_IPV4: u16 = 0x0800;
const ETHERNET_TYPE_ARP: u16 = 0x0806;
const ETHERNET_TYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
pub(crate) const PROTOCOL_ICMP_OF_SIX: u8 = 58;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_OF_SIX: u8 = 128;
const HEADER_OF_SIX: usize = 40;
/// Header of options for all hosts on the way.
const OPTIONS_OF_SIX: u8 = 0;
/// "More fragments" and the fragment offset in an IPv4 header's flags field.
const FRAGMENT_BITS: u16 = 0x3fff;

/// Ends, numbers and flags of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The local end is its destination, the remote one its source.
    pub(crate) key: Key,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    /// Length in sequence space: data, SYN and FIN.
    pub(crate) length: u32,
    flags: u8,
}

impl Segment {
    const FIN: u8 = 0x01;
    const SYN: u8 = 0x02;
    const RST: u8 = 0x04;
    const ACK: u8 = 0x10;

    /// Describes a segment that was read.
    #[inline]
    pub(crate) fn of(key: Key, segment: &tcp::Segment<'_>) -> Self {
        let &tcp::Segment { sequence, acknowledgement, flags, .. } = segment;
        Segment { key, sequence, acknowledgement, length: segment.length(), flags }
    }

    #[cfg(test)]
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr, sequence: u32, length: u32, flags: u8) -> Self {
        Segment { key: Key::new(local, remote), sequence, acknowledgement: 0, length, flags }
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.flags & Self::RST != 0
    }

    pub(crate) fn resets_or_synchronizes(&self) -> bool {
        self.flags & (Self::RST | Self::SYN) != 0
    }

    pub(crate) fn is_synchronizing(&self) -> bool {
        self.flags & Self::SYN != 0
    }

    pub(crate) fn acknowledges(&self) -> bool {
        self.flags & Self::ACK != 0
    }

    /// Whether the segment requests a new connection: SYN without a flag that refers to an old one.
    pub(crate) fn opens(&self) -> bool {
        self.flags & (Self::SYN | Self::ACK | Self::RST | Self::FIN) == Self::SYN
    }
}

/// Kind of a packet, as far as finding its receiver goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Tcp(Key),
    Udp(Key),
    /// An answer to an echo of this host; the local port is the identifier.
    Echo(Key),
    /// An ICMP error about a packet that this host sent.
    Unreachable(Quoted, Key),
    /// Another ICMP error about a datagram of this host, which ends nothing.
    Reported(Quoted, Key),
    /// An ICMPv6 error about a packet of this host that was too large for its way.
    TooLarge(Quoted, Key),
    /// Another message of ICMPv6, of this kind.
    Message(u8),
    Arp,
    /// Another packet for this host or its network, answered by the protocol code, if necessary.
    Other,
    /// A packet not for this host, or one that no correct host sends.
    Drop,
}

/// Protocol of the packet that an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quoted {
    /// With the number of its segment.
    Tcp {
        sequence: u32,
    },
    Udp,
    /// An echo request; its key has the identifier as the local port, and no other port.
    Echo,
}

fn byte(data: &[u8], at: usize) -> Option<u8> {
    data.get(at).copied()
}

fn half(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

/// Classifies an Ethernet frame of `length` bytes by its beginning; it arrived on the interface with address `own`.
/// `six` classifies frames with packets of IPv6.
#[inline(always)]
pub(crate) fn classify_ethernet(
    frame: &[u8],
    length: usize,
    own: Ipv4Addr,
    six: impl FnOnce(&[u8], usize) -> Packet,
) -> Packet {
    match half(frame, 12) {
        Some(ETHERNET_TYPE_IPV4) => {
            let Some(packet) = frame.get(ETHERNET_HEADER..) else {
                return Packet::Drop;
            };
            // Addresses of the loopback network never cross a wire, and no other host has ours: such a packet is forged
            // to reach services that listen only inside.
            match (word(packet, 12), word(packet, 16)) {
                (Some(source), Some(destination))
                    if source >> 24 != 127
                        && destination >> 24 != 127
                        && (source != own.to_bits() || own.is_unspecified()) =>
                {
                    look(packet, length.saturating_sub(ETHERNET_HEADER)).unwrap_or(Packet::Drop)
                }
                _ => Packet::Drop,
            }
        }
        Some(ETHERNET_TYPE_ARP) => Packet::Arp,
        Some(ETHERNET_TYPE_IPV6) => six(frame, length),
        _ => Packet::Drop,
    }
}

/// Classifies an IPv4 packet.
pub(crate) fn classify_ipv4(packet: &[u8]) -> Packet {
    look(packet, packet.len()).unwrap_or(Packet::Drop)
}

/// Classifies a frame with an IPv6 packet, for the host with this hardware address, which has the addresses and is in
/// the groups that `is_for_us` names.
pub(crate) fn classify_six(
    frame: &[u8],
    length: usize,
    hardware: [u8; 6],
    is_for_us: impl FnOnce(Ipv6Addr) -> bool,
) -> Option<Packet> {
    let [to, from] = [frame.get(..6)?, frame.get(6..12)?];
    let is_for_many = to.starts_with(&[0x33, 0x33]);
    // A frame of this host that comes back is no other host's.
    if to != hardware && !is_for_many || from == hardware || from[0] & 1 != 0 {
        return None;
    }
    let packet = frame.get(ETHERNET_HEADER..)?;
    let (source, destination) = (address(packet, 8)?, address(packet, 24)?);
    let looked = look_at_six(packet, length.saturating_sub(ETHERNET_HEADER))?;
    let is_possible = match looked {
        Packet::Message(_) => {
            (source.is_unspecified() || is_of_a_host(source))
                && is_for_many == destination.is_multicast()
                && is_for_us(destination)
        }
        Packet::Unreachable(..) | Packet::TooLarge(..) | Packet::Reported(..) => {
            !is_for_many && is_of_a_host(source) && !destination.is_multicast() && is_for_us(destination)
        }
        _ => !is_for_many && is_of_a_host(source) && is_of_a_host(destination),
    };
    is_possible.then_some(looked)
}

fn address(packet: &[u8], at: usize) -> Option<Ipv6Addr> {
    Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?))
}

/// Classifies an IPv6 packet of `length` bytes by its beginning. Headers between the first and that of the transport
/// are not read: such a packet is dropped.
fn look_at_six(packet: &[u8], length: usize) -> Option<Packet> {
    if byte(packet, 0)? >> 4 != 6 {
        return None;
    }
    let (source, destination) = (address(packet, 8)?, address(packet, 24)?);
    let payload_length = usize::from(half(packet, 4)?);
    if HEADER_OF_SIX + payload_length > length {
        return None;
    }
    let payload = packet.get(HEADER_OF_SIX..packet.len().min(HEADER_OF_SIX + payload_length))?;
    match byte(packet, 6)? {
        // The only packet with a header in between that is read.
        OPTIONS_OF_SIX if may_be_query(payload) => Some(Packet::Message(QUERY)),
        PROTOCOL_ICMP_OF_SIX => Some(look_at_error_of_six(payload).unwrap_or(Packet::Message(byte(payload, 0)?))),
        // Only IPv4 has datagrams without a checksum (RFC 8200, section 8.1).
        PROTOCOL_UDP if half(payload, 6)? == 0 => None,
        protocol => transport(protocol, payload, |ports| Key::of_six(destination, source, ports)),
    }
}

/// Classifies an ICMPv6 message that a packet was lost, which quotes its start.
fn look_at_error_of_six(message: &[u8]) -> Option<Packet> {
    const UNREACHABLE: u8 = 1;
    const TOO_LARGE: u8 = 2;
    let kind = byte(message, 0).filter(|kind| is_report(true, *kind))?;
    let quoted = message.get(8..)?;
    if byte(quoted, 0)? >> 4 != 6 {
        return None;
    }
    let transport = quoted.get(HEADER_OF_SIX..)?;
    let (about, ports) = quoted_transport(byte(quoted, 6)?, transport, ECHO_REQUEST_OF_SIX)?;
    // The quoted source is this host.
    let key = Key::of_six(address(quoted, 8)?, address(quoted, 24)?, ports);
    packet_of_error(about, key, kind == UNREACHABLE, kind == TOO_LARGE)
}

/// Returns the beginning of a packet that an ICMP error quotes, and its ports, the local one in the upper half.
fn quoted_transport(protocol: u8, transport: &[u8], echo_request: u8) -> Option<(Quoted, u32)> {
    match protocol {
        PROTOCOL_TCP => Some((Quoted::Tcp { sequence: word(transport, 4)? }, word(transport, 0)?)),
        PROTOCOL_UDP => Some((Quoted::Udp, word(transport, 0)?)),
        PROTOCOL_ICMP | PROTOCOL_ICMP_OF_SIX if byte(transport, 0)? == echo_request => {
            Some((Quoted::Echo, u32::from(half(transport, 4)?) << 16))
        }
        _ => None,
    }
}

/// Classifies an error by the packet that it is about.
fn packet_of_error(about: Quoted, key: Key, is_unreachable: bool, is_too_large: bool) -> Option<Packet> {
    match about {
        Quoted::Tcp { .. } | Quoted::Udp if is_unreachable => Some(Packet::Unreachable(about, key)),
        Quoted::Tcp { .. } | Quoted::Udp if is_too_large => Some(Packet::TooLarge(about, key)),
        Quoted::Tcp { .. } => None,
        Quoted::Udp | Quoted::Echo => Some(Packet::Reported(about, key)),
    }
}

/// Reads the ports of a TCP segment or a UDP datagram; `key_of` makes the key of both, the local one in the upper half.
#[inline(always)]
fn transport(protocol: u8, payload: &[u8], key_of: impl Fn(u32) -> Key) -> Option<Packet> {
    let key = || Some(key_of(word(payload, 0)?.rotate_left(16)));
    match protocol {
        PROTOCOL_TCP => Some(Packet::Tcp(key()?)),
        PROTOCOL_UDP => Some(Packet::Udp(key()?)),
        _ => None,
    }
}

/// Classifies an IPv4 packet of `length` bytes by its beginning.
fn look(packet: &[u8], length: usize) -> Option<Packet> {
    let first = byte(packet, 0)?;
    let header = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || header < 20 {
        return None;
    }
    // Fragments are not reassembled. In all but the first, the bytes behind the header are no transport header.
    if half(packet, 6)? & FRAGMENT_BITS != 0 {
        return None;
    }
    let (source, destination) = (word(packet, 12)?, word(packet, 16)?);
    let total = usize::from(half(packet, 2)?);
    let payload = packet.get(header..total.min(packet.len()))?;
    if total > length {
        return None;
    }
    match byte(packet, 9)? {
        protocol @ (PROTOCOL_TCP | PROTOCOL_UDP) => {
            transport(protocol, payload, |ports| Key::of_four(destination, source, ports))
        }
        PROTOCOL_ICMP => {
            let echo = || look_at_echo(payload).map(|identifier| Key::of_four(destination, source, identifier << 16));
            Some(look_at_error(payload).or_else(|| echo().map(Packet::Echo)).unwrap_or(Packet::Other))
        }
        _ => Some(Packet::Other),
    }
}

/// Returns the identifier of an ICMP echo reply.
fn look_at_echo(message: &[u8]) -> Option<u32> {
    const REPLY: u16 = 0;
    // Kind and code.
    (half(message, 0)? == REPLY).then_some(half(message, 4)?.into())
}

/// Classifies an ICMP message that a packet was lost, which quotes its start.
fn look_at_error(message: &[u8]) -> Option<Packet> {
    const UNREACHABLE: u8 = 3;
    // Advice, not the end of anything.
    const FRAGMENTATION_NEEDED: u8 = 4;
    let kind = byte(message, 0).filter(|kind| is_report(false, *kind))?;
    let quoted = message.get(8..)?;
    let first = byte(quoted, 0)?;
    let header = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || header < 20 || half(quoted, 6)? & FRAGMENT_BITS != 0 {
        return None;
    }
    let transport = quoted.get(header..)?;
    let (about, ports) = quoted_transport(byte(quoted, 9)?, transport, ECHO_REQUEST)?;
    // The quoted source is this host.
    let key = Key::of_four(word(quoted, 12)?, word(quoted, 16)?, ports);
    packet_of_error(about, key, kind == UNREACHABLE && byte(message, 1)? != FRAGMENTATION_NEEDED, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ethernet::BEGINNING;
    use proptest::prelude::*;

    const HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 15];

    /// Classifies for a host with every address.
    fn six(frame: &[u8], length: usize) -> Packet {
        classify_six(frame, length, HARDWARE, |_| true).unwrap_or(Packet::Drop)
    }

    fn tcp(flags: u8) -> [u8; 40] {
        let mut packet = [0; 40];
        packet[0] = 0x45;
        packet[3] = 40;
        packet[9] = PROTOCOL_TCP;
        packet[12..16].copy_from_slice(&[10, 0, 2, 2]);
        packet[16..20].copy_from_slice(&[10, 0, 2, 15]);
        packet[20..24].copy_from_slice(&[0x12, 0x34, 0, 80]);
        packet[24..28].copy_from_slice(&7u32.to_be_bytes());
        packet[32] = 0x50;
        packet[33] = flags;
        packet
    }

    /// Returns the segment in a packet of either family.
    fn segment_in(packet: &[u8]) -> Segment {
        let (looked, start, end) = match packet[0] >> 4 {
            4 => (look(packet, packet.len()), usize::from(packet[0] & 0xf) * 4, half(packet, 2)),
            _ => (look_at_six(packet, packet.len()), HEADER_OF_SIX, half(packet, 4).map(|length| length + 40)),
        };
        let Some(Packet::Tcp(key)) = looked else { panic!("not a segment") };
        Segment::of(key, &tcp::Segment::read(&packet[start..end.unwrap().into()]).unwrap())
    }

    #[test]
    fn a_segment_is_read() {
        let segment = segment_in(&tcp(0x02));
        assert_eq!(segment.key.local(), "10.0.2.15:80".parse().unwrap());
        assert_eq!(segment.key.remote(), "10.0.2.2:4660".parse().unwrap());
        assert_eq!((segment.sequence, segment.length), (7, 1));
        assert!(segment.opens() && !segment.is_reset());
        assert!(!segment_in(&tcp(0x12)).opens());
        for flags in [0x00, 0x01, 0x03, 0x04, 0x06, 0x10] {
            assert!(!segment_in(&tcp(flags)).opens(), "{flags:#x}");
        }
    }

    /// For every set of flags, with data, options and a frame's padding, and without.
    #[test]
    fn flags_and_length_mean_the_same_in_every_combination() {
        for (flags, (options, data, padding)) in (0..=255u8)
            .flat_map(|flags| [(0, 0, 0), (0, 0, 6), (12, 0, 0), (0, 5, 1), (40, 7, 0)].map(|one| (flags, one)))
        {
            let mut packet = alloc::vec::Vec::from(tcp(flags));
            packet[3] = 40 + options + data;
            packet[32] = ((20 + options) / 4) << 4;
            packet.resize(usize::from(40 + options + data + padding), 0xff);
            let segment = segment_in(&packet);
            let [fin, syn, reset, acknowledges] = [1, 2, 4, 16].map(|bit| flags & bit != 0);
            let length = u32::from(data) + u32::from(syn) + u32::from(fin);
            assert_eq!(segment.length, length, "{flags:#x} with {data} bytes");
            let read = [segment.is_synchronizing(), segment.is_reset(), segment.acknowledges()];
            assert_eq!(read, [syn, reset, acknowledges], "{flags:#x}");
            assert_eq!(segment.resets_or_synchronizes(), reset || syn, "{flags:#x}");
            assert_eq!(segment.opens(), syn && !(fin || reset || acknowledges), "{flags:#x}");
        }
    }

    #[test]
    fn fragments_and_forged_addresses_are_dropped() {
        let mut fragment = tcp(0x02);
        fragment[7] = 1;
        assert_eq!(classify_ipv4(&fragment), Packet::Drop);

        let own = Ipv4Addr::new(10, 0, 2, 15);
        let classify_ethernet = |frame: &[u8], length, own| classify_ethernet(frame, length, own, six);
        let ethernet = |packet: [u8; 40]| {
            let mut frame = [0; 54];
            frame[12] = 8;
            frame[14..].copy_from_slice(&packet);
            frame
        };
        assert!(matches!(classify_ethernet(&ethernet(tcp(2)), 54, own), Packet::Tcp(_)));
        assert_eq!(classify_ethernet(&ethernet(tcp(2)), 53, own), Packet::Drop);
        let mut inside = tcp(2);
        inside[16..20].copy_from_slice(&[127, 0, 0, 1]);
        assert_eq!(classify_ethernet(&ethernet(inside), 54, own), Packet::Drop);
        let mut from_inside = tcp(2);
        from_inside[12..16].copy_from_slice(&[127, 0, 0, 1]);
        assert_eq!(classify_ethernet(&ethernet(from_inside), 54, own), Packet::Drop);
        let mut mirrored = tcp(2);
        mirrored[12..16].copy_from_slice(&[10, 0, 2, 15]);
        assert_eq!(classify_ethernet(&ethernet(mirrored), 54, own), Packet::Drop);
    }

    #[test]
    fn options_of_a_header_are_skipped_and_short_headers_refused() {
        let mut with_options = [&tcp(0x02)[..20], &[1; 4], &tcp(0x02)[20..]].concat();
        with_options[0] = 0x46;
        with_options[3] = 44;
        let segment = segment_in(&with_options);
        assert_eq!((segment.key.local().port(), segment.key.remote().port(), segment.sequence), (80, 4660, 7));
        for first in [0x40, 0x44, 0x55, 0x65] {
            let mut packet = tcp(0x02);
            packet[0] = first;
            assert_eq!(classify_ipv4(&packet), Packet::Drop, "{first:#x}");
        }
    }

    /// Returns a router's message that a packet from this host could not be delivered; its header has options.
    fn unreachable(options: usize) -> alloc::vec::Vec<u8> {
        let header = 20 + options;
        let mut quoted = alloc::vec![0; header + 8];
        quoted[0] = 0x40 | (header / 4) as u8;
        quoted[9] = PROTOCOL_UDP;
        quoted[12..16].copy_from_slice(&[10, 0, 2, 15]);
        quoted[16..20].copy_from_slice(&[10, 0, 2, 99]);
        quoted[header..].copy_from_slice(&[0x12, 0x34, 0, 53, 1, 2, 3, 4]);
        [&[3, 1, 0, 0, 0, 0, 0, 0][..], &quoted].concat()
    }

    #[test]
    fn an_error_is_about_the_packet_that_it_quotes() {
        let about = |about| {
            let ends = ["10.0.2.15:4660", "10.0.2.99:53"].map(|end| end.parse().unwrap());
            Packet::Unreachable(about, Key::new(ends[0], ends[1]))
        };
        for options in [0, 4, 40] {
            let message = unreachable(options);
            assert_eq!(look_at_error(&message), Some(about(Quoted::Udp)), "{options} bytes of options");
            assert_eq!(look_at_error(&message[..8 + 20 + options + 4]), Some(about(Quoted::Udp)));
            assert_eq!(look_at_error(&message[..8 + 20 + options + 3]), None, "the ports are cut off");
        }
        let with = |at: usize, value: u8| {
            let mut message = unreachable(0);
            message[at] = value;
            look_at_error(&message)
        };
        assert_eq!(with(8 + 9, PROTOCOL_TCP), Some(about(Quoted::Tcp { sequence: 0x0102_0304 })));
        let mut message = unreachable(0);
        message[8 + 9] = PROTOCOL_TCP;
        assert_eq!(look_at_error(&message[..8 + 20 + 7]), None, "the number is cut off");
        assert_eq!(with(8 + 9, PROTOCOL_ICMP), None);
        // Another message; advice and other losses, which only end what asks for them; not an IPv4 header.
        assert_eq!([with(0, 0), with(0, 2)], [None; 2]);
        let Packet::Unreachable(_, key) = about(Quoted::Udp) else { panic!("not an error") };
        let reported = Some(Packet::Reported(Quoted::Udp, key));
        assert_eq!([with(0, 11), with(0, 12), with(1, 4)], [reported; 3]);
        let mut echo = unreachable(0);
        (echo[8 + 9], echo[8 + 20]) = (PROTOCOL_ICMP, ECHO_REQUEST);
        let Some(Packet::Reported(Quoted::Echo, key)) = look_at_error(&echo) else { panic!("no echo") };
        assert_eq!((key.local().port(), key.remote().port()), (0x0102, 0));
        assert_eq!([with(8, 0x65), with(8, 0x35), with(8, 0x44), with(8, 0x40)], [None; 4]);
        // Only the first fragment has ports, and one of unknown length does not count as whole.
        assert_eq!([with(8 + 6, 0x20), with(8 + 6, 0x01), with(8 + 7, 1)], [None; 3]);
        assert_eq!(with(8 + 6, 0x40), Some(about(Quoted::Udp)), "not to be fragmented");
        assert_eq!(with(1, 0), Some(about(Quoted::Udp)));
    }

    /// Returns a frame of IPv6 to this host with this protocol and payload.
    fn frame_of_six(protocol: u8, payload: &[u8]) -> alloc::vec::Vec<u8> {
        let mut frame = alloc::vec![2, 0, 0, 0, 0, 15, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0];
        frame.extend([payload.len() as u8, protocol, 64]);
        frame.extend("fe80::2".parse::<Ipv6Addr>().unwrap().octets());
        frame.extend("fe80::15".parse::<Ipv6Addr>().unwrap().octets());
        frame.extend(payload);
        frame
    }

    #[test]
    fn a_packet_of_six_is_read() {
        let classify = |frame: &[u8]| classify_ethernet(frame, frame.len(), Ipv4Addr::UNSPECIFIED, six);
        let frame = frame_of_six(PROTOCOL_TCP, &tcp(0x02)[20..]);
        assert!(matches!(classify(&frame), Packet::Tcp(_)));
        let segment = segment_in(&frame[14..]);
        assert_eq!(segment.key.local(), "[fe80::15]:80".parse().unwrap());
        assert_eq!(segment.key.remote(), "[fe80::2]:4660".parse().unwrap());
        assert_eq!((segment.sequence, segment.length, segment.opens()), (7, 1, true));
        // Long data behind the beginning counts too.
        let long = frame_of_six(PROTOCOL_TCP, &[&tcp(0x10)[20..], &[1; 100]].concat());
        let first = classify_ethernet(&long[..BEGINNING], long.len(), Ipv4Addr::UNSPECIFIED, six);
        assert_eq!(first, Packet::Tcp(segment.key));
        assert_eq!(segment_in(&long[14..]).length, 100);

        let with = |at: usize, value: &[u8]| {
            let mut frame = frame.clone();
            frame[at..at + value.len()].copy_from_slice(value);
            classify(&frame)
        };
        let one = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        for (at, wrong) in [
            (0, &[2, 0, 0, 0, 0, 16][..]),
            (0, &[0x33, 0x33, 0, 0, 0, 1]),
            (6, &HARDWARE),
            (6, &[3]),
            (14, &[0x40]),
            (18, &[1]),
            // A header between the two, and a fragment.
            (20, &[0]),
            (20, &[44]),
            (22, &one("::")),
            (22, &one("::1")),
            (22, &one("ff02::1")),
            (22, &one("::ffff:10.0.2.15")),
            (38, &one("::1")),
            (38, &one("ff02::1")),
            (38, &one("::ffff:127.0.0.1")),
        ] {
            assert_eq!(with(at, wrong), Packet::Drop, "{wrong:?} at {at}");
        }
    }

    #[test]
    fn an_error_of_six_is_about_the_packet_that_it_quotes() {
        let classify = |frame: &[u8]| classify_ethernet(frame, frame.len(), Ipv4Addr::UNSPECIFIED, six);
        let mut quoted = frame_of_six(PROTOCOL_UDP, &[0x12, 0x34, 0, 53, 1, 2, 3, 4]).split_off(14);
        let error = |kind: u8, quoted: &[u8]| {
            classify(&frame_of_six(PROTOCOL_ICMP_OF_SIX, &[&[kind, 0, 0, 0, 0, 0, 5, 0][..], quoted].concat()))
        };
        let key = Key::new("[fe80::2]:4660".parse().unwrap(), "[fe80::15]:53".parse().unwrap());
        assert_eq!(error(1, &quoted), Packet::Unreachable(Quoted::Udp, key));
        assert_eq!(error(2, &quoted), Packet::TooLarge(Quoted::Udp, key));
        assert_eq!([3, 4].map(|kind| error(kind, &quoted)), [Packet::Reported(Quoted::Udp, key); 2]);
        assert_eq!(error(5, &quoted), Packet::Message(5));
        assert_eq!(error(1, &quoted[..43]), Packet::Message(1), "the ports are cut off");
        quoted[6] = PROTOCOL_TCP;
        assert_eq!(error(1, &quoted), Packet::Unreachable(Quoted::Tcp { sequence: 0x0102_0304 }, key));
        quoted[6] = 44;
        assert_eq!(error(1, &quoted), Packet::Message(1));
        quoted[0] = 0x45;
        assert_eq!(error(1, &quoted), Packet::Message(1));
    }

    /// Whether the headers that tell one from the other are longer than the beginning.
    fn is_unread(first: Packet, packet: Packet) -> bool {
        matches!(
            (first, packet),
            (Packet::Other, Packet::Unreachable(..))
                | (Packet::Message(_), Packet::Unreachable(..) | Packet::TooLarge(..))
        )
    }

    /// Bytes that end anywhere, often where a header does.
    fn frame() -> impl Strategy<Value = alloc::vec::Vec<u8>> {
        property::edges(0..200usize, &[14, 34, 42, 54, BEGINNING])
            .prop_flat_map(|length| prop::collection::vec(any::<u8>(), length..=length))
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn any_bytes_are_classified(mut frame in frame(), kind in 0u8..4, is_six: bool) {
            classify_ipv4(&frame);
            if frame.len() > 24 {
                frame[12..14].copy_from_slice(&ETHERNET_TYPE_IPV4.to_be_bytes());
                frame[14] = 0x45;
                frame[23] = [PROTOCOL_TCP, PROTOCOL_UDP, PROTOCOL_ICMP, 99][kind as usize];
                frame[20] = 0;
                frame[21] = 0;
            }
            if is_six && frame.len() > 54 {
                frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 15, 2, 0, 0, 0, 0, 2, 0x86, 0xdd]);
                frame[14] = 0x60;
                let length = (frame.len() - 54) as u16;
                frame[18..20].copy_from_slice(&length.to_be_bytes());
                frame[20] = [PROTOCOL_TCP, PROTOCOL_UDP, PROTOCOL_ICMP_OF_SIX, 0][kind as usize];
                if kind == 2 {
                    frame[54] %= 4;
                }
            }
            let own = Ipv4Addr::new(10, 0, 2, 15);
            let classify_ethernet = |frame: &[u8], length| classify_ethernet(frame, length, own, six);
            let packet = classify_ethernet(&frame, frame.len());
            // The beginning may not be enough, but does not mislead.
            let first = classify_ethernet(&frame[..frame.len().min(BEGINNING)], frame.len());
            prop_assert!(first == packet || first == Packet::Drop || is_unread(first, packet));
        }
    }
}
