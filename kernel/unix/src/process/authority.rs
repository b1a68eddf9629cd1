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
//! its descendants, and neither its parent nor its siblings. When there are users, [`Authority`] is where they belong,
//! and "of the same user" becomes a third reason for [`permit_towards`] to succeed.
//!
//! Rejected: one flag for everything, which was the beginning of this. A program that needs to see the counters would
//! have to be trusted with switching the machine off.

use alloc::sync::Arc;

use abi_unix::Errno;
use abi_unix::authority::{Act, CapabilitySet, Held, Scope, version};
use spin::Mutex;

use crate::process::{self, Process};

/// Capabilities of one process.
///
/// The lock is held for a few instructions, under which nothing is taken.
#[doc(alias = "cred")]
#[derive(Debug)]
pub(crate) struct Authority {
    held: Mutex<Held>,
}

impl Authority {
    /// Creates the authority of the first process.
    pub(crate) fn of_the_first() -> Authority {
        Authority { held: Mutex::new(Held::FIRST) }
    }

    /// Creates the authority of a process that the holder starts.
    pub(crate) fn inherited(&self) -> Authority {
        Authority { held: Mutex::new(self.held().inherited()) }
    }

    fn held(&self) -> Held {
        *self.held.lock()
    }

    /// Returns whether it suffices for an act towards any process.
    pub(crate) fn permits(&self, act: Act) -> bool {
        self.held().effective.has(act.capability())
    }

    /// Changes the capabilities, on behalf of a caller that has `giver` to give.
    fn change(&self, wanted: Held, giver: CapabilitySet) -> Result<(), Errno> {
        let mut held = self.held.lock();
        *held = changed(*held, wanted, giver)?;
        Ok(())
    }
}

/// Returns the capabilities after a change; `EPERM` if they are more than were held and can be given.
fn changed(held: Held, wanted: Held, giver: CapabilitySet) -> Result<Held, Errno> {
    let most = held.permitted.or(giver);
    let is_allowed = wanted.permitted.is_within(most)
        && wanted.effective.is_within(wanted.permitted)
        && wanted.inheritable.is_within(most.or(held.inheritable));
    if is_allowed { Ok(wanted) } else { Err(Errno::EPERM) }
}

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
    if caller.id == other.id || caller.authority.permits(act) || process::is_below(other, caller) {
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
        Ok(id) => process::find(id).ok_or(Errno::ESRCH),
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
    use super::*;
    use proptest::prelude::*;

    fn set() -> impl Strategy<Value = CapabilitySet> {
        // Few bits, so that sets are often within each other.
        (0u64..16).prop_map(CapabilitySet::from_bits)
    }

    prop_compose! {
        fn some_held()(permitted in set(), effective in set(), inheritable in set()) -> Held {
            Held { effective: effective.and(permitted), permitted, inheritable }
        }
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn nothing_comes_from_nowhere(
            held in some_held(), effective in set(), permitted in set(), inheritable in set(), giver in set(),
        ) {
            let wanted = Held { effective, permitted, inheritable };
            let after = changed(held, wanted, giver).unwrap_or(held);
            let (before, all) = (held.permitted.or(held.inheritable), giver);
            prop_assert!(after.effective.is_within(after.permitted));
            prop_assert!(after.permitted.is_within(held.permitted.or(all)));
            prop_assert!(after.inheritable.is_within(before.or(all)));
            // A child gets only capabilities that its parent is permitted.
            prop_assert!(after.inherited().permitted.is_within(after.permitted));
        }

        #[test]
        fn giving_up_is_always_possible(held in some_held(), less in set()) {
            let wanted = Held {
                effective: held.effective.and(less),
                permitted: held.permitted.and(less),
                inheritable: held.inheritable.and(less),
            };
            prop_assert_eq!(changed(held, wanted, CapabilitySet::NONE), Ok(wanted));
        }
    }

    #[test]
    fn acts_need_their_capability_and_no_other() {
        for act in Act::ALL {
            let only = CapabilitySet::only(act.capability());
            let with = Authority { held: Mutex::new(Held::of(only)) };
            assert!(with.permits(*act));
            let others = CapabilitySet::from_bits(!only.bits());
            let without = Authority { held: Mutex::new(Held::of(others)) };
            assert!(!without.permits(*act), "{act:?}");
            // A permitted capability is not effective.
            let asleep = Held { effective: CapabilitySet::NONE, ..Held::of(only) };
            assert!(!Authority { held: Mutex::new(asleep) }.permits(*act));
        }
        assert!(Act::ALL.iter().all(|act| Authority::of_the_first().permits(*act)));
        assert!(!Act::ALL.iter().any(|act| Authority::of_the_first().inherited().permits(*act)));
    }
}
