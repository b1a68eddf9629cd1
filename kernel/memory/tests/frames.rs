//! Frames on a fake machine: ownership, sharing, exact counts, several harts.

use memory::frames::{self, InitError, LARGEST_ORDER};
use memory::{Block, Frame, OutOfMemory, PAGE_SIZE, SharedFrame, fake};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

const MEMORY: usize = 64 << 20;

/// Counts of frames are exact only if one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    fake::init(MEMORY);
    guard
}

#[test]
fn memory_is_given_once() {
    let _alone = alone();
    let again = frames::init(std::slice::from_ref(&(0x1000..0x10_0000)), 0, fake::current_hart);
    assert_eq!(again, Err(InitError::AlreadyDone));
    assert_eq!(frames::init(&[], 0, fake::current_hart), Err(InitError::NoMemory));
    assert_eq!(frames::init(std::slice::from_ref(&(0x1000..0x1fff)), 0, fake::current_hart), Err(InitError::NoMemory));
    // Frame numbers have 32 bits, and the last is none.
    let last = u64::from(u32::MAX) * PAGE_SIZE;
    let beyond = last - 100 * PAGE_SIZE..last;
    assert_eq!(frames::init(std::slice::from_ref(&beyond), 0, fake::current_hart), Err(InitError::NoMemory));
    for overlap in [[0x1000..0x8000, 0x7000..0x20_0000], [0x7000..0x20_0000, 0x1000..0x8000]] {
        assert_eq!(frames::init(&overlap, 0, fake::current_hart), Err(InitError::Overlap));
    }
    // Neighbours do not overlap, nor does less than a frame inside of another range.
    for good in
        [[0x1000..0x8000, 0x8000..0x20_0000], [0x1000..0x20_0000, 0x5000..0x5fff], [0x9000..0x20_0000, 0..0x8000]]
    {
        assert_eq!(frames::init(&good, 0, fake::current_hart), Err(InitError::AlreadyDone));
    }
    let statistics = frames::statistics();
    let records = MEMORY / 4096 * 16 / 4096;
    assert_eq!(statistics.total, MEMORY / 4096 - records);
    assert_eq!(frames::total_frames(), statistics.total);
}

/// A hart takes some frames at once, and gives some back at once.
#[test]
fn a_hart_has_frames_of_its_own() {
    let _alone = alone();
    fake::set_hart(6);
    let before = frames::statistics().cached;
    let frame = Frame::allocate().expect("there is memory");
    let cached = frames::statistics().cached;
    assert!(cached + 1 == before || cached == before + 31, "{before} before, {cached} after");
    drop(frame);
    assert_eq!(frames::statistics().cached, cached + 1);
    let frames: Vec<_> = (0..200).map(|_| Frame::allocate().expect("there is memory")).collect();
    let free = frames::free_frames();
    drop(frames);
    assert_eq!(frames::free_frames(), free + 200);
    assert!((32..=before + 64).contains(&frames::statistics().cached));
    fake::set_hart(0);
}

#[test]
fn errors_say_what_is_wrong() {
    use memory::space::{Fault, MapError};
    use memory::sv39;
    let messages = [
        OutOfMemory.to_string(),
        InitError::NoMemory.to_string(),
        InitError::Overlap.to_string(),
        InitError::AlreadyDone.to_string(),
        MapError::InvalidRange.to_string(),
        MapError::Occupied.to_string(),
        MapError::NotMapped.to_string(),
        Fault::NotMapped.to_string(),
        Fault::Protection.to_string(),
        sv39::MapError::InvalidAddress.to_string(),
        sv39::MapError::Occupied.to_string(),
    ];
    assert!(messages.iter().all(|message| message.len() > 8), "{messages:?}");
    assert_eq!(messages.iter().collect::<BTreeSet<_>>().len(), messages.len(), "{messages:?}");
}

#[test]
fn frames_keep_written_bytes() {
    let _alone = alone();
    let before = frames::free_frames();
    let frame = Frame::allocate_zeroed().expect("there is memory");
    assert_eq!(frames::free_frames(), before - 1);
    let mut bytes = [1; 8];
    assert_eq!(frame.read(0, &mut bytes), 8);
    assert_eq!(bytes, [0; 8]);
    assert_eq!(frame.write(4090, b"0123456789"), 6);
    assert_eq!(frame.read(4088, &mut bytes), 8);
    assert_eq!(&bytes, b"\0\x00012345");
    assert_eq!(frame.read(4096, &mut bytes), 0);
    assert_eq!(frame.read(5000, &mut bytes), 0);
    let contents = frame.bytes();
    contents.atomic_u64(16).expect("aligned").store(7, Ordering::Relaxed);
    assert_eq!(frame.read(16, &mut bytes), 8);
    assert_eq!(bytes, 7u64.to_ne_bytes());
    frame.zero();
    assert_eq!(contents.atomic_u64(16).expect("aligned").load(Ordering::Relaxed), 0);
    drop(frame);
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn the_last_share_frees() {
    let _alone = alone();
    let before = frames::free_frames();
    let one = Frame::allocate_zeroed().expect("there is memory").share();
    let two = one.clone();
    assert_eq!(one.physical_address(), two.physical_address());
    assert_eq!(two.shares(), 2);
    let one = one.into_exclusive().expect_err("there are two");
    drop(two);
    let frame = one.into_exclusive().expect("the only one");
    assert_eq!(frames::free_frames(), before - 1);
    drop(frame);
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn blocks_are_contiguous_and_aligned() {
    let _alone = alone();
    let before = frames::free_frames();
    let mut blocks = Vec::new();
    for order in [0, 2, 9, 10] {
        let block = Block::allocate_zeroed(order).expect("there is memory");
        assert_eq!(block.len(), 4096 << order);
        assert!(block.physical_address().is_multiple_of(block.len() as u64));
        assert_eq!(frames::physical_address(block.pointer().as_ptr()), Some(block.physical_address()));
        blocks.push(block);
    }
    let odd = Block::allocate_bytes(5 * 4096 + 1).expect("there is memory");
    assert_eq!(odd.len(), 6 * 4096);
    assert_eq!(before - frames::free_frames(), 1 + 4 + 512 + 1024 + 6);
    assert_eq!(Block::allocate_zeroed(LARGEST_ORDER + 1), Err(OutOfMemory));
    for frames in [(1 << LARGEST_ORDER) + 1, (1 << 31) + 1, u32::MAX as usize, 1 << 32] {
        assert_eq!(Block::allocate_bytes(frames * 4096), Err(OutOfMemory), "{frames} frames");
    }
    assert_eq!(Block::allocate_bytes(usize::MAX), Err(OutOfMemory));
    assert_eq!(frames::physical_address(std::ptr::null()), None);
    let local = 0u8;
    assert_eq!(frames::physical_address(&local), None);
    drop((blocks, odd));
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn every_frame_can_be_had_and_comes_back() {
    let _alone = alone();
    let before = frames::statistics();
    // Leave frames in the caches of other harts: they must be found.
    for hart in 1..4 {
        fake::set_hart(hart);
        drop(Frame::allocate());
    }
    fake::set_hart(0);
    assert!(frames::statistics().cached > 0);
    let mut frames: Vec<Frame> = Vec::new();
    while let Ok(frame) = Frame::allocate() {
        frames.push(frame);
    }
    assert_eq!(frames.len(), before.free);
    assert_eq!(frames::free_frames(), 0);
    assert!(!frames::available_to_programs(0));
    assert_eq!(Block::allocate_zeroed(0), Err(OutOfMemory));
    let distinct: BTreeSet<u64> = frames.iter().map(Frame::physical_address).collect();
    assert_eq!(distinct.len(), frames.len());
    assert!(distinct.iter().all(|address| address.is_multiple_of(PAGE_SIZE) && *address >= fake::BASE));
    drop(frames);
    assert_eq!(frames::free_frames(), before.free);
    // Collected from the caches if need be, all of it is in one piece again.
    let half = Block::allocate_zeroed(LARGEST_ORDER).expect("coalesced");
    drop(half);
    assert!(frames::available_to_programs(1));
}

#[test]
fn harts_share_without_losing_any() {
    let _alone = alone();
    let before = frames::free_frames();
    let (send, receive) = std::sync::mpsc::channel::<Frame>();
    let common = Frame::allocate_zeroed().expect("there is memory").share();
    std::thread::scope(|scope| {
        for hart in 0..4 {
            let send = send.clone();
            let common = common.clone();
            scope.spawn(move || {
                // Two of the four claim to be the same hart, which costs time and must cost nothing else.
                fake::set_hart(hart / 2);
                for round in 0..5000u64 {
                    let mark = round * 4 + hart as u64;
                    let frame = Frame::allocate().expect("there is memory");
                    let bytes = frame.bytes();
                    let word = bytes.atomic_u64(8).expect("aligned");
                    word.store(mark, Ordering::Relaxed);
                    let share: SharedFrame = common.clone();
                    assert_eq!(word.load(Ordering::Relaxed), mark);
                    drop(share);
                    if round % 3 == 0 {
                        // Freed by another hart.
                        send.send(frame).expect("the receiver is there");
                    }
                }
            });
        }
        drop(send);
        fake::set_hart(3);
        for frame in receive {
            drop(frame);
        }
    });
    assert_eq!(common.shares(), 1);
    drop(common);
    assert_eq!(frames::free_frames(), before);
    fake::set_hart(0);
}
