//! The calls on paths and descriptors.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::types::{self, control, open as flag};
use abi_unix::{Errno, SystemCall};
use filesystem::{
    Access, Contents, Creation, Expect, FileKind, LastLink, Node, OpenOptions, Owner, Replacement, Writes,
};

use crate::calls::call::{Call, Decoded, Decoding, kept_steps};
use crate::files::file::{self, OpenFile, status_of};
use crate::files::tree::{errno_of, made_by, now, root};
use crate::files::{pipe, remains};
use crate::process::Process;
use crate::scheduling::steps;

/// A path and the directory from which it starts.
struct Place {
    base: Node,
    path: Vec<u8>,
}

impl Place {
    /// Reads a place from the arguments of a call: a directory's descriptor, or `AT_FDCWD`, and the address of the
    /// path.
    fn read(call: &Call<'_>, directory: usize, path: usize) -> Result<Place, Errno> {
        Place::of(call.process(), call.signed(directory), call.process().copy_in_path(call.address(path))?)
    }

    /// Reads two places from such pairs of arguments. Both paths are read before a directory is looked at, as on Linux.
    fn read_two(call: &Call<'_>, first: (usize, usize), second: (usize, usize)) -> Result<(Place, Place), Errno> {
        let process = call.process();
        let old = process.copy_in_path(call.address(first.1))?;
        let new = process.copy_in_path(call.address(second.1))?;
        Ok((Place::of(process, call.signed(first.0), old)?, Place::of(process, call.signed(second.0), new)?))
    }

    fn of(process: &Process, directory: i32, path: Vec<u8>) -> Result<Place, Errno> {
        let base = if path.first() == Some(&b'/') {
            root().root()
        } else if directory == types::AT_FDCWD {
            process.directory.lock().clone()
        } else {
            let number = usize::try_from(directory).map_err(|_| Errno::EBADF)?;
            let file = process.descriptors.lock().get(number)?.clone();
            file.directory().cloned()?
        };
        Ok(Place { base, path })
    }

    fn look_up(&self, last: LastLink) -> Result<Node, Errno> {
        root().look_up(&self.base, &self.path, last).map_err(errno_of)
    }

    /// Fails with `EROFS` for files of the initramfs: programs are run from there without a copy, and must not change.
    fn refuse_archived(&self, last: LastLink) -> Result<(), Errno> {
        match self.look_up(last) {
            Ok(node) if node.archived_bytes().is_some_and(|bytes| !bytes.is_empty()) => Err(Errno::EROFS),
            _ => Ok(()),
        }
    }
}

/// Returns the account that pays for the names and files of a call.
fn owner(process: &Process) -> Arc<dyn Owner> {
    process.account.clone()
}

fn open_options(flags: u32, mode: u32) -> Result<OpenOptions, Errno> {
    Ok(OpenOptions {
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
    })
}

/// Performs `openat`.
#[inline(never)]
pub(super) fn open(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let flags = call.unsigned(2);
    let place = Place::read(&call, 0, 1)?;
    let options = open_options(flags, call.unsigned(3))?;
    if options.access != Access::Read || options.contents == Contents::Discard {
        place.refuse_archived(options.last_link)?;
    }
    let charge = file::charge(&process.account)?;
    let opened = root().open(&place.base, &place.path, &options, made_by(&owner(process))).map_err(errno_of)?;
    let file = Arc::new(OpenFile::stored(opened, flags & flag::NONBLOCK != 0, charge)?);
    let descriptor = process.descriptors.lock().add(file, flags & flag::CLOEXEC != 0, 0)?;
    Ok(settled(process, call.number, descriptor))
}

/// Performs `close`.
#[inline(never)]
pub(super) fn close(call: Call<'_>) -> Decoding {
    let descriptor = call.descriptor(0)?;
    let file = call.process().descriptors.lock().remove(descriptor)?;
    drop(file);
    Ok(settled(call.process(), call.number, 0))
}

/// Ends a call after which files may be gone: pages of large ones are freed in steps, before it is done.
fn settled(process: &Arc<Process>, call: SystemCall, value: usize) -> Decoded {
    if !remains::are_left() {
        return value.into();
    }
    let process = process.clone();
    kept_steps(call, async move {
        // The call itself was a step.
        steps::pause(&process).await;
        while remains::free_some() {
            steps::pause(&process).await;
        }
        Ok(value)
    })
}

/// Performs `pipe2`.
#[inline(never)]
pub(super) fn pipe(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let flags = call.unsigned(1);
    if flags & !(flag::CLOEXEC | flag::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let [first, second] = make_pipe(process, flags & flag::NONBLOCK != 0, flags & flag::CLOEXEC != 0)?;
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&(first as i32).to_le_bytes());
    bytes[4..].copy_from_slice(&(second as i32).to_le_bytes());
    if let Err(error) = process.copy_out(call.address(0), &bytes) {
        for descriptor in [first, second] {
            let unused = process.descriptors.lock().remove(descriptor);
            drop(unused);
        }
        return Err(error);
    }
    Ok(0.into())
}

/// Makes a pipe; returns the descriptors of its reader and its writer.
fn make_pipe(process: &Process, non_blocking: bool, close: bool) -> Result<[usize; 2], Errno> {
    let (reader_charge, writer_charge) = (file::charge(&process.account)?, file::charge(&process.account)?);
    let (reader, writer) = pipe::pipe(&process.account);
    let mut descriptors = process.descriptors.lock();
    let reader = Arc::new(OpenFile::reader(reader, non_blocking, reader_charge));
    let writer = Arc::new(OpenFile::writer(writer, non_blocking, writer_charge));
    let first = descriptors.add(reader, close, 0)?;
    match descriptors.add(writer, close, 0) {
        Ok(second) => Ok([first, second]),
        Err(error) => {
            let unused = descriptors.remove(first);
            drop(descriptors);
            drop(unused);
            Err(error)
        }
    }
}

/// Performs `dup`.
#[inline(never)]
pub(super) fn duplicate(call: Call<'_>) -> Decoding {
    let descriptor = call.descriptor(0)?;
    let mut descriptors = call.process().descriptors.lock();
    let file = descriptors.get(descriptor)?.clone();
    descriptors.add(file, false, 0).map(Into::into)
}

/// Performs `dup3`.
#[inline(never)]
pub(super) fn duplicate_to(call: Call<'_>) -> Decoding {
    let (old, new, flags) = (call.descriptor(0)?, call.descriptor(1)?, call.unsigned(2));
    if old == new || flags & !flag::CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let replaced = {
        let mut descriptors = call.process().descriptors.lock();
        let file = descriptors.get(old)?.clone();
        descriptors.replace(new, file, flags & flag::CLOEXEC != 0)?
    };
    drop(replaced);
    Ok(settled(call.process(), call.number, new))
}

/// Performs `fcntl`.
#[inline(never)]
pub(super) fn control(call: Call<'_>) -> Decoding {
    let (descriptor, argument) = (call.descriptor(0)?, call.word(2));
    let mut descriptors = call.process().descriptors.lock();
    let file = descriptors.get(descriptor)?.clone();
    match call.unsigned(1) {
        control::DUPFD => descriptors.add(file, false, argument).map(Into::into),
        control::DUPFD_CLOEXEC => descriptors.add(file, true, argument).map(Into::into),
        control::GETFD => {
            let closes = descriptors.closes_on_execute(descriptor)?;
            Ok((usize::from(closes) * control::FD_CLOEXEC as usize).into())
        }
        control::SETFD => {
            let closes = call.unsigned(2) & control::FD_CLOEXEC != 0;
            descriptors.set_close_on_execute(descriptor, closes).map(Into::into)
        }
        control::GETFL => Ok((file.flags() as usize).into()),
        control::SETFL => {
            file.set_flags(call.unsigned(2));
            Ok(0.into())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Performs `ioctl`.
#[inline(never)]
pub(super) fn device_control(call: Call<'_>) -> Decoding {
    call.file(0)?.device_control(call.process(), call.unsigned(1), call.address(2)).map(Into::into)
}

/// Performs `getcwd`: returns the length with the NUL, as the system call does.
#[inline(never)]
pub(super) fn current_directory(call: Call<'_>) -> Decoding {
    let directory = call.process().directory.lock().clone();
    let mut path = root().path_of(&directory).map_err(errno_of)?;
    path.push(0);
    if path.len() > call.length(1) {
        return Err(Errno::ERANGE);
    }
    call.process().copy_out(call.address(0), &path)?;
    Ok(path.len().into())
}

/// Performs `chdir`.
#[inline(never)]
pub(super) fn change_directory(call: Call<'_>) -> Decoding {
    let process = call.process();
    let node =
        Place::of(process, types::AT_FDCWD, process.copy_in_path(call.address(0))?)?.look_up(LastLink::Follow)?;
    if node.kind() != FileKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let old = core::mem::replace(&mut *process.directory.lock(), node);
    drop(old);
    Ok(0.into())
}

/// Performs `mkdirat`.
#[inline(never)]
pub(super) fn make_directory(call: Call<'_>) -> Decoding {
    let owner = owner(call.admitted()?);
    let Place { base, path } = Place::read(&call, 0, 1)?;
    let permissions = (call.unsigned(2) & 0o7777) as u16;
    root().make_directory(&base, &path, permissions, made_by(&owner)).map_err(errno_of)?;
    Ok(0.into())
}

/// Performs `unlinkat`.
#[inline(never)]
pub(super) fn unlink(call: Call<'_>) -> Decoding {
    let flags = call.unsigned(2);
    if flags & !types::AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    let Place { base, path } = Place::read(&call, 0, 1)?;
    match flags & types::AT_REMOVEDIR != 0 {
        true => root().remove_directory(&base, &path, now()),
        false => root().unlink(&base, &path, now()),
    }
    .map_err(errno_of)?;
    Ok(settled(call.process(), call.number, 0))
}

/// Performs `symlinkat`.
#[inline(never)]
pub(super) fn symbolic_link(call: Call<'_>) -> Decoding {
    let owner = owner(call.admitted()?);
    let target = call.process().copy_in_path(call.address(0))?;
    let Place { base, path } = Place::read(&call, 1, 2)?;
    root().make_symbolic_link(&base, &path, &target, made_by(&owner)).map_err(errno_of)?;
    Ok(0.into())
}

/// Performs `linkat`.
#[inline(never)]
pub(super) fn link(call: Call<'_>) -> Decoding {
    /// `AT_SYMLINK_FOLLOW`.
    const FOLLOW: u32 = 0x400;
    let owner = owner(call.admitted()?);
    let flags = call.unsigned(4);
    if flags & !FOLLOW != 0 {
        return Err(Errno::EINVAL);
    }
    let (old, new) = Place::read_two(&call, (0, 1), (2, 3))?;
    let last = if flags & FOLLOW != 0 { LastLink::Follow } else { LastLink::Keep };
    root().link(&old.base, &old.path, last, &new.base, &new.path, made_by(&owner)).map_err(errno_of)?;
    Ok(0.into())
}

/// Performs `renameat2`.
#[inline(never)]
pub(super) fn rename(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let replacement = match call.unsigned(4) {
        0 => Replacement::Replace,
        1 => Replacement::Refuse,
        2 => Replacement::Exchange,
        _ => return Err(Errno::EINVAL),
    };
    let (old, new) = Place::read_two(&call, (0, 1), (2, 3))?;
    let owner = owner(process);
    root().rename(&old.base, &old.path, &new.base, &new.path, replacement, made_by(&owner)).map_err(errno_of)?;
    Ok(settled(process, call.number, 0))
}

/// Performs `readlinkat`: cuts off bytes that do not fit.
#[inline(never)]
pub(super) fn read_link(call: Call<'_>) -> Decoding {
    let process = call.process();
    let path = process.copy_in_path(call.address(1))?;
    if call.signed(3) <= 0 {
        return Err(Errno::EINVAL);
    }
    let node = Place::of(process, call.signed(0), path)?.look_up(LastLink::Keep)?;
    let buffer = call.buffer(2)?;
    let copied = node.read_link(|target| {
        let count = target.len().min(buffer.len());
        process.copy_out(buffer.address(), &target[..count]).map(|()| count)
    });
    copied.map_err(errno_of)?.map(Into::into)
}

/// Performs `faccessat`: everything may be read and written; only the right to execute depends on the file.
#[inline(never)]
pub(super) fn access(call: Call<'_>) -> Decoding {
    let mode = call.unsigned(2);
    if mode & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let node = Place::read(&call, 0, 1)?.look_up(LastLink::Follow)?;
    if mode & 1 != 0 && node.kind() == FileKind::Regular && !node.metadata().is_executable() {
        return Err(Errno::EACCES);
    }
    Ok(0.into())
}

/// Performs `newfstatat`.
#[inline(never)]
pub(super) fn status_at(call: Call<'_>) -> Decoding {
    let (process, directory, flags) = (call.process(), call.signed(0), call.unsigned(3));
    if flags & !(types::AT_SYMLINK_NOFOLLOW | types::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = process.copy_in_path(call.address(1))?;
    let status = if !path.is_empty() || flags & types::AT_EMPTY_PATH == 0 {
        let last = if flags & types::AT_SYMLINK_NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow };
        status_of(&Place::of(process, directory, path)?.look_up(last)?.metadata())
    } else if directory == types::AT_FDCWD {
        status_of(&process.directory.lock().metadata())
    } else {
        call.file(0)?.status()
    };
    process.copy_out(call.address(2), &status.to_bytes()).map(Into::into)
}

/// Performs `fstat`.
#[inline(never)]
pub(super) fn status(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    call.process().copy_out(call.address(1), &file.status().to_bytes()).map(Into::into)
}

/// Performs `ftruncate`.
#[inline(never)]
pub(super) fn truncate(call: Call<'_>) -> Decoding {
    let length = call.offset(1)?;
    let file = call.file(0)?;
    // A file that becomes shorter gives memory back, and needs none.
    if file.length().is_some_and(|now| length > now) {
        call.admitted()?;
    }
    let value = file.truncate(length)?;
    Ok(settled(call.process(), call.number, value))
}

/// Performs `lseek`.
#[inline(never)]
pub(super) fn seek(call: Call<'_>) -> Decoding {
    call.file(0)?.seek(call.word(1) as i64, call.unsigned(2)).map(Into::into)
}

/// Performs `getdents64`.
#[inline(never)]
pub(super) fn read_directory(call: Call<'_>) -> Decoding {
    call.file(0)?.read_directory(call.process(), call.buffer(1)?).map(Into::into)
}
