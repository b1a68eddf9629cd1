//! The calls on users and groups (credentials(7)).

use core::sync::atomic::Ordering;

use abi_unix::Errno;
use abi_unix::authority::CapabilitySet;
use filesystem::rights::MOST_GROUPS;

use crate::calls::call::{Call, Decoding};
use crate::process::Process;
use crate::process::identity::{Identity, Numbers, Wish};

/// Whether a call is about users or about groups.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Users,
    Groups,
}

impl Of {
    /// Returns a process's users or groups.
    fn numbers(self, process: &Process) -> Numbers {
        process.whom().map_or(Numbers::default(), |whom| match self {
            Of::Users => whom.users,
            Of::Groups => whom.groups,
        })
    }
}

/// Performs `getuid` and `getgid`.
#[inline(never)]
pub(super) fn real(call: Call<'_>, of: Of) -> Decoding {
    Ok((of.numbers(call.process()).real as usize).into())
}

/// Performs `geteuid` and `getegid`.
#[inline(never)]
pub(super) fn effective(call: Call<'_>, of: Of) -> Decoding {
    Ok((of.numbers(call.process()).effective as usize).into())
}

/// Performs `getresuid` and `getresgid`.
#[inline(never)]
pub(super) fn get_three(call: Call<'_>, of: Of) -> Decoding {
    let numbers = of.numbers(call.process());
    for (index, number) in [numbers.real, numbers.effective, numbers.saved].into_iter().enumerate() {
        call.process().copy_out(call.address(index), &number.to_le_bytes())?;
    }
    Ok(0.into())
}

/// Returns a number that an argument gives; `None` for -1, which leaves one as it is.
fn wanted(call: &Call<'_>, argument: usize) -> Option<u32> {
    Some(call.unsigned(argument)).filter(|number| *number != u32::MAX)
}

/// Performs `setuid` and `setgid`.
#[inline(never)]
pub(super) fn set(call: Call<'_>, of: Of) -> Decoding {
    become_other(&call, of, Wish::One(call.unsigned(0)))
}

/// Performs `setreuid` and `setregid`.
#[inline(never)]
pub(super) fn set_two(call: Call<'_>, of: Of) -> Decoding {
    become_other(&call, of, Wish::Pair(wanted(&call, 0), wanted(&call, 1)))
}

/// Performs `setresuid` and `setresgid`.
#[inline(never)]
pub(super) fn set_three(call: Call<'_>, of: Of) -> Decoding {
    become_other(&call, of, Wish::Triple([0, 1, 2].map(|argument| wanted(&call, argument))))
}

fn become_other(call: &Call<'_>, of: Of, wish: Wish) -> Decoding {
    change(call.process(), of, wish).map(|_| 0.into())
}

/// Performs `setfsuid` and `setfsgid`, which return the number before and tell nothing of a failure.
#[inline(never)]
pub(super) fn set_of_files(call: Call<'_>, of: Of) -> Decoding {
    let files = call.process().identity_value().files;
    let _ = change(call.process(), of, Wish::OfFiles(call.unsigned(0)));
    let before = if of == Of::Users { files.user } else { files.group };
    Ok((before as usize).into())
}

/// Returns the capabilities of a process that are in force.
fn in_force(process: &Process) -> CapabilitySet {
    process.authority.held().effective
}

/// Gives a process other users or groups, with all that follows from that: capabilities go when no user is 0 any more,
/// and core files are not written, nor is the end of a parent told.
fn change(process: &Process, of: Of, wish: Wish) -> Result<(), Errno> {
    let wanted = |now: &Identity| match of {
        Of::Users => now.with_users(wish, in_force(process)),
        Of::Groups => now.with_groups(wish, in_force(process)),
    };
    let keeps = process.keeps_capabilities.load(Ordering::Relaxed);
    process.identity.change(&process.account, wanted, |old, new| {
        process.authority.follow_users(old.capabilities_after(new), keeps);
        if old.hides_from(new) {
            process.dump.permit(false);
            process.set_signal_of_orphan(0);
        }
    })
}

/// Performs `getgroups`.
#[inline(never)]
pub(super) fn groups(call: Call<'_>) -> Decoding {
    let identity = call.process().identity_value();
    let numbers = identity.files.groups.numbers();
    let room = usize::try_from(call.signed(0)).map_err(|_| Errno::EINVAL)?;
    if room == 0 {
        return Ok(numbers.len().into());
    }
    if room < numbers.len() {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; MOST_GROUPS * 4];
    for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    call.process().copy_out(call.address(1), &bytes[..numbers.len() * 4])?;
    Ok(numbers.len().into())
}

/// Performs `setgroups`.
#[inline(never)]
pub(super) fn set_groups(call: Call<'_>) -> Decoding {
    let process = call.process();
    // As on Linux, a process that may not is told so first.
    process.identity_value().with_further_groups(&[], in_force(process))?;
    let count = call.unsigned(0) as usize;
    if count > MOST_GROUPS {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; MOST_GROUPS * 4];
    process.copy_in(call.address(1), &mut bytes[..count * 4])?;
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut numbers = [0; MOST_GROUPS];
    for (number, bytes) in numbers.iter_mut().zip(bytes[..count * 4].chunks_exact(4)) {
        *number = word(bytes);
    }
    let numbers = &numbers[..count];
    // A number that is none.
    if numbers.contains(&u32::MAX) {
        return Err(Errno::EINVAL);
    }
    let wanted = |now: &Identity| now.with_further_groups(numbers, in_force(process));
    process.identity.change(&process.account, wanted, |_, _| {})?;
    Ok(0.into())
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec::Vec;

    use abi_unix::SystemCall;
    use abi_unix::authority::{Capability, CapabilitySet, Held};
    use abi_unix::types::{self, mode, open, process_control, signal};

    use super::*;
    use crate::files::volume::tests::{mount, unmount, with_volume};
    use crate::process::{authority, table};
    use crate::testing::{Program, run};

    const HERE: usize = types::AT_FDCWD as usize;
    const KEEP: usize = u32::MAX as usize;

    fn text(program: &mut Program, text: &str) -> usize {
        program.store(format!("{text}\0").as_bytes())
    }

    fn three(program: &mut Program, call: SystemCall) -> [u32; 3] {
        let place = program.place(12);
        program.call(call, [place, place + 4, place + 8]).unwrap();
        [0, 4, 8].map(|at| program.read_u32(place + at))
    }

    fn become_user(program: &mut Program, user: usize, groups: &[u32]) {
        let bytes: Vec<u8> = groups.iter().flat_map(|group| group.to_le_bytes()).collect();
        let groups_at = program.store(&bytes);
        assert_eq!(program.call(SystemCall::SetGroups, [groups.len(), groups_at]), Ok(0));
        assert_eq!(program.call(SystemCall::SetGroupTriple, [user; 3]), Ok(0));
        assert_eq!(program.call(SystemCall::SetUserTriple, [user; 3]), Ok(0));
    }

    /// Runs a body in a copy of the program.
    fn child(program: &mut Program, body: impl FnOnce(&mut Program) + Send + 'static) {
        let child = program.fork(body).unwrap();
        assert_eq!(program.wait_for(child), Ok((child, 0)));
    }

    fn on_path<const N: usize>(
        program: &mut Program,
        call: SystemCall,
        path: &str,
        rest: [usize; N],
    ) -> Result<usize, Errno> {
        let path = text(program, path);
        let mut arguments = [0; 6];
        (arguments[0], arguments[1]) = (HERE, path);
        arguments[2..2 + N].copy_from_slice(&rest);
        program.call(call, arguments)
    }

    fn opened(program: &mut Program, path: &str, flags: u32) -> Result<(), Errno> {
        let file = on_path(program, SystemCall::Open, path, [flags as usize, 0o644])?;
        program.close(file).map(drop)
    }

    fn owner(program: &mut Program, path: &str) -> (u32, u32, u32) {
        let place = program.place(128);
        on_path(program, SystemCall::StatusAt, path, [place, 0]).unwrap();
        (program.read_u32(place + 24), program.read_u32(place + 28), program.read_u32(place + 16) & 0o7777)
    }

    #[test]
    fn users_and_groups_are_set_told_and_inherited() {
        run(|program| {
            assert_eq!(three(program, SystemCall::GetUserTriple), [0; 3]);
            assert_eq!(program.call(SystemCall::SetUser, [KEEP]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SetGroups, [65, 0x1000]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SetGroups, [1, 0x1000]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::GetGroups, [usize::MAX, 0]), Err(Errno::EINVAL));
            child(program, |program| {
                become_user(program, 1000, &[7, 5]);
                for (call, value) in [
                    (SystemCall::GetUser, 1000),
                    (SystemCall::GetEffectiveUser, 1000),
                    (SystemCall::GetGroup, 1000),
                    (SystemCall::GetEffectiveGroup, 1000),
                ] {
                    assert_eq!(program.call(call, []), Ok(value), "{call:?}");
                }
                let groups = program.place(8);
                assert_eq!(program.call(SystemCall::GetGroups, [0, 0]), Ok(2));
                assert_eq!(program.call(SystemCall::GetGroups, [1, groups]), Err(Errno::EINVAL));
                assert_eq!(program.call(SystemCall::GetGroups, [2, groups]), Ok(2));
                assert_eq!([0, 4].map(|at| program.read_u32(groups + at)), [5, 7]);
                for (call, arguments) in [
                    (SystemCall::SetUser, [0; 3]),
                    (SystemCall::SetGroup, [0; 3]),
                    (SystemCall::SetUserPair, [0, KEEP, 0]),
                    (SystemCall::SetGroupPair, [KEEP, 5, 0]),
                    (SystemCall::SetUserTriple, [KEEP, KEEP, 0]),
                    (SystemCall::SetGroupTriple, [5, KEEP, KEEP]),
                    (SystemCall::SetGroups, [0; 3]),
                ] {
                    assert_eq!(program.call(call, arguments), Err(Errno::EPERM), "{call:?}");
                }
                assert_eq!(program.call(SystemCall::SetFileUser, [0]), Ok(1000));
                assert_eq!(program.call(SystemCall::SetFileUser, [1000]), Ok(1000), "it stayed");
                assert_eq!(program.call(SystemCall::SetUser, [1000]), Ok(0));
                child(program, |program| {
                    assert_eq!(three(program, SystemCall::GetUserTriple), [1000; 3]);
                    assert_eq!(program.call(SystemCall::SetUser, [0]), Err(Errno::EPERM));
                });
                let stranger = program.spawn(|program| {
                    assert_eq!(three(program, SystemCall::GetGroupTriple), [1000; 3]);
                });
                let stranger = stranger.unwrap();
                assert_eq!(program.wait_for(stranger), Ok((stranger, 0)));
            });
            assert_eq!(three(program, SystemCall::GetUserTriple), [0; 3]);
            child(program, |program| {
                assert_eq!(program.call(SystemCall::SetUserTriple, [KEEP, 1000, KEEP]), Ok(0));
                assert_eq!(program.call(SystemCall::SetFileUser, [KEEP]), Ok(1000));
                assert_eq!(program.call(SystemCall::SetUserTriple, [KEEP, 0, KEEP]), Ok(0));
                assert_eq!(three(program, SystemCall::GetUserTriple), [0; 3]);
            });
        });
    }

    /// Files in memory and on a volume grant the same.
    #[test]
    fn files_are_looked_at_for_the_user() {
        let look = |program: &mut Program, place: &'static str| {
            let at = move |name: &str| format!("{place}/{name}");
            on_path(program, SystemCall::MakeDirectory, place, [0o777]).unwrap();
            on_path(program, SystemCall::ChangeModeAt, place, [0o777]).unwrap();
            for (name, permissions) in [("open", 0o777), ("shut", 0o700), ("sticky", 0o1777), ("group", 0o2775)] {
                on_path(program, SystemCall::MakeDirectory, &at(name), [0o777]).unwrap();
                on_path(program, SystemCall::ChangeModeAt, &at(name), [permissions]).unwrap();
                opened(program, &at(&format!("{name}/roots")), open::CREAT | open::RDWR).unwrap();
            }
            on_path(program, SystemCall::ChangeOwnerAt, &at("group"), [KEEP, 50, 0]).unwrap();
            child(program, move |program| {
                become_user(program, 1000, &[50]);
                let create = open::CREAT | open::RDWR;
                assert_eq!(opened(program, &at("open/roots"), open::RDONLY), Ok(()));
                assert_eq!(opened(program, &at("open/roots"), open::WRONLY), Err(Errno::EACCES));
                assert_eq!(opened(program, &at("open/roots"), open::TRUNC), Err(Errno::EACCES));
                assert_eq!(opened(program, &at("shut/roots"), open::RDONLY), Err(Errno::EACCES));
                assert_eq!(opened(program, &at("shut/missing"), open::RDONLY), Err(Errno::EACCES));
                assert_eq!(opened(program, &at("shut"), open::RDONLY), Err(Errno::EACCES));
                assert_eq!(opened(program, &at("shut/new"), create), Err(Errno::EACCES));
                let chdir = text(program, &at("shut"));
                assert_eq!(program.call(SystemCall::ChangeDirectory, [chdir]), Err(Errno::EACCES));
                assert_eq!(on_path(program, SystemCall::Access, &at("open/roots"), [2]), Err(Errno::EACCES));
                assert_eq!(on_path(program, SystemCall::Access, &at("open/roots"), [4]), Ok(0));
                // The maker of a file may use it, whatever its permissions; its group is the directory's.
                let own = on_path(program, SystemCall::Open, &at("group/own"), [create as usize, 0]).unwrap();
                assert_eq!(program.write_to(own, b"text"), Ok(4));
                assert_eq!(program.call(SystemCall::ChangeMode, [own, 0o6755]), Ok(0));
                program.close(own).unwrap();
                assert_eq!(owner(program, &at("group/own")), (1000, 50, 0o6755));
                let mode = |program: &mut Program, name: &str, mode: usize| {
                    on_path(program, SystemCall::ChangeModeAt, &at(name), [mode])
                };
                assert_eq!(mode(program, "open/roots", 0o777), Err(Errno::EPERM));
                let give = |program: &mut Program, name: &str, user: usize, group: usize| {
                    on_path(program, SystemCall::ChangeOwnerAt, &at(name), [user, group, 0])
                };
                assert_eq!(give(program, "open/roots", 1000, KEEP), Err(Errno::EPERM));
                assert_eq!(give(program, "group/own", 1001, KEEP), Err(Errno::EPERM));
                assert_eq!(give(program, "group/own", KEEP, 1000), Ok(0));
                assert_eq!(owner(program, &at("group/own")), (1000, 1000, 0o755));
                assert_eq!(give(program, "group/own", KEEP, 60), Err(Errno::EPERM));
                let times = |program: &mut Program, name: &str, times: usize| {
                    on_path(program, SystemCall::SetTimes, &at(name), [times, 0])
                };
                let past = program.store(&[0; 32]);
                assert_eq!(times(program, "open/roots", 0), Err(Errno::EACCES));
                assert_eq!(times(program, "open/roots", past), Err(Errno::EPERM));
                assert_eq!(times(program, "group/own", past), Ok(0));
                let unlink = |program: &mut Program, name: &str| on_path(program, SystemCall::Unlink, &at(name), [0]);
                assert_eq!(unlink(program, "sticky/roots"), Err(Errno::EPERM));
                assert_eq!(unlink(program, "sticky/missing"), Err(Errno::ENOENT));
                assert_eq!(unlink(program, "shut/roots"), Err(Errno::EACCES));
                let rename = |program: &mut Program, old: &str, new: &str| {
                    let new = text(program, &at(new));
                    on_path(program, SystemCall::Rename, &at(old), [HERE, new, 0])
                };
                assert_eq!(rename(program, "sticky/roots", "open/x"), Err(Errno::EPERM));
                assert_eq!(rename(program, "group/own", "sticky/own"), Ok(0));
                assert_eq!(rename(program, "sticky/own", "sticky/roots"), Err(Errno::EPERM));
                assert_eq!(rename(program, "shut", "sticky/shut"), Err(Errno::EACCES), "its `..` would change");
                let make =
                    |program: &mut Program, name: &str| on_path(program, SystemCall::MakeDirectory, &at(name), [0o777]);
                assert_eq!(make(program, "shut/new"), Err(Errno::EACCES));
                assert_eq!(make(program, "open/roots"), Err(Errno::EEXIST));
                assert_eq!(make(program, "group/new"), Ok(0));
                assert_eq!(owner(program, &at("group/new")).1, 50);
                let length = text(program, &at("open/roots"));
                assert_eq!(program.call(SystemCall::TruncateAt, [length, 0]), Err(Errno::EACCES));
                assert_eq!(unlink(program, "sticky/own"), Ok(0));
                let remove = types::AT_REMOVEDIR as usize;
                assert_eq!(on_path(program, SystemCall::Unlink, &at("group/new"), [remove]), Ok(0));
            });
            let at = move |name: &str| format!("{place}/{name}");
            for name in ["open", "shut", "sticky", "group"] {
                on_path(program, SystemCall::Unlink, &at(&format!("{name}/roots")), [0]).unwrap();
                on_path(program, SystemCall::Unlink, &at(name), [types::AT_REMOVEDIR as usize]).unwrap();
            }
            on_path(program, SystemCall::Unlink, place, [types::AT_REMOVEDIR as usize]).unwrap();
        };
        run(move |program| look(program, "/tmp/users"));
        with_volume(move |program| {
            mount(program, 0).unwrap();
            look(program, "/tmp/volume/users");
            // In the first second of 1970, e2fsck takes the time of an end for the number of a file.
            program.sleep_ns(2_000_000_000);
            unmount(program).unwrap();
        });
    }

    /// Names of other processes, and of the machine's files.
    #[test]
    fn processes_files_and_sockets_of_others_are_out_of_reach() {
        run(|program| {
            let parent = program.id;
            let waiting = program.fork(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
            child(program, move |program| {
                become_user(program, 1000, &[]);
                for other in [parent as usize, waiting] {
                    assert_eq!(program.call(SystemCall::Kill, [other, 0]), Err(Errno::EPERM));
                }
                let environment = format!("/proc/{parent}/environ");
                assert_eq!(opened(program, &environment, open::RDONLY), Err(Errno::EACCES));
                assert_eq!(opened(program, &format!("/proc/{parent}/stat"), open::RDONLY), Ok(()));
                // As on Linux: it is user 0's, like all of a process that has changed its users.
                assert_eq!(opened(program, "/proc/self/environ", open::RDONLY), Err(Errno::EACCES));
                for name in ["maps", "fd"] {
                    assert_eq!(opened(program, &format!("/proc/self/{name}"), open::RDONLY), Ok(()), "{name}");
                }
                let setting = "/proc/sys/kernel/core_pattern";
                assert_eq!(opened(program, setting, open::WRONLY), Err(Errno::EACCES));
                let own = program.fork(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
                assert_eq!(program.call(SystemCall::Kill, [own, signal::TERM as usize]), Ok(0));
                assert_eq!(program.wait_for(own), Ok((own, signal::TERM)));
                assert_eq!(program.call(SystemCall::ProcessControl, [process_control::GET_DUMPABLE as usize]), Ok(0));
                let make = [types::AF_UNIX as usize, types::SOCK_STREAM as usize, 0];
                let socket = program.call(SystemCall::Socket, make).unwrap();
                let name = program.store(b"\x01\0/proc/x");
                assert_eq!(program.call(SystemCall::Bind, [socket, name, 9]), Err(Errno::EPERM));
                let name = program.store(b"\x01\0/x");
                assert_eq!(program.call(SystemCall::Bind, [socket, name, 4]), Err(Errno::EACCES));
            });
            assert_eq!(program.call(SystemCall::Kill, [waiting, signal::TERM as usize]), Ok(0));
            assert_eq!(program.wait_for(waiting), Ok((waiting, signal::TERM)));
        });
    }

    /// capabilities(7): they go with the last user 0, unless the process keeps the permitted ones.
    #[test]
    fn capabilities_go_with_user_0() {
        run(|program| {
            let only = CapabilitySet::only(Capability::Kill);
            for keeps in [false, true] {
                let spawned = program.spawn(move |program| {
                    let first = table::find(1).unwrap();
                    authority::give(&first, &program.process(), Held::of(only)).unwrap();
                    let keep = process_control::SET_KEEPCAPS as usize;
                    program.call(SystemCall::ProcessControl, [keep, keeps.into()]).unwrap();
                    program.call(SystemCall::SetUserTriple, [KEEP, 1000, KEEP]).unwrap();
                    assert_eq!(program.process().authority.held().effective, CapabilitySet::NONE);
                    assert_eq!(program.process().authority.held().permitted, only);
                    program.call(SystemCall::SetUserTriple, [KEEP, 0, KEEP]).unwrap();
                    assert_eq!(program.process().authority.held().effective, only);
                    program.call(SystemCall::SetUser, [1000]).unwrap();
                    let held = program.process().authority.held();
                    assert_eq!(held.effective, CapabilitySet::NONE);
                    assert_eq!(held.permitted, if keeps { only } else { CapabilitySet::NONE });
                });
                let spawned = spawned.unwrap();
                assert_eq!(program.wait_for(spawned), Ok((spawned, 0)));
            }
        });
    }

    /// A process that was user 0 and keeps its capabilities puts those in force again that change users and groups.
    #[test]
    fn capabilities_that_are_kept_change_users_and_groups() {
        run(|program| {
            for (capability, call) in
                [(Capability::SetUsers, SystemCall::SetUserTriple), (Capability::SetGroups, SystemCall::SetGroupTriple)]
            {
                let only = CapabilitySet::only(capability);
                let child = program.fork(move |program| {
                    let (first, process) = (table::find(1).unwrap(), program.process());
                    authority::give(&first, &process, Held::of(only)).unwrap();
                    let keep = process_control::SET_KEEPCAPS as usize;
                    program.call(SystemCall::ProcessControl, [keep, 1]).unwrap();
                    program.call(SystemCall::SetUserTriple, [1000; 3]).unwrap();
                    assert_eq!(program.call(call, [7; 3]), Err(Errno::EPERM), "it is not in force");
                    authority::give(&process, &process, Held::of(only)).unwrap();
                    assert_eq!(program.call(call, [7; 3]), Ok(0));
                    let other =
                        [SystemCall::SetUserTriple, SystemCall::SetGroupTriple].into_iter().find(|of| *of != call);
                    assert_eq!(program.call(other.unwrap(), [8; 3]), Err(Errno::EPERM), "{capability:?}");
                    let number = program.store(&9u32.to_le_bytes());
                    let joins = if capability == Capability::SetGroups { Ok(0) } else { Err(Errno::EPERM) };
                    assert_eq!(program.call(SystemCall::SetGroups, [1, number]), joins);
                });
                let child = child.unwrap();
                assert_eq!(program.wait_for(child), Ok((child, 0)));
            }
        });
    }

    /// The bits of a program to set user and group, and where they do not count.
    #[test]
    fn programs_run_as_their_owner() {
        run(|program| {
            let execute = |program: &mut Program, expected: [u32; 3], prepare: fn(&mut Program)| {
                child(program, move |program| {
                    become_user(program, 1000, &[]);
                    prepare(program);
                    let path = text(program, "/bin/test");
                    program.goes_on_as(move |program| {
                        assert_eq!(three(program, SystemCall::GetUserTriple), expected);
                    });
                    let result = program.call(SystemCall::Execute, [path, 0, 0]);
                    panic!("{result:?}");
                });
            };
            let set = |program: &mut Program, user: usize, mode: usize| {
                on_path(program, SystemCall::ChangeOwnerAt, "/bin/test", [user, KEEP, 0]).unwrap();
                on_path(program, SystemCall::ChangeModeAt, "/bin/test", [mode]).unwrap();
            };
            let before = owner(program, "/bin/test");
            execute(program, [1000; 3], |_| {});
            set(program, 5, 0o4755);
            execute(program, [1000, 5, 5], |_| {});
            execute(program, [1000; 3], |program| {
                let option = process_control::SET_NO_NEW_PRIVS as usize;
                program.call(SystemCall::ProcessControl, [option, 1, 0, 0, 0]).unwrap();
            });
            set(program, 5, 0o700);
            child(program, |program| {
                become_user(program, 1000, &[]);
                let path = text(program, "/bin/test");
                assert_eq!(program.call(SystemCall::Execute, [path, 0, 0]), Err(Errno::EACCES));
            });
            set(program, before.0 as usize, before.2 as usize);
        });
    }

    /// Runs the test's program with these bits and this owner in a copy that is prepared before.
    fn execute_prepared(
        program: &mut Program,
        (user, mode): (usize, usize),
        prepare: impl FnOnce(&mut Program) + Send + 'static,
        expected: impl FnOnce(&mut Program) + Send + 'static,
    ) {
        let set = |program: &mut Program, user: usize, mode: usize| {
            on_path(program, SystemCall::ChangeOwnerAt, "/bin/test", [user, KEEP, 0]).unwrap();
            on_path(program, SystemCall::ChangeModeAt, "/bin/test", [mode]).unwrap();
        };
        let before = owner(program, "/bin/test");
        set(program, user, mode);
        child(program, move |program| {
            prepare(program);
            let path = text(program, "/bin/test");
            program.goes_on_as(expected);
            let result = program.call(SystemCall::Execute, [path, 0, 0]);
            panic!("{result:?}");
        });
        set(program, before.0 as usize, before.2 as usize);
    }

    fn held(program: &Program) -> Held {
        program.process().authority.held()
    }

    fn give(program: &Program, held: Held) {
        authority::give(&table::find(1).unwrap(), &program.process(), held).unwrap();
    }

    /// capabilities(7): a program changes users, and capabilities follow.
    #[test]
    fn a_program_takes_the_capabilities_of_users_that_it_gives_up() {
        run(|program| {
            let only = CapabilitySet::only(Capability::Kill);
            // The saved user is 0 until the program begins.
            let give_up = move |program: &mut Program| {
                give(program, Held::of(only));
                assert_eq!(program.call(SystemCall::SetUserTriple, [1000, 1000, 0]), Ok(0));
                assert_eq!(held(program), Held { effective: CapabilitySet::NONE, ..Held::of(only) });
            };
            execute_prepared(program, (0, 0o755), give_up, |program| {
                assert_eq!(three(program, SystemCall::GetUserTriple), [1000; 3]);
                assert_eq!(held(program), Held::NONE);
            });
            // The owner of the program is not 0, and the user that has started it is.
            execute_prepared(
                program,
                (5, 0o4755),
                move |program| give(program, Held::of(only)),
                move |program| {
                    assert_eq!(three(program, SystemCall::GetUserTriple), [0, 5, 5]);
                    assert_eq!(held(program), Held { effective: CapabilitySet::NONE, ..Held::of(only) });
                },
            );
        });
    }

    #[test]
    fn capabilities_are_effective_for_children_of_user_0_alone() {
        run(|program| {
            let only = CapabilitySet::only(Capability::RawNetwork);
            child(program, move |program| {
                give(program, Held { inheritable: only, ..Held::of(only) });
                let expected = only.or(CapabilitySet::OF_OWN_NUMBERS);
                child(program, move |program| assert_eq!(held(program).effective, expected));
                assert_eq!(program.call(SystemCall::SetUserTriple, [KEEP, 1000, KEEP]), Ok(0));
                let expected = Held { effective: CapabilitySet::NONE, permitted: only, inheritable: only };
                child(program, move |program| assert_eq!(held(program), expected));
                let spawned = program.spawn(move |program| assert_eq!(held(program).effective, CapabilitySet::NONE));
                let spawned = spawned.unwrap();
                assert_eq!(program.wait_for(spawned), Ok((spawned, 0)));
            });
        });
    }

    /// As `execve` does: the users to which a parent can go back are not passed on.
    #[test]
    fn a_program_that_is_started_has_the_effective_user_as_saved_one() {
        run(|program| {
            child(program, |program| {
                assert_eq!(program.call(SystemCall::SetUserTriple, [1000, 1000, 0]), Ok(0));
                assert_eq!(program.call(SystemCall::SetFileUser, [0]), Ok(1000));
                let spawned = program.spawn(|program| {
                    assert_eq!(three(program, SystemCall::GetUserTriple), [1000; 3]);
                    assert_eq!(program.call(SystemCall::SetFileUser, [KEEP]), Ok(1000));
                    assert_eq!(program.call(SystemCall::SetUser, [0]), Err(Errno::EPERM));
                });
                let spawned = spawned.unwrap();
                assert_eq!(program.wait_for(spawned), Ok((spawned, 0)));
            });
        });
    }

    /// Memory of a program is its file, and could be read from a core file or from outside.
    #[test]
    fn a_program_that_may_not_be_read_leaves_no_core_file() {
        run(|program| {
            let dumpable = |program: &mut Program| {
                program.call(SystemCall::ProcessControl, [process_control::GET_DUMPABLE as usize])
            };
            execute_prepared(
                program,
                (0, 0o755),
                |program| become_user(program, 1000, &[]),
                move |program| {
                    assert_eq!(dumpable(program), Ok(1));
                },
            );
            execute_prepared(
                program,
                (0, 0o711),
                |program| become_user(program, 1000, &[]),
                move |program| {
                    assert_eq!(dumpable(program), Ok(0));
                    let spawned = program.spawn(move |program| assert_eq!(dumpable(program), Ok(0))).unwrap();
                    assert_eq!(program.wait_for(spawned), Ok((spawned, 0)));
                },
            );
        });
    }

    /// sigio_perm: a program that runs as its owner gives no more rights to signals that were asked for before.
    #[test]
    fn signals_of_files_have_the_rights_of_the_time_when_they_were_asked_for() {
        run(|program| {
            let victim = program.fork(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
            let (reader, writer) = program.pipe(open::NONBLOCK);
            let ask = move |program: &mut Program| {
                become_user(program, 1000, &[]);
                let control = |program: &mut Program, command: u32, value: usize| {
                    program.call(SystemCall::FileControl, [reader, command as usize, value])
                };
                assert_eq!(control(program, types::control::SETOWN, victim), Ok(0));
                assert_eq!(control(program, types::control::SETFL, open::ASYNC as usize), Ok(0));
            };
            execute_prepared(program, (0, 0o4755), ask, move |program| {
                assert_eq!(three(program, SystemCall::GetUserTriple), [1000, 0, 0]);
                assert_eq!(program.call(SystemCall::Kill, [victim, 0]), Ok(0), "the program may");
                assert_eq!(program.write_to(writer, b"x"), Ok(1));
                program.sleep_ns(1_000_000);
            });
            assert!(table::find(victim as u32).is_some(), "the file may not");
            assert_eq!(program.call(SystemCall::Kill, [victim, signal::KILL as usize]), Ok(0));
            assert_eq!(program.wait_for(victim), Ok((victim, signal::KILL)));
        });
    }

    /// The owner of a file that is there would read the memory of the process.
    #[test]
    fn core_files_of_others_are_not_written() {
        const CORE: &str = "/tmp/core-of-1000";
        run(|program| {
            crate::process::core_file::name::set_pattern(CORE.as_bytes()).unwrap();
            let limit = program.store(&types::limit::to_bytes(u64::MAX, u64::MAX));
            program.call(SystemCall::ProcessLimit, [0, types::limit::CORE as usize, limit, 0]).unwrap();
            let (died, dumped) = (signal::QUIT, signal::QUIT | 0x80);
            for (user, mode, status, left) in
                [(1001, 0o600, died, 4), (0, 0o666, died, 4), (1000, 0o640, died, 4), (1000, 0o600, dumped, 0)]
            {
                let file = on_path(program, SystemCall::Open, CORE, [(open::CREAT | open::WRONLY) as usize, 0o600]);
                let file = file.unwrap();
                assert_eq!(program.write_to(file, b"mine"), Ok(4));
                program.close(file).unwrap();
                on_path(program, SystemCall::ChangeOwnerAt, CORE, [user, user, 0]).unwrap();
                on_path(program, SystemCall::ChangeModeAt, CORE, [mode]).unwrap();
                let dies = program.fork(|program| {
                    become_user(program, 1000, &[]);
                    program.call(SystemCall::ProcessControl, [process_control::SET_DUMPABLE as usize, 1]).unwrap();
                    let own = program.id as usize;
                    let _ = program.call(SystemCall::Kill, [own, signal::QUIT as usize]);
                });
                let dies = dies.unwrap();
                assert_eq!(program.wait_for(dies), Ok((dies, status)), "{user} {mode:o}");
                let place = program.place(128);
                on_path(program, SystemCall::StatusAt, CORE, [place, 0]).unwrap();
                assert!(left == 0 || program.read_u64(place + 48) == left);
                on_path(program, SystemCall::Unlink, CORE, [0]).unwrap();
            }
            crate::process::core_file::name::set_pattern(b"core").unwrap();
        });
    }

    /// A process of another user would read what is typed at it.
    #[test]
    fn the_console_is_user_0_s() {
        run(|program| {
            assert_eq!(owner(program, "/dev/console"), (0, 0, 0o600));
            assert_eq!(owner(program, "/dev/null"), (0, 0, 0o666));
            child(program, |program| {
                become_user(program, 1000, &[]);
                assert_eq!(opened(program, "/dev/console", open::RDWR), Err(Errno::EACCES));
            });
        });
    }

    /// Another user's bytes are not run as the owner's, also before they reach the disk.
    #[test]
    fn bytes_in_a_file_of_a_volume_take_its_bits_at_once() {
        with_volume(|program| {
            mount(program, 0).unwrap();
            let path = "/tmp/volume/program";
            let file = on_path(program, SystemCall::Open, path, [(open::CREAT | open::RDWR) as usize, 0o755]).unwrap();
            assert_eq!(program.write_to(file, b"bytes"), Ok(5));
            assert_eq!(program.call(SystemCall::ChangeMode, [file, 0o6777]), Ok(0));
            assert_eq!(owner(program, path).2, 0o6777);
            child(program, move |program| {
                become_user(program, 1000, &[]);
                let at = program.store(b"other");
                assert_eq!(program.call(SystemCall::WriteAt, [file, at, 5, 0]), Ok(5));
                assert_eq!(owner(program, path).2, 0o777);
            });
            program.close(file).unwrap();
            on_path(program, SystemCall::Unlink, path, [0]).unwrap();
            program.sleep_ns(2_000_000_000);
            unmount(program).unwrap();
        });
    }

    /// To look at a process is not to have its pipes.
    #[test]
    fn open_files_of_others_are_not_taken_by_their_names() {
        run(|program| {
            let spawned = program.spawn(|program| {
                let (reader, _) = program.pipe(0);
                let own = format!("/proc/{}/fd/{reader}", program.id);
                assert_eq!(opened(program, &own, open::RDONLY), Ok(()));
                let of_the_parent = own.clone();
                child(program, move |program| {
                    assert_eq!(opened(program, &format!("/proc/self/fd/{reader}"), open::RDONLY), Ok(()));
                    assert_eq!(opened(program, &of_the_parent, open::RDONLY), Err(Errno::EACCES));
                    let (path, place) = (text(program, &of_the_parent), program.place(64));
                    assert!(program.call(SystemCall::ReadLink, [HERE, path, place, 64]).is_ok(), "it may look");
                });
                let below = program.fork(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
                assert_eq!(opened(program, &format!("/proc/{below}/fd/{reader}"), open::RDONLY), Ok(()));
                assert_eq!(program.call(SystemCall::Kill, [below, signal::KILL as usize]), Ok(0));
                assert_eq!(program.wait_for(below), Ok((below, signal::KILL)));
            });
            let spawned = spawned.unwrap();
            assert_eq!(program.wait_for(spawned), Ok((spawned, 0)));
        });
    }

    /// A hole is a change of contents.
    #[test]
    fn holes_take_the_bits_of_a_file() {
        run(|program| {
            let path = "/tmp/with-holes";
            let file = on_path(program, SystemCall::Open, path, [(open::CREAT | open::RDWR) as usize, 0o755]).unwrap();
            assert_eq!(program.write_to(file, b"bytes"), Ok(5));
            for punch in [0, 3] {
                assert_eq!(program.call(SystemCall::ChangeMode, [file, 0o6777]), Ok(0));
                child(program, move |program| {
                    become_user(program, 1000, &[]);
                    assert_eq!(program.call(SystemCall::Allocate, [file, punch, 0, 4096]), Ok(0));
                    assert_eq!(owner(program, path).2, 0o777);
                });
            }
            program.close(file).unwrap();
            on_path(program, SystemCall::Unlink, path, [0]).unwrap();
        });
    }

    /// Special files, and names of sockets, are files.
    #[test]
    fn fifos_and_sockets_grant_what_their_nodes_do() {
        run(|program| {
            on_path(program, SystemCall::MakeNode, "/tmp/fifo-of-0", [(mode::PIPE | 0o600) as usize, 0]).unwrap();
            let make = [types::AF_UNIX as usize, types::SOCK_STREAM as usize, 0];
            let server = program.call(SystemCall::Socket, make).unwrap();
            let name = b"\x01\0/tmp/socket-of-0";
            let at = program.store(name);
            program.call(SystemCall::Bind, [server, at, name.len()]).unwrap();
            program.call(SystemCall::Listen, [server, 3]).unwrap();
            on_path(program, SystemCall::ChangeModeAt, "/tmp/socket-of-0", [0o755]).unwrap();
            let connect = move |program: &mut Program| {
                let client = program.call(SystemCall::Socket, make).unwrap();
                let at = program.store(name);
                let connected = program.call(SystemCall::Connect, [client, at, name.len()]);
                (client, connected)
            };
            child(program, move |program| {
                become_user(program, 1000, &[]);
                assert_eq!(opened(program, "/tmp/fifo-of-0", open::RDWR), Err(Errno::EACCES));
                assert_eq!(connect(program).1, Err(Errno::EACCES));
            });
            on_path(program, SystemCall::ChangeModeAt, "/tmp/socket-of-0", [0o777]).unwrap();
            child(program, move |program| {
                become_user(program, 1000, &[]);
                let (client, connected) = connect(program);
                assert_eq!(connected, Ok(0));
                let (value, size) = (program.place(12), program.store(&12u32.to_le_bytes()));
                let peer = types::socket_option::SO_PEERCRED as usize;
                assert_eq!(program.call(SystemCall::GetSocketOption, [client, 1, peer, value, size]), Ok(0));
                assert_eq!([4, 8].map(|at| program.read_u32(value + at)), [0, 0]);
            });
            let taken = program.call(SystemCall::Accept, [server, 0, 0]).unwrap();
            let (value, size) = (program.place(12), program.store(&12u32.to_le_bytes()));
            let peer = types::socket_option::SO_PEERCRED as usize;
            assert_eq!(program.call(SystemCall::GetSocketOption, [taken, 1, peer, value, size]), Ok(0));
            assert_eq!([4, 8].map(|at| program.read_u32(value + at)), [1000, 1000]);
            program.remove(b"/tmp/socket-of-0\0");
            program.remove(b"/tmp/fifo-of-0\0");
        });
    }
}
