//! The index of a directory: nodes with the hashes from which on names are in a block.
//!
//! The first block of the directory is the root: behind the entries of the directory itself and its parent, whose
//! length hides all else from those who know of no index, come the function of the hashes, the number of levels, and
//! the entries. Nodes of the one other level hide their entries behind one without a name. The place of the first
//! entry's hash, which would be 0, has the number of entries, and of those that have room. A hash with its lowest bit
//! says that names of that hash begin in the leaf before.

use alloc::vec::Vec;

use crate::Error;
use crate::blocks::{BlockKind, BlockOwner};
use crate::bytes::{half, set_half, set_word, word};
use crate::checksum::crc32c;
use crate::device::Device;
use crate::directories::{self, PARENT_AT, entry_size, put_entry, put_tail};
use crate::filesystem::Filesystem;
use crate::hashes::{self, NameHash};
use crate::inodes::{HAS_INDEX, Inode};
use crate::superblock::Layout;

/// Offsets in the root: of the function, of the length of what follows from there, and of the number of levels.
const FUNCTION_AT: usize = 28;
const INFORMATION_AT: usize = 29;
const LEVELS_AT: usize = 30;
const INFORMATION: u8 = 8;
/// Offsets of the entries of a root and of another node.
const ROOT_ENTRIES_AT: usize = 32;
const NODE_ENTRIES_AT: usize = 8;
/// Sizes of an entry, and of the checksum behind the last one.
const ENTRY: usize = 8;
const TAIL: usize = 8;
/// Bits of an entry that are the number of a block.
const BLOCK_BITS: u32 = 0x0fff_ffff;
/// Number of levels below the root (Linux: the same, without the feature large_dir).
const MOST_LEVELS: usize = 1;

/// Number of names whose hashes are taken between two pauses.
pub(crate) const NAMES_AT_ONCE: usize = 64;

/// Returns the offset of a node's entries; `None` if it is no node.
fn entries_at(bytes: &[u8]) -> Option<usize> {
    let size = bytes.len();
    if usize::from(half(bytes, 4)) == size && word(bytes, 0) == 0 {
        return Some(NODE_ENTRIES_AT);
    }
    let is_root = usize::from(half(bytes, 4)) == PARENT_AT
        && usize::from(half(bytes, PARENT_AT + 4)) == size - PARENT_AT
        && bytes[INFORMATION_AT] == INFORMATION
        && usize::from(bytes[LEVELS_AT]) <= MOST_LEVELS;
    is_root.then_some(ROOT_ENTRIES_AT)
}

/// Returns the number of entries that have room behind an offset.
fn room(layout: &Layout, at: usize) -> usize {
    (layout.block - at - if layout.has_checksums { TAIL } else { 0 }) / ENTRY
}

fn checksum_of(owner: BlockOwner, bytes: &[u8], at: usize) -> (usize, u32) {
    let (most, count) = (usize::from(half(bytes, at)), usize::from(half(bytes, at + 2)));
    let tail = at + most * ENTRY;
    let sum = crc32c(owner.seed, &bytes[..at + count * ENTRY]);
    (tail + 4, crc32c(crc32c(sum, &bytes[tail..tail + 4]), &[0; 4]))
}

/// Fails unless a block is a node of a directory's index.
pub(crate) fn check_node(layout: &Layout, owner: BlockOwner, bytes: &[u8]) -> Result<(), Error> {
    let damaged = Err(Error::Damaged("the index of a directory"));
    let Some(at) = entries_at(bytes) else { return damaged };
    let (most, count) = (usize::from(half(bytes, at)), usize::from(half(bytes, at + 2)));
    if most != room(layout, at) || count == 0 || count > most {
        return damaged;
    }
    if layout.has_checksums {
        let (place, checksum) = checksum_of(owner, bytes, at);
        if word(bytes, place) != checksum {
            return Err(Error::Damaged("the checksum of a directory's index"));
        }
    }
    Ok(())
}

/// Gives a node its checksum.
pub(crate) fn seal_node(owner: BlockOwner, bytes: &mut [u8]) {
    if let Some(at) = entries_at(bytes) {
        let (place, checksum) = checksum_of(owner, bytes, at);
        set_word(bytes, place, checksum);
    }
}

/// A node on the way to a leaf.
#[derive(Clone, Copy)]
struct IndexStep {
    block: u64,
    /// Offset of its entries, their number, and the one on the way.
    at: usize,
    count: usize,
    entry: usize,
}

/// The way to a leaf.
#[derive(Clone, Copy)]
pub(crate) struct IndexPath {
    steps: [IndexStep; MOST_LEVELS + 1],
    levels: usize,
    /// The block with the names.
    pub(crate) leaf: u64,
}

impl<D: Device> Filesystem<D> {
    /// Returns the function of a directory's hashes.
    pub(crate) fn hash_function(&mut self, directory: &Inode) -> Result<u8, Error> {
        let (kind, _) = self.kinds_of(directory);
        let block = self.block_at(directory, 0)?;
        Ok(self.blocks.block(block, kind)?[FUNCTION_AT])
    }

    /// Returns the hash of a name, and the leaf in which names of it begin.
    pub(crate) fn leaf_of(&mut self, directory: &Inode, name: &[u8]) -> Result<(NameHash, IndexPath), Error> {
        let function = self.hash_function(directory)?;
        let hash = hashes::hash(&self.blocks.layout, function, name).ok_or(Error::Unsupported)?;
        Ok((hash, self.leaf_of_hash(directory, hash.major)?))
    }

    /// Returns the first leaf.
    pub(crate) fn first_leaf(&mut self, directory: &Inode) -> Result<IndexPath, Error> {
        self.leaf_of_hash(directory, 0)
    }

    /// Returns the leaf in which names of a hash begin.
    pub(crate) fn leaf_of_hash(&mut self, directory: &Inode, hash: u32) -> Result<IndexPath, Error> {
        let (kind, _) = self.kinds_of(directory);
        let none = IndexStep { block: 0, at: 0, count: 0, entry: 0 };
        let mut path = IndexPath { steps: [none; MOST_LEVELS + 1], levels: 0, leaf: 0 };
        let mut logical = 0;
        for level in 0..=MOST_LEVELS {
            let block = self.block_of_directory(directory, logical)?;
            let bytes = self.blocks.block(block, kind)?;
            let at = entries_at(bytes).ok_or(Error::Damaged("the index of a directory"))?;
            if (at == ROOT_ENTRIES_AT) != (level == 0) {
                return Err(Error::Damaged("the index of a directory"));
            }
            if level == 0 {
                path.levels = bytes[LEVELS_AT].into();
            }
            let count = usize::from(half(bytes, at + 2));
            let entries = bytes[at..].as_chunks::<ENTRY>().0.get(1..count).unwrap_or_default();
            let entry = entries.partition_point(|entry| word(entry, 0) <= hash);
            path.steps[level] = IndexStep { block, at, count, entry };
            logical = word(bytes, at + entry * ENTRY + 4) & BLOCK_BITS;
            if level == path.levels {
                break;
            }
        }
        path.leaf = self.block_of_directory(directory, logical)?;
        Ok(path)
    }

    /// Returns the place of a directory's block.
    fn block_of_directory(&mut self, directory: &Inode, logical: u32) -> Result<u64, Error> {
        if logical >= self.blocks_of_directory(directory)? {
            return Err(Error::Damaged("the index of a directory"));
        }
        self.block_at(directory, logical)
    }

    /// Goes to the next leaf; returns the hash from which on it has names, and `None` behind the last one.
    pub(crate) fn next_leaf(&mut self, directory: &Inode, path: &mut IndexPath) -> Result<Option<u32>, Error> {
        let (kind, _) = self.kinds_of(directory);
        let above = (0..=path.levels).rev().find(|level| path.steps[*level].entry + 1 < path.steps[*level].count);
        let Some(above) = above else { return Ok(None) };
        let step = &mut path.steps[above];
        step.entry += 1;
        let (block, place) = (step.block, step.at + step.entry * ENTRY);
        let bytes = self.blocks.block(block, kind)?;
        let (hash, mut logical) = (word(bytes, place), word(bytes, place + 4) & BLOCK_BITS);
        for level in above + 1..=path.levels {
            let block = self.block_of_directory(directory, logical)?;
            let bytes = self.blocks.block(block, kind)?;
            let at = entries_at(bytes).filter(|at| *at == NODE_ENTRIES_AT);
            let at = at.ok_or(Error::Damaged("the index of a directory"))?;
            path.steps[level] = IndexStep { block, at, count: half(bytes, at + 2).into(), entry: 0 };
            logical = word(bytes, at + 4) & BLOCK_BITS;
        }
        path.leaf = self.block_of_directory(directory, logical)?;
        Ok(Some(hash))
    }

    /// Gives a directory of one block an index: its names go into a second block. Returns whether the function of its
    /// hashes is known.
    pub(crate) fn make_index(&mut self, directory: &mut Inode) -> Result<bool, Error> {
        let layout = self.blocks.layout;
        if hashes::hash(&layout, layout.hash, b"").is_none() {
            return Ok(false);
        }
        let (_, names) = self.kinds_of(directory);
        let owner = directory.block_owner(&layout);
        let root = self.block_at(directory, 0)?;
        let old = self.blocks.block(root, names)?.to_vec();
        let (own, parent) = (word(&old, 0), word(&old, PARENT_AT));
        let is_usual = usize::from(half(&old, 4)) == PARENT_AT && old[PARENT_AT + 6] == 2;
        if !is_usual {
            return Ok(false);
        }
        let (logical, leaf) = self.add_block(directory, names)?;
        let bytes = self.blocks.change(leaf, names, 0..layout.block)?;
        let moved: Vec<_> = directories::entries(&layout, &old)
            .filter(|entry| entry.inode != 0 && entry.name != b"." && entry.name != b"..")
            .map(|entry| (entry.inode, entry.file_type, entry.name))
            .collect();
        pack(&layout, bytes, &moved);
        let bytes = self.blocks.change(root, names, 0..layout.block)?;
        bytes.fill(0);
        put_entry(&layout, bytes, 0, PARENT_AT, (own, 2, b"."));
        put_entry(&layout, bytes, PARENT_AT, layout.block - PARENT_AT, (parent, 2, b".."));
        bytes[FUNCTION_AT] = layout.hash;
        bytes[INFORMATION_AT] = INFORMATION;
        set_half(bytes, ROOT_ENTRIES_AT, room(&layout, ROOT_ENTRIES_AT) as u16);
        set_half(bytes, ROOT_ENTRIES_AT + 2, 1);
        set_word(bytes, ROOT_ENTRIES_AT + 4, logical);
        self.blocks.use_as(root, BlockKind::Index(owner));
        directory.set_flags(directory.flags() | HAS_INDEX);
        Ok(true)
    }

    /// Adds a name that is not there to a directory with an index, in whose leaf there is no room.
    pub(crate) fn add_indexed_name(
        &mut self,
        directory: &mut Inode,
        name: &[u8],
        file: (u32, u8),
    ) -> Result<(), Error> {
        let (_, names) = self.kinds_of(directory);
        // Each round splits the leaf, or a node above it.
        for _ in 0..8 {
            let (hash, mut path) = self.leaf_of(directory, name)?;
            if let Some(room) = self.room_in(path.leaf, names, name)? {
                return self.put_name(room, names, name, file);
            }
            // Names of one hash may be in several leaves, the last of which has room.
            let mut next = path;
            while self.next_leaf(directory, &mut next)? == Some(hash.major | 1) {
                path = next;
                if let Some(room) = self.room_in(path.leaf, names, name)? {
                    return self.put_name(room, names, name, file);
                }
            }
            if self.make_room_above(directory, &path)? {
                self.split_leaf(directory, &path)?;
            }
        }
        Err(Error::NoSpace)
    }

    /// Has the node above a leaf have room for one more entry; returns whether it had.
    fn make_room_above(&mut self, directory: &mut Inode, path: &IndexPath) -> Result<bool, Error> {
        let layout = self.blocks.layout;
        let (kind, _) = self.kinds_of(directory);
        let last = path.steps[path.levels];
        if last.count < room(&layout, last.at) {
            return Ok(true);
        }
        let root = path.steps[0];
        if path.levels > 0 && root.count >= room(&layout, root.at) {
            return Err(Error::NoSpace);
        }
        // From the middle on, the entries go into a new node; of the root all of them.
        let middle = if path.levels == 0 { 0 } else { last.count / 2 };
        let bytes = self.blocks.block(last.block, kind)?;
        let moved = bytes[last.at + middle * ENTRY..last.at + last.count * ENTRY].to_vec();
        let (logical, node) = self.add_block(directory, kind)?;
        let bytes = self.blocks.change(node, kind, 0..layout.block)?;
        set_half(bytes, 4, layout.block as u16);
        bytes[NODE_ENTRIES_AT..NODE_ENTRIES_AT + moved.len()].copy_from_slice(&moved);
        set_half(bytes, NODE_ENTRIES_AT, room(&layout, NODE_ENTRIES_AT) as u16);
        set_half(bytes, NODE_ENTRIES_AT + 2, (moved.len() / ENTRY) as u16);
        if path.levels == 0 {
            let part = self.blocks.change(root.block, kind, 0..layout.block)?;
            part[LEVELS_AT] = 1;
            set_half(part, root.at + 2, 1);
            set_word(part, root.at + 4, logical);
        } else {
            let part = self.blocks.change(last.block, kind, last.at + 2..last.at + 4)?;
            set_half(part, 0, middle as u16);
            self.insert_in_node(root, kind, word(&moved, 0), logical)?;
        }
        Ok(false)
    }

    /// Puts an entry into a node that has room, behind the one on the way.
    fn insert_in_node(&mut self, step: IndexStep, kind: BlockKind, hash: u32, logical: u32) -> Result<(), Error> {
        let place = step.at + (step.entry + 1) * ENTRY;
        let end = step.at + step.count * ENTRY;
        let part = self.blocks.change(step.block, kind, place..end + ENTRY)?;
        part.copy_within(..end - place, ENTRY);
        set_word(part, 0, hash);
        set_word(part, 4, logical);
        let part = self.blocks.change(step.block, kind, step.at + 2..step.at + 4)?;
        set_half(part, 0, step.count as u16 + 1);
        Ok(())
    }

    /// Splits a leaf in two halves by the hashes of its names. The node above it has room.
    fn split_leaf(&mut self, directory: &mut Inode, path: &IndexPath) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let (kind, names) = self.kinds_of(directory);
        let function = self.hash_function(directory)?;
        let old = self.blocks.block(path.leaf, names)?.to_vec();
        let mut sorted = Vec::new();
        for entry in directories::entries(&layout, &old).filter(|entry| entry.inode != 0) {
            let hash = hashes::hash(&layout, function, entry.name).ok_or(Error::Unsupported)?;
            sorted.push((hash.major, (entry.inode, entry.file_type, entry.name)));
            if sorted.len().is_multiple_of(NAMES_AT_ONCE) {
                self.blocks.device().pause();
            }
        }
        sorted.sort_by_key(|(hash, _)| *hash);
        let size = |entry: &(u32, (u32, u8, &[u8]))| entry_size(entry.1.2.len());
        let whole: usize = sorted.iter().map(size).sum();
        let (mut middle, mut kept) = (0, 0);
        while middle < sorted.len() && kept + size(&sorted[middle]) <= whole / 2 {
            kept += size(&sorted[middle]);
            middle += 1;
        }
        let middle = middle.clamp(1, sorted.len().saturating_sub(1).max(1));
        let Some((first, _)) = sorted.get(middle).copied() else {
            return Err(Error::Damaged("a directory's leaf of one name"));
        };
        let continues = u32::from(sorted[middle - 1].0 == first);
        let all: Vec<_> = sorted.iter().map(|(_, entry)| *entry).collect();
        let (low, high) = all.split_at(middle);
        let (logical, leaf) = self.add_block(directory, names)?;
        pack(&layout, self.blocks.change(leaf, names, 0..layout.block)?, high);
        pack(&layout, self.blocks.change(path.leaf, names, 0..layout.block)?, low);
        self.insert_in_node(path.steps[path.levels], kind, first | continues, logical)
    }
}

/// Puts names into a block, one behind the other; the last has all the room.
fn pack(layout: &Layout, bytes: &mut [u8], names: &[(u32, u8, &[u8])]) {
    let end = directories::names_end(layout);
    bytes[..end].fill(0);
    put_tail(layout, bytes);
    let mut at = 0;
    for (number, entry) in names.iter().enumerate() {
        let length = if number + 1 == names.len() { end - at } else { entry_size(entry.2.len()) };
        put_entry(layout, bytes, at, length, *entry);
        at += length;
    }
    if names.is_empty() {
        directories::put_no_names(layout, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::tests::small_layout;

    /// A node that is found right has its entries within itself, and can be sealed.
    #[test]
    fn damaged_nodes_are_refused_or_within_their_block() {
        let seeds: [&[u8]; 3] = [&[], &[1, 32, 5, 34, 7], &[0, 5, 4, 4, 0]];
        property::fuzz("index", &seeds, |input| {
            let mut numbers = property::Numbers::new(input);
            let layout = small_layout(numbers.byte().is_multiple_of(2));
            let owner = BlockOwner { inode: 12, seed: 1 };
            let mut bytes = alloc::vec![0; layout.block];
            put_entry(&layout, &mut bytes, 0, PARENT_AT, (12, 2, b"."));
            put_entry(&layout, &mut bytes, PARENT_AT, layout.block - PARENT_AT, (2, 2, b".."));
            bytes[INFORMATION_AT] = INFORMATION;
            set_half(&mut bytes, ROOT_ENTRIES_AT, room(&layout, ROOT_ENTRIES_AT) as u16);
            set_half(&mut bytes, ROOT_ENTRIES_AT + 2, 1);
            while !numbers.is_empty() {
                let at = numbers.number() as usize % bytes.len();
                bytes[at] = numbers.byte();
            }
            if check_node(&layout, owner, &bytes) == Err(Error::Damaged("the checksum of a directory's index")) {
                seal_node(owner, &mut bytes);
                assert_eq!(check_node(&layout, owner, &bytes), Ok(()));
            }
        });
    }
}
