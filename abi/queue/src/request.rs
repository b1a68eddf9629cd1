//! The request ring, through which a process makes calls without a trap.
//!
//! Each worker of a process can have one. The memory is the kernel's, mapped into the process: one page of indexes,
//! then the entries, of which there is a power of two between [`SMALLEST_CAPACITY`] and [`LARGEST_CAPACITY`]. The
//! worker is the only producer: it writes the entry at `tail % capacity`, then advances `tail`. The kernel is the only
//! consumer: it reads entries up to `tail`, each word once, and advances `head`, which hands their places back. Both
//! indexes only grow and wrap at 2^64. The `ring` crate has the algorithm, with the reason for each memory order.
//!
//! **Sleeping and waking.** `state` describes the kernel's side. While it is [`AWAKE`] it looks at `tail` again before
//! it sleeps, and no call is needed; once it is [`SLEEPING`] it takes requests when the process enters the kernel to
//! sleep, at the tick, or on `ring_enter`.
//!
//! **No trust.** The kernel keeps `head` and the capacity on its own side and reads only `tail` and entries. A `tail`
//! that is more than the capacity ahead is a defect of the process: the state becomes [`BROKEN`], nothing more is taken
//! from the ring, and `ring_enter` returns `EPROTO`. An invalid entry completes with the error that the call would have
//! given.

use core::sync::atomic::AtomicU64;

use crate::pages::PAGE_SIZE;
use crate::{PRIORITIES, Priority};

/// Minimum number of entries.
pub const SMALLEST_CAPACITY: usize = 64;
/// Maximum number of entries.
pub const LARGEST_CAPACITY: usize = 4096;
/// Offset of `tail` in the ring.
pub const TAIL_OFFSET: usize = 0;
/// Offset of `urgency` in the ring.
pub const URGENCY_OFFSET: usize = 8;
/// Offset of `head` in the ring.
pub const HEAD_OFFSET: usize = 64;
/// Offset of `state` in the ring.
pub const STATE_OFFSET: usize = 72;
/// Offset of `capacity` in the ring.
pub const CAPACITY_OFFSET: usize = 80;
/// Offset of the first entry.
pub const ENTRIES_OFFSET: usize = PAGE_SIZE;
/// Words of an entry.
pub const ENTRY_WORDS: usize = 8;
/// Bytes of an entry: a cache line, so that producer and consumer share as few as possible.
pub const ENTRY_SIZE: usize = ENTRY_WORDS * 8;
/// Distance between the rings of two workers in the address space of a process.
pub const STRIDE: usize = 0x8_0000;

/// `state`: the kernel looks at the ring again before it sleeps.
pub const AWAKE: u64 = 0;
/// `state`: the kernel has to be called when there are requests.
pub const SLEEPING: u64 = 1;
/// `state`: the indexes made no sense; no further request is taken.
pub const BROKEN: u64 = 2;

/// Bits of the first word that hold the number of the call.
pub const NUMBER_MASK: u64 = 0xffff;
/// Position in the first word of the priority at which the kernel works on the call: 6 bits.
pub const PRIORITY_SHIFT: u32 = 24;
/// Flag in the first word: the second one is the cid of the coroutine to wake, and the completion's token is 0.
pub const WAKES: u64 = 1 << 17;
/// Flag in the first word, from the direct way: allowed, and without meaning here.
pub const ASYNCHRONOUS: u64 = 1 << 16;
/// Valid bits of the first word.
pub const KNOWN_BITS: u64 = NUMBER_MASK | ASYNCHRONOUS | WAKES | 63 << PRIORITY_SHIFT;

/// Returns the number of pages of a ring with this capacity: one for the indexes, the rest for the entries.
pub const fn pages(capacity: usize) -> usize {
    1 + (capacity * ENTRY_SIZE).div_ceil(PAGE_SIZE)
}

/// Whether a ring can have this capacity.
pub const fn is_capacity(capacity: usize) -> bool {
    capacity >= SMALLEST_CAPACITY && capacity <= LARGEST_CAPACITY && capacity.is_power_of_two()
}

/// Returns a priority as a number that grows with importance: 64 for the most important one, 1 for the least. 0 is
/// none.
pub const fn urgency(priority: Priority) -> u64 {
    PRIORITIES as u64 - priority.number() as u64
}

/// Returns the priority of an urgency; the least important one for invalid numbers.
pub const fn priority_of(urgency: u64) -> Priority {
    Priority::saturating((PRIORITIES as u64).wrapping_sub(urgency))
}

/// One request as plain values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "sqe")]
pub struct Request {
    /// Number of the call, flags and priority, as register `a7` of the direct way has them.
    pub call: u64,
    /// Value that the completion returns: the token, or with [`WAKES`] the cid.
    pub token: u64,
    /// Arguments. A call reads as many as it has.
    pub arguments: [u64; 6],
}

impl Request {
    /// Returns the words of an entry.
    #[inline(always)]
    pub const fn to_words(self) -> [u64; ENTRY_WORDS] {
        let [a0, a1, a2, a3, a4, a5] = self.arguments;
        [self.call, self.token, a0, a1, a2, a3, a4, a5]
    }

    /// Reads the words of an entry.
    #[inline(always)]
    pub const fn from_words([call, token, a0, a1, a2, a3, a4, a5]: [u64; ENTRY_WORDS]) -> Request {
        Request { call, token, arguments: [a0, a1, a2, a3, a4, a5] }
    }
}

/// One entry of the ring in memory: call, token, six arguments.
pub type Entry = [AtomicU64; ENTRY_WORDS];

const _: () = assert!(size_of::<Entry>() == ENTRY_SIZE);
// No entry lies across two pages.
const _: () = assert!(PAGE_SIZE.is_multiple_of(ENTRY_SIZE));
const _: () = assert!(is_capacity(SMALLEST_CAPACITY) && is_capacity(LARGEST_CAPACITY));
const _: () = assert!(pages(LARGEST_CAPACITY) * PAGE_SIZE <= STRIDE);

/// The first page of the ring, with the indexes.
#[repr(C, align(4096))]
#[doc(alias = "submission queue")]
pub struct RequestHeader {
    /// Number of requests that were made; written by the worker.
    pub tail: AtomicU64,
    /// Urgency of the most important request since the kernel last looked, as returned by [`urgency`]; a claim. The
    /// worker raises it before `tail`, the kernel sets it to 0.
    pub urgency: AtomicU64,
    padding1: [u64; 6],
    /// Number of requests that were taken; written by the kernel.
    pub head: AtomicU64,
    /// State of the kernel's side; written by the kernel.
    pub state: AtomicU64,
    /// Number of entries; written by the kernel for others to read, and never read by it.
    pub capacity: AtomicU64,
    padding2: [u64; 501],
}

impl RequestHeader {
    /// Makes the header of an unused ring.
    pub const fn new() -> RequestHeader {
        RequestHeader {
            tail: AtomicU64::new(0),
            urgency: AtomicU64::new(0),
            padding1: [0; 6],
            head: AtomicU64::new(0),
            state: AtomicU64::new(AWAKE),
            capacity: AtomicU64::new(0),
            padding2: [0; 501],
        }
    }
}

impl Default for RequestHeader {
    fn default() -> Self {
        Self::new()
    }
}

const _: () = assert!(size_of::<RequestHeader>() == PAGE_SIZE);
const _: () = assert!(core::mem::offset_of!(RequestHeader, tail) == TAIL_OFFSET);
const _: () = assert!(core::mem::offset_of!(RequestHeader, urgency) == URGENCY_OFFSET);
const _: () = assert!(core::mem::offset_of!(RequestHeader, head) == HEAD_OFFSET);
const _: () = assert!(core::mem::offset_of!(RequestHeader, state) == STATE_OFFSET);
const _: () = assert!(core::mem::offset_of!(RequestHeader, capacity) == CAPACITY_OFFSET);

/// Returns the offset in the ring of the entry at this place.
pub const fn entry_offset(place: usize) -> usize {
    ENTRIES_OFFSET + place * ENTRY_SIZE
}

const _: () = assert!(entry_offset(SMALLEST_CAPACITY) == pages(SMALLEST_CAPACITY) * PAGE_SIZE);
const _: () = assert!(entry_offset(LARGEST_CAPACITY) == pages(LARGEST_CAPACITY) * PAGE_SIZE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgency_and_priority_are_each_other_s_opposite() {
        for number in 0..PRIORITIES as u8 {
            let priority = Priority::new(number).unwrap();
            assert_eq!(priority_of(urgency(priority)), priority);
        }
        for nonsense in [0, 65, 1 << 40, u64::MAX] {
            assert_eq!(priority_of(nonsense), Priority::LOWEST);
        }
    }

    #[test]
    fn the_words_of_a_request_are_in_order() {
        let request = Request { call: 1, token: 2, arguments: [3, 4, 5, 6, 7, 8] };
        assert_eq!(request.to_words(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Request::from_words(request.to_words()), request);
    }
}
