//! With elements that come and go one at a time no allocation is large: nothing was copied at once, and nothing was
//! made at once that would have to be filled.
//!
//! One test only, because it counts the allocations of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tables::{Queue, Segments, Table};

/// Largest allocation so far, in bytes; and number of frees.
static LARGEST: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);

struct Watched;

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        FREED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(object, layout) }
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(object, layout, size) }
    }
}

#[global_allocator]
static MEMORY: Watched = Watched;

const MANY: usize = 65_536;
/// Bytes of an element.
const SIZE: usize = 40;

/// Calls a function for each number, and checks that no allocation was large.
fn each(mut act: impl FnMut(usize)) {
    LARGEST.store(0, Ordering::Relaxed);
    let mut most_freed = 0;
    for number in 0..MANY {
        let before = FREED.load(Ordering::Relaxed);
        act(number);
        most_freed = most_freed.max(FREED.load(Ordering::Relaxed) - before);
    }
    // The list of segments is the largest: a vector of three words for each.
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= MANY * SIZE / 20, "{largest} bytes at once of {} in all", MANY * SIZE);
    assert!(most_freed <= 4, "{most_freed} given back at once");
}

#[test]
fn nothing_grows_or_shrinks_at_once() {
    let mut segments: Segments<[u64; SIZE / 8]> = Segments::new();
    each(|_| {
        segments.reserve(1).unwrap();
        segments.push([7; SIZE / 8]);
    });
    each(|_| assert!(segments.pop().is_some()));
    let mut queue: Queue<[u64; SIZE / 8]> = Queue::new();
    each(|number| {
        queue.reserve(number + 1).unwrap();
        queue.push_back([7; SIZE / 8]);
    });
    each(|_| assert!(queue.pop_front().is_some()));
    let mut table: Table<[u64; SIZE / 8 - 1]> = Table::new();
    let hash = |number: usize| (number as u32).wrapping_mul(0x9e37_79b9);
    each(|number| {
        table.reserve().unwrap();
        table.insert(hash(number), [number as u64; SIZE / 8 - 1]);
    });
    each(|number| {
        let index = table.find(hash(number), |value| value[0] == number as u64).unwrap();
        assert!(table.remove(index).is_some());
    });
}
