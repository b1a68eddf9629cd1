//! Address spaces against a model that tracks each page on its own.

use memory::asid::{Identifiers, LocalFlush};
use memory::object::{Absent, MOST_PAGES, ObjectPages, Payer};
use memory::space::{
    Fault, FlushRequest, Instructions, Interrupted, Limits, MAPPING_AREA, MapError, ObjectUse, Placement, Sharing,
    StringError,
};
use memory::sv39::{Access, Edge, InvalidDevices, KernelHalf, Protection, RootSize, Scope, USER, permit_devices};
use memory::{AddressSpace, Frame, MemoryObject, OutOfMemory, PAGE_SIZE, SharedFrame, fake, frames};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts of frames are exact only if one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    fake::init(64 << 20);
    guard
}

fn space(limits: Limits) -> AddressSpace {
    AddressSpace::new(&KernelHalf::empty(), RootSize::Page, limits, record_flush).expect("there is memory")
}

fn anonymous(space: &mut AddressSpace, start: u64, pages: u64, protection: Protection) {
    let placement = Placement::FixedIfFree(start);
    let (at, flush) = space.map_anonymous(placement, pages * PAGE_SIZE, protection, "data").expect("free");
    assert_eq!(at, start);
    flush.after(|_| unreachable!("nothing was mapped"));
}

fn shared(pages: usize) -> Vec<SharedFrame> {
    (0..pages).map(|_| Frame::allocate_zeroed().expect("there is memory").share()).collect()
}

#[test]
fn copies_cross_pages_and_stop_at_holes() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let mut space = space(Limits::DEFAULT);
        let start = 0x10_0000;
        anonymous(&mut space, start, 3, Protection::ReadWrite);
        let bytes: Vec<u8> = (0..9000u32).map(|index| (index % 251) as u8).collect();
        space.copy_out(start + 100, &bytes).expect("mapped");
        let mut back = vec![0; 9000];
        space.copy_in(start + 100, &mut back).expect("mapped");
        assert_eq!(back, bytes);
        assert_eq!(space.resident_frames(), 3);
        let end = start + 3 * PAGE_SIZE;
        assert_eq!(space.copy_in(end - 10, &mut back[..11]), Err(Fault::NotMapped));
        assert_eq!(space.copy_out(end - 10, &back[..11]), Err(Fault::NotMapped));
        assert_eq!(
            space.for_each_slice(end - 10, 20, Access::Read, |bytes| bytes.len()),
            Err(Interrupted { done: 10, fault: Fault::NotMapped })
        );
        // A visitor that uses less than it is given ends the transfer.
        let mut pieces = vec![];
        let used = space.for_each_slice(start + 4000, 5000, Access::Read, |bytes| {
            pieces.push(bytes.len());
            if pieces.len() == 2 { 7 } else { bytes.len() }
        });
        assert_eq!((used, pieces), (Ok(96 + 7), vec![96, 4096]));
        for bad in [0, 8, u64::MAX - 3, USER.end - 4, USER.end, 1 << 39, 0xffff_ffc0_8000_0000] {
            assert_eq!(space.copy_in(bad, &mut back[..8]), Err(Fault::NotMapped), "{bad:#x}");
            assert_eq!(space.copy_out(bad, &back[..8]), Err(Fault::NotMapped), "{bad:#x}");
            assert_eq!(space.zero(bad, 5000), Err(Fault::NotMapped), "{bad:#x}");
            assert_eq!(space.read_u64(bad), Err(Fault::NotMapped), "{bad:#x}");
        }
        assert_eq!(space.copy_in(0, &mut []), Ok(()));
        assert_eq!(space.copy_out(0, &[]), Ok(()));
        assert_eq!(space.zero(start, usize::MAX), Err(Fault::NotMapped));
    }
    assert_eq!(frames::free_frames(), before);
}

/// Makes a copy of a space, as `fork` does; returns the pages whose flush was asked for.
fn fork(from: &mut AddressSpace, to: &mut AddressSpace) -> u64 {
    let (mut next, mut flushed) = (Some(0), 0);
    while let Some(at) = next {
        next = from.copy_regions(to, at).expect("there is memory");
    }
    next = Some(0);
    while let Some(at) = next {
        let (flush, shared) = from.share_pages(to, at);
        flush.after(|request| match request.scope {
            Scope::Pages(pages) => flushed += (pages.end - pages.start) / PAGE_SIZE,
            other => panic!("{other:?}"),
        });
        next = shared.expect("there is memory");
    }
    flushed
}

std::thread_local! {
    static FLUSHED: std::cell::RefCell<Vec<(u64, u64)>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Remembers the pages that harts must flush while a space is locked.
fn record_flush(request: &FlushRequest<'_>) {
    match request.scope {
        Scope::Pages(pages) => FLUSHED.with_borrow_mut(|flushed| flushed.push((pages.start, pages.end))),
        other => panic!("{other:?}"),
    }
}

/// Returns the start and end of the pages that were flushed since the last look.
fn flushed() -> Vec<(u64, u64)> {
    FLUSHED.take()
}

fn word(space: &mut AddressSpace, address: u64) -> u64 {
    space.read_u64(address).expect("mapped")
}

#[test]
fn copies_share_pages_until_one_of_them_writes() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let (mut parent, mut child) = (space(Limits::DEFAULT), space(Limits::DEFAULT));
        let start = 0x10_0000;
        anonymous(&mut parent, start, 200, Protection::ReadWrite);
        anonymous(&mut parent, start + (1 << 30), 1, Protection::ReadWrite);
        for page in (0..200).step_by(2) {
            parent.write_u64(start + page * PAGE_SIZE, page + 1).expect("mapped");
        }
        let rest: Vec<u8> = (0..PAGE_SIZE as usize - 8).map(|index| (index % 251) as u8).collect();
        parent.copy_out(start + 8, &rest).expect("mapped");
        parent.write_u64(start + (1 << 30), 77).expect("mapped");
        let identifiers = Identifiers::new(4);
        let _ = parent.enter(&identifiers, 0);
        let free = frames::free_frames();
        assert!(fork(&mut parent, &mut child) >= 101, "all pages were writable");
        assert_eq!((parent.resident_frames(), child.resident_frames()), (101, 101));
        assert!(free - frames::free_frames() < 8, "only tables are new");
        assert_eq!(flushed(), []);
        for page in 0..200 {
            let expected = if page % 2 == 0 { page + 1 } else { 0 };
            assert_eq!(word(&mut child, start + page * PAGE_SIZE), expected);
        }
        assert_eq!(word(&mut child, start + (1 << 30)), 77);
        // A write of either is not seen by the other, and only the first one copies.
        let free = frames::free_frames();
        parent.write_u64(start, 500).expect("mapped");
        child.write_u64(start + 2 * PAGE_SIZE, 600).expect("mapped");
        assert_eq!(free - frames::free_frames(), 2);
        // A hart is in the parent, none in the copy.
        assert_eq!(flushed(), [(start, start + PAGE_SIZE)]);
        let first = (word(&mut parent, start), word(&mut child, start));
        let second = (word(&mut parent, start + 2 * PAGE_SIZE), word(&mut child, start + 2 * PAGE_SIZE));
        assert_eq!((first, second), ((500, 1), (3, 600)));
        // All of the page was copied.
        for copy in [&mut parent, &mut child] {
            let mut found = vec![0; rest.len()];
            copy.copy_in(start + 8, &mut found).expect("mapped");
            assert_eq!(found, rest);
        }
        child.write_u64(start, 501).expect("mapped");
        parent.write_u64(start + 2 * PAGE_SIZE, 601).expect("mapped");
        assert_eq!(free - frames::free_frames(), 2, "the last owner keeps the page");
        assert_eq!(flushed(), []);
        assert_eq!((word(&mut parent, start), word(&mut child, start)), (500, 501));
        // A change of protection makes no shared page writable.
        let range = start..start + 200 * PAGE_SIZE;
        for protection in [Protection::None, Protection::ReadWrite] {
            child.protect(range.clone(), protection).expect("mapped").after(|_| unreachable!("no hart is there"));
        }
        child.zero(start, 200 * PAGE_SIZE as usize).expect("mapped");
        assert_eq!(flushed(), []);
        assert_eq!(word(&mut parent, start + 4 * PAGE_SIZE), 5);
        // The copy of a copy, and an original that is gone first.
        let mut grandchild = space(Limits::DEFAULT);
        fork(&mut parent, &mut grandchild);
        parent.leave(0);
        drop(parent);
        assert_eq!(word(&mut grandchild, start), 500);
        grandchild.write_u64(start, 1).expect("mapped");
        assert_eq!(word(&mut grandchild, start + 4 * PAGE_SIZE), 5);
        child.unmap(range).expect("mapped").after(|_| unreachable!("no hart is there"));
    }
    assert_eq!(frames::free_frames(), before);
}

/// A copy has the regions of its original, however many, but for devices and shared frames that may be written.
#[test]
fn copies_have_all_regions_that_may_be_copied() {
    let _alone = alone();
    let (mut parent, mut child) = (space(Limits::DEFAULT), space(Limits::DEFAULT));
    let start = |index: u64| 0x10_0000 + index * 2 * PAGE_SIZE;
    for index in 0..200 {
        let protection = PROTECTIONS[index as usize % 5];
        let sharing = match index % 3 {
            0 => None,
            1 => Some(Sharing::ReadOnly),
            _ => Some(Sharing::ReadWrite),
        };
        match sharing {
            Some(sharing) if sharing == Sharing::ReadWrite || protection != Protection::ReadWrite => {
                let frames = shared(1);
                frames[0].write(0, &[index as u8]);
                let placement = Placement::Fixed(start(index));
                parent.map_shared(placement, frames, sharing, protection, "shared").expect("free").1.after(|_| ());
            }
            _ => anonymous(&mut parent, start(index), 1, protection),
        }
    }
    parent.set_break_start(start(201));
    parent.set_break(start(201) + 5).expect("free").after(|_| ());
    parent.set_mapping_top(start(1000));
    fork(&mut parent, &mut child);
    let expected = parent.regions().filter(|region| {
        let index = (region.range.start - start(0)) / (2 * PAGE_SIZE);
        region.name != "shared" || index % 3 == 1
    });
    assert_eq!(child.regions().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert!(child.regions().count() > 130);
    let mut byte = [0];
    for region in child.regions().collect::<Vec<_>>() {
        if region.name == "shared" && region.protection.allows(Access::Read) {
            child.copy_in(region.range.start, &mut byte).expect("mapped");
            assert_eq!(u64::from(byte[0]), (region.range.start - start(0)) / (2 * PAGE_SIZE));
        }
    }
    assert_eq!(child.break_end(), start(201) + 5);
    child.set_break(start(201)).expect("its own").after(|_| ());
    let (at, flush) = child.map_anonymous(Placement::Anywhere, 1, Protection::Read, "data").expect("free");
    flush.after(|_| ());
    assert_eq!(at, start(1000) - PAGE_SIZE);
}

/// Shared frames are entered at once; if there is no memory for tables, each page when it is touched.
#[test]
fn shared_frames_are_entered_at_once_or_when_touched() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let identifiers = Identifiers::new(4);
        let mut space = space(Limits::DEFAULT);
        let _ = space.enter(&identifiers, 0);
        for (start, has_memory) in [(0x10_0000, true), (0x4000_0000, false)] {
            let frames = shared(3);
            for (mark, frame) in (1..).zip(&frames) {
                frame.write(0, &[mark]);
            }
            let mut taken = Vec::new();
            while !has_memory && let Ok(frame) = Frame::allocate() {
                taken.push(frame);
            }
            let tables = space.table_frames();
            let (_, flush) = space
                .map_shared(Placement::Fixed(start), frames, Sharing::ReadOnly, Protection::ReadExecute, "image")
                .expect("no frame is needed");
            flush.after(|_| ());
            assert_eq!(space.table_frames() > tables, has_memory);
            drop(taken);
            for page in 0..3 {
                assert_eq!(space.fault(start + page * PAGE_SIZE, Access::Execute), Ok(()));
                assert_eq!(space.harts_to_synchronise(), u64::from(!has_memory), "page {page} at {start:#x}");
                let mut byte = [0];
                space.copy_in(start + page * PAGE_SIZE, &mut byte).expect("mapped");
                assert_eq!(u64::from(byte[0]), page + 1);
            }
        }
        space.leave(0);
    }
    assert_eq!(frames::free_frames(), before);
}

/// The original may change between the copying of its regions and that of its pages: the copy has its pages with the
/// protection of its own regions.
#[test]
fn a_copy_reads_and_writes_pages_that_its_original_may_not_touch_any_more() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let (mut parent, mut child) = (space(Limits::DEFAULT), space(Limits::DEFAULT));
        let start = 0x10_0000;
        anonymous(&mut parent, start, 2, Protection::ReadWrite);
        for page in 0..2 {
            parent.write_u64(start + page * PAGE_SIZE, page + 7).expect("mapped");
        }
        assert_eq!(parent.copy_regions(&mut child, 0), Ok(None));
        parent.protect(start..start + 2 * PAGE_SIZE, Protection::None).expect("mapped").after(|_| unreachable!());
        let (flush, shared) = parent.share_pages(&mut child, 0);
        flush.after(|_| unreachable!("no hart is there"));
        assert!(shared.is_ok());
        assert_eq!(parent.read_u64(start), Err(Fault::Protection));
        assert_eq!(word(&mut child, start), 7);
        child.write_u64(start + PAGE_SIZE, 9).expect("mapped");
        assert_eq!(word(&mut child, start + PAGE_SIZE), 9);
        parent.protect(start..start + 2 * PAGE_SIZE, Protection::Read).expect("mapped").after(|_| unreachable!());
        assert_eq!((word(&mut parent, start), word(&mut parent, start + PAGE_SIZE)), (7, 8));
    }
    assert_eq!(frames::free_frames(), before);
}

/// Between the copying of regions and of pages the original may get and lose some.
#[test]
fn a_copy_has_no_page_that_its_original_got_later() {
    let _alone = alone();
    let (mut parent, mut child) = (space(Limits::DEFAULT), space(Limits::DEFAULT));
    let page = |index: u64| 0x10_0000 + index * PAGE_SIZE;
    for index in [2, 6] {
        anonymous(&mut parent, page(index), 1, Protection::ReadWrite);
    }
    assert_eq!(parent.copy_regions(&mut child, 0), Ok(None));
    for (first, pages) in [(0, 2), (3, 1), (8, 2)] {
        anonymous(&mut parent, page(first), pages, Protection::ReadWrite);
    }
    for index in [0, 1, 2, 3, 6, 8, 9] {
        parent.write_u64(page(index), index + 1).expect("mapped");
    }
    let mut parts = 0;
    let mut next = Some(0);
    while let Some(at) = next {
        let (flush, shared) = parent.share_pages(&mut child, at);
        flush.after(|_| unreachable!("no hart is there"));
        next = shared.expect("there is memory");
        parts += 1;
        assert!(parts < 20 && next.is_none_or(|next| next > at), "{next:x?} after {at:#x}");
    }
    assert_eq!(child.resident_frames(), 2);
    for index in 0..10 {
        let expected = if [2, 6].contains(&index) { Ok(index + 1) } else { Err(Fault::NotMapped) };
        assert_eq!(child.read_u64(page(index)), expected);
    }
}

/// A part may begin inside a region: of anonymous memory the copy has the rest, of shared frames nothing.
#[test]
fn the_copying_of_regions_may_begin_anywhere() {
    let _alone = alone();
    let (mut parent, mut child) = (space(Limits::DEFAULT), space(Limits::DEFAULT));
    let page = |index: u64| 0x10_0000 + index * PAGE_SIZE;
    let ranges =
        |space: &AddressSpace| space.regions().map(|region| (region.range.start, region.range.end)).collect::<Vec<_>>();
    anonymous(&mut parent, page(0), 3, Protection::Read);
    assert_eq!(parent.copy_regions(&mut child, page(1)), Ok(None));
    assert_eq!(ranges(&child), [(page(1), page(3))]);
    child.clear().after(|_| ());
    for start in [4, 7] {
        let placement = Placement::Fixed(page(start));
        let mapped = parent.map_shared(placement, shared(3), Sharing::ReadOnly, Protection::Read, "image");
        mapped.expect("free").1.after(|_| ());
    }
    assert_eq!(parent.copy_regions(&mut child, page(5)), Ok(None));
    assert_eq!(ranges(&child), [(page(7), page(10))]);
}

/// A share that a hart may still see is given back after the flush, as frames are.
#[test]
fn shares_are_given_back_after_the_flush() {
    let _alone = alone();
    let (mut parent, mut child) = (space(Limits::DEFAULT), space(Limits::DEFAULT));
    let start = 0x10_0000;
    anonymous(&mut parent, start, 1, Protection::ReadWrite);
    parent.write_u64(start, 1).expect("mapped");
    fork(&mut parent, &mut child);
    let identifiers = Identifiers::new(4);
    let _ = parent.enter(&identifiers, 0);
    let flush = parent.unmap(start..start + PAGE_SIZE).expect("mapped");
    drop(child);
    let free = frames::free_frames();
    flush.after(|_| assert_eq!(frames::free_frames(), free));
    assert_eq!(frames::free_frames(), free + 1);
    parent.leave(0);
}

/// Pages whose numbers are equal modulo the number of cached translations displace each other.
#[test]
fn pages_that_displace_each_other_in_the_cache_keep_their_contents_and_rights() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let starts = [0x10_0000, 0x11_0000, 0x12_0000];
    for start in starts {
        anonymous(&mut space, start, 1, Protection::ReadWrite);
    }
    for round in 0..4u64 {
        for (number, start) in starts.into_iter().enumerate() {
            space.write_u64(start, round * 16 + number as u64).expect("mapped");
        }
        for (number, start) in starts.into_iter().enumerate().take(2) {
            assert_eq!(space.read_u64(start), Ok(round * 16 + number as u64));
        }
    }
    // The rights of a page go with its entry, also when it returns from being displaced.
    let flush = space.protect(starts[1]..starts[1] + PAGE_SIZE, Protection::Read).expect("mapped");
    flush.after(|_| {});
    for _ in 0..2 {
        assert_eq!(space.read_u64(starts[0]), Ok(3 * 16));
        assert_eq!(space.read_u64(starts[1]), Ok(3 * 16 + 1));
        assert_eq!(space.write_u64(starts[1], 0), Err(Fault::Protection));
    }
    let flush = space.unmap(starts[0]..starts[0] + PAGE_SIZE).expect("mapped");
    flush.after(|_| {});
    assert_eq!(space.read_u64(starts[0]), Err(Fault::NotMapped));
    assert_eq!(space.read_u64(starts[1]), Ok(3 * 16 + 1));
}

#[test]
fn words_and_strings() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let start = 0x10_0000;
    anonymous(&mut space, start, 2, Protection::ReadWrite);
    let across = start + PAGE_SIZE - 3;
    for address in [start, start + 1, across] {
        space.write_u64(address, 0x0102_0304_0506_0708).expect("mapped");
        assert_eq!(space.read_u64(address), Ok(0x0102_0304_0506_0708));
        space.write_u32(address, 0x0a0b_0c0d).expect("mapped");
        assert_eq!(space.read_u32(address), Ok(0x0a0b_0c0d));
        assert_eq!(space.read_u64(address), Ok(0x0102_0304_0a0b_0c0d));
    }
    space.store_u32(start, 5).expect("mapped");
    assert_eq!(space.compare_exchange_u32(start, 5, 6), Ok(Ok(5)));
    assert_eq!(space.compare_exchange_u32(start, 5, 7), Ok(Err(6)));
    assert_eq!(space.load_u32(start), Ok(6));
    assert_eq!(space.compare_exchange_u32(start + 2, 5, 7), Err(Fault::Misaligned));
    assert_eq!(space.compare_exchange_u32(across, 5, 7), Err(Fault::Misaligned));
    assert_eq!(space.compare_exchange_u32(0x20_0000, 5, 7), Err(Fault::NotMapped));

    let text = [b'x'; 100];
    let at = start + PAGE_SIZE - 50;
    space.copy_out(at, &text).expect("mapped");
    assert_eq!(space.copy_in_string(at, 100).as_deref(), Ok(&text[..]));
    assert_eq!(space.copy_in_string(at, 99), Err(StringError::TooLong));
    assert_eq!(space.copy_in_string(at + 100, 0).as_deref(), Ok(&b""[..]));
    let end = start + 2 * PAGE_SIZE;
    space.copy_out(end - 20, &text[..20]).expect("mapped");
    assert_eq!(space.copy_in_string(end - 20, 1000), Err(StringError::Fault(Fault::NotMapped)));
    assert_eq!(space.copy_in_string(u64::MAX - 7, 1000), Err(StringError::Fault(Fault::NotMapped)));
}

#[test]
fn shared_frames_are_never_written_against_the_owner_s_will() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let frames = shared(3);
        frames[1].write(0, b"image");
        let mut space = space(Limits::DEFAULT);
        let start = 0x3f_ffe0_0000;
        let range = start..start + 3 * PAGE_SIZE;
        let fixed = Placement::Fixed(start);
        let refused =
            space.map_shared(fixed, frames.clone(), Sharing::ReadOnly, Protection::ReadWrite, "image").map(|_| ());
        assert_eq!(refused, Err(MapError::Forbidden));
        let (_, flush) =
            space.map_shared(fixed, frames.clone(), Sharing::ReadOnly, Protection::ReadExecute, "image").expect("free");
        flush.after(|_| unreachable!("nothing was mapped"));
        let mut bytes = [0; 5];
        space.copy_in(start + PAGE_SIZE, &mut bytes).expect("readable");
        assert_eq!(&bytes, b"image");
        assert_eq!(space.copy_out(start, b"x"), Err(Fault::Protection));
        assert_eq!(space.fault(start, Access::Write), Err(Fault::Protection));
        assert_eq!(space.protect(range.clone(), Protection::ReadWrite).map(|_| ()), Err(MapError::Forbidden));
        assert_eq!(space.resident_frames(), 0);
        // Taking the middle out splits the region, and gives the share back after the flush.
        let flush = space.unmap(start + PAGE_SIZE..start + 2 * PAGE_SIZE).expect("mapped");
        assert_eq!(frames[1].shares(), 2);
        flush.after(|_| unreachable!("no hart has entered"));
        assert_eq!(frames[1].shares(), 1);
        assert_eq!(space.regions().count(), 2);
        assert_eq!(space.copy_in(start + PAGE_SIZE, &mut bytes), Err(Fault::NotMapped));
        frames[2].write(0, b"third");
        space.copy_in(start + 2 * PAGE_SIZE, &mut bytes).expect("readable");
        assert_eq!(&bytes, b"third");
        // Without access and back again.
        space.protect(start..start + PAGE_SIZE, Protection::None).expect("mapped").after(|_| ());
        assert_eq!(space.copy_in(start, &mut bytes), Err(Fault::Protection));
        space.protect(start..start + PAGE_SIZE, Protection::Read).expect("mapped").after(|_| ());
        assert_eq!(space.copy_in(start, &mut bytes), Ok(()));
        drop(space);
        assert!(frames.iter().all(|frame| frame.shares() == 1));
    }
    assert_eq!(frames::free_frames(), before);
}

fn map_registers(space: &mut AddressSpace, at: u64) -> Result<(), MapError> {
    space.map_device(Placement::Anywhere, at..at + PAGE_SIZE, Protection::ReadWrite, "device").map(|_| ())
}

#[test]
fn devices_are_mapped_for_programs_only() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let registers = 0x1000_0000..0x1000_2000;
    assert_eq!(permit_devices(std::slice::from_ref(&(0x1000_0000..fake::BASE + (8 << 20)))), Err(InvalidDevices));
    assert_eq!(map_registers(&mut space, registers.start), Err(MapError::Forbidden));
    assert_eq!(permit_devices(std::slice::from_ref(&registers)), Ok(()));
    let memory = Frame::allocate_zeroed().expect("there is memory").physical_address();
    let map = |space: &mut AddressSpace, at: u64, protection| {
        space.map_device(Placement::Anywhere, at..at + 2 * PAGE_SIZE, protection, "device").map(|(start, _)| start)
    };
    assert_eq!(map(&mut space, memory - PAGE_SIZE, Protection::ReadWrite), Err(MapError::Forbidden));
    assert_eq!(map(&mut space, 0x1000_0000, Protection::ReadExecute), Err(MapError::Forbidden));
    let start = map(&mut space, 0x1000_0000, Protection::ReadWrite).expect("a device");
    assert_eq!(start, MAPPING_AREA.end - 2 * PAGE_SIZE);
    assert_eq!(space.fault(start + PAGE_SIZE, Access::Write), Ok(()));
    assert_eq!(space.copy_in(start + PAGE_SIZE, &mut [0; 4]), Err(Fault::Protection));
    // A part of it is the same part of the device.
    let start = map(&mut space, 0x1000_0000, Protection::ReadWrite).expect("a device");
    space.unmap(start..start + PAGE_SIZE).expect("mapped").after(|_| ());
    assert_eq!(space.fault(start + PAGE_SIZE, Access::Write), Ok(()));
}

#[test]
#[should_panic(expected = "before every hart had left it")]
fn a_space_with_harts_inside_must_not_be_dropped() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let _ = space.enter(&Identifiers::new(4), 0);
    drop(space);
}

/// A transfer that leaves the user half does not begin.
#[test]
fn transfers_lie_in_the_user_half() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let last = USER.end - PAGE_SIZE;
    anonymous(&mut space, last, 1, Protection::ReadWrite);
    anonymous(&mut space, USER.start, 1, Protection::ReadWrite);
    for (address, length, done) in
        [(last, 4096, Some(4096)), (USER.start, 8, Some(8)), (last, 4097, None), (USER.start - 1, 2, None)]
    {
        let found = space.for_each_slice(address, length, Access::Read, |bytes| bytes.len());
        assert_eq!(found, done.ok_or(Interrupted { done: 0, fault: Fault::NotMapped }), "{address:#x}");
    }
}

#[test]
fn limits_are_the_process_s_own() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let mut space = space(Limits { frames: 12, regions: 4 });
        anonymous(&mut space, 0x10_0000, 100, Protection::ReadWrite);
        let mut touched = 0;
        while space.fault(0x10_0000 + touched * PAGE_SIZE, Access::Write).is_ok() {
            touched += 1;
        }
        assert_eq!(space.fault(0x10_0000 + touched * PAGE_SIZE, Access::Write), Err(Fault::OutOfMemory));
        assert!((7..=9).contains(&touched));
        assert!(space.owned_frames() <= 12);
        let hole = |page: u64| 0x10_0000 + page * PAGE_SIZE..0x10_0000 + (page + 1) * PAGE_SIZE;
        for page in [10, 20, 30] {
            space.unmap(hole(page)).expect("within the limit").after(|_| ());
        }
        assert_eq!(space.unmap(hole(40)).map(|_| ()), Err(MapError::TooManyRegions));
        // No piece more, whatever its number.
        for pages in [hole(12), hole(11)] {
            assert_eq!(space.protect(pages, Protection::Read).map(|_| ()), Err(MapError::TooManyRegions));
        }
        let whole = hole(10).end..hole(20).start;
        space.protect(whole.clone(), Protection::Read).expect("no piece more").after(|_| ());
        space.protect(whole, Protection::ReadWrite).expect("no piece more").after(|_| ());
        let more = space.map_anonymous(Placement::Anywhere, 1, Protection::Read, "more").map(|_| ());
        assert_eq!(more, Err(MapError::TooManyRegions));
        // Replacing, and unmapping whole regions, is possible at the limit.
        let (_, flush) = space
            .map_anonymous(Placement::Fixed(0x10_0000), 10 * PAGE_SIZE, Protection::Read, "other")
            .expect("replaces");
        flush.after(|_| ());
        assert_eq!(space.resident_frames(), 0);
        space.unmap(0x10_0000..0x20_0000).expect("whole regions").after(|_| ());
        assert_eq!(space.regions().count(), 0);
        assert_eq!(space.resident_frames(), 0);
        // Empty tables stay for the next mapping, until all that they cover is unmapped.
        assert_eq!(space.owned_frames(), 3);
        space.unmap(USER.start..0x4000_0000).expect("nothing there").after(|_| ());
        assert_eq!(space.owned_frames(), 1);
        let table = 0x8020_0000..0x8040_0000;
        let gigabyte = 0x8000_0000..0xc000_0000;
        for (range, left) in [
            (table.start + PAGE_SIZE..table.end, 3),
            (table.start..table.end - PAGE_SIZE, 3),
            (table.clone(), 2),
            (gigabyte.start + PAGE_SIZE..gigabyte.end, 2),
            (gigabyte.start..gigabyte.end - PAGE_SIZE, 2),
            (gigabyte, 1),
        ] {
            anonymous(&mut space, table.start + PAGE_SIZE, 1, Protection::Read);
            space.populate(table.start + PAGE_SIZE..table.start + 2 * PAGE_SIZE).expect("there is memory");
            assert_eq!(space.owned_frames(), 4);
            space.unmap(range.clone()).expect("mapped").after(|_| ());
            assert_eq!(space.owned_frames(), left, "{range:x?}");
        }
    }
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn programs_cannot_take_the_last_frames() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let mut space = space(Limits::DEFAULT);
        anonymous(&mut space, 0x10_0000, 100_000, Protection::ReadWrite);
        let end = 0x10_0000 + 100_000 * PAGE_SIZE;
        let mut child = self::space(Limits::DEFAULT);
        let page = |index: u64| 0x10_0000 + index * PAGE_SIZE;
        for index in 0..200 {
            space.write_u64(page(index), 7).expect("there is memory");
        }
        fork(&mut space, &mut child);
        assert_eq!(space.populate(0x10_0000..end), Err(Fault::OutOfMemory));
        assert!(frames::free_frames() >= frames::total_frames() / 64 - 64);
        assert!(frames::free_frames() <= frames::total_frames() / 64 + 64);
        // Copies are pages of programs, too.
        let refused = (0..200).find(|index| child.write_u64(page(*index), 8).is_err()).expect("there is a reserve");
        assert_eq!(child.write_u64(page(refused), 8), Err(Fault::OutOfMemory));
        assert_eq!(word(&mut child, page(refused)), 7);
        assert!(Frame::allocate().is_ok());
        assert_eq!(space.copy_out(end - 8, &[1; 8]), Err(Fault::OutOfMemory));
    }
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn the_break_grows_and_shrinks() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    space.set_break_start(0x2_0001);
    let start = 0x2_1000;
    assert_eq!(space.break_end(), start);
    space.set_break(start + 100).expect("free").after(|_| ());
    // Within the page.
    space.set_break(start + 200).expect("free").after(|_| ());
    assert_eq!(space.break_end(), start + 200);
    space.copy_out(start, &[1; 4096]).expect("whole pages");
    space.set_break(start + 3 * PAGE_SIZE).expect("free").after(|_| ());
    assert_eq!(space.regions().count(), 1);
    space.copy_out(start + 2 * PAGE_SIZE, &[2; 100]).expect("mapped");
    space.set_break(start + PAGE_SIZE - 1).expect("mapped").after(|_| ());
    assert_eq!(space.copy_in(start + PAGE_SIZE, &mut [0]), Err(Fault::NotMapped));
    // A page that comes back is zero.
    space.set_break(start + 3 * PAGE_SIZE).expect("free").after(|_| ());
    assert_eq!(space.read_u64(start + 2 * PAGE_SIZE), Ok(0));
    assert_eq!(space.read_u32(start), Ok(0x0101_0101));
    anonymous(&mut space, start + 5 * PAGE_SIZE, 1, Protection::Read);
    assert_eq!(space.set_break(start + 6 * PAGE_SIZE).map(|_| ()), Err(MapError::Occupied));
    assert_eq!(space.set_break(start - 1).map(|_| ()), Err(MapError::InvalidRange));
    assert_eq!(space.set_break(u64::MAX).map(|_| ()), Err(MapError::InvalidRange));
    assert_eq!(space.break_end(), start + 3 * PAGE_SIZE);
    space.set_break(start).expect("mapped").after(|_| ());
    assert_eq!(space.regions().count(), 1);
    space.clear().after(|_| ());
    assert_eq!(space.owned_frames(), 1);
}

/// All regions and pages are removed, also without memory for a record of them, and each part is a bounded amount of
/// work.
#[test]
fn a_large_space_is_cleared_part_by_part() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let mut space = space(Limits::DEFAULT);
        anonymous(&mut space, 0x10_0000, 1500, Protection::ReadWrite);
        space.populate(0x10_0000..0x10_0000 + 1500 * PAGE_SIZE).unwrap();
        // One page under each of many tables, and empty tables.
        for table in 0..80u64 {
            let start = 0x4000_0000 + table * 0x20_0000;
            anonymous(&mut space, start, 2, Protection::Read);
            space.populate(start..start + PAGE_SIZE).unwrap();
            if table % 2 == 0 {
                space.unmap(start..start + 2 * PAGE_SIZE).unwrap().after(|_| ());
            }
        }
        let frames = shared(3);
        space
            .map_shared(Placement::Fixed(0x20_0000_0000), frames, Sharing::ReadWrite, Protection::Read, "shared")
            .unwrap()
            .1
            .after(|_| ());
        let (mut parts, mut resident) = (0, space.resident_frames());
        assert_eq!(resident, 1500 + 40);
        while let Some(flush) = space.clear_part() {
            flush.after(|_| ());
            assert!(resident - space.resident_frames() <= 256);
            resident = space.resident_frames();
            parts += 1;
        }
        assert!(parts >= 6);
        assert_eq!((resident, space.owned_frames(), space.regions().count()), (0, 1, 0));
    }
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn the_end_of_a_region_is_unmapped_without_a_split() {
    let _alone = alone();
    let mut space = space(Limits { frames: 10_000, regions: 2 });
    anonymous(&mut space, 0x10_0000, 1000, Protection::ReadWrite);
    let whole = 0x10_0000 + 10 * PAGE_SIZE..0x10_0000 + 1000 * PAGE_SIZE;
    space.populate(0x10_0000..whole.end).unwrap();
    anonymous(&mut space, 0x4000_0000, 1, Protection::ReadWrite);
    let mut rest = whole.clone();
    while !rest.is_empty() {
        let part = space.part(&rest, Edge::End);
        assert!(part.end == rest.end && part.start >= rest.start && part.end - part.start <= 256 * PAGE_SIZE);
        space.unmap_part(part.clone(), &whole).expect("no region more is needed").after(|_| ());
        rest.end = part.start;
    }
    assert_eq!(space.resident_frames(), 10);
}

/// Parts have many small regions of pages, and one of shared frames.
#[test]
fn a_part_has_many_anonymous_regions_or_one_of_shared_frames() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let page = |index: u64| 0x10_0000 + index * PAGE_SIZE;
    let share = |space: &mut AddressSpace, at: u64, pages: usize| {
        let mapped =
            space.map_shared(Placement::Fixed(at), shared(pages), Sharing::ReadWrite, Protection::Read, "shared");
        mapped.expect("there is room").1.after(|_| ());
    };
    share(&mut space, page(0), 3);
    anonymous(&mut space, page(3), 1, Protection::Read);
    anonymous(&mut space, page(5), 1, Protection::ReadWrite);
    share(&mut space, page(8), 1);
    let whole = page(0)..page(20);
    assert_eq!(space.part(&whole, Edge::Start), page(0)..page(3));
    assert_eq!(space.part(&(page(3)..page(20)), Edge::Start), page(3)..page(6));
    assert_eq!(space.part(&(page(8)..page(20)), Edge::Start), page(8)..page(9));
    assert_eq!(space.part(&(page(9)..page(20)), Edge::Start), page(9)..page(20));
    assert_eq!(space.part(&(page(1)..page(2)), Edge::Start), page(1)..page(2));
    assert_eq!(space.part(&whole, Edge::End), page(8)..page(20));
    assert_eq!(space.part(&(page(0)..page(2)), Edge::End), page(0)..page(2));
    assert_eq!(space.part(&(page(1)..page(2)), Edge::End), page(1)..page(2));
    assert_eq!(space.part(&(page(3)..page(8)), Edge::End), page(3)..page(8));
    assert_eq!(space.part(&(page(0)..page(8)), Edge::End), page(0)..page(8));
    // Regions that differ from their neighbours: as many as one part may have, and then the others.
    for index in 100..200 {
        let protection = if index % 2 == 0 { Protection::Read } else { Protection::ReadWrite };
        anonymous(&mut space, page(index), 1, protection);
    }
    assert_eq!(space.part(&(page(100)..page(200)), Edge::Start), page(100)..page(164));
    assert_eq!(space.part(&(page(164)..page(200)), Edge::Start), page(164)..page(200));
}

#[test]
fn discarded_pages_read_as_zeros() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let identifiers = Identifiers::new(16);
        let mut space = space(Limits::DEFAULT);
        let page = |index: u64| 0x10_0000 + index * PAGE_SIZE;
        anonymous(&mut space, page(1), 4, Protection::ReadWrite);
        let (_, flush) = space
            .map_shared(Placement::Fixed(page(7)), shared(2), Sharing::ReadWrite, Protection::ReadWrite, "shared")
            .expect("there is room");
        flush.after(|_| ());
        for bad in [page(0)..page(2), page(4)..page(6), page(5)..page(6)] {
            assert_eq!(space.discard(bad.clone()).map(|_| ()), Err(MapError::NotMapped), "{bad:x?}");
        }
        assert_eq!(space.discard(page(7)..page(8)).map(|_| ()), Err(MapError::Forbidden));
        for bad in [page(2)..page(2), page(3)..page(2), page(2) + 1..page(3), page(2)..page(3) - 1] {
            assert_eq!(space.discard(bad.clone()).map(|_| ()), Err(MapError::InvalidRange), "{bad:x?}");
        }
        for index in 1..5 {
            space.write_u64(page(index), index).expect("mapped");
        }
        let _ = space.enter(&identifiers, 3);
        let free = frames::free_frames();
        let mut asked = None;
        let flush = space.discard(page(2)..page(4)).expect("mapped");
        flush.after(|request| asked = Some((request.scope.clone(), request.harts)));
        assert_eq!(asked, Some((Scope::Pages(page(2)..page(4)), 0b1000)));
        assert_eq!((space.resident_frames(), frames::free_frames()), (2, free + 2));
        assert_eq!([1, 2, 3, 4].map(|index| word(&mut space, page(index))), [1, 0, 0, 4]);
        assert_eq!(space.regions().count(), 2);
        // All of the region.
        space.discard(page(1)..page(5)).expect("mapped").after(|_| ());
        assert_eq!([1, 2, 3, 4].map(|index| word(&mut space, page(index))), [0; 4]);
        space.leave(3);
    }
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn regions_that_become_equal_are_joined() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let page = |index: u64| 0x10_0000 + index * PAGE_SIZE;
    let ranges =
        |space: &AddressSpace| space.regions().map(|region| (region.range.start, region.range.end)).collect::<Vec<_>>();
    anonymous(&mut space, page(0), 9, Protection::ReadWrite);
    space.protect(page(3)..page(6), Protection::Read).expect("mapped").after(|_| ());
    assert_eq!(ranges(&space), [(page(0), page(3)), (page(3), page(6)), (page(6), page(9))]);
    space.protect(page(3)..page(6), Protection::ReadWrite).expect("mapped").after(|_| ());
    assert_eq!(ranges(&space), [(page(0), page(9))]);
    // With the one before, with the one behind, and with many.
    space.protect(page(3)..page(6), Protection::Read).expect("mapped").after(|_| ());
    space.protect(page(3)..page(4), Protection::ReadWrite).expect("mapped").after(|_| ());
    space.protect(page(5)..page(6), Protection::ReadWrite).expect("mapped").after(|_| ());
    assert_eq!(ranges(&space), [(page(0), page(4)), (page(4), page(5)), (page(5), page(9))]);
    space.protect(page(1)..page(2), Protection::None).expect("mapped").after(|_| ());
    space.protect(page(0)..page(9), Protection::Execute).expect("mapped").after(|_| ());
    assert_eq!(ranges(&space), [(page(0), page(9))]);
    // New ones with their neighbours.
    space.unmap(page(3)..page(6)).expect("mapped").after(|_| ());
    let map = |space: &mut AddressSpace, index: u64, name| {
        let mapped = space.map_anonymous(Placement::FixedIfFree(page(index)), PAGE_SIZE, Protection::Execute, name);
        mapped.expect("free").1.after(|_| ());
    };
    map(&mut space, 3, "data");
    assert_eq!(ranges(&space), [(page(0), page(4)), (page(6), page(9))]);
    map(&mut space, 5, "data");
    assert_eq!(ranges(&space), [(page(0), page(4)), (page(5), page(9))]);
    map(&mut space, 4, "data");
    assert_eq!(ranges(&space), [(page(0), page(9))]);
    map(&mut space, 9, "other");
    assert_eq!(ranges(&space), [(page(0), page(9)), (page(9), page(10))]);
}

/// A page that was only read is made executable by its first execution, also after a copy has got a share in it.
#[test]
fn a_shared_page_becomes_executable_alone() {
    let _alone = alone();
    let (mut parent, mut child) = (space(Limits::DEFAULT), space(Limits::DEFAULT));
    let start = 0x10_0000;
    anonymous(&mut parent, start, 3, Protection::ReadExecute);
    parent.copy_in(start, &mut vec![0; 3 * PAGE_SIZE as usize]).expect("mapped");
    let identifiers = Identifiers::new(4);
    let _ = parent.enter(&identifiers, 0);
    assert_eq!(fork(&mut parent, &mut child), 0, "no page was writable");
    for page in [1, 0, 2] {
        for harts in [1, 0] {
            assert_eq!(parent.fault(start + page * PAGE_SIZE + 8, Access::Execute), Ok(()));
            assert_eq!(parent.harts_to_synchronise(), harts, "page {page}");
        }
    }
    parent.leave(0);
}

#[test]
fn ranges_are_of_whole_pages_of_the_user_half() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let (first, last) = (USER.start, USER.end - PAGE_SIZE);
    for good in [first..first + PAGE_SIZE, last..USER.end, USER] {
        assert!(space.unmap(good.clone()).is_ok(), "{good:x?}");
    }
    for bad in [
        first..first,
        first + PAGE_SIZE..first,
        first - PAGE_SIZE..first,
        first - PAGE_SIZE..first + PAGE_SIZE,
        last..USER.end + PAGE_SIZE,
        USER.end..USER.end + PAGE_SIZE,
        first + 1..first + PAGE_SIZE,
        first..first + PAGE_SIZE + 1,
        first..u64::MAX,
    ] {
        assert_eq!(space.unmap(bad.clone()).map(|_| ()), Err(MapError::InvalidRange), "{bad:x?}");
        assert_eq!(space.protect(bad.clone(), Protection::Read).map(|_| ()), Err(MapError::InvalidRange), "{bad:x?}");
    }
}

#[test]
fn mappings_begin_below_the_top_that_was_set() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let anywhere = |space: &mut AddressSpace, pages: u64| {
        let mapped = space.map_anonymous(Placement::Anywhere, pages * PAGE_SIZE, Protection::Read, "");
        mapped.map(|(start, flush)| {
            flush.after(|_| ());
            start
        })
    };
    let top = 0x24_1234_5000;
    // One region lies across the top, and one above it, as stacks and shared pages do.
    anonymous(&mut space, top - PAGE_SIZE, 3, Protection::Read);
    anonymous(&mut space, top + 9 * PAGE_SIZE, 1, Protection::Read);
    space.set_mapping_top(top + 5);
    assert_eq!(anywhere(&mut space, 2), Ok(top - 3 * PAGE_SIZE));
    assert_eq!(anywhere(&mut space, 1), Ok(top - 4 * PAGE_SIZE));
    // Freed addresses are used again, up to the top and no further.
    space.unmap(top - PAGE_SIZE..top + 10 * PAGE_SIZE).expect("mapped").after(|_| ());
    assert_eq!(anywhere(&mut space, 2), Ok(top - 6 * PAGE_SIZE));
    assert_eq!(anywhere(&mut space, 1), Ok(top - PAGE_SIZE));
    // The break grows up to it.
    space.set_break_start(top);
    assert!(space.set_break(top).is_ok());
    assert_eq!(space.set_break(top + 1).map(|_| ()), Err(MapError::InvalidRange));
    space.set_break_start(top - 100 * PAGE_SIZE);
    assert_eq!(space.set_break(top + 1).map(|_| ()), Err(MapError::InvalidRange));
    // Another program has a top of its own; nonsense means the ends of the area.
    space.clear().after(|_| ());
    space.set_mapping_top(u64::MAX);
    assert_eq!(anywhere(&mut space, 1), Ok(MAPPING_AREA.end - PAGE_SIZE));
    space.clear().after(|_| ());
    space.set_mapping_top(0);
    assert_eq!(anywhere(&mut space, 1), Err(MapError::NoSpace));
}

#[test]
fn only_harts_inside_are_asked_to_flush() {
    let _alone = alone();
    let before = frames::free_frames();
    let identifiers = Identifiers::new(16);
    {
        let (mut space, mut other) = (space(Limits::DEFAULT), space(Limits::DEFAULT));
        assert_eq!(space.identifier(), 0);
        // The other one's identifier is the first.
        let _ = other.enter(&identifiers, 0);
        other.leave(0);
        let page = |index: u64| 0x10_0000 + index * PAGE_SIZE..0x10_0000 + (index + 1) * PAGE_SIZE;
        anonymous(&mut space, 0x10_0000, 10, Protection::ReadWrite);
        space.populate(0x10_0000..0x10_0000 + 10 * PAGE_SIZE).expect("there is memory");
        let entry = space.enter(&identifiers, 0);
        assert_eq!(entry.satp() >> 60, 8);
        assert_eq!(entry.satp() >> 44 & 0xffff, u64::from(entry.identifier));
        assert_eq!(entry.satp() << 20 >> 8, space.root_address());
        assert_eq!(space.enter(&identifiers, 2).identifier, entry.identifier);
        assert_eq!(space.identifier(), entry.identifier);
        let mut seen = None;
        space.unmap(page(0)).expect("mapped").after(|request| {
            let FlushRequest { scope, identifier, harts, fetching_harts, root: _ } = request;
            seen = Some(((*scope).clone(), *identifier, *harts, *fetching_harts));
        });
        assert_eq!(seen, Some((Scope::Pages(page(0)), entry.identifier, 0b101, 0)));
        // A hart that left is not disturbed, and flushes when it comes back.
        space.leave(2);
        let mut harts = 0;
        space.protect(page(1), Protection::Read).expect("mapped").after(|request| harts = request.harts);
        assert_eq!(harts, 0b001);
        assert_eq!(space.enter(&identifiers, 2).flush, LocalFlush::Identifier(entry.identifier));
        space.leave(2);
        assert_eq!(space.enter(&identifiers, 2).flush, LocalFlush::Nothing);
        assert_eq!(space.active_harts(), 0b101);
        // One that was told, or has never been there, has nothing to flush.
        let _ = other.enter(&identifiers, 5);
        other.leave(5);
        space.protect(page(3), Protection::Read).expect("mapped").after(|_| ());
        for hart in [0, 2, 5] {
            assert_eq!(space.enter(&identifiers, hart).flush, LocalFlush::Nothing, "hart {hart}");
        }
        space.leave(5);
        // No hart knows a page without access.
        space.protect(page(4), Protection::None).expect("mapped").after(|_| ());
        space.protect(page(4), Protection::Read).expect("mapped").after(|_| unreachable!("no hart knows it"));
        space.protect(page(4), Protection::None).expect("mapped").after(|_| ());
        space.unmap(page(4)).expect("mapped").after(|_| unreachable!("no hart knows it"));
        // The frames stay until the flush is done.
        let free = frames::free_frames();
        let flush = space.unmap(page(2)).expect("mapped");
        assert!(!flush.is_empty());
        assert_eq!(frames::free_frames(), free);
        flush.after(|_| assert_eq!(frames::free_frames(), free));
        assert_eq!(frames::free_frames(), free + 1);
        space.leave(0);
        space.leave(2);
    }
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn harts_look_at_instructions_anew_when_there_are_some() {
    let _alone = alone();
    let identifiers = Identifiers::new(16);
    let mut space = space(Limits::DEFAULT);
    let page = |index: u64| 0x10_0000 + index * PAGE_SIZE..0x10_0000 + (index + 1) * PAGE_SIZE;
    let told = |flush: memory::space::Flush| {
        let mut harts = 0;
        flush.after(|request| harts = request.fetching_harts);
        harts
    };
    anonymous(&mut space, page(0).start, 8, Protection::ReadWrite);
    space.populate(page(0)).expect("there is memory");
    assert_eq!(space.enter(&identifiers, 0).instructions, Instructions::Known);
    assert_eq!(space.enter(&identifiers, 1).instructions, Instructions::Known);
    space.leave(1);
    assert_eq!(told(space.protect(page(0), Protection::Read).expect("mapped")), 0);
    // Harts in the space are told at once, others when they enter, and each once.
    assert_eq!(told(space.protect(page(0), Protection::ReadExecute).expect("mapped")), 0b1);
    assert_eq!(space.enter(&identifiers, 0).instructions, Instructions::Known);
    for hart in [1, 2] {
        assert_eq!(space.enter(&identifiers, hart).instructions, Instructions::Changed);
        assert_eq!(space.enter(&identifiers, hart).instructions, Instructions::Known);
    }
    // A page that was only read is not executable before a program executes it.
    assert_eq!(told(space.protect(page(1), Protection::ReadExecute).expect("mapped")), 0b111);
    space.copy_in(page(1).start, &mut [1; 8]).expect("mapped");
    assert_eq!(space.harts_to_synchronise(), 0);
    assert_eq!(space.fault(page(1).start, Access::Read), Ok(()));
    assert_eq!(space.harts_to_synchronise(), 0);
    space.leave(2);
    assert_eq!(space.fault(page(1).start, Access::Execute), Ok(()));
    assert_eq!(space.harts_to_synchronise(), 0b11);
    assert_eq!(space.fault(page(1).start, Access::Execute), Ok(()));
    assert_eq!(space.harts_to_synchronise(), 0);
    assert_eq!(space.enter(&identifiers, 2).instructions, Instructions::Changed);
    assert_eq!(space.resident_frames(), 2);
    // So is one that is made by its first execution.
    assert_eq!(told(space.protect(page(2), Protection::Execute).expect("mapped")), 0b111);
    assert_eq!(space.fault(page(2).start, Access::Execute), Ok(()));
    assert_eq!((space.harts_to_synchronise(), space.resident_frames()), (0b111, 3));
    let (_, flush) = space
        .map_shared(Placement::Anywhere, shared(1), Sharing::ReadOnly, Protection::ReadExecute, "image")
        .expect("there is room");
    assert_eq!(told(flush), 0b111);
    let (_, flush) = space
        .map_shared(Placement::Anywhere, shared(1), Sharing::ReadOnly, Protection::Read, "data")
        .expect("there is room");
    assert_eq!(told(flush), 0);
    for hart in 0..3 {
        space.leave(hart);
    }
}

#[test]
fn a_flush_that_is_forgotten_leaks() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let identifiers = Identifiers::new(16);
        let mut space = space(Limits::DEFAULT);
        anonymous(&mut space, 0x10_0000, 1, Protection::ReadWrite);
        space.populate(0x10_0000..0x10_1000).expect("there is memory");
        let _ = space.enter(&identifiers, 0);
        drop(space.unmap(0x10_0000..0x10_1000));
        space.leave(0);
    }
    assert_eq!(frames::free_frames(), before - 1);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Anonymous,
    Shared(Sharing),
}

/// A page of the model.
#[derive(Clone, Debug)]
struct Page {
    kind: Kind,
    protection: Protection,
    mark: u8,
    /// Frame of a shared page.
    frame: Option<SharedFrame>,
}

#[derive(Clone, Debug)]
enum Step {
    Anonymous { start: u64, pages: u64, protection: usize, placement: usize },
    Shared { start: u64, pages: u64, protection: usize, writable: bool },
    Unmap { start: u64, pages: u64 },
    Protect { start: u64, pages: u64, protection: usize },
    Write { page: u64, mark: u8 },
    Copy { start: u64, pages: u64, access: bool },
    Touch { page: u64 },
    UnmapInParts { start: u64, pages: u64 },
}

const WINDOW: u64 = 48;
/// Half of the window below a border of the middle tables.
const BASE: u64 = 0x4000_0000 - WINDOW / 2 * PAGE_SIZE;
const PROTECTIONS: [Protection; 5] =
    [Protection::ReadWrite, Protection::Read, Protection::None, Protection::Execute, Protection::ReadExecute];

fn step() -> impl Strategy<Value = Step> {
    // The middle of the window is a border of tables, and so are the ends of some runs.
    let page = || property::edges(0..WINDOW, &[WINDOW / 2]);
    let run = move || (page(), property::edges(1..12u64, &[]));
    prop_oneof![
        3 => (run(), 0..5usize, 0..3usize).prop_map(|((start, pages), protection, placement)| {
            Step::Anonymous { start, pages, protection, placement }
        }),
        1 => (run(), 0..5usize, any::<bool>()).prop_map(|((start, pages), protection, writable)| {
            Step::Shared { start, pages, protection, writable }
        }),
        2 => run().prop_map(|(start, pages)| Step::Unmap { start, pages }),
        2 => run().prop_map(|(start, pages)| Step::UnmapInParts { start, pages }),
        2 => (run(), 0..5usize).prop_map(|((start, pages), protection)| Step::Protect { start, pages, protection }),
        4 => (page(), 1u8..255).prop_map(|(page, mark)| Step::Write { page, mark }),
        2 => (run(), any::<bool>()).prop_map(|((start, pages), access)| Step::Copy { start, pages, access }),
        1 => page().prop_map(|page| Step::Touch { page }),
    ]
}

/// Any number; often one at the borders of pages, of tables and of the halves of the address space.
fn wild() -> impl Strategy<Value = u64> {
    let borders =
        [PAGE_SIZE, 0x20_0000, 0x4000_0000, USER.start, USER.end, 0xffff_ffc0_0000_0000, u64::MAX - PAGE_SIZE];
    property::edges(0..u64::MAX, &borders)
}

fn at(page: u64) -> u64 {
    BASE + page * PAGE_SIZE
}

proptest! {
    #![proptest_config(property::cases(256))]

    #[test]
    fn a_space_behaves_like_its_pages(steps in prop::collection::vec(step(), 1..150)) {
        let _alone = alone();
        let before = frames::free_frames();
        {
            let identifiers = Identifiers::new(8);
            let mut space = space(Limits { frames: 10_000, regions: 24 });
            let mut model = BTreeMap::<u64, Page>::new();
            let _ = space.enter(&identifiers, 0);
            for step in steps {
                let mut full = false;
                match step {
                    Step::Anonymous { start, pages, protection, placement } => {
                        let protection = PROTECTIONS[protection];
                        let taken = (start..start + pages).any(|page| model.contains_key(&page));
                        let placement = match placement {
                            0 => Placement::Fixed(at(start)),
                            1 => Placement::FixedIfFree(at(start)),
                            _ => Placement::Near(at(start) + 1),
                        };
                        let length = pages * PAGE_SIZE - 7;
                        match space.map_anonymous(placement, length, protection, "anonymous") {
                            Ok((found, flush)) => {
                                flush.after(|_| ());
                                if found == at(start) {
                                    prop_assert!(!taken || matches!(placement, Placement::Fixed(_)));
                                    for page in start..start + pages {
                                        let kind = Kind::Anonymous;
                                        model.insert(page, Page { kind, protection, mark: 0, frame: None });
                                    }
                                } else {
                                    prop_assert!(taken && matches!(placement, Placement::Near(_)));
                                    prop_assert!(found >= MAPPING_AREA.end - 1000 * PAGE_SIZE);
                                    let length = pages * PAGE_SIZE;
                                    space.unmap(found..found + length).expect("whole").after(|_| ());
                                }
                            }
                            Err(MapError::Occupied) => {
                                prop_assert!(taken && matches!(placement, Placement::FixedIfFree(_)));
                            }
                            Err(MapError::TooManyRegions) => full = true,
                            Err(error) => prop_assert!(false, "{error}"),
                        }
                    }
                    Step::Shared { start, pages, protection, writable } => {
                        let protection = PROTECTIONS[protection];
                        let sharing = if writable { Sharing::ReadWrite } else { Sharing::ReadOnly };
                        let frames = shared(pages as usize);
                        let placement = Placement::Fixed(at(start));
                        match space.map_shared(placement, frames.clone(), sharing, protection, "shared") {
                            Ok((found, flush)) => {
                                flush.after(|_| ());
                                prop_assert_eq!(found, at(start));
                                for (page, frame) in (start..).zip(frames) {
                                    let (kind, frame) = (Kind::Shared(sharing), Some(frame));
                                    model.insert(page, Page { kind, protection, mark: 0, frame });
                                }
                            }
                            Err(MapError::Forbidden) => {
                                prop_assert!(!writable && protection == Protection::ReadWrite);
                            }
                            Err(MapError::TooManyRegions) => full = true,
                            Err(error) => prop_assert!(false, "{error}"),
                        }
                    }
                    Step::UnmapInParts { start, pages } => {
                        let whole = at(start)..at(start + pages);
                        let mut rest = whole.clone();
                        while rest.start < rest.end {
                            let part = space.part(&rest, Edge::Start);
                            prop_assert!(part.start == rest.start && part.start < part.end && part.end <= rest.end);
                            match space.unmap_part(part.clone(), &whole) {
                                Ok(flush) => flush.after(|_| ()),
                                Err(error) => {
                                    prop_assert_eq!((error, part.start), (MapError::TooManyRegions, whole.start));
                                    full = true;
                                    break;
                                }
                            }
                            rest.start = part.end;
                        }
                        model.retain(|page, _| !(whole.start..rest.start).contains(&at(*page)));
                    }
                    Step::Unmap { start, pages } => match space.unmap(at(start)..at(start + pages)) {
                        Ok(flush) => {
                            flush.after(|_| ());
                            model.retain(|page, _| !(start..start + pages).contains(page));
                        }
                        Err(error) => {
                            prop_assert_eq!(error, MapError::TooManyRegions);
                            full = true;
                        }
                    },
                    Step::Protect { start, pages, protection } => {
                        let protection = PROTECTIONS[protection];
                        let result = space.protect(at(start)..at(start + pages), protection);
                        let all = (start..start + pages).all(|page| model.contains_key(&page));
                        let writes = protection == Protection::ReadWrite;
                        let refused = model
                            .range(start..start + pages)
                            .any(|(_, page)| writes && page.kind == Kind::Shared(Sharing::ReadOnly));
                        match result {
                            Ok(flush) => {
                                flush.after(|_| ());
                                prop_assert!(all && !refused);
                                for (_, page) in model.range_mut(start..start + pages) {
                                    page.protection = protection;
                                }
                            }
                            Err(MapError::NotMapped) => prop_assert!(!all),
                            Err(MapError::Forbidden) => prop_assert!(refused),
                            Err(MapError::TooManyRegions) => full = true,
                            Err(error) => prop_assert!(false, "{error}"),
                        }
                    }
                    Step::Write { page, mark } => {
                        let result = space.copy_out(at(page) + 9, &[mark; 3]);
                        match model.get_mut(&page) {
                            None => prop_assert_eq!(result, Err(Fault::NotMapped)),
                            Some(page) if page.protection == Protection::ReadWrite => {
                                prop_assert_eq!(result, Ok(()));
                                page.mark = mark;
                            }
                            Some(_) => prop_assert_eq!(result, Err(Fault::Protection)),
                        }
                    }
                    Step::Copy { start, pages, access } => {
                        let access = if access { Access::Read } else { Access::Write };
                        let first = (start..start + pages)
                            .find(|page| model.get(page).is_none_or(|page| !page.protection.allows(access)));
                        let length = (pages * PAGE_SIZE) as usize;
                        let mut marks = Vec::new();
                        let result = space.for_each_slice(at(start), length, access, |bytes| {
                            marks.push(bytes.byte(10).expect("a whole page"));
                            bytes.len()
                        });
                        let expected = match first {
                            None => Ok(length),
                            Some(page) => Err(Interrupted {
                                done: ((page - start) * PAGE_SIZE) as usize,
                                fault: if model.contains_key(&page) { Fault::Protection } else { Fault::NotMapped },
                            }),
                        };
                        prop_assert_eq!(result, expected);
                        let known: Vec<u8> =
                            model.range(start..).take(marks.len()).map(|(_, page)| page.mark).collect();
                        prop_assert_eq!(marks, known);
                    }
                    Step::Touch { page } => {
                        for access in [Access::Read, Access::Write, Access::Execute] {
                            let expected = match model.get(&page) {
                                None => Err(Fault::NotMapped),
                                Some(page) if page.protection.allows(access) => Ok(()),
                                Some(_) => Err(Fault::Protection),
                            };
                            prop_assert_eq!(space.fault(at(page) + 77, access), expected);
                        }
                    }
                }
                if full {
                    // At the limit, or just below it with two splits to make.
                    prop_assert!(space.regions().count() + 2 >= 24);
                }
                // Sorted, not empty, not overlapping, and page for page as in the model.
                let regions = space.regions().collect::<Vec<_>>();
                prop_assert!(regions.len() <= 24);
                let mut end = 0;
                let mut pages = 0;
                for region in &regions {
                    prop_assert!(region.range.start >= end && region.range.start < region.range.end);
                    end = region.range.end;
                    for address in region.range.clone().step_by(4096) {
                        let page = &model[&((address - BASE) / PAGE_SIZE)];
                        prop_assert_eq!(page.protection, region.protection);
                        prop_assert_eq!(page.kind == Kind::Anonymous, region.name == "anonymous");
                        pages += 1;
                    }
                }
                prop_assert_eq!(pages, model.len());
                let own = model.values().filter(|page| page.kind == Kind::Anonymous).count();
                prop_assert!(space.resident_frames() <= own);
                // Shared frames contain the bytes written through the mapping, each by its own page.
                for page in model.values() {
                    if let Some(frame) = &page.frame {
                        prop_assert_eq!(frame.bytes().byte(10), Some(page.mark));
                        prop_assert_eq!(frame.shares(), 2);
                    }
                }
            }
            space.leave(0);
        }
        prop_assert_eq!(frames::free_frames(), before);
    }

    /// For any arguments of a program, the answer is an error or a copy.
    #[test]
    fn no_address_is_too_wild(
        calls in prop::collection::vec((wild(), 0u32..64, wild(), 0u32..64, 0..8usize), 1..60),
    ) {
        let _alone = alone();
        let before = frames::free_frames();
        {
            let mut space = space(Limits { frames: 200, regions: 50 });
            let mut buffer = vec![0; 10_000];
            for (address, small, length, short, call) in calls {
                let (address, length) = (address >> small, length >> short);
                let page = address & !0xfff;
                let range = page..page.saturating_add(length & !0xfff);
                let size = length as usize % 10_000;
                let protection = PROTECTIONS[length as usize % 5];
                let flush = match call {
                    0 => space.map_anonymous(Placement::Fixed(page), length, protection, "a").map(|(_, flush)| flush),
                    1 => space.map_anonymous(Placement::Near(address), length, protection, "b").map(|(_, flush)| flush),
                    2 => space.unmap(range),
                    3 => space.protect(range, protection),
                    4 => {
                        let _ = space.copy_in(address, &mut buffer[..size]);
                        let _ = space.copy_in_string(address, size);
                        Err(MapError::NotMapped)
                    }
                    5 => {
                        let _ = space.copy_out(address, &buffer[..size]);
                        let _ = space.write_u64(address, length);
                        Err(MapError::NotMapped)
                    }
                    6 => {
                        let _ = space.fault(address, Access::Write);
                        let _ = space.compare_exchange_u32(address, 0, 1);
                        Err(MapError::NotMapped)
                    }
                    _ => space.set_break(address),
                };
                if let Ok(flush) = flush {
                    flush.after(|_| ());
                }
                prop_assert!(space.owned_frames() <= 200);
            }
        }
        prop_assert_eq!(frames::free_frames(), before);
    }
}

proptest! {
    #![proptest_config(property::cases(256))]

    /// After any history, the search finds the highest range that is long enough.
    #[test]
    fn the_highest_free_range_is_found(
        steps in prop::collection::vec((any::<bool>(), 1u64..6, any::<prop::sample::Index>(), 1u64..4), 1..120),
    ) {
        let _alone = alone();
        let mut space = space(Limits::DEFAULT);
        // The pages that are mapped, counted from the end of the mapping area.
        let mut taken = BTreeSet::new();
        for (map, pages, which, count) in steps {
            if map || taken.is_empty() {
                let placed = space.map_anonymous(
                    Placement::Anywhere,
                    pages * PAGE_SIZE,
                    Protection::ReadWrite,
                    "found",
                );
                let (found, flush) = placed.expect("there is room");
                flush.after(|_| ());
                let from_end = (MAPPING_AREA.end - found) / PAGE_SIZE;
                let expected = (pages..).find(|last| (last - pages..*last).all(|page| !taken.contains(&page)));
                prop_assert_eq!(Some(from_end), expected);
                taken.extend(from_end - pages..from_end);
            } else {
                let from = *which.get(&taken.iter().copied().collect::<Vec<u64>>());
                let start = MAPPING_AREA.end - (from + 1) * PAGE_SIZE;
                let end = (start + count * PAGE_SIZE).min(MAPPING_AREA.end);
                space.unmap(start..end).expect("in the area").after(|_| ());
                for page in (MAPPING_AREA.end - end) / PAGE_SIZE..=from {
                    taken.remove(&page);
                }
            }
        }
    }
}

/// An owner that may have so many bytes, and counts them.
struct Purse {
    left: AtomicUsize,
    freed: Arc<AtomicUsize>,
}

impl Payer for Purse {
    fn pay(&self, bytes: usize) -> Result<(), OutOfMemory> {
        let taken = self.left.load(Ordering::Relaxed).checked_sub(bytes).ok_or(OutOfMemory)?;
        self.left.store(taken, Ordering::Relaxed);
        Ok(())
    }

    fn repay(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }

    fn free(self: Box<Self>, mut pages: ObjectPages) {
        while pages.free_some() {
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn object(absent: Absent, bytes: usize) -> (Arc<MemoryObject>, Arc<AtomicUsize>) {
    let freed = Arc::new(AtomicUsize::new(0));
    let purse = Box::new(Purse { left: AtomicUsize::new(bytes), freed: freed.clone() });
    (Arc::new(MemoryObject::new(absent, purse, Arc::new(7u32))), freed)
}

fn map_object(
    space: &mut AddressSpace,
    start: u64,
    pages: u64,
    object: &Arc<MemoryObject>,
    (first, sharing): (u64, Sharing),
) -> Result<(), MapError> {
    let object = ObjectUse { object: object.clone(), first, sharing, keeps: None };
    let (placement, length) = (Placement::FixedIfFree(start), pages * PAGE_SIZE);
    let mapped = space.map_object(placement, length, &object, Protection::ReadWrite, "object");
    mapped.map(|(_, flush)| flush.after(|_| unreachable!("nothing was mapped")))
}

#[test]
fn an_object_s_pages_are_those_of_all_its_mappings_and_go_with_the_last() {
    let _alone = alone();
    let before = frames::free_frames();
    let (start, other) = (0x10_0000, 0x50_0000);
    let (object, freed) = object(Absent::Zeros(1024), 1 << 20);
    {
        let (mut first, mut second) = (space(Limits::DEFAULT), space(Limits::DEFAULT));
        let read_only = map_object(&mut first, other, 4, &object, (0, Sharing::ReadOnly));
        assert_eq!(read_only, Err(MapError::Forbidden));
        map_object(&mut first, start, 600, &object, (2, Sharing::ReadWrite)).expect("free");
        assert_eq!(map_object(&mut first, start, 1, &object, (0, Sharing::ReadWrite)), Err(MapError::Occupied));
        first.copy_out(start + 8, b"from the first").expect("mapped");
        fork(&mut first, &mut second);
        map_object(&mut second, other, 4, &object, (0, Sharing::ReadWrite)).expect("free");
        let mut bytes = [0; 14];
        second.copy_in(start + 8, &mut bytes).expect("mapped");
        assert_eq!(&bytes, b"from the first");
        second.copy_out(other + 2 * PAGE_SIZE + 8, b"and the second").expect("mapped");
        first.copy_in(start + 8, &mut bytes).expect("mapped");
        assert_eq!(&bytes, b"and the second");
        let at = first.object_at(start + 5 * PAGE_SIZE + 12).map(|(_, distance)| distance);
        assert_eq!((at, first.object_at(other).is_some()), (Some(7 * PAGE_SIZE + 12), false));
        assert_eq!((first.resident_frames(), second.resident_frames()), (0, 0));
        // Without its middle and its ends the rest shows what it has shown.
        first.copy_out(start + 599 * PAGE_SIZE, b"last").expect("mapped");
        for gone in [start..start + PAGE_SIZE, start + 9 * PAGE_SIZE..start + 11 * PAGE_SIZE] {
            first.unmap(gone).expect("whole pages").after(|_| ());
        }
        let mut word = [0; 4];
        first.copy_in(start + 599 * PAGE_SIZE, &mut word).expect("mapped");
        assert_eq!(&word, b"last");
        let at = [1, 8, 11].map(|page| first.object_at(start + page * PAGE_SIZE).map(|(_, distance)| distance));
        assert_eq!(at, [3, 10, 13].map(|page| Some(page * PAGE_SIZE)));
        assert_eq!(first.fault(start, Access::Read), Err(Fault::NotMapped));
        first.clear().after(|_| ());
        second.copy_in(start + 599 * PAGE_SIZE, &mut word).expect("mapped");
        assert_eq!(&word, b"last");
        while let Some(part) = second.clear_part() {
            part.after(|_| ());
        }
    }
    assert_eq!((Arc::strong_count(&object), freed.load(Ordering::Relaxed)), (1, 0));
    assert!(object.companion().downcast_ref::<u32>() == Some(&7));
    drop(object);
    // A step frees one chunk of neighbours: the pages that were touched are at the start and at the end.
    assert_eq!((freed.load(Ordering::Relaxed), frames::free_frames()), (2, before));
}

/// An object that becomes shorter keeps its frames, and no space reaches those behind its end.
#[test]
fn pages_behind_the_end_of_an_object_leave_the_spaces_that_had_them() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let (start, other) = (0x10_0000, 0x50_0000);
        let (object, _) = object(Absent::Zeros(2048), 4 << 20);
        let (mut first, mut second) = (space(Limits::DEFAULT), space(Limits::DEFAULT));
        map_object(&mut first, start, 700, &object, (0, Sharing::ReadWrite)).expect("free");
        map_object(&mut first, other, 4, &object, (2, Sharing::ReadWrite)).expect("free");
        fork(&mut first, &mut second);
        for space in [&mut first, &mut second] {
            for page in [0, 2, 3, 5, 600, 699] {
                space.copy_out(start + page * PAGE_SIZE, b"x").expect("mapped");
            }
            space.copy_out(other + 2 * PAGE_SIZE, b"y").expect("mapped");
        }
        assert!(object.set_end(3), "there were more");
        assert!(!object.set_end(3));
        for space in [&mut first, &mut second] {
            let (mut from, mut steps) = (0, 0);
            loop {
                let (flush, next) = space.leave_lost_pages(&object, from);
                flush.after(|_| ());
                steps += 1;
                match next {
                    Some(next) => from = next,
                    None => break,
                }
            }
            assert!(steps > 2, "700 pages are not left at once");
            let mut byte = [0];
            for page in [0, 2] {
                assert_eq!(space.copy_in(start + page * PAGE_SIZE, &mut byte), Ok(()));
                assert_eq!(&byte, b"x");
            }
            let lost = [(start, 3), (start, 5), (start, 600), (start, 699), (other, 1), (other, 2)];
            for address in lost.map(|(start, page)| start + page * PAGE_SIZE) {
                for access in [Access::Read, Access::Write] {
                    assert_eq!(space.fault(address, access), Err(Fault::BeyondTheEnd));
                }
                assert_eq!(space.copy_out(address, b"z"), Err(Fault::BeyondTheEnd));
            }
        }
        let mut page = Some(3);
        while let Some(from) = page {
            page = object.zero_behind_the_end(from);
        }
        // Pages that come back are zeros, and the same for all.
        assert!(!object.set_end(6));
        let mut byte = [1];
        first.copy_in(start + 5 * PAGE_SIZE, &mut byte).expect("it is there again");
        assert_eq!(byte, [0]);
        first.copy_out(start + 4 * PAGE_SIZE, b"n").expect("it is there again");
        second.copy_in(other + 2 * PAGE_SIZE, &mut byte).expect("it is there again");
        assert_eq!(&byte, b"n");
        assert_eq!(second.fault(start + 6 * PAGE_SIZE, Access::Read), Err(Fault::BeyondTheEnd));
        for mut space in [first, second] {
            while let Some(part) = space.clear_part() {
                part.after(|_| ());
            }
        }
    }
    assert_eq!(frames::free_frames(), before);
}

/// A page that is elsewhere is fetched before it is touched, by the program and by the kernel.
#[test]
fn pages_that_are_elsewhere_are_told_and_missed() {
    let _alone = alone();
    let before = frames::free_frames();
    let start = 0x10_0000;
    {
        let mut space = space(Limits::DEFAULT);
        assert!(!space.has_fetched());
        let (file, _) = object(Absent::Elsewhere, 1 << 20);
        assert!(file.set_end(6) && file.is_fetched());
        map_object(&mut space, start, 8, &file, (1, Sharing::ReadWrite)).expect("free");
        assert!(space.has_fetched());
        assert_eq!(space.fault(start + PAGE_SIZE, Access::Read), Err(Fault::Elsewhere));
        assert!(!space.has_missed(), "the kernel has touched nothing");
        assert_eq!(space.copy_out(start + 2 * PAGE_SIZE + 8, b"x"), Err(Fault::Elsewhere));
        assert!(space.has_missed());
        assert_eq!((space.take_missed(), space.take_missed()), (Some(start + 2 * PAGE_SIZE), None));
        assert_eq!(space.fault(start + 5 * PAGE_SIZE, Access::Read), Err(Fault::BeyondTheEnd), "page 6");
        // Pages that are there are not looked for, nor any behind the end or outside of the mapping.
        for page in [1, 3] {
            file.put(page).expect("there is memory").write(0, b"fetched");
        }
        let first = |space: &AddressSpace, pages: core::ops::Range<u64>| {
            let range = start + pages.start * PAGE_SIZE..start + pages.end * PAGE_SIZE;
            let found = space.first_elsewhere(range, &mut 100);
            found.map(|address| (address - start) / PAGE_SIZE)
        };
        assert_eq!(first(&space, 0..8), Some(1));
        assert_eq!((first(&space, 0..1), first(&space, 2..3)), (None, None));
        assert_eq!(first(&space, 2..6), Some(3));
        assert_eq!((first(&space, 4..5), first(&space, 5..20)), (Some(4), None));
        assert_eq!(space.first_elsewhere(start - PAGE_SIZE..start + 1, &mut 100), None);
        // No more pages are looked at than may be.
        let mut most = 3;
        assert_eq!(space.first_elsewhere(start + 2 * PAGE_SIZE..start + 20 * PAGE_SIZE, &mut 1), None);
        assert_eq!(space.first_elsewhere(start + 2 * PAGE_SIZE..start + 3 * PAGE_SIZE, &mut most), None);
        assert_eq!(space.first_elsewhere(start..start + 20 * PAGE_SIZE, &mut most), Some(start + PAGE_SIZE));
        assert_eq!((most, space.first_elsewhere(start..start + 20 * PAGE_SIZE, &mut most)), (0, None));
        let mut bytes = [0; 7];
        space.copy_in(start, &mut bytes).expect("it is there");
        assert_eq!((&bytes, space.has_missed()), (b"fetched", false));
        // A copy of the space has them too, an empty one none.
        let mut copy = AddressSpace::new(&KernelHalf::empty(), RootSize::Page, Limits::DEFAULT, record_flush)
            .expect("there is memory");
        assert_eq!(space.copy_regions(&mut copy, 0), Ok(None));
        assert!(copy.has_fetched());
        for mut space in [space, copy] {
            while let Some(part) = space.clear_part() {
                part.after(|_| ());
            }
            assert!(!space.has_fetched());
        }
    }
    assert_eq!(frames::free_frames(), before);
}

#[test]
fn pages_of_an_object_are_paid_for_and_end_where_it_ends() {
    let _alone = alone();
    let before = frames::free_frames();
    let start = 0x10_0000;
    {
        let mut space = space(Limits::DEFAULT);
        let (poor, _) = object(Absent::Zeros(4), 2 * PAGE_SIZE as usize + 1500);
        map_object(&mut space, start, 4, &poor, (0, Sharing::ReadWrite)).expect("free");
        let written: Vec<_> = (0..4).map(|page| space.copy_out(start + page * PAGE_SIZE, b"x")).collect();
        let refused = Err(Fault::OutOfMemory);
        assert_eq!(written, [Ok(()), Ok(()), refused, refused]);
        assert_eq!(space.copy_out(start, b"y"), Ok(()), "a page that is there costs nothing");
        let (file, _) = object(Absent::BeyondTheEnd, 1 << 20);
        let at = start + 0x10_0000;
        map_object(&mut space, at, 4, &file, (0, Sharing::ReadWrite)).expect("free");
        assert_eq!(space.fault(at + PAGE_SIZE, Access::Read), Err(Fault::BeyondTheEnd));
        assert!(file.present(1).is_none());
        file.put(1).expect("there is memory").write(0, b"put there");
        let mut bytes = [0; 9];
        space.copy_in(at + PAGE_SIZE, &mut bytes).expect("it is there now");
        assert_eq!(&bytes, b"put there");
        assert_eq!(space.copy_in(at, &mut bytes), Err(Fault::BeyondTheEnd));
        assert_eq!(
            (file.put(MOST_PAGES).err(), poor.page(MOST_PAGES).err()),
            (Some(OutOfMemory), Some(Fault::BeyondTheEnd))
        );
        space.clear().after(|_| ());
        let mut alone = file;
        let filled = Frame::allocate_zeroed().expect("there is memory");
        filled.write(0, b"filled");
        alone.enter(2, filled).expect("there is memory");
        let other = alone.enter(1, Frame::allocate().expect("there is memory")).expect("it is there");
        other.read(0, &mut bytes);
        assert_eq!(&bytes, b"put there", "a page that is there stays");
        let its_own = Arc::get_mut(&mut alone).expect("no space maps it");
        assert_eq!(its_own.take(0), None);
        let taken = its_own.take(2).expect("it was entered");
        taken.read(0, &mut bytes);
        assert_eq!((&bytes[..6], its_own.take(2)), (&b"filled"[..], None));
        assert_eq!(alone.present(2), None);
    }
    assert_eq!(frames::free_frames(), before);
}

/// A program that touches an object's pages far from each other makes no long list with one touch, and pays for all
/// records.
#[test]
fn pages_far_into_an_object_need_few_records_which_are_paid_for() {
    let _alone = alone();
    let before = frames::free_frames();
    const MOST: usize = 16 << 10;
    let frame = PAGE_SIZE as usize;
    let freed = Arc::new(AtomicUsize::new(0));
    let purse = Arc::new(Purse { left: AtomicUsize::new(usize::MAX / 2), freed: freed.clone() });
    let left = || purse.left.load(Ordering::Relaxed);
    let object = MemoryObject::new(Absent::Zeros(usize::MAX), Box::new(Common(purse.clone())), Arc::new(()));
    let (mut pages, mut seed) = (vec![MOST_PAGES - 1, 0, MOST_PAGES / 2, 1 << 16, (1 << 16) - 1, 1], 1u64);
    pages.extend((0..200).map(|_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 40) as usize
    }));
    for (number, &page) in pages.iter().enumerate() {
        let paid = left();
        object.page(page).expect("there is memory").write(0, &(number as u32).to_le_bytes());
        let paid = paid - left();
        assert!((frame..frame + MOST).contains(&paid), "page {page}: {paid} bytes");
        let free = left();
        object.page(page).expect("it is there");
        assert_eq!(left(), free);
    }
    for (number, &page) in pages.iter().enumerate() {
        let mut word = [0; 4];
        object.present(page).expect("it is there").read(0, &mut word);
        assert_eq!(word, (number as u32).to_le_bytes());
    }
    assert!(object.present(2).is_none() && object.present(MOST_PAGES).is_none());
    // A refusal leaves nothing behind that is not paid for.
    purse.left.store(frame + 100, Ordering::Relaxed);
    assert_eq!(object.page(3 << 20).err(), Some(Fault::OutOfMemory));
    assert_eq!(left(), frame + 100);
    assert_eq!(object.page(2).map(|_| left()), Ok(100), "its chunk is there");
    drop(object);
    let chunks: std::collections::BTreeSet<usize> = pages.iter().map(|page| page / 128).collect();
    assert_eq!((freed.load(Ordering::Relaxed), frames::free_frames()), (chunks.len(), before));
}

/// A purse that its test looks into.
struct Common(Arc<Purse>);

impl Payer for Common {
    fn pay(&self, bytes: usize) -> Result<(), OutOfMemory> {
        self.0.pay(bytes)
    }

    fn repay(&self, bytes: usize) {
        self.0.repay(bytes);
    }

    fn free(self: Box<Self>, mut pages: ObjectPages) {
        while pages.free_some() {
            self.0.freed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Mappings of one object that continue each other are one region, at either end and when protection becomes equal.
#[test]
fn mappings_of_an_object_join_if_its_pages_go_on() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let start = 0x10_0000;
    let at = |page: u64| start + page * PAGE_SIZE;
    let (object, freed) = object(Absent::Zeros(1024), 1 << 20);
    let ranges = |space: &AddressSpace| space.regions().map(|region| region.range).collect::<Vec<_>>();
    let whole = at(9)..at(14);
    for page in [10, 12, 11, 13, 9] {
        map_object(&mut space, at(page), 1, &object, (page, Sharing::ReadWrite)).expect("free");
    }
    assert_eq!(ranges(&space), std::slice::from_ref(&whole));
    assert_eq!((space.mapped_bytes(), Arc::strong_count(&object)), (5 * PAGE_SIZE, 2));
    assert_eq!(space.object_at(at(12) + 3).map(|(_, distance)| distance), Some(12 * PAGE_SIZE + 3));
    space.copy_out(at(13), b"last").expect("mapped");
    space.protect(at(11)..at(12), Protection::Read).expect("mapped").after(|_| ());
    assert_eq!(ranges(&space), [at(9)..at(11), at(11)..at(12), at(12)..at(14)]);
    assert_eq!(space.object_at(at(13)).map(|(_, distance)| distance), Some(13 * PAGE_SIZE));
    space.protect(at(11)..at(12), Protection::ReadWrite).expect("mapped").after(|_| ());
    assert_eq!(ranges(&space), std::slice::from_ref(&whole));
    // Other pages, and the same with another keeper, do not go on.
    map_object(&mut space, at(14), 1, &object, (15, Sharing::ReadWrite)).expect("free");
    let kept = ObjectUse { object: object.clone(), first: 8, sharing: Sharing::ReadWrite, keeps: Some(Arc::new(())) };
    let placement = Placement::FixedIfFree(at(8));
    let mapped = space.map_object(placement, PAGE_SIZE, &kept, Protection::ReadWrite, "object");
    mapped.expect("free").1.after(|_| ());
    drop(kept);
    assert_eq!(ranges(&space), [at(8)..at(9), at(9)..at(14), at(14)..at(15)]);
    space.unmap(at(8)..at(13)).expect("whole pages").after(|_| ());
    let mut found = [0; 4];
    space.copy_in(at(13), &mut found).expect("mapped");
    assert_eq!(&found, b"last");
    space.clear().after(|_| ());
    assert_eq!((Arc::strong_count(&object), space.mapped_bytes()), (1, 0));
    drop(object);
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

/// With as many regions as there may be, room is found wherever it is, and mapping, protecting and unmapping one after
/// the other leaves what a map of pages would have.
#[test]
fn a_space_with_thousands_of_regions_finds_all_room() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    const REGIONS: u64 = 16_000;
    let top = memory::space::MAPPING_AREA.end;
    let map = |space: &mut AddressSpace, pages: u64, name: &'static str| {
        let mapped = space.map_anonymous(Placement::Anywhere, pages * PAGE_SIZE, Protection::ReadWrite, name);
        let (start, flush) = mapped.expect("there is room");
        flush.after(|_| ());
        (top - start) / PAGE_SIZE
    };
    // Stacks of two pages, the lower of which becomes a guard.
    for number in 1..=REGIONS / 2 {
        assert_eq!(map(&mut space, 2, "stack"), 2 * number);
        let guard = top - 2 * number * PAGE_SIZE..top - (2 * number - 1) * PAGE_SIZE;
        space.protect(guard, Protection::None).expect("mapped").after(|_| ());
    }
    assert_eq!((space.regions().count() as u64, space.mapped_bytes()), (REGIONS, REGIONS * PAGE_SIZE));
    let unmap = |space: &mut AddressSpace, stack: u64| {
        let stack = top - 2 * stack * PAGE_SIZE..top - 2 * (stack - 1) * PAGE_SIZE;
        space.unmap(stack).expect("whole pages").after(|_| ());
    };
    let stacks = [17, 4001, 4002, 1];
    for stack in stacks {
        unmap(&mut space, stack);
        assert_eq!([(); 2].map(|()| map(&mut space, 1, "new")), [2 * stack - 1, 2 * stack]);
    }
    for stack in stacks {
        unmap(&mut space, stack);
    }
    // The two neighbours are one hole.
    assert_eq!(map(&mut space, 4, "new"), 8004);
    assert_eq!(map(&mut space, 3, "new"), REGIONS + 3);
    assert_eq!([(); 4].map(|()| map(&mut space, 1, "new")), [1, 2, 33, 34]);
    assert_eq!(space.mapped_bytes(), (REGIONS + 3) * PAGE_SIZE);
    while let Some(part) = space.clear_part() {
        part.after(|_| ());
    }
    assert_eq!(space.mapped_bytes(), 0);
}

#[test]
fn ranges_that_are_alike_everywhere_are_uniform_and_their_pages_are_copied() {
    let _alone = alone();
    let mut space = space(Limits::DEFAULT);
    let start = 0x10_0000;
    let range = |from: u64, to: u64| start + from * PAGE_SIZE..start + to * PAGE_SIZE;
    anonymous(&mut space, start, 2, Protection::ReadWrite);
    anonymous(&mut space, start + 2 * PAGE_SIZE, 2, Protection::ReadWrite);
    anonymous(&mut space, start + 4 * PAGE_SIZE, 1, Protection::Read);
    anonymous(&mut space, start + 6 * PAGE_SIZE, 1, Protection::Read);
    let is_uniform = |space: &AddressSpace, from, to| {
        space.uniform(&range(from, to)).map(|(region, object)| {
            assert!(object.is_none());
            region.range
        })
    };
    assert_eq!(is_uniform(&space, 0, 4), Some(range(0, 4)), "neighbours that are alike are one region");
    assert_eq!(is_uniform(&space, 3, 4), Some(range(0, 4)));
    assert_eq!((is_uniform(&space, 3, 5), is_uniform(&space, 4, 7), is_uniform(&space, 5, 6)), (None, None, None));
    let (object, _) = object(Absent::Zeros(1024), 1 << 20);
    let at = start + 16 * PAGE_SIZE;
    for (place, pages, first) in [(at, 2, 5), (at + 2 * PAGE_SIZE, 1, 7), (at + 3 * PAGE_SIZE, 1, 7)] {
        map_object(&mut space, place, pages, &object, (first, Sharing::ReadWrite)).expect("free");
    }
    let (_, found) = space.uniform(&(at + PAGE_SIZE..at + 3 * PAGE_SIZE)).expect("its pages go on");
    assert_eq!(found.map(|found| found.first), Some(6));
    assert!(space.uniform(&(at..at + 4 * PAGE_SIZE)).is_none(), "page 7 comes twice");
    // A page that was never touched is not made by a copy of it.
    space.copy_out(start + 5, b"bytes").expect("mapped");
    let resident = space.resident_frames();
    assert_eq!(space.copy_some(range(1, 2), start + 2 * PAGE_SIZE, 4), Ok(start + 2 * PAGE_SIZE));
    assert_eq!(space.resident_frames(), resident);
    assert_eq!(space.copy_some(range(0, 1), start + 3 * PAGE_SIZE, 4), Ok(start + PAGE_SIZE));
    let mut found = [0; 12];
    space.copy_in(start + 3 * PAGE_SIZE, &mut found).expect("mapped");
    assert_eq!(&found, b"\0\0\0\0\0bytes\0\0");
    assert_eq!(space.copy_some(range(0, 1), start + 4 * PAGE_SIZE, 4), Err(Fault::Protection));
    // Gigabytes without pages are one piece, and so many pages another.
    let (far, size) = (16 << 30, 4 << 30);
    anonymous(&mut space, far, size / PAGE_SIZE, Protection::ReadWrite);
    anonymous(&mut space, 2 * far, size / PAGE_SIZE, Protection::ReadWrite);
    let pages = [3, 7, 9].map(|page| far + size / 2 + page * PAGE_SIZE);
    for page in pages {
        space.copy_out(page, b"far").expect("mapped");
    }
    assert_eq!(space.copy_some(far..far + size, 2 * far, 2), Ok(pages[1] + PAGE_SIZE));
    let mut at = pages[1] + PAGE_SIZE;
    for _ in 0..2 {
        at = space.copy_some(at..far + size, at + far, 2).expect("mapped");
    }
    assert_eq!(at, far + size);
    assert_eq!(space.resident_frames(), resident + 7);
    let mut found = [0; 3];
    space.copy_in(pages[2] + far, &mut found).expect("mapped");
    assert_eq!(&found, b"far");
}
