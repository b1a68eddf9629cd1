//! The command line: what `cargo xtask --help` says, and the types it becomes.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::bench::BenchName;
use crate::board::Variant;
use crate::check::Step;
use crate::suites::Suite;

const AFTER_HELP: &str = "\
THE TWO COMMANDS TO START WITH
  cargo xtask demo      build everything, boot COPS in QEMU, drive its matrix server, show the figures
  cargo xtask test      run every test on the host and in QEMU

WHAT IT NEEDS
  A RISC-V Rust toolchain, QEMU 7.2 or later with OpenSBI, and clang for the C example. What is missing is installed if
  this is Debian and you are root, and named with the command to run otherwise; `cargo xtask doctor` shows the state.

FILES
  Everything made is under the target directory: cops/kernel-unix (ELF file with symbols), cops/initramfs.cpio,
  cops/vdso.so, cops/logs/*.log (serial output of each boot), cops/demo.html.

ENVIRONMENT
  CARGO_TARGET_DIR      where to build, as for cargo
  COPS_TOOLCHAIN        `rustup` or `debian`: build for the target with this toolchain and no other
  COPS_NO_INSTALL       if set, install nothing, only say what is missing

EXIT STATUS
  0  it worked      1  it did not: the message says what and what to do      2  wrong usage
  130, 143          ended by Ctrl-C or SIGTERM; QEMU and every other child have been ended and the terminal is restored";

/// The one door for chores: build COPS, boot it, test it, measure it.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, after_help = AFTER_HELP, max_term_width = 120)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Show what cargo, the linker and apt-get print, not only when they fail.
    #[arg(long, short, global = true)]
    pub verbose: bool,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build the vDSO, the programs, the initramfs and the kernel.
    Build,
    /// Boot COPS with its serial console on this terminal.
    Run(Run),
    /// Boot COPS, drive its matrix server over TCP and show what it does.
    Demo(Demo),
    /// Run the tests: host, loom, and QEMU on 1 and 4 harts of both machine types.
    Test(Test),
    /// Do what continuous integration does: format, lints, tidy, tests, documentation, builds.
    Check(Check),
    /// Check the rules of the source tree that no compiler knows.
    Tidy,
    /// Run a benchmark and compare its figures with their goals.
    Bench(Bench),
    /// Say what this host has and lacks.
    Doctor,
    /// Copy standard input to standard output with function, file and line added to each line of a kernel backtrace.
    Symbolise(Symbolise),
    /// Become another program that ends when this process's parent does. For internal use.
    #[command(name = crate::children::GUARD, hide = true)]
    Guard(Guard),
}

/// The machine to boot.
#[derive(Args, Clone, Debug)]
pub struct Machine {
    /// How many harts (processors), 1 to 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub harts: Option<u8>,
    /// How much memory, with QEMU's suffixes: 512M, 2G.
    #[arg(long, value_name = "SIZE", value_parser = crate::board::memory_size)]
    pub memory: Option<String>,
    /// Which interrupt controller: `aia` has APLIC and IMSIC, `plic` the older PLIC.
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<Variant>,
}

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "\
KEYS
  Ctrl-C            end QEMU and come back
  Ctrl-A X          the same, as in QEMU
  Ctrl-A Ctrl-C     send Ctrl-C to the program in the machine
  Ctrl-A Ctrl-A     send Ctrl-A
  Ctrl-A H          show these keys

EXAMPLES
  cargo xtask run hello
  cargo xtask run --harts 1 --machine plic hello -- some arguments
  cargo xtask run --forward 7000:7000 matrix-server")]
pub struct Run {
    /// The program to start, from the initramfs's /bin.
    #[arg(default_value = "hello")]
    pub program: String,
    /// The program's arguments.
    #[arg(last = true, value_name = "ARGS")]
    pub arguments: Vec<String>,
    /// The machine to boot.
    #[command(flatten)]
    pub machine: Machine,
    /// Wait for gdb before the first instruction; the command to connect is shown.
    #[arg(long)]
    pub gdb: bool,
    /// Forward a TCP port of this host to one of the machine; may be repeated.
    #[arg(long, value_name = "HOST:GUEST", value_parser = crate::guest::forward)]
    pub forward: Vec<crate::guest::Forward>,
    /// End QEMU after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub limit: Option<u64>,
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub struct Demo {
    /// Only 1, 16 and 64 connections for one second each.
    #[arg(long)]
    pub quick: bool,
    /// Write the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where to write the report; the default is cops/demo.html in the target directory.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The port of this host to reach the server through; the default is any free one.
    #[arg(long)]
    pub port: Option<u16>,
    /// The machine to boot.
    #[command(flatten)]
    pub machine: Machine,
}

/// Arguments of `test`.
#[derive(Args, Debug)]
pub struct Test {
    /// Which tests; the default is all of them.
    #[arg(value_enum)]
    pub suites: Vec<Suite>,
    /// In QEMU, only on this many harts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub harts: Option<u8>,
    /// In QEMU, only on this machine type.
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<Variant>,
    /// In QEMU, only the tests whose names contain this.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
}

/// Arguments of `check`.
#[derive(Args, Debug)]
pub struct Check {
    /// Which steps; the default is all of them.
    #[arg(value_enum)]
    pub steps: Vec<Step>,
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct Bench {
    /// Which benchmark; see --list.
    #[arg(value_enum, required_unless_present = "list")]
    pub name: Option<BenchName>,
    /// Write the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Name the benchmarks and what each measures.
    #[arg(long)]
    pub list: bool,
}

/// Arguments of `symbolise`.
#[derive(Args, Debug)]
pub struct Symbolise {
    /// The kernel's ELF file; the default is the one built last.
    #[arg(long, value_name = "FILE")]
    pub elf: Option<PathBuf>,
}

/// Arguments of the guard.
#[derive(Args, Debug)]
pub struct Guard {
    /// The process that has to be the parent still.
    pub parent: i32,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub command: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_program_and_its_arguments_are_told_apart() {
        let arguments = Arguments::parse_from(["cargo xtask", "run", "hello", "--harts", "2", "--", "--harts", "x"]);
        let Command::Run(run) = arguments.command else { panic!("not run") };
        assert_eq!(run.program, "hello");
        assert_eq!(run.machine.harts, Some(2));
        assert_eq!(run.arguments, ["--harts", "x"]);
    }

    #[test]
    fn nonsense_is_refused() {
        for wrong in [
            &["run", "--harts", "0"][..],
            &["run", "--harts", "9"],
            &["run", "--machine", "x86"],
            &["run", "--memory", "lots"],
            &["run", "--forward", "70000:1"],
            &["bench"],
            &["bench", "nothing"],
            &["test", "something"],
        ] {
            assert!(Arguments::try_parse_from([&["cargo xtask"], wrong].concat()).is_err(), "{wrong:?}");
        }
    }
}
