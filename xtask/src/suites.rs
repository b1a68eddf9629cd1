//! `test`: the suites, on the host and in the machine.
//!
//! The machine's suite is the program `tests`: it prints `test NAME ... ok` or `test NAME ... FAILED` for each test and
//! `N passed, N failed` at its end, and then the machine ends. It runs on every combination of one and four harts with
//! both machine types, since most that can go wrong between harts and interrupt controllers goes wrong in only one.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::board::Variant;
use crate::build::Products;
use crate::children::{Child, Ending};
use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::guest::{Echo, Guest};
use crate::serial::{TestLine, test_line};
use crate::toolchain::Toolchain;
use crate::workspace::{self, Workspace};

/// A part of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Suite {
    /// Everything that runs on the host: `cargo test` of all packages but those for the target only.
    Host,
    /// The models of concurrent code, every interleaving.
    Loom,
    /// The whole system in QEMU.
    Qemu,
}

/// The program that is the machine's suite.
const PROGRAM: &str = "tests";

/// The numbers of harts that the machine's suite runs on.
const HARTS: [u8; 2] = [1, 4];

/// How long the machine may print nothing, how long it may take in all, and how long to end when it is done.
const SILENCE_LIMIT: Duration = Duration::from_secs(240);
const MACHINE_LIMIT: Duration = Duration::from_secs(600);
const END_LIMIT: Duration = Duration::from_secs(20);

/// How many passed and failed.
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

/// Everything that a run of suites has found.
#[derive(Debug, Default)]
struct Findings {
    parts: Vec<(String, Tally)>,
    /// What failed, in words.
    failures: Vec<String>,
}

impl Findings {
    fn add(&mut self, part: String, result: Result<(Tally, Vec<String>)>) {
        let (tally, failures) = match result {
            Ok(found) => found,
            // What keeps a suite from its end is one failure more than its tests'.
            Err(error) => (Tally { passed: 0, failed: 1 }, vec![format!("{error:#}")]),
        };
        self.failures.extend(failures.into_iter().map(|failure| format!("{part}: {failure}")));
        self.parts.push((part, tally));
    }

    fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.parts.iter().for_each(|(_, tally)| total.add(*tally));
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
        let width = self.parts.iter().map(|(part, _)| part.len()).max().unwrap_or(0);
        for (part, tally) in &self.parts {
            text += &format!("{part:<width$}  {tally}\n");
        }
        text + &format!("{}\n", self.total())
    }
}

/// Runs suites and prints what they found.
///
/// # Errors
///
/// A test fails, or a suite could not be run to its end.
pub fn test(context: &Context, arguments: &cli::Test) -> Result<()> {
    let wanted: BTreeSet<Suite> = if arguments.suites.is_empty() {
        Suite::value_variants().iter().copied().collect()
    } else {
        arguments.suites.iter().copied().collect()
    };
    let mut findings = Findings::default();
    // What the machine needs is looked for first: nobody wants to hear of it after ten minutes of other tests.
    let toolchain = if wanted.contains(&Suite::Qemu) { Some(context.toolchain(Need::Boot)?) } else { None };
    for suite in wanted {
        match (suite, &toolchain) {
            (Suite::Host, _) => findings.add("host".into(), host(&context.workspace)),
            (Suite::Loom, _) => findings.add("loom".into(), loom(&context.workspace)),
            (Suite::Qemu, Some(toolchain)) => {
                let products = crate::build::build(&context.workspace, toolchain, &context.progress)?;
                qemu(context, toolchain, &products, arguments, &mut findings);
            }
            (Suite::Qemu, None) => {}
        }
    }
    print!("{}", findings.summary());
    match findings.total() {
        Tally { failed: 0, passed } if passed > 0 => Ok(()),
        Tally { failed: 0, .. } => bail!("no test was run"),
        Tally { failed, .. } => bail!("{failed} failed"),
    }
}

/// Every package's own tests, in one call of cargo.
fn host(workspace: &Workspace) -> Result<(Tally, Vec<String>)> {
    heading("tests on the host");
    let mut command = workspace::cargo();
    command.current_dir(&workspace.root).args(["test", "--workspace", "--no-fail-fast"]);
    for package in workspace.packages.iter().filter(|package| package.is_target_only()) {
        command.args(["--exclude", &package.name]);
    }
    cargo_test(command)
}

/// The tests of packages that depend on loom, compiled with loom's atomics.
fn loom(workspace: &Workspace) -> Result<(Tally, Vec<String>)> {
    heading("loom models");
    let mut command = workspace::cargo();
    command.current_dir(&workspace.root).args(["test", "--no-fail-fast", "--lib", "--tests"]);
    // Everything is compiled in another way: not over what other builds use.
    command.arg("--target-dir").arg(workspace.products().join("loom"));
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_PROFILE_DEV_OPT_LEVEL", "2");
    let mut none = true;
    for package in &workspace.packages {
        if package.dependencies.iter().any(|dependency| dependency.name == "loom") {
            none = false;
            command.args(["--package", &package.name]);
        }
    }
    if none {
        bail!("no package depends on loom");
    }
    command.args(["--", "loom"]);
    cargo_test(command)
}

/// Runs `cargo test`, shows what it prints and adds up its closing lines.
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

/// The numbers of a closing line of Rust's test programs: `test result: ok. 3 passed; 0 failed; …`.
fn closing_line(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number =
        |word: &str| counts.split("; ").find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok());
    Some(Tally { passed: number("passed")?, failed: number("failed")? })
}

/// The machine's suite on every machine.
fn qemu(context: &Context, toolchain: &Toolchain, products: &Products, arguments: &cli::Test, findings: &mut Findings) {
    for machine in Variant::value_variants() {
        for harts in HARTS {
            let harts = match arguments.harts {
                Some(chosen) if harts == HARTS[0] => chosen,
                Some(_) => continue,
                None => harts,
            };
            if arguments.machine.is_some_and(|chosen| chosen != *machine) {
                continue;
            }
            let chosen = cli::Machine { harts: Some(harts), memory: None, machine: Some(*machine) };
            let part = format!("QEMU {machine}, {harts} hart{}", if harts == 1 { "" } else { "s" });
            heading(&part);
            let filter: Vec<_> = arguments.filter.iter().cloned().collect();
            findings.add(part, boot(context, toolchain, products, &chosen, &filter));
        }
    }
}

/// One boot of the machine's suite.
fn boot(
    context: &Context,
    toolchain: &Toolchain,
    products: &Products,
    machine: &cli::Machine,
    filter: &[String],
) -> Result<(Tally, Vec<String>)> {
    if !products.programs.iter().any(|program| program == PROGRAM) {
        bail!("the workspace has no program `{PROGRAM}`");
    }
    let configuration = context.configuration(products, machine, command_line(PROGRAM, filter)?);
    let log = context.log(&format!("test-{}-{}", configuration.machine, configuration.harts));
    let mut guest = Guest::start(&toolchain.qemu, &context.board, &configuration, &log, Echo::LogOnly)?;
    let found = follow(&mut guest, &mut |line| {
        println!("{line}");
        let _ = std::io::stdout().flush();
    });
    if found.as_ref().is_ok_and(|(tally, failures)| tally.failed > 0 || !failures.is_empty()) {
        eprintln!("The machine's serial log is {}", log.display());
    }
    found
}

/// Follows a suite in the machine to its end.
fn follow(guest: &mut Guest, show: &mut dyn FnMut(&str)) -> Result<(Tally, Vec<String>)> {
    let end = Instant::now() + MACHINE_LIMIT;
    let mut counted = Tally::default();
    let mut failures = Vec::new();
    let closing = loop {
        let limit = SILENCE_LIMIT.min(end.saturating_duration_since(Instant::now()));
        let expected = match counted.passed + counted.failed {
            0 => "the first test of the machine's suite".to_string(),
            tests => format!("the end of the machine's suite after {tests} tests"),
        };
        // Any line is a sign of life; a suite that prints without end is stopped by the other limit.
        let line = guest.wait_for(&expected, limit, |line| Some(line.to_string()))?;
        match test_line(&line) {
            Some(TestLine::Passed(_)) => counted.passed += 1,
            Some(TestLine::Failed(name)) => {
                counted.failed += 1;
                failures.push(name);
            }
            Some(TestLine::Closing { passed, failed }) => {
                show(&line);
                break Tally { passed, failed };
            }
            None => continue,
        }
        show(&line);
    };
    if closing != counted {
        failures.push(format!("the suite says {closing}, but its lines are {counted}"));
        counted.failed += 1;
    }
    if let Err(failure) = guest.wait_for_end(END_LIMIT)
        // A suite with failures ends the machine with a failure, as it should.
        && (closing.failed == 0 || !failure.is_end())
    {
        failures.push(format!("after the last test, {failure}"));
        counted.failed += 1;
    }
    Ok((counted, failures))
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

    #[test]
    fn a_summary_names_failures_and_adds_up() {
        let mut findings = Findings::default();
        findings.add("host".into(), Ok((Tally { passed: 10, failed: 1 }, vec!["a::b".into()])));
        findings.add("QEMU aia, 4 harts".into(), Err(anyhow::anyhow!("it panicked\n  #0")));
        let summary = findings.summary();
        assert!(summary.contains("    host: a::b\n    QEMU aia, 4 harts: it panicked\n      #0\n"), "{summary}");
        assert!(
            summary.ends_with(
                "host               10 passed, 1 failed\nQEMU aia, 4 harts  0 passed, 1 failed\n10 passed, 2 failed\n"
            ),
            "{summary}"
        );
    }
}
