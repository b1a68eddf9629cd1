//! The heap on a fake machine: contents, alignment, counts, limits, several harts.
//!
//! The heap is called through `GlobalAlloc`, beside the host's own allocator, so that a mistake fails a test and not
//! the test harness.

use memory::heap::{self, Heap, LARGEST_CLASS};
use memory::{Frame, fake, frames};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

static HEAP: Heap = Heap::new();

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    fake::init(64 << 20);
    guard
}

/// An allocation filled with a pattern, which is checked when it is freed.
struct Object {
    start: *mut u8,
    layout: Layout,
    mark: u8,
}

// SAFETY: an `Object` owns its allocation, and the heap may be called from any thread.
unsafe impl Send for Object {}

impl Object {
    fn new(size: usize, align: usize, mark: u8) -> Option<Self> {
        let layout = Layout::from_size_align(size, align).expect("a valid layout");
        // SAFETY: the tests use no empty layouts.
        let start = unsafe { HEAP.alloc(layout) };
        if start.is_null() {
            return None;
        }
        assert!(start.addr().is_multiple_of(align), "{layout:?} at {start:p}");
        // SAFETY: `size` bytes were allocated.
        unsafe { start.write_bytes(mark, size) };
        Some(Self { start, layout, mark })
    }

    fn check(&self) {
        // SAFETY: the object is allocated, initialised, and not written to meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) };
        assert!(bytes.iter().all(|&byte| byte == self.mark), "overwritten: {:?}", self.layout);
    }

    fn resize(&mut self, size: usize) {
        self.check();
        let kept = size.min(self.layout.size());
        // SAFETY: allocated with this layout; the new size is not zero.
        let moved = unsafe { HEAP.realloc(self.start, self.layout, size) };
        if moved.is_null() {
            return;
        }
        self.start = moved;
        self.layout = Layout::from_size_align(size, self.layout.align()).expect("a valid layout");
        // SAFETY: `size` bytes are allocated, of which `kept` are initialised.
        unsafe {
            assert!(std::slice::from_raw_parts(moved, kept).iter().all(|&byte| byte == self.mark));
            moved.write_bytes(self.mark, size);
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.check();
        // SAFETY: allocated with this layout, and freed once.
        unsafe { HEAP.dealloc(self.start, self.layout) };
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize, u32),
    Free(usize),
    Resize(usize, usize),
    Hart(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![
        8 => property::edges(1..600usize, &[8, 16, 32, 64, 128, 256, 512]),
        3 => property::edges(600..5000usize, &[1024, LARGEST_CLASS, 4096]),
        1 => property::edges(5000..40_000usize, &[8192, 16_384, 32_768]),
    ];
    prop_oneof![
        5 => (size.clone(), 0u32..14).prop_map(|(size, align)| Step::Allocate(size, align)),
        4 => any::<usize>().prop_map(Step::Free),
        1 => (any::<usize>(), size).prop_map(|(which, size)| Step::Resize(which, size)),
        1 => (0usize..8).prop_map(Step::Hart),
    ]
}

proptest! {
    #![proptest_config(property::cases(256))]

    #[test]
    fn objects_keep_their_contents_and_counts_are_exact(steps in prop::collection::vec(step(), 1..400)) {
        let _alone = alone();
        heap::trim();
        let before = frames::free_frames();
        let mut objects = Vec::new();
        let mut mark = 0u8;
        for step in steps {
            mark = mark.wrapping_add(1);
            match step {
                // Mostly small alignments, as in real programs; large ones must work too.
                Step::Allocate(size, align) => {
                    let align = if align < 8 { 1 << (align / 2) } else { 1 << align };
                    objects.push(Object::new(size, align, mark).expect("there is memory"));
                }
                Step::Free(which) if !objects.is_empty() => drop(objects.swap_remove(which % objects.len())),
                Step::Resize(which, size) if !objects.is_empty() => {
                    let which = which % objects.len();
                    objects[which].resize(size);
                }
                Step::Hart(hart) => fake::set_hart(hart),
                _ => {}
            }
        }
        let statistics = heap::statistics();
        let small: usize = objects.iter().filter(|object| {
            let layout = object.layout;
            let size = if layout.align() > 16 {
                layout.size().max(layout.align()).next_power_of_two()
            } else {
                layout.size()
            };
            size <= LARGEST_CLASS
        }).count();
        prop_assert_eq!(statistics.classes.iter().map(|class| class.used).sum::<usize>(), small);
        let wanted: usize = objects.iter().map(|object| object.layout.size()).sum();
        prop_assert!(statistics.used() >= wanted);
        prop_assert!(statistics.footprint >= statistics.used());
        prop_assert!(before * 4096 - frames::free_frames() * 4096 == statistics.footprint);
        drop(objects);
        heap::trim();
        fake::set_hart(0);
        prop_assert_eq!(heap::statistics().used(), 0);
        prop_assert_eq!(heap::statistics().footprint, 0);
        prop_assert_eq!(frames::free_frames(), before);
    }
}

#[test]
fn harts_free_allocations_of_other_harts() {
    let _alone = alone();
    heap::trim();
    let before = frames::free_frames();
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::channel::<Object>();
        for hart in 0..3usize {
            let send = send.clone();
            scope.spawn(move || {
                // Two threads share an index: slower, and still right.
                fake::set_hart(hart / 2);
                let mut kept = Vec::new();
                for round in 0..30_000usize {
                    let size = 1 + (round * 37 + hart * 101) % 1500;
                    let object = Object::new(size, 8, round as u8).expect("there is memory");
                    if round % 4 == 0 {
                        send.send(object).expect("the receiver is there");
                    } else {
                        kept.push(object);
                    }
                    if kept.len() > 100 {
                        kept.swap_remove(round % 100);
                    }
                }
            });
        }
        drop(send);
        fake::set_hart(7);
        for object in receive {
            drop(object);
        }
    });
    fake::set_hart(0);
    heap::trim();
    assert_eq!(heap::statistics().used(), 0);
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn the_limit_and_exhaustion_give_null() {
    let _alone = alone();
    heap::trim();
    let before = frames::free_frames();
    heap::set_limit(1 << 20);
    assert!(heap::is_available(1 << 20));
    assert!(!heap::is_available((1 << 20) + 1));
    assert!(!heap::is_available(usize::MAX));
    for size in [24, 700, 3000, 100_000] {
        let mut objects = Vec::new();
        while let Some(object) = Object::new(size, 8, 9) {
            objects.push(object);
        }
        let bytes: usize = objects.iter().map(|object| object.layout.size()).sum();
        assert!(bytes <= 1 << 20);
        assert!(bytes > 600 << 10, "{size}: only {bytes}");
        assert!(heap::statistics().footprint <= 1 << 20);
        assert!(heap::bytes_in_use() >= bytes);
        drop(objects);
        heap::trim();
    }
    heap::set_limit(usize::MAX);
    let mut objects = Vec::new();
    while let Some(object) = Object::new(1 << 20, 4096, 1) {
        objects.push(object);
    }
    while let Some(object) = Object::new(2048, 8, 2) {
        objects.push(object);
    }
    assert!(frames::free_frames() < 4);
    assert!(!heap::is_available(1 << 20));
    // Objects that fit into existing slabs still work.
    objects.pop();
    assert!(Object::new(2000, 8, 3).is_some());
    assert!(Object::new(64 << 20, 8, 3).is_none());
    assert!(Object::new(isize::MAX as usize - 4096, 1, 3).is_none());
    drop(objects);
    heap::trim();
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn kept_memory_serves_small_allocations_only() {
    let _alone = alone();
    heap::trim();
    let kept = heap::Kept::new(1 << 20).expect("there is memory");
    heap::set_reserve_of_small(1 << 20);
    let mut objects = Vec::new();
    while let Some(object) = Object::new(64 << 10, 8, 1) {
        objects.push(object);
    }
    // The kept memory, and the reserve beside it.
    assert!(frames::free_frames() * 4096 >= 2 << 20);
    assert!(!heap::is_available(1 << 20) || !heap::is_available((1 << 20) + (64 << 10)));
    assert!(heap::Kept::new(4 << 20).is_err());
    let mut small = Vec::new();
    while let Some(object) = Object::new(512, 8, 2) {
        small.push(object);
    }
    assert!(small.len() * 512 >= 2 << 20, "only {}", small.len());
    drop(small);
    heap::trim();
    // A whole frame is small; one byte more, or a larger alignment, is not.
    let frame = Object::new(4096, 8, 3).expect("there is a reserve");
    assert!(Object::new(4097, 8, 3).is_none() && Object::new(4096, 8192, 3).is_none());
    heap::set_reserve_of_small(0);
    drop((objects, frame, kept));
    heap::trim();
    assert!(heap::is_available(32 << 20));
}

#[test]
fn caches_of_all_harts_are_searched_before_an_allocation_fails() {
    let _alone = alone();
    heap::trim();
    // All harts but the first have free frames and free objects of their own.
    for hart in 1..8 {
        fake::set_hart(hart);
        let frames: Vec<_> = (0..64).map(|_| Frame::allocate().expect("there is memory")).collect();
        let objects: Vec<_> = (0..200).map(|_| Object::new(2048, 8, 3)).collect();
        drop((frames, objects));
    }
    fake::set_hart(0);
    let mut taken = Vec::new();
    while heap::is_available(16 << 10) {
        taken.push(Frame::allocate().expect("there is memory"));
    }
    assert!(frames::statistics().cached >= 200, "{:?}", frames::statistics());
    assert!(!heap::is_available(512 << 10));
    assert!(heap::collect(512 << 10), "{:?}", frames::statistics());
    assert!(heap::is_available(512 << 10));
    assert!(!heap::collect(32 << 20));
    drop(taken);
    heap::trim();
}

#[test]
fn objects_of_up_to_512_bytes_have_slabs_of_one_frame() {
    let _alone = alone();
    for (size, frames) in [(1, 1), (512, 1), (513, 4), (2048, 4), (2049, 1), (3 * 4096 + 1, 4)] {
        heap::trim();
        let object = Object::new(size, 1, 7).expect("there is memory");
        let statistics = heap::statistics();
        assert_eq!(statistics.footprint, frames * 4096, "{size}");
        let used = if size > LARGEST_CLASS { frames * 4096 } else { statistics.used() };
        assert!(used >= size && used <= size.max(16) * 5 / 4 || size > LARGEST_CLASS, "{size} takes {used}");
        let whole = statistics.footprint - statistics.used();
        // The rest of the slab, but for a remainder that is no whole object.
        assert!(statistics.idle() <= whole && statistics.idle() + LARGEST_CLASS >= whole, "{statistics:?}");
        assert_eq!(statistics.large, if size > LARGEST_CLASS { frames * 4096 } else { 0 });
        drop(object);
        assert_eq!(heap::statistics().used(), 0);
    }
    heap::trim();
    assert_eq!((heap::statistics().footprint, heap::statistics().idle()), (0, 0));
}

/// A hart's cache has a bound; it is filled and emptied by halves.
#[test]
fn a_cache_holds_eight_kibibytes_or_32_objects() {
    let _alone = alone();
    for (size, most) in [(16, 32), (256, 32), (320, 25), (2048, 4)] {
        let class = || heap::statistics().classes.into_iter().find(|class| class.size == size).expect("a class");
        heap::trim();
        let before = frames::free_frames();
        let half = most / 2;
        let mut objects = Vec::new();
        let mut cached = 0;
        for count in 1..=100 {
            objects.push(Object::new(size, 1, 5).expect("there is memory"));
            cached = if cached == 0 { half - 1 } else { cached - 1 };
            assert_eq!((class().cached, class().used), (cached, count), "{size}");
        }
        for (count, object) in objects.into_iter().enumerate() {
            drop(object);
            cached = if cached == most { most - half } else { cached + 1 };
            assert_eq!((class().cached, class().used), (cached, 99 - count), "{size}");
        }
        heap::trim();
        assert_eq!(frames::free_frames(), before);
    }
}

/// A slab without objects is given back, but for one, which a program at the edge would take again at once.
#[test]
fn free_slabs_are_given_back_but_for_one() {
    let _alone = alone();
    heap::trim();
    let objects: Vec<_> = (0..800).map(|_| Object::new(512, 1, 5).expect("there is memory")).collect();
    assert!(heap::statistics().footprint >= 100 * 4096);
    drop(objects);
    let footprint = heap::statistics().footprint;
    assert!((2 * 4096..=6 * 4096).contains(&footprint), "{footprint}");
    for _ in 0..100 {
        let objects: Vec<_> = (0..8).map(|_| Object::new(512, 1, 5).expect("there is memory")).collect();
        drop(objects);
        assert_eq!(heap::statistics().footprint, footprint);
    }
    heap::trim();
    assert_eq!(heap::statistics().footprint, 0);
}

#[test]
fn alignments_up_to_16_cost_nothing() {
    let _alone = alone();
    heap::trim();
    for (size, align, class) in [(48, 16, 48), (80, 8, 80), (48, 32, 64), (33, 32, 64), (1, 64, 64), (65, 32, 128)] {
        let object = Object::new(size, align, 1).expect("there is memory");
        assert_eq!(heap::statistics().used(), class, "{size} aligned to {align}");
        drop(object);
    }
}

/// Free objects of other harts are collected if they may be enough.
#[test]
fn objects_of_all_harts_are_collected_when_frames_are_short() {
    let _alone = alone();
    heap::trim();
    for hart in 0..8 {
        fake::set_hart(hart);
        drop(Object::new(2048, 8, 3).expect("there is memory"));
    }
    fake::set_hart(0);
    let mut taken = Vec::new();
    while let Ok(frame) = Frame::allocate() {
        taken.push(frame);
    }
    let idle = heap::statistics().idle();
    assert!(idle >= 16 << 10 && idle.is_multiple_of(4096), "{idle}");
    assert_eq!(frames::statistics().cached, 0);
    assert!(!heap::is_available(4096));
    // Not if it cannot help: they stay where they are.
    assert!(!heap::collect(idle + 1));
    assert_eq!(heap::statistics().idle(), idle);
    assert!(heap::collect(idle));
    drop(taken);
}

/// Without a reserve for small ones, large allocations may take memory that is kept.
#[test]
fn a_large_allocation_may_take_kept_memory_if_no_reserve_is_set() {
    let _alone = alone();
    heap::trim();
    let kept = heap::Kept::new(50 << 20).expect("there is memory");
    assert!(!heap::is_available(20 << 20));
    assert!(Object::new(20 << 20, 8, 1).is_some());
    heap::set_reserve_of_small(1);
    assert!(Object::new(20 << 20, 8, 1).is_none());
    heap::set_reserve_of_small(0);
    drop(kept);
    assert!(heap::is_available(20 << 20));
}
