//! The calls on scheduling, and those that observe it.

use alloc::sync::Arc;

use abi_unix::types::{TimeSpec, class, niceness};
use abi_unix::{Act, Errno};

use crate::calls::call::{Call, Decoding, kept_steps};
use crate::observing::{snapshot, trace};
use crate::process::class::Class;
use crate::process::nice_values::{self, NiceProcesses};
use crate::process::{Process, authority};
use crate::scheduling::attributes;
use crate::time;

#[inline(never)]
pub(super) fn get(call: Call<'_>) -> Decoding {
    attributes::get(call.process(), call.unsigned(0), call.buffer(1)?).map(Into::into)
}

#[inline(never)]
pub(super) fn set(call: Call<'_>) -> Decoding {
    let (id, attribute) = (call.unsigned(0), call.unsigned(1));
    attributes::set(call.process(), id, attribute, call.word(2) as u64, call.word(3) as u64).map(Into::into)
}

/// Performs `getpriority`.
#[inline(never)]
pub(super) fn get_nice(call: Call<'_>) -> Decoding {
    let (caller, kind, number) = (call.process(), call.unsigned(0), call.unsigned(1));
    if kind == niceness::OF_PROCESS {
        return Ok(nice_values::answer(&*attributes::meant(caller, number)?).into());
    }
    let processes = NiceProcesses::of(caller, kind, number)?;
    Ok(kept_steps(call.number, processes.get(caller.clone())))
}

/// Performs `setpriority`.
#[inline(never)]
pub(super) fn set_nice(call: Call<'_>) -> Decoding {
    let (caller, kind, number, nice) = (call.process(), call.unsigned(0), call.unsigned(1), call.signed(2));
    if kind == niceness::OF_PROCESS {
        nice_values::set(caller, &*attributes::meant(caller, number)?, nice)?;
        return Ok(0.into());
    }
    let processes = NiceProcesses::of(caller, kind, number)?;
    Ok(kept_steps(call.number, processes.set(caller.clone(), nice)))
}

/// Returns the process of a call on classes. Everybody may look at them, as at nice values.
fn classified(call: &Call<'_>) -> Result<Arc<Process>, Errno> {
    attributes::meant_by_thread(call.process(), call.signed(0))
}

/// Reads a `struct sched_param`.
fn read_parameter(call: &Call<'_>, argument: usize) -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    // As on Linux, which does not look for a page at 0.
    if call.address(argument) == 0 {
        return Err(Errno::EINVAL);
    }
    call.process().copy_in(call.address(argument), &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Performs `sched_getscheduler`.
#[inline(never)]
pub(super) fn get_class(call: Call<'_>) -> Decoding {
    Ok((classified(&call)?.class().number() as usize).into())
}

/// Performs `sched_setscheduler`.
#[inline(never)]
pub(super) fn set_class(call: Call<'_>) -> Decoding {
    if call.signed(1) < 0 {
        return Err(Errno::EINVAL);
    }
    let priority = read_parameter(&call, 2)?;
    let process = classified(&call)?;
    let class = Class::new(call.unsigned(1), priority)?;
    attributes::set_class(call.process(), &process, class).map(Into::into)
}

/// Performs `sched_getparam`.
#[inline(never)]
pub(super) fn get_class_priority(call: Call<'_>) -> Decoding {
    if call.address(1) == 0 {
        return Err(Errno::EINVAL);
    }
    let priority = u32::from(classified(&call)?.class().priority());
    call.process().copy_out(call.address(1), &priority.to_le_bytes()).map(Into::into)
}

/// Performs `sched_setparam`.
#[inline(never)]
pub(super) fn set_class_priority(call: Call<'_>) -> Decoding {
    let priority = read_parameter(&call, 1)?;
    let process = classified(&call)?;
    let class = Class::new(process.class().number(), priority)?;
    attributes::set_class(call.process(), &process, class).map(Into::into)
}

/// Performs `sched_get_priority_max`.
#[inline(never)]
pub(super) fn greatest_class_priority(call: Call<'_>) -> Decoding {
    Ok((*Class::priorities(call.unsigned(0))?.end() as usize).into())
}

/// Performs `sched_get_priority_min`.
#[inline(never)]
pub(super) fn least_class_priority(call: Call<'_>) -> Decoding {
    Ok((*Class::priorities(call.unsigned(0))?.start() as usize).into())
}

/// Performs `sched_rr_get_interval`.
#[inline(never)]
pub(super) fn slice(call: Call<'_>) -> Decoding {
    let ns = match classified(&call)?.class().number() & !class::RESET_ON_FORK {
        class::FIFO => 0,
        _ => time::ns_at_ticks(time::slice_ticks()),
    };
    call.process().copy_out(call.address(1), &TimeSpec::from_ns(ns).to_bytes()).map(Into::into)
}

#[inline(never)]
pub(super) fn set_system(call: Call<'_>) -> Decoding {
    #[cfg(feature = "fail-allocations")]
    if call.unsigned(0) == abi_unix::types::system_scheduling::FAIL_ALLOCATION {
        authority::permit(call.process(), Act::ScheduleSystem)?;
        return Ok(memory::faults::arm(call.process().id, call.word(1)).into());
    }
    attributes::set_system(call.process(), call.unsigned(0), call.word(1) as u64).map(Into::into)
}

#[inline(never)]
pub(super) fn read_trace(call: Call<'_>) -> Decoding {
    let (process, buffer) = (call.process(), call.buffer(0)?);
    authority::permit(process, Act::ReadTrace)?;
    let copy_out = |offset: usize, bytes: &[u8]| process.copy_out(buffer.address() + offset, bytes);
    trace::read(buffer.len(), copy_out).map(Into::into)
}

#[inline(never)]
pub(super) fn write_trace(call: Call<'_>) -> Decoding {
    let (process, buffer) = (call.process(), call.buffer(0)?);
    let worker = (process.id, call.worker.index());
    trace::write(worker, buffer.len(), |bytes| process.copy_in(buffer.address(), bytes)).map(Into::into)
}

#[inline(never)]
pub(super) fn snapshot(call: Call<'_>) -> Decoding {
    snapshot::take(call.process(), call.unsigned(0), call.unsigned(1), call.buffer(2)?).map(Into::into)
}

#[cfg(test)]
mod tests {
    use abi_unix::types::{Scheduling, scheduling as attribute, system_scheduling};
    use abi_unix::{Errno, SystemCall};

    use crate::testing::{Program, run};

    fn described(program: &mut Program, id: usize) -> Scheduling {
        let place = program.place(80);
        assert_eq!(program.call(SystemCall::GetScheduling, [id, place, 80]), Ok(80));
        Scheduling::from_words(core::array::from_fn(|index| program.read_u64(place + 8 * index)))
    }

    fn change(program: &mut Program, id: usize, attribute: u32, value: usize, period: usize) -> Result<usize, Errno> {
        program.call(SystemCall::SetScheduling, [id, attribute as usize, value, period])
    }

    #[test]
    fn a_process_makes_itself_and_those_below_it_less_important_only() {
        run(|program| {
            assert_eq!(change(program, 0, attribute::CEILING, 10, 0), Ok(0));
            assert_eq!(described(program, 0).ceiling, 10);
            assert_eq!(change(program, 0, attribute::CEILING, 9, 0), Err(Errno::EPERM));
            assert_eq!(change(program, 0, attribute::CEILING, 64, 0), Err(Errno::EINVAL));
            let child = program.spawn(|program| program.sleep_ns(1_000_000_000)).unwrap();
            assert_eq!(described(program, child).ceiling, 10, "not above its parent");
            assert_eq!(change(program, child, attribute::CEILING, 20, 0), Ok(0));
            assert_eq!(change(program, child, attribute::CEILING, 10, 0), Ok(0), "as important as the parent");
            assert_eq!(change(program, child, attribute::CEILING, 9, 0), Err(Errno::EPERM));
            assert_eq!(change(program, 1, attribute::CEILING, 20, 0), Err(Errno::EPERM));
            assert_eq!(change(program, 99_999, attribute::CEILING, 20, 0), Err(Errno::ESRCH));
            assert_eq!(change(program, 0, 77, 0, 0), Err(Errno::EINVAL));
            program.call(SystemCall::Kill, [child, 9]).unwrap();
        });
    }

    #[test]
    fn a_process_makes_itself_nicer_and_others_only_below_it() {
        run(|program| {
            let nice = |program: &mut Program, id: usize| program.call(SystemCall::GetNice, [0, id]);
            let set = |program: &mut Program, id: usize, nice: i32| {
                program.call(SystemCall::SetNice, [0, id, nice as u32 as usize])
            };
            for which in [3, usize::MAX] {
                assert_eq!(program.call(SystemCall::GetNice, [which, 0]), Err(Errno::EINVAL));
                assert_eq!(program.call(SystemCall::SetNice, [which, 0, 5]), Err(Errno::EINVAL));
            }
            assert_eq!((nice(program, 99_999), set(program, 99_999, 1)), (Err(Errno::ESRCH), Err(Errno::ESRCH)));
            assert_eq!((nice(program, 0), set(program, 1, 1)), (Ok(20), Err(Errno::EPERM)));
            assert_eq!(set(program, 0, -1), Err(Errno::EACCES));
            assert_eq!((set(program, 0, 5), nice(program, 0)), (Ok(0), Ok(15)));
            assert_eq!(described(program, 0).priority, 4 + 5);
            assert_eq!(set(program, 0, 4), Err(Errno::EACCES));
            let child = program.fork(|program| {
                assert_eq!(program.call(SystemCall::GetNice, [0, 0]), Ok(15));
                assert_eq!(program.call(SystemCall::SetNice, [0, 0, 100]), Ok(0));
                assert_eq!(program.call(SystemCall::GetNice, [0, 0]), Ok(1));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(nice(program, 0), Ok(15));
            // A started child has its parent's value too, and counts its own from where its parent began.
            let child = program.spawn(|program| {
                assert_eq!(program.call(SystemCall::GetNice, [0, 0]), Ok(15));
                assert_eq!(described(program, 0).priority, 4 + 5);
                assert_eq!(program.call(SystemCall::SetNice, [0, 0, 6]), Ok(0));
                assert_eq!(described(program, 0).priority, 4 + 6);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// A process with a budget has that much of each period while another one wants the hart.
    #[test]
    fn a_budget_is_the_share_that_a_process_has() {
        run(|program| {
            let busy = |program: &mut Program| loop {
                crate::testing::simulation().advance(500);
                program.call(SystemCall::GetProcess, []).unwrap();
            };
            let limited = program.spawn(busy).unwrap();
            let other = program.spawn(busy).unwrap();
            let (budget, period) = (10_000_000, 100_000_000);
            assert_eq!(change(program, limited, attribute::BUDGET, budget, period), Ok(0));
            program.sleep_ns(1_000_000_000);
            let used = described(program, limited).cpu_ns;
            // Ten periods; it is charged when it has run.
            assert!((90_000_000..130_000_000).contains(&used), "{used}");
            assert!(described(program, limited).exhausted >= 9);
            assert!(described(program, other).cpu_ns > 800_000_000);
            for child in [limited, other] {
                program.call(SystemCall::Kill, [child, 9]).unwrap();
                assert_eq!(program.wait_for(child), Ok((child, 9)));
            }
        });
    }

    #[test]
    fn descriptions_are_cut_off_and_that_of_the_system_needs_a_permission() {
        run(|program| {
            let place = program.store(&[0xaa; 24]);
            assert_eq!(program.call(SystemCall::GetScheduling, [0, place, 12]), Ok(80));
            assert_eq!(program.read(place + 12, 12), [0xaa; 12]);
            assert_eq!(program.call(SystemCall::GetScheduling, [99_999, place, 12]), Err(Errno::ESRCH));
            assert_eq!(program.call(SystemCall::GetScheduling, [0, 0x1000, 12]), Err(Errno::EFAULT));
            let bound = system_scheduling::STARVATION_BOUND as usize;
            let set = program.call(SystemCall::SetSystemScheduling, [bound, 1_000_000_000]);
            assert_eq!(set, Err(Errno::EPERM));
            assert_eq!(program.call(SystemCall::TraceRead, [place, 24]), Err(Errno::EPERM));
        });
    }
}
