//! Files in memory with Unix semantics, for a system whose root file system is its initramfs.
//!
//! Two parts share this crate because one is made from the other. [`cpio`] reads (and, with the feature `write`, makes)
//! the archive a boot loader puts into memory. [`Filesystem`] is a tree of files, directories, symbolic links and
//! device numbers with the semantics of Linux's tmpfs; [`Filesystem::populate`] fills it from an archive **without
//! copying the contents**: a file refers to the archive's bytes until it is written to, and then only the written pages
//! are copied.
//!
//! # Scope
//!
//! *Names, links, contents and limits* are decided here. All semantics that do not involve processes follow Linux to
//! the error code: path resolution, the files that `rename` may replace, operations on a removed but open file. A
//! differential test runs the same operations on the host's own file system.
//!
//! *Users* are values here: a path is followed, and a file made or changed, for a [`rights::Subject`] with its groups,
//! and [`rights`] has the rules; which process is which user, a kernel decides. *Devices* are not: a node stores a
//! [`DeviceNumber`], and the kernel implements reading from it; nor are *FIFOs*, of which a node keeps the value in
//! which openings meet. *Clocks* are not: operations that change a file take the time as a value. Reading does not
//! update the time of access, as with Linux's `noatime`.
//!
//! # Memory
//!
//! All growth is allocated fallibly, and the memory of a tree is limited when it is made ([`Error::NoSpace`],
//! [`Error::OutOfMemory`]): a program that fills `/tmp` gets an error and the kernel keeps running. This is why inodes
//! live in a table with reference counts of its own, and not in `Arc`s, whose allocation cannot fail.
//!
//! # Locks
//!
//! All operations may run at the same time on different harts. Locks spin and are held for a bounded time, except that
//! the closures given to `read_with` and `write_with` run under the lock of one file: they must not use this file
//! system, and must not wait. The order, outermost first:
//!
//! 1. the position of one open file; or the rename lock: one rename at a time, because a rename must see a tree that
//!    does not change its shape;
//! 2. directories, an ancestor before its descendant; only a rename locks two that are not parent and child;
//! 3. one regular file;
//! 4. attributes of one inode, or the list of free inodes.
//!
//! Path resolution holds one directory's lock at a time, for one lookup.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cpio;

mod contents;
mod directory;
mod error;
mod memory;
mod node;
mod open;
mod populate;
mod quota;
pub mod rights;
mod table;
mod tree;
mod walk;
mod watch;
mod writers;

pub use contents::{CommonPages, MAX_FILE_LENGTH, PAGE_SIZE, Stretch, seal};
pub use error::Error;
pub use node::{Base, DeviceNumber, DirectoryEntry, FileKind, Meeting, MeetingPlace, Metadata, Node, Part, Timestamp};
pub use open::{Access, Contents, Creation, Expect, OpenFile, OpenOptions, SeekFrom, Writes};
pub use populate::PopulateError;
pub use quota::{Maker, Owner};
pub use table::{MakeObject, Object};
pub use tree::{Filesystem, PathSoFar, RenameSoFar, Replacement, SpecialFile, Usage};
pub use walk::{
    Departure, LastComponent, LastLink, MAX_NAME_LENGTH, MAX_PATH_LENGTH, MAX_SYMBOLIC_LINKS, MAX_WAY_LENGTH, WayOn,
    leading_slashes,
};
pub use watch::{Event, Observer, event, next_cookie};
pub use writers::Writers;
