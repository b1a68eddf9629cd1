//! The pages that a process shares with the kernel, and the two that all processes share.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi_queue::completion::RING_SIZE;
use abi_queue::pages::{COMPLETION_RING_ADDRESS, GLOBAL_PAGE_ADDRESS, IMAGE_ADDRESS, PAGE_SIZE, PROCESS_PAGE_ADDRESS};
use abi_queue::{GlobalPage, MAXIMUM_WORKERS, ReadyWord};
use abi_unix::Errno;
use memory::{Frame, SharedFrame};
use spin::Once;

/// A process's own pages: the process page and the completion ring.
pub struct Shared {
    page: SharedFrame,
    ring: Vec<SharedFrame>,
}

fn zeroed() -> Result<SharedFrame, Errno> {
    Ok(Frame::allocate_zeroed().map_err(|_| Errno::ENOMEM)?.share())
}

impl Shared {
    /// Fresh pages, all zero.
    pub fn new() -> Result<Shared, Errno> {
        let count = RING_SIZE / PAGE_SIZE;
        let mut ring = Vec::new();
        ring.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        for _ in 0..count {
            ring.push(zeroed()?);
        }
        Ok(Shared { page: zeroed()?, ring })
    }

    /// Makes them all zero again, for another program.
    pub fn clear(&self) {
        self.page.zero();
        for frame in &self.ring {
            frame.zero();
        }
    }

    /// What the process says is ready or running in it, over all its workers. A claim.
    pub fn ready(&self) -> u64 {
        let bytes = self.page.bytes();
        let word = |offset| bytes.atomic_u64(offset).map_or(0, |word| word.load(Ordering::Relaxed));
        (0..MAXIMUM_WORKERS)
            .map(|index| index * size_of::<ReadyWord>())
            .fold(0, |all, at| all | word(at) | word(at + 8))
    }

    /// What the process says one of its workers runs: the bit of the coroutine's priority, or 0. A claim.
    pub fn running(&self, worker: usize) -> u64 {
        let offset = worker % MAXIMUM_WORKERS * size_of::<ReadyWord>() + 8;
        self.page.bytes().atomic_u64(offset).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// A word of the completion ring.
    pub fn ring_word(&self, offset: usize) -> &AtomicU64 {
        let frame = &self.ring[offset / PAGE_SIZE];
        frame.bytes().atomic_u64(offset % PAGE_SIZE).expect("offsets of the ring's layout are aligned and inside")
    }

    /// Where its pages go in the process's address space: address, frames.
    pub fn mappings(&self) -> [(usize, Vec<SharedFrame>); 2] {
        [(PROCESS_PAGE_ADDRESS, alloc::vec![self.page.clone()]), (COMPLETION_RING_ADDRESS, self.ring.clone())]
    }
}

/// What every process sees: the global page, readable, and the scheduler's image, executable.
struct Common {
    global: SharedFrame,
    image: Vec<SharedFrame>,
}

static COMMON: Once<Common> = Once::new();

/// Prepares the common pages from the scheduler's image. Called once at start; `ENOMEM` if there is no memory for them.
pub fn start(image: &[u8], ticks_per_second: u64, epoch_ns: u64, harts: u64) -> Result<(), Errno> {
    let global = zeroed()?;
    let store = |offset: usize, value: u64| {
        global.bytes().atomic_u64(offset).expect("fields of the global page").store(value, Ordering::Relaxed);
    };
    store(core::mem::offset_of!(GlobalPage, ticks_per_second), ticks_per_second);
    store(core::mem::offset_of!(GlobalPage, epoch_ns), epoch_ns);
    store(core::mem::offset_of!(GlobalPage, harts), harts);
    let mut frames = Vec::new();
    for piece in image.chunks(PAGE_SIZE) {
        let frame = zeroed()?;
        frame.write(0, piece);
        frames.push(frame);
    }
    COMMON.call_once(|| Common { global, image: frames });
    Ok(())
}

/// Publishes the global bitmap.
pub fn publish(bitmap: u64) {
    if let Some(common) = COMMON.get() {
        let word = common.global.bytes().atomic_u64(core::mem::offset_of!(GlobalPage, ready));
        let word = word.expect("fields of the global page");
        if word.load(Ordering::Relaxed) != bitmap {
            word.store(bitmap, Ordering::Relaxed);
        }
    }
}

/// Where the global page goes: address, frames.
pub fn global_mapping() -> Option<(usize, Vec<SharedFrame>)> {
    COMMON.get().map(|common| (GLOBAL_PAGE_ADDRESS, alloc::vec![common.global.clone()]))
}

/// Whether a program counter lies in the scheduler's image.
pub fn is_in_image(pc: usize) -> bool {
    let length = COMMON.get().map_or(0, |common| common.image.len() * PAGE_SIZE);
    pc.wrapping_sub(IMAGE_ADDRESS) < length
}

/// Where the scheduler's image goes: address, frames.
pub fn image_mapping() -> Option<(usize, Vec<SharedFrame>)> {
    COMMON.get().map(|common| (IMAGE_ADDRESS, common.image.clone()))
}
