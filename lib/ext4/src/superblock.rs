//! The superblock, looked at before anything else: the features and sizes for which a volume is refused, and the
//! [`Layout`] that all other structures follow. And its note that the journal is to be replayed, which is on the disk
//! before the first transaction ([`mark_in_use`]) and until the journal is empty ([`mark_as_whole`]).

use core::fmt;

use crate::bytes::{half, set_word, word};
use crate::checksum::{START, crc32c};
use crate::device::{Device, DeviceFailed};

/// Offset and size of the superblock in bytes.
pub(crate) const AT: u64 = 1024;
pub(crate) const SIZE: usize = 1024;
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
        word(&self.0, at)
    }

    fn half(&self, at: usize) -> u16 {
        half(&self.0, at)
    }
}

/// Offsets in a superblock: its magic number, its features, and its checksum at its end.
const MAGIC_AT: usize = 56;
const COMPATIBLE_AT: usize = 92;
const INCOMPATIBLE_AT: usize = 96;
const FOR_WRITING_AT: usize = 100;
pub(crate) const CHECKSUM_AT: usize = 1020;
/// Offset of the first file of the list of those without names (`s_last_orphan`).
pub(crate) const LAST_NAMELESS_AT: usize = 232;
/// Offsets of the numbers of free blocks, in two halves, and of free inodes.
pub(crate) const FREE_BLOCKS_AT: (usize, usize) = (12, 344);
pub(crate) const FREE_INODES_AT: usize = 16;
/// Offsets of the time of the last change, and of the state.
pub(crate) const WRITTEN_AT: usize = 48;
pub(crate) const STATE_AT: usize = 58;
/// Bit of the state: the volume, which has no journal, was left as a whole.
pub(crate) const IS_WHOLE: u16 = 1;
/// Features, by their bits: files of more than 2 GiB.
pub(crate) const FOR_WRITING_FEATURES_AT: usize = FOR_WRITING_AT;
pub(crate) const LARGE_FILE: u32 = 0x2;
/// The feature of a journal, and the ones of a journal that is to be replayed and of checksums.
const HAS_JOURNAL: u32 = 0x4;
const NEEDS_RECOVERY: u32 = 0x4;
const HAS_CHECKSUMS: u32 = 0x400;

impl Superblock {
    fn set(&mut self, at: usize, word: u32) {
        set_word(&mut self.0, at, word);
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
            let checksum = crc32c(START, &self.0[..CHECKSUM_AT]);
            self.set(CHECKSUM_AT, checksum);
        }
    }
}

fn read(device: &impl Device) -> Result<Superblock, DeviceFailed> {
    let mut superblock = Superblock([0; SIZE]);
    device.read(AT, &mut superblock.0)?;
    Ok(superblock)
}

/// Whether the journal of a volume is to be replayed.
pub(crate) fn needs_replay(device: &impl Device) -> Result<bool, DeviceFailed> {
    Ok(read(device)?.word(INCOMPATIBLE_AT) & NEEDS_RECOVERY != 0)
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

/// Features that change the layout, by their bits.
const HASHED_DIRECTORIES: u32 = 0x20;
const TWO_BACKUPS: u32 = 0x200;
const TYPES_IN_NAMES: u32 = 0x2;
const EXTENTS: u32 = 0x40;
const WIDE: u32 = 0x80;
const OWN_SEED: u32 = 0x2000;
const FEW_BACKUPS: u32 = 0x1;
const HUGE_FILES: u32 = 0x8;
const CLUSTERS: u32 = 0x200;
const CHECKSUMS_OF_GROUPS: u32 = 0x10;
const MANY_DIRECTORIES: u32 = 0x20;

/// Sizes of descriptors of groups: the usual one, and the least of volumes with numbers of 64 bits.
const DESCRIPTOR: usize = 32;
pub(crate) const WIDE_DESCRIPTOR: usize = 64;
/// Size of the smallest inode, and where its number of groups' files begins in the first format.
pub(crate) const SMALL_INODE: usize = 128;
const FIRST_INODE: u32 = 11;

/// The numbers that all structures of a volume follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bytes of a block.
    pub(crate) block: usize,
    /// Bytes of an inode, and of a group's descriptor.
    pub(crate) inode: usize,
    pub(crate) descriptor: usize,
    /// Number of blocks, of inodes and of groups.
    pub(crate) blocks: u64,
    pub(crate) inodes: u32,
    pub(crate) groups: u32,
    /// Number of a group's blocks and inodes.
    pub(crate) group_blocks: u32,
    pub(crate) group_inodes: u32,
    /// The first block of the first group, and the first inode of a user's file.
    pub(crate) first_block: u64,
    pub(crate) first_inode: u32,
    /// Blocks behind the descriptors that are kept for more of them.
    reserved_descriptors: u32,
    /// Groups with a copy of the superblock, if only two of them have any.
    two_backups: Option<[u32; 2]>,
    has_few_backups: bool,
    /// Metadata has checksums; of groups' descriptors alone.
    pub(crate) has_checksums: bool,
    pub(crate) has_group_checksums: bool,
    /// The checksum with which all begin, and of the older ones.
    pub(crate) seed: u32,
    pub(crate) old_seed: u16,
    /// Directories may have an index; the function and the key of its hashes, of bytes with or without a sign.
    pub(crate) has_indexes: bool,
    pub(crate) hash: u8,
    pub(crate) hash_is_unsigned: bool,
    pub(crate) hash_key: [u32; 4],
    /// Names have the types of files.
    pub(crate) has_types: bool,
    /// New files have extents, and numbers of sectors may have 48 bits.
    pub(crate) has_extents: bool,
    pub(crate) has_huge_files: bool,
    /// A directory may have more directories than a count of names has numbers for.
    pub(crate) has_many_directories: bool,
    /// Inode of the journal, if there is one.
    pub(crate) journal: Option<u32>,
}

impl Layout {
    /// Reads the layout of a volume that was [examined](examine).
    pub(crate) fn read(device: &impl Device) -> Result<Layout, Refusal> {
        let superblock = read(device).map_err(|DeviceFailed| Refusal::Device)?;
        let block_bits = superblock.word(24).min(2);
        let block = 1024 << block_bits;
        let [compatible, incompatible, for_writing] =
            [COMPATIBLE_AT, INCOMPATIBLE_AT, FOR_WRITING_AT].map(|at| superblock.word(at));
        let is_wide = incompatible & WIDE != 0;
        let high = |at: usize| if is_wide { u64::from(superblock.word(at)) << 32 } else { 0 };
        let blocks = u64::from(superblock.word(4)) | high(336);
        let is_first_format = superblock.word(76) == 0;
        let (inode, first_inode) = match is_first_format {
            true => (SMALL_INODE, FIRST_INODE),
            false => (superblock.half(88).into(), superblock.word(84)),
        };
        let descriptor = if is_wide { superblock.half(254).into() } else { DESCRIPTOR };
        let uuid = &superblock.0[104..120];
        let seed = if incompatible & OWN_SEED != 0 { superblock.word(624) } else { crc32c(START, uuid) };
        let (group_blocks, first_block) = (superblock.word(32), u64::from(superblock.word(20)));
        let key = [236, 240, 244, 248].map(|at| superblock.word(at));
        // A volume without a key of its own has the first words of MD4.
        let hash_key = if key == [0; 4] { [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476] } else { key };
        if group_blocks == 0 || blocks <= first_block {
            return Err(Refusal::Damaged("an empty group"));
        }
        let groups = (blocks - first_block).div_ceil(group_blocks.into());
        let layout = Layout {
            block,
            inode,
            descriptor,
            blocks,
            inodes: superblock.word(0),
            groups: u32::try_from(groups).map_err(|_| Refusal::Size("it has too many groups of blocks"))?,
            group_blocks,
            group_inodes: superblock.word(40),
            first_block,
            first_inode,
            reserved_descriptors: superblock.half(206).into(),
            two_backups: (compatible & TWO_BACKUPS != 0).then(|| [588, 592].map(|at| superblock.word(at))),
            has_few_backups: for_writing & FEW_BACKUPS != 0,
            has_checksums: for_writing & HAS_CHECKSUMS != 0,
            has_group_checksums: for_writing & CHECKSUMS_OF_GROUPS != 0,
            seed,
            old_seed: crate::checksum::crc16(!0, uuid),
            has_indexes: compatible & HASHED_DIRECTORIES != 0,
            hash: superblock.0[252],
            hash_is_unsigned: superblock.word(352) & 2 != 0,
            hash_key,
            has_types: incompatible & TYPES_IN_NAMES != 0,
            has_extents: incompatible & EXTENTS != 0,
            has_huge_files: for_writing & HUGE_FILES != 0,
            has_many_directories: for_writing & MANY_DIRECTORIES != 0,
            journal: (compatible & HAS_JOURNAL != 0).then(|| superblock.word(224)),
        };
        layout.check(&superblock)?;
        Ok(layout)
    }

    /// Fails unless the numbers agree with each other.
    fn check(&self, superblock: &Superblock) -> Result<(), Refusal> {
        let bits = self.block * 8;
        // A bit of a bitmap is then one of several blocks: such a volume is only read.
        let for_writing = superblock.word(FOR_WRITING_AT);
        let is_one_of_groups = u64::from(self.groups) <= MOST_GROUPS
            && (self.group_blocks as usize <= bits || for_writing & CLUSTERS != 0)
            && (1..=bits).contains(&(self.group_inodes as usize))
            && u64::from(self.inodes) <= u64::from(self.groups) * u64::from(self.group_inodes);
        if !is_one_of_groups {
            return Err(Refusal::Damaged("the sizes of groups"));
        }
        let is_size = |size: usize, least: usize| size.is_power_of_two() && (least..=self.block).contains(&size);
        if !is_size(self.inode, SMALL_INODE) || !is_size(self.descriptor, DESCRIPTOR) {
            return Err(Refusal::Damaged("the sizes of inodes and descriptors"));
        }
        if superblock.word(INCOMPATIBLE_AT) & WIDE != 0 && self.descriptor < WIDE_DESCRIPTOR {
            return Err(Refusal::Damaged("the size of descriptors"));
        }
        let first_block = u64::from(self.block == 1024);
        if self.first_block != first_block || self.first_inode < FIRST_INODE || self.first_inode > self.group_inodes {
            return Err(Refusal::Damaged("the first block or inode"));
        }
        // One that is to be replayed may have it in the journal.
        let is_whole = superblock.word(INCOMPATIBLE_AT) & NEEDS_RECOVERY == 0;
        if is_whole && self.has_checksums && superblock.word(CHECKSUM_AT) != crc32c(START, &superblock.0[..CHECKSUM_AT])
        {
            return Err(Refusal::Damaged("the checksum of the superblock"));
        }
        if self.journal == Some(0) {
            return Err(Refusal::Feature { name: "journal_dev", forbids_writing_alone: false });
        }
        Ok(())
    }

    /// Returns the block of the superblock, and its offset there.
    pub(crate) fn superblock_at(&self) -> (u64, usize) {
        (AT / self.block as u64, AT as usize % self.block)
    }

    /// Returns the block of a group's descriptor, and its offset there.
    pub(crate) fn descriptor_at(&self, group: u32) -> (u64, usize) {
        let in_block = self.block / self.descriptor;
        (self.first_block + 1 + u64::from(group) / in_block as u64, group as usize % in_block * self.descriptor)
    }

    /// Number of blocks with descriptors.
    pub(crate) fn descriptor_blocks(&self) -> u64 {
        u64::from(self.groups).div_ceil((self.block / self.descriptor) as u64)
    }

    /// Number of blocks of a group's inodes.
    pub(crate) fn inode_blocks(&self) -> u64 {
        (u64::from(self.group_inodes) * self.inode as u64).div_ceil(self.block as u64)
    }

    /// Returns the first block of a group.
    pub(crate) fn start_of(&self, group: u32) -> u64 {
        self.first_block + u64::from(group) * u64::from(self.group_blocks)
    }

    /// Returns the number of a group's blocks: the last group may have less.
    pub(crate) fn blocks_of(&self, group: u32) -> u32 {
        (self.blocks - self.start_of(group)).min(self.group_blocks.into()) as u32
    }

    /// Returns the group of a block of the volume, and its number there.
    pub(crate) fn group_of(&self, block: u64) -> (u32, u32) {
        let within = block.saturating_sub(self.first_block);
        ((within / u64::from(self.group_blocks)) as u32, (within % u64::from(self.group_blocks)) as u32)
    }

    /// Returns the number of blocks at the start of a group with copies of the superblock and the descriptors.
    pub(crate) fn copies_in(&self, group: u32) -> u64 {
        let is_power_of = |base: u32| {
            let mut power = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        };
        let has_copy = match self.two_backups {
            Some(groups) => group == 0 || groups.contains(&group),
            None => !self.has_few_backups || group < 2 || [3, 5, 7].into_iter().any(is_power_of),
        };
        if has_copy { 1 + self.descriptor_blocks() + u64::from(self.reserved_descriptors) } else { 0 }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use core::cell::RefCell;

    use alloc::rc::Rc;
    use alloc::vec::Vec;

    use super::*;

    /// A device in memory.
    #[derive(Clone)]
    pub(crate) struct MemoryDevice(pub(crate) Rc<RefCell<Vec<u8>>>);

    impl Device for MemoryDevice {
        fn bytes(&self) -> u64 {
            self.0.borrow().len() as u64
        }

        fn is_read_only(&self) -> bool {
            false
        }

        fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceFailed> {
            let end = offset as usize + bytes.len();
            bytes.copy_from_slice(self.0.borrow().get(offset as usize..end).ok_or(DeviceFailed)?);
            Ok(())
        }

        fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFailed> {
            let end = offset as usize + bytes.len();
            self.0.borrow_mut().get_mut(offset as usize..end).ok_or(DeviceFailed)?.copy_from_slice(bytes);
            Ok(())
        }

        fn flush(&self) -> Result<(), DeviceFailed> {
            Ok(())
        }
    }

    /// Returns the superblock of a volume of one group, and a device that is large enough for it.
    pub(crate) fn small_volume() -> (Vec<u8>, MemoryDevice) {
        let mut superblock = alloc::vec![0; SIZE];
        let words = [(0, 64), (4, 1024), (20, 1), (32, 8192), (40, 64), (76, 1), (84, 11), (96, 0x42), (100, 0x1)];
        for (at, value) in words {
            set_word(&mut superblock, at, value);
        }
        superblock[MAGIC_AT..MAGIC_AT + 2].copy_from_slice(&MAGIC.to_le_bytes());
        superblock[88..90].copy_from_slice(&256_u16.to_le_bytes());
        (superblock, MemoryDevice(Rc::new(RefCell::new(alloc::vec![0; 1 << 20]))))
    }

    /// Returns the layout of a small volume with blocks of 1 KiB.
    pub(crate) fn small_layout(has_checksums: bool) -> Layout {
        let (superblock, device) = small_volume();
        device.write(AT, &superblock).unwrap();
        Layout { has_checksums, ..Layout::read(&device).unwrap() }
    }

    /// Superblocks with any bytes are refused, or have a layout whose functions do not fail.
    #[test]
    fn damaged_superblocks_are_refused_or_have_a_layout() {
        let seeds: [&[u8]; 3] = [&[], &[24, 0, 1, 0, 2], &[254, 0, 64, 0, 96, 0, 0x80]];
        property::fuzz("superblock", &seeds, |input| {
            let (mut superblock, device) = small_volume();
            let mut numbers = property::Numbers::new(input);
            while !numbers.is_empty() {
                let at = numbers.number() as usize % SIZE;
                superblock[at] = numbers.byte();
            }
            device.write(AT, &superblock).unwrap();
            if examine(&device, true).is_err() {
                return;
            }
            let Ok(layout) = Layout::read(&device) else { return };
            for group in [0, layout.groups / 2, layout.groups - 1] {
                let start = layout.start_of(group);
                assert!(start < layout.blocks && layout.blocks_of(group) > 0);
                assert_eq!(layout.group_of(start), (group, 0));
                let (_, at) = layout.descriptor_at(group);
                assert!(at + layout.descriptor <= layout.block);
                let _ = (layout.copies_in(group), layout.inode_blocks());
            }
        });
    }
}
