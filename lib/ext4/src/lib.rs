//! Volumes of Linux's ext4 on a block device.
//!
//! The format is the work of `rsext4`, which knows extents, hashed directories, checksums, the journal and the list of
//! orphans. This crate is the boundary around it: a [`Device`] of bytes below, and above a [`Volume`] whose operations
//! take the number of an inode and one name, never a path. So a kernel follows paths itself, in steps, and one
//! operation of a volume is short.
//!
//! # An image is an allegation
//! Everything on a device may have been made to harm. Before `rsext4` sees a volume, `superblock` has refused what
//! it does not know, by name, and sizes for which memory would have to be taken without a bound; [`Volume`] does the
//! same with directories. No request leaves the device: the boundary compares each with the device's size.
//!
//! # Memory
//! Copies of blocks that wait in the journal are kept in memory. A volume that is written uses a short part of its
//! journal (`log`), so they are at most [`MEMORY_OF_JOURNAL`].
//!
//! # After a failure
//! A device that fails ends the journal. The volume is then mounted again for reading, as Linux does with
//! `errors=remount-ro`; changes fail with [`Error::ReadOnly`], and what was synchronised before is there.
//!
//! # Waiting
//! Operations are synchronous: [`Device`] returns when its bytes are there. A kernel without blocking threads runs them
//! on a stack of their own.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod device;
mod log;
mod superblock;
mod transactions;
mod volume;

pub use device::{Device, DeviceFailed};
pub use log::MEMORY_OF_JOURNAL;
pub use superblock::Refusal;
pub use volume::{
    Access, AttributeMode, Attributes, Change, Clock, Entry, Error, FileRun, ListingPlace, NewFile, Replacement, Stamp,
    Unlinked, Usage, Volume, kind,
};
