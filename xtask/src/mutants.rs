//! `mutants`: changes the code in small ways, one at a time, and says which changes no test notices.
//!
//! cargo-mutants makes the changes. A change is tested by the crate's own tests first and, if these pass, by those of
//! the crates that use it on the host. Changes that survive and need not be noticed are listed, each with the reason,
//! in
//! `tests/mutants.md`; all others are gaps.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::children::{Child, Ending};
use crate::cli;
use crate::context::Context;
use crate::workspace;

/// A crate whose tests are tested, and those whose tests test it too.
struct Subject {
    package: &'static str,
    dependants: &'static [&'static str],
}

const SUBJECTS: [Subject; 7] = [
    Subject { package: "ring", dependants: &["runtime", "kernel-unix", "kernel-micro"] },
    Subject { package: "waiters", dependants: &["network", "kernel-unix"] },
    Subject { package: "coroutine", dependants: &["runtime", "kernel-unix"] },
    Subject { package: "scheduler", dependants: &["coroutine", "runtime"] },
    Subject { package: "memory", dependants: &["kernel-thread", "kernel-unix"] },
    Subject { package: "filesystem", dependants: &["kernel-unix"] },
    Subject { package: "network", dependants: &["virtio", "kernel-unix"] },
];

/// The version that the table of survivors was made with.
const VERSION: &str = "27.1.0";

/// Survivors with their reasons.
const EXPLAINED: &str = "tests/mutants.md";

/// Seconds that the tests of one change may take, at least.
const PATIENCE: &str = "120";

/// Tests the tests of one crate or of all.
///
/// # Errors
///
/// Changes survive that are not explained, or cargo-mutants cannot be had.
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
        gaps += test(context, &tools, subject, arguments.part.as_deref(), &explained)?;
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

/// Makes the changes of one crate; returns how many survive without a reason.
fn test(context: &Context, tools: &Path, subject: &Subject, part: Option<&str>, explained: &str) -> Result<usize> {
    let folder = context.workspace.products().join("mutants").join(subject.package);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = Command::new(tools.join("bin/cargo-mutants"));
    command.current_dir(&context.workspace.root);
    command.args(["mutants", "--package", subject.package, "--timeout", PATIENCE, "--colors", "never"]);
    // The models are tests themselves, compiled for loom only.
    command.args(["--exclude", "**/loom*.rs"]);
    for package in [&[subject.package], subject.dependants].concat() {
        command.args(["--test-package", package]);
    }
    command.arg("--output").arg(&folder);
    if let Some(part) = part {
        command.args(["--shard", part]);
    }
    // Its status says that changes survived, too; what it wrote says which.
    Child::start(&mut command, Ending::Ask).context("cargo-mutants could not be started")?.wait()?;
    let list = |name: &str| std::fs::read_to_string(folder.join("mutants.out").join(name));
    let (missed, caught) = (list("missed.txt")?, list("caught.txt")?);
    let timed_out = list("timeout.txt").unwrap_or_default();
    let gaps: Vec<&str> = missed.lines().filter(|line| !is_explained(line, explained)).collect();
    let (missed, caught) = (missed.lines().count(), caught.lines().count() + timed_out.lines().count());
    println!(
        "mutants of {}: {caught} of {} noticed, {} survived with a reason, {} without",
        subject.package,
        caught + missed,
        missed - gaps.len(),
        gaps.len()
    );
    gaps.iter().for_each(|gap| println!("  {gap}"));
    Ok(gaps.len())
}

/// The change in words, without the place, which moves: `lib/ring/src/lib.rs:155:9: replace < with <= in …`.
fn change(line: &str) -> (&str, &str) {
    let mut parts = line.splitn(4, ':');
    let file = parts.next().unwrap_or_default();
    (file, parts.nth(2).unwrap_or_default().trim())
}

/// Whether the table has a row with the file and the change.
fn is_explained(line: &str, explained: &str) -> bool {
    let (file, change) = change(line);
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
    }

    #[test]
    fn subjects_and_dependants_exist() {
        let workspace = crate::workspace::Workspace::load().unwrap();
        for name in SUBJECTS.iter().flat_map(|subject| [&[subject.package], subject.dependants].concat()) {
            assert!(workspace.packages.iter().any(|package| package.name == name), "{name}");
        }
    }
}
