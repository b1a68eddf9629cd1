//! Pseudo-terminals: terminals whose device is a program (pty(7)).
//!
//! Opening `/dev/ptmx` makes a pair. Its *master* reads what programs write to the *slave*, a terminal like the console
//! that is opened as `/dev/pts/N` or by the master (`TIOCGPTPEER`); what is written to the master are keys. While the
//! input holds as much as it can, and a program could read some of it, a writer of keys waits; an echo without room is
//! lost.
//!
//! When the master is closed, the leader of the slave's session and the foreground get `SIGHUP`, and the slave is hung
//! up. That goes in steps ([`HangUp`]), since a group may have many members. While no slave is open, after one has
//! been, a master that has read everything gets `EIO`.
//!
//! There are [`MOST`] pairs, and a process may have as many as it leaves to others. The process that opens the master
//! pays for all memory of the pair, from the beginning on.
//! The nodes of slaves are in the first file system. Rejected: a file system of their own. It would be one more mount,
//! and no program looks for more than the names.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::task::{Poll, Waker, ready};

use abi_unix::Errno;
use abi_unix::types::{Status, epoll as event, open as flag, terminal};
use filesystem::rights::Ownership;
use filesystem::{Access, DeviceNumber, SpecialFile};
use spin::{Mutex, MutexGuard};
use waiters::Waiters;

use crate::files::file::{self, Attempt, FileOperations, OpenFile, Properties};
use crate::files::job_control::{self, HANGUP};
use crate::files::line_discipline;
use crate::files::mounts::Place;
use crate::files::remains::{Remain, leave};
use crate::files::stored::status_of;
use crate::files::terminal::{Output, Terminal, TerminalFile, TerminalState, process_of};
use crate::files::tree::{self, SLAVES};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::signal_sending::GroupSignals;
use crate::process::user::{Caller, UserBuffer};
use crate::process::{Process, signal_delivery, table};
use crate::scheduling::steps;

/// Pairs at a time; `ENOSPC` for more, and for a process that has as many as are left.
const MOST: usize = 64;

/// Bytes of output that wait for the master.
const CAPACITY: usize = 4096;

/// Bytes of the kernel for a pair: the terminal, its keys and its output, and the node of the slave.
const MEMORY: usize = size_of::<Terminal>() + line_discipline::CAPACITY * size_of::<u16>() + CAPACITY + 768;

/// Bytes that are moved at once between a program and a master.
const PIECE: usize = 256;

/// Parts of an edit that a key counts for by itself.
const OF_A_KEY: usize = 2;

/// A place in the table of pairs.
struct TerminalPair {
    terminal: Arc<Terminal>,
    /// The account of the process that has opened the master.
    account: Arc<Account>,
    /// Set when the master was closed and the session is still to be told.
    is_closed: bool,
}

static PAIRS: Mutex<[Option<TerminalPair>; MOST]> = Mutex::new([const { None }; MOST]);

/// The master, as its terminal sees it.
pub(super) struct Master {
    /// Output that it has not read. Never holds more than the room that was made at first.
    output: VecDeque<u8>,
    /// Wakers of callers that wait for output.
    readers: Waiters,
    /// Wakers of callers that wait for room for keys.
    writers: Waiters,
    is_open: bool,
    /// Whether the slave cannot be opened yet (`TIOCSPTLCK`).
    is_locked: bool,
    /// Open files of the slave that are not hung up.
    slaves: usize,
    /// Whether the slave was ever opened.
    was_opened: bool,
    _charge: Charge,
}

impl Master {
    /// Returns the number of bytes for which there is room.
    pub(super) fn room(&self) -> usize {
        CAPACITY - self.output.len()
    }

    /// Returns the number of bytes that a read would find.
    pub(super) fn readable(&self) -> usize {
        self.output.len()
    }

    /// Adds output for which there is room.
    pub(super) fn show(&mut self, bytes: &[u8]) {
        self.output.extend(&bytes[..bytes.len().min(self.room())]);
        self.readers.wake_all();
    }

    /// Drops output that was not read.
    pub(super) fn forget_output(&mut self) {
        self.output.clear();
    }

    /// Wakes everything that waits, to look again.
    pub(super) fn wake(&mut self) {
        self.readers.wake_all();
        self.writers.wake_all();
    }

    /// Counts an open file of the slave. `EIO` if the slave is locked, or the master closed.
    pub(super) fn slave_opens(&mut self) -> Result<(), Errno> {
        if self.is_locked || !self.is_open {
            return Err(Errno::EIO);
        }
        self.slaves += 1;
        self.was_opened = true;
        Ok(())
    }

    /// Uncounts an open file of the slave.
    pub(super) fn slave_closes(&mut self) {
        self.slaves -= 1;
        self.wake();
    }

    /// Uncounts all open files of the slave.
    pub(super) fn hang_up(&mut self) {
        self.slaves = 0;
        self.wake();
    }

    fn is_deserted(&self) -> bool {
        self.was_opened && self.slaves == 0
    }
}

/// Returns the slave that is the controlling terminal of a session.
pub(super) fn of_session(session: u32) -> Option<Arc<Terminal>> {
    let pairs = PAIRS.lock();
    let mut terminals = pairs.iter().flatten().map(|pair| &pair.terminal);
    terminals.find(|terminal| terminal.session.load(Ordering::Relaxed) == session).cloned()
}

/// Opens a slave. `EIO` if there is none with this number, or if it is locked.
pub(crate) fn open_slave(number: u32, place: Option<Place>) -> Result<TerminalFile, Errno> {
    let terminal = {
        let pairs = PAIRS.lock();
        let pair = pairs.get(number as usize).and_then(Option::as_ref).filter(|pair| !pair.is_closed);
        pair.ok_or(Errno::EIO)?.terminal.clone()
    };
    TerminalFile::new(terminal, place)
}

/// Returns the name of a slave's node in the directory of devices.
fn name_of(number: u32) -> alloc::string::String {
    format!("pts/{number}")
}

/// The hang-up of a slave whose master was closed: the foreground of its session is told, some members in each step.
///
/// Rejected: a coroutine of the kernel's own that tells all. Nobody would pay for that, and a process could close one
/// master after the other, each with a large group in its foreground.
struct HangUp {
    terminal: Arc<Terminal>,
    number: u32,
    /// The process that has opened the master, and pays.
    owner: u32,
    /// The session that it loses.
    session: u32,
    signals: Option<GroupSignals>,
}

impl HangUp {
    /// Tells the leader of the session.
    fn begin(terminal: &Arc<Terminal>, number: u32, owner: u32, session: u32) -> HangUp {
        let foreground = terminal.foreground_of_session();
        if let Some(leader) = table::find(session).filter(|leader| Some(leader.group()) != foreground) {
            HANGUP.into_iter().for_each(|signal| signal_delivery::send_from_kernel(&leader, signal));
        }
        let signals = foreground.map(|group| GroupSignals::new(group, HANGUP.map(Some)));
        HangUp { terminal: terminal.clone(), number, owner, session, signals }
    }
}

impl Remain for HangUp {
    fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    /// Tells some of the foreground; hangs up when all know.
    fn step(&mut self) -> bool {
        // A shell that found the end of its input first would end without a word to its jobs.
        if self.signals.as_mut().is_some_and(|signals| !signals.step()) {
            return false;
        }
        job_control::release(&self.terminal, self.session);
        self.terminal.hang_up();
        let pair = PAIRS.lock()[self.number as usize].take();
        drop(pair);
        true
    }
}

/// The master, as an open file.
pub(crate) struct MasterFile {
    terminal: Arc<Terminal>,
    number: u32,
    /// The process that has opened it.
    owner: u32,
    /// The node through which it was opened.
    place: Place,
}

impl MasterFile {
    /// Makes a pair. `ENOSPC` if there are too many, `ENOMEM`.
    #[doc(alias("ptmx_open", "posix_openpt"))]
    pub(crate) fn open(process: &Process, place: Place) -> Result<MasterFile, Errno> {
        let charge = process.account.charge(Resource::Memory, MEMORY)?;
        let mut output = VecDeque::new();
        output.try_reserve_exact(CAPACITY).map_err(|_| Errno::ENOMEM)?;
        let (readers, writers) = (Waiters::new(), Waiters::new());
        let master = Master {
            output,
            readers,
            writers,
            is_open: true,
            is_locked: true,
            slaves: 0,
            was_opened: false,
            _charge: charge,
        };
        let (terminal, number) = {
            let mut pairs = PAIRS.lock();
            if !process.account.may_have_one_more(MOST, pairs.iter().flatten().map(|pair| &pair.account)) {
                return Err(Errno::ENOSPC);
            }
            let number = pairs.iter().position(Option::is_none).ok_or(Errno::ENOSPC)?;
            let device = DeviceNumber { major: SLAVES, minor: number as u32 };
            let terminal = Arc::new(Terminal::new(device, Output::Master(master), [0; 4])?);
            pairs[number] =
                Some(TerminalPair { terminal: terminal.clone(), account: process.account.clone(), is_closed: false });
            (terminal, number as u32)
        };
        // Dropped if the node cannot be made.
        let opened = MasterFile { terminal, number, owner: process.id, place };
        let device = opened.terminal.device;
        let devices = tree::devices();
        let directory = devices.node.stored().ok_or(Errno::EIO)?;
        match devices.mount.tree().make_special_file(
            directory,
            name_of(number).as_bytes(),
            SpecialFile::CharacterDevice(device),
            0o620,
            tree::now(),
        ) {
            Ok(node) => {
                // As on Linux, it belongs to the user that has opened the master.
                if let Some(whom) = process.whom() {
                    let (user, group) = (whom.files.user, whom.files.group);
                    let given = |permissions: Ownership| Ok(Ownership { user, group, ..permissions });
                    node.change_ownership(tree::now(), given).map_err(tree::errno_of)?;
                }
                Ok(opened)
            }
            Err(filesystem::Error::AlreadyExists) => Ok(opened),
            Err(error) => Err(tree::errno_of(error)),
        }
    }

    fn state(&self) -> MutexGuard<'_, TerminalState> {
        self.terminal.state.lock()
    }

    /// Opens the slave for a process; returns the descriptor.
    fn open_peer(&self, process: &Process, flags: u32) -> Result<usize, Errno> {
        process.account.admit()?;
        let access = match flags & flag::ACCESS_MODE {
            flag::RDONLY => Access::Read,
            flag::WRONLY => Access::Write,
            flag::RDWR => Access::ReadWrite,
            _ => return Err(Errno::EINVAL),
        };
        let charge = file::charge(&process.account)?;
        let slave = open_slave(self.number, tree::place_of_device(&name_of(self.number)))?;
        if flags & flag::NOCTTY == 0 && access != Access::Write {
            slave.becomes_controlling(process);
        }
        let file = Arc::new(OpenFile::new(slave, access, flags & flag::NONBLOCK != 0, charge));
        process.descriptors.lock().add(file, flags & flag::CLOEXEC != 0, 0)
    }

    /// Performs the requests that a master alone has; `None` for others.
    fn own_request(&self, caller: &dyn Caller, request: u32, argument: usize) -> Result<Option<usize>, Errno> {
        let tell = |number: u32| caller.copy_out(argument, &number.to_le_bytes());
        let ask = || {
            let mut bytes = [0; 4];
            caller.copy_in(argument, &mut bytes).map(|()| i32::from_le_bytes(bytes))
        };
        match request {
            terminal::GET_PSEUDO_NUMBER => tell(self.number)?,
            terminal::OPEN_PEER => return self.open_peer(&*process_of(caller)?, argument as u32).map(Some),
            terminal::SET_LOCK => {
                let is_locked = ask()? != 0;
                with_master(&mut self.state(), |master| master.is_locked = is_locked);
            }
            terminal::GET_LOCK => {
                let is_locked = with_master(&mut self.state(), |master| master.is_locked);
                tell(u32::from(is_locked))?;
            }
            // There is no packet mode.
            terminal::SET_PACKET_MODE => return if ask()? == 0 { Ok(Some(0)) } else { Err(Errno::EINVAL) },
            terminal::READABLE => {
                let count = with_master(&mut self.state(), |master| master.readable());
                tell(count as u32)?;
            }
            // Keys are the terminal's as soon as they are written.
            terminal::WRITTEN => tell(0)?,
            terminal::GET_FOREGROUND => tell(self.terminal.foreground.load(Ordering::Relaxed))?,
            terminal::GET_SESSION => match self.terminal.session.load(Ordering::Relaxed) {
                0 => return Err(Errno::ENOTTY),
                session => tell(session)?,
            },
            terminal::FLUSH => match argument {
                terminal::queue::INPUT => self.terminal.flush(false, true),
                terminal::queue::OUTPUT => self.terminal.flush(true, false),
                terminal::queue::BOTH => self.terminal.flush(true, true),
                _ => return Err(Errno::EINVAL),
            },
            _ => return Ok(None),
        }
        Ok(Some(0))
    }
}

/// Calls a function with the master of a locked pair.
fn with_master<T>(state: &mut TerminalState, then: impl FnOnce(&mut Master) -> T) -> T {
    let Output::Master(master) = &mut state.output else { unreachable!("a pair has a master") };
    then(master)
}

impl Drop for MasterFile {
    fn drop(&mut self) {
        with_master(&mut self.state(), |master| master.is_open = false);
        let session = self.terminal.session.load(Ordering::Relaxed);
        if session == 0 {
            self.terminal.hang_up();
        }
        let devices = tree::devices();
        if let Some(directory) = devices.node.stored() {
            // A node that stays leads nowhere until the number is another pair's.
            let _ = devices.mount.tree().unlink(directory, name_of(self.number).as_bytes(), tree::now());
        }
        let unused = match &mut PAIRS.lock()[self.number as usize] {
            Some(pair) if session != 0 => {
                pair.is_closed = true;
                None
            }
            place => place.take(),
        };
        drop(unused);
        if session != 0 {
            leave(HangUp::begin(&self.terminal, self.number, self.owner, session));
        }
    }
}

impl FileOperations for MasterFile {
    fn properties(&self) -> Properties {
        Properties { largest_step: 4 * PIECE as u32, ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        status_of(&self.place)
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut state = self.state();
        if state.discipline.is_busy() {
            drop(state);
            let is_left = self.terminal.proceed_for(caller, waker).is_pending();
            state = self.state();
            if is_left && (waker.is_some() || with_master(&mut state, |master| master.output.is_empty())) {
                return Poll::Pending;
            }
        }
        let read = with_master(&mut state, |master| {
            if master.output.is_empty() {
                if master.is_deserted() {
                    return Poll::Ready(Err(Errno::EIO));
                }
                if let Some(waker) = waker {
                    master.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
                }
                return Poll::Pending;
            }
            let mut done = 0;
            while done < buffer.len() && !master.output.is_empty() {
                let piece = master.output.as_slices().0;
                let count = piece.len().min(buffer.len() - done);
                if let Err(error) = caller.copy_out(buffer.address() + done, &piece[..count]) {
                    return Poll::Ready(if done == 0 { Err(error) } else { Ok(done) });
                }
                master.output.drain(..count);
                done += count;
            }
            Poll::Ready(Ok(done))
        });
        if read.is_ready() {
            // There is room for output.
            state.writers.wake_all();
        }
        read
    }

    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, waker: Option<&Waker>) -> Attempt {
        let process = process_of(caller)?;
        let (mut bytes, mut parts) = ([0; PIECE], 0);
        while *done < buffer.len() {
            let wanted = bytes.len().min(buffer.len() - *done);
            if let Err(error) = caller.copy_in(buffer.address() + *done, &mut bytes[..wanted]) {
                return Poll::Ready(if *done == 0 { Err(error) } else { Ok(*done) });
            }
            for &key in &bytes[..wanted] {
                {
                    let mut state = self.state();
                    if state.discipline.is_busy() {
                        drop(state);
                        ready!(self.terminal.proceed_for(caller, waker));
                        state = self.state();
                    }
                    if !state.discipline.has_room() {
                        if let Some(waker) = waker {
                            let registered = with_master(&mut state, |master| master.writers.register(waker));
                            registered.map_err(|_| Errno::ENOMEM)?;
                        }
                        return Poll::Pending;
                    }
                }
                if self.terminal.press_for(&process, key, waker).is_pending() {
                    return Poll::Pending;
                }
                *done += 1;
                parts += OF_A_KEY + self.state().discipline.take_parts();
                if parts >= line_discipline::STEP && *done < buffer.len() {
                    parts = 0;
                    if steps::must_pause(caller, waker) {
                        return Poll::Pending;
                    }
                }
            }
        }
        // If an interrupt is pending, the rest of its last key's work is left to a reader.
        let _ = self.terminal.proceed_for(caller, None);
        Poll::Ready(Ok(*done))
    }

    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut state = self.state();
        let (has_room, is_busy) = (state.discipline.has_room(), state.discipline.is_busy());
        with_master(&mut state, |master| {
            if let Some(waker) = waker {
                master.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
                master.writers.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            let input = if master.output.is_empty() && !is_busy { 0 } else { event::IN | event::RDNORM };
            let room = if has_room { event::OUT | event::WRNORM } else { 0 };
            Ok(input | room | if master.is_deserted() { event::HUP } else { 0 })
        })
    }

    fn forget_reader(&self, waker: &Waker) {
        with_master(&mut self.state(), |master| master.readers.forget(waker));
    }

    fn forget_writer(&self, waker: &Waker) {
        with_master(&mut self.state(), |master| master.writers.forget(waker));
    }

    fn control(&self, caller: &dyn Caller, request: u32, argument: usize, waker: Option<&Waker>) -> Attempt {
        if let Some(result) = self.own_request(caller, request, argument)? {
            return Poll::Ready(Ok(result));
        }
        match request {
            terminal::SET_WINDOW_SIZE => self.terminal.set_window(caller, &*process_of(caller)?, argument, waker),
            terminal::SET_CONTROLLING | terminal::GIVE_UP_CONTROLLING | terminal::SET_FOREGROUND | terminal::INSERT => {
                self.terminal.control(caller, request, argument, waker)
            }
            _ => Poll::Ready(self.terminal.control_device(caller, request, argument)),
        }
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::types::signal;
    use abi_unix::{Counter, SystemCall};

    use super::*;
    use crate::files::remains;
    use crate::observing::counters;
    use crate::testing::{Program, run};

    /// The process that closes a master tells the foreground, of which many get the signal in further steps, before its
    /// call is over: nothing of the pair is left then.
    #[test]
    fn a_large_foreground_is_told_by_the_process_that_closes_the_master() {
        run(|program| {
            let before = program.process().account.used(Resource::Memory);
            let (master, number) = program.open_master();
            let leader = program.spawn(move |program| {
                program.call(SystemCall::SetSession, []).unwrap();
                let path = program.store(format!("/dev/pts/{number}\0").as_bytes());
                let slave = program.call(SystemCall::Open, [0, path, flag::RDWR as usize, 0]).unwrap();
                for _ in 0..40 {
                    program.spawn(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
                }
                let _ = program.read_from(slave, 1);
            });
            let leader = leader.unwrap();
            program.sleep_ns(10_000_000);
            let of_leader = || of_session(leader as u32);
            assert_eq!(of_leader().and_then(|terminal| terminal.foreground_of_session()), Some(leader as u32));
            let last = table::next_after(leader as u32 + 30).unwrap();
            assert_eq!(last.group(), leader as u32);
            let looks = counters::read(Counter::Looks);
            assert_eq!(program.close(master), Ok(0));
            assert!(of_leader().is_none() && PAIRS.lock()[number as usize].is_none(), "the session has lost it");
            assert!(counters::read(Counter::Looks) > looks, "it went in steps");
            assert!(!remains::are_left());
            assert_eq!(program.wait_for(leader), Ok((leader, signal::HUP)));
            program.sleep_ns(10_000_000);
            assert!(last.has_ended());
            drop(last);
            assert_eq!(program.process().account.used(Resource::Memory), before);
        });
    }

    /// A process takes half of the pairs, and what it starts shares them; so others find some.
    #[test]
    fn a_process_leaves_as_many_pairs_as_it_has() {
        run(|program| {
            let open = |program: &mut Program| {
                let path = program.store(b"/dev/ptmx\0");
                let flags = (flag::RDWR | flag::NOCTTY) as usize;
                program.call(SystemCall::Open, [0, path, flags, 0])
            };
            let masters: Vec<usize> = core::iter::from_fn(|| open(program).ok()).collect();
            assert_eq!((masters.len(), open(program)), (MOST / 2, Err(Errno::ENOSPC)));
            let child = program.spawn(move |program| assert_eq!(open(program), Err(Errno::ENOSPC))).unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            // The first process, and another of its children.
            let first = table::find(crate::process::FIRST).unwrap().account.clone();
            let stranger = first.of_a_child().unwrap();
            for (account, more) in [(&first, MOST), (&stranger, MOST / 4)] {
                let mut all: Vec<_> = PAIRS.lock().iter().flatten().map(|pair| pair.account.clone()).collect();
                while account.may_have_one_more(MOST, all.iter()) {
                    all.push(account.clone());
                }
                assert_eq!(all.len(), (MOST / 2 + more).min(MOST));
            }
            masters.into_iter().for_each(|master| assert_eq!(program.close(master), Ok(0)));
        });
    }
}
