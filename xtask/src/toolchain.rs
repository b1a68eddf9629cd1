//! The programs that building and booting COPS need: finding, choosing and installing them.
//!
//! There are two ways to compile for the target. A rustup toolchain that has the target's standard library, or can add
//! it, needs nothing else: it brings its own linker. Debian 12 has a new Rust compiler in packages of their own
//! (`rustc-web` and others), without libraries for the target; with those `core` and `alloc` are built from source and
//! Debian's `ld.lld` links. The first way is preferred because it leaves the host unchanged.
//!
//! [`decide`] is the policy, a pure function of the [state of the host](Seen); the other functions look and act.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::board::{Board, Clock, Configuration};
use crate::children::{self, Ending};
use crate::progress::Progress;
use crate::workspace::TARGET;

/// Longest time of adding the target. Offline it must end soon, since there is another way.
const TARGET_ADD_LIMIT: Duration = Duration::from_secs(90);

/// Longest time of apt-get.
const INSTALL_LIMIT: Duration = Duration::from_secs(1200);

/// Longest time of a program's `--version`.
const VERSION_LIMIT: Duration = Duration::from_secs(20);

/// The oldest Rust that compiles this workspace.
const MINIMUM_RUST: [u32; 2] = [1, 95];

/// The first QEMU whose AIA has guest interrupt files that work.
const MINIMUM_QEMU: [u32; 2] = [7, 2];

/// The C compiler for Linux on riscv64, and a file of its C library.
pub const RISCV_GCC: &str = "riscv64-linux-gnu-gcc";
const RISCV_LIBC: &str = "/usr/riscv64-linux-gnu/lib/libc.a";

/// Programs that a build of QEMU needs.
const OF_QEMU_PROGRAMS: [(Item, &str); 9] = [
    (Item::Cc, "cc"),
    (Item::Make, "make"),
    (Item::Ninja, "ninja"),
    (Item::PkgConfig, "pkg-config"),
    (Item::Patch, "patch"),
    (Item::DpkgSource, "dpkg-source"),
    (Item::Strip, "strip"),
    (Item::Verilator, "verilator"),
    (Item::Cxx, "c++"),
];

/// Files that a build of QEMU needs: a program that must be Debian's, and headers.
const OF_QEMU_FILES: [(Item, &str); 6] = [
    (Item::Meson, "/usr/bin/meson"),
    (Item::Glib, "/usr/include/glib-2.0/glib.h"),
    (Item::Pixman, "/usr/include/pixman-1/pixman.h"),
    (Item::Slirp, "/usr/include/slirp/libslirp.h"),
    (Item::Fdt, "/usr/include/libfdt.h"),
    (Item::FirmwareThatJumps, crate::rocket::FIRMWARE),
];

/// Directory of programs from Debian's packages.
const DEBIAN_PROGRAMS: &str = "/usr/bin";

/// A program or library that can be missing, with its name in Debian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// Debian's Rust compiler, new enough.
    DebianRustc,
    /// Debian's cargo.
    DebianCargo,
    /// The source of the standard library that goes with them.
    DebianRustSource,
    /// The linker `ld.lld`.
    Lld,
    /// The emulator, new enough.
    Qemu,
    /// The firmware that QEMU starts.
    OpenSbi,
    /// The compiler of the C example.
    Clang,
    /// Counts instructions of host benchmarks.
    Valgrind,
    /// Compiles programs for Linux on riscv64, beside which COPS is measured.
    RiscvGcc,
    /// The C library of these programs.
    RiscvLibc,
    /// The host's C compiler; this and all below are for a build of QEMU.
    Cc,
    /// The program that QEMU's configuration looks for, and that does not build it.
    Make,
    /// The program that builds it.
    Ninja,
    /// The program that plans the build.
    Meson,
    /// The program that knows the flags of libraries.
    PkgConfig,
    /// The program that applies patches.
    Patch,
    /// The program that unpacks Debian's sources.
    DpkgSource,
    /// QEMU's library of everything.
    Glib,
    /// QEMU's library of pixels, which it needs without a display as well.
    Pixman,
    /// The library of QEMU's user network.
    Slirp,
    /// The library of device trees.
    Fdt,
    /// The program that takes symbols off.
    Strip,
    /// The programs that make and check volumes of ext4.
    E2fsprogs,
    /// The boot loader of many boards, for QEMU's machine.
    UBoot,
    /// The program that makes programs of hardware descriptions; this and all below are for `bench cycles`.
    Verilator,
    /// The compiler of these programs.
    Cxx,
    /// The program that fetches packages of Python.
    Pip,
    /// The firmware that starts a kernel at a fixed address.
    FirmwareThatJumps,
}

impl Item {
    /// Returns the Debian package that contains it.
    pub const fn package(self) -> &'static str {
        match self {
            Item::DebianRustc => "rustc-web",
            Item::DebianCargo => "cargo-web",
            Item::DebianRustSource => "rust-web-src",
            Item::Lld => "lld",
            Item::Qemu => "qemu-system-misc",
            Item::OpenSbi => "opensbi",
            Item::Clang => "clang",
            Item::Valgrind => "valgrind",
            Item::RiscvGcc => "gcc-riscv64-linux-gnu",
            Item::RiscvLibc => "libc6-dev-riscv64-cross",
            Item::Cc => "gcc",
            Item::Make => "make",
            Item::Ninja => "ninja-build",
            Item::Meson => "meson",
            Item::PkgConfig => "pkg-config",
            Item::Patch => "patch",
            Item::DpkgSource => "dpkg-dev",
            Item::Glib => "libglib2.0-dev",
            Item::Pixman => "libpixman-1-dev",
            Item::Slirp => "libslirp-dev",
            Item::Fdt => "libfdt-dev",
            Item::Strip => "binutils",
            Item::E2fsprogs => "e2fsprogs",
            Item::UBoot => "u-boot-qemu",
            Item::Verilator => "verilator",
            Item::Cxx => "g++",
            Item::Pip => "python3-pip",
            Item::FirmwareThatJumps => "opensbi",
        }
    }

    /// Returns a description for people.
    pub const fn description(self) -> &'static str {
        match self {
            Item::DebianRustc => "Debian's Rust compiler, 1.95 or later",
            Item::DebianCargo => "Debian's cargo for that compiler",
            Item::DebianRustSource => "the source of Rust's standard library",
            Item::Lld => "the linker ld.lld",
            Item::Qemu => "qemu-system-riscv64, 7.2 or later",
            Item::OpenSbi => "OpenSBI, the firmware under the kernel",
            Item::Clang => "clang, for the C example",
            Item::Valgrind => "valgrind, for `bench scheduler`",
            Item::RiscvGcc => "a C compiler for Linux on riscv64, for `bench peers`",
            Item::RiscvLibc => "its C library, for `bench peers`",
            Item::Cc => "a C compiler, for `machine`",
            Item::Make => "make, for `machine`",
            Item::Ninja => "ninja, for `machine`",
            Item::Meson => "meson in /usr/bin, for `machine`",
            Item::PkgConfig => "pkg-config, for `machine`",
            Item::Patch => "patch, for `machine`",
            Item::DpkgSource => "dpkg-source, for `machine`",
            Item::Glib => "the library GLib, for `machine`",
            Item::Pixman => "the library pixman, for `machine`",
            Item::Slirp => "the library slirp, for `machine`",
            Item::Fdt => "the library libfdt, for `machine`",
            Item::Strip => "strip, for `machine`",
            Item::E2fsprogs => "mke2fs and e2fsck, for `image` and the tests of volumes",
            Item::UBoot => "U-Boot, for the tests of boot loaders",
            Item::Verilator => "Verilator, for `bench cycles`",
            Item::Cxx => "a C++ compiler, for `bench cycles`",
            Item::Pip => "Python with pip, for `bench cycles`",
            Item::FirmwareThatJumps => "OpenSBI that jumps, for `bench cycles`",
        }
    }
}

/// The items that the Debian way of compiling needs.
const DEBIAN_RUST: [Item; 4] = [Item::DebianRustc, Item::DebianCargo, Item::DebianRustSource, Item::Lld];

/// A way to compile for the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Installation {
    /// The Rust on the PATH, with the target's libraries.
    Rustup,
    /// Debian's packages, with the libraries built from source.
    Debian,
}

/// The Rust compiler on the PATH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RustOnPath {
    /// Output of `rustc --version`.
    pub version: String,
    /// Whether the target's libraries are present.
    pub has_target: bool,
    /// Whether rustup manages it, and could add them.
    pub rustup: bool,
}

/// The state of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The Rust compiler on the PATH, if it is new enough.
    pub rust: Option<RustOnPath>,
    /// Whether this is Debian, or a derivative.
    pub debian: bool,
    /// Whether this program may install packages.
    pub may_install: bool,
    /// The items that are present.
    pub present: BTreeSet<Item>,
}

/// The next step to a way to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Compile in this way.
    Use(Installation),
    /// Add the target with rustup, and decide again without rustup if that fails.
    AddTarget,
    /// Install these items, then use Debian's way.
    Install(Vec<Item>),
    /// Only the user can help, with one of these commands.
    Impossible(Vec<String>),
}

/// Chooses a way to compile; `forced` is the user's own choice.
pub fn decide(seen: &Seen, forced: Option<Installation>) -> Decision {
    let missing = missing(seen, &DEBIAN_RUST);
    let rust = seen.rust.as_ref().filter(|_| forced != Some(Installation::Debian));
    let debian = forced != Some(Installation::Rustup);
    match rust {
        Some(rust) if rust.has_target => return Decision::Use(Installation::Rustup),
        // Packages that are there already serve without the network.
        _ if debian && missing.is_empty() => return Decision::Use(Installation::Debian),
        Some(rust) if rust.rustup => return Decision::AddTarget,
        _ => {}
    }
    if debian && seen.debian && seen.may_install {
        return Decision::Install(missing);
    }
    let mut commands = Vec::new();
    if forced != Some(Installation::Debian) {
        commands.push(format!("rustup target add {TARGET}"));
    }
    if debian && seen.debian {
        commands.push(install_command(&missing));
    }
    if commands.is_empty() {
        commands.push(format!("on Debian 12: {}", install_command(&missing)));
    }
    Decision::Impossible(commands)
}

/// Returns the items of `needed` that are missing.
pub fn missing(seen: &Seen, needed: &[Item]) -> Vec<Item> {
    needed.iter().copied().filter(|item| !seen.present.contains(item)).collect()
}

/// Returns the command that installs packages, for a user to run.
pub fn install_command(items: &[Item]) -> String {
    let packages: Vec<_> = items.iter().map(|item| item.package()).collect();
    format!("sudo apt-get install {}", packages.join(" "))
}

/// Limits the number of programs that compile at once by this command of cargo.
pub fn limit_jobs(command: &mut Command, jobs: Option<usize>) {
    if let Some(jobs) = jobs {
        command.env("CARGO_BUILD_JOBS", jobs.to_string());
    }
}

/// A toolchain that is ready to compile for the target.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// The way to compile.
    pub installation: Installation,
    /// `ld.lld`, and the arguments that select its behaviour.
    linker: (PathBuf, Vec<String>),
    /// clang, if there is one.
    pub clang: Option<PathBuf>,
    /// QEMU.
    pub qemu: PathBuf,
    /// Number of programs that compile at once, unless cargo chooses it.
    pub jobs: Option<usize>,
    /// The aim of compiling kernel and programs.
    pub aim: Aim,
}

/// The aim of compiling the Unix kernel and programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// To be fast; debug information has lines alone.
    #[default]
    Speed,
    /// To be looked at with a debugger: it has types and variables, most of which stay in memory while they are used.
    Debugger,
}

/// The extent of the tools that a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CExample {
    /// The C example must be built: no clang is an error.
    Required,
    /// Without clang the C example is left out, with a message.
    WhereClangIs,
}

impl Toolchain {
    /// Finds all tools, and installs missing ones where that is possible.
    ///
    /// # Errors
    ///
    /// A tool is missing that only the user can provide; the message has the command.
    pub fn ensure(qemu_program: &str, c_example: CExample, progress: &Progress) -> Result<Toolchain> {
        let forced = forced_installation()?;
        let mut seen = look();
        let mut decision = decide(&seen, forced);
        if decision == Decision::AddTarget {
            add_target(progress);
            // The state of the host counts, not rustup's message.
            seen = look();
            if let Some(rust) = &mut seen.rust {
                rust.rustup = false;
            }
            decision = decide(&seen, forced);
        }

        let mut wanted = match &decision {
            Decision::Install(items) => items.clone(),
            Decision::Impossible(commands) => bail!(
                "no Rust compiler for {TARGET} was found. Run this and try again:\n    {}",
                commands.join("\nor\n    ")
            ),
            _ => Vec::new(),
        };
        let installation = match decision {
            Decision::Use(installation) => installation,
            _ => Installation::Debian,
        };
        wanted.extend(missing(&seen, &[Item::Qemu, Item::OpenSbi]));
        let clang = missing(&seen, &[Item::Clang]);
        if seen.may_install && seen.debian {
            wanted.extend(clang);
            if !wanted.is_empty() {
                install(&wanted, progress)?;
            }
        } else {
            if c_example == CExample::Required {
                wanted.extend(clang);
            }
            if !wanted.is_empty() {
                let what: Vec<_> = wanted.iter().map(|item| item.description()).collect();
                bail!(
                    "missing: {}. On Debian, run this and try again:\n    {}",
                    what.join(", "),
                    install_command(&wanted)
                );
            }
        }
        Ok(Toolchain {
            installation,
            linker: find_linker(installation)?,
            clang: find_program("clang"),
            qemu: find_program(qemu_program).with_context(|| format!("{qemu_program} is not on the PATH"))?,
            aim: Aim::default(),
            jobs: None,
        })
    }

    /// Returns cargo, set up to compile for the target with `subcommand`. The caller adds package, profile and flags
    /// for rustc.
    pub fn cargo(&self, subcommand: &str) -> Command {
        let mut command = match self.installation {
            Installation::Rustup => crate::workspace::cargo(),
            Installation::Debian => {
                let mut command = children::command(Path::new(DEBIAN_PROGRAMS).join("cargo"));
                let path = env::var_os("PATH").unwrap_or_default();
                let path = env::join_paths([PathBuf::from(DEBIAN_PROGRAMS)].into_iter().chain(env::split_paths(&path)));
                command.env("PATH", path.unwrap_or_else(|_| DEBIAN_PROGRAMS.into()));
                command.env("RUSTC_BOOTSTRAP", "1");
                command.env("CARGO_TARGET_RISCV64GC_UNKNOWN_NONE_ELF_LINKER", "ld.lld");
                // Variables that the cargo behind this program has set for its own compiler.
                for name in ["RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC", "CARGO", "LD_LIBRARY_PATH"] {
                    command.env_remove(name);
                }
                command
            }
        };
        command.args([subcommand, "--target", TARGET]);
        limit_jobs(&mut command, self.jobs);
        if self.installation == Installation::Debian {
            command.arg("-Zbuild-std=core,alloc,compiler_builtins");
        }
        command
    }

    /// Returns the name of the build directory, so that the ways do not undo each other's work.
    pub fn directory(&self) -> &'static str {
        match self.installation {
            Installation::Rustup => "target-rustup",
            Installation::Debian => "target-debian",
        }
    }

    /// Returns QEMU's name and version, without its distribution's part.
    pub fn qemu_version(&self) -> String {
        let said = version_of(&self.qemu).unwrap_or_default();
        let line = said.lines().next().unwrap_or("QEMU");
        line.split(" (").next().unwrap_or(line).replace("emulator version ", "")
    }

    /// Returns what stands beside a machine's results: board, interrupt controller, harts, QEMU, and clock.
    pub fn describe(&self, board: &Board, configuration: &Configuration) -> String {
        let Configuration { machine, harts, clock, .. } = configuration;
        let plural = if *harts == 1 { "" } else { "s" };
        let clock = match clock {
            Clock::Host => "",
            Clock::Instructions => ", -icount shift=0",
            Clock::SlowInstructions => ", -icount shift=3",
        };
        format!("{} {machine}, {harts} hart{plural}, {}{clock}", board.name, self.qemu_version())
    }

    /// Returns a linker for the target that takes the arguments of `ld.lld`.
    pub fn linker(&self) -> Command {
        let mut command = children::command(&self.linker.0);
        command.args(&self.linker.1);
        command
    }
}

/// Returns the way that the environment requests.
///
/// # Errors
///
/// It requests one that does not exist.
pub fn forced_installation() -> Result<Option<Installation>> {
    match env::var("COPS_TOOLCHAIN") {
        Err(_) => Ok(None),
        Ok(name) => match name.as_str() {
            "rustup" => Ok(Some(Installation::Rustup)),
            "debian" => Ok(Some(Installation::Debian)),
            _ => bail!("COPS_TOOLCHAIN is `{name}`; it can be `rustup` or `debian`"),
        },
    }
}

/// Looks at the host, without changes.
pub fn look() -> Seen {
    let mut present = BTreeSet::new();
    let mut note = |item, there: bool| {
        if there {
            present.insert(item);
        }
    };
    let debian_rustc = Path::new(DEBIAN_PROGRAMS).join("rustc");
    let debian_version = version_of(&debian_rustc);
    note(Item::DebianRustc, debian_version.as_deref().is_some_and(|text| is_at_least(text, MINIMUM_RUST)));
    let cargo = version_of(&Path::new(DEBIAN_PROGRAMS).join("cargo"));
    note(Item::DebianCargo, cargo.as_deref().is_some_and(|text| is_at_least(text, MINIMUM_RUST)));
    let source = Path::new("/usr/lib/rustlib/src/rust/library/core/src/lib.rs");
    note(Item::DebianRustSource, source.exists());
    note(Item::Lld, find_program("ld.lld").is_some());
    let qemu = find_program("qemu-system-riscv64");
    let qemu_version = qemu.as_deref().and_then(version_of);
    note(Item::Qemu, qemu_version.as_deref().is_some_and(|text| is_at_least(text, MINIMUM_QEMU)));
    note(Item::OpenSbi, has_firmware(qemu.as_deref()));
    note(Item::Clang, find_program("clang").is_some());
    note(Item::Valgrind, find_program("valgrind").is_some());
    note(Item::E2fsprogs, crate::image::tools_are_there());
    note(Item::UBoot, Path::new(crate::boot_loader::U_BOOT).exists());
    note(Item::RiscvGcc, find_program(RISCV_GCC).is_some());
    note(Item::RiscvLibc, Path::new(RISCV_LIBC).exists());
    for (item, program) in OF_QEMU_PROGRAMS {
        note(item, find_program(program).is_some());
    }
    note(Item::Pip, said_by(children::command("python3").args(["-m", "pip", "--version"])).is_some());
    for (item, file) in OF_QEMU_FILES {
        note(item, Path::new(file).exists());
    }
    Seen {
        rust: look_at_rust(),
        debian: std::fs::read_to_string("/etc/os-release").is_ok_and(|text| is_debian(&text)),
        may_install: rustix::process::geteuid().is_root()
            && env::var_os("COPS_NO_INSTALL").is_none()
            && find_program("apt-get").is_some(),
        present,
    }
}

/// Returns whether the Rust on the PATH has the libraries of a target.
pub fn has_rust_target(target: &str) -> bool {
    said_by(children::command("rustc").args(["--print", "sysroot"])).is_some_and(|root| has_libraries(&root, target))
}

/// Returns whether there are the libraries of a target below the directory that rustc prints.
fn has_libraries(root: &str, target: &str) -> bool {
    let libraries = Path::new(root.trim()).join("lib/rustlib").join(target).join("lib");
    std::fs::read_dir(libraries)
        .is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-")))
}

fn look_at_rust() -> Option<RustOnPath> {
    let rustc = find_program("rustc")?;
    let version = version_of(&rustc)?;
    if !is_at_least(&version, MINIMUM_RUST) {
        return None;
    }
    let root = said_by(children::command(&rustc).args(["--print", "sysroot"]))?;
    let has_target = has_libraries(&root, TARGET);
    let rustup = find_program("rustup").is_some_and(|rustup| {
        // A rustup that manages another compiler than the one on the PATH is no help.
        said_by(children::command(rustup).args(["which", "rustc"]))
            .is_some_and(|path| path.trim().starts_with(root.trim()))
    });
    Some(RustOnPath { version: version.trim().to_string(), has_target, rustup })
}

fn find_linker(installation: Installation) -> Result<(PathBuf, Vec<String>)> {
    if installation == Installation::Rustup
        && let Some(root) = said_by(children::command("rustc").args(["--print", "sysroot"]))
        && let Some(host) = said_by(children::command("rustc").args(["--print", "host-tuple"]))
    {
        let linker = Path::new(root.trim()).join("lib/rustlib").join(host.trim()).join("bin/rust-lld");
        if linker.exists() {
            return Ok((linker, vec!["-flavor".into(), "gnu".into()]));
        }
    }
    let linker = find_program("ld.lld").with_context(|| {
        format!("no linker was found: the Rust toolchain has no rust-lld. Run\n    {}", install_command(&[Item::Lld]))
    })?;
    Ok((linker, Vec::new()))
}

/// Finds a program on the PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| {
        file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })
}

/// Returns the output of a program's `--version`.
pub fn version_of(program: &Path) -> Option<String> {
    if !program.exists() {
        return None;
    }
    said_by(children::command(program).arg("--version"))
}

fn said_by(command: &mut Command) -> Option<String> {
    let output = children::output(command, Ending::Kill, VERSION_LIMIT).ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns whether a program starts, and has at least this version.
pub fn is_version(program: &Path, minimum: [u32; 2]) -> bool {
    version_of(program).is_some_and(|text| is_at_least(&text, minimum))
}

/// Returns whether a program's output names at least this version.
fn is_at_least(text: &str, minimum: [u32; 2]) -> bool {
    first_version(text).is_some_and(|version| version >= minimum)
}

/// Returns the first two numbers with a point between them.
fn first_version(text: &str) -> Option<[u32; 2]> {
    text.split(|character: char| !character.is_ascii_digit() && character != '.').find_map(|word| {
        let mut numbers = word.split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some([major, minor]),
            _ => None,
        }
    })
}

/// Returns whether this host has this release of Debian.
pub fn is_release_of_debian(name: &str) -> bool {
    std::fs::read_to_string("/etc/os-release")
        .is_ok_and(|text| value_of("ID", &text) == "debian" && value_of("VERSION_CODENAME", &text) == name)
}

fn is_debian(os_release: &str) -> bool {
    value_of("ID", os_release) == "debian"
        || value_of("ID_LIKE", os_release).split_whitespace().any(|name| name == "debian")
}

/// Returns a variable's value in the text of os-release(5).
fn value_of<'a>(key: &str, os_release: &'a str) -> &'a str {
    let mut values = os_release.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.next_back().unwrap_or("").trim_matches('"')
}

/// Returns whether QEMU finds the firmware of `-bios default`, or would find it if it were there.
fn has_firmware(qemu: Option<&Path>) -> bool {
    let said = qemu.and_then(|qemu| said_by(children::command(qemu).args(["-L", "help"])));
    let directories = said.unwrap_or_else(|| "/usr/share/qemu".into());
    directories.lines().any(|directory| Path::new(directory).join("opensbi-riscv64-generic-fw_dynamic.bin").exists())
}

fn add_target(progress: &Progress) {
    let activity = progress.start(format!("Adding the Rust target {TARGET}"));
    let mut command = children::command("rustup");
    command.args(["target", "add", TARGET]);
    match children::output(&mut command, Ending::Kill, TARGET_ADD_LIMIT) {
        Ok(output) if output.status.success() => activity.finish("done"),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let why = text.lines().find(|line| line.contains("error")).unwrap_or("rustup failed");
            activity.finish(&format!("not possible ({})", why.trim()));
        }
        Err(error) => activity.finish(&format!("not possible ({error})")),
    }
}

/// Installs missing programs for the host's own chores.
///
/// # Errors
///
/// One is missing that only the user can provide; the message has the command.
pub fn ensure_on_host(items: &[Item], progress: &Progress) -> Result<()> {
    let seen = look();
    let wanted = missing(&seen, items);
    if wanted.is_empty() {
        return Ok(());
    }
    if seen.debian && seen.may_install {
        return install(&wanted, progress);
    }
    let what: Vec<_> = wanted.iter().map(|item| item.description()).collect();
    bail!("missing: {}. On Debian, run this and try again:\n    {}", what.join(", "), install_command(&wanted))
}

/// Installs Debian packages and looks at the host again. The lists of packages are fetched anew if the wanted versions
/// are not found: there may be no lists, or they may be so old that they name older versions.
///
/// # Errors
///
/// apt-get fails; the message has its output. Or it succeeds and an item is still missing.
fn install(items: &[Item], progress: &Progress) -> Result<()> {
    let packages: Vec<_> = items.iter().map(|item| item.package()).collect();
    let activity = progress.start(format!("Installing {} with apt-get", packages.join(" ")));
    let install = || {
        let mut command = apt_get();
        command.args(["install", "--yes", "--no-install-recommends"]).args(&packages);
        children::output(&mut command, Ending::Ask, INSTALL_LIMIT).context("apt-get could not be run")
    };
    let mut result = install()?;
    let mut seen = look();
    if !result.status.success() || !missing(&seen, items).is_empty() {
        activity.detail("apt-get update");
        let update = children::output(apt_get().arg("update"), Ending::Ask, INSTALL_LIMIT);
        update.context("apt-get update could not be run")?;
        activity.detail("");
        result = install()?;
        seen = look();
    }
    if !result.status.success() {
        let said = String::from_utf8_lossy(&result.stderr);
        bail!("apt-get could not install {}:\n{}", packages.join(" "), said.trim());
    }
    let still = missing(&seen, items);
    if !still.is_empty() {
        let what: Vec<_> = still.iter().map(|item| item.description()).collect();
        bail!("apt-get has installed its newest packages, and yet this is missing: {}", what.join("; "));
    }
    activity.finish("done");
    Ok(())
}

fn apt_get() -> Command {
    let mut command = children::command("apt-get");
    command.args(["-o", "DPkg::Lock::Timeout=120"]).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(has_target: bool, rustup: bool) -> Option<RustOnPath> {
        Some(RustOnPath { version: "rustc 1.95.0".into(), has_target, rustup })
    }

    fn debian(may_install: bool) -> Seen {
        Seen { debian: true, may_install, ..Seen::default() }
    }

    #[test]
    fn a_toolchain_with_the_target_is_used_as_it_is() {
        let seen = Seen { rust: rust(true, true), ..debian(true) };
        assert_eq!(decide(&seen, None), Decision::Use(Installation::Rustup));
        assert_eq!(decide(&seen, Some(Installation::Rustup)), Decision::Use(Installation::Rustup));
        assert_eq!(decide(&seen, Some(Installation::Debian)), Decision::Install(DEBIAN_RUST.to_vec()));
    }

    #[test]
    fn rustup_is_asked_before_packages_are_installed() {
        let mut seen = Seen { rust: rust(false, true), ..debian(true) };
        assert_eq!(decide(&seen, None), Decision::AddTarget);
        // The state set by `ensure` when rustup failed.
        seen.rust.as_mut().unwrap().rustup = false;
        assert_eq!(decide(&seen, None), Decision::Install(DEBIAN_RUST.to_vec()));
        seen.present.extend([Item::Lld, Item::DebianCargo]);
        assert_eq!(decide(&seen, None), Decision::Install(vec![Item::DebianRustc, Item::DebianRustSource]));
    }

    #[test]
    fn packages_that_are_there_need_no_network() {
        let seen = Seen { rust: rust(false, true), present: DEBIAN_RUST.into(), ..Seen::default() };
        assert_eq!(decide(&seen, None), Decision::Use(Installation::Debian));
        assert_eq!(decide(&seen, Some(Installation::Rustup)), Decision::AddTarget);
    }

    #[test]
    fn commands_for_the_user_are_named_where_installing_is_not_possible() {
        let rustup = format!("rustup target add {TARGET}");
        let apt = "sudo apt-get install rustc-web cargo-web rust-web-src lld".to_string();
        let seen = Seen { rust: rust(false, false), ..debian(false) };
        assert_eq!(decide(&seen, None), Decision::Impossible(vec![rustup.clone(), apt.clone()]));
        assert_eq!(decide(&seen, Some(Installation::Debian)), Decision::Impossible(vec![apt.clone()]));
        let elsewhere = Seen::default();
        assert_eq!(decide(&elsewhere, None), Decision::Impossible(vec![rustup.clone()]));
        assert_eq!(decide(&elsewhere, Some(Installation::Rustup)), Decision::Impossible(vec![rustup]));
        assert_eq!(
            decide(&elsewhere, Some(Installation::Debian)),
            Decision::Impossible(vec![format!("on Debian 12: {apt}")])
        );
    }

    #[test]
    fn variables_of_the_release_are_whole_words() {
        let text = "ID_LIKE=\"ubuntu debian\"\nVERSION_CODENAME=bookworm\nID=mint\n";
        assert_eq!(value_of("ID", text), "mint");
        assert_eq!(value_of("VERSION_CODENAME", text), "bookworm");
        assert_eq!(value_of("VERSION", text), "");
        assert!(is_debian(text) && !is_debian("ID=fedora"));
    }

    #[test]
    fn versions_are_read_from_the_output_of_programs() {
        assert_eq!(first_version("rustc 1.96.0 (abc 2026-05-25)"), Some([1, 96]));
        assert_eq!(first_version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)"), Some([7, 2]));
        assert_eq!(first_version("no version here."), None);
        assert!(is_at_least("cargo 1.95.0", [1, 95]) && !is_at_least("cargo 1.63.0", [1, 95]));
        assert!(is_at_least("version 10.0.2", [7, 2]) && !is_at_least("version 6.9", [7, 2]));
    }

    #[test]
    fn debian_and_its_derivatives_are_recognised() {
        assert!(is_debian("NAME=x\nID=debian\n"));
        assert!(is_debian("ID=ubuntu\nID_LIKE=\"debian\"\n"));
        assert!(!is_debian("ID=fedora\nID_LIKE=\"rhel centos\"\n"));
    }

    #[test]
    fn programs_are_found_on_the_path_only_if_they_can_run() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-anywhere").is_none());
    }
}
