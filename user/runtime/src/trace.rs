//! The process's part of a trace: polls and wakes of its coroutines, their names, and what the program itself adds.
//!
//! [`span`], [`mark`] and [`counter`] show parts of the program's work beside the scheduling; so do spans and events of
//! the crate `tracing` (feature `tracing`). `cargo xtask trace PROGRAM` runs a program with a trace and writes a file
//! for Perfetto's viewer.
//!
//! ```no_run
//! # async fn example(jobs: cops::channel::Receiver<Vec<u8>>) {
//! cops::spawn_named("packer", async move {
//!     let mut packed = 0;
//!     while let Some(job) = jobs.receive().await {
//!         let _span = cops::trace::span("pack");
//!         cops::yield_now().await;
//!         packed += job.len() as i64;
//!         cops::trace::counter("packed bytes", packed);
//!     }
//!     cops::trace::mark("no more jobs");
//! })
//! .detach();
//! # }
//! ```
//!
//! With `COPS_TRACE=1` in the environment the runtime records from the beginning, each worker into a buffer of its own,
//! and hands full buffers to the kernel, which merges them with its own records. Without the variable no tracer is
//! installed (see `coroutine::trace_with`), and each function here is a load and a branch. Wakes that the handler of
//! user interrupts makes are not recorded: it may have interrupted code that is recording.
//!
//! # Texts
//!
//! A record names a text by a number; the text itself is in records of its own, once for each of the first
//! [`MOST_TEXTS`] different names, and anew at each use for others and for fields and messages of `tracing`. Texts are
//! cut after [`MOST_TEXT_BYTES`] bytes.

mod texts;

use core::panic::Location;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use abi_queue::MAXIMUM_WORKERS;
use abi_unix::trace::{Kind, MOST_RECORDS_AT_ONCE, NO_TEXT, RECORD_WORDS, Record, TextPart};
use coroutine::Tracer;

use crate::executor;
use crate::local;
use crate::lock::{Lock, Section};
/// This machine has no `time` register.
#[cfg(not(on_cops))]
use crate::time::now_ns as ticks;
#[cfg(on_cops)]
use crate::time::ticks;
use texts::{Texts, cut};

pub use abi_unix::trace::MOST_TEXT_BYTES;
pub use texts::MOST_TEXTS;

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

static TEXTS: Lock<Texts> = Lock::new(Texts::new());

static TRACER: Tracer = Tracer {
    spawned: |cid, place| record(Kind::Spawned, cid, place_text(place).into()),
    poll_begins: |cid| record(Kind::PollBegins, cid, local::current().priority().number().into()),
    poll_ends: |cid, answer| record(Kind::PollEnds, cid, answer.into()),
    woken: |cid| record(Kind::Wake, cid, 0),
};

/// Begins to record if the environment requests it. To be called before the executor has workers or coroutines.
pub(crate) fn start() {
    if unix::start::environment().any(|variable| variable == c"COPS_TRACE=1") {
        crate::executor::executor().set_mark(1);
        coroutine::trace_with(&TRACER);
    }
}

/// Returns whether a trace is being recorded, for programs that make names or values for it.
#[inline]
pub fn is_on() -> bool {
    // Beside the executor's own words, since each wake asks this before it uses them.
    crate::executor::executor().mark() != 0
}

/// A span that lasts until this is dropped. It belongs to the coroutine that has begun it, also over an `await`.
#[derive(Debug)]
#[must_use = "a span ends when its guard is dropped"]
pub struct SpanGuard {
    coroutine: u64,
    /// Text of the name; [`NO_TEXT`] if nothing was recorded.
    name: u32,
}

impl Drop for SpanGuard {
    #[inline]
    fn drop(&mut self) {
        if self.name != NO_TEXT {
            record_cold(Kind::SpanEnds, self.coroutine, self.name.into());
        }
    }
}

/// Begins a span of the running coroutine or thread, which ends when the guard is dropped. Spans of a coroutine nest:
/// the end of one ends those that have begun within it.
///
/// ```no_run
/// # fn parse(_: &[u8]) {}
/// # fn example(bytes: &[u8]) {
/// let _span = cops::trace::span("parse");
/// parse(bytes);
/// # }
/// ```
#[doc(alias("instrument", "entered", "enter"))]
#[inline]
pub fn span(name: &str) -> SpanGuard {
    if is_on() { begin_span(name) } else { SpanGuard { coroutine: 0, name: NO_TEXT } }
}

#[cold]
fn begin_span(name: &str) -> SpanGuard {
    let guard = SpanGuard { coroutine: runner(), name: text(name) };
    record(Kind::SpanBegins, guard.coroutine, guard.name.into());
    guard
}

/// Marks this moment of the running coroutine or thread.
///
/// ```no_run
/// cops::trace::mark("configuration was read");
/// ```
#[doc(alias("event", "instant"))]
#[inline]
pub fn mark(name: &str) {
    if is_on() {
        mark_with(text(name), NO_TEXT);
    }
}

/// Sets a counter of the process to a value from now on.
///
/// ```no_run
/// # let jobs = vec![1];
/// cops::trace::counter("jobs in the queue", jobs.len() as i64);
/// ```
#[doc(alias("gauge", "metric"))]
#[inline]
pub fn counter(name: &str, value: i64) {
    if is_on() {
        record_cold(Kind::Counter, text(name).into(), value as u64);
    }
}

/// Returns the number of the running coroutine; 0 for a thread.
fn runner() -> u64 {
    executor::current_or_none().map_or(0, coroutine::Cid::raw)
}

/// Records that a span begins for the running coroutine; the texts have these numbers.
#[cfg(feature = "tracing")]
pub(crate) fn span_begins(name: u32, fields: u32) {
    record(Kind::SpanBegins, runner(), u64::from(name) | u64::from(fields) << 32);
}

/// Records that the running coroutine leaves a span of this name.
#[cfg(feature = "tracing")]
pub(crate) fn span_ends(name: u32) {
    record(Kind::SpanEnds, runner(), name.into());
}

/// Records a mark of the running coroutine.
#[cold]
pub(crate) fn mark_with(name: u32, fields: u32) {
    record(Kind::Mark, runner(), u64::from(name) | u64::from(fields) << 32);
}

/// Records the name of a coroutine.
#[cold]
pub(crate) fn named(cid: u64, name: &str) {
    record(Kind::Named, cid, text(name).into());
}

/// Returns the number of a text that may be used again, and records the text if that is new.
#[cold]
pub(crate) fn text(text: &str) -> u32 {
    let text = cut(text);
    if text.is_empty() {
        return NO_TEXT;
    }
    let (number, is_new) = TEXTS.lock().number(text);
    // Another worker may use the number before the text is recorded; readers take all texts first.
    if is_new {
        record_text(number, text);
    }
    number
}

/// Records a text that is likely not to come again, and returns its number.
#[cfg(feature = "tracing")]
pub(crate) fn passing_text(text: &str) -> u32 {
    let text = cut(text);
    if text.is_empty() {
        return NO_TEXT;
    }
    let number = texts::passing();
    record_text(number, text);
    number
}

/// Returns the number of the text of a place in a source.
fn place_text(place: &'static Location<'static>) -> u32 {
    text(&texts::of_place(place))
}

fn record_text(number: u32, text: &str) {
    for part in TextPart::of(number, text.as_bytes()) {
        let [a, b] = part.to_arguments();
        record(Kind::Text, a, b);
    }
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
        record(Kind::PollBegins, cid, local::current().priority().number().into());
    }
}

#[cold]
#[inline(never)]
fn record_cold(kind: Kind, a: u64, b: u64) {
    record(kind, a, b);
}

fn record(kind: Kind, a: u64, b: u64) {
    let _section = Section::begin();
    let record = Record { time: ticks(), kind, hart: 0, worker: 0, process: 0, a, b }.to_words();
    let index = local::current().index.get();
    let Some(buffer) = BUFFERS.get(index) else {
        // A thread, which has no buffer. A trace that has ended accepts no records; that is no failure.
        let _ = unix::trace::write(&[record.map(AtomicU64::new)]);
        return;
    };
    let mut length = buffer.length.load(Ordering::Relaxed);
    if length >= MOST_RECORDS_AT_ONCE {
        flush();
        length = 0;
    }
    for (place, word) in buffer.records[length].iter().zip(record) {
        place.store(word, Ordering::Relaxed);
    }
    buffer.length.store(length + 1, Ordering::Relaxed);
}

/// Hands this worker's records to the kernel.
pub(crate) fn flush() {
    let _section = Section::begin();
    let Some(buffer) = BUFFERS.get(local::current().index.get()) else { return };
    let length = buffer.length.swap(0, Ordering::Relaxed);
    if length > 0 {
        // A trace that has ended accepts no records; that is no failure.
        let _ = unix::trace::write(&buffer.records[..length.min(MOST_RECORDS_AT_ONCE)]);
    }
}

/// Begins to record, without a kernel that takes the records, and holds off other tests that look at them.
#[cfg(test)]
pub(crate) fn start_for_tests() -> std::sync::MutexGuard<'static, ()> {
    static TESTS: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let guard = TESTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    BUFFERS.iter().for_each(|buffer| buffer.length.store(0, Ordering::Relaxed));
    crate::executor::executor().set_mark(1);
    guard
}

/// Returns the records that were not handed over.
#[cfg(test)]
pub(crate) fn recorded() -> alloc::vec::Vec<Record> {
    let of_buffer = |buffer: &TraceBuffer| {
        let records = &buffer.records[..buffer.length.load(Ordering::Relaxed)];
        let words = records.iter().map(|record| record.each_ref().map(|word| word.load(Ordering::Relaxed)));
        words.filter_map(Record::from_words).collect::<alloc::vec::Vec<_>>()
    };
    BUFFERS.iter().flat_map(of_buffer).collect()
}

/// Returns the number of wakes of a coroutine that were recorded and not handed over.
#[cfg(test)]
pub(crate) fn recorded_wakes(cid: u64) -> usize {
    recorded().iter().filter(|record| record.kind == Kind::Wake && record.a == cid).count()
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec::Vec;

    use super::*;

    /// Returns the recorded texts, each as a whole.
    fn texts(records: &[Record]) -> Vec<(u32, String)> {
        let mut texts: Vec<(u32, Vec<u8>)> = Vec::new();
        for record in records.iter().filter(|record| record.kind == Kind::Text) {
            let part = TextPart::from_arguments([record.a, record.b]).unwrap();
            if part.offset == 0 {
                texts.push((part.number, Vec::new()));
            }
            let (_, bytes) = texts.last_mut().unwrap();
            bytes.extend(part.bytes);
            bytes.truncate(part.length.into());
        }
        texts.into_iter().map(|(number, bytes)| (number, String::from_utf8(bytes).unwrap())).collect()
    }

    #[test]
    fn what_a_program_tells_is_recorded_and_each_name_once() {
        let _tests = start_for_tests();
        for value in [-5, 6] {
            let _span = span("a span");
            mark("a mark");
            counter("a counter", value);
        }
        let records = recorded();
        let texts = texts(&records);
        let number = |name: &str| {
            let mut numbers = texts.iter().filter(|(_, text)| text == name).map(|(number, _)| u64::from(*number));
            assert_eq!(numbers.clone().count(), 1, "{name}");
            numbers.next().unwrap()
        };
        let [span, mark, counter] = ["a span", "a mark", "a counter"].map(number);
        let told = |record: &Record| match record.kind {
            Kind::SpanBegins | Kind::SpanEnds => record.b == span,
            Kind::Mark => record.b == mark,
            Kind::Counter => record.a == counter,
            _ => false,
        };
        let told: Vec<_> = records.iter().filter(|record| told(record)).collect();
        let kinds: Vec<_> = told.iter().map(|record| record.kind).collect();
        let of_round = [Kind::SpanBegins, Kind::Mark, Kind::Counter, Kind::SpanEnds];
        assert_eq!(kinds, [of_round, of_round].concat());
        assert_eq!((told[2].b, told[6].b), (-5i64 as u64, 6));
    }
}
