//! The pages of a volume's files that are in memory (Linux: the page cache).
//!
//! The pages of a file in use lie in a [memory object](MemoryObject), where programs that read, write or map the file
//! find the same bytes. A page gets there on the volume's stack alone, filled before anybody sees it; most often it is
//! the memory to which the disk has read it, which the disk's cache gives away. A reader copies pages that are there in
//! place, and a writer those that have a block of the volume: neither asks the volume then. The first write to a page
//! goes to the volume, which gives it its block, so that a full volume refuses the write itself and no later one
//! (`ENOSPC`).
//!
//! # Changes
//! Changed pages are written by `fsync` and its like, by the volume's coroutine when they are [old](EXPIRES_NS) or
//! many, and before the volume ends. Writers that meet [too many](too_many_changed) of them write through the volume's
//! stack, and wait for it.
//!
//! # Mappings
//! Programs map the object's pages. A touch of one that is not there waits until the volume has read it
//! ([fetching](crate::calls::fetching)). Stores by programs leave no trace that the kernel sees, so each page that can
//! be stored to is compared with the volume whenever changes are written, as long as there is such a mapping and once
//! afterwards. Each of them is noted, so that several comparisons of a file may be under way. Rejected: faults at the
//! first store of each page, which would have to be armed again in every address space after each writing.
//!
//! # Files of the host
//! Others change a file of the host meanwhile. So its pages have *notes*, checksums of their bytes when they were read
//! or written last: a page that is as noted was not stored to, and is never written. A page that was read before the
//! file changed on the host is *stale*: it is read again for the next mapping, unless others have it mapped.
//!
//! # Memory
//! The pages are the machine's, as those of disks: they have a limit, and those that are as on the volume are given
//! back when memory is short, the ones first that were not used since the last look (*clock*). A file that is mapped
//! keeps its pages; those that are mapped are in the charge of the mapper as well.
//!
//! # Locks
//! A file's pages have one lock, taken before the one of its attributes and those of address spaces.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi_queue::pages::PAGE_SIZE;
use ext4::Stamp;
use memory::object::{Absent, MOST_PAGES, ObjectPages, Payer};
use memory::{Frame, MemoryObject, OutOfMemory, SharedFrame};
use tables::Ordered;

use crate::files::disk::ZEROS;
use crate::files::remains::{self, Remain};
use crate::process::futex::Futexes;

/// Share of the machine's memory that the pages of all files of volumes may take.
const SHARE: usize = 4;
/// Share of the machine's memory that pages may take that were changed and not written (Linux: `dirty_ratio`, of the
/// available memory). From half of that on they are written without waiting for their age.
const CHANGED_SHARE: usize = 10;
/// Age at which changes are written (Linux: `dirty_expire_centisecs`).
pub(super) const EXPIRES_NS: u64 = 30_000_000_000;
/// Number of groups of pages that are looked at for changes, at a time.
const GROUPS_AT_A_TIME: usize = 64;
/// Pages of a group.
const GROUP: u64 = u64::BITS as u64;

/// Bytes of the pages of all files, with their records in the objects.
static CACHED: AtomicUsize = AtomicUsize::new(0);
/// Number of changed pages of all files.
static CHANGED: AtomicUsize = AtomicUsize::new(0);

fn share_of_memory(share: usize) -> usize {
    memory::frames::total_frames() / share
}

/// Whether writers must wait for the volume.
pub(super) fn too_many_changed() -> bool {
    CHANGED.load(Ordering::Relaxed) >= share_of_memory(CHANGED_SHARE)
}

/// Whether changes are to be written, whatever their age is.
pub(super) fn many_changed() -> bool {
    CHANGED.load(Ordering::Relaxed) >= share_of_memory(CHANGED_SHARE * 2)
}

/// Whether there may be one more page.
pub(super) fn is_one_free() -> bool {
    memory::frames::available_to_programs(2)
        && CACHED.load(Ordering::Relaxed) + PAGE_SIZE <= share_of_memory(SHARE) * PAGE_SIZE
}

/// The machine, which has the pages of a file, with the number of their bytes.
#[derive(Default)]
struct CachePayer(AtomicUsize);

impl Payer for CachePayer {
    fn pay(&self, bytes: usize) -> Result<(), OutOfMemory> {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        CACHED.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn repay(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
        CACHED.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn free(self: Box<Self>, pages: ObjectPages) {
        remains::leave(FreedPages { pages, payer: self });
    }
}

/// Pages of a file that is not in use any more.
struct FreedPages {
    pages: ObjectPages,
    payer: Box<CachePayer>,
}

impl Remain for FreedPages {
    fn owner(&self) -> Option<u32> {
        None
    }

    fn step(&mut self) -> bool {
        !self.pages.free_some()
    }
}

impl Drop for FreedPages {
    fn drop(&mut self) {
        CACHED.fetch_sub(self.payer.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// State of 64 neighbouring pages, a bit for each.
#[derive(Clone, Copy, Default)]
struct Marks {
    /// It is in memory.
    present: u64,
    /// It has its block of the volume.
    placed: u64,
    /// It was changed, and is to be written.
    changed: u64,
    /// Programs may have stored to it.
    stored: u64,
    /// It was used since the last look for pages to give back.
    used: u64,
    /// It was read before the file changed on the host.
    stale: u64,
}

/// The pages that stay when some are given back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spares {
    /// Those that were used since the last look.
    Used,
    /// None that can go.
    Nothing,
}

/// A piece of changes that is to be written.
pub(super) struct ChangedPiece {
    /// The first page.
    pub(super) first: u64,
    /// Number of pages.
    pub(super) count: usize,
    /// Whether they were changed, and not perhaps stored to.
    pub(super) is_changed: bool,
    /// Whether they have their blocks.
    pub(super) is_placed: bool,
    /// The note of the bytes, of a page of the host.
    pub(super) note: Option<u64>,
}

/// Returns the note of a page's bytes: a change of a few words is sure to be another one, any other change nearly so.
fn note_of(bytes: &[u8; PAGE_SIZE]) -> u64 {
    bytes.as_chunks::<8>().0.iter().fold(0, |note, word| {
        let mixed = (note ^ u64::from_le_bytes(*word)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
    })
}

/// Returns a copy of a page's bytes.
fn copy_of(frame: &SharedFrame) -> [u8; PAGE_SIZE] {
    let mut copy = [0; PAGE_SIZE];
    frame.read(0, &mut copy);
    copy
}

/// Returns the group of a page, and its bit there.
fn place_of(page: u64) -> (u64, u64) {
    (page / GROUP, 1 << (page % GROUP))
}

/// The pages of a file that are in memory.
#[derive(Default)]
pub(super) struct CachedPages {
    object: Option<Arc<MemoryObject>>,
    marks: Ordered<Marks>,
    changed: usize,
    /// Time of the last change that the volume has not been told.
    pub(super) modified: Option<Stamp>,
    /// The state of a file of the host when its pages were read, if each change since then would be seen in it: its
    /// length, and the times of the last change of contents and of the last change.
    pub(super) seen: Option<(u64, [Stamp; 2])>,
    /// Number of mappings that can store.
    mappings: usize,
    /// Number of pages to which programs may have stored since they were compared last.
    stored: usize,
    /// The process that has changed a page last, or has mapped the file last to store to it.
    pub(super) payer: u32,
    /// The group at which the next look for pages to give back begins.
    hand: u64,
    /// The notes of the pages of each group, for a file of the host.
    notes: Option<Ordered<Vec<u64>>>,
}

impl CachedPages {
    /// Makes the pages of a file of the host.
    pub(super) fn of_host() -> CachedPages {
        let mut pages = CachedPages::default();
        pages.notes = Some(Ordered::default());
        pages
    }

    fn known_note(&self, page: u64) -> Option<u64> {
        let of_group = self.notes.as_ref()?.get(page / GROUP)?;
        of_group.get((page % GROUP) as usize).copied()
    }

    /// Notes that a page has these bytes on the host.
    pub(super) fn note(&mut self, page: u64, note: u64) {
        let of_group = self.notes.as_mut().and_then(|notes| notes.get_mut(page / GROUP));
        if let Some(place) = of_group.and_then(|of_group| of_group.get_mut((page % GROUP) as usize)) {
            *place = note;
        }
    }

    /// Makes room for the notes of a page's group.
    fn make_room_for_notes(&mut self, page: u64) -> Result<(), OutOfMemory> {
        let Some(notes) = self.notes.as_mut().filter(|notes| notes.get(page / GROUP).is_none()) else { return Ok(()) };
        let mut of_group = Vec::new();
        of_group.try_reserve_exact(GROUP as usize).map_err(|_| OutOfMemory)?;
        of_group.resize(GROUP as usize, 0);
        notes.insert(page / GROUP, of_group).map(drop).map_err(|_| OutOfMemory)
    }

    fn forget_group(&mut self, group: u64) {
        self.marks.remove(group);
        if let Some(notes) = &mut self.notes {
            notes.remove(group);
        }
    }

    /// Writes bytes to a page that is there, which the host has, too. Stores of programs, also those at this moment,
    /// are still seen by the note.
    pub(super) fn write_known(&mut self, page: u64, within: usize, bytes: &[u8]) {
        let Some(frame) = self.page(page) else { return };
        if let Some(known) = self.known_note(page) {
            let mut copy = copy_of(&frame);
            if note_of(&copy) == known {
                copy[within..within + bytes.len()].copy_from_slice(bytes);
                self.note(page, note_of(&copy));
            }
        }
        frame.write(within, bytes);
    }

    /// Brings a stale page to its present bytes on the host.
    pub(super) fn renew(&mut self, page: u64, bytes: &[u8; PAGE_SIZE]) {
        let (group, bit) = place_of(page);
        if let Some(marks) = self.marks.get_mut(group) {
            marks.stale &= !bit;
        }
        if let Some(frame) = self.page(page) {
            self.note(page, note_of(bytes));
            frame.write(0, bytes);
        }
    }

    /// Whether a page is there as the file is now.
    pub(super) fn has_fresh(&self, page: u64) -> bool {
        let (group, bit) = place_of(page);
        self.marks.get(group).is_some_and(|marks| marks.present & !marks.stale & bit != 0)
    }

    /// Returns a page of the host to which programs have stored what was not written.
    pub(super) fn stored_page(&mut self, page: u64) -> Option<SharedFrame> {
        let (group, bit) = place_of(page);
        self.marks.get(group).filter(|marks| marks.stored & bit != 0)?;
        let (frame, known) = (self.page(page)?, self.known_note(page));
        (known != Some(note_of(&copy_of(&frame)))).then_some(frame)
    }

    /// Whether there are no pages.
    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Whether nothing has the pages but these and the one mapping that is being made.
    pub(super) fn is_for_one(&self) -> bool {
        self.object.as_ref().is_none_or(|object| Arc::strong_count(object) <= 2)
    }

    /// Notes that the pages of a group from this one on are stale; returns the group to go on with.
    pub(super) fn spoil(&mut self, from: u64) -> Option<u64> {
        let group = self.marks.first_from(from)?;
        let marks = self.marks.get_mut(group)?;
        marks.stale = marks.present;
        Some(group + 1)
    }

    /// Returns a page, if it is there.
    pub(super) fn page(&mut self, page: u64) -> Option<SharedFrame> {
        let (group, bit) = place_of(page);
        let marks = self.marks.get_mut(group).filter(|marks| marks.present & bit != 0)?;
        marks.used |= bit;
        self.object.as_ref()?.present(page as usize)
    }

    /// Returns a page, if it is there and has its block.
    pub(super) fn placed_page(&mut self, page: u64) -> Option<SharedFrame> {
        let (group, bit) = place_of(page);
        self.marks.get(group).filter(|marks| marks.placed & bit != 0)?;
        self.page(page)
    }

    /// Whether a page is there.
    pub(super) fn has(&self, page: u64) -> bool {
        let (group, bit) = place_of(page);
        self.marks.get(group).is_some_and(|marks| marks.present & bit != 0)
    }

    /// Whether all pages of a range are there as the file is now.
    pub(super) fn has_all(&self, pages: Range<u64>) -> bool {
        let mut next = pages.start;
        while next < pages.end {
            let (group, end) = (next / GROUP, pages.end.min((next / GROUP + 1) * GROUP));
            let wanted = u64::MAX >> (GROUP - (end - next)) << (next % GROUP);
            if self.marks.get(group).is_none_or(|marks| marks.present & !marks.stale & wanted != wanted) {
                return false;
            }
            next = end;
        }
        true
    }

    /// Whether any page was changed, or may have been.
    pub(super) fn has_changes(&self) -> bool {
        self.changed > 0 || self.stored > 0 || self.mappings > 0
    }

    /// Returns the memory of the pages of a file of this length, for a mapping that can store or not.
    pub(super) fn map(&mut self, length: u64, stores: bool) -> Arc<MemoryObject> {
        self.mappings += usize::from(stores);
        let object = self.object().clone();
        let _ = self.set_length(length);
        object
    }

    /// Returns the number of pages of a range that are there.
    pub(super) fn count(&self, pages: Range<u64>) -> u64 {
        let (mut next, mut there) = (pages.start, 0);
        while let Some(group) = self.marks.first_from(next / GROUP).filter(|group| group * GROUP < pages.end) {
            let first = pages.start.saturating_sub(group * GROUP);
            let behind = GROUP - (pages.end - group * GROUP).min(GROUP);
            let present = self.marks.get(group).map_or(0, |marks| marks.present);
            there += u64::from((present & (u64::MAX << first) & (u64::MAX >> behind)).count_ones());
            next = (group + 1) * GROUP;
        }
        there
    }

    /// Notes the end of a mapping that could store.
    pub(super) fn unmap(&mut self) {
        self.mappings -= 1;
    }

    /// Notes that programs can store to the pages there, those of the first group; returns the page to go on with.
    pub(super) fn store(&mut self, pages: Range<u64>) -> Option<u64> {
        let group = self.marks.first_from(pages.start / GROUP).filter(|group| group * GROUP < pages.end)?;
        let first = pages.start.saturating_sub(group * GROUP);
        let behind = GROUP - (pages.end - group * GROUP).min(GROUP);
        let marks = self.marks.get_mut(group)?;
        let stored = marks.present & !marks.stored & (u64::MAX << first) & (u64::MAX >> behind);
        marks.stored |= stored;
        self.stored += stored.count_ones() as usize;
        Some((group + 1) * GROUP)
    }

    fn object(&mut self) -> &Arc<MemoryObject> {
        self.object.get_or_insert_with(|| {
            let payer = Box::<CachePayer>::default();
            // Others change a file of the host, which is asked for its length when it is mapped.
            let absent = if self.notes.is_some() { Absent::BeyondTheEnd } else { Absent::Elsewhere };
            Arc::new(MemoryObject::new(absent, payer, Arc::new(Futexes::default())))
        })
    }

    /// Makes a frame with the bytes of a page that is not there the page, and returns it.
    pub(super) fn enter(&mut self, page: u64, frame: Frame) -> Result<SharedFrame, OutOfMemory> {
        if page >= MOST_PAGES as u64 {
            return Err(OutOfMemory);
        }
        let (group, bit) = place_of(page);
        if self.marks.get(group).is_none() {
            self.marks.insert(group, Marks::default()).map_err(|_| OutOfMemory)?;
        }
        self.make_room_for_notes(page)?;
        let frame = self.object().enter(page as usize, frame)?;
        if let Some(marks) = self.marks.get_mut(group) {
            marks.present |= bit;
            marks.used |= bit;
        }
        if self.notes.is_some() {
            self.note(page, note_of(&copy_of(&frame)));
        }
        if self.mappings > 0 {
            self.store(page..page + 1);
        }
        Ok(frame)
    }

    /// Notes that a page has its block.
    pub(super) fn place(&mut self, page: u64) {
        let (group, bit) = place_of(page);
        if let Some(marks) = self.marks.get_mut(group) {
            marks.placed |= bit & marks.present;
        }
    }

    /// Notes that a page that has its block was changed.
    pub(super) fn change(&mut self, page: u64) {
        let (group, bit) = place_of(page);
        if let Some(marks) = self.marks.get_mut(group).filter(|marks| marks.changed & bit == 0) {
            marks.changed |= bit;
            self.changed += 1;
            CHANGED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes changed neighbours from a page on, as many as the buffer holds, as unchanged, or one page that programs
    /// may have stored to: copies them to the buffer. After some groups without any, returns an empty piece, with which
    /// to go on.
    pub(super) fn take_changed(&mut self, from: u64, buffer: &mut [u8]) -> Option<ChangedPiece> {
        if self.changed == 0 && self.stored == 0 {
            return None;
        }
        let (mut first, mut seen) = (from, 0);
        loop {
            let group = self.marks.first_from(first / GROUP)?;
            first = first.max(group * GROUP);
            let marks = self.marks.get(group)?;
            let rest = (marks.changed | marks.stored) >> (first % GROUP);
            if rest != 0 {
                first += u64::from(rest.trailing_zeros());
                break;
            }
            first = (group + 1) * GROUP;
            seen += 1;
            if seen == GROUPS_AT_A_TIME {
                return Some(ChangedPiece { first, count: 0, is_changed: true, is_placed: true, note: None });
            }
        }
        let is_last_comparison = self.mappings == 0;
        let (group, bit) = place_of(first);
        let marks = self.marks.get_mut(group)?;
        let (is_changed, is_placed) = (marks.changed & bit != 0, marks.placed & bit != 0);
        let mut piece = ChangedPiece { first, count: 1, is_changed, is_placed, note: None };
        if !piece.is_changed {
            if is_last_comparison {
                marks.stored &= !bit;
                self.stored -= 1;
            }
            if let Some(frame) = self.page(first) {
                let copy = copy_of(&frame);
                buffer[..PAGE_SIZE].copy_from_slice(&copy);
                if let Some(known) = self.known_note(first) {
                    let note = note_of(&copy);
                    if note == known {
                        return Some(ChangedPiece { first: first + 1, count: 0, ..piece });
                    }
                    piece.note = Some(note);
                }
            }
            return Some(piece);
        }
        piece.count = 0;
        for place in buffer.chunks_exact_mut(PAGE_SIZE) {
            let (group, bit) = place_of(first + piece.count as u64);
            let Some(marks) = self.marks.get_mut(group).filter(|marks| marks.changed & bit != 0) else { break };
            marks.changed &= !bit;
            if is_last_comparison && marks.stored & bit != 0 {
                marks.stored &= !bit;
                self.stored -= 1;
            }
            self.unchanged(1);
            let Some(frame) = self.page(first + piece.count as u64) else { break };
            frame.read(0, place);
            piece.count += 1;
        }
        Some(piece)
    }

    /// Whether the first of these pages was changed or perhaps stored to, and the page up to which that is so: as far
    /// as a look at some groups tells.
    pub(super) fn unwritten(&self, pages: Range<u64>) -> (bool, u64) {
        if self.changed == 0 && self.stored == 0 {
            return (false, pages.end);
        }
        let of_group = |group: u64| self.marks.get(group).map_or(0, |marks| marks.changed | marks.stored);
        let (mut group, bit) = (pages.start / GROUP, pages.start % GROUP);
        let rest = of_group(group) >> bit;
        let is_changed = rest & 1 != 0;
        let same = u64::from(if is_changed { rest.trailing_ones() } else { rest.trailing_zeros() });
        if same < GROUP - bit {
            return (is_changed, pages.end.min(pages.start + same));
        }
        for _ in 0..GROUPS_AT_A_TIME {
            let next = if is_changed { None } else { self.marks.first_from(group + 1) };
            let Some(next) = next.filter(|next| next * GROUP < pages.end) else { break };
            group = next;
            if of_group(group) != 0 {
                let first = group * GROUP + u64::from(of_group(group).trailing_zeros());
                return (false, pages.end.min(first));
            }
        }
        let is_end = !is_changed && self.marks.first_from(group + 1).is_none_or(|next| next * GROUP >= pages.end);
        (is_changed, if is_end { pages.end } else { pages.end.min((group + 1) * GROUP) })
    }

    fn unchanged(&mut self, count: usize) {
        self.changed -= count;
        CHANGED.fetch_sub(count, Ordering::Relaxed);
    }

    /// Fills a page that is there with zeros from a byte of the file on.
    pub(super) fn clear_behind(&mut self, byte: u64) {
        let (page, within) = (byte / PAGE_SIZE as u64, byte as usize % PAGE_SIZE);
        if within > 0 {
            self.write_known(page, within, &ZEROS[within..]);
        }
    }

    /// Notes the length of the file; returns the memory of its pages if it is shorter than before, and programs have
    /// mapped it.
    pub(super) fn set_length(&mut self, length: u64) -> Option<Arc<MemoryObject>> {
        let object = self.object.as_ref()?;
        let is_lower = object.set_end(usize::try_from(length.div_ceil(PAGE_SIZE as u64)).unwrap_or(usize::MAX));
        (is_lower && Arc::strong_count(object) > 1).then(|| object.clone())
    }

    /// Fills a part of a page that is there with zeros, whose blocks may have gone from the volume: unless the page is
    /// to be written anyway, the next write to it goes there again.
    pub(super) fn clear_part(&mut self, part: &Range<u64>) {
        let (page, within) = (part.start / PAGE_SIZE as u64, part.start as usize % PAGE_SIZE);
        self.write_known(page, within, &ZEROS[..(part.end - part.start) as usize]);
        let (group, bit) = place_of(page);
        if let Some(marks) = self.marks.get_mut(group) {
            marks.placed &= !bit | marks.changed;
        }
    }

    /// Forgets pages of which the file has no bytes any more, those of one group from this one on; returns the group to
    /// go on with. Pages that are mapped are filled with zeros instead, and are as those of a hole.
    pub(super) fn forget(&mut self, pages: &Range<u64>, from: u64) -> Option<u64> {
        let next = from.max(pages.start / GROUP);
        let group = self.marks.first_from(next).filter(|group| group * GROUP < pages.end)?;
        let first = pages.start.saturating_sub(group * GROUP);
        let behind = GROUP - (pages.end - group * GROUP).min(GROUP);
        let kept = !((u64::MAX << first) & (u64::MAX >> behind));
        let marks = self.marks.get_mut(group)?;
        let gone = marks.present & !kept;
        let unchanged = (marks.changed & gone).count_ones() as usize;
        marks.placed &= kept;
        marks.changed &= kept;
        marks.stale &= kept;
        // Stores of programs behind the end are nobody's, until the file is longer.
        match self.object.as_mut().map(Arc::get_mut) {
            Some(Some(object)) => {
                bits(gone).for_each(|bit| drop(object.take((group * GROUP + bit) as usize)));
                self.stored -= (marks.stored & !kept).count_ones() as usize;
                marks.present &= kept;
                marks.stored &= kept;
                if marks.present == 0 {
                    object.trim((group * GROUP) as usize);
                    self.forget_group(group);
                }
            }
            _ => {
                for page in bits(gone).map(|bit| group * GROUP + bit) {
                    self.note(page, note_of(&ZEROS));
                    if let Some(frame) = self.page(page) {
                        frame.zero();
                    }
                }
            }
        }
        self.unchanged(unchanged);
        Some(group + 1)
    }

    /// Gives back pages that are as on the volume, of the first group that has some, and looks at so many groups at
    /// most; returns their number, or `None` if there are none up to the end.
    pub(super) fn give_back(&mut self, spares: Spares, groups: &mut usize) -> Option<usize> {
        let object = self.object.as_mut().and_then(Arc::get_mut)?;
        let mut given = 0;
        while given == 0 && *groups > 0 {
            *groups -= 1;
            let Some(group) = self.marks.first_from(self.hand) else {
                self.hand = 0;
                return None;
            };
            self.hand = group + 1;
            let marks = self.marks.get_mut(group)?;
            let used = if spares == Spares::Used { marks.used } else { 0 };
            let gone = marks.present & !marks.changed & !marks.stored & !used;
            marks.used = 0;
            marks.present &= !gone;
            marks.placed &= !gone;
            marks.stale &= !gone;
            let is_empty = marks.present == 0;
            for bit in bits(gone) {
                drop(object.take((group * GROUP + bit) as usize));
                given += 1;
            }
            if is_empty {
                object.trim((group * GROUP) as usize);
                self.marks.remove(group);
                if let Some(notes) = &mut self.notes {
                    notes.remove(group);
                }
            }
        }
        Some(given)
    }
}

impl Drop for CachedPages {
    fn drop(&mut self) {
        self.unchanged(self.changed);
    }
}

/// Returns the numbers of the bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        let first = (set != 0).then(|| u64::from(set.trailing_zeros()));
        set &= set.wrapping_sub(1);
        first
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u64),
        Place(u64),
        Change(u64),
        Take(u64, usize),
        Cut(u64),
        Forget(u64, u64),
        GiveBack(bool),
        Map(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        let page = || prop_oneof![0..6u64, 60..70u64, 126..130u64];
        prop_oneof![
            4 => page().prop_map(Step::Enter),
            3 => page().prop_map(Step::Place),
            3 => page().prop_map(Step::Change),
            2 => (page(), 1..4usize).prop_map(|(page, most)| Step::Take(page, most)),
            2 => (page(), 0..PAGE_SIZE as u64).prop_map(|(page, within)| Step::Cut(page * PAGE_SIZE as u64 + within)),
            2 => (page(), 0..70u64).prop_map(|(page, count)| Step::Forget(page, page + count)),
            2 => any::<bool>().prop_map(Step::GiveBack),
            1 => any::<bool>().prop_map(Step::Map),
        ]
    }

    /// A page of the model: its byte, and whether it has its block, was changed, and was used.
    #[derive(Clone, Copy)]
    struct Known {
        byte: u8,
        placed: bool,
        changed: bool,
        used: bool,
    }

    fn frame_of(byte: u8) -> Frame {
        let frame = Frame::allocate().unwrap();
        frame.write(0, &[byte; PAGE_SIZE]);
        frame
    }

    fn last_byte(frame: &SharedFrame) -> u8 {
        let mut byte = [0];
        frame.read(PAGE_SIZE - 1, &mut byte);
        byte[0]
    }

    fn compare(steps: &[Step]) {
        let mut pages = CachedPages::default();
        let mut model = BTreeMap::<u64, Known>::new();
        let mut mapping = None;
        for (number, step) in steps.iter().enumerate() {
            match *step {
                Step::Enter(page) if !model.contains_key(&page) => {
                    let byte = number as u8 | 1;
                    assert!(pages.enter(page, frame_of(byte)).is_ok());
                    model.insert(page, Known { byte, placed: false, changed: false, used: true });
                }
                Step::Enter(page) => assert!(pages.has(page)),
                Step::Place(page) => {
                    pages.place(page);
                    model.entry(page).and_modify(|known| known.placed = true);
                }
                Step::Change(page) => {
                    let found = pages.placed_page(page);
                    assert_eq!(found.is_some(), model.get(&page).is_some_and(|known| known.placed));
                    if found.is_some() {
                        pages.change(page);
                        model.entry(page).and_modify(|known| (known.changed, known.used) = (true, true));
                    }
                }
                Step::Take(from, most) => {
                    let mut buffer = std::vec![0; most * PAGE_SIZE];
                    let first = model.range(from..).find(|(_, known)| known.changed).map(|(page, _)| *page);
                    let mut found = pages.take_changed(from, &mut buffer);
                    while let Some(ChangedPiece { first, count: 0, .. }) = found {
                        found = pages.take_changed(first, &mut buffer);
                    }
                    assert_eq!(found.as_ref().map(|piece| piece.first), first);
                    let Some(ChangedPiece { first, count, .. }) = found else { continue };
                    let is_changed = |page| model.get(&page).is_some_and(|known: &Known| known.changed);
                    let run = (first..).take(most).take_while(|page| is_changed(*page)).count();
                    assert_eq!(count, run);
                    for (place, page) in (first..).take(count).enumerate() {
                        let known = model.get_mut(&page).unwrap();
                        (known.changed, known.used) = (false, true);
                        assert_eq!(buffer[(place + 1) * PAGE_SIZE - 1], known.byte);
                    }
                }
                Step::Forget(first, end) => {
                    let mut from = 0;
                    while let Some(next) = pages.forget(&(first..end), from) {
                        from = next;
                    }
                    match mapping {
                        None => model.retain(|page, _| !(first..end).contains(page)),
                        Some(_) => model.range_mut(first..end).for_each(|(_, known)| {
                            *known = Known { byte: 0, placed: false, changed: false, used: true };
                        }),
                    }
                }
                Step::Cut(length) => {
                    let mut from = 0;
                    pages.clear_behind(length);
                    let gone = length.div_ceil(PAGE_SIZE as u64)..u64::MAX;
                    while let Some(next) = pages.forget(&gone, from) {
                        from = next;
                    }
                    let (page, within) = (length / PAGE_SIZE as u64, length % PAGE_SIZE as u64);
                    if within > 0 {
                        model.entry(page).and_modify(|known| (known.byte, known.used) = (0, true));
                    }
                    let first = length.div_ceil(PAGE_SIZE as u64);
                    match mapping {
                        None => model.retain(|page, _| *page < first),
                        Some(_) => model.range_mut(first..).for_each(|(_, known)| {
                            *known = Known { byte: 0, placed: false, changed: false, used: true };
                        }),
                    }
                }
                Step::GiveBack(spares) => {
                    let stays = |known: &Known| known.changed || spares && known.used;
                    let expected = model.values().filter(|known| !stays(known)).count();
                    let spared = if spares { Spares::Used } else { Spares::Nothing };
                    pages.hand = 0;
                    let given: usize = core::iter::from_fn(|| pages.give_back(spared, &mut 2)).sum();
                    if mapping.is_some() {
                        assert_eq!(given, 0);
                    } else {
                        assert_eq!(given, expected);
                        model.retain(|_, known| stays(known));
                        model.values_mut().for_each(|known| known.used = false);
                    }
                }
                Step::Map(maps) => mapping = pages.object.clone().filter(|_| maps),
            }
            assert_eq!(pages.has_changes(), model.values().any(|known| known.changed));
        }
        for (first, count) in (0..130).zip([1, 2, 5, 64, 70, 130].into_iter().cycle()) {
            let is_all = (first..first + count).all(|page| model.contains_key(&page));
            assert_eq!(pages.has_all(first..first + count), is_all, "{count} pages from {first} on");
        }
        assert!(pages.has_all(7..7));
        for page in 0..130 {
            let found = pages.page(page).map(|frame| last_byte(&frame));
            assert_eq!(found, model.get(&page).map(|known| known.byte), "page {page}");
        }
    }

    proptest! {
        #![proptest_config(property::cases(64))]

        #[test]
        fn pages_are_found_written_cut_off_and_given_back_as_those_of_a_map(
            steps in prop::collection::vec(step(), 0..60),
        ) {
            crate::testing::run(move |_| {
                let before = CACHED.load(Ordering::Relaxed);
                compare(&steps);
                while remains::free_any() {}
                assert_eq!((CACHED.load(Ordering::Relaxed), CHANGED.load(Ordering::Relaxed)), (before, 0));
            });
        }
    }

    #[test]
    fn a_look_for_changes_goes_over_a_bounded_number_of_groups_and_over_none_without_changes() {
        crate::testing::run(|_| {
            let (mut pages, mut buffer) = (CachedPages::default(), std::vec![0; PAGE_SIZE]);
            let groups = 2 * GROUPS_AT_A_TIME as u64 + 1;
            for group in 0..groups {
                pages.enter(group * GROUP, frame_of(1)).unwrap();
            }
            assert!(pages.take_changed(0, &mut buffer).is_none());
            let last = (groups - 1) * GROUP;
            pages.place(last);
            pages.change(last);
            let (mut from, mut counts) = (0, Vec::new());
            while let Some(piece) = pages.take_changed(from, &mut buffer) {
                counts.push((piece.first, piece.count));
                from = piece.first + piece.count as u64;
            }
            let step = GROUPS_AT_A_TIME as u64 * GROUP;
            assert_eq!(counts, [(step, 0), (2 * step, 0), (last, 1)]);
            drop(pages);
            while remains::free_any() {}
        });
    }

    #[test]
    fn pages_that_can_be_stored_to_are_compared_until_once_after_the_last_mapping() {
        crate::testing::run(|_| {
            let (mut pages, mut buffer) = (CachedPages::default(), std::vec![0; PAGE_SIZE]);
            for page in [0, 63, 64, 200] {
                pages.enter(page, frame_of(1)).unwrap();
            }
            let object = pages.map(1 << 20, true);
            let (mut from, range) = (1, 1..200);
            while let Some(next) = pages.store(from..range.end) {
                from = next;
            }
            pages.enter(130, frame_of(1)).unwrap();
            let mut compared = |pages: &mut CachedPages| {
                let mut from = 0;
                core::iter::from_fn(|| {
                    let piece = pages.take_changed(from, &mut buffer)?;
                    from = piece.first + piece.count as u64;
                    Some(piece.first)
                })
                .collect::<Vec<_>>()
            };
            assert_eq!(compared(&mut pages), [63, 64, 130]);
            assert_eq!(compared(&mut pages), [63, 64, 130]);
            drop(object);
            pages.unmap();
            assert!(pages.has_changes());
            assert_eq!(pages.give_back(Spares::Nothing, &mut 1), Some(1), "page 0");
            assert_eq!(compared(&mut pages), [63, 64, 130]);
            assert_eq!((compared(&mut pages), pages.has_changes()), (Vec::new(), false));
            drop(pages);
            while remains::free_any() {}
        });
    }

    #[test]
    fn pages_that_are_given_back_leave_no_records() {
        crate::testing::run(|_| {
            let (mut pages, before) = (CachedPages::default(), CACHED.load(Ordering::Relaxed));
            let of_lists = |pages: &mut CachedPages| {
                pages.enter(64 << 7, frame_of(1)).unwrap();
                pages.give_back(Spares::Nothing, &mut 1);
                CACHED.load(Ordering::Relaxed) - before
            };
            let lists = of_lists(&mut pages);
            for page in 0..64 {
                pages.enter(page << 7, frame_of(1)).unwrap();
            }
            pages.hand = 0;
            while pages.give_back(Spares::Nothing, &mut 1).is_some() {}
            assert_eq!(CACHED.load(Ordering::Relaxed), before + lists);
            assert!(lists < 2048, "{lists}");
            drop(pages);
            while remains::free_any() {}
        });
    }

    #[test]
    fn bits_are_counted_from_the_lowest_one() {
        assert_eq!(bits(1 << 63 | 0b101).collect::<Vec<_>>(), [0, 2, 63]);
    }
}
