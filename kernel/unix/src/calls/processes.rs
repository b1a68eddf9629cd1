//! The calls on processes: starting, waiting, ending, groups, limits and capabilities.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use ::signals::Signal;
use abi_unix::trace::name_words;
use abi_unix::types::{self, process_control, wait_kind};
use abi_unix::{Act, Errno};

use crate::asynchronous::operation::{ChildAnswer, MUST_NOT_WAIT, Operation};
use crate::calls::call::{Call, Decoded, Decoding, Pause, admitted, kept_steps};
use crate::files::machine_end::{self, MachineEnd};
use crate::process::exit_status::Ending;
use crate::process::process_file::ProcessFile;
use crate::process::program::{Execution, OpenedFile};
use crate::process::table::Children;
use crate::process::{Process, authority, limits, program, signal_sending, table, thread};

#[inline(never)]
pub(super) fn spawn(call: Call<'_>) -> Decoding {
    let process = call.admitted()?.clone();
    let (path, arguments, environment) = (call.address(0), call.address(1), call.address(2));
    let work = program::spawn(process, path, arguments, environment, call.address(3), call.word(4));
    Ok(Operation::Long(call.number, admitted(work)).into())
}

#[inline(never)]
pub(super) fn execute(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let [path, arguments, environment] = [0, 1, 2].map(|argument| call.address(argument));
    Ok(Pause::Execute(Execution { from: None, path, arguments, environment }).into())
}

/// Performs `execveat`.
#[inline(never)]
pub(super) fn execute_at(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    if call.unsigned(4) & !types::AT_EMPTY_PATH != 0 {
        return Err(Errno::EINVAL);
    }
    let is_empty = {
        let mut first = [0];
        process.copy_in(call.address(1), &mut first)?;
        match first {
            [0] if call.unsigned(4) & types::AT_EMPTY_PATH == 0 => return Err(Errno::ENOENT),
            [b'/'] => return execution(&call, None),
            [first] => first == 0,
        }
    };
    if call.signed(0) == types::AT_FDCWD {
        // The working directory is no program.
        return if is_empty { Err(Errno::EACCES) } else { execution(&call, None) };
    }
    let number = call.descriptor(0)?;
    let opened = {
        let descriptors = process.descriptors.lock();
        let place = descriptors.get(number)?.object().place();
        OpenedFile { number, is_closed: descriptors.closes_on_execute(number)?, place }
    };
    execution(&call, Some(Box::new(opened)))
}

fn execution(call: &Call<'_>, from: Option<Box<OpenedFile>>) -> Decoding {
    let [path, arguments, environment] = [1, 2, 3].map(|argument| call.address(argument));
    Ok(Pause::Execute(Execution { from, path, arguments, environment }).into())
}

#[inline(never)]
pub(super) fn exit(call: Call<'_>) -> Decoding {
    call.process().note_exit(call.worker.index(), call.word(0) as u8);
    Ok(Pause::Leave.into())
}

#[inline(never)]
pub(super) fn exit_group(call: Call<'_>) -> Decoding {
    call.process().end(Ending::Exited(call.word(0) as u8));
    Ok(Pause::Leave.into())
}

#[inline(never)]
pub(super) fn wait(call: Call<'_>) -> Decoding {
    let process = call.process();
    let which = match call.signed(0) {
        -1 => Children::Any,
        0 => Children::Group(process.group()),
        id if id > 0 => Children::One(id as u32),
        i32::MIN => return Err(Errno::ESRCH),
        group => Children::Group(group.unsigned_abs()),
    };
    let options = call.unsigned(2);
    if options & !(types::WNOHANG | types::WUNTRACED | types::WCONTINUED | types::WAIT_KINDS) != 0 {
        return Err(Errno::EINVAL);
    }
    let (parent, answer, options) = (process.id, ChildAnswer::Status(call.address(1)), options | types::WEXITED);
    Ok(Operation::WaitChild { parent, which, answer, options, usage: call.address(3) }.into())
}

#[inline(never)]
pub(super) fn wait_identified(call: Call<'_>) -> Decoding {
    let process = call.process();
    let (id, mut options) = (call.signed(1), call.unsigned(3));
    let changes = types::WEXITED | types::WUNTRACED | types::WCONTINUED;
    if options & !(changes | types::WNOHANG | types::WNOWAIT | types::WAIT_KINDS) != 0 || options & changes == 0 {
        return Err(Errno::EINVAL);
    }
    let which = match call.unsigned(0) {
        wait_kind::ALL => Children::Any,
        wait_kind::PROCESS if id > 0 => Children::One(id as u32),
        wait_kind::GROUP if id == 0 => Children::Group(process.group()),
        wait_kind::GROUP if id > 0 => Children::Group(id as u32),
        wait_kind::DESCRIPTOR if id >= 0 => {
            let file = process.descriptors.lock().get(id as usize)?.clone();
            if file.is_non_blocking() {
                options |= MUST_NOT_WAIT;
            }
            let of_process = file.as_kind::<ProcessFile>().ok_or(Errno::EBADF)?;
            Children::One(of_process.number().map_err(|_| Errno::ECHILD)?)
        }
        _ => return Err(Errno::EINVAL),
    };
    let (parent, answer) = (process.id, ChildAnswer::Information(call.address(2)));
    Ok(Operation::WaitChild { parent, which, answer, options, usage: call.address(4) }.into())
}

/// Performs `pidfd_open`.
#[inline(never)]
pub(super) fn open_process(call: Call<'_>) -> Decoding {
    let (process, flags) = (call.admitted()?, call.unsigned(1));
    let id = u32::try_from(call.signed(0)).ok().filter(|id| *id != 0).ok_or(Errno::EINVAL)?;
    if flags & !types::open::NONBLOCK != 0 {
        return Err(Errno::EINVAL);
    }
    if thread::process_of(id) != id && thread::lock_owner(id).is_some() {
        // A descriptor is that of a process.
        return Err(Errno::EINVAL);
    }
    let file = ProcessFile::of(id, &process.account, flags != 0)?;
    process.descriptors.lock().add(file, true, 0).map(Into::into)
}

/// Performs `pidfd_getfd`.
#[inline(never)]
pub(super) fn take_file(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    if call.unsigned(2) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = call.file(0)?;
    let from = file.as_kind::<ProcessFile>().ok_or(Errno::EBADF)?.process()?.ok_or(Errno::ESRCH)?;
    // An open file is authority of the process, so that to look on is not enough, nor to be of its user.
    authority::permit_towards(process, &from, Act::Empower)?;
    let taken = from.descriptors.lock().get(call.descriptor(1)?)?.clone();
    process.descriptors.lock().add(taken, true, 0).map(Into::into)
}

#[inline(never)]
pub(super) fn kill(call: Call<'_>) -> Decoding {
    let (target, signal) = (call.signed(0), call.unsigned(1));
    if signal >= types::signal::LIMIT {
        return Err(Errno::EINVAL);
    }
    if target > 0 {
        return signal_sending::signal_one(call.process(), target as u32, signal).map(Into::into);
    }
    let caller = call.process().clone();
    Ok(kept_steps(call.number, async move {
        match target {
            0 => signal_sending::signal_group(&caller, caller.group(), signal).await,
            -1 => signal_sending::signal_all_processes(&caller, signal).await,
            id => signal_sending::signal_group(&caller, id.unsigned_abs(), signal).await,
        }
        .map(|()| 0)
    }))
}

#[inline(never)]
pub(super) fn set_group(call: Call<'_>) -> Decoding {
    let moved = table::set_group(call.process(), call.signed(0), call.signed(1))?;
    Ok(count_children_of(call, moved, 0))
}

/// Ends a call that has moved a process to another group: its children may anchor their groups now, or no longer.
fn count_children_of(call: Call<'_>, moved: Arc<Process>, result: usize) -> Decoded {
    if !table::has_children(&moved) {
        return result.into();
    }
    let caller = call.process().clone();
    kept_steps(call.number, async move {
        table::count_anchors_below(&caller, &moved).await;
        Ok(result)
    })
}

/// Returns the process that a number names, 0 being the caller. `ESRCH` for a negative one.
fn number_of(call: &Call<'_>) -> Result<u32, Errno> {
    match call.signed(0) {
        0 => Ok(call.process().id),
        id => u32::try_from(id).map_err(|_| Errno::ESRCH),
    }
}

#[inline(never)]
pub(super) fn get_group(call: Call<'_>) -> Decoding {
    let group = table::group_of(number_of(&call)?).ok_or(Errno::ESRCH)?;
    Ok((group.group as usize).into())
}

#[inline(never)]
pub(super) fn get_session(call: Call<'_>) -> Decoding {
    let group = table::group_of(number_of(&call)?).ok_or(Errno::ESRCH)?;
    Ok((group.session as usize).into())
}

#[inline(never)]
pub(super) fn set_session(call: Call<'_>) -> Decoding {
    let caller = call.process().clone();
    let session = table::set_session(&caller)?;
    Ok(count_children_of(call, caller, session as usize))
}

#[inline(never)]
pub(super) fn limit(call: Call<'_>) -> Decoding {
    let (id, which) = (call.signed(0), call.unsigned(1));
    limits::call(call.process(), id, which, call.address(2), call.address(3)).map(Into::into)
}

#[inline(never)]
pub(super) fn get_limit(call: Call<'_>) -> Decoding {
    limits::require_known(call.unsigned(0))?;
    // No address means no answer for `prlimit64` alone.
    if call.address(1) == 0 {
        return Err(Errno::EFAULT);
    }
    limits::call(call.process(), 0, call.unsigned(0), 0, call.address(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn set_limit(call: Call<'_>) -> Decoding {
    if call.address(1) == 0 {
        return Err(Errno::EFAULT);
    }
    limits::call(call.process(), 0, call.unsigned(0), call.address(1), 0).map(Into::into)
}

#[inline(never)]
pub(super) fn personality(call: Call<'_>) -> Decoding {
    match call.unsigned(0) {
        0 | u32::MAX => Ok(0.into()),
        _ => Err(Errno::EINVAL),
    }
}

#[inline(never)]
pub(super) fn get_capabilities(call: Call<'_>) -> Decoding {
    authority::get(call.process(), call.address(0), call.address(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn set_capabilities(call: Call<'_>) -> Decoding {
    authority::set(call.process(), call.address(0), call.address(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn reboot(call: Call<'_>) -> Decoding {
    authority::permit(call.process(), Act::EndMachine)?;
    if call.unsigned(0) != types::reboot::MAGIC1 || call.unsigned(1) != types::reboot::MAGIC2 {
        return Err(Errno::EINVAL);
    }
    machine_end::begin(match call.unsigned(2) {
        types::reboot::POWER_OFF | types::reboot::HALT => MachineEnd::PowerOff,
        types::reboot::RESTART => MachineEnd::Restart,
        _ => return Err(Errno::EINVAL),
    });
    Ok(kept_steps(call.number, core::future::pending()))
}

/// Performs `prctl`.
#[inline(never)]
pub(super) fn control(call: Call<'_>) -> Decoding {
    let (process, address) = (call.process(), call.address(1));
    match call.unsigned(0) {
        process_control::SET_PDEATHSIG => {
            let signal = call.word(1);
            if signal != 0 && u32::try_from(signal).ok().and_then(Signal::new).is_none() {
                return Err(Errno::EINVAL);
            }
            process.set_signal_of_orphan(signal as u8);
        }
        process_control::GET_PDEATHSIG => {
            process.copy_out(address, &u32::from(process.signal_of_orphan()).to_le_bytes())?;
        }
        process_control::SET_CHILD_SUBREAPER => {
            process.set_inherits_children(call.word(1) != 0);
        }
        process_control::GET_CHILD_SUBREAPER => {
            process.copy_out(address, &u32::from(process.inherits_children()).to_le_bytes())?;
        }
        process_control::SET_NAME => {
            let mut bytes = [0; process_control::NAME];
            // As on Linux a longer name is cut, and one that ends earlier need not be followed by anything.
            for (at, byte) in bytes[..process_control::NAME - 1].iter_mut().enumerate() {
                process.copy_in(address.checked_add(at).ok_or(Errno::EFAULT)?, core::slice::from_mut(byte))?;
                if *byte == 0 {
                    break;
                }
            }
            call.worker.set_name(name_words(&bytes));
        }
        process_control::GET_NAME => {
            let [low, high] = call.worker.name().map(u64::to_le_bytes);
            let mut bytes = [0; process_control::NAME];
            bytes[..8].copy_from_slice(&low);
            bytes[8..].copy_from_slice(&high);
            bytes[process_control::NAME - 1] = 0;
            process.copy_out(address, &bytes)?;
        }
        process_control::SET_NO_NEW_PRIVS if [1, 2, 3, 4].map(|argument| call.word(argument)) == [1, 0, 0, 0] => {
            process.no_new_rights.store(true, Ordering::Relaxed);
        }
        process_control::GET_NO_NEW_PRIVS if [1, 2, 3, 4].iter().all(|argument| call.word(*argument) == 0) => {
            return Ok(usize::from(process.no_new_rights.load(Ordering::Relaxed)).into());
        }
        process_control::SET_KEEPCAPS if call.word(1) <= 1 => {
            process.keeps_capabilities.store(call.word(1) == 1, Ordering::Relaxed);
        }
        process_control::GET_KEEPCAPS => {
            return Ok(usize::from(process.keeps_capabilities.load(Ordering::Relaxed)).into());
        }
        process_control::GET_DUMPABLE => return Ok(usize::from(process.dump.is_permitted()).into()),
        process_control::SET_DUMPABLE if call.word(1) <= 1 => process.dump.permit(call.word(1) == 1),
        process_control::GET_TIMERSLACK => return Ok((call.worker.timer_slack_ns() as usize).into()),
        process_control::SET_TIMERSLACK => call.worker.set_timer_slack_ns(call.word(1) as u64),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0.into())
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use ::signals::code;
    use hal_api::Machine as _;
    use platform::Machine;

    use crate::testing::{Program, run};
    use crate::time;

    #[test]
    fn signals_end_the_processes_that_the_number_names() {
        run(|program| {
            let waits = |program: &mut Program| program.sleep_ns(1_000_000_000_000);
            let children: Vec<_> = (0..4).map(|_| program.spawn(waits).unwrap()).collect();
            let kill = |program: &mut Program, target: i64, signal: u32| {
                program.call(SystemCall::Kill, [target as usize, signal as usize])
            };
            assert_eq!(kill(program, children[0] as i64, 0), Ok(0), "only a look");
            assert_eq!(kill(program, children[0] as i64, types::signal::LIMIT), Err(Errno::EINVAL));
            // Signals that are ignored by default.
            for signal in [types::signal::CHLD, types::signal::WINCH, types::signal::URG, types::signal::CONT] {
                assert_eq!(kill(program, children[0] as i64, signal), Ok(0));
            }
            assert_eq!(program.call(SystemCall::Wait, [usize::MAX, 0, types::WNOHANG as usize, 0]), Ok(0));
            assert_eq!(kill(program, children[0] as i64, types::signal::TERM), Ok(0));
            assert_eq!(program.wait_for(usize::MAX), Ok((children[0], types::signal::TERM)));
            assert_eq!(kill(program, children[0] as i64, types::signal::TERM), Err(Errno::ESRCH));
            // A group.
            for &child in &children[1..3] {
                program.call(SystemCall::SetProcessGroup, [child, children[1]]).unwrap();
            }
            assert_eq!(kill(program, -(children[1] as i64), types::signal::HUP), Ok(0));
            let mut ended = [program.wait_for(usize::MAX).unwrap(), program.wait_for(usize::MAX).unwrap()];
            ended.sort();
            assert_eq!(ended, [(children[1], types::signal::HUP), (children[2], types::signal::HUP)]);
            assert_eq!(kill(program, -(children[1] as i64), types::signal::HUP), Err(Errno::ESRCH));
            // Neither the first process nor a process outside of one's own descendants.
            assert_eq!(kill(program, 1, types::signal::KILL), Err(Errno::EPERM));
            assert_eq!(kill(program, -1, types::signal::KILL), Ok(0), "all others that may be");
            assert_eq!(program.wait_for(usize::MAX), Ok((children[3], types::signal::KILL)));
        });
    }

    #[test]
    fn only_the_first_process_ends_the_machine() {
        run(|program| {
            let magic = types::reboot::MAGIC1 as usize;
            let magic2 = types::reboot::MAGIC2 as usize;
            let command = types::reboot::POWER_OFF as usize;
            assert_eq!(program.call(SystemCall::Reboot, [magic, magic2, command, 0]), Err(Errno::EPERM));
        });
    }

    fn control(program: &mut Program, option: u32, value: usize) -> usize {
        program.call(SystemCall::ProcessControl, [option as usize, value]).unwrap()
    }

    /// Returns how late a sleep of a millisecond ends, in ticks.
    fn lateness(program: &mut Program) -> u64 {
        let (begin, ns) = (Machine::now(), 1_000_000u64);
        program.sleep_ns(ns as usize);
        Machine::now() - begin - time::ticks_at_ns(ns)
    }

    /// Sleeps of a thread end late by its slack, which its threads and children have from it.
    #[test]
    fn sleeps_end_late_by_the_slack_of_their_thread() {
        use process_control::{GET_TIMERSLACK, SET_TIMERSLACK};
        const SLACK_NS: usize = 3_000_000;
        run(|program| {
            let few = time::ticks_at_ns(100_000);
            assert!(lateness(program) < few);
            control(program, SET_TIMERSLACK, SLACK_NS);
            let late = lateness(program);
            assert!((time::ticks_at_ns(SLACK_NS as u64)..time::ticks_at_ns(SLACK_NS as u64) + few).contains(&late));
            let child = program.spawn(|program| {
                assert_eq!(control(program, GET_TIMERSLACK, 0), SLACK_NS);
                control(program, SET_TIMERSLACK, 1);
                assert!(lateness(program) < time::ticks_at_ns(100_000));
                // That of its beginning.
                control(program, SET_TIMERSLACK, 0);
                assert_eq!(control(program, GET_TIMERSLACK, 0), SLACK_NS);
            });
            assert_eq!(program.wait_for(child.unwrap()).unwrap().1, 0);
            control(program, SET_TIMERSLACK, 1 << 62);
            assert_eq!(control(program, GET_TIMERSLACK, 0), 1 << 62);
        });
    }

    fn wait(program: &mut Program, which: i64, options: u32) -> Result<usize, Errno> {
        program.call(SystemCall::Wait, [which as usize, 0, options as usize, 0])
    }

    /// An ended process stays as a zombie, with its number, until its own parent has waited for it.
    #[test]
    fn a_zombie_is_there_until_its_parent_has_waited() {
        run(|program| {
            let child = program.spawn(|program| {
                let _ = program.call(SystemCall::ExitGroup, [0x1ff]);
            });
            let child = child.unwrap();
            assert_eq!(wait(program, child as i64, types::WNOHANG), Ok(0), "it has not begun");
            program.sleep_ns(1_000_000);
            assert!(table::find(child as u32).is_none() && table::exists(child as u32));
            let stranger = program.spawn(move |program| {
                assert_eq!(wait(program, child as i64, 0), Err(Errno::ECHILD), "not its child");
                assert_eq!(program.call(SystemCall::Kill, [child, 0]), Err(Errno::EPERM), "and another user's");
            });
            let stranger = stranger.unwrap();
            assert_eq!(program.wait_for(stranger), Ok((stranger, 0)));
            assert_eq!(program.call(SystemCall::Kill, [child, 0]), Ok(0), "as on Linux");
            assert_eq!(program.wait_for(child), Ok((child, 0xff00)));
            assert_eq!(wait(program, child as i64, 0), Err(Errno::ECHILD));
            assert!(!table::exists(child as u32));
            assert_eq!(program.call(SystemCall::Wait, [usize::MAX, 0, 4, 0]), Err(Errno::EINVAL));
        });
    }

    /// Every way to signal a process finds its zombie, by the rights that its users and its place give.
    #[test]
    fn a_zombie_is_signalled_by_those_who_could_signal_the_process() {
        let signals = |program: &mut Program, id: usize, signal: usize| -> Vec<Result<usize, Errno>> {
            let file = program.call(SystemCall::ProcessFile, [id, 0]).unwrap();
            // `si_signo`, `si_errno` and `si_code`, which is SI_QUEUE.
            let mut information = [0; 128];
            information[0] = signal as u8;
            information[8..12].copy_from_slice(&(-1i32).to_le_bytes());
            let information = program.store(&information);
            let answers = [
                program.call(SystemCall::Kill, [id, signal]),
                program.call(SystemCall::KillThread, [id, signal]),
                program.call(SystemCall::KillThreadOf, [id, id, signal]),
                program.call(SystemCall::SignalQueue, [id, signal, information]),
                program.call(SystemCall::SignalQueueThread, [id, id, signal, information]),
                program.call(SystemCall::SignalProcessFile, [file, signal, 0, 0]),
                program.call(SystemCall::Kill, [(-(id as isize)) as usize, signal]),
            ];
            program.close(file).unwrap();
            answers.to_vec()
        };
        run(move |program| {
            let zombie = program.fork(|program| {
                assert_eq!(program.call(SystemCall::SetProcessGroup, [0, 0]), Ok(0));
                program.sleep_ns(1_000_000);
            });
            let zombie = zombie.unwrap();
            program.sleep_ns(10_000_000);
            assert!(table::find(zombie as u32).is_none());
            let all = |answer: Result<usize, Errno>| vec![answer; 7];
            assert_eq!(signals(program, zombie, 9), all(Ok(0)), "its parent");
            assert_eq!(program.call(SystemCall::KillThreadOf, [zombie, zombie + 0x1_0000, 0]), Err(Errno::ESRCH));
            let copy = program.fork(move |program| {
                assert_eq!(signals(program, zombie, 9), all(Ok(0)), "its sibling of the same user");
                assert_eq!(program.call(SystemCall::SetUser, [1000]), Ok(0));
                assert_eq!(signals(program, zombie, 9), all(Err(Errno::EPERM)), "another user of Linux");
                assert_eq!(signals(program, zombie, 18), all(Ok(0)), "of its session");
                assert_eq!(program.call(SystemCall::SetSession, []), Ok(program.id as usize));
                assert_eq!(signals(program, zombie, 18), all(Err(Errno::EPERM)), "of another one");
            });
            let copy = copy.unwrap();
            assert_eq!(program.wait_for(copy), Ok((copy, 0)));
            let stranger = program.spawn(move |program| {
                assert_eq!(signals(program, zombie, 0), all(Err(Errno::EPERM)), "another user of COPS");
            });
            let stranger = stranger.unwrap();
            assert_eq!(program.wait_for(stranger), Ok((stranger, 0)));
            assert_eq!(program.wait_for(zombie), Ok((zombie, 0)));
            assert_eq!(program.call(SystemCall::Kill, [zombie, 0]), Err(Errno::ESRCH));
        });
    }

    /// A program is also found from an open directory, and as an open file.
    #[test]
    fn a_program_is_executed_from_what_is_open() {
        run(|program| {
            let cases: [(&[u8], &[u8], usize); 3] =
                [(b"/bin/test\0", b"\0", 0x1000), (b"/bin\0", b"test\0", 0), (b"/tmp\0", b"/bin/test\0", 0)];
            for (open, path, flags) in cases {
                let child = program.spawn(move |program| {
                    let (open, path) = (program.store(open), program.store(path));
                    let file = program.call(SystemCall::Open, [types::AT_FDCWD as usize, open, 0, 0]).unwrap();
                    program.goes_on_as(|program| program.sleep_ns(1000));
                    let result = program.call(SystemCall::ExecuteAt, [file, path, 0, 0, flags]);
                    panic!("{result:?}");
                });
                let child = child.unwrap();
                assert_eq!(program.wait_for(child), Ok((child, 0)), "{}", path.escape_ascii());
            }
            let (empty, here) = (program.store(b"\0"), types::AT_FDCWD as usize);
            let at = |program: &mut Program, file, path, flags| {
                program.call(SystemCall::ExecuteAt, [file, path, 0, 0, flags])
            };
            assert_eq!(at(program, here, empty, 0), Err(Errno::ENOENT));
            assert_eq!(at(program, here, empty, 0x1000), Err(Errno::EACCES));
            assert_eq!(at(program, 99, empty, 0x1000), Err(Errno::EBADF));
            assert_eq!(at(program, here, 0x1000, 0), Err(Errno::EFAULT));
            assert_eq!(at(program, here, empty, 0x1100), Err(Errno::EINVAL));
            let (reader, _) = program.pipe(0);
            assert_eq!(at(program, reader, empty, 0x1000), Err(Errno::EACCES));
        });
    }

    #[test]
    fn orphans_go_to_the_first_process() {
        let (sender, receiver) = std::sync::mpsc::channel();
        run(move |program| {
            let child = program.spawn(move |program| {
                let grandchild = program.spawn(|program| {
                    program.sleep_ns(10_000_000);
                    assert_eq!(program.call(SystemCall::GetParent, []), Ok(1));
                });
                sender.send(grandchild.unwrap()).unwrap();
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let grandchild = receiver.recv().unwrap() as u32;
            assert_eq!(wait(program, -1, 0), Err(Errno::ECHILD), "grandchildren are not waited for");
            assert_eq!(table::find(grandchild).map(|process| process.parent()), Some(1));
            program.sleep_ns(20_000_000);
            assert!(table::find(grandchild).is_none());
        });
    }

    /// Each kind of `wait4` takes the children that it is for, in the order in which they are found.
    #[test]
    fn waiting_means_one_a_group_or_anybody() {
        run(|program| {
            let children: Vec<_> = (0..4)
                .map(|number| {
                    program
                        .spawn(move |program| {
                            program.sleep_ns((4 - number) * 1_000_000);
                            let _ = program.call(SystemCall::ExitGroup, [number]);
                        })
                        .unwrap()
                })
                .collect();
            for &child in &children[2..] {
                assert_eq!(program.call(SystemCall::SetProcessGroup, [child, children[2]]), Ok(0));
            }
            assert_eq!(wait(program, children[0] as i64, types::WNOHANG), Ok(0));
            assert_eq!(wait(program, children[0] as i64, 0), Ok(children[0]), "the last one to end");
            // All have ended now.
            assert_eq!(wait(program, 0, 0), Ok(children[1]), "the only one in the caller's group");
            assert_eq!(wait(program, 0, 0), Err(Errno::ECHILD));
            assert_eq!(wait(program, -(children[3] as i64), 0), Err(Errno::ECHILD), "no group");
            let mut rest = [-(children[2] as i64), -1].map(|which| wait(program, which, 0).unwrap());
            rest.sort();
            assert_eq!(rest, children[2..]);
        });
    }

    #[test]
    fn groups_are_joined_only_if_they_exist_and_by_permitted_processes() {
        run(|program| {
            let own = program.id as usize;
            let group = |program: &mut Program, of: usize| program.call(SystemCall::GetProcessGroup, [of]);
            let set = |program: &mut Program, id: usize, to: usize| program.call(SystemCall::SetProcessGroup, [id, to]);
            assert_eq!(group(program, 0), Ok(1), "as its parent");
            assert_eq!(set(program, 0, 0), Ok(0));
            assert_eq!((group(program, 0), group(program, own)), (Ok(own), Ok(own)));
            let child = program.spawn(|program| program.sleep_ns(1_000_000)).unwrap();
            assert_eq!(group(program, child), Ok(own));
            assert_eq!(set(program, child, 99_999), Err(Errno::EPERM));
            assert_eq!(set(program, 1, 0), Err(Errno::ESRCH), "not one's child");
            assert_eq!(set(program, child, usize::MAX), Err(Errno::EINVAL));
            assert_eq!(set(program, child, child), Ok(0));
            assert_eq!(group(program, 99_999), Err(Errno::ESRCH));
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    #[test]
    fn sessions_are_begun_by_processes_that_lead_no_group() {
        run(|program| {
            let session = |program: &mut Program, of: usize| program.call(SystemCall::GetSession, [of]);
            let set = |program: &mut Program, id: usize, to: usize| program.call(SystemCall::SetProcessGroup, [id, to]);
            let own = program.id as usize;
            assert_eq!(session(program, 0), Ok(1), "as its parent");
            assert_eq!(
                (session(program, 99_999), session(program, usize::MAX)),
                (Err(Errno::ESRCH), Err(Errno::ESRCH))
            );
            assert_eq!(set(program, 0, 0), Ok(0));
            assert_eq!(program.call(SystemCall::SetSession, []), Err(Errno::EPERM), "it leads a group");
            let child = program.spawn(move |program| {
                let id = program.id as usize;
                assert_eq!(program.call(SystemCall::SetSession, []), Ok(id));
                assert_eq!((session(program, 0), session(program, id)), (Ok(id), Ok(id)));
                assert_eq!(program.call(SystemCall::GetProcessGroup, [0]), Ok(id));
                assert_eq!(program.call(SystemCall::SetSession, []), Err(Errno::EPERM));
                assert_eq!(set(program, 0, 0), Err(Errno::EPERM), "the leader of a session stays");
                assert_eq!(set(program, 0, own), Err(Errno::EPERM));
                program.sleep_ns(10_000_000);
            });
            let child = child.unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(session(program, child), Ok(child));
            assert_eq!(set(program, child, own), Err(Errno::EPERM), "a child in another session");
            let other = program.spawn(|program| program.sleep_ns(1_000_000)).unwrap();
            assert_eq!(set(program, other, child), Err(Errno::EPERM), "a group of another session");
            assert_eq!(program.wait_for(other), Ok((other, 0)));
            program.sleep_ns(20_000_000);
            assert_eq!(session(program, child), Ok(child), "a zombie keeps its session");
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(session(program, child), Err(Errno::ESRCH));
        });
    }

    #[test]
    fn a_session_continues_its_processes() {
        run(|program| {
            let (own, term) = (program.id as usize, types::signal::TERM as usize);
            let child = program.spawn(move |program| {
                let cont = types::signal::CONT as usize;
                assert_eq!(program.call(SystemCall::Kill, [own, term]), Err(Errno::EPERM), "it is above");
                assert_eq!(program.call(SystemCall::Kill, [own, 0]), Err(Errno::EPERM));
                assert_eq!(program.call(SystemCall::Kill, [own, cont]), Ok(0), "it is of the session");
                program.call(SystemCall::SetSession, []).unwrap();
                assert_eq!(program.call(SystemCall::Kill, [own, cont]), Err(Errno::EPERM));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// The first of a pipeline may have ended before the last joins its group.
    #[test]
    fn a_zombie_keeps_its_group_in_being() {
        run(|program| {
            let first = program.spawn(|program| program.sleep_ns(1_000)).unwrap();
            assert_eq!(program.call(SystemCall::SetProcessGroup, [first, 0]), Ok(0));
            program.sleep_ns(1_000_000);
            assert_eq!(program.call(SystemCall::SetProcessGroup, [first, 0]), Err(Errno::EACCES), "it is a zombie");
            let second = program.spawn(|program| program.sleep_ns(1_000_000)).unwrap();
            assert_eq!(program.call(SystemCall::SetProcessGroup, [second, first]), Ok(0));
            assert_eq!(program.call(SystemCall::GetProcessGroup, [first]), Ok(first));
            assert_eq!(program.wait_for(first), Ok((first, 0)));
            assert_eq!(program.wait_for(second), Ok((second, 0)));
        });
    }

    fn wait_identified(
        program: &mut Program,
        kind: u32,
        id: usize,
        options: u32,
    ) -> Result<(i32, i32, u32, i32), Errno> {
        let place = program.place(128);
        program.write(place, &[0xff; 128]);
        program.call(SystemCall::WaitIdentified, [kind as usize, id, place, options as usize, 0])?;
        let word = |program: &mut Program, at: usize| program.read_u32(place + at);
        let number = word(program, 0) as i32;
        Ok((number, word(program, 8) as i32, word(program, 16), word(program, 24) as i32))
    }

    #[test]
    fn a_child_is_waited_for_with_its_information() {
        const NOTHING: (i32, i32, u32, i32) = (0, 0, 0, 0);
        run(|program| {
            let (exited, stopped, continued) = (types::WEXITED, types::WUNTRACED, types::WCONTINUED);
            assert_eq!(wait_identified(program, wait_kind::ALL, 0, exited), Err(Errno::ECHILD));
            let child = program.spawn(|program| {
                program.sleep_ns(50_000_000);
                let _ = program.call(SystemCall::ExitGroup, [7]);
            });
            let child = child.unwrap();
            for (kind, id, options, error) in [
                (wait_kind::ALL, 0, 0, Errno::EINVAL),
                (wait_kind::ALL, 0, types::WNOHANG, Errno::EINVAL),
                (wait_kind::ALL, 0, exited | 1 << 12, Errno::EINVAL),
                (wait_kind::PROCESS, 0, exited, Errno::EINVAL),
                (wait_kind::GROUP, usize::MAX, exited, Errno::EINVAL),
                (wait_kind::DESCRIPTOR, 0, exited, Errno::EBADF),
                (9, child, exited, Errno::EINVAL),
                (wait_kind::PROCESS, 1, exited, Errno::ECHILD),
                (wait_kind::GROUP, child, exited, Errno::ECHILD),
            ] {
                assert_eq!(wait_identified(program, kind, id, options), Err(error), "{kind} {id} {options:#x}");
            }
            let all = exited | stopped | continued;
            assert_eq!(wait_identified(program, wait_kind::GROUP, 0, all | types::WNOHANG), Ok(NOTHING));
            program.call(SystemCall::Kill, [child, types::signal::STOP as usize]).unwrap();
            let state = (17, code::CHILD_STOPPED, child as u32, types::signal::STOP as i32);
            assert_eq!(wait_identified(program, wait_kind::PROCESS, child, stopped | types::WNOWAIT), Ok(state));
            assert_eq!(wait_identified(program, wait_kind::PROCESS, child, stopped), Ok(state));
            assert_eq!(wait_identified(program, wait_kind::ALL, 0, stopped | types::WNOHANG), Ok(NOTHING));
            program.call(SystemCall::Kill, [child, types::signal::CONT as usize]).unwrap();
            let state = (17, code::CHILD_CONTINUED, child as u32, types::signal::CONT as i32);
            assert_eq!(wait_identified(program, wait_kind::ALL, 0, continued), Ok(state));
            let state = (17, code::CHILD_EXITED, child as u32, 7);
            assert_eq!(wait_identified(program, wait_kind::ALL, 0, exited | types::WNOWAIT), Ok(state));
            assert_eq!(wait_identified(program, wait_kind::ALL, 0, stopped), Err(Errno::ECHILD), "none that lives");
            assert_eq!(wait_identified(program, wait_kind::ALL, 0, exited), Ok(state));
            assert_eq!(wait_identified(program, wait_kind::ALL, 0, exited), Err(Errno::ECHILD));
        });
    }

    /// The last process that could continue a stopped group ends.
    #[test]
    fn a_stopped_group_is_woken_when_it_becomes_an_orphan() {
        let (sender, receiver) = std::sync::mpsc::channel();
        run(move |program| {
            let shell = program.spawn(move |program| {
                let job = program.spawn(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
                program.call(SystemCall::SetProcessGroup, [job, 0]).unwrap();
                assert!(!table::is_orphaned(job as u32));
                program.call(SystemCall::Kill, [job, types::signal::TSTP as usize]).unwrap();
                assert_eq!(wait(program, -1, types::WUNTRACED), Ok(job));
                sender.send(job as u32).unwrap();
                program.sleep_ns(1_000_000);
            });
            let shell = shell.unwrap();
            let job = receiver.recv_timeout(std::time::Duration::ZERO).err();
            assert!(job.is_some(), "the shell has not begun");
            assert_eq!(program.wait_for(shell), Ok((shell, 0)));
            program.sleep_ns(1_000_000);
            let job = receiver.recv().unwrap();
            assert!(table::is_orphaned(job) && table::find(job).is_none(), "SIGHUP has ended it");
        });
    }

    #[test]
    fn signals_of_terminals_do_not_stop_an_orphaned_group() {
        run(|program| {
            let child = program.spawn(|program| program.sleep_ns(10_000_000)).unwrap();
            assert!(table::is_orphaned(1), "its parent is in its group");
            program.call(SystemCall::Kill, [child, types::signal::TSTP as usize]).unwrap();
            assert_eq!(wait(program, -1, types::WUNTRACED), Ok(child));
            assert!(!table::exists(child as u32), "it has ended, and was not stopped");
        });
    }

    /// Two workers that wait for one child: one gets it, and the other learns that there is none left.
    #[test]
    fn a_child_is_given_to_one_of_its_waiters() {
        run(|program| {
            let child = program.spawn(|program| program.sleep_ns(5_000_000)).unwrap();
            let place = program.place(16);
            program
                .add_worker(move |program| {
                    let result = wait(program, -1, 0).map_err(|error| error as usize).unwrap_or_else(|error| error);
                    program.write(place, &result.to_le_bytes());
                })
                .unwrap();
            let own = wait(program, -1, 0).map_err(|error| error as usize).unwrap_or_else(|error| error);
            program.sleep_ns(1_000_000);
            let mut results = [own, program.read_u64(place) as usize];
            results.sort();
            let mut expected = [child, Errno::ECHILD as usize];
            expected.sort();
            assert_eq!(results, expected);
        });
    }

    #[test]
    fn a_process_has_a_name_and_gives_up_rights_for_good() {
        run(|program| {
            let control = |program: &mut Program, option: u32, second: usize| {
                program.call(SystemCall::ProcessControl, [option as usize, second, 0, 0, 0])
            };
            let place = program.place(16);
            let name = program.store(b"a/name that is too long\0");
            assert_eq!(control(program, process_control::SET_NAME, 0x1000), Err(Errno::EFAULT));
            assert_eq!(control(program, process_control::GET_NAME, 0x1000), Err(Errno::EFAULT));
            assert_eq!(control(program, process_control::SET_NAME, name), Ok(0));
            assert_eq!(control(program, process_control::GET_NAME, place), Ok(0));
            assert_eq!(program.read(place, 16), b"a/name that is \0");
            for (option, second) in [
                (99, 0),
                (process_control::SET_NO_NEW_PRIVS, 0),
                (process_control::SET_DUMPABLE, 2),
                (process_control::SET_KEEPCAPS, 2),
            ] {
                assert_eq!(control(program, option, second), Err(Errno::EINVAL), "{option}");
            }
            assert_eq!(control(program, process_control::GET_NO_NEW_PRIVS, 0), Ok(0));
            assert_eq!(control(program, process_control::SET_NO_NEW_PRIVS, 1), Ok(0));
            for wish in [1, 0] {
                assert_eq!(control(program, process_control::SET_KEEPCAPS, wish), Ok(0));
                assert_eq!(control(program, process_control::GET_KEEPCAPS, 0), Ok(wish));
            }
            let child = program.fork(move |program| {
                assert_eq!(control(program, process_control::GET_NO_NEW_PRIVS, 0), Ok(1));
                assert_eq!(control(program, process_control::GET_NAME, place), Ok(0));
                assert_eq!(program.read(place, 2), b"a/");
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(program.call(SystemCall::GetHart, [place, 0, 0]), Ok(0));
            assert_eq!(program.read_u32(place), 0);
            assert_eq!(program.call(SystemCall::GetHart, [0x1000, 0, 0]), Err(Errno::EFAULT));
        });
    }

    /// A process that asked for it inherits the orphans below it, which learn of their parent's end.
    #[test]
    fn orphans_go_to_the_nearest_process_that_inherits_them() {
        run(|program| {
            let control = |program: &mut Program, option: u32, second: usize| {
                program.call(SystemCall::ProcessControl, [option as usize, second, 0, 0, 0])
            };
            let place = program.place(8);
            for signal in [65, 1 << 32 | 9, usize::MAX] {
                assert_eq!(control(program, process_control::SET_PDEATHSIG, signal), Err(Errno::EINVAL));
            }
            assert_eq!(control(program, process_control::SET_PDEATHSIG, 9), Ok(0));
            assert_eq!(control(program, process_control::GET_PDEATHSIG, place), Ok(0));
            assert_eq!(program.read_u32(place), 9);
            assert_eq!(control(program, process_control::SET_CHILD_SUBREAPER, 1), Ok(0));
            assert_eq!(control(program, process_control::GET_CHILD_SUBREAPER, place), Ok(0));
            assert_eq!(program.read_u32(place), 1);
            let parent = program.id as usize;
            let child = program.fork(move |program| {
                // Neither is inherited.
                for option in [process_control::GET_PDEATHSIG, process_control::GET_CHILD_SUBREAPER] {
                    assert_eq!(control(program, option, place), Ok(0));
                    assert_eq!(program.read_u32(place), 0);
                }
                // A zombie, one that lives on, and one that ends with its parent.
                let zombie = program.fork(|program| {
                    let _ = program.call(SystemCall::ExitGroup, [3]);
                });
                zombie.unwrap();
                let lives_on = program.fork(move |program| {
                    program.sleep_ns(20_000_000);
                    assert_eq!(program.call(SystemCall::GetParent, []), Ok(parent));
                    let _ = program.call(SystemCall::ExitGroup, [4]);
                });
                lives_on.unwrap();
                let is_told = program.fork(move |program| {
                    assert_eq!(control(program, process_control::SET_PDEATHSIG, 9), Ok(0));
                    program.sleep_ns(1_000_000_000);
                });
                is_told.unwrap();
                program.sleep_ns(5_000_000);
                let _ = program.call(SystemCall::ExitGroup, [5]);
            });
            let child = child.unwrap();
            let mut statuses = Vec::new();
            for _ in 0..4 {
                let status = program.place(8);
                let ended = program.call(SystemCall::Wait, [usize::MAX, status, 0, 0]).unwrap();
                statuses.push((ended == child, program.read_u32(status)));
            }
            statuses.sort();
            assert_eq!(statuses, [(false, 9), (false, 3 << 8), (false, 4 << 8), (true, 5 << 8)]);
            assert_eq!(program.call(SystemCall::Wait, [usize::MAX, 0, 0, 0]), Err(Errno::ECHILD));
        });
    }

    #[test]
    fn a_thread_has_a_name_of_its_own() {
        run(|program| {
            let control = |program: &mut Program, option: u32, second: usize| {
                program.call(SystemCall::ProcessControl, [option as usize, second, 0, 0, 0])
            };
            let (name, other) = (program.store(b"main\0"), program.store(b"thread\0"));
            assert_eq!(control(program, process_control::SET_NAME, name), Ok(0));
            let process = program.process();
            let identity = program.identity_for(move |program| {
                let place = program.place(16);
                assert_eq!(control(program, process_control::GET_NAME, place), Ok(0));
                assert_eq!(program.read(place, 5), b"main\0", "its creator's");
                assert_eq!(control(program, process_control::SET_NAME, other), Ok(0));
                assert_eq!(control(program, process_control::GET_NAME, place), Ok(0));
                assert_eq!(program.read(place, 7), b"thread\0");
            });
            let flags = (types::clone::SHARED | types::clone::SETTLS) as usize;
            program.call(SystemCall::Clone, [flags, 0x3_0000, 0, identity, 0]).unwrap();
            program.sleep_ns(5_000_000);
            assert_eq!(process.name(), name_words(b"main"));
        });
    }
}
