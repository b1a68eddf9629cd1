//! The calls on extended attributes: values with names that programs give to files (xattr(7)).
//!
//! Files of volumes have them, in the namespaces `user`, `trusted` and `security`; a value is as long as its volume
//! keeps it. Files elsewhere have none: `EOPNOTSUPP`, and an empty list. The rules are Linux's for each namespace:
//! `user` is for regular files and directories, and for users that may read or write them; `trusted`, and changes of
//! `security`, are for processes that may mount.

use alloc::vec::Vec;
use core::mem::take;

use abi_unix::types::AT_FDCWD;
use abi_unix::{Act, Errno, SystemCall};
use ext4::AttributeMode;
use filesystem::rights::{self, READ, Subject, WRITE};
use filesystem::{FileKind, LastLink};

use crate::calls::call::{Call, Decoding};
use crate::calls::paths::{Effect, follow, path_from};
use crate::files::mounts::{Halt, Node, Path, Place};
use crate::files::tree::errno_of;
use crate::files::volume::{VolumeAnswer, VolumeNode, VolumeRequest};
use crate::process::accounts::Resource;
use crate::process::authority;

/// Bytes of the longest name (`XATTR_NAME_MAX`), value (`XATTR_SIZE_MAX`) and list (`XATTR_LIST_MAX`).
const LONGEST_NAME: usize = 255;
const LONGEST_VALUE: usize = 65_536;
/// Bytes of the largest block of a volume that is mounted, in which a value must fit.
const LONGEST_ON_A_VOLUME: usize = 4096;

/// Performs a call on the file that its first argument names.
fn on_file(
    call: &Call<'_>,
    mut act: impl FnMut(&Call<'_>, &mut Path, &Place) -> Result<usize, Halt> + Send + 'static,
) -> Decoding {
    use SystemCall::*;
    call.admitted()?;
    let last = match call.number {
        SetAttribute | GetAttribute | ListAttributes | RemoveAttribute => LastLink::Follow,
        SetAttributeOfLink | GetAttributeOfLink | ListAttributesOfLink | RemoveAttributeOfLink => LastLink::Keep,
        _ => {
            let place = call.file(0)?.object().place();
            // It leads nowhere, and waits for the answers of the volume.
            let path = path_from(call.process(), AT_FDCWD, b".".to_vec())?;
            return follow(call, [path], Effect::Keeps, move |call, [path]| {
                // A pipe or a socket has none.
                act(call, path, place.as_ref().ok_or(Errno::EOPNOTSUPP)?)
            });
        }
    };
    let path = path_from(call.process(), AT_FDCWD, call.process().copy_in_path(call.address(0))?)?;
    follow(call, [path], Effect::Keeps, move |call, [path]| {
        let place = path.look_up(last)?;
        path.stays_at(&place);
        act(call, path, &place)
    })
}

/// Reads the name of an attribute. `ERANGE` if it is empty or too long.
fn read_name(call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    let name = call.process().copy_in_string(call.address(1), LONGEST_NAME + 1, Errno::ERANGE)?;
    if name.is_empty() || name.len() > LONGEST_NAME { Err(Errno::ERANGE) } else { Ok(name) }
}

/// The purpose for which a call looks for an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Change,
}

/// Returns the file of a volume. `EOPNOTSUPP` for others; the errors of its namespace if an attribute with this name is
/// not for it or for the caller.
///
/// With the answer of the volume at hand nothing is checked again: the call is done, whatever rights changed meanwhile.
fn permitted<'a>(
    call: &Call<'_>,
    path: &Path,
    place: &'a Place,
    name: &[u8],
    is_for: Use,
) -> Result<&'a VolumeNode, Errno> {
    if !path.is_answered() {
        permit(call, path, place, name, is_for)?;
    }
    match &place.node {
        Node::OnVolume(node) => Ok(node),
        Node::Stored(_) | Node::Generated(_) => Err(Errno::EOPNOTSUPP),
    }
}

fn permit(call: &Call<'_>, path: &Path, place: &Place, name: &[u8], is_for: Use) -> Result<(), Errno> {
    if is_for == Use::Change && place.mount.is_read_only() {
        return Err(Errno::EROFS);
    }
    let refused = if is_for == Use::Change { Errno::EPERM } else { Errno::ENODATA };
    let may_administer = || authority::permit(call.process(), Act::Mount).is_ok();
    if name.starts_with(b"trusted.") && !may_administer() {
        return Err(refused);
    }
    if name.starts_with(b"user.") && !matches!(place.node.kind(), FileKind::Regular | FileKind::Directory) {
        return Err(refused);
    }
    if name.starts_with(b"security.") && is_for == Use::Change && !may_administer() {
        return Err(Errno::EPERM);
    }
    if name.starts_with(b"user.") {
        permit_own(path.subject(), place, is_for)?;
    }
    Ok(())
}

/// Fails if a user must not use the attributes of the namespace `user` of a file: they are read and changed as its
/// contents, and those of a sticky directory changed by its owner.
fn permit_own(subject: Option<&Subject>, place: &Place, is_for: Use) -> Result<(), Errno> {
    const STICKY: u16 = 0o1000;
    if is_for == Use::Read {
        return place.permit(subject, READ);
    }
    let file = place.metadata().ownership();
    if place.node.kind() == FileKind::Directory && file.permissions & STICKY != 0 {
        rights::permit_owner(subject, file).map_err(errno_of)?;
    }
    place.permit(subject, WRITE)
}

/// Copies a value or a list to the program, whose buffer is the arguments from this one on; only tells its length if
/// that has none. `ERANGE` if it does not fit.
fn answer(call: &Call<'_>, argument: usize, bytes: &[u8]) -> Result<usize, Halt> {
    let room = call.length(argument + 1);
    if room == 0 {
        return Ok(bytes.len());
    }
    if bytes.len() > room {
        return Err(Errno::ERANGE.into());
    }
    call.process().copy_out(call.address(argument), bytes)?;
    Ok(bytes.len())
}

/// Performs `setxattr`, `lsetxattr` and `fsetxattr`.
#[inline(never)]
pub(super) fn set(call: Call<'_>) -> Decoding {
    const CREATE: u32 = 1;
    const REPLACE: u32 = 2;
    let mode = match call.unsigned(4) {
        0 => AttributeMode::Any,
        CREATE => AttributeMode::Create,
        REPLACE => AttributeMode::Replace,
        _ => return Err(Errno::EINVAL),
    };
    let (name, length) = (read_name(&call)?, call.length(3));
    if length > LONGEST_VALUE {
        return Err(Errno::E2BIG);
    }
    // No volume has a place for more, whatever its blocks.
    if length > LONGEST_ON_A_VOLUME {
        return Err(Errno::ENOSPC);
    }
    call.admitted()?;
    // As long as the call goes on, also while the value waits with its request.
    let charge = call.process().account.charge(Resource::Memory, length)?;
    let mut value = Vec::new();
    value.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
    value.resize(length, 0);
    call.process().copy_in(call.address(2), &mut value)?;
    on_file(&call, move |call, path, place| {
        let _ = &charge;
        let node = permitted(call, path, place, &name, Use::Change)?;
        // One attempt asks, and takes the value with it.
        let request =
            || VolumeRequest::SetAttribute { node: node.clone(), name: name.clone(), value: take(&mut value), mode };
        path.ask(node.volume(), request).map(|_| 0)
    })
}

/// Performs `getxattr`, `lgetxattr` and `fgetxattr`.
#[inline(never)]
pub(super) fn get(call: Call<'_>) -> Decoding {
    let name = read_name(&call)?;
    on_file(&call, move |call, path, place| {
        let node = permitted(call, path, place, &name, Use::Read)?;
        let request = || VolumeRequest::GetAttribute(node.clone(), name.clone());
        match path.ask(node.volume(), request)? {
            VolumeAnswer::Bytes(value, _) => answer(call, 2, &value),
            _ => Err(Errno::EIO.into()),
        }
    })
}

/// Performs `listxattr`, `llistxattr` and `flistxattr`.
#[inline(never)]
pub(super) fn list(call: Call<'_>) -> Decoding {
    on_file(&call, |call, path, place| {
        let Node::OnVolume(node) = &place.node else { return Ok(0) };
        let VolumeAnswer::Bytes(mut names, _) =
            path.ask(node.volume(), || VolumeRequest::ListAttributes(node.clone()))?
        else {
            return Err(Errno::EIO.into());
        };
        if authority::permit(call.process(), Act::Mount).is_err() {
            let own = |name: &&[u8]| !name.starts_with(b"trusted.");
            names = names.split_inclusive(|byte| *byte == 0).filter(own).flatten().copied().collect();
        }
        answer(call, 1, &names)
    })
}

/// Performs `removexattr`, `lremovexattr` and `fremovexattr`.
#[inline(never)]
pub(super) fn remove(call: Call<'_>) -> Decoding {
    let name = read_name(&call)?;
    on_file(&call, move |call, path, place| {
        let node = permitted(call, path, place, &name, Use::Change)?;
        path.ask(node.volume(), || VolumeRequest::RemoveAttribute(node.clone(), name.clone())).map(|_| 0)
    })
}

#[cfg(test)]
mod tests {
    use std::format;

    use abi_unix::types::mounting::flag;
    use abi_unix::types::open as how;

    use super::*;
    use crate::files::volume::tests::{mount, open, text, unmount, with_volume};
    use crate::testing::{Program, run};

    fn at(program: &mut Program, name: &str) -> usize {
        text(program, &format!("/tmp/volume/{name}"))
    }

    fn set(program: &mut Program, file: usize, name: &str, value: &[u8], flags: usize) -> Result<usize, Errno> {
        let (name, value_at) = (text(program, name), program.store(value));
        program.call(SystemCall::SetAttribute, [file, name, value_at, value.len(), flags])
    }

    fn get(program: &mut Program, file: usize, name: &str, room: usize) -> Result<Vec<u8>, Errno> {
        let (name, place) = (text(program, name), program.place(room.max(1)));
        let length = program.call(SystemCall::GetAttribute, [file, name, place, room])?;
        Ok(program.read(place, length.min(room)))
    }

    fn list(program: &mut Program, file: usize) -> Vec<u8> {
        let place = program.place(1000);
        let length = program.call(SystemCall::ListAttributes, [file, place, 1000]).unwrap();
        program.read(place, length)
    }

    #[test]
    fn attributes_are_kept_with_the_file() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let descriptor = open(program, "file", how::CREAT).unwrap();
            let file = at(program, "file");
            assert_eq!(list(program, file), b"");
            assert_eq!(get(program, file, "user.a", 10), Err(Errno::ENODATA));
            assert_eq!(set(program, file, "user.a", b"one", 2), Err(Errno::ENODATA));
            assert_eq!(set(program, file, "user.a", b"one", 1), Ok(0));
            assert_eq!(set(program, file, "user.a", b"two", 1), Err(Errno::EEXIST));
            assert_eq!(set(program, file, "user.a", b"three", 0), Ok(0));
            assert_eq!(set(program, file, "trusted.b", b"", 0), Ok(0));
            assert_eq!(set(program, file, "security.c", &[7; 1000], 0), Ok(0));
            assert_eq!(get(program, file, "user.a", 10).as_deref(), Ok(&b"three"[..]));
            assert_eq!(get(program, file, "user.a", 4), Err(Errno::ERANGE));
            assert_eq!(get(program, file, "trusted.b", 4).as_deref(), Ok(&b""[..]));
            let (name, place) = (text(program, "user.a"), program.place(10));
            assert_eq!(program.call(SystemCall::GetAttribute, [file, name, 0, 0]), Ok(5), "the length alone");
            assert_eq!(program.call(SystemCall::GetAttributeOfFile, [descriptor, name, place, 10]), Ok(5));
            assert_eq!(program.call(SystemCall::ListAttributes, [file, place, 3]), Err(Errno::ERANGE));
            // As long as they are on the disk.
            program.close(descriptor).unwrap();
            assert_eq!(unmount(program), Ok(0));
            assert_eq!(mount(program, 0), Ok(0));
            assert_eq!(get(program, file, "security.c", 2000).as_deref(), Ok(&[7; 1000][..]));
            let mut names: Vec<Vec<u8>> = list(program, file)
                .split(|byte| *byte == 0)
                .map(<[u8]>::to_vec)
                .filter(|name| !name.is_empty())
                .collect();
            names.sort();
            assert_eq!(names, [&b"security.c"[..], b"trusted.b", b"user.a"]);
            let child = program.spawn(move |program| {
                let file = at(program, "file");
                assert_eq!(set(program, file, "trusted.b", b"x", 0), Err(Errno::EPERM));
                assert_eq!(set(program, file, "security.c", b"x", 0), Err(Errno::EPERM));
                assert_eq!(get(program, file, "trusted.b", 10), Err(Errno::ENODATA));
                assert_eq!(set(program, file, "user.a", b"child", 2), Ok(0));
                assert!(!list(program, file).windows(7).any(|part| part == b"trusted"));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(program.call(SystemCall::RemoveAttribute, [file, name]), Ok(0));
            assert_eq!(program.call(SystemCall::RemoveAttribute, [file, name]), Err(Errno::ENODATA));
            assert_eq!(mount(program, flag::REMOUNT | flag::READ_ONLY), Ok(0));
            assert_eq!(set(program, file, "user.a", b"x", 0), Err(Errno::EROFS));
            assert_eq!(unmount(program), Ok(0));
        });
    }

    #[test]
    fn names_values_and_files_that_have_none_are_refused() {
        with_volume(|program| {
            assert_eq!(mount(program, 0), Ok(0));
            let descriptor = open(program, "file", how::CREAT).unwrap();
            program.close(descriptor).unwrap();
            let (file, link, target) = (at(program, "file"), at(program, "link"), text(program, "file"));
            let here = AT_FDCWD as usize;
            assert_eq!(program.call(SystemCall::SymbolicLink, [target, here, link]), Ok(0));
            assert_eq!(set(program, link, "user.a", b"through", 0), Ok(0));
            assert_eq!(get(program, file, "user.a", 10).as_deref(), Ok(&b"through"[..]));
            let (name, place) = (text(program, "user.a"), program.place(10));
            assert_eq!(program.call(SystemCall::GetAttributeOfLink, [link, name, place, 10]), Err(Errno::ENODATA));
            assert_eq!(
                program.call(SystemCall::SetAttributeOfLink, [link, name, place, 1, 0]),
                Err(Errno::EPERM),
                "a symbolic link has none of a user"
            );
            let long = format!("user.{}", "n".repeat(251));
            for (name, error) in [
                ("", Errno::ERANGE),
                (&long, Errno::ERANGE),
                ("user.", Errno::EINVAL),
                ("user", Errno::EOPNOTSUPP),
                ("other.name", Errno::EOPNOTSUPP),
                ("system.posix_acl_access", Errno::EOPNOTSUPP),
            ] {
                assert_eq!(set(program, file, name, b"x", 0), Err(error), "{name}");
                assert_eq!(get(program, file, name, 10), Err(error), "{name}");
            }
            assert_eq!(set(program, file, "user.a", b"x", 3), Err(Errno::EINVAL));
            assert_eq!(set(program, file, "user.a", b"x", 4), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SetAttribute, [file, name, place, 65_537, 0]), Err(Errno::E2BIG));
            assert_eq!(set(program, file, "user.long", &[1; 40_000], 0), Err(Errno::ENOSPC));
            assert_eq!(program.call(SystemCall::SetAttribute, [file, name, 1, 4, 0]), Err(Errno::EFAULT));
            let missing = at(program, "missing");
            assert_eq!(get(program, missing, "user.a", 10), Err(Errno::ENOENT));
            assert_eq!(unmount(program), Ok(0));
        });
        run(|program| {
            let directory = text(program, "/tmp");
            assert_eq!(set(program, directory, "user.a", b"x", 0), Err(Errno::EOPNOTSUPP));
            assert_eq!(get(program, directory, "user.a", 10), Err(Errno::EOPNOTSUPP));
            assert_eq!(list(program, directory), b"");
            let (reader, _) = program.pipe(0);
            let name = text(program, "user.a");
            assert_eq!(program.call(SystemCall::GetAttributeOfFile, [reader, name, 0, 0]), Err(Errno::EOPNOTSUPP));
        });
    }
}
