//! Reading of a journal: what Linux or an earlier mount has written there and not brought to its places.
//!
//! Three passes, as for all journals of jbd2: the first finds the last transaction that has its commit block, the
//! second the blocks that were revoked and the last transactions that revoke them, and the third tells of all other
//! blocks in their order. All checksums of the second and third version are compared.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::Error;
use crate::checksum::{START, crc32c};
use crate::device::{Device, DeviceFailed};
use crate::log::{self, Journal, set, word};

/// Features of a journal: blocks may be revoked, numbers of 64 bits, the two versions of checksums, and commit blocks
/// that are written with the rest.
const REVOKES: u32 = 0x1;
const WIDE: u32 = 0x2;
const EARLY_COMMITS: u32 = 0x4;
const SECOND_CHECKSUMS: u32 = 0x8;
const THIRD_CHECKSUMS: u32 = 0x10;
const KNOWN: u32 = REVOKES | WIDE | EARLY_COMMITS | SECOND_CHECKSUMS | THIRD_CHECKSUMS;

/// Number of revoked blocks that are remembered.
const MOST_REVOKED: usize = 1 << 17;

/// A block that a transaction has: its place in the volume, and its checksum of 32 or 16 bits.
struct Tag {
    place: u64,
    flags: u32,
    checksum: u32,
}

/// A journal that is read.
struct Reader<'a, D> {
    device: &'a D,
    journal: &'a Journal,
    superblock: Vec<u8>,
    size: usize,
    features: u32,
    seed: u32,
    first: u32,
    end: u32,
    block: Vec<u8>,
}

/// One pass over all transactions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Scan,
    Revoke,
    Replay,
}

fn damaged() -> Error {
    Error::Damaged("the journal")
}

impl<'a, D: Device> Reader<'a, D> {
    /// Opens a journal; `None` if it is empty.
    fn open(device: &'a D, journal: &'a Journal, size: usize) -> Result<Option<Reader<'a, D>>, Error> {
        let mut superblock = alloc::vec![0; log::SIZE];
        let at = journal.pieces.first().filter(|piece| piece.first == 0).ok_or_else(damaged)?.at;
        device.read(at, &mut superblock).map_err(failed)?;
        let kind = word(&superblock, log::KIND_AT);
        let is_one = word(&superblock, 0) == log::MAGIC
            && matches!(kind, log::FIRST_VERSION | log::SECOND_VERSION)
            && word(&superblock, log::BLOCK_SIZE_AT) == size as u32;
        if !is_one {
            return Err(damaged());
        }
        if word(&superblock, log::START_AT) == 0 {
            return Ok(None);
        }
        let features = if kind == log::FIRST_VERSION { 0 } else { word(&superblock, log::INCOMPATIBLE_AT) };
        if features & !KNOWN != 0 {
            return Err(Error::Unsupported);
        }
        if features & (SECOND_CHECKSUMS | THIRD_CHECKSUMS) != 0 {
            let mut copy = superblock.clone();
            set(&mut copy, log::CHECKSUM_AT, 0);
            if crc32c(START, &copy) != word(&superblock, log::CHECKSUM_AT) {
                return Err(damaged());
            }
        }
        let (first, length) = (word(&superblock, log::FIRST_AT), word(&superblock, log::LENGTH_AT));
        if first == 0 || first >= length || length > journal.blocks {
            return Err(damaged());
        }
        let seed = crc32c(START, &superblock[log::UUID_AT..][..log::UUID]);
        let block = alloc::vec![0; size];
        Ok(Some(Reader { device, journal, superblock, size, features, seed, first, end: length, block }))
    }

    fn has_checksums(&self) -> bool {
        self.features & (SECOND_CHECKSUMS | THIRD_CHECKSUMS) != 0
    }

    /// Reads a block of the journal.
    fn read(&mut self, number: u32) -> Result<(), Error> {
        let at = log::place(&self.journal.pieces, number, self.size).ok_or_else(damaged)?;
        self.device.read(at, &mut self.block).map_err(failed)?;
        self.device.pause();
        Ok(())
    }

    /// Returns the block behind one.
    fn after(&self, number: u32) -> u32 {
        if number + 1 >= self.end { self.first } else { number + 1 }
    }

    /// Whether the block that was read has its checksum at this place.
    fn is_sealed(&mut self, at: usize) -> bool {
        if !self.has_checksums() {
            return true;
        }
        let found = word(&self.block, at);
        set(&mut self.block, at, 0);
        crc32c(self.seed, &self.block) == found
    }

    /// Returns the tags of the descriptor that was read.
    fn tags(&self) -> Vec<Tag> {
        let is_third = self.features & THIRD_CHECKSUMS != 0;
        let is_wide = self.features & WIDE != 0;
        // Those of the second version are two bytes longer, which are not used.
        let unused = if self.features & SECOND_CHECKSUMS != 0 { 2 } else { 0 };
        let size = if is_third { 16 } else { 8 + unused + if is_wide { 4 } else { 0 } };
        let end = self.size - if self.has_checksums() { log::TAIL } else { 0 };
        let (mut tags, mut at) = (Vec::new(), log::HEADER);
        while at + size <= end {
            let low = u64::from(word(&self.block, at));
            let mut tag = if is_third {
                Tag { place: low, flags: word(&self.block, at + 4), checksum: word(&self.block, at + 12) }
            } else {
                let both = word(&self.block, at + 4);
                Tag { place: low, flags: both & 0xffff, checksum: both >> 16 }
            };
            if is_wide {
                tag.place |= u64::from(word(&self.block, at + 8)) << 32;
            }
            at += size;
            if tag.flags & log::SAME_UUID == 0 {
                at += log::UUID;
            }
            let is_last = tag.flags & log::LAST != 0;
            tags.push(tag);
            if is_last {
                break;
            }
        }
        tags
    }

    /// Whether the block that was read has the checksum of its tag.
    fn is_of(&self, tag: &Tag, sequence: u32) -> bool {
        if !self.has_checksums() {
            return true;
        }
        let checksum = crc32c(crc32c(self.seed, &sequence.to_be_bytes()), &self.block);
        if self.features & THIRD_CHECKSUMS != 0 { checksum == tag.checksum } else { checksum & 0xffff == tag.checksum }
    }

    /// Adds the revoked blocks of the block that was read.
    fn revoke(&self, sequence: u32, revoked: &mut BTreeMap<u64, u32>) -> Result<(), Error> {
        let size = if self.features & WIDE != 0 { 8 } else { 4 };
        let end = (word(&self.block, log::HEADER) as usize).min(self.size);
        for place in self.block.get(log::REVOKED_HEADER..end).unwrap_or_default().chunks_exact(size) {
            let place = place.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            if revoked.len() >= MOST_REVOKED {
                return Err(Error::OutOfMemory);
            }
            revoked.insert(place, sequence);
        }
        Ok(())
    }

    /// Goes over all transactions up to one, which is not there any more; returns its number.
    fn pass(
        &mut self,
        pass: Pass,
        end: Option<u32>,
        revoked: &mut BTreeMap<u64, u32>,
        put: &mut impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<u32, Error> {
        let mut next = word(&self.superblock, log::START_AT);
        let mut sequence = word(&self.superblock, log::SEQUENCE_AT);
        if next < self.first || next >= self.end {
            return Err(damaged());
        }
        // Each look takes at least one block: more than all are a loop.
        let mut left = self.end;
        while end != Some(sequence) {
            self.read(next)?;
            if word(&self.block, 0) != log::MAGIC || word(&self.block, 8) != sequence {
                break;
            }
            next = self.after(next);
            left = left.checked_sub(1).ok_or_else(damaged)?;
            match word(&self.block, 4) {
                log::DESCRIPTOR => {
                    if !self.is_sealed(self.size - log::TAIL) {
                        break;
                    }
                    let tags = self.tags();
                    for tag in &tags {
                        let at = next;
                        next = self.after(next);
                        left = left.checked_sub(1).ok_or_else(damaged)?;
                        let is_revoked = revoked.get(&tag.place).is_some_and(|last| sequence_is_up_to(sequence, *last));
                        if pass != Pass::Replay || is_revoked {
                            continue;
                        }
                        self.read(at)?;
                        if !self.is_of(tag, sequence) {
                            return Err(damaged());
                        }
                        if tag.flags & log::ESCAPED != 0 {
                            set(&mut self.block, 0, log::MAGIC);
                        }
                        put(tag.place, &self.block)?;
                    }
                }
                log::REVOKED => {
                    if !self.is_sealed(self.size - log::TAIL) {
                        break;
                    }
                    if pass == Pass::Revoke {
                        self.revoke(sequence, revoked)?;
                    }
                }
                log::COMMIT => {
                    if !self.is_sealed(log::COMMIT_CHECKSUM_AT) {
                        break;
                    }
                    sequence = sequence.wrapping_add(1);
                }
                _ => break,
            }
        }
        Ok(sequence)
    }
}

/// Whether a transaction is not younger than another one; numbers begin again behind the largest.
fn sequence_is_up_to(sequence: u32, last: u32) -> bool {
    last.wrapping_sub(sequence) < 1 << 31
}

fn failed(DeviceFailed: DeviceFailed) -> Error {
    Error::Device
}

/// Tells of all blocks that a journal has and that were not revoked, in the order of their transactions: the last of
/// a place counts. Returns the number of the next transaction; `None` for a journal that is empty.
pub(crate) fn replay<D: Device>(
    device: &D,
    journal: &Journal,
    size: usize,
    mut put: impl FnMut(u64, &[u8]) -> Result<(), Error>,
) -> Result<Option<u32>, Error> {
    let Some(mut reader) = Reader::open(device, journal, size)? else { return Ok(None) };
    let mut revoked = BTreeMap::new();
    let end = reader.pass(Pass::Scan, None, &mut revoked, &mut put)?;
    reader.pass(Pass::Revoke, Some(end), &mut revoked, &mut put)?;
    reader.pass(Pass::Replay, Some(end), &mut revoked, &mut put)?;
    Ok(Some(end))
}

/// Notes that a journal is empty, whose blocks are at their places and last there, and the number of the transaction
/// that is its next one.
pub(crate) fn mark_as_empty<D: Device>(device: &D, journal: &Journal, size: usize, sequence: u32) -> Result<(), Error> {
    let Some(mut reader) = Reader::open(device, journal, size)? else { return Ok(()) };
    set(&mut reader.superblock, log::START_AT, 0);
    set(&mut reader.superblock, log::SEQUENCE_AT, sequence);
    if reader.has_checksums() {
        set(&mut reader.superblock, log::CHECKSUM_AT, 0);
        let checksum = crc32c(START, &reader.superblock);
        set(&mut reader.superblock, log::CHECKSUM_AT, checksum);
    }
    let at = journal.pieces.first().ok_or_else(damaged)?.at;
    device.write(at, &reader.superblock).map_err(failed)?;
    device.flush().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::PieceSums;
    use crate::log::{JournalLog, JournalPiece, LoggedBlock, USED_BLOCKS};
    use crate::superblock::tests::{MemoryDevice, small_volume};
    use alloc::collections::BTreeSet;

    const BLOCK: usize = 1024;
    const AT: u64 = 64 << 10;

    /// Makes a journal with some transactions, the last of which revokes a block.
    fn journal() -> (MemoryDevice, Journal) {
        let (_, device) = small_volume();
        device.0.borrow_mut().resize(2 << 20, 0);
        let mut superblock = alloc::vec![0; log::SIZE];
        let words = [(0, log::MAGIC), (log::KIND_AT, log::SECOND_VERSION), (log::BLOCK_SIZE_AT, BLOCK as u32)];
        for (at, value) in words.into_iter().chain([(log::LENGTH_AT, USED_BLOCKS), (log::FIRST_AT, 1)]) {
            set(&mut superblock, at, value);
        }
        device.write(AT, &superblock).unwrap();
        let pieces = alloc::vec![JournalPiece { first: 0, at: AT, count: USED_BLOCKS }];
        let journal = Journal { pieces, blocks: USED_BLOCKS };
        let mut log = JournalLog::open(&device, journal.clone(), BLOCK).unwrap();
        log.begin(&device).unwrap();
        for round in 0..4_u8 {
            let blocks: Vec<(u64, Vec<u8>)> = (5..9).map(|place| (place, alloc::vec![round; BLOCK])).collect();
            let revoked: BTreeSet<u64> = if round == 3 { [20].into() } else { BTreeSet::new() };
            let extra = if round == 0 { alloc::vec![(20, alloc::vec![9; BLOCK])] } else { Vec::new() };
            let sums = PieceSums::default();
            let logged = |(place, bytes): &'_ (u64, Vec<u8>)| (*place, bytes.clone());
            let all: Vec<_> = blocks.iter().chain(&extra).map(logged).collect();
            let all: Vec<_> =
                all.iter().map(|(place, bytes)| LoggedBlock { place: *place, bytes, sums: &sums }).collect();
            log.append(&device, all.into_iter(), &revoked, 7).unwrap();
        }
        (device, journal)
    }

    #[test]
    fn transactions_are_replayed_but_for_blocks_that_were_revoked() {
        let (device, journal) = journal();
        let mut found = BTreeMap::new();
        let end = replay(&device, &journal, BLOCK, |place, bytes| {
            found.insert(place, bytes[0]);
            Ok(())
        });
        assert!(matches!(end, Ok(Some(_))));
        assert_eq!(found, (5..9).map(|place| (place, 3)).collect());
        mark_as_empty(&device, &journal, BLOCK, end.unwrap().unwrap()).unwrap();
        assert_eq!(replay(&device, &journal, BLOCK, |_, _| Err(Error::Busy)), Ok(None));
    }

    /// Tags of the second version of checksums are two bytes longer than their fields.
    #[test]
    fn tags_with_checksums_of_the_second_version_are_read() {
        for is_wide in [false, true] {
            let (device, journal) = journal();
            let features = SECOND_CHECKSUMS | REVOKES | if is_wide { WIDE } else { 0 };
            let mut superblock = alloc::vec![0; log::SIZE];
            device.read(AT, &mut superblock).unwrap();
            let sequence = word(&superblock, log::SEQUENCE_AT);
            for (at, value) in [(log::INCOMPATIBLE_AT, features), (log::START_AT, 1), (log::CHECKSUM_AT, 0)] {
                set(&mut superblock, at, value);
            }
            let sum = crc32c(START, &superblock);
            set(&mut superblock, log::CHECKSUM_AT, sum);
            device.write(AT, &superblock).unwrap();
            let seed = crc32c(START, &superblock[log::UUID_AT..][..log::UUID]);
            let block_of = |kind: u32| {
                let mut block = alloc::vec![0; BLOCK];
                for (at, value) in [(0, log::MAGIC), (4, kind), (8, sequence)] {
                    set(&mut block, at, value);
                }
                block
            };
            let mut descriptor = block_of(log::DESCRIPTOR);
            let mut at = log::HEADER;
            for place in 0..3 {
                let sum = crc32c(crc32c(seed, &sequence.to_be_bytes()), &[place as u8; BLOCK]);
                let flags = if place > 0 { log::SAME_UUID } else { 0 } | if place == 2 { log::LAST } else { 0 };
                set(&mut descriptor, at, 30 + place);
                set(&mut descriptor, at + 4, sum << 16 | flags);
                at += if is_wide { 14 } else { 10 } + if place == 0 { log::UUID } else { 0 };
                device.write(AT + (2 + u64::from(place)) * BLOCK as u64, &[place as u8; BLOCK]).unwrap();
            }
            let sum = crc32c(seed, &descriptor);
            set(&mut descriptor, BLOCK - log::TAIL, sum);
            device.write(AT + BLOCK as u64, &descriptor).unwrap();
            let mut commit = block_of(log::COMMIT);
            let sum = crc32c(seed, &commit);
            set(&mut commit, log::COMMIT_CHECKSUM_AT, sum);
            device.write(AT + 5 * BLOCK as u64, &commit).unwrap();
            let mut found = Vec::new();
            let end = replay(&device, &journal, BLOCK, |place, bytes| {
                found.push((place, bytes[0]));
                Ok(())
            });
            assert_eq!(end, Ok(Some(sequence.wrapping_add(1))), "{is_wide}");
            assert_eq!(found, [(30, 0), (31, 1), (32, 2)], "{is_wide}");
        }
    }

    #[test]
    fn damaged_journals_have_an_end() {
        let seeds: [&[u8]; 3] = [&[], &[0, 28, 255], &[1, 12, 9, 0, 40, 3]];
        property::fuzz("replay", &seeds, |input| {
            let (device, journal) = journal();
            let mut numbers = property::Numbers::new(input);
            while !numbers.is_empty() {
                // Also without checksums, where damage gets further.
                let at = AT as usize + numbers.number() as usize % (30 * BLOCK);
                device.0.borrow_mut()[at] = numbers.byte();
                if numbers.byte().is_multiple_of(2) {
                    device.0.borrow_mut()[AT as usize + log::INCOMPATIBLE_AT + 3] = 3;
                }
            }
            let mut count = 0;
            let _ = replay(&device, &journal, BLOCK, |_, _| {
                count += 1;
                assert!(count <= 2 * USED_BLOCKS, "a loop");
                Ok(())
            });
        });
    }
}
