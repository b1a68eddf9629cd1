//! The emulator of each machine: QEMU of the host, or one that `machine` builds from Debian's source with patches of
//! this tree.
//!
//! A built emulator lies in a cache of the user, under a name that follows from the patches and from the options of its
//! configuration: clones of this tree on one host share it, and a changed patch is another emulator. It is put there in
//! one step, when it is complete.
//!
//! Benchmarks by the host's clock want a [newer QEMU](of_benchmarks) than Debian 12 has: before version 8.1 it forgets
//! all translations whenever a kernel opens user memory, which Linux does for each copy.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::apt::{Apt, Packages};
use crate::board::{Board, Variant};
use crate::children::{self, Child, Ending};
use crate::context::Context;
use crate::progress::{Activity, Progress};
use crate::toolchain::{self, Item, Toolchain};

/// The release of Debian with QEMU 7.2, for which the patches are.
const SUITE: &str = "bookworm";

/// Variable with the directory of the cache.
const CACHE: &str = "COPS_CACHE";

/// The needs of a build of QEMU.
const NEEDS: [Item; 12] = [
    Item::Cc,
    Item::Make,
    Item::Ninja,
    Item::Meson,
    Item::PkgConfig,
    Item::Patch,
    Item::DpkgSource,
    Item::Glib,
    Item::Pixman,
    Item::Slirp,
    Item::Fdt,
    Item::Strip,
];

/// The target, and no feature but those that the suites use. The firmware is that of the host's QEMU.
const CONFIGURATION: [&str; 8] = [
    "--target-list=riscv64-softmmu",
    "--without-default-features",
    "--with-git-submodules=ignore",
    "--disable-werror",
    "--enable-tcg",
    "--enable-fdt=system",
    "--enable-slirp",
    "--firmwarepath=/usr/share/qemu",
];

/// The first QEMU that keeps its translations when a kernel opens user memory.
const OF_BENCHMARKS: [u32; 2] = [8, 1];

/// The part of Debian's archive with newer programs for [`SUITE`], and the package there with the program.
const NEWER: (&str, &str) = ("bookworm-backports", "qemu-system-riscv");

/// Number of last lines that are shown of a step that fails.
const LAST_LINES: usize = 30;

/// Returns the program that emulates a machine. `qemu` is the host's.
///
/// # Errors
///
/// The machine needs an emulator that has not been built.
pub fn program(board: &Board, machine: Variant, qemu: &Path) -> Result<PathBuf> {
    let Some(patches) = board.patches(machine) else { return Ok(qemu.to_path_buf()) };
    let program = cached(board, &patches)?;
    if !program.exists() {
        bail!("the machine `{machine}` has not been built; run: cargo xtask machine {machine}");
    }
    Ok(program)
}

/// Returns whether a machine can be booted on this host; otherwise a line says that figures of it are left out.
pub fn is_there(context: &Context, machine: Variant, toolchain: &Toolchain) -> bool {
    let found = program(&context.board, machine, &toolchain.qemu);
    if let Err(error) = &found {
        println!("note: left out: {error}");
    }
    found.is_ok()
}

/// Returns the QEMU for benchmarks by the host's clock: the host's if that is new enough, and otherwise one of Debian's
/// backports, which is fetched into the cache once. If none can be had, a line says so, and it is the host's.
pub fn of_benchmarks(context: &Context, qemu: &Path) -> PathBuf {
    if toolchain::is_version(qemu, OF_BENCHMARKS) {
        return qemu.to_path_buf();
    }
    newer(&context.progress, &context.board.qemu.program).unwrap_or_else(|error| {
        println!("note: figures by the host's clock are of an old QEMU, which favours COPS beside Linux: {error:#}");
        qemu.to_path_buf()
    })
}

/// Returns the program of Debian's backports, and fetches it unless the cache has it.
fn newer(progress: &Progress, name: &str) -> Result<PathBuf> {
    let (suite, package) = NEWER;
    let program = cache()?.join(format!("qemu-{suite}")).join(name);
    if program.exists() {
        return Ok(program);
    }
    if !toolchain::is_release_of_debian(SUITE) {
        bail!("install QEMU 8.1 or later");
    }
    keep(&program, |work| fetch_newer(progress, suite, package, name, work))?;
    Ok(program)
}

/// Returns the name in the cache of what is made of these parts.
pub fn name_of<T: AsRef<[u8]>>(what: &str, parts: impl IntoIterator<Item = T>) -> String {
    let mut hash = Hash::new();
    parts.into_iter().for_each(|part| hash.add(part.as_ref()));
    format!("{what}-{:016x}", hash.0)
}

/// Puts a program into the cache that `make` makes in a directory of its own.
///
/// # Errors
///
/// It cannot be made, or not be put there.
pub fn keep(program: &Path, make: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<()> {
    let directory = program.parent().context("the cache is no directory")?;
    remove_leftovers(directory);
    // Beside its place, so that the last step is a renaming. Two at once do not meet.
    let work = directory.with_extension(format!("part-{}", std::process::id()));
    let kept = make(&work).and_then(|made| {
        std::fs::create_dir_all(directory)?;
        std::fs::rename(&made, program).with_context(|| format!("cannot keep {}", program.display()))
    });
    let _ = std::fs::remove_dir_all(&work);
    kept
}

/// Fetches a package and unpacks it in a new directory. Returns the program, which starts on this host.
fn fetch_newer(progress: &Progress, suite: &str, package: &str, name: &str, work: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(work).with_context(|| format!("cannot make {}", work.display()))?;
    let activity = progress.start(format!("Fetching a newer QEMU from Debian ({suite})"));
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("there is no package for {other}; install QEMU 8.1 or later"),
    };
    let apt = Apt::new(work, suite, Packages::Programs(architecture))?;
    apt.update()?;
    activity.detail(package);
    let root = apt.unpacked(package)?;
    let program = root.join("usr/bin").join(name);
    if !toolchain::is_version(&program, OF_BENCHMARKS) {
        bail!("{} does not start on this host; install QEMU 8.1 or later", name);
    }
    activity.finish(toolchain::version_of(&program).unwrap_or_default().lines().next().unwrap_or("done"));
    Ok(program)
}

/// Builds the emulator of a machine unless the cache has it, and prints its path.
///
/// # Errors
///
/// A tool is missing, Debian's archive cannot be reached, or a step of the build fails.
pub fn build(context: &Context, machine: Variant) -> Result<()> {
    let board = &context.board;
    let Some(patches) = board.patches(machine) else {
        println!("The machine `{machine}` needs nothing but the host's QEMU.");
        return Ok(());
    };
    let program = cached(board, &patches)?;
    if !program.exists() {
        toolchain::ensure_on_host(&NEEDS, &context.progress)?;
        keep(&program, |work| make(&context.progress, &board.qemu.program, &patches, work))?;
    }
    println!("{}", program.display());
    Ok(())
}

/// Removes the directories of builds that were ended before their end.
fn remove_leftovers(directory: &Path) {
    let entries = directory.parent().and_then(|cache| std::fs::read_dir(cache).ok()).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let builder = path.extension().and_then(|extension| extension.to_str()?.strip_prefix("part-")?.parse().ok());
        if builder.is_some_and(|builder: u32| !Path::new("/proc").join(builder.to_string()).exists()) {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Returns the place of an emulator in the cache.
fn cached(board: &Board, patches: &Path) -> Result<PathBuf> {
    let read = |file: &PathBuf| std::fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    let mut parts = series(patches)?.iter().map(read).collect::<Result<Vec<_>>>()?;
    parts.extend(CONFIGURATION.map(|option| option.as_bytes().to_vec()));
    Ok(cache()?.join(name_of("qemu", parts)).join(&board.qemu.program))
}

/// Returns the directory of the user's cache, which all clones on this host share.
///
/// # Errors
///
/// The user has no home, and names no directory.
pub fn cache() -> Result<PathBuf> {
    let cache = cache_directory(|name| std::env::var_os(name))
        .context("there is no place for a cache; set COPS_CACHE to a directory")?;
    Ok(std::path::absolute(cache)?)
}

/// Returns the directory of the cache: the user's choice, or a part of the directory that all programs share.
fn cache_directory(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    path(CACHE)
        .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("cops")))
        .or_else(|| path("HOME").map(|home| home.join(".cache/cops")))
}

/// Returns the patches in their order.
fn series(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "patch"));
    files.sort();
    if files.is_empty() {
        bail!("{} has no patches", folder.display());
    }
    Ok(files)
}

/// Fetches, patches and compiles QEMU in a new directory. Returns the program.
fn make(progress: &Progress, name: &str, patches: &Path, work: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(work).with_context(|| format!("cannot make {}", work.display()))?;
    let activity = progress.start(format!("Fetching QEMU's source from Debian ({SUITE})"));
    let apt = Apt::new(work, SUITE, Packages::Sources)?;
    apt.update()?;
    activity.detail("the source");
    apt.run("apt-get", &["source", "--download-only", "--only-source", "qemu"])?;
    let entries = std::fs::read_dir(work)?.filter_map(|entry| Some(entry.ok()?.path()));
    let description = entries
        .into_iter()
        .find(|file| file.extension().is_some_and(|extension| extension == "dsc"))
        .context("apt-get has downloaded no source")?;
    let version = description.file_stem().unwrap_or_default().to_string_lossy().replace('_', " ");
    activity.detail("unpacking");
    let source = work.join("source");
    // apt has compared every file with the signed lists; the packager's own key need not be on this host.
    let mut unpack = in_directory("dpkg-source", work);
    unpack.args(["--no-check", "--extract"]).arg(&description).arg(&source);
    run(unpack, "dpkg-source", &activity)?;
    activity.finish(&version);

    let activity = progress.start("Patching QEMU");
    for file in series(patches)? {
        let mut patch = in_directory("patch", &source);
        patch.args(["--strip=1", "--forward", "--batch", "--input"]).arg(&file);
        run(patch, "patch", &activity).with_context(|| format!("{} does not fit {version}", file.display()))?;
    }
    activity.clear();

    let built = work.join("built");
    std::fs::create_dir_all(&built)?;
    let activity = progress.start("Configuring QEMU");
    let mut configure = in_directory(source.join("configure"), &built);
    configure.args(CONFIGURATION).arg("--meson=/usr/bin/meson");
    run(configure, "QEMU's configure", &activity)?;
    activity.clear();

    let activity = progress.start("Compiling QEMU, which takes some minutes");
    let mut ninja = in_directory("ninja", &built);
    ninja.arg(name);
    run(ninja, "ninja", &activity)?;
    let stripped = work.join(name);
    let mut strip = in_directory("strip", &built);
    strip.arg("-o").arg(&stripped).arg(built.join(name));
    run(strip, "strip", &activity)?;
    activity.finish("done");
    Ok(stripped)
}

/// Returns a command that prefers Debian's programs: its Meson goes with its Python.
fn in_directory(program: impl AsRef<std::ffi::OsStr>, directory: &Path) -> Command {
    let mut command = children::command(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let preferred = std::env::join_paths([PathBuf::from("/usr/bin")].into_iter().chain(std::env::split_paths(&path)));
    command.current_dir(directory).env("PATH", preferred.unwrap_or(path));
    command
}

/// Runs one step and shows its lines.
fn run(mut command: Command, name: &str, activity: &Activity) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Child::start(&mut command, Ending::Kill).with_context(|| format!("{name} could not be started"))?;
    let (stdout, stderr) = (child.pipes().stdout.take(), child.pipes().stderr.take());
    let complaints = std::thread::spawn(move || {
        stderr.map(|pipe| BufReader::new(pipe).lines().map_while(Result::ok).collect::<Vec<_>>()).unwrap_or_default()
    });
    let mut lines = Vec::new();
    if let Some(stdout) = stdout {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            activity.detail(&line);
            lines.push(line);
        }
    }
    let status = child.wait()?;
    lines.extend(complaints.join().unwrap_or_default());
    if !status.success() {
        bail!("{name} failed ({status}):\n{}", lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"));
    }
    Ok(())
}

/// The hash function FNV-1a: the same on every host and with every compiler.
struct Hash(u64);

impl Hash {
    fn new() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    /// Adds one part, and its length, so that parts do not run into each other.
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().chain(&(bytes.len() as u64).to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Board {
        Board::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../boards/qemu-virt.toml")).unwrap()
    }

    #[test]
    fn the_hosts_qemu_emulates_the_machines_without_patches() {
        let qemu = Path::new("/somewhere/qemu");
        for machine in [Variant::Aia, Variant::Plic] {
            assert_eq!(program(&board(), machine, qemu).unwrap(), qemu);
        }
    }

    /// A program that says its version, as QEMU does.
    #[test]
    fn an_emulator_that_is_new_enough_is_the_one_of_benchmarks() {
        use std::os::unix::fs::PermissionsExt;
        let directory = std::env::temp_dir().join(format!("xtask-newer-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for (version, is_new) in [("8.1.0", true), ("10.0.2 (Debian 1:10.0.2)", true), ("7.2.22", false)] {
            let program = directory.join("qemu");
            std::fs::write(&program, format!("#!/bin/sh\necho 'QEMU emulator version {version}'\n")).unwrap();
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
            assert_eq!(toolchain::is_version(&program, OF_BENCHMARKS), is_new, "{version}");
        }
        assert!(!toolchain::is_version(&directory.join("missing"), OF_BENCHMARKS));
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_cache_is_the_users_choice_or_a_part_of_the_shared_one() {
        let with = |set: &'static [(&str, &str)]| {
            cache_directory(move |name| set.iter().find(|one| one.0 == name).map(|one| one.1.into()))
        };
        let (all, home) = ([(CACHE, "/c"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], [("HOME", "/h")]);
        assert_eq!(with(Box::leak(Box::new(all))), Some("/c".into()));
        assert_eq!(with(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), Some("/x/cops".into()));
        assert_eq!(with(Box::leak(Box::new(home))), Some("/h/.cache/cops".into()));
        assert_eq!(with(&[(CACHE, "")]), None);
    }

    #[test]
    fn only_builds_that_have_ended_leave_something_to_remove() {
        let cache = std::env::temp_dir().join(format!("xtask-emulator-{}", std::process::id()));
        // No process has this number: it is larger than the largest that Linux gives.
        let names = ["qemu-1".into(), "qemu-1.part-4294967295".into(), format!("qemu-1.part-{}", std::process::id())];
        let folders = names.map(|name| cache.join(name));
        folders.iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
        remove_leftovers(&folders[0]);
        assert_eq!(folders.map(|folder| folder.exists()), [true, false, true]);
        std::fs::remove_dir_all(cache).unwrap();
    }

    #[test]
    fn an_emulators_name_follows_from_its_parts() {
        let hash = |parts: &[&str]| {
            let mut hash = Hash::new();
            parts.iter().for_each(|part| hash.add(part.as_bytes()));
            hash.0
        };
        assert_eq!(hash(&["a", "b"]), hash(&["a", "b"]));
        assert_ne!(hash(&["a", "b"]), hash(&["ab"]));
        assert_ne!(hash(&["a", "b"]), hash(&["b", "a"]));
        assert_ne!(hash(&[]), hash(&[""]));
    }

    #[test]
    fn patches_are_applied_in_the_order_of_their_numbers() {
        let patches = board().patches(Variant::Uintc).unwrap();
        let names: Vec<_> = series(&patches)
            .unwrap()
            .iter()
            .map(|file| file.file_name().unwrap().to_string_lossy()[..4].to_string())
            .collect();
        assert_eq!(names, ["0001", "0002", "0003", "0004"]);
        assert!(series(&patches.join("..")).is_err());
    }
}
