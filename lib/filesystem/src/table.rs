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
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spin::{Mutex, Once, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::contents::{FileContents, Remains};
use crate::directory::Directory;
use crate::error::Error;
use crate::memory;
use crate::node::{DeviceNumber, FileKind, Timestamp};
use crate::quota::{Owner, Quota, Share};

/// Index of the root directory. The root is made with the table and never freed.
pub(crate) const ROOT: u32 = 0;

const HANDLE: u64 = 1;
const LINK: u64 = 1 << 48;

/// Maximum number of names: the 16 bits for them count further, with room for tasks that are about to hit the limit.
const MAX_LINKS: u64 = 65_000;

/// Inodes of a block, blocks of a list, and lists: for 32 million inodes.
const BLOCK: usize = 128;
const LIST: usize = 512;
const LISTS: usize = 512;

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
    Device(DeviceNumber),
}

impl Content {
    pub(crate) fn kind(&self) -> FileKind {
        match self {
            Content::Vacant | Content::File(_) => FileKind::Regular,
            Content::Directory(_) => FileKind::Directory,
            Content::SymbolicLink(_) => FileKind::SymbolicLink,
            Content::Device(_) => FileKind::CharacterDevice,
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
            Content::Vacant | Content::Directory(_) | Content::Device(_) => 0,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) permissions: u16,
    pub(crate) accessed: Timestamp,
    pub(crate) modified: Timestamp,
    pub(crate) changed: Timestamp,
}

pub(crate) struct Inode {
    counts: AtomicU64,
    parent: AtomicU32,
    pub(crate) attributes: Mutex<Attributes>,
    content: RwLock<Content>,
    /// Charge to the owner that made the inode, without the pages of a file.
    share: Mutex<Option<Share>>,
}

impl Inode {
    fn vacant() -> Inode {
        Inode {
            counts: AtomicU64::new(0),
            parent: AtomicU32::new(ROOT),
            attributes: Mutex::new(Attributes {
                permissions: 0,
                accessed: Timestamp::default(),
                modified: Timestamp::default(),
                changed: Timestamp::default(),
            }),
            content: RwLock::new(Content::Vacant),
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

/// One file system's state; [`Held`] and the public types point to it.
pub(crate) struct Shared {
    lists: Box<[Once<List>; LISTS]>,
    free: Mutex<Free>,
    pub(crate) quota: Quota,
    /// Pages of freed files.
    pub(crate) remains: Remains,
    pub(crate) rename: Mutex<()>,
}

impl Shared {
    pub(crate) fn new(limit: u64) -> Result<Shared, Error> {
        let shared = Shared {
            lists: memory::array(Once::new)?,
            free: Mutex::new(Free { first: NONE, fresh: 0, in_use: 0 }),
            quota: Quota::new(limit),
            remains: Remains::default(),
            rename: Mutex::new(()),
        };
        let root = shared.allocate(
            Content::Directory(Directory::new()),
            Attributes {
                permissions: 0o755,
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
    pub(crate) fn add_handle(&self, index: u32) {
        self.inode(index).counts.fetch_add(HANDLE, Ordering::Relaxed);
    }

    pub(crate) fn release_handle(&self, index: u32) {
        self.release(index, HANDLE);
    }

    pub(crate) fn release_link(&self, index: u32) {
        self.release(index, LINK);
    }

    fn release(&self, index: u32, mut amount: u64) {
        let mut next = Some(index);
        // Freeing a directory releases its parent: a loop, because a removed chain of directories can be long.
        while let Some(index) = next.take() {
            let inode = self.inode(index);
            if inode.counts.fetch_sub(amount, Ordering::AcqRel) == amount {
                let content = core::mem::replace(&mut *inode.exclusive(), Content::Vacant);
                if let Content::Directory(_) = content {
                    next = Some(inode.parent());
                    amount = HANDLE;
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

    /// Whether `inode` is `directory` or one of the directories above it. Requires the rename lock.
    pub(crate) fn is_above(&self, inode: u32, mut directory: u32) -> bool {
        loop {
            if directory == inode {
                return true;
            }
            if directory == ROOT {
                return false;
            }
            directory = self.inode(directory).parent();
        }
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
}

impl<'shared> Held<'shared> {
    /// Takes a handle; the caller must hold a reference meanwhile.
    pub(crate) fn take(shared: &'shared Arc<Shared>, index: u32, kind: FileKind) -> Held<'shared> {
        shared.add_handle(index);
        Held { shared, index, kind }
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
