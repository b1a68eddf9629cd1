//! `linux`: unmodified programs of Debian for riscv64.
//!
//! The programs are fetched and unpacked ([`crate::debian`]), and their files are the machine's initramfs. The first
//! process is `apps/linux-init`, which finds the command in a file there: the boot command line has no place for
//! arguments with spaces. Its status is that of the command, so QEMU's is, and so is this program's.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use filesystem::cpio;

use crate::board::Configuration;
use crate::build::Products;
use crate::callers::Programs;
use crate::cli::{self, LinuxAction};
use crate::context::{Context, Need, command_line};
use crate::cores::{self, CoreDisk};
use crate::debian::{MadeFile, Root, SEARCH_PATH};
use crate::exercises;
use crate::screen::Screen;
use crate::toolchain::Toolchain;
use crate::workspace::write_if_changed;

/// The first process, and its path in the machine.
const INIT: &str = "linux-init";
pub const INIT_PATH: &str = "usr/sbin/linux-init";

/// The default command.
const SHELL: [&str; 2] = ["/usr/bin/bash", "-i"];

/// Does an action.
///
/// # Errors
///
/// As the action.
pub fn linux(context: &Context, arguments: &cli::Linux) -> Result<ExitCode> {
    match &arguments.action {
        LinuxAction::Run(arguments) => run(context, arguments),
        LinuxAction::List(arguments) => {
            if arguments.record {
                exercises::record(context)?;
            }
            exercises::list(context).map(|()| ExitCode::SUCCESS)
        }
    }
}

/// Boots packages and runs a command; returns its status.
fn run(context: &Context, arguments: &cli::LinuxRun) -> Result<ExitCode> {
    let LinuxMachine { toolchain, configuration, root, disk } =
        LinuxMachine::prepare(context, arguments, &cores::directory(context))?;
    let log = context.log("linux");
    let screen = Screen::new(Programs::default(), context.progress.verbose);
    let ended = crate::run::interact(&toolchain, &context.board, &configuration, &log, screen, arguments.limit);
    if let Some(disk) = disk {
        cores::say(&disk.collect(&[], Some(&root))?);
    }
    ended
}

/// A machine that runs one command of packages.
pub struct LinuxMachine {
    /// The tools.
    pub toolchain: Toolchain,
    /// The machine.
    pub configuration: Configuration,
    /// The packages.
    pub root: Root,
    /// The disk for core files, if they are wanted.
    pub disk: Option<CoreDisk>,
}

impl LinuxMachine {
    /// Fetches the packages, and builds all that the machine needs. Core files come into `cores`.
    ///
    /// # Errors
    ///
    /// A package cannot be fetched, has no such program, or the machine cannot be built.
    pub fn prepare(context: &Context, arguments: &cli::LinuxRun, cores: &Path) -> Result<LinuxMachine> {
        let root = Root::prepare(context, &arguments.packages)?;
        let mut command = arguments.command.clone();
        if command.is_empty() {
            command = SHELL.map(String::from).to_vec();
        }
        command[0] = root.program(&command[0])?;
        let (toolchain, products) = context.build(Need::Boot)?;
        let terminal = std::env::var("TERM").unwrap_or_else(|_| "vt100".into());
        let environment = environment(&[format!("TERM={terminal}"), "LANG=C.UTF-8".into()]);
        let files = [command_file(&command)?, environment_file(&environment)?];
        let products = with_root(context, products, &root, "run", &files)?;
        let disk = if arguments.core { Some(CoreDisk::make(context, cores)?) } else { None };
        let (mut words, mut of_init) = (arguments.boot.scheduling.words(), Vec::new());
        if disk.is_some() {
            let (device, directory) = CoreDisk::place(arguments.boot.disks.len());
            words += &CoreDisk::words();
            of_init = vec![device, directory.into()];
        }
        words += &command_line(&format!("/{INIT_PATH}"), &of_init)?;
        let mut configuration = context.configuration(&products, &arguments.boot.machine, words);
        arguments.boot.connect(&mut configuration)?;
        configuration.disks.extend(disk.as_ref().map(|disk| disk.image().to_path_buf()));
        Ok(LinuxMachine { toolchain, configuration, root, disk })
    }
}

/// Returns variables of every command, and more of them.
pub fn environment(more: &[String]) -> Vec<String> {
    let path = format!("PATH={SEARCH_PATH}");
    let usual = [&path, "HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/bash"];
    usual.into_iter().map(String::from).chain(more.iter().cloned()).collect()
}

/// The file that names the command.
fn command_file(command: &[String]) -> Result<(String, u16, Vec<u8>)> {
    strings_file("etc/cops/command", command)
}

/// The file with the environment of commands.
///
/// # Errors
///
/// A variable contains a NUL.
pub fn environment_file(environment: &[String]) -> Result<(String, u16, Vec<u8>)> {
    strings_file("etc/cops/environment", environment)
}

/// A file of strings with a NUL behind each, as `apps/linux-init` reads it.
///
/// # Errors
///
/// A string contains a NUL.
pub fn strings_file(path: &str, strings: &[String]) -> Result<(String, u16, Vec<u8>)> {
    let mut bytes = Vec::new();
    for string in strings {
        if string.contains('\0') {
            bail!("`{}` contains a NUL", string.escape_debug());
        }
        bytes.extend_from_slice(string.as_bytes());
        bytes.push(0);
    }
    Ok((path.into(), 0o644, bytes))
}

/// Returns products whose archive has a root's files, the first process and some more files.
///
/// # Errors
///
/// A file cannot be read or written.
pub fn with_root(
    context: &Context,
    products: Products,
    root: &Root,
    name: &str,
    files: &[MadeFile],
) -> Result<Products> {
    let activity = context.progress.start("Making the archive of files");
    let own = std::fs::read(&products.initramfs)?;
    let mut files = files.to_vec();
    files.push(init(&own)?);
    let initramfs = context.workspace.products().join(format!("linux-{name}.cpio"));
    write_if_changed(&initramfs, &root.archive(&files)?)?;
    activity.clear();
    Ok(Products { initramfs, ..products })
}

/// Returns the first process, as a file of a machine, from the archive that the build has made.
///
/// # Errors
///
/// The archive is none, or has no such program.
pub fn init(archive: &[u8]) -> Result<MadeFile> {
    let path = format!("bin/{INIT}");
    let entries: Vec<_> = cpio::entries(archive).collect::<Result<_, _>>()?;
    let init = entries.iter().find(|entry| entry.path == path.as_bytes());
    let init = init.with_context(|| format!("the build has made no {INIT}"))?.data.to_vec();
    Ok((INIT_PATH.into(), 0o755, init))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_keep_empty_arguments_and_spaces() {
        let words = ["a b", "", "c"].map(String::from);
        assert_eq!(command_file(&words).unwrap(), ("etc/cops/command".into(), 0o644, b"a b\0\0c\0".to_vec()));
        assert!(command_file(&["a\0b".into()]).is_err());
        let environment = environment(&["TERM=x".into()]);
        assert!(environment.contains(&"HOME=/root".into()) && environment.last() == Some(&"TERM=x".into()));
    }
}
