//! The log of kernel entries, which seL4 keeps in builds that track them (`benchmarks=entries`).
//!
//! A program gives the kernel a large page by `BenchmarkSetLogBuffer`. From `BenchmarkResetLog` to
//! `BenchmarkFinalizeLog`, or until the page is full, each entry of a thread or of an idle hart is appended at its end
//! as a [`LogEntry`]; the two calls themselves are not. Entries of virtualised and armed threads and the service of
//! asynchronous invocations are left out: seL4 has nothing like them. Only kernels with the feature `benchmarks` have a
//! log, because each entry pays for the question whether it is kept.
//!
//! LOG-PAGE: the kernel writes to the page only while capabilities of it exist, since the deletion of any of them ends
//! the log and forgets the page.

use core::cell::Cell;

use abi_sel4::debug_call::{EntryPath, KernelEntry, LogEntry};
use objects::{FrameSize, Words, frame_words};

/// Number of entries in a page.
const CAPACITY: u64 = (1 << FrameSize::Mega.bits()) / size_of::<LogEntry>() as u64;

/// The log of all harts.
pub struct EntryLog {
    pub(crate) page: Cell<Option<u64>>,
    pub(crate) length: Cell<u64>,
    pub(crate) is_running: Cell<bool>,
}

/// The kernel entry of a hart that will be logged at its end.
pub struct LoggedEntry {
    /// Time of its beginning; 0 if there is none.
    pub(crate) start: Cell<u64>,
    pub(crate) entry: Cell<KernelEntry>,
}

/// The part of the kernel that served an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The fastpath.
    Fast,
    /// Any other.
    Slow,
}

impl EntryLog {
    /// Makes a log without a page.
    pub const fn new() -> EntryLog {
        EntryLog { page: Cell::new(None), length: Cell::new(0), is_running: Cell::new(false) }
    }

    /// Appends a record, if there is a page with room for it.
    pub(crate) fn append(&self, record: LogEntry) {
        let length = self.length.get();
        let Some(page) = self.page.get().filter(|_| length < CAPACITY) else { return };
        let index = length as usize * (size_of::<LogEntry>() / size_of::<u64>());
        let words = frame_words(page + (index / Words::COUNT * size_of::<Words>()) as u64);
        let [start, rest] = record.words();
        words.set(index % Words::COUNT, start);
        words.set(index % Words::COUNT + 1, rest);
        self.length.set(length + 1);
    }

    /// Returns whether the log has a page.
    pub fn has_page(&self) -> bool {
        self.page.get().is_some()
    }

    /// Returns whether the log is in this page.
    #[inline(always)]
    pub fn is_in(&self, base: u64) -> bool {
        self.page.get() == Some(base)
    }

    /// Ends the log if it is in this page, a capability of which is deleted.
    #[inline(always)]
    pub fn forget(&self, base: u64) {
        if cfg!(feature = "benchmarks") && self.is_in(base) {
            self.page.set(None);
            self.is_running.set(false);
        }
    }
}

impl LoggedEntry {
    /// Makes an entry that will not be logged.
    pub const fn new() -> LoggedEntry {
        LoggedEntry { start: Cell::new(0), entry: Cell::new(KernelEntry::other(EntryPath::Interrupt, 0, 0)) }
    }
}
