//! Other programs, and the promise that none outlives this one.
//!
//! An emulator that is left behind burns a core for ever and holds its port. So each program is started
//!
//! * in a process group of its own; dropping the [`Child`] ends the group: the program and all its descendants;
//! * entered in a list that [`end_all`] works off when a signal arrives ([`crate::interrupt`]), wherever the rest of
//!   this program is at that moment;
//! * through a guard, this same executable, that requests the kernel of the host to kill it when its parent dies and
//!   then becomes the program: that covers the case in which this program itself is killed.
//!
//! The guard exists because the request must be made by the child between `fork` and `exec`, where Rust code is unsafe
//! to run; after `exec` it is safe, and this crate forbids unsafe code.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitIdOptions};

/// The hidden subcommand that is the guard.
pub const GUARD: &str = "guard";

/// The way in which a program is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Killed at any moment.
    Kill,
    /// Asked to end, and waited for: it holds state that must be put back, such as the package database.
    Ask,
}

/// The process groups that are alive.
static GROUPS: Mutex<Vec<(Pid, Ending)>> = Mutex::new(Vec::new());

/// Longest wait for a program that is asked to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A command that will run behind the guard.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    // Within this crate's own tests the executable is the test harness, which is no guard.
    if cfg!(test) {
        return Command::new(program);
    }
    // This path stands for the running program even when a build has replaced its file.
    let mut command = Command::new("/proc/self/exe");
    command.arg(GUARD).arg(std::process::id().to_string()).arg("--").arg(program);
    command
}

/// Runs the guard. Returns only if it failed.
pub fn guard(parent: i32, command: &[std::ffi::OsString]) -> io::Error {
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // The parent may have died before the request was made.
    if rustix::process::getppid().map(Pid::as_raw_pid) != Some(parent) {
        return io::Error::other("the parent process has ended");
    }
    Command::new(&command[0]).args(&command[1..]).exec()
}

/// Ends every running program. For the signal handler.
pub fn end_all() {
    let groups = GROUPS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    for &(group, ending) in &groups {
        let _ = rustix::process::kill_process_group(group, signal(ending));
    }
    let deadline = Instant::now() + PATIENCE;
    for &(group, ending) in &groups {
        while ending == Ending::Ask
            && Instant::now() < deadline
            && rustix::process::test_kill_process_group(group).is_ok()
        {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn signal(ending: Ending) -> Signal {
    match ending {
        Ending::Kill => Signal::KILL,
        Ending::Ask => Signal::INT,
    }
}

/// Returns the processor time of all programs that have ended, with the programs that these started and waited for;
/// zero where the host does not tell.
pub fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    children_ticks(&text).map_or(Duration::ZERO, |ticks| Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Unit of the times that Linux writes into `/proc`, on every processor.
const TICKS_PER_SECOND: u64 = 100;

/// Parses `cutime` and `cstime` of a process's `stat`, and returns their sum.
fn children_ticks(stat: &str) -> Option<u64> {
    // The program's name, which may contain anything, ends at the last parenthesis; the state is field 3.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(16 - 3).map(|field| field.parse::<u64>().ok());
    Some(times.next()?? + times.next()??)
}

/// A running program. Dropping it ends it.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    group: Pid,
    ending: Ending,
    ended: Option<ExitStatus>,
}

impl Child {
    /// Starts a command made by [`command`].
    ///
    /// The calling thread must outlive the program: the host's kernel takes its end for that of the parent.
    ///
    /// # Errors
    ///
    /// The host could not start a process. A program that does not exist is status 127 of the guard instead.
    pub fn start(command: &mut Command, ending: Ending) -> io::Result<Child> {
        // The list stays locked so that a signal comes either before the program starts or after it is listed.
        let mut groups = GROUPS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if crate::interrupt::requested() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let process = command.process_group(0).spawn()?;
        let group = Pid::from_child(&process);
        groups.push((group, ending));
        Ok(Child { process, group, ending, ended: None })
    }

    /// The pipes to and from the program, each to be taken once.
    pub fn pipes(&mut self) -> &mut std::process::Child {
        &mut self.process
    }

    /// Stops the program and its descendants, until [`go_on`](Self::go_on).
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn stand_still(&self) -> io::Result<()> {
        Ok(rustix::process::kill_process_group(self.group, Signal::STOP)?)
    }

    /// Ends a standstill.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn go_on(&self) -> io::Result<()> {
        Ok(rustix::process::kill_process_group(self.group, Signal::CONT)?)
    }

    /// Waits for the end, until `deadline` at most.
    ///
    /// # Errors
    ///
    /// The host does not let this process wait for its child, which does not happen.
    pub fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.has_ended()? {
                return Ok(Some(status));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Waits for the end.
    ///
    /// # Errors
    ///
    /// As [`Child::wait_until`].
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        if self.ended.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while let Err(error) = rustix::process::waitid(rustix::process::WaitId::Pid(self.group), options) {
                if error != rustix::io::Errno::INTR {
                    return Err(error.into());
                }
            }
        }
        self.has_ended()?.ok_or_else(|| io::Error::other("a process that has ended cannot be waited for"))
    }

    /// Ends the program, and everything it has started, and waits for it.
    pub fn end(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let _ = rustix::process::kill_process_group(self.group, signal(self.ending));
        if !matches!(self.wait_until(Instant::now() + PATIENCE), Ok(Some(_))) {
            let _ = rustix::process::kill_process_group(self.group, Signal::KILL);
            let _ = self.wait();
        }
    }

    /// Reaps the process under the list's lock: once it is reaped its number may belong to another program, which a
    /// signal must not reach.
    fn has_ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            let mut groups = GROUPS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Some(status) = self.process.try_wait()? {
                groups.retain(|&(group, _)| group != self.group);
                self.ended = Some(status);
            }
        }
        Ok(self.ended)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a command to its end, within `limit`, and collects its output.
///
/// # Errors
///
/// It could not be started, or [`io::ErrorKind::TimedOut`] when it was ended at the limit.
pub fn output(command: &mut Command, ending: Ending, limit: Duration) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Child::start(command, ending)?;
    let stdout = read_in_background(child.pipes().stdout.take());
    let stderr = read_in_background(child.pipes().stderr.take());
    let status = child.wait_until(Instant::now() + limit)?;
    child.end();
    let collect = |thread: thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    let (stdout, stderr) = (collect(stdout), collect(stderr));
    match status {
        Some(status) => Ok(Output { status, stdout, stderr }),
        None => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn read_in_background(pipe: Option<impl io::Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_alive(pid: &str) -> bool {
        // A process that was not reaped yet is a zombie, state Z.
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn the_processor_time_of_ended_programs_is_told() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 100 0 0 0 11 12 1300 14 20 0 1 0 73262";
        assert_eq!(children_ticks(stat), Some(1314));
        for illegal in ["", "7 (a", "7 (a) R 1 7", "7 (a) R 1 7 7 0 -1 4194304 100 0 0 0 11 12 x 14 20"] {
            assert_eq!(children_ticks(illegal), None, "{illegal}");
        }
        let before = processor_time();
        let mut command = command("sh");
        command.args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"]);
        output(&mut command, Ending::Kill, Duration::from_secs(60)).unwrap();
        assert!(processor_time() > before);
    }

    #[test]
    fn output_is_collected_and_status_passed_on() {
        let mut command = command("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let output = output(&mut command, Ending::Kill, Duration::from_secs(60)).unwrap();
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn a_limit_ends_the_program_and_its_children() {
        let file = std::env::temp_dir().join(format!("xtask-children-{}", std::process::id()));
        let mut command = command("sh");
        command.arg("-c").arg(format!("sleep 100 & echo $! > {}; wait", file.display()));
        // On a slow host the program may not have come to its first step within the limit.
        let grandchild = (0..8).find_map(|times| {
            let result = output(&mut command, Ending::Kill, Duration::from_millis(300 << times));
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
            std::fs::read_to_string(&file).ok().filter(|number| number.ends_with('\n'))
        });
        let grandchild = grandchild.unwrap();
        std::fs::remove_file(&file).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while is_alive(grandchild.trim()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(!is_alive(grandchild.trim()));
    }

    #[test]
    fn dropping_ends_a_program() {
        let child = Child::start(command("sleep").arg("100"), Ending::Kill).unwrap();
        let pid = child.group.as_raw_pid().to_string();
        assert!(is_alive(&pid));
        drop(child);
        assert!(!is_alive(&pid));
    }
}
