//! A fake machine's memory, so that everything here, and kernels above it, run in tests on the host.
//!
//! One allocation of the host plays physical memory from [`BASE`] on; the direct map is wherever the host put it. Harts
//! are threads: each test thread chooses the hart that it plays.

use crate::frames::{self, InitError};
use core::cell::Cell;
use std::alloc::Layout;
use std::sync::Once;

/// Start of the fake memory, as on QEMU's `virt` machine.
pub const BASE: u64 = 0x8000_0000;

std::thread_local! {
    static HART: Cell<usize> = const { Cell::new(0) };
}

/// Makes the calling thread play this hart.
pub fn set_hart(hart: usize) {
    HART.set(hart);
}

/// Returns the hart that the calling thread plays, by default 0.
#[must_use]
pub fn current_hart() -> usize {
    HART.get()
}

/// Gives the frame allocator `bytes` of fake memory, once for each test program; later calls do nothing.
///
/// # Panics
/// If the host does not have that much memory, or the frame allocator was given other memory before.
pub fn init(bytes: usize) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let layout = Layout::from_size_align(bytes, 4 << 20).expect("a reasonable size");
        // SAFETY: the layout is not empty. The memory is never freed, so it stays valid; its address is exposed, since
        // the direct map makes pointers from numbers.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!start.is_null(), "the host has no {bytes} bytes for the fake memory");
        let offset = (start.expose_provenance() as u64).wrapping_sub(BASE);
        let memory = BASE..BASE + bytes as u64;
        match frames::init(&[memory], offset, current_hart) {
            Ok(()) => {}
            Err(InitError::AlreadyDone) => panic!("the frame allocator was given other memory before"),
            Err(error) => panic!("{error}"),
        }
    });
}
