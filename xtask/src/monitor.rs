//! `trace` and `top`: a machine in which the program `monitor` starts another one and reports over TCP about the
//! system.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use abi_unix::trace::{
    HART_WORDS, HartSnapshot, PROCESS_WORDS, ProcessSnapshot, ProgramName, Record, SNAPSHOT_HEAD_WORDS, SNAPSHOT_MAGIC,
    STREAM_MAGIC,
};
use anyhow::{Context as _, Result, bail};

use crate::board::Configuration;
use crate::cli;
use crate::context::{Context as Tools, command_line};
use crate::guest::{self, Echo, Forward, Guest};
use crate::interrupt;
use crate::own;
use crate::perfetto;

/// The program in the machine, and the port where it listens.
const MONITOR: &str = "monitor";
const PORT: u16 = 7777;
/// Longest time of the boot.
const BOOT: Duration = Duration::from_secs(120);
/// Interval between two checks whether the machine still runs.
const LOOK: Duration = Duration::from_millis(200);
/// Largest part of a trace that is read, to keep it in memory.
const MOST_BYTES: usize = 1 << 29;

/// A machine whose monitor is connected.
struct Watched {
    guest: Guest,
    stream: TcpStream,
}

fn start(tools: &Tools, watch: &cli::Watch, what: &str, kernel_words: &str) -> Result<Watched> {
    let (toolchain, products, name) = own::prepare(tools, watch.program.trim_start_matches("/bin/"), &[])?;
    let words = kernel_words.to_string() + &watch.boot.scheduling.words();
    let command_line = words + &monitoring(what, &name, &watch.arguments)?;
    let mut configuration = tools.configuration(&products, &watch.boot.machine, command_line);
    watch.boot.connect(&mut configuration)?;
    Watched::start(tools, &toolchain.qemu, configuration, &tools.log(what))
}

/// Returns the kernel's command line for a program and its monitor.
fn monitoring(what: &str, program: &str, arguments: &[String]) -> Result<String> {
    let mut words = vec![what.to_string(), program.to_string()];
    words.extend_from_slice(arguments);
    command_line(MONITOR, &words)
}

/// Returns the kernel's command line for a program that is traced, with so many records for each hart.
///
/// # Errors
///
/// An argument cannot be passed.
pub fn tracing(records: u32, program: &str, arguments: &[String]) -> Result<String> {
    Ok(format!("trace={records} {}", monitoring("trace", program, arguments)?))
}

/// Boots a machine with such a command line, and returns the records of the trace and the ticks of a second.
///
/// # Errors
///
/// The machine cannot be started, fails, or sends something else.
pub fn records(tools: &Tools, qemu: &Path, configuration: Configuration, log: &Path) -> Result<(Vec<Record>, u64)> {
    Watched::start(tools, qemu, configuration, log)?.records(None)
}

impl Watched {
    fn start(tools: &Tools, qemu: &Path, mut configuration: Configuration, log: &Path) -> Result<Watched> {
        let port = guest::free_port()?;
        configuration.forwards.push(Forward { host: port, guest: PORT });
        let mut guest = Guest::start(qemu, &tools.board, &configuration, log, Echo::LogOnly)?;
        guest.wait_for("the monitor to listen", BOOT, |line| line.contains("monitor: listening").then_some(()))?;
        let stream = TcpStream::connect(guest::address(port)).context("the monitor in the machine does not answer")?;
        stream.set_read_timeout(Some(LOOK))?;
        Ok(Watched { guest, stream })
    }

    /// Reads the records of a trace until the program or the time has ended, ends the machine, and returns them with
    /// the ticks of a second.
    fn records(mut self, limit: Option<u64>) -> Result<(Vec<Record>, u64)> {
        let deadline = limit.map(|limit| Instant::now() + Duration::from_secs(limit));
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        let goes_on = || deadline.is_none_or(|deadline| Instant::now() < deadline) && !interrupt::ends_observation();
        while bytes.len() < MOST_BYTES && goes_on() {
            match self.read(&mut buffer)? {
                Some(length) => bytes.extend_from_slice(&buffer[..length]),
                None => break,
            }
        }
        self.guest.end();
        let head = words(&bytes[..bytes.len().min(32)]);
        let [STREAM_MAGIC, ticks_per_second, _, _] = head[..] else {
            bail!("the data from the machine is no trace; its serial log is {}", self.guest.log().display());
        };
        Ok((perfetto::parse(&bytes[32..]), ticks_per_second))
    }

    /// Reads the available bytes, up to the buffer's length; `None` at the end of the stream, 0 if nothing came for a
    /// while.
    fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        match self.stream.read(buffer) {
            Ok(0) => Ok(None),
            Ok(length) => Ok(Some(length)),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                self.guest.check()?;
                Ok(Some(0))
            }
            // No orderly end of the connection, as when QEMU ends.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error).context("the connection to the machine failed"),
        }
    }
}

/// Converts little-endian bytes to words.
fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("chunks of eight"))).collect()
}

/// Runs a program and writes its scheduling trace to a file.
///
/// # Errors
///
/// The machine cannot be built or started, or fails; the file cannot be written.
pub fn trace(tools: &Tools, arguments: &cli::Trace) -> Result<()> {
    let file = arguments.output.clone().unwrap_or_else(|| tools.workspace.products().join("trace.pftrace"));
    let records = format!("trace={} ", arguments.records);
    let watched = start(tools, &arguments.watch, "trace", &records)?;
    let log = watched.guest.log().display();
    eprintln!("Tracing, until the program's end or Ctrl-C; the console of the machine is in {log}");
    interrupt::spare_first();
    let (records, ticks_per_second) = watched.records(arguments.watch.limit)?;
    let out = File::create(&file).with_context(|| format!("cannot write {}", file.display()))?;
    let summary = perfetto::convert(&records, ticks_per_second, BufWriter::new(out))
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("{} records over {:.3} s", summary.records, summary.length_ns as f64 / 1e9);
    if summary.lost > 0 {
        println!(
            "{} more did not fit into the kernel's buffers; try --records {}",
            summary.lost,
            arguments.records * 2
        );
    }
    if summary.without_track > 0 {
        println!(
            "{} coroutines behind the first {} have no rows for their states",
            summary.without_track,
            perfetto::MOST_COROUTINES
        );
    }
    println!("{}\nOpen it at https://ui.perfetto.dev", file.display());
    Ok(())
}

/// Runs a program and shows the system's activity on the terminal, until the program or the user ends it.
///
/// # Errors
///
/// The machine cannot be built or started, or fails.
pub fn top(tools: &Tools, arguments: &cli::Watch) -> Result<()> {
    let mut watched = start(tools, arguments, "top", "")?;
    let deadline = arguments.limit.map(|limit| Instant::now() + Duration::from_secs(limit));
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    let mut before: Option<Snapshot> = None;
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        match watched.read(&mut buffer)? {
            Some(length) => bytes.extend_from_slice(&buffer[..length]),
            None => break,
        }
        while let Some((snapshot, length)) = Snapshot::parse(&bytes)? {
            bytes.drain(..length);
            let text = snapshot.text(before.as_ref());
            let mut out = std::io::stdout().lock();
            if is_terminal {
                // Home, then each line and a clear to its end, then a clear of everything below. No terminal mode is
                // changed, so the terminal is in order whenever this ends.
                let text = match rustix::termios::tcgetwinsize(&out) {
                    Ok(size) if size.ws_col > 1 && size.ws_row > 2 => {
                        fit(&text, usize::from(size.ws_col), usize::from(size.ws_row))
                    }
                    _ => text,
                };
                let text = text.replace('\n', "\x1b[K\n");
                write!(out, "\x1b[H{text}\x1b[J")?;
            } else {
                writeln!(out, "{text}")?;
            }
            out.flush()?;
            before = Some(snapshot);
        }
    }
    watched.guest.end();
    if before.is_none() {
        bail!("the machine told nothing; its serial log is {}", watched.guest.log().display());
    }
    Ok(())
}

/// Returns the part of a text that a terminal of this size can show without wrapping or scrolling: the beginning of
/// each line, the first lines, and the last one. The last column and the last row stay free, for the cursor.
fn fit(text: &str, columns: usize, rows: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    let last = lines.len().saturating_sub(1);
    let shown = lines.iter().enumerate().filter(|(index, _)| *index == last || index + 2 < rows);
    shown.flat_map(|(_, line)| line.chars().take(columns - 1).chain(['\n'])).collect()
}

/// The activity of the machine at one moment.
#[derive(Debug, PartialEq)]
struct Snapshot {
    time_ns: u64,
    ready: u64,
    calls_in_flight: u64,
    free_frames: u64,
    harts: Vec<HartSnapshot>,
    processes: Vec<ProcessSnapshot>,
}

/// Nanoseconds since the snapshot before; 0 if there is none.
#[derive(Clone, Copy)]
struct Since(u64);

impl Since {
    /// Returns the growth of a counter in a second.
    fn rate(self, now: u64, then: Option<u64>) -> f64 {
        match then {
            Some(then) if self.0 > 0 => now.saturating_sub(then) as f64 / (self.0 as f64 / 1e9),
            _ => 0.0,
        }
    }
}

impl Snapshot {
    /// Parses the snapshot at the beginning of the bytes, and returns its length; `None` if it is incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<(Snapshot, usize)>> {
        let Some(head) = bytes.get(..SNAPSHOT_HEAD_WORDS * 8).map(words) else { return Ok(None) };
        if head[0] != SNAPSHOT_MAGIC || head[2] > 64 || head[3] > 1 << 16 {
            bail!("the data from the machine is no snapshot");
        }
        let (harts, processes) = (head[2] as usize, head[3] as usize);
        let length = (SNAPSHOT_HEAD_WORDS + harts * HART_WORDS + processes * PROCESS_WORDS) * 8;
        let Some(body) = bytes.get(SNAPSHOT_HEAD_WORDS * 8..length).map(words) else { return Ok(None) };
        let (of_harts, of_processes) = body.split_at(harts * HART_WORDS);
        let hart = |words: &[u64]| HartSnapshot::from_words(words.try_into().expect("as many as asked for"));
        let process = |words: &[u64]| ProcessSnapshot::from_words(words.try_into().expect("as many as asked for"));
        let snapshot = Snapshot {
            time_ns: head[1],
            ready: head[4],
            calls_in_flight: head[5],
            free_frames: head[6],
            harts: of_harts.chunks_exact(HART_WORDS).map(hart).collect(),
            processes: of_processes.chunks_exact(PROCESS_WORDS).map(process).collect(),
        };
        Ok(Some((snapshot, length)))
    }

    /// Formats the snapshot for people: rates since the snapshot before, or zeros.
    fn text(&self, before: Option<&Snapshot>) -> String {
        let since = Since(before.map_or(0, |before| self.time_ns.saturating_sub(before.time_ns)));
        let mut text = String::new();
        let _ = writeln!(
            text,
            "COPS  up {:.1} s   {} calls in flight   {} MiB free   waiting at {}",
            self.time_ns as f64 / 1e9,
            self.calls_in_flight,
            self.free_frames / 256,
            levels(self.ready),
        );
        self.write_harts(&mut text, before, since);
        self.write_processes(&mut text, before, since);
        text + "\nWhat a process says is ready or running is its claim. Ctrl-C ends the machine.\n"
    }

    fn write_harts(&self, text: &mut String, before: Option<&Snapshot>, since: Since) {
        let _ = writeln!(
            text,
            "\nhart  runs              at  waiting            traps/s    calls/s  switches/s  user int/s"
        );
        for hart in &self.harts {
            let then = before.and_then(|before| before.harts.iter().find(|other| other.hart == hart.hart));
            let runs = match (hart.process, hart.running) {
                (0, 0) => "idle".into(),
                (0, _) => "kernel".into(),
                (process, _) => self.name(process),
            };
            let _ = writeln!(
                text,
                "{:>4}  {runs:<16}  {:>2}  {:<14}  {:>10.0} {:>10.0}  {:>10.0}  {:>10.0}",
                hart.hart,
                if hart.running == 0 { "-".into() } else { hart.running.trailing_zeros().to_string() },
                levels(hart.ready),
                since.rate(hart.traps, then.map(|then| then.traps)),
                since.rate(hart.system_calls, then.map(|then| then.system_calls)),
                since.rate(hart.switches, then.map(|then| then.switches)),
                since.rate(hart.user_interrupts, then.map(|then| then.user_interrupts)),
            );
        }
    }

    fn write_processes(&self, text: &mut String, before: Option<&Snapshot>, since: Since) {
        let _ = writeln!(
            text,
            "\n process  name              cpu %  prio  ceil  mode     work  running     ready          calls  waiting at 0 1 2 … 7+"
        );
        for process in &self.processes {
            let then = before.and_then(|before| before.processes.iter().find(|other| other.process == process.process));
            let waiting: Vec<String> = (0..8).map(|priority| process.waiting_at(priority).to_string()).collect();
            let _ = writeln!(
                text,
                "{:>8}  {:<16}  {:>5.1}  {:>4}  {:>4}  {:<7}  {:>4}  {:<10}  {:<12}  {:>6}  {}{}",
                process.process,
                program_name(process),
                since.rate(process.cpu_ns, then.map(|then| then.cpu_ns)) / 1e7,
                process.priority,
                process.ceiling,
                if process.mode == 1 { "strict" } else { "relaxed" },
                process.workers,
                levels(process.running),
                levels(process.ready),
                process.calls_in_flight,
                waiting.join(" "),
                match (process.exhausted, process.boosts) {
                    (0, 0) => String::new(),
                    (exhausted, boosts) => format!("   budget used up {exhausted}×, boosted {boosts}×"),
                },
            );
        }
    }

    fn name(&self, process: u64) -> String {
        let known = self.processes.iter().find(|other| other.process == process);
        known.map_or_else(|| format!("[{process}]"), |known| format!("{} [{process}]", program_name(known)))
    }
}

/// Returns the name of a process's program, without characters that could confuse a terminal.
fn program_name(process: &ProcessSnapshot) -> String {
    ProgramName::from_words(process.name).as_bytes().escape_ascii().to_string()
}

/// Formats the priorities of a bitmap: `0-3,7`, or `-`.
fn levels(bitmap: u64) -> String {
    let mut parts = Vec::new();
    let mut from = 0;
    while from < 64 {
        if bitmap >> from & 1 == 0 {
            from += 1;
            continue;
        }
        let length = (bitmap >> from).trailing_ones();
        parts.push(if length == 1 { from.to_string() } else { format!("{from}-{}", from + length - 1) });
        from += length;
    }
    if parts.is_empty() { "-".into() } else { parts.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi_unix::trace::name_words;
    use proptest::prelude::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn bitmaps_are_lists_of_levels() {
        assert_eq!(levels(0), "-");
        assert_eq!(levels(0b1000_1111), "0-3,7");
        assert_eq!(levels(1 << 63 | 1), "0,63");
        assert_eq!(levels(u64::MAX), "0-63");
    }

    #[test]
    fn long_lines_are_cut() {
        let text = "one line\n2\n3×4×5\nmiddle\nlast\n";
        assert_eq!(fit(text, 80, 24), text);
        assert_eq!(fit(text, 4, 4), "one\n2\nlas\n");
        assert_eq!(fit(text, 3, 6), "on\n2\n3×\nmi\nla\n");
    }

    #[test]
    fn snapshots_are_read_and_shown() {
        let hart = HartSnapshot { hart: 0, running: 1 << 4, process: 2, traps: 100, ..HartSnapshot::default() };
        let process = ProcessSnapshot {
            process: 2,
            priority: 4,
            cpu_ns: 500_000_000,
            name: name_words(b"na\x1bme"),
            ..ProcessSnapshot::default()
        };
        let mut stream = bytes(&[SNAPSHOT_MAGIC, 2_000_000_000, 1, 1, 1 << 4, 7, 256, 0]);
        stream.extend(bytes(&hart.to_words()));
        stream.extend(bytes(&process.to_words()));
        let whole = stream.len();
        for length in 0..whole {
            assert!(Snapshot::parse(&stream[..length]).unwrap().is_none());
        }
        stream.extend([1, 2, 3]);
        let (snapshot, length) = Snapshot::parse(&stream).unwrap().unwrap();
        assert_eq!(length, whole);
        let mut before = Snapshot { time_ns: 1_000_000_000, ..Snapshot::parse(&stream).unwrap().unwrap().0 };
        before.harts[0].traps = 40;
        before.processes[0].cpu_ns = 0;
        let text = snapshot.text(Some(&before));
        assert!(text.contains("na\\x1bme [2]") && text.contains("        60 ") && text.contains(" 50.0 "), "{text}");
        assert!(Snapshot::parse(&[0; 64]).is_err());
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn any_bytes_can_be_shown(
            body in prop::collection::vec(any::<u64>(), 0..200), harts in 0u64..5, processes in 0u64..5,
        ) {
            let mut words = vec![SNAPSHOT_MAGIC, 5, harts, processes, u64::MAX, 1, 2, 3];
            words.extend(body);
            if let Some((snapshot, _)) = Snapshot::parse(&bytes(&words)).unwrap() {
                prop_assert!(!snapshot.text(None).is_empty());
                prop_assert!(!snapshot.text(Some(&snapshot)).contains('\x1b'));
            }
        }
    }
}
