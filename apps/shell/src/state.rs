//! The state of a shell: variables, directory, files, jobs. A subshell is a coroutine with a copy of it.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi_unix::types::signal;
use command_line::syntax::Command;
use cops::system::terminal;
use cops::system::{Descriptor, process};
use cops::{Errno, JoinHandle, Lock};

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

/// The programs of one line, which are one process group at an interactive shell.
#[derive(Debug, Default)]
pub struct Job {
    /// The terminal, for jobs of an interactive shell.
    terminal: Option<i32>,
    is_in_foreground: bool,
    /// The process group; 0 for none.
    group: AtomicU32,
    /// Number of programs that run.
    running: AtomicU32,
}

/// A program that counts as running in its job.
pub struct Member<'a>(&'a Job);

/// A job in the background.
struct Entry {
    number: usize,
    text: String,
    job: Arc<Job>,
    handle: JoinHandle<()>,
}

/// The jobs in the background.
#[derive(Default)]
pub struct Jobs {
    entries: Lock<Vec<Entry>>,
    last: AtomicU32,
}

impl Job {
    /// Creates a job. Without a terminal its programs stay in the shell's process group.
    pub fn new(terminal: Option<i32>, is_in_foreground: bool) -> Job {
        Job { terminal, is_in_foreground, ..Job::default() }
    }

    /// Returns the job in the background that `&` makes of a part of this one.
    pub fn background(&self) -> Job {
        Job::new(self.terminal, false)
    }

    /// Returns whether an interactive shell reports on it.
    pub fn is_interactive(&self) -> bool {
        self.terminal.is_some()
    }

    /// Puts a new process into the group of the job, which is in the terminal's foreground then if the job is.
    pub fn adopt(&self, process: u32) -> Member<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        if let Some(terminal) = self.terminal {
            let group = self.group.load(Ordering::Relaxed);
            // The group is gone if all its processes are, and a program that has ended needs none.
            if group == 0 || terminal::set_group(process, group).is_err() {
                let _ = terminal::set_group(process, 0);
                self.group.store(process, Ordering::Relaxed);
                if self.is_in_foreground {
                    let _ = terminal::set_foreground(terminal, process);
                }
            }
        }
        Member(self)
    }

    /// Sends a signal to all programs of the job.
    pub fn kill(&self, number: u32) -> Result<(), Errno> {
        match self.group.load(Ordering::Relaxed) {
            0 => Err(Errno::ESRCH),
            group => {
                process::kill_group(group, number)?;
                // A job that has read in the background is stopped, and ends when it goes on.
                if matches!(number, signal::TERM | signal::HUP) {
                    let _ = process::kill_group(group, signal::CONT);
                }
                Ok(())
            }
        }
    }
}

impl Drop for Member<'_> {
    /// After the last program of the job the keys' signals are for the shell again.
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.group.store(0, Ordering::Relaxed);
            if let Some(terminal) = self.0.terminal.filter(|_| self.0.is_in_foreground)
                && let Ok(own) = terminal::group(0)
            {
                let _ = terminal::set_foreground(terminal, own);
            }
        }
    }
}

impl Jobs {
    /// Returns the number of the next job.
    pub fn next_number(&self) -> usize {
        self.last.fetch_add(1, Ordering::Relaxed) as usize + 1
    }

    /// Adds a job whose coroutine runs.
    pub fn add(&self, number: usize, text: &str, job: Arc<Job>, handle: JoinHandle<()>) {
        let mut entries = self.entries.lock();
        entries.retain(|entry| !entry.handle.is_finished());
        entries.push(Entry { number, text: text.into(), job, handle });
    }

    /// Returns the number of the last job as `$!` gives it.
    pub fn last(&self) -> String {
        match self.last.load(Ordering::Relaxed) {
            0 => String::new(),
            last => alloc::format!("%{last}"),
        }
    }

    /// Returns numbers and texts of the jobs that run.
    pub fn list(&self) -> Vec<(usize, String)> {
        let entries = self.entries.lock();
        let running = entries.iter().filter(|entry| !entry.handle.is_finished());
        running.map(|entry| (entry.number, entry.text.clone())).collect()
    }

    /// Finds a job that runs.
    pub fn find(&self, number: usize) -> Option<Arc<Job>> {
        let entries = self.entries.lock();
        let mut running = entries.iter().filter(|entry| !entry.handle.is_finished());
        running.find(|entry| entry.number == number).map(|entry| entry.job.clone())
    }

    /// Waits for the end of all jobs.
    pub async fn wait(&self) {
        loop {
            let Some(entry) = self.entries.lock().pop() else { return };
            let _ = entry.handle.await;
        }
    }
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
        while self.is_in_function() {
            self.leave_function();
        }
        (self.depth, self.loops, self.sources) = (0, 0, 0);
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
        let text = (message.into() + "\n").into_bytes();
        // There is no other place for it.
        let _ = cops::io::write_all(self.files[2].raw(), text).await;
        1
    }

    /// Returns the commands' directories.
    pub fn search_path(&self) -> Vec<String> {
        let path = self.variable("PATH");
        (if path.is_empty() { "/bin" } else { path }).split(':').map(str::to_string).collect()
    }
}
