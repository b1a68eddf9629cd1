//! A running machine: QEMU as a child, its serial line, and its end.
//!
//! A thread of its own reads the serial line, writes it to a log file and passes on whole lines. A wait for a line has
//! a deadline, and also returns if the kernel panics, or QEMU ends. Those outcomes are a [`Failure`], which is one
//! sentence about the cause, and for a panic the report with function names.

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use load::{Continue, Measurement, Plan, Stage};

use crate::board::{Board, Configuration};
use crate::children::{self, Child, Ending};
use crate::emulator;
use crate::screen::Screen;
use crate::serial::{Lines, end_line, is_panic};
use crate::symbols::{Symbols, annotate_report};

/// A TCP port of the host that leads to one of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Port on 127.0.0.1 of this host.
    pub host: u16,
    /// Port in the machine.
    pub guest: u16,
}

/// Reads `HOST:GUEST`.
///
/// # Errors
///
/// It is not two port numbers.
pub fn forward(text: &str) -> Result<Forward, String> {
    let parse = |port: &str| port.parse::<u16>().ok().filter(|port| *port != 0);
    match text.split_once(':').map(|(host, guest)| (parse(host), parse(guest))) {
        Some((Some(host), Some(guest))) => Ok(Forward { host, guest }),
        _ => Err("give two port numbers, of this host and of the machine, as in 8000:7000".into()),
    }
}

/// Longest time of a panic's report from its first line to the end of QEMU.
const PANIC_LIMIT: Duration = Duration::from_secs(20);

/// Destinations of the machine's output.
pub enum Echo {
    /// The log file only.
    LogOnly,
    /// Standard output as well, as it comes, through this filter.
    Terminal(Screen),
}

/// A failure of a machine during a wait.
#[derive(Debug)]
pub struct Failure {
    /// Kind of the failure.
    pub kind: FailureKind,
    /// Path of the log with the machine's whole output.
    pub log: PathBuf,
}

/// The kinds of failures.
#[derive(Debug)]
pub enum FailureKind {
    /// The kernel panicked.
    Panicked {
        /// Its report, with function names.
        report: Vec<String>,
        /// QEMU's status, if the kernel ended it.
        status: Option<ExitStatus>,
    },
    /// QEMU ended before the expected line.
    Ended {
        /// QEMU's status.
        status: Option<ExitStatus>,
        /// QEMU's own messages.
        said: String,
        /// The expected line, in words.
        expected: String,
        /// The last line that the machine printed.
        last_line: Option<String>,
    },
    /// QEMU ended as expected, but with a failure status.
    EndedBadly {
        /// QEMU's status.
        status: ExitStatus,
        /// QEMU's own messages.
        said: String,
    },
    /// The port on the host side is taken.
    PortInUse(u16),
    /// The expected line did not come in time.
    TooLate {
        /// The expected line, in words.
        expected: String,
        /// Length of the wait.
        limit: Duration,
        /// The last line that the machine printed.
        last_line: Option<String>,
    },
}

impl Failure {
    /// Returns whether the only failure is the machine's status.
    pub fn is_bad_end(&self) -> bool {
        matches!(self.kind, FailureKind::EndedBadly { .. })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FailureKind::Panicked { report, .. } => {
                writeln!(formatter, "the kernel panicked. Its report:")?;
                for line in report {
                    writeln!(formatter, "    {line}")?;
                }
            }
            FailureKind::Ended { status, said, expected, last_line } => {
                let status = match status {
                    Some(status) => status.to_string(),
                    None => "no status".into(),
                };
                writeln!(formatter, "the machine ended ({status}) before {expected}.")?;
                if let Some(line) = last_line {
                    writeln!(formatter, "The last line it printed is `{}`.", line.trim())?;
                }
                for line in said.lines() {
                    writeln!(formatter, "    {line}")?;
                }
            }
            FailureKind::EndedBadly { status, said } => {
                writeln!(formatter, "the machine ended with a failure ({status}).")?;
                for line in said.lines() {
                    writeln!(formatter, "    {line}")?;
                }
            }
            FailureKind::PortInUse(port) => writeln!(
                formatter,
                "port {port} of this host is in use; name another one, or leave the choice to this program."
            )?,
            FailureKind::TooLate { expected, limit, last_line } => {
                write!(formatter, "{} seconds were not enough: waited for {expected}", limit.as_secs())?;
                match last_line {
                    Some(line) => writeln!(formatter, "; the last line the machine printed is `{}`.", line.trim())?,
                    None => writeln!(formatter, " and the machine printed nothing at all.")?,
                }
            }
        }
        write!(formatter, "The machine's serial log is {}", self.log.display())
    }
}

impl std::error::Error for Failure {}

/// A running machine. Dropping it ends QEMU.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    lines: Receiver<String>,
    /// Is closed when the machine has written its first byte, or ends.
    has_spoken: Option<Receiver<Infallible>>,
    reader: Option<JoinHandle<()>>,
    complaints: Option<JoinHandle<String>>,
    log: PathBuf,
    kernel: PathBuf,
    ports: Vec<u16>,
    last_line: Option<String>,
    status_on_console: bool,
}

impl Guest {
    /// Starts QEMU: the host's, or the one that was built for the machine.
    ///
    /// # Errors
    ///
    /// The machine's emulator has not been built, the host cannot start it, or the log cannot be written. QEMU's own
    /// objections are reported by the first wait for a line.
    pub fn start(qemu: &Path, board: &Board, configuration: &Configuration, log: &Path, echo: Echo) -> Result<Guest> {
        for forward in &configuration.forwards {
            if let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, forward.host)) {
                if error.kind() == io::ErrorKind::AddrInUse {
                    return Err(Failure { kind: FailureKind::PortInUse(forward.host), log: log.to_path_buf() }.into());
                }
                bail!("port {} of this host cannot be used: {error}", forward.host);
            }
        }
        let mut command = children::command(emulator::program(board, configuration.machine, qemu)?);
        command.args(board.arguments(configuration));
        let mut guest = Guest::of(command, "QEMU", &configuration.kernel, log, echo)?;
        guest.ports = configuration.forwards.iter().map(|forward| forward.host).collect();
        guest.status_on_console = board.qemu.status_on_console;
        Ok(guest)
    }

    /// Starts a program that is a machine, with its serial line on standard output. `name` is that of the program, for
    /// people.
    ///
    /// # Errors
    ///
    /// The program cannot be started, or the log cannot be written.
    pub fn of(mut command: Command, name: &str, kernel: &Path, log: &Path, echo: Echo) -> Result<Guest> {
        if let Some(directory) = log.parent() {
            std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(match &echo {
            Echo::LogOnly => Stdio::null(),
            Echo::Terminal(_) => Stdio::piped(),
        });
        let child = Child::start(&mut command, Ending::Kill);
        let mut child = child.with_context(|| format!("{name} could not be started"))?;
        let stdout = child.pipes().stdout.take().context("the machine has no output")?;
        let mut stderr = child.pipes().stderr.take().context("the machine has no output for errors")?;
        let (sender, lines) = mpsc::channel();
        let (speaks, has_spoken) = mpsc::channel();
        let reader = thread::spawn(move || {
            let serial = Speaking { serial: stdout, speaks: Some(speaks) };
            read_serial(serial, file, echo, &sender);
        });
        let complaints = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Guest {
            child,
            lines,
            has_spoken: Some(has_spoken),
            reader: Some(reader),
            complaints: Some(complaints),
            log: log.to_path_buf(),
            kernel: kernel.to_path_buf(),
            ports: Vec::new(),
            last_line: None,
            status_on_console: false,
        })
    }

    /// Returns the pipe for typed characters, once.
    pub fn input(&mut self) -> Option<impl Write + Send + 'static> {
        self.child.pipes().stdin.take()
    }

    /// Returns the end of a channel that is closed when the machine has written its first byte or ends, once.
    pub fn first_byte(&mut self) -> Option<Receiver<Infallible>> {
        self.has_spoken.take()
    }

    /// Waits for a line from which `wanted` returns a value.
    ///
    /// # Errors
    ///
    /// A panic, QEMU's end, or `limit` came first. `expected` describes the line in words.
    pub fn wait_for<T>(
        &mut self,
        expected: &str,
        limit: Duration,
        mut wanted: impl FnMut(&str) -> Option<T>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if is_panic(&line) {
                        return Err(self.panicked(line));
                    }
                    if let Some(status) = self.status_on(&line) {
                        return Err(self.ended_on_console(status, expected));
                    }
                    if let Some(result) = wanted(&line) {
                        return Ok(result);
                    }
                    if !line.trim().is_empty() {
                        self.last_line = Some(line);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(expected)),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.failure(FailureKind::TooLate {
                        expected: expected.to_string(),
                        limit,
                        last_line: self.last_line(),
                    }));
                }
            }
        }
    }

    /// Returns whether the machine has failed so far, without waiting.
    ///
    /// # Errors
    ///
    /// It has panicked or ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        loop {
            match self.lines.try_recv() {
                Ok(line) if is_panic(&line) => return Err(self.panicked(line)),
                Ok(line) => match self.status_on(&line) {
                    Some(status) => return Err(self.ended_on_console(status, "it was to end")),
                    None => self.last_line = Some(line),
                },
                Err(mpsc::TryRecvError::Empty) => return Ok(()),
                Err(mpsc::TryRecvError::Disconnected) => return Err(self.ended("it was to end")),
            }
        }
    }

    /// Sends requests to a server in the machine, and watches the machine meanwhile; `show` gets the current stage.
    ///
    /// # Errors
    ///
    /// The machine failed, which explains wrong or missing answers; or the host cannot send. The caller checks for
    /// wrong and lost answers.
    pub fn ask(&mut self, plan: &Plan, show: &mut dyn FnMut(Stage)) -> Result<Measurement> {
        let mut failure = None;
        let result = load::run(plan, &mut |stage| {
            show(stage);
            match self.check() {
                Ok(()) => Continue::Yes,
                Err(error) => {
                    failure = Some(error);
                    Continue::No
                }
            }
        });
        match failure {
            Some(failure) => Err(failure.into()),
            None => Ok(result?),
        }
    }

    /// Waits for the machine to end by itself, and with success.
    ///
    /// # Errors
    ///
    /// It panics, ends with a failure, or still runs at the limit.
    pub fn wait_for_end(&mut self, limit: Duration) -> Result<(), Failure> {
        match self.wait_for("its end", limit, |_| None::<()>) {
            Err(Failure { kind: FailureKind::Ended { status: Some(status), said, .. }, log }) => {
                if status.success() {
                    Ok(())
                } else {
                    Err(Failure { kind: FailureKind::EndedBadly { status, said }, log })
                }
            }
            Err(failure) => Err(failure),
            Ok(()) => unreachable!("no line is wanted"),
        }
    }

    /// Stops the machine, so that it takes no time of the host, until [`go_on`](Self::go_on). Programs in it see a jump
    /// of time.
    pub fn stand_still(&self) {
        // An error means a machine that has ended; the next wait reports that.
        let _ = self.child.stand_still();
    }

    /// Ends a standstill.
    pub fn go_on(&self) {
        let _ = self.child.go_on();
    }

    /// Returns the path of the log with the machine's whole output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the last line that was not waited for.
    pub fn last_line(&self) -> Option<String> {
        self.last_line.clone()
    }

    /// Ends QEMU.
    pub fn end(&mut self) {
        self.child.end();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }

    fn failure(&self, kind: FailureKind) -> Failure {
        Failure { kind, log: self.log.clone() }
    }

    /// Collects the rest of a panic's report.
    fn panicked(&mut self, first: String) -> Failure {
        let deadline = Instant::now() + PANIC_LIMIT;
        let mut report = vec![first];
        let mut status = None;
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            status = self.status_on(&line);
            if status.is_some() {
                break;
            }
            report.push(line);
        }
        if status.is_none() {
            status = self.child.wait_until(deadline).ok().flatten();
        }
        self.child.end();
        if let Ok(symbols) = Symbols::load(&self.kernel) {
            report = annotate_report(&symbols, &report);
        }
        self.failure(FailureKind::Panicked { report, status })
    }

    /// Returns the status in a line of a machine that cannot pass it on in another way.
    fn status_on(&self, line: &str) -> Option<ExitStatus> {
        let code = end_line(line).filter(|_| self.status_on_console)?;
        Some(ExitStatus::from_raw(i32::from(code) << 8))
    }

    /// Ends QEMU, since the machine cannot.
    fn ended_on_console(&mut self, status: ExitStatus, expected: &str) -> Failure {
        self.child.end();
        let last_line = self.last_line();
        let (said, expected) = (String::new(), expected.to_string());
        self.failure(FailureKind::Ended { status: Some(status), said, expected, last_line })
    }

    fn ended(&mut self, expected: &str) -> Failure {
        // The serial line is closed, so the end is only a moment away.
        let status = self.child.wait_until(Instant::now() + PANIC_LIMIT).ok().flatten();
        self.child.end();
        let said = self.complaints.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if said.contains("Could not set up host forwarding rule")
            && let Some(port) = self.ports.first()
        {
            return self.failure(FailureKind::PortInUse(*port));
        }
        let last_line = self.last_line();
        self.failure(FailureKind::Ended { status, said, expected: expected.to_string(), last_line })
    }
}

/// A serial line that tells of its first byte, by closing a channel.
struct Speaking<R> {
    serial: R,
    speaks: Option<mpsc::Sender<Infallible>>,
}

impl<R: Read> Read for Speaking<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.serial.read(buffer);
        if read.is_ok() {
            self.speaks = None;
        }
        read
    }
}

/// Reads the serial line to its end.
fn read_serial(mut serial: impl Read, mut log: File, mut echo: Echo, lines: &mpsc::Sender<String>) {
    let mut whole = Lines::default();
    let mut part = [0; 4096];
    loop {
        let bytes = match serial.read(&mut part) {
            Ok(0) => break,
            Ok(length) => &part[..length],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        // A log that cannot be written must not stop the machine.
        let _ = log.write_all(bytes);
        if let Echo::Terminal(screen) = &mut echo {
            let _ = screen.show(bytes, io::stdout().lock());
        }
        whole.feed(bytes, |line| {
            let _ = lines.send(line);
        });
    }
    if let Echo::Terminal(screen) = echo {
        let _ = screen.finish(io::stdout().lock());
    }
    if let Some(line) = whole.finish() {
        let _ = lines.send(line);
    }
}

/// Returns a port of the host that is free at this moment.
///
/// # Errors
///
/// The host has none left.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("this host has no free TCP port")?;
    Ok(listener.local_addr()?.port())
}

/// Returns the address of a forwarded port.
pub fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{Clock, Network, Variant};
    use std::os::unix::fs::PermissionsExt;

    /// A machine made of a shell script, and a directory that is removed with it.
    struct Script {
        directory: PathBuf,
    }

    impl Script {
        fn new(name: &str, script: &str) -> Script {
            let directory = std::env::temp_dir().join(format!("xtask-guest-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let file = directory.join("qemu");
            std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
            Script { directory }
        }

        fn start(&self, forwards: Vec<Forward>) -> Result<Guest> {
            let board = Board::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../boards/qemu-virt.toml")).unwrap();
            let configuration = Configuration {
                machine: Variant::Aia,
                harts: 1,
                memory: "128M".into(),
                kernel: "/nowhere".into(),
                initramfs: "/nowhere".into(),
                command_line: String::new(),
                network: Network::default(),
                forwards,
                clock: Clock::Host,
                gdb_port: None,
                disks: Vec::new(),
                disk_pace: None,
                share: None,
                flash: None,
            };
            loop {
                let qemu = self.directory.join("qemu");
                match Guest::start(&qemu, &board, &configuration, &self.log(), Echo::LogOnly) {
                    // Another test forked while the script was open for writing.
                    Err(error) if format!("{error:#}").contains("Text file busy") => thread::yield_now(),
                    result => return result,
                }
            }
        }

        fn log(&self) -> PathBuf {
            self.directory.join("logs/serial.log")
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    const LIMIT: Duration = Duration::from_secs(60);

    fn is(text: &str) -> impl Fn(&str) -> Option<String> {
        move |line| (line == text).then(|| line.to_string())
    }

    #[test]
    fn a_line_that_comes_is_found_and_everything_is_logged() {
        let script = Script::new("line", "echo first; echo ready; sleep 100");
        let mut guest = script.start(Vec::new()).unwrap();
        assert_eq!(guest.wait_for("ready", LIMIT, is("ready")).unwrap(), "ready");
        guest.check().unwrap();
        guest.end();
        assert_eq!(std::fs::read_to_string(script.log()).unwrap(), "first\nready\n");
    }

    #[test]
    fn a_panic_is_reported_with_the_lines_after_it() {
        let script = Script::new("panic", "echo ok; echo 'KERNEL PANIC on hart 1: why'; echo '  #0 0x10'; exit 1");
        let mut guest = script.start(Vec::new()).unwrap();
        let failure = guest.wait_for("ready", LIMIT, is("ready")).unwrap_err();
        let FailureKind::Panicked { report, status } = &failure.kind else { panic!("{failure}") };
        assert_eq!(report, &["KERNEL PANIC on hart 1: why", "  #0 0x10"]);
        assert_eq!(status.and_then(|status| status.code()), Some(1));
        let text = failure.to_string();
        assert!(text.contains("the kernel panicked") && text.contains("serial.log"), "{text}");
    }

    #[test]
    fn a_panic_that_does_not_end_the_machine_is_reported_all_the_same() {
        let script = Script::new("hang", "echo 'KERNEL PANIC on hart 0'; sleep 100");
        let mut guest = script.start(Vec::new()).unwrap();
        let started = Instant::now();
        assert!(matches!(
            guest.wait_for("x", LIMIT, is("x")).unwrap_err().kind,
            FailureKind::Panicked { status: None, .. }
        ));
        assert!(started.elapsed() < LIMIT);
    }

    #[test]
    fn an_early_end_is_reported_with_the_output_of_qemu() {
        let script = Script::new("end", "echo 'no such machine' >&2; exit 7");
        let mut guest = script.start(Vec::new()).unwrap();
        let text = guest.wait_for("the server's first words", LIMIT, is("x")).unwrap_err().to_string();
        assert!(text.starts_with("the machine ended (exit status: 7) before the server's first words."), "{text}");
        assert!(text.contains("no such machine"), "{text}");
    }

    #[test]
    fn silence_ends_at_the_limit_with_the_last_line() {
        let script = Script::new("silence", "echo booting; echo booted; sleep 100");
        let mut guest = script.start(Vec::new()).unwrap();
        guest.wait_for("booted", LIMIT, is("booted")).unwrap();
        let failure = guest.wait_for("the server", Duration::from_secs(1), is("x")).unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("1 seconds were not enough: waited for the server"), "{text}");
        assert!(text.contains("`booting`"), "{text}");
    }

    #[test]
    fn the_end_is_success_only_with_status_zero() {
        let (zero, one) = (Script::new("zero", "echo bye"), Script::new("one", "exit 1"));
        let mut guest = zero.start(Vec::new()).unwrap();
        guest.wait_for_end(LIMIT).unwrap();
        let mut guest = one.start(Vec::new()).unwrap();
        let failure = guest.wait_for_end(LIMIT).unwrap_err();
        assert!(failure.is_bad_end(), "{failure}");
        assert!(failure.to_string().starts_with("the machine ended with a failure (exit status: 1)."), "{failure}");
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let script = Script::new("port", "sleep 100");
        let error = script.start(vec![Forward { host: port, guest: 7000 }]).unwrap_err().to_string();
        assert!(error.contains(&format!("port {port} of this host is in use")), "{error}");

        let free = free_port().unwrap();
        let script = Script::new("race", "echo \"Could not set up host forwarding rule\" >&2; exit 1");
        let mut guest = script.start(vec![Forward { host: free, guest: 7000 }]).unwrap();
        let failure = guest.wait_for("x", LIMIT, is("x")).unwrap_err();
        assert!(matches!(failure.kind, FailureKind::PortInUse(port) if port == free), "{failure}");
    }

    #[test]
    fn forwards_are_two_ports() {
        assert_eq!(forward("80:7000"), Ok(Forward { host: 80, guest: 7000 }));
        for wrong in ["", "80", ":", "80:", "0:1", "a:b", "80:70000", "1:2:3"] {
            assert!(forward(wrong).is_err(), "{wrong}");
        }
    }
}
