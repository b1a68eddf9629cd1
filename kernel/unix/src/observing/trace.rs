//! The scheduling trace: records of each run of a coroutine, process or worker, which a tool fetches.
//!
//! Off unless the boot command line has `trace=RECORDS`, and then on from the start. Each hart has a ring of that many
//! records, which it alone writes (kernel code is not interrupted), so that recording takes no lock and moves no cache
//! line. Callers that fetch take turns. A full ring loses the newest records and counts them: older records, and so the
//! beginning of a failure, are still there.
//!
//! While it is off, each place that would record costs one load and a branch that is never taken.
//!
//! Records of polls inside a process are written by the process's own runtime, which hands them over in batches. The
//! kernel fills in the process, the worker and the hart, and checks the kind; the rest is unvalidated, like any other
//! claim.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi_unix::trace::{Kind, MOST_RECORDS_AT_ONCE, RECORD_BYTES, RECORD_WORDS, Record};
use abi_unix::{Act, Errno, trace::name_words};
use coroutine::Tracer;
use hal_api::Machine as _;
use platform::{Machine, println};
use spin::{Mutex, Once};

use crate::process::user::UserBuffer;
use crate::process::worker::Worker;
use crate::process::{Process, authority};

/// Greatest number of records for each hart.
const MOST_RECORDS: usize = 1 << 18;

/// One hart's records.
///
/// The writers of the fields:
///
/// * `tail`, and `lost` upwards: the hart; `tail` with release, so that its reader finds the records.
/// * `head`, and `lost` to 0: the fetching call, holding [`FETCHING`]; `head` with release, so that the hart overwrites
///   only records that were read.
struct Ring {
    head: AtomicU64,
    tail: AtomicU64,
    lost: AtomicU64,
    records: Vec<[AtomicU64; RECORD_WORDS]>,
}

static ON: AtomicBool = AtomicBool::new(false);
/// Set if each trap is watched: by the trace, or by the measurement of stretches.
static TRAPS_ARE_WATCHED: AtomicBool = AtomicBool::new(false);
static RINGS: Once<Vec<Ring>> = Once::new();
static FETCHING: Mutex<()> = Mutex::new(());

/// Returns whether records are written.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Returns whether each trap is watched.
#[inline(always)]
pub(crate) fn traps_are_watched() -> bool {
    TRAPS_ARE_WATCHED.load(Ordering::Relaxed)
}

/// Makes each trap be watched.
pub(crate) fn watch_traps() {
    TRAPS_ARE_WATCHED.store(true, Ordering::Relaxed);
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
        rings.push(Ring { head: AtomicU64::new(0), tail: AtomicU64::new(0), lost: AtomicU64::new(0), records: ring });
    }
    RINGS.call_once(|| rings);
    coroutine::trace_with(&TRACER);
    ON.store(true, Ordering::Relaxed);
    watch_traps();
}

static TRACER: Tracer = Tracer {
    poll_begins: |cid| record(Kind::KernelPollBegins, 0, 0, cid, 0),
    poll_ends: |cid, answer| record(Kind::KernelPollEnds, 0, 0, cid, answer.into()),
    woken: |cid| record(Kind::KernelWake, 0, 0, cid, 0),
};

/// Records an event of a worker, if there is a trace.
#[inline(always)]
pub(crate) fn of_worker(kind: Kind, worker: &Worker, a: u64, b: u64) {
    if is_on() {
        record(kind, worker.process.id, worker.index(), a, b);
    }
}

/// Records an event of a process, if there is a trace.
#[inline(always)]
pub(crate) fn of_process(kind: Kind, process: &Process, a: u64, b: u64) {
    if is_on() {
        record(kind, process.id, 0, a, b);
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

#[cold]
#[inline(never)]
fn record(kind: Kind, process: u32, worker: usize, a: u64, b: u64) {
    put(Record { time: Machine::now(), kind, hart: Machine::hart() as u8, worker: worker as u16, process, a, b });
}

/// Writes to the ring of this hart.
fn put(record: Record) {
    let Some(ring) = RINGS.get().and_then(|rings| rings.get(Machine::hart())) else { return };
    let tail = ring.tail.load(Ordering::Relaxed);
    // Acquire: pairs with the release of the fetching call.
    if tail - ring.head.load(Ordering::Acquire) >= ring.records.len() as u64 {
        ring.lost.fetch_add(1, Ordering::Relaxed);
        return;
    }
    for (place, word) in ring.records[tail as usize % ring.records.len()].iter().zip(record.to_words()) {
        place.store(word, Ordering::Relaxed);
    }
    ring.tail.store(tail + 1, Ordering::Release);
}

/// Performs the `trace_read` call.
pub(crate) fn read(process: &Process, buffer: UserBuffer) -> Result<usize, Errno> {
    authority::permit(process, Act::ReadTrace)?;
    let Some(rings) = RINGS.get() else { return Err(Errno::ENODEV) };
    let _fetching = FETCHING.lock();
    let mut done = 0;
    for (hart, ring) in rings.iter().enumerate() {
        loop {
            let room = (buffer.len() - done) / RECORD_BYTES;
            let head = ring.head.load(Ordering::Relaxed);
            // Acquire: pairs with the hart's release.
            let count = (ring.tail.load(Ordering::Acquire) - head).min(room as u64).min(MOST_RECORDS_AT_ONCE as u64);
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
            process.copy_out(buffer.address() + done, &bytes[..length])?;
            done += length;
            ring.head.store(head + count, Ordering::Release);
        }
        if buffer.len() - done >= RECORD_BYTES && ring.lost.load(Ordering::Relaxed) != 0 {
            let lost = ring.lost.swap(0, Ordering::Relaxed);
            let record = Record {
                time: Machine::now(),
                kind: Kind::Lost,
                hart: hart as u8,
                worker: 0,
                process: 0,
                a: lost,
                b: 0,
            };
            let mut bytes = [0; RECORD_BYTES];
            for (place, word) in bytes.chunks_exact_mut(8).zip(record.to_words()) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            process.copy_out(buffer.address() + done, &bytes)?;
            done += RECORD_BYTES;
        }
    }
    Ok(done)
}

/// Performs the `trace_write` call, with records of the process's own. Returns the number of bytes taken.
pub(crate) fn write(worker: &Worker, buffer: UserBuffer) -> Result<usize, Errno> {
    if !is_on() {
        return Err(Errno::ENODEV);
    }
    let length = (buffer.len() / RECORD_BYTES).min(MOST_RECORDS_AT_ONCE) * RECORD_BYTES;
    let mut bytes = [0; MOST_RECORDS_AT_ONCE * RECORD_BYTES];
    worker.process.copy_in(buffer.address(), &mut bytes[..length])?;
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
            worker: worker.index() as u16,
            process: worker.process.id,
            ..record
        });
    }
    Ok(length)
}
