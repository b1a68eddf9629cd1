//! The checksums of ext4: CRC32C of all metadata (`metadata_csum`) and of the journal, and CRC16 of descriptors of
//! groups in older volumes (`uninit_bg`).
//!
//! CRC32C is taken eight bytes at a time, with a table for each of them ("slicing by 8"; M. Kounavis and F. Berry,
//! "Novel table lookup-based algorithms for high-performance CRC generation", 2008). Neither begins nor ends with an
//! inversion by itself: the formats chain checksums, and begin with [`START`].

use alloc::vec::Vec;
use core::ops::Range;

/// The checksum of nothing.
pub(crate) const START: u32 = !0;

const TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    // The polynomial of Castagnoli, its bits in reverse order.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut rest, mut bit) = (byte as u32, 0);
        while bit < 8 {
            rest = if rest & 1 == 1 { rest >> 1 ^ POLYNOMIAL } else { rest >> 1 };
            bit += 1;
        }
        tables[0][byte] = rest;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// Returns the checksum of what had this one, and these bytes behind it.
pub(crate) fn crc32c(before: u32, bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let mut checksum = before;
    for eight in eights {
        let mixed = u64::from_le_bytes(*eight) ^ u64::from(checksum);
        let part = |place: usize| TABLES[7 - place][(mixed >> (8 * place)) as usize & 0xff];
        checksum = part(0) ^ part(1) ^ part(2) ^ part(3) ^ part(4) ^ part(5) ^ part(6) ^ part(7);
    }
    for byte in rest {
        checksum = checksum >> 8 ^ TABLES[0][(checksum as u8 ^ byte) as usize];
    }
    checksum
}

/// Bytes of a piece of a block whose checksum is remembered.
const PIECE: usize = 128;

/// For each byte of a checksum the part that it has in the one behind a piece of zeros.
const BEHIND_A_PIECE: [[u32; 256]; 4] = behind_a_piece();

const fn behind_a_piece() -> [[u32; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut place = 0;
    while place < 4 {
        let mut bit = 0;
        while bit < 8 {
            let (mut checksum, mut count) = (1 << (8 * place + bit), 0);
            while count < PIECE {
                checksum = checksum >> 8 ^ TABLES[0][(checksum & 0xff) as usize];
                count += 1;
            }
            // All bytes with this bit; the operation is linear.
            let mut byte = 0;
            while byte < 256 {
                if byte >> bit & 1 == 1 {
                    tables[place][byte] ^= checksum;
                }
                byte += 1;
            }
            bit += 1;
        }
        place += 1;
    }
    tables
}

/// Returns the checksum of what had this one, and a piece of zeros behind it.
fn behind_zeros(checksum: u32) -> u32 {
    let [a, b, c, d] = checksum.to_le_bytes().map(usize::from);
    BEHIND_A_PIECE[0][a] ^ BEHIND_A_PIECE[1][b] ^ BEHIND_A_PIECE[2][c] ^ BEHIND_A_PIECE[3][d]
}

/// Returns the checksum of what had this one, and these bytes behind it, of which all from `end` on are zeros.
pub(crate) fn crc32c_of_beginning(before: u32, bytes: &[u8], end: usize) -> u32 {
    // As many pieces as there are from the end of the whole block.
    let zeros = (bytes.len() - end) / PIECE;
    let checksum = crc32c(before, &bytes[..bytes.len() - zeros * PIECE]);
    (0..zeros).fold(checksum, |checksum, _| behind_zeros(checksum))
}

/// The checksums of a block's pieces, each by itself. A block has two checksums at each commit, its own and the
/// journal's, and most often few of its bytes have changed since the last one. Checksums are linear: that of the whole
/// is put together from those of its pieces, of which only those that have changed are taken again.
#[derive(Default)]
pub(crate) struct PieceSums {
    /// None, as long as they were not taken.
    sums: Vec<u32>,
    /// Pieces that were changed since, by their bits.
    changed: u32,
}

impl PieceSums {
    /// Notes that these bytes are changed.
    pub(crate) fn change(&mut self, part: &Range<usize>) {
        if !part.is_empty() {
            let (first, last) = (part.start / PIECE, (part.end - 1) / PIECE);
            self.changed |= u32::MAX << first & u32::MAX >> (31 - last.min(31));
        }
    }

    /// Takes the checksums of pieces that have changed. Without memory there are none.
    pub(crate) fn renew(&mut self, bytes: &[u8]) {
        let count = bytes.len() / PIECE;
        if self.sums.len() != count {
            self.sums.clear();
            if self.sums.try_reserve_exact(count).is_err() {
                return;
            }
            self.sums.resize(count, 0);
            self.changed = u32::MAX;
        }
        for (number, (sum, piece)) in self.sums.iter_mut().zip(bytes.as_chunks::<PIECE>().0).enumerate() {
            if self.changed >> number & 1 == 1 {
                *sum = crc32c(0, piece);
            }
        }
        self.changed = 0;
    }

    /// Returns the checksum of what had this one, and these bytes of the block behind it, from the start of a piece on.
    pub(crate) fn sum(&self, before: u32, bytes: &[u8], part: Range<usize>) -> u32 {
        let pieces = part.start / PIECE..part.end / PIECE;
        let Some(sums) = self.sums.get(pieces.clone()).filter(|_| part.start.is_multiple_of(PIECE)) else {
            return crc32c(before, &bytes[part]);
        };
        let mut checksum = before;
        for (number, sum) in pieces.clone().zip(sums) {
            checksum = match self.changed >> number & 1 {
                0 => behind_zeros(checksum) ^ sum,
                _ => crc32c(checksum, &bytes[number * PIECE..(number + 1) * PIECE]),
            };
        }
        crc32c(checksum, &bytes[pieces.end * PIECE..part.end])
    }
}

/// Returns the CRC16 (of ANSI, its bits in reverse order) of what had this one, and these bytes behind it.
pub(crate) fn crc16(before: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(before, |checksum, byte| {
        (0..8).fold(checksum ^ u16::from(*byte), |rest, _| if rest & 1 == 1 { rest >> 1 ^ 0xa001 } else { rest >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_their_definitions() {
        // The check values of the catalogue of parametrised CRC algorithms.
        assert_eq!(!crc32c(START, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
    }

    /// Checksums that are put together are those of the whole, whatever was changed and noted.
    #[test]
    fn remembered_pieces_have_the_checksum_of_the_whole() {
        property::fuzz("piece-sums", &[&[], &[1, 2, 3, 4, 5, 6, 7, 8], &[0, 0, 200, 9, 9]], |input| {
            let mut numbers = property::Numbers::new(input);
            let mut bytes: Vec<u8> = (0..[1024, 4096][usize::from(numbers.byte() % 2)]).map(|at| at as u8).collect();
            let mut sums = PieceSums::default();
            while !numbers.is_empty() {
                let start = numbers.number() as usize % bytes.len();
                let end = (start + 1 + numbers.number() as usize % 300).min(bytes.len());
                sums.change(&(start..end));
                bytes[start..end].fill(numbers.byte());
                if !numbers.byte().is_multiple_of(3) {
                    sums.renew(&bytes);
                }
                let from = numbers.byte() as usize * PIECE % bytes.len();
                let to = from + numbers.number() as usize % (bytes.len() - from);
                assert_eq!(sums.sum(7, &bytes, from..to), crc32c(7, &bytes[from..to]));
                assert_eq!(sums.sum(START, &bytes, 0..bytes.len()), crc32c(START, &bytes));
            }
        });
    }

    #[test]
    fn zeros_at_the_end_have_the_checksum_of_the_whole() {
        for end in [0, 1, 60, 127, 128, 129, 500, 896, 1000, 1024] {
            let mut bytes = [7; 1024];
            bytes[end..].fill(0);
            assert_eq!(crc32c_of_beginning(5, &bytes, end), crc32c(5, &bytes), "{end}");
        }
    }

    #[test]
    fn pieces_have_the_checksum_of_the_whole() {
        let bytes: alloc::vec::Vec<u8> = (0..200u8).collect();
        for cut in 0..bytes.len() {
            let pieces = crc32c(crc32c(START, &bytes[..cut]), &bytes[cut..]);
            assert_eq!(pieces, crc32c(START, &bytes));
        }
    }
}
