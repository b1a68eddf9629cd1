//! cpio archives in the "newc" format, which Linux and its boot loaders use for an initramfs.
//!
//! An archive is a sequence of entries: a header of 110 characters (a magic number and thirteen numbers in
//! hexadecimal), a name with a terminating zero, and data; name and data are each padded with zeros to a multiple of
//! four. An entry named `TRAILER!!!` ends it. Bytes behind it belong to the boot loader. A name can have more zeros
//! behind it, as many as bring the data to an address that suits its reader.
//!
//! [`entries`] borrows names and data from the archive and copies nothing. An archive that is cut short, or whose
//! numbers lead out of it, ends with an [`ArchiveError`] that names the place: the crate `cpio_reader` ends such an
//! archive silently, and a system with half of its files is worse than one that says why it does not start.

use core::fmt;

#[cfg(feature = "write")]
mod write;
#[cfg(feature = "write")]
pub use write::{WriteError, Writer};

use crate::node::DeviceNumber;

const HEADER_LENGTH: usize = 110;
const MAGIC: &[u8] = b"070701";
/// Magic number of an entry with a checksum: the sum of the bytes of the data.
const MAGIC_WITH_CHECKSUM: &[u8] = b"070702";
const TRAILER: &[u8] = b"TRAILER!!!";

/// Bits of the mode that contain the type.
const TYPE_MASK: u32 = 0o170_000;

/// Damage in an archive: place and cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveError {
    /// Start of the damaged entry, in bytes from the start of the archive.
    pub offset: usize,
    /// Description of the damage.
    pub problem: &'static str,
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "damaged cpio archive at byte {}: {}", self.offset, self.problem)
    }
}

impl core::error::Error for ArchiveError {}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A file; its contents are the data.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link; its target is the data.
    SymbolicLink,
    /// A character device.
    CharacterDevice(DeviceNumber),
    /// Any other kind: a block device, a pipe, a socket. These are the type's bits of the mode.
    Other(u32),
}

/// One entry of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'archive> {
    /// Start of the entry in the archive.
    pub offset: usize,
    /// The path, not empty, without zeros.
    pub path: &'archive [u8],
    /// Kind of the entry.
    pub kind: EntryKind,
    /// The lower twelve bits of the mode.
    pub permissions: u16,
    /// Time of the last change, in seconds since 1970.
    pub modified: u32,
    /// Number of names. Entries of one file have the same `identity`, and only one of them has the data.
    pub links: u32,
    /// Numbers of the file and of its device on the system that made the archive.
    pub identity: (u32, u32, u32),
    /// The contents or the target.
    pub data: &'archive [u8],
}

/// Reads an archive.
pub fn entries(archive: &[u8]) -> Entries<'_> {
    Entries { archive, at: 0, state: State::Reading }
}

/// The entries of an archive, in its order, without the trailer. Nothing comes after an error.
#[derive(Clone, Debug)]
pub struct Entries<'archive> {
    archive: &'archive [u8],
    at: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading,
    Finished,
}

impl<'archive> Entries<'archive> {
    fn entry(&mut self) -> Result<Option<Entry<'archive>>, &'static str> {
        let offset = self.at;
        let header = self.take(HEADER_LENGTH).ok_or("it ends before its trailer")?;
        let has_checksum = match &header[..MAGIC.len()] {
            MAGIC => false,
            MAGIC_WITH_CHECKSUM => true,
            _ => return Err("not the newc format"),
        };
        let mut numbers = [0; 13];
        for (number, digits) in numbers.iter_mut().zip(header[MAGIC.len()..].chunks_exact(8)) {
            *number = hexadecimal(digits).ok_or("a number is not hexadecimal")?;
        }
        let [
            inode,
            mode,
            _user,
            _group,
            links,
            modified,
            data_length,
            device_major,
            device_minor,
            major,
            minor,
            name_length,
            checksum,
        ] = numbers;

        let name = self.take_padded(name_length).ok_or("a name is cut short")?;
        if name.last() != Some(&0) {
            return Err("a name does not end with a zero");
        }
        let length = name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let path = &name[..length];
        if path.is_empty() || path.contains(&0) {
            return Err("a name is empty or contains a zero");
        }
        let data = self.take_padded(data_length).ok_or("a file's contents are cut short")?;
        if path == TRAILER {
            return Ok(None);
        }
        if has_checksum && sum(data) != checksum {
            return Err("a file's contents do not match its checksum");
        }
        Ok(Some(Entry {
            offset,
            path,
            kind: match mode & TYPE_MASK {
                0o100_000 => EntryKind::Regular,
                0o040_000 => EntryKind::Directory,
                0o120_000 => EntryKind::SymbolicLink,
                0o020_000 => EntryKind::CharacterDevice(DeviceNumber { major, minor }),
                other => EntryKind::Other(other),
            },
            permissions: (mode & 0o7777) as u16,
            modified,
            links,
            identity: (device_major, device_minor, inode),
            data,
        }))
    }

    fn take(&mut self, length: usize) -> Option<&'archive [u8]> {
        let end = self.at.checked_add(length)?;
        let bytes = self.archive.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    /// Takes `length` bytes and padding to a multiple of four. Padding that the end of the archive cuts off is not
    /// reported here: the missing trailer will be.
    fn take_padded(&mut self, length: u32) -> Option<&'archive [u8]> {
        let bytes = self.take(usize::try_from(length).ok()?)?;
        self.at = self.at.next_multiple_of(4).min(self.archive.len());
        Some(bytes)
    }
}

impl<'archive> Iterator for Entries<'archive> {
    type Item = Result<Entry<'archive>, ArchiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Finished {
            return None;
        }
        let offset = self.at;
        match self.entry() {
            Ok(Some(entry)) => Some(Ok(entry)),
            Ok(None) => {
                self.state = State::Finished;
                None
            }
            Err(problem) => {
                self.state = State::Finished;
                Some(Err(ArchiveError { offset, problem }))
            }
        }
    }
}

impl core::iter::FusedIterator for Entries<'_> {}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number: u32, digit| Some(number << 4 | char::from(*digit).to_digit(16)?))
}

fn sum(data: &[u8]) -> u32 {
    data.iter().fold(0, |sum: u32, byte| sum.wrapping_add(u32::from(*byte)))
}
