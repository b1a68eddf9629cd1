//! The pages that every process shares with the kernel.
//!
//! The *process page* is writable by the process: it carries the ready bitmaps of its workers, so that the kernel knows
//! how important the process's best ready coroutine is without asking. What stands there is a **claim**: the kernel
//! clamps it to the process's ceiling and never derives anything else from it. The *global page* is written by the
//! kernel and readable by every process.

use core::sync::atomic::AtomicU64;

use crate::{MAXIMUM_WORKERS, ReadyWord, completion, request};

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;

/// Bytes of the addresses in which a process has what it shares with the kernel. They lie elsewhere in each process;
/// the auxiliary vector says where the parts are. The offsets below are the kernel's arrangement of them.
pub const SHARED_SIZE: usize = 0x60_0000;
/// Where the request ring of worker 0 lies in a process that has one; those of the others follow, each
/// [`request::STRIDE`] behind the one before.
pub const REQUEST_RINGS_OFFSET: usize = 0;
/// Where the process page lies.
pub const PROCESS_PAGE_OFFSET: usize = 0x50_0000;
/// Where the global page lies.
pub const GLOBAL_PAGE_OFFSET: usize = 0x50_1000;
/// Where the completion ring lies.
pub const COMPLETION_RING_OFFSET: usize = 0x51_0000;
/// Where stores send user interrupts: one page for each right that a process has asked for ([`SEND_PAGES`]).
pub const SEND_OFFSET: usize = 0x58_0000;
/// How many such pages a process can have.
pub const SEND_PAGES: usize = 64;
/// The most bytes that the scheduler's image takes.
pub const LARGEST_IMAGE: usize = 16 * 1024;

const _: () = assert!(REQUEST_RINGS_OFFSET + MAXIMUM_WORKERS * request::STRIDE <= PROCESS_PAGE_OFFSET);
const _: () = assert!(COMPLETION_RING_OFFSET + completion::LARGEST_PAGES * PAGE_SIZE <= SEND_OFFSET);
const _: () = assert!(SEND_OFFSET + SEND_PAGES * PAGE_SIZE <= SHARED_SIZE);

/// The page that a process and the kernel both write.
#[repr(C, align(4096))]
pub struct ProcessPage {
    /// Ready bitmap of each worker's shard; bit `p` is set while a coroutine of priority `p` is ready.
    pub ready: [ReadyWord; MAXIMUM_WORKERS],
    /// The user interrupts of each worker that its handler has not taken yet: bit 0 says that completions have come,
    /// bits 1 to 62 are identities of receivers. The kernel sets bits, the handler takes them all at once.
    pub interrupts: [InterruptWord; MAXIMUM_WORKERS],
    /// Which [`Mode`] the process's executor follows unless the system says otherwise: its number. The kernel writes it
    /// when it is asked to; the process may write it too, since the mode is its executor's own behaviour.
    pub mode: AtomicU64,
    /// The most important priority that counts for the process, for its information: what the kernel goes by is its
    /// own.
    pub ceiling: AtomicU64,
}

/// The user interrupts of one worker, on a cache line of its own. Field 0 holds those that wait; field 1 is how many
/// have come in hardware, which the handler counts.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct InterruptWord(pub AtomicU64, pub AtomicU64);

const _: () = assert!(size_of::<ProcessPage>() == PAGE_SIZE);
const _: () = assert!(core::mem::offset_of!(ProcessPage, interrupts) == 512);
const _: () = assert!(size_of::<InterruptWord>() == 64);
const _: () = assert!(core::mem::offset_of!(ProcessPage, ready) == 0);
const _: () = assert!(core::mem::offset_of!(ProcessPage, mode) == 1024);
const _: () = assert!(core::mem::offset_of!(ProcessPage, ceiling) == 1032);
const _: () = assert!(size_of::<ReadyWord>() == 64);

/// The page that the kernel writes and every process reads.
#[repr(C, align(4096))]
pub struct GlobalPage {
    /// Bit `p` is set while a kernel coroutine or a process of priority `p` is ready and waits for a hart. What runs is
    /// not in it: giving way to that would help nobody. A hint, up to date whenever the kernel was entered last.
    pub ready: AtomicU64,
    /// Ticks of the `time` register in a second.
    pub ticks_per_second: AtomicU64,
    /// Nanoseconds since 1970 at tick 0 of the `time` register.
    pub epoch_ns: AtomicU64,
    /// Number of harts that run the system.
    pub harts: AtomicU64,
    /// Which mode all processes follow: the number of a [`SystemMode`].
    pub mode: AtomicU64,
}

const _: () = assert!(size_of::<GlobalPage>() == PAGE_SIZE);

/// How closely a process's executor keeps to the global order of priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Mode {
    /// The order holds from one tick or kernel entry to the next.
    #[default]
    Relaxed = 0,
    /// The executor compares its best coroutine with the global bitmap before each poll, and gives way if it is
    /// outranked.
    Strict = 1,
}

impl Mode {
    /// The mode with this number.
    pub const fn from_number(number: u64) -> Option<Mode> {
        match number {
            0 => Some(Mode::Relaxed),
            1 => Some(Mode::Strict),
            _ => None,
        }
    }
}

/// What the system says about the modes of its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum SystemMode {
    /// Each process has its own.
    #[default]
    Chosen = 0,
    /// All are relaxed.
    Relaxed = 1,
    /// All are strict.
    Strict = 2,
}

impl SystemMode {
    /// The mode with this number.
    pub const fn from_number(number: u64) -> Option<SystemMode> {
        match number {
            0 => Some(SystemMode::Chosen),
            1 => Some(SystemMode::Relaxed),
            2 => Some(SystemMode::Strict),
            _ => None,
        }
    }
}

/// The mode that an executor follows, from the words of the global page and of its process page. Numbers that mean
/// nothing mean the default.
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
