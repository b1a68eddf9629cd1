//! Bytes of files, which go to their places on the device at once.

use alloc::vec::Vec;
use core::ops::Range;

use crate::Error;
use crate::device::{Device, DeviceFailed};
use crate::extents::LONGEST_UNWRITTEN;
use crate::filesystem::Filesystem;
use crate::inodes::{HAS_EXTENTS, Inode};
use crate::maps::{EXTENTS_OF_A_STEP, MappedPiece};
use crate::superblock::{FOR_WRITING_FEATURES_AT, LARGE_FILE};
use crate::volume::{Growth, RangeChange};

/// Size from which on a file is a large one.
const LARGE: u64 = 1 << 31;
/// Bytes of a sector.
const SECTOR: u64 = 512;

fn failed(DeviceFailed: DeviceFailed) -> Error {
    Error::Device
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// The file has the blocks that it had, and its length.
    pub(crate) is_in_place: bool,
}

impl<D: Device> Filesystem<D> {
    /// Reads bytes of a file that are before its end.
    pub(crate) fn read_bytes(&mut self, inode: &Inode, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let block = self.blocks.layout.block as u64;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let logical = u32::try_from(at / block).map_err(|_| Error::Damaged("the size of a file"))?;
            let within = at % block;
            let wanted = (within + (bytes.len() - done) as u64).div_ceil(block).min(u32::MAX.into()) as u32;
            let piece = self.piece(inode, logical, wanted)?;
            let length = (u64::from(piece.count) * block - within).min((bytes.len() - done) as u64) as usize;
            if length == 0 {
                return Err(Error::Damaged("the blocks of a file"));
            }
            let part = &mut bytes[done..done + length];
            match piece.at.filter(|_| !piece.is_unwritten) {
                Some(first) => self.read_run(first * block + within, part)?,
                None => part.fill(0),
            }
            done += length;
        }
        Ok(())
    }

    /// Reads bytes that lie together on the device.
    fn read_run(&mut self, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let block = self.blocks.layout.block;
        let is_whole = at.is_multiple_of(SECTOR) && bytes.len().is_multiple_of(SECTOR as usize);
        if is_whole && !self.is_covered {
            return self.blocks.device().read(at, bytes).map_err(failed);
        }
        let mut buffer = crate::blocks::zeros(block)?;
        let mut done = 0;
        while done < bytes.len() {
            let place = at + done as u64;
            let (number, within) = (place / block as u64, (place % block as u64) as usize);
            let length = (block - within).min(bytes.len() - done);
            let part = &mut bytes[done..done + length];
            // Of a volume whose journal was replayed in memory, the device may have older blocks.
            match self.blocks.held(number).filter(|_| self.is_covered) {
                Some(held) => part.copy_from_slice(&held[within..within + length]),
                None => {
                    self.blocks.device().read(number * block as u64, &mut buffer).map_err(failed)?;
                    part.copy_from_slice(&buffer[within..within + length]);
                }
            }
            done += length;
        }
        Ok(())
    }

    /// Writes bytes to blocks of a file that lie together. The other bytes of the first and the last block stay, if
    /// they are before the file's end and the blocks had bytes of it.
    fn write_run(
        &mut self,
        first: u64,
        logical: u32,
        offset: u64,
        bytes: &[u8],
        (size, is_new): (u64, bool),
    ) -> Result<(), Error> {
        let block = self.blocks.layout.block as u64;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let place = (first + (at / block - u64::from(logical))) * block;
            let within = at % block;
            let left = bytes.len() - done;
            let whole = left as u64 / block * block;
            if within == 0 && whole > 0 {
                let part = &bytes[done..done + whole as usize];
                self.blocks.device().write(place, part).map_err(|_| self.write_failed())?;
                done += part.len();
                continue;
            }
            let length = left.min((block - within) as usize);
            let part = &bytes[done..done + length];
            if is_new {
                self.write_new_block(place, within as usize, part)?;
            } else {
                // Behind the end there may be bytes that were written before a power cut.
                let kept = size.saturating_sub(at - within).min(block);
                self.write_sectors(place, within, part, kept)?;
            }
            done += length;
        }
        Ok(())
    }

    /// Writes bytes to a block that has no bytes of the file yet: the others are zeros.
    fn write_new_block(&mut self, place: u64, within: usize, bytes: &[u8]) -> Result<(), Error> {
        let block = self.blocks.layout.block;
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(block).map_err(|_| Error::OutOfMemory)?;
        buffer.resize(within, 0);
        buffer.extend_from_slice(bytes);
        buffer.resize(block, 0);
        self.blocks.device().write(place, &buffer).map_err(|_| self.write_failed())
    }

    /// Writes bytes to a part of a block: to the sectors in which they are. Of the others there, so many from the
    /// block's start on are the file's.
    fn write_sectors(&mut self, place: u64, within: u64, bytes: &[u8], kept: u64) -> Result<(), Error> {
        let end = within + bytes.len() as u64;
        let (first, last) = (within / SECTOR * SECTOR, end.next_multiple_of(SECTOR));
        let (before, behind) = ((within - first) as usize, (last - end) as usize);
        let mut buffer = Vec::new();
        buffer.try_reserve_exact((last - first) as usize).map_err(|_| Error::OutOfMemory)?;
        if before > 0 {
            buffer.resize(SECTOR as usize, 0);
            self.blocks.device().read(place + first, &mut buffer).map_err(failed)?;
            buffer[kept.saturating_sub(first).min(SECTOR) as usize..].fill(0);
            buffer.truncate(before);
        }
        buffer.extend_from_slice(bytes);
        if behind > 0 {
            let mut sector = [0; SECTOR as usize];
            if kept > end {
                self.blocks.device().read(place + last - SECTOR, &mut sector).map_err(failed)?;
                sector[kept.saturating_sub(last - SECTOR).min(SECTOR) as usize..].fill(0);
            }
            buffer.extend_from_slice(&sector[SECTOR as usize - behind..]);
        }
        self.blocks.device().write(place + first, &buffer).map_err(|_| self.write_failed())
    }

    /// Notes that the device did not take bytes.
    fn write_failed(&mut self) -> Error {
        self.has_failed = true;
        Error::Device
    }

    /// Has the last block of a file have zeros behind its end, up to another one.
    fn clear_behind(&mut self, inode: &Inode, size: u64, end: u64) -> Result<(), Error> {
        let block = self.blocks.layout.block as u64;
        let within = size % block;
        let end = end.min(size.next_multiple_of(block));
        if within == 0 || end <= size {
            return Ok(());
        }
        let logical = u32::try_from(size / block).map_err(|_| Error::TooLarge)?;
        let piece = self.piece(inode, logical, 1)?;
        let Some(at) = piece.at.filter(|_| !piece.is_unwritten) else { return Ok(()) };
        let mut buffer = crate::blocks::zeros(block as usize)?;
        self.blocks.device().read(at * block, &mut buffer).map_err(failed)?;
        let part = &mut buffer[within as usize..(end - size + within) as usize];
        if part.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        part.fill(0);
        self.blocks.device().write(at * block, &buffer).map_err(|_| self.write_failed())
    }

    /// Writes bytes to a regular file, which is stored by the caller.
    pub(crate) fn write_bytes(&mut self, inode: &mut Inode, offset: u64, bytes: &[u8]) -> Result<Written, Error> {
        let block = self.blocks.layout.block as u64;
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= self.largest_file(inode));
        let end = end.ok_or(Error::TooLarge)?;
        let size = inode.size();
        if offset > size {
            self.clear_behind(inode, size, offset)?;
        }
        let mut is_in_place = end <= size;
        let mut at = offset;
        while at < end {
            let logical = (at / block) as u32;
            let wanted = (end.div_ceil(block) - u64::from(logical)).min(u32::MAX.into()) as u32;
            let piece = self.piece(inode, logical, wanted)?;
            let (first, count, is_new) = match piece.at {
                Some(first) => (first, piece.count, piece.is_unwritten),
                None => {
                    let (first, count) = self.fill_hole(inode, logical, piece.count.min(wanted))?;
                    (first, count, true)
                }
            };
            let stop = ((u64::from(logical) + u64::from(count)) * block).min(end);
            let part = &bytes[(at - offset) as usize..(stop - offset) as usize];
            self.write_run(first, logical, at, part, (size, is_new))?;
            if piece.at.is_some() && is_new {
                self.mark_written(inode, logical, count)?;
            }
            is_in_place &= !is_new;
            at = stop;
        }
        if end > size {
            self.set_size(inode, end)?;
        }
        Ok(Written { is_in_place })
    }

    /// Does a step of giving a regular file another length, which frees the blocks behind it; it is stored by the
    /// caller. Returns whether it has that length; if not, it has become shorter.
    pub(crate) fn set_length(&mut self, inode: &mut Inode, length: u64) -> Result<bool, Error> {
        let block = self.blocks.layout.block as u64;
        if length > self.largest_file(inode) {
            return Err(Error::TooLarge);
        }
        let size = inode.size();
        if length > size {
            self.clear_behind(inode, size, length)?;
        } else {
            let wanted = u32::try_from(length.div_ceil(block)).unwrap_or(u32::MAX);
            let reached = self.cut_blocks(inode, wanted)?;
            if reached > wanted {
                inode.set_size((u64::from(reached) * block).min(size));
                return Ok(false);
            }
        }
        self.set_size(inode, length)?;
        Ok(true)
    }

    /// Has bytes of one block of a file be zeros, if it has some.
    fn clear_part(&mut self, inode: &Inode, piece: MappedPiece, range: Range<u64>) -> Result<(), Error> {
        let block = self.blocks.layout.block as u64;
        let Some(at) = piece.at.filter(|_| !piece.is_unwritten) else { return Ok(()) };
        let (start, within) = (range.start / block * block, range.start % block);
        let zeros = crate::blocks::zeros((range.end - range.start) as usize)?;
        // Behind the end there may be bytes that were written before a power cut.
        let kept = inode.size().saturating_sub(start).min(block);
        self.write_sectors(at * block, within, &zeros, kept)
    }

    /// Does a step of changing a part of a regular file, which is stored by the caller; returns the place from which on
    /// it is to be done.
    pub(crate) fn change_range(
        &mut self,
        inode: &mut Inode,
        range: Range<u64>,
        change: RangeChange,
    ) -> Result<u64, Error> {
        let block = self.blocks.layout.block as u64;
        self.require_ranges(inode, &range)?;
        let size = inode.size();
        let end = match change {
            // As on Linux, blocks that were reserved behind the end stay.
            RangeChange::Punch => range.end.min(size.next_multiple_of(block)),
            RangeChange::Reserve(_) | RangeChange::Zero(_) => range.end,
        };
        let mut at = range.start;
        for _ in 0..EXTENTS_OF_A_STEP {
            if at >= end {
                break;
            }
            let (logical, behind) = ((at / block) as u32, (at / block + 1) * block);
            let is_part = !at.is_multiple_of(block) || behind > end;
            let wanted = if is_part { 1 } else { (end / block - at / block) as u32 };
            let piece = self.piece(inode, logical, wanted)?;
            let count = match (change, piece.at) {
                (RangeChange::Reserve(_), Some(_)) | (RangeChange::Punch, None) => piece.count,
                (RangeChange::Reserve(_) | RangeChange::Zero(_), None) => {
                    self.reserve_hole(inode, logical, piece.count.min(wanted))?
                }
                (RangeChange::Zero(_) | RangeChange::Punch, Some(_)) if is_part => {
                    self.clear_part(inode, piece, at..behind.min(end))?;
                    1
                }
                (RangeChange::Zero(_), Some(_)) if piece.is_unwritten => piece.count,
                (RangeChange::Zero(_), Some(_)) => {
                    let count = piece.count.min(LONGEST_UNWRITTEN);
                    self.mark_unwritten(inode, logical, count)?;
                    count
                }
                (RangeChange::Punch, Some(_)) => {
                    let count = piece.count.min(self.most_freed());
                    self.punch_extent(inode, logical, count)?;
                    count
                }
            };
            at = ((u64::from(logical) + u64::from(count)) * block).min(end);
            self.blocks.device().pause();
        }
        if let RangeChange::Reserve(Growth::Grow) | RangeChange::Zero(Growth::Grow) = change
            && at > size
        {
            self.clear_behind(inode, size, at)?;
            self.set_size(inode, at)?;
        }
        Ok(if at >= end { range.end } else { at })
    }

    /// Fails unless parts of a file can be changed, and it can have this one.
    pub(crate) fn require_ranges(&self, inode: &Inode, range: &Range<u64>) -> Result<(), Error> {
        if !inode.has(HAS_EXTENTS) {
            return Err(Error::Unsupported);
        }
        if range.end > self.largest_file(inode) { Err(Error::TooLarge) } else { Ok(()) }
    }

    /// Sets the size of a regular file, and notes that there are large ones.
    fn set_size(&mut self, inode: &mut Inode, size: u64) -> Result<(), Error> {
        inode.set_size(size);
        if size >= LARGE {
            let at = FOR_WRITING_FEATURES_AT;
            let features = crate::bytes::word(self.superblock()?, at);
            if features & LARGE_FILE == 0 {
                crate::bytes::set_word(self.superblock_part(at..at + 4)?, 0, features | LARGE_FILE);
            }
        }
        Ok(())
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn target(&mut self, inode: &Inode) -> Result<Vec<u8>, Error> {
        let length = inode.size() as usize;
        if length > self.blocks.layout.block {
            return Err(Error::Damaged("a symbolic link"));
        }
        let mut target = Vec::new();
        target.try_reserve_exact(length).map_err(|_| Error::OutOfMemory)?;
        if inode.has_short_target() {
            target.extend_from_slice(&inode.map()[..length]);
            return Ok(target);
        }
        let block = self.block_at(inode, 0)?;
        let bytes = self.blocks.block(block, crate::blocks::BlockKind::Target)?;
        target.extend_from_slice(bytes.get(..length).ok_or(Error::Damaged("a symbolic link"))?);
        Ok(target)
    }
}
