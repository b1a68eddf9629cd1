//! Names of local sockets, and the list of all local sockets (unix(7)).
//!
//! A name is a path, whose file a socket has made ([`FileKind::Socket`]), or an *abstract* one, which begins with a NUL
//! and is in no file system. The file of a path leads to no object: the socket is found by the file's inode, as on
//! Linux, so that files of every file system can be such names. A socket holds the file that is its name, so no other
//! file can have the inode meanwhile. When the socket goes, the file stays, and leads nowhere.
//!
//! # Locks
//!
//! The list is locked for one look at an ordered table, under the lock of a socket's name, and nothing is locked under
//! it. Entries that it gives are dropped outside.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::borrow::Borrow;
use core::cmp::Ordering;

use abi_unix::Errno;
use abi_unix::types::{SOCK_DGRAM, SOCK_STREAM};
use filesystem::FileKind;
use spin::Mutex;

use super::Inbox;
use crate::files::local_name::LocalName;
use crate::files::mounts::{Node, Place};
use crate::process::accounts::Account;
use crate::random;

/// Attempts at an automatic name: with half of all names in use, one of 65,536 calls finds none.
const ATTEMPTS: usize = 16;

/// The state of a socket's name.
#[derive(Default)]
pub(super) enum Naming {
    #[default]
    None,
    /// A call makes the file that is to be its name.
    Reserved,
    /// The name, and the file of a path, which the socket holds. A connection has its listener's name without the file.
    Named(Arc<LocalName>, Option<Place>),
}

/// A name in the order of its bytes, which never change: only its charge has inner mutability.
struct NameInOrder(Arc<LocalName>);

impl Borrow<[u8]> for NameInOrder {
    fn borrow(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl PartialEq for NameInOrder {
    fn eq(&self, other: &NameInOrder) -> bool {
        self.0.bytes() == other.0.bytes()
    }
}

impl Eq for NameInOrder {}

impl PartialOrd for NameInOrder {
    fn partial_cmp(&self, other: &NameInOrder) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NameInOrder {
    fn cmp(&self, other: &NameInOrder) -> Ordering {
        self.0.bytes().cmp(other.0.bytes())
    }
}

struct SocketNames {
    /// All sockets, by their numbers.
    all: BTreeMap<u64, Arc<Inbox>>,
    /// Sockets with abstract names. Each kind of socket has names of its own, as on Linux.
    of_names: [BTreeMap<NameInOrder, Arc<Inbox>>; 3],
    /// Sockets with files, by their inodes.
    of_files: BTreeMap<(usize, u32), Arc<Inbox>>,
}

static LIST: Mutex<SocketNames> = Mutex::new(SocketNames {
    all: BTreeMap::new(),
    of_names: [const { BTreeMap::new() }; 3],
    of_files: BTreeMap::new(),
});

fn index_of(kind: u32) -> usize {
    match kind {
        SOCK_STREAM => 0,
        SOCK_DGRAM => 1,
        _ => 2,
    }
}

fn inode_of(place: &Place) -> Option<(usize, u32)> {
    match &place.node {
        Node::Stored(node) => Some(node.identity()),
        Node::OnVolume(node) => Some(node.identity()),
        Node::Generated(_) => None,
    }
}

/// Lists a socket.
pub(super) fn enter(inbox: &Arc<Inbox>) {
    LIST.lock().all.insert(inbox.number, inbox.clone());
}

/// Takes a socket that is closed from the list. Its name leads nowhere then, and its peers still know it.
pub(super) fn leave(inbox: &Inbox) {
    let (name, place) = match &mut *inbox.naming.lock() {
        // A connection has the name of its listener, which is not its own.
        Naming::Named(name, place) if !inbox.is_connection => (Some(name.clone()), place.take()),
        _ => (None, None),
    };
    let (entry, file, abstract_entry) = {
        let mut list = LIST.lock();
        let entry = list.all.remove(&inbox.number);
        match (&name, &place) {
            (_, Some(place)) => (entry, inode_of(place).and_then(|inode| list.of_files.remove(&inode)), None),
            (Some(name), None) => (entry, None, list.of_names[index_of(inbox.kind)].remove_entry(name.bytes())),
            (None, None) => (entry, None, None),
        }
    };
    drop((entry, file, abstract_entry, place));
}

/// Returns the socket with this abstract name. `ECONNREFUSED` if there is none.
pub(crate) fn named(kind: u32, name: &[u8]) -> Result<Arc<Inbox>, Errno> {
    LIST.lock().of_names[index_of(kind)].get(name).cloned().ok_or(Errno::ECONNREFUSED)
}

/// Returns the socket of this kind whose name is a file. `ECONNREFUSED` if it is no socket's, `EPROTOTYPE` if its
/// socket is of another kind.
pub(crate) fn at(place: &Place, kind: u32) -> Result<Arc<Inbox>, Errno> {
    if place.node.kind() != FileKind::Socket {
        return Err(Errno::ECONNREFUSED);
    }
    let inode = inode_of(place).ok_or(Errno::ECONNREFUSED)?;
    let found = LIST.lock().of_files.get(&inode).cloned().ok_or(Errno::ECONNREFUSED)?;
    if found.kind == kind { Ok(found) } else { Err(Errno::EPROTOTYPE) }
}

impl Inbox {
    /// Returns the name of its socket.
    pub(super) fn name(&self) -> Option<Arc<LocalName>> {
        match &*self.naming.lock() {
            Naming::Named(name, _) => Some(name.clone()),
            Naming::None | Naming::Reserved => None,
        }
    }

    /// Gives its socket an abstract name. `EINVAL` if it has one, `EADDRINUSE` if another has this one.
    pub(super) fn take_abstract_name(self: &Arc<Inbox>, name: Arc<LocalName>) -> Result<(), Errno> {
        let mut naming = self.naming.lock();
        if !matches!(*naming, Naming::None) {
            return Err(Errno::EINVAL);
        }
        {
            #[allow(clippy::mutable_key_type, reason = "the bytes of a name never change")]
            let names = &mut LIST.lock().of_names[index_of(self.kind)];
            if names.contains_key(name.bytes()) {
                return Err(Errno::EADDRINUSE);
            }
            names.insert(NameInOrder(name.clone()), self.clone());
        }
        *naming = Naming::Named(name, None);
        Ok(())
    }

    /// Gives its socket an abstract name that none has, unless it has a name. `ENOSPC` if none was found.
    pub(super) fn take_any_name(self: &Arc<Inbox>, account: &Arc<Account>) -> Result<(), Errno> {
        for _ in 0..ATTEMPTS {
            if !matches!(*self.naming.lock(), Naming::None) {
                return Ok(());
            }
            // The name, and its entry in the table.
            account.admit()?;
            let mut number = [0; 4];
            random::bytes(&mut number);
            let name = format!("\0{:05x}", u32::from_le_bytes(number) & 0xf_ffff);
            match self.take_abstract_name(LocalName::new(account, name.as_bytes())?) {
                Err(Errno::EADDRINUSE) => {}
                // Another thread has given it a name.
                Err(Errno::EINVAL) => return Ok(()),
                taken => return taken,
            }
        }
        Err(Errno::ENOSPC)
    }
}

/// A name that a socket is to have when its file has been made. Dropping it gives the place up.
pub(crate) struct NameReservation {
    inbox: Arc<Inbox>,
    name: Arc<LocalName>,
    is_done: bool,
}

impl NameReservation {
    /// Reserves the place for a socket's name. `EINVAL` if it has one.
    pub(super) fn new(inbox: &Arc<Inbox>, name: Arc<LocalName>) -> Result<NameReservation, Errno> {
        let mut naming = inbox.naming.lock();
        if !matches!(*naming, Naming::None) {
            return Err(Errno::EINVAL);
        }
        *naming = Naming::Reserved;
        Ok(NameReservation { inbox: inbox.clone(), name, is_done: false })
    }

    /// Makes a file the name. `EADDRINUSE` if it is another socket's.
    pub(crate) fn take(mut self, place: Place) -> Result<(), Errno> {
        let inode = inode_of(&place).ok_or(Errno::EADDRINUSE)?;
        let mut naming = self.inbox.naming.lock();
        // The socket may have been closed meanwhile.
        if matches!(*naming, Naming::Reserved) {
            {
                let files = &mut LIST.lock().of_files;
                if files.contains_key(&inode) {
                    return Err(Errno::EADDRINUSE);
                }
                files.insert(inode, self.inbox.clone());
            }
            *naming = Naming::Named(self.name.clone(), Some(place));
        }
        drop(naming);
        self.is_done = true;
        Ok(())
    }
}

impl Drop for NameReservation {
    fn drop(&mut self) {
        if !self.is_done {
            let mut naming = self.inbox.naming.lock();
            if matches!(*naming, Naming::Reserved) {
                *naming = Naming::None;
            }
        }
    }
}

/// Returns the line of `/proc/net/unix` about the first socket from this number on, and the number to go on from.
pub(crate) fn describe(from: u64) -> Option<(Vec<u8>, u64)> {
    let inbox = LIST.lock().all.range(from..).next().map(|(_, inbox)| inbox.clone())?;
    let listens = inbox.direction.lock().listening.is_some();
    let partner = inbox.partner.load(core::sync::atomic::Ordering::Relaxed);
    // Linux's states of `struct socket`: not connected, or connected.
    let (flags, state) = (if listens { 0x1_0000 } else { 0 }, if partner == 0 { 1 } else { 3 });
    let mut line =
        format!("{:016x}: 00000002 00000000 {flags:08X} {:04X} {state:02X} {:5}", 0, inbox.kind, inbox.number)
            .into_bytes();
    if let Some(name) = inbox.name() {
        line.push(b' ');
        let bytes = name.bytes();
        let is_abstract = bytes.first() == Some(&0);
        let shown = if is_abstract { bytes } else { &bytes[..bytes.len() - 1] };
        line.extend(shown.iter().map(|byte| if *byte == 0 { b'@' } else { *byte }));
    }
    line.push(b'\n');
    Some((line, inbox.number + 1))
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{self, AF_UNIX};

    use super::*;
    use crate::files::local_socket::LocalSocket;
    use crate::testing::{Program, run};

    fn inbox_of(program: &Program, socket: usize) -> Arc<Inbox> {
        let file = program.process().descriptors.lock().get(socket).unwrap().clone();
        LocalSocket::of(&file).unwrap().inbox.clone()
    }

    /// An abstract name is one socket's of its kind at a time, and free again when that is closed.
    #[test]
    fn names_lead_to_the_socket_that_has_them() {
        run(|program| {
            let name: &[u8] = b"\0names of tests";
            let make = |program: &mut Program, kind: u32| {
                program.call(SystemCall::Socket, [AF_UNIX as usize, kind as usize, 0]).unwrap()
            };
            let bind = |program: &mut Program, socket: usize| {
                let address = program.store(&[&AF_UNIX.to_le_bytes()[..], name].concat());
                program.call(SystemCall::Bind, [socket, address, 2 + name.len()])
            };
            let datagrams = make(program, SOCK_DGRAM);
            assert_eq!(named(SOCK_DGRAM, name).err(), Some(Errno::ECONNREFUSED));
            assert_eq!(bind(program, datagrams), Ok(0));
            assert_eq!(bind(program, datagrams), Err(Errno::EINVAL), "it has one");
            let found = named(SOCK_DGRAM, name).unwrap();
            assert!(Arc::ptr_eq(&found, &inbox_of(program, datagrams)));
            let second = make(program, SOCK_DGRAM);
            assert_eq!(bind(program, second), Err(Errno::EADDRINUSE));
            let stream = make(program, SOCK_STREAM);
            assert_eq!(named(SOCK_STREAM, name).err(), Some(Errno::ECONNREFUSED));
            assert_eq!(bind(program, stream), Ok(0), "each kind has names of its own");
            program.close(datagrams).unwrap();
            assert_eq!(named(SOCK_DGRAM, name).err(), Some(Errno::ECONNREFUSED));
            assert_eq!(bind(program, second), Ok(0));
        });
    }

    /// A reservation that is given up leaves no name; each socket is listed once, with its number.
    #[test]
    fn a_name_that_is_not_made_is_none() {
        run(|program| {
            let socket = program.call(SystemCall::Socket, [AF_UNIX as usize, SOCK_DGRAM as usize, 0]).unwrap();
            let inbox = inbox_of(program, socket);
            let account = program.process().account.clone();
            let reserve = || NameReservation::new(&inbox, LocalName::new(&account, b"/tmp/reserved").unwrap());
            let first = reserve().unwrap();
            assert_eq!(reserve().err(), Some(Errno::EINVAL));
            assert!(inbox.name().is_none());
            drop(first);
            assert!(reserve().is_ok());
            let (line, next) = describe(inbox.number).unwrap();
            assert_eq!(next, inbox.number + 1);
            assert!(line.ends_with(format!(" 00000000 {:04X} 01 {:5}\n", types::SOCK_DGRAM, inbox.number).as_bytes()));
            program.close(socket).unwrap();
            assert!(describe(inbox.number).is_none_or(|(_, next)| next > inbox.number + 1), "it is listed no more");
        });
    }
}
