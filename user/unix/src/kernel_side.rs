//! The kernel's side of a process's calls, selectable for comparisons.

use crate::{Result, call};

/// The carrier of calls: coroutines, or kernel threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum KernelSide {
    /// Coroutines, as usual.
    Coroutines = 0,
    /// A kernel thread for each worker and thread, which sleeps while a call waits.
    WaitingThreads = 1,
    /// A kernel thread for each worker and thread, which tries transfers again and again, and yields in between.
    RetryingThreads = 2,
    /// As waiting threads; and one kernel thread that polls all asynchronous transfers.
    PollingThread = 3,
}

/// Sets the kernel side of the caller, and of the workers and threads that start from now on.
///
/// # Errors
///
/// `ENOMEM` if there is no memory for a kernel thread.
pub fn choose(side: KernelSide) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(KernelSide, side as usize) }.map(drop)
}
