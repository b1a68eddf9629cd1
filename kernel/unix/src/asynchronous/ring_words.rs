//! The words of request and completion rings in the frames that a process and the kernel share.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use ::ring::Words;
use abi_queue::completion;
use abi_queue::pages::PAGE_SIZE;
use abi_queue::request::{self, ENTRY_WORDS};
use memory::SharedFrame;

/// The words of a ring's frames. Remembers the page of the last access: entries come one after another, and finding a
/// page takes as many instructions as reading an entry.
struct Pages<'a> {
    frames: &'a [SharedFrame],
    page: Cell<usize>,
    words: Cell<&'a PageWords>,
}

type PageWords = [AtomicU64; PAGE_SIZE / size_of::<u64>()];

impl<'a> Pages<'a> {
    #[inline(always)]
    fn new(frames: &'a [SharedFrame]) -> Pages<'a> {
        Pages { frames, page: Cell::new(0), words: Cell::new(Self::words_of(&frames[0])) }
    }

    #[inline(always)]
    fn words_of(frame: &'a SharedFrame) -> &'a PageWords {
        frame.bytes().atomic_words(0).expect("frames are aligned, and so large")
    }

    /// Returns a word of the first page.
    #[inline(always)]
    fn header(&self, offset: usize) -> &'a AtomicU64 {
        &Self::words_of(&self.frames[0])[offset / size_of::<u64>()]
    }

    /// Returns the words of an entry. Entries do not lie across pages.
    #[inline(always)]
    fn entry<const N: usize>(&self, offset: usize) -> &'a [AtomicU64; N] {
        let page = offset / PAGE_SIZE;
        if page != self.page.get() {
            self.words.set(Self::words_of(&self.frames[page]));
            self.page.set(page);
        }
        let (entries, _) = self.words.get().as_chunks();
        &entries[offset % PAGE_SIZE / (N * size_of::<u64>())]
    }

    /// Reads an entry: each word once.
    #[inline(always)]
    fn read<const N: usize>(&self, offset: usize) -> [u64; N] {
        let words = self.entry::<N>(offset);
        core::array::from_fn(|index| words[index].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn write<const N: usize>(&self, offset: usize, entry: [u64; N]) {
        for (word, value) in self.entry::<N>(offset).iter().zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// A ring's frames, viewed as a request ring.
pub(super) struct RequestView<'a>(Pages<'a>);

impl<'a> RequestView<'a> {
    #[inline(always)]
    pub(super) fn new(frames: &'a [SharedFrame]) -> RequestView<'a> {
        RequestView(Pages::new(frames))
    }

    pub(super) fn capacity(&self) -> &AtomicU64 {
        self.0.header(request::CAPACITY_OFFSET)
    }

    pub(super) fn state(&self) -> &AtomicU64 {
        self.0.header(request::STATE_OFFSET)
    }

    pub(super) fn urgency(&self) -> &AtomicU64 {
        self.0.header(request::URGENCY_OFFSET)
    }
}

impl Words<ENTRY_WORDS> for RequestView<'_> {
    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        self.0.header(request::TAIL_OFFSET)
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        self.0.header(request::HEAD_OFFSET)
    }

    #[inline(always)]
    fn read(&self, place: usize) -> [u64; ENTRY_WORDS] {
        self.0.read(request::entry_offset(place))
    }

    #[inline(always)]
    fn write(&self, place: usize, entry: [u64; ENTRY_WORDS]) {
        self.0.write(request::entry_offset(place), entry);
    }
}

/// The frames of a process's completion ring, viewed as a completion ring.
pub(crate) struct CompletionView<'a>(Pages<'a>);

impl<'a> CompletionView<'a> {
    /// Views the frames of a ring, of which there is one at least.
    #[inline(always)]
    pub(crate) fn new(frames: &'a [SharedFrame]) -> CompletionView<'a> {
        CompletionView(Pages::new(frames))
    }
}

impl Words<{ completion::ENTRY_WORDS }> for CompletionView<'_> {
    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        self.0.header(completion::TAIL_OFFSET)
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        self.0.header(completion::HEAD_OFFSET)
    }

    #[inline(always)]
    fn read(&self, place: usize) -> [u64; completion::ENTRY_WORDS] {
        self.0.read(completion::entry_offset(place))
    }

    #[inline(always)]
    fn write(&self, place: usize, entry: [u64; completion::ENTRY_WORDS]) {
        self.0.write(completion::entry_offset(place), entry);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::process::shared::zeroed;

    #[test]
    fn entries_of_all_pages_are_apart_from_each_other_and_from_the_header() {
        let _guard = crate::testing::alone();
        memory::fake::init(64 << 20);
        let frames: Vec<_> = (0..3).map(|_| zeroed().unwrap()).collect();
        let requests = RequestView::new(&frames);
        let places = 2 * PAGE_SIZE / request::ENTRY_SIZE;
        for place in 0..places {
            requests.write(place, [place as u64 + 1; ENTRY_WORDS]);
        }
        for place in (0..places).rev() {
            assert_eq!(requests.read(place), [place as u64 + 1; ENTRY_WORDS]);
        }
        let header = [requests.tail(), requests.head(), requests.capacity(), requests.state(), requests.urgency()];
        for (number, word) in header.iter().enumerate() {
            assert_eq!(word.load(Ordering::Relaxed), 0, "{number}");
            word.store(number as u64 + 7, Ordering::Relaxed);
        }
        assert_eq!(header.map(|word| word.load(Ordering::Relaxed)), [7, 8, 9, 10, 11], "five words");
        // A view of the other kind of ring has entries of another size.
        let completions = CompletionView::new(&frames);
        completions.write(200, [5; completion::ENTRY_WORDS]);
        assert_eq!(completions.read(200), [5; completion::ENTRY_WORDS]);
    }
}
