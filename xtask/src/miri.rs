//! The tests of crates with unsafe code, interpreted by Miri: it stops at the first undefined behaviour.
//!
//! Miri is a component of nightly toolchains, which rustup adds where it reaches its server. Elsewhere the step prints
//! one line and is left out: nothing else depends on it. Interpreted code runs some thousand times slower, so
//! properties try few cases (the crate `property`), and tests that only make numbers large are left out by name.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::children::{self, Child, Ending};
use crate::context::Context;

/// The toolchain that has Miri.
const TOOLCHAIN: &str = "nightly";

/// A crate whose tests Miri runs.
struct Interpreted {
    package: &'static str,
    /// More options for Miri.
    options: &'static str,
    /// Tests that are run, by parts of their names; all if there are none.
    only: &'static [&'static str],
    /// Tests that are left out, by a part of their names; each with the reason behind it.
    left_out: &'static [(&'static str, &'static str)],
}

/// Pointers come from pointers, never from numbers. Tests leak objects that live for ever, as executors do.
const STRICT: &str = "-Zmiri-strict-provenance -Zmiri-ignore-leaks";

/// Physical addresses are numbers that become pointers again: that is the purpose of these crates.
const EXPOSED: &str = "-Zmiri-permissive-provenance -Zmiri-ignore-leaks";

/// Why a property is left out: its shorter neighbours do the same with unsafe code.
const TOO_LONG: &str = "one history takes minutes to interpret";

/// Why a test is left out: it takes an hour for one comparison.
const NUMBER: &str = "it only makes a number large";

const CRATES: [Interpreted; 5] = [
    Interpreted { package: "ring", options: STRICT, only: &[], left_out: &[("a_ring_behaves_like_a_queue", TOO_LONG)] },
    Interpreted {
        package: "scheduler",
        options: STRICT,
        only: &[],
        left_out: &[
            ("histories_agree", TOO_LONG),
            ("strict_runs", TOO_LONG),
            ("the_book_quotes", "it compares a chapter with a file, and has no unsafe code"),
            ("a_life_goes", "Miri lets weak exchanges fail at random, and the test makes each once"),
        ],
    },
    Interpreted {
        package: "coroutine",
        options: STRICT,
        only: &[],
        left_out: &[
            ("damage_is_an_error", TOO_LONG),
            ("a_hundred_thousand", NUMBER),
            ("beyond_the_last_slot", NUMBER),
            ("the_suite_holds", "it takes most of an hour to interpret"),
        ],
    },
    Interpreted {
        package: "memory",
        options: EXPOSED,
        only: &[],
        left_out: &[("blocks_never_overlap", TOO_LONG), ("no_hart_sees", TOO_LONG), ("copies_at", TOO_LONG)],
    },
    // For the unsafe code of `objects`, which has hardly any tests of its own. Most tests of the kernel boot it, and
    // clear megabytes.
    Interpreted {
        package: "kernel-micro",
        options: EXPOSED,
        only: &["a_message_meets", "every_short_history_of_derivations"],
        left_out: &[],
    },
];

/// Runs the tests of each crate under Miri.
///
/// # Errors
///
/// A test fails, or has undefined behaviour.
pub fn miri(context: &Context) -> Result<()> {
    if !is_there() && !added() {
        println!(
            "check miri: left out, because `rustup component add miri --toolchain {TOOLCHAIN}` does not work here"
        );
        return Ok(());
    }
    let mut failed = Vec::new();
    for crate_ in &CRATES {
        println!("-- miri {}", crate_.package);
        for (name, reason) in crate_.left_out {
            println!("left out: {name}: {reason}");
        }
        let status =
            Child::start(&mut command(context, crate_), Ending::Kill).context("cargo could not be started")?.wait()?;
        if !status.success() {
            failed.push(crate_.package);
        }
    }
    if !failed.is_empty() {
        bail!("under Miri: {}", failed.join(", "));
    }
    Ok(())
}

fn command(context: &Context, crate_: &Interpreted) -> Command {
    let mut command = rustup(&["run", TOOLCHAIN, "cargo", "miri", "test", "--package", crate_.package, "--lib"]);
    command.current_dir(&context.workspace.root);
    command.arg("--target-dir").arg(context.workspace.products().join("miri"));
    // The variables by which this cargo was found name another toolchain.
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command.env("MIRIFLAGS", crate_.options);
    command.arg("--");
    command.args(crate_.only);
    for (name, _) in crate_.left_out {
        command.args(["--skip", name]);
    }
    command
}

fn rustup(arguments: &[&str]) -> Command {
    let mut command = children::command("rustup");
    command.args(arguments);
    command
}

fn succeeds(mut command: Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn is_there() -> bool {
    succeeds(rustup(&["run", TOOLCHAIN, "cargo", "miri", "--version"]))
}

/// Returns whether Miri is there after a request to rustup, with the toolchain if that is missing.
fn added() -> bool {
    let component = || succeeds(rustup(&["component", "add", "miri", "rust-src", "--toolchain", TOOLCHAIN]));
    let toolchain = || succeeds(rustup(&["toolchain", "install", TOOLCHAIN, "--profile", "minimal"]));
    (component() || (toolchain() && component())) && is_there()
}
