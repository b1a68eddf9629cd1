//! Clocks, randomness, counters, and the machine as a whole.

use abi_unix::Counter;
use abi_unix::types::{SYSTEM_NAME_FIELD, TimeSpec, reboot};

use crate::{Result, call};

/// Reads a clock of [`abi_unix::types::clock`].
///
/// # Errors
///
/// `EINVAL` for a clock that does not exist.
#[doc(alias = "clock_gettime")]
pub fn time(clock: u32) -> Result<TimeSpec> {
    let mut time = TimeSpec::default();
    // SAFETY: the kernel writes one `struct timespec` to exclusively borrowed memory; every bit pattern is a valid one.
    unsafe { call!(GetTime, clock, &raw mut time) }?;
    Ok(time)
}

/// Blocks the calling worker for a duration.
///
/// # Errors
///
/// `EINVAL` for nanoseconds out of range.
#[doc(alias = "nanosleep")]
pub fn sleep(duration: TimeSpec) -> Result<()> {
    // SAFETY: the duration lives through the call.
    unsafe { call!(Sleep, &raw const duration, 0) }.map(drop)
}

/// The required quality of random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Randomness {
    /// Unpredictable: waits until the kernel's generator has a seed.
    Secret,
    /// Unpredictable, or `EAGAIN` instead of waiting (`GRND_NONBLOCK`).
    SecretOrNone,
    /// Available at once (`GRND_INSECURE`).
    Any,
}

/// Fills a buffer with random bytes; returns their number.
///
/// # Errors
///
/// `EAGAIN` for [`Randomness::SecretOrNone`].
#[doc(alias = "getrandom")]
pub fn random(buffer: &mut [u8], randomness: Randomness) -> Result<usize> {
    let flags = match randomness {
        Randomness::Secret => 0,
        Randomness::SecretOrNone => 1,
        Randomness::Any => 4,
    };
    // SAFETY: the kernel writes at most `len` bytes to an exclusively borrowed buffer.
    unsafe { call!(GetRandom, buffer.as_mut_ptr(), buffer.len(), flags) }
}

/// Reads the kernel's counters, in the order of [`Counter::ALL`].
///
/// # Errors
///
/// `ENOSYS` from a kernel that does not count; `EPERM` without `CAP_PERFMON`.
pub fn counters() -> Result<[u64; Counter::ALL.len()]> {
    let mut counters = [0u64; Counter::ALL.len()];
    // SAFETY: the kernel writes at most that many bytes to exclusively borrowed memory.
    unsafe { call!(Counters, counters.as_mut_ptr(), size_of_val(&counters)) }?;
    Ok(counters)
}

/// Reads one of the kernel's counters.
///
/// # Errors
///
/// As [`counters`].
pub fn counter(counter: Counter) -> Result<u64> {
    counters().map(|counters| counters[counter as usize])
}

/// Returns the names of the system: system, node, release, version, machine, domain, each NUL-terminated.
///
/// # Errors
///
/// None, except from a kernel without the call.
#[doc(alias = "uname")]
pub fn name() -> Result<[[u8; SYSTEM_NAME_FIELD]; 6]> {
    let mut name = [[0u8; SYSTEM_NAME_FIELD]; 6];
    // SAFETY: the kernel writes one `struct utsname` to exclusively borrowed memory.
    unsafe { call!(SystemName, name.as_mut_ptr()) }?;
    Ok(name)
}

/// Writes a line to the kernel's log.
///
/// # Errors
///
/// `EPERM` without `CAP_SYSLOG`.
#[doc(alias("syslog", "dmesg"))]
pub fn log(line: &str) -> Result<()> {
    // SAFETY: the line lives through the call.
    unsafe { call!(Log, line.as_ptr(), line.len()) }.map(drop)
}

/// Restarts the machine.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_BOOT`.
#[doc(alias = "reboot")]
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
