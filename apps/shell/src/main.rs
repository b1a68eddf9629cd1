//! The shell: `shell` reads commands from the console, `shell FILE [ARGUMENT]...` from a file, and `shell -c TEXT
//! [NAME [ARGUMENT]...]` from its arguments.
//!
//! Programs are processes, and everything that the shell does about them is a future: a pipeline's stages, the end of a
//! job in the background, Ctrl-C. No command of the shell blocks it, and a subshell is a copy of its state instead of a
//! copy of the process. The tools (`ls`, `cat`, …) are this program under other names ([`tools`]).
#![no_std]
#![no_main]

extern crate alloc;

mod commands;
mod console;
mod run;
mod state;
mod tools;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::types::signal;
use command_line::SyntaxError;
use command_line::syntax::Script;
use console::Lines;
use cops::Errno;
use cops::select::{Either, select};
use run::{INTERRUPTED, Ran, Stop};
use state::{Job, State};

const USAGE: &str = "usage: shell, shell FILE [ARGUMENT]..., or shell -c TEXT [NAME [ARGUMENT]...]";

/// Status of a shell that was asked for nothing sensible, and of a script with a wrong syntax.
const WRONG: u8 = 2;

#[cops::main]
async fn main() -> Result<i32, Errno> {
    let arguments: Vec<String> = cops::arguments().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let name = arguments.first().map_or("", |first| first.rsplit('/').next().unwrap_or_default());
    if tools::is_tool(name) {
        return Ok(tools::run(name, &arguments[1..]).await);
    }
    let words: Vec<&str> = arguments.iter().skip(1).map(|argument| &**argument).collect();
    let status = match words[..] {
        [] => interactive(arguments).await?,
        ["--help", ..] => {
            cops::println!("{USAGE}");
            0
        }
        ["-c", text, ..] => {
            let parameters = arguments.get(3..).filter(|rest| !rest.is_empty()).unwrap_or(&arguments[..1]);
            script(parameters.to_vec(), "-c", text).await?
        }
        [option, ..] if option.starts_with('-') => {
            cops::eprintln!("shell: unknown option `{option}`\n{USAGE}");
            WRONG
        }
        [path, ..] => match cops::file::read_to_string(path).await {
            Ok(text) => script(arguments[1..].to_vec(), path, &text).await?,
            Err(error) => {
                cops::eprintln!("shell: {path}: {error}");
                127
            }
        },
    };
    Ok(status.into())
}

/// Runs a text.
async fn script(parameters: Vec<String>, name: &str, text: &str) -> Result<u8, Errno> {
    let mut state = State::new(parameters, Job::default())?;
    Ok(match command_line::parse(text) {
        Ok(script) => {
            let status = run::whole(&mut state, &script).await;
            state.jobs.wait().await;
            status
        }
        Err(error) => {
            cops::eprintln!("{name}: {error}");
            WRONG
        }
    })
}

/// Runs lines as they come, until the end of the input.
async fn interactive(parameters: Vec<String>) -> Result<u8, Errno> {
    let mut lines = Lines::new(cops::file::standard_input()?);
    let terminal = lines.terminal();
    let mut state = State::new(parameters, Job::new(terminal, true))?;
    let mut interrupts = cops::signal::signal(signal::INT)?;
    if terminal.is_some() {
        cops::println!("COPS shell; `help` lists the commands");
    }
    loop {
        let prompt = alloc::format!("{}$ ", state.directory);
        let Some(text) = lines.next(&prompt, &state).await? else { break };
        let Some(script) = complete(&mut lines, &mut state, text).await? else { continue };
        // Ctrl-C between two lines interrupts neither.
        let _ = select(interrupts.receive(), core::future::ready(())).await;
        // Each line is a job of its own.
        state.job = Arc::new(Job::new(terminal, true));
        let ran: Ran = match select(run::script(&mut state, &script), interrupts.receive()).await {
            Either::First(ran) => ran,
            Either::Second(received) => {
                received?;
                Err(Stop::Interrupted)
            }
        };
        state.unwind();
        match ran {
            Ok(status) => state.status = status,
            Err(Stop::Exit(status)) => return Ok(status),
            Err(Stop::Break(_) | Stop::Continue(_)) => state.status = 0,
            Err(Stop::Return(status) | Stop::Failed(status)) => state.status = status,
            Err(Stop::Interrupted) => {
                cops::println!();
                state.status = INTERRUPTED;
            }
        }
    }
    state.jobs.wait().await;
    Ok(state.status)
}

/// Parses a line, with more lines as long as it is not complete. A wrong one is reported.
async fn complete(lines: &mut Lines, state: &mut State, mut text: String) -> Result<Option<Script>, Errno> {
    loop {
        match command_line::parse(&text) {
            Ok(script) => return Ok(Some(script)),
            Err(error) => {
                if matches!(error, SyntaxError::Unfinished(_))
                    && let Some(more) = lines.next("> ", state).await?
                    && !lines.was_interrupted()
                {
                    text = alloc::format!("{text}\n{more}");
                    continue;
                }
                if !lines.was_interrupted() {
                    cops::eprintln!("shell: {error}");
                }
                state.status = WRONG;
                return Ok(None);
            }
        }
    }
}
