//! Authority of processes towards others: the one check of the kernel, and the calls that hand authority out.
//!
//! # The model
//! Processes form a tree: each is *below* the process that started it, and below all processes above that. When a
//! process ends, the processes below it are below its nearest living ancestor, so that no process gets out of another's
//! reach by letting its parent end. A process may do anything with itself and with processes below it. Any other act
//! that concerns others is an [`Act`] of the table in `abi_unix::authority`, which names the capability it needs, and
//! whether processes of one user need it towards each other.
//!
//! The first process holds every capability, and its children hold none unless it hands them out: a process has the
//! capabilities that its parent lets it inherit, and can be given those of a process above it. `execve` changes
//! them only as its change of users does. A system that was made for Linux hands nothing out and expects that programs
//! of user 0 may do everything: the boot word `authority=inherited` has the first process hand out all of them.
//!
//! # Users
//! A program that `spawn` starts is a *user* of its own, and its copies by `fork` are the same user, whatever they
//! execute. To itself each user is user 0, as if each were root in a user namespace of its own on Linux, without
//! capabilities outside. Processes of one user may signal and observe each other, as Linux's rule for kill(2) says: a
//! shell built for Linux and all that it runs are one user, so that `kill -USR1 $PPID` has its effect. A program that
//! was started by `spawn` can end itself, its copies and those below it, and neither its parent nor its siblings.
//! Limits and scheduling are no matter of users: a process could otherwise undo what its parent has set for it.
//!
//! An object that stays when its maker has ended, as a segment of shared memory does, belongs to the maker's user and
//! to those that were above the maker when it was made ([`Maker`]): so those who answer for a process can remove what
//! it has left. Others may use it as its mode says, and those with `CAP_SYS_ADMIN` may remove and change it.
//!
//! # Users of Linux
//! Within its reach a process may set other users and groups as Linux has them
//! ([`identity`](crate::process::identity)). These take rights away: a process whose users are not 0 reaches those with
//! the same users alone, also below it, and loses its capabilities. None of them gives a process a right that the rules
//! above do not.
//!
//! Rejected: all processes as one user, as on Linux where all are root. Each program could end every other one, and
//! sandboxes would need calls to change users, which a parent can forget. Rejected, too: the tree alone, which was the
//! rule before. Programs that were built for Linux signal their parents and siblings. And rejected: one flag for
//! everything, which was the beginning of this. A program that needs to see the counters would have to be trusted with
//! switching the machine off.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi_unix::Errno;
use abi_unix::authority::{Act, CapabilitySet, Held, Scope, version};

use platform::println;

use crate::process::capabilities::{Maker, Rights};
use crate::process::table::SeenZombie;
use crate::process::{Process, table};

/// Whether the children of the first process hold its capabilities, and theirs in turn, as programs of user 0 on Linux.
static IS_INHERITED: AtomicBool = AtomicBool::new(false);

/// Chooses what the children of the first process hold, by a boot word.
pub(crate) fn start(authority: Option<&str>) {
    match authority {
        None | Some("own") => {}
        Some("inherited") => IS_INHERITED.store(true, Ordering::Relaxed),
        Some(other) => println!("authority: `{other}` is neither own nor inherited; it is the first process's own"),
    }
}

/// Returns the capabilities of the first process.
pub(super) fn of_the_first() -> Held {
    // Relaxed: it was stored before there were processes.
    let is_inherited = IS_INHERITED.load(Ordering::Relaxed);
    Held { inheritable: if is_inherited { CapabilitySet::ALL } else { CapabilitySet::NONE }, ..Held::FIRST }
}

/// Checks an act that concerns no particular process: `EPERM` unless the process may do it.
#[doc(alias = "capable")]
#[doc(alias = "ns_capable")]
pub(crate) fn permit(process: &Process, act: Act) -> Result<(), Errno> {
    debug_assert_eq!(act.scope(), Scope::Always, "{act:?} depends on whom it concerns");
    if process.authority.permits(act) { Ok(()) } else { Err(Errno::EPERM) }
}

/// Checks an act towards another process: `EPERM` unless that is the caller, or below it, or of the same user if that
/// suffices, or the caller has the capability.
pub(crate) fn permit_towards(caller: &Process, other: &Process, act: Act) -> Result<(), Errno> {
    if caller.id == other.id { Ok(()) } else { permit_with(&rights(caller), caller, other, act) }
}

/// Returns the rights that a process has now.
pub(crate) fn rights(process: &Process) -> Rights {
    Rights { whom: process.whom(), effective: process.authority.held().effective }
}

/// Checks an act towards a process in the name of a caller that had these rights once, as [`permit_towards`] does;
/// towards the caller itself, too, whose users may be others now.
pub(crate) fn permit_with(rights: &Rights, caller: &Process, other: &Process, act: Act) -> Result<(), Errno> {
    debug_assert_ne!(act.scope(), Scope::Always, "{act:?} does not depend on whom it concerns");
    let is_of_one_user = || act.scope() == Scope::OtherUsers && caller.authority.is_of_the_user_of(&other.authority);
    let reaches = || caller.id == other.id || is_of_one_user() || table::is_below(other, caller);
    let may = rights.effective.has(act.capability()) || reaches() && is_permitted_by_users(rights, caller, other, act);
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// Checks a signal to a zombie, as [`permit_towards`] checks one to a process that lives.
pub(super) fn permit_towards_zombie(caller: &Process, zombie: &SeenZombie) -> Result<(), Errno> {
    let Rights { whom, effective } = rights(caller);
    let reaches = zombie.is_below || zombie.users.user == caller.authority.user();
    let do_users_permit = || whom.is_none_or(|own| own.may_signal(zombie.users.numbers));
    let may = effective.has(Act::Signal.capability()) || reaches && do_users_permit();
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// Returns whether the users of two processes within the caller's reach permit an act, as kill(2) and ptrace(2) say.
fn is_permitted_by_users(rights: &Rights, caller: &Process, other: &Process, act: Act) -> bool {
    let Some(own) = &rights.whom else { return true };
    let identity = other.identity_value();
    match act {
        Act::Signal => own.may_signal(identity.users),
        Act::Inspect | Act::Empower => {
            // A process that has changed its users may have secrets of the one before in memory, and one that is
            // permitted more could be used by whoever looks into it.
            let hides = caller.id != other.id && !own.is_privileged() && !other.dump.is_permitted();
            let permitted = |process: &Process| process.authority.held().permitted;
            own.may_inspect(&identity) && !hides && permitted(other).is_within(permitted(caller))
        }
        _ => own.may_inspect(&identity),
    }
}

/// Returns a process as the maker of an object. `ENOMEM`.
pub(crate) fn maker(process: &Process) -> Result<Maker, Errno> {
    let mut users = Vec::new();
    users.try_reserve_exact(Maker::MOST_USERS).map_err(|_| Errno::ENOMEM)?;
    users.push(process.authority.user());
    table::add_users_above(process, &mut users);
    Ok(Maker::new(process.id, users))
}

/// Reads a header: returns the number of bytes of data for it, and the process that it names. A version that does not
/// exist is replaced by one that does, by which programs find out.
fn read_header(caller: &Process, header: usize) -> Result<(Option<usize>, i32), Errno> {
    let mut bytes = [0; 8];
    caller.copy_in(header, &mut bytes)?;
    let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let size = version::data_size(word(0));
    if size.is_none() {
        caller.copy_out(header, &version::THREE.to_le_bytes())?;
    }
    Ok((size, word(4) as i32))
}

/// Returns the process that a header names: 0 is the caller.
fn meant(caller: &Arc<Process>, id: i32) -> Result<Arc<Process>, Errno> {
    match u32::try_from(id) {
        Ok(0) => Ok(caller.clone()),
        Ok(id) if id == caller.id => Ok(caller.clone()),
        Ok(id) => table::find(id).ok_or(Errno::ESRCH),
        Err(_) => Err(Errno::EINVAL),
    }
}

/// Performs the `capget` call.
pub(crate) fn get(caller: &Arc<Process>, header: usize, data: usize) -> Result<usize, Errno> {
    let (size, id) = read_header(caller, header)?;
    if data == 0 {
        return Ok(0);
    }
    let size = size.ok_or(Errno::EINVAL)?;
    let held = meant(caller, id)?.authority.held();
    caller.copy_out(data, &held.to_bytes()[..size])?;
    Ok(0)
}

/// Performs the `capset` call.
pub(crate) fn set(caller: &Arc<Process>, header: usize, data: usize) -> Result<usize, Errno> {
    let (size, id) = read_header(caller, header)?;
    let size = size.ok_or(Errno::EINVAL)?;
    let mut bytes = [0; Held::SIZE];
    caller.copy_in(data, &mut bytes[..size])?;
    let process = meant(caller, id)?;
    give(caller, &process, Held::from_bytes(bytes))?;
    Ok(0)
}

/// Gives a process exactly these capabilities, and takes its others away. `EPERM` if the caller may not, or does not
/// have them.
pub(crate) fn give(caller: &Process, process: &Process, wanted: Held) -> Result<(), Errno> {
    permit_towards(caller, process, Act::Empower)?;
    let giver = if caller.id == process.id { CapabilitySet::NONE } else { caller.authority.held().permitted };
    process.authority.change(wanted, giver)
}

/// Gives a process all capabilities that the caller is permitted, or takes all away: the privilege of `set_scheduling`.
pub(crate) fn give_all_or_nothing(caller: &Process, process: &Process, all: bool) -> Result<(), Errno> {
    let set = if all { caller.authority.held().permitted } else { CapabilitySet::NONE };
    // Those for its own numbers are no privilege.
    if all && set.is_within(CapabilitySet::OF_OWN_NUMBERS) {
        return Err(Errno::EPERM);
    }
    give(caller, process, Held::of(set))
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::run;

    #[test]
    fn a_process_reaches_itself_and_those_below_it() {
        run(|program| {
            let own = program.id;
            let child = program.spawn(move |program| {
                assert_eq!(program.call(SystemCall::Kill, [own as usize, 15]), Err(Errno::EPERM));
                let (caller, parent) = (program.process(), table::find(own).unwrap());
                assert_eq!(permit_towards(&caller, &caller, Act::Signal), Ok(()));
                assert_eq!(permit_towards(&caller, &parent, Act::Signal), Err(Errno::EPERM));
                assert_eq!(permit_towards(&parent, &caller, Act::Signal), Ok(()));
                assert_eq!(permit(&caller, Act::PressKey), Err(Errno::EPERM));
                assert_eq!(give_all_or_nothing(&caller, &caller, true), Err(Errno::EPERM), "there is nothing to give");
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    #[test]
    fn processes_of_one_user_signal_and_observe_each_other_and_change_no_limits() {
        run(|program| {
            let own = program.id;
            // A program, which copies itself: the copy reaches it and a second copy, and not the first process.
            let child = program.spawn(move |program| {
                let parent = program.id;
                let sibling = program.fork(|program| program.sleep_ns(1_000_000_000)).unwrap();
                let copy = program.fork(move |program| {
                    assert_eq!(program.call(SystemCall::Kill, [own as usize, 0]), Err(Errno::EPERM));
                    assert_eq!(program.call(SystemCall::Kill, [parent as usize, 0]), Ok(0));
                    let (caller, parent) = (program.process(), table::find(parent).unwrap());
                    assert_eq!(permit_towards(&caller, &parent, Act::Inspect), Ok(()));
                    for act in [Act::Schedule, Act::SetLimit, Act::Empower] {
                        assert_eq!(permit_towards(&caller, &parent, act), Err(Errno::EPERM), "{act:?}");
                    }
                    // A program that the copy starts is another user, who reaches none of them.
                    let stranger = program.spawn(move |program| {
                        for other in [parent.id as usize, sibling, own as usize] {
                            assert_eq!(program.call(SystemCall::Kill, [other, 9]), Err(Errno::EPERM));
                        }
                    });
                    let stranger = stranger.unwrap();
                    assert_eq!(program.wait_for(stranger), Ok((stranger, 0)));
                    assert_eq!(program.call(SystemCall::Kill, [sibling, 9]), Ok(0));
                });
                let copy = copy.unwrap();
                assert_eq!(program.wait_for(copy), Ok((copy, 0)));
                assert_eq!(program.wait_for(sibling), Ok((sibling, 9)));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }
}
