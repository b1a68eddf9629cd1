//! Making archives, beside the code that reads them.
//!
//! Output is reproducible: files are numbered in order, and the time is the caller's.

use alloc::vec::Vec;
use core::fmt;

use super::{HEADER_LENGTH, MAGIC, TRAILER};
use crate::node::{DeviceNumber, FileKind};
use crate::walk::MAX_PATH_LENGTH;

/// Reason why an entry cannot be put into an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The path is empty or too long, contains a zero, or is the trailer's.
    BadPath,
    /// The contents are longer than a 32-bit number can express, or a symbolic link's target is not 1 to 4095 bytes
    /// without zeros.
    BadContents,
}

impl fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            WriteError::BadPath => "this path cannot be put into a cpio archive",
            WriteError::BadContents => "these contents cannot be put into a cpio archive",
        })
    }
}

impl core::error::Error for WriteError {}

/// An archive in the making. A directory goes before its contents.
#[derive(Clone, Debug)]
pub struct Writer {
    archive: Vec<u8>,
    modified: u32,
    next_inode: u32,
    alignment: usize,
}

impl Writer {
    /// Starts an archive whose entries all changed at `modified`, in seconds since 1970.
    pub fn new(modified: u32) -> Writer {
        Writer { archive: Vec::new(), modified, next_inode: 1, alignment: 1 }
    }

    /// Puts the contents of each further file that are at least `alignment` bytes long at a multiple of it, a power of
    /// two, by zeros behind the file's name. So the pages of a file are pages of the archive.
    pub fn aligned(mut self, alignment: usize) -> Writer {
        debug_assert!(alignment.is_power_of_two());
        self.alignment = alignment;
        self
    }

    /// Adds a directory.
    ///
    /// # Errors
    /// [`WriteError::BadPath`].
    pub fn directory(&mut self, path: &[u8], permissions: u16) -> Result<(), WriteError> {
        self.entry(path, FileKind::Directory, permissions, b"", DeviceNumber::default())
    }

    /// Adds a file.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn file(&mut self, path: &[u8], permissions: u16, data: &[u8]) -> Result<(), WriteError> {
        self.entry(path, FileKind::Regular, permissions, data, DeviceNumber::default())
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn symbolic_link(&mut self, path: &[u8], target: &[u8]) -> Result<(), WriteError> {
        if target.is_empty() || target.len() > MAX_PATH_LENGTH || target.contains(&0) {
            return Err(WriteError::BadContents);
        }
        self.entry(path, FileKind::SymbolicLink, 0o777, target, DeviceNumber::default())
    }

    /// Adds a character device.
    ///
    /// # Errors
    /// [`WriteError::BadPath`].
    pub fn device(&mut self, path: &[u8], permissions: u16, device: DeviceNumber) -> Result<(), WriteError> {
        self.entry(path, FileKind::CharacterDevice, permissions, b"", device)
    }

    /// Ends the archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.append([0, 0, 1, 0, 0, 0], TRAILER, b"");
        self.archive
    }

    fn entry(
        &mut self,
        path: &[u8],
        kind: FileKind,
        permissions: u16,
        data: &[u8],
        device: DeviceNumber,
    ) -> Result<(), WriteError> {
        if path.is_empty() || path.len() > MAX_PATH_LENGTH || path.contains(&0) || path == TRAILER {
            return Err(WriteError::BadPath);
        }
        if u32::try_from(data.len()).is_err() {
            return Err(WriteError::BadContents);
        }
        let mode = kind.mode_bits() | u32::from(permissions & 0o7777);
        let links = if kind == FileKind::Directory { 2 } else { 1 };
        let numbers = [self.next_inode, mode, links, self.modified, device.major, device.minor];
        self.next_inode += 1;
        self.append(numbers, path, data);
        Ok(())
    }

    fn append(&mut self, numbers: [u32; 6], path: &[u8], data: &[u8]) {
        let [inode, mode, links, modified, major, minor] = numbers;
        let start = self.archive.len();
        self.archive.extend_from_slice(MAGIC);
        let mut name_length = path.len() + 1;
        if data.len() >= self.alignment {
            let name_end = start + HEADER_LENGTH + name_length;
            name_length += name_end.next_multiple_of(self.alignment) - name_end;
        }
        let lengths = [data.len() as u32, name_length as u32];
        let fields = [inode, mode, 0, 0, links, modified, lengths[0], 0, 0, major, minor, lengths[1], 0];
        for field in fields {
            for digit in (0..8).rev() {
                let digit = field >> (4 * digit) & 0xf;
                self.archive.push(b"0123456789abcdef"[digit as usize]);
            }
        }
        debug_assert_eq!(self.archive.len() - start, HEADER_LENGTH);
        self.archive.extend_from_slice(path);
        self.archive.resize(start + HEADER_LENGTH + name_length, 0);
        self.pad();
        self.archive.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.archive.resize(self.archive.len().next_multiple_of(4), 0);
    }
}
