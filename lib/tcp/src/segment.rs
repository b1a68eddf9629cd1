//! Segments: those that have come, and those that leave.

use crate::ranges::LIMIT;

/// Bits of the flags.
pub mod flags {
    /// The stream ends behind the data.
    pub const FIN: u8 = 0x01;
    /// The stream begins behind this number.
    pub const SYN: u8 = 0x02;
    /// The connection is over.
    pub const RST: u8 = 0x04;
    /// Data that the receiver should not wait to hand on.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
}

/// Length of a header without options.
pub const HEADER: usize = 20;
/// Kinds of options.
const END: u8 = 0;
const NOTHING: u8 = 1;
const SEGMENT_SIZE: u8 = 2;
const SCALE: u8 = 3;
const SELECTIVE: u8 = 4;
const RANGES: u8 = 5;
const STAMPS: u8 = 8;
/// Length of the option of timestamps, alone and with what aligns it.
const STAMPS_ALONE: u8 = 10;
pub(crate) const STAMPS_LENGTH: u32 = 12;
/// Largest shift of a window (RFC 7323, section 2.3).
const LARGEST_SHIFT: u8 = 14;
/// Most ranges in an option, with nothing else.
const RANGES_OF_A_SEGMENT: usize = 4;

/// Options of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest segment that the sender takes.
    pub segment_size: Option<u16>,
    /// Shift of the sender's windows.
    pub scale: Option<u8>,
    /// Whether the sender understands selective acknowledgements.
    pub selective: bool,
    /// Timestamps: the time of the sender's clock, and the one of this side that it tells back (RFC 7323, section 3).
    pub stamps: Option<(u32, u32)>,
    /// Ranges that have come to the sender ahead of others: each with its first number and the one behind its last.
    ranges: [(u32, u32); RANGES_OF_A_SEGMENT],
    count: u8,
}

impl Options {
    /// Reads options; what is not understood, or damaged, is passed over.
    fn read(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => break,
                NOTHING => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let Some(&length) = rest.first() else { break };
            let Some(value) = bytes.get(2..usize::from(length)) else { break };
            match (*kind, value) {
                (SEGMENT_SIZE, &[high, low]) => options.segment_size = Some(u16::from_be_bytes([high, low])),
                (SCALE, &[shift]) => options.scale = Some(shift.min(LARGEST_SHIFT)),
                (SELECTIVE, []) => options.selective = true,
                (STAMPS, &[a, b, c, d, e, f, g, h]) => {
                    options.stamps = Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])));
                }
                (RANGES, value) => {
                    for pair in value.as_chunks::<8>().0.iter().take(RANGES_OF_A_SEGMENT) {
                        let [a, b, c, d, e, f, g, h] = *pair;
                        let range = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
                        options.ranges[usize::from(options.count) % RANGES_OF_A_SEGMENT] = range;
                        options.count = (options.count + 1).min(RANGES_OF_A_SEGMENT as u8);
                    }
                }
                _ => {}
            }
            bytes = bytes.get(usize::from(length)..).unwrap_or(&[]);
        }
        options
    }

    /// Returns the options of a SYN.
    pub(crate) fn of_request(segment_size: u16, shift: u8, stamps: Option<(u32, u32)>) -> Options {
        let (segment_size, scale) = (Some(segment_size), Some(shift));
        Options { segment_size, scale, selective: true, stamps, ..Options::default() }
    }

    /// Returns the ranges that have come ahead of others.
    pub fn ranges(&self) -> &[(u32, u32)] {
        self.ranges.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Has the segment tell these ranges, as far as they fit.
    pub(crate) fn tell(&mut self, ranges: impl Iterator<Item = (u32, u32)>) {
        for (place, range) in self.ranges.iter_mut().zip(ranges.take(RANGES_OF_A_SEGMENT.min(LIMIT))) {
            *place = range;
            self.count += 1;
        }
    }

    /// Returns the length in a header, a multiple of four.
    #[cfg(test)]
    fn length(&self) -> usize {
        let mut length = 0;
        length += if self.segment_size.is_some() { 4 } else { 0 };
        length += if self.scale.is_some() { 4 } else { 0 };
        length += if self.selective && self.stamps.is_none() { 4 } else { 0 };
        length += if self.stamps.is_some() { 12 } else { 0 };
        length += if self.count > 0 { 4 + 8 * usize::from(self.count) } else { 0 };
        length
    }

    /// Writes the options; `room` has exactly their length.
    pub(crate) fn write(&self, room: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(place) = room.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
            at += bytes.len();
        };
        if let Some(size) = self.segment_size {
            let [high, low] = size.to_be_bytes();
            put(&[SEGMENT_SIZE, 4, high, low]);
        }
        if let Some(shift) = self.scale {
            put(&[NOTHING, SCALE, 3, shift]);
        }
        match (self.selective, self.stamps) {
            (true, None) => put(&[NOTHING, NOTHING, SELECTIVE, 2]),
            // Together they need nothing that aligns them.
            (true, Some(_)) => put(&[SELECTIVE, 2, STAMPS, STAMPS_ALONE]),
            (false, Some(_)) => put(&[NOTHING, NOTHING, STAMPS, STAMPS_ALONE]),
            (false, None) => {}
        }
        if let Some((value, echo)) = self.stamps {
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        if self.count > 0 {
            put(&[NOTHING, NOTHING, RANGES, 2 + 8 * self.count]);
            for (first, end) in self.ranges() {
                put(&first.to_be_bytes());
                put(&end.to_be_bytes());
            }
        }
    }
}

/// Writes the option of timestamps alone; returns the room behind.
#[inline(always)]
pub(crate) fn write_stamps(room: &mut [u8], (value, echo): (u32, u32)) -> &mut [u8] {
    let Some((place, rest)) = room.split_first_chunk_mut::<{ STAMPS_LENGTH as usize }>() else { return &mut [] };
    let ([a, b, c, d], [e, f, g, h]) = (value.to_be_bytes(), echo.to_be_bytes());
    *place = [NOTHING, NOTHING, STAMPS, STAMPS_ALONE, a, b, c, d, e, f, g, h];
    rest
}

/// A segment that has come. Its checksum is the caller's concern.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'bytes> {
    /// Number of the first byte, or of the SYN.
    pub sequence: u32,
    /// Number that the sender awaits next.
    pub acknowledgement: u32,
    /// [Flags](flags).
    pub flags: u8,
    /// The sender's window, before it is shifted.
    pub window: u16,
    /// Bytes of the options.
    options: &'bytes [u8],
    /// The data.
    pub payload: &'bytes [u8],
}

impl<'bytes> Segment<'bytes> {
    /// Reads a segment; `None` if it is cut off.
    #[inline(always)]
    pub fn read(bytes: &'bytes [u8]) -> Option<Segment<'bytes>> {
        let header = bytes.first_chunk::<HEADER>()?;
        let [_, _, _, _, s0, s1, s2, s3, a0, a1, a2, a3, offset, flags, w0, w1, ..] = *header;
        let (options, payload) =
            bytes[HEADER..].split_at_checked((usize::from(offset >> 4) * 4).checked_sub(HEADER)?)?;
        Some(Segment {
            sequence: u32::from_be_bytes([s0, s1, s2, s3]),
            acknowledgement: u32::from_be_bytes([a0, a1, a2, a3]),
            flags,
            window: u16::from_be_bytes([w0, w1]),
            options,
            payload,
        })
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the options.
    pub fn options(&self) -> Options {
        Options::read(self.options)
    }

    /// Whether there are options.
    #[inline(always)]
    pub(crate) fn has_options(&self) -> bool {
        !self.options.is_empty()
    }

    /// Returns the timestamps, if there are any.
    #[inline(always)]
    pub(crate) fn stamps(&self) -> Option<(u32, u32)> {
        match *self.options {
            [NOTHING, NOTHING, STAMPS, STAMPS_ALONE, a, b, c, d, e, f, g, h] => {
                Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])))
            }
            _ => self.stamps_among_others(),
        }
    }

    #[cold]
    #[inline(never)]
    fn stamps_among_others(&self) -> Option<(u32, u32)> {
        self.options().stamps
    }

    /// Whether there are no more options than timestamps.
    #[inline(always)]
    pub(crate) fn has_few_options(&self) -> bool {
        self.options.len() <= STAMPS_LENGTH as usize
    }

    /// Returns the length in sequence numbers: that of the data, and one each for SYN and FIN.
    #[inline(always)]
    pub fn length(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.has(flags::SYN)) + u32::from(self.has(flags::FIN))
    }
}

/// A segment that leaves, without its data: a few words, which registers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Number of the first byte, or of the SYN.
    pub sequence: u32,
    /// Number that is awaited next.
    pub acknowledgement: u32,
    /// The window, already shifted.
    pub window: u16,
    /// [Flags](flags).
    pub flags: u8,
    /// Kind of the options.
    pub(crate) told: Told,
    /// Offset of the data in the ring of what is to be sent.
    pub start: u32,
    /// Length of the data.
    pub count: u32,
}

/// Options of a segment that leaves. Their values are the connection's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Nothing,
    /// So many ranges that have come ahead.
    Ranges(u8),
    /// Timestamps, and so many of those ranges.
    Stamps(u8),
    /// Abilities of the side that requests, or answers.
    Abilities,
    /// Abilities, with timestamps.
    StampedAbilities,
}

impl Departure {
    /// Returns the length of the header.
    #[inline(always)]
    pub fn header_length(&self) -> usize {
        HEADER
            + match self.told {
                Told::Nothing => 0,
                Told::Ranges(count) => 4 + 8 * usize::from(count),
                Told::Stamps(0) => 12,
                Told::Stamps(count) => 16 + 8 * usize::from(count),
                Told::Abilities => 12,
                Told::StampedAbilities => 20,
            }
    }

    /// Returns the length of the segment.
    #[inline(always)]
    pub fn length(&self) -> usize {
        self.header_length() + self.count as usize
    }

    /// Writes the header without options, with zero in the place of the checksum; `room` has at least the header's
    /// length. Returns the room behind.
    #[inline(always)]
    pub(crate) fn write_header<'room>(
        &self,
        local_port: u16,
        remote_port: u16,
        room: &'room mut [u8],
    ) -> Option<&'room mut [u8]> {
        let length = self.header_length();
        let (header, rest) = room.split_first_chunk_mut::<HEADER>()?;
        let [p0, p1] = local_port.to_be_bytes();
        let [p2, p3] = remote_port.to_be_bytes();
        let [s0, s1, s2, s3] = self.sequence.to_be_bytes();
        let [a0, a1, a2, a3] = self.acknowledgement.to_be_bytes();
        let [w0, w1] = self.window.to_be_bytes();
        let offset = (length / 4) as u8;
        *header = [p0, p1, p2, p3, s0, s1, s2, s3, a0, a1, a2, a3, offset << 4, self.flags, w0, w1, 0, 0, 0, 0];
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn what_is_written_is_read(
            numbers: (u32, u32, u16), flags: u8, size: Option<u16>, scale in prop::option::of(0u8..15), selective: bool,
            stamps: Option<(u32, u32)>, ranges in prop::collection::vec(any::<(u32, u32)>(), 0..2),
            data in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let mut options = Options { segment_size: size, scale, selective, stamps, ..Options::default() };
            options.tell(ranges.iter().copied());
            let departure = Departure {
                sequence: numbers.0, acknowledgement: numbers.1, flags, window: numbers.2, start: 0,
                count: data.len() as u32, told: Told::Nothing,
            };
            let mut bytes = vec![0xee; departure.length() + options.length()];
            let rest = departure.write_header(80, 9, &mut bytes).unwrap();
            let (room, place) = rest.split_at_mut(options.length());
            options.write(room);
            place.copy_from_slice(&data);
            bytes[12] += ((options.length() / 4) as u8) << 4;
            prop_assert_eq!(&bytes[..4], &[0, 80, 0, 9]);
            let segment = Segment::read(&bytes).unwrap();
            let read = (segment.sequence, segment.acknowledgement, segment.window, segment.flags);
            prop_assert_eq!(read, (numbers.0, numbers.1, numbers.2, flags));
            prop_assert_eq!(segment.options(), options);
            prop_assert_eq!(segment.payload, &data[..]);
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(prop_oneof![0u8..9, any::<u8>()], 0..80)) {
            if let Some(segment) = Segment::read(&bytes) {
                let options = segment.options();
                prop_assert!(options.ranges().len() <= RANGES_OF_A_SEGMENT);
                prop_assert!(options.scale.is_none_or(|shift| shift <= 14));
                prop_assert!(segment.payload.len() + HEADER <= bytes.len());
                let controls = [0, 1, 1, 2][usize::from(bytes[13] & 3)];
                prop_assert_eq!(segment.length() as usize, segment.payload.len() + controls);
            } else {
                let header = bytes.get(12).map_or(0, |byte| usize::from(byte >> 4) * 4);
                prop_assert!(bytes.len() < HEADER || header < HEADER || header > bytes.len());
            }
        }
    }

    #[test]
    fn damaged_options_are_passed_over() {
        for (bytes, size) in [
            (&[2, 4, 5, 0xb4][..], Some(1460)),
            (&[1, 1, 2, 4, 5, 0xb4], Some(1460)),
            (&[8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 5, 0xb4], Some(1460)),
            (&[0, 2, 4, 5, 0xb4], None),
            (&[2, 3, 5, 0xb4], None),
            (&[2, 0, 2, 4, 5, 0xb4], None),
            (&[2, 1, 2, 4, 5, 0xb4], None),
            (&[2], None),
            (&[9, 40, 2, 4, 5, 0xb4], None),
        ] {
            assert_eq!(Options::read(bytes).segment_size, size, "{bytes:?}");
        }
        let stamps = |bytes: &[u8]| Options::read(bytes).stamps;
        let whole = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!([stamps(&whole), stamps(&whole[2..])], [Some((1, 2)); 2]);
        assert_eq!([stamps(&whole[..11]), stamps(&[8, 2]), stamps(&[8, 6, 0, 0, 0, 1])], [None; 3]);
        let shift = |value| Options::read(&[3, 3, value]).scale;
        assert_eq!([shift(7), shift(14), shift(15), shift(255)], [Some(7), Some(14), Some(14), Some(14)]);
        let mut all: Vec<u8> = vec![5, 34];
        all.extend([1; 32]);
        assert_eq!(Options::read(&all).ranges(), [(0x0101_0101, 0x0101_0101); 4]);
    }
}
