//! The process's part of a scheduling trace: polls and wakes of its coroutines.
//!
//! With `COPS_TRACE=1` in the environment the runtime records them from the beginning, each worker into a buffer of its
//! own, and hands full buffers to the kernel, which merges them with its own records. Without the variable no tracer is
//! installed: see `coroutine::trace_with`. Wakes that the handler of user interrupts makes are not recorded: it may
//! have interrupted code that is recording.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use abi_queue::MAXIMUM_WORKERS;
use abi_unix::trace::{Kind, MOST_RECORDS_AT_ONCE, RECORD_WORDS, Record};
use coroutine::Tracer;

use crate::local;
use crate::lock::Section;
/// This machine has no `time` register.
#[cfg(not(on_cops))]
use crate::time::now_ns as ticks;
#[cfg(on_cops)]
use crate::time::ticks;

/// One worker's records. Only the worker uses it; atomic words make that sound without an `unsafe impl Sync`.
struct TraceBuffer {
    length: AtomicUsize,
    records: [[AtomicU64; RECORD_WORDS]; MOST_RECORDS_AT_ONCE],
}

static BUFFERS: [TraceBuffer; MAXIMUM_WORKERS] = [const {
    TraceBuffer {
        length: AtomicUsize::new(0),
        records: [const { [const { AtomicU64::new(0) }; RECORD_WORDS] }; MOST_RECORDS_AT_ONCE],
    }
}; MAXIMUM_WORKERS];

static ON: AtomicBool = AtomicBool::new(false);

static TRACER: Tracer = Tracer {
    poll_begins: |cid| record(Kind::PollBegins, cid, 0),
    poll_ends: |cid, answer| record(Kind::PollEnds, cid, answer.into()),
    woken: |cid| record(Kind::Wake, cid, 0),
};

/// Begins to record if the environment requests it. To be called before the executor has workers or coroutines.
pub(crate) fn start() {
    if unix::start::environment().any(|variable| variable == c"COPS_TRACE=1") {
        ON.store(true, Ordering::Relaxed);
        coroutine::trace_with(&TRACER);
    }
}

/// Returns whether a trace is being recorded.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Records a wake by cid.
pub(crate) fn woken(cid: u64) {
    record(Kind::Wake, cid, 0);
}

/// Records that a poll was preempted by a more important coroutine; it looks like a yield (answer 1).
pub(crate) fn put_aside(cid: u64) {
    if is_on() {
        record(Kind::PollEnds, cid, 1);
    }
}

/// Records that a preempted coroutine continues.
pub(crate) fn goes_on(cid: u64) {
    if is_on() {
        record(Kind::PollBegins, cid, 0);
    }
}

fn record(kind: Kind, a: u64, b: u64) {
    let _section = Section::begin();
    let buffer = &BUFFERS[local::current().index.get() % MAXIMUM_WORKERS];
    let mut length = buffer.length.load(Ordering::Relaxed);
    if length >= MOST_RECORDS_AT_ONCE {
        flush();
        length = 0;
    }
    let record = Record { time: ticks(), kind, hart: 0, worker: 0, process: 0, a, b };
    for (place, word) in buffer.records[length].iter().zip(record.to_words()) {
        place.store(word, Ordering::Relaxed);
    }
    buffer.length.store(length + 1, Ordering::Relaxed);
}

/// Begins to record, without a kernel that takes the records.
#[cfg(test)]
pub(crate) fn start_for_tests() {
    ON.store(true, Ordering::Relaxed);
}

/// Returns the number of wakes of a coroutine that were recorded and not handed over.
#[cfg(test)]
pub(crate) fn recorded_wakes(cid: u64) -> usize {
    let of_buffer = |buffer: &TraceBuffer| {
        let records = &buffer.records[..buffer.length.load(Ordering::Relaxed)];
        let words = records.iter().map(|record| record.each_ref().map(|word| word.load(Ordering::Relaxed)));
        words.filter_map(Record::from_words).filter(|record| record.kind == Kind::Wake && record.a == cid).count()
    };
    BUFFERS.iter().map(of_buffer).sum()
}

/// Hands this worker's records to the kernel.
pub(crate) fn flush() {
    let _section = Section::begin();
    let buffer = &BUFFERS[local::current().index.get() % MAXIMUM_WORKERS];
    let length = buffer.length.swap(0, Ordering::Relaxed);
    if length > 0 {
        // A trace that has ended accepts no records; that is no failure.
        let _ = unix::trace::write(&buffer.records[..length.min(MOST_RECORDS_AT_ONCE)]);
    }
}
