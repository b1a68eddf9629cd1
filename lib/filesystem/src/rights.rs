//! The rights of users to files: the acts that owner, group and permissions of a file grant to a user.
//!
//! This is the one place of these rules, which are those of path_resolution(7), chmod(2), chown(2) and unlink(2). They
//! are functions of values alone, so that a file system whose files are elsewhere, on a disk, uses them, too. A missing
//! [`Subject`] is user 0 with group 0, which may do everything and costs nothing.
//!
//! The right to execute is not decided here for user 0: a file without any bit to execute is no program for it either,
//! which the kernel knows from [`Metadata::is_executable`](crate::Metadata::is_executable).

use crate::error::Error;
use crate::node::FileKind;

/// The largest number of further groups.
pub const MOST_GROUPS: usize = 64;

/// The right to read, of the three bits of a mode for a class of users.
pub const READ: u16 = 4;
/// The right to write; in a directory, to make and to remove names.
pub const WRITE: u16 = 2;
/// The right to execute; in a directory, to look names up.
pub const EXECUTE: u16 = 1;

/// Permission bits: programs run as the owner, and as the group.
const SET_USER: u16 = 0o4000;
const SET_GROUP: u16 = 0o2000;
/// Permission bit of a directory from which only the owners of it and of its files remove them.
const STICKY: u16 = 0o1000;
const GROUP_EXECUTES: u16 = 0o10;

/// Further groups of a user.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    count: u8,
    numbers: [u32; MOST_GROUPS],
}

impl Groups {
    /// None.
    pub const NONE: Groups = Groups { count: 0, numbers: [0; MOST_GROUPS] };

    /// Returns these groups in ascending order; `None` for more than [`MOST_GROUPS`].
    #[must_use]
    pub fn new(numbers: &[u32]) -> Option<Groups> {
        let mut groups = Groups::NONE;
        groups.numbers.get_mut(..numbers.len())?.copy_from_slice(numbers);
        groups.count = numbers.len() as u8;
        groups.numbers[..numbers.len()].sort_unstable();
        Some(groups)
    }

    /// Returns the numbers.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.numbers[..usize::from(self.count)]
    }
}

impl core::fmt::Debug for Groups {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_list().entries(self.numbers()).finish()
    }
}

/// A user with groups, for whom files are looked up, made and changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "cred")]
#[doc(alias = "fsuid")]
pub struct Subject {
    /// The user.
    pub user: u32,
    /// The group, which new files get.
    pub group: u32,
    /// Further groups.
    pub groups: Groups,
}

impl Subject {
    /// Whether it is the user that may do everything.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.user == 0
    }

    /// Whether a group is one of its own.
    #[must_use]
    pub fn is_in(&self, group: u32) -> bool {
        self.group == group || self.groups.numbers().binary_search(&group).is_ok()
    }

    /// Whether it is the owner of a file, or user 0.
    fn owns(&self, file: Ownership) -> bool {
        self.is_root() || self.user == file.user
    }
}

/// Owner, group and permissions of a file, by which its rights are decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The lower twelve bits of the mode.
    pub permissions: u16,
}

/// Whether a file grants all of some rights ([`READ`], [`WRITE`], [`EXECUTE`]). One class of users counts: the owner's,
/// else the group's, else that of all others.
#[must_use]
#[doc(alias = "generic_permission")]
pub fn permits(subject: Option<&Subject>, file: Ownership, wanted: u16) -> bool {
    let Some(subject) = subject else { return true };
    let class = match () {
        () if subject.is_root() => return true,
        () if subject.user == file.user => 6,
        () if subject.is_in(file.group) => 3,
        () => 0,
    };
    wanted & !(file.permissions >> class) & 7 == 0
}

/// Fails if a file does not grant some rights.
///
/// # Errors
/// [`Error::AccessDenied`].
pub fn permit(subject: Option<&Subject>, file: Ownership, wanted: u16) -> Result<(), Error> {
    if permits(subject, file, wanted) { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Fails for a user that does not own a file, and may not change its attributes.
///
/// # Errors
/// [`Error::NotPermitted`].
#[doc(alias = "inode_owner_or_capable")]
pub fn permit_owner(subject: Option<&Subject>, file: Ownership) -> Result<(), Error> {
    if subject.is_none_or(|subject| subject.owns(file)) { Ok(()) } else { Err(Error::NotPermitted) }
}

/// Fails if a name must not be made in a directory.
///
/// # Errors
/// [`Error::AccessDenied`].
#[doc(alias = "may_create")]
pub fn permit_creation(subject: Option<&Subject>, directory: Ownership) -> Result<(), Error> {
    permit(subject, directory, WRITE | EXECUTE)
}

/// Fails if the name of a file must not be removed from a directory.
///
/// # Errors
/// [`Error::AccessDenied`]; [`Error::NotPermitted`] for a file of another user in a sticky directory.
#[doc(alias = "may_delete")]
pub fn permit_removal(subject: Option<&Subject>, directory: Ownership, file: Ownership) -> Result<(), Error> {
    permit(subject, directory, WRITE | EXECUTE)?;
    let is_free = directory.permissions & STICKY == 0;
    let owns = |subject: &Subject| subject.owns(file) || subject.owns(directory);
    if is_free || subject.is_none_or(owns) { Ok(()) } else { Err(Error::NotPermitted) }
}

/// Fails if the times of a file must not be changed: to others than the present by its owner alone, to the present also
/// by those that may write to it.
///
/// # Errors
/// [`Error::NotPermitted`]; [`Error::AccessDenied`] for the present.
pub fn permit_times(subject: Option<&Subject>, file: Ownership, are_present: bool) -> Result<(), Error> {
    match permit_owner(subject, file) {
        Err(_) if are_present => permit(subject, file, WRITE),
        permitted => permitted,
    }
}

/// Returns owner, group and permissions of a new file of a directory. A directory with the bit to set the group passes
/// its group on, and to directories the bit.
#[must_use]
#[doc(alias = "inode_init_owner")]
pub fn of_new(subject: Option<&Subject>, directory: Ownership, permissions: u16, kind: FileKind) -> Ownership {
    let (user, group) = subject.map_or((0, 0), |subject| (subject.user, subject.group));
    let mut new = Ownership { user, group, permissions: permissions & 0o7777 };
    if directory.permissions & SET_GROUP != 0 {
        new.group = directory.group;
        if kind == FileKind::Directory {
            new.permissions |= SET_GROUP;
        } else if new.permissions & GROUP_EXECUTES != 0
            && subject.is_some_and(|subject| !subject.is_root() && !subject.is_in(new.group))
        {
            new.permissions &= !SET_GROUP;
        }
    }
    new
}

/// Returns the permissions of a file that gets these, and loses the bit to set a group of which the user is none.
///
/// # Errors
/// [`Error::NotPermitted`].
#[doc(alias = "setattr_prepare")]
pub fn changed_permissions(subject: Option<&Subject>, file: Ownership, permissions: u16) -> Result<u16, Error> {
    permit_owner(subject, file)?;
    let may_set = subject.is_none_or(|subject| subject.is_root() || subject.is_in(file.group));
    Ok(permissions & if may_set { 0o7777 } else { 0o7777 & !SET_GROUP })
}

/// Returns a file's owner, group and permissions when it is given to a user and a group; `None` leaves one as it is. A
/// file that is no directory loses the bits to set user and group, also if both stay.
///
/// # Errors
/// [`Error::NotPermitted`]: only user 0 gives a file to another user, and the owner to a group of its own.
#[doc(alias = "chown_common")]
pub fn changed_owner(
    subject: Option<&Subject>,
    file: Ownership,
    kind: FileKind,
    user: Option<u32>,
    group: Option<u32>,
) -> Result<Ownership, Error> {
    let (new_user, new_group) = (user.unwrap_or(file.user), group.unwrap_or(file.group));
    if let Some(subject) = subject.filter(|subject| !subject.is_root()) {
        let is_owner = subject.user == file.user;
        let user_stays = user.is_none() || is_owner && new_user == file.user;
        let group_may = group.is_none() || is_owner && (new_group == file.group || subject.is_in(new_group));
        if !user_stays || !group_may {
            return Err(Error::NotPermitted);
        }
    }
    let permissions = if kind == FileKind::Directory { file.permissions } else { without_set_bits(subject, file) };
    if permissions != file.permissions {
        permit_owner(subject, file)?;
    }
    Ok(Ownership { user: new_user, group: new_group, permissions })
}

/// Returns a file's permissions without the bits to set user and group. Without a right of the group to execute, the
/// second one means something else, and stays for a member of the group.
#[doc(alias = "setattr_should_drop_suidgid")]
fn without_set_bits(subject: Option<&Subject>, file: Ownership) -> u16 {
    let is_member = subject.is_none_or(|subject| subject.is_root() || subject.is_in(file.group));
    let keeps_group = file.permissions & GROUP_EXECUTES == 0 && is_member;
    file.permissions & !SET_USER & if keeps_group { !0 } else { !SET_GROUP }
}

/// Returns the permissions of a regular file whose contents a user other than 0 has changed.
#[must_use]
#[doc(alias = "file_remove_privs")]
pub fn after_write(file: Ownership) -> u16 {
    without_set_bits(None, file)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn subject(user: u32, group: u32, groups: &[u32]) -> Subject {
        Subject { user, group, groups: Groups::new(groups).unwrap() }
    }

    fn file(user: u32, group: u32, permissions: u16) -> Ownership {
        Ownership { user, group, permissions }
    }

    fn ownership() -> impl Strategy<Value = Ownership> {
        (0u32..4, 0u32..4, 0u16..0o10000).prop_map(|(user, group, permissions)| file(user, group, permissions))
    }

    prop_compose! {
        fn some_subject()(user in 0u32..4, group in 0u32..4, groups in prop::collection::vec(0u32..4, 0..3)) -> Subject {
            subject(user, group, &groups)
        }
    }

    /// path_resolution(7): the first class that applies decides, also where a later one grants more.
    #[test]
    fn one_class_of_users_decides() {
        let other = file(1000, 2000, 0o047);
        for (subject, granted) in [
            (subject(1000, 2000, &[]), 0),
            (subject(1001, 2000, &[]), 4),
            (subject(1001, 1, &[5, 2000, 3]), 4),
            (subject(1001, 1, &[]), 7),
            (subject(0, 1, &[]), 7),
        ] {
            for wanted in 0..8 {
                assert_eq!(permits(Some(&subject), other, wanted), wanted & !granted == 0, "{subject:?} {wanted}");
            }
        }
        assert!(permits(None, file(1, 1, 0), 7));
    }

    #[test]
    fn groups_are_limited() {
        assert!(Groups::new(&[7; MOST_GROUPS]).is_some());
        assert!(Groups::new(&[7; MOST_GROUPS + 1]).is_none());
        assert_eq!(Groups::new(&[3, 1, 2]).unwrap().numbers(), [1, 2, 3]);
    }

    /// unlink(2) and rename(2), of sticky directories.
    #[test]
    fn names_in_sticky_directories_are_their_owners() {
        let sticky = file(7, 7, 0o1777);
        for (user, of, result) in
            [(1000, 1000, Ok(())), (1000, 1001, Err(Error::NotPermitted)), (7, 1001, Ok(())), (0, 1001, Ok(()))]
        {
            assert_eq!(permit_removal(Some(&subject(user, 1, &[])), sticky, file(of, 1, 0)), result, "{user} {of}");
        }
        let closed = file(7, 7, 0o1755);
        let owned = file(1000, 1, 0o777);
        assert_eq!(permit_removal(Some(&subject(1000, 1, &[])), closed, owned), Err(Error::AccessDenied));
    }

    /// chown(2).
    #[test]
    fn files_are_given_away_by_user_0_and_to_groups_of_the_owner() {
        let (regular, own) = (FileKind::Regular, file(1000, 1000, 0o6755));
        let user = subject(1000, 1000, &[2000]);
        let other = subject(1001, 1000, &[2000]);
        let cases = [
            (&user, Some(1000), None, Ok(file(1000, 1000, 0o755))),
            (&user, Some(1001), None, Err(Error::NotPermitted)),
            (&user, None, Some(2000), Ok(file(1000, 2000, 0o755))),
            (&user, None, Some(3000), Err(Error::NotPermitted)),
            (&other, None, Some(1000), Err(Error::NotPermitted)),
            (&other, Some(1000), None, Err(Error::NotPermitted)),
            (&other, None, None, Err(Error::NotPermitted)),
        ];
        for (subject, user, group, result) in cases {
            assert_eq!(changed_owner(Some(subject), own, regular, user, group), result, "{user:?} {group:?}");
        }
        assert_eq!(changed_owner(None, own, FileKind::Directory, Some(5), Some(6)), Ok(file(5, 6, 0o6755)));
        let plain = file(1000, 1000, 0o755);
        assert_eq!(changed_owner(Some(&other), plain, regular, None, None), Ok(plain));
        let locking = file(1, 1, 0o2644);
        assert_eq!(changed_owner(None, locking, regular, Some(5), None), Ok(file(5, 1, 0o2644)));
    }

    /// chmod(2), inode(7).
    #[test]
    fn the_bit_to_set_a_group_is_for_its_members() {
        let own = file(1000, 50, 0o644);
        assert_eq!(changed_permissions(Some(&subject(1000, 1, &[])), own, 0o6755), Ok(0o4755));
        assert_eq!(changed_permissions(Some(&subject(1000, 1, &[50])), own, 0o6755), Ok(0o6755));
        assert_eq!(changed_permissions(Some(&subject(0, 1, &[])), own, 0o6755), Ok(0o6755));
        assert_eq!(changed_permissions(Some(&subject(1001, 50, &[])), own, 0o644), Err(Error::NotPermitted));
        let directory = file(0, 50, 0o2777);
        let user = subject(1000, 1, &[]);
        assert_eq!(of_new(Some(&user), directory, 0o755, FileKind::Directory), file(1000, 50, 0o2755));
        assert_eq!(of_new(Some(&user), directory, 0o2755, FileKind::Regular), file(1000, 50, 0o755));
        assert_eq!(of_new(Some(&user), file(0, 50, 0o777), 0o644, FileKind::Regular), file(1000, 1, 0o644));
        assert_eq!(of_new(None, file(9, 50, 0o777), 0o644, FileKind::Regular), file(0, 0, 0o644));
    }

    /// utimensat(2).
    #[test]
    fn times_are_their_owners_and_the_present_also_writers() {
        let own = file(1000, 50, 0o664);
        let [owner, writer, reader] = [(1000, 1), (1001, 50), (1002, 1)].map(|(user, group)| subject(user, group, &[]));
        assert_eq!(permit_times(Some(&owner), own, false), Ok(()));
        assert_eq!(permit_times(Some(&writer), own, false), Err(Error::NotPermitted));
        assert_eq!(permit_times(Some(&writer), own, true), Ok(()));
        assert_eq!(permit_times(Some(&reader), own, true), Err(Error::AccessDenied));
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// The rule as the manual page says it, and its consequences.
        #[test]
        fn rights_come_from_the_bits_of_one_class(subject in some_subject(), file in ownership(), wanted in 0u16..8) {
            let groups: Vec<u32> = [subject.group].iter().chain(subject.groups.numbers()).copied().collect();
            let bits = if subject.user == file.user {
                file.permissions / 64 % 8
            } else if groups.contains(&file.group) {
                file.permissions / 8 % 8
            } else {
                file.permissions % 8
            };
            let expected = subject.user == 0 || bits & wanted == wanted;
            prop_assert_eq!(permits(Some(&subject), file, wanted), expected);
            // User 0, and nobody, may do everything.
            prop_assert!(permits(None, file, wanted));
            // Less is granted if more is.
            if permits(Some(&subject), file, wanted) {
                prop_assert!((0..8).filter(|less| less & !wanted == 0).all(|less| permits(Some(&subject), file, less)));
            }
        }

        /// No user other than 0 changes an owner, or anything of another's file; and no change gives a file bits to set
        /// a user that it did not have.
        #[test]
        fn users_change_their_own_files_alone(
            subject in some_subject(), file in ownership(), user in prop::option::of(0u32..4), group in prop::option::of(0u32..4),
        ) {
            let changed = changed_owner(Some(&subject), file, FileKind::Regular, user, group);
            if let Ok(new) = changed && !subject.is_root() {
                prop_assert_eq!(new.user, file.user);
                prop_assert!(new == file || subject.user == file.user);
                prop_assert!(new.group == file.group || subject.is_in(new.group));
            }
            prop_assert!(changed.is_ok() || !subject.is_root());
            prop_assert_eq!(changed.unwrap_or(file).permissions & !file.permissions, 0);
            let chmod = changed_permissions(Some(&subject), file, 0o777).is_ok();
            prop_assert_eq!(chmod, subject.is_root() || subject.user == file.user);
        }
    }
}
