//! Allocation of blocks and inodes from the bitmaps of groups.

use core::ops::Range;

use crate::Error;
use crate::blocks::BlockKind;
use crate::bytes::word;
use crate::device::Device;
use crate::filesystem::{BLOCKS_UNUSED, Filesystem, GroupCount, INODES_UNUSED, ROOT};
use crate::inodes::Inode;
use crate::superblock::FREE_INODES_AT;

/// Number of blocks that are worth a search for a better place.
const WORTH_A_SEARCH: u32 = 32;
/// Number of groups in which a better place is looked for.
const MOST_SEARCHED: u32 = 8;
/// Number of free pieces of a group that are looked at for a better place, and between two pauses.
const MOST_PIECES: u32 = 256;
const PIECES_AT_ONCE: u32 = 32;
/// Number of groups that are looked at between two pauses.
const GROUPS_AT_ONCE: u32 = 16;
/// Number of groups among which the best one for a directory is looked for.
const MOST_COMPARED: u32 = 64;

/// Returns the first bit of a range that is as asked for; its end if there is none.
fn next_bit(bytes: &[u8], range: Range<u32>, is_set: bool) -> u32 {
    let mut at = range.start;
    while at < range.end {
        let first = at as usize / 64 * 8;
        let Some(eight) = bytes.get(first..).and_then(|rest| rest.first_chunk::<8>()) else { break };
        let bits = u64::from_le_bytes(*eight);
        let wanted = if is_set { bits } else { !bits } >> (at % 64);
        if wanted != 0 {
            return (at + wanted.trailing_zeros()).min(range.end);
        }
        at = (at / 64 + 1) * 64;
    }
    range.end
}

/// Sets bits, or clears them.
fn set_bits(bytes: &mut [u8], range: Range<u32>, is_set: bool) {
    let mut set_some = |bits: Range<u32>| {
        for bit in bits {
            let (byte, mask) = (&mut bytes[bit as usize / 8], 1 << (bit % 8));
            if is_set {
                *byte |= mask;
            } else {
                *byte &= !mask;
            }
        }
    };
    // Whole bytes at once: an extent has thousands of blocks.
    let whole = range.start.next_multiple_of(8)..range.end / 8 * 8;
    if whole.is_empty() {
        return set_some(range);
    }
    set_some(range.start..whole.start);
    set_some(whole.end..range.end);
    bytes[whole.start as usize / 8..whole.end as usize / 8].fill(if is_set { 0xff } else { 0 });
}

/// Returns the bytes of a bitmap that have these bits.
fn bytes_of(bits: &Range<u32>) -> Range<usize> {
    bits.start as usize / 8..bits.end.div_ceil(8) as usize
}

impl<D: Device> Filesystem<D> {
    /// Takes at most so many free blocks that lie together, near to a place; returns the first and their number.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn allocate(&mut self, near: u64, most: u32) -> Result<(u64, u32), Error> {
        let layout = self.blocks.layout;
        let near = if near > layout.first_block && near < layout.blocks { near } else { layout.first_block };
        let (first, within) = layout.group_of(near);
        // At first only where there is room for all.
        for (least, groups) in [(most.min(WORTH_A_SEARCH), MOST_SEARCHED), (1, u32::MAX)] {
            for number in 0..layout.groups.min(groups) {
                if number % GROUPS_AT_ONCE == GROUPS_AT_ONCE - 1 {
                    self.blocks.device().pause();
                }
                let group = (first + number) % layout.groups;
                if self.descriptor(group)?.count(GroupCount::FreeBlocks) < least {
                    continue;
                }
                let from = if number == 0 && within > 0 { within } else { self.groups[group as usize].hint };
                if let Some((start, count)) = self.take_blocks(group, from, most, least)? {
                    return Ok((start, count));
                }
            }
        }
        Err(Error::NoSpace)
    }

    /// Returns the bitmap of a group's blocks, which is made if it never was.
    fn block_bitmap(&mut self, group: u32) -> Result<(u64, BlockKind), Error> {
        let (block, kind) = (self.groups[group as usize].block_bitmap, BlockKind::BlockBitmap(group));
        if self.descriptor(group)?.flags() & BLOCKS_UNUSED == 0 {
            self.blocks.block(block, kind)?;
            return Ok((block, kind));
        }
        let layout = self.blocks.layout;
        let (start, count) = (layout.start_of(group), layout.blocks_of(group));
        self.blocks.make(block, kind)?;
        let end = start + u64::from(count);
        let mut next = start;
        while next < end {
            let zone = self.zones_in(next..end).next();
            let Some(zone) = zone else { break };
            let bits = (zone.start.max(start) - start) as u32..(zone.end.min(end) - start) as u32;
            set_bits(self.blocks.change(block, kind, 0..layout.block)?, bits, true);
            next = zone.end;
        }
        set_bits(self.blocks.change(block, kind, 0..layout.block)?, count..layout.block as u32 * 8, true);
        self.clear_flags(group, BLOCKS_UNUSED)?;
        Ok((block, kind))
    }

    /// Takes free blocks of a group that lie together.
    fn take_blocks(&mut self, group: u32, from: u32, most: u32, least: u32) -> Result<Option<(u64, u32)>, Error> {
        let layout = self.blocks.layout;
        let (block, kind) = self.block_bitmap(group)?;
        let (start, count) = (layout.start_of(group), layout.blocks_of(group));
        let from = from.min(count);
        let mut found = None;
        let mut pieces = 0;
        // From the wanted place to the end, and then what is before it.
        'parts: for part in [from..count, 0..from] {
            let mut at = part.start;
            while at < part.end {
                pieces += 1;
                if pieces > MOST_PIECES && least > 1 {
                    break 'parts;
                }
                if pieces % PIECES_AT_ONCE == 0 {
                    self.blocks.device().pause();
                }
                let bitmap = self.blocks.block(block, kind)?;
                let mut free = next_bit(bitmap, at..part.end, false);
                if free >= part.end {
                    break;
                }
                let mut end = next_bit(bitmap, free..free.saturating_add(most).min(count), true);
                // Those that wait are not free yet.
                while free < end
                    && let Some(waiting) = self.blocks.freed_behind(start + u64::from(free))
                {
                    let [first, behind] =
                        [waiting.start, waiting.end].map(|edge| edge.saturating_sub(start).min(count.into()) as u32);
                    if first > free {
                        end = end.min(first);
                        break;
                    }
                    free = behind;
                }
                if free < end && end - free >= least {
                    found = Some(free..end);
                    break 'parts;
                }
                at = free.max(end);
            }
        }
        let Some(bits) = found else { return Ok(None) };
        let bytes = bytes_of(&bits);
        let first_bit = bytes.start as u32 * 8;
        let part = self.blocks.change(block, kind, bytes)?;
        set_bits(part, bits.start - first_bit..bits.end - first_bit, true);
        let taken = bits.end - bits.start;
        let free = self.descriptor(group)?.count(GroupCount::FreeBlocks);
        let free = free.checked_sub(taken).ok_or(Error::Damaged("the number of a group's free blocks"))?;
        self.set_count(group, GroupCount::FreeBlocks, free)?;
        self.add_free_blocks(-i64::from(taken))?;
        self.groups[group as usize].hint = bits.end;
        let first = start + u64::from(bits.start);
        // A bitmap that says that a structure is free.
        self.require_files(first..first + u64::from(taken))?;
        Ok(Some((first, taken)))
    }

    /// Frees blocks.
    ///
    /// # Errors
    /// [`Error::Damaged`] if they are no file's, or not in use.
    pub(crate) fn free_blocks(&mut self, start: u64, count: u64) -> Result<(), Error> {
        let end = start.saturating_add(count);
        self.require_files(start..end)?;
        let layout = self.blocks.layout;
        let mut next = start;
        while next < end {
            let (group, within) = layout.group_of(next);
            let here = (end - next).min(u64::from(layout.blocks_of(group) - within)) as u32;
            let bits = within..within + here;
            let (block, kind) = self.block_bitmap(group)?;
            if next_bit(self.blocks.block(block, kind)?, bits.clone(), false) < bits.end {
                return Err(Error::Damaged("a block of a file is free"));
            }
            let bytes = bytes_of(&bits);
            let first_bit = bytes.start as u32 * 8;
            let part = self.blocks.change(block, kind, bytes)?;
            set_bits(part, bits.start - first_bit..bits.end - first_bit, false);
            let free = self.descriptor(group)?.count(GroupCount::FreeBlocks).checked_add(here);
            let free = free.filter(|free| *free <= layout.blocks_of(group));
            let free = free.ok_or(Error::Damaged("the number of a group's free blocks"))?;
            self.set_count(group, GroupCount::FreeBlocks, free)?;
            let hint = &mut self.groups[group as usize].hint;
            *hint = (*hint).min(within);
            next += u64::from(here);
        }
        self.add_free_blocks(count as i64)?;
        self.blocks.free(start..end)
    }

    /// Frees a block of metadata.
    pub(crate) fn free_metadata(&mut self, block: u64) -> Result<(), Error> {
        self.free_blocks(block, 1)?;
        self.blocks.forget(block)
    }

    /// Takes a free inode for a file of a directory.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn allocate_inode(&mut self, parent: &Inode, is_directory: bool) -> Result<u32, Error> {
        let layout = self.blocks.layout;
        let own = (parent.number - 1) / layout.group_inodes;
        let first = if is_directory { self.group_for_directory(parent, own)? } else { own };
        for number in 0..layout.groups {
            if number % GROUPS_AT_ONCE == GROUPS_AT_ONCE - 1 {
                self.blocks.device().pause();
            }
            let group = (first + number) % layout.groups;
            if self.descriptor(group)?.count(GroupCount::FreeInodes) == 0 {
                continue;
            }
            if let Some(inode) = self.take_inode(group, is_directory)? {
                return Ok(inode);
            }
        }
        Err(Error::NoSpace)
    }

    /// Returns the group for a new directory: those of the root lie apart from each other, so that their files have
    /// room, and all others near their parents.
    fn group_for_directory(&mut self, parent: &Inode, own: u32) -> Result<u32, Error> {
        let layout = self.blocks.layout;
        let average = word(self.superblock()?, FREE_INODES_AT) / layout.groups;
        if parent.number != ROOT {
            let descriptor = self.descriptor(own)?;
            let has_room = descriptor.count(GroupCount::FreeInodes) > average / 4
                && descriptor.count(GroupCount::FreeBlocks) > layout.group_blocks / 16;
            return Ok(if has_room { own } else { (own + 1) % layout.groups });
        }
        let mut best = (u32::MAX, own);
        self.turn = self.turn.wrapping_add(1);
        for number in 0..layout.groups.min(MOST_COMPARED) {
            let group = (self.turn + number) % layout.groups;
            let descriptor = self.descriptor(group)?;
            let directories = descriptor.count(GroupCount::Directories);
            let has_room = descriptor.count(GroupCount::FreeInodes) >= average.max(1)
                && descriptor.count(GroupCount::FreeBlocks) > layout.group_blocks / 8;
            if has_room && directories < best.0 {
                best = (directories, group);
            }
        }
        self.blocks.device().pause();
        Ok(best.1)
    }

    /// Takes a free inode of a group.
    fn take_inode(&mut self, group: u32, is_directory: bool) -> Result<Option<u32>, Error> {
        let layout = self.blocks.layout;
        let (block, kind) = (self.groups[group as usize].inode_bitmap, BlockKind::InodeBitmap(group));
        if self.descriptor(group)?.flags() & INODES_UNUSED != 0 {
            self.blocks.make(block, kind)?;
            let rest = layout.group_inodes..layout.block as u32 * 8;
            set_bits(self.blocks.change(block, kind, 0..layout.block)?, rest, true);
            self.clear_flags(group, INODES_UNUSED)?;
        }
        let reserved = if group == 0 { layout.first_inode - 1 } else { 0 };
        let bit = next_bit(self.blocks.block(block, kind)?, reserved..layout.group_inodes, false);
        let number = u64::from(group) * u64::from(layout.group_inodes) + u64::from(bit) + 1;
        if bit >= layout.group_inodes || number > layout.inodes.into() {
            return Ok(None);
        }
        let byte = bit as usize / 8;
        set_bits(self.blocks.change(block, kind, byte..byte + 1)?, bit % 8..bit % 8 + 1, true);
        let descriptor = self.descriptor(group)?;
        let free = descriptor.count(GroupCount::FreeInodes);
        let directories = descriptor.count(GroupCount::Directories);
        let never_used = descriptor.count(GroupCount::NeverUsedInodes);
        self.set_count(group, GroupCount::FreeInodes, free.saturating_sub(1))?;
        if is_directory {
            self.set_count(group, GroupCount::Directories, directories.saturating_add(1))?;
        }
        let behind = layout.group_inodes - (bit + 1);
        if (layout.has_checksums || layout.has_group_checksums) && never_used > behind {
            self.set_count(group, GroupCount::NeverUsedInodes, behind)?;
        }
        self.add_free_inodes(-1)?;
        Ok(Some(number as u32))
    }

    /// Whether no other inode of a range in one group is in use.
    pub(crate) fn is_alone(&mut self, number: u32, range: Range<u32>) -> Result<bool, Error> {
        let layout = self.blocks.layout;
        let group = (number - 1) / layout.group_inodes;
        let bit = |number: u32| (number - 1 - group * layout.group_inodes).min(layout.group_inodes);
        let (block, kind) = (self.groups[group as usize].inode_bitmap, BlockKind::InodeBitmap(group));
        let bytes = self.blocks.block(block, kind)?;
        let others = [bit(range.start)..bit(number), bit(number) + 1..bit(range.end)];
        Ok(others.into_iter().all(|others| others.is_empty() || next_bit(bytes, others.clone(), true) == others.end))
    }

    /// Frees an inode.
    pub(crate) fn free_inode(&mut self, number: u32, is_directory: bool) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let (group, bit) = ((number - 1) / layout.group_inodes, (number - 1) % layout.group_inodes);
        let (block, kind) = (self.groups[group as usize].inode_bitmap, BlockKind::InodeBitmap(group));
        let descriptor = self.descriptor(group)?;
        let free = descriptor.count(GroupCount::FreeInodes);
        let directories = descriptor.count(GroupCount::Directories);
        if descriptor.flags() & INODES_UNUSED != 0 {
            return Err(Error::Damaged("an inode of a group without any"));
        }
        if next_bit(self.blocks.block(block, kind)?, bit..bit + 1, true) != bit {
            return Err(Error::Damaged("an inode of a file is free"));
        }
        let byte = bit as usize / 8;
        set_bits(self.blocks.change(block, kind, byte..byte + 1)?, bit % 8..bit % 8 + 1, false);
        if free >= layout.group_inodes {
            return Err(Error::Damaged("the number of a group's free inodes"));
        }
        self.set_count(group, GroupCount::FreeInodes, free + 1)?;
        if is_directory {
            self.set_count(group, GroupCount::Directories, directories.saturating_sub(1))?;
        }
        self.add_free_inodes(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_as_one_by_one() {
        let bytes: [u8; 24] = core::array::from_fn(|at| [0, 0xff, 0x10, 0, 0xff, 0xff, 0xff, 0xff][at * 5 % 8]);
        for start in 0..192 {
            for end in start..=192 {
                for is_set in [false, true] {
                    let is_it = |bit: &u32| (bytes[*bit as usize / 8] >> (bit % 8) & 1 == 1) == is_set;
                    let expected = (start..end).find(is_it).unwrap_or(end);
                    assert_eq!(next_bit(&bytes, start..end, is_set), expected, "{start}..{end}");
                }
            }
        }
    }

    #[test]
    fn bits_of_a_range_are_set_and_cleared() {
        let mut bytes = [0; 4];
        set_bits(&mut bytes, 5..20, true);
        assert_eq!(bytes, [0xe0, 0xff, 0x0f, 0]);
        set_bits(&mut bytes, 7..9, false);
        assert_eq!(bytes, [0x60, 0xfe, 0x0f, 0]);
        for start in 0..40_u32 {
            for end in start..=40 {
                for is_set in [false, true] {
                    let mut bytes = [if is_set { 0 } else { 0xff }; 5];
                    set_bits(&mut bytes, start..end, is_set);
                    let is_as_asked = |bit: u32| (bytes[bit as usize / 8] >> (bit % 8) & 1 == 1) == is_set;
                    assert!((0..40).all(|bit| is_as_asked(bit) == (start..end).contains(&bit)), "{start}..{end}");
                }
            }
        }
    }
}
