//! The state of a shell: variables, directory, files. A subshell is a coroutine with a copy of it.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use command_line::syntax::Command;
use cops::Errno;
use cops::system::Descriptor;

use crate::jobs::{Job, Jobs};

/// A variable; exported ones are in the environment of programs.
#[derive(Clone, Debug)]
pub struct Variable {
    pub value: String,
    pub is_exported: bool,
}

/// The state of a shell.
#[derive(Clone)]
pub struct State {
    pub variables: BTreeMap<String, Variable>,
    /// `$0` and the positional parameters.
    pub parameters: Vec<String>,
    /// Status of the last pipeline.
    pub status: u8,
    /// The process's working directory is this one only while [`State::enter`] needs it.
    pub directory: String,
    /// Standard input, output and error.
    pub files: [Arc<Descriptor>; 3],
    pub functions: BTreeMap<String, Arc<Command>>,
    /// The functions that run, the innermost last.
    calls: Vec<Call>,
    /// The variables that assignments before commands of the shell have put aside.
    aside: Vec<(String, Option<Variable>)>,
    /// Number of scripts around the command.
    pub depth: usize,
    /// Number of loops around the command.
    pub loops: usize,
    /// Number of files within each other that `.` is running.
    pub sources: usize,
    /// The job that started programs belong to.
    pub job: Arc<Job>,
    pub jobs: Arc<Jobs>,
}

/// The state outside a function that runs, as far as it is not that inside.
#[derive(Clone)]
struct Call {
    parameters: Vec<String>,
    loops: usize,
    /// The variables that `local` has put aside.
    variables: Vec<(String, Option<Variable>)>,
}

impl State {
    /// Creates the state of a shell with these parameters, and with the environment and files of the process.
    pub fn new(parameters: Vec<String>, job: Job) -> Result<State, Errno> {
        let mut variables = BTreeMap::new();
        for variable in cops::environment() {
            let variable = variable.to_string_lossy();
            let (name, value) = variable.split_once('=').unwrap_or((&variable, ""));
            variables.insert(name.into(), Variable { value: value.into(), is_exported: true });
        }
        let duplicate = |number| {
            let own = core::mem::ManuallyDrop::new(Descriptor::from_raw(number));
            own.duplicate().map(Arc::new)
        };
        Ok(State {
            variables,
            parameters,
            status: 0,
            directory: cops::file::current_dir()?,
            files: [duplicate(0)?, duplicate(1)?, duplicate(2)?],
            functions: BTreeMap::new(),
            calls: Vec::new(),
            aside: Vec::new(),
            depth: 0,
            loops: 0,
            sources: 0,
            job: Arc::new(job),
            jobs: Arc::default(),
        })
    }

    /// Makes this state's directory that of the process. Until the next `await` paths are relative to it.
    pub fn enter(&self) {
        // A directory that is gone is reported by the call that needs it.
        let _ = cops::file::set_current_dir(&self.directory);
    }

    /// Returns the value of a variable, "" if there is none.
    pub fn variable(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", |variable| &variable.value)
    }

    /// Changes a variable, which stays exported if it was.
    pub fn set(&mut self, name: &str, value: String) {
        match self.variables.get_mut(name) {
            Some(variable) => variable.value = value,
            None => _ = self.variables.insert(name.into(), Variable { value, is_exported: false }),
        }
    }

    /// Begins a function, which has these parameters.
    pub fn enter_function(&mut self, parameters: Vec<String>) {
        let parameters = core::mem::replace(&mut self.parameters, parameters);
        self.calls.push(Call { parameters, loops: core::mem::take(&mut self.loops), variables: Vec::new() });
    }

    /// Ends the innermost function.
    pub fn leave_function(&mut self) {
        let Some(Call { parameters, loops, variables }) = self.calls.pop() else { return };
        (self.parameters, self.loops) = (parameters, loops);
        variables.into_iter().rev().for_each(|(name, variable)| self.restore(name, variable));
    }

    /// Returns whether a function runs.
    pub fn is_in_function(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Makes a variable one of the innermost function. Returns `false` if none runs.
    pub fn make_local(&mut self, name: &str, value: String) -> bool {
        let Some(call) = self.calls.last_mut() else { return false };
        call.variables.push((name.into(), self.variables.remove(name)));
        self.set(name, value);
        true
    }

    /// Ends all that runs, after an interruption.
    pub fn unwind(&mut self) {
        self.bring_back(0);
        while self.is_in_function() {
            self.leave_function();
        }
        (self.depth, self.loops, self.sources) = (0, 0, 0);
    }

    /// Puts variables aside for [`State::bring_back`], which takes the returned number.
    pub fn put_aside<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> usize {
        let before = self.aside.len();
        self.aside.extend(names.map(|name| (name.into(), self.variables.get(name).cloned())));
        before
    }

    /// Gives variables back that were put aside after so many others.
    pub fn bring_back(&mut self, before: usize) {
        while self.aside.len() > before
            && let Some((name, variable)) = self.aside.pop()
        {
            self.restore(name, variable);
        }
    }

    /// Gives a variable back the state that it had.
    pub fn restore(&mut self, name: String, variable: Option<Variable>) {
        match variable {
            Some(variable) => _ = self.variables.insert(name, variable),
            None => _ = self.variables.remove(&name),
        }
    }

    /// Writes text to standard output.
    pub async fn print(&self, text: &str) -> Result<(), Errno> {
        cops::io::write_all(self.files[1].raw(), text.as_bytes().to_vec()).await.0
    }

    /// Writes a message to standard error, and returns the status of a failure.
    pub async fn complain(&self, message: impl Into<String>) -> u8 {
        complain(&self.files[2], message).await;
        1
    }

    /// Returns the commands' directories.
    pub fn search_path(&self) -> Vec<String> {
        let path = self.variable("PATH");
        (if path.is_empty() { "/bin" } else { path }).split(':').map(str::to_string).collect()
    }
}

/// Writes a message to a file for messages.
pub async fn complain(errors: &Descriptor, message: impl Into<String>) {
    let text = (message.into() + "\n").into_bytes();
    // There is no other place for it.
    let _ = cops::io::write_all(errors.raw(), text).await;
}
