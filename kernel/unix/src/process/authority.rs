//! Authority of processes towards others: the one check of the kernel, and the calls that hand authority out.
//!
//! # The model
//! Processes form a tree: each is *below* the process that started it, and below all processes above that. When a
//! process ends, the processes below it are below its nearest living ancestor, so that no process gets out of another's
//! reach by letting its parent end. A process may do anything with itself and with processes below it. Any other act
//! that concerns others is an [`Act`] of the table in `abi_unix::authority`, which names the capability it needs.
//!
//! The first process holds every capability, and its children hold none unless it hands them out: a process has the
//! capabilities that its parent lets it inherit, and can be given those of a process above it. `execve` changes
//! nothing.
//!
//! # Comparison with Linux
//! All processes are user 0 here. On Linux that means every capability; here the first process alone begins with them,
//! as if the others had given them up. Owners of processes, which Linux's rule for signals compares, would separate no
//! two processes as long as all are user 0. The tree does: a program that was started in a sandbox can end itself and
//! its descendants, and neither its parent nor its siblings. When there are users, they belong beside the capabilities
//! ([`capabilities`](crate::process::capabilities)), and "of the same user" becomes a third reason for
//! [`permit_towards`] to succeed.
//!
//! Rejected: one flag for everything, which was the beginning of this. A program that needs to see the counters would
//! have to be trusted with switching the machine off.

use alloc::sync::Arc;

use abi_unix::Errno;
use abi_unix::authority::{Act, CapabilitySet, Held, Scope, version};

use crate::process::{Process, table};

/// Checks an act that concerns no particular process: `EPERM` unless the process may do it.
#[doc(alias = "capable")]
#[doc(alias = "ns_capable")]
pub(crate) fn permit(process: &Process, act: Act) -> Result<(), Errno> {
    debug_assert_eq!(act.scope(), Scope::Always, "{act:?} depends on whom it concerns");
    if process.authority.permits(act) { Ok(()) } else { Err(Errno::EPERM) }
}

/// Checks an act towards another process: `EPERM` unless that is the caller, or below it, or the caller has the
/// capability.
pub(crate) fn permit_towards(caller: &Process, other: &Process, act: Act) -> Result<(), Errno> {
    debug_assert_eq!(act.scope(), Scope::Others, "{act:?} does not depend on whom it concerns");
    if caller.id == other.id || caller.authority.permits(act) || table::is_below(other, caller) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
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
    if all && set == CapabilitySet::NONE {
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
}
