//! Rings in shared memory: one producer, one consumer, and either may be hostile.
//!
//! Asynchronous calls travel through two rings, requests to a kernel and completions back. Their layouts are defined in
//! [`abi_queue`]; this is the algorithm, shared by requests and completions, by kernels, by processes and by the model
//! checker. These differ in the location of the words ([`Words`]): in a mapping of the process, in frames that a kernel
//! sees page by page, or in loom's fake memory.
//!
//! # The algorithm
//!
//! The producer owns the index `tail`, the consumer the index `head`; both only grow. The entry with index `i` lies at
//! place `i % capacity`.
//!
//! ```text
//!   producer                                        consumer
//!   --------                                        --------
//!   is tail - head < capacity?  (head: acquire) <-------------------------+
//!   write the entry's words     (relaxed)                                 |
//!   advance tail                (release) --------> look at tail  (acquire)
//!                                                   read the entry (relaxed, each word once)
//!                                                   advance head   (release)
//! ```
//!
//! * `tail`, release and acquire: a consumer that sees the index sees the words of all entries before it.
//! * `head`, release and acquire: a place is written again only after its last entry has been read.
//! * Each side reads its *own* index from its own memory, not from the shared word, so that the other side cannot
//!   change it.
//! * Words are relaxed atomics: the other side may write them at any moment, against the rules, and then the reader
//!   gets some value, once; it checks the copy and uses the copy.
//!
//! Several entries can be made, or taken, before the index that shows it is stored: a batch costs one store.
//!
//! # A hostile other side
//!
//! A hostile consumer can write nonsense to `head`. A distance of the capacity or more means [`Full`], so the worst is
//! that entries are overwritten that the other side has not read, or that it never gets any.
//!
//! A hostile producer can write nonsense to `tail` and to entries. A `tail` that is more than the capacity ahead cannot
//! come from the algorithm: [`Broken`]. One within the capacity makes old or unwritten entries visible; the consumer
//! checks every entry as if it came from a stranger, because it does.
//!
//! # Sleeping and waking
//!
//! A consumer without work sleeps, and the producer must then call it; while it is awake the call would be a waste. The
//! `state` word distinguishes the two:
//!
//! ```text
//!   producer                                        consumer
//!   --------                                        --------
//!   advance tail                                    state = SLEEPING
//!   fence (SeqCst)                                  fence (SeqCst)
//!   is state SLEEPING? then call                    is tail advanced? then state = AWAKE, and go on
//! ```
//!
//! Each side writes its word and then reads the other's. Release and acquire alone allow both to read the old values:
//! the entry would stay, and the consumer would not be called. With a sequentially consistent fence between write and
//! read on both sides, at least one of them sees the other's write. The tempting wrong way is to store `state` with
//! release, "because it publishes something".
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(not(loom))]
mod process;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

use abi_queue::request::{AWAKE, SLEEPING};

#[cfg(not(loom))]
pub use process::{Completions, Requests};

/// A ring as one side sees it: the location of its words. `N` is the number of words of an entry.
pub trait Words<const N: usize> {
    /// Returns the producer's index.
    fn tail(&self) -> &AtomicU64;
    /// Returns the consumer's index.
    fn head(&self) -> &AtomicU64;
    /// Reads the entry at a place, each word once. `place` is less than the capacity.
    fn read(&self, place: usize) -> [u64; N];
    /// Writes the entry at a place, which is less than the capacity.
    fn write(&self, place: usize, entry: [u64; N]);
}

/// The ring has no free place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The producer's index is further ahead than the capacity: the ring cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The producer's side.
#[derive(Debug)]
pub struct Producer {
    /// Index of the next entry.
    tail: u64,
    /// Index up to which entries were published.
    published: u64,
    /// The consumer's index when it was last read.
    head: u64,
    capacity: u64,
}

impl Producer {
    /// Makes the producer of a ring whose memory is all zero. The capacity is a power of two.
    ///
    /// # Panics
    /// If it is not.
    #[doc(alias = "io_uring")]
    pub const fn new(capacity: usize) -> Producer {
        assert!(capacity.is_power_of_two(), "the capacity of a ring is a power of two");
        Producer { tail: 0, published: 0, head: 0, capacity: capacity as u64 }
    }

    /// Makes the producer of a ring through which `tail` entries have gone so far, by a producer that kept no other
    /// state. The capacity is a power of two.
    #[inline(always)]
    pub const fn resume(capacity: usize, tail: u64) -> Producer {
        // As if the ring were full: so the consumer's index is read before anything is written.
        Producer { tail, published: tail, head: tail.wrapping_sub(capacity as u64), capacity: capacity as u64 }
    }

    /// Returns the capacity in entries.
    pub const fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Returns the number of entries published in all.
    #[inline(always)]
    pub const fn published(&self) -> u64 {
        self.published
    }

    /// Returns the number of entries that were made and not published.
    #[inline(always)]
    pub const fn unpublished(&self) -> u64 {
        self.tail.wrapping_sub(self.published)
    }

    /// Changes the capacity of an empty ring: its next entry lies at the place for the new capacity.
    ///
    /// # Errors
    /// [`Full`] if the ring is not empty, or if the other side claims so.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn resize<const N: usize>(&mut self, words: &impl Words<N>, capacity: usize) -> Result<(), Full> {
        assert!(capacity.is_power_of_two(), "the capacity of a ring is a power of two");
        // Acquire: as in `free`.
        self.head = words.head().load(Ordering::Acquire);
        if self.head != self.tail {
            return Err(Full);
        }
        self.capacity = capacity as u64;
        Ok(())
    }

    /// Returns the number of free places.
    pub fn free<const N: usize>(&mut self, words: &impl Words<N>) -> usize {
        // Acquire: pairs with the consumer's release, so that the entries in these places have been read.
        self.head = words.head().load(Ordering::Acquire);
        self.capacity.saturating_sub(self.tail.wrapping_sub(self.head)) as usize
    }

    /// Writes an entry, which stays invisible to the consumer until it is published.
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    #[inline(always)]
    pub fn push<const N: usize>(&mut self, words: &impl Words<N>, entry: [u64; N]) -> Result<(), Full> {
        let place = self.next_place(words)?;
        words.write(place, entry);
        Ok(())
    }

    /// Takes the next place, for an entry that the caller writes there before it is published.
    ///
    /// # Errors
    /// [`Full`]; nothing has changed.
    #[inline(always)]
    pub fn next_place<const N: usize>(&mut self, words: &impl Words<N>) -> Result<usize, Full> {
        // The last known `head` can only be too old, which is too careful. (A consumer whose index goes back causes its
        // own loss: entries that it has not read are overwritten, until the next look.)
        if self.tail.wrapping_sub(self.head) >= self.capacity && self.free(words) == 0 {
            return Err(Full);
        }
        let place = self.tail & (self.capacity - 1);
        self.tail = self.tail.wrapping_add(1);
        Ok(place as usize)
    }

    /// Makes all pushed entries visible to the consumer.
    #[inline(always)]
    pub fn publish<const N: usize>(&mut self, words: &impl Words<N>) {
        self.published = self.tail;
        // Release: the entries' words before the index that shows them.
        words.tail().store(self.tail, Ordering::Release);
    }

    /// Pushes and publishes.
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    #[inline(always)]
    pub fn post<const N: usize>(&mut self, words: &impl Words<N>, entry: [u64; N]) -> Result<(), Full> {
        self.push(words, entry)?;
        self.publish(words);
        Ok(())
    }
}

/// The side of a consumer that does not trust the producer.
#[derive(Debug)]
#[doc(alias = "SPSC")]
#[doc(alias = "io_uring")]
pub struct Consumer {
    /// Index of the next entry to take.
    head: u64,
    /// Index up to which entries are known to exist. Never more than the capacity ahead of `head`.
    tail: u64,
    capacity: u64,
}

impl Consumer {
    /// Makes the consumer of a ring whose memory is all zero. The capacity is a power of two.
    ///
    /// # Panics
    /// If it is not.
    pub const fn new(capacity: usize) -> Consumer {
        assert!(capacity.is_power_of_two(), "the capacity of a ring is a power of two");
        Consumer { head: 0, tail: 0, capacity: capacity as u64 }
    }

    /// Makes the consumer of a ring of which `head` entries were taken so far, by a consumer that kept no other state.
    /// The capacity is a power of two.
    #[inline(always)]
    pub const fn resume(capacity: usize, head: u64) -> Consumer {
        Consumer { head, tail: head, capacity: capacity as u64 }
    }

    /// Returns the number of entries taken in all.
    pub const fn taken(&self) -> u64 {
        self.head
    }

    /// Reads the producer's index; returns the number of entries to take.
    ///
    /// # Errors
    /// [`Broken`] if the producer's index makes no sense.
    #[inline]
    pub fn look<const N: usize>(&mut self, words: &impl Words<N>) -> Result<usize, Broken> {
        // Acquire: pairs with the producer's release, so that the entries' words are there.
        let tail = words.tail().load(Ordering::Acquire);
        let count = tail.wrapping_sub(self.head);
        // An index that goes back to an earlier value is nonsense too, and as harmless as a small step forward.
        if count > self.capacity {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(count as usize)
    }

    /// Takes one of the entries that [`look`](Self::look) has found; `None` when there are no more of them. The place
    /// is not handed back yet.
    #[inline(always)]
    pub fn take<const N: usize>(&mut self, words: &impl Words<N>) -> Option<[u64; N]> {
        self.take_place().map(|place| words.read(place))
    }

    /// Takes the place of an entry, for a caller that reads it itself, each word once, before it hands the place back.
    #[inline(always)]
    pub fn take_place(&mut self) -> Option<usize> {
        if self.head == self.tail {
            return None;
        }
        let place = self.head & (self.capacity - 1);
        self.head = self.head.wrapping_add(1);
        Some(place as usize)
    }

    /// Puts the entry that was taken last back, before its place was handed back. The next reader reads it again, and
    /// may read other words.
    #[inline]
    pub fn leave_last(&mut self) {
        self.head = self.head.wrapping_sub(1);
    }

    /// Hands the places of all taken entries back to the producer.
    #[inline(always)]
    pub fn hand_back<const N: usize>(&self, words: &impl Words<N>) {
        // Release: the entries were read before they may be overwritten.
        words.head().store(self.head, Ordering::Release);
    }

    /// Marks the consumer as asleep unless there is an entry to take; returns whether it sleeps.
    ///
    /// # Errors
    /// [`Broken`] if the producer's index makes no sense.
    pub fn fall_asleep<const N: usize>(&mut self, words: &impl Words<N>, state: &AtomicU64) -> Result<bool, Broken> {
        // Relaxed: the fence orders it, and it publishes nothing.
        state.store(SLEEPING, Ordering::Relaxed);
        // Pairs with the fence in `must_be_called`.
        fence(Ordering::SeqCst);
        if self.look(words)? == 0 {
            return Ok(true);
        }
        state.store(AWAKE, Ordering::Relaxed);
        Ok(false)
    }
}

/// Whether the consumer sleeps, and has to be called because of the entries published before.
#[doc(alias = "notify")]
#[doc(alias = "kick")]
#[inline]
pub fn must_be_called(state: &AtomicU64) -> bool {
    // Pairs with the fence in `fall_asleep`: if this reads the old state, the consumer's look sees the new tail.
    fence(Ordering::SeqCst);
    state.load(Ordering::Relaxed) == SLEEPING
}

/// The side of a process that takes the kernel's completions: it trusts the producer, and its index lies in the shared
/// word, because its workers take turns. One worker at a time may call these; the caller ensures that.
pub mod trusting {
    use super::{Ordering, Words};

    /// Whether the ring is empty; a cheap look without any guarantee for the next moment.
    #[inline(always)]
    pub fn is_empty<const N: usize>(words: &impl Words<N>) -> bool {
        words.tail().load(Ordering::Relaxed) == words.head().load(Ordering::Relaxed)
    }

    /// Returns the oldest entry, which stays.
    #[inline(always)]
    pub fn peek<const N: usize>(words: &impl Words<N>, capacity: usize) -> Option<[u64; N]> {
        peek_place(words, capacity).map(|place| words.read(place))
    }

    /// Returns the place of the oldest entry, which stays.
    #[inline(always)]
    pub fn peek_place<const N: usize>(words: &impl Words<N>, capacity: usize) -> Option<usize> {
        // Relaxed: the previous taker handed its turn over with stronger ordering.
        let head = words.head().load(Ordering::Relaxed);
        // Acquire: pairs with the producer's release, so that the entry's words are there.
        if words.tail().load(Ordering::Acquire) == head {
            return None;
        }
        Some((head & (capacity as u64 - 1)) as usize)
    }

    /// Returns the number of entries to take.
    #[inline(always)]
    pub fn count<const N: usize>(words: &impl Words<N>) -> usize {
        // Relaxed and acquire: as in `peek_place`.
        let head = words.head().load(Ordering::Relaxed);
        words.tail().load(Ordering::Acquire).wrapping_sub(head) as usize
    }

    /// Returns the entries that [`count`] has found, from the oldest on; they stay.
    #[inline(always)]
    pub fn peek_all<const N: usize>(
        words: &impl Words<N>,
        capacity: usize,
        count: usize,
    ) -> impl Iterator<Item = [u64; N]> {
        let head = words.head().load(Ordering::Relaxed) as usize;
        (0..count).map(move |index| words.read(head.wrapping_add(index) & (capacity - 1)))
    }

    /// Removes `count` of the oldest entries, which were read.
    #[inline(always)]
    pub fn advance<const N: usize>(words: &impl Words<N>, count: usize) {
        let head = words.head().load(Ordering::Relaxed);
        // Release: the producer may overwrite the entries only after they were read.
        words.head().store(head.wrapping_add(count as u64), Ordering::Release);
    }
}
