//! From the kernel's trace records to a file that Perfetto's viewer opens (<https://ui.perfetto.dev>).
//!
//! The file has Perfetto's own format, Protocol Buffers (`format`). There are these tracks (`tracks`):
//!
//! * each hart: the polled kernel coroutine and the process in user mode, with traps; the priority that it runs;
//! * each worker of a process: the polled coroutine, with wakes;
//! * each coroutine of a process: whether it is ready or runs, and below it its spans and marks;
//! * the number of ready coroutines of the kernel and of each process, and the program's own counters.
//!
//! An arrow leads from a wake to the poll that it causes (`coroutines`).
//!
//! Records may be lost, and those of processes are claims, so ends may lack their beginnings and the other way round.
//! Slices nest nevertheless. Where records of a hart are lost, its slices end, and nothing is known of any coroutine
//! until its next record.

mod coroutines;
mod format;
mod names;
mod tracks;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Write};

use abi_unix::SystemCall;
use abi_unix::trace::{Cause, Kind, RECORD_BYTES, RECORD_WORDS, Reason, Record};

use prost::Message;

use coroutines::{Answer, Coroutines};
use format::TraceFile;
use names::{Names, ProgramRun, Runs};
use tracks::{Event, IDLE, Slice, Track, Writer, number, text};

/// Number of coroutines whose states are shown; polls of later ones are on the tracks of their workers only.
pub const MOST_COROUTINES: usize = 1000;

/// Figures about the records, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Valid records.
    pub records: u64,
    /// Records that the machine could not keep.
    pub lost: u64,
    /// Time from the first to the last, in nanoseconds.
    pub length_ns: u64,
    /// Coroutines whose states are not shown.
    pub without_track: usize,
}

/// Contents of a file, for tests of whole machines.
pub struct Contents {
    /// Names of tracks and events.
    pub names: BTreeSet<String>,
    /// Values of counters.
    pub values: BTreeSet<i64>,
    /// The names at both ends of each arrow.
    pub arrows: BTreeSet<(String, String)>,
}

impl Contents {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The file does not have the format.
    pub fn of(file: &[u8]) -> Result<Contents, prost::DecodeError> {
        let mut contents = Contents { names: BTreeSet::new(), values: BTreeSet::new(), arrows: BTreeSet::new() };
        let mut flows = HashMap::new();
        for packet in TraceFile::decode(file)?.packet {
            contents.names.extend(packet.track_descriptor.map(|track| track.name().to_string()));
            let Some(event) = packet.track_event else { continue };
            contents.names.insert(event.name().to_string());
            contents.values.extend(event.counter_value);
            for flow in event.terminating_flow_ids.iter().filter_map(|flow| flows.remove(flow)) {
                contents.arrows.insert((flow, event.name().to_string()));
            }
            flows.extend(event.flow_ids.iter().map(|flow| (*flow, event.name().to_string())));
        }
        Ok(contents)
    }
}

/// Parses records, and sorts them by time. Invalid ones are left out. A record of a loss gets the latest time of its
/// hart's records before the loss: those of processes have times before their arrival.
pub fn parse(bytes: &[u8]) -> Vec<Record> {
    let (mut records, mut last) = (Vec::new(), HashMap::new());
    for bytes in bytes.chunks_exact(RECORD_BYTES) {
        let mut words = [0; RECORD_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
        }
        let Some(record) = Record::from_words(words) else { continue };
        match (record.kind, last.get(&record.hart)) {
            (Kind::Lost, Some(&time)) => records.push(Record { time, ..record }),
            _ => records.push(record),
        }
        let latest = last.entry(record.hart).or_insert(record.time);
        *latest = record.time.max(*latest);
    }
    // Stable, so that records of one buffer and one moment keep their order.
    records.sort_by_key(|record| record.time);
    records
}

struct Converter<'a, W: Write> {
    writer: Writer<'a, W>,
    names: &'a Names,
    /// Coroutines of the kernel.
    kernel: Coroutines,
    /// Coroutines of programs.
    programs: HashMap<ProgramRun, Coroutines>,
    /// Coroutines whose states are shown, and others.
    shown: HashSet<(ProgramRun, u64)>,
    not_shown: HashSet<(ProgramRun, u64)>,
    /// The priority of the kernel coroutine that each hart polls.
    polled_at: HashMap<u8, u64>,
    /// The last arrow.
    flow: u64,
}

/// Writes the records, which are in the order of time, as Perfetto's format.
///
/// # Errors
///
/// Errors of `out`.
pub fn convert(records: &[Record], ticks_per_second: u64, out: impl Write) -> io::Result<Summary> {
    let (names, mut runs) = (Names::of(records), Runs::default());
    let mut converter = Converter {
        writer: Writer::new(out, &names),
        names: &names,
        kernel: Coroutines::default(),
        programs: HashMap::new(),
        shown: HashSet::new(),
        not_shown: HashSet::new(),
        polled_at: HashMap::new(),
        flow: 0,
    };
    let start = records.first().map_or(0, |record| record.time);
    let mut summary = Summary { records: records.len() as u64, ..Summary::default() };
    for record in records {
        let ticks = u128::from(record.time - start);
        let now_ns = (ticks * 1_000_000_000 / u128::from(ticks_per_second.max(1))) as u64;
        // A time that does not fit would begin at 0 again.
        converter.writer.now_ns = converter.writer.now_ns.max(now_ns);
        summary.length_ns = converter.writer.now_ns;
        if record.kind == Kind::Lost {
            summary.lost = summary.lost.saturating_add(record.a);
        }
        let run = runs.of(record);
        if record.kind.is_of_processes() {
            converter.record_of_process(record, run)?;
        } else {
            converter.record_of_kernel(record)?;
        }
    }
    summary.without_track = converter.not_shown.len();
    converter.writer.finish()?;
    Ok(summary)
}

/// Makes an event of the scheduling without details.
fn event(name: impl Into<String>) -> Event {
    Event { name: name.into(), category: "scheduling", ..Event::default() }
}

/// Returns the word for the reason why a worker leaves user mode.
fn reason(number: u64) -> &'static str {
    match number {
        reason if reason == Reason::GaveWay as u64 => "gave way",
        reason if reason == Reason::Waits as u64 => "waits",
        reason if reason == Reason::Sleeps as u64 => "sleeps",
        reason if reason == Reason::Executes as u64 => "executes",
        reason if reason == Reason::Ends as u64 => "ends",
        _ => "?",
    }
}

/// Returns the name of a trap.
fn trap(record: &Record) -> String {
    match record.a {
        cause if cause == Cause::Call as u64 => {
            let call = usize::try_from(record.b).ok().and_then(SystemCall::from_number);
            format!("call {}", call.map_or("?", SystemCall::name))
        }
        cause if cause == Cause::Interrupt as u64 => "interrupt".into(),
        _ => "fault".into(),
    }
}

impl<W: Write> Converter<'_, W> {
    fn record_of_kernel(&mut self, record: &Record) -> io::Result<()> {
        let hart = Track::of_hart(record);
        if record.kind != Kind::Lost {
            self.writer.end(&hart, Slice::Loss, Vec::new())?;
        }
        let user = Slice::User { process: record.process, worker: record.worker };
        match record.kind {
            Kind::UserBegins => {
                self.writer.end_where(&hart, |slice| matches!(slice, Slice::User { .. }), Vec::new())?;
                let details = vec![number("worker", record.worker.into()), number("priority", record.a)];
                let event = Event { details, ..event(self.names.process(record.process)) };
                self.writer.begin(&hart, user, event)?;
                self.runs_at(record.hart, Some(record.a))
            }
            Kind::UserEnds => {
                self.writer.end(&hart, user, vec![text("reason", reason(record.a))])?;
                self.runs_at(record.hart, self.polled_at.get(&record.hart).copied())
            }
            Kind::Trap => self.moment(&hart, trap(record), record),
            Kind::UserInterrupt => self.moment(&hart, "user interrupt".into(), record),
            Kind::KernelPollBegins => {
                let flow = self.kernel.poll_begins(record.a);
                self.begin_poll(&hart, record, self.names.kernel_coroutine(record.a), flow)?;
                self.polled_at.insert(record.hart, record.b);
                self.runs_at(record.hart, Some(record.b))?;
                self.writer.count(&Track::ReadyInKernel, self.kernel.ready() as i64)
            }
            Kind::KernelPollEnds => {
                let answer = Answer::from_number(record.b);
                self.kernel.poll_ends(record.a, answer);
                self.writer.end(&hart, Slice::Poll(record.a), vec![text("answer", answer.word())])?;
                self.polled_at.remove(&record.hart);
                self.runs_at(record.hart, None)?;
                self.writer.count(&Track::ReadyInKernel, self.kernel.ready() as i64)
            }
            Kind::KernelWake => {
                let begins = Some(self.flow + 1).filter(|flow| self.kernel.woken(record.a, *flow));
                self.flow += 1;
                let name = format!("wake {}", self.names.kernel_coroutine(record.a));
                self.writer.instant(&hart, Event { begins, ..event(name) })?;
                self.writer.count(&Track::ReadyInKernel, self.kernel.ready() as i64)
            }
            Kind::Program => {
                let program = self.names.process(record.process);
                self.moment(&hart, format!("program {program}"), record)
            }
            Kind::Lost => self.loss(record),
            _ => Ok(()),
        }
    }

    /// Notes the priority that a hart runs from now on.
    fn runs_at(&mut self, hart: u8, priority: Option<u64>) -> io::Result<()> {
        let value = priority.map_or(IDLE, |priority| priority.min(IDLE as u64) as i64);
        self.writer.count(&Track::Priority(hart), value)
    }

    fn moment(&mut self, hart: &Track, name: String, record: &Record) -> io::Result<()> {
        let details = vec![number("process", record.process.into()), number("worker", record.worker.into())];
        self.writer.instant(hart, Event { details, ..event(name) })
    }

    /// Begins a poll; one that has not ended before on this track has lost its end.
    fn begin_poll(&mut self, track: &Track, record: &Record, name: String, ends: Option<u64>) -> io::Result<()> {
        self.writer.end_where(track, |slice| matches!(slice, Slice::Poll(_)), Vec::new())?;
        let details = vec![text("coroutine", names::number(record.a)), number("priority", record.b)];
        self.writer.begin(track, Slice::Poll(record.a), Event { details, ends, ..event(name) })
    }

    /// Forgets what the lost records may have changed.
    fn loss(&mut self, record: &Record) -> io::Result<()> {
        let hart = Track::of_hart(record);
        self.writer.end_all(|track| *track == hart || matches!(track, Track::Coroutine(..)))?;
        let details = vec![number("count", record.a)];
        self.writer.begin(&hart, Slice::Loss, Event { details, ..event(format!("{} records lost", record.a)) })?;
        self.polled_at.remove(&record.hart);
        self.kernel = Coroutines::default();
        self.programs.clear();
        Ok(())
    }

    fn record_of_process(&mut self, record: &Record, run: ProgramRun) -> io::Result<()> {
        let worker = Track::of_worker(record);
        match record.kind {
            Kind::PollBegins => {
                let flow = self.programs.entry(run).or_default().poll_begins(record.a);
                self.begin_poll(&worker, record, self.names.coroutine(run, record.a), flow)?;
                self.show_state(run, record.a, Some("runs"))
            }
            Kind::PollEnds => {
                let answer = Answer::from_number(record.b);
                let coroutines = self.programs.entry(run).or_default();
                coroutines.poll_ends(record.a, answer);
                let is_ready = coroutines.is_ready(record.a);
                self.writer.end(&worker, Slice::Poll(record.a), vec![text("answer", answer.word())])?;
                self.show_state(run, record.a, is_ready.then_some("ready"))
            }
            Kind::Wake => {
                let coroutines = self.programs.entry(run).or_default();
                let was_ready = coroutines.is_ready(record.a);
                let begins = Some(self.flow + 1).filter(|flow| coroutines.woken(record.a, *flow));
                let becomes_ready = coroutines.is_ready(record.a) && !was_ready;
                self.flow += 1;
                let name = format!("wake {}", self.names.coroutine(run, record.a));
                self.writer.instant(&worker, Event { begins, ..event(name) })?;
                if becomes_ready { self.show_state(run, record.a, Some("ready")) } else { Ok(()) }
            }
            Kind::Spawned => {
                let coroutines = self.programs.entry(run).or_default();
                coroutines.spawned(record.a);
                let is_ready = coroutines.is_ready(record.a);
                let details = self.names.place(run, record.a).map(|place| text("place", place)).into_iter().collect();
                let name = format!("spawn {}", self.names.coroutine(run, record.a));
                self.writer.instant(&worker, Event { details, ..event(name) })?;
                if is_ready { self.show_state(run, record.a, Some("ready")) } else { Ok(()) }
            }
            Kind::SpanBegins | Kind::SpanEnds | Kind::Mark => self.span_or_mark(record, run, worker),
            Kind::Counter => {
                let name = self.names.text_or_number(run, record.a as u32);
                self.writer.count(&Track::Counter(run, name), record.b as i64)
            }
            _ => Ok(()),
        }
    }

    /// Shows the state of a coroutine from now on, and the number of ready ones.
    fn show_state(&mut self, run: ProgramRun, cid: u64, state: Option<&str>) -> io::Result<()> {
        let ready = self.programs.get(&run).map_or(0, Coroutines::ready);
        self.writer.count(&Track::Ready(run), ready as i64)?;
        if !self.is_shown(run, cid) {
            return Ok(());
        }
        let track = Track::Coroutine(run, cid);
        self.writer.end(&track, Slice::State, Vec::new())?;
        match state {
            Some(state) => self.writer.begin(&track, Slice::State, event(state)),
            None => Ok(()),
        }
    }

    /// Returns whether the states of a coroutine are shown, which is decided once.
    fn is_shown(&mut self, run: ProgramRun, cid: u64) -> bool {
        let key = (run, cid);
        if self.shown.contains(&key) {
            return true;
        }
        let is_shown = self.shown.len() < MOST_COROUTINES;
        let decided = if is_shown { &mut self.shown } else { &mut self.not_shown };
        decided.insert(key);
        is_shown
    }

    fn span_or_mark(&mut self, record: &Record, run: ProgramRun, worker: Track) -> io::Result<()> {
        let track = match record.a {
            0 => worker,
            cid if self.is_shown(run, cid) => Track::Spans(run, cid),
            cid => Track::OtherSpans(run, cid),
        };
        let (name, fields) = (record.b as u32, (record.b >> 32) as u32);
        if record.kind == Kind::SpanEnds {
            return self.writer.end(&track, Slice::Span(name), Vec::new()).map(drop);
        }
        let details = self.names.text(run, fields).map(|fields| text("fields", fields)).into_iter().collect();
        let event =
            Event { name: self.names.text_or_number(run, name), category: "program", details, ..Event::default() };
        match record.kind {
            Kind::SpanBegins => self.writer.begin(&track, Slice::Span(name), event),
            _ => self.writer.instant(&track, event),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use abi_unix::trace::{MOST_TEXT_BYTES, TextPart, name_words};
    use proptest::prelude::*;
    use prost::Message;

    use super::format::{TraceFile, TrackDescriptor, TrackEvent, Type};
    use super::*;

    const TICKS: u64 = 10_000_000;

    fn record(time: u64, kind: Kind, process: u32, a: u64, b: u64) -> Record {
        Record { time, kind, hart: 1, worker: 2, process, a, b }
    }

    /// Returns the records of a text.
    fn text_records(time: u64, process: u32, number: u32, text: &str) -> Vec<Record> {
        let parts = TextPart::of(number, text.as_bytes()).map(TextPart::to_arguments);
        parts.map(|[a, b]| record(time, Kind::Text, process, a, b)).collect()
    }

    fn bytes_of(records: &[Record]) -> Vec<u8> {
        records.iter().flat_map(|record| record.to_words()).flat_map(|word| word.to_le_bytes()).collect()
    }

    /// A trace as a viewer reads it.
    struct Read {
        tracks: BTreeMap<u64, TrackDescriptor>,
        events: Vec<(u64, TrackEvent)>,
    }

    impl Read {
        fn name_of(&self, track: u64) -> &str {
            let track = &self.tracks[&track];
            let of_process = track.process.as_ref().and_then(|process| process.process_name.as_deref());
            let of_thread = track.thread.as_ref().and_then(|thread| thread.thread_name.as_deref());
            track.name.as_deref().or(of_process).or(of_thread).unwrap()
        }

        /// Returns the slices and moments of a track: name, begin and end in nanoseconds, and the details of both.
        fn slices(&self, track: &str) -> Vec<(&str, u64, u64, String)> {
            let (mut slices, mut open) = (Vec::new(), Vec::new());
            for (time, event) in &self.events {
                if self.name_of(event.track_uuid()) != track {
                    continue;
                }
                let details = event.debug_annotations.iter().map(|detail| {
                    let number = detail.uint_value.map(|number| number.to_string());
                    format!("{}={} ", detail.name(), number.as_deref().unwrap_or(detail.string_value()))
                });
                let details: String = details.collect();
                match event.r#type() {
                    Type::SliceBegin => {
                        open.push(slices.len());
                        slices.push((event.name(), *time, 0, details));
                    }
                    Type::SliceEnd => {
                        let slice: &mut (_, _, u64, String) = &mut slices[open.pop().unwrap()];
                        slice.2 = *time;
                        slice.3 += &details;
                    }
                    Type::Instant => slices.push((event.name(), *time, *time, details)),
                    _ => {}
                }
            }
            slices
        }

        fn values(&self, track: &str) -> Vec<(u64, i64)> {
            let is_value = |event: &TrackEvent| self.name_of(event.track_uuid()) == track;
            let values = self.events.iter().filter(|(_, event)| is_value(event));
            values.map(|(time, event)| (*time, event.counter_value())).collect()
        }

        /// Returns the names of the events at both ends of each arrow.
        fn arrows(&self) -> Vec<(&str, &str)> {
            let ends = |(_, event): &(u64, TrackEvent)| event.terminating_flow_ids.first().copied();
            let arrow = |end| {
                let flow = ends(end)?;
                let begin = self.events.iter().find(|(_, event)| event.flow_ids.contains(&flow))?;
                Some((begin.1.name(), end.1.name()))
            };
            self.events.iter().filter_map(arrow).collect()
        }
    }

    /// Reads a file and checks the rules of the format: tracks are described once and before their events, and their
    /// parents before them; times of a track do not decrease; each slice that begins ends, and nothing ends that has
    /// not begun; counters have values alone; an arrow ends once, and where it ends it has begun.
    fn read(file: &[u8]) -> Result<Read, String> {
        let trace = TraceFile::decode(file).map_err(|error| error.to_string())?;
        let mut read = Read { tracks: BTreeMap::new(), events: Vec::new() };
        let (mut open, mut last, mut flows) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (index, packet) in trace.packet.into_iter().enumerate() {
            if packet.trusted_packet_sequence_id != Some(1) || packet.sequence_flags.is_some() != (index == 0) {
                return Err(format!("packet {index} is not of the sequence"));
            }
            if let Some(track) = packet.track_descriptor {
                if track.parent_uuid.is_some_and(|parent| !read.tracks.contains_key(&parent)) {
                    return Err(format!("{track:?} has no parent"));
                }
                if let Some(other) = read.tracks.insert(track.uuid(), track) {
                    return Err(format!("{other:?} is described twice"));
                }
                continue;
            }
            let (Some(event), Some(time)) = (packet.track_event, packet.timestamp) else {
                return Err(format!("packet {index} is empty"));
            };
            let track = event.track_uuid();
            let Some(descriptor) = read.tracks.get(&track) else { return Err(format!("{event:?} has no track")) };
            if last.insert(track, time).is_some_and(|last| last > time) {
                return Err(format!("{event:?} is before the last one"));
            }
            let depth: &mut u64 = open.entry(track).or_default();
            match event.r#type() {
                Type::SliceBegin => *depth += 1,
                Type::SliceEnd => *depth = depth.checked_sub(1).ok_or(format!("{event:?} ends nothing"))?,
                Type::Instant => {}
                Type::Counter if event.counter_value.is_some() => {}
                _ => return Err(format!("{event:?} is nothing")),
            }
            let is_counter = event.r#type() == Type::Counter;
            if is_counter != descriptor.counter.is_some()
                || event.name.is_some() == (is_counter || event.r#type() == Type::SliceEnd)
            {
                return Err(format!("{event:?} on {descriptor:?}"));
            }
            for flow in &event.flow_ids {
                flows.insert(*flow, true);
            }
            for flow in &event.terminating_flow_ids {
                if flows.insert(*flow, false) != Some(true) {
                    return Err(format!("{event:?} ends no arrow"));
                }
            }
            read.events.push((time, event));
        }
        match open.iter().find(|(_, depth)| **depth != 0) {
            Some((track, _)) => Err(format!("a slice of {:?} does not end", read.tracks[track])),
            None => Ok(read),
        }
    }

    fn converted(records: &[Record]) -> (Read, Summary) {
        let mut out = Vec::new();
        let summary = convert(&parse(&bytes_of(records)), TICKS, &mut out).unwrap();
        (read(&out).unwrap(), summary)
    }

    #[test]
    fn runs_and_calls_are_on_the_tracks_of_harts() {
        let records = [
            record(1000, Kind::Program, 5, name_words(b"hello")[0], 0),
            record(1010, Kind::KernelPollBegins, 0, 7 | 1 << 32, 3),
            record(1020, Kind::UserBegins, 5, 4, 0),
            record(1030, Kind::Trap, 5, Cause::Call as u64, 64),
            record(1040, Kind::UserEnds, 5, Reason::Sleeps as u64, 0),
            record(1050, Kind::KernelPollEnds, 0, 7 | 1 << 32, 0),
            record(1060, Kind::KernelPollBegins, 0, 8 | 1 << 32, 63),
            record(1070, Kind::KernelPollEnds, 0, 8 | 1 << 32, 2),
        ];
        let (read, summary) = converted(&records);
        assert_eq!(summary, Summary { records: 8, length_ns: 7000, ..Summary::default() });
        let details = |text: &str| text.to_string();
        assert_eq!(
            read.slices("hart 1"),
            [
                ("program hello [5]", 0, 0, details("process=5 worker=2 ")),
                ("worker 2 of hello [5]", 1000, 5000, details("coroutine=7.1 priority=3 answer=waits ")),
                ("hello [5]", 2000, 4000, details("worker=2 priority=4 reason=sleeps ")),
                ("call write", 3000, 3000, details("process=5 worker=2 ")),
                ("kernel coroutine 8.1", 6000, 7000, details("coroutine=8.1 priority=63 answer=done ")),
            ]
        );
        assert_eq!(
            read.values("hart 1: priority"),
            [(1000, 3), (2000, 4), (4000, 3), (5000, IDLE), (6000, 63), (7000, IDLE)]
        );
        assert!(read.tracks.values().any(|track| track.name() == "harts"));
    }

    #[test]
    fn coroutines_have_names_states_and_arrows() {
        let (main, other) = (1 << 32, 1 | 1 << 32);
        let mut records = text_records(1000, 5, 1, "main");
        // The name of the second coroutine comes after its first poll.
        records.extend([
            record(1000, Kind::Program, 5, name_words(b"server")[0], 0),
            record(1000, Kind::Named, 5, main, 1),
            record(1010, Kind::PollBegins, 5, main, 4),
            record(1020, Kind::Spawned, 5, other, 2),
            record(1030, Kind::PollEnds, 5, main, 0),
            record(1040, Kind::PollBegins, 5, other, 4),
            record(1050, Kind::Wake, 5, main, 0),
            record(1051, Kind::Wake, 5, main, 0),
            record(1060, Kind::PollEnds, 5, other, 2),
            record(1070, Kind::PollBegins, 5, main, 4),
            record(1080, Kind::PollEnds, 5, main, 2),
        ]);
        records.extend(text_records(1090, 5, 2, "src/main.rs:12"));
        records.sort_by_key(|record| (record.time, record.kind != Kind::Program));
        let (read, _) = converted(&records);
        let names: Vec<_> =
            read.slices("worker 2").into_iter().map(|(name, begin, end, _)| (name, begin, end)).collect();
        assert_eq!(
            names,
            [
                ("main", 1000, 3000),
                ("spawn src/main.rs:12", 2000, 2000),
                ("src/main.rs:12", 4000, 6000),
                ("wake main", 5000, 5000),
                ("wake main", 5100, 5100),
                ("main", 7000, 8000),
            ]
        );
        let states: Vec<_> =
            read.slices("main (0.1)").into_iter().map(|(name, begin, end, _)| (name, begin, end)).collect();
        assert_eq!(states, [("runs", 1000, 3000), ("ready", 5000, 7000), ("runs", 7000, 8000)]);
        assert_eq!(read.arrows(), [("wake main", "main")]);
        assert_eq!(read.values("ready coroutines"), [(1000, 0), (2000, 1), (4000, 0), (5000, 1), (7000, 0)]);
        let process = read.tracks.values().find_map(|track| track.process.as_ref()).unwrap();
        assert_eq!((process.pid(), process.process_name()), (5, "server"));
    }

    #[test]
    fn spans_of_a_coroutine_nest_over_its_polls_and_counters_have_values() {
        let cid = 3 | 1 << 32;
        let mut records = Vec::new();
        for (number, text) in [(1, "request"), (2, "parse"), (3, "id=7"), (4, "bytes"), (5, "no more")] {
            records.extend(text_records(1000, 5, number, text));
        }
        records.extend([
            record(1000, Kind::PollBegins, 5, cid, 4),
            record(1010, Kind::SpanBegins, 5, cid, 1 | 3 << 32),
            record(1020, Kind::SpanBegins, 5, cid, 2),
            record(1030, Kind::PollEnds, 5, cid, 0),
            record(1040, Kind::Counter, 5, 4, -3i64 as u64),
            record(1050, Kind::PollBegins, 5, cid, 4),
            record(1060, Kind::SpanEnds, 5, cid, 1),
            record(1065, Kind::SpanEnds, 5, cid, 2),
            record(1070, Kind::Mark, 5, cid, 5),
            record(1080, Kind::SpanBegins, 5, 0, 9),
        ]);
        let (read, _) = converted(&records);
        assert_eq!(
            read.slices("spans of coroutine 3.1"),
            [
                ("request", 1000, 6000, "fields=id=7 ".into()),
                ("parse", 2000, 6000, String::new()),
                ("no more", 7000, 7000, String::new()),
            ]
        );
        assert_eq!(read.values("bytes"), [(4000, -3)]);
        assert_eq!(read.slices("worker 2").last().unwrap().0, "text 9, which is lost");
    }

    /// Where records are lost, slices end, and what comes after is no consequence of what was before.
    #[test]
    fn a_loss_ends_what_was_open() {
        let (cid, other) = (3 | 1 << 32, 4 | 1 << 32);
        let records = [
            record(1000, Kind::KernelWake, 0, cid, 0),
            record(1010, Kind::KernelPollBegins, 0, other, 4),
            record(1050, Kind::Lost, 0, 3, 0),
            record(1060, Kind::KernelPollBegins, 0, cid, 4),
            record(1070, Kind::KernelPollEnds, 0, cid, 2),
            record(1070, Kind::KernelPollEnds, 0, other, 2),
        ];
        let (read, summary) = converted(&records);
        assert_eq!(summary.lost, 3);
        let slices: Vec<_> =
            read.slices("hart 1").into_iter().map(|(name, begin, end, _)| (name, begin, end)).collect();
        assert_eq!(
            slices,
            [
                ("wake kernel coroutine 3.1", 0, 0),
                ("kernel coroutine 4.1", 1000, 1000),
                ("3 records lost", 1000, 6000),
                ("kernel coroutine 3.1", 6000, 7000),
            ]
        );
        assert_eq!(read.arrows(), []);
    }

    #[test]
    fn a_loss_begins_with_the_latest_record_before_it() {
        let of_another = Record { hart: 0, ..record(1090, Kind::KernelWake, 0, 1, 0) };
        let records = [
            record(1000, Kind::KernelWake, 0, 1, 0),
            record(900, Kind::Wake, 5, 1, 0),
            of_another,
            record(1100, Kind::Lost, 0, 3, 0),
        ];
        let times: Vec<_> = parse(&bytes_of(&records)).iter().map(|record| (record.kind, record.time)).collect();
        let expected = [(Kind::Wake, 900), (Kind::KernelWake, 1000), (Kind::Lost, 1000), (Kind::KernelWake, 1090)];
        assert_eq!(times, expected);
    }

    #[test]
    fn the_first_coroutines_are_shown_and_the_spans_of_all() {
        let cids = 0..MOST_COROUTINES as u64 + 2;
        let records: Vec<_> = cids
            .flat_map(|cid| {
                let polled = record(1000, Kind::PollBegins, 5, cid + 1, 4);
                [polled, record(1000, Kind::SpanBegins, 5, cid + 1, 1), record(1001, Kind::PollEnds, 5, cid + 1, 2)]
            })
            .collect();
        let (read, summary) = converted(&records);
        assert_eq!(summary.without_track, 2);
        let named = |name: &str| read.tracks.values().filter(|track| track.name() == name).count();
        assert_eq!(named("spans of other coroutines"), 2);
        assert_eq!((named("spans of coroutine 7.0"), named("coroutine 7.0 (7.0)")), (1, 1));
        assert_eq!(named(&format!("coroutine {0}.0 ({0}.0)", MOST_COROUTINES + 1)), 0);
    }

    #[test]
    fn a_new_program_of_a_process_has_texts_of_its_own() {
        let cid = 1 << 32;
        let mut records = Vec::new();
        for (start, name, text) in [(1000, b"one", "first"), (2000, b"two", "second")] {
            records.push(record(start, Kind::Program, 5, name_words(name)[0], 0));
            records.extend(text_records(start + 10, 5, 1, text));
            records.push(record(start + 10, Kind::Named, 5, cid, 1));
            records.push(record(start + 20, Kind::PollBegins, 5, cid, 4));
        }
        let (read, _) = converted(&records);
        let names: Vec<_> = read.slices("worker 2").into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn damaged_texts_are_none() {
        let whole = "x".repeat(MOST_TEXT_BYTES);
        let mut records = vec![record(0, Kind::PollBegins, 5, 1 << 32, 4), record(0, Kind::Named, 5, 1 << 32, 1)];
        let name = |records: &[Record]| converted(records).0.slices("worker 2")[0].0.to_string();
        assert_eq!(name(&records), "coroutine 0.1");
        records.extend(text_records(0, 5, 1, &whole));
        assert_eq!(name(&records), whole);
        records.pop();
        assert_eq!(name(&records), "coroutine 0.1");
        records.truncate(2);
        records.extend(text_records(0, 5, 1, "a\u{1b}[2Jb\0"));
        assert_eq!(name(&records), "a\u{fffd}[2Jb\u{fffd}");
    }

    #[test]
    fn bytes_become_records_in_the_order_of_time() {
        let mut bytes = bytes_of(&[3, 1, 2].map(|time| record(time, Kind::Wake, 1, 0, 0)));
        bytes.extend([0; RECORD_BYTES]);
        bytes.extend([1; 5]);
        assert_eq!(parse(&bytes).iter().map(|record| record.time).collect::<Vec<_>>(), [1, 2, 3]);
    }

    /// Returns random records that fit each other often.
    fn some_records() -> impl Strategy<Value = Vec<Record>> {
        let words =
            (0u64..500, 0..Kind::ALL.len(), 0u8..3, 0u16..3, 0u32..3, 0u64..4, prop_oneof![0u64..4, any::<u64>()]);
        let made = words.prop_map(|(time, kind, hart, worker, process, a, b)| Record {
            time,
            kind: Kind::ALL[kind],
            hart,
            worker,
            process,
            a,
            b,
        });
        prop::collection::vec(made, 0..300)
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn any_recording_becomes_a_well_formed_file(records in some_records()) {
            let mut out = Vec::new();
            let summary = convert(&parse(&bytes_of(&records)), TICKS, &mut out).unwrap();
            prop_assert_eq!(summary.records, records.len() as u64);
            if let Err(error) = read(&out) {
                prop_assert!(false, "{}", error);
            }
        }

        /// Whatever part of a stream is lost or damaged, the rest is a valid trace.
        #[test]
        fn any_bytes_can_be_read(
            records in some_records(), damage in prop::collection::vec((any::<u16>(), any::<u8>()), 0..20),
            ticks in any::<u64>(), cut in any::<u16>(),
        ) {
            let mut bytes = bytes_of(&records);
            for (place, byte) in damage {
                if let Some(length) = core::num::NonZeroUsize::new(bytes.len()) {
                    bytes[usize::from(place) % length] = byte;
                }
            }
            bytes.drain(..usize::from(cut) % (bytes.len() + 1));
            let mut out = Vec::new();
            convert(&parse(&bytes), ticks, &mut out).unwrap();
            if let Err(error) = read(&out) {
                prop_assert!(false, "{}", error);
            }
        }
    }
}
