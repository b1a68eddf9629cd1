//! The tree of names, and the operations that change it.
//!
//! Each of them first decides and then acts: checks that can fail (the tree's shape, memory, the limit) come before the
//! first change, so that an operation that returns an error has changed nothing. The walk that found the place held no
//! lock when it returned; so its findings are looked up again under the lock of the directory that changes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use spin::RwLockWriteGuard;

use crate::contents::{FileContents, Remains};
use crate::directory::Directory;
use crate::error::Error;
use crate::memory;
use crate::node::{Base, DeviceNumber, FileKind, MeetingPlace, Node, Timestamp};
use crate::quota::{Maker, Owner};
use crate::rights::{self, Ownership, Subject, WRITE};
use crate::table::{Attributes, Content, Held, Inode, MakeObject, Object, ROOT, Shared};
use crate::walk::{
    Begin, Last, LastComponent, LastLink, MAX_PATH_LENGTH, Position, WayOn, resolve, resolve_noting, walk, walk_noting,
};
use crate::watch::{event, next_cookie};

/// Treatment by [`Filesystem::rename`] of a new name that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replacement {
    /// The file that had the name loses it.
    #[default]
    Replace,
    /// The operation fails: [`Error::AlreadyExists`] (`RENAME_NOREPLACE`).
    Refuse,
    /// The two files exchange their names (`RENAME_EXCHANGE`).
    Exchange,
}

/// Usage of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "statfs")]
pub struct Usage {
    /// Limit, in bytes.
    pub limit: u64,
    /// Bytes in use.
    pub used: u64,
    /// Number of files of all kinds.
    pub inodes: u64,
}

/// A tree of files in memory.
///
/// A clone is another reference to the same tree. Paths are bytes, separated by slashes; a path that does not start
/// with a slash begins at `base`, which every operation takes as the `*at` calls of Unix do.
#[derive(Clone)]
#[doc(alias = "tmpfs")]
pub struct Filesystem {
    pub(crate) shared: Arc<Shared>,
}

/// A file without contents of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialFile {
    /// A device that the kernel finds by its number (`S_IFCHR`).
    CharacterDevice(DeviceNumber),
    /// A disk that the kernel finds by its number (`S_IFBLK`).
    BlockDevice(DeviceNumber),
    /// A pipe with a name (`S_IFIFO`).
    Fifo,
    /// The name of a socket (`S_IFSOCK`).
    Socket,
}

/// Kind of file to make, with its contents.
pub(crate) enum Recipe<'target> {
    File(&'static [u8]),
    Directory,
    SymbolicLink(&'target [u8]),
    Special(SpecialFile),
    Object(Object, u64),
}

impl Recipe<'_> {
    fn content(&self) -> Result<Content, Error> {
        Ok(match self {
            Recipe::File(backing) => Content::File(FileContents::new(backing)),
            Recipe::Directory => Content::Directory(Directory::new()),
            Recipe::SymbolicLink(target) => Content::SymbolicLink(memory::copy(target)?),
            Recipe::Special(SpecialFile::CharacterDevice(device)) => Content::CharacterDevice(*device),
            Recipe::Special(SpecialFile::BlockDevice(device)) => Content::BlockDevice(*device),
            Recipe::Special(SpecialFile::Fifo) => Content::Fifo(MeetingPlace::default()),
            Recipe::Special(SpecialFile::Socket) => Content::Socket,
            Recipe::Object(object, length) => Content::Object(Arc::clone(object), *length),
        })
    }
}

impl Filesystem {
    /// Makes a tree that consists of an empty root directory and may take up to `limit` bytes of memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or [`Error::NoSpace`] if not even the root fits.
    pub fn new(limit: u64) -> Result<Filesystem, Error> {
        Ok(Filesystem { shared: Arc::new(Shared::new(limit, Arc::new(Remains::default()), false, None)?) })
    }

    /// Lets operations follow at most so many components of a path at once, and at least one: [`Error::Crossing`] and
    /// [`Departure::Later`](crate::Departure::Later) beyond them. Trees that are made [`beside`](Self::beside) this one
    /// from then on do so, too.
    pub fn walk_in_steps_of(&self, components: usize) {
        self.shared.work_of_a_step.store(components, Ordering::Relaxed);
    }

    /// Makes another tree whose root is to cover a directory of this tree, or of one that was made beside it. All such
    /// trees have their remains in common. The memory of an empty tree is charged to `owner`.
    ///
    /// Its `..` and `/` lead out of it: [`Error::Crossing`].
    ///
    /// # Errors
    /// As [`Filesystem::new`]; [`Error::NoSpace`] also at the owner's limit.
    #[doc(alias = "mount")]
    pub fn beside(&self, limit: u64, owner: Option<&Arc<dyn Owner>>) -> Result<Filesystem, Error> {
        let remains = Arc::clone(&self.shared.remains);
        let tree = Filesystem { shared: Arc::new(Shared::new(limit, remains, true, owner)?) };
        tree.walk_in_steps_of(self.shared.work_of_a_step.load(Ordering::Relaxed));
        if let Some(observer) = self.shared.observer.get() {
            tree.observed_by(*observer);
        }
        Ok(tree)
    }

    /// Gives up a tree that was made [`beside`](Self::beside) another and to which nothing else refers. Its files
    /// become remains, which take as many calls of [`free_remains`](Self::free_remains) as necessary.
    #[doc(alias = "umount")]
    pub fn give_up(self) {
        let remains = Arc::clone(&self.shared.remains);
        remains.add_tree(self.shared);
    }

    /// Returns the root directory.
    pub fn root(&self) -> Node {
        Node::new(&Held::root(&self.shared))
    }

    /// Frees some pages of freed files or of cut-off parts, or a piece of a tree that was given up; returns `false` if
    /// there are none, neither of this tree nor of those beside it. Removing a large file's last name or handle does
    /// not free its pages, because there can be any number of them; that takes as many calls of this function as
    /// necessary. Until then they count as used.
    pub fn free_remains(&self) -> bool {
        self.shared.remains.free_one()
    }

    /// Whether there is something for [`free_remains`](Self::free_remains).
    pub fn has_remains(&self) -> bool {
        !self.shared.remains.is_empty()
    }

    /// Whether the tree must not be changed.
    pub fn is_read_only(&self) -> bool {
        self.shared.is_read_only()
    }

    /// Forbids or permits changes of the tree and of its files: [`Error::ReadOnly`]. Permissions and times are the
    /// caller's to guard.
    ///
    /// # Errors
    /// [`Error::Busy`] if a change is under way, or a file is open for writing.
    #[doc(alias = "remount")]
    pub fn set_read_only(&self, read_only: bool) -> Result<(), Error> {
        self.shared.set_read_only(read_only)
    }

    /// Changes the limit of its memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if more is in use.
    pub fn set_limit(&self, limit: u64) -> Result<(), Error> {
        self.shared.quota.set_limit(limit)
    }

    /// Returns the usage.
    pub fn usage(&self) -> Usage {
        Usage { limit: self.shared.quota.limit(), used: self.shared.quota.used(), inodes: self.shared.in_use() }
    }

    pub(crate) fn base<'node>(&self, node: &'node Node) -> Result<Held<'node>, Error> {
        if node.is_in(&self.shared) { Ok(node.held()) } else { Err(Error::CrossFilesystem) }
    }

    pub(crate) fn begin<'a>(&self, base: Base<'a>) -> Result<Begin<'a, 'a>, Error> {
        if base.node.is_in(&self.shared) { Ok(Begin::new(base)) } else { Err(Error::CrossFilesystem) }
    }

    /// Returns the file at `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::TooManySymbolicLinks`], [`Error::NameTooLong`];
    /// [`Error::InvalidArgument`] if the path contains a zero byte, [`Error::CrossFilesystem`] if `base` is another
    /// file system's, [`Error::OutOfMemory`]; [`Error::AccessDenied`] if a directory on the way must not be searched.
    /// Every operation that takes a path can return these, and [`Error::AccessDenied`] also if a directory must not be
    /// changed.
    #[doc(alias = "lookup")]
    #[doc(alias = "namei")]
    pub fn look_up<'a>(&self, base: impl Into<Base<'a>>, path: &[u8], last: LastLink) -> Result<Node, Error> {
        Ok(Node::new(&resolve(self.begin(base.into())?, path, last)?))
    }

    /// Does so, and notes where a path goes on that leads out of this file system ([`Error::Crossing`]).
    ///
    /// # Errors
    /// As [`Filesystem::look_up`].
    pub fn look_up_noting<'a>(
        &self,
        base: impl Into<Base<'a>>,
        path: &[u8],
        last: LastLink,
        way: &mut Option<WayOn>,
    ) -> Result<Node, Error> {
        Ok(Node::new(&resolve_noting(self.begin(base.into())?, path, last, Some(way))?))
    }

    /// Makes a directory (`mkdirat`).
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::NoSpace`].
    #[doc(alias = "mkdir")]
    pub fn make_directory<'a>(
        &self,
        base: impl Into<Base<'a>>,
        path: &[u8],
        permissions: u16,
        by: impl Into<Maker<'a>>,
    ) -> Result<Node, Error> {
        self.make(base.into(), path, Recipe::Directory, permissions, by.into())
    }

    /// Makes a symbolic link that points to `target`, which need not exist (`symlinkat`).
    ///
    /// # Errors
    /// [`Error::NotFound`] also if the target is empty, [`Error::AlreadyExists`], [`Error::NoSpace`].
    #[doc(alias = "symlink")]
    pub fn make_symbolic_link<'a>(
        &self,
        base: impl Into<Base<'a>>,
        path: &[u8],
        target: &[u8],
        by: impl Into<Maker<'a>>,
    ) -> Result<Node, Error> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > MAX_PATH_LENGTH {
            return Err(Error::NameTooLong);
        }
        if target.contains(&0) {
            return Err(Error::InvalidArgument);
        }
        self.make(base.into(), path, Recipe::SymbolicLink(target), 0o777, by.into())
    }

    /// Makes a file without contents of its own (`mknodat`).
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::NoSpace`].
    #[doc(alias = "mknod")]
    #[doc(alias = "mkfifo")]
    pub fn make_special_file<'a>(
        &self,
        base: impl Into<Base<'a>>,
        path: &[u8],
        special: SpecialFile,
        permissions: u16,
        by: impl Into<Maker<'a>>,
    ) -> Result<Node, Error> {
        self.make(base.into(), path, Recipe::Special(special), permissions, by.into())
    }

    /// Makes a name for an object, which has the form of a regular file of this length but is none: it cannot be read
    /// or written here ([`Node::object`]). It lasts as long as the file.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::NoSpace`].
    pub fn make_object<'a>(
        &self,
        base: impl Into<Base<'a>>,
        path: &[u8],
        (object, length): (Object, u64),
        permissions: u16,
        by: impl Into<Maker<'a>>,
    ) -> Result<Node, Error> {
        self.make(base.into(), path, Recipe::Object(object, length), permissions, by.into())
    }

    /// Lets the tree have names of objects alone from now on: a regular file that is made is an object of `make`, no
    /// other file is made, no name is changed, and none is added ([`Error::NotPermitted`]).
    pub fn has_objects_alone(&self, make: MakeObject) {
        self.shared.objects.call_once(|| make);
    }

    /// Makes a regular file whose contents are `backing` until it is written to.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::NoSpace`].
    pub fn make_file<'a>(
        &self,
        base: impl Into<Base<'a>>,
        path: &[u8],
        backing: &'static [u8],
        permissions: u16,
        by: impl Into<Maker<'a>>,
    ) -> Result<Node, Error> {
        self.make(base.into(), path, Recipe::File(backing), permissions, by.into())
    }

    /// Makes an empty file that has no name and can be sealed.
    pub(crate) fn make_nameless(
        &self,
        permissions: u16,
        subject: Option<&Subject>,
        by: Maker<'_>,
    ) -> Result<Held<'_>, Error> {
        let Maker { now, owner } = by;
        let ownership = rights::of_new(subject, Ownership::default(), permissions, FileKind::Regular);
        let attributes = Attributes { ownership, accessed: now, modified: now, changed: now };
        let index = self.shared.allocate(Content::File(FileContents::sealable()), attributes, owner, ROOT)?;
        // The inode was made with a link, which no entry has, and the returned handle.
        self.shared.release_link(index);
        Ok(Held { shared: &self.shared, index, kind: FileKind::Regular, is_covered: false })
    }

    fn make(
        &self,
        base: Base<'_>,
        path: &[u8],
        recipe: Recipe<'_>,
        permissions: u16,
        by: Maker<'_>,
    ) -> Result<Node, Error> {
        let position = walk(self.begin(base)?, path, LastComponent::Name)?;
        let name = new_name(&position, matches!(recipe, Recipe::Directory))?;
        let held = create((&position.directory, &base), name, &recipe, permissions, by)?;
        Ok(Node::new(&held))
    }

    /// Gives a file another name (`linkat`). `last` decides about a symbolic link at `existing`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory, [`Error::AlreadyExists`], [`Error::TooManyLinks`], [`Error::NoSpace`].
    pub fn link<'a>(
        &self,
        existing_base: impl Into<Base<'a>>,
        existing: &[u8],
        last: LastLink,
        base: impl Into<Base<'a>>,
        path: &[u8],
        by: impl Into<Maker<'a>>,
    ) -> Result<(), Error> {
        let file = resolve(self.begin(existing_base.into())?, existing, last)?;
        self.link_held(&file, base.into(), path, by.into())
    }

    /// Gives the file of a node another name (`linkat` with `AT_EMPTY_PATH`).
    ///
    /// # Errors
    /// As [`Filesystem::link`]; [`Error::NotFound`] also if it has lost its last name.
    pub fn link_node<'a>(
        &self,
        file: &Node,
        base: impl Into<Base<'a>>,
        path: &[u8],
        by: impl Into<Maker<'a>>,
    ) -> Result<(), Error> {
        self.link_held(&self.base(file)?, base.into(), path, by.into())
    }

    fn link_held(&self, file: &Held<'_>, base: Base<'_>, path: &[u8], by: Maker<'_>) -> Result<(), Error> {
        let Maker { now, owner } = by;
        let position = walk(self.begin(base)?, path, LastComponent::Name)?;
        let name = new_name(&position, false)?;
        self.shared.permit_other_than_objects()?;
        let inode = position.directory.inode();
        let mut content = inode.exclusive();
        let directory = content.directory_mut()?;
        check_free(directory, name)?;
        let _change = self.shared.change(base.part)?;
        rights::permit_creation(base.subject, inode.ownership())?;
        if file.is_directory() {
            return Err(Error::NotPermitted);
        }
        let prepared = directory.prepare(&self.shared.quota, owner, name)?;
        if let Err(error) = file.inode().add_link() {
            Directory::forget(&self.shared.quota, prepared);
            return Err(error);
        }
        directory.insert(prepared, file.index, file.kind);
        inode.touch(now);
        file.inode().touch_attributes(now);
        drop(content);
        self.shared.tell_itself(file.index, event::ATTRIBUTES, file.kind);
        self.shared.tell_of_name(position.directory.index, name, event::CREATED, file.kind, 0);
        Ok(())
    }

    /// Removes a name that is not a directory's (`unlinkat`). The file itself stays as long as it has another name or
    /// is held by a [`Node`].
    ///
    /// # Errors
    /// [`Error::IsADirectory`].
    #[doc(alias = "unlinkat")]
    pub fn unlink<'a>(&self, base: impl Into<Base<'a>>, path: &[u8], now: Timestamp) -> Result<(), Error> {
        let base = base.into();
        let position = walk(self.begin(base)?, path, LastComponent::Name)?.without_found();
        let name = position.name().ok_or(Error::IsADirectory)?;
        self.remove_name((&position.directory, &base), name, now, |_, kind, _| match kind {
            FileKind::Directory => Err(Error::IsADirectory),
            _ if position.has_trailing_slash => Err(Error::NotADirectory),
            _ => Ok(()),
        })
    }

    /// Removes an empty directory (`unlinkat` with `AT_REMOVEDIR`).
    ///
    /// # Errors
    /// [`Error::NotADirectory`], [`Error::DirectoryNotEmpty`]; [`Error::Busy`] for the root and
    /// [`Error::InvalidArgument`] for a path that ends in `.`
    #[doc(alias = "rmdir")]
    pub fn remove_directory<'a>(&self, base: impl Into<Base<'a>>, path: &[u8], now: Timestamp) -> Result<(), Error> {
        let base = base.into();
        let position = walk(self.begin(base)?, path, LastComponent::Name)?.without_found();
        let name = position.name().ok_or(match position.last {
            Last::Root => Error::Busy,
            Last::Parent => Error::DirectoryNotEmpty,
            Last::Current | Last::Name(_) => Error::InvalidArgument,
        })?;
        self.remove_name((&position.directory, &base), name, now, |directory, kind, child| {
            if kind != FileKind::Directory {
                return Err(Error::NotADirectory);
            }
            child.mark_removed()?;
            directory.subdirectories -= 1;
            Ok(())
        })
    }

    /// Removes a name from a directory for a user, unless `prepare` refuses: it is called with the locked directory,
    /// and with the kind and the inode of the file that has the name.
    fn remove_name(
        &self,
        (parent, base): (&Held<'_>, &Base<'_>),
        name: &[u8],
        now: Timestamp,
        prepare: impl FnOnce(&mut Directory, FileKind, &Inode) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _change = self.shared.change(base.part)?;
        let inode = parent.inode();
        let removed = {
            let mut content = inode.exclusive();
            let directory = content.directory_mut()?;
            let entry = directory.find(name).ok_or(Error::NotFound)?;
            let (kind, child) = (entry.kind, self.shared.inode(entry.inode));
            rights::permit_removal(base.subject, inode.ownership(), child.ownership())?;
            prepare(directory, kind, child)?;
            child.take_link()?;
            child.touch_attributes(now);
            directory.remove(&self.shared.quota, name)
        };
        inode.touch(now);
        if let Some(entry) = removed {
            if entry.kind != FileKind::Directory {
                self.shared.tell_itself(entry.inode, event::ATTRIBUTES, entry.kind);
            }
            // Outside the directory's lock: this may free a long file.
            self.shared.release_handle(entry.inode);
            self.shared.tell_of_name(parent.index, name, event::DELETED, entry.kind, 0);
        }
        Ok(())
    }

    /// Gives a file or a directory another name and perhaps another directory, in one step (`renameat2`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] to move a directory into itself; [`Error::DirectoryNotEmpty`],
    /// [`Error::IsADirectory`] or [`Error::NotADirectory`] if one may not replace the other; [`Error::Busy`] for the
    /// root and for paths that end in `.` or `..`; [`Error::AlreadyExists`] with [`Replacement::Refuse`];
    /// [`Error::NoSpace`].
    #[doc(alias = "renameat2")]
    pub fn rename<'a>(
        &self,
        old_base: impl Into<Base<'a>>,
        old_path: &[u8],
        new_base: impl Into<Base<'a>>,
        new_path: &[u8],
        replacement: Replacement,
        by: impl Into<Maker<'a>>,
    ) -> Result<(), Error> {
        let so_far = &mut RenameSoFar::new(usize::MAX);
        self.rename_in_parts(so_far, (old_base.into(), old_path), (new_base.into(), new_path), replacement, by)
    }

    /// Renames as [`rename`](Self::rename), but changes nothing and returns [`Error::Unfinished`] when it has looked at
    /// so many directories above one of the two that more are left; made again, with the same arguments, it goes on.
    ///
    /// # Errors
    /// As [`rename`](Self::rename); [`Error::Unfinished`]; [`Error::Busy`] also if directories were moved meanwhile,
    /// again and again.
    pub fn rename_in_parts<'a>(
        &self,
        so_far: &mut RenameSoFar,
        (old_base, old_path): (impl Into<Base<'a>>, &[u8]),
        (new_base, new_path): (impl Into<Base<'a>>, &[u8]),
        replacement: Replacement,
        by: impl Into<Maker<'a>>,
    ) -> Result<(), Error> {
        let (by, old_base, new_base) = (by.into(), old_base.into(), new_base.into());
        let old = walk(self.begin(old_base)?, old_path, LastComponent::Name)?;
        let new = walk(self.begin(new_base)?, new_path, LastComponent::Name)?;
        let old_name = old.name().ok_or(Error::Busy)?;
        let new_name = new.name().ok_or(match replacement {
            Replacement::Refuse => Error::AlreadyExists,
            Replacement::Replace | Replacement::Exchange => Error::Busy,
        })?;

        let _change = self.shared.change(new_base.part)?;
        // From here on directories do not move. The walks held no lock when they returned, so both names are looked up
        // again.
        let mut renames = self.shared.rename.lock();
        // Freed when nothing is locked any more.
        let _outdated = so_far.begin(renames.moves)?;
        let mut pair = Pair::lock(&self.shared, so_far, &old.directory, &new.directory)?;
        let source = pair.source()?.find(old_name).ok_or(Error::NotFound)?;
        let source = (source.inode, source.kind);
        if pair.destination()?.is_removed {
            return Err(Error::NotFound);
        }
        let target = pair.destination()?.find(new_name);
        let target = target.map(|entry| (entry.inode, entry.kind));
        let subject = new_base.subject;
        let rename = Rename { old: &old, old_name, new: &new, new_name, source, target, replacement, subject };
        // Checks come first: a rename that fails has changed nothing.
        rename.check(so_far)?;
        // Two names of one file: POSIX demands that both stay.
        if target.is_some_and(|target| target.0 == source.0) {
            return Ok(());
        }
        self.shared.permit_other_than_objects()?;
        let is_covered = |file: (u32, FileKind)| self.shared.inode(file.0).is_covered();
        if is_covered(source) || target.is_some_and(is_covered) {
            return Err(Error::Busy);
        }
        self.change_entries(&rename, &mut pair, by)?;
        renames.names += 1;
        let is_directory = |file: (u32, FileKind)| file.1 == FileKind::Directory;
        if old.directory.index != new.directory.index && (is_directory(source) || target.is_some_and(is_directory)) {
            renames.moves += 1;
        }
        drop(pair);
        old.directory.inode().touch(by.now);
        new.directory.inode().touch(by.now);
        let names = [(old.directory.index, old_name), (new.directory.index, new_name)];
        self.tell_of_rename(names, source);
        match (target, replacement) {
            (Some(target), Replacement::Exchange) => self.tell_of_rename([names[1], names[0]], target),
            (Some(target), Replacement::Replace | Replacement::Refuse) => {
                self.shared.tell_itself(target.0, event::ATTRIBUTES, target.1);
                self.shared.release_link(target.0);
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// Tells that a file has lost one name, in a directory, and got another.
    fn tell_of_rename(&self, [old, new]: [(u32, &[u8]); 2], (file, kind): (u32, FileKind)) {
        if self.shared.are_watched() {
            let cookie = next_cookie();
            self.shared.tell_of_name(old.0, old.1, event::MOVED_FROM, kind, cookie);
            self.shared.tell_of_name(new.0, new.1, event::MOVED_TO, kind, cookie);
            self.shared.tell_itself(file, event::SELF_MOVED, kind);
        }
    }

    /// Changes the entries of a rename whose checks have passed. The last two conditions, an empty directory and
    /// memory, are tested here, before any change.
    fn change_entries(&self, rename: &Rename<'_>, pair: &mut Pair<'_>, by: Maker<'_>) -> Result<(), Error> {
        let Maker { now, owner } = by;
        let Rename { old, old_name, new, new_name, source, target, replacement, subject: _ } = *rename;
        match (target, replacement) {
            (Some(target), Replacement::Exchange) => {
                if let Some(cursor) = pair.source()?.replace(old_name, target.0, target.1) {
                    self.shared.inode(target.0).set_cursor(cursor);
                }
                if let Some(cursor) = pair.destination()?.replace(new_name, source.0, source.1) {
                    self.shared.inode(source.0).set_cursor(cursor);
                }
                if target.1 == FileKind::Directory {
                    pair.destination()?.subdirectories -= 1;
                    pair.source()?.subdirectories += 1;
                    self.set_parent(target.0, &new.directory, &old.directory);
                } else {
                    self.shared.inode(target.0).set_parent(old.directory.index);
                }
            }
            (Some(target), _) => {
                if target.1 == FileKind::Directory {
                    // The last thing that can fail.
                    self.shared.inode(target.0).mark_removed()?;
                    pair.destination()?.subdirectories -= 1;
                }
                if let Some(cursor) = pair.destination()?.replace(new_name, source.0, source.1) {
                    self.shared.inode(source.0).set_cursor(cursor);
                }
                pair.source()?.remove(&self.shared.quota, old_name);
            }
            (None, _) => {
                let prepared = pair.destination()?.prepare(&self.shared.quota, owner, new_name)?;
                // Insert before removing: a directory that becomes empty gives up the room that was prepared.
                let cursor = pair.destination()?.insert(prepared, source.0, source.1);
                self.shared.inode(source.0).set_cursor(cursor);
                pair.source()?.remove(&self.shared.quota, old_name);
            }
        }
        if source.1 == FileKind::Directory {
            pair.source()?.subdirectories -= 1;
            pair.destination()?.subdirectories += 1;
            self.set_parent(source.0, &old.directory, &new.directory);
        } else {
            // It holds no handle on its parent, which only its path is looked up with.
            self.shared.inode(source.0).set_parent(new.directory.index);
        }
        if let Some(target) = target {
            self.shared.inode(target.0).touch_attributes(now);
        }
        self.shared.inode(source.0).touch_attributes(now);
        Ok(())
    }

    /// Sets a directory's parent. Requires the rename lock and the locks of both parents, which are held by the caller,
    /// so that nothing is freed here.
    fn set_parent(&self, directory: u32, from: &Held<'_>, to: &Held<'_>) {
        if from.index != to.index {
            let inode = self.shared.inode(directory);
            let _content = inode.exclusive();
            self.shared.add_handle(to.index);
            inode.set_parent(to.index);
            self.shared.release_handle(from.index);
        }
    }

    /// Tells where a path goes on that an operation cannot follow in this file system ([`Error::Crossing`]); `None` if
    /// the operation can, after all.
    ///
    /// # Errors
    /// As [`Filesystem::look_up`]; but a file that is named or made may be missing at the end of the path.
    #[doc(alias = "follow_mount")]
    pub fn way_on<'a>(
        &self,
        base: impl Into<Base<'a>>,
        path: &[u8],
        last: LastComponent,
    ) -> Result<Option<WayOn>, Error> {
        let mut way = None;
        let arrived = walk_noting(self.begin(base.into())?, path, last, Some(&mut way)).and_then(|position| {
            match (last, position.is_found() || position.name().is_none()) {
                // A name of its own is this tree's, and one that is to be made may be missing.
                (LastComponent::Name, _) | (LastComponent::Made(_), false) => Ok(()),
                _ => position.target_noting(Some(&mut way)).map(|_| ()),
            }
        });
        match arrived {
            Ok(()) | Err(Error::Crossing) => Ok(way),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of symbolic links that a path follows in this file system. A path on which links of other
    /// file systems have led here may follow fewer than one that begins here.
    ///
    /// # Errors
    /// As [`Filesystem::look_up`]; but a file that is named or made may be missing at the end of the path.
    pub fn links_on<'a>(&self, base: impl Into<Base<'a>>, path: &[u8], last: LastComponent) -> Result<usize, Error> {
        walk(self.begin(base.into())?, path, last).map(|position| position.links())
    }

    /// Returns the absolute path of a file in this file system: of a directory (`getcwd`), or of another file as long
    /// as it has the name with which it was made or the last one that a rename has given it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it, or a directory above it, has been removed; [`Error::NameTooLong`] if the path has
    /// more than [`MAX_PATH_LENGTH`] bytes.
    #[doc(alias = "getcwd")]
    #[doc(alias = "d_path")]
    pub fn path_of(&self, file: &Node) -> Result<Vec<u8>, Error> {
        self.extend_path(&mut PathSoFar::new(file), usize::MAX).map(Option::unwrap_or_default)
    }

    /// Goes up from a directory by at most so many directories; returns the path when that is the root. A rename in
    /// between begins it anew; after a few, the rest is one part.
    ///
    /// # Errors
    /// As [`path_of`](Self::path_of).
    pub fn extend_path(&self, so_far: &mut PathSoFar, directories: usize) -> Result<Option<Vec<u8>>, Error> {
        let index = self.base(&so_far.file)?.index;
        // Nothing moves while this is locked.
        let renames = self.shared.rename.lock();
        if so_far.at.is_none_or(|(_, seen)| seen != renames.names) {
            so_far.path.clear();
            so_far.at = Some((index, renames.names));
            so_far.beginnings += 1;
        }
        let directories = if so_far.beginnings > PathSoFar::MOST_BEGINNINGS { usize::MAX } else { directories };
        for _ in 0..directories {
            let Some((index, _)) = &mut so_far.at else { break };
            if *index == so_far.top {
                let mut path = core::mem::take(&mut so_far.path);
                if path.is_empty() {
                    memory::reserve(&mut path, 1)?;
                    path.push(b'/');
                }
                path.reverse();
                return Ok(Some(path));
            }
            if *index == ROOT {
                return Err(Error::NotFound);
            }
            let parent = self.shared.inode(*index).parent();
            let content = self.shared.inode(parent).shared();
            // The parent of a file that is no directory may have been freed, and be anything now.
            let cursor = self.shared.inode(*index).cursor();
            let found = content.directory().map_err(|_| Error::NotFound)?.entries_from(cursor).next();
            let (_, entry) =
                found.filter(|(at, entry)| (*at, entry.inode) == (cursor, *index)).ok_or(Error::NotFound)?;
            let name = entry.name();
            if so_far.path.len() + 1 + name.len() > MAX_PATH_LENGTH {
                return Err(Error::NameTooLong);
            }
            so_far.path.try_reserve(name.len() + 1).map_err(|_| Error::OutOfMemory)?;
            so_far.path.extend(name.iter().rev());
            so_far.path.push(b'/');
            *index = parent;
        }
        Ok(None)
    }
}

/// The path of a directory that is [made in parts](Filesystem::extend_path), because it can be two thousand directories
/// deep.
pub struct PathSoFar {
    file: Node,
    /// The directory, or the file itself, at which the path begins.
    top: u32,
    /// From its end.
    path: Vec<u8>,
    /// The inode to go on with, and the number of renames when it was found. It is there as long as nothing moves: a
    /// directory keeps those above it.
    at: Option<(u32, u64)>,
    beginnings: usize,
}

impl PathSoFar {
    const MOST_BEGINNINGS: usize = 8;

    /// Begins the path of a file.
    #[must_use]
    pub fn new(file: &Node) -> PathSoFar {
        PathSoFar { file: file.clone(), top: ROOT, path: Vec::new(), at: None, beginnings: 0 }
    }

    /// Makes the path begin at this node, which is above the file or the file itself: [`Error::NotFound`] if it is not.
    #[must_use]
    pub fn beginning_at(self, root: &Node) -> PathSoFar {
        PathSoFar { top: root.parts().1, ..self }
    }
}

/// A rename that is [made in parts](Filesystem::rename_in_parts): directories can be nested without end, and a rename
/// has to look at all that are above the two of its names.
pub struct RenameSoFar {
    /// Number of directories in one part of a walk. A rename makes at most three walks.
    directories: usize,
    /// Walks that took more than one part.
    walks: Vec<WalkUp>,
    /// Number of moves of directories before those walks.
    moves: u64,
    beginnings: usize,
}

/// A walk up from a directory that looks for another one.
struct WalkUp {
    wanted: u32,
    /// Holds the directories above it where they are, as long as nothing moves.
    from: Node,
    /// The directory to go on with.
    at: u32,
}

impl RenameSoFar {
    /// Number of moves of other directories after which a rename gives up.
    const MOST_BEGINNINGS: usize = 64;
    const MOST_WALKS: usize = 3;

    /// Begins a rename that looks at most at so many directories at once, and at least at one: three times.
    #[must_use]
    pub const fn new(directories: usize) -> RenameSoFar {
        RenameSoFar { directories, walks: Vec::new(), moves: 0, beginnings: 0 }
    }

    /// Begins a part. Returns the walks that are worth nothing any more, because a directory was moved.
    fn begin(&mut self, moves: u64) -> Result<Vec<WalkUp>, Error> {
        if self.walks.is_empty() || self.moves == moves {
            self.moves = moves;
            return Ok(Vec::new());
        }
        self.moves = moves;
        self.beginnings += 1;
        if self.beginnings > Self::MOST_BEGINNINGS { Err(Error::Busy) } else { Ok(core::mem::take(&mut self.walks)) }
    }

    /// Whether a file is a directory or one of those above it. Requires the rename lock.
    fn is_above(&mut self, wanted: u32, from: &Held<'_>) -> Result<bool, Error> {
        let shared = from.shared;
        let walk = self.walks.iter_mut().find(|walk| walk.wanted == wanted && walk.from.held().index == from.index);
        let mut at = walk.as_ref().map_or(from.index, |walk| walk.at);
        for _ in 0..self.directories.max(1) {
            if at == wanted {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            at = shared.inode(at).parent();
        }
        if let Some(walk) = walk {
            walk.at = at;
        } else if self.walks.len() == Self::MOST_WALKS {
            // The paths lead elsewhere now: this is as good as a move.
            self.moves = self.moves.wrapping_sub(1);
        } else {
            memory::reserve(&mut self.walks, 1)?;
            self.walks.push(WalkUp { wanted, from: Node::new(from), at });
        }
        Err(Error::Unfinished)
    }
}

/// Returns the name that an operation is about to make.
fn new_name<'position>(position: &'position Position<'_, '_>, is_directory: bool) -> Result<&'position [u8], Error> {
    let name = position.name().ok_or(Error::AlreadyExists)?;
    if position.is_found() {
        Err(Error::AlreadyExists)
    } else if position.has_trailing_slash && !is_directory {
        Err(Error::NotFound)
    } else {
        Ok(name)
    }
}

fn check_free(directory: &Directory, name: &[u8]) -> Result<(), Error> {
    if directory.is_removed {
        Err(Error::NotFound)
    } else if directory.find(name).is_some() {
        Err(Error::AlreadyExists)
    } else {
        Ok(())
    }
}

/// Makes a file under a new name of a directory, for a user.
pub(crate) fn create<'shared>(
    (parent, base): (&Held<'shared>, &Base<'_>),
    name: &[u8],
    recipe: &Recipe<'_>,
    permissions: u16,
    by: Maker<'_>,
) -> Result<Held<'shared>, Error> {
    let Maker { now, owner } = by;
    let shared = parent.shared;
    let content = match (shared.objects.get(), recipe) {
        (None, _) | (_, Recipe::Object(..)) => recipe.content()?,
        (Some(make), Recipe::File(_)) => make(owner).map(|(object, length)| Content::Object(object, length))?,
        (Some(_), _) => return Err(Error::NotPermitted),
    };
    let kind = content.kind();
    let inode = parent.inode();
    let mut guard = inode.exclusive();
    let directory = guard.directory_mut()?;
    check_free(directory, name)?;
    let _change = shared.change(base.part)?;
    let (above, subject) = (inode.ownership(), base.subject);
    rights::permit_creation(subject, above)?;
    let ownership = rights::of_new(subject, above, permissions, kind);
    let attributes = Attributes { ownership, accessed: now, modified: now, changed: now };
    let prepared = directory.prepare(&shared.quota, owner, name)?;
    let index = match shared.allocate(content, attributes, owner, parent.index) {
        Ok(index) => index,
        Err(error) => {
            Directory::forget(&shared.quota, prepared);
            return Err(error);
        }
    };
    // The inode was made with the entry's link and the returned handle.
    shared.inode(index).set_cursor(directory.insert(prepared, index, kind));
    if kind == FileKind::Directory {
        directory.subdirectories += 1;
        shared.add_handle(parent.index);
    }
    drop(guard);
    inode.touch(now);
    shared.tell_of_name(parent.index, name, event::CREATED, kind, 0);
    Ok(Held { shared, index, kind, is_covered: false })
}

/// A rename while its directories are locked: both ends, and the files that have the names.
struct Rename<'rename> {
    old: &'rename Position<'rename, 'rename>,
    old_name: &'rename [u8],
    new: &'rename Position<'rename, 'rename>,
    new_name: &'rename [u8],
    /// Inode and kind of the file that gets another name.
    source: (u32, FileKind),
    /// Inode and kind of the file that has this name already.
    target: Option<(u32, FileKind)>,
    replacement: Replacement,
    /// The user for whom it is made.
    subject: Option<&'rename Subject>,
}

impl Rename<'_> {
    /// Checks that the source may have the new name.
    fn check(&self, so_far: &mut RenameSoFar) -> Result<(), Error> {
        let Rename { old, new, source, target, replacement, .. } = *self;
        let source_is_directory = source.1 == FileKind::Directory;
        match (replacement, target) {
            (Replacement::Refuse, Some(_)) => return Err(Error::AlreadyExists),
            (Replacement::Exchange, None) => return Err(Error::NotFound),
            (Replacement::Exchange, Some((_, kind))) if kind != FileKind::Directory && new.has_trailing_slash => {
                return Err(Error::NotADirectory);
            }
            _ => {}
        }
        let new_slash_counts = replacement != Replacement::Exchange && new.has_trailing_slash;
        if !source_is_directory && (old.has_trailing_slash || new_slash_counts) {
            return Err(Error::NotADirectory);
        }
        // A directory must not become its own descendant.
        if source_is_directory && so_far.is_above(source.0, &new.directory)? {
            return Err(Error::InvalidArgument);
        }
        // A target above the source is not empty, and an exchange would put it below itself.
        if let Some((target, FileKind::Directory)) = target
            && so_far.is_above(target, &old.directory)?
        {
            return Err(match replacement {
                Replacement::Exchange => Error::InvalidArgument,
                Replacement::Replace | Replacement::Refuse => Error::DirectoryNotEmpty,
            });
        }
        // Two names of one file ask for nothing.
        if target.is_none_or(|target| target.0 != source.0) {
            self.check_rights()?;
        }
        match target {
            Some((_, kind)) if replacement != Replacement::Exchange => match (source_is_directory, kind) {
                (true, FileKind::Directory) => Ok(()),
                (true, _) => Err(Error::NotADirectory),
                (false, FileKind::Directory) => Err(Error::IsADirectory),
                (false, _) => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Checks that the user may do it.
    fn check_rights(&self) -> Result<(), Error> {
        let Rename { old, new, source, target, replacement, subject, .. } = *self;
        if subject.is_none() {
            return Ok(());
        }
        let shared = old.directory.shared;
        let ownership = |file: (u32, FileKind)| shared.inode(file.0).ownership();
        let (from, to) = (old.directory.inode().ownership(), new.directory.inode().ownership());
        rights::permit_removal(subject, from, ownership(source))?;
        match target {
            Some(target) => rights::permit_removal(subject, to, ownership(target))?,
            None => rights::permit_creation(subject, to)?,
        }
        if old.directory.index == new.directory.index {
            return Ok(());
        }
        // The `..` of a directory that comes into another one changes.
        if source.1 == FileKind::Directory {
            rights::permit(subject, ownership(source), WRITE)?;
        }
        match target.filter(|target| replacement == Replacement::Exchange && target.1 == FileKind::Directory) {
            Some(target) => rights::permit(subject, ownership(target), WRITE),
            None => Ok(()),
        }
    }
}

/// Locks of the two directories of a rename, which may be one.
struct Pair<'shared> {
    first: RwLockWriteGuard<'shared, Content>,
    second: Option<RwLockWriteGuard<'shared, Content>>,
    order: Order,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    OldFirst,
    NewFirst,
}

impl<'shared> Pair<'shared> {
    /// Locks an ancestor before its descendant, as all other operations do. Two directories of which neither is above
    /// the other are not locked together by any other task, because of the rename lock; any order will do for them.
    fn lock(
        shared: &'shared Shared,
        so_far: &mut RenameSoFar,
        old: &Held<'_>,
        new: &Held<'_>,
    ) -> Result<Pair<'shared>, Error> {
        let order = if so_far.is_above(new.index, old)? { Order::NewFirst } else { Order::OldFirst };
        let (old, new) = (old.index, new.index);
        let (first, second) = match order {
            Order::OldFirst => (old, new),
            Order::NewFirst => (new, old),
        };
        Ok(Pair {
            first: shared.inode(first).exclusive(),
            second: (first != second).then(|| shared.inode(second).exclusive()),
            order,
        })
    }

    fn source(&mut self) -> Result<&mut Directory, Error> {
        self.choose(Order::OldFirst)
    }

    fn destination(&mut self) -> Result<&mut Directory, Error> {
        self.choose(Order::NewFirst)
    }

    fn choose(&mut self, first: Order) -> Result<&mut Directory, Error> {
        match &mut self.second {
            Some(second) if self.order != first => second.directory_mut(),
            _ => self.first.directory_mut(),
        }
    }
}
