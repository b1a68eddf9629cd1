//! The kernel's heap.
//!
//! # The problem
//! A kernel made of coroutines allocates often (futures, buffers, table entries), on every hart, and frees on
//! whichever hart the coroutine happened to finish. One lock does not scale, and a general-purpose allocator
//! spends hundreds of instructions on a pair of calls.
//!
//! # The choice
//! Three levels, each used only when the one above has run dry:
//!
//! 1. **A cache for each hart**: for each size class a short stack of addresses. Allocating pops, freeing pushes,
//!    whichever hart the memory came from; so there is no remote-free queue. By HART-LOCAL no hart waits for another.
//! 2. **A depot for each size class**, behind a lock of its own: slabs of one to four frames, each with a list of its
//!    free objects, which exchanges batches with the caches. A slab that is wholly free goes back to the frame
//!    allocator.
//! 3. **The frame allocator**. A block above [`LARGEST_CLASS`] bytes is a run of whole frames from there.
//!
//! The heap never calls itself: its own records are the frame allocator's. Exhaustion, or reaching the limit set with
//! [`set_limit`], returns null: code that a program can drive into exhaustion uses the fallible
//! allocation functions (`try_reserve`), all other code ends in the kernel's allocation-error handler.
//!
//! # Alignment
//! Slabs start at a page, and objects at multiples of the class size, so an object is aligned to every power of two
//! that divides its class size. For an alignment above 16 the size is rounded up to a power of two, which is a class
//! of its own.
//!
//! Before the heap gives up it collects the caches of all harts, so that memory kept by one hart is not missing
//! elsewhere.
//!
//! Rejected: linked free lists through the objects in the caches (a freed object that is written to would corrupt
//! them; stacks of addresses cost the same), and headers before objects (spoil the alignment and cost memory).

use crate::buddy::{NONE, SLAB};
use crate::bytes;
use crate::frames::{self, OutOfMemory};
use crate::hart::{CurrentHart, HartLocal, Registered, Slot};
use crate::{MAX_HARTS, PAGE_SIZE, faults};
use core::alloc::{GlobalAlloc, Layout};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use spin::Mutex;

/// Sizes of small objects. Steps of a quarter of the size, so that at most a fifth of an object is wasted; every
/// power of two is there.
const SIZES: [u16; CLASSES] = [
    16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792,
    2048,
];

/// Number of size classes.
pub const CLASSES: usize = 24;

/// Largest size, in bytes, that is served from a size class; above it, memory is taken in whole frames.
pub const LARGEST_CLASS: usize = 2048;

/// Class of a size, by the size in units of 16 bytes, rounded up.
static CLASS_OF: [u8; LARGEST_CLASS / 16 + 1] = {
    let mut table = [0; LARGEST_CLASS / 16 + 1];
    let mut class = 0;
    let mut units = 0;
    while units < table.len() {
        if units * 16 > SIZES[class] as usize {
            class += 1;
        }
        table[units] = class as u8;
        units += 1;
    }
    table
};

/// Maximum number of objects of one class that a hart caches.
const DEPTH: usize = 32;

/// Returns the number of objects of a class that a hart caches: about 8 KiB worth.
const fn depth(class: usize) -> usize {
    let fitting = 8192 / SIZES[class] as usize;
    if fitting > DEPTH { DEPTH } else { fitting }
}

/// Returns the frames in a slab of a class, as an order: large objects get larger slabs, so that the remainder is
/// small.
const fn slab_order(class: usize) -> usize {
    if SIZES[class] <= 512 { 0 } else { 2 }
}

const fn slab_objects(class: usize) -> usize {
    ((PAGE_SIZE as usize) << slab_order(class)) / SIZES[class] as usize
}

/// Returns the number of the object that a new slab hands out first. Were it always the first, the objects that live
/// longest would have the same few places in a small cache: those of the first lines of all pages.
fn first_object(class: usize, slabs: usize) -> usize {
    const LINE: usize = 64;
    // Odd steps come to every line of a page.
    let line = (class * 11 + slabs * 23 + 7) % (PAGE_SIZE as usize / LINE);
    line * LINE / SIZES[class] as usize % slab_objects(class)
}

static DEPTHS: [u8; CLASSES] = {
    let mut depths = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        depths[class] = depth(class) as u8;
        class += 1;
    }
    depths
};

/// One hart's free objects, as addresses.
#[repr(C)]
struct ObjectCache {
    /// Number of objects of each class.
    filled: [u32; CLASSES],
    objects: [[usize; DEPTH]; CLASSES],
    /// Makes a [`Slot`] a power of two long, which saves a multiplication.
    padding: [usize; CACHE_SIZE / 8 - CLASSES / 2 - CLASSES * DEPTH - 1],
}

const CACHE_SIZE: usize = 8192;
const _: () = assert!(size_of::<Slot<ObjectCache>>() == CACHE_SIZE);
const _: () = assert!(DEPTH.is_power_of_two());

impl ObjectCache {
    const EMPTY: Self = Self {
        filled: [0; CLASSES],
        objects: [[0; DEPTH]; CLASSES],
        padding: [0; CACHE_SIZE / 8 - CLASSES / 2 - CLASSES * DEPTH - 1],
    };

    // `filled` is at most `DEPTH`, so taking indices modulo `DEPTH` changes none of them; it spares the check and the
    // panic.

    #[inline(always)]
    fn pop(&mut self, class: usize) -> Option<usize> {
        let filled = &mut self.filled[class];
        let top = filled.checked_sub(1)?;
        *filled = top;
        Some(self.objects[class][top as usize % DEPTH])
    }

    #[inline(always)]
    fn push(&mut self, class: usize, object: usize) -> Result<(), ObjectCacheFull> {
        let filled = self.filled[class];
        if filled >= u32::from(DEPTHS[class]) {
            return Err(ObjectCacheFull);
        }
        self.filled[class] = filled + 1;
        self.objects[class][filled as usize % DEPTH] = object;
        Ok(())
    }
}

struct ObjectCacheFull;

static CACHES: HartLocal<ObjectCache> = HartLocal::new([const { Slot::new(ObjectCache::EMPTY) }; MAX_HARTS]);
static DEPOTS: [Mutex<Depot>; CLASSES] = {
    let mut class = 0;
    let mut depots = [const { Mutex::new(Depot::new(0)) }; CLASSES];
    while class < CLASSES {
        depots[class] = Mutex::new(Depot::new(class));
        class += 1;
    }
    depots
};

/// Bytes of frames that the heap holds, and the upper limit on them.
static FOOTPRINT: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
/// See [`set_reserve_of_small`].
static RESERVE_OF_SMALL: AtomicUsize = AtomicUsize::new(0);
/// Bytes in allocations above [`LARGEST_CLASS`].
static LARGE: AtomicUsize = AtomicUsize::new(0);

/// Limits the memory, in bytes of whole frames, that the heap may take from now on; beyond it allocations fail. The
/// heap keeps the memory that it has.
pub fn set_limit(bytes: usize) {
    LIMIT.store(bytes, Relaxed);
}

/// Whether the heap could take `bytes` more from the frame allocator, by its limit and by the free memory. Costs a few
/// loads. Between this and an allocation others may allocate too, so ask for more than will be needed.
#[must_use]
#[inline]
pub fn is_available(bytes: usize) -> bool {
    let limit = LIMIT.load(Relaxed);
    FOOTPRINT.load(Relaxed).checked_add(bytes).is_some_and(|all| all <= limit)
        && frames::uncached_frames() >= bytes.div_ceil(PAGE_SIZE as usize)
}

/// Whether the heap could take `bytes` more after harts have given back the memory that they and the heap have put
/// aside. Checks first whether that can help, because it makes other harts slower for a moment.
#[cold]
#[must_use]
pub fn collect(bytes: usize) -> bool {
    let wanted = bytes.div_ceil(PAGE_SIZE as usize);
    let aside = frames::statistics().cached + statistics().idle() / PAGE_SIZE as usize;
    if frames::uncached_frames() + aside >= wanted {
        trim();
        frames::collect();
    }
    is_available(bytes)
}

/// Memory that stays free for allocations which must not fail, at any time: [`is_available`] and [programs'
/// pages](frames::available_to_programs) leave it alone. Dropping it ends that.
#[derive(Debug)]
#[doc(alias = "mempool")]
pub struct Kept(usize);

impl Kept {
    /// Keeps `bytes` bytes free.
    ///
    /// # Errors
    /// [`OutOfMemory`] if not enough are free.
    pub fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        if !faults::fails() && (is_available(bytes) || collect(bytes)) {
            frames::keep(bytes);
            Ok(Self(bytes))
        } else {
            Err(OutOfMemory)
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        frames::keep(self.0.wrapping_neg());
    }
}

/// Makes allocations of more than a frame fail that would leave less than `bytes` free, from now on: the rest is for
/// small ones, which many callers cannot do without.
pub fn set_reserve_of_small(bytes: usize) {
    RESERVE_OF_SMALL.store(bytes, Relaxed);
}

/// Returns the bytes in use: see [`Statistics::used`].
#[must_use]
pub fn bytes_in_use() -> usize {
    statistics().used()
}

/// Books `frames` for the heap, if the limit permits.
fn reserve(frames: u32) -> Result<(), OutOfMemory> {
    let bytes = frames as usize * PAGE_SIZE as usize;
    let before = FOOTPRINT.fetch_add(bytes, Relaxed);
    if before + bytes > LIMIT.load(Relaxed) {
        FOOTPRINT.fetch_sub(bytes, Relaxed);
        return Err(OutOfMemory);
    }
    Ok(())
}

fn release(frames: u32) {
    FOOTPRINT.fetch_sub(frames as usize * PAGE_SIZE as usize, Relaxed);
}

fn take_frames(frames: u32, order: usize) -> Result<u32, OutOfMemory> {
    reserve(frames)?;
    frames::take_run(frames, order).inspect_err(|_| release(frames))
}

fn give_frames(first: u32, frames: u32) {
    frames::give_run(first, frames);
    release(frames);
}

/// Unit in which places of objects in a slab are counted, in bytes.
const UNIT: usize = 16;

/// Returns the place of the next free object, which a free object holds.
#[inline(always)]
fn next_free(object: usize) -> u32 {
    // SAFETY: the object is at least 16 aligned bytes of a slab of the heap, and free: it has no other users, and it
    // was written to by `set_next_free` when it became free.
    unsafe { core::ptr::with_exposed_provenance::<u32>(object).read_volatile() }
}

#[inline(always)]
fn set_next_free(object: usize, place: u32) {
    // SAFETY: the object is at least 16 aligned bytes of a slab of the heap, and free: it has no other users.
    unsafe { core::ptr::with_exposed_provenance_mut::<u32>(object).write_volatile(place) }
}

/// The slabs of one class.
///
/// A slab's records (see [`crate::buddy`]) contain, for each of its frames, `state`: [`SLAB`] + index of the frame in
/// the slab; and for the first, `count`: free objects << 16 | place of the first free one; `next` and `previous`: the
/// list of slabs that have free objects. A free object holds, in its first four bytes, the place of the next free one.
/// A place is an offset from the slab's start in units of 16 bytes, so that neither division nor multiplication is
/// needed. All of it belongs to the holder of the depot's lock.
struct Depot {
    class: usize,
    /// Objects in one slab.
    slab_objects: usize,
    /// First slab with free objects.
    head: u32,
    slabs: usize,
    /// Free objects in all slabs, not counting those in caches.
    free: usize,
}

impl Depot {
    const fn new(class: usize) -> Self {
        Self { class, slab_objects: slab_objects(class), head: NONE, slabs: 0, free: 0 }
    }

    /// Takes up to `objects.len()` objects and returns their number.
    fn take(&mut self, objects: &mut [usize]) -> usize {
        let mut filled = 0;
        while filled < objects.len() {
            if self.head == NONE && self.grow().is_err() {
                break;
            }
            let slab = self.head;
            let record = frames::record(slab);
            let count = record.count.load(Relaxed);
            let (before, mut first) = (count >> 16, count & 0xffff);
            let start = bytes::pointer(u64::from(slab) * PAGE_SIZE).addr();
            let mut free = before;
            for place in &mut objects[filled..] {
                if free == 0 {
                    break;
                }
                *place = start + first as usize * UNIT;
                first = next_free(*place);
                free -= 1;
            }
            record.count.store(free << 16 | first, Relaxed);
            filled += (before - free) as usize;
            self.free -= (before - free) as usize;
            if free == 0 {
                self.unlink(slab);
            }
        }
        filled
    }

    /// Takes freed objects back.
    fn give(&mut self, objects: &[usize]) {
        let records = frames::records();
        for &object in objects {
            let address = bytes::address(core::ptr::without_provenance(object));
            let number = (address / PAGE_SIZE) as u32;
            let slab = number - (records.get(number).state.load(Relaxed) - SLAB);
            let record = records.get(slab);
            let count = record.count.load(Relaxed);
            let free = count >> 16;
            set_next_free(object, count & 0xffff);
            let place = (address - u64::from(slab) * PAGE_SIZE) as u32 / UNIT as u32;
            record.count.store((free + 1) << 16 | place, Relaxed);
            self.free += 1;
            if free == 0 {
                self.link(slab);
            }
            // Keep one slab's worth, so that a program at the edge does not take and give the same slab for ever.
            let objects = self.slab_objects;
            if free as usize + 1 == objects && self.free >= 2 * objects {
                self.shrink(slab);
            }
        }
    }

    #[cold]
    fn grow(&mut self) -> Result<(), OutOfMemory> {
        let order = slab_order(self.class);
        let slab = take_frames(1 << order, order)?;
        for within in 0..1 << order {
            frames::record(slab + within).state.store(SLAB + within, Relaxed);
        }
        let objects = slab_objects(self.class);
        let size = SIZES[self.class] as usize;
        let start = bytes::pointer(u64::from(slab) * PAGE_SIZE).addr();
        let first = first_object(self.class, self.slabs);
        // From the last to the first; behind the last comes none.
        let mut place = 0;
        for object in (0..first).rev().chain((first..objects).rev()) {
            set_next_free(start + object * size, place);
            place = (object * size / UNIT) as u32;
        }
        frames::record(slab).count.store((objects as u32) << 16 | place, Relaxed);
        self.slabs += 1;
        self.free += objects;
        self.link(slab);
        Ok(())
    }

    #[cold]
    fn shrink(&mut self, slab: u32) {
        self.unlink(slab);
        self.slabs -= 1;
        self.free -= slab_objects(self.class);
        give_frames(slab, 1 << slab_order(self.class));
    }

    /// Frees every slab that is wholly free.
    fn trim(&mut self) {
        let mut slab = self.head;
        while slab != NONE {
            let record = frames::record(slab);
            let next = record.next.load(Relaxed);
            if (record.count.load(Relaxed) >> 16) as usize == slab_objects(self.class) {
                self.shrink(slab);
            }
            slab = next;
        }
    }

    fn link(&mut self, slab: u32) {
        let record = frames::record(slab);
        record.next.store(self.head, Relaxed);
        record.previous.store(NONE, Relaxed);
        if self.head != NONE {
            frames::record(self.head).previous.store(slab, Relaxed);
        }
        self.head = slab;
    }

    fn unlink(&mut self, slab: u32) {
        let record = frames::record(slab);
        let next = record.next.load(Relaxed);
        let previous = record.previous.load(Relaxed);
        if next != NONE {
            frames::record(next).previous.store(previous, Relaxed);
        }
        if previous != NONE {
            frames::record(previous).next.store(next, Relaxed);
        } else {
            self.head = next;
        }
    }
}

/// Returns the class of a layout, or `None` if it needs whole frames.
#[inline(always)]
fn class_of(layout: &Layout) -> Option<usize> {
    let mut size = layout.size();
    if layout.align() > 16 {
        size = size.max(layout.align()).checked_next_power_of_two()?;
    }
    CLASS_OF.get(size.wrapping_add(15) / 16).map(|&class| class as usize)
}

#[cold]
#[inline(never)]
fn refill(class: usize, hart: usize) -> *mut u8 {
    // Half of the depth, so that a hart that frees next has room.
    let mut objects = [0; DEPTH / 2];
    let wanted = (depth(class) / 2).max(1);
    let mut got = DEPOTS[class].lock().take(&mut objects[..wanted]);
    if got == 0 {
        // Spare memory of other harts and other classes may be enough.
        trim();
        got = DEPOTS[class].lock().take(&mut objects[..1]);
    }
    let Some((&first, rest)) = objects[..got].split_first() else {
        return core::ptr::null_mut();
    };
    let mut kept = 0;
    if let Some(mut cache) = CACHES.claim(hart) {
        while kept < rest.len() && cache.push(class, rest[kept]).is_ok() {
            kept += 1;
        }
    }
    if kept < rest.len() {
        DEPOTS[class].lock().give(&rest[kept..]);
    }
    core::ptr::with_exposed_provenance_mut(first)
}

#[cold]
#[inline(never)]
fn spill(class: usize, hart: usize, object: usize) {
    let mut objects = [0; DEPTH / 2 + 1];
    let mut count = 0;
    if let Some(mut cache) = CACHES.claim(hart) {
        let half = (depth(class) / 2).max(1);
        while count < half {
            match cache.pop(class) {
                Some(object) => objects[count] = object,
                None => break,
            }
            count += 1;
        }
    }
    objects[count] = object;
    DEPOTS[class].lock().give(&objects[..=count]);
}

/// Returns frames and alignment order for a large layout.
fn large(layout: &Layout) -> Option<(u32, usize)> {
    let frames = u32::try_from(layout.size().div_ceil(PAGE_SIZE as usize)).ok()?;
    let order = (layout.align() / PAGE_SIZE as usize).max(1).ilog2() as usize;
    Some((frames.max(1), order))
}

#[cold]
#[inline(never)]
fn allocate_large(layout: &Layout) -> *mut u8 {
    // A single frame is as easy to find as a slab, and as hard to do without.
    let is_one_frame = layout.size() <= PAGE_SIZE as usize && layout.align() <= PAGE_SIZE as usize;
    if if is_one_frame { faults::fails_small(layout.size()) } else { faults::fails() } {
        return core::ptr::null_mut();
    }
    let reserve = RESERVE_OF_SMALL.load(Relaxed);
    if reserve > 0 && !is_one_frame {
        let wanted = layout.size().saturating_add(reserve);
        if !is_available(wanted) && !collect(wanted) {
            return core::ptr::null_mut();
        }
    }
    let taken = large(layout).and_then(|(frames, order)| {
        let first = take_frames(frames, order).or_else(|_| {
            trim();
            take_frames(frames, order)
        });
        Some((first.ok()?, frames))
    });
    match taken {
        Some((first, frames)) => {
            LARGE.fetch_add(frames as usize * PAGE_SIZE as usize, Relaxed);
            bytes::pointer(u64::from(first) * PAGE_SIZE)
        }
        None => core::ptr::null_mut(),
    }
}

#[cold]
#[inline(never)]
fn free_large(object: *mut u8, layout: &Layout) {
    // The layout was allocated, so it is not too large.
    let Some((frames, _)) = large(layout) else { return };
    LARGE.fetch_sub(frames as usize * PAGE_SIZE as usize, Relaxed);
    give_frames((bytes::address(object) / PAGE_SIZE) as u32, frames);
}

/// The kernel's global allocator:
///
/// ```ignore
/// #[global_allocator]
/// static HEAP: memory::heap::Heap = memory::heap::Heap::new();
/// ```
///
/// All values share the one heap. `H` finds the current hart; a kernel whose hart index is one load away implements
/// [`CurrentHart`] on a type of its own, so that the load is inlined here.
#[derive(Debug)]
#[doc(alias = "kmalloc")]
#[doc(alias = "slab allocator")]
#[doc(alias = "SLUB")]
pub struct Heap<H: CurrentHart = Registered> {
    hart: PhantomData<fn() -> H>,
}

impl<H: CurrentHart> Heap<H> {
    /// Makes a value for the heap. Before [`frames::init`] every allocation fails.
    #[must_use]
    pub const fn new() -> Self {
        Self { hart: PhantomData }
    }
}

impl<H: CurrentHart> Default for Heap<H> {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: an allocated object is inside a slab or run of frames that the heap owns, is in no cache and no list, and is
// handed out once: every address is either in one magazine, or free in one slab, or with the caller; the claim and
// the depot's lock make each move exclusive. Sizes and alignments: see the module. `dealloc` finds the class from the
// same layout. Nothing here panics on the paths that callers reach with valid layouts.
unsafe impl<H: CurrentHart> GlobalAlloc for Heap<H> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(&layout) else {
            return allocate_large(&layout);
        };
        if faults::fails_small(layout.size()) {
            return core::ptr::null_mut();
        }
        let hart = H::current();
        if let Some(mut cache) = CACHES.claim(hart)
            && let Some(object) = cache.pop(class)
        {
            return core::ptr::with_exposed_provenance_mut(object);
        }
        refill(class, hart)
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let Some(class) = class_of(&layout) else {
            return free_large(object, &layout);
        };
        let hart = H::current();
        let object = object.expose_provenance();
        if let Some(mut cache) = CACHES.claim(hart)
            && cache.push(class, object).is_ok()
        {
            return;
        }
        spill(class, hart, object);
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size with the old alignment is a valid layout.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let stays = match (class_of(&layout), class_of(&new)) {
            (Some(old), Some(new)) => old == new,
            (None, None) => large(&layout) == large(&new),
            _ => false,
        };
        if stays {
            return object;
        }
        // SAFETY: `new` is valid and, by the caller's promise, not empty.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both are allocated, for at least the smaller of the sizes, and are different objects; the old
            // one was allocated here with `layout`.
            unsafe {
                core::ptr::copy_nonoverlapping(object, moved, layout.size().min(new_size));
                self.dealloc(object, layout);
            }
        }
        moved
    }
}

/// Objects of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Bytes in an object.
    pub size: usize,
    /// Objects in use.
    pub used: usize,
    /// Free objects in the harts' caches.
    pub cached: usize,
    /// Free objects in slabs.
    pub free: usize,
}

/// State of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "slabinfo")]
pub struct Statistics {
    /// Each size class.
    pub classes: [ClassStatistics; CLASSES],
    /// Bytes in allocations above [`LARGEST_CLASS`], in whole frames.
    pub large: usize,
    /// Bytes of all frames that the heap holds.
    pub footprint: usize,
}

impl Statistics {
    /// Returns the bytes in use: objects rounded up to their classes, and large allocations.
    #[must_use]
    pub fn used(&self) -> usize {
        self.large + self.classes.iter().map(|class| class.size * class.used).sum::<usize>()
    }

    /// Returns the bytes of free objects: an upper bound on the memory that could be given back.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.classes.iter().map(|class| class.size * (class.cached + class.free)).sum()
    }
}

/// Counts the heap. Exact if no other hart allocates or frees at the same time.
#[must_use]
pub fn statistics() -> Statistics {
    let mut classes = [ClassStatistics::default(); CLASSES];
    CACHES.for_each(|cache| {
        for (class, filled) in classes.iter_mut().zip(cache.filled) {
            class.cached += filled as usize;
        }
    });
    for (index, class) in classes.iter_mut().enumerate() {
        let depot = DEPOTS[index].lock();
        class.size = SIZES[index] as usize;
        class.free = depot.free;
        // Saturating: an object may have moved between the two looks.
        class.used = (depot.slabs * slab_objects(index)).saturating_sub(class.free + class.cached);
    }
    Statistics { classes, large: LARGE.load(Relaxed), footprint: FOOTPRINT.load(Relaxed) }
}

/// Empties all caches and returns every slab that is wholly free to the frame allocator; for a kernel that runs out of
/// frames, and for tests that count them.
#[doc(alias = "shrinker")]
pub fn trim() {
    CACHES.for_each(|cache| {
        for (class, depot) in DEPOTS.iter().enumerate() {
            depot.lock().give(&cache.objects[class][..cache.filled[class] as usize]);
            cache.filled[class] = 0;
        }
    });
    for depot in &DEPOTS {
        depot.lock().trim();
    }
}
