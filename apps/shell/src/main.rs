//! A small shell for the console: starts programs and shows directories and files.
//!
//! Lines are edited with the usual keys and remembered. A program runs in the foreground, where Ctrl-C ends it, until
//! it ends; or with `&` behind its arguments in the background, and a coroutine reports its end.
#![no_std]
#![no_main]

extern crate alloc;

mod editor;

use alloc::string::String;
use alloc::vec::Vec;

use abi_unix::Counter;
use abi_unix::types::open;
use cops::file::File;
use cops::process::{Command, Ending};
use cops::{Errno, println};
use editor::Lines;

/// Exit signal of a program that was ended by Ctrl-C.
const INTERRUPT: u8 = abi_unix::types::signal::INT as u8;

const HELP: &str = "\
PROGRAM [ARGUMENT]... [&]   starts a program of /bin, or of a path; with & in the background
ls [PATH]                   lists a directory
cat PATH...                 prints files
cd [PATH]                   changes the working directory
kill NUMBER                 ends a process
counters                    prints what the kernel counts
exit                        ends the shell, and the machine if this is its first program";

#[cops::main]
async fn main() -> Result<(), Errno> {
    let mut lines = Lines::new(cops::file::standard_input()?);
    println!("COPS shell; `help` lists the commands");
    loop {
        let prompt = alloc::format!("{}$ ", working_directory());
        let Some(line) = lines.next(&prompt).await? else { return Ok(()) };
        let words: Vec<&str> = line.split_whitespace().collect();
        let result = match words[..] {
            [] => Ok(()),
            ["exit"] => return Ok(()),
            ["help"] => {
                println!("{HELP}");
                Ok(())
            }
            ["ls"] => list("."),
            ["ls", path] => list(path),
            ["cat", ref paths @ ..] => print_files(paths).await,
            ["cd"] => change_directory("/"),
            ["cd", path] => change_directory(path),
            ["kill", number] => match number.parse() {
                Ok(number) => cops::system::process::kill(number, abi_unix::types::signal::KILL),
                Err(_) => Err(Errno::EINVAL),
            },
            ["counters"] => print_counters(),
            [program, ref arguments @ .., "&"] => start(program, arguments).map(|child| {
                println!("[{}] started", child.number());
                cops::spawn(report(child)).detach();
            }),
            [program, ref arguments @ ..] => match start(program, arguments) {
                Ok(child) => {
                    lines.give_foreground(child.number());
                    let ending = child.wait().await;
                    lines.give_foreground(0);
                    ending.map(|ending| match ending {
                        Ending::Exited(0) => {}
                        Ending::Killed(INTERRUPT) => println!(),
                        ending => println!("{program}: {}", words_for(ending)),
                    })
                }
                Err(error) => Err(error),
            },
        };
        if let Err(error) = result {
            println!("{}: {error}", words[0]);
        }
    }
}

/// Starts a program, in a process group of its own.
fn start(program: &str, arguments: &[&str]) -> Result<cops::process::Child, Errno> {
    let path = if program.contains('/') { program.into() } else { alloc::format!("/bin/{program}") };
    let mut command = Command::new(&path);
    for argument in arguments {
        command = command.argument(argument);
    }
    let child = command.spawn()?;
    // A program that has ended already needs no group.
    let _ = cops::system::terminal::set_group(child.number(), 0);
    Ok(child)
}

/// Reports the end of a program in the background.
async fn report(child: cops::process::Child) {
    if let Ok(ending) = child.wait().await {
        println!("[{}] {}", child.number(), words_for(ending));
    }
}

fn words_for(ending: Ending) -> String {
    match ending {
        Ending::Exited(status) => alloc::format!("ended with status {status}"),
        Ending::Killed(signal) => alloc::format!("ended by signal {signal}"),
    }
}

fn working_directory() -> String {
    let mut buffer = [0; 512];
    match cops::system::file::current_directory(&mut buffer) {
        Ok(length) => String::from_utf8_lossy(&buffer[..length.saturating_sub(1)]).into_owned(),
        Err(_) => "?".into(),
    }
}

fn change_directory(path: &str) -> Result<(), Errno> {
    let path = alloc::ffi::CString::new(path).map_err(|_| Errno::EINVAL)?;
    cops::system::file::change_directory(&path)
}

fn list(path: &str) -> Result<(), Errno> {
    let directory = File::open_with(path, open::RDONLY | open::DIRECTORY)?;
    let mut names = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let length = cops::system::file::read_directory(directory.descriptor().raw(), &mut buffer)?;
        if length == 0 {
            break;
        }
        let mut entries = &buffer[..length];
        // struct linux_dirent64: inode, offset, length of the entry, type, name with its NUL.
        while let [_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, low, high, kind, rest @ ..] = entries {
            let size = u16::from_le_bytes([*low, *high]) as usize;
            let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
            let mark = if *kind == abi_unix::types::entry::DIRECTORY { "/" } else { "" };
            names.push(alloc::format!("{}{mark}", String::from_utf8_lossy(name)));
            entries = entries.get(size.max(1)..).unwrap_or_default();
        }
    }
    names.sort();
    for name in names.iter().filter(|name| *name != "./" && *name != "../") {
        println!("{name}");
    }
    Ok(())
}

async fn print_files(paths: &[&str]) -> Result<(), Errno> {
    for path in paths {
        let contents = cops::file::read(path).await?;
        cops::system::file::write_all(1, &contents)?;
    }
    Ok(())
}

fn print_counters() -> Result<(), Errno> {
    let values = cops::system::system::counters()?;
    for (counter, value) in Counter::ALL.iter().zip(values) {
        println!("{:<22} {value}", counter.name());
    }
    Ok(())
}
