//! `mutants`: changes the code in small ways, one at a time, and reports the changes that no test notices.
//!
//! cargo-mutants makes the changes. The crate's own tests are tried first, with a part of the usual cases, since most
//! changes are noticed by almost any case. Only the changes that survive this meet all cases; then the models of
//! concurrent code, if there are any; then the tests of the crates that use this one on the host, which take minutes to
//! build. Changes that survive and need not be noticed are listed, each with the reason, in `tests/mutants.md`; all
//! others are gaps.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::children::{Child, Ending};
use crate::cli;
use crate::context::Context;
use crate::suites::{self, CASES, MODELS_ENVIRONMENT, MODELS_PROFILE};
use crate::workspace;

/// A crate under test, and the crates whose tests test it too.
struct Subject {
    package: &'static str,
    dependants: &'static [&'static str],
}

const SUBJECTS: [Subject; 8] = [
    Subject { package: "ring", dependants: &["runtime", "kernel-unix", "kernel-micro"] },
    Subject { package: "waiters", dependants: &["network", "kernel-unix"] },
    Subject { package: "coroutine", dependants: &["runtime", "kernel-unix"] },
    Subject { package: "scheduler", dependants: &["coroutine", "runtime"] },
    Subject { package: "tables", dependants: &["waiters", "filesystem", "program"] },
    Subject { package: "memory", dependants: &["kernel-thread", "kernel-unix"] },
    Subject { package: "filesystem", dependants: &["kernel-unix"] },
    Subject { package: "network", dependants: &["virtio", "kernel-unix"] },
];

/// The version with which the table of survivors was made.
const VERSION: &str = "27.1.0";

/// Survivors with their reasons.
const EXPLAINED: &str = "tests/mutants.md";

/// Least limit in seconds for the tests of one change; larger if they take a fifth of that without a change.
const PATIENCE: &str = "20";

/// Number of changes tried at a time. Building a crate and running its tests use little more than one processor.
const JOBS: &str = "2";

/// The part of the usual cases of a property that every change meets.
const FEWER_CASES: &str = "0.1";

/// Compiler settings: a little optimised, because tests of a quarter of a minute then take seconds; and without debug
/// information, because no one looks for a line in changed code.
const PROFILE: [(&str, &str); 2] = [("CARGO_PROFILE_DEV_OPT_LEVEL", "1"), ("CARGO_PROFILE_DEV_DEBUG", "false")];

/// Files without changes, since they are tests themselves: on the host, for loom and for the machine.
const EXCLUDED: [&str; 3] = ["**/tests.rs", "**/loom*.rs", "**/suite.rs"];

/// Names of changes that are not tried, since only models contain their code.
const EXCLUDED_NAMES: &str = "loom_tests::|loom::";

/// Tests the tests of one crate or of all.
///
/// # Errors
///
/// Changes survive without an explanation, or cargo-mutants is not available.
pub fn mutants(context: &Context, arguments: &cli::Mutants) -> Result<()> {
    let names: Vec<_> = SUBJECTS.iter().map(|subject| subject.package).collect();
    let wanted: Vec<&Subject> = SUBJECTS
        .iter()
        .filter(|subject| arguments.package.as_ref().is_none_or(|package| package == subject.package))
        .collect();
    if wanted.is_empty() {
        bail!("mutants are made of {}", names.join(", "));
    }
    let tools = context.workspace.products().join("mutants/tools");
    install(&tools)?;
    let explained = std::fs::read_to_string(context.workspace.root.join(EXPLAINED)).unwrap_or_default();
    let mut gaps = 0;
    for subject in wanted {
        gaps += test(context, &tools, subject, arguments, &explained)?;
    }
    if gaps > 0 {
        bail!("{gaps} changes were noticed by no test, and {EXPLAINED} does not say why");
    }
    Ok(())
}

/// Installs cargo-mutants in the target directory, unless it is there.
fn install(tools: &Path) -> Result<()> {
    if tools.join("bin/cargo-mutants").is_file() {
        return Ok(());
    }
    let mut command = workspace::cargo();
    command.args(["install", "cargo-mutants", "--version", VERSION, "--locked", "--root"]).arg(tools);
    let status = Child::start(&mut command, Ending::Kill).context("cargo could not be started")?.wait()?;
    if !status.success() {
        bail!("cargo-mutants {VERSION} could not be installed: {status}");
    }
    Ok(())
}

/// Makes the command that changes a crate and tests it, with a folder for its report.
fn command(
    context: &Context,
    tools: &Path,
    subject: &Subject,
    folder: &Path,
    cases: &str,
) -> Result<(Command, PathBuf)> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = Command::new(tools.join("bin/cargo-mutants"));
    command.current_dir(&context.workspace.root).env(CASES, cases);
    command.envs(PROFILE);
    command.args(["mutants", "--package", subject.package, "--colors", "never"]);
    command.args(["--minimum-test-timeout", PATIENCE, "--jobs", JOBS]);
    EXCLUDED.iter().for_each(|files| _ = command.args(["--exclude", files]));
    command.args(["--exclude-re", EXCLUDED_NAMES]).arg("--output").arg(folder);
    Ok((command, folder.to_path_buf()))
}

/// Makes the changes of one crate; returns the number that survive without a reason.
fn test(
    context: &Context,
    tools: &Path,
    subject: &Subject,
    arguments: &cli::Mutants,
    explained: &str,
) -> Result<usize> {
    let folder = context.workspace.products().join("mutants").join(subject.package);
    let command = |name: &str, cases: &str| command(context, tools, subject, &folder.join(name), cases);
    let (mut first, written) = command("first", FEWER_CASES)?;
    first.args(["--test-package", subject.package]);
    if let Some(part) = &arguments.part {
        // Every Nth change: a part is a sample of the whole crate.
        first.args(["--sharding", "round-robin", "--shard", part]);
    }
    let Outcome { noticed, missed } = Outcome::of(first, &written)?;
    let viable = noticed.len() + missed.len();
    let (with_reason, mut gaps): (Vec<_>, Vec<_>) = missed.into_iter().partition(|line| is_explained(line, explained));
    let mut try_again = |(mut command, written): (Command, PathBuf)| -> Result<()> {
        if !gaps.is_empty() {
            gaps.iter().for_each(|line| _ = command.args(["--re", &pattern(line)]));
            let Outcome { noticed, .. } = Outcome::of(command, &written)?;
            gaps.retain(|line| !noticed.contains(line));
        }
        Ok(())
    };
    let mut all = command("all", "1")?;
    all.0.args(["--test-package", subject.package]);
    try_again(all)?;
    if let Some((programs, filters)) = context.workspace.package(subject.package).and_then(suites::models) {
        let mut models = command("models", "1")?;
        models.0.envs([MODELS_ENVIRONMENT]).args(MODELS_PROFILE).args(["--test-package", subject.package]);
        programs.iter().for_each(|program| _ = models.0.arg(format!("--cargo-arg={program}")));
        filters.iter().for_each(|filter| _ = models.0.arg(format!("--cargo-test-arg={filter}")));
        try_again(models)?;
    }
    if !arguments.own {
        let mut dependants = command("dependants", "1")?;
        subject.dependants.iter().for_each(|package| _ = dependants.0.args(["--test-package", package]));
        try_again(dependants)?;
    }
    println!(
        "mutants of {}: of {} that compile {} noticed, {} survived with a reason, {} without",
        subject.package,
        viable,
        viable - with_reason.len() - gaps.len(),
        with_reason.len(),
        gaps.len()
    );
    gaps.iter().for_each(|gap| println!("  {gap}"));
    Ok(gaps.len())
}

/// The outcome of some changes.
struct Outcome {
    /// A test failed, or did not come to its end.
    noticed: Vec<String>,
    /// All tests passed.
    missed: Vec<String>,
}

impl Outcome {
    /// Runs cargo-mutants. Its status also reports survivors; its output names them.
    fn of(mut command: Command, folder: &Path) -> Result<Outcome> {
        let written = folder.join("mutants.out");
        // Output of an earlier run.
        if written.exists() {
            std::fs::remove_dir_all(&written).with_context(|| format!("cannot remove {}", written.display()))?;
        }
        Child::start(&mut command, Ending::Ask).context("cargo-mutants could not be started")?.wait()?;
        let list = |name: &str| -> Result<Vec<String>> {
            let text = std::fs::read_to_string(written.join(name)).with_context(|| format!("no {name}"))?;
            Ok(text.lines().map(String::from).collect())
        };
        let missed = list("missed.txt")?;
        let noticed = [list("caught.txt")?, list("timeout.txt")?].concat();
        if missed.is_empty() && noticed.is_empty() {
            bail!("no change was tried; {} says why", written.join("log").display());
        }
        Ok(Outcome { noticed, missed })
    }
}

/// Returns a regular expression that matches this line only.
fn pattern(line: &str) -> String {
    let escaped = line.chars().map(|letter| match letter {
        letter if letter.is_ascii_alphanumeric() => letter.to_string(),
        other => format!("\\x{{{:x}}}", u32::from(other)),
    });
    format!("^{}$", escaped.collect::<String>())
}

/// Returns the file and the change in words, without the place, which moves:
/// `lib/ring/src/lib.rs:155:9: replace < with <= in …`.
fn change(line: &str) -> (&str, &str) {
    let mut parts = line.splitn(4, ':');
    let file = parts.next().unwrap_or_default();
    (file, parts.nth(2).unwrap_or_default().trim())
}

/// Returns whether the table has a row with the file and the change. A bar in it is escaped, since bars separate
/// columns.
fn is_explained(line: &str, explained: &str) -> bool {
    let (file, change) = change(line);
    let change = change.replace('|', "\\|");
    let row = |row: &str| row.starts_with(&format!("| {file} | `{change}` |"));
    !change.is_empty() && explained.lines().any(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_found_again_when_its_line_has_moved() {
        let table =
            "| file | change | reason |\n|---|---|---|\n| lib/ring/src/lib.rs | `replace < with <= in f` | equal |\n";
        assert!(is_explained("lib/ring/src/lib.rs:10:9: replace < with <= in f", table));
        assert!(is_explained("lib/ring/src/lib.rs:99:1: replace < with <= in f", table));
        assert!(!is_explained("lib/ring/src/lib.rs:10:9: replace < with > in f", table));
        assert!(!is_explained("lib/waiters/src/lib.rs:10:9: replace < with <= in f", table));
        assert!(!is_explained("nothing", table));
        let table = "| a.rs | `replace \\| with ^ in f` | equal |\n";
        assert!(is_explained("a.rs:1:2: replace | with ^ in f", table));
    }

    #[test]
    fn a_pattern_has_no_letter_with_a_meaning() {
        assert_eq!(pattern("a1: <"), "^a1\\x{3a}\\x{20}\\x{3c}$");
    }

    #[test]
    fn subjects_and_dependants_exist() {
        let workspace = crate::workspace::Workspace::load().unwrap();
        for name in SUBJECTS.iter().flat_map(|subject| [&[subject.package], subject.dependants].concat()) {
            assert!(workspace.packages.iter().any(|package| package.name == name), "{name}");
        }
    }
}
