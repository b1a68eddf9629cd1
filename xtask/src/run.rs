//! `run`: the machine's serial line on the user's terminal.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::board::{Board, Configuration, check_room};
use crate::build::Products;
use crate::callers::Programs;
use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::cores::{self, CoreDisk};
use crate::gdb;
use crate::guest::{self, Echo, Failure, FailureKind, Guest};
use crate::own;
use crate::root_task;
use crate::screen::Screen;
use crate::terminal::{Console, From, Key, Keys};
use crate::toolchain::Toolchain;
use crate::workspace::Kernel;

const KEYS: &str = "\r\nCtrl-C or Ctrl-A X ends QEMU; Ctrl-A Ctrl-C sends Ctrl-C, Ctrl-A Ctrl-A sends Ctrl-A; Ctrl-A W shows where \
                    all workers and coroutines are\r\n";

/// The default program.
const DEFAULT_PROGRAM: &str = "shell";

/// Address of a program where `aslr=off`, as with gdb: the lowest that the kernel gives to one that it may move.
pub const PROGRAM_ADDRESS: u64 = 16 << 30;

/// Interval between two checks for the end of the machine, its limit and the user's wish.
const LOOK: Duration = Duration::from_millis(100);

/// Boots a program interactively, and returns its status.
///
/// # Errors
///
/// The machine cannot be built or started, fails, or does not end within its limit.
pub fn run(context: &Context, arguments: &cli::Run) -> Result<ExitCode> {
    let (toolchain, products, command_line, program) = match arguments.kernel {
        Kernel::Micro if arguments.init.is_some() => {
            bail!("--init goes with --kernel unix: the root task is the first program")
        }
        Kernel::Micro if arguments.debug => {
            bail!("--debug goes with --kernel unix: the microkernel is compiled for size, whatever it is for")
        }
        Kernel::Micro if arguments.core => bail!("--core goes with --kernel unix: root tasks leave no core files"),
        Kernel::Micro if !arguments.files.is_empty() => {
            bail!("--file goes with --kernel unix: root tasks have no files")
        }
        Kernel::Unix => unix(context, arguments)?,
        Kernel::Micro => micro(context, arguments)?,
    };
    let disk = if arguments.core { Some(CoreDisk::make(context, &cores::directory(context))?) } else { None };
    let command_line = match &disk {
        Some(_) => {
            let given = CoreDisk::arguments(arguments.boot.disks.len(), &program, &arguments.arguments);
            CoreDisk::words() + &arguments.boot.scheduling.words() + &self::command_line("shell", &given)?
        }
        None => command_line,
    };
    let command_line = match (&arguments.words, arguments.kernel) {
        (Some(words), Kernel::Unix) if words.split_whitespace().any(|word| word == "--") => {
            bail!("--words has boot words alone: the program's arguments come last, behind `--`")
        }
        (Some(words), Kernel::Unix) => format!("{words} {command_line}"),
        _ => command_line,
    };
    let mut configuration = context.configuration(&products, &arguments.boot.machine, command_line);
    arguments.boot.connect(&mut configuration)?;
    configuration.disks.extend(disk.as_ref().map(|disk| disk.image().to_path_buf()));
    if arguments.gdb {
        let port = guest::free_port()?;
        configuration.gdb_port = Some(port);
        if arguments.kernel == Kernel::Unix {
            configuration.fix_addresses();
        }
        let program = products.files.iter().find(|(name, _)| *name == program).map(|(_, file)| &**file);
        let file = context.workspace.logs().join("gdb");
        gdb::write(&file, &context.workspace.root, &configuration.kernel, program, port)?;
        eprintln!("The machine waits for gdb. In another terminal:");
        eprintln!("    gdb-multiarch -x {}", file.display());
    }
    let log = context.log("run");
    let screen = Screen::new(Programs::new(products.files.clone()), context.progress.verbose);
    let ended = interact(&toolchain, &context.board, &configuration, &log, screen, arguments.limit);
    if let Some(disk) = disk {
        cores::say(&disk.collect(&products.files, None)?);
    }
    ended
}

/// Boots a machine with this terminal as its console, and waits for its end; for `limit` seconds at most. Returns the
/// status of the machine's first program.
///
/// # Errors
///
/// The machine cannot be started, fails in another way than its program, or does not end within its limit.
pub fn interact(
    toolchain: &Toolchain,
    board: &Board,
    configuration: &Configuration,
    log: &Path,
    screen: Screen,
    limit: Option<u64>,
) -> Result<ExitCode> {
    check_room(configuration)?;
    let mut machine = Guest::start(&toolchain.qemu, board, configuration, log, Echo::Terminal(screen))?;
    let console = Console::open();
    let quit = Arc::new(AtomicBool::new(false));
    if let Some(input) = machine.input() {
        let quit = quit.clone();
        // Not joined: this thread may be reading the keyboard for ever.
        let keys = Keys::new(if console.is_some() { From::Person } else { From::Elsewhere });
        // The firmware empties the serial line's queues when it sets the line up, before its first word. A person's
        // keys come later, and one that ends the machine counts at once.
        let first_byte = machine.first_byte().filter(|_| console.is_none());
        thread::spawn(move || {
            if let Some(first_byte) = first_byte {
                let _ = first_byte.recv();
            }
            forward_keys(keys, io::stdin().lock(), input, &quit);
        });
    }
    let result = wait(&mut machine, &quit, limit.map(Duration::from_secs));
    machine.end();
    drop(console);
    // The machine may have left its last line unfinished.
    eprintln!();
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => status_of_program(&failure).map(ExitCode::from).ok_or_else(|| failure.into()),
    }
}

/// Returns the status with which the first program has ended the machine, if nothing else has.
fn status_of_program(failure: &Failure) -> Option<u8> {
    match &failure.kind {
        FailureKind::EndedBadly { status, said } if said.is_empty() => status.code()?.try_into().ok(),
        _ => None,
    }
}

/// Boot words for the volume of the first disk as the root, with a system that expects the authority of Linux's user 0.
pub const ROOT_ON_DISK: &str = "root=/dev/vda rw authority=inherited ";

/// Builds the Unix kernel and the chosen program; returns its command line and the program's name too.
fn unix(context: &Context, arguments: &cli::Run) -> Result<(Toolchain, Products, String, String)> {
    if let Some(init) = &arguments.init {
        if !init.starts_with('/') {
            bail!("--init {init}: the path of a program on the disk begins with a slash");
        }
        let (toolchain, products) = context.build(Need::OneProgram)?;
        let given: Vec<_> = arguments.program.iter().chain(&arguments.arguments).cloned().collect();
        let words = ROOT_ON_DISK.to_string() + &arguments.boot.scheduling.words();
        return Ok((toolchain, products, words + &command_line(init, &given)?, init.clone()));
    }
    let program = arguments.program.as_deref().unwrap_or(DEFAULT_PROGRAM);
    let (toolchain, products, name) = own::prepare(context, program, &arguments.files)?;
    let command_line = arguments.boot.scheduling.words() + &command_line(&name, &arguments.arguments)?;
    Ok((toolchain, products, command_line, name))
}

/// Builds the microkernel: the root task takes the place of the archive.
fn micro(context: &Context, arguments: &cli::Run) -> Result<(Toolchain, Products, String, String)> {
    if !arguments.arguments.is_empty() {
        bail!(
            "a root task has no arguments: seL4's interface has no place for them; the kernel's boot words are given with --words"
        );
    }
    // The name of a program of this workspace, or a file, which is checked before anything is built.
    let is_own = |name: &&String| {
        context.workspace.packages.iter().any(|package| package.name == **name && package.is_root_task())
    };
    let own = arguments.program.as_ref().filter(is_own);
    let file = arguments.program.as_ref().filter(|_| own.is_none()).map(PathBuf::from);
    if let Some(file) = &file {
        root_task::check_file(file)?;
    }
    let (toolchain, mut products) = context.build_microkernel(context.variation(&arguments.boot.machine))?;
    if let Some(file) = file.or(own.map(|name| context.workspace.products().join(name))) {
        products.initramfs = file;
    }
    let program = arguments.program.clone().unwrap_or_default();
    Ok((toolchain, products, arguments.words.clone().unwrap_or_default(), program))
}

fn wait(machine: &mut Guest, quit: &AtomicBool, limit: Option<Duration>) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        match machine.wait_for_end(LOOK) {
            Err(Failure { kind: FailureKind::TooLate { .. }, .. }) => {}
            Ok(()) => return Ok(()),
            Err(failure) => return Err(failure),
        }
        if quit.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Some(limit) = limit
            && started.elapsed() >= limit
        {
            let expected = "its end".into();
            let kind = FailureKind::TooLate { expected, limit, last_line: machine.last_line() };
            return Err(Failure { kind, log: machine.log().to_path_buf() });
        }
    }
}

/// Copies typed characters to the machine until one of the two ends.
fn forward_keys(mut keys: Keys, input: impl BufRead, mut machine: impl Write, quit: &AtomicBool) {
    for byte in input.bytes().map_while(Result::ok) {
        match keys.press(byte) {
            Some(key @ (Key::Send(_) | Key::Where)) => {
                let sent = machine.write_all(key.bytes()).and_then(|()| machine.flush());
                if sent.is_err() {
                    return;
                }
            }
            Some(Key::Quit) => {
                quit.store(true, Ordering::Release);
                return;
            }
            Some(Key::Help) => eprint!("{KEYS}"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_to_the_machine_until_the_user_quits() {
        let mut sent = Vec::new();
        let quit = AtomicBool::new(false);
        forward_keys(Keys::default(), &b"ls\r\x01\x01\x01xnever"[..], &mut sent, &quit);
        assert_eq!(sent, b"ls\r\x01\x01");
        assert!(quit.load(Ordering::Acquire));
    }
}
