//! The superblock, looked at before anything else: the features and sizes for which a volume is refused. And its note
//! that the journal is to be replayed.
//!
//! The library does not know of the journal of a volume that is written ([`hide_journal`]), and writes the superblock
//! of a volume without one, to which the journal and the note are added ([`with_journal`]). The note is on the disk
//! before the first transaction ([`mark_in_use`]) and until the journal is empty ([`mark_as_whole`]).
//!
//! When it replays a journal, `rsext4` 0.9.2 writes the last transaction to its places in any order, and one of its
//! blocks is the superblock that says the journal need not be replayed any more. After a power cut in between, nobody
//! would replay the rest, and Linux throws it away. So the note stays there too ([`still_in_use`]).

use alloc::vec::Vec;
use core::fmt;

use rsext4::crc32c::{crc32c_append, crc32c_init};

use crate::device::{Device, DeviceFailed};

/// Offset and size of the superblock in bytes.
const AT: u64 = 1024;
const SIZE: usize = 1024;
const MAGIC: u16 = 0xef53;

/// Number of groups of a volume that is mounted: each has a descriptor in memory.
const MOST_GROUPS: u64 = 16 * 1024;

/// Features whose presence forbids even reading, by bit, with the names of e2fsprogs.
const INCOMPATIBLE: [(u32, &str); 16] = [
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
];
/// Those of them that are known here: filetype, needs_recovery, extent, 64bit, flex_bg, metadata_csum_seed.
const KNOWN_INCOMPATIBLE: u32 = 0x2 | 0x4 | 0x40 | 0x80 | 0x200 | 0x2000;

/// Features whose presence forbids writing.
const FOR_WRITING: [(u32, &str); 15] = [
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x8000, "verity"),
    (0x1_0000, "orphan_present"),
];
/// Those of them that are known here: sparse_super, large_file, huge_file, uninit_bg, dir_nlink, extra_isize,
/// metadata_csum.
const KNOWN_FOR_WRITING: u32 = 0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x40 | 0x400;

/// Reason why a device is not mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The device has no superblock of ext4.
    NotExt4,
    /// The volume has a feature that is not known, with the name of e2fsprogs. It may be one that matters only for
    /// writing.
    Feature {
        /// The name, or "unknown".
        name: &'static str,
        /// Whether the volume can be mounted read-only.
        forbids_writing_alone: bool,
    },
    /// The volume has a size that is refused.
    Size(&'static str),
    /// The volume contradicts itself there; `e2fsck` may mend it.
    Damaged(&'static str),
    /// The device has failed, or is read-only while the journal must be replayed.
    Device,
    /// There is no memory.
    OutOfMemory,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotExt4 => write!(f, "there is no ext4 on it"),
            Refusal::Feature { name, forbids_writing_alone: false } => {
                write!(f, "it has the feature {name}, which is not supported")
            }
            Refusal::Feature { name, forbids_writing_alone: true } => {
                write!(f, "it has the feature {name}, with which it can be mounted read-only alone")
            }
            Refusal::Size(what) => write!(f, "{what}"),
            Refusal::Damaged(place) => write!(f, "it is damaged ({place}); e2fsck may repair it"),
            Refusal::Device => write!(f, "the device has failed, or cannot be written"),
            Refusal::OutOfMemory => write!(f, "there is no memory"),
        }
    }
}

/// The parts of a superblock that decide before anything is mounted.
struct Superblock([u8; SIZE]);

impl Superblock {
    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn half(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }
}

/// Offsets in a superblock: its magic number, its features, and its checksum at its end.
const MAGIC_AT: usize = 56;
const COMPATIBLE_AT: usize = 92;
const INCOMPATIBLE_AT: usize = 96;
const FOR_WRITING_AT: usize = 100;
const CHECKSUM_AT: usize = 1020;
/// Offset of the first file of the list of those without names (`s_last_orphan`).
const LAST_NAMELESS_AT: usize = 232;
/// The feature of a journal, and the ones of a journal that is to be replayed and of checksums.
const HAS_JOURNAL: u32 = 0x4;
const NEEDS_RECOVERY: u32 = 0x4;
const HAS_CHECKSUMS: u32 = 0x400;

impl Superblock {
    fn set(&mut self, at: usize, word: u32) {
        self.0[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    fn is_one(&self) -> bool {
        self.half(MAGIC_AT) == MAGIC
    }

    /// Notes whether the journal is to be replayed; returns whether that was not so before.
    fn note_recovery(&mut self, is_needed: bool) -> bool {
        let before = self.word(INCOMPATIBLE_AT);
        let after = if is_needed { before | NEEDS_RECOVERY } else { before & !NEEDS_RECOVERY };
        if !self.is_one() || self.word(COMPATIBLE_AT) & HAS_JOURNAL == 0 || after == before {
            return false;
        }
        self.set(INCOMPATIBLE_AT, after);
        self.seal();
        true
    }

    /// Renews the checksum, if the volume has any.
    fn seal(&mut self) {
        if self.word(FOR_WRITING_AT) & HAS_CHECKSUMS != 0 {
            let checksum = crc32c_append(crc32c_init(), &self.0[..CHECKSUM_AT]);
            self.set(CHECKSUM_AT, checksum);
        }
    }
}

/// Returns the superblock in bytes of the device from this offset on, and its place in them; `None` if not all of it
/// is there.
fn found_in(offset: u64, bytes: &[u8]) -> Option<(usize, Superblock)> {
    let at = usize::try_from(AT.checked_sub(offset)?).ok()?;
    let superblock = Superblock(bytes.get(at..)?.first_chunk().copied()?);
    superblock.is_one().then_some((at, superblock))
}

/// Returns these bytes with another superblock.
fn replaced(bytes: &[u8], at: usize, superblock: &Superblock) -> Vec<u8> {
    let mut other = bytes.to_vec();
    other[at..at + SIZE].copy_from_slice(&superblock.0);
    other
}

/// Returns the bytes to be written instead of these if they have the superblock of a volume in use, and it says that
/// the journal need not be replayed.
pub(crate) fn still_in_use(offset: u64, bytes: &[u8]) -> Option<Vec<u8>> {
    let (at, mut superblock) = found_in(offset, bytes)?;
    superblock.note_recovery(true).then(|| replaced(bytes, at, &superblock))
}

/// Returns the bytes to be written instead of these if they have the superblock of a volume whose journal is hidden.
pub(crate) fn with_journal(offset: u64, bytes: &[u8]) -> Option<Vec<u8>> {
    let (at, mut superblock) = found_in(offset, bytes)?;
    superblock.set(COMPATIBLE_AT, superblock.word(COMPATIBLE_AT) | HAS_JOURNAL);
    superblock.set(INCOMPATIBLE_AT, superblock.word(INCOMPATIBLE_AT) | NEEDS_RECOVERY);
    superblock.seal();
    Some(replaced(bytes, at, &superblock))
}

/// Shows a superblock among bytes that were read as that of a volume without a journal.
pub(crate) fn hide_journal(offset: u64, bytes: &mut [u8]) {
    let Some((at, mut superblock)) = found_in(offset, bytes) else { return };
    superblock.set(COMPATIBLE_AT, superblock.word(COMPATIBLE_AT) & !HAS_JOURNAL);
    superblock.set(INCOMPATIBLE_AT, superblock.word(INCOMPATIBLE_AT) & !NEEDS_RECOVERY);
    superblock.seal();
    bytes[at..at + SIZE].copy_from_slice(&superblock.0);
}

fn read(device: &impl Device) -> Result<Superblock, DeviceFailed> {
    let mut superblock = Superblock([0; SIZE]);
    device.read(AT, &mut superblock.0)?;
    Ok(superblock)
}

/// Whether a volume was not left as a whole: its journal is to be replayed, or files without names are to be ended.
pub(crate) fn is_to_be_mended(device: &impl Device) -> Result<bool, DeviceFailed> {
    let superblock = read(device)?;
    let has_files = superblock.word(LAST_NAMELESS_AT) != 0;
    Ok(has_files || superblock.word(INCOMPATIBLE_AT) & NEEDS_RECOVERY != 0)
}

/// Whether a volume has a journal.
pub(crate) fn has_journal(device: &impl Device) -> Result<bool, DeviceFailed> {
    Ok(read(device)?.word(COMPATIBLE_AT) & HAS_JOURNAL != 0)
}

/// Notes that the journal of a volume is to be replayed from now on.
pub(crate) fn mark_in_use(device: &impl Device) -> Result<(), DeviceFailed> {
    note(device, true)
}

/// Notes that the journal of a volume that is not mounted, which is empty, need not be replayed.
pub(crate) fn mark_as_whole(device: &impl Device) -> Result<(), DeviceFailed> {
    note(device, false)
}

fn note(device: &impl Device, is_needed: bool) -> Result<(), DeviceFailed> {
    let mut superblock = read(device)?;
    if superblock.note_recovery(is_needed) {
        device.write(AT, &superblock.0)?;
    }
    device.flush()
}

/// Returns the name of the lowest of these bits.
fn name_of(bits: u32, names: &[(u32, &'static str)]) -> &'static str {
    let lowest = bits & bits.wrapping_neg();
    names.iter().find(|(bit, _)| *bit == lowest).map_or("unknown", |(_, name)| name)
}

/// Looks at a device; an error if it has no volume that can be mounted for this access.
pub(crate) fn examine(device: &impl Device, writes: bool) -> Result<(), Refusal> {
    if device.bytes() < AT + SIZE as u64 {
        return Err(Refusal::NotExt4);
    }
    let superblock = read(device).map_err(|DeviceFailed| Refusal::Device)?;
    if superblock.half(MAGIC_AT) != MAGIC {
        return Err(Refusal::NotExt4);
    }
    let incompatible = superblock.word(INCOMPATIBLE_AT) & !KNOWN_INCOMPATIBLE;
    if incompatible != 0 {
        let name = name_of(incompatible, &INCOMPATIBLE);
        return Err(Refusal::Feature { name, forbids_writing_alone: false });
    }
    let for_writing = superblock.word(FOR_WRITING_AT) & !KNOWN_FOR_WRITING;
    if writes && for_writing != 0 {
        return Err(Refusal::Feature { name: name_of(for_writing, &FOR_WRITING), forbids_writing_alone: true });
    }
    let block_bits = superblock.word(24);
    if block_bits > 2 {
        return Err(Refusal::Size("its blocks are larger than 4096 bytes"));
    }
    // Directories and trees of extents in smaller blocks are not kept whole by `rsext4`.
    if block_bits < 2 && writes {
        return Err(Refusal::Size(
            "its blocks are smaller than 4096 bytes, with which it can be mounted read-only alone",
        ));
    }
    let (blocks_low, in_group) = (superblock.word(4), superblock.word(32));
    let is_64_bit = superblock.word(INCOMPATIBLE_AT) & 0x80 != 0;
    let blocks = u64::from(blocks_low) | if is_64_bit { u64::from(superblock.word(336)) << 32 } else { 0 };
    if blocks.checked_mul(1024 << block_bits).is_none_or(|bytes| bytes > device.bytes()) {
        return Err(Refusal::Size("it is larger than its device"));
    }
    if in_group == 0 || superblock.word(40) == 0 {
        return Err(Refusal::Damaged("an empty group"));
    }
    if blocks.div_ceil(u64::from(in_group)) > MOST_GROUPS {
        return Err(Refusal::Size("it has too many groups of blocks"));
    }
    Ok(())
}
