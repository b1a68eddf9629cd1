//! `test`: the suites, on the host and in the machine.
//!
//! The machine's suite is the program `tests`: it prints `test NAME ... ok` or `test NAME ... FAILED` for each test and
//! `N passed, N failed` at its end, and then the machine ends. It runs on every combination of one and four harts with
//! both machine types, since most failures between harts and interrupt controllers happen in only one; and once more
//! with user interrupts in hardware. One of the combinations runs the tests that can differ there only ([`names`]).
//! Tests that compare the work of processes run on one hart whose clock counts instructions instead ([`COUNTED`]): on
//! the host's time, a busy host would take work from one of them and not from the other.
//!
//! Kernels that are suites themselves test the machine below the kernel in the same way. They can also be told to make
//! a mistake ([`FAULTS`]), which they must not survive: the test is that they report it and end the machine as failed.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::ValueEnum;

use crate::board::{Clock, Variant};
use crate::build::{self, Broken, Checks, Counters, Products, Variation};
use crate::callers::Programs;
use crate::children::{self, Child, Ending};
use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::dist;
use crate::emulator;
use crate::exercises;
use crate::guest::{Echo, Failure, FailureKind, Guest};
use crate::interrupt;
use crate::linux::{self, Linux, Servers};
use crate::own::{self, Chosen};
use crate::serial::{TestLine, test_line};
use crate::soak;
use crate::toolchain::Toolchain;
use crate::workspace::{self, Package, Target, Workspace};

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
    /// Debian's Linux, unchanged, on the machine with user-level interrupts. Only on request by name.
    MachineLinux,
    /// The tests on the host with a hundred times as many cases of each property, with other seeds each time. Only on
    /// request by name.
    Long,
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

/// Length of the soak of a test.
const SOAK_SECONDS: u64 = 40;

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

/// Longest time of a mistake.
const FAULT_LIMIT: Duration = Duration::from_secs(300);

/// Numbers of passed and failed tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// All findings of a run of suites.
#[derive(Debug)]
struct Findings {
    /// Name and results of each part, with its time from the end of the part before: its builds are among it.
    parts: Vec<(String, Tally, Duration)>,
    /// The failures, in words.
    failures: Vec<String>,
    /// End of the last part.
    last_end: Instant,
}

impl Default for Findings {
    fn default() -> Findings {
        Findings { parts: Vec::new(), failures: Vec::new(), last_end: Instant::now() }
    }
}

impl Findings {
    fn add(&mut self, part: String, result: Result<(Tally, Vec<String>)>) {
        let (tally, failures) = match result {
            Ok(found) => found,
            // An error that prevents a suite's end is one failure more than those of its tests.
            Err(error) => (Tally { passed: 0, failed: 1 }, vec![format!("{error:#}")]),
        };
        self.failures.extend(failures.into_iter().map(|failure| format!("{part}: {failure}")));
        let now = Instant::now();
        self.parts.push((part, tally, now - self.last_end));
        self.last_end = now;
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
        for (part, tally, time) in &self.parts {
            text += &format!("{part:<width$}  {tally}, {} s\n", time.as_secs());
        }
        text + &format!("{}\n", self.total())
    }
}

/// Runs suites and prints their results.
///
/// # Errors
///
/// A test fails, or a suite could not be run to its end.
pub fn test(context: &Context, arguments: &cli::Test) -> Result<()> {
    let wanted: BTreeSet<Suite> = if arguments.suites.is_empty() {
        // A root task has no arguments, so there is no part of the microkernel's suite.
        let on_request = [Suite::Long, Suite::MachineLinux];
        let all = Suite::value_variants().iter().copied().filter(|suite| !on_request.contains(suite));
        let all = all.filter(|suite| {
            arguments.filter.is_none() || ![Suite::Micro, Suite::Machine, Suite::Linux].contains(suite)
        });
        let is_chosen = arguments.machine.is_none_or(|machine| machine == Variant::Uintc);
        all.filter(|suite| is_chosen || *suite != Suite::Machine).collect()
    } else {
        arguments.suites.iter().copied().collect()
    };
    let filter = arguments.filter.as_deref();
    let mut findings = Findings::default();
    // The machine's tools are looked for first, so that their lack is reported before ten minutes of other tests.
    let in_qemu = [Suite::Qemu, Suite::Micro, Suite::Machine, Suite::Linux, Suite::MachineLinux];
    let needs_machine = in_qemu.iter().any(|suite| wanted.contains(suite));
    let toolchain = if needs_machine { Some(context.toolchain(Need::Boot)?) } else { None };
    for suite in wanted {
        match (suite, &toolchain) {
            (Suite::Host, _) => findings.add("host".into(), host(&context.workspace, Cases::Usual, filter)),
            (Suite::Long, _) => findings.add("long".into(), host(&context.workspace, Cases::Many, filter)),
            (Suite::Loom, _) => findings.add("loom".into(), loom(&context.workspace)),
            (Suite::Qemu, Some(toolchain)) => {
                if let Err(error) = qemu(context, toolchain, arguments, &mut findings) {
                    findings.add("QEMU".into(), Err(error));
                }
            }
            (Suite::Micro, Some(toolchain)) => {
                if let Err(error) = micro(context, toolchain, arguments, &mut findings) {
                    findings.add("microkernel".into(), Err(error));
                }
            }
            (Suite::Machine, Some(toolchain)) => {
                match emulator::program(&context.board, Variant::Uintc, &toolchain.qemu) {
                    Err(error) if arguments.suites.is_empty() => println!("note: left out: {error}"),
                    Err(error) => findings.add("machine".into(), Err(error)),
                    Ok(_) => user_level_interrupts(context, toolchain, &mut findings)?,
                }
            }
            (Suite::Linux, Some(toolchain)) => linux(context, toolchain, arguments, &mut findings)?,
            (Suite::MachineLinux, Some(toolchain)) => {
                linux_with_user_level_interrupts(context, toolchain, arguments, &mut findings)
            }
            (Suite::Qemu | Suite::Micro | Suite::Machine | Suite::Linux | Suite::MachineLinux, None) => {}
        }
    }
    print!("{}", findings.summary());
    match findings.total() {
        Tally { failed: 0, passed } if passed > 0 => Ok(()),
        Tally { failed: 0, .. } => bail!("no test was run"),
        Tally { failed, .. } => bail!("{failed} failed"),
    }
}

/// The number of cases of each property that the tests on the host try.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cases {
    Usual,
    Many,
}

impl Cases {
    /// Returns the command that tests on the host, to which packages are to be added.
    fn cargo_test(self, workspace: &Workspace) -> Command {
        let mut command = workspace::cargo();
        command.current_dir(&workspace.root).args(["test", "--no-fail-fast"]);
        if self == Cases::Many {
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
fn host(workspace: &Workspace, cases: Cases, filter: Option<&str>) -> Result<(Tally, Vec<String>)> {
    heading(match cases {
        Cases::Usual => "tests on the host",
        Cases::Many => "tests on the host, with many cases",
    });
    let mut command = cases.cargo_test(workspace);
    command.arg("--workspace");
    for package in workspace.packages.iter().filter(|package| package.is_target_only()) {
        command.args(["--exclude", &package.name]);
    }
    command.args(filter);
    let (mut tally, mut failures) = cargo_test(command)?;
    // The microkernel for several harts has some other code.
    let mut command = cases.cargo_test(workspace);
    command.args(["--package", "kernel-micro", "--features", "smp", "--lib"]);
    command.args(filter);
    let (found, failed) = cargo_test(command)?;
    tally.add(found);
    failures.extend(failed);
    Ok((tally, failures))
}

/// The environment in which loom's atomics are compiled. Models need the optimiser.
pub const MODELS_ENVIRONMENT: [(&str, &str); 2] = [("RUSTFLAGS", "--cfg loom"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "3")];

/// Returns how to run the models of a package, which has some if it depends on loom: cargo's arguments that choose test
/// programs with `loom` in their name, or the library where there are none; then those that choose the library's tests
/// with `loom` in theirs.
pub fn models(package: &Package) -> Option<(Vec<String>, Vec<String>)> {
    if !package.dependencies.iter().any(|dependency| dependency.name == "loom") {
        return None;
    }
    let is_model = |target: &&Target| target.kind.iter().any(|kind| kind == "test") && target.name.contains("loom");
    let programs: Vec<_> =
        package.targets.iter().filter(is_model).map(|model| format!("--test={}", model.name)).collect();
    Some(if programs.is_empty() { (vec!["--lib".into()], vec!["loom".into()]) } else { (programs, vec![]) })
}

/// Runs the models of all packages, compiled with loom's atomics.
fn loom(workspace: &Workspace) -> Result<(Tally, Vec<String>)> {
    heading("loom models");
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    let mut none = true;
    for package in &workspace.packages {
        let Some((programs, filters)) = models(package) else { continue };
        none = false;
        let mut command = workspace::cargo();
        command.current_dir(&workspace.root).args(["test", "--no-fail-fast", "--package", &package.name]);
        // With other flags: not in the directory that other builds use.
        command.arg("--target-dir").arg(workspace.products().join("loom"));
        command.envs(MODELS_ENVIRONMENT);
        command.args(programs).arg("--").args(filters);
        let (found, failed) = cargo_test(command)?;
        tally.add(found);
        failures.extend(failed);
    }
    if none {
        bail!("no package depends on loom");
    }
    Ok((tally, failures))
}

/// Runs `cargo test`, shows its output and adds up its closing lines.
fn cargo_test(mut command: Command) -> Result<(Tally, Vec<String>)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Child::start(&mut command, Ending::Kill).context("cargo could not be started")?;
    let stdout = child.pipes().stdout.take().context("cargo has no output")?;
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
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
        failures.push("cargo test failed; see above".into());
    }
    Ok((tally, failures))
}

/// Parses a closing line of Rust's test programs: `test result: ok. 3 passed; 0 failed; …`.
fn closing_line(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number =
        |word: &str| counts.split("; ").find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok());
    Some(Tally { passed: number("passed")?, failed: number("failed")? })
}

/// Runs the machine's suites on every machine.
fn qemu(context: &Context, toolchain: &Toolchain, arguments: &cli::Test, findings: &mut Findings) -> Result<()> {
    let products = build::build(&context.workspace, toolchain, &context.progress, Broken::Fail)?;
    let kernels = build::suites(&context.workspace, toolchain, &context.progress, None)?;
    let mut on_one_hart = Vec::new();
    for (machine, harts) in machines(arguments.machine, arguments.harts) {
        let names = names(arguments, machine, harts);
        let machine = cli::Machine { machine: Some(machine), ..chosen_machine(arguments, Some(harts)) };
        let boots = Boots { context, toolchain, products: &products, machine };
        // These have no names to choose from.
        for (name, kernel) in kernels.iter().filter(|_| arguments.filter.is_none()) {
            boots.part(findings, name, |boots, log| boots.suite(log, kernel, String::new()));
        }
        let system = SuiteRun::of_system(boots, "system".into(), names)?;
        if harts == 1 { on_one_hart.push(system) } else { system.run(findings) }
    }
    let has_counted = |filter: &String| COUNTED.iter().any(|name| name.contains(filter.as_str()));
    // Several harts of an emulator that counts share its instructions in parts that change.
    if arguments.filter.as_ref().is_none_or(has_counted) && arguments.harts.is_none_or(|harts| harts == 1) {
        let boots = Boots { context, toolchain, products: &products, machine: chosen_machine(arguments, Some(1)) };
        boots.part(findings, "system that counts instructions", |boots, log| boots.counted(log, arguments));
    }
    if arguments.user_interrupts.is_none() {
        // Once more with the other back ends, which change the programs' visits to user mode.
        let has_uintc = || emulator::program(&context.board, Variant::Uintc, &toolchain.qemu).is_ok();
        let others = [(Variant::Aia, cli::UserInterrupts::Imsic), (Variant::Uintc, cli::UserInterrupts::Uintc)];
        for (variant, back_end) in others {
            // Without the emulator the suite of the machine says in one line that it is missing.
            if arguments.machine.map_or(variant == Variant::Uintc && !has_uintc(), |chosen| chosen != variant) {
                continue;
            }
            for (machine, harts) in machines(Some(variant), arguments.harts) {
                let machine = cli::Machine {
                    machine: Some(machine),
                    user_interrupts: Some(back_end),
                    ..chosen_machine(arguments, Some(harts))
                };
                let boots = Boots { context, toolchain, products: &products, machine };
                let names: Vec<_> = arguments.filter.iter().cloned().collect();
                let name = format!("system with {}", back_end.name());
                let system = SuiteRun::of_system(boots, name, names)?;
                if harts == 1 { on_one_hart.push(system) } else { system.run(findings) }
            }
        }
    }
    // Those with a part of the tests last, so that long ones are beside each other.
    on_one_hart.sort_by_key(|system| !system.names.is_empty());
    SuiteRun::run_in_pairs(&on_one_hart, findings);
    if arguments.filter.is_none() {
        let machine = chosen_machine(arguments, arguments.harts);
        let boots = Boots { context, toolchain, products: &products, machine };
        boots.part(findings, "restart", Boots::restart);
        boots.part(findings, "status of the shell", Boots::status);
        boots.part(findings, "backtraces of programs", Boots::backtraces);
        boots.part(findings, "a program from outside the tree", Boots::own_program);
        boots.part(findings, "bundle", Boots::bundle);
        failing_allocations(context, toolchain, &products, arguments, findings);
        soak(context, toolchain, &products, arguments, findings);
    }
    if arguments.filter.is_some() {
        return Ok(());
    }
    // Mistakes are equal on every machine.
    let machine = cli::Machine { user_interrupts: None, ..chosen_machine(arguments, arguments.harts) };
    let boots = Boots { context, toolchain, products: &products, machine };
    for (name, kernel) in &kernels {
        boots.part(findings, &format!("{name} faults"), |boots, log| boots.faults(log, kernel));
    }
    Ok(())
}

/// Runs the programs that test the machine with user-level interrupts itself. They need two harts.
fn user_level_interrupts(context: &Context, toolchain: &Toolchain, findings: &mut Findings) -> Result<()> {
    let machine = Variant::Uintc;
    let name = machine.to_string();
    let programs = build::suites(&context.workspace, toolchain, &context.progress, Some(&name))?;
    // Such a program reads no archive.
    let empty = context.workspace.products().join("empty");
    std::fs::write(&empty, "").with_context(|| format!("cannot write {}", empty.display()))?;
    for (name, program) in programs {
        let products =
            Products { kernel: program.clone(), initramfs: empty.clone(), programs: Vec::new(), files: Vec::new() };
        let machine =
            cli::Machine { machine: Some(machine), harts: Some(2), memory: Some(MEMORY.into()), user_interrupts: None };
        let boots = Boots { context, toolchain, products: &products, machine };
        boots.part(findings, &name, |boots, log| boots.suite(log, &program, String::new()));
    }
    Ok(())
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
        let linux = Linux::prepare_with(context, Servers::InC)?;
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
                Ok((Tally { passed: 1, failed: 0 }, Vec::new()))
            }
            Err(failure) => Err(failure.into()),
            Ok(()) => unreachable!("no line is wanted"),
        }
    };
    for harts in arguments.harts.map_or(HARTS.to_vec(), |harts| vec![harts]) {
        findings.add(format!("Debian's Linux, {}, {harts} hart{}", Variant::Uintc, plural(harts)), boot(harts));
    }
}

/// Runs the microkernel's suite on every machine, also on that with user-level interrupts if its emulator has been
/// built, and the starts that the microkernel must refuse on one.
fn micro(context: &Context, toolchain: &Toolchain, arguments: &cli::Test, findings: &mut Findings) -> Result<()> {
    let kernel = |machine: &cli::Machine| {
        build::microkernel(&context.workspace, toolchain, &context.progress, context.variation(machine))
    };
    let mut checked = Vec::new();
    let (mut suites, mut libraries) = (Vec::new(), Vec::new());
    let mut machines_of_suite = machines(arguments.machine, arguments.harts);
    // Without the emulator the suite of the machine says in one line that it is missing.
    if arguments.machine.is_none() && emulator::program(&context.board, Variant::Uintc, &toolchain.qemu).is_ok() {
        machines_of_suite.extend(machines(Some(Variant::Uintc), arguments.harts));
    }
    for (machine, harts) in machines_of_suite {
        let machine = cli::Machine { machine: Some(machine), ..chosen_machine(arguments, Some(harts)) };
        let products = kernel(&machine)?;
        let library = Products { initramfs: context.workspace.products().join(LIBRARY_SUITE), ..products.clone() };
        libraries.push((library, machine.clone(), "library of the microkernel"));
        suites.push((products, machine.clone(), "microkernel"));
        // The interrupt controller makes no difference to these checks.
        if !checked.contains(&harts) {
            checked.push(harts);
            let variation = Variation { checks: Checks::Entries, ..context.variation(&machine) };
            let checking = build::microkernel(&context.workspace, toolchain, &context.progress, variation)?;
            suites.push((checking, machine, "microkernel that checks itself"));
        }
    }
    // The short ones last, so that long ones are beside each other.
    suites.extend(libraries);
    let runs = suites.iter().map(|(products, machine, name)| {
        SuiteRun::of_root_task(Boots { context, toolchain, products, machine: machine.clone() }, name)
    });
    let (on_one_hart, others): (Vec<_>, Vec<_>) = runs.partition(|run| run.boots.machine.harts == Some(1));
    others.iter().for_each(|run| run.run(findings));
    SuiteRun::run_in_pairs(&on_one_hart, findings);
    let machine = chosen_machine(arguments, Some(1));
    let products = kernel(&machine)?;
    let boots = Boots { context, toolchain, products: &products, machine };
    boots.part(findings, "refused starts", |boots, log| boots.refusals(log));
    for told in TOLD {
        let machine = cli::Machine { harts: Some(told.harts), ..boots.machine.clone() };
        let variation = Variation { words: told.built_in, counters: told.counters, ..context.variation(&machine) };
        let mut products = build::microkernel(&context.workspace, toolchain, &context.progress, variation)?;
        products.initramfs = context.workspace.products().join(TOLD_PROGRAM);
        let boots = Boots { context, toolchain, products: &products, machine };
        boots.part(findings, told.name, |boots, log| boots.told(log, told));
    }
    Ok(())
}

/// Runs the exercises of unmodified programs. The interrupt controller makes no difference to them.
fn linux(context: &Context, toolchain: &Toolchain, arguments: &cli::Test, findings: &mut Findings) -> Result<()> {
    let mut exercises = exercises::load(&context.workspace.root)?;
    let root = match exercises::prepare(context, &exercises) {
        Ok(root) => root,
        Err(error) if arguments.suites.is_empty() => {
            println!("note: the programs of Debian are left out: {error:#}");
            return Ok(());
        }
        Err(error) => {
            findings.add("linux".into(), Err(error));
            return Ok(());
        }
    };
    let all = exercises.clone();
    exercises.retain(|exercise| arguments.filter.as_ref().is_none_or(|filter| exercise.name.contains(filter)));
    let products = build::build(&context.workspace, toolchain, &context.progress, Broken::Fail)?;
    let mut outcomes = Vec::new();
    for harts in arguments.harts.map_or(HARTS.to_vec(), |harts| vec![harts]) {
        // The archive with the programs is a part of the memory.
        let machine = cli::Machine { memory: None, ..chosen_machine(arguments, Some(harts)) };
        let boots = Boots { context, toolchain, products: &products, machine };
        boots.part(findings, "linux", |boots, log| {
            let found = exercises::run(context, &root, &exercises, &boots.machine, log)?;
            let failures =
                found.iter().filter_map(|(name, _, difference)| Some(format!("{name}: {}", difference.as_ref()?)));
            let failures: Vec<_> = failures.collect();
            let failed = failures.len() as u64;
            let passed = found.len() as u64 - failed;
            outcomes.extend(found);
            Ok((Tally { passed, failed }, failures))
        });
    }
    if outcomes.len() == HARTS.len() * all.len() {
        exercises::keep(context, &root, &all, &outcomes)?;
    }
    Ok(())
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
        root_task("32 bits", changed(4, &[1]), damaged),
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

/// Makes every call with every allocation of the kernel failing in turn. One hart is enough, and makes the run
/// repeatable.
fn failing_allocations(
    context: &Context,
    toolchain: &Toolchain,
    products: &Products,
    arguments: &cli::Test,
    findings: &mut Findings,
) {
    let machine = chosen_machine(arguments, Some(1));
    let boots = Boots { context, toolchain, products, machine };
    boots.part(findings, "failing allocations", |boots, log| {
        let kernel = build::failing_kernel(&context.workspace, toolchain, &context.progress)?;
        boots.suite(log, &kernel, command_line(PROGRAM, &["--failing-allocations".to_string()])?)
    });
}

/// Runs a short soak on the machine with most harts.
fn soak(context: &Context, toolchain: &Toolchain, products: &Products, arguments: &cli::Test, findings: &mut Findings) {
    let machine = chosen_machine(arguments, arguments.harts);
    let boots = Boots { context, toolchain, products, machine };
    boots.part(findings, "soak", |boots, log| {
        let soaked = soak::run(context, toolchain, products, &boots.machine, SOAK_SECONDS, log)?;
        println!("{soaked}");
        Ok((Tally { passed: 1, failed: 0 }, Vec::new()))
    });
}

/// Modules of the machine's suite whose tests reach the interrupt controller, by a device or by what its interrupts
/// interrupt.
const OF_INTERRUPTS: [&str; 8] =
    ["interrupt", "network", "preemption", "readiness", "scheduling", "server", "terminal", "time"];

/// Tests of the machine's suite that run only on one hart whose clock counts instructions: `tests --counted`.
const COUNTED: [&str; 1] = ["fairness::calls_of_every_family_keep_within_a_budget"];

/// Returns the parts of names that choose among the tests of the machine's suite; none for all tests.
///
/// A second machine with one hart has another interrupt controller and nothing else that the first does not have: there
/// is no message between harts. So the tests that do not reach the controller run on one hart with the first only. A
/// machine that the user has chosen runs all.
fn names(arguments: &cli::Test, machine: Variant, harts: u8) -> Vec<String> {
    let is_chosen = arguments.machine.is_some() || arguments.harts.is_some();
    match &arguments.filter {
        Some(filter) => vec![filter.clone()],
        None if machine == Variant::Plic && harts == 1 && !is_chosen => {
            OF_INTERRUPTS.iter().map(|module| format!("{module}::")).collect()
        }
        None => Vec::new(),
    }
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

/// Returns the machines to test on: all that the host's QEMU has, or those that the user chose.
fn machines(machine: Option<Variant>, harts: Option<u8>) -> Vec<(Variant, u8)> {
    let harts = harts.map_or(HARTS.to_vec(), |harts| vec![harts]);
    let is_meant = |variant: Variant| machine.map_or(variant != Variant::Uintc, |chosen| chosen == variant);
    let machines = Variant::value_variants().iter().filter(|variant| is_meant(**variant));
    machines.flat_map(|machine| harts.iter().map(|harts| (*machine, *harts))).collect()
}

/// Acts of the suite that die, and functions of the backtrace in their order.
const DEATHS: [(&str, &[&str]); 4] = [
    ("panic", &["panic.rs", "core::panicking::panic_fmt", "tests::acts::act"]),
    ("read-null", &["tests::acts::read", "tests::acts::act"]),
    ("overflow-stack", &["tests::acts::overflow", "tests::acts::overflow"]),
    ("execute-data", &["apps/tests/src/acts.rs"]),
];

/// The common part of one machine's boots.
struct Boots<'a> {
    context: &'a Context,
    toolchain: &'a Toolchain,
    products: &'a Products,
    machine: cli::Machine,
}

/// A run of a suite that is the machine's first program.
struct SuiteRun<'a> {
    boots: Boots<'a>,
    name: String,
    /// Parts of the names of the tests that are run; without any it is all tests.
    names: Vec<String>,
    command_line: String,
}

impl<'a> SuiteRun<'a> {
    /// A run of the Unix kernel's suite.
    fn of_system(boots: Boots<'a>, name: String, names: Vec<String>) -> Result<SuiteRun<'a>> {
        if !boots.products.programs.iter().any(|program| program == PROGRAM) {
            bail!("the workspace has no program `{PROGRAM}`");
        }
        let command_line = command_line(PROGRAM, &names)?;
        Ok(SuiteRun { boots, name, names, command_line })
    }

    /// A run of a root task.
    fn of_root_task(boots: Boots<'a>, name: &str) -> SuiteRun<'a> {
        SuiteRun { boots, name: name.into(), names: Vec::new(), command_line: String::new() }
    }

    /// Runs it, and shows its lines as they come.
    fn run(&self, findings: &mut Findings) {
        self.boots.part(findings, &self.name, |boots, log| {
            chosen(boots.suite(log, &boots.products.kernel, self.command_line.clone())?, &self.names)
        });
    }

    /// Runs machines of one hart two at a time, since one of them keeps one hart of the host busy. The lines of the
    /// second are shown after those of the first.
    fn run_in_pairs(runs: &[SuiteRun<'_>], findings: &mut Findings) {
        for pair in runs.chunks(2) {
            let (first, second) = (&pair[0], pair.get(1));
            thread::scope(|scope| {
                let beside = second.map(|second| {
                    let (_, log) = second.boots.title_and_log(&second.name);
                    (second, scope.spawn(move || second.run_silently(&log)))
                });
                first.run(findings);
                if let Some((second, beside)) = beside {
                    second.boots.part(findings, &second.name, |_, _| {
                        let (lines, found) = beside.join().map_err(|_| anyhow!("its thread has panicked"))?;
                        lines.iter().for_each(|line| println!("{line}"));
                        found
                    });
                }
            });
        }
    }

    /// Runs it, and returns its lines.
    fn run_silently(&self, log: &Path) -> (Vec<String>, Result<(Tally, Vec<String>)>) {
        let mut lines = Vec::new();
        let started = self.boots.start(log, &self.boots.products.kernel, self.command_line.clone());
        let found = started.and_then(|mut guest| follow(&mut guest, &mut |line| lines.push(line.into())));
        let found = found.and_then(|found| chosen(found, &self.names));
        (lines, found)
    }
}

impl Boots<'_> {
    /// Returns the title of a part, and its log.
    fn title_and_log(&self, name: &str) -> (String, PathBuf) {
        let machine = self.machine.machine.unwrap_or(self.context.board.defaults.machine);
        let harts = self.machine.harts.unwrap_or(self.context.board.defaults.harts);
        let title = format!("{name}, {machine}, {harts} hart{}", if harts == 1 { "" } else { "s" });
        (title, self.context.log(&format!("test-{}-{machine}-{harts}", name.replace(' ', "-"))))
    }

    /// Adds one part to the findings, with a log of its own.
    fn part(
        &self,
        findings: &mut Findings,
        name: &str,
        run: impl FnOnce(&Self, &Path) -> Result<(Tally, Vec<String>)>,
    ) {
        let (part, log) = self.title_and_log(name);
        heading(&part);
        let found = run(self, &log);
        interrupt::stand_still_if_requested();
        if found.as_ref().is_ok_and(|(_, failures)| !failures.is_empty()) {
            println!("The machine's serial log is {}", log.display());
        }
        findings.add(part, found);
    }

    /// Runs the tests that need a clock that counts instructions, or the filtered part of them.
    fn counted(&self, log: &Path, arguments: &cli::Test) -> Result<(Tally, Vec<String>)> {
        let words: Vec<_> = ["--counted".to_string()].into_iter().chain(arguments.filter.clone()).collect();
        let line = command_line(PROGRAM, &words)?;
        follow_aloud(&mut self.start_with(Clock::SlowInstructions, log, &self.products.kernel, line)?)
    }

    fn start(&self, log: &Path, kernel: &Path, command_line: String) -> Result<Guest> {
        self.start_with(Clock::Host, log, kernel, command_line)
    }

    fn start_with(&self, clock: Clock, log: &Path, kernel: &Path, command_line: String) -> Result<Guest> {
        let mut configuration = self.context.configuration(self.products, &self.machine, command_line);
        configuration.kernel = kernel.to_path_buf();
        configuration.set_clock(clock);
        Guest::start(&self.toolchain.qemu, &self.context.board, &configuration, log, Echo::LogOnly)
    }

    /// Lets a program restart the machine, which then starts it again.
    fn restart(&self, log: &Path) -> Result<(Tally, Vec<String>)> {
        let arguments = ["--act", "restart"].map(String::from);
        let mut guest = self.start(log, &self.products.kernel, command_line(PROGRAM, &arguments)?)?;
        for time in ["first", "second", "third"] {
            let expected = format!("the {time} start of the machine");
            guest.wait_for(&expected, SILENCE_LIMIT, |line| line.starts_with("COPS: ").then_some(()))?;
            guest.wait_for("its restart", SILENCE_LIMIT, |line| (line == "restarting").then_some(()))?;
        }
        guest.end();
        println!("the machine was restarted and started again");
        Ok((Tally { passed: 1, failed: 0 }, Vec::new()))
    }

    /// Lets the shell run a text with spaces and quotes, whose status is to be that of the machine.
    fn status(&self, log: &Path) -> Result<(Tally, Vec<String>)> {
        let arguments = ["-c", r#"echo "a \"b\"" 'c  d' | cat; exit 3"#].map(String::from);
        let mut guest = self.start(log, &self.products.kernel, command_line("shell", &arguments)?)?;
        guest.wait_for("the output of the text", SILENCE_LIMIT, |line| (line == r#"a "b" c  d"#).then_some(()))?;
        match guest.wait_for_end(END_LIMIT) {
            Err(Failure { kind: FailureKind::EndedBadly { status, .. }, .. }) if status.code() == Some(3) => {
                println!("the machine ended with the status of the shell");
                Ok((Tally { passed: 1, failed: 0 }, Vec::new()))
            }
            Ok(()) => bail!("the machine ended as if the shell had not failed"),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Lets a program die in several ways, and looks for the functions in its backtrace.
    fn backtraces(&self, log: &Path) -> Result<(Tally, Vec<String>)> {
        let mut tally = Tally::default();
        let mut failures = Vec::new();
        let mut programs = Programs::new(self.products.files.clone());
        for (act, functions) in DEATHS {
            let arguments = ["--act", act].map(String::from);
            let mut guest = self.start(log, &self.products.kernel, command_line(PROGRAM, &arguments)?)?;
            let is_there = |line: &str| abi_unix::callers::Callers::parse(line).map(|_| line.to_string());
            let line = guest.wait_for("the callers of a program that dies", SILENCE_LIMIT, is_there)?;
            guest.end();
            let backtrace = programs.explain(&line);
            let mut lines = backtrace.iter();
            let missing = functions.iter().find(|function| !lines.any(|line| line.contains(*function)));
            println!("test backtraces::{act} ... {}", if missing.is_none() { "ok" } else { "FAILED" });
            match missing {
                None => tally.passed += 1,
                Some(function) => {
                    tally.failed += 1;
                    failures.push(format!("{function} is not where it belongs in\n{line}\n{}", backtrace.join("\n")));
                }
            }
        }
        Ok((tally, failures))
    }

    /// Unpacks a bundle as a user does, checks its sums and boots it.
    fn bundle(&self, _: &Path) -> Result<(Tally, Vec<String>)> {
        let bundle = dist::make(self.context, self.products)?;
        let directory = std::env::temp_dir().join(format!("xtask-bundle-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let mut command = children::command("sh");
        let text = r#"tar -xzf "$1" && cd cops-* && sha256sum -c --quiet SHA256SUMS && ./boot --harts 1 shell -c 'echo "a  b"; exit 3'"#;
        command.args(["-c", text, "sh"]).arg(&bundle).current_dir(&directory);
        let output = children::output(&mut command, Ending::Kill, END_LIMIT);
        std::fs::remove_dir_all(&directory)?;
        let output = output.context("the bundle did not boot and end")?;
        let said = String::from_utf8_lossy(&output.stdout);
        if output.status.code() != Some(3) || !said.lines().any(|line| line.trim_end() == "a  b") {
            bail!("{}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        println!("the bundle's shell did its line, and its status came back");
        Ok((Tally { passed: 1, failed: 0 }, Vec::new()))
    }

    /// Makes a package as a user does, and runs it and a file of the host in the machine.
    fn own_program(&self, log: &Path) -> Result<(Tally, Vec<String>)> {
        let directory = std::env::temp_dir().join(format!("xtask-own-program-{}", std::process::id()));
        let package = directory.join("own-greeting");
        let text = "a file of the host";
        std::fs::create_dir_all(&directory)?;
        std::fs::write(directory.join("notes"), format!("{text}\n"))?;
        let run = || {
            own::new(self.context, &cli::New { path: package.clone(), name: None, git: None })?;
            let chosen = Chosen::of(&package.to_string_lossy())?;
            let programs = chosen.take(self.context, self.toolchain, self.products)?.unwrap_or_default();
            let file = format!("{}:/srv/", directory.join("notes").display()).parse().map_err(anyhow::Error::msg)?;
            let products = own::with_files(self.context, self.products.clone(), programs, &[file])?;
            let boots = Boots {
                context: self.context,
                toolchain: self.toolchain,
                products: &products,
                machine: self.machine.clone(),
            };
            let arguments = ["-c", "own-greeting Ada && cat /srv/notes"].map(String::from);
            let mut guest = boots.start(log, &products.kernel, command_line("shell", &arguments)?)?;
            for expected in ["Hello, Ada!", text] {
                guest.wait_for("the output", SILENCE_LIMIT, |line| (line == expected).then_some(()))?;
            }
            guest.wait_for_end(END_LIMIT)?;
            println!("a package from outside the tree ran, and a file of the host was there");
            Ok((Tally { passed: 1, failed: 0 }, Vec::new()))
        };
        let result = run();
        std::fs::remove_dir_all(&directory)?;
        result
    }

    fn suite(&self, log: &Path, kernel: &Path, command_line: String) -> Result<(Tally, Vec<String>)> {
        follow_aloud(&mut self.start(log, kernel, command_line)?)
    }

    /// Boots the root task that measures the effects of boot words, and compares its findings with the words passed.
    fn told(&self, log: &Path, told: &Told) -> Result<(Tally, Vec<String>)> {
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
            println!("test told {expected} ... {}", if is_right { "ok" } else { "FAILED" });
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
    fn refusals(&self, log: &Path) -> Result<(Tally, Vec<String>)> {
        let mut tally = Tally::default();
        let mut failures = Vec::new();
        let good = std::fs::read(&self.products.initramfs)
            .with_context(|| format!("cannot read {}", self.products.initramfs.display()))?;
        for Refusal { name, root_task, harts, memory, words, says } in refusals(&good) {
            let file = self.context.workspace.products().join("broken-root-task");
            std::fs::write(&file, root_task).with_context(|| format!("cannot write {}", file.display()))?;
            let mut configuration = self.context.configuration(self.products, &self.machine, words.into());
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
                    println!("note: {name}: {reason}");
                    match guest.wait_for_end(END_LIMIT) {
                        _ if !reason.contains(says) => Some(format!("the reason is `{reason}`, not `{says}`")),
                        Ok(()) => Some("the machine ended as if nothing had happened".into()),
                        Err(failure) if failure.is_bad_end() => None,
                        Err(failure) => Some(failure.to_string()),
                    }
                }
            };
            let outcome = if problem.is_some() { "FAILED" } else { "ok" };
            println!("test refusal: {name} ... {outcome}");
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

    fn faults(&self, log: &Path, kernel: &Path) -> Result<(Tally, Vec<String>)> {
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
            println!("test fault {fault} ... {outcome}");
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

/// Follows a suite and prints its lines.
fn follow_aloud(guest: &mut Guest) -> Result<(Tally, Vec<String>)> {
    follow(guest, &mut |line| {
        println!("{line}");
        let _ = std::io::stdout().flush();
    })
}

/// Follows a suite in the machine to its end.
fn follow(guest: &mut Guest, show: &mut dyn FnMut(&str)) -> Result<(Tally, Vec<String>)> {
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
                break Tally { passed, failed };
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

/// Fails if no test has one of these parts in its name.
fn chosen(found: (Tally, Vec<String>), names: &[String]) -> Result<(Tally, Vec<String>)> {
    if found.0 == Tally::default() && !COUNTED.iter().any(|test| names.iter().any(|name| test.contains(name))) {
        bail!("no test's name contains `{}`", names.join("` or `"));
    }
    Ok(found)
}

fn heading(text: &str) {
    println!("\n== {text}");
    let _ = std::io::stdout().flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_rust_are_understood() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.52s";
        assert_eq!(closing_line(line), Some(Tally { passed: 12, failed: 3 }));
        assert_eq!(closing_line("test result: ok."), None);
        assert_eq!(closing_line("test a ... ok"), None);
    }

    /// Every test runs on one hart and on four; what reaches the interrupt controller runs everywhere.
    #[test]
    fn one_machine_leaves_out_suites_without_a_difference_there() {
        let test = |machine, filter: Option<&str>| cli::Test {
            suites: vec![],
            filter: filter.map(Into::into),
            machine,
            harts: None,
            user_interrupts: None,
        };
        let all = test(None, None);
        let partial = names(&all, Variant::Plic, 1);
        assert!(partial.contains(&"network::".to_string()) && partial.iter().all(|name| name.ends_with("::")));
        for (machine, harts) in machines(None, None) {
            let is_partial = (machine, harts) == (Variant::Plic, 1);
            assert_eq!(names(&all, machine, harts).is_empty(), !is_partial);
        }
        assert!(names(&test(Some(Variant::Plic), None), Variant::Plic, 1).is_empty());
        assert_eq!(names(&test(None, Some("pipe")), Variant::Plic, 1), ["pipe"]);
        let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../apps/tests/src");
        for module in OF_INTERRUPTS {
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
        assert_eq!(machines(None, None), [(Aia, 1), (Aia, 4), (Plic, 1), (Plic, 4)]);
        assert_eq!(machines(Some(Plic), None), [(Plic, 1), (Plic, 4)]);
        assert_eq!(machines(Some(Aia), Some(8)), [(Aia, 8)]);
        assert_eq!(machines(Some(Variant::Uintc), None), [(Variant::Uintc, 1), (Variant::Uintc, 4)]);
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
        findings.add("host".into(), Ok((Tally { passed: 10, failed: 1 }, vec!["a::b".into()])));
        findings.add("QEMU aia, 4 harts".into(), Err(anyhow::anyhow!("it panicked\n  #0")));
        let summary = findings.summary();
        assert!(summary.contains("    host: a::b\n    QEMU aia, 4 harts: it panicked\n      #0\n"), "{summary}");
        assert!(
            summary.ends_with(
                "host               10 passed, 1 failed, 0 s\n\
                 QEMU aia, 4 harts  0 passed, 1 failed, 0 s\n\
                 10 passed, 2 failed\n"
            ),
            "{summary}"
        );
    }
}
