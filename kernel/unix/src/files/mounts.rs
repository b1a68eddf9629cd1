//! The table of mounts: the file systems, the directories that they cover, and paths that lead through several of them.
//!
//! A path operation belongs to one file system, which follows the path as far as it goes. A directory that the root of
//! another file system covers is marked in its inode, and the walk meets the mark with the access that it makes anyhow
//! ([`filesystem::Error::Crossing`]). Only then is the table looked at: [`Path`] asks how far the path went, goes on to
//! the other file system, and tries again there. So a path that stays in its file system costs nothing for the others,
//! however many there are. A walk that opens or finds a file notes where it was left; other paths that cross are
//! followed twice up to each crossing.
//!
//! # Mounts and file systems
//! A mount shows the files of a file system from a root on: that of the file system, or, in a bind, any other directory
//! or file of it ([`binds`]). Several mounts can show one file system, so a file may be covered in one and not in
//! another; the mark in its inode stands for all of them. A mount has flags of its own, and what is done by it obeys
//! both these and those of its file system.
//!
//! # Uses of a mount
//! A [`Place`] is a file with its mount: working directories and open files hold one, and a mount holds the place that
//! it covers. The count of these references tells whether a mount is in use. A mount that was detached lives until the
//! last of them goes; its files become remains then, which are freed in steps
//! ([`remains`](crate::files::remains)).
//!
//! # The root of all paths
//! Paths begin in the first file system, which the archive has filled, or in that of a disk
//! ([`root`](crate::files::root)). Then no path leads to the first one, and the devices have a tree of their own.
//!
//! # Adding a file system
//! One more [`Kind`] in [`KINDS`], with the function that makes such a tree, or another [`Node`].
//!
//! Rejected: a table of mounts by path, compared as text. A directory above a mount may be renamed, and the same
//! directory has many paths.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi_queue::pages::PAGE_SIZE;
use abi_unix::Errno;
use abi_unix::types::mounting::{self, flag};
use filesystem::rights::{self, EXECUTE, Subject};
use filesystem::{
    Access, Base, Contents, Creation, Departure, Error, Expect, FileKind, Filesystem, LastComponent, LastLink,
    MAX_SYMBOLIC_LINKS, Metadata, OpenOptions, Owner, Part, PathSoFar, WayOn,
};
use spin::{Mutex, Once, RwLock, RwLockWriteGuard};

use crate::files::disk;
use crate::files::file::OpenFile;
use crate::files::generated::{self, Entry, Walked};
use crate::files::host_folder;
use crate::files::message_queue;
use crate::files::tree::{errno_of, made_by};
use crate::files::volume::{
    MEMORY_OF_A_NODE, MountedVolume, PathOnVolume, Source, VolumeAnswer, VolumeNode, VolumeRequest, VolumeSubmission,
};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::identity::{self, Whom};
use crate::process::user::LONGEST_PATH;
use crate::scheduling::steps::{self, Ends};

pub(crate) mod binds;

/// The largest number of mounts at a time; `ENOSPC` for more.
const MOST: usize = 64;

/// Number of components of a path that are followed in a step, and of times that it leads from one file system to
/// another in a step. An operation on two paths follows each of them up to three times.
pub(crate) const COMPONENTS_OF_A_STEP: usize = 14;
const CROSSINGS_OF_A_STEP: usize = 6;

/// Share of the machine's memory that a tree may take, as with Linux's tmpfs: the machine's divided by this.
const MEMORY_SHARE: usize = 2;

/// Flags of a mount that can be changed, and that hold for the whole mount.
const FLAGS: u32 = flag::READ_ONLY | flag::NO_SET_USER | flag::NO_DEVICES | flag::NO_EXECUTION;

/// A kind of file system.
pub(crate) struct Kind {
    /// Its name, for `mount`.
    pub name: &'static [u8],
    /// Its number in `statfs`.
    pub magic: u64,
    /// Makes its tree; `None` for generated files.
    make: Option<MakeTree>,
}

/// A function that makes a tree with these options, which its owner pays for.
type MakeTree = fn(&Options, &Arc<dyn Owner>) -> Result<Filesystem, Error>;

/// Files in memory.
const TMPFS: Kind = Kind {
    name: b"tmpfs",
    magic: mounting::TMPFS_MAGIC,
    make: Some(|options, owner| {
        let tree = top().tree().beside(options.size.unwrap_or_else(default_size), Some(owner))?;
        if let Some(permissions) = options.permissions {
            tree.root().set_permissions(permissions, crate::files::tree::now());
        }
        Ok(tree)
    }),
};

/// Generated files that tell about processes and the machine.
const PROC: Kind = Kind { name: b"proc", magic: mounting::PROC_MAGIC, make: None };

/// Queues of messages by their names. All mounts of it show the same.
const MQUEUE: Kind = Kind { name: b"mqueue", magic: mounting::MQUEUE_MAGIC, make: None };

/// The nodes of devices, where they have a tree of their own. The machine mounts it; programs cannot.
const DEVTMPFS: Kind = Kind { name: b"devtmpfs", magic: mounting::TMPFS_MAGIC, make: None };

/// Volumes on disks, as Linux has them.
const EXT4: Kind = Kind { name: b"ext4", magic: mounting::EXT4_MAGIC, make: None };

/// Folders of the host.
const HOST: Kind = Kind { name: b"9p", magic: mounting::HOST_MAGIC, make: None };

/// The kinds of file systems.
const KINDS: &[&Kind] = &[&TMPFS, &PROC, &MQUEUE, &EXT4, &HOST];

/// Returns the size of a tree for which none was chosen.
pub(crate) fn default_size() -> u64 {
    (memory::frames::statistics().total / MEMORY_SHARE * PAGE_SIZE) as u64
}

/// Returns the size of the first file system: as [`default_size`], of the memory that is left when it is made.
pub(crate) fn size_of_the_first() -> u64 {
    (memory::frames::free_frames() / MEMORY_SHARE * PAGE_SIZE) as u64
}

/// Options of a file system, as the text of `mount` names them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `size`: the limit of its memory, in bytes.
    size: Option<u64>,
    /// `mode`: the permissions of its root.
    permissions: Option<u16>,
}

impl Options {
    /// Reads a text of options with commas between them. `EINVAL` for one that no file system here has.
    pub(crate) fn parse(text: &[u8]) -> Result<Options, Errno> {
        let mut options = Options::default();
        for option in text.split(|byte| *byte == b',').filter(|option| !option.is_empty()) {
            let option = core::str::from_utf8(option).map_err(|_| Errno::EINVAL)?;
            match option.split_once('=') {
                Some(("size", size)) => options.size = Some(parse_size(size)?),
                Some(("mode", mode)) => {
                    let mode = u16::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777);
                    options.permissions = Some(mode.ok_or(Errno::EINVAL)?);
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(options)
    }
}

/// Limit of a tree that has none.
const NO_LIMIT: u64 = i64::MAX as u64;

/// Reads a size: bytes, or with a letter thousands, millions or billions of them (each 1,024 times the last), or a
/// percentage of the machine's memory. It is rounded up to whole pages; 0 is no limit.
fn parse_size(text: &str) -> Result<u64, Errno> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, unit) = text.split_at(digits);
    let number: u64 = digits.parse().map_err(|_| Errno::EINVAL)?;
    let total = (memory::frames::statistics().total * PAGE_SIZE) as u64;
    let size = match unit {
        "" => Some(number),
        "k" | "K" => number.checked_mul(1 << 10),
        "m" | "M" => number.checked_mul(1 << 20),
        "g" | "G" => number.checked_mul(1 << 30),
        "%" => number.checked_mul(total / 100),
        _ => None,
    };
    if size == Some(0) {
        return Ok(NO_LIMIT);
    }
    size.and_then(|size| size.checked_next_multiple_of(PAGE_SIZE as u64)).ok_or(Errno::EINVAL)
}

/// Place of the root in the order of mounts.
const ORDER_OF_ROOT: u64 = 1;

/// Numbers of mounts that are in use, as bits. Number 0 is that of the first one.
static MOUNTS: AtomicU64 = AtomicU64::new(0);

/// Numbers of file systems that are in use, likewise.
static FILE_SYSTEMS: AtomicU64 = AtomicU64::new(0);

/// The number of a mount or of a file system, which no other has at the same time.
struct Number {
    number: u32,
    of: &'static AtomicU64,
}

impl Number {
    /// Takes the lowest number. `ENOSPC` if there is none.
    fn take(of: &'static AtomicU64) -> Result<Number, Errno> {
        const { assert!(MOST <= u64::BITS as usize) };
        let first = |numbers: u64| (!numbers).trailing_zeros();
        of.try_update(Ordering::Relaxed, Ordering::Relaxed, |numbers| {
            ((first(numbers) as usize) < MOST).then(|| numbers | 1 << first(numbers))
        })
        .map(|numbers| Number { number: first(numbers), of })
        .map_err(|_| Errno::ENOSPC)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.of.fetch_and(!(1 << self.number), Ordering::Relaxed);
    }
}

/// A file system that mounts show.
#[doc(alias = "super_block")]
struct MountedFiles {
    number: Number,
    kind: &'static Kind,
    /// `None` for other than stored files, and from the beginning of its drop on.
    tree: Option<Filesystem>,
    /// The volume, with its root directory, for files on a disk.
    volume: Option<VolumeNode>,
    /// The text that `mount` had as source.
    source: Vec<u8>,
}

/// A file system, or a part of one, in its place.
// The order of the fields matters: a tree that is given up has no nodes.
#[doc(alias = "vfsmount")]
pub(crate) struct Mount {
    /// The directory, or the file, that is seen in its place.
    root: Node,
    files: Arc<MountedFiles>,
    number: Number,
    /// Its place in the order in which mounts were put into the table.
    order: AtomicU64,
    /// The covered file; `None` for the first file system, and when the mount has been taken from the table.
    covers: Mutex<Option<Place>>,
    /// [`FLAGS`], but for the one in `writers`.
    flags: AtomicU32,
    /// Number of files that were opened for writing by it, or [`NO_WRITERS`].
    writers: AtomicU32,
    _charge: Option<Charge>,
}

/// Stands for a mount by which nothing is changed, in the place of the number of its writers.
const NO_WRITERS: u32 = u32::MAX;

/// A file of any file system.
#[derive(Clone, PartialEq)]
pub(crate) enum Node {
    /// A file in memory.
    Stored(filesystem::Node),
    /// A generated one.
    Generated(Entry),
    /// One on a disk.
    OnVolume(VolumeNode),
}

impl Node {
    /// Returns the kind of the file.
    pub(crate) fn kind(&self) -> FileKind {
        match self {
            Node::Stored(node) => node.kind(),
            Node::Generated(entry) => entry.kind(),
            Node::OnVolume(node) => node.kind(),
        }
    }

    /// Returns the metadata.
    pub(crate) fn metadata(&self) -> Metadata {
        match self {
            Node::Stored(node) => node.metadata(),
            Node::Generated(entry) => entry.metadata(),
            Node::OnVolume(node) => node.metadata(),
        }
    }

    /// Returns the file in memory, if it is one.
    pub(crate) fn stored(&self) -> Option<&filesystem::Node> {
        match self {
            Node::Stored(node) => Some(node),
            Node::Generated(_) | Node::OnVolume(_) => None,
        }
    }

    /// Whether the root of a mount covers the file, seen by this mount or by another one of its file system.
    fn is_covered(&self) -> bool {
        match self {
            Node::Stored(node) => node.is_covered(),
            Node::Generated(_) => false,
            Node::OnVolume(node) => node.is_covered(),
        }
    }

    /// Lets the root of a mount cover the file. `EINVAL` for a generated one.
    fn cover(&self) -> Result<(), Errno> {
        match self {
            Node::Stored(node) => node.cover().map_err(errno_of),
            Node::Generated(_) => Err(Errno::EINVAL),
            Node::OnVolume(node) => node.cover(),
        }
    }

    /// Ends what [`cover`](Self::cover) began, when no mount covers the file any more.
    fn uncover(&self) {
        match self {
            Node::Stored(node) => node.uncover(),
            Node::Generated(_) => {}
            Node::OnVolume(node) => node.uncover(),
        }
    }

    /// Returns the path in its file system, for a list of mounts.
    fn own_path(&self, files: &MountedFiles) -> Result<Vec<u8>, Errno> {
        let mut path = match (self, &files.tree) {
            (Node::Stored(node), Some(tree)) => tree.path_of(node).map_err(errno_of)?,
            (Node::Stored(_), None) => return Err(Errno::ENOENT),
            (Node::Generated(entry), _) => entry.path_from(generated::TOP)?,
            (Node::OnVolume(node), _) => {
                let mut making = PathOnVolume::new(node);
                loop {
                    if let Some(path) = making.extend(usize::MAX)? {
                        break path;
                    }
                }
            }
        };
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }
}

/// A file that was opened.
pub(crate) enum Opened {
    /// A file in memory.
    Stored(filesystem::OpenFile, Arc<Mount>),
    /// A generated one.
    Generated(Entry, Arc<Mount>),
    /// One on a disk, and whether it was cut off.
    OnVolume { node: VolumeNode, mount: Arc<Mount>, is_cut: bool },
    /// A file that was open already.
    Same(Arc<OpenFile>),
}

/// A file and its mount.
// The order of the fields matters: a tree that is given up has no nodes.
#[doc(alias = "struct path")]
#[derive(Clone)]
pub(crate) struct Place {
    /// The file.
    pub node: Node,
    /// The mount.
    pub mount: Arc<Mount>,
}

impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        Arc::ptr_eq(&self.mount, &other.mount) && self.node == other.node
    }
}

static TOP: Once<Arc<Mount>> = Once::new();

/// The mount in which all paths begin, if it is not the first one.
static ROOT: Once<Arc<Mount>> = Once::new();

/// All mounts but the first, in the order in which they were made, with room for [`MOST`].
static TABLE: RwLock<Vec<Arc<Mount>>> = RwLock::new(Vec::new());

/// Locks the table for a change. Announces the writer first, which keeps new readers out: a stream of readers would
/// otherwise hold it off for ever.
fn exclusive() -> RwLockWriteGuard<'static, Vec<Arc<Mount>>> {
    TABLE.upgradeable_read().upgrade()
}

/// Begins with the first file system.
pub(crate) fn start(tree: Filesystem) -> Result<(), &'static str> {
    let room = exclusive().try_reserve_exact(MOST);
    room.map_err(|_| "there is no memory for the table of mounts")?;
    let mount = Mount::new(&TMPFS, Files::Stored(tree), (b"rootfs".to_vec(), None));
    let mount = mount.map_err(|_| "the table of mounts is not empty")?;
    TOP.call_once(|| mount);
    begin_queues().map_err(|_| "there is no memory for the names of queues")
}

/// Returns the mount of the first file system.
pub(crate) fn top() -> &'static Arc<Mount> {
    TOP.get().expect("the first file system is there before any process")
}

/// Returns the mount in which all paths begin.
fn root_mount() -> &'static Arc<Mount> {
    ROOT.get().unwrap_or_else(|| top())
}

/// Returns the root of all paths.
pub(crate) fn root() -> Place {
    root_mount().root()
}

/// Has all paths begin in a volume from now on, before there is a process.
pub(crate) fn begin_in_volume(root: VolumeNode, source: &[u8]) -> Result<(), Errno> {
    let mount = Mount::new(&EXT4, Files::OnVolume(root), (source.to_vec(), None))?;
    ROOT.call_once(|| mount);
    Ok(())
}

impl Mount {
    /// Returns its tree, for a mount with stored files.
    pub(crate) fn tree(&self) -> &Filesystem {
        self.files.tree.as_ref().expect("stored files have a tree, which goes when the last mount does")
    }

    /// Returns its root.
    pub(crate) fn root(self: &Arc<Mount>) -> Place {
        Place { node: self.root.clone(), mount: self.clone() }
    }

    /// Returns the part of its tree that it shows, for paths.
    #[inline(always)]
    fn part(&self) -> Part<'_> {
        let root = match &self.root {
            // Paths leave every tree but the first one, in the mount in which it was made.
            Node::Stored(root) if self.number.number != 0 => Some(root),
            _ => None,
        };
        Part { root, is_read_only: self.has_no_writers() }
    }

    /// Whether nothing is changed by this mount, though perhaps by others of its file system.
    #[inline(always)]
    fn has_no_writers(&self) -> bool {
        self.writers.load(Ordering::Relaxed) == NO_WRITERS
    }

    /// Whether it must not be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.has_no_writers() || self.files.are_read_only()
    }

    /// Counts a file that was opened for writing; paired with [`end_writing`](Self::end_writing). `EROFS`.
    pub(crate) fn begin_writing(&self) -> Result<(), Errno> {
        // The addition overflows for `NO_WRITERS` alone: so many files do not fit into memory.
        let begin = |writers: u32| writers.checked_add(1);
        self.writers.try_update(Ordering::Acquire, Ordering::Relaxed, begin).map(|_| ()).map_err(|_| Errno::EROFS)
    }

    /// Ends what [`begin_writing`](Self::begin_writing) began.
    pub(crate) fn end_writing(&self) {
        self.writers.fetch_sub(1, Ordering::Release);
    }

    /// Sets the flags of the mount alone. `EBUSY` to make it read-only while a file is open for writing by it.
    fn set_own_flags(&self, flags: u32) -> Result<(), Errno> {
        let (from, to) = if flags & flag::READ_ONLY != 0 { (0, NO_WRITERS) } else { (NO_WRITERS, 0) };
        match self.writers.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed) {
            Err(found) if found != NO_WRITERS && to == NO_WRITERS => return Err(Errno::EBUSY),
            // It is so already.
            _ => {}
        }
        // Files of the host have owners of the host.
        let always = if is_host(self.files.kind.name) { flag::NO_SET_USER } else { 0 };
        self.flags.store(flags & FLAGS & !flag::READ_ONLY | always, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the flags of the mount alone.
    fn own_flags(&self) -> u32 {
        let read_only = if self.has_no_writers() { flag::READ_ONLY } else { 0 };
        self.flags.load(Ordering::Relaxed) | read_only
    }

    /// Returns a line about it, for `mounts` and for `mountinfo`.
    pub(crate) fn describe(self: &Arc<Mount>, with_numbers: bool) -> Result<Vec<u8>, Errno> {
        let above = self.covers.lock().clone();
        let path = match &above {
            Some(place) => place.path()?,
            None => b"/".to_vec(),
        };
        let source = if self.files.source.is_empty() { b"none" } else { &self.files.source[..] };
        let flags = if with_numbers { self.own_flags() } else { self.flags() };
        let mut options = if flags & flag::READ_ONLY != 0 { String::from("ro") } else { String::from("rw") };
        for (flag, name) in [(flag::NO_SET_USER, "nosuid"), (flag::NO_DEVICES, "nodev"), (flag::NO_EXECUTION, "noexec")]
        {
            if flags & flag != 0 {
                options.push(',');
                options.push_str(name);
            }
        }
        // Times of access are never updated.
        options.push_str(",noatime");
        let size = self.sized_tree().map(|tree| tree.usage().limit / 1024);
        let size = size.map_or_else(String::new, |size| format!(",size={size}k"));
        let kind = core::str::from_utf8(self.files.kind.name).unwrap_or_default();
        let mut line = Vec::new();
        if with_numbers {
            let number = |mount: &Mount| mount.number.number + 1;
            let parent = above.map_or(0, |place| number(&place.mount));
            line.extend_from_slice(format!("{} {parent} 0:{} ", number(self), self.device()).as_bytes());
            let root = match self.root.own_path(&self.files) {
                Err(Errno::ENOENT) => b"//deleted".to_vec(),
                root => root?,
            };
            escape(&mut line, &root);
            line.push(b' ');
            escape(&mut line, &path);
            line.extend_from_slice(format!(" {options} - {kind} ").as_bytes());
            escape(&mut line, source);
            let access = if self.files.are_read_only() { "ro" } else { "rw" };
            line.extend_from_slice(format!(" {access}{size}\n").as_bytes());
        } else {
            escape(&mut line, source);
            line.push(b' ');
            escape(&mut line, &path);
            line.extend_from_slice(format!(" {kind} {options}{size} 0 0\n").as_bytes());
        }
        Ok(line)
    }

    /// Returns the number by which `stat` tells file systems apart.
    pub(crate) fn device(&self) -> u64 {
        u64::from(self.files.number.number) + 1
    }

    /// Returns the flags that are in force.
    pub(crate) fn flags(&self) -> u32 {
        self.own_flags() | if self.files.are_read_only() { flag::READ_ONLY } else { 0 }
    }

    /// Returns the tree with the bytes of its files; queues take room of their own.
    fn sized_tree(&self) -> Option<&Filesystem> {
        self.files.tree.as_ref().filter(|_| self.files.kind.name != MQUEUE.name)
    }

    /// Returns the contents of `struct statfs`.
    pub(crate) fn statistics(&self) -> mounting::Statistics {
        if let Some(root) = &self.files.volume {
            return self.statistics_of(root.volume().usage());
        }
        let none = filesystem::Usage { limit: 0, used: 0, inodes: 0 };
        let usage = self.sized_tree().map_or(none, Filesystem::usage);
        let pages = |bytes: u64| bytes / PAGE_SIZE as u64;
        let free = pages(usage.limit.saturating_sub(usage.used));
        mounting::Statistics {
            magic: self.files.kind.magic,
            block_size: PAGE_SIZE as u64,
            blocks: pages(usage.limit),
            free_blocks: free,
            files: usage.inodes + free,
            free_files: free,
            number: self.device(),
            longest_name: filesystem::MAX_NAME_LENGTH as u64,
            flags: u64::from(self.flags()) | mounting::VALID,
        }
    }

    fn statistics_of(&self, usage: ext4::Usage) -> mounting::Statistics {
        mounting::Statistics {
            magic: self.files.kind.magic,
            block_size: usage.block_size,
            blocks: usage.blocks.0,
            free_blocks: usage.blocks.1,
            files: usage.inodes.0,
            free_files: usage.inodes.1,
            number: self.device(),
            longest_name: filesystem::MAX_NAME_LENGTH as u64,
            flags: u64::from(self.flags()) | mounting::VALID,
        }
    }

    /// Returns the volume, for files on a disk.
    pub(crate) fn volume(&self) -> Option<&Arc<MountedVolume>> {
        self.files.volume.as_ref().map(VolumeNode::volume)
    }

    /// Returns the mount whose root covers a file of this one.
    fn covering(self: &Arc<Mount>, node: &Node) -> Option<Arc<Mount>> {
        let covers = |mount: &&Arc<Mount>| {
            let place = mount.covers.lock();
            place.as_ref().is_some_and(|place| Arc::ptr_eq(&place.mount, self) && place.node == *node)
        };
        TABLE.read().iter().find(covers).cloned()
    }

    /// Whether paths begin in it: those of all files, or those by which the calls on queues of messages find them.
    fn begins_paths(self: &Arc<Mount>) -> bool {
        Arc::ptr_eq(self, root_mount()) || QUEUES.get().is_some_and(|queues| Arc::ptr_eq(self, queues))
    }

    /// Whether it is in the table, or the one in which all paths begin.
    fn is_attached(self: &Arc<Mount>, table: &[Arc<Mount>]) -> bool {
        Arc::ptr_eq(self, root_mount()) || table.iter().any(|mount| Arc::ptr_eq(mount, self))
    }
}

impl MountedFiles {
    /// Whether they must not be changed.
    fn are_read_only(&self) -> bool {
        match &self.volume {
            Some(root) => root.volume().is_read_only(),
            None => self.tree.as_ref().is_some_and(Filesystem::is_read_only),
        }
    }
}

impl Drop for MountedFiles {
    fn drop(&mut self) {
        if let Some(tree) = self.tree.take() {
            tree.give_up();
        }
        if let Some(root) = self.volume.take() {
            let volume = root.volume().clone();
            drop(root);
            volume.end();
        }
    }
}

impl Place {
    /// Returns the metadata.
    pub(crate) fn metadata(&self) -> Metadata {
        self.node.metadata()
    }

    /// Whether it is the root of its mount.
    fn is_root(&self) -> bool {
        self.node == self.mount.root
    }

    /// Fails with `EACCES` if the file does not grant some rights to a user.
    pub(crate) fn permit(&self, subject: Option<&Subject>, wanted: u16) -> Result<(), Errno> {
        if subject.is_none() {
            return Ok(());
        }
        rights::permit(subject, self.metadata().ownership(), wanted).map_err(errno_of)
    }

    /// Returns whether the file cannot be changed, because its mount is read-only and has it by a name.
    pub(crate) fn is_read_only(&self) -> bool {
        self.mount.is_read_only() && self.metadata().links > 0
    }

    /// Returns the absolute path of a directory. `ENOENT` if it has been removed, or its mount detached; `ENAMETOOLONG`
    /// if it is deeper than a path can say.
    #[doc(alias = "d_path")]
    pub(crate) fn path(&self) -> Result<Vec<u8>, Errno> {
        PathOfPlace::new(self).finish()
    }

    /// Returns the path in its mount alone.
    fn path_in_mount(&self) -> Result<Vec<u8>, Errno> {
        let mut making = PathOfPlace::new(self);
        loop {
            if let Some(path) = making.own_part(usize::MAX)? {
                return if path.is_empty() { copy_of(b"/") } else { Ok(path) };
            }
        }
    }

    /// Returns the same, made in steps for a process.
    pub(crate) async fn path_in_steps<P: Ends + Sync>(&self, payer: &P) -> Result<Vec<u8>, Errno> {
        let mut making = PathOfPlace::new(self);
        loop {
            if let Some(path) = making.step(DIRECTORIES_OF_A_STEP)? {
                return Ok(path);
            }
            steps::pause(payer).await;
        }
    }
}

/// Directories of a path that are looked at in a step.
const DIRECTORIES_OF_A_STEP: usize = 128;

/// The path of a place that is being made, from its end.
pub(crate) struct PathOfPlace {
    path: Vec<u8>,
    place: Place,
    /// The part in the present file system, in memory or on a disk.
    own: Option<PathSoFar>,
    on_volume: Option<PathOnVolume>,
}

impl PathOfPlace {
    /// Begins the path of a place.
    pub(crate) fn new(place: &Place) -> PathOfPlace {
        PathOfPlace { path: Vec::new(), place: place.clone(), own: None, on_volume: None }
    }

    /// Goes up to the top, and returns the path.
    fn finish(mut self) -> Result<Vec<u8>, Errno> {
        loop {
            if let Some(path) = self.step(usize::MAX)? {
                return Ok(path);
            }
        }
    }

    /// Makes a part of the text of a link to the place, and returns it when it is complete: its path, or a note that it
    /// has lost its name.
    pub(crate) fn extend_link(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        match self.step(DIRECTORIES_OF_A_STEP) {
            Err(Errno::ENOENT) => copy_of(b"(deleted)").map(Some),
            made => made,
        }
    }

    /// Goes up by at most so many directories in the present mount; returns the path from its root.
    fn own_part(&mut self, directories: usize) -> Result<Option<Vec<u8>>, Errno> {
        match &self.place.node {
            Node::Stored(node) => {
                let own = self.own.get_or_insert_with(|| match &self.place.mount.root {
                    Node::Stored(root) => PathSoFar::new(node).beginning_at(root),
                    Node::Generated(_) | Node::OnVolume(_) => PathSoFar::new(node),
                });
                self.place.mount.tree().extend_path(own, directories).map_err(errno_of)
            }
            Node::Generated(entry) => match self.place.mount.root {
                Node::Generated(root) => entry.path_from(root).map(Some),
                Node::Stored(_) | Node::OnVolume(_) => Err(Errno::ENOENT),
            },
            Node::OnVolume(node) => {
                let own = self.on_volume.get_or_insert_with(|| match &self.place.mount.root {
                    Node::OnVolume(root) => PathOnVolume::new(node).beginning_at(root),
                    Node::Stored(_) | Node::Generated(_) => PathOnVolume::new(node),
                });
                own.extend(directories)
            }
        }
    }

    /// Goes up by at most so many directories; returns the path at the top.
    fn step(&mut self, directories: usize) -> Result<Option<Vec<u8>>, Errno> {
        let Some(own) = self.own_part(directories)? else { return Ok(None) };
        (self.own, self.on_volume) = (None, None);
        match &own[..] {
            b"/" | b"" => {}
            _ if self.path.is_empty() => self.path = own,
            own if own.len() + self.path.len() >= LONGEST_PATH => return Err(Errno::ENAMETOOLONG),
            own => {
                // In front of the part that is there.
                self.path.try_reserve(own.len() + 1).map_err(|_| Errno::ENOMEM)?;
                self.path.splice(0..0, own.iter().copied());
            }
        }
        if !self.place.mount.begins_paths() {
            let mount = self.place.mount.clone();
            let above = mount.covers.lock().clone();
            self.place = above.ok_or(Errno::ENOENT)?;
            return Ok(None);
        }
        if self.path.is_empty() {
            self.path.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            self.path.push(b'/');
        }
        Ok(Some(core::mem::take(&mut self.path)))
    }
}

/// Returns a copy of a name. `ENOMEM`.
fn copy_of(name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(name.len()).map_err(|_| Errno::ENOMEM)?;
    copy.extend_from_slice(name);
    Ok(copy)
}

/// Reason why a path has not been followed to its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Halt {
    /// It leads nowhere, or the operation has failed.
    Failed(Errno),
    /// The work of a step is done. The path remembers how far it was followed: the next attempt of the operation, which
    /// must be the same one, goes on from there.
    Later,
}

impl From<Errno> for Halt {
    fn from(error: Errno) -> Halt {
        Halt::Failed(error)
    }
}

/// A path on its way through the mounts.
///
/// Long paths are followed in steps ([`Halt::Later`]): a program can make one of tens of thousands of components, by
/// symbolic links.
pub(crate) struct Path {
    place: Place,
    path: Vec<u8>,
    /// Number of symbolic links that led from one file system to another.
    links: usize,
    /// The process that follows it.
    caller: u32,
    /// The request to a volume that the next attempt needs the answer of, or that answer.
    errand: Option<Errand>,
    /// The account that pays for uses of files of volumes.
    account: Option<Arc<Account>>,
    /// The user for whom it is followed.
    whom: Whom,
}

/// A request to a volume, on which the operation on a path waits.
enum Errand {
    Submitted(VolumeSubmission),
    Answered(Result<VolumeAnswer, Errno>),
}

/// End of a path on a volume, for an operation.
pub(crate) enum Arrived {
    /// The file at its end.
    At(VolumeNode, Arc<Mount>),
    /// A name in a directory, with whether a slash after it demands a directory.
    Name(VolumeNode, Vec<u8>, bool),
    /// It has left the volume.
    Left,
}

impl Path {
    /// Begins at a place, for the process with this number.
    pub(crate) fn new(place: Place, path: Vec<u8>, caller: u32) -> Path {
        Path { place, path, links: 0, caller, errand: None, account: None, whom: None }
    }

    /// Sets the account that pays for uses of files of volumes.
    pub(crate) fn paid_by(self, account: &Arc<Account>) -> Path {
        Path { account: Some(account.clone()), ..self }
    }

    /// Sets the user for whom it is followed; user 0 without this.
    pub(crate) fn seen_by(self, whom: Whom) -> Path {
        Path { whom, ..self }
    }

    /// Returns the user for whom it is followed.
    #[inline(always)]
    pub(crate) fn subject(&self) -> Option<&Subject> {
        identity::subject(&self.whom)
    }

    /// Waits for the answer that the next attempt needs; returns whether there was any to wait for.
    ///
    /// # Cancellation
    /// The request is done.
    pub(crate) async fn run_errand(&mut self) -> bool {
        match self.errand.take() {
            Some(Errand::Submitted(submission)) => {
                self.errand = Some(Errand::Answered(submission.answer().await));
                true
            }
            errand => {
                self.errand = errand;
                false
            }
        }
    }

    /// Whether the answer to the request of the last attempt is there.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self.errand, Some(Errand::Answered(_)))
    }

    /// Returns the answer to the request of the last attempt; `None` if it has made none.
    pub(crate) fn answered(&mut self) -> Option<Result<VolumeAnswer, Errno>> {
        match self.errand.take() {
            Some(Errand::Answered(answer)) => Some(answer),
            _ => None,
        }
    }

    /// Gives up the request of the last attempt.
    pub(crate) fn forget_errand(&mut self) {
        self.errand = None;
    }

    /// Waits for a submission before the next attempt.
    pub(crate) fn wait_for(&mut self, submission: VolumeSubmission) -> Halt {
        self.errand = Some(Errand::Submitted(submission));
        Halt::Later
    }

    /// Returns the answer to a request, which is submitted in the first attempt that needs it.
    pub(crate) fn ask(
        &mut self,
        volume: &Arc<MountedVolume>,
        request: impl FnOnce() -> VolumeRequest,
    ) -> Result<VolumeAnswer, Halt> {
        match self.answered() {
            Some(answer) => Ok(answer?),
            None => {
                // Paths of the kernel itself lead to no volume.
                let account = self.account.as_ref().ok_or(Errno::EIO)?;
                let submission = volume.submit_for(self.whom.clone(), (account, self.caller), request())?;
                Err(self.wait_for(submission))
            }
        }
    }

    /// Begins the next attempt at a place to which it has led.
    pub(crate) fn stays_at(&mut self, place: &Place) {
        self.place = place.clone();
        self.path.clear();
    }

    /// Whether it goes on on a volume.
    pub(crate) fn is_on_volume(&self) -> bool {
        matches!(self.place.node, Node::OnVolume(_))
    }

    /// Follows the path on a volume, up to a name that is not known in each attempt.
    pub(crate) fn walk_on_volume(&mut self, last: LastComponent) -> Result<Arrived, Halt> {
        for _ in 0..COMPONENTS_OF_A_STEP {
            let Place { node: Node::OnVolume(here), mount } = &self.place else { return Ok(Arrived::Left) };
            let (here, mount) = (here.clone(), mount.clone());
            let slashes = filesystem::leading_slashes(&self.path);
            if slashes > 0 && here.kind() != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            self.path.drain(..slashes);
            if self.path.is_empty() {
                return Ok(Arrived::At(here, mount));
            }
            if here.kind() != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            let end = self.path.iter().position(|byte| *byte == b'/').unwrap_or(self.path.len());
            let after = filesystem::leading_slashes(&self.path[end..]);
            let is_last = end + after == self.path.len();
            if end > filesystem::MAX_NAME_LENGTH {
                return Err(Errno::ENAMETOOLONG.into());
            }
            let name = &self.path[..end];
            let is_special = name == b"." || name == b"..";
            // A path of one dot searches nothing.
            if self.whom.is_some() && self.path != b"." {
                rights::permit(self.subject(), here.ownership(), EXECUTE).map_err(errno_of)?;
            }
            if is_last && !matches!(last, LastComponent::File(_)) && !(is_special && last != LastComponent::Name) {
                return Ok(Arrived::Name(here, copy_of(name)?, after > 0));
            }
            if name == b"." {
                self.path.drain(..end);
                continue;
            }
            if name == b".." && self.place.is_root() {
                let mut rest = core::mem::take(&mut self.path);
                self.place = above(&mount, &mut rest)?;
                self.path = rest;
                continue;
            }
            // An answer that is there belongs to this name.
            let known = match name {
                // It was moved out of the part that the mount shows.
                b".." if here.is_root() => return Err(Errno::ENOENT.into()),
                b".." => here.above().map(|above| VolumeAnswer::File(above, None)),
                name => here.known(name),
            };
            let answer = match known.filter(|_| self.errand.is_none()) {
                Some(answer) => answer,
                None => {
                    let wanted = copy_of(name)?;
                    let volume = here.volume().clone();
                    self.ask(&volume, || VolumeRequest::LookUp(here, wanted))?
                }
            };
            let VolumeAnswer::File(found, target) = answer else { return Err(Errno::ENOENT.into()) };
            let keeps = is_last && after == 0 && last == LastComponent::File(LastLink::Keep);
            match target.filter(|_| !keeps) {
                None => {
                    self.path.drain(..end);
                    let is_covered = found.is_covered();
                    self.place.node = Node::OnVolume(found);
                    if is_covered {
                        let (place, rest) = (self.place.clone(), core::mem::take(&mut self.path));
                        self.go_down(place, rest)?;
                    }
                }
                Some(target) => {
                    self.path.drain(..end);
                    self.follow_target(target)?;
                }
            }
        }
        Err(Halt::Later)
    }

    /// Goes on at the target of a symbolic link, with the rest of the path behind it.
    pub(crate) fn follow_target(&mut self, mut target: Vec<u8>) -> Result<(), Errno> {
        self.follow(1)?;
        // A link that leads through itself makes the path longer each time.
        if target.len() + self.path.len() > 2 * LONGEST_PATH {
            return Err(Errno::ELOOP);
        }
        target.try_reserve(self.path.len()).map_err(|_| Errno::ENOMEM)?;
        target.extend_from_slice(&self.path);
        self.path = target;
        if self.path.first() == Some(&b'/') {
            self.place = root();
        }
        Ok(())
    }

    /// Goes on from the link that an `open` has found instead of a file.
    pub(crate) fn leaves_name_for(&mut self, target: Vec<u8>) -> Result<(), Errno> {
        self.path.clear();
        self.follow_target(target)
    }

    /// Leads the path to a volume, or to where no volume is in the way: [`Arrived::Left`].
    pub(crate) fn reach_volume(&mut self, last: LastComponent) -> Result<Arrived, Halt> {
        for _ in 0..CROSSINGS_OF_A_STEP {
            match self.place.node {
                Node::OnVolume(_) => match self.walk_on_volume(last)? {
                    Arrived::Left => {}
                    arrived => return Ok(arrived),
                },
                _ => {
                    if !self.cross(last)? {
                        return Ok(Arrived::Left);
                    }
                }
            }
        }
        Err(Halt::Later)
    }

    /// Begins at the root of all if the path is absolute, else at a directory, which is looked for only then. `ENOENT`
    /// for an empty path.
    pub(crate) fn from_directory(
        directory: impl FnOnce() -> Result<Place, Errno>,
        path: Vec<u8>,
        caller: u32,
    ) -> Result<Path, Errno> {
        let place = match path.first() {
            None => return Err(Errno::ENOENT),
            Some(b'/') => root(),
            Some(_) => directory()?,
        };
        Ok(Path::new(place, path, caller))
    }

    /// Returns a copy.
    pub(crate) fn copy(&self) -> Result<Path, Errno> {
        let mut path = Vec::new();
        path.try_reserve_exact(self.path.len()).map_err(|_| Errno::ENOMEM)?;
        path.extend_from_slice(&self.path);
        let (account, whom) = (self.account.clone(), self.whom.clone());
        let (place, links, caller) = (self.place.clone(), self.links, self.caller);
        Ok(Path { place, path, links, caller, errand: None, account, whom })
    }

    /// Performs an operation on the path in the file system to which it leads: `act` is called with the mount, the
    /// directory and the path from there, until it needs no other file system. On a volume, `request` makes the request
    /// for a name in a directory, with whether a slash behind it demands a directory. `EPERM` for generated files.
    pub(crate) fn perform(
        &mut self,
        last: LastComponent,
        mut act: impl FnMut(&Arc<Mount>, Base<'_>, &[u8]) -> Result<usize, Error>,
        request: impl FnOnce(VolumeNode, Vec<u8>, bool) -> Result<VolumeRequest, Errno>,
    ) -> Result<usize, Halt> {
        for _ in 0..CROSSINGS_OF_A_STEP {
            if self.is_on_volume() {
                match self.walk_on_volume(last)? {
                    Arrived::Left => continue,
                    // The root of a mount.
                    Arrived::At(..) => return Err(Errno::EBUSY.into()),
                    Arrived::Name(directory, name, is_directory) => {
                        let volume = directory.volume().clone();
                        if self.place.mount.has_no_writers() {
                            let kept = copy_of(&name)?;
                            return match request(directory.clone(), name, is_directory)? {
                                VolumeRequest::Remove { .. } => Err(Errno::EROFS.into()),
                                _ => self.refuse_name(directory, kept),
                            };
                        }
                        let request = request(directory, name, is_directory)?;
                        return self.ask(&volume, || request).map(|_| 0);
                    }
                }
            }
            let Node::Stored(node) = &self.place.node else {
                if self.cross(last)? {
                    continue;
                }
                return Err(Errno::EPERM.into());
            };
            self.count_links(node, last)?;
            match act(&self.place.mount, self.base(node), &self.path) {
                Err(Error::Crossing) => self.cross(last)?,
                result => return Ok(result.map_err(errno_of)?),
            };
        }
        Err(Halt::Later)
    }

    /// Refuses to make a file by a mount that is read-only: its name may be there.
    fn refuse_name(&mut self, directory: VolumeNode, name: Vec<u8>) -> Result<usize, Halt> {
        let volume = directory.volume().clone();
        Err(match self.ask(&volume, || VolumeRequest::LookUp(directory, name))? {
            VolumeAnswer::File(..) => Errno::EEXIST,
            _ => Errno::EROFS,
        }
        .into())
    }

    /// Returns a node of the present mount as the beginning of the path.
    #[inline(always)]
    fn base<'a>(&'a self, node: &'a filesystem::Node) -> Base<'a> {
        node.seen_by(self.subject()).within(self.place.mount.part())
    }

    /// Whether it has led to a file that is no directory, with nothing behind it: by a link of a process to a file
    /// whose path is not known, or by a mount on a file.
    #[inline(always)]
    fn is_at_its_end(&self) -> bool {
        self.path.is_empty()
    }

    /// Returns the file at its end.
    pub(crate) fn look_up(&mut self, last: LastLink) -> Result<Place, Halt> {
        for _ in 0..CROSSINGS_OF_A_STEP {
            if self.is_at_its_end() {
                return Ok(self.place.clone());
            }
            let Place { node, mount } = &self.place;
            if let Node::Stored(base) = node {
                self.count_links(base, last.into())?;
            }
            match node {
                Node::Stored(base) => {
                    let (base, mut way) = (self.base(base), None);
                    match mount.tree().look_up_noting(base, &self.path, last, &mut way) {
                        Err(Error::Crossing) => self.go_on_by(way, last.into())?,
                        found => {
                            let node = Node::Stored(found.map_err(errno_of)?);
                            return Ok(Place { node, mount: mount.clone() });
                        }
                    }
                }
                Node::OnVolume(_) => {
                    if let Arrived::At(node, mount) = self.walk_on_volume(last.into())? {
                        return Ok(Place { node: Node::OnVolume(node), mount });
                    }
                }
                Node::Generated(entry) => {
                    match self.walk_generated(*entry, last.into())? {
                        Walked::At(entry) => return Ok(Place { node: Node::Generated(entry), mount: mount.clone() }),
                        Walked::Missing => return Err(Errno::ENOENT.into()),
                        // It has no place.
                        Walked::File(_) => return Err(Errno::ENXIO.into()),
                        Walked::Away { from, rest, links } => self.go_away(from, rest, links)?,
                        Walked::Later { from, rest, links } => return Err(self.go_on_later(from, rest, links)),
                    }
                }
            }
        }
        Err(Halt::Later)
    }

    /// Returns the file at its end, and no longer uses a mount itself.
    pub(crate) fn take(&mut self, last: LastLink) -> Result<Place, Halt> {
        let found = self.look_up(last)?;
        self.place = root();
        Ok(found)
    }

    /// Returns the file at its end that this user may read, and no longer uses a mount itself.
    pub(crate) fn take_readable(&mut self, last: LastLink) -> Result<Place, Halt> {
        let found = self.look_up(last)?;
        found.permit(self.subject(), rights::READ)?;
        self.place = root();
        Ok(found)
    }

    /// Returns the file at its end, however long it is: for a path of the kernel itself that leads to no volume.
    pub(crate) fn look_up_at_once(&mut self, last: LastLink) -> Result<Place, Errno> {
        loop {
            match self.look_up(last) {
                Ok(place) => return Ok(place),
                Err(Halt::Failed(error)) => return Err(error),
                Err(Halt::Later) => {}
            }
        }
    }

    /// Returns the file at its end, and waits for volumes on the way: for a path of the kernel itself.
    ///
    /// # Cancellation
    /// Dropping it has no effect.
    pub(crate) async fn find(&mut self, last: LastLink) -> Result<Place, Errno> {
        loop {
            match self.look_up(last) {
                Ok(place) => return Ok(place),
                Err(Halt::Failed(error)) => return Err(error),
                Err(Halt::Later) => {
                    self.run_errand().await;
                    steps::pause(&steps::Endless).await;
                }
            }
        }
    }

    /// Opens the file at its end.
    pub(crate) fn open(
        &mut self,
        options: &OpenOptions,
        last: LastComponent,
        owner: &Arc<dyn Owner>,
    ) -> Result<Opened, Halt> {
        for _ in 0..CROSSINGS_OF_A_STEP {
            let Place { node, mount } = &self.place;
            if let Node::Stored(base) = node {
                self.count_links(base, last)?;
            }
            match node {
                Node::Stored(node) if self.is_at_its_end() => {
                    let (node, now) = (self.base(node), crate::files::tree::now());
                    let file = mount.tree().open_node(node, options, now).map_err(errno_of)?;
                    return Ok(Opened::Stored(file, mount.clone()));
                }
                Node::OnVolume(_) => {
                    // Behind the volume the attempt begins anew, with its checks.
                    return self.open_on_volume(options, last)?.ok_or(Halt::Later);
                }
                Node::Stored(base) => {
                    let base = self.base(base);
                    let mut way = None;
                    match mount.tree().open_noting(base, &self.path, options, made_by(owner), &mut way) {
                        Err(Error::Crossing) => self.go_on_by(way, last)?,
                        file => return Ok(Opened::Stored(file.map_err(errno_of)?, mount.clone())),
                    }
                }
                Node::Generated(entry) => match self.walk_generated(*entry, last)? {
                    Walked::At(entry) => {
                        require_openable(entry, options)?;
                        rights::permit(self.subject(), entry.metadata().ownership(), options.rights())
                            .map_err(errno_of)?;
                        return Ok(Opened::Generated(entry, mount.clone()));
                    }
                    Walked::Missing => return Err(Errno::ENOENT.into()),
                    Walked::File(file) => return Ok(Opened::Same(file)),
                    Walked::Away { from, rest, links } => self.go_away(from, rest, links)?,
                    Walked::Later { from, rest, links } => return Err(self.go_on_later(from, rest, links)),
                },
            }
        }
        Err(Halt::Later)
    }

    /// Opens the file at its end, or makes it; `None` if the path leaves the volume.
    fn open_on_volume(&mut self, options: &OpenOptions, last: LastComponent) -> Result<Option<Opened>, Halt> {
        let (node, mount, is_new) = loop {
            match self.walk_on_volume(last)? {
                Arrived::Left => return Ok(None),
                Arrived::At(node, mount) => break (node, mount, false),
                Arrived::Name(_, _, true) => return Err(Errno::EISDIR.into()),
                Arrived::Name(directory, name, false) => {
                    let (volume, mount) = (directory.volume().clone(), self.place.mount.clone());
                    let (permissions, must_be_new) = (options.permissions, options.creation == Creation::Always);
                    let makes_none = mount.has_no_writers();
                    let request = || match makes_none {
                        true => VolumeRequest::LookUp(directory, name),
                        false => VolumeRequest::Open { directory, name, permissions, must_be_new },
                    };
                    let (found, target, is_new) = match self.ask(&volume, request)? {
                        VolumeAnswer::File(..) if makes_none && must_be_new => return Err(Errno::EEXIST.into()),
                        VolumeAnswer::File(found, target) => (found, target, false),
                        VolumeAnswer::Made(made) => (made, None, true),
                        _ => return Err(if makes_none { Errno::EROFS } else { Errno::ENOENT }.into()),
                    };
                    match target {
                        Some(target) if last == LastComponent::Made(LastLink::Follow) => {
                            self.leaves_name_for(target)?;
                        }
                        _ => {
                            // If this attempt is not the last one, the next begins here.
                            self.place.node = Node::OnVolume(found.clone());
                            self.path.clear();
                            if !found.is_covered() {
                                break (found, mount, is_new);
                            }
                            let place = self.place.clone();
                            self.go_down(place, Vec::new())?;
                        }
                    }
                }
            }
        };
        let writes = options.access != Access::Read || options.contents == Contents::Discard;
        match node.kind() {
            // One that needs no name: `.`, or the top.
            _ if !is_new && options.creation == Creation::Always => return Err(Errno::EEXIST.into()),
            FileKind::SymbolicLink => return Err(Errno::ELOOP.into()),
            FileKind::Directory if writes || options.creation != Creation::Never => return Err(Errno::EISDIR.into()),
            FileKind::Directory => {}
            _ if options.expect == Expect::Directory => return Err(Errno::ENOTDIR.into()),
            _ => {}
        }
        // As with files in memory, the maker of a file may use it, whatever its permissions.
        if !is_new {
            rights::permit(self.subject(), node.ownership(), options.rights()).map_err(errno_of)?;
        }
        match node.kind() {
            FileKind::Directory => {}
            FileKind::Regular if writes && mount.has_no_writers() => return Err(Errno::EROFS.into()),
            FileKind::Regular if writes && node.writers().are_denied() => return Err(Errno::ETXTBSY.into()),
            FileKind::Regular => match self.answered() {
                Some(opened) => drop(opened?),
                // A file of the host is opened there, by its path of this moment; a new one was made open.
                None if node.volume().is_of_host() && !is_new
                    || options.contents == Contents::Discard && node.size() > 0 =>
                {
                    let volume = node.volume().clone();
                    let OpenOptions { access, writes, contents, .. } = *options;
                    let opened = self.ask(&volume, || VolumeRequest::OpenBytes { node, access, writes, contents });
                    return Err(opened.map_or_else(|halt| halt, |_| Errno::EIO.into()));
                }
                None => {}
            },
            // The kernel opens the object, whatever the mount permits.
            FileKind::Fifo => {}
            // Devices of a disk lead nowhere.
            _ => return Err(Errno::ENXIO.into()),
        }
        let is_cut = options.contents == Contents::Discard && !is_new && node.kind() == FileKind::Regular;
        Ok(Some(Opened::OnVolume { node, mount, is_cut }))
    }

    /// Remembers an entry, from which the rest of the path goes on in the next step.
    fn go_on_later(&mut self, from: Entry, rest: Vec<u8>, links: usize) -> Halt {
        if let Err(error) = self.follow(links) {
            return error.into();
        }
        self.place.node = Node::Generated(from);
        self.path = rest;
        Halt::Later
    }

    /// Goes on where generated files lead to.
    fn go_away(&mut self, from: Option<Place>, mut rest: Vec<u8>, links: usize) -> Result<(), Errno> {
        self.follow(links)?;
        self.place = match from {
            Some(place) => place,
            None => above(&self.place.mount, &mut rest)?,
        };
        self.path = rest;
        Ok(())
    }

    /// Counts symbolic links that were followed. `ELOOP` if there are too many.
    fn follow(&mut self, links: usize) -> Result<(), Errno> {
        self.links += links;
        if self.links > MAX_SYMBOLIC_LINKS { Err(Errno::ELOOP) } else { Ok(()) }
    }

    /// Fails with `ELOOP` if the rest of the path follows too many symbolic links. A file system counts its own alone;
    /// so a path on which links have led to it is followed once more, to count these with them.
    fn count_links(&self, base: &filesystem::Node, last: LastComponent) -> Result<(), Errno> {
        if self.links == 0 || self.path.is_empty() {
            return Ok(());
        }
        match self.place.mount.tree().links_on(self.base(base), &self.path, last) {
            Ok(links) if self.links + links > MAX_SYMBOLIC_LINKS => Err(Errno::ELOOP),
            // Any other failure is the operation's to report.
            _ => Ok(()),
        }
    }

    /// Performs an operation on two names, which must be in the same mount: `EXDEV`.
    pub(crate) fn perform_with(
        &mut self,
        other: &mut Path,
        (last, other_last): (LastComponent, LastComponent),
        mut act: impl FnMut(&Arc<Mount>, PathFrom<'_>, PathFrom<'_>) -> Result<usize, Error>,
        request: impl FnOnce(Arrived, Arrived) -> Result<VolumeRequest, Errno>,
    ) -> Result<usize, Halt> {
        for _ in 0..CROSSINGS_OF_A_STEP {
            if self.is_on_volume() || other.is_on_volume() {
                let (first, second) = (self.reach_volume(last)?, other.reach_volume(other_last)?);
                let is_one = Arc::ptr_eq(&self.place.mount, &other.place.mount);
                match (first, second) {
                    (Arrived::Left, Arrived::Left) => continue,
                    (Arrived::Left, _) | (_, Arrived::Left) => return Err(Errno::EXDEV.into()),
                    _ if !is_one => return Err(Errno::EXDEV.into()),
                    (Arrived::Name(..), Arrived::Name(..)) if self.place.mount.has_no_writers() => {
                        return Err(Errno::EROFS.into());
                    }
                    (Arrived::At(..), Arrived::Name(directory, name, _)) if self.place.mount.has_no_writers() => {
                        return other.refuse_name(directory, name);
                    }
                    (first, second) => {
                        let volume = self.place.mount.volume().ok_or(Errno::EXDEV)?.clone();
                        let request = request(first, second)?;
                        return other.ask(&volume, || request).map(|_| 0);
                    }
                }
            }
            if Arc::ptr_eq(&self.place.mount, &other.place.mount)
                && let (Node::Stored(node), Node::Stored(other_node)) = (&self.place.node, &other.place.node)
            {
                self.count_links(node, last)?;
                other.count_links(other_node, other_last)?;
                let first = (self.base(node), &self.path[..]);
                let second = (other.base(other_node), &other.path[..]);
                match act(&self.place.mount, first, second) {
                    Err(Error::Crossing) => {}
                    Err(Error::Unfinished) => return Err(Halt::Later),
                    result => return Ok(result.map_err(errno_of)?),
                }
            }
            // Both to their ends, as far as mounts are concerned.
            let crossed = [self.settle(last)?, other.settle(other_last)?];
            if crossed == [false, false] {
                let is_one = Arc::ptr_eq(&self.place.mount, &other.place.mount);
                match (is_one, &self.place.node) {
                    (false, _) => return Err(Errno::EXDEV.into()),
                    (true, Node::Generated(_)) => return Err(Errno::EPERM.into()),
                    (true, Node::Stored(_) | Node::OnVolume(_)) => {}
                }
            }
        }
        Err(Halt::Later)
    }

    /// Goes on until the path stays in its file system; returns whether it has left one.
    fn settle(&mut self, last: LastComponent) -> Result<bool, Halt> {
        let mut has_crossed = false;
        for _ in 0..CROSSINGS_OF_A_STEP {
            if !self.cross(last)? {
                return Ok(has_crossed);
            }
            has_crossed = true;
        }
        Err(Halt::Later)
    }

    /// Goes on to the next file system on the path; returns `false` if there is none.
    #[cold]
    #[doc(alias = "follow_mount")]
    fn cross(&mut self, last: LastComponent) -> Result<bool, Halt> {
        let mount = self.place.mount.clone();
        let way = match &self.place.node {
            Node::Stored(_) | Node::Generated(_) if self.is_at_its_end() => return Ok(false),
            Node::Stored(node) => mount.tree().way_on(self.base(node), &self.path, last).map_err(errno_of)?,
            Node::OnVolume(_) => return Ok(false),
            Node::Generated(entry) => {
                let walked = self.walk_generated(*entry, last)?;
                match walked {
                    Walked::Away { from, rest, links } => self.go_away(from, rest, links)?,
                    Walked::Later { from, rest, links } => return Err(self.go_on_later(from, rest, links)),
                    Walked::Missing if matches!(last, LastComponent::File(_)) => return Err(Errno::ENOENT.into()),
                    Walked::Missing | Walked::At(_) | Walked::File(_) => return Ok(false),
                }
                return Ok(true);
            }
        };
        let Some(way) = way else { return Ok(false) };
        self.go_on(way, mount)?;
        Ok(true)
    }

    /// Goes on where a path has left the tree of a mount, which its walk has perhaps noted.
    fn go_on_by(&mut self, way: Option<WayOn>, last: LastComponent) -> Result<(), Halt> {
        match way {
            Some(way) => self.go_on(way, self.place.mount.clone()),
            None => self.cross(last).map(drop),
        }
    }

    /// Goes on where a path has left the tree of this mount.
    fn go_on(&mut self, way: WayOn, mount: Arc<Mount>) -> Result<(), Halt> {
        self.follow(way.links)?;
        let mut rest = way.rest;
        let is_later = matches!(way.departure, Departure::Later(_));
        self.place = match way.departure {
            Departure::Down(file) => {
                self.go_down(Place { node: Node::Stored(file), mount }, rest)?;
                return Ok(());
            }
            Departure::Up => above(&mount, &mut rest)?,
            Departure::Root => root(),
            Departure::Later(directory) => Place { node: Node::Stored(directory), mount },
        };
        self.path = rest;
        if is_later { Err(Halt::Later) } else { Ok(()) }
    }

    /// Goes on in the mount that covers a file: in the file itself if that is covered in another mount of its file
    /// system, or if the covering mount has gone meanwhile.
    fn go_down(&mut self, covered: Place, rest: Vec<u8>) -> Result<(), Errno> {
        self.place = topmost(covered);
        self.path = match self.place.node.kind() {
            FileKind::Directory => relative(rest)?,
            _ if rest.is_empty() => rest,
            _ => return Err(Errno::ENOTDIR),
        };
        Ok(())
    }

    /// Follows the path in generated files.
    fn walk_generated(&self, entry: Entry, last: LastComponent) -> Result<Walked, Errno> {
        // A file that a mount shows.
        if self.is_at_its_end() {
            return Ok(Walked::At(entry));
        }
        let top = match self.place.mount.root {
            Node::Generated(root) => root,
            Node::Stored(_) | Node::OnVolume(_) => generated::TOP,
        };
        generated::walk((entry, top), &self.path, self.links, last, self.caller)
    }
}

/// A directory of a tree, and a path from there.
pub(crate) type PathFrom<'a> = (Base<'a>, &'a [u8]);

/// Returns the place in which a path goes on that begins with `..` in the root of a mount.
fn above(mount: &Arc<Mount>, rest: &mut Vec<u8>) -> Result<Place, Errno> {
    let above = mount.covers.lock().clone();
    Ok(match above {
        // `..` leads from the covered directory to the one above that.
        Some(place) => place,
        // Nothing is above a detached mount.
        None => {
            rest.drain(..2);
            *rest = relative(core::mem::take(rest))?;
            mount.root()
        }
    })
}

/// Fails if a generated file cannot be opened in this way.
fn require_openable(entry: Entry, options: &OpenOptions) -> Result<(), Errno> {
    let kind = entry.kind();
    let writes = options.access != Access::Read || options.contents == Contents::Discard;
    match kind {
        _ if options.creation == Creation::Always => Err(Errno::EEXIST),
        FileKind::SymbolicLink => Err(Errno::ELOOP),
        FileKind::Directory if writes || options.creation != Creation::Never => Err(Errno::EISDIR),
        FileKind::Directory => Ok(()),
        _ if options.expect == Expect::Directory => Err(Errno::ENOTDIR),
        _ if writes && !entry.is_setting() => Err(Errno::EACCES),
        _ => Ok(()),
    }
}

/// Adds a text with the characters escaped that separate the words of a line.
fn escape(line: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => line.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            _ => line.push(*byte),
        }
    }
}

/// Returns the first mount behind this one of the order in which they were mounted, with its own: the root is the
/// first, behind 0.
pub(crate) fn next(order: u64) -> Option<(Arc<Mount>, u64)> {
    let ordered = |mount: &Arc<Mount>| (mount.clone(), mount.order.load(Ordering::Relaxed));
    match order {
        0 => Some((root_mount().clone(), ORDER_OF_ROOT)),
        _ => TABLE.read().iter().map(ordered).find(|(_, own)| *own > order),
    }
}

/// Returns the names of the kinds of file systems.
pub(crate) fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| core::str::from_utf8(kind.name).unwrap_or_default())
}

/// Returns the rest of a path from a directory on, without the slashes in front: `.` if nothing is left.
fn relative(mut rest: Vec<u8>) -> Result<Vec<u8>, Errno> {
    rest.drain(..filesystem::leading_slashes(&rest));
    if rest.is_empty() {
        rest.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        rest.push(b'.');
    }
    Ok(rest)
}

/// Returns the root of the mount that covers a place, and of those that cover that in turn; the place itself if none
/// does.
fn topmost(mut place: Place) -> Place {
    while place.node.is_covered()
        && let Some(mount) = place.mount.covering(&place.node)
    {
        place = mount.root();
    }
    place
}

/// Mounts a file system of the kind with this name on a directory. Its memory is the account's.
///
/// `ENODEV` if there is no such kind, `ENOTDIR`, `EBUSY` for the root of all paths, `ENOSPC` if there are too many
/// mounts.
#[doc(alias = "do_new_mount")]
pub(crate) fn mount(
    at: Place,
    kind: &[u8],
    flags: u32,
    options: &[u8],
    source: Vec<u8>,
    account: &Arc<Account>,
) -> Result<(), Errno> {
    let kind = *KINDS.iter().find(|known| known.name == kind).ok_or(Errno::ENODEV)?;
    let options = Options::parse(options)?;
    if at.node.kind() != FileKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    if at == root() {
        return Err(Errno::EBUSY);
    }
    let charge = charge_for(&at, &source, account)?;
    if kind.name == MQUEUE.name {
        return put_another(queues().beside(Some(charge))?, at, flags);
    }
    let owner: Arc<dyn Owner> = account.clone();
    let tree = kind.make.map(|make| make(&options, &owner)).transpose().map_err(|error| match error {
        Error::NoSpace => Errno::ENOMEM,
        error => errno_of(error),
    })?;
    let files = tree.map_or(Files::Generated, Files::Stored);
    put(Mount::new(kind, files, (source, Some(charge)))?, at, flags)
}

/// Charges a mount on a file, which it keeps in use.
fn charge_for(at: &Place, source: &[u8], account: &Arc<Account>) -> Result<Charge, Errno> {
    let covered = if matches!(at.node, Node::OnVolume(_)) { MEMORY_OF_A_NODE } else { 0 };
    let mount = size_of::<Mount>() + size_of::<MountedFiles>();
    account.charge(Resource::Memory, mount + source.len() + 64 + covered)
}

/// Whether this is the name of the kind of volumes on disks.
pub(crate) fn is_volume(kind: &[u8]) -> bool {
    kind == EXT4.name
}

/// Whether this is the name of the kind of folders of the host.
pub(crate) fn is_host(kind: &[u8]) -> bool {
    kind == HOST.name
}

/// Begins to mount a folder of the host on a directory. The errors are those of [`begin_volume`]; `ENOENT` if there is
/// no folder of this name, as on Linux.
pub(crate) fn begin_folder(
    at: &Place,
    name: &[u8],
    flags: u32,
    options: &[u8],
    (account, payer): (&Arc<Account>, u32),
) -> Result<VolumeSubmission, Errno> {
    parse_host_options(options)?;
    require_directory(at)?;
    let folder = host_folder::find(name).ok_or(Errno::ENOENT)?;
    MountedVolume::begin(Source::Folder(folder), access_of(flags), account, payer)
}

/// Checks the options of a folder of the host: the ones that say what is so anyhow, and sizes of messages, which are
/// chosen here. `EINVAL` for others.
fn parse_host_options(options: &[u8]) -> Result<(), Errno> {
    let is_known = |option: &[u8]| {
        matches!(option, b"" | b"trans=virtio" | b"version=9p2000.L" | b"cache=none" | b"access=any" | b"access=client")
            || option.starts_with(b"msize=")
    };
    if options.split(|byte| *byte == b',').all(is_known) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Fails if a volume cannot be mounted there.
fn require_directory(at: &Place) -> Result<(), Errno> {
    if at.node.kind() != FileKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    if *at == root() {
        return Err(Errno::EBUSY);
    }
    Ok(())
}

fn access_of(flags: u32) -> ext4::Access {
    if flags & flag::READ_ONLY != 0 { ext4::Access::Read } else { ext4::Access::Write }
}

/// Mounts the folder of the host that is for it when the machine starts, if there is one: on its directory, which is
/// made where files are in memory.
///
/// # Cancellation
/// Nothing is mounted.
pub(crate) async fn mount_host_at_start() -> Result<(), Errno> {
    let Some(folder) = host_folder::find(host_folder::NAME_AT_START) else { return Ok(()) };
    let (account, path) = (Account::first(), host_folder::PLACE_AT_START.as_bytes());
    if let Node::Stored(top) = root().node {
        let owner: Arc<dyn Owner> = account.clone();
        match root_mount().tree().make_directory(top.seen_by(None), path, 0o755, made_by(&owner)) {
            Ok(_) | Err(Error::AlreadyExists) => {}
            Err(error) => return Err(errno_of(error)),
        }
    }
    let at = Path::new(root(), path.to_vec(), 0).paid_by(account).find(LastLink::Follow).await?;
    require_directory(&at)?;
    let begun = MountedVolume::begin(Source::Folder(folder), ext4::Access::Write, account, 0)?;
    let VolumeAnswer::Mounted(volume) = begun.answer().await? else { return Err(Errno::EIO) };
    let root = async { volume.submit(account, 0, VolumeRequest::Root)?.answer().await };
    let put = match root.await {
        Ok(VolumeAnswer::File(root, _)) => {
            put_volume(at, root, flag::NO_DEVICES, host_folder::NAME_AT_START.to_vec(), account)
        }
        Ok(_) => Err(Errno::EIO),
        Err(error) => Err(error),
    };
    put.inspect_err(|_| volume.end())
}

/// Begins to mount a volume of a disk, whose node this is, on a directory; or ends to do so, with the root directory of
/// the volume. The errors are those of [`mount`]; `ENOTBLK` if it is no disk, `EBUSY` if its volume is mounted.
pub(crate) fn begin_volume(
    at: &Place,
    source: &Place,
    flags: u32,
    options: &[u8],
    (account, payer): (&Arc<Account>, u32),
) -> Result<VolumeSubmission, Errno> {
    if Options::parse(options)? != Options::default() {
        return Err(Errno::EINVAL);
    }
    require_directory(at)?;
    let device = source.node.stored().and_then(|node| node.block_device()).ok_or(Errno::ENOTBLK)?;
    require_devices(&source.mount)?;
    let disk = disk::all().iter().find(|disk| disk.device() == device).ok_or(Errno::ENXIO)?;
    let access = access_of(flags);
    if access == ext4::Access::Write && disk.is_read_only() {
        return Err(Errno::EACCES);
    }
    MountedVolume::begin(Source::Disk(disk), access, account, payer)
}

/// Puts a mounted volume into its place.
pub(crate) fn put_volume(
    at: Place,
    root: VolumeNode,
    flags: u32,
    source: Vec<u8>,
    account: &Arc<Account>,
) -> Result<(), Errno> {
    let charge = charge_for(&at, &source, account)?;
    let kind = if root.volume().is_of_host() { &HOST } else { &EXT4 };
    let mount = Mount::new(kind, Files::OnVolume(root), (source, Some(charge)))?;
    put(mount, at, flags)
}

/// The files of a mount.
enum Files {
    Stored(Filesystem),
    Generated,
    OnVolume(VolumeNode),
}

impl Mount {
    /// Makes a mount of a new file system that has no place yet. `ENOSPC` if there are too many mounts.
    fn new(
        kind: &'static Kind,
        files: Files,
        (source, charge): (Vec<u8>, Option<Charge>),
    ) -> Result<Arc<Mount>, Errno> {
        let (root, tree, volume) = match files {
            Files::Stored(tree) => (Node::Stored(tree.root()), Some(tree), None),
            Files::Generated => (Node::Generated(generated::TOP), None, None),
            Files::OnVolume(root) => (Node::OnVolume(root.clone()), None, Some(root)),
        };
        // From here on the end of a volume is that of the files.
        let number = Number::take(&FILE_SYSTEMS)?;
        let files = Arc::new(MountedFiles { number, kind, tree, volume, source });
        Mount::of(files, root, charge)
    }

    /// Makes another mount of its file system, which has no place yet. `ENOSPC` if there are too many.
    fn beside(&self, charge: Option<Charge>) -> Result<Arc<Mount>, Errno> {
        Mount::of(self.files.clone(), self.root.clone(), charge)
    }

    /// Makes a mount that shows these files from a root on, and has no place yet. `ENOSPC` if there are too many.
    // The root is dropped before the files: a tree that is given up has no nodes.
    fn of(files: Arc<MountedFiles>, root: Node, charge: Option<Charge>) -> Result<Arc<Mount>, Errno> {
        let number = Number::take(&MOUNTS)?;
        let (order, covers) = (AtomicU64::new(ORDER_OF_ROOT), Mutex::new(None));
        let (flags, writers) = (AtomicU32::new(0), AtomicU32::new(0));
        Ok(Arc::new(Mount { root, files, number, order, covers, flags, writers, _charge: charge }))
    }
}

/// Puts the first mount of a file system into its place.
fn put(mount: Arc<Mount>, at: Place, flags: u32) -> Result<(), Errno> {
    set_access(&mount, flags)?;
    put_another(mount, at, flags)
}

/// Puts another mount of a file system into its place. The flags are its own.
fn put_another(mount: Arc<Mount>, at: Place, flags: u32) -> Result<(), Errno> {
    mount.set_own_flags(flags)?;
    let mut table = exclusive();
    if !at.mount.is_attached(&table) {
        return Err(Errno::EINVAL);
    }
    enter(&mut table, mount, at)
}

/// Enters a mount into the table. `EBUSY` if another covers its place.
fn enter(table: &mut Vec<Arc<Mount>>, mount: Arc<Mount>, at: Place) -> Result<(), Errno> {
    // Another may have mounted there meanwhile.
    if table.iter().any(|other| other.covers.lock().as_ref() == Some(&at)) {
        return Err(Errno::EBUSY);
    }
    at.node.cover()?;
    *mount.covers.lock() = Some(at);
    // Under the table's lock.
    static LAST: AtomicU64 = AtomicU64::new(ORDER_OF_ROOT);
    mount.order.store(LAST.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    // There is room for as many as there are numbers.
    table.push(mount);
    Ok(())
}

/// A file system that the machine mounts at its start.
pub(crate) enum AtStart {
    /// Generated files.
    Proc,
    /// Files in memory, with these permissions of the root.
    Memory(u16),
    /// The tree of devices.
    Devices(Arc<Mount>),
    /// Queues of messages.
    Queues,
}

static QUEUES: Once<Arc<Mount>> = Once::new();

/// Returns the mount by which the calls on queues of messages find them, which has no place.
pub(crate) fn queues() -> &'static Arc<Mount> {
    QUEUES.get().expect("the queues' mount is there before any process")
}

/// Makes the tree with the names of queues of messages. Every user makes queues in it.
fn begin_queues() -> Result<(), Errno> {
    let tree = top().tree().beside(default_size(), None).map_err(errno_of)?;
    tree.has_objects_alone(message_queue::make_usual);
    tree.root().set_permissions(0o1777, crate::files::tree::now());
    let mount = Mount::new(&MQUEUE, Files::Stored(tree), (MQUEUE.name.to_vec(), None))?;
    QUEUES.call_once(|| mount);
    Ok(())
}

/// Makes a tree for the nodes of devices, which has no place yet.
pub(crate) fn device_tree() -> Result<Arc<Mount>, Errno> {
    let tree = top().tree().beside(default_size(), None).map_err(errno_of)?;
    Mount::new(&DEVTMPFS, Files::Stored(tree), (DEVTMPFS.name.to_vec(), None))
}

/// Mounts a file system on a directory before there is a process. `ENOENT` or `ENOTDIR` if there is no such directory.
///
/// # Cancellation
/// Nothing is mounted.
pub(crate) async fn mount_at_start(path: &str, files: AtStart) -> Result<(), Errno> {
    let account = Account::first();
    let at = Path::new(root(), path.as_bytes().to_vec(), 0).paid_by(account).find(LastLink::Follow).await?;
    if at.node.kind() != FileKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    if at == root() {
        return Err(Errno::EBUSY);
    }
    let hardened = flag::NO_SET_USER | flag::NO_DEVICES;
    let make = |kind: &'static Kind, files| Mount::new(kind, files, (kind.name.to_vec(), None));
    let (mount, flags) = match files {
        AtStart::Proc => (make(&PROC, Files::Generated)?, hardened | flag::NO_EXECUTION),
        AtStart::Memory(permissions) => {
            let tree = top().tree().beside(default_size(), None).map_err(errno_of)?;
            tree.root().set_permissions(permissions, crate::files::tree::now());
            (make(&TMPFS, Files::Stored(tree))?, hardened)
        }
        AtStart::Devices(mount) => (mount, flag::NO_SET_USER),
        AtStart::Queues => return put_another(queues().beside(None)?, at, hardened | flag::NO_EXECUTION),
    };
    put(mount, at, flags)
}

fn set_flags(mount: &Arc<Mount>, flags: u32) -> Result<(), Errno> {
    set_access(mount, flags)?;
    mount.set_own_flags(flags)
}

/// Lets the tree of files in memory be changed by any mount, or by none, as these flags say.
fn set_access(mount: &Mount, flags: u32) -> Result<(), Errno> {
    let Some(tree) = &mount.files.tree else { return Ok(()) };
    tree.set_read_only(flags & flag::READ_ONLY != 0).map_err(errno_of)
}

/// Fails with `EINVAL` for a place that is not the root of a mount.
pub(crate) fn require_root(at: &Place) -> Result<(), Errno> {
    if at.is_root() { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Changes the flags and options of the mount whose root this is. `EINVAL` if it is none, or if its size would be
/// exceeded; `EBUSY` to make it read-only while a file is open for writing.
#[doc(alias = "do_remount")]
pub(crate) fn remount(at: &Place, flags: u32, options: &[u8]) -> Result<(), Errno> {
    let options = Options::parse(options)?;
    require_root(at)?;
    // It stays attached, and changes once at a time.
    let table = exclusive();
    if !at.mount.is_attached(&table) {
        return Err(Errno::EINVAL);
    }
    // The access of a volume is changed by the caller, who waits for it.
    let Some(size) = options.size else { return set_flags(&at.mount, flags) };
    let tree = at.mount.files.tree.as_ref().ok_or(Errno::EINVAL)?;
    let before = tree.usage().limit;
    tree.set_limit(size).map_err(errno_of)?;
    set_flags(&at.mount, flags).inspect_err(|_| {
        // More may be in use by now than there was room for, and then the new limit stays.
        let _ = tree.set_limit(before);
    })
}

/// Takes the mount whose root this is from the table. `EINVAL` if it is none, `EBUSY` for the first file system.
///
/// If anything in it is in use, an open file, a working directory or another mount, that is `EBUSY`; but a mount that
/// is *detached* goes at once, with those below it, and lives on for its users only. Otherwise returns the volume
/// that no mount shows any more, for its caller to wait for its end.
#[doc(alias = "do_umount")]
pub(crate) fn unmount(at: Place, detach: bool) -> Result<Option<Arc<MountedVolume>>, Errno> {
    require_root(&at)?;
    let mount = at.mount.clone();
    drop(at);
    if Arc::ptr_eq(&mount, root_mount()) {
        return Err(Errno::EBUSY);
    }
    // Dropped at the end, without a lock.
    let mut removed = Vec::new();
    removed.try_reserve_exact(if detach { MOST } else { 1 }).map_err(|_| Errno::ENOMEM)?;
    {
        let mut table = exclusive();
        if !mount.is_attached(&table) {
            return Err(Errno::EINVAL);
        }
        // Those of the table and of this function. Others can only be copied from these two, or from others.
        if !detach && Arc::strong_count(&mount) > 2 {
            return Err(Errno::EBUSY);
        }
        let mut next = Some(mount);
        while let Some(mount) = next {
            let above = leave(&mut table, &mount);
            removed.push((mount, above));
            // A mount whose place is in one that has been removed.
            next = table.iter().find(|other| is_within(other, &removed)).cloned();
        }
    }
    let ends = removed.first().filter(|(mount, _)| !detach && Arc::strong_count(&mount.files) == 1);
    let ending = ends.and_then(|(mount, _)| mount.volume().cloned());
    drop(removed);
    Ok(ending)
}

/// Takes a mount from the table; returns the place that it covered.
fn leave(table: &mut Vec<Arc<Mount>>, mount: &Arc<Mount>) -> Option<Place> {
    table.retain(|other| !Arc::ptr_eq(other, mount));
    let above = mount.covers.lock().take()?;
    let covers = |other: &Arc<Mount>| other.covers.lock().as_ref().is_some_and(|place| place.node == above.node);
    if !table.iter().any(covers) {
        above.node.uncover();
    }
    Some(above)
}

/// Whether a mount covers a file of one of these.
fn is_within(mount: &Mount, removed: &[(Arc<Mount>, Option<Place>)]) -> bool {
    let covers = mount.covers.lock();
    covers.as_ref().is_some_and(|place| removed.iter().any(|(above, _)| Arc::ptr_eq(above, &place.mount)))
}

/// Fails with `EACCES` if no program of this mount may be run.
pub(crate) fn require_executable(mount: &Mount) -> Result<(), Errno> {
    if forbids_execution(mount) { Err(Errno::EACCES) } else { Ok(()) }
}

/// Whether the bits of its programs to set user and group do not count.
pub(crate) fn forbids_set_user(mount: &Mount) -> bool {
    mount.flags.load(Ordering::Relaxed) & flag::NO_SET_USER != 0
}

/// Whether nothing of this mount may be executed.
pub(crate) fn forbids_execution(mount: &Mount) -> bool {
    mount.flags.load(Ordering::Relaxed) & flag::NO_EXECUTION != 0
}

/// Fails with `EACCES` if no device of this mount may be opened.
pub(crate) fn require_devices(mount: &Mount) -> Result<(), Errno> {
    if mount.flags.load(Ordering::Relaxed) & flag::NO_DEVICES != 0 { Err(Errno::EACCES) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    #[test]
    fn options_are_sizes_and_permissions_and_nothing_else() {
        run(|_| {
            let options = |size, permissions| Ok(Options { size, permissions });
            assert_eq!(Options::parse(b""), options(None, None));
            assert_eq!(Options::parse(b",mode=755,,size=8k,"), options(Some(8 << 10), Some(0o755)));
            assert_eq!(Options::parse(b"size=1"), options(Some(4096), None), "whole pages");
            let wrong: [&[u8]; 7] =
                [b"mode=9", b"mode=10000", b"mode", b"size=", b"size=8x", b"uid=0", b"size=99999999999999999999"];
            for text in wrong {
                assert_eq!(Options::parse(text), Err(Errno::EINVAL), "{}", text.escape_ascii());
            }
        });
    }
}
