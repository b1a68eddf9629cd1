//! The calls that set limits of scheduling, and show them.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi_queue::{Mode, Priority, SystemMode};
use abi_unix::types::{Scheduling, scheduling, system_scheduling};
use abi_unix::{Act, Errno};
use hal_api::Machine as _;
use platform::Machine;

use crate::process::class::{Class, ClassAndNice};
use crate::process::user::UserBuffer;
use crate::process::{Process, authority, table, thread};
use crate::scheduling::standing::{DEEPEST, Setter, claim_worth, wake_watchdog};
use crate::scheduling::{set_bound_ns, set_system_mode, stretch};
use crate::time;

/// Returns the process that a call names: 0 is the caller.
pub(crate) fn meant(caller: &Arc<Process>, id: u32) -> Result<Arc<Process>, Errno> {
    if id == 0 { Ok(caller.clone()) } else { meant_by_number(caller, id) }
}

fn meant_by_number(caller: &Arc<Process>, id: u32) -> Result<Arc<Process>, Errno> {
    if id == caller.id { Ok(caller.clone()) } else { table::find(id).ok_or(Errno::ESRCH) }
}

/// Returns the process that a call names by the number of one of its threads, or by its own: 0 is the caller.
pub(crate) fn meant_by_thread(caller: &Arc<Process>, id: i32) -> Result<Arc<Process>, Errno> {
    let id = u32::try_from(id).map_err(|_| Errno::EINVAL)?;
    if id == 0 {
        return Ok(caller.clone());
    }
    let process = meant_by_number(caller, thread::process_of(id))?;
    if id != process.id {
        thread::living(&process, id as usize)?;
    }
    Ok(process)
}

/// Performs the `get_scheduling` call.
pub(crate) fn get(caller: &Arc<Process>, id: u32, buffer: UserBuffer) -> Result<usize, Errno> {
    let process = meant(caller, id)?;
    authority::permit_towards(caller, &process, Act::Inspect)?;
    let words = describe(&process).words();
    let mut bytes = [0; size_of::<Scheduling>()];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    caller.copy_out(buffer.address(), &bytes[..bytes.len().min(buffer.len())])?;
    Ok(bytes.len())
}

/// Describes the present scheduling of a process.
pub(crate) fn describe(process: &Process) -> Scheduling {
    let standing = &process.standing;
    let limit = {
        let mut limits = standing.budget.limits.lock();
        let now = Machine::now();
        limits.all().for_each(|limit| limit.advance(now));
        limits.effective()
    };
    Scheduling {
        ceiling: standing.ceiling().number().into(),
        priority: claim_worth(process.claimed_priority()).number().into(),
        mode: standing.mode() as u64,
        privilege: process.authority.permits(Act::ScheduleMore).into(),
        budget_ns: if limit.ticks == u64::MAX { scheduling::NO_LIMIT } else { time::ns_at_ticks(limit.ticks) },
        period_ns: time::ns_at_ticks(limit.period),
        used_ns: time::ns_at_ticks(limit.used),
        cpu_ns: time::ns_at_ticks(process.cpu_ticks()),
        exhausted: standing.times_exhausted.load(Ordering::Relaxed).into(),
        boosts: standing.boosts.load(Ordering::Relaxed).into(),
    }
}

/// Performs the `set_scheduling` call.
#[doc(alias = "sched_setattr")]
#[doc(alias = "setpriority")]
pub(crate) fn set(caller: &Arc<Process>, id: u32, attribute: u32, value: u64, period_ns: u64) -> Result<(), Errno> {
    let process = meant(caller, id)?;
    if attribute != scheduling::PRIVILEGE {
        authority::permit_towards(caller, &process, Act::Schedule)?;
    }
    let privileged = caller.authority.permits(Act::ScheduleMore);
    let standing = &process.standing;
    match attribute {
        scheduling::CEILING => {
            let ceiling = u8::try_from(value).ok().and_then(Priority::new).ok_or(Errno::EINVAL)?;
            // No process gives more than it has.
            if !privileged && ceiling.is_more_important_than(caller.standing.ceiling()) {
                return Err(Errno::EPERM);
            }
            standing.ceiling.store(ceiling.number(), Ordering::Relaxed);
            process.shared.tell_ceiling(ceiling);
            process.order_workers_anew();
            process.interrupt_all_workers();
        }
        scheduling::BUDGET => {
            if !(scheduling::SHORTEST_PERIOD_NS..=scheduling::LONGEST_PERIOD_NS).contains(&period_ns) || value == 0 {
                return Err(Errno::EINVAL);
            }
            if standing.budget.depth >= DEEPEST {
                return Err(Errno::EAGAIN);
            }
            let period = time::ticks_at_ns(period_ns);
            let ticks = if value == scheduling::NO_LIMIT { u64::MAX } else { time::ticks_at_ns(value) };
            let by = match (privileged, Arc::ptr_eq(&process, caller)) {
                (true, _) => Setter::Privileged,
                (false, true) => Setter::Itself,
                (false, false) => Setter::Parent,
            };
            let now = Machine::now();
            let before = standing.budget.refilled_at(now);
            standing.budget.change(ticks, period, by, now)?;
            standing.budget.covers_children.store(true, Ordering::Relaxed);
            // The watchdog sleeps until the first refill that it has seen. Its looks are charged to no process, so no
            // other change wakes it.
            if standing.budget.refilled_at(now) < before {
                wake_watchdog();
            }
        }
        scheduling::MODE => {
            let mode = Mode::from_number(value).ok_or(Errno::EINVAL)?;
            if mode == Mode::Strict {
                stretch::watch_returns();
            }
            standing.mode.store(mode as u8, Ordering::Relaxed);
            process.shared.tell_mode(mode);
            process.interrupt_all_workers();
        }
        scheduling::PRIVILEGE => {
            if value > 1 {
                return Err(Errno::EINVAL);
            }
            authority::give_all_or_nothing(caller, &process, value == 1)?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// Gives a process a class. `EPERM` if the caller may not change it, or not make it more important.
pub(crate) fn set_class(caller: &Process, process: &Process, class: Class) -> Result<(), Errno> {
    authority::permit_towards(caller, process, Act::Schedule)?;
    process.set_class_and_nice(|present| {
        let before = present.class;
        // As on Linux, a process cannot shake off the flag for its children either.
        let is_more = before.is_less_than(class) || before.ends_with_fork() && !class.ends_with_fork();
        if is_more && !caller.authority.permits(Act::ScheduleMore) {
            return Err(Errno::EPERM);
        }
        Ok(ClassAndNice { class, ..present })
    })
}

/// Performs the `set_system_scheduling` call.
pub(crate) fn set_system(caller: &Process, attribute: u32, value: u64) -> Result<(), Errno> {
    if !matches!(attribute, system_scheduling::MODE | system_scheduling::STARVATION_BOUND) {
        return Err(Errno::EINVAL);
    }
    authority::permit(caller, Act::ScheduleSystem)?;
    if attribute == system_scheduling::MODE {
        set_system_mode(SystemMode::from_number(value).ok_or(Errno::EINVAL)?);
    } else {
        if value != 0 && value < system_scheduling::SHORTEST_BOUND_NS {
            return Err(Errno::EINVAL);
        }
        set_bound_ns(value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::run;

    #[test]
    fn limits_are_shown_as_they_were_set_and_nonsense_is_refused() {
        run(|program| {
            let set = |attribute: u32, value: usize, period: usize| [0, attribute as usize, value, period];
            let nonsense = [
                set(scheduling::CEILING, 64, 0),
                set(scheduling::BUDGET, 0, 10_000_000),
                set(scheduling::BUDGET, 1_000_000, 1),
                set(scheduling::MODE, 9, 0),
                set(scheduling::PRIVILEGE, 2, 0),
                set(99, 0, 0),
            ];
            for arguments in nonsense {
                assert_eq!(program.call(SystemCall::SetScheduling, arguments), Err(Errno::EINVAL), "{arguments:?}");
            }
            assert_eq!(program.call(SystemCall::SetSystemScheduling, [99, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::GetScheduling, [30_000, 0, 0]), Err(Errno::ESRCH));
            assert_eq!(program.call(SystemCall::SetScheduling, set(scheduling::CEILING, 5, 0)), Ok(0));
            let budget = set(scheduling::BUDGET, 3_000_000, 10_000_000);
            assert_eq!(program.call(SystemCall::SetScheduling, budget), Ok(0));
            let shown = describe(&program.process());
            assert_eq!((shown.ceiling, shown.budget_ns, shown.period_ns), (5, 3_000_000, 10_000_000));
        });
    }
}
