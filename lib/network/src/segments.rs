//! Segments of connections: out of frames, and into frames.

use ethernet::ETHERNET_HEADER;
use smoltcp::phy::{ChecksumCapabilities, TxToken};
use smoltcp::time::Instant;
use tcp::{ControlBlock, Departure, Segment, Time};

use crate::checksum;
use crate::host::Via;
use crate::reply::{Course, header_length};
use crate::table::Key;

const HEADER_OF_FOUR: usize = 20;
const HEADER_OF_SIX: usize = 40;
const TCP: u8 = 6;
/// Packets that may not be broken into fragments.
const WHOLE: u8 = 0x40;
const HOPS: u8 = 64;

/// Converts a time.
#[inline(always)]
pub(crate) fn time(now: Instant) -> Time {
    now.total_micros() as Time
}

/// Converts a time.
#[inline(always)]
pub(crate) fn instant(time: Time) -> Instant {
    Instant::from_micros(i64::try_from(time).unwrap_or(i64::MAX))
}

/// Reads the segment in a frame, or in a packet within the host: whole, undamaged, and to this hardware address.
#[inline(always)]
pub(crate) fn segment_in<'frame>(
    via: Via,
    frame: &'frame [u8],
    own: [u8; 6],
    checksums: &ChecksumCapabilities,
) -> Option<Segment<'frame>> {
    let packet = match via {
        Via::Local => frame,
        _ => {
            let (header, packet) = frame.split_first_chunk::<ETHERNET_HEADER>()?;
            if header[..6] != own {
                return None;
            }
            packet
        }
    };
    let is_summed = via != Via::Local && checksums.tcp.rx();
    if packet.first()? >> 4 == 6 {
        let (header, rest) = packet.split_first_chunk::<HEADER_OF_SIX>()?;
        let bytes = rest.get(..usize::from(u16::from_be_bytes([header[4], header[5]])))?;
        let is_right = !is_summed || checksum::is_right(&header[8..], bytes);
        return if is_right { Segment::read(bytes) } else { None };
    }
    let header = packet.first_chunk::<HEADER_OF_FOUR>()?;
    let (start, end) = (usize::from(header[0] & 0xf) * 4, usize::from(u16::from_be_bytes([header[2], header[3]])));
    let bytes = packet.get(start..end)?;
    let is_right = (via == Via::Local || !checksums.ipv4.rx() || checksum::is_header_right(packet.get(..start)?))
        && (!is_summed || checksum::is_right(&header[12..], bytes));
    if is_right { Segment::read(bytes) } else { None }
}

impl Course {
    /// Sends a segment of a connection now; `is_summed` if its checksum is to be filled in.
    #[inline(always)]
    pub(crate) fn depart<T: TxToken>(
        &self,
        block: &ControlBlock,
        departure: &Departure,
        is_summed: bool,
        token: T,
        now: Instant,
    ) {
        let (header, segment) = (header_length(self.key), departure.length());
        token.consume(self.header() + header + segment, |frame| {
            let (head, bytes) = self.write_envelope(frame).split_at_mut(header);
            self.write_packet_header(segment, head);
            block.write(departure, [self.key.local_port(), self.key.remote_port()], time(now), bytes);
            if !is_summed {
                return;
            }
            match (self.key, head.first_chunk::<HEADER_OF_FOUR>()) {
                (Key::Four(_), Some(head)) => checksum::complete_segment(&head[12..], bytes),
                _ => checksum::complete_segment(&head[8..], bytes),
            }
        });
    }

    #[inline(always)]
    fn write_packet_header(&self, segment: usize, room: &mut [u8]) {
        match self.key {
            Key::Four(key) => {
                let Some(header) = room.first_chunk_mut::<HEADER_OF_FOUR>() else { return };
                let [l0, l1] = ((HEADER_OF_FOUR + segment) as u16).to_be_bytes();
                header[..12].copy_from_slice(&[0x45, 0, l0, l1, 0, 0, WHOLE, 0, HOPS, TCP, 0, 0]);
                let (local, remote) = key.addresses();
                header[12..16].copy_from_slice(&local.to_be_bytes());
                header[16..].copy_from_slice(&remote.to_be_bytes());
                let sum = checksum::of_header(header);
                header[10..12].copy_from_slice(&sum);
            }
            Key::Six(_) => {
                let Some(header) = room.first_chunk_mut::<HEADER_OF_SIX>() else { return };
                let [l0, l1] = (segment as u16).to_be_bytes();
                header[..8].copy_from_slice(&[0x60, 0, 0, 0, l0, l1, TCP, HOPS]);
                if let (core::net::IpAddr::V6(local), core::net::IpAddr::V6(remote)) =
                    (self.key.local().ip(), self.key.remote().ip())
                {
                    header[8..24].copy_from_slice(&local.octets());
                    header[24..].copy_from_slice(&remote.octets());
                }
            }
        }
    }
}
