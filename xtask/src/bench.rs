//! `bench`: figures with goals, the same shape for every benchmark.
//!
//! Most benchmarks are scenarios of the program `bench` in the machine: it is booted with QEMU counting instructions
//! (one instruction is one nanosecond of the machine's time, and the same run gives the same figures), and prints lines
//! that this module collects:
//!
//! ```text
//! bench: {"id": "yield", "value": 87.5, "unit": "instructions"}
//! bench: {"series": "yield", "unit": "instructions", "x_unit": "coroutines", "points": [[1, 87], [100000, 88.5]]}
//! ```
//!
//! Then the machine ends. The goals are defined here, once: a figure with a goal that the machine does not report is an
//! error, and some figures are derived from others (`derive`).
//!
//! The comparison of the scheduler with other executors runs on the host instead and prints the same lines.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::board::{Board, Clock, Variant};
use crate::build::run_cargo;
use crate::children::{self, Ending};
use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::cycles;
use crate::emulator;
use crate::experiments;
use crate::fairness;
use crate::figures::{figure, table};
use crate::guest::{Echo, Failure, FailureKind, Guest};
use crate::ipc;
use crate::micro_async;
use crate::micro_latency;
use crate::microkernel;
use crate::own_experiments;
use crate::progress::Activity;
use crate::report;
use crate::results;
use crate::toolchain::{self, Item};
use crate::workspace;

/// The benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum BenchName {
    /// Yield, wake and spawn through the vDSO, in instructions.
    Switch,
    /// System calls: none, a pipe, asynchronous compared with synchronous.
    Syscall,
    /// Requests to the matrix server with the client inside the machine.
    Matrix,
    /// The kernel's memory for idle connections and blocked calls.
    Memory,
    /// From power-on to the first answered request.
    Boot,
    /// Asynchronous calls compared with synchronous ones, 1 to 1,024 in flight: instructions, kernel entries, time.
    AsyncCalls,
    /// The scheduler on the host compared with other executors: instructions counted by valgrind, and time.
    Scheduler,
    /// The microkernel's interface compared with seL4's, in instructions, and the kernel's size.
    Micro,
    /// The microkernel: the most important thread's worst wait for its interrupt while another makes long invocations.
    MicroLatency,
    /// The microkernel: asynchronous IPC compared with synchronous IPC, with 1 to 256 calls in flight.
    MicroIpc,
    /// The microkernel: echo and matrix server through its network server, compared with the Unix kernel and Linux.
    MicroNet,
    /// Asynchronous invocations of the microkernel compared with synchronous ones, 1 to 1,024 frames: time,
    /// instructions, kernel entries.
    MicroAsync,
    /// Linux compared with COPS: basic costs, and its best servers.
    Peers,
    /// Unmodified programs of Linux on COPS and on Linux: processes, threads, signals, memory, files, and servers.
    LinuxPrograms,
    /// Servers over the network card, with the client outside, on COPS and on Linux: requests, many bytes, idle
    /// connections.
    Servers,
    /// Files of ext4 on a disk, on COPS and on Linux: cached, and waiting for the disk; and cuts of the power.
    Disk,
    /// Experiment A: tasks that count in turn; coroutines compared with threads.
    RingCounter,
    /// Experiment B: a message through a ring of pipes; coroutines compared with threads.
    RingPipes,
    /// One job on 1 to 8 workers over 4 harts.
    Workers,
    /// User interrupts with each back end beside Linux's eventfd, pipe and signal.
    UserInterrupt,
    /// Short connections: connect, one request, close.
    Creation,
    /// The matrix server in all models and Linux's servers: throughput and latency by connections.
    MatrixModels,
    /// 64 and 128 connections in 8 levels on 1 to 4 harts.
    MatrixPriorities,
    /// The distribution of latencies of 4 levels on 2 and 4 harts.
    PriorityLatency,
    /// Every experiment of the papers, one after the other.
    Paper,
    /// Processor time, kernel memory and the network under attack: the shares of the other processes.
    Fairness,
    /// Switches, system calls, user interrupts and the microkernel in cycles of Rocket in RTL simulation.
    Cycles,
    /// An experiment of your own, from a TOML file: program, parameters, machines, policies of the scheduler, goals.
    Run,
}

impl BenchName {
    /// Returns whether the benchmark boots one kind of machine, which the user can choose.
    fn boots_one_machine(self) -> bool {
        OF_ONE_MACHINE.contains(&self)
    }
}

/// The benchmarks whose scenarios are parts of one program, on machines of one kind.
const OF_ONE_MACHINE: [BenchName; 7] = [
    BenchName::Switch,
    BenchName::Syscall,
    BenchName::Matrix,
    BenchName::Memory,
    BenchName::Boot,
    BenchName::AsyncCalls,
    BenchName::MicroAsync,
];

/// The program in the machine that has the scenarios.
pub const PROGRAM: &str = "bench";

/// The package that compares the scheduler with other executors on the host, and its parts.
const COMPARISON: &str = "scheduler-bench";
const COMPARISON_PARTS: [(&str, &str); 2] =
    [("count", "Counting instructions under valgrind"), ("time", "Taking time with 1 to 8 workers")];

/// Prefix of every line of results.
pub const MARK: &str = "bench: ";

/// Longest silence of a scenario, and longest time of a comparison on the host: counting instructions is slow.
const LIMIT: Duration = Duration::from_secs(1800);

/// Largest deviation of a constant cost from its middle, in percent.
const CONSTANT_PERCENT: f64 = 10.0;

/// A figure's name, and the largest good value.
pub type Goal = (&'static str, f64);

impl BenchName {
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }

    pub fn description(self) -> String {
        self.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
    }

    /// The goals, by the id of the figure.
    fn goals(self) -> &'static [Goal] {
        match self {
            BenchName::Switch => &[
                ("yield", 100.0),
                ("wake", 150.0),
                ("spawn", 300.0),
                ("yield-variation", CONSTANT_PERCENT),
                ("wake-variation", CONSTANT_PERCENT),
                ("spawn-variation", CONSTANT_PERCENT),
            ],
            BenchName::Syscall => &[("null", 250.0), ("pipe", 1500.0), ("async-ratio", 1.3)],
            BenchName::Matrix => &[("request", 12_500.0), ("scaling", 1.3), ("wrong", 0.0), ("lost", 0.0)],
            BenchName::Memory => &[("connection", 4096.0)],
            BenchName::Boot => &[("first-answer", 2.0)],
            BenchName::Scheduler => &[("yield-ratio", 0.5), ("wake-ratio", 0.5), ("spawn-ratio", 0.5)],
            BenchName::AsyncCalls => &[("entries_per_call_1024", 0.005)],
            BenchName::Micro => microkernel::GOALS,
            BenchName::MicroLatency => micro_latency::GOALS,
            BenchName::MicroIpc => ipc::GOALS,
            BenchName::MicroAsync => micro_async::GOALS,
            // Experiments set the goals of their figures themselves.
            _ => &[],
        }
    }

    /// Returns the goals of figures that only a machine which is built first can have.
    fn goals_where_built(self) -> &'static [Goal] {
        match self {
            BenchName::MicroIpc => ipc::GOALS_WHERE_BUILT,
            _ => &[],
        }
    }

    /// Returns the goals that are the least good value.
    fn least_goals(self) -> &'static [Goal] {
        match self {
            BenchName::AsyncCalls => &[
                ("speed_vs_sync_1", 1.0),
                ("speed_vs_sync_64", 2.5),
                ("speed_vs_sync_64_one_hart", 2.1),
                ("instructions_saved_64", 1.2),
            ],
            BenchName::MicroIpc => ipc::LEAST_GOALS,
            BenchName::Memory => &[("connections_kcuc", CONNECTIONS)],
            BenchName::MicroAsync => micro_async::LEAST_GOALS,
            _ => &[],
        }
    }
}

/// The papers' system held 385 connections in its memory; ours should hold this many at least.
const CONNECTIONS: f64 = 2000.0;

/// One figure as a scenario reports it.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged, deny_unknown_fields)]
pub enum Line {
    /// One value.
    Figure {
        /// Name of the figure.
        id: String,
        /// Its value.
        value: f64,
        /// Its unit.
        unit: String,
    },
    /// Many.
    Series(Series),
}

/// Values along an axis.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Name of the series.
    #[serde(rename = "series")]
    pub id: String,
    /// Unit of the values.
    pub unit: String,
    /// Unit of the axis.
    pub x_unit: String,
    /// Place on the axis, and value.
    pub points: Vec<(f64, f64)>,
    /// Place, least and largest value of several runs, where there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<(f64, f64, f64)>,
    /// Plot of the series, where an experiment has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plot: Option<String>,
    /// Whether the values are cited from the papers and not measured in this run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cited: bool,
}

/// One figure with its goal.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Figure {
    /// Name of the figure.
    pub id: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Its goal: the largest good value, or the least.
    pub goal: Option<f64>,
    /// Whether the goal is met.
    pub met: Option<bool>,
    /// Whether the goal is the least good value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
}

/// The results of one benchmark, in the one shape. Fields with a default may be missing in older files.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Results {
    /// The benchmark.
    pub bench: String,
    /// The commit of the source.
    pub commit: String,
    /// The machine on which it was measured.
    pub machine: String,
    /// Single values.
    pub figures: Vec<Figure>,
    /// Values along an axis.
    pub series: Vec<Series>,
    /// Notes for the reader: missing parts, with reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Runs a benchmark, or lists them.
///
/// # Errors
///
/// It cannot be run to its end, or does not report a figure with a goal. A missed goal is a result, not an error.
pub fn bench(context: &Context, arguments: &cli::Bench) -> Result<()> {
    let name = match arguments.name {
        Some(name) if !arguments.list => name,
        _ => {
            for name in BenchName::value_variants() {
                println!("{:<17} {}", name.name(), name.description());
            }
            return Ok(());
        }
    };
    match (&arguments.file, name) {
        (Some(file), BenchName::Run) => return own_experiments::run(context, file, arguments),
        (part, BenchName::Cycles) => return cycles::run(context, part.as_deref(), arguments),
        (Some(file), _) => bail!("`bench {}` takes no file; `bench run {}` does", name.name(), file.display()),
        (None, _) => {}
    }
    if arguments.harts.is_some() || arguments.latency.is_some() || arguments.profile {
        bail!("--harts, --latency and --profile go with `bench cycles`");
    }
    if arguments.machine.is_some() && !name.boots_one_machine() {
        bail!(
            "`bench {}` chooses its machines itself; --machine goes with: {}",
            name.name(),
            OF_ONE_MACHINE.map(BenchName::name).join(", ")
        );
    }
    let is_suited = |name: BenchName| name.boots_one_machine() && name != BenchName::MicroAsync;
    if !context.board.is_default() && !is_suited(name) {
        let suited = OF_ONE_MACHINE.into_iter().filter(|name| is_suited(*name)).map(BenchName::name);
        bail!(
            "`bench {}` is for the machines of {}; --board goes with: {}",
            name.name(),
            Board::DEFAULT,
            suited.collect::<Vec<_>>().join(", ")
        );
    }
    if let Some(experiment) = experiments::find(name) {
        return experiments::run(context, experiment, arguments);
    }
    if name == BenchName::Paper {
        return experiments::paper(context, arguments);
    }
    if name == BenchName::Fairness {
        return fairness::run(context, arguments);
    }
    let (lines, machine) = match name {
        BenchName::Scheduler => on_the_host(context)?,
        BenchName::Micro => microkernel::measure(context)?,
        BenchName::MicroLatency => micro_latency::measure(context)?,
        BenchName::MicroIpc => ipc::measure(context)?,
        BenchName::MicroAsync => micro_async::measure(context, arguments.machine)?,
        _ => in_the_machine(context, name, arguments.machine, arguments.user_interrupts)?,
    };
    let results = results(name, &lines, machine, report::commit(&context.workspace.root))?;
    keep_and_show(context, &results, arguments)
}

/// Keeps results, shows them, and writes them to the requested file.
///
/// # Errors
///
/// A file cannot be written.
pub fn keep_and_show(context: &Context, results: &Results, arguments: &cli::Bench) -> Result<()> {
    results::keep(context, results, arguments.record)?;
    show(results, arguments)
}

/// Shows results, and writes them to the requested file.
///
/// # Errors
///
/// The file cannot be written.
pub fn show(results: &Results, arguments: &cli::Bench) -> Result<()> {
    print!("{}", summary(results));
    if let Some(file) = &arguments.json {
        let json = serde_json::to_string_pretty(results)? + "\n";
        std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// One boot of a scenario: its arguments, the number of harts, and the machine's clock.
type BenchBoot = (&'static [&'static str], u8, Clock);

/// The boots of a benchmark, whose lines come one after the other.
fn boots(name: BenchName) -> &'static [BenchBoot] {
    match name {
        BenchName::AsyncCalls => {
            &[(&["count"], 1, Clock::Instructions), (&["time"], 1, Clock::Host), (&["time"], 4, Clock::Host)]
        }
        _ => &[(&[], 1, Clock::Instructions)],
    }
}

/// Boots the scenario, once or several times, and collects its lines.
pub fn in_the_machine(
    context: &Context,
    name: BenchName,
    machine: Option<Variant>,
    user_interrupts: Option<cli::UserInterrupts>,
) -> Result<(Vec<String>, String)> {
    let (mut toolchain, products) = context.build(Need::Boot)?;
    if !products.programs.iter().any(|program| program == PROGRAM) {
        bail!("the workspace has no program `{PROGRAM}`");
    }
    let (qemu, mut of_benchmarks) = (toolchain.qemu.clone(), None);
    let mut lines = Vec::new();
    let mut machines = Vec::new();
    for &(parts, harts, clock) in boots(name) {
        toolchain.qemu = match clock {
            Clock::Host => of_benchmarks.get_or_insert_with(|| emulator::of_benchmarks(context, &qemu)).clone(),
            Clock::Instructions | Clock::SlowInstructions => qemu.clone(),
        };
        let machine = cli::Machine { harts: Some(harts), memory: None, machine, user_interrupts };
        let mut words = vec![name.name()];
        words.extend(parts.iter().map(ToString::to_string));
        let mut configuration = context.configuration(&products, &machine, command_line(PROGRAM, &words)?);
        configuration.set_clock(clock);
        let log = context.log(&format!("bench-{}-{harts}", words.join("-")));
        let activity = context.progress.start(format!("Measuring {}", words.join(" ")));
        let mut guest = Guest::start(&toolchain.qemu, &context.board, &configuration, &log, Echo::LogOnly)?;
        lines.extend(collect(&mut guest, &activity)?);
        activity.clear();
        machines.push(toolchain.describe(&context.board, &configuration));
    }
    Ok((lines, machines.join("; ")))
}

/// Collects the lines that a machine prints until it ends by itself.
///
/// # Errors
///
/// It fails, or is silent for too long.
pub fn collect(guest: &mut Guest, activity: &Activity) -> Result<Vec<String>> {
    collect_with(guest, |line| activity.detail(line))
}

/// Collects the lines that a machine prints until it ends by itself, and shows each line.
///
/// # Errors
///
/// As [`collect`].
pub fn collect_with(guest: &mut Guest, mut show: impl FnMut(&str)) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let next = guest.wait_for("a line of the benchmark or its end", LIMIT, |line| {
            show(line);
            lines.extend(line.strip_prefix(MARK).map(str::to_string));
            Some(())
        });
        match next {
            Ok(()) => {}
            Err(Failure { kind: FailureKind::Ended { status: Some(status), .. }, .. }) if status.success() => {
                return Ok(lines);
            }
            Err(failure) => return Err(failure.into()),
        }
    }
}

/// Runs the comparison of executors and collects its lines.
pub fn on_the_host(context: &Context) -> Result<(Vec<String>, String)> {
    toolchain::ensure_on_host(&[Item::Valgrind], &context.progress)?;
    let mut build = workspace::cargo();
    build.current_dir(&context.workspace.root).args(["build", "--release", "--package", COMPARISON]);
    run_cargo(build, "Building the executors to compare", &context.progress)?;
    let program = context.workspace.target().join("release").join(COMPARISON);
    let mut lines = Vec::new();
    for (part, title) in COMPARISON_PARTS {
        let activity = context.progress.start(title);
        let mut command = children::command(&program);
        command.arg(part);
        let output = children::output(&mut command, Ending::Kill, LIMIT)
            .with_context(|| format!("{} {part} did not come to its end", program.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{} {part} failed:\n{}", program.display(), said.trim());
        }
        lines.extend(marked(&String::from_utf8_lossy(&output.stdout)));
        activity.clear();
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let valgrind = toolchain::find_program("valgrind").and_then(|program| toolchain::version_of(&program));
    let machine = format!("{} host, {cores} cores, {}", std::env::consts::ARCH, valgrind.unwrap_or_default().trim());
    Ok((lines, machine))
}

/// Returns the text behind the mark in the marked lines.
fn marked(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_string).collect()
}

/// Converts lines to results.
pub fn results(name: BenchName, lines: &[String], machine: String, commit: String) -> Result<Results> {
    let is_reported = |(id, _): &&Goal| lines.iter().any(|line| line.contains(&format!("\"{id}\"")));
    let where_built = name.goals_where_built().iter().filter(is_reported);
    let goals: Vec<Goal> = name.goals().iter().chain(where_built).copied().collect();
    let (figures, mut series) = figures(lines, &goals, name.least_goals())?;
    if name == BenchName::AsyncCalls {
        series.iter_mut().for_each(put_beside_its_rivals);
    }
    Ok(Results { bench: name.name(), commit, machine, figures, series, notes: Vec::new() })
}

/// Converts lines to figures with their goals, all of which have to be reported, and series.
///
/// # Errors
///
/// A line is no result, or a figure with a goal is missing.
pub fn figures(lines: &[String], goals: &[Goal], least_goals: &[Goal]) -> Result<(Vec<Figure>, Vec<Series>)> {
    let mut figures = Vec::new();
    let mut series = Vec::new();
    for line in lines {
        match serde_json::from_str(line)
            .with_context(|| format!("the benchmark printed a line that is no result: {line}"))?
        {
            Line::Figure { id, value, unit } => figures.push((id, value, unit)),
            Line::Series(one) => series.push(one),
        }
    }
    let goals: BTreeMap<&str, f64> = goals.iter().copied().collect();
    derive(&mut figures, &series, &goals);
    let wanted = goals.keys().copied().chain(least_goals.iter().map(|(id, _)| *id));
    let missing: Vec<_> = wanted.filter(|id| !figures.iter().any(|figure| figure.0 == *id)).collect();
    if !missing.is_empty() {
        bail!("the benchmark did not report: {}", missing.join(", "));
    }
    let figures = figures.into_iter().map(|(id, value, unit)| {
        let goal = goals.get(id.as_str()).copied();
        let least = least_goals.iter().find(|(other, _)| *other == id).map(|(_, goal)| *goal);
        let met = goal.map(|goal| value <= goal).or(least.map(|least| value >= least));
        Figure { met, id, value, unit, goal: goal.or(least), at_least: least.is_some() }
    });
    Ok((figures.collect(), series))
}

/// Puts a way of calling into the plot of its call: `bench async-calls` reports `CALL-WAY` and `CALL-WAY-entries`.
fn put_beside_its_rivals(series: &mut Series) {
    if let Some((call, _)) = series.id.split_once('-') {
        let what = if series.id.ends_with("-entries") { "kernel entries" } else { "instructions" };
        series.plot = Some(format!("{call}: {what}"));
    }
}

/// Adds the derived figures: `async-ratio` from `read-async` and `read`, and for each series that is to be constant
/// `ID-variation`, the deviation of its points from the middle between lowest and highest, in percent.
fn derive(figures: &mut Vec<(String, f64, String)>, series: &[Series], goals: &BTreeMap<&str, f64>) {
    let value = |id: &str| figures.iter().find(|figure| figure.0 == id).map(|figure| figure.1);
    let mut more = Vec::new();
    if let (None, Some(asynchronous), Some(synchronous)) = (value("async-ratio"), value("read-async"), value("read")) {
        more.push(("async-ratio".to_string(), asynchronous / synchronous, "times".to_string()));
    }
    for one in series {
        let id = format!("{}-variation", one.id);
        let values = one.points.iter().map(|point| point.1);
        let (low, high) =
            values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        if goals.contains_key(id.as_str()) && value(&id).is_none() && low <= high {
            more.push((id, (high - low) / (high + low) * 100.0, "percent".to_string()));
        }
    }
    figures.extend(more);
}

/// Formats the results for a terminal.
pub fn summary(results: &Results) -> String {
    let rows: Vec<_> = results
        .figures
        .iter()
        .map(|one| {
            let sign = if one.at_least { ">=" } else { "<=" };
            let goal = one.goal.map(|goal| format!("{sign} {}", figure(goal))).unwrap_or_default();
            let met = match one.met {
                Some(true) => "met",
                Some(false) => "missed",
                None => "",
            };
            vec![one.id.clone(), figure(one.value), one.unit.clone(), goal, met.into()]
        })
        .collect();
    let mut text = format!("{} on {}\n\n", results.bench, results.machine);
    text += &table(&["figure", "value", "unit", "goal", ""], &rows);
    for note in &results.notes {
        text += &format!("note: {note}\n");
    }
    for one in &results.series {
        text += &format!("\n{} in {}\n", one.id, one.unit);
        let rows: Vec<_> = one.points.iter().map(|point| vec![figure(point.0), figure(point.1)]).collect();
        text += &table(&[&one.x_unit, &one.id], &rows);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| line.to_string()).collect()
    }

    const SYSCALL: [&str; 4] = [
        r#"{"id": "null", "value": 200, "unit": "instructions"}"#,
        r#"{"id": "pipe", "value": 1600.5, "unit": "instructions"}"#,
        r#"{"id": "read", "value": 400, "unit": "instructions"}"#,
        r#"{"id": "read-async", "value": 500, "unit": "instructions"}"#,
    ];

    #[test]
    fn figures_are_compared_with_their_goals() {
        let results = results(BenchName::Syscall, &lines(&SYSCALL), "m".into(), "c".into()).unwrap();
        let json: serde_json::Value = serde_json::to_value(&results).unwrap();
        assert_eq!((&json["bench"], &json["commit"], &json["machine"]), (&"syscall".into(), &"c".into(), &"m".into()));
        assert_eq!(
            json["figures"][0],
            serde_json::json!({"id": "null", "value": 200.0, "unit": "instructions", "goal": 250.0, "met": true})
        );
        assert_eq!(json["figures"][1]["met"], false);
        assert_eq!(
            json["figures"][2],
            serde_json::json!({"id": "read", "value": 400.0, "unit": "instructions", "goal": null, "met": null})
        );
        assert_eq!(json["figures"][4]["id"], "async-ratio");
        assert_eq!(json["figures"][4]["value"], 1.25);
        let text = summary(&results);
        assert!(text.contains("missed") && text.contains("<= 1,500"), "{text}");
    }

    #[test]
    fn series_are_kept_and_their_variation_is_a_figure() {
        let series = |id: &str| {
            format!(
                r#"{{"series": "{id}", "unit": "instructions", "x_unit": "coroutines", "points": [[1, 90], [100000, 110]]}}"#
            )
        };
        let figure = |id: &str| format!(r#"{{"id": "{id}", "value": 99, "unit": "instructions"}}"#);
        let lines: Vec<_> = ["yield", "wake", "spawn"].iter().flat_map(|id| [figure(id), series(id)]).collect();
        let results = results(BenchName::Switch, &lines, String::new(), String::new()).unwrap();
        assert_eq!(results.series.len(), 3);
        assert_eq!(results.series[0].points, [(1.0, 90.0), (100_000.0, 110.0)]);
        let variation = results.figures.iter().find(|figure| figure.id == "yield-variation").unwrap();
        assert_eq!((variation.value, variation.met), (10.0, Some(true)));
        assert!(summary(&results).contains("coroutines"));
    }

    #[test]
    fn ways_of_calling_are_lines_of_one_plot() {
        let plot = |id: &str| {
            let mut series = Series {
                id: id.into(),
                unit: String::new(),
                x_unit: String::new(),
                points: Vec::new(),
                ranges: Vec::new(),
                plot: None,
                cited: false,
            };
            put_beside_its_rivals(&mut series);
            series.plot
        };
        assert_eq!(plot("getpid-ring"), plot("getpid-together"));
        assert_eq!(plot("getpid-ring-entries").as_deref(), Some("getpid: kernel entries"));
        assert_ne!(plot("getpid-ring"), plot("pread64-ring"));
    }

    #[test]
    fn missing_and_malformed_results_are_errors() {
        let error = results(BenchName::Syscall, &lines(&SYSCALL[1..]), String::new(), String::new()).unwrap_err();
        assert_eq!(error.to_string(), "the benchmark did not report: null");
        for wrong in ["", "{}", r#"{"id": "x"}"#, r#"{"id": "x", "value": "1", "unit": "y"}"#] {
            assert!(results(BenchName::Boot, &lines(&[wrong]), String::new(), String::new()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lines_are_recognised_by_their_mark() {
        assert_eq!(marked("hello\nbench: {\"a\"}\n bench: no\nbench: x"), ["{\"a\"}", "x"]);
    }

    #[test]
    fn every_benchmark_has_a_description() {
        for name in BenchName::value_variants() {
            assert!(!name.description().is_empty() && !name.name().is_empty());
        }
    }
}
