//! Processes.

use core::ffi::{CStr, c_char};
use core::time::Duration;

use abi_unix::types::{limit, process_control, usage, wait_kind};

use crate::{Errno, Result, call};

/// The way in which a process ended, as `wait4` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Exited with this status.
    Exited(u8),
    /// Killed by this signal (a fault or `kill`).
    Killed(u8),
}

impl Ending {
    /// Decodes the status word of wait4(2).
    pub const fn from_status(status: i32) -> Ending {
        match (status & 0x7f) as u8 {
            0 => Ending::Exited((status >> 8) as u8),
            signal => Ending::Killed(signal),
        }
    }

    /// Returns whether the process exited with status 0.
    pub const fn is_success(self) -> bool {
        matches!(self, Ending::Exited(0))
    }
}

/// The child that [`wait`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// The first one to end.
    Any,
    /// The child with this number.
    Process(u32),
}

impl Child {
    /// Returns the first argument of `wait4`.
    pub const fn to_argument(self) -> usize {
        match self {
            Child::Any => usize::MAX,
            Child::Process(number) => number as usize,
        }
    }
}

/// A NULL-terminated list of strings, for a program's arguments or environment.
#[derive(Clone, Copy, Debug)]
pub struct StringList<'a>(&'a [*const c_char]);

impl<'a> StringList<'a> {
    /// The empty list.
    pub const EMPTY: StringList<'static> = StringList(&[core::ptr::null()]);

    /// Creates a list from pointers to strings and one NULL at the end; `None` if that is missing.
    ///
    /// # Safety
    ///
    /// The pointers before the first NULL must point to NUL-terminated strings that live as long as `'a`.
    pub unsafe fn new(pointers: &'a [*const c_char]) -> Option<StringList<'a>> {
        pointers.last().is_some_and(|last| last.is_null()).then_some(StringList(pointers))
    }

    /// Returns the address of the list.
    pub const fn as_ptr(self) -> *const *const c_char {
        self.0.as_ptr()
    }
}

/// Starts a program in a new process and returns the process's number. The new process's descriptors 0, 1 and 2 are the
/// three given (-1: none). `priority` (0 to 63) is the process's until it publishes one itself.
///
/// # Errors
///
/// `ENOENT`, `EACCES`, `ENOEXEC`, `E2BIG`, `ENOMEM`, `EBADF`, `EAGAIN` if there are too many processes.
#[doc(alias = "posix_spawn")]
pub fn spawn(
    path: &CStr,
    arguments: StringList<'_>,
    environment: StringList<'_>,
    descriptors: [i32; 3],
    priority: u8,
) -> Result<u32> {
    // SAFETY: path, lists and descriptors live through the call.
    unsafe { call!(Spawn, path.as_ptr(), arguments.as_ptr(), environment.as_ptr(), descriptors.as_ptr(), priority) }
        .map(|number| number as u32)
}

/// Replaces the program of this process. Returns only if that fails.
///
/// # Errors
///
/// `ENOENT`, `EACCES`, `ENOEXEC`, `E2BIG`, `ENOMEM`.
#[doc(alias("execve", "exec"))]
pub fn execute(path: &CStr, arguments: StringList<'_>, environment: StringList<'_>) -> Errno {
    // SAFETY: path and lists live through the call; if it succeeds nothing of this program remains.
    match unsafe { call!(Execute, path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) } {
        Err(error) => error,
        Ok(_) => Errno::EIO,
    }
}

/// Waits for a child to end. `None` if `options` has `WNOHANG` and none has ended.
///
/// # Errors
///
/// `ECHILD` if there is no such child.
#[doc(alias("wait4", "waitpid"))]
pub fn wait(child: Child, options: u32) -> Result<Option<(u32, Ending)>> {
    let mut status = 0i32;
    // SAFETY: the kernel writes one `i32` to exclusively borrowed memory.
    let number = unsafe { call!(Wait, child.to_argument(), &raw mut status, options, 0) }?;
    Ok((number != 0).then(|| (number as u32, Ending::from_status(status))))
}

/// A change of a child's state, as `waitid` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has ended.
    Ended(Ending),
    /// This signal has stopped it.
    Stopped(u8),
    /// It goes on.
    Continued,
}

impl Change {
    /// Decodes the status word of wait4(2).
    pub const fn from_status(status: i32) -> Change {
        match status & 0xff {
            0xff => Change::Continued,
            0x7f => Change::Stopped((status >> 8) as u8),
            _ => Change::Ended(Ending::from_status(status)),
        }
    }
}

/// Waits for a child to end, to stop (`WUNTRACED`) or to go on (`WCONTINUED`), as `options` say. `None` if they have
/// `WNOHANG` and there is no such child yet; with `WNOWAIT` the change stays for another wait.
///
/// # Errors
///
/// `ECHILD` if there is no such child, `EINVAL` if the options ask for nothing.
#[doc(alias = "waitid")]
pub fn wait_for_change(child: Child, options: u32) -> Result<Option<(u32, Change)>> {
    let (kind, id) = match child {
        Child::Any => (wait_kind::ALL, 0),
        Child::Process(number) => (wait_kind::PROCESS, number),
    };
    let mut words = [0u32; 32];
    // SAFETY: the kernel writes a `siginfo_t`, which is as large as the exclusively borrowed words.
    unsafe { call!(WaitIdentified, kind, id, words.as_mut_ptr(), options, 0) }?;
    let (code, number, status) = (words[2], words[4], words[6] as u8);
    Ok((number != 0).then_some((
        number,
        match code {
            CLD_EXITED => Change::Ended(Ending::Exited(status)),
            CLD_STOPPED => Change::Stopped(status),
            CLD_CONTINUED => Change::Continued,
            _ => Change::Ended(Ending::Killed(status)),
        },
    )))
}

/// Codes of a `siginfo_t` about a child.
const CLD_EXITED: u32 = 1;
const CLD_STOPPED: u32 = 5;
const CLD_CONTINUED: u32 = 6;

/// The subject of [`processor_time`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[doc(alias("getrusage", "RUSAGE_CHILDREN"))]
pub enum UsageOf {
    /// The calling process.
    Process = usage::PROCESS,
    /// Children that were waited for, and their descendants.
    Children = usage::CHILDREN,
    /// The calling worker or thread.
    Worker = usage::WORKER,
}

/// Returns the processor time that was used so far, by programs and by the kernel for them (`getrusage`).
#[doc(alias = "getrusage")]
pub fn processor_time(whose: UsageOf) -> Duration {
    let mut bytes = [0u64; 18];
    // SAFETY: the kernel writes a `struct rusage`, which is of this length, to exclusively borrowed memory. All causes
    // of failure are excluded here.
    let _ = unsafe { call!(GetUsage, whose as i32, bytes.as_mut_ptr()) };
    Duration::from_secs(bytes[0] + bytes[2]) + Duration::from_micros(bytes[1] + bytes[3])
}

/// Returns a limit of a process (0: the caller), by one of the numbers of [`abi_unix::types::limit`]: the limit in
/// force, and the largest that may be set without privilege.
///
/// # Errors
///
/// `ESRCH`, `EINVAL`, `EPERM` if the process is neither the caller nor its child.
#[doc(alias("getrlimit", "prlimit"))]
pub fn limit(process: u32, resource: u32) -> Result<(u64, u64)> {
    let mut bytes = [0; limit::SIZE];
    // SAFETY: the kernel writes a `struct rlimit64`, which is of this length, to exclusively borrowed memory.
    unsafe { call!(ProcessLimit, process, resource, 0usize, bytes.as_mut_ptr()) }?;
    Ok(limit::from_bytes(bytes))
}

/// Sets a limit of a process (0: the caller).
///
/// # Errors
///
/// As [`limit()`]; `EINVAL` if the limit in force would exceed the largest; `EPERM` to raise the largest without
/// privilege.
#[doc(alias("setrlimit", "prlimit"))]
pub fn set_limit(process: u32, resource: u32, soft: u64, hard: u64) -> Result<()> {
    let bytes = limit::to_bytes(soft, hard);
    // SAFETY: the kernel reads a `struct rlimit64`, which is of this length.
    unsafe { call!(ProcessLimit, process, resource, bytes.as_ptr(), 0usize) }.map(drop)
}

/// Sends a signal, whose default action is taken. Signal 0 only checks whether the process exists.
///
/// # Errors
///
/// `ESRCH`, `EINVAL`; `EPERM` for a process that is neither the caller nor below it, without `CAP_KILL`.
pub fn kill(process: u32, signal: u32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Kill, process, signal) }.map(drop)
}

/// Sends a signal to all processes of a group that the caller may signal.
///
/// # Errors
///
/// `ESRCH` if the group is empty, `EINVAL`, `EPERM`.
#[doc(alias = "killpg")]
pub fn kill_group(group: u32, signal: u32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(Kill, -i64::from(group), signal) }.map(drop)
}

/// Ends this process with all its workers.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: the call has no pointers. It does not return; if a kernel let it, it is called again.
        let _ = unsafe { call!(ExitGroup, status) };
        core::hint::spin_loop();
    }
}

/// Names the calling thread, or the process with its workers; of a longer name the first 15 bytes count.
///
/// # Errors
///
/// None that this function can cause.
#[doc(alias = "prctl")]
#[doc(alias = "PR_SET_NAME")]
pub fn set_name(name: &CStr) -> Result<()> {
    let mut bytes = [0; process_control::NAME];
    let length = name.count_bytes().min(process_control::NAME - 1);
    bytes[..length].copy_from_slice(&name.to_bytes()[..length]);
    // SAFETY: the kernel reads the bytes up to their NUL.
    unsafe { call!(ProcessControl, process_control::SET_NAME, bytes.as_ptr(), 0, 0, 0) }.map(drop)
}

/// Returns the name of the calling thread, or of the process with its workers, with NULs behind it.
#[doc(alias = "PR_GET_NAME")]
pub fn name() -> [u8; process_control::NAME] {
    let mut bytes = [0; process_control::NAME];
    // SAFETY: the kernel writes as many bytes to exclusively borrowed memory.
    let _ = unsafe { call!(ProcessControl, process_control::GET_NAME, bytes.as_mut_ptr(), 0, 0, 0) };
    bytes
}

/// Chooses the signal that the process gets when its parent ends; 0 for none.
///
/// # Errors
///
/// `EINVAL` for a number that is no signal's.
#[doc(alias = "PR_SET_PDEATHSIG")]
pub fn set_signal_of_orphan(signal: u32) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(ProcessControl, process_control::SET_PDEATHSIG, signal, 0, 0, 0) }.map(drop)
}

/// Returns the number of this process.
#[doc(alias = "getpid")]
pub fn number() -> u32 {
    // SAFETY: the call has no pointers and does not fail.
    unsafe { call!(GetProcess) }.unwrap_or(0) as u32
}

/// Returns the number of the process that started this one; 0 if that has ended.
#[doc(alias = "getppid")]
pub fn parent() -> u32 {
    // SAFETY: the call has no pointers and does not fail.
    unsafe { call!(GetParent) }.unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_words_are_those_of_linux() {
        assert_eq!(Ending::from_status(0), Ending::Exited(0));
        assert_eq!(Ending::from_status(101 << 8), Ending::Exited(101));
        assert_eq!(Ending::from_status(9), Ending::Killed(9));
        assert!(Ending::from_status(0).is_success());
        assert!(!Ending::from_status(11).is_success());
    }

    #[test]
    fn a_string_list_ends_with_null() {
        // SAFETY: no list without its end gets through, and the other has no strings.
        unsafe {
            assert!(StringList::new(&[]).is_none());
            assert!(StringList::new(&[core::ptr::null()]).is_some());
            assert!(StringList::new(&[c"x".as_ptr()]).is_none());
        }
    }
}
