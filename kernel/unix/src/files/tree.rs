//! The first file system, which is filled from the initramfs and lies in memory, and the nodes of devices.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::Errno;
use filesystem::rights::{EXECUTE, Subject};
use filesystem::{DeviceNumber, Filesystem, LastLink, Maker, Owner, SpecialFile, Timestamp};
use spin::Once;

use crate::files::disk;
use crate::files::file::encode_device;
use crate::files::file_events;
use crate::files::mounts::{self, Node, Path, Place};
use crate::process::accounts::Account;
use crate::scheduling::steps;
use crate::time;

/// `/dev/null`.
pub(crate) const NULL: DeviceNumber = DeviceNumber { major: 1, minor: 3 };
/// `/dev/full`.
pub(crate) const FULL: DeviceNumber = DeviceNumber { major: 1, minor: 7 };
/// `/dev/zero`.
pub(crate) const ZERO: DeviceNumber = DeviceNumber { major: 1, minor: 5 };
/// `/dev/random` and `/dev/urandom`.
pub(crate) const RANDOM: DeviceNumber = DeviceNumber { major: 1, minor: 9 };
/// `/dev/tty`: the controlling terminal of the process that opens it.
pub(crate) const TTY: DeviceNumber = DeviceNumber { major: 5, minor: 0 };
/// `/dev/console`.
pub(crate) const CONSOLE: DeviceNumber = DeviceNumber { major: 5, minor: 1 };

/// `/dev/ptmx`: a new pseudo-terminal.
pub(crate) const MULTIPLEXER: DeviceNumber = DeviceNumber { major: 5, minor: 2 };
/// Major number of the slaves of pseudo-terminals, whose minor numbers are theirs.
pub(crate) const SLAVES: u32 = 136;

/// Device files that are there when the first program starts, with their permissions. The console is user 0's: others
/// would read what is typed there.
const STANDARD_DEVICES: [(&str, DeviceNumber, u16); 8] = [
    ("null", NULL, 0o666),
    ("zero", ZERO, 0o666),
    ("full", FULL, 0o666),
    ("random", RANDOM, 0o666),
    ("urandom", RANDOM, 0o666),
    ("console", CONSOLE, 0o600),
    ("tty", TTY, 0o666),
    ("ptmx", MULTIPLEXER, 0o666),
];

/// Links to the caller's open files that are there when the first program starts.
const STANDARD_LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// The directory of the devices' nodes.
static DEVICES: Once<Place> = Once::new();

/// Tree in which the devices have their nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceTree {
    /// The first file system's, in its directory `/dev`.
    OfArchive,
    /// One of their own, to be mounted in another root.
    Own,
}

/// Fills the first file system from the initramfs, and makes the nodes of devices.
pub(crate) fn start(archive: &'static [u8], device_tree: DeviceTree) -> Result<(), &'static str> {
    let root =
        Filesystem::new(mounts::size_of_the_first()).map_err(|_| "there is no memory for the root file system")?;
    if let Err(error) = root.populate(archive) {
        platform::println!("initramfs: {error}");
        return Err("the initramfs is damaged: build it again with `cargo xtask build`");
    }
    root.walk_in_steps_of(mounts::COMPONENTS_OF_A_STEP);
    root.observed_by(file_events::observe);
    let base = root.root();
    // Missing directories and devices are made; those of the archive stay.
    for (path, permissions) in [("/dev", 0o755), ("/etc", 0o755), ("/proc", 0o555), ("/tmp", 0o1777)] {
        let _ = root.make_directory(&base, path.as_bytes(), permissions, now());
    }
    let _ = root.make_symbolic_link(&base, b"/etc/resolv.conf", b"/proc/net/pnp", now());
    mounts::start(root)?;
    let devices = match device_tree {
        DeviceTree::OfArchive => Path::new(mounts::root(), b"/dev".to_vec(), 0).look_up_at_once(LastLink::Follow),
        DeviceTree::Own => mounts::device_tree().map(|mount| mount.root()),
    };
    let devices = devices.map_err(|_| "there is no memory for /dev, or it is no directory")?;
    make_devices(&devices).ok_or("/dev of the initramfs is no directory")?;
    DEVICES.call_once(|| devices);
    Ok(())
}

/// Makes the nodes of devices in their directory; `None` if it is no stored file.
fn make_devices(devices: &Place) -> Option<()> {
    let (tree, base) = (devices.mount.tree(), devices.node.stored()?);
    for (name, permissions) in [("pts", 0o755), ("shm", 0o1777), ("mqueue", 0o1777)] {
        let _ = tree.make_directory(base, name.as_bytes(), permissions, now());
    }
    for (name, target) in STANDARD_LINKS {
        let _ = tree.make_symbolic_link(base, name.as_bytes(), target.as_bytes(), now());
    }
    for (name, device, permissions) in STANDARD_DEVICES {
        let special = SpecialFile::CharacterDevice(device);
        let _ = tree.make_special_file(base, name.as_bytes(), special, permissions, now());
    }
    for disk in disk::all() {
        let special = SpecialFile::BlockDevice(disk.device());
        let _ = tree.make_special_file(base, disk.name().as_bytes(), special, 0o660, now());
    }
    Some(())
}

/// Returns the directory of the devices' nodes.
pub(crate) fn devices() -> &'static Place {
    DEVICES.get().expect("the devices are there before any process")
}

/// Returns the path of the node of a device, by its number as `stat` shows it.
pub(crate) fn path_of_device(number: u64) -> String {
    if number >> 8 == u64::from(SLAVES) {
        return format!("/dev/pts/{}", number & 0xff);
    }
    let is_meant = |(_, device, _): &&(&str, DeviceNumber, u16)| encode_device(*device) == number;
    STANDARD_DEVICES.iter().find(is_meant).map_or("/dev".into(), |(name, ..)| format!("/dev/{name}"))
}

/// Returns the node of a device, by its name in the directory of devices.
pub(crate) fn place_of_device(name: &str) -> Option<Place> {
    Path::new(devices().clone(), name.as_bytes().to_vec(), 0).look_up_at_once(LastLink::Follow).ok()
}

/// Names the process that pays for names and inodes that a call makes, which are charged as pages are (EVERY-BYTE).
pub(crate) fn made_by(owner: &Arc<dyn Owner>) -> Maker<'_> {
    Maker { now: now(), owner: Some(owner) }
}

/// Returns the time stamp of changes made now.
pub(crate) fn now() -> Timestamp {
    let ns = time::now_ns() + time::epoch_ns();
    Timestamp { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as u32 }
}

/// Translates the file system's errors into error numbers.
pub(crate) fn errno_of(error: filesystem::Error) -> Errno {
    use filesystem::Error::*;
    match error {
        NotFound => Errno::ENOENT,
        AlreadyExists => Errno::EEXIST,
        NotADirectory => Errno::ENOTDIR,
        IsADirectory => Errno::EISDIR,
        DirectoryNotEmpty => Errno::ENOTEMPTY,
        TooManySymbolicLinks => Errno::ELOOP,
        NameTooLong => Errno::ENAMETOOLONG,
        InvalidArgument => Errno::EINVAL,
        Busy => Errno::EBUSY,
        // Not for a caller that asks for one part.
        Unfinished => Errno::EAGAIN,
        NotPermitted => Errno::EPERM,
        AccessDenied => Errno::EACCES,
        NotOpenForThis => Errno::EBADF,
        CrossFilesystem | Crossing => Errno::EXDEV,
        TooManyLinks => Errno::EMLINK,
        TextBusy => Errno::ETXTBSY,
        ReadOnly => Errno::EROFS,
        FileTooLarge => Errno::EFBIG,
        NoSpace => Errno::ENOSPC,
        OutOfMemory => Errno::ENOMEM,
    }
}

/// A file from which a program is run or loaded. Nobody opens it for writing meanwhile.
pub(crate) struct RunningFile(Place);

impl RunningFile {
    /// Keeps writers away from a file. `ETXTBSY` if it is open for writing.
    fn begin(place: Place) -> Result<RunningFile, Errno> {
        match &place.node {
            Node::Stored(node) => node.deny_writers().map_err(errno_of)?,
            Node::OnVolume(node) => node.writers().deny().map_err(errno_of)?,
            Node::Generated(_) => {}
        }
        Ok(RunningFile(place))
    }

    /// Returns the file with its mount.
    pub(crate) fn place(&self) -> &Place {
        &self.0
    }
}

impl Drop for RunningFile {
    fn drop(&mut self) {
        match &self.0.node {
            Node::Stored(node) => node.allow_writers(),
            Node::OnVolume(node) => node.writers().allow(),
            Node::Generated(_) => {}
        }
    }
}

/// The file of a program.
#[doc(alias = "inode")]
pub(crate) struct Content(Arc<RunningFile>);

impl Content {
    /// Returns the file in this place as that of a program for a user. `EACCES` if it must not be executed, `ETXTBSY`
    /// if it is open for writing.
    pub(crate) fn of(place: Place, subject: Option<&Subject>) -> Result<Content, Errno> {
        mounts::require_executable(&place.mount)?;
        if matches!(place.node, Node::Generated(_)) || !place.metadata().is_executable() {
            return Err(Errno::EACCES);
        }
        place.permit(subject, EXECUTE)?;
        Ok(Content(Arc::new(RunningFile::begin(place)?)))
    }

    /// Returns the file, for the process that runs it.
    pub(crate) fn running(&self) -> &Arc<RunningFile> {
        &self.0
    }

    /// Returns its length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.place().metadata().size
    }

    /// Returns the file with its mount.
    pub(crate) fn place(&self) -> &Place {
        self.0.place()
    }

    /// Reads at an offset, if the bytes are in memory; fewer than wanted only at the end.
    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Option<usize> {
        match &self.place().node {
            Node::OnVolume(node) => node.read_for_kernel(offset, bytes),
            node => node.stored().map(|node| node.read_at(offset, bytes).unwrap_or(0)),
        }
    }

    /// Reads at most a step's bytes at an offset from a disk, which this process pays for.
    ///
    /// # Cancellation
    /// Dropping it has no effect.
    pub(crate) async fn fetch(
        &self,
        (account, payer): (&Arc<Account>, u32),
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Errno> {
        match &self.place().node {
            Node::OnVolume(node) => node.fetch(account, payer, offset, length.min(steps::BYTES)).await,
            _ => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    #[test]
    fn the_tree_has_the_files_of_the_archive_and_the_standard_devices() {
        run(|_| {
            let look = |path: &str| Path::new(mounts::root(), path.into(), 1).look_up_at_once(LastLink::Follow);
            for (name, device, _) in STANDARD_DEVICES {
                let path = format!("/dev/{name}");
                assert_eq!(
                    look(&path).ok().and_then(|place| place.node.stored().and_then(|node| node.device())),
                    Some(device),
                    "{path}"
                );
            }
            assert!(["/tmp", "/dev/shm", "/bin/test"].iter().all(|path| look(path).is_ok()));
            assert_eq!(look("/bin/other").err(), Some(Errno::ENOENT));
        });
    }

    /// A program is read from the archive, which does not change; files that must not be executed are refused.
    #[test]
    fn programs_are_found_and_read_to_their_end() {
        run(|_| {
            let executable = |path: &str| {
                Path::new(mounts::root(), path.into(), 1)
                    .look_up_at_once(LastLink::Follow)
                    .and_then(|place| Content::of(place, None))
            };
            let program = executable("bin/test").unwrap();
            let mut head = [0; 4];
            assert_eq!((program.read_at(0, &mut head), &head), (Some(4), b"\x7fELF"));
            let mut rest = [0; 100];
            assert_eq!(program.read_at(program.size() - 10, &mut rest), Some(10));
            assert_eq!(program.read_at(program.size(), &mut rest), Some(0));
            assert_eq!(executable("bin").err(), Some(Errno::EACCES));
            assert_eq!(executable("dev/null").err(), Some(Errno::EACCES));
            assert_eq!(executable("bin/missing").err(), Some(Errno::ENOENT));
        });
    }

    #[test]
    fn changes_are_stamped_with_the_time_of_day() {
        run(|program| {
            let before = now();
            program.sleep_ns(2_500_000_000);
            let after = now();
            let ns = |stamp: Timestamp| stamp.seconds as i128 * 1_000_000_000 + i128::from(stamp.nanoseconds);
            assert!((2_500_000_000..2_600_000_000).contains(&(ns(after) - ns(before))));
            assert!(after.nanoseconds < 1_000_000_000);
        });
    }
}
