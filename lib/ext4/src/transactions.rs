//! The blocks of a volume that were changed and are not at their places yet.
//!
//! `rsext4` 0.9.2 has a journal of its own, which copies all blocks of the running transaction at each change, and
//! looks through all copies one after the other. So it is shown a volume without a journal, and the journal is here,
//! below it: the blocks that it writes are kept, each once, however many changes are made to it, and found in a map.
//! When something is to last, when they are many, or after some time, the library has published everything that it
//! keeps itself, and all blocks become one transaction of the [`JournalLog`]. So a transaction has whole operations
//! alone.
//!
//! # Order
//! Bytes of files go to their places at once, before the transaction that makes the file have them: the log has them
//! last first. They are told from other blocks by the memory in which they lie ([`Transactions::of_files`]), or by
//! their numbers, if the library keeps them for a while. All other blocks go through the log, which is right for every
//! block.
//!
//! A place in the log that gets bytes of a file is *revoked*: a replay must not bring back the block that was there.
//!
//! # After a commit
//! Blocks of the log stay here until it has no room any more, or ends; then all of them go to their places. That is
//! done after a commit, when no block is newer than the log.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;

use crate::device::{Device, DeviceFailed};
use crate::log::JournalLog;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// Number of changed blocks from which on they are committed after an operation.
const MANY: usize = 192;

/// A block that is not at its place.
struct HeldBlock {
    bytes: Box<[u8]>,
    /// It was changed since the last commit.
    is_new: bool,
    /// The log has an older state of it, which may be the same.
    is_logged: bool,
}

/// The blocks of a volume that are not at their places.
pub(crate) struct Transactions {
    log: JournalLog,
    held: BTreeMap<u64, HeldBlock>,
    /// Number of blocks that were changed since the last commit.
    new: usize,
    /// Blocks whose states in the log must not be replayed.
    revoked: BTreeSet<u64>,
    /// The memory with bytes of a file, which the library is writing.
    written: Range<usize>,
    /// Number of blocks from that memory that went to their places.
    through: usize,
    /// Blocks with bytes of files, which the library keeps for a while.
    kept: BTreeSet<u64>,
    /// The next flush is the last one.
    ends: bool,
}

/// Reason why blocks are not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotWritten {
    /// The device has failed.
    Device,
    /// There is no memory.
    OutOfMemory,
}

impl From<DeviceFailed> for NotWritten {
    fn from(DeviceFailed: DeviceFailed) -> NotWritten {
        NotWritten::Device
    }
}

impl Transactions {
    pub(crate) fn new(log: JournalLog) -> Transactions {
        Transactions {
            log,
            held: BTreeMap::new(),
            new: 0,
            revoked: BTreeSet::new(),
            written: 0..0,
            through: 0,
            kept: BTreeSet::new(),
            ends: false,
        }
    }

    /// Notes the memory with bytes of a file that are written next.
    pub(crate) fn of_files(&mut self, bytes: &[u8]) {
        let start = bytes.as_ptr().addr();
        (self.written, self.through) = (start..start + bytes.len(), 0);
    }

    /// Notes that nothing is written that is known to be bytes of a file. Returns whether all those bytes went to their
    /// places, where the device's flush is enough for them to last: the library may keep some, and the log may have
    /// older blocks of these places.
    pub(crate) fn not_of_files(&mut self) -> bool {
        let length = core::mem::take(&mut self.written).len();
        core::mem::take(&mut self.through) * BLOCK == length && self.revoked.is_empty()
    }

    /// Notes that a block has bytes of a file, until the next commit.
    pub(crate) fn keep(&mut self, block: u64) {
        self.kept.insert(block);
    }

    /// Notes that any block may have become free, and another's.
    pub(crate) fn keep_none(&mut self) {
        self.kept.clear();
    }

    /// Whether blocks are to be committed because they are many.
    pub(crate) fn are_many(&self) -> bool {
        self.new >= MANY
    }

    /// Whether anything is to be committed.
    pub(crate) fn has_changes(&self) -> bool {
        self.new > 0 || !self.revoked.is_empty()
    }

    /// Whether a block is not at its place.
    pub(crate) fn has(&self, block: u64) -> bool {
        self.held.contains_key(&block) || self.kept.contains(&block)
    }

    /// Has the next flush bring all blocks to their places, and empty the journal, or not.
    pub(crate) fn end_next(&mut self, ends: bool) {
        self.ends = ends;
    }

    /// Lays the blocks that are not at their places over bytes that were read from the device.
    pub(crate) fn lay_over(&self, offset: u64, bytes: &mut [u8]) {
        if self.held.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        for (block, held) in self.held.range(offset / BLOCK as u64..end.div_ceil(BLOCK as u64)) {
            let start = block * BLOCK as u64;
            let (from, to) = (start.max(offset), (start + BLOCK as u64).min(end));
            let piece = &held.bytes[(from - start) as usize..(to - start) as usize];
            bytes[(from - offset) as usize..(to - offset) as usize].copy_from_slice(piece);
        }
    }

    /// Returns whether a read needs the device, or has all of its bytes here.
    pub(crate) fn covers(&self, offset: u64, length: usize) -> bool {
        let (first, end) = (offset / BLOCK as u64, (offset + length as u64).div_ceil(BLOCK as u64));
        self.held.len() as u64 >= end - first && (first..end).all(|block| self.held.contains_key(&block))
    }

    /// Takes blocks that the library writes.
    pub(crate) fn write<D: Device>(&mut self, device: &D, offset: u64, bytes: &[u8]) -> Result<(), NotWritten> {
        let (first, start) = (offset / BLOCK as u64, bytes.as_ptr().addr());
        if self.written.contains(&start) && start + bytes.len() <= self.written.end {
            for block in (first..).take(bytes.len() / BLOCK) {
                self.give_up(block);
            }
            device.write(offset, bytes)?;
            self.through += bytes.len() / BLOCK;
            return Ok(());
        }
        for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK)) {
            if self.kept.contains(&block) {
                self.give_up(block);
                device.write(block * BLOCK as u64, bytes)?;
            } else {
                self.hold(block, bytes)?;
            }
        }
        Ok(())
    }

    /// Holds a block with these bytes.
    fn hold(&mut self, block: u64, bytes: &[u8]) -> Result<(), NotWritten> {
        if let Some(held) = self.held.get_mut(&block) {
            held.bytes.copy_from_slice(bytes);
            self.new += usize::from(!held.is_new);
            held.is_new = true;
            return Ok(());
        }
        let mut copy = Vec::new();
        copy.try_reserve_exact(BLOCK).map_err(|_| NotWritten::OutOfMemory)?;
        copy.extend_from_slice(bytes);
        let is_logged = self.revoked.remove(&block);
        self.held.insert(block, HeldBlock { bytes: copy.into_boxed_slice(), is_new: true, is_logged });
        self.new += 1;
        Ok(())
    }

    /// Lets a block go, which gets bytes of a file.
    fn give_up(&mut self, block: u64) {
        let Some(held) = self.held.remove(&block) else { return };
        self.new -= usize::from(held.is_new);
        if held.is_logged {
            self.revoked.insert(block);
        }
    }

    /// Commits everything that was written, and returns when it lasts.
    pub(crate) fn flush<D: Device>(&mut self, device: &D, seconds: i64) -> Result<(), DeviceFailed> {
        if self.has_changes() {
            let mut numbers = Vec::new();
            numbers.try_reserve_exact(self.new).map_err(|_| DeviceFailed)?;
            numbers.extend(self.held.iter().filter(|(_, held)| held.is_new).map(|(block, _)| *block));
            let held = &self.held;
            let blocks = numbers.iter().map(|number| (*number, &held[number].bytes[..]));
            self.log.append(device, blocks, &self.revoked, seconds)?;
            for held in self.held.values_mut() {
                (held.is_new, held.is_logged) = (false, true);
            }
            self.revoked.clear();
            self.new = 0;
        } else {
            device.flush()?;
        }
        self.kept.clear();
        if self.ends {
            self.bring_home(device)?;
            self.log.end(device)?;
        } else if !self.log.has_room() {
            self.bring_home(device)?;
            self.log.restart(device)?;
        }
        Ok(())
    }

    /// Brings all blocks to their places, where they last. None is newer than the log.
    fn bring_home<D: Device>(&mut self, device: &D) -> Result<(), DeviceFailed> {
        for (block, held) in &self.held {
            device.write(block * BLOCK as u64, &held.bytes)?;
            device.pause();
        }
        device.flush()?;
        self.held.clear();
        Ok(())
    }
}
