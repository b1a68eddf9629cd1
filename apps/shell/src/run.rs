//! Running scripts. Everything that waits is a future, so stages of a pipeline, subshells and jobs are coroutines or
//! parts of one, each with a [`State`] of its own, and dropping a script's future ends its programs.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::pin::Pin;

use abi_unix::types::signal;
use command_line::arithmetic;
use command_line::expansion::{self, Field, Fields};
use command_line::pattern::Pattern;
use command_line::syntax::{
    Change, Command, CommandKind, Connector, Otherwise, Parameter, Part, Pipeline, Redirection, Script, Statement,
    Target, Word,
};
use cops::Errno;
use cops::file::OpenOptions;
use cops::process::{self, Ending};
use cops::select::{Either, join, join_all, select};
use cops::sync::Notify;

use crate::state::State;
use crate::{commands, tools};

/// The reason for which the rest of a script does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `exit`.
    Exit(u8),
    /// `break` out of so many loops.
    Break(usize),
    /// `continue` with the next turn of the loop so many loops outside.
    Continue(usize),
    /// `return` from a function or a file that `.` runs.
    Return(u8),
    /// A mistake in the script, which ends it, and at a prompt the line.
    Failed(u8),
    /// Ctrl-C ended a program in the foreground.
    Interrupted,
}

/// The status of a command, or the end of the script.
pub type Ran = Result<u8, Stop>;

/// A future of a script within scripts.
type Nested<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Status of a program that Ctrl-C has ended.
pub const INTERRUPTED: u8 = 128 + signal::INT as u8;
/// Status of a program that was found and could not be started, and of one that was not found.
const CANNOT_START: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Greatest number of scripts within each other that run, by nesting and by calls of functions.
const DEEPEST: usize = 256;

/// The program of this shell.
const OWN_PATH: &str = "/proc/self/exe";

/// Runs a script as all that the shell is to do. Returns its status.
pub async fn whole(state: &mut State, text: &Script) -> u8 {
    apart(script(state, text).await).unwrap_or(INTERRUPTED)
}

/// Returns the status of commands that ran apart from the rest of the script, which their end does not end. Only an
/// interruption is one of the rest too.
pub fn apart(ran: Ran) -> Ran {
    match ran {
        Ok(status) | Err(Stop::Exit(status) | Stop::Return(status) | Stop::Failed(status)) => Ok(status),
        Err(Stop::Break(_) | Stop::Continue(_)) => Ok(0),
        Err(Stop::Interrupted) => Err(Stop::Interrupted),
    }
}

/// Runs a script.
pub fn script<'a>(state: &'a mut State, script: &'a Script) -> Nested<'a, Ran> {
    Box::pin(async move {
        if state.depth == DEEPEST {
            return Err(fail(state, alloc::format!("more than {DEEPEST} commands within each other")).await);
        }
        state.depth += 1;
        let mut ran = Ok(0);
        for part in &script.statements {
            ran = statement(state, part).await;
            if ran.is_err() {
                break;
            }
            // Others have their turn, and keys are seen, even if no command waits.
            cops::yield_now().await;
            if let Err(stop) = state.job.pass().await {
                ran = Err(stop);
                break;
            }
        }
        state.depth -= 1;
        ran.map(|_| state.status)
    })
}

/// Complains about a mistake in the script.
async fn fail(state: &State, message: impl Into<String>) -> Stop {
    Stop::Failed(state.complain(message).await)
}

/// Runs a statement.
pub async fn statement(state: &mut State, statement: &Statement) -> Ran {
    if statement.is_in_background {
        state.status = start_job(state, statement).await;
        return Ok(state.status);
    }
    chain(state, statement).await
}

async fn chain(state: &mut State, statement: &Statement) -> Ran {
    state.status = pipeline(state, &statement.first).await?;
    for (connector, next) in &statement.rest {
        if (state.status == 0) == (*connector == Connector::And) {
            state.status = pipeline(state, next).await?;
        }
    }
    Ok(state.status)
}

/// Starts a job in the background.
async fn start_job(state: &State, statement: &Statement) -> u8 {
    let null = match OpenOptions::new().read(true).open("/dev/null") {
        Ok(null) => null.into_descriptor(),
        Err(error) => return state.complain(alloc::format!("/dev/null: {error}")).await,
    };
    let job = Arc::new(state.job.background());
    let mut own = state.clone();
    own.job = job.clone();
    own.files[0] = Arc::new(null);
    let (statement, text) = (statement.clone(), statement.text.clone());
    let work = Box::pin(async move { chain(&mut own, &statement).await });
    let is_interactive = job.is_interactive();
    let number = state.jobs.start(&text, job, work, state.files[2].clone());
    if is_interactive {
        state.complain(alloc::format!("[{number}] {text}")).await;
    }
    0
}

async fn pipeline(state: &mut State, pipeline: &Pipeline) -> Ran {
    let status = match &pipeline.commands[..] {
        [single] => command(state, single).await?,
        stages => concurrently(state, stages).await?,
    };
    Ok(if pipeline.is_negated { u8::from(status == 0) } else { status })
}

/// Runs the stages of a pipeline, each in a subshell, and returns the status of the last.
async fn concurrently(state: &mut State, stages: &[Command]) -> Ran {
    let interrupted = Notify::new();
    let mut futures: Vec<Nested<'_, Ran>> = Vec::new();
    let mut input = state.files[0].clone();
    for (place, stage) in stages.iter().enumerate() {
        let mut own = state.clone();
        own.files[0] = input.clone();
        if place + 1 < stages.len() {
            let (reader, writer) = match cops::io::pipe() {
                Ok(ends) => ends,
                Err(error) => return Ok(state.complain(alloc::format!("pipe: {error}")).await),
            };
            own.files[1] = Arc::new(writer.into_descriptor());
            input = Arc::new(reader.into_descriptor());
        }
        let interrupted = &interrupted;
        futures.push(Box::pin(async move {
            // Its ends of pipes are closed with it.
            let mut own = own;
            let ran = apart(command(&mut own, stage).await);
            if ran.is_err() {
                interrupted.notify_one();
            }
            ran
        }));
    }
    drop(input);
    match select(join_all(futures), interrupted.notified()).await {
        Either::First(all) => all.into_iter().try_fold(0, |_, ran| ran),
        // Ctrl-C is for all stages, also those that the shell runs itself.
        Either::Second(()) => Err(Stop::Interrupted),
    }
}

async fn command(state: &mut State, command: &Command) -> Ran {
    let files = state.files.clone();
    for redirection in &command.redirections {
        match redirect(state, redirection).await {
            Ok(0) => {}
            failed => {
                state.files = files;
                return failed;
            }
        }
    }
    let ran = match &command.kind {
        CommandKind::Simple { assignments, words } => simple(state, assignments, words).await,
        compound => compound_command(state, compound).await,
    };
    state.files = files;
    ran
}

async fn compound_command(state: &mut State, kind: &CommandKind) -> Ran {
    match kind {
        CommandKind::Simple { .. } => Ok(0),
        CommandKind::Group(body) => script(state, body).await,
        CommandKind::Subshell(body) => {
            let mut own = state.clone();
            apart(script(&mut own, body).await)
        }
        CommandKind::If { branches, otherwise } => {
            for (condition, body) in branches {
                if script(state, condition).await? == 0 {
                    return script(state, body).await;
                }
            }
            match otherwise {
                Some(body) => script(state, body).await,
                None => Ok(0),
            }
        }
        CommandKind::Case { word, arms } => {
            let text: Vec<char> = joined(state, word).await?.chars().collect();
            for (patterns, body) in arms {
                for pattern in patterns {
                    if pattern_of(state, pattern).await?.matches_text(&text) {
                        state.status = 0;
                        return script(state, body).await;
                    }
                }
            }
            Ok(0)
        }
        CommandKind::Function { name, body } => {
            if commands::is_special(name) {
                return Ok(state
                    .complain(alloc::format!("{name}: a command of the shell that stays what it is"))
                    .await);
            }
            state.functions.insert(name.clone(), body.clone());
            Ok(0)
        }
        CommandKind::While { condition, body, is_until } => {
            let mut status = 0;
            state.loops += 1;
            let ran = loop {
                match script(state, condition).await {
                    Ok(found) if (found == 0) == *is_until => break Ok(status),
                    Ok(_) => {}
                    Err(stop) => break Err(stop),
                }
                match turn(script(state, body).await) {
                    Ok(ran) => status = ran,
                    Err(ran) => break ran,
                }
            };
            state.loops -= 1;
            ran
        }
        CommandKind::For { variable, words, body } => {
            let values = match words {
                None => state.parameters.get(1..).unwrap_or_default().to_vec(),
                Some(words) => arguments(state, words).await?,
            };
            let mut ran = Ok(0);
            state.loops += 1;
            for value in values {
                state.set(variable, value);
                match turn(script(state, body).await) {
                    Ok(status) => ran = Ok(status),
                    Err(end) => {
                        ran = end;
                        break;
                    }
                }
            }
            state.loops -= 1;
            ran
        }
    }
}

/// Tells the next turn of a loop from its end.
fn turn(ran: Ran) -> Result<u8, Ran> {
    match ran {
        Ok(status) => Ok(status),
        Err(Stop::Continue(1)) => Ok(0),
        Err(Stop::Break(1)) => Err(Ok(0)),
        Err(Stop::Continue(loops)) => Err(Err(Stop::Continue(loops - 1))),
        Err(Stop::Break(loops)) => Err(Err(Stop::Break(loops - 1))),
        Err(stop) => Err(Err(stop)),
    }
}

/// Opens the file of a redirection; returns a status.
async fn redirect(state: &mut State, redirection: &Redirection) -> Ran {
    let mut options = OpenOptions::new();
    let word = match &redirection.target {
        Target::Duplicate(from) => {
            state.files[redirection.descriptor] = state.files[*from].clone();
            return Ok(0);
        }
        Target::Read(word) => {
            options.read(true);
            word
        }
        Target::Write(word) => {
            options.write(true).create(true).truncate(true);
            word
        }
        Target::Append(word) => {
            options.append(true).create(true);
            word
        }
        Target::Text(word) => {
            let text = joined(state, word).await?;
            let (reader, writer) = match cops::io::pipe() {
                Ok(ends) => ends,
                Err(error) => return Ok(state.complain(alloc::format!("pipe: {error}")).await),
            };
            state.files[redirection.descriptor] = Arc::new(reader.into_descriptor());
            // It goes on while the command reads, and ends when nothing reads any more.
            cops::spawn(async move { _ = writer.write_all(text.into_bytes()).await }).detach();
            return Ok(0);
        }
    };
    let path = joined(state, word).await?;
    state.enter();
    match options.open(&path) {
        Ok(file) => {
            state.files[redirection.descriptor] = Arc::new(file.into_descriptor());
            Ok(0)
        }
        Err(error) => Ok(state.complain(alloc::format!("{path}: {error}")).await),
    }
}

async fn simple(state: &mut State, assignments: &[(String, Word)], words: &[Word]) -> Ran {
    // Without a command the status is that of the last $(…).
    state.status = if words.is_empty() { 0 } else { state.status };
    let words = arguments(state, words).await?;
    let mut values = Vec::new();
    for (name, word) in assignments {
        values.push((name, joined(state, word).await?));
    }
    let Some(name) = words.first() else {
        for (name, value) in values {
            state.set(name, value);
        }
        return Ok(state.status);
    };
    if let Some(body) = state.functions.get(name).cloned() {
        values.into_iter().for_each(|(name, value)| state.set(name, value));
        return call(state, &body, words).await;
    }
    if commands::is_command(name) {
        // Assignments before a command of the shell last as long as it.
        let before = state.put_aside(values.iter().map(|(name, _)| &***name));
        values.into_iter().for_each(|(name, value)| state.set(name, value));
        let ran = commands::run(state, &words).await;
        state.bring_back(before);
        return ran;
    }
    let exported = state
        .variables
        .iter()
        .filter(|(name, variable)| variable.is_exported && !values.iter().any(|(other, _)| other == name));
    let exported = exported.map(|(name, variable)| alloc::format!("{name}={}", variable.value));
    let more = values.iter().map(|(name, value)| alloc::format!("{name}={value}"));
    let environment: Vec<String> = exported.chain(more).collect();
    program(state, &words, &environment).await
}

/// Runs a function with these words.
fn call<'a>(state: &'a mut State, body: &'a Command, mut words: Vec<String>) -> Nested<'a, Ran> {
    Box::pin(async move {
        // `$0` stays the shell's.
        words[0] = state.parameters.first().cloned().unwrap_or_default();
        state.enter_function(words);
        let ran = command(state, body).await;
        state.leave_function();
        match ran {
            Err(Stop::Return(status)) => Ok(status),
            ran => ran,
        }
    })
}

/// Runs a program, and returns its status.
async fn program(state: &State, words: &[String], environment: &[String]) -> Ran {
    state.job.pass().await?;
    let name = &words[0];
    let Some(path) = find(state, name) else {
        state.complain(alloc::format!("{name}: not found; `help` lists the commands")).await;
        return Ok(NOT_FOUND);
    };
    let start = |path: &str, arguments: &[String]| {
        state.enter();
        let mut command = cops::process::Command::new(path).name(&arguments[0]).clear_environment().kill_on_drop(true);
        for argument in &arguments[1..] {
            command = command.argument(argument);
        }
        for variable in environment {
            command = command.variable(variable);
        }
        for (number, file) in state.files.iter().enumerate() {
            command = command.descriptor(number, file.duplicate()?);
        }
        command.spawn()
    };
    let started = match start(&path, words) {
        // A script without a line that names its interpreter.
        Err(Errno::ENOEXEC) if !is_binary(&path).await => {
            let script = ["shell".into(), path.into_owned()];
            start(OWN_PATH, &[&script[..], &words[1..]].concat())
        }
        started => started,
    };
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            state.complain(alloc::format!("{name}: {error}")).await;
            return Ok(CANNOT_START);
        }
    };
    let member = state.job.adopt(child.number());
    let ending = loop {
        match child.wait_for_change().await {
            Ok(process::Change::Ended(ending)) => break Ok(ending),
            Ok(process::Change::Stopped(_)) => state.job.note_stop(),
            Ok(process::Change::Continued) => state.job.note_resumption(),
            Err(error) => break Err(error),
        }
    };
    drop(member);
    state.job.pass().await?;
    match ending {
        Ok(Ending::Exited(status)) => Ok(status),
        Ok(Ending::Killed(signal)) if u32::from(signal) == signal::INT => Err(Stop::Interrupted),
        Ok(Ending::Killed(signal)) => {
            if u32::from(signal) != signal::PIPE {
                state.complain(alloc::format!("{name}: ended by signal {signal}")).await;
            }
            Ok(128 + (signal & 0x7f))
        }
        Err(error) => Ok(state.complain(alloc::format!("{name}: {error}")).await),
    }
}

/// Returns the path of a program, which is this shell's for a tool.
fn find<'a>(state: &State, name: &'a str) -> Option<Cow<'a, str>> {
    if name.contains('/') {
        return Some(name.into());
    }
    if tools::is_tool(name) {
        return Some(OWN_PATH.into());
    }
    state.enter();
    let mut paths = state.search_path().into_iter().map(|directory| alloc::format!("{directory}/{name}"));
    paths.find(|path| cops::file::metadata(path).is_ok()).map(Cow::Owned)
}

async fn is_binary(path: &str) -> bool {
    cops::file::read(path).await.map_or(true, |contents| contents.contains(&0))
}

/// Returns the arguments that words become.
async fn arguments(state: &mut State, words: &[Word]) -> Result<Vec<String>, Stop> {
    let mut arguments = Vec::new();
    for word in words {
        let fields = fields(state, word, Values::Split).await?;
        state.enter();
        arguments.extend(fields.iter().flat_map(|field| field.paths(&mut names)));
    }
    Ok(arguments)
}

/// Returns the text that a word becomes where there is one word only.
async fn joined(state: &mut State, word: &Word) -> Result<String, Stop> {
    let fields = fields(state, word, Values::Quoted).await?;
    Ok(fields.iter().map(Field::text).collect::<Vec<_>>().join(" "))
}

/// Returns the pattern that a word is.
async fn pattern_of(state: &mut State, word: &Word) -> Result<Pattern, Stop> {
    let fields = fields(state, word, Values::Whole).await?;
    Ok(fields.first().map_or_else(|| Pattern::new(&[]), Field::pattern))
}

/// Returns the names in a directory, without those that cannot be read.
pub fn names(path: &str) -> Vec<String> {
    let directory = cops::file::read_dir(if path.is_empty() { "." } else { path });
    directory.into_iter().flatten().flatten().map(|entry| entry.name().into()).collect()
}

/// The treatment of values that are not quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    /// Their blanks divide fields.
    Split,
    /// They are as if they were quoted.
    Quoted,
    /// They are not split, and may be patterns.
    Whole,
}

/// Makes fields of the parts of a word.
async fn fields(state: &mut State, word: &Word, values: Values) -> Result<Vec<Field>, Stop> {
    let mut fields = Fields::default();
    add(state, &mut fields, word, values).await?;
    Ok(fields.finish())
}

/// Adds the parts of a word to fields.
fn add<'a>(
    state: &'a mut State,
    fields: &'a mut Fields,
    word: &'a Word,
    values: Values,
) -> Nested<'a, Result<(), Stop>> {
    Box::pin(async move {
        for part in &word.parts {
            let (value, is_quoted) = match part {
                Part::Text { text, is_quoted } => {
                    fields.text(text, *is_quoted);
                    continue;
                }
                Part::Home => (state.variable("HOME").into(), true),
                Part::Parameter { parameter: Parameter::Each, change: None, is_quoted: true } => {
                    for (place, parameter) in state.parameters.iter().skip(1).enumerate() {
                        if place > 0 {
                            fields.end_field();
                        }
                        fields.text(parameter, true);
                    }
                    continue;
                }
                Part::Parameter { parameter, change: None, is_quoted } => (value(state, parameter), *is_quoted),
                Part::Parameter { parameter, change: Some(change), is_quoted } => {
                    match changed(state, parameter, change).await? {
                        Changed::Value(value) => (value, *is_quoted),
                        Changed::Word(word) => {
                            add(state, fields, word, if *is_quoted { Values::Quoted } else { values }).await?;
                            continue;
                        }
                    }
                }
                Part::Arithmetic { expression, is_quoted } => {
                    let text = joined(state, expression).await?;
                    match arithmetic::evaluate(&text, &|name| state.variable(name).into()) {
                        Ok(value) => (alloc::format!("{value}"), *is_quoted),
                        Err(error) => return Err(fail(state, alloc::format!("$(({text})): {error}")).await),
                    }
                }
                Part::Output { script, is_quoted } => (output(state, script).await?, *is_quoted),
            };
            match values {
                _ if is_quoted => fields.text(&value, true),
                Values::Split => fields.value(&value),
                Values::Quoted => fields.text(&value, true),
                Values::Whole => fields.text(&value, false),
            }
        }
        Ok(())
    })
}

/// The result of a change to a parameter's value.
enum Changed<'a> {
    Value(String),
    /// The word of the change takes the value's place.
    Word(&'a Word),
}

async fn changed<'a>(state: &mut State, parameter: &Parameter, change: &'a Change) -> Result<Changed<'a>, Stop> {
    let value = value(state, parameter);
    Ok(match change {
        Change::Length => Changed::Value(alloc::format!("{}", value.chars().count())),
        Change::Unless { is_empty_enough, otherwise, word } => {
            let is_there = is_set(state, parameter) && !(*is_empty_enough && value.is_empty());
            match (otherwise, is_there) {
                (Otherwise::Use, false) | (Otherwise::UseIfSet, true) => Changed::Word(word),
                (Otherwise::UseIfSet, false) => Changed::Value(String::new()),
                (Otherwise::Assign, false) => {
                    let value = joined(state, word).await?;
                    if let Parameter::Variable(name) = parameter {
                        state.set(name, value.clone());
                    }
                    Changed::Value(value)
                }
                (Otherwise::Fail, false) => {
                    let message = joined(state, word).await?;
                    let name = if let Parameter::Variable(name) = parameter { name } else { "parameter" };
                    let message = if message.is_empty() { "is not set" } else { &message };
                    return Err(fail(state, alloc::format!("{name}: {message}")).await);
                }
                (_, true) => Changed::Value(value),
            }
        }
        Change::Without { is_suffix, is_longest, pattern } => {
            let pattern = pattern_of(state, pattern).await?;
            Changed::Value(expansion::without(&value, &pattern, *is_suffix, *is_longest).into())
        }
    })
}

fn is_set(state: &State, parameter: &Parameter) -> bool {
    match parameter {
        Parameter::Variable(name) => state.variables.contains_key(name),
        Parameter::Position(place) => *place < state.parameters.len(),
        Parameter::Each | Parameter::Together => state.parameters.len() > 1,
        Parameter::Job => !state.jobs.last().is_empty(),
        Parameter::Count | Parameter::Status | Parameter::Process => true,
    }
}

fn value(state: &State, parameter: &Parameter) -> String {
    match parameter {
        Parameter::Variable(name) => state.variable(name).into(),
        Parameter::Position(place) => state.parameters.get(*place).cloned().unwrap_or_default(),
        Parameter::Count => alloc::format!("{}", state.parameters.len().saturating_sub(1)),
        Parameter::Each | Parameter::Together => state.parameters.get(1..).unwrap_or_default().join(" "),
        Parameter::Status => alloc::format!("{}", state.status),
        Parameter::Process => alloc::format!("{}", cops::process::number()),
        Parameter::Job => state.jobs.last(),
    }
}

/// Returns the output of a script in a subshell, without the ends of lines at its end.
async fn output(state: &mut State, text: &Script) -> Result<String, Stop> {
    let (reader, writer) = match cops::io::pipe() {
        Ok(ends) => ends,
        Err(error) => {
            state.status = state.complain(alloc::format!("pipe: {error}")).await;
            return Ok(String::new());
        }
    };
    let mut own = state.clone();
    own.files[1] = Arc::new(writer.into_descriptor());
    let run = async move {
        let mut own = own;
        script(&mut own, text).await
    };
    let (ran, (_, bytes)) = join(run, reader.read_to_end(Vec::new())).await;
    state.status = apart(ran)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.trim_end_matches('\n').replace('\0', ""))
}
