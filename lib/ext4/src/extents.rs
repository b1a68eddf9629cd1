//! Trees of extents.
//!
//! The root is in the inode, with four entries; all other nodes are blocks. Entries of a leaf are extents, those of
//! other nodes have the first block of the file that is below them, which is the first of the first entry there.

use alloc::vec::Vec;

use crate::Error;
use crate::blocks::{BlockKind, BlockOwner};
use crate::bytes::{half, set_half, set_word, word};
use crate::checksum::crc32c;
use crate::device::Device;
use crate::filesystem::Filesystem;
use crate::inodes::{Inode, MAP};
use crate::maps::{EXTENTS_OF_A_STEP, MappedPiece};
use crate::superblock::Layout;

const MAGIC: u16 = 0xf30a;
/// Sizes of a node's header and of an entry.
const HEADER: usize = 12;
const ENTRY: usize = 12;
/// Number of levels below the root (Linux: the same).
const DEEPEST: u16 = 5;
/// Number of blocks of the longest extent, and of the longest one without bytes.
pub(crate) const LONGEST: u32 = 1 << 15;
pub(crate) const LONGEST_UNWRITTEN: u32 = LONGEST - 1;
/// Number of entries for which a block has room at least: a node that is full is split into two that have some.
const LEAST_ENTRIES: usize = 4;
/// Number of groups whose blocks are freed at once.
pub(crate) const GROUPS_AT_ONCE: u64 = 4;
/// Offsets in a header: the number of entries, of those that have room, and of levels below.
const COUNT_AT: usize = 2;
const MOST_AT: usize = 4;
const DEPTH_AT: usize = 6;

/// Blocks of a file that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first one's number in the file.
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// The first block.
    pub(crate) at: u64,
    pub(crate) is_unwritten: bool,
}

impl Extent {
    fn read(entry: &[u8]) -> Extent {
        let length = u32::from(half(entry, 4));
        let is_unwritten = length > LONGEST;
        Extent {
            first: word(entry, 0),
            count: if is_unwritten { length - LONGEST } else { length },
            at: u64::from(half(entry, 6)) << 32 | u64::from(word(entry, 8)),
            is_unwritten,
        }
    }

    fn bytes(self) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        set_word(&mut entry, 0, self.first);
        set_half(&mut entry, 4, (self.count + if self.is_unwritten { LONGEST } else { 0 }) as u16);
        set_half(&mut entry, 6, (self.at >> 32) as u16);
        set_word(&mut entry, 8, self.at as u32);
        entry
    }

    /// Returns the number of the block behind it; that may be one more than the last.
    fn end(self) -> u64 {
        u64::from(self.first) + u64::from(self.count)
    }

    /// Whether another one continues this one, and both are one extent.
    fn is_continued_by(self, next: Extent) -> bool {
        let longest = if self.is_unwritten { LONGEST_UNWRITTEN } else { LONGEST };
        self.is_unwritten == next.is_unwritten
            && self.end() == u64::from(next.first)
            && self.at + u64::from(self.count) == next.at
            && self.count + next.count <= longest
    }
}

/// Returns the entry of a node above.
fn index_entry(first: u32, block: u64) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    set_word(&mut entry, 0, first);
    set_word(&mut entry, 4, block as u32);
    set_half(&mut entry, 8, (block >> 32) as u16);
    entry
}

fn child_of(entry: &[u8]) -> u64 {
    u64::from(word(entry, 4)) | u64::from(half(entry, 8)) << 32
}

/// Returns the number of entries that a block has room for.
fn entries_of_block(layout: &Layout) -> usize {
    (layout.block - HEADER) / ENTRY
}

/// Fails unless a node's entries are in order, and as many as it has room for.
fn check_node(bytes: &[u8], most: usize) -> Result<(), Error> {
    let damaged = Err(Error::Damaged("a node of a tree of extents"));
    let (count, own_most) = (usize::from(half(bytes, COUNT_AT)), usize::from(half(bytes, MOST_AT)));
    if half(bytes, 0) != MAGIC || own_most > most || count > own_most || half(bytes, DEPTH_AT) > DEEPEST {
        return damaged;
    }
    let is_leaf = half(bytes, DEPTH_AT) == 0;
    if !is_leaf && count == 0 {
        return damaged;
    }
    let mut next = 0;
    for entry in bytes[HEADER..].chunks_exact(ENTRY).take(count) {
        let first = u64::from(word(entry, 0));
        if first < next {
            return damaged;
        }
        next = first + 1;
        if is_leaf {
            let extent = Extent::read(entry);
            if extent.count == 0 || extent.end() > u64::from(u32::MAX) + 1 {
                return damaged;
            }
            next = extent.end();
        }
    }
    Ok(())
}

/// Returns the offset of a node's checksum.
pub(crate) fn checksum_at(bytes: &[u8]) -> usize {
    HEADER + ENTRY * usize::from(half(bytes, MOST_AT))
}

/// Fails unless a block is a node of this inode's tree.
pub(crate) fn check_block(layout: &Layout, owner: BlockOwner, bytes: &[u8]) -> Result<(), Error> {
    check_node(bytes, entries_of_block(layout))?;
    if usize::from(half(bytes, MOST_AT)) < LEAST_ENTRIES {
        return Err(Error::Damaged("a node of a tree of extents"));
    }
    if layout.has_checksums {
        let at = checksum_at(bytes);
        if at + 4 > bytes.len() || word(bytes, at) != crc32c(owner.seed, &bytes[..at]) {
            return Err(Error::Damaged("the checksum of a tree of extents"));
        }
    }
    Ok(())
}

/// Gives a node its checksum.
#[cfg(test)]
fn seal_block(owner: BlockOwner, bytes: &mut [u8]) {
    let at = checksum_at(bytes);
    if at + 4 <= bytes.len() {
        let checksum = crc32c(owner.seed, &bytes[..at]);
        set_word(bytes, at, checksum);
    }
}

/// Returns the root of the tree of a file without blocks.
pub(crate) fn empty_root() -> [u8; MAP] {
    let mut root = [0; MAP];
    set_half(&mut root, 0, MAGIC);
    set_half(&mut root, MOST_AT, ((MAP - HEADER) / ENTRY) as u16);
    root
}

/// A node on the way from the root to a leaf.
#[derive(Clone, Copy, Debug)]
struct PathStep {
    /// Its block; `None` for the root.
    block: Option<u64>,
    /// Number of entries, and of those that have room.
    count: usize,
    most: usize,
    /// Number of entries that begin at the wanted place or before it.
    before: usize,
}

impl PathStep {
    /// Returns the entry below which the wanted place is.
    fn entry(&self) -> usize {
        self.before.saturating_sub(1)
    }
}

/// The way from the root to a leaf.
struct Path {
    steps: [PathStep; DEEPEST as usize + 1],
    depth: usize,
    owner: BlockOwner,
}

/// A part of one extent that is to be changed.
struct ExtentPart {
    path: Path,
    /// The extent's place in its leaf.
    entry: usize,
    /// The blocks of the extent before the part, the part, and those behind it; the first and the last may be none.
    before: Extent,
    part: Extent,
    rest: Extent,
}

impl Path {
    fn leaf(&self) -> &PathStep {
        &self.steps[self.depth]
    }
}

impl<D: Device> Filesystem<D> {
    /// Returns a node.
    fn node<'a>(&'a mut self, inode: &'a Inode, block: Option<u64>, owner: BlockOwner) -> Result<&'a [u8], Error> {
        match block {
            Some(block) => self.blocks.block(block, BlockKind::Extents(owner)),
            None => Ok(inode.map()),
        }
    }

    /// Puts bytes into a node.
    fn put_node(
        &mut self,
        inode: &mut Inode,
        block: Option<u64>,
        owner: BlockOwner,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), Error> {
        match block {
            Some(block) => {
                let part = at..at + bytes.len();
                self.blocks.change(block, BlockKind::Extents(owner), part)?.copy_from_slice(bytes);
            }
            None => {
                let part = inode.map_mut().get_mut(at..at + bytes.len());
                part.ok_or(Error::Damaged("a tree of extents"))?.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Goes from the root to the leaf of a place.
    fn descend(&mut self, inode: &Inode, logical: u32) -> Result<Path, Error> {
        let owner = inode.block_owner(&self.blocks.layout);
        check_node(inode.map(), (MAP - HEADER) / ENTRY)?;
        let none = PathStep { block: None, count: 0, most: 0, before: 0 };
        let depth = half(inode.map(), DEPTH_AT).into();
        let mut path = Path { steps: [none; DEEPEST as usize + 1], depth, owner };
        let mut block = None;
        for level in 0..=depth {
            let bytes = self.node(inode, block, owner)?;
            if usize::from(half(bytes, DEPTH_AT)) != depth - level {
                return Err(Error::Damaged("the depth of a tree of extents"));
            }
            let (count, most) = (usize::from(half(bytes, COUNT_AT)), usize::from(half(bytes, MOST_AT)));
            let entries = bytes[HEADER..].as_chunks::<ENTRY>().0.get(..count).unwrap_or_default();
            let before = entries.partition_point(|entry| word(entry, 0) <= logical);
            let next = entries.get(before.saturating_sub(1)).map(|entry| child_of(entry));
            path.steps[level] = PathStep { block, count, most, before };
            block = next;
        }
        Ok(path)
    }

    /// Returns an entry of a node as an extent.
    fn extent(&mut self, inode: &Inode, path: &Path, entry: usize) -> Result<Extent, Error> {
        let node = self.node(inode, path.leaf().block, path.owner)?;
        let at = HEADER + entry * ENTRY;
        Ok(Extent::read(node.get(at..at + ENTRY).ok_or(Error::Damaged("a tree of extents"))?))
    }

    /// Returns the first number of an entry of a step.
    fn first_of(&mut self, inode: &Inode, path: &Path, level: usize, entry: usize) -> Result<u32, Error> {
        let node = self.node(inode, path.steps[level].block, path.owner)?;
        let at = HEADER + entry * ENTRY;
        Ok(word(node.get(at..at + ENTRY).ok_or(Error::Damaged("a tree of extents"))?, 0))
    }

    /// As [`piece`](Filesystem::piece), of a file with extents.
    pub(crate) fn piece_of_extents(&mut self, inode: &Inode, logical: u32, most: u32) -> Result<MappedPiece, Error> {
        let path = self.descend(inode, logical)?;
        let leaf = *path.leaf();
        if leaf.before > 0 {
            let extent = self.extent(inode, &path, leaf.before - 1)?;
            if extent.end() > logical.into() {
                let within = logical - extent.first;
                return Ok(MappedPiece {
                    count: (extent.count - within).min(most),
                    at: Some(extent.at + u64::from(within)),
                    is_unwritten: extent.is_unwritten,
                });
            }
        }
        // A hole, up to the next extent.
        let mut end = u64::from(logical) + u64::from(most);
        for level in (0..=path.depth).rev() {
            let step = path.steps[level];
            let next = if level == path.depth { step.before } else { step.entry() + 1 };
            if next < step.count {
                let first = self.first_of(inode, &path, level, next)?;
                if first > logical {
                    end = end.min(first.into());
                }
                break;
            }
        }
        Ok(MappedPiece { count: (end - u64::from(logical)) as u32, at: None, is_unwritten: false })
    }

    /// Gives the nodes above one of a way the number of its first entry, which has changed.
    fn correct_firsts(&mut self, inode: &mut Inode, path: &Path, below: usize, first: u32) -> Result<(), Error> {
        for level in (0..below).rev() {
            let (block, entry) = (path.steps[level].block, path.steps[level].entry());
            self.put_node(inode, block, path.owner, HEADER + entry * ENTRY, &first.to_le_bytes())?;
            if entry > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Puts an entry into a node that has room.
    fn insert_entry(
        &mut self,
        inode: &mut Inode,
        step: PathStep,
        owner: BlockOwner,
        place: usize,
        entry: &[u8; ENTRY],
    ) -> Result<(), Error> {
        let (from, end) = (HEADER + place * ENTRY, HEADER + step.count * ENTRY);
        let count = (step.count as u16 + 1).to_le_bytes();
        match step.block {
            Some(block) => {
                let bytes = self.blocks.change(block, BlockKind::Extents(owner), from..end + ENTRY)?;
                bytes.copy_within(..end - from, ENTRY);
                bytes[..ENTRY].copy_from_slice(entry);
            }
            None => {
                let map = inode.map_mut();
                map.copy_within(from..end, from + ENTRY);
                map[from..from + ENTRY].copy_from_slice(entry);
            }
        }
        self.put_node(inode, step.block, owner, COUNT_AT, &count)
    }

    /// Takes an entry from a node.
    fn remove_entry(
        &mut self,
        inode: &mut Inode,
        step: PathStep,
        owner: BlockOwner,
        place: usize,
    ) -> Result<(), Error> {
        let (from, end) = (HEADER + place * ENTRY, HEADER + step.count * ENTRY);
        match step.block {
            Some(block) => {
                let bytes = self.blocks.change(block, BlockKind::Extents(owner), from..end)?;
                bytes.copy_within(ENTRY.., 0);
            }
            None => inode.map_mut().copy_within(from + ENTRY..end, from),
        }
        self.put_node(inode, step.block, owner, COUNT_AT, &(step.count as u16 - 1).to_le_bytes())
    }

    /// Puts an extent into a tree, in which nothing is at its place. The blocks of new nodes are counted.
    pub(crate) fn add_extent(&mut self, inode: &mut Inode, new: Extent) -> Result<(), Error> {
        // Each split makes room on one level.
        for _ in 0..2 * DEEPEST + 2 {
            let path = self.descend(inode, new.first)?;
            let leaf = *path.leaf();
            let place = |entry: usize| HEADER + entry * ENTRY;
            if leaf.before > 0 {
                let before = self.extent(inode, &path, leaf.before - 1)?;
                if before.end() > u64::from(new.first) {
                    return Err(Error::Damaged("extents one over the other"));
                }
                if before.is_continued_by(new) {
                    let both = Extent { count: before.count + new.count, ..before };
                    return self.put_node(inode, leaf.block, path.owner, place(leaf.before - 1), &both.bytes());
                }
            }
            if leaf.before < leaf.count {
                let next = self.extent(inode, &path, leaf.before)?;
                if new.is_continued_by(next) {
                    let both = Extent { count: new.count + next.count, ..new };
                    self.put_node(inode, leaf.block, path.owner, place(leaf.before), &both.bytes())?;
                    if leaf.before == 0 {
                        self.correct_firsts(inode, &path, path.depth, new.first)?;
                    }
                    return Ok(());
                }
            }
            if leaf.count < leaf.most {
                self.insert_entry(inode, leaf, path.owner, leaf.before, &new.bytes())?;
                if leaf.before == 0 {
                    self.correct_firsts(inode, &path, path.depth, new.first)?;
                }
                return Ok(());
            }
            self.split(inode, &path)?;
        }
        Err(Error::Damaged("a tree of extents"))
    }

    /// Makes room on the way to a leaf that is full: one node becomes two, or the root one level more.
    fn split(&mut self, inode: &mut Inode, path: &Path) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let owner = path.owner;
        let near = path.leaf().block.unwrap_or_else(|| layout.start_of((inode.number - 1) / layout.group_inodes));
        // The lowest level above which there is room.
        let above = (0..path.depth).rev().find(|level| path.steps[*level].count < path.steps[*level].most);
        if above.is_none() && path.depth == DEEPEST.into() {
            return Err(Error::TooLarge);
        }
        let (new, _) = self.allocate(near, 1)?;
        inode.add_blocks(&layout, 1)?;
        let most = ((layout.block - HEADER - if layout.has_checksums { 4 } else { 0 }) / ENTRY) as u16;
        let Some(above) = above else {
            // All entries of the root go into the new node, which is the root's only one.
            let root = *inode.map();
            let count = usize::from(half(&root, COUNT_AT));
            let node = self.blocks.make(new, BlockKind::Extents(owner))?;
            node[..HEADER + count * ENTRY].copy_from_slice(&root[..HEADER + count * ENTRY]);
            set_half(node, MOST_AT, most);
            let first = word(&root, HEADER);
            let map = inode.map_mut();
            map[HEADER..].fill(0);
            set_half(map, COUNT_AT, 1);
            set_half(map, DEPTH_AT, path.depth as u16 + 1);
            map[HEADER..HEADER + ENTRY].copy_from_slice(&index_entry(first, new));
            return Ok(());
        };
        let full = path.steps[above + 1];
        // Files grow at their ends, where full nodes are to be left behind.
        let middle = if full.before == full.count { full.count - 1 } else { full.count / 2 };
        let bytes = self.node(inode, full.block, owner)?;
        let moved: Vec<u8> = bytes[HEADER + middle * ENTRY..HEADER + full.count * ENTRY].to_vec();
        let depth = half(bytes, DEPTH_AT);
        let first = word(&moved, 0);
        let node = self.blocks.make(new, BlockKind::Extents(owner))?;
        set_half(node, 0, MAGIC);
        set_half(node, COUNT_AT, (full.count - middle) as u16);
        set_half(node, MOST_AT, most);
        set_half(node, DEPTH_AT, depth);
        node[HEADER..HEADER + moved.len()].copy_from_slice(&moved);
        self.put_node(inode, full.block, owner, COUNT_AT, &(middle as u16).to_le_bytes())?;
        let step = path.steps[above];
        self.insert_entry(inode, step, owner, step.entry() + 1, &index_entry(first, new))
    }

    /// Returns a part of one extent, for a change: the way there, the extent and the part.
    fn part_of_extent(&mut self, inode: &Inode, logical: u32, count: u32) -> Result<ExtentPart, Error> {
        let path = self.descend(inode, logical)?;
        let entry = path.leaf().before.checked_sub(1).ok_or(Error::Damaged("a tree of extents"))?;
        let old = self.extent(inode, &path, entry)?;
        let end = u64::from(logical) + u64::from(count);
        if old.end() < end {
            return Err(Error::Damaged("a tree of extents"));
        }
        let left = logical - old.first;
        let part = Extent { first: logical, count, at: old.at + u64::from(left), ..old };
        let right = (old.end() - end) as u32;
        let rest = Extent { first: end as u32, count: right, at: part.at + u64::from(count), ..old };
        Ok(ExtentPart { path, entry, before: Extent { count: left, ..old }, part, rest })
    }

    /// Notes that blocks which had no bytes of a file have some now: a part of one extent.
    pub(crate) fn mark_written(&mut self, inode: &mut Inode, logical: u32, count: u32) -> Result<(), Error> {
        self.mark_as(inode, logical, count, false)
    }

    /// Notes that blocks of a file are read as zeros from now on: a part of one extent, at most of
    /// [`LONGEST_UNWRITTEN`].
    pub(crate) fn mark_unwritten(&mut self, inode: &mut Inode, logical: u32, count: u32) -> Result<(), Error> {
        self.mark_as(inode, logical, count, true)
    }

    fn mark_as(&mut self, inode: &mut Inode, logical: u32, count: u32, is_unwritten: bool) -> Result<(), Error> {
        let ExtentPart { path, entry, before: shorter, part, rest } = self.part_of_extent(inode, logical, count)?;
        if part.is_unwritten == is_unwritten {
            return Err(Error::Damaged("a tree of extents"));
        }
        let leaf = *path.leaf();
        let marked = Extent { is_unwritten, ..part };
        let at = HEADER + entry * ENTRY;
        if shorter.count > 0 {
            self.put_node(inode, leaf.block, path.owner, at, &shorter.bytes())?;
            self.add_extent(inode, marked)?;
            return if rest.count > 0 { self.add_extent(inode, rest) } else { Ok(()) };
        }
        if rest.count > 0 {
            self.put_node(inode, leaf.block, path.owner, at, &rest.bytes())?;
            if entry == 0 {
                self.correct_firsts(inode, &path, path.depth, rest.first)?;
            }
            return self.add_extent(inode, marked);
        }
        let before = if entry > 0 { Some(self.extent(inode, &path, entry - 1)?) } else { None };
        if let Some(before) = before.filter(|before| before.is_continued_by(marked)) {
            let both = Extent { count: before.count + count, ..before };
            self.put_node(inode, leaf.block, path.owner, at - ENTRY, &both.bytes())?;
            return self.remove_entry(inode, leaf, path.owner, entry);
        }
        self.put_node(inode, leaf.block, path.owner, at, &marked.bytes())
    }

    /// Takes blocks from a file, and frees them: a part of one extent.
    pub(crate) fn punch_extent(&mut self, inode: &mut Inode, logical: u32, count: u32) -> Result<(), Error> {
        let ExtentPart { path, entry, before: shorter, part, rest } = self.part_of_extent(inode, logical, count)?;
        let leaf = *path.leaf();
        let at = HEADER + entry * ENTRY;
        if shorter.count > 0 {
            self.put_node(inode, leaf.block, path.owner, at, &shorter.bytes())?;
            if rest.count > 0 {
                self.add_extent(inode, rest)?;
            }
        } else if rest.count > 0 {
            self.put_node(inode, leaf.block, path.owner, at, &rest.bytes())?;
            if entry == 0 {
                self.correct_firsts(inode, &path, path.depth, rest.first)?;
            }
        } else {
            let next = if entry == 0 && leaf.count > 1 { Some(self.extent(inode, &path, 1)?) } else { None };
            self.remove_entry(inode, leaf, path.owner, entry)?;
            if let Some(next) = next {
                self.correct_firsts(inode, &path, path.depth, next.first)?;
            } else if leaf.count == 1 && path.depth > 0 {
                self.remove_leaf(inode, &path)?;
            }
        }
        self.free_of(inode, part.at, count)
    }

    /// As [`cut_blocks`](Filesystem::cut_blocks), of a file with extents.
    pub(crate) fn cut_extents(&mut self, inode: &mut Inode, from: u32) -> Result<u32, Error> {
        for _ in 0..EXTENTS_OF_A_STEP {
            let path = self.descend(inode, u32::MAX)?;
            let leaf = *path.leaf();
            let Some(entry) = leaf.count.checked_sub(1) else {
                if path.depth > 0 {
                    self.remove_leaf(inode, &path)?;
                    continue;
                }
                return Ok(from);
            };
            let last = self.extent(inode, &path, entry)?;
            if last.end() <= from.into() {
                return Ok(from);
            }
            // Blocks of many groups go in parts: each group has a bitmap that is changed.
            let most = self.most_freed();
            let kept = from.saturating_sub(last.first).max(last.count.saturating_sub(most));
            if kept > 0 {
                let shorter = Extent { count: kept, ..last };
                self.put_node(inode, leaf.block, path.owner, HEADER + entry * ENTRY, &shorter.bytes())?;
                self.free_of(inode, last.at + u64::from(kept), last.count - kept)?;
            } else {
                self.free_of(inode, last.at, last.count)?;
                self.remove_entry(inode, leaf, path.owner, entry)?;
                if entry == 0 && path.depth > 0 {
                    self.remove_leaf(inode, &path)?;
                }
            }
            self.blocks.device().pause();
        }
        // The end of what is left.
        let path = self.descend(inode, u32::MAX)?;
        let end = match path.leaf().count.checked_sub(1) {
            Some(entry) => self.extent(inode, &path, entry)?.end(),
            // A leaf without entries, which only damage makes, is not the end of what is left.
            None if path.depth > 0 => u32::MAX.into(),
            None => 0,
        };
        Ok(u32::try_from(end).unwrap_or(u32::MAX).max(from))
    }

    /// Frees a leaf without entries, and the nodes above it that have no others.
    fn remove_leaf(&mut self, inode: &mut Inode, path: &Path) -> Result<(), Error> {
        let layout = self.blocks.layout;
        for level in (1..=path.depth).rev() {
            let block = path.steps[level].block.ok_or(Error::Damaged("a tree of extents"))?;
            self.free_metadata(block)?;
            inode.add_blocks(&layout, -1)?;
            let above = path.steps[level - 1];
            let is_first = above.count > 1 && above.entry() == 0;
            let next = if is_first { Some(self.first_of(inode, path, level - 1, 1)?) } else { None };
            self.remove_entry(inode, above, path.owner, above.entry())?;
            if let Some(next) = next {
                self.correct_firsts(inode, path, level - 1, next)?;
            }
            if above.count > 1 {
                return Ok(());
            }
        }
        set_half(inode.map_mut(), DEPTH_AT, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::tests::small_layout;

    #[test]
    fn entries_are_read_as_they_were_written() {
        for (count, is_unwritten) in [(1, false), (LONGEST, false), (1, true), (LONGEST_UNWRITTEN, true)] {
            let extent = Extent { first: 7, count, at: 0x1234_5678_9abc, is_unwritten };
            assert_eq!(Extent::read(&extent.bytes()), extent);
        }
        assert_eq!(child_of(&index_entry(3, 0x1234_5678_9abc)), 0x1234_5678_9abc);
    }

    /// A node that is found right has its entries in order, one behind the other.
    #[test]
    fn damaged_nodes_are_refused_or_in_order() {
        let seeds: [&[u8]; 3] = [&[], &[2, 0, 3, 0, 0], &[6, 1, 2, 2, 12, 9, 24, 3]];
        property::fuzz("extents", &seeds, |input| {
            let layout = small_layout(false);
            let mut numbers = property::Numbers::new(input);
            let mut bytes = alloc::vec![0; layout.block];
            bytes[..MAP].copy_from_slice(&empty_root());
            while !numbers.is_empty() {
                let at = numbers.number() as usize % bytes.len();
                bytes[at] = numbers.byte();
            }
            let owner = BlockOwner { inode: 12, seed: 1 };
            if check_block(&layout, owner, &bytes).is_ok() && half(&bytes, DEPTH_AT) == 0 {
                let count = usize::from(half(&bytes, COUNT_AT));
                let entries = bytes[HEADER..].chunks_exact(ENTRY).take(count).map(Extent::read);
                let mut end = 0;
                for extent in entries {
                    assert!(u64::from(extent.first) >= end && extent.count > 0);
                    end = extent.end();
                }
            }
            seal_block(owner, &mut bytes);
        });
    }
}
