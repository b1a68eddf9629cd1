//! The checksums of ext4: CRC32C of all metadata (`metadata_csum`) and of the journal, and CRC16 of descriptors of
//! groups in older volumes (`uninit_bg`).
//!
//! CRC32C is taken eight bytes at a time, with a table for each of them ("slicing by 8"; M. Kounavis and F. Berry,
//! "Novel table lookup-based algorithms for high-performance CRC generation", 2008). Neither begins nor ends with an
//! inversion by itself: the formats chain checksums, and begin with [`START`].

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

    #[test]
    fn pieces_have_the_checksum_of_the_whole() {
        let bytes: alloc::vec::Vec<u8> = (0..200u8).collect();
        for cut in 0..bytes.len() {
            let pieces = crc32c(crc32c(START, &bytes[..cut]), &bytes[cut..]);
            assert_eq!(pieces, crc32c(START, &bytes));
        }
    }
}
