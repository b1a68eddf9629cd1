//! What carries a process's calls in the kernel, for comparisons.

use crate::{Result, call};

/// Coroutines, or kernel threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum KernelSide {
    /// Coroutines, as usual.
    Coroutines = 0,
    /// A kernel thread for each worker and thread, which sleeps while a call waits.
    WaitingThreads = 1,
    /// The same, but transfers are tried again and again, others having their turn in between.
    RetryingThreads = 2,
    /// As waiting threads; and one kernel thread that polls all asynchronous transfers.
    PollingThread = 3,
}

/// Chooses for the caller, and for the workers and threads that start from now on.
///
/// # Errors
///
/// `ENOMEM` if there is no memory for a kernel thread.
pub fn choose(side: KernelSide) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(KernelSide, side as usize) }.map(drop)
}
