//! From sources to a machine that can boot, in the order of dependencies:
//!
//! 1. the vDSO image, the scheduler that the kernel and every process run;
//! 2. the programs and the C example;
//! 3. the initramfs that holds them;
//! 4. beside 2 and 3, the kernel, which contains the vDSO image.
//!
//! Cargo decides which crates are compiled again. This program writes its own products only if they differ from the
//! present files ([`write_if_changed`]), so that a build without a change touches no file and takes only cargo's time.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use filesystem::cpio;
use object::LittleEndian;
use object::elf::{PT_LOAD, ProgramHeader64, SHN_UNDEF};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};

use crate::children::{self, Child, Ending};
use crate::hot;
use crate::instructions;
use crate::linux_target;
use crate::progress::{Activity, Progress};
use crate::toolchain::{Aim, Item, Toolchain, install_command};
use crate::vdso;
use crate::workspace::{Crate, Kernel, TARGET, Workspace, write_if_changed};

/// The package whose image is the vDSO.
const VDSO: &str = "vdso";

/// Linker script of the vDSO image.
const VDSO_SCRIPT: &str = "scheduler/vdso/vdso.ld";

/// Linker options of images that lie at any page; the documentation of the `vdso` crate gives the reasons.
const IMAGE_LINK_FLAGS: [&str; 8] = [
    "-m",
    "elf64lriscv",
    "-shared",
    "-Bsymbolic",
    "--gc-sections",
    "--no-undefined",
    "-zmax-page-size=4096",
    "--build-id=none",
];
/// Further ones of the vDSO image, and of the EFI loader.
const VDSO_LINK_FLAGS: [&str; 5] =
    ["-zrodynamic", "-znoexecstack", "--hash-style=both", "-soname=cops-vdso.so.1", "--fatal-warnings"];
const EFI_LOADER_LINK_FLAGS: [&str; 3] = ["-znoexecstack", "-znorelro", "--strip-all"];

/// The package of the loader that EFI firmware starts, and its linker script.
const EFI_LOADER: &str = "efi-loader";
const EFI_LOADER_SCRIPT: &str = "kernel/efi-loader/efi-loader.ld";
/// The package of the kernel, and its program.
pub const KERNEL: &str = "kernel-unix";

/// Feature of a kernel whose allocations fail when a program requests it.
const FAIL_ALLOCATIONS: &str = "fail-allocations";

/// The package of the microkernel, and its program.
pub const MICROKERNEL: &str = "kernel-micro";

/// The microkernel's feature for several harts, which programs compiled for seL4 see.
const SEVERAL_HARTS: &str = "smp";
/// The feature of a microkernel that counts the resources that threads use.
const COUNTERS: &str = "benchmarks";
/// The feature of a microkernel that checks its own consistency.
const CHECKS: &str = "checks";

/// The package of the microkernel's first program.
const ROOT_TASK: &str = "root-task";

/// Environment variable with the vDSO image's path, for the kernel's build.
const VDSO_VARIABLE: &str = "COPS_VDSO_IMAGE";

/// Environment variable with the built-in boot words, for the microkernel's build.
const WORDS_VARIABLE: &str = "COPS_MICRO_WORDS";

/// Environment variable with the path of the contained programs' archive, for the build of root tasks.
const CONTAINED_VARIABLE: &str = "COPS_CONTAINED_PROGRAMS";

/// Longest time of one call of the linker or of clang.
const TOOL_LIMIT: Duration = Duration::from_secs(120);

/// The files that a boot needs.
#[derive(Clone, Debug)]
pub struct Products {
    /// The kernel's ELF file, with symbols.
    pub kernel: PathBuf,
    /// The archive of programs.
    pub initramfs: PathBuf,
    /// The names of the programs in the archive's /bin.
    pub programs: Vec<String>,
    /// The programs' files, with symbols, by name.
    pub files: Vec<(String, PathBuf)>,
}

impl Products {
    /// Makes an archive of one program alone, for machines that are slow to read it.
    ///
    /// # Errors
    ///
    /// The archive of all programs cannot be read.
    pub fn archive_of(&self, program: &str) -> Result<Vec<u8>> {
        let all = std::fs::read(&self.initramfs)?;
        let path = format!("bin/{program}");
        let mut archive = cpio::Writer::new(0);
        for entry in cpio::entries(&all) {
            let entry = entry?;
            match entry.path {
                b"bin" => archive.directory(entry.path, entry.permissions)?,
                other if other == path.as_bytes() => archive.file(entry.path, entry.permissions, entry.data)?,
                _ => {}
            }
        }
        Ok(archive.finish())
    }
}

/// The treatment of programs that do not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The build fails.
    Fail,
    /// They are left out, with the compiler's output, unless that leaves none.
    LeaveOut,
}

/// Returns the file of the vDSO image with its symbols, for tools on the host.
pub fn vdso_symbols(workspace: &Workspace) -> PathBuf {
    workspace.products().join("vdso.so.debug")
}

/// Builds everything that a boot needs.
///
/// # Errors
///
/// A part does not compile or link; the message has the compiler's output.
pub fn build(workspace: &Workspace, toolchain: &Toolchain, progress: &Progress, broken: Broken) -> Result<Products> {
    let builder = Builder { workspace, toolchain, progress };
    let vdso = builder.vdso()?;
    // Beside each other: the last steps of the kernel keep one core busy, and so do those of the programs.
    let (programs, kernel) = thread::scope(|scope| {
        let kernel = scope.spawn(|| builder.kernel(&vdso, None));
        let programs = builder.programs(|package| package.is_program_for(Kernel::Unix), None, broken);
        let programs = programs.and_then(|mut programs| {
            programs.extend(builder.c_programs()?);
            Ok(programs)
        });
        (programs, kernel.join())
    });
    let (mut programs, kernel) = (programs?, kernel.map_err(|_| anyhow!("the build of the kernel has panicked"))??);
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    // Backtraces and the debugger read the files on the host, which are many times as large as what the machine needs.
    for program in &mut programs {
        program.content = loaded(&program.content)?;
    }
    let initramfs = workspace.products().join(match toolchain.aim {
        Aim::Speed => "initramfs.cpio",
        Aim::Debugger => "initramfs-for-debugger.cpio",
    });
    write_if_changed(&initramfs, &archive(&programs)?)?;
    let files = programs.iter().map(|program| (program.name.clone(), program.file.clone())).collect();
    let programs = programs.into_iter().map(|program| program.name).collect();
    Ok(Products { kernel, initramfs, programs, files })
}

/// Builds a package outside the tree, or one with the standard library; returns the names and files of its programs,
/// the one to start first.
///
/// # Errors
///
/// The manifest is no package's, or it does not compile; the message has the compiler's output.
pub fn own_programs(
    workspace: &Workspace,
    toolchain: &Toolchain,
    progress: &Progress,
    manifest: &Path,
) -> Result<Vec<(String, PathBuf)>> {
    let builder = Builder { workspace, toolchain, progress };
    let with_std = workspace.products().join(match toolchain.aim {
        Aim::Speed => "std",
        Aim::Debugger => "std-for-debugger",
    });
    let manifest = manifest.canonicalize().with_context(|| format!("cannot read {}", manifest.display()))?;
    let other = Workspace::of(&manifest)?;
    let is_meant = |package: &&Crate| package.manifest_path.canonicalize().is_ok_and(|path| path == manifest);
    let package = other.packages.iter().find(is_meant);
    let package = package.with_context(|| format!("{} is the manifest of no package", manifest.display()))?;
    let mut command = match package.has_std() {
        true => {
            linux_target::ensure(progress)?;
            let mut command = linux_target::cargo(workspace, "build", &with_std);
            if manifest.starts_with(&workspace.root) {
                // The tree's profile is that of programs without it.
                command.env("CARGO_PROFILE_RELEASE_PANIC", "unwind");
            }
            command.args(toolchain.aim.settings());
            command
        }
        false => builder.cargo("build", builder.programs_part()),
    };
    // The configuration files of cargo that lie beside the package are for it.
    command.current_dir(manifest.parent().unwrap_or(Path::new("/"))).arg("--manifest-path").arg(&manifest);
    run_cargo(command, &format!("Building {}", package.name), progress)?;
    let output =
        if package.has_std() { linux_target::programs(&with_std) } else { builder.output(builder.programs_part()) };
    let file = |program: &crate::workspace::CrateTarget| output.join(&program.name);
    crate::own::first(&package.name, package.programs().map(|program| (program.name.clone(), file(program))).collect())
}

/// Builds the kernel whose allocations fail when a program requests it. The programs are those of [`build`], which
/// comes first.
///
/// # Errors
///
/// As [`build`].
pub fn failing_kernel(workspace: &Workspace, toolchain: &Toolchain, progress: &Progress) -> Result<PathBuf> {
    let builder = Builder { workspace, toolchain, progress };
    builder.kernel(&builder.vdso()?, Some(FAIL_ALLOCATIONS))
}

/// Builds the microkernel, for one hart or for several, and the root tasks of this workspace. The default root task of
/// a boot is its suite.
///
/// # Errors
///
/// As [`build`].
pub fn microkernel(
    workspace: &Workspace,
    toolchain: &Toolchain,
    progress: &Progress,
    variation: Variation,
) -> Result<Products> {
    let builder = Builder { workspace, toolchain, progress };
    let contained = workspace.products().join("contained.cpio");
    write_if_changed(&contained, &archive(&builder.programs(Crate::is_contained, None, Broken::Fail)?)?)?;
    let programs = builder.programs(Crate::is_root_task, Some(&contained), Broken::Fail)?;
    for program in &programs {
        write_if_changed(&workspace.products().join(&program.name), &program.content)?;
    }
    let names: Vec<_> = programs.into_iter().map(|program| program.name).collect();
    if !names.iter().any(|name| name == ROOT_TASK) {
        bail!("the workspace has no program `{ROOT_TASK}`");
    }
    let initramfs = workspace.products().join(ROOT_TASK);
    Ok(Products { kernel: builder.microkernel(variation)?, initramfs, programs: names, files: Vec::new() })
}

/// The configuration of a microkernel. Programs see the differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variation {
    /// Number of harts.
    pub harts: Harts,
    /// Boot words that are built in.
    pub words: &'static str,
    /// Whether it can count the time of threads.
    pub counters: Counters,
    /// Whether it checks its own consistency.
    pub checks: Checks,
    /// Whether it has the debug calls.
    pub debug_calls: DebugCalls,
}

impl Variation {
    /// Returns the usual microkernel for this number of harts.
    pub const fn new(harts: Harts) -> Variation {
        Variation { harts, words: "", counters: Counters::None, checks: Checks::None, debug_calls: DebugCalls::All }
    }
}

/// Whether a microkernel has seL4's debug calls, with which programs print and end the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugCalls {
    /// As a seL4 that is built for debugging.
    All,
    /// As a seL4 that is built for release.
    None,
}

/// Whether a microkernel walks all of its objects after kernel entries, and panics if it finds an inconsistency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// It does not.
    None,
    /// It does, and is slow.
    Entries,
}

/// Whether a microkernel can count the time of threads on their harts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counters {
    /// It cannot.
    None,
    /// It can, and each kernel entry pays for that.
    Threads,
}

/// Whether a microkernel is for one hart or for several: programs see the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harts {
    /// One hart, whatever the machine has.
    One,
    /// All harts of the machine.
    Several,
}

/// Builds the loader for EFI firmware; returns its ELF file.
///
/// # Errors
///
/// As [`build`].
pub fn efi_loader(workspace: &Workspace, toolchain: &Toolchain, progress: &Progress) -> Result<PathBuf> {
    let builder = Builder { workspace, toolchain, progress };
    let library = builder.library(EFI_LOADER, "Building the EFI loader")?;
    let output = workspace.products().join("efi-loader.elf");
    let mut linker = toolchain.linker();
    linker
        .args(IMAGE_LINK_FLAGS)
        .args(EFI_LOADER_LINK_FLAGS)
        .arg("--script")
        .arg(workspace.root.join(EFI_LOADER_SCRIPT));
    linker.arg("-o").arg(&output).arg(library);
    run_tool(linker, "linking the EFI loader")?;
    Ok(output)
}

/// Returns the kernels that are suites themselves, for a machine or for the usual ones.
pub fn packages_of_suites<'a>(workspace: &'a Workspace, machine: Option<&str>) -> impl Iterator<Item = &'a Crate> {
    workspace.packages.iter().filter(move |package| {
        package.name != KERNEL
            && package.name != MICROKERNEL
            && package.cops().is_some_and(|cops| cops.rank == "kernel" && cops.machine.as_deref() == machine)
            && package.programs().count() > 0
    })
}

/// Builds the kernels that are suites of tests themselves: programs of rank `kernel` that are not the kernel.
///
/// # Errors
///
/// As [`build`].
pub fn suites(
    workspace: &Workspace,
    toolchain: &Toolchain,
    progress: &Progress,
    machine: Option<&str>,
) -> Result<Vec<(String, PathBuf)>> {
    let builder = Builder { workspace, toolchain, progress };
    let packages: Vec<_> = packages_of_suites(workspace, machine).collect();
    if packages.is_empty() {
        return Ok(Vec::new());
    }
    let mut command = builder.cargo("build", Compiled::Kernel);
    for package in &packages {
        command.args(["--package", &package.name]);
    }
    run_cargo(command, "Building the kernels that are suites", progress)?;
    let programs = packages.iter().flat_map(|package| package.programs());
    Ok(programs.map(|program| (program.name.clone(), builder.output(Compiled::Kernel).join(&program.name))).collect())
}

/// Builds the vDSO image unless there is one.
///
/// # Errors
///
/// As [`build`].
pub fn ensure_vdso(workspace: &Workspace, toolchain: &Toolchain, progress: &Progress) -> Result<()> {
    let builder = Builder { workspace, toolchain, progress };
    if builder.vdso_image().exists() { Ok(()) } else { builder.vdso().map(|_| ()) }
}

/// Cargo for the target with everything set as for a build, for commands that look at the sources in other ways.
pub fn cargo_for_target(workspace: &Workspace, toolchain: &Toolchain, subcommand: &str) -> Command {
    let builder = Builder { workspace, toolchain, progress: &Progress::new(false) };
    // The flags of programs, without which not all of their crates can be compiled.
    let mut command = builder.cargo(subcommand, Compiled::Programs);
    command.env(VDSO_VARIABLE, builder.vdso_image());
    command
}

struct Builder<'a> {
    workspace: &'a Workspace,
    toolchain: &'a Toolchain,
    progress: &'a Progress,
}

impl Builder<'_> {
    /// Returns cargo's output directory for the target.
    fn output(&self, part: Compiled) -> PathBuf {
        self.target(part).join(TARGET).join(part.profile())
    }

    /// Returns the part of the Unix kernel, as it is compiled for this aim.
    fn kernel_part(&self) -> Compiled {
        match self.toolchain.aim {
            Aim::Speed => Compiled::Kernel,
            Aim::Debugger => Compiled::KernelForDebugger,
        }
    }

    /// Returns the part of the programs, as they are compiled for this aim.
    fn programs_part(&self) -> Compiled {
        match self.toolchain.aim {
            Aim::Speed => Compiled::Programs,
            Aim::Debugger => Compiled::ProgramsForDebugger,
        }
    }

    /// The parts are compiled with different flags: in one directory each would invalidate the others.
    fn target(&self, part: Compiled) -> PathBuf {
        self.workspace.products().join(self.toolchain.directory()).join(part.directory())
    }

    fn package(&self, name: &str) -> Result<&Crate> {
        self.workspace.package(name).with_context(|| format!("the workspace has no package `{name}`"))
    }

    fn cargo(&self, subcommand: &str, part: Compiled) -> Command {
        let mut command = self.toolchain.cargo(subcommand);
        command
            .current_dir(&self.workspace.root)
            .args(part.settings())
            .args(["--profile", part.profile(), "--target-dir"])
            .arg(self.target(part));
        // Encoded flags take precedence over the user's RUSTFLAGS, which are meant for the host.
        command.env("CARGO_ENCODED_RUSTFLAGS", part.flags().join("\x1f"));
        command
    }

    /// Compiles a package to position-independent code for the linker.
    fn library(&self, package: &str, title: &str) -> Result<PathBuf> {
        self.package(package)?;
        let mut command = self.cargo("rustc", Compiled::Scheduler);
        command.args(["--package", package, "--lib", "--crate-type", "staticlib", "--", "-Crelocation-model=pic"]);
        run_cargo(command, title, self.progress)?;
        Ok(self.output(Compiled::Scheduler).join(format!("lib{}.a", package.replace('-', "_"))))
    }

    fn vdso(&self) -> Result<PathBuf> {
        let library = self.library(VDSO, "Building the vDSO image")?;
        let image = self.vdso_image();
        let part = image.with_extension("so.part");
        std::fs::create_dir_all(self.workspace.products())?;
        // Debug information lies behind the image, so that it moves nothing in it.
        for (output, flag) in [(&vdso_symbols(self.workspace), "--discard-locals"), (&part, "--strip-all")] {
            let mut linker = self.toolchain.linker();
            linker
                .args(IMAGE_LINK_FLAGS)
                .args(VDSO_LINK_FLAGS)
                .arg(flag)
                .arg("--script")
                .arg(self.workspace.root.join(VDSO_SCRIPT));
            linker.arg("-o").arg(output).arg(&library);
            run_tool(linker, "linking the vDSO image")?;
        }
        let content = std::fs::read(&part)?;
        let names = [&scheduler::entry::NAMES[..], &vdso::NAMES_OF_LINUX].concat();
        vdso::check(&content, &names)?;
        instructions::check(&content).context("the vDSO image cannot run in the kernel")?;
        write_if_changed(&image, &content)?;
        let _ = std::fs::remove_file(&part);
        Ok(image)
    }

    fn vdso_image(&self) -> PathBuf {
        self.workspace.products().join("vdso.so")
    }

    /// Builds the `chosen` programs; those that contain others find their archive in a file.
    fn programs(
        &self,
        chosen: impl Fn(&Crate) -> bool,
        contained: Option<&Path>,
        broken: Broken,
    ) -> Result<Vec<Program>> {
        let mut packages: Vec<_> = self.workspace.packages.iter().filter(|package| chosen(package)).collect();
        if packages.is_empty() {
            bail!("the workspace has no programs (packages of rank `app` on the `user` side)");
        }
        let build = |packages: &[&Crate]| {
            let mut command = self.cargo("build", self.programs_part());
            if let Some(contained) = contained {
                command.env(CONTAINED_VARIABLE, contained);
            }
            for package in packages {
                command.args(["--package", &package.name]);
            }
            if broken == Broken::LeaveOut {
                command.arg("--keep-going");
            }
            command
        };
        if let Err(error) = run_cargo(build(&packages), "Building the programs", self.progress) {
            if broken == Broken::Fail || crate::interrupt::requested() {
                return Err(error);
            }
            // All others are compiled by now, so asking for each takes only cargo's time.
            let mut left_out = Vec::new();
            packages.retain(|package| {
                let is_built = run_cargo(build(&[package]), "Looking for the programs that compile", self.progress);
                left_out.extend(is_built.is_err().then_some(package.name.as_str()));
                is_built.is_ok()
            });
            if packages.is_empty() {
                return Err(error);
            }
            eprintln!("{error:#}\n\nLeft out, because they do not compile: {}", left_out.join(", "));
        }
        let programs = packages.iter().flat_map(|package| package.programs());
        programs
            .map(|program| Program::read(&program.name, &self.output(self.programs_part()).join(&program.name)))
            .collect()
    }

    /// The C programs: directories under apps that hold C files and no manifest. Each is linked with the files of
    /// user/c, as the Rust programs are linked, and with the same linker script.
    fn c_programs(&self) -> Result<Vec<Program>> {
        let root = &self.workspace.root;
        let mut programs = Vec::new();
        for directory in entries(&root.join("apps"))? {
            let sources = c_sources(&directory)?;
            if sources.is_empty() || directory.join("Cargo.toml").exists() {
                continue;
            }
            let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(clang) = &self.toolchain.clang else {
                eprintln!(
                    "The C example `{name}` is left out: there is no clang. On Debian: {}",
                    install_command(&[Item::Clang])
                );
                continue;
            };
            let activity = self.progress.start(format!("Building {name}"));
            let objects = self.workspace.products().join("c").join(&name);
            std::fs::create_dir_all(&objects)?;
            let mut linker = self.toolchain.linker();
            for source in sources.into_iter().chain(c_sources(&root.join("user/c"))?) {
                let object = objects.join(source.with_extension("o").file_name().unwrap_or_default());
                let mut compiler = children::command(clang);
                compiler.args(C_FLAGS).arg("-I").arg(root.join("user/c")).arg("-c").arg(&source).arg("-o").arg(&object);
                run_tool(compiler, &format!("compiling {}", source.display()))?;
                linker.arg(object);
            }
            let program = objects.join(&name);
            linker.args(["-pie", "--no-dynamic-linker", "-znotext", "--pack-dyn-relocs=relr"]);
            linker.args(["-m", "elf64lriscv", "--gc-sections", "-T"]).arg(root.join("user/runtime/program.ld"));
            run_tool(
                {
                    linker.arg("-o").arg(&program);
                    linker
                },
                &format!("linking {name}"),
            )?;
            programs.push(Program::read(&name, &program)?);
            activity.clear();
        }
        Ok(programs)
    }

    /// Builds the kernel, as it is or with a feature, which is then a part of the product's name.
    fn kernel(&self, vdso: &Path, feature: Option<&str>) -> Result<PathBuf> {
        self.package(KERNEL)?;
        let part = self.kernel_part();
        let mut name = KERNEL.to_string();
        if part == Compiled::KernelForDebugger {
            name += "-for-debugger";
        }
        let mut command = self.cargo("build", part);
        command.env(VDSO_VARIABLE, vdso).args(["--package", KERNEL, "--bin", KERNEL]);
        if let Some(feature) = feature {
            command.args(["--features", feature]);
            name += &format!("-{feature}");
        }
        run_cargo(command, "Building the kernel", self.progress)?;
        self.product(part, KERNEL, &name)
    }

    fn microkernel(&self, variation: Variation) -> Result<PathBuf> {
        self.package(MICROKERNEL)?;
        let mut command = self.cargo("build", Compiled::Microkernel);
        command.args(["--package", MICROKERNEL, "--bin", MICROKERNEL]);
        let mut name = MICROKERNEL.to_string();
        if variation.debug_calls == DebugCalls::None {
            command.arg("--no-default-features");
            name += "-silent";
        }
        for (wanted, feature) in [
            (variation.harts == Harts::Several, SEVERAL_HARTS),
            (variation.counters == Counters::Threads, COUNTERS),
            (variation.checks == Checks::Entries, CHECKS),
        ] {
            if wanted {
                command.args(["--features", feature]);
                name += &format!("-{feature}");
            }
        }
        if !variation.words.is_empty() {
            command.env(WORDS_VARIABLE, variation.words);
            name += "-told";
        }
        run_cargo(command, "Building the microkernel", self.progress)?;
        self.product(Compiled::Microkernel, MICROKERNEL, &name)
    }

    /// Copies cargo's output to the place where users find it.
    fn product(&self, part: Compiled, program: &str, name: &str) -> Result<PathBuf> {
        let product = self.workspace.products().join(name);
        let built = self.output(part).join(program);
        let content = std::fs::read(&built).with_context(|| format!("cargo made no {}", built.display()))?;
        if std::fs::read(&product).ok().as_ref() != Some(&content) {
            instructions::check(&content).with_context(|| format!("{} cannot run", built.display()))?;
            if part != Compiled::KernelForDebugger {
                for pattern in self.unmatched(program, &content)? {
                    eprintln!("No function of {program} is named {pattern}, as its hot.ld has it: `check build` fails");
                }
            }
            write_if_changed(&product, &content)?;
        }
        Ok(product)
    }
}

impl Builder<'_> {
    /// Returns the patterns of a kernel's hot.ld that match no function.
    fn unmatched(&self, program: &str, content: &[u8]) -> Result<Vec<String>> {
        let manifest = &self.package(program)?.manifest_path;
        let script = manifest.with_file_name("hot.ld");
        let text = std::fs::read_to_string(&script).with_context(|| format!("cannot read {}", script.display()))?;
        hot::unmatched(&text, content)
    }
}

/// Checks that all functions exist which the kernels have beside each other.
///
/// # Errors
///
/// A pattern of a kernel's hot.ld matches no function of its file.
pub fn look_at_hot_functions(workspace: &Workspace, toolchain: &Toolchain) -> Result<()> {
    let builder = Builder { workspace, toolchain, progress: &Progress::new(false) };
    for kernel in [KERNEL, MICROKERNEL] {
        let file = workspace.products().join(kernel);
        let content = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let unmatched = builder.unmatched(kernel, &content)?;
        if !unmatched.is_empty() {
            bail!("no function of {kernel} is named as hot.ld has it: {}", unmatched.join(", "));
        }
    }
    Ok(())
}

/// The parts that are compiled for the target with different flags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compiled {
    /// The kernel, kernels that are suites, and the scheduler's image, through which a kernel's backtrace goes.
    Kernel,
    /// The kernel with types and variables. The scheduler's image stays as it is: all measurements are of it.
    KernelForDebugger,
    /// The microkernel.
    Microkernel,
    /// The scheduler's image, which the kernel and all programs share.
    Scheduler,
    /// Programs, whose backtraces the host makes.
    Programs,
    /// Programs with types and variables.
    ProgramsForDebugger,
}

impl Aim {
    /// Returns cargo's arguments that change the release profile for this aim. They also reach packages outside of the
    /// tree, which have profiles of their own.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Aim::Speed => &[],
            Aim::Debugger => &[
                "--config=profile.release.debug='full'",
                "--config=profile.release.opt-level=1",
                "--config=profile.release.lto=false",
                "--config=profile.release.codegen-units=16",
            ],
        }
    }
}

impl Compiled {
    /// Frame pointers for the kernel, so that a backtrace needs nothing else. In the microkernel they would be a
    /// twelfth of the text and several instructions of every kernel entry, and in the scheduler's image seven of a
    /// spawn and of a wake; a backtrace of the kernel ends at the image in any case. Programs have tables in their
    /// files instead, which the host reads, and which change no instruction. For them the crate `getrandom` asks
    /// `cops`, whose feature of that name answers; it takes this choice from flags alone.
    ///
    /// Functions of the microkernel are inlined where that makes it hardly larger; those on its hot paths say that they
    /// are to be. LLVM's own threshold, 225, makes the text 2,400 bytes larger and no measured path shorter. Its calls
    /// are marked, so that the linker replaces the two instructions of a call by one where that reaches; the linker
    /// leaves `gp` alone without another flag. The compiler's warning that the feature is unstable changes nothing.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Compiled::Kernel => &["-Cforce-frame-pointers=yes", "-Ctarget-feature=+relax"],
            Compiled::KernelForDebugger => &["-Cforce-frame-pointers=yes"],
            Compiled::Scheduler => &["-Ctarget-feature=+relax"],
            Compiled::Programs | Compiled::ProgramsForDebugger => {
                &["-Cforce-unwind-tables=yes", "--cfg=getrandom_backend=\"custom\""]
            }
            Compiled::Microkernel => &["-Cllvm-args=-inline-threshold=50", "-Ctarget-feature=+relax"],
        }
    }

    /// The profile of `Cargo.toml`: the microkernel is compiled for size, but for the crates on its hot paths.
    fn profile(self) -> &'static str {
        match self {
            Compiled::Microkernel => "small",
            _ => "release",
        }
    }

    /// Cargo's arguments that change the profile.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Compiled::KernelForDebugger | Compiled::ProgramsForDebugger => Aim::Debugger.settings(),
            _ => Aim::Speed.settings(),
        }
    }

    fn directory(self) -> &'static str {
        match self {
            Compiled::Kernel => "kernel",
            Compiled::KernelForDebugger => "kernel-for-debugger",
            Compiled::Microkernel => "microkernel",
            Compiled::Scheduler => "scheduler",
            Compiled::Programs => "programs",
            Compiled::ProgramsForDebugger => "programs-for-debugger",
        }
    }
}

/// Flags for C programs: no library and no host, warnings are errors.
const C_FLAGS: [&str; 11] = [
    "--target=riscv64-unknown-elf",
    "-march=rv64gc",
    "-mabi=lp64d",
    "-mcmodel=medany",
    "-std=c11",
    "-O2",
    "-ffreestanding",
    "-ffunction-sections",
    "-fno-omit-frame-pointer",
    "-Wall",
    "-Werror",
];

/// A program for COPS.
#[derive(Clone, Debug)]
struct Program {
    name: String,
    file: PathBuf,
    content: Vec<u8>,
}

impl Program {
    fn read(name: &str, file: &Path) -> Result<Program> {
        let content = std::fs::read(file).with_context(|| format!("the build made no {}", file.display()))?;
        Ok(Program { name: name.into(), file: file.to_path_buf(), content })
    }
}

/// Returns a program's file without what lies behind the last part that comes into memory, such as debug information.
/// Headers of what is left out become empty ones.
///
/// # Errors
///
/// It is no ELF file of 64 bits with all of its segments.
fn loaded(content: &[u8]) -> Result<Vec<u8>> {
    let file: ElfFile64<'_, LittleEndian> = ElfFile64::parse(content).context("a program is no ELF file")?;
    let end = |segment: &ProgramHeader64<LittleEndian>| {
        segment.p_offset(LittleEndian).saturating_add(segment.p_filesz(LittleEndian)) as usize
    };
    let segments = file.elf_program_headers();
    let in_memory = segments.iter().filter(|segment| segment.p_type(LittleEndian) == PT_LOAD).map(end).max();
    let in_memory = in_memory.context("a program has no segments")?;
    let mut loaded = content.get(..in_memory).context("a program lacks a part of a segment")?.to_vec();
    let mut header = *file.elf_header();
    header.e_shoff.set(LittleEndian, 0);
    header.e_shnum.set(LittleEndian, 0);
    header.e_shstrndx.set(LittleEndian, SHN_UNDEF);
    let first = usize::try_from(header.e_phoff(LittleEndian))?;
    let mut put = |at: usize, bytes: &[u8]| -> Result<()> {
        let place = loaded.get_mut(at..at + bytes.len()).context("a program's headers are in no segment")?;
        place.copy_from_slice(bytes);
        Ok(())
    };
    put(0, object::bytes_of(&header))?;
    const HEADER: usize = size_of::<ProgramHeader64<LittleEndian>>();
    for (number, _) in segments.iter().enumerate().filter(|(_, segment)| end(segment) > in_memory) {
        put(first + number * HEADER, &[0; HEADER])?;
    }
    Ok(loaded)
}

/// Builds the initramfs: the programs in /bin. Equal programs give equal bytes.
fn archive(programs: &[Program]) -> Result<Vec<u8>> {
    let mut writer = cpio::Writer::new(0);
    writer.directory(b"bin", 0o755)?;
    for program in programs {
        writer.file(format!("bin/{}", program.name).as_bytes(), 0o755, &program.content)?;
    }
    Ok(writer.finish())
}

/// Lists a directory, in order of names; empty if it does not exist.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let read = std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut entries = read.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

fn c_sources(directory: &Path) -> Result<Vec<PathBuf>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    Ok(entries(directory)?
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "c"))
        .collect())
}

/// Runs cargo with its progress shown as this program's.
///
/// # Errors
///
/// It fails; the message has its output.
pub fn run_cargo(mut command: Command, title: &str, progress: &Progress) -> Result<()> {
    let activity = progress.start(title);
    if progress.verbose {
        let status = Child::start(&mut command, Ending::Kill).and_then(|mut child| child.wait())?;
        if !status.success() {
            bail!("{title} failed");
        }
        return Ok(());
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = Child::start(&mut command, Ending::Kill).context("cargo could not be started")?;
    let stderr = child.pipes().stderr.take();
    let printed = show_lines(stderr, &activity);
    let status = child.wait()?;
    if status.success() {
        activity.clear();
        return Ok(());
    }
    drop(activity);
    // Lines about progress do not help to find an error.
    let noise = ["Compiling ", "Downloading ", "Downloaded ", "Updating ", "Locking ", "Checking ", "Blocking "];
    let report: Vec<_> =
        printed.iter().filter(|line| !noise.iter().any(|word| line.trim_start().starts_with(word))).cloned().collect();
    bail!("{title} failed:\n{}", report.join("\n"))
}

/// Shows each line of a pipe as the activity's detail until the pipe ends, and returns them.
fn show_lines(pipe: Option<impl Read>, activity: &Activity) -> Vec<String> {
    let mut printed = Vec::new();
    if let Some(pipe) = pipe {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            activity.detail(&line);
            printed.push(line);
        }
    }
    printed
}

fn run_tool(mut command: Command, what: &str) -> Result<()> {
    let output =
        children::output(&mut command, Ending::Kill, TOOL_LIMIT).with_context(|| format!("{what} was not possible"))?;
    if !output.status.success() {
        let said = [output.stderr, output.stdout].concat();
        bail!("{what} failed ({}):\n{}", output.status, String::from_utf8_lossy(&said).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_in_the_archive_end_with_their_last_segment() {
        // A file with a segment of 8 bytes behind the two headers of segments, and something behind that, to which the
        // second of them belongs.
        let mut file = vec![0; 344];
        file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
        file[0x10..0x16].copy_from_slice(&[3, 0, 243, 0, 1, 0]);
        file[0x20] = 64;
        // Two section headers at 216, of which the second is that of the names.
        (file[0x28], file[280 + 4]) = (216, 3);
        file[0x34..0x40].copy_from_slice(&[64, 0, 56, 0, 2, 0, 64, 0, 2, 0, 1, 0]);
        (file[64], file[64 + 8], file[64 + 32], file[64 + 40]) = (1, 176, 8, 8);
        file[120..124].copy_from_slice(&object::elf::PT_RISCV_ATTRIBUTES.0.to_le_bytes());
        (file[120 + 8], file[120 + 32]) = (190, 10);
        let short = loaded(&file).unwrap();
        assert_eq!(short.len(), 184);
        assert_eq!((&short[0x28..0x30], &short[0x3c..0x40]), (&[0; 8][..], &[0; 4][..]));
        assert_eq!(short[64..120], file[64..120]);
        assert_eq!(short[120..176], [0; 56]);
        assert_eq!(short[176..], file[176..184]);
        assert!(loaded(&file[..180]).is_err() && loaded(b"#!/bin/sh").is_err());
    }

    /// Without clang the C programs are left out of the build, and so is this.
    #[test]
    fn the_c_snippets_of_the_book_compile() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let book = std::fs::read_to_string(root.join("docs/book/c-programs.md")).unwrap();
        let snippets: Vec<_> = book.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        assert_eq!(snippets.len(), 2);
        for (number, snippet) in snippets.into_iter().enumerate() {
            let text = if snippet.contains("#include") {
                snippet.to_string()
            } else {
                format!("#include \"cops.h\"\nvoid f(struct cops_program program) {{ {snippet} (void)counters; }}\n")
            };
            let file = std::env::temp_dir().join(format!("xtask-snippet-{}-{number}.c", std::process::id()));
            std::fs::write(&file, text).unwrap();
            let mut compiler = Command::new("clang");
            compiler.args(C_FLAGS).arg("-I").arg(root.join("user/c")).args(["-c", "-o", "/dev/null"]).arg(&file);
            let output = compiler.output();
            std::fs::remove_file(&file).unwrap();
            match output {
                Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
            }
        }
    }

    #[test]
    fn the_archive_has_the_programs_in_bin() {
        let program =
            |name: &str, content: &[u8]| Program { name: name.into(), file: name.into(), content: content.into() };
        let archive = archive(&[program("a", b"one"), program("b", &[7; 1000])]).unwrap();
        let entries: Vec<_> = cpio::entries(&archive).collect::<Result<_, _>>().unwrap();
        let names: Vec<_> = entries.iter().map(|entry| String::from_utf8_lossy(entry.path)).collect();
        assert_eq!(names, ["bin", "bin/a", "bin/b"]);
        assert_eq!(entries[2].data, [7; 1000]);
    }

    #[test]
    fn only_c_files_are_c_sources() {
        let directory = std::env::temp_dir().join(format!("xtask-c-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for name in ["b.c", "a.c", "a.h", "README.md"] {
            std::fs::write(directory.join(name), "").unwrap();
        }
        let sources = c_sources(&directory).unwrap();
        assert_eq!(sources, [directory.join("a.c"), directory.join("b.c")]);
        assert!(c_sources(&directory.join("a.c")).unwrap().is_empty());
        assert!(entries(&directory.join("nothing")).unwrap().is_empty());
        std::fs::remove_dir_all(directory).unwrap();
    }
}
