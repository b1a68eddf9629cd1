//! A mounted volume.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use rsext4::extents_tree::ExtentTree;
use rsext4::loopfile::resolve_inode_blocks;
use rsext4::{
    BlockIo, Clock as ClockOfLibrary, DeviceCapabilities, DeviceGeometry, DirectoryCursor, Ext4, Ext4Error,
    Ext4ErrorKind, Ext4FileSystem, Ext4Result, Ext4Timestamp, FileExtentState, FileExtentTarget, FileName,
    FilePermissions, InodeInfo, InodeMetadataUpdate, InodeNumber, Jbd2Dev, MountOptions, MountServices,
    MountedServices, MutationContext, NoopObserver, RenameOptions, SectorId, SpecialInodeKind, UnlinkOutcome,
    XattrNamespace, XattrSetMode,
};

use spin::Mutex;

use crate::device::{Device, DeviceFailed, Sectors, SharedTransactions};
use crate::log::{Journal, JournalLog, JournalPiece, USED_BLOCKS, Unusable};
use crate::superblock::{self, Refusal};
use crate::transactions::{BLOCK, Transactions};

/// Size of the largest directory in bytes. Its blocks are listed in memory while it changes.
const LARGEST_DIRECTORY: u64 = 64 << 20;
/// Bytes of the largest file in which blocks are looked for. All its pieces are listed in memory meanwhile.
const LARGEST_SEARCHED: u64 = 256 << 20;
/// Number of blocks of the largest journal, which are listed in memory too.
const LARGEST_JOURNAL: u64 = 256 << 20;
/// Number of directories that are known to be small.
const MOST_KNOWN: usize = 512;
/// Bytes of the longest target of a symbolic link (Linux: `PATH_MAX`).
const LONGEST_TARGET: u64 = 4096;
/// Bytes that a file loses in one step; and one that lies in more pieces than so many there, of a volume with more than
/// a few groups. Each piece may change a bitmap and a descriptor of a group, and the blocks of a step are one
/// transaction.
const FREED_IN_A_STEP: u64 = 16 << 20;
const FREED_OF_PIECES: u64 = 512 << 10;
const PIECES_OF_A_STEP: usize = 128;
const FEW_GROUPS: u32 = 256;
/// Bytes of a write that goes through the journal if it may get blocks that were freed. More of them wait until it
/// lasts that these are free.
const MOST_JOURNALED: usize = 32 << 10;
/// Number of files that are remembered because they were written.
const MOST_WRITTEN: usize = 256;
/// Number of pieces in which bytes of a file lie whose places are told.
const MOST_RUNS: usize = 64;
/// Number of blocks that must be free before anything grows: the nodes of trees that one change can make.
const BLOCKS_OF_A_CHANGE: u64 = 16;
/// Inode of the root, and of the journal that `mke2fs` makes.
const ROOT: u32 = 2;
const JOURNAL: u32 = 8;

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

struct OwnClock(Clock);

impl ClockOfLibrary for OwnClock {
    fn now(&self) -> Ext4Result<Ext4Timestamp> {
        Ok(stamp_for_library((self.0)()))
    }
}

fn stamp_for_library(stamp: Stamp) -> Ext4Timestamp {
    Ext4Timestamp::new(stamp.seconds, stamp.nanoseconds)
}

/// The access of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Files are read.
    Read,
    /// Files are read and changed.
    Write,
}

/// A file as `stat` tells of it. Times have whole seconds.
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
    /// Seconds of the last access, the last change of contents and the last change.
    pub times: [u32; 3],
    /// Major and minor number of a device.
    pub device: (u32, u32),
}

impl Attributes {
    /// Whether it is a file of this [`kind`].
    pub fn is(&self, kind: u16) -> bool {
        self.mode & kind::MASK == kind
    }
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
const NAMESPACES: [(&[u8], XattrNamespace); 3] = [
    (b"user.", XattrNamespace::User),
    (b"trusted.", XattrNamespace::Trusted),
    (b"security.", XattrNamespace::Security),
];

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
pub struct ListingPlace(DirectoryCursor);

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

type Library<D> = Ext4<Sectors<D>, MountedServices<(), NoopObserver>>;

/// A mounted volume. Dropping it without [`unmount`](Volume::unmount) is as a power cut.
pub struct Volume<D: Device> {
    library: Option<Library<D>>,
    device: D,
    clock: Clock,
    access: Access,
    /// Directories that were found to be no larger than they may be.
    known: BTreeSet<u32>,
    grown: Grown,
    /// Blocks that are not at their places, of a volume with a journal that is written.
    transactions: Option<SharedTransactions>,
    /// Something was changed, and does not last.
    has_changed: bool,
    /// Bytes of files were changed whose blocks were there, and the times of these files.
    has_overwritten: bool,
    /// Blocks of files were freed, and it does not last yet that they are free.
    has_freed: bool,
    /// Files whose bytes go through the journal, because they may have got such blocks.
    journaled: BTreeSet<u32>,
    /// Files of which the library may have bytes that are not on the device.
    written: BTreeSet<u32>,
    /// The device has older blocks than the volume, whose journal was replayed in memory.
    is_covered: bool,
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
        let is_covered = superblock::is_to_be_mended(&device).map_err(|DeviceFailed| Refusal::Device)?;
        let (library, transactions) = mount_for(access, &device, clock).map_err(refusal_of)?;
        let mut volume = Volume {
            library: Some(library),
            device,
            clock,
            access,
            known: BTreeSet::new(),
            grown: Grown::default(),
            transactions,
            has_changed: false,
            has_overwritten: false,
            has_freed: false,
            journaled: BTreeSet::new(),
            written: BTreeSet::new(),
            is_covered: is_covered && access == Access::Read,
        };
        let root = volume.attributes(ROOT).map_err(|_| Refusal::Damaged("the root directory"))?;
        if !root.is(kind::DIRECTORY) {
            return Err(Refusal::Damaged("the root directory"));
        }
        Ok(volume)
    }

    /// Returns the number of the root directory.
    pub fn root(&self) -> u32 {
        ROOT
    }

    /// Returns the access; it becomes less by itself after a failure.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Does an operation, and goes on read-only if the device has failed.
    fn act<R>(&mut self, act: impl FnOnce(&mut Library<D>) -> Ext4Result<R>) -> Result<R, Error> {
        let library = self.library.as_mut().ok_or(Error::Device)?;
        let error = match act(library) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let ends_the_journal = matches!(error.kind(), Ext4ErrorKind::JournalAborted | Ext4ErrorKind::Io);
        if ends_the_journal && self.access == Access::Write {
            self.go_back();
        }
        Err(error_of(error))
    }

    /// Goes on read-only with what was synchronised, as after a power cut. The journal is replayed in memory: the
    /// device may not be able to write any more.
    fn go_back(&mut self) {
        self.access = Access::Read;
        self.known.clear();
        (self.transactions, self.is_covered) = (None, true);
        (self.has_changed, self.has_overwritten) = (false, false);
        self.library = mount(&self.device, self.clock, Access::Read).ok();
    }

    /// Does an operation that changes something.
    fn change<R>(&mut self, act: impl FnOnce(&mut Library<D>) -> Ext4Result<R>) -> Result<R, Error> {
        if self.access == Access::Read {
            return Err(Error::ReadOnly);
        }
        self.has_changed = true;
        let done = self.act(act);
        // Also after an operation that has failed in the middle.
        if self.with_transactions(|transactions| transactions.are_many()) == Some(true) {
            self.commit()?;
        }
        done
    }

    /// Does something with the transactions, if there are any.
    fn with_transactions<R>(&self, act: impl FnOnce(&mut Transactions) -> R) -> Option<R> {
        self.transactions.as_ref().map(|transactions| act(&mut transactions.lock()))
    }

    /// Notes that blocks of files are freed.
    fn frees(&mut self) {
        self.has_freed = true;
        self.with_transactions(Transactions::keep_none);
    }

    /// Fails unless this is a directory whose blocks can be listed in memory.
    fn require_directory(&mut self, directory: u32) -> Result<InodeNumber, Error> {
        let number = number(directory)?;
        if self.known.contains(&directory) {
            return Ok(number);
        }
        let attributes = self.attributes(directory)?;
        if !attributes.is(kind::DIRECTORY) {
            return Err(Error::NotADirectory);
        }
        if attributes.size > LARGEST_DIRECTORY || attributes.sectors * 512 > 2 * LARGEST_DIRECTORY {
            return Err(Error::Damaged("a directory is too large"));
        }
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(directory);
        Ok(number)
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none with this number.
    pub fn attributes(&mut self, inode: u32) -> Result<Attributes, Error> {
        let number = number(inode)?;
        self.act(|library| library.inode(number)).map(attributes_of)
    }

    /// Returns the file with this name in a directory; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::NotADirectory`], [`Error::Invalid`] for what is no name.
    pub fn look_up(&mut self, directory: u32, name: &[u8]) -> Result<Option<Attributes>, Error> {
        let (directory, name) = (self.require_directory(directory)?, name_of(name)?);
        self.act(|library| library.lookup_child(directory, name)).map(|found| found.map(attributes_of))
    }

    /// Makes an empty regular file.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::NoSpace`] and those of all changes.
    pub fn create(&mut self, directory: u32, name: &[u8], file: NewFile) -> Result<Attributes, Error> {
        let (number, name, permissions) = self.place_for(directory, name, file)?;
        self.make_in(directory, |library| library.create_regular_file(context_of(file), number, name, permissions))
            .map(attributes_of)
    }

    /// Makes the name of a socket.
    ///
    /// # Errors
    /// As [`create`](Volume::create).
    pub fn make_socket(&mut self, directory: u32, name: &[u8], file: NewFile) -> Result<Attributes, Error> {
        let (number, name, permissions) = self.place_for(directory, name, file)?;
        let kind = SpecialInodeKind::Socket;
        self.make_in(directory, |library| {
            library.create_special_inode(context_of(file), number, name, permissions, kind)
        })
        .map(attributes_of)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`create`](Volume::create).
    pub fn make_directory(&mut self, directory: u32, name: &[u8], file: NewFile) -> Result<Attributes, Error> {
        let (number, name, permissions) = self.place_for(directory, name, file)?;
        self.make_in(directory, |library| library.create_directory(context_of(file), number, name, permissions))
            .map(attributes_of)
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
        self.settle_freed_blocks()?;
        let file = NewFile { owner, permissions: 0o777 };
        let (number, name, _) = self.place_for(directory, name, file)?;
        self.make_in(directory, |library| library.create_symlink(context_of(file), number, name, target))
            .map(attributes_of)
    }

    /// Makes a name in a directory, and notes if it has grown in pieces by that.
    fn make_in<R>(&mut self, directory: u32, act: impl FnOnce(&mut Library<D>) -> Ext4Result<R>) -> Result<R, Error> {
        let before = self.attributes(directory)?.size;
        let made = self.change(act)?;
        if self.attributes(directory)?.size > before {
            let number = number(directory)?;
            let whole = FileExtentTarget::Data;
            let pieces = self.act(|library| library.inode_extents(number, 0, LARGEST_DIRECTORY, whole, usize::MAX))?;
            self.grown.note(directory, pieces.extents.len());
        }
        Ok(made)
    }

    /// Checks the arguments of a call that makes a file.
    fn place_for<'a>(
        &mut self,
        directory: u32,
        name: &'a [u8],
        file: NewFile,
    ) -> Result<(InodeNumber, FileName<'a>, FilePermissions), Error> {
        let permissions = FilePermissions::new(file.permissions).map_err(|_| Error::Invalid)?;
        let name = name_of(name)?;
        let number = self.require_directory(directory)?;
        if self.access == Access::Write && self.usage()?.blocks.1 < BLOCKS_OF_A_CHANGE {
            return Err(Error::NoSpace);
        }
        if self.attributes(directory)?.links == 0 {
            return Err(Error::NotFound);
        }
        // The library looks for all others itself.
        if name.is_reserved() {
            return Err(Error::AlreadyExists);
        }
        Ok((number, name, permissions))
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// As [`create`](Volume::create); [`Error::IsADirectory`], [`Error::TooManyLinks`].
    pub fn link(&mut self, inode: u32, directory: u32, name: &[u8]) -> Result<Attributes, Error> {
        let file = self.attributes(inode)?;
        if file.is(kind::DIRECTORY) {
            return Err(Error::IsADirectory);
        }
        if file.links == 0 {
            return Err(Error::NotFound);
        }
        let (place, name, _) = self.place_for(directory, name, NewFile { owner: (0, 0), permissions: 0 })?;
        let inode = number(inode)?;
        self.make_in(directory, |library| library.hard_link(inode, place, name)).map(attributes_of)
    }

    /// Takes a name from a file. After the last one the file lives on until [`end_file`](Volume::end_file), or until
    /// the volume is mounted the next time.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`] and those of all changes.
    pub fn unlink(&mut self, directory: u32, name: &[u8]) -> Result<Unlinked, Error> {
        let (directory, name) = (self.require_directory(directory)?, name_of(name)?);
        let outcome = self.change(|library| library.unlink(directory, name))?;
        Ok(Unlinked { inode: outcome.inode.raw(), is_nameless: outcome.requires_reap() })
    }

    /// Removes an empty directory; returns its number. It lives on as with [`unlink`](Volume::unlink).
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::NotEmpty`] and those of all changes.
    pub fn remove_directory(&mut self, directory: u32, name: &[u8]) -> Result<Option<u32>, Error> {
        let file = self.look_up(directory, name)?.ok_or(Error::NotFound)?;
        if !file.is(kind::DIRECTORY) {
            return Err(Error::NotADirectory);
        }
        self.require_directory(file.inode)?;
        let (directory, name) = (self.require_directory(directory)?, name_of(name)?);
        self.change(|library| library.remove_empty_directory(directory, name)).map(nameless)
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
        let (old, new) = (name_of(from.1)?, name_of(to.1)?);
        let (old_directory, new_directory) = (self.require_directory(from.0)?, self.require_directory(to.0)?);
        if old.is_reserved() || new.is_reserved() {
            return Err(Error::Busy);
        }
        let moved = self.look_up(from.0, from.1)?.ok_or(Error::NotFound)?;
        if self.attributes(to.0)?.links == 0 {
            return Err(Error::NotFound);
        }
        let found = self.look_up(to.0, to.1)?;
        match (found, replacement) {
            (Some(_), Replacement::Refuse) => return Err(Error::AlreadyExists),
            (None, Replacement::Exchange) => return Err(Error::NotFound),
            // Two names of one file: as POSIX says, nothing happens.
            (Some(found), Replacement::Replace) if found.inode == moved.inode => return Ok(None),
            (Some(found), Replacement::Replace) => match (moved.is(kind::DIRECTORY), found.is(kind::DIRECTORY)) {
                (true, false) => return Err(Error::NotADirectory),
                (false, true) => return Err(Error::IsADirectory),
                (true, true) => drop(self.require_directory(found.inode)?),
                (false, false) => {}
            },
            _ => {}
        }
        let options = match replacement {
            Replacement::Replace => RenameOptions::REPLACE,
            Replacement::Refuse => RenameOptions::NO_REPLACE,
            Replacement::Exchange => RenameOptions::EXCHANGE,
        };
        let rename = |volume: &mut Self| {
            volume.make_in(to.0, |library| library.rename(old_directory, old, new_directory, new, options))
        };
        let mut outcome = rename(self);
        if outcome == Err(Error::NotFound) && found.is_none() {
            // A new name that splits a block of a directory with an index moves the old one, which `rsext4` 0.9.2 does
            // not find then. So the block is split before: by another file with that name.
            let place = NewFile { owner: (0, 0), permissions: 0 };
            self.create(to.0, to.1, place)?;
            let gone = self.unlink(to.0, to.1)?;
            self.end_file(gone.inode)?;
            outcome = rename(self);
        }
        let outcome = outcome?;
        Ok(outcome.replaced.and_then(nameless))
    }

    /// Does a step of the end of a file without names that nobody uses; returns whether it has gone. Large files go in
    /// several steps.
    ///
    /// # Errors
    /// Those of all changes.
    pub fn end_file(&mut self, inode: u32) -> Result<bool, Error> {
        let file = self.attributes(inode)?;
        let target = number(inode)?;
        if file.sectors > 0 {
            self.frees();
        }
        if let Some(shorter) = self.step_of(&file, 0)? {
            self.change(|library| library.truncate_inode(target, shorter))?;
            return Ok(false);
        }
        self.known.remove(&inode);
        self.change(|library| library.reap_unlinked_inode(target)).map(|()| true)
    }

    /// Returns the length that a file gets in a step before it has the one that is wanted; `None` if that needs no
    /// step.
    fn step_of(&mut self, file: &Attributes, wanted: u64) -> Result<Option<u64>, Error> {
        if !file.is(kind::REGULAR) || file.sectors == 0 || file.size <= wanted.saturating_add(FREED_OF_PIECES) {
            return Ok(None);
        }
        let (inode, from) = (number(file.inode)?, file.size.saturating_sub(FREED_IN_A_STEP).max(wanted));
        let has_few_groups = self.library.as_ref().is_some_and(|library| library.statfs().block_groups <= FEW_GROUPS);
        let lies_together = has_few_groups
            || file.sectors * 512 <= LARGEST_SEARCHED && {
                let (length, data, most) = (file.size - from, FileExtentTarget::Data, PIECES_OF_A_STEP + 1);
                let found = self.act(|library| library.inode_extents(inode, from, length, data, most))?;
                found.extents.len() < most
            };
        let step = if lies_together { FREED_IN_A_STEP } else { FREED_OF_PIECES };
        let shorter = file.size.saturating_sub(step) & !(BLOCK as u64 - 1);
        Ok((shorter > wanted).then_some(shorter))
    }

    /// Reads from a place in a file; returns the number of bytes, less only at its end.
    ///
    /// # Errors
    /// [`Error::IsADirectory`].
    pub fn read(&mut self, inode: u32, offset: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        let file = self.attributes(inode)?;
        if file.is(kind::DIRECTORY) {
            return Err(Error::IsADirectory);
        }
        let length = file.size.saturating_sub(offset).min(bytes.len() as u64) as usize;
        if length == 0 {
            return Ok(0);
        }
        let inode = number(inode)?;
        self.act(|library| library.read_inode(inode, offset, &mut bytes[..length]))
    }

    /// Writes to a place in a regular file.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`] and those of all changes.
    pub fn write(&mut self, inode: u32, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let usage = self.usage()?;
        // A write that found no block in the middle would leave the blocks before it without an owner.
        if usage.blocks.1 < bytes.len() as u64 / usage.block_size + BLOCKS_OF_A_CHANGE {
            return Err(Error::NoSpace);
        }
        if self.has_freed && !self.has_blocks(inode, offset, bytes.len() as u64)? {
            if self.transactions.is_some() && bytes.len() <= MOST_JOURNALED {
                self.journaled.insert(inode);
            } else {
                self.settle_freed_blocks()?;
            }
        }
        self.put(inode, offset, bytes).map(|_| ())
    }

    /// Writes to a place in a regular file whose blocks are there: also if none are free.
    ///
    /// # Errors
    /// Those of all changes.
    pub fn overwrite(&mut self, inode: u32, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let before = self.has_changed;
        let end = offset + bytes.len() as u64;
        let has_whole_blocks = offset.is_multiple_of(BLOCK as u64) && end.is_multiple_of(BLOCK as u64);
        let is_inside = end <= self.attributes(inode)?.size;
        // The library writes several blocks that lie together at once, and keeps a single one.
        let is_through = self.put(inode, offset, bytes)?;
        if has_whole_blocks && is_inside && is_through {
            // They are on the device, and nothing of the volume has changed but times.
            (self.has_changed, self.has_overwritten) = (before, true);
        }
        Ok(())
    }

    /// Writes to a place in a regular file. Returns whether the device's flush is enough for the bytes to last.
    fn put(&mut self, inode: u32, offset: u64, bytes: &[u8]) -> Result<bool, Error> {
        let size = self.attributes(inode)?.size;
        let target = number(inode)?;
        if offset > size {
            // The library clears what lies in the last block behind the end only where a file is made longer by itself.
            // A store that was written before a power cut, but whose file had not lastingly become longer, is there.
            self.change(|library| library.truncate_inode(target, offset))?;
        }
        self.note_written(inode);
        let is_journaled = self.journaled.contains(&inode);
        if is_journaled {
            self.change(|library| library.write_inode(target, offset, bytes))?;
            return Ok(false);
        }
        self.with_transactions(|transactions| transactions.of_files(bytes));
        let written = self.change(|library| library.write_inode(target, offset, bytes));
        let is_through = self.with_transactions(Transactions::not_of_files).unwrap_or(false);
        written?;
        self.keep_edges(target, offset, offset + bytes.len() as u64)?;
        Ok(is_through)
    }

    /// Notes the blocks of a file that were written in part, which the library keeps for a while.
    fn keep_edges(&mut self, inode: InodeNumber, start: u64, end: u64) -> Result<(), Error> {
        if self.transactions.is_none() {
            return Ok(());
        }
        let block = BLOCK as u64;
        let (first, last) = (start / block, end / block);
        for edge in [(start, first), (end, last)].into_iter().filter(|(at, _)| !at.is_multiple_of(block)) {
            let (at, data) = (edge.1 * block, FileExtentTarget::Data);
            let found = self.act(|library| library.inode_extents(inode, at, block, data, 1))?;
            let is_there = |piece: &&rsext4::FileExtent| {
                piece.state == FileExtentState::Initialized
                    && (piece.logical_start..piece.logical_start + piece.length).contains(&at)
            };
            if let Some(piece) = found.extents.first().filter(is_there) {
                let place = (piece.physical_start + (at - piece.logical_start)) / block;
                self.with_transactions(|transactions| transactions.keep(place));
            }
            if first == last {
                break;
            }
        }
        Ok(())
    }

    /// Notes that the library may have bytes of a file that are not on the device.
    fn note_written(&mut self, inode: u32) {
        if self.written.len() < MOST_WRITTEN {
            self.written.insert(inode);
        }
    }

    /// Returns the places on the device of bytes of a regular file, in their order and without gaps; `None` if they
    /// have to be [read](Volume::read) through the volume. They are right until the next change of the file.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such file.
    pub fn runs(&mut self, inode: u32, offset: u64, length: u64) -> Result<Option<Vec<FileRun>>, Error> {
        let may_be_here = self.written.len() >= MOST_WRITTEN || self.written.contains(&inode);
        let is_large = self.attributes(inode)?.sectors * 512 > LARGEST_SEARCHED;
        if may_be_here || is_large || self.is_covered || length == 0 {
            return Ok(None);
        }
        let (inode, data, end) = (number(inode)?, FileExtentTarget::Data, offset + length);
        let found = self.act(|library| library.inode_extents(inode, offset, length, data, MOST_RUNS))?;
        if found.extents.len() >= MOST_RUNS {
            return Ok(None);
        }
        let mut runs = Vec::new();
        runs.try_reserve_exact(2 * found.extents.len() + 1).map_err(|_| Error::OutOfMemory)?;
        let mut next = offset;
        for piece in found.extents {
            let (start, stop) = (piece.logical_start.max(next), (piece.logical_start + piece.length).min(end));
            if start >= stop {
                continue;
            }
            if start > next {
                runs.push(FileRun { offset: next, length: start - next, at: None });
            }
            let is_there = piece.state == FileExtentState::Initialized;
            let at = is_there.then(|| piece.physical_start + (start - piece.logical_start));
            if at.is_some_and(|at| !self.is_on_the_device(at, stop - start)) {
                return Ok(None);
            }
            runs.push(FileRun { offset: start, length: stop - start, at });
            next = stop;
        }
        if next < end {
            runs.push(FileRun { offset: next, length: end - next, at: None });
        }
        Ok(Some(runs))
    }

    /// Whether the device has these bytes of the volume.
    fn is_on_the_device(&self, at: u64, length: u64) -> bool {
        let block = BLOCK as u64;
        let has_any = |transactions: &mut Transactions| {
            (at / block..(at + length).div_ceil(block)).any(|block| transactions.has(block))
        };
        let is_inside = at.checked_add(length).is_some_and(|end| end <= self.device.bytes());
        is_inside && self.with_transactions(has_any) != Some(true)
    }

    /// Whether bytes of a regular file have their blocks, as far as that is found: in large files it is not looked for.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such file.
    pub fn has_blocks(&mut self, inode: u32, offset: u64, length: u64) -> Result<bool, Error> {
        if self.attributes(inode)?.sectors * 512 > LARGEST_SEARCHED {
            return Ok(false);
        }
        let (inode, data) = (number(inode)?, FileExtentTarget::Data);
        let found = self.act(|library| library.inode_extents(inode, offset, length, data, usize::MAX))?;
        let mut end = offset;
        for piece in found.extents {
            if piece.state != FileExtentState::Initialized || piece.logical_start > end {
                break;
            }
            end = end.max(piece.logical_start + piece.length);
        }
        Ok(end >= offset + length)
    }

    /// Gives a regular file another length.
    ///
    /// # Errors
    /// [`Error::TooLarge`] and those of all changes.
    pub fn truncate(&mut self, inode: u32, length: u64) -> Result<(), Error> {
        let (mut file, target) = (self.attributes(inode)?, number(inode)?);
        self.note_written(inode);
        let frees = length < file.size && file.sectors > 0;
        while let Some(shorter) = self.step_of(&file, length)? {
            // Each time: a step may end with a commit, before which alone its blocks were freed.
            self.frees();
            self.change(|library| library.truncate_inode(target, shorter))?;
            file.size = shorter;
        }
        if frees {
            self.frees();
        }
        self.change(|library| library.truncate_inode(target, length))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another file.
    pub fn read_link(&mut self, inode: u32) -> Result<Vec<u8>, Error> {
        let file = self.attributes(inode)?;
        if !file.is(kind::SYMBOLIC_LINK) {
            return Err(Error::Invalid);
        }
        if file.size == 0 || file.size >= LONGEST_TARGET {
            return Err(Error::Damaged("a symbolic link"));
        }
        let mut target = Vec::new();
        target.try_reserve_exact(file.size as usize).map_err(|_| Error::OutOfMemory)?;
        target.resize(file.size as usize, 0);
        let read = self.read(inode, 0, &mut target)?;
        if read < target.len() || target.contains(&0) {
            return Err(Error::Damaged("a symbolic link"));
        }
        Ok(target)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// Those of all changes.
    pub fn set_attributes(&mut self, inode: u32, change: Change) -> Result<Attributes, Error> {
        let update = InodeMetadataUpdate {
            permissions: change.permissions.map(FilePermissions::new).transpose().map_err(|_| Error::Invalid)?,
            owner: change.owner,
            atime: change.accessed.map(stamp_for_library),
            mtime: change.modified.map(stamp_for_library),
            ..InodeMetadataUpdate::default()
        };
        let inode = number(inode)?;
        self.change(|library| library.update_inode_metadata(inode, update)).map(attributes_of)
    }

    /// Lists at most so many names of a directory from a place on: 0, or the place that an entry has named. Whatever
    /// happens to the directory meanwhile, a name that stays is listed.
    ///
    /// # Errors
    /// [`Error::NotADirectory`].
    pub fn list(&mut self, directory: u32, place: u64, most: usize) -> Result<Vec<Entry>, Error> {
        match cursor_of(place) {
            Some(cursor) => self.list_from(directory, ListingPlace(cursor), most),
            None => self.require_directory(directory).map(|_| Vec::new()),
        }
    }

    /// Lists as [`list`](Volume::list) does, from the exact place that an entry has named.
    ///
    /// # Errors
    /// [`Error::NotADirectory`].
    pub fn list_from(&mut self, directory: u32, place: ListingPlace, most: usize) -> Result<Vec<Entry>, Error> {
        let (directory, ListingPlace(cursor)) = (self.require_directory(directory)?, place);
        if cursor == DirectoryCursor::End {
            return Ok(Vec::new());
        }
        let listed = self.act(|library| match library.read_directory(directory, cursor, most) {
            // The directory has got an index since the place was named, or lost it: it begins again.
            Err(error) if error.kind() == Ext4ErrorKind::InvalidInput => {
                library.read_directory(directory, DirectoryCursor::Start, most)
            }
            listed => listed,
        });
        let entry = |entry: rsext4::DirectoryEntry| Entry {
            inode: entry.inode.raw(),
            kind: kind_of(entry.file_type),
            name: entry.name,
            next: place_of(entry.next_cursor),
            after: ListingPlace(entry.next_cursor),
        };
        Ok(listed?.into_iter().map(entry).collect())
    }

    /// Returns the value of an extended attribute, whose name begins with its namespace.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Unsupported`] for other namespaces than `user`, `trusted` and `security`,
    /// [`Error::Invalid`] for an empty name behind one.
    pub fn extended_attribute(&mut self, inode: u32, name: &[u8]) -> Result<Vec<u8>, Error> {
        let ((namespace, name), inode) = (namespace_of(name)?, number(inode)?);
        self.act(|library| library.get_xattr(inode, namespace, name))
    }

    /// Returns the names of all extended attributes, each with a zero behind it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn extended_attributes(&mut self, inode: u32) -> Result<Vec<u8>, Error> {
        let inode = number(inode)?;
        let mut list = Vec::new();
        for found in self.act(|library| library.list_xattrs(inode))? {
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
        let ((namespace, name), inode) = (namespace_of(name)?, number(inode)?);
        let mode = match mode {
            AttributeMode::Any => XattrSetMode::Upsert,
            AttributeMode::Create => XattrSetMode::Create,
            AttributeMode::Replace => XattrSetMode::Replace,
        };
        let usage = self.usage()?;
        // Refused here already: the library would copy it several times first.
        let is_too_long = value.len() as u64 > usage.block_size;
        if is_too_long || self.access == Access::Write && usage.blocks.1 < BLOCKS_OF_A_CHANGE {
            return Err(Error::NoSpace);
        }
        // Values outside of the inode have a block, which may go.
        self.frees();
        self.change(|library| library.set_xattr(inode, namespace, name, value, mode))
    }

    /// Takes an extended attribute from a file.
    ///
    /// # Errors
    /// [`Error::NotFound`], and those of [`extended_attribute`](Volume::extended_attribute) and of all changes.
    pub fn remove_extended_attribute(&mut self, inode: u32, name: &[u8]) -> Result<(), Error> {
        let ((namespace, name), inode) = (namespace_of(name)?, number(inode)?);
        self.frees();
        self.change(|library| library.remove_xattr(inode, namespace, name))
    }

    /// Returns its sizes.
    ///
    /// # Errors
    /// [`Error::Device`] if the device has failed.
    pub fn usage(&self) -> Result<Usage, Error> {
        let statistics = self.library.as_ref().ok_or(Error::Device)?.statfs();
        Ok(Usage {
            block_size: statistics.block_size,
            blocks: (statistics.total_blocks, statistics.free_blocks),
            inodes: (statistics.total_inodes.into(), statistics.free_inodes.into()),
        })
    }

    /// Returns when all changes so far cannot be lost with the power any more.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn synchronise(&mut self) -> Result<(), Error> {
        if self.access == Access::Read {
            return Ok(());
        }
        self.commit()?;
        if self.grown.wrong.is_empty() { Ok(()) } else { self.begin_again() }
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
            return self.synchronise();
        }
        if self.device.flush().is_err() {
            self.go_back();
            return Err(Error::Device);
        }
        Ok(())
    }

    /// Has everything last that was changed. It is [`synchronise`](Volume::synchronise) without what that repairs.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn commit(&mut self) -> Result<(), Error> {
        if self.access == Access::Read {
            return Ok(());
        }
        self.act(Ext4::sync)?;
        (self.has_changed, self.has_overwritten, self.has_freed) = (false, false, false);
        self.journaled.clear();
        self.written.clear();
        Ok(())
    }

    /// Has it last that freed blocks are free, before bytes of a file may get them: after a power cut before that they
    /// would be in the file that had the blocks. (`rsext4` 0.9.2 gives freed blocks away at once. Blocks of directories
    /// and the like are written to the journal, so they get freed blocks only together with the news that these are
    /// free.)
    fn settle_freed_blocks(&mut self) -> Result<(), Error> {
        if self.has_freed && self.access == Access::Write { self.commit() } else { Ok(()) }
    }

    /// Ends the library's state of the volume and begins a new one. Not while there are files without names, which
    /// would go with it: then it is tried again later.
    fn begin_again(&mut self) -> Result<(), Error> {
        let begun = match self.end_library() {
            Err(Error::Busy) if self.library.is_some() => return Ok(()),
            ended => ended.and_then(|()| mount_for(Access::Write, &self.device, self.clock).map_err(error_of)),
        };
        match begun {
            Ok((library, transactions)) => {
                (self.library, self.transactions) = (Some(library), transactions);
                Ok(())
            }
            Err(error) => {
                // There is no state, or one that has gone back already.
                if self.access == Access::Write {
                    self.go_back();
                }
                Err(error)
            }
        }
    }

    /// Ends the library's state of the volume, which is whole then.
    fn end_library(&mut self) -> Result<(), Error> {
        if self.access == Access::Write {
            self.commit()?;
        }
        self.with_transactions(|transactions| transactions.end_next(true));
        let ended = self.act(Ext4::unmount);
        self.with_transactions(|transactions| transactions.end_next(false));
        ended?;
        (self.library, self.transactions) = (None, None);
        if self.access == Access::Write {
            let wrong = core::mem::take(&mut self.grown.wrong);
            correct_blocks(&self.device, self.clock, &wrong).map_err(error_of)?;
        }
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
            let (library, transactions) = mount_for(Access::Write, &self.device, self.clock).map_err(error_of)?;
            (self.library, self.transactions, self.is_covered) = (Some(library), transactions, false);
        } else {
            self.commit()?;
            self.with_transactions(|transactions| transactions.end_next(true));
            let ended = self.act(|library| library.remount(options(Access::Read)));
            self.with_transactions(|transactions| transactions.end_next(false));
            ended?;
            self.transactions = None;
            self.access = Access::Read;
            self.leave_journal()?;
        }
        self.access = access;
        Ok(())
    }

    /// Ends the volume: everything is written, and it is marked as whole.
    ///
    /// # Errors
    /// [`Error::Busy`] while there are files without names, [`Error::Device`].
    pub fn unmount(&mut self) -> Result<(), Error> {
        self.end_library()?;
        if self.access == Access::Write { self.leave_journal() } else { Ok(()) }
    }

    /// Leaves the journal, which is empty, as Linux does.
    fn leave_journal(&mut self) -> Result<(), Error> {
        superblock::mark_as_whole(&self.device).map_err(|DeviceFailed| Error::Device)
    }
}

/// Directories that have grown in several pieces. `rsext4` 0.9.2 does not count the nodes that their trees of extents
/// get by that among their blocks (`i_blocks`), which `e2fsck` takes for damage.
#[derive(Default)]
struct Grown {
    /// Directories whose number of blocks may be wrong.
    wrong: BTreeSet<u32>,
    /// Numbers of pieces at which a directory was noted last.
    noted: BTreeMap<u32, usize>,
}

impl Grown {
    /// Extents in an inode itself.
    const IN_INODE: usize = 4;
    /// Extents that a tree has more when it gets another node: a node that is full becomes two halves.
    const IN_NODE: usize = 150;
    /// Number of directories that are remembered.
    const MOST: usize = 1024;

    fn note(&mut self, directory: u32, pieces: usize) {
        let noted = self.noted.get(&directory).copied();
        let is_deeper = match noted {
            None => pieces > Grown::IN_INODE,
            Some(noted) => pieces >= noted + Grown::IN_NODE,
        };
        if is_deeper {
            if self.noted.len() >= Grown::MOST {
                self.noted.clear();
            }
            self.noted.insert(directory, pieces);
            self.wrong.insert(directory);
        }
    }
}

/// A device with the clock that the library's lower door wants of it.
struct Timed<D>(Sectors<D>, Clock);

impl<D> ClockOfLibrary for Timed<D> {
    fn now(&self) -> Ext4Result<Ext4Timestamp> {
        Ok(stamp_for_library((self.1)()))
    }
}

impl<D: Device> BlockIo for Timed<D> {
    fn write(&mut self, buffer: &[u8], sector: SectorId, count: u32) -> Ext4Result<()> {
        self.0.write(buffer, sector, count)
    }

    fn read(&mut self, buffer: &mut [u8], sector: SectorId, count: u32) -> Ext4Result<()> {
        self.0.read(buffer, sector, count)
    }

    fn geometry(&self) -> DeviceGeometry {
        self.0.geometry()
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.0.capabilities()
    }

    fn flush(&mut self) -> Ext4Result<()> {
        self.0.flush()
    }
}

/// Gives directories of a volume that is not mounted the numbers of their blocks.
fn correct_blocks<D: Device>(device: &D, clock: Clock, directories: &BTreeSet<u32>) -> Ext4Result<()> {
    if directories.is_empty() {
        return Ok(());
    }
    let mut device = Jbd2Dev::initial_jbd2dev(0, Timed(Sectors::new(device.clone(), false), clock), true);
    let mut volume = Ext4FileSystem::mount(&mut device)?;
    let (block_size, is_huge) = (volume.statfs().block_size as u32, false);
    for directory in directories {
        let number = InodeNumber::new(*directory)?;
        let Ok(mut inode) = volume.get_inode_by_num(&mut device, number) else { continue };
        if !inode.is_dir() || !inode.uses_extents() {
            continue;
        }
        let data = resolve_inode_blocks(&mut volume, &mut device, number, &mut inode)?.len();
        let nodes = ExtentTree::with_filesystem(&mut inode, &volume, number).external_node_blocks(&mut device)?.len();
        let sectors = (data + nodes) as u64 * u64::from(block_size / 512);
        if inode.blocks_count(block_size, is_huge) < sectors {
            let mut outcome = Ok(());
            volume.modify_inode(&mut device, number, |inode| {
                outcome = inode.set_blocks_count(sectors, block_size, is_huge);
            })?;
            outcome?;
        }
    }
    volume.umount(&mut device)
}

fn options(access: Access) -> MountOptions {
    MountOptions { readonly: access == Access::Read, replay_journal: true, block_validity: true }
}

/// Mounts a device that was examined. For reading nothing is written: the journal is replayed in memory.
fn mount<D: Device>(device: &D, clock: Clock, access: Access) -> Ext4Result<Library<D>> {
    let services = MountServices::new(OwnClock(clock), (), NoopObserver);
    let sectors = Sectors::new(device.clone(), access == Access::Read);
    let mut library = Ext4::mount(sectors, services, options(access))?;
    let journal = library.inode(InodeNumber::new(JOURNAL)?);
    if journal.is_ok_and(|journal| journal.size > LARGEST_JOURNAL) {
        return Err(Ext4Error::bad_superblock().with_operation("the journal is too large"));
    }
    Ok(library)
}

/// Mounts a device that was examined for this access; to write to a volume with a journal, returns its transactions.
fn mount_for<D: Device>(
    access: Access,
    device: &D,
    clock: Clock,
) -> Ext4Result<(Library<D>, Option<SharedTransactions>)> {
    let failed = |DeviceFailed| Ext4Error::io();
    if access == Access::Read || !superblock::has_journal(device).map_err(failed)? {
        return Ok((mount(device, clock, access)?, None));
    }
    let journal = if superblock::is_to_be_mended(device).map_err(failed)? {
        let mut library = mount(device, clock, Access::Write)?;
        let journal = journal_of(&mut library, device)?;
        library.unmount()?;
        journal
    } else {
        journal_of(&mut mount(device, clock, Access::Read)?, device)?
    };
    let log = JournalLog::begin(device, journal).map_err(|unusable| match unusable {
        Unusable::Device => Ext4Error::io(),
        Unusable::Damaged => Ext4Error::bad_superblock().with_operation("the journal"),
    })?;
    superblock::mark_in_use(device).map_err(failed)?;
    let transactions = Arc::new(Mutex::new(Transactions::new(log)));
    let sectors = Sectors::journaled(device.clone(), transactions.clone(), clock);
    let services = MountServices::new(OwnClock(clock), (), NoopObserver);
    Ok((Ext4::mount(sectors, services, options(access))?, Some(transactions)))
}

/// Returns the place of the journal in the volume, where `mke2fs` makes it.
fn journal_of<D: Device>(library: &mut Library<D>, device: &D) -> Ext4Result<Journal> {
    let number = InodeNumber::new(JOURNAL)?;
    let inode = library.inode(number)?;
    let block = BLOCK as u64;
    let used = u64::from(USED_BLOCKS) * block;
    let pieces = library.inode_extents(number, 0, used.min(inode.size), FileExtentTarget::Data, usize::MAX)?;
    let mut journal = Journal { pieces: Vec::new(), blocks: 0 };
    journal.blocks = u32::try_from(inode.size / block).map_err(|_| Ext4Error::overflow())?;
    let mut next = 0;
    for piece in pieces.extents {
        let is_inside = piece.physical_start.checked_add(piece.length).is_some_and(|end| end <= device.bytes());
        if piece.logical_start != next * block || !is_inside || inode.mode & kind::MASK != kind::REGULAR {
            break;
        }
        let count = piece.length / block;
        journal.pieces.push(JournalPiece { first: next as u32, at: piece.physical_start, count: count as u32 });
        next += count;
    }
    Ok(journal)
}

fn number(inode: u32) -> Result<InodeNumber, Error> {
    InodeNumber::new(inode).map_err(|_| Error::NotFound)
}

fn name_of(name: &[u8]) -> Result<FileName<'_>, Error> {
    FileName::new(name).map_err(|_| Error::Invalid)
}

/// Splits the name of an extended attribute behind its namespace.
fn namespace_of(name: &[u8]) -> Result<(XattrNamespace, &[u8]), Error> {
    let split = |(prefix, namespace): &(&[u8], XattrNamespace)| Some((*namespace, name.strip_prefix(*prefix)?));
    let (namespace, rest) = NAMESPACES.iter().find_map(split).ok_or(Error::Unsupported)?;
    if rest.is_empty() { Err(Error::Invalid) } else { Ok((namespace, rest)) }
}

fn nameless(outcome: UnlinkOutcome) -> Option<u32> {
    outcome.requires_reap().then_some(outcome.inode.raw())
}

fn context_of(file: NewFile) -> MutationContext {
    MutationContext::new(file.owner.0, file.owner.1, 0, 0)
}

fn attributes_of(inode: InodeInfo) -> Attributes {
    let device = inode.device_number.map_or((0, 0), |device| (device.major(), device.minor()));
    Attributes {
        inode: inode.number.raw(),
        mode: inode.mode,
        owner: (inode.uid, inode.gid),
        links: inode.links,
        size: inode.size,
        sectors: inode.blocks,
        times: [inode.atime, inode.mtime, inode.ctime],
        device,
    }
}

fn kind_of(kind: rsext4::DirectoryEntryType) -> u8 {
    use rsext4::DirectoryEntryType::*;
    match kind {
        Unknown => 0,
        Fifo => 1,
        CharacterDevice => 2,
        Directory => 4,
        BlockDevice => 6,
        RegularFile => 8,
        Symlink => 10,
        Socket => 12,
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
fn place_of(cursor: DirectoryCursor) -> u64 {
    match cursor {
        DirectoryCursor::Start => 0,
        DirectoryCursor::Linear { offset } => offset.min(HASHED - 1),
        // The lowest bit of the first hash is always 0. Names whose hashes agree in the bits that are kept are listed
        // twice if a listing is continued between them.
        DirectoryCursor::HTree { major, minor, collision } => {
            let minor = u64::from(minor >> (32 - MINOR_BITS));
            HASHED
                | u64::from(major >> 1) << (MINOR_BITS + COLLISION_BITS)
                | minor << COLLISION_BITS
                | u64::from(collision.min((1 << COLLISION_BITS) - 1))
        }
        DirectoryCursor::End => END,
    }
}

/// Returns the place with this number; `None` for the end.
fn cursor_of(place: u64) -> Option<DirectoryCursor> {
    match place {
        0 => Some(DirectoryCursor::Start),
        END.. => None,
        HASHED.. => {
            let major = (place >> (MINOR_BITS + COLLISION_BITS)) as u32 & (u32::MAX >> 1);
            let minor = (place >> COLLISION_BITS) as u32 & ((1 << MINOR_BITS) - 1);
            let collision = place as u32 & ((1 << COLLISION_BITS) - 1);
            Some(DirectoryCursor::HTree { major: major << 1, minor: minor << (32 - MINOR_BITS), collision })
        }
        offset => Some(DirectoryCursor::Linear { offset }),
    }
}

fn error_of(error: Ext4Error) -> Error {
    use Ext4ErrorKind::*;
    match error.kind() {
        Io | Timeout => Error::Device,
        Corrupted | ChecksumMismatch | BadSuperblock | InvalidMagic | Overflow => Error::Damaged(operation_of(error)),
        UnsupportedFeature | UnsupportedCapability | Unsupported | QuotaExceeded => Error::Unsupported,
        ReadOnly | JournalAborted => Error::ReadOnly,
        NoSpace => Error::NoSpace,
        NoMemory => Error::OutOfMemory,
        TooManyLinks => Error::TooManyLinks,
        PermissionDenied | InvalidInput | BadFileDescriptor => Error::Invalid,
        NotFound => Error::NotFound,
        AlreadyExists => Error::AlreadyExists,
        NotDirectory => Error::NotADirectory,
        IsDirectory => Error::IsADirectory,
        NotEmpty => Error::NotEmpty,
        Busy => Error::Busy,
        FileTooLarge => Error::TooLarge,
    }
}

fn operation_of(error: Ext4Error) -> &'static str {
    match error.context() {
        Some(rsext4::ErrorContext::Operation { op }) => op,
        _ => "a structure",
    }
}

fn refusal_of(error: Ext4Error) -> Refusal {
    match error_of(error) {
        Error::OutOfMemory => Refusal::OutOfMemory,
        Error::Device | Error::ReadOnly => Refusal::Device,
        Error::Unsupported => Refusal::Feature { name: operation_of(error), forbids_writing_alone: false },
        _ => Refusal::Damaged(operation_of(error)),
    }
}
