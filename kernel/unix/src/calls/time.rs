//! The calls on time: sleeps, clocks, and the time that was used.

use abi_unix::Errno;
use abi_unix::types::{self, TimeSpec, clock, usage};

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding};
use crate::process::Process;
use crate::process::user::read_time;
use crate::time;

#[inline(never)]
pub(super) fn sleep(call: Call<'_>) -> Decoding {
    sleep_on(call.process(), clock::MONOTONIC, 0, call.address(0)).map(Into::into)
}

#[inline(never)]
pub(super) fn sleep_on_clock(call: Call<'_>) -> Decoding {
    sleep_on(call.process(), call.unsigned(0), call.unsigned(1), call.address(2)).map(Into::into)
}

fn sleep_on(process: &Process, clock: u32, flags: u32, address: usize) -> Result<Operation, Errno> {
    let ns = read_time(process, address)?;
    if flags & !clock::TIMER_ABSTIME != 0 {
        return Err(Errno::EINVAL);
    }
    let absolute = flags & clock::TIMER_ABSTIME != 0;
    let monotonic_ns = match clock {
        clock::REALTIME if absolute => ns.saturating_sub(time::epoch_ns()),
        clock::REALTIME | clock::MONOTONIC | clock::BOOTTIME if !absolute => time::now_ns().saturating_add(ns),
        clock::MONOTONIC | clock::BOOTTIME => ns,
        _ => return Err(Errno::EINVAL),
    };
    Ok(Operation::Sleep { deadline: time::ticks_at_ns(monotonic_ns), alarm: None })
}

#[inline(always)]
pub(super) fn get(call: Call<'_>) -> Decoding {
    let process = call.process();
    let ns = match call.unsigned(0) {
        clock::REALTIME | clock::REALTIME_COARSE => time::now_ns() + time::epoch_ns(),
        clock::MONOTONIC | clock::MONOTONIC_RAW | clock::MONOTONIC_COARSE | clock::BOOTTIME => time::now_ns(),
        clock::PROCESS_CPUTIME => time::ns_at_ticks(process.cpu_ticks()),
        clock::THREAD_CPUTIME => time::ns_at_ticks(call.worker.cpu_ticks()),
        _ => return Err(Errno::EINVAL),
    };
    process.copy_out(call.address(1), &TimeSpec::from_ns(ns).to_bytes())?;
    Ok(0.into())
}

/// Performs `gettimeofday`, whose time zone is long without a meaning.
#[inline(never)]
pub(super) fn of_day(call: Call<'_>) -> Decoding {
    let time = TimeSpec::from_ns(time::now_ns() + time::epoch_ns());
    if call.address(0) != 0 {
        let time = TimeSpec { nanoseconds: time.nanoseconds / 1000, ..time };
        call.process().copy_out(call.address(0), &time.to_bytes())?;
    }
    if call.address(1) != 0 {
        call.process().copy_out(call.address(1), &[0; 8])?;
    }
    Ok(0.into())
}

#[inline(never)]
pub(super) fn resolution(call: Call<'_>) -> Decoding {
    match call.unsigned(0) {
        clock::REALTIME
        | clock::PROCESS_CPUTIME
        | clock::THREAD_CPUTIME
        | clock::MONOTONIC
        | clock::MONOTONIC_RAW
        | clock::REALTIME_COARSE
        | clock::MONOTONIC_COARSE
        | clock::BOOTTIME => {}
        _ => return Err(Errno::EINVAL),
    }
    if call.address(1) != 0 {
        let ns = 1_000_000_000u64.div_ceil(time::ticks_per_second());
        call.process().copy_out(call.address(1), &TimeSpec::from_ns(ns).to_bytes())?;
    }
    Ok(0.into())
}

#[inline(never)]
pub(super) fn times(call: Call<'_>) -> Decoding {
    let process = call.process();
    let times = usage::times(process.used_time().ns(), process.children_time().ns());
    if call.address(0) != 0 {
        process.copy_out(call.address(0), &times)?;
    }
    Ok(((time::now_ns() / usage::NS_IN_A_TICK) as usize).into())
}

#[inline(never)]
pub(super) fn usage(call: Call<'_>) -> Decoding {
    let process = call.process();
    let time = match call.signed(0) {
        types::usage::PROCESS => process.used_time(),
        types::usage::CHILDREN => process.children_time(),
        types::usage::WORKER => call.worker.used_time(),
        _ => return Err(Errno::EINVAL),
    };
    process.copy_out(call.address(1), &types::usage::of_time(time.ns()))?;
    Ok(0.into())
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;
    use core::future::Future as _;
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};

    use abi_unix::SystemCall;

    use super::*;
    use crate::process::signals::Interruption;
    use crate::testing::{Program, run, simulation};

    #[test]
    fn clocks_tell_the_time_and_their_resolution() {
        run(|program| {
            let place = program.place(16);
            let read = |program: &mut Program, clock: u32| {
                program
                    .call(SystemCall::GetTime, [clock as usize, place])
                    .map(|_| program.read_u64(place) * 1_000_000_000 + program.read_u64(place + 8))
            };
            let before = time::now_ns();
            let monotonic = read(program, types::clock::MONOTONIC).unwrap();
            assert!((before..=time::now_ns()).contains(&monotonic));
            let real = read(program, types::clock::REALTIME).unwrap();
            assert!(real >= monotonic + time::epoch_ns());
            let used = read(program, types::clock::PROCESS_CPUTIME).unwrap();
            assert!(used > 0 && used <= monotonic);
            program.sleep_ns(50_000_000);
            assert!(read(program, types::clock::PROCESS_CPUTIME).unwrap() < used + 1_000_000, "sleep is no use");
            assert_eq!(read(program, 99), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::GetTimeOfDay, [place, 0]), Ok(0));
            let day = program.read_u64(place) * 1_000_000_000 + program.read_u64(place + 8) * 1000;
            assert!(day + 1000 > real && day < real + 1_000_000_000 && program.read_u64(place + 8) < 1_000_000);
            assert_eq!(program.call(SystemCall::GetTimeOfDay, [0, place]), Ok(0));
            assert_eq!(program.read_u64(place), 0, "a time zone of zeros");
            assert_eq!(program.call(SystemCall::GetTimeOfDay, [0x1000, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::GetResolution, [1, place]), Ok(0));
            assert_eq!(program.read_u64(place + 8), 1_000_000_000 / time::ticks_per_second());
            assert_eq!(program.call(SystemCall::GetResolution, [1, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::GetResolution, [99, place]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::GetTime, [1, 0x1000]), Err(Errno::EFAULT));
        });
    }

    /// The kernel's part of a thread's time is what it did for this thread, and both parts are what its clock shows.
    #[test]
    fn the_time_of_a_thread_has_parts_too() {
        fn used(program: &mut Program, whose: i32) -> [u64; 2] {
            let place = program.place(144);
            program.call(SystemCall::GetUsage, [whose as usize, place]).unwrap();
            [0, 16].map(|at| program.read_u64(place + at) * 1_000_000 + program.read_u64(place + at + 8))
        }

        run(|program| {
            let child = program.spawn(|program| {
                let [_, system] = used(program, types::usage::WORKER);
                let other = program.add_worker(|program| {
                    let before = used(program, types::usage::WORKER);
                    simulation().advance(time::ticks_at_ns(40_000_000));
                    let after = used(program, types::usage::WORKER);
                    assert!((40_000..41_000).contains(&(after[0] - before[0])), "{before:?} {after:?}");
                    assert_eq!(after[1], before[1], "no work of the kernel");
                });
                other.unwrap();
                // Long work, that the worker attempts, that it waits for, and that it submits.
                let (worker, ms) = (program.process().present_worker().unwrap(), time::ticks_at_ns(1_000_000));
                let work = move |ticks: u64| {
                    let work = Box::pin(async move {
                        simulation().advance(ticks);
                        Ok(0)
                    });
                    Operation::Long(SystemCall::Map, work)
                };
                assert_eq!(crate::calls::attempt(&worker, true, &mut work(5 * ms)), Poll::Ready(Ok(0)));
                let mut wait = pin!(work(15 * ms).wait(&worker, |_, _| Interruption::GoOn));
                assert_eq!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(0)));
                assert_eq!(crate::calls::attempt(&worker, false, &mut work(10 * ms)), Poll::Ready(Ok(0)));
                program.sleep_ns(100_000_000);
                let [user, after] = used(program, types::usage::WORKER);
                assert!((20_000..21_000).contains(&(after - system)), "{system} {after}");
                let [all_user, all_system] = used(program, types::usage::PROCESS);
                // The call that was submitted is of no thread.
                assert!(all_user >= user + 29_000 && all_system >= after + 10_000, "{user} {all_user} {all_system}");
                let place = program.place(16);
                program.call(SystemCall::GetTime, [types::clock::THREAD_CPUTIME as usize, place]).unwrap();
                let clock = program.read_u64(place) * 1_000_000 + program.read_u64(place + 8) / 1000;
                assert!((user + after..user + after + 1_000).contains(&clock), "{user} {after} {clock}");
            });
            program.wait_for(child.unwrap()).unwrap();
        });
    }

    /// A program's processor time is its own until its parent has waited for it; then it counts for the parent's
    /// children, too.
    #[test]
    fn the_time_that_was_used_adds_up() {
        run(|program| {
            let used = |program: &mut Program, whose: i32| {
                let place = program.place(144);
                program
                    .call(SystemCall::GetUsage, [whose as usize, place])
                    .map(|_| program.read_u64(place) * 1_000_000 + program.read_u64(place + 8))
            };
            let before = used(program, types::usage::PROCESS).unwrap();
            simulation().advance(time::ticks_at_ns(30_000_000));
            let after = used(program, types::usage::PROCESS).unwrap();
            assert!((30_000..31_000).contains(&(after - before)), "{before} {after}");
            assert!(used(program, types::usage::WORKER).unwrap() >= after);
            let child = program.spawn(|program| {
                simulation().advance(time::ticks_at_ns(70_000_000));
                program.call(SystemCall::GetProcess, []).unwrap();
            });
            let child = child.unwrap();
            program.sleep_ns(1_000_000_000);
            assert_eq!(used(program, types::usage::CHILDREN), Ok(0));
            program.wait_for(child).unwrap();
            assert!((70_000..72_000).contains(&used(program, types::usage::CHILDREN).unwrap()));
            assert_eq!(used(program, 7), Err(Errno::EINVAL));
            let place = program.place(32);
            let now = program.call(SystemCall::Times, [place]).unwrap() as u64;
            assert!(now <= time::now_ns() / usage::NS_IN_A_TICK);
            assert_eq!(program.read_u64(place + 16), 7, "hundredths of a second of the child");
        });
    }
}
