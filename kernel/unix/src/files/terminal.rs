//! Terminals: a line discipline between a device and programs, with the waiters of both sides.
//!
//! The device is the serial line of the [console](crate::files::console), or the other end of a
//! [pseudo-terminal](crate::files::pseudo_terminal). Keys are taken as they are pressed, and not
//! when a program reads: they are echoed immediately, and the interrupt key must work while no program reads. An echo
//! without room is lost, as on Linux. Output waits for room, without a lock and without polling.
//!
//! A terminal may be the controlling terminal of a session, and then one process group of that session is in its
//! foreground: [`job_control`] has the rules. The session and the foreground are words beside the lock, because rules
//! look at processes, whose lock comes first.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Poll, Waker, ready};

use ::signals::Signal;
use abi_unix::types::terminal::local;
use abi_unix::types::{Status, Termios, epoll as event, terminal};
use abi_unix::{Act, Errno};
use filesystem::DeviceNumber;
use spin::Mutex;
use waiters::Waiters;

use crate::files::console::line;
use crate::files::file::{Attempt, FileOperations, Properties, encode_device, status_of_device};
use crate::files::job_control;
use crate::files::line_discipline::LineDiscipline;
use crate::files::mounts::Place;
use crate::files::pseudo_terminal::Master;
use crate::files::stored::status_of;
use crate::process::signal_sending::SignalTurn;
use crate::process::user::{Caller, UserBuffer};
use crate::process::{Process, authority, table};
use crate::scheduling::steps;

/// Bytes that are moved at once between a program and a terminal.
const PIECE: usize = 256;

/// Bytes that one step of a call moves.
const LARGEST_STEP: usize = 1024;

/// A terminal.
#[doc(alias = "tty_struct")]
pub(crate) struct Terminal {
    /// The number of its device.
    pub device: DeviceNumber,
    /// The session whose controlling terminal it is; 0 for none. [`job_control`] changes it.
    pub session: AtomicU32,
    /// The group of that session that gets the signals of keys; 0 for none.
    pub foreground: AtomicU32,
    /// Number of times that it was hung up. Files that were opened before the last time are of no use any more.
    hangups: AtomicU32,
    pub(super) state: Mutex<TerminalState>,
}

/// The state of a terminal.
pub(super) struct TerminalState {
    /// Between keys and input.
    pub discipline: LineDiscipline,
    /// Where output goes.
    pub output: Output,
    /// Wakers of readers that wait for input, or for their turn in the foreground.
    pub readers: Waiters,
    /// Wakers of callers that wait for the device to take more, or to be silent, or for their turn in the foreground.
    pub writers: Waiters,
    /// Rows, columns, and pixels, as a program set them last. A serial line cannot tell its size.
    window: [u16; 4],
}

/// The device behind a terminal, as far as output goes to it.
pub(super) enum Output {
    /// The serial line.
    Serial,
    /// The master of a pseudo-terminal.
    Master(Master),
}

impl Output {
    /// Returns the number of bytes for which there is room, of those wanted.
    fn room(&self, wanted: usize) -> usize {
        match self {
            Output::Serial => line::room(wanted),
            Output::Master(master) => master.room().min(wanted),
        }
    }

    /// Shows bytes for which there is room.
    fn show(&mut self, bytes: &[u8]) {
        match self {
            Output::Serial => platform::console_write(bytes),
            Output::Master(master) => master.show(bytes),
        }
    }

    /// Shows bytes if there is room.
    fn try_show(&mut self, bytes: &[u8]) {
        match self {
            Output::Serial => _ = platform::console_try_write(bytes),
            Output::Master(master) if master.room() >= bytes.len() => master.show(bytes),
            Output::Master(_) => {}
        }
    }

    /// Returns whether all output has left. Output that a master has not read yet has left, as on Linux.
    fn is_silent(&self) -> bool {
        match self {
            Output::Serial => line::is_silent(),
            Output::Master(_) => true,
        }
    }

    /// Makes the master look at the terminal again.
    fn wake(&mut self) {
        if let Output::Master(master) = self {
            master.wake();
        }
    }
}

impl TerminalState {
    /// Takes a key that was pressed. Returns the signal that it stands for.
    fn press(&mut self, key: u8) -> Option<u32> {
        let TerminalState { discipline, output, .. } = self;
        let signal = discipline.press(key, &mut |echo| output.try_show(echo));
        if self.discipline.is_ready(1) {
            self.readers.wake_all();
        }
        signal
    }

    /// Does a step of the work of the last key; returns whether more is left.
    pub(super) fn proceed(&mut self) -> bool {
        let TerminalState { discipline, output, .. } = self;
        discipline.proceed(&mut |echo| output.try_show(echo))
    }
}

impl Terminal {
    /// Creates a terminal of no session. `ENOMEM`.
    pub(super) fn new(device: DeviceNumber, output: Output, window: [u16; 4]) -> Result<Terminal, Errno> {
        let (readers, writers) = (Waiters::new(), Waiters::new());
        let state = TerminalState { discipline: LineDiscipline::new()?, output, readers, writers, window };
        let [session, foreground, hangups] = [const { AtomicU32::new(0) }; 3];
        Ok(Terminal { device, session, foreground, hangups, state: Mutex::new(state) })
    }

    /// Makes all files useless that are open, but the master: reads find the end, and all else fails with `EIO`. The
    /// console stays, since nothing could open it anew for the processes that have it.
    #[doc(alias = "tty_vhangup")]
    pub(crate) fn hang_up(&self) {
        let mut state = self.state.lock();
        if let Output::Master(master) = &mut state.output {
            master.hang_up();
            self.hangups.fetch_add(1, Ordering::Relaxed);
        }
        state.readers.wake_all();
        state.writers.wake_all();
    }

    /// Returns the number of its device as `stat` shows it.
    pub(crate) fn number(&self) -> u64 {
        encode_device(self.device)
    }

    /// Returns the group in the foreground, if that is of the terminal's session: a number may have come to be another
    /// group's since.
    pub(crate) fn foreground_of_session(&self) -> Option<u32> {
        let (session, group) = (self.session.load(Ordering::Relaxed), self.foreground.load(Ordering::Relaxed));
        (session != 0 && table::session_of_group(group) == Some(session)).then_some(group)
    }

    /// Returns whether output of processes in the background stops them.
    pub(crate) fn stops_background_output(&self) -> bool {
        self.state.lock().discipline.settings().local & local::TOSTOP != 0
    }

    /// Wakes everything that waits, to look at its place and at the device again.
    pub(crate) fn wake_all(&self) {
        let mut state = self.state.lock();
        state.readers.wake_all();
        state.writers.wake_all();
    }

    /// Wakes those that wait for the device to take more.
    pub(crate) fn wake_writers(&self) {
        self.state.lock().writers.wake_all();
    }

    /// Registers a waker as one of a reader, or of a writer.
    pub(crate) fn register(&self, signal: Signal, waker: &Waker) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let waiters = if signal == Signal::TTIN { &mut state.readers } else { &mut state.writers };
        waiters.register(waker).map_err(|_| Errno::ENOMEM)
    }

    // ---- keys ----

    /// Does a step of the work of the last key; returns whether more is left.
    pub(crate) fn proceed(&self) -> bool {
        self.state.lock().proceed()
    }

    /// Does the work of the last key for a caller. Pending means that the call goes on with the next step; a caller
    /// that does not leaves it to the next one, and the master looks for it.
    pub(super) fn proceed_for(&self, caller: &dyn Caller, waker: Option<&Waker>) -> Poll<()> {
        while self.proceed() {
            if steps::must_stop(caller, waker) {
                self.state.lock().output.wake();
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Takes a key that was pressed, when the work of the last one is done. Returns the signal that it stands for, with
    /// the group that is to get it.
    #[doc(alias = "tty_insert_flip_char")]
    pub(crate) fn press(&self, key: u8) -> Option<(Signal, u32)> {
        let signal = self.state.lock().press(key);
        // Without the lock: the table of processes comes before it.
        Some((Signal::new(signal?)?, self.foreground_of_session()?))
    }

    /// Takes a key that a process presses, and sends the key's signal. Pending while the process is sending others.
    pub(super) fn press_for(&self, process: &Process, key: u8, waker: Option<&Waker>) -> Poll<()> {
        let mut turn = None;
        let signal = loop {
            let mut state = self.state.lock();
            if turn.is_some() || state.discipline.signal_of_next(key).is_none() {
                break state.press(key);
            }
            // The turn first, because the key is taken once.
            drop(state);
            match SignalTurn::take(process, waker) {
                Poll::Ready(taken) => turn = Some(taken),
                Poll::Pending => return Poll::Pending,
            }
        };
        if let (Some(turn), Some(signal)) = (turn, signal)
            && let (Some(signal), Some(group)) = (Signal::new(signal), self.foreground_of_session())
        {
            turn.send(group, [Some(signal), None]);
        }
        Poll::Ready(())
    }

    // ---- reading and writing ----

    /// Tries to read: in canonical mode a line, or the rest of one; else the keys that were typed. Pending means that
    /// there is nothing to read; `waker` is then registered if there is one.
    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        if !state.discipline.is_ready(buffer.len()) {
            if let Some(waker) = waker {
                state.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        }
        let mut bytes = [0; PIECE];
        let mut done = 0;
        loop {
            let wanted = bytes.len().min(buffer.len() - done);
            let position = state.discipline.position();
            let (count, is_complete) = state.discipline.read(&mut bytes[..wanted]);
            if let Err(error) = caller.copy_out(buffer.address() + done, &bytes[..count]) {
                state.discipline.unread(position);
                return Poll::Ready(if done == 0 { Err(error) } else { Ok(done) });
            }
            done += count;
            if is_complete || done == buffer.len() {
                // There is room for keys.
                state.output.wake();
                return Poll::Ready(Ok(done));
            }
        }
    }

    /// Writes a buffer from `*done` bytes on, as far as the device has room, and advances it. Pending means that there
    /// is no room; `waker` is then registered if there is one.
    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, waker: Option<&Waker>) -> Attempt {
        let mut bytes = [0; PIECE];
        while *done < buffer.len() {
            let wanted = bytes.len().min(buffer.len() - *done);
            if let Err(error) = caller.copy_in(buffer.address() + *done, &mut bytes[..wanted]) {
                return Poll::Ready(if *done == 0 { Err(error) } else { Ok(*done) });
            }
            let mut state = self.state.lock();
            // Each byte may become two. The room may go to others meanwhile; far more of the ring is kept free for
            // them.
            let count = state.output.room(2 * wanted) / 2;
            if count == 0 {
                return match waker.map_or(Ok(()), |waker| state.writers.register(waker)) {
                    Ok(()) => Poll::Pending,
                    Err(_) => Poll::Ready(Err(Errno::ENOMEM)),
                };
            }
            if let Some(waker) = waker {
                state.writers.forget(waker);
            }
            let TerminalState { discipline, output, .. } = &mut *state;
            discipline.write(&bytes[..count], &mut |bytes| output.show(bytes));
            *done += count;
        }
        Poll::Ready(Ok(*done))
    }

    /// Returns whether a read would not wait; `waker` is registered if there is one.
    fn is_readable(&self, waker: Option<&Waker>) -> Result<bool, Errno> {
        let mut state = self.state.lock();
        if let Some(waker) = waker {
            state.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(state.discipline.is_ready(1))
    }

    /// Returns whether a write would not wait; `waker` is registered if there is one.
    fn is_writable(&self, waker: Option<&Waker>) -> Result<bool, Errno> {
        let mut state = self.state.lock();
        if let Some(waker) = waker {
            state.writers.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(state.output.room(2) == 2)
    }

    /// Returns whether all output has left. Otherwise `waker` is registered if there is one.
    fn is_silent(&self, waker: Option<&Waker>) -> Result<bool, Errno> {
        let mut state = self.state.lock();
        let is_silent = state.output.is_silent();
        match waker {
            Some(waker) if is_silent => state.writers.forget(waker),
            Some(waker) => state.writers.register(waker).map_err(|_| Errno::ENOMEM)?,
            None => {}
        }
        Ok(is_silent)
    }

    // ---- requests ----

    /// Tries an `ioctl` request.
    pub(super) fn control(&self, caller: &dyn Caller, request: u32, argument: usize, waker: Option<&Waker>) -> Attempt {
        let process = process_of(caller)?;
        if changes_settings(request) {
            match job_control::require_foreground(self, &process, Signal::TTOU, waker) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(Errno::EIO)) if request == terminal::SET_FOREGROUND => {
                    return Poll::Ready(Err(Errno::ENOTTY));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        if awaits_silence(request) && !self.is_silent(waker)? {
            return Poll::Pending;
        }
        match request {
            terminal::GIVE_UP_CONTROLLING => return job_control::give_up(self, &process, waker),
            terminal::INSERT => {
                authority::permit(&process, Act::PressKey)?;
                let mut key = [0; 1];
                caller.copy_in(argument, &mut key)?;
                ready!(self.proceed_for(caller, waker));
                ready!(self.press_for(&process, key[0], waker));
                // All of it at once: only privileged processes press keys so.
                while self.proceed() {}
                return Poll::Ready(Ok(0));
            }
            terminal::SET_WINDOW_SIZE => return self.set_window(caller, &process, argument, waker),
            terminal::SET_CONTROLLING => {
                // No session's terminal is taken from it, whatever the argument asks for.
                job_control::acquire(self, &process)?;
            }
            terminal::GET_FOREGROUND => {
                let group = job_control::foreground(self, &process)?;
                caller.copy_out(argument, &group.to_le_bytes())?;
            }
            terminal::GET_SESSION => {
                let session = job_control::session(self, &process)?;
                caller.copy_out(argument, &session.to_le_bytes())?;
            }
            terminal::SET_FOREGROUND => {
                job_control::require_own(self, &process)?;
                let mut bytes = [0; 4];
                caller.copy_in(argument, &mut bytes)?;
                job_control::set_foreground(self, &process, i32::from_le_bytes(bytes))?;
            }
            _ => return Poll::Ready(self.control_device(caller, request, argument)),
        }
        Poll::Ready(Ok(0))
    }

    /// Performs the requests that concern no processes.
    pub(super) fn control_device(&self, caller: &dyn Caller, request: u32, argument: usize) -> Result<usize, Errno> {
        match request {
            terminal::GET => {
                let settings = self.state.lock().discipline.settings();
                caller.copy_out(argument, &settings.to_bytes())?;
            }
            terminal::SET | terminal::SET_AND_WAIT | terminal::SET_AND_FLUSH => {
                let mut bytes = [0; Termios::SIZE];
                caller.copy_in(argument, &mut bytes)?;
                let mut state = self.state.lock();
                if request == terminal::SET_AND_FLUSH {
                    state.discipline.flush();
                }
                state.discipline.set(Termios::from_bytes(bytes));
                // There may be something to read now, or room for keys.
                state.readers.wake_all();
                state.output.wake();
            }
            terminal::DRAIN => {}
            terminal::FLUSH => {
                let (input, output) = match argument {
                    terminal::queue::INPUT => (true, false),
                    terminal::queue::OUTPUT => (false, true),
                    terminal::queue::BOTH => (true, true),
                    _ => return Err(Errno::EINVAL),
                };
                self.flush(input, output);
            }
            terminal::GET_WINDOW_SIZE => {
                let mut bytes = [0; 8];
                let window = self.state.lock().window;
                for (place, number) in bytes.chunks_exact_mut(2).zip(window) {
                    place.copy_from_slice(&number.to_le_bytes());
                }
                caller.copy_out(argument, &bytes)?;
            }
            terminal::WRITTEN => {
                let Output::Master(master) = &self.state.lock().output else { return Err(Errno::ENOTTY) };
                caller.copy_out(argument, &(master.readable() as i32).to_le_bytes())?;
            }
            terminal::READABLE => {
                let count = self.state.lock().discipline.readable() as i32;
                caller.copy_out(argument, &count.to_le_bytes())?;
            }
            _ => return Err(Errno::ENOTTY),
        }
        Ok(0)
    }

    /// Forgets keys that were not read, and output that the master has not read.
    pub(super) fn flush(&self, input: bool, output: bool) {
        let mut state = self.state.lock();
        if input {
            state.discipline.flush();
        }
        if let Output::Master(master) = &mut state.output {
            if output {
                master.forget_output();
            }
            master.wake();
        }
        if output {
            state.writers.wake_all();
        }
    }

    /// Sets the size of the window, and tells the foreground of a new one (`SIGWINCH`).
    pub(super) fn set_window(
        &self,
        caller: &dyn Caller,
        process: &Process,
        argument: usize,
        waker: Option<&Waker>,
    ) -> Attempt {
        let mut bytes = [0; 8];
        caller.copy_in(argument, &mut bytes)?;
        let window = core::array::from_fn(|at| u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]));
        // The turn first: the foreground that is told must find the new size.
        let Poll::Ready(turn) = SignalTurn::take(process, waker) else { return Poll::Pending };
        let is_new = core::mem::replace(&mut self.state.lock().window, window) != window;
        if let Some(group) = self.foreground_of_session().filter(|_| is_new) {
            turn.send(group, [Some(Signal::WINCH), None]);
        }
        Poll::Ready(Ok(0))
    }
}

/// Returns whether a request is one that only the foreground may make.
fn changes_settings(request: u32) -> bool {
    matches!(
        request,
        terminal::SET
            | terminal::SET_AND_WAIT
            | terminal::SET_AND_FLUSH
            | terminal::DRAIN
            | terminal::FLUSH
            | terminal::SET_FOREGROUND
    )
}

/// Returns whether a request is carried out after all output has left.
fn awaits_silence(request: u32) -> bool {
    matches!(request, terminal::SET_AND_WAIT | terminal::SET_AND_FLUSH | terminal::DRAIN)
}

/// Returns the process that makes a call.
pub(super) fn process_of(caller: &dyn Caller) -> Result<Arc<Process>, Errno> {
    table::find(caller.number()).ok_or(Errno::ESRCH)
}

/// An open terminal.
pub(crate) struct TerminalFile {
    terminal: Arc<Terminal>,
    /// The node through which it was opened.
    place: Option<Place>,
    /// Hang-ups of the terminal before it was opened.
    hangups: u32,
}

impl TerminalFile {
    /// Opens a terminal through a node. `EIO` if nothing is at its other end, or if that has locked it.
    pub(crate) fn new(terminal: Arc<Terminal>, place: Option<Place>) -> Result<TerminalFile, Errno> {
        let hangups = {
            let mut state = terminal.state.lock();
            if let Output::Master(master) = &mut state.output {
                master.slave_opens()?;
            }
            terminal.hangups.load(Ordering::Relaxed)
        };
        Ok(TerminalFile { terminal, place, hangups })
    }

    /// Makes it the controlling terminal of the session that a process leads, if that has none and can have it.
    pub(crate) fn becomes_controlling(&self, process: &Process) {
        // Otherwise it is opened all the same.
        let _ = job_control::acquire(&self.terminal, process);
    }

    fn is_hung_up(&self) -> bool {
        self.terminal.hangups.load(Ordering::Relaxed) != self.hangups
    }
}

impl Drop for TerminalFile {
    fn drop(&mut self) {
        let mut state = self.terminal.state.lock();
        // Under the lock: a hang-up has counted this one.
        let is_counted = self.terminal.hangups.load(Ordering::Relaxed) == self.hangups;
        if let Output::Master(master) = &mut state.output
            && is_counted
        {
            master.slave_closes();
        }
    }
}

impl FileOperations for TerminalFile {
    fn properties(&self) -> Properties {
        Properties { largest_step: LARGEST_STEP as u32, ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        self.place.as_ref().map_or_else(|| status_of_device(self.terminal.device, 0o600), status_of)
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        if self.is_hung_up() {
            return Poll::Ready(Ok(0));
        }
        match job_control::require_foreground(&self.terminal, &*process_of(caller)?, Signal::TTIN, waker) {
            Poll::Ready(permitted) => permitted?,
            Poll::Pending => return Poll::Pending,
        }
        let read = self.terminal.read(caller, buffer, waker);
        // A hang-up that came before the registration has woken no waiter.
        if read.is_pending() && self.is_hung_up() {
            waker.inspect(|waker| self.forget_reader(waker));
            return Poll::Ready(Ok(0));
        }
        read
    }

    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, waker: Option<&Waker>) -> Attempt {
        if self.is_hung_up() {
            return Poll::Ready(Err(Errno::EIO));
        }
        if *done == 0 && self.terminal.stops_background_output() {
            match job_control::require_foreground(&self.terminal, &*process_of(caller)?, Signal::TTOU, waker) {
                Poll::Ready(permitted) => permitted?,
                Poll::Pending => return Poll::Pending,
            }
        }
        let written = self.terminal.write(caller, buffer, done, waker);
        if written.is_pending() && self.is_hung_up() {
            waker.inspect(|waker| self.forget_writer(waker));
            return Poll::Ready(Err(Errno::EIO));
        }
        written
    }

    fn readiness(&self, _: &dyn Caller, wanted: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let input = if self.terminal.is_readable(waker)? { event::IN | event::RDNORM } else { 0 };
        let is_asked = wanted & (event::OUT | event::WRNORM) != 0;
        let output = if is_asked && self.terminal.is_writable(waker)? { event::OUT | event::WRNORM } else { 0 };
        Ok(input | output | if self.is_hung_up() { HUNG_UP } else { 0 })
    }

    fn forget_reader(&self, waker: &Waker) {
        self.terminal.state.lock().readers.forget(waker);
    }

    fn forget_writer(&self, waker: &Waker) {
        self.terminal.state.lock().writers.forget(waker);
    }

    fn control(&self, caller: &dyn Caller, command: u32, argument: usize, waker: Option<&Waker>) -> Attempt {
        match command {
            terminal::SET_FOREGROUND if self.is_hung_up() => Poll::Ready(Err(Errno::ENOTTY)),
            _ if self.is_hung_up() => Poll::Ready(Err(Errno::EIO)),
            _ => self.terminal.control(caller, command, argument, waker),
        }
    }
}

/// Events of a terminal that was hung up: no call on it waits.
const HUNG_UP: u32 = event::IN | event::RDNORM | event::OUT | event::WRNORM | event::ERR | event::HUP;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    const INTERRUPT: u8 = 3;

    /// A terminal beside the console, which has the serial line for its output.
    fn new() -> Terminal {
        Terminal::new(DeviceNumber { major: 4, minor: 99 }, Output::Serial, [1, 2, 3, 4]).unwrap()
    }

    #[test]
    fn a_reader_is_woken_by_a_complete_line_alone() {
        run(|_| {
            let terminal = new();
            assert_eq!(terminal.press(b'a'), None);
            assert_eq!(terminal.is_readable(None), Ok(false));
            assert_eq!(terminal.press(b'\r'), None);
            assert_eq!(terminal.is_readable(None), Ok(true));
            terminal.flush(false, true);
            assert_eq!(terminal.is_readable(None), Ok(true));
            terminal.flush(true, false);
            assert_eq!(terminal.is_readable(None), Ok(false));
        });
    }

    #[test]
    fn keys_signal_the_foreground_of_a_session_that_has_the_terminal() {
        run(|program| {
            let process = program.process();
            let terminal = new();
            assert_eq!(terminal.press(INTERRUPT), None, "it belongs to no session");
            terminal.session.store(process.session(), Ordering::Relaxed);
            assert_eq!(terminal.press(INTERRUPT), None, "no group is in the foreground");
            terminal.foreground.store(process.group(), Ordering::Relaxed);
            assert_eq!(terminal.press(INTERRUPT), Some((Signal::INT, process.group())));
            terminal.session.store(process.session() + 1, Ordering::Relaxed);
            assert_eq!(terminal.press(INTERRUPT), None, "the group is another session's");
        });
    }

    #[test]
    fn the_console_is_never_hung_up() {
        run(|_| {
            let terminal = Arc::new(new());
            let file = TerminalFile::new(terminal.clone(), None).unwrap();
            terminal.hang_up();
            assert!(!file.is_hung_up());
        });
    }
}
