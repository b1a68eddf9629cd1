//! Numbers of blocks, as files of ext2 and ext3 have them: twelve in the inode, and three more of blocks with numbers,
//! of blocks with numbers of such blocks, and of those of these.

use core::ops::Range;

use crate::Error;
use crate::blocks::BlockKind;
use crate::bytes::{set_word, word};
use crate::device::Device;
use crate::filesystem::Filesystem;
use crate::inodes::Inode;
use crate::maps::{BLOCKS_OF_A_STEP, MappedPiece};

/// Numbers of a file's own blocks in the inode.
const DIRECT: u64 = 12;
/// Number of blocks that are freed between two pauses.
const BLOCKS_AT_ONCE: u32 = 16;

/// Returns the number of blocks that such a file can have: of the numbers that there are, and of sectors that 32 bits
/// count.
pub(crate) fn most_blocks(block: u64) -> u64 {
    let numbers = block / 4;
    (DIRECT + numbers + numbers.pow(2) + numbers.pow(3)).min(u64::from(u32::MAX) / (block / 512))
}

/// The way to the number of a block: the place in the inode, and places in blocks of numbers.
struct MapPath {
    root: usize,
    places: [usize; 3],
    depth: usize,
}

/// Returns the way to the number of a block.
fn path_of(logical: u32, numbers: u64) -> Result<MapPath, Error> {
    let mut rest = u64::from(logical);
    if rest < DIRECT {
        return Ok(MapPath { root: rest as usize, places: [0; 3], depth: 0 });
    }
    rest -= DIRECT;
    for depth in 1..=3 {
        let here = numbers.pow(depth);
        if rest < here {
            let mut places = [0; 3];
            for place in places[..depth as usize].iter_mut().rev() {
                *place = (rest % numbers) as usize;
                rest /= numbers;
            }
            return Ok(MapPath { root: DIRECT as usize + depth as usize - 1, places, depth: depth as usize });
        }
        rest -= here;
    }
    Err(Error::TooLarge)
}

impl<D: Device> Filesystem<D> {
    /// Returns a number of a block of numbers.
    fn number_in(&mut self, block: u64, place: usize) -> Result<u64, Error> {
        self.require_files(block..block + 1)?;
        Ok(word(self.blocks.block(block, BlockKind::Map)?, place * 4).into())
    }

    /// As [`piece`](Filesystem::piece), of a file without extents.
    pub(crate) fn piece_of_map(&mut self, inode: &Inode, logical: u32, most: u32) -> Result<MappedPiece, Error> {
        let numbers = self.blocks.layout.block as u64 / 4;
        let Ok(path) = path_of(logical, numbers) else {
            return Ok(MappedPiece { count: most, at: None, is_unwritten: false });
        };
        let mut at = u64::from(word(inode.map(), path.root * 4));
        let mut holder = None;
        for (level, place) in path.places[..path.depth].iter().enumerate() {
            if at == 0 {
                // All that this block of numbers would have, from here on.
                let span = numbers.pow((path.depth - level) as u32);
                let within = path.places[level..path.depth].iter().fold(0, |sum, place| sum * numbers + *place as u64);
                let count = (span - within).min(most.into()) as u32;
                return Ok(MappedPiece { count, at: None, is_unwritten: false });
            }
            holder = Some(at);
            at = self.number_in(at, *place)?;
        }
        // As long as the next numbers continue it, beside each other in one block.
        let (first, end) = match path.depth {
            0 => (path.root, DIRECT as usize),
            depth => (path.places[depth - 1], numbers as usize),
        };
        let mut count = 1;
        while count < most && first + (count as usize) < end {
            let next = match holder {
                Some(block) => self.number_in(block, first + count as usize)?,
                None => word(inode.map(), (first + count as usize) * 4).into(),
            };
            let continues = if at == 0 { next == 0 } else { next == at + u64::from(count) };
            if !continues {
                break;
            }
            count += 1;
        }
        Ok(MappedPiece { count, at: (at != 0).then_some(at), is_unwritten: false })
    }

    /// Notes the numbers of new blocks, and makes the blocks of numbers that are missing.
    pub(crate) fn map_blocks(&mut self, inode: &mut Inode, logical: u32, first: u64, count: u32) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let numbers = layout.block as u64 / 4;
        for offset in 0..count {
            let place = u64::from(logical) + u64::from(offset);
            let path = path_of(u32::try_from(place).map_err(|_| Error::TooLarge)?, numbers)?;
            let number = u32::try_from(first + u64::from(offset)).map_err(|_| Error::TooLarge)?;
            if path.depth == 0 {
                set_word(inode.map_mut(), path.root * 4, number);
                continue;
            }
            let mut holder = u64::from(word(inode.map(), path.root * 4));
            if holder == 0 {
                holder = self.new_map(inode, first)?;
                set_word(inode.map_mut(), path.root * 4, holder as u32);
            }
            for place in &path.places[..path.depth - 1] {
                let mut next = self.number_in(holder, *place)?;
                if next == 0 {
                    next = self.new_map(inode, first)?;
                    set_word(self.blocks.change(holder, BlockKind::Map, place * 4..place * 4 + 4)?, 0, next as u32);
                }
                holder = next;
            }
            let place = path.places[path.depth - 1] * 4;
            self.require_files(holder..holder + 1)?;
            set_word(self.blocks.change(holder, BlockKind::Map, place..place + 4)?, 0, number);
        }
        Ok(())
    }

    fn new_map(&mut self, inode: &mut Inode, near: u64) -> Result<u64, Error> {
        let (block, _) = self.allocate(near, 1)?;
        if block > u32::MAX.into() {
            return Err(Error::NoSpace);
        }
        let layout = self.blocks.layout;
        inode.add_blocks(&layout, 1)?;
        self.blocks.make(block, BlockKind::Map)?;
        Ok(block)
    }

    /// As [`cut_blocks`](Filesystem::cut_blocks), of a file without extents.
    pub(crate) fn cut_map(&mut self, inode: &mut Inode, from: u32) -> Result<u32, Error> {
        let numbers = self.blocks.layout.block as u64 / 4;
        let mut cut = MapCut { from: from.into(), left: BLOCKS_OF_A_STEP, reached: None };
        let mut start = DIRECT + numbers + numbers.pow(2) + numbers.pow(3);
        for root in (0..DIRECT as usize + 3).rev() {
            let depth = (root + 1).saturating_sub(DIRECT as usize) as u32;
            start -= numbers.pow(depth);
            let at = u64::from(word(inode.map(), root * 4));
            if at != 0 && start + numbers.pow(depth) > cut.from {
                if self.cut_number(inode, at, depth, start, &mut cut)? {
                    set_word(inode.map_mut(), root * 4, 0);
                }
                if cut.left == 0 {
                    break;
                }
            }
        }
        let reached = if cut.left == 0 { cut.reached.unwrap_or(cut.from) } else { cut.from };
        Ok(u32::try_from(reached).unwrap_or(u32::MAX))
    }

    /// Frees what a number leads to, backwards; returns whether all of it is free.
    fn cut_number(
        &mut self,
        inode: &mut Inode,
        at: u64,
        depth: u32,
        start: u64,
        cut: &mut MapCut,
    ) -> Result<bool, Error> {
        if cut.left == 0 {
            return Ok(false);
        }
        if depth == 0 {
            self.free_of(inode, at, 1)?;
            self.note_cut(cut, start);
            return Ok(true);
        }
        let numbers = self.blocks.layout.block as u64 / 4;
        let span = numbers.pow(depth - 1);
        // The first number that leads to a block which goes.
        let first = (cut.from.saturating_sub(start) / span) as usize;
        let mut end = numbers as usize;
        while let Some((place, next)) = self.last_number(at, first..end)? {
            let below = start + place as u64 * span;
            if self.cut_number(inode, next, depth - 1, below, cut)? {
                let part = place * 4..place * 4 + 4;
                set_word(self.blocks.change(at, BlockKind::Map, part)?, 0, 0);
            } else if cut.left == 0 {
                return Ok(false);
            }
            end = place;
        }
        if start < cut.from {
            return Ok(false);
        }
        let layout = self.blocks.layout;
        self.free_metadata(at)?;
        inode.add_blocks(&layout, -1)?;
        // It counts as those of the file: a damaged map may consist of nothing else.
        self.note_cut(cut, start);
        Ok(true)
    }

    /// Returns the last of some numbers of a block that is one, with its place there.
    fn last_number(&mut self, block: u64, places: Range<usize>) -> Result<Option<(usize, u64)>, Error> {
        self.require_files(block..block + 1)?;
        let bytes = self.blocks.block(block, BlockKind::Map)?;
        let numbers = bytes.as_chunks::<4>().0.get(places.clone()).unwrap_or_default();
        let found = numbers.iter().enumerate().rev().find(|(_, number)| **number != [0; 4]);
        Ok(found.map(|(place, number)| (places.start + place, u32::from_le_bytes(*number).into())))
    }

    /// Notes that a step has freed a block, and everything of the file from this place on.
    fn note_cut(&self, cut: &mut MapCut, start: u64) {
        (cut.left, cut.reached) = (cut.left.saturating_sub(1), Some(start));
        if cut.left.is_multiple_of(BLOCKS_AT_ONCE) {
            self.blocks.device().pause();
        }
    }
}

/// A step of cutting blocks off a file.
struct MapCut {
    /// The first block that goes.
    from: u64,
    /// Number of blocks that the step may free, and the last one that it has.
    left: u32,
    reached: Option<u64>,
}
