//! Equal random operations of several users on our tree and on a file system of the Linux that runs the test: every
//! result, down to the error code, must be the same. Without the rights of user 0 there is nothing to compare.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use filesystem::rights::{self, Groups, Ownership, Subject};
use filesystem::{
    Access, Contents, Creation, Error, FileKind, Filesystem, LastLink, OpenOptions, Replacement, Timestamp,
};
use proptest::prelude::*;
use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, Uid};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

const NOW: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

#[derive(Clone, Debug)]
enum Operation {
    MakeDirectory(String, u16),
    Open(String, OpenOptions),
    Unlink(String),
    RemoveDirectory(String),
    Rename(String, String, Replacement),
    Link(String, String),
    MakeLink(String, String),
    ChangePermissions(String, u16),
    ChangeOwner(String, Option<u32>, Option<u32>),
    ChangeTimes(String, bool),
    Look(String),
}

/// The user, the group and the further groups of an operation.
const SUBJECTS: [(u32, u32, &[u32]); 5] =
    [(0, 0, &[]), (1000, 1000, &[]), (1001, 50, &[60]), (1002, 1000, &[50]), (0, 50, &[])];

fn subject(which: usize) -> Option<Subject> {
    let (user, group, groups) = SUBJECTS[which];
    (which > 0).then(|| Subject { user, group, groups: Groups::new(groups).unwrap() })
}

fn errno(error: Error) -> Errno {
    match error {
        Error::NotFound => Errno::NOENT,
        Error::AlreadyExists => Errno::EXIST,
        Error::NotADirectory => Errno::NOTDIR,
        Error::IsADirectory => Errno::ISDIR,
        Error::DirectoryNotEmpty => Errno::NOTEMPTY,
        Error::TooManySymbolicLinks => Errno::LOOP,
        Error::InvalidArgument => Errno::INVAL,
        Error::Busy => Errno::BUSY,
        Error::NotPermitted => Errno::PERM,
        Error::AccessDenied => Errno::ACCESS,
        other => panic!("{other}"),
    }
}

type Report = Option<(u32, u32, u32)>;

fn ours(tree: &Filesystem, subject: Option<&Subject>, operation: &Operation) -> Result<Report, Error> {
    let root = tree.root();
    let base = root.seen_by(subject);
    let find = |path: &String| tree.look_up(base, path.as_bytes(), LastLink::Follow);
    match operation {
        // A caller's bits to set user and group are not for a directory that is made.
        Operation::MakeDirectory(path, mode) => {
            drop(tree.make_directory(base, path.as_bytes(), *mode & 0o1777, NOW)?);
        }
        Operation::Open(path, options) => drop(tree.open(base, path.as_bytes(), options, NOW)?),
        Operation::Unlink(path) => tree.unlink(base, path.as_bytes(), NOW)?,
        Operation::RemoveDirectory(path) => tree.remove_directory(base, path.as_bytes(), NOW)?,
        Operation::Rename(old, new, how) => tree.rename(base, old.as_bytes(), base, new.as_bytes(), *how, NOW)?,
        Operation::Link(old, new) => tree.link(base, old.as_bytes(), LastLink::Keep, base, new.as_bytes(), NOW)?,
        Operation::MakeLink(target, path) => {
            drop(tree.make_symbolic_link(base, path.as_bytes(), target.as_bytes(), NOW)?);
        }
        Operation::ChangePermissions(path, mode) => find(path)?.change_ownership(NOW, |file| {
            Ok(Ownership { permissions: rights::changed_permissions(subject, file, *mode)?, ..file })
        })?,
        Operation::ChangeOwner(path, user, group) => {
            let node = find(path)?;
            let kind = node.kind();
            node.change_ownership(NOW, |file| rights::changed_owner(subject, file, kind, *user, *group))?;
        }
        Operation::ChangeTimes(path, are_present) => {
            rights::permit_times(subject, find(path)?.ownership(), *are_present)?;
        }
        Operation::Look(path) => {
            let found = tree.look_up(base, path.as_bytes(), LastLink::Keep)?.metadata();
            return Ok(Some((found.user, found.group, found.mode())));
        }
    }
    Ok(None)
}

/// Has this thread alone act as one of the users, until it is dropped.
struct ActsAs;

impl ActsAs {
    fn new(which: usize) -> ActsAs {
        let (user, group, groups) = SUBJECTS[which];
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(None, Gid::from_raw(group), None).unwrap();
        set_thread_res_uid(None, Uid::from_raw(user), None).unwrap();
        ActsAs
    }
}

impl Drop for ActsAs {
    fn drop(&mut self) {
        set_thread_res_uid(None, Uid::ROOT, None).unwrap();
        set_thread_res_gid(None, Gid::ROOT, None).unwrap();
        set_thread_groups(&[]).unwrap();
    }
}

fn theirs(root: &std::os::fd::OwnedFd, which: usize, operation: &Operation) -> Result<Report, Errno> {
    let _user = ActsAs::new(which);
    match operation {
        Operation::MakeDirectory(path, mode) => fs::mkdirat(root, path.as_str(), Mode::from_raw_mode((*mode).into()))?,
        Operation::Open(path, options) => {
            let access = match options.access {
                Access::Read => OFlags::RDONLY,
                Access::Write => OFlags::WRONLY,
                Access::ReadWrite => OFlags::RDWR,
            };
            let creation = match options.creation {
                Creation::Never => OFlags::empty(),
                Creation::IfMissing => OFlags::CREATE,
                Creation::Always => OFlags::CREATE | OFlags::EXCL,
            };
            let contents = if options.contents == Contents::Discard { OFlags::TRUNC } else { OFlags::empty() };
            let mode = Mode::from_raw_mode(options.permissions.into());
            drop(fs::openat(root, path.as_str(), access | creation | contents, mode)?);
        }
        Operation::Unlink(path) => fs::unlinkat(root, path.as_str(), AtFlags::empty())?,
        Operation::RemoveDirectory(path) => fs::unlinkat(root, path.as_str(), AtFlags::REMOVEDIR)?,
        Operation::Rename(old, new, how) => {
            let flags = match how {
                Replacement::Replace => RenameFlags::empty(),
                Replacement::Refuse => RenameFlags::NOREPLACE,
                Replacement::Exchange => RenameFlags::EXCHANGE,
            };
            fs::renameat_with(root, old.as_str(), root, new.as_str(), flags)?;
        }
        Operation::Link(old, new) => fs::linkat(root, old.as_str(), root, new.as_str(), AtFlags::empty())?,
        Operation::MakeLink(target, path) => fs::symlinkat(target.as_str(), root, path.as_str())?,
        Operation::ChangePermissions(path, mode) => {
            fs::chmodat(root, path.as_str(), Mode::from_raw_mode((*mode).into()), AtFlags::empty())?;
        }
        Operation::ChangeOwner(path, user, group) => {
            let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
            fs::chownat(root, path.as_str(), user, group, AtFlags::empty())?;
        }
        Operation::ChangeTimes(path, are_present) => {
            let nanoseconds = if *are_present { UTIME_NOW } else { 0 };
            let time = Timespec { tv_sec: 0, tv_nsec: nanoseconds };
            let times = Timestamps { last_access: time, last_modification: time };
            fs::utimensat(root, path.as_str(), &times, AtFlags::empty())?;
        }
        Operation::Look(path) => {
            let found = fs::statat(root, path.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            return Ok(Some((found.st_uid, found.st_gid, found.st_mode)));
        }
    }
    Ok(None)
}

fn path() -> impl Strategy<Value = String> {
    prop::sample::select(&["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "l/a", "d/../a", "d/e/../b", "l"][..])
        .prop_map(String::from)
}

fn mode() -> impl Strategy<Value = u16> {
    let bits = [0o777u16, 0o755, 0o700, 0o1777, 0o2775, 0o2777, 0o711, 0o744, 0o070, 0o007, 0o6755, 0o2644, 0];
    prop::sample::select(bits.to_vec())
}

fn operation() -> impl Strategy<Value = Operation> {
    let number = || prop::option::of(prop::sample::select(vec![0u32, 50, 60, 1000, 1001]));
    let access = prop::sample::select(vec![Access::Read, Access::Write, Access::ReadWrite]);
    let creation = prop::sample::select(vec![Creation::Never, Creation::IfMissing, Creation::Always]);
    let contents = prop::sample::select(vec![Contents::Keep, Contents::Keep, Contents::Discard]);
    let how = prop::sample::select(vec![Replacement::Replace, Replacement::Refuse, Replacement::Exchange]);
    let open =
        (path(), access, creation, contents, mode()).prop_map(|(path, access, creation, contents, permissions)| {
            Operation::Open(path, OpenOptions { access, creation, contents, permissions, ..OpenOptions::default() })
        });
    prop_oneof![
        3 => (path(), mode()).prop_map(|(path, mode)| Operation::MakeDirectory(path, mode)),
        4 => open,
        1 => path().prop_map(Operation::Unlink),
        1 => path().prop_map(Operation::RemoveDirectory),
        2 => (path(), path(), how).prop_map(|(old, new, how)| Operation::Rename(old, new, how)),
        1 => (path(), path()).prop_map(|(old, new)| Operation::Link(old, new)),
        1 => (path(), Just(String::from("l"))).prop_map(|(target, path)| Operation::MakeLink(target, path)),
        3 => (path(), mode()).prop_map(|(path, mode)| Operation::ChangePermissions(path, mode)),
        3 => (path(), number(), number()).prop_map(|(path, user, group)| Operation::ChangeOwner(path, user, group)),
        1 => (path(), any::<bool>()).prop_map(|(path, are_present)| Operation::ChangeTimes(path, are_present)),
        3 => path().prop_map(Operation::Look),
    ]
}

/// A directory of the host's, which is gone with this.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("filesystem-rights-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the host is stricter with these files than the manual pages of the calls say.
fn is_strict(names: &[&str]) -> bool {
    let setting = |name: &&str| std::fs::read_to_string(format!("/proc/sys/fs/protected_{name}"));
    names.iter().any(|name| setting(name).is_ok_and(|text| text.trim() != "0"))
}

fn is_sticky(operation: &Operation) -> bool {
    match operation {
        Operation::MakeDirectory(_, mode) | Operation::ChangePermissions(_, mode) => mode & 0o1000 != 0,
        _ => false,
    }
}

proptest! {
    #![proptest_config(property::cases(300))]

    #[test]
    fn users_may_do_the_same_as_on_linux(operations in prop::collection::vec((0usize..5, operation()), 1..60)) {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        // All threads have it in common.
        rustix::process::umask(Mode::empty());
        let (links, sticky) = (is_strict(&["hardlinks"]), is_strict(&["symlinks", "regular"]));
        let (tree, place) = (Filesystem::new(1 << 24).unwrap(), Place::new());
        let root = fs::open(&place.0, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
        fs::fchmod(&root, Mode::from_raw_mode(0o777)).unwrap();
        tree.root().set_permissions(0o777, NOW);
        for (which, operation) in operations {
            if links && matches!(operation, Operation::Link(..)) || sticky && is_sticky(&operation) {
                continue;
            }
            let own = ours(&tree, subject(which).as_ref(), &operation).map_err(errno);
            prop_assert_eq!(own, theirs(&root, which, &operation), "{:?} by {}", operation, which);
        }
    }
}

/// The kinds of files that are made are those that the rules are told.
#[test]
fn files_of_a_directory_with_a_group_have_it() {
    let tree = Filesystem::new(1 << 20).unwrap();
    let root = tree.root();
    root.change_ownership(NOW, |file| Ok(Ownership { group: 50, permissions: 0o2777, ..file })).unwrap();
    let subject = subject(1);
    let base = root.seen_by(subject.as_ref());
    let directory = tree.make_directory(base, b"d", 0o700, NOW).unwrap();
    let link = tree.make_symbolic_link(base, b"l", b"d", NOW).unwrap();
    assert_eq!(directory.ownership(), Ownership { user: 1000, group: 50, permissions: 0o2700 });
    assert_eq!((link.ownership().user, link.ownership().group, link.kind()), (1000, 50, FileKind::SymbolicLink));
}
