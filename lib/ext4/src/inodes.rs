//! Inodes: a copy of the fields of one, which an operation changes and [stores](Filesystem::store).

use crate::Error;
use crate::blocks::{BlockKind, BlockOwner};
use crate::bytes::{half, set_half, set_word, word};
use crate::checksum::crc32c;
use crate::device::Device;
use crate::filesystem::{Filesystem, ROOT};
use crate::superblock::{Layout, SMALL_INODE};
use crate::volume::{Attributes, Stamp, kind};

/// Bytes of an inode that have fields; attributes may follow.
const FIELDS: usize = 160;
/// Bytes of the fields that new inodes have behind the first ones.
const EXTRA: u16 = 32;

/// Offsets of fields.
const MODE_AT: usize = 0;
const USER_AT: (usize, usize) = (2, 120);
const GROUP_AT: (usize, usize) = (24, 122);
const SIZE_AT: (usize, usize) = (4, 108);
const ENDED_AT: usize = 20;
const LINKS_AT: usize = 26;
const SECTORS_AT: (usize, usize) = (28, 116);
const FLAGS_AT: usize = 32;
const GENERATION_AT: usize = 100;
const ATTRIBUTES_AT: (usize, usize) = (104, 118);
const CHECKSUM_AT: (usize, usize) = (124, 130);
pub(crate) const EXTRA_AT: usize = 128;

/// Offset and length of the numbers of blocks, or the root of the tree of extents.
const MAP_AT: usize = 40;
pub(crate) const MAP: usize = 60;

/// Times, as offsets of their seconds, and of their nanoseconds with more bits of the seconds.
pub(crate) const ACCESSED: (usize, usize) = (8, 140);
pub(crate) const CHANGED: (usize, usize) = (12, 132);
pub(crate) const MODIFIED: (usize, usize) = (16, 136);
const CREATED: (usize, usize) = (144, 148);

/// Flags: a directory has an index, numbers of sectors are those of blocks, the file has extents.
pub(crate) const HAS_INDEX: u32 = 0x1000;
const COUNTS_BLOCKS: u32 = 0x4_0000;
pub(crate) const HAS_EXTENTS: u32 = 0x8_0000;
/// Flags that new files have of their directories: synchronous, not dumped, no times of access, and of directories
/// alone that their names are synchronous.
const INHERITED: u32 = 0x8 | 0x40 | 0x80;
const INHERITED_BY_DIRECTORIES: u32 = 0x1_0000;

/// Number of names that a file can have, and of the directories in one.
pub(crate) const MOST_LINKS: u16 = 65_000;

/// A copy of an inode's fields.
#[derive(Clone, Copy)]
pub(crate) struct Inode {
    pub(crate) number: u32,
    block: u64,
    at: usize,
    fields: [u8; FIELDS],
}

/// Returns the checksum of an inode.
fn checksum(layout: &Layout, number: u32, bytes: &[u8]) -> u32 {
    let generation = &bytes[GENERATION_AT..GENERATION_AT + 4];
    let mut sum = crc32c(crc32c(layout.seed, &number.to_le_bytes()), generation);
    sum = crc32c(crc32c(sum, &bytes[..CHECKSUM_AT.0]), &[0; 2]);
    if !has_high_checksum(bytes) {
        return crc32c(sum, &bytes[CHECKSUM_AT.0 + 2..]);
    }
    sum = crc32c(sum, &bytes[CHECKSUM_AT.0 + 2..CHECKSUM_AT.1]);
    crc32c(crc32c(sum, &[0; 2]), &bytes[CHECKSUM_AT.1 + 2..])
}

fn has_high_checksum(bytes: &[u8]) -> bool {
    bytes.len() > SMALL_INODE && half(bytes, EXTRA_AT) >= 4
}

/// Gives an inode its checksum.
pub(crate) fn seal(layout: &Layout, number: u32, bytes: &mut [u8]) {
    let sum = checksum(layout, number, bytes);
    set_half(bytes, CHECKSUM_AT.0, sum as u16);
    if has_high_checksum(bytes) {
        set_half(bytes, CHECKSUM_AT.1, (sum >> 16) as u16);
    }
}

/// Whether an inode has its checksum.
fn is_sealed(layout: &Layout, number: u32, bytes: &[u8]) -> bool {
    let sum = checksum(layout, number, bytes);
    half(bytes, CHECKSUM_AT.0) == sum as u16
        && (!has_high_checksum(bytes) || half(bytes, CHECKSUM_AT.1) == (sum >> 16) as u16)
}

impl Inode {
    fn pair(&self, at: (usize, usize)) -> u32 {
        u32::from(half(&self.fields, at.0)) | u32::from(half(&self.fields, at.1)) << 16
    }

    fn set_pair(&mut self, at: (usize, usize), value: u32) {
        set_half(&mut self.fields, at.0, value as u16);
        set_half(&mut self.fields, at.1, (value >> 16) as u16);
    }

    pub(crate) fn mode(&self) -> u16 {
        half(&self.fields, MODE_AT)
    }

    pub(crate) fn set_mode(&mut self, mode: u16) {
        set_half(&mut self.fields, MODE_AT, mode);
    }

    /// Whether it is a file of this [`kind`].
    pub(crate) fn is(&self, kind: u16) -> bool {
        self.mode() & kind::MASK == kind
    }

    pub(crate) fn links(&self) -> u16 {
        half(&self.fields, LINKS_AT)
    }

    pub(crate) fn set_links(&mut self, links: u16) {
        set_half(&mut self.fields, LINKS_AT, links);
    }

    pub(crate) fn owner_of_file(&self) -> (u32, u32) {
        (self.pair(USER_AT), self.pair(GROUP_AT))
    }

    pub(crate) fn set_owner(&mut self, (user, group): (u32, u32)) {
        self.set_pair(USER_AT, user);
        self.set_pair(GROUP_AT, group);
    }

    pub(crate) fn flags(&self) -> u32 {
        word(&self.fields, FLAGS_AT)
    }

    pub(crate) fn set_flags(&mut self, flags: u32) {
        set_word(&mut self.fields, FLAGS_AT, flags);
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags() & flag != 0
    }

    pub(crate) fn size(&self) -> u64 {
        // Of others these bits have another meaning.
        let high = if self.is(kind::REGULAR) { word(&self.fields, SIZE_AT.1) } else { 0 };
        u64::from(word(&self.fields, SIZE_AT.0)) | u64::from(high) << 32
    }

    pub(crate) fn set_size(&mut self, size: u64) {
        set_word(&mut self.fields, SIZE_AT.0, size as u32);
        if self.is(kind::REGULAR) {
            set_word(&mut self.fields, SIZE_AT.1, (size >> 32) as u32);
        }
    }

    /// Returns the number of sectors of 512 bytes that it takes, of a volume with blocks of so many sectors.
    pub(crate) fn sectors(&self, in_block: u64) -> u64 {
        let count = u64::from(word(&self.fields, SECTORS_AT.0)) | u64::from(half(&self.fields, SECTORS_AT.1)) << 32;
        if self.has(COUNTS_BLOCKS) { count * in_block } else { count }
    }

    /// Adds blocks to those that it takes, or takes some away.
    pub(crate) fn add_blocks(&mut self, layout: &Layout, blocks: i64) -> Result<(), Error> {
        let in_block = layout.block as u64 / 512;
        let sectors = self.sectors(in_block).checked_add_signed(blocks * in_block as i64);
        let sectors = sectors.ok_or(Error::Damaged("a number of sectors"))?;
        let count = if self.has(COUNTS_BLOCKS) { sectors / in_block } else { sectors };
        let bits = if layout.has_huge_files { 48 } else { 32 };
        if count >> bits != 0 {
            return Err(Error::TooLarge);
        }
        set_word(&mut self.fields, SECTORS_AT.0, count as u32);
        set_half(&mut self.fields, SECTORS_AT.1, (count >> 32) as u16);
        Ok(())
    }

    /// Returns the block of extended attributes; 0 if there is none.
    pub(crate) fn attributes_block(&self) -> u64 {
        u64::from(word(&self.fields, ATTRIBUTES_AT.0)) | u64::from(half(&self.fields, ATTRIBUTES_AT.1)) << 32
    }

    pub(crate) fn set_attributes_block(&mut self, block: u64) {
        set_word(&mut self.fields, ATTRIBUTES_AT.0, block as u32);
        set_half(&mut self.fields, ATTRIBUTES_AT.1, (block >> 32) as u16);
    }

    /// Returns when it was ended, or the next file of the list of those without names.
    pub(crate) fn ended(&self) -> u32 {
        word(&self.fields, ENDED_AT)
    }

    pub(crate) fn set_ended(&mut self, value: u32) {
        set_word(&mut self.fields, ENDED_AT, value);
    }

    /// Returns the numbers of blocks, the root of the tree of extents, or the target of a short symbolic link.
    pub(crate) fn map(&self) -> &[u8; MAP] {
        self.fields[MAP_AT..].first_chunk().expect("the fields are longer")
    }

    pub(crate) fn map_mut(&mut self) -> &mut [u8; MAP] {
        self.fields[MAP_AT..].first_chunk_mut().expect("the fields are longer")
    }

    /// Returns the owner of its blocks.
    pub(crate) fn block_owner(&self, layout: &Layout) -> BlockOwner {
        if !layout.has_checksums {
            return BlockOwner { inode: self.number, seed: 0 };
        }
        let generation = &self.fields[GENERATION_AT..GENERATION_AT + 4];
        let seed = crc32c(crc32c(layout.seed, &self.number.to_le_bytes()), generation);
        BlockOwner { inode: self.number, seed }
    }

    /// Whether the bytes of an inode up to this offset are fields of its own.
    fn has_fields_up_to(&self, layout: &Layout, end: usize) -> bool {
        layout.inode > SMALL_INODE && SMALL_INODE + usize::from(half(&self.fields, EXTRA_AT)) >= end
    }

    /// Returns the offset of the attributes in an inode that has room for any.
    pub(crate) fn attributes_at(&self) -> Option<usize> {
        let at = SMALL_INODE + usize::from(half(&self.fields, EXTRA_AT));
        at.is_multiple_of(4).then_some(at)
    }

    pub(crate) fn set_time(&mut self, layout: &Layout, at: (usize, usize), stamp: Stamp) {
        set_word(&mut self.fields, at.0, stamp.seconds as u32);
        if self.has_fields_up_to(layout, at.1 + 4) {
            // Two bits more of the seconds, which count from the number that the first 32 bits are with their sign.
            let more = (stamp.seconds - i64::from(stamp.seconds as i32)) >> 32 & 3;
            set_word(&mut self.fields, at.1, stamp.nanoseconds << 2 | more as u32);
        }
    }

    fn time(&self, layout: &Layout, at: (usize, usize)) -> Stamp {
        let seconds = i64::from(word(&self.fields, at.0) as i32);
        if !self.has_fields_up_to(layout, at.1 + 4) {
            return Stamp { seconds, nanoseconds: 0 };
        }
        let more = word(&self.fields, at.1);
        Stamp { seconds: seconds + (i64::from(more & 3) << 32), nanoseconds: (more >> 2).min(999_999_999) }
    }

    /// Returns major and minor number of a device.
    fn device(&self) -> (u32, u32) {
        if !matches!(self.mode() & kind::MASK, 0o020_000 | 0o060_000) {
            return (0, 0);
        }
        let (old, new) = (word(self.map(), 0), word(self.map(), 4));
        match old {
            0 => (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00),
            _ => (old >> 8 & 0xff, old & 0xff),
        }
    }

    pub(crate) fn attributes(&self, layout: &Layout) -> Attributes {
        Attributes {
            inode: self.number,
            mode: self.mode(),
            owner: self.owner_of_file(),
            links: self.links(),
            size: self.size(),
            sectors: self.sectors(layout.block as u64 / 512),
            times: [ACCESSED, MODIFIED, CHANGED].map(|at| self.time(layout, at)),
            device: self.device(),
        }
    }

    /// Whether the target of a symbolic link is in the inode itself.
    pub(crate) fn has_short_target(&self) -> bool {
        self.size() < MAP as u64 && !self.has(HAS_EXTENTS)
    }

    /// Returns the place of its bytes: the block, its kind and the offset there.
    pub(crate) fn place(&self, layout: &Layout) -> (u64, BlockKind, usize) {
        let first = self.number - (self.at / layout.inode) as u32;
        (self.block, BlockKind::Inodes { first }, self.at)
    }
}

impl<D: Device> Filesystem<D> {
    /// Returns the block of an inode, and its offset there.
    fn place_of(&self, number: u32) -> Result<(u64, usize), Error> {
        let layout = &self.blocks.layout;
        if number == 0 || number > layout.inodes {
            return Err(Error::NotFound);
        }
        let (group, index) = ((number - 1) / layout.group_inodes, (number - 1) % layout.group_inodes);
        let table = self.groups.get(group as usize).ok_or(Error::NotFound)?.inode_table;
        let at = index as usize * layout.inode;
        Ok((table + (at / layout.block) as u64, at % layout.block))
    }

    /// Returns an inode, whatever it is.
    pub(crate) fn raw_inode(&mut self, number: u32) -> Result<Inode, Error> {
        let (block, at) = self.place_of(number)?;
        let layout = self.blocks.layout;
        let item = at / layout.inode;
        let kind = BlockKind::Inodes { first: number - item as u32 };
        let bytes = &self.blocks.block(block, kind)?[at..at + layout.inode];
        let mut inode = Inode { number, block, at, fields: [0; FIELDS] };
        let length = FIELDS.min(layout.inode);
        inode.fields[..length].copy_from_slice(&bytes[..length]);
        if inode.mode() == 0 && inode.links() == 0 {
            return Err(Error::NotFound);
        }
        if layout.has_checksums && !self.blocks.is_verified(block, item) {
            let bytes = &self.blocks.block(block, kind)?[at..at + layout.inode];
            if !is_sealed(&layout, number, bytes) {
                self.blocks.is_not_verified(block, item);
                return Err(Error::Damaged("the checksum of an inode"));
            }
        }
        if layout.inode > SMALL_INODE && SMALL_INODE + usize::from(half(&inode.fields, EXTRA_AT)) > layout.inode {
            return Err(Error::Damaged("the size of an inode's fields"));
        }
        Ok(inode)
    }

    /// Returns the inode of a file that users may see.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none with this number.
    pub(crate) fn inode(&mut self, number: u32) -> Result<Inode, Error> {
        if number != ROOT && number < self.blocks.layout.first_inode {
            return Err(Error::NotFound);
        }
        let inode = self.raw_inode(number)?;
        if inode.links() == 0 && !self.is_nameless(number) {
            return Err(Error::NotFound);
        }
        Ok(inode)
    }

    /// Returns the inode of a directory.
    ///
    /// # Errors
    /// [`Error::NotADirectory`].
    pub(crate) fn directory(&mut self, number: u32) -> Result<Inode, Error> {
        let inode = self.inode(number)?;
        if inode.is(kind::DIRECTORY) { Ok(inode) } else { Err(Error::NotADirectory) }
    }

    /// Stores the fields of an inode.
    pub(crate) fn store(&mut self, inode: &Inode) -> Result<(), Error> {
        let layout = self.blocks.layout;
        // Attributes may begin behind the fields that it has.
        let length = match layout.inode {
            SMALL_INODE => SMALL_INODE,
            _ => FIELDS.min(inode.attributes_at().unwrap_or(FIELDS)),
        };
        let (block, kind, at) = inode.place(&layout);
        self.blocks.change(block, kind, at..at + length)?.copy_from_slice(&inode.fields[..length]);
        Ok(())
    }

    /// Makes the inode of a new file, with no names and of no size; what was there before is gone.
    pub(crate) fn new_inode(
        &mut self,
        parent: &Inode,
        mode: u16,
        owner: (u32, u32),
        now: Stamp,
    ) -> Result<Inode, Error> {
        let is_directory = mode & kind::MASK == kind::DIRECTORY;
        let number = self.allocate_inode(parent, is_directory)?;
        let layout = self.blocks.layout;
        let (block, at) = self.place_of(number)?;
        let first = number - (at / layout.inode) as u32;
        let kind = BlockKind::Inodes { first };
        // A block without another file has nothing that is to be read.
        if self.blocks.held(block).is_none()
            && self.is_alone(number, first..first + (layout.block / layout.inode) as u32)?
        {
            self.blocks.make_without_items(block, kind)?;
        }
        self.blocks.change(block, kind, at..at + layout.inode)?.fill(0);
        let mut inode = Inode { number, block, at, fields: [0; FIELDS] };
        inode.set_mode(mode);
        inode.set_owner(owner);
        let inherited = if is_directory { INHERITED | INHERITED_BY_DIRECTORIES } else { INHERITED };
        inode.set_flags(parent.flags() & inherited);
        if layout.inode > SMALL_INODE {
            set_half(&mut inode.fields, EXTRA_AT, EXTRA.min((layout.inode - SMALL_INODE) as u16));
        }
        // A number that tells it from the file that had the inode before.
        self.generation = self.generation.wrapping_mul(0x9e37_79b1).wrapping_add(now.nanoseconds ^ now.seconds as u32);
        set_word(&mut inode.fields, GENERATION_AT, self.generation);
        for at in [ACCESSED, CHANGED, MODIFIED] {
            inode.set_time(&layout, at, now);
        }
        if inode.has_fields_up_to(&layout, CREATED.1 + 4) {
            inode.set_time(&layout, CREATED, now);
        }
        Ok(inode)
    }
}
