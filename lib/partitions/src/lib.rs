//! The tables of a disk's partitions: the four of a master boot record, and those of the UEFI specification (GPT).
//!
//! [`find`] reads a few sectors and tells of the partitions that lie on the disk. A disk's table is an allegation: one
//! of GPT counts with its checksums alone, and a partition only if it is inside of the disk.
//!
//! Partitions inside of an extended one are not looked for, and neither is the second table of GPT at the end of a disk
//! whose first one is damaged.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;
use core::fmt;

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// Number of partitions of a disk that are told (Linux: as many minor numbers as a virtio disk has).
pub const MOST: usize = 15;

/// Bytes of the largest table of GPT that is read. Most have 128 entries of 128 bytes.
const LARGEST_TABLE: usize = 64 * SECTOR;

/// Offsets in a master boot record: of its four entries and of its signature.
const ENTRIES_AT: usize = 446;
const SIGNATURE_AT: usize = 510;
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// Bytes of an entry, and offsets in it: whether it is booted, its type, its first sector and their number.
const ENTRY: usize = 16;
const TYPE_AT: usize = 4;
const FIRST_AT: usize = 8;
const COUNT_AT: usize = 12;
/// Types: the one that says that there is a GPT, and those of extended partitions.
const PROTECTIVE: u8 = 0xee;
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// Offsets in a header of GPT, and in its entries.
const GPT_SIGNATURE: &[u8] = b"EFI PART";
const HEADER_SIZE_AT: usize = 12;
const HEADER_CHECKSUM_AT: usize = 16;
const OWN_PLACE_AT: usize = 24;
const TABLE_AT: usize = 72;
const TABLE_COUNT_AT: usize = 80;
const TABLE_ENTRY_AT: usize = 84;
const TABLE_CHECKSUM_AT: usize = 88;
const LEAST_HEADER: usize = 92;
const LEAST_ENTRY: usize = 128;
const KIND: usize = 16;
const GPT_FIRST_AT: usize = 32;
const GPT_LAST_AT: usize = 40;

/// A part of a disk, in sectors of [`SECTOR`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number in the table, from 1 on.
    pub number: u32,
    /// Its first sector.
    pub first: u64,
    /// Number of its sectors, of which there are some.
    pub count: u64,
}

/// Reason why the partitions of a disk that has some are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A sector could not be read.
    Unreadable,
    /// The table of GPT contradicts itself.
    Damaged,
    /// There is no memory.
    OutOfMemory,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Problem::Unreadable => "the table of partitions cannot be read",
            Problem::Damaged => "the table of partitions (GPT) is damaged; `sgdisk --verify` tells more",
            Problem::OutOfMemory => "there is no memory for the table of partitions",
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

fn double(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// Returns the CRC32 of some bytes (that of Ethernet), of which those of a hole count as zeros.
fn crc32(bytes: &[u8], hole: core::ops::Range<usize>) -> u32 {
    !bytes.iter().enumerate().fold(!0, |checksum: u32, (at, byte)| {
        let byte = if hole.contains(&at) { 0 } else { *byte };
        let step = |rest: u32, _| if rest & 1 == 1 { rest >> 1 ^ 0xedb8_8320 } else { rest >> 1 };
        (0..8).fold(checksum ^ u32::from(byte), step)
    })
}

/// Finds the partitions of a disk of so many sectors, in the order of their numbers; none if it has no table. `read`
/// fills bytes from a sector on, which are on the disk, and returns whether it could.
///
/// # Errors
/// A [`Problem`].
pub fn find(sectors: u64, mut read: impl FnMut(u64, &mut [u8]) -> bool) -> Result<Vec<Partition>, Problem> {
    let mut first = [0; SECTOR];
    if sectors < 2 {
        return Ok(Vec::new());
    }
    if !read(0, &mut first) {
        return Err(Problem::Unreadable);
    }
    let entries: [&[u8]; 4] = core::array::from_fn(|number| &first[ENTRIES_AT + number * ENTRY..][..ENTRY]);
    // A sector of something else may have the signature, too.
    if first[SIGNATURE_AT..] != SIGNATURE || entries.iter().any(|entry| entry[0] & 0x7f != 0) {
        return Ok(Vec::new());
    }
    if entries.iter().any(|entry| entry[TYPE_AT] == PROTECTIVE) {
        return find_in_gpt(sectors, read);
    }
    let mut found = Vec::new();
    found.try_reserve_exact(entries.len()).map_err(|_| Problem::OutOfMemory)?;
    for (number, entry) in (1..).zip(entries) {
        let (first, count) = (u64::from(word(entry, FIRST_AT)), u64::from(word(entry, COUNT_AT)));
        let is_one = entry[TYPE_AT] != 0 && !EXTENDED.contains(&entry[TYPE_AT]);
        if is_one && first > 0 && count > 0 && first + count <= sectors {
            found.push(Partition { number, first, count });
        }
    }
    Ok(found)
}

fn find_in_gpt(sectors: u64, mut read: impl FnMut(u64, &mut [u8]) -> bool) -> Result<Vec<Partition>, Problem> {
    let mut header = [0; SECTOR];
    if !read(1, &mut header) {
        return Err(Problem::Unreadable);
    }
    let size = word(&header, HEADER_SIZE_AT) as usize;
    let is_header = header.starts_with(GPT_SIGNATURE)
        && (LEAST_HEADER..=SECTOR).contains(&size)
        && double(&header, OWN_PLACE_AT) == 1
        && crc32(&header[..size], HEADER_CHECKSUM_AT..HEADER_CHECKSUM_AT + 4) == word(&header, HEADER_CHECKSUM_AT);
    let (at, count) = (double(&header, TABLE_AT), word(&header, TABLE_COUNT_AT) as usize);
    let entry = word(&header, TABLE_ENTRY_AT) as usize;
    let bytes = count.checked_mul(entry).filter(|bytes| *bytes <= LARGEST_TABLE && entry >= LEAST_ENTRY);
    let (true, Some(bytes)) = (is_header, bytes) else { return Err(Problem::Damaged) };
    let end = at.checked_add(bytes.div_ceil(SECTOR) as u64);
    if at < 2 || end.is_none_or(|end| end > sectors) {
        return Err(Problem::Damaged);
    }
    let mut table = Vec::new();
    let mut found = Vec::new();
    table.try_reserve_exact(bytes.next_multiple_of(SECTOR)).map_err(|_| Problem::OutOfMemory)?;
    found.try_reserve_exact(MOST).map_err(|_| Problem::OutOfMemory)?;
    table.resize(bytes.next_multiple_of(SECTOR), 0);
    if !read(at, &mut table) {
        return Err(Problem::Unreadable);
    }
    if crc32(&table[..bytes], 0..0) != word(&header, TABLE_CHECKSUM_AT) {
        return Err(Problem::Damaged);
    }
    for (number, entry) in (1..).zip(table[..bytes].chunks_exact(entry)).take(MOST) {
        let (first, last) = (double(entry, GPT_FIRST_AT), double(entry, GPT_LAST_AT));
        if entry[..KIND] != [0; KIND] && first > 0 && first <= last && last < sectors {
            found.push(Partition { number, first, count: last - first + 1 });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const SECTORS: u64 = 4096;

    fn set(bytes: &mut [u8], at: usize, value: u64, length: usize) {
        bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
    }

    /// Returns a master boot record with these entries: type, first sector and number of them.
    fn record(entries: &[(u8, u32, u32)]) -> Vec<u8> {
        let mut disk = vec![0; 64 * SECTOR];
        for (number, (kind, first, count)) in entries.iter().enumerate() {
            let at = ENTRIES_AT + number * ENTRY;
            disk[at + TYPE_AT] = *kind;
            set(&mut disk, at + FIRST_AT, u64::from(*first), 4);
            set(&mut disk, at + COUNT_AT, u64::from(*count), 4);
        }
        disk[SIGNATURE_AT..SECTOR].copy_from_slice(&SIGNATURE);
        disk
    }

    /// Gives a disk with a GPT its checksums.
    fn seal(disk: &mut [u8]) {
        let size = (word(disk, SECTOR + HEADER_SIZE_AT) as usize).min(SECTOR);
        let bytes = word(disk, SECTOR + TABLE_COUNT_AT).saturating_mul(word(disk, SECTOR + TABLE_ENTRY_AT)) as usize;
        let table = &disk[2 * SECTOR..][..bytes.min(62 * SECTOR)];
        let checksum = crc32(table, 0..0);
        set(disk, SECTOR + TABLE_CHECKSUM_AT, checksum.into(), 4);
        let checksum = crc32(&disk[SECTOR..SECTOR + size], HEADER_CHECKSUM_AT..HEADER_CHECKSUM_AT + 4);
        set(disk, SECTOR + HEADER_CHECKSUM_AT, checksum.into(), 4);
    }

    /// Returns a disk with a GPT with these entries: number, first and last sector.
    fn gpt(entries: &[(usize, u64, u64)]) -> Vec<u8> {
        let mut disk = record(&[(PROTECTIVE, 1, u32::MAX)]);
        disk[SECTOR..SECTOR + 8].copy_from_slice(GPT_SIGNATURE);
        for (at, value, length) in [
            (HEADER_SIZE_AT, 92, 4),
            (OWN_PLACE_AT, 1, 8),
            (TABLE_AT, 2, 8),
            (TABLE_COUNT_AT, 128, 4),
            (TABLE_ENTRY_AT, 128, 4),
        ] {
            set(&mut disk, SECTOR + at, value, length);
        }
        for (number, first, last) in entries {
            let at = 2 * SECTOR + (number - 1) * 128;
            disk[at] = 1;
            set(&mut disk, at + GPT_FIRST_AT, *first, 8);
            set(&mut disk, at + GPT_LAST_AT, *last, 8);
        }
        seal(&mut disk);
        disk
    }

    fn found(disk: &[u8]) -> Result<Vec<Partition>, Problem> {
        find(SECTORS, |sector, bytes| {
            assert!(sector < SECTORS && sector + (bytes.len() / SECTOR) as u64 <= SECTORS, "beyond the disk");
            let start = sector as usize * SECTOR;
            match disk.get(start..start + bytes.len()) {
                Some(part) => bytes.copy_from_slice(part),
                None => bytes.fill(0),
            }
            true
        })
    }

    fn partition(number: u32, first: u64, count: u64) -> Partition {
        Partition { number, first, count }
    }

    #[test]
    fn checksums_are_those_of_ethernet() {
        // The check value of the catalogue of parametrised CRC algorithms.
        assert_eq!(crc32(b"123456789", 0..0), 0xcbf4_3926);
        assert_eq!(crc32(b"12x456789", 2..3), crc32(b"12\x00456789", 0..0));
    }

    #[test]
    fn a_master_boot_record_has_four_partitions() {
        let disk = record(&[(0x83, 8, 16), (0, 5, 5), (0x05, 100, 100), (0x0c, 2048, 2048)]);
        assert_eq!(found(&disk), Ok(vec![partition(1, 8, 16), partition(4, 2048, 2048)]));
        // None of those that are empty, or not on the disk.
        let disk = record(&[(0x83, 0, 16), (0x83, 8, 0), (0x83, 4000, 97), (0x83, u32::MAX, u32::MAX)]);
        assert_eq!(found(&disk), Ok(vec![]));
        // No table, and the first sector of a volume of FAT.
        assert_eq!(found(&[0; SECTOR]), Ok(vec![]));
        let mut volume = record(&[]);
        volume[ENTRIES_AT] = 0x43;
        assert_eq!(found(&volume), Ok(vec![]));
        assert_eq!(find(SECTORS, |_, _| false), Err(Problem::Unreadable));
        assert_eq!(find(1, |_, _| unreachable!()), Ok(vec![]));
    }

    #[test]
    fn a_gpt_counts_with_its_checksums() {
        let mut disk = gpt(&[(1, 64, 127), (2, 127, 126), (3, 4000, 4096), (15, 2048, 4095), (16, 200, 300)]);
        assert_eq!(found(&disk), Ok(vec![partition(1, 64, 64), partition(15, 2048, 2048)]));
        for at in [SECTOR + 40, 2 * SECTOR + 60, 33 * SECTOR + 100] {
            disk[at] ^= 1;
            assert_eq!(found(&disk), Err(Problem::Damaged), "{at}");
            disk[at] ^= 1;
        }
        for (at, value, length) in
            [(TABLE_AT, 4090, 8), (TABLE_AT, u64::MAX, 8), (TABLE_COUNT_AT, 1 << 30, 4), (TABLE_ENTRY_AT, 64, 4)]
        {
            let mut disk = gpt(&[(1, 64, 127)]);
            set(&mut disk, SECTOR + at, value, length);
            seal(&mut disk);
            assert_eq!(found(&disk), Err(Problem::Damaged), "{at}");
        }
    }

    /// Whatever a disk says, partitions are on it.
    #[test]
    fn damaged_tables_have_no_partitions_beyond_the_disk() {
        let seeds: [&[u8]; 3] = [&[], &[1, 0, 80, 2, 255], &[0, 1, 190, 9, 1]];
        property::fuzz("partitions", &seeds, |input| {
            let mut numbers = property::Numbers::new(input);
            let mut disk = if numbers.byte().is_multiple_of(2) {
                record(&[(0x83, 8, 16), (0x83, 100, 200)])
            } else {
                gpt(&[(1, 64, 127), (2, 128, 4095)])
            };
            while !numbers.is_empty() {
                let at = numbers.number() as usize % (4 * SECTOR);
                disk[at] = numbers.byte();
            }
            if disk.get(SECTOR..SECTOR + 8) == Some(GPT_SIGNATURE) {
                seal(&mut disk);
            }
            for partition in found(&disk).unwrap_or_default() {
                assert!(partition.first > 0 && partition.count > 0);
                assert!(partition.first.checked_add(partition.count).is_some_and(|end| end <= SECTORS));
            }
        });
    }
}
