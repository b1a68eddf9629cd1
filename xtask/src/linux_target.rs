//! Rust for Linux on riscv64: the peers of benchmarks, and programs of COPS with the standard library. Both are linked
//! statically, so that they need no library in the machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::children::{self, Ending};
use crate::progress::Progress;
use crate::toolchain::{self, Item};
use crate::workspace::{self, Workspace};

const TARGET: &str = "riscv64gc-unknown-linux-gnu";

/// Makes sure that this host can compile and link for Linux on riscv64.
///
/// # Errors
///
/// The Rust on the PATH has no such target and rustup cannot add it, or the C compiler for linking is missing and
/// cannot be installed.
pub fn ensure(progress: &Progress) -> Result<()> {
    toolchain::ensure_on_host(&[Item::RiscvGcc, Item::RiscvLibc], progress)?;
    if toolchain::has_rust_target(TARGET) {
        return Ok(());
    }
    let activity = progress.start(format!("Adding the Rust target {TARGET}"));
    let mut command = children::command("rustup");
    command.args(["target", "add", TARGET]);
    let output = children::output(&mut command, Ending::Kill, Duration::from_secs(90));
    activity.clear();
    if output.is_ok_and(|output| output.status.success()) && toolchain::has_rust_target(TARGET) {
        return Ok(());
    }
    bail!("Rust cannot compile for {TARGET} here, and `rustup target add {TARGET}` does not work")
}

/// Returns cargo for the target, with this directory for what it makes.
pub fn cargo(workspace: &Workspace, subcommand: &str, directory: &Path) -> Command {
    let mut command = workspace::cargo();
    command.current_dir(&workspace.root).arg(subcommand).arg("--target-dir").arg(directory);
    command.args(["--release", "--target", TARGET]);
    command.env("CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_LINKER", toolchain::RISCV_GCC);
    command.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    command
}

/// Returns the directory with the programs that [`cargo`] makes in this one.
pub fn programs(directory: &Path) -> PathBuf {
    directory.join(TARGET).join("release")
}
