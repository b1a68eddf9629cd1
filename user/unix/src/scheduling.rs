//! The scheduling of processes: ceiling, budget, mode, and their state.
//!
//! A process is named by its number; 0 is the caller.

use abi_queue::{Mode, Priority, SystemMode};
use abi_unix::types::{Scheduling, scheduling, system_scheduling};

use crate::{Result, call};

/// Returns the scheduling of a process.
///
/// # Errors
///
/// `ESRCH` if there is no such process; `EPERM` if it is neither the caller nor its descendant, without `CAP_PERFMON`.
pub fn get(process: u32) -> Result<Scheduling> {
    let mut words = [0u64; size_of::<Scheduling>() / 8];
    // SAFETY: the kernel writes at most that many bytes to exclusively borrowed memory.
    unsafe { call!(GetScheduling, process, words.as_mut_ptr(), size_of_val(&words)) }?;
    Ok(Scheduling::from_words(words))
}

fn set(process: u32, attribute: u32, value: u64, period_ns: u64) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(SetScheduling, process, attribute, value, period_ns) }.map(drop)
}

/// Limits the effective priority of the process's claims, and of its children's from now on.
///
/// # Errors
///
/// `EPERM` for a ceiling more important than the caller's own, or for a process that is neither the caller nor its
/// descendant, without `CAP_SYS_NICE`; `ESRCH`.
pub fn set_ceiling(process: u32, ceiling: Priority) -> Result<()> {
    set(process, scheduling::CEILING, ceiling.number().into(), 0)
}

/// Gives the process, together with children that it starts from now on, `budget_ns` nanoseconds of processor time in
/// each period, over all harts; when they are used up it falls behind all others. `None` removes the limit.
///
/// A process's own choice is a second limit beside the one that its parent or a privileged process gave. A new limit is
/// used up as far as the old one was.
///
/// # Errors
///
/// `EINVAL` for no time or a period that is not between 1 ms and 10 s; `EPERM` for a greater share or more at once than
/// it was given, or for a process that is neither the caller nor its descendant, without `CAP_SYS_NICE`; `EAGAIN` if
/// too many budgets are nested; `ESRCH`.
pub fn set_budget(process: u32, budget_ns: Option<u64>, period_ns: u64) -> Result<()> {
    set(process, scheduling::BUDGET, budget_ns.unwrap_or(scheduling::NO_LIMIT), period_ns)
}

/// Sets the mode of a process, and of children that it starts from now on.
///
/// # Errors
///
/// `EPERM` for a process that is neither the caller nor its descendant, without `CAP_SYS_NICE`; `ESRCH`.
pub fn set_mode(process: u32, mode: Mode) -> Result<()> {
    set(process, scheduling::MODE, mode as u64, 0)
}

/// Gives a process all capabilities of the caller, or takes all away; [`crate::authority`] can give some.
///
/// # Errors
///
/// `EPERM` for capabilities that the caller lacks, or for a process that is neither the caller nor its descendant;
/// `ESRCH`.
pub fn set_privilege(process: u32, privileged: bool) -> Result<()> {
    set(process, scheduling::PRIVILEGE, privileged.into(), 0)
}

/// Sets the mode of all executors.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_NICE`.
pub fn set_system_mode(mode: SystemMode) -> Result<()> {
    // SAFETY: the call has no pointers.
    unsafe { call!(SetSystemScheduling, system_scheduling::MODE, mode as u64) }.map(drop)
}

/// Sets the time after which a ready worker runs in any case, in nanoseconds; `None`: never.
///
/// # Errors
///
/// `EINVAL` for less than 1 ms; `EPERM` without `CAP_SYS_NICE`.
pub fn set_starvation_bound(bound_ns: Option<u64>) -> Result<()> {
    let bound = bound_ns.unwrap_or(0);
    // SAFETY: the call has no pointers.
    unsafe { call!(SetSystemScheduling, system_scheduling::STARVATION_BOUND, bound) }.map(drop)
}
