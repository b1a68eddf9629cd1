//! A process's address space: its regions, its pages, and every access of the kernel to them.
//!
//! # Regions and pages
//! A *region* is a promise: this range of addresses has this protection and this backing. A page is made when it is
//! first touched, by the program ([`AddressSpace::fault`]) or by the kernel on its behalf. So mapping is cheap for any
//! length, and an operation on regions either is done completely or, on an error, has made no change visible to
//! programs.
//!
//! # The kernel and user memory
//! The kernel never dereferences a user address, and never sets the bit that would let it (`sstatus.SUM`). It walks
//! the page table in software and copies through its own direct map, after the same checks that the hardware would
//! make: a bad pointer is an error value here, not a trap. A few recent translations are kept, since most calls touch
//! the same few pages; any change of mappings forgets them.
//!
//! # Locking and flushing
//! Locking is the caller's: everything takes `&mut self`. The flush that TLBs need is returned as a [`Flush`], to be
//! carried out after the lock is released; the frames in it are freed after that (FLUSH-BEFORE-FREE). Only the harts on
//! which the space is entered ([`AddressSpace::enter`]) are named; the others flush when they next enter it.
//!
//! # Instructions
//! A hart may fetch instructions that it fetched from the same frame long ago, regardless of later stores, until it
//! synchronises its instruction fetch (FETCH-AFTER-WRITE). No page is writable and executable, so that is necessary
//! when pages become executable and at no other time: when their protection changes, when shared frames are mapped, and
//! when a page of an executable region is executed for the first time. Until then such a page is readable at most, so
//! that the kernel, which reads pages and never runs them, makes none executable unnoticed. The harts that are in the
//! space are named in the [`Flush`] or by [`AddressSpace::harts_to_synchronise`]; the others are told by the [`Entry`]
//! when they next enter.
//!
//! # Copies
//! A process that begins as a copy has the regions of the original and a share in each of its pages, which neither may
//! write from then on ([`AddressSpace::share_pages`]). The first write of either copies the page; the last owner keeps
//! it without a copy. A page is copied in three steps under the lock: it is taken away, all harts forget it
//! ([`Flusher`]), and only then is it copied and the copy entered. Otherwise a hart could go on reading the old page
//! after another has written to the new one. Sharing takes time for each page that is there, in parts of a bounded
//! length.
//!
//! # Objects
//! A region can name a part of a [`MemoryObject`], whose pages all spaces with such a region have in common, and which
//! may be the contents of a file. The region keeps the object, and so the frames of pages that are entered.
//!
//! # Limits
//! [`Limits`] bound the pages, page tables and regions that one process can make the kernel allocate. Reaching one is
//! an error of that process.
//!
//! Rejected: pages that are kept in lists beside the page table (the table is the list). The module `regions` tells how
//! regions are kept.

mod dump;

pub use dump::{DumpedRegion, PageOwner};

use crate::asid::{Context, Identifiers, LocalFlush};
use crate::bytes::{self, SharedBytes};
use crate::frames::{self, Frame, FrameList, OutOfMemory, SharedFrame};
use crate::object::MemoryObject;
use crate::regions::{Chunk, Place, Ranged, Regions};
use crate::sv39::{
    self, Access, DevicePage, Edge, KernelHalf, Leaf, PageTable, Protection, RootSize, Scope, Shares, USER, Unmapped,
};
use crate::{MAX_HARTS, PAGE_SIZE};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// User memory as the kernel sees it: bytes to copy, never a reference.
#[doc(alias = "__user")]
pub type UserBytes<'a> = SharedBytes<'a>;

/// Range for mappings without an address, from the top down, unless [`AddressSpace::set_mapping_top`] has chosen a
/// lower start.
pub const MAPPING_AREA: Range<u64> = 0x1_0000..0x3f_0000_0000;

const BREAK_NAME: &str = "[heap]";

/// Maximum number of regions in one part of a range.
const MOST_REGIONS: usize = 64;

/// Limits of one address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "rlimit")]
pub struct Limits {
    /// Frames of its own: anonymous pages and page tables. Shared frames are not counted.
    pub frames: usize,
    /// Regions.
    pub regions: usize,
}

impl Limits {
    /// No limit on frames, and as many regions as four thousand threads need, each with a stack and its guard.
    pub const DEFAULT: Self = Self { frames: usize::MAX, regions: 16384 };
}

/// Placement of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// At any free range.
    Anywhere,
    /// At this address if it is free, else at any free range.
    Near(u64),
    /// Exactly at this address, replacing existing mappings.
    Fixed(u64),
    /// Exactly at this address, or the call fails.
    FixedIfFree(u64),
}

/// Bytes around a page that is touched, of which the pages that an object has are entered as well (Linux:
/// `fault_around_bytes`).
const AROUND: u64 = 16 * PAGE_SIZE;

/// Enters the pages of an object that are there, in a part of its region that begins at `start`. Without memory for
/// tables the rest is entered when it is touched.
fn enter_around(table: &mut PageTable, mapped: &ObjectUse, start: u64, pages: Range<u64>, protection: Protection) {
    for page in pages.step_by(PAGE_SIZE as usize) {
        let number = mapped.first + (page - start) / PAGE_SIZE;
        let present = usize::try_from(number).ok().and_then(|number| mapped.object.reached(number));
        let Some(frame) = present else { continue };
        match table.map_kept(page, &frame, protection) {
            Ok(()) | Err(sv39::MapError::Occupied) => {}
            Err(_) => break,
        }
    }
}

/// Access that programs may ever have to shared frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Never write, even after a change of protection.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// Reason why regions were not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Not page-aligned, empty, or outside of the user half: the caller's mistake (EINVAL).
    InvalidRange,
    /// No free range of that length (ENOMEM).
    NoSpace,
    /// The range is mapped already (EEXIST).
    Occupied,
    /// A part of the range is not mapped (ENOMEM).
    NotMapped,
    /// The region never permits that access (EACCES).
    Forbidden,
    /// The space has the maximum number of regions (ENOMEM).
    TooManyRegions,
    /// The kernel has no memory for its records (ENOMEM).
    OutOfMemory,
}

impl fmt::Display for MapError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::InvalidRange => "not a range of whole pages that a program may use",
            Self::NoSpace => "no free range of addresses is long enough",
            Self::Occupied => "something is mapped there",
            Self::NotMapped => "a part of the range is not mapped",
            Self::Forbidden => "the region never permits this access",
            Self::TooManyRegions => "the process has too many mappings",
            Self::OutOfMemory => "out of memory",
        })
    }
}

impl core::error::Error for MapError {}

/// Reason why an access to user memory fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The address is not mapped (SIGSEGV, EFAULT).
    NotMapped,
    /// The mapping does not permit the access (SIGSEGV, EFAULT).
    Protection,
    /// The mapping has a file behind it that ends before the page (SIGBUS, EFAULT).
    BeyondTheEnd,
    /// The bytes of the page have to be fetched before it is touched: the access waits for that, and is repeated.
    Elsewhere,
    /// The word is not aligned to its size (SIGBUS, EINVAL).
    Misaligned,
    /// There is no frame for the page, or the process is at its limit: the process cannot go on (SIGBUS, ENOMEM).
    OutOfMemory,
}

impl From<OutOfMemory> for Fault {
    fn from(OutOfMemory: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NotMapped => "nothing is mapped there",
            Self::Protection => "the access is not permitted there",
            Self::BeyondTheEnd => "the file ends before it",
            Self::Elsewhere => "its bytes are not in memory yet",
            Self::Misaligned => "the address is not aligned",
            Self::OutOfMemory => "out of memory",
        })
    }
}

impl core::error::Error for Fault {}

/// A transfer ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// Bytes transferred before the fault.
    pub done: usize,
    /// Fault at the first byte that was not transferred.
    pub fault: Fault,
}

/// An atomic change of a word ([`AddressSpace::change_u32`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordChange {
    /// The operand takes its place.
    Set,
    /// The operand is added.
    Add,
    /// The operand's bits are set.
    Or,
    /// The other bits are cleared.
    And,
    /// The operand's bits are inverted.
    ExclusiveOr,
}

/// Reason why a string could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringError {
    /// It is not readable, or there is no memory for the copy.
    Fault(Fault),
    /// No terminating zero was found within the limit (ENAMETOOLONG, E2BIG).
    TooLong,
}

impl From<Fault> for StringError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Flush that harts must do; see [`Flush::after`].
#[derive(Debug, PartialEq, Eq)]
pub struct FlushRequest<'a> {
    /// Pages to flush.
    pub scope: &'a Scope,
    /// Identifier of the address space; 0 if the machine has none.
    pub identifier: u16,
    /// Bit `h`: hart `h` must do it. The calling hart may be among them.
    pub harts: u64,
    /// Bit `h`: hart `h` must synchronise its instruction fetch.
    pub fetching_harts: u64,
    /// Kind of root of the space, which decides the kind of translations that the harts hold.
    pub root: RootSize,
}

/// Pages and frames taken out of an address space that TLBs still hold.
///
/// Dropping it without [`Flush::after`] leaks the frames, since using them again would let the program write to them.
#[derive(Debug, Default)]
#[must_use = "harts may still use the old pages: call `after` with the function that flushes them"]
#[doc(alias = "mmu_gather")]
#[doc(alias = "TLB shootdown")]
pub struct Flush {
    scope: Scope,
    identifier: u16,
    harts: u64,
    fetching_harts: u64,
    root: RootSize,
    frames: FrameList,
    shares: Shares,
    /// Regions whose frames are shared, kept with them until the flush.
    removed: Removed,
}

/// Memory of removed regions. Nearly always it is that of one at most, and then no memory is needed to keep it.
#[derive(Debug, Default)]
#[expect(dead_code, reason = "it is kept, and not looked at")]
enum Removed {
    #[default]
    Nothing,
    One(Backing),
    Several(Vec<Backing>),
    /// All regions of a space.
    All(Vec<Chunk<Region>>),
}

impl Removed {
    /// Makes room for the memory of so many regions.
    fn with_room_for(regions: usize) -> Result<Removed, MapError> {
        if regions < 2 {
            return Ok(Removed::Nothing);
        }
        let mut list = Vec::new();
        list.try_reserve_exact(regions).map_err(|_| MapError::OutOfMemory)?;
        Ok(Removed::Several(list))
    }

    /// Keeps the memory of a region, for which there is room.
    fn push(&mut self, backing: Backing) {
        match self {
            Removed::Nothing => *self = Removed::One(backing),
            Removed::Several(list) => list.push(backing),
            Removed::One(_) | Removed::All(_) => {
                debug_assert!(false, "there is room");
                // Safety is worth more than memory.
                core::mem::forget(backing);
            }
        }
    }
}

impl Flush {
    /// Whether no hart has anything to flush or synchronise.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fetching_harts == 0 && (self.harts == 0 || self.scope == Scope::Nothing)
    }

    /// Makes the harts flush the pages, then frees the frames. `flush` must return when all harts named in the request
    /// have flushed; it is not called if none has to.
    pub fn after(mut self, flush: impl FnOnce(&FlushRequest<'_>)) {
        if !self.is_empty() {
            flush(&FlushRequest {
                scope: &self.scope,
                identifier: self.identifier,
                harts: self.harts,
                fetching_harts: self.fetching_harts,
                root: self.root,
            });
        }
        core::mem::take(&mut self.frames).free();
        core::mem::take(&mut self.shares).free();
        drop(core::mem::take(&mut self.removed));
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        // Empty after `after`. Otherwise safety is worth more than memory.
        core::mem::forget(core::mem::take(&mut self.removed));
    }
}

/// Makes harts flush as a request says, and returns when all of them have. It must not lock the space.
pub type Flusher = fn(&FlushRequest<'_>);

/// Steps with which a hart enters an address space: write [`Entry::satp`], then flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the hart must write `satp` and flush"]
pub struct Entry {
    /// Physical address of the root.
    pub root: u64,
    /// Identifier; 0 if the machine has none.
    pub identifier: u16,
    /// Flush that the hart must do after it wrote `satp`.
    pub flush: LocalFlush,
    /// State of the hart's instruction fetch for this space.
    pub instructions: Instructions,
}

/// State of a hart's instruction fetch for an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Up to date.
    Known,
    /// Out of date: pages have become executable, and the hart must synchronise its instruction fetch.
    Changed,
}

impl Entry {
    /// Returns the value of `satp`: mode Sv39, identifier, root.
    #[must_use]
    pub const fn satp(&self) -> u64 {
        (8 << 60) | ((self.identifier as u64) << 44) | (self.root / PAGE_SIZE)
    }
}

/// A region as reported to users.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "vm_area_struct")]
#[doc(alias = "VMA")]
pub struct RegionView {
    /// Addresses.
    pub range: Range<u64>,
    /// Access that the program has.
    pub protection: Protection,
    /// Purpose.
    pub name: &'static str,
    /// Whether the program has excluded it from core files (`MADV_DONTDUMP`).
    pub is_undumped: bool,
}

/// Properties of a region that do not depend on its pages.
#[derive(Clone, Copy)]
struct Attributes {
    protection: Protection,
    name: &'static str,
    is_undumped: bool,
}

impl Attributes {
    fn new(protection: Protection, name: &'static str) -> Attributes {
        Attributes { protection, name, is_undumped: false }
    }
}

#[derive(Debug)]
struct Region {
    start: u64,
    end: u64,
    protection: Protection,
    backing: Backing,
    name: &'static str,
    /// Whether no core file has its pages.
    is_undumped: bool,
}

#[derive(Debug)]
enum Backing {
    /// Pages of zeros, made when touched. The page table owns them.
    Anonymous,
    /// One frame for each page, kept by the region.
    Shared { frames: Vec<SharedFrame>, sharing: Sharing },
    /// Pages of an object.
    Object(ObjectUse),
    /// Contiguous pages of a device from this address on.
    Device(u64),
}

/// Pages of an object, as a region has them.
#[derive(Clone)]
pub struct ObjectUse {
    /// The object.
    pub object: Arc<MemoryObject>,
    /// Number of the first page.
    pub first: u64,
    /// Access that programs may have.
    pub sharing: Sharing,
    /// Something that lasts as long as the mapping: an open file.
    pub keeps: Option<Arc<dyn Any + Send + Sync>>,
}

impl ObjectUse {
    /// Returns whether another one is of the same pages as this one is after some pages, and keeps the same.
    fn goes_on_with(&self, other: &ObjectUse, pages: u64) -> bool {
        let keeps = match (&self.keeps, &other.keeps) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, None) => true,
            _ => false,
        };
        keeps
            && Arc::ptr_eq(&self.object, &other.object)
            && self.sharing == other.sharing
            && other.first == self.first + pages
    }
}

impl fmt::Debug for ObjectUse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.object.fmt(formatter)
    }
}

impl Ranged for Region {
    #[inline]
    fn start(&self) -> u64 {
        self.start
    }

    #[inline]
    fn end(&self) -> u64 {
        self.end
    }
}

impl Region {
    fn permits(&self, protection: Protection) -> bool {
        match self.backing {
            Backing::Anonymous => true,
            Backing::Shared { sharing, .. } | Backing::Object(ObjectUse { sharing, .. }) => {
                sharing == Sharing::ReadWrite || !protection.allows(Access::Write)
            }
            Backing::Device(_) => !protection.allows(Access::Execute),
        }
    }

    /// Returns whether it keeps frames that page tables do not count.
    fn is_shared(&self) -> bool {
        matches!(self.backing, Backing::Shared { .. } | Backing::Object(_))
    }

    /// Returns whether a part of it can be unmapped with a bounded amount of work.
    fn is_divisible(&self) -> bool {
        matches!(self.backing, Backing::Anonymous | Backing::Object(_))
    }

    /// Moves its start, of a divisible one.
    fn move_start(&mut self, start: u64) {
        if let Backing::Object(mapped) = &mut self.backing {
            mapped.first = (mapped.first + start / PAGE_SIZE).wrapping_sub(self.start / PAGE_SIZE);
        }
        self.start = start;
    }

    /// Returns whether the next region goes on with it, so that both could be one.
    fn joins(&self, next: &Self) -> bool {
        self.end == next.start
            && self.protection == next.protection
            && self.name == next.name
            && self.is_undumped == next.is_undumped
            && match (&self.backing, &next.backing) {
                (Backing::Anonymous, Backing::Anonymous) => true,
                (Backing::Object(own), Backing::Object(next)) => {
                    own.goes_on_with(next, (self.end - self.start) / PAGE_SIZE)
                }
                _ => false,
            }
    }
}

/// Overlap of regions with a range of addresses.
struct Cut {
    /// The first of the overlapping regions, or that behind the range.
    first: Place,
    /// Number of the overlapping regions.
    count: usize,
    /// The first of them begins before the range.
    crosses_start: bool,
    /// The last of them ends behind the range.
    crosses_end: bool,
}

impl Cut {
    /// Returns the number of pieces outside if the regions were split at the ends of the range.
    fn pieces_outside(&self) -> usize {
        usize::from(self.crosses_start) + usize::from(self.crosses_end)
    }
}

/// A page whose pointer into the direct map is cached.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Recent {
    /// The page, if it may be read; else [`NO_PAGE`].
    readable: u64,
    /// The page, if it may be written; else [`NO_PAGE`].
    writable: u64,
    pointer: *mut u8,
}

const NO_PAGE: u64 = u64::MAX;
const RECENT: usize = 16;

impl Recent {
    const NONE: Self = Self { readable: NO_PAGE, writable: NO_PAGE, pointer: core::ptr::null_mut() };

    /// Returns whether the program has this access to the page, as far as it is known here.
    #[inline(always)]
    fn permits(&self, page: u64, access: Access) -> bool {
        match access {
            Access::Read => self.readable == page,
            Access::Write => self.writable == page,
            Access::Execute => false,
        }
    }
}

/// Result of the last search for a free range: from `start` to the end of the mapping area there is none of `length`
/// bytes or more. So a program that maps one stack after the other does not cause a search through all of them each
/// time.
#[derive(Clone, Copy, Debug)]
struct Searched {
    start: u64,
    length: u64,
}

impl Searched {
    const fn nothing(top: u64) -> Self {
        Self { start: top, length: 0 }
    }
}

/// The address space of one process.
#[derive(Debug)]
#[doc(alias = "mm_struct")]
#[doc(alias = "VSpace")]
pub struct AddressSpace {
    table: PageTable,
    root: RootSize,
    regions: Regions<Region>,
    /// End of the mapping area.
    mapping_top: u64,
    /// Start of the next search.
    searched: Searched,
    limits: Limits,
    /// Number of anonymous pages that exist.
    resident: usize,
    break_start: u64,
    break_end: u64,
    recent: [Recent; RECENT],
    /// The entry that was displaced last: two pages that share an entry and are used in turn need no walk of the table.
    displaced: Recent,
    context: Context,
    /// Harts whose `satp` names this space.
    active: u64,
    /// Harts whose TLB may have entries of it.
    seen: u64,
    /// Harts that must flush it when they next enter.
    stale: u64,
    /// Harts that must synchronise their instruction fetch before they run anything in it.
    unsynchronised: u64,
    /// Flushes pages while the space is locked, before copies of them are entered.
    flusher: Flusher,
    /// Whether regions have had pages that are fetched when they are touched.
    fetches: bool,
    /// The last page that the kernel has touched before it was fetched.
    missed: Option<u64>,
}

// SAFETY: the pointers in `recent` are addresses in the direct map, which is the same on every hart, of frames that
// the page table owns; they are used under `&mut self` only.
unsafe impl Send for AddressSpace {}

/// Access to numbers of one width: fast when the page is cached, with a walk otherwise.
macro_rules! numbers {
    ($number:ty, $atomic:ty, $word:ident, $read:ident, $write:ident, $read_slowly:ident, $write_slowly:ident) => {
        /// Reads a number, in a single access if it is aligned.
        ///
        /// # Errors
        /// See [`Fault`].
        #[inline]
        pub fn $read(&mut self, address: u64) -> Result<$number, Fault> {
            match self.known(address, size_of::<$number>(), Access::Read).and_then(|bytes| bytes.$word(0)) {
                Some(word) => Ok(word.load(Ordering::Relaxed)),
                None => self.$read_slowly(address),
            }
        }

        /// Writes a number, in a single access if it is aligned.
        ///
        /// # Errors
        /// See [`Fault`]; if it crosses into a page that faults, a part may have been written.
        #[inline]
        pub fn $write(&mut self, address: u64, value: $number) -> Result<(), Fault> {
            match self.known(address, size_of::<$number>(), Access::Write).and_then(|bytes| bytes.$word(0)) {
                Some(word) => {
                    word.store(value, Ordering::Relaxed);
                    Ok(())
                }
                None => self.$write_slowly(address, value),
            }
        }

        #[cold]
        #[inline(never)]
        fn $read_slowly(&mut self, address: u64) -> Result<$number, Fault> {
            if let Some(word) = self.$word(address, Access::Read)? {
                return Ok(word.load(Ordering::Relaxed));
            }
            let mut bytes = [0; size_of::<$number>()];
            self.copy_in_pages(address, &mut bytes)?;
            Ok(<$number>::from_le_bytes(bytes))
        }

        #[cold]
        #[inline(never)]
        fn $write_slowly(&mut self, address: u64, value: $number) -> Result<(), Fault> {
            if let Some(word) = self.$word(address, Access::Write)? {
                word.store(value, Ordering::Relaxed);
                return Ok(());
            }
            self.copy_out_pages(address, &value.to_le_bytes())
        }

        /// Returns the word at the address, which the program may change at the same time; `None` if it is not aligned.
        /// With [`Access::Read`] it must only be loaded: the page may be shared read-only.
        fn $word(&mut self, address: u64, access: Access) -> Result<Option<&$atomic>, Fault> {
            let length = size_of::<$number>();
            if !address.is_multiple_of(length as u64) {
                return Ok(None);
            }
            check_bytes(address, length)?;
            let within = address % PAGE_SIZE;
            let page = self.page(address - within, access)?;
            // SAFETY: as in `for_each_slice`; an aligned word does not cross a page.
            let bytes = unsafe { UserBytes::from_pointer(page.wrapping_add(within as usize), length) };
            Ok(bytes.$word(0))
        }
    };
}

impl AddressSpace {
    /// Makes an address space with an empty user half.
    ///
    /// # Errors
    /// [`OutOfMemory`] if there is no frame for the root.
    pub fn new(kernel: &KernelHalf, root: RootSize, limits: Limits, flusher: Flusher) -> Result<Self, OutOfMemory> {
        Ok(Self {
            table: PageTable::new(kernel, root)?,
            root,
            regions: Regions::default(),
            mapping_top: MAPPING_AREA.end,
            searched: Searched::nothing(MAPPING_AREA.end),
            limits,
            resident: 0,
            break_start: 0,
            break_end: 0,
            recent: [Recent::NONE; RECENT],
            displaced: Recent::NONE,
            context: Context::default(),
            active: 0,
            seen: 0,
            stale: 0,
            unsynchronised: 0,
            flusher,
            fetches: false,
            missed: None,
        })
    }

    // ---- harts ----

    /// Prepares the space for a hart that is about to run a program in it. The hart must then write `satp` and flush as
    /// the entry says.
    pub fn enter(&mut self, identifiers: &Identifiers, hart: usize) -> Entry {
        debug_assert!(hart < MAX_HARTS);
        let mut flush = identifiers.enter(&mut self.context, hart);
        let identifier = self.context.number();
        let bit = 1u64 << (hart % 64);
        if self.stale & bit != 0 {
            self.stale &= !bit;
            if flush == LocalFlush::Nothing {
                flush = LocalFlush::Identifier(identifier);
            }
        }
        let instructions = if self.unsynchronised & bit != 0 { Instructions::Changed } else { Instructions::Known };
        self.unsynchronised &= !bit;
        self.active |= bit;
        self.seen |= bit;
        Entry { root: self.table.root_address(), identifier, flush, instructions }
    }

    /// Returns the harts, as a bit set, that are in the space and must synchronise their instruction fetch now, because
    /// [`fault`](Self::fault) has made a page executable. Each change is reported once.
    #[must_use]
    pub fn harts_to_synchronise(&mut self) -> u64 {
        let harts = self.unsynchronised & self.active;
        self.unsynchronised &= !harts;
        harts
    }

    /// Records that the hart's `satp` names another space now. Before this has been called for every hart that entered,
    /// the space must not be dropped (it would leak, since harts walk its tables).
    pub fn leave(&mut self, hart: usize) {
        self.active &= !(1u64 << (hart % 64));
    }

    /// Returns the harts, as a bit set, that have entered and not left.
    #[must_use]
    pub fn active_harts(&self) -> u64 {
        self.active
    }

    // ---- looking ----

    /// Returns the number of anonymous pages that exist.
    #[must_use]
    pub fn resident_frames(&self) -> usize {
        self.resident
    }

    /// Returns the number of frames that exist only for this space: its pages and its page tables.
    #[must_use]
    pub fn owned_frames(&self) -> usize {
        self.resident + self.table.table_frames()
    }

    /// Returns the number of frames of its page tables.
    #[must_use]
    pub fn table_frames(&self) -> usize {
        self.table.table_frames()
    }

    /// Returns the number of bytes that are mapped, whether their pages exist or not.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.regions.size()
    }

    /// Returns the identifier under which TLBs hold the space now; 0 if it has none.
    #[must_use]
    pub fn identifier(&self) -> u16 {
        self.context.number()
    }

    /// Returns the physical address of the root.
    #[must_use]
    pub fn root_address(&self) -> u64 {
        self.table.root_address()
    }

    /// Returns all regions in ascending order.
    pub fn regions(&self) -> impl Iterator<Item = RegionView> + '_ {
        self.regions.iter().map(Self::view)
    }

    /// Returns the region that contains the address.
    #[must_use]
    pub fn region_at(&self, address: u64) -> Option<RegionView> {
        self.regions.at(address).map(Self::view)
    }

    /// Returns whether a page of anonymous memory of the process is there. Pages that others may have in common with it
    /// always are: which of a file's pages have been used is nobody's business.
    pub fn is_resident(&self, page: u64) -> bool {
        match self.regions.at(page).map(|region| &region.backing) {
            Some(Backing::Anonymous) => self.table.page_at(page).is_some(),
            Some(_) => true,
            None => false,
        }
    }

    /// Counts the pages of a range of regions that are mapped, from its start on, with a small bounded amount of work;
    /// returns their number, and the address up to which they are counted.
    #[must_use]
    pub fn count_pages(&self, range: Range<u64>) -> (usize, u64) {
        self.table.count_some(range)
    }

    /// Returns whether all bytes of a range can be read without making a page.
    pub fn can_be_read_as_it_is(&self, address: u64, length: u64) -> bool {
        let Some(last) = address.checked_add(length.saturating_sub(1)) else { return false };
        [address, last].iter().all(|at| self.table.resolve(at - at % PAGE_SIZE, Access::Read).is_some())
    }

    /// Returns the first region that ends above the address.
    #[must_use]
    pub fn region_above(&self, address: u64) -> Option<RegionView> {
        self.regions.get(self.regions.above(address)).map(Self::view)
    }

    /// Returns the object that is mapped at the address, and the address's distance from the object's start.
    #[must_use]
    pub fn object_at(&self, address: u64) -> Option<(&Arc<MemoryObject>, u64)> {
        let region = self.regions.at(address)?;
        match &region.backing {
            Backing::Object(mapped) => Some((&mapped.object, mapped.first * PAGE_SIZE + (address - region.start))),
            _ => None,
        }
    }

    /// Whether regions have had pages that are fetched when they are touched.
    #[must_use]
    pub fn has_fetched(&self) -> bool {
        self.fetches
    }

    /// Whether the kernel has touched a page before it was fetched.
    #[must_use]
    pub fn has_missed(&self) -> bool {
        self.missed.is_some()
    }

    /// Takes the last page that the kernel has touched before it was fetched.
    pub fn take_missed(&mut self) -> Option<u64> {
        self.missed.take()
    }

    /// Returns the first page of a range that has to be fetched, among so many pages from its start on at most: their
    /// number is less afterwards.
    #[must_use]
    pub fn first_elsewhere(&self, range: Range<u64>, most: &mut u64) -> Option<u64> {
        let end = range.end.min(range.start.saturating_add(most.saturating_mul(PAGE_SIZE)));
        let regions = self.regions.iter_from(self.regions.above(range.start)).take(MOST_REGIONS);
        regions.take_while(|region| region.start < end).find_map(|region| {
            let (first, last) = (range.start.max(region.start), (end.min(region.end) - 1).max(region.start));
            let number = |address: u64| (address - region.start) / PAGE_SIZE;
            *most = most.saturating_sub(number(last) - number(first) + 1);
            let Backing::Object(mapped) = &region.backing else { return None };
            let of_object = |address: u64| (mapped.first + number(address)) as usize;
            let page = mapped.object.first_elsewhere(of_object(first)..of_object(last) + 1)?;
            Some(region.start + (page as u64 - mapped.first) * PAGE_SIZE)
        })
    }

    /// Returns the region at the start of a range, and its pages of an object, if the whole range is mapped and alike:
    /// it has one protection and one purpose, and is anonymous or continues the pages of one object. Such a range can
    /// be moved and extended as if it were one region. Ranges of many regions are never alike.
    #[must_use]
    pub fn uniform(&self, range: &Range<u64>) -> Option<(RegionView, Option<ObjectUse>)> {
        let mut regions = self.regions.iter_from(self.regions.above(range.start));
        let first = self.regions.at(range.start)?;
        let object = match &first.backing {
            Backing::Anonymous => None,
            Backing::Object(mapped) => {
                let pages = (range.start - first.start) / PAGE_SIZE;
                Some(ObjectUse { first: mapped.first + pages, ..mapped.clone() })
            }
            Backing::Shared { .. } | Backing::Device(_) => return None,
        };
        let mut at = range.start;
        for _ in 0..MOST_REGIONS {
            let region = regions.next().filter(|region| region.start <= at)?;
            let continues = match (&region.backing, &object) {
                (Backing::Anonymous, None) => true,
                (Backing::Object(mapped), Some(object)) => {
                    let here = mapped.first + (at - region.start) / PAGE_SIZE;
                    Arc::ptr_eq(&mapped.object, &object.object)
                        && mapped.sharing == object.sharing
                        && here == object.first + (at - range.start) / PAGE_SIZE
                }
                _ => false,
            };
            if !continues || (region.protection, region.name) != (first.protection, first.name) {
                return None;
            }
            if region.end >= range.end {
                return Some((Self::view(first), object));
            }
            at = region.end;
        }
        None
    }

    /// Copies pages of the program to another place, as far as a bounded amount of work goes: at most `most` pages.
    /// Returns the address at which to go on, the end of the range if all is done. Pages that were never touched stay
    /// untouched, and take next to no time.
    ///
    /// # Errors
    /// [`Fault`] if a page cannot be written there. Pages that the program may not read are not copied.
    pub fn copy_some(&mut self, from: Range<u64>, to: u64, most: usize) -> Result<u64, Fault> {
        let part = self.table.reach(from.clone(), Edge::Start);
        let mut at = part.start;
        for _ in 0..most {
            let Some(page) = self.table.first_page(at..part.end) else { return Ok(part.end) };
            if self.table.resolve(page, Access::Read).is_some() {
                self.copy_page(page, to + (page - from.start))?;
            }
            at = page + PAGE_SIZE;
        }
        Ok(at)
    }

    fn copy_page(&mut self, from: u64, to: u64) -> Result<(), Fault> {
        let mut part = [0; 256];
        for at in (0..PAGE_SIZE).step_by(part.len()) {
            self.copy_in(from + at, &mut part)?;
            self.copy_out(to + at, &part)?;
        }
        Ok(())
    }

    fn view(region: &Region) -> RegionView {
        let Region { start, end, protection, name, is_undumped, .. } = *region;
        RegionView { range: start..end, protection, name, is_undumped }
    }

    fn is_free(&self, range: &Range<u64>) -> bool {
        self.regions.get(self.regions.above(range.start)).is_none_or(|region| region.start >= range.end)
    }

    // ---- mapping ----

    /// Maps pages of zeros, which are made when they are first touched. `length` is rounded up to whole pages.
    ///
    /// # Errors
    /// See [`MapError`].
    #[doc(alias = "mmap")]
    #[doc(alias = "MAP_ANONYMOUS")]
    pub fn map_anonymous(
        &mut self,
        placement: Placement,
        length: u64,
        protection: Protection,
        name: &'static str,
    ) -> Result<(u64, Flush), MapError> {
        self.insert(placement, length, Attributes::new(protection, name), Backing::Anonymous)
    }

    /// Maps frames that have other users too: the vDSO, files, pages shared with the kernel. The pages are entered in
    /// the page table at once, as far as there is memory for tables; the rest when touched.
    ///
    /// # Errors
    /// See [`MapError`].
    #[doc(alias = "MAP_SHARED")]
    pub fn map_shared(
        &mut self,
        placement: Placement,
        frames: Vec<SharedFrame>,
        sharing: Sharing,
        protection: Protection,
        name: &'static str,
    ) -> Result<(u64, Flush), MapError> {
        let length = frames.len() as u64 * PAGE_SIZE;
        let backing = Backing::Shared { frames, sharing };
        let (start, mut flush) = self.insert(placement, length, Attributes::new(protection, name), backing)?;
        self.enter_kept(start);
        self.instructions_changed(protection);
        flush.fetching_harts = self.harts_to_synchronise();
        Ok((start, flush))
    }

    /// Maps pages of an object, which are entered when they are touched. The caller keeps the object beyond the lock of
    /// the space: dropping a last owner, of a file perhaps, may take long.
    ///
    /// # Errors
    /// See [`MapError`].
    #[doc(alias = "MAP_SHARED")]
    pub fn map_object(
        &mut self,
        placement: Placement,
        length: u64,
        object: &ObjectUse,
        protection: Protection,
        name: &'static str,
    ) -> Result<(u64, Flush), MapError> {
        self.fetches |= object.object.is_fetched();
        self.insert(placement, length, Attributes::new(protection, name), Backing::Object(object.clone()))
    }

    /// Maps pages of an object, or of zeros, in a region like another one, for `mremap`.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map_like(
        &mut self,
        placement: Placement,
        length: u64,
        region: &RegionView,
        object: Option<&ObjectUse>,
    ) -> Result<(u64, Flush), MapError> {
        let attributes =
            Attributes { protection: region.protection, name: region.name, is_undumped: region.is_undumped };
        self.insert(placement, length, attributes, object.cloned().map_or(Backing::Anonymous, Backing::Object))
    }

    /// Maps the registers of a device for a program that drives it; never executable.
    ///
    /// # Errors
    /// See [`MapError`]; [`MapError::Forbidden`] if not all of it is permitted by [`sv39::permit_devices`].
    pub fn map_device(
        &mut self,
        placement: Placement,
        device: Range<u64>,
        protection: Protection,
        name: &'static str,
    ) -> Result<(u64, Flush), MapError> {
        let mut page = device.start;
        while page < device.end {
            DevicePage::new(page).ok_or(MapError::Forbidden)?;
            page = page.checked_add(PAGE_SIZE).ok_or(MapError::InvalidRange)?;
        }
        let length = device.end.saturating_sub(device.start);
        self.insert(placement, length, Attributes::new(protection, name), Backing::Device(device.start))
    }

    /// Unmaps a range of whole pages.
    ///
    /// # Errors
    /// See [`MapError`]. An empty range is no error.
    #[doc(alias = "munmap")]
    pub fn unmap(&mut self, range: Range<u64>) -> Result<Flush, MapError> {
        check(&range)?;
        self.unmap_part(range.clone(), &range)
    }

    /// Unmaps a part of a range as [`unmap`](Self::unmap) does, for a range that is unmapped part by part, in the parts
    /// that [`part`](Self::part) returns: page tables are removed when they are empty.
    ///
    /// # Errors
    /// See [`MapError`]. The first part may need memory as the whole range would; no later one does.
    pub fn unmap_part(&mut self, range: Range<u64>, whole: &Range<u64>) -> Result<Flush, MapError> {
        check(&range)?;
        let cut = self.cut(&range);
        if cut.pieces_outside() == 0 && cut.count == self.regions.len() {
            // All regions: no memory is needed to record some of them.
            return Ok(self.remove_all(range, whole));
        }
        if cut.count == 1
            && cut.pieces_outside() == 1
            && let Some(region) = self.regions.get(cut.first)
            && region.is_divisible()
        {
            // One end of a region, as freed by allocators and the break.
            let removed = match &region.backing {
                // The rest may go, and with it the object, before the harts have flushed these pages.
                Backing::Object(mapped) => Removed::One(Backing::Object(mapped.clone())),
                _ => Removed::Nothing,
            };
            self.regions.change(cut.first, |region| {
                if cut.crosses_start {
                    region.end = range.start;
                } else {
                    region.move_start(range.end);
                }
            });
            return Ok(self.remove_pages(range, whole, removed));
        }
        self.check_limit(self.regions_without(&cut))?;
        let (first, count, removed) = self.isolate(&range, cut)?;
        Ok(self.remove(first, count, range, whole, removed).1)
    }

    /// Gives the pages of a part of one region of private anonymous memory back. It stays mapped and reads as zeros.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if no region contains all of it; [`MapError::Forbidden`] if its pages have other users.
    #[doc(alias = "MADV_DONTNEED")]
    pub fn discard(&mut self, part: Range<u64>) -> Result<Flush, MapError> {
        check(&part)?;
        let region = self.regions.at(part.start).ok_or(MapError::NotMapped)?;
        if region.end < part.end {
            return Err(MapError::NotMapped);
        }
        if !matches!(region.backing, Backing::Anonymous) {
            return Err(MapError::Forbidden);
        }
        Ok(self.remove_pages(part.clone(), &part, Removed::Nothing))
    }

    /// Takes pages of an object that are behind its end from the regions that map it, from an address on: a bounded
    /// number. They are faults from then on. Returns the flush, and the address to go on with, `None` at the end.
    #[doc(alias = "unmap_mapping_range")]
    pub fn leave_lost_pages(&mut self, object: &Arc<MemoryObject>, from: u64) -> (Flush, Option<u64>) {
        match self.lost_from(object, from) {
            Ok((lost, mapped)) => {
                let part = self.table.reach(lost, Edge::Start);
                let unmapped = self.table.unmap_part(part.clone(), &part);
                // The region may go, and with it the object, before the harts have flushed these pages.
                (self.flush(unmapped, Removed::One(Backing::Object(mapped))), Some(part.end))
            }
            Err(next) => (Flush::default(), next),
        }
    }

    /// Returns the rest of the first region from an address on that has pages behind an object's end, or the address to
    /// go on with after a bounded number of others, `None` at the end.
    fn lost_from(&self, object: &Arc<MemoryObject>, from: u64) -> Result<(Range<u64>, ObjectUse), Option<u64>> {
        let end = object.end() as u64;
        let mut regions = self.regions.iter_from(self.regions.above(from));
        let mut seen = None;
        for region in regions.by_ref().take(MOST_REGIONS) {
            seen = Some(region.end);
            if let Backing::Object(mapped) = &region.backing
                && Arc::ptr_eq(&mapped.object, object)
            {
                let kept = end.saturating_sub(mapped.first).min((region.end - region.start) / PAGE_SIZE);
                let start = (region.start + kept * PAGE_SIZE).max(from);
                if start < region.end {
                    return Ok((start..region.end, mapped.clone()));
                }
            }
        }
        Err(seen.filter(|_| regions.next().is_some()))
    }

    /// Returns a part of a range, at its start or at its end, that can be unmapped, protected or mapped over with a
    /// bounded amount of work. It ends inside a region only if it begins inside that region too, or at its start, so
    /// that unmapping one part after the other splits no region that unmapping all at once would not. Never empty if
    /// the range is not.
    #[must_use]
    pub fn part(&self, range: &Range<u64>, edge: Edge) -> Range<u64> {
        let reach = self.table.reach(range.clone(), edge);
        match edge {
            Edge::End => match self.regions.last_below(range.end).and_then(|last| self.regions.get(last)) {
                // Shared frames, and devices, are not many.
                Some(last) if !last.is_divisible() && last.end > range.start => range.start.max(last.start)..range.end,
                _ => reach,
            },
            Edge::Start => {
                let (mut end, mut number) = (range.start, 0);
                let mut place = self.regions.above(range.start);
                while let Some(region) = self.regions.get(place).filter(|region| region.start < range.end) {
                    let is_anonymous = matches!(region.backing, Backing::Anonymous);
                    let is_whole = region.end.min(range.end) <= reach.end;
                    if number > 0 && !(is_anonymous && is_whole && number < MOST_REGIONS) {
                        return range.start..end;
                    }
                    if region.is_divisible() && !is_whole {
                        return reach;
                    }
                    end = region.end.min(range.end);
                    if !is_anonymous {
                        return range.start..end;
                    }
                    (place, number) = (self.regions.next(place), number + 1);
                }
                range.start..end.max(reach.end)
            }
        }
    }

    /// Changes the protection of a range of whole pages, all of which must be mapped.
    ///
    /// # Errors
    /// See [`MapError`].
    #[doc(alias = "mprotect")]
    pub fn protect(&mut self, range: Range<u64>, protection: Protection) -> Result<Flush, MapError> {
        self.change_regions(
            &range,
            |region| if region.permits(protection) { Ok(()) } else { Err(MapError::Forbidden) },
            |region| region.protection = protection,
        )?;
        let unmapped = self.table.protect(range, protection);
        self.instructions_changed(protection);
        Ok(self.flush(unmapped, Removed::Nothing))
    }

    /// Changes all regions of a range that is mapped without a hole, if each of them permits that, and joins those that
    /// are alike then.
    fn change_regions(
        &mut self,
        range: &Range<u64>,
        permits: impl Fn(&Region) -> Result<(), MapError>,
        change: impl Fn(&mut Region),
    ) -> Result<(), MapError> {
        check(range)?;
        let mut next = range.start;
        for region in self.regions.iter_from(self.regions.above(range.start)) {
            if region.start > next || next >= range.end {
                break;
            }
            permits(region)?;
            next = region.end;
        }
        if next < range.end {
            return Err(MapError::NotMapped);
        }
        let cut = self.cut(range);
        self.check_limit(self.regions.len() + cut.pieces_outside())?;
        let (first, count) = self.split(range, cut)?;
        let mut place = first;
        for _ in 0..count {
            if let Some(region) = self.regions.get_mut(place) {
                change(region);
            }
            place = self.regions.next(place);
        }
        match self.regions.previous(first) {
            Some(before) => self.join(before, count + 2),
            None => self.join(first, count + 1),
        }
        Ok(())
    }

    /// Unmaps everything and resets the break: before another program is loaded, or when the last one has ended. Needs
    /// no memory.
    pub fn clear(&mut self) -> Flush {
        self.set_break_start(0);
        self.remove_all(USER, &USER)
    }

    /// Clears a part of the space as [`clear`](Self::clear) does, with a bounded amount of work; `None` if the space is
    /// empty.
    pub fn clear_part(&mut self) -> Option<Flush> {
        let start = match self.regions.iter().next() {
            Some(first) => first.start,
            None if self.table.is_bare() => {
                (self.fetches, self.missed) = (false, None);
                return None;
            }
            // Only empty tables are left.
            None => USER.start,
        };
        self.set_break_start(0);
        let part = self.part(&(start..USER.end), Edge::Start);
        // It cannot fail: no region is split, and no more than one has shared frames.
        self.unmap_part(part, &USER).ok()
    }

    fn insert(
        &mut self,
        placement: Placement,
        length: u64,
        attributes: Attributes,
        backing: Backing,
    ) -> Result<(u64, Flush), MapError> {
        let length = length.checked_next_multiple_of(PAGE_SIZE).ok_or(MapError::NoSpace)?;
        if length == 0 {
            return Err(MapError::InvalidRange);
        }
        let start = self.place(placement, length)?;
        let range = start..start + length;
        let Attributes { protection, name, is_undumped } = attributes;
        let region = Region { start, end: range.end, protection, backing, name, is_undumped };
        if !region.permits(protection) {
            return Err(MapError::Forbidden);
        }
        let cut = self.cut(&range);
        self.check_limit(self.regions_without(&cut) + 1)?;
        let (first, count, removed) = self.isolate(&range, cut)?;
        self.regions.reserve().map_err(|OutOfMemory| MapError::OutOfMemory)?;
        // Nothing below fails.
        let (place, flush) = self.remove(first, count, range.clone(), &range, removed);
        self.put(place, region);
        Ok((start, flush))
    }

    fn place(&mut self, placement: Placement, length: u64) -> Result<u64, MapError> {
        let at = |start: u64| {
            let range = start..start.checked_add(length).ok_or(MapError::InvalidRange)?;
            check(&range).map(|()| range)
        };
        match placement {
            Placement::Fixed(start) => at(start).map(|range| range.start),
            Placement::FixedIfFree(start) => {
                let range = at(start)?;
                if self.is_free(&range) { Ok(start) } else { Err(MapError::Occupied) }
            }
            Placement::Near(hint) => match at(hint / PAGE_SIZE * PAGE_SIZE) {
                Ok(range) if self.is_free(&range) => Ok(range.start),
                _ => self.search(length),
            },
            Placement::Anywhere => self.search(length),
        }
    }

    /// Finds the highest free range in the mapping area.
    fn search(&mut self, length: u64) -> Result<u64, MapError> {
        let end = if length >= self.searched.length { self.searched.start } else { self.mapping_top };
        let found = self.regions.highest_room(MAPPING_AREA.start..end, length);
        let start = found.map_or(MAPPING_AREA.start, |start| start + length);
        self.searched = Searched { start, length };
        found.ok_or(MapError::NoSpace)
    }

    /// Inserts a region, for which there is room, before another one, or extends an adjacent one with equal properties.
    fn put(&mut self, place: Place, region: Region) {
        let next = self.regions.get(place).filter(|next| region.joins(next)).map(|next| next.end);
        let previous = self.regions.previous(place);
        let joined =
            previous.filter(|previous| self.regions.get(*previous).is_some_and(|before| before.joins(&region)));
        match (joined, next) {
            (Some(previous), None) => self.regions.change(previous, |previous| previous.end = region.end),
            (Some(_), Some(end)) => {
                // It is the same memory: nothing is dropped for the last time.
                let place = self.regions.remove(place, 1, drop);
                if let Some(previous) = self.regions.previous(place) {
                    self.regions.change(previous, |previous| previous.end = end);
                }
            }
            (None, Some(_)) => self.regions.change(place, |next| next.move_start(region.start)),
            (None, None) => {
                self.regions.insert(place, region);
            }
        }
    }

    /// Returns the overlap of the regions with the range.
    fn cut(&self, range: &Range<u64>) -> Cut {
        let first = self.regions.above(range.start);
        let mut cut = Cut { first, count: 0, crosses_start: false, crosses_end: false };
        // Mostly there are none or one, so look at them one by one.
        let mut place = first;
        while let Some(region) = self.regions.get(place).filter(|region| region.start < range.end) {
            cut.crosses_start |= region.start < range.start;
            cut.crosses_end = region.end > range.end;
            cut.count += 1;
            place = self.regions.next(place);
        }
        cut
    }

    /// Splits the regions that cross the ends of the range; returns the first that is inside then, and the number of
    /// them. Makes no visible change.
    fn split(&mut self, range: &Range<u64>, cut: Cut) -> Result<(Place, usize), MapError> {
        let mut first = cut.first;
        if cut.crosses_end
            && let Some(last) = self.regions.last_below(range.end)
        {
            self.split_region(last, range.end)?;
            first = self.regions.above(range.start);
        }
        if cut.crosses_start {
            first = self.split_region(first, range.start)?;
        }
        Ok((first, cut.count))
    }

    /// Splits a region at an address inside; returns the upper one.
    fn split_region(&mut self, place: Place, address: u64) -> Result<Place, MapError> {
        self.regions.reserve().map_err(|OutOfMemory| MapError::OutOfMemory)?;
        let Some(region) = self.regions.get_mut(place) else { return Err(MapError::NotMapped) };
        let pages = ((address - region.start) / PAGE_SIZE) as usize;
        let backing = match &mut region.backing {
            Backing::Anonymous => Backing::Anonymous,
            Backing::Shared { frames, sharing } => {
                let mut rest = Vec::new();
                rest.try_reserve_exact(frames[pages..].len()).map_err(|_| MapError::OutOfMemory)?;
                rest.extend(frames.drain(pages..));
                Backing::Shared { frames: rest, sharing: *sharing }
            }
            Backing::Object(mapped) => {
                Backing::Object(ObjectUse { first: mapped.first + pages as u64, ..mapped.clone() })
            }
            Backing::Device(first) => Backing::Device(*first + (address - region.start)),
        };
        let Region { end, protection, name, is_undumped, .. } = *region;
        let rest = Region { start: address, end, protection, backing, name, is_undumped };
        self.regions.change(place, |region| region.end = address);
        Ok(self.regions.insert(self.regions.next(place), rest))
    }

    /// Returns the number of regions if the range were unmapped: each that overlaps it loses one piece.
    fn regions_without(&self, cut: &Cut) -> usize {
        self.regions.len() + cut.pieces_outside() - cut.count
    }

    /// Refuses a number of regions above the limit.
    fn check_limit(&self, regions: usize) -> Result<(), MapError> {
        if regions > self.limits.regions && regions > self.regions.len() {
            return Err(MapError::TooManyRegions);
        }
        Ok(())
    }

    /// Splits at the ends of a range, and reserves memory for the regions that must outlive the flush; returns the
    /// regions inside, and that memory.
    fn isolate(&mut self, range: &Range<u64>, cut: Cut) -> Result<(Place, usize, Removed), MapError> {
        let (first, count) = self.split(range, cut)?;
        let (mut place, mut shared) = (first, 0);
        for _ in 0..count {
            shared += usize::from(self.regions.get(place).is_some_and(Region::is_shared));
            place = self.regions.next(place);
        }
        Ok((first, count, Removed::with_room_for(shared)?))
    }

    /// Removes regions from one on, which lie in `range`, and their pages; returns the first one behind them. `removed`
    /// has room for those whose frames are shared.
    fn remove(
        &mut self,
        first: Place,
        count: usize,
        range: Range<u64>,
        whole: &Range<u64>,
        mut removed: Removed,
    ) -> (Place, Flush) {
        if count == 0 {
            return (first, Flush::default());
        }
        let place = self.regions.remove(first, count, |region| {
            if region.is_shared() {
                removed.push(region.backing);
            }
        });
        (place, self.remove_pages(range, whole, removed))
    }

    /// Removes all regions, which lie in `range`, and their pages. Needs no memory.
    fn remove_all(&mut self, range: Range<u64>, whole: &Range<u64>) -> Flush {
        let all = core::mem::take(&mut self.regions).into_chunks();
        self.remove_pages(range, whole, Removed::All(all))
    }

    fn remove_pages(&mut self, range: Range<u64>, whole: &Range<u64>, removed: Removed) -> Flush {
        // The free range may be larger than the removed one: it ends at the start of the next region.
        let next = self.regions.get(self.regions.above(range.start));
        let end = next.map_or(self.mapping_top, |region| region.start.min(self.mapping_top));
        self.searched.start = self.searched.start.max(end);
        let unmapped = self.table.unmap_part(range, whole);
        self.resident -= unmapped.pages();
        self.flush(unmapped, removed)
    }

    /// Returns the end of the regions from a place on that could be one, of so many, and the number of them beside the
    /// first.
    fn alike(&self, place: Place, most: usize) -> Option<(u64, usize)> {
        let mut regions = self.regions.iter_from(place).take(most);
        let mut last = regions.next()?;
        let mut alike = 0;
        while let Some(next) = regions.next().filter(|next| last.joins(next)) {
            alike += 1;
            last = next;
        }
        Some((last.end, alike))
    }

    /// Joins adjacent regions with equal properties among some from one on.
    fn join(&mut self, first: Place, count: usize) {
        let (mut place, mut left) = (first, count);
        while left > 1 {
            // As many as are alike.
            let Some((end, alike)) = self.alike(place, left) else { return };
            left -= alike + 1;
            if alike > 0 {
                // It is the same memory: nothing is dropped for the last time.
                let behind = self.regions.remove(self.regions.next(place), alike, drop);
                let Some(first) = self.regions.previous(behind) else { return };
                self.regions.change(first, |first| first.end = end);
                place = first;
            }
            place = self.regions.next(place);
        }
    }

    fn flush(&mut self, unmapped: Unmapped, removed: Removed) -> Flush {
        self.recent = [Recent::NONE; RECENT];
        self.displaced = Recent::NONE;
        let (scope, frames, shares) = unmapped.into_parts();
        let mut harts = 0;
        if scope != Scope::Nothing {
            harts = self.active;
            self.stale |= self.seen & !self.active;
        }
        let fetching_harts = self.harts_to_synchronise();
        Flush {
            scope,
            identifier: self.context.number(),
            harts,
            fetching_harts,
            root: self.root,
            frames,
            shares,
            removed,
        }
    }

    /// Records that the program has written instructions: each hart synchronises its instruction fetch when it enters
    /// the space, and those of [`harts_to_synchronise`](Self::harts_to_synchronise) do now.
    pub fn note_new_instructions(&mut self) {
        self.unsynchronised = u64::MAX;
    }

    /// Records that pages have got this protection.
    fn instructions_changed(&mut self, protection: Protection) {
        if protection.allows(Access::Execute) {
            self.note_new_instructions();
        }
    }

    /// Sets the start of mappings without an address to below `top` (rounded down to a page; at most the end of the
    /// mapping area).
    pub fn set_mapping_top(&mut self, top: u64) {
        self.mapping_top = (top / PAGE_SIZE * PAGE_SIZE).clamp(MAPPING_AREA.start, MAPPING_AREA.end);
        self.searched = Searched::nothing(self.mapping_top);
    }

    // ---- the break ----

    /// Sets the start of the area that `brk` grows (rounded up to a page): after the program's data. Once for each
    /// program.
    pub fn set_break_start(&mut self, start: u64) {
        self.break_start = start.min(self.mapping_top).next_multiple_of(PAGE_SIZE);
        self.break_end = self.break_start;
    }

    /// Returns the end of the break area.
    #[must_use]
    pub fn break_end(&self) -> u64 {
        self.break_end
    }

    /// Moves the end of the break area, to any byte.
    ///
    /// # Errors
    /// See [`MapError`]; the break stays where it is.
    #[doc(alias = "brk")]
    #[doc(alias = "sbrk")]
    pub fn set_break(&mut self, end: u64) -> Result<Flush, MapError> {
        if end < self.break_start || end > self.mapping_top {
            return Err(MapError::InvalidRange);
        }
        let old = self.break_end.next_multiple_of(PAGE_SIZE);
        let new = end.next_multiple_of(PAGE_SIZE);
        let flush = if new > old {
            self.map_anonymous(Placement::FixedIfFree(old), new - old, Protection::ReadWrite, BREAK_NAME)?.1
        } else if new < old {
            self.unmap(new..old)?
        } else {
            Flush::default()
        };
        self.break_end = end;
        Ok(flush)
    }

    // ---- pages ----

    /// Makes the page at the address accessible, if its region permits the access: called on a page fault.
    ///
    /// After success the hart that faulted must flush the page locally, since its TLB may hold its absence; and the
    /// harts that [`harts_to_synchronise`](Self::harts_to_synchronise) returns must do so.
    ///
    /// # Errors
    /// See [`Fault`].
    #[doc(alias = "page fault")]
    #[doc(alias = "handle_mm_fault")]
    pub fn fault(&mut self, address: u64, access: Access) -> Result<(), Fault> {
        let region = self.regions.at(address).ok_or(Fault::NotMapped)?;
        if !region.protection.allows(access) {
            return Err(Fault::Protection);
        }
        let page = address / PAGE_SIZE * PAGE_SIZE;
        let offset = page - region.start;
        if self.table.resolve(page, access).is_some() {
            return Ok(());
        }
        let is_counted = self.table.is_counted(page);
        if access == Access::Write && is_counted {
            return self.copy_before_write(page);
        }
        let protection = match region.protection {
            Protection::ReadExecute if access != Access::Execute => Protection::Read,
            protection => protection,
        };
        self.unsynchronised |= if protection.allows(Access::Execute) { u64::MAX } else { 0 };
        let mapped = match &region.backing {
            // A shared page whose protection had been taken away in the space from which it comes.
            _ if is_counted => {
                self.table.protect(page..page + PAGE_SIZE, protection).after(|_| ());
                Ok(())
            }
            _ if access == Access::Execute && self.table.resolve(page, Access::Read).is_some() => {
                // It was read before. No flush is needed: a hart whose TLB holds it as not executable faults, and looks
                // again.
                self.table.protect(page..page + PAGE_SIZE, protection).after(|_| ());
                Ok(())
            }
            Backing::Anonymous => {
                // A page may need two tables.
                let limit = self.limits.frames;
                if self.resident + self.table.table_frames() + 3 > limit || !frames::available_to_programs(3) {
                    return Err(Fault::OutOfMemory);
                }
                let frame = Frame::allocate_zeroed()?;
                let mapped = self.table.map(page, Leaf::Owned(frame), protection).map_err(|(error, _)| error);
                self.resident += usize::from(mapped.is_ok());
                mapped
            }
            Backing::Shared { frames, .. } => {
                let frame = frames.get((offset / PAGE_SIZE) as usize).ok_or(Fault::NotMapped)?;
                self.table.map_kept(page, frame, protection)
            }
            Backing::Object(mapped) => {
                let number = mapped.first + offset / PAGE_SIZE;
                let frame = mapped.object.page(usize::try_from(number).map_err(|_| Fault::BeyondTheEnd)?)?;
                // The region keeps the object, which keeps the frame.
                let result = self.table.map_kept(page, &frame, protection);
                if access != Access::Write && result.is_ok() {
                    let around = page / AROUND * AROUND;
                    let pages = around.max(region.start)..(around + AROUND).min(region.end);
                    enter_around(&mut self.table, mapped, region.start, pages, protection);
                }
                result
            }
            Backing::Device(first) => {
                let device = DevicePage::new(first + offset).ok_or(Fault::NotMapped)?;
                self.table.map(page, Leaf::Device(device), protection).map_err(|(error, _)| error)
            }
        };
        mapped.map_err(|error| match error {
            sv39::MapError::OutOfMemory => Fault::OutOfMemory,
            sv39::MapError::InvalidAddress | sv39::MapError::Occupied => Fault::Protection,
        })
    }

    /// Gives the space its own copy of a page that it shares with others (copy-on-write).
    #[doc(alias("COW", "do_wp_page"))]
    fn copy_before_write(&mut self, page: u64) -> Result<(), Fault> {
        let copy = match self.table.is_shared(page) {
            // The others have copied it.
            false => None,
            true if !frames::available_to_programs(1) => return Err(Fault::OutOfMemory),
            true => Some(Frame::allocate()?),
        };
        if copy.is_some() {
            let hidden = self.table.hide(page);
            self.flush(hidden, Removed::Nothing).after(self.flusher);
        }
        self.table.own_counted(page, copy, Protection::ReadWrite);
        // The page was known to be readable only, at another address.
        self.recent = [Recent::NONE; RECENT];
        self.displaced = Recent::NONE;
        Ok(())
    }

    /// Gives another space some of this one's regions, from the address `from` on, for a process that begins as a
    /// copy: anonymous memory, and frames that are shared read-only. The other space has regions below that address
    /// only, from earlier parts. Returns the address to go on with, `None` at the end.
    /// [`share_pages`](Self::share_pages) gives it the pages.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`]; the other space has a part of the regions.
    #[doc(alias = "fork")]
    #[doc(alias = "dup_mmap")]
    pub fn copy_regions(&self, other: &mut Self, from: u64) -> Result<Option<u64>, MapError> {
        let mut regions = self.regions.iter_from(self.regions.above(from));
        let mut next = None;
        for region in regions.by_ref().take(MOST_REGIONS) {
            next = Some(region.end);
            let backing = match &region.backing {
                Backing::Anonymous => Backing::Anonymous,
                Backing::Shared { frames, sharing: Sharing::ReadOnly } => {
                    let mut copy = Vec::new();
                    copy.try_reserve_exact(frames.len()).map_err(|_| MapError::OutOfMemory)?;
                    copy.extend(frames.iter().cloned());
                    Backing::Shared { frames: copy, sharing: Sharing::ReadOnly }
                }
                Backing::Object(mapped) => Backing::Object(mapped.clone()),
                Backing::Shared { .. } | Backing::Device(_) => continue,
            };
            let Region { start, end, protection, name, is_undumped, .. } = *region;
            let mut copy = Region { start, end, protection, backing, name, is_undumped };
            // This space may have changed since the part before, and a region of frames cannot begin later.
            if copy.is_divisible() {
                copy.move_start(start.max(from));
            } else if start < from {
                continue;
            }
            other.regions.reserve().map_err(|OutOfMemory| MapError::OutOfMemory)?;
            other.regions.insert(other.regions.above(copy.start), copy);
        }
        other.mapping_top = self.mapping_top;
        other.fetches = self.fetches;
        other.searched = Searched::nothing(self.mapping_top);
        (other.break_start, other.break_end) = (self.break_start, self.break_end);
        Ok(next.filter(|_| regions.next().is_some()))
    }

    /// Lets a space that has this one's regions share its anonymous pages from `from` on: a bounded number of them.
    /// Returns the address to go on with, `None` at the end, and the flush of this space.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the other space has a part of the pages. The flush is to be done in any case, and before this
    /// space is unlocked: until then harts may write to pages that a fault of another hart would copy.
    #[doc(alias("copy_page_range", "copy-on-write"))]
    pub fn share_pages(&mut self, other: &mut Self, from: u64) -> (Flush, Result<Option<u64>, OutOfMemory>) {
        let part = match self.anonymous_from(from) {
            Ok(part) => self.table.reach_of_sharing(part),
            Err(next) => return (Flush::default(), Ok(next)),
        };
        let end = part.end;
        // Only where the other one has the region too: this one may have changed meanwhile.
        let theirs = other
            .regions
            .get(other.regions.above(part.start))
            .filter(|region| matches!(region.backing, Backing::Anonymous));
        let common = theirs.map_or(part.start..part.start, |theirs| {
            let start = part.start.max(theirs.start).min(part.end);
            start..part.end.min(theirs.end).max(start)
        });
        let next = if common.end < end && !common.is_empty() { common.end } else { end };
        let protection = theirs.map_or(Protection::None, |theirs| theirs.protection);
        let (unmapped, pages, are_all) = self.table.share_with(&mut other.table, common, protection);
        other.resident += pages;
        other.unsynchronised = u64::MAX;
        let flush = self.flush(unmapped, Removed::Nothing);
        (flush, if are_all { Ok(Some(next)) } else { Err(OutOfMemory) })
    }

    /// Returns the rest of the first anonymous region from an address on, or the address to go on with after a bounded
    /// number of others, `None` at the end.
    fn anonymous_from(&self, from: u64) -> Result<Range<u64>, Option<u64>> {
        let mut regions = self.regions.iter_from(self.regions.above(from));
        let mut seen = None;
        for region in regions.by_ref().take(MOST_REGIONS) {
            if matches!(region.backing, Backing::Anonymous) {
                return Ok(region.start.max(from)..region.end);
            }
            seen = Some(region.end);
        }
        Err(seen.filter(|_| regions.next().is_some()))
    }

    /// Makes all pages of the range now, instead of when they are touched.
    ///
    /// # Errors
    /// That of the first page that cannot be made; those before it stay.
    #[doc(alias = "MAP_POPULATE")]
    pub fn populate(&mut self, range: Range<u64>) -> Result<(), Fault> {
        let mut page = range.start / PAGE_SIZE * PAGE_SIZE;
        while page < range.end {
            let protection = self.regions.at(page).ok_or(Fault::NotMapped)?.protection;
            let access = [Access::Read, Access::Execute].into_iter().find(|access| protection.allows(*access));
            self.fault(page, access.ok_or(Fault::Protection)?)?;
            page += PAGE_SIZE;
        }
        Ok(())
    }

    fn enter_kept(&mut self, start: u64) {
        let Some(region) = self.regions.at(start) else { return };
        let Backing::Shared { frames, .. } = &region.backing else { return };
        for (page, frame) in frames.iter().enumerate() {
            if self.table.map_kept(region.start + page as u64 * PAGE_SIZE, frame, region.protection).is_err() {
                return;
            }
        }
    }

    /// Enters the pages of an object that are there, with their region's protection, in a range of one region: a
    /// program need not touch them first. Without memory for tables the rest is entered when it is touched.
    pub fn enter_present(&mut self, range: Range<u64>) {
        let Some(region) = self.regions.at(range.start) else { return };
        let Backing::Object(mapped) = &region.backing else { return };
        let (protection, end) = (region.protection, range.end.min(region.end));
        for page in (range.start..end).step_by(PAGE_SIZE as usize) {
            let number = mapped.first + (page - region.start) / PAGE_SIZE;
            let Some(frame) = usize::try_from(number).ok().and_then(|number| mapped.object.reached(number)) else {
                continue;
            };
            if self.table.map_kept(page, &frame, protection).is_err() {
                break;
            }
        }
        self.instructions_changed(protection);
    }

    // ---- the kernel's accesses ----

    /// Returns the page's address in the direct map, if it is cached and the program has this access.
    #[inline(always)]
    fn recent(&self, page: u64, access: Access) -> Option<*mut u8> {
        let recent = &self.recent[(page / PAGE_SIZE) as usize % RECENT];
        if recent.permits(page, access) {
            return Some(recent.pointer);
        }
        self.displaced.permits(page, access).then_some(self.displaced.pointer)
    }

    /// Returns the page's address in the direct map, if the program has this access.
    #[inline(always)]
    fn page(&mut self, page: u64, access: Access) -> Result<*mut u8, Fault> {
        match self.recent(page, access) {
            Some(pointer) => Ok(pointer),
            None => self.page_slowly(page, access),
        }
    }

    #[cold]
    #[inline(never)]
    fn page_slowly(&mut self, page: u64, access: Access) -> Result<*mut u8, Fault> {
        let present = match self.table.present(page) {
            Some(present) if present.permits(access) => present,
            _ => {
                self.fault(page, access).inspect_err(|fault| {
                    if *fault == Fault::Elsewhere {
                        self.missed = Some(page);
                    }
                })?;
                self.table.present(page).filter(|present| present.permits(access)).ok_or(Fault::Protection)?
            }
        };
        let address = present.address();
        if frames::manages(&(address..address + PAGE_SIZE)) {
            let pointer = bytes::pointer(address);
            let allowed = |access| if present.permits(access) { page } else { NO_PAGE };
            let new = Recent { readable: allowed(Access::Read), writable: allowed(Access::Write), pointer };
            self.displaced = core::mem::replace(&mut self.recent[(page / PAGE_SIZE) as usize % RECENT], new);
            Ok(pointer)
        } else {
            // The kernel copies no device registers for programs.
            Err(Fault::Protection)
        }
    }

    /// Visits the bytes of a user range in order, in pieces that do not cross a page, for a copy between user memory
    /// and another place (a device's buffer, a pipe). `visit` returns how many bytes of the piece it used; fewer than
    /// there are end the transfer.
    ///
    /// Returns the number of bytes used.
    ///
    /// # Errors
    /// [`Interrupted`] at the first page that does not permit `access`; all pieces before it have been visited. None is
    /// if the range leaves the user half.
    pub fn for_each_slice(
        &mut self,
        address: u64,
        length: usize,
        access: Access,
        mut visit: impl FnMut(&UserBytes<'_>) -> usize,
    ) -> Result<usize, Interrupted> {
        if length == 0 {
            return Ok(0);
        }
        check_bytes(address, length).map_err(|fault| Interrupted { done: 0, fault })?;
        let mut done = 0;
        while done < length {
            let at = address + done as u64;
            let within = (at % PAGE_SIZE) as usize;
            let piece = (PAGE_SIZE as usize - within).min(length - done);
            let page = self.page(at - within as u64, access).map_err(|fault| Interrupted { done, fault })?;
            // SAFETY: the page's frame is kept by the page table or by its region as long as `self` is borrowed, and
            // the piece is inside the page.
            let bytes = unsafe { UserBytes::from_pointer(page.wrapping_add(within), piece) };
            let used = visit(&bytes).min(piece);
            done += used;
            if used < piece {
                break;
            }
        }
        Ok(done)
    }

    /// Returns the bytes, if they lie in one page whose address is cached: the fast path. `None` proves nothing.
    #[inline(always)]
    fn known(&self, address: u64, length: usize, access: Access) -> Option<UserBytes<'_>> {
        let within = (address % PAGE_SIZE) as usize;
        let page = self.recent(address - within as u64, access)?;
        // SAFETY: as in `for_each_slice`; the length is checked here.
        (length <= PAGE_SIZE as usize - within)
            .then(|| unsafe { UserBytes::from_pointer(page.wrapping_add(within), length) })
    }

    /// Copies user memory into the buffer.
    ///
    /// # Errors
    /// See [`Fault`]; the buffer may have been filled up to the page that faulted.
    #[inline]
    #[doc(alias = "copy_from_user")]
    pub fn copy_in(&mut self, address: u64, destination: &mut [u8]) -> Result<(), Fault> {
        if let Some(bytes) = self.known(address, destination.len(), Access::Read) {
            bytes.copy_to(destination);
            return Ok(());
        }
        self.copy_in_pages(address, destination)
    }

    #[cold]
    #[inline(never)]
    fn copy_in_pages(&mut self, address: u64, destination: &mut [u8]) -> Result<(), Fault> {
        let length = destination.len();
        let mut rest = destination;
        self.for_each_slice(address, length, Access::Read, |bytes| {
            let (piece, after) = core::mem::take(&mut rest).split_at_mut(bytes.len());
            rest = after;
            bytes.copy_to(piece)
        })
        .map(|_| ())
        .map_err(|interrupted| interrupted.fault)
    }

    /// Copies the buffer into user memory.
    ///
    /// # Errors
    /// See [`Fault`]; the pages before the one that faulted may have been written.
    #[inline]
    #[doc(alias = "copy_to_user")]
    pub fn copy_out(&mut self, address: u64, source: &[u8]) -> Result<(), Fault> {
        if let Some(bytes) = self.known(address, source.len(), Access::Write) {
            bytes.copy_from(source);
            return Ok(());
        }
        self.copy_out_pages(address, source)
    }

    #[cold]
    #[inline(never)]
    fn copy_out_pages(&mut self, address: u64, source: &[u8]) -> Result<(), Fault> {
        let mut rest = source;
        self.for_each_slice(address, source.len(), Access::Write, |bytes| {
            let (piece, after) = rest.split_at(bytes.len());
            rest = after;
            bytes.copy_from(piece)
        })
        .map(|_| ())
        .map_err(|interrupted| interrupted.fault)
    }

    /// Fills user memory with zeros.
    ///
    /// # Errors
    /// See [`Fault`]; the pages before the one that faulted may have been written.
    #[doc(alias = "clear_user")]
    pub fn zero(&mut self, address: u64, length: usize) -> Result<(), Fault> {
        self.for_each_slice(address, length, Access::Write, |bytes| {
            bytes.zero();
            bytes.len()
        })
        .map(|_| ())
        .map_err(|interrupted| interrupted.fault)
    }

    numbers!(u32, AtomicU32, atomic_u32, read_u32, write_u32, read_u32_slowly, write_u32_slowly);
    numbers!(u64, AtomicU64, atomic_u64, read_u64, write_u64, read_u64_slowly, write_u64_slowly);

    /// Changes the aligned 32-bit word from `old` to `new` if it is `old`, as one atomic operation for programs on
    /// other harts. `Ok(Err(found))` if it has another value.
    ///
    /// # Errors
    /// See [`Fault`].
    #[doc(alias = "cmpxchg")]
    pub fn compare_exchange_u32(&mut self, address: u64, old: u32, new: u32) -> Result<Result<u32, u32>, Fault> {
        let word = self.atomic_u32(address, Access::Write)?.ok_or(Fault::Misaligned)?;
        // As a program's own compare-and-exchange with both orders: the word may be a lock.
        Ok(word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire))
    }

    /// Changes the aligned 32-bit word by this operation, as one atomic operation for programs on other harts; returns
    /// what it was.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn change_u32(&mut self, address: u64, change: WordChange, operand: u32) -> Result<u32, Fault> {
        let word = self.atomic_u32(address, Access::Write)?.ok_or(Fault::Misaligned)?;
        // As with `compare_exchange_u32`.
        Ok(match change {
            WordChange::Set => word.swap(operand, Ordering::AcqRel),
            WordChange::Add => word.fetch_add(operand, Ordering::AcqRel),
            WordChange::Or => word.fetch_or(operand, Ordering::AcqRel),
            WordChange::And => word.fetch_and(operand, Ordering::AcqRel),
            WordChange::ExclusiveOr => word.fetch_xor(operand, Ordering::AcqRel),
        })
    }

    /// Loads the aligned 32-bit word with acquire order, for the comparison of a futex.
    ///
    /// # Errors
    /// See [`Fault`].
    #[doc(alias = "get_user")]
    pub fn load_u32(&mut self, address: u64) -> Result<u32, Fault> {
        Ok(self.atomic_u32(address, Access::Read)?.ok_or(Fault::Misaligned)?.load(Ordering::Acquire))
    }

    /// Stores the aligned 32-bit word with release order.
    ///
    /// # Errors
    /// See [`Fault`].
    #[doc(alias = "put_user")]
    pub fn store_u32(&mut self, address: u64, value: u32) -> Result<(), Fault> {
        self.atomic_u32(address, Access::Write)?.ok_or(Fault::Misaligned)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Copies a string that ends with a zero byte, without the zero, of at most `limit` bytes.
    ///
    /// # Errors
    /// See [`StringError`].
    #[doc(alias = "strncpy_from_user")]
    pub fn copy_in_string(&mut self, address: u64, limit: usize) -> Result<Vec<u8>, StringError> {
        let mut string = Vec::new();
        let mut at = address;
        // Most strings are short.
        let mut goes_on = self.copy_in_piece(&mut at, limit, &mut string, Piece([1; 64]))?;
        while goes_on {
            goes_on = self.copy_in_piece(&mut at, limit, &mut string, Piece([1; 512]))?;
        }
        Ok(string)
    }

    /// Copies a part of a string that lies in one page to the end of another string; returns whether it goes on.
    #[inline(always)]
    fn copy_in_piece<const SIZE: usize>(
        &mut self,
        at: &mut u64,
        limit: usize,
        string: &mut Vec<u8>,
        mut piece: Piece<SIZE>,
    ) -> Result<bool, StringError> {
        // At the same offset in a word, which makes the copy one of words.
        let start = (*at % size_of::<u64>() as u64) as usize;
        let length = (SIZE - start).min((PAGE_SIZE - *at % PAGE_SIZE) as usize);
        self.copy_in(*at, &mut piece.0[start..start + length])?;
        let end = piece.first_zero();
        let found = &piece.0[start..end.unwrap_or(start + length)];
        if string.len() + found.len() > limit {
            return Err(StringError::TooLong);
        }
        string.try_reserve(found.len()).map_err(|_| Fault::OutOfMemory)?;
        string.extend_from_slice(found);
        *at += length as u64;
        Ok(end.is_none())
    }
}

/// Room for a part of a string, without zeros where nothing was copied to.
#[repr(align(8))]
struct Piece<const SIZE: usize>([u8; SIZE]);

impl<const SIZE: usize> Piece<SIZE> {
    /// Returns the place of the first zero, which is looked for in a word at a time.
    #[inline(always)]
    fn first_zero(&self) -> Option<usize> {
        const LOWEST: u64 = u64::MAX / 0xff;
        const HIGHEST: u64 = LOWEST << 7;
        let (words, _) = self.0.as_chunks();
        for (index, word) in words.iter().enumerate() {
            // A byte's highest bit is set by the subtraction and was clear: the lowest such byte is zero.
            let word = u64::from_le_bytes(*word);
            let zeros = word.wrapping_sub(LOWEST) & !word & HIGHEST;
            if zeros != 0 {
                return Some(size_of::<u64>() * index + zeros.trailing_zeros() as usize / 8);
            }
        }
        None
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        if self.active != 0 {
            // A hart still walks the tables. Leaking them is the safe way out of a mistake of the kernel.
            debug_assert!(false, "an address space was dropped before every hart had left it");
            core::mem::forget(core::mem::take(&mut self.regions));
            self.table.leak();
        }
    }
}

/// Checks that a range is of whole pages, not empty, and in the user half.
fn check(range: &Range<u64>) -> Result<(), MapError> {
    let aligned = range.start.is_multiple_of(PAGE_SIZE) && range.end.is_multiple_of(PAGE_SIZE);
    if aligned && range.start < range.end && USER.start <= range.start && range.end <= USER.end {
        Ok(())
    } else {
        Err(MapError::InvalidRange)
    }
}

/// Checks that bytes are in the user half.
fn check_bytes(address: u64, length: usize) -> Result<(), Fault> {
    match address.checked_add(length as u64) {
        Some(end) if address >= USER.start && end <= USER.end => Ok(()),
        _ => Err(Fault::NotMapped),
    }
}
