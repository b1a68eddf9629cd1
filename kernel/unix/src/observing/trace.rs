//! The scheduling trace: records of each run of a coroutine, process or worker, which a tool fetches.
//!
//! Off unless the boot command line has `trace=RECORDS`, and then on from the start. Each hart has a ring of that many
//! records, which it alone writes (kernel code is not interrupted), so that recording takes no lock and moves no cache
//! line. Callers that fetch take turns. A full ring loses the newest records and counts them: older records, and so the
//! beginning of a failure, are still there. The count is a record in their place.
//!
//! While it is off, each place that would record costs one load and a branch that is never taken.
//!
//! Records of polls inside a process are written by the process's own runtime, which hands them over in batches. The
//! kernel fills in the process, the worker and the hart, and checks the kind; the rest is unvalidated, like any other
//! claim. Texts of processes (names of coroutines, spans and counters) are records too, of a few bytes each: the kernel
//! puts none together and keeps nothing for them beside its rings, and the tool that fetches them bounds their length.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use abi_unix::trace::{Kind, MOST_RECORDS_AT_ONCE, RECORD_BYTES, RECORD_WORDS, Record};
use abi_unix::{Errno, trace::name_words};
use coroutine::Tracer;
use hal_api::Machine as _;
use platform::{Machine, println};
use spin::{Mutex, Once};

use crate::scheduling::executor;

/// Greatest number of records for each hart.
const MOST_RECORDS: usize = 1 << 18;

/// One hart's records.
///
/// The writers of the fields:
///
/// * `tail`, and `lost` upwards: the hart; `tail` with release, so that its reader finds the records.
/// * `head`: the fetching call, holding [`FETCHING`]; with release, so that the hart overwrites only records that were
///   read.
/// * `lost` to 0: the hart before its next record, or the fetching call if none has come since.
struct TraceRing {
    head: AtomicU64,
    tail: AtomicU64,
    lost: AtomicU64,
    records: Vec<[AtomicU64; RECORD_WORDS]>,
}

static ON: AtomicBool = AtomicBool::new(false);
/// Number of those for which each trap is watched: the trace, the measurement of stretches, and each mapping of a file
/// whose pages are fetched.
static TRAP_WATCHERS: AtomicU32 = AtomicU32::new(0);
static RINGS: Once<Vec<TraceRing>> = Once::new();
static FETCHING: Mutex<()> = Mutex::new(());

/// Returns whether records are written.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Returns whether each trap is watched.
#[inline(always)]
pub(crate) fn traps_are_watched() -> bool {
    TRAP_WATCHERS.load(Ordering::Relaxed) != 0
}

/// Makes each trap be watched, until [`end_watch_of_traps`] is called as often as this.
pub(crate) fn watch_traps() {
    TRAP_WATCHERS.fetch_add(1, Ordering::Relaxed);
}

/// Takes a call of [`watch_traps`] back.
pub(crate) fn end_watch_of_traps() {
    TRAP_WATCHERS.fetch_sub(1, Ordering::Relaxed);
}

/// Returns the number of those for which traps are watched.
#[cfg(test)]
pub(crate) fn trap_watchers() -> u32 {
    TRAP_WATCHERS.load(Ordering::Relaxed)
}

/// Begins to record if the boot command line enables it. Called once, before the executor has workers.
pub(crate) fn start(option: Option<&str>, harts: usize) {
    let Some(word) = option else { return };
    let records = match word.parse::<usize>() {
        Ok(records) if (1..=MOST_RECORDS).contains(&records) => records,
        _ => {
            println!("trace: `{word}` is no number of records from 1 to {MOST_RECORDS}; there is no trace");
            return;
        }
    };
    let mut rings = Vec::new();
    for _ in 0..harts {
        let mut ring = Vec::new();
        if ring.try_reserve_exact(records).is_err() {
            println!("trace: there is no memory for {records} records for each hart; there is no trace");
            return;
        }
        ring.resize_with(records, || [const { AtomicU64::new(0) }; RECORD_WORDS]);
        rings.push(TraceRing {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            records: ring,
        });
    }
    RINGS.call_once(|| rings);
    coroutine::trace_with(&TRACER);
    ON.store(true, Ordering::Relaxed);
    watch_traps();
}

static TRACER: Tracer = Tracer {
    spawned: |_, _| {},
    poll_begins: |cid| record(Kind::KernelPollBegins, 0, 0, cid, executor::current_priority().number().into()),
    poll_ends: |cid, answer| record(Kind::KernelPollEnds, 0, 0, cid, answer.into()),
    woken: |cid| record(Kind::KernelWake, 0, 0, cid, 0),
};

/// Records an event of a worker, if there is a trace.
#[inline(always)]
pub(crate) fn of_worker(kind: Kind, process: u32, worker: usize, a: u64, b: u64) {
    if is_on() {
        record(kind, process, worker, a, b);
    }
}

/// Records an event of a process, if there is a trace.
#[inline(always)]
pub(crate) fn of_process(kind: Kind, process: u32, a: u64, b: u64) {
    if is_on() {
        record(kind, process, 0, a, b);
    }
}

/// Records the program that a process runs, if there is a trace.
pub(crate) fn program(process: u32, name: [u64; 2]) {
    if is_on() {
        record(Kind::Program, process, 0, name[0], name[1]);
    }
}

/// Returns the first bytes of a program's name, the part of its path behind the last slash.
pub(crate) fn short_name(path: &[u8]) -> [u64; 2] {
    name_words(path.rsplit(|&byte| byte == b'/').next().unwrap_or(path))
}

#[doc(alias = "tracepoint")]
#[doc(alias = "ftrace")]
#[cold]
#[inline(never)]
fn record(kind: Kind, process: u32, worker: usize, a: u64, b: u64) {
    put(Record { time: Machine::now(), kind, hart: Machine::hart() as u8, worker: worker as u16, process, a, b });
}

/// Writes to the ring of this hart; behind lost records their number, so that it is known where they were.
fn put(record: Record) {
    let Some(ring) = RINGS.get().and_then(|rings| rings.get(Machine::hart())) else { return };
    if ring.lost.load(Ordering::Relaxed) != 0 {
        // With room for both only: a second count of the same loss would tell nothing.
        if ring.room() < 2 {
            ring.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // The fetching call may just have told it.
        match ring.lost.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => ring.push(loss(Machine::hart(), lost)),
        }
    }
    if ring.room() == 0 {
        ring.lost.fetch_add(1, Ordering::Relaxed);
        return;
    }
    ring.push(record);
}

/// Returns the record of a loss.
fn loss(hart: usize, lost: u64) -> Record {
    Record { time: Machine::now(), kind: Kind::Lost, hart: hart as u8, worker: 0, process: 0, a: lost, b: 0 }
}

impl TraceRing {
    /// Returns the number of records that fit.
    fn room(&self) -> u64 {
        // Acquire: pairs with the release of the fetching call.
        let used = self.tail.load(Ordering::Relaxed) - self.head.load(Ordering::Acquire);
        self.records.len() as u64 - used
    }

    /// Writes a record, for which there is room.
    fn push(&self, record: Record) {
        let tail = self.tail.load(Ordering::Relaxed);
        for (place, word) in self.records[tail as usize % self.records.len()].iter().zip(record.to_words()) {
            place.store(word, Ordering::Relaxed);
        }
        self.tail.store(tail + 1, Ordering::Release);
    }
}

/// Takes records, as many as fit into so many bytes, and hands them to `copy_out` with their offset. Returns the number
/// of bytes. `ENODEV` if there is no trace.
pub(crate) fn read(room: usize, copy_out: impl Fn(usize, &[u8]) -> Result<(), Errno>) -> Result<usize, Errno> {
    let Some(rings) = RINGS.get() else { return Err(Errno::ENODEV) };
    let _fetching = FETCHING.lock();
    let mut done = 0;
    for (hart, ring) in rings.iter().enumerate() {
        loop {
            let records = (room - done) / RECORD_BYTES;
            let head = ring.head.load(Ordering::Relaxed);
            // Acquire: pairs with the hart's release.
            let count = (ring.tail.load(Ordering::Acquire) - head).min(records as u64).min(MOST_RECORDS_AT_ONCE as u64);
            if count == 0 {
                break;
            }
            let mut bytes = [0; MOST_RECORDS_AT_ONCE * RECORD_BYTES];
            for (index, place) in bytes.chunks_exact_mut(RECORD_BYTES).take(count as usize).enumerate() {
                let record = &ring.records[(head as usize + index) % ring.records.len()];
                for (place, word) in place.chunks_exact_mut(8).zip(record) {
                    place.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
                }
            }
            let length = count as usize * RECORD_BYTES;
            copy_out(done, &bytes[..length])?;
            done += length;
            // Release: the hart writes into these places only after they were read.
            ring.head.store(head + count, Ordering::Release);
        }
        if room - done >= RECORD_BYTES && ring.lost.load(Ordering::Relaxed) != 0 {
            // The hart may just have recorded it, for the next call.
            let lost = ring.lost.swap(0, Ordering::Relaxed);
            if lost == 0 {
                continue;
            }
            let mut bytes = [0; RECORD_BYTES];
            for (place, word) in bytes.chunks_exact_mut(8).zip(loss(hart, lost).to_words()) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            if let Err(error) = copy_out(done, &bytes) {
                ring.lost.fetch_add(lost, Ordering::Relaxed);
                return Err(error);
            }
            done += RECORD_BYTES;
        }
    }
    Ok(done)
}

/// Adds records of a worker's own, of which there are so many bytes, as `copy_in` gives them. Returns the number of
/// bytes taken.
pub(crate) fn write(
    (process, worker): (u32, usize),
    length: usize,
    copy_in: impl FnOnce(&mut [u8]) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    if !is_on() {
        return Err(Errno::ENODEV);
    }
    let length = (length / RECORD_BYTES).min(MOST_RECORDS_AT_ONCE) * RECORD_BYTES;
    let mut bytes = [0; MOST_RECORDS_AT_ONCE * RECORD_BYTES];
    copy_in(&mut bytes[..length])?;
    let now = Machine::now();
    for bytes in bytes[..length].chunks_exact(RECORD_BYTES) {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at * 8 + index]));
        let Some(record) = Record::from_words([word(0), word(1), word(2), word(3)]) else { return Err(Errno::EINVAL) };
        if !record.kind.is_of_processes() {
            return Err(Errno::EINVAL);
        }
        put(Record {
            time: record.time.min(now),
            hart: Machine::hart() as u8,
            worker: worker as u16,
            process,
            ..record
        });
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::process::{self, Process, table};
    use crate::testing::{OF_THE_FIRST, Program, run};

    fn first() -> alloc::sync::Arc<Process> {
        table::find(process::FIRST).unwrap()
    }

    /// Takes records, so many at once.
    fn fetch(most: usize) -> Vec<Record> {
        let copy_out = |offset: usize, bytes: &[u8]| first().copy_out(OF_THE_FIRST + offset, bytes);
        let length = read(most * RECORD_BYTES + 7, copy_out).unwrap();
        let mut bytes = vec![0; length];
        first().copy_in(OF_THE_FIRST, &mut bytes).unwrap();
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let (records, rest) = words.as_chunks::<RECORD_WORDS>();
        assert!(rest.is_empty());
        records.iter().map(|&words| Record::from_words(words).unwrap()).collect()
    }

    fn fetch_all() -> Vec<Record> {
        let mut all = Vec::new();
        loop {
            let some = fetch(100);
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    #[test]
    fn calls_and_turns_are_recorded_in_their_order() {
        run(|program| {
            fetch_all();
            program.call(SystemCall::GetProcess, []).unwrap();
            program.sleep_ns(1_000_000);
            let records = fetch_all();
            assert!(records.is_sorted_by_key(|record| record.time));
            let own: Vec<_> = records.iter().filter(|record| record.process == program.id).collect();
            let calls: Vec<_> =
                own.iter().filter(|record| record.kind == Kind::Trap && record.a == 0).map(|record| record.b).collect();
            assert_eq!(calls, [SystemCall::GetProcess as u64, SystemCall::Sleep as u64]);
            let turns: Vec<_> = own
                .iter()
                .filter(|record| matches!(record.kind, Kind::UserBegins | Kind::UserEnds))
                .map(|record| (record.kind, record.a))
                .collect();
            assert_eq!(turns.len(), 2, "{turns:?}");
            assert_eq!(turns[0], (Kind::UserEnds, 1), "it waits");
            assert_eq!(turns[1].0, Kind::UserBegins);
            assert!(records.iter().any(|record| record.kind == Kind::KernelWake));
        });
    }

    /// The completion of a call in flight wakes the worker that sleeps until one comes.
    #[test]
    fn the_completion_that_wakes_a_worker_is_recorded() {
        run(|program| {
            let worker = program.process().worker(0).unwrap().coroutine().raw();
            let time = program.store(&abi_unix::types::TimeSpec::from_ns(1_000_000).to_bytes());
            assert_eq!(program.submit(SystemCall::Sleep, [time, 0], 5), None);
            fetch_all();
            assert_eq!(program.await_completions(), [(5, Ok(0))]);
            let records = fetch_all();
            let wakes = records.iter().filter(|record| record.kind == Kind::KernelWake);
            let woken: Vec<u64> = wakes.map(|record| record.a).collect();
            // The deadline wakes the call's coroutine, whose completion wakes the worker.
            assert_eq!(woken.len(), 2, "{woken:?}");
            assert!(woken[0] != worker && woken[1] == worker, "{woken:?}");
            let polled = records.iter().any(|record| record.kind == Kind::KernelPollBegins && record.a == woken[0]);
            assert!(polled, "the coroutine of the call");
        });
    }

    #[test]
    fn a_full_ring_keeps_the_oldest_and_counts_the_rest() {
        run(|program| {
            fetch_all();
            for _ in 0..600 {
                program.call(SystemCall::GetProcess, []).unwrap();
            }
            let records = fetch_all();
            let (last, kept) = records.split_last().unwrap();
            assert_eq!((kept.len(), last.kind), (500, Kind::Lost));
            assert!(last.a >= 100 && kept.iter().all(|record| record.kind != Kind::Lost));
            program.call(SystemCall::GetProcess, []).unwrap();
            assert!(fetch_all().iter().all(|record| record.kind != Kind::Lost), "told once");
        });
    }

    #[test]
    fn a_loss_is_told_in_its_place() {
        run(|program| {
            fetch_all();
            for _ in 0..600 {
                program.call(SystemCall::GetProcess, []).unwrap();
            }
            // Room for the count and three calls.
            assert_eq!(fetch(4).len(), 4);
            for _ in 0..3 {
                program.call(SystemCall::GetProcess, []).unwrap();
            }
            let records = fetch_all();
            let place = records.iter().position(|record| record.kind == Kind::Lost).unwrap();
            assert_eq!((place, records.len()), (496, 500));
            assert!(records.is_sorted_by_key(|record| record.time));
        });
    }

    #[test]
    fn records_stay_until_they_are_fetched() {
        run(|program| {
            fetch_all();
            for _ in 0..20 {
                program.call(SystemCall::GetProcess, []).unwrap();
            }
            let (some, rest) = (fetch(7), fetch(100));
            assert_eq!((some.len(), rest.len()), (7, 13));
            assert!(some.last().unwrap().time <= rest[0].time);
            program.call(SystemCall::GetProcess, []).unwrap();
            assert_eq!(read(RECORD_BYTES, |_, bytes| first().copy_out(0x1000, bytes)), Err(Errno::EFAULT));
            assert_eq!(fetch_all().len(), 1, "not lost with the fault");
        });
    }

    fn write_records(program: &mut Program, records: &[Record]) -> Result<usize, Errno> {
        let bytes: Vec<u8> =
            records.iter().flat_map(|record| record.to_words()).flat_map(|word| word.to_le_bytes()).collect();
        let place = program.store(&bytes);
        program.call(SystemCall::TraceWrite, [place, bytes.len()])
    }

    /// A process tells of its own coroutines only: number, worker and hart are the kernel's, and time does not lie in
    /// the future.
    #[test]
    fn a_process_s_records_are_its_own() {
        run(|program| {
            let record = Record { time: u64::MAX, kind: Kind::PollBegins, hart: 9, worker: 9, process: 1, a: 5, b: 6 };
            fetch_all();
            assert_eq!(write_records(program, &[record, record]), Ok(2 * RECORD_BYTES));
            let now = Machine::now();
            let found: Vec<_> = fetch_all().into_iter().filter(|record| record.kind == Kind::PollBegins).collect();
            assert_eq!(found.len(), 2);
            assert_eq!((found[0].process, found[0].worker, found[0].hart), (program.id, 0, 0));
            assert_eq!((found[0].a, found[0].b), (5, 6));
            assert!(found[0].time <= now);
            assert_eq!(write_records(program, &[Record { kind: Kind::Lost, ..record }]), Err(Errno::EINVAL));
            let many = vec![record; MOST_RECORDS_AT_ONCE + 1];
            assert_eq!(write_records(program, &many), Ok(MOST_RECORDS_AT_ONCE * RECORD_BYTES));
            let place = program.store(&[0xff; RECORD_BYTES]);
            assert_eq!(program.call(SystemCall::TraceWrite, [place, RECORD_BYTES]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::TraceWrite, [place, RECORD_BYTES - 1]), Ok(0));
            assert_eq!(program.call(SystemCall::TraceWrite, [0x1000, RECORD_BYTES]), Err(Errno::EFAULT));
        });
    }

    #[test]
    fn names_are_the_last_part_of_a_path() {
        let words = abi_unix::trace::name_words;
        assert_eq!(short_name(b"/bin/matrix-server"), words(b"matrix-server"));
        assert_eq!(short_name(b"plain"), words(b"plain"));
        assert_eq!(short_name(b"/bin/"), [0, 0]);
    }
}
