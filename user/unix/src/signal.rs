//! Handlers of signals.

use crate::{Result, call};

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
