//! Events and spans of the crate `tracing` on standard error, and in the [trace](crate::trace) if there is one, where
//! events are marks.
//!
//! A span belongs to the coroutine that has entered it, not to the worker: another coroutine of the same worker may run
//! while one is preempted inside of a span. So `Instrument::instrument` marks all that a future does, wherever it is
//! polled.
//!
//! ```no_run
//! # async fn example() {
//! use tracing_core::LevelFilter;
//!
//! cops::tracing::init(LevelFilter::INFO).expect("no other subscriber was chosen");
//! # }
//! ```

use core::fmt::{self, Write as _};
use core::num::NonZeroU64;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use tracing_core::dispatcher::{Dispatch, SetGlobalDefaultError, set_global_default};
use tracing_core::field::{Field, Visit};
use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::{Event, LevelFilter, Metadata, Subscriber};

use abi_unix::trace::NO_TEXT;

use crate::lock::Lock;
use crate::time::Duration;
use crate::trace;

/// A span that is not closed.
struct OpenSpan {
    metadata: &'static Metadata<'static>,
    fields: String,
    owners: usize,
    in_trace: InTrace,
}

/// Texts of a span in the trace; none if there is no trace.
#[derive(Clone, Copy)]
struct InTrace {
    name: u32,
    fields: u32,
}

impl InTrace {
    fn new(name: &str, fields: &str) -> InTrace {
        match trace::is_on() {
            true => InTrace { name: trace::text(name), fields: trace::passing_text(fields.trim_start()) },
            false => InTrace { name: NO_TEXT, fields: NO_TEXT },
        }
    }
}

struct Spans {
    open: BTreeMap<u64, OpenSpan>,
    /// The spans that each coroutine has entered, by its cid; by the address of its block, with the highest bit set, if
    /// it is a thread.
    entered: BTreeMap<u64, Vec<u64>>,
    last: u64,
}

impl Spans {
    /// Returns the texts of a span, if it is in the trace.
    fn in_trace(&self, span: &Id) -> Option<InTrace> {
        self.open.get(&span.into_u64()).map(|open| open.in_trace).filter(|texts| texts.name != NO_TEXT)
    }
}

struct ConsoleSubscriber {
    level: LevelFilter,
    output: Output,
    spans: Lock<Spans>,
}

/// Where events go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    ConsoleAndTrace,
    Trace,
}

/// Writes fields as ` name=value`, and the message without its name.
struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Formatting into a string cannot fail, unless the value's own code does.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

/// Keeps the message, and the other fields, of an event.
#[derive(Default)]
struct Parts {
    message: String,
    fields: String,
}

impl Visit for Parts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // As above.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Adds an event to the trace, as a mark with its message or, without one, its module.
#[cold]
fn mark(event: &Event<'_>) {
    let (metadata, mut parts) = (event.metadata(), Parts::default());
    event.record(&mut parts);
    let name = if parts.message.is_empty() { metadata.target() } else { &parts.message };
    let fields = alloc::format!("{} {}:{}", metadata.level(), metadata.target(), parts.fields);
    trace::mark_with(trace::passing_text(name), trace::passing_text(&fields));
}

/// Returns a number for the running coroutine or thread.
fn runner() -> u64 {
    match crate::executor::current_or_none() {
        Some(cid) => cid.raw(),
        None => core::ptr::from_ref(crate::local::current()).addr() as u64 | 1 << 63,
    }
}

impl ConsoleSubscriber {
    const fn new(level: LevelFilter, output: Output) -> ConsoleSubscriber {
        let spans = Spans { open: BTreeMap::new(), entered: BTreeMap::new(), last: 0 };
        ConsoleSubscriber { level, output, spans: Lock::new(spans) }
    }

    /// Returns an event as it is printed: seconds, level, the spans with their fields, module, message, fields.
    fn line(&self, now_ns: u64, event: &Event<'_>) -> String {
        let (metadata, mut line) = (event.metadata(), String::new());
        let now = Duration::from_nanos(now_ns).as_secs_f64();
        let _ = write!(line, "[{now:12.6} {:5}", metadata.level().as_str());
        {
            let spans = self.spans.lock();
            for span in spans.entered.get(&runner()).into_iter().flatten().filter_map(|id| spans.open.get(id)) {
                let _ = write!(line, " {}{{{}}}", span.metadata.name(), span.fields.trim_start());
            }
        }
        let _ = write!(line, " {}]", metadata.target());
        event.record(&mut Fields(&mut line));
        line
    }
}

impl Subscriber for ConsoleSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        // The fields' own code runs without the lock.
        let mut fields = String::new();
        attributes.record(&mut Fields(&mut fields));
        let metadata = attributes.metadata();
        let in_trace = InTrace::new(metadata.name(), &fields);
        let mut spans = self.spans.lock();
        spans.last += 1;
        let id = spans.last;
        spans.open.insert(id, OpenSpan { metadata, fields, owners: 1, in_trace });
        Id::from_non_zero_u64(NonZeroU64::new(id).expect("numbers of spans begin with one"))
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut fields = String::new();
        values.record(&mut Fields(&mut fields));
        if let Some(open) = self.spans.lock().open.get_mut(&span.into_u64()) {
            open.fields.push_str(&fields);
            open.in_trace = InTrace::new(open.metadata.name(), &open.fields);
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if trace::is_on() {
            mark(event);
        }
        if self.output == Output::ConsoleAndTrace {
            crate::eprintln!("{}", self.line(crate::time::now_ns(), event));
        }
    }

    fn enter(&self, span: &Id) {
        let mut spans = self.spans.lock();
        spans.entered.entry(runner()).or_default().push(span.into_u64());
        if let Some(InTrace { name, fields }) = spans.in_trace(span) {
            trace::span_begins(name, fields);
        }
    }

    fn exit(&self, span: &Id) {
        if let Some(InTrace { name, .. }) = self.spans.lock().in_trace(span) {
            trace::span_ends(name);
        }
        let (mut spans, runner) = (self.spans.lock(), runner());
        let Some(entered) = spans.entered.get_mut(&runner) else { return };
        if let Some(place) = entered.iter().rposition(|other| *other == span.into_u64()) {
            entered.remove(place);
        }
        if entered.is_empty() {
            spans.entered.remove(&runner);
        }
    }

    fn clone_span(&self, id: &Id) -> Id {
        if let Some(open) = self.spans.lock().open.get_mut(&id.into_u64()) {
            open.owners += 1;
        }
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut spans = self.spans.lock();
        let Some(open) = spans.open.get_mut(&id.into_u64()) else { return false };
        open.owners -= 1;
        open.owners == 0 && spans.open.remove(&id.into_u64()).is_some()
    }

    fn current_span(&self) -> Current {
        let spans = self.spans.lock();
        let id = spans.entered.get(&runner()).and_then(|entered| entered.last());
        match id.and_then(|id| Some((NonZeroU64::new(*id)?, spans.open.get(id)?))) {
            Some((id, open)) => Current::new(Id::from_non_zero_u64(id), open.metadata),
            None => Current::none(),
        }
    }
}

/// Prints the events of all crates, up to this level, with the spans around them, on standard error. If there is a
/// trace, these spans and events are in it too.
///
/// # Errors
///
/// If there is a subscriber already.
#[doc(alias("tracing_subscriber", "fmt"))]
pub fn init(level: LevelFilter) -> Result<(), SetGlobalDefaultError> {
    set_global_default(Dispatch::new(ConsoleSubscriber::new(level, Output::ConsoleAndTrace)))
}

/// Adds the events and spans of all crates, up to this level, to the trace, and prints nothing. Without a trace they
/// cost as little as without a subscriber.
///
/// # Errors
///
/// If there is a subscriber already.
pub fn init_for_trace(level: LevelFilter) -> Result<(), SetGlobalDefaultError> {
    let level = if trace::is_on() { level } else { LevelFilter::OFF };
    set_global_default(Dispatch::new(ConsoleSubscriber::new(level, Output::Trace)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tracing::{info, info_span};

    /// Keeps the lines of a console.
    struct Kept {
        console: ConsoleSubscriber,
        lines: Mutex<Vec<String>>,
    }

    impl Subscriber for &'static Kept {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            self.console.enabled(metadata)
        }
        fn new_span(&self, attributes: &Attributes<'_>) -> Id {
            self.console.new_span(attributes)
        }
        fn record(&self, span: &Id, values: &Record<'_>) {
            self.console.record(span, values);
        }
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            mark(event);
            self.lines.lock().unwrap().push(self.console.line(2_000_000_000, event));
        }
        fn enter(&self, span: &Id) {
            self.console.enter(span);
        }
        fn exit(&self, span: &Id) {
            self.console.exit(span);
        }
        fn clone_span(&self, id: &Id) -> Id {
            self.console.clone_span(id)
        }
        fn try_close(&self, id: Id) -> bool {
            self.console.try_close(id)
        }
        fn current_span(&self) -> Current {
            self.console.current_span()
        }
    }

    #[test]
    fn events_name_the_spans_around_them_and_closed_spans_are_forgotten() {
        static KEPT: Kept = Kept {
            console: ConsoleSubscriber::new(LevelFilter::INFO, Output::ConsoleAndTrace),
            lines: Mutex::new(Vec::new()),
        };
        set_global_default(Dispatch::new(&KEPT)).unwrap();
        let _tests = trace::start_for_tests();
        let outer = info_span!("request", id = 7, code = tracing_core::field::Empty);
        let again = outer.clone();
        outer.in_scope(|| {
            info!(target: "server", bytes = 3, "read");
            outer.record("code", 200);
            info_span!("inner").in_scope(|| info!(target: "server", "deep"));
            tracing::debug!("too fine");
            // Another thread is in no span.
            std::thread::spawn(|| info!(target: "server", "elsewhere")).join().unwrap();
        });
        assert_eq!(KEPT.console.spans.lock().open.len(), 1);
        drop((outer, again));
        let lines = KEPT.lines.lock().unwrap();
        assert_eq!(
            *lines,
            [
                "[    2.000000 INFO  request{id=7} server] read bytes=3",
                "[    2.000000 INFO  request{id=7 code=200} inner{} server] deep",
                "[    2.000000 INFO  server] elsewhere",
            ]
        );
        use abi_unix::trace::Kind;
        let kinds = |kind| trace::recorded().iter().filter(|record| record.kind == kind).count();
        assert_eq!([Kind::SpanBegins, Kind::SpanEnds, Kind::Mark].map(kinds), [2, 2, 3]);
        let spans = KEPT.console.spans.lock();
        assert!(spans.open.is_empty() && spans.entered.is_empty());
    }
}
