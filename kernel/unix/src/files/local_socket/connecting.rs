//! Connections of local sockets: `listen`, `connect` and `accept`, and the peers of datagram sockets.
//!
//! # The choice
//!
//! A connection that waits to be accepted *is a message to the listener*, with the open socket of its other end as its
//! only file. So the queue of a listener, its bound, those that wait for room in it or for its next entry, its end in
//! steps, and the [collection](crate::files::carriers) of sockets that hold each other are those of messages. A client
//! can send its listener through the connection that it has made to it, and close everything: then nothing but
//! messages holds them, and they are found.
//!
//! # Payers
//!
//! The process that made the listener pays for the new socket, and the number of those is bounded by its backlog.
//! The sending side pays for bytes: the maker of the listener for those to the client, and the process that connects
//! for those to the server.
//!
//! # Locks
//!
//! A socket's state, then the directions of one inbox at a time, then its name.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll, Waker, ready};

use abi_unix::Errno;
use abi_unix::types::socket_option as option;
use filesystem::Access;

use super::direction::QueuedMessage;
use super::names::Naming;
use super::{Inbox, LocalSocket, LocalState};
use crate::files::carriers::Fate;
use crate::files::file::{self, Accepted, AcceptedConnection, Attempt, OpenFile};
use crate::files::message::MessageSender;
use crate::files::sent_files::SentFiles;
use crate::process::user::{Caller, Credentials};
use crate::scheduling::steps;

/// Most connections that wait for `accept` beside the first. Linux's `SOMAXCONN` is four times as many: a list that
/// grows to them would be copied in too long a step.
const LONGEST_BACKLOG: u32 = 1024;
/// Messages of a datagram socket with a new peer that are thrown away in one step.
const THROWN_AWAY_AT_ONCE: usize = 16;

/// The state of a listening socket, as those see it that connect to it.
#[derive(Clone, Copy)]
pub(super) struct Listening {
    /// Connections that may wait beside one.
    backlog: usize,
    /// The process that called `listen`.
    process: Credentials,
}

/// A socket that a name leads to, found or not.
pub(crate) enum NamedSocket {
    /// It is here.
    Found(Arc<Inbox>),
    /// Its path is followed, in steps.
    Walking(Pin<Box<dyn Future<Output = Result<Arc<Inbox>, Errno>> + Send>>),
}

impl NamedSocket {
    /// Returns the socket, if its path has been followed.
    pub(crate) fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<Arc<Inbox>, Errno>> {
        match self {
            NamedSocket::Found(inbox) => Poll::Ready(Ok(inbox.clone())),
            NamedSocket::Walking(walk) => {
                let mut context = Context::from_waker(waker.unwrap_or(steps::IN_PLACE));
                let found = ready!(walk.as_mut().poll(&mut context))?;
                *self = NamedSocket::Found(found.clone());
                Poll::Ready(Ok(found))
            }
        }
    }
}

/// A `connect` of a local socket that could not be done at once, or that was not tried yet.
pub(crate) struct LocalConnect {
    file: Arc<OpenFile>,
    /// `None` for no peer.
    to: Option<NamedSocket>,
    /// Number of the first message that came after the beginning, for a datagram socket whose older ones are lost.
    until: Option<u64>,
    has_lost: bool,
}

impl LocalConnect {
    /// Begins to connect the local socket behind a file, or to take a datagram socket's peer from it.
    pub(crate) fn new(file: Arc<OpenFile>, to: Option<NamedSocket>) -> LocalConnect {
        LocalConnect { file, to, until: None, has_lost: false }
    }

    /// Returns the socket.
    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Returns whether it waits for room in a backlog, and does not only go on in steps.
    pub(crate) fn waits(&self) -> bool {
        self.until.is_none() && matches!(self.to, Some(NamedSocket::Found(_)))
    }

    /// Tries to connect.
    pub(crate) fn poll(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Attempt {
        let to = match &mut self.to {
            Some(named) => Some(ready!(named.poll(waker))?),
            None => None,
        };
        let socket = LocalSocket::of(&self.file)?;
        if socket.has_option(option::SO_PASSCRED) && to.is_some() {
            socket.inbox.take_any_name(caller.account())?;
        }
        if socket.inbox.is_datagram() {
            return socket.set_peer(caller, to, (&mut self.until, &mut self.has_lost), waker);
        }
        let Some(listener) = to else { return Poll::Ready(Err(Errno::EINVAL)) };
        // A call that does not wait must not register: its registration would be taken back by nobody.
        let to_wait = waker.filter(|_| !self.file.is_non_blocking());
        match socket.connect_to(caller, &listener, to_wait) {
            Poll::Pending if to_wait.is_none() && self.file.is_non_blocking() => Poll::Ready(Err(Errno::EAGAIN)),
            attempt => attempt,
        }
    }

    /// Takes back the registration of [`poll`](Self::poll).
    pub(crate) fn forget(&self, waker: &Waker) {
        if let Some(NamedSocket::Found(inbox)) = &self.to {
            inbox.forget_sender(waker);
        }
    }
}

impl LocalSocket {
    /// Performs the `listen` call for a process.
    pub(crate) fn listen(&self, backlog: i32, process: Credentials) -> Result<usize, Errno> {
        if self.inbox.is_datagram() {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        if self.inbox.name().is_none() || matches!(*state, LocalState::Connected(_)) {
            return Err(Errno::EINVAL);
        }
        // As on Linux, a negative number is the greatest.
        let backlog = (backlog as u32).min(LONGEST_BACKLOG) as usize;
        let mut direction = self.inbox.direction.lock();
        direction.listening = Some(Listening { backlog, process });
        // Those that wait for a longer backlog.
        direction.writers.wake_all();
        direction.readers.wake_all();
        *state = LocalState::Listening;
        // As on Linux, a listener's own `SO_PEERCRED` is its process.
        *self.peer_process.lock() = process;
        Ok(0)
    }

    /// Tries to connect a stream, or a socket of messages in their order, to a listener. Waits for room in its backlog.
    fn connect_to(&self, caller: &dyn Caller, listener: &Arc<Inbox>, waker: Option<&Waker>) -> Attempt {
        let mut state = self.state.lock();
        let mut queue = listener.direction.lock();
        let Some(listening) = queue.listening.filter(|_| !queue.is_shut) else {
            return Poll::Ready(Err(Errno::ECONNREFUSED));
        };
        if queue.records.len() > listening.backlog {
            if let Some(waker) = waker {
                queue.writers.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        }
        match *state {
            LocalState::Fresh => {}
            LocalState::Listening => return Poll::Ready(Err(Errno::EINVAL)),
            LocalState::Connected(_) => return Poll::Ready(Err(Errno::EISCONN)),
        }
        caller.account().admit()?;
        let account = queue.charge.account().clone();
        let charge = file::charge(&account)?;
        queue.reserve(0)?;
        let inbox = Inbox::new(self.inbox.kind, listener.maker, (&account, caller.account()), true)?;
        *inbox.naming.lock() = listener.name().map_or(Naming::None, |name| Naming::Named(name, None));
        inbox.partner.store(self.inbox.number, Ordering::Relaxed);
        // It has no peer yet: if anything fails, its end must not be seen.
        let server = LocalSocket::with(inbox.clone(), LocalState::Fresh, Credentials::of_peer(caller));
        let file = Arc::new(OpenFile::new(server, Access::ReadWrite, false, charge));
        let mut files = Vec::new();
        files.try_reserve_exact(1).map_err(|_| Errno::ENOMEM)?;
        files.push(file);
        let files = SentFiles::new(files, caller)?;
        // Nothing fails any more.
        if let Some(server) = files.files().iter().find_map(|file| file.as_kind::<LocalSocket>()) {
            *server.state.lock() = LocalState::Connected(self.inbox.clone());
        }
        listener.carry(&files);
        queue.files += 1;
        queue.records.push_back(QueuedMessage { files: Some(files), ..QueuedMessage::default() });
        queue.readers.wake_all();
        drop(queue);
        let mut own = self.inbox.direction.lock();
        // A server that was faster may have sent already.
        own.has_payer(&account);
        // A socket without a peer had other events.
        own.readers.wake_all();
        own.writers.wake_all();
        drop(own);
        self.inbox.partner.store(inbox.number, Ordering::Relaxed);
        *self.peer_process.lock() = listening.process;
        *state = LocalState::Connected(inbox);
        Poll::Ready(Ok(0))
    }

    /// Tries to take a connection.
    pub(super) fn accept_next(&self, waker: Option<&Waker>) -> Poll<Result<Accepted, Errno>> {
        if self.inbox.is_datagram() {
            return Poll::Ready(Err(Errno::EOPNOTSUPP));
        }
        let mut direction = self.inbox.direction.lock();
        if direction.listening.is_none() {
            return Poll::Ready(Err(Errno::EINVAL));
        }
        let Some(mut record) = direction.pop_record() else {
            if direction.is_ended {
                return Poll::Ready(Err(Errno::EINVAL));
            }
            if let Some(waker) = waker {
                direction.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        };
        self.after_taking(&mut direction, record.files.as_mut());
        drop(direction);
        let file = record.files.take().and_then(SentFiles::into_only).ok_or(Errno::ECONNABORTED)?;
        let from = match LocalSocket::of(&file) {
            Ok(socket) => {
                socket.inbox.direction.lock().awaits_acceptance = false;
                if self.has_option(option::SO_PASSCRED) {
                    socket.set_flag(option::SO_PASSCRED, true);
                }
                socket.peer().and_then(|peer| peer.name())
            }
            Err(_) => None,
        };
        let sender = from.map_or(MessageSender::Unnamed, MessageSender::Local);
        Poll::Ready(Ok((AcceptedConnection::Open(file), sender)))
    }

    /// Tries to give a datagram socket another peer, or none. As on Linux, the messages that it has not received from
    /// the one before are lost, a few in each step, of which that one learns if it is connected to this socket.
    fn set_peer(
        &self,
        caller: &dyn Caller,
        to: Option<Arc<Inbox>>,
        (until, has_lost): (&mut Option<u64>, &mut bool),
        waker: Option<&Waker>,
    ) -> Attempt {
        if let Some(to) = &to {
            if !to.direction.lock().has_receiver {
                return Poll::Ready(Err(Errno::ECONNREFUSED));
            }
            if !to.hears(self.inbox.number) {
                return Poll::Ready(Err(Errno::EPERM));
            }
        }
        let old = self.peer();
        let is_another = match (&old, &to) {
            (Some(old), Some(new)) => !Arc::ptr_eq(old, new),
            (old, _) => old.is_some(),
        };
        if is_another {
            loop {
                if self.inbox.throw_away_before(until, has_lost) {
                    break;
                }
                if steps::must_stop(caller, waker) {
                    return Poll::Pending;
                }
            }
        }
        let mut state = self.state.lock();
        self.inbox.partner.store(to.as_ref().map_or(0, |to| to.number), Ordering::Relaxed);
        *state = to.map_or(LocalState::Fresh, LocalState::Connected);
        drop(state);
        if let Some(old) = old.filter(|_| is_another) {
            let mut direction = old.direction.lock();
            // Those that wait for room there go on with the new peer.
            direction.writers.wake_all();
            if *has_lost && direction.has_receiver && old.partner.load(Ordering::Relaxed) == self.inbox.number {
                old.has_failed.store(true, Ordering::Relaxed);
                direction.readers.wake_all();
            }
        }
        let mut own = self.inbox.direction.lock();
        own.readers.wake_all();
        drop(own);
        Poll::Ready(Ok(0))
    }
}

impl Inbox {
    /// Returns whether its socket receives messages of the one with this number: it has no other peer.
    pub(super) fn hears(&self, number: u64) -> bool {
        let partner = self.partner.load(Ordering::Relaxed);
        partner == 0 || partner == number
    }

    /// Throws some messages away that were here at the beginning; returns whether none is left of them.
    fn throw_away_before(&self, until: &mut Option<u64>, has_lost: &mut bool) -> bool {
        for _ in 0..THROWN_AWAY_AT_ONCE {
            let mut direction = self.direction.lock();
            let end = *until.get_or_insert(direction.before + direction.records.len() as u64);
            if direction.before >= end {
                return true;
            }
            let Some(record) = direction.pop_record() else { return true };
            direction.queue.consume(record.length);
            *has_lost = true;
            if let Some(files) = &record.files {
                direction.files -= files.files().len();
                self.carries_no_more(files, Fate::ThrownAway);
            }
            direction.shrink();
            direction.writers.wake_all();
            let has_files = record.files.is_some();
            drop(direction);
            drop(record);
            if has_files {
                break;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{
        self, AF_UNIX, MessageHeader, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_SEQPACKET, SOCK_STREAM, epoll as event, message,
    };

    use super::*;
    use crate::files::remains;
    use crate::process::accounts::Resource;
    use crate::testing::{Program, run};

    fn socket(program: &mut Program, kind: u32) -> usize {
        program.call(SystemCall::Socket, [AF_UNIX as usize, kind as usize, 0]).unwrap()
    }

    /// Makes a call with a socket and a name.
    fn with_name(program: &mut Program, call: SystemCall, socket: usize, name: &[u8]) -> Result<usize, Errno> {
        let address = program.store(&[&AF_UNIX.to_le_bytes()[..], name].concat());
        program.call(call, [socket, address, 2 + name.len()])
    }

    fn listener(program: &mut Program, kind: u32, name: &[u8], backlog: usize) -> usize {
        let listener = socket(program, kind);
        assert_eq!(with_name(program, SystemCall::Bind, listener, name), Ok(0));
        assert_eq!(program.call(SystemCall::Listen, [listener, backlog]), Ok(0));
        listener
    }

    fn name_of(program: &mut Program, call: SystemCall, socket: usize) -> Result<Vec<u8>, Errno> {
        let (place, size) = (program.place(128), program.store(&128u32.to_le_bytes()));
        program.call(call, [socket, place, size])?;
        let length = program.read_u32(size) as usize;
        Ok(program.read(place + 2, length - 2))
    }

    fn option(program: &mut Program, socket: usize, name: u32) -> [u32; 3] {
        let (value, size) = (program.place(16), program.store(&12u32.to_le_bytes()));
        program.call(SystemCall::GetSocketOption, [socket, 1, name as usize, value, size]).unwrap();
        [0, 4, 8].map(|at| program.read_u32(value + at))
    }

    /// Names are read with their length, and the address of a name is cut to the room that there is.
    #[test]
    fn names_that_are_none_are_refused() {
        run(|program| {
            let own = socket(program, SOCK_DGRAM | SOCK_NONBLOCK);
            for call in [SystemCall::Bind, SystemCall::Connect] {
                for (family, size, error) in [
                    (1u16, 0, Errno::EINVAL),
                    (1, 1, Errno::EINVAL),
                    (2, 16, Errno::EINVAL),
                    (1, 111, Errno::EINVAL),
                    (1, 129, Errno::EINVAL),
                    (1, usize::MAX, Errno::EINVAL),
                ] {
                    let place = program.store(&[&family.to_le_bytes()[..], &[b'x'; 130]].concat());
                    assert_eq!(program.call(call, [own, place, size]), Err(error), "{call:?} {family} {size}");
                }
                assert_eq!(program.call(call, [own, 0x10, 20]), Err(Errno::EFAULT));
            }
            let longest = [b"/tmp/".as_slice(), &[b'x'; 103]].concat();
            assert_eq!(with_name(program, SystemCall::Bind, own, &longest), Ok(0));
            let told = name_of(program, SystemCall::GetSocketName, own).unwrap();
            assert_eq!(told, [&longest[..], &[0]].concat(), "with a NUL, as on Linux");
            let (place, size) = (program.place(8), program.store(&4u32.to_le_bytes()));
            assert_eq!(program.call(SystemCall::GetSocketName, [own, place, size]), Ok(0));
            assert_eq!((program.read(place, 5), program.read_u32(size)), (b"\x01\x00/t\x00".to_vec(), 111));
            program.remove(&[&longest[..], &[0]].concat());
        });
    }

    #[test]
    fn a_connection_has_names_and_credentials() {
        run(|program| {
            for (kind, name) in [(SOCK_STREAM, b"/tmp/server".as_slice()), (SOCK_SEQPACKET, b"\0server")] {
                let listener = listener(program, kind, name, 1);
                assert_eq!(option(program, listener, option::SO_ACCEPTCONN)[0], 1);
                let child = program.fork(move |program| {
                    let client = socket(program, kind);
                    assert_eq!(option(program, client, option::SO_PEERCRED), [0, u32::MAX, u32::MAX]);
                    assert_eq!(with_name(program, SystemCall::Connect, client, name), Ok(0));
                    let parent = program.call(SystemCall::GetParent, []).unwrap() as u32;
                    assert_eq!(option(program, client, option::SO_PEERCRED), [parent, 0, 0]);
                    assert_eq!(program.write_to(client, b"question"), Ok(8));
                    assert_eq!(program.read_from(client, 10), Ok(b"answer".to_vec()));
                });
                let child = child.unwrap();
                let server = program.call(SystemCall::Accept, [listener, 0, 0]).unwrap();
                assert_eq!(option(program, server, option::SO_PEERCRED), [child as u32, 0, 0]);
                let own = name_of(program, SystemCall::GetSocketName, server).unwrap();
                assert_eq!(own.strip_suffix(&[0]).unwrap_or(&own), name);
                assert_eq!(name_of(program, SystemCall::GetPeerName, server), Ok(Vec::new()));
                assert_eq!(program.read_from(server, 10), Ok(b"question".to_vec()));
                assert_eq!(program.write_to(server, b"answer"), Ok(6));
                assert_eq!(program.wait_for(child), Ok((child, 0)));
                assert_eq!(program.read_from(server, 10), Ok(Vec::new()));
                program.close(listener).unwrap();
                let client = socket(program, kind);
                assert_eq!(with_name(program, SystemCall::Connect, client, name), Err(Errno::ECONNREFUSED));
                if name[0] != 0 {
                    // The file stays, and must be removed before the name can be used again.
                    assert_eq!(with_name(program, SystemCall::Bind, client, name), Err(Errno::EADDRINUSE));
                    program.remove(b"/tmp/server\0");
                    assert_eq!(with_name(program, SystemCall::Connect, client, name), Err(Errno::ENOENT));
                }
                assert_eq!(with_name(program, SystemCall::Bind, client, name), Ok(0));
                program.close(client).unwrap();
            }
            program.remove(b"/tmp/server\0");
        });
    }

    /// A `connect` waits for room in the backlog, can be cancelled, and fails when the listener goes.
    #[test]
    fn connections_wait_for_a_place_in_the_backlog() {
        run(|program| {
            // The second time nothing is new.
            let used = [0; 2].map(|_| fill_a_backlog(program));
            assert_eq!(used[0], used[1]);
        });
    }

    /// Returns the memory that the process has afterwards.
    fn fill_a_backlog(program: &mut Program) -> usize {
        let listener = listener(program, SOCK_STREAM | SOCK_NONBLOCK, b"\0busy", 0);
        let first = socket(program, SOCK_STREAM);
        assert_eq!(with_name(program, SystemCall::Connect, first, b"\0busy"), Ok(0));
        let impatient = socket(program, SOCK_STREAM | SOCK_NONBLOCK);
        assert_eq!(with_name(program, SystemCall::Connect, impatient, b"\0busy"), Err(Errno::EAGAIN));
        let waiting: Vec<_> = (0..3).map(|_| socket(program, SOCK_STREAM)).collect();
        let address = program.store(&[&AF_UNIX.to_le_bytes()[..], b"\0busy"].concat());
        for (token, socket) in (1..).zip(&waiting) {
            assert_eq!(program.submit(SystemCall::Connect, [*socket, address, 7], token), None);
        }
        program.sleep_ns(1_000_000);
        assert!(program.completions().is_empty(), "they wait");
        assert_eq!(program.call(SystemCall::Cancel, [2]), Ok(0));
        assert_eq!(program.await_completions(), [(2, Err(Errno::ECANCELED))]);
        let server = program.call(SystemCall::Accept, [listener, 0, 0]).unwrap();
        let done = program.await_completions();
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].1, Ok(0));
        program.close(listener).unwrap();
        let done = program.await_completions();
        assert_eq!(done.iter().map(|done| done.1).collect::<Vec<_>>(), [Err(Errno::ECONNREFUSED)]);
        // The client that was not accepted learns of it.
        let reset = waiting.iter().filter(|socket| program.read_from(**socket, 1) == Err(Errno::ECONNRESET)).count();
        assert_eq!(reset, 1);
        for socket in waiting.into_iter().chain([first, impatient, server]) {
            program.close(socket).unwrap();
        }
        remains_go(program);
        program.process().account.used(Resource::Memory)
    }

    fn remains_go(program: &mut Program) {
        program.sleep_ns(10_000_000);
        assert!(!remains::are_left());
    }

    /// A process ends while its connection waits, and while it waits for one.
    #[test]
    fn processes_end_in_the_middle_of_a_connection() {
        run(|program| {
            let listener = listener(program, SOCK_STREAM, b"\0end", 0);
            let first = socket(program, SOCK_STREAM);
            assert_eq!(with_name(program, SystemCall::Connect, first, b"\0end"), Ok(0));
            let child = program.fork(|program| {
                let client = socket(program, SOCK_STREAM);
                let address = program.store(&[&AF_UNIX.to_le_bytes()[..], b"\0end"].concat());
                assert_eq!(program.submit(SystemCall::Connect, [client, address, 6], 1), None);
                assert!(program.completions().is_empty());
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let server = program.call(SystemCall::Accept, [listener, 0, 0]).unwrap();
            let child = program.fork(|program| {
                let client = socket(program, SOCK_STREAM);
                assert_eq!(with_name(program, SystemCall::Connect, client, b"\0end"), Ok(0));
                assert_eq!(program.write_to(client, b"last words"), Ok(10));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let second = program.call(SystemCall::Accept, [listener, 0, 0]).unwrap();
            assert_eq!(program.read_from(second, 20), Ok(b"last words".to_vec()));
            assert_eq!(program.read_from(second, 20), Ok(Vec::new()));
            let child = program.fork(move |program| {
                assert_eq!(program.submit(SystemCall::Accept, [listener, 0, 0], 1), None);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            for socket in [listener, first, server, second] {
                program.close(socket).unwrap();
            }
        });
    }

    /// Sends a byte with an open file.
    fn send_file(program: &mut Program, socket: usize, files: &[usize]) -> Result<usize, Errno> {
        let byte = program.store(b"x");
        let mut rights = (16 + 4 * files.len()).to_le_bytes().to_vec();
        rights.extend([option::SOL_SOCKET, message::SCM_RIGHTS].map(u32::to_le_bytes).concat());
        rights.extend(files.iter().flat_map(|file| (*file as u32).to_le_bytes()));
        let rights_place = program.store(&rights);
        let header = program.message_header(&[(byte, 1)], (rights_place, rights.len()));
        program.call(SystemCall::SendMessage, [socket, header, 0])
    }

    /// A listener is in a message to one of its own connections, which waits for it: nothing else holds both.
    #[test]
    fn a_listener_in_its_own_backlog_is_closed() {
        run(|program| {
            let account = program.process().account.clone();
            let mut used = Vec::new();
            for kind in [SOCK_STREAM, SOCK_SEQPACKET] {
                let (witness, kept) = program.pipe(types::open::NONBLOCK);
                let listener = listener(program, kind, b"\0itself", 4);
                let client = socket(program, kind);
                assert_eq!(with_name(program, SystemCall::Connect, client, b"\0itself"), Ok(0));
                assert_eq!(send_file(program, client, &[listener, kept]), Ok(1));
                program.close(kept).unwrap();
                program.close(client).unwrap();
                assert_eq!(program.read_from(witness, 1), Err(Errno::EAGAIN));
                program.close(listener).unwrap();
                remains_go(program);
                assert_eq!(program.read_from(witness, 1), Ok(Vec::new()), "all that they carried is closed");
                program.close(witness).unwrap();
                used.push(account.used(Resource::Memory));
            }
            assert_eq!(used[0], used[1]);
        });
    }

    /// With `SO_PASSCRED` each message tells its sender, and bytes of two senders come in two calls.
    #[test]
    fn messages_tell_the_process_that_has_sent_them() {
        run(|program| {
            for kind in [SOCK_STREAM, SOCK_DGRAM] {
                let (own, peer) = program.socket_pair(kind | SOCK_NONBLOCK);
                let one = program.store(&1u32.to_le_bytes());
                let set = [own, 1, option::SO_PASSCRED as usize, one, 4];
                assert_eq!(program.call(SystemCall::SetSocketOption, set), Ok(0));
                assert_eq!(option(program, own, option::SO_PASSCRED)[0], 1);
                assert_eq!(program.write_to(peer, b"mine"), Ok(4));
                let child = program.fork(move |program| {
                    assert_eq!(program.write_to(peer, b"the child's"), Ok(11));
                });
                let child = child.unwrap();
                assert_eq!(program.wait_for(child), Ok((child, 0)));
                let (place, control) = (program.place(32), program.place(64));
                for (sender, bytes) in [(program.id, b"mine".as_slice()), (child as u32, b"the child's")] {
                    let header = program.message_header(&[(place, 32)], (control, 64));
                    assert_eq!(program.call(SystemCall::ReceiveMessage, [own, header, 0]), Ok(bytes.len()));
                    assert_eq!(program.read(place, bytes.len()), bytes);
                    assert_eq!(program.read_u64(header + MessageHeader::CONTROL_LENGTH), 32);
                    let told = [0, 8, 12, 16, 20, 24].map(|at| program.read_u32(control + at));
                    assert_eq!(told, [28, 1, message::SCM_CREDENTIALS, sender, 0, 0]);
                }
                // Without room the receiver learns that something is missing, and of a part with too little.
                for (room, length, flags) in [(0, 0, message::CTRUNC), (20, 20, message::CTRUNC), (28, 28, 0)] {
                    assert_eq!(program.write_to(peer, b"x"), Ok(1));
                    let header = program.message_header(&[(place, 32)], (control, room));
                    assert_eq!(program.call(SystemCall::ReceiveMessage, [own, header, 0]), Ok(1));
                    assert_eq!(program.read_u64(header + MessageHeader::CONTROL_LENGTH), length);
                    assert_eq!(program.read_u32(header + 48), flags, "{room}");
                }
                // Both kinds of control messages, one after the other.
                assert_eq!(send_file(program, peer, &[peer]), Ok(1));
                let header = program.message_header(&[(place, 32)], (control, 64));
                assert_eq!(program.call(SystemCall::ReceiveMessage, [own, header, 0]), Ok(1));
                assert_eq!(program.read_u64(header + MessageHeader::CONTROL_LENGTH), 56);
                assert_eq!(program.read_u32(control + 32 + 12), message::SCM_RIGHTS);
                let received = program.read_u32(control + 48) as usize;
                program.close(received).unwrap();
            }
        });
    }

    /// A datagram socket without a name gets one when it is asked for credentials, and when it binds to nothing.
    #[test]
    fn names_are_given_automatically() {
        run(|program| {
            let sockets = [0; 3].map(|_| socket(program, SOCK_DGRAM | SOCK_NONBLOCK));
            let mut names = Vec::new();
            for socket in sockets {
                for _ in 0..2 {
                    assert_eq!(with_name(program, SystemCall::Bind, socket, b""), Ok(0));
                }
                let name = name_of(program, SystemCall::GetSocketName, socket).unwrap();
                assert_eq!((name.len(), name[0]), (6, 0));
                assert!(name[1..].iter().all(|byte| byte.is_ascii_hexdigit()));
                names.push(name);
            }
            let byte = program.store(b"x");
            let to = program.store(&[&AF_UNIX.to_le_bytes()[..], &names[1]].concat());
            assert_eq!(program.call(SystemCall::SendTo, [sockets[0], byte, 1, 0, to, 8]), Ok(1));
            let (from, size) = (program.place(16), program.store(&16u32.to_le_bytes()));
            assert_eq!(program.call(SystemCall::ReceiveFrom, [sockets[1], byte, 1, 0, from, size]), Ok(1));
            assert_eq!((program.read(from + 2, 6), program.read_u32(size)), (names[0].clone(), 8));
            names.dedup();
            assert_eq!(names.len(), 3);
        });
    }

    /// A message that waits for room at a named socket is cancelled, and one that waits goes when there is some.
    #[test]
    fn messages_to_a_name_wait_for_room() {
        run(|program| {
            let receiver = socket(program, SOCK_DGRAM | SOCK_NONBLOCK);
            assert_eq!(with_name(program, SystemCall::Bind, receiver, b"\0full"), Ok(0));
            let sender = socket(program, SOCK_DGRAM);
            let byte = program.store(b"x");
            let to = program.store(&[&AF_UNIX.to_le_bytes()[..], b"\0full"].concat());
            let arguments = |flags: u32| [sender, byte, 1, flags as usize, to, 7];
            let mut count = 0;
            while program.call(SystemCall::SendTo, arguments(message::DONTWAIT)) == Ok(1) {
                count += 1;
            }
            assert!(count >= 10, "{count}");
            for token in [1, 2] {
                assert_eq!(program.submit(SystemCall::SendTo, arguments(0), token), None);
            }
            program.sleep_ns(1_000_000);
            assert!(program.completions().is_empty());
            assert_eq!(program.call(SystemCall::Cancel, [1]), Ok(0));
            assert_eq!(program.await_completions(), [(1, Err(Errno::ECANCELED))]);
            assert_eq!(program.read_from(receiver, 1), Ok(b"x".to_vec()));
            assert_eq!(program.await_completions(), [(2, Ok(1))]);
            program.close(receiver).unwrap();
            assert_eq!(program.call(SystemCall::SendTo, arguments(0)), Err(Errno::ECONNREFUSED));
        });
    }

    /// A new peer takes the place of the old one in steps, with hundreds of messages that are lost.
    #[test]
    fn a_new_peer_costs_the_messages_of_the_old_one() {
        run(|program| {
            let account = program.process().account.clone();
            let (own, old) = program.socket_pair(SOCK_DGRAM | SOCK_NONBLOCK);
            let new = socket(program, SOCK_DGRAM | SOCK_NONBLOCK);
            assert_eq!(with_name(program, SystemCall::Bind, new, b"\0new"), Ok(0));
            let before = account.used(Resource::Memory);
            let (reader, writer) = program.pipe(types::open::NONBLOCK);
            for _ in 0..100 {
                assert_eq!(program.write_to(old, b"some bytes"), Ok(10));
                assert_eq!(send_file(program, old, &[writer]), Ok(1));
            }
            program.close(writer).unwrap();
            assert_eq!(with_name(program, SystemCall::Connect, own, b"\0new"), Ok(0));
            remains_go(program);
            assert_eq!(program.read_from(reader, 1), Ok(Vec::new()), "what was lost is closed");
            program.close(reader).unwrap();
            assert!(account.used(Resource::Memory) <= before + 4096, "a queue keeps a little");
            assert_eq!(program.read_from(own, 10), Err(Errno::EAGAIN));
            assert_eq!(program.write_to(old, b"x"), Err(Errno::ECONNRESET), "it learns of it");
            assert_eq!(program.write_to(old, b"x"), Err(Errno::EPERM), "its peer has another");
            assert_eq!(program.write_to(own, b"hello"), Ok(5));
            assert_eq!(program.read_from(new, 10), Ok(b"hello".to_vec()));
        });
    }

    /// `/proc/net/unix` tells each socket with its name.
    #[test]
    fn all_sockets_are_listed() {
        run(|program| {
            let listener = listener(program, SOCK_STREAM, b"/tmp/listed", 0);
            let other = socket(program, SOCK_DGRAM);
            assert_eq!(with_name(program, SystemCall::Bind, other, b"\0with\0zeros"), Ok(0));
            let path = program.store(b"/proc/net/unix\0");
            let file = program.call(SystemCall::Open, [0, path, 0, 0]).unwrap();
            let mut text = Vec::new();
            loop {
                match program.read_from(file, 1000).unwrap() {
                    bytes if bytes.is_empty() => break,
                    bytes => text.extend(bytes),
                }
            }
            let text = String::from_utf8(text).unwrap();
            let line = |end: &str| text.lines().find(|line| line.ends_with(end)).unwrap().to_string();
            assert!(text.starts_with("Num       RefCount Protocol Flags    Type St Inode Path\n"));
            let status = program.place(128);
            program.call(SystemCall::Status, [listener, status]).unwrap();
            let inode = program.read_u64(status + 8);
            let expected = format!("00000002 00000000 00010000 0001 01 {inode:5} /tmp/listed");
            assert!(line("/tmp/listed").ends_with(&expected), "{text}");
            assert!(line("@with@zeros").contains(" 00000000 0002 01 "), "{text}");
            program.remove(b"/tmp/listed\0");
        });
    }

    /// Events of a socket that has no peer yet come with the connection, to those that wait for them.
    #[test]
    fn events_come_with_a_connection() {
        run(|program| {
            let listener = listener(program, SOCK_STREAM | SOCK_NONBLOCK, b"\0events", 1);
            let client = socket(program, SOCK_STREAM | SOCK_NONBLOCK);
            let epoll = program.call(SystemCall::EpollCreate, [0]).unwrap();
            let watch = |program: &mut Program, file: usize, events: u32| {
                let request = [&events.to_le_bytes()[..], &[0; 4], &(file as u64).to_le_bytes()].concat();
                let place = program.store(&request);
                program.call(SystemCall::EpollControl, [epoll, 1, file, place]).unwrap();
            };
            let edge = 1 << 31;
            watch(program, client, event::IN | event::OUT | event::RDHUP | edge);
            watch(program, listener, event::IN | edge);
            let place = program.place(64);
            let wait = |program: &mut Program| {
                let count = program.call(SystemCall::EpollWait, [epoll, place, 4, 0, 0, 0]).unwrap();
                let mut found: Vec<_> = (0..count)
                    .map(|at| (program.read_u64(place + 16 * at + 8) as usize, program.read_u32(place + 16 * at)))
                    .collect();
                found.sort();
                found
            };
            assert_eq!(wait(program), [(client, event::OUT | event::HUP)]);
            assert_eq!(with_name(program, SystemCall::Connect, client, b"\0events"), Ok(0));
            assert_eq!(wait(program), [(listener, event::IN), (client, event::OUT)]);
            let server = program.call(SystemCall::Accept, [listener, 0, 0]).unwrap();
            assert_eq!(program.write_to(server, b"x"), Ok(1));
            assert_eq!(wait(program), [(client, event::IN | event::OUT)]);
            program.close(server).unwrap();
            assert_eq!(wait(program), [(client, event::IN | event::OUT | event::RDHUP | event::HUP)]);
        });
    }
}
