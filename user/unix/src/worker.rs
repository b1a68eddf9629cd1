//! Workers: the execution contexts of a process.

use crate::{Result, call};

/// No limit, for [`wait`].
pub const NO_LIMIT: u64 = u64::MAX;

/// Adds a worker that starts at `entry` with `argument` in `a0` and its index in `a1`, on the stack that ends at
/// `stack`, with `thread_pointer` in `tp`. Returns its index.
///
/// # Errors
///
/// `EAGAIN` if the process has reached its limit of workers, `EINVAL`, `ENOMEM`.
///
/// # Safety
///
/// `entry` must be a function that never returns, and the memory below `stack` must be its own.
pub unsafe fn create(
    entry: extern "C" fn(usize, usize) -> !,
    stack: *mut u8,
    argument: usize,
    thread_pointer: usize,
) -> Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { call!(WorkerCreate, entry as usize, stack, argument, thread_pointer) }
}

/// Blocks the calling worker until a completion beyond `seen` has been posted, another worker wakes it, or `timeout_ns`
/// have passed.
///
/// # Errors
///
/// `ETIMEDOUT` if the time has passed.
pub fn wait(seen: u64, timeout_ns: u64) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(WorkerWait, seen, timeout_ns) }.map(drop)
}

/// Wakes a worker of this process, now or at its next [`wait`].
///
/// # Errors
///
/// `ESRCH` or `EINVAL` if there is no such worker.
pub fn wake(index: usize) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(WorkerWake, index) }.map(drop)
}

/// Lets other workers and processes of the same priority run.
pub fn yield_now() {
    // SAFETY: the call has no pointers; it does not fail.
    let _ = unsafe { call!(Yield) };
}

/// Requests an early end of the asynchronous call with this token.
///
/// # Errors
///
/// `ENOENT` if no call with this token is in flight: it was never given, or its call is over.
pub fn cancel(token: u64) -> Result<()> {
    // SAFETY: the call has no pointers. The memory of the cancelled call stays the kernel's until its completion.
    unsafe { call!(Cancel, token) }.map(drop)
}

/// Gives the calling worker a request ring with `requests` entries, and enlarges the completion ring to at least
/// `completions` entries (0: unchanged). Returns the request ring's address.
///
/// # Errors
///
/// `EINVAL` for numbers that are no powers of two from 64 to 4,096, `EEXIST` if the worker has a ring, `EBUSY` if the
/// completion ring would have to grow and is not empty, `ENOMEM`.
#[doc(alias = "io_uring_setup")]
pub fn ring_setup(requests: usize, completions: usize) -> Result<usize> {
    // SAFETY: the call has no pointers; its mapping is new.
    unsafe { call!(RingSetup, requests, completions) }
}

/// Has the kernel take the requests in the ring of a worker of this process. With
/// [`RING_WAKE`](abi_unix::call::RING_WAKE) an idle hart does it, if there is one.
///
/// # Errors
///
/// `ENXIO` if the worker has no ring, `EPROTO` if its indexes were impossible.
#[doc(alias = "io_uring_enter")]
pub fn ring_enter(worker: usize, flags: usize) -> Result<()> {
    // SAFETY: the call has no pointers. The memory named by requests is covered by the promise of the code that made
    // them.
    unsafe { call!(RingEnter, worker, flags) }.map(drop)
}

/// Ends the calling worker; the last one ends the process.
pub fn exit() -> ! {
    loop {
        // SAFETY: the call has no pointers. It does not return; if a kernel let it, it is called again.
        let _ = unsafe { call!(Exit, 0) };
        core::hint::spin_loop();
    }
}
