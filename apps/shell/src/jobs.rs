//! Jobs: the programs of one command. At an interactive shell they are one process group, which has the terminal or is
//! in the background, and which a key or a read from the terminal stops.
//!
//! A job's command is a future. The shell polls that of the foreground itself; a job in the background is a coroutine
//! that reports stops and the end ([`attend`]). A job that is stopped in the foreground becomes such a coroutine, and
//! the shell goes on with a copy of the state that it had before the command. While a job is stopped, its command waits
//! before the next statement or program ([`Job::pass`]).

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi_unix::types::signal;
use cops::select::{Either, select};
use cops::sync::Event;
use cops::system::terminal;
use cops::system::{Descriptor, process};
use cops::{Errno, Lock};

use crate::run::{self, Ran, Stop};
use crate::state;

/// Status of a command that the stop key has stopped.
pub const STOPPED: u8 = 128 + signal::TSTP as u8;

/// The future of a job's command.
pub type Work = Pin<Box<dyn Future<Output = Ran> + Send>>;

/// The programs of one command.
// The fields are shared by coroutines of the shell. A change is followed by a notification, which orders it before the
// look of a coroutine that waits for it: every access is relaxed.
#[derive(Debug, Default)]
pub struct Job {
    /// The terminal, for jobs of an interactive shell.
    terminal: Option<i32>,
    is_in_foreground: AtomicBool,
    /// The process group; 0 for none.
    group: AtomicU32,
    /// Number of programs that run or are stopped.
    running: AtomicU32,
    /// Number among the jobs in the background; 0 for none.
    number: AtomicU32,
    is_stopped: AtomicBool,
    /// Number of stops so far.
    stops: AtomicU32,
    /// Whether a signal is to end it: nothing comes after the programs that run.
    is_ending: AtomicBool,
    /// Whether its command ends at once.
    is_cancelled: AtomicBool,
    /// The command's result, of a job that was in the background.
    result: Lock<Option<Ran>>,
    /// Told of each change of the fields above.
    changes: Event,
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

    /// Returns whether it is the command that an interactive shell waits for.
    pub fn is_in_foreground(&self) -> bool {
        self.is_interactive() && self.is_in_foreground.load(Ordering::Relaxed)
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn has_ended(&self) -> bool {
        self.result.lock().is_some()
    }

    fn changed(&self) {
        self.changes.notify(usize::MAX);
    }

    /// Waits for a condition about the fields.
    async fn until(&self, condition: impl Fn(&Job) -> bool) {
        loop {
            let change = self.changes.listen();
            if condition(self) {
                return;
            }
            change.await;
        }
    }

    /// Puts a new process into the group of the job, which is in the terminal's foreground then if the job is.
    pub fn adopt(&self, process: u32) -> Member<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        if let Some(terminal) = self.terminal {
            let group = self.group.load(Ordering::Relaxed);
            // The group is gone if all its processes are, and a program that has ended needs none.
            if (group == 0 || terminal::set_group(process, group).is_err()) && terminal::set_group(process, 0).is_ok() {
                self.group.store(process, Ordering::Relaxed);
                if self.is_in_foreground() {
                    let _ = terminal::set_foreground(terminal, process);
                }
            }
        }
        Member(self)
    }

    /// Waits while the job is stopped.
    ///
    /// # Errors
    ///
    /// A signal ends the job.
    pub async fn pass(&self) -> Result<(), Stop> {
        if self.is_stopped() {
            self.until(|job| !job.is_stopped()).await;
        }
        if self.is_ending.load(Ordering::Relaxed) { Err(Stop::Interrupted) } else { Ok(()) }
    }

    /// Notes that a signal has stopped a program of the job.
    pub fn note_stop(&self) {
        // A shell without a terminal is stopped with its programs, or nothing of it is.
        if self.is_interactive() && !self.is_stopped.swap(true, Ordering::Relaxed) {
            self.stops.fetch_add(1, Ordering::Relaxed);
            self.changed();
        }
    }

    /// Notes that the programs of the job go on.
    pub fn note_resumption(&self) {
        self.is_stopped.store(false, Ordering::Relaxed);
        self.changed();
    }

    /// Stops the job for the key, which has reached the shell because the job had no program in the foreground.
    pub fn stop(&self) {
        match self.group.load(Ordering::Relaxed) {
            0 => self.note_stop(),
            // Its first program has come meanwhile, or has ended and is not noticed yet.
            group => _ = process::kill_group(group, signal::TSTP),
        }
    }

    /// Ends the job's command at once, and with it its programs.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.changed();
    }

    /// Waits until the job is stopped.
    pub async fn stopped(&self) {
        self.until(Job::is_stopped).await;
    }

    /// Gives the terminal back to the shell.
    pub fn leave_foreground(&self) {
        if self.is_in_foreground.swap(false, Ordering::Relaxed) {
            self.take_terminal_back();
            self.changed();
        }
    }

    fn take_terminal_back(&self) {
        if let Some(terminal) = self.terminal
            && let Ok(own) = terminal::group(0)
        {
            let _ = terminal::set_foreground(terminal, own);
        }
    }

    /// Lets the job go on.
    fn resume(&self, is_in_foreground: bool) {
        self.is_in_foreground.store(is_in_foreground, Ordering::Relaxed);
        // Before they go on, as they may be stopped again at once.
        self.note_resumption();
        let group = self.group.load(Ordering::Relaxed);
        if group != 0 {
            if let Some(terminal) = self.terminal.filter(|_| is_in_foreground) {
                let _ = terminal::set_foreground(terminal, group);
            }
            // A group that is gone is reported as the job's end.
            let _ = process::kill_group(group, signal::CONT);
        }
    }

    /// Sends a signal to all programs of the job. One that ends programs ends the rest of the command too.
    pub fn kill(&self, number: u32) -> Result<(), Errno> {
        let ends = matches!(number, signal::TERM | signal::HUP | signal::INT | signal::KILL);
        let group = self.group.load(Ordering::Relaxed);
        if group != 0 {
            self.is_ending.fetch_or(ends, Ordering::Relaxed);
            match process::kill_group(group, number) {
                // Its last program has ended, and the command goes on, or is stopped, without one.
                Err(Errno::ESRCH) => {}
                sent => {
                    sent?;
                    // A stopped job ends when it goes on.
                    if ends {
                        let _ = process::kill_group(group, signal::CONT);
                        self.note_resumption();
                    }
                    return Ok(());
                }
            }
        }
        // A command without a program is a part of this process.
        match number {
            signal::CONT => self.note_resumption(),
            signal::STOP | signal::TSTP => self.note_stop(),
            _ if ends => self.cancel(),
            _ => return Err(Errno::ESRCH),
        }
        Ok(())
    }
}

impl Drop for Member<'_> {
    /// After the last program of the job the keys' signals are for the shell again.
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.group.store(0, Ordering::Relaxed);
            if self.0.is_in_foreground() {
                self.0.take_terminal_back();
            }
        }
    }
}

/// A job that is or was in the background.
#[derive(Clone)]
struct Entry {
    number: u32,
    text: String,
    job: Arc<Job>,
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

/// The time for which `fg` waits for a job.
struct Foreground<'a> {
    jobs: &'a Jobs,
    job: Arc<Job>,
}

impl Drop for Foreground<'_> {
    /// A job that goes on is one in the background.
    fn drop(&mut self) {
        *self.jobs.in_foreground.lock() = None;
        self.job.leave_foreground();
    }
}

impl Jobs {
    /// Starts a coroutine for a job's command, which reports its stops and its end to `errors`. Returns the job's
    /// number.
    pub fn start(self: &Arc<Jobs>, text: &str, job: Arc<Job>, work: Work, errors: Arc<Descriptor>) -> u32 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        job.number.store(number, Ordering::Relaxed);
        let entry = Entry { number, text: text.into(), job };
        let mut entries = self.entries.lock();
        entries.retain(|entry| !entry.job.has_ended());
        entries.push(entry.clone());
        drop(entries);
        cops::spawn(attend(self.clone(), entry, work, errors)).detach();
        number
    }

    /// Returns the number of the last job as `$!` gives it.
    pub fn last(&self) -> String {
        match self.last.load(Ordering::Relaxed) {
            0 => String::new(),
            last => alloc::format!("%{last}"),
        }
    }

    fn present(&self) -> Vec<Entry> {
        let entries = self.entries.lock();
        entries.iter().filter(|entry| !entry.job.has_ended()).cloned().collect()
    }

    /// Returns a line for each job that has not ended.
    pub fn list(&self) -> String {
        let line = |entry: Entry| {
            let condition = if entry.job.is_stopped() { "stopped" } else { "running" };
            alloc::format!("[{}] {condition}  {}\n", entry.number, entry.text)
        };
        self.present().into_iter().map(line).collect()
    }

    /// Returns whether a job is stopped.
    pub fn has_stopped(&self) -> bool {
        self.present().iter().any(|entry| entry.job.is_stopped())
    }

    /// Finds a job that has not ended.
    pub fn find(&self, number: u32) -> Option<Arc<Job>> {
        self.present().into_iter().find(|entry| entry.number == number).map(|entry| entry.job)
    }

    /// Finds a job that has not ended; without a number the last stopped one, or else the last one.
    fn choose(&self, number: Option<u32>) -> Option<Entry> {
        let mut present = self.present();
        let place = match number {
            Some(number) => present.iter().position(|entry| entry.number == number)?,
            None => present.iter().rposition(|entry| entry.job.is_stopped()).or(present.len().checked_sub(1))?,
        };
        Some(present.swap_remove(place))
    }

    /// Returns the job that `fg` has brought to the foreground.
    pub fn in_foreground(&self) -> Option<Arc<Job>> {
        self.in_foreground.lock().clone()
    }

    /// Lets a job go on in the background. Returns its number and text; `None` if there is no such job.
    pub fn resume(&self, number: Option<u32>) -> Option<(u32, String)> {
        let entry = self.choose(number)?;
        entry.job.resume(false);
        Some((entry.number, entry.text))
    }

    /// Lets a job go on in the foreground, and waits until it ends or stops; `show` gets its text. Returns `None` if
    /// there is no such job.
    ///
    /// # Cancellation
    ///
    /// Strict. The job is in the background then.
    pub async fn to_foreground(&self, number: Option<u32>, show: impl AsyncFnOnce(&str)) -> Option<Ran> {
        let entry = self.choose(number)?;
        show(&entry.text).await;
        let foreground = Foreground { jobs: self, job: entry.job };
        *self.in_foreground.lock() = Some(foreground.job.clone());
        foreground.job.resume(true);
        foreground.job.until(|job| job.has_ended() || !job.is_in_foreground()).await;
        let result = *foreground.job.result.lock();
        Some(result.unwrap_or(Ok(STOPPED)))
    }

    /// Waits until a job ends or is stopped, and returns its status; `None` if there is no such job.
    ///
    /// # Cancellation
    ///
    /// Strict.
    pub async fn wait_for(&self, number: u32) -> Option<u8> {
        let job = self.find(number)?;
        job.until(|job| job.has_ended() || job.is_stopped()).await;
        let result = *job.result.lock();
        Some(result.map_or(STOPPED, |ran| ran.unwrap_or(run::INTERRUPTED)))
    }

    /// Waits until each job that was started after this one has ended or is stopped: a job cannot wait for itself, nor
    /// for one that may wait for it.
    ///
    /// # Cancellation
    ///
    /// Strict.
    pub async fn wait(&self, own: &Job) {
        let own = own.number.load(Ordering::Relaxed);
        while let Some(next) = self.present().iter().find(|entry| entry.number > own && !entry.job.is_stopped()) {
            self.wait_for(next.number).await;
        }
    }

    /// Ends all jobs that are stopped, and waits for the others.
    pub async fn close(&self, own: &Job) {
        self.is_closed.store(true, Ordering::Relaxed);
        for entry in self.present().iter().filter(|entry| entry.job.is_stopped()) {
            // One that has ended meanwhile needs no signal.
            let _ = entry.job.kill(signal::HUP);
        }
        self.wait(own).await;
    }
}

/// Lets a command notice that its job was stopped, before the terminal is the shell's again: a read that goes on would
/// take the first key of the next line. Returns the result of a command that ends meanwhile.
///
/// # Cancellation
///
/// Strict.
pub async fn notice_stop(work: &mut Work) -> Option<Ran> {
    match select(work, core::future::ready(())).await {
        Either::First(ran) => Some(ran),
        Either::Second(()) => None,
    }
}

/// Runs a job's command in the background; the foreground comes and goes. Reports stops, and the end if nobody waits
/// for it.
async fn attend(jobs: Arc<Jobs>, entry: Entry, mut work: Work, errors: Arc<Descriptor>) {
    let Entry { number, text, job } = entry;
    // The stop that has made it a job of the background is reported already.
    let mut reported = job.stops.load(Ordering::Relaxed);
    let ran = loop {
        let change = job.changes.listen();
        if job.is_cancelled.load(Ordering::Relaxed) {
            break Err(Stop::Interrupted);
        }
        let stops = job.stops.load(Ordering::Relaxed);
        if stops != reported {
            reported = stops;
            if let Some(ran) = notice_stop(&mut work).await {
                break run::apart(ran);
            }
            job.leave_foreground();
            if jobs.is_closed.load(Ordering::Relaxed) {
                let _ = job.kill(signal::HUP);
            } else {
                state::complain(&errors, alloc::format!("[{number}] stopped: {text}")).await;
            }
            continue;
        }
        if let Either::First(ran) = select(&mut work, change).await {
            break run::apart(ran);
        }
    };
    drop(work);
    if job.is_interactive() && !job.is_in_foreground() {
        let end = match ran {
            Ok(0) => String::from("done"),
            Ok(status) => alloc::format!("ended with status {status}"),
            Err(_) => String::from("ended"),
        };
        state::complain(&errors, alloc::format!("[{number}] {end}: {text}")).await;
    }
    *job.result.lock() = Some(ran);
    job.changed();
}
