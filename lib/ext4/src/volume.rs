//! A mounted volume.

use alloc::vec::Vec;
use core::ops::Range;

use crate::attributes::FileAttribute;
use crate::blocks::{BlockKind, Blocks};
use crate::bytes::{half, set_half, set_word, word};
use crate::device::{Device, DeviceFailed};
use crate::directories::{ListingCursor, NamePlace, Searched, type_of};
use crate::extents;
use crate::filesystem::{Filesystem, ROOT};
use crate::inodes::{ACCESSED, CHANGED, HAS_EXTENTS, Inode, MAP, MODIFIED, MOST_LINKS};
use crate::log::{Journal, JournalLog, JournalPiece, Unusable};
use crate::maps::EXTENTS_OF_A_STEP;
use crate::replay;
use crate::superblock::{self, IS_WHOLE, LAST_NAMELESS_AT, Layout, Refusal, STATE_AT, WRITTEN_AT};

/// Bytes of the largest journal (`mke2fs` makes none that is larger), and number of its pieces, which are listed in
/// memory.
const LARGEST_JOURNAL: u64 = 1 << 30;
const MOST_PIECES: usize = 1 << 14;
/// Number of blocks of a journal that are replayed in memory.
const MOST_COVERED: usize = 2048;
/// Bytes of the longest target of a symbolic link (Linux: `PATH_MAX`).
const LONGEST_TARGET: u64 = 4096;
/// Bytes of the longest name.
const LONGEST_NAME: usize = 255;
/// Number of blocks that a write gets in one operation.
const BLOCKS_OF_A_WRITE: u64 = 128;
/// Number of pieces in which bytes of a file lie whose places are told.
const MOST_RUNS: usize = 64;
/// Number of blocks that must be free before anything grows: the nodes of trees that one change can make.
const BLOCKS_OF_A_CHANGE: u64 = 16;
/// Number of files without names that a volume can have when it is mounted.
const MOST_NAMELESS: usize = 1 << 16;
/// Number of such files, and of pieces of a journal, between two pauses.
const AT_ONCE: usize = 64;
/// Number of directories between two whose parents are looked for: more are a loop.
const DEEPEST: u32 = 1 << 16;
/// Permission bits that a file loses when its bytes change: it runs with them as its owner, and as its group.
const AS_OWNER: u16 = 0o4000;
const AS_GROUP: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o10;
const EXECUTES: u16 = 0o111;

/// Bits of a mode that say the kind of a file (`S_IFMT`).
pub mod kind {
    /// All of them.
    pub const MASK: u16 = 0o170_000;
    /// A regular file.
    pub const REGULAR: u16 = 0o100_000;
    /// A directory.
    pub const DIRECTORY: u16 = 0o040_000;
    /// A symbolic link.
    pub const SYMBOLIC_LINK: u16 = 0o120_000;
    /// A socket.
    pub const SOCKET: u16 = 0o140_000;
    /// A FIFO.
    pub const FIFO: u16 = 0o010_000;
}

/// Reason why an operation has failed, for its caller. Nothing has changed then, unless the device has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no such name or file.
    NotFound,
    /// The name is there.
    AlreadyExists,
    /// The operation needs a directory.
    NotADirectory,
    /// The operation needs another file than a directory.
    IsADirectory,
    /// The directory has names.
    NotEmpty,
    /// An argument has no meaning, as a directory that would be in itself.
    Invalid,
    /// The target of a symbolic link is too long.
    NameTooLong,
    /// The volume or a directory is full.
    NoSpace,
    /// The file has as many names as it can have.
    TooManyLinks,
    /// The file would be too large.
    TooLarge,
    /// The volume cannot be changed, or not any more.
    ReadOnly,
    /// The volume has a structure that is not known.
    Unsupported,
    /// The volume is in use.
    Busy,
    /// The volume contradicts itself there.
    Damaged(&'static str),
    /// The device has failed.
    Device,
    /// There is no memory.
    OutOfMemory,
}

/// A time, as Unix counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds after that.
    pub nanoseconds: u32,
}

/// The clock of changes.
pub type Clock = fn() -> Stamp;

/// The access of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Files are read.
    Read,
    /// Files are read and changed.
    Write,
}

/// A file as `stat` tells of it. Times of an inode without room for more have whole seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Number of the inode.
    pub inode: u32,
    /// Kind and permissions.
    pub mode: u16,
    /// User and group.
    pub owner: (u32, u32),
    /// Number of names.
    pub links: u16,
    /// Length in bytes.
    pub size: u64,
    /// Sectors of 512 bytes that it takes.
    pub sectors: u64,
    /// The last access, the last change of contents and the last change.
    pub times: [Stamp; 3],
    /// Major and minor number of a device.
    pub device: (u32, u32),
}

impl Attributes {
    /// Whether it is a file of this [`kind`].
    pub fn is(&self, kind: u16) -> bool {
        self.mode & kind::MASK == kind
    }
}

/// A kind of file that has no bytes on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

/// The length of a file whose part is changed behind its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// It stays.
    Keep,
    /// It becomes the end of the part.
    Grow,
}

/// A change of a part of a regular file and of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "fallocate")]
pub enum RangeChange {
    /// Holes get blocks, which are read as zeros.
    Reserve(Growth),
    /// Bytes become zeros, and whole blocks are freed: a hole.
    Punch,
    /// Bytes become zeros, and have their blocks.
    Zero(Growth),
}

/// A file to be made: owner and permissions.
#[derive(Clone, Copy, Debug)]
pub struct NewFile {
    /// User and group.
    pub owner: (u32, u32),
    /// The lower twelve bits of the mode.
    pub permissions: u16,
}

/// Attributes to be changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// The lower twelve bits of the mode.
    pub permissions: Option<u16>,
    /// User and group.
    pub owner: Option<(u32, u32)>,
    /// Time of the last access.
    pub accessed: Option<Stamp>,
    /// Time of the last change of contents.
    pub modified: Option<Stamp>,
}

/// Treatment of a name that a rename finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// It is replaced.
    Replace,
    /// The rename fails.
    Refuse,
    /// Both names are exchanged.
    Exchange,
}

/// Whether an extended attribute may be there before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeMode {
    /// It may.
    Any,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

/// The namespaces of extended attributes, as texts and as the disk has them.
const NAMESPACES: [(&[u8], u8); 3] = [(b"user.", 1), (b"trusted.", 4), (b"security.", 6)];

/// A file that has lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlinked {
    /// Its number.
    pub inode: u32,
    /// Whether that was its last name.
    pub is_nameless: bool,
}

/// An exact place in the listing of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListingPlace(ListingCursor);

impl ListingPlace {
    /// The beginning of any directory.
    pub const START: ListingPlace = ListingPlace(ListingCursor::Start);
}

/// A name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the inode.
    pub inode: u32,
    /// The type, as in a listing of Linux (`DT_REG` and its like).
    pub kind: u8,
    /// The name.
    pub name: Vec<u8>,
    /// The place of the next name as a number, for [`Volume::list`]. Names of one hash may have the same.
    pub next: u64,
    /// That place, exactly.
    pub after: ListingPlace,
}

/// Sizes of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of a block.
    pub block_size: u64,
    /// Number of blocks, and of free ones.
    pub blocks: (u64, u64),
    /// Number of inodes, and of free ones.
    pub inodes: (u64, u64),
}

/// A mounted volume. Dropping it without [`unmount`](Volume::unmount) is as a power cut.
pub struct Volume<D: Device> {
    filesystem: Option<Filesystem<D>>,
    device: D,
    clock: Clock,
    access: Access,
    /// Something was changed, and does not last.
    has_changed: bool,
    /// Bytes of files were changed whose blocks were there, and the times of these files.
    has_overwritten: bool,
}

/// Bytes of a file that lie together on the device, or are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRun {
    /// Their place in the file.
    pub offset: u64,
    /// Their number.
    pub length: u64,
    /// Their place on the device; `None` for zeros.
    pub at: Option<u64>,
}

impl<D: Device> Volume<D> {
    /// Mounts the volume of a device: replays its journal, and ends the files that had no names when it was cut off.
    ///
    /// # Errors
    /// A [`Refusal`], which says what is not supported or not right.
    pub fn mount(device: D, clock: Clock, access: Access) -> Result<Volume<D>, Refusal> {
        if access == Access::Write && device.is_read_only() {
            return Err(Refusal::Device);
        }
        superblock::examine(&device, access == Access::Write)?;
        let filesystem = open(access, &device).map_err(refusal_of)?;
        let mut volume =
            Volume { filesystem: Some(filesystem), device, clock, access, has_changed: false, has_overwritten: false };
        let root = volume.attributes(ROOT).map_err(|_| Refusal::Damaged("the root directory"))?;
        if !root.is(kind::DIRECTORY) {
            return Err(Refusal::Damaged("the root directory"));
        }
        if access == Access::Write {
            volume.begin_writing().map_err(refusal_of)?;
        }
        Ok(volume)
    }

    /// Ends the files without names of a volume that was cut off, and notes that it is written.
    fn begin_writing(&mut self) -> Result<(), Error> {
        let Some(filesystem) = self.filesystem.as_ref() else { return Err(Error::Device) };
        if filesystem.blocks.layout.journal.is_none() {
            self.note_state(false)?;
        }
        loop {
            let last = self.filesystem.as_ref().and_then(|filesystem| filesystem.nameless.last().copied());
            let Some(number) = last else { break };
            let links = self.act(|filesystem| filesystem.raw_inode(number))?.links();
            if links == 0 {
                while !self.end_file(number)? {}
            } else {
                // It was becoming shorter.
                self.change(|filesystem, _| {
                    let mut inode = filesystem.raw_inode(number)?;
                    let size = inode.size();
                    let is_done = !inode.is(kind::REGULAR) || filesystem.set_length(&mut inode, size)?;
                    if is_done {
                        filesystem.remove_nameless(number)?;
                        inode.set_ended(0);
                    }
                    filesystem.store(&inode)?;
                    if is_done {
                        filesystem.forget_nameless(number);
                    }
                    Ok(())
                })?;
            }
        }
        if self.has_changed { self.commit() } else { Ok(()) }
    }

    /// Notes in the superblock of a volume without a journal whether it is whole.
    fn note_state(&mut self, is_whole: bool) -> Result<(), Error> {
        self.change(|filesystem, _| {
            let state = half(filesystem.superblock()?, STATE_AT);
            let state = if is_whole { state | IS_WHOLE } else { state & !IS_WHOLE };
            set_half(filesystem.superblock_part(STATE_AT..STATE_AT + 2)?, 0, state);
            Ok(())
        })
    }

    /// Returns the number of the root directory.
    pub fn root(&self) -> u32 {
        ROOT
    }

    /// Returns the access; it becomes less by itself after a failure.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Looks at something.
    fn act<R>(&mut self, act: impl FnOnce(&mut Filesystem<D>) -> Result<R, Error>) -> Result<R, Error> {
        act(self.filesystem.as_mut().ok_or(Error::Device)?)
    }

    /// Goes on read-only with what was synchronised, as after a power cut. The journal is replayed in memory: the
    /// device may not be able to write any more.
    fn go_back(&mut self) {
        self.access = Access::Read;
        (self.has_changed, self.has_overwritten) = (false, false);
        self.filesystem = open(Access::Read, &self.device).ok();
    }

    /// Does an operation that changes something, of which nothing is left if it fails.
    fn change<R>(&mut self, act: impl FnOnce(&mut Filesystem<D>, Stamp) -> Result<R, Error>) -> Result<R, Error> {
        if self.access == Access::Read {
            return Err(Error::ReadOnly);
        }
        let now = (self.clock)();
        let filesystem = self.filesystem.as_mut().ok_or(Error::Device)?;
        let done = act(filesystem, now);
        match &done {
            Ok(_) => {
                filesystem.blocks.keep();
                self.has_changed = true;
            }
            Err(_) => filesystem.blocks.take_back(),
        }
        if filesystem.has_failed {
            self.go_back();
            return done;
        }
        if filesystem.blocks.are_many() {
            self.commit()?;
        }
        done
    }

    /// Has so many blocks be free that can be given away, as far as others wait until it lasts that they are free.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    fn require_blocks(&mut self, count: u64) -> Result<(), Error> {
        if self.access == Access::Read {
            return Err(Error::ReadOnly);
        }
        let filesystem = self.filesystem.as_mut().ok_or(Error::Device)?;
        let free = filesystem.free().ok_or(Error::Device)?.0;
        let waiting = filesystem.blocks.count_freed();
        if free < count {
            return Err(Error::NoSpace);
        }
        if free - waiting.min(free) < count { self.commit() } else { Ok(()) }
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none with this number.
    pub fn attributes(&mut self, inode: u32) -> Result<Attributes, Error> {
        self.act(|filesystem| {
            let layout = filesystem.blocks.layout;
            Ok(filesystem.inode(inode)?.attributes(&layout))
        })
    }

    /// Returns the file with this name in a directory; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::NotADirectory`], [`Error::Invalid`] for what is no name.
    pub fn look_up(&mut self, directory: u32, name: &[u8]) -> Result<Option<Attributes>, Error> {
        require_name(name)?;
        self.act(|filesystem| {
            let layout = filesystem.blocks.layout;
            let directory = filesystem.directory(directory)?;
            let Some(place) = filesystem.find_name(&directory, name)? else { return Ok(None) };
            Ok(Some(named(filesystem, place)?.attributes(&layout)))
        })
    }

    /// Makes an empty regular file.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::NoSpace`] and those of all changes.
    pub fn create(&mut self, directory: u32, name: &[u8], file: NewFile) -> Result<Attributes, Error> {
        self.make(directory, name, kind::REGULAR, file, |_, _, _| Ok(()))
    }

    /// Makes a FIFO, or the name of a socket.
    ///
    /// # Errors
    /// As [`create`](Volume::create).
    pub fn make_special(
        &mut self,
        directory: u32,
        name: &[u8],
        special: Special,
        file: NewFile,
    ) -> Result<Attributes, Error> {
        let kind = match special {
            Special::Fifo => kind::FIFO,
            Special::Socket => kind::SOCKET,
        };
        self.make(directory, name, kind, file, |_, inode, _| {
            inode.set_flags(inode.flags() & !HAS_EXTENTS);
            inode.map_mut().fill(0);
            Ok(())
        })
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`create`](Volume::create).
    pub fn make_directory(&mut self, directory: u32, name: &[u8], file: NewFile) -> Result<Attributes, Error> {
        self.make(directory, name, kind::DIRECTORY, file, |filesystem, inode, parent| {
            inode.set_links(2);
            add_directory(filesystem, parent)?;
            filesystem.begin_directory(inode, parent.number)
        })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`create`](Volume::create); [`Error::Invalid`] for an empty target, [`Error::NameTooLong`].
    pub fn make_symbolic_link(
        &mut self,
        directory: u32,
        name: &[u8],
        target: &[u8],
        owner: (u32, u32),
    ) -> Result<Attributes, Error> {
        if target.is_empty() {
            return Err(Error::Invalid);
        }
        // A block, with the zero at its end.
        if target.len() as u64 >= self.usage()?.block_size.min(LONGEST_TARGET) {
            return Err(Error::NameTooLong);
        }
        let file = NewFile { owner, permissions: 0o777 };
        self.make(directory, name, kind::SYMBOLIC_LINK, file, |filesystem, inode, _| {
            if target.len() < MAP {
                inode.set_flags(inode.flags() & !HAS_EXTENTS);
                inode.map_mut().fill(0);
                inode.map_mut()[..target.len()].copy_from_slice(target);
            } else {
                let (block, _) = filesystem.fill_hole(inode, 0, 1)?;
                filesystem.blocks.make(block, BlockKind::Target)?[..target.len()].copy_from_slice(target);
            }
            inode.set_size(target.len() as u64);
            Ok(())
        })
    }

    /// Makes a file of this kind in a directory; it has extents and one name before it is filled.
    fn make(
        &mut self,
        directory: u32,
        name: &[u8],
        file_kind: u16,
        file: NewFile,
        fill: impl FnOnce(&mut Filesystem<D>, &mut Inode, &mut Inode) -> Result<(), Error>,
    ) -> Result<Attributes, Error> {
        if file.permissions & kind::MASK != 0 {
            return Err(Error::Invalid);
        }
        require_name(name)?;
        self.require_blocks(BLOCKS_OF_A_CHANGE)?;
        self.change(|filesystem, now| {
            let layout = filesystem.blocks.layout;
            let (mut parent, room) = room_for(filesystem, directory, name)?;
            let mode = file_kind | file.permissions;
            let mut inode = filesystem.new_inode(&parent, mode, file.owner, now)?;
            inode.set_links(1);
            if layout.has_extents {
                inode.set_flags(inode.flags() | HAS_EXTENTS);
                *inode.map_mut() = extents::empty_root();
            }
            fill(filesystem, &mut inode, &mut parent)?;
            filesystem.add_name(&mut parent, name, (inode.number, type_of(mode)), room)?;
            touch_directory(filesystem, &mut parent, now)?;
            filesystem.store(&inode)?;
            Ok(inode.attributes(&layout))
        })
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// As [`create`](Volume::create); [`Error::IsADirectory`], [`Error::TooManyLinks`].
    pub fn link(&mut self, inode: u32, directory: u32, name: &[u8]) -> Result<Attributes, Error> {
        require_name(name)?;
        let file = self.attributes(inode)?;
        if file.is(kind::DIRECTORY) {
            return Err(Error::IsADirectory);
        }
        if file.links == 0 {
            return Err(Error::NotFound);
        }
        if file.links >= MOST_LINKS {
            return Err(Error::TooManyLinks);
        }
        self.require_blocks(BLOCKS_OF_A_CHANGE)?;
        self.change(|filesystem, now| {
            let layout = filesystem.blocks.layout;
            let mut inode = filesystem.inode(inode)?;
            let (mut parent, room) = room_for(filesystem, directory, name)?;
            filesystem.add_name(&mut parent, name, (inode.number, type_of(inode.mode())), room)?;
            inode.set_links(inode.links() + 1);
            inode.set_time(&layout, CHANGED, now);
            filesystem.store(&inode)?;
            touch_directory(filesystem, &mut parent, now)?;
            Ok(inode.attributes(&layout))
        })
    }

    /// Takes a name from a file. After the last one the file lives on until [`end_file`](Volume::end_file), or until
    /// the volume is mounted the next time.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`] and those of all changes.
    pub fn unlink(&mut self, directory: u32, name: &[u8]) -> Result<Unlinked, Error> {
        require_name(name)?;
        self.change(|filesystem, now| {
            let mut parent = filesystem.directory(directory)?;
            let place = filesystem.find_name(&parent, name)?.ok_or(Error::NotFound)?;
            let mut inode = named(filesystem, place)?;
            if inode.is(kind::DIRECTORY) {
                return Err(Error::IsADirectory);
            }
            filesystem.remove_name(place)?;
            touch_directory(filesystem, &mut parent, now)?;
            let is_nameless = drop_name(filesystem, &mut inode, now)?;
            if is_nameless {
                filesystem.nameless.push(inode.number);
            }
            Ok(Unlinked { inode: inode.number, is_nameless })
        })
    }

    /// Removes an empty directory; returns its number. It lives on as with [`unlink`](Volume::unlink).
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::NotEmpty`] and those of all changes.
    pub fn remove_directory(&mut self, directory: u32, name: &[u8]) -> Result<Option<u32>, Error> {
        require_name(name)?;
        self.change(|filesystem, now| {
            let mut parent = filesystem.directory(directory)?;
            let place = filesystem.find_name(&parent, name)?.ok_or(Error::NotFound)?;
            let mut inode = named(filesystem, place)?;
            if !inode.is(kind::DIRECTORY) {
                return Err(Error::NotADirectory);
            }
            if name == b"." || inode.number == ROOT {
                return Err(Error::Invalid);
            }
            if name == b".." || !filesystem.is_empty(&inode)? {
                return Err(Error::NotEmpty);
            }
            filesystem.remove_name(place)?;
            take_directory(&mut parent);
            touch_directory(filesystem, &mut parent, now)?;
            drop_name(filesystem, &mut inode, now)?;
            filesystem.nameless.push(inode.number);
            Ok(Some(inode.number))
        })
    }

    /// Renames a file; returns the number of a file that has lost its last name by that, as with
    /// [`unlink`](Volume::unlink).
    ///
    /// # Errors
    /// Those of Linux's `rename` and of all changes.
    pub fn rename(
        &mut self,
        from: (u32, &[u8]),
        to: (u32, &[u8]),
        replacement: Replacement,
    ) -> Result<Option<u32>, Error> {
        require_name(from.1)?;
        require_name(to.1)?;
        if is_reserved(from.1) || is_reserved(to.1) {
            return Err(Error::Busy);
        }
        self.require_blocks(BLOCKS_OF_A_CHANGE)?;
        self.change(|filesystem, now| {
            let old_directory = filesystem.directory(from.0)?;
            let new_directory = filesystem.directory(to.0)?;
            let old = filesystem.find_name(&old_directory, from.1)?.ok_or(Error::NotFound)?;
            let moved = named(filesystem, old)?;
            if new_directory.links() == 0 {
                return Err(Error::NotFound);
            }
            let searched = filesystem.search(&new_directory, to.1)?;
            let new = match (searched, replacement) {
                (Searched::Found(_), Replacement::Refuse) => return Err(Error::AlreadyExists),
                (Searched::Missing(_), Replacement::Exchange) => return Err(Error::NotFound),
                // Two names of one file: as POSIX says, nothing happens.
                (Searched::Found(new), _) if new.inode == moved.number => return Ok(None),
                (Searched::Found(new), _) => Some(new),
                (Searched::Missing(_), _) => None,
            };
            if moved.is(kind::DIRECTORY) {
                require_outside(filesystem, &new_directory, moved.number)?;
            }
            let move_of = Move { old_directory, new_directory, old, moved, now };
            match (new, replacement) {
                (Some(new), Replacement::Exchange) => move_of.exchange(filesystem, new).map(|()| None),
                (Some(new), _) => move_of.replace(filesystem, new),
                (None, _) => {
                    let Searched::Missing(room) = searched else { return Err(Error::Busy) };
                    move_of.add(filesystem, from.1, (to.1, room)).map(|()| None)
                }
            }
        })
    }

    /// Does a step of the end of a file without names that nobody uses; returns whether it has gone. Large files go in
    /// several steps.
    ///
    /// # Errors
    /// Those of all changes.
    pub fn end_file(&mut self, inode: u32) -> Result<bool, Error> {
        self.change(|filesystem, now| {
            let number = inode;
            let mut inode = filesystem.raw_inode(number)?;
            if inode.links() > 0 || !filesystem.is_nameless(number) {
                return Err(Error::Invalid);
            }
            let has_blocks = match inode.mode() & kind::MASK {
                kind::REGULAR | kind::DIRECTORY => true,
                kind::SYMBOLIC_LINK => !inode.has_short_target(),
                _ => false,
            };
            if has_blocks {
                let reached = filesystem.cut_blocks(&mut inode, 0)?;
                if reached > 0 {
                    let block = filesystem.blocks.layout.block as u64;
                    if inode.is(kind::REGULAR) {
                        inode.set_size((u64::from(reached) * block).min(inode.size()));
                    }
                    filesystem.store(&inode)?;
                    return Ok(false);
                }
            }
            filesystem.let_attributes_go(&mut inode)?;
            filesystem.remove_nameless(number)?;
            inode.set_size(0);
            // `e2fsck` takes a smaller time for the number of another file, and a machine may have no clock.
            inode.set_ended((now.seconds as u32).max(filesystem.blocks.layout.inodes));
            filesystem.store(&inode)?;
            filesystem.free_inode(number, inode.is(kind::DIRECTORY))?;
            filesystem.forget_nameless(number);
            Ok(true)
        })
    }

    /// Reads from a place in a file; returns the number of bytes, less only at its end.
    ///
    /// # Errors
    /// [`Error::IsADirectory`].
    pub fn read(&mut self, inode: u32, offset: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        self.act(|filesystem| {
            let inode = filesystem.inode(inode)?;
            if inode.is(kind::DIRECTORY) {
                return Err(Error::IsADirectory);
            }
            let length = inode.size().saturating_sub(offset).min(bytes.len() as u64) as usize;
            if length == 0 {
                return Ok(0);
            }
            if inode.is(kind::SYMBOLIC_LINK) {
                let target = filesystem.target(&inode)?;
                bytes[..length].copy_from_slice(&target[offset as usize..][..length]);
                return Ok(length);
            }
            if !inode.is(kind::REGULAR) {
                return Err(Error::Invalid);
            }
            filesystem.read_bytes(&inode, offset, &mut bytes[..length])?;
            Ok(length)
        })
    }

    /// Writes to a place in a regular file.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`] and those of all changes.
    pub fn write(&mut self, inode: u32, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let block = self.usage()?.block_size;
        match self.require_blocks(bytes.len() as u64 / block + BLOCKS_OF_A_CHANGE) {
            // Blocks that were reserved can be written.
            Err(Error::NoSpace)
                if self.missing_blocks(inode, offset..offset.saturating_add(bytes.len() as u64))? == 0 =>
            {
                // Nodes of trees that were freed may be needed.
                if self.act(|filesystem| Ok(filesystem.blocks.count_freed()))? > 0 {
                    self.commit()?;
                }
            }
            outcome => outcome?,
        }
        self.put(inode, offset, bytes).map(|_| ())
    }

    /// Returns the number of blocks that a part of a regular file lacks.
    fn missing_blocks(&mut self, inode: u32, range: Range<u64>) -> Result<u64, Error> {
        self.act(|filesystem| {
            let inode = regular(filesystem, inode)?;
            let block = filesystem.blocks.layout.block as u64;
            if range.end > filesystem.largest_file(&inode) {
                return Err(Error::TooLarge);
            }
            let (mut next, end, mut missing, mut seen) = (range.start / block, range.end.div_ceil(block), 0, 0_u32);
            while next < end {
                let piece = filesystem.piece(&inode, next as u32, (end - next) as u32)?;
                missing += if piece.at.is_none() { u64::from(piece.count) } else { 0 };
                next += u64::from(piece.count.max(1));
                seen += 1;
                if seen.is_multiple_of(EXTENTS_OF_A_STEP) {
                    filesystem.blocks.device().pause();
                }
            }
            Ok(missing)
        })
    }

    /// Fails unless a part of a regular file can be [changed](Volume::change_range), and there are the blocks that it
    /// lacks.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`]; [`Error::Unsupported`] for a file without extents.
    pub fn require_range(&mut self, inode: u32, range: Range<u64>) -> Result<(), Error> {
        self.act(|filesystem| {
            let inode = regular(filesystem, inode)?;
            filesystem.require_ranges(&inode, &range)
        })?;
        match self.missing_blocks(inode, range)? {
            0 => Ok(()),
            missing => self.require_blocks(missing + BLOCKS_OF_A_CHANGE),
        }
    }

    /// Does a step of changing a part of a regular file: returns the place from which on it is to be changed by the
    /// next one, or its end. Each step is done as a whole, or not at all.
    ///
    /// # Errors
    /// As [`require_range`](Volume::require_range), and those of all changes.
    pub fn change_range(&mut self, inode: u32, range: Range<u64>, change: RangeChange) -> Result<u64, Error> {
        self.change(|filesystem, now| {
            let mut inode = regular(filesystem, inode)?;
            let reached = filesystem.change_range(&mut inode, range, change)?;
            touch_file(filesystem, &mut inode, now)?;
            Ok(reached)
        })
    }

    /// Writes to a place in a regular file whose blocks are there: also if none are free.
    ///
    /// # Errors
    /// Those of all changes.
    pub fn overwrite(&mut self, inode: u32, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let before = self.has_changed;
        if self.put(inode, offset, bytes)? {
            // They are on the device, and nothing of the volume has changed but times.
            (self.has_changed, self.has_overwritten) = (before, true);
        }
        Ok(())
    }

    /// Writes to a place in a regular file. Returns whether it has its blocks and its length as before.
    fn put(&mut self, inode: u32, offset: u64, bytes: &[u8]) -> Result<bool, Error> {
        let piece = self.usage()?.block_size * BLOCKS_OF_A_WRITE;
        let (mut done, mut is_in_place) = (0, true);
        while done < bytes.len() {
            let at = offset.checked_add(done as u64).ok_or(Error::TooLarge)?;
            let length = ((piece - at % piece) as usize).min(bytes.len() - done);
            let part = &bytes[done..done + length];
            let written = self.change(|filesystem, now| {
                let mut inode = regular(filesystem, inode)?;
                let written = filesystem.write_bytes(&mut inode, at, part)?;
                touch_file(filesystem, &mut inode, now)?;
                Ok(written)
            })?;
            is_in_place &= written.is_in_place;
            done += length;
        }
        Ok(is_in_place)
    }

    /// Returns the places on the device of bytes of a regular file, in their order and without gaps; `None` if they
    /// have to be [read](Volume::read) through the volume. They are right until the next change of the file.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such file.
    pub fn runs(&mut self, inode: u32, offset: u64, length: u64) -> Result<Option<Vec<FileRun>>, Error> {
        self.act(|filesystem| {
            let inode = filesystem.inode(inode)?;
            if filesystem.is_covered || length == 0 || !inode.is(kind::REGULAR) {
                return Ok(None);
            }
            let block = filesystem.blocks.layout.block as u64;
            let end = offset.checked_add(length).ok_or(Error::TooLarge)?;
            let (mut runs, mut next) = (Vec::<FileRun>::new(), offset);
            while next < end {
                let Ok(logical) = u32::try_from(next / block) else { return Ok(None) };
                let wanted = (end.div_ceil(block) - next / block).min(u32::MAX.into()) as u32;
                let piece = filesystem.piece(&inode, logical, wanted)?;
                let stop = ((u64::from(logical) + u64::from(piece.count)) * block).min(end);
                let at = piece.at.filter(|_| !piece.is_unwritten).map(|at| at * block + next % block);
                if runs.len() == MOST_RUNS || stop <= next {
                    return Ok(None);
                }
                runs.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
                runs.push(FileRun { offset: next, length: stop - next, at });
                next = stop;
            }
            Ok(Some(runs))
        })
    }

    /// Whether bytes of a regular file from a place on are in a hole, or in blocks without bytes of the file, and the
    /// place up to which that is so: of one piece, and at most the end.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such file.
    pub fn stretch(&mut self, inode: u32, range: Range<u64>) -> Result<(bool, u64), Error> {
        self.act(|filesystem| {
            let inode = filesystem.inode(inode)?;
            let block = filesystem.blocks.layout.block as u64;
            let logical = u32::try_from(range.start / block).map_err(|_| Error::TooLarge)?;
            let wanted = (range.end.div_ceil(block) - u64::from(logical)).min(u32::MAX.into()) as u32;
            let piece = filesystem.piece(&inode, logical, wanted)?;
            let end = (u64::from(logical) + u64::from(piece.count.max(1))) * block;
            Ok((piece.at.is_none() || piece.is_unwritten, end.min(range.end)))
        })
    }

    /// Whether bytes of a regular file have their blocks.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such file.
    pub fn has_blocks(&mut self, inode: u32, offset: u64, length: u64) -> Result<bool, Error> {
        self.act(|filesystem| {
            let inode = filesystem.inode(inode)?;
            let block = filesystem.blocks.layout.block as u64;
            let end = offset.checked_add(length).ok_or(Error::TooLarge)?.div_ceil(block);
            let mut next = offset / block;
            while next < end {
                let Ok(logical) = u32::try_from(next) else { return Ok(false) };
                let piece = filesystem.piece(&inode, logical, (end - next).min(u32::MAX.into()) as u32)?;
                if piece.at.is_none() || piece.is_unwritten || piece.count == 0 {
                    return Ok(false);
                }
                next += u64::from(piece.count);
            }
            Ok(true)
        })
    }

    /// Gives a regular file another length.
    ///
    /// # Errors
    /// [`Error::TooLarge`] and those of all changes.
    pub fn truncate(&mut self, inode: u32, length: u64) -> Result<(), Error> {
        loop {
            let is_done = self.change(|filesystem, now| {
                let mut inode = regular(filesystem, inode)?;
                let is_done = filesystem.set_length(&mut inode, length)?;
                touch_file(filesystem, &mut inode, now)?;
                Ok(is_done)
            })?;
            if is_done {
                return Ok(());
            }
            self.device.pause();
        }
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another file.
    pub fn read_link(&mut self, inode: u32) -> Result<Vec<u8>, Error> {
        self.act(|filesystem| {
            let inode = filesystem.inode(inode)?;
            if !inode.is(kind::SYMBOLIC_LINK) {
                return Err(Error::Invalid);
            }
            if inode.size() == 0 || inode.size() >= LONGEST_TARGET {
                return Err(Error::Damaged("a symbolic link"));
            }
            let target = filesystem.target(&inode)?;
            if target.contains(&0) { Err(Error::Damaged("a symbolic link")) } else { Ok(target) }
        })
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// Those of all changes.
    pub fn set_attributes(&mut self, inode: u32, change: Change) -> Result<Attributes, Error> {
        if change.permissions.is_some_and(|permissions| permissions & kind::MASK != 0) {
            return Err(Error::Invalid);
        }
        self.change(|filesystem, now| {
            let layout = filesystem.blocks.layout;
            let mut inode = filesystem.inode(inode)?;
            if let Some(permissions) = change.permissions {
                inode.set_mode(inode.mode() & kind::MASK | permissions);
            }
            if let Some(owner) = change.owner {
                inode.set_owner(owner);
                if change.permissions.is_none() && !inode.is(kind::DIRECTORY) {
                    let group = if inode.mode() & GROUP_EXECUTES != 0 { AS_GROUP } else { 0 };
                    inode.set_mode(inode.mode() & !(AS_OWNER | group));
                }
            }
            for (at, stamp) in [(ACCESSED, change.accessed), (MODIFIED, change.modified)] {
                if let Some(stamp) = stamp {
                    inode.set_time(&layout, at, stamp);
                }
            }
            inode.set_time(&layout, CHANGED, now);
            filesystem.store(&inode)?;
            Ok(inode.attributes(&layout))
        })
    }

    /// Lists at most so many names of a directory from a place on: 0, or the place that an entry has named. Whatever
    /// happens to the directory meanwhile, a name that stays is listed.
    ///
    /// # Errors
    /// [`Error::NotADirectory`].
    pub fn list(&mut self, directory: u32, place: u64, most: usize) -> Result<Vec<Entry>, Error> {
        match cursor_of(place) {
            Some(cursor) => self.list_from(directory, ListingPlace(cursor), most),
            None => self.act(|filesystem| filesystem.directory(directory)).map(|_| Vec::new()),
        }
    }

    /// Lists as [`list`](Volume::list) does, from the exact place that an entry has named.
    ///
    /// # Errors
    /// [`Error::NotADirectory`].
    pub fn list_from(&mut self, directory: u32, place: ListingPlace, most: usize) -> Result<Vec<Entry>, Error> {
        let ListingPlace(cursor) = place;
        self.act(|filesystem| {
            let directory = filesystem.directory(directory)?;
            let listed = filesystem.list_names(&directory, cursor, most)?;
            let mut entries = Vec::new();
            entries.try_reserve_exact(listed.len()).map_err(|_| Error::OutOfMemory)?;
            entries.extend(listed.into_iter().map(|named| Entry {
                inode: named.inode,
                kind: kind_of(named.file_type),
                name: named.name,
                next: place_of(named.next),
                after: ListingPlace(named.next),
            }));
            Ok(entries)
        })
    }

    /// Returns the value of an extended attribute, whose name begins with its namespace.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Unsupported`] for other namespaces than `user`, `trusted` and `security`,
    /// [`Error::Invalid`] for an empty name behind one.
    pub fn extended_attribute(&mut self, inode: u32, name: &[u8]) -> Result<Vec<u8>, Error> {
        let (namespace, name) = namespace_of(name)?;
        let all = self.all_attributes(inode)?;
        let found = all.into_iter().find(|attribute| attribute.namespace == namespace && attribute.name == name);
        found.map(|attribute| attribute.value).ok_or(Error::NotFound)
    }

    fn all_attributes(&mut self, inode: u32) -> Result<Vec<FileAttribute>, Error> {
        self.act(|filesystem| {
            let inode = filesystem.inode(inode)?;
            filesystem.all_attributes(&inode)
        })
    }

    /// Returns the names of all extended attributes, each with a zero behind it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn extended_attributes(&mut self, inode: u32) -> Result<Vec<u8>, Error> {
        let mut list = Vec::new();
        for found in self.all_attributes(inode)? {
            // Others are the file system's own.
            let known = NAMESPACES.iter().find(|(_, namespace)| *namespace == found.namespace);
            let Some((prefix, _)) = known else { continue };
            list.try_reserve(prefix.len() + found.name.len() + 1).map_err(|_| Error::OutOfMemory)?;
            list.extend_from_slice(prefix);
            list.extend_from_slice(&found.name);
            list.push(0);
        }
        Ok(list)
    }

    /// Gives a file an extended attribute.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] and [`Error::NotFound`] as the mode says, [`Error::NoSpace`] also for a value that is
    /// too long, and those of [`extended_attribute`](Volume::extended_attribute) and of all changes.
    pub fn set_extended_attribute(
        &mut self,
        inode: u32,
        name: &[u8],
        value: &[u8],
        mode: AttributeMode,
    ) -> Result<(), Error> {
        let (namespace, own) = namespace_of(name)?;
        if value.len() as u64 > self.usage()?.block_size {
            return Err(Error::NoSpace);
        }
        let exists = self.all_attributes(inode)?.iter().any(|found| found.namespace == namespace && found.name == own);
        match mode {
            AttributeMode::Create if exists => return Err(Error::AlreadyExists),
            AttributeMode::Replace if !exists => return Err(Error::NotFound),
            _ => {}
        }
        self.require_blocks(BLOCKS_OF_A_CHANGE)?;
        self.put_attribute(inode, (namespace, own), Some(value))
    }

    fn put_attribute(&mut self, inode: u32, name: (u8, &[u8]), value: Option<&[u8]>) -> Result<(), Error> {
        self.change(|filesystem, now| {
            let layout = filesystem.blocks.layout;
            let mut inode = filesystem.inode(inode)?;
            filesystem.put_attribute(&mut inode, name, value)?;
            inode.set_time(&layout, CHANGED, now);
            filesystem.store(&inode)
        })
    }

    /// Takes an extended attribute from a file.
    ///
    /// # Errors
    /// [`Error::NotFound`], and those of [`extended_attribute`](Volume::extended_attribute) and of all changes.
    pub fn remove_extended_attribute(&mut self, inode: u32, name: &[u8]) -> Result<(), Error> {
        let (namespace, own) = namespace_of(name)?;
        let exists = self.all_attributes(inode)?.iter().any(|found| found.namespace == namespace && found.name == own);
        if !exists {
            return Err(Error::NotFound);
        }
        self.put_attribute(inode, (namespace, own), None)
    }

    /// Returns its sizes.
    ///
    /// # Errors
    /// [`Error::Device`] if the device has failed.
    pub fn usage(&self) -> Result<Usage, Error> {
        let filesystem = self.filesystem.as_ref().ok_or(Error::Device)?;
        let layout = &filesystem.blocks.layout;
        let (blocks, inodes) = filesystem.free().ok_or(Error::Device)?;
        Ok(Usage {
            block_size: layout.block as u64,
            blocks: (layout.blocks, blocks),
            inodes: (layout.inodes.into(), inodes.into()),
        })
    }

    /// Returns when all changes so far cannot be lost with the power any more.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn synchronise(&mut self) -> Result<(), Error> {
        self.commit()
    }

    /// Whether something was changed that does not last.
    pub fn has_changed(&self) -> bool {
        self.has_changed || self.has_overwritten
    }

    /// Returns when all bytes that were written to files cannot be lost with the power any more, and are found; times
    /// of files may be lost.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn synchronise_data(&mut self) -> Result<(), Error> {
        if self.has_changed || self.access == Access::Read {
            return self.commit();
        }
        if self.device.flush().is_err() {
            self.go_back();
            return Err(Error::Device);
        }
        Ok(())
    }

    /// Has everything last that was changed.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn commit(&mut self) -> Result<(), Error> {
        if self.access == Access::Write { self.commit_as(false) } else { Ok(()) }
    }

    /// Has everything last that was changed; at the `end` at its place, with an empty journal.
    fn commit_as(&mut self, ends: bool) -> Result<(), Error> {
        let seconds = (self.clock)().seconds;
        let filesystem = self.filesystem.as_mut().ok_or(Error::Device)?;
        if self.has_changed {
            let part = filesystem.superblock_part(WRITTEN_AT..WRITTEN_AT + 4);
            if let Ok(part) = part {
                set_word(part, 0, seconds as u32);
            }
            filesystem.blocks.keep();
        }
        if filesystem.blocks.commit(seconds, ends).is_err() {
            self.go_back();
            return Err(Error::Device);
        }
        (self.has_changed, self.has_overwritten) = (false, false);
        Ok(())
    }

    /// Changes the access.
    ///
    /// # Errors
    /// [`Error::Busy`] while there are files without names, [`Error::ReadOnly`] for a device that cannot be written or
    /// has failed, and [`Error::Unsupported`] if a feature forbids writing.
    pub fn remount(&mut self, access: Access) -> Result<(), Error> {
        if access == self.access {
            return Ok(());
        }
        if access == Access::Write {
            if self.device.is_read_only() {
                return Err(Error::ReadOnly);
            }
            superblock::examine(&self.device, true).map_err(|_| Error::Unsupported)?;
            // From the beginning: the journal of a volume that was mounted for reading is still to be replayed.
            self.filesystem = Some(open(Access::Write, &self.device)?);
            self.access = access;
            let begun = self.begin_writing();
            if begun.is_err() {
                self.go_back();
            }
            return begun;
        }
        self.end()?;
        self.access = access;
        Ok(())
    }

    /// Ends the volume: everything is written, and it is marked as whole.
    ///
    /// # Errors
    /// [`Error::Busy`] while there are files without names, [`Error::Device`].
    pub fn unmount(&mut self) -> Result<(), Error> {
        if self.access == Access::Write {
            self.end()?;
        }
        self.filesystem = None;
        Ok(())
    }

    /// Leaves a volume that was written as Linux does.
    fn end(&mut self) -> Result<(), Error> {
        let filesystem = self.filesystem.as_ref().ok_or(Error::Device)?;
        if !filesystem.nameless.is_empty() {
            return Err(Error::Busy);
        }
        if filesystem.blocks.layout.journal.is_none() {
            self.note_state(true)?;
        }
        self.commit_as(true)?;
        let filesystem = self.filesystem.as_mut().ok_or(Error::Device)?;
        filesystem.blocks.end_log();
        if superblock::mark_as_whole(&self.device).is_err() {
            // The log has ended: no change may come any more.
            self.go_back();
            return Err(Error::Device);
        }
        Ok(())
    }
}

/// A file that gets another name.
struct Move {
    old_directory: Inode,
    new_directory: Inode,
    old: NamePlace,
    moved: Inode,
    now: Stamp,
}

impl Move {
    fn is_within_one(&self) -> bool {
        self.old_directory.number == self.new_directory.number
    }

    /// Moves the file to a name that is not there.
    fn add<D: Device>(
        mut self,
        filesystem: &mut Filesystem<D>,
        old_name: &[u8],
        (name, room): (&[u8], Option<crate::directories::NameRoom>),
    ) -> Result<(), Error> {
        let file = (self.moved.number, type_of(self.moved.mode()));
        filesystem.add_name(&mut self.new_directory, name, file, room)?;
        if self.is_within_one() {
            self.old_directory = self.new_directory;
        }
        // The new name may have moved the old one.
        self.old = filesystem.find_name(&self.old_directory, old_name)?.ok_or(Error::NotFound)?;
        filesystem.remove_name(self.old)?;
        self.change_parent(filesystem)?;
        self.finish(filesystem)
    }

    /// Moves the file to a name that another file loses; returns that file's number if it was its last one.
    fn replace<D: Device>(mut self, filesystem: &mut Filesystem<D>, new: NamePlace) -> Result<Option<u32>, Error> {
        let mut gone = named(filesystem, new)?;
        match (self.moved.is(kind::DIRECTORY), gone.is(kind::DIRECTORY)) {
            (true, false) => return Err(Error::NotADirectory),
            (false, true) => return Err(Error::IsADirectory),
            (true, true) if gone.number == ROOT || !filesystem.is_empty(&gone)? => return Err(Error::NotEmpty),
            _ => {}
        }
        filesystem.redirect_name(new, self.moved.number, type_of(self.moved.mode()))?;
        filesystem.remove_name(self.old)?;
        if gone.is(kind::DIRECTORY) {
            take_directory(&mut self.new_directory);
            if self.is_within_one() {
                self.old_directory = self.new_directory;
            }
        }
        self.change_parent(filesystem)?;
        let now = self.now;
        self.finish(filesystem)?;
        let is_nameless = drop_name(filesystem, &mut gone, now)?;
        if is_nameless {
            filesystem.nameless.push(gone.number);
        }
        Ok(is_nameless.then_some(gone.number))
    }

    /// Exchanges the file with another one.
    fn exchange<D: Device>(mut self, filesystem: &mut Filesystem<D>, new: NamePlace) -> Result<(), Error> {
        let mut other = named(filesystem, new)?;
        if other.is(kind::DIRECTORY) {
            require_outside(filesystem, &self.old_directory, other.number)?;
        }
        filesystem.redirect_name(new, self.moved.number, type_of(self.moved.mode()))?;
        filesystem.redirect_name(self.old, other.number, type_of(other.mode()))?;
        if !self.is_within_one() && other.is(kind::DIRECTORY) {
            take_directory(&mut self.new_directory);
            add_directory(filesystem, &mut self.old_directory)?;
            give_parent(filesystem, &other, self.old_directory.number)?;
        }
        self.change_parent(filesystem)?;
        let layout = filesystem.blocks.layout;
        other.set_time(&layout, CHANGED, self.now);
        filesystem.store(&other)?;
        self.finish(filesystem)
    }

    /// Has a directory that is moved to another one know it, and both count it.
    fn change_parent<D: Device>(&mut self, filesystem: &mut Filesystem<D>) -> Result<(), Error> {
        if self.is_within_one() || !self.moved.is(kind::DIRECTORY) {
            return Ok(());
        }
        take_directory(&mut self.old_directory);
        add_directory(filesystem, &mut self.new_directory)?;
        give_parent(filesystem, &self.moved, self.new_directory.number)
    }

    /// Stores the file and its directories with the time of the change.
    fn finish<D: Device>(mut self, filesystem: &mut Filesystem<D>) -> Result<(), Error> {
        let layout = filesystem.blocks.layout;
        self.moved.set_time(&layout, CHANGED, self.now);
        filesystem.store(&self.moved)?;
        touch_directory(filesystem, &mut self.old_directory, self.now)?;
        if self.is_within_one() { Ok(()) } else { touch_directory(filesystem, &mut self.new_directory, self.now) }
    }
}

/// Fails unless a directory is neither another one nor below it.
fn require_outside<D: Device>(filesystem: &mut Filesystem<D>, directory: &Inode, other: u32) -> Result<(), Error> {
    let mut next = *directory;
    for _ in 0..DEEPEST {
        if next.number == other {
            return Err(Error::Invalid);
        }
        if next.number == ROOT {
            return Ok(());
        }
        let place = filesystem.find_name(&next, b"..")?.ok_or(Error::Damaged("a directory without a parent"))?;
        next = filesystem.directory(place.inode).map_err(|_| Error::Damaged("the parent of a directory"))?;
        filesystem.blocks.device().pause();
    }
    Err(Error::Damaged("directories in a circle"))
}

/// Has a directory know another parent.
fn give_parent<D: Device>(filesystem: &mut Filesystem<D>, directory: &Inode, parent: u32) -> Result<(), Error> {
    let place = filesystem.find_name(directory, b"..")?.ok_or(Error::Damaged("a directory without a parent"))?;
    filesystem.redirect_name(place, parent, type_of(kind::DIRECTORY))
}

/// Counts one more directory in another one: its parent is a name of that.
fn add_directory<D: Device>(filesystem: &Filesystem<D>, parent: &mut Inode) -> Result<(), Error> {
    match parent.links() {
        // They are not counted any more.
        1 => {}
        links if links < MOST_LINKS - 1 => parent.set_links(links + 1),
        _ if filesystem.blocks.layout.has_many_directories => parent.set_links(1),
        _ => return Err(Error::TooManyLinks),
    }
    Ok(())
}

/// Counts one directory less in another one.
fn take_directory(parent: &mut Inode) {
    if parent.links() > 2 {
        parent.set_links(parent.links() - 1);
    }
}

/// Stores a directory whose names have changed.
fn touch_directory<D: Device>(filesystem: &mut Filesystem<D>, directory: &mut Inode, now: Stamp) -> Result<(), Error> {
    let layout = filesystem.blocks.layout;
    directory.set_time(&layout, MODIFIED, now);
    directory.set_time(&layout, CHANGED, now);
    filesystem.store(directory)
}

/// Stores a regular file whose bytes have changed.
fn touch_file<D: Device>(filesystem: &mut Filesystem<D>, inode: &mut Inode, now: Stamp) -> Result<(), Error> {
    let mode = inode.mode();
    if mode & (AS_OWNER | AS_GROUP) != 0 {
        let group = if mode & EXECUTES != 0 { AS_GROUP } else { 0 };
        inode.set_mode(mode & !(AS_OWNER | group));
    }
    touch_directory(filesystem, inode, now)
}

/// Takes a name from a file; a directory loses all. Returns whether it was the last one: the file is in the list of
/// those then, once the caller has noted it.
fn drop_name<D: Device>(filesystem: &mut Filesystem<D>, inode: &mut Inode, now: Stamp) -> Result<bool, Error> {
    let layout = filesystem.blocks.layout;
    let links = if inode.is(kind::DIRECTORY) { 0 } else { inode.links().saturating_sub(1) };
    inode.set_links(links);
    inode.set_time(&layout, CHANGED, now);
    if links == 0 {
        filesystem.add_nameless(inode)?;
    }
    filesystem.store(inode)?;
    Ok(links == 0)
}

/// Returns a directory, and room for a name that is not there.
fn room_for<D: Device>(
    filesystem: &mut Filesystem<D>,
    directory: u32,
    name: &[u8],
) -> Result<(Inode, Option<crate::directories::NameRoom>), Error> {
    let directory = filesystem.directory(directory)?;
    if directory.links() == 0 {
        return Err(Error::NotFound);
    }
    match filesystem.search(&directory, name)? {
        Searched::Found(_) => Err(Error::AlreadyExists),
        Searched::Missing(_) if is_reserved(name) => Err(Error::AlreadyExists),
        Searched::Missing(room) => Ok((directory, room)),
    }
}

/// Returns the file of a name.
fn named<D: Device>(filesystem: &mut Filesystem<D>, place: NamePlace) -> Result<Inode, Error> {
    match filesystem.inode(place.inode) {
        Err(Error::NotFound) => Err(Error::Damaged("a name without a file")),
        found => found,
    }
}

/// Returns the inode of a regular file.
fn regular<D: Device>(filesystem: &mut Filesystem<D>, number: u32) -> Result<Inode, Error> {
    let inode = filesystem.inode(number)?;
    match inode.mode() & kind::MASK {
        kind::REGULAR => Ok(inode),
        kind::DIRECTORY => Err(Error::IsADirectory),
        _ => Err(Error::Invalid),
    }
}

/// Opens the volume of a device that was examined, for this access.
fn open<D: Device>(access: Access, device: &D) -> Result<Filesystem<D>, Error> {
    let failed = |DeviceFailed| Error::Device;
    let layout = Layout::read(device).map_err(error_of)?;
    let needs_replay = superblock::needs_replay(device).map_err(failed)?;
    let journal = match layout.journal {
        Some(number) => Some(journal_of(&mut Filesystem::open(Blocks::new(device.clone(), layout))?, number)?),
        None => None,
    };
    let size = layout.block;
    let mut blocks = Blocks::new(device.clone(), layout);
    let mut log = None;
    match (access, &journal) {
        (Access::Write, Some(journal)) => {
            if needs_replay {
                let put = |number: u64, bytes: &[u8]| {
                    if number >= layout.blocks {
                        return Err(Error::Damaged("the journal"));
                    }
                    device.write(number * size as u64, bytes).map_err(failed)
                };
                if let Some(sequence) = replay::replay(device, journal, size, put)? {
                    device.flush().map_err(failed)?;
                    replay::mark_as_empty(device, journal, size, sequence)?;
                }
                // The journal may have had another superblock.
                superblock::examine(device, true).map_err(error_of)?;
                let replayed = Layout::read(device).map_err(error_of)?;
                if replayed.block != size {
                    return Err(Error::Damaged("the journal"));
                }
                blocks = Blocks::new(device.clone(), replayed);
            }
            let mut opened = JournalLog::open(device, journal.clone(), size).map_err(|unusable| match unusable {
                Unusable::Device => Error::Device,
                Unusable::Damaged => Error::Damaged("the journal"),
            })?;
            superblock::mark_in_use(device).map_err(failed)?;
            opened.begin(device).map_err(failed)?;
            log = Some(opened);
        }
        (Access::Read, Some(journal)) if needs_replay => {
            replay::replay(device, journal, size, |number, bytes| {
                if blocks.count() >= MOST_COVERED {
                    return Err(Error::OutOfMemory);
                }
                blocks.cover(number, bytes)
            })?;
        }
        _ => {}
    }
    let mut filesystem = Filesystem::open(blocks)?;
    filesystem.is_covered = access == Access::Read && needs_replay;
    if let Some(journal) = &journal {
        let block = size as u64;
        let ranges = journal.pieces.iter().map(|piece| piece.at / block..piece.at / block + u64::from(piece.count));
        filesystem.add_zones(ranges)?;
    }
    filesystem.nameless = nameless_of(&mut filesystem)?;
    if let Some(log) = log {
        filesystem.blocks.use_log(log);
    }
    Ok(filesystem)
}

/// Returns the files of the list of those without names, the first one last.
fn nameless_of<D: Device>(filesystem: &mut Filesystem<D>) -> Result<Vec<u32>, Error> {
    let mut list = Vec::new();
    let mut next = word(filesystem.superblock()?, LAST_NAMELESS_AT);
    while next != 0 {
        // Not the file system's own files, whatever the list says, nor the root.
        if list.len() >= MOST_NAMELESS || next < filesystem.blocks.layout.first_inode {
            return Err(Error::Damaged("the list of files without names"));
        }
        if list.len() % AT_ONCE == AT_ONCE - 1 {
            filesystem.blocks.device().pause();
        }
        list.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        list.push(next);
        let inode = filesystem.raw_inode(next).map_err(|error| match error {
            Error::NotFound => Error::Damaged("the list of files without names"),
            error => error,
        })?;
        next = inode.ended();
    }
    list.reverse();
    Ok(list)
}

/// Returns the place of the journal in the volume, where `mke2fs` makes it.
fn journal_of<D: Device>(filesystem: &mut Filesystem<D>, number: u32) -> Result<Journal, Error> {
    let inode = filesystem.raw_inode(number)?;
    let block = filesystem.blocks.layout.block as u64;
    if inode.size() > LARGEST_JOURNAL || !inode.is(kind::REGULAR) {
        return Err(Error::Damaged("the journal"));
    }
    let blocks = (inode.size() / block) as u32;
    let mut journal = Journal { pieces: Vec::new(), blocks };
    let mut next = 0;
    while next < blocks {
        let piece = filesystem.piece(&inode, next, blocks - next)?;
        let Some(at) = piece.at else { break };
        if journal.pieces.len() >= MOST_PIECES {
            return Err(Error::Damaged("the journal, which lies in too many pieces"));
        }
        if journal.pieces.len() % AT_ONCE == AT_ONCE - 1 {
            filesystem.blocks.device().pause();
        }
        journal.pieces.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        journal.pieces.push(JournalPiece { first: next, at: at * block, count: piece.count });
        next += piece.count;
    }
    Ok(journal)
}

/// Fails unless this can be a name.
fn require_name(name: &[u8]) -> Result<(), Error> {
    let is_one = !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(&0) && !name.contains(&b'/');
    if is_one { Ok(()) } else { Err(Error::Invalid) }
}

/// Whether all directories have this name.
fn is_reserved(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Splits the name of an extended attribute behind its namespace.
fn namespace_of(name: &[u8]) -> Result<(u8, &[u8]), Error> {
    let split = |(prefix, namespace): &(&[u8], u8)| Some((*namespace, name.strip_prefix(*prefix)?));
    let (namespace, rest) = NAMESPACES.iter().find_map(split).ok_or(Error::Unsupported)?;
    if rest.is_empty() { Err(Error::Invalid) } else { Ok((namespace, rest)) }
}

/// Returns the type of a file as listings of Linux have it.
fn kind_of(file_type: u8) -> u8 {
    match file_type {
        1 => 8,
        2 => 4,
        3 => 2,
        4 => 6,
        5 => 1,
        6 => 12,
        7 => 10,
        _ => 0,
    }
}

/// Bit of a place in a directory with an index: below it are the two hashes and the number among equal ones.
const HASHED: u64 = 1 << 62;
/// The place at the end.
const END: u64 = i64::MAX as u64;
/// Bits of the second hash that a place has, and of the number among names with equal hashes.
const MINOR_BITS: u32 = 24;
const COLLISION_BITS: u32 = 7;

/// Returns the number of a place in a directory, below 2^63.
fn place_of(cursor: ListingCursor) -> u64 {
    match cursor {
        ListingCursor::Start => 0,
        ListingCursor::Offset(offset) => offset.min(HASHED - 1),
        // The lowest bit of the first hash is always 0. Names whose hashes agree in the bits that are kept are listed
        // twice if a listing is continued between them.
        ListingCursor::Hash { major, minor, number } => {
            let minor = u64::from(minor >> (32 - MINOR_BITS));
            HASHED
                | u64::from(major >> 1) << (MINOR_BITS + COLLISION_BITS)
                | minor << COLLISION_BITS
                | u64::from(number.min((1 << COLLISION_BITS) - 1))
        }
        ListingCursor::End => END,
    }
}

/// Returns the place with this number; `None` for the end.
fn cursor_of(place: u64) -> Option<ListingCursor> {
    match place {
        0 => Some(ListingCursor::Start),
        END.. => None,
        HASHED.. => {
            let major = (place >> (MINOR_BITS + COLLISION_BITS)) as u32 & (u32::MAX >> 1);
            let minor = (place >> COLLISION_BITS) as u32 & ((1 << MINOR_BITS) - 1);
            let number = place as u32 & ((1 << COLLISION_BITS) - 1);
            Some(ListingCursor::Hash { major: major << 1, minor: minor << (32 - MINOR_BITS), number })
        }
        offset => Some(ListingCursor::Offset(offset)),
    }
}

fn error_of(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Device => Error::Device,
        Refusal::OutOfMemory => Error::OutOfMemory,
        Refusal::Damaged(place) | Refusal::Size(place) => Error::Damaged(place),
        Refusal::NotExt4 => Error::Damaged("the superblock"),
        Refusal::Feature { .. } => Error::Unsupported,
    }
}

fn refusal_of(error: Error) -> Refusal {
    match error {
        Error::OutOfMemory => Refusal::OutOfMemory,
        Error::Device | Error::ReadOnly => Refusal::Device,
        Error::Unsupported => Refusal::Feature { name: "unknown", forbids_writing_alone: false },
        Error::Damaged(place) => Refusal::Damaged(place),
        _ => Refusal::Damaged("a structure"),
    }
}
