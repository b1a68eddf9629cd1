//! Segments without data that the stack sends for what is no connection: requests, records of ended ones, strangers.

use ethernet::ETHERNET_HEADER;
use smoltcp::phy::{ChecksumCapabilities, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetFrame, IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv4Repr, Ipv6Packet, TcpControl, TcpPacket, TcpRepr,
    TcpSeqNumber, TcpTimestampRepr,
};
use tcp::Stamps;

use crate::host::Via;
use crate::segments::time;
use crate::table::Key;

/// Path to the other end of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Course {
    pub(crate) via: Via,
    pub(crate) key: Key,
    /// Hardware addresses of this host and of the other end or the gateway before it; unused within the host.
    pub(crate) hardware: [[u8; 6]; 2],
}

impl Course {
    /// Returns the path back to the sender of `frame`, or `None` if it was not sent to this host's hardware address.
    pub(crate) fn back(via: Via, key: Key, frame: &[u8], own: [u8; 6]) -> Option<Self> {
        let mut other = [0; 6];
        if via != Via::Local {
            let received = EthernetFrame::new_checked(frame).ok()?;
            if received.dst_addr().0 != own {
                return None;
            }
            other = received.src_addr().0;
        }
        Some(Course { via, key, hardware: [own, other] })
    }

    /// Returns a segment from this end with these numbers and no data.
    pub(crate) fn segment(&self, control: TcpControl, ours: u32, theirs: u32) -> TcpRepr<'static> {
        TcpRepr {
            src_port: self.key.local_port(),
            dst_port: self.key.remote().port(),
            control,
            seq_number: TcpSeqNumber(ours as i32),
            ack_number: Some(TcpSeqNumber(theirs as i32)),
            window_len: 0,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None, None, None],
            timestamp: None,
            payload: &[],
        }
    }

    /// Sends a segment.
    pub(crate) fn send<T: TxToken>(&self, segment: &TcpRepr<'_>, token: T, checksums: &ChecksumCapabilities) {
        token.consume(self.header() + packet_length(self.key, segment), |bytes| self.write(segment, bytes, checksums));
    }

    /// Returns the length of the Ethernet header.
    #[inline(always)]
    pub(crate) fn header(&self) -> usize {
        match self.via {
            Via::Ethernet | Via::Six | Via::NarrowSix => ETHERNET_HEADER,
            Via::Local => 0,
        }
    }

    /// Writes the frame with a segment; `bytes` has exactly its length.
    pub(crate) fn write(&self, segment: &TcpRepr<'_>, bytes: &mut [u8], checksums: &ChecksumCapabilities) {
        write_packet(self.write_envelope(bytes), self.key, segment, checksums);
    }

    /// Writes the Ethernet header, if the frame has one; returns the packet behind it.
    #[inline(always)]
    pub(crate) fn write_envelope<'frame>(&self, bytes: &'frame mut [u8]) -> &'frame mut [u8] {
        let (head, packet) = bytes.split_at_mut(self.header());
        if let Some(head) = head.first_chunk_mut::<ETHERNET_HEADER>() {
            let [own, other] = self.hardware;
            head[..6].copy_from_slice(&other);
            head[6..12].copy_from_slice(&own);
            head[12..].copy_from_slice(match self.key {
                Key::Four(_) => &[0x08, 0x00],
                Key::Six(_) => &[0x86, 0xdd],
            });
        }
        packet
    }
}

/// Returns a segment that leaves now with timestamps, if there are any.
pub(crate) fn stamped(stamps: Option<Stamps>, segment: TcpRepr<'_>, now: Instant) -> TcpRepr<'_> {
    let told = stamps.map(|stamps| stamps.told(time(now)));
    TcpRepr { timestamp: told.map(|(value, echo)| TcpTimestampRepr::new(value, echo)), ..segment }
}

/// Returns the length of the IP header of a packet with this key.
#[inline(always)]
pub(crate) fn header_length(key: Key) -> usize {
    match key {
        Key::Four(_) => smoltcp::wire::IPV4_HEADER_LEN,
        Key::Six(_) => smoltcp::wire::IPV6_HEADER_LEN,
    }
}

/// Returns the length of the IP packet with this key and this segment.
pub(crate) fn packet_length(key: Key, segment: &TcpRepr<'_>) -> usize {
    header_length(key) + segment.buffer_len()
}

/// Writes an IP packet with a segment from the key's local end to its remote end; `packet` has exactly its length.
pub(crate) fn write_packet(packet: &mut [u8], key: Key, segment: &TcpRepr<'_>, checksums: &ChecksumCapabilities) {
    let (local, remote) = (IpAddress::from(key.local().ip()), IpAddress::from(key.remote().ip()));
    if matches!((local, remote), (IpAddress::Ipv4(_), IpAddress::Ipv6(_)) | (IpAddress::Ipv6(_), IpAddress::Ipv4(_))) {
        return;
    }
    let ip = IpRepr::new(local, remote, IpProtocol::Tcp, segment.buffer_len(), 64);
    let (header, payload) = packet.split_at_mut(ip.header_len());
    ip.emit(header, checksums);
    segment.emit(&mut TcpPacket::new_unchecked(payload), &local, &remote, checksums);
}

/// Reads the segment in a frame, if it is whole and its checksums are right.
pub(crate) fn parse<'frame>(
    via: Via,
    frame: &'frame [u8],
    checksums: &ChecksumCapabilities,
) -> Option<TcpRepr<'frame>> {
    let start = match via {
        Via::Ethernet | Via::Six | Via::NarrowSix => ETHERNET_HEADER,
        Via::Local => 0,
    };
    let (source, destination, payload) = parse_ip(frame.get(start..)?, checksums)?;
    TcpRepr::parse(&TcpPacket::new_checked(payload).ok()?, &source, &destination, checksums).ok()
}

/// Reads the addresses and the payload of a packet of either family, if its lengths and its checksum are right.
pub(crate) fn parse_ip<'packet>(
    packet: &'packet [u8],
    checksums: &ChecksumCapabilities,
) -> Option<(IpAddress, IpAddress, &'packet [u8])> {
    if packet.first()? >> 4 == 6 {
        let packet = Ipv6Packet::new_checked(packet).ok()?;
        return Some((packet.src_addr().into(), packet.dst_addr().into(), packet.payload()));
    }
    let packet = Ipv4Packet::new_checked(packet).ok()?;
    let ip = Ipv4Repr::parse(&packet, checksums).ok()?;
    Some((ip.src_addr.into(), ip.dst_addr.into(), packet.payload()))
}
