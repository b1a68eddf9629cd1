//! `bench cycles`: what QEMU's counts of instructions cannot show, in cycles of [Rocket](crate::rocket) in RTL
//! simulation.
//!
//! The trials are benchmarks that exist, with few repetitions: a second of the host is about 100,000 cycles. Each boots
//! a machine of its own, as many at once as the host has processors. Their figures keep their names, behind the name of
//! their trial, and have cycles where they had instructions.
//!
//! The model has no way to show a number of instructions to a program, and QEMU none of cycles; both come from the same
//! files of kernel and programs, and `bench switch` and `bench syscall` have the other half.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::bench::{self, BenchName, Goal, Line, MARK, Results, Series};
use crate::build::{Harts, Products, Variation};
use crate::callers::SymbolisedProgram;
use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::figures::{count, table};
use crate::guest::Echo;
use crate::profile;
use crate::report;
use crate::rocket::{self, Hardware, Model, Payload};
use crate::run::PROGRAM_ADDRESS;
use crate::symbols::Symbols;
use crate::workspace::write_if_changed;

/// A measurement: its name, its program, and about how many cycles it takes.
struct Trial {
    name: &'static str,
    workload: Workload,
    cycles: u64,
}

/// The program of a part.
enum Workload {
    /// The program `bench` on the Unix kernel, with these arguments.
    Bench(&'static [&'static str]),
    /// A root task of the microkernel.
    RootTask(&'static str),
}

/// All parts, the longest first, so that none is left alone at the end.
const TRIALS: [Trial; 6] = [
    Trial { name: "switch", workload: Workload::Bench(&["switch", "/100"]), cycles: 50_000_000 },
    Trial { name: "micro", workload: Workload::RootTask("micro-bench"), cycles: 45_000_000 },
    Trial { name: "syscall", workload: Workload::Bench(&["syscall", "/33"]), cycles: 23_000_000 },
    Trial { name: "async-calls", workload: Workload::Bench(&["async-calls", "count", "/128"]), cycles: 20_000_000 },
    Trial { name: "micro-async", workload: Workload::RootTask("micro-async"), cycles: 36_000_000 },
    Trial { name: "user-interrupt", workload: Workload::Bench(&["user-interrupt", "/500"]), cycles: 15_000_000 },
];

/// Goals: largest good values.
const GOALS: &[Goal] = &[
    ("null_call_cycles", 240.0),
    ("fp_call_extra_cycles", 40.0),
    ("async_ready_ratio", 1.25),
    ("async_pipe_ratio", 1.25),
    ("yield_100_cycles", 110.0),
    ("yield_1000_cycles", 170.0),
    ("wake_cycles", 200.0),
    ("spawn_cycles", 400.0),
    ("sel4_call_ratio", 1.0),
    ("sel4_replyrecv_ratio", 1.0),
    ("sel4_signal_ratio", 1.0),
];
/// Goals: least good values.
const LEAST_GOALS: &[Goal] = &[("micro_async_64_cycles", 1.0)];

/// seL4's figures for those of the trial `micro`: the same root task on seL4 15.0.0, without the MCS extension, built
/// for one core of its platform `rocketchip` (GCC 12, `-O2`, its fast path, no debugging, output for the program),
/// started by OpenSBI with a loader that only places and maps kernel and program; on the model of one core, with the
/// latency [`rocket::LATENCY`].
const SEL4: &[(&str, f64)] = &[
    ("null-call", 235.0),
    ("null-invocation", 635.0),
    ("poll", 360.0),
    ("ipc-call-1-0", 626.0),
    ("ipc-reply-1-0", 692.0),
    ("ipc-call-1-4", 572.0),
    ("ipc-reply-1-4", 624.0),
    ("ipc-call-2-0", 620.0),
    ("ipc-reply-2-0", 627.0),
    ("ipc-call-2-4", 635.0),
    ("ipc-reply-2-4", 693.0),
    ("signal", 566.0),
    ("wait", 376.0),
    ("signal-to-less-important", 1321.0),
    ("signal-to-more-important", 1153.0),
    ("switch", 828.0),
    ("fault", 1622.0),
    ("fault-reply", 1386.0),
    ("fault-round-trip", 3028.0),
    ("retype-page", 1285.0),
    ("page-map", 1151.0),
    ("page-protect", 1143.0),
    ("page-unmap", 1073.0),
];
/// The figures that are compared with seL4's, by their names' beginnings: all of a kind together, since each alone
/// depends on which lines share places of the caches.
const COMPARED: [(&str, &str); 3] =
    [("sel4_call_ratio", "ipc-call-"), ("sel4_replyrecv_ratio", "ipc-reply-"), ("sel4_signal_ratio", "signal")];

/// Beginning of the model's lines about its progress.
const PROGRESS: &str = "rocket: ";

/// Number of functions in a profile.
const FUNCTIONS: usize = 20;

/// Measures all parts, or one.
///
/// # Errors
///
/// There is no such part, the model cannot be made, or a part does not come to its end.
pub fn run(context: &Context, part: Option<&Path>, arguments: &cli::Bench) -> Result<()> {
    let parts = chosen(part)?;
    let harts = arguments.harts.unwrap_or(1);
    if !(1..=rocket::MAXIMUM_HARTS).contains(&harts) {
        bail!("the model has 1 to {} harts", rocket::MAXIMUM_HARTS);
    }
    if arguments.profile && harts != 1 {
        bail!("--profile is of one hart");
    }
    let is_whole = parts.len() == TRIALS.len() && harts == 1 && !arguments.profile;
    if arguments.record && !is_whole {
        bail!("--record goes with all parts on one hart");
    }
    let machine = Hardware { harts, latency: arguments.latency.unwrap_or(rocket::LATENCY) };
    let built = build(context, &parts, harts)?;
    let model = Model::ensure(context, machine, arguments.profile)?;
    let lines = at_once(&parts, |place, part| {
        let Built { kernel, initramfs, words, .. } = &built[place];
        let profile = arguments.profile.then(|| profile_of(context, part));
        measure(context, &model, part, &Payload { kernel, initramfs, words, profile: profile.as_deref() })
    })?;
    if arguments.profile {
        for (part, built) in parts.iter().zip(&built) {
            show_profile(context, part, built)?;
        }
    }
    let lines: Vec<String> = parts.iter().zip(lines).flat_map(|(part, lines)| renamed(part, lines)).collect();
    let results = results(&lines, machine, report::commit(&context.workspace.root))?;
    if is_whole {
        return bench::keep_and_show(context, &results, arguments);
    }
    bench::show(&results, arguments)
}

/// Finds the parts to measure.
fn chosen(name: Option<&Path>) -> Result<Vec<&'static Trial>> {
    let Some(name) = name else { return Ok(TRIALS.iter().collect()) };
    let found: Vec<_> = TRIALS.iter().filter(|part| Path::new(part.name) == name).collect();
    if found.is_empty() {
        let names: Vec<_> = TRIALS.iter().map(|part| part.name).collect();
        bail!("`bench cycles` has no part `{}`; it has: {}", name.display(), names.join(", "));
    }
    Ok(found)
}

/// The files of a part's machine.
struct Built {
    kernel: PathBuf,
    initramfs: PathBuf,
    words: String,
    /// Its program, with symbols, and the address at which address 0 of that lies.
    program: PathBuf,
    base: u64,
}

/// Builds what the parts need.
fn build(context: &Context, parts: &[&Trial], harts: u8) -> Result<Vec<Built>> {
    let (mut unix, mut micro) = (None, None);
    let mut built = Vec::new();
    for part in parts {
        built.push(match part.workload {
            Workload::Bench(arguments) => {
                let products = match &mut unix {
                    Some(products) => products,
                    none => none.insert(context.build(Need::Boot)?.1),
                };
                let program = products.files.iter().find(|(name, _)| name == bench::PROGRAM);
                let (_, program) = program.with_context(|| format!("there is no program `{}`", bench::PROGRAM))?;
                let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
                Built {
                    kernel: products.kernel.clone(),
                    initramfs: archive_of_bench(context, products)?,
                    // Each run has the same addresses and numbers.
                    words: format!("aslr=off {}", command_line(bench::PROGRAM, &arguments)?),
                    program: program.clone(),
                    base: PROGRAM_ADDRESS,
                }
            }
            Workload::RootTask(name) => {
                let harts = if harts == 1 { Harts::One } else { Harts::Several };
                let products = match &mut micro {
                    Some(products) => products,
                    none => none.insert(context.build_microkernel(Variation::new(harts))?.1),
                };
                let (kernel, program) = (products.kernel.clone(), context.workspace.products().join(name));
                Built { kernel, initramfs: program.clone(), words: String::new(), program, base: 0 }
            }
        });
    }
    Ok(built)
}

/// Makes an archive of the measuring program alone: each byte costs the simulated core time.
fn archive_of_bench(context: &Context, products: &Products) -> Result<PathBuf> {
    let file = context.workspace.products().join("initramfs-cycles.cpio");
    write_if_changed(&file, &products.archive_of(bench::PROGRAM)?)?;
    Ok(file)
}

/// Does work for all parts, as much at once as the host has processors. The results have the order of the parts.
fn at_once<T: Send>(parts: &[&Trial], work: impl Fn(usize, &Trial) -> Result<T> + Sync) -> Result<Vec<T>> {
    let next = Mutex::new(parts.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let take = || next.lock().ok().and_then(|mut next| next.next());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((place, part)) = take() {
                    let result = work(place, part).with_context(|| format!("`{}` could not be measured", part.name));
                    if let Ok(mut done) = done.lock() {
                        done.push((place, result));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Boots a part and collects its lines.
fn measure(context: &Context, model: &Model, part: &Trial, boot: &Payload<'_>) -> Result<Vec<String>> {
    let mut guest = model.start(context, boot, &format!("cycles-{}", part.name), Echo::LogOnly)?;
    let activity = context.progress.start_steps(format!("Simulating {}", part.name), part.cycles);
    bench::collect_with(&mut guest, |line| match line.strip_prefix(PROGRESS).map(str::parse) {
        Some(Ok(cycles)) => activity.advance_to(part.cycles.min(cycles)),
        _ => activity.detail(line),
    })
}

/// Returns a part's lines with the part's name in front of theirs, and cycles as their unit.
fn renamed(part: &Trial, lines: Vec<String>) -> Vec<String> {
    let renamed = |line: &String| {
        let mut value: serde_json::Value = serde_json::from_str(line).ok()?;
        let object = value.as_object_mut()?;
        for key in ["id", "series"] {
            if let Some(id) = object.get(key).and_then(serde_json::Value::as_str) {
                let id = format!("{}-{id}", part.name);
                object.insert(key.into(), id.into());
            }
        }
        // The clock counts hundreds of cycles as hundreds of nanoseconds.
        if object.get("unit").is_some_and(|unit| unit == "instructions" || unit == "ns") {
            object.insert("unit".into(), "cycles".into());
        }
        Some(value.to_string())
    };
    // A line that is no result is an error later on.
    lines.iter().map(|line| renamed(line).unwrap_or_else(|| line.clone())).collect()
}

/// Converts lines to results, with the figures that follow from others.
fn results(lines: &[String], machine: Hardware, commit: String) -> Result<Results> {
    let mut lines = lines.to_vec();
    let (mut figures, mut series) = (BTreeMap::new(), Vec::new());
    for line in &lines {
        match serde_json::from_str(line).with_context(|| format!("the benchmark printed no result: {line}"))? {
            Line::Figure { id, value, .. } => drop(figures.insert(id, value)),
            Line::Series(one) => series.push(one),
        }
    }
    let mut derived = derived(&figures, &series);
    let mut more = Vec::new();
    if machine == (Hardware { harts: 1, latency: rocket::LATENCY }) {
        derived.extend(
            COMPARED.iter().filter_map(|(id, beginning)| Some((*id, beside_sel4(&figures, beginning)?, "times"))),
        );
        let is_measured = |id: &str| figures.contains_key(&format!("micro-{id}"));
        let sel4 = SEL4.iter().filter(|(id, _)| is_measured(id));
        more.extend(sel4.map(|(id, value)| (format!("sel4-{id}"), *value, "cycles")));
    }
    let known = |goals: &[Goal]| -> Vec<Goal> {
        goals.iter().filter(|(id, _)| derived.iter().any(|one| one.0 == *id)).copied().collect()
    };
    let (goals, least_goals) = (known(GOALS), known(LEAST_GOALS));
    more.extend(derived.into_iter().map(|(id, value, unit)| (id.to_string(), value, unit)));
    lines.extend(
        more.into_iter()
            .map(|(id, value, unit)| serde_json::json!({ "id": id, "value": value, "unit": unit }).to_string()),
    );
    let (figures, series) = bench::figures(&lines, &goals, &least_goals)?;
    Ok(Results {
        bench: BenchName::Cycles.name(),
        commit,
        machine: machine.description(),
        figures,
        series,
        notes: Vec::new(),
    })
}

/// Returns the sum of the microkernel's figures whose names begin so, as a multiple of seL4's.
fn beside_sel4(figures: &BTreeMap<String, f64>, beginning: &str) -> Option<f64> {
    let (mut ours, mut theirs) = (0.0, 0.0);
    for (id, value) in SEL4.iter().filter(|(id, _)| id.starts_with(beginning)) {
        ours += figures.get(&format!("micro-{id}"))?;
        theirs += value;
    }
    Some(ours / theirs)
}

/// Returns the figures that have goals, as far as their parts were measured.
fn derived(figures: &BTreeMap<String, f64>, series: &[Series]) -> Vec<(&'static str, f64, &'static str)> {
    let of = |id: &str| figures.get(id).copied();
    let ratio = |one: &str, other: &str| Some(of(one)? / of(other)?);
    let points = |id: &str| series.iter().find(|one| one.id == id).map(|one| &one.points[..]);
    let at = |id: &str, x: f64| points(id)?.iter().find(|point| point.0 == x).map(|point| point.1);
    let most = |id: &str| points(id)?.iter().map(|point| point.1).reduce(f64::max);
    let null = of("syscall-null");
    [
        ("null_call_cycles", null, "cycles"),
        ("fp_call_extra_cycles", null.and_then(|null| Some(of("syscall-null-floating-point")? - null)), "cycles"),
        ("async_ready_ratio", ratio("syscall-read-async", "syscall-read"), "times"),
        ("async_pipe_ratio", ratio("syscall-pipe-async", "syscall-pipe"), "times"),
        ("yield_100_cycles", at("switch-yield", 100.0), "cycles"),
        ("yield_1000_cycles", at("switch-yield", 1000.0), "cycles"),
        ("wake_cycles", most("switch-wake"), "cycles"),
        ("spawn_cycles", most("switch-spawn"), "cycles"),
        (
            "micro_async_64_cycles",
            at("micro-async-synchronous", 64.0)
                .and_then(|synchronous| Some(synchronous / at("micro-async-asynchronous", 64.0)?)),
            "times",
        ),
    ]
    .into_iter()
    .filter_map(|(id, value, unit)| Some((id, value?, unit)))
    .collect()
}

/// Returns the file of a part's counts.
fn profile_of(context: &Context, part: &Trial) -> PathBuf {
    context.workspace.products().join(format!("cycles-{}.counts", part.name))
}

/// The counts of instructions, or of a function's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    cycles: u64,
    instructions: u64,
    transfers: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.cycles += other.cycles;
        self.instructions += other.instructions;
        self.transfers += other.transfers;
    }
}

/// The counts of one measurement.
#[derive(Default)]
struct Reading {
    /// The line that reports it.
    result: String,
    /// Its instructions by address.
    instructions: Vec<(u64, Counts)>,
    /// Number of transfers of each line of the caches, by physical address.
    lines: Vec<(u64, u64)>,
    /// Number of walks of the page tables for each page, of data and of code.
    walks: Vec<(&'static str, u64, u64)>,
}

/// Kinds of walks of the page tables.
const WALKS: [&str; 2] = ["data", "code"];

/// Reads the counts that the model has written.
fn sections(text: &str) -> Result<Vec<Reading>> {
    let mut sections: Vec<Reading> = Vec::new();
    for line in text.lines() {
        if let Some(result) = line.strip_prefix(MARK) {
            sections.push(Reading { result: result.into(), ..Reading::default() });
            continue;
        }
        let mut add = || {
            let section = sections.last_mut()?;
            let is_line = line.strip_prefix("line ");
            let walk = WALKS.iter().find_map(|kind| Some((*kind, line.strip_prefix(kind)?.strip_prefix(' ')?)));
            let (address, counts) = is_line.or(walk.map(|(_, rest)| rest)).unwrap_or(line).split_once(' ')?;
            let address = u64::from_str_radix(address, 16).ok()?;
            let mut counts = counts.split(' ').map(|number| number.parse().ok());
            let mut next = || counts.next().flatten();
            if is_line.is_some() {
                section.lines.push((address, next()?));
            } else if let Some((kind, _)) = walk {
                section.walks.push((kind, address, next()?));
            } else {
                let counts = Counts { cycles: next()?, instructions: next()?, transfers: next()? };
                section.instructions.push((address, counts));
            }
            Some(())
        };
        add().with_context(|| format!("no counts: {line}"))?;
    }
    Ok(sections)
}

/// The code of a machine by address.
struct Code {
    kernel: Symbols,
    program: SymbolisedProgram,
    base: u64,
}

impl Code {
    /// Returns the function at an address, and where it is.
    fn function(&self, address: u64) -> String {
        let (place, functions) = match address {
            0xffff_0000_0000_0000.. => ("kernel", self.kernel.functions_at(address)),
            0x8000_0000..0x8020_0000 => ("firmware", Vec::new()),
            _ => ("program", self.program.functions_at(address.wrapping_sub(self.base))),
        };
        // The outermost function is the one that others call.
        match profile::names(functions).pop() {
            Some(function) => format!("{place};{function}"),
            None if place == "program" => "scheduler".into(),
            None => place.into(),
        }
    }
}

/// Prints where a part's cycles go, for each of its figures, and draws a flame graph of all of them.
fn show_profile(context: &Context, part: &Trial, built: &Built) -> Result<()> {
    let (kernel, program) = (Symbols::load(&built.kernel)?, SymbolisedProgram::load(&built.program)?);
    let code = Code { kernel, program, base: built.base };
    let counts = profile_of(context, part);
    let text = std::fs::read_to_string(&counts).with_context(|| format!("cannot read {}", counts.display()))?;
    let mut graph = BTreeMap::new();
    for Reading { result, instructions, lines, walks } in sections(&text)? {
        let Ok(Line::Figure { id, .. }) = serde_json::from_str(&result) else { continue };
        let mut functions: BTreeMap<String, Counts> = BTreeMap::new();
        for (address, counts) in instructions {
            functions.entry(code.function(address)).or_default().add(counts);
        }
        for (function, counts) in &functions {
            *graph.entry(format!("{id};{function}")).or_default() += counts.cycles;
        }
        println!("{}-{id}, and what is done before it", part.name);
        println!("{}", table_of(&functions));
        println!("{}", table_of_lines(lines));
        println!("{}", table_of_walks(walks));
    }
    let output = context.workspace.products().join(format!("cycles-{}.svg", part.name));
    std::fs::write(&output, profile::draw(&graph, part.name, "cycles")?)?;
    println!("{}", output.display());
    Ok(())
}

/// Formats the lines of the caches that were fetched most. Lines whose addresses are equal in bits 6 to 11 have the
/// same places in a cache of Rocket's.
fn table_of_lines(mut lines: Vec<(u64, u64)>) -> String {
    lines.sort_by_key(|(address, count)| (std::cmp::Reverse(*count), *address));
    let row = |(address, count): &(u64, u64)| {
        vec![format!("{address:#x}"), (address >> 6 & 63).to_string(), self::count(*count)]
    };
    let rows: Vec<_> = lines.iter().take(FUNCTIONS).map(row).collect();
    table(&["line of the caches", "place", "transfers"], &rows)
}

/// Formats the pages that were translated most. A core has few places for translations: one of Rocket's holds four
/// neighbouring small pages, or a large one.
fn table_of_walks(mut walks: Vec<(&'static str, u64, u64)>) -> String {
    walks.sort_by_key(|(kind, address, count)| (std::cmp::Reverse(*count), *kind, *address));
    let row = |(kind, address, count): &(&str, u64, u64)| {
        vec![format!("{address:#x}"), (*kind).to_string(), self::count(*count)]
    };
    let rows: Vec<_> = walks.iter().take(FUNCTIONS).map(row).collect();
    table(&["page", "of", "walks of the page tables"], &rows)
}

/// Formats the functions with the most cycles.
fn table_of(functions: &BTreeMap<String, Counts>) -> String {
    let total: u64 = functions.values().map(|counts| counts.cycles).sum();
    let mut functions: Vec<_> = functions.iter().collect();
    functions.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.cycles));
    let rows: Vec<_> = functions
        .into_iter()
        .take(FUNCTIONS)
        .map(|(function, counts)| {
            vec![
                function.replace(';', ": "),
                format!("{:.1} %", 100.0 * counts.cycles as f64 / total.max(1) as f64),
                count(counts.cycles),
                count(counts.instructions),
                format!("{:.2}", counts.cycles as f64 / counts.instructions.max(1) as f64),
                count(counts.transfers),
            ]
        })
        .collect();
    table(&["function", "share", "cycles", "instructions", "cycles of one", "transfers"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_those_of_the_parts() {
        let part = |name: &str| TRIALS.iter().find(|part| part.name == name).unwrap();
        let figure = |id: &str, value: f64| format!(r#"{{"id": "{id}", "value": {value}, "unit": "instructions"}}"#);
        let syscall = [("null", 250.0), ("null-floating-point", 358.0), ("read", 100.0), ("read-async", 166.0)];
        let mut lines = renamed(part("syscall"), syscall.map(|(id, value)| figure(id, value)).to_vec());
        let yields =
            r#"{"series": "yield", "unit": "instructions", "x_unit": "coroutines", "points": [[1, 94], [100, 117]]}"#;
        lines.extend(renamed(part("switch"), vec![yields.into()]));
        let results = results(&lines, Hardware { harts: 1, latency: 30 }, "c".into()).unwrap();
        let of = |id: &str| results.figures.iter().find(|figure| figure.id == id).map(|one| (one.value, one.met));
        assert_eq!(of("syscall-null"), Some((250.0, None)));
        assert_eq!(of("null_call_cycles"), Some((250.0, Some(false))));
        assert_eq!(of("fp_call_extra_cycles"), Some((108.0, Some(false))));
        assert_eq!(of("async_ready_ratio"), Some((1.66, Some(false))));
        assert_eq!(of("yield_100_cycles"), Some((117.0, Some(false))));
        // Not measured here, and no error.
        assert_eq!((of("yield_1000_cycles"), of("async_pipe_ratio")), (None, None));
        assert!(results.figures.iter().all(|figure| figure.unit != "instructions"));
        assert_eq!(results.series[0].id, "switch-yield");
    }

    #[test]
    fn the_microkernel_is_compared_with_sel4_on_the_same_machine_alone() {
        let part = TRIALS.iter().find(|part| part.name == "micro").unwrap();
        let line = |id: &str, value: f64| format!(r#"{{"id": "{id}", "value": {value}, "unit": "instructions"}}"#);
        let lines = renamed(part, SEL4.iter().map(|(id, value)| line(id, value / 2.0)).collect());
        let results = |machine| results(&lines, machine, "c".into()).unwrap();
        let machine = Hardware { harts: 1, latency: rocket::LATENCY };
        let of = |machine, id: &str| results(machine).figures.into_iter().find(|figure| figure.id == id);
        for (ratio, _) in COMPARED {
            let figure = of(machine, ratio).unwrap();
            assert_eq!((figure.value, figure.met), (0.5, Some(true)), "{ratio}");
            assert!(of(Hardware { latency: 8, ..machine }, ratio).is_none());
        }
        assert_eq!(of(machine, "sel4-null-call").map(|figure| figure.value), Some(235.0));
        assert!(of(Hardware { harts: 2, ..machine }, "sel4-null-call").is_none());
    }

    #[test]
    fn asynchronous_invocations_are_compared_with_synchronous_ones() {
        let part = TRIALS.iter().find(|part| part.name == "micro-async").unwrap();
        let series = |id: &str, value: f64| {
            format!(r#"{{"series": "{id}", "unit": "ns", "x_unit": "frames", "points": [[1, 900], [64, {value}]]}}"#)
        };
        let lines = renamed(part, vec![series("synchronous", 600.0), series("asynchronous", 400.0)]);
        let results = results(&lines, Hardware { harts: 1, latency: 30 }, "c".into()).unwrap();
        let figure = results.figures.iter().find(|figure| figure.id == "micro_async_64_cycles").unwrap();
        assert_eq!((figure.value, figure.met), (1.5, Some(true)));
        assert!(results.series.iter().all(|series| series.unit == "cycles"));
    }

    #[test]
    fn lines_that_are_no_results_are_errors() {
        let lines = renamed(&TRIALS[0], vec!["nonsense".into()]);
        let error = results(&lines, Hardware { harts: 1, latency: 30 }, String::new()).unwrap_err();
        assert!(error.to_string().contains("nonsense"), "{error}");
    }

    #[test]
    fn parts_are_chosen_by_name() {
        assert_eq!(chosen(None).unwrap().len(), TRIALS.len());
        assert_eq!(chosen(Some(Path::new("syscall"))).unwrap()[0].name, "syscall");
        let error = chosen(Some(Path::new("matrix"))).err().unwrap().to_string();
        assert!(error.contains("no part `matrix`") && error.contains("switch"), "{error}");
    }

    #[test]
    fn parts_that_are_done_at_once_keep_their_order() {
        let parts: Vec<_> = TRIALS.iter().collect();
        let names = at_once(&parts, |_, part| Ok(part.name)).unwrap();
        assert_eq!(names, TRIALS.each_ref().map(|part| part.name));
        let error = at_once(&parts, |_, part| match part.name {
            "syscall" => bail!("no"),
            _ => Ok(()),
        });
        assert!(format!("{:#}", error.unwrap_err()).contains("`syscall` could not be measured: no"));
    }

    #[test]
    fn counts_are_read_by_figure() {
        let text = "bench: {\"id\": \"null\"}\n80200000 10 3 1\nffffffff80200000 5 1 0\nline 80201040 7\ndata ffffffff80600000 3\ncode 400000000 2\nbench: {\"id\": \"pipe\"}\n";
        let sections = sections(text).unwrap();
        assert_eq!(sections.len(), 2);
        let one = Counts { cycles: 10, instructions: 3, transfers: 1 };
        assert_eq!(sections[0].instructions[0], (0x8020_0000, one));
        assert_eq!(sections[0].instructions[1].0, 0xffff_ffff_8020_0000);
        assert!(sections[1].instructions.is_empty());
        let lines = table_of_lines(sections[0].lines.clone());
        assert!(lines.contains("0x80201040") && lines.contains(" 1 ") && lines.contains(" 7"), "{lines}");
        let walks = table_of_walks(sections[0].walks.clone());
        assert!(walks.contains("0xffffffff80600000") && walks.contains("data") && walks.contains(" 3"), "{walks}");
        assert!(walks.contains("0x400000000") && walks.contains("code"), "{walks}");
        let functions = BTreeMap::from([("kernel;f".to_string(), one)]);
        let text = table_of(&functions);
        assert!(text.contains("kernel: f") && text.contains("100.0 %") && text.contains("3.33"), "{text}");
        for wrong in ["80200000 1 2 3", "bench: x\nzz 1 2 3", "bench: x\n1 2 3", "bench: x\nline 1", "bench: x\ndata 1"]
        {
            assert!(super::sections(wrong).is_err(), "{wrong}");
        }
    }
}
