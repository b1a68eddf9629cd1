//! The completion ring: how results of asynchronous calls reach a process.
//!
//! The kernel is the only producer. It writes the entry at `tail % CAPACITY`, then publishes it by advancing `tail`
//! (release); the process reads entries up to `tail` (acquire) and then advances `head` (release), which hands their
//! places back (the kernel reads `head` with acquire). Both indexes only grow and wrap at 2^64.
//!
//! `head` is the process's word, so the kernel trusts it in one respect only: a distance of `CAPACITY` or more means
//! "full". A process that writes nonsense there loses its own completions and harms nobody else. When the ring is full
//! the kernel keeps the completion and posts it when the process next enters the kernel: nothing is ever dropped.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::pages::PAGE_SIZE;

/// Entries in the ring.
pub const CAPACITY: usize = 512;
/// Bytes of the ring, in whole pages: one for the indexes, the rest for the entries.
pub const RING_SIZE: usize = PAGE_SIZE + CAPACITY * size_of::<Entry>();
/// Offset of `tail` in the ring.
pub const TAIL_OFFSET: usize = 0;
/// Offset of `head` in the ring.
pub const HEAD_OFFSET: usize = 64;
/// Offset of the first entry.
pub const ENTRIES_OFFSET: usize = PAGE_SIZE;

/// One completion as plain values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The token given with the call.
    pub token: u64,
    /// The coroutine that waits.
    pub cid: u64,
    /// The result as the call would have returned it in `a0`.
    pub result: u64,
}

/// One entry of the ring in memory.
#[repr(C)]
pub struct Entry {
    token: AtomicU64,
    cid: AtomicU64,
    result: AtomicU64,
    reserved: AtomicU64,
}

const _: () = assert!(size_of::<Entry>() == 32);

/// The ring as a process sees it.
#[repr(C, align(4096))]
pub struct CompletionRing {
    /// Number of completions that were posted; written by the kernel.
    pub tail: AtomicU64,
    padding1: [u64; 7],
    /// Number of completions that were taken; written by the process.
    pub head: AtomicU64,
    padding2: [u64; 503],
    entries: [Entry; CAPACITY],
}

const _: () = assert!(size_of::<CompletionRing>() == RING_SIZE);
const _: () = assert!(core::mem::offset_of!(CompletionRing, tail) == TAIL_OFFSET);
const _: () = assert!(core::mem::offset_of!(CompletionRing, head) == HEAD_OFFSET);
const _: () = assert!(core::mem::offset_of!(CompletionRing, entries) == ENTRIES_OFFSET);

/// Offset in the ring of the entry with this index (which need not be reduced).
pub const fn entry_offset(index: u64) -> usize {
    ENTRIES_OFFSET + (index as usize % CAPACITY) * size_of::<Entry>()
}

impl CompletionRing {
    /// Takes the oldest completion. Only one taker at a time may call this; the caller ensures that.
    pub fn take(&self) -> Option<Completion> {
        let completion = self.peek()?;
        self.advance();
        Some(completion)
    }

    /// The oldest completion, which stays. For the taker only.
    pub fn peek(&self) -> Option<Completion> {
        // Relaxed: only the taker writes `head`.
        let head = self.head.load(Ordering::Relaxed);
        // Acquire: pairs with the kernel's release of `tail`, so that the entry's words are there.
        if self.tail.load(Ordering::Acquire) == head {
            return None;
        }
        let entry = &self.entries[head as usize % CAPACITY];
        Some(Completion {
            token: entry.token.load(Ordering::Relaxed),
            cid: entry.cid.load(Ordering::Relaxed),
            result: entry.result.load(Ordering::Relaxed),
        })
    }

    /// Takes away the completion that [`peek`](Self::peek) has shown. For the taker only.
    pub fn advance(&self) {
        let head = self.head.load(Ordering::Relaxed);
        // Release: the kernel may overwrite the entry only after it was read.
        self.head.store(head.wrapping_add(1), Ordering::Release);
    }

    /// Whether something is there to take; a cheap look without any guarantee for the next moment.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tail.load(Ordering::Acquire) == self.head.load(Ordering::Relaxed)
    }
}

/// The kernel's side, which reaches the ring's words through whatever view of the frames it has.
///
/// `word(offset)` gives the word at that byte offset of the ring; it is only called with offsets below [`RING_SIZE`]
/// that are multiples of 8.
pub struct Producer {
    tail: u64,
}

/// The ring has no free place: keep the completion and post it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Producer {
    /// For a ring whose memory is all zero.
    pub const fn new() -> Producer {
        Producer { tail: 0 }
    }

    /// How many completions were posted.
    pub const fn posted(&self) -> u64 {
        self.tail
    }

    /// Posts a completion. `tail` is kept on this side too, so that a process that writes to it misleads only itself.
    pub fn post<'a>(&mut self, completion: Completion, word: impl Fn(usize) -> &'a AtomicU64) -> Result<(), Full> {
        // Acquire: pairs with the taker's release of `head`.
        let head = word(HEAD_OFFSET).load(Ordering::Acquire);
        if self.tail.wrapping_sub(head) >= CAPACITY as u64 {
            return Err(Full);
        }
        let at = entry_offset(self.tail);
        word(at).store(completion.token, Ordering::Relaxed);
        word(at + 8).store(completion.cid, Ordering::Relaxed);
        word(at + 16).store(completion.result, Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
        // Release: the entry's words before the index that shows them.
        word(TAIL_OFFSET).store(self.tail, Ordering::Release);
        Ok(())
    }
}

impl Default for Producer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..RING_SIZE / 8).map(|_| AtomicU64::new(0)).collect()
    }

    fn take(words: &[AtomicU64]) -> Option<Completion> {
        let head = words[HEAD_OFFSET / 8].load(Ordering::Relaxed);
        if words[TAIL_OFFSET / 8].load(Ordering::Acquire) == head {
            return None;
        }
        let at = entry_offset(head) / 8;
        let completion = Completion {
            token: words[at].load(Ordering::Relaxed),
            cid: words[at + 1].load(Ordering::Relaxed),
            result: words[at + 2].load(Ordering::Relaxed),
        };
        words[HEAD_OFFSET / 8].store(head.wrapping_add(1), Ordering::Release);
        Some(completion)
    }

    #[test]
    fn completions_arrive_in_order_and_a_full_ring_refuses() {
        let words = words();
        let mut producer = Producer::new();
        let completion = |n: u64| Completion { token: n, cid: n + 1, result: n + 2 };
        for round in 0..3u64 {
            for n in 0..CAPACITY as u64 {
                assert_eq!(producer.post(completion(round * 1000 + n), |at| &words[at / 8]), Ok(()));
            }
            assert_eq!(producer.post(completion(0), |at| &words[at / 8]), Err(Full));
            for n in 0..CAPACITY as u64 {
                assert_eq!(take(&words), Some(completion(round * 1000 + n)));
            }
            assert_eq!(take(&words), None);
        }
        assert_eq!(producer.posted(), 3 * CAPACITY as u64);
    }

    #[test]
    fn nonsense_in_the_process_s_index_means_full() {
        let words = words();
        let mut producer = Producer::new();
        words[HEAD_OFFSET / 8].store(77, Ordering::Relaxed);
        assert_eq!(producer.post(Completion::default(), |at| &words[at / 8]), Err(Full));
    }
}
