//! `fuzz`: lets libFuzzer look for inputs that break a property.
//!
//! The targets are ordinary tests (see the crate `property`). Here they are built with counters on every branch, which
//! the compiler can add without being a nightly one, and run until the time is over or an input breaks one. Inputs that
//! take new branches are collected in the target directory; `--keep` adds the smallest set with the same branches to
//! the tree, where every run of the tests tries it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::children::{self, Child, Ending};
use crate::cli;
use crate::context::Context;
use crate::workspace;

/// A property of bytes, and the test program that knows it.
struct Target {
    name: &'static str,
    package: &'static str,
    /// The test program of `tests/`, if it is not the library's own.
    program: Option<&'static str>,
}

const TARGETS: [Target; 7] = [
    Target { name: "elf", package: "program", program: Some("image") },
    Target { name: "cpio", package: "filesystem", program: Some("archive") },
    Target { name: "device_tree", package: "platform", program: None },
    Target { name: "frames", package: "network", program: Some("faults") },
    Target { name: "virtqueue", package: "virtio", program: None },
    Target { name: "ring", package: "ring", program: None },
    Target { name: "messages", package: "kernel-micro", program: None },
];

/// The counters of libFuzzer: of every branch, and of what is compared with what.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The longest input in bytes. What needs a longer one to break is found by the seeds, which may be longer.
const LONGEST: u32 = 4096;

/// The longest input that is kept in the tree.
const LONGEST_KEPT: u64 = 4096;

/// Seconds that one input may take, on a host that does something else too.
const PATIENCE: u32 = 60;

/// Fuzzes one target, or each for its share of the time.
///
/// # Errors
///
/// An input breaks the property; the message says where it is. Or the target cannot be built.
pub fn fuzz(context: &Context, arguments: &cli::Fuzz) -> Result<()> {
    let wanted: Vec<&Target> = match &arguments.target {
        None => TARGETS.iter().collect(),
        Some(name) => vec![find(name)?],
    };
    let seconds = (arguments.seconds / wanted.len() as u64).max(1);
    let mut broken = Vec::new();
    for target in wanted {
        if let Err(error) = run(context, target, seconds, arguments.keep) {
            crate::interrupt::stand_still_if_requested();
            println!("fuzz {}: {error:#}", target.name);
            broken.push(target.name);
        }
    }
    if !broken.is_empty() {
        bail!("fuzzing failed: {}", broken.join(", "));
    }
    Ok(())
}

fn find(name: &str) -> Result<&'static Target> {
    TARGETS.iter().find(|target| target.name == name).with_context(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        format!("there is no fuzz target `{name}`; there are {}", names.join(", "))
    })
}

fn run(context: &Context, target: &Target, seconds: u64, keep: bool) -> Result<()> {
    let folder = context.workspace.products().join("fuzz").join(target.name);
    let (found, failures) = (folder.join("corpus"), folder.join("failures"));
    let kept = context.workspace.root.join("tests/property/corpora").join(target.name);
    for folder in [&found, &failures] {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut arguments = vec![found.display().to_string()];
    if kept.is_dir() {
        arguments.push(kept.display().to_string());
    }
    arguments.extend([
        format!("-max_total_time={seconds}"),
        format!("-max_len={LONGEST}"),
        format!("-timeout={PATIENCE}"),
        format!("-artifact_prefix={}/", failures.display()),
        // Archives and rings of a test are leaked on purpose; a limit would end long runs for that.
        "-rss_limit_mb=0".into(),
        "-detect_leaks=0".into(),
        "-print_final_stats=1".into(),
    ]);
    libfuzzer(context, target, &arguments)
        .with_context(|| format!("an input broke it, or it was not built; inputs are in {}", failures.display()))?;
    if keep {
        let smallest = folder.join("smallest");
        let _ = std::fs::remove_dir_all(&smallest);
        std::fs::create_dir_all(&smallest)?;
        let arguments = ["-merge=1".into(), "-detect_leaks=0".into(), found.display().to_string()];
        libfuzzer(context, target, &[&[smallest.display().to_string()], &arguments[..]].concat())?;
        let count = replace(&kept, &smallest)?;
        println!("fuzz {}: {count} inputs in {}", target.name, kept.display());
    }
    Ok(())
}

/// Replaces the kept inputs by the new ones that are short enough; says how many there are.
fn replace(kept: &Path, new: &Path) -> Result<usize> {
    if kept.is_dir() {
        std::fs::remove_dir_all(kept).with_context(|| format!("cannot empty {}", kept.display()))?;
    }
    std::fs::create_dir_all(kept)?;
    let entries = std::fs::read_dir(new)?.collect::<Result<Vec<_>, _>>()?;
    let paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    let mut count = 0;
    for path in paths {
        if path.metadata()?.len() <= LONGEST_KEPT
            && let Some(name) = path.file_name()
        {
            std::fs::copy(&path, kept.join(name))?;
            count += 1;
        }
    }
    Ok(count)
}

/// Builds the target's test program with counters, and gives it to libFuzzer.
fn libfuzzer(context: &Context, target: &Target, arguments: &[String]) -> Result<()> {
    let host = host()?;
    let mut command: Command = workspace::cargo();
    command.current_dir(&context.workspace.root);
    command.args(["test", "--quiet", "--profile", "long", "--package", target.package]);
    // With a target, what runs in the compiler has no counters: nobody would read them there.
    command.args(["--features", "property/libfuzzer", "--target", &host]);
    command.arg("--target-dir").arg(context.workspace.products().join("fuzz/build"));
    match target.program {
        Some(program) => command.args(["--test", program]),
        None => command.arg("--lib"),
    };
    command.args(["--", "--nocapture", "--test-threads", "1", &format!("fuzz_{}", target.name)]);
    command.env("RUSTFLAGS", COVERAGE);
    command.env("COPS_FUZZ", target.name).env("COPS_FUZZ_ARGUMENTS", arguments.join("\n"));
    let mut child = Child::start(&mut command, Ending::Ask).context("cargo could not be started")?;
    let status = child.wait()?;
    if !status.success() {
        bail!("fuzzing {}: {status}", target.name);
    }
    Ok(())
}

/// The name of the host's own target.
fn host() -> Result<String> {
    let output = children::command("rustc").arg("-vV").output().context("rustc could not be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what its host is")?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_a_test_of_its_package() {
        let workspace = crate::workspace::Workspace::load().unwrap();
        for target in &TARGETS {
            let package = workspace.packages.iter().find(|package| package.name == target.package).expect(target.name);
            let folder = package.manifest_path.parent().unwrap();
            let call = format!("property::fuzz(\"{}\"", target.name);
            let test = format!("fn fuzz_{}()", target.name);
            let files = crate::tidy::sources(folder).unwrap();
            let holds = |file: &&PathBuf| {
                let text = std::fs::read_to_string(file).unwrap();
                text.contains(&call) && text.contains(&test)
            };
            let file = files.iter().find(holds).expect(target.name);
            let program = target.program.map(|program| format!("tests/{program}.rs"));
            assert_eq!(program.is_some_and(|program| file.ends_with(program)), target.program.is_some());
        }
        assert!(find("nothing").is_err_and(|error| error.to_string().contains("device_tree")));
    }
}
