//! Threads, and the words at which they wait for each other.

use core::sync::atomic::AtomicU32;

use abi_unix::types::{TimeSpec, futex};

use crate::{Result, call};

/// Starts a thread that calls `entry` with `argument` on the stack that ends at `stack`, with `thread_pointer` in `tp`.
/// Its number is stored in `number`, which becomes 0, and is woken as a futex, when the kernel is done with the thread
/// and its stack. Returns the number.
///
/// # Errors
///
/// `EAGAIN` if the process has as many threads as it may have, `ENOMEM`.
///
/// # Safety
///
/// The memory below `stack` must be the thread's own until `number` is 0 again, and `number` must stay where it is.
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
pub unsafe fn start(
    entry: extern "C" fn(usize) -> !,
    argument: usize,
    stack: *mut u8,
    thread_pointer: usize,
    number: *const AtomicU32,
) -> Result<u32> {
    use abi_unix::types::clone;
    let flags = clone::SHARED | clone::SYSVSEM | clone::SETTLS | clone::PARENT_SETTID | clone::CHILD_CLEARTID;
    let result: usize;
    // SAFETY: the caller gets back as from any other call. The thread finds 0 in `a0` and all other registers as they
    // were; it goes to its entry at once, on a stack of its own, and never comes back here.
    unsafe {
        core::arch::asm!(
            "ecall",
            "bnez a0, 2f",
            "mv a0, t2",
            "li ra, 0", // ends the chain of frames for debuggers
            "li fp, 0",
            "jr t1",
            "2:",
            in("t1") entry,
            in("t2") argument,
            inlateout("a0") flags as usize => result,
            in("a1") stack,
            in("a2") number,
            in("a3") thread_pointer,
            in("a4") number,
            in("a7") crate::SystemCall::Clone as usize,
            options(nostack),
        );
    }
    abi_unix::errno::decode(result).map(|number| number as u32)
}

/// There are no threads to be had on this machine.
///
/// # Errors
///
/// `ENOSYS`.
///
/// # Safety
///
/// Nothing is touched.
#[cfg(not(all(target_arch = "riscv64", target_os = "none")))]
pub unsafe fn start(
    _entry: extern "C" fn(usize) -> !,
    _argument: usize,
    _stack: *mut u8,
    _thread_pointer: usize,
    _number: *const AtomicU32,
) -> Result<u32> {
    Err(crate::Errno::ENOSYS)
}

/// The number of the calling thread, or worker.
pub fn current() -> u32 {
    // SAFETY: the call has no pointers; it does not fail.
    unsafe { call!(GetThread) }.unwrap_or(0) as u32
}

/// Waits until somebody wakes those who wait at this word, unless it is not `expected` any more; or until `timeout_ns`
/// nanoseconds have passed. It may also return for no reason.
///
/// # Errors
///
/// `EAGAIN` if the word was not `expected`, `ETIMEDOUT`.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) -> Result<()> {
    let operation = futex::WAIT | futex::PRIVATE;
    let timeout = timeout_ns.map(TimeSpec::from_ns);
    let timeout = timeout.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: word and timeout live through the call, and the kernel writes neither.
    unsafe { call!(Futex, word.as_ptr(), operation, expected, timeout) }.map(drop)
}

/// Wakes up to `count` who wait at this word; returns how many it woke.
pub fn futex_wake(word: &AtomicU32, count: u32) -> usize {
    // SAFETY: the kernel only compares the address.
    unsafe { call!(Futex, word.as_ptr(), futex::WAKE | futex::PRIVATE, count.min(i32::MAX as u32)) }.unwrap_or(0)
}
