//! The scheduling trace, and the current activity of harts and processes: for tools that watch the system.

use core::sync::atomic::AtomicU64;

use abi_unix::trace::{HART_WORDS, LATENCY_WORDS, PROCESS_WORDS, RECORD_WORDS, subject};

use crate::{Result, call};

/// Takes records of the trace; returns their bytes.
///
/// # Errors
///
/// `ENODEV` if there is no trace; `EPERM` without `CAP_PERFMON`.
pub fn read(buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes to an exclusively borrowed buffer.
    unsafe { call!(TraceRead, buffer.as_mut_ptr(), buffer.len()) }
}

/// Adds records about coroutines of this process to the trace.
///
/// # Errors
///
/// `ENODEV` if there is no trace; `EINVAL` for records of another kind.
pub fn write(records: &[[AtomicU64; RECORD_WORDS]]) -> Result<usize> {
    // SAFETY: the kernel reads as many bytes as the records have.
    unsafe { call!(TraceWrite, records.as_ptr(), size_of_val(records)) }
}

/// Reads the activity of the harts, as many as fit; returns their number.
///
/// # Errors
///
/// `EPERM` without `CAP_PERFMON`.
pub fn harts(words: &mut [[u64; HART_WORDS]]) -> Result<usize> {
    // SAFETY: the kernel writes at most that many bytes to exclusively borrowed memory.
    unsafe { call!(Snapshot, subject::HARTS, 0, words.as_mut_ptr(), size_of_val(words)) }
}

/// Reads the activity of the processes above this number, in ascending order, as many as fit or a few at a time;
/// returns their number.
///
/// # Errors
///
/// `EPERM` without `CAP_PERFMON`.
pub fn processes(above: u32, words: &mut [[u64; PROCESS_WORDS]]) -> Result<usize> {
    // SAFETY: the kernel writes at most that many bytes to exclusively borrowed memory.
    unsafe { call!(Snapshot, subject::PROCESSES, above, words.as_mut_ptr(), size_of_val(words)) }
}

/// Has the kernel print where the workers of a process are, or those of all processes for 0; programs with the runtime
/// print where their coroutines wait. The lines come after the call.
///
/// # Errors
///
/// `ESRCH` if there is no such process; `EPERM` without `CAP_PERFMON`.
#[doc(alias("backtrace", "dump", "taskdump"))]
pub fn tell_positions(process: u32) -> Result<()> {
    // SAFETY: the kernel writes nothing.
    unsafe { call!(Snapshot, subject::POSITIONS, process, core::ptr::null::<u8>(), 0) }.map(drop)
}

/// Reads the latencies of requests at one priority, if the kernel measures them.
///
/// # Errors
///
/// `ENODEV` if it does not measure them, or there is no such priority; `EPERM` without the privilege.
pub fn latencies(priority: u32, words: &mut [u64; LATENCY_WORDS]) -> Result<usize> {
    // SAFETY: the kernel writes at most that many bytes to exclusively borrowed memory.
    unsafe { call!(Snapshot, subject::LATENCIES, priority, words.as_mut_ptr(), size_of_val(words)) }
}
