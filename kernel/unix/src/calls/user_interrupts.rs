//! The calls of user interrupts: handlers, receivers, and the rights to send.

use alloc::sync::Arc;

use abi_unix::Errno;

use crate::asynchronous::user_interrupts::{self, Receiver, Right};
use crate::calls::call::{Call, Decoded, Decoding, Outcome};
use crate::process::user::USER_END;

#[inline(never)]
pub(super) fn set_handler(call: Call<'_>) -> Decoding {
    let entry = call.address(0);
    if call.worker.is_thread() || entry >= USER_END || !entry.is_multiple_of(2) {
        return Err(Errno::EINVAL);
    }
    user_interrupts::set_handler(call.worker, entry);
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
    user_interrupts::create(call.worker, call.word(0)).map(Into::into)
}

#[inline(never)]
pub(super) fn grant(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    user_interrupts::grant(process, user_interrupts::of(&*call.file(0)?)?, call.word(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn open(call: Call<'_>) -> Decoding {
    user_interrupts::open(call.admitted()?, call.word(0), call.word(1)).map(Into::into)
}

#[inline(always)]
pub(super) fn send(call: Call<'_>) -> Decoding {
    Right::send(user_interrupts::of::<Arc<Right>>(&*call.file(0)?)?).map(Into::into)
}

#[inline(never)]
pub(super) fn page(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    user_interrupts::page(process, user_interrupts::of::<Arc<Right>>(&*call.file(0)?)?).map(Into::into)
}

#[inline(never)]
pub(super) fn revoke(call: Call<'_>) -> Decoding {
    let (process, file) = (call.process(), call.file(0)?);
    match user_interrupts::of::<Arc<Receiver>>(&file) {
        Ok(receiver) => user_interrupts::revoke_all(process, receiver)?,
        Err(_) => user_interrupts::revoke(process, user_interrupts::of::<Arc<Right>>(&file)?)?,
    }
    Ok(0.into())
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::clone;

    use super::*;
    use crate::testing::{HANDLER, run};

    /// A thread has no word in the process page, so it can neither handle nor receive; it can send.
    #[test]
    fn threads_send_and_do_not_receive() {
        run(|program| {
            program.call(SystemCall::InterruptHandler, [HANDLER]).unwrap();
            let receiver = program.call(SystemCall::InterruptReceiver, [3]).unwrap();
            let right = program.call(SystemCall::InterruptGrant, [receiver, 0]).unwrap();
            let identity = program.identity_for(move |program| {
                assert_eq!(program.call(SystemCall::InterruptHandler, [HANDLER]), Err(Errno::EINVAL));
                assert_eq!(program.call(SystemCall::InterruptReceiver, [4]), Err(Errno::EINVAL));
                assert_eq!(program.call(SystemCall::InterruptSend, [right]), Ok(0));
            });
            let flags = (clone::SHARED | clone::SETTLS) as usize;
            program.call(SystemCall::Clone, [flags, 0x3_0000, 0, identity, 0]).unwrap();
            program.sleep_ns(1_000_000);
            program.call(SystemCall::GetProcess, []).unwrap();
            assert_eq!(program.handled(), [1 << 3]);
        });
    }

    /// A sender's page is the kernel's: a program cannot unmap, protect or map over it, and it comes with a right.
    #[test]
    fn a_page_to_send_with_stays_where_it_is() {
        run(|program| {
            let receiver = program.call(SystemCall::InterruptReceiver, [3]).unwrap();
            let right = program.call(SystemCall::InterruptGrant, [receiver, 0]).unwrap();
            assert_eq!(program.call(SystemCall::InterruptPage, [receiver]), Err(Errno::EINVAL));
            let word = program.call(SystemCall::InterruptPage, [right]).unwrap();
            let (page, value) = (word & !0xfff, word & 0xfff);
            assert!(value > 0 && value < 64, "{value}");
            assert_eq!(program.call(SystemCall::InterruptPage, [right]), Ok(word), "one page for a right");
            assert_eq!(program.call(SystemCall::Unmap, [page, 4096]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Protect, [page, 4096, 3]), Err(Errno::EINVAL));
            let fixed = [page, 4096, 3, 0x32, usize::MAX, 0];
            assert_eq!(program.call(SystemCall::Map, fixed), Err(Errno::EINVAL));
        });
    }
}
