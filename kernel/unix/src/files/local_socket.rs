//! Local sockets (unix(7)).
//!
//! Each socket has an inbox, with what it is to receive: a queue of bytes and a list of records. Of a stream, a record
//! is a run of bytes that one receiving call may give; of the other kinds, a message. Files that were sent
//! ([`SentFiles`]) are with the first byte of their record, and a call that receives them gives no bytes behind their
//! record. Two sockets that are connected have each other's inboxes; a datagram socket also sends to inboxes that it
//! finds by their [names]. Connections that wait for `accept` are messages, too ([`connecting`]).
//!
//! # Bounds
//!
//! An inbox holds [`CAPACITY`] bytes, [`MOST_MESSAGES`] messages, and files until [`FILES`] are reached; beyond that a
//! sender waits. Of connected streams and sockets of ordered messages the sending side pays for bytes and records: the
//! process that made the pair, or one of both that made the connection. Of datagrams the maker of the receiving socket
//! pays, since anybody may send. Senders pay for files.
//!
//! # Sockets in messages
//!
//! Local sockets that carry each other, and that no descriptor leads to, are found and closed
//! ([`carriers`](crate::files::carriers)).
//!
//! # Locks
//!
//! A socket's state comes before all inboxes. Inboxes are locked one after the other, never together. Files are dropped
//! outside of both.

use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::task::{Poll, Waker};

use abi_unix::types::{self, Status, epoll as event, mode, socket_option as option, terminal};
use abi_unix::{Errno, errno};
use spin::Mutex;

use self::direction::{Direction, QueuedMessage};
use self::names::{NameReservation, Naming};
use crate::files::byte_queue::ByteQueue;
use crate::files::carriers::{self, CarriedPlace, CarrierPlace, Fate, MessageCarrier, ReferenceToSent};
use crate::files::file::{Accepted, Attempt, FileOperations, OpenFile, Properties, Unit, status_without_contents};
use crate::files::gathered::{MOST_BYTES, few};
use crate::files::local_name::{ENTRY, LONGEST_LOCAL_ADDRESS, LocalName, write_address};
use crate::files::message::{MessageDetails, MessageSender, MessageSpace, Recipient};
use crate::files::sent_files::{OutgoingMessage, Receipt, ReceivedMessage, SentFiles};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::{AddressOut, Caller, Credentials, OptionOut, UserBuffer, length_of};
use crate::scheduling::steps;

#[cfg(test)]
mod compared_tests;
pub(crate) mod connecting;
mod direction;
pub(crate) mod names;

/// Bytes that a direction holds, and that a message may have.
pub(crate) const CAPACITY: usize = 65536;
/// Free bytes from which on a stream is ready for writing.
const READY_ROOM: usize = 4096;
/// Messages that a direction holds.
const MOST_MESSAGES: usize = 256;
/// Files in a direction from which on a message with further files waits.
const FILES: usize = 256;
/// Messages of a closed socket that are thrown away in one step, up to the first with files.
const THROWN_AWAY_AT_ONCE: usize = 64;
/// Messages and files, together, that a collection looks at in one step.
const PASSED_AT_ONCE: usize = 64;

/// The receiving side of a socket.
#[doc(alias = "unix_sock")]
pub(crate) struct Inbox {
    kind: u32,
    /// The process that made the socket; of a connection, that which made the listener.
    maker: u32,
    /// The number of the socket, which no other has or had.
    number: u64,
    /// Whether a `connect` has made it.
    is_connection: bool,
    direction: Mutex<Direction>,
    naming: Mutex<Naming>,
    /// The number of the socket to which its socket is connected, or 0.
    // Relaxed: it is compared only, and changes under the lock of the socket's state.
    partner: AtomicU64,
    /// The receiver was closed with messages that it had not received, and the sender does not know it yet.
    has_lost: AtomicBool,
    /// The peer of its datagram socket has left it with messages, and its socket does not know it yet.
    has_failed: AtomicBool,
    place: CarrierPlace,
    _charge: Charge,
}

/// The connection of a local socket.
enum LocalState {
    Fresh,
    Listening,
    /// The inbox of the other socket.
    Connected(Arc<Inbox>),
}

/// A local socket.
pub(crate) struct LocalSocket {
    inbox: Arc<Inbox>,
    state: Mutex<LocalState>,
    /// The process that `SO_PEERCRED` tells.
    peer_process: Mutex<Credentials>,
    /// Options that are set, as bits at their numbers.
    options: AtomicU32,
    /// Sending was shut down.
    cannot_send: AtomicBool,
}

/// The last number of a socket.
static NUMBERS: AtomicU64 = AtomicU64::new(0);
/// Options of every socket that have no effect on a local one, and are kept.
const KEPT_OPTIONS: [u32; 3] = [option::SO_REUSEADDR, option::SO_BROADCAST, option::SO_KEEPALIVE];

impl Inbox {
    /// Makes one of this kind. The first account pays for it, and the second for what it is to receive.
    fn new(
        kind: u32,
        maker: u32,
        (own, of_contents): (&Arc<Account>, &Arc<Account>),
        is_connection: bool,
    ) -> Result<Arc<Inbox>, Errno> {
        let charge = own.charge(Resource::Memory, size_of::<Inbox>() + ENTRY)?;
        let direction = Direction { awaits_acceptance: is_connection, ..Direction::new(of_contents) };
        Ok(Arc::new(Inbox {
            kind,
            maker,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed) + 1,
            is_connection,
            direction: Mutex::new(direction),
            naming: Mutex::new(Naming::None),
            partner: AtomicU64::new(0),
            has_lost: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            place: CarrierPlace::default(),
            _charge: charge,
        }))
    }

    /// Takes back the registration of an attempt at sending to it, or at connecting.
    fn forget_sender(&self, waker: &Waker) {
        self.direction.lock().writers.forget(waker);
    }

    fn is_stream(&self) -> bool {
        self.kind == types::SOCK_STREAM
    }

    fn is_datagram(&self) -> bool {
        self.kind == types::SOCK_DGRAM
    }

    /// Has these files in a message.
    fn carry(self: &Arc<Inbox>, files: &SentFiles) {
        for file in files.files() {
            if let Some(socket) = file.as_kind::<LocalSocket>() {
                file.is_sent();
                carriers::is_sent(self, &*socket.inbox, file);
            }
        }
    }

    /// Has these files in a message no more.
    fn carries_no_more(&self, files: &SentFiles, fate: Fate) {
        for socket in sockets_among(files) {
            carriers::is_carried_no_more(self, &*socket.inbox, fate);
        }
    }

    /// Ends receiving. Returns whether messages are left that are to be thrown away in steps: those with files, and
    /// many others, of which each may free a name.
    fn end(&self) -> bool {
        let mut direction = self.direction.lock();
        direction.is_shut = true;
        direction.queue = ByteQueue::new();
        let was_open = core::mem::replace(&mut direction.has_receiver, false);
        let has_contents = !direction.records.is_empty() && direction.listening.is_none();
        if was_open && (has_contents || direction.awaits_acceptance) && !self.is_datagram() {
            self.has_lost.store(true, Ordering::Relaxed);
        }
        let are_left = direction.files > 0 || direction.records.len() > THROWN_AWAY_AT_ONCE;
        if !are_left {
            direction.records = Default::default();
        }
        direction.settle();
        direction.writers.wake_all();
        are_left
    }
}

/// Returns the local sockets among the files of a message.
fn sockets_among(files: &SentFiles) -> impl Iterator<Item = &LocalSocket> {
    files.files().iter().filter_map(|file| file.as_kind())
}

impl MessageCarrier for Inbox {
    fn place(&self) -> &CarrierPlace {
        &self.place
    }

    fn maker(&self) -> u32 {
        self.maker
    }

    fn pass_some_carried(&self, from: CarriedPlace, pass: &mut dyn FnMut(&dyn MessageCarrier)) -> Option<CarriedPlace> {
        let direction = self.direction.lock();
        let mut place = match from.message.checked_sub(direction.before) {
            Some(_) => from,
            None => CarriedPlace { message: direction.before, file: 0 },
        };
        let first = ((place.message - direction.before) as usize).min(direction.records.len());
        let mut left = PASSED_AT_ONCE;
        for record in direction.records.range(first..) {
            let files = record.files.as_ref().map_or(&[][..], SentFiles::files);
            for file in files.get(place.file..).unwrap_or_default().iter().take(left) {
                left -= 1;
                place.file += 1;
                if let Some(socket) = file.as_kind::<LocalSocket>() {
                    pass(&*socket.inbox);
                }
            }
            if left == 0 {
                return Some(place);
            }
            left -= 1;
            place = CarriedPlace { message: place.message + 1, file: 0 };
        }
        None
    }

    fn give_up(&self) {
        self.end();
    }

    fn throw_some_away(&self) -> bool {
        for _ in 0..THROWN_AWAY_AT_ONCE {
            let mut direction = self.direction.lock();
            let Some(record) = direction.pop_record() else {
                direction.files = 0;
                direction.records = Default::default();
                direction.settle();
                return true;
            };
            if let Some(files) = record.files {
                self.carries_no_more(&files, Fate::ThrownAway);
                drop(direction);
                // Closes some of them at once, and leaves the others.
                drop(files);
                break;
            }
        }
        false
    }
}

impl LocalSocket {
    /// Makes a socket of this kind for a process.
    pub(crate) fn new(kind: u32, caller: &dyn Caller) -> Result<LocalSocket, Errno> {
        carriers::look_around(caller.number());
        let account = caller.account();
        let inbox = Inbox::new(kind, caller.number(), (account, account), false)?;
        Ok(LocalSocket::with(inbox, LocalState::Fresh, Credentials::NONE))
    }

    /// Makes a pair of this kind for a process.
    pub(crate) fn pair(kind: u32, caller: &dyn Caller) -> Result<[LocalSocket; 2], Errno> {
        carriers::look_around(caller.number());
        let account = caller.account();
        let inbox = || Inbox::new(kind, caller.number(), (account, account), false);
        let (first, second) = (inbox()?, inbox()?);
        first.partner.store(second.number, Ordering::Relaxed);
        second.partner.store(first.number, Ordering::Relaxed);
        let socket = |own: &Arc<Inbox>, peer: &Arc<Inbox>| {
            LocalSocket::with(own.clone(), LocalState::Connected(peer.clone()), Credentials::of_peer(caller))
        };
        Ok([socket(&first, &second), socket(&second, &first)])
    }

    fn with(inbox: Arc<Inbox>, state: LocalState, peer_process: Credentials) -> LocalSocket {
        names::enter(&inbox);
        LocalSocket {
            inbox,
            state: Mutex::new(state),
            peer_process: Mutex::new(peer_process),
            options: AtomicU32::new(0),
            cannot_send: AtomicBool::new(false),
        }
    }

    /// Returns the local socket behind a file; `ENOTSOCK` for any other kind.
    pub(crate) fn of(file: &OpenFile) -> Result<&LocalSocket, Errno> {
        file.as_kind().ok_or(Errno::ENOTSOCK)
    }

    /// Returns its kind.
    pub(crate) fn kind(&self) -> u32 {
        self.inbox.kind
    }

    /// Returns whether its messages can have an address, by which they go to another socket than its peer. A stream
    /// fails then: `EISCONN`, `EOPNOTSUPP`. The address of an ordered message is not looked at, as on Linux.
    pub(crate) fn heeds_address(&self) -> Result<bool, Errno> {
        match self.inbox.kind {
            types::SOCK_STREAM => Err(if self.peer().is_some() { Errno::EISCONN } else { Errno::EOPNOTSUPP }),
            types::SOCK_DGRAM => {
                self.take_failure(None)?;
                if self.cannot_send.load(Ordering::Relaxed) { Err(Errno::EPIPE) } else { Ok(true) }
            }
            _ => Ok(false),
        }
    }

    /// Returns the inbox of the other socket.
    fn peer(&self) -> Option<Arc<Inbox>> {
        match &*self.state.lock() {
            LocalState::Connected(peer) => Some(peer.clone()),
            LocalState::Fresh | LocalState::Listening => None,
        }
    }

    fn has_option(&self, option: u32) -> bool {
        self.options.load(Ordering::Relaxed) & 1 << option != 0
    }

    fn set_flag(&self, option: u32, is_set: bool) {
        match is_set {
            true => self.options.fetch_or(1 << option, Ordering::Relaxed),
            false => self.options.fetch_and(!(1 << option), Ordering::Relaxed),
        };
    }

    /// Takes the failure that its next call reports.
    fn take_failure(&self, peer: Option<&Arc<Inbox>>) -> Result<(), Errno> {
        // Relaxed: they were set before an end, under a lock, and are looked at after one.
        let is_reset = self.inbox.has_failed.swap(false, Ordering::Relaxed)
            || peer.is_some_and(|peer| peer.has_lost.swap(false, Ordering::Relaxed));
        if is_reset { Err(Errno::ECONNRESET) } else { Ok(()) }
    }

    /// Returns the inbox to which a message goes, of so many bytes.
    fn receiver(&self, caller: &dyn Caller, to: &Recipient, length: usize) -> Result<Arc<Inbox>, Errno> {
        let named = match to {
            Recipient::Local(named) => named.clone().downcast::<Inbox>().ok(),
            Recipient::Peer | Recipient::Network(_) => None,
        };
        let Some(receiver) = named.or_else(|| self.peer()) else { return Err(Errno::ENOTCONN) };
        if self.inbox.is_stream() {
            return if self.cannot_send.load(Ordering::Relaxed) { Err(Errno::EPIPE) } else { Ok(receiver) };
        }
        if length > CAPACITY {
            return Err(Errno::EMSGSIZE);
        }
        if self.inbox.is_datagram() && self.has_option(option::SO_PASSCRED) {
            self.inbox.take_any_name(caller.account())?;
        }
        self.take_failure(Some(&receiver).filter(|_| !self.inbox.is_datagram()))?;
        if self.cannot_send.load(Ordering::Relaxed) {
            return Err(Errno::EPIPE);
        }
        Ok(receiver)
    }

    /// Fails if a datagram cannot go to this inbox. A peer that is closed is none any more, as on Linux.
    fn permit_datagram(&self, receiver: &Arc<Inbox>, has_receiver: bool) -> Result<(), Errno> {
        if !has_receiver {
            let mut state = self.state.lock();
            if matches!(&*state, LocalState::Connected(peer) if Arc::ptr_eq(peer, receiver)) {
                self.inbox.partner.store(0, Ordering::Relaxed);
                *state = LocalState::Fresh;
            }
            return Err(Errno::ECONNREFUSED);
        }
        if receiver.hears(self.inbox.number) { Ok(()) } else { Err(Errno::EPERM) }
    }

    fn incoming(&self) -> &Mutex<Direction> {
        &self.inbox.direction
    }

    /// Tries to send the bytes behind those that were sent, with files at the first byte: as a message, or as a part
    /// of the stream.
    fn put(&self, caller: &dyn Caller, message: OutgoingMessage<'_>, waker: Option<&Waker>) -> Attempt {
        let (buffers, to, files, sent) = message.parts();
        let (total, is_stream) = (length_of(buffers), self.inbox.is_stream());
        let so_far = |sent: usize, error| Poll::Ready(if sent == 0 { Err(error) } else { Ok(sent) });
        let receiver = match self.receiver(caller, to, total) {
            Ok(receiver) => receiver,
            Err(error) => return so_far(*sent, error),
        };
        if is_stream && total == 0 {
            return Poll::Ready(if receiver.direction.lock().is_shut { Err(Errno::EPIPE) } else { Ok(0) });
        }
        if self.inbox.is_datagram() {
            let has_receiver = receiver.direction.lock().has_receiver;
            self.permit_datagram(&receiver, has_receiver)?;
        }
        let mut direction = receiver.direction.lock();
        let mut has_begun = false;
        loop {
            if direction.is_shut {
                // It was closed just now.
                let is_refused = self.inbox.is_datagram() && !direction.has_receiver;
                return so_far(*sent, if is_refused { Errno::ECONNREFUSED } else { Errno::EPIPE });
            }
            let rest = total - *sent;
            if !direction.has_room(is_stream, rest, files.is_some()) {
                let registered = waker.map_or(Ok(()), |waker| direction.writers.register(waker));
                return registered.map_or(Poll::Ready(Err(Errno::ENOMEM)), |()| Poll::Pending);
            }
            let room = CAPACITY - direction.queue.len();
            // A queue that grows much takes as long as a copy.
            let grows_much = if is_stream { *sent > 0 } else { rest > MOST_BYTES };
            if grows_much && direction.queue.would_grow(rest.min(room), CAPACITY) {
                if let Err(error) = direction.reserve(rest.min(room)) {
                    return so_far(*sent, error);
                }
                if steps::stops_for_interrupts(waker) {
                    return Poll::Pending;
                }
            }
            let (part, begin, most) = if is_stream { few(buffers, *sent) } else { (buffers, 0, total) };
            // Less than a queue that doubles has room for.
            let count = most.min(room).min(if is_stream { MOST_BYTES / 2 } else { total });
            let added = self.put_part(&receiver, &mut direction, caller, part, files, (begin, count, has_begun));
            if let Err(error) = added {
                return so_far(*sent, error);
            }
            *sent += count;
            has_begun = true;
            direction.readers.wake_all();
            if *sent == total {
                return Poll::Ready(Ok(total));
            }
            if steps::stops_for_interrupts(waker) {
                return Poll::Pending;
            }
        }
    }

    /// Adds bytes of the buffers to a direction, a place there and their number, with the files. Nothing has changed if
    /// it fails.
    fn put_part(
        &self,
        receiver: &Arc<Inbox>,
        direction: &mut Direction,
        caller: &dyn Caller,
        buffers: &[UserBuffer],
        files: &mut Option<SentFiles>,
        (from, count, has_begun): (usize, usize, bool),
    ) -> Result<(), Errno> {
        direction.reserve(count)?;
        // Last of all that may fail but for bytes that cannot be read; then the call drops the files, and their count.
        if let Some(files) = files {
            files.are_put_in(caller.account())?;
        }
        direction.copy_in(caller, buffers, from, count)?;
        if let Some(files) = files {
            receiver.carry(files);
            direction.files += files.files().len();
        }
        let process = Credentials::of_sender(caller);
        match direction.records.back_mut() {
            // Bytes of one call belong to the files of its first one.
            Some(last)
                if self.inbox.is_stream()
                    && files.is_none()
                    && last.process == process
                    && (has_begun || last.files.is_none()) =>
            {
                last.length += count;
            }
            _ => {
                let sender = if self.inbox.is_stream() { None } else { self.inbox.name() };
                direction.records.push_back(QueuedMessage { length: count, process, files: files.take(), sender });
            }
        }
        Ok(())
    }

    /// Tries to receive bytes of the stream, or a message.
    fn take(&self, caller: &dyn Caller, to: MessageSpace<'_>, waker: Option<&Waker>) -> Receipt {
        let (space, is_stream) = (to.left(), self.inbox.is_stream());
        let nothing = ReceivedMessage { goes_on: false, ..ReceivedMessage::default() };
        let peer = self.peer();
        match self.inbox.kind {
            types::SOCK_STREAM if peer.is_none() => return Poll::Ready(Err(Errno::EINVAL)),
            types::SOCK_SEQPACKET if peer.is_none() => return Poll::Ready(Err(Errno::ENOTCONN)),
            types::SOCK_STREAM => {}
            // As on Linux, a failure comes before messages, but not before the bytes of a stream.
            _ => self.take_failure(peer.as_ref())?,
        }
        let mut direction = self.incoming().lock();
        let Some(first) = direction.records.front() else {
            self.take_failure(peer.as_ref())?;
            // As on Linux, the end of datagrams is one for callers that wait.
            if direction.is_ended && (!self.inbox.is_datagram() || waker.is_some()) {
                return Poll::Ready(Ok(nothing));
            }
            if let Some(waker) = waker {
                direction.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        };
        let process = self.has_option(option::SO_PASSCRED).then_some(first.process);
        let details = MessageDetails::of_process(process);
        if is_stream {
            let name = peer.and_then(|peer| peer.name());
            // As on Linux, a call for no bytes has waited for some.
            let received = match space {
                0 => Ok(nothing),
                _ => self.take_stream(&mut direction, caller, to),
            };
            let sender = name.map_or(MessageSender::Unnamed, MessageSender::Local);
            return Poll::Ready(received.map(|received| ReceivedMessage { sender, details, ..received }));
        }
        let length = first.length;
        let wanted = length.min(space);
        let count = direction.copy_out(caller, (to.buffers(), to.done()), 0, wanted)?;
        if count < wanted {
            return Poll::Ready(Err(Errno::EFAULT));
        }
        let (files, sender) = if to.is_look() {
            let sender = direction.records.front().and_then(|record| record.sender.clone());
            (direction.copy_files(Some(0), caller)?, sender)
        } else {
            let mut record = direction.consume_message();
            self.after_taking(&mut direction, record.files.as_mut());
            (record.files, record.sender)
        };
        let sender = sender.map_or(MessageSender::Unnamed, MessageSender::Local);
        Poll::Ready(Ok(ReceivedMessage { count, length, files, sender, details, ..ReceivedMessage::default() }))
    }

    /// Receives bytes of the stream, which has some, up to the first that came with files.
    fn take_stream(
        &self,
        direction: &mut Direction,
        caller: &dyn Caller,
        to: MessageSpace<'_>,
    ) -> Result<ReceivedMessage, Errno> {
        let mut received = ReceivedMessage::of_stream(0);
        let (all, _) = direction.stream_run(to.left(), self.has_option(option::SO_PASSCRED));
        loop {
            let (part, begin, space) = few(to.buffers(), to.done() + received.count);
            let wanted = space.min(all - received.count);
            let from = if to.is_look() { received.count } else { 0 };
            let count = match direction.copy_out(caller, (part, begin), from, wanted) {
                Ok(count) => count,
                Err(error) if received.count == 0 => return Err(error),
                Err(_) => break,
            };
            received.count += count;
            if !to.is_look() {
                // At most the last record has files, which come with its first byte.
                received.files = direction.consume_stream(count).or(received.files);
            }
            if count < wanted || received.count == all {
                break;
            }
            // The bytes that are left are an event for others that wait for some, and for an edge-triggered epoll.
            if steps::has_interrupts() {
                direction.readers.wake_all();
                break;
            }
        }
        received.length = received.count;
        if to.is_look() {
            // An interrupt may have ended it before the bytes that come with files.
            let (_, with_files) = direction.stream_run(received.count, false);
            received.files = direction.copy_files(with_files, caller)?;
            return Ok(received);
        }
        self.after_taking(direction, received.files.as_mut());
        Ok(received)
    }

    /// Gives back the memory of what was received, and wakes senders.
    fn after_taking(&self, direction: &mut Direction, files: Option<&mut SentFiles>) {
        if let Some(files) = files {
            files.are_received();
            direction.files -= files.files().len();
            self.inbox.carries_no_more(files, Fate::Received);
        }
        direction.shrink();
        direction.writers.wake_all();
    }

    /// Performs the `shutdown` call.
    pub(crate) fn shutdown(&self, how: u32) -> Result<usize, Errno> {
        let (receiving, sending) = match how {
            types::SHUT_RD => (true, false),
            types::SHUT_WR => (false, true),
            types::SHUT_RDWR => (true, true),
            _ => return Err(Errno::EINVAL),
        };
        // As on Linux, the other end of datagrams does not see that no more will come.
        let peer = self.peer().filter(|_| !self.inbox.is_datagram());
        if receiving {
            let mut direction = self.incoming().lock();
            direction.is_shut = true;
            direction.is_ended = true;
        }
        if sending {
            self.cannot_send.store(true, Ordering::Relaxed);
            if let Some(peer) = &peer {
                let mut direction = peer.direction.lock();
                direction.is_shut = true;
                direction.is_ended = true;
            }
        }
        // Both ends have other events now.
        for inbox in [Some(&self.inbox), peer.as_ref()].into_iter().flatten() {
            let mut direction = inbox.direction.lock();
            direction.readers.wake_all();
            direction.writers.wake_all();
        }
        Ok(0)
    }

    /// Gives it an abstract name, with the NUL before it.
    pub(crate) fn bind_to(&self, name: &[u8], account: &Arc<Account>) -> Result<usize, Errno> {
        self.inbox.take_abstract_name(LocalName::new(account, name)?).map(|()| 0)
    }

    /// Gives it any abstract name, unless it has one.
    pub(crate) fn bind_automatically(&self, account: &Arc<Account>) -> Result<usize, Errno> {
        self.inbox.take_any_name(account).map(|()| 0)
    }

    /// Reserves the place for its name, a path whose file is still to be made.
    pub(crate) fn reserve_name(&self, path: &[u8], account: &Arc<Account>) -> Result<NameReservation, Errno> {
        NameReservation::new(&self.inbox, LocalName::new(account, path)?)
    }

    /// Performs `getsockname`.
    pub(crate) fn write_name(&self, out: AddressOut, caller: &dyn Caller) -> Result<usize, Errno> {
        LocalSocket::write(self.inbox.name(), out, caller)
    }

    /// Performs `getpeername`.
    pub(crate) fn write_peer(&self, out: AddressOut, caller: &dyn Caller) -> Result<usize, Errno> {
        LocalSocket::write(self.peer().ok_or(Errno::ENOTCONN)?.name(), out, caller)
    }

    fn write(name: Option<Arc<LocalName>>, out: AddressOut, caller: &dyn Caller) -> Result<usize, Errno> {
        let mut room = [0; LONGEST_LOCAL_ADDRESS];
        let length = write_address(name.as_deref(), &mut room);
        out.write_bytes(caller, &room[..length]).map(|()| 0)
    }

    /// Performs the `setsockopt` call: the sizes of the buffers are fixed.
    pub(crate) fn set_option(&self, caller: &dyn Caller, named: (u32, u32), value: UserBuffer) -> Result<usize, Errno> {
        let (level, name) = named;
        if level != option::SOL_SOCKET {
            return Err(Errno::EOPNOTSUPP);
        }
        let is_set = value.read_number(caller)? != 0;
        match name {
            option::SO_SNDBUF | option::SO_RCVBUF => {}
            option::SO_PASSCRED => self.set_flag(name, is_set),
            name if KEPT_OPTIONS.contains(&name) => self.set_flag(name, is_set),
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(0)
    }

    /// Performs the `getsockopt` call for the option of this level and name.
    pub(crate) fn get_option(&self, caller: &dyn Caller, asked: (u32, u32), out: OptionOut) -> Result<usize, Errno> {
        let (level, name) = asked;
        if level != option::SOL_SOCKET {
            return Err(Errno::EOPNOTSUPP);
        }
        let number = match name {
            option::SO_TYPE => self.inbox.kind,
            option::SO_DOMAIN => types::AF_UNIX as u32,
            option::SO_PROTOCOL => 0,
            option::SO_ACCEPTCONN => u32::from(matches!(*self.state.lock(), LocalState::Listening)),
            option::SO_SNDBUF | option::SO_RCVBUF => CAPACITY as u32,
            option::SO_ERROR => match self.take_failure(self.peer().as_ref()) {
                Err(error) => errno::Errno::number(error) as u32,
                Ok(()) => 0,
            },
            option::SO_PASSCRED => u32::from(self.has_option(name)),
            name if KEPT_OPTIONS.contains(&name) => u32::from(self.has_option(name)),
            option::SO_PEERCRED => {
                let peer = *self.peer_process.lock();
                return out.write(caller, &peer.to_bytes());
            }
            _ => return Err(Errno::ENOPROTOOPT),
        };
        out.write(caller, &number.to_le_bytes())
    }
}

impl FileOperations for LocalSocket {
    fn properties(&self) -> Properties {
        // Of a stream, all bytes of a call go under one lock.
        let unit = if self.inbox.is_stream() { Unit::Call } else { Unit::Message(CAPACITY) };
        Properties { unit, ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        Status { inode: self.inbox.number, ..status_without_contents(mode::SOCKET | 0o777, None) }
    }

    /// Returns the memory of the bytes and records that were not received: of the maker of a connection's listener, or
    /// of its client.
    fn memory_if_closed(&self, account: &Account) -> usize {
        let direction = self.incoming().lock();
        if core::ptr::eq(&**direction.charge.account(), account) { 0 } else { direction.charge.amount() }
    }

    fn read_all(&self, caller: &dyn Caller, buffers: &[UserBuffer], waker: Option<&Waker>) -> Attempt {
        if length_of(buffers) == 0 {
            return Poll::Ready(Ok(0));
        }
        // Files that came with the bytes are closed, as on Linux.
        self.take(caller, MessageSpace::new(buffers, 0, 0), waker).map_ok(|received| received.count)
    }

    fn write_all(&self, from: &dyn Caller, buffers: &[UserBuffer], sent: &mut usize, waker: Option<&Waker>) -> Attempt {
        self.put(from, OutgoingMessage::new(buffers, &Recipient::Peer, &mut None, sent), waker)
    }

    fn send_message(&self, caller: &dyn Caller, message: OutgoingMessage<'_>, waker: Option<&Waker>) -> Attempt {
        self.put(caller, message, waker)
    }

    fn receive_message(&self, caller: &dyn Caller, space: MessageSpace<'_>, waker: Option<&Waker>) -> Receipt {
        self.take(caller, space, waker)
    }

    /// Tries `accept`.
    fn accept(&self, _: &dyn Caller, waker: Option<&Waker>) -> Poll<Result<Accepted, Errno>> {
        self.accept_next(waker)
    }

    /// Returns the epoll events for which a call would not wait; `waker` is registered if there is one.
    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let bit = |is_so: bool, bits: u32| if is_so { bits } else { 0 };
        let (has_input, is_ended, listens) = {
            let mut direction = self.incoming().lock();
            if let Some(waker) = waker {
                direction.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            (!direction.records.is_empty(), direction.is_ended, direction.listening.is_some())
        };
        let input = bit(has_input || is_ended, event::IN | event::RDNORM) | bit(is_ended, event::RDHUP);
        let has_failed = self.inbox.has_failed.load(Ordering::Relaxed);
        let Some(peer) = self.peer() else {
            // A socket that is to be connected has come to its end, until it is.
            let has_none = !listens && !self.inbox.is_datagram();
            let is_shut = is_ended && self.cannot_send.load(Ordering::Relaxed);
            return Ok(input
                | bit(has_failed, event::ERR)
                | bit(!listens, event::OUT | event::WRNORM)
                | bit(has_none || is_shut, event::HUP));
        };
        let mut direction = peer.direction.lock();
        if let Some(waker) = waker {
            direction.writers.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        let room = CAPACITY - direction.queue.len();
        let has_room = match self.inbox.is_stream() {
            true => room >= READY_ROOM,
            false => room >= CAPACITY / 2 && direction.records.len() < MOST_MESSAGES,
        };
        let is_reset = peer.has_lost.load(Ordering::Relaxed);
        let is_shut = self.cannot_send.load(Ordering::Relaxed) || !self.inbox.is_datagram() && direction.is_shut;
        let can_send = has_room && direction.files < FILES || direction.is_shut || is_shut;
        Ok(input
            | bit(is_reset, event::IN | event::RDNORM)
            | bit(can_send, event::OUT | event::WRNORM)
            | bit(is_ended && is_shut, event::HUP)
            | bit(is_reset || has_failed, event::ERR))
    }

    fn forget_reader(&self, waker: &Waker) {
        self.incoming().lock().readers.forget(waker);
    }

    fn forget_writer(&self, waker: &Waker) {
        if let Some(peer) = self.peer() {
            peer.forget_sender(waker);
        }
    }

    fn forget_sender(&self, to: &Recipient, waker: &Waker) {
        match to {
            Recipient::Local(named) => {
                let named: &dyn Any = &**named;
                if let Some(inbox) = named.downcast_ref::<Inbox>() {
                    inbox.forget_sender(waker);
                }
            }
            Recipient::Peer | Recipient::Network(_) => self.forget_writer(waker),
        }
    }

    fn signals_broken_pipe(&self) -> bool {
        self.inbox.is_stream()
    }

    fn reference_to_sent(&self) -> Option<ReferenceToSent> {
        Some(ReferenceToSent::new(self.inbox.clone()))
    }

    /// Returns the bytes of the stream, or of the next message.
    fn unread(&self) -> Result<usize, Errno> {
        let direction = self.incoming().lock();
        match self.inbox.is_stream() {
            _ if direction.listening.is_some() => Err(Errno::EINVAL),
            true => Ok(direction.queue.len()),
            false => Ok(direction.records.front().map_or(0, |record| record.length)),
        }
    }

    /// Tries `ioctl`: the bytes that the peer has not received.
    fn control(&self, caller: &dyn Caller, command: u32, argument: usize, _: Option<&Waker>) -> Attempt {
        if command != terminal::WRITTEN {
            return Poll::Ready(Err(Errno::ENOTTY));
        }
        let count = self.peer().map_or(0, |peer| peer.direction.lock().queue.len());
        Poll::Ready(caller.copy_out(argument, &(count as u32).to_le_bytes()).map(|()| 0))
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        names::leave(&self.inbox);
        let are_left = self.inbox.end();
        if let LocalState::Connected(peer) = self.state.get_mut()
            && !self.inbox.is_datagram()
        {
            let mut direction = peer.direction.lock();
            direction.is_shut = true;
            direction.is_ended = true;
            direction.readers.wake_all();
        }
        // Never here: sockets in the messages may have messages with sockets, and so on.
        if are_left {
            carriers::ends(&self.inbox);
        }
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::{
        AF_UNIX, MessageHeader, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_SEQPACKET, SOCK_STREAM, control, message,
    };

    use super::*;
    use crate::files::remains;
    use crate::testing::{DATA, LENGTH, Program, run};

    /// Buffers with as many bytes as a direction holds; their contents do not matter.
    const PARTS: [(usize, usize); 4] = [(DATA, CAPACITY / 4); 4];

    fn pair(program: &mut Program, kind: u32) -> (usize, usize) {
        program.socket_pair(kind | SOCK_NONBLOCK)
    }

    /// Returns a control message with these files.
    fn rights(files: &[usize]) -> Vec<u8> {
        let mut bytes = (16 + 4 * files.len()).to_le_bytes().to_vec();
        bytes.extend([1u32, message::SCM_RIGHTS].map(u32::to_le_bytes).concat());
        bytes.extend(files.iter().flat_map(|file| (*file as u32).to_le_bytes()));
        bytes
    }

    fn send(program: &mut Program, socket: usize, bytes: &[u8], control: &[u8]) -> Result<usize, Errno> {
        let (place, control_place) = (program.store(bytes), program.store(control));
        let header = program.message_header(&[(place, bytes.len())], (control_place, control.len()));
        program.call(SystemCall::SendMessage, [socket, header, 0])
    }

    /// Receives up to `room` bytes; returns them with the descriptors of the files and the flags.
    fn receive(
        program: &mut Program,
        socket: usize,
        room: usize,
        control_room: usize,
        flags: u32,
    ) -> Result<(Vec<u8>, Vec<usize>, u32), Errno> {
        let (place, control) = (program.place(room.max(8)), program.place(control_room.max(8)));
        let header = program.message_header(&[(place, room)], (control, control_room));
        let count = program.call(SystemCall::ReceiveMessage, [socket, header, flags as usize])?;
        let bytes = program.read(place, count.min(room));
        let length = program.read_u64(header + MessageHeader::CONTROL_LENGTH) as usize;
        let files = if length == 0 { 0 } else { (program.read_u64(control) as usize - 16) / 4 };
        let files = (0..files).map(|index| program.read_u32(control + 16 + index * 4) as usize).collect();
        Ok((bytes, files, program.read_u32(header + 48)))
    }

    #[test]
    fn a_stream_has_no_boundaries_and_messages_have() {
        run(|program| {
            let (a, b) = pair(program, SOCK_STREAM);
            for part in [b"one".as_slice(), b"two"] {
                assert_eq!(program.write_to(a, part), Ok(3));
            }
            assert_eq!(program.read_from(b, 100), Ok(b"onetwo".to_vec()));
            assert_eq!(program.read_from(b, 100), Err(Errno::EAGAIN));
            for kind in [SOCK_DGRAM, SOCK_SEQPACKET] {
                let (a, b) = pair(program, kind);
                for part in [b"one".as_slice(), b"", b"three"] {
                    assert_eq!(send(program, a, part, &[]), Ok(part.len()));
                }
                assert_eq!(receive(program, b, 100, 0, 0), Ok((b"one".to_vec(), vec![], 0)));
                assert_eq!(receive(program, b, 100, 0, 0), Ok((vec![], vec![], 0)));
                assert_eq!(receive(program, b, 2, 0, message::PEEK), Ok((b"th".to_vec(), vec![], message::TRUNC)));
                let place = program.place(8);
                let whole = [b, place, 2, message::TRUNC as usize, 0, 0];
                assert_eq!(program.call(SystemCall::ReceiveFrom, whole), Ok(5));
                assert_eq!(program.read_from(b, 100), Err(Errno::EAGAIN), "the rest is lost");
                let largest = program.message_header(&PARTS, (0, 0));
                assert_eq!(program.call(SystemCall::SendMessage, [a, largest, 0]), Ok(CAPACITY));
                let larger = program.message_header(&[&PARTS[..], &[(DATA, 1)]].concat(), (0, 0));
                assert_eq!(program.call(SystemCall::SendMessage, [a, larger, 0]), Err(Errno::EMSGSIZE));
            }
        });
    }

    #[test]
    fn messages_are_bounded_in_number_and_bytes_and_everything_is_given_back() {
        run(|program| {
            let account = program.process().account.clone();
            let before = account.used(Resource::Memory);
            let (a, b) = pair(program, SOCK_DGRAM);
            for _ in 0..MOST_MESSAGES {
                assert_eq!(program.write_to(a, b""), Ok(0));
            }
            assert_eq!(program.write_to(a, b""), Err(Errno::EAGAIN));
            for _ in 0..MOST_MESSAGES {
                assert_eq!(receive(program, b, 1, 0, 0), Ok((vec![], vec![], 0)));
            }
            let (c, d) = pair(program, SOCK_STREAM);
            let much = program.message_header(&[PARTS, PARTS].concat(), (0, 0));
            assert_eq!(program.call(SystemCall::SendMessage, [c, much, 0]), Ok(CAPACITY));
            assert_eq!(program.call(SystemCall::SendMessage, [c, much, 0]), Err(Errno::EAGAIN));
            for socket in [a, b, c, d] {
                program.close(socket).unwrap();
            }
            assert_eq!(account.used(Resource::Memory), before);
        });
    }

    /// unix(7): files are a barrier behind their bytes.
    #[test]
    fn files_come_with_the_bytes_that_they_were_sent_with() {
        run(|program| {
            let (a, b) = pair(program, SOCK_STREAM);
            let (reader, writer) = program.pipe(abi_unix::types::open::NONBLOCK);
            assert_eq!(send(program, a, b"four", &[]), Ok(4));
            assert_eq!(send(program, a, b"!", &rights(&[writer, reader])), Ok(1));
            assert_eq!(send(program, a, b"more", &[]), Ok(4));
            program.close(writer).unwrap();
            let (bytes, files, flags) = receive(program, b, 20, 64, message::PEEK).unwrap();
            assert_eq!((bytes, files.len(), flags), (b"four!".to_vec(), 2, 0));
            files.into_iter().for_each(|file| assert_eq!(program.close(file), Ok(0)));
            let (bytes, files, flags) = receive(program, b, 20, 64, message::CMSG_CLOEXEC).unwrap();
            assert_eq!((bytes, files.len(), flags), (b"four!".to_vec(), 2, 0));
            assert_eq!(program.call(SystemCall::FileControl, [files[0], control::GETFD as usize]), Ok(1));
            assert_eq!(program.write_to(files[0], b"through"), Ok(7));
            assert_eq!(program.read_from(reader, 10), Ok(b"through".to_vec()));
            assert_eq!(program.read_from(b, 20), Ok(b"more".to_vec()));
            // Without room for them they are closed: so is the last writer.
            program.close(files[1]).unwrap();
            for room in [0, 16, 20] {
                let other = program.call(SystemCall::Duplicate, [files[0]]).unwrap();
                assert_eq!(send(program, a, b"x", &rights(&[other, reader])), Ok(1));
                program.close(other).unwrap();
                let (bytes, some, flags) = receive(program, b, 20, room, 0).unwrap();
                assert_eq!((bytes, some.len(), flags), (b"x".to_vec(), room / 20, message::CTRUNC));
                some.into_iter().for_each(|file| assert_eq!(program.close(file), Ok(0)));
            }
            program.close(files[0]).unwrap();
            assert_eq!(program.read_from(reader, 10), Ok(vec![]), "there is no writer left");
            // A reader that does not ask for files closes them.
            let (reader, writer) = program.pipe(0);
            assert_eq!(send(program, a, b"x", &rights(&[writer])), Ok(1));
            program.close(writer).unwrap();
            assert_eq!(program.read_from(b, 1), Ok(b"x".to_vec()));
            assert_eq!(program.read_from(reader, 10), Ok(vec![]));
        });
    }

    #[test]
    fn wrong_control_messages_send_nothing() {
        run(|program| {
            let (a, b) = pair(program, SOCK_STREAM);
            let with = |length: usize, level: u32, kind: u32, data: &[u8]| {
                [&length.to_le_bytes()[..], &level.to_le_bytes(), &kind.to_le_bytes(), data].concat()
            };
            let wrong = [
                (with(15, 1, 1, &[0; 4]), Errno::EINVAL),
                (with(0, 1, 1, &[0; 4]), Errno::EINVAL),
                (with(21, 1, 1, &[0; 4]), Errno::EINVAL),
                (with(usize::MAX, 1, 1, &[0; 4]), Errno::EINVAL),
                (with(usize::MAX - 7, 1, 1, &[0; 4]), Errno::EINVAL),
                (with(20, 1, 9, &[0; 4]), Errno::EINVAL),
                (with(20, 6, 1, &[0; 4]), Errno::EINVAL),
                (rights(&[a, 777]), Errno::EBADF),
                (rights(&[usize::MAX]), Errno::EBADF),
                (rights(&[0; message::MOST_FILES + 1]), Errno::EINVAL),
                (rights(&[0; 3000]), Errno::ENOBUFS),
                (with(28, 1, 2, &[0; 12]), Errno::EPERM),
                // The second of two is wrong.
                ([rights(&[b, b]), with(15, 1, 1, &[])].concat(), Errno::EINVAL),
            ];
            for (control, error) in wrong {
                assert_eq!(send(program, a, b"x", &control), Err(error), "{control:?}");
            }
            let place = program.store(b"x");
            let far = program.message_header(&[(place, 1)], (0x1000, 24));
            assert_eq!(program.call(SystemCall::SendMessage, [a, far, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::SendMessage, [a, DATA + LENGTH - 8, 0]), Err(Errno::EFAULT));
            assert_eq!(program.read_from(b, 1), Err(Errno::EAGAIN));
            let own = [28usize.to_le_bytes().as_slice(), &1u32.to_le_bytes(), &2u32.to_le_bytes()].concat();
            let own = [own, program.id.to_le_bytes().to_vec(), vec![0; 8]].concat();
            assert_eq!(send(program, a, b"x", &own), Ok(1));
        });
    }

    /// Sockets that nothing but each other's messages holds, as the last descriptor of any of them goes: one over
    /// itself, two over each other, a ring of pairs with a socket of its own at each.
    #[test]
    fn sockets_that_only_carry_each_other_are_closed() {
        run(|program| {
            let account = program.process().account.clone();
            // The table of descriptors has grown after the first.
            let mut used = Vec::new();
            for kind in [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET] {
                let (witness, kept) = program.pipe(abi_unix::types::open::NONBLOCK);
                let (a, b) = pair(program, kind);
                for own in [a, b] {
                    assert_eq!(send(program, a, b"x", &rights(&[own, kept])), Ok(1));
                    assert_eq!(send(program, b, b"x", &rights(&[own, own])), Ok(1));
                }
                let pairs: Vec<_> = (0..5).map(|_| pair(program, kind)).collect();
                for (&(sender, _), &(_, next)) in pairs.iter().zip(pairs.iter().cycle().skip(1)) {
                    assert_eq!(send(program, sender, b"x", &rights(&[next, kept])), Ok(1));
                }
                program.close(kept).unwrap();
                assert_eq!(program.read_from(witness, 1), Err(Errno::EAGAIN));
                for (a, b) in pairs.into_iter().chain([(a, b)]) {
                    program.close(a).unwrap();
                    program.close(b).unwrap();
                }
                assert_eq!(program.read_from(witness, 1), Ok(vec![]), "all that they carried is closed");
                program.close(witness).unwrap();
                used.push(account.used(Resource::Memory));
            }
            assert!(!remains::are_left());
            assert_eq!(used, [used[0]; 3]);
        });
    }

    /// The memory of messages that a process has not received goes when it lets the socket go, and is told before that
    /// to all but the account that pays for it.
    #[test]
    fn memory_of_messages_is_told_and_goes_with_the_socket() {
        run(|program| {
            let account = program.process().account.clone();
            let before = account.used(Resource::Memory);
            let (reader, _) = program.pipe(0);
            let with_pipe = account.used(Resource::Memory);
            let (a, b) = pair(program, SOCK_DGRAM);
            let empty = account.used(Resource::Memory);
            for _ in 0..100 {
                assert_eq!(send(program, a, &[7; 300], &rights(&[reader])), Ok(300));
                assert_eq!(send(program, a, &[7; 300], &[]), Ok(300));
            }
            let file = program.process().descriptors.lock().get(b).cloned().unwrap();
            let socket = LocalSocket::of(&file).unwrap();
            assert_eq!(socket.memory_if_closed(&account), 0, "it is this account's own");
            let other = Account::of_the_first();
            let told = socket.memory_if_closed(&other);
            assert!(told >= 60_000 && told <= account.used(Resource::Memory) - empty, "{told}");
            drop(file);
            program.close(b).unwrap();
            program.close(a).unwrap();
            program.sleep_ns(10_000_000);
            assert!(!remains::are_left());
            assert_eq!(account.used(Resource::Memory), with_pipe);
            program.close(reader).unwrap();
            assert!(account.used(Resource::Memory) <= with_pipe && with_pipe > before);
        });
    }

    /// Messages of a closed socket each may free a name: many are thrown away in steps.
    #[test]
    fn many_messages_are_thrown_away_in_steps() {
        run(|program| {
            let (a, b) = pair(program, SOCK_DGRAM);
            for (count, are_left) in [(THROWN_AWAY_AT_ONCE, false), (THROWN_AWAY_AT_ONCE + 1, true)] {
                for _ in 0..count {
                    assert_eq!(program.write_to(a, b"x"), Ok(1));
                }
                let file = program.process().descriptors.lock().get(b).cloned().unwrap();
                let inbox = &file.as_kind::<LocalSocket>().unwrap().inbox;
                assert_eq!(inbox.end(), are_left);
                assert_eq!(inbox.direction.lock().records.is_empty(), !are_left);
                assert_eq!(inbox.throw_some_away(), !are_left);
                assert!(inbox.throw_some_away());
                inbox.direction.lock().is_shut = false;
                inbox.direction.lock().has_receiver = true;
            }
        });
    }

    /// Sockets to which a descriptor leads stay, through any number of messages, while garbage beside it goes.
    #[test]
    fn sockets_that_can_be_received_stay() {
        run(|program| {
            let (a, b) = pair(program, SOCK_STREAM);
            let mut inner = program.socket_pair(SOCK_STREAM | SOCK_NONBLOCK);
            assert_eq!(send(program, inner.0, b"the innermost", &rights(&[inner.0, inner.1])), Ok(13));
            // Each holds the one before by both of its sockets, in a message to one of them.
            for _ in 0..20 {
                let (c, d) = pair(program, SOCK_DGRAM);
                assert_eq!(send(program, c, b"", &rights(&[inner.0, inner.1, d])), Ok(0));
                program.close(inner.0).unwrap();
                program.close(inner.1).unwrap();
                inner = (c, d);
            }
            assert_eq!(send(program, a, b"x", &rights(&[inner.0, inner.1])), Ok(1));
            program.close(inner.0).unwrap();
            program.close(inner.1).unwrap();
            let look = receive(program, b, 1, 64, message::PEEK).unwrap().1;
            look.into_iter().for_each(|file| assert_eq!(program.close(file), Ok(0)));
            let mut last = receive(program, b, 1, 64, 0).unwrap().1;
            for _ in 0..20 {
                let found = receive(program, last[1], 1, 64, 0).unwrap().1;
                last.into_iter().for_each(|file| assert_eq!(program.close(file), Ok(0)));
                assert_eq!(found.len(), 3);
                program.close(found[2]).unwrap();
                last = found;
                last.pop();
            }
            let (bytes, files, _) = receive(program, last[1], 20, 64, 0).unwrap();
            assert_eq!((&bytes[..], files.len()), (&b"the innermost"[..], 2));
            assert_eq!(program.write_to(files[0], b"works"), Ok(5));
            assert_eq!(program.read_from(files[1], 9), Ok(b"works".to_vec()));
        });
    }

    /// A chain of thousands of sockets, each in a message to the one before, is closed without recursion; so is one
    /// whose end leads back to its beginning.
    #[test]
    fn long_chains_are_closed_in_steps() {
        run(|program| {
            let account = program.process().account.clone();
            // Pages of the program are touched in the first round.
            let mut used = Vec::new();
            for is_ring in [false, false, true] {
                let first = pair(program, SOCK_DGRAM);
                let mut last = first.0;
                let control = program.store(&rights(&[0]));
                let header = program.message_header(&[], (control, 20));
                let numbers = program.place(8);
                for _ in 0..3000 {
                    let new = [AF_UNIX as usize, SOCK_DGRAM as usize, 0, numbers];
                    assert_eq!(program.call(SystemCall::SocketPair, new), Ok(0));
                    let (a, b) = (program.read_u32(numbers) as usize, program.read_u32(numbers + 4) as usize);
                    program.write(control + 16, &(b as u32).to_le_bytes());
                    assert_eq!(program.call(SystemCall::SendMessage, [last, header, 0]), Ok(0));
                    program.close(b).unwrap();
                    program.close(last).unwrap();
                    last = a;
                }
                if is_ring {
                    assert_eq!(send(program, last, b"", &rights(&[first.1])), Ok(0));
                }
                program.close(last).unwrap();
                let looks = crate::observing::counters::read(abi_unix::Counter::Looks);
                program.close(first.1).unwrap();
                assert!(crate::observing::counters::read(abi_unix::Counter::Looks) > looks + 1000);
                assert!(!remains::are_left());
                used.push(account.used(Resource::Memory));
            }
            assert_eq!(used[1..], [used[0]; 2]);
        });
    }

    /// A process that ends while a call of it waits at a socket that carries itself leaves nothing.
    #[test]
    fn a_process_leaves_no_sockets_that_carry_themselves() {
        run(|program| {
            let child = program.spawn(|program| {
                let (a, b) = program.socket_pair(SOCK_SEQPACKET);
                for socket in [a, b] {
                    assert_eq!(send(program, socket, b"x", &rights(&[a, b])), Ok(1));
                }
                // The second message has to wait, and is for the socket that it has.
                let full = rights(&[b; message::MOST_FILES]);
                assert_eq!(send(program, a, b"x", &full), Ok(1));
                assert_eq!(send(program, a, b"x", &full), Ok(1));
                let _ = send(program, a, b"x", &full);
            });
            let child = child.unwrap();
            program.sleep_ns(10_000_000);
            assert_eq!(program.call(SystemCall::Kill, [child, 9]), Ok(0));
            program.wait_for(child).unwrap();
            assert!(!remains::are_left());
        });
    }

    /// Sockets that carry themselves, and that a call in flight has held last: one that polls, and one that sends.
    #[test]
    fn the_end_of_a_wait_closes_what_it_has_held() {
        run(|program| {
            let (witness, kept) = program.pipe(abi_unix::types::open::NONBLOCK);
            let (a, b) = pair(program, SOCK_SEQPACKET);
            assert_eq!(send(program, b, b"x", &rights(&[a, kept])), Ok(1));
            program
                .add_worker(move |program| {
                    let list = program.store(&[(a as u32).to_le_bytes(), 2u32.to_le_bytes()].concat());
                    let limit = program.store(&[0, 10_000_000u64].map(u64::to_le_bytes).concat());
                    assert_eq!(program.call(SystemCall::Poll, [list, 1, limit, 0, 0]), Ok(1), "hung up");
                })
                .unwrap();
            program.sleep_ns(1_000_000);
            for file in [kept, a, b] {
                program.close(file).unwrap();
            }
            assert_eq!(program.read_from(witness, 1), Err(Errno::EAGAIN), "it is polled");
            program.sleep_ns(20_000_000);
            assert_eq!(program.read_from(witness, 1), Ok(vec![]));

            let (witness, kept) = program.pipe(abi_unix::types::open::NONBLOCK);
            let (a, b) = program.socket_pair(SOCK_SEQPACKET);
            assert_eq!(send(program, b, b"x", &rights(&[a, kept])), Ok(1));
            for _ in 0..2 {
                assert_eq!(send(program, a, b"x", &rights(&[witness; 200])), Ok(1));
            }
            let (byte, control) = (program.store(b"x"), program.store(&rights(&[witness])));
            let header = program.message_header(&[(byte, 1)], (control, 20));
            assert_eq!(program.submit(SystemCall::SendMessage, [a, header, 0], 5), None);
            for file in [kept, a] {
                program.close(file).unwrap();
            }
            assert_eq!(program.read_from(witness, 1), Err(Errno::EAGAIN), "it sends");
            assert_eq!(program.call(SystemCall::Cancel, [5]), Ok(0));
            program.await_completions();
            // Its other end is open, and holds nothing of it.
            program.sleep_ns(1_000_000);
            assert_eq!(program.read_from(witness, 1), Ok(vec![]));
            program.close(b).unwrap();
        });
    }

    /// A process that lets a socket of another go pays for the collection.
    #[test]
    fn a_collection_is_at_the_expense_of_the_process_that_causes_it() {
        run(|program| {
            let (a, b) = pair(program, SOCK_SEQPACKET);
            let (outer, sender) = pair(program, SOCK_SEQPACKET);
            assert_eq!(send(program, b, b"x", &rights(&[a])), Ok(1));
            assert_eq!(send(program, sender, b"x", &rights(&[a])), Ok(1));
            program.close(a).unwrap();
            assert_eq!(carriers::payer(), program.id);
            let child = program.fork(move |program| {
                let files = receive(program, outer, 1, 64, message::PEEK).unwrap().1;
                program.close(files[0]).unwrap();
                assert_eq!(carriers::payer(), program.id);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// A peer learns once of messages that were not received.
    #[test]
    fn garbage_resets_its_peer_once() {
        run(|program| {
            let (a, b) = pair(program, SOCK_SEQPACKET);
            let (reader, _) = program.pipe(0);
            assert_eq!(send(program, b, b"x", &rights(&[reader])), Ok(1));
            let file = program.process().descriptors.lock().get(a).unwrap().clone();
            // As garbage, and then as a socket that has gone.
            LocalSocket::of(&file).unwrap().inbox.give_up();
            assert_eq!(program.read_from(b, 1), Err(Errno::ECONNRESET));
            program.close(a).unwrap();
            drop(file);
            assert_eq!(program.read_from(b, 1), Ok(vec![]), "once");
        });
    }

    /// unix(7): a process has at most as many files in messages as it may have descriptors, but for its last message.
    #[test]
    fn files_in_messages_are_limited() {
        run(|program| {
            let (a, b) = pair(program, SOCK_DGRAM);
            let (reader, _writer) = program.pipe(0);
            let limit = program.store(&[20u64; 2].map(u64::to_le_bytes).concat());
            let number = abi_unix::types::limit::DESCRIPTORS as usize;
            assert_eq!(program.call(SystemCall::ProcessLimit, [0, number, limit, 0]), Ok(0));
            assert_eq!(send(program, a, b"x", &rights(&[reader; 20])), Ok(1));
            assert_eq!(send(program, a, b"x", &rights(&[reader; 30])), Ok(1), "there were no more than the limit");
            assert_eq!(send(program, a, b"x", &rights(&[reader])), Err(Errno::ETOOMANYREFS));
            let too_long = vec![0; CAPACITY + 1];
            assert_eq!(send(program, a, &too_long, &rights(&[reader])), Err(Errno::EMSGSIZE), "files come last");
            assert_eq!(send(program, a, b"x", &[]), Ok(1), "it has no files");
            assert_eq!(program.read_from(b, 1), Ok(b"x".to_vec()));
            assert_eq!(send(program, a, b"x", &rights(&[reader])), Err(Errno::ETOOMANYREFS));
            assert_eq!(program.read_from(b, 1), Ok(b"x".to_vec()));
            assert_eq!(send(program, a, b"x", &rights(&[reader])), Ok(1));
        });
    }

    #[test]
    fn closing_a_socket_closes_hundreds_of_files_in_steps() {
        run(|program| {
            let account = program.process().account.clone();
            let before = account.used(Resource::Memory);
            let (a, b) = pair(program, SOCK_DGRAM);
            let (reader, writer) = program.pipe(abi_unix::types::open::NONBLOCK);
            let message = rights(&[writer; 100]);
            for _ in 0..3 {
                assert_eq!(send(program, a, b"", &message), Ok(0));
            }
            assert_eq!(send(program, a, b"", &message), Err(Errno::EAGAIN), "there are hundreds of files");
            assert_eq!(send(program, a, b"", &[]), Ok(0));
            program.close(writer).unwrap();
            let looks = crate::observing::counters::read(abi_unix::Counter::Looks);
            program.close(b).unwrap();
            assert!(crate::observing::counters::read(abi_unix::Counter::Looks) > looks, "it went in steps");
            assert_eq!(program.read_from(reader, 1), Ok(vec![]), "there is no writer left");
            program.close(reader).unwrap();
            assert_eq!(program.write_to(a, b""), Err(Errno::ECONNREFUSED));
            program.close(a).unwrap();
            assert_eq!(account.used(Resource::Memory), before);
        });
    }

    #[test]
    fn an_end_that_is_shut_or_closed_is_seen_by_the_other() {
        run(|program| {
            let poll = |program: &mut Program, file: usize| {
                let all = 0x2fff_u32;
                let list = program.store(&[(file as u32).to_le_bytes(), all.to_le_bytes()].concat());
                let now = program.store(&[0; 16]);
                program.call(SystemCall::Poll, [list, 1, now, 0, 0]).unwrap();
                program.read_u32(list + 4) >> 16
            };
            let (readable, writable) = (event::IN | event::RDNORM, event::OUT | event::WRNORM);
            for kind in [SOCK_STREAM, SOCK_SEQPACKET] {
                let (a, b) = pair(program, kind);
                assert_eq!(poll(program, a), writable);
                program.write_to(a, b"last").unwrap();
                assert_eq!(poll(program, b), readable | writable);
                assert_eq!(program.call(SystemCall::Shutdown, [a, 1]), Ok(0));
                assert_eq!(program.write_to(a, b"x"), Err(Errno::EPIPE));
                assert_eq!(poll(program, b), readable | writable | event::RDHUP);
                assert_eq!(program.read_from(b, 10), Ok(b"last".to_vec()));
                assert_eq!(program.read_from(b, 10), Ok(vec![]));
                assert_eq!(program.write_to(b, b"back"), Ok(4));
                // Closed with bytes that were not received.
                program.close(a).unwrap();
                let all = readable | writable | event::RDHUP | event::HUP | event::ERR;
                assert_eq!(poll(program, b), all);
                assert_eq!(program.read_from(b, 10), Err(Errno::ECONNRESET));
                assert_eq!(program.read_from(b, 10), Ok(vec![]), "once");
                assert_eq!(program.write_to(b, b"x"), Err(Errno::EPIPE));
                let (a, b) = pair(program, kind);
                assert_eq!(program.call(SystemCall::Shutdown, [b, 0]), Ok(0));
                assert_eq!(program.write_to(a, b"x"), Err(Errno::EPIPE));
                assert_eq!(program.call(SystemCall::Shutdown, [b, 3]), Err(Errno::EINVAL));
            }
        });
    }

    #[test]
    fn options_and_names_are_those_of_a_pair() {
        run(|program| {
            let (a, b) = pair(program, SOCK_SEQPACKET);
            let (value, size) = (program.place(16), program.store(&16u32.to_le_bytes()));
            let credentials = option::SO_PEERCRED;
            let expected =
                [(option::SO_TYPE, 5), (option::SO_DOMAIN, 1), (option::SO_PROTOCOL, 0), (option::SO_ERROR, 0)];
            for (name, expected) in expected.into_iter().chain([(credentials, program.id)]) {
                program.write(size, &16u32.to_le_bytes());
                assert_eq!(program.call(SystemCall::GetSocketOption, [a, 1, name as usize, value, size]), Ok(0));
                assert_eq!(program.read_u32(value), expected, "{name}");
                assert_eq!(program.read_u32(size), if name == credentials { 12 } else { 4 });
            }
            assert_eq!(program.call(SystemCall::SetSocketOption, [a, 1, 99, value, 4]), Err(Errno::ENOPROTOOPT));
            assert_eq!(program.call(SystemCall::SetSocketOption, [a, 6, 1, value, 4]), Err(Errno::EOPNOTSUPP));
            for call in [SystemCall::GetSocketName, SystemCall::GetPeerName] {
                program.write(size, &16u32.to_le_bytes());
                assert_eq!(program.call(call, [b, value, size]), Ok(0));
                assert_eq!((program.read(value, 2), program.read_u32(size)), (vec![1, 0], 2));
            }
            let address = program.store(&types::SocketAddress { address: [127, 0, 0, 1], port: 80 }.to_bytes());
            for call in [SystemCall::Bind, SystemCall::Connect] {
                assert_eq!(program.call(call, [a, address, 16]), Err(Errno::EINVAL));
            }
        });
    }

    /// `MSG_WAITALL` waits for all bytes; a waiting receiver and a waiting sender are woken.
    #[test]
    fn receivers_and_senders_wait_for_each_other() {
        run(|program| {
            let (a, b) = program.socket_pair(SOCK_STREAM);
            program
                .add_worker(move |program| {
                    for part in [b"in ".as_slice(), b"three", b" parts"] {
                        program.sleep_ns(100_000);
                        assert_eq!(program.write_to(a, part), Ok(part.len()));
                    }
                    let much = program.message_header(&[PARTS, PARTS, PARTS].concat(), (0, 0));
                    assert_eq!(program.call(SystemCall::SendMessage, [a, much, 0]), Ok(3 * CAPACITY));
                    program.close(a).unwrap();
                })
                .unwrap();
            let place = program.place(16384);
            let short = program.message_header(&[(place, 4), (place + 4, 10)], (0, 0));
            let all = message::WAITALL as usize;
            assert_eq!(program.call(SystemCall::ReceiveMessage, [b, short, all]), Ok(14));
            assert_eq!(program.read(place, 14), b"in three parts");
            let long = program.message_header(&[(place, 16384); 12], (0, 0));
            assert_eq!(program.call(SystemCall::ReceiveMessage, [b, long, all]), Ok(3 * CAPACITY));
            let place = program.place(8);
            assert_eq!(program.call(SystemCall::ReceiveFrom, [b, place, 8, all, 0, 0]), Ok(0));
        });
    }

    /// A look at a stream waits for the first bytes only, however many are wanted: they stay, and more would never come
    /// while the queue is full.
    #[test]
    fn a_look_does_not_wait_for_all_bytes() {
        run(|program| {
            let (a, b) = program.socket_pair(SOCK_STREAM);
            program
                .add_worker(move |program| {
                    program.sleep_ns(100_000);
                    assert_eq!(program.write_to(a, b"some"), Ok(4));
                })
                .unwrap();
            let flags = message::PEEK | message::WAITALL;
            for _ in 0..2 {
                assert_eq!(receive(program, b, 20, 0, flags), Ok((b"some".to_vec(), vec![], 0)));
            }
            let (reader, writer) = program.pipe(abi_unix::types::open::NONBLOCK);
            assert_eq!(send(program, a, b"!", &rights(&[writer])), Ok(1));
            program.close(writer).unwrap();
            let (bytes, files, _) = receive(program, b, 20, 64, flags).unwrap();
            assert_eq!((bytes, files.len()), (b"some!".to_vec(), 1));
            program.close(files[0]).unwrap();
            assert_eq!(program.read_from(b, 20), Ok(b"some!".to_vec()));
            assert_eq!(program.read_from(reader, 1), Ok(vec![]), "all files are closed");
        });
    }

    /// Files for which there is no descriptor are closed, and the receiver learns that there were more.
    #[test]
    fn a_full_table_takes_no_files() {
        run(|program| {
            let (a, b) = pair(program, SOCK_DGRAM);
            let (reader, writer) = program.pipe(abi_unix::types::open::NONBLOCK);
            assert_eq!(send(program, a, b"x", &rights(&[writer, writer, writer])), Ok(1));
            program.close(writer).unwrap();
            // One is free.
            let limit = program.store(&[writer as u64 + 1; 2].map(u64::to_le_bytes).concat());
            let number = abi_unix::types::limit::DESCRIPTORS as usize;
            assert_eq!(program.call(SystemCall::ProcessLimit, [0, number, limit, 0]), Ok(0));
            let (bytes, files, flags) = receive(program, b, 8, 64, 0).unwrap();
            assert_eq!((bytes, files, flags), (b"x".to_vec(), vec![writer], message::CTRUNC));
            assert_eq!(send(program, a, b"y", &rights(&[writer])), Ok(1));
            let (bytes, files, flags) = receive(program, b, 8, 64, 0).unwrap();
            assert_eq!((bytes, files, flags), (b"y".to_vec(), vec![], message::CTRUNC));
            program.close(writer).unwrap();
            // A place for control messages that is none: the message is lost, and its file closed.
            let far = program.message_header(&[(DATA, 1)], (0x1000, 24));
            assert_eq!(send(program, a, b"z", &rights(&[reader])), Ok(1));
            assert_eq!(program.call(SystemCall::ReceiveMessage, [b, far, 0]), Ok(1));
            assert_eq!(program.read_u32(far + 48), message::CTRUNC);
            assert_eq!(program.call(SystemCall::Duplicate, [reader]), Ok(writer), "it is free again");
        });
    }

    #[test]
    fn controls_of_every_file() {
        run(|program| {
            use abi_unix::types::file_control::{FIOCLEX, FIONBIO, FIONCLEX, FIONREAD};
            let (reader, writer) = program.pipe(0);
            let word = program.store(&1i32.to_le_bytes());
            let ioctl = |program: &mut Program, file: usize, command: u32| {
                program.call(SystemCall::DeviceControl, [file, command as usize, word])
            };
            assert_eq!(ioctl(program, reader, FIONBIO), Ok(0));
            assert_eq!(program.read_from(reader, 1), Err(Errno::EAGAIN));
            program.write_to(writer, b"bytes").unwrap();
            assert_eq!(ioctl(program, reader, FIONREAD), Ok(0));
            assert_eq!(program.read_u32(word), 5);
            assert_eq!(ioctl(program, writer, FIOCLEX), Ok(0));
            assert_eq!(program.call(SystemCall::FileControl, [writer, control::GETFD as usize]), Ok(1));
            assert_eq!(ioctl(program, writer, FIONCLEX), Ok(0));
            assert_eq!(program.call(SystemCall::FileControl, [writer, control::GETFD as usize]), Ok(0));
            let (a, b) = pair(program, SOCK_DGRAM);
            program.write_to(a, b"one").unwrap();
            program.write_to(a, b"second").unwrap();
            assert_eq!((ioctl(program, b, FIONREAD), program.read_u32(word)), (Ok(0), 3));
            let file = program.create(b"/tmp/unread\0", abi_unix::types::open::RDWR);
            program.write_to(file, b"0123456789").unwrap();
            program.call(SystemCall::Seek, [file, 4, 0]).unwrap();
            assert_eq!((ioctl(program, file, FIONREAD), program.read_u32(word)), (Ok(0), 6));
            let epoll = program.call(SystemCall::EpollCreate, [0]).unwrap();
            assert_eq!(ioctl(program, epoll, FIONREAD), Err(Errno::ENOTTY));
            assert_eq!(program.call(SystemCall::DeviceControl, [reader, FIONBIO as usize, 0x1000]), Err(Errno::EFAULT));
            program.remove(b"/tmp/unread\0");
        });
    }
}
