//! The capabilities that one process holds. [`authority`](crate::process::authority) has the model and the checks.

use abi_unix::Errno;
use abi_unix::authority::{Act, CapabilitySet, Held};
use spin::Mutex;

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

    /// Returns the capabilities.
    pub(crate) fn held(&self) -> Held {
        *self.held.lock()
    }

    /// Returns whether it suffices for an act towards any process.
    pub(crate) fn permits(&self, act: Act) -> bool {
        self.held().effective.has(act.capability())
    }

    /// Changes the capabilities, on behalf of a caller that has `giver` to give.
    pub(super) fn change(&self, wanted: Held, giver: CapabilitySet) -> Result<(), Errno> {
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
