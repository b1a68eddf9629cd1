//! Terminals: their settings, the sessions that they control, and the process groups that get the signals of their
//! keys.

use abi_unix::types::{Termios, open, terminal};

use crate::{Descriptor, Result, call};

/// The moment at which new settings come into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At once.
    Now,
    /// When all written bytes have been sent.
    Drained,
    /// When all written bytes have been sent; unread input is dropped.
    Flushed,
}

/// Returns the settings of a terminal; fails for other files.
///
/// # Errors
///
/// `ENOTTY` if it is no terminal.
#[doc(alias("tcgetattr", "isatty"))]
pub fn settings(descriptor: i32) -> Result<Termios> {
    let mut bytes = [0; Termios::SIZE];
    // SAFETY: the kernel writes that many bytes to exclusively borrowed memory.
    unsafe { call!(DeviceControl, descriptor, terminal::GET, bytes.as_mut_ptr()) }?;
    Ok(Termios::from_bytes(bytes))
}

/// Changes the settings of a terminal.
///
/// # Errors
///
/// `ENOTTY` if it is no terminal.
#[doc(alias = "tcsetattr")]
pub fn set(descriptor: i32, settings: &Termios, when: When) -> Result<()> {
    let request = match when {
        When::Now => terminal::SET,
        When::Drained => terminal::SET_AND_WAIT,
        When::Flushed => terminal::SET_AND_FLUSH,
    };
    let bytes = settings.to_bytes();
    // SAFETY: the bytes live through the call, which reads them.
    unsafe { call!(DeviceControl, descriptor, request, bytes.as_ptr()) }.map(drop)
}

/// Waits until all bytes that were written have left the machine, as far as the terminal can tell.
///
/// # Errors
///
/// `ENOTTY` if it is no terminal.
#[doc(alias = "tcdrain")]
pub fn drain(descriptor: i32) -> Result<()> {
    // SAFETY: no memory is named; 1 asks for the wait alone, without a break.
    unsafe { call!(DeviceControl, descriptor, terminal::DRAIN, 1) }.map(drop)
}

/// Returns the process group in a terminal's foreground.
///
/// # Errors
///
/// `ENOTTY` if it is not the terminal of the caller's session.
#[doc(alias = "tcgetpgrp")]
pub fn foreground(descriptor: i32) -> Result<u32> {
    let mut group = 0u32;
    // SAFETY: the kernel writes one word to exclusively borrowed memory.
    unsafe { call!(DeviceControl, descriptor, terminal::GET_FOREGROUND, &raw mut group) }?;
    Ok(group)
}

/// Puts a process group into a terminal's foreground: its processes get the signals of keys. A caller in the background
/// that does not ignore `SIGTTOU` is stopped.
///
/// # Errors
///
/// `ESRCH` if the group is empty, `EPERM` if it is of another session, `ENOTTY` if it is not the terminal of the
/// caller's session.
#[doc(alias = "tcsetpgrp")]
pub fn set_foreground(descriptor: i32, group: u32) -> Result<()> {
    // SAFETY: the word lives through the call, which reads it.
    unsafe { call!(DeviceControl, descriptor, terminal::SET_FOREGROUND, &raw const group) }.map(drop)
}

/// Simulates a key press.
///
/// # Errors
///
/// `ENOTTY` if it is no terminal.
#[doc(alias = "TIOCSTI")]
pub fn insert(descriptor: i32, key: u8) -> Result<()> {
    // SAFETY: the byte lives through the call, which reads it.
    unsafe { call!(DeviceControl, descriptor, terminal::INSERT, &raw const key) }.map(drop)
}

/// Returns the number of bytes that a read would find.
///
/// # Errors
///
/// `ENOTTY` if it is no terminal.
#[doc(alias = "FIONREAD")]
pub fn readable(descriptor: i32) -> Result<usize> {
    let mut count = 0u32;
    // SAFETY: the kernel writes one word to exclusively borrowed memory.
    unsafe { call!(DeviceControl, descriptor, terminal::READABLE, &raw mut count) }?;
    Ok(count as usize)
}

/// Returns rows and columns, as set last; a serial line does not report them.
///
/// # Errors
///
/// `ENOTTY` if it is no terminal.
#[doc(alias = "TIOCGWINSZ")]
pub fn window_size(descriptor: i32) -> Result<(u16, u16)> {
    let mut size = [0u16; 4];
    // SAFETY: the kernel writes that many words to exclusively borrowed memory.
    unsafe { call!(DeviceControl, descriptor, terminal::GET_WINDOW_SIZE, size.as_mut_ptr()) }?;
    Ok((size[0], size[1]))
}

/// Makes a pseudo-terminal whose slave can be opened; returns its master.
///
/// # Errors
///
/// `ENOSPC` if there are too many, `ENOMEM`, `EMFILE`.
#[doc(alias("posix_openpt", "openpty", "unlockpt"))]
pub fn pseudo_terminal() -> Result<Descriptor> {
    let master = crate::file::open(c"/dev/ptmx", open::RDWR | open::CLOEXEC, 0)?;
    lock_slave(master.raw(), false)?;
    Ok(master)
}

/// Keeps the slave of a pseudo-terminal from being opened, or lets it be opened.
///
/// # Errors
///
/// `ENOTTY` if the descriptor is no master.
#[doc(alias = "TIOCSPTLCK")]
pub fn lock_slave(master: i32, is_locked: bool) -> Result<()> {
    let word = u32::from(is_locked);
    // SAFETY: the word lives through the call, which reads it.
    unsafe { call!(DeviceControl, master, terminal::SET_LOCK, &raw const word) }.map(drop)
}

/// Returns the number of a pseudo-terminal, whose slave is `/dev/pts/` and that number.
///
/// # Errors
///
/// `ENOTTY` if the descriptor is no master.
#[doc(alias("ptsname", "TIOCGPTN"))]
pub fn slave_number(master: i32) -> Result<u32> {
    let mut number = 0u32;
    // SAFETY: the kernel writes one word to exclusively borrowed memory.
    unsafe { call!(DeviceControl, master, terminal::GET_PSEUDO_NUMBER, &raw mut number) }?;
    Ok(number)
}

/// Opens the slave of a pseudo-terminal with flags of [`abi_unix::types::open`]. Without `NOCTTY` it becomes the
/// terminal of the session that the caller leads, if that has none.
///
/// # Errors
///
/// `EIO` if it is locked, `ENOTTY` if the descriptor is no master, `EMFILE`, `ENOMEM`.
#[doc(alias = "TIOCGPTPEER")]
pub fn open_slave(master: i32, flags: u32) -> Result<Descriptor> {
    // SAFETY: the call has no pointers.
    unsafe { call!(DeviceControl, master, terminal::OPEN_PEER, flags) }.map(Descriptor::from_result)
}

/// Tells a terminal the size of its window, in rows and columns; a new one is told to the foreground (`SIGWINCH`).
///
/// # Errors
///
/// `ENOTTY` if it is no terminal.
#[doc(alias = "TIOCSWINSZ")]
pub fn set_window_size(descriptor: i32, rows: u16, columns: u16) -> Result<()> {
    let size = [rows, columns, 0, 0];
    // SAFETY: the words live through the call, which reads them.
    unsafe { call!(DeviceControl, descriptor, terminal::SET_WINDOW_SIZE, size.as_ptr()) }.map(drop)
}

/// Makes a terminal that no session has the terminal of the session that the caller leads.
///
/// # Errors
///
/// `EPERM` if the caller leads no session, if that has a terminal, or if another has this one; `ENOTTY` if it is none.
#[doc(alias = "TIOCSCTTY")]
pub fn acquire(descriptor: i32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(DeviceControl, descriptor, terminal::SET_CONTROLLING, 0) }.map(drop)
}

/// Gives up the terminal of the caller's session: for the caller alone, or for the session that it leads.
///
/// # Errors
///
/// `ENOTTY` if it is not the terminal of the caller's session.
#[doc(alias = "TIOCNOTTY")]
pub fn give_up(descriptor: i32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(DeviceControl, descriptor, terminal::GIVE_UP_CONTROLLING, 0) }.map(drop)
}

/// Returns the session whose terminal it is.
///
/// # Errors
///
/// `ENOTTY` if it is not the terminal of the caller's session.
#[doc(alias = "tcgetsid")]
pub fn session_of(descriptor: i32) -> Result<u32> {
    let mut session = 0u32;
    // SAFETY: the kernel writes one word to exclusively borrowed memory.
    unsafe { call!(DeviceControl, descriptor, terminal::GET_SESSION, &raw mut session) }?;
    Ok(session)
}

/// Begins a session with the caller as its leader, in a group of its own and without a terminal.
///
/// # Errors
///
/// `EPERM` if the caller leads a group.
#[doc(alias = "setsid")]
pub fn begin_session() -> Result<u32> {
    // SAFETY: the call has no pointers.
    unsafe { call!(SetSession) }.map(|session| session as u32)
}

/// Returns the session of a process (0: the caller).
///
/// # Errors
///
/// `ESRCH` if there is no such process.
#[doc(alias = "getsid")]
pub fn session(process: u32) -> Result<u32> {
    // SAFETY: the call has no pointers.
    unsafe { call!(GetSession, process) }.map(|session| session as u32)
}

/// Puts a process (0: the caller) into a group; 0 is a group of its own.
///
/// # Errors
///
/// `ESRCH` if it is neither the caller nor a living child, `EPERM` if there is no such group.
#[doc(alias = "setpgid")]
pub fn set_group(process: u32, group: u32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(SetProcessGroup, process, group) }.map(drop)
}

/// Returns the group of a process (0: the caller).
///
/// # Errors
///
/// `ESRCH` if there is no such process.
#[doc(alias = "getpgid")]
pub fn group(process: u32) -> Result<u32> {
    // SAFETY: the call has no pointers.
    unsafe { call!(GetProcessGroup, process) }.map(|group| group as u32)
}
