//! The pages that every process shares with the kernel.
//!
//! The *process page* is writable by the process: it carries the ready bitmaps of its workers, so that the kernel has
//! the importance of the process's best ready coroutine without asking. Its contents are a **claim**: the kernel clamps
//! it to the process's ceiling and never derives anything else from it. The *global page* is written by the kernel and
//! readable by every process.

use core::sync::atomic::AtomicU64;

use crate::{MAXIMUM_WORKERS, ReadyWord, completion, request};

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;

/// Size of the address range that a process shares with the kernel. Its base differs in each process; the auxiliary
/// vector has the addresses of the parts. The offsets below are the kernel's arrangement of them.
pub const SHARED_SIZE: usize = 0x60_0000;
/// Offset of the request ring of worker 0; those of the others follow, at distances of [`request::STRIDE`].
pub const REQUEST_RINGS_OFFSET: usize = 0;
/// Offset of the process page.
pub const PROCESS_PAGE_OFFSET: usize = 0x50_0000;
/// Offset of the completion ring: behind the process page, so that a processor which has one translation for
/// neighbouring pages needs one for both. A worker looks at them before each poll.
pub const COMPLETION_RING_OFFSET: usize = PROCESS_PAGE_OFFSET + PAGE_SIZE;
/// Offset of the pages to which stores send user interrupts: one for each right that a process has requested a page for
/// ([`SEND_PAGES`]).
pub const SEND_OFFSET: usize = 0x58_0000;
/// Maximum number of such pages of a process.
pub const SEND_PAGES: usize = 64;
/// Maximum size of the scheduler's image, in bytes.
pub const LARGEST_IMAGE: usize = 16 * 1024;

const _: () = assert!(REQUEST_RINGS_OFFSET + MAXIMUM_WORKERS * request::STRIDE <= PROCESS_PAGE_OFFSET);
const _: () = assert!(COMPLETION_RING_OFFSET + completion::LARGEST_PAGES * PAGE_SIZE <= SEND_OFFSET);
const _: () = assert!(SEND_OFFSET + SEND_PAGES * PAGE_SIZE <= SHARED_SIZE);

/// The page that a process and the kernel both write.
#[repr(C, align(4096))]
pub struct ProcessPage {
    /// Ready bitmap of each worker's shard; bit `p` is set while a coroutine of priority `p` is ready.
    pub ready: [ReadyWord; MAXIMUM_WORKERS],
    /// User interrupts of each worker that its handler has not taken yet: bit 0 stands for completions, bits 1 to 62
    /// for identities of receivers. The kernel sets bits, the handler takes them all at once. Bits that are left at a
    /// tick are delivered again; a handler that could not do its work sets bit 63 for that.
    pub interrupts: [InterruptWord; MAXIMUM_WORKERS],
    /// Number of the [`Mode`] of the process's executor unless the system has chosen one. The kernel writes it on
    /// request; the process may write it too, since the mode is its executor's own behaviour.
    pub mode: AtomicU64,
    /// Most important priority that counts for the process, for its information: the kernel uses its own copy.
    pub ceiling: AtomicU64,
    /// 1 if the process answers completions with the token [`completion::TELL_AWAIT_POINTS`]. Written by the process.
    pub answers: AtomicU64,
    /// Attention word of each worker, which is of the process alone. It lies here because a worker looks at it before
    /// each poll, as at the ready bitmaps: in one page, both need one translation.
    pub attention: [AtomicU64; MAXIMUM_WORKERS],
}

/// User interrupts of one worker, on a cache line of its own. Field 0 holds the pending ones; field 1 is the number
/// delivered in hardware, which the handler counts.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct InterruptWord(pub AtomicU64, pub AtomicU64);

const _: () = assert!(size_of::<ProcessPage>() == PAGE_SIZE);
const _: () = assert!(core::mem::offset_of!(ProcessPage, interrupts) == 512);
const _: () = assert!(size_of::<InterruptWord>() == 64);
const _: () = assert!(core::mem::offset_of!(ProcessPage, ready) == 0);
const _: () = assert!(core::mem::offset_of!(ProcessPage, mode) == 1024);
const _: () = assert!(core::mem::offset_of!(ProcessPage, ceiling) == 1032);
const _: () = assert!(core::mem::offset_of!(ProcessPage, answers) == 1040);
const _: () = assert!(size_of::<ReadyWord>() == 64);

/// The page that the kernel writes and every process reads.
#[repr(C, align(4096))]
pub struct GlobalPage {
    /// Bit `p` is set while a kernel coroutine or a process of priority `p` is ready and waits for a hart. Running ones
    /// are not in it: yielding to them would be pointless. A hint, as of the last kernel entry.
    pub ready: AtomicU64,
    /// Ticks of the `time` register in a second.
    pub ticks_per_second: AtomicU64,
    /// Nanoseconds since 1970 at tick 0 of the `time` register.
    pub epoch_ns: AtomicU64,
    /// Number of harts that run the system.
    pub harts: AtomicU64,
    /// Mode of all processes: the number of a [`SystemMode`].
    pub mode: AtomicU64,
}

const _: () = assert!(size_of::<GlobalPage>() == PAGE_SIZE);

/// Precision with which a process's executor follows the global order of priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Mode {
    /// The order holds from one tick or kernel entry to the next.
    #[default]
    Relaxed = 0,
    /// The executor compares its best coroutine with the global bitmap before each poll, and yields if it is outranked.
    Strict = 1,
}

impl Mode {
    /// Returns the mode with this number.
    pub const fn from_number(number: u64) -> Option<Mode> {
        match number {
            0 => Some(Mode::Relaxed),
            1 => Some(Mode::Strict),
            _ => None,
        }
    }
}

/// System-wide choice of the mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum SystemMode {
    /// Each process has its own mode.
    #[default]
    Chosen = 0,
    /// All are relaxed.
    Relaxed = 1,
    /// All are strict.
    Strict = 2,
}

impl SystemMode {
    /// Returns the mode with this number.
    pub const fn from_number(number: u64) -> Option<SystemMode> {
        match number {
            0 => Some(SystemMode::Chosen),
            1 => Some(SystemMode::Relaxed),
            2 => Some(SystemMode::Strict),
            _ => None,
        }
    }
}

/// Returns the mode that an executor follows, from the words of the global page and of its process page. Unassigned
/// numbers select the default.
pub const fn mode_in_force(system: u64, own: u64) -> Mode {
    match (SystemMode::from_number(system), Mode::from_number(own)) {
        (Some(SystemMode::Strict), _) => Mode::Strict,
        (Some(SystemMode::Relaxed), _) => Mode::Relaxed,
        (_, Some(own)) => own,
        _ => Mode::Relaxed,
    }
}

/// Turns ticks of the `time` register into nanoseconds without losing precision or overflowing.
pub const fn ticks_to_ns(ticks: u64, ticks_per_second: u64) -> u64 {
    (ticks as u128 * 1_000_000_000 / ticks_per_second as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_mode_comes_first_and_nonsense_is_relaxed() {
        for (system, own, mode) in [
            (0, 0, Mode::Relaxed),
            (0, 1, Mode::Strict),
            (0, 2, Mode::Relaxed),
            (1, 1, Mode::Relaxed),
            (2, 0, Mode::Strict),
            (3, 1, Mode::Strict),
            (u64::MAX, u64::MAX, Mode::Relaxed),
        ] {
            assert_eq!(mode_in_force(system, own), mode, "{system} {own}");
        }
    }
}
