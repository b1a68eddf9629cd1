//! References to files of any kind.

use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::fmt;
use core::ops::ControlFlow;

use crate::contents::{CommonPages, FileContents, MAX_FILE_LENGTH, PAGE_SIZE, Stretch, WriteFrom};
use crate::error::Error;
use crate::quota::Owner;
use crate::rights::{self, Ownership, Subject};
use crate::table::{Content, Held, INODE_COST, Object, ROOT, Shared};
use crate::watch::event;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Bytes.
    Regular,
    /// Names.
    Directory,
    /// A path to look up instead.
    SymbolicLink,
    /// A device that the kernel finds by its number.
    CharacterDevice,
    /// A disk that the kernel finds by its number.
    BlockDevice,
    /// A meeting point of openings, between which the kernel moves bytes.
    Fifo,
    /// The name of a socket, which the kernel finds by its inode.
    Socket,
}

impl FileKind {
    /// Returns the file type as Unix puts it into the mode (`S_IFMT`); shifted right by 12 it is the type in a
    /// directory listing.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::SymbolicLink => 0o120_000,
            FileKind::CharacterDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
        }
    }
}

/// Numbers of a device node. Their meaning is the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "dev_t")]
pub struct DeviceNumber {
    /// The kind of device.
    pub major: u32,
    /// The device among those of its kind.
    pub minor: u32,
}

/// A time as Unix counts it, since the start of 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "timespec")]
pub struct Timestamp {
    /// Seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after that, less than 10^9.
    pub nanoseconds: u32,
}

/// Result of `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "stat")]
pub struct Metadata {
    /// The inode number: not 0, and no two files have the same at the same time.
    pub inode: u64,
    /// Kind of the file.
    pub kind: FileKind,
    /// The lower twelve bits of the mode.
    pub permissions: u16,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// Number of names; for a directory: two, and one for each subdirectory.
    pub links: u32,
    /// The length of a file or of a symbolic link's target in bytes; for a directory the number of its entries.
    pub size: u64,
    /// Charge to the file system's limit, in bytes. Bytes that are still the archive's cost nothing.
    pub allocated: u64,
    /// Number of blocks of 512 bytes that hold the contents, the archive's bytes with them; a hole has none.
    pub blocks: u64,
    /// For devices; otherwise zeros.
    pub device: DeviceNumber,
    /// Time of creation, or the time set with [`Node::set_times`]: reading does not change it.
    pub accessed: Timestamp,
    /// Time of the last change of the contents.
    pub modified: Timestamp,
    /// Time of the last change of the contents, the attributes or the number of names.
    pub changed: Timestamp,
}

impl Metadata {
    /// Returns the Unix mode: type and permissions in one number.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.permissions)
    }

    /// Returns its owner, group and permissions.
    pub fn ownership(&self) -> Ownership {
        Ownership { user: self.user, group: self.group, permissions: self.permissions }
    }

    /// Whether it is a regular file with an execute bit: the only permission that binds user 0.
    pub fn is_executable(&self) -> bool {
        self.kind == FileKind::Regular && self.permissions & 0o111 != 0
    }
}

/// One entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "dirent")]
pub struct DirectoryEntry<'name> {
    /// The name, without slashes and zeros, of 1 to 255 bytes.
    pub name: &'name [u8],
    /// Inode number of the file.
    pub inode: u64,
    /// Kind of the file.
    pub kind: FileKind,
    /// Cursor that continues the listing after this entry.
    pub next: u64,
}

/// The part of a tree that a mount shows: by default all of it, which may be changed.
#[derive(Clone, Copy, Default)]
#[doc(alias = "vfsmount")]
pub struct Part<'a> {
    /// The root of a part: its `..` and absolute paths lead out of it ([`Error::Crossing`]). `None` for the tree's own.
    pub root: Option<&'a Node>,
    /// Whether operations by this mount change nothing: [`Error::ReadOnly`].
    pub is_read_only: bool,
}

/// A node at which a path begins, and the user for whom it is followed: by default user 0.
#[derive(Clone, Copy)]
pub struct Base<'a> {
    /// The node.
    pub node: &'a Node,
    /// The user.
    pub subject: Option<&'a Subject>,
    /// The part of the tree in which the path stays.
    pub part: Part<'a>,
}

impl<'a> Base<'a> {
    /// Returns the base of a path that stays in a part of the tree.
    #[must_use]
    pub fn within(self, part: Part<'a>) -> Base<'a> {
        Base { part, ..self }
    }
}

impl<'a> From<&'a Node> for Base<'a> {
    fn from(node: &'a Node) -> Base<'a> {
        Base { node, subject: None, part: Part::default() }
    }
}

/// The value in which the openings of a FIFO meet. Its meaning is the kernel's.
pub type Meeting = Arc<dyn Any + Send + Sync>;

/// The place of a FIFO where its openings find that value.
#[derive(Debug, Default)]
pub struct MeetingPlace(Option<Weak<dyn Any + Send + Sync>>);

impl MeetingPlace {
    /// Returns the value that some openings hold, or else one that is made.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn meet<E>(&mut self, make: impl FnOnce() -> Result<Meeting, E>) -> Result<Meeting, E> {
        if let Some(meeting) = self.0.as_ref().and_then(Weak::upgrade) {
            return Ok(meeting);
        }
        let meeting = make()?;
        self.0 = Some(Arc::downgrade(&meeting));
        Ok(meeting)
    }

    /// Forgets the value if nothing holds it any more: called when it is dropped, so that its memory is freed.
    pub fn end(&mut self) {
        // Another one may have begun.
        self.0.take_if(|meeting| meeting.strong_count() == 0);
    }
}

/// A reference to a file of any kind. The file exists at least as long as this value, also after its last name is
/// removed.
///
/// A node does not record how a file was opened; [`crate::OpenFile`] does. Nodes serve as current directories and as
/// bases of relative paths. Two nodes are equal if they are the same file.
#[doc(alias = "inode")]
#[doc(alias = "dentry")]
pub struct Node {
    shared: Arc<Shared>,
    index: u32,
    kind: FileKind,
}

impl Node {
    /// Makes a node of a handle, which keeps the file system too.
    pub(crate) fn new(held: &Held<'_>) -> Node {
        held.shared.add_handle(held.index);
        Node { shared: Arc::clone(held.shared), index: held.index, kind: held.kind }
    }

    pub(crate) fn held(&self) -> Held<'_> {
        Held::take(&self.shared, self.index, self.kind)
    }

    /// Returns the tree and the index of the file.
    pub(crate) fn parts(&self) -> (&Shared, u32) {
        (&self.shared, self.index)
    }

    /// Tells that this has happened to the file, to those who watch it or the directory with its name. Not to be called
    /// with a lock of an inode.
    #[inline(always)]
    pub fn tell(&self, what: u32) {
        self.shared.tell_of_file(self.index, self.kind, what);
    }

    pub(crate) fn is_in(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Whether it is the root of its file system.
    pub fn is_root(&self) -> bool {
        self.index == ROOT
    }

    /// Lets the roots of mounts cover this file: paths that lead to it, but not from it, are [`Error::Crossing`] from
    /// now on, and it can be neither removed nor renamed. It may be covered already, in another mount of the tree: the
    /// caller knows by what, and in which.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it has been removed; [`Error::InvalidArgument`] for a symbolic link.
    #[doc(alias = "mountpoint")]
    pub fn cover(&self) -> Result<(), Error> {
        if self.kind == FileKind::SymbolicLink {
            return Err(Error::InvalidArgument);
        }
        // No rename takes its name meanwhile.
        let _renames = self.shared.rename.lock();
        self.shared.inode(self.index).cover()
    }

    /// Ends what [`cover`](Self::cover) began, when nothing covers the file any more.
    pub fn uncover(&self) {
        self.shared.inode(self.index).uncover();
    }

    /// Whether the root of a mount covers this file.
    pub fn is_covered(&self) -> bool {
        self.shared.inode(self.index).is_covered()
    }

    /// Returns the kind of the file.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Returns numbers that tell the inode from all others of all file systems, as long as there is a reference to it.
    pub fn identity(&self) -> (usize, u32) {
        (Arc::as_ptr(&self.shared).addr(), self.index)
    }

    /// Whether the file has no name and no other reference: it is freed with this value.
    pub fn is_last_reference(&self) -> bool {
        self.shared.inode(self.index).is_held_once()
    }

    /// Returns the metadata, as `stat` does.
    #[doc(alias = "stat")]
    #[doc(alias = "fstat")]
    pub fn metadata(&self) -> Metadata {
        let inode = self.shared.inode(self.index);
        let mut pages = 0;
        let (links, size, allocated, device) = {
            let content = inode.shared();
            match &*content {
                Content::File(file) => {
                    pages = file.pages();
                    (inode.links(), file.length(), file.charged(), None)
                }
                Content::Directory(directory) => {
                    let links = if directory.is_removed { 0 } else { 2 + directory.subdirectories };
                    (links, directory.length() as u64, 0, None)
                }
                Content::SymbolicLink(target) => (inode.links(), target.len() as u64, target.len() as u64, None),
                Content::CharacterDevice(device) | Content::BlockDevice(device) => (inode.links(), 0, 0, Some(*device)),
                Content::Fifo(_) | Content::Socket => (inode.links(), 0, 0, None),
                Content::Object(_, length) => (inode.links(), *length, 0, None),
                Content::Vacant => (0, 0, 0, None),
            }
        };
        let attributes = *inode.attributes.lock();
        Metadata {
            inode: number(self.index),
            kind: self.kind,
            permissions: attributes.ownership.permissions,
            user: attributes.ownership.user,
            group: attributes.ownership.group,
            links,
            size,
            allocated: allocated + INODE_COST,
            blocks: pages * (PAGE_SIZE / 512) as u64,
            device: device.unwrap_or_default(),
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
        }
    }

    /// Returns the device of a [`FileKind::CharacterDevice`].
    pub fn device(&self) -> Option<DeviceNumber> {
        match &*self.shared.inode(self.index).shared() {
            Content::CharacterDevice(device) => Some(*device),
            _ => None,
        }
    }

    /// Returns the disk of a [`FileKind::BlockDevice`].
    pub fn block_device(&self) -> Option<DeviceNumber> {
        match &*self.shared.inode(self.index).shared() {
            Content::BlockDevice(device) => Some(*device),
            _ => None,
        }
    }

    /// Returns the object that has the form of this file, if it was made by [`make_object`].
    ///
    /// [`make_object`]: crate::Filesystem::make_object
    pub fn object(&self) -> Option<Object> {
        match &*self.shared.inode(self.index).shared() {
            Content::Object(object, _) => Some(Arc::clone(object)),
            _ => None,
        }
    }

    /// Returns the value in which the openings of a [`FileKind::Fifo`] meet: the one that some of them hold, or else
    /// one that is made by `make`, under the inode's lock.
    ///
    /// # Errors
    /// Those of `make`; [`Error::InvalidArgument`] for any other kind.
    pub fn meeting(&self, make: impl FnOnce() -> Result<Meeting, Error>) -> Result<Meeting, Error> {
        let mut content = self.shared.inode(self.index).exclusive();
        let Content::Fifo(place) = &mut *content else { return Err(Error::InvalidArgument) };
        place.meet(make)
    }

    /// Forgets the value of [`meeting`](Node::meeting), as [`MeetingPlace::end`].
    pub fn end_meeting(&self) {
        if let Content::Fifo(place) = &mut *self.shared.inode(self.index).exclusive() {
            place.end();
        }
    }

    /// Changes the permissions: the lower twelve bits of `permissions`.
    #[doc(alias = "fchmod")]
    pub fn set_permissions(&self, permissions: u16, now: Timestamp) {
        let mut attributes = self.shared.inode(self.index).attributes.lock();
        attributes.ownership.permissions = permissions & 0o7777;
        attributes.changed = now;
        drop(attributes);
        self.tell(event::ATTRIBUTES);
    }

    /// Returns its owner, group and permissions.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        self.shared.inode(self.index).ownership()
    }

    /// Changes owner, group and permissions to those that `change` makes of them, unless it fails, under their lock.
    ///
    /// # Errors
    /// Those of `change`.
    #[doc(alias = "fchown")]
    pub fn change_ownership(
        &self,
        now: Timestamp,
        change: impl FnOnce(Ownership) -> Result<Ownership, Error>,
    ) -> Result<(), Error> {
        let mut attributes = self.shared.inode(self.index).attributes.lock();
        attributes.ownership = change(attributes.ownership)?;
        attributes.changed = now;
        drop(attributes);
        self.tell(event::ATTRIBUTES);
        Ok(())
    }

    /// Takes the bits to set user and group from a file whose contents a user other than 0 has changed.
    pub fn written_by_others(&self) {
        let mut attributes = self.shared.inode(self.index).attributes.lock();
        attributes.ownership.permissions = rights::after_write(attributes.ownership);
    }

    /// Returns the node as the beginning of a path that is followed for this user.
    #[must_use]
    pub fn seen_by<'a>(&'a self, subject: Option<&'a Subject>) -> Base<'a> {
        Base { node: self, subject, part: Part::default() }
    }

    /// Changes the given times.
    #[doc(alias = "utimensat")]
    pub fn set_times(&self, accessed: Option<Timestamp>, modified: Option<Timestamp>, now: Timestamp) {
        let mut attributes = self.shared.inode(self.index).attributes.lock();
        attributes.accessed = accessed.unwrap_or(attributes.accessed);
        attributes.modified = modified.unwrap_or(attributes.modified);
        attributes.changed = now;
        drop(attributes);
        match (accessed, modified) {
            (Some(_), Some(_)) => self.tell(event::ATTRIBUTES),
            (Some(_), None) => self.tell(event::ACCESSED),
            (None, Some(_)) => self.tell(event::MODIFIED),
            (None, None) => {}
        }
    }

    /// Reads up to `buffer.len()` bytes at `offset`; returns their number, 0 at the end.
    ///
    /// # Errors
    /// [`Error::IsADirectory`], or [`Error::InvalidArgument`] for anything else that is not a regular file.
    #[doc(alias = "pread")]
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        self.read_with(offset, buffer.len(), |piece| {
            buffer[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
            piece.len()
        })
    }

    /// Reads without an intermediate copy: gives `sink` the bytes from `offset` on, in pieces, until there were
    /// `length` of them, or the file ends, or `sink` returns that it took less than it was given. Returns the number of
    /// bytes taken.
    ///
    /// `sink` runs under the file's lock: it must not use this file system, and must not wait.
    ///
    /// # Errors
    /// As [`Node::read_at`].
    pub fn read_with(&self, offset: u64, length: usize, sink: impl FnMut(&[u8]) -> usize) -> Result<usize, Error> {
        let content = self.shared.inode(self.index).shared();
        Ok(content.file()?.read_with(offset, length, sink))
    }

    /// Writes `data` at `offset`; returns the number of bytes, less than `data.len()` only if there is no room for
    /// more. A gap between the former end and `offset` reads as zeros and costs nothing.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::OutOfMemory`] or [`Error::FileTooLarge`] if not even one byte could be written;
    /// otherwise as [`Node::read_at`].
    #[doc(alias = "pwrite")]
    pub fn write_at(&self, offset: u64, data: &[u8], now: Timestamp) -> Result<usize, Error> {
        self.write_with(offset, data.len(), now, copier(data))
    }

    /// Writes without an intermediate copy: `source` fills pieces of the file from `offset` on, `length` bytes
    /// altogether, and returns how much of each piece it filled; less than the whole piece ends the write. It must not
    /// change the rest of a piece. Returns the number of bytes filled.
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

    /// Writes `data` at the end that the file has when the write begins: simultaneous appends do not overwrite each
    /// other. Returns the start and the number of bytes written.
    ///
    /// # Errors
    /// As [`Node::write_at`].
    #[doc(alias = "O_APPEND")]
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

    /// Cuts the file off at `length`, or extends it with zeros. Of many removed pages, some are left to
    /// [`Filesystem::free_remains`](crate::Filesystem::free_remains).
    ///
    /// # Errors
    /// [`Error::FileTooLarge`]; [`Error::NotPermitted`] if the file is sealed; otherwise as [`Node::read_at`].
    #[doc(alias = "ftruncate")]
    pub fn truncate(&self, length: u64, now: Timestamp) -> Result<(), Error> {
        let inode = self.shared.inode(self.index);
        let mut content = inode.exclusive();
        match &mut *content {
            // It has no bytes, and is said to have others.
            Content::Object(_, said) if length <= MAX_FILE_LENGTH => *said = length,
            content => content.file_mut()?.truncate(&self.shared.quota, &self.shared.remains, length)?,
        }
        inode.touch(now);
        drop(content);
        self.tell(event::MODIFIED);
        Ok(())
    }

    /// Keeps writers away from the file until [`allow_writers`](Self::allow_writers), because a program is run from it.
    ///
    /// # Errors
    /// [`Error::TextBusy`] if it is open for writing.
    pub fn deny_writers(&self) -> Result<(), Error> {
        self.shared.inode(self.index).writers.deny()
    }

    /// Ends what [`deny_writers`](Self::deny_writers) began.
    pub fn allow_writers(&self) {
        self.shared.inode(self.index).writers.allow();
    }

    /// Whether writers are kept away.
    pub fn are_writers_denied(&self) -> bool {
        self.shared.inode(self.index).writers.are_denied()
    }

    /// Makes a page of a file, beyond its end too, at the expense of an owner (`fallocate`).
    ///
    /// # Errors
    /// [`Error::FileTooLarge`], [`Error::NotPermitted`] if the file is sealed and would grow; otherwise as
    /// [`Node::write_at`].
    #[doc(alias = "fallocate")]
    pub fn allocate_page(&self, owner: Option<&Arc<dyn Owner>>, page: u64) -> Result<(), Error> {
        if page >= MAX_FILE_LENGTH.div_ceil(PAGE_SIZE as u64) {
            return Err(Error::FileTooLarge);
        }
        self.shared.inode(self.index).exclusive().file_mut()?.allocate(&self.shared.quota, owner, page)
    }

    /// Frees some of the pages that [`allocate_page`](Self::allocate_page) has made and nothing has used since, from a
    /// page on and before another. Returns the page that it has reached.
    ///
    /// # Errors
    /// As [`Node::truncate`] of a node that is no regular file.
    pub fn take_back_pages(&self, from: u64, to: u64) -> Result<u64, Error> {
        Ok(self.shared.inode(self.index).exclusive().file_mut()?.take_back(&self.shared.quota, from, to))
    }

    /// Extends a file with zeros, if it is shorter than `length`.
    ///
    /// # Errors
    /// As [`Node::truncate`].
    pub fn extend(&self, length: u64, now: Timestamp) -> Result<(), Error> {
        let inode = self.shared.inode(self.index);
        let mut content = inode.exclusive();
        let file = content.file_mut()?;
        if length > file.length() {
            file.truncate(&self.shared.quota, &self.shared.remains, length)?;
            inode.touch(now);
        }
        Ok(())
    }

    /// Makes the bytes from `from` on and before `to` zero, and frees the pages that they fill: a part of them. Returns
    /// the place that it has reached, from which another call goes on.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] if the file is sealed; otherwise as [`Node::read_at`].
    #[doc(alias = "FALLOC_FL_PUNCH_HOLE")]
    pub fn punch_hole(&self, owner: Option<&Arc<dyn Owner>>, from: u64, to: u64, now: Timestamp) -> Result<u64, Error> {
        let inode = self.shared.inode(self.index);
        let mut content = inode.exclusive();
        let reached = content.file_mut()?.punch(&self.shared.quota, owner, from, to)?;
        inode.touch(now);
        Ok(reached)
    }

    /// Returns the bytes of a regular file from a place before its end on, as far as a short look tells, and whether
    /// they are in a hole; `None` if the file ends there.
    ///
    /// # Errors
    /// As [`Node::read_at`].
    #[doc(alias = "SEEK_DATA")]
    #[doc(alias = "SEEK_HOLE")]
    pub fn stretch(&self, from: u64) -> Result<Option<Stretch>, Error> {
        let content = self.shared.inode(self.index).shared();
        if let Content::Object(_, length) = &*content {
            return Ok((from < *length).then_some(Stretch { is_hole: false, end: *length }));
        }
        let file = content.file()?;
        Ok((from < file.length()).then(|| file.stretch(from)))
    }

    /// Returns the memory of the file's common pages, which programs can map; without any it is made by `make`, under
    /// the file's lock. If the mapping `writes`, that is [noted](CommonPages::begin_writing).
    ///
    /// # Errors
    /// Those of `make`; [`Error::NotPermitted`] if it writes and the file is sealed; otherwise as [`Node::read_at`].
    #[doc(alias = "page cache")]
    pub fn common_pages(
        &self,
        writes: bool,
        make: impl FnOnce() -> Result<Arc<dyn CommonPages>, Error>,
    ) -> Result<Arc<dyn CommonPages>, Error> {
        self.shared.inode(self.index).exclusive().file_mut()?.common(writes, make)
    }

    /// Returns the seals of a file: bits of [`seal`](crate::seal).
    ///
    /// # Errors
    /// As [`Node::read_at`].
    #[doc(alias = "F_GET_SEALS")]
    pub fn seals(&self) -> Result<u32, Error> {
        Ok(self.shared.inode(self.index).shared().file()?.seals())
    }

    /// Adds seals to a file.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for unknown bits; [`Error::NotPermitted`] if it is sealed against more seals, as all
    /// files are that have had a name; [`Error::Busy`] to seal bytes that a program has mapped for writing; otherwise
    /// as [`Node::read_at`].
    #[doc(alias = "F_ADD_SEALS")]
    pub fn add_seals(&self, seals: u32) -> Result<(), Error> {
        let mut content = self.shared.inode(self.index).exclusive();
        let file = content.file_mut()?;
        file.add_seals(seals)
    }

    /// Makes a page of the file common, at the expense of an owner if it is not there yet; returns `false` if it is
    /// beyond the end.
    ///
    /// # Errors
    /// Those of [`CommonPages::make`]; [`Error::InvalidArgument`] before [`common_pages`](Node::common_pages);
    /// otherwise as [`Node::write_at`].
    pub fn share_page(&self, owner: Option<&Arc<dyn Owner>>, page: u64) -> Result<bool, Error> {
        let inode = self.shared.inode(self.index);
        let mut content = inode.exclusive();
        content.file_mut()?.share_page(&self.shared.quota, owner, page)
    }

    /// Gives a file new contents that are not copied.
    pub(crate) fn set_backing(&self, backing: &'static [u8]) -> Result<(), Error> {
        let mut content = self.shared.inode(self.index).exclusive();
        let file = content.file_mut()?;
        file.truncate(&self.shared.quota, &self.shared.remains, 0)?;
        *file = FileContents::new(backing);
        Ok(())
    }

    /// Returns the whole file in one piece, while its contents are the archive's: a loader needs no copy. Later writes
    /// do not change these bytes.
    pub fn archived_bytes(&self) -> Option<&'static [u8]> {
        self.shared.inode(self.index).shared().file().ok()?.untouched()
    }

    /// Shows the target of a symbolic link to `reader`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is not a symbolic link.
    #[doc(alias = "readlink")]
    pub fn read_link<R>(&self, reader: impl FnOnce(&[u8]) -> R) -> Result<R, Error> {
        match &*self.shared.inode(self.index).shared() {
            Content::SymbolicLink(target) => Ok(reader(target)),
            _ => Err(Error::InvalidArgument),
        }
    }

    /// Lists a directory from `cursor` on: gives `sink` one entry after another, starting with `.` and `..`, until it
    /// breaks. The entry it breaks at counts as not reported. Returns the cursor to continue with.
    ///
    /// Cursors stay good while the directory changes: an entry that is there all the time is reported exactly once. 0
    /// is the start; other cursors come from this function or from an entry's [`DirectoryEntry::next`].
    ///
    /// `sink` runs under the directory's lock: it must not use this file system, and must not wait.
    ///
    /// # Errors
    /// [`Error::NotADirectory`]; [`Error::NotFound`] if it has been removed.
    #[doc(alias = "readdir")]
    #[doc(alias = "getdents")]
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

/// Makes a source that copies `data` into pieces.
pub(crate) fn copier(mut data: &[u8]) -> impl FnMut(&mut [u8]) -> usize {
    move |piece| {
        let (now, later) = data.split_at(piece.len().min(data.len()));
        piece[..now.len()].copy_from_slice(now);
        data = later;
        now.len()
    }
}

/// Returns an inode's number: never 0, which means "no entry" to old programs.
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
