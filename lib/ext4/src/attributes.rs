//! Extended attributes: behind the fields of an inode, and in one block more.
//!
//! Both places have a list of entries, from the start on, and the values from the end back.

use alloc::vec::Vec;

use crate::Error;
use crate::blocks::BlockKind;
use crate::bytes::{half, set_half, set_word, word};
use crate::checksum::crc32c;
use crate::device::Device;
use crate::filesystem::Filesystem;
use crate::inodes::Inode;
use crate::superblock::{Layout, SMALL_INODE};

const MAGIC: u32 = 0xea02_0000;
/// Sizes of an entry before its name, of the header of a block, and of the one in an inode.
const ENTRY: usize = 16;
const HEADER: usize = 32;
const SMALL_HEADER: usize = 4;
/// Offsets in the header of a block: the number of its files, a hash of all and the checksum.
const USERS_AT: usize = 4;
const COUNT_AT: usize = 8;
const HASH_AT: usize = 12;
const CHECKSUM_AT: usize = 16;
/// Bytes of the longest name.
const LONGEST_NAME: usize = 255;

/// An attribute: the number of its namespace, its name and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileAttribute {
    pub(crate) namespace: u8,
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl FileAttribute {
    fn is(&self, namespace: u8, name: &[u8]) -> bool {
        self.namespace == namespace && self.name == name
    }

    /// Returns the sizes of its entry and its value.
    fn sizes(&self) -> (usize, usize) {
        ((ENTRY + self.name.len()).next_multiple_of(4), self.value.len().next_multiple_of(4))
    }

    /// Returns the hash of its name and its value.
    fn hash(&self) -> u32 {
        let name = self.name.iter().fold(0_u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
        self.value.chunks(4).fold(name, |hash, bytes| {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }
}

fn damaged() -> Error {
    Error::Damaged("extended attributes")
}

fn copy(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut own = Vec::new();
    own.try_reserve_exact(bytes.len()).map_err(|_| Error::OutOfMemory)?;
    own.extend_from_slice(bytes);
    Ok(own)
}

/// Reads the attributes whose entries begin at an offset; values are found from another one on.
fn parse(bytes: &[u8], start: usize, base: usize) -> Result<Vec<FileAttribute>, Error> {
    let (mut all, mut at): (Vec<FileAttribute>, _) = (Vec::new(), start);
    while bytes.get(at..at + 4).is_some_and(|word| word != [0; 4]) {
        let entry = bytes.get(at..at + ENTRY).ok_or_else(damaged)?;
        let length = usize::from(entry[0]);
        let name = bytes.get(at + ENTRY..at + ENTRY + length).ok_or_else(damaged)?;
        let (offset, size) = (usize::from(half(entry, 2)), word(entry, 8) as usize);
        // Values in inodes of their own are a feature that is refused.
        if word(entry, 4) != 0 {
            return Err(Error::Unsupported);
        }
        let from = base + offset;
        let value = match size {
            0 => &[],
            _ => bytes.get(from..from.checked_add(size).ok_or_else(damaged)?).ok_or_else(damaged)?,
        };
        all.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        all.push(FileAttribute { namespace: entry[1], name: copy(name)?, value: copy(value)? });
        at += (ENTRY + length).next_multiple_of(4);
    }
    Ok(all)
}

/// Returns the bytes that attributes take, with the end of their entries.
fn size_of(all: &[FileAttribute]) -> usize {
    all.iter().map(|attribute| attribute.sizes()).map(|(entry, value)| entry + value).sum::<usize>() + 4
}

/// Writes attributes, for which there is room, into zeros.
fn build(bytes: &mut [u8], start: usize, base: usize, all: &[FileAttribute], has_hashes: bool) {
    let (mut at, mut end) = (start, bytes.len());
    for attribute in all {
        let (entry, value) = attribute.sizes();
        end -= value;
        bytes[at] = attribute.name.len() as u8;
        bytes[at + 1] = attribute.namespace;
        let offset = if attribute.value.is_empty() { 0 } else { end - base };
        set_half(bytes, at + 2, offset as u16);
        set_word(bytes, at + 8, attribute.value.len() as u32);
        if has_hashes {
            set_word(bytes, at + 12, attribute.hash());
        }
        bytes[at + ENTRY..at + ENTRY + attribute.name.len()].copy_from_slice(&attribute.name);
        bytes[end..end + attribute.value.len()].copy_from_slice(&attribute.value);
        at += entry;
    }
}

fn checksum(layout: &Layout, number: u64, bytes: &[u8]) -> u32 {
    let sum = crc32c(crc32c(layout.seed, &number.to_le_bytes()), &bytes[..CHECKSUM_AT]);
    crc32c(crc32c(sum, &[0; 4]), &bytes[CHECKSUM_AT + 4..])
}

/// Fails unless a block has attributes.
pub(crate) fn check_block(layout: &Layout, number: u64, bytes: &[u8]) -> Result<(), Error> {
    if word(bytes, 0) != MAGIC || word(bytes, COUNT_AT) != 1 || word(bytes, USERS_AT) == 0 {
        return Err(damaged());
    }
    if layout.has_checksums && word(bytes, CHECKSUM_AT) != checksum(layout, number, bytes) {
        return Err(Error::Damaged("the checksum of extended attributes"));
    }
    Ok(())
}

/// Gives a block of attributes its checksum.
pub(crate) fn seal_block(layout: &Layout, number: u64, bytes: &mut [u8]) {
    let sum = checksum(layout, number, bytes);
    set_word(bytes, CHECKSUM_AT, sum);
}

impl<D: Device> Filesystem<D> {
    /// Returns the attributes in an inode, and how many bytes there is room for; no room in a small inode.
    fn attributes_in(&mut self, inode: &Inode) -> Result<(Vec<FileAttribute>, usize), Error> {
        let layout = self.blocks.layout;
        let Some(start) = inode.attributes_at().filter(|start| layout.inode > SMALL_INODE && start + 8 <= layout.inode)
        else {
            return Ok((Vec::new(), 0));
        };
        let (block, kind, at) = inode.place(&layout);
        let bytes = &self.blocks.block(block, kind)?[at + start..at + layout.inode];
        let room = bytes.len() - SMALL_HEADER;
        if word(bytes, 0) != MAGIC {
            return Ok((Vec::new(), room));
        }
        Ok((parse(bytes, SMALL_HEADER, SMALL_HEADER)?, room))
    }

    /// Returns the attributes in the block of an inode, if it has one.
    fn attributes_of_block(&mut self, inode: &Inode) -> Result<Vec<FileAttribute>, Error> {
        let number = inode.attributes_block();
        if number == 0 {
            return Ok(Vec::new());
        }
        self.require_files(number..number + 1)?;
        parse(self.blocks.block(number, BlockKind::Attributes)?, HEADER, 0)
    }

    /// Returns all attributes of a file.
    pub(crate) fn all_attributes(&mut self, inode: &Inode) -> Result<Vec<FileAttribute>, Error> {
        let mut all = self.attributes_in(inode)?.0;
        let others = self.attributes_of_block(inode)?;
        all.try_reserve(others.len()).map_err(|_| Error::OutOfMemory)?;
        all.extend(others);
        Ok(all)
    }

    /// Gives a file an attribute, or takes it away; the inode is stored by the caller.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is no room for it.
    pub(crate) fn put_attribute(
        &mut self,
        inode: &mut Inode,
        (namespace, name): (u8, &[u8]),
        value: Option<&[u8]>,
    ) -> Result<(), Error> {
        let layout = self.blocks.layout;
        if name.len() > LONGEST_NAME {
            return Err(Error::Invalid);
        }
        let (mut inside, room) = self.attributes_in(inode)?;
        let mut outside = self.attributes_of_block(inode)?;
        let before = (inside.len(), outside.len());
        inside.retain(|attribute| !attribute.is(namespace, name));
        outside.retain(|attribute| !attribute.is(namespace, name));
        let (mut changes_inside, mut changes_outside) = (inside.len() < before.0, outside.len() < before.1);
        if let Some(value) = value {
            let new = FileAttribute { namespace, name: copy(name)?, value: copy(value)? };
            let (entry, length) = new.sizes();
            if size_of(&inside) + entry + length <= room {
                inside.push(new);
                changes_inside = true;
            } else if size_of(&outside) + entry + length <= layout.block - HEADER {
                outside.push(new);
                // In a block they are in order.
                let key =
                    |attribute: &FileAttribute| (attribute.namespace, attribute.name.len(), attribute.name.clone());
                outside.sort_by_key(key);
                changes_outside = true;
            } else {
                return Err(Error::NoSpace);
            }
        }
        // Values of a damaged list may be one over the other, and have no room beside each other.
        if changes_inside && size_of(&inside) > room || changes_outside && size_of(&outside) > layout.block - HEADER {
            return Err(damaged());
        }
        if changes_inside && let Some(start) = inode.attributes_at() {
            let (block, kind, at) = inode.place(&layout);
            let bytes = self.blocks.change(block, kind, at + start..at + layout.inode)?;
            bytes.fill(0);
            if !inside.is_empty() {
                set_word(bytes, 0, MAGIC);
                build(bytes, SMALL_HEADER, SMALL_HEADER, &inside, false);
            }
        }
        if changes_outside { self.put_outside(inode, &outside) } else { Ok(()) }
    }

    /// Gives the block of a file's attributes other ones, or frees it if there are none.
    fn put_outside(&mut self, inode: &mut Inode, all: &[FileAttribute]) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let old = inode.attributes_block();
        let is_shared = old != 0 && word(self.blocks.block(old, BlockKind::Attributes)?, USERS_AT) > 1;
        if old != 0 && (is_shared || all.is_empty()) {
            self.let_attributes_go(inode)?;
        }
        if all.is_empty() {
            return Ok(());
        }
        let mut number = inode.attributes_block();
        if number == 0 {
            let near = layout.start_of((inode.number - 1) / layout.group_inodes);
            number = self.allocate(near, 1)?.0;
            inode.add_blocks(&layout, 1)?;
            inode.set_attributes_block(number);
            self.blocks.make(number, BlockKind::Attributes)?;
        }
        let bytes = self.blocks.change(number, BlockKind::Attributes, 0..layout.block)?;
        bytes.fill(0);
        set_word(bytes, 0, MAGIC);
        set_word(bytes, USERS_AT, 1);
        set_word(bytes, COUNT_AT, 1);
        build(bytes, HEADER, 0, all, true);
        let hash = all.iter().fold(0_u32, |hash, attribute| hash.rotate_left(16) ^ attribute.hash());
        set_word(bytes, HASH_AT, hash);
        Ok(())
    }

    /// Takes the block of its attributes from a file.
    pub(crate) fn let_attributes_go(&mut self, inode: &mut Inode) -> Result<(), Error> {
        let layout = self.blocks.layout;
        let number = inode.attributes_block();
        if number == 0 {
            return Ok(());
        }
        self.require_files(number..number + 1)?;
        let users = word(self.blocks.block(number, BlockKind::Attributes)?, USERS_AT);
        if users > 1 {
            let part = self.blocks.change(number, BlockKind::Attributes, USERS_AT..USERS_AT + 4)?;
            set_word(part, 0, users - 1);
        } else {
            self.free_metadata(number)?;
        }
        inode.add_blocks(&layout, -1)?;
        inode.set_attributes_block(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let all: Vec<FileAttribute> = (0..4_u8)
            .map(|number| FileAttribute {
                namespace: 1 + number,
                name: alloc::vec![b'n'; 1 + usize::from(number)],
                value: alloc::vec![number; 7 * usize::from(number)],
            })
            .collect();
        let mut bytes = [0; 200];
        assert!(size_of(&all) <= bytes.len());
        build(&mut bytes, 4, 4, &all, true);
        assert_eq!(parse(&bytes, 4, 4), Ok(all));
    }

    #[test]
    fn damaged_attributes_are_errors() {
        property::fuzz("attributes", &[&[0], &[200, 1, 2, 3]], |input| {
            let mut numbers = property::Numbers::new(input);
            let mut bytes = [0; 128];
            for byte in &mut bytes {
                *byte = numbers.byte();
            }
            let _ = parse(&bytes, 4, 4);
        });
    }
}
