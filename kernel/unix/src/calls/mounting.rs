//! The calls on file systems as a whole.

use abi_unix::Errno;
use abi_unix::authority::Act;
use abi_unix::types::mounting::{self, Statistics, flag, removal};
use abi_unix::types::{AT_FDCWD, mode};
use alloc::vec::Vec;
use filesystem::LastLink;

use crate::calls::call::{Call, Decoding};
use crate::calls::paths::{Effect, follow, path_from, read_path_from_here};
use crate::files::mounts::binds::{self, Bind};
use crate::files::mounts::{self, Halt, Path, Place};
use crate::files::volume::{VolumeAnswer, VolumeRequest};
use crate::process::authority;

/// Reads a text that may be missing.
fn read_text(call: &Call<'_>, argument: usize) -> Result<Vec<u8>, Errno> {
    match call.address(argument) {
        0 => Ok(Vec::new()),
        address => call.process().copy_in_path(address),
    }
}

/// Performs `mount`.
#[inline(never)]
pub(super) fn mount(call: Call<'_>) -> Decoding {
    /// Flags that choose another act than a new mount, and that are not supported.
    const OTHERS: u32 = flag::MOVE | flag::UNBINDABLE | flag::SLAVE | flag::SHARED;
    authority::permit(call.process(), Act::Mount)?;
    call.admitted()?;
    let mut flags = call.unsigned(3);
    if flags & mounting::OLD.1 == mounting::OLD.0 {
        flags &= !mounting::OLD.1;
    }
    // All texts are read before the path is followed, for their errors alone: an act has its call's arguments and no
    // memory of its own, so it reads them again.
    for text in [0, 2, 4] {
        read_text(&call, text)?;
    }
    let target = read_path_from_here(&call, 1)?;
    if flags & flag::BIND != 0 && flags & flag::REMOUNT == 0 {
        return bind(&call, target, flags);
    }
    let is_volume = flags & (OTHERS | flag::REMOUNT | flag::PRIVATE) == 0 && call.address(2) != 0 && {
        let kind = read_text(&call, 2)?;
        mounts::is_volume(&kind) || mounts::is_host(&kind)
    };
    if is_volume {
        let source = read_text(&call, 0)?;
        if source.is_empty() {
            return Err(Errno::EINVAL);
        }
        let device = path_from(call.process(), AT_FDCWD, source)?;
        let mut found = None;
        return follow(&call, [target, device], Effect::Frees, move |call, paths| {
            mount_volume(call, paths, &mut found, flags)?;
            Ok(0)
        });
    }
    follow(&call, [target], Effect::Frees, move |call, [path]| {
        let at = path.look_up(LastLink::Follow)?;
        if flags & OTHERS != 0 {
            return Err(Errno::EINVAL.into());
        }
        // Whether there is a text decides before its contents do.
        let has_kind = call.address(2) != 0;
        let (source, kind, options) = (read_text(call, 0)?, read_text(call, 2)?, read_text(call, 4)?);
        if flags & flag::REMOUNT != 0 && flags & flag::BIND != 0 {
            binds::set_flags(&at, flags)?;
        } else if flags & flag::REMOUNT != 0 {
            remount_volume(call, path, &at, flags)?;
            mounts::remount(&at, flags, &options)?;
        } else if flags & flag::PRIVATE != 0 {
            mounts::require_root(&at)?;
        } else if has_kind {
            mounts::mount(at, &kind, flags, &options, source, &call.process().account)?;
        } else {
            return Err(Errno::EINVAL.into());
        }
        Ok(0)
    })
}

/// Binds a file to a place: in several attempts, in which both are found, and the mounts below the source are copied.
fn bind(call: &Call<'_>, target: Path, flags: u32) -> Decoding {
    let source = read_text(call, 0)?;
    if source.is_empty() {
        return Err(Errno::EINVAL);
    }
    let source = path_from(call.process(), AT_FDCWD, source)?;
    let (mut place, mut begun) = (None, None);
    follow(call, [target, source], Effect::Keeps, move |call, [target, source]| {
        let account = &call.process().account;
        let at: &Place = match &mut place {
            Some(at) => at,
            none => none.insert(target.look_up(LastLink::Follow)?),
        };
        let bind = match &mut begun {
            Some(bind) => bind,
            none => none.insert(Bind::begin(source.look_up(LastLink::Follow)?, at.clone(), account)?),
        };
        if flags & flag::RECURSIVE != 0 && bind.copy_next(account)? {
            return Err(Halt::Later);
        }
        begun.take().ok_or(Errno::EIO)?.finish()?;
        Ok(0)
    })
}

/// The parts of a mount of a volume that were found in earlier attempts.
struct FoundParts {
    at: Place,
    device: Option<Place>,
}

/// Mounts a volume of a disk: in several attempts, in which its place and the disk are found, it is mounted, and its
/// root is found.
fn mount_volume(
    call: &Call<'_>,
    [target, source]: &mut [Path; 2],
    found: &mut Option<FoundParts>,
    flags: u32,
) -> Result<(), Halt> {
    let (account, payer) = (&call.process().account, call.process().id);
    let parts = match found {
        Some(parts) => parts,
        None => {
            let at = target.look_up(LastLink::Follow)?;
            found.insert(FoundParts { at, device: None })
        }
    };
    let at = parts.at.clone();
    if parts.device.is_none() && mounts::is_host(&read_text(call, 2)?) {
        // Its source is the name of a folder, and no path.
        parts.device = Some(at.clone());
        let (name, options) = (read_text(call, 0)?, read_text(call, 4)?);
        return Err(source.wait_for(mounts::begin_folder(&at, &name, flags, &options, (account, payer))?));
    }
    if parts.device.is_none() {
        let device = source.look_up(LastLink::Follow)?;
        parts.device = Some(device.clone());
        let options = read_text(call, 4)?;
        return Err(source.wait_for(mounts::begin_volume(&at, &device, flags, &options, (account, payer))?));
    }
    match source.answered() {
        Some(Ok(VolumeAnswer::Mounted(volume))) => {
            let root = volume.submit(account, payer, VolumeRequest::Root).inspect_err(|_| volume.end())?;
            Err(source.wait_for(root))
        }
        Some(Ok(VolumeAnswer::File(root, _))) => {
            let volume = root.volume().clone();
            let source = read_text(call, 0).inspect_err(|_| volume.end())?;
            mounts::put_volume(at, root, flags, source, account).inspect_err(|_| volume.end())?;
            Ok(())
        }
        Some(answer) => answer.map(|_| ()).map_err(Halt::from),
        None => Err(Errno::EIO.into()),
    }
}

/// Changes the access of a volume, before its mount gets its flags.
fn remount_volume(call: &Call<'_>, path: &mut Path, at: &Place, flags: u32) -> Result<(), Halt> {
    let Some(volume) = at.mount.volume() else { return Ok(()) };
    mounts::require_root(at)?;
    if let Some(answer) = path.answered() {
        answer?;
        return Ok(());
    }
    let access = if flags & flag::READ_ONLY != 0 { ext4::Access::Read } else { ext4::Access::Write };
    match volume.begin_remount(access, &call.process().account, call.process().id)? {
        Some(submission) => Err(path.wait_for(submission)),
        None => Ok(()),
    }
}

/// Performs `umount2`.
#[inline(never)]
pub(super) fn unmount(call: Call<'_>) -> Decoding {
    authority::permit(call.process(), Act::Unmount)?;
    let flags = call.unsigned(1);
    if flags & !(removal::FORCE | removal::DETACH | removal::NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let last = if flags & removal::NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow };
    // A volume that was taken from the table, and is written now.
    let mut is_ending = false;
    follow(&call, [read_path_from_here(&call, 0)?], Effect::Frees, move |call, [path]| {
        if is_ending {
            return Ok(path.answered().map_or(Ok(0), |answer| answer.map(|_| 0))?);
        }
        let at = path.take(last)?;
        let Some(volume) = mounts::unmount(at, flags & removal::DETACH != 0)? else { return Ok(0) };
        is_ending = true;
        match volume.submit(&call.process().account, call.process().id, VolumeRequest::Unmount) {
            Ok(submission) => Err(path.wait_for(submission)),
            // It has ended already.
            Err(_) => Ok(0),
        }
    })
}

/// Writes a `struct statfs`.
fn write(call: &Call<'_>, statistics: &Statistics) -> Result<usize, Errno> {
    call.process().copy_out(call.address(1), &statistics.to_bytes()).map(|()| 0)
}

/// Performs `statfs`.
#[inline(never)]
pub(super) fn statistics_at(call: Call<'_>) -> Decoding {
    follow(&call, [read_path_from_here(&call, 0)?], Effect::Keeps, |call, [path]| {
        Ok(write(call, &path.look_up(LastLink::Follow)?.mount.statistics())?)
    })
}

/// Performs `fstatfs`.
#[inline(never)]
pub(super) fn statistics(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    let object = file.object();
    let without_contents = |magic| Statistics {
        magic,
        block_size: 4096,
        longest_name: filesystem::MAX_NAME_LENGTH as u64,
        flags: mounting::VALID,
        ..Statistics::default()
    };
    let statistics = match (object.mount(), object.status().mode & mode::TYPE) {
        (Some(mount), _) => mount.statistics(),
        (None, mode::PIPE) => without_contents(mounting::PIPE_MAGIC),
        (None, mode::SOCKET) => without_contents(mounting::SOCKET_MAGIC),
        // Devices are nodes of the first file system.
        (None, mode::CHARACTER) => mounts::top().statistics(),
        (None, _) => without_contents(mounting::ANONYMOUS_MAGIC),
    };
    write(&call, &statistics).map(Into::into)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::authority::{Capability, CapabilitySet, Held};
    use abi_unix::types::{self, open as how};

    use super::*;
    use crate::process::accounts::Resource;
    use crate::testing::{Program, run};

    const HERE: usize = types::AT_FDCWD as usize;

    /// Runs a program that may mount.
    fn run_with_capability(body: impl FnOnce(&mut Program) + Send + 'static) {
        run(|program| {
            let held = Held::of(CapabilitySet::only(Capability::Administration));
            let first = crate::process::table::find(1).unwrap();
            authority::give(&first, &program.process(), held).unwrap();
            body(program);
        });
    }

    fn text(program: &mut Program, text: &str) -> usize {
        program.store(format!("{text}\0").as_bytes())
    }

    fn mount(program: &mut Program, at: &str, flags: u32, options: &str) -> Result<usize, Errno> {
        let words = ["none", at, "tmpfs", options].map(|word| text(program, word));
        program.call(SystemCall::Mount, [words[0], words[1], words[2], flags as usize, words[3]])
    }

    fn unmount(program: &mut Program, at: &str, flags: u32) -> Result<usize, Errno> {
        let at = text(program, at);
        program.call(SystemCall::Unmount, [at, flags as usize])
    }

    fn open(program: &mut Program, path: &str, flags: u32) -> Result<usize, Errno> {
        let path = text(program, path);
        program.call(SystemCall::Open, [HERE, path, flags as usize, 0o644])
    }

    fn make_directory(program: &mut Program, path: &str) -> Result<usize, Errno> {
        let path = text(program, path);
        program.call(SystemCall::MakeDirectory, [HERE, path, 0o755])
    }

    fn unlink(program: &mut Program, path: &str, flags: u32) -> Result<usize, Errno> {
        let path = text(program, path);
        program.call(SystemCall::Unlink, [HERE, path, flags as usize])
    }

    fn change_directory(program: &mut Program, path: &str) -> Result<usize, Errno> {
        let path = text(program, path);
        program.call(SystemCall::ChangeDirectory, [path])
    }

    fn rename(program: &mut Program, old: &str, new: &str) -> Result<usize, Errno> {
        let (old, new) = (text(program, old), text(program, new));
        program.call(SystemCall::Rename, [HERE, old, HERE, new, 0])
    }

    fn link(program: &mut Program, old: &str, new: &str) -> Result<usize, Errno> {
        let (old, new) = (text(program, old), text(program, new));
        program.call(SystemCall::Link, [HERE, old, HERE, new, 0])
    }

    fn working_directory(program: &mut Program) -> Result<String, Errno> {
        let place = program.place(4096);
        let length = program.call(SystemCall::GetCurrentDirectory, [place, 4096])?;
        Ok(String::from_utf8(program.read(place, length - 1)).unwrap())
    }

    /// Returns the device and the inode of a file.
    fn identity(program: &mut Program, path: &str) -> (u64, u64) {
        let (path, status) = (text(program, path), program.place(128));
        program.call(SystemCall::StatusAt, [HERE, path, status, 0]).unwrap();
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let bytes = program.read(status, 16);
        (word(&bytes[..8]), word(&bytes[8..]))
    }

    /// Returns the words of `struct statfs`.
    fn statistics_of(program: &mut Program, path: &str) -> Vec<u64> {
        let (path, buffer) = (text(program, path), program.place(120));
        program.call(SystemCall::FileSystemAt, [path, buffer]).unwrap();
        let bytes = program.read(buffer, 120);
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    fn create(program: &mut Program, path: &str) {
        let file = open(program, path, how::RDWR | how::CREAT).unwrap();
        program.write_to(file, b"text").unwrap();
        program.close(file).unwrap();
    }

    #[test]
    fn a_mount_covers_a_directory_and_gives_it_back() {
        run_with_capability(|program| {
            let files = program.process().account.used(Resource::Files);
            make_directory(program, "/tmp/m").unwrap();
            create(program, "/tmp/m/below");
            let covered = identity(program, "/tmp/m");
            mount(program, "/tmp/m", 0, "size=1m,mode=700").unwrap();
            assert_ne!(identity(program, "/tmp/m").0, covered.0);
            assert_eq!(open(program, "/tmp/m/below", 0), Err(Errno::ENOENT));
            create(program, "/tmp/m/above");
            make_directory(program, "/tmp/m/d").unwrap();
            assert_eq!(identity(program, "/tmp/m/d/../.."), identity(program, "/tmp"));
            assert_eq!(identity(program, "/tmp/m/d/../../m/above"), identity(program, "/tmp/m/above"));
            let statistics = statistics_of(program, "/tmp/m/above");
            assert_eq!((statistics[0], statistics[1], statistics[2]), (mounting::TMPFS_MAGIC, 4096, 256));
            // A path through the working directory, and back up.
            change_directory(program, "/tmp/m/d").unwrap();
            assert_eq!(working_directory(program).as_deref(), Ok("/tmp/m/d"));
            assert_eq!(identity(program, "../../m/above"), identity(program, "/tmp/m/above"));
            assert_eq!(unmount(program, "/tmp/m", 0), Err(Errno::EBUSY), "a working directory is inside");
            change_directory(program, "../..").unwrap();
            assert_eq!(working_directory(program).as_deref(), Ok("/tmp"));
            let file = open(program, "m/above", 0).unwrap();
            assert_eq!(unmount(program, "m", 0), Err(Errno::EBUSY), "a file is open");
            program.close(file).unwrap();
            assert_eq!(unlink(program, "/tmp/m", types::AT_REMOVEDIR), Err(Errno::EBUSY));
            assert_eq!(rename(program, "/tmp/m", "/tmp/n"), Err(Errno::EBUSY));
            assert_eq!(unmount(program, "/tmp/m/d", 0), Err(Errno::EINVAL), "no root");
            assert_eq!(unmount(program, "/tmp/m", 0), Ok(0));
            assert_eq!(identity(program, "/tmp/m"), covered);
            assert!(open(program, "/tmp/m/below", 0).is_ok());
            assert_eq!(unmount(program, "/tmp/m", 0), Err(Errno::EINVAL));
            change_directory(program, "/").unwrap();
            unlink(program, "/tmp/m/below", 0).unwrap();
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
            for descriptor in 0..10 {
                let _ = program.close(descriptor);
            }
            assert_eq!(program.process().account.used(Resource::Files), files, "all of it was given back");
        });
    }

    #[test]
    fn names_do_not_lead_from_one_mount_to_another() {
        run_with_capability(|program| {
            for path in ["/tmp/m", "/tmp/n"] {
                make_directory(program, path).unwrap();
            }
            mount(program, "/tmp/m", 0, "").unwrap();
            create(program, "/tmp/m/file");
            create(program, "/tmp/file");
            for (old, new) in [("/tmp/m/file", "/tmp/x"), ("/tmp/file", "/tmp/m/x"), ("/tmp/file", "/tmp/m/../m/x")] {
                assert_eq!(rename(program, old, new), Err(Errno::EXDEV), "{old} {new}");
                assert_eq!(link(program, old, new), Err(Errno::EXDEV), "{old} {new}");
            }
            for (old, new) in [("/tmp/missing/x", "/tmp/m/x"), ("/tmp/m/x", "/tmp/missing/x")] {
                assert_eq!(rename(program, old, new), Err(Errno::ENOENT), "{old} {new}");
            }
            assert_eq!(link(program, "/tmp/m/missing", "/tmp/x"), Err(Errno::ENOENT));
            assert_eq!(link(program, "/tmp/missing", "/tmp/m/x"), Err(Errno::ENOENT));
            assert_eq!(link(program, "/proc/missing", "/tmp/x"), Err(Errno::ENOENT));
            assert_eq!(link(program, "/proc/meminfo", "/tmp/x"), Err(Errno::EXDEV));
            assert_eq!(rename(program, "/tmp/m/file", "/tmp/m/other"), Ok(0));
            assert_eq!(link(program, "/tmp/m/../m/other", "/tmp/n/../m/third"), Ok(0));
            change_directory(program, "/tmp/m").unwrap();
            assert_eq!(rename(program, "other", "/tmp/m/fourth"), Ok(0));
            assert_eq!(rename(program, "../file", "../file2"), Ok(0));
            change_directory(program, "/").unwrap();
            // An absolute link in a mount leads to the root of all, and a link elsewhere leads in.
            let (target, name) = (text(program, "/tmp/file2"), text(program, "/tmp/m/link"));
            program.call(SystemCall::SymbolicLink, [target, HERE, name]).unwrap();
            assert_eq!(identity(program, "/tmp/m/link"), identity(program, "/tmp/file2"));
            let (target, name) = (text(program, "m/../m/third"), text(program, "/tmp/in"));
            program.call(SystemCall::SymbolicLink, [target, HERE, name]).unwrap();
            assert_eq!(identity(program, "/tmp/in"), identity(program, "/tmp/m/third"));
            // A link that leads to itself through the other file system.
            let (target, name) = (text(program, "/tmp/m/loop"), text(program, "/tmp/m/loop"));
            program.call(SystemCall::SymbolicLink, [target, HERE, name]).unwrap();
            assert_eq!(open(program, "/tmp/m/loop", 0), Err(Errno::ELOOP));
            let long = format!("/tmp{}", "/m/..".repeat(50));
            let directory = open(program, &long, 0).unwrap();
            program.close(directory).unwrap();
            assert_eq!(unmount(program, "/tmp/m", 0), Ok(0));
            for path in ["/tmp/in", "/tmp/file2"] {
                unlink(program, path, 0).unwrap();
            }
            for path in ["/tmp/m", "/tmp/n"] {
                unlink(program, path, types::AT_REMOVEDIR).unwrap();
            }
        });
    }

    /// A file without a name is no part of the file system that keeps it.
    #[test]
    fn a_memory_file_is_opened_again_and_written_while_the_root_is_read_only() {
        run_with_capability(|program| {
            let name = text(program, "m");
            let file = program.call(SystemCall::MemoryFile, [name, 0]).unwrap();
            assert_eq!(mount(program, "/", flag::REMOUNT | flag::READ_ONLY, ""), Ok(0));
            assert_eq!(open(program, "/tmp/new", how::CREAT), Err(Errno::EROFS));
            let path = format!("/proc/self/fd/{file}");
            let again = open(program, &path, how::RDWR | how::TRUNC).unwrap();
            assert_eq!(program.write_to(again, b"bytes"), Ok(5));
            assert_eq!(program.read_from(file, 9), Ok(b"bytes".to_vec()));
            assert_eq!(program.call(SystemCall::ChangeMode, [again, 0o600]), Ok(0));
            assert_eq!(mount(program, "/", flag::REMOUNT, ""), Ok(0));
        });
    }

    #[test]
    fn a_read_only_mount_is_not_changed() {
        run_with_capability(|program| {
            make_directory(program, "/tmp/m").unwrap();
            mount(program, "/tmp/m", 0, "").unwrap();
            create(program, "/tmp/m/file");
            let file = open(program, "/tmp/m/file", how::WRONLY).unwrap();
            let remount = |program: &mut Program, flags| mount(program, "/tmp/m", flag::REMOUNT | flags, "");
            assert_eq!(remount(program, flag::READ_ONLY), Err(Errno::EBUSY));
            program.close(file).unwrap();
            assert_eq!(remount(program, flag::READ_ONLY | flag::NO_EXECUTION), Ok(0));
            assert_eq!(statistics_of(program, "/tmp/m")[10], mounting::VALID | 1 | 8);
            for flags in [how::WRONLY, how::RDWR, how::TRUNC] {
                assert_eq!(open(program, "/tmp/m/file", flags), Err(Errno::EROFS));
            }
            assert_eq!(open(program, "/tmp/m/new", how::CREAT), Err(Errno::EROFS));
            assert!(open(program, "/tmp/m/file", how::CREAT).and_then(|file| program.close(file)).is_ok());
            assert_eq!(make_directory(program, "/tmp/m/d"), Err(Errno::EROFS));
            assert_eq!(make_directory(program, "/tmp/m/file"), Err(Errno::EEXIST));
            assert_eq!(unlink(program, "/tmp/m/file", 0), Err(Errno::EROFS));
            assert_eq!(rename(program, "/tmp/m/file", "/tmp/m/x"), Err(Errno::EROFS));
            assert_eq!(link(program, "/tmp/m/file", "/tmp/m/x"), Err(Errno::EROFS));
            let path = text(program, "/tmp/m/file");
            assert_eq!(program.call(SystemCall::Access, [HERE, path, 2]), Err(Errno::EROFS));
            assert_eq!(program.call(SystemCall::Access, [HERE, path, 4]), Ok(0));
            assert_eq!(program.call(SystemCall::Access, [HERE, path, 1]), Err(Errno::EACCES));
            assert_eq!(remount(program, 0), Ok(0));
            assert_eq!(unlink(program, "/tmp/m/file", 0), Ok(0));
            assert_eq!(unmount(program, "/tmp/m", 0), Ok(0));
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
        });
    }

    #[test]
    fn a_detached_mount_lives_for_its_users() {
        run_with_capability(|program| {
            let files = program.process().account.used(Resource::Files);
            make_directory(program, "/tmp/m").unwrap();
            mount(program, "/tmp/m", 0, "").unwrap();
            make_directory(program, "/tmp/m/inner").unwrap();
            mount(program, "/tmp/m/inner", 0, "").unwrap();
            create(program, "/tmp/m/inner/file");
            let file = open(program, "/tmp/m/inner/file", how::RDWR).unwrap();
            change_directory(program, "/tmp/m/inner").unwrap();
            assert_eq!(unmount(program, "/tmp/m", 0), Err(Errno::EBUSY), "a mount is inside");
            assert_eq!(unmount(program, "/tmp/m", removal::DETACH), Ok(0));
            assert_eq!(open(program, "/tmp/m/inner", 0), Err(Errno::ENOENT));
            assert_eq!(program.read_from(file, 4), Ok(b"text".to_vec()));
            assert!(open(program, "file", 0).and_then(|file| program.close(file)).is_ok());
            assert_eq!(identity(program, ".."), identity(program, "."), "nothing is above it");
            assert_eq!(working_directory(program), Err(Errno::ENOENT));
            assert_eq!(make_directory(program, "below"), Ok(0));
            assert_eq!(mount(program, "below", 0, ""), Err(Errno::EINVAL));
            assert_eq!(unmount(program, ".", 0), Err(Errno::EINVAL));
            assert_eq!(mount(program, ".", flag::REMOUNT | flag::READ_ONLY, ""), Err(Errno::EINVAL));
            change_directory(program, "/").unwrap();
            assert!(program.process().account.used(Resource::Files) > files);
            program.close(file).unwrap();
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
            assert_eq!(program.process().account.used(Resource::Files), files, "the last user frees it");
        });
    }

    #[test]
    fn mounts_are_stacked_limited_and_refused() {
        run_with_capability(|program| {
            make_directory(program, "/tmp/m").unwrap();
            create(program, "/tmp/f");
            for (at, flags, options, error) in [
                ("/tmp/missing", 0, "", Errno::ENOENT),
                ("/tmp/f", 0, "", Errno::ENOTDIR),
                ("/", 0, "", Errno::EBUSY),
                ("/tmp/m", flag::MOVE, "", Errno::EINVAL),
                ("/tmp/m", flag::BIND, "", Errno::ENOENT),
                ("/tmp/m", flag::BIND | flag::REMOUNT, "", Errno::EINVAL),
                ("/tmp/m", flag::REMOUNT, "", Errno::EINVAL),
                ("/tmp/m", flag::PRIVATE, "", Errno::EINVAL),
                ("/tmp/m", 0, "size=x", Errno::EINVAL),
                ("/tmp/m", 0, "size=1q", Errno::EINVAL),
                ("/tmp/m", 0, "colour=blue", Errno::EINVAL),
                ("/tmp/m", 0, "mode=77777", Errno::EINVAL),
                ("/tmp/m", 0, "size=+5", Errno::EINVAL),
                ("/tmp/m", 0, "size=", Errno::EINVAL),
            ] {
                assert_eq!(mount(program, at, flags, options), Err(error), "{at} {flags:#x} {options}");
            }
            let (at, kind) = (text(program, "/tmp/m"), text(program, "ext5"));
            assert_eq!(program.call(SystemCall::Mount, [0, at, kind, 0, 0]), Err(Errno::ENODEV));
            let kind = text(program, "ext4");
            assert_eq!(program.call(SystemCall::Mount, [0, at, kind, 0, 0]), Err(Errno::EINVAL), "no source");
            for (source, error) in [
                ("/dev/none", Errno::ENOENT),
                ("/dev/null", Errno::ENOTBLK),
                ("/tmp/f", Errno::ENOTBLK),
                // The disk of the tests has no volume.
                ("/dev/vda", Errno::EINVAL),
                ("/dev/vda", Errno::EINVAL),
            ] {
                let source = text(program, source);
                assert_eq!(program.call(SystemCall::Mount, [source, at, kind, 0, 0]), Err(error));
            }
            assert_eq!(program.call(SystemCall::Mount, [0, at, 0x1000, 0, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::Mount, [0, at, 0, 0, 0]), Err(Errno::EINVAL));
            assert_eq!(mount(program, "/", flag::PRIVATE | flag::RECURSIVE, ""), Ok(0));
            assert_eq!(unmount(program, "/", 0), Err(Errno::EBUSY));
            assert_eq!(unmount(program, "/tmp/m", 4), Err(Errno::EINVAL));
            // Each covers the root of the one before, until there are too many.
            let mut count = 0;
            let error = loop {
                match mount(program, "/tmp/m", mounting::OLD.0, "size=64k") {
                    Ok(_) => count += 1,
                    Err(error) => break error,
                }
                create(program, &format!("/tmp/m/{count}"));
            };
            assert_eq!(error, Errno::ENOSPC);
            assert!(count > 50, "{count}");
            for number in (1..=count).rev() {
                assert!(open(program, &format!("/tmp/m/{number}"), 0).and_then(|file| program.close(file)).is_ok());
                assert_eq!(unmount(program, "/tmp/m", removal::NOFOLLOW), Ok(0));
            }
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
            unlink(program, "/tmp/f", 0).unwrap();
        });
    }

    #[test]
    fn a_mount_has_its_own_limit_which_can_be_changed() {
        run_with_capability(|program| {
            make_directory(program, "/tmp/m").unwrap();
            mount(program, "/tmp/m", 0, "size=40k").unwrap();
            let file = open(program, "/tmp/m/file", how::RDWR | how::CREAT).unwrap();
            let mut written = 0;
            let error = loop {
                match program.write_to(file, &[1; 4096]) {
                    Ok(count) => written += count,
                    Err(error) => break error,
                }
            };
            assert_eq!(error, Errno::ENOSPC);
            assert!((8 * 4096..=10 * 4096).contains(&written), "{written}");
            assert_eq!(mount(program, "/tmp/m", flag::REMOUNT | flag::NO_EXECUTION, "size=4k"), Err(Errno::EINVAL));
            // The file is open for writing.
            assert_eq!(mount(program, "/tmp/m", flag::REMOUNT | flag::READ_ONLY, "size=2m"), Err(Errno::EBUSY));
            let after = statistics_of(program, "/tmp/m");
            assert_eq!((after[2], after[10]), (10, mounting::VALID), "nothing has changed");
            assert_eq!(mount(program, "/tmp/m", flag::REMOUNT, "size=1m"), Ok(0));
            assert_eq!(program.write_to(file, &[1; 4096]), Ok(4096));
            program.close(file).unwrap();
            assert_eq!(unmount(program, "/tmp/m", 0), Ok(0));
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
        });
    }

    fn bind(program: &mut Program, source: &str, at: &str, flags: u32) -> Result<usize, Errno> {
        let (source, at) = (text(program, source), text(program, at));
        program.call(SystemCall::Mount, [source, at, 0, (flag::BIND | flags) as usize, 0])
    }

    /// Returns the lines of a list of mounts that have a text.
    fn listed(program: &mut Program, list: &str, with: &str) -> Vec<String> {
        let file = open(program, list, 0).unwrap();
        let lines = String::from_utf8(program.read_from(file, 8192).unwrap()).unwrap();
        program.close(file).unwrap();
        lines.lines().filter(|line| line.contains(with)).map(String::from).collect()
    }

    /// A directory in two places is one directory with two ways up, in memory and on a volume.
    #[test]
    fn a_bind_shows_a_directory_in_another_place() {
        use Errno::{EBUSY, EEXIST, EINVAL, ENOENT, ENOTDIR, EROFS, EXDEV};

        use crate::files::volume::tests::in_memory_and_on_a_volume;

        fn check(program: &mut Program) {
            let at = |name: &str| format!("/tmp/volume/{name}");
            for name in ["a", "a/d", "a/d/e", "b", "sub"] {
                make_directory(program, &at(name)).unwrap();
            }
            create(program, &at("a/d/file"));
            create(program, &at("other"));
            assert_eq!(bind(program, &at("a/missing"), &at("b"), 0), Err(ENOENT));
            assert_eq!(bind(program, &at("a/d"), &at("other"), 0), Err(ENOTDIR));
            assert_eq!(bind(program, &at("other"), &at("b"), 0), Err(ENOTDIR));
            assert_eq!(bind(program, "", &at("b"), 0), Err(EINVAL));
            assert_eq!(bind(program, &at("a/d"), &at("b"), 0), Ok(0));
            assert_eq!(identity(program, &at("b")), identity(program, &at("a/d")));
            assert_eq!(identity(program, &at("b/file")), identity(program, &at("a/d/file")));
            assert_eq!(identity(program, &at("b/..")), identity(program, "/tmp/volume"));
            assert_eq!(identity(program, &at("b/e/../../other")), identity(program, &at("other")));
            assert_eq!(identity(program, &at("a/d/..")), identity(program, &at("a")));
            change_directory(program, &at("b/e")).unwrap();
            assert_eq!(working_directory(program), Ok(at("b/e")));
            assert_eq!(unmount(program, &at("b"), 0), Err(EBUSY));
            change_directory(program, "../..").unwrap();
            assert_eq!(working_directory(program).as_deref(), Ok("/tmp/volume"));
            assert_eq!(rename(program, "b/file", "a/d/moved"), Err(EXDEV));
            assert_eq!(link(program, "b/file", "a/d/linked"), Err(EXDEV));
            assert_eq!(rename(program, "b/file", "b/e/file"), Ok(0));
            assert_eq!(rename(program, "a/d/e/file", "a/d/file"), Ok(0));
            assert_eq!(unlink(program, "b", types::AT_REMOVEDIR), Err(EBUSY));
            // A mount in the bind is not seen in the directory itself, which it keeps there all the same.
            assert_eq!(mount(program, "b/e", 0, ""), Ok(0));
            create(program, "b/e/in");
            assert_eq!(open(program, "a/d/e/in", 0), Err(ENOENT));
            create(program, "a/d/e/below");
            assert_eq!(identity(program, "a/d/e/.."), identity(program, "a/d"));
            assert_eq!(rename(program, "a/d/e", "a/d/f"), Err(EBUSY));
            assert_eq!(unmount(program, "b", 0), Err(EBUSY));
            // With and without what is mounted below it.
            assert_eq!(bind(program, "b", "sub", 0), Ok(0));
            assert_eq!(open(program, "sub/e/in", 0), Err(ENOENT));
            assert_eq!(unmount(program, "sub", 0), Ok(0));
            assert_eq!(bind(program, "b", "sub", flag::RECURSIVE), Ok(0));
            assert_eq!(identity(program, "sub/e/in"), identity(program, "b/e/in"));
            assert_eq!(unmount(program, "sub", 0), Err(EBUSY));
            assert_eq!(unmount(program, "sub/e", 0), Ok(0));
            assert_eq!(unmount(program, "sub", 0), Ok(0));
            assert_eq!(unmount(program, "b/e", 0), Ok(0));
            unlink(program, "a/d/e/below", 0).unwrap();
            assert_eq!(rename(program, "a/d/e", "a/d/f"), Ok(0), "nothing covers it any more");
            assert_eq!(rename(program, "a/d/f", "a/d/e"), Ok(0));
            // Read-only is the bind alone.
            let file = open(program, "b/file", how::RDWR).unwrap();
            assert_eq!(bind(program, "none", "b", flag::REMOUNT | flag::READ_ONLY), Err(EBUSY));
            program.close(file).unwrap();
            assert_eq!(bind(program, "none", "b/e", flag::REMOUNT | flag::READ_ONLY), Err(EINVAL));
            assert_eq!(bind(program, "none", "b", flag::REMOUNT | flag::READ_ONLY), Ok(0));
            assert_eq!(open(program, "b/file", how::RDWR), Err(EROFS));
            assert_eq!(open(program, "b/file", how::TRUNC), Err(EROFS));
            assert_eq!(open(program, "b/new", how::RDWR | how::CREAT), Err(EROFS));
            assert_eq!(open(program, "b/file", how::WRONLY | how::CREAT | how::EXCL), Err(EEXIST));
            assert_eq!(make_directory(program, "b/new"), Err(EROFS));
            assert_eq!(make_directory(program, "b/e"), Err(EEXIST));
            assert_eq!(unlink(program, "b/file", 0), Err(EROFS));
            assert_eq!(rename(program, "b/file", "b/new"), Err(EROFS));
            assert_eq!(link(program, "b/file", "b/new"), Err(EROFS));
            assert_eq!(link(program, "b/file", "b/e"), Err(EEXIST));
            let path = text(program, "b/file");
            assert_eq!(program.call(SystemCall::ChangeModeAt, [HERE, path, 0o600]), Err(EROFS));
            assert_eq!(program.call(SystemCall::TruncateAt, [path, 0]), Err(EROFS));
            let file = open(program, "b/file", how::CREAT).unwrap();
            assert_eq!(program.read_from(file, 8).as_deref(), Ok(&b"text"[..]));
            program.close(file).unwrap();
            assert_eq!(listed(program, "/proc/mounts", " /tmp/volume/b ")[0].split([' ', ',']).nth(3), Some("ro"));
            let line = listed(program, "/proc/self/mountinfo", " /tmp/volume/b ").remove(0);
            let words: Vec<&str> = line.split(' ').collect();
            assert!(words[3].ends_with("/a/d") && words[5].starts_with("ro,"), "{line}");
            assert!(words[9].starts_with("rw"), "the file system is not read-only: {line}");
            let file = open(program, "a/d/file", how::RDWR).unwrap();
            program.close(file).unwrap();
            assert_eq!(bind(program, "none", "b", flag::REMOUNT), Ok(0));
            create(program, "b/new");
            unlink(program, "a/d/new", 0).unwrap();
            // A directory that is moved out of the bind leads to no other.
            make_directory(program, "b/e/x").unwrap();
            change_directory(program, "b/e/x").unwrap();
            assert_eq!(rename(program, "/tmp/volume/a/d/e/x", "/tmp/volume/x"), Ok(0));
            assert_eq!(working_directory(program), Err(ENOENT));
            assert_eq!(rename(program, "/tmp/volume/x", "/tmp/volume/a/d/e/x"), Ok(0));
            assert_eq!(working_directory(program).as_deref(), Ok("/tmp/volume/b/e/x"));
            change_directory(program, "/tmp/volume").unwrap();
            // A file, too.
            assert_eq!(bind(program, "a/d/file", "other", 0), Ok(0));
            assert_eq!(identity(program, "other"), identity(program, "a/d/file"));
            for path in ["other/", "other/x"] {
                assert_eq!(open(program, path, 0), Err(ENOTDIR));
            }
            assert_eq!(unlink(program, "other", 0), Err(EBUSY));
            assert_eq!(rename(program, "other", "another"), Err(EBUSY));
            assert_eq!(rename(program, "a/d/file", "other"), Err(EBUSY));
            let file = open(program, "other", how::RDWR | how::CREAT | how::TRUNC).unwrap();
            assert_eq!(program.write_to(file, b"more"), Ok(4));
            let source = open(program, "a/d/file", 0).unwrap();
            assert_eq!(
                program.read_from(source, 10).as_deref(),
                Ok(&b"more"[..]),
                "it is the bound file that was opened"
            );
            program.close(source).unwrap();
            assert_eq!(open(program, "other", how::RDWR | how::CREAT | how::EXCL), Err(EEXIST));
            assert_eq!(unmount(program, "other", 0), Err(EBUSY));
            program.close(file).unwrap();
            assert_eq!(link(program, "other", "linked"), Err(EXDEV));
            assert_eq!(unmount(program, "other", 0), Ok(0));
            unlink(program, "other", 0).unwrap();
            // A directory over one that is above it.
            assert_eq!(bind(program, "a", "a/d/e/x", flag::RECURSIVE), Ok(0));
            assert_eq!(identity(program, "a/d/e/x/d/e/x/.."), identity(program, "a/d/e"));
            assert_eq!(unmount(program, "a/d/e/x", 0), Ok(0));
            assert_eq!(unmount(program, "b", removal::DETACH), Ok(0));
            change_directory(program, "/").unwrap();
            unlink(program, &at("a/d/file"), 0).unwrap();
            for name in ["a/d/e/x", "a/d/e", "a/d", "a", "b", "sub"] {
                unlink(program, &at(name), types::AT_REMOVEDIR).unwrap();
            }
        }

        in_memory_and_on_a_volume(check);
    }

    /// A file system lives until its last mount goes, and generated files can be bound as others.
    #[test]
    fn a_bind_outlives_the_mount_that_it_was_made_of() {
        run_with_capability(|program| {
            let files = program.process().account.used(Resource::Files);
            for path in ["/tmp/m", "/tmp/n", "/tmp/p"] {
                make_directory(program, path).unwrap();
            }
            create(program, "/tmp/cpu");
            mount(program, "/tmp/m", flag::NO_EXECUTION, "").unwrap();
            create(program, "/tmp/m/file");
            let before = identity(program, "/tmp/m/file");
            bind(program, "/tmp/m", "/tmp/n", 0).unwrap();
            unmount(program, "/tmp/m", 0).unwrap();
            assert_eq!(identity(program, "/tmp/n/file"), before);
            assert!(listed(program, "/proc/mounts", " /tmp/n ")[0].contains("noexec"), "as the first mount was");
            let file = open(program, "/tmp/n/file", how::RDWR).unwrap();
            assert_eq!(mount(program, "/tmp/n", flag::REMOUNT | flag::READ_ONLY, ""), Err(Errno::EBUSY));
            program.close(file).unwrap();
            unmount(program, "/tmp/n", 0).unwrap();
            bind(program, "/proc/sys", "/tmp/p", 0).unwrap();
            assert_eq!(identity(program, "/tmp/p/kernel"), identity(program, "/proc/sys/kernel"));
            assert_eq!(identity(program, "/tmp/p/kernel/../.."), identity(program, "/tmp"));
            change_directory(program, "/tmp/p/kernel").unwrap();
            assert_eq!(working_directory(program).as_deref(), Ok("/tmp/p/kernel"));
            change_directory(program, "/").unwrap();
            unmount(program, "/tmp/p", 0).unwrap();
            bind(program, "/proc/uptime", "/tmp/cpu", 0).unwrap();
            assert_eq!(listed(program, "/proc/self/mountinfo", " /uptime /tmp/cpu ").len(), 1);
            let file = open(program, "/tmp/cpu", 0).unwrap();
            assert!(!program.read_from(file, 64).unwrap().is_empty());
            program.close(file).unwrap();
            unmount(program, "/tmp/cpu", 0).unwrap();
            // The root of all, whose absolute paths are no others there.
            bind(program, "/", "/tmp/m", 0).unwrap();
            assert_eq!(identity(program, "/tmp/m/tmp/m/.."), identity(program, "/tmp"));
            assert_eq!(identity(program, "/tmp/m/.."), identity(program, "/tmp"));
            let (target, name) = (text(program, "/tmp/n"), text(program, "/tmp/link"));
            program.call(SystemCall::SymbolicLink, [target, HERE, name]).unwrap();
            assert_eq!(identity(program, "/tmp/m/tmp/link/.."), identity(program, "/tmp"));
            unlink(program, "/tmp/link", 0).unwrap();
            unmount(program, "/tmp/m", 0).unwrap();
            for path in ["/tmp/m", "/tmp/n", "/tmp/p"] {
                unlink(program, path, types::AT_REMOVEDIR).unwrap();
            }
            unlink(program, "/tmp/cpu", 0).unwrap();
            assert_eq!(program.process().account.used(Resource::Files), files);
        });
    }

    /// Binds are mounts, of which there are not too many, and one of several mounts is made with all or with none.
    #[test]
    fn binds_have_the_limit_of_mounts() {
        run_with_capability(|program| {
            make_directory(program, "/tmp/m").unwrap();
            mount(program, "/tmp/m", 0, "").unwrap();
            for path in ["/tmp/m/a", "/tmp/m/b", "/tmp/m/a/x"] {
                make_directory(program, path).unwrap();
            }
            bind(program, "/tmp/m/a/x", "/tmp/m/a/x", 0).unwrap();
            let mut count = 0;
            // Each is on top of the last one.
            while bind(program, "/tmp/m/a", "/tmp/m/b", 0) == Ok(0) {
                count += 1;
            }
            assert_eq!(bind(program, "/tmp/m/a", "/tmp/m/b", 0), Err(Errno::ENOSPC));
            assert!((50..64).contains(&count), "{count}");
            unmount(program, "/tmp/m/b", 0).unwrap();
            assert_eq!(bind(program, "/tmp/m/a", "/tmp/m/b", flag::RECURSIVE), Err(Errno::ENOSPC), "two mounts");
            assert_eq!(bind(program, "/tmp/m/a", "/tmp/m/b", 0), Ok(0));
            assert_eq!(unmount(program, "/tmp/m", removal::DETACH), Ok(0));
            assert_eq!(listed(program, "/proc/mounts", "/tmp/m"), [] as [String; 0]);
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
        });
    }

    /// Mounts are listed in the order in which they were made, after the root.
    #[test]
    fn mounts_are_listed_in_their_order() {
        run_with_capability(|program| {
            for path in ["/tmp/1", "/tmp/2", "/tmp/3"] {
                make_directory(program, path).unwrap();
            }
            for path in ["/tmp/1", "/tmp/2"] {
                mount(program, path, 0, "").unwrap();
            }
            // Its number is the next mount's.
            unmount(program, "/tmp/1", 0).unwrap();
            mount(program, "/tmp/3", 0, "").unwrap();
            let file = open(program, "/proc/mounts", 0).unwrap();
            let lines = String::from_utf8(program.read_from(file, 4096).unwrap()).unwrap();
            let paths: Vec<&str> = lines.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
            assert_eq!(paths, ["/", "/proc", "/dev/mqueue", "/tmp/2", "/tmp/3"]);
            program.close(file).unwrap();
            for path in ["/tmp/2", "/tmp/3"] {
                unmount(program, path, 0).unwrap();
            }
            for path in ["/tmp/1", "/tmp/2", "/tmp/3"] {
                unlink(program, path, types::AT_REMOVEDIR).unwrap();
            }
        });
    }

    /// Names of mount points, and names of two mounts, are refused as on Linux, in memory and on a volume.
    #[test]
    fn names_of_mount_points_are_refused() {
        use Errno::{EBUSY, EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EXDEV};

        use crate::files::volume::tests::in_memory_and_on_a_volume;

        fn compare(program: &mut Program) {
            let mut wrong = Vec::new();
            let mut check = |what: String, result: Result<usize, Errno>, expected: Result<usize, Errno>| {
                if result != expected {
                    wrong.push(format!("{what}: {result:?}, not {expected:?}"));
                }
            };
            let at = |name: &str| format!("/tmp/volume/{name}");
            for name in ["d", "e"] {
                make_directory(program, &at(name)).unwrap();
            }
            create(program, &at("f"));
            mount(program, &at("d"), 0, "").unwrap();
            create(program, &at("d/in"));
            let rename = |program: &mut Program, from: &str, to: &str, flags: usize| {
                let (old, new) = (text(program, &at(from)), text(program, &at(to)));
                program.call(SystemCall::Rename, [HERE, old, HERE, new, flags])
            };
            for (name, is_directory, error) in [
                ("d", false, EISDIR),
                ("d", true, EBUSY),
                ("d/", true, EBUSY),
                ("d/.", true, EINVAL),
                ("d/..", true, ENOTEMPTY),
                ("d/.", false, EISDIR),
                ("d/..", false, EISDIR),
            ] {
                let flags = if is_directory { types::AT_REMOVEDIR } else { 0 };
                check(format!("unlink {name} {flags}"), unlink(program, &at(name), flags), Err(error));
            }
            for name in ["d", "d/", "d/.", "d/.."] {
                check(format!("mkdir {name}"), make_directory(program, &at(name)), Err(EEXIST));
            }
            for (from, to, flags, result) in [
                ("d", "x", 0, Err(EBUSY)),
                ("f", "d", 0, Err(EISDIR)),
                ("d", "f", 0, Err(ENOTDIR)),
                ("e", "d", 0, Err(EBUSY)),
                ("d", "e", 0, Err(EBUSY)),
                ("d", "d", 0, Ok(0)),
                ("f", "d", 1, Err(EEXIST)),
                ("e/.", "d", 1, Err(EBUSY)),
                ("e/..", "d", 1, Err(EBUSY)),
                ("d", "e", 2, Err(EBUSY)),
                ("f", "d", 2, Err(EBUSY)),
                ("d/in", "x", 0, Err(EXDEV)),
                ("d/missing", "x", 0, Err(EXDEV)),
                ("f", "d/x", 0, Err(EXDEV)),
                ("missing", "d/x", 0, Err(EXDEV)),
                ("d/.", "x", 0, Err(EXDEV)),
                ("missing", "d", 0, Err(ENOENT)),
                ("e/.", "x", 0, Err(EBUSY)),
                ("e", "f/", 0, Err(ENOTDIR)),
            ] {
                check(format!("rename {from} {to} {flags}"), rename(program, from, to, flags), result);
            }
            for (from, to, error) in [
                ("d/in", "x", EXDEV),
                ("f", "d/x", EXDEV),
                ("f", "d/in", EEXIST),
                ("missing", "d/x", ENOENT),
                ("d", "x", EXDEV),
                ("f", "d", EEXIST),
            ] {
                check(format!("link {from} {to}"), link(program, &at(from), &at(to)), Err(error));
            }
            check("exclusive".into(), open(program, &at("d"), how::CREAT | how::EXCL), Err(EEXIST));
            check("create".into(), open(program, &at("d"), how::CREAT), Err(EISDIR));
            unmount(program, &at("d"), 0).unwrap();
            for name in ["d", "e"] {
                unlink(program, &at(name), types::AT_REMOVEDIR).unwrap();
            }
            unlink(program, &at("f"), 0).unwrap();
            assert!(wrong.is_empty(), "{wrong:#?}");
        }

        in_memory_and_on_a_volume(compare);
    }

    #[test]
    fn every_descriptor_has_a_file_system() {
        run(|program| {
            let (pipe, _) = program.pipe(0);
            let socket = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
            let counter = program.call(SystemCall::EventCounter, [0, 0]).unwrap();
            let stored = open(program, "/tmp", 0).unwrap();
            let device = open(program, "/dev/null", 0).unwrap();
            let buffer = program.place(120);
            for (file, magic) in [
                (pipe, mounting::PIPE_MAGIC),
                (socket, mounting::SOCKET_MAGIC),
                (counter, mounting::ANONYMOUS_MAGIC),
                (stored, mounting::TMPFS_MAGIC),
                (device, mounting::TMPFS_MAGIC),
            ] {
                program.call(SystemCall::FileSystem, [file, buffer]).unwrap();
                assert_eq!(u64::from(program.read_u32(buffer)), magic);
            }
        });
    }

    /// Symbolic links count for the whole of a path, whichever file systems they are in.
    #[test]
    fn links_of_all_mounts_on_a_path_count_together() {
        run_with_capability(|program| {
            make_directory(program, "/tmp/m").unwrap();
            mount(program, "/tmp/m", 0, "").unwrap();
            make_directory(program, "/tmp/m/d").unwrap();
            create(program, "/tmp/m/d/file");
            let mut chain = |below: &str, count: usize, end: &str| {
                for number in 0..count {
                    let next = if number + 1 < count { format!("{}", number + 1) } else { end.into() };
                    let (target, path) = (text(program, &next), text(program, &format!("{below}/{number}")));
                    program.call(SystemCall::SymbolicLink, [target, HERE, path]).unwrap();
                }
            };
            // 21 and 20 links, and 40 to a link of /proc.
            chain("/tmp", 21, "/tmp/m/0");
            chain("/tmp/m", 20, "d");
            chain("/tmp/m/d", 40, "/proc/self/comm");
            let status = |program: &mut Program, path: &str| {
                let (path, place) = (text(program, path), program.place(128));
                program.call(SystemCall::StatusAt, [HERE, path, place, 0])
            };
            for path in ["/tmp/1/file", "/tmp/m/d/1"] {
                assert_eq!(status(program, path), Ok(0), "40 links");
                assert!(open(program, path, 0).is_ok());
            }
            for path in ["/tmp/0/file", "/tmp/m/d/0"] {
                assert_eq!(status(program, path), Err(Errno::ELOOP), "41 links");
                assert_eq!(open(program, path, 0), Err(Errno::ELOOP));
            }
            assert_eq!(open(program, "/tmp/0/new", how::RDWR | how::CREAT), Err(Errno::ELOOP));
            assert_eq!(make_directory(program, "/tmp/0/new"), Err(Errno::ELOOP));
            assert_eq!(unlink(program, "/tmp/0/file", 0), Err(Errno::ELOOP));
            for (old, new) in [("/tmp/0/file", "/tmp/m/new"), ("/tmp/m/d/file", "/tmp/0/new")] {
                assert_eq!(rename(program, old, new), Err(Errno::ELOOP));
                assert_eq!(link(program, old, new), Err(Errno::ELOOP));
            }
            assert_eq!(rename(program, "/tmp/1/file", "/tmp/1/new"), Ok(0));
            for descriptor in 0..10 {
                let _ = program.close(descriptor);
            }
            unmount(program, "/tmp/m", 0).unwrap();
            for number in 0..21 {
                unlink(program, &format!("/tmp/{number}"), 0).unwrap();
            }
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
        });
    }

    /// The path of a call has a greatest length, and each target of a link has one of its own.
    #[test]
    fn a_link_to_another_mount_may_make_a_path_longer() {
        run_with_capability(|program| {
            make_directory(program, "/tmp/m").unwrap();
            mount(program, "/tmp/m", 0, "").unwrap();
            create(program, "/tmp/m/file");
            let dots = "./".repeat(2000);
            let (target, path) = (text(program, &format!("/tmp/m/{dots}")), text(program, "/tmp/long"));
            program.call(SystemCall::SymbolicLink, [target, HERE, path]).unwrap();
            assert!(open(program, &format!("/tmp/long/{dots}file"), 0).is_ok());
            let proc = text(program, "/tmp/m/p");
            let target = text(program, &format!("/proc/{dots}"));
            program.call(SystemCall::SymbolicLink, [target, HERE, proc]).unwrap();
            assert!(open(program, &format!("/tmp/m/p/{dots}uptime"), 0).is_ok());
            for descriptor in 0..10 {
                let _ = program.close(descriptor);
            }
            unmount(program, "/tmp/m", 0).unwrap();
            unlink(program, "/tmp/long", 0).unwrap();
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
        });
    }

    /// A name that must be made is not followed, also where it leads to another file system.
    #[test]
    fn exclusive_creation_does_not_follow_a_link_out_of_a_mount() {
        run_with_capability(|program| {
            make_directory(program, "/tmp/m").unwrap();
            mount(program, "/tmp/m", 0, "").unwrap();
            let (target, name) = (text(program, "/tmp/made"), text(program, "/tmp/m/x"));
            program.call(SystemCall::SymbolicLink, [target, HERE, name]).unwrap();
            let exclusive = how::WRONLY | how::CREAT | how::EXCL;
            assert_eq!(open(program, "/tmp/m/x", exclusive), Err(Errno::EEXIST));
            assert_eq!(open(program, "/tmp/m/x", how::WRONLY | how::NOFOLLOW), Err(Errno::ELOOP));
            assert_eq!(open(program, "/tmp/made", 0), Err(Errno::ENOENT));
            let file = open(program, "/tmp/m/x", how::WRONLY | how::CREAT).unwrap();
            program.close(file).unwrap();
            unlink(program, "/tmp/made", 0).unwrap();
            assert_eq!(open(program, "/proc/self", exclusive), Err(Errno::EEXIST));
            assert_eq!(unmount(program, "/tmp/m", 0), Ok(0));
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
        });
    }

    /// A process that was waited for uses nothing any more, whatever still refers to it.
    #[test]
    fn an_ended_process_keeps_no_mount_in_use() {
        run_with_capability(|program| {
            make_directory(program, "/tmp/m").unwrap();
            mount(program, "/tmp/m", 0, "").unwrap();
            let child = program.spawn(|program| {
                change_directory(program, "/tmp/m").unwrap();
                program.sleep_ns(1_000_000);
            });
            let child = child.unwrap();
            program.sleep_ns(100_000);
            let kept = crate::process::table::find(child as u32).unwrap();
            assert_eq!(unmount(program, "/tmp/m", 0), Err(Errno::EBUSY));
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(unmount(program, "/tmp/m", 0), Ok(0));
            drop(kept);
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
        });
    }

    #[test]
    fn nothing_of_a_mount_without_execution_is_mapped_to_be_executed() {
        run_with_capability(|program| {
            make_directory(program, "/tmp/m").unwrap();
            mount(program, "/tmp/m", flag::NO_EXECUTION, "size=0").unwrap();
            create(program, "/tmp/m/code");
            let file = open(program, "/tmp/m/code", 0).unwrap();
            let private = types::mapping::PRIVATE as usize;
            let map = |program: &mut Program, protection: u32| {
                program.call(SystemCall::Map, [0, 4096, protection as usize, private, file, 0])
            };
            use types::protection::{EXECUTE, READ};
            assert_eq!(map(program, READ | EXECUTE), Err(Errno::EPERM));
            assert!(map(program, READ).is_ok());
            program.close(file).unwrap();
            assert_eq!(unmount(program, "/tmp/m", 0), Ok(0));
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
        });
    }

    /// A mount that fails leaves nothing behind when it returns.
    #[test]
    fn a_failed_mount_gives_up_its_tree() {
        run_with_capability(|program| {
            make_directory(program, "/tmp/m").unwrap();
            mount(program, "/tmp/m", 0, "").unwrap();
            change_directory(program, "/tmp/m").unwrap();
            make_directory(program, "d").unwrap();
            unmount(program, "/tmp/m", removal::DETACH).unwrap();
            let files = program.process().account.used(Resource::Files);
            assert_eq!(mount(program, "d", 0, ""), Err(Errno::EINVAL));
            assert!(!crate::files::remains::are_left());
            assert_eq!(program.process().account.used(Resource::Files), files);
            change_directory(program, "/").unwrap();
            unlink(program, "/tmp/m", types::AT_REMOVEDIR).unwrap();
        });
    }

    #[test]
    fn a_program_without_the_capability_mounts_nothing() {
        run(|program| {
            let child = program.spawn(|program| {
                assert_eq!(mount(program, "/tmp", 0, ""), Err(Errno::EPERM));
                assert_eq!(unmount(program, "/tmp", 0), Err(Errno::EPERM));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }
}
