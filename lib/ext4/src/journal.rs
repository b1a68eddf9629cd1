//! The part of a journal that is used while a volume is mounted for writing.
//!
//! `rsext4` 0.9.2 keeps a copy of each block of a committed transaction until the block is written to its place, which
//! happens only when the journal is full; it also looks through these copies at each read of a block, and copies all
//! blocks of the running transaction, which may fill a third of the journal, at each change. `mke2fs` makes journals of
//! up to a gigabyte. So a volume that is written uses [`USED_BLOCKS`] of its journal alone: the copies have a bound,
//! whatever keeps the library's state alive.
//!
//! The journal's superblock says so on the disk, because whoever replays the journal must know where it turns back.
//! The length is changed only while the journal is empty, by a write of one sector, and is the whole journal's again
//! when the volume was unmounted. After a power cut it stays short until then, which Linux and `e2fsck` accept.
//!
//! Rejected: a journal that stays as it is, with a new state of the library after some changes. That needs a volume
//! without open files that have no names, and took as long as a mount.

use rsext4::crc32c::{crc32c_append, crc32c_init};

use crate::device::{Device, DeviceFailed};

/// Blocks of a journal that are used: the least that Linux takes (`JBD2_MIN_JOURNAL_BLOCKS`).
pub(crate) const USED_BLOCKS: u32 = 1024;

/// Bytes of the copies of blocks in the journal that a mounted volume keeps at most.
pub const MEMORY_OF_JOURNAL: usize = USED_BLOCKS as usize * 4096;

/// Size of the superblock of a journal.
const SIZE: usize = 1024;
const MAGIC: u32 = 0xc03b_3998;
/// Kind of a superblock with features.
const SECOND_VERSION: u32 = 4;
/// Features with which the superblock has a checksum: `csum_v2` and `csum_v3`.
const HAS_CHECKSUM: u32 = 0x8 | 0x10;

/// Offsets of words.
const KIND: usize = 4;
const LENGTH: usize = 16;
const START: usize = 28;
const INCOMPATIBLE: usize = 40;
const CHECKSUM: usize = 252;

/// The place of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Journal {
    /// Offset of its superblock on the device.
    pub(crate) at: u64,
    /// Number of all its blocks.
    pub(crate) blocks: u32,
}

struct JournalHead([u8; SIZE]);

impl JournalHead {
    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn set(&mut self, at: usize, word: u32) {
        self.0[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }

    /// Whether it is one, and its journal is empty.
    fn is_of_an_empty_journal(&self) -> bool {
        self.word(0) == MAGIC && matches!(self.word(KIND), 3 | SECOND_VERSION) && self.word(START) == 0
    }

    fn set_length(&mut self, blocks: u32) {
        self.set(LENGTH, blocks);
        if self.word(KIND) == SECOND_VERSION && self.word(INCOMPATIBLE) & HAS_CHECKSUM != 0 {
            self.set(CHECKSUM, 0);
            let checksum = crc32c_append(crc32c_init(), &self.0);
            self.set(CHECKSUM, checksum);
        }
    }
}

impl Journal {
    fn read<D: Device>(&self, device: &D) -> Result<JournalHead, DeviceFailed> {
        let mut superblock = JournalHead([0; SIZE]);
        device.read(self.at, &mut superblock.0)?;
        Ok(superblock)
    }

    /// Whether more blocks than are wanted are used, or fewer.
    pub(crate) fn differs<D: Device>(&self, device: &D, wanted: u32) -> Result<bool, DeviceFailed> {
        Ok(self.read(device)?.word(LENGTH) != wanted.min(self.blocks))
    }

    /// Has so many of its blocks used from now on, or all, if it is empty; returns whether it is. The volume is not
    /// changed meanwhile.
    pub(crate) fn use_blocks<D: Device>(&self, device: &D, wanted: u32) -> Result<bool, DeviceFailed> {
        let mut superblock = self.read(device)?;
        let wanted = wanted.min(self.blocks);
        if !superblock.is_of_an_empty_journal() {
            return Ok(false);
        }
        if superblock.word(LENGTH) != wanted {
            superblock.set_length(wanted);
            device.write(self.at, &superblock.0)?;
            device.flush()?;
        }
        Ok(true)
    }
}
