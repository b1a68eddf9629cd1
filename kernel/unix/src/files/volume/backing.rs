//! The files behind a volume: those of ext4 on a disk, or those of a folder of the host.
//!
//! The volume's coroutine asks for both in the same way, by the numbers of files and one name.

use abi_unix::Errno;
use alloc::vec::Vec;
use core::ops::Range;

use ext4::{
    Access, AttributeMode, Attributes, Change, Entry, FileRun, ListingPlace, NewFile, RangeChange, Replacement,
    Special, Unlinked, Usage, Volume,
};
use filesystem::Writes;

use super::device::{Blocks, WaitsOnStack};
use super::host_files::HostFiles;

/// The files behind a volume.
#[allow(clippy::large_enum_variant)] // There is one value for each volume.
pub(super) enum Backing<'a, W: WaitsOnStack> {
    Ext4(Volume<Blocks<'a, W>>),
    Host(HostFiles<'a, W>),
}

/// Defines operations that both have.
macro_rules! both {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(pub(super) fn $name(&mut self, $($argument: $type),*) -> Result<$result, Errno> {
            match self {
                Backing::Ext4(volume) => volume.$name($($argument),*).map_err(errno_of),
                Backing::Host(files) => files.$name($($argument),*),
            }
        })*
    };
}

/// Defines operations that a folder of the host does not have.
macro_rules! of_ext4 {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(pub(super) fn $name(&mut self, $($argument: $type),*) -> Result<$result, Errno> {
            match self {
                Backing::Ext4(volume) => volume.$name($($argument),*).map_err(errno_of_attribute),
                Backing::Host(_) => Err(Errno::EOPNOTSUPP),
            }
        })*
    };
}

impl<W: WaitsOnStack> Backing<'_, W> {
    both! {
        fn attributes(inode: u32) -> Attributes;
        fn look_up(directory: u32, name: &[u8]) -> Option<Attributes>;
        fn create(directory: u32, name: &[u8], file: NewFile) -> Attributes;
        fn make_special(directory: u32, name: &[u8], special: Special, file: NewFile) -> Attributes;
        fn make_directory(directory: u32, name: &[u8], file: NewFile) -> Attributes;
        fn make_symbolic_link(directory: u32, name: &[u8], target: &[u8], owner: (u32, u32)) -> Attributes;
        fn link(inode: u32, directory: u32, name: &[u8]) -> Attributes;
        fn unlink(directory: u32, name: &[u8]) -> Unlinked;
        fn remove_directory(directory: u32, name: &[u8]) -> Option<u32>;
        fn rename(from: (u32, &[u8]), to: (u32, &[u8]), replacement: Replacement) -> Option<u32>;
        fn end_file(inode: u32) -> bool;
        fn read(inode: u32, offset: u64, bytes: &mut [u8]) -> usize;
        fn truncate(inode: u32, length: u64) -> ();
        fn read_link(inode: u32) -> Vec<u8>;
        fn set_attributes(inode: u32, change: Change) -> Attributes;
        fn list(directory: u32, place: u64, most: usize) -> Vec<Entry>;
        fn remount(access: Access) -> ();
        fn unmount() -> ();
    }

    of_ext4! {
        fn extended_attribute(inode: u32, name: &[u8]) -> Vec<u8>;
        fn set_extended_attribute(inode: u32, name: &[u8], value: &[u8], mode: AttributeMode) -> ();
        fn remove_extended_attribute(inode: u32, name: &[u8]) -> ();
    }

    /// Lets files of the host go that the last request has found, and that nothing uses.
    pub(super) fn let_unused_go(&mut self) {
        if let Backing::Host(files) = self {
            files.let_unused_go();
        }
    }

    pub(super) fn root(&self) -> u32 {
        match self {
            Backing::Ext4(volume) => volume.root(),
            Backing::Host(_) => super::ROOT,
        }
    }

    pub(super) fn access(&self) -> Access {
        match self {
            Backing::Ext4(volume) => volume.access(),
            Backing::Host(files) => files.access(),
        }
    }

    /// Lists names from an exact place on, which the host does not have.
    pub(super) fn list_from(&mut self, directory: u32, place: ListingPlace, most: usize) -> Result<Vec<Entry>, Errno> {
        match self {
            Backing::Ext4(volume) => volume.list_from(directory, place, most).map_err(errno_of),
            Backing::Host(_) => Err(Errno::EINVAL),
        }
    }

    /// Fails unless a part of a file can be changed; a folder of the host has no such changes, as on Linux.
    pub(super) fn require_range(&mut self, inode: u32, range: Range<u64>) -> Result<(), Errno> {
        match self {
            Backing::Ext4(volume) => volume.require_range(inode, range).map_err(errno_of),
            Backing::Host(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Does a step of changing a part of a file; returns the place up to which it is changed.
    pub(super) fn change_range(&mut self, inode: u32, range: Range<u64>, change: RangeChange) -> Result<u64, Errno> {
        match self {
            Backing::Ext4(volume) => volume.change_range(inode, range, change).map_err(errno_of),
            Backing::Host(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Whether bytes of a file are in a hole, and the place up to which that is so at least. Of a folder of the host
    /// none is known to be.
    pub(super) fn stretch(&mut self, inode: u32, range: Range<u64>) -> Result<(bool, u64), Errno> {
        match self {
            Backing::Ext4(volume) => volume.stretch(inode, range).map_err(errno_of),
            Backing::Host(_) => Ok((false, range.end)),
        }
    }

    /// Lists the names of extended attributes, of which a folder of the host has none.
    pub(super) fn extended_attributes(&mut self, inode: u32) -> Result<Vec<u8>, Errno> {
        match self {
            Backing::Ext4(volume) => volume.extended_attributes(inode).map_err(errno_of),
            Backing::Host(_) => Ok(Vec::new()),
        }
    }

    /// Finds a file by a name that may go.
    pub(super) fn find(&mut self, directory: u32, name: &[u8]) -> Result<Option<Attributes>, Errno> {
        match self {
            Backing::Ext4(volume) => volume.look_up(directory, name).map_err(errno_of),
            Backing::Host(files) => files.find(directory, name),
        }
    }

    /// Opens a file for the uses that a program will make of it.
    pub(super) fn open(&mut self, inode: u32, access: filesystem::Access, writes: Writes) -> Result<(), Errno> {
        match self {
            Backing::Ext4(_) => Ok(()),
            Backing::Host(files) => files.open(inode, access, writes),
        }
    }

    /// Writes bytes; returns their number, which a host can make less.
    pub(super) fn write(&mut self, inode: u32, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Backing::Ext4(volume) => volume.write(inode, offset, bytes).map(|()| bytes.len()).map_err(errno_of),
            Backing::Host(files) => files.write(inode, offset, bytes),
        }
    }

    /// Writes bytes to the end; returns their number, which a host can make less, and the place behind them.
    pub(super) fn append(&mut self, inode: u32, bytes: &[u8]) -> Result<(usize, u64), Errno> {
        match self {
            Backing::Ext4(volume) => {
                let at = volume.attributes(inode).map_err(errno_of)?.size;
                volume.write(inode, at, bytes).map_err(errno_of)?;
                Ok((bytes.len(), at + bytes.len() as u64))
            }
            Backing::Host(files) => files.append(inode, bytes),
        }
    }

    /// Writes all bytes; returns no number.
    pub(super) fn write_whole(&mut self, inode: u32, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        if self.write(inode, offset, bytes)? == bytes.len() { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Writes bytes whose blocks are there.
    pub(super) fn overwrite(&mut self, inode: u32, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        match self {
            Backing::Ext4(volume) => volume.overwrite(inode, offset, bytes).map_err(errno_of),
            Backing::Host(_) => self.write_whole(inode, offset, bytes),
        }
    }

    /// Has everything last, or for a host what was asked for, of a file or of all.
    pub(super) fn synchronise(&mut self, of: Option<u32>) -> Result<(), Errno> {
        match self {
            Backing::Ext4(volume) => volume.synchronise().map_err(errno_of),
            Backing::Host(files) => files.synchronise(of, false),
        }
    }

    /// Has bytes last, with all that is needed to find them.
    pub(super) fn synchronise_data(&mut self, of: Option<u32>) -> Result<(), Errno> {
        match self {
            Backing::Ext4(volume) => volume.synchronise_data().map_err(errno_of),
            Backing::Host(files) => files.synchronise(of, true),
        }
    }

    /// Returns the places of bytes on the disk, if they are known.
    pub(super) fn runs(&mut self, inode: u32, offset: u64, length: u64) -> Result<Option<Vec<FileRun>>, Errno> {
        match self {
            Backing::Ext4(volume) => volume.runs(inode, offset, length).map_err(errno_of),
            Backing::Host(_) => Ok(None),
        }
    }

    /// Whether bytes have their blocks.
    pub(super) fn has_blocks(&mut self, inode: u32, offset: u64, length: u64) -> Result<bool, Errno> {
        match self {
            Backing::Ext4(volume) => volume.has_blocks(inode, offset, length).map_err(errno_of),
            Backing::Host(_) => Ok(false),
        }
    }

    /// Has changes last that the volume keeps back. The host has everything at once.
    pub(super) fn commit(&mut self) -> Result<(), Errno> {
        match self {
            Backing::Ext4(volume) => volume.commit().map_err(errno_of),
            Backing::Host(_) => Ok(()),
        }
    }

    /// Whether there are changes that a commit would have last.
    pub(super) fn has_changed(&self) -> bool {
        match self {
            Backing::Ext4(volume) => volume.has_changed(),
            Backing::Host(_) => false,
        }
    }

    pub(super) fn usage(&self) -> Result<Usage, Errno> {
        match self {
            Backing::Ext4(volume) => volume.usage().map_err(errno_of),
            Backing::Host(files) => Ok(files.usage()),
        }
    }
}

/// Returns the error of an operation.
fn errno_of(error: ext4::Error) -> Errno {
    use ext4::Error::*;
    match error {
        NotFound => Errno::ENOENT,
        AlreadyExists => Errno::EEXIST,
        NotADirectory => Errno::ENOTDIR,
        IsADirectory => Errno::EISDIR,
        NotEmpty => Errno::ENOTEMPTY,
        Invalid => Errno::EINVAL,
        NameTooLong => Errno::ENAMETOOLONG,
        NoSpace => Errno::ENOSPC,
        TooManyLinks => Errno::EMLINK,
        TooLarge => Errno::EFBIG,
        ReadOnly => Errno::EROFS,
        Unsupported => Errno::EOPNOTSUPP,
        Busy => Errno::EBUSY,
        // Linux has EUCLEAN for the first, and programs know EIO.
        Damaged(_) | Device => Errno::EIO,
        OutOfMemory => Errno::ENOMEM,
    }
}

/// Returns the error of an operation on an extended attribute.
fn errno_of_attribute(error: ext4::Error) -> Errno {
    match error {
        ext4::Error::NotFound => Errno::ENODATA,
        error => errno_of(error),
    }
}
