//! The calls on time: sleeps, clocks, and the time that was used.

use abi_unix::Errno;
use abi_unix::types::{self, TimeSpec, clock, usage};

use crate::asynchronous::operation::{self, Operation};
use crate::calls::call::{Call, Decoding};
use crate::process::Process;
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
    let ns = operation::read_time(process, address)?;
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
        clock::REALTIME => time::now_ns() + time::epoch_ns(),
        clock::MONOTONIC | clock::MONOTONIC_RAW | clock::BOOTTIME => time::now_ns(),
        clock::PROCESS_CPUTIME => time::ns_at_ticks(process.cpu_ticks()),
        clock::THREAD_CPUTIME => time::ns_at_ticks(call.worker.cpu_ticks()),
        _ => return Err(Errno::EINVAL),
    };
    process.copy_out(call.address(1), &TimeSpec::from_ns(ns).to_bytes())?;
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
    let (own, children) = (process.cpu_ticks(), process.children_ticks());
    let times = usage::times(time::ns_at_ticks(own), time::ns_at_ticks(children));
    if call.address(0) != 0 {
        process.copy_out(call.address(0), &times)?;
    }
    Ok(((time::now_ns() / usage::NS_IN_A_TICK) as usize).into())
}

#[inline(never)]
pub(super) fn usage(call: Call<'_>) -> Decoding {
    let process = call.process();
    let ticks = match call.signed(0) {
        types::usage::PROCESS => process.cpu_ticks(),
        types::usage::CHILDREN => process.children_ticks(),
        types::usage::WORKER => call.worker.cpu_ticks(),
        _ => return Err(Errno::EINVAL),
    };
    process.copy_out(call.address(1), &types::usage::of_time(time::ns_at_ticks(ticks)))?;
    Ok(0.into())
}
