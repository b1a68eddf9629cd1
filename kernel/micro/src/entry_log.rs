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

use abi_sel4::call::number;
use abi_sel4::debug_call::{Benchmarks, EntryPath, KernelEntry, LogEntry};
use abi_sel4::{Error, MessageInfo};
use hal_api::Trap;
use objects::{Capability, FrameSize, PageRights, Ref, Tcb, ThreadFault, Words, frame_words};

use crate::kernel::Kernel;
use crate::{cspace, fault};

/// Number of entries in a page.
const CAPACITY: u64 = (1 << FrameSize::Mega.bits()) / size_of::<LogEntry>() as u64;

/// The log of all harts.
pub struct EntryLog {
    page: Cell<Option<u64>>,
    length: Cell<u64>,
    is_running: Cell<bool>,
}

/// The kernel entry of a hart that will be logged at its end.
pub struct LoggedEntry {
    /// Time of its beginning; 0 if there is none.
    start: Cell<u64>,
    entry: Cell<KernelEntry>,
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

    fn append(&self, record: LogEntry) {
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

impl Kernel {
    /// Notes the beginning of a kernel entry for the log.
    #[inline(always)]
    pub(crate) fn begin_log_entry(&self, thread: Option<Ref<Tcb>>, trap: Trap) {
        if cfg!(feature = "benchmarks") && self.log.is_running.get() {
            let logged = &self.node().logged;
            logged.entry.set(self.describe_entry(thread, trap));
            logged.start.set(platform::machine::cycles().max(1));
        }
    }

    /// Logs a kernel entry at its end.
    #[inline(always)]
    pub(crate) fn end_log_entry(&self, path: Path) {
        if cfg!(feature = "benchmarks") && self.log.is_running.get() {
            self.append_log_entry(path);
        }
    }

    fn append_log_entry(&self, path: Path) {
        let logged = &self.node().logged;
        let start = logged.start.take();
        if start != 0 {
            let duration = platform::machine::cycles().wrapping_sub(start).try_into().unwrap_or(u32::MAX);
            let entry = logged.entry.get();
            let entry = if path == Path::Fast { entry.on_fastpath() } else { entry };
            self.log.append(LogEntry { start, duration, entry });
        }
    }

    fn describe_entry(&self, thread: Option<Ref<Tcb>>, trap: Trap) -> KernelEntry {
        let other = |path, word: u64| KernelEntry::other(path, self.here.get() as u32, word as u32);
        match (trap, thread) {
            (Trap::SystemCall, Some(thread)) => {
                let called = thread.register::<17>().get();
                let tag = match called {
                    number::Call | number::Send | number::NBSend => {
                        let slot = cspace::lookup(thread, thread.register::<10>().get());
                        slot.map_or(0, |slot| slot.capability.tag())
                    }
                    number::ReplyRecv | number::Recv | number::Reply | number::Yield | number::NBRecv => 0,
                    _ => return other(EntryPath::UnknownSystemCall, called),
                };
                let label = MessageInfo(thread.register::<11>().get()).label();
                KernelEntry::system_call(called.wrapping_neg() as u32, tag as u32, label as u32)
            }
            _ => match fault::of_trap(trap) {
                Some(ThreadFault::Memory { status, .. }) => other(EntryPath::VmFault, status),
                Some(ThreadFault::User { number, .. }) => other(EntryPath::UserException, number),
                _ => other(EntryPath::Interrupt, 0),
            },
        }
    }

    /// Gives the log the page of a frame capability; returns the number of an error, or 0.
    pub(crate) fn set_log_buffer(&self, thread: Ref<Tcb>, address: u64) -> u64 {
        let refused = Error::IllegalOperation.number() as u64;
        if !self.logs_entries() {
            return refused;
        }
        let capability = cspace::lookup(thread, address).map_or(Capability::Null, |slot| slot.capability.get());
        match capability {
            Capability::Frame { base, size: FrameSize::Mega, rights: PageRights::ReadWrite, device: false, .. } => {
                self.log.is_running.set(false);
                self.log.page.set(Some(base));
                self.log.length.set(0);
                0
            }
            _ => refused,
        }
    }

    /// Begins the log anew; returns the number of an error, or 0.
    pub(crate) fn start_log(&self) -> u64 {
        if self.log.page.get().is_none() {
            return Error::IllegalOperation.number() as u64;
        }
        self.nodes.iter().for_each(|node| node.logged.start.set(0));
        self.log.length.set(0);
        self.log.is_running.set(true);
        0
    }

    /// Ends the log, and returns the number of its entries.
    pub(crate) fn stop_log(&self) -> u64 {
        self.log.is_running.set(false);
        self.log.length.get()
    }

    /// Returns whether this kernel was told to log its entries.
    pub(crate) fn logs_entries(&self) -> bool {
        cfg!(feature = "benchmarks") && self.calls.get().benchmarks == Benchmarks::Entries
    }
}
