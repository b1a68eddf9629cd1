//! The first process of a machine with programs built for Linux.
//!
//! It runs one command and ends with its status, which ends the machine; or it runs exercises, one after the other, and
//! prints a line before and after each. Files of the archive say what to run:
//!
//! * `/etc/cops/environment`: variables, each `NAME=value` with a NUL behind it;
//! * `/etc/cops/command`: the path of a program and its arguments, each with a NUL behind it;
//! * `/etc/cops/exercises`: if it is there, paths of programs to run instead of the command.
//!
//! With two arguments it first mounts a volume: the device and the directory, which it makes.
//!
//! The command is a child, because the first process is no place for a program that does not expect it: the signals
//! that end other processes do not end that one. The child gets a process group of its own in the console's foreground.
//! It does that itself, as this program's second form, before it becomes the command: its parent could be too late.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::ffi::CString;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};
use core::time::Duration;

use abi_unix::types::signal;
use cops::process::{Child, Command, Ending};
use cops::system::process::{StringList, execute};
use cops::system::{self, terminal};
use cops::{Errno, println};

/// Files of the archive.
const ENVIRONMENT: &str = "/etc/cops/environment";
const COMMAND: &str = "/etc/cops/command";
const EXERCISES: &str = "/etc/cops/exercises";

/// The path of this program, and the argument that selects its second form.
const PATH: &str = "/usr/sbin/linux-init";
const SECOND_FORM: &str = "become";

/// Where exercises have their working directories.
const DIRECTORY: &str = "/tmp";

/// Longest time of an exercise, so that one that hangs does not keep the others from running.
const LIMIT: Duration = Duration::from_secs(300);

/// The folder of exercises that take long, and the longest time of one of these.
const LONG: &str = "/exercises/long/";
const LONG_LIMIT: Duration = Duration::from_secs(7000);

/// Status of a command that could not be started, as shells report it.
const NOT_STARTED: i32 = 127;

#[cops::main]
async fn main() {
    let words: Vec<String> = cops::arguments().map(|word| word.to_string_lossy().into_owned()).collect();
    let status = match &words[..] {
        [_, form] if form == SECOND_FORM => become_command(strings(COMMAND).await).await,
        [_, form, path] if form == SECOND_FORM => become_exercise(path).await,
        [_, device, directory] => match mount(device, directory) {
            Ok(()) => run().await,
            Err(error) => {
                println!("linux-init: {device} cannot be mounted on {directory}: {error}");
                NOT_STARTED
            }
        },
        _ => run().await,
    };
    cops::process::exit(status);
}

/// Runs what the files of the archive name.
async fn run() -> i32 {
    match cops::file::read(EXERCISES).await {
        Ok(paths) => run_exercises(&paths).await,
        Err(_) => run_command().await,
    }
}

/// Mounts the volume of ext4 on a device on a new directory, where every process may make files.
fn mount(device: &str, directory: &str) -> Result<(), Errno> {
    let text = |text: &str| CString::new(text).map_err(|_| Errno::EINVAL);
    let path = text(directory)?;
    system::file::make_directory(&path, 0o755)?;
    system::file::mount_device(&text(device)?, &path, c"ext4", 0)
}

/// Runs the command and returns its status; 128 and the signal's number if a signal ended it.
async fn run_command() -> i32 {
    match end_of(Command::new(PATH).argument(SECOND_FORM)).await {
        Ok(ending) => status_of(ending),
        Err(error) => {
            println!("linux-init: the command cannot be started: {error}");
            NOT_STARTED
        }
    }
}

async fn end_of(command: Command) -> Result<Ending, Errno> {
    command.spawn()?.wait().await
}

fn status_of(ending: Ending) -> i32 {
    match ending {
        Ending::Exited(status) => i32::from(status),
        Ending::Killed(signal) => 128 + i32::from(signal),
    }
}

/// Runs one exercise after the other. The markers stand on lines of their own, whatever the exercise has printed.
async fn run_exercises(paths: &[u8]) -> i32 {
    for path in paths.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
        let path = String::from_utf8_lossy(path);
        println!("exercise {path}");
        let limit = if path.starts_with(LONG) { LONG_LIMIT } else { LIMIT };
        match Command::new(PATH).argument(SECOND_FORM).argument(&path).spawn() {
            Ok(child) => match cops::timeout(limit, child.wait()).await {
                Ok(Ok(ending)) => println!("\nended {path} {}", status_of(ending)),
                Ok(Err(error)) => println!("\nended {path} {error}"),
                Err(_) => {
                    end_group(&child);
                    let _ = child.wait().await;
                    println!("\nended {path} hung");
                }
            },
            Err(error) => println!("\nended {path} {error}"),
        }
    }
    println!("exercises done");
    0
}

/// Ends a child and its descendants.
fn end_group(child: &Child) {
    // The negative number means the group.
    let _ = cops::system::process::kill(child.number().wrapping_neg(), signal::KILL);
    let _ = child.kill();
}

/// Becomes an exercise, in an empty directory that has the exercise's name.
async fn become_exercise(path: &str) -> i32 {
    let name = path.rsplit('/').next().unwrap_or(path);
    let made = CString::new(alloc::format!("{DIRECTORY}/{name}")).map_err(|_| Errno::EINVAL).and_then(|directory| {
        cops::system::file::make_directory(&directory, 0o755)?;
        cops::system::file::change_directory(&directory)
    });
    if let Err(error) = made {
        println!("linux-init: no directory for {path}: {error}");
        return NOT_STARTED;
    }
    become_command(CString::new(path).into_iter().collect()).await
}

/// Becomes a command. Returns only if that fails.
async fn become_command(command: Vec<CString>) -> i32 {
    let environment = strings(ENVIRONMENT).await;
    let Some(path) = command.first() else {
        println!("linux-init: {COMMAND} names no program");
        return NOT_STARTED;
    };
    // Without a group of its own the command runs all the same; keys that send signals then reach more than it.
    let _ = terminal::set_group(0, 0);
    // From the background, where the signal for that would stop it.
    choose(signal::TTOU, IGNORED);
    let _ = terminal::set_foreground(0, cops::process::number());
    choose(signal::TTOU, DEFAULT);
    // A program of Linux that has no reader any more is to end.
    choose(signal::PIPE, DEFAULT);
    let error = replace(path, &command, &environment);
    println!("linux-init: {} cannot be started: {error}", path.to_string_lossy());
    NOT_STARTED
}

/// `SIG_DFL` and `SIG_IGN`.
const DEFAULT: u64 = 0;
const IGNORED: u64 = 1;

/// Chooses an action without a handler for a signal.
fn choose(signal: u32, handler: u64) {
    let action = [handler, 0, 0];
    // SAFETY: the kernel reads the three words of an action.
    if let Err(error) = unsafe { system::call!(SignalAction, signal, action.as_ptr(), 0, 8) } {
        println!("linux-init: {error}");
    }
}

fn replace(path: &CStr, arguments: &[CString], environment: &[CString]) -> Errno {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([core::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: the pointers before the NULL are those of strings that live to the end of this function.
    let lists = unsafe { (StringList::new(&arguments), StringList::new(&environment)) };
    match lists {
        (Some(arguments), Some(environment)) => execute(path, arguments, environment),
        _ => unreachable!("both lists end with NULL"),
    }
}

/// Reads strings with a NUL behind each; none if there is no such file.
async fn strings(path: &str) -> Vec<CString> {
    let bytes = cops::file::read(path).await.unwrap_or_default();
    let mut parts: Vec<_> = bytes.split(|byte| *byte == 0).collect();
    // Behind the last NUL.
    parts.pop();
    parts.into_iter().filter_map(|part| CString::new(part).ok()).collect()
}
