//! The calls on local sockets and their names.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;

use abi_unix::Errno;
use abi_unix::types::{self, LONGEST_LOCAL_NAME};
use filesystem::rights::WRITE;
use filesystem::{Access, LastComponent, LastLink, SpecialFile};

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding, admitted, kept};
use crate::calls::files::{owner, permissions_of_new};
use crate::calls::paths::{Effect, follow, path_from};
use crate::files::file::{self, OpenFile};
use crate::files::local_name::GivenName;
use crate::files::local_socket::connecting::{LocalConnect, NamedSocket};
use crate::files::local_socket::names::{self, NameReservation};
use crate::files::local_socket::{Inbox, LocalSocket};
use crate::files::mounts::{Halt, Node, Path, Place};
use crate::files::tree::made_by;
use crate::files::volume::VolumeRequest;
use crate::process::Process;
use crate::scheduling::steps;

/// Most bytes of an address of any family (`struct sockaddr_storage`).
const LONGEST_ADDRESS: usize = 128;

/// Returns the kind of a local socket that a program asks for. As on Linux, `SOCK_RAW` is one of datagrams.
pub(super) fn require_kind(kind: u32, protocol: u32) -> Result<u32, Errno> {
    if protocol != 0 && protocol != types::AF_UNIX.into() {
        return Err(Errno::EPROTONOSUPPORT);
    }
    match kind {
        types::SOCK_STREAM | types::SOCK_DGRAM | types::SOCK_SEQPACKET => Ok(kind),
        types::SOCK_RAW => Ok(types::SOCK_DGRAM),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

/// Performs `socket`.
#[cold]
#[inline(never)]
pub(super) fn create(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let flags = call.unsigned(1) & (types::SOCK_NONBLOCK | types::SOCK_CLOEXEC);
    let kind = require_kind(call.unsigned(1) & !flags, call.unsigned(2))?;
    let charge = file::charge(&process.account)?;
    let socket = LocalSocket::new(kind, &**process)?;
    let file = OpenFile::new(socket, Access::ReadWrite, flags & types::SOCK_NONBLOCK != 0, charge);
    process.descriptors.lock().add(Arc::new(file), flags & types::SOCK_CLOEXEC != 0, 0).map(Into::into)
}

/// Reads the name at an address.
fn name_in(process: &Process, address: usize, size: u32) -> Result<GivenName, Errno> {
    let size = usize::try_from(size).ok().filter(|size| *size <= LONGEST_ADDRESS).ok_or(Errno::EINVAL)?;
    let mut bytes = [0; 2 + LONGEST_LOCAL_NAME];
    let bytes = &mut bytes[..size.min(2 + LONGEST_LOCAL_NAME)];
    process.copy_in(address, bytes)?;
    GivenName::parse(bytes, size)
}

/// Performs `bind`.
#[cold]
#[inline(never)]
pub(super) fn bind(call: Call<'_>, file: Arc<OpenFile>) -> Decoding {
    let process = call.admitted()?;
    let socket = LocalSocket::of(&file)?;
    let path = match name_in(process, call.address(1), call.unsigned(2))? {
        GivenName::Unspecified => return Err(Errno::EINVAL),
        GivenName::Automatic => return socket.bind_automatically(&process.account).map(Into::into),
        GivenName::Abstract(name) => return socket.bind_to(&name, &process.account).map(Into::into),
        GivenName::Path(path) => path,
    };
    let mut binding = PathBinding { file, path, reservation: None, made: SocketFile::Nothing };
    let path = path_from(process, types::AT_FDCWD, copy_of(&binding.path)?)?;
    follow(&call, [path], Effect::Keeps, move |call, [path]| binding.attempt(call, path))
}

/// A file that is being made, to be the name of a socket.
struct PathBinding {
    file: Arc<OpenFile>,
    path: Vec<u8>,
    reservation: Option<NameReservation>,
    made: SocketFile,
}

/// The file that was made.
enum SocketFile {
    Nothing,
    InMemory(Place),
    OnVolume,
}

impl PathBinding {
    fn attempt(&mut self, call: &Call<'_>, path: &mut Path) -> Result<usize, Halt> {
        let process = call.process();
        // At each attempt: the name gets an entry in a table.
        process.account.admit()?;
        if self.reservation.is_none() {
            match LocalSocket::of(&self.file)?.reserve_name(&self.path, &process.account) {
                Ok(reservation) => self.reservation = Some(reservation),
                // It has a name. As on Linux, a file that is there counts more.
                Err(Errno::EINVAL) => {
                    return Err(match path.look_up(LastLink::Keep) {
                        Ok(_) => Errno::EADDRINUSE.into(),
                        Err(Halt::Failed(Errno::ENOENT)) => Errno::EINVAL.into(),
                        Err(halt) => halt,
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let SocketFile::Nothing = self.made {
            self.make(call, path)?;
        }
        let place = match core::mem::replace(&mut self.made, SocketFile::OnVolume) {
            SocketFile::InMemory(place) => place,
            // Not the same file if that was replaced just now; then it may be the name of another socket.
            SocketFile::OnVolume | SocketFile::Nothing => path.look_up(LastLink::Keep)?,
        };
        if let Some(reservation) = self.reservation.take() {
            reservation.take(place)?;
        }
        Ok(0)
    }

    /// Makes the file.
    fn make(&mut self, call: &Call<'_>, path: &mut Path) -> Result<(), Halt> {
        let permissions = permissions_of_new(call.process(), 0o777);
        let owner = owner(call.process());
        let mut stored = None;
        let made = path.perform(
            LastComponent::Name,
            |mount, base, path| {
                let tree = mount.tree();
                let node = tree.make_special_file(base, path, SpecialFile::Socket, permissions, made_by(&owner))?;
                stored = Some(Place { node: Node::Stored(node), mount: mount.clone() });
                Ok(0)
            },
            |directory, name, is_directory| match is_directory {
                true => Err(Errno::ENOENT),
                false => Ok(VolumeRequest::MakeSpecial(directory, name, ext4::Special::Socket, permissions)),
            },
        );
        match made {
            Ok(_) => {
                self.made = stored.map_or(SocketFile::OnVolume, SocketFile::InMemory);
                Ok(())
            }
            // The root of a mount is there, too.
            Err(Halt::Failed(Errno::EEXIST | Errno::EBUSY)) => Err(Errno::EADDRINUSE.into()),
            Err(halt) => Err(halt),
        }
    }
}

/// Performs `connect`.
#[cold]
#[inline(never)]
pub(super) fn connect(call: Call<'_>, file: Arc<OpenFile>) -> Decoding {
    let process = call.process();
    let socket = LocalSocket::of(&file)?;
    let to = match name_in(process, call.address(1), call.unsigned(2))? {
        // A datagram socket gives its peer up.
        GivenName::Unspecified if socket.kind() == types::SOCK_DGRAM => None,
        name => Some(find(process, socket.kind(), name)?),
    };
    Ok(Operation::ConnectLocal(kept(LocalConnect::new(file, to))).into())
}

/// Returns the socket to which a message with this address goes; `None` if it goes to the peer.
pub(super) fn receiver(
    process: &Arc<Process>,
    socket: &LocalSocket,
    address: usize,
    size: u32,
) -> Result<Option<NamedSocket>, Errno> {
    // As on Linux, an address without bytes is none.
    if address == 0 || size == 0 || !socket.heeds_address()? {
        return Ok(None);
    }
    // For the name, and the walk to it.
    process.account.admit()?;
    let name = name_in(process, address, size)?;
    find(process, socket.kind(), name).map(Some)
}

/// Looks for the socket of a kind with a name.
fn find(process: &Arc<Process>, kind: u32, name: GivenName) -> Result<NamedSocket, Errno> {
    let path = match name {
        GivenName::Unspecified | GivenName::Automatic => return Err(Errno::EINVAL),
        GivenName::Abstract(name) => return names::named(kind, &name).map(NamedSocket::Found),
        GivenName::Path(path) => path,
    };
    let mut path = path_from(process, types::AT_FDCWD, path)?;
    match path.look_up(LastLink::Follow) {
        Ok(place) => socket_at(&place, &path, kind).map(NamedSocket::Found),
        Err(Halt::Failed(error)) => Err(error),
        Err(Halt::Later) => Ok(NamedSocket::Walking(walk(process.clone(), path, kind))),
    }
}

/// Returns the socket of this kind whose name is the file in a place. `EACCES` if that grants no right to write.
fn socket_at(place: &Place, path: &Path, kind: u32) -> Result<Arc<Inbox>, Errno> {
    place.permit(path.subject(), WRITE)?;
    names::at(place, kind)
}

/// A path that is followed to a socket.
type WalkToSocket = Pin<Box<dyn Future<Output = Result<Arc<Inbox>, Errno>> + Send>>;

/// Goes on with a path until it has been followed to a socket of this kind.
#[cold]
fn walk(process: Arc<Process>, mut path: Path, kind: u32) -> WalkToSocket {
    admitted(async move {
        loop {
            steps::pause(&process).await;
            path.run_errand().await;
            match path.look_up(LastLink::Follow) {
                Ok(place) => return socket_at(&place, &path, kind),
                Err(Halt::Failed(error)) => return Err(error),
                Err(Halt::Later) => {}
            }
        }
    })
}

fn copy_of(bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Errno::ENOMEM)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{Program, run};

    #[test]
    fn kinds_are_those_of_linux() {
        for kind in [types::SOCK_STREAM, types::SOCK_DGRAM, types::SOCK_SEQPACKET] {
            assert_eq!(require_kind(kind, 0), Ok(kind));
            assert_eq!(require_kind(kind, types::AF_UNIX.into()), Ok(kind));
        }
        assert_eq!(require_kind(types::SOCK_RAW, 0), Ok(types::SOCK_DGRAM));
        assert_eq!(require_kind(4, 0), Err(Errno::ESOCKTNOSUPPORT));
        assert_eq!(require_kind(types::SOCK_STREAM, 6), Err(Errno::EPROTONOSUPPORT));
    }

    fn with_address(program: &mut Program, call: SystemCall, socket: usize, bytes: &[u8]) -> Result<usize, Errno> {
        let address = program.store(bytes);
        program.call(call, [socket, address, bytes.len()])
    }

    /// A path becomes a file, which is the name until the socket is closed, and stays behind.
    #[test]
    fn a_path_is_a_name_while_its_socket_is_open() {
        run(|program| {
            let make = |program: &mut Program| {
                program.call(SystemCall::Socket, [types::AF_UNIX as usize, types::SOCK_STREAM as usize, 0]).unwrap()
            };
            let path = b"\x01\0/tmp/name-of-a-call";
            let (server, client) = (make(program), make(program));
            assert_eq!(with_address(program, SystemCall::Connect, client, path), Err(Errno::ENOENT));
            assert_eq!(with_address(program, SystemCall::Bind, server, path), Ok(0));
            assert_eq!(with_address(program, SystemCall::Connect, client, path), Err(Errno::ECONNREFUSED));
            assert_eq!(program.call(SystemCall::Listen, [server, 1]), Ok(0));
            assert_eq!(with_address(program, SystemCall::Bind, client, path), Err(Errno::EADDRINUSE));
            assert_eq!(with_address(program, SystemCall::Connect, client, path), Ok(0));
            program.close(server).unwrap();
            let other = make(program);
            assert_eq!(with_address(program, SystemCall::Connect, other, path), Err(Errno::ECONNREFUSED));
            assert_eq!(with_address(program, SystemCall::Bind, other, path), Err(Errno::EADDRINUSE), "it stays");
            // Addresses that are none, and one that nobody can read.
            for bad in [&b"\x01"[..], b"\x02\0\0\0", &[1; 200]] {
                assert_eq!(with_address(program, SystemCall::Bind, other, bad), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::Bind, [other, 0x1000, 10]), Err(Errno::EFAULT));
            assert_eq!(with_address(program, SystemCall::Connect, other, b"\0\0"), Err(Errno::EINVAL));
            program.remove(b"/tmp/name-of-a-call\0");
        });
    }
}
