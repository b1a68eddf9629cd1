//! Jobs: the programs of one command. At an interactive shell they are one process group, which has the terminal or is
//! in the background, and which a key or a read from the terminal stops.
//!
//! A job's command is a future. The shell polls that of the foreground itself; a job in the background is a coroutine
//! that reports stops and the end ([`attend`]). A job that is stopped in the foreground becomes such a coroutine, and
//! the shell goes on with a copy of the state that it had before the command.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi_unix::types::signal;
use cops::select::{Either, select};
use cops::sync::Notify;
use cops::system::terminal;
use cops::system::{Descriptor, process};
use cops::{Errno, JoinHandle, Lock};

use crate::run::{self, Ran, Stop};
use crate::state;

/// Status of a command that the stop key has stopped.
pub const STOPPED: u8 = 128 + signal::TSTP as u8;

/// The future of a job's command.
pub type Work = Pin<Box<dyn Future<Output = Ran> + Send>>;

/// The programs of one command.
// The shell's coroutines share the fields, and none guards other memory: every order is relaxed.
#[derive(Debug, Default)]
pub struct Job {
    /// The terminal, for jobs of an interactive shell.
    terminal: Option<i32>,
    is_in_foreground: AtomicBool,
    /// The process group; 0 for none.
    group: AtomicU32,
    /// Number of programs that run or are stopped.
    running: AtomicU32,
    is_stopped: AtomicBool,
    /// Number of stops so far.
    stops: AtomicU32,
    /// Whether the command itself waits until it is resumed: it was stopped when it had no program.
    is_held: AtomicBool,
    /// Whether the command ends without going on.
    is_cancelled: AtomicBool,
    /// Told of each change of the fields above.
    changes: Notify,
    /// Told when a job loses the foreground by a stop.
    returns: Notify,
}

/// A program that counts as running in its job.
pub struct Member<'a>(&'a Job);

impl Job {
    /// Creates a job. Without a terminal its programs stay in the shell's process group.
    pub fn new(terminal: Option<i32>, is_in_foreground: bool) -> Job {
        Job { terminal, is_in_foreground: AtomicBool::new(is_in_foreground), ..Job::default() }
    }

    /// Returns the terminal, if this is a job of an interactive shell.
    pub fn terminal(&self) -> Option<i32> {
        self.terminal
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
                if self.is_in_foreground.load(Ordering::Relaxed) {
                    let _ = terminal::set_foreground(terminal, process);
                }
            }
        }
        Member(self)
    }

    /// Notes that a signal has stopped a program of the job.
    pub fn note_stop(&self) {
        if !self.is_stopped.swap(true, Ordering::Relaxed) {
            self.stops.fetch_add(1, Ordering::Relaxed);
        }
        self.changes.notify_one();
    }

    /// Stops the job for the key, which has reached the shell because the job had no program in the foreground.
    pub fn stop(&self) {
        match self.group.load(Ordering::Relaxed) {
            0 => {
                self.is_held.store(true, Ordering::Relaxed);
                self.note_stop();
            }
            // Its first program has come meanwhile, or has ended and is not noticed yet.
            group => _ = process::kill_group(group, signal::TSTP),
        }
    }

    /// Ends the job's command, and with it its programs.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.changes.notify_one();
    }

    /// Waits until the job is stopped.
    pub async fn stopped(&self) {
        while !self.is_stopped.load(Ordering::Relaxed) {
            self.changes.notified().await;
        }
    }

    /// Gives the terminal back to the shell.
    pub fn leave_foreground(&self) {
        if self.is_in_foreground.swap(false, Ordering::Relaxed) {
            self.take_terminal_back();
        }
    }

    fn take_terminal_back(&self) {
        if let Some(terminal) = self.terminal
            && let Ok(own) = terminal::group(0)
        {
            let _ = terminal::set_foreground(terminal, own);
        }
    }

    /// Lets the programs of the job go on.
    fn resume(&self, is_in_foreground: bool) {
        self.is_stopped.store(false, Ordering::Relaxed);
        self.is_held.store(false, Ordering::Relaxed);
        self.is_in_foreground.store(is_in_foreground, Ordering::Relaxed);
        self.changes.notify_one();
        let group = self.group.load(Ordering::Relaxed);
        if group == 0 {
            return;
        }
        if let Some(terminal) = self.terminal.filter(|_| is_in_foreground) {
            let _ = terminal::set_foreground(terminal, group);
        }
        // A group that is gone is reported as the job's end.
        let _ = process::kill_group(group, signal::CONT);
    }

    /// Sends a signal to all programs of the job.
    pub fn kill(&self, number: u32) -> Result<(), Errno> {
        match self.group.load(Ordering::Relaxed) {
            0 if number == signal::CONT => self.resume(false),
            // A command without a program is this process's, which the signal must not end.
            0 if matches!(number, signal::TERM | signal::HUP | signal::INT | signal::KILL) => self.cancel(),
            0 => return Err(Errno::ESRCH),
            group => {
                process::kill_group(group, number)?;
                // A stopped job ends when it goes on.
                if matches!(number, signal::TERM | signal::HUP) {
                    let _ = process::kill_group(group, signal::CONT);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Member<'_> {
    /// After the last program of the job the keys' signals are for the shell again.
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.group.store(0, Ordering::Relaxed);
            if self.0.is_in_foreground.load(Ordering::Relaxed) {
                self.0.take_terminal_back();
            }
        }
    }
}

/// A job in the background.
struct Entry {
    number: usize,
    text: String,
    job: Arc<Job>,
    handle: JoinHandle<Ran>,
}

impl Entry {
    fn is_stopped(&self) -> bool {
        self.job.is_stopped.load(Ordering::Relaxed)
    }
}

/// The jobs in the background, in the order of their numbers.
#[derive(Default)]
pub struct Jobs {
    entries: Lock<Vec<Entry>>,
    last: AtomicU32,
    /// The job that `fg` has brought to the foreground.
    in_foreground: Lock<Option<Arc<Job>>>,
    /// Whether stopped jobs are ended.
    is_closed: AtomicBool,
}

/// A job that is taken out of the list for as long as the shell waits for it.
struct Taken<'a> {
    jobs: &'a Jobs,
    entry: Option<Entry>,
}

impl Drop for Taken<'_> {
    /// A job that goes on is one in the background.
    fn drop(&mut self) {
        *self.jobs.in_foreground.lock() = None;
        if let Some(entry) = self.entry.take().filter(|entry| !entry.handle.is_finished()) {
            entry.job.leave_foreground();
            self.jobs.insert(entry);
        }
    }
}

impl Jobs {
    /// Starts a coroutine for a job's command, which reports its stops and its end to `errors`. Returns the job's
    /// number.
    pub fn start(self: &Arc<Jobs>, text: &str, job: Arc<Job>, work: Work, errors: Arc<Descriptor>) -> usize {
        let number = self.last.fetch_add(1, Ordering::Relaxed) as usize + 1;
        let attended = attend(self.clone(), alloc::format!("[{number}]"), text.into(), job.clone(), work, errors);
        self.insert(Entry { number, text: text.into(), job, handle: cops::spawn(attended) });
        number
    }

    fn insert(&self, entry: Entry) {
        let mut entries = self.entries.lock();
        entries.retain(|entry| !entry.handle.is_finished());
        let place = entries.partition_point(|other| other.number < entry.number);
        entries.insert(place, entry);
    }

    /// Returns the number of the last job as `$!` gives it.
    pub fn last(&self) -> String {
        match self.last.load(Ordering::Relaxed) {
            0 => String::new(),
            last => alloc::format!("%{last}"),
        }
    }

    /// Returns numbers, states and texts of the jobs that have not ended.
    pub fn list(&self) -> Vec<(usize, &'static str, String)> {
        let entries = self.entries.lock();
        let present = entries.iter().filter(|entry| !entry.handle.is_finished());
        let state = |entry: &Entry| if entry.is_stopped() { "stopped" } else { "running" };
        present.map(|entry| (entry.number, state(entry), entry.text.clone())).collect()
    }

    /// Returns whether a job is stopped.
    pub fn has_stopped(&self) -> bool {
        self.list().iter().any(|(_, state, _)| *state == "stopped")
    }

    /// Finds a job that has not ended.
    pub fn find(&self, number: usize) -> Option<Arc<Job>> {
        let entries = self.entries.lock();
        let mut present = entries.iter().filter(|entry| !entry.handle.is_finished());
        present.find(|entry| entry.number == number).map(|entry| entry.job.clone())
    }

    /// Takes a job out of the list; without a number the last stopped one, or else the last one.
    fn take(&self, number: Option<usize>) -> Option<Taken<'_>> {
        let mut entries = self.entries.lock();
        entries.retain(|entry| !entry.handle.is_finished());
        let place = match number {
            Some(number) => entries.iter().position(|entry| entry.number == number)?,
            None => entries.iter().rposition(Entry::is_stopped).or(entries.len().checked_sub(1))?,
        };
        let entry = entries.remove(place);
        drop(entries);
        Some(Taken { jobs: self, entry: Some(entry) })
    }

    /// Returns the job that `fg` has brought to the foreground.
    pub fn in_foreground(&self) -> Option<Arc<Job>> {
        self.in_foreground.lock().clone()
    }

    /// Lets a job go on in the background. Returns its number and text; `None` if there is no such job.
    pub fn resume(&self, number: Option<usize>) -> Option<(usize, String)> {
        let taken = self.take(number)?;
        let entry = taken.entry.as_ref()?;
        entry.job.resume(false);
        Some((entry.number, entry.text.clone()))
    }

    /// Lets a job go on in the foreground, and waits until it ends or stops; `show` gets its text. Returns `None` if
    /// there is no such job.
    ///
    /// # Cancellation
    ///
    /// Weak. The job is in the background then.
    pub async fn to_foreground(&self, number: Option<usize>, show: impl AsyncFnOnce(&str)) -> Option<Ran> {
        let mut taken = self.take(number)?;
        let entry = taken.entry.as_mut()?;
        show(&entry.text).await;
        // A return that nobody has waited for.
        let _ = select(entry.job.returns.notified(), core::future::ready(())).await;
        *self.in_foreground.lock() = Some(entry.job.clone());
        entry.job.resume(true);
        Some(match select(&mut entry.handle, entry.job.returns.notified()).await {
            Either::First(Ok(ran)) => ran,
            // No job is cancelled.
            Either::First(Err(_)) => Ok(0),
            Either::Second(()) => Ok(STOPPED),
        })
    }

    /// Waits for the end of all jobs that are not stopped.
    ///
    /// # Cancellation
    ///
    /// Strict. The others stay in the list.
    pub async fn wait(&self) {
        loop {
            let number = self.list().iter().find(|(_, state, _)| *state == "running").map(|(number, ..)| *number);
            let Some(mut taken) = number.and_then(|number| self.take(Some(number))) else { return };
            if let Some(entry) = &mut taken.entry {
                let _ = (&mut entry.handle).await;
                taken.entry = None;
            }
        }
    }

    /// Ends all jobs that are stopped, and waits for the others.
    pub async fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        for entry in self.entries.lock().iter().filter(|entry| entry.is_stopped()) {
            // One that has ended meanwhile needs no signal.
            let _ = entry.job.kill(signal::HUP);
            // It is one of those that are waited for.
            entry.job.is_stopped.store(false, Ordering::Relaxed);
        }
        self.wait().await;
    }
}

/// Runs a job's command in the background; the foreground comes and goes. Reports stops, and the end if nobody waits
/// for it.
async fn attend(
    jobs: Arc<Jobs>,
    label: String,
    text: String,
    job: Arc<Job>,
    mut work: Work,
    errors: Arc<Descriptor>,
) -> Ran {
    // The stop that has made it a job of the background is reported already.
    let mut reported = job.stops.load(Ordering::Relaxed);
    let ran = loop {
        if job.is_cancelled.load(Ordering::Relaxed) {
            break Err(Stop::Interrupted);
        }
        let stops = job.stops.load(Ordering::Relaxed);
        if stops != reported && jobs.is_closed.load(Ordering::Relaxed) {
            let _ = job.kill(signal::HUP);
        } else if stops != reported {
            let had_foreground = job.is_in_foreground.load(Ordering::Relaxed);
            job.leave_foreground();
            state::complain(&errors, alloc::format!("{label} stopped: {text}")).await;
            if had_foreground {
                job.returns.notify_one();
            }
        }
        reported = stops;
        if job.is_held.load(Ordering::Relaxed) {
            job.changes.notified().await;
        } else if let Either::First(ran) = select(&mut work, job.changes.notified()).await {
            break run::apart(ran);
        }
    };
    drop(work);
    job.is_stopped.store(false, Ordering::Relaxed);
    if job.is_interactive() && !job.is_in_foreground.load(Ordering::Relaxed) {
        let end = match ran {
            Ok(0) => String::from("done"),
            Ok(status) => alloc::format!("ended with status {status}"),
            Err(_) => String::from("ended"),
        };
        state::complain(&errors, alloc::format!("{label} {end}: {text}")).await;
    }
    ran
}
