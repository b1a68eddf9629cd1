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
mod jobs;
mod run;
mod state;
mod tools;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::types::signal;
use command_line::SyntaxError;
use command_line::syntax::{Script, Statement};
use console::Lines;
use cops::select::{Either, select};
use cops::signal::Signal;
use cops::{Errno, Lock};
use jobs::{Job, STOPPED, Work};
use run::{INTERRUPTED, Ran, Stop};
use state::State;

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
    commands::mount_at_start().await;
    Ok(match command_line::parse(text) {
        Ok(script) => {
            let status = run::whole(&mut state, &script).await;
            state.jobs.wait(&state.job).await;
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
    commands::mount_at_start().await;
    // Programs start without these handlers.
    let mut keys = Keys { interrupt: cops::signal::signal(signal::INT)?, stop: cops::signal::signal(signal::TSTP)? };
    if terminal.is_some() {
        cops::println!("COPS shell; `help` lists the commands");
    }
    let mut is_warned = false;
    loop {
        let prompt = alloc::format!("{}$ ", state.directory);
        let ran = match lines.next(&prompt, &state).await? {
            Some(text) => match complete(&mut lines, &mut state, text).await? {
                Some(script) => line(&mut state, &script, &mut keys).await?,
                None => continue,
            },
            None => Err(Stop::Exit(state.status)),
        };
        match ran {
            Err(Stop::Exit(_)) if state.jobs.has_stopped() && !is_warned => {
                cops::println!("{EXIT_WITH_STOPPED}");
                is_warned = true;
                continue;
            }
            Err(Stop::Exit(status)) => {
                // Ctrl-C leaves alone what does not end.
                select(state.jobs.close(&state.job), keys.interrupt.receive()).await;
                return Ok(status);
            }
            Ok(status) | Err(Stop::Return(status) | Stop::Failed(status)) => state.status = status,
            Err(Stop::Break(_) | Stop::Continue(_)) => state.status = 0,
            Err(Stop::Interrupted) => {
                cops::println!();
                state.status = INTERRUPTED;
            }
        }
        is_warned = false;
    }
}

const EXIT_WITH_STOPPED: &str = "\
there are stopped jobs, which `jobs` lists and `fg` lets go on; another `exit` or end of input ends them";

/// The keys that the shell gets while no program is in the foreground.
struct Keys {
    interrupt: Signal,
    stop: Signal,
}

/// Runs the statements of a line, each as a job of its own.
async fn line(state: &mut State, script: &Script, keys: &mut Keys) -> Result<Ran, Errno> {
    // Keys between two lines are for neither.
    let _ = select(keys.interrupt.receive(), core::future::ready(())).await;
    let _ = select(keys.stop.receive(), core::future::ready(())).await;
    for statement in &script.statements {
        match job(state, statement, keys).await? {
            Ok(status) => state.status = status,
            stopped => return Ok(stopped),
        }
    }
    Ok(Ok(state.status))
}

/// The shell's state while a command has it; it comes back when the command's future is dropped.
struct Lent {
    state: Option<State>,
    home: Arc<Lock<Option<State>>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.home.lock() = self.state.take();
    }
}

/// Runs a statement as a job in the foreground, which a key or a program's stop puts into the background: then the
/// state stays what it was before, as after a subshell.
async fn job(state: &mut State, statement: &Statement, keys: &mut Keys) -> Result<Ran, Errno> {
    let job = Arc::new(Job::new(state.job.terminal(), true));
    state.job = job.clone();
    let files = state.files.clone();
    let home = Arc::new(Lock::new(None));
    let mut lent = Lent { state: Some(state.clone()), home: home.clone() };
    let command = statement.clone();
    let mut work: Work = Box::pin(async move {
        match &mut lent.state {
            Some(state) => run::statement(state, &command).await,
            None => Ok(0),
        }
    });
    let ran = loop {
        let pressed = select(keys.interrupt.receive(), keys.stop.receive());
        // A stop comes first: the command must not go on.
        match select(job.stopped(), select(&mut work, pressed)).await {
            Either::Second(Either::First(ran)) => break ran,
            Either::Second(Either::Second(Either::First(received))) => {
                received?;
                match state.jobs.in_foreground() {
                    // The command is `fg`, and ends with the job that it waits for.
                    Some(resumed) => resumed.cancel(),
                    None => break Err(Stop::Interrupted),
                }
            }
            Either::Second(Either::Second(Either::Second(received))) => {
                received?;
                state.jobs.in_foreground().unwrap_or_else(|| job.clone()).stop();
            }
            Either::First(()) => {
                if let Some(ran) = jobs::notice_stop(&mut work).await {
                    break ran;
                }
                job.leave_foreground();
                let text = &statement.text;
                let number = state.jobs.start(text, job, work, state.files[2].clone());
                state.complain(alloc::format!("\n[{number}] stopped: {text}")).await;
                return Ok(Ok(STOPPED));
            }
        }
    };
    drop(work);
    if let Some(changed) = home.lock().take() {
        *state = changed;
    }
    // The end of a command that was interrupted.
    state.unwind();
    state.files = files;
    Ok(ran)
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
