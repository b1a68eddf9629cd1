//! The console as a terminal: the serial line, the discipline that makes lines of keys, and the processes in its
//! foreground.
//!
//! A kernel coroutine takes keys as they are pressed, and not when a program reads: they are echoed immediately, and
//! the interrupt key must work while no program reads. An echo without room is lost, as on Linux.
//!
//! Output of a program waits for room in the serial line's ring, without a lock and without polling: a line may be slow
//! or stalled, and the hart and the console are for others meanwhile. So do the requests that wait for the line to be
//! silent. That coroutine wakes the waiting callers, too.
//!
//! The keys for interrupting and quitting end all processes of the *foreground group*. A shell makes a group of each
//! command that it starts (`setpgid`), makes that the foreground (`TIOCSPGRP`), and takes the place back when the
//! command has ended. Without a shell the group of the first process is in the foreground; all processes are in it that
//! were not put elsewhere. Processes in the background may read and write like those in the foreground; they only do
//! not get the keys' signals.

use alloc::sync::Arc;
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_unix::types::{Status, Termios, epoll as event, terminal};
use abi_unix::{Act, Errno};
use spin::Mutex;
use waiters::Waiters;

use crate::files::file::{Attempt, FileOperations, Properties, status_of_device};
use crate::files::line_discipline::LineDiscipline;
use crate::files::tree::CONSOLE;
use crate::process::user::{Caller, UserBuffer};
use crate::process::{self, Process, authority, kill, table};
use crate::scheduling::executor::{self, Attendant};

/// Bytes that are moved at once between a program and the serial line.
const PIECE: usize = 256;

/// Bytes that one step of a call moves.
const LARGEST_STEP: usize = 1024;

struct Terminal {
    discipline: LineDiscipline,
    /// Wakers of readers that wait for input.
    readers: Waiters,
    /// Wakers of callers that wait for the serial line to take more, or to be silent.
    writers: Waiters,
    /// The group that gets the signals of keys.
    foreground: u32,
    /// Rows, columns, and pixels, as a program set them last. A serial line cannot tell its size.
    window: [u16; 4],
}

static TERMINAL: Mutex<Terminal> = Mutex::new(Terminal {
    discipline: LineDiscipline::new(),
    readers: Waiters::new(),
    writers: Waiters::new(),
    foreground: process::FIRST,
    window: [24, 80, 0, 0],
});

/// The coroutine that takes keys and wakes writers.
static TAKER: Attendant = Attendant::new();

/// Starts taking keys.
pub(crate) fn start() {
    executor::spawn_for_kernel(Priority::HIGHEST, take_keys());
    platform::set_console_listener(|| TAKER.summon());
}

/// Takes keys as they come, and wakes writers when there is room, for ever.
async fn take_keys() {
    loop {
        TAKER.summoned().await;
        // Those that still find no room ask the line again.
        TERMINAL.lock().writers.wake_all();
        let mut keys = [0; 64];
        loop {
            let count = platform::console_try_read(&mut keys);
            if count == 0 {
                break;
            }
            press(&keys[..count]);
        }
    }
}

#[doc(alias = "tty_insert_flip_char")]
fn press(keys: &[u8]) {
    for &key in keys {
        let signalled = {
            let mut terminal = TERMINAL.lock();
            let terminal = &mut *terminal;
            let signal = terminal.discipline.press(key, &mut |echo| _ = platform::console_try_write(echo));
            if terminal.discipline.is_ready(1) {
                terminal.readers.wake_all();
            }
            signal.map(|signal| (signal, terminal.foreground))
        };
        // Without the lock: a process that ends takes many locks.
        if let Some((signal, group)) = signalled {
            kill::signal_group_from_terminal(group, signal);
        }
    }
}

/// The console, as a kind of open file.
pub(crate) struct Console;

impl FileOperations for Console {
    fn properties(&self) -> Properties {
        Properties { largest_step: LARGEST_STEP, ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        status_of_device(CONSOLE, 0o600)
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        read(caller, buffer, waker)
    }

    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, waker: Option<&Waker>) -> Attempt {
        write(caller, buffer, done, waker)
    }

    fn readiness(&self, _: &dyn Caller, wanted: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let input = if is_readable(waker)? { event::IN | event::RDNORM } else { 0 };
        let is_asked = wanted & (event::OUT | event::WRNORM) != 0;
        let output = if is_asked && is_writable(waker)? { event::OUT | event::WRNORM } else { 0 };
        Ok(input | output)
    }

    fn forget_reader(&self, waker: &Waker) {
        TERMINAL.lock().readers.forget(waker);
    }

    fn forget_writer(&self, waker: &Waker) {
        TERMINAL.lock().writers.forget(waker);
    }

    fn control(&self, caller: &dyn Caller, command: u32, argument: usize, waker: Option<&Waker>) -> Attempt {
        if awaits_silence(command) && !is_silent(waker)? {
            return Poll::Pending;
        }
        Poll::Ready(control(caller, command, argument))
    }
}

/// Returns the process that makes a call, for questions of authority.
fn process_of(caller: &dyn Caller) -> Result<Arc<Process>, Errno> {
    table::find(caller.number()).ok_or(Errno::ESRCH)
}

/// Tries to read: in canonical mode a line, or the rest of one; else the keys that were typed. Pending means that there
/// is nothing to read; `waker` is then registered if there is one.
fn read(caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
    if buffer.is_empty() {
        return Poll::Ready(Ok(0));
    }
    let mut terminal = TERMINAL.lock();
    let terminal = &mut *terminal;
    if !terminal.discipline.is_ready(buffer.len()) {
        if let Some(waker) = waker {
            terminal.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        return Poll::Pending;
    }
    let mut bytes = [0; PIECE];
    let mut done = 0;
    loop {
        let wanted = bytes.len().min(buffer.len() - done);
        let position = terminal.discipline.position();
        let (count, is_complete) = terminal.discipline.read(&mut bytes[..wanted]);
        if let Err(error) = caller.copy_out(buffer.address() + done, &bytes[..count]) {
            terminal.discipline.unread(position);
            return Poll::Ready(if done == 0 { Err(error) } else { Ok(done) });
        }
        done += count;
        if is_complete || done == buffer.len() {
            return Poll::Ready(Ok(done));
        }
    }
}

/// Returns whether a read would not wait; `waker` is registered if there is one.
fn is_readable(waker: Option<&Waker>) -> Result<bool, Errno> {
    let mut terminal = TERMINAL.lock();
    if let Some(waker) = waker {
        terminal.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
    }
    Ok(terminal.discipline.is_ready(1))
}

/// Returns whether a write would not wait; `waker` is registered if there is one.
fn is_writable(waker: Option<&Waker>) -> Result<bool, Errno> {
    let mut terminal = TERMINAL.lock();
    if let Some(waker) = waker {
        terminal.writers.register(waker).map_err(|_| Errno::ENOMEM)?;
    }
    Ok(line::room(2) == 2)
}

/// Returns whether all output has left. Otherwise `waker` is registered if there is one.
fn is_silent(waker: Option<&Waker>) -> Result<bool, Errno> {
    let mut terminal = TERMINAL.lock();
    let is_silent = line::is_silent();
    match waker {
        Some(waker) if is_silent => terminal.writers.forget(waker),
        Some(waker) => terminal.writers.register(waker).map_err(|_| Errno::ENOMEM)?,
        None => {}
    }
    Ok(is_silent)
}

/// Writes a buffer from `*done` bytes on, as far as the serial line has room, and advances it. Pending means that there
/// is no room; `waker` is then registered if there is one.
fn write(caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, waker: Option<&Waker>) -> Attempt {
    let mut bytes = [0; PIECE];
    while *done < buffer.len() {
        let wanted = bytes.len().min(buffer.len() - *done);
        if let Err(error) = caller.copy_in(buffer.address() + *done, &mut bytes[..wanted]) {
            return Poll::Ready(if *done == 0 { Err(error) } else { Ok(*done) });
        }
        let mut terminal = TERMINAL.lock();
        // Each byte may become two. The room may go to others meanwhile; far more of the ring is kept free for them.
        let count = line::room(2 * wanted) / 2;
        if count == 0 {
            return match waker.map_or(Ok(()), |waker| terminal.writers.register(waker)) {
                Ok(()) => Poll::Pending,
                Err(_) => Poll::Ready(Err(Errno::ENOMEM)),
            };
        }
        if let Some(waker) = waker {
            terminal.writers.forget(waker);
        }
        terminal.discipline.write(&bytes[..count], &mut platform::console_write);
        *done += count;
    }
    Poll::Ready(Ok(*done))
}

/// The serial line, as far as output waits for it.
mod line {
    #[cfg(not(test))]
    pub(super) use platform::{console_is_silent as is_silent, console_room as room};

    #[cfg(test)]
    pub(super) use super::tests::stalled::{is_silent, room};
}

/// Returns whether a request is carried out after all output has left.
fn awaits_silence(request: u32) -> bool {
    matches!(request, terminal::SET_AND_WAIT | terminal::SET_AND_FLUSH | terminal::DRAIN)
}

/// Performs the `ioctl` requests of a terminal.
fn control(caller: &dyn Caller, request: u32, argument: usize) -> Result<usize, Errno> {
    match request {
        terminal::GET => {
            let settings = TERMINAL.lock().discipline.settings();
            caller.copy_out(argument, &settings.to_bytes())?;
        }
        terminal::SET | terminal::SET_AND_WAIT | terminal::SET_AND_FLUSH => {
            let mut bytes = [0; Termios::SIZE];
            caller.copy_in(argument, &mut bytes)?;
            let mut terminal = TERMINAL.lock();
            if request == terminal::SET_AND_FLUSH {
                terminal.discipline.flush();
            }
            terminal.discipline.set(Termios::from_bytes(bytes));
            // There may be something to read now.
            terminal.readers.wake_all();
        }
        terminal::DRAIN => {}
        terminal::FLUSH => match argument {
            terminal::queue::INPUT | terminal::queue::BOTH => TERMINAL.lock().discipline.flush(),
            terminal::queue::OUTPUT => {}
            _ => return Err(Errno::EINVAL),
        },
        terminal::GET_FOREGROUND => {
            let group = TERMINAL.lock().foreground;
            caller.copy_out(argument, &group.to_le_bytes())?;
        }
        terminal::SET_FOREGROUND => {
            let mut bytes = [0; 4];
            caller.copy_in(argument, &mut bytes)?;
            let group = i32::from_le_bytes(bytes);
            if group < 0 {
                return Err(Errno::EINVAL);
            }
            if table::session_of_group(group as u32).is_none() {
                return Err(Errno::ESRCH);
            }
            let process = process_of(caller)?;
            let may_signal = |other: &Process| authority::permit_towards(&process, other, Act::SetForeground).is_ok();
            if !table::group_has(group as u32, may_signal) {
                return Err(Errno::EPERM);
            }
            TERMINAL.lock().foreground = group as u32;
        }
        terminal::INSERT => {
            authority::permit(&*process_of(caller)?, Act::PressKey)?;
            let mut key = [0; 1];
            caller.copy_in(argument, &mut key)?;
            press(&key);
        }
        terminal::GET_WINDOW_SIZE => {
            let mut bytes = [0; 8];
            let window = TERMINAL.lock().window;
            for (place, number) in bytes.chunks_exact_mut(2).zip(window) {
                place.copy_from_slice(&number.to_le_bytes());
            }
            caller.copy_out(argument, &bytes)?;
        }
        terminal::SET_WINDOW_SIZE => {
            let mut bytes = [0; 8];
            caller.copy_in(argument, &mut bytes)?;
            TERMINAL.lock().window = core::array::from_fn(|at| u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]));
        }
        terminal::READABLE => {
            let count = TERMINAL.lock().discipline.readable() as i32;
            caller.copy_out(argument, &count.to_le_bytes())?;
        }
        _ => return Err(Errno::ENOTTY),
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{self, open, signal, terminal::local};

    use super::*;
    use crate::testing::{Program, run, simulation};

    /// The fake machine's line has always room. This one can be stalled.
    pub(super) mod stalled {
        use std::sync::atomic::{AtomicUsize, Ordering};

        const MOVES: usize = usize::MAX;

        /// Number of bytes that it still takes.
        static ROOM: AtomicUsize = AtomicUsize::new(MOVES);

        pub(in super::super) fn room(wanted: usize) -> usize {
            match ROOM.load(Ordering::Relaxed) {
                MOVES => wanted,
                room => {
                    let taken = room.min(wanted);
                    // A caller that asks writes all of it.
                    ROOM.fetch_sub(taken, Ordering::Relaxed);
                    taken
                }
            }
        }

        pub(in super::super) fn is_silent() -> bool {
            ROOM.load(Ordering::Relaxed) == MOVES
        }

        /// Stops taking bytes after so many more.
        pub(super) fn stall(room: usize) {
            ROOM.store(room, Ordering::Relaxed);
        }

        /// Goes on, and tells the terminal, as the interrupt does.
        pub(super) fn go_on() {
            ROOM.store(MOVES, Ordering::Relaxed);
            super::TAKER.summon();
        }
    }

    fn control(program: &mut Program, request: u32, argument: usize) -> Result<usize, Errno> {
        program.call(SystemCall::DeviceControl, [0, request as usize, argument])
    }

    /// Presses keys, as the serial line would while a program runs.
    fn type_keys(_: &mut Program, keys: &[u8]) {
        press(keys);
    }

    fn settings(program: &mut Program) -> Termios {
        let place = program.place(Termios::SIZE);
        control(program, terminal::GET, place).unwrap();
        Termios::from_bytes(program.read(place, Termios::SIZE).try_into().unwrap())
    }

    fn set(program: &mut Program, request: u32, settings: Termios) {
        let place = program.store(&settings.to_bytes());
        assert_eq!(control(program, request, place), Ok(0));
    }

    #[test]
    fn a_reader_gets_lines_when_they_are_complete_and_edited() {
        run(|program| {
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    type_keys(program, b"helpo\x7f\x7flo\r");
                    type_keys(program, b"next");
                })
                .unwrap();
            assert_eq!(program.read_from(0, 100), Ok(b"hello\n".to_vec()));
            let count = program.place(4);
            control(program, terminal::READABLE, count).unwrap();
            assert_eq!(program.read_u32(count), 0, "the next line is not complete");
            program.sleep_ns(1_000_000);
            type_keys(program, b" one\r");
            // A line that is read in pieces, and an end of the file.
            assert_eq!(program.read_from(0, 3), Ok(b"nex".to_vec()));
            assert_eq!(program.read_from(0, 100), Ok(b"t one\n".to_vec()));
            type_keys(program, b"\x04");
            assert_eq!(program.read_from(0, 100), Ok(vec![]));
        });
    }

    /// Far more keys than the terminal keeps: the others are lost, programs and their lines go on, and what comes after
    /// the unread keys are gone is read as ever.
    #[test]
    fn keys_that_no_program_reads_hold_no_program_up() {
        run(|program| {
            let usual = settings(program);
            let mut silent = usual;
            silent.local &= !local::ECHO;
            set(program, terminal::SET, silent);
            for round in 0..500 {
                type_keys(program, if round < 250 { &[b'x'; 80] } else { b"a line of some keys\r" });
                assert_eq!(program.call(SystemCall::GetProcess, []), Ok(program.id as usize));
                program.process().lines.print(format_args!("line {round}"));
            }
            let count = program.place(4);
            control(program, terminal::READABLE, count).unwrap();
            let kept = program.read_u32(count) as usize;
            assert!((1..=4096).contains(&kept), "{kept} keys are kept");
            // The line that was being typed when there was no room left has its end; later ones are lost.
            let mut first = Vec::new();
            while !first.ends_with(b"\n") {
                first.extend(program.read_from(0, 1024).unwrap());
            }
            assert_eq!(first.len(), kept);
            assert!(first[..kept - 1].iter().all(|key| *key == b'x'));
            control(program, terminal::FLUSH, terminal::queue::INPUT).unwrap();
            type_keys(program, b"next\r");
            assert_eq!(program.read_from(0, 100), Ok(b"next\n".to_vec()));
            set(program, terminal::SET_AND_FLUSH, usual);
        });
    }

    #[test]
    fn keys_are_echoed_unless_that_is_switched_off() {
        run(|program| {
            type_keys(program, b"seen\r");
            assert!(simulation().output().ends_with("seen\r\n"));
            let usual = settings(program);
            let mut silent = usual;
            silent.local &= !local::ECHO;
            set(program, terminal::SET, silent);
            type_keys(program, b"hidden\r");
            assert!(!simulation().output().contains("hidden"));
            set(program, terminal::SET_AND_FLUSH, usual);
            let count = program.place(4);
            control(program, terminal::READABLE, count).unwrap();
            assert_eq!(program.read_u32(count), 0, "what was typed is gone");
        });
    }

    #[test]
    fn without_lines_each_key_can_be_read_at_once() {
        run(|program| {
            let usual = settings(program);
            let mut raw = usual;
            raw.local &= !(local::ICANON | local::ECHO);
            set(program, terminal::SET, raw);
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    type_keys(program, b"k");
                })
                .unwrap();
            assert_eq!(program.read_from(0, 100), Ok(b"k".to_vec()));
            set(program, terminal::SET, usual);
        });
    }

    /// The interrupt key ends the foreground group, and no other process.
    #[test]
    fn keys_end_the_group_in_the_foreground() {
        run(|program| {
            let wait = |program: &mut Program| program.sleep_ns(1_000_000_000_000);
            let (first, second) = (program.spawn(wait).unwrap(), program.spawn(wait).unwrap());
            for child in [first, second] {
                assert_eq!(program.call(SystemCall::SetProcessGroup, [child, child]), Ok(0));
            }
            let place = program.store(&(first as u32).to_le_bytes());
            assert_eq!(control(program, terminal::SET_FOREGROUND, place), Ok(0));
            let found = program.place(4);
            control(program, terminal::GET_FOREGROUND, found).unwrap();
            assert_eq!(program.read_u32(found), first as u32);
            type_keys(program, b"\x03");
            assert_eq!(program.wait_for(usize::MAX), Ok((first, signal::INT)));
            let place = program.store(&(second as u32).to_le_bytes());
            assert_eq!(control(program, terminal::SET_FOREGROUND, place), Ok(0));
            type_keys(program, b"\x1c");
            assert_eq!(program.wait_for(usize::MAX), Ok((second, signal::QUIT)));
            for (group, error) in [(-1i32, Errno::EINVAL), (99_999, Errno::ESRCH)] {
                let place = program.store(&group.to_le_bytes());
                assert_eq!(control(program, terminal::SET_FOREGROUND, place), Err(error));
            }
            let place = program.store(&1u32.to_le_bytes());
            assert_eq!(control(program, terminal::SET_FOREGROUND, place), Ok(0));
        });
    }

    #[test]
    fn output_is_written_as_the_settings_say() {
        run(|program| {
            assert_eq!(program.write_to(1, b"two\nlines\n"), Ok(10));
            assert!(simulation().output().ends_with("two\r\nlines\r\n"));
            let long: Vec<u8> = (0..1000).map(|index| b'a' + (index % 26) as u8).collect();
            assert_eq!(program.write_to(1, &long), Ok(1000));
            assert!(simulation().output().ends_with(std::str::from_utf8(&long).unwrap()));
            assert_eq!(program.call(SystemCall::Write, [1, 0x1000, 5]), Err(Errno::EFAULT));
        });
    }

    #[test]
    fn a_stalled_line_holds_up_its_writers_and_no_other_program() {
        run(|program| {
            stalled::stall(2 * 300);
            let long = vec![b'-'; 1000];
            let writer = {
                let long = long.clone();
                program.spawn(move |program| assert_eq!(program.write_to(1, &long), Ok(1000))).unwrap()
            };
            let killed = program.spawn(move |program| _ = program.write_to(1, b"never")).unwrap();
            program.sleep_ns(1_000_000);
            assert!(simulation().output().ends_with(&"-".repeat(300)));
            assert!(!simulation().output().ends_with(&"-".repeat(301)), "as many as there is room for");
            // Keys, their echo and other calls go on.
            type_keys(program, b"k\x15");
            assert_eq!(program.call(SystemCall::GetProcess, []), Ok(program.id as usize));
            // A writer that does not wait, and one that is ended while it waits.
            let nonblocking = open::NONBLOCK as usize;
            assert_eq!(program.call(SystemCall::FileControl, [1, types::control::SETFL as usize, nonblocking]), Ok(0));
            assert_eq!(program.write_to(1, b"x"), Err(Errno::EAGAIN));
            stalled::stall(2 * 3);
            assert_eq!(program.write_to(1, b"12345"), Ok(3), "as much as there is room for");
            assert_eq!(program.call(SystemCall::FileControl, [1, types::control::SETFL as usize, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::Kill, [killed, signal::KILL as usize]), Ok(0));
            assert_eq!(program.wait_for(killed), Ok((killed, signal::KILL)));
            stalled::go_on();
            assert_eq!(program.wait_for(writer), Ok((writer, 0)));
            assert!(simulation().output().ends_with(&format!("123{}", "-".repeat(700))));
        });
    }

    #[test]
    fn requests_that_wait_for_silence_wait_without_keeping_the_hart() {
        run(|program| {
            let usual = settings(program);
            for request in [terminal::DRAIN, terminal::SET_AND_WAIT, terminal::SET_AND_FLUSH] {
                stalled::stall(0);
                let waiter = program
                    .spawn(move |program| {
                        let place = program.store(&usual.to_bytes());
                        assert_eq!(control(program, request, place), Ok(0));
                    })
                    .unwrap();
                program.sleep_ns(1_000_000);
                let (any, no_wait) = (usize::MAX, types::WNOHANG as usize);
                assert_eq!(program.call(SystemCall::Wait, [any, 0, no_wait]), Ok(0), "{request:#x} waits");
                // A summons for another reason.
                TAKER.summon();
                program.sleep_ns(1_000_000);
                assert_eq!(program.call(SystemCall::Wait, [any, 0, no_wait]), Ok(0), "{request:#x} still waits");
                stalled::go_on();
                assert_eq!(program.wait_for(waiter), Ok((waiter, 0)));
            }
        });
    }

    #[test]
    fn the_console_is_writable_when_its_line_has_room() {
        run(|program| {
            let events = |program: &mut Program, timeout: usize| {
                let list = program.store(&[1u32.to_le_bytes(), event::OUT.to_le_bytes()].concat());
                let result = program.call(SystemCall::Poll, [list, 1, timeout, 0, 0]);
                (result, program.read_u32(list + 4) >> 16)
            };
            assert_eq!(events(program, 0), (Ok(1), event::OUT));
            stalled::stall(1);
            let none = program.store(&types::TimeSpec::from_ns(0).to_bytes());
            assert_eq!(events(program, none), (Ok(0), 0));
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    stalled::go_on();
                })
                .unwrap();
            assert_eq!(events(program, 0), (Ok(1), event::OUT));
        });
    }

    #[test]
    fn the_window_has_the_size_that_was_set() {
        run(|program| {
            let place = program.place(8);
            control(program, terminal::GET_WINDOW_SIZE, place).unwrap();
            let usual = program.read(place, 8);
            let size = program.store(&[50u16, 132, 3, 4].map(u16::to_le_bytes).concat());
            control(program, terminal::SET_WINDOW_SIZE, size).unwrap();
            control(program, terminal::GET_WINDOW_SIZE, place).unwrap();
            assert_eq!(program.read(place, 8), program.read(size, 8));
            program.write(size, &usual);
            control(program, terminal::SET_WINDOW_SIZE, size).unwrap();
            for request in [terminal::GET, terminal::SET, terminal::GET_WINDOW_SIZE, terminal::READABLE] {
                assert_eq!(control(program, request, 0x1000), Err(Errno::EFAULT), "{request:#x}");
            }
            assert_eq!(control(program, terminal::FLUSH, 7), Err(Errno::EINVAL));
            assert_eq!(control(program, 0x9999, 0), Err(Errno::ENOTTY));
            assert_eq!(control(program, terminal::INSERT, size), Err(Errno::EPERM), "keys are pressed by the first");
        });
    }
}
