//! The calls on paths and descriptors.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_queue::Priority;
use abi_unix::Errno;
use abi_unix::types::{self, control, open as flag};
use filesystem::{
    Access, Contents, Creation, Expect, Filesystem, LastLink, Maker, Node, OpenOptions, Owner, Replacement, Timestamp,
    Writes,
};
use spin::Once;

use crate::files::file::{self, OpenFile, errno_of, status_of};
use crate::files::{epoll, pipe};
use crate::process::Process;
use crate::process::program::LONGEST_PATH;
use crate::process::user::UserBuffer;
use crate::scheduling::{self, executor};
use crate::time;

/// Bytes that files written at run time may take in all, as a share of memory: a half, like Linux's tmpfs.
const MEMORY_SHARE: usize = 2;

static ROOT: Once<Filesystem> = Once::new();

/// Fills the root file system from the initramfs.
pub(crate) fn start(archive: &'static [u8]) -> Result<(), &'static str> {
    let limit = memory::frames::free_frames() * abi_queue::pages::PAGE_SIZE / MEMORY_SHARE;
    let root = Filesystem::new(limit as u64).map_err(|_| "there is no memory for the root file system")?;
    executor::spawn_for_kernel(scheduling::worth_of(Priority::DEFAULT), epoll::clean());
    if let Err(error) = root.populate(archive) {
        platform::println!("initramfs: {error}");
        return Err("the initramfs is damaged: build it again with `cargo xtask build`");
    }
    let base = root.root();
    // What an archive lacks is made; what it has stays.
    for (path, permissions) in [("/dev", 0o755), ("/tmp", 0o1777)] {
        let _ = root.make_directory(&base, path.as_bytes(), permissions, now());
    }
    for (path, device) in [
        ("/dev/null", file::NULL),
        ("/dev/zero", file::ZERO),
        ("/dev/random", file::RANDOM),
        ("/dev/urandom", file::RANDOM),
        ("/dev/console", file::CONSOLE),
        ("/dev/tty", file::CONSOLE),
    ] {
        let _ = root.make_device(&base, path.as_bytes(), device, 0o666, now());
    }
    ROOT.call_once(|| root);
    Ok(())
}

/// EVERY-BYTE: names and inodes are charged as pages are, to the process that makes them.
fn made_by(owner: &Arc<dyn Owner>) -> Maker<'_> {
    Maker { now: now(), owner: Some(owner) }
}

fn root() -> &'static Filesystem {
    ROOT.get().expect("the root file system is there before any process")
}

/// The root directory.
pub(crate) fn root_directory() -> Node {
    root().root()
}

/// Frees some pages of files that are gone, or takes back some registrations of epolls that are; `false` if there are
/// none.
pub(crate) fn free_remains() -> bool {
    epoll::free_remains() || root().free_remains()
}

/// Whether there is something for [`free_remains`].
pub(crate) fn has_remains() -> bool {
    epoll::has_remains() || root().has_remains()
}

/// The time for what changes now.
pub(crate) fn now() -> Timestamp {
    let ns = time::now_ns() + time::epoch_ns();
    Timestamp { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as u32 }
}

/// Reads a path from a process's memory.
pub(crate) fn read_path(process: &Process, address: usize) -> Result<Vec<u8>, Errno> {
    process.copy_in_string(address, LONGEST_PATH - 1, Errno::ENAMETOOLONG)
}

/// The directory from which a relative path starts.
fn base(process: &Process, directory: i32, path: &[u8]) -> Result<Node, Errno> {
    if path.first() == Some(&b'/') {
        return Ok(root_directory());
    }
    if directory == types::AT_FDCWD {
        return Ok(process.directory.lock().clone());
    }
    let number = usize::try_from(directory).map_err(|_| Errno::EBADF)?;
    let file = process.descriptors.lock().get(number)?.clone();
    file.directory().cloned()
}

/// A program's file.
pub(crate) struct Content(Node);

impl Content {
    /// Its length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.0.metadata().size
    }

    /// Reads at an offset; fewer bytes than asked for only at the end.
    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> usize {
        self.0.read_at(offset, bytes).unwrap_or(0)
    }
}

/// The file that `execve` or `spawn` names.
pub(crate) fn executable(directory: &Node, path: &[u8]) -> Result<Content, Errno> {
    let node = root().look_up(directory, path, LastLink::Follow).map_err(errno_of)?;
    if !node.metadata().is_executable() {
        return Err(Errno::EACCES);
    }
    Ok(Content(node))
}

/// `EROFS` for what the initramfs contains: programs are run from there without a copy, and nobody changes them.
fn refuse_archived(base: &Node, path: &[u8], last: LastLink) -> Result<(), Errno> {
    match root().look_up(base, path, last) {
        Ok(node) if node.archived_bytes().is_some_and(|bytes| !bytes.is_empty()) => Err(Errno::EROFS),
        _ => Ok(()),
    }
}

/// `openat`.
pub(crate) fn open(process: &Process, directory: i32, path: usize, flags: u32, mode: u32) -> Result<usize, Errno> {
    let path = read_path(process, path)?;
    let base = base(process, directory, &path)?;
    let options = OpenOptions {
        access: match flags & flag::ACCESS_MODE {
            flag::RDONLY => Access::Read,
            flag::WRONLY => Access::Write,
            flag::RDWR => Access::ReadWrite,
            _ => return Err(Errno::EINVAL),
        },
        creation: match (flags & flag::CREAT != 0, flags & flag::EXCL != 0) {
            (false, _) => Creation::Never,
            (true, false) => Creation::IfMissing,
            (true, true) => Creation::Always,
        },
        contents: if flags & flag::TRUNC != 0 { Contents::Discard } else { Contents::Keep },
        writes: if flags & flag::APPEND != 0 { Writes::AtEnd } else { Writes::AtPosition },
        expect: if flags & flag::DIRECTORY != 0 { Expect::Directory } else { Expect::Anything },
        last_link: if flags & flag::NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow },
        permissions: (mode & 0o7777) as u16,
    };
    if options.access != Access::Read || options.contents == Contents::Discard {
        refuse_archived(&base, &path, options.last_link)?;
    }
    let charge = file::charge(&process.account)?;
    let owner: Arc<dyn Owner> = process.account.clone();
    let opened = root().open(&base, &path, &options, made_by(&owner)).map_err(errno_of)?;
    let file = Arc::new(OpenFile::stored(opened, flags & flag::NONBLOCK != 0, charge)?);
    process.descriptors.lock().add(file, flags & flag::CLOEXEC != 0, 0)
}

/// `pipe2`.
pub(crate) fn pipe(process: &Process, address: usize, flags: u32) -> Result<usize, Errno> {
    if flags & !(flag::CLOEXEC | flag::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let (reader_charge, writer_charge) = (file::charge(&process.account)?, file::charge(&process.account)?);
    let (reader, writer) = pipe::pipe(&process.account);
    let non_blocking = flags & flag::NONBLOCK != 0;
    let close = flags & flag::CLOEXEC != 0;
    let (first, second) = {
        let mut descriptors = process.descriptors.lock();
        let reader = Arc::new(OpenFile::reader(reader, non_blocking, reader_charge));
        let writer = Arc::new(OpenFile::writer(writer, non_blocking, writer_charge));
        let first = descriptors.add(reader, close, 0)?;
        match descriptors.add(writer, close, 0) {
            Ok(second) => (first, second),
            Err(error) => {
                let unused = descriptors.remove(first);
                drop(descriptors);
                drop(unused);
                return Err(error);
            }
        }
    };
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&(first as i32).to_le_bytes());
    bytes[4..].copy_from_slice(&(second as i32).to_le_bytes());
    if let Err(error) = process.copy_out(address, &bytes) {
        for descriptor in [first, second] {
            let unused = process.descriptors.lock().remove(descriptor);
            drop(unused);
        }
        return Err(error);
    }
    Ok(0)
}

/// `dup3`.
pub(crate) fn duplicate_to(process: &Process, old: usize, new: usize, flags: u32) -> Result<usize, Errno> {
    if old == new || flags & !flag::CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let replaced = {
        let mut descriptors = process.descriptors.lock();
        let file = descriptors.get(old)?.clone();
        descriptors.replace(new, file, flags & flag::CLOEXEC != 0)?
    };
    drop(replaced);
    Ok(new)
}

/// `fcntl`.
pub(crate) fn control(process: &Process, descriptor: usize, command: u32, argument: usize) -> Result<usize, Errno> {
    let mut descriptors = process.descriptors.lock();
    let file = descriptors.get(descriptor)?.clone();
    match command {
        control::DUPFD => descriptors.add(file, false, argument),
        control::DUPFD_CLOEXEC => descriptors.add(file, true, argument),
        control::GETFD => Ok(descriptors.closes_on_execute(descriptor)? as usize * control::FD_CLOEXEC as usize),
        control::SETFD => {
            descriptors.set_close_on_execute(descriptor, argument as u32 & control::FD_CLOEXEC != 0)?;
            Ok(0)
        }
        control::GETFL => Ok(file.flags() as usize),
        control::SETFL => {
            file.set_flags(argument as u32);
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `getcwd`: returns the length with the NUL, as the system call does.
pub(crate) fn current_directory(process: &Process, address: usize, size: usize) -> Result<usize, Errno> {
    let directory = process.directory.lock().clone();
    let mut path = root().path_of(&directory).map_err(errno_of)?;
    path.push(0);
    if path.len() > size {
        return Err(Errno::ERANGE);
    }
    process.copy_out(address, &path)?;
    Ok(path.len())
}

/// `chdir`.
pub(crate) fn change_directory(process: &Process, path: usize) -> Result<usize, Errno> {
    let path = read_path(process, path)?;
    let base = base(process, types::AT_FDCWD, &path)?;
    let node = root().look_up(&base, &path, LastLink::Follow).map_err(errno_of)?;
    if node.kind() != filesystem::FileKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let old = core::mem::replace(&mut *process.directory.lock(), node);
    drop(old);
    Ok(0)
}

/// `mkdirat`.
pub(crate) fn make_directory(process: &Process, directory: i32, path: usize, mode: u32) -> Result<usize, Errno> {
    let path = read_path(process, path)?;
    let base = base(process, directory, &path)?;
    let owner: Arc<dyn Owner> = process.account.clone();
    root().make_directory(&base, &path, (mode & 0o7777) as u16, made_by(&owner)).map(|_| 0).map_err(errno_of)
}

/// `unlinkat`.
pub(crate) fn unlink(process: &Process, directory: i32, path: usize, flags: u32) -> Result<usize, Errno> {
    if flags & !types::AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    let path = read_path(process, path)?;
    let base = base(process, directory, &path)?;
    let done = match flags & types::AT_REMOVEDIR != 0 {
        true => root().remove_directory(&base, &path, now()),
        false => root().unlink(&base, &path, now()),
    };
    done.map(|()| 0).map_err(errno_of)
}

/// `symlinkat`.
pub(crate) fn symbolic_link(process: &Process, target: usize, directory: i32, path: usize) -> Result<usize, Errno> {
    let target = read_path(process, target)?;
    let path = read_path(process, path)?;
    let base = base(process, directory, &path)?;
    let owner: Arc<dyn Owner> = process.account.clone();
    root().make_symbolic_link(&base, &path, &target, made_by(&owner)).map(|_| 0).map_err(errno_of)
}

/// `linkat`.
pub(crate) fn link(
    process: &Process,
    old_directory: i32,
    old: usize,
    new_directory: i32,
    new: usize,
    flags: u32,
) -> Result<usize, Errno> {
    /// `AT_SYMLINK_FOLLOW`.
    const FOLLOW: u32 = 0x400;
    if flags & !FOLLOW != 0 {
        return Err(Errno::EINVAL);
    }
    let old = read_path(process, old)?;
    let new = read_path(process, new)?;
    let old_base = base(process, old_directory, &old)?;
    let new_base = base(process, new_directory, &new)?;
    let last = if flags & FOLLOW != 0 { LastLink::Follow } else { LastLink::Keep };
    let owner: Arc<dyn Owner> = process.account.clone();
    root().link(&old_base, &old, last, &new_base, &new, made_by(&owner)).map(|()| 0).map_err(errno_of)
}

/// `renameat2`.
pub(crate) fn rename(
    process: &Process,
    old_directory: i32,
    old: usize,
    new_directory: i32,
    new: usize,
    flags: u32,
) -> Result<usize, Errno> {
    let replacement = match flags {
        0 => Replacement::Replace,
        1 => Replacement::Refuse,
        2 => Replacement::Exchange,
        _ => return Err(Errno::EINVAL),
    };
    let old = read_path(process, old)?;
    let new = read_path(process, new)?;
    let old_base = base(process, old_directory, &old)?;
    let new_base = base(process, new_directory, &new)?;
    let owner: Arc<dyn Owner> = process.account.clone();
    root().rename(&old_base, &old, &new_base, &new, replacement, made_by(&owner)).map(|()| 0).map_err(errno_of)
}

/// `readlinkat`: cuts off what does not fit.
pub(crate) fn read_link(
    process: &Process,
    directory: i32,
    path: usize,
    address: usize,
    size: usize,
) -> Result<usize, Errno> {
    let path = read_path(process, path)?;
    if size as i32 <= 0 {
        return Err(Errno::EINVAL);
    }
    let base = base(process, directory, &path)?;
    let node = root().look_up(&base, &path, LastLink::Keep).map_err(errno_of)?;
    let buffer = UserBuffer::new(address, size)?;
    node.read_link(|target| {
        let count = target.len().min(buffer.len());
        process.copy_out(buffer.address(), &target[..count]).map(|()| count)
    })
    .map_err(errno_of)?
}

/// `faccessat`: everything may be read and written; only the right to execute depends on the file.
pub(crate) fn access(process: &Process, directory: i32, path: usize, mode: u32) -> Result<usize, Errno> {
    if mode & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let path = read_path(process, path)?;
    let base = base(process, directory, &path)?;
    let node = root().look_up(&base, &path, LastLink::Follow).map_err(errno_of)?;
    if mode & 1 != 0 && node.kind() == filesystem::FileKind::Regular && !node.metadata().is_executable() {
        return Err(Errno::EACCES);
    }
    Ok(0)
}

/// `newfstatat`.
pub(crate) fn status_at(
    process: &Process,
    directory: i32,
    path: usize,
    address: usize,
    flags: u32,
) -> Result<usize, Errno> {
    if flags & !(types::AT_SYMLINK_NOFOLLOW | types::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = read_path(process, path)?;
    if path.is_empty() && flags & types::AT_EMPTY_PATH != 0 && directory != types::AT_FDCWD {
        return status(process, usize::try_from(directory).map_err(|_| Errno::EBADF)?, address);
    }
    let metadata = if path.is_empty() && flags & types::AT_EMPTY_PATH != 0 {
        process.directory.lock().metadata()
    } else {
        let base = base(process, directory, &path)?;
        let last = if flags & types::AT_SYMLINK_NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow };
        root().look_up(&base, &path, last).map_err(errno_of)?.metadata()
    };
    process.copy_out(address, &status_of(&metadata).to_bytes())?;
    Ok(0)
}

/// `fstat`.
pub(crate) fn status(process: &Process, descriptor: usize, address: usize) -> Result<usize, Errno> {
    let file = process.descriptors.lock().get(descriptor)?.clone();
    process.copy_out(address, &file.status().to_bytes())?;
    Ok(0)
}
