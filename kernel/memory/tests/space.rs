//! Address spaces against a model that knows each page on its own.

use memory::space::{Fault, Interrupted, Limits, Placement};
use memory::sv39::{Access, KernelHalf, Protection, RootSize, USER};
use memory::{AddressSpace, PAGE_SIZE, frames, pretend};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts of frames are exact only if one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    pretend::init(64 << 20);
    guard
}

fn space(limits: Limits) -> AddressSpace {
    AddressSpace::new(&KernelHalf::empty(), RootSize::Page, limits).expect("there is memory")
}

#[test]
fn copies_cross_pages_and_stop_at_holes() {
    let _alone = alone();
    let before = frames::free_frames();
    {
        let mut space = space(Limits::DEFAULT);
        let (start, flush) = space
            .map_anonymous(Placement::Fixed(0x10_0000), 3 * PAGE_SIZE, Protection::ReadWrite, "data")
            .expect("free");
        assert!(flush.is_empty());
        flush.after(|_| unreachable!("nothing was mapped"));
        let bytes: Vec<u8> = (0..9000u32).map(|index| (index % 251) as u8).collect();
        space.copy_out(start + 100, &bytes).expect("mapped");
        let mut back = vec![0; 9000];
        space.copy_in(start + 100, &mut back).expect("mapped");
        assert_eq!(back, bytes);
        assert_eq!(space.resident_frames(), 3);
        assert_eq!(space.copy_in(start + 3 * PAGE_SIZE - 10, &mut back[..11]), Err(Fault::NotMapped));
        assert_eq!(
            space.for_each_slice(start + 3 * PAGE_SIZE - 10, 20, Access::Read, |bytes| bytes.len()),
            Err(Interrupted { done: 10, fault: Fault::NotMapped })
        );
        assert_eq!(space.copy_in(u64::MAX - 3, &mut back[..8]), Err(Fault::NotMapped));
        assert_eq!(space.copy_in(0, &mut back[..8]), Err(Fault::NotMapped));
        assert_eq!(space.copy_in(USER.end - 4, &mut back[..8]), Err(Fault::NotMapped));
        assert_eq!(space.copy_in(0xffff_ffc0_8000_0000, &mut back[..8]), Err(Fault::NotMapped));
        assert_eq!(space.copy_in(0, &mut []), Ok(()));
    }
    assert_eq!(frames::free_frames(), before);
}
