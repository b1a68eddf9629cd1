//! Physical memory as owning handles.
//!
//! [`Frame`] is one page of memory, [`Block`] a contiguous run (for devices, for large roots), [`SharedFrame`] a
//! counted share in one page. Dropping the last handle frees the memory. Handles read and write through
//! [`SharedBytes`], never through references, because a frame may be mapped into a program.
//!
//! # Scaling
//! One buddy system behind one lock holds all free memory. Single frames, which are nearly all of the traffic
//! (demand-zero pages, page tables, slabs), go through a cache for each hart that is refilled and emptied in batches,
//! so that the lock is taken once for a few dozen allocations. When memory runs out, the caches of all harts are
//! collected before an allocation is refused: "out of memory" means that every last frame is in use.
//!
//! # Counting
//! [`free_frames`] counts the caches too, so it is exact whenever no allocation is under way on another hart.

use crate::buddy::{ALLOCATED, Buddy, MAX_ORDER, NONE, Record};
use crate::bytes::{self, SharedBytes};
use crate::hart::{self, CurrentHart, HartLocal, Registered, Slot};
use crate::{MAX_HARTS, PAGE_SIZE, faults};
use core::fmt;
use core::mem::ManuallyDrop;
use core::num::NonZeroU32;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};
use spin::{Mutex, Once};

/// Order of the largest [`Block`] that is aligned to its size, which has `1 << LARGEST_ORDER` frames.
pub const LARGEST_ORDER: usize = MAX_ORDER;

/// Number of frames that one hart keeps for itself.
const CACHE: usize = 64;
/// Number of frames that move between a cache and the buddy system at once.
const BATCH: usize = 32;

/// There is no memory left, or not that much in one piece. Free some, or fail the call that wanted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("out of physical memory")
    }
}

impl core::error::Error for OutOfMemory {}

/// Reason for the failure of [`init`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitError {
    /// It was called before; the first call stands.
    AlreadyDone,
    /// The ranges contain no memory that could be managed: pass the ranges that the device tree names, without those of
    /// the kernel image and the firmware.
    NoMemory,
    /// Two ranges overlap: each frame must be given once.
    Overlap,
}

impl fmt::Display for InitError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::AlreadyDone => "physical memory was given to the allocator before",
            Self::NoMemory => "no usable physical memory was given to the allocator",
            Self::Overlap => "two ranges of physical memory overlap",
        })
    }
}

impl core::error::Error for InitError {}

/// Maximum number of frames that are kept from programs.
const LARGEST_RESERVE: usize = 1024;
static RESERVE: AtomicUsize = AtomicUsize::new(0);
/// Bytes that are [kept free](crate::heap::Kept) for allocations which must not fail.
static KEPT: AtomicUsize = AtomicUsize::new(0);

struct State {
    records: &'static [Record],
    base: u32,
    buddy: Mutex<Buddy>,
    /// Free frames of the buddy system, to be read without its lock; a moment old at most.
    uncached: AtomicUsize,
    caches: HartLocal<FrameCache>,
    /// Frames that can be allocated, without those of the records.
    total: usize,
}

static STATE: Once<State> = Once::new();
/// Set by the first caller of [`init`]; the swap refuses a second one. [`STATE`] publishes the result.
static STARTED: AtomicBool = AtomicBool::new(false);

/// One hart's free frames.
struct FrameCache {
    filled: usize,
    numbers: [u32; CACHE],
}

impl FrameCache {
    const fn new() -> Self {
        Self { filled: 0, numbers: [NONE; CACHE] }
    }

    #[inline]
    fn pop(&mut self) -> Option<u32> {
        self.filled = self.filled.checked_sub(1)?;
        self.numbers.get(self.filled).copied()
    }

    #[inline]
    fn push(&mut self, number: u32) -> Result<(), FrameCacheFull> {
        *self.numbers.get_mut(self.filled).ok_or(FrameCacheFull)? = number;
        self.filled += 1;
        Ok(())
    }

    fn flush(&mut self, buddy: &mut Buddy, frames: usize) {
        for _ in 0..frames {
            match self.pop() {
                Some(number) => buddy.free(number, 0),
                None => break,
            }
        }
    }
}

struct FrameCacheFull;

/// Gives the allocator its memory. May be called once.
///
/// `ranges` are physical addresses; each is shrunk to whole frames. All of it must be ordinary memory that is mapped
/// readable and writable at `address + direct_map_offset` (wrapping) and that has no other user: see BOOT-MEMORY in the
/// crate's documentation. A part of it is taken for one 16-byte record for each frame. `current_hart` returns the hart
/// on which it is called.
///
/// # Errors
/// See [`InitError`]. After an error other than [`InitError::AlreadyDone`] a second attempt is allowed.
pub fn init(ranges: &[Range<u64>], direct_map_offset: u64, current_hart: fn() -> usize) -> Result<(), InitError> {
    let whole = |range: &Range<u64>| {
        let start = range.start.max(PAGE_SIZE).div_ceil(PAGE_SIZE);
        let end = range.end / PAGE_SIZE;
        (start < end && end < u64::from(NONE)).then_some(start as u32..end as u32)
    };
    let usable = || ranges.iter().filter_map(whole);
    let base = usable().map(|range| range.start).min().ok_or(InitError::NoMemory)?;
    let end = usable().map(|range| range.end).max().ok_or(InitError::NoMemory)?;
    for (index, one) in usable().enumerate() {
        let meets = |other: &Range<u32>| one.start < other.end && other.start < one.end;
        if usable().skip(index + 1).any(|other| meets(&other)) {
            return Err(InitError::Overlap);
        }
    }
    // The records lie at the start of the largest range.
    let span = (end - base) as usize;
    let home = usable().max_by_key(|range| range.len()).ok_or(InitError::NoMemory)?;
    let taken = (span * size_of::<Record>()).div_ceil(PAGE_SIZE as usize);
    if taken >= home.len() {
        return Err(InitError::NoMemory);
    }
    if STARTED.swap(true, AcqRel) {
        return Err(InitError::AlreadyDone);
    }

    bytes::set_offset(direct_map_offset as usize);
    hart::register(current_hart);
    let start = bytes::pointer(u64::from(home.start) * PAGE_SIZE).cast::<Record>();
    // SAFETY: the first `taken` frames of `home` hold `span` records, are memory without another user (BOOT-MEMORY),
    // aligned to a page, and are never given to the buddy system. Each record is written before the slice is made.
    let records = unsafe {
        for index in 0..span {
            start.add(index).write(Record::new());
        }
        core::slice::from_raw_parts(start, span)
    };
    let mut buddy = Buddy::new(records, base);
    for range in usable() {
        let reserved = if range == home { taken as u32 } else { 0 };
        buddy.add(range.start + reserved, range.len() as u32 - reserved);
    }
    let total = buddy.free_frames();
    RESERVE.store((total / 64).min(LARGEST_RESERVE), Relaxed);
    STATE.call_once(|| State {
        records,
        base,
        buddy: Mutex::new(buddy),
        uncached: AtomicUsize::new(total),
        caches: HartLocal::new([const { Slot::new(FrameCache::new()) }; MAX_HARTS]),
        total,
    });
    Ok(())
}

impl State {
    /// Runs `work` on the buddy system, under its lock.
    fn with_buddy<R>(&self, work: impl FnOnce(&mut Buddy) -> R) -> R {
        let mut buddy = self.buddy.lock();
        let result = work(&mut buddy);
        self.uncached.store(buddy.free_frames(), Relaxed);
        result
    }

    #[inline]
    fn allocate(&self) -> Result<u32, OutOfMemory> {
        if let Some(mut cache) = self.caches.claim(Registered::current()) {
            if let Some(number) = cache.pop() {
                return Ok(number);
            }
            if let Some(number) = self.refill(&mut cache) {
                return Ok(number);
            }
        }
        self.allocate_run(1, 0)
    }

    #[cold]
    fn refill(&self, cache: &mut FrameCache) -> Option<u32> {
        cache.filled = self.with_buddy(|buddy| buddy.allocate_many(&mut cache.numbers[..BATCH]));
        cache.pop()
    }

    #[cold]
    fn allocate_run(&self, frames: u32, order: usize) -> Result<u32, OutOfMemory> {
        if let Some(number) = self.with_buddy(|buddy| buddy.allocate_run(frames, order)) {
            return Ok(number);
        }
        self.collect();
        self.with_buddy(|buddy| buddy.allocate_run(frames, order)).ok_or(OutOfMemory)
    }

    /// Empties the caches of all harts into the buddy system.
    fn collect(&self) {
        self.caches.for_each(|cache| self.with_buddy(|buddy| cache.flush(buddy, CACHE)));
    }

    #[inline]
    fn free(&self, number: u32) {
        if let Some(mut cache) = self.caches.claim(Registered::current()) {
            if cache.push(number).is_ok() {
                return;
            }
            return self.spill(&mut cache, number);
        }
        self.with_buddy(|buddy| buddy.free(number, 0));
    }

    #[cold]
    fn spill(&self, cache: &mut FrameCache, number: u32) {
        self.with_buddy(|buddy| {
            cache.flush(buddy, BATCH);
            buddy.free(number, 0);
        });
    }
}

/// Takes a single frame, which is neither zeroed nor owned by anything but the number.
#[inline]
pub(crate) fn take() -> Result<u32, OutOfMemory> {
    if faults::fails() {
        return Err(OutOfMemory);
    }
    STATE.get().ok_or(OutOfMemory)?.allocate()
}

/// Takes `frames` contiguous frames aligned to `1 << order`.
pub(crate) fn take_run(frames: u32, order: usize) -> Result<u32, OutOfMemory> {
    if frames == 0 || frames > 1 << MAX_ORDER || order > MAX_ORDER {
        return Err(OutOfMemory);
    }
    let state = STATE.get().ok_or(OutOfMemory)?;
    if frames == 1 && order == 0 { state.allocate() } else { state.allocate_run(frames, order) }
}

/// Frees frames of [`take`] or [`take_run`]. Crate-private, since ONE-OWNER rests on it being called by the owner.
#[inline]
pub(crate) fn give_run(first: u32, frames: u32) {
    // Without state nothing was taken.
    let Some(state) = STATE.get() else { return };
    if frames == 1 {
        state.free(first);
    } else {
        state.with_buddy(|buddy| buddy.free_run(first, frames));
    }
}

/// The records of all frames.
#[derive(Clone, Copy)]
pub(crate) struct Records {
    records: &'static [Record],
    base: u32,
}

impl Records {
    /// Returns the record of a frame that some handle owns.
    #[inline(always)]
    pub(crate) fn get(self, number: u32) -> &'static Record {
        &self.records[(number - self.base) as usize]
    }
}

/// Returns the records, for the owner of a frame: so the allocator exists.
#[inline]
pub(crate) fn records() -> Records {
    let state = STATE.get().expect("a frame exists, so the allocator does");
    Records { records: state.records, base: state.base }
}

/// Returns the record of a frame that some handle owns.
#[inline]
pub(crate) fn record(number: u32) -> &'static Record {
    records().get(number)
}

/// Whether the allocator manages any frame of the range of physical addresses.
pub(crate) fn manages(range: &Range<u64>) -> bool {
    STATE.get().is_some_and(|state| {
        let start = u64::from(state.base) * PAGE_SIZE;
        let end = start + state.records.len() as u64 * PAGE_SIZE;
        range.start < end && start < range.end
    })
}

/// State of physical memory, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "meminfo")]
pub struct Statistics {
    /// Frames that can ever be allocated.
    pub total: usize,
    /// Free frames, including those in the harts' caches.
    pub free: usize,
    /// Free frames in the harts' caches.
    pub cached: usize,
}

/// Counts the frames. Exact if no other hart allocates or frees at the same time.
#[must_use]
pub fn statistics() -> Statistics {
    let Some(state) = STATE.get() else {
        return Statistics { total: 0, free: 0, cached: 0 };
    };
    let mut cached = 0;
    state.caches.for_each(|cache| cached += cache.filled);
    Statistics { total: state.total, free: state.buddy.lock().free_frames() + cached, cached }
}

/// Returns the number of free frames, including those in the harts' caches.
#[must_use]
pub fn free_frames() -> usize {
    statistics().free
}

/// Returns the number of frames that can ever be allocated.
#[must_use]
pub fn total_frames() -> usize {
    STATE.get().map_or(0, |state| state.total)
}

/// Whether programs may have `frames` more: they may not have the last ones. The kernel keeps a sixty-fourth of the
/// memory, up to 4 MiB, for itself, so that a program that takes all available memory meets its own end, and no
/// allocation of the kernel fails because of it.
///
/// Costs one load, and does not count the frames in the harts' caches.
#[must_use]
pub fn available_to_programs(frames: usize) -> bool {
    !faults::fails() && uncached_frames() >= RESERVE.load(Relaxed).saturating_add(frames)
}

/// Changes the amount that is kept free, by `more` bytes, which may be a negative number that wraps.
pub(crate) fn keep(more: usize) {
    KEPT.fetch_add(more, Relaxed);
}

/// Returns the number of free frames without those in caches and those that are kept free: the share that any hart can
/// have at once.
pub(crate) fn uncached_frames() -> usize {
    let kept = KEPT.load(Relaxed).div_ceil(PAGE_SIZE as usize);
    STATE.get().map_or(0, |state| state.uncached.load(Relaxed).saturating_sub(kept))
}

/// Empties the harts' caches, so that their frames count as free for all.
pub(crate) fn collect() {
    if let Some(state) = STATE.get() {
        state.collect();
    }
}

/// Returns the physical address behind a pointer that was made by [`Block::pointer`] or by the kernel heap; `None` if
/// it points elsewhere (the kernel image, a stack). Device drivers need it for buffers on the heap.
#[must_use]
#[doc(alias = "virt_to_phys")]
pub fn physical_address(pointer: *const u8) -> Option<u64> {
    let address = bytes::address(pointer);
    manages(&(address..address.checked_add(1)?)).then_some(address)
}

macro_rules! accessors {
    ($self:ident, $length:expr) => {
        /// Returns all bytes.
        #[must_use]
        #[inline]
        pub fn bytes(&$self) -> SharedBytes<'_> {
            // SAFETY: this handle keeps the frames for as long as it is borrowed.
            unsafe { SharedBytes::new($self.physical_address(), $length) }
        }

        /// Returns the physical address of the first byte.
        #[must_use]
        #[inline]
        pub fn physical_address(&self) -> u64 {
            u64::from(self.number.get()) * PAGE_SIZE
        }

        /// Copies bytes from `offset` on, as many as `destination` holds or there are, and returns their number.
        pub fn read(&self, offset: usize, destination: &mut [u8]) -> usize {
            let bytes = self.bytes();
            bytes.slice(offset..bytes.len()).map_or(0, |part| part.copy_to(destination))
        }

        /// Copies bytes to `offset` on, as many as `source` holds or there is space for, and returns their number.
        ///
        /// It takes `&self` because others (a program, a device) may write to the memory anyway.
        pub fn write(&self, offset: usize, source: &[u8]) -> usize {
            let bytes = self.bytes();
            bytes.slice(offset..bytes.len()).map_or(0, |part| part.copy_from(source))
        }

        /// Fills the memory with zeros.
        pub fn zero(&self) {
            self.bytes().zero();
        }
    };
}

/// One page of physical memory, owned.
#[derive(Debug, PartialEq, Eq)]
#[doc(alias = "struct page")]
pub struct Frame {
    number: NonZeroU32,
}

impl Frame {
    /// Allocates a frame with the data of its last owner. Not for memory that a program will see.
    ///
    /// # Errors
    /// [`OutOfMemory`] if every frame is taken.
    #[inline]
    pub fn allocate() -> Result<Self, OutOfMemory> {
        Ok(Self { number: NonZeroU32::new(take()?).ok_or(OutOfMemory)? })
    }

    /// Allocates a frame of zeros.
    ///
    /// # Errors
    /// [`OutOfMemory`] if every frame is taken.
    pub fn allocate_zeroed() -> Result<Self, OutOfMemory> {
        let frame = Self::allocate()?;
        frame.zero();
        Ok(frame)
    }

    accessors!(self, PAGE_SIZE as usize);

    /// Turns the handle into one that can be cloned.
    #[must_use]
    pub fn share(self) -> SharedFrame {
        record(self.number.get()).count.store(1, Relaxed);
        SharedFrame { number: self.into_number() }
    }

    /// Turns the handle into two that can be cloned.
    #[inline]
    pub(crate) fn shares(self) -> [SharedFrame; 2] {
        record(self.number.get()).count.store(2, Relaxed);
        let number = self.into_number();
        [SharedFrame { number }, SharedFrame { number }]
    }

    /// Turns the handle into a number, for an owner that keeps it: a page table, a list.
    #[inline]
    pub(crate) fn into_number(self) -> NonZeroU32 {
        ManuallyDrop::new(self).number
    }

    /// Turns the number of a frame back into a handle.
    ///
    /// # Safety
    /// `number` must come from [`Self::into_number`], and be used once (ONE-OWNER).
    #[inline]
    pub(crate) unsafe fn from_number(number: NonZeroU32) -> Self {
        Self { number }
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        give_run(self.number.get(), 1);
    }
}

/// A counted share in one page of physical memory.
#[derive(Debug, PartialEq, Eq)]
#[doc(alias = "get_page")]
pub struct SharedFrame {
    number: NonZeroU32,
}

impl SharedFrame {
    accessors!(self, PAGE_SIZE as usize);

    /// Makes a handle of a share that a page table has kept.
    ///
    /// # Safety
    /// `number` must be that of a share that was forgotten, and each share be used once.
    #[inline]
    pub(crate) unsafe fn from_number(number: NonZeroU32) -> Self {
        Self { number }
    }

    /// Returns the number of handles that share the frame; others may change it at any time.
    #[must_use]
    pub fn shares(&self) -> u32 {
        record(self.number.get()).count.load(Relaxed)
    }

    /// Returns the frame itself, if this is its only handle.
    ///
    /// # Errors
    /// Returns the handle if there are others.
    pub fn into_exclusive(self) -> Result<Frame, Self> {
        // Acquire pairs with the release in `drop`: the other owners' accesses have happened. No share can be added
        // after this, since this handle is the only one left to clone.
        if record(self.number.get()).count.load(Acquire) == 1 {
            Ok(Frame { number: ManuallyDrop::new(self).number })
        } else {
            Err(self)
        }
    }
}

impl Clone for SharedFrame {
    fn clone(&self) -> Self {
        // Relaxed: making a share from a share orders nothing, as in `Arc`.
        let before = record(self.number.get()).count.fetch_add(1, Relaxed);
        // Wrapping would free a frame in use. It takes 8 GiB of handles to get here.
        assert!(before < u32::MAX / 2, "a frame is shared too often");
        Self { number: self.number }
    }
}

impl Drop for SharedFrame {
    fn drop(&mut self) {
        // Release: this owner's accesses happen before the frame is used again; acquire, by the last: those of all
        // owners.
        if record(self.number.get()).count.fetch_sub(1, Release) == 1 {
            fence(Acquire);
            give_run(self.number.get(), 1);
        }
    }
}

/// Contiguous physical memory, owned: for devices, and for tables larger than a page.
#[derive(Debug, PartialEq, Eq)]
#[doc(alias = "alloc_pages")]
#[doc(alias = "dma_alloc_coherent")]
pub struct Block {
    number: NonZeroU32,
    frames: u32,
}

impl Block {
    /// Allocates `1 << order` frames, aligned to their size, with the data of their last owners.
    ///
    /// # Errors
    /// [`OutOfMemory`] if there is no free block of that size, or `order` is above [`LARGEST_ORDER`].
    pub fn allocate(order: usize) -> Result<Self, OutOfMemory> {
        if order > MAX_ORDER {
            return Err(OutOfMemory);
        }
        Self::new(1 << order, order)
    }

    /// Allocates `1 << order` frames of zeros, aligned to their size.
    ///
    /// # Errors
    /// As for [`Self::allocate`].
    pub fn allocate_zeroed(order: usize) -> Result<Self, OutOfMemory> {
        let block = Self::allocate(order)?;
        block.zero();
        Ok(block)
    }

    /// Allocates at least `bytes` bytes of zeros (whole frames), contiguous: memory for a device.
    ///
    /// # Errors
    /// [`OutOfMemory`] if there is no such piece of memory.
    pub fn allocate_bytes(bytes: usize) -> Result<Self, OutOfMemory> {
        let frames = bytes.div_ceil(PAGE_SIZE as usize).max(1);
        let block = Self::new(u32::try_from(frames).map_err(|_| OutOfMemory)?, 0)?;
        block.zero();
        Ok(block)
    }

    fn new(frames: u32, order: usize) -> Result<Self, OutOfMemory> {
        if faults::fails() {
            return Err(OutOfMemory);
        }
        Ok(Self { number: NonZeroU32::new(take_run(frames, order)?).ok_or(OutOfMemory)?, frames })
    }

    accessors!(self, self.len());

    /// Returns the size in bytes.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        self.frames as usize * PAGE_SIZE as usize
    }

    /// Returns the block's address in the kernel's address space, for drivers that are written with pointers. Using it
    /// is up to their own unsafe code; it is valid for as long as the block lives.
    #[must_use]
    pub fn pointer(&self) -> NonNull<u8> {
        NonNull::new(bytes::pointer(self.physical_address())).expect("the direct map does not contain the null page")
    }
}

impl Block {
    /// Makes dropping do nothing: the memory is never used again.
    pub fn leak(&mut self) {
        self.frames = 0;
    }

    pub(crate) fn is_leaked(&self) -> bool {
        self.frames == 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        give_run(self.number.get(), self.frames);
    }
}

/// Frames on their way to be freed, as a list through their records: needs no memory for any length.
#[derive(Debug, Default)]
pub(crate) struct FrameList {
    first: Option<NonZeroU32>,
    last: Option<NonZeroU32>,
}

impl FrameList {
    pub(crate) fn push(&mut self, frame: Frame) {
        let number = frame.into_number();
        record(number.get()).next.store(NONE, Relaxed);
        match self.last {
            Some(last) => record(last.get()).next.store(number.get(), Relaxed),
            None => self.first = Some(number),
        }
        self.last = Some(number);
    }

    pub(crate) fn free(self) {
        let mut next = self.first;
        while let Some(number) = next {
            let follower = record(number.get()).next.load(Relaxed);
            next = if follower == NONE { None } else { NonZeroU32::new(follower) };
            // SAFETY: the number was put in by `push`, and the list is walked once.
            drop(unsafe { Frame::from_number(number) });
        }
    }
}

const _: () = assert!(size_of::<Option<Frame>>() == 4);
const _: () = assert!(ALLOCATED != 0);
