//! The calls of user interrupts: handlers, receivers, and the rights to send.

use abi_unix::Errno;

use crate::asynchronous::interrupts;
use crate::calls::call::{Call, Decoded, Decoding, Outcome};
use crate::process::user::USER_END;

#[inline(never)]
pub(super) fn set_handler(call: Call<'_>) -> Decoding {
    let entry = call.address(0);
    if call.worker.is_thread() || entry >= USER_END || !entry.is_multiple_of(2) {
        return Err(Errno::EINVAL);
    }
    call.worker.line.set_handler(entry);
    Ok(0.into())
}

#[inline(always)]
pub(super) fn return_to_interrupted(call: Call<'_>) -> Decoding {
    let worker = call.worker;
    worker.line.return_to_interrupted(&worker.process, call.registers()?)?;
    Ok(Decoded::Outcome(Outcome::Unchanged))
}

#[inline(always)]
pub(super) fn leave_handler(call: Call<'_>) -> Decoding {
    call.worker.line.leave_handler().map(Into::into)
}

#[inline(never)]
pub(super) fn create_receiver(call: Call<'_>) -> Decoding {
    // Threads have no word in the process page in which interrupts could be shown.
    if call.worker.is_thread() {
        return Err(Errno::EINVAL);
    }
    call.admitted()?;
    interrupts::create(call.worker, call.word(0)).map(Into::into)
}

#[inline(never)]
pub(super) fn grant(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    interrupts::grant(process, call.file(0)?.as_interrupt_receiver()?, call.word(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn open(call: Call<'_>) -> Decoding {
    interrupts::open(call.admitted()?, call.word(0), call.word(1)).map(Into::into)
}

#[inline(always)]
pub(super) fn send(call: Call<'_>) -> Decoding {
    call.file(0)?.as_interrupt_right()?.send().map(Into::into)
}

#[inline(never)]
pub(super) fn page(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    interrupts::page(process, call.file(0)?.as_interrupt_right()?).map(Into::into)
}

#[inline(never)]
pub(super) fn revoke(call: Call<'_>) -> Decoding {
    let (process, file) = (call.process(), call.file(0)?);
    match file.as_interrupt_receiver() {
        Ok(receiver) => interrupts::revoke_all(process, receiver)?,
        Err(_) => interrupts::revoke(process, file.as_interrupt_right()?)?,
    }
    Ok(0.into())
}
