//! Sv39 page tables as data (RISC-V privileged specification, "Sv39: Page-Based 39-bit Virtual-Memory System").
//!
//! A [`PageTable`] owns the frames of its tables and of the pages mapped with [`Leaf::Owned`]. Changing it changes
//! memory only; the flush that the TLBs of the harts need is returned as an [`Unmapped`], which also holds the frames
//! that were mapped, so that they cannot be freed before the flush (FLUSH-BEFORE-FREE).
//!
//! # Entries
//! Accessed and dirty bits are set from the start: they are not used here, and harts differ in whether they set them or
//! fault. The two bits that the hardware leaves to software encode the owner of the page:
//!
//! | valid | bit 8 | bit 9 | meaning |
//! |---|---|---|---|
//! | 1 | 1 | 0 | mapped; the entry owns the frame |
//! | 1 | 1 | 1 | mapped, never writable; the entry has a share in the frame, which is copied before it is written |
//! | 1 | 0 | 0 | mapped; another owner keeps the frame, or it is a device |
//! | 0 | any | any | not accessible ([`Protection::None`]), but the page is kept for later |
//!
//! An empty entry is zero as a whole; page 0 of physical memory is never mapped.
//!
//! The second kind is not available outside of this crate except for devices, since the compiler could not check the
//! frame's owner; [`crate::space`] keeps it in its list of regions.
//!
//! A table's record counts its entries that are not empty (in the root: of the user half), so that an empty table is
//! never searched.
//!
//! # The kernel's half
//! Root entries 256 to 511 are copies of the kernel's (KERNEL-HALF), so that a trap needs no switch of tables.
//!
//! # Large roots
//! `hgatp` in mode Sv39x4 requires a root of 16 KiB whose first 512 entries have the format of a Sv39 root. A root of
//! that size serves `satp` and `hgatp` at the same time: kernel entries lack the user bit, which the second stage
//! refuses.

use crate::bytes;
use crate::frames::{self, Block, Frame, FrameList, OutOfMemory, SharedFrame};
use crate::{MAX_HARTS, PAGE_SIZE};
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use spin::Once;

/// Addresses that programs may use: everything in the lower half but the first page, so that null is never valid.
pub const USER: Range<u64> = 0x1000..0x40_0000_0000;

/// Entries in a table.
const ENTRIES: usize = 512;
/// Root entries of the user half.
const USER_ENTRIES: usize = ENTRIES / 2;
/// Bytes under one entry of the middle level.
const MIDDLE: u64 = 512 * PAGE_SIZE;
/// Bytes under one entry of the root.
const TOP: u64 = 512 * MIDDLE;

const VALID: u64 = 1 << 0;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;
const USER_BIT: u64 = 1 << 4;
const GLOBAL: u64 = 1 << 5;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
const OWNED: u64 = 1 << 8;
/// Beside [`OWNED`]: the entry has a share in the frame.
const COUNTED: u64 = 1 << 9;
const LEAF: u64 = READ | WRITE | EXECUTE;
const NUMBER_SHIFT: u32 = 10;
const NUMBER_MASK: u64 = (1 << 44) - 1;

/// Access that a program has to a page. Writable and executable at once does not exist (W^X), nor does writable without
/// readable, which the hardware reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "PROT_READ")]
#[doc(alias = "W^X")]
pub enum Protection {
    /// No access; the contents are kept.
    None,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
    /// Execute only.
    Execute,
    /// Read and execute.
    ReadExecute,
}

/// Error for a request for writable and executable memory. Map it writable, fill it, then change the protection to
/// executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritableAndExecutable;

impl fmt::Display for WritableAndExecutable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .write_str("memory is never writable and executable: map it writable, fill it, then make it executable")
    }
}

impl core::error::Error for WritableAndExecutable {}

impl Protection {
    /// Converts the bits of `mmap` and of ELF segments as Linux numbers them for `mmap`: 1 read, 2 write, 4 execute.
    /// Write implies read.
    ///
    /// # Errors
    /// [`WritableAndExecutable`] if both bits are set. Other bits are ignored.
    pub fn from_bits(bits: u32) -> Result<Self, WritableAndExecutable> {
        Ok(match (bits & 4 != 0, bits & 2 != 0, bits & 1 != 0) {
            (true, true, _) => return Err(WritableAndExecutable),
            (true, false, true) => Self::ReadExecute,
            (true, false, false) => Self::Execute,
            (false, true, _) => Self::ReadWrite,
            (false, false, true) => Self::Read,
            (false, false, false) => Self::None,
        })
    }

    /// Whether the access is allowed.
    #[must_use]
    #[inline]
    pub fn allows(self, access: Access) -> bool {
        let bit = match access {
            Access::Read => READ,
            Access::Write => WRITE,
            Access::Execute => EXECUTE,
        };
        self.bits() & bit != 0
    }

    const fn bits(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Read => READ,
            Self::ReadWrite => READ | WRITE,
            Self::Execute => EXECUTE,
            Self::ReadExecute => READ | EXECUTE,
        }
    }

    fn of(entry: u64) -> Self {
        match (entry & VALID != 0, entry & LEAF) {
            (false, _) => Self::None,
            (true, READ) => Self::Read,
            (true, EXECUTE) => Self::Execute,
            (true, bits) if bits & WRITE != 0 => Self::ReadWrite,
            (true, _) => Self::ReadExecute,
        }
    }

    /// Returns the bits of a user leaf.
    const fn user_leaf(self) -> u64 {
        match self {
            Self::None => 0,
            _ => self.bits() | VALID | USER_BIT | ACCESSED | DIRTY,
        }
    }
}

/// One access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store, or an atomic.
    Write,
    /// An instruction fetch.
    Execute,
}

/// Reason why a page was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The address is not the start of a page of the user half. Do not repeat.
    InvalidAddress,
    /// There is a page already. Unmap it first.
    Occupied,
    /// There is no frame for a table. Free memory and repeat.
    OutOfMemory,
}

impl From<OutOfMemory> for MapError {
    fn from(OutOfMemory: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::InvalidAddress => "not the start of a page that a program may use",
            Self::Occupied => "a page is mapped there already",
            Self::OutOfMemory => "no memory for a page table",
        })
    }
}

impl core::error::Error for MapError {}

/// Backing of a page.
#[derive(Debug)]
pub enum Leaf {
    /// A frame that belongs to the table from now on.
    Owned(Frame),
    /// The page of a device at this physical address.
    Device(DevicePage),
}

/// Ranges of devices for programs: see [`permit_devices`].
static DEVICES: Once<([(u64, u64); DEVICE_RANGES], usize)> = Once::new();

/// Maximum number of ranges of [`permit_devices`].
pub const DEVICE_RANGES: usize = 16;

/// There are more ranges than [`DEVICE_RANGES`], there is memory among them, or ranges were given before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDevices;

/// Names the physical addresses of the device registers that programs may be given; until then, none. May be called
/// once, after [`frames::init`]. The kernel image and the firmware must not be among them: like BOOT-MEMORY, this is a
/// promise made at boot.
///
/// # Errors
/// See [`InvalidDevices`].
pub fn permit_devices(ranges: &[Range<u64>]) -> Result<(), InvalidDevices> {
    let mut places = [(0, 0); DEVICE_RANGES];
    let used = places.get_mut(..ranges.len()).ok_or(InvalidDevices)?;
    if DEVICES.is_completed() || ranges.iter().any(frames::manages) {
        return Err(InvalidDevices);
    }
    for (place, range) in used.iter_mut().zip(ranges) {
        *place = (range.start, range.end);
    }
    DEVICES.call_once(|| (places, ranges.len()));
    Ok(())
}

/// The physical address of a page of device registers: proof that mapping it cannot touch ordinary memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePage(u64);

impl DevicePage {
    /// Checks an address: `None` if it is not that of a page, is zero, or is not wholly inside of the ranges given to
    /// [`permit_devices`].
    #[must_use]
    pub fn new(address: u64) -> Option<Self> {
        let (ranges, used) = DEVICES.get()?;
        let end = address.checked_add(PAGE_SIZE)?;
        let fits = address != 0 && address.is_multiple_of(PAGE_SIZE) && address / PAGE_SIZE <= NUMBER_MASK;
        let permitted = ranges[..*used].iter().any(|&(first, last)| first <= address && end <= last);
        (fits && permitted).then_some(Self(address))
    }
}

/// Result of [`PageTable::translate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "pte")]
pub struct Translation {
    /// The physical address.
    pub address: u64,
    /// Access that the program has.
    pub protection: Protection,
}

/// Entry of a page that a program has.
#[derive(Clone, Copy)]
pub(crate) struct Present(u64);

impl Present {
    /// Whether the program has this access.
    #[inline(always)]
    pub(crate) fn permits(self, access: Access) -> bool {
        let needed = VALID
            | match access {
                Access::Read => READ,
                Access::Write => WRITE,
                Access::Execute => EXECUTE,
            };
        self.0 & needed == needed
    }

    /// Returns the physical address of the page.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        target(self.0)
    }
}

/// Part of the address space that TLBs must flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Nothing: no change that a TLB could hold.
    #[default]
    Nothing,
    /// The pages of this range of virtual addresses.
    Pages(Range<u64>),
    /// The whole address space, because tables were removed, and harts may hold those too.
    All,
}

impl Scope {
    fn add_page(&mut self, page: u64) {
        let end = page + PAGE_SIZE;
        match self {
            Self::Nothing => *self = Self::Pages(page..end),
            Self::Pages(pages) => *pages = pages.start.min(page)..pages.end.max(end),
            Self::All => {}
        }
    }
}

/// Pages and tables taken out of a page table: the TLBs must flush `scope`, and then the frames may be freed.
///
/// Dropping it without the flush leaks the frames, since using them again would let a program write to them.
#[derive(Debug, Default)]
#[must_use = "the TLBs still know the pages: flush them and call `flushed`"]
pub struct Unmapped {
    scope: Scope,
    frames: FrameList,
    shares: Shares,
    /// Pages whose frames were owned.
    pages: usize,
}

/// Shares in frames that were taken out of a page table.
///
/// Without memory to keep one it is leaked, since giving it back before the flush would let a program read the frame
/// of another.
#[derive(Debug, Default)]
pub(crate) struct Shares(Vec<SharedFrame>);

impl Shares {
    fn push(&mut self, frame: SharedFrame) {
        // Room for the pages of a whole part, or at least for this one.
        let is_full = self.0.len() == self.0.capacity();
        if !is_full || self.0.try_reserve(PIECE_PAGES).is_ok() || self.0.try_reserve(1).is_ok() {
            self.0.push(frame);
        } else {
            core::mem::forget(frame);
        }
    }

    /// Gives the shares back, after the flush.
    pub(crate) fn free(mut self) {
        drop(core::mem::take(&mut self.0));
    }
}

impl Drop for Shares {
    /// Keeps the frames for ever, unless they were given back.
    fn drop(&mut self) {
        core::mem::take(&mut self.0).into_iter().for_each(core::mem::forget);
    }
}

impl Unmapped {
    /// Returns the scope of the flush.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns the number of pages, without tables: those that the address space no longer has.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Frees the frames after `flush` has made all harts that may hold the pages flush them. `flush` is not called if
    /// there is nothing to flush.
    pub fn after(self, flush: impl FnOnce(&Scope)) {
        if self.scope != Scope::Nothing {
            flush(&self.scope);
        }
        self.frames.free();
        self.shares.free();
    }

    pub(crate) fn into_parts(self) -> (Scope, FrameList, Shares) {
        (self.scope, self.frames, self.shares)
    }
}

/// The kernel's 256 root entries.
#[derive(Clone, Debug)]
#[repr(align(8))]
pub struct KernelHalf {
    bytes: [u8; USER_ENTRIES * 8],
}

impl KernelHalf {
    /// Takes the upper half of the kernel's root. The kernel must not change its root entries afterwards.
    #[must_use]
    pub fn new(entries: [u64; USER_ENTRIES]) -> Self {
        let mut bytes = [0; USER_ENTRIES * 8];
        for (place, entry) in bytes.chunks_exact_mut(8).zip(entries) {
            place.copy_from_slice(&entry.to_le_bytes());
        }
        Self { bytes }
    }

    /// Makes an empty kernel half, for tests.
    #[must_use]
    pub const fn empty() -> Self {
        Self { bytes: [0; USER_ENTRIES * 8] }
    }
}

/// Size of the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RootSize {
    /// One page: for `satp`.
    #[default]
    Page,
    /// 16 KiB, aligned: for `satp` and `hgatp` (Sv39x4) both.
    Shared,
}

/// A root with its tables.
#[derive(Debug)]
#[doc(alias = "satp")]
#[doc(alias = "pgd")]
pub struct PageTable {
    root: Block,
    /// Frames in tables below the root.
    tables: usize,
}

/// Returns the index of an address in the table of a level; level 0 has the pages.
#[inline(always)]
const fn index(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * level)) as usize % ENTRIES
}

#[inline(always)]
const fn target(entry: u64) -> u64 {
    (entry >> NUMBER_SHIFT & NUMBER_MASK) * PAGE_SIZE
}

const fn pointing_at(address: u64) -> u64 {
    (address / PAGE_SIZE) << NUMBER_SHIFT
}

fn number(address: u64) -> Option<NonZeroU32> {
    NonZeroU32::new((address / PAGE_SIZE) as u32)
}

/// Whether the address is the start of a page that a program may use.
fn is_user_page(address: u64) -> bool {
    address.is_multiple_of(PAGE_SIZE) && USER.contains(&address)
}

impl PageTable {
    /// Makes a table with an empty user half below the kernel's half.
    ///
    /// # Errors
    /// [`OutOfMemory`] if there is no block for the root.
    pub fn new(kernel: &KernelHalf, size: RootSize) -> Result<Self, OutOfMemory> {
        let root = Block::allocate(match size {
            RootSize::Page => 0,
            RootSize::Shared => 2,
        })?;
        let bytes = root.bytes();
        let half = USER_ENTRIES * size_of::<u64>();
        let parts = (bytes.slice(0..half), bytes.slice(half..2 * half), bytes.slice(2 * half..bytes.len()));
        if let (Some(user), Some(upper), Some(rest)) = parts {
            user.zero();
            upper.copy_from(&kernel.bytes);
            rest.zero();
        }
        if let Some(number) = number(root.physical_address()) {
            frames::record(number.get()).count.store(0, Relaxed);
        }
        Ok(Self { root, tables: 0 })
    }

    /// Returns the physical address of the root, for `satp` and `hgatp`.
    #[must_use]
    #[inline]
    pub fn root_address(&self) -> u64 {
        self.root.physical_address()
    }

    /// Returns the number of frames of the tables, the root included.
    #[must_use]
    pub fn table_frames(&self) -> usize {
        self.root.len() / PAGE_SIZE as usize + self.tables
    }

    #[inline(always)]
    fn root_entries(&self) -> &[AtomicU64; ENTRIES] {
        // SAFETY: the root is owned by `self` and used as a table only.
        unsafe { bytes::table(self.root.physical_address()) }
    }

    /// Returns the lowest table for an address; where there is none, the next address that may have one.
    #[inline(always)]
    fn lowest_table(&self, address: u64) -> Result<&[AtomicU64; ENTRIES], u64> {
        let middle = self.below(self.root_entries()[index(address, 2)].load(Relaxed));
        let middle = middle.ok_or((address / TOP + 1) * TOP)?;
        self.below(middle[index(address, 1)].load(Relaxed)).ok_or((address / MIDDLE + 1) * MIDDLE)
    }

    /// Returns the table that an entry of the user half points to.
    #[inline(always)]
    fn below(&self, entry: u64) -> Option<&[AtomicU64; ENTRIES]> {
        if entry & (VALID | LEAF) != VALID {
            return None;
        }
        // SAFETY: entries above level 0 in the user half that are valid and no leaves are written by `table_for`
        // alone, and name table frames that this `PageTable` keeps until the entry is cleared, which takes `&mut
        // self`.
        Some(unsafe { bytes::table(target(entry)) })
    }

    /// Returns the entry for a user page, if it has a table.
    #[inline(always)]
    fn entry(&self, address: u64) -> Option<&AtomicU64> {
        let middle = self.below(self.root_entries()[index(address, 2)].load(Relaxed))?;
        let bottom = self.below(middle[index(address, 1)].load(Relaxed))?;
        Some(&bottom[index(address, 0)])
    }

    /// Returns the table below the entry, made if there is none. `parent` is the table that contains the entry.
    fn table_for<'a>(
        entry: &AtomicU64,
        parent: u64,
        tables: &mut usize,
    ) -> Result<(&'a [AtomicU64; ENTRIES], u64), OutOfMemory> {
        let mut value = entry.load(Relaxed);
        if value & VALID == 0 {
            let frame = Frame::allocate_zeroed()?;
            let address = frame.physical_address();
            frames::record(frame.into_number().get()).count.store(0, Relaxed);
            value = pointing_at(address) | VALID;
            // Release, so that a hart that walks the new table sees its zeros.
            entry.store(value, core::sync::atomic::Ordering::Release);
            count(parent, 1);
            *tables += 1;
        }
        let address = target(value);
        // SAFETY: as in `below`; the frame was made here, by this call or an earlier one, and is kept by the entry.
        Ok((unsafe { bytes::table(address) }, address))
    }

    /// Maps one page. On failure the leaf is returned.
    ///
    /// The hart's TLB may hold the page's absence; after a page fault, flush the page on the hart that faulted.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(&mut self, address: u64, leaf: Leaf, protection: Protection) -> Result<(), (MapError, Leaf)> {
        let page = match &leaf {
            Leaf::Owned(frame) => pointing_at(frame.physical_address()) | OWNED,
            Leaf::Device(device) => pointing_at(device.0),
        };
        match self.set(address, page | protection.user_leaf()) {
            Ok(()) => {
                if let Leaf::Owned(frame) = leaf {
                    // The entry keeps it.
                    let _ = frame.into_number();
                }
                Ok(())
            }
            Err(error) => Err((error, leaf)),
        }
    }

    /// Maps a page whose frame the caller keeps until the page is unmapped and flushed.
    pub(crate) fn map_kept(
        &mut self,
        address: u64,
        frame: &SharedFrame,
        protection: Protection,
    ) -> Result<(), MapError> {
        self.set(address, pointing_at(frame.physical_address()) | protection.user_leaf())
    }

    fn set(&mut self, address: u64, value: u64) -> Result<(), MapError> {
        if !is_user_page(address) {
            return Err(MapError::InvalidAddress);
        }
        let (bottom, bottom_address) = self.bottom_for(address)?;
        let entry = &bottom[index(address, 0)];
        if entry.load(Relaxed) != 0 {
            return Err(MapError::Occupied);
        }
        // Release, so that another hart that sees the page sees the zeros in it.
        entry.store(value, core::sync::atomic::Ordering::Release);
        count(bottom_address, 1);
        Ok(())
    }

    /// Returns the bottom table of a user address and its physical address, made if there is none.
    #[inline(always)]
    fn bottom_for<'a>(&mut self, address: u64) -> Result<(&'a [AtomicU64; ENTRIES], u64), OutOfMemory> {
        let mut tables = self.tables;
        let result = (|| {
            let top = &self.root_entries()[index(address, 2)];
            let (middle, middle_address) = Self::table_for(top, self.root_address(), &mut tables)?;
            Self::table_for(&middle[index(address, 1)], middle_address, &mut tables)
        })();
        self.tables = tables;
        result
    }

    /// Whether there is no table below the root.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.tables == 0
    }

    /// Returns the physical address behind an address, and the program's access; `None` if no page is there. Pages
    /// without access are found too.
    #[must_use]
    pub fn translate(&self, address: u64) -> Option<Translation> {
        let entry = self.find(address)?;
        Some(Translation { address: target(entry) + address % PAGE_SIZE, protection: Protection::of(entry) })
    }

    /// Returns the physical address behind a user address, if the program has this access.
    #[inline]
    pub(crate) fn resolve(&self, address: u64, access: Access) -> Option<u64> {
        let page = self.present(address)?;
        page.permits(access).then(|| page.address() + address % PAGE_SIZE)
    }

    /// Returns the page at a user address, if there is one.
    #[inline(always)]
    pub(crate) fn present(&self, address: u64) -> Option<Present> {
        self.find(address).map(Present)
    }

    /// Returns the physical address of the page at a user address, whatever access the program has to it.
    pub(crate) fn page_at(&self, address: u64) -> Option<u64> {
        self.find(address).map(target)
    }

    /// Returns the entry of a user address, if it is not empty.
    #[inline(always)]
    fn find(&self, address: u64) -> Option<u64> {
        if !USER.contains(&address) {
            return None;
        }
        match self.entry(address)?.load(Relaxed) {
            0 => None,
            entry => Some(entry),
        }
    }

    /// Calls `visit` for each entry of a page in the range that is not empty, with the table that contains it. Skips
    /// addresses without tables.
    fn for_each(&self, range: Range<u64>, mut visit: impl FnMut(u64, &AtomicU64)) {
        let _: ControlFlow<()> = self.visit(range, |address, entry| {
            visit(address, entry);
            ControlFlow::Continue(())
        });
    }

    /// Counts the pages of a range from its start on, with a small bounded amount of work; returns their number, and
    /// the address up to which they are counted.
    pub(crate) fn count_some(&self, range: Range<u64>) -> (usize, u64) {
        let (mut address, mut pages) = (range.start, 0);
        for _ in 0..SEEN_AT_ONCE {
            if address >= range.end {
                break;
            }
            let bottom = match self.lowest_table(address) {
                Ok(bottom) => bottom,
                Err(next) => {
                    address = next;
                    continue;
                }
            };
            pages += usize::from(bottom[index(address, 0)].load(Relaxed) != 0);
            address += PAGE_SIZE;
        }
        (pages, address.min(range.end))
    }

    /// Returns the address of the first page of a range that the table has.
    pub(crate) fn first_page(&self, range: Range<u64>) -> Option<u64> {
        self.visit(range, |address, _| ControlFlow::Break(address)).break_value()
    }

    /// Does as [`for_each`](Self::for_each) until `visit` ends it.
    #[inline]
    fn visit<B>(&self, range: Range<u64>, mut visit: impl FnMut(u64, &AtomicU64) -> ControlFlow<B>) -> ControlFlow<B> {
        let mut address = range.start;
        while address < range.end {
            let bottom = match self.lowest_table(address) {
                Ok(bottom) => bottom,
                Err(next) => {
                    address = next;
                    continue;
                }
            };
            let end = range.end.min((address / MIDDLE + 1) * MIDDLE);
            while address < end {
                let entry = &bottom[index(address, 0)];
                if entry.load(Relaxed) != 0 {
                    visit(address, entry)?;
                }
                address += PAGE_SIZE;
            }
        }
        ControlFlow::Continue(())
    }

    /// Unmaps all pages of a range of whole pages; addresses that are not mapped, or not in the user half, are skipped.
    ///
    /// Tables are removed if the range covers all that they could map. Others stay, even if they are empty: a program
    /// that unmaps a page often maps one nearby soon.
    pub fn unmap(&mut self, range: Range<u64>) -> Unmapped {
        self.unmap_part(range.clone(), &range)
    }

    /// Unmaps a part of a range as [`unmap`](Self::unmap) does, for a range that is unmapped part by part: tables are
    /// removed when they are empty and the `whole` range covers all that they could map.
    pub fn unmap_part(&mut self, part: Range<u64>, whole: &Range<u64>) -> Unmapped {
        let mut unmapped = Unmapped::default();
        let range = clip(part);
        let mut address = range.start;
        while address < range.end && entries(self.root_address()) > 0 {
            let end = range.end.min((address / TOP + 1) * TOP);
            let entry = &self.root_entries()[index(address, 2)];
            let value = entry.load(Relaxed);
            if let Some(middle) = self.below(value) {
                let mut removed = self.unmap_middle(middle, target(value), address..end, whole, &mut unmapped);
                if entries(target(value)) == 0 && covers(whole, address, TOP) {
                    entry.store(0, Relaxed);
                    unmapped.frames.push(owned(value));
                    removed += 1;
                    uncount(self.root_address(), 1);
                }
                if removed > 0 {
                    // TLBs hold tables too, and flush them only together with everything else.
                    unmapped.scope = Scope::All;
                    self.tables -= removed;
                }
            }
            address = end;
        }
        unmapped
    }

    /// Unmaps a range that lies under one middle table, and returns the number of tables removed below it.
    fn unmap_middle(
        &self,
        middle: &[AtomicU64; ENTRIES],
        middle_address: u64,
        range: Range<u64>,
        whole: &Range<u64>,
        unmapped: &mut Unmapped,
    ) -> usize {
        let mut tables_removed = 0;
        let mut address = range.start;
        for entry in &middle[index(range.start, 1)..=index(range.end - 1, 1)] {
            let end = range.end.min((address / MIDDLE + 1) * MIDDLE);
            let value = entry.load(Relaxed);
            if let Some(bottom) = self.below(value) {
                let left = unmap_pages(bottom, target(value), address..end, unmapped);
                if left == 0 && covers(whole, address, MIDDLE) {
                    entry.store(0, Relaxed);
                    unmapped.frames.push(owned(value));
                    tables_removed += 1;
                    if uncount(middle_address, 1) == 0 {
                        break;
                    }
                }
            }
            address = end;
        }
        tables_removed
    }

    /// Returns the part of a range, at its start or at its end, that can be unmapped or protected with a bounded amount
    /// of work, for any mappings. Never empty if the range is not.
    #[must_use]
    pub fn reach(&self, range: Range<u64>, edge: Edge) -> Range<u64> {
        self.reach_with(range, edge, MOST_WORK)
    }

    fn reach_with(&self, range: Range<u64>, edge: Edge, most: usize) -> Range<u64> {
        let range = clip(range);
        let mut part = match edge {
            Edge::Start => range.start..range.start,
            Edge::End => range.end..range.end,
        };
        let mut work = 0;
        while part != range && work < most {
            let address = match edge {
                Edge::Start => part.end,
                Edge::End => part.start - PAGE_SIZE,
            };
            // As far as this entry determines, or those of a table from it on that are empty.
            let (span, number, cost) = match self.below(self.root_entries()[index(address, 2)].load(Relaxed)) {
                None => (TOP, 1, 1),
                Some(middle) => match middle[index(address, 1)].load(Relaxed) {
                    value if value & VALID == 0 => {
                        let left = match edge {
                            Edge::Start => (range.end - 1) / MIDDLE - address / MIDDLE,
                            Edge::End => address / MIDDLE - range.start / MIDDLE,
                        };
                        let number =
                            1 + empty_behind(middle, index(address, 1), edge, (left as usize).min(most - work - 1));
                        (MIDDLE, number, number)
                    }
                    // The table may be removed.
                    value if entries(target(value)) == 0 => (MIDDLE, 1, WORK_OF_A_PAGE),
                    value => (PIECE, 1, self.work_in_piece(value, address)),
                },
            };
            let start = address / span * span;
            match edge {
                Edge::Start => part.end = range.end.min(start + number as u64 * span),
                Edge::End => part.start = range.start.max(start - (number as u64 - 1) * span),
            }
            work += cost;
        }
        part
    }

    /// Returns the work of a piece of a bottom table.
    fn work_in_piece(&self, bottom: u64, address: u64) -> usize {
        let first = index(address / PIECE * PIECE, 0);
        let entries = self.below(bottom).map_or(&[][..], |table| &table[first..first + PIECE_PAGES]);
        let present = entries.iter().filter(|entry| entry.load(Relaxed) != 0).count();
        PIECE_PAGES + present * WORK_OF_A_PAGE
    }

    /// Changes the protection of all pages of a range of whole pages; unmapped addresses are skipped.
    pub fn protect(&mut self, range: Range<u64>, protection: Protection) -> Unmapped {
        let mut scope = Scope::default();
        self.for_each(clip(range), |address, entry| {
            let value = entry.load(Relaxed);
            let kept = value & (NUMBER_MASK << NUMBER_SHIFT | OWNED | COUNTED);
            let changed = kept | leaf(kept, protection);
            if changed != value {
                entry.store(changed, Relaxed);
                if value & VALID != 0 {
                    scope.add_page(address);
                }
            }
        });
        Unmapped { scope, ..Unmapped::default() }
    }

    /// Whether the page at an address is shared with other tables, and so must be copied before it is written.
    pub(crate) fn is_counted(&self, address: u64) -> bool {
        self.find(address).is_some_and(|entry| entry & COUNTED != 0)
    }

    /// Whether other tables have a share in the page at an address now. Only this table's owner can make it so again.
    pub(crate) fn is_shared(&self, address: u64) -> bool {
        self.find(address).is_some_and(|entry| {
            let is_counted = entry & COUNTED != 0;
            is_counted && core::mem::ManuallyDrop::new(share(entry)).shares() > 1
        })
    }

    /// Takes the page at an address away from the program; the table keeps its share. The harts that may know it must
    /// flush it.
    pub(crate) fn hide(&mut self, address: u64) -> Unmapped {
        let mut scope = Scope::default();
        if let Some(entry) = self.entry(address) {
            let value = entry.load(Relaxed);
            entry.store(value & !VALID, Relaxed);
            if value & VALID != 0 {
                scope.add_page(address / PAGE_SIZE * PAGE_SIZE);
            }
        }
        Unmapped { scope, ..Unmapped::default() }
    }

    /// Gives the table a page of its own instead of one that is shared with others, with the same contents: the frame
    /// `copy`, or without it the page itself, in which no other table has a share any more. A page that is copied must
    /// be [hidden](Self::hide) from all harts.
    #[doc(alias = "copy on write")]
    pub(crate) fn own_counted(&mut self, address: u64, copy: Option<Frame>, protection: Protection) {
        let Some(entry) = self.entry(address) else { return };
        let value = entry.load(Relaxed);
        if value & COUNTED == 0 {
            return;
        }
        let frame = match share(value).into_exclusive() {
            Ok(frame) => frame,
            Err(old) => {
                let Some(frame) = copy else {
                    // The entry keeps its share.
                    core::mem::forget(old);
                    return;
                };
                copy_page(&old, &frame);
                frame
            }
        };
        let page = pointing_at(frame.physical_address()) | OWNED;
        let _ = frame.into_number();
        // Release, so that another hart that sees the page sees the contents.
        entry.store(page | protection.user_leaf(), core::sync::atomic::Ordering::Release);
    }

    /// Lets another table have a share in each of this table's own pages in a range where the other one has none: from
    /// now on each of the two copies such a page before it writes to it. The scope has the pages that were writable.
    /// The other table gets the pages with a protection of its own. Returns the number of pages that are shared, and
    /// whether those are all; without memory for a table they are not.
    pub(crate) fn share_with(
        &mut self,
        other: &mut PageTable,
        range: Range<u64>,
        protection: Protection,
    ) -> (Unmapped, usize, bool) {
        let mut scope = Scope::default();
        let range = clip(range);
        let (mut pages, mut address) = (0, range.start);
        while address < range.end {
            let end = range.end.min((address / MIDDLE + 1) * MIDDLE);
            let mine = self.bottom(address).map_or(&[][..], |bottom| &bottom[index(address, 0)..=index(end - 1, 0)]);
            // A table is made for pages only.
            if mine.iter().any(|entry| entry.load(Relaxed) & OWNED != 0) {
                let Ok((theirs, theirs_address)) = other.bottom_for(address) else {
                    return (Unmapped { scope, ..Unmapped::default() }, pages, false);
                };
                let shared = share_entries(mine, &theirs[index(address, 0)..], protection, |page| {
                    scope.add_page(address + page as u64 * PAGE_SIZE);
                });
                count(theirs_address, shared);
                pages += shared as usize;
            }
            address = end;
        }
        (Unmapped { scope, ..Unmapped::default() }, pages, true)
    }

    /// Returns the bottom table of a user address, if there is one.
    fn bottom(&self, address: u64) -> Option<&[AtomicU64; ENTRIES]> {
        let middle = self.below(self.root_entries()[index(address, 2)].load(Relaxed))?;
        self.below(middle[index(address, 1)].load(Relaxed))
    }

    /// Returns the part of a range at its start whose pages can be [shared](Self::share_with) with a bounded amount of
    /// work, for any mappings. Never empty if the range is not.
    pub(crate) fn reach_of_sharing(&self, range: Range<u64>) -> Range<u64> {
        self.reach_with(range, Edge::Start, MOST_WORK * SHARED_FOR_ONE_UNMAPPED)
    }
}

/// Gives empty entries of another table shares in the owned pages of these, calls `made_read_only` for each page that
/// was writable, and returns the number of pages that both have now. Entries of the other table that are not empty
/// stay.
fn share_entries(
    mine: &[AtomicU64],
    theirs: &[AtomicU64],
    protection: Protection,
    mut made_read_only: impl FnMut(usize),
) -> u32 {
    let bits = leaf(COUNTED, protection);
    let mut shared = 0;
    for (page, (mine, theirs)) in mine.iter().zip(theirs).enumerate() {
        let value = mine.load(Relaxed);
        if value & OWNED == 0 || theirs.load(Relaxed) != 0 {
            continue;
        }
        let share = if value & COUNTED != 0 {
            let share = share(value);
            // The entry keeps its own.
            core::mem::forget(share.clone());
            share
        } else {
            let [share, kept] = owned(value).shares();
            core::mem::forget(kept);
            share
        };
        core::mem::forget(share);
        let kept = value & !WRITE | COUNTED;
        if kept != value {
            mine.store(kept, Relaxed);
            if value & VALID != 0 && value & WRITE != 0 {
                made_read_only(page);
            }
        }
        // Release, so that another hart that sees the page sees what is in it.
        let entry = kept & (NUMBER_MASK << NUMBER_SHIFT | OWNED | COUNTED) | bits;
        theirs.store(entry, core::sync::atomic::Ordering::Release);
        shared += 1;
    }
    shared
}

/// Returns the leaf bits of a page with this protection: one that is shared is not writable before it is copied.
const fn leaf(kept: u64, protection: Protection) -> u64 {
    if kept & COUNTED != 0 { protection.user_leaf() & !WRITE } else { protection.user_leaf() }
}

/// Copies a whole page.
fn copy_page(from: &SharedFrame, to: &Frame) {
    let mut piece = [0; 512];
    for offset in (0..PAGE_SIZE as usize).step_by(piece.len()) {
        from.read(offset, &mut piece);
        to.write(offset, &piece);
    }
}

/// End of a range at which a part is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Its start.
    Start,
    /// Its end.
    End,
}

/// Pages of a table that [`PageTable::reach`] looks at together.
const PIECE_PAGES: usize = 64;
const PIECE: u64 = PIECE_PAGES as u64 * PAGE_SIZE;
/// Work of unmapping a page and freeing its frame, in visited entries, the unit of work.
const WORK_OF_A_PAGE: usize = 32;
/// Approximate work of one part: 64 present pages, or a thousand empty entries. A part that begins with empty entries
/// has to come through a root and a table below it, or it would be no progress to begin there again.
const MOST_WORK: usize = 2 * ENTRIES + 1;
/// Number of entries that are looked at to count pages, at a time.
const SEEN_AT_ONCE: usize = 32;
/// Number of pages that can be shared for the work of unmapping and freeing one.
const SHARED_FOR_ONE_UNMAPPED: usize = 4;

/// Empties the entries of a range that lies under one bottom table, and returns the number of entries left.
fn unmap_pages(bottom: &[AtomicU64; ENTRIES], bottom_address: u64, range: Range<u64>, unmapped: &mut Unmapped) -> u32 {
    let present = entries(bottom_address);
    let mut removed = 0;
    let first = index(range.start, 0);
    for (offset, entry) in bottom[first..=index(range.end - 1, 0)].iter().enumerate() {
        // Usually few entries of a table are in use, and neighbours: stop behind the last.
        if removed == present {
            break;
        }
        let value = entry.load(Relaxed);
        if value == 0 {
            continue;
        }
        entry.store(0, Relaxed);
        removed += 1;
        if value & VALID != 0 {
            unmapped.scope.add_page(range.start + offset as u64 * PAGE_SIZE);
        }
        if value & OWNED != 0 {
            unmapped.pages += 1;
            match if value & COUNTED != 0 { share(value).into_exclusive() } else { Ok(owned(value)) } {
                Ok(frame) => unmapped.frames.push(frame),
                Err(share) => unmapped.shares.push(share),
            }
        }
    }
    if removed == 0 { present } else { uncount(bottom_address, removed) }
}

/// Returns the number of entries of a table behind one, in the direction away from this end of a range, that are empty:
/// at most so many.
fn empty_behind(table: &[AtomicU64; ENTRIES], from: usize, edge: Edge, most: usize) -> usize {
    let is_empty = |entry: &&AtomicU64| entry.load(Relaxed) & VALID == 0;
    match edge {
        Edge::Start => table[from + 1..].iter().take(most).take_while(is_empty).count(),
        Edge::End => table[..from].iter().rev().take(most).take_while(is_empty).count(),
    }
}

/// Whether a range covers all addresses for programs in the table of `span` bytes that contains the address.
fn covers(range: &Range<u64>, address: u64, span: u64) -> bool {
    let start = address / span * span;
    range.start <= start.max(USER.start) && range.end >= start + span
}

impl PageTable {
    /// Makes dropping do nothing, because harts may still use the table.
    pub(crate) fn leak(&mut self) {
        self.root.leak();
    }
}

impl Drop for PageTable {
    /// Frees the user half: pages, tables and root. No hart may use the table any more, and no TLB may hold pages of it
    /// under an identifier that is used again ([`crate::space`] ensures both).
    fn drop(&mut self) {
        if self.root.is_leaked() {
            return;
        }
        // In parts, so that shares are kept in a list of bounded length.
        let mut rest = USER;
        while !rest.is_empty() && entries(self.root_address()) > 0 {
            let part = self.reach(rest.clone(), Edge::Start);
            let Unmapped { frames, shares, .. } = self.unmap_part(part.clone(), &USER);
            frames.free();
            shares.free();
            rest.start = part.end;
        }
    }
}

/// Returns the pages of the range that programs may use.
fn clip(range: Range<u64>) -> Range<u64> {
    debug_assert!(range.start.is_multiple_of(PAGE_SIZE) && range.end.is_multiple_of(PAGE_SIZE));
    let start = range.start.max(USER.start) / PAGE_SIZE * PAGE_SIZE;
    let end = range.end.min(USER.end) / PAGE_SIZE * PAGE_SIZE;
    start..end.max(start)
}

/// Returns the frame that an entry with [`OWNED`], or an entry that points to a table, keeps. The entry must have been
/// cleared.
fn owned(entry: u64) -> Frame {
    let number = number(target(entry)).expect("frame 0 is never given out");
    // SAFETY: the entry was written from `Frame::into_number`, and its only copy was cleared by the caller, so the
    // number is used once.
    unsafe { Frame::from_number(number) }
}

/// Returns the share in a frame that an entry with [`COUNTED`] has. The entry must have been cleared, or its share
/// forgotten afterwards.
fn share(entry: u64) -> SharedFrame {
    let number = number(target(entry)).expect("frame 0 is never given out");
    // SAFETY: the entry was written with a share that was forgotten, and either its only copy was cleared by the caller
    // or the caller forgets this one, so the share is given back once.
    unsafe { SharedFrame::from_number(number) }
}

/// Returns the number of entries of a table that are not empty.
fn entries(table: u64) -> u32 {
    number(table).map_or(0, |number| frames::record(number.get()).count.load(Relaxed))
}

/// Adds to the number of entries of a table.
fn count(table: u64, entries: u32) {
    if let Some(number) = number(table) {
        let count = &frames::record(number.get()).count;
        count.store(count.load(Relaxed) + entries, Relaxed);
    }
}

/// Subtracts from the number of entries of a table, and returns the rest.
fn uncount(table: u64, entries: u32) -> u32 {
    let Some(number) = number(table) else { return 1 };
    let count = &frames::record(number.get()).count;
    let left = count.load(Relaxed) - entries;
    count.store(left, Relaxed);
    left
}

const _: () = assert!(MAX_HARTS <= 64);
const _: () = assert!(GLOBAL == 1 << 5);
