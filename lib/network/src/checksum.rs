//! Checksums of TCP segments in frames (RFC 1071, RFC 9293 section 3.1), where the device does not compute them.
//!
//! To add bytes in pairs takes two and a half instructions for each byte: of an answer of a kilobyte that was a third
//! of all work on the way out. The sum is the same whatever the size of the words that are added, if each carry is
//! added too, so here it is added eight bytes at a time. The stack verifies the checksums of segments from the wire
//! before anything else looks at them, and fills in those of segments that leave.

use core::net::Ipv6Addr;
use core::ops::Range;

use ethernet::ETHERNET_HEADER;
use smoltcp::phy::{Checksum, DeviceCapabilities};
use zerocopy::FromBytes as _;

use crate::frame::PROTOCOL_ICMP_OF_SIX;

const WORD: usize = size_of::<u64>();
/// Number of bytes below which the choice of words costs more than it saves.
const SHORT: usize = 8 * WORD;
const TCP: u8 = 6;
/// Shortest header of IPv4 and of TCP.
const SHORTEST: usize = 20;
const HEADER_OF_SIX: usize = 40;
/// Place of the checksum in a segment.
const PLACE: Range<usize> = 16..18;
const PLACE_IN_A_MESSAGE: Range<usize> = 2..4;

/// Returns the capabilities of interfaces that leave checksums of TCP alone.
pub(crate) fn of_interfaces(mut capabilities: DeviceCapabilities) -> DeviceCapabilities {
    capabilities.checksum.tcp = Checksum::None;
    capabilities
}

/// A segment in a frame.
struct Place {
    /// Places of both addresses, and of the segment.
    addresses: Range<usize>,
    segment: Range<usize>,
}

impl Place {
    fn find(frame: &[u8]) -> Option<Place> {
        let packet = frame.get(ETHERNET_HEADER..)?;
        let half = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
        let (header, protocol, total, addresses) = match packet.first()? >> 4 {
            4 => (usize::from(packet[0] & 0xf) * 4, *packet.get(9)?, usize::from(half(2)?), 12..20),
            6 => (HEADER_OF_SIX, *packet.get(6)?, HEADER_OF_SIX + usize::from(half(4)?), 8..40),
            _ => return None,
        };
        let length = total.checked_sub(header)?;
        if protocol != TCP || header < SHORTEST || length < SHORTEST || packet.len() < total {
            return None;
        }
        let in_frame = |range: Range<usize>| ETHERNET_HEADER + range.start..ETHERNET_HEADER + range.end;
        Some(Place { addresses: in_frame(addresses), segment: in_frame(header..total) })
    }
}

/// Fills in the checksum of a frame, if it has a TCP segment.
pub(crate) fn complete(frame: &mut [u8]) {
    if let Some(Place { addresses, segment }) = Place::find(frame) {
        let (head, rest) = frame.split_at_mut(segment.start);
        complete_segment(&head[addresses], &mut rest[..segment.len()]);
    }
}

/// Fills in the checksum of a segment of at least a header between these addresses.
#[inline(always)]
pub(crate) fn complete_segment(addresses: &[u8], segment: &mut [u8]) {
    segment[PLACE].fill(0);
    let sum = folded(of_pseudo_header(addresses, TCP, segment.len()) + sum(segment));
    segment[PLACE].copy_from_slice(&(!sum).to_ne_bytes());
}

/// Whether the checksum of a segment between these addresses is right.
#[inline(always)]
pub(crate) fn is_right(addresses: &[u8], segment: &[u8]) -> bool {
    folded(of_pseudo_header(addresses, TCP, segment.len()) + sum(segment)) == u16::MAX
}

/// Fills in the checksum of a message of ICMPv6 between these addresses, if it is long enough to have one.
pub(crate) fn complete_message(from: &Ipv6Addr, to: &Ipv6Addr, message: &mut [u8]) {
    let Some(place) = message.get_mut(PLACE_IN_A_MESSAGE) else { return };
    place.fill(0);
    let addresses = few(&from.octets()) + few(&to.octets());
    let sum = folded(addresses + of_pseudo_header(&[], PROTOCOL_ICMP_OF_SIX, message.len()) + sum(message));
    message[PLACE_IN_A_MESSAGE].copy_from_slice(&(!sum).to_ne_bytes());
}

/// Changes the kind of a message of ICMP, and its checksum, if there is one, without a look at all other bytes
/// (RFC 1624).
pub(crate) fn change_kind(message: &mut [u8], kind: u8) {
    let Some(first) = message.first_mut() else { return };
    let old = core::mem::replace(first, kind);
    let Some(place) = message.get_mut(PLACE_IN_A_MESSAGE) else { return };
    let half = |bytes: [u8; 2]| u64::from(u16::from_be_bytes(bytes));
    let sum = folded(half([place[0], place[1]]) + half([old, 0]) + half([!kind, 0xff]));
    place.copy_from_slice(&sum.to_be_bytes());
}

/// Returns the sum of the header that only the checksum knows.
#[inline(always)]
fn of_pseudo_header(addresses: &[u8], protocol: u8, length: usize) -> u64 {
    let number = |value: u16| u64::from(u16::from_ne_bytes(value.to_be_bytes()));
    few(addresses) + number(protocol.into()) + number(length as u16)
}

/// Whether the checksum of a header of IPv4 is right.
#[inline(always)]
pub(crate) fn is_header_right(header: &[u8]) -> bool {
    folded(few(header)) == u16::MAX
}

/// Returns the checksum of a header of IPv4 with zero in its place.
#[inline(always)]
pub(crate) fn of_header(header: &[u8; 20]) -> [u8; 2] {
    (!folded(few(header))).to_ne_bytes()
}

/// Returns a sum of the 16-bit words of some bytes, all in the machine's order, that is less than a number of 37 bits.
/// The last byte of an odd number is the first of a word whose other one is zero.
#[inline(always)]
fn sum(bytes: &[u8]) -> u64 {
    match bytes.split_first_chunk::<SHORTEST>() {
        // The header's words are added without a loop.
        Some((header, rest)) if rest.len() < SHORT => few(header) + few(rest),
        _ => sum_of_many(bytes),
    }
}

#[inline(never)]
fn sum_of_many(bytes: &[u8]) -> u64 {
    let to_word = bytes.as_ptr().addr().wrapping_neg() % WORD;
    let (head, rest) = bytes.split_at(to_word.min(bytes.len()));
    // Frames begin at even addresses, and segments at even places in them. Elsewhere the sum only takes longer.
    let (words, tail) = match <[u64]>::ref_from_prefix(rest) {
        Ok(split) if to_word.is_multiple_of(2) => split,
        _ => return pairs(bytes),
    };
    let mut total = 0;
    let (eights, others) = words.as_chunks::<8>();
    for eight in eights {
        total = eight.iter().fold(total, |total, &word| add(total, word));
    }
    total = others.iter().fold(total, |total, &word| add(total, word));
    (total & 0xffff_ffff) + (total >> 32) + few(head) + few(tail)
}

/// Adds the 16-bit words of a few bytes, two at a time where they lie so: packets mostly begin at whole words.
#[inline(always)]
fn few(bytes: &[u8]) -> u64 {
    match <[u32]>::ref_from_prefix(bytes) {
        Ok((words, last)) => words.iter().fold(pairs(last), |total, &word| total + u64::from(word)),
        Err(_) => halves(bytes),
    }
}

/// Adds the 16-bit words of some bytes, which mostly lie at an even address.
fn halves(bytes: &[u8]) -> u64 {
    match <[u16]>::ref_from_prefix(bytes) {
        Ok((halves, last)) => halves.iter().fold(pairs(last), |total, &half| total + u64::from(half)),
        Err(_) => pairs(bytes),
    }
}

/// Adds the 16-bit words of some bytes one by one.
#[inline(always)]
fn pairs(bytes: &[u8]) -> u64 {
    let (pairs, last) = bytes.as_chunks::<2>();
    let last = last.first().map_or(0, |byte| u16::from_ne_bytes([*byte, 0]));
    pairs.iter().fold(u64::from(last), |total, pair| total + u64::from(u16::from_ne_bytes(*pair)))
}

/// Adds with the carry at the other end.
fn add(total: u64, word: u64) -> u64 {
    let (sum, carries) = total.overflowing_add(word);
    sum + u64::from(carries)
}

/// Adds the four parts of a sum, with their carries.
fn folded(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;
    use smoltcp::wire::{IpAddress, TcpPacket};

    use super::*;

    /// Adds pairs of bytes.
    fn naive(bytes: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in bytes.chunks(2) {
            total += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            total = (total & 0xffff) + (total >> 16);
        }
        u16::from_ne_bytes((total as u16).to_be_bytes())
    }

    /// A frame with a segment of these bytes and an empty checksum, and its addresses.
    fn frame(is_six: bool, segment: &[u8], padding: usize) -> (Vec<u8>, IpAddress, IpAddress) {
        let mut frame = vec![7; ETHERNET_HEADER];
        let length = segment.len() as u16;
        let (from, to) = if is_six {
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([TCP, 64]);
            frame.extend([0xfe; 16]);
            frame.extend([0x2f; 16]);
            (
                IpAddress::v6(0xfefe, 0xfefe, 0xfefe, 0xfefe, 0xfefe, 0xfefe, 0xfefe, 0xfefe),
                IpAddress::v6(0x2f2f, 0x2f2f, 0x2f2f, 0x2f2f, 0x2f2f, 0x2f2f, 0x2f2f, 0x2f2f),
            )
        } else {
            frame.extend([0x45, 0]);
            frame.extend((length + 20).to_be_bytes());
            frame.extend([0, 0, 0, 0, 64, TCP, 0, 0, 10, 0, 2, 2, 10, 0, 2, 15]);
            (IpAddress::v4(10, 0, 2, 2), IpAddress::v4(10, 0, 2, 15))
        };
        frame.extend(segment);
        frame.extend(vec![9; padding]);
        (frame, from, to)
    }

    /// Whether a frame has a segment whose checksum is right.
    fn has_right_segment(frame: &[u8]) -> bool {
        let place = Place::find(frame);
        place.is_some_and(|place| is_right(&frame[place.addresses], &frame[place.segment]))
    }

    #[test]
    fn all_ones_are_nothing() {
        for length in [2, 8, 14, 64, 1460] {
            assert_eq!(folded(sum(&vec![0xff; length])), 0xffff);
            assert_eq!(sum(&vec![0; length]), 0);
        }
        assert_eq!(sum(&[]), 0);
        assert_eq!([0, 0xffff, 0x1_ffff, u64::MAX].map(folded), [0, 0xffff, 1, 0xffff]);
    }

    #[test]
    fn frames_without_a_whole_segment_are_left_alone() {
        let (whole, ..) = frame(false, &[1; 30], 0);
        for (place, value) in [(14, 0x55), (14, 0x41), (16, 0xff), (17, 30), (23, 17)] {
            let mut other = whole.clone();
            other[place] = value;
            let before = other.clone();
            complete(&mut other);
            assert!(other == before && !has_right_segment(&other), "{place}");
        }
        for length in 0..whole.len() {
            let mut short = whole[..length].to_vec();
            complete(&mut short);
            assert!(short == whole[..length] && !has_right_segment(&short), "{length}");
        }
    }

    proptest! {
        #![proptest_config(property::cases(512))]

        /// At all places in memory, and for all lengths.
        #[test]
        fn the_sum_is_that_of_pairs(bytes in prop::collection::vec(any::<u8>(), 0..400), from in 0usize..16) {
            let bytes = bytes.get(from..).unwrap_or(&[]);
            prop_assert!(sum(bytes) < 1 << 37);
            prop_assert_eq!(folded(sum(bytes)), naive(bytes));
        }

        /// smoltcp agrees, and one changed bit is found.
        #[test]
        fn a_completed_segment_is_right(
            mut segment in prop::collection::vec(any::<u8>(), 20..1460),
            is_six: bool,
            padding in 0usize..9,
            bit in any::<prop::sample::Index>(),
        ) {
            segment[12] = 0x50;
            let (mut frame, from, to) = frame(is_six, &segment, padding);
            complete(&mut frame);
            prop_assert!(has_right_segment(&frame));
            let start = frame.len() - padding - segment.len();
            let completed = TcpPacket::new_checked(&frame[start..frame.len() - padding]).unwrap();
            prop_assert!(completed.verify_checksum(&from, &to));
            let again = frame.clone();
            complete(&mut frame);
            prop_assert_eq!(&frame, &again);
            let bit = bit.index(8 * segment.len());
            frame[start + bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!has_right_segment(&frame));
        }

        #[test]
        fn any_frame_will_do(mut frame in prop::collection::vec(any::<u8>(), 0..200)) {
            let length = frame.len();
            complete(&mut frame);
            has_right_segment(&frame);
            prop_assert_eq!(frame.len(), length);
        }
    }
}
