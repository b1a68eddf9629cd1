//! Handlers of signals.

use crate::{Descriptor, Result, call};

/// Makes a function the handler of a signal. An interrupted call goes on behind it.
///
/// # Errors
///
/// `EINVAL` for a signal that cannot be handled.
///
/// # Safety
///
/// The handler runs between any two instructions of the program: it must not take locks, allocate, or use data that the
/// interrupted code may be changing. Calls to the kernel and atomics are fine.
#[doc(alias("sigaction", "signal"))]
pub unsafe fn handle(signal: u32, handler: extern "C" fn(i32)) -> Result<()> {
    // `struct sigaction`: the handler, its flags, the signals that are blocked meanwhile.
    const RESTART: u64 = 0x1000_0000;
    let action = [handler as *const () as u64, RESTART, 0];
    // SAFETY: the kernel reads the three words; the handler's behaviour is the caller's promise.
    unsafe { call!(SignalAction, signal, action.as_ptr(), 0usize, size_of::<u64>()) }.map(drop)
}

/// Ignores a signal. A shell does so with `SIGTTOU`, which would stop it when it changes the terminal's foreground from
/// the background.
///
/// # Errors
///
/// `EINVAL` for a signal that cannot be ignored.
pub fn ignore(signal: u32) -> Result<()> {
    const IGNORE: u64 = 1;
    let action = [IGNORE, 0, 0];
    // SAFETY: the kernel reads the three words.
    unsafe { call!(SignalAction, signal, action.as_ptr(), 0usize, size_of::<u64>()) }.map(drop)
}

/// Opens a file from which the signals of a set are read instead of being delivered, 128 bytes for each: bit `n - 1` is
/// signal `n`, which the reader must have blocked. The flags are `NONBLOCK` and `CLOEXEC` of `open`.
///
/// # Errors
///
/// `EINVAL` for other flags, `EMFILE`, `ENOMEM`.
#[doc(alias = "signalfd")]
#[doc(alias = "signalfd4")]
pub fn open_file(signals: u64, flags: u32) -> Result<Descriptor> {
    // SAFETY: the kernel reads one word.
    unsafe { call!(SignalFile, usize::MAX, &raw const signals, size_of::<u64>(), flags) }.map(Descriptor::from_result)
}

/// Changes the signals that are read from such a file.
///
/// # Errors
///
/// `EBADF`, `EINVAL` for another kind of file.
pub fn set_signals_of(file: i32, signals: u64) -> Result<()> {
    // SAFETY: the kernel reads one word.
    unsafe { call!(SignalFile, file, &raw const signals, size_of::<u64>(), 0) }.map(drop)
}
