//! The inodes of one file system: storage, life time, and locks.
//!
//! An inode is found by its index. Directories store indices, and inode numbers are indices plus one. The table grows
//! by a block at a time, and now and then by a list of blocks; none of them ever moves. So an inode is reached without
//! a lock, growing is a short step for any number of inodes, and it can fail without harm. Free inodes are reused,
//! blocks are kept.
//!
//! # Life
//!
//! One word counts two kinds of references: **links**, the names of the inode, and **handles**, all other references
//! ([`Held`]: open files, current directories, a path resolution on its way, and the `..` of each subdirectory). Both
//! counts are in one word so that exactly one of several simultaneous releases sees the word become zero; that one
//! frees the inode. Afterwards it cannot be found: names and handles are the only ways to it.
//!
//! The word has one bit more: the inode is a directory **covered** by another file system's root. So a path resolution,
//! which takes a handle on each directory, learns from the same access that it has to go on elsewhere. And one bit says
//! that somebody [watches](crate::watch) the inode.
//!
//! A handle is taken only while a reference certainly exists that no other task can drop: while an entry with the index
//! is seen under its directory's lock, or while another handle is held. Memory orders: taking needs none, because of
//! that other reference; each release publishes its owner's accesses (`Release`) and the last one sees all of them
//! (`Acquire`) before it frees.
//!
//! # Access to the fields
//!
//! | field | read | written |
//! |---|---|---|
//! | `counts` | any time | as above |
//! | `parent` | under the directory's own lock, or the rename lock | under both, or before the inode is published |
//! | `parent` of a free inode: the next free one | under the lock of the free ones | under that lock |
//! | `attributes` | under its lock | under its lock |
//! | `content` | under its lock | under its lock; the variant changes only when the inode is made and freed |
//! | `share` | never | under its lock, when the inode is made and freed |

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use spin::{Mutex, Once, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::contents::{FileContents, Remains};
use crate::directory::Directory;
use crate::error::Error;
use crate::memory;
use crate::node::{DeviceNumber, FileKind, MeetingPlace, Part, Timestamp};
use crate::quota::{Owner, Quota, Share};
use crate::rights::Ownership;
use crate::watch::{Observer, event};
use crate::writers::Writers;

/// Index of the root directory. The root is made with the table and never freed.
pub(crate) const ROOT: u32 = 0;

const HANDLE: u64 = 1;
/// The bit of a covered directory, above the handles and the next bit, and below the links.
const COVERED: u64 = 1 << 47;
/// The bit of a watched file.
const WATCHED: u64 = 1 << 46;
const LINK: u64 = 1 << 48;

/// Maximum number of names: the 16 bits for them count further, with room for tasks that are about to hit the limit.
const MAX_LINKS: u64 = 65_000;

/// Inodes of a block, blocks of a list, and lists: for 32 million inodes.
const BLOCK: usize = 128;
const LIST: usize = 512;
const LISTS: usize = 512;

/// Number of inodes or names that are freed in one step of a tree that is dismantled.
const PIECE: usize = 32;

/// Stands for "no index".
const NONE: u32 = u32::MAX;

/// Charge for an inode, without its contents.
pub(crate) const INODE_COST: u64 = size_of::<Inode>() as u64;

/// Contents of an inode, guarded by its lock.
pub(crate) enum Content {
    /// None: the inode is free.
    Vacant,
    File(FileContents),
    Directory(Directory),
    SymbolicLink(Box<[u8]>),
    CharacterDevice(DeviceNumber),
    BlockDevice(DeviceNumber),
    /// A FIFO, with the value in which its openings meet, while there are any.
    Fifo(MeetingPlace),
    Socket,
    /// An object of the kernel that has the form of a regular file of this length.
    Object(Object, u64),
}

/// An object of the kernel that has a name.
pub type Object = Arc<dyn Any + Send + Sync>;

/// Makes an object for a name that a user makes as that of a regular file, with the length that the file is said to
/// have. The owner pays for it.
pub type MakeObject = fn(Option<&Arc<dyn Owner>>) -> Result<(Object, u64), Error>;

impl Content {
    pub(crate) fn kind(&self) -> FileKind {
        match self {
            Content::Vacant | Content::File(_) | Content::Object(..) => FileKind::Regular,
            Content::Directory(_) => FileKind::Directory,
            Content::SymbolicLink(_) => FileKind::SymbolicLink,
            Content::CharacterDevice(_) => FileKind::CharacterDevice,
            Content::BlockDevice(_) => FileKind::BlockDevice,
            Content::Fifo(_) => FileKind::Fifo,
            Content::Socket => FileKind::Socket,
        }
    }

    pub(crate) fn directory(&self) -> Result<&Directory, Error> {
        match self {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Error::NotADirectory),
        }
    }

    pub(crate) fn directory_mut(&mut self) -> Result<&mut Directory, Error> {
        match self {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Error::NotADirectory),
        }
    }

    pub(crate) fn file(&self) -> Result<&FileContents, Error> {
        match self {
            Content::File(file) => Ok(file),
            Content::Directory(_) => Err(Error::IsADirectory),
            _ => Err(Error::InvalidArgument),
        }
    }

    pub(crate) fn file_mut(&mut self) -> Result<&mut FileContents, Error> {
        match self {
            Content::File(file) => Ok(file),
            Content::Directory(_) => Err(Error::IsADirectory),
            _ => Err(Error::InvalidArgument),
        }
    }

    /// Returns the charge for the contents, to be refunded when the inode is freed.
    fn charged(&self) -> u64 {
        match self {
            Content::File(file) => file.charged(),
            Content::SymbolicLink(target) => target.len() as u64,
            // A directory is empty when it is freed.
            Content::Vacant | Content::Directory(_) | Content::Fifo(_) | Content::Socket => 0,
            Content::CharacterDevice(_) | Content::BlockDevice(_) | Content::Object(..) => 0,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) ownership: Ownership,
    pub(crate) accessed: Timestamp,
    pub(crate) modified: Timestamp,
    pub(crate) changed: Timestamp,
}

pub(crate) struct Inode {
    counts: AtomicU64,
    parent: AtomicU32,
    /// Cursor of the entry in the parent that has its name.
    cursor: AtomicU64,
    pub(crate) attributes: Mutex<Attributes>,
    content: RwLock<Content>,
    /// Those that write to it, or keep writers away: none when no node is left.
    pub(crate) writers: Writers,
    /// Charge to the owner that made the inode, without the pages of a file.
    share: Mutex<Option<Share>>,
}

impl Inode {
    fn vacant() -> Inode {
        Inode {
            counts: AtomicU64::new(0),
            parent: AtomicU32::new(ROOT),
            cursor: AtomicU64::new(0),
            attributes: Mutex::new(Attributes {
                ownership: Ownership::default(),
                accessed: Timestamp::default(),
                modified: Timestamp::default(),
                changed: Timestamp::default(),
            }),
            content: RwLock::new(Content::Vacant),
            writers: Writers::new(),
            share: Mutex::new(None),
        }
    }

    pub(crate) fn shared(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read()
    }

    /// Locks the contents for writing. Announces the writer first, which keeps new readers out: a stream of readers
    /// would otherwise hold it off for ever.
    pub(crate) fn exclusive(&self) -> RwLockWriteGuard<'_, Content> {
        self.content.upgradeable_read().upgrade()
    }

    pub(crate) fn links(&self) -> u32 {
        (self.counts.load(Ordering::Relaxed) / LINK) as u32
    }

    /// Whether the inode has no name, and one handle: it is freed with that.
    pub(crate) fn is_held_once(&self) -> bool {
        self.counts.load(Ordering::Relaxed) == HANDLE
    }

    /// Whether the root of a mount covers the file.
    pub(crate) fn is_covered(&self) -> bool {
        self.counts.load(Ordering::Relaxed) & COVERED != 0
    }

    /// Lets the root of a mount cover the file, unless it has been removed. Requires a handle, and the rename lock.
    pub(crate) fn cover(&self) -> Result<(), Error> {
        // Under the lock that removing a directory needs, too.
        let content = self.exclusive();
        if content.directory().is_ok_and(|directory| directory.is_removed) {
            return Err(Error::NotFound);
        }
        // The last name of another file goes in one change of this word.
        let cover = |counts: u64| (counts / LINK > 0).then_some(counts | COVERED);
        let covered = self.counts.try_update(Ordering::Relaxed, Ordering::Relaxed, cover);
        covered.map(|_| ()).map_err(|_| Error::NotFound)
    }

    /// Takes a link for a handle, as the first step of the end of a name. `Busy` if the file is covered.
    pub(crate) fn take_link(&self) -> Result<(), Error> {
        let take = |counts: u64| (counts & COVERED == 0).then(|| counts - LINK + HANDLE);
        let taken = self.counts.try_update(Ordering::AcqRel, Ordering::Relaxed, take);
        taken.map(|_| ()).map_err(|_| Error::Busy)
    }

    /// Ends what [`cover`](Self::cover) began. Requires a handle still, so that the inode is not freed meanwhile.
    pub(crate) fn uncover(&self) {
        self.counts.fetch_and(!COVERED, Ordering::Relaxed);
    }

    /// Whether the file is watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.counts.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Sets whether the file is watched; returns whether that is new.
    pub(crate) fn set_watched(&self, is_watched: bool) -> bool {
        match is_watched {
            true => self.counts.fetch_or(WATCHED, Ordering::Relaxed) & WATCHED == 0,
            false => self.counts.fetch_and(!WATCHED, Ordering::Relaxed) & WATCHED != 0,
        }
    }

    /// Marks an empty directory as removed: no entry can be made in it any more.
    pub(crate) fn mark_removed(&self) -> Result<(), Error> {
        let mut content = self.exclusive();
        let directory = content.directory_mut()?;
        if self.is_covered() {
            return Err(Error::Busy);
        }
        if !directory.is_empty() {
            return Err(Error::DirectoryNotEmpty);
        }
        directory.is_removed = true;
        Ok(())
    }

    /// Gives the inode another name, unless it has lost its last one or has too many.
    pub(crate) fn add_link(&self) -> Result<(), Error> {
        let mut counts = self.counts.load(Ordering::Relaxed);
        loop {
            if counts / LINK == 0 {
                return Err(Error::NotFound);
            }
            if counts / LINK >= MAX_LINKS {
                return Err(Error::TooManyLinks);
            }
            match self.counts.compare_exchange_weak(counts, counts + LINK, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => counts = now,
            }
        }
    }

    /// Returns the parent of this directory. See the table above for the locks required.
    pub(crate) fn parent(&self) -> u32 {
        self.parent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_parent(&self, parent: u32) {
        self.parent.store(parent, Ordering::Relaxed);
    }

    /// Returns the cursor of the entry in the parent with the name that it was made with, or that a rename gave it
    /// last. The locks required are those for the parent.
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor.load(Ordering::Relaxed)
    }

    pub(crate) fn set_cursor(&self, cursor: u64) {
        self.cursor.store(cursor, Ordering::Relaxed);
    }

    /// Returns its owner, group and permissions.
    pub(crate) fn ownership(&self) -> Ownership {
        self.attributes.lock().ownership
    }

    /// Records a change of the contents.
    pub(crate) fn touch(&self, now: Timestamp) {
        let mut attributes = self.attributes.lock();
        attributes.modified = now;
        attributes.changed = now;
    }

    /// Records a change of the attributes or the links.
    pub(crate) fn touch_attributes(&self, now: Timestamp) {
        self.attributes.lock().changed = now;
    }
}

/// The free inodes.
struct Free {
    /// First inode that was freed; each of them leads to the next, so freeing needs no memory.
    first: u32,
    /// Lowest index that was never in use.
    fresh: u32,
    in_use: u32,
}

type Block = Box<[Inode; BLOCK]>;
type List = Box<[Once<Block>; LIST]>;

/// Numbers by which work in parts notices that the tree has changed meanwhile.
#[derive(Default)]
pub(crate) struct Renames {
    /// Names that were given.
    pub(crate) names: u64,
    /// Directories that came into another one.
    pub(crate) moves: u64,
}

/// One file system's state; [`Held`] and the public types point to it.
pub(crate) struct Shared {
    lists: Box<[Once<List>; LISTS]>,
    free: Mutex<Free>,
    pub(crate) quota: Arc<Quota>,
    /// Pages of freed files, and freed trees: one for all trees that were made beside each other.
    pub(crate) remains: Arc<Remains>,
    /// Held by a rename.
    pub(crate) rename: Mutex<Renames>,
    /// Whether its root covers a directory of another tree, so that `..` and `/` lead out of it.
    pub(crate) is_below: bool,
    /// Makes the objects of a tree that has names of objects alone.
    pub(crate) objects: Once<MakeObject>,
    /// Work of one walk, in components. Relaxed: it says nothing about other memory.
    pub(crate) work_of_a_step: AtomicUsize,
    /// Number of changes under way and of files that are open for writing, or [`READ_ONLY`].
    writers: AtomicU32,
    /// Number of watched files. Relaxed: it only tells when nothing is to be looked for.
    pub(crate) watched: AtomicU32,
    /// The function that is told what happens to them.
    pub(crate) observer: Once<Observer>,
    /// The next tree to be dismantled.
    pub(crate) next_removed: Option<Arc<Shared>>,
    /// Charge for the memory that even an empty tree takes, to the owner that made it.
    _share: Option<Share>,
}

/// Stands for a tree that must not be changed, in the place of the number of those that change it.
const READ_ONLY: u32 = u32::MAX;

/// Bytes of an empty tree: the first block of inodes, and the lists that lead to it.
const EMPTY: usize = size_of::<Shared>()
    + size_of::<[Once<List>; LISTS]>()
    + size_of::<[Once<Block>; LIST]>()
    + BLOCK * size_of::<Inode>();

impl Shared {
    /// Fails with [`Error::NotPermitted`] for a tree that has objects alone.
    pub(crate) fn permit_other_than_objects(&self) -> Result<(), Error> {
        if self.objects.get().is_some() { Err(Error::NotPermitted) } else { Ok(()) }
    }

    pub(crate) fn new(
        limit: u64,
        remains: Arc<Remains>,
        is_below: bool,
        owner: Option<&Arc<dyn Owner>>,
    ) -> Result<Shared, Error> {
        let shared = Shared {
            _share: Share::of(owner, EMPTY as u64)?,
            lists: memory::array(Once::new)?,
            free: Mutex::new(Free { first: NONE, fresh: 0, in_use: 0 }),
            quota: Arc::new(Quota::new(limit)),
            remains,
            rename: Mutex::new(Renames::default()),
            is_below,
            objects: Once::new(),
            work_of_a_step: AtomicUsize::new(usize::MAX),
            writers: AtomicU32::new(0),
            watched: AtomicU32::new(0),
            observer: Once::new(),
            next_removed: None,
        };
        let root = shared.allocate(
            Content::Directory(Directory::new()),
            Attributes {
                ownership: Ownership { permissions: 0o755, ..Ownership::default() },
                accessed: Timestamp::default(),
                modified: Timestamp::default(),
                changed: Timestamp::default(),
            },
            None,
            ROOT,
        )?;
        // The link and the handle it was made with are never released.
        debug_assert_eq!(root, ROOT);
        Ok(shared)
    }

    /// Whether the tree must not be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.writers.load(Ordering::Relaxed) == READ_ONLY
    }

    /// Forbids or permits changes. `Busy` if one is under way, or if a file is open for writing.
    pub(crate) fn set_read_only(&self, read_only: bool) -> Result<(), Error> {
        let (from, to) = if read_only { (0, READ_ONLY) } else { (READ_ONLY, 0) };
        match self.writers.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed) {
            Err(found) if found != READ_ONLY && read_only => Err(Error::Busy),
            // It is so already.
            _ => Ok(()),
        }
    }

    /// Begins a change; paired with [`end_change`](Self::end_change).
    pub(crate) fn begin_change(&self) -> Result<(), Error> {
        // Acquire: what a writer does comes behind it, and in front of the release at its end. The addition overflows
        // for `READ_ONLY` alone: so many files do not fit into memory.
        self.writers
            .try_update(Ordering::Acquire, Ordering::Relaxed, |writers| writers.checked_add(1))
            .map(|_| ())
            .map_err(|_| Error::ReadOnly)
    }

    /// Ends a change.
    pub(crate) fn end_change(&self) {
        self.writers.fetch_sub(1, Ordering::Release);
    }

    /// Begins a change by a mount that shows this part, which ends when the result is dropped.
    pub(crate) fn change(&self, part: Part<'_>) -> Result<Change<'_>, Error> {
        if part.is_read_only {
            return Err(Error::ReadOnly);
        }
        self.begin_change()?;
        Ok(Change(self))
    }

    pub(crate) fn inode(&self, index: u32) -> &Inode {
        let (list, block, place) = locate(index);
        match self.lists[list].get().and_then(|list| list[block].get()) {
            Some(block) => &block[place],
            None => unreachable!("an index is given out after its block was made"),
        }
    }

    /// Returns the number of inodes in use.
    pub(crate) fn in_use(&self) -> u64 {
        self.free.lock().in_use.into()
    }

    /// Makes an inode with one link and one handle.
    pub(crate) fn allocate(
        &self,
        content: Content,
        attributes: Attributes,
        owner: Option<&Arc<dyn Owner>>,
        parent: u32,
    ) -> Result<u32, Error> {
        let extra = content.charged();
        let share = Share::of(owner, INODE_COST + extra)?;
        self.quota.charge(INODE_COST + extra)?;
        let index = match self.take_free() {
            Ok(index) => index,
            Err(error) => {
                self.quota.refund(INODE_COST + extra);
                return Err(error);
            }
        };
        let inode = self.inode(index);
        inode.set_parent(parent);
        *inode.attributes.lock() = attributes;
        *inode.exclusive() = content;
        *inode.share.lock() = share;
        inode.counts.store(LINK + HANDLE, Ordering::Relaxed);
        Ok(index)
    }

    fn take_free(&self) -> Result<u32, Error> {
        let mut free = self.free.lock();
        let index = if free.first == NONE {
            let fresh = free.fresh;
            if (fresh as usize).is_multiple_of(BLOCK) {
                self.grow(fresh)?;
            }
            free.fresh += 1;
            fresh
        } else {
            let first = free.first;
            free.first = self.inode(first).parent();
            first
        };
        free.in_use += 1;
        Ok(index)
    }

    fn give_back(&self, index: u32) {
        let mut free = self.free.lock();
        self.inode(index).set_parent(core::mem::replace(&mut free.first, index));
        free.in_use -= 1;
    }

    /// Makes the block that begins with this index.
    fn grow(&self, first: u32) -> Result<(), Error> {
        let (list, block, _) = locate(first);
        let list = self.lists.get(list).ok_or(Error::NoSpace)?;
        let list = list.try_call_once(|| memory::array(Once::new))?;
        list[block].try_call_once(|| memory::array(Inode::vacant))?;
        Ok(())
    }

    /// Takes a handle; the caller must hold a reference meanwhile.
    ///
    /// Returns whether it is covered.
    pub(crate) fn add_handle(&self, index: u32) -> bool {
        self.inode(index).counts.fetch_add(HANDLE, Ordering::Relaxed) & COVERED != 0
    }

    pub(crate) fn release_handle(&self, index: u32) {
        self.release(index, HANDLE);
    }

    pub(crate) fn release_link(&self, index: u32) {
        self.release(index, LINK);
    }

    #[inline]
    fn release(&self, index: u32, amount: u64) {
        let before = self.inode(index).counts.fetch_sub(amount, Ordering::AcqRel);
        // Mostly others still hold it.
        if before & WATCHED != 0 || before == amount {
            self.released(index, before, amount);
        }
    }

    /// Looks what is left of an inode that was released, whose counts were `before`.
    #[cold]
    #[inline(never)]
    fn released(&self, index: u32, before: u64, mut amount: u64) {
        let mut next = Some((index, before));
        // Freeing a directory releases its parent: a loop, because a removed chain of directories can be long.
        while let Some((index, before)) = next.take() {
            let inode = self.inode(index);
            if before & WATCHED != 0 && (before - amount) & !(WATCHED | COVERED) == HANDLE {
                // Nothing is left but the handle of those who watch.
                let kind = inode.shared().kind();
                self.tell_itself(index, event::SELF_DELETED, kind);
            }
            if before == amount {
                let content = core::mem::replace(&mut *inode.exclusive(), Content::Vacant);
                if let Content::Directory(_) = content {
                    let parent = inode.parent();
                    amount = HANDLE;
                    next = Some((parent, self.inode(parent).counts.fetch_sub(amount, Ordering::AcqRel)));
                }
                match content {
                    Content::File(file) => {
                        self.quota.refund(INODE_COST);
                        file.free(&self.quota, &self.remains);
                    }
                    content => {
                        self.quota.refund(INODE_COST + content.charged());
                        drop(content);
                    }
                }
                drop(inode.share.lock().take());
                self.give_back(index);
            }
        }
    }

    /// Frees a piece of a tree to which nothing refers, from its last inode down; returns whether there is more.
    pub(crate) fn dismantle(&mut self) -> bool {
        for _ in 0..PIECE {
            let fresh = &mut self.free.get_mut().fresh;
            let Some(index) = fresh.checked_sub(1) else { return false };
            let (list, block, place) = locate(index);
            let Some(blocks) = self.lists[list].get_mut() else { return false };
            let Some(inode) = blocks[block].get_mut().map(|inodes| &mut inodes[place]) else { return false };
            let content = inode.content.get_mut();
            if let Content::Directory(directory) = content
                && directory.free_last()
            {
                continue;
            }
            let content = core::mem::replace(content, Content::Vacant);
            drop(inode.share.get_mut().take());
            *fresh = index;
            if place == 0 {
                blocks[block] = Once::new();
                if block == 0 {
                    self.lists[list] = Once::new();
                }
            }
            if let Content::File(file) = content {
                // Some pages may go with it.
                file.free(&self.quota, &self.remains);
                return true;
            }
        }
        true
    }
}

/// A change of the tree, under way until this is dropped.
pub(crate) struct Change<'shared>(&'shared Shared);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.end_change();
    }
}

/// Returns the place of an inode: the list, the block in it, and the place in that.
fn locate(index: u32) -> (usize, usize, usize) {
    let index = index as usize;
    (index / (BLOCK * LIST), index / BLOCK % LIST, index % BLOCK)
}

/// A handle: keeps an inode from being freed.
pub(crate) struct Held<'shared> {
    pub(crate) shared: &'shared Arc<Shared>,
    pub(crate) index: u32,
    pub(crate) kind: FileKind,
    /// Whether the root of a mount covered the file when the handle was taken.
    pub(crate) is_covered: bool,
}

impl<'shared> Held<'shared> {
    /// Takes a handle; the caller must hold a reference meanwhile.
    pub(crate) fn take(shared: &'shared Arc<Shared>, index: u32, kind: FileKind) -> Held<'shared> {
        let is_covered = shared.add_handle(index);
        Held { shared, index, kind, is_covered }
    }

    pub(crate) fn root(shared: &'shared Arc<Shared>) -> Held<'shared> {
        Held::take(shared, ROOT, FileKind::Directory)
    }

    pub(crate) fn inode(&self) -> &'shared Inode {
        self.shared.inode(self.index)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shared.release_handle(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_dense_and_found_again() {
        let places = (0..300_000).map(locate);
        assert!(
            places.eq((0..5)
                .flat_map(|list| { (0..LIST).flat_map(move |block| (0..BLOCK).map(move |place| (list, block, place))) })
                .take(300_000))
        );
    }
}
