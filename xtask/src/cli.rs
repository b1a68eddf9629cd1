//! The command line: the text of `cargo xtask --help`, and the types of its arguments.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use matrix::Model;

use crate::bench::BenchName;
use crate::board::{Board, Configuration, Equipment, Variant};
use crate::check::Step;
use crate::own::HostFile;
use crate::suites::Suite;
use crate::workspace::Kernel;

const AFTER_HELP: &str = "\
THE TWO COMMANDS TO START WITH
  cargo xtask demo      build everything, boot COPS in QEMU, drive its matrix server, show the figures
  cargo xtask test      run every test on the host and in QEMU

WHAT IT NEEDS
  A RISC-V Rust toolchain, QEMU 7.2 or later with OpenSBI, and clang for the C example. What is missing is installed if
  this is Debian and you are root, and named with the command to run otherwise; `cargo xtask doctor` shows the state.

FILES
  All products are under the target directory: cops/kernel-unix (ELF file with symbols), cops/initramfs.cpio,
  cops/vdso.so, cops/kernel-micro and cops/root-task, cops/logs/*.log (serial output of each boot), cops/demo.html.

ENVIRONMENT
  CARGO_TARGET_DIR      where to build, as for cargo
  COPS_TOOLCHAIN        `rustup` or `debian`: build for the target with this toolchain and no other
  COPS_NO_INSTALL       if set, install nothing, only say what is missing
  COPS_CACHE            where emulators are kept that `machine` has built or `bench` has fetched, and packages that
                        `linux` has fetched; the default is cops in the user's cache

EXIT STATUS
  0  it worked      1  it did not: the message says what and what to do      2  wrong usage
  130, 143          ended by Ctrl-C or SIGTERM; QEMU and every other child have been ended and the terminal is restored";

/// The one door for chores: build COPS, boot it, test it, measure it.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, after_help = AFTER_HELP, max_term_width = 120)]
pub struct Arguments {
    /// The chore.
    #[command(subcommand)]
    pub command: Command,

    /// Show the output of cargo, the linker and apt-get, not only when they fail.
    #[arg(long, short, global = true)]
    pub verbose: bool,

    /// The board, for `run`, `demo`, `test` and `bench`: `qemu-virt` is the default, `qemu-virt-pci` the same with its
    /// devices behind PCI Express, `sifive-u` is SiFive's HiFive Unleashed and `icicle` Microchip's PolarFire SoC
    /// Icicle Kit, all in QEMU. Each is a file of the folder boards.
    #[arg(long, value_name = "BOARD", global = true)]
    pub board: Option<String>,
}

impl Arguments {
    /// Checks that the command goes with the board that the user has chosen, and that the board has what the user
    /// wants.
    ///
    /// # Errors
    ///
    /// The message says what else.
    pub fn check_board(&self, board: &Board) -> Result<()> {
        let goes_with_boards =
            matches!(self.command, Command::Run(_) | Command::Demo(_) | Command::Test(_) | Command::Bench(_));
        if self.board.is_some() && !goes_with_boards {
            bail!("--board goes with `run`, `demo`, `test` and `bench`");
        }
        if let Command::Demo(demo) = &self.command
            && demo.kernel == Kernel::Micro
            && !board.is_default()
        {
            bail!("the microkernel's network server drives virtio alone: leave out --board or --kernel micro");
        }
        let (harts, memory) = match &self.command {
            Command::Run(run) => (run.boot.machine.harts, run.boot.machine.memory.as_deref()),
            Command::Demo(demo) => (demo.machine.harts, demo.machine.memory.as_deref()),
            Command::Test(test) => (test.harts, None),
            _ => (None, None),
        };
        if let Command::Run(run) = &self.command
            && board.lacks.contains(&Equipment::Disk)
            && (!run.boot.disks.is_empty() || run.core)
        {
            bail!("the board `{}` has no disks: leave out --disk and --core", board.name);
        }
        if let Command::Run(run) = &self.command
            && board.lacks.contains(&Equipment::Disk)
            && run.boot.share.is_some()
        {
            bail!("the board `{}` cannot be given a folder: leave out --share", board.name);
        }
        board.check(self.command.machine(), harts, memory)
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build a kernel with all that it needs to boot: vDSO, programs and initramfs, or root task.
    Build(Build),
    /// Make a program of your own, outside the tree.
    New(New),
    /// Make a bundle that boots on a computer with QEMU alone: kernel, programs, script, checksums.
    Dist,
    /// Build the emulator of a machine that the host's QEMU does not have, once for all clones on this host.
    Machine(BuildMachine),
    /// Make an image of a disk with a volume of ext4.
    Image(Image),
    /// Boot COPS with its serial console on this terminal.
    Run(Run),
    /// Show a core file that a program has left: the callers of each thread, or gdb.
    Core(Core),
    /// Run unmodified programs of Debian for riscv64.
    Linux(Linux),
    /// Run a program and show live the activity of harts and processes.
    Top(Watch),
    /// Run a program and write a trace for Perfetto's viewer.
    ///
    /// The trace has the activity of each hart, worker and coroutine, with an arrow from each wake to the poll that it
    /// causes; priorities and numbers of ready coroutines; and the names, spans, marks and counters of the program
    /// (`cops::spawn_named`, `cops::trace`, the crate `tracing`). It ends with the program, after `--limit` seconds, or
    /// at 512 MiB of records. Open the file at https://ui.perfetto.dev.
    Trace(Trace),
    /// Run a program and draw a flame graph of it and of the kernel, by instructions.
    Profile(Profile),
    /// Boot COPS, drive its matrix server over TCP and show its figures.
    Demo(Demo),
    /// Run the tests: host, loom, and both kernels in QEMU on 1 and 4 harts of both machine types.
    Test(Test),
    /// Keep the whole system busy for long, and check that its answers are right and nothing is lost.
    Soak(Soak),
    /// Have two machines exchange many bytes over a wire that loses frames, and compare the hashes.
    Exchange(Exchange),
    /// Run every check of the tree: format, lints, tidy, tests, documentation, builds.
    Check(Check),
    /// Look for inputs that break a property, with libFuzzer.
    Fuzz(Fuzz),
    /// Change the code in small ways, one at a time, and see that a test notices.
    Mutants(Mutants),
    /// Check the rules of the source tree that no compiler checks.
    Tidy(Tidy),
    /// Run a benchmark and compare its figures with their goals.
    Bench(Bench),
    /// Make one page of all results, for readers of the papers.
    Report(Report),
    /// Make the book of the tree's documents, with a search, and serve it.
    Book(Book),
    /// Print where the bytes of a kernel are.
    Size(Size),
    /// Show the tools that this host has and lacks.
    Doctor,
    /// Copy standard input to standard output with functions, files and lines added to backtraces.
    Symbolise(Symbolise),
    /// Become another program that ends when this process's parent does. For internal use.
    #[command(name = crate::children::GUARD, hide = true)]
    Guard(Guard),
}

impl Command {
    /// Returns the machine that the user has chosen to boot.
    pub fn machine(&self) -> Option<Variant> {
        match self {
            Command::Run(run) => run.boot.machine.machine,
            Command::Linux(Linux { action: LinuxAction::Run(run) }) => run.boot.machine.machine,
            Command::Top(watch) => watch.boot.machine.machine,
            Command::Trace(trace) => trace.watch.boot.machine.machine,
            Command::Profile(profile) => profile.boot.machine.machine,
            Command::Demo(demo) => demo.machine.machine,
            Command::Test(test) => test.machine,
            Command::Soak(soak) => soak.machine.machine,
            Command::Exchange(exchange) => exchange.machine.machine,
            Command::Bench(bench) => bench.machine,
            _ => None,
        }
    }
}

/// Arguments of `build`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  cargo xtask build
  cargo xtask build --kernel micro --several-harts
  cargo xtask build --kernel micro --sel4-layout --words \"root-cnode-bits=17 domains=4\"
  cargo xtask build --kernel micro --sel4-layout    # prints the file that can take kernel.elf's place")]
pub struct Build {
    /// Which kernel.
    #[arg(long, value_enum, default_value_t = Kernel::Unix)]
    pub kernel: Kernel,
    /// Build the microkernel for several harts, whose numbering of invocations is another.
    #[arg(long)]
    pub several_harts: bool,
    /// Boot words that are built into the microkernel, for images that have no command line; the book's chapter lists
    /// them.
    #[arg(long, value_name = "WORDS")]
    pub words: Option<String>,
    /// Build the microkernel so that it can count the time of threads on their harts (the boot word
    /// `benchmarks=utilisation`).
    #[arg(long)]
    pub counters: bool,
    /// Build the microkernel without seL4's debug calls and without words of its own about programs, as a seL4 for
    /// release: programs print through a driver of their own.
    #[arg(long)]
    pub no_debug_calls: bool,
    /// Write the file that can take the place of kernel.elf in an image of seL4's build system, and check that its
    /// loader can load it.
    #[arg(long)]
    pub sel4_layout: bool,
}

/// Arguments of `machine`.
#[derive(Args, Debug)]
#[command(after_help = "\
The machine `uintc` is QEMU's `virt` with user-level interrupts: the N extension, the UIPI instructions and their
controller UINTC. Its emulator is Debian's source of QEMU 7.2, fetched with apt, with the patches of boards/uintc; it is
kept in a cache of the user, and then `--machine uintc` boots it. `--user-interrupts uintc` lets the Unix-like kernel use
it; the default is `kernel`, as on every machine.")]
pub struct BuildMachine {
    /// The machine.
    pub name: Variant,
}

/// Arguments of `size`.
#[derive(Args, Debug)]
pub struct Size {
    /// Of which kernel.
    #[arg(value_enum, default_value_t = Measured::Micro)]
    pub kernel: Measured,
}

/// Kernels whose bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measured {
    /// The microkernel, for one hart.
    Micro,
}

/// The machine to boot.
#[derive(Args, Clone, Debug)]
pub struct Machine {
    /// Number of harts (processors), 1 to 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub harts: Option<u8>,
    /// Size of memory, with QEMU's suffixes: 512M, 2G.
    #[arg(long, value_name = "SIZE", value_parser = crate::board::memory_size)]
    pub memory: Option<String>,
    /// Which interrupt controller: `aia` has APLIC and IMSIC, `plic` the older PLIC; `uintc` is `aia` with user-level
    /// interrupts, and is built by `cargo xtask machine uintc`.
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<Variant>,
    /// Path of user interrupts to programs: through the kernel, or in hardware (`imsic`, `uintc`); `auto` is hardware
    /// if there is some.
    #[arg(long, value_name = "BACK END")]
    pub user_interrupts: Option<UserInterrupts>,
}

/// The way in which user interrupts reach programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UserInterrupts {
    /// Through the kernel.
    Kernel,
    /// Through guest files of the IMSIC: programs run in VS-mode.
    Imsic,
    /// Through UINTC, on the machine `uintc`: programs run in user mode.
    Uintc,
    /// In hardware if there is some.
    Auto,
}

impl UserInterrupts {
    /// Returns its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            UserInterrupts::Kernel => "kernel",
            UserInterrupts::Imsic => "imsic",
            UserInterrupts::Uintc => "uintc",
            UserInterrupts::Auto => "auto",
        }
    }

    /// Returns the word for the kernel's command line, with a space behind it.
    pub fn word(choice: Option<UserInterrupts>) -> String {
        choice.map_or_else(String::new, |choice| format!("user-interrupts={} ", choice.name()))
    }
}

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "\
KEYS
  Ctrl-C            end QEMU and come back
  Ctrl-A X          the same, as in QEMU
  Ctrl-A Ctrl-C     send Ctrl-C to the program in the machine
  Ctrl-A W          show where every worker is, and what every coroutine waits for
  Ctrl-A Ctrl-A     send Ctrl-A
  Ctrl-A H          show these keys

EXAMPLES
  cargo xtask run
  cargo xtask run hello
  cargo xtask run shell -- -c 'ls -l /bin; exit 3'
  cargo xtask run --harts 1 --machine plic hello -- some arguments
  cargo xtask run --board sifive-u hello
  cargo xtask run --forward 7000:7000 matrix-server
  cargo xtask run ../greeting -- Ada Grace
  cargo xtask run --file notes.txt --file ../data:/srv/data shell
  cargo xtask run --debug --gdb hello
  cargo xtask run --kernel micro
  cargo xtask run --kernel micro ledger
  cargo xtask run --kernel micro --harts 1 a-root-task-built-for-sel4.elf")]
pub struct Run {
    /// The program to start; the default is `shell`. A name is that of a program of the tree; a path (with a slash) is
    /// the directory of a package of your own, which is built, or an ELF file. For the microkernel a root task of the
    /// workspace or the file of one; the default is `root-task`, the suite of its interface.
    pub program: Option<String>,
    /// Which kernel.
    #[arg(long, value_enum, default_value_t = Kernel::Unix)]
    pub kernel: Kernel,
    /// The program's arguments; behind `--` they may begin with a dash.
    #[arg(trailing_var_arg = true, value_name = "ARGS")]
    pub arguments: Vec<String>,
    /// Boot words for the kernel in addition to those of the other options; the book lists them.
    #[arg(long, value_name = "WORDS")]
    pub words: Option<String>,
    /// Put a file of the host, or a directory with all below it, into the machine, which works on a copy in memory. The
    /// default place is `/` and the file's name; a GUEST that ends with a slash is the directory to put it into.
    #[arg(long = "file", value_name = "HOST[:GUEST]")]
    pub files: Vec<HostFile>,
    /// Start this program of the first disk, whose volume of ext4 is the root of all files. All words that follow are
    /// the program's arguments.
    #[arg(long, value_name = "PATH", requires = "disks", conflicts_with_all = ["core", "files"])]
    pub init: Option<String>,
    /// Wait for gdb before the first instruction; the command to connect is shown.
    #[arg(long)]
    pub gdb: bool,
    /// Compile kernel and programs for a debugger, with types and variables, at the cost of speed. It takes a build of
    /// its own, and goes with `--gdb` and `--core`.
    #[arg(long)]
    pub debug: bool,
    /// Let programs that die leave core files, for `cargo xtask core`. The shell starts the program then.
    #[arg(long)]
    pub core: bool,
    /// End QEMU after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub limit: Option<u64>,
    /// The boot.
    #[command(flatten)]
    pub boot: Boot,
}

/// Arguments of `core`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  cargo xtask run --core ./my-program
  cargo xtask core
  cargo xtask core --gdb
  cargo xtask core my-program.2 --gdb -- -batch -ex bt -ex 'cops coroutines'")]
pub struct Core {
    /// The core file: a path, or a name in the target directory's cops/cores; the default is the newest there.
    pub file: Option<PathBuf>,
    /// The program's own file, with symbols; the default is that of the program that died in `run --core` or
    /// `linux run --core`.
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Open gdb-multiarch with it, with the commands `cops process`, `cops coroutines` and `cops ready`.
    #[arg(long)]
    pub gdb: bool,
    /// Arguments of gdb.
    #[arg(last = true, value_name = "ARGS", requires = "gdb")]
    pub arguments: Vec<String>,
}

/// Arguments of `new`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  cargo xtask new ../greeting
  cargo xtask run ../greeting -- Ada Grace
  cargo xtask new ../projects/server --name my-server
  cargo xtask new ../greeting --git https://example.org/cops")]
pub struct New {
    /// The directory of the new package, which is made.
    pub path: PathBuf,
    /// Name of the package and of its program; the default is the directory's.
    #[arg(long)]
    pub name: Option<String>,
    /// Depend on COPS in this repository and not in this directory, so that others can build the package too.
    #[arg(long, value_name = "URL")]
    pub git: Option<String>,
    /// Make a program with the standard library: it has coroutines, and threads and files of `std` beside them.
    #[arg(long)]
    pub std: bool,
}

/// Arguments of `image`.
#[derive(Args, Debug)]
#[command(arg_required_else_help = true)]
#[command(after_help = "\
EXAMPLES
  cargo xtask image empty disk.img 2G
  cargo xtask image debian disk.img bash coreutils
  cargo xtask image debian disk.img dpkg --file ../hello_1.0_riscv64.deb:/packages/
  cargo xtask run --disk disk.img --init /bin/bash")]
pub struct Image {
    /// The action.
    #[command(subcommand)]
    pub action: ImageAction,
}

/// The kinds of images.
#[derive(Debug, Subcommand)]
pub enum ImageAction {
    /// Make an image with an empty volume.
    Empty {
        /// The image, which is made or replaced.
        image: PathBuf,
        /// Its size: bytes, or with K, M or G.
        #[arg(value_parser = crate::image::parse_size)]
        size: u64,
    },
    /// Make an image with the files of packages of Debian for riscv64 and of all that they depend on.
    Debian {
        /// The image, which is made or replaced.
        image: PathBuf,
        /// The packages.
        #[arg(required = true)]
        packages: Vec<String>,
        /// Put a file or a directory of this host into the image too, in place of those of the same path; may be
        /// repeated. The default place is `/` and the file's name; a GUEST that ends with a slash is the directory to
        /// put it into.
        #[arg(long = "file", value_name = "HOST[:GUEST]")]
        files: Vec<HostFile>,
        /// Its size; the default has some room beside the files.
        #[arg(long, value_parser = crate::image::parse_size)]
        size: Option<u64>,
    },
}

/// Arguments of `linux`.
#[derive(Args, Debug)]
#[command(arg_required_else_help = true)]
pub struct Linux {
    /// The action.
    #[command(subcommand)]
    pub action: LinuxAction,
}

/// The actions with unmodified programs.
#[derive(Debug, Subcommand)]
pub enum LinuxAction {
    /// Fetch packages, boot COPS with them, and run a command or a shell on this terminal.
    Run(LinuxRun),
    /// Show the programs that the tests exercise, with version, exercise and outcome.
    List(LinuxList),
}

/// Arguments of `linux list`.
#[derive(Args, Debug)]
pub struct LinuxList {
    /// First put the outcomes of the last complete `cargo xtask test linux` into the book.
    #[arg(long)]
    pub record: bool,
}

/// Arguments of `linux run`.
#[derive(Args, Debug)]
#[command(after_help = "\
PACKAGES
  Each package comes with those that it depends on, and Debian's basic tools with all of them: bash, dash, coreutils,
  findutils, grep, sed, awk, tar, gzip. They are fetched with apt from the archive that this host's apt is configured
  for, into COPS_CACHE; apt checks signatures and sums. Nothing on this host is changed. Packages are unpacked and not
  configured: their installation scripts do not run. Lists of packages are fetched again after a day; without a network
  those of the last time are used, with packages that are there.

EXIT STATUS
  That of the command, or 128 and the number of the signal that ended it; 1 if the machine could not be started.

KEYS
  Ctrl-C            end QEMU and come back
  Ctrl-A Ctrl-C     send Ctrl-C to the program in the machine
  Ctrl-A W          show where every worker is, and what every coroutine waits for
  Ctrl-A H          show all keys

EXAMPLES
  cargo xtask linux run bash
  cargo xtask linux run lua5.4 -- lua5.4 -e 'print(6 * 7)'
  cargo xtask linux run --forward 6379:6379 redis-server -- redis-server --save '' --protected-mode no
  cargo xtask linux run --harts 1 --memory 512M sqlite3 python3
  cargo xtask linux run --core bash -- bash -c 'kill -SEGV $$'")]
pub struct LinuxRun {
    /// Names of packages of Debian.
    #[arg(required = true, value_name = "PACKAGE")]
    pub packages: Vec<String>,
    /// The command, a program of the packages with its arguments; the default is a shell.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Let programs that die leave core files, for `cargo xtask core`.
    #[arg(long)]
    pub core: bool,
    /// End QEMU after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub limit: Option<u64>,
    /// The boot.
    #[command(flatten)]
    pub boot: Boot,
}

/// A program to be watched while it runs.
#[derive(Args, Debug)]
pub struct Watch {
    /// The program to start: the name of one of the tree, or a path as for `run`.
    pub program: String,
    /// The program's arguments.
    #[arg(last = true, value_name = "ARGS")]
    pub arguments: Vec<String>,
    /// Stop watching after this many seconds; the default is to wait for the program's end.
    #[arg(long, value_name = "SECONDS")]
    pub limit: Option<u64>,
    /// The boot.
    #[command(flatten)]
    pub boot: Boot,
}

/// A boot of the kernel for one program: the machine, its network and the kernel's scheduling.
#[derive(Args, Debug)]
pub struct Boot {
    /// The machine to boot.
    #[command(flatten)]
    pub machine: Machine,
    /// Give the machine a disk, a raw image on this host, which it reads and writes; may be repeated. It is `/dev/vda`,
    /// the next one `/dev/vdb`.
    #[arg(long = "disk", value_name = "IMAGE")]
    pub disks: Vec<PathBuf>,
    /// Show the machine a folder of this host at `/host`, which it reads and writes.
    #[arg(long, value_name = "FOLDER")]
    pub share: Option<PathBuf>,
    /// Forward a TCP port of this host to one of the machine; may be repeated.
    #[arg(long, value_name = "HOST:GUEST", value_parser = crate::guest::forward)]
    pub forward: Vec<crate::guest::Forward>,
    /// The kernel's scheduling.
    #[command(flatten)]
    pub scheduling: Scheduling,
}

impl Boot {
    /// Gives a machine its disks, its folder of this host and its forwarded ports.
    ///
    /// # Errors
    ///
    /// An image is not there, or has no whole sectors; the folder is none.
    pub fn connect(&self, configuration: &mut Configuration) -> Result<()> {
        configuration.forwards = self.forward.clone();
        for image in &self.disks {
            let metadata = std::fs::metadata(image).with_context(|| {
                format!("there is no disk image {0}; an empty one is made by: truncate -s 64M {0}", image.display())
            })?;
            if metadata.is_file() && (metadata.len() == 0 || !metadata.len().is_multiple_of(512)) {
                bail!("{} is no disk image: its size is not a multiple of 512 bytes, or 0", image.display());
            }
            configuration.disks.push(std::path::absolute(image)?);
        }
        if let Some(folder) = &self.share {
            if !folder.is_dir() {
                bail!("--share {0}: there is no such folder; make it by: mkdir {0}", folder.display());
            }
            configuration.share = Some(std::path::absolute(folder)?);
        }
        Ok(())
    }
}

/// Arguments of `trace`.
#[derive(Args, Debug)]
pub struct Trace {
    /// The program to trace.
    #[command(flatten)]
    pub watch: Watch,
    /// File for the trace; the default is cops/trace.pftrace in the target directory.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Number of records that the kernel keeps for each hart until they are fetched. Those that do not fit are counted,
    /// and the hart's row shows where they are missing.
    #[arg(long, value_name = "N", default_value_t = 65536, value_parser = clap::value_parser!(u32).range(1..=1 << 18))]
    pub records: u32,
}

/// Arguments of `profile`.
#[derive(Args, Debug)]
pub struct Profile {
    /// The program: the name of one of the tree, or a path as for `run`. Programs that it starts are not told apart
    /// from it.
    pub program: String,
    /// The program's arguments; behind `--` they may begin with a dash.
    #[arg(trailing_var_arg = true, value_name = "ARGS")]
    pub arguments: Vec<String>,
    /// Stop after this many seconds of the host, if the program has not ended.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// File for the graph; the default is cops/profile.svg in the target directory.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The boot; the machine has one hart here unless told otherwise, and the samples are of the first.
    #[command(flatten)]
    pub boot: Boot,
}

/// The kernel's scheduling.
#[derive(Args, Clone, Debug, Default)]
pub struct Scheduling {
    /// The mode of global priority, for all processes; `chosen` leaves it to each.
    #[arg(long, value_name = "MODE")]
    pub scheduling: Option<Mode>,
    /// Milliseconds after which a ready worker runs in any case; 0: never.
    #[arg(long, value_name = "MS")]
    pub starvation_bound: Option<u64>,
    /// Share of the time of all harts that a process has before it falls behind others.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub budget: Option<u8>,
    /// Milliseconds that a worker runs before others of the same priority get their turn; 10 by default.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u16).range(SLICES_MS))]
    pub slice: Option<u16>,
}

/// Slices that the kernel accepts, in milliseconds.
pub const SLICES_MS: std::ops::RangeInclusive<i64> = 1..=1000;

impl Scheduling {
    /// Returns the words for the kernel's command line, each with a space behind it.
    pub fn words(&self) -> String {
        let mode = self.scheduling.and_then(|mode| Some(mode.to_possible_value()?.get_name().to_string()));
        let words = [
            mode.map(|mode| format!("scheduling={mode} ")),
            self.starvation_bound.map(|bound| format!("starvation-bound={bound} ")),
            self.budget.map(|budget| format!("budget={budget} ")),
            self.slice.map(|slice| format!("slice={slice} ")),
        ];
        words.into_iter().flatten().collect()
    }
}

/// Modes of global priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Each process has its own.
    Chosen,
    /// From one tick or kernel entry to the next.
    Relaxed,
    /// With a look before each poll.
    Strict,
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub struct Demo {
    /// Only 1, 16 and 64 connections for one second each.
    #[arg(long)]
    pub quick: bool,
    /// These numbers of connections instead.
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub connections: Vec<u16>,
    /// Which kernel: the microkernel has the network in a program of its own.
    #[arg(long, value_enum, default_value_t = Kernel::Unix)]
    pub kernel: Kernel,
    /// The model of the server, in the kernel and in the program; the default is kcuc.
    #[arg(long, value_parser = models())]
    pub model: Option<Model>,
    /// Write the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// File for the report; the default is cops/demo.html in the target directory.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The port of this host to reach the server through; the default is any free one.
    #[arg(long)]
    pub port: Option<u16>,
    /// The machine to boot.
    #[command(flatten)]
    pub machine: Machine,
}

/// Returns the parser of the matrix server's models.
fn models() -> impl TypedValueParser<Value = Model> {
    let models = Model::ALL.map(|model| PossibleValue::new(model.name()).help(model.description()));
    PossibleValuesParser::new(models).try_map(|name| Model::from_name(name.as_bytes()).ok_or("no model"))
}

/// Arguments of `soak`.
#[derive(Args, Debug)]
pub struct Soak {
    /// For how many seconds, at least 16.
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u64).range(16..=604_800))]
    pub seconds: u64,
    /// The machine to boot.
    #[command(flatten)]
    pub machine: Machine,
}

/// Arguments of `exchange`.
#[derive(Args, Debug)]
#[command(after_help = "\
Two machines are joined by a wire of this program, and send each other so many bytes over TCP, both at the same time. The
wire loses frames, and repeats, reorders and delays some others; the seed decides on each frame's fate. Each machine
tells the hashes of what it has sent and received, of each connection, and those of both must be equal. The serial logs
are exchange-1.log and exchange-2.log of cops/logs in the target directory. Ctrl-C ends both machines.

EXAMPLES
  cargo xtask exchange --mebibytes 64
  cargo xtask exchange --connections 1 --loss 5 --seed 7 --harts 2")]
pub struct Exchange {
    /// How much each machine sends.
    #[arg(long, value_name = "N", default_value_t = 10_240, value_parser = clap::value_parser!(u64).range(1..1 << 30))]
    pub mebibytes: u64,
    /// Connections at the same time, which share the bytes.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub connections: u16,
    /// Lost frames of a hundred.
    #[arg(long, value_name = "PERCENT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=50))]
    pub loss: u8,
    /// Seed of the bytes and of the fates of frames.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The machine to boot twice; the default are two harts.
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
    /// Path of user interrupts to programs; through the kernel by default.
    #[arg(long, value_name = "BACK END")]
    pub user_interrupts: Option<UserInterrupts>,
    /// Only the tests whose names contain this, on the host and in QEMU, and the parts beside QEMU's suite: `soak`,
    /// `failing-allocations` and others, whose names the summary has. The microkernel's suite has no parts.
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

/// Arguments of `tidy`.
#[derive(Args, Debug)]
pub struct Tidy {
    /// Print figures that no rule decides instead: import cycles, long functions, wording, duplicates, each with its
    /// goal
    #[arg(long)]
    pub report: bool,
}

/// Arguments of `fuzz`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  cargo xtask fuzz --seconds 600          # all targets, each for its share
  cargo xtask fuzz device_tree --seconds 60
  cargo xtask fuzz cpio --keep            # and keep the inputs that take new branches in the tree")]
pub struct Fuzz {
    /// Which property; the default is all of them, one after the other.
    pub target: Option<String>,
    /// For how many seconds altogether.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Keep the smallest set of inputs that takes all branches found in the tree, for the tests.
    #[arg(long)]
    pub keep: bool,
}

/// Arguments of `mutants`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  cargo xtask mutants ring
  cargo xtask mutants filesystem --part 0/8     # every eighth change")]
pub struct Mutants {
    /// The crate; the default is all crates in the list, which takes many hours.
    #[arg(value_name = "CRATE")]
    pub package: Option<String>,
    /// Only every Nth change, from the Kth on, the first being 0.
    #[arg(long, value_name = "K/N")]
    pub part: Option<String>,
    /// Only the crate's own tests, not those of the crates that use it.
    #[arg(long)]
    pub own: bool,
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct Bench {
    /// Which benchmark; see --list.
    #[arg(value_enum, required_unless_present = "list")]
    pub name: Option<BenchName>,
    /// Of `run`, the TOML file of the experiment; of `cycles`, one of its parts.
    #[arg(value_name = "FILE", required_if_eq("name", "run"))]
    pub file: Option<PathBuf>,
    /// Of a benchmark that boots one machine, which one; the default is the board's.
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<Variant>,
    /// Path of user interrupts to programs; through the kernel by default.
    #[arg(long, value_name = "BACK END")]
    pub user_interrupts: Option<UserInterrupts>,
    /// Write the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Name the benchmarks and the subject of each.
    #[arg(long)]
    pub list: bool,
    /// Fewer and shorter measurements: all experiments together take at most ten minutes.
    #[arg(long)]
    pub quick: bool,
    /// Of an experiment, only this part.
    #[arg(long, value_enum, value_name = "WAY")]
    pub way: Option<crate::experiments::Way>,
    /// Of `servers` and `linux-programs`, only figures whose names contain this text.
    #[arg(long, value_name = "TEXT")]
    pub figure: Option<String>,
    /// Of these two, only this system; then there are no ratios.
    #[arg(long, value_enum, value_name = "SYSTEM")]
    pub system: Option<crate::experiments::System>,
    /// Of `fairness`, only this scenario.
    #[arg(long, value_name = "NAME")]
    pub scenario: Option<String>,
    /// Of `cycles`, the number of the model's cores; 1 by default.
    #[arg(long, value_name = "NUMBER")]
    pub harts: Option<u8>,
    /// Of `cycles`, cycles until the first word from memory; 30 by default.
    #[arg(long, value_name = "CYCLES")]
    pub latency: Option<u32>,
    /// Of `cycles`, show where the cycles go, by function.
    #[arg(long)]
    pub profile: bool,
    /// Also keep the results in bench/results, with the source.
    #[arg(long)]
    pub record: bool,
}

/// Arguments of `report`.
#[derive(Args, Debug)]
pub struct Report {
    /// File for the page; the default is cops/report.html in the target directory.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Draw the plots and tables of the recorded results in bench/results anew.
    #[arg(long)]
    pub redraw: bool,
    /// Look at the pages with Chromium, fail if a text is cut or covered, and leave screenshots in this directory.
    #[arg(long, value_name = "DIRECTORY")]
    pub look: Option<PathBuf>,
}

/// Arguments of `book`.
#[derive(Args, Debug)]
pub struct Book {
    /// Serve the book on this port of this host until Ctrl-C.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "3000", value_parser = clap::value_parser!(u16).range(1..))]
    pub serve: Option<u16>,
}

/// Arguments of `symbolise`.
#[derive(Args, Debug)]
pub struct Symbolise {
    /// ELF file of the kernel or the program; the default is the kernel built last.
    #[arg(long, value_name = "FILE")]
    pub elf: Option<PathBuf>,
}

/// Arguments of the guard.
#[derive(Args, Debug)]
pub struct Guard {
    /// The process that must still be the parent.
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
        assert_eq!(run.program.as_deref(), Some("hello"));
        assert_eq!(run.kernel, Kernel::Unix);
        assert_eq!(run.boot.machine.harts, Some(2));
        assert_eq!(run.arguments, ["--harts", "x"]);
        assert_eq!(run.boot.scheduling.words(), "");
    }

    #[test]
    fn boards_go_with_some_commands_and_refuse_what_they_lack() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../boards/sifive-u.toml");
        let board = Board::load(std::path::Path::new(file)).unwrap();
        let check = |words: &str| {
            let words = ["cargo xtask", "--board", "sifive-u"].into_iter().chain(words.split(' '));
            Arguments::parse_from(words).check_board(&board).map_err(|error| error.to_string())
        };
        for words in ["run", "run --harts 4 --memory 512M hello", "demo --quick", "test qemu", "bench switch"] {
            assert_eq!(check(words), Ok(()), "{words}");
        }
        for (words, expected) in [
            ("soak", "--board goes with"),
            ("run --harts 5", "has 4 harts at most"),
            ("test --harts 8 qemu", "has 4 harts at most"),
            ("demo --machine aia", "has no machine `aia`"),
            ("run --disk image", "has no disks"),
            ("run --core", "has no disks"),
            ("run --share folder", "cannot be given a folder"),
            ("demo --kernel micro", "drives virtio alone"),
        ] {
            assert!(check(words).is_err_and(|error| error.contains(expected)), "{words}");
        }
    }

    #[test]
    fn packages_and_their_command_are_told_apart() {
        let line = ["cargo xtask", "linux", "run", "--harts", "2", "redis-server", "nginx", "--", "redis-server", ""];
        let Command::Linux(Linux { action: LinuxAction::Run(run) }) = Arguments::parse_from(line).command else {
            panic!("not linux run")
        };
        assert_eq!(run.packages, ["redis-server", "nginx"]);
        assert_eq!(run.command, ["redis-server", ""]);
        assert_eq!(run.boot.machine.harts, Some(2));
    }

    #[test]
    fn scheduling_becomes_words_for_the_kernel() {
        let line =
            "cargo xtask run --scheduling strict --starvation-bound 0 --budget 50 --slice 25 hello".split_whitespace();
        let line = ["cargo xtask"].into_iter().chain(line.skip(2));
        let Command::Run(run) = Arguments::parse_from(line).command else { panic!("not run") };
        assert_eq!(run.boot.scheduling.words(), "scheduling=strict starvation-bound=0 budget=50 slice=25 ");
    }

    #[test]
    fn nonsense_is_refused() {
        for wrong in [
            &["run", "--harts", "0"][..],
            &["soak", "--seconds", "3"],
            &["exchange", "--mebibytes", "0"],
            &["exchange", "--loss", "51"],
            &["exchange", "--connections", "0"],
            &["run", "--harts", "9"],
            &["run", "--machine", "x86"],
            &["run", "--memory", "lots"],
            &["run", "--forward", "70000:1"],
            &["run", "--scheduling", "sometimes"],
            &["run", "--budget", "0"],
            &["linux", "run"],
            &["bench"],
            &["bench", "nothing"],
            &["test", "something"],
            &["run", "--kernel", "macro"],
        ] {
            assert!(Arguments::try_parse_from([&["cargo xtask"], wrong].concat()).is_err(), "{wrong:?}");
        }
    }
}
