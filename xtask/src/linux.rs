//! Linux beside COPS: a kernel from Debian's archive, and our own program for it.
//!
//! The kernel is Debian's package for riscv64, of the first release that has this architecture. It is fetched with apt,
//! in a private directory with a configuration of its own, so that the host is not changed; apt takes the archive that
//! the host is configured for, and checks signatures and sums. The kernel and the modules of the network and of disks
//! are unpacked from it; nothing is installed. The first program is `bench/peers`, compiled for Linux by Debian's cross
//! compiler. Beside it are a server in Go where the host has Go, and one with tokio where it can be built.
//!
//! It boots under the board's own QEMU command line. The machine is the one with the PLIC: on the other one QEMU 7.2
//! loses the serial line's interrupts as Linux sets them up, and Linux stops in the middle of a line.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use filesystem::cpio;

use crate::apt::{Apt, Packages};
use crate::board::{Clock, Configuration, Network, Variant};
use crate::build;
use crate::children::{self, Ending};
use crate::context::Context;
use crate::debian::{ARCHITECTURE, MadeFile, Root, SUITE};
use crate::linux_target;
use crate::toolchain::{self, Item};
use crate::workspace::write_if_changed;

/// The package that names the kernel.
const PACKAGE: &str = "linux-image-riscv64";

/// Modules for the network and the disks of QEMU's `virt` machine, in the order of loading; as in bench/peers. Those
/// that a kernel has built in are not in its package.
const MODULES: [&str; 11] = [
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_mmio",
    "crc16",
    "crc32c_generic",
    "libcrc32c",
    "mbcache",
    "jbd2",
    "ext4",
    "virtio_blk",
];

/// The machine on which Linux and COPS are compared.
pub const MACHINE: Variant = Variant::Plic;

/// The server of [`SERVERS`] with index `n` listens on this port plus `n`; as in bench/peers.
pub const FIRST_PORT: u16 = 7000;

/// Servers of the program; as in bench/peers.
pub const SERVERS: [&str; 10] =
    ["epoll", "epoll-each", "io_uring", "io_uring-each", "thread", "thread3", "thread3-yield", "go", "tokio", ECHO];
/// The server that multiplies no matrices and sends back its input.
pub const ECHO: &str = "echo";

/// The last line of a success, and the line that reports that servers are up.
pub const DONE: &str = "peers: done";
pub const SERVING: &str = "peers: serving";

/// The package of the server with tokio.
const TOKIO: &str = "peers-tokio";

/// The name of the program.
pub const PROGRAM: &str = "peers";

/// The matrix server in Go, and the server of a file with Go's `net/http`.
const GO_SERVER: &str = "go-server";
const GO_HTTP: &str = "go-http";

/// The module with them.
const GO_PEERS: &str = "bench/peers/go";

/// Packages of Debian whose servers the program starts.
const SERVERS_OF_DEBIAN: [&str; 2] = ["redis-server", "nginx"];

/// Flags for the C files.
const C_FLAGS: [&str; 7] = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"];

/// Longest time of a compiler.
const BUILD_LIMIT: Duration = Duration::from_secs(600);

/// The servers that Linux's archive has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    /// Those of bench/peers, which are in C.
    InC,
    /// Those in Go and with tokio too, as far as they can be built.
    All,
}

/// A Linux that can be booted.
#[derive(Clone, Debug)]
pub struct DebianKernel {
    kernel: PathBuf,
    initramfs: PathBuf,
    /// The kernel's version, as Debian names it.
    pub version: String,
    /// The program that is its first one.
    pub program: PathBuf,
    /// Servers in the archive.
    pub servers: Vec<&'static str>,
}

impl DebianKernel {
    /// Fetches missing files and builds the programs.
    ///
    /// # Errors
    ///
    /// The host has no apt, no Debian archive is configured or it cannot be reached, a compiler is missing or fails.
    pub fn prepare(context: &Context) -> Result<DebianKernel> {
        DebianKernel::prepare_with(context, Servers::All)
    }

    /// Prepares as [`prepare`](DebianKernel::prepare) does; of the servers only those that are wanted.
    ///
    /// # Errors
    ///
    /// As of [`prepare`](DebianKernel::prepare).
    pub fn prepare_with(context: &Context, wanted: Servers) -> Result<DebianKernel> {
        toolchain::ensure_on_host(&[Item::RiscvGcc, Item::RiscvLibc], &context.progress)?;
        let directory = context.workspace.products().join("linux");
        std::fs::create_dir_all(&directory)?;
        // Kernels that were fetched before have a `version`, and no modules of disks.
        let version_file = directory.join("version-with-disks");
        let version = match std::fs::read_to_string(&version_file) {
            Ok(version) => version,
            Err(_) => {
                let version = fetch(context, &directory)?;
                write_if_changed(&version_file, version.as_bytes())?;
                version
            }
        };
        let peers = compile_peers(context, &directory)?;
        let mut programs = vec![("init".to_string(), peers)];
        let mut servers: Vec<_> = SERVERS.into_iter().filter(|name| !["go", "tokio", ECHO].contains(name)).collect();
        if wanted == Servers::All {
            match compile_go(context, GO_PEERS, &directory, GO_SERVER, ".") {
                Ok(program) => {
                    programs.push((format!("bin/{GO_SERVER}"), program));
                    servers.push("go");
                }
                Err(error) => eprintln!("The server in Go is left out: {error:#}"),
            }
            match compile_rust(context, &directory, TOKIO) {
                Ok(program) => {
                    programs.push(("bin/tokio-server".into(), program));
                    servers.push("tokio");
                }
                Err(error) => eprintln!("The server with tokio is left out: {error:#}"),
            }
        }
        // Each choice has a file of its own, so that neither is written anew for the other.
        let initramfs = directory.join(if wanted == Servers::All { "initramfs.cpio" } else { "initramfs-c.cpio" });
        write_if_changed(&initramfs, &archive(&directory, &programs)?)?;
        Ok(DebianKernel {
            kernel: directory.join("kernel"),
            initramfs,
            version,
            program: directory.join(PROGRAM),
            servers,
        })
    }

    /// Fetches the servers that the program starts, and returns their files with the program and the server in Go.
    ///
    /// # Errors
    ///
    /// They cannot be fetched, or the host has no Go.
    pub fn servers_of_debian(&self, context: &Context) -> Result<(Root, Vec<MadeFile>)> {
        let root = Root::prepare(context, &SERVERS_OF_DEBIAN.map(String::from))?;
        let go = compile_go(context, GO_PEERS, &context.workspace.products().join("linux"), GO_HTTP, "./http")?;
        let files = vec![
            (format!("usr/bin/{PROGRAM}"), 0o755, std::fs::read(&self.program)?),
            (format!("usr/bin/{GO_HTTP}"), 0o755, go),
        ];
        Ok((root, files))
    }

    /// Returns this Linux with the files of packages, and some more, beside its modules and its first program.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written.
    pub fn with_root(&self, context: &Context, root: &Root, files: &[MadeFile]) -> Result<DebianKernel> {
        let directory = context.workspace.products().join("linux");
        let mut files = files.to_vec();
        files.push(("init".into(), 0o755, std::fs::read(&self.program)?));
        files.extend(modules(&directory).map(|(path, content)| (path, 0o644, content)));
        let initramfs = directory.join("initramfs-root.cpio");
        write_if_changed(&initramfs, &root.archive_for_linux(&files)?)?;
        Ok(DebianKernel { initramfs, ..self.clone() })
    }

    /// Returns a boot's choices: the board's, with this kernel, and the arguments of bench/peers.
    ///
    /// # Errors
    ///
    /// A word cannot be passed on.
    pub fn configuration(&self, context: &Context, harts: u8, clock: Clock, words: &[String]) -> Result<Configuration> {
        if let Some(word) = words.iter().find(|word| word.is_empty() || word.contains(char::is_whitespace)) {
            bail!("`{word}` cannot be passed to Linux's first program");
        }
        Ok(Configuration {
            machine: MACHINE,
            harts,
            memory: context.board.defaults.memory.clone(),
            kernel: self.kernel.clone(),
            initramfs: self.initramfs.clone(),
            command_line: format!("console=ttyS0 quiet panic=-1 -- {}", words.join(" ")),
            network: Network::default(),
            forwards: Vec::new(),
            clock,
            gdb_port: None,
            disks: Vec::new(),
            disk_pace: None,
            share: None,
            flash: None,
        })
    }
}

/// Returns the port of a server.
pub fn port(server: &str) -> Option<u16> {
    SERVERS.iter().position(|name| *name == server).map(|index| FIRST_PORT + index as u16)
}

/// Fetches the kernel's package and unpacks the needed files. Returns the version.
fn fetch(context: &Context, directory: &Path) -> Result<String> {
    let activity = context.progress.start(format!("Fetching Debian's Linux for riscv64 ({SUITE})"));
    let apt = Apt::new(directory, SUITE, Packages::Programs(ARCHITECTURE))?;
    activity.detail("the list of packages");
    apt.update()?;
    let text = apt.run("apt-cache", &["depends", PACKAGE])?;
    let image = dependency(&text).with_context(|| format!("Debian's {PACKAGE} depends on no kernel"))?;
    activity.detail(&image);
    apt.run("apt-get", &["download", &image])?;
    let package = std::fs::read_dir(directory)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|file| file.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get has downloaded nothing")?;
    activity.detail("unpacking");
    unpack(&package, directory)?;
    std::fs::remove_file(&package)?;
    activity.finish(&image);
    Ok(image.strip_prefix("linux-image-").unwrap_or(&image).to_string())
}

/// Unpacks the kernel and its modules into the directory.
fn unpack(package: &Path, directory: &Path) -> Result<()> {
    let unpacked = directory.join("unpacked");
    std::fs::create_dir_all(&unpacked)?;
    // The package is large; only the needed files are written. tar fails for those that are not in it.
    let mut command = children::command("sh");
    let script = r#"package="$1"; shift; dpkg-deb --fsys-tarfile "$package" | tar -x --wildcards "$@" || true"#;
    command.current_dir(&unpacked).args(["-c", script, "unpack"]).arg(package).arg("./boot/vmlinu*");
    command.args(MODULES.map(|module| format!("*/{module}.ko*")));
    run(command, "unpacking the kernel's package")?;
    let files = files_below(&unpacked)?;
    let named = |wanted: &dyn Fn(&str) -> bool| {
        files.iter().find(|file| file.file_name().is_some_and(|name| wanted(&name.to_string_lossy())))
    };
    let kernel = named(&|name| name.starts_with("vmlinu")).context("the package has no kernel")?;
    std::fs::copy(kernel, directory.join("kernel"))?;
    for module in MODULES {
        if let Some(file) = named(&|name| name == format!("{module}.ko.xz")) {
            std::fs::copy(file, directory.join(format!("{module}.ko.xz")))?;
        }
    }
    std::fs::remove_dir_all(&unpacked)?;
    Ok(())
}

/// Returns the kernel on which the package without a version depends.
fn dependency(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_string)
}

fn compile_peers(context: &Context, directory: &Path) -> Result<Vec<u8>> {
    let activity = context.progress.start("Building the programs for Linux");
    let source = context.workspace.root.join("bench/peers");
    let mut files: Vec<_> = std::fs::read_dir(&source)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    let program = directory.join(PROGRAM);
    let mut compiler = children::command(toolchain::RISCV_GCC);
    compiler.args(C_FLAGS).arg("-o").arg(&program).args(&files);
    run(compiler, "compiling bench/peers")?;
    activity.clear();
    Ok(std::fs::read(program)?)
}

/// Compiles a package of a module of Go, in this folder of the tree, to a program of this name in a directory.
///
/// # Errors
///
/// The host has no Go, or its compiler fails.
pub fn compile_go(context: &Context, module: &str, directory: &Path, name: &str, package: &str) -> Result<Vec<u8>> {
    if toolchain::find_program("go").is_none() {
        bail!("this host has no Go");
    }
    let activity = context.progress.start(format!("Building {name} with Go"));
    let program = directory.join(name);
    let mut compiler = children::command("go");
    compiler.current_dir(context.workspace.root.join(module));
    compiler.envs([("GOOS", "linux"), ("GOARCH", "riscv64"), ("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local")]);
    compiler.args(["build", "-trimpath", "-o"]).arg(&program).arg(package);
    run(compiler, "go build")?;
    activity.clear();
    Ok(std::fs::read(program)?)
}

/// Compiles a crate of this workspace with one program, which has the crate's name.
///
/// # Errors
///
/// The host has no compiler for Linux on riscv64, or it fails.
pub fn compile_rust(context: &Context, directory: &Path, package: &str) -> Result<Vec<u8>> {
    linux_target::ensure(&context.progress)?;
    let target = directory.join("tokio");
    let mut build = linux_target::cargo(&context.workspace, "build", &target);
    build.args(["--package", package]);
    build::run_cargo(build, &format!("Building {package}"), &context.progress)?;
    Ok(std::fs::read(linux_target::programs(&target).join(package))?)
}

/// Builds the archive that Linux unpacks: the first program, others, modules, a console.
fn archive(directory: &Path, programs: &[(String, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut writer = cpio::Writer::new(0);
    for name in ["bin", "modules", "proc", "sys"] {
        writer.directory(name.as_bytes(), 0o755)?;
    }
    for (name, content) in programs {
        writer.file(name.as_bytes(), 0o755, content)?;
    }
    for (path, content) in modules(directory) {
        writer.file(path.as_bytes(), 0o644, &content)?;
    }
    Ok(writer.finish())
}

/// Returns the modules that the kernel has not built in: each with its path in an archive.
fn modules(directory: &Path) -> impl Iterator<Item = (String, Vec<u8>)> {
    MODULES.into_iter().filter_map(move |module| {
        let name = format!("{module}.ko.xz");
        let content = std::fs::read(directory.join(&name)).ok()?;
        Some((format!("modules/{name}"), content))
    })
}

fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// Returns a command's output.
fn run(mut command: Command, what: &str) -> Result<String> {
    let output =
        children::output(&mut command, Ending::Kill, BUILD_LIMIT).with_context(|| format!("{what} did not end"))?;
    if !output.status.success() {
        bail!("{what} failed ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_package_is_found_among_the_dependencies() {
        let text = "linux-image-riscv64\n  Depends: linux-base\n  Depends: linux-image-6.12.1-riscv64\n";
        assert_eq!(dependency(text).as_deref(), Some("linux-image-6.12.1-riscv64"));
        assert_eq!(dependency("x\n"), None);
    }

    #[test]
    fn servers_and_ports_are_those_of_the_c_program() {
        let source = include_str!("../../bench/peers/main.c");
        let list = source.split_once("SERVERS[] = {").unwrap().1.split_once("NULL").unwrap().0;
        let names: Vec<_> =
            list.lines().filter_map(|line| line.trim().strip_prefix("{ \"")?.split('"').next()).collect();
        assert_eq!(names, SERVERS);
        assert_eq!((port("epoll"), port("tokio"), port("x")), (Some(7000), Some(7008), None));
        assert!(include_str!("../../bench/peers/peers.h").contains("FIRST_PORT = 7000"));
    }
}
