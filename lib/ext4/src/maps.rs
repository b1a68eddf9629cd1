//! The places of a file's bytes: trees of extents, or numbers of blocks as ext2 has them.

use crate::Error;
use crate::device::Device;
use crate::extents;
use crate::filesystem::Filesystem;
use crate::inodes::{HAS_EXTENTS, Inode};
use crate::volume::kind;

/// Blocks of a file that lie together, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappedPiece {
    /// Number of the blocks, from the one on that was asked for.
    pub(crate) count: u32,
    /// The first block; `None` for a hole.
    pub(crate) at: Option<u64>,
    /// The blocks are the file's and have no bytes of it yet: they are read as zeros.
    pub(crate) is_unwritten: bool,
}

/// Number of blocks that a file can have: the last number of 32 bits is no block's.
const MOST_BLOCKS: u64 = u32::MAX as u64;
/// Number of blocks of a file without extents that a step frees, and of extents: each may change the bitmap and the
/// descriptor of a group of its own, a long extent those of several, and the blocks of a step are one transaction.
pub(crate) const BLOCKS_OF_A_STEP: u32 = 128;
pub(crate) const EXTENTS_OF_A_STEP: u32 = 32;

impl<D: Device> Filesystem<D> {
    /// Returns the number of bytes that a file can have.
    pub(crate) fn largest_file(&self, inode: &Inode) -> u64 {
        let block = self.blocks.layout.block as u64;
        let most = if inode.has(HAS_EXTENTS) { MOST_BLOCKS } else { crate::block_maps::most_blocks(block) };
        most * block
    }

    /// Returns what lies at a place of a file, at most so many blocks.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Device`].
    pub(crate) fn piece(&mut self, inode: &Inode, logical: u32, most: u32) -> Result<MappedPiece, Error> {
        let piece = if inode.has(HAS_EXTENTS) {
            self.piece_of_extents(inode, logical, most)?
        } else {
            self.piece_of_map(inode, logical, most)?
        };
        if let Some(at) = piece.at {
            self.require_files(at..at + u64::from(piece.count))?;
        }
        Ok(piece)
    }

    /// Returns the block with a place of a directory or a symbolic link.
    pub(crate) fn block_at(&mut self, inode: &Inode, logical: u32) -> Result<u64, Error> {
        let piece = self.piece(inode, logical, 1)?;
        piece.at.filter(|_| !piece.is_unwritten).ok_or(Error::Damaged("a hole in a directory or link"))
    }

    /// Gives a hole of a file blocks that lie together; returns the first and their number.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`].
    pub(crate) fn fill_hole(&mut self, inode: &mut Inode, logical: u32, most: u32) -> Result<(u64, u32), Error> {
        let most = if inode.has(HAS_EXTENTS) { most.min(extents::LONGEST) } else { most };
        let (first, count) = self.take_for_hole(inode, logical, most)?;
        if inode.has(HAS_EXTENTS) {
            let extent = extents::Extent { first: logical, count, at: first, is_unwritten: false };
            self.add_extent(inode, extent)?;
        } else {
            self.map_blocks(inode, logical, first, count)?;
        }
        Ok((first, count))
    }

    /// Gives a hole of a file with extents blocks that lie together, and are read as zeros; returns their number.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`].
    pub(crate) fn reserve_hole(&mut self, inode: &mut Inode, logical: u32, most: u32) -> Result<u32, Error> {
        let (first, count) = self.take_for_hole(inode, logical, most.min(extents::LONGEST_UNWRITTEN))?;
        self.add_extent(inode, extents::Extent { first: logical, count, at: first, is_unwritten: true })?;
        Ok(count)
    }

    /// Takes blocks that lie together, for a file, which counts them.
    fn take_for_hole(&mut self, inode: &mut Inode, logical: u32, most: u32) -> Result<(u64, u32), Error> {
        let near = self.place_near(inode, logical)?;
        let (first, count) = self.allocate(near, most)?;
        let layout = self.blocks.layout;
        inode.add_blocks(&layout, count.into())?;
        Ok((first, count))
    }

    /// Returns the number of blocks that one piece of work may free: those of few groups, each of which has a bitmap.
    pub(crate) fn most_freed(&self) -> u32 {
        let most = extents::GROUPS_AT_ONCE * u64::from(self.blocks.layout.group_blocks);
        most.min(extents::LONGEST.into()) as u32
    }

    /// Returns the place behind the block before one, or that of the inode's group.
    fn place_near(&mut self, inode: &Inode, logical: u32) -> Result<u64, Error> {
        if logical > 0 {
            let before = self.piece(inode, logical - 1, 1)?;
            if let Some(at) = before.at {
                return Ok(at + 1);
            }
        }
        let layout = &self.blocks.layout;
        Ok(layout.start_of((inode.number - 1) / layout.group_inodes))
    }

    /// Frees blocks of a file from its end on, down to one, as many as one step may; returns the first that is free.
    pub(crate) fn cut_blocks(&mut self, inode: &mut Inode, from: u32) -> Result<u32, Error> {
        if inode.has(HAS_EXTENTS) { self.cut_extents(inode, from) } else { self.cut_map(inode, from) }
    }

    /// Frees blocks of a file, and counts them no more.
    pub(crate) fn free_of(&mut self, inode: &mut Inode, at: u64, count: u32) -> Result<(), Error> {
        self.free_blocks(at, count.into())?;
        if !inode.is(kind::REGULAR) {
            // Those of directories and links are metadata.
            for block in at..at + u64::from(count) {
                self.blocks.forget(block)?;
            }
        }
        let layout = self.blocks.layout;
        inode.add_blocks(&layout, -i64::from(count))
    }
}
