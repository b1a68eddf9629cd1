//! `fuzz`: lets libFuzzer look for inputs that break a property.
//!
//! The targets are ordinary tests (see the crate `property`). Here they are built with counters on every branch, which
//! the compiler can add without being a nightly one, and run until the time is over or an input breaks one. Inputs that
//! take new branches are collected in the target directory; `--keep` adds the smallest set with the same branches to
//! the tree, where every run of the tests tries it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::children::{self, Child, Ending};
use crate::cli;
use crate::context::Context;
use crate::workspace;

/// A property of bytes, and its test program.
struct Target {
    name: &'static str,
    package: &'static str,
    /// The test program of `tests/`, if it is not the library's own.
    program: Option<&'static str>,
}

const TARGETS: [Target; 8] = [
    Target { name: "elf", package: "program", program: Some("image") },
    Target { name: "cpio", package: "filesystem", program: Some("archive") },
    Target { name: "device_tree", package: "platform", program: None },
    Target { name: "frames", package: "network", program: Some("faults") },
    Target { name: "discovery", package: "network", program: Some("six") },
    Target { name: "virtqueue", package: "virtio", program: None },
    Target { name: "ring", package: "ring", program: None },
    Target { name: "messages", package: "kernel-micro", program: None },
];

/// The counters of libFuzzer: of every branch, and of comparisons with their operands.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Largest input in bytes. Failures that need a larger one are left to the seeds, which may be larger.
const LONGEST: u32 = 8192;

/// Approximate number of bytes of one target that are kept in the tree.
const MOST_KEPT: u64 = 128 << 10;

/// Seconds that one input may take, on a host with other load.
const PATIENCE: u32 = 60;

/// Fuzzes one target, or each for its share of the time.
///
/// # Errors
///
/// An input breaks the property; the message has its path. Or the target cannot be built.
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
        let inputs = sorted(&[&found, &kept])?;
        let covered = compare(context, target, &folder.join("control"), &inputs)?;
        let mut smallest: Vec<&Input> = smallest(&covered).into_iter().filter_map(|index| inputs.get(index)).collect();
        // The test has its seeds without the corpus.
        smallest.retain(|input| input.is_found);
        let mut bytes = 0;
        let fits = |input: &&&Input| {
            bytes += input.length;
            bytes <= MOST_KEPT
        };
        let count = smallest.iter().take_while(fits).count();
        replace(&kept, &smallest[..count])?;
        println!("fuzz {}: {count} of {} inputs are in {}", target.name, inputs.len(), kept.display());
    }
    Ok(())
}

/// An input that libFuzzer found, or a seed.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Input {
    // In the order in which inputs are preferred.
    is_found: bool,
    length: u64,
    path: PathBuf,
}

/// Lists the inputs in some folders: the test's own seeds, then the others, the shortest first.
fn sorted(folders: &[&Path]) -> Result<Vec<Input>> {
    let mut inputs = Vec::new();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let is_found = !entry.file_name().to_string_lossy().starts_with("seed-");
            inputs.push(Input { is_found, length: entry.metadata()?.len(), path: entry.path() });
        }
    }
    inputs.sort();
    Ok(inputs)
}

/// Determines the branches that each input takes.
///
/// libFuzzer's own merge would restart the program with its own arguments, which the harness of tests does not
/// understand. Its inner step alone reads a list of inputs and writes the coverage of each behind it.
fn compare(context: &Context, target: &Target, control: &Path, inputs: &[Input]) -> Result<Vec<Vec<u64>>> {
    let mut list = format!("{}\n0\n", inputs.len());
    for input in inputs {
        list.push_str(&format!("{}\n", input.path.display()));
    }
    std::fs::write(control, list).with_context(|| format!("cannot write {}", control.display()))?;
    let arguments = [format!("-merge_control_file={}", control.display()), "-merge_inner=1".into()];
    libfuzzer(context, target, &[&arguments[..], &["-rss_limit_mb=0".into(), "-detect_leaks=0".into()]].concat())?;
    let covered = coverage(&std::fs::read_to_string(control)?, inputs.len());
    if covered.iter().all(Vec::is_empty) {
        bail!("libFuzzer reports no coverage of any input: {}", control.display());
    }
    Ok(covered)
}

/// Returns the branches of each input, from lines `COV input branch branch ...`: those that an earlier input took are
/// left out.
fn coverage(control: &str, count: usize) -> Vec<Vec<u64>> {
    let mut covered = vec![Vec::new(); count];
    for line in control.lines() {
        let mut words = line.split_whitespace();
        if words.next() == Some("COV")
            && let Some(place) = words.next().and_then(|index| covered.get_mut(index.parse::<usize>().ok()?))
        {
            place.extend(words.filter_map(|word| word.parse::<u64>().ok()));
        }
    }
    covered
}

/// Chooses inputs that together take every branch, the first ones preferred.
fn smallest(covered: &[Vec<u64>]) -> Vec<usize> {
    let mut taken = BTreeSet::new();
    let adds = |branches: &Vec<u64>| branches.iter().filter(|branch| taken.insert(**branch)).count() > 0;
    let added: Vec<bool> = covered.iter().map(adds).collect();
    (0..covered.len()).filter(|&index| added[index]).collect()
}

/// Replaces the kept inputs. The name of each is made from its bytes, so that an input that stays keeps its name.
fn replace(kept: &Path, inputs: &[&Input]) -> Result<()> {
    let contents = inputs.iter().map(|input| std::fs::read(&input.path)).collect::<Result<Vec<_>, _>>()?;
    if kept.is_dir() {
        std::fs::remove_dir_all(kept).with_context(|| format!("cannot empty {}", kept.display()))?;
    }
    std::fs::create_dir_all(kept)?;
    for bytes in contents {
        std::fs::write(kept.join(name(&bytes)), bytes)?;
    }
    Ok(())
}

/// Returns a name for an input (FNV-1a).
fn name(bytes: &[u8]) -> String {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

/// Builds the target's test program with counters, and runs it with libFuzzer.
fn libfuzzer(context: &Context, target: &Target, arguments: &[String]) -> Result<()> {
    let host = host()?;
    let mut command: Command = workspace::cargo();
    command.current_dir(&context.workspace.root);
    command.args(["test", "--quiet", "--profile", "long", "--package", target.package]);
    // With a target, code that runs in the compiler has no counters: they would not be read there.
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

/// Returns the name of the host's own target.
fn host() -> Result<String> {
    let output = children::command("rustc").arg("-vV").output().context("rustc could not be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_string())
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

    #[test]
    fn every_target_has_a_corpus_in_the_tree() {
        let workspace = crate::workspace::Workspace::load().unwrap();
        for target in &TARGETS {
            let kept = workspace.root.join("tests/property/corpora").join(target.name);
            let inputs = sorted(&[&kept]).unwrap();
            assert!(!inputs.is_empty(), "{} has no corpus", target.name);
            for input in inputs {
                let bytes = std::fs::read(&input.path).unwrap();
                assert!(input.path.ends_with(name(&bytes)), "{} is not as it was kept", input.path.display());
            }
        }
    }

    #[test]
    fn an_input_that_takes_no_new_branch_is_not_kept() {
        let control = "3\n0\na\nb\nc\nSTARTED 0 1\nFT 0 9\nCOV 0 1 2\nSTARTED 1 1\nFT 1 9\nCOV 1\nCOV 2 2 3\n";
        let covered = coverage(control, 3);
        assert_eq!(covered, [vec![1, 2], vec![], vec![2, 3]]);
        assert_eq!(smallest(&covered), [0, 2]);
        assert_eq!(name(b""), "cbf29ce484222325");
        assert_ne!(name(b"a"), name(b"b"));
    }
}
