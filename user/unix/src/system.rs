//! Clocks, randomness, counters, and the machine as a whole.

use abi_unix::Counter;
use abi_unix::types::{SYSTEM_NAME_FIELD, TimeSpec, reboot};

use crate::{Result, call};

/// Reads a clock of [`abi_unix::types::clock`].
///
/// # Errors
///
/// `EINVAL` for a clock that does not exist.
pub fn time(clock: u32) -> Result<TimeSpec> {
    let mut time = TimeSpec::default();
    // SAFETY: the kernel writes one `struct timespec` to memory that is ours; every bit pattern is a valid one.
    unsafe { call!(GetTime, clock, &raw mut time) }?;
    Ok(time)
}

/// The calling worker sleeps for a time.
///
/// # Errors
///
/// `EINVAL` for nanoseconds out of range.
pub fn sleep(duration: TimeSpec) -> Result<()> {
    // SAFETY: the duration lives through the call.
    unsafe { call!(Sleep, &raw const duration, 0) }.map(drop)
}

/// When random bytes are good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Randomness {
    /// When nobody can guess them: waits until the kernel's generator has a seed.
    Secret,
    /// Likewise, or `EAGAIN` in the place of waiting (`GRND_NONBLOCK`).
    SecretOrNone,
    /// At once (`GRND_INSECURE`).
    Any,
}

/// Fills a buffer with random bytes; returns how many.
///
/// # Errors
///
/// `EAGAIN` for [`Randomness::SecretOrNone`].
pub fn random(buffer: &mut [u8], randomness: Randomness) -> Result<usize> {
    let flags = match randomness {
        Randomness::Secret => 0,
        Randomness::SecretOrNone => 1,
        Randomness::Any => 4,
    };
    // SAFETY: the kernel writes at most `len` bytes to a buffer that is ours.
    unsafe { call!(GetRandom, buffer.as_mut_ptr(), buffer.len(), flags) }
}

/// The kernel's counters, in the order of [`Counter::ALL`].
///
/// # Errors
///
/// `ENOSYS` from a kernel that does not count; `EPERM` without `CAP_PERFMON`.
pub fn counters() -> Result<[u64; Counter::ALL.len()]> {
    let mut counters = [0u64; Counter::ALL.len()];
    // SAFETY: the kernel writes at most that many bytes to memory that is ours.
    unsafe { call!(Counters, counters.as_mut_ptr(), size_of_val(&counters)) }?;
    Ok(counters)
}

/// One of the kernel's counters.
///
/// # Errors
///
/// As [`counters`].
pub fn counter(counter: Counter) -> Result<u64> {
    counters().map(|counters| counters[counter as usize])
}

/// Describes the system: system, node, release, version, machine, domain, each NUL-terminated.
///
/// # Errors
///
/// None but for a kernel without the call.
pub fn name() -> Result<[[u8; SYSTEM_NAME_FIELD]; 6]> {
    let mut name = [[0u8; SYSTEM_NAME_FIELD]; 6];
    // SAFETY: the kernel writes one `struct utsname` to memory that is ours.
    unsafe { call!(SystemName, name.as_mut_ptr()) }?;
    Ok(name)
}

/// Writes a line to the kernel's log.
///
/// # Errors
///
/// `EPERM` without `CAP_SYSLOG`.
pub fn log(line: &str) -> Result<()> {
    // SAFETY: the line lives through the call.
    unsafe { call!(Log, line.as_ptr(), line.len()) }.map(drop)
}

/// Starts the machine anew.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_BOOT`.
pub fn restart() -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Reboot, reboot::MAGIC1, reboot::MAGIC2, reboot::RESTART, 0) }.map(drop)
}

/// Switches the machine off.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_BOOT`.
pub fn power_off() -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Reboot, reboot::MAGIC1, reboot::MAGIC2, reboot::POWER_OFF, 0) }.map(drop)
}
