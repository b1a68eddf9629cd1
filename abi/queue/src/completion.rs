//! The completion ring, which returns results of asynchronous calls to a process.
//!
//! One page of indexes, then the entries, of which there is a power of two. The kernel is the only producer: it writes
//! the entry at `tail % capacity`, then advances `tail`; the process reads entries up to `tail` and then advances
//! `head`, which hands their places back. Both indexes only grow and wrap at 2^64. The `ring` crate has the algorithm,
//! with the reason for each memory order.
//!
//! `head` is the process's word, so the kernel trusts it in one respect only: a distance of the capacity or more means
//! "full". A process that writes nonsense there loses its own completions and harms no other. When the ring is full the
//! kernel keeps the completion and posts it when the process next enters the kernel: nothing is ever dropped.
//!
//! A process begins with [`INITIAL_CAPACITY`] entries; `ring_setup` can give it more, at the same address.

use core::sync::atomic::AtomicU64;

use crate::pages::PAGE_SIZE;

/// Initial number of entries of every process's ring.
pub const INITIAL_CAPACITY: usize = 512;
/// Maximum number of entries.
pub const LARGEST_CAPACITY: usize = 4096;
/// Offset of `tail` in the ring.
pub const TAIL_OFFSET: usize = 0;
/// Offset of `capacity` in the ring.
pub const CAPACITY_OFFSET: usize = 8;
/// Offset of `head` in the ring.
pub const HEAD_OFFSET: usize = 64;
/// Offset of the first entry.
pub const ENTRIES_OFFSET: usize = PAGE_SIZE;
/// Words of an entry.
pub const ENTRY_WORDS: usize = 4;
/// Bytes of an entry.
pub const ENTRY_SIZE: usize = ENTRY_WORDS * 8;
/// Pages of the largest ring, for which there is room at its address.
pub const LARGEST_PAGES: usize = pages(LARGEST_CAPACITY);

/// Token of a completion that belongs to no call: a request to print where the process's coroutines wait. The kernel
/// posts it only to a process that has set [`answers`](crate::ProcessPage::answers), and only if the ring has room.
pub const TELL_AWAIT_POINTS: u64 = 0xffff_fffe;

/// Returns the number of pages of a ring with this capacity: one for the indexes, the rest for the entries.
pub const fn pages(capacity: usize) -> usize {
    1 + (capacity * ENTRY_SIZE).div_ceil(PAGE_SIZE)
}

/// One completion as plain values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "cqe")]
pub struct Completion {
    /// The token given with the call.
    pub token: u64,
    /// Coroutine that waits.
    pub cid: u64,
    /// The result as the call would have returned it in `a0`.
    pub result: u64,
}

impl Completion {
    /// Returns the words of an entry.
    #[inline(always)]
    pub const fn to_words(self) -> [u64; ENTRY_WORDS] {
        [self.token, self.cid, self.result, 0]
    }

    /// Reads the words of an entry.
    #[inline(always)]
    pub const fn from_words([token, cid, result, _]: [u64; ENTRY_WORDS]) -> Completion {
        Completion { token, cid, result }
    }
}

/// One entry of the ring in memory: token, cid, result, and a word that is always 0.
pub type Entry = [AtomicU64; ENTRY_WORDS];

const _: () = assert!(size_of::<Entry>() == ENTRY_SIZE);
// No entry lies across two pages.
const _: () = assert!(PAGE_SIZE.is_multiple_of(ENTRY_SIZE));

/// The first page of the ring, with the indexes.
#[repr(C, align(4096))]
#[doc(alias = "completion queue")]
pub struct CompletionHeader {
    /// Number of completions that were posted; written by the kernel.
    pub tail: AtomicU64,
    /// Number of entries; written by the kernel for others to read, and never read by it.
    pub capacity: AtomicU64,
    padding1: [u64; 6],
    /// Number of completions that were taken; written by the process.
    pub head: AtomicU64,
    padding2: [u64; 503],
}

impl CompletionHeader {
    /// Makes the header of an unused ring.
    pub const fn new() -> CompletionHeader {
        CompletionHeader {
            tail: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            padding1: [0; 6],
            head: AtomicU64::new(0),
            padding2: [0; 503],
        }
    }
}

impl Default for CompletionHeader {
    fn default() -> Self {
        Self::new()
    }
}

const _: () = assert!(size_of::<CompletionHeader>() == PAGE_SIZE);
const _: () = assert!(core::mem::offset_of!(CompletionHeader, tail) == TAIL_OFFSET);
const _: () = assert!(core::mem::offset_of!(CompletionHeader, capacity) == CAPACITY_OFFSET);
const _: () = assert!(core::mem::offset_of!(CompletionHeader, head) == HEAD_OFFSET);

/// Returns the offset in the ring of the entry at this place.
pub const fn entry_offset(place: usize) -> usize {
    ENTRIES_OFFSET + place * ENTRY_SIZE
}

const _: () = assert!(entry_offset(INITIAL_CAPACITY) == pages(INITIAL_CAPACITY) * PAGE_SIZE);
const _: () = assert!(entry_offset(LARGEST_CAPACITY) == LARGEST_PAGES * PAGE_SIZE);
