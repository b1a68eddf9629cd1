//! Checksum work that is left when the device computes checksums: the sum over the pseudo header.

use ethernet::ETHERNET_HEADER;

/// Start of the bytes that the device sums, from the start of the frame, and place of the result, from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) start: u16,
    pub(crate) offset: u16,
}

/// Prepares a frame whose TCP or UDP checksum is empty (virtio 1.2 section 5.1.6.2): writes the sum of the pseudo
/// header there and returns the device's part. `None` for a frame that needs no checksum.
pub(crate) fn prepare(frame: &mut [u8]) -> Option<Request> {
    const HEADER_OF_SIX: usize = 40;
    /// "More fragments" and the offset of one, in a header of IPv4.
    const FRAGMENT: u16 = 0x3fff;
    let ip = frame.get(ETHERNET_HEADER..)?;
    let half = |at: usize| Some(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?]));
    let (header, protocol, total, addresses) = match (frame.get(12..14)?, ip.first()? >> 4) {
        // Of a fragment, what is behind the header is no header, or counts for more than is there.
        ([8, 0], 4) if half(6)? & FRAGMENT != 0 => return None,
        ([8, 0], 4) => (usize::from(ip.first()? & 0xf) * 4, *ip.get(9)?, usize::from(half(2)?), ip.get(12..20)?),
        ([0x86, 0xdd], 6) => (HEADER_OF_SIX, *ip.get(6)?, HEADER_OF_SIX + usize::from(half(4)?), ip.get(8..40)?),
        _ => return None,
    };
    let offset = match protocol {
        6 => 16,
        17 => 6,
        _ => return None,
    };
    let length = total.checked_sub(header)?;
    if header < 20 || length < offset + 2 || ip.len() < total {
        return None;
    }
    let mut sum = u32::from(protocol) + length as u32;
    for pair in addresses.chunks_exact(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let start = ETHERNET_HEADER + header;
    frame.get_mut(start + offset..start + offset + 2)?.copy_from_slice(&(sum as u16).to_be_bytes());
    Some(Request { start: start as u16, offset: offset as u16 })
}
