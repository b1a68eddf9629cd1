//! What the stack keeps of each TCP connection and each listener.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddrV4;

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};

use crate::slab::ListenerId;
use crate::table::Key;
use crate::time_wait::Remains;
use crate::waiters::Waiters;
use crate::{Error, Readiness};

/// Probing a silent peer (`SO_KEEPALIVE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How long the connection must be silent before it is probed, and the time from one probe to the next.
    pub interval_ns: u64,
    /// After how many unanswered probes the connection has failed.
    pub probes: u32,
}

/// How a connection is to behave. A listener's options are inherited by the connections that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// Bytes that may arrive before they are read: the window offered to the other side.
    pub receive_buffer: usize,
    /// Bytes that may be written before the other side has acknowledged them.
    pub send_buffer: usize,
    /// Whether small writes wait for earlier ones to be acknowledged.
    pub coalescing: Coalescing,
    /// Whether and how a silent peer is probed.
    pub keepalive: Option<Keepalive>,
}

/// How long an acknowledgement waits for data to travel with.
pub(crate) const ACKNOWLEDGEMENT_DELAY: Duration = Duration::from_millis(10);

/// When a small write is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coalescing {
    /// When nothing sent before is unacknowledged, or a full segment has come together (Nagle's algorithm).
    Nagle,
    /// At once (`TCP_NODELAY`).
    None,
}

/// The limits of [`TcpOptions::receive_buffer`] and [`TcpOptions::send_buffer`]; values outside are moved inside.
pub const BUFFER_LIMITS: core::ops::RangeInclusive<usize> = 1024..=4 * 1024 * 1024;

impl Default for TcpOptions {
    /// Buffers of 8 KiB each way, Nagle's algorithm, no keepalive.
    fn default() -> Self {
        TcpOptions { receive_buffer: 8 * 1024, send_buffer: 8 * 1024, coalescing: Coalescing::Nagle, keepalive: None }
    }
}

/// Which of the two interfaces a packet takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Ethernet,
    Loopback,
}

/// Who answers for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The handshake of a connection to this listener is under way.
    HalfOpen(ListenerId),
    /// It stands in a listener's accept queue.
    Queued,
    /// Somebody has its identifier.
    Application,
    /// It was closed, and goes on by itself until the other side knows.
    Nobody,
}

/// What the stack saw of the socket when it last looked; changes wake somebody.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) state: State,
    pub(crate) received: usize,
    pub(crate) unsent: usize,
}

pub(crate) struct Connection {
    /// A set of exactly one socket, so that polling it costs the same however many connections there are.
    pub(crate) sockets: SocketSet<'static>,
    pub(crate) key: Key,
    pub(crate) via: Via,
    pub(crate) holder: Holder,
    pub(crate) seen: Seen,
    /// Whether packets still find the connection.
    pub(crate) listed: bool,
    pub(crate) receiving: Receiving,
    /// Why it ended, until somebody was told.
    pub(crate) failure: Option<Error>,
    pub(crate) receivers: Waiters,
    pub(crate) senders: Waiters,
    /// When the other side's silence becomes a failure.
    pub(crate) give_up_at: Option<Instant>,
    pub(crate) last_heard: Instant,
    pub(crate) keepalive: Option<Keepalive>,
    /// What is to be remembered when the connection has ended in TIME-WAIT.
    pub(crate) remains: Remains,
}

/// Whether the holder still wants what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    Open,
    Shut,
}

fn buffer(size: usize) -> Result<SocketBuffer<'static>, Error> {
    let size = size.clamp(*BUFFER_LIMITS.start(), *BUFFER_LIMITS.end());
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size)?;
    bytes.resize(size, 0);
    Ok(SocketBuffer::new(bytes))
}

/// A duration; what exceeds a thousand years becomes that, so that no sum of times overflows.
pub(crate) fn duration(ns: u64) -> Duration {
    const LONGEST_MICROS: u64 = 1000 * 366 * 86_400 * 1_000_000;
    Duration::from_micros((ns / 1000).min(LONGEST_MICROS))
}

impl Connection {
    pub(crate) fn new(key: Key, via: Via, holder: Holder, options: &TcpOptions, now: Instant) -> Result<Self, Error> {
        let mut socket = Socket::new(buffer(options.receive_buffer)?, buffer(options.send_buffer)?);
        // Nothing is lost on the loopback interface, so nothing is to be learnt about congestion there.
        socket.set_congestion_control(match via {
            Via::Ethernet => CongestionControl::Reno,
            Via::Loopback => CongestionControl::None,
        });
        socket.set_ack_delay(Some(ACKNOWLEDGEMENT_DELAY));
        let mut storage = Vec::new();
        storage.try_reserve_exact(1)?;
        storage.push(SocketStorage::EMPTY);
        let mut sockets = SocketSet::new(storage);
        sockets.add(socket);
        let mut connection = Connection {
            sockets,
            key,
            via,
            holder,
            seen: Seen { state: State::Closed, received: 0, unsent: 0 },
            listed: false,
            receiving: Receiving::Open,
            failure: None,
            receivers: Waiters::default(),
            senders: Waiters::default(),
            give_up_at: None,
            last_heard: now,
            keepalive: None,
            remains: Remains::default(),
        };
        connection.set_coalescing(options.coalescing);
        connection.set_keepalive(options.keepalive);
        Ok(connection)
    }

    pub(crate) fn socket(&self) -> &Socket<'static> {
        self.sockets.get(SocketHandle::default())
    }

    pub(crate) fn socket_mut(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(SocketHandle::default())
    }

    pub(crate) fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.socket_mut().set_nagle_enabled(coalescing == Coalescing::Nagle);
    }

    pub(crate) fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        self.keepalive = keepalive;
        self.socket_mut().set_keep_alive(keepalive.map(|keepalive| duration(keepalive.interval_ns)));
    }

    /// Looks at the socket and remembers; returns what was seen the last time.
    pub(crate) fn look(&mut self) -> (Seen, Seen) {
        let socket = self.socket();
        let now = Seen { state: socket.state(), received: socket.recv_queue(), unsent: socket.send_queue() };
        (core::mem::replace(&mut self.seen, now), now)
    }

    /// Whether a blocked sender should be told of the room there is: a fifth of the buffer, or all
    /// that was sent is acknowledged. Waking for each acknowledged byte would make many small segments.
    pub(crate) fn has_room(&self) -> bool {
        let socket = self.socket();
        let (used, size) = (socket.send_queue(), socket.send_capacity());
        used == 0 || (size - used) * 5 >= size
    }

    /// When the other side's silence becomes a failure, if at all.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let unanswered = match (self.keepalive, self.seen.state) {
            (Some(keepalive), State::Established | State::CloseWait | State::FinWait2) => {
                let probes = u64::from(keepalive.probes).saturating_add(1);
                Some(self.last_heard + duration(keepalive.interval_ns.saturating_mul(probes)))
            }
            _ => None,
        };
        [self.give_up_at, unanswered].into_iter().flatten().min()
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let socket = self.socket();
        let failed = self.failure.is_some();
        let connecting = matches!(socket.state(), State::SynSent | State::SynReceived);
        let receive_end = !connecting
            && (self.receiving == Receiving::Shut
                || !matches!(socket.state(), State::Established | State::FinWait1 | State::FinWait2));
        Readiness {
            receive: failed || receive_end || socket.can_recv(),
            send: failed || !connecting && (!socket.may_send() || self.has_room()),
            receive_end,
            hang_up: receive_end && !socket.may_send(),
            failed,
        }
    }

    pub(crate) fn wake_all(&mut self) {
        self.receivers.wake();
        self.senders.wake();
    }
}

pub(crate) struct Listener {
    pub(crate) local: SocketAddrV4,
    pub(crate) options: TcpOptions,
    pub(crate) backlog: usize,
    /// Connections whose handshake is under way.
    pub(crate) half_open: usize,
    /// Connections to be accepted, in the order in which they were established. It has room for the half-open ones.
    pub(crate) queue: VecDeque<u32>,
    pub(crate) acceptors: Waiters,
}

impl Listener {
    pub(crate) fn new(local: SocketAddrV4, options: TcpOptions, backlog: usize) -> Self {
        Listener { local, options, backlog, half_open: 0, queue: VecDeque::new(), acceptors: Waiters::default() }
    }

    /// Whether one more handshake may begin: neither those under way nor those finished exceed the backlog, and there
    /// is memory to queue the result.
    pub(crate) fn has_room(&mut self) -> bool {
        self.half_open < self.backlog
            && self.queue.len() < self.backlog
            && self.queue.try_reserve(self.half_open + 1).is_ok()
    }
}

/// The bytes of kernel memory that one connection takes beside its two buffers, for statements about memory:
/// its record, its socket, and its share of the tables.
pub fn bytes_per_connection() -> usize {
    use core::mem::size_of;
    let record = size_of::<Connection>() + size_of::<SocketStorage<'static>>();
    // A slab entry, a work-list entry, a timer with its position, and a table entry at the load that
    // a table just grown has.
    let tables = 16 + 4 + 16 + 4 + 2 * (size_of::<(Key, u32)>() + 1);
    record + tables
}

/// A `Vec` of `length` zero bytes, or the error that says there is no memory.
pub(crate) fn zeroed<T: Clone>(value: T, length: usize) -> Result<Vec<T>, Error> {
    if length == 0 {
        return Ok(vec![]);
    }
    let mut values = Vec::new();
    values.try_reserve_exact(length)?;
    values.resize(length, value);
    Ok(values)
}
