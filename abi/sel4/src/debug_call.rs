//! The system calls that seL4 has only in some builds, for printing, debugging and measuring.
//!
//! Their numbers follow those of the interface without a gap, so what a number means depends on which of the calls
//! before it the build has. A [`Build`] says that, and the one table here has the calls in their order. Between
//! releases the numbers of a build change as well: in 16.0.0 [`DebugSendIPI`](DebugCall::DebugSendIPI) is there for
//! several cores only, and [`DebugGetThreadAffinity`](DebugCall::DebugGetThreadAffinity) comes behind it.

use crate::Numbering;

/// A release of seL4 whose numbers programs can have compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// 15.0.0.
    Fifteen,
    /// 16.0.0.
    Sixteen,
}

/// Which calls there are for measuring (`KernelBenchmarks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Benchmarks {
    /// None.
    Off,
    /// The null system call and its neighbours.
    Calls,
    /// Those, and a log of kernel entries (`track_kernel_entries`).
    Entries,
    /// Those, and the counters of threads (`track_utilisation`).
    Utilisation,
}

/// Which of the calls that come before it are for debugging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Debugging {
    /// None.
    Off,
    /// Programs print, and are debugged.
    On,
}

/// Properties of a build on which the numbers depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// The release whose numbers are meant.
    pub release: Release,
    /// For one core or for several.
    pub cores: Numbering,
    /// Whether there are calls for printing and debugging.
    pub debugging: Debugging,
    /// Which calls there are for measuring.
    pub benchmarks: Benchmarks,
}

/// Builds that have a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// All that print.
    Printing,
    /// All for debugging.
    Debugging,
    /// Those for debugging, of 15.0.0 or for several cores.
    SendIpi,
    /// Those for debugging, of 16.0.0 and for several cores.
    Affinity,
    /// All for measuring.
    Measuring,
    /// Those with counters.
    Utilisation,
    /// Those with counters, for debugging.
    UtilisationDebugging,
}

impl Presence {
    /// Whether a build has such a call.
    pub const fn is_in(self, build: Build) -> bool {
        let debugging = matches!(build.debugging, Debugging::On);
        let several = matches!(build.cores, Numbering::Multiprocessor);
        let sixteen = matches!(build.release, Release::Sixteen);
        let utilisation = matches!(build.benchmarks, Benchmarks::Utilisation);
        match self {
            Presence::Printing | Presence::Debugging => debugging,
            Presence::SendIpi => debugging && (several || !sixteen),
            Presence::Affinity => debugging && several && sixteen,
            Presence::Measuring => !matches!(build.benchmarks, Benchmarks::Off),
            Presence::Utilisation => utilisation,
            Presence::UtilisationDebugging => utilisation && debugging,
        }
    }

    /// In which builds that is, for the reference page.
    pub const fn description(self) -> &'static str {
        match self {
            Presence::Printing => "kernels that print",
            Presence::Debugging => "debugging kernels",
            Presence::SendIpi => "debugging kernels; in 16.0.0 only for several cores",
            Presence::Affinity => "debugging kernels of 16.0.0 for several cores",
            Presence::Measuring => "kernels with benchmarks",
            Presence::Utilisation => "kernels that count utilisation",
            Presence::UtilisationDebugging => "debugging kernels that count utilisation",
        }
    }
}

/// The number of the first of these calls.
const FIRST: isize = -9;

macro_rules! debug_calls {
    ($($(#[doc = $text:literal])* $variant:ident ($($argument:ident),*) $presence:ident;)*) => {
        /// A system call that only some builds have.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DebugCall {
            $($(#[doc = $text])* $variant,)*
        }

        impl DebugCall {
            /// The whole table, in the order in which the numbers are given.
            pub const ALL: &'static [DebugCall] = &[$(DebugCall::$variant),*];

            /// seL4's name, without the prefix.
            pub const fn name(self) -> &'static str {
                match self { $(DebugCall::$variant => stringify!($variant),)* }
            }

            /// The sentences above it in the table.
            pub const fn description(self) -> &'static str {
                match self { $(DebugCall::$variant => concat!($($text),*).trim_ascii(),)* }
            }

            /// Names of the arguments in `a0` and the following registers.
            pub const fn arguments(self) -> &'static [&'static str] {
                match self { $(DebugCall::$variant => &[$(stringify!($argument)),*],)* }
            }

            /// Which builds have it.
            pub const fn presence(self) -> Presence {
                match self { $(DebugCall::$variant => Presence::$presence,)* }
            }
        }
    };
}

debug_calls! {
    /// Writes a character to the console.
    DebugPutChar (character) Printing;
    /// Writes what the scheduler knows of each thread to the console.
    DebugDumpScheduler () Printing;
    /// Stops the machine.
    DebugHalt () Debugging;
    /// Returns the [`CapabilityTag`](crate::CapabilityTag) of a capability in `a0`.
    DebugCapIdentify (capability) Debugging;
    /// Writes the threads of the scheduler to the console. (seL4 writes all capabilities.)
    DebugSnapshot () Debugging;
    /// Gives a thread the name that lies in the IPC buffer's message, ended with NUL.
    DebugNameThread (thread) Debugging;
    /// Sends an interprocessor interrupt to a core.
    DebugSendIPI (target, interrupt) SendIpi;
    /// Returns the core of a thread in `a0`.
    DebugGetThreadAffinity (thread) Affinity;
    /// Flushes what caches the machine lets a kernel flush.
    BenchmarkFlushCaches () Measuring;
    /// Starts the log of kernel entries anew, or the counters of the whole core; `a0` is an error, or 0.
    BenchmarkResetLog () Measuring;
    /// Stops log and counters; returns in `a0` how many entries the log has.
    BenchmarkFinalizeLog () Measuring;
    /// Gives the kernel a large page for a log of kernel entries; `a0` is an error, or 0.
    BenchmarkSetLogBuffer (frame) Measuring;
    /// Does nothing.
    BenchmarkNullSyscall () Measuring;
    /// Writes the counters of a thread, and of its core, into the caller's message.
    BenchmarkGetThreadUtilisation (thread) Utilisation;
    /// Starts the counters of a thread anew.
    BenchmarkResetThreadUtilisation (thread) Utilisation;
    /// Writes the time of each thread that could run on the core to the console.
    BenchmarkDumpAllThreadsUtilisation () UtilisationDebugging;
    /// Starts the counters of all threads of the core anew.
    BenchmarkResetAllThreadsUtilisation () UtilisationDebugging;
}

impl DebugCall {
    /// Returns the number in `a7` for a kernel of this build; `None` if the kernel lacks the call.
    pub const fn number(self, build: Build) -> Option<isize> {
        let mut number = FIRST;
        let mut index = 0;
        while index < DebugCall::ALL.len() {
            let call = DebugCall::ALL[index];
            if call.presence().is_in(build) {
                if call as u8 == self as u8 {
                    return Some(number);
                }
                number -= 1;
            }
            index += 1;
        }
        None
    }

    /// The call that has this number in a build.
    pub fn from_number(number: isize, build: Build) -> Option<DebugCall> {
        let distance = usize::try_from(FIRST.checked_sub(number)?).ok()?;
        DebugCall::ALL.iter().copied().filter(|call| call.presence().is_in(build)).nth(distance)
    }

    /// Returns the number in `a7` of a call with one number in all builds that have it: those for printing and
    /// debugging up to [`DebugNameThread`](DebugCall::DebugNameThread).
    ///
    /// # Panics
    /// If it is another.
    pub const fn fixed_number(self) -> isize {
        assert!(matches!(self.presence(), Presence::Printing | Presence::Debugging), "its number depends on the build");
        FIRST - self as isize
    }
}

/// Words of the message that [`BenchmarkGetThreadUtilisation`](DebugCall::BenchmarkGetThreadUtilisation) writes. Times
/// are cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[doc(alias = "benchmark_track_util_ipc_index")]
pub enum Counter {
    /// How long the thread was scheduled.
    Thread,
    /// How often it was.
    ThreadSchedules,
    /// How long the kernel worked for it.
    ThreadKernel,
    /// How often it entered the kernel.
    ThreadEntries,
    /// How long its core was idle.
    IdleCore,
    /// Time of the idle thread on the core of the requested thread.
    Idle,
    /// How often the core became idle.
    IdleSchedules,
    /// How long the kernel worked while the core was idle.
    IdleKernel,
    /// How often the kernel was entered while the core was idle.
    IdleEntries,
    /// All time since the counters were started, or until they were stopped.
    Total,
    /// How often the core changed to another thread.
    TotalSchedules,
    /// How long the kernel worked.
    TotalKernel,
    /// How often it was entered.
    TotalEntries,
}

/// The reason of a kernel entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[doc(alias = "entry_type_t")]
pub enum EntryPath {
    /// An interrupt.
    Interrupt,
    /// A number that is none of the interface's calls: a call for debugging or measuring, or none.
    UnknownSystemCall,
    /// An exception other than a page fault.
    UserException,
    /// A debug exception, which this machine reports as another exception.
    DebugFault,
    /// A page fault.
    VmFault,
    /// A system call of the interface.
    SystemCall,
}

/// A kernel entry in 32 bits, as the log has it: the path in bits 0 to 2; for a system call its number without sign in
/// bits 3 to 6, type of the capability in 7 to 11, whether the fastpath served it in 12, and the message's label in 13
/// to 31; for others the core in bits 3 to 5, and a word in 6 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "kernel_entry_t")]
pub struct KernelEntry(pub u32);

impl KernelEntry {
    /// Makes the entry of a system call: its number without sign, the type of the capability that a message is sent to,
    /// and the label of the message.
    pub const fn system_call(number: u32, tag: u32, label: u32) -> KernelEntry {
        KernelEntry(EntryPath::SystemCall as u32 | (number & 0xf) << 3 | (tag & 0x1f) << 7 | label << 13)
    }

    /// Makes another entry, of this core. The word is the number of the call or of the exception.
    pub const fn other(path: EntryPath, core: u32, word: u32) -> KernelEntry {
        KernelEntry(path as u32 | (core & 7) << 3 | word << 6)
    }

    /// Marks a system call that was served by the fastpath.
    #[must_use]
    pub const fn on_fastpath(self) -> KernelEntry {
        KernelEntry(self.0 | 1 << 12)
    }
}

/// A record of the log of kernel entries. Times are cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[doc(alias = "benchmark_track_kernel_entry_t")]
pub struct LogEntry {
    /// Time of its beginning.
    pub start: u64,
    /// Its duration, or the largest number if it was longer.
    pub duration: u32,
    /// The entry.
    pub entry: KernelEntry,
}

impl LogEntry {
    /// Returns the record as words of memory.
    pub const fn words(self) -> [u64; 2] {
        [self.start, self.duration as u64 | (self.entry.0 as u64) << 32]
    }

    /// Returns the record that these words of memory are.
    pub const fn from_words([start, rest]: [u64; 2]) -> LogEntry {
        LogEntry { start, duration: rest as u32, entry: KernelEntry((rest >> 32) as u32) }
    }
}

const _: () = {
    assert!(size_of::<LogEntry>() == 16);
    assert!(core::mem::offset_of!(LogEntry, duration) == 8 && core::mem::offset_of!(LogEntry, entry) == 12);
};
