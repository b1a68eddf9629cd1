//! Segments without data that the stack sends itself, for connections without a smoltcp socket.

use core::net::IpAddr;

use smoltcp::phy::{ChecksumCapabilities, TxToken};
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl,
    TcpPacket, TcpRepr, TcpSeqNumber,
};

use crate::host::Via;
use crate::table::Key;

const ETHERNET_HEADER: usize = 14;

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
        if via == Via::Ethernet {
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
        token.consume(self.header() + packet_length(segment), |bytes| self.write(segment, bytes, checksums));
    }

    fn header(&self) -> usize {
        match self.via {
            Via::Ethernet => ETHERNET_HEADER,
            Via::Local => 0,
        }
    }

    /// Writes the frame with a segment; `bytes` has exactly its length.
    pub(crate) fn write(&self, segment: &TcpRepr<'_>, bytes: &mut [u8], checksums: &ChecksumCapabilities) {
        let (head, packet) = bytes.split_at_mut(self.header());
        if self.via == Via::Ethernet {
            let [own, other] = self.hardware;
            let mut sent = EthernetFrame::new_unchecked(head);
            sent.set_dst_addr(EthernetAddress(other));
            sent.set_src_addr(EthernetAddress(own));
            sent.set_ethertype(EthernetProtocol::Ipv4);
        }
        write_packet(packet, self.key, segment, checksums);
    }
}

/// Returns the length of the IPv4 packet with this segment.
pub(crate) fn packet_length(segment: &TcpRepr<'_>) -> usize {
    smoltcp::wire::IPV4_HEADER_LEN + segment.buffer_len()
}

/// Writes an IPv4 packet with a segment from the key's local end to its remote end; `packet` has exactly its length.
pub(crate) fn write_packet(packet: &mut [u8], key: Key, segment: &TcpRepr<'_>, checksums: &ChecksumCapabilities) {
    let (IpAddr::V4(local), IpAddr::V4(remote)) = (key.local().ip(), key.remote().ip()) else { return };
    let ip = Ipv4Repr {
        src_addr: local,
        dst_addr: remote,
        next_header: IpProtocol::Tcp,
        payload_len: segment.buffer_len(),
        hop_limit: 64,
    };
    let (header, payload) = packet.split_at_mut(ip.buffer_len());
    ip.emit(&mut Ipv4Packet::new_unchecked(header), checksums);
    let (local, remote) = (IpAddress::Ipv4(local), IpAddress::Ipv4(remote));
    segment.emit(&mut TcpPacket::new_unchecked(payload), &local, &remote, checksums);
}

/// Reads the segment in a frame, if it is whole and its checksums are right.
pub(crate) fn parse<'frame>(
    via: Via,
    frame: &'frame [u8],
    checksums: &ChecksumCapabilities,
) -> Option<TcpRepr<'frame>> {
    let start = match via {
        Via::Ethernet => ETHERNET_HEADER,
        Via::Local => 0,
    };
    let packet = Ipv4Packet::new_checked(frame.get(start..)?).ok()?;
    let ip = Ipv4Repr::parse(&packet, checksums).ok()?;
    let segment = TcpPacket::new_checked(packet.payload()).ok()?;
    TcpRepr::parse(&segment, &IpAddress::Ipv4(ip.src_addr), &IpAddress::Ipv4(ip.dst_addr), checksums).ok()
}
