//! The heap of programs that need one: talc over pages of untyped memory.
//!
//! A program that calls [`grow`] can use `alloc` from then on; without it an allocation fails, and panics. The heap
//! grows only on request, because only the program can decide about the use of its memory: automatic growth would need
//! the program's [`Allocator`] behind a lock, and could fail at any point.
//!
//! One lock guards it, whose waiters sleep: threads of different priorities may allocate. A program's coroutines run on
//! one thread, so caches for each thread would gain nothing.
//!
//! **Small blocks** that are freed are kept in a list for each size, because coroutines and their messages need blocks
//! of few sizes again and again: taking one from its list and putting it back is a tenth of talc's work, which divides
//! and joins. A list has a limit, and all of them go back to talc before an allocation fails.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

use talc::DefaultBinning;
use talc::base::Talc;
use talc::source::Manual;

use abi_sel4::ObjectType;
use abi_sel4::object::MEGA_PAGE_BITS;

use crate::allocator::Allocator;
use crate::capability::Notification;
use crate::lock::Lock;
use crate::mapping::Window;
use crate::raw::Result;

/// Number of sizes of blocks that are kept.
const SIZES: usize = 16;
/// Bytes between two of these sizes: talc's blocks have this unit, less a word.
const UNIT: usize = 32;
/// Alignment of the blocks that are kept.
const ALIGNMENT: usize = 16;
/// Largest number of blocks that are kept of one size.
const MOST_KEPT: u8 = 64;

/// A heap.
struct Heap {
    memory: Lock<Memory>,
}

#[cfg_attr(all(target_arch = "riscv64", target_os = "none"), global_allocator)]
static HEAP: Heap = Heap::new();

/// The memory of a heap.
struct Memory {
    talc: Talc<Manual, DefaultBinning>,
    kept: [Kept; SIZES],
}

// SAFETY: the blocks that are kept belong to the heap as talc's free blocks do.
unsafe impl Send for Memory {}

/// The free blocks of one size.
#[derive(Clone, Copy)]
struct Kept {
    first: Option<NonNull<Free>>,
    count: u8,
}

/// A block that is kept.
struct Free {
    next: Option<NonNull<Free>>,
}

/// Returns the number of the least size of blocks that holds the layout; `None` if such blocks are not kept.
#[inline(always)]
fn size_for(layout: Layout) -> Option<usize> {
    let size = (layout.size() + size_of::<usize>() - 1) / UNIT;
    (size < SIZES && layout.align() <= ALIGNMENT).then_some(size)
}

/// Returns the layout of the blocks of a size.
fn layout_of(size: usize) -> Layout {
    Layout::from_size_align((size + 1) * UNIT - size_of::<usize>(), ALIGNMENT).expect("the size is small")
}

/// Bytes by which [`grow`] grows the heap, for each of `count`.
pub const STEP: u64 = 1 << MEGA_PAGE_BITS;

/// Adds `count` times [`STEP`] bytes to the heap, for ever. The first call comes before the program starts a second
/// thread.
///
/// # Errors
///
/// Slots, memory or addresses are too few; the heap is as it was.
pub fn grow(allocator: &mut Allocator, window: &mut Window, count: u64) -> Result<()> {
    // The large pages first, so that little is lost to their alignment.
    let (address, _) = window.mega_pages(allocator, count)?;
    if !HEAP.memory.has_notification() {
        HEAP.memory.set_notification(Notification::from_pointer(allocator.object(ObjectType::Notification)?));
    }
    // SAFETY: the pages are new and mapped for ever, and no other code has their address.
    unsafe { HEAP.claim(core::ptr::with_exposed_provenance_mut(address as usize), (count * STEP) as usize) };
    Ok(())
}

impl Memory {
    /// Allocates; the size is not 0.
    #[inline]
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let Some(size) = size_for(layout) else { return self.allocate_from_talc(layout) };
        let kept = &mut self.kept[size];
        match kept.first {
            Some(block) => {
                // SAFETY: a block that is kept begins with the link, and is the heap's own.
                kept.first = unsafe { block.as_ref() }.next;
                kept.count -= 1;
                Some(block.cast())
            }
            None => self.allocate_from_talc(layout_of(size)),
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_from_talc(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: the size is not 0.
        unsafe { self.talc.allocate(layout) }.or_else(|| {
            self.give_back();
            // SAFETY: as above.
            unsafe { self.talc.allocate(layout) }
        })
    }

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// It was allocated from this memory with this layout, and no other code uses it.
    #[inline]
    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        if let Some(size) = size_for(layout) {
            let kept = &mut self.kept[size];
            if kept.count < MOST_KEPT {
                let free = block.cast::<Free>();
                // SAFETY: the block is large enough and aligned for a link, and belongs to the heap from now on.
                unsafe { free.write(Free { next: kept.first }) };
                *kept = Kept { first: Some(free), count: kept.count + 1 };
                return;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.free_to_talc(block, layout) };
    }

    /// Frees a block that is not kept.
    ///
    /// # Safety
    ///
    /// As [`free`](Memory::free).
    #[cold]
    #[inline(never)]
    unsafe fn free_to_talc(&mut self, block: NonNull<u8>, layout: Layout) {
        let layout = size_for(layout).map_or(layout, layout_of);
        // SAFETY: this is the layout that talc was asked for.
        unsafe { self.talc.deallocate(block.as_ptr(), layout) };
    }

    /// Gives all blocks that are kept back to talc, which joins them.
    #[cold]
    fn give_back(&mut self) {
        for size in 0..SIZES {
            while let Some(block) = self.kept[size].first {
                // SAFETY: as in `allocate`.
                self.kept[size].first = unsafe { block.as_ref() }.next;
                // SAFETY: talc was asked for the block with the layout of its size, and nothing uses it.
                unsafe { self.talc.deallocate(block.as_ptr().cast(), layout_of(size)) };
            }
            self.kept[size].count = 0;
        }
    }
}

impl Heap {
    const fn new() -> Heap {
        let kept = [Kept { first: None, count: 0 }; SIZES];
        Heap { memory: Lock::new(Memory { talc: Talc::new(Manual), kept }) }
    }

    /// Adds memory to the heap.
    ///
    /// # Safety
    ///
    /// The bytes are readable and writable for ever, and used by no other code.
    unsafe fn claim(&self, start: *mut u8, length: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.memory.lock().talc.claim(start, length) };
    }
}

// SAFETY: talc's blocks are disjoint, as large and aligned as the layout asks, and stay until they are freed; a block
// that is kept is given out once, for layouts that fit into its size.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.memory.lock().allocate(layout).map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: a block that was allocated is not null; the rest is the caller's promise.
        unsafe { self.memory.lock().free(NonNull::new_unchecked(block), layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_without_memory_gives_none_and_one_with_memory_gives_it_again() {
        let heap = Heap::new();
        // SAFETY: no size here is 0.
        let allocate = |layout| NonNull::new(unsafe { heap.alloc(layout) });
        let layout = Layout::from_size_align(48, 16).unwrap();
        assert_eq!(allocate(layout), None);
        let memory = Box::leak(vec![0_u8; 1 << 16].into_boxed_slice());
        // SAFETY: the memory was leaked.
        unsafe { heap.claim(memory.as_mut_ptr(), memory.len()) };
        let range = memory.as_ptr_range();
        for _ in 0..10_000 {
            let blocks: Vec<_> = (0..8).map(|_| allocate(layout).unwrap()).collect();
            let mut starts: Vec<_> = blocks.iter().map(|block| block.as_ptr() as usize).collect();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 48));
            assert!(starts.iter().all(|start| start % 16 == 0 && range.contains(&(*start as *const u8))));
            for block in blocks {
                // SAFETY: allocated above with this layout.
                unsafe { heap.dealloc(block.as_ptr(), layout) };
            }
        }
        assert_eq!(allocate(Layout::from_size_align(1 << 20, 16).unwrap()), None);
    }

    #[test]
    fn blocks_that_are_kept_go_back_before_an_allocation_fails() {
        const BYTES: usize = 1 << 16;
        let heap = Heap::new();
        let memory = Box::leak(vec![0_u128; BYTES / 16].into_boxed_slice());
        // SAFETY: the memory was leaked.
        unsafe { heap.claim(memory.as_mut_ptr().cast(), BYTES) };
        let large = Layout::from_size_align(BYTES * 3 / 4, 16).unwrap();
        for bytes in [1, 24, 25, 56, 200, 504] {
            let small = Layout::from_size_align(bytes, 8).unwrap();
            // SAFETY: no size here is 0.
            let blocks: Vec<_> = (0..MOST_KEPT).map(|_| unsafe { heap.alloc(small) }).collect();
            assert!(blocks.iter().all(|block| !block.is_null()));
            for block in blocks {
                // SAFETY: allocated above with this layout.
                unsafe { heap.dealloc(block, small) };
            }
        }
        assert!(heap.memory.lock().kept.iter().any(|kept| kept.count == MOST_KEPT));
        // SAFETY: as above.
        let block = unsafe { heap.alloc(large) };
        assert!(!block.is_null(), "all of it was free");
        assert!(heap.memory.lock().kept.iter().all(|kept| kept.count == 0 && kept.first.is_none()));
        // SAFETY: allocated above with this layout.
        unsafe { heap.dealloc(block, large) };
    }

    #[test]
    fn the_border_of_sizes_that_are_kept_holds() {
        let size = |bytes, alignment| size_for(Layout::from_size_align(bytes, alignment).unwrap());
        assert_eq!([1, 24, 25, 56, 57].map(|bytes| size(bytes, 8)), [Some(0), Some(0), Some(1), Some(1), Some(2)]);
        assert_eq!((size(504, 16), size(505, 16), size(24, 32)), (Some(SIZES - 1), None, None));
        for bytes in 1..=504 {
            assert!(layout_of(size(bytes, 16).unwrap()).size() >= bytes);
        }
    }
}
