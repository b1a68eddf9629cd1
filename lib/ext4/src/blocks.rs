//! The blocks of metadata in memory, and their way to the disk.
//!
//! An operation changes blocks here, in place. Each change notes the bytes that were there before, so an operation that
//! fails in the middle, because something is damaged or full, is taken back as a whole ([`Blocks::take_back`]). When
//! changes are to last, when they are many, or after some time, all blocks that were changed become one transaction of
//! the [`JournalLog`]: so a transaction has whole operations alone, and each block once. Checksums are taken then, of
//! the pieces of a block that have changed ([`PieceSums`]), and not at each change.
//!
//! # Allegations
//! A block is looked at when it comes into memory, for what it is wanted as ([`BlockKind`]): its checksum, and that it
//! contradicts neither itself nor the layout. One that was changed as one kind is not used as another.
//!
//! # Order
//! Bytes of files go to their places at once, before the transaction that makes the file have them: the log has the
//! device flushed in between. A block that is freed is nobody's before it lasts that it is free
//! ([`Blocks::freed_behind`]), so a power cut brings no file back with bytes of another.
//!
//! A block of metadata that becomes free is *revoked* if the log has it: a replay must not bring back what was there
//! when it has bytes of a file.
//!
//! # After a commit
//! Blocks of the log stay here until it has no room any more, or ends; then all of them go to their places. That is
//! done after a commit, when no block is newer than the log.
//!
//! # Memory
//! Blocks that are as on the disk are at most [`MOST_CLEAN`] bytes, the others at most the log's.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;

use crate::Error;
use crate::bytes::{half, set_half, set_word};
use crate::checksum::{PieceSums, crc16, crc32c};
use crate::device::{Device, DeviceFailed};
use crate::log::{JournalLog, LoggedBlock};
use crate::superblock::{self, Layout, WIDE_DESCRIPTOR};
use crate::{attributes, directories, extents};

/// Bytes of blocks in memory that are as on the disk.
pub(crate) const MOST_CLEAN: usize = 1 << 20;
/// Number of changed blocks from which on they are committed after an operation.
const MANY: usize = 192;
/// Number of places at which a block is found without a search.
const FRONT: usize = 256;
/// No block.
const NONE: u64 = u64::MAX;
/// Bytes of one operation's notes that are kept for the next one.
const KEPT_NOTES: usize = 16 << 10;

/// The inode whose block it is, with the checksum with which those of its blocks begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockOwner {
    pub(crate) inode: u32,
    pub(crate) seed: u32,
}

/// The use of a block, which says where it has checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// It has the superblock.
    Superblock,
    /// Descriptors of groups.
    Descriptors,
    /// The bitmap of a group's blocks.
    BlockBitmap(u32),
    /// The bitmap of a group's inodes.
    InodeBitmap(u32),
    /// Inodes, from this number on.
    Inodes { first: u32 },
    /// Names of a directory.
    Names(BlockOwner),
    /// A node of a directory's index.
    Index(BlockOwner),
    /// A node of a tree of extents.
    Extents(BlockOwner),
    /// Numbers of blocks, of a file without extents.
    Map,
    /// Extended attributes.
    Attributes,
    /// The target of a symbolic link.
    Target,
    /// From the journal, and not looked at yet.
    Unknown,
}

/// The state of a block in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is as on the disk.
    Clean,
    /// The log has it, and its place has an older state.
    Logged,
    /// It was changed since the last commit; whether the log has an older state.
    New { is_logged: bool },
}

struct HeldBlock {
    number: u64,
    bytes: Box<[u8]>,
    kind: BlockKind,
    state: State,
    /// Inodes whose checksums were compared.
    verified: u128,
    /// Inodes or descriptors whose checksums are to be taken.
    changed: u128,
    sums: PieceSums,
    used: u32,
}

/// A note of an operation's change.
enum Note {
    /// So many bytes at a place of a block were these, the last of the notes' bytes.
    Bytes { block: u64, at: usize, length: usize },
    /// The block was not here.
    Made { block: u64 },
    /// The block had another use.
    Used { block: u64, kind: BlockKind },
}

/// The blocks of a volume that are in memory.
pub(crate) struct Blocks<D> {
    device: D,
    pub(crate) layout: Layout,
    /// The log of a volume with a journal that is written.
    log: Option<JournalLog>,
    slots: Vec<HeldBlock>,
    places: BTreeMap<u64, u32>,
    /// Slots without a block.
    unused: Vec<u32>,
    /// The slots of blocks that were used lately.
    front: Box<[u32]>,
    tick: u32,
    clean: usize,
    /// Number of blocks that were changed since the last commit, and their slots: some twice, and some with another
    /// block by now.
    new: usize,
    changed: Vec<u32>,
    /// Blocks whose states in the log must not be replayed.
    revoked: BTreeSet<u64>,
    notes: Vec<Note>,
    noted_bytes: Vec<u8>,
    /// Ranges of blocks that the operation frees, and blocks of metadata.
    freeing: Vec<Range<u64>>,
    forgetting: Vec<u64>,
    /// Ranges of blocks that were freed since the last commit, by their starts.
    freed: BTreeMap<u64, u64>,
    freed_count: u64,
}

fn failed(DeviceFailed: DeviceFailed) -> Error {
    Error::Device
}

impl<D: Device> Blocks<D> {
    pub(crate) fn new(device: D, layout: Layout) -> Blocks<D> {
        Blocks {
            device,
            layout,
            log: None,
            slots: Vec::new(),
            places: BTreeMap::new(),
            unused: Vec::new(),
            front: alloc::vec![0; FRONT].into_boxed_slice(),
            tick: 0,
            clean: 0,
            new: 0,
            changed: Vec::new(),
            revoked: BTreeSet::new(),
            notes: Vec::new(),
            noted_bytes: Vec::new(),
            freeing: Vec::new(),
            forgetting: Vec::new(),
            freed: BTreeMap::new(),
            freed_count: 0,
        }
    }

    pub(crate) fn device(&self) -> &D {
        &self.device
    }

    /// Has changes go through a log from now on.
    pub(crate) fn use_log(&mut self, log: JournalLog) {
        self.log = Some(log);
    }

    /// Has no log any more, which was ended.
    pub(crate) fn end_log(&mut self) {
        self.log = None;
    }

    /// Whether blocks are to be committed because they are many.
    pub(crate) fn are_many(&self) -> bool {
        self.new >= MANY
    }

    /// Returns a block, which is looked at if it was not in memory.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is not one of this kind, [`Error::Device`], [`Error::OutOfMemory`].
    pub(crate) fn block(&mut self, number: u64, kind: BlockKind) -> Result<&[u8], Error> {
        let slot = self.load(number, kind)?;
        Ok(&self.slots[slot].bytes)
    }

    /// Returns a block that is in memory.
    pub(crate) fn held(&self, number: u64) -> Option<&[u8]> {
        self.places.get(&number).map(|slot| &self.slots[*slot as usize].bytes[..])
    }

    /// Returns a part of a block, to be changed.
    ///
    /// # Errors
    /// As of [`block`](Blocks::block).
    pub(crate) fn change(&mut self, number: u64, kind: BlockKind, part: Range<usize>) -> Result<&mut [u8], Error> {
        let slot = self.load(number, kind)?;
        let held = &mut self.slots[slot];
        let bytes = held.bytes.get_mut(part.clone()).ok_or(Error::Damaged("a place in a block"))?;
        self.noted_bytes.try_reserve(part.len()).map_err(|_| Error::OutOfMemory)?;
        self.notes.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.changed.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.noted_bytes.extend_from_slice(bytes);
        self.notes.push(Note::Bytes { block: number, at: part.start, length: part.len() });
        held.sums.change(&part);
        let item = match kind {
            BlockKind::Inodes { .. } => self.layout.inode,
            BlockKind::Descriptors => self.layout.descriptor,
            _ => 0,
        };
        if item > 0 && !part.is_empty() {
            for index in part.start / item..part.end.div_ceil(item) {
                held.changed |= 1 << index;
                held.verified |= 1 << index;
            }
        }
        match held.state {
            State::Clean => {
                self.clean -= 1;
                self.new += 1;
                self.changed.push(slot as u32);
                held.state = State::New { is_logged: false };
            }
            State::Logged => {
                self.new += 1;
                self.changed.push(slot as u32);
                held.state = State::New { is_logged: true };
            }
            State::New { .. } => {}
        }
        Ok(bytes)
    }

    /// Returns a new block of zeros, whatever the disk has there.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the block is in use, [`Error::OutOfMemory`].
    pub(crate) fn make(&mut self, number: u64, kind: BlockKind) -> Result<&mut [u8], Error> {
        if let Some(slot) = self.places.get(&number).copied() {
            if self.slots[slot as usize].state != State::Clean {
                return Err(Error::Damaged("a free block in use"));
            }
            self.remove(number);
        }
        self.notes.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.make_room();
        let bytes = zeros(self.layout.block)?;
        let is_logged = self.revoked.remove(&number);
        let slot = self.insert(number, bytes, kind, State::New { is_logged });
        self.notes.push(Note::Made { block: number });
        let held = &mut self.slots[slot];
        held.verified = u128::MAX;
        if matches!(kind, BlockKind::Inodes { .. } | BlockKind::Descriptors) {
            held.changed = u128::MAX;
        }
        Ok(&mut held.bytes)
    }

    /// Returns a new block of zeros for inodes or descriptors, of which none counts as changed yet.
    ///
    /// # Errors
    /// As of [`make`](Blocks::make).
    pub(crate) fn make_without_items(&mut self, number: u64, kind: BlockKind) -> Result<(), Error> {
        self.make(number, kind)?;
        if let Some(slot) = self.places.get(&number) {
            self.slots[*slot as usize].changed = 0;
        }
        Ok(())
    }

    /// Gives a block that was changed another use.
    pub(crate) fn use_as(&mut self, number: u64, kind: BlockKind) {
        if let Some(slot) = self.places.get(&number) {
            let held = &mut self.slots[*slot as usize];
            self.notes.push(Note::Used { block: number, kind: held.kind });
            held.kind = kind;
        }
    }

    /// Notes that an inode's checksum was compared; returns whether that had been so.
    pub(crate) fn is_verified(&mut self, number: u64, item: usize) -> bool {
        let Some(slot) = self.places.get(&number) else { return false };
        let held = &mut self.slots[*slot as usize];
        let before = held.verified & 1 << item != 0;
        held.verified |= 1 << item;
        before
    }

    /// Notes that an inode's checksum is wrong.
    pub(crate) fn is_not_verified(&mut self, number: u64, item: usize) {
        if let Some(slot) = self.places.get(&number) {
            self.slots[*slot as usize].verified &= !(1 << item);
        }
    }

    /// Notes that an operation frees blocks.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn free(&mut self, blocks: Range<u64>) -> Result<(), Error> {
        self.freeing.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.freeing.push(blocks);
        Ok(())
    }

    /// Notes that an operation frees a block of metadata.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn forget(&mut self, block: u64) -> Result<(), Error> {
        self.forgetting.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.forgetting.push(block);
        Ok(())
    }

    /// Returns the first range of blocks that ends behind a block and was freed since the last commit. Without a log
    /// nothing lasts as a whole, so nothing waits.
    pub(crate) fn freed_behind(&self, block: u64) -> Option<Range<u64>> {
        let before = self.freed.range(..=block).next_back().filter(|(_, end)| **end > block);
        before.or_else(|| self.freed.range(block..).next()).map(|(start, end)| *start..*end)
    }

    /// Number of blocks that wait until it lasts that they are free.
    pub(crate) fn count_freed(&self) -> u64 {
        self.freed_count
    }

    /// Ends an operation that is done.
    pub(crate) fn keep(&mut self) {
        self.end_notes();
        for block in core::mem::take(&mut self.forgetting) {
            let Some(slot) = self.places.get(&block) else { continue };
            if matches!(self.slots[*slot as usize].state, State::Logged | State::New { is_logged: true }) {
                self.revoked.insert(block);
            }
            self.remove(block);
        }
        let mut freeing = core::mem::take(&mut self.freeing);
        if self.log.is_some() {
            for range in freeing.drain(..) {
                self.add_freed(range);
            }
        }
        freeing.clear();
        self.freeing = freeing;
    }

    fn add_freed(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        self.freed_count += end - start;
        if let Some((before, _)) = self.freed.range(..start).next_back().filter(|(_, end)| **end == start) {
            start = *before;
        }
        if let Some(behind) = self.freed.remove(&end) {
            end = behind;
        }
        self.freed.insert(start, end);
    }

    fn end_notes(&mut self) {
        self.notes.clear();
        self.noted_bytes.clear();
        if self.noted_bytes.capacity() > KEPT_NOTES {
            (self.notes, self.noted_bytes) = (Vec::new(), Vec::new());
        }
    }

    /// Takes an operation back that has failed.
    pub(crate) fn take_back(&mut self) {
        while let Some(note) = self.notes.pop() {
            match note {
                Note::Bytes { block, at, length } => {
                    let start = self.noted_bytes.len() - length;
                    if let Some(slot) = self.places.get(&block) {
                        let held = &mut self.slots[*slot as usize];
                        held.bytes[at..at + length].copy_from_slice(&self.noted_bytes[start..]);
                        held.sums.change(&(at..at + length));
                    }
                    self.noted_bytes.truncate(start);
                }
                Note::Made { block } => {
                    if let Some(slot) = self.places.get(&block)
                        && self.slots[*slot as usize].state == (State::New { is_logged: true })
                    {
                        self.revoked.insert(block);
                    }
                    self.remove(block);
                }
                Note::Used { block, kind } => {
                    if let Some(slot) = self.places.get(&block) {
                        self.slots[*slot as usize].kind = kind;
                    }
                }
            }
        }
        self.end_notes();
        self.freeing.clear();
        self.forgetting.clear();
    }

    /// Returns the slot of a block.
    fn load(&mut self, number: u64, kind: BlockKind) -> Result<usize, Error> {
        self.tick = self.tick.wrapping_add(1);
        let slot = self.front[number as usize % FRONT] as usize;
        match self.slots.get_mut(slot) {
            Some(held) if held.number == number && held.kind == kind => {
                held.used = self.tick;
                Ok(slot)
            }
            _ => self.find(number, kind),
        }
    }

    fn find(&mut self, number: u64, kind: BlockKind) -> Result<usize, Error> {
        if let Some(slot) = self.places.get(&number) {
            let slot = *slot as usize;
            let held = &self.slots[slot];
            if held.kind != kind {
                if held.state != State::Clean && held.kind != BlockKind::Unknown {
                    return Err(Error::Damaged("a block with two uses"));
                }
                let bytes = self.slots[slot].bytes.clone();
                self.verify(number, kind, &bytes)?;
                // The look may have brought other blocks into memory, and let this one go.
                if self.places.get(&number) != Some(&(slot as u32)) {
                    return Err(Error::Damaged("a block with two uses"));
                }
                let held = &mut self.slots[slot];
                (held.kind, held.verified) = (kind, 0);
            }
            self.slots[slot].used = self.tick;
            self.front[number as usize % FRONT] = slot as u32;
            return Ok(slot);
        }
        if number >= self.layout.blocks || number < self.layout.superblock_at().0.min(self.layout.first_block) {
            return Err(Error::Damaged("a number of a block"));
        }
        self.make_room();
        let mut bytes = zeros(self.layout.block)?;
        self.device.read(number * self.layout.block as u64, &mut bytes).map_err(failed)?;
        self.verify(number, kind, &bytes)?;
        // The look has needed the block as one of another kind.
        if self.places.contains_key(&number) {
            return Err(Error::Damaged("a block with two uses"));
        }
        Ok(self.insert(number, bytes, kind, State::Clean))
    }

    fn insert(&mut self, number: u64, bytes: Box<[u8]>, kind: BlockKind, state: State) -> usize {
        let sums = PieceSums::default();
        let held = HeldBlock { number, bytes, kind, state, verified: 0, changed: 0, sums, used: self.tick };
        match state {
            State::Clean => self.clean += 1,
            State::Logged => {}
            State::New { .. } => self.new += 1,
        }
        let slot = match self.unused.pop() {
            Some(slot) => {
                self.slots[slot as usize] = held;
                slot as usize
            }
            None => {
                self.slots.push(held);
                self.slots.len() - 1
            }
        };
        if matches!(state, State::New { .. }) {
            self.changed.push(slot as u32);
        }
        self.places.insert(number, slot as u32);
        self.front[number as usize % FRONT] = slot as u32;
        slot
    }

    fn remove(&mut self, number: u64) {
        let Some(slot) = self.places.remove(&number) else { return };
        let held = &mut self.slots[slot as usize];
        match held.state {
            State::Clean => self.clean -= 1,
            State::Logged => {}
            State::New { .. } => self.new -= 1,
        }
        (held.number, held.bytes, held.changed, held.sums) = (NONE, Box::default(), 0, PieceSums::default());
        self.unused.push(slot);
    }

    /// Lets blocks go that were not used for long, if there are many that are as on the disk.
    fn make_room(&mut self) {
        while self.clean * self.layout.block >= MOST_CLEAN {
            let before = self.clean;
            self.let_oldest_go();
            if self.clean == before {
                break;
            }
        }
    }

    fn let_oldest_go(&mut self) {
        let age = |held: &HeldBlock, tick: u32| tick.wrapping_sub(held.used);
        let may_go =
            |held: &&HeldBlock| held.number != NONE && held.state == State::Clean && held.kind != BlockKind::Superblock;
        let mut ages: Vec<u32> = self.slots.iter().filter(may_go).map(|held| age(held, self.tick)).collect();
        if ages.is_empty() {
            return;
        }
        let oldest = ages.len() * 3 / 4;
        let (_, limit, _) = ages.select_nth_unstable(oldest);
        let limit = *limit;
        let is_old = |held: &&HeldBlock| may_go(held) && age(held, self.tick) >= limit;
        let gone: Vec<u64> = self.slots.iter().filter(is_old).map(|held| held.number).collect();
        for number in gone {
            self.remove(number);
        }
    }

    /// Holds a block of a journal that is not brought to its place.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Damaged`] if it is not one of the volume's.
    pub(crate) fn cover(&mut self, number: u64, bytes: &[u8]) -> Result<(), Error> {
        if number >= self.layout.blocks {
            return Err(Error::Damaged("a number of a block"));
        }
        self.remove(number);
        let mut own = zeros(self.layout.block)?;
        own.copy_from_slice(bytes);
        self.insert(number, own, BlockKind::Unknown, State::Logged);
        Ok(())
    }

    /// Number of blocks that are held.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Fails unless a block is one of this kind.
    fn verify(&mut self, number: u64, kind: BlockKind, bytes: &[u8]) -> Result<(), Error> {
        let layout = self.layout;
        match kind {
            BlockKind::Descriptors => {
                let first = (number - layout.first_block - 1) * (layout.block / layout.descriptor) as u64;
                for (group, descriptor) in (first..layout.groups.into()).zip(bytes.chunks_exact(layout.descriptor)) {
                    if group.is_multiple_of(16) {
                        self.device.pause();
                    }
                    let has_checksums = layout.has_checksums || layout.has_group_checksums;
                    if has_checksums && half(descriptor, 30) != descriptor_checksum(&layout, group as u32, descriptor) {
                        return Err(Error::Damaged("the checksum of a group's descriptor"));
                    }
                }
                Ok(())
            }
            BlockKind::BlockBitmap(group) | BlockKind::InodeBitmap(group) if layout.has_checksums => {
                let (block, at) = layout.descriptor_at(group);
                let descriptor = &self.block(block, BlockKind::Descriptors)?[at..at + layout.descriptor];
                let (low, high) = bitmap_checksum_at(kind);
                let checksum = bitmap_checksum(&layout, kind, bytes);
                let is_wide = layout.descriptor >= WIDE_DESCRIPTOR;
                let is_right = half(descriptor, low) == checksum as u16
                    && (!is_wide || half(descriptor, high) == (checksum >> 16) as u16);
                if is_right { Ok(()) } else { Err(Error::Damaged("the checksum of a bitmap")) }
            }
            BlockKind::Names(owner) => directories::check_names(&layout, owner, bytes),
            BlockKind::Index(owner) => crate::index::check_node(&layout, owner, bytes),
            BlockKind::Extents(owner) => extents::check_block(&layout, owner, bytes),
            BlockKind::Attributes => attributes::check_block(&layout, number, bytes),
            _ => Ok(()),
        }
    }

    /// Gives all blocks that were changed their checksums.
    fn seal(&mut self) -> Result<(), DeviceFailed> {
        let layout = self.layout;
        // Those of bitmaps are in descriptors, which have their own.
        let mut index = 0;
        // Descriptors that are changed meanwhile come to the end of the list.
        while let Some(slot) = self.changed.get(index) {
            let held = &mut self.slots[*slot as usize];
            index += 1;
            if held.number == NONE || !matches!(held.state, State::New { .. }) || !layout.has_checksums {
                continue;
            }
            let (kind, BlockKind::BlockBitmap(group) | BlockKind::InodeBitmap(group)) = (held.kind, held.kind) else {
                continue;
            };
            held.sums.renew(&held.bytes);
            let checksum = held.sums.sum(layout.seed, &held.bytes, 0..bitmap_bytes(&layout, kind));
            let (block, at) = layout.descriptor_at(group);
            let (low, high) = bitmap_checksum_at(kind);
            let parts = [(low, checksum as u16), (high, (checksum >> 16) as u16)];
            for (within, part) in parts.into_iter().take(1 + usize::from(layout.descriptor >= WIDE_DESCRIPTOR)) {
                let place = at + within..at + within + 2;
                let bytes = self.change(block, BlockKind::Descriptors, place).map_err(|_| DeviceFailed)?;
                set_half(bytes, 0, part);
            }
            self.device.pause();
        }
        self.end_notes();
        for slot in &self.changed {
            let held = &mut self.slots[*slot as usize];
            if held.number != NONE && matches!(held.state, State::New { .. }) {
                seal_block(&layout, held);
                self.device.pause();
            }
        }
        Ok(())
    }

    /// Commits everything that was changed, and returns when it lasts.
    ///
    /// # Errors
    /// [`DeviceFailed`].
    pub(crate) fn commit(&mut self, seconds: i64, ends: bool) -> Result<(), DeviceFailed> {
        if self.new > 0 || !self.revoked.is_empty() {
            self.seal()?;
            let mut changed: Vec<(u64, u32)> = Vec::new();
            changed.try_reserve_exact(self.changed.len()).map_err(|_| DeviceFailed)?;
            let held = |slot: &u32| &self.slots[*slot as usize];
            let is_new = |slot: &&u32| held(slot).number != NONE && matches!(held(slot).state, State::New { .. });
            changed.extend(self.changed.iter().filter(is_new).map(|slot| (held(slot).number, *slot)));
            changed.sort_unstable();
            changed.dedup();
            match &mut self.log {
                Some(log) => {
                    let slots = &self.slots;
                    let blocks = changed.iter().map(|(place, slot)| {
                        let held = &slots[*slot as usize];
                        LoggedBlock { place: *place, bytes: &held.bytes, sums: &held.sums }
                    });
                    log.append(&self.device, blocks, &self.revoked, seconds)?;
                }
                None => {
                    for (number, slot) in &changed {
                        self.device.write(number * self.layout.block as u64, &self.slots[*slot as usize].bytes)?;
                        self.device.pause();
                    }
                    self.device.flush()?;
                    self.clean += changed.len();
                }
            }
            let state = if self.log.is_some() { State::Logged } else { State::Clean };
            for (_, slot) in changed {
                self.slots[slot as usize].state = state;
            }
            self.revoked.clear();
            self.new = 0;
            self.changed.clear();
        } else {
            self.changed.clear();
            self.device.flush()?;
        }
        self.freed.clear();
        self.freed_count = 0;
        if ends {
            self.bring_home()?;
            if let Some(log) = &mut self.log {
                log.end(&self.device)?;
            }
        } else if self.log.as_ref().is_some_and(|log| !log.has_room()) {
            self.bring_home()?;
            if let Some(log) = &mut self.log {
                log.restart(&self.device)?;
            }
        }
        Ok(())
    }

    /// Brings all blocks to their places, where they last. None is newer than the log.
    fn bring_home(&mut self) -> Result<(), DeviceFailed> {
        for (number, slot) in &self.places {
            let held = &self.slots[*slot as usize];
            if held.state == State::Logged {
                self.device.write(number * self.layout.block as u64, &held.bytes)?;
                self.device.pause();
            }
        }
        self.device.flush()?;
        for held in self.slots.iter_mut().filter(|held| held.number != NONE && held.state == State::Logged) {
            held.state = State::Clean;
            self.clean += 1;
        }
        self.make_room();
        Ok(())
    }
}

pub(crate) fn zeros(length: usize) -> Result<Box<[u8]>, Error> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Error::OutOfMemory)?;
    bytes.resize(length, 0);
    Ok(bytes.into_boxed_slice())
}

/// Returns the checksum of a group's descriptor.
fn descriptor_checksum(layout: &Layout, group: u32, descriptor: &[u8]) -> u16 {
    let number = group.to_le_bytes();
    if layout.has_checksums {
        let before = crc32c(crc32c(crc32c(layout.seed, &number), &descriptor[..30]), &[0; 2]);
        return crc32c(before, &descriptor[32..]) as u16;
    }
    crc16(crc16(crc16(layout.old_seed, &number), &descriptor[..30]), &descriptor[32..])
}

/// Returns the offsets of the halves of a bitmap's checksum in its group's descriptor.
fn bitmap_checksum_at(kind: BlockKind) -> (usize, usize) {
    if matches!(kind, BlockKind::BlockBitmap(_)) { (24, 56) } else { (26, 58) }
}

/// Returns the checksum of a bitmap.
fn bitmap_checksum(layout: &Layout, kind: BlockKind, bytes: &[u8]) -> u32 {
    crc32c(layout.seed, &bytes[..bitmap_bytes(layout, kind)])
}

/// Returns the number of a bitmap's bytes that have a checksum.
fn bitmap_bytes(layout: &Layout, kind: BlockKind) -> usize {
    let bits = if matches!(kind, BlockKind::BlockBitmap(_)) { layout.group_blocks } else { layout.group_inodes };
    bits as usize / 8
}

/// Gives a block that was changed its checksums, and takes those of its pieces for the journal.
fn seal_block(layout: &Layout, held: &mut HeldBlock) {
    let changed = core::mem::take(&mut held.changed);
    held.sums.renew(&held.bytes);
    let HeldBlock { bytes, sums, .. } = held;
    let items = |size: usize| (0..layout.block / size).filter(move |item| changed & 1 << item != 0);
    match held.kind {
        BlockKind::Superblock if layout.has_checksums => {
            let at = layout.superblock_at().1;
            let place = at + superblock::CHECKSUM_AT;
            let checksum = sums.sum(crate::checksum::START, bytes, at..place);
            put_checksum(bytes, sums, place, checksum);
        }
        BlockKind::Descriptors if layout.has_checksums || layout.has_group_checksums => {
            let first = (held.number - layout.first_block - 1) * (layout.block / layout.descriptor) as u64;
            for item in items(layout.descriptor) {
                let at = item * layout.descriptor;
                let descriptor = &mut bytes[at..at + layout.descriptor];
                let checksum = descriptor_checksum(layout, first as u32 + item as u32, descriptor);
                set_half(descriptor, 30, checksum);
                sums.change(&(at..at + layout.descriptor));
            }
        }
        BlockKind::Inodes { first } if layout.has_checksums => {
            for item in items(layout.inode) {
                let (number, at) = (first + item as u32, item * layout.inode);
                crate::inodes::seal(layout, number, &mut bytes[at..at + layout.inode]);
                sums.change(&(at..at + layout.inode));
            }
        }
        BlockKind::Names(owner) if layout.has_checksums => {
            let end = directories::names_end(layout);
            let checksum = sums.sum(owner.seed, bytes, 0..end);
            put_checksum(bytes, sums, end + directories::CHECKSUM_IN_TAIL, checksum);
        }
        BlockKind::Extents(owner) if layout.has_checksums => {
            let end = extents::checksum_at(bytes);
            if end + 4 <= bytes.len() {
                let checksum = sums.sum(owner.seed, bytes, 0..end);
                put_checksum(bytes, sums, end, checksum);
            }
        }
        BlockKind::Index(owner) if layout.has_checksums => {
            crate::index::seal_node(owner, bytes);
            sums.change(&(0..layout.block));
        }
        BlockKind::Attributes if layout.has_checksums => {
            attributes::seal_block(layout, held.number, bytes);
            sums.change(&(0..layout.block));
        }
        _ => {}
    }
    sums.renew(bytes);
}

/// Puts a checksum into a block, where it is one of the bytes of a piece.
fn put_checksum(bytes: &mut [u8], sums: &mut PieceSums, at: usize, checksum: u32) {
    set_word(bytes, at, checksum);
    sums.change(&(at..at + 4));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::tests::{MemoryDevice, small_layout};

    /// A look at a block as one of another kind needs the descriptors, for which the block itself may have to go.
    #[test]
    fn a_block_that_goes_while_it_is_looked_at_is_not_given_away() {
        let bytes = MOST_CLEAN / 1024 + 16;
        let mut layout = small_layout(true);
        layout.blocks = bytes as u64;
        let device = MemoryDevice(alloc::rc::Rc::new(core::cell::RefCell::new(alloc::vec![0; bytes << 10])));
        let (descriptors, at) = layout.descriptor_at(0);
        let mut descriptor = alloc::vec![0; layout.descriptor];
        let checksum = bitmap_checksum(&layout, BlockKind::BlockBitmap(0), &[0; 1024]);
        set_half(&mut descriptor, bitmap_checksum_at(BlockKind::BlockBitmap(0)).0, checksum as u16);
        let checksum = descriptor_checksum(&layout, 0, &descriptor);
        set_half(&mut descriptor, 30, checksum);
        device.write(descriptors * 1024 + at as u64, &descriptor).unwrap();
        let mut blocks = Blocks::new(device, layout);
        for number in 0..(MOST_CLEAN / 1024) as u64 {
            blocks.block(8 + number, BlockKind::Map).unwrap();
        }
        assert!(blocks.block(8, BlockKind::BlockBitmap(0)).is_err());
        assert_eq!(blocks.block(8, BlockKind::BlockBitmap(0)).map(<[u8]>::len), Ok(1024));
    }
}
