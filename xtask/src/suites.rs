//! `test`: the suites, on the host and in the machine.
//!
//! The machine's suite is the program `tests`: it prints `test NAME ... ok` or `test NAME ... FAILED` for each test and
//! `N passed, N failed` at its end, and then the machine ends. It runs on every combination of one and four harts with
//! both machine types, since most failures between harts and interrupt controllers happen in only one; and once more
//! with each back end of user interrupts. Combinations beside the first machine's run only tests that can differ there
//! ([`names`]), unless they are chosen by `--machine` or `--harts`.
//! Tests that compare the work of processes run on one hart whose clock counts instructions instead ([`COUNTED`]): on
//! the host's time, a busy host would take work from one of them and not from the other.
//!
//! Parts run beside each other where the host has a core for both ([`lanes`]).
//!
//! Kernels that are suites themselves test the machine below the kernel in the same way. They can also be told to make
//! a mistake ([`FAULTS`]), which they must not survive: the test is that they report it and end the machine as failed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::board::{self, Board, Clock, Configuration, Network, Variant};
use crate::boot_loader;
use crate::build::{self, Broken, Checks, Counters, Products, Variation};
use crate::callers::Programs;
use crate::children::{self, Child, Ending};
use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::cores;
use crate::dist;
use crate::efi;
use crate::emulator;
use crate::exchange::{self, Exchange};
use crate::exercises::{self, System};
use crate::guest::{Echo, Failure, FailureKind, Guest};
use crate::image;
use crate::interrupt;
use crate::lanes::{self, Job, Load, Show};
use crate::lasting::DiskSuite;
use crate::linux::{self, DebianKernel, Servers};
use crate::linux_target;
use crate::monitor;
use crate::own::{self, Chosen};
use crate::perfetto;
use crate::profile::Sampler;
use crate::programs::LinuxMachine;
use crate::serial::{TestLine, test_line};
use crate::soak;
use crate::storms::{Files, Storm};
use crate::toolchain::{self, Item, Toolchain};
use crate::workspace::{self, Crate, CrateTarget, Workspace};

/// A part of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Suite {
    /// All tests on the host: `cargo test` of all packages but those for the target only.
    Host,
    /// The models of concurrent code, every interleaving.
    Loom,
    /// The whole system in QEMU.
    Qemu,
    /// The microkernel in QEMU: its root task's suite of seL4's interface, with user-level interrupts too where the
    /// machine has been built, and root tasks that it must refuse.
    Micro,
    /// The machine with user-level interrupts, by a program without a kernel; left out, unless it is named, where
    /// `cargo xtask machine uintc` has not been run.
    #[value(alias = "uintc")]
    Machine,
    /// Unmodified programs of Debian, in QEMU; left out, unless it is named, where packages cannot be fetched.
    Linux,
    /// Unmodified programs of Debian on a disk, and what lasts when the power is cut; left out as `linux` is, and on
    /// several harts alone unless it is named.
    Disk,
    /// Debian's Linux, unchanged, on the machine with user-level interrupts. Only on request by name.
    MachineLinux,
    /// The tests on the host with a hundred times as many cases of each property, with other seeds each time. Only on
    /// request by name.
    Long,
}

impl Suite {
    /// Returns whether it runs in QEMU.
    pub fn needs_machine(self) -> bool {
        match self {
            Suite::Qemu | Suite::Micro | Suite::Machine | Suite::Linux | Suite::Disk | Suite::MachineLinux => true,
            Suite::Host | Suite::Loom | Suite::Long => false,
        }
    }
}

/// Factor of the long tests' numbers of cases, unless the environment sets another.
const LONG_CASES: &str = "100";

/// The variable that all property tests multiply their numbers of cases by; the crate `property` reads it.
pub const CASES: &str = "COPS_CASES";

/// Variable with the seed of all property tests; the crate `property` reads it, and uses a fixed seed without it.
const SEED: &str = "COPS_SEED";

/// The program with the machine's suite.
const PROGRAM: &str = "tests";

/// The root task with the suite of the microkernel's library.
const LIBRARY_SUITE: &str = "library-suite";

/// The numbers of harts that the machine's suite runs on.
const HARTS: [u8; 2] = [1, 4];

/// The memory of a machine that tests: little, because one of the tests fills it.
const MEMORY: &str = "256M";

/// Longest silence of the machine, longest time in all, and longest time to end when it is done. These end a hang, on
/// however slow a host: the first is longer than the suite itself waits for one of its tests.
const SILENCE_LIMIT: Duration = Duration::from_secs(900);
const MACHINE_LIMIT: Duration = Duration::from_secs(3600);
const END_LIMIT: Duration = Duration::from_secs(120);

/// Number of lines before the failure of a test that are reported with it.
const LINES_OF_A_FAILURE: usize = 8;

/// Bytes of a machine's disk.
const DISK_SIZE: u64 = 8 << 20;

/// Bytes of a machine's volume.
const VOLUME_SIZE: u64 = 32 << 20;

/// Number of acknowledged files after which the power of a machine is cut, for each of its boots.
const CUTS: [u32; 4] = [3, 17, 40, 90];

/// Length of the soak of a test.
const SOAK_SECONDS: u64 = 20;

/// The exchange of a test.
const SHORT_EXCHANGE: Exchange = Exchange { mebibytes: 64, connections: 3, loss: 1, seed: 1 };

/// The mistakes that a kernel can be told to make by `fault=NAME` on its command line. Each must end in a report that
/// names a function of this program, and in a failure status.
const FAULTS: [&str; 9] = [
    "panic",
    "panic-elsewhere",
    "panic-during-output",
    "overflow",
    "write-text",
    "write-text-alias",
    "execute-data",
    "null",
    "floating-point",
];

/// The microkernel's message before it ends the machine over a root task.
const CANNOT_START: &str = "the microkernel cannot start: ";

/// Longest time of Linux's boot and its measurements.
const LINUX_LIMIT: Duration = Duration::from_secs(900);

/// Number of harts on which Debian's Linux runs exercises.
const LINUX_HARTS: u8 = 2;

/// Longest time of a mistake.
const FAULT_LIMIT: Duration = Duration::from_secs(300);

/// Numbers of passed and failed tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that were left out, because the machine lacks what they need.
    pub skipped: u64,
}

impl Tally {
    /// One test that passed.
    const PASSED: Tally = Tally { passed: 1, failed: 0, skipped: 0 };

    fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)?;
        match self.skipped {
            0 => Ok(()),
            skipped => write!(formatter, ", {skipped} skipped"),
        }
    }
}

/// The results of a part, and its failures in words.
pub type Found = Result<(Tally, Vec<String>)>;

/// All findings of a run of suites.
#[derive(Debug)]
struct Findings {
    /// Name and results of each part, in the order of their ends.
    parts: Vec<(String, Tally, Spent)>,
    /// The failures, in words.
    failures: Vec<String>,
    /// Begin of the first part.
    started: Instant,
    /// End of the last part, and the processor time of all programs that had ended by then.
    last_end: Instant,
    last_processor: Duration,
}

/// The time that a part took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spent {
    /// By the clock: of a part in a lane from its begin, of another from the end of the part before, so that its builds
    /// are among it.
    elapsed: Duration,
    /// Of the host's processors, by the programs that have ended since the end of the part before.
    processor: Duration,
}

impl fmt::Display for Spent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} s, {} s of processors", self.elapsed.as_secs(), self.processor.as_secs())
    }
}

impl Default for Findings {
    fn default() -> Findings {
        let (now, last_processor) = (Instant::now(), children::processor_time());
        Findings { parts: Vec::new(), failures: Vec::new(), started: now, last_end: now, last_processor }
    }
}

impl Findings {
    fn add(&mut self, part: String, result: Found) {
        self.add_from(self.last_end, part, result);
    }

    /// Adds a part that began then.
    fn add_from(&mut self, begun: Instant, part: String, result: Found) {
        let (tally, failures) = match result {
            Ok(found) => found,
            // An error that prevents a suite's end is one failure more than those of its tests.
            Err(error) => (Tally { passed: 0, failed: 1, skipped: 0 }, vec![format!("{error:#}")]),
        };
        self.failures.extend(failures.into_iter().map(|failure| format!("{part}: {failure}")));
        let (now, processor) = (Instant::now(), children::processor_time());
        let spent = Spent { elapsed: now - begun, processor: processor.saturating_sub(self.last_processor) };
        self.parts.push((part, tally, spent));
        (self.last_end, self.last_processor) = (now, processor);
    }

    fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.parts.iter().for_each(|(_, tally, _)| total.add(*tally));
        total
    }

    fn summary(&self) -> String {
        let mut text = String::from("\n");
        if !self.failures.is_empty() {
            text += "failures:\n";
            for failure in &self.failures {
                text += &format!("    {}\n", failure.replace('\n', "\n    "));
            }
            text.push('\n');
        }
        let width = self.parts.iter().map(|(part, ..)| part.len()).max().unwrap_or(0);
        for (part, tally, spent) in &self.parts {
            text += &format!("{part:<width$}  {tally}, {spent}\n");
        }
        let processor = self.parts.iter().map(|(.., spent)| spent.processor).sum();
        let all = Spent { elapsed: self.last_end - self.started, processor };
        text + &format!("{}, {all}\n", self.total())
    }
}

/// Returns the suites that the user has chosen, or all; of a board that the user has chosen, all that need a machine.
pub fn chosen_suites(arguments: &cli::Test, board: &Board) -> BTreeSet<Suite> {
    if arguments.suites.is_empty() && !board.is_default() {
        [Suite::Qemu, Suite::Micro, Suite::Machine, Suite::Linux, Suite::Disk].into()
    } else if arguments.suites.is_empty() {
        // A root task has no arguments, so there is no part of the microkernel's suite.
        let on_request = [Suite::Long, Suite::MachineLinux];
        let all = Suite::value_variants().iter().copied().filter(|suite| !on_request.contains(suite));
        let all = all.filter(|suite| {
            arguments.filter.is_none() || ![Suite::Micro, Suite::Machine, Suite::Linux, Suite::Disk].contains(suite)
        });
        let is_chosen = arguments.machine.is_none_or(|machine| machine == Variant::Uintc);
        all.filter(|suite| is_chosen || *suite != Suite::Machine).collect()
    } else {
        arguments.suites.iter().copied().collect()
    }
}

/// Skips the suites that are not for a board, with the reason.
fn skip_suites(board: &Board, wanted: &mut BTreeSet<Suite>, findings: &mut Findings) {
    if board.is_default() {
        return;
    }
    for suite in wanted.extract_if(.., |suite| *suite != Suite::Qemu) {
        let name = suite.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default();
        let reason = if suite.needs_machine() { "it is for the machines of" } else { "it needs no machine of" };
        let of = if suite.needs_machine() { Board::DEFAULT } else { &board.name };
        println!("test {name} ... skipped: {reason} {of}");
        findings.add(name, Ok((Tally { skipped: 1, ..Tally::default() }, Vec::new())));
    }
}

/// Runs suites and prints their results.
///
/// # Errors
///
/// A test fails, or a suite could not be run to its end.
pub fn test(context: &Context, arguments: &cli::Test) -> Result<()> {
    let mut wanted = chosen_suites(arguments, &context.board);
    let filter = arguments.filter.as_deref();
    let mut findings = Findings::default();
    skip_suites(&context.board, &mut wanted, &mut findings);
    // The machine's tools are looked for first, so that their lack is reported before ten minutes of other tests.
    let needs_machine = wanted.iter().any(|suite| suite.needs_machine());
    let mut toolchain = if needs_machine { Some(context.toolchain(Need::Boot)?) } else { None };
    let workspace = &context.workspace;
    // Each of two lanes compiles on half of the host.
    let jobs = (wanted.len() > 1).then(|| (cores() / 2).max(1));
    toolchain.iter_mut().for_each(|toolchain| toolchain.jobs = jobs);
    let mut parts = Vec::new();
    for suite in IN_LANES.into_iter().filter(|suite| wanted.contains(suite)) {
        parts.push(match (suite, &toolchain) {
            (Suite::Host, _) => Part::new("host", Load::One, move |show| {
                host(workspace, HostTests { cases: Cases::Usual, jobs }, filter, show)
            }),
            (Suite::Loom, _) => Part::new("loom", Load::One, move |show| loom(workspace, jobs, show)),
            (Suite::Long, _) => Part::new("long", Load::One, move |show| {
                host(workspace, HostTests { cases: Cases::Many, jobs }, filter, show)
            }),
            (Suite::Qemu, Some(toolchain)) => {
                Part::before("images of the system", move |_| qemu(context, toolchain, arguments))
            }
            (Suite::Micro, Some(toolchain)) => {
                Part::before("images of the microkernel", move |_| micro(context, toolchain, arguments))
            }
            (Suite::Machine, Some(toolchain)) => Part::before("programs of the machine", move |show| {
                match emulator::program(&context.board, Variant::Uintc, &toolchain.qemu) {
                    Err(error) if arguments.suites.is_empty() => {
                        show(&format!("note: left out: {error}"));
                        Ok(Vec::new())
                    }
                    Err(error) => Err(error),
                    Ok(_) => user_level_interrupts(context, toolchain),
                }
            }),
            (Suite::Linux, Some(toolchain)) => {
                Part::before("programs of Debian", move |show| linux(context, toolchain, arguments, show))
            }
            (Suite::Disk, Some(toolchain)) => {
                Part::before("programs of Debian on a disk", move |show| on_a_disk(context, toolchain, arguments, show))
            }
            (Suite::Qemu | Suite::Micro | Suite::Machine | Suite::Linux | Suite::Disk | Suite::MachineLinux, _) => {
                continue;
            }
        });
    }
    run_parts(parts, &mut findings);
    if let (true, Some(toolchain)) = (wanted.contains(&Suite::MachineLinux), &toolchain) {
        linux_with_user_level_interrupts(context, toolchain, arguments, &mut findings);
    }
    print!("{}", findings.summary());
    match findings.total() {
        Tally { failed: 0, passed, .. } if passed > 0 => Ok(()),
        Tally { failed: 0, .. } => bail!("no test was run"),
        Tally { failed, .. } => bail!("{failed} failed"),
    }
}

/// The order in which suites begin in the lanes: first the builds of images, for which the machines of several harts
/// wait, since these take longest and are never beside each other.
const IN_LANES: [Suite; 8] =
    [Suite::Qemu, Suite::Loom, Suite::Micro, Suite::Host, Suite::Long, Suite::Machine, Suite::Linux, Suite::Disk];

/// Returns the number of cores of the host.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The number of cases of each property that the tests on the host try.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cases {
    Usual,
    Many,
}

/// The way in which the tests on the host run.
#[derive(Clone, Copy)]
struct HostTests {
    cases: Cases,
    /// Number of programs that compile at once, unless cargo chooses it.
    jobs: Option<usize>,
}

impl HostTests {
    /// Returns the command that tests on the host, to which packages are to be added.
    fn cargo_test(self, workspace: &Workspace) -> Command {
        let mut command = workspace::cargo();
        command.current_dir(&workspace.root).args(["test", "--no-fail-fast"]);
        toolchain::limit_jobs(&mut command, self.jobs);
        if self.cases == Cases::Many {
            command.args(["--profile", "long"]);
            if std::env::var_os(CASES).is_none() {
                command.env(CASES, LONG_CASES);
            }
            if std::env::var_os(SEED).is_none() {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                command.env(SEED, (now.as_nanos() as u64).to_string());
            }
        }
        command
    }
}

/// Runs every package's own tests, in one call of cargo; those with `filter` in their names.
fn host(workspace: &Workspace, tests: HostTests, filter: Option<&str>, show: Show) -> Found {
    let mut command = tests.cargo_test(workspace);
    command.arg("--workspace");
    for package in workspace.packages.iter().filter(|package| package.is_target_only()) {
        command.args(["--exclude", &package.name]);
    }
    let smp = build_smp_tests(&command);
    command.args(filter);
    let (mut tally, mut failures) = cargo_test(command, show)?;
    // The microkernel for several harts has some other code.
    let mut command = children::command(smp?);
    command.current_dir(workspace.root.join("kernel/micro")).args(filter);
    let (found, failed) = cargo_test(command, show)?;
    tally.add(found);
    failures.extend(failed);
    Ok((tally, failures))
}

/// Builds the tests of the microkernel for several harts, and returns their program. `like` is the call of cargo for
/// all packages: with one of them alone, other features would be chosen for those that it depends on, and all of these
/// would be compiled once more.
fn build_smp_tests(like: &Command) -> Result<PathBuf> {
    let mut command = Command::new(like.get_program());
    command.args(like.get_args()).args(["--features", "kernel-micro/smp", "--lib", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    like.get_envs().for_each(|(name, value)| match value {
        Some(value) => _ = command.env(name, value),
        None => _ = command.env_remove(name),
    });
    command.current_dir(like.get_current_dir().unwrap_or(Path::new("."))).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Child::start(&mut command, Ending::Kill).context("cargo could not be started")?;
    let stdout = child.pipes().stdout.take().context("cargo has no output")?;
    let lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let program = lines.filter_map(|line| test_program(&line, "kernel_micro")).last();
    let status = child.wait()?;
    if !status.success() {
        bail!("the microkernel's tests for several harts do not compile; see above");
    }
    program.context("cargo names no program with the microkernel's tests for several harts")
}

/// Returns the program with a library's tests, if this message of cargo is about it.
fn test_program(message: &str, library: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let is_meant = message["target"]["name"] == library
        && message["profile"]["test"] == true
        && message["target"]["kind"].as_array()?.iter().any(|kind| kind == "lib");
    is_meant.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
}

/// The environment in which loom's atomics are compiled.
pub const MODELS_ENVIRONMENT: (&str, &str) = ("RUSTFLAGS", "--cfg loom");

/// The profile of models, which optimises the interleaved crates alone.
pub const MODELS_PROFILE: [&str; 2] = ["--profile", "models"];

/// Returns how to run the models of a package, which has some if it depends on loom: cargo's arguments that choose test
/// programs with `loom` in their name, or the library where there are none; then those that choose the library's tests
/// with `loom` in theirs.
pub fn models(package: &Crate) -> Option<(Vec<String>, Vec<String>)> {
    if !package.dependencies.iter().any(|dependency| dependency.name == "loom") {
        return None;
    }
    let is_model =
        |target: &&CrateTarget| target.kind.iter().any(|kind| kind == "test") && target.name.contains("loom");
    let programs: Vec<_> =
        package.targets.iter().filter(is_model).map(|model| format!("--test={}", model.name)).collect();
    Some(if programs.is_empty() { (vec!["--lib".into()], vec!["loom".into()]) } else { (programs, vec![]) })
}

/// Runs the models of all packages, compiled with loom's atomics: in one call of cargo all packages whose models are
/// chosen in the same way, so that what they depend on is compiled once.
fn loom(workspace: &Workspace, jobs: Option<usize>, show: Show) -> Found {
    let mut calls = BTreeMap::<_, Vec<_>>::new();
    for package in &workspace.packages {
        if let Some(chosen) = models(package) {
            calls.entry(chosen).or_default().push(&package.name);
        }
    }
    if calls.is_empty() {
        bail!("no package depends on loom");
    }
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for ((programs, filters), packages) in calls {
        let mut command = workspace::cargo();
        command.current_dir(&workspace.root).args(["test", "--no-fail-fast"]).args(MODELS_PROFILE);
        packages.iter().for_each(|package| _ = command.args(["--package", package]));
        // With other flags: not in the directory that other builds use.
        command.arg("--target-dir").arg(workspace.products().join("loom"));
        command.envs([MODELS_ENVIRONMENT]);
        toolchain::limit_jobs(&mut command, jobs);
        command.args(programs).arg("--").args(filters);
        let (found, failed) = cargo_test(command, show)?;
        tally.add(found);
        failures.extend(failed);
    }
    Ok((tally, failures))
}

/// Runs `cargo test` or a test program, shows its output and adds up its closing lines.
fn cargo_test(mut command: Command, show: Show) -> Found {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Child::start(&mut command, Ending::Kill).context("the tests could not be started")?;
    let stdout = child.pipes().stdout.take().context("the tests have no output")?;
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        show(&line);
        if let Some(found) = closing_line(&line) {
            tally.add(found);
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            failures.push(name.to_string());
        }
    }
    let status = child.wait()?;
    if !status.success() && tally.failed == 0 {
        // It did not compile, or a test program died.
        tally.failed += 1;
        failures.push("the tests did not compile, or a test program died; see above".into());
    }
    Ok((tally, failures))
}

/// Parses a closing line of Rust's test programs: `test result: ok. 3 passed; 0 failed; …`.
fn closing_line(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number =
        |word: &str| counts.split("; ").find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok());
    Some(Tally { passed: number("passed")?, failed: number("failed")?, skipped: 0 })
}

/// Builds the images of the machine's suites, and returns their runs on every machine.
fn qemu<'a>(context: &'a Context, toolchain: &'a Toolchain, arguments: &cli::Test) -> Result<Vec<Part<'a>>> {
    let products = Arc::new(build::build(&context.workspace, toolchain, &context.progress, Broken::Fail)?);
    let kernels = build::suites(&context.workspace, toolchain, &context.progress, None)?;
    let board = &context.board;
    let boots = |machine| Boots { context, toolchain, products: products.clone(), machine };
    let (mut parts, mut partial) = (Vec::new(), Vec::new());
    for (machine, harts) in machines(board, arguments.machine, arguments.harts) {
        let names = names(arguments, board, machine, harts, None);
        let boots = boots(cli::Machine { machine: Some(machine), ..chosen_machine(arguments, Some(harts)) });
        let is_partial = !names.is_empty();
        let system = boots.system("system".into(), names)?;
        if is_partial {
            partial.push(system)
        } else {
            parts.push(system)
        }
        // Their tests have no names to choose from.
        for (name, kernel) in kernels.iter().filter(|(name, _)| has_name(arguments.filter.as_deref(), name)) {
            let kernel = kernel.clone();
            partial.push(boots.part(name, move |boots, log, show| boots.suite(log, &kernel, String::new(), show)));
        }
    }
    if arguments.user_interrupts.is_none() {
        // Once more with the other back ends, which change the programs' visits to user mode.
        let has_uintc = || emulator::program(&context.board, Variant::Uintc, &toolchain.qemu).is_ok();
        let others = [(Variant::Aia, cli::UserInterrupts::Imsic), (Variant::Uintc, cli::UserInterrupts::Uintc)];
        for (variant, back_end) in others {
            if !board.has(variant) {
                let reason = format!("the board has no machine `{variant}`");
                partial.push(Part::skipped(format!("system with {}", back_end.name()), reason));
                continue;
            }
            // Without the emulator the suite of the machine says in one line that it is missing.
            if arguments.machine.map_or(variant == Variant::Uintc && !has_uintc(), |chosen| chosen != variant) {
                continue;
            }
            for (machine, harts) in machines(board, Some(variant), arguments.harts) {
                let boots = boots(cli::Machine {
                    machine: Some(machine),
                    user_interrupts: Some(back_end),
                    ..chosen_machine(arguments, Some(harts))
                });
                let names = names(arguments, board, machine, harts, Some(back_end));
                parts.push(boots.system(format!("system with {}", back_end.name()), names)?);
            }
        }
    }
    // Long parts first, so that the lanes end at nearly the same time.
    parts.extend(partial);
    let has_counted = |filter: &String| COUNTED.iter().any(|name| name.contains(filter.as_str()));
    // Several harts of an emulator that counts share its instructions in parts that change.
    if arguments.filter.as_ref().is_none_or(has_counted) && arguments.harts.is_none_or(|harts| harts == 1) {
        let (boots, filter) = (boots(chosen_machine(arguments, Some(1))), arguments.filter.clone());
        let counted = move |boots: &Boots<'_>, log: &Path, show: Show| boots.counted(log, filter, show);
        parts.push(boots.part("system that counts instructions", counted));
    }
    let on_one_hart = boots(chosen_machine(arguments, Some(1)));
    let on_all_harts = boots(chosen_machine(arguments, arguments.harts));
    // Mistakes are equal on every machine.
    let machine = cli::Machine { user_interrupts: None, ..on_all_harts.machine.clone() };
    let mistaken = Boots { machine, ..on_all_harts.clone() };
    let mut short = Vec::new();
    for name in PARTS.into_iter().filter(|name| is_meant(arguments.filter.as_deref(), name)) {
        if let Some(reason) = unsuited(board, name) {
            short.push(Part::skipped(name.into(), reason));
            continue;
        }
        match name {
            FAILING_ALLOCATIONS => {
                let kernel = build::failing_kernel(&context.workspace, toolchain, &context.progress)?;
                let run =
                    move |boots: &Boots<'_>, log: &Path, show: Show| boots.failing_allocations(log, &kernel, show);
                parts.push(on_one_hart.part(name, run));
            }
            "power cut" => short.push(on_all_harts.part(name, Boots::power_cut)),
            HOST_FOLDER => short.push(on_all_harts.part(name, Boots::host_folder)),
            POWER_CUTS_OF_A_VOLUME => short.push(on_all_harts.part(name, Boots::volume_cuts)),
            RANDOM_CUTS => short.push(on_all_harts.part(name, Boots::random_cuts)),
            ROOT_ON_A_DISK | ROOT_BEHIND_PCI => short.extend(roots(boots, arguments, name)),
            PARTITIONS => short.push(on_all_harts.part(name, Boots::partitions)),
            "restart" => short.push(on_all_harts.part(name, Boots::restart)),
            "status of the shell" => short.push(on_all_harts.part(name, Boots::status)),
            "backtraces of programs" => short.push(on_all_harts.part(name, Boots::backtraces)),
            "a program from outside the tree" => short.push(on_all_harts.part(name, Boots::own_program)),
            "standard library" => {
                let is_there = is_possible(arguments, name, linux_target::ensure(&context.progress))?;
                short.extend(is_there.then(|| on_all_harts.part(name, Boots::standard_library)));
            }
            "bundle" => short.push(on_all_harts.part(name, Boots::bundle)),
            "boot loader" | "EFI of U-Boot" => {
                let found = toolchain::ensure_on_host(&[Item::UBoot], &context.progress);
                let work = if name == "boot loader" { Boots::boot_loader } else { Boots::efi_of_u_boot };
                short.extend(is_possible(arguments, name, found)?.then(|| on_all_harts.part(name, work)));
            }
            "EFI of EDK2" => {
                let is_there = is_possible(arguments, name, boot_loader::edk2(&context.progress).map(drop))?;
                short.extend(is_there.then(|| on_all_harts.part(name, Boots::efi_of_edk2)));
            }
            "profile" => short.push(on_one_hart.part(name, Boots::profile)),
            "trace" => short.push(on_all_harts.part(name, Boots::trace)),
            "faults" => short.extend(kernels.iter().map(|(name, kernel)| {
                let kernel = kernel.clone();
                let faults = move |boots: &Boots<'_>, log: &Path, show: Show| boots.faults(log, &kernel, show);
                mistaken.part(&format!("{name} faults"), faults)
            })),
            EXCHANGE => {
                // Two machines need both lanes.
                let boots = boots(chosen_machine(arguments, Some(arguments.harts.unwrap_or(exchange::HARTS))));
                parts.push(Part { load: Load::All, ..boots.part(name, Boots::exchange) });
            }
            // Its load from outside needs the host for itself.
            _ => parts.push(Part { load: Load::All, ..on_all_harts.part(name, Boots::soak) }),
        }
    }
    // However many harts these machines have, one of them does nearly everything.
    short.iter_mut().for_each(|part| part.load = Load::One);
    parts.extend(short);
    Ok(parts)
}

/// Returns the runs of a part whose root is on a disk.
fn roots<'a>(boots: impl Fn(cli::Machine) -> Boots<'a>, arguments: &cli::Test, name: &str) -> Vec<Part<'a>> {
    if name == ROOT_ON_A_DISK {
        let harts = arguments.harts.map_or(HARTS.to_vec(), |harts| vec![harts]);
        let run = |harts| boots(chosen_machine(arguments, Some(harts))).part(name, Boots::root_on_a_disk);
        return harts.into_iter().map(run).collect();
    }
    // Functions interrupt by messages on one machine, by wires on the other.
    let is_meant = |(machine, harts): &(Variant, u8)| {
        arguments.machine.is_none_or(|meant| meant == *machine) && arguments.harts.is_none_or(|meant| meant == *harts)
    };
    let run = |(machine, harts)| {
        let machine = cli::Machine { machine: Some(machine), ..chosen_machine(arguments, Some(harts)) };
        boots(machine).part(name, Boots::root_behind_pci)
    };
    [(Variant::Aia, 4), (Variant::Plic, 1)].into_iter().filter(is_meant).map(run).collect()
}

/// Returns whether a part has what it needs; otherwise a line says so, or it is an error if the part was asked for.
fn is_possible(arguments: &cli::Test, name: &str, found: Result<()>) -> Result<bool> {
    match found {
        Err(error) if arguments.filter.is_none() => {
            eprintln!("note: left out: {name}: {error:#}");
            Ok(false)
        }
        found => found.map(|()| true),
    }
}

/// Builds the programs that test the machine with user-level interrupts itself, and returns their runs. They need two
/// harts.
fn user_level_interrupts<'a>(context: &'a Context, toolchain: &'a Toolchain) -> Result<Vec<Part<'a>>> {
    let machine = Variant::Uintc;
    let name = machine.to_string();
    let programs = build::suites(&context.workspace, toolchain, &context.progress, Some(&name))?;
    // Such a program reads no archive.
    let empty = context.workspace.products().join("empty");
    std::fs::write(&empty, "").with_context(|| format!("cannot write {}", empty.display()))?;
    let part = |(name, program): (String, PathBuf)| {
        let products =
            Products { kernel: program.clone(), initramfs: empty.clone(), programs: Vec::new(), files: Vec::new() };
        let machine =
            cli::Machine { machine: Some(machine), harts: Some(2), memory: Some(MEMORY.into()), user_interrupts: None };
        let boots = Boots { context, toolchain, products: Arc::new(products), machine };
        boots.part(&name, move |boots, log, show| boots.suite(log, &program, String::new(), show))
    };
    Ok(programs.into_iter().map(part).collect())
}

/// Boots Debian's Linux on the machine with user-level interrupts, which it does not know, and lets it run the basic
/// measurements of bench/peers: system calls, pipes, threads, signals. The machine has the PLIC, as wherever this tree
/// boots Linux (`linux`).
fn linux_with_user_level_interrupts(
    context: &Context,
    toolchain: &Toolchain,
    arguments: &cli::Test,
    findings: &mut Findings,
) {
    let board = context.board.clone().with_plic(Variant::Uintc);
    let plural = |harts| if harts == 1 { "" } else { "s" };
    let boot = |harts| {
        let linux = DebianKernel::prepare_with(context, Servers::InC)?;
        let words = ["bench", "basics"].map(String::from);
        let mut configuration = linux.configuration(context, harts, Clock::Host, &words)?;
        configuration.machine = Variant::Uintc;
        let log = context.log(&format!("machine-linux-{harts}"));
        let activity = context.progress.start(format!("Linux {} on {harts} hart{}", linux.version, plural(harts)));
        let mut guest = Guest::start(&toolchain.qemu, &board, &configuration, &log, Echo::LogOnly)?;
        let mut is_done = false;
        let end = guest.wait_for("Linux's end", LINUX_LIMIT, |line| {
            activity.detail(line);
            is_done |= line.trim() == linux::DONE;
            None::<()>
        });
        match end {
            Err(failure) if is_done && matches!(failure.kind, FailureKind::Ended { .. }) => {
                Ok((Tally::PASSED, Vec::new()))
            }
            Err(failure) => Err(failure.into()),
            Ok(()) => unreachable!("no line is wanted"),
        }
    };
    for harts in arguments.harts.map_or(HARTS.to_vec(), |harts| vec![harts]) {
        findings.add(format!("Debian's Linux, {}, {harts} hart{}", Variant::Uintc, plural(harts)), boot(harts));
    }
}

/// Builds the microkernel's images, and returns the runs of its suite on every machine, also on that with user-level
/// interrupts if its emulator has been built, and of the starts that the microkernel must refuse on one.
fn micro<'a>(context: &'a Context, toolchain: &'a Toolchain, arguments: &cli::Test) -> Result<Vec<Part<'a>>> {
    let kernel = |variation| build::microkernel(&context.workspace, toolchain, &context.progress, variation);
    let (mut suites, mut libraries) = (Vec::new(), Vec::new());
    let board = &context.board;
    let mut machines_of_suite = machines(board, arguments.machine, arguments.harts);
    // Without the emulator the suite of the machine says in one line that it is missing.
    if arguments.machine.is_none() && emulator::program(&context.board, Variant::Uintc, &toolchain.qemu).is_ok() {
        machines_of_suite.extend(machines(board, Some(Variant::Uintc), arguments.harts));
    }
    for (variant, harts) in machines_of_suite {
        let machine = cli::Machine { machine: Some(variant), ..chosen_machine(arguments, Some(harts)) };
        let products = kernel(context.variation(&machine))?;
        let library = Products { initramfs: context.workspace.products().join(LIBRARY_SUITE), ..products.clone() };
        libraries.push((library, machine.clone(), "library of the microkernel"));
        // The interrupt controller makes no difference to the kernel's checks of itself, nor they to the machine: of
        // several machines one has the kernel with the checks.
        let (is_only, has_checks) = (arguments.machine.is_some(), variant == Variant::Plic);
        if is_only || !has_checks {
            suites.push((products, machine.clone(), "microkernel"));
        }
        if is_only || has_checks {
            let variation = Variation { checks: Checks::Entries, ..context.variation(&machine) };
            suites.push((kernel(variation)?, machine, "microkernel that checks itself"));
        }
    }
    // Long ones first, so that the lanes end at nearly the same time.
    suites.extend(libraries);
    let machine = chosen_machine(arguments, Some(1));
    let boots = |products, machine| Boots { context, toolchain, products: Arc::new(products), machine };
    let mut parts = Vec::new();
    for (products, machine, name) in suites {
        let suite =
            |boots: &Boots<'_>, log: &Path, show: Show| boots.suite(log, &boots.products.kernel, String::new(), show);
        parts.push(boots(products, machine).part(name, suite));
    }
    let refusing = kernel(context.variation(&machine))?;
    parts.push(boots(refusing, machine.clone()).part("refused starts", Boots::refusals));
    for told in TOLD {
        let machine = cli::Machine { harts: Some(told.harts), ..machine.clone() };
        let variation = Variation { words: told.built_in, counters: told.counters, ..context.variation(&machine) };
        let initramfs = context.workspace.products().join(TOLD_PROGRAM);
        let boots = boots(Products { initramfs, ..kernel(variation)? }, machine);
        parts.push(boots.part(told.name, |boots, log, show| boots.told(log, told, show)));
    }
    Ok(parts)
}

/// Fetches unmodified programs, and returns the runs of their exercises, by name also those on Debian's Linux in the
/// same emulator. The interrupt controller makes no difference to them.
fn linux<'a>(
    context: &'a Context,
    toolchain: &'a Toolchain,
    arguments: &cli::Test,
    show: Show,
) -> Result<Vec<Part<'a>>> {
    let all = exercises::load_all(&context.workspace.root)?;
    let mut chosen = exercises::chosen(&all, arguments.filter.as_deref());
    // Packages of all short exercises, whichever are chosen, so that they are unpacked once.
    let is_long = chosen.iter().any(|exercise| exercise.is_long);
    let packaged = if is_long { chosen.clone() } else { exercises::chosen(&all, None) };
    let root = match exercises::prepare(context, &packaged) {
        Err(error) if arguments.suites.is_empty() => {
            show(&format!("note: the programs of Debian are left out: {error:#}"));
            return Ok(Vec::new());
        }
        prepared => prepared?,
    };
    let built = match exercises::build(context, &chosen) {
        Err(error) if arguments.suites.is_empty() => {
            show(&format!("note: the programs of this tree for Linux are left out: {error:#}"));
            chosen.retain(|exercise| !exercise.is_built);
            Vec::new()
        }
        built => built?,
    };
    let built = [built, exercises::sources(context, &chosen)?].concat();
    let products = Arc::new(exercises::with_exercises(context, &root, &chosen, &built)?);
    let harts = arguments.harts.map_or(HARTS.to_vec(), |harts| vec![harts]);
    let mut systems: Vec<_> = harts.into_iter().map(System::Cops).collect();
    // The run of everything has no time for it.
    let beside = match arguments.suites.is_empty() || arguments.harts.is_some() || chosen.is_empty() {
        true => None,
        false => Some(exercises::on_linux(context, &root, &chosen, &built)?),
    };
    systems.extend(beside.as_ref().map(|_| System::Linux));
    // Long ones may be run on one system at a time.
    let is_kept = is_long || systems.len() == HARTS.len() + 1;
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let (all, chosen, root) = (Arc::new(all), Arc::new(chosen), Arc::new(root));
    let count = systems.len() * chosen.len();
    let parts = systems.into_iter().map(|system| {
        let harts = match system {
            System::Cops(harts) => harts,
            System::Linux => LINUX_HARTS,
        };
        // The archive with the programs is a part of the memory.
        let mut machine = cli::Machine { memory: None, ..chosen_machine(arguments, Some(harts)) };
        if system == System::Linux {
            machine.machine = Some(linux::MACHINE);
        }
        let boots = Boots { context, toolchain, products: products.clone(), machine };
        let (all, chosen, root, outcomes) = (all.clone(), chosen.clone(), root.clone(), outcomes.clone());
        let linux = beside.clone().filter(|_| system == System::Linux);
        let run = move |boots: &Boots<'_>, log: &Path, show: Show| {
            let mut guest = match linux {
                None => boots.start_with(Clock::Host, log, &boots.products.kernel, exercises::command_line()?)?,
                Some(linux) => {
                    let configuration = linux.configuration(context, harts, Clock::Host, &["exercises".into()])?;
                    Guest::start(&toolchain.qemu, &context.board, &configuration, log, Echo::LogOnly)?
                }
            };
            let found = exercises::follow(&mut guest, "linux", &chosen, system, show)?;
            let tally = exercises::tally(&found);
            let mut outcomes = outcomes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            outcomes.extend(found);
            if is_kept && outcomes.len() == count {
                outcomes.sort_by_key(|(_, system, _)| *system);
                exercises::keep(context, &root, &all, &outcomes)?;
            }
            Ok(tally)
        };
        boots.part(if system == System::Linux { "Debian's Linux" } else { "linux" }, run)
    });
    let mut parts: Vec<_> = parts.collect();
    // Left out with the exercises of other names.
    let is_meant = |name: &str| arguments.filter.as_ref().is_none_or(|filter| name.contains(filter));
    if image::tools_are_there() && is_meant("core file") {
        let machine = cli::Machine { memory: None, ..chosen_machine(arguments, Some(arguments.harts.unwrap_or(1))) };
        let boots = Boots { context, toolchain, products, machine };
        parts.push(boots.part("core file of a program of Debian", Boots::core_of_debian));
    }
    Ok(parts)
}

/// Makes an image of packages, and returns the runs of the scripts that are for a disk.
fn on_a_disk<'a>(
    context: &'a Context,
    toolchain: &'a Toolchain,
    arguments: &cli::Test,
    show: Show,
) -> Result<Vec<Part<'a>>> {
    let (_, products) = context.build(Need::Boot)?;
    let suite = toolchain::ensure_on_host(&[Item::E2fsprogs], &context.progress)
        .and_then(|()| DiskSuite::prepare(context, &products.initramfs, arguments.filter.as_deref()));
    let suite = match suite {
        Err(error) if arguments.suites.is_empty() => {
            show(&format!("note: the programs of Debian on a disk are left out: {error:#}"));
            return Ok(Vec::new());
        }
        prepared => prepared?,
    };
    let Some(suite) = suite else { return Ok(Vec::new()) };
    let products = Arc::new(products);
    // The run of everything has no time for more than one.
    let all = if arguments.suites.is_empty() { &HARTS[HARTS.len() - 1..] } else { &HARTS[..] };
    let boots = |harts| Boots {
        context,
        toolchain,
        products: products.clone(),
        machine: chosen_machine(arguments, Some(harts)),
    };
    let parts = arguments.harts.map_or(all.to_vec(), |harts| vec![harts]).into_iter().map(|harts| {
        let suite = suite.clone();
        boots(harts).part("disk", move |boots, log, show| suite.run(boots, harts, log, show))
    });
    let mut parts: Vec<_> = parts.collect();
    if !arguments.suites.is_empty() && arguments.harts.is_none() && suite.has_exercises() {
        let linux = DebianKernel::prepare_with(context, Servers::InC)?;
        let boots = Boots {
            machine: cli::Machine { machine: Some(linux::MACHINE), ..boots(LINUX_HARTS).machine },
            ..boots(LINUX_HARTS)
        };
        parts.push(
            boots.part("Debian's Linux", move |boots, log, show| {
                suite.run_on_linux(&linux, boots, LINUX_HARTS, log, show)
            }),
        );
    }
    Ok(parts)
}

/// The root task that measures the effects of boot words.
const TOLD_PROGRAM: &str = "micro-words";

/// Boot words of the microkernel, and the findings of its root task.
struct Told {
    name: &'static str,
    harts: u8,
    counters: Counters,
    built_in: &'static str,
    words: &'static str,
    /// Beginnings of the lines with the root task's findings, without `told `.
    found: &'static [&'static str],
}

const TOLD: &[Told] = &[
    Told {
        name: "a microkernel told nothing",
        harts: 1,
        counters: Counters::None,
        built_in: "",
        words: "",
        found: &["root-cnode-bits=13 ", "domains=1", "calls=1", "error-text=", "cores=1"],
    },
    Told {
        name: "a microkernel told everything",
        harts: 1,
        counters: Counters::None,
        built_in: "",
        words: "root-cnode-bits=17 untypeds=70 domains=16 schedule=0:2,15:1,7:3 tick-ms=1 slice=2 error-text=on \
                benchmarks=calls release=16",
        found: &[
            "root-cnode-bits=17 ",
            "untypeds=70",
            "domains=16",
            "schedule=0,7,15",
            "calls=5",
            "log=none",
            "error-text=CNode_Delete: FailedLookup",
            "cores=1",
        ],
    },
    Told {
        name: "a microkernel of 16 for several harts with domains",
        harts: 4,
        counters: Counters::None,
        built_in: "",
        words: "root-cnode-bits=20 domains=16 schedule=0:2,15:1,7:3 release=16",
        found: &["root-cnode-bits=20 ", "domains=16", "schedule=0,7,15", "calls=2", "cores=4"],
    },
    Told {
        name: "a microkernel with words built in",
        harts: 1,
        counters: Counters::Threads,
        built_in: "root-cnode-bits=12 untypeds=75 benchmarks=utilisation",
        words: "untypeds=70",
        found: &["root-cnode-bits=12 ", "untypeds=70", "domains=1", "calls=10", "utilisation=counted", "error-text="],
    },
    Told {
        name: "a microkernel that logs its entries",
        harts: 1,
        counters: Counters::Threads,
        built_in: "",
        words: "benchmarks=entries",
        found: &["calls=6", "log=kept"],
    },
];

/// A start that the microkernel must refuse.
struct Refusal {
    name: &'static str,
    root_task: Vec<u8>,
    harts: u8,
    memory: &'static str,
    words: &'static str,
    /// Part of the line with its reason.
    says: &'static str,
}

/// Returns root tasks that cannot be started, made from a good one, and machines that differ from those that the kernel
/// for one hart was built for.
fn refusals(good: &[u8]) -> Vec<Refusal> {
    let changed = |offset: usize, bytes: &[u8]| {
        let mut content = good.to_vec();
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
        content
    };
    let damaged = "its file is damaged, or no ELF file";
    let root_task = |name, root_task, says| Refusal { name, root_task, harts: 1, memory: MEMORY, words: "", says };
    vec![
        root_task("no root task", Vec::new(), "there is no root task"),
        root_task("a text", b"#!/bin/sh\necho this is no program\n".repeat(200), damaged),
        root_task("half of a file", good[..good.len() / 2].to_vec(), damaged),
        root_task("the header alone", good[..64].to_vec(), damaged),
        // The ELF header's fields: class, machine, entry point, where the program headers are.
        root_task("32 bits", changed(4, &[1]), "it was built for another machine"),
        root_task("another machine", changed(18, &62_u16.to_le_bytes()), "it was built for another machine"),
        root_task(
            "an entry point elsewhere",
            changed(24, &0x7000_0000_u64.to_le_bytes()),
            "it has no instructions where it starts",
        ),
        root_task("program headers elsewhere", changed(32, &(u64::MAX - 7).to_le_bytes()), damaged),
        // The first program header: its virtual address, its sizes.
        root_task(
            "an address of the kernel",
            changed(64 + 16, &0xffff_ffff_8020_0000_u64.to_le_bytes()),
            "it does not fit into an address space",
        ),
        root_task(
            "more than there is memory",
            changed(64 + 40, &(1_u64 << 37).to_le_bytes()),
            "there is not enough memory for the root task",
        ),
        root_task(
            "more than numbers can say",
            changed(64 + 32, &[u64::MAX.to_le_bytes(), u64::MAX.to_le_bytes()].concat()),
            damaged,
        ),
        Refusal {
            name: "too little memory",
            memory: "6M",
            ..root_task("", good.to_vec(), "lies outside of the memory that it lists")
        },
        Refusal {
            name: "a boot word that there is not",
            words: "root-cnode=17",
            ..root_task("", good.to_vec(), "the boot word `root-cnode=17` is refused: there is no such word")
        },
        Refusal {
            name: "more domains than there can be",
            words: "domains=17",
            ..root_task("", good.to_vec(), "its value is no number from 1 to 16")
        },
        Refusal {
            name: "a capability space that is too small",
            words: "root-cnode-bits=8",
            ..root_task("", good.to_vec(), "the root task's capabilities do not fit into its capability space")
        },
        Refusal {
            name: "a capability space that is larger than the memory",
            words: "root-cnode-bits=24",
            ..root_task("", good.to_vec(), "there is not enough memory")
        },
        Refusal {
            name: "more harts than configured",
            harts: 2,
            ..root_task("", good.to_vec(), "the machine has 2 harts")
        },
    ]
}

/// The parts beside the machine's suite, which a filter chooses by these names.
const PARTS: [&str; 22] = [
    FAILING_ALLOCATIONS,
    "power cut",
    HOST_FOLDER,
    POWER_CUTS_OF_A_VOLUME,
    RANDOM_CUTS,
    ROOT_ON_A_DISK,
    ROOT_BEHIND_PCI,
    PARTITIONS,
    "restart",
    "status of the shell",
    "backtraces of programs",
    "a program from outside the tree",
    "standard library",
    "bundle",
    "boot loader",
    "EFI of U-Boot",
    "EFI of EDK2",
    "profile",
    "trace",
    "faults",
    EXCHANGE,
    "soak",
];

/// The program with the suite of programs with the standard library.
const STD_SUITE: &str = "std-suite";

/// The part that cuts the power off a machine that writes to a volume.
const POWER_CUTS_OF_A_VOLUME: &str = "cut volume";

/// The part that cuts the power off at random moments, and the word of the environment that says how often.
const RANDOM_CUTS: &str = "random cuts";
const NUMBER_OF_RANDOM_CUTS: &str = "COPS_CUTS";
const USUAL_RANDOM_CUTS: u64 = 10;

/// The part that runs a portion of the suite with a disk as the root of all paths.
const ROOT_ON_A_DISK: &str = "root on a disk";

/// Parts of the names of the tests that run with a disk as the root. The programs of an archive cannot be changed, and
/// those of a disk can.
const ON_A_ROOT: [&str; 12] = [
    "process::",
    "ext4::",
    "shell::",
    "fork::",
    "file::written",
    "file::appending",
    "file::positions",
    "file::vectors",
    "file::directories",
    "file::duplicates",
    "file::mounts",
    "file::processes",
];

/// The part with all devices behind PCI Express, and the tests that it runs.
const ROOT_BEHIND_PCI: &str = "root behind PCI";
const BEHIND_PCI: [&str; 4] = ["ext4::", "network::", "random::", "file::vectors"];

/// The part with disks that have tables of partitions.
const PARTITIONS: &str = "partitions";

/// Bytes of a disk that is the root.
const ROOT_SIZE: u64 = 128 << 20;

/// The part with a folder of this host.
const HOST_FOLDER: &str = "folder of the host";

/// The part with two machines.
const EXCHANGE: &str = "exchange between machines";

/// The part with failing allocations.
const FAILING_ALLOCATIONS: &str = "failing allocations";

/// Returns whether one of these parts runs: if there is no filter, or the filter is in its name, where a hyphen stands
/// for a space.
fn is_meant(filter: Option<&str>, part: &str) -> bool {
    filter.is_none_or(|filter| part.contains(&filter.replace('-', " ")))
}

/// Returns whether a kernel that is a suite runs: if there is no filter, or the filter is in its name.
fn has_name(filter: Option<&str>, suite: &str) -> bool {
    filter.is_none_or(|filter| suite.contains(filter))
}

/// Returns why one of these parts cannot run on a board, if it cannot.
fn unsuited(board: &Board, part: &str) -> Option<String> {
    let lacks = |part| board.lacks.contains(&part);
    match part {
        "power cut" | POWER_CUTS_OF_A_VOLUME | RANDOM_CUTS | ROOT_ON_A_DISK | PARTITIONS
            if lacks(board::Equipment::Disk) =>
        {
            Some("the board has no disk".into())
        }
        HOST_FOLDER if lacks(board::Equipment::Disk) => Some("the board cannot be given a folder".into()),
        "profile" if lacks(board::Equipment::FirstHart) => Some("the board's first hart runs no kernel".into()),
        "bundle" | "boot loader" | "EFI of U-Boot" | "EFI of EDK2" | ROOT_BEHIND_PCI if !board.is_default() => {
            Some(format!("it is for the board {}", Board::DEFAULT))
        }
        _ => None,
    }
}

/// Modules of the machine's suite whose tests reach the interrupt controller, by a device or by what its interrupts
/// interrupt.
const OF_INTERRUPTS: [&str; 8] =
    ["interrupt", "network", "preemption", "readiness", "scheduling", "server", "terminal", "time"];

/// Modules of the machine's suite, beside those, whose tests end, interrupt or change programs' visits to user mode.
const OF_VISITS: [&str; 10] =
    ["coroutines", "fork", "hostile", "models", "privilege", "ring", "signals", "thread", "user_interrupt", "worker"];

/// Modules of the machine's suite, beside those, whose tests keep all harts busy with programs that come and go.
const OF_HARTS: [&str; 2] = ["fairness", "process"];

/// Tests of the machine's suite that run only on one hart whose clock counts instructions: `tests --counted`.
const COUNTED: [&str; 1] = ["fairness::calls_of_every_family_keep_within_a_budget"];

/// Returns the parts of names that choose among the tests of the machine's suite; none for all tests.
///
/// Every test runs on one hart and on several of the first machine. On the others those are left out in which the
/// machine makes no difference: another interrupt controller differs for the tests that reach it and, on several harts,
/// for those whose visits to user mode messages of other harts end; a back end of user interrupts changes these visits,
/// and those alone. A machine or a number of harts that the user has chosen runs all.
fn names(
    arguments: &cli::Test,
    board: &Board,
    machine: Variant,
    harts: u8,
    user_interrupts: Option<cli::UserInterrupts>,
) -> Vec<String> {
    let is_chosen = arguments.machine.is_some() || arguments.harts.is_some() || !board.is_default();
    let parts = |modules: &[&str]| modules.iter().map(|module| format!("{module}::")).collect();
    match &arguments.filter {
        Some(filter) => vec![filter.clone()],
        None if is_chosen || machine == Variant::Aia && user_interrupts.is_none() => Vec::new(),
        None if harts != 1 => parts(&[&OF_INTERRUPTS[..], &OF_VISITS, &OF_HARTS].concat()),
        None if user_interrupts.is_some() => parts(&[&OF_INTERRUPTS[..], &OF_VISITS].concat()),
        None => parts(&OF_INTERRUPTS),
    }
}

/// Makes an empty image of a disk beside a log; returns its path.
fn empty_disk(log: &Path) -> Result<PathBuf> {
    let image = log.with_extension("disk");
    if let Some(directory) = image.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let file = std::fs::File::create(&image).with_context(|| format!("cannot make {}", image.display()))?;
    file.set_len(DISK_SIZE)?;
    Ok(image)
}

/// Returns the machine of the arguments, with this number of harts.
fn chosen_machine(arguments: &cli::Test, harts: Option<u8>) -> cli::Machine {
    cli::Machine {
        harts,
        memory: Some(MEMORY.into()),
        machine: arguments.machine,
        user_interrupts: arguments.user_interrupts,
    }
}

/// Returns the machines of a board to test on: all that the host's QEMU has, or those that the user chose.
fn machines(board: &Board, machine: Option<Variant>, harts: Option<u8>) -> Vec<(Variant, u8)> {
    let harts = harts.map_or(HARTS.to_vec(), |harts| vec![harts]);
    let is_meant = |variant: Variant| machine.map_or(variant != Variant::Uintc, |chosen| chosen == variant);
    let is_there = |variant: Variant| board.has(variant) && is_meant(variant);
    let machines = Variant::value_variants().iter().filter(|variant| is_there(**variant));
    machines.flat_map(|machine| harts.iter().map(|harts| (*machine, *harts))).collect()
}

/// Acts of the suite that die, what the line before the backtrace says, and functions of the backtrace in their order.
const DEATHS: [(&str, &str, &[&str]); 5] = [
    ("panic", " \"main\": panicked at ", &["panic.rs", "core::panicking::panic_fmt", "tests::acts::act"]),
    ("panic-named", " \"connection 7\": panicked at ", &["panic.rs", "core::panicking::panic_fmt", "tests::acts::"]),
    ("read-null", "segmentation fault: ", &["tests::acts::read", "tests::acts::act"]),
    ("overflow-stack", "stack overflow: ", &["tests::acts::overflow", "tests::acts::overflow"]),
    ("execute-data", "segmentation fault: ", &["apps/tests/src/acts.rs"]),
];

/// Beginnings of names in the trace of the act `traced` of the suite: those that it gives, the place of a spawn, the
/// program's own, and that of its worker in the kernel.
const TRACED: [&str; 8] = [
    "traced consumer",
    "traced span",
    "traced mark",
    "traced sum",
    "apps/tests/src/acts.rs:",
    "main",
    "tests [",
    "worker 0 of tests",
];

/// Number of records that the kernel keeps for each hart then.
const TRACED_RECORDS: u32 = 1 << 16;

/// Outcome of cuts of the power, until the first after which something was not as it has to be.
#[derive(Default)]
pub struct Cuts {
    /// Their number.
    pub cuts: u64,
    /// Files that were not as it was acknowledged.
    pub lost: Vec<String>,
    /// Volumes that could not be read, or were not whole.
    pub unclean: Vec<String>,
}

/// Cuts the power off machines at random moments while a program makes all kinds of changes of a volume.
///
/// # Errors
///
/// A machine has ended before its cut, or the volume cannot be made.
pub fn count_cuts(context: &Context, toolchain: &Toolchain, products: &Products, cuts: u64) -> Result<Cuts> {
    let machine = cli::Machine { harts: None, memory: None, machine: None, user_interrupts: None };
    let boots = Boots { context, toolchain, products: Arc::new(products.clone()), machine };
    let log = context.log("cuts");
    boots.cut_at_random(cuts, 1, &log, &mut |line: &str| eprintln!("{line}"))
}

/// The common part of one machine's boots.
#[derive(Clone)]
pub struct Boots<'a> {
    /// The tree and what is known of it.
    pub context: &'a Context,
    /// The emulator.
    pub toolchain: &'a Toolchain,
    /// The images.
    pub products: Arc<Products>,
    /// The machine that was chosen.
    pub machine: cli::Machine,
}

/// The results of a part, and the parts that it has prepared.
type Ended<'a> = (Found, Vec<Part<'a>>);

/// A part of the tests that runs in a lane.
struct Part<'a> {
    title: String,
    load: Load,
    run: Box<dyn FnOnce(Show) -> Ended<'a> + Send + 'a>,
}

impl<'a> Part<'a> {
    fn new(title: impl Into<String>, load: Load, run: impl FnOnce(Show) -> Found + Send + 'a) -> Part<'a> {
        Part { title: title.into(), load, run: Box::new(|show| (run(show), Vec::new())) }
    }

    /// Returns a part that only says why it cannot run.
    fn skipped(name: String, reason: String) -> Part<'a> {
        Part::new(name.clone(), Load::One, move |show| {
            show(&format!("test {name} ... skipped: {reason}"));
            Ok((Tally { skipped: 1, ..Tally::default() }, Vec::new()))
        })
    }

    /// Returns a part without tests that prepares other parts.
    fn before(title: &str, prepare: impl FnOnce(Show) -> Result<Vec<Part<'a>>> + Send + 'a) -> Part<'a> {
        let run = |show: Show| match prepare(show) {
            Ok(parts) => (Ok((Tally::default(), Vec::new())), parts),
            Err(error) => (Err(error), Vec::new()),
        };
        Part { title: title.into(), load: Load::One, run: Box::new(run) }
    }

    fn into_job<'j>(self, findings: &'j Mutex<&mut Findings>) -> Job<'j>
    where
        'a: 'j,
    {
        let Part { title, load, run } = self;
        Job::new(load, move |show| {
            show(&format!("\n== {title}"));
            let begun = Instant::now();
            let (found, prepared) = run(show);
            interrupt::stand_still_if_requested();
            findings.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).add_from(begun, title, found);
            prepared.into_iter().map(|part| part.into_job(findings)).collect()
        })
    }
}

/// Runs parts in lanes.
fn run_parts(parts: Vec<Part<'_>>, findings: &mut Findings) {
    let findings = Mutex::new(findings);
    let jobs = parts.into_iter().map(|part| part.into_job(&findings));
    lanes::run(jobs.collect(), cores(), &mut std::io::stdout());
}

impl<'a> Boots<'a> {
    /// Returns a part of the tests, which gets a log of its own.
    fn part(&self, name: &str, run: impl FnOnce(&Boots<'a>, &Path, Show) -> Found + Send + 'a) -> Part<'a> {
        let machine = self.machine.machine.unwrap_or(self.context.board.defaults.machine);
        let harts = self.machine.harts.unwrap_or(self.context.board.defaults.harts);
        let title = format!("{name}, {machine}, {harts} hart{}", if harts == 1 { "" } else { "s" });
        let log = self.context.log(&format!("test-{}-{machine}-{harts}", name.replace(' ', "-")));
        let boots = self.clone();
        let run = move |show: Show| {
            let found = run(&boots, &log, show);
            if found.as_ref().is_ok_and(|(_, failures)| !failures.is_empty()) {
                show(&format!("The machine's serial log is {}", log.display()));
            }
            found
        };
        Part::new(title, if harts == 1 { Load::One } else { Load::Several }, run)
    }

    /// Returns a run of the Unix kernel's suite: of the tests with one of these parts in their names, or of all.
    fn system(&self, name: String, names: Vec<String>) -> Result<Part<'a>> {
        if !self.products.programs.iter().any(|program| program == PROGRAM) {
            bail!("the workspace has no program `{PROGRAM}`");
        }
        let lacking = self.context.board.lacks.iter().flat_map(|part| ["--lacks", part.name()]).map(String::from);
        let command_line = command_line(PROGRAM, &lacking.chain(names.iter().cloned()).collect::<Vec<_>>())?;
        Ok(self.part(&name, move |boots, log, show| {
            let suites =
                build::packages_of_suites(&boots.context.workspace, None).flat_map(|package| package.programs());
            let suites: Vec<_> = suites.map(|program| &*program.name).collect();
            chosen(boots.suite(log, &boots.products.kernel, command_line, show)?, &names, &suites)
        }))
    }
}

/// Returns the files at the top of an image's volume, whose journal is replayed, by way of an empty folder.
fn files_of(image: &Path, folder: &Path) -> Result<Files> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    image::copy_files(image, |name| Some(folder.join(String::from_utf8_lossy(name).into_owned())))?;
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries
        .map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?))
        })
        .collect()
}

/// Random moments (splitmix64).
pub struct Moments(pub u64);

impl Moments {
    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 31
    }
}

impl Boots<'_> {
    /// Runs the tests that need a clock that counts instructions, or the filtered part of them.
    fn counted(&self, log: &Path, filter: Option<String>, show: Show) -> Found {
        let words: Vec<_> = ["--counted".to_string()].into_iter().chain(filter).collect();
        let line = command_line(PROGRAM, &words)?;
        follow(&mut self.start_with(Clock::SlowInstructions, log, &self.products.kernel, line)?, show)
    }

    fn start(&self, log: &Path, kernel: &Path, command_line: String) -> Result<Guest> {
        self.start_with(Clock::Host, log, kernel, command_line)
    }

    fn start_with(&self, clock: Clock, log: &Path, kernel: &Path, command_line: String) -> Result<Guest> {
        let mut configuration = self.context.configuration(&self.products, &self.machine, command_line);
        configuration.kernel = kernel.to_path_buf();
        configuration.set_clock(clock);
        let has_disks = !self.context.board.lacks.contains(&board::Equipment::Disk);
        if has_disks && self.products.programs.iter().any(|program| program == PROGRAM) {
            configuration.disks.push(empty_disk(log)?);
            if image::tools_are_there() {
                let volume = log.with_extension("volume");
                image::make(&volume, VOLUME_SIZE, None)?;
                configuration.disks.push(volume);
            }
        }
        Guest::start(&self.toolchain.qemu, &self.context.board, &configuration, log, Echo::LogOnly)
    }

    /// Cuts the power off a machine after a program has made data lasting on its disk, and looks for it in a second
    /// boot.
    fn power_cut(&self, log: &Path, show: Show) -> Found {
        let image = empty_disk(log)?;
        let boot = |act: &str, line: &str| {
            let command_line = command_line(PROGRAM, &["--act", act].map(String::from))?;
            let mut configuration = self.context.configuration(&self.products, &self.machine, command_line);
            configuration.disks.push(image.clone());
            let board = &self.context.board;
            let mut guest = Guest::start(&self.toolchain.qemu, board, &configuration, log, Echo::LogOnly)?;
            guest.wait_for(line, SILENCE_LIMIT, |printed| (printed == line).then_some(()))?;
            guest.end();
            anyhow::Ok(())
        };
        boot("write-disk", "lasting")?;
        boot("check-disk", "the bytes are there")?;
        show("what the disk had made lasting was there after the power was cut off");
        Ok((Tally::PASSED, Vec::new()))
    }

    /// Gives a machine a folder of this host, which both change.
    fn host_folder(&self, log: &Path, show: Show) -> Found {
        let folder = log.with_extension("folder");
        let _ = std::fs::remove_dir_all(&folder);
        let below = folder.join("below");
        std::fs::create_dir_all(&below).with_context(|| format!("cannot make {}", below.display()))?;
        std::fs::write(folder.join("given"), "by the host")?;
        std::os::unix::fs::symlink("../given", below.join("link"))?;
        let program = self.products.files.iter().find(|(name, _)| name == PROGRAM);
        let (_, program) = program.context("the suite's program was not built")?;
        std::fs::copy(program, folder.join("program"))?;
        let command_line = command_line(PROGRAM, &["--act", "use-share"].map(String::from))?;
        let mut configuration = self.context.configuration(&self.products, &self.machine, command_line);
        configuration.share = Some(folder.clone());
        let board = &self.context.board;
        let mut guest = Guest::start(&self.toolchain.qemu, board, &configuration, log, Echo::LogOnly)?;
        let said = |line: &str| line.starts_with("the folder is").then(|| line.to_string());
        let line = "the host may change it";
        let early =
            guest.wait_for(
                line,
                SILENCE_LIMIT,
                |printed| {
                    if printed == line { Some(None) } else { said(printed).map(Some) }
                },
            )?;
        if let Some(wrong) = early {
            bail!("{wrong}");
        }
        let large = std::fs::read(folder.join("made/large"))?;
        if large.len() != 200_003 || &large[100_000..100_007] != b"changed" || large[5000] != 0xee {
            bail!("the file of the machine has other bytes on this host");
        }
        std::fs::write(folder.join("given"), "other bytes, and more of them")?;
        std::fs::rename(folder.join("log"), folder.join("old-log"))?;
        std::fs::write(folder.join("log"), "another")?;
        std::fs::write(folder.join("being-made"), "changed by the host")?;
        std::fs::rename(folder.join("being-made"), folder.join("answer"))?;
        let outcome = guest.wait_for("the folder is right", SILENCE_LIMIT, said)?;
        if outcome != "the folder is right" {
            bail!("{outcome}");
        }
        guest.end();
        let expected = [("given", "other bytes, and more of them"), ("log", "another"), ("old-log", "One two")];
        for (name, expected) in expected {
            let found = std::fs::read_to_string(folder.join(name))?;
            if found != expected {
                bail!("{name} is on this host {found:?}, and not {expected:?}");
            }
        }
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder.join("made"))? {
            names.push(entry?.file_name());
        }
        names.sort();
        if names != ["large", "replaced"] {
            bail!("the folder has other names on this host: {names:?}");
        }
        std::fs::remove_dir_all(&folder)?;
        show("machine and host saw each other's changes of a folder");
        Ok((Tally::PASSED, Vec::new()))
    }

    /// Cuts the power off a machine that writes to a volume, several times, and looks on this host whether the volume
    /// is whole and has every file that was acknowledged. Each boot goes on with the volume of the one before, whose
    /// journal it replays.
    fn volume_cuts(&self, log: &Path, show: Show) -> Found {
        if !image::tools_are_there() {
            show("left out: e2fsprogs are not installed");
            return Ok((Tally::PASSED, Vec::new()));
        }
        let volume = log.with_extension("volume");
        image::make(&volume, VOLUME_SIZE, None)?;
        for files in CUTS {
            let command_line = command_line(PROGRAM, &["--act", "write-volume"].map(String::from))?;
            let mut configuration = self.context.configuration(&self.products, &self.machine, command_line);
            configuration.disks.push(volume.clone());
            let board = &self.context.board;
            let mut guest = Guest::start(&self.toolchain.qemu, board, &configuration, log, Echo::LogOnly)?;
            let line = format!("acknowledged {files}");
            guest.wait_for(&line, SILENCE_LIMIT, |printed| (printed == line).then_some(()))?;
            guest.end();
            // The boots after this one find it as it is now.
            let copy = log.with_extension("replayed");
            std::fs::copy(&volume, &copy)?;
            image::replay(&copy, files)?;
            image::check(&copy)?;
            show(&format!("after the cut behind file {files} the volume was whole, with all files that it had"));
        }
        Ok((Tally::PASSED, Vec::new()))
    }

    /// Cuts the power off at random moments while a program makes all kinds of changes of a volume, and compares the
    /// volume each time with the changes that were announced and acknowledged, once with its journal replayed by e2fsck
    /// and once by the library.
    fn random_cuts(&self, log: &Path, show: Show) -> Found {
        if !image::tools_are_there() {
            show("left out: e2fsprogs are not installed");
            return Ok((Tally::PASSED, Vec::new()));
        }
        let cuts = match std::env::var(NUMBER_OF_RANDOM_CUTS) {
            Ok(text) => text.parse().with_context(|| format!("{NUMBER_OF_RANDOM_CUTS}={text} is no number"))?,
            Err(_) => USUAL_RANDOM_CUTS,
        };
        let seed = std::env::var("COPS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
        let found = self.cut_at_random(cuts, seed, log, show)?;
        match found.lost.into_iter().chain(found.unclean).next() {
            None => Ok((Tally::PASSED, Vec::new())),
            Some(failure) => bail!("{failure}"),
        }
    }

    /// Cuts the power off so many times, or until something is not as it has to be.
    fn cut_at_random(&self, cuts: u64, seed: u64, log: &Path, show: Show) -> Result<Cuts> {
        let (volume, copy) = (log.with_extension("volume"), log.with_extension("replayed"));
        image::make(&volume, VOLUME_SIZE, None)?;
        let (mut storm, mut moments) = (Storm::default(), Moments(seed));
        let mut all = Cuts::default();
        for cut in 1..=cuts {
            let moment = Duration::from_millis(20 + moments.next() % 1500);
            self.storm_until(moment, cut + (seed << 10), &volume, &mut storm, log)?;
            // The machine goes on with what its own library replays; e2fsck may see less of the change under way.
            for replayer in ["e2fsck", "the library"] {
                std::fs::copy(&volume, &copy)?;
                let mut seen = storm.clone();
                let looked = || {
                    if replayer == "e2fsck" {
                        image::replay_by_linux(&copy)?;
                    }
                    let found = files_of(&copy, &log.with_extension("files"))?;
                    image::check(&copy)?;
                    anyhow::Ok(found)
                };
                let tell = |error: anyhow::Error| {
                    format!("after cut {cut} of seed {seed}, {replayer} had replayed {}: {error:#}", copy.display())
                };
                match looked() {
                    Err(error) => all.unclean.push(tell(error)),
                    Ok(found) => all.lost.extend(seen.compare(found).err().map(tell)),
                }
                if replayer == "the library" {
                    storm = seen;
                }
            }
            all.cuts = cut;
            if !all.lost.is_empty() || !all.unclean.is_empty() {
                break;
            }
            if cut % 10 == 0 || cut == cuts {
                show(&format!("{cut} cuts of seed {seed}: whole, with all of {} changes", storm.lasting()));
            }
        }
        Ok(all)
    }

    /// Boots a machine that changes a volume, and cuts its power off so long after the first change.
    fn storm_until(&self, moment: Duration, boot: u64, volume: &Path, storm: &mut Storm, log: &Path) -> Result<()> {
        let words = ["--act", "storm-volume", &boot.to_string()].map(String::from);
        let harts = self.machine.harts.unwrap_or(HARTS[(boot / 2) as usize % HARTS.len()]);
        let machine = cli::Machine { harts: Some(harts), ..self.machine.clone() };
        let line = command_line(PROGRAM, &words)?;
        let mut configuration = self.context.configuration(&self.products, &machine, line);
        configuration.disks.push(volume.to_path_buf());
        let board = &self.context.board;
        let mut guest = Guest::start(&self.toolchain.qemu, board, &configuration, log, Echo::LogOnly)?;
        let mut taken = Ok(());
        guest.wait_for("the first change", SILENCE_LIMIT, |line| {
            taken = storm.take(line);
            (taken.is_err() || line.starts_with("begin ")).then_some(())
        })?;
        taken?;
        let mut take_all = |guest: &mut Guest, limit| {
            let mut taken = Ok(());
            let failure = guest.wait_for("the cut", limit, |line| {
                taken = storm.take(line);
                taken.is_err().then_some(())
            });
            taken.map(|()| failure.err())
        };
        match take_all(&mut guest, moment)? {
            Some(Failure { kind: FailureKind::TooLate { .. }, .. }) => {}
            failure => bail!("the machine has ended before the cut: {failure:?}"),
        }
        guest.end();
        take_all(&mut guest, END_LIMIT)?;
        Ok(())
    }

    /// Runs a portion of the suite in a machine whose root of all paths is a disk, which is whole afterwards.
    fn root_on_a_disk(&self, log: &Path, show: Show) -> Found {
        self.root_on(&self.context.board, &ON_A_ROOT, log, show)
    }

    /// Runs the tests of files and of the network with disks, card and source of random bytes behind PCI Express.
    fn root_behind_pci(&self, log: &Path, show: Show) -> Found {
        let board = Board::load(&self.context.workspace.boards().join("qemu-virt-pci.toml"))?;
        self.root_on(&board, &BEHIND_PCI, log, show)
    }

    fn root_on(&self, board: &Board, names: &[&str], log: &Path, show: Show) -> Found {
        if !image::tools_are_there() {
            show("left out: e2fsprogs are not installed");
            return Ok((Tally::PASSED, Vec::new()));
        }
        let folder = log.with_extension("root.d");
        for name in ["bin", "dev", "etc", "proc", "run", "tmp"] {
            let path = folder.join(name);
            std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        for (name, file) in &self.products.files {
            std::fs::copy(file, folder.join("bin").join(name))
                .with_context(|| format!("cannot copy {}", file.display()))?;
        }
        let (root, volume) = (log.with_extension("root"), log.with_extension("volume"));
        image::make(&root, ROOT_SIZE, Some(&folder))?;
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        image::make(&volume, VOLUME_SIZE, None)?;
        let names: Vec<_> = names.iter().copied().map(String::from).collect();
        let line = format!("root=/dev/vdc rw {}", command_line(PROGRAM, &names)?);
        let mut configuration = self.context.configuration(&self.products, &self.machine, line);
        configuration.disks.extend([empty_disk(log)?, volume, root.clone()]);
        let mut guest = Guest::start(&self.toolchain.qemu, board, &configuration, log, Echo::LogOnly)?;
        let found = follow(&mut guest, show)?;
        guest.end();
        image::check(&root).context("the root after the end of the machine")?;
        Ok(found)
    }

    /// Mounts volumes in partitions of two disks, one with each kind of table, and more that a list of file systems
    /// says, and looks at the volumes after the end of the machine.
    fn partitions(&self, log: &Path, show: Show) -> Found {
        if !image::tools_are_there() {
            show("left out: e2fsprogs are not installed");
            return Ok((Tally::PASSED, Vec::new()));
        }
        /// The volumes are in the second partitions; the first ones have none.
        const TEXT: &str = "mkdir /gpt; mkdir /mbr; mkdir /bound; mkdir /small
            echo '# device directory kind options' > /etc/fstab
            echo '/dev/vda2 /gpt ext4 errors=remount-ro 0 2' >> /etc/fstab
            echo '/dev/vdb2 /mbr ext4 defaults,ro 0 2' >> /etc/fstab
            echo '/gpt/below /bound none bind,ro 0 0' >> /etc/fstab
            echo 'none /small tmpfs size=64k 0 0' >> /etc/fstab
            mount /dev/vda2 /gpt && mkdir /gpt/below && echo early > /gpt/below/note && umount /gpt || exit 3
            mount -a && mount -a || exit 4
            cat /bound/note && echo late > /gpt/below/note && cat /bound/note || exit 5
            echo no > /mbr/x && exit 6; echo no > /bound/x && exit 7
            mount -o remount,rw /mbr && echo kept > /mbr/note || exit 8
            mount /dev/vda1 /small && exit 9
            echo '/dev/vda9 /none ext4' >> /etc/fstab; mount -a && exit 10
            umount /bound && umount /gpt && umount /mbr || exit 11
            mount /dev/vda2 /gpt && cat /gpt/below/note && mv /gpt/below/note /gpt/note; exit 42";
        let volume = log.with_extension("volume");
        let tables = [(image::Table::Gpt, "gpt"), (image::Table::Mbr, "mbr")];
        let disks = tables.map(|(_, name)| log.with_extension(name));
        for ((table, _), disk) in tables.iter().zip(&disks) {
            image::make(&volume, VOLUME_SIZE, None)?;
            image::make_partitioned(disk, *table, &volume)?;
        }
        let text = TEXT.lines().map(str::trim).collect::<Vec<_>>().join("; ");
        let line = command_line("shell", &["-c".into(), text])?;
        let mut configuration = self.context.configuration(&self.products, &self.machine, line);
        configuration.disks.extend(disks.iter().cloned());
        let mut guest = Guest::start(&self.toolchain.qemu, &self.context.board, &configuration, log, Echo::LogOnly)?;
        match guest.wait_for_end(SILENCE_LIMIT) {
            Err(Failure { kind: FailureKind::EndedBadly { status, .. }, .. }) if status.code() == Some(42) => {}
            Ok(()) => bail!("the machine ended as if the shell's text had ended before its end"),
            Err(failure) => return Err(failure.into()),
        }
        for (disk, expected) in disks.iter().zip(["late\n", "kept\n"]) {
            image::take_volume(disk, &volume)?;
            image::check(&volume).with_context(|| format!("the volume of {}", disk.display()))?;
            let files = files_of(&volume, &log.with_extension("files"))?;
            let note = files.get("note").context("the volume has no note")?;
            if note != expected.as_bytes() {
                bail!("the note of {} is {:?}", disk.display(), String::from_utf8_lossy(note));
            }
        }
        show("volumes in partitions were mounted by a list, and are whole");
        Ok((Tally::PASSED, Vec::new()))
    }

    /// Lets a program restart the machine, which then starts it again.
    fn restart(&self, log: &Path, show: Show) -> Found {
        let arguments = ["--act", "restart"].map(String::from);
        let mut guest = self.start(log, &self.products.kernel, command_line(PROGRAM, &arguments)?)?;
        for time in ["first", "second", "third"] {
            let expected = format!("the {time} start of the machine");
            guest.wait_for(&expected, SILENCE_LIMIT, |line| line.starts_with("COPS: ").then_some(()))?;
            guest.wait_for("its restart", SILENCE_LIMIT, |line| (line == "restarting").then_some(()))?;
        }
        guest.end();
        show("the machine was restarted and started again");
        Ok((Tally::PASSED, Vec::new()))
    }

    /// Lets the shell run a text with spaces and quotes, whose status is to be that of the machine.
    fn status(&self, log: &Path, show: Show) -> Found {
        let arguments = ["-c", r#"echo "a \"b\"" 'c  d' | cat; exit 3"#].map(String::from);
        let mut guest = self.start(log, &self.products.kernel, command_line("shell", &arguments)?)?;
        guest.wait_for("the output of the text", SILENCE_LIMIT, |line| (line == r#"a "b" c  d"#).then_some(()))?;
        match guest.wait_for_end(END_LIMIT) {
            Err(Failure { kind: FailureKind::EndedBadly { status, .. }, .. }) if status.code() == Some(3) => {
                show("the machine ended with the status of the shell");
                Ok((Tally::PASSED, Vec::new()))
            }
            Ok(()) => bail!("the machine ended as if the shell had not failed"),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Lets a program die in several ways, and looks for the functions in its backtrace.
    fn backtraces(&self, log: &Path, show: Show) -> Found {
        let mut tally = Tally::default();
        let mut failures = Vec::new();
        let mut programs = Programs::new(self.products.files.clone());
        for (act, expected, functions) in DEATHS {
            let arguments = ["--act", act].map(String::from);
            let mut guest = self.start(log, &self.products.kernel, command_line(PROGRAM, &arguments)?)?;
            let mut reason = String::new();
            let is_there = |line: &str| {
                let parsed = abi_unix::callers::Callers::parse(line).map(|_| line.to_string());
                if parsed.is_none() {
                    reason = line.to_string();
                }
                parsed
            };
            let line = guest.wait_for("the callers of a program that dies", SILENCE_LIMIT, is_there)?;
            guest.end();
            let backtrace = programs.explain(&line);
            let mut lines = core::iter::once(&reason).chain(&backtrace);
            let mut wanted = core::iter::once(&expected).chain(functions);
            let missing = wanted.find(|text| !lines.any(|line| line.contains(**text)));
            show(&format!("test backtraces::{act} ... {}", if missing.is_none() { "ok" } else { "FAILED" }));
            match missing {
                None => tally.passed += 1,
                Some(text) => {
                    tally.failed += 1;
                    let backtrace = backtrace.join("\n");
                    failures.push(format!("{text} is not where it belongs in\n{reason}\n{line}\n{backtrace}"));
                }
            }
        }
        Ok((tally, failures))
    }

    /// Unpacks a bundle as a user does, checks its sums and boots it.
    fn bundle(&self, _: &Path, show: Show) -> Found {
        let bundle = dist::make(self.context, &self.products)?;
        let mut command = children::command("sh");
        let text = r#"tar -xzf "$1" && cd cops-* && sha256sum -c --quiet SHA256SUMS && ./boot --harts 1 shell -c 'echo "a  b"; exit 3'"#;
        command.args(["-c", text, "sh"]).arg(&bundle);
        let output = in_own_directory("bundle", |directory| {
            let output = children::output(command.current_dir(directory), Ending::Kill, END_LIMIT);
            output.context("the bundle did not boot and end")
        })?;
        let said = String::from_utf8_lossy(&output.stdout);
        if output.status.code() != Some(3) || !said.lines().any(|line| line.trim_end() == "a  b") {
            bail!("{}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        show("the bundle's shell did its line, and its status came back");
        Ok((Tally::PASSED, Vec::new()))
    }

    /// Makes the file for EFI firmware; returns the configuration of a machine without kernel and archive of its own.
    fn efi(&self, directory: &Path, words: &str) -> Result<Configuration> {
        let loader = build::efi_loader(&self.context.workspace, self.toolchain, &self.context.progress)?;
        let kernel = boot_loader::image(&self.products.kernel)?;
        let file = efi::file(&std::fs::read(loader)?, &kernel, &self.products.archive_of("hello")?, words)?;
        std::fs::write(directory.join(efi::FILE), file)?;
        let mut configuration = self.context.configuration(&self.products, &self.machine, String::new());
        configuration.initramfs = directory.join("empty");
        std::fs::write(&configuration.initramfs, "")?;
        Ok(configuration)
    }

    /// Lets U-Boot fetch the file for EFI firmware over the network, and start it.
    fn efi_of_u_boot(&self, log: &Path, show: Show) -> Found {
        in_own_directory("efi-u-boot", |directory| {
            let mut configuration = self.efi(directory, "init=/bin/hello")?;
            std::fs::write(directory.join(boot_loader::SCRIPT), boot_loader::efi_script())?;
            configuration.kernel = boot_loader::U_BOOT.into();
            configuration.network = Network::Files { directory: directory.into(), first: boot_loader::SCRIPT };
            self.says_hello(&self.toolchain.qemu, &configuration, log)?;
            show("U-Boot's EFI started the file, and its program ran");
            Ok((Tally::PASSED, Vec::new()))
        })
    }

    /// Lets EDK2 start the file for EFI firmware, with boot words of the user's instead of the file's.
    fn efi_of_edk2(&self, log: &Path, show: Show) -> Found {
        let [code, variables] = boot_loader::edk2(&self.context.progress)?;
        in_own_directory("efi-edk2", |directory| {
            let mut configuration = self.efi(directory, "init=/bin/nothing")?;
            configuration.kernel = directory.join(efi::FILE);
            configuration.command_line = "init=/bin/hello".into();
            let own = directory.join("variables");
            std::fs::copy(variables, &own)?;
            configuration.flash = Some([code, own]);
            let qemu = emulator::of_benchmarks(self.context, &self.toolchain.qemu);
            self.says_hello(&qemu, &configuration, log)?;
            show("EDK2 started the file with words of its user, and its program ran");
            Ok((Tally::PASSED, Vec::new()))
        })
    }

    /// Boots a machine whose program greets, and ends.
    fn says_hello(&self, qemu: &Path, configuration: &Configuration, log: &Path) -> Result<()> {
        let mut guest = Guest::start(qemu, &self.context.board, configuration, log, Echo::LogOnly)?;
        let expected = "Hello, world!";
        guest.wait_for(expected, SILENCE_LIMIT, |line| (line.trim() == expected).then_some(()))?;
        Ok(guest.wait_for_end(END_LIMIT)?)
    }

    /// Lets U-Boot fetch the kernel's image and an archive over the network, and start them.
    fn boot_loader(&self, log: &Path, show: Show) -> Found {
        in_own_directory("boot-loader", |directory| {
            let archive = self.products.archive_of("hello")?;
            let write = |name: &str, content: &[u8]| std::fs::write(directory.join(name), content);
            write(boot_loader::IMAGE, &boot_loader::image(&self.products.kernel)?)?;
            write("initramfs.cpio", &archive)?;
            write(boot_loader::SCRIPT, &boot_loader::script("init=/bin/hello"))?;
            // QEMU's own archive, which U-Boot replaces.
            let empty = directory.join("empty");
            std::fs::write(&empty, "")?;
            let mut configuration = self.context.configuration(&self.products, &self.machine, String::new());
            configuration.kernel = boot_loader::U_BOOT.into();
            configuration.initramfs = empty;
            configuration.network = Network::Files { directory: directory.into(), first: boot_loader::SCRIPT };
            let mut guest =
                Guest::start(&self.toolchain.qemu, &self.context.board, &configuration, log, Echo::LogOnly)?;
            for expected in ["Starting kernel ...", "Hello, world!"] {
                guest.wait_for(expected, SILENCE_LIMIT, |line| (line.trim() == expected).then_some(()))?;
            }
            guest.wait_for_end(END_LIMIT)?;
            show("U-Boot fetched the image and an archive, and its program ran");
            Ok((Tally::PASSED, Vec::new()))
        })
    }

    /// Takes samples of a program that is busy for ever, and looks for functions of the kernel, of the program, and of
    /// the scheduler that both have.
    fn profile(&self, log: &Path, show: Show) -> Found {
        let line = command_line("shell", &["-c", "while true; do true; done"].map(String::from))?;
        let configuration = self.context.configuration(&self.products, &self.machine, line);
        let mut sampler = Sampler::new(self.context, &self.products, "shell")?;
        let (begin, expected) = (Instant::now(), [&["kernel", "run_hart"][..], &["shell", "pipeline"], &["cops_run"]]);
        let is_missing = |sampler: &Sampler| expected.iter().find(|functions| !sampler.has(functions));
        let goes_on = |sampler: &Sampler| is_missing(sampler).is_some() && begin.elapsed() < END_LIMIT;
        if sampler.run(self.context, &self.toolchain.qemu, configuration, log, goes_on)? {
            bail!("the machine ended by itself");
        }
        if let Some(functions) = is_missing(&sampler) {
            bail!("no sample has {}", functions.join(" and then "));
        }
        show("samples of kernel, program and scheduler have their functions");
        Ok((Tally::PASSED, Vec::new()))
    }

    /// Traces a program that leaves names, spans, marks and counters, and looks for them in the file.
    fn trace(&self, log: &Path, show: Show) -> Found {
        let line = monitor::tracing(TRACED_RECORDS, PROGRAM, &["--act", "traced"].map(String::from))?;
        let configuration = self.context.configuration(&self.products, &self.machine, line);
        let (records, ticks) = monitor::records(self.context, &self.toolchain.qemu, configuration, log)?;
        let mut file = Vec::new();
        let summary = perfetto::convert(&records, ticks, &mut file)?;
        let contents = perfetto::Contents::of(&file)?;
        for name in TRACED {
            if !contents.names.iter().any(|found| found.starts_with(name)) {
                bail!("{} records have no `{name}`", summary.records);
            }
        }
        if !contents.values.contains(&6) {
            bail!("the counter has not reached 6");
        }
        if !contents.arrows.iter().any(|(from, to)| from == "wake traced consumer" && to == "traced consumer") {
            bail!("no arrow leads from a wake to the poll: {:?}", contents.arrows);
        }
        show("the trace of a program has its names, spans, counters and wakes");
        Ok((Tally::PASSED, Vec::new()))
    }

    /// Makes a package as a user does, and runs it and a file of the host in the machine.
    fn own_program(&self, log: &Path, show: Show) -> Found {
        in_own_directory("own-program", |directory| {
            let package = directory.join("own-greeting");
            let text = "a file of the host";
            std::fs::write(directory.join("notes"), format!("{text}\n"))?;
            own::new(self.context, &cli::New { path: package.clone(), name: None, git: None, std: false })?;
            let chosen = Chosen::of(&package.to_string_lossy())?;
            let programs = chosen.take(self.context, self.toolchain, &self.products)?.unwrap_or_default();
            let file = format!("{}:/srv/", directory.join("notes").display()).parse().map_err(anyhow::Error::msg)?;
            let products = own::with_files(self.context, (*self.products).clone(), programs, &[file])?;
            let boots = Boots { products: Arc::new(products), machine: self.machine.clone(), ..*self };
            let arguments = ["-c", "own-greeting Ada && cat /srv/notes"].map(String::from);
            let mut guest = boots.start(log, &boots.products.kernel, command_line("shell", &arguments)?)?;
            for expected in ["Hello, Ada!", text] {
                guest.wait_for("the output", SILENCE_LIMIT, |line| (line == expected).then_some(()))?;
            }
            guest.wait_for_end(END_LIMIT)?;
            show("a package from outside the tree ran, and a file of the host was there");
            Ok((Tally::PASSED, Vec::new()))
        })
    }

    /// Runs the suite of programs with the standard library, and a package with it that is made as a user does.
    fn standard_library(&self, log: &Path, show: Show) -> Found {
        in_own_directory("std-program", |directory| {
            let [greeting, web] = ["std-greeting", "std-web"].map(|name| directory.join(name));
            for package in [&greeting, &web] {
                own::new(self.context, &cli::New { path: package.clone(), name: None, git: None, std: true })?;
            }
            make_server_of_the_book(self.context, &web)?;
            let mut programs = Vec::new();
            for chosen in [&greeting.to_string_lossy(), &web.to_string_lossy(), STD_SUITE, "hyper-server"] {
                let taken = Chosen::of(chosen)?.take(self.context, self.toolchain, &self.products)?;
                programs.extend(taken.with_context(|| format!("{chosen} has no standard library"))?);
            }
            let products = own::with_files(self.context, (*self.products).clone(), programs, &[])?;
            let boots = Boots { products: Arc::new(products), machine: self.machine.clone(), ..*self };
            let line = format!("std-greeting Ada && {{ std-web & {STD_SUITE} web; kill %1; {STD_SUITE}; }}");
            let arguments = ["-c".to_string(), line];
            let mut guest = boots.start(log, &boots.products.kernel, command_line("shell", &arguments)?)?;
            guest.wait_for("the greeting", SILENCE_LIMIT, |line| (line == "Hello, Ada!").then_some(()))?;
            guest
                .wait_for("the server's answer", SILENCE_LIMIT, |line| (line == "hello from /a/path").then_some(()))?;
            follow(&mut guest, show)
        })
    }

    /// Lets a program of Debian with many mapped files die, and looks at its core file as `linux run --core` leaves it.
    fn core_of_debian(&self, log: &Path, show: Show) -> Found {
        in_own_directory("core", |directory| {
            let scheduling = cli::Scheduling::default();
            let boot = cli::Boot {
                machine: self.machine.clone(),
                disks: Vec::new(),
                share: None,
                forward: Vec::new(),
                scheduling,
            };
            let command = ["bash", "-c", "kill -SEGV $$"].map(String::from).to_vec();
            let arguments = cli::LinuxRun { packages: vec!["bash".into()], command, core: true, limit: None, boot };
            let prepared = LinuxMachine::prepare(self.context, &arguments, directory)?;
            let board = &self.context.board;
            let mut guest = Guest::start(&prepared.toolchain.qemu, board, &prepared.configuration, log, Echo::LogOnly)?;
            const STATUS: i32 = 128 + 11;
            match guest.wait_for_end(END_LIMIT) {
                Err(Failure { kind: FailureKind::EndedBadly { status, .. }, .. }) if status.code() == Some(STATUS) => {}
                Ok(()) => bail!("the program did not die"),
                Err(failure) => return Err(failure.into()),
            }
            let disk = prepared.disk.context("the machine has no disk for core files")?;
            let names = disk.collect(&[], Some(&prepared.root))?;
            let [name] = &names[..] else { bail!("there is not one core file: {names:?}") };
            let (own, threads) = cores::summary(&directory.join(name))?;
            let expected = prepared.root.file("/usr/bin/bash");
            if own != expected || threads != 1 {
                bail!("{name}: {threads} threads, and {own:?} is not {expected:?}");
            }
            show("a program of Debian left a core file with its thread, and the path of its own file");
            Ok((Tally::PASSED, Vec::new()))
        })
    }

    fn suite(&self, log: &Path, kernel: &Path, command_line: String, show: Show) -> Found {
        follow(&mut self.start(log, kernel, command_line)?, show)
    }

    /// Makes every call with every allocation of this kernel failing in turn. One hart is enough, and makes the run
    /// repeatable.
    fn failing_allocations(&self, log: &Path, kernel: &Path, show: Show) -> Found {
        self.suite(log, kernel, command_line(PROGRAM, &["--failing-allocations".to_string()])?, show)
    }

    /// Runs a short soak on the machine with most harts.
    fn soak(&self, log: &Path, show: Show) -> Found {
        let soaked = soak::run(self.context, self.toolchain, &self.products, &self.machine, SOAK_SECONDS, log)?;
        show(&soaked.to_string());
        Ok((Tally::PASSED, Vec::new()))
    }

    /// Has two machines exchange bytes over a wire that loses frames.
    fn exchange(&self, log: &Path, show: Show) -> Found {
        let Boots { context, toolchain, products, machine } = self;
        let exchanged = exchange::run(context, toolchain, products, machine, SHORT_EXCHANGE, log)?;
        show(&exchanged.to_string());
        Ok((Tally::PASSED, Vec::new()))
    }

    /// Boots the root task that measures the effects of boot words, and compares its findings with the words passed.
    fn told(&self, log: &Path, told: &Told, show: Show) -> Found {
        let mut lines = Vec::new();
        let mut guest = self.start(log, &self.products.kernel, told.words.into())?;
        guest.wait_for("what the root task finds", SILENCE_LIMIT, |line| {
            lines.extend(line.strip_prefix("told ").map(str::to_string));
            line.ends_with("0 failed").then_some(())
        })?;
        guest.wait_for_end(END_LIMIT)?;
        let mut tally = Tally::default();
        let mut failures = Vec::new();
        for expected in told.found {
            let name = expected.split_once('=').map_or(*expected, |(name, _)| name);
            let found = lines.iter().find(|line| line.starts_with(&format!("{name}=")));
            // A value that is followed by more ends with a space; every other one is the whole line.
            let is_right =
                found.is_some_and(|line| line == expected || expected.ends_with(' ') && line.starts_with(expected));
            show(&format!("test told {expected} ... {}", if is_right { "ok" } else { "FAILED" }));
            if is_right {
                tally.passed += 1;
            } else {
                tally.failed += 1;
                failures.push(format!("the kernel was told {expected}, and the root task found {found:?}"));
            }
        }
        Ok((tally, failures))
    }

    /// Boots the microkernel where it cannot start: it must report that in a line, and end the machine as failed.
    fn refusals(&self, log: &Path, show: Show) -> Found {
        let mut tally = Tally::default();
        let mut failures = Vec::new();
        let good = std::fs::read(&self.products.initramfs)
            .with_context(|| format!("cannot read {}", self.products.initramfs.display()))?;
        for Refusal { name, root_task, harts, memory, words, says } in refusals(&good) {
            let file = self.context.workspace.products().join("broken-root-task");
            std::fs::write(&file, root_task).with_context(|| format!("cannot write {}", file.display()))?;
            let mut configuration = self.context.configuration(&self.products, &self.machine, words.into());
            configuration.initramfs = file;
            configuration.harts = harts;
            configuration.memory = memory.into();
            let log = log.with_extension(format!("{}.log", name.replace(' ', "-")));
            let board = &self.context.board;
            let mut guest = Guest::start(&self.toolchain.qemu, board, &configuration, &log, Echo::LogOnly)?;
            let said = guest.wait_for("the microkernel's refusal", FAULT_LIMIT, |line| {
                line.strip_prefix(CANNOT_START).map(str::to_string)
            });
            let problem = match said {
                Err(failure) => Some(failure.to_string()),
                Ok(reason) => {
                    show(&format!("note: {name}: {reason}"));
                    match guest.wait_for_end(END_LIMIT) {
                        _ if !reason.contains(says) => Some(format!("the reason is `{reason}`, not `{says}`")),
                        Ok(()) => Some("the machine ended as if nothing had happened".into()),
                        Err(failure) if failure.is_bad_end() => None,
                        Err(failure) => Some(failure.to_string()),
                    }
                }
            };
            let outcome = if problem.is_some() { "FAILED" } else { "ok" };
            show(&format!("test refusal: {name} ... {outcome}"));
            match problem {
                None => tally.passed += 1,
                Some(problem) => {
                    tally.failed += 1;
                    failures.push(format!("refusal: {name}: {problem}"));
                }
            }
        }
        Ok((tally, failures))
    }

    fn faults(&self, log: &Path, kernel: &Path, show: Show) -> Found {
        let mut tally = Tally::default();
        let mut failures = Vec::new();
        for fault in FAULTS {
            let log = log.with_extension(format!("{fault}.log"));
            let mut guest = self.start(&log, kernel, format!("fault={fault}"))?;
            let problem = match guest.wait_for_end(FAULT_LIMIT) {
                Ok(()) => Some("the machine ended as if nothing had happened".into()),
                Err(failure) => fault_problem(&failure),
            };
            let outcome = if problem.is_some() { "FAILED" } else { "ok" };
            show(&format!("test fault {fault} ... {outcome}"));
            match problem {
                None => tally.passed += 1,
                Some(problem) => {
                    tally.failed += 1;
                    failures.push(format!("fault {fault}: {problem}"));
                }
            }
        }
        Ok((tally, failures))
    }
}

/// Returns the problem in the way a kernel has ended over a mistake.
fn fault_problem(failure: &Failure) -> Option<String> {
    let FailureKind::Panicked { report, status } = &failure.kind else { return Some(failure.to_string()) };
    let names_a_function = |line: &String| line.contains("::suite::") && line.contains(".rs:");
    if status.is_none_or(|status| status.success()) {
        Some(format!("QEMU did not end with a failure: {status:?}"))
    } else if !report.iter().any(names_a_function) {
        Some(format!("the report names no function of the suite:\n{}", report.join("\n")))
    } else {
        None
    }
}

/// Calls a function with a directory for it alone, which is removed afterwards.
fn in_own_directory<T>(name: &str, act: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let directory = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let result = act(&directory);
    std::fs::remove_dir_all(&directory)?;
    result
}

/// Writes the server with hyper that the book shows into a new package with the standard library.
fn make_server_of_the_book(context: &Context, package: &Path) -> Result<()> {
    let book = std::fs::read_to_string(context.workspace.root.join("docs/book/three-programs.md"))?;
    let (_, section) = book.split_once("### An HTTP server with hyper").context("the book has no such section")?;
    let block = |kind: &str| {
        let (_, rest) = section.split_once(&format!("```{kind}\n"))?;
        rest.split_once("```").map(|(block, _)| block)
    };
    let program = block("rust,ignore").context("the section has no program")?;
    std::fs::write(package.join("src/main.rs"), program)?;
    let manifest = std::fs::read_to_string(package.join("Cargo.toml"))?;
    // As the book says: its line for `cops`, whose path is that of the package, and lines for the others.
    let needs = block("toml").context("the section does not name its crates")?;
    let features = r#"features = ["std", "hyper"]"#;
    if !needs.contains(features) {
        bail!("the section does not name the features {features}");
    }
    let others: String = needs.lines().skip(1).flat_map(|line| [line, "\n"]).collect();
    let manifest = manifest.replace(r#"features = ["std"]"#, features);
    let manifest = manifest.replace("\n[profile.release]", &format!("{others}\n[profile.release]"));
    std::fs::write(package.join("Cargo.toml"), manifest)?;
    Ok(())
}

/// Follows a suite in the machine to its end.
fn follow(guest: &mut Guest, show: Show) -> Found {
    let end = Instant::now() + MACHINE_LIMIT;
    let mut counted = Tally::default();
    let mut failures = Vec::new();
    // Lines since the last test: the reason if the next one fails.
    let mut printed = VecDeque::new();
    let closing = loop {
        let limit = SILENCE_LIMIT.min(end.saturating_duration_since(Instant::now()));
        let expected = match counted.passed + counted.failed {
            0 => "the first test of the machine's suite".to_string(),
            tests => format!("the end of the machine's suite after {tests} tests"),
        };
        // Any line is a sign of life; the other limit stops a suite that prints without end.
        let line = guest.wait_for(&expected, limit, |line| Some(line.to_string()))?;
        match test_line(&line) {
            Some(TestLine::Passed(_)) => {
                counted.passed += 1;
                printed.clear();
            }
            Some(TestLine::Failed(name)) => {
                counted.failed += 1;
                printed.iter().for_each(|line: &String| show(line));
                failures.push(printed.drain(..).fold(name, |failure, line| failure + "\n      " + &line));
            }
            Some(TestLine::Closing { passed, failed }) => {
                show(&line);
                break Tally { passed, failed, ..counted };
            }
            Some(TestLine::Skipped) => {
                counted.skipped += 1;
                printed.clear();
            }
            Some(TestLine::Note) => {}
            None => {
                if printed.len() == LINES_OF_A_FAILURE {
                    printed.pop_front();
                }
                printed.push_back(line);
                continue;
            }
        }
        show(&line);
    };
    if closing == Tally::default() && counted == closing {
        return Ok((counted, failures));
    }
    if closing != counted {
        failures.push(format!("the suite says {closing}, but its lines are {counted}"));
        counted.failed += 1;
    }
    if let Err(failure) = guest.wait_for_end(END_LIMIT)
        // A suite with failures ends the machine with a failure, as it should.
        && (closing.failed == 0 || !failure.is_bad_end())
    {
        failures.push(format!("after the last test, {failure}"));
        counted.failed += 1;
    }
    Ok((counted, failures))
}

/// Fails if no test, no part and no kernel that is a suite has one of these in its name.
fn chosen(found: (Tally, Vec<String>), names: &[String], suites: &[&str]) -> Found {
    let others = COUNTED.into_iter().any(|test| names.iter().any(|name| test.contains(name)))
        || suites.iter().any(|suite| names.iter().any(|name| has_name(Some(name), suite)))
        || PARTS.into_iter().any(|part| names.iter().any(|name| is_meant(Some(name), part)));
    if found.0 == Tally::default() && !others {
        bail!("no test's name contains `{}`", names.join("` or `"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_with_a_librarys_tests_is_named_by_cargo() {
        let message = |kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"kind":["{kind}"],"name":"a_b"}},"profile":{{"test":{test}}},"executable":"/t/a_b-1"}}"#
            )
        };
        assert_eq!(test_program(&message("lib", true), "a_b"), Some("/t/a_b-1".into()));
        for other in [message("lib", false), message("test", true), String::new(), "{}".into(), "[]".into()] {
            assert_eq!(test_program(&other, "a_b"), None, "{other}");
        }
        assert_eq!(test_program(&message("lib", true), "a"), None);
    }

    #[test]
    fn parts_without_named_tests_are_chosen_by_their_own_names() {
        assert!(is_meant(None, FAILING_ALLOCATIONS));
        assert!(is_meant(Some("failing-allocations"), FAILING_ALLOCATIONS));
        assert!(is_meant(Some("failing"), FAILING_ALLOCATIONS));
        assert!(!is_meant(Some("allocation::"), FAILING_ALLOCATIONS));
    }

    #[test]
    fn a_kernel_that_is_a_suite_is_chosen_by_its_name() {
        assert!(has_name(None, "hal-smoke") && has_name(Some("hal-smoke"), "hal-smoke"));
        assert!(!has_name(Some("pipe"), "hal-smoke"));
        let found = || (Tally::default(), Vec::new());
        assert!(chosen(found(), &["hal-smoke".into()], &["hal-smoke"]).is_ok());
        assert!(chosen(found(), &["hal-smoke".into()], &[]).is_err());
    }

    #[test]
    fn closing_lines_of_rust_are_understood() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.52s";
        assert_eq!(closing_line(line), Some(Tally { passed: 12, failed: 3, skipped: 0 }));
        assert_eq!(closing_line("test result: ok."), None);
        assert_eq!(closing_line("test a ... ok"), None);
    }

    /// Every test runs on one hart and on four of one machine; tests that reach the interrupt controller run
    /// everywhere.
    #[test]
    fn one_machine_leaves_out_suites_without_a_difference_there() {
        let test = |machine, filter: Option<&str>| cli::Test {
            suites: vec![],
            filter: filter.map(Into::into),
            machine,
            harts: None,
            user_interrupts: None,
        };
        let (all, board) = (test(None, None), board("qemu-virt"));
        let partial = names(&all, &board, Variant::Plic, 1, None);
        assert!(partial.contains(&"network::".to_string()) && partial.iter().all(|name| name.ends_with("::")));
        for (machine, harts) in machines(&board, None, None) {
            let names = names(&all, &board, machine, harts, None);
            assert_eq!(names.is_empty(), machine == Variant::Aia);
            assert!(names.is_empty() || partial.iter().all(|module| names.contains(module)));
        }
        for (machine, back_end) in
            [(Variant::Aia, cli::UserInterrupts::Imsic), (Variant::Uintc, cli::UserInterrupts::Uintc)]
        {
            let on_one = names(&all, &board, machine, 1, Some(back_end));
            assert!(partial.iter().chain(&["user_interrupt::".to_string()]).all(|module| on_one.contains(module)));
            let on_four = names(&all, &board, machine, 4, Some(back_end));
            assert!(on_one.iter().chain(&["process::".to_string()]).all(|module| on_four.contains(module)));
            assert!(names(&test(Some(machine), None), &board, machine, 1, Some(back_end)).is_empty());
        }
        assert!(names(&test(Some(Variant::Plic), None), &board, Variant::Plic, 1, None).is_empty());
        assert_eq!(names(&test(None, Some("pipe")), &board, Variant::Plic, 1, None), ["pipe"]);
        assert!(names(&all, &self::board("sifive-u"), Variant::Plic, 4, None).is_empty(), "another board runs all");
        let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../apps/tests/src");
        for module in OF_INTERRUPTS.into_iter().chain(OF_VISITS).chain(OF_HARTS) {
            assert!(modules.join(format!("{module}.rs")).exists(), "there is no module `{module}`");
        }
    }

    #[test]
    fn the_program_has_the_tests_that_need_a_counting_clock() {
        let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("../apps/tests/src/main.rs");
        let text = std::fs::read_to_string(main).unwrap();
        let (_, table) = text.split_once("const COUNTED: &[Test] = tests![").unwrap();
        let names: Vec<_> = table.split_once("];").unwrap().0.split(';').map(str::trim).collect();
        assert_eq!(names, [&COUNTED[..], &[""]].concat());
    }

    #[test]
    fn machines_are_all_or_the_chosen_ones() {
        use Variant::{Aia, Plic};
        let board = board("qemu-virt");
        assert_eq!(machines(&board, None, None), [(Aia, 1), (Aia, 4), (Plic, 1), (Plic, 4)]);
        assert_eq!(machines(&board, Some(Plic), None), [(Plic, 1), (Plic, 4)]);
        assert_eq!(machines(&board, Some(Aia), Some(8)), [(Aia, 8)]);
        assert_eq!(machines(&board, Some(Variant::Uintc), None), [(Variant::Uintc, 1), (Variant::Uintc, 4)]);
        assert_eq!(machines(&self::board("sifive-u"), None, None), [(Plic, 1), (Plic, 4)]);
    }

    #[test]
    fn parts_that_need_what_a_board_lacks_are_skipped_with_a_reason() {
        let skipped = |name: &str| PARTS.into_iter().filter(|part| unsuited(&board(name), part).is_some()).count();
        assert_eq!(skipped("qemu-virt"), 0);
        assert_eq!((skipped("sifive-u"), skipped("icicle")), (12, 12));
        assert_eq!(unsuited(&board("icicle"), "power cut").as_deref(), Some("the board has no disk"));
        assert_eq!(unsuited(&board("icicle"), "restart"), None);
        let tally = Tally { passed: 3, failed: 0, skipped: 2 };
        assert_eq!(tally.to_string(), "3 passed, 0 failed, 2 skipped");
        assert_eq!(Tally::PASSED.to_string(), "1 passed, 0 failed");
    }

    /// The parts that the suite in the machine knows are those that boards can lack.
    #[test]
    fn the_program_skips_tests_by_the_names_of_parts() {
        let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("../apps/tests/src/main.rs");
        let text = std::fs::read_to_string(main).unwrap();
        let (_, table) = text.split_once("const NEEDS: ").unwrap();
        let table = table.split_once(";\n").unwrap().0;
        for part in [board::Equipment::Disk, board::Equipment::Clock] {
            assert!(table.contains(&format!("\"{}\"", part.name())), "{part:?}");
        }
    }

    fn board(name: &str) -> Board {
        Board::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../boards/{name}.toml"))).unwrap()
    }

    #[test]
    fn a_kernel_must_end_over_a_mistake_with_a_report_and_a_failure() {
        use std::os::unix::process::ExitStatusExt;
        use std::process::ExitStatus;
        let failure = |line: &str, status: Option<i32>| Failure {
            kind: FailureKind::Panicked {
                report: vec!["KERNEL PANIC".into(), line.into()],
                status: status.map(|code| ExitStatus::from_raw(code << 8)),
            },
            log: "log".into(),
        };
        assert_eq!(fault_problem(&failure("  #1 0x10  hal_smoke::suite::commit (suite.rs:40)", Some(101))), None);
        assert!(fault_problem(&failure("  #1 0x10", Some(101))).is_some_and(|text| text.contains("names no function")));
        for status in [None, Some(0)] {
            assert!(
                fault_problem(&failure("  #1 0x10  hal_smoke::suite::commit (suite.rs:40)", status))
                    .is_some_and(|text| text.contains("end"))
            );
        }
        assert!(fault_problem(&Failure { kind: FailureKind::PortInUse(1), log: "log".into() }).is_some());
    }

    #[test]
    fn a_summary_names_failures_and_adds_up() {
        let mut findings = Findings::default();
        findings.add("host".into(), Ok((Tally { passed: 10, failed: 1, skipped: 0 }, vec!["a::b".into()])));
        findings.add("QEMU aia, 4 harts".into(), Err(anyhow::anyhow!("it panicked\n  #0")));
        let seconds = Duration::from_secs;
        findings.last_end = findings.started + seconds(7);
        findings.parts[0].2 = Spent { elapsed: seconds(3), processor: seconds(5) };
        findings.parts[1].2 = Spent { elapsed: seconds(4), processor: seconds(1) };
        let summary = findings.summary();
        assert!(summary.contains("    host: a::b\n    QEMU aia, 4 harts: it panicked\n      #0\n"), "{summary}");
        assert!(
            summary.ends_with(
                "host               10 passed, 1 failed, 3 s, 5 s of processors\n\
                 QEMU aia, 4 harts  0 passed, 1 failed, 4 s, 1 s of processors\n\
                 10 passed, 2 failed, 7 s, 6 s of processors\n"
            ),
            "{summary}"
        );
    }
}
