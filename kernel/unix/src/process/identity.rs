//! Users and groups of a process, as Linux counts them.
//!
//! An [`Identity`] is a value: the real, the effective and the saved user and group, and the [`Subject`] for whom files
//! are looked up, made and changed. A process has one, which all of its threads have in common, and replaces it as a
//! whole; copies and programs that it starts share the value. A process that is user 0 in every respect has none
//! ([`Whom`]), so that looks at files cost it nothing.
//!
//! Users take rights away, and never give any: capabilities, and which processes are out of reach, are decided by
//! [`authority`](crate::process::authority), and within that a process whose users are not 0 may do less. The rules
//! here are those of credentials(7) and capabilities(7), where user 0 has the capabilities that COPS does not know, to
//! set users and groups among them.
//!
//! Rejected: users of each thread, as Linux's kernel has them. C libraries go to great lengths to hide them.

use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, Ordering};

use abi_unix::Errno;
use abi_unix::authority::{Capability, CapabilitySet};
use filesystem::rights::{Groups, Ownership, Subject};
use spin::{Mutex, MutexGuard};

use crate::process::accounts::{Account, Charge, Resource};

/// Permission bits of a program that runs as its owner, and as its group.
const SET_USER: u16 = 0o4000;
const SET_GROUP: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o10;

/// Users, or groups, of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// The one that started it.
    pub real: u32,
    /// The one whose rights it has.
    pub effective: u32,
    /// The one to which it can go back.
    pub saved: u32,
}

impl Numbers {
    fn all(number: u32) -> Numbers {
        Numbers { real: number, effective: number, saved: number }
    }

    fn has(self, number: u32) -> bool {
        [self.real, self.effective, self.saved].contains(&number)
    }

    /// `setuid` and `setgid`.
    fn set(self, number: u32, is_privileged: bool) -> Result<Numbers, Errno> {
        match number {
            u32::MAX => Err(Errno::EINVAL),
            _ if is_privileged => Ok(Numbers::all(number)),
            _ if number == self.real || number == self.saved => Ok(Numbers { effective: number, ..self }),
            _ => Err(Errno::EPERM),
        }
    }

    /// `setreuid` and `setregid`.
    fn set_pair(self, real: Option<u32>, effective: Option<u32>, is_privileged: bool) -> Result<Numbers, Errno> {
        let may_be_real = |number| number == self.real || number == self.effective;
        let are_own = real.is_none_or(may_be_real) && effective.is_none_or(|number| self.has(number));
        if !is_privileged && !are_own {
            return Err(Errno::EPERM);
        }
        let mut new = Numbers {
            real: real.unwrap_or(self.real),
            effective: effective.unwrap_or(self.effective),
            saved: self.saved,
        };
        if real.is_some() || effective.is_some_and(|number| number != self.real) {
            new.saved = new.effective;
        }
        Ok(new)
    }

    /// `setresuid` and `setresgid`.
    fn set_triple(self, wanted: [Option<u32>; 3], is_privileged: bool) -> Result<Numbers, Errno> {
        if !is_privileged && !wanted.iter().flatten().all(|number| self.has(*number)) {
            return Err(Errno::EPERM);
        }
        let [real, effective, saved] = wanted;
        Ok(Numbers {
            real: real.unwrap_or(self.real),
            effective: effective.unwrap_or(self.effective),
            saved: saved.unwrap_or(self.saved),
        })
    }
}

/// A wish for other users, or for other groups; `None` leaves a number as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    /// `setuid`, `setgid`.
    One(u32),
    /// `setreuid`, `setregid`: real and effective.
    Pair(Option<u32>, Option<u32>),
    /// `setresuid`, `setresgid`: real, effective and saved.
    Triple([Option<u32>; 3]),
    /// `setfsuid`, `setfsgid`.
    OfFiles(u32),
}

impl Wish {
    fn of(self, now: Numbers, files: u32, is_privileged: bool) -> Result<(Numbers, u32), Errno> {
        let numbers = match self {
            Wish::One(number) => now.set(number, is_privileged)?,
            Wish::Pair(real, effective) => now.set_pair(real, effective, is_privileged)?,
            Wish::Triple(wanted) => now.set_triple(wanted, is_privileged)?,
            Wish::OfFiles(number) if number != u32::MAX && (is_privileged || now.has(number) || number == files) => {
                return Ok((now, number));
            }
            Wish::OfFiles(_) => return Err(Errno::EPERM),
        };
        // As on Linux, it goes with the effective one, also if that stays.
        Ok((numbers, numbers.effective))
    }
}

/// Users and groups of a process.
#[doc(alias = "cred")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its users.
    pub users: Numbers,
    /// Its groups.
    pub groups: Numbers,
    /// The user and the groups that count for files, with the further groups, which count for nothing else.
    pub files: Subject,
}

impl Identity {
    /// User 0 in every respect, without further groups.
    pub(crate) const ROOT: Identity = Identity {
        users: Numbers { real: 0, effective: 0, saved: 0 },
        groups: Numbers { real: 0, effective: 0, saved: 0 },
        files: Subject { user: 0, group: 0, groups: Groups::NONE },
    };

    /// Whether it is user 0, who may become any user, join any group, and take reserved ports.
    pub(crate) fn is_privileged(&self) -> bool {
        self.users.effective == 0
    }

    /// Whether it may change its numbers freely: as user 0, or by a capability in force, which a process that was user
    /// 0 can keep (`PR_SET_KEEPCAPS`).
    fn may(&self, effective: CapabilitySet, capability: Capability) -> bool {
        self.is_privileged() || effective.has(capability)
    }

    /// Returns it with other users, for a process with these capabilities in force. `EPERM` for users that it may not
    /// become, `EINVAL` for a number that is none.
    pub(crate) fn with_users(&self, wish: Wish, effective: CapabilitySet) -> Result<Identity, Errno> {
        let may = self.may(effective, Capability::SetUsers);
        let (users, user) = wish.of(self.users, self.files.user, may)?;
        Ok(Identity { users, files: Subject { user, ..self.files }, ..*self })
    }

    /// Returns it with other groups, which are none of the further ones. The errors are the same.
    pub(crate) fn with_groups(&self, wish: Wish, effective: CapabilitySet) -> Result<Identity, Errno> {
        let may = self.may(effective, Capability::SetGroups);
        let (groups, group) = wish.of(self.groups, self.files.group, may)?;
        Ok(Identity { groups, files: Subject { group, ..self.files }, ..*self })
    }

    /// Returns it with these further groups. `EPERM` if it may not join any group, `EINVAL` for too many.
    pub(crate) fn with_further_groups(&self, numbers: &[u32], effective: CapabilitySet) -> Result<Identity, Errno> {
        if !self.may(effective, Capability::SetGroups) {
            return Err(Errno::EPERM);
        }
        let groups = Groups::new(numbers).ok_or(Errno::EINVAL)?;
        Ok(Identity { files: Subject { groups, ..self.files }, ..*self })
    }

    /// Returns it as it is when the process executes a program with these rights, of a file whose bits to set user and
    /// group count or not.
    pub(crate) fn executing(&self, program: Ownership, bits_count: bool) -> Identity {
        let mut new = *self;
        if bits_count && program.permissions & SET_USER != 0 {
            new.users.effective = program.user;
        }
        if bits_count && program.permissions & SET_GROUP != 0 && program.permissions & GROUP_EXECUTES != 0 {
            new.groups.effective = program.group;
        }
        for numbers in [&mut new.users, &mut new.groups] {
            numbers.saved = numbers.effective;
        }
        (new.files.user, new.files.group) = (new.users.effective, new.groups.effective);
        new
    }

    /// Returns it with the real user and group in the place of those that count for files, for `access`.
    pub(crate) fn as_real(&self) -> Identity {
        Identity { files: Subject { user: self.users.real, group: self.groups.real, ..self.files }, ..*self }
    }

    /// Whether a program runs with other rights than those of the user that started it (`AT_SECURE`).
    #[doc(alias = "AT_SECURE")]
    pub(crate) fn is_secure(&self) -> bool {
        self.users.effective != self.users.real || self.groups.effective != self.groups.real
    }

    /// Whether it may signal a process of other users, as kill(2) says.
    #[doc(alias = "kill_ok_by_cred")]
    pub(crate) fn may_signal(&self, other: Numbers) -> bool {
        let is_one = |number| number == other.real || number == other.saved;
        self.is_privileged() || is_one(self.users.real) || is_one(self.users.effective)
    }

    /// Whether it may look into a process of another identity and change its limits, as ptrace(2) says.
    #[doc(alias = "ptrace_may_access")]
    pub(crate) fn may_inspect(&self, other: &Identity) -> bool {
        let is_one = |number, numbers: Numbers| numbers == Numbers::all(number);
        self.is_privileged() || is_one(self.files.user, other.users) && is_one(self.files.group, other.groups)
    }

    /// Returns the effects on the capabilities of a process whose users change to those of `new`, as capabilities(7)
    /// says.
    pub(crate) fn capabilities_after(&self, new: &Identity) -> CapabilitiesAfter {
        let has_zero = |users: Numbers| users.has(0);
        CapabilitiesAfter {
            lose_permitted: has_zero(self.users) && !has_zero(new.users),
            lose_effective: self.users.effective == 0 && new.users.effective != 0,
            gain_effective: self.users.effective != 0 && new.users.effective == 0,
        }
    }

    /// Whether a process that changes to `new` may leave no core file any more, since it could have secrets of the
    /// other user in memory.
    pub(crate) fn hides_from(&self, new: &Identity) -> bool {
        self.users.effective != new.users.effective
            || self.groups.effective != new.groups.effective
            || self.files.user != new.files.user
            || self.files.group != new.files.group
    }
}

/// Effects of a change of users on capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CapabilitiesAfter {
    /// No user is 0 any more: the permitted ones go, unless the process keeps them (`PR_SET_KEEPCAPS`).
    pub lose_permitted: bool,
    /// The effective user is 0 no more: none is effective.
    pub lose_effective: bool,
    /// The effective user is 0 again: all that are permitted are effective.
    pub gain_effective: bool,
}

/// An identity in memory that an account pays for.
pub(crate) struct HeldIdentity {
    identity: Identity,
    _charge: Charge,
}

impl Deref for HeldIdentity {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}

/// An identity that is shared; `None` for [`Identity::ROOT`].
pub(crate) type Whom = Option<Arc<HeldIdentity>>;

/// Charges an account for the memory of an identity. `ENOMEM`.
pub(crate) fn charge(account: &Arc<Account>) -> Result<Charge, Errno> {
    account.admit()?;
    account.charge(Resource::Memory, size_of::<HeldIdentity>() + 2 * size_of::<usize>())
}

/// Makes an identity shared, at the expense of an account. `ENOMEM`.
pub(crate) fn hold(identity: Identity, account: &Arc<Account>) -> Result<Whom, Errno> {
    if identity == Identity::ROOT { Ok(None) } else { Ok(hold_charged(identity, charge(account)?)) }
}

/// Makes an identity shared, in memory that is [charged](charge) for.
fn hold_charged(identity: Identity, charge: Charge) -> Whom {
    (identity != Identity::ROOT).then(|| Arc::new(HeldIdentity { identity, _charge: charge }))
}

/// Whether the effective user of a shared identity is 0.
pub(crate) fn is_privileged(whom: &Whom) -> bool {
    whom.as_ref().is_none_or(|held| held.is_privileged())
}

/// Returns the value of a shared identity.
pub(crate) fn value(whom: &Whom) -> Identity {
    whom.as_ref().map_or(Identity::ROOT, |held| held.identity)
}

/// Returns the user for whom files are looked at; `None` if that is user 0 in every respect.
#[inline(always)]
pub(crate) fn subject(whom: &Whom) -> Option<&Subject> {
    whom.as_ref().map(|held| &held.identity.files)
}

/// The place of a process's identity.
pub(crate) struct IdentityPlace {
    /// Whether there is one. A look of a process that is user 0 takes no lock.
    is_there: AtomicBool,
    whom: Mutex<Whom>,
}

impl IdentityPlace {
    /// Begins with an identity.
    pub(crate) fn new(whom: Whom) -> IdentityPlace {
        IdentityPlace { is_there: AtomicBool::new(whom.is_some()), whom: Mutex::new(whom) }
    }

    /// Returns the identity.
    #[inline(always)]
    pub(crate) fn get(&self) -> Whom {
        // Acquire: an identity that was given up by a change that another thread has seen is not found again.
        if self.is_there.load(Ordering::Acquire) { self.whom.lock().clone() } else { None }
    }

    /// Replaces the identity by the one that `change` makes of it. Before anybody sees the new one, `prepare` is called
    /// with both, under the lock: so nobody finds the new one together with capabilities of the old one, or with
    /// permission to look into memory that may have secrets of the old one.
    pub(crate) fn change(
        &self,
        account: &Arc<Account>,
        change: impl FnOnce(&Identity) -> Result<Identity, Errno>,
        prepare: impl FnOnce(&Identity, &Identity),
    ) -> Result<(), Errno> {
        let whom = self.whom.lock();
        let old = value(&whom);
        let new = change(&old)?;
        if new == old {
            return Ok(());
        }
        let held = hold(new, account)?;
        prepare(&old, &new);
        self.publish(whom, held);
        Ok(())
    }

    /// Replaces the identity as [`change`](Self::change) does, in memory that is [charged](charge) for, and cannot
    /// fail; returns the new one.
    pub(crate) fn replace(
        &self,
        charge: Charge,
        change: impl FnOnce(&Identity) -> Identity,
        prepare: impl FnOnce(&Identity, &Identity),
    ) -> Identity {
        let whom = self.whom.lock();
        let old = value(&whom);
        let new = change(&old);
        prepare(&old, &new);
        if new != old {
            self.publish(whom, hold_charged(new, charge));
        }
        new
    }

    fn publish(&self, mut whom: MutexGuard<'_, Whom>, new: Whom) {
        self.is_there.store(new.is_some(), Ordering::Release);
        let given_up = core::mem::replace(&mut *whom, new);
        drop(whom);
        drop(given_up);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn users(real: u32, effective: u32, saved: u32) -> Identity {
        let users = Numbers { real, effective, saved };
        Identity { users, files: Subject { user: effective, ..Identity::ROOT.files }, ..Identity::ROOT }
    }

    /// The tables of setuid(2), setreuid(2) and setresuid(2).
    #[test]
    fn users_change_as_the_manual_pages_say() {
        use Wish::*;
        let (keep, root, user) = (None, users(0, 0, 0), users(1000, 1000, 1000));
        let to = |number| Some(number);
        let eperm = Err(Errno::EPERM);
        let raised = users(1000, 0, 0);
        let cases = [
            (root, One(1000), Ok(user)),
            (root, One(u32::MAX), Err(Errno::EINVAL)),
            (user, One(0), eperm),
            (user, One(1000), Ok(user)),
            (users(1000, 5, 7), One(7), Ok(users(1000, 7, 7))),
            (users(1000, 5, 7), One(5), eperm),
            (raised, One(1000), Ok(user)),
            (raised, Pair(keep, to(1000)), Ok(users(1000, 1000, 0))),
            (users(1000, 1000, 0), Pair(keep, to(0)), Ok(users(1000, 0, 0))),
            (users(1000, 1000, 0), Pair(to(0), keep), eperm),
            (users(1000, 7, 0), Pair(to(7), to(1000)), Ok(users(7, 1000, 1000))),
            (user, Pair(to(1000), keep), Ok(user)),
            (user, Pair(keep, to(0)), eperm),
            (root, Pair(to(1), keep), Ok(users(1, 0, 0))),
            (root, Pair(keep, keep), Ok(root)),
            (root, Triple([to(1), to(2), to(3)]), Ok(users(1, 2, 3))),
            (users(1, 2, 3), Triple([to(3), to(1), to(2)]), Ok(users(3, 1, 2))),
            (users(1, 2, 3), Triple([to(4), keep, keep]), eperm),
            (users(1, 2, 3), Triple([keep, keep, keep]), Ok(users(1, 2, 3))),
            (root, Triple([keep, to(1000), keep]), Ok(users(0, 1000, 0))),
            (users(0, 1000, 0), Triple([keep, to(0), keep]), Ok(root)),
        ];
        for (from, wish, result) in cases {
            assert_eq!(from.with_users(wish, CapabilitySet::NONE), result, "{from:?} {wish:?}");
        }
        let of_files = root.with_users(OfFiles(1000), CapabilitySet::NONE).unwrap();
        assert_eq!((of_files.users, of_files.files.user), (root.users, 1000));
        assert_eq!(of_files.with_users(OfFiles(0), CapabilitySet::NONE), Ok(root), "still user 0");
        assert_eq!(user.with_users(OfFiles(0), CapabilitySet::NONE), eperm);
        assert_eq!(user.with_groups(One(5), CapabilitySet::NONE), eperm);
        assert_eq!(user.with_further_groups(&[], CapabilitySet::NONE), eperm);
        assert_eq!(root.with_further_groups(&[1; 65], CapabilitySet::NONE), Err(Errno::EINVAL));
    }

    /// execve(2): the bits of a program, and what is saved.
    #[test]
    fn programs_run_as_their_owner_and_group() {
        let user = users(1000, 1000, 0);
        let program = |permissions| Ownership { user: 5, group: 6, permissions };
        let plain = user.executing(program(0o755), true);
        assert_eq!((plain, plain.is_secure()), (users(1000, 1000, 1000), false));
        let raised = user.executing(program(0o4755), true);
        assert_eq!((raised.users, raised.is_secure()), (users(1000, 5, 5).users, true));
        assert_eq!((raised.files.user, raised.groups), (5, user.groups));
        let grouped = user.executing(program(0o2755), true);
        assert_eq!((grouped.groups.effective, grouped.files.group, grouped.is_secure()), (6, 6, true));
        assert_eq!(user.executing(program(0o2745), true), plain, "no right of the group to execute");
        assert_eq!(user.executing(program(0o6755), false), plain);
    }

    /// kill(2), and capabilities(7) about changes of users.
    #[test]
    fn processes_of_other_users_are_out_of_reach() {
        let (root, user, other) = (users(0, 0, 0), users(1000, 1000, 1000), users(1001, 1001, 1001));
        assert!(root.may_signal(user.users) && root.may_inspect(&user));
        assert!(!user.may_signal(root.users) && !user.may_signal(other.users) && !user.may_inspect(&other));
        assert!(user.may_signal(user.users) && user.may_inspect(&user));
        assert!(user.may_signal(users(1000, 0, 0).users), "its real user");
        assert!(!user.may_inspect(&users(1000, 0, 0)) && !user.may_signal(users(0, 1000, 0).users));
        let after = |lose_permitted, lose_effective, gain_effective| CapabilitiesAfter {
            lose_permitted,
            lose_effective,
            gain_effective,
        };
        assert_eq!(root.capabilities_after(&user), after(true, true, false));
        assert_eq!(root.capabilities_after(&users(0, 1000, 0)), after(false, true, false));
        assert_eq!(users(0, 1000, 0).capabilities_after(&root), after(false, false, true));
        assert_eq!(user.capabilities_after(&other), after(false, false, false));
        assert!(root.hides_from(&user) && !user.hides_from(&user));
    }

    fn wish() -> impl Strategy<Value = Wish> {
        let number = || 0u32..4;
        let some = move || prop::option::of(number());
        prop_oneof![
            number().prop_map(Wish::One),
            (some(), some()).prop_map(|(real, effective)| Wish::Pair(real, effective)),
            [some(), some(), some()].prop_map(Wish::Triple),
            number().prop_map(Wish::OfFiles),
        ]
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// A process that is user 0 in no respect becomes none of the users that it is not, whatever it calls.
        #[test]
        fn rights_that_were_given_up_do_not_come_back(
            users in [1u32..4, 1u32..4, 1u32..4], wishes in prop::collection::vec((wish(), any::<bool>()), 0..20),
        ) {
            let [real, effective, saved] = users;
            let mut now = self::users(real, effective, saved);
            let first: Vec<u32> = users.to_vec();
            for (wish, is_of_users) in wishes {
                let next = if is_of_users { now.with_users(wish, CapabilitySet::NONE) } else { now.with_groups(wish, CapabilitySet::NONE) };
                now = next.unwrap_or(now);
                let has = [now.users.real, now.users.effective, now.users.saved, now.files.user];
                prop_assert!(has.iter().all(|user| first.contains(user)));
                prop_assert_eq!(now.groups, Numbers::default());
                prop_assert_eq!(now.files.group, 0);
            }
        }
    }
}
