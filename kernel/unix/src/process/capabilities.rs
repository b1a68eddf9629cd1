//! The user and the capabilities of one process. [`authority`](crate::process::authority) has the model and the checks.

use core::sync::atomic::{AtomicU64, Ordering};

use alloc::vec::Vec;

use abi_unix::Errno;
use abi_unix::authority::{Act, Capability, CapabilitySet, Held};
use spin::Mutex;

use crate::process::family::DEEPEST;
use crate::process::identity::{CapabilitiesAfter, Whom, is_privileged};

/// User and capabilities of one process.
///
/// The lock is held for a few instructions, under which nothing is taken.
#[doc(alias = "cred")]
#[derive(Debug)]
pub(crate) struct Authority {
    /// Which user it is to others, whatever users of Linux it is to itself. No two users ever have one number.
    #[doc(alias = "kuid_t")]
    user: u64,
    held: Mutex<Held>,
}

/// Number of the last user.
static LAST_USER: AtomicU64 = AtomicU64::new(0);

impl Authority {
    /// Creates the authority of the first process, with these capabilities.
    pub(crate) fn of_the_first(held: Held) -> Authority {
        Authority::of_a_new_user(held)
    }

    /// Creates the authority of a program that the holder starts with these users and groups, which were read before:
    /// of a user of its own.
    pub(crate) fn of_a_program(&self, whom: &Whom) -> Authority {
        Authority::of_a_new_user(self.inherited(whom))
    }

    /// Creates the authority of a copy of the holder with these users and groups, which were read before: of the same
    /// user.
    pub(crate) fn of_a_copy(&self, whom: &Whom) -> Authority {
        Authority { user: self.user, held: Mutex::new(self.inherited(whom)) }
    }

    /// Returns the capabilities of a child with these users: none is effective unless its effective user is 0, who has
    /// those for its own numbers too.
    fn inherited(&self, whom: &Whom) -> Held {
        let held = self.held().inherited();
        if is_privileged(whom) {
            let with = |set: CapabilitySet| set.or(CapabilitySet::OF_OWN_NUMBERS);
            Held { effective: with(held.effective), permitted: with(held.permitted), ..held }
        } else {
            Held { effective: CapabilitySet::NONE, ..held }
        }
    }

    fn of_a_new_user(held: Held) -> Authority {
        // Relaxed: only that all numbers differ matters.
        Authority { user: LAST_USER.fetch_add(1, Ordering::Relaxed) + 1, held: Mutex::new(held) }
    }

    /// Returns whether both are of one user.
    pub(crate) fn is_of_the_user_of(&self, other: &Authority) -> bool {
        self.user == other.user
    }

    /// Returns the number of the user.
    pub(super) fn user(&self) -> u64 {
        self.user
    }

    /// Returns the capabilities.
    pub(crate) fn held(&self) -> Held {
        *self.held.lock()
    }

    /// Returns whether it suffices for an act towards any process.
    pub(crate) fn permits(&self, act: Act) -> bool {
        self.held().effective.has(act.capability())
    }

    /// Changes the capabilities as a change of users does. A process that `keeps` them is still permitted them.
    pub(crate) fn follow_users(&self, after: CapabilitiesAfter, keeps: bool) {
        let mut held = self.held.lock();
        if after.gain_effective {
            held.effective = held.permitted;
        }
        if after.lose_effective || after.lose_permitted {
            held.effective = CapabilitySet::NONE;
        }
        if after.lose_permitted && !keeps {
            held.permitted = CapabilitySet::NONE;
        }
    }

    /// Changes the capabilities, on behalf of a caller that has `giver` to give.
    pub(super) fn change(&self, wanted: Held, giver: CapabilitySet) -> Result<(), Errno> {
        let mut held = self.held.lock();
        *held = changed(*held, wanted, giver)?;
        Ok(())
    }
}

/// The rights of a process at one moment, for acts that follow later in its name.
#[derive(Clone)]
pub(crate) struct Rights {
    /// Its users and groups.
    pub(crate) whom: Whom,
    /// Its capabilities in force.
    pub(crate) effective: CapabilitySet,
}

/// The maker of an object that stays when it has ended (`svipc(7)`): its process, its user, and the users above that
/// one then. All of these may do anything with the object.
#[doc(alias = "kern_ipc_perm")]
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    process: u32,
    /// Its own user first.
    users: Vec<u64>,
}

impl Maker {
    /// The right to read an object, of the bits of its mode.
    pub(crate) const READ: u32 = 4;
    /// The right to change an object's contents.
    pub(crate) const WRITE: u32 = 2;
    /// The right to execute an object's contents.
    pub(crate) const EXECUTE: u32 = 1;
    /// Most users of one: its own, and those above it.
    pub(super) const MOST_USERS: usize = DEEPEST + 1;
    /// Bytes of memory beside itself.
    pub(crate) const BYTES: usize = Maker::MOST_USERS * size_of::<u64>();

    /// Creates the maker with this number; its user, and those above it, come first among the users.
    pub(super) fn new(process: u32, mut users: Vec<u64>) -> Maker {
        users.dedup();
        Maker { process, users }
    }

    /// Returns the number of its process.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    fn is_reached_by(&self, user: u64) -> bool {
        self.users.contains(&user)
    }

    /// Checks a use of its object with these rights: `EACCES` for other users if the mode does not grant them to all.
    #[doc(alias = "ipcperms")]
    pub(crate) fn permit_use(&self, caller: &Authority, mode: u32, rights: u32) -> Result<(), Errno> {
        if rights & !mode & 7 == 0 || self.is_reached_by(caller.user) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Checks a use of its object with the rights that the flags of a call ask for, for whomever.
    pub(crate) fn permit_use_by(&self, other: &Maker, mode: u32, flags: u32) -> Result<(), Errno> {
        let rights = (flags >> 6 | flags >> 3 | flags) & 7;
        let is_reached = other.users.first().is_some_and(|user| self.is_reached_by(*user));
        if rights & !mode == 0 || is_reached { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Checks the removal of its object, or a change of what it is: `EPERM` for other users without `CAP_SYS_ADMIN`.
    pub(crate) fn permit_control(&self, caller: &Authority) -> Result<(), Errno> {
        let may_administer = || caller.held().effective.has(Capability::Administration);
        if self.is_reached_by(caller.user) || may_administer() { Ok(()) } else { Err(Errno::EPERM) }
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
            let with = Authority::of_a_new_user(Held::of(only));
            assert!(with.permits(*act));
            let others = CapabilitySet::from_bits(!only.bits());
            let without = Authority::of_a_new_user(Held::of(others));
            assert!(!without.permits(*act), "{act:?}");
            // A permitted capability is not effective.
            let asleep = Held { effective: CapabilitySet::NONE, ..Held::of(only) };
            assert!(!Authority::of_a_new_user(asleep).permits(*act));
        }
        assert!(Act::ALL.iter().all(|act| Authority::of_the_first(Held::FIRST).permits(*act)));
        let first = Authority::of_the_first(Held::FIRST);
        for child in [first.of_a_copy(&None), first.of_a_program(&None)] {
            assert!(!Act::ALL.iter().any(|act| child.permits(*act)));
        }
        let first = Authority::of_the_first(Held { inheritable: CapabilitySet::ALL, ..Held::FIRST });
        for child in [first.of_a_copy(&None), first.of_a_program(&None).of_a_program(&None)] {
            assert!(Act::ALL.iter().all(|act| child.permits(*act)), "as programs of user 0 on Linux");
            // It becomes another user.
            child.follow_users(
                CapabilitiesAfter { gain_effective: false, lose_effective: true, lose_permitted: true },
                false,
            );
            let below = child.of_a_copy(&None);
            assert!(!Act::ALL.iter().any(|act| child.permits(*act) || below.permits(*act)));
        }
    }

    #[test]
    fn programs_are_users_of_their_own_and_copies_are_not() {
        let first = Authority::of_the_first(Held::FIRST);
        let programs = [first.of_a_program(&None), first.of_a_program(&None)];
        assert!(!programs[0].is_of_the_user_of(&first) && !programs[0].is_of_the_user_of(&programs[1]));
        let copies = [programs[0].of_a_copy(&None), programs[0].of_a_copy(&None).of_a_copy(&None)];
        assert!(copies[0].is_of_the_user_of(&programs[0]) && copies[0].is_of_the_user_of(&copies[1]));
        assert!(!copies[0].is_of_the_user_of(&programs[1]) && !copies[0].is_of_the_user_of(&first));
    }
}
