//! The console as a terminal: the serial line, the discipline that makes lines of keys, and the processes in its
//! foreground.
//!
//! A kernel coroutine takes keys as they are pressed, and not when a program reads: they are echoed immediately, and
//! the interrupt key must work while no program reads. Output never waits.
//!
//! The keys for interrupting and quitting end all processes of the *foreground group*. A shell makes a group of each
//! command that it starts (`setpgid`), makes that the foreground (`TIOCSPGRP`), and takes the place back when the
//! command has ended. Without a shell the group of the first process is in the foreground; all processes are in it that
//! were not put elsewhere. Processes in the background may read and write like those in the foreground; they only do
//! not get the keys' signals.

use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_unix::types::{Termios, terminal};
use abi_unix::{Act, Errno};
use spin::Mutex;
use waiters::Waiters;

use crate::files::line_discipline::LineDiscipline;
use crate::process::user::UserBuffer;
use crate::process::{self, Process, authority};
use crate::scheduling::executor::{self, Attendant};

/// Bytes that are moved at once between a program and the serial line.
const PIECE: usize = 256;

struct Terminal {
    discipline: LineDiscipline,
    /// Wakers of readers that wait for input.
    readers: Waiters,
    /// The group that gets the signals of keys.
    foreground: u32,
    /// Rows, columns, and pixels, as a program set them last. A serial line cannot tell its size.
    window: [u16; 4],
}

static TERMINAL: Mutex<Terminal> = Mutex::new(Terminal {
    discipline: LineDiscipline::new(),
    readers: Waiters::new(),
    foreground: process::FIRST,
    window: [24, 80, 0, 0],
});

/// The coroutine that takes keys.
static TAKER: Attendant = Attendant::new();

/// Starts taking keys.
pub(crate) fn start() {
    executor::spawn_for_kernel(Priority::HIGHEST, take_keys());
    platform::set_console_listener(|| TAKER.summon());
}

/// Takes keys as they come, for ever.
async fn take_keys() {
    loop {
        TAKER.summoned().await;
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

fn press(keys: &[u8]) {
    for &key in keys {
        let signalled = {
            let mut terminal = TERMINAL.lock();
            let terminal = &mut *terminal;
            let signal = terminal.discipline.press(key, &mut platform::console_write);
            if terminal.discipline.is_ready(1) {
                terminal.readers.wake_all();
            }
            signal.map(|signal| (signal, terminal.foreground))
        };
        // Without the lock: a process that ends takes many locks.
        if let Some((signal, group)) = signalled {
            process::signal_group_from_terminal(group, signal);
        }
    }
}

/// Does one step of reading: in canonical mode a line, or the rest of one; else the keys that were typed. Pending means
/// that there is nothing to read; `waker` is then registered if there is one.
pub(crate) fn read(process: &Process, buffer: UserBuffer, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
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
        if let Err(error) = process.copy_out(buffer.address() + done, &bytes[..count]) {
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
pub(crate) fn is_readable(waker: Option<&Waker>) -> Result<bool, Errno> {
    let mut terminal = TERMINAL.lock();
    if let Some(waker) = waker {
        terminal.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
    }
    Ok(terminal.discipline.is_ready(1))
}

/// Takes back a registration of [`read`] or [`is_readable`].
pub(crate) fn forget(waker: &Waker) {
    TERMINAL.lock().readers.forget(waker);
}

/// Writes a buffer from `*done` bytes on, and advances it.
pub(crate) fn write(process: &Process, buffer: UserBuffer, done: &mut usize) -> Result<usize, Errno> {
    let mut bytes = [0; PIECE];
    while *done < buffer.len() {
        let count = bytes.len().min(buffer.len() - *done);
        if let Err(error) = process.copy_in(buffer.address() + *done, &mut bytes[..count]) {
            return if *done == 0 { Err(error) } else { Ok(*done) };
        }
        TERMINAL.lock().discipline.write(&bytes[..count], &mut platform::console_write);
        *done += count;
    }
    Ok(*done)
}

/// Performs the `ioctl` requests of a terminal.
pub(crate) fn control(process: &Process, request: u32, argument: usize) -> Result<usize, Errno> {
    match request {
        terminal::GET => {
            let settings = TERMINAL.lock().discipline.settings();
            process.copy_out(argument, &settings.to_bytes())?;
        }
        terminal::SET | terminal::SET_AND_WAIT | terminal::SET_AND_FLUSH => {
            let mut bytes = [0; Termios::SIZE];
            process.copy_in(argument, &mut bytes)?;
            if request != terminal::SET {
                platform::console_flush();
            }
            let mut terminal = TERMINAL.lock();
            if request == terminal::SET_AND_FLUSH {
                terminal.discipline.flush();
            }
            terminal.discipline.set(Termios::from_bytes(bytes));
            // There may be something to read now.
            terminal.readers.wake_all();
        }
        terminal::DRAIN => platform::console_flush(),
        terminal::FLUSH => match argument {
            terminal::queue::INPUT | terminal::queue::BOTH => TERMINAL.lock().discipline.flush(),
            terminal::queue::OUTPUT => {}
            _ => return Err(Errno::EINVAL),
        },
        terminal::GET_FOREGROUND => {
            let group = TERMINAL.lock().foreground;
            process.copy_out(argument, &group.to_le_bytes())?;
        }
        terminal::SET_FOREGROUND => {
            let mut bytes = [0; 4];
            process.copy_in(argument, &mut bytes)?;
            let group = i32::from_le_bytes(bytes);
            if group < 0 {
                return Err(Errno::EINVAL);
            }
            if !process::group_exists(group as u32) {
                return Err(Errno::ESRCH);
            }
            let may_signal = |other: &Process| authority::permit_towards(process, other, Act::SetForeground).is_ok();
            if !process::group_has(group as u32, may_signal) {
                return Err(Errno::EPERM);
            }
            TERMINAL.lock().foreground = group as u32;
        }
        terminal::INSERT => {
            authority::permit(process, Act::PressKey)?;
            let mut key = [0; 1];
            process.copy_in(argument, &mut key)?;
            press(&key);
        }
        terminal::GET_WINDOW_SIZE => {
            let mut bytes = [0; 8];
            let window = TERMINAL.lock().window;
            for (place, number) in bytes.chunks_exact_mut(2).zip(window) {
                place.copy_from_slice(&number.to_le_bytes());
            }
            process.copy_out(argument, &bytes)?;
        }
        terminal::SET_WINDOW_SIZE => {
            let mut bytes = [0; 8];
            process.copy_in(argument, &mut bytes)?;
            TERMINAL.lock().window = core::array::from_fn(|at| u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]));
        }
        terminal::READABLE => {
            let count = TERMINAL.lock().discipline.readable() as i32;
            process.copy_out(argument, &count.to_le_bytes())?;
        }
        _ => return Err(Errno::ENOTTY),
    }
    Ok(0)
}
