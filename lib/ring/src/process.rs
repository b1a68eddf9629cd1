//! The rings as a process sees them: the kernel has mapped them, page after page.

use core::sync::atomic::{AtomicU64, Ordering};

use abi_queue::{Completion, CompletionHeader, Request, RequestHeader, completion, request};

use crate::{Full, Producer, Words, trusting};

/// The completion ring of a process.
#[derive(Clone, Copy)]
pub struct Completions<'a> {
    header: &'a CompletionHeader,
    entries: &'a [completion::Entry],
}

impl<'a> Completions<'a> {
    /// Makes the view of a ring from its header and its entries, whose number is a power of two.
    ///
    /// # Panics
    /// If it is not.
    #[inline(always)]
    pub fn new(header: &'a CompletionHeader, entries: &'a [completion::Entry]) -> Completions<'a> {
        assert!(entries.len().is_power_of_two(), "the capacity of a ring is a power of two");
        Completions { header, entries }
    }

    /// Returns the page with the indexes.
    pub fn header(&self) -> &'a CompletionHeader {
        self.header
    }

    /// Whether the ring is empty; a cheap look without any guarantee for the next moment.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        trusting::is_empty(self)
    }

    /// Returns the oldest completion, which stays. Only one taker at a time may call this; the caller ensures that.
    #[inline(always)]
    pub fn peek(&self) -> Option<Completion> {
        trusting::peek(self, self.entries.len()).map(Completion::from_words)
    }

    /// Removes the completion that [`peek`](Self::peek) has shown. For the taker only.
    #[inline(always)]
    pub fn advance(&self) {
        trusting::advance(self, 1);
    }

    /// Hands all present completions to `take`, in their order, and then removes them; returns their number. For the
    /// taker only.
    #[inline(always)]
    pub fn take_all(&self, take: impl FnMut(Completion)) -> usize {
        let count = trusting::count(self);
        trusting::peek_all(self, self.entries.len(), count).map(Completion::from_words).for_each(take);
        trusting::advance(self, count);
        count
    }

    /// Takes the oldest completion. For the taker only.
    #[inline(always)]
    pub fn take(&self) -> Option<Completion> {
        let completion = self.peek()?;
        self.advance();
        Some(completion)
    }
}

/// The request ring of a worker.
#[derive(Clone, Copy)]
pub struct Requests<'a> {
    header: &'a RequestHeader,
    entries: &'a [request::Entry],
}

impl<'a> Requests<'a> {
    /// Makes the view of a ring from its header and its entries, whose number is a power of two.
    ///
    /// # Panics
    /// If it is not.
    pub fn new(header: &'a RequestHeader, entries: &'a [request::Entry]) -> Requests<'a> {
        assert!(entries.len().is_power_of_two(), "the capacity of a ring is a power of two");
        Requests { header, entries }
    }

    /// Returns the page with the indexes.
    pub fn header(&self) -> &'a RequestHeader {
        self.header
    }

    /// Makes a request and publishes it to the kernel.
    ///
    /// # Errors
    /// [`Full`]; nothing has changed.
    #[inline(always)]
    pub fn submit(&self, producer: &mut Producer, request: Request, urgency: u64) -> Result<(), Full> {
        let place = producer.next_place(self)?;
        self.submit_at(producer, place, request, urgency);
        Ok(())
    }

    /// Publishes a request at the place that the producer has just [given](Producer::next_place).
    #[inline(always)]
    pub fn submit_at(&self, producer: &mut Producer, place: usize, request: Request, urgency: u64) {
        self.write(place, request.to_words());
        // Before the tail, so that a kernel that sees the request sees its urgency; at worst the kernel takes back a
        // claim that has just been made, and then it looks at the request itself.
        if self.header.urgency.load(Ordering::Relaxed) < urgency {
            self.header.urgency.store(urgency, Ordering::Relaxed);
        }
        producer.publish(self);
    }
}

/// Implements [`Words`] for a view whose indexes lie in its header, and whose entries lie one after the other.
macro_rules! words_in_a_mapping {
    ($view:ident, $words:expr) => {
        impl Words<{ $words }> for $view<'_> {
            #[inline(always)]
            fn tail(&self) -> &AtomicU64 {
                &self.header.tail
            }

            #[inline(always)]
            fn head(&self) -> &AtomicU64 {
                &self.header.head
            }

            #[inline(always)]
            fn read(&self, place: usize) -> [u64; $words] {
                read(&self.entries[place])
            }

            #[inline(always)]
            fn write(&self, place: usize, entry: [u64; $words]) {
                write(&self.entries[place], entry);
            }
        }
    };
}

words_in_a_mapping!(Completions, completion::ENTRY_WORDS);
words_in_a_mapping!(Requests, request::ENTRY_WORDS);

#[inline(always)]
fn read<const N: usize>(words: &[AtomicU64; N]) -> [u64; N] {
    core::array::from_fn(|index| words[index].load(Ordering::Relaxed))
}

#[inline(always)]
fn write<const N: usize>(words: &[AtomicU64; N], entry: [u64; N]) {
    for (word, value) in words.iter().zip(entry) {
        word.store(value, Ordering::Relaxed);
    }
}
