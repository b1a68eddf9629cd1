//! Records of a scheduling trace, and snapshots of processes and harts, for tools that watch the system.
//!
//! All data are arrays of `u64` words, in memory as on the wire (little-endian).

/// Words of a record.
pub const RECORD_WORDS: usize = 4;
/// Bytes of a record.
pub const RECORD_BYTES: usize = RECORD_WORDS * 8;
/// Maximum number of records of one `trace_write`.
pub const MOST_RECORDS_AT_ONCE: usize = 64;
/// First word of a stream of records; ticks of the clock in a second, number of harts, and a word of 0 follow.
pub const STREAM_MAGIC: u64 = u64::from_le_bytes(*b"COPStrc1");

/// First word of each snapshot in a stream; nanoseconds since the start of the machine, numbers of harts and of
/// processes, the global bitmap, calls in flight, free frames, and a word of 0 follow. The harts come next, then the
/// processes.
pub const SNAPSHOT_MAGIC: u64 = u64::from_le_bytes(*b"COPStop1");
/// Words before the harts of a snapshot in a stream.
pub const SNAPSHOT_HEAD_WORDS: usize = 8;

macro_rules! kinds {
    ($($(#[doc = $text:literal])* $variant:ident = $number:literal;)*) => {
        /// Kind of a record. `a` and `b` are its two arguments.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind { $($(#[doc = $text])* $variant = $number,)* }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant),*];

            /// Returns the kind with this number.
            pub const fn from_number(number: u8) -> Option<Kind> {
                match number { $($number => Some(Kind::$variant),)* _ => None }
            }
        }
    };
}

kinds! {
    /// A worker of a process enters user mode; `a`: its priority.
    UserBegins = 1;
    /// The worker has left it for good; `a`: a number of [`Reason`].
    UserEnds = 2;
    /// The worker has trapped; `a`: a number of [`Cause`]; `b`: the number of the system call.
    Trap = 3;
    /// The kernel has delivered a user interrupt to the worker.
    UserInterrupt = 4;
    /// A kernel coroutine is polled; `a`: its cid, `b`: its priority.
    KernelPollBegins = 5;
    /// The poll is over; `a`: its cid, `b`: the answer.
    KernelPollEnds = 6;
    /// A kernel coroutine is woken; `a`: its cid.
    KernelWake = 7;
    /// A coroutine of a process is polled; `a`: its cid, `b`: its priority. Written by the process.
    PollBegins = 8;
    /// The poll is over; `a`: its cid, `b`: the answer. Written by the process.
    PollEnds = 9;
    /// A coroutine of a process is woken; `a`: its cid. Written by the process.
    Wake = 10;
    /// A process runs a program from now on; `a` and `b`: up to 16 bytes of its name.
    Program = 11;
    /// Records of this hart were lost before this one; `a`: their number.
    Lost = 12;
    /// Up to eight bytes of a text of the process, which other records name by its number: see [`TextPart`]. Written by
    /// the process.
    Text = 13;
    /// A coroutine of a process was made; `a`: its cid, `b`: the text of the place. Written by the process.
    Spawned = 14;
    /// A coroutine of a process has a name; `a`: its cid, `b`: the text. Written by the process.
    Named = 15;
    /// A span begins; `a`: the cid of its coroutine, or 0 for a thread; `b`: the text of its name, and that of its
    /// fields in the upper half. Written by the process.
    SpanBegins = 16;
    /// The innermost span of this name ends; arguments as above. Written by the process.
    SpanEnds = 17;
    /// A point in time with a name; arguments as above. Written by the process.
    Mark = 18;
    /// A counter has a value; `a`: the text of its name, `b`: the value, signed. Written by the process.
    Counter = 19;
}

impl Kind {
    /// Whether processes write such records, rather than the kernel.
    pub const fn is_of_processes(self) -> bool {
        matches!(self, Kind::PollBegins | Kind::PollEnds | Kind::Wake) || self as u8 >= Kind::Text as u8
    }
}

/// Most bytes of a text of a process; longer ones are cut.
pub const MOST_TEXT_BYTES: usize = 128;
/// Number of the text that is none.
pub const NO_TEXT: u32 = 0;
/// Bytes of a text in one record.
const PART_BYTES: usize = 8;

/// Up to eight bytes of a text, as a record of [`Kind::Text`] has them.
///
/// A program has its own numbers. A text of which a part is lost is known by its length; a number that is used again
/// is another text from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPart {
    /// Number of the text.
    pub number: u32,
    /// Place of the first byte in the text.
    pub offset: u16,
    /// Bytes of the whole text.
    pub length: u16,
    /// The bytes; those behind the text's end are 0.
    pub bytes: [u8; PART_BYTES],
}

impl TextPart {
    /// Returns the parts of a text, of which no byte behind the first [`MOST_TEXT_BYTES`] is taken.
    pub fn of(number: u32, text: &[u8]) -> impl Iterator<Item = TextPart> {
        let text = &text[..text.len().min(MOST_TEXT_BYTES)];
        text.chunks(PART_BYTES).enumerate().map(move |(index, part)| {
            let mut bytes = [0; PART_BYTES];
            bytes[..part.len()].copy_from_slice(part);
            TextPart { number, offset: (index * PART_BYTES) as u16, length: text.len() as u16, bytes }
        })
    }

    /// Returns the arguments of its record.
    pub const fn to_arguments(self) -> [u64; 2] {
        let head = self.number as u64 | (self.offset as u64) << 32 | (self.length as u64) << 48;
        [head, u64::from_le_bytes(self.bytes)]
    }

    /// Takes the arguments of a record apart; `None` if they are no part of a text.
    pub const fn from_arguments([head, bytes]: [u64; 2]) -> Option<TextPart> {
        let (number, offset, length) = (head as u32, (head >> 32) as u16, (head >> 48) as u16);
        let is_part = length as usize <= MOST_TEXT_BYTES && offset < length && offset.is_multiple_of(PART_BYTES as u16);
        match is_part {
            true => Some(TextPart { number, offset, length, bytes: bytes.to_le_bytes() }),
            false => None,
        }
    }
}

/// Reason why a worker left user mode.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    GaveWay = 0,
    Waits = 1,
    Sleeps = 2,
    Executes = 3,
    Ends = 4,
}

/// Cause of a worker's trap.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    Call = 0,
    Interrupt = 1,
    Fault = 2,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time, in ticks of the clock.
    pub time: u64,
    /// Kind.
    pub kind: Kind,
    /// Hart; for records of processes, the hart on which they handed it over.
    pub hart: u8,
    /// Worker of the process.
    pub worker: u16,
    /// Process; 0 for the kernel.
    pub process: u32,
    /// First argument.
    pub a: u64,
    /// Second argument.
    pub b: u64,
}

impl Record {
    /// Returns its words.
    pub const fn to_words(self) -> [u64; RECORD_WORDS] {
        let head =
            self.kind as u64 | (self.hart as u64) << 8 | (self.worker as u64) << 16 | (self.process as u64) << 32;
        [self.time, head, self.a, self.b]
    }

    /// Makes a record of its words; `None` if the kind is unknown.
    pub const fn from_words([time, head, a, b]: [u64; RECORD_WORDS]) -> Option<Record> {
        match Kind::from_number(head as u8) {
            Some(kind) => Some(Record {
                time,
                kind,
                hart: (head >> 8) as u8,
                worker: (head >> 16) as u16,
                process: (head >> 32) as u32,
                a,
                b,
            }),
            None => None,
        }
    }
}

/// Words of a process in a snapshot; new ones come at the end.
pub const PROCESS_WORDS: usize = 16;

/// A process as `snapshot` writes it. The bitmaps are claims of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ProcessSnapshot {
    pub process: u64,
    pub parent: u64,
    /// Number of workers and threads.
    pub workers: u64,
    /// Effective priority: its claim, within its limits.
    pub priority: u64,
    pub ceiling: u64,
    /// 1 if its executor was set to strict.
    pub mode: u64,
    /// Priorities at which it claims to have ready coroutines.
    pub ready: u64,
    /// Priorities at which it claims to run coroutines.
    pub running: u64,
    pub calls_in_flight: u64,
    pub cpu_ns: u64,
    /// Number of times its budget was used up.
    pub exhausted: u64,
    pub boosts: u64,
    /// Numbers of calls in flight, and so of waiting coroutines, by priority: eight numbers of 16 bits, of priorities 0
    /// to 3 and then 4 to 7 (with all that are less important in the last).
    pub waiting: [u64; 2],
    /// Up to 16 bytes of the program's name.
    pub name: [u64; 2],
}

impl ProcessSnapshot {
    /// Returns its words in order.
    pub const fn to_words(&self) -> [u64; PROCESS_WORDS] {
        [
            self.process,
            self.parent,
            self.workers,
            self.priority,
            self.ceiling,
            self.mode,
            self.ready,
            self.running,
            self.calls_in_flight,
            self.cpu_ns,
            self.exhausted,
            self.boosts,
            self.waiting[0],
            self.waiting[1],
            self.name[0],
            self.name[1],
        ]
    }

    /// Makes a snapshot of words in that order.
    pub const fn from_words(words: [u64; PROCESS_WORDS]) -> ProcessSnapshot {
        ProcessSnapshot {
            process: words[0],
            parent: words[1],
            workers: words[2],
            priority: words[3],
            ceiling: words[4],
            mode: words[5],
            ready: words[6],
            running: words[7],
            calls_in_flight: words[8],
            cpu_ns: words[9],
            exhausted: words[10],
            boosts: words[11],
            waiting: [words[12], words[13]],
            name: [words[14], words[15]],
        }
    }

    /// Returns the number of calls that wait at a priority from 0 to 7; 7 includes all less important ones.
    pub const fn waiting_at(&self, priority: usize) -> u16 {
        (self.waiting[priority / 4 % 2] >> (priority % 4 * 16)) as u16
    }
}

/// Words of a hart in a snapshot.
pub const HART_WORDS: usize = 8;

/// A hart as `snapshot` writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct HartSnapshot {
    pub hart: u64,
    /// Priorities at which kernel coroutines or processes wait for it.
    pub ready: u64,
    /// Bit of the priority that it runs; 0 if it is idle.
    pub running: u64,
    /// Process whose worker is in user mode on it; 0 for none.
    pub process: u64,
    pub traps: u64,
    pub switches: u64,
    pub user_interrupts: u64,
    pub system_calls: u64,
}

impl HartSnapshot {
    /// Returns its words in order.
    pub const fn to_words(&self) -> [u64; HART_WORDS] {
        [
            self.hart,
            self.ready,
            self.running,
            self.process,
            self.traps,
            self.switches,
            self.user_interrupts,
            self.system_calls,
        ]
    }

    /// Makes a snapshot of words in that order.
    pub const fn from_words(words: [u64; HART_WORDS]) -> HartSnapshot {
        HartSnapshot {
            hart: words[0],
            ready: words[1],
            running: words[2],
            process: words[3],
            traps: words[4],
            switches: words[5],
            user_interrupts: words[6],
            system_calls: words[7],
        }
    }
}

/// Subjects of `snapshot`.
pub mod subject {
    /// The harts, as [`super::HartSnapshot`].
    pub const HARTS: u32 = 1;
    /// The processes whose number is above the third argument, in ascending order, as [`super::ProcessSnapshot`].
    pub const PROCESSES: u32 = 2;
    /// The latencies of the priority in the second argument, in [`super::LATENCY_WORDS`] words: the number of requests,
    /// the sum and the longest of their latencies in ticks, and the number in each of [`super::LATENCY_BUCKETS`]
    /// ranges. `ENODEV` if the kernel was not started with `latencies=on`.
    pub const LATENCIES: u32 = 3;
    /// The longest stretches between two looks for interrupts, if the kernel measures them: a cause
    /// ([`super::stretch`]) and nanoseconds for each, of the causes above the third argument.
    pub const STRETCHES: u32 = 4;
    /// Writes nothing; stretches are measured from now on, and those measured before are forgotten.
    pub const BEGIN_STRETCHES: u32 = 5;
    /// Writes nothing to the buffer; the kernel's log gets the positions of all workers of the process in the third
    /// argument, or of all processes for 0, and each runtime that answers prints where its coroutines wait. `ESRCH` if
    /// there is no such process.
    pub const POSITIONS: u32 = 6;
}

/// Causes of the stretches between two looks for interrupts: mostly calls.
pub mod stretch {
    /// Words of a stretch in a snapshot.
    pub const STRETCH_WORDS: usize = 2;
    /// The number of the first call that Linux does not have.
    pub const FIRST_OF_OURS: usize = 0x1000;
    /// The cause of that call; Linux's calls are causes under their own numbers.
    pub const OURS: usize = 512;
    /// A trap other than a call.
    pub const TRAP: usize = 640;
    /// Kernel coroutines without a more specific cause, and the executor's loop.
    pub const OTHER: usize = 641;
    /// The completer of calls that wait for input.
    pub const COMPLETER: usize = 642;
    /// The end of a process.
    pub const END: usize = 643;
    /// The server of a request ring.
    pub const RING: usize = 644;
    /// The thread that polls transfers.
    pub const POLLING: usize = 645;
    /// One more than the last cause.
    pub const CAUSES: usize = 646;

    /// Returns the number of the call that is this cause; `None` for other causes.
    pub const fn call(cause: usize) -> Option<usize> {
        match cause {
            TRAP.. => None,
            OURS.. => Some(cause - OURS + FIRST_OF_OURS),
            _ => Some(cause),
        }
    }
}

/// Number of ranges in an octave of latencies.
const LATENCY_STEPS: u64 = 16;
/// Ranges of latencies: the last one has no end.
pub const LATENCY_BUCKETS: usize = 512;
/// Words of the latencies of one priority: the count, the sum, the longest, and the ranges.
pub const LATENCY_WORDS: usize = 3 + LATENCY_BUCKETS;
/// First word of the output of `monitor latencies`. The ticks of a second and the number of priorities follow, then the
/// words of each priority.
pub const LATENCY_MAGIC: u64 = u64::from_le_bytes(*b"COPSlate");

/// Returns the range of a latency: exact below 16 ticks, and a sixteenth of an octave wide from there on.
pub const fn latency_bucket(ticks: u64) -> usize {
    if ticks < LATENCY_STEPS {
        return ticks as usize;
    }
    let octave = (ticks.ilog2() - LATENCY_STEPS.ilog2()) as u64;
    let bucket = octave * LATENCY_STEPS + (ticks >> octave);
    if bucket < LATENCY_BUCKETS as u64 { bucket as usize } else { LATENCY_BUCKETS - 1 }
}

/// Returns the shortest latency of a range.
pub const fn latency_of_bucket(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < LATENCY_STEPS {
        return bucket;
    }
    let octave = bucket / LATENCY_STEPS - 1;
    (LATENCY_STEPS + bucket % LATENCY_STEPS) << octave
}

/// Returns the first 16 bytes of a name, as two words.
pub fn name_words(name: &[u8]) -> [u64; 2] {
    let mut bytes = [0; 16];
    let length = name.len().min(16);
    bytes[..length].copy_from_slice(&name[..length]);
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    [word(0), word(8)]
}

/// The first bytes of a program's name, from the two words of [`name_words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramName([u8; 16]);

impl ProgramName {
    /// Takes the words apart.
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> ProgramName {
        let word = |index: usize| words[index / 8].to_le_bytes()[index % 8];
        ProgramName(core::array::from_fn(word))
    }

    /// Returns the bytes up to the first NUL.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_its_words_were_made_of() {
        for name in [&b""[..], b"a", b"12345678", b"123456789", b"1234567890123456"] {
            assert_eq!(ProgramName::from_words(name_words(name)).as_bytes(), name);
        }
        assert_eq!(ProgramName::from_words(name_words(b"12345678901234567")).as_bytes(), b"1234567890123456");
        assert_eq!(ProgramName::from_words(name_words(b"a\0b")).as_bytes(), b"a");
    }

    #[test]
    fn a_latency_lies_in_the_range_that_begins_with_it_or_before() {
        for bucket in 0..LATENCY_BUCKETS {
            assert_eq!(latency_bucket(latency_of_bucket(bucket)), bucket);
            if bucket > 0 {
                assert_eq!(latency_bucket(latency_of_bucket(bucket) - 1), bucket - 1);
            }
        }
        assert_eq!(latency_bucket(u64::MAX), LATENCY_BUCKETS - 1);
        assert!(latency_of_bucket(LATENCY_BUCKETS - 1) > 10_000_000_000, "minutes have a range");
    }

    #[test]
    fn records_survive_memory() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
            let record =
                Record { time: 1 << 60, kind, hart: 7, worker: 0xfffe, process: u32::MAX - 1, a: 3, b: u64::MAX };
            assert_eq!(Record::from_words(record.to_words()), Some(record));
        }
        assert_eq!(Record::from_words([0; 4]), None);
        assert_eq!(Record::from_words([0, 0xff, 0, 0]), None);
    }

    #[test]
    fn texts_are_what_their_parts_were_made_of() {
        for length in [0, 1, 7, 8, 9, MOST_TEXT_BYTES - 1, MOST_TEXT_BYTES, MOST_TEXT_BYTES + 1] {
            let text: [u8; MOST_TEXT_BYTES + 1] = core::array::from_fn(|index| index as u8 + 1);
            let (text, mut found) = (&text[..length], [0; MOST_TEXT_BYTES]);
            let length = length.min(MOST_TEXT_BYTES);
            for part in TextPart::of(7, text) {
                assert_eq!(TextPart::from_arguments(part.to_arguments()), Some(part));
                assert_eq!((part.number, part.length as usize), (7, length));
                for (place, byte) in found[part.offset.into()..].iter_mut().zip(part.bytes) {
                    *place = byte;
                }
            }
            assert_eq!(found[..length], text[..length]);
        }
        let head = |offset: u64, length: u64| 7 | offset << 32 | length << 48;
        for (offset, length) in [(0, 0), (8, 8), (4, 9), (0, MOST_TEXT_BYTES as u64 + 1), (0xffff, 0xffff)] {
            assert_eq!(TextPart::from_arguments([head(offset, length), 0]), None, "{offset} of {length}");
        }
    }

    #[test]
    fn snapshots_survive_memory() {
        let words = core::array::from_fn(|index| index as u64 + 1);
        assert_eq!(ProcessSnapshot::from_words(words).to_words(), words);
        let words = core::array::from_fn(|index| index as u64 + 1);
        assert_eq!(HartSnapshot::from_words(words).to_words(), words);
        let snapshot =
            ProcessSnapshot { waiting: [0x0004_0003_0002_0001, 0x0008_0007_0006_0005], ..Default::default() };
        assert!((0..8).all(|priority| snapshot.waiting_at(priority) == priority as u16 + 1));
        assert_eq!(name_words(b"ab"), [0x6261, 0]);
    }
}
