//! From the kernel's trace records to a file that Perfetto's viewer opens (<https://ui.perfetto.dev>).
//!
//! The format is Chrome's JSON trace events: an array of objects with a phase `ph`, a time `ts` in microseconds, and
//! The format is Chrome's JSON trace events: an array of objects with a phase `ph`, a time `ts` in microseconds, and
//! their track, `pid` and `tid`. A span becomes a complete event (`X`, with `dur`), a point in time an instant (`i`);
//! names of tracks are metadata (`M`). One group of tracks has the harts: the process in user mode, and the polled
//! kernel coroutine. Each process has a group with a track for each worker: its polled coroutine.
//!
//! Records come in the order of harts and buffers and may be lost, and those of processes are claims, so ends may lack
//! their beginnings and the other way round. A track is a stack: an end closes its beginning and every span begun above
//! it, an end without a beginning is left out, and open spans are closed at the end of the trace. So the output always
//! nests.

use std::collections::BTreeMap;
use std::io::{self, Write};

use abi_unix::SystemCall;
use abi_unix::trace::{Cause, Kind, ProgramName, RECORD_BYTES, RECORD_WORDS, Reason, Record};
use serde_json::{Value, json};

/// The group of the harts; no process has this number.
const MACHINE: u64 = 1_000_000;
/// Tracks are numbered over all groups.
const TRACKS_IN_GROUP: u64 = 4096;

/// Figures about the records, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Valid records.
    pub records: u64,
    /// Records that the machine could not keep.
    pub lost: u64,
    /// Time from the first to the last, in nanoseconds.
    pub length_ns: u64,
}

/// Parses records, and sorts them by time. Invalid ones are left out.
pub fn parse(bytes: &[u8]) -> Vec<Record> {
    let mut records: Vec<Record> = bytes
        .chunks_exact(RECORD_BYTES)
        .filter_map(|bytes| {
            let mut words = [0; RECORD_WORDS];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
            }
            Record::from_words(words)
        })
        .collect();
    // Stable, so that records of one buffer and one moment keep their order.
    records.sort_by_key(|record| record.time);
    records
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Track {
    group: u64,
    number: u64,
}

impl Track {
    fn of_hart(record: &Record) -> Track {
        Track { group: MACHINE, number: record.hart.into() }
    }

    fn of_worker(record: &Record) -> Track {
        Track { group: record.process.into(), number: u64::from(record.worker) % TRACKS_IN_GROUP }
    }

    fn id(self) -> u64 {
        self.group * TRACKS_IN_GROUP + self.number + 1
    }
}

/// A span that has begun and not ended.
struct Open {
    what: What,
    name: String,
    start_ns: u64,
    detail: Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    User { process: u32, worker: u16 },
    Poll(u64),
}

struct Converter<W: Write> {
    out: W,
    first: bool,
    tracks: BTreeMap<Track, Vec<Open>>,
    programs: BTreeMap<u32, String>,
    now_ns: u64,
}

/// Writes the records, which are in the order of time, as JSON.
///
/// # Errors
///
/// Errors of `out`.
pub fn convert(records: &[Record], ticks_per_second: u64, out: impl Write) -> io::Result<Summary> {
    let mut converter = Converter { out, first: true, tracks: BTreeMap::new(), programs: BTreeMap::new(), now_ns: 0 };
    let start = records.first().map_or(0, |record| record.time);
    let mut summary = Summary { records: records.len() as u64, ..Summary::default() };
    converter.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    for record in records {
        let ticks = u128::from(record.time - start);
        converter.now_ns = (ticks * 1_000_000_000 / u128::from(ticks_per_second.max(1))) as u64;
        summary.length_ns = converter.now_ns;
        if record.kind == Kind::Lost {
            summary.lost = summary.lost.saturating_add(record.a);
        }
        converter.record(record)?;
    }
    converter.finish()?;
    Ok(summary)
}

/// Formats a cid for people: index and generation.
fn cid(cid: u64) -> String {
    format!("{}.{}", cid as u32, cid >> 32)
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

impl<W: Write> Converter<W> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        let hart = Track::of_hart(record);
        let own = Track::of_worker(record);
        match record.kind {
            Kind::UserBegins => {
                let what = What::User { process: record.process, worker: record.worker };
                let name = self.program(record.process);
                self.begin(hart, what, name, json!({"worker": record.worker, "priority": record.a}));
                Ok(())
            }
            Kind::UserEnds => {
                let what = What::User { process: record.process, worker: record.worker };
                let reason = match record.a {
                    reason if reason == Reason::GaveWay as u64 => "gave way",
                    reason if reason == Reason::Waits as u64 => "waits",
                    reason if reason == Reason::Sleeps as u64 => "sleeps",
                    reason if reason == Reason::Executes as u64 => "executes",
                    reason if reason == Reason::Ends as u64 => "ends",
                    _ => "?",
                };
                self.end(hart, what, "reason", json!(reason))
            }
            Kind::KernelPollBegins | Kind::PollBegins => {
                let (track, name) = if record.kind == Kind::PollBegins {
                    (own, format!("coroutine {}", cid(record.a)))
                } else {
                    (hart, format!("kernel coroutine {}", cid(record.a)))
                };
                self.begin(track, What::Poll(record.a), name, json!({"cid": record.a.to_string()}));
                Ok(())
            }
            Kind::KernelPollEnds | Kind::PollEnds => {
                let track = if record.kind == Kind::PollEnds { own } else { hart };
                let answer = ["waits", "yielded", "done"].get(record.b as usize).copied().unwrap_or("?");
                self.end(track, What::Poll(record.a), "answer", json!(answer))
            }
            Kind::Trap => {
                let name = match record.a {
                    cause if cause == Cause::Call as u64 => {
                        let call = usize::try_from(record.b).ok().and_then(SystemCall::from_number);
                        format!("call {}", call.map_or("?", SystemCall::name))
                    }
                    cause if cause == Cause::Interrupt as u64 => "interrupt".into(),
                    _ => "fault".into(),
                };
                self.instant(hart, &name, json!({"process": record.process, "worker": record.worker}))
            }
            Kind::UserInterrupt => self.instant(hart, "user interrupt", json!({"process": record.process})),
            Kind::KernelWake => self.instant(hart, "kernel wake", json!({"cid": cid(record.a)})),
            Kind::Wake => self.instant(own, "wake", json!({"cid": cid(record.a)})),
            Kind::Program => {
                let name = ProgramName::from_words([record.a, record.b]);
                let name = String::from_utf8_lossy(name.as_bytes()).into_owned();
                self.instant(hart, &format!("program {name}"), json!({"process": record.process}))?;
                self.programs.insert(record.process, name);
                Ok(())
            }
            Kind::Lost => self.instant(hart, "records lost", json!({"count": record.a})),
        }
    }

    fn program(&self, process: u32) -> String {
        match self.programs.get(&process) {
            Some(name) => format!("{name} [{process}]"),
            None => format!("process [{process}]"),
        }
    }

    fn begin(&mut self, track: Track, what: What, name: String, detail: Value) {
        let start_ns = self.now_ns;
        self.tracks.entry(track).or_default().push(Open { what, name, start_ns, detail });
    }

    fn end(&mut self, track: Track, what: What, key: &str, value: Value) -> io::Result<()> {
        let stack = self.tracks.entry(track).or_default();
        let Some(at) = stack.iter().rposition(|open| open.what == what) else { return Ok(()) };
        let mut closing = stack.split_off(at);
        closing[0].detail[key] = value;
        for open in closing.into_iter().rev() {
            self.complete(track, open)?;
        }
        Ok(())
    }

    fn complete(&mut self, track: Track, open: Open) -> io::Result<()> {
        let event = json!({
            "ph": "X", "cat": "run", "name": open.name, "pid": track.group, "tid": track.id(),
            "ts": microseconds(open.start_ns), "dur": microseconds(self.now_ns - open.start_ns), "args": open.detail,
        });
        self.event(&event)
    }

    fn instant(&mut self, track: Track, name: &str, detail: Value) -> io::Result<()> {
        self.tracks.entry(track).or_default();
        let event = json!({
            "ph": "i", "s": "t", "cat": "event", "name": name, "pid": track.group, "tid": track.id(),
            "ts": microseconds(self.now_ns), "args": detail,
        });
        self.event(&event)
    }

    fn event(&mut self, event: &Value) -> io::Result<()> {
        if !core::mem::take(&mut self.first) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut self.out, event)?;
        Ok(())
    }

    /// Closes open spans, and names groups and tracks.
    fn finish(mut self) -> io::Result<()> {
        let tracks: Vec<Track> = self.tracks.keys().copied().collect();
        for &track in &tracks {
            let stack = self.tracks.insert(track, Vec::new()).unwrap_or_default();
            for open in stack.into_iter().rev() {
                self.complete(track, open)?;
            }
        }
        let mut group = None;
        for &track in &tracks {
            if group != Some(track.group) {
                group = Some(track.group);
                let name = if track.group == MACHINE { "harts".into() } else { self.program(track.group as u32) };
                self.metadata("process_name", track, &name)?;
            }
            let name = if track.group == MACHINE { "hart" } else { "worker" };
            self.metadata("thread_name", track, &format!("{name} {}", track.number))?;
        }
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }

    fn metadata(&mut self, what: &str, track: Track, name: &str) -> io::Result<()> {
        self.event(&json!({
            "ph": "M", "name": what, "pid": track.group, "tid": track.id(), "ts": 0, "args": {"name": name},
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(time: u64, kind: Kind, process: u32, a: u64, b: u64) -> Record {
        Record { time, kind, hart: 1, worker: 2, process, a, b }
    }

    fn converted(records: &[Record]) -> (Value, Summary) {
        let mut out = Vec::new();
        let summary = convert(records, 10_000_000, &mut out).unwrap();
        (serde_json::from_slice(&out).unwrap(), summary)
    }

    /// Checks the rules of the format.
    fn check(file: &Value) -> Result<(), String> {
        let events = file["traceEvents"].as_array().ok_or("no events")?;
        let mut spans: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
        for event in events {
            let phase = event["ph"].as_str().ok_or("no phase")?;
            event["name"].as_str().ok_or("no name")?;
            let track = (event["pid"].as_u64().ok_or("no pid")?, event["tid"].as_u64().ok_or("no tid")?);
            let ns = |key: &str| Some((event[key].as_f64().filter(|time| *time >= 0.0)? * 1000.0).round() as u64);
            let start = ns("ts").ok_or("no time")?;
            match phase {
                "X" => spans.entry(track).or_default().push((start, start + ns("dur").ok_or("no duration")?)),
                "i" if matches!(event["s"].as_str(), Some("t" | "p" | "g")) => {}
                "M" if event["args"]["name"].is_string() => {}
                other => return Err(format!("phase {other}")),
            }
        }
        for (track, mut spans) in spans {
            // Outer spans first; then each has to end within the open one.
            spans.sort_by_key(|&(start, end)| (start, core::cmp::Reverse(end)));
            let mut open: Vec<u64> = Vec::new();
            for (start, end) in spans {
                while open.last().is_some_and(|&last| last <= start) {
                    open.pop();
                }
                if open.last().is_some_and(|&last| last < end) {
                    return Err(format!("spans of {track:?} overlap at {start}"));
                }
                open.push(end);
            }
        }
        Ok(())
    }

    #[test]
    fn events_become_readable_spans() {
        let records = [
            record(1000, Kind::Program, 5, u64::from_le_bytes(*b"hello\0\0\0"), 0),
            record(1010, Kind::KernelPollBegins, 0, 7 | 1 << 32, 0),
            record(1020, Kind::UserBegins, 5, 4, 0),
            record(1025, Kind::PollBegins, 5, 3 | 2 << 32, 0),
            record(1030, Kind::Trap, 5, Cause::Call as u64, 64),
            record(1035, Kind::PollEnds, 5, 3 | 2 << 32, 2),
            record(1040, Kind::UserEnds, 5, Reason::Sleeps as u64, 0),
            record(1050, Kind::KernelPollEnds, 0, 7 | 1 << 32, 0),
            record(1060, Kind::Lost, 0, 3, 0),
        ];
        let (file, summary) = converted(&records);
        check(&file).unwrap();
        assert_eq!(summary, Summary { records: 9, lost: 3, length_ns: 6000 });
        let events = file["traceEvents"].as_array().unwrap();
        let named = |name: &str| events.iter().find(|event| event["name"] == name).unwrap();
        assert_eq!(named("hello [5]")["ts"], 2.0);
        assert_eq!(named("hello [5]")["dur"], 2.0);
        assert_eq!(named("hello [5]")["args"]["reason"], "sleeps");
        assert_eq!(named("coroutine 3.2")["args"]["answer"], "done");
        assert_eq!(named("coroutine 3.2")["pid"], 5);
        assert_eq!(named("kernel coroutine 7.1")["dur"], 4.0);
        assert_eq!(named("call write")["ph"], "i");
        assert_eq!(named("records lost")["args"]["count"], 3);
        assert!(events.iter().any(|event| event["args"]["name"] == "hart 1"));
        assert!(events.iter().any(|event| event["args"]["name"] == "worker 2"));
    }

    #[test]
    fn bytes_become_records_in_the_order_of_time() {
        let mut bytes = Vec::new();
        for time in [3, 1, 2] {
            bytes.extend(record(time, Kind::Wake, 1, 0, 0).to_words().iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes.extend([0; RECORD_BYTES]);
        bytes.extend([1; 5]);
        assert_eq!(parse(&bytes).iter().map(|record| record.time).collect::<Vec<_>>(), [1, 2, 3]);
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn any_recording_becomes_a_well_formed_file(
            records in prop::collection::vec(
                (0u64..500, 0usize..12, 0u8..3, 0u16..3, 0u32..3, 0u64..4, any::<u64>()), 0..200),
        ) {
            let mut bytes = Vec::new();
            for &(time, kind, hart, worker, process, a, b) in &records {
                let record = Record { time, kind: Kind::ALL[kind], hart, worker, process, a, b };
                bytes.extend(record.to_words().iter().flat_map(|word| word.to_le_bytes()));
            }
            let (file, summary) = converted(&parse(&bytes));
            prop_assert_eq!(summary.records, records.len() as u64);
            prop_assert_eq!(check(&file), Ok(()));
        }

        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..2000), ticks in any::<u64>()) {
            let mut out = Vec::new();
            convert(&parse(&bytes), ticks, &mut out).unwrap();
            prop_assert!(serde_json::from_slice::<Value>(&out).is_ok());
        }
    }
}
