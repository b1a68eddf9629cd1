//! The calls on signals: actions, blocked and pending signals, stacks, sending, waiting, and the return from a handler.

use ::signals::frame::Stack;
use ::signals::{Action, Details, Information, Set, Signal, code};
use abi_unix::Errno;
use abi_unix::types::open;
use alloc::sync::Arc;
use filesystem::Access;

use crate::calls::call::{Call, Decoded, Decoding, Outcome, Pause};
use crate::files::file::{self, OpenFile};
use crate::files::generated::Generated;
use crate::process::process_file::ProcessFile;
use crate::process::signal_file::SignalFile;
use crate::process::signals::{Combination, SignalWait};
use crate::process::user::read_time;
use crate::process::worker::Worker;
use crate::process::{Process, signal_delivery, signal_sending, table};
use crate::time;

/// Bytes of a set of signals. `EINVAL` for any other size.
const SET: usize = 8;

impl Call<'_> {
    /// Returns a signal's number. `EINVAL` if there is no such signal.
    fn signal(&self, argument: usize) -> Result<Signal, Errno> {
        Signal::new(self.unsigned(argument)).ok_or(Errno::EINVAL)
    }

    /// Returns a signal's number, or `None` for 0, which asks only whether it may be sent.
    fn signal_or_none(&self, argument: usize) -> Result<Option<Signal>, Errno> {
        if self.unsigned(argument) == 0 { Ok(None) } else { self.signal(argument).map(Some) }
    }

    fn check_size_of_set(&self, argument: usize) -> Result<(), Errno> {
        if self.length(argument) == SET { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Reads a set of signals at an address.
    fn set_of_signals(&self, argument: usize) -> Result<Set, Errno> {
        let mut bytes = [0; SET];
        self.process().copy_in(self.address(argument), &mut bytes)?;
        Ok(Set::from_bits(u64::from_le_bytes(bytes)))
    }
}

#[inline(never)]
pub(super) fn open_file(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    call.check_size_of_set(2)?;
    let (set, flags) = (call.set_of_signals(1)?.without(Set::UNBLOCKABLE), call.unsigned(3));
    if flags & !(open::NONBLOCK | open::CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    if call.signed(0) != -1 {
        call.file(0)?.as_kind::<SignalFile>().ok_or(Errno::EINVAL)?.set(set, process);
        return Ok((call.unsigned(0) as usize).into());
    }
    let charge = file::charge(&process.account)?;
    let signals = OpenFile::new(SignalFile::new(set), Access::ReadWrite, flags & open::NONBLOCK != 0, charge);
    process.descriptors.lock().add(Arc::new(signals), flags & open::CLOEXEC != 0, 0).map(Into::into)
}

#[inline(never)]
pub(super) fn action(call: Call<'_>) -> Decoding {
    let (process, new, old) = (call.process(), call.address(1), call.address(2));
    call.check_size_of_set(3)?;
    let signal = call.signal(0)?;
    let action = match new {
        0 => None,
        address => {
            let mut bytes = [0; Action::SIZE];
            process.copy_in(address, &mut bytes)?;
            Some(Action::from_bytes(bytes))
        }
    };
    let before = signal_delivery::change_action(process, signal, action)?;
    if old != 0 {
        process.copy_out(old, &before.to_bytes())?;
    }
    Ok(0.into())
}

#[inline(never)]
pub(super) fn mask(call: Call<'_>) -> Decoding {
    let (new, old) = (call.address(1), call.address(2));
    call.check_size_of_set(3)?;
    let before = call.worker.signals.blocked();
    if new != 0 {
        let set = call.set_of_signals(1)?;
        let how = match call.signed(0) {
            0 => Combination::Add,
            1 => Combination::Remove,
            2 => Combination::Set,
            _ => return Err(Errno::EINVAL),
        };
        signal_delivery::change_blocked(call.worker, how, set)?;
    }
    if old != 0 {
        call.process().copy_out(old, &before.bits().to_le_bytes())?;
    }
    Ok(0.into())
}

#[inline(never)]
pub(super) fn pending(call: Call<'_>) -> Decoding {
    // Smaller sets are cut, as on Linux.
    let size = call.length(1);
    if size > SET {
        return Err(Errno::EINVAL);
    }
    let bytes = signal_delivery::pending(call.worker).bits().to_le_bytes();
    call.process().copy_out(call.address(0), &bytes[..size])?;
    Ok(0.into())
}

#[inline(never)]
pub(super) fn stack(call: Call<'_>) -> Decoding {
    let (process, worker) = (call.process(), call.worker);
    let (new, old) = (call.address(0), call.address(1));
    let stack = match new {
        0 => None,
        address => {
            let mut bytes = [0; Stack::SIZE];
            process.copy_in(address, &mut bytes)?;
            Some(Stack::from_bytes(&bytes))
        }
    };
    let before = signal_delivery::change_stack(worker, call.registers()?.stack(), stack)?;
    if old != 0 {
        process.copy_out(old, &before.to_bytes())?;
    }
    Ok(0.into())
}

#[inline(never)]
pub(super) fn suspend(call: Call<'_>) -> Decoding {
    call.check_size_of_set(1)?;
    signal_delivery::replace_blocked(call.worker, call.set_of_signals(0)?);
    Ok(Pause::WaitForSignal(SignalWait::Handler).into())
}

#[inline(never)]
pub(super) fn wait(call: Call<'_>) -> Decoding {
    call.check_size_of_set(3)?;
    let set = Set::mask(call.set_of_signals(0)?.bits());
    let deadline = match call.address(2) {
        0 => None,
        address => {
            let ns = read_time(&**call.process(), address)?;
            Some(time::ticks_at_ns(time::now_ns().saturating_add(ns)))
        }
    };
    Ok(Pause::WaitForSignal(SignalWait::One { set, information: call.address(1), deadline }).into())
}

#[inline(never)]
pub(super) fn return_from_handler(call: Call<'_>) -> Decoding {
    let worker = call.worker;
    signal_delivery::return_from_handler(worker, call.registers()?);
    Ok(Decoded::Outcome(Outcome::Unchanged))
}

/// Reads the number of a process. `EINVAL` for one that none can have.
fn number_of(call: &Call<'_>, argument: usize) -> Result<u32, Errno> {
    u32::try_from(call.signed(argument)).ok().filter(|id| *id != 0).ok_or(Errno::EINVAL)
}

/// Finds a thread by its number, which has its process's number in it.
pub(super) fn thread_of(process: &Process, number: i32) -> Result<Arc<Worker>, Errno> {
    let above = u32::try_from(number).ok().and_then(|number| number.checked_sub(process.id));
    let slot = above.filter(|above| above.is_multiple_of(0x1_0000)).ok_or(Errno::ESRCH)? / 0x1_0000;
    process.worker_or_thread(slot as usize).ok_or(Errno::ESRCH)
}

fn kill_thread_in(call: &Call<'_>, id: u32, thread: i32, signal: Option<Signal>) -> Decoding {
    let Some(process) = table::find(id) else { return signal_thread_of_zombie(call, id, thread, signal) };
    let target = thread_of(&process, thread)?;
    let details = Details::Sender { process: call.process().id, user: call.process().real_user(), value: 0 };
    let information = signal.map(|signal| Information { signal, code: code::THREAD, details });
    signal_sending::send(call.process(), &process, Some(&target), information).map(Into::into)
}

/// Sends a signal to a thread of a zombie, of which only the first one is left.
fn signal_thread_of_zombie(call: &Call<'_>, id: u32, thread: i32, signal: Option<Signal>) -> Decoding {
    if u32::try_from(thread) != Ok(id) {
        return Err(Errno::ESRCH);
    }
    signal_sending::signal_zombie(call.process(), id, signal).map(Into::into)
}

#[inline(never)]
pub(super) fn kill_thread(call: Call<'_>) -> Decoding {
    let (thread, signal) = (call.signed(0), call.signal_or_none(1)?);
    if thread <= 0 {
        return Err(Errno::EINVAL);
    }
    kill_thread_in(&call, thread as u32 % 0x1_0000, thread, signal)
}

#[inline(never)]
pub(super) fn kill_thread_of(call: Call<'_>) -> Decoding {
    let (thread, signal) = (call.signed(1), call.signal_or_none(2)?);
    if thread <= 0 {
        return Err(Errno::EINVAL);
    }
    kill_thread_in(&call, number_of(&call, 0)?, thread, signal)
}

/// Reads the information that a program sends. `EPERM` if it would pass for the kernel's or for `tkill`'s, unless the
/// program sends it to itself.
fn information(call: &Call<'_>, argument: usize, signal: Signal, process: u32) -> Result<Information, Errno> {
    let mut bytes = [0; Information::SIZE];
    call.process().copy_in(call.address(argument), &mut bytes)?;
    let information = Information::from_program(signal, &bytes);
    let is_forged = information.code >= 0 || information.code == code::THREAD;
    if is_forged && process != call.process().id { Err(Errno::EPERM) } else { Ok(information) }
}

#[inline(never)]
pub(super) fn queue(call: Call<'_>) -> Decoding {
    let (id, signal) = (number_of(&call, 0)?, call.signal_or_none(1)?);
    let sent = signal.map(|signal| information(&call, 2, signal, id)).transpose()?;
    match table::find(id) {
        Some(process) => signal_sending::send(call.process(), &process, None, sent),
        None => signal_sending::signal_zombie(call.process(), id, signal),
    }
    .map(Into::into)
}

/// Performs `pidfd_send_signal`.
#[inline(never)]
pub(super) fn send_to_process_file(call: Call<'_>) -> Decoding {
    let (file, signal) = (call.file(0)?, call.signal_or_none(1)?);
    if call.unsigned(3) != 0 {
        return Err(Errno::EINVAL);
    }
    // A directory of `/proc` is one, too, for this call alone.
    let (id, process) = match (file.as_kind::<ProcessFile>(), file.as_kind::<Generated>()) {
        (Some(file), _) => (file.number()?, file.process()?),
        (None, Some(directory)) => directory.process().map(|process| (process.id, Some(process)))?,
        (None, None) => return Err(Errno::EBADF),
    };
    let own = || {
        let details = Details::Sender { process: call.process().id, user: call.process().real_user(), value: 0 };
        signal.map(|signal| Information { signal, code: code::USER, details })
    };
    let sent = match call.address(2) {
        0 => own(),
        address => {
            let mut number = [0; 4];
            call.process().copy_in(address, &mut number)?;
            if u32::from_le_bytes(number) != call.unsigned(1) {
                return Err(Errno::EINVAL);
            }
            signal.map(|signal| information(&call, 2, signal, id)).transpose()?
        }
    };
    match process {
        Some(process) => signal_sending::send(call.process(), &process, None, sent),
        None => match table::find(id) {
            // It has ended, and its parent cannot wait for it yet.
            Some(process) => signal_sending::send(call.process(), &process, None, None),
            None => signal_sending::signal_zombie(call.process(), id, signal),
        },
    }
    .map(Into::into)
}

#[inline(never)]
pub(super) fn queue_thread(call: Call<'_>) -> Decoding {
    let (id, thread, signal) = (number_of(&call, 0)?, call.signed(1), call.signal_or_none(2)?);
    let sent = signal.map(|signal| information(&call, 3, signal, id)).transpose()?;
    let Some(process) = table::find(id) else { return signal_thread_of_zombie(&call, id, thread, signal) };
    let target = thread_of(&process, thread)?;
    signal_sending::send(call.process(), &process, Some(&target), sent).map(Into::into)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{Program, run};

    #[test]
    fn sets_have_one_size_and_signals_are_in_range() {
        run(|program| {
            let set = program.store(&u64::MAX.to_le_bytes());
            let old = program.place(8);
            for size in [0, 4, 7, 9, 16] {
                assert_eq!(program.call(SystemCall::SignalMask, [2, set, old, size]), Err(Errno::EINVAL), "{size}");
                assert_eq!(program.call(SystemCall::SignalAction, [10, 0, 0, size]), Err(Errno::EINVAL), "{size}");
            }
            for signal in [0, 65, usize::MAX] {
                assert_eq!(program.call(SystemCall::SignalAction, [signal, 0, 0, SET]), Err(Errno::EINVAL), "{signal}");
            }
            assert_eq!(program.call(SystemCall::SignalMask, [3, set, 0, SET]), Err(Errno::EINVAL), "no such way");
            assert_eq!(program.call(SystemCall::SignalMask, [2, 0x1000, 0, SET]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::SignalMask, [0, 0, old, SET]), Ok(0));
            assert_eq!(program.read_u64(old), 0, "nothing was blocked by the failures");
        });
    }

    #[test]
    fn threads_are_found_in_their_own_process_only() {
        run(|program| {
            let own = program.id as usize;
            let kill = |program: &mut Program, process: usize, thread: usize| {
                program.call(SystemCall::KillThreadOf, [process, thread, 0])
            };
            assert_eq!(kill(program, own, own), Ok(0), "worker 0 has the process's number");
            assert_eq!(kill(program, own, own + 0x1_0000), Err(Errno::ESRCH), "no such slot");
            assert_eq!(kill(program, own, own + 1), Err(Errno::ESRCH), "the number of another process");
            assert_eq!(kill(program, own, 0), Err(Errno::EINVAL));
            assert_eq!(kill(program, 0, own), Err(Errno::EINVAL));
            assert_eq!(kill(program, 30_000, own), Err(Errno::ESRCH));
        });
    }
}
