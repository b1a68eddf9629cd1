//! Names of directories: entries in blocks, one behind the other. Directories of several blocks may have an
//! [index](crate::index), which finds the one block that a name can be in.

use alloc::vec::Vec;

use crate::Error;
use crate::blocks::{BlockKind, BlockOwner};
use crate::bytes::{half, set_half, set_word, word};
use crate::checksum::crc32c;
use crate::device::Device;
use crate::filesystem::Filesystem;
use crate::hashes::NameHash;
use crate::index::NAMES_AT_ONCE;
use crate::inodes::{HAS_INDEX, Inode};
use crate::superblock::Layout;
use crate::volume::kind;

/// Bytes of the largest directory.
const LARGEST_DIRECTORY: u64 = 64 << 20;
/// Number of blocks of names that are looked at between two pauses.
const BLOCKS_AT_ONCE: u32 = 8;
/// Number of leaves in which names of one hash may be.
const MOST_OF_ONE_HASH: usize = 64;
/// Bytes of an entry before its name, and of the entry at the end of a block that has its checksum.
pub(crate) const ENTRY: usize = 8;
const TAIL: usize = 12;
const TAIL_TYPE: u8 = 0xde;
/// Offset of the checksum in that entry.
pub(crate) const CHECKSUM_IN_TAIL: usize = 8;
/// Place of the entry of the directory above, behind the one of the directory itself.
pub(crate) const PARENT_AT: usize = 12;

/// Returns the bytes that an entry takes.
pub(crate) fn entry_size(name: usize) -> usize {
    (ENTRY + name).next_multiple_of(4)
}

/// Returns the type of a file as names have it.
pub(crate) fn type_of(mode: u16) -> u8 {
    match mode & kind::MASK {
        kind::REGULAR => 1,
        kind::DIRECTORY => 2,
        0o020_000 => 3,
        0o060_000 => 4,
        kind::FIFO => 5,
        kind::SOCKET => 6,
        kind::SYMBOLIC_LINK => 7,
        _ => 0,
    }
}

/// A name in a block.
#[derive(Clone, Copy)]
pub(crate) struct NameEntry<'a> {
    pub(crate) at: usize,
    /// Bytes up to the next entry.
    pub(crate) length: usize,
    /// The file; 0 for an entry without a name.
    pub(crate) inode: u32,
    pub(crate) file_type: u8,
    pub(crate) name: &'a [u8],
}

/// Returns the entries of a block that was checked, also those without names, and not the one of the checksum.
pub(crate) fn entries<'a>(layout: &Layout, bytes: &'a [u8]) -> impl Iterator<Item = NameEntry<'a>> {
    let end = names_end(layout);
    let mut at = 0;
    core::iter::from_fn(move || {
        let header = bytes.get(at..at + ENTRY).filter(|_| at < end)?;
        let (inode, length, name) = (word(header, 0), usize::from(half(header, 4)), usize::from(header[6]));
        let name = bytes.get(at + ENTRY..at + ENTRY + name)?;
        let entry = NameEntry { at, length, inode, file_type: header[7], name };
        // A length of 0 would be a loop.
        at += length.max(ENTRY);
        Some(entry)
    })
}

/// Returns the end of a block's names.
pub(crate) fn names_end(layout: &Layout) -> usize {
    layout.block - if layout.has_checksums { TAIL } else { 0 }
}

/// Fails unless a block has entries one behind the other, and its checksum.
pub(crate) fn check_names(layout: &Layout, owner: BlockOwner, bytes: &[u8]) -> Result<(), Error> {
    let end = names_end(layout);
    let mut at = 0;
    while at < end {
        let (inode, length, name) = (word(bytes, at), usize::from(half(bytes, at + 4)), usize::from(bytes[at + 6]));
        let is_right = length >= ENTRY
            && length.is_multiple_of(4)
            && ENTRY + name <= length
            && at + length <= end
            && (inode == 0 || inode <= layout.inodes && name > 0);
        if !is_right {
            return Err(Error::Damaged("a name of a directory"));
        }
        at += length;
        if at < end && at + ENTRY > end {
            return Err(Error::Damaged("a name of a directory"));
        }
    }
    if !layout.has_checksums {
        return Ok(());
    }
    let is_tail = word(bytes, end) == 0 && half(bytes, end + 4) == TAIL as u16 && bytes[end + 7] == TAIL_TYPE;
    if !is_tail || word(bytes, end + 8) != crc32c(owner.seed, &bytes[..end]) {
        return Err(Error::Damaged("the checksum of a directory"));
    }
    Ok(())
}

/// Gives a block of names its checksum.
#[cfg(test)]
fn seal_names(layout: &Layout, owner: BlockOwner, bytes: &mut [u8]) {
    let end = names_end(layout);
    let checksum = crc32c(owner.seed, &bytes[..end]);
    set_word(bytes, end + CHECKSUM_IN_TAIL, checksum);
}

/// Puts an entry into a block.
pub(crate) fn put_entry(
    layout: &Layout,
    bytes: &mut [u8],
    at: usize,
    length: usize,
    (inode, file_type, name): (u32, u8, &[u8]),
) {
    set_word(bytes, at, inode);
    set_half(bytes, at + 4, length as u16);
    bytes[at + 6] = name.len() as u8;
    bytes[at + 7] = if layout.has_types { file_type } else { 0 };
    bytes[at + ENTRY..at + ENTRY + name.len()].copy_from_slice(name);
}

/// Makes a block without names, whose bytes are zeros.
pub(crate) fn put_no_names(layout: &Layout, bytes: &mut [u8]) {
    let end = names_end(layout);
    set_half(bytes, 4, end as u16);
    put_tail(layout, bytes);
}

/// Puts the entry of the checksum at the end of a block.
pub(crate) fn put_tail(layout: &Layout, bytes: &mut [u8]) {
    if layout.has_checksums {
        let end = names_end(layout);
        bytes[end..].fill(0);
        set_half(bytes, end + 4, TAIL as u16);
        bytes[end + 7] = TAIL_TYPE;
    }
}

/// The place of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamePlace {
    pub(crate) block: u64,
    /// The kind of the block: the first one of a directory with an index has the names of both directories.
    pub(crate) kind: BlockKind,
    pub(crate) at: usize,
    /// The entry before it in its block.
    pub(crate) before: Option<usize>,
    pub(crate) inode: u32,
}

/// An entry behind whose name there is room for another one, or without a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameRoom {
    block: u64,
    at: usize,
}

/// The outcome of a search for a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Searched {
    /// It is there.
    Found(NamePlace),
    /// It is not; perhaps there was room for it.
    Missing(Option<NameRoom>),
}

/// Looks for a name in a block, and for room for it.
fn search_block(
    layout: &Layout,
    bytes: &[u8],
    (block, kind): (u64, BlockKind),
    name: &[u8],
    room: &mut Option<NameRoom>,
) -> Option<NamePlace> {
    let (end, size) = (names_end(layout), entry_size(name.len()));
    let (mut at, mut before) = (0, None);
    while at < end {
        let header = bytes.get(at..)?.first_chunk::<ENTRY>()?;
        let (inode, length) = (word(header, 0), usize::from(half(header, 4)));
        let own = usize::from(header[6]);
        if inode != 0 && own == name.len() && bytes.get(at + ENTRY..at + ENTRY + own) == Some(name) {
            return Some(NamePlace { block, kind, at, before, inode });
        }
        let used = if inode == 0 { 0 } else { entry_size(own) };
        if room.is_none() && length >= used + size {
            *room = Some(NameRoom { block, at });
        }
        before = Some(at);
        at += length.max(ENTRY);
    }
    None
}

impl<D: Device> Filesystem<D> {
    /// Returns the number of a directory's blocks.
    pub(crate) fn blocks_of_directory(&self, directory: &Inode) -> Result<u32, Error> {
        let (size, block) = (directory.size(), self.blocks.layout.block as u64);
        if size > LARGEST_DIRECTORY || !size.is_multiple_of(block) || size == 0 {
            return Err(Error::Damaged("the size of a directory"));
        }
        Ok((size / block) as u32)
    }

    /// Returns the kind of a directory's first block, and of those with names.
    pub(crate) fn kinds_of(&self, directory: &Inode) -> (BlockKind, BlockKind) {
        let owner = directory.block_owner(&self.blocks.layout);
        let names = BlockKind::Names(owner);
        (if directory.has(HAS_INDEX) { BlockKind::Index(owner) } else { names }, names)
    }

    /// Looks for a name in a directory, and for room for it.
    pub(crate) fn search(&mut self, directory: &Inode, name: &[u8]) -> Result<Searched, Error> {
        let layout = self.blocks.layout;
        let (first, names) = self.kinds_of(directory);
        let mut room = None;
        if directory.has(HAS_INDEX) {
            if name == b"." || name == b".." {
                return self.search_reserved(directory, name, first);
            }
            let (hash, mut path) = self.leaf_of(directory, name)?;
            loop {
                let block = path.leaf;
                let bytes = self.blocks.block(block, names)?;
                if let Some(found) = search_block(&layout, bytes, (block, names), name, &mut room) {
                    return Ok(Searched::Found(found));
                }
                // The next leaf may have names of one hash with this one.
                let next = self.next_leaf(directory, &mut path)?;
                if next != Some(hash.major | 1) {
                    return Ok(Searched::Missing(room));
                }
                self.blocks.device().pause();
            }
        }
        let count = self.blocks_of_directory(directory)?;
        let mut logical = 0;
        while logical < count {
            let piece = self.piece(directory, logical, count - logical)?;
            let start = piece.at.filter(|_| !piece.is_unwritten).ok_or(Error::Damaged("a hole in a directory"))?;
            for block in start..start + u64::from(piece.count) {
                let bytes = self.blocks.block(block, names)?;
                if let Some(found) = search_block(&layout, bytes, (block, names), name, &mut room) {
                    return Ok(Searched::Found(found));
                }
                logical += 1;
                if logical.is_multiple_of(BLOCKS_AT_ONCE) {
                    self.blocks.device().pause();
                }
            }
        }
        Ok(Searched::Missing(room))
    }

    /// Looks for one of the two names that all directories have, in a directory with an index.
    fn search_reserved(&mut self, directory: &Inode, name: &[u8], kind: BlockKind) -> Result<Searched, Error> {
        let block = self.block_at(directory, 0)?;
        let bytes = self.blocks.block(block, kind)?;
        let (at, before) = if name == b"." { (0, None) } else { (PARENT_AT, Some(0)) };
        Ok(Searched::Found(NamePlace { block, kind, at, before, inode: word(bytes, at) }))
    }

    /// Returns the place of a name; `None` if there is none.
    pub(crate) fn find_name(&mut self, directory: &Inode, name: &[u8]) -> Result<Option<NamePlace>, Error> {
        match self.search(directory, name)? {
            Searched::Found(place) => Ok(Some(place)),
            Searched::Missing(_) => Ok(None),
        }
    }

    /// Takes a name from its directory.
    pub(crate) fn remove_name(&mut self, place: NamePlace) -> Result<(), Error> {
        let bytes = self.blocks.block(place.block, place.kind)?;
        let Some(before) = place.before else {
            let part = place.at..place.at + 4;
            self.blocks.change(place.block, place.kind, part)?.fill(0);
            return Ok(());
        };
        let length = half(bytes, before + 4) + half(bytes, place.at + 4);
        let part = before + 4..before + 6;
        set_half(self.blocks.change(place.block, place.kind, part)?, 0, length);
        Ok(())
    }

    /// Has a name lead to another file.
    pub(crate) fn redirect_name(&mut self, place: NamePlace, inode: u32, file_type: u8) -> Result<(), Error> {
        set_word(self.blocks.change(place.block, place.kind, place.at..place.at + 4)?, 0, inode);
        if self.blocks.layout.has_types {
            self.blocks.change(place.block, place.kind, place.at + 7..place.at + 8)?[0] = file_type;
        }
        Ok(())
    }

    /// Adds a name that is not there to a directory, which is stored by the caller; there may be room for it.
    pub(crate) fn add_name(
        &mut self,
        directory: &mut Inode,
        name: &[u8],
        file: (u32, u8),
        room: Option<NameRoom>,
    ) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let (_, names) = self.kinds_of(directory);
        if let Some(room) = room {
            return self.put_name(room, names, name, file);
        }
        if directory.has(HAS_INDEX) {
            return self.add_indexed_name(directory, name, file);
        }
        if layout.has_indexes && self.blocks_of_directory(directory)? == 1 && self.make_index(directory)? {
            return self.add_indexed_name(directory, name, file);
        }
        let (_, block) = self.add_block(directory, names)?;
        put_no_names(&layout, self.blocks.change(block, names, 0..layout.block)?);
        self.put_name(NameRoom { block, at: 0 }, names, name, file)
    }

    /// Looks for room for a name in a block.
    pub(crate) fn room_in(&mut self, block: u64, kind: BlockKind, name: &[u8]) -> Result<Option<NameRoom>, Error> {
        let layout = self.blocks.layout;
        let mut room = None;
        let found = search_block(&layout, self.blocks.block(block, kind)?, (block, kind), name, &mut room);
        if found.is_some() { Err(Error::AlreadyExists) } else { Ok(room) }
    }

    /// Puts a name where there is room for it.
    pub(crate) fn put_name(
        &mut self,
        room: NameRoom,
        kind: BlockKind,
        name: &[u8],
        (inode, file_type): (u32, u8),
    ) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let bytes = self.blocks.block(room.block, kind)?;
        let header = bytes.get(room.at..room.at + ENTRY).ok_or(Error::Damaged("a name of a directory"))?;
        let length = usize::from(half(header, 4));
        let used = if word(header, 0) == 0 { 0 } else { entry_size(header[6].into()) };
        let size = entry_size(name.len());
        if length < used + size {
            return Err(Error::Damaged("a name of a directory"));
        }
        if used > 0 {
            let part = room.at + 4..room.at + 6;
            set_half(self.blocks.change(room.block, kind, part)?, 0, used as u16);
        }
        let at = room.at + used;
        let part = self.blocks.change(room.block, kind, at..at + size)?;
        put_entry(&layout, part, 0, length - used, (inode, file_type, name));
        Ok(())
    }

    /// Gives a directory another block of zeros; returns its number there, and its place.
    pub(crate) fn add_block(&mut self, directory: &mut Inode, kind: BlockKind) -> Result<(u32, u64), Error> {
        let size = directory.size();
        let logical = self.blocks_of_directory(directory)?;
        let block = self.blocks.layout.block as u64;
        if size + block > LARGEST_DIRECTORY {
            return Err(Error::NoSpace);
        }
        if self.piece(directory, logical, 1)?.at.is_some() {
            return Err(Error::Damaged("a block behind a directory's end"));
        }
        let (at, _) = self.fill_hole(directory, logical, 1)?;
        self.blocks.make(at, kind)?;
        directory.set_size(size + block);
        Ok((logical, at))
    }

    /// Gives a new directory its first block, with its own name and its parent's.
    pub(crate) fn begin_directory(&mut self, directory: &mut Inode, parent: u32) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let (_, names) = self.kinds_of(directory);
        let (at, _) = self.fill_hole(directory, 0, 1)?;
        let bytes = self.blocks.make(at, names)?;
        put_entry(&layout, bytes, 0, PARENT_AT, (directory.number, 2, b"."));
        put_entry(&layout, bytes, PARENT_AT, names_end(&layout) - PARENT_AT, (parent, 2, b".."));
        put_tail(&layout, bytes);
        directory.set_size(layout.block as u64);
        Ok(())
    }

    /// Whether a directory has no names but its own and its parent's.
    pub(crate) fn is_empty(&mut self, directory: &Inode) -> Result<bool, Error> {
        let layout = self.blocks.layout;
        let (_, names) = self.kinds_of(directory);
        let has_any = |bytes: &[u8]| {
            entries(&layout, bytes).any(|entry| entry.inode != 0 && entry.name != b"." && entry.name != b"..")
        };
        if directory.has(HAS_INDEX) {
            let mut path = self.first_leaf(directory)?;
            loop {
                if has_any(self.blocks.block(path.leaf, names)?) {
                    return Ok(false);
                }
                self.blocks.device().pause();
                if self.next_leaf(directory, &mut path)?.is_none() {
                    return Ok(true);
                }
            }
        }
        for logical in 0..self.blocks_of_directory(directory)? {
            let block = self.block_at(directory, logical)?;
            if has_any(self.blocks.block(block, names)?) {
                return Ok(false);
            }
            if logical % BLOCKS_AT_ONCE == BLOCKS_AT_ONCE - 1 {
                self.blocks.device().pause();
            }
        }
        Ok(true)
    }
}

/// A name of a listing.
pub(crate) struct ListedName {
    pub(crate) inode: u32,
    pub(crate) file_type: u8,
    pub(crate) name: Vec<u8>,
    /// The place of the next name.
    pub(crate) next: ListingCursor,
}

/// A place in a listing: of a directory without an index the offset of an entry, of others that of hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListingCursor {
    /// The beginning.
    Start,
    /// From this offset on.
    Offset(u64),
    /// From this hash on, and from this one among the names that have it.
    Hash {
        /// The first hash.
        major: u32,
        /// The second one.
        minor: u32,
        /// The number among the names with both.
        number: u32,
    },
    /// The end.
    End,
}

/// A name of some leaves: the key of its place, and where it is.
type Keyed = ((NameHash, u32), u32, u8, Vec<u8>);

impl<D: Device> Filesystem<D> {
    /// Lists at most so many names from a place on.
    pub(crate) fn list_names(
        &mut self,
        directory: &Inode,
        cursor: ListingCursor,
        most: usize,
    ) -> Result<Vec<ListedName>, Error> {
        let is_indexed = directory.has(HAS_INDEX);
        match cursor {
            ListingCursor::End => Ok(Vec::new()),
            ListingCursor::Hash { major, minor, number } if is_indexed => {
                self.list_indexed(directory, (NameHash { major, minor }, number), most)
            }
            // The directory has got an index since the place was named, or lost it: it begins again.
            _ if is_indexed => self.list_indexed(directory, (NameHash { major: 0, minor: 0 }, 0), most),
            ListingCursor::Offset(offset) => self.list_linear(directory, offset, most),
            _ => self.list_linear(directory, 0, most),
        }
    }

    fn list_linear(&mut self, directory: &Inode, from: u64, most: usize) -> Result<Vec<ListedName>, Error> {
        let layout = self.blocks.layout;
        let (_, names) = self.kinds_of(directory);
        let block_size = layout.block as u64;
        let count = self.blocks_of_directory(directory)?;
        let mut listed: Vec<ListedName> = Vec::new();
        for logical in u32::try_from(from / block_size).unwrap_or(u32::MAX)..count {
            let start = u64::from(logical) * block_size;
            if logical % BLOCKS_AT_ONCE == BLOCKS_AT_ONCE - 1 {
                self.blocks.device().pause();
            }
            let block = self.block_at(directory, logical)?;
            let bytes = self.blocks.block(block, names)?;
            for entry in entries(&layout, bytes).filter(|entry| entry.inode != 0) {
                if start + (entry.at as u64) < from {
                    continue;
                }
                let next = ListingCursor::Offset(start + (entry.at + entry.length) as u64);
                push(&mut listed, (entry.inode, entry.file_type, entry.name), next)?;
                if listed.len() == most {
                    return Ok(listed);
                }
            }
        }
        Ok(listed)
    }

    fn list_indexed(
        &mut self,
        directory: &Inode,
        from: (NameHash, u32),
        most: usize,
    ) -> Result<Vec<ListedName>, Error> {
        let mut listed: Vec<ListedName> = Vec::new();
        let mut path = self.leaf_of_hash(directory, from.0.major)?;
        let mut is_first = from == (NameHash { major: 0, minor: 0 }, 0) || from.0.major <= 2;
        loop {
            let mut group: Vec<Keyed> = Vec::new();
            if core::mem::take(&mut is_first) {
                self.gather_reserved(directory, &mut group)?;
            }
            // With all leaves that continue it.
            let mut leaves = 0;
            let is_last = loop {
                leaves += 1;
                if leaves > MOST_OF_ONE_HASH {
                    return Err(Error::Damaged("the index of a directory"));
                }
                self.gather(directory, path.leaf, &mut group)?;
                match self.next_leaf(directory, &mut path)? {
                    Some(hash) if hash & 1 == 1 => {}
                    next => break next.is_none(),
                }
            };
            group.sort_by_key(|named| named.0.0);
            let mut before = None;
            for named in &mut group {
                let number = match before {
                    Some((hash, number)) if hash == named.0.0 => number + 1,
                    _ => 0,
                };
                named.0.1 = number;
                before = Some((named.0.0, number));
            }
            let first = group.partition_point(|named| named.0 < from);
            for (key, inode, file_type, name) in group.drain(first..) {
                // The place before this name is the one behind the last.
                if let Some(last) = listed.last_mut() {
                    last.next = cursor_at(key);
                }
                if listed.len() == most {
                    return Ok(listed);
                }
                push(&mut listed, (inode, file_type, &name), ListingCursor::End)?;
            }
            if is_last {
                return Ok(listed);
            }
            self.blocks.device().pause();
        }
    }

    fn gather_reserved(&mut self, directory: &Inode, group: &mut Vec<Keyed>) -> Result<(), Error> {
        let (kind, _) = self.kinds_of(directory);
        let block = self.block_at(directory, 0)?;
        let bytes = self.blocks.block(block, kind)?;
        let (own, parent) = (word(bytes, 0), word(bytes, PARENT_AT));
        group.push(((NameHash { major: 0, minor: 0 }, 0), own, 2, b".".to_vec()));
        group.push(((NameHash { major: 2, minor: 0 }, 0), parent, 2, b"..".to_vec()));
        Ok(())
    }

    /// Adds the names of a leaf, with their hashes.
    fn gather(&mut self, directory: &Inode, leaf: u64, group: &mut Vec<Keyed>) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let (_, names) = self.kinds_of(directory);
        let function = self.hash_function(directory)?;
        let mut bytes = crate::blocks::zeros(layout.block)?;
        bytes.copy_from_slice(self.blocks.block(leaf, names)?);
        for entry in entries(&layout, &bytes).filter(|entry| entry.inode != 0) {
            if group.len() % NAMES_AT_ONCE == NAMES_AT_ONCE - 1 {
                self.blocks.device().pause();
            }
            let hash = crate::hashes::hash(&layout, function, entry.name).ok_or(Error::Unsupported)?;
            let mut name = Vec::new();
            name.try_reserve_exact(entry.name.len()).map_err(|_| Error::OutOfMemory)?;
            name.extend_from_slice(entry.name);
            group.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
            group.push(((hash, 0), entry.inode, entry.file_type, name));
        }
        Ok(())
    }
}

fn cursor_at((hash, number): (NameHash, u32)) -> ListingCursor {
    ListingCursor::Hash { major: hash.major, minor: hash.minor, number }
}

fn push(
    listed: &mut Vec<ListedName>,
    (inode, file_type, name): (u32, u8, &[u8]),
    next: ListingCursor,
) -> Result<(), Error> {
    let mut own = Vec::new();
    own.try_reserve_exact(name.len()).map_err(|_| Error::OutOfMemory)?;
    own.extend_from_slice(name);
    listed.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
    listed.push(ListedName { inode, file_type, name: own, next });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::tests::small_layout;

    /// A block that is found right has its entries within itself; entries of any other block have an end.
    #[test]
    fn damaged_names_are_refused_or_within_their_block() {
        let seeds: [&[u8]; 3] = [&[], &[4, 12, 5, 0], &[6, 255, 4, 0, 20, 1]];
        property::fuzz("names", &seeds, |input| {
            let mut numbers = property::Numbers::new(input);
            let layout = small_layout(numbers.byte().is_multiple_of(2));
            let owner = BlockOwner { inode: 12, seed: 1 };
            let mut bytes = alloc::vec![0; layout.block];
            put_no_names(&layout, &mut bytes);
            put_entry(&layout, &mut bytes, 0, 12, (2, 2, b"."));
            put_entry(&layout, &mut bytes, 12, names_end(&layout) - 12, (2, 2, b".."));
            while !numbers.is_empty() {
                let at = numbers.number() as usize % bytes.len();
                bytes[at] = numbers.byte();
            }
            if layout.has_checksums {
                seal_names(&layout, owner, &mut bytes);
            }
            let sum: usize = entries(&layout, &bytes).map(|entry| entry.length.max(ENTRY)).sum();
            if check_names(&layout, owner, &bytes).is_ok() {
                assert_eq!(sum, names_end(&layout));
            }
            let mut room = None;
            let _ = search_block(&layout, &bytes, (5, BlockKind::Names(owner)), b"..", &mut room);
        });
    }
}
