//! The calls of workers and threads: their beginning, their sleep, the locks between them, and their request rings.

use alloc::boxed::Box;

use abi_unix::{Errno, types};
use hal_api::UserContext;

use crate::asynchronous::kernel_side::Side;
use crate::asynchronous::operation::Operation;
use crate::asynchronous::ring;
use crate::calls::call::{Call, Decoding, Pause, kept};
use crate::process::user::USER_END;
use crate::process::{futex, switching, thread};
use crate::time;

#[inline(never)]
pub(super) fn set_id_address(call: Call<'_>) -> Decoding {
    call.worker.set_end_word(call.address(0));
    Ok((call.worker.thread_id() as usize).into())
}

#[inline(never)]
pub(super) fn clone(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let (worker, arguments) = (call.worker, [0, 1, 2, 3, 4].map(|argument| call.word(argument)));
    thread::clone(worker, call.registers()?, arguments).map(Into::into)
}

#[inline(always)]
pub(super) fn futex(call: Call<'_>) -> Decoding {
    let arguments = [0, 1, 2, 3, 4, 5].map(|argument| call.word(argument));
    Ok(match futex::call(call.process(), arguments)? {
        futex::Decoded::Wait(wait) => Operation::Futex(kept(wait)).into(),
        futex::Decoded::Done(count) => count.into(),
        futex::Decoded::More(work) => Operation::Long(call.number, work).into(),
    })
}

#[inline(never)]
pub(super) fn set_robust_list(call: Call<'_>) -> Decoding {
    if call.length(1) != types::futex::ROBUST_HEAD {
        return Err(Errno::EINVAL);
    }
    call.worker.set_robust_list(call.address(0));
    Ok(0.into())
}

#[inline(never)]
pub(super) fn get_robust_list(call: Call<'_>) -> Decoding {
    let head = thread::find(call.worker, call.unsigned(0) as usize)?.robust_list();
    call.process().copy_out(call.address(2), &types::futex::ROBUST_HEAD.to_le_bytes())?;
    call.process().copy_out(call.address(1), &head.to_le_bytes())?;
    Ok(0.into())
}

#[inline(never)]
pub(super) fn create_worker(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let (entry, stack) = (call.address(0), call.address(1));
    if entry >= USER_END || stack >= USER_END || !entry.is_multiple_of(2) {
        return Err(Errno::EINVAL);
    }
    let mut fresh = Box::new(UserContext::new(entry as u64, stack as u64));
    fresh.set_register(10, call.word(2) as u64);
    fresh.set_register(4, call.word(3) as u64);
    Ok(switching::start_worker(process, fresh)?.index().into())
}

#[inline(always)]
pub(super) fn wait(call: Call<'_>) -> Decoding {
    let deadline = match call.word(1) {
        usize::MAX => None,
        ns => Some(time::ticks_at_ns(time::now_ns().saturating_add(ns as u64))),
    };
    ring::take_before_sleep(call.worker);
    Ok(Pause::Park { seen: call.word(0) as u64, deadline }.into())
}

#[inline(always)]
pub(super) fn wake(call: Call<'_>) -> Decoding {
    call.process().worker(call.word(0)).ok_or(Errno::ESRCH)?.wake();
    Ok(0.into())
}

#[inline(never)]
pub(super) fn cancel(call: Call<'_>) -> Decoding {
    let (process, token) = (call.process(), call.word(0) as u64);
    let mut cancelled = process.cancel_call(token);
    if cancelled == Err(Errno::ENOENT) && !call.is_from_ring() {
        // It may still be in a ring. (A request that comes through one finds those before it taken.)
        ring::take_everything(call.worker);
        cancelled = process.cancel_call(token);
    }
    cancelled.map(Into::into)
}

#[inline(never)]
pub(super) fn set_up_ring(call: Call<'_>) -> Decoding {
    call.admitted()?;
    ring::set_up(call.worker, call.word(0), call.word(1)).map(Into::into)
}

#[inline(always)]
pub(super) fn enter_ring(call: Call<'_>) -> Decoding {
    ring::enter(call.worker, call.word(0), call.word(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn choose_kernel_side(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let side = Side::from_number(call.word(0))?;
    process.kernel_side.choose(process, side)?;
    Ok(if side == Side::Coroutines { 0.into() } else { Pause::MoveToThread.into() })
}
