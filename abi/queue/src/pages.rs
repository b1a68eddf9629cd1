//! The pages that every process shares with the kernel.
//!
//! The *process page* is writable by the process: it carries the ready bitmaps of its workers, so that the kernel knows
//! how important the process's best ready coroutine is without asking. What stands there is a **claim**: the kernel
//! clamps it to the process's ceiling and never derives anything else from it. The *global page* is written by the
//! kernel and readable by every process.

use core::sync::atomic::AtomicU64;

use crate::{MAXIMUM_WORKERS, ReadyWord};

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;

/// Where the scheduler's image lies in every process.
pub const IMAGE_ADDRESS: usize = 0x3f_ffe0_0000;
/// Where the process page lies in every process.
pub const PROCESS_PAGE_ADDRESS: usize = 0x3f_ffd0_0000;
/// Where the global page lies in every process.
pub const GLOBAL_PAGE_ADDRESS: usize = 0x3f_ffd0_1000;
/// Where the completion ring lies in every process.
pub const COMPLETION_RING_ADDRESS: usize = 0x3f_ffd1_0000;

/// The page that a process and the kernel both write.
#[repr(C, align(4096))]
pub struct ProcessPage {
    /// Ready bitmap of each worker's shard; bit `p` is set while a coroutine of priority `p` is ready.
    pub ready: [ReadyWord; MAXIMUM_WORKERS],
}

const _: () = assert!(size_of::<ProcessPage>() == PAGE_SIZE);
const _: () = assert!(core::mem::offset_of!(ProcessPage, ready) == 0);
const _: () = assert!(size_of::<ReadyWord>() == 64);

/// The page that the kernel writes and every process reads.
#[repr(C, align(4096))]
pub struct GlobalPage {
    /// Bit `p` is set while a kernel coroutine or a process that could run is ready at priority `p`.
    pub ready: AtomicU64,
    /// Ticks of the `time` register in a second.
    pub ticks_per_second: AtomicU64,
    /// Nanoseconds since 1970 at tick 0 of the `time` register.
    pub epoch_ns: AtomicU64,
    /// Number of harts that run the system.
    pub harts: AtomicU64,
}

const _: () = assert!(size_of::<GlobalPage>() == PAGE_SIZE);

/// Turns ticks of the `time` register into nanoseconds without losing precision or overflowing.
pub const fn ticks_to_ns(ticks: u64, ticks_per_second: u64) -> u64 {
    (ticks as u128 * 1_000_000_000 / ticks_per_second as u128) as u64
}
