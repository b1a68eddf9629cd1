//! The calls on processes: starting, waiting, ending, groups, limits and capabilities.

use abi_unix::types;
use abi_unix::{Act, Errno};

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding, Pause, admitted, kept_steps};
use crate::process::ending::Ending;
use crate::process::table::Children;
use crate::process::{authority, kill, limits, program, table};

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
    Ok(Pause::Execute([call.address(0), call.address(1), call.address(2)]).into())
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
        group => Children::Group(group.unsigned_abs()),
    };
    let options = call.unsigned(2);
    if options & !(types::WNOHANG | types::WUNTRACED | types::WCONTINUED | types::WAIT_KINDS) != 0 {
        return Err(Errno::EINVAL);
    }
    let parent = process.id;
    Ok(Operation::WaitChild { parent, which, status: call.address(1), options, usage: call.address(3) }.into())
}

#[inline(never)]
pub(super) fn kill(call: Call<'_>) -> Decoding {
    let (target, signal) = (call.signed(0), call.unsigned(1));
    if signal >= types::signal::LIMIT {
        return Err(Errno::EINVAL);
    }
    if target > 0 {
        return kill::signal_one(call.process(), target as u32, signal).map(Into::into);
    }
    let caller = call.process().clone();
    Ok(kept_steps(call.number, async move {
        match target {
            0 => kill::signal_group(&caller, caller.group(), signal).await,
            -1 => kill::signal_all_processes(&caller, signal).await,
            id => kill::signal_group(&caller, id.unsigned_abs(), signal).await,
        }
        .map(|()| 0)
    }))
}

#[inline(never)]
pub(super) fn set_group(call: Call<'_>) -> Decoding {
    table::set_group(call.process(), call.signed(0), call.signed(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn get_group(call: Call<'_>) -> Decoding {
    let group = match call.signed(0) {
        0 => call.process().group(),
        id => table::find(u32::try_from(id).map_err(|_| Errno::ESRCH)?).ok_or(Errno::ESRCH)?.group(),
    };
    Ok((group as usize).into())
}

#[inline(never)]
pub(super) fn groups(call: Call<'_>) -> Decoding {
    if call.signed(0) < 0 { Err(Errno::EINVAL) } else { Ok(0.into()) }
}

#[inline(never)]
pub(super) fn limit(call: Call<'_>) -> Decoding {
    let (id, which) = (call.signed(0), call.unsigned(1));
    limits::call(call.process(), id, which, call.address(2), call.address(3)).map(Into::into)
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
    match call.unsigned(2) {
        types::reboot::POWER_OFF | types::reboot::HALT => crate::machine::power_off(Ending::Exited(0)),
        types::reboot::RESTART => crate::machine::restart(),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{Program, run};

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
}
