//! The heap: size classes with a cache for each worker, over one general allocator.
//!
//! A single lock around an allocator does not scale, so most allocations must avoid it. Small blocks (up to
//! [`LARGEST_CLASS`]) belong to one of [`CLASSES`] sizes. Each worker keeps two *magazines* of free blocks for each
//! class, chains through the blocks themselves: it takes from and returns to the first, about fifteen instructions each
//! way. Only when the first is empty (or full) and the second cannot replace it does it go to the class's *depot* and
//! exchange a whole magazine under the class's lock. A depot without magazines cuts a new one from its *span*, memory
//! that was never allocated, so that the hundred-thousandth block costs as much as the first.
//!
//! Medium blocks and spans come from talc under a lock; blocks from [`LARGE`] on come straight from the kernel and go
//! back to it. Memory of a size class stays with the class: a program's heap is as large as the sum of the peaks of its
//! classes. Returning spans would need a count for each and an access to it for each free; that was rejected.
//!
//! Rust passes the size again when it frees, so blocks need no headers.
//!
//! # Ownership
//!
//! A [`Cache`] is its worker's alone. All fields of [`Heap`] are behind locks; the order is class, then general.

use core::alloc::Layout;
use core::cell::Cell;
use core::ptr::NonNull;

use talc::DefaultBinning;
use talc::base::Talc;
use talc::source::Manual;

use crate::lock::Lock;

/// Number of size classes: multiples of 16 up to 256, the size of most coroutines, then four steps to each doubling.
pub const CLASSES: usize = 44;
/// Bytes of the largest class.
pub const LARGEST_CLASS: usize = 32 * 1024;
/// Blocks of this size and more are mappings of their own.
pub const LARGE: usize = 1024 * 1024;
/// Least growth of the general allocator.
const GROWTH: usize = 1024 * 1024;
const PAGE: usize = 4096;
/// Bytes of a span, which is cut into blocks of one class.
const SPAN: usize = 32 * 1024;

/// Sizes of the classes.
const SIZES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        sizes[class] = if class < 16 {
            16 * (class as u32 + 1)
        } else {
            let base = 256 << ((class - 16) / 4);
            base + base / 4 * ((class as u32 - 16) % 4 + 1)
        };
        class += 1;
    }
    sizes
};

const _: () = assert!(SIZES[CLASSES - 1] as usize == LARGEST_CLASS);

/// The class of each size up to 1,024, by sixteen bytes.
const FINE: [u8; 65] = class_table::<65>(16);
/// The class of each size up to [`LARGEST_CLASS`], by 256 bytes.
const COARSE: [u8; 129] = class_table::<129>(256);

const fn class_table<const LENGTH: usize>(step: usize) -> [u8; LENGTH] {
    let mut table = [0; LENGTH];
    let mut index = 0;
    while index < LENGTH {
        let mut class = 0;
        while (SIZES[class] as usize) < index * step {
            class += 1;
        }
        table[index] = class as u8;
        index += 1;
    }
    table
}

/// Blocks in a full magazine of each class: 32 small ones, and no more than about 32 KiB of large ones.
const MAGAZINE: [u32; CLASSES] = {
    let mut counts = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let fitting = 32 * 1024 / SIZES[class];
        counts[class] = if fitting > 32 {
            32
        } else if fitting < 2 {
            2
        } else {
            fitting
        };
        class += 1;
    }
    counts
};

/// Returns the class that serves this layout; `None` for blocks outside of all classes.
#[inline(always)]
fn class_of(layout: Layout) -> Option<usize> {
    let size = if layout.align() <= 16 {
        layout.size()
    } else if layout.align() <= PAGE {
        // Every power of two up to `LARGEST_CLASS` from 16 on is a class, and spans begin at pages, so blocks of
        // these classes are aligned to their size (up to a page).
        layout.size().max(layout.align()).next_power_of_two()
    } else {
        return None;
    };
    if size <= 1024 {
        Some(FINE[size.div_ceil(16)] as usize)
    } else if size <= LARGEST_CLASS {
        Some(COARSE[size.div_ceil(256)] as usize)
    } else {
        None
    }
}

/// Returns the number of the block of a new magazine that is taken first. Were it always the first, the blocks that
/// live longest would have the same few places in a small cache: those of the first lines of all pages, where spans
/// begin.
fn first_block(class: usize, count: usize) -> usize {
    const LINE: usize = 64;
    // Odd steps come to every line of a page.
    let line = (class * 11 + 5) % (PAGE / LINE);
    (line * LINE / SIZES[class] as usize).checked_rem(count).unwrap_or(0)
}

/// A free block: the first words of its memory.
struct FreeBlock {
    /// The next block of the same magazine.
    next: *mut FreeBlock,
    /// In a magazine's first block, while it lies in a depot: the first block of the next magazine.
    next_magazine: *mut FreeBlock,
}

/// A chain of free blocks.
struct Magazine {
    first: Cell<*mut FreeBlock>,
    count: Cell<u32>,
}

impl Magazine {
    const fn empty() -> Magazine {
        Magazine { first: Cell::new(core::ptr::null_mut()), count: Cell::new(0) }
    }

    /// Adds a block to the blocks, of which there are `count`.
    ///
    /// # Safety
    ///
    /// The block is free memory of the class, and the magazine is not full.
    #[inline(always)]
    unsafe fn put(&self, address: *mut u8, count: u32) {
        let block = address.cast::<FreeBlock>();
        // SAFETY: the block is free, at least sixteen bytes long and aligned to sixteen.
        unsafe { (*block).next = self.first.get() };
        self.first.set(block);
        self.count.set(count + 1);
    }

    fn swap(&self, other: &Magazine) {
        self.first.swap(&other.first);
        self.count.swap(&other.count);
    }
}

/// One worker's free blocks.
pub struct Cache {
    /// The magazine in use for both directions.
    active: [Magazine; CLASSES],
    /// The other magazine: empty or full.
    spare: [Magazine; CLASSES],
}

impl Cache {
    /// Creates a cache without blocks.
    pub const fn new() -> Cache {
        Cache { active: [const { Magazine::empty() }; CLASSES], spare: [const { Magazine::empty() }; CLASSES] }
    }
}

impl Default for Cache {
    fn default() -> Self {
        Cache::new()
    }
}

/// The part of one class that all workers share.
struct Depot {
    /// Full magazines.
    magazines: *mut FreeBlock,
    /// Memory of the span that is not cut yet.
    fresh: *mut u8,
    fresh_bytes: usize,
}

// SAFETY: the pointers name memory that belongs to the depot alone; they mean the same on every worker.
unsafe impl Send for Depot {}

/// Depots lie on cache lines of their own.
#[repr(align(64))]
struct SharedDepot(Lock<Depot>);

impl SharedDepot {
    const fn empty() -> SharedDepot {
        let nothing = core::ptr::null_mut();
        SharedDepot(Lock::new(Depot { magazines: core::ptr::null_mut(), fresh: nothing, fresh_bytes: 0 }))
    }
}

/// The source of memory: pages of zeros.
pub trait Pages {
    /// Maps `size` bytes, a multiple of the page size; `None` if there is no memory.
    fn map(&self, size: usize) -> Option<NonNull<u8>>;

    /// Unmaps a whole mapping.
    ///
    /// # Safety
    ///
    /// It must be a result of `map` with the same size, and be unused from now on.
    unsafe fn unmap(&self, address: NonNull<u8>, size: usize);
}

/// The heap of a process.
pub struct Heap<P> {
    depots: [SharedDepot; CLASSES],
    general: Lock<Talc<Manual, DefaultBinning>>,
    pages: P,
}

impl<P: Pages> Heap<P> {
    /// Creates a heap without memory; memory comes with the first allocation.
    pub const fn new(pages: P) -> Heap<P> {
        Heap { depots: [const { SharedDepot::empty() }; CLASSES], general: Lock::new(Talc::new(Manual)), pages }
    }

    /// Allocates a block; null if there is no memory.
    ///
    /// # Safety
    ///
    /// The size must not be 0 (as for `GlobalAlloc`).
    #[inline]
    pub unsafe fn allocate(&self, cache: &Cache, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            return self.allocate_unclassed(layout);
        };
        let active = &cache.active[class];
        let block = active.first.get();
        if block.is_null() {
            return self.allocate_slowly(cache, class);
        }
        // SAFETY: a block in a magazine is free memory of its class's size that holds a `FreeBlock`.
        active.first.set(unsafe { (*block).next });
        active.count.set(active.count.get() - 1);
        block.cast()
    }

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// The block must come from [`Heap::allocate`] of this heap (with any cache) with the same layout, and be unused
    /// from now on.
    #[inline]
    pub unsafe fn deallocate(&self, cache: &Cache, address: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            // SAFETY: the caller's promise.
            return unsafe { self.deallocate_unclassed(address, layout) };
        };
        let active = &cache.active[class];
        let count = active.count.get();
        if count == MAGAZINE[class] {
            // SAFETY: the caller's promise.
            return unsafe { self.deallocate_slowly(cache, address, class) };
        }
        // SAFETY: as above; the block is of the magazine's class.
        unsafe { active.put(address, count) };
    }

    /// Frees a block when the active magazine is full. Apart from the usual case, which calls nothing and so needs no
    /// stack frame.
    ///
    /// # Safety
    ///
    /// As for [`Heap::deallocate`], for a block of this class.
    #[cold]
    #[inline(never)]
    unsafe fn deallocate_slowly(&self, cache: &Cache, address: *mut u8, class: usize) {
        self.make_room(cache, class);
        let active = &cache.active[class];
        // SAFETY: the caller's promise.
        unsafe { active.put(address, active.count.get()) };
    }

    /// Takes a block when the active magazine is empty: from the spare one, or from a full one of the depot.
    #[cold]
    #[inline(never)]
    fn allocate_slowly(&self, cache: &Cache, class: usize) -> *mut u8 {
        let (active, spare) = (&cache.active[class], &cache.spare[class]);
        if spare.count.get() > 0 {
            active.swap(spare);
        } else {
            let (first, count) = self.take_magazine(class);
            active.first.set(first);
            active.count.set(count);
        }
        let block = active.first.get();
        if !block.is_null() {
            // SAFETY: as in `allocate`.
            active.first.set(unsafe { (*block).next });
            active.count.set(active.count.get() - 1);
        }
        block.cast()
    }

    /// Makes the spare magazine the active one, which is full; a full spare one goes to the depot before.
    #[cold]
    #[inline(never)]
    fn make_room(&self, cache: &Cache, class: usize) {
        let (active, spare) = (&cache.active[class], &cache.spare[class]);
        if spare.count.get() > 0 {
            let mut depot = self.depots[class].0.lock();
            let first = spare.first.replace(core::ptr::null_mut());
            // SAFETY: it is the first block of a full magazine, which is this worker's.
            unsafe { (*first).next_magazine = depot.magazines };
            depot.magazines = first;
            spare.count.set(0);
        }
        active.swap(spare);
    }

    /// Takes a magazine for an empty cache; less than full only if memory runs out, empty if there is none.
    fn take_magazine(&self, class: usize) -> (*mut FreeBlock, u32) {
        let size = SIZES[class] as usize;
        let mut depot = self.depots[class].0.lock();
        let first = depot.magazines;
        if !first.is_null() {
            // SAFETY: magazines in a depot are chained through their first blocks.
            depot.magazines = unsafe { (*first).next_magazine };
            return (first, MAGAZINE[class]);
        }
        if depot.fresh_bytes < size {
            let bytes = SPAN.max(8 * size);
            let Ok(layout) = Layout::from_size_align(bytes, PAGE) else {
                return (core::ptr::null_mut(), 0);
            };
            let span = self.allocate_general(layout);
            if span.is_null() {
                return (core::ptr::null_mut(), 0);
            }
            // The rest of the old span is less than a block; it is lost.
            (depot.fresh, depot.fresh_bytes) = (span, bytes);
        }
        let count = (depot.fresh_bytes / size).min(MAGAZINE[class] as usize);
        let mut first = core::ptr::null_mut();
        let begin = first_block(class, count);
        for index in (begin..begin + count).rev() {
            // SAFETY: `count` blocks fit into the rest of the span, which belongs to this depot alone.
            unsafe {
                let block = depot.fresh.add(index % count * size).cast::<FreeBlock>();
                (*block).next = first;
                first = block;
            }
        }
        // SAFETY: as above; at most one past the span's end.
        depot.fresh = unsafe { depot.fresh.add(count * size) };
        depot.fresh_bytes -= count * size;
        (first, count as u32)
    }

    #[cold]
    #[inline(never)]
    fn allocate_unclassed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            let size = layout.size().next_multiple_of(PAGE);
            return self.pages.map(size).map_or(core::ptr::null_mut(), NonNull::as_ptr);
        }
        self.allocate_general(layout)
    }

    /// # Safety
    ///
    /// As for [`Heap::deallocate`].
    #[cold]
    #[inline(never)]
    unsafe fn deallocate_unclassed(&self, address: *mut u8, layout: Layout) {
        if is_large(layout) {
            if let Some(address) = NonNull::new(address) {
                // SAFETY: blocks of such layouts are whole mappings of this size.
                unsafe { self.pages.unmap(address, layout.size().next_multiple_of(PAGE)) };
            }
            return;
        }
        // SAFETY: every other block comes from `allocate_general` with this layout.
        unsafe { self.general.lock().deallocate(address, layout) };
    }

    fn allocate_general(&self, layout: Layout) -> *mut u8 {
        let mut general = self.general.lock();
        // SAFETY: no layout that gets here has the size 0: it is larger than every class, or a span.
        if let Some(block) = unsafe { general.try_allocate(layout) } {
            return block.as_ptr();
        }
        // Room for the block, its alignment and talc's own words.
        let size = (layout.size() + layout.align() + 2 * PAGE).max(GROWTH).next_multiple_of(PAGE);
        let Some(base) = self.pages.map(size) else {
            return core::ptr::null_mut();
        };
        // SAFETY: the mapping is new, used by no other code, and never unmapped.
        unsafe { general.claim(base.as_ptr(), size) };
        // SAFETY: as above.
        unsafe { general.try_allocate(layout) }.map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }
}

/// Returns whether the block is a mapping of its own. Alignments beyond a page are left to talc.
fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

/// The global allocator, over the kernel's pages.
#[cfg(target_os = "none")]
mod global {
    use super::*;
    use core::alloc::GlobalAlloc;

    struct Mapped;

    impl Pages for Mapped {
        fn map(&self, size: usize) -> Option<NonNull<u8>> {
            unix::memory::map(size).ok().and_then(NonNull::new)
        }

        unsafe fn unmap(&self, address: NonNull<u8>, size: usize) {
            // SAFETY: the caller's promise. A failure would leave the pages mapped and unused.
            let _ = unsafe { unix::memory::unmap(address.as_ptr(), size) };
        }
    }

    /// The global allocator of programs.
    struct Global(Heap<Mapped>);

    #[global_allocator]
    static GLOBAL: Global = Global(Heap::new(Mapped));

    // SAFETY: blocks are disjoint, as large and aligned as the layout asks, and stay until they are freed.
    unsafe impl GlobalAlloc for Global {
        #[inline]
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller's promise; the cache is the calling worker's.
            unsafe { self.0.allocate(&crate::local::current().cache, layout) }
        }

        #[inline]
        unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
            // SAFETY: the caller's promise; the cache is the calling worker's.
            unsafe { self.0.deallocate(&crate::local::current().cache, address, layout) }
        }

        #[inline]
        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller's promise.
            let block = unsafe { self.alloc(layout) };
            // Mappings of their own are zero already, and need not be touched.
            if !block.is_null() && !is_large(layout) {
                // SAFETY: the block is that long and ours.
                unsafe { block.write_bytes(0, layout.size()) };
            }
            block
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::alloc::{GlobalAlloc, System};
    use std::collections::BTreeMap;
    use std::vec::Vec;

    /// Mappings by their addresses, with their sizes. They are freed with the heap, or many cases would need all
    /// memory.
    #[derive(Default)]
    struct HostPages(std::sync::Mutex<BTreeMap<usize, usize>>);

    impl Pages for HostPages {
        fn map(&self, size: usize) -> Option<NonNull<u8>> {
            let layout = Layout::from_size_align(size, PAGE).ok()?;
            // SAFETY: the size is not 0.
            let start = NonNull::new(unsafe { System.alloc_zeroed(layout) })?;
            self.0.lock().unwrap().insert(start.as_ptr() as usize, size);
            Some(start)
        }

        unsafe fn unmap(&self, address: NonNull<u8>, size: usize) {
            assert_eq!(self.0.lock().unwrap().remove(&(address.as_ptr() as usize)), Some(size));
            // SAFETY: it came from `map` with this layout.
            unsafe { System.dealloc(address.as_ptr(), Layout::from_size_align(size, PAGE).unwrap()) }
        }
    }

    impl Drop for HostPages {
        fn drop(&mut self) {
            for (&start, &size) in self.0.get_mut().unwrap().iter() {
                // SAFETY: it came from `map` with this layout, and the heap that used it is gone.
                unsafe { System.dealloc(start as *mut u8, Layout::from_size_align(size, PAGE).unwrap()) }
            }
        }
    }

    #[test]
    fn every_size_has_the_smallest_class_that_fits() {
        for size in 1..=LARGEST_CLASS {
            let class = class_of(Layout::from_size_align(size, 8).unwrap()).unwrap();
            assert!(SIZES[class] as usize >= size);
            assert!(class == 0 || (SIZES[class - 1] as usize) < size);
        }
        assert_eq!(class_of(Layout::from_size_align(LARGEST_CLASS + 1, 8).unwrap()), None);
        assert_eq!(class_of(Layout::from_size_align(16, 8192).unwrap()), None);
    }

    #[test]
    fn aligned_sizes_have_aligned_classes() {
        for shift in 5..=12 {
            let align = 1usize << shift;
            for size in [1, align - 1, align, align + 1, 3 * align] {
                let class = class_of(Layout::from_size_align(size, align).unwrap()).unwrap();
                assert!(SIZES[class].is_power_of_two() && SIZES[class] as usize >= align);
            }
        }
    }

    #[test]
    fn freed_blocks_come_back_through_the_depot() {
        let heap = Heap::new(HostPages::default());
        let (producer, consumer) = (Cache::new(), Cache::new());
        let layout = Layout::from_size_align(64, 8).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            // One worker allocates and another frees: the memory must not grow.
            // SAFETY: each block is freed once, with its layout.
            unsafe {
                let blocks: Vec<_> = (0..100).map(|_| heap.allocate(&producer, layout)).collect();
                for block in blocks {
                    seen.insert(block as usize);
                    heap.deallocate(&consumer, block, layout);
                }
            }
        }
        assert!(seen.len() <= 100 + 5 * 32, "{} different blocks", seen.len());
    }

    #[test]
    fn no_memory_is_null() {
        struct Nothing;
        impl Pages for Nothing {
            fn map(&self, _: usize) -> Option<NonNull<u8>> {
                None
            }
            unsafe fn unmap(&self, _: NonNull<u8>, _: usize) {}
        }
        let (heap, cache) = (Heap::new(Nothing), Cache::new());
        for size in [1, 100, 5000, 40_000, 2_000_000] {
            // SAFETY: the size is not 0.
            assert!(unsafe { heap.allocate(&cache, Layout::from_size_align(size, 8).unwrap()) }.is_null());
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate { size: usize, shift: u32, worker: usize },
        Free { which: usize, worker: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let size = prop_oneof![1..200usize, 1..40_000usize, 1..1_200_000usize];
        let step = prop_oneof![
            (size, 0..14u32, 0..2usize).prop_map(|(size, shift, worker)| Step::Allocate { size, shift, worker }),
            (any::<usize>(), 0..2usize).prop_map(|(which, worker)| Step::Free { which, worker }),
        ];
        prop::collection::vec(step, 1..300)
    }

    proptest! {
        #![proptest_config(property::cases(64))]

        /// Against a list of live blocks: blocks never overlap, are aligned, and keep their contents.
        #[test]
        fn blocks_are_disjoint_aligned_and_kept(steps in steps()) {
            let heap = Heap::new(HostPages::default());
            let caches = [Cache::new(), Cache::new()];
            let mut live: BTreeMap<usize, (Layout, u8)> = BTreeMap::new();
            let mut stamp = 0u8;
            for step in steps {
                match step {
                    Step::Allocate { size, shift, worker } => {
                        let layout = Layout::from_size_align(size, 1 << shift).unwrap();
                        // SAFETY: the size is not 0.
                        let block = unsafe { heap.allocate(&caches[worker], layout) };
                        prop_assert!(!block.is_null() && (block as usize).is_multiple_of(layout.align()));
                        let before = live.range(..=block as usize).next_back();
                        prop_assert!(before.is_none_or(|(at, (other, _))| at + other.size() <= block as usize));
                        let after = live.range(block as usize..).next();
                        prop_assert!(after.is_none_or(|(at, _)| block as usize + size <= *at));
                        stamp = stamp.wrapping_add(1);
                        // SAFETY: the block is that long.
                        unsafe { block.write_bytes(stamp, size) };
                        live.insert(block as usize, (layout, stamp));
                    }
                    Step::Free { which, worker } => {
                        let Some(&at) = live.keys().nth(which % live.len().max(1)) else { continue };
                        let (layout, stamp) = live.remove(&at).unwrap();
                        // SAFETY: the block is live and that long; it is freed once, with its layout.
                        unsafe {
                            let bytes = core::slice::from_raw_parts(at as *const u8, layout.size());
                            prop_assert!(bytes.iter().all(|&byte| byte == stamp));
                            heap.deallocate(&caches[worker], at as *mut u8, layout);
                        }
                    }
                }
            }
        }
    }
}
