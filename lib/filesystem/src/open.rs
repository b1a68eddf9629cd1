//! Open files: a node, a mode of access, and a position.
//!
//! This is Unix's *open file description*: descriptors that were duplicated share one, and with it the position. A
//! kernel keeps it behind a reference count of its own.

use alloc::sync::Arc;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Mutex;

use crate::contents::{MAX_FILE_LENGTH, WriteFrom};
use crate::error::Error;
use crate::node::{Base, DirectoryEntry, FileKind, Node, Timestamp, copier};
use crate::quota::{Maker, Owner};
use crate::rights::{self, READ, Subject, WRITE};
use crate::table::Held;
use crate::tree::{Filesystem, Recipe, create};
use crate::walk::{LastComponent, LastLink, Note, WayOn, resolve_noting, walk};
use crate::watch::event;

/// Mode of access to an open file (`O_ACCMODE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// `O_RDONLY`
    #[default]
    Read,
    /// `O_WRONLY`
    Write,
    /// `O_RDWR`
    ReadWrite,
}

impl Access {
    fn reads(self) -> bool {
        self != Access::Write
    }

    fn writes(self) -> bool {
        self != Access::Read
    }
}

/// Whether opening may create the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Creation {
    /// The file must exist.
    #[default]
    Never,
    /// The file is created if it does not exist (`O_CREAT`).
    IfMissing,
    /// The file must not exist (`O_CREAT | O_EXCL`).
    Always,
}

/// Treatment of existing contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// Keep them.
    #[default]
    Keep,
    /// Discard them (`O_TRUNC`).
    Discard,
}

/// Position of writes without an offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// The current position.
    #[default]
    AtPosition,
    /// The end of the file (`O_APPEND`).
    AtEnd,
}

/// Kind of file that may be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    /// Any kind.
    #[default]
    Anything,
    /// Only a directory (`O_DIRECTORY`).
    Directory,
}

/// Options for opening a file. The default is that of Unix without flags: read an existing file, following links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Mode of access.
    pub access: Access,
    /// Whether the file may, or must, be created.
    pub creation: Creation,
    /// Whether it is emptied.
    pub contents: Contents,
    /// Position of writes.
    pub writes: Writes,
    /// Whether only a directory may be opened.
    pub expect: Expect,
    /// [`LastLink::Keep`] is `O_NOFOLLOW`: a symbolic link in last place is an error.
    pub last_link: LastLink,
    /// The permissions of a new file.
    pub permissions: u16,
}

impl OpenOptions {
    /// Returns the rights that a file must grant to be opened so.
    #[must_use]
    pub fn rights(&self) -> u16 {
        let reads = if self.access.reads() { READ } else { 0 };
        let writes = self.access.writes() || self.contents == Contents::Discard;
        reads | if writes { WRITE } else { 0 }
    }
}

/// Reference point of [`OpenFile::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFrom {
    /// The start (`SEEK_SET`).
    Start(u64),
    /// The position (`SEEK_CUR`).
    Current(i64),
    /// The end (`SEEK_END`).
    End(i64),
}

/// A file that was opened. For a device, a [`FileKind::Fifo`] or a [`FileKind::Socket`] only [`OpenFile::node`] and
/// [`OpenFile::access`] are meaningful: the kernel calls the device, or moves the bytes, instead.
#[derive(Debug)]
#[doc(alias = "file description")]
pub struct OpenFile {
    node: Node,
    access: Access,
    /// Whether it counts as a change under way, while which the file system cannot be made read-only.
    is_counted: bool,
    /// Whether it is one of the file's writers.
    is_writer: bool,
    /// Whether writes take the bits to set user and group from the file.
    takes_rights: bool,
    appends: AtomicBool,
    // Held for a whole read or write, so that two of them do not use the same position.
    position: Mutex<u64>,
}

impl Filesystem {
    /// Opens, and perhaps creates, the file at `path` (`openat`).
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] with [`Creation::Always`]; [`Error::IsADirectory`] if a directory would be written to
    /// or made; [`Error::NotADirectory`] with [`Expect::Directory`] or a trailing slash;
    /// [`Error::TooManySymbolicLinks`] also for a link in last place with [`LastLink::Keep`];
    /// [`Error::InvalidArgument`] to make a directory; [`Error::AccessDenied`] if the file does not grant the access;
    /// [`Error::NoSpace`].
    pub fn open<'a>(
        &self,
        base: impl Into<Base<'a>>,
        path: &[u8],
        options: &OpenOptions,
        by: impl Into<Maker<'a>>,
    ) -> Result<OpenFile, Error> {
        self.open_with(base.into(), path, options, by.into(), None)
    }

    /// Does so, and notes where a path goes on that leads out of this file system ([`Error::Crossing`]), unless the
    /// file may be created: without the note, [`Filesystem::way_on`] finds it.
    ///
    /// # Errors
    /// As [`Filesystem::open`].
    pub fn open_noting<'a>(
        &self,
        base: impl Into<Base<'a>>,
        path: &[u8],
        options: &OpenOptions,
        by: impl Into<Maker<'a>>,
        way: &mut Option<WayOn>,
    ) -> Result<OpenFile, Error> {
        self.open_with(base.into(), path, options, by.into(), Some(way))
    }

    #[inline]
    fn open_with(
        &self,
        base: Base<'_>,
        path: &[u8],
        options: &OpenOptions,
        by: Maker<'_>,
        note: Note<'_>,
    ) -> Result<OpenFile, Error> {
        let held = if options.creation == Creation::Never {
            resolve_noting(self.begin(base)?, path, options.last_link, note)?
        } else {
            if options.expect == Expect::Directory {
                return Err(Error::InvalidArgument);
            }
            let (held, is_new) = self.open_or_create(base, path, options, by)?;
            if is_new {
                // The permissions are not checked: the creator of a file may use it.
                return OpenFile::new(&held, options, &base);
            }
            if held.is_directory() {
                return Err(Error::IsADirectory);
            }
            held
        };
        self.open_held(held, options, &base, by.now)
    }

    /// Makes an empty file without a name and opens it, for reading and writing (`memfd_create`). It can be sealed, and
    /// is gone with the last reference to it. Its maker is none of its writers, and so can run it while it has it open,
    /// as on Linux. It is no part of the tree, so that it can be made and written in one that
    /// is read-only.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::OutOfMemory`].
    #[doc(alias = "memfd_create")]
    pub fn open_nameless<'a>(
        &self,
        permissions: u16,
        subject: Option<&Subject>,
        by: impl Into<Maker<'a>>,
    ) -> Result<OpenFile, Error> {
        let held = self.make_nameless(permissions, subject, by.into())?;
        let options = OpenOptions { access: Access::ReadWrite, ..OpenOptions::default() };
        Ok(OpenFile::uncounted(&held, &options, subject))
    }

    /// Opens the file of a node again: one without a name also in a tree that is read-only.
    ///
    /// # Errors
    /// As [`Filesystem::open`] without creation.
    pub fn open_node<'a>(
        &self,
        node: impl Into<Base<'a>>,
        options: &OpenOptions,
        now: Timestamp,
    ) -> Result<OpenFile, Error> {
        let node = node.into();
        self.open_held(self.base(node.node)?, options, &node, now)
    }

    /// Opens a file that exists, for a user.
    fn open_held(
        &self,
        held: Held<'_>,
        options: &OpenOptions,
        base: &Base<'_>,
        now: Timestamp,
    ) -> Result<OpenFile, Error> {
        let subject = base.subject;
        if options.expect == Expect::Directory && !held.is_directory() {
            return Err(Error::NotADirectory);
        }
        match held.kind {
            FileKind::SymbolicLink => return Err(Error::TooManySymbolicLinks),
            FileKind::Directory if options.access.writes() || options.contents == Contents::Discard => {
                return Err(Error::IsADirectory);
            }
            _ => {}
        }
        if subject.is_some() {
            rights::permit(subject, held.inode().ownership(), options.rights())?;
        }
        if options.contents == Contents::Discard && held.shared.inode(held.index).writers.are_denied() {
            return Err(Error::TextBusy);
        }
        let file = OpenFile::new(&held, options, base)?;
        if held.kind == FileKind::Regular && options.contents == Contents::Discard {
            let _change = if is_part_of_the_tree(&held) { Some(held.shared.change(base.part)?) } else { None };
            file.node.truncate(0, now)?;
            file.note_write();
        }
        Ok(file)
    }

    fn open_or_create<'node>(
        &self,
        base: Base<'node>,
        path: &[u8],
        options: &OpenOptions,
        by: Maker<'_>,
    ) -> Result<(Held<'node>, bool), Error> {
        let last = LastComponent::Made(match options.creation {
            Creation::Always => LastLink::Keep,
            Creation::Never | Creation::IfMissing => options.last_link,
        });
        loop {
            let position = walk(self.begin(base)?, path, last)?;
            let Some(name) = position.name() else {
                return Err(match options.creation {
                    Creation::Always => Error::AlreadyExists,
                    Creation::Never | Creation::IfMissing => Error::IsADirectory,
                });
            };
            if position.is_found() {
                if options.creation == Creation::Always {
                    return Err(Error::AlreadyExists);
                }
                return Ok((position.target()?, false));
            }
            let recipe = Recipe::File(&[]);
            let made = create((&position.directory, &base), name, &recipe, options.permissions, by);
            match made {
                Ok(held) => return Ok((held, true)),
                // Another task created the file first: use that one.
                Err(Error::AlreadyExists) if options.creation == Creation::IfMissing => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns whether the tree has the file: it has a name, of which it never gets another after its last.
fn is_part_of_the_tree(held: &Held<'_>) -> bool {
    held.shared.inode(held.index).links() > 0
}

/// Tells that something has happened to a file, if it concerns any bytes; returns their number.
#[inline(always)]
fn told(node: &Node, what: u32, count: usize) -> usize {
    if count > 0 {
        node.tell(what);
    }
    count
}

impl OpenFile {
    fn new(held: &Held<'_>, options: &OpenOptions, base: &Base<'_>) -> Result<OpenFile, Error> {
        // A device is changed beyond the tree.
        let is_counted = options.access.writes() && held.kind == FileKind::Regular && is_part_of_the_tree(held);
        let is_writer = options.access.writes() && held.kind == FileKind::Regular;
        let writers = &held.shared.inode(held.index).writers;
        if is_counted {
            if base.part.is_read_only {
                return Err(Error::ReadOnly);
            }
            held.shared.begin_change()?;
        }
        if is_writer && let Err(error) = writers.begin() {
            if is_counted {
                held.shared.end_change();
            }
            return Err(error);
        }
        let mut file = OpenFile::uncounted(held, options, base.subject);
        (file.is_counted, file.is_writer) = (is_counted, is_writer);
        if file.is_told() {
            file.node.tell(event::OPENED);
        }
        Ok(file)
    }

    /// Opens a file whose changes are none of the tree.
    fn uncounted(held: &Held<'_>, options: &OpenOptions, subject: Option<&Subject>) -> OpenFile {
        OpenFile {
            takes_rights: subject.is_some_and(|subject| !subject.is_root()),
            node: Node::new(held),
            access: options.access,
            is_counted: false,
            is_writer: false,
            appends: AtomicBool::new(options.writes == Writes::AtEnd),
            position: Mutex::new(0),
        }
    }

    /// Returns whether those who watch are told of its opening and its end: of other kinds the kernel opens the object.
    fn is_told(&self) -> bool {
        matches!(self.node.kind(), FileKind::Regular | FileKind::Directory)
    }

    /// Returns the file that was opened.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Whether it counts as a change of its tree under way: a regular file with a name, open for writing.
    pub fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// Returns the mode of access.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the position of writes.
    pub fn writes(&self) -> Writes {
        if self.appends.load(Ordering::Relaxed) { Writes::AtEnd } else { Writes::AtPosition }
    }

    /// Changes the position of writes (`F_SETFL`).
    pub fn set_writes(&self, writes: Writes) {
        self.appends.store(writes == Writes::AtEnd, Ordering::Relaxed);
    }

    fn readable(&self) -> Result<&Node, Error> {
        if self.access.reads() { Ok(&self.node) } else { Err(Error::NotOpenForThis) }
    }

    fn writable(&self) -> Result<&Node, Error> {
        if self.access.writes() { Ok(&self.node) } else { Err(Error::NotOpenForThis) }
    }

    /// Reads from the position on, and moves it. See [`Node::read_at`].
    ///
    /// # Errors
    /// [`Error::NotOpenForThis`]; otherwise as [`Node::read_at`].
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Error> {
        let node = self.readable()?;
        let mut position = self.position.lock();
        let count = node.read_at(*position, buffer)?;
        *position += count as u64;
        Ok(told(node, event::ACCESSED, count))
    }

    /// Reads from the position on without an intermediate copy, and moves it. See [`Node::read_with`].
    ///
    /// # Errors
    /// As [`OpenFile::read`].
    pub fn read_with(&self, length: usize, sink: impl FnMut(&[u8]) -> usize) -> Result<usize, Error> {
        let node = self.readable()?;
        let mut position = self.position.lock();
        let count = node.read_with(*position, length, sink)?;
        *position += count as u64;
        Ok(told(node, event::ACCESSED, count))
    }

    /// Reads at an offset and leaves the position alone (`pread64`).
    ///
    /// # Errors
    /// As [`OpenFile::read`].
    #[doc(alias = "pread")]
    pub fn read_at_with(&self, offset: u64, length: usize, sink: impl FnMut(&[u8]) -> usize) -> Result<usize, Error> {
        let node = self.readable()?;
        node.read_with(offset, length, sink).map(|count| told(node, event::ACCESSED, count))
    }

    /// Writes at the position, or at the end, and moves the position behind the written bytes. See [`Node::write_at`].
    ///
    /// # Errors
    /// [`Error::NotOpenForThis`]; otherwise as [`Node::write_at`].
    pub fn write(&self, data: &[u8], now: Timestamp) -> Result<usize, Error> {
        self.write_with(None, data.len(), now, copier(data))
    }

    /// Writes as [`OpenFile::write`] does, without an intermediate copy. See [`Node::write_with`]. Pages that are made
    /// for it are charged to `owner`.
    ///
    /// # Errors
    /// As [`OpenFile::write`]; [`Error::NoSpace`] also at the owner's limit.
    pub fn write_with(
        &self,
        owner: Option<&Arc<dyn Owner>>,
        length: usize,
        now: Timestamp,
        source: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, Error> {
        let node = self.writable()?;
        let mut position = self.position.lock();
        let from = match self.writes() {
            Writes::AtPosition => WriteFrom::Offset(*position),
            Writes::AtEnd => WriteFrom::End,
        };
        let (start, count) = node.write_from(owner, from, length, now, source)?;
        if count > 0 {
            *position = start + count as u64;
            self.note_write();
        }
        Ok(told(node, event::MODIFIED, count))
    }

    /// Writes at an offset and leaves the position alone (`pwrite64`). A file opened for appending appends here too, as
    /// on Linux.
    ///
    /// # Errors
    /// As [`OpenFile::write`].
    #[doc(alias = "pwrite")]
    pub fn write_at_with(
        &self,
        owner: Option<&Arc<dyn Owner>>,
        offset: u64,
        length: usize,
        now: Timestamp,
        source: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, Error> {
        let from = match self.writes() {
            Writes::AtPosition => WriteFrom::Offset(offset),
            Writes::AtEnd => WriteFrom::End,
        };
        let node = self.writable()?;
        let (_, count) = node.write_from(owner, from, length, now, source)?;
        if count > 0 {
            self.note_write();
        }
        Ok(told(node, event::MODIFIED, count))
    }

    /// Cuts the file off, or extends it (`ftruncate`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it was not opened for writing; otherwise as [`Node::truncate`].
    pub fn truncate(&self, length: u64, now: Timestamp) -> Result<(), Error> {
        if !self.access.writes() {
            return Err(Error::InvalidArgument);
        }
        self.node.truncate(length, now)?;
        self.note_write();
        Ok(())
    }

    /// Takes the bits to set user and group from the file, if the user that has opened it may not leave them.
    #[inline]
    fn note_write(&self) {
        if self.takes_rights {
            self.node.written_by_others();
        }
    }

    /// Moves the position, also beyond the end; returns the new one. A directory's position is its cursor.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it would be negative or beyond [`MAX_FILE_LENGTH`].
    #[doc(alias = "lseek")]
    pub fn seek(&self, from: SeekFrom) -> Result<u64, Error> {
        let mut position = self.position.lock();
        let target = match from {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(distance) => position.checked_add_signed(distance),
            SeekFrom::End(distance) => self.end().checked_add_signed(distance),
        };
        *position = target.filter(|target| *target <= MAX_FILE_LENGTH).ok_or(Error::InvalidArgument)?;
        Ok(*position)
    }

    fn end(&self) -> u64 {
        match self.node.kind() {
            FileKind::Regular => self.node.metadata().size,
            _ => 0,
        }
    }

    /// Lists a directory from the position on, and moves it. See [`Node::read_directory`].
    ///
    /// # Errors
    /// As [`Node::read_directory`].
    #[doc(alias = "getdents")]
    pub fn read_directory(&self, sink: impl FnMut(DirectoryEntry<'_>) -> ControlFlow<()>) -> Result<(), Error> {
        let mut position = self.position.lock();
        *position = self.node.read_directory(*position, sink)?;
        self.node.tell(event::ACCESSED);
        Ok(())
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.is_told() {
            self.node.tell(if self.access.writes() { event::CLOSED_WRITTEN } else { event::CLOSED });
        }
        if self.is_writer {
            let (shared, index) = self.node.parts();
            shared.inode(index).writers.end();
        }
        if self.is_counted {
            self.node.held().shared.end_change();
        }
    }
}
