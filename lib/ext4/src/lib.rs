//! Volumes of Linux's ext4 on a block device.
//!
//! A [`Device`] of bytes is below, and above a [`Volume`] whose operations take the number of an inode and one name,
//! never a path. So a kernel follows paths itself, in steps, and one operation of a volume is short.
//!
//! # The rooms
//! `blocks` has the metadata in memory, changes it so that a failed operation leaves nothing, and writes it through the
//! `log`; `replay` reads the log after a power cut. `superblock` has the numbers that all follow, `filesystem` the
//! groups, `allocation` their bitmaps, `inodes` the inodes. `maps` finds blocks of files, in trees of `extents` or in
//! `block_maps` of ext2. `directories` has names, `index` and `hashes` find them in large ones, `attributes` has the
//! extended ones, `contents` bytes of files. `volume` puts operations together.
//!
//! # An image is an allegation
//! Everything on a device may have been made to harm. Before anything else, `superblock` refuses features that are not
//! known, by name, and sizes for which memory would have to be taken without a bound. Each block of metadata is looked
//! at when it comes into memory, each number of a block before it is used; loops have bounds. No request leaves the
//! volume.
//!
//! # Memory
//! Copies of blocks that wait in the journal are kept in memory. A volume that is written uses a short part of its
//! journal (`log`), so they are at most [`MEMORY_OF_JOURNAL`]; and a megabyte of others.
//!
//! # After a failure
//! An operation that finds damage or no room leaves nothing of itself. A device that does not take what is written ends
//! the journal: the volume is then mounted again for reading, as Linux does with `errors=remount-ro`; changes fail with
//! [`Error::ReadOnly`], and what was synchronised before is there.
//!
//! # Waiting
//! Operations are synchronous: [`Device`] returns when its bytes are there. A kernel without blocking threads runs them
//! on a stack of their own.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod allocation;
mod attributes;
mod block_maps;
mod blocks;
mod bytes;
mod checksum;
mod contents;
mod device;
mod directories;
mod extents;
mod filesystem;
mod hashes;
mod index;
mod inodes;
mod log;
mod maps;
mod replay;
mod superblock;
mod volume;

pub use device::{Device, DeviceFailed};
pub use log::MEMORY_OF_JOURNAL;
pub use superblock::Refusal;
pub use volume::{
    Access, AttributeMode, Attributes, Change, Clock, Entry, Error, FileRun, Growth, ListingPlace, NewFile,
    RangeChange, Replacement, Special, Stamp, Unlinked, Usage, Volume, kind,
};
