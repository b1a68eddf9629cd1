//! The log of calls: each call of a watched process, with its arguments and its result, as a line on the console.
//!
//! A process is watched if the boot word `calls=` has the name of its program, or `*`; if 1 was written to its file
//! `calls` in `/proc`; or if its parent was watched when it began. Names and kinds of the arguments come from the table
//! of calls (`abi_unix::call`).
//!
//! A line is printed when the call has ended, so that it has all of it. The registers keep the number and all arguments
//! but the first, which the worker keeps. Calls that do not return, and those that leave nothing of the arguments, have
//! their line before. Calls from a request ring, which trap nowhere, have none; nor have calls to the clocks of the
//! vDSO, which are none. Lines are complete: a watched worker waits for the console, and its hart with it, so only the
//! holder of the kernel's log may have a process watched.
//!
//! While no process was ever watched, traps and returns to user mode pay nothing for it: both check already whether
//! they are [watched](trace::traps_are_watched).

use core::fmt::{self, Display, Formatter};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use abi_unix::call::{ASYNCHRONOUS, Argument, NUMBER_MASK};
use abi_unix::trace::ProgramName;
use abi_unix::types::AT_FDCWD;
use abi_unix::{Errno, SystemCall, WILL_BE_POSTED};
use hal_api::UserContext;
use platform::println;
use spin::Once;

use crate::observing::trace;
use crate::process::Process;
use crate::process::worker::Worker;
use crate::scheduling::stretch;

/// Bytes of a buffer, and of a path, that are printed.
const BYTES: usize = 32;
const BYTES_OF_A_PATH: usize = 256;

/// Numbers below this are printed in decimal, as all small negative ones.
const SMALL: u64 = 4096;

/// Number of calls without an entry in the table, by their numbers.
static UNKNOWN: [AtomicU32; LINUX_NUMBERS] = [const { AtomicU32::new(0) }; LINUX_NUMBERS];

/// Numbers of Linux are below this.
const LINUX_NUMBERS: usize = 512;

/// Counts a call whose number has no entry in the table.
#[cold]
#[inline(never)]
pub(crate) fn is_unknown(number: usize) {
    if let Some(count) = UNKNOWN.get(number) {
        // A count at its end stays there.
        let _ = count.try_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_add(1));
    }
}

/// Returns the first such number from here on, with its count.
pub(crate) fn next_unknown(from: usize) -> Option<(usize, u32)> {
    let counts = UNKNOWN.iter().enumerate().skip(from);
    counts.map(|(number, count)| (number, count.load(Ordering::Relaxed))).find(|(_, count)| *count > 0)
}

/// The name of the boot word.
static NAME: Once<&'static str> = Once::new();

/// Whether the calls of a process are printed.
#[derive(Debug, Default)]
pub(crate) struct Watched(AtomicBool);

impl Watched {
    /// Returns whether they are.
    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Begins to print those of a child of this one's process, if that process is watched.
    pub(crate) fn set_as(&self, parents: &Watched) {
        if parents.is_on() {
            self.set(true);
        }
    }

    /// Begins to print them, or ends it.
    pub(crate) fn set(&self, is_on: bool) {
        if !self.0.swap(is_on, Ordering::Relaxed) && is_on {
            // From now on every trap and every return passes the places below.
            trace::watch_traps();
            stretch::watch_returns();
        }
    }
}

/// The call of a worker that has not been printed yet.
// Only the worker itself uses it.
#[derive(Debug, Default)]
pub(crate) struct OpenCall {
    first_argument: AtomicU64,
    /// Where the program goes on behind it.
    pc: AtomicU64,
    is_open: AtomicBool,
}

impl OpenCall {
    /// Returns the first argument of the call, which is printed now; `None` if there is none.
    fn take(&self) -> Option<u64> {
        let is_open = self.is_open.load(Ordering::Relaxed);
        self.is_open.store(false, Ordering::Relaxed);
        is_open.then(|| self.first_argument.load(Ordering::Relaxed))
    }
}

/// Reads the boot word.
pub(crate) fn start(name: Option<&'static str>) {
    if let Some(name) = name {
        NAME.call_once(|| name);
    }
}

/// Watches a process that begins a program if its name is that of the boot word.
pub(crate) fn begins(process: &Process) {
    let name = ProgramName::from_words(process.name());
    if NAME.get().is_some_and(|wanted| *wanted == "*" || wanted.as_bytes() == name.as_bytes()) {
        process.watched.set(true);
    }
}

/// Records that a worker has made a call.
#[cold]
pub(crate) fn trapped(worker: &Worker, context: &UserContext) {
    if !worker.process.watched.is_on() {
        return;
    }
    let first = context.arguments()[0];
    match call_of(context) {
        Some(SystemCall::Exit | SystemCall::ExitGroup | SystemCall::SignalReturn | SystemCall::Reboot) => {
            print(worker, context, first, Ending::Unknown);
        }
        call => {
            // Printed again if it fails.
            if let Some(SystemCall::Execute | SystemCall::ExecuteAt) = call {
                print(worker, context, first, Ending::Unknown);
            }
            worker.open_call.first_argument.store(first, Ordering::Relaxed);
            worker.open_call.pc.store(context.pc, Ordering::Relaxed);
            worker.open_call.is_open.store(true, Ordering::Relaxed);
        }
    }
}

/// Forgets the call of a worker that has another program now.
pub(crate) fn is_forgotten(worker: &Worker) {
    let _ = worker.open_call.take();
}

/// Prints the call that a worker has made, if it was not printed: its result is in the registers.
#[cold]
pub(crate) fn returns(worker: &Worker, context: &UserContext) {
    // A call that waits for pages of its buffers is made again, and has its line then.
    let is_over = context.pc == worker.open_call.pc.load(Ordering::Relaxed);
    if let Some(first) = worker.open_call.take().filter(|_| is_over) {
        print(worker, context, first, Ending::Result(context.arguments()[0]));
    }
}

/// Prints the call that a signal has interrupted, and that the worker makes again.
#[cold]
pub(crate) fn is_made_again(worker: &Worker, context: &UserContext) {
    if let Some(first) = worker.open_call.take() {
        print(worker, context, first, Ending::MadeAgain);
    }
}

fn call_of(context: &UserContext) -> Option<SystemCall> {
    SystemCall::from_number(context.call_number() as usize & NUMBER_MASK)
}

fn print(worker: &Worker, context: &UserContext, first: u64, ending: Ending) {
    let mut arguments = context.arguments();
    arguments[0] = first;
    let line = Line { process: &worker.process, number: context.call_number() as usize, arguments, ending };
    println!("[{}] {line}", worker.thread_id());
}

/// The end of a call.
#[derive(Clone, Copy)]
enum Ending {
    Result(u64),
    /// It does not return, or not to its caller.
    Unknown,
    MadeAgain,
}

/// The line of a call.
struct Line<'a> {
    process: &'a Process,
    /// The word with the number.
    number: usize,
    arguments: [u64; 6],
    ending: Ending,
}

impl Display for Line<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        if self.number & ASYNCHRONOUS != 0 {
            formatter.write_str("asynchronous ")?;
        }
        match SystemCall::from_number(self.number & NUMBER_MASK) {
            Some(call) => self.call(call, formatter)?,
            None => write!(formatter, "call_{}", self.number & NUMBER_MASK)?,
        }
        match self.ending {
            Ending::Unknown => formatter.write_str(" = ?"),
            Ending::MadeAgain => formatter.write_str(" = ? (interrupted, and made again)"),
            Ending::Result(value) if value == WILL_BE_POSTED as u64 => formatter.write_str(" = (will be posted)"),
            Ending::Result(value) => match error_of(value) {
                Some(error) => write!(formatter, " = -{} {error:?}", error as i32),
                None => write!(formatter, " = {}", Number(value)),
            },
        }
    }
}

impl Line<'_> {
    fn call(&self, call: SystemCall, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}(", call.name())?;
        let kinds = call.arguments();
        for (at, (&(_, kind), &value)) in kinds.iter().zip(&self.arguments).enumerate() {
            if at > 0 {
                formatter.write_str(", ")?;
            }
            let has_length = kinds.get(at + 1).is_some_and(|(_, kind)| *kind == Argument::Length);
            let length = if has_length { self.arguments.get(at + 1).copied() } else { None };
            match (kind, length) {
                (Argument::Descriptor, _) if value as i32 == AT_FDCWD => formatter.write_str("AT_FDCWD")?,
                (Argument::Descriptor, _) => write!(formatter, "{}", value as i32)?,
                (Argument::Input | Argument::Output | Argument::Path, _) if value == 0 => {
                    formatter.write_str("NULL")?
                }
                (Argument::Path, _) => self.path(value, formatter)?,
                (Argument::Input, Some(length)) => self.bytes(value, length, formatter)?,
                (Argument::Output, Some(room)) => match self.ending {
                    // Its result is the number of bytes, as far as it can be.
                    Ending::Result(count) if (1..=room).contains(&count) => self.bytes(value, count, formatter)?,
                    _ => write!(formatter, "{value:#x}")?,
                },
                (Argument::Input | Argument::Output, None) => write!(formatter, "{value:#x}")?,
                (Argument::Number | Argument::Length, _) => write!(formatter, "{}", Number(value))?,
            }
        }
        formatter.write_str(")")
    }

    /// Prints the first bytes of a buffer as they are now.
    fn bytes(&self, address: u64, length: u64, formatter: &mut Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; BYTES];
        let count = length.min(BYTES as u64) as usize;
        match self.process.copy_in(address as usize, &mut bytes[..count]) {
            Ok(()) => {
                let rest = if count as u64 == length { "" } else { "..." };
                write!(formatter, "\"{}\"{rest}", bytes[..count].escape_ascii())
            }
            Err(_) => write!(formatter, "{address:#x}"),
        }
    }

    /// Prints a path as it is now.
    fn path(&self, address: u64, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self.process.copy_in_string(address as usize, BYTES_OF_A_PATH, Errno::ENAMETOOLONG) {
            Ok(path) => write!(formatter, "\"{}\"", path.escape_ascii()),
            Err(_) => write!(formatter, "{address:#x}"),
        }
    }
}

/// Returns the error that a result stands for.
fn error_of(value: u64) -> Option<Errno> {
    abi_unix::errno::decode(value as usize).err()
}

/// A number of a program, whose kind is not known: small ones are amounts, and large ones flags and addresses.
struct Number(u64);

impl Display for Number {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self.0 as i64 {
            number @ -4096..0 => write!(formatter, "{number}"),
            _ if self.0 < SMALL => write!(formatter, "{}", self.0),
            _ => write!(formatter, "{:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::String;
    use std::vec::Vec;

    use ::signals::action_flag;

    use super::*;
    use crate::testing::{Program, SIGNAL_HANDLER, run, simulation};

    const USR1: usize = 10;

    /// Watches the process from here on; returns its lines so far when called again.
    fn watch(program: &Program) -> impl Fn() -> Vec<String> + use<> {
        program.process().watched.set(true);
        let before = simulation().output().len();
        let prefix = format!("[{}] ", program.id);
        move || {
            let output = simulation().output();
            output[before..].lines().filter_map(|line| line.strip_prefix(&prefix)).map(String::from).collect()
        }
    }

    #[test]
    fn calls_have_lines_with_arguments_and_results() {
        run(|program| {
            let lines = watch(program);
            let (null, missing) = (program.store(b"/dev/null\0"), program.store(b"/no \"x\"\0"));
            let here = AT_FDCWD as usize;
            let file = program.call(SystemCall::Open, [here, null, 2, 0]).unwrap();
            let _ = program.call(SystemCall::Open, [here, missing, 0o2000000, 0]);
            program.write_to(file, &[b"text\n", &[b'x'; 60][..]].concat()).unwrap();
            let zeros = program.create(b"/tmp/three\0", 0o102);
            program.write_to(zeros, b"abc").unwrap();
            program.call(SystemCall::Seek, [zeros, 0, 0]).unwrap();
            assert_eq!(program.read_from(zeros, 100), Ok(b"abc".to_vec()));
            let _ = program.call(SystemCall::Close, [usize::MAX]);
            let _ = program.call(SystemCall::Write, [file, 0x1000, 5]);
            let _ = program.call(SystemCall::Status, [file, 0]);
            program.process().watched.set(false);
            program.close(file).unwrap();
            let lines = lines();
            let expected = [
                format!("openat(AT_FDCWD, \"/dev/null\", 2, 0) = {file}"),
                "openat(AT_FDCWD, \"/no \\\"x\\\"\", 0x80000, 0) = -2 ENOENT".into(),
                format!("write({file}, \"text\\nxxxxxxxxxxxxxxxxxxxxxxxxxxx\"..., 65) = 65"),
                format!("write({zeros}, \"abc\", 3) = 3"),
                format!("read({zeros}, \"abc\", 100) = 3"),
                "close(-1) = -9 EBADF".into(),
                format!("write({file}, 0x1000, 5) = 5"),
                format!("fstat({file}, NULL) = -14 EFAULT"),
            ];
            for line in &expected {
                assert_eq!(lines.iter().filter(|found| *found == line).count(), 1, "{line} in {lines:#?}");
            }
            assert!(!lines.iter().any(|line| line.starts_with(&format!("close({file})"))), "it is watched no more");
            program.remove(b"/tmp/three\0");
        });
    }

    /// Calls that a signal has interrupted have the result that the program sees, and not what its handler begins with.
    #[test]
    fn interrupted_calls_have_their_results() {
        for (flags, result) in [(0, "-4 EINTR"), (action_flag::RESTART, "? (interrupted, and made again)")] {
            run(move |program| {
                let action = program.store(
                    &[SIGNAL_HANDLER as u64, flags, 0].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>(),
                );
                program.call(SystemCall::SignalAction, [USR1, action, 0, 8]).unwrap();
                let (reader, writer) = program.pipe(0);
                let own = program.id as usize;
                program
                    .add_worker(move |program| {
                        program.sleep_ns(1_000_000);
                        program.call(SystemCall::KillThread, [own, USR1]).unwrap();
                        program.sleep_ns(1_000_000);
                        program.write_to(writer, b"x").unwrap();
                        program.sleep_ns(1_000_000);
                    })
                    .unwrap();
                let lines = watch(program);
                let place = program.place(8);
                let _ = program.call(SystemCall::Read, [reader, place, 5]);
                let lines = lines();
                let line = format!("read({reader}, {place:#x}, 5) = {result}");
                assert_eq!(lines.iter().filter(|found| **found == line).count(), 1, "{line} in {lines:#?}");
                let read = format!("read({reader}, \"x\", 5) = 1");
                assert_eq!(lines.contains(&read), flags != 0, "{lines:#?}");
                program.sleep_ns(5_000_000);
            });
        }
    }

    /// Copies and started programs are watched as their parents are; and calls that do not return have a line.
    #[test]
    fn children_are_watched_too() {
        run(|program| {
            let _ = watch(program);
            let before = simulation().output().len();
            let copy = program.fork(|program| {
                let _ = program.call(SystemCall::ExitGroup, [3]);
            });
            let copy = copy.unwrap();
            program.wait_for(copy).unwrap();
            let started = program.spawn(|program| {
                let missing = program.store(b"/bin/missing\0");
                let _ = program.call(SystemCall::Execute, [missing, 0, 0]);
                program.goes_on_as(|program| {
                    let _ = program.call(SystemCall::GetParent, []);
                });
                let path = program.store(crate::testing::PATH);
                let _ = program.call(SystemCall::Execute, [path, 0, 0]);
            });
            let started = started.unwrap();
            program.wait_for(started).unwrap();
            let output = simulation().output()[before..].to_string();
            for line in [
                format!("[{copy}] exit_group(3) = ?\n"),
                format!("[{started}] execve(\"/bin/missing\", NULL, NULL) = ?\n"),
                format!("[{started}] execve(\"/bin/missing\", NULL, NULL) = -2 ENOENT\n"),
                format!("[{started}] execve(\"/bin/test\", NULL, NULL) = ?\n[{started}] getppid() = {}\n", program.id),
            ] {
                assert!(output.contains(&line), "{line} in {output}");
            }
        });
    }

    #[test]
    fn numbers_are_short() {
        let texts =
            [0, 4095, 4096, u64::MAX, -4096_i64 as u64, -4097_i64 as u64].map(|value| format!("{}", Number(value)));
        assert_eq!(texts, ["0", "4095", "0x1000", "-1", "-4096", "0xffffffffffffefff"]);
    }
}
