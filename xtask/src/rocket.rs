//! Rocket, an open core, in RTL simulation: cycles of a real pipeline and real caches, where QEMU counts instructions.
//!
//! The core's Verilog is that of a Python package of the LiteX project, which contains no program: five ready
//! configurations of the core, as its generator has written them. Debian's Verilator makes a program of it, with our
//! test bench (bench/rocket) around it. Model and Verilog lie in the user's cache, like built emulators.
//!
//! The machine has one big core, or four of which a boot uses some: 32 entries in each TLB, 16 KiB of cache for
//! instructions and as much for data, no second cache, and memory that answers after a number of cycles. It is slow:
//! about 100,000 cycles in a second of the host.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::children::{self, Ending};
use crate::context::Context;
use crate::device_tree;
use crate::emulator;
use crate::guest::{Echo, Guest};
use crate::progress::Progress;
use crate::toolchain::{self, Item};
use crate::workspace::write_if_changed;

/// The Python package with the core's Verilog, and the sum (SHA-256) of its only file.
const PACKAGE: &str = "pythondata-cpu-rocket==0.0.post7146";
const SUM: &str = "5954f2bde8e63e43fe4cbc64649687623b64f849d37b4b0d26b07228127bd592";

/// The folder of test bench and device tree.
const FOLDER: &str = "bench/rocket";

/// The module of the core with its caches, interrupt controllers and ports.
const TOP: &str = "ExampleRocketSystem";

/// Where the package has its Verilog.
const GENERATED: &str = "pythondata_cpu_rocket/verilog/generated-src/freechips.rocketchip.system";
const PARTS: [&str; 3] = ["plusarg_reader.v", "EICG_wrapper.v", "AsyncResetReg.v"];

/// The needs of a build.
const NEEDS: [Item; 4] = [Item::Verilator, Item::Cxx, Item::Make, Item::Pip];

/// Longest time of a step of the build.
const STEP_LIMIT: Duration = Duration::from_secs(1800);

/// The firmware, which starts the kernel at a fixed address and is told where the device tree is.
pub const FIRMWARE: &str = "/usr/lib/riscv64-linux-gnu/opensbi/generic/fw_jump.bin";

/// The address of the archive, behind kernel and firmware.
const INITRAMFS: u64 = 0x8400_0000;

/// Memory in MiB: programs that measure need little.
const MEMORY: u64 = 128;

/// Highest number of harts.
pub const MAXIMUM_HARTS: u8 = 4;

/// Cycles from a request to the first word from memory, unless the user chooses another number.
pub const LATENCY: u32 = 30;

/// The machine of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Number of harts.
    pub harts: u8,
    /// Cycles from a request to the first word from memory.
    pub latency: u32,
}

impl Hardware {
    /// Returns the package's configuration of the core.
    fn configuration(self) -> &'static str {
        if self.harts == 1 { "LitexFullConfig" } else { "LitexFull4DConfig" }
    }

    /// Describes it for results: whoever reads a number of cycles needs all of this.
    pub fn description(self) -> String {
        let cores = if self.harts == 1 { "1 core".into() } else { format!("{} of 4 cores", self.harts) };
        let width = if self.harts == 1 { 8 } else { 16 };
        format!(
            "Rocket (rv64gc) in RTL simulation, {cores}, 16 KiB caches for instructions and for data, no L2, memory: \
             {} cycles to the first {width} bytes and 1 to each next",
            self.latency
        )
    }
}

/// The files of a boot.
pub struct Payload<'a> {
    /// The kernel's ELF file.
    pub kernel: &'a Path,
    /// The archive of programs, or the first program of the microkernel.
    pub initramfs: &'a Path,
    /// The kernel's boot words.
    pub words: &'a str,
    /// File for the counts of each instruction.
    pub profile: Option<&'a Path>,
}

/// A built model.
pub struct Model {
    program: PathBuf,
    machine: Hardware,
    tree: String,
}

impl Model {
    /// Finds the model of a machine in the cache, or makes it.
    ///
    /// # Errors
    ///
    /// A tool is missing, the package cannot be fetched or is not the expected one, or a step of the build fails.
    pub fn ensure(context: &Context, machine: Hardware, counts_instructions: bool) -> Result<Model> {
        let folder = context.workspace.root.join(FOLDER);
        let read = |name: &str| {
            let file = folder.join(name);
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
        };
        let bench = read("test-bench.cpp")? + &read("profile.vlt")?;
        let kind = if counts_instructions { "-profile" } else { "" };
        let name = emulator::name_of("rocket", [bench.as_str(), machine.configuration(), PACKAGE, kind]);
        let program = emulator::cache()?.join(name).join("rocket");
        if !program.exists() {
            toolchain::ensure_on_host(&NEEDS, &context.progress)?;
            emulator::keep(&program, |work| {
                make(&context.progress, machine.configuration(), &folder, counts_instructions, work)
            })?;
        }
        Ok(Model { program, machine, tree: read("rocket.dts")? })
    }

    /// Starts a boot. `name` is that of its log and of its other files.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written, or the model cannot be started.
    pub fn start(&self, context: &Context, boot: &Payload<'_>, name: &str, echo: Echo) -> Result<Guest> {
        toolchain::ensure_on_host(&[Item::FirmwareThatJumps], &context.progress)?;
        let size = boot.initramfs.metadata().with_context(|| format!("cannot read {}", boot.initramfs.display()))?;
        let text = tree(&self.tree, self.machine.harts, boot.words, size.len())?;
        let file = context.workspace.products().join(format!("{name}.dtb"));
        write_if_changed(&file, &device_tree::compile(&text).context("bench/rocket/rocket.dts is no device tree")?)?;
        let mut command = children::command(&self.program);
        command.args(["--firmware", FIRMWARE, "--kernel"]).arg(boot.kernel).arg("--tree").arg(file);
        command.arg("--initramfs").arg(boot.initramfs).args(["--initramfs-at", &INITRAMFS.to_string()]);
        command.args(["--memory", &MEMORY.to_string(), "--latency", &self.machine.latency.to_string()]);
        if let Some(profile) = boot.profile {
            command.arg("--profile").arg(profile);
        }
        Guest::of(command, "the model", boot.kernel, &context.log(name), echo)
    }
}

/// Returns the source of a boot's device tree.
fn tree(template: &str, harts: u8, words: &str, initramfs: u64) -> Result<String> {
    if words.contains('"') || words.contains('\\') {
        bail!("the boot words `{words}` have a sign that ends a text in a device tree");
    }
    let room = 0x8000_0000 + (MEMORY << 20) - INITRAMFS;
    if initramfs > room / 2 {
        bail!("the archive of programs has {initramfs} bytes, and the machine has too little memory for it");
    }
    let each = |part: &dyn Fn(u8) -> String| (0..harts).map(part).collect::<Vec<_>>();
    let cpu = |hart: u8| {
        format!(
            "\n\t\tcpu@{hart} {{\n\t\t\tdevice_type = \"cpu\";\n\t\t\tcompatible = \"sifive,rocket0\", \"riscv\";\n\
             \t\t\treg = <{hart}>;\n\t\t\tstatus = \"okay\";\n\t\t\tmmu-type = \"riscv,sv39\";\n\
             \t\t\triscv,isa = \"rv64imafdc_zicsr_zifencei\";\n\t\t\tcpu{hart}: interrupt-controller {{\n\
             \t\t\t\t#interrupt-cells = <1>;\n\t\t\t\tcompatible = \"riscv,cpu-intc\";\n\
             \t\t\t\tinterrupt-controller;\n\t\t\t}};\n\t\t}};\n"
        )
    };
    let values = [
        ("@WORDS@", words.to_string()),
        ("@INITRAMFS@", format!("{INITRAMFS:#x}")),
        ("@INITRAMFS_END@", format!("{:#x}", INITRAMFS + initramfs)),
        ("@MEMORY@", format!("{:#x}", MEMORY << 20)),
        ("@CPUS@", each(&cpu).concat()),
        ("@CLINT@", each(&|hart| format!("<&cpu{hart} 3>, <&cpu{hart} 7>")).join(", ")),
        ("@PLIC@", each(&|hart| format!("<&cpu{hart} 11>, <&cpu{hart} 9>")).join(", ")),
    ];
    Ok(values.iter().fold(template.to_string(), |text, (name, value)| text.replace(name, value)))
}

/// Fetches the core and makes the model in a new directory. Returns the program.
fn make(progress: &Progress, core: &str, folder: &Path, counts_instructions: bool, work: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(work).with_context(|| format!("cannot make {}", work.display()))?;
    let activity = progress.start("Fetching the core's Verilog");
    let list = work.join("list");
    std::fs::write(&list, format!("{PACKAGE} --hash=sha256:{SUM}\n"))?;
    step("fetching the core", work, "python3", &|command| {
        command.args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
        command.args(["--disable-pip-version-check", "--quiet", "--dest", ".", "--requirement"]).arg(&list);
    })?;
    let mut entries = std::fs::read_dir(work)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = entries.find(|file| file.extension().is_some_and(|extension| extension == "whl"));
    let wheel = wheel.context("pip has fetched nothing")?;
    activity.detail("unpacking");
    step("unpacking the core", work, "python3", &|command| {
        command.args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(".");
    })?;
    activity.finish("done");

    let activity = progress.start(format!("Making a program of the core ({core}), which takes some minutes"));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    step("Verilator", work, "verilator", &|command| {
        command.args(["--cc", "--exe", "--build", "--build-jobs", &jobs, "--top-module", TOP, "--prefix"]);
        command.arg(format!("V{TOP}")).args(["--Mdir", "made", "-o", "rocket"]);
        // All that is not initialised is zero, so two runs are the same.
        command.args(["-O3", "--x-assign", "fast", "--x-initial", "fast", "--noassert", "-Wno-fatal", "-Wno-lint"]);
        command.args(["-Wno-style", "-Wno-MULTIDRIVEN", "-Wno-UNOPTFLAT", "-DSYNTHESIS", "-CFLAGS"]);
        command.arg(flags(counts_instructions));
        command.args(["-MAKEFLAGS", "OPT_FAST=-O3 OPT_SLOW=-O1 OPT_GLOBAL=-O3"]);
        if counts_instructions {
            command.arg(folder.join("profile.vlt"));
        }
        command.arg(format!("{GENERATED}.{core}.v")).arg(format!("{GENERATED}.{core}.behav_srams.v"));
        command.args(PARTS.map(|part| format!("pythondata_cpu_rocket/verilog/vsrc/{part}")));
        command.arg(folder.join("test-bench.cpp"));
    })?;
    activity.finish("done");
    Ok(work.join("made/rocket"))
}

/// Returns the flags for the compiler of the test bench.
fn flags(counts_instructions: bool) -> String {
    let mut flags = String::from("-std=c++17 -march=native");
    if counts_instructions {
        let tile = format!("{TOP}__DOT__tile_prci_domain__DOT__tile_reset_domain_tile__DOT__");
        let core = format!("{tile}core__DOT__coreMonitorBundle_");
        flags += &format!(" -DPROFILE -DPROFILE_VALID={core}valid -DPROFILE_PC={core}pc");
        flags += &format!(" -DPROFILE_WALKER={tile}ptw__DOT__");
    }
    flags
}

/// Runs a step of the build in a directory.
fn step(what: &str, directory: &Path, program: &str, arguments: &dyn Fn(&mut std::process::Command)) -> Result<()> {
    let mut command = children::command(program);
    command.current_dir(directory).stdin(Stdio::null());
    arguments(&mut command);
    let output = children::output(&mut command, Ending::Kill, STEP_LIMIT)
        .with_context(|| format!("{what} could not be done"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = said.lines().filter(|line| !line.starts_with("%Warning")).collect();
    bail!("{what} failed:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = include_str!("../../bench/rocket/rocket.dts");

    #[test]
    fn the_device_tree_compiles_for_each_number_of_harts() {
        for harts in 1..=MAXIMUM_HARTS {
            let text = tree(TEMPLATE, harts, "init=/bin/bench -- syscall", 5000).unwrap();
            assert_eq!(text.matches("device_type = \"cpu\"").count(), usize::from(harts));
            assert!(
                text.contains("<0x84001388>") && text.contains("bootargs = \"init=/bin/bench -- syscall\""),
                "{text}"
            );
            assert!(device_tree::compile(&text).unwrap().starts_with(&[0xd0, 0x0d, 0xfe, 0xed]));
        }
    }

    #[test]
    fn words_and_archives_that_do_not_fit_are_refused() {
        assert!(tree(TEMPLATE, 1, "a \"b\"", 1).is_err());
        assert!(tree(TEMPLATE, 1, "a", MEMORY << 20).is_err());
    }

    #[test]
    fn a_description_names_what_a_number_of_cycles_depends_on() {
        let text = Hardware { harts: 1, latency: 30 }.description();
        for part in ["Rocket", "1 core", "16 KiB", "no L2", "30 cycles"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(Hardware { harts: 2, latency: 8 }.description().contains("2 of 4 cores"));
    }
}
