//! Address spaces without memory for their records: an error, and nothing has changed.

use memory::space::{FlushRequest, Limits, MapError, Placement, RegionView, Sharing, StringError};
use memory::sv39::{KernelHalf, Protection, RootSize};
use memory::{AddressSpace, Frame, PAGE_SIZE, SharedFrame, fake};
use property::with_memory;
use std::ops::Range;

#[global_allocator]
static LIMITED: property::Limited = property::Limited;

fn no_flush(_: &FlushRequest<'_>) {}

fn page(index: u64) -> u64 {
    0x10_0000 + index * PAGE_SIZE
}

fn regions(space: &AddressSpace) -> Vec<RegionView> {
    space.regions().collect()
}

fn shared(pages: usize) -> Vec<SharedFrame> {
    (0..pages).map(|_| Frame::allocate_zeroed().expect("there is memory").share()).collect()
}

/// Makes a space with one frame shared in each of these regions, and with room for no further region.
fn crowded(ranges: &[Range<u64>]) -> (AddressSpace, Vec<Vec<SharedFrame>>) {
    fake::init(16 << 20);
    let made = AddressSpace::new(&KernelHalf::empty(), RootSize::Page, Limits::DEFAULT, no_flush);
    let mut space = made.expect("there is memory");
    let mut all = Vec::new();
    for range in ranges {
        let frames = shared(((range.end - range.start) / PAGE_SIZE) as usize);
        let placement = Placement::Fixed(range.start);
        let mapped = space.map_shared(placement, frames.clone(), Sharing::ReadWrite, Protection::Read, "shared");
        mapped.expect("free").1.after(|_| ());
        all.push(frames);
    }
    // As many regions as the list has room for.
    let mut at = 1000;
    while with_memory(0, || {
        let placement = Placement::FixedIfFree(page(at));
        space
            .map_anonymous(placement, PAGE_SIZE, Protection::None, "fill")
            .map(|(_, flush)| flush.after(|_| ()))
            .is_ok()
    }) {
        at += 2;
    }
    (space, all)
}

#[test]
fn splitting_a_region_takes_memory() {
    let (mut space, frames) = crowded(std::slice::from_ref(&(page(0)..page(5))));
    let before = regions(&space);
    let shares = |frames: &[Vec<SharedFrame>]| frames[0].iter().map(SharedFrame::shares).sum::<u32>();
    let held = shares(&frames);
    with_memory(0, || {
        let refused = [
            space.unmap(page(1)..page(2)).map(|_| ()),
            space.unmap(page(0)..page(1)).map(|_| ()),
            space.protect(page(4)..page(5), Protection::ReadWrite).map(|_| ()),
            space.protect(page(0)..page(1), Protection::ReadWrite).map(|_| ()),
        ];
        assert_eq!(refused, [Err(MapError::OutOfMemory); 4]);
    });
    assert_eq!(regions(&space), before);
    assert_eq!(shares(&frames), held);
    // No memory is needed for all of a region, and of the space.
    with_memory(0, || space.protect(page(0)..page(5), Protection::ReadWrite).map(|flush| flush.after(|_| ())))
        .expect("no split");
    with_memory(0, || space.unmap(page(0)..page(5)).map(|flush| flush.after(|_| ()))).expect("one region");
    assert!(frames[0].iter().all(|frame| frame.shares() == 1));
    with_memory(0, || space.clear().after(|_| ()));
    assert_eq!(regions(&space), []);
}

#[test]
fn removing_several_regions_of_shared_frames_takes_memory() {
    let (mut space, frames) = crowded(&[page(0)..page(1), page(2)..page(3), page(4)..page(5)]);
    let before = regions(&space);
    with_memory(0, || {
        assert_eq!(space.unmap(page(0)..page(3)).map(|_| ()), Err(MapError::OutOfMemory));
        let replaced = space.map_anonymous(Placement::Fixed(page(0)), 5 * PAGE_SIZE, Protection::Read, "data");
        assert_eq!(replaced.map(|_| ()), Err(MapError::OutOfMemory));
    });
    assert_eq!(regions(&space), before);
    // Also those that are not shared, beside one that is.
    with_memory(0, || space.unmap(page(4)..page(1001)).map(|flush| flush.after(|_| ()))).expect("one region");
    space.unmap(page(0)..page(3)).expect("there is memory").after(|_| ());
    assert!(frames.iter().flatten().all(|frame| frame.shares() == 1));
}

#[test]
fn copies_take_memory() {
    let (mut space, _frames) = crowded(&[]);
    let (mut other, _) = crowded(&[]);
    let placement = Placement::Fixed(page(0));
    space.map_shared(placement, shared(2), Sharing::ReadOnly, Protection::Read, "image").expect("free").1.after(|_| ());
    assert_eq!(with_memory(0, || space.copy_regions(&mut other, 0)), Err(MapError::OutOfMemory));
    // Enough for the list of regions, but not for the frames of the first.
    let mut bytes = 0;
    while with_memory(bytes, || space.copy_regions(&mut other, 0)).is_err() {
        bytes += 1;
        assert!(bytes < 100_000);
    }
    assert!(bytes > 2 * size_of::<SharedFrame>());

    let mut text = AddressSpace::new(&KernelHalf::empty(), RootSize::Page, Limits::DEFAULT, no_flush).expect("memory");
    text.map_anonymous(placement, 1, Protection::ReadWrite, "data").expect("free").1.after(|_| ());
    text.copy_out(page(0), b"a string\0").expect("mapped");
    let refused = with_memory(0, || text.copy_in_string(page(0), 100));
    assert_eq!(refused, Err(StringError::Fault(memory::space::Fault::OutOfMemory)));
    assert_eq!(text.copy_in_string(page(0), 100).as_deref(), Ok(&b"a string"[..]));
}
