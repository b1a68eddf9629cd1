//! The experiments of the papers, on COPS and on Linux beside it.
//!
//! An experiment is a function that measures and writes into a [`Notebook`]. It measures in two [ways](Way): by the
//! wall clock, with a client outside the machine where there is one, as users see it; and in instructions, with the
//! client inside, because that repeats. The [`Lab`] provides booted machines and their lines. All parts of one
//! experiment are measured on the same machine type with the same QEMU, one after the other in the same run, and the
//! figures of the papers are printed beside ours.
//!
//! A part that fails is a note in the results, and the others are measured; the notebook is saved after each part, so
//! that an interrupted run loses only the part that was under way.

mod card;
mod contest;
mod crowd;
mod disk;
mod flood;
mod latencies;
mod matrix;
mod network;
mod peers;
mod priorities;
mod programs;
mod rings;
mod seeds;
mod servers;
mod user_interrupt;
mod workers;

pub use matrix::MODELS;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use load::{Measurement, Order, Plan};

use crate::bench::{self, BenchName, Figure, Line, MARK, Results, Series};
use crate::board::{Clock, Configuration};
use crate::build::Products;
use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::emulator;
use crate::guest::{self, Echo, FailureKind, Forward, Guest};
use crate::ipc;
use crate::linux::{self, DebianKernel};
use crate::micro_async;
use crate::own;
use crate::report;
use crate::results;
use crate::toolchain::Toolchain;

/// The way in which an experiment is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Way {
    /// Time on the host's clock, with the client outside the machine.
    Wall,
    /// Instructions that QEMU counts, with the client inside the machine.
    Instructions,
}

/// Both ways, in the order of measuring.
const WAYS: [Way; 2] = [Way::Instructions, Way::Wall];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Wall => "wall",
            Way::Instructions => "instructions",
        }
    }

    fn clock(self) -> Clock {
        match self {
            Way::Wall => Clock::Host,
            Way::Instructions => Clock::Instructions,
        }
    }
}

/// A system that programs of Linux run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// This one.
    Cops,
    /// Debian's.
    Linux,
}

/// Both systems, in the order of measuring.
const SYSTEMS: [System; 2] = [System::Cops, System::Linux];

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Cops => "COPS",
            System::Linux => "Linux",
        }
    }
}

/// The figures of `servers` that are wanted.
#[derive(Clone, Debug, Default)]
struct Selection {
    /// Text of their names.
    figure: Option<String>,
    system: Option<System>,
}

impl Selection {
    /// Whether a figure is wanted.
    fn has(&self, id: &str) -> bool {
        self.figure.as_ref().is_none_or(|text| id.contains(text))
    }

    /// Measures each wanted system.
    fn on_each<T>(&self, mut measure: impl FnMut(System) -> Option<T>) -> [Option<T>; 2] {
        SYSTEMS.map(|system| if self.system.is_none_or(|wanted| wanted == system) { measure(system) } else { None })
    }
}

/// One experiment.
pub struct Experiment {
    name: BenchName,
    measure: fn(&Lab<'_>, &mut Notebook<'_>) -> Result<()>,
}

/// All experiments, in the order of `paper`.
const EXPERIMENTS: [Experiment; 13] = [
    Experiment { name: BenchName::RingCounter, measure: rings::counter },
    Experiment { name: BenchName::RingPipes, measure: rings::pipes },
    Experiment { name: BenchName::Workers, measure: workers::measure },
    Experiment { name: BenchName::UserInterrupt, measure: user_interrupt::measure },
    Experiment { name: BenchName::MatrixModels, measure: matrix::models },
    Experiment { name: BenchName::Creation, measure: matrix::creation },
    Experiment { name: BenchName::MatrixPriorities, measure: priorities::levels },
    Experiment { name: BenchName::PriorityLatency, measure: priorities::distribution },
    Experiment { name: BenchName::MicroNet, measure: network::measure },
    Experiment { name: BenchName::Peers, measure: peers::measure },
    Experiment { name: BenchName::LinuxPrograms, measure: programs::measure },
    Experiment { name: BenchName::Servers, measure: card::measure },
    Experiment { name: BenchName::Disk, measure: disk::measure },
];

/// Benchmarks that are no experiments of this module and belong to the papers too.
const OTHERS: [BenchName; 7] = [
    BenchName::Memory,
    BenchName::AsyncCalls,
    BenchName::Syscall,
    BenchName::Switch,
    BenchName::Scheduler,
    BenchName::MicroIpc,
    BenchName::MicroAsync,
];

/// Finds the experiment of a name, if it is one.
pub fn find(name: BenchName) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}

/// Runs one experiment.
///
/// # Errors
///
/// The build failed, or not a single part of the experiment could be measured.
pub fn run(context: &Context, experiment: &Experiment, arguments: &cli::Bench) -> Result<()> {
    let lab = Lab::open(context, arguments)?;
    let results = lab.run(experiment)?;
    bench::keep_and_show(context, &results, arguments)
}

/// Runs all of them, and makes the report.
///
/// # Errors
///
/// One of the experiments could not be measured; the others were.
pub fn paper(context: &Context, arguments: &cli::Bench) -> Result<()> {
    let lab = Lab::open(context, arguments)?;
    let (mut all, mut failed) = (Vec::new(), Vec::new());
    let started = Instant::now();
    let total = EXPERIMENTS.len() + OTHERS.len();
    for experiment in &EXPERIMENTS {
        let name = experiment.name.name();
        eprintln!("[{}/{total}] {name}, {} s", all.len() + failed.len() + 1, started.elapsed().as_secs());
        match lab.run(experiment) {
            Ok(results) => {
                results::keep(context, &results, arguments.record)?;
                all.push(results);
            }
            Err(error) => {
                eprintln!("{name} could not be measured: {error:#}");
                failed.push(name);
            }
        }
        crate::interrupt::stand_still_if_requested();
    }
    for name in OTHERS {
        eprintln!("[{}/{total}] {}, {} s", all.len() + failed.len() + 1, name.name(), started.elapsed().as_secs());
        if arguments.quick && name == BenchName::Scheduler {
            eprintln!("left out of the quick run; its recorded results are in the report");
            continue;
        }
        let measured = match name {
            BenchName::Scheduler => bench::on_the_host(context),
            BenchName::MicroIpc => ipc::measure(context),
            BenchName::MicroAsync => micro_async::measure(context, None),
            _ => bench::in_the_machine(context, name, None, None),
        };
        let results = measured.and_then(|(lines, machine)| {
            bench::results(name, &lines, machine, report::commit(&context.workspace.root))
        });
        match results {
            Ok(results) => {
                results::keep(context, &results, arguments.record)?;
                all.push(results);
            }
            Err(error) => {
                eprintln!("{} could not be measured: {error:#}", name.name());
                failed.push(name.name());
            }
        }
        crate::interrupt::stand_still_if_requested();
    }
    if let Some(file) = &arguments.json {
        let json = serde_json::to_string_pretty(&all)? + "\n";
        std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let page = results::write_report(context, None)?;
    println!("{} experiments in {} s. The report is\n{}", all.len(), started.elapsed().as_secs(), page.display());
    if failed.is_empty() { Ok(()) } else { bail!("could not be measured: {}", failed.join(", ")) }
}

/// The built products, and the means to boot them.
pub struct Lab<'a> {
    /// Workspace, board, progress.
    pub context: &'a Context,
    /// Whether to measure fewer and shorter runs.
    pub quick: bool,
    way: Option<Way>,
    selection: Selection,
    toolchain: Toolchain,
    products: Products,
    linux: OnceCell<Option<DebianKernel>>,
    /// Linux's basic costs, which several experiments show.
    basics: RefCell<BTreeMap<Way, Vec<Line>>>,
    /// Messages of machines about parts that they could not measure.
    complaints: RefCell<Vec<String>>,
}

/// Measures, on machines of these numbers of harts, how many times as long as one lone connection the most important of
/// 64 busy connections wait in the machine.
///
/// # Errors
///
/// The build failed, or one of the machines could not be measured.
pub fn level0_of_alone(context: &Context, harts: &[u8]) -> Result<Vec<(u8, priorities::OfAlone)>> {
    let lab = Lab::of(context, true, None)?;
    harts.iter().map(|&harts| Ok((harts, priorities::level0_of_alone(&lab, harts)?))).collect()
}

impl<'a> Lab<'a> {
    fn open(context: &'a Context, arguments: &cli::Bench) -> Result<Lab<'a>> {
        let mut lab = Lab::of(context, arguments.quick, arguments.way)?;
        lab.selection = Selection { figure: arguments.figure.clone(), system: arguments.system };
        Ok(lab)
    }

    fn of(context: &'a Context, quick: bool, way: Option<Way>) -> Result<Lab<'a>> {
        let (mut toolchain, products) = context.build(Need::Boot)?;
        toolchain.qemu = emulator::of_benchmarks(context, &toolchain.qemu);
        Ok(Lab {
            context,
            quick,
            way,
            selection: Selection::default(),
            toolchain,
            products,
            linux: OnceCell::new(),
            basics: RefCell::default(),
            complaints: RefCell::default(),
        })
    }

    fn run(&self, experiment: &Experiment) -> Result<Results> {
        let mut notebook = Notebook {
            context: self.context,
            results: Results {
                bench: experiment.name.name(),
                commit: report::commit(&self.context.workspace.root),
                machine: format!(
                    "{} {}, {}, {} host cores{}",
                    self.context.board.name,
                    linux::MACHINE,
                    self.toolchain.qemu_version(),
                    std::thread::available_parallelism().map_or(1, usize::from),
                    if self.quick { ", quick" } else { "" },
                ),
                ..Results::default()
            },
        };
        let result = (experiment.measure)(self, &mut notebook);
        notebook.results.notes.append(&mut self.complaints.borrow_mut());
        result?;
        let results = &notebook.results;
        if results.figures.is_empty() && results.series.iter().all(|series| series.cited) {
            bail!("nothing was measured: {}", notebook.results.notes.join("; "));
        }
        if let Some(linux) = self.linux.get().and_then(Option::as_ref) {
            notebook.results.machine += &format!(", Linux {}", linux.version);
        }
        Ok(notebook.results)
    }

    /// Returns the requested ways.
    pub fn ways(&self) -> impl Iterator<Item = Way> {
        WAYS.into_iter().filter(|way| self.way.is_none_or(|wanted| wanted == *way))
    }

    /// Returns the number of rounds in which servers are measured beside each other.
    pub fn rounds(&self) -> usize {
        if self.quick { 3 } else { 5 }
    }

    /// Returns the duration of each measurement in a round.
    pub fn duration_of_round(&self) -> Duration {
        Duration::from_millis(if self.quick { 350 } else { 1000 })
    }

    /// Returns Linux, if it is available; otherwise one message reports that.
    pub fn linux(&self) -> Option<&DebianKernel> {
        self.linux
            .get_or_init(|| match DebianKernel::prepare(self.context) {
                Ok(linux) => Some(linux),
                Err(error) => {
                    eprintln!("Linux is left out: {error:#}");
                    None
                }
            })
            .as_ref()
    }

    /// Boots COPS's program `bench` and returns its results.
    pub fn on_cops(&self, title: &str, words: &[String], harts: u8, clock: Clock) -> Result<Vec<Line>> {
        self.on_cops_with(title, words, &machine(harts), clock)
    }

    /// Boots COPS's program `bench` on a machine of the experiment's choice and returns its results.
    pub fn on_cops_with(
        &self,
        title: &str,
        words: &[String],
        machine: &cli::Machine,
        clock: Clock,
    ) -> Result<Vec<Line>> {
        let command_line = command_line("bench", words)?;
        let mut configuration = self.context.configuration(&self.products, machine, command_line);
        configuration.set_clock(clock);
        self.measure(&format!("{title}: COPS"), &configuration, None)
    }

    /// Boots bench/peers on Linux for a measurement and returns its results.
    pub fn on_linux(&self, title: &str, words: &[String], harts: u8, clock: Clock) -> Result<Vec<Line>> {
        let linux = self.linux().context("there is no Linux")?;
        let words: Vec<_> = [String::from("bench")].into_iter().chain(words.iter().cloned()).collect();
        let configuration = linux.configuration(self.context, harts, clock, &words)?;
        self.measure(&format!("{title}: Linux"), &configuration, Some(linux::DONE))
    }

    /// Boots bench/peers on COPS, unmodified and as the first program, and returns its results.
    pub fn peers_on_cops(&self, title: &str, words: &[String], harts: u8, clock: Clock) -> Result<Vec<Line>> {
        let program = self.linux().context("there is no program of Linux")?.program.clone();
        let name = String::from(linux::PROGRAM);
        let products = own::with_files(self.context, self.products.clone(), vec![(name.clone(), program)], &[])?;
        let mut configuration = self.context.configuration(&products, &machine(harts), command_line(&name, words)?);
        configuration.set_clock(clock);
        self.measure(&format!("{title}: COPS"), &configuration, None)
    }

    /// Returns the costs of basic operations on Linux, on one hart; measured once.
    pub fn linux_basics(&self, way: Way) -> Result<Vec<Line>> {
        if let Some(lines) = self.basics.borrow().get(&way) {
            return Ok(lines.clone());
        }
        let title = format!("basic costs ({})", way.name());
        let lines = self.on_linux(&title, &words("basics"), 1, way.clock())?;
        self.basics.borrow_mut().insert(way, lines.clone());
        Ok(lines)
    }

    fn cops(&self, command_line: String, harts: u8) -> Configuration {
        self.context.configuration(&self.products, &machine(harts), command_line)
    }

    /// Boots a machine that measures and ends. It succeeds by its status, and by its last line if it has to print one.
    fn measure(&self, title: &str, configuration: &Configuration, last: Option<&str>) -> Result<Vec<Line>> {
        let log = self.context.log("experiment");
        let activity = self.context.progress.start(title);
        let mut guest = Guest::start(&self.toolchain.qemu, &self.context.board, configuration, &log, Echo::LogOnly)?;
        let mut lines = Vec::new();
        let mut done = false;
        let mut said = None;
        let limit = if self.quick { Duration::from_secs(240) } else { Duration::from_secs(1800) };
        let end = guest.wait_for("the end of the measurement", limit, |line| {
            activity.detail(line);
            match line.strip_prefix(MARK) {
                Some(result) => lines.push(result.to_string()),
                None if last == Some(line.trim()) => done = true,
                None if line.starts_with(FAILED) => {
                    eprintln!("{line}");
                    self.complaints.borrow_mut().push(format!("{title}: {}", line.trim_start_matches(FAILED)));
                }
                None if line.contains("failed") => said = Some(line.to_string()),
                // It boots again.
                None if line.contains("Kernel panic") => return Some(()),
                None => {}
            }
            None
        });
        match end {
            Err(failure) if matches!(failure.kind, FailureKind::Ended { status: Some(status), .. } if status.success()) =>
                {}
            // Results until the failure are kept.
            Err(failure) if !lines.is_empty() => {
                self.complaints
                    .borrow_mut()
                    .push(format!("{title}: {}", failure.to_string().lines().next().unwrap_or_default()));
                done = true;
            }
            Err(failure) => return Err(failure.into()),
            Ok(()) => bail!("{}", said.unwrap_or_else(|| format!("Linux panicked; see {}", log.display()))),
        }
        activity.clear();
        if last.is_some() && !done {
            bail!("{}", said.unwrap_or_else(|| format!("the program did not come to its end; see {}", log.display())));
        }
        lines
            .iter()
            .map(|line| {
                serde_json::from_str(line)
                    .with_context(|| format!("the machine printed a line that is no result: {line}"))
            })
            .collect()
    }

    /// Boots COPS's matrix server, waits until it answers, and hands it over.
    pub fn serve_cops(&self, title: &str, words: &[String], harts: u8) -> Result<Server> {
        let server = self.serve_program(title, "matrix-server", words, linux::FIRST_PORT, harts)?;
        server.wait_for_answers(linux::FIRST_PORT)?;
        Ok(server)
    }

    /// Boots the matrix server so that the kernel measures how long requests take in the machine
    /// ([`Server::latencies`]), and waits until it answers.
    pub fn serve_measured(&self, title: &str, words: &[String], harts: u8, clock: Clock) -> Result<Server> {
        let mut arguments = vec!["latencies".to_string(), "matrix-server".to_string()];
        arguments.extend_from_slice(words);
        let mut configuration = self.cops(format!("latencies=on {}", command_line("monitor", &arguments)?), harts);
        configuration.clock = clock;
        for guest in [linux::FIRST_PORT, latencies::PORT] {
            configuration.forwards.push(Forward { host: guest::free_port()?, guest });
        }
        let server = self.serve(title, &configuration, "matrix-server: listening")?;
        server.wait_for_answers(linux::FIRST_PORT)?;
        Ok(server)
    }

    /// Boots a server of COPS that announces that it listens on a port.
    pub fn serve_program(&self, title: &str, name: &str, words: &[String], port: u16, harts: u8) -> Result<Server> {
        let mut configuration = self.cops(command_line(name, words)?, harts);
        configuration.forwards = vec![Forward { host: guest::free_port()?, guest: port }];
        self.serve(title, &configuration, &format!("{name}: listening"))
    }

    /// Boots the microkernel with its network server and the services on it, and waits until they answer.
    pub fn serve_microkernel(&self, title: &str, harts: u8) -> Result<Server> {
        let machine =
            cli::Machine { harts: Some(harts), memory: None, machine: Some(linux::MACHINE), user_interrupts: None };
        let (_, products) = self.context.build_root_task(self.context.variation(&machine), "network-system")?;
        let mut configuration = self.context.configuration(&products, &machine, String::new());
        for guest in [linux::FIRST_PORT, network::ECHO_PORT] {
            configuration.forwards.push(Forward { host: guest::free_port()?, guest });
        }
        let server = self.serve(title, &configuration, "matrix-server: listening")?;
        server.wait_for_answers(linux::FIRST_PORT)?;
        Ok(server)
    }

    /// Boots Linux with all of its servers; those of [`DebianKernel::servers`] answer.
    pub fn serve_linux(&self, title: &str, harts: u8) -> Result<Server> {
        let linux = self.linux().context("there is no Linux")?;
        let mut configuration = linux.configuration(self.context, harts, Clock::Host, &["serve".to_string()])?;
        for name in linux::SERVERS {
            let guest = linux::port(name).context("the list of servers has it")?;
            configuration.forwards.push(Forward { host: guest::free_port()?, guest });
        }
        let server = self.serve(title, &configuration, linux::SERVING)?;
        server.wait_for_answers(linux::FIRST_PORT)?;
        Ok(server)
    }

    fn serve(&self, title: &str, configuration: &Configuration, listening: &str) -> Result<Server> {
        // Several servers run at the same time, each with a log of its own.
        let words: Vec<_> =
            title.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
        let log = self.context.log(&format!("experiment-{}", words.join("-")));
        let activity = self.context.progress.start(title);
        let mut guest = Guest::start(&self.toolchain.qemu, &self.context.board, configuration, &log, Echo::LogOnly)?;
        guest.wait_for("the server's first words", BOOT_LIMIT, |line| {
            activity.detail(line);
            line.contains(listening).then_some(())
        })?;
        activity.clear();
        Ok(Server { guest, forwards: configuration.forwards.clone() })
    }
}

/// Harts of measurements by the wall clock: four, as the papers have, or as many as the host has cores. On a machine of
/// more the host would not run the hart that the others wait for, and the wait would be measured.
fn harts() -> u8 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4) as u8)
}

/// The machine on which COPS and Linux are compared.
fn machine(harts: u8) -> cli::Machine {
    cli::Machine { harts: Some(harts), memory: None, machine: Some(linux::MACHINE), user_interrupts: None }
}

/// Prefix of a line that gives the reason why a part was not measured.
const FAILED: &str = "bench failed: ";

/// Longest time until a machine's servers listen, and until a server answers.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Longest time of an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A serving machine.
pub struct Server {
    guest: Guest,
    forwards: Vec<Forward>,
}

impl Server {
    /// Returns the address on this host of a port of the machine.
    pub fn address(&self, port: u16) -> Result<std::net::SocketAddr> {
        let forward = self.forwards.iter().find(|forward| forward.guest == port).context("no such port")?;
        Ok(guest::address(forward.host))
    }

    fn wait_for_answers(&self, port: u16) -> Result<()> {
        let deadline = Instant::now() + BOOT_LIMIT;
        loop {
            match load::probe(self.address(port)?, Order::MINIMUM, PATIENCE) {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= deadline => bail!("the server does not answer: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Returns the latencies of requests in the machine up to now, for each priority, if the kernel measures them.
    pub fn latencies(&self) -> Result<Vec<latencies::Latencies>> {
        latencies::ask(self.address(latencies::PORT)?)
    }

    /// Stops the machine until [`go_on`](Self::go_on), after a moment for the end of the connections that were just
    /// closed.
    pub fn stand_still(&self) {
        std::thread::sleep(Duration::from_millis(20));
        self.guest.stand_still();
    }

    /// Ends a standstill.
    pub fn go_on(&self) {
        self.guest.go_on();
    }

    /// Measures one plan.
    ///
    /// # Errors
    ///
    /// The machine failed, or not a single answer came. The caller checks for wrong and lost answers.
    pub fn load(&mut self, plan: &Plan) -> Result<Measurement> {
        let measurement = self.guest.ask(plan, &mut |_| {})?;
        if measurement.answered == 0 {
            bail!("no answer came: {}", measurement.first_failure.unwrap_or_default());
        }
        Ok(measurement)
    }
}

/// The results of an experiment in the making. They are saved with each addition.
pub struct Notebook<'a> {
    context: &'a Context,
    results: Results,
}

impl Notebook<'_> {
    /// Adds a value without a goal.
    pub fn figure(&mut self, id: &str, value: f64, unit: &str) {
        self.add(Figure { id: id.into(), value, unit: unit.into(), goal: None, met: None, at_least: false });
    }

    /// Adds a value that should be at most `goal`.
    pub fn at_most(&mut self, id: &str, value: f64, unit: &str, goal: f64) {
        let met = Some(value <= goal);
        self.add(Figure { id: id.into(), value, unit: unit.into(), goal: Some(goal), met, at_least: false });
    }

    /// Adds a value that should be at least `goal`.
    pub fn at_least(&mut self, id: &str, value: f64, unit: &str, goal: f64) {
        let met = Some(value >= goal);
        self.add(Figure { id: id.into(), value, unit: unit.into(), goal: Some(goal), met, at_least: true });
    }

    fn add(&mut self, figure: Figure) {
        if figure.value.is_finite() {
            self.results.figures.push(figure);
            self.save();
        }
    }

    /// Adds values along an axis, as a line of the plot.
    pub fn series(&mut self, plot: &str, id: &str, unit: &str, x_unit: &str, points: Vec<(f64, f64)>) {
        self.results.series.push(Series {
            id: id.into(),
            unit: unit.into(),
            x_unit: x_unit.into(),
            points,
            ranges: Vec::new(),
            plot: Some(plot.into()),
            cited: false,
        });
        self.save();
    }

    /// Adds to the last series the least and the largest values of its runs, by place.
    pub fn ranges(&mut self, ranges: Vec<(f64, f64, f64)>) {
        if let Some(series) = self.results.series.last_mut() {
            series.ranges = ranges;
        }
        self.save();
    }

    /// Adds values of the papers, as a line of the plot.
    pub fn cite(&mut self, plot: &str, id: &str, unit: &str, x_unit: &str, points: &[(f64, f64)]) {
        self.series(plot, id, unit, x_unit, points.to_vec());
        if let Some(series) = self.results.series.last_mut() {
            series.cited = true;
        }
    }

    /// Adds a note for the reader.
    pub fn note(&mut self, note: String) {
        eprintln!("{note}");
        self.results.notes.push(note);
        self.save();
    }

    /// Returns the results of a part; a failure becomes a note.
    pub fn part<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        crate::interrupt::stand_still_if_requested();
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let text = format!("{error:#}");
                self.note(format!("{what} could not be measured: {}", text.lines().next().unwrap_or_default()));
                None
            }
        }
    }

    /// Returns the value of a series at a place.
    pub fn value(&self, plot: &str, id: &str, x: f64) -> Option<f64> {
        let series = self.results.series.iter().find(|one| one.plot.as_deref() == Some(plot) && one.id == id)?;
        series.points.iter().find(|point| point.0 == x).map(|point| point.1)
    }

    fn save(&self) {
        // A full disk must not end a measurement whose result a terminal can still show.
        let _ = results::save(self.context, &self.results);
    }
}

/// A name, and places with their values.
pub type Curve = (String, Vec<(f64, f64)>);

/// Returns the series among lines, with their names.
pub fn series_of(lines: Vec<Line>) -> Vec<Curve> {
    lines
        .into_iter()
        .filter_map(|line| match line {
            Line::Series(series) => Some((series.id, series.points)),
            Line::Figure { .. } => None,
        })
        .collect()
}

/// Finds a figure among lines.
pub fn figure_of(lines: &[Line], wanted: &str) -> Option<f64> {
    lines.iter().find_map(|line| match line {
        Line::Figure { id, value, .. } if id == wanted => Some(*value),
        _ => None,
    })
}

/// Splits a text into words for a program.
pub fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}

/// Formats numbers as words.
pub fn numbers(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}
