//! The system calls for printing, debugging and measuring, under the numbers that the boot words choose.
//!
//! **Utilisation.** In kernels with the feature `benchmarks` a hart reads its cycle counter when a thread enters the
//! kernel and when the kernel has served that entry, and adds the difference to the counters of the thread and of the
//! hart. The time from then until the next thread runs is counted for the next thread. The time of virtualised threads
//! is counted as idle time.
//!
//! **Log of entries.** See [`entry_log`](crate::entry_log).

use abi_sel4::call::number;
use abi_sel4::debug_call::{Benchmarks, Counter, EntryPath, KernelEntry, LogEntry};
use abi_sel4::message::MAXIMUM_LENGTH;
use abi_sel4::{DebugCall, Error, MessageInfo};
use hal_api::Trap;
use objects::{Capability, FrameSize, PageRights, Ref, Tcb, ThreadFault};

use crate::entry_log::Path;
use crate::kernel::Kernel;
use crate::message::{receive_buffer, word};
use crate::{console, cspace, fault};

impl Kernel {
    /// Counts a kernel entry of a thread or of an idle hart.
    #[inline(always)]
    pub(crate) fn count_entry(&self, thread: Option<Ref<Tcb>>) {
        if cfg!(feature = "benchmarks") && self.node().counters.is_running() {
            let counters = &self.node().counters;
            let cycles = counters.lap();
            counters.add(thread, |used| {
                used.cycles.set(used.cycles.get() + cycles);
                used.entries.set(used.entries.get() + 1);
            });
        }
    }

    /// Counts the time in the kernel at the end of the service of an entry, for a thread or an idle hart.
    #[inline(always)]
    pub(crate) fn count_exit(&self, thread: Option<Ref<Tcb>>) {
        if cfg!(feature = "benchmarks") && self.node().counters.is_running() {
            let counters = &self.node().counters;
            let cycles = counters.lap();
            counters.add(thread, |used| {
                used.cycles.set(used.cycles.get() + cycles);
                used.kernel.set(used.kernel.get() + cycles);
            });
        }
    }

    /// Counts a context switch to a thread, or to idleness.
    #[inline(always)]
    pub(crate) fn count_switch(&self, thread: Option<Ref<Tcb>>) {
        if cfg!(feature = "benchmarks") && self.node().counters.is_running() {
            self.node().counters.add(thread, |used| used.schedules.set(used.schedules.get() + 1));
        }
    }

    /// Serves a system call beyond seL4's eight and this kernel's own.
    #[cold]
    #[inline(never)]
    pub(crate) fn debug_call(&self, thread: Ref<Tcb>, number: u64) {
        let Some(call) = DebugCall::from_number(number as isize, self.calls.get()) else {
            return self.fault(thread, ThreadFault::UnknownSystemCall { number });
        };
        let argument = thread.register::<10>().get();
        let result = match call {
            DebugCall::DebugPutChar => return console::write_bytes(&[argument as u8]),
            DebugCall::DebugDumpScheduler | DebugCall::DebugSnapshot => return self.print_scheduler(),
            DebugCall::DebugHalt => return self.halt(),
            DebugCall::DebugCapIdentify => cspace::lookup(thread, argument).map_or(0, |slot| slot.capability.tag()),
            DebugCall::DebugGetThreadAffinity => match named_thread(thread, argument) {
                Some(named) => named.affinity.get().into(),
                None => 0,
            },
            // Names of threads are for debuggers of other kernels; this kernel ignores them. The interrupt to another
            // core exists only for Arm, and there are no caches that the kernel could flush.
            DebugCall::DebugNameThread
            | DebugCall::DebugSendIPI
            | DebugCall::BenchmarkFlushCaches
            | DebugCall::BenchmarkNullSyscall => return,
            DebugCall::BenchmarkSetLogBuffer => self.set_log_buffer(thread, argument),
            DebugCall::BenchmarkResetLog if self.logs_entries() => self.start_log(),
            DebugCall::BenchmarkFinalizeLog if self.logs_entries() => self.stop_log(),
            DebugCall::BenchmarkResetLog => {
                self.start_counters();
                0
            }
            DebugCall::BenchmarkFinalizeLog => {
                self.stop_counters();
                0
            }
            DebugCall::BenchmarkGetThreadUtilisation => return self.get_utilisation(thread, argument),
            DebugCall::BenchmarkResetThreadUtilisation => {
                if let Some(named) = named_thread(thread, argument) {
                    named.used.reset();
                }
                return;
            }
            DebugCall::BenchmarkDumpAllThreadsUtilisation => return self.print_utilisation(),
            DebugCall::BenchmarkResetAllThreadsUtilisation => {
                let counters = &self.node().counters;
                return counters.epoch.set(counters.epoch.get() + 1);
            }
        };
        thread.register::<10>().set(result);
    }

    fn start_counters(&self) {
        let counters = &self.node().counters;
        counters.idle.reset();
        counters.busy.reset();
        let now = platform::machine::cycles();
        counters.last.set(now);
        counters.start.set(now.max(1));
    }

    fn stop_counters(&self) {
        let counters = &self.node().counters;
        counters.total.set(platform::machine::cycles().wrapping_sub(counters.start.take()));
    }

    /// Writes the counters of a thread and of this hart to the caller's IPC buffer, if it has one.
    fn get_utilisation(&self, thread: Ref<Tcb>, address: u64) {
        let (Some(named), Some(words)) =
            (self.node().counters.of(named_thread(thread, address)), receive_buffer(thread))
        else {
            return;
        };
        let counters = &self.node().counters;
        let total = match counters.start.get() {
            0 => counters.total.get(),
            start => platform::machine::cycles().wrapping_sub(start),
        };
        let (idle, busy) = (&counters.idle, &counters.busy);
        let put = |counter: Counter, value: u64| words.set(word::MESSAGE + counter as usize, value);
        put(Counter::Thread, named.used.cycles.get());
        put(Counter::ThreadSchedules, named.used.schedules.get());
        put(Counter::ThreadKernel, named.used.kernel.get());
        put(Counter::ThreadEntries, named.used.entries.get());
        put(Counter::IdleCore, idle.cycles.get());
        put(Counter::Idle, idle.cycles.get());
        put(Counter::IdleSchedules, idle.schedules.get());
        put(Counter::IdleKernel, idle.kernel.get());
        put(Counter::IdleEntries, idle.entries.get());
        put(Counter::Total, total);
        put(Counter::TotalSchedules, busy.schedules.get());
        put(Counter::TotalKernel, busy.kernel.get());
        put(Counter::TotalEntries, busy.entries.get());
    }

    /// Writes to the console the run time of all ready threads of this hart.
    fn print_utilisation(&self) {
        let counters = &self.node().counters;
        let print = |thread: Option<Ref<Tcb>>| {
            if let Some(thread) = counters.of(thread) {
                console::print(format_args!("thread at {:#x},{}\n", thread.physical(), thread.used.cycles.get()));
            }
        };
        print(self.node().current.get());
        for ready in self.node().ready.iter() {
            ready.for_each(|thread| print(Some(thread)));
        }
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

/// Returns the thread of a thread capability in `thread`'s capability space.
fn named_thread(thread: Ref<Tcb>, address: u64) -> Option<Ref<Tcb>> {
    match cspace::lookup(thread, address).ok()?.capability.get() {
        Capability::Thread { tcb } => Some(tcb),
        _ => None,
    }
}

const _: () = assert!((Counter::TotalEntries as usize) < MAXIMUM_LENGTH);
