//! The structures of a mounted volume: its groups, and what is known of the volume as a whole.

use alloc::vec::Vec;
use core::ops::Range;

use crate::Error;
use crate::blocks::{BlockKind, Blocks};
use crate::bytes::{half, set_word, word};
use crate::device::Device;
use crate::superblock::{FREE_BLOCKS_AT, FREE_INODES_AT, LAST_NAMELESS_AT, Layout};

/// Inode of the root directory.
pub(crate) const ROOT: u32 = 2;

/// The places of a group's structures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) block_bitmap: u64,
    pub(crate) inode_bitmap: u64,
    pub(crate) inode_table: u64,
    /// The number in the group from which on blocks are looked for.
    pub(crate) hint: u32,
}

/// A mounted volume, which operations change. An operation that fails is [taken back](Blocks::take_back).
pub(crate) struct Filesystem<D> {
    pub(crate) blocks: Blocks<D>,
    pub(crate) groups: Vec<Group>,
    /// Blocks that are no file's, in their order: copies of the superblock, bitmaps, tables and the journal.
    zones: Vec<Range<u64>>,
    /// Files without names, the first one of their list last.
    pub(crate) nameless: Vec<u32>,
    /// The generation of the inode that was made last.
    pub(crate) generation: u32,
    /// Number of the root's directories that were made: the next one is looked for from another group on.
    pub(crate) turn: u32,
    /// The device has older blocks than the volume, whose journal was replayed in memory.
    pub(crate) is_covered: bool,
    /// The device has not taken bytes of a file.
    pub(crate) has_failed: bool,
}

impl<D: Device> Filesystem<D> {
    /// Reads the descriptors of all groups.
    pub(crate) fn open(blocks: Blocks<D>) -> Result<Filesystem<D>, Error> {
        let mut filesystem = Filesystem {
            blocks,
            groups: Vec::new(),
            zones: Vec::new(),
            nameless: Vec::new(),
            generation: 1,
            turn: 0,
            is_covered: false,
            has_failed: false,
        };
        let layout = filesystem.blocks.layout;
        filesystem.groups.try_reserve_exact(layout.groups as usize).map_err(|_| Error::OutOfMemory)?;
        for group in 0..layout.groups {
            let (block, at) = layout.descriptor_at(group);
            if at == 0 {
                filesystem.blocks.device().pause();
            }
            let bytes = &filesystem.blocks.block(block, BlockKind::Descriptors)?[at..at + layout.descriptor];
            let is_wide = layout.descriptor > 32;
            let place = |low: usize| {
                let high = if is_wide { u64::from(word(bytes, low + 32)) << 32 } else { 0 };
                u64::from(word(bytes, low)) | high
            };
            let [block_bitmap, inode_bitmap, inode_table] = [0, 4, 8].map(place);
            let copies = layout.copies_in(group);
            let start = layout.start_of(group);
            let range_of = |start: u64, count: u64| start..start.saturating_add(count);
            let table = range_of(inode_table, layout.inode_blocks());
            let ranges = [range_of(block_bitmap, 1), range_of(inode_bitmap, 1), table];
            let is_inside = |range: &Range<u64>| range.start > layout.first_block && range.end <= layout.blocks;
            if !ranges.iter().all(is_inside) {
                return Err(Error::Damaged("the place of a group's structures"));
            }
            filesystem.groups.push(Group { block_bitmap, inode_bitmap, inode_table, hint: 0 });
            for range in ranges {
                filesystem.add_zone(range)?;
            }
            if copies > 0 {
                filesystem.add_zone(start..(start + copies).min(layout.blocks))?;
            }
        }
        filesystem.sort_zones();
        Ok(filesystem)
    }

    /// Adds blocks that are no file's.
    fn add_zone(&mut self, range: Range<u64>) -> Result<(), Error> {
        // Structures of neighbouring groups lie together.
        if let Some(last) = self.zones.iter_mut().rev().take(4).find(|last| last.end == range.start) {
            last.end = range.end;
            return Ok(());
        }
        self.zones.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.zones.push(range);
        Ok(())
    }

    fn sort_zones(&mut self) {
        self.zones.sort_unstable_by_key(|zone| zone.start);
        self.zones.dedup_by(|next, before| {
            let is_one = next.start <= before.end;
            if is_one {
                before.end = before.end.max(next.end);
            }
            is_one
        });
    }

    /// Notes the blocks of the journal.
    pub(crate) fn add_zones(&mut self, ranges: impl Iterator<Item = Range<u64>>) -> Result<(), Error> {
        for range in ranges {
            self.add_zone(range)?;
        }
        self.sort_zones();
        Ok(())
    }

    /// Returns the zones of a range of blocks.
    pub(crate) fn zones_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.zones.partition_point(|zone| zone.end <= range.start);
        self.zones[first..].iter().take_while(move |zone| zone.start < range.end).cloned()
    }

    /// Fails unless these blocks may be a file's.
    pub(crate) fn require_files(&self, range: Range<u64>) -> Result<(), Error> {
        let layout = &self.blocks.layout;
        let is_inside = range.start > layout.first_block && range.end <= layout.blocks && range.start < range.end;
        if is_inside && self.zones_in(range).next().is_none() {
            return Ok(());
        }
        Err(Error::Damaged("the number of a file's block"))
    }

    /// Returns the superblock.
    pub(crate) fn superblock(&mut self) -> Result<&[u8], Error> {
        let (block, at) = self.blocks.layout.superblock_at();
        Ok(&self.blocks.block(block, BlockKind::Superblock)?[at..])
    }

    /// Returns a number of the superblock, to be changed.
    pub(crate) fn superblock_part(&mut self, part: Range<usize>) -> Result<&mut [u8], Error> {
        let (block, at) = self.blocks.layout.superblock_at();
        self.blocks.change(block, BlockKind::Superblock, at + part.start..at + part.end)
    }

    /// Returns the numbers of free blocks and inodes.
    pub(crate) fn free(&self) -> Option<(u64, u32)> {
        let (block, at) = self.blocks.layout.superblock_at();
        let superblock = &self.blocks.held(block)?[at..];
        Some((free_blocks(&self.blocks.layout, superblock), word(superblock, FREE_INODES_AT)))
    }

    /// Adds to the number of the volume's free blocks.
    pub(crate) fn add_free_blocks(&mut self, count: i64) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let free = free_blocks(&layout, self.superblock()?);
        let free = free.checked_add_signed(count).filter(|free| *free <= layout.blocks);
        let free = free.ok_or(Error::Damaged("the number of free blocks"))?;
        let (low, high) = FREE_BLOCKS_AT;
        set_word(self.superblock_part(low..low + 4)?, 0, free as u32);
        if layout.descriptor > 32 {
            set_word(self.superblock_part(high..high + 4)?, 0, (free >> 32) as u32);
        }
        Ok(())
    }

    /// Adds to the number of the volume's free inodes.
    pub(crate) fn add_free_inodes(&mut self, count: i32) -> Result<(), Error> {
        let free = word(self.superblock()?, FREE_INODES_AT).checked_add_signed(count);
        let free = free.ok_or(Error::Damaged("the number of free inodes"))?;
        set_word(self.superblock_part(FREE_INODES_AT..FREE_INODES_AT + 4)?, 0, free);
        Ok(())
    }

    /// Returns the descriptor of a group.
    pub(crate) fn descriptor(&mut self, group: u32) -> Result<Descriptor<'_>, Error> {
        let layout = self.blocks.layout;
        let (block, at) = layout.descriptor_at(group);
        let bytes = &self.blocks.block(block, BlockKind::Descriptors)?[at..at + layout.descriptor];
        Ok(Descriptor(bytes))
    }

    /// Changes a count of a group.
    pub(crate) fn set_count(&mut self, group: u32, count: GroupCount, value: u32) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let (block, at) = layout.descriptor_at(group);
        let parts = [(count as usize, value), (count as usize + 32, value >> 16)];
        for (within, value) in parts.into_iter().take(1 + usize::from(layout.descriptor > 32)) {
            let place = at + within..at + within + 2;
            let bytes = self.blocks.change(block, BlockKind::Descriptors, place)?;
            bytes.copy_from_slice(&(value as u16).to_le_bytes());
        }
        Ok(())
    }

    /// Takes flags from a group.
    pub(crate) fn clear_flags(&mut self, group: u32, flags: u16) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let (block, at) = layout.descriptor_at(group);
        let rest = self.descriptor(group)?.flags() & !flags;
        let bytes = self.blocks.change(block, BlockKind::Descriptors, at + FLAGS_AT..at + FLAGS_AT + 2)?;
        bytes.copy_from_slice(&rest.to_le_bytes());
        Ok(())
    }

    /// Puts a file at the start of the list of those without names.
    pub(crate) fn add_nameless(&mut self, inode: &mut crate::inodes::Inode) -> Result<(), Error> {
        self.nameless.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        inode.set_ended(self.nameless.last().copied().unwrap_or(0));
        set_word(self.superblock_part(LAST_NAMELESS_AT..LAST_NAMELESS_AT + 4)?, 0, inode.number);
        Ok(())
    }

    /// Whether a file is in that list. Most often it is one of the first.
    pub(crate) fn is_nameless(&self, number: u32) -> bool {
        self.nameless.iter().rev().any(|other| *other == number)
    }

    /// Notes that a file is not in that list any more, when nothing of its end can fail.
    pub(crate) fn forget_nameless(&mut self, number: u32) {
        if let Some(place) = self.nameless.iter().rposition(|other| *other == number) {
            self.nameless.remove(place);
        }
    }

    /// Takes a file from that list, whose inode is stored by the caller.
    pub(crate) fn remove_nameless(&mut self, number: u32) -> Result<(), Error> {
        let place = self.nameless.iter().rposition(|other| *other == number);
        let Some(place) = place else { return Ok(()) };
        let next = if place == 0 { 0 } else { self.nameless[place - 1] };
        match self.nameless.get(place + 1).copied() {
            None => set_word(self.superblock_part(LAST_NAMELESS_AT..LAST_NAMELESS_AT + 4)?, 0, next),
            Some(before) => {
                let mut before = self.raw_inode(before)?;
                before.set_ended(next);
                self.store(&before)?;
            }
        }
        Ok(())
    }
}

fn free_blocks(layout: &Layout, superblock: &[u8]) -> u64 {
    let high = if layout.descriptor > 32 { u64::from(word(superblock, FREE_BLOCKS_AT.1)) << 32 } else { 0 };
    u64::from(word(superblock, FREE_BLOCKS_AT.0)) | high
}

/// Offset of a group's flags.
const FLAGS_AT: usize = 18;
/// Flags of a group: its bitmaps were never written.
pub(crate) const INODES_UNUSED: u16 = 1;
pub(crate) const BLOCKS_UNUSED: u16 = 2;

/// The counts of a group, as offsets of their lower halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupCount {
    FreeBlocks = 12,
    FreeInodes = 14,
    Directories = 16,
    NeverUsedInodes = 28,
}

/// The descriptor of a group.
pub(crate) struct Descriptor<'a>(&'a [u8]);

impl Descriptor<'_> {
    pub(crate) fn flags(&self) -> u16 {
        half(self.0, FLAGS_AT)
    }

    pub(crate) fn count(&self, count: GroupCount) -> u32 {
        let high = if self.0.len() > 32 { u32::from(half(self.0, count as usize + 32)) << 16 } else { 0 };
        u32::from(half(self.0, count as usize)) | high
    }
}
