//! The tracks of a trace, and the writer of packets: each track is described before its first event, and its slices
//! nest.
//!
//! A track is a stack: an end closes its beginning and every slice begun above it, an end without a beginning is left
//! out, and open slices are closed at the end of the trace.

use std::collections::HashMap;
use std::io::{self, Write};

use abi_unix::trace::Record;
use coroutine::{MAXIMUM_WORKERS, Priority};
use prost::Message;

use super::format::{
    ChildTracksOrdering, CounterDescriptor, DebugAnnotation, ProcessDescriptor, SEQ_INCREMENTAL_STATE_CLEARED,
    ThreadDescriptor, TraceFile, TracePacket, TrackDescriptor, TrackEvent, Type,
};
use super::names::{self, Names, ProgramRun};

/// The value of the priority of a hart that is idle: one more than the least important priority.
pub const IDLE: i64 = Priority::LOWEST.number() as i64 + 1;

/// Threads are numbered over all processes, from here on: such a number is none of a process.
const FIRST_THREAD: i64 = 1 << 24;

/// A row of the viewer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Track {
    /// The machine: what is below is not of a process.
    Harts,
    Hart(u8),
    /// The priority that a hart runs.
    Priority(u8),
    /// The number of ready coroutines of the kernel.
    ReadyInKernel,
    Process(u32),
    Worker(u32, u16),
    /// The number of ready coroutines of a process.
    Ready(ProgramRun),
    /// A counter of a process.
    Counter(ProgramRun, String),
    /// The states of a coroutine.
    Coroutine(ProgramRun, u64),
    /// The spans and marks of a coroutine.
    Spans(ProgramRun, u64),
    /// Spans and marks of a coroutine whose states are not shown. The viewer makes one row of all of them.
    OtherSpans(ProgramRun, u64),
}

impl Track {
    pub fn of_hart(record: &Record) -> Track {
        Track::Hart(record.hart)
    }

    pub fn of_worker(record: &Record) -> Track {
        Track::Worker(record.process, record.worker)
    }

    fn parent(&self) -> Option<Track> {
        match *self {
            Track::Harts | Track::Process(_) => None,
            Track::Hart(_) | Track::Priority(_) | Track::ReadyInKernel => Some(Track::Harts),
            Track::Worker(process, _) => Some(Track::Process(process)),
            Track::Ready(run) | Track::Counter(run, _) | Track::Coroutine(run, _) | Track::OtherSpans(run, _) => {
                Some(Track::Process(run.process))
            }
            Track::Spans(run, cid) => Some(Track::Coroutine(run, cid)),
        }
    }
}

/// Subject of a slice, by which its end finds it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Slice {
    User { process: u32, worker: u16 },
    Poll(u64),
    State,
    Span(u32),
    Loss,
}

/// Name and details of an event.
#[derive(Default)]
pub struct Event {
    pub name: String,
    pub category: &'static str,
    pub details: Vec<DebugAnnotation>,
    /// The arrow that begins here.
    pub begins: Option<u64>,
    /// The arrow that ends here.
    pub ends: Option<u64>,
}

/// Makes a detail that is a number.
pub fn number(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), uint_value: Some(value), string_value: None }
}

/// Makes a detail that is a text.
pub fn text(name: &str, value: impl Into<String>) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), uint_value: None, string_value: Some(value.into()) }
}

struct Described {
    uuid: u64,
    open: Vec<Slice>,
    /// The last value of a counter.
    value: Option<i64>,
}

/// Writes packets.
pub struct Writer<'a, W: Write> {
    out: W,
    names: &'a Names,
    tracks: HashMap<Track, Described>,
    threads: i64,
    is_begun: bool,
    /// The time of what is written; it never decreases.
    pub now_ns: u64,
}

impl<'a, W: Write> Writer<'a, W> {
    pub fn new(out: W, names: &'a Names) -> Writer<'a, W> {
        Writer { out, names, tracks: HashMap::new(), threads: FIRST_THREAD, is_begun: false, now_ns: 0 }
    }

    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let first = !core::mem::replace(&mut self.is_begun, true);
        let packet = TracePacket {
            trusted_packet_sequence_id: Some(1),
            sequence_flags: first.then_some(SEQ_INCREMENTAL_STATE_CLEARED),
            ..packet
        };
        // Messages behind each other are one message, with the packets of all.
        self.out.write_all(&TraceFile { packet: vec![packet] }.encode_to_vec())
    }

    fn event(&mut self, track: &Track, kind: Type, event: Event) -> io::Result<()> {
        let track_uuid = Some(self.uuid(track)?);
        let track_event = TrackEvent {
            debug_annotations: event.details,
            r#type: Some(kind.into()),
            track_uuid,
            categories: Some(event.category).filter(|text| !text.is_empty()).map(String::from).into_iter().collect(),
            name: Some(event.name).filter(|name| !name.is_empty()),
            counter_value: None,
            flow_ids: event.begins.into_iter().collect(),
            terminating_flow_ids: event.ends.into_iter().collect(),
        };
        self.write_event(track_event)
    }

    fn write_event(&mut self, track_event: TrackEvent) -> io::Result<()> {
        let timestamp = Some(self.now_ns);
        self.packet(TracePacket { timestamp, track_event: Some(track_event), ..TracePacket::default() })
    }

    /// Returns the number of a track in the file, in which it is described if it is new.
    fn uuid(&mut self, track: &Track) -> io::Result<u64> {
        if let Some(known) = self.tracks.get(track) {
            return Ok(known.uuid);
        }
        let parent = track.parent().map(|parent| self.uuid(&parent)).transpose()?;
        let uuid = self.tracks.len() as u64 + 1;
        self.tracks.insert(track.clone(), Described { uuid, open: Vec::new(), value: None });
        let descriptor = TrackDescriptor { uuid: Some(uuid), parent_uuid: parent, ..self.descriptor(track) };
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })?;
        Ok(uuid)
    }

    fn descriptor(&mut self, track: &Track) -> TrackDescriptor {
        let named = |name: String| TrackDescriptor { name: Some(name), ..TrackDescriptor::default() };
        let counter = |name: String, unit: &str| TrackDescriptor {
            counter: Some(CounterDescriptor { unit_name: Some(unit.into()) }),
            ..named(name)
        };
        let rank = |hart: u8, second: bool| Some(i32::from(hart) * 2 + i32::from(second));
        let pid = |process: u32| Some((process & i32::MAX as u32) as i32);
        match *track {
            Track::Harts => {
                let child_ordering = Some(ChildTracksOrdering::Explicit.into());
                TrackDescriptor { child_ordering, ..named("harts".into()) }
            }
            Track::Hart(hart) => {
                TrackDescriptor { sibling_order_rank: rank(hart, false), ..named(format!("hart {hart}")) }
            }
            Track::Priority(hart) => TrackDescriptor {
                sibling_order_rank: rank(hart, true),
                description: Some(format!("0 is the most important priority; {IDLE} stands for a hart that is idle.")),
                ..counter(format!("hart {hart}: priority"), "priority")
            },
            Track::ReadyInKernel => counter("ready coroutines of the kernel".into(), "coroutines"),
            Track::Process(process) => {
                let process_name = Some(self.names.program(process).unwrap_or("process").into());
                let process = Some(ProcessDescriptor { pid: pid(process), process_name });
                TrackDescriptor { process, ..TrackDescriptor::default() }
            }
            Track::Worker(process, worker) => {
                self.threads += 1;
                let kind = if usize::from(worker) < MAXIMUM_WORKERS { "worker" } else { "thread" };
                let thread_name = Some(format!("{kind} {worker}"));
                let thread = Some(ThreadDescriptor { pid: pid(process), tid: Some(self.threads), thread_name });
                TrackDescriptor { thread, ..TrackDescriptor::default() }
            }
            Track::Ready(_) => counter("ready coroutines".into(), "coroutines"),
            Track::Counter(_, ref name) => counter(name.clone(), ""),
            Track::Coroutine(run, cid) => named(format!("{} ({})", self.names.coroutine(run, cid), names::number(cid))),
            Track::Spans(run, cid) => named(format!("spans of {}", self.names.coroutine(run, cid))),
            Track::OtherSpans(..) => named("spans of other coroutines".into()),
        }
    }

    /// Begins a slice.
    pub fn begin(&mut self, track: &Track, slice: Slice, event: Event) -> io::Result<()> {
        self.event(track, Type::SliceBegin, event)?;
        self.open(track).push(slice);
        Ok(())
    }

    /// Ends the last slice with this subject, and those within it; returns whether there is one.
    pub fn end(&mut self, track: &Track, slice: Slice, details: Vec<DebugAnnotation>) -> io::Result<bool> {
        self.end_where(track, |other| other == slice, details)
    }

    /// Ends the last slice of a kind, and those within it; returns whether there is one.
    pub fn end_where(
        &mut self,
        track: &Track,
        is_meant: impl Fn(Slice) -> bool,
        details: Vec<DebugAnnotation>,
    ) -> io::Result<bool> {
        let Some(known) = self.tracks.get_mut(track) else { return Ok(false) };
        let Some(at) = known.open.iter().rposition(|other| is_meant(*other)) else { return Ok(false) };
        for _ in at + 1..known.open.len() {
            self.event(track, Type::SliceEnd, Event::default())?;
        }
        self.event(track, Type::SliceEnd, Event { details, ..Event::default() })?;
        self.open(track).truncate(at);
        Ok(true)
    }

    fn open(&mut self, track: &Track) -> &mut Vec<Slice> {
        &mut self.tracks.get_mut(track).expect("it has an event, and was described before").open
    }

    /// Ends all slices of some tracks.
    pub fn end_all(&mut self, is_meant: impl Fn(&Track) -> bool) -> io::Result<()> {
        let is_open = |(track, known): &(&Track, &Described)| !known.open.is_empty() && is_meant(track);
        let mut tracks: Vec<_> =
            self.tracks.iter().filter(is_open).map(|(track, known)| (known.uuid, track.clone())).collect();
        tracks.sort_by_key(|(uuid, _)| *uuid);
        for (_, track) in tracks {
            for _ in core::mem::take(self.open(&track)) {
                self.event(&track, Type::SliceEnd, Event::default())?;
            }
        }
        Ok(())
    }

    /// Shows a moment.
    pub fn instant(&mut self, track: &Track, event: Event) -> io::Result<()> {
        self.event(track, Type::Instant, event)
    }

    /// Sets a counter, unless it has this value.
    pub fn count(&mut self, track: &Track, value: i64) -> io::Result<()> {
        let track_uuid = Some(self.uuid(track)?);
        let known = self.tracks.get_mut(track).expect("it was described");
        if known.value.replace(value) == Some(value) {
            return Ok(());
        }
        let (kind, counter_value) = (Some(Type::Counter.into()), Some(value));
        self.write_event(TrackEvent { r#type: kind, track_uuid, counter_value, ..TrackEvent::default() })
    }

    /// Ends all slices, and the file.
    pub fn finish(mut self) -> io::Result<()> {
        self.end_all(|_| true)?;
        self.out.flush()
    }
}
