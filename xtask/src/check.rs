//! `check`: every check of the tree, one after the other.
//!
//! A step that fails does not prevent the others: one run reports all failures.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::build::{self, Counters, DebugCalls, Harts, Variation, run_cargo};
use crate::children::{Child, Ending};
use crate::cli;
use crate::context::{Context, Need};
use crate::linux_target;
use crate::results;
use crate::suites::{self, Suite};
use crate::tidy;
use crate::workspace::{self, Crate};

/// A step of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Step {
    /// Every source file is formatted as rustfmt does it.
    Format,
    /// The rules of the tree: ranks, sides, unsafe code, the map.
    Tidy,
    /// All packages for the target compile and link, the C example too.
    Build,
    /// No warnings of clippy, for the host and for the target.
    Clippy,
    /// No warnings of rustdoc.
    Docs,
    /// The pages of results in a browser: no text is cut, covered or too faint. Left out where there is no Chromium.
    Pages,
    /// The tests on the host.
    Host,
    /// The models of concurrent code.
    Loom,
    /// The crates with unsafe code, interpreted by Miri, which sees undefined behaviour. Left out where Miri cannot be
    /// had.
    Miri,
    /// The whole system in QEMU.
    Qemu,
    /// The microkernel in QEMU.
    Micro,
}

/// Returns whether a check boots machines.
pub fn boots(arguments: &cli::Check) -> bool {
    arguments.steps.is_empty() || arguments.steps.iter().any(|step| [Step::Qemu, Step::Micro].contains(step))
}

/// Runs steps.
///
/// # Errors
///
/// A step fails; the end of the output lists the failed ones.
pub fn check(context: &Context, arguments: &cli::Check) -> Result<()> {
    let all = Step::value_variants();
    let steps = all.iter().copied().filter(|step| arguments.steps.is_empty() || arguments.steps.contains(step));
    let mut failed = Vec::new();
    for step in steps {
        let name = step.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default();
        println!("\n== check {name}");
        let started = Instant::now();
        match run(context, step) {
            Ok(()) => println!("check {name}: ok, {} s", started.elapsed().as_secs()),
            Err(error) => {
                crate::interrupt::stand_still_if_requested();
                println!("check {name}: FAILED\n{error:#}");
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        println!("\ncheck: everything is as it should be");
        return Ok(());
    }
    bail!("check failed: {}", failed.join(", "))
}

fn run(context: &Context, step: Step) -> Result<()> {
    match step {
        Step::Format => show(workspace_cargo(context, &["fmt", "--all", "--check"]), "run `cargo fmt --all`"),
        Step::Tidy => tidy::tidy(&context.workspace),
        Step::Build => build_everything(context),
        Step::Clippy => clippy(context),
        Step::Docs => docs(context),
        Step::Pages => results::look_at_pages(context),
        Step::Host => suite(context, Suite::Host),
        Step::Loom => suite(context, Suite::Loom),
        Step::Miri => crate::miri::miri(context),
        Step::Qemu => suite(context, Suite::Qemu),
        Step::Micro => suite(context, Suite::Micro),
    }
}

/// Both kernels, the microkernel in its variations, with all programs.
fn build_everything(context: &Context) -> Result<()> {
    let (toolchain, _) = context.build(Need::Everything)?;
    for harts in [Harts::One, Harts::Several] {
        context.build_microkernel(Variation::new(harts))?;
    }
    let one = Variation::new(Harts::One);
    context.build_microkernel(Variation { counters: Counters::Threads, ..one })?;
    context.build_microkernel(Variation { debug_calls: DebugCalls::None, ..one })?;
    build::look_at_hot_functions(&context.workspace, &toolchain)
}

fn suite(context: &Context, suite: Suite) -> Result<()> {
    suites::test(
        context,
        &cli::Test { suites: vec![suite], harts: None, machine: None, user_interrupts: None, filter: None },
    )
}

fn workspace_cargo(context: &Context, arguments: &[&str]) -> Command {
    let mut command = workspace::cargo();
    command.current_dir(&context.workspace.root).args(arguments);
    command
}

fn exclude_target_only(context: &Context, command: &mut Command) {
    for package in context.workspace.packages.iter().filter(|package| package.is_target_only()) {
        command.args(["--exclude", &package.name]);
    }
}

fn clippy(context: &Context) -> Result<()> {
    let mut host = workspace_cargo(context, &["clippy", "--workspace", "--all-targets"]);
    exclude_target_only(context, &mut host);
    host.args(["--", "-D", "warnings"]);
    show(host, "clippy, on the host")?;
    // Dependencies of programs and kernels are checked with them.
    let mut target = for_target(context, "clippy", Crate::is_linked)?;
    target.args(["--", "-D", "warnings"]);
    show(target, "clippy, for the target")?;
    clippy_with_std(context)
}

/// Programs with the standard library, and the part of their libraries that only they have.
fn clippy_with_std(context: &Context) -> Result<()> {
    if let Err(error) = linux_target::ensure(&context.progress) {
        println!("clippy, with the standard library: left out: {error}");
        return Ok(());
    }
    let mut command = linux_target::cargo(&context.workspace, "clippy", &context.workspace.products().join("std"));
    for package in context.workspace.packages.iter().filter(|package| package.has_std()) {
        command.args(["--package", &package.name]);
    }
    command.args(["--", "-D", "warnings"]);
    show(command, "clippy, with the standard library")
}

fn docs(context: &Context) -> Result<()> {
    let mut host = workspace_cargo(context, &["doc", "--workspace", "--no-deps"]);
    exclude_target_only(context, &mut host);
    run_cargo(deny_warnings(host), "Documenting", &context.progress)?;
    let target = for_target(context, "doc", |package| package.is_target_only() && package.is_linked())?;
    let mut target = deny_warnings(target);
    target.arg("--no-deps");
    run_cargo(target, "Documenting the packages for the target only", &context.progress)
}

fn deny_warnings(mut command: Command) -> Command {
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// Returns cargo for the target, for all packages that `wanted` selects.
fn for_target(context: &Context, subcommand: &str, wanted: impl Fn(&Crate) -> bool) -> Result<Command> {
    let toolchain = context.toolchain(Need::Everything)?;
    // The kernel contains the vDSO image, so the image has to exist before any look at the kernel; an old one will do.
    build::ensure_vdso(&context.workspace, &toolchain, &context.progress)?;
    let mut command = build::cargo_for_target(&context.workspace, &toolchain, subcommand);
    for package in context.workspace.packages.iter().filter(|package| wanted(package)) {
        command.args(["--package", &package.name]);
    }
    Ok(command)
}

fn show(mut command: Command, what: &str) -> Result<()> {
    let mut child = Child::start(&mut command, Ending::Kill).context("cargo could not be started")?;
    let status = child.wait()?;
    if !status.success() {
        bail!("{what}: {status}");
    }
    Ok(())
}
