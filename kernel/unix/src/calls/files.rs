//! The calls on paths and descriptors.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::Ordering;

use abi_unix::types::{self, allocation, block_control, control, file_control, memory_file, open as flag};
use abi_unix::{Errno, SystemCall};
use ext4::{RangeChange, Stamp};
use filesystem::rights::{self, EXECUTE, Ownership, Subject, WRITE};
use filesystem::{
    Access, Contents, Creation, Expect, FileKind, LastComponent, LastLink, MAX_FILE_LENGTH, OpenOptions, Owner,
    RenameSoFar, Replacement, SpecialFile, Timestamp, Writes, seal,
};
use network::ConnectionId;

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoded, Decoding, kept, kept_steps};
use crate::calls::locks::{self, LockCommand};
use crate::calls::messages::require_socket;
use crate::calls::paths::{Effect, follow, follow_to, path_from, read_path, read_path_from_here, read_two_paths};
use crate::files::disk::Synchronisation;
use crate::files::disk_file::DiskFile;
use crate::files::fifo::{FifoOpening, FoundFile, Opening};
use crate::files::file::{self, FileOperations, OpenFile};
use crate::files::generated::{Generated, Target};
use crate::files::mounts::{self, Arrived, Halt, Node, Opened, Path, PathOfPlace, Place};
use crate::files::stored::{Stored, status_of};
use crate::files::tree::{errno_of, made_by, now};
use crate::files::volume::file::VolumeFile;
use crate::files::volume::{self, AttributeChange, Sought, VolumeAnswer, VolumeNode, VolumeRequest};
use crate::files::{devices, disk, owners, pipe, remains};
use crate::network::interfaces;
use crate::network::socket::{self, Socket};
use crate::process::identity::{self, Whom};
use crate::process::user::UserBuffer;
use crate::process::{Process, authority, table, told_owners};
use crate::scheduling::steps;
use crate::time;

/// Fails with `EROFS` for files of the initramfs: programs are run from there without a copy, and must not change.
fn refuse_archived(path: &mut Path, last: LastLink) -> Result<(), Halt> {
    // Files of volumes are not from there.
    if path.is_on_volume() {
        return Ok(());
    }
    // A copy: looking a path up leads it behind the links to other file systems.
    let mut copy = path.copy()?;
    match copy.look_up(last) {
        Ok(place) => match place.node.stored().and_then(|node| node.archived_bytes()) {
            Some(bytes) if !bytes.is_empty() => Err(Errno::EROFS.into()),
            _ => Ok(()),
        },
        Err(Halt::Later) => {
            // The operation itself asks the volume that it has reached.
            copy.forget_errand();
            *path = copy;
            if path.is_on_volume() { Ok(()) } else { Err(Halt::Later) }
        }
        Err(Halt::Failed(_)) => Ok(()),
    }
}

/// Returns the account that pays for the names and files of a call.
pub(super) fn owner(process: &Process) -> Arc<dyn Owner> {
    process.account.clone()
}

/// Returns the permissions of a file that a process makes with this mode.
pub(super) fn permissions_of_new(process: &Process, mode: u32) -> u16 {
    (mode & 0o7777 & !process.creation_mask.load(Ordering::Relaxed)) as u16
}

fn open_options(flags: u32, permissions: u16) -> Result<OpenOptions, Errno> {
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
        permissions,
    })
}

/// Returns the interest of an `open` with these options in the end of its path.
fn last_of(options: &OpenOptions) -> LastComponent {
    match options.creation {
        Creation::Never => LastComponent::File(options.last_link),
        Creation::IfMissing => LastComponent::Made(options.last_link),
        Creation::Always => LastComponent::Made(LastLink::Keep),
    }
}

/// Performs `openat`.
#[inline(never)]
pub(super) fn open(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let opening = match follow_to(&call, read_path(&call, 0, 1)?, Effect::Frees, open_at)? {
        Ok(FoundFile::Descriptor(descriptor)) => return Ok(descriptor.into()),
        Ok(FoundFile::Fifo(opening)) => Opening::Meeting(opening),
        Err(rest) => Opening::Walking(rest),
    };
    Ok(Operation::Open(kept(opening)).into())
}

fn open_at(call: &Call<'_>, [path]: &mut [Path; 1]) -> Result<FoundFile, Halt> {
    let (process, flags) = (call.process(), call.unsigned(2));
    let options = open_options(flags, permissions_of_new(process, call.unsigned(3)))?;
    let writes = options.access != Access::Read || options.contents == Contents::Discard;
    // A file that is made is no archived one.
    if writes && options.creation != Creation::Always {
        refuse_archived(path, options.last_link)?;
    }
    let charge = file::charge(&process.account)?;
    let owner = owner(process);
    let (object, access) = match path.open(&options, last_of(&options), &owner)? {
        Opened::Stored(file, mount) if file.node().kind() == FileKind::Fifo => {
            let place = Place { node: Node::Stored(file.node().clone()), mount };
            let how = (flags & flag::NONBLOCK != 0, flags & flag::CLOEXEC != 0);
            return Ok(FoundFile::Fifo(FifoOpening::begin(place, file.access(), how, &process.account, charge)?));
        }
        Opened::Stored(file, _) if file.node().kind() == FileKind::Socket => return Err(Errno::ENXIO.into()),
        Opened::Stored(file, mount) => {
            let access = file.access();
            (devices::kind_of(process, flags, mount, file)?, access)
        }
        Opened::OnVolume { node, mount, .. } if node.kind() == FileKind::Fifo => {
            let place = Place { node: Node::OnVolume(node), mount };
            let how = (flags & flag::NONBLOCK != 0, flags & flag::CLOEXEC != 0);
            return Ok(FoundFile::Fifo(FifoOpening::begin(place, options.access, how, &process.account, charge)?));
        }
        Opened::OnVolume { node, mount, is_cut } => {
            let file = VolumeFile::open(node, mount, options.access, flags, is_cut, &process.account)?;
            (file as Box<dyn FileOperations>, options.access)
        }
        Opened::Generated(entry, mount) => (Generated::open(entry, mount, process)?, options.access),
        Opened::Same(file) => {
            return Ok(FoundFile::Descriptor(process.descriptors.lock().add(file, flags & flag::CLOEXEC != 0, 0)?));
        }
    };
    let file = Arc::new(OpenFile::of(object, access, flags & flag::NONBLOCK != 0, charge));
    Ok(FoundFile::Descriptor(process.descriptors.lock().add(file, flags & flag::CLOEXEC != 0, 0)?))
}

/// Performs `close`.
#[inline(never)]
pub(super) fn close(call: Call<'_>) -> Decoding {
    let descriptor = call.descriptor(0)?;
    let file = call.process().descriptors.lock().remove(descriptor)?;
    let lingers = match file.as_kind::<Socket>() {
        Some(socket) if Arc::strong_count(&file) == 1 => socket.lingers(),
        _ => None,
    };
    drop(file);
    if let Some((connection, time_ns)) = lingers {
        return Ok(wait_for_delivery(&call, connection, time_ns));
    }
    Ok(settled(call.process(), call.number, 0))
}

/// Waits for the delivery of what a closed connection had to send. Only an end of the process cuts that short, or a
/// lack of memory.
#[cold]
#[inline(never)]
fn wait_for_delivery(call: &Call<'_>, connection: ConnectionId, time_ns: u64) -> Decoded {
    let Ok(reservation) = time::Reservation::new() else { return 0.into() };
    kept_steps(call.number, async move {
        socket::linger(connection, time_ns, reservation).await;
        Ok(0)
    })
}

/// Performs `close_range`, in steps. Descriptors that are opened meanwhile may be closed, too.
#[inline(never)]
pub(super) fn close_range(call: Call<'_>) -> Decoding {
    let (first, last, flags) = (call.unsigned(0) as usize, call.unsigned(1) as usize, call.unsigned(2));
    if first > last || flags & !types::CLOSE_RANGE_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let process = call.process().clone();
    Ok(kept_steps(call.number, async move {
        let mut at = first;
        loop {
            // Dropped outside of the lock.
            let taken = match flags {
                0 => process.descriptors.lock().take_up_to(&mut at, last),
                _ => process.descriptors.lock().mark_up_to(&mut at, last).map(|()| None),
            };
            let Some(taken) = taken else { break };
            drop(taken);
            steps::pause(&process).await;
        }
        remains::free_for(&process).await;
        Ok(0)
    }))
}

/// Ends a call after which files may be gone: pages of large ones are freed in steps, before it is done.
pub(super) fn settled(process: &Arc<Process>, call: SystemCall, value: usize) -> Decoded {
    if !remains::are_left() {
        return value.into();
    }
    let process = process.clone();
    kept_steps(call, async move {
        // The call itself was a step.
        steps::pause(&process).await;
        remains::free_for(&process).await;
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
    let is_non_blocking = flags & flag::NONBLOCK != 0;
    let (reader_charge, writer_charge) = (file::charge(&process.account)?, file::charge(&process.account)?);
    let (reader, writer) = pipe::pipe(&process.account);
    let reader = OpenFile::new(reader, Access::Read, is_non_blocking, reader_charge);
    let writer = OpenFile::new(writer, Access::Write, is_non_blocking, writer_charge);
    add_two(process, [reader, writer], flags & flag::CLOEXEC != 0, call.address(0)).map(Into::into)
}

/// Gives two files that belong together their descriptors, and writes these as two `i32`. Both are closed if that
/// fails.
///
/// The table stays locked until the numbers are written. Otherwise another thread could give one of them to a file of
/// its own, which a failure would then close.
pub(super) fn add_two(process: &Process, files: [OpenFile; 2], close: bool, address: usize) -> Result<usize, Errno> {
    let [first, second] = files.map(Arc::new);
    let mut descriptors = process.descriptors.lock();
    let lower = descriptors.add(first, close, 0)?;
    let higher = descriptors.add(second, close, 0);
    let written = higher.and_then(|higher| {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&(lower as i32).to_le_bytes());
        bytes[4..].copy_from_slice(&(higher as i32).to_le_bytes());
        process.copy_out(address, &bytes)
    });
    if let Err(error) = written {
        let unused = (descriptors.remove(lower), higher.and_then(|higher| descriptors.remove(higher)));
        // The files are closed when no lock is held.
        drop(descriptors);
        drop(unused);
        return Err(error);
    }
    Ok(0)
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
    if let Some(command) = LockCommand::of(call.unsigned(1)) {
        return locks::control(call, command);
    }
    let mut descriptors = call.process().descriptors.lock();
    let file = descriptors.get(descriptor)?.clone();
    use control::{GETOWN, GETOWN_EX, GETSIG, SETOWN, SETOWN_EX, SETSIG};
    if matches!(call.unsigned(1), SETOWN | GETOWN | SETOWN_EX | GETOWN_EX | SETSIG | GETSIG) {
        drop(descriptors);
        return control_owner(&call, &file).map(Into::into);
    }
    if matches!(call.unsigned(1), control::GET_CAPACITY | control::SET_CAPACITY) {
        // The pipe's lock is taken for these.
        drop(descriptors);
        let wanted = (call.unsigned(1) == control::SET_CAPACITY).then(|| call.unsigned(2) as usize);
        return file.object().capacity(&call.process().account, wanted).map(Into::into);
    }
    if matches!(call.unsigned(1), control::GET_SEALS | control::ADD_SEALS) {
        // The file's lock is taken for these.
        drop(descriptors);
        return control_seals(&call, &file).map(Into::into);
    }
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
            drop(descriptors);
            let is_told = call.unsigned(2) & flag::ASYNC != 0;
            file.set_told(&**call.process(), descriptor as i32, is_told).map(Into::into)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Performs `fcntl` on the owner of an open file.
fn control_owner(call: &Call<'_>, file: &OpenFile) -> Result<usize, Errno> {
    let ownership = file.ownership();
    match call.unsigned(1) {
        control::GETOWN => Ok(ownership.owner as isize as usize),
        control::GETSIG => Ok(ownership.signal as usize),
        control::GETOWN_EX => {
            let kind = match ownership.owner {
                ..0 => control::OWNER_GROUP,
                _ if ownership.is_thread => control::OWNER_THREAD,
                _ => control::OWNER_PROCESS,
            };
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&kind.to_le_bytes());
            bytes[4..].copy_from_slice(&ownership.owner.wrapping_abs().to_le_bytes());
            call.process().copy_out(call.address(2), &bytes).map(|()| 0)
        }
        control::SETOWN => {
            let owner = call.signed(2);
            own(call, file, if owner == i32::MIN { return Err(Errno::EINVAL) } else { owner }, false)
        }
        control::SETOWN_EX => {
            let mut bytes = [0; 8];
            call.process().copy_in(call.address(2), &mut bytes)?;
            let word = |at: usize| i32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            let (kind, number) = (word(0), word(4));
            match kind {
                _ if number < 0 => Err(Errno::EINVAL),
                control::OWNER_THREAD => own(call, file, number, true),
                control::OWNER_PROCESS => own(call, file, number, false),
                control::OWNER_GROUP => own(call, file, -number, false),
                _ => Err(Errno::EINVAL),
            }
        }
        _ => {
            let signal = call.unsigned(2);
            if signal > control::LAST_SIGNAL {
                return Err(Errno::EINVAL);
            }
            change_told(call, file, |ownership| ownership.signal = signal)
        }
    }
}

/// Gives an open file an owner: a process, a thread, the negative number of a group, or 0 for none. `ESRCH` if it is
/// not there.
fn own(call: &Call<'_>, file: &OpenFile, owner: i32, is_thread: bool) -> Result<usize, Errno> {
    let number = owner.unsigned_abs();
    let is_there = match owner {
        0 => true,
        1.. if is_thread => told_owners::thread(owner).is_some(),
        1.. => table::find(number).is_some(),
        _ => table::session_of_group(number).is_some(),
    };
    if !is_there {
        return Err(Errno::ESRCH);
    }
    change_told(call, file, |ownership| {
        (ownership.owner, ownership.is_thread) = (owner, is_thread && owner > 0);
    })
}

/// Changes whom an open file tells of its events, with the rights that the caller has now.
fn change_told(call: &Call<'_>, file: &OpenFile, change: impl FnOnce(&mut owners::Ownership)) -> Result<usize, Errno> {
    let process = call.process();
    file.change_ownership(&**process, authority::rights(process), change).map(|()| 0)
}

/// Performs `fcntl` on seals.
fn control_seals(call: &Call<'_>, file: &OpenFile) -> Result<usize, Errno> {
    if call.unsigned(1) == control::GET_SEALS {
        return Ok(file.object().seals()? as usize);
    }
    file.require_writable().map_err(|_| Errno::EPERM)?;
    file.object().add_seals(call.unsigned(2)).map(|()| 0)
}

/// Performs `memfd_create`. The name is checked and has no effect.
#[inline(never)]
pub(super) fn create_memory_file(call: Call<'_>) -> Decoding {
    let (process, flags) = (call.admitted()?, call.unsigned(1));
    if flags & !(memory_file::CLOEXEC | memory_file::ALLOW_SEALING | memory_file::EXECUTE) != 0 {
        return Err(Errno::EINVAL);
    }
    process.copy_in_string(call.address(0), memory_file::LONGEST_NAME, Errno::EINVAL)?;
    let charge = file::charge(&process.account)?;
    let mount = mounts::top().clone();
    let whom = process.whom();
    let made = mount.tree().open_nameless(0o777, identity::subject(&whom), made_by(&owner(process)));
    let stored = made.map_err(errno_of)?;
    if flags & memory_file::ALLOW_SEALING == 0 {
        stored.node().add_seals(seal::SEAL).map_err(errno_of)?;
    }
    let file = Arc::new(OpenFile::new(Stored::new(stored, mount)?, Access::ReadWrite, false, charge));
    process.descriptors.lock().add(file, flags & memory_file::CLOEXEC != 0, 0).map(Into::into)
}

/// Performs `ioctl`.
#[inline(never)]
pub(super) fn device_control(call: Call<'_>) -> Decoding {
    let (file, command, argument) = (call.file(0)?, call.unsigned(1), call.address(2));
    match command {
        file_control::FIOCLEX | file_control::FIONCLEX => {
            let closes = command == file_control::FIOCLEX;
            let mut descriptors = call.process().descriptors.lock();
            return descriptors.set_close_on_execute(call.descriptor(0)?, closes).map(Into::into);
        }
        file_control::FIONBIO => {
            let mut word = [0; 4];
            call.process().copy_in(argument, &mut word)?;
            file.set_non_blocking(word != [0; 4]);
            return Ok(0.into());
        }
        file_control::FIOASYNC => {
            let mut word = [0; 4];
            call.process().copy_in(argument, &mut word)?;
            if file.never_waits() {
                return Err(Errno::ENOTTY);
            }
            return file.set_told(&**call.process(), call.signed(0), word != [0; 4]).map(Into::into);
        }
        file_control::FIONREAD => match file.object().unread() {
            // Terminals have an answer of their own.
            Err(Errno::ENOTTY) => {}
            unread => {
                let count = i32::try_from(unread?).unwrap_or(i32::MAX);
                call.process().copy_out(argument, &count.to_le_bytes())?;
                return Ok(0.into());
            }
        },
        block_control::DISCARD | block_control::FILL_WITH_ZEROS => {
            if let Some(open) = file.as_kind::<DiskFile>() {
                let (process, disk) = (call.process().clone(), open.disk());
                let range = open.range(&*process, argument)?;
                return Ok(kept_steps(call.number, async move {
                    match command {
                        block_control::DISCARD => disk.discard(&*process, range).await?,
                        _ => disk.fill_with_zeros(&*process, range).await?,
                    }
                    Ok(0)
                }));
            }
        }
        _ if interfaces::is_known(command) && require_socket(&file).is_ok() => {
            return interfaces::control(&**call.process(), command, argument).map(Into::into);
        }
        _ => {}
    }
    Ok(Operation::Control { file, command, argument }.into())
}

/// Performs `getcwd`: returns the length with the NUL, as the system call does.
#[inline(never)]
pub(super) fn current_directory(call: Call<'_>) -> Decoding {
    let process = call.process().clone();
    let (address, room) = (call.address(0), call.length(1));
    Ok(kept_steps(call.number, async move {
        let directory = process.directory.lock().clone();
        let mut path = directory.path_in_steps(&process).await?;
        path.push(0);
        if path.len() > room {
            return Err(Errno::ERANGE);
        }
        process.copy_out(address, &path)?;
        Ok(path.len())
    }))
}

/// Performs `chdir`.
#[inline(never)]
pub(super) fn change_directory(call: Call<'_>) -> Decoding {
    // The old one may have been the last use of a mount, of which there are remains then.
    follow(&call, [read_path_from_here(&call, 0)?], Effect::Frees, |call, [path]| {
        let place = path.look_up(LastLink::Follow)?;
        if place.node.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        place.permit(path.subject(), EXECUTE)?;
        let old = core::mem::replace(&mut *call.process().directory.lock(), place);
        drop(old);
        Ok(0)
    })
}

/// Performs `fchdir`.
#[inline(never)]
pub(super) fn change_directory_to(call: Call<'_>) -> Decoding {
    let place = call.file(0)?.object().directory()?;
    place.permit(identity::subject(&call.process().whom()), EXECUTE)?;
    let old = core::mem::replace(&mut *call.process().directory.lock(), place);
    drop(old);
    Ok(settled(call.process(), call.number, 0))
}

/// Performs `mkdirat`.
#[inline(never)]
pub(super) fn make_directory(call: Call<'_>) -> Decoding {
    call.admitted()?;
    follow(&call, [read_path(&call, 0, 1)?], Effect::Keeps, |call, [path]| {
        let owner = owner(call.process());
        // As on Linux, without the bits to set user and group.
        let permissions = permissions_of_new(call.process(), call.unsigned(2)) & 0o1777;
        path.perform(
            LastComponent::Name,
            |mount, base, path| mount.tree().make_directory(base, path, permissions, made_by(&owner)).map(|_| 0),
            |directory, name, _| Ok(VolumeRequest::MakeDirectory(directory, name, permissions)),
        )
    })
}

/// Performs `mknodat`: regular files, FIFOs and names of sockets.
#[inline(never)]
pub(super) fn make_node(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let mode = call.unsigned(2);
    let kind = match mode & types::mode::TYPE {
        0 | types::mode::REGULAR => FileKind::Regular,
        types::mode::PIPE => FileKind::Fifo,
        types::mode::SOCKET => FileKind::Socket,
        // Devices come with the system.
        types::mode::CHARACTER | types::mode::BLOCK | types::mode::DIRECTORY => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    };
    follow(&call, [read_path(&call, 0, 1)?], Effect::Keeps, move |call, [path]| {
        let owner = owner(call.process());
        let permissions = permissions_of_new(call.process(), mode);
        path.perform(
            LastComponent::Name,
            |mount, base, path| {
                let special = match kind {
                    FileKind::Fifo => Some(SpecialFile::Fifo),
                    FileKind::Socket => Some(SpecialFile::Socket),
                    _ => None,
                };
                let made = match special {
                    Some(special) => mount.tree().make_special_file(base, path, special, permissions, made_by(&owner)),
                    None => mount.tree().make_file(base, path, &[], permissions, made_by(&owner)),
                };
                made.map(|_| 0)
            },
            |directory, name, is_directory| match kind {
                _ if is_directory => Err(Errno::ENOENT),
                FileKind::Fifo => Ok(VolumeRequest::MakeSpecial(directory, name, ext4::Special::Fifo, permissions)),
                FileKind::Socket => Ok(VolumeRequest::MakeSpecial(directory, name, ext4::Special::Socket, permissions)),
                _ => Ok(VolumeRequest::Open { directory, name, permissions, must_be_new: true }),
            },
        )
    })
}

/// Performs `unlinkat`.
#[inline(never)]
pub(super) fn unlink(call: Call<'_>) -> Decoding {
    let flags = call.unsigned(2);
    if flags & !types::AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    let is_directory = flags & types::AT_REMOVEDIR != 0;
    follow(&call, [read_path(&call, 0, 1)?], Effect::Frees, move |_, [path]| {
        path.perform(
            LastComponent::Name,
            |mount, base, path| match is_directory {
                true => mount.tree().remove_directory(base, path, now()).map(|()| 0),
                false => mount.tree().unlink(base, path, now()).map(|()| 0),
            },
            |directory, name, has_slash| match has_slash && !is_directory {
                true => Err(Errno::ENOTDIR),
                false => Ok(VolumeRequest::Remove { directory, name, is_directory }),
            },
        )
    })
}

/// Performs `symlinkat`.
#[inline(never)]
pub(super) fn symbolic_link(call: Call<'_>) -> Decoding {
    call.admitted()?;
    follow(&call, [read_path(&call, 1, 2)?], Effect::Keeps, |call, [path]| {
        let owner = owner(call.process());
        let target = call.process().copy_in_path(call.address(0))?;
        path.perform(
            LastComponent::Name,
            |mount, base, path| mount.tree().make_symbolic_link(base, path, &target, made_by(&owner)).map(|_| 0),
            |directory, name, is_directory| match is_directory || target.is_empty() {
                true => Err(Errno::ENOENT),
                false => Ok(VolumeRequest::MakeLink(directory, name, target.clone())),
            },
        )
    })
}

/// Performs `linkat`.
#[inline(never)]
pub(super) fn link(call: Call<'_>) -> Decoding {
    /// `AT_SYMLINK_FOLLOW`.
    const FOLLOW: u32 = 0x400;
    call.admitted()?;
    let flags = call.unsigned(4);
    if flags & !FOLLOW != 0 {
        return Err(Errno::EINVAL);
    }
    let last = if flags & FOLLOW != 0 { LastLink::Follow } else { LastLink::Keep };
    follow(&call, read_two_paths(&call, (0, 1), (2, 3))?, Effect::Keeps, move |call, [old, new]| {
        let owner = owner(call.process());
        let linked = old.perform_with(
            new,
            (last.into(), LastComponent::Name),
            |mount, (old, path), (base, new)| {
                match path {
                    b"" => mount.tree().link_node(old.node, base, new, made_by(&owner)),
                    _ => mount.tree().link(old, path, last, base, new, made_by(&owner)),
                }
                .map(|()| 0)
            },
            |old, new| match (old, new) {
                (Arrived::At(file, _), _) if file.kind() == FileKind::Directory => Err(Errno::EPERM),
                (Arrived::At(..), Arrived::Name(_, _, true)) => Err(Errno::ENOENT),
                (Arrived::At(file, _), Arrived::Name(directory, name, false)) => {
                    Ok(VolumeRequest::Link(file, directory, name))
                }
                _ => Err(Errno::EEXIST),
            },
        );
        match linked {
            // A name that is there counts more than the mount that it is in.
            Err(Halt::Failed(Errno::EXDEV)) => match new.look_up(LastLink::Keep) {
                Err(Halt::Later) => Err(Halt::Later),
                found => Err(if found.is_ok() { Errno::EEXIST } else { Errno::EXDEV }.into()),
            },
            linked => linked,
        }
    })
}

fn is_in_every_directory(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Performs `renameat2`.
#[inline(never)]
pub(super) fn rename(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let replacement = match call.unsigned(4) {
        0 => Replacement::Replace,
        1 => Replacement::Refuse,
        2 => Replacement::Exchange,
        _ => return Err(Errno::EINVAL),
    };
    /// Directories of one part of a walk up; three walks are a step.
    const DIRECTORIES: usize = 256;
    let mut so_far = RenameSoFar::new(DIRECTORIES);
    follow(&call, read_two_paths(&call, (0, 1), (2, 3))?, Effect::Frees, move |call, [old, new]| {
        let owner = owner(call.process());
        old.perform_with(
            new,
            (LastComponent::Name, LastComponent::Name),
            |mount, old, new| {
                mount.tree().rename_in_parts(&mut so_far, old, new, replacement, made_by(&owner)).map(|()| 0)
            },
            |old, new| match (old, new) {
                (Arrived::Name(_, old, _), _) if is_in_every_directory(&old) => Err(Errno::EBUSY),
                (Arrived::Name(from, old, _), Arrived::Name(to, new, _)) => {
                    if is_in_every_directory(&new) && replacement == Replacement::Refuse {
                        return Err(Errno::EEXIST);
                    }
                    let replacement = match replacement {
                        Replacement::Replace => ext4::Replacement::Replace,
                        Replacement::Refuse => ext4::Replacement::Refuse,
                        Replacement::Exchange => ext4::Replacement::Exchange,
                    };
                    Ok(VolumeRequest::Rename([(from, old), (to, new)], replacement))
                }
                (Arrived::Name(..), Arrived::At(..)) if replacement == Replacement::Refuse => Err(Errno::EEXIST),
                _ => Err(Errno::EBUSY),
            },
        )
    })
}

/// Performs `readlinkat`: cuts off bytes that do not fit.
#[inline(never)]
pub(super) fn read_link(call: Call<'_>) -> Decoding {
    let path = read_path(&call, 0, 1)?;
    if call.signed(3) <= 0 {
        return Err(Errno::EINVAL);
    }
    // The text of a link to a file is its path, which is made in several attempts if it is long.
    let mut text = None;
    follow(&call, [path], Effect::Keeps, move |call, [path]| {
        let (process, buffer) = (call.process(), call.buffer(2)?);
        if let Some(text) = &mut text {
            return copy_link_text(process, buffer, text);
        }
        let place = path.look_up(LastLink::Keep)?;
        if let Node::OnVolume(node) = &place.node {
            path.stays_at(&place);
            let VolumeAnswer::Bytes(target, _) = path.ask(node.volume(), || VolumeRequest::ReadLink(node.clone()))?
            else {
                return Err(Errno::EINVAL.into());
            };
            let count = target.len().min(buffer.len());
            process.copy_out(buffer.address(), &target[..count])?;
            return Ok(count);
        }
        let copy = |target: &[u8]| {
            let count = target.len().min(buffer.len());
            process.copy_out(buffer.address(), &target[..count]).map(|()| count)
        };
        let copied = match &place.node {
            Node::Stored(node) => node.read_link(copy).map_err(errno_of)?,
            Node::Generated(entry) => match entry.target(process.id)? {
                Target::Path(target) | Target::File(_, target) => copy(&target),
                Target::Place(place) => {
                    return copy_link_text(process, buffer, text.insert(PathOfPlace::new(&place)));
                }
            },
            Node::OnVolume(_) => Err(Errno::EINVAL),
        };
        Ok(copied?)
    })
}

/// Makes a part of the text of a link to a file, and copies it to a buffer when it is complete.
fn copy_link_text(process: &Process, buffer: UserBuffer, text: &mut PathOfPlace) -> Result<usize, Halt> {
    let text = text.extend_link()?.ok_or(Halt::Later)?;
    let count = text.len().min(buffer.len());
    process.copy_out(buffer.address(), &text[..count])?;
    Ok(count)
}

/// Performs `faccessat` and `faccessat2`: tells what the real user and group may do, or with a flag those that count
/// for files. User 0 may do everything that the file system permits, but execute a file without any bit to execute.
#[inline(never)]
pub(super) fn access(call: Call<'_>) -> Decoding {
    let mode = call.unsigned(2);
    let flags = if call.number == SystemCall::AccessWith { call.unsigned(3) } else { 0 };
    if mode & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let process = call.process();
    let whom = match process.whom() {
        Some(own) if flags & types::AT_EACCESS == 0 => identity::hold(own.as_real(), &process.account)?,
        whom => whom,
    };
    on_place_for(&call, flags & !types::AT_EACCESS, whom, move |_, subject, place| {
        let kind = place.node.kind();
        if mode & 1 != 0 && kind == FileKind::Regular {
            mounts::require_executable(&place.mount)?;
            if !place.metadata().is_executable() {
                return Err(Errno::EACCES);
            }
        }
        if mode & 2 != 0
            && matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::SymbolicLink)
            && place.is_read_only()
        {
            return Err(Errno::EROFS);
        }
        place.permit(subject, mode as u16)?;
        Ok(Acted::Done(0))
    })
}

/// Performs a call on the file of a directory and a path, the first two arguments, for the caller's user; with
/// `AT_EMPTY_PATH` and an empty path on the file that is open there.
fn on_place(
    call: &Call<'_>,
    flags: u32,
    act: impl Fn(&Call<'_>, Option<&Subject>, &Place) -> Result<Acted, Errno> + Copy + Send + 'static,
) -> Decoding {
    on_place_for(call, flags, call.process().whom(), act)
}

/// Performs it for a user.
fn on_place_for(
    call: &Call<'_>,
    flags: u32,
    whom: Whom,
    act: impl Fn(&Call<'_>, Option<&Subject>, &Place) -> Result<Acted, Errno> + Copy + Send + 'static,
) -> Decoding {
    if flags & !(types::AT_SYMLINK_NOFOLLOW | types::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = call.process().copy_in_path(call.address(1))?;
    if path.is_empty() && flags & types::AT_EMPTY_PATH != 0 {
        let place = match call.signed(0) {
            types::AT_FDCWD => call.process().directory.lock().clone(),
            _ => place_of(&*call.file(0)?)?,
        };
        return decoded(call, act(call, identity::subject(&whom), &place)?);
    }
    let (path, last) = (path_from(call.process(), call.signed(0), path)?.seen_by(whom), last_link(flags));
    follow(call, [path], Effect::Keeps, move |call, [path]| {
        // A second attempt has the answer of a volume.
        let place = path.look_up(last)?;
        match act(call, path.subject(), &place)? {
            Acted::Done(value) => Ok(value),
            Acted::Asks(node, request) => {
                path.stays_at(&place);
                path.ask(node.volume(), || request).map(|_| 0)
            }
        }
    })
}

/// Outcome of an act on a file.
enum Acted {
    Done(usize),
    /// The file's volume is to do this.
    Asks(VolumeNode, VolumeRequest),
}

/// Ends a call on an open file with the outcome of its act.
fn decoded(call: &Call<'_>, acted: Acted) -> Decoding {
    match acted {
        Acted::Done(value) => Ok(value.into()),
        Acted::Asks(node, request) => submitted(call, &node, request),
    }
}

/// Ends a call with a request to the volume of a file, for whose end it waits.
fn submitted(call: &Call<'_>, node: &VolumeNode, request: VolumeRequest) -> Decoding {
    let process = call.process();
    let submission = node.volume().submit_for(process.whom(), (&process.account, process.id), request)?;
    Ok(kept_steps(call.number, async move { submission.answer().await.map(|_| 0) }))
}

/// Returns the file of a volume, if it is one that is open.
fn on_volume(file: &OpenFile) -> Option<&VolumeNode> {
    file.as_kind::<VolumeFile>().map(VolumeFile::node)
}

/// Returns the treatment of a link at the end of a path, for a call with these flags.
fn last_link(flags: u32) -> LastLink {
    if flags & types::AT_SYMLINK_NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow }
}

/// Returns the stored file or directory that is open. `EOPNOTSUPP` for pipes, sockets and devices, whose attributes are
/// fixed.
fn place_of(file: &OpenFile) -> Result<Place, Errno> {
    file.object().place().ok_or(Errno::EOPNOTSUPP)
}

/// Returns the file, if its attributes can be changed: `EROFS` on a read-only mount, `EPERM` for a generated file.
fn changeable(place: &Place) -> Result<&filesystem::Node, Errno> {
    if place.is_read_only() {
        return Err(Errno::EROFS);
    }
    place.node.stored().ok_or(Errno::EPERM)
}

/// Gives a file other permissions, for a user.
fn give_permissions(subject: Option<&Subject>, place: &Place, permissions: u32) -> Result<Acted, Errno> {
    if place.node.kind() == FileKind::SymbolicLink {
        return Err(Errno::EOPNOTSUPP);
    }
    let permissions = (permissions & 0o7777) as u16;
    if let Node::OnVolume(node) = &place.node {
        return change(place, node, AttributeChange::Permissions(permissions));
    }
    let changed = changeable(place)?.change_ownership(now(), |file| {
        let permissions = rights::changed_permissions(subject, file, permissions)?;
        Ok(Ownership { permissions, ..file })
    });
    changed.map_err(errno_of)?;
    Ok(Acted::Done(0))
}

/// Changes attributes of a file on a volume, which knows whether its caller may.
fn change(place: &Place, node: &VolumeNode, change: AttributeChange) -> Result<Acted, Errno> {
    if place.is_read_only() {
        return Err(Errno::EROFS);
    }
    Ok(Acted::Asks(node.clone(), VolumeRequest::Change(node.clone(), change)))
}

/// Performs `fchmod`.
#[inline(never)]
pub(super) fn change_mode(call: Call<'_>) -> Decoding {
    let (place, whom) = (place_of(&*call.file(0)?)?, call.process().whom());
    decoded(&call, give_permissions(identity::subject(&whom), &place, call.unsigned(1))?)
}

/// Performs `fchmodat` and `fchmodat2`.
#[inline(never)]
pub(super) fn change_mode_at(call: Call<'_>) -> Decoding {
    let flags = if call.number == SystemCall::ChangeModeWith { call.unsigned(3) } else { 0 };
    on_place(&call, flags, |call, subject, place| give_permissions(subject, place, call.unsigned(2)))
}

/// Gives a file to a user and a group, given by these arguments, of which -1 leaves one as it is.
fn give_to(
    call: &Call<'_>,
    subject: Option<&Subject>,
    place: &Place,
    user: usize,
    group: usize,
) -> Result<Acted, Errno> {
    let [user, group] = [user, group].map(|id| Some(call.unsigned(id)).filter(|id| *id != u32::MAX));
    if let Node::OnVolume(node) = &place.node {
        return change(place, node, AttributeChange::Owner(user, group));
    }
    let kind = place.node.kind();
    let changed =
        changeable(place)?.change_ownership(now(), |file| rights::changed_owner(subject, file, kind, user, group));
    changed.map_err(errno_of)?;
    Ok(Acted::Done(0))
}

/// Performs `fchown`.
#[inline(never)]
pub(super) fn change_owner(call: Call<'_>) -> Decoding {
    let (place, whom) = (place_of(&*call.file(0)?)?, call.process().whom());
    decoded(&call, give_to(&call, identity::subject(&whom), &place, 1, 2)?)
}

/// Performs `fchownat`.
#[inline(never)]
pub(super) fn change_owner_at(call: Call<'_>) -> Decoding {
    on_place(&call, call.unsigned(4), |call, subject, place| give_to(call, subject, place, 2, 3))
}

/// Performs `utimensat`.
#[inline(never)]
pub(super) fn set_times(call: Call<'_>) -> Decoding {
    let now = now();
    let mut times = [Some(now); 2];
    // Both are the present: users that may write to the file may set them.
    let mut are_present = true;
    if call.address(2) != 0 {
        let mut bytes = [0; 32];
        call.process().copy_in(call.address(2), &mut bytes)?;
        let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        for (index, time) in times.iter_mut().enumerate() {
            are_present &= word(16 * index + 8) == types::UTIME_NOW;
            *time = match (word(16 * index), word(16 * index + 8)) {
                (_, types::UTIME_NOW) => Some(now),
                (_, types::UTIME_OMIT) => None,
                (seconds, ns @ 0..=999_999_999) => Some(Timestamp { seconds, nanoseconds: ns as u32 }),
                _ => return Err(Errno::EINVAL),
            };
        }
        if times == [None; 2] {
            return Ok(0.into());
        }
    }
    let set = move |subject: Option<&Subject>, place: &Place| {
        if let Node::OnVolume(node) = &place.node {
            let times =
                times.map(|time| time.map(|time| Stamp { seconds: time.seconds, nanoseconds: time.nanoseconds }));
            return change(place, node, AttributeChange::Times(times, are_present));
        }
        let node = changeable(place)?;
        rights::permit_times(subject, node.ownership(), are_present).map_err(errno_of)?;
        node.set_times(times[0], times[1], now);
        Ok(Acted::Done(0))
    };
    match (call.address(1), call.signed(0)) {
        (0, types::AT_FDCWD) => Err(Errno::EFAULT),
        (0, _) if call.unsigned(3) != 0 => Err(Errno::EINVAL),
        (0, _) => {
            let (place, whom) = (place_of(&*call.file(0)?)?, call.process().whom());
            decoded(&call, set(identity::subject(&whom), &place)?)
        }
        _ => on_place(&call, call.unsigned(3), move |_, subject, place| set(subject, place)),
    }
}

/// Performs `umask`.
#[inline(never)]
pub(super) fn set_creation_mask(call: Call<'_>) -> Decoding {
    let old = call.process().creation_mask.swap(call.unsigned(0) & 0o777, Ordering::Relaxed);
    Ok((old as usize).into())
}

/// Performs `fsync` and `fdatasync`.
#[inline(never)]
pub(super) fn synchronise(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    if let Some(disk) = file.as_kind::<DiskFile>().map(DiskFile::disk) {
        let wait = kept(Synchronisation::new(call.number, Some(disk)));
        return Ok(Operation::Synchronise { file: Some(file), wait }.into());
    }
    if let Some(node) = on_volume(&file) {
        let request = match call.number {
            SystemCall::SynchroniseData => VolumeRequest::SynchroniseData(node.clone()),
            _ => VolumeRequest::Synchronise(Some(node.clone())),
        };
        let submission = node.volume().submit(&call.process().account, call.process().id, request)?;
        return Ok(kept_steps(call.number, async move {
            let done = submission.answer().await;
            file.as_kind::<VolumeFile>().map_or(Ok(()), VolumeFile::report_failures)?;
            done.map(|_| 0)
        }));
    }
    let place = place_of(&file).map_err(|_| Errno::EINVAL)?;
    let node = place.node.stored().filter(|node| node.kind() != FileKind::Fifo).ok_or(Errno::EINVAL)?;
    if node.object().is_some() { Err(Errno::EINVAL) } else { Ok(0.into()) }
}

/// Performs `sync`.
#[inline(never)]
pub(super) fn synchronise_all(call: Call<'_>) -> Decoding {
    if disk::all().is_empty() {
        return Ok(0.into());
    }
    let (process, number) = (call.process().clone(), call.number);
    if volume::all().is_empty() {
        return Ok(Operation::Synchronise { file: None, wait: kept(Synchronisation::new(number, None)) }.into());
    }
    Ok(kept_steps(number, async move {
        // As on Linux, failures are told to those who have the files.
        let _ = volume::synchronise_all(&process.account, process.id).await;
        disk::synchronise_all().await;
        Ok(0)
    }))
}

/// Performs `syncfs`.
#[inline(never)]
pub(super) fn synchronise_file_system(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    match file.object().mount().and_then(|mount| mount.volume()) {
        Some(volume) => {
            let submission =
                volume.submit(&call.process().account, call.process().id, VolumeRequest::Synchronise(None))?;
            Ok(kept_steps(call.number, async move {
                let done = submission.answer().await;
                file.as_kind::<VolumeFile>().map_or(Ok(()), VolumeFile::report_failures_of_all)?;
                done.map(|_| 0)
            }))
        }
        None => Ok(0.into()),
    }
}

/// Performs `sync_file_range`.
#[inline(never)]
pub(super) fn synchronise_range(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    let (start, length) = (call.word(1) as i64, call.word(2) as i64);
    if start < 0 || length < 0 || start.checked_add(length).is_none() || call.unsigned(3) > types::SYNC_FILE_RANGE {
        return Err(Errno::EINVAL);
    }
    if file.as_kind::<DiskFile>().is_none() {
        require_file(&file, Errno::ESPIPE)?;
    }
    // Without a flag nothing is asked for.
    if call.unsigned(3) == 0 { Ok(0.into()) } else { synchronise(call) }
}

/// Performs `readahead`.
#[inline(never)]
pub(super) fn read_ahead(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    file.require_readable()?;
    if !file.is_regular() && file.as_kind::<DiskFile>().is_none() {
        return Err(Errno::EINVAL);
    }
    call.offset(1)?;
    Ok(0.into())
}

/// Fails with this error if a descriptor leads to nothing that has a place in a tree of files, or to a FIFO.
fn require_file(file: &OpenFile, error: Errno) -> Result<(), Errno> {
    let place = place_of(file).ok().filter(|place| place.node.kind() != FileKind::Fifo);
    place.map(drop).ok_or(error)
}

/// Performs `fadvise64`.
#[inline(never)]
pub(super) fn advise(call: Call<'_>) -> Decoding {
    require_file(&*call.file(0)?, Errno::ESPIPE)?;
    if (call.word(2) as i64) < 0 || call.unsigned(3) > types::advice::LAST_OF_FILES {
        return Err(Errno::EINVAL);
    }
    Ok(0.into())
}

/// Performs `truncate`.
#[inline(never)]
pub(super) fn truncate_at(call: Call<'_>) -> Decoding {
    let length = call.offset(1)?;
    follow(&call, [read_path_from_here(&call, 0)?], Effect::Frees, move |call, [path]| {
        refuse_archived(path, LastLink::Follow)?;
        let place = path.look_up(LastLink::Follow)?;
        if let Node::OnVolume(node) = &place.node {
            match node.kind() {
                FileKind::Regular if place.is_read_only() => return Err(Errno::EROFS.into()),
                FileKind::Regular if node.writers().are_denied() => return Err(Errno::ETXTBSY.into()),
                FileKind::Regular => {}
                FileKind::Directory => return Err(Errno::EISDIR.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            place.permit(path.subject(), WRITE)?;
            path.stays_at(&place);
            return path.ask(node.volume(), || VolumeRequest::Truncate(node.clone(), length)).map(|_| 0);
        }
        let node = changeable(&place)?;
        if matches!(node.kind(), FileKind::Regular) {
            place.permit(path.subject(), WRITE)?;
        }
        if node.are_writers_denied() {
            return Err(Errno::ETXTBSY.into());
        }
        if node.kind() == FileKind::Regular && length > node.metadata().size {
            call.admitted()?;
        }
        node.truncate(length, now()).map_err(errno_of)?;
        if path.subject().is_some_and(|subject| !subject.is_root()) {
            node.written_by_others();
        }
        Ok(0)
    })
}

/// Writes the status of the file at a path, or of an open file if the path is empty and the flags permit that.
fn write_status(call: &Call<'_>, flags: u32, write: fn(&Call<'_>, &types::Status) -> Result<usize, Errno>) -> Decoding {
    let (process, directory) = (call.process(), call.signed(0));
    // Nothing is mounted automatically.
    if flags & !(types::AT_SYMLINK_NOFOLLOW | types::AT_EMPTY_PATH | types::AT_NO_AUTOMOUNT) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = process.copy_in_path(call.address(1))?;
    if path.is_empty() && flags & types::AT_EMPTY_PATH != 0 {
        let status = match directory {
            types::AT_FDCWD => status_of(&process.directory.lock()),
            _ => call.file(0)?.object().status(),
        };
        return write(call, &status).map(Into::into);
    }
    let (path, last) = (path_from(process, directory, path)?, last_link(flags));
    follow(call, [path], Effect::Keeps, move |call, [path]| Ok(write(call, &status_of(&path.look_up(last)?))?))
}

/// Performs `newfstatat`.
#[inline(never)]
pub(super) fn status_at(call: Call<'_>) -> Decoding {
    write_status(&call, call.unsigned(3), |call, status| {
        call.process().copy_out(call.address(2), &status.to_bytes()).map(|()| 0)
    })
}

/// Performs `fstat`.
#[inline(never)]
pub(super) fn status(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    call.process().copy_out(call.address(1), &file.object().status().to_bytes()).map(Into::into)
}

/// Performs `statx`: gives the basic fields, whatever the mask is.
#[inline(never)]
pub(super) fn extended_status(call: Call<'_>) -> Decoding {
    /// `AT_STATX_SYNC_TYPE`: the file system has no other state than the one in memory.
    const SYNCHRONISATION: u32 = 0x6000;
    write_status(&call, call.unsigned(2) & !SYNCHRONISATION, |call, status| {
        call.process().copy_out(call.address(4), &status.to_extended_bytes()).map(|()| 0)
    })
}

/// Performs `ftruncate`.
#[inline(never)]
pub(super) fn truncate(call: Call<'_>) -> Decoding {
    let length = call.offset(1)?;
    let file = call.file(0)?;
    file.require_writable().map_err(|_| Errno::EINVAL)?;
    // A file that becomes shorter gives memory back, and needs none.
    if file.object().length().is_some_and(|now| length > now) {
        call.admitted()?;
    }
    if let Some(node) = on_volume(&file) {
        return submitted(&call, node, VolumeRequest::Truncate(node.clone(), length));
    }
    let value = file.object().truncate(length)?;
    Ok(settled(call.process(), call.number, value))
}

/// Performs `fallocate`, in steps: makes pages or blocks, zeros, or a hole (`FALLOC_FL_PUNCH_HOLE`).
#[inline(never)]
pub(super) fn allocate(call: Call<'_>) -> Decoding {
    let mode = call.unsigned(1);
    let (offset, length) = (call.offset(2)?, call.offset(3)?);
    if length == 0 {
        return Err(Errno::EINVAL);
    }
    let keeps_size = mode & allocation::KEEP_SIZE != 0;
    let growth = if keeps_size { ext4::Growth::Keep } else { ext4::Growth::Grow };
    let change = match mode & !allocation::KEEP_SIZE {
        0 => RangeChange::Reserve(growth),
        allocation::ZERO_RANGE => RangeChange::Zero(growth),
        allocation::PUNCH_HOLE if keeps_size => RangeChange::Punch,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    call.admitted()?;
    let file = call.file(0)?;
    file.require_writable()?;
    let kind = file.object().status().mode & types::mode::TYPE;
    if kind == types::mode::PIPE {
        return Err(Errno::ESPIPE);
    }
    let place = place_of(&file).ok().filter(|_| kind == types::mode::REGULAR).ok_or(Errno::ENODEV)?;
    let end = offset + length;
    if end > MAX_FILE_LENGTH {
        return Err(Errno::EFBIG);
    }
    if let Some(node) = on_volume(&file) {
        return submitted(&call, node, VolumeRequest::ChangeRange(node.clone(), offset..end, change));
    }
    // As tmpfs of Linux, files in memory have no other zeros than those of holes.
    let has_bytes = place.node.stored().is_some_and(|node| node.object().is_none());
    if !has_bytes || matches!(change, RangeChange::Zero(_)) {
        return Err(Errno::EOPNOTSUPP);
    }
    let makes_pages = change != RangeChange::Punch;
    // As on Linux, what is larger than the file system is not even begun.
    if makes_pages && length > place.mount.tree().usage().limit {
        return Err(Errno::ENOSPC);
    }
    let process = call.process().clone();
    Ok(kept_steps(call.number, async move {
        // Open to the end: its tree cannot become read-only meanwhile.
        let _file = file;
        let node = place.node.stored().ok_or(Errno::ENODEV)?;
        if process.whom().is_some_and(|whom| !whom.files.is_root()) {
            node.written_by_others();
        }
        if makes_pages {
            let pages = offset / filesystem::PAGE_SIZE as u64..end.div_ceil(filesystem::PAGE_SIZE as u64);
            make_pages(&process, node, pages).await?;
            if !keeps_size {
                node.extend(end, now()).map_err(errno_of)?;
            }
        } else {
            let (owner, mut at) = (owner(&process), offset);
            while at < end {
                at = node.punch_hole(Some(&owner), at, end, now()).map_err(errno_of)?;
                steps::pause(&process).await;
            }
        }
        Ok(0)
    }))
}

/// Makes pages of a file, all of them or none.
async fn make_pages(process: &Arc<Process>, node: &filesystem::Node, pages: Range<u64>) -> Result<(), Errno> {
    /// Pages of a step.
    const PAGES: u64 = (steps::BYTES / filesystem::PAGE_SIZE) as u64;
    let owner = owner(process);
    let mut reached = pages.start;
    let made = loop {
        if process.has_ended() {
            break Err(Errno::EINTR);
        }
        let end = pages.end.min(reached + PAGES);
        let step = (reached..end).try_for_each(|page| {
            process.account.admit()?;
            node.allocate_page(Some(&owner), page).map_err(errno_of)
        });
        reached = end;
        if step.is_err() || end == pages.end {
            break step;
        }
        steps::pause(process).await;
    };
    if made.is_err() {
        // Pages that others have used meanwhile stay.
        let mut at = pages.start;
        while at < reached {
            at = node.take_back_pages(at, reached).map_err(errno_of)?;
            steps::pause(process).await;
        }
    }
    made
}

/// Performs `lseek`.
#[inline(never)]
pub(super) fn seek(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    match call.unsigned(2) {
        types::SEEK_DATA if file.is_regular() => seek_bytes(&call, file, Sought::Data),
        types::SEEK_HOLE if file.is_regular() => seek_bytes(&call, file, Sought::Hole),
        whence => file.object().seek(call.word(1) as i64, whence).map(Into::into),
    }
}

/// Moves the position of a regular file to the next byte that is in a hole or in none, in steps.
#[cold]
fn seek_bytes(call: &Call<'_>, file: Arc<OpenFile>, sought: Sought) -> Decoding {
    /// Stretches of a step.
    const STRETCHES: usize = 16;
    let from = u64::try_from(call.word(1) as i64).map_err(|_| Errno::ENXIO)?;
    let moved = |file: &OpenFile, to: u64| file.object().seek(to as i64, types::SEEK_SET);
    if let Some(node) = on_volume(&file) {
        let (process, request) = (call.process(), VolumeRequest::Find(node.clone(), from, sought));
        let submission = node.volume().submit_for(process.whom(), (&process.account, process.id), request)?;
        return Ok(kept_steps(call.number, async move {
            let VolumeAnswer::Place(place) = submission.answer().await? else { return Err(Errno::EIO) };
            moved(&file, place)
        }));
    }
    // Those of generated files are not known.
    let place = place_of(&file).ok().filter(|place| place.node.stored().is_some()).ok_or(Errno::EINVAL)?;
    let process = call.process().clone();
    Ok(kept_steps(call.number, async move {
        let node = place.node.stored().ok_or(Errno::EINVAL)?;
        let mut at = from;
        for number in 1.. {
            match node.stretch(at).map_err(errno_of)? {
                None if at > from && sought == Sought::Hole => break,
                None => return Err(Errno::ENXIO),
                Some(stretch) if stretch.is_hole == (sought == Sought::Hole) => break,
                Some(stretch) => at = stretch.end,
            }
            if number % STRETCHES == 0 {
                steps::pause(&process).await;
            }
        }
        moved(&file, at)
    }))
}

/// Performs `getdents64`.
#[inline(never)]
pub(super) fn read_directory(call: Call<'_>) -> Decoding {
    let (file, buffer) = (call.file(0)?, call.buffer(1)?);
    let Some(node) = on_volume(&file) else {
        return file.object().read_directory(&**call.process(), buffer).map(Into::into);
    };
    if node.kind() != FileKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let process = call.process().clone();
    Ok(kept_steps(call.number, async move {
        let listing = file.as_kind::<VolumeFile>().ok_or(Errno::ENOTDIR)?;
        let (place, exact) = listing.listed_up_to();
        let request = VolumeRequest::List(listing.node().clone(), place, exact, steps::ENTRIES);
        let VolumeAnswer::Entries(entries) = listing.submit(&*process, request)?.answer().await? else { return Ok(0) };
        listing.write_entries(&*process, buffer, &entries)
    }))
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::process::user::LONGEST_PATH;
    use crate::testing::{DATA, Program, run};

    const HERE: usize = types::AT_FDCWD as usize;

    fn path(program: &mut Program, path: &str) -> usize {
        program.store(format!("{path}\0").as_bytes())
    }

    fn open(program: &mut Program, name: &str, flags: u32) -> Result<usize, Errno> {
        let name = path(program, name);
        program.call(SystemCall::Open, [HERE, name, flags as usize, 0o644])
    }

    fn unlink(program: &mut Program, name: &str, flags: u32) -> Result<usize, Errno> {
        let name = path(program, name);
        program.call(SystemCall::Unlink, [HERE, name, flags as usize])
    }

    fn mkdir(program: &mut Program, name: &str) -> Result<usize, Errno> {
        let name = path(program, name);
        program.call(SystemCall::MakeDirectory, [HERE, name, 0o755])
    }

    fn rename(program: &mut Program, old: &str, new: &str, flags: usize) -> Result<usize, Errno> {
        let (old, new) = (path(program, old), path(program, new));
        program.call(SystemCall::Rename, [HERE, old, HERE, new, flags])
    }

    /// Returns the contents of a file; `None` if there is none.
    fn contents(program: &mut Program, name: &str) -> Option<Vec<u8>> {
        let file = open(program, name, flag::RDONLY).ok()?;
        let bytes = program.read_from(file, 100).unwrap();
        program.close(file).unwrap();
        Some(bytes)
    }

    fn create(program: &mut Program, name: &str, text: &[u8]) {
        let file = open(program, name, flag::RDWR | flag::CREAT).unwrap();
        program.write_to(file, text).unwrap();
        program.close(file).unwrap();
    }

    #[test]
    fn holes_are_found_in_files_in_memory_and_on_a_volume() {
        use crate::files::volume::tests::in_memory_and_on_a_volume;
        use abi_unix::types::protection;

        const PAGE: usize = filesystem::PAGE_SIZE;
        const SHARED: usize = 1;
        const POPULATE: usize = 0x8000;

        fn check(program: &mut Program) {
            let file = open(program, "/tmp/volume/sparse", types::open::CREAT | types::open::RDWR).unwrap();
            let seek = |program: &mut Program, at: usize, whence: u32| {
                program.call(SystemCall::Seek, [file, at, whence as usize])
            };
            let data = |program: &mut Program, at| seek(program, at, types::SEEK_DATA);
            let hole = |program: &mut Program, at| seek(program, at, types::SEEK_HOLE);
            for at in [0, 1, usize::MAX] {
                assert_eq!((data(program, at), hole(program, at)), (Err(Errno::ENXIO), Err(Errno::ENXIO)));
            }
            assert_eq!(seek(program, 0, 5), Err(Errno::EINVAL));
            let byte = program.store(b"x");
            for at in [3 * PAGE + 5, 200 * PAGE] {
                assert_eq!(program.call(SystemCall::WriteAt, [file, byte, 1, at]), Ok(1));
            }
            let end = 200 * PAGE + 1;
            assert_eq!((data(program, 7), hole(program, 7)), (Ok(3 * PAGE), Ok(7)));
            assert_eq!((data(program, 3 * PAGE + 9), hole(program, 3 * PAGE + 9)), (Ok(3 * PAGE + 9), Ok(4 * PAGE)));
            assert_eq!((data(program, 4 * PAGE), hole(program, 200 * PAGE)), (Ok(200 * PAGE), Ok(end)));
            assert_eq!(seek(program, 0, types::SEEK_CUR), Ok(end), "the position is there");
            assert_eq!((data(program, end), hole(program, end)), (Err(Errno::ENXIO), Err(Errno::ENXIO)));
            assert_eq!(seek(program, 0, types::SEEK_CUR), Ok(end));
            // Room that is reserved has no bytes, and a part that was freed has none any more.
            let allocate = |program: &mut Program, mode: u32, at: usize, length: usize| {
                program.call(SystemCall::Allocate, [file, mode as usize, at, length])
            };
            assert_eq!(allocate(program, 0, 10 * PAGE, 100 * PAGE), Ok(0));
            assert_eq!((data(program, 4 * PAGE), hole(program, 10 * PAGE)), (Ok(200 * PAGE), Ok(10 * PAGE)));
            assert_eq!(allocate(program, allocation::PUNCH_HOLE | allocation::KEEP_SIZE, 0, 150 * PAGE), Ok(0));
            assert_eq!((data(program, 0), hole(program, 3 * PAGE)), (Ok(200 * PAGE), Ok(3 * PAGE)));
            // A store to a hole makes bytes, before the file is written too.
            let access = (protection::READ | protection::WRITE) as usize;
            let place =
                program.call(SystemCall::Map, [0, 2 * PAGE, access, SHARED | POPULATE, file, 20 * PAGE]).unwrap();
            program.write(place + PAGE + 8, b"stored");
            // The page before has memory because it is mapped, and may be called data.
            assert!([20 * PAGE, 21 * PAGE].contains(&data(program, 0).unwrap()));
            assert_eq!((data(program, 21 * PAGE), hole(program, 21 * PAGE)), (Ok(21 * PAGE), Ok(22 * PAGE)));
            program.call(SystemCall::Unmap, [place, 2 * PAGE]).unwrap();
            program.call(SystemCall::SynchroniseFile, [file]).unwrap();
            assert_eq!((data(program, 21 * PAGE), hole(program, 21 * PAGE)), (Ok(21 * PAGE), Ok(22 * PAGE)));
            // Nothing but a hole is left.
            assert_eq!(program.call(SystemCall::Truncate, [file, 20 * PAGE]), Ok(0));
            assert_eq!((data(program, 0), hole(program, 5)), (Err(Errno::ENXIO), Ok(5)));
            program.close(file).unwrap();
            assert_eq!(unlink(program, "/tmp/volume/sparse", 0), Ok(0));
        }

        in_memory_and_on_a_volume(check);
    }

    #[test]
    fn files_without_stored_bytes_have_no_holes() {
        run(|program| {
            for (name, error) in [("/proc/meminfo", Errno::EINVAL), ("/tmp", Errno::EINVAL)] {
                let file = open(program, name, 0).unwrap();
                for whence in [types::SEEK_DATA, types::SEEK_HOLE] {
                    assert_eq!(program.call(SystemCall::Seek, [file, 0, whence as usize]), Err(error), "{name}");
                }
            }
            let (reader, _) = program.pipe(0);
            assert_eq!(program.call(SystemCall::Seek, [reader, 0, 3]), Err(Errno::ESPIPE));
        });
    }

    #[test]
    fn open_creates_cuts_off_and_refuses_as_its_flags_say() {
        run(|program| {
            assert_eq!(open(program, "/tmp/one", flag::RDWR), Err(Errno::ENOENT));
            create(program, "/tmp/one", b"text");
            assert_eq!(open(program, "/tmp/one", flag::RDWR | flag::CREAT | flag::EXCL), Err(Errno::EEXIST));
            assert_eq!(open(program, "/tmp/one", flag::RDONLY | flag::DIRECTORY), Err(Errno::ENOTDIR));
            assert_eq!(open(program, "/tmp", flag::RDWR), Err(Errno::EISDIR));
            assert_eq!(open(program, "/tmp/one", flag::ACCESS_MODE), Err(Errno::EINVAL));
            assert_eq!(contents(program, "/tmp/one"), Some(b"text".to_vec()));
            let file = open(program, "/tmp/one", flag::WRONLY | flag::TRUNC).unwrap();
            assert_eq!(contents(program, "/tmp/one"), Some(vec![]));
            program.close(file).unwrap();
            // Files of the initramfs stay as they are.
            for flags in [flag::RDWR, flag::WRONLY, flag::RDONLY | flag::TRUNC] {
                assert_eq!(open(program, "/bin/test", flags), Err(Errno::EROFS));
            }
            assert_eq!(unlink(program, "/tmp/one", 0), Ok(0));
            assert_eq!(unlink(program, "/tmp/one", 0), Err(Errno::ENOENT));
            assert_eq!(unlink(program, "/tmp/one", 1), Err(Errno::EINVAL));
        });
    }

    #[test]
    fn paths_are_read_from_the_process_up_to_their_end() {
        run(|program| {
            assert_eq!(program.call(SystemCall::Open, [HERE, 0x1000, 0, 0]), Err(Errno::EFAULT));
            let unterminated = DATA + crate::testing::LENGTH - 4;
            program.write(unterminated, b"/tmp");
            assert_eq!(program.call(SystemCall::Open, [HERE, unterminated, 0, 0]), Err(Errno::EFAULT));
            program.write(unterminated, b"/.\0x");
            assert!(program.call(SystemCall::Open, [HERE, unterminated, 0, 0]).is_ok());
            let longest = "/.".repeat((LONGEST_PATH - 2) / 2);
            assert!(open(program, &longest, 0).is_ok());
            assert_eq!(open(program, &format!("{longest}/."), 0), Err(Errno::ENAMETOOLONG));
            assert_eq!(open(program, "", 0), Err(Errno::ENOENT));
            assert_eq!(open(program, &format!("/tmp/{}", "n".repeat(256)), flag::CREAT), Err(Errno::ENAMETOOLONG));
        });
    }

    #[test]
    fn relative_paths_begin_at_the_working_directory_or_a_descriptor() {
        run(|program| {
            mkdir(program, "/tmp/base").unwrap();
            create(program, "/tmp/base/file", b"found");
            let base = open(program, "/tmp/base", flag::DIRECTORY).unwrap();
            let file = path(program, "file");
            assert!(program.call(SystemCall::Open, [base, file, 0, 0]).is_ok());
            assert_eq!(program.call(SystemCall::Open, [HERE, file, 0, 0]), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::Open, [77, file, 0, 0]), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::Open, [usize::MAX, file, 0, 0]), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::Open, [0, file, 0, 0]), Err(Errno::ENOTDIR));
            let directory = path(program, "/tmp/base");
            assert_eq!(program.call(SystemCall::ChangeDirectory, [directory]), Ok(0));
            assert_eq!(contents(program, "file"), Some(b"found".to_vec()));
            assert_eq!(contents(program, "../base/./file"), Some(b"found".to_vec()));
            let place = program.place(16);
            assert_eq!(program.call(SystemCall::GetCurrentDirectory, [place, 16]), Ok(10));
            assert_eq!(program.read(place, 10), b"/tmp/base\0");
            assert_eq!(program.call(SystemCall::GetCurrentDirectory, [place, 9]), Err(Errno::ERANGE));
            assert_eq!(program.call(SystemCall::GetCurrentDirectory, [0x1000, 16]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::ChangeDirectory, [file]), Err(Errno::ENOTDIR));
            unlink(program, "file", 0).unwrap();
            assert_eq!(unlink(program, "/tmp/base", 0), Err(Errno::EISDIR));
            assert_eq!(unlink(program, "/tmp/base", types::AT_REMOVEDIR), Ok(0));
            // The directory is gone, and the process is still in it.
            assert_eq!(open(program, "file", flag::CREAT), Err(Errno::ENOENT));
        });
    }

    #[test]
    fn links_lead_where_they_say() {
        run(|program| {
            create(program, "/tmp/target", b"text");
            let (target, link) = (path(program, "target"), path(program, "/tmp/link"));
            assert_eq!(program.call(SystemCall::SymbolicLink, [target, HERE, link]), Ok(0));
            assert_eq!(program.call(SystemCall::SymbolicLink, [target, HERE, link]), Err(Errno::EEXIST));
            assert_eq!(contents(program, "/tmp/link"), Some(b"text".to_vec()));
            assert_eq!(open(program, "/tmp/link", flag::NOFOLLOW), Err(Errno::ELOOP));
            let place = program.place(16);
            assert_eq!(program.call(SystemCall::ReadLink, [HERE, link, place, 16]), Ok(6));
            assert_eq!(program.read(place, 6), b"target");
            assert_eq!(program.call(SystemCall::ReadLink, [HERE, link, place, 3]), Ok(3), "cut off");
            assert_eq!(program.call(SystemCall::ReadLink, [HERE, link, place, 0]), Err(Errno::EINVAL));
            let file = path(program, "/tmp/target");
            assert_eq!(program.call(SystemCall::ReadLink, [HERE, file, place, 16]), Err(Errno::EINVAL));
            // A hard link is the same file under two names.
            let hard = path(program, "/tmp/hard");
            assert_eq!(program.call(SystemCall::Link, [HERE, file, HERE, hard, 0]), Ok(0));
            let (first, second) = (program.place(128), program.place(128));
            program.call(SystemCall::StatusAt, [HERE, file, first, 0]).unwrap();
            program.call(SystemCall::StatusAt, [HERE, hard, second, 0]).unwrap();
            assert_eq!(program.read(first, 128), program.read(second, 128));
            assert_eq!(program.read_u32(first + 20), 2, "two links");
            assert_eq!(program.call(SystemCall::Link, [HERE, file, HERE, hard, 1]), Err(Errno::EINVAL));
            // The link itself, and its target.
            program.call(SystemCall::StatusAt, [HERE, link, first, types::AT_SYMLINK_NOFOLLOW as usize]).unwrap();
            assert_eq!(program.read_u32(first + 16) & types::mode::TYPE, types::mode::LINK);
            program.call(SystemCall::StatusAt, [HERE, link, first, 0]).unwrap();
            assert_eq!(program.read_u32(first + 16) & types::mode::TYPE, types::mode::REGULAR);
            unlink(program, "/tmp/target", 0).unwrap();
            assert_eq!(contents(program, "/tmp/link"), None);
            assert_eq!(contents(program, "/tmp/hard"), Some(b"text".to_vec()));
            for name in ["/tmp/link", "/tmp/hard"] {
                unlink(program, name, 0).unwrap();
            }
        });
    }

    #[test]
    fn renaming_replaces_refuses_or_exchanges() {
        run(|program| {
            create(program, "/tmp/a", b"a");
            create(program, "/tmp/b", b"b");
            assert_eq!(rename(program, "/tmp/a", "/tmp/b", 1), Err(Errno::EEXIST));
            assert_eq!(rename(program, "/tmp/a", "/tmp/b", 2), Ok(0));
            assert_eq!(
                (contents(program, "/tmp/a"), contents(program, "/tmp/b")),
                (Some(b"b".into()), Some(b"a".into()))
            );
            assert_eq!(rename(program, "/tmp/a", "/tmp/b", 0), Ok(0));
            assert_eq!((contents(program, "/tmp/a"), contents(program, "/tmp/b")), (None, Some(b"b".into())));
            assert_eq!(rename(program, "/tmp/a", "/tmp/c", 0), Err(Errno::ENOENT));
            assert_eq!(rename(program, "/tmp/b", "/tmp/c", 4), Err(Errno::EINVAL));
            mkdir(program, "/tmp/d").unwrap();
            assert_eq!(rename(program, "/tmp/d", "/tmp/d/e", 0), Err(Errno::EINVAL), "not into itself");
            assert_eq!(rename(program, "/tmp/b", "/tmp/d", 0), Err(Errno::EISDIR));
            assert_eq!(rename(program, "/tmp/d", "/tmp/b", 0), Err(Errno::ENOTDIR));
            assert_eq!(mkdir(program, "/tmp/d"), Err(Errno::EEXIST));
            unlink(program, "/tmp/b", 0).unwrap();
            unlink(program, "/tmp/d", types::AT_REMOVEDIR).unwrap();
        });
    }

    /// Directories of any depth: looked at in parts, before anything is changed.
    #[test]
    fn renames_far_below_the_root_have_the_outcome_of_others() {
        const DEPTH: usize = 700;
        run(|program| {
            let change = |program: &mut Program, name: &str| {
                let name = path(program, name);
                program.call(SystemCall::ChangeDirectory, [name])
            };
            change(program, "/tmp").unwrap();
            for _ in 0..DEPTH {
                mkdir(program, "d").unwrap();
                change(program, "d").unwrap();
            }
            for name in ["a", "b", "b/c"] {
                mkdir(program, name).unwrap();
            }
            // In flight when its process ends: nothing has happened.
            let child = program.fork(|program| {
                let (old, new) = (path(program, "a"), path(program, "b/a"));
                assert_eq!(program.submit(SystemCall::Rename, [HERE, old, HERE, new, 0], 1), None);
                assert!(program.completions().is_empty());
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(rename(program, "b", "b/c/d", 0), Err(Errno::EINVAL), "not into itself");
            assert_eq!(rename(program, "a", "b", 0), Err(Errno::ENOTEMPTY));
            assert_eq!(rename(program, "a", "b/a", 0), Ok(0));
            assert_eq!(rename(program, "a", "b/a", 0), Err(Errno::ENOENT));
            assert_eq!(rename(program, "b/a", "/tmp/a", 0), Ok(0));
            assert_eq!(rename(program, "b/c", "/tmp/a", 2), Ok(0));
            assert_eq!(rename(program, "/tmp/a", "c", 0), Ok(0));
            for name in ["b/c", "b", "c"] {
                unlink(program, name, types::AT_REMOVEDIR).unwrap();
            }
            for _ in 0..DEPTH {
                change(program, "..").unwrap();
                unlink(program, "d", types::AT_REMOVEDIR).unwrap();
            }
            change(program, "/").unwrap();
        });
    }

    #[test]
    fn a_file_without_a_name_lives_until_it_is_closed() {
        run(|program| {
            let file = open(program, "/tmp/nameless", flag::RDWR | flag::CREAT).unwrap();
            unlink(program, "/tmp/nameless", 0).unwrap();
            program.write_to(file, &vec![3; 50_000]).unwrap();
            let charged = program.process().account.used(crate::process::accounts::Resource::Files);
            assert!(charged >= 50_000, "{charged}");
            assert_eq!(program.call(SystemCall::Seek, [file, 0, 0]), Ok(0));
            assert_eq!(program.read_from(file, 10), Ok(vec![3; 10]));
            program.close(file).unwrap();
            assert_eq!(program.process().account.used(crate::process::accounts::Resource::Files), 0);
        });
    }

    fn status(program: &mut Program, name: &str) -> (u32, [i64; 2]) {
        let (path, place) = (path(program, name), program.place(128));
        program.call(SystemCall::StatusAt, [HERE, path, place, 0]).unwrap();
        let seconds = [72, 88].map(|at| program.read_u64(place + at) as i64);
        (program.read_u64(place + 16) as u32, seconds)
    }

    #[test]
    fn permissions_are_those_wanted_without_the_mask_of_the_process() {
        run(|program| {
            assert_eq!(program.call(SystemCall::SetCreationMask, [0o1027]), Ok(0o022), "that of the first process");
            mkdir(program, "/tmp/masked").unwrap();
            create(program, "/tmp/plain", b"text");
            let (directory, file) = (status(program, "/tmp/masked").0, status(program, "/tmp/plain").0);
            assert_eq!((directory & 0o27, file & 0o27), (0, 0));
            let child = program.fork(|program| {
                assert_eq!(program.call(SystemCall::SetCreationMask, [0]), Ok(0o27));
            });
            let child = child.unwrap();
            program.wait_for(child).unwrap();
            assert_eq!(program.call(SystemCall::SetCreationMask, [0]), Ok(0o27), "a child's mask is its own");
            let plain = path(program, "/tmp/plain");
            assert_eq!(program.call(SystemCall::ChangeModeAt, [HERE, plain, 0o4715]), Ok(0));
            assert_eq!(status(program, "/tmp/plain").0 & 0o7777, 0o4715);
            assert_eq!(program.call(SystemCall::ChangeOwnerAt, [HERE, plain, 0, usize::MAX, 0]), Ok(0));
            assert_eq!(status(program, "/tmp/plain").0 & 0o7777, 0o715, "not for another owner");
            assert_eq!(program.call(SystemCall::ChangeOwnerAt, [HERE, plain, 1000, 0, 0]), Ok(0));
            let open = open(program, "/tmp/plain", flag::RDWR).unwrap();
            assert_eq!(program.call(SystemCall::ChangeMode, [open, 0o640]), Ok(0));
            let (empty, flags) = (path(program, ""), types::AT_EMPTY_PATH as usize);
            assert_eq!(program.call(SystemCall::AccessWith, [open, empty, 1, flags]), Err(Errno::EACCES));
            assert_eq!(program.call(SystemCall::ChangeModeWith, [open, empty, 0o700, flags]), Ok(0));
            assert_eq!(program.call(SystemCall::AccessWith, [open, empty, 1, flags]), Ok(0));
            let (link, target) = (path(program, "/tmp/link"), path(program, "/tmp/plain"));
            program.call(SystemCall::SymbolicLink, [target, HERE, link]).unwrap();
            let keep = types::AT_SYMLINK_NOFOLLOW as usize;
            assert_eq!(program.call(SystemCall::ChangeModeWith, [HERE, link, 0, keep]), Err(Errno::EOPNOTSUPP));
            let (reader, _) = program.pipe(0);
            assert_eq!(program.call(SystemCall::ChangeMode, [reader, 0]), Err(Errno::EOPNOTSUPP));
            unlink(program, "/tmp/link", 0).unwrap();
            unlink(program, "/tmp/plain", 0).unwrap();
            unlink(program, "/tmp/masked", types::AT_REMOVEDIR).unwrap();
        });
    }

    #[test]
    fn ranges_of_descriptors_are_closed_or_left_to_execve() {
        run(|program| {
            for number in [20, 21, 300, 700] {
                assert_eq!(program.call(SystemCall::DuplicateTo, [1, number, 0]), Ok(number));
            }
            let close_on_execute =
                |program: &mut Program, number: usize| program.call(SystemCall::FileControl, [number, 1, 0]);
            let mark = types::CLOSE_RANGE_CLOEXEC as usize;
            assert_eq!(program.call(SystemCall::CloseRange, [21, 400, mark]), Ok(0));
            let found = [20, 21, 300, 700].map(|number| close_on_execute(program, number));
            assert_eq!(found, [Ok(0), Ok(1), Ok(1), Ok(0)]);
            assert_eq!(program.call(SystemCall::CloseRange, [21, 300, 0]), Ok(0));
            let found = [20, 21, 300, 700].map(|number| close_on_execute(program, number));
            assert_eq!(found, [Ok(0), Err(Errno::EBADF), Err(Errno::EBADF), Ok(0)]);
            assert_eq!(program.call(SystemCall::CloseRange, [20, u32::MAX as usize, 0]), Ok(0));
            assert_eq!(close_on_execute(program, 700), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::Duplicate, [0]), Ok(3), "the lowest free one");
            assert_eq!(program.call(SystemCall::CloseRange, [5, 4, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::CloseRange, [5, 6, 2]), Err(Errno::EINVAL));
            let directory = open(program, "/tmp", flag::DIRECTORY).unwrap();
            assert_eq!(program.call(SystemCall::ChangeDirectoryTo, [directory]), Ok(0));
            let place = program.place(8);
            assert_eq!(program.call(SystemCall::GetCurrentDirectory, [place, 8]), Ok(5));
            assert_eq!(program.call(SystemCall::ChangeDirectoryTo, [0]), Err(Errno::ENOTDIR));
            assert_eq!(program.call(SystemCall::ChangeDirectoryTo, [99]), Err(Errno::EBADF));
        });
    }

    #[test]
    fn times_are_set_left_or_the_present() {
        run(|program| {
            create(program, "/tmp/timed", b"x");
            let name = path(program, "/tmp/timed");
            let times = |program: &mut Program, words: [i64; 4]| program.store(&words.map(i64::to_le_bytes).concat());
            let given = times(program, [1000, 5, -7, 999_999_999]);
            assert_eq!(program.call(SystemCall::SetTimes, [HERE, name, given, 0]), Ok(0));
            assert_eq!(status(program, "/tmp/timed").1, [1000, -7]);
            let left = times(program, [0, types::UTIME_OMIT, 0, types::UTIME_NOW]);
            let file = open(program, "/tmp/timed", 0).unwrap();
            assert_eq!(program.call(SystemCall::SetTimes, [file, 0, left, 0]), Ok(0));
            let [accessed, modified] = status(program, "/tmp/timed").1;
            assert_eq!(accessed, 1000);
            assert!(modified >= 0, "{modified}");
            assert_eq!(program.call(SystemCall::SetTimes, [file, 0, 0, 0]), Ok(0));
            assert_ne!(status(program, "/tmp/timed").1[0], 1000);
            let wrong = times(program, [0, 1_000_000_000, 0, 0]);
            assert_eq!(program.call(SystemCall::SetTimes, [HERE, name, wrong, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SetTimes, [HERE, 0, given, 0]), Err(Errno::EFAULT));
            unlink(program, "/tmp/timed", 0).unwrap();
        });
    }

    #[test]
    fn files_are_cut_off_by_path_and_have_no_state_to_write() {
        run(|program| {
            create(program, "/tmp/cut", b"something");
            let cut = path(program, "/tmp/cut");
            assert_eq!(program.call(SystemCall::TruncateAt, [cut, 4]), Ok(0));
            assert_eq!(contents(program, "/tmp/cut"), Some(b"some".into()));
            assert_eq!(program.call(SystemCall::TruncateAt, [cut, usize::MAX]), Err(Errno::EINVAL));
            let archived = path(program, "/bin/test");
            assert_eq!(program.call(SystemCall::TruncateAt, [archived, 0]), Err(Errno::EROFS));
            let file = open(program, "/tmp/cut", 0).unwrap();
            let (reader, _) = program.pipe(0);
            for call in [SystemCall::SynchroniseFile, SystemCall::SynchroniseData] {
                assert_eq!(program.call(call, [file]), Ok(0));
                assert_eq!(program.call(call, [reader]), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::Synchronise, []), Ok(0));
            assert_eq!(program.call(SystemCall::SynchroniseFileSystem, [reader]), Ok(0));
            assert_eq!(program.call(SystemCall::AdviseFile, [file, 0, 0, 5]), Ok(0));
            assert_eq!(program.call(SystemCall::AdviseFile, [file, 0, 0, 6]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::AdviseFile, [reader, 0, 0, 0]), Err(Errno::ESPIPE));
            unlink(program, "/tmp/cut", 0).unwrap();
        });
    }

    /// Pages of an allocation that fails are given back, and so are those that were made behind the end of a file.
    #[test]
    fn an_allocation_makes_all_of_its_pages_or_none() {
        run(|program| {
            let limit = program.store(&types::limit::to_bytes(30 * 4096, 30 * 4096));
            let which = types::limit::FILE_MEMORY as usize;
            program.create(b"/tmp/large\0", flag::RDWR);
            program.create(b"/tmp/other\0", flag::RDWR);
            let child = program.fork(move |program| {
                assert_eq!(program.call(SystemCall::ProcessLimit, [0, which, limit, 0]), Ok(0));
                let file = open(program, "/tmp/large", flag::RDWR).unwrap();
                let other = open(program, "/tmp/other", flag::RDWR).unwrap();
                let keep = allocation::KEEP_SIZE as usize;
                let allocate = |program: &mut Program, file: usize, pages: usize| {
                    program.call(SystemCall::Allocate, [file, keep, 0, pages * 4096])
                };
                program.write_to(file, b"used").unwrap();
                let failed = allocate(program, file, 40).unwrap_err();
                assert!(matches!(failed, Errno::ENOSPC | Errno::ENOMEM), "{failed:?}");
                assert_eq!(allocate(program, other, 25), Ok(0), "none was kept");
                assert_eq!(program.call(SystemCall::Truncate, [other, 0]), Ok(0));
                assert_eq!(allocate(program, file, 25), Ok(0), "as long as before, and without pages");
                assert_eq!(program.call(SystemCall::ReadAt, [file, DATA, 9, 0]), Ok(4));
                assert_eq!(program.read(DATA, 4), b"used");
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            program.remove(b"/tmp/large\0");
            program.remove(b"/tmp/other\0");
        });
    }

    #[test]
    fn access_and_status_answer_for_paths_and_descriptors() {
        run(|program| {
            let (test, tmp, missing) = (path(program, "/bin/test"), path(program, "/tmp"), path(program, "/missing"));
            assert_eq!(program.call(SystemCall::Access, [HERE, test, 5]), Ok(0));
            assert_eq!(program.call(SystemCall::Access, [HERE, missing, 0]), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::Access, [HERE, test, 8]), Err(Errno::EINVAL));
            create(program, "/tmp/plain", b"");
            let plain = path(program, "/tmp/plain");
            assert_eq!(program.call(SystemCall::Access, [HERE, plain, 6]), Ok(0));
            assert_eq!(program.call(SystemCall::Access, [HERE, plain, 1]), Err(Errno::EACCES));
            let (first, second) = (program.place(128), program.place(128));
            let empty = path(program, "");
            let directory = open(program, "/tmp", 0).unwrap();
            let at_descriptor = types::AT_EMPTY_PATH as usize;
            program.call(SystemCall::StatusAt, [HERE, tmp, first, 0]).unwrap();
            program.call(SystemCall::StatusAt, [directory, empty, second, at_descriptor]).unwrap();
            assert_eq!(program.read(first, 64), program.read(second, 64));
            assert_eq!(program.call(SystemCall::StatusAt, [HERE, empty, second, 0]), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::StatusAt, [HERE, tmp, first, 1]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::StatusAt, [HERE, tmp, 0x1000, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::Status, [77, first]), Err(Errno::EBADF));
            unlink(program, "/tmp/plain", 0).unwrap();
        });
    }
}
