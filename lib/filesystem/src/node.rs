//! A file of any kind, held.

use alloc::sync::Arc;
use core::fmt;
use core::ops::ControlFlow;

use crate::contents::{FileContents, WriteFrom};
use crate::error::Error;
use crate::quota::Owner;
use crate::table::{Content, Held, INODE_COST, Shared};

/// What a name can mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Bytes.
    Regular,
    /// Names.
    Directory,
    /// A path to look up instead.
    SymbolicLink,
    /// A device the kernel knows by its number.
    CharacterDevice,
}

impl FileKind {
    /// The file type as Unix puts it into the mode (`S_IFMT`); shifted right by 12 it is the type in a directory
    /// listing.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::SymbolicLink => 0o120_000,
            FileKind::CharacterDevice => 0o020_000,
        }
    }
}

/// Which device a device node stands for. What the numbers mean is the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// The kind of device.
    pub major: u32,
    /// Which one of that kind.
    pub minor: u32,
}

/// A time as Unix counts it, since the start of 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after that, less than 10^9.
    pub nanoseconds: u32,
}

/// What `stat` reports. Owner and group are always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The inode number: not 0, and no two files have the same at the same time.
    pub inode: u64,
    /// What it is.
    pub kind: FileKind,
    /// The lower twelve bits of the mode.
    pub permissions: u16,
    /// How many names it has; a directory: two, and one for each subdirectory.
    pub links: u32,
    /// The length of a file or of a symbolic link's target in bytes; for a directory the number of its entries.
    pub size: u64,
    /// What it takes of the file system's limit, in bytes. Bytes that are still the archive's cost nothing.
    pub allocated: u64,
    /// For devices; otherwise zeros.
    pub device: DeviceNumber,
    /// When it was made, or what was set with [`Node::set_times`]: reading does not change it.
    pub accessed: Timestamp,
    /// When the contents changed.
    pub modified: Timestamp,
    /// When the contents, the attributes or the number of names changed.
    pub changed: Timestamp,
}

impl Metadata {
    /// The mode as Unix has it: type and permissions in one number.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.permissions)
    }

    /// Whether it is a regular file that anybody may execute: the only permission that binds the one user there is.
    pub fn is_executable(&self) -> bool {
        self.kind == FileKind::Regular && self.permissions & 0o111 != 0
    }
}

/// One entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'name> {
    /// The name, without slashes and zeros, of 1 to 255 bytes.
    pub name: &'name [u8],
    /// The inode number of what it names.
    pub inode: u64,
    /// What it names.
    pub kind: FileKind,
    /// The cursor to continue the listing after this entry.
    pub next: u64,
}

/// A file of any kind, which exists at least as long as this value: removing its last name does not end it.
///
/// Nodes know nothing of how a file was opened; [`crate::OpenFile`] does. They serve as current directories and as
/// bases of relative paths. Two nodes are equal if they are the same file.
pub struct Node {
    shared: Arc<Shared>,
    index: u32,
    kind: FileKind,
}

impl Node {
    /// Turns the handle into one that keeps the file system too.
    pub(crate) fn new(held: &Held<'_>) -> Node {
        held.shared.add_handle(held.index);
        Node { shared: Arc::clone(held.shared), index: held.index, kind: held.kind }
    }

    pub(crate) fn held(&self) -> Held<'_> {
        Held::take(&self.shared, self.index, self.kind)
    }

    pub(crate) fn is_in(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether the file has no name any more and nothing else has it open: it ends with this value.
    pub fn is_last_reference(&self) -> bool {
        self.shared.inode(self.index).is_held_once()
    }

    /// What `stat` reports.
    pub fn metadata(&self) -> Metadata {
        let inode = self.shared.inode(self.index);
        let (links, size, allocated, device) = {
            let content = inode.shared();
            match &*content {
                Content::File(file) => (inode.links(), file.length(), file.charged(), None),
                Content::Directory(directory) => {
                    let links = if directory.is_removed { 0 } else { 2 + directory.subdirectories };
                    (links, directory.length() as u64, 0, None)
                }
                Content::SymbolicLink(target) => (inode.links(), target.len() as u64, target.len() as u64, None),
                Content::Device(device) => (inode.links(), 0, 0, Some(*device)),
                Content::Vacant => (0, 0, 0, None),
            }
        };
        let attributes = *inode.attributes.lock();
        Metadata {
            inode: number(self.index),
            kind: self.kind,
            permissions: attributes.permissions,
            links,
            size,
            allocated: allocated + INODE_COST,
            device: device.unwrap_or_default(),
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
        }
    }

    /// Which device a [`FileKind::CharacterDevice`] stands for.
    pub fn device(&self) -> Option<DeviceNumber> {
        match &*self.shared.inode(self.index).shared() {
            Content::Device(device) => Some(*device),
            _ => None,
        }
    }

    /// Changes the permissions: the lower twelve bits of `permissions`.
    pub fn set_permissions(&self, permissions: u16, now: Timestamp) {
        let mut attributes = self.shared.inode(self.index).attributes.lock();
        attributes.permissions = permissions & 0o7777;
        attributes.changed = now;
    }

    /// Changes the times that are given.
    pub fn set_times(&self, accessed: Option<Timestamp>, modified: Option<Timestamp>, now: Timestamp) {
        let mut attributes = self.shared.inode(self.index).attributes.lock();
        attributes.accessed = accessed.unwrap_or(attributes.accessed);
        attributes.modified = modified.unwrap_or(attributes.modified);
        attributes.changed = now;
    }

    /// Reads up to `buffer.len()` bytes at `offset`; returns how many, 0 at the end.
    ///
    /// # Errors
    /// [`Error::IsADirectory`], or [`Error::InvalidArgument`] for anything else that is not a regular file.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        self.read_with(offset, buffer.len(), |piece| {
            buffer[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
            piece.len()
        })
    }

    /// Reads without a copy in between: gives `sink` the bytes from `offset` on, in pieces, until there were `length`
    /// of them, or the file ends, or `sink` says that it took less than it was given. Returns how many bytes were
    /// taken.
    ///
    /// `sink` runs under the file's lock: it must not use this file system, and must not wait.
    ///
    /// # Errors
    /// As [`Node::read_at`].
    pub fn read_with(&self, offset: u64, length: usize, sink: impl FnMut(&[u8]) -> usize) -> Result<usize, Error> {
        let content = self.shared.inode(self.index).shared();
        Ok(content.file()?.read_with(offset, length, sink))
    }

    /// Writes `data` at `offset`; returns how many bytes, fewer than `data.len()` only if there is no room for more. A
    /// gap between the former end and `offset` reads as zeros and costs nothing.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::OutOfMemory`] or [`Error::FileTooLarge`] if not even one byte could be written;
    /// otherwise as [`Node::read_at`].
    pub fn write_at(&self, offset: u64, data: &[u8], now: Timestamp) -> Result<usize, Error> {
        self.write_with(offset, data.len(), now, copier(data))
    }

    /// Writes without a copy in between: `source` fills pieces of the file from `offset` on, `length` bytes altogether,
    /// and says how much of each piece it filled; less than the whole piece ends the write. What it did not fill it
    /// must leave alone. Returns how many bytes were filled.
    ///
    /// `source` runs under the file's lock: it must not use this file system, and must not wait.
    ///
    /// # Errors
    /// As [`Node::write_at`].
    pub fn write_with(
        &self,
        offset: u64,
        length: usize,
        now: Timestamp,
        source: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, Error> {
        let (_, count) = self.write_from(None, WriteFrom::Offset(offset), length, now, source)?;
        Ok(count)
    }

    /// Writes `data` at the end, wherever that is when the write begins: of simultaneous appends none overwrites
    /// another. Returns where it began and how many bytes were written.
    ///
    /// # Errors
    /// As [`Node::write_at`].
    pub fn append(&self, data: &[u8], now: Timestamp) -> Result<(u64, usize), Error> {
        self.write_from(None, WriteFrom::End, data.len(), now, copier(data))
    }

    pub(crate) fn write_from(
        &self,
        owner: Option<&Arc<dyn Owner>>,
        from: WriteFrom,
        length: usize,
        now: Timestamp,
        source: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<(u64, usize), Error> {
        let inode = self.shared.inode(self.index);
        let mut content = inode.exclusive();
        let written = content.file_mut()?.write_with(&self.shared.quota, owner, from, length, source)?;
        if written.1 > 0 {
            inode.touch(now);
        }
        Ok(written)
    }

    /// Cuts the file off at `length`, or makes it longer with zeros. Of many pages that go, some are left to
    /// [`Filesystem::free_remains`](crate::Filesystem::free_remains).
    ///
    /// # Errors
    /// [`Error::FileTooLarge`]; otherwise as [`Node::read_at`].
    pub fn truncate(&self, length: u64, now: Timestamp) -> Result<(), Error> {
        let inode = self.shared.inode(self.index);
        let mut content = inode.exclusive();
        content.file_mut()?.truncate(&self.shared.quota, &self.shared.remains, length)?;
        inode.touch(now);
        Ok(())
    }

    /// Gives a file new contents that are not copied.
    pub(crate) fn set_backing(&self, backing: &'static [u8]) -> Result<(), Error> {
        let mut content = self.shared.inode(self.index).exclusive();
        let file = content.file_mut()?;
        file.truncate(&self.shared.quota, &self.shared.remains, 0)?;
        *file = FileContents::new(backing);
        Ok(())
    }

    /// The whole file in one piece, as long as it is what the archive contained: a loader needs no copy. Later writes
    /// do not change these bytes, which are the archive's.
    pub fn archived_bytes(&self) -> Option<&'static [u8]> {
        self.shared.inode(self.index).shared().file().ok()?.untouched()
    }

    /// Shows the target of a symbolic link to `reader`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is not a symbolic link.
    pub fn read_link<R>(&self, reader: impl FnOnce(&[u8]) -> R) -> Result<R, Error> {
        match &*self.shared.inode(self.index).shared() {
            Content::SymbolicLink(target) => Ok(reader(target)),
            _ => Err(Error::InvalidArgument),
        }
    }

    /// Lists a directory from `cursor` on: gives `sink` one entry after another, starting with `.` and `..`, until it
    /// breaks. The entry it breaks at counts as not reported. Returns the cursor to continue with.
    ///
    /// Cursors stay good while the directory changes: what is there all the time is reported exactly once. 0 is the
    /// start; otherwise a cursor is what this function returned or an entry's [`DirectoryEntry::next`].
    ///
    /// `sink` runs under the directory's lock: it must not use this file system, and must not wait.
    ///
    /// # Errors
    /// [`Error::NotADirectory`]; [`Error::NotFound`] if it has been removed.
    pub fn read_directory(
        &self,
        cursor: u64,
        mut sink: impl FnMut(DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<u64, Error> {
        let inode = self.shared.inode(self.index);
        let content = inode.shared();
        let directory = content.directory()?;
        if directory.is_removed {
            return Err(Error::NotFound);
        }
        let dots: [(&[u8], u32); 2] = [(b".", self.index), (b"..", inode.parent())];
        let dots = (0..).zip(dots).map(|(at, (name, index))| (at, name, index, FileKind::Directory));
        let entries = directory.entries_from(cursor).map(|(at, entry)| (at, entry.name(), entry.inode, entry.kind));
        let mut reached = cursor;
        for (at, name, index, kind) in dots.skip_while(|dot| dot.0 < cursor).chain(entries) {
            let entry = DirectoryEntry { name, inode: number(index), kind, next: at + 1 };
            if sink(entry).is_break() {
                break;
            }
            reached = at + 1;
        }
        Ok(reached)
    }
}

/// Copies `data` into pieces.
pub(crate) fn copier(mut data: &[u8]) -> impl FnMut(&mut [u8]) -> usize {
    move |piece| {
        let (now, later) = data.split_at(piece.len().min(data.len()));
        piece[..now.len()].copy_from_slice(now);
        data = later;
        now.len()
    }
}

/// An inode's number: never 0, which means "no entry" to old programs.
fn number(index: u32) -> u64 {
    u64::from(index) + 1
}

impl Clone for Node {
    fn clone(&self) -> Node {
        Node::new(&self.held())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.release_handle(self.index);
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.index == other.index
    }
}

impl Eq for Node {}

impl fmt::Debug for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Node")
            .field("inode", &number(self.index))
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
