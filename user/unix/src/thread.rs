//! Threads, and futexes.

use core::sync::atomic::AtomicU32;

use abi_unix::types::{TimeSpec, futex};

use crate::{Result, call};

/// Starts a thread that calls `entry` with `argument` on the stack that ends at `stack`, with `thread_pointer` in `tp`.
/// Its number is stored in `number`, which becomes 0, and is woken as a futex, when the kernel is done with the thread
/// and its stack. Returns the number.
///
/// # Errors
///
/// `EAGAIN` if the process has reached its limit of threads, `ENOMEM`.
///
/// # Safety
///
/// The memory below `stack` must be the thread's own until `number` is 0 again, and `number` must not move.
#[cfg(on_cops)]
pub unsafe fn start(
    entry: extern "C" fn(usize) -> !,
    argument: usize,
    stack: *mut u8,
    thread_pointer: usize,
    number: *const AtomicU32,
) -> Result<u32> {
    let number = number as usize;
    let registers = [FLAGS as usize, stack as usize, number, thread_pointer, number];
    // SAFETY: the caller's condition.
    unsafe { start_by(crate::SystemCall::Clone, registers, entry, argument) }
}

/// Flags of a thread that this module starts.
#[cfg(on_cops)]
const FLAGS: u64 = {
    use abi_unix::types::clone;
    clone::SHARED | clone::SYSVSEM | clone::SETTLS | clone::PARENT_SETTID | clone::CHILD_CLEARTID
};

/// Starts a thread as [`start`] does, by `clone3`, on a stack of so many bytes.
///
/// # Errors
///
/// Those of [`start`].
///
/// # Safety
///
/// The stack must be the thread's own until `number` is 0 again, and `number` must not move.
#[cfg(on_cops)]
pub unsafe fn start_on(
    entry: extern "C" fn(usize) -> !,
    argument: usize,
    (stack, size): (*mut u8, usize),
    thread_pointer: usize,
    number: *const AtomicU32,
) -> Result<u32> {
    let arguments = abi_unix::types::clone::Arguments {
        flags: FLAGS,
        child: number as u64,
        parent: number as u64,
        stack: stack as u64,
        stack_size: size as u64,
        thread_pointer: thread_pointer as u64,
        ..Default::default()
    };
    let arguments = arguments.to_bytes();
    let registers = [&raw const arguments as usize, arguments.len(), 0, 0, 0];
    // SAFETY: the caller's condition; the kernel reads the structure before it returns.
    unsafe { start_by(crate::SystemCall::CloneWith, registers, entry, argument) }
}

/// Makes a call that starts a thread, which jumps to its entry.
///
/// # Safety
///
/// These registers must start a thread with all memory in common, on a stack of its own.
#[cfg(on_cops)]
unsafe fn start_by(
    call: crate::SystemCall,
    registers: [usize; 5],
    entry: extern "C" fn(usize) -> !,
    argument: usize,
) -> Result<u32> {
    let result: usize;
    // SAFETY: the call returns in the caller as any other does. The thread finds 0 in `a0` and all other registers
    // unchanged; it jumps to its entry at once, on a stack of its own, and never comes back here.
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
            inlateout("a0") registers[0] => result,
            in("a1") registers[1],
            in("a2") registers[2],
            in("a3") registers[3],
            in("a4") registers[4],
            in("a7") call as usize,
            options(nostack),
        );
    }
    abi_unix::errno::decode(result).map(|number| number as u32)
}

/// No threads can be started on this machine.
///
/// # Errors
///
/// `ENOSYS`.
///
/// # Safety
///
/// No condition.
#[cfg(not(on_cops))]
pub unsafe fn start(
    _entry: extern "C" fn(usize) -> !,
    _argument: usize,
    _stack: *mut u8,
    _thread_pointer: usize,
    _number: *const AtomicU32,
) -> Result<u32> {
    Err(crate::Errno::ENOSYS)
}

/// No threads can be started on this machine.
///
/// # Errors
///
/// `ENOSYS`.
///
/// # Safety
///
/// No condition.
#[cfg(not(on_cops))]
pub unsafe fn start_on(
    _entry: extern "C" fn(usize) -> !,
    _argument: usize,
    _stack: (*mut u8, usize),
    _thread_pointer: usize,
    _number: *const AtomicU32,
) -> Result<u32> {
    Err(crate::Errno::ENOSYS)
}

/// Returns the number of the calling thread, or worker.
#[doc(alias = "gettid")]
pub fn current() -> u32 {
    // SAFETY: the call has no pointers; it does not fail.
    unsafe { call!(GetThread) }.unwrap_or(0) as u32
}

/// Waits for a wake-up at this word, unless the word is not `expected` any more; or until `timeout_ns` nanoseconds have
/// passed. May also return without a cause (a spurious wake-up).
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

/// Wakes up to `count` waiters at this word; returns their number.
pub fn futex_wake(word: &AtomicU32, count: u32) -> usize {
    // SAFETY: the kernel only compares the address.
    unsafe { call!(Futex, word.as_ptr(), futex::WAKE | futex::PRIVATE, count.min(i32::MAX as u32)) }.unwrap_or(0)
}
