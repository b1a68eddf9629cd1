//! Checksum work that is left when the device computes checksums: the sum over the pseudo header.

/// Start of the bytes that the device sums, from the start of the frame, and place of the result, from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) start: u16,
    pub(crate) offset: u16,
}

const ETHERNET_HEADER: usize = 14;

/// Prepares a frame whose TCP or UDP checksum is empty (virtio 1.2 section 5.1.6.2): writes the sum of the pseudo
/// header there and returns the device's part. `None` for a frame that needs no checksum.
pub(crate) fn prepare(frame: &mut [u8]) -> Option<Request> {
    let ip = frame.get(ETHERNET_HEADER..)?;
    if frame.get(12..14)? != [8, 0] || ip.first()? >> 4 != 4 {
        return None;
    }
    let header = usize::from(ip.first()? & 0xf) * 4;
    let offset = match ip.get(9)? {
        6 => 16,
        17 => 6,
        _ => return None,
    };
    let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    let length = total.checked_sub(header)?;
    if header < 20 || length < offset + 2 || ip.len() < total {
        return None;
    }
    let mut sum = u32::from(*ip.get(9)?) + length as u32;
    for pair in ip.get(12..20)?.chunks_exact(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let start = ETHERNET_HEADER + header;
    frame.get_mut(start + offset..start + offset + 2)?.copy_from_slice(&(sum as u16).to_be_bytes());
    Some(Request { start: start as u16, offset: offset as u16 })
}
