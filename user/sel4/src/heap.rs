//! The heap of programs that need one: talc over pages of untyped memory.
//!
//! A program that calls [`grow`] can use `alloc` from then on; without it an allocation fails, and panics. The heap
//! grows only on request, because only the program can decide about the use of its memory: automatic growth would need
//! the program's [`Allocator`] behind a lock, and could fail at any point.
//!
//! One lock guards it, whose waiters sleep: threads of different priorities may allocate. A program's coroutines run on
//! one thread, so caches for each thread would gain nothing.

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

/// A heap.
struct Heap {
    talc: Lock<Talc<Manual, DefaultBinning>>,
}

#[cfg_attr(all(target_arch = "riscv64", target_os = "none"), global_allocator)]
static HEAP: Heap = Heap { talc: Lock::new(Talc::new(Manual)) };

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
    if !HEAP.talc.has_notification() {
        HEAP.talc.set_notification(Notification::from_pointer(allocator.object(ObjectType::Notification)?));
    }
    // SAFETY: the pages are new and mapped for ever, and no other code has their address.
    unsafe { HEAP.claim(core::ptr::with_exposed_provenance_mut(address as usize), (count * STEP) as usize) };
    Ok(())
}

impl Heap {
    /// Adds memory to the heap.
    ///
    /// # Safety
    ///
    /// The bytes are readable and writable for ever, and used by no other code.
    unsafe fn claim(&self, start: *mut u8, length: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.talc.lock().claim(start, length) };
    }
}

// SAFETY: talc's blocks are disjoint, as large and aligned as the layout asks, and stay until they are freed.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the size is not 0, as the caller promises.
        unsafe { self.talc.lock().allocate(layout) }.map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.talc.lock().deallocate(block, layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_without_memory_gives_none_and_one_with_memory_gives_it_again() {
        let heap = Heap { talc: Lock::new(Talc::new(Manual)) };
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
}
