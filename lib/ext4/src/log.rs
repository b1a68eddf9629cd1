//! The journal of a volume on its disk, as it is written: transactions of jbd2, one behind the other.
//!
//! A transaction has a descriptor with the places of the blocks that follow it, more of both if they are many, records
//! of blocks that were revoked, and a commit block. It counts when the commit block is on the disk, so all others last
//! before that is written. The format is the one of Linux with checksums of the third version (`journal_checksum_v3`),
//! places of 64 bits and revoked blocks; the features are those of the journal and not of the volume, and Linux sets
//! the ones that it wants when it mounts the volume and the journal is empty.
//!
//! The log never turns back: when [`JournalLog::has_room`] is gone, all its blocks are brought to their places, and it
//! begins anew ([`JournalLog::restart`]). So the first [`USED_BLOCKS`] of a journal are used, however large it is, and
//! the copies of its blocks in memory have a bound.
//!
//! [`replay`](crate::replay) reads what Linux or an earlier mount has written.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::iter::Peekable;

use crate::checksum::{PieceSums, START, crc32c, crc32c_of_beginning};
use crate::device::{Device, DeviceFailed};

/// Blocks of a journal that are used: the least that a journal of Linux has (`JBD2_MIN_JOURNAL_BLOCKS`).
pub(crate) const USED_BLOCKS: u32 = 1024;
/// Blocks of the log that the largest transaction takes.
pub(crate) const RESERVED_BLOCKS: u32 = USED_BLOCKS / 2;

/// Bytes of the copies of blocks in the journal that a mounted volume keeps at most.
pub const MEMORY_OF_JOURNAL: usize = USED_BLOCKS as usize * 4096;

/// Size of the superblock of a journal.
pub(crate) const SIZE: usize = 1024;
pub(crate) const MAGIC: u32 = 0xc03b_3998;

/// Kinds of blocks.
pub(crate) const DESCRIPTOR: u32 = 1;
pub(crate) const COMMIT: u32 = 2;
pub(crate) const FIRST_VERSION: u32 = 3;
pub(crate) const SECOND_VERSION: u32 = 4;
pub(crate) const REVOKED: u32 = 5;

/// Offsets of words of the superblock.
pub(crate) const KIND_AT: usize = 4;
pub(crate) const BLOCK_SIZE_AT: usize = 12;
pub(crate) const LENGTH_AT: usize = 16;
pub(crate) const FIRST_AT: usize = 20;
pub(crate) const SEQUENCE_AT: usize = 24;
pub(crate) const START_AT: usize = 28;
const COMPATIBLE_AT: usize = 36;
pub(crate) const INCOMPATIBLE_AT: usize = 40;
pub(crate) const UUID_AT: usize = 48;
const USERS_AT: usize = 64;
const CHECKSUM_KIND_AT: usize = 80;
pub(crate) const CHECKSUM_AT: usize = 252;

/// Features: revoked blocks, places of 64 bits, checksums of the third version; and the number of CRC32C.
const FEATURES: u32 = 0x1 | 0x2 | 0x10;
const CRC32C: u8 = 4;

/// Sizes of a header, of a header of revoked blocks, of a tag and of a UUID.
pub(crate) const HEADER: usize = 12;
pub(crate) const REVOKED_HEADER: usize = 16;
const TAG: usize = 16;
pub(crate) const UUID: usize = 16;
/// Bytes of a checksum at the end of a block.
pub(crate) const TAIL: usize = 4;

/// Number of a descriptor's tags.
fn tags(block: usize) -> usize {
    (block - HEADER - UUID - TAIL) / TAG
}

/// Number of places in a block of revoked ones.
fn places(block: usize) -> usize {
    (block - REVOKED_HEADER - TAIL) / 8
}

/// Flags of a tag: the copy has zeros in place of the magic number, the UUID is that of the one before, it is the last.
pub(crate) const ESCAPED: u32 = 1;
pub(crate) const SAME_UUID: u32 = 2;
pub(crate) const LAST: u32 = 8;

/// Offset of the checksum of a commit block, and of its time.
pub(crate) const COMMIT_CHECKSUM_AT: usize = 16;
const COMMIT_TIME_AT: usize = 48;

/// A piece of the journal that lies together on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalPiece {
    /// Its first block, counted from the beginning of the journal.
    pub(crate) first: u32,
    /// Offset of that block on the device.
    pub(crate) at: u64,
    /// Number of blocks.
    pub(crate) count: u32,
}

/// The place of a journal: its beginning, and the number of all its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Journal {
    pub(crate) pieces: Vec<JournalPiece>,
    pub(crate) blocks: u32,
}

/// Reason why a journal cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// The device has failed.
    Device,
    /// It contradicts itself.
    Damaged,
}

impl From<DeviceFailed> for Unusable {
    fn from(DeviceFailed: DeviceFailed) -> Unusable {
        Unusable::Device
    }
}

/// A block of a transaction: its place in the volume, its bytes and the checksums of their pieces.
pub(crate) struct LoggedBlock<'a> {
    pub(crate) place: u64,
    pub(crate) bytes: &'a [u8],
    pub(crate) sums: &'a PieceSums,
}

/// The log of a volume that is mounted for writing.
pub(crate) struct JournalLog {
    pieces: Vec<JournalPiece>,
    superblock: Box<[u8]>,
    /// The first block, the one at which the next transaction begins, and the one at which the log ends.
    first: u32,
    next: u32,
    end: u32,
    sequence: u32,
    seed: u32,
    /// A block that is being made.
    block: Box<[u8]>,
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn set(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

fn zeros(count: usize) -> Box<[u8]> {
    alloc::vec![0; count].into_boxed_slice()
}

/// Returns the offset on the device of a block of a journal.
pub(crate) fn place(pieces: &[JournalPiece], block: u32, size: usize) -> Option<u64> {
    let before = pieces.partition_point(|piece| piece.first <= block);
    let piece = pieces.get(before.checked_sub(1)?)?;
    let within = block - piece.first;
    (within < piece.count).then(|| piece.at + u64::from(within) * size as u64)
}

impl JournalLog {
    /// Opens the journal of a volume that was replayed. Nothing is written before it is [begun](JournalLog::begin).
    pub(crate) fn open<D: Device>(device: &D, journal: Journal, size: usize) -> Result<JournalLog, Unusable> {
        let mut superblock = zeros(SIZE);
        let at = journal.pieces.first().filter(|piece| piece.first == 0).ok_or(Unusable::Damaged)?.at;
        device.read(at, &mut superblock)?;
        let kind = word(&superblock, KIND_AT);
        if word(&superblock, 0) != MAGIC
            || !matches!(kind, FIRST_VERSION | SECOND_VERSION)
            || word(&superblock, BLOCK_SIZE_AT) != size as u32
        {
            return Err(Unusable::Damaged);
        }
        if kind == FIRST_VERSION {
            set(&mut superblock, KIND_AT, SECOND_VERSION);
            superblock[COMPATIBLE_AT..].fill(0);
            set(&mut superblock, USERS_AT, 1);
        }
        set(&mut superblock, COMPATIBLE_AT, 0);
        set(&mut superblock, INCOMPATIBLE_AT, FEATURES);
        superblock[CHECKSUM_KIND_AT] = CRC32C;
        // A system that was cut off may have left it shorter.
        set(&mut superblock, LENGTH_AT, journal.blocks);
        let first = word(&superblock, FIRST_AT);
        let mapped = journal.pieces.last().map_or(0, |piece| piece.first + piece.count);
        let end = USED_BLOCKS.min(journal.blocks).min(mapped);
        if first == 0 || first >= end || end - first < USED_BLOCKS - 8 {
            return Err(Unusable::Damaged);
        }
        let seed = crc32c(START, &superblock[UUID_AT..UUID_AT + UUID]);
        let sequence = word(&superblock, SEQUENCE_AT).max(1);
        let pieces = journal.pieces;
        // Blocks of the last transactions are there, up to a number that nobody has noted if the power was cut.
        let sequence = sequence.wrapping_add(USED_BLOCKS);
        Ok(JournalLog { pieces, superblock, first, next: first, end, sequence, seed, block: zeros(size) })
    }

    /// Begins an empty log. The volume must say already that its journal is to be replayed, and that must last: a
    /// journal that has begun beside a volume that needs none is a contradiction for `e2fsck`.
    pub(crate) fn begin<D: Device>(&mut self, device: &D) -> Result<(), DeviceFailed> {
        self.write_superblock(device, self.first)
    }

    /// Whether the largest transaction has room.
    pub(crate) fn has_room(&self) -> bool {
        self.end - self.next >= RESERVED_BLOCKS
    }

    /// Number of blocks that a transaction takes.
    fn size(&self, blocks: usize, revoked: usize) -> usize {
        let size = self.block.len();
        blocks + blocks.div_ceil(tags(size)) + revoked.div_ceil(places(size)) + 1
    }

    /// Whether a transaction of so many blocks, and so many revoked ones, fits.
    pub(crate) fn fits(&self, blocks: usize, revoked: usize) -> bool {
        self.size(blocks, revoked) <= (self.end - self.next) as usize
    }

    /// Writes a transaction, which lasts when this returns, with everything that was written to the device before. It
    /// must fit.
    pub(crate) fn append<'a, D: Device>(
        &mut self,
        device: &D,
        blocks: impl ExactSizeIterator<Item = LoggedBlock<'a>>,
        revoked: &BTreeSet<u64>,
        seconds: i64,
    ) -> Result<(), DeviceFailed> {
        if !self.fits(blocks.len(), revoked.len()) {
            return Err(DeviceFailed);
        }
        let mut left = revoked.iter().peekable();
        while left.peek().is_some() {
            self.header(REVOKED);
            let mut at = REVOKED_HEADER;
            for place in left.by_ref().take(places(self.block.len())) {
                self.block[at..at + 8].copy_from_slice(&place.to_be_bytes());
                at += 8;
            }
            set(&mut self.block, HEADER, at as u32);
            self.seal(at);
            self.write_own(device)?;
        }
        let mut left = blocks.peekable();
        while left.peek().is_some() {
            self.write_some(device, &mut left)?;
        }
        device.flush()?;
        self.header(COMMIT);
        self.block[COMMIT_TIME_AT..COMMIT_TIME_AT + 8].copy_from_slice(&seconds.to_be_bytes());
        let checksum = crc32c_of_beginning(self.seed, &self.block, COMMIT_TIME_AT + 8);
        set(&mut self.block, COMMIT_CHECKSUM_AT, checksum);
        self.write_own(device)?;
        device.flush()?;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }

    /// Begins anew, when all blocks of the log are at their places and last there.
    pub(crate) fn restart<D: Device>(&mut self, device: &D) -> Result<(), DeviceFailed> {
        self.next = self.first;
        self.write_superblock(device, self.first)?;
        device.flush()
    }

    /// Ends the log, when all its blocks are at their places and last there: the journal is empty.
    pub(crate) fn end<D: Device>(&mut self, device: &D) -> Result<(), DeviceFailed> {
        self.next = self.first;
        self.write_superblock(device, 0)?;
        device.flush()
    }

    /// Begins a block of this kind.
    fn header(&mut self, kind: u32) {
        self.block.fill(0);
        for (at, word) in [(0, MAGIC), (4, kind), (8, self.sequence)] {
            set(&mut self.block, at, word);
        }
    }

    /// Writes the next blocks, as many as a descriptor has tags, and their descriptor in front of them.
    fn write_some<'a, D: Device>(
        &mut self,
        device: &D,
        blocks: &mut Peekable<impl Iterator<Item = LoggedBlock<'a>>>,
    ) -> Result<(), DeviceFailed> {
        let descriptor = self.advance()?;
        self.header(DESCRIPTOR);
        let mut at = HEADER;
        let most = tags(self.block.len());
        for number in 0..most {
            let Some(LoggedBlock { place, bytes, sums }) = blocks.next() else { break };
            let mut flags = if number > 0 { SAME_UUID } else { 0 };
            if number + 1 == most || blocks.peek().is_none() {
                flags |= LAST;
            }
            let escaped = (word(bytes, 0) == MAGIC).then(|| {
                let mut copy = bytes.to_vec();
                set(&mut copy, 0, 0);
                copy
            });
            if escaped.is_some() {
                flags |= ESCAPED;
            }
            let before = crc32c(self.seed, &self.sequence.to_be_bytes());
            let (bytes, checksum) = match &escaped {
                Some(copy) => (&copy[..], crc32c(before, copy)),
                None => (bytes, sums.sum(before, bytes, 0..bytes.len())),
            };
            for (within, word) in [(0, place as u32), (4, flags), (8, (place >> 32) as u32), (12, checksum)] {
                set(&mut self.block, at + within, word);
            }
            at += TAG;
            if number == 0 {
                self.block[at..at + UUID].copy_from_slice(&self.superblock[UUID_AT..UUID_AT + UUID]);
                at += UUID;
            }
            let place = self.advance()?;
            device.write(place, bytes)?;
            device.pause();
        }
        self.seal(at);
        device.write(descriptor, &self.block)
    }

    /// Puts the checksum at the end of the block that is being made, which has something up to a place.
    fn seal(&mut self, end: usize) {
        let checksum = crc32c_of_beginning(self.seed, &self.block, end);
        let at = self.block.len() - TAIL;
        set(&mut self.block, at, checksum);
    }

    /// Writes the block that was made.
    fn write_own<D: Device>(&mut self, device: &D) -> Result<(), DeviceFailed> {
        let at = self.advance()?;
        device.write(at, &self.block)
    }

    /// Returns the offset of the next block, and goes on behind it.
    fn advance(&mut self) -> Result<u64, DeviceFailed> {
        let next = self.next;
        let at = place(&self.pieces, next, self.block.len()).filter(|_| next < self.end).ok_or(DeviceFailed)?;
        self.next += 1;
        Ok(at)
    }

    /// Writes the superblock, with the block at which a replay begins; 0 for an empty journal.
    fn write_superblock<D: Device>(&mut self, device: &D, start: u32) -> Result<(), DeviceFailed> {
        set(&mut self.superblock, START_AT, start);
        set(&mut self.superblock, SEQUENCE_AT, self.sequence);
        set(&mut self.superblock, CHECKSUM_AT, 0);
        let checksum = crc32c(START, &self.superblock);
        set(&mut self.superblock, CHECKSUM_AT, checksum);
        let at = self.pieces.first().ok_or(DeviceFailed)?.at;
        device.write(at, &self.superblock)
    }
}
