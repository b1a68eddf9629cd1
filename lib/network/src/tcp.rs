//! State of each TCP connection and each listener.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use waiters::Waiters;

use crate::Error;
use crate::arrivals::Reader;
use crate::charge::{Charge, Owner};
use crate::configuration::{Interest, Readiness};
use crate::frame::Segment;
use crate::host::Via;
use crate::local::{Direction, Local, Phase};
use crate::slab::ConnectionId;
use crate::table::{ENTRY, Key, LocalEnd};
use crate::time_wait::Remains;

/// Probing a silent peer (`SO_KEEPALIVE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "SO_KEEPALIVE")]
#[doc(alias = "TCP_KEEPINTVL")]
pub struct Keepalive {
    /// Silence before the connection is probed, and the time from one probe to the next.
    pub interval_ns: u64,
    /// Number of unanswered probes after which the connection has failed.
    pub probes: u32,
}

/// Behaviour of a connection. A listener's options are inherited by the connections that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "SO_RCVBUF")]
#[doc(alias = "SO_SNDBUF")]
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

impl TcpOptions {
    /// Returns the most memory that a connection with these options may take, in bytes.
    pub fn memory(&self) -> usize {
        ConnectionMemory::of_this_build().wire + clamped(self.receive_buffer) + clamped(self.send_buffer)
    }
}

/// Wait of an acknowledgement for data to travel with.
pub(crate) const ACKNOWLEDGEMENT_DELAY: Duration = Duration::from_millis(10);

/// Number of bytes acknowledged without that wait: two full segments.
const ACKNOWLEDGED_AT_ONCE: usize = 2 * 1460;

/// Number of bytes acknowledged at once at the beginning of a connection, and after an acknowledgement that waited and
/// found no data to travel with: as many as Linux takes for sixteen full segments.
const EARLY: usize = 16 * 1460;

/// Time at which a small write is sent.
#[doc(alias = "Nagle")]
#[doc(alias = "nodelay")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coalescing {
    /// When all earlier data is acknowledged, or a full segment has come together (Nagle's algorithm).
    Nagle,
    /// At once (`TCP_NODELAY`).
    None,
}

/// The limits of [`TcpOptions::receive_buffer`] and [`TcpOptions::send_buffer`]; values outside are moved inside.
pub const BUFFER_LIMITS: core::ops::RangeInclusive<usize> = 1024..=256 * 1024;

impl Default for TcpOptions {
    /// Buffers of 8 KiB each way, Nagle's algorithm, no keepalive.
    fn default() -> Self {
        TcpOptions { receive_buffer: 8 * 1024, send_buffer: 8 * 1024, coalescing: Coalescing::Nagle, keepalive: None }
    }
}

/// Holder of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A listener's accept queue.
    Queued,
    /// A program with its identifier.
    Application,
    /// None: it was closed, and goes on by itself until the other side has acknowledged that.
    None,
}

/// State of the socket when the stack last looked; changes wake waiting tasks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenState {
    pub(crate) state: State,
    pub(crate) received: usize,
    pub(crate) unsent: usize,
}

pub(crate) struct Connection {
    pub(crate) key: Key,
    pub(crate) holder: Holder,
    /// Whether packets still find the connection.
    pub(crate) listed: bool,
    pub(crate) receiving: Receiving,
    /// Cause of the end, until it was reported.
    pub(crate) failure: Option<Error>,
    pub(crate) receivers: Waiters,
    pub(crate) senders: Waiters,
    /// Task that waits for input.
    pub(crate) reader: Reader,
    /// Time at which the other side's silence becomes a failure.
    pub(crate) give_up_at: Option<Instant>,
    pub(crate) engine: Engine,
    /// Belongs to the connection, not to its holder.
    pub(crate) charge: Charge,
}

/// Transport of the bytes.
pub(crate) enum Engine {
    /// TCP segments.
    Wire(Wire),
    /// The other end is on this host, and joined to this one.
    Local(Local),
}

/// One end of a TCP connection to another host, or to this one through the loopback interface.
pub(crate) struct Wire {
    /// The interface that carries its segments.
    pub(crate) via: Via,
    /// A set of exactly one socket, so that polling it costs the same for any number of connections.
    pub(crate) sockets: SocketSet<'static>,
    pub(crate) seen: SeenState,
    pub(crate) last_heard: Instant,
    pub(crate) keepalive: Option<Keepalive>,
    /// Record to keep when the connection has ended in TIME-WAIT. While it is being made, `ours` is the number of its
    /// request.
    pub(crate) remains: Remains,
    /// Bytes received by the holder since the last segment was sent: the window's growth that the other side has not
    /// been told. Rather too much than too little.
    pub(crate) consumed: usize,
    /// Bytes that had arrived and were not received by the holder when the last segment was sent.
    held: usize,
    /// Latest time to acknowledge data that has arrived since.
    acknowledge_by: Option<Instant>,
    /// Bytes that must still arrive before acknowledgements may wait: a sender begins with little under way, and sends
    /// more with each acknowledgement; and one that gets no answers may never have more under way.
    early: usize,
    /// Number acknowledged by the last segment; before that, the first number.
    pub(crate) acknowledged: u32,
    /// Sequence number of the first byte that the holder has not received.
    pub(crate) next_expected: u32,
    /// Whether a segment was sent since the connection was made: the other side knows that it is.
    has_answered: bool,
}

/// Whether the holder still wants arriving data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    Open,
    Shut,
}

/// Returns the size of a buffer for which `size` was requested.
pub(crate) fn clamped(size: usize) -> usize {
    size.clamp(*BUFFER_LIMITS.start(), *BUFFER_LIMITS.end())
}

fn buffer(size: usize) -> Result<SocketBuffer<'static>, Error> {
    Ok(SocketBuffer::new(zeroed(0, clamped(size))?))
}

/// Converts a duration. The longest has 584 years, a five-hundredth of the largest instant, so that no sum of times
/// overflows.
pub(crate) fn duration(ns: u64) -> Duration {
    Duration::from_micros(ns / 1000)
}

impl Connection {
    pub(crate) fn new(key: Key, holder: Holder, engine: Engine, charge: Charge) -> Self {
        Connection {
            key,
            holder,
            listed: false,
            receiving: Receiving::Open,
            failure: None,
            receivers: Waiters::default(),
            senders: Waiters::default(),
            reader: Reader::NOBODY,
            give_up_at: None,
            engine,
            charge,
        }
    }

    pub(crate) fn waiters(&mut self, interest: Interest) -> &mut Waiters {
        match interest {
            Interest::Receive => &mut self.receivers,
            Interest::Send => &mut self.senders,
        }
    }

    pub(crate) fn wake_all(&mut self) {
        self.receivers.wake_all();
        self.senders.wake_all();
    }

    /// Returns the time at which the other side's silence becomes a failure.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let unanswered = match &self.engine {
            Engine::Wire(wire) => wire.unanswered_at(),
            Engine::Local(_) => None,
        };
        match (self.give_up_at, unanswered) {
            (Some(first), Some(second)) => Some(first.min(second)),
            (at, None) | (None, at) => at,
        }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let failed = self.failure.is_some();
        let shut = self.receiving == Receiving::Shut;
        let (connecting, may_receive, may_send) = match &self.engine {
            Engine::Wire(wire) => {
                let socket = wire.socket();
                let state = socket.state();
                (
                    matches!(state, State::SynSent | State::SynReceived),
                    matches!(state, State::Established | State::FinWait1 | State::FinWait2),
                    socket.may_send(),
                )
            }
            Engine::Local(local) => {
                let joined = matches!(local.phase, Phase::Joined(_));
                (
                    local.phase == Phase::Waiting,
                    joined && local.incoming == Direction::Open,
                    joined && local.outgoing == Direction::Open,
                )
            }
        };
        let receive_end = !connecting && (shut || !may_receive);
        Readiness {
            receive: failed || receive_end || self.receivable() > 0,
            // Whether the other end's buffer has room is stored only there; `Host::readiness` corrects this.
            send: failed || !connecting && (!may_send || matches!(&self.engine, Engine::Wire(wire) if wire.has_room())),
            receive_end,
            hang_up: receive_end && !may_send,
            failed,
        }
    }

    /// Whether the handshake has succeeded.
    pub(crate) fn connected(&mut self) -> Result<bool, Error> {
        let (established, ended) = match &self.engine {
            Engine::Wire(wire) => match wire.socket().state() {
                State::SynSent | State::SynReceived => (false, false),
                State::Closed => (false, true),
                _ => (true, false),
            },
            Engine::Local(local) => match local.phase {
                Phase::Waiting => (false, false),
                Phase::Joined(_) => (true, false),
                Phase::Alone => (self.failure.is_none(), self.failure.is_some()),
                Phase::Refused => (false, true),
            },
        };
        if ended {
            return Err(self.failure.take().unwrap_or(Error::NotConnected));
        }
        Ok(established)
    }

    /// Whether at least one half could still be ended.
    pub(crate) fn is_open(&self) -> bool {
        match &self.engine {
            Engine::Wire(wire) => !matches!(wire.socket().state(), State::Closed | State::SynSent | State::Listen),
            Engine::Local(local) => matches!(local.phase, Phase::Joined(_)),
        }
    }

    pub(crate) fn receivable(&self) -> usize {
        match &self.engine {
            Engine::Wire(wire) => wire.socket().recv_queue(),
            Engine::Local(local) => local.ring.len(),
        }
    }

    /// Returns the memory that the connection takes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let sizes = ConnectionMemory::of_this_build();
        match &self.engine {
            Engine::Wire(wire) => {
                let socket = wire.socket();
                sizes.wire + socket.recv_capacity() + socket.send_capacity() + self.key.memory_beyond_four()
            }
            Engine::Local(local) => sizes.local + local.ring.memory() + self.key.memory_beyond_four(),
        }
    }

    pub(crate) fn peek(&mut self, length: usize) -> &[u8] {
        match &mut self.engine {
            Engine::Wire(wire) => wire.socket_mut().peek(length).unwrap_or(&[]),
            Engine::Local(local) => {
                let data = local.ring.data();
                data.get(..length).unwrap_or(data)
            }
        }
    }

    /// Returns the number of bytes, and the end of the stream as one, that the other side has not acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        match &self.engine {
            Engine::Wire(wire) => {
                let socket = wire.socket();
                let unfinished = matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck);
                socket.send_queue() + usize::from(unfinished)
            }
            // Sent bytes are already with the receiver.
            Engine::Local(_) => 0,
        }
    }
}

impl Wire {
    pub(crate) fn new(via: Via, options: &TcpOptions, now: Instant) -> Result<Self, Error> {
        let mut socket = Socket::new(buffer(options.receive_buffer)?, buffer(options.send_buffer)?);
        socket.set_congestion_control(CongestionControl::Reno);
        socket.set_ack_delay(Some(ACKNOWLEDGEMENT_DELAY));
        let mut storage = Vec::new();
        storage.try_reserve_exact(1)?;
        storage.push(SocketStorage::EMPTY);
        let mut sockets = SocketSet::new(storage);
        sockets.add(socket);
        let mut wire = Wire {
            via,
            sockets,
            seen: SeenState { state: State::Closed, received: 0, unsent: 0 },
            last_heard: now,
            keepalive: None,
            remains: Remains::default(),
            consumed: 0,
            held: 0,
            acknowledge_by: None,
            early: EARLY,
            acknowledged: 0,
            next_expected: 0,
            has_answered: false,
        };
        wire.set_coalescing(options.coalescing);
        wire.set_keepalive(options.keepalive);
        Ok(wire)
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

    /// Records the socket's state; returns the last recorded state and the new one.
    pub(crate) fn look(&mut self) -> (SeenState, SeenState) {
        let socket = self.socket();
        let now = SeenState { state: socket.state(), received: socket.recv_queue(), unsent: socket.send_queue() };
        (core::mem::replace(&mut self.seen, now), now)
    }

    /// Updates the state after a segment was sent with the current acknowledgement and window.
    pub(crate) fn has_sent(&mut self) {
        self.early = self.early.saturating_sub(self.arrived());
        self.consumed = 0;
        self.held = self.socket().recv_queue();
        self.acknowledge_by = None;
        self.has_answered = self.seen.state == State::Established;
    }

    /// Whether there is nothing that smoltcp would send, now or later: all data is sent and acknowledged, all that has
    /// arrived is acknowledged, and no window is to be announced.
    pub(crate) fn is_quiet(&self) -> bool {
        self.may_only_acknowledge() && self.has_answered && self.arrived() == 0 && !self.tells_of_room()
    }

    /// Whether an acknowledgement or a window update is all that smoltcp may have to send.
    fn may_only_acknowledge(&self) -> bool {
        self.seen.state == State::Established && self.socket().send_queue() == 0 && self.keepalive.is_none()
    }

    /// Returns the number of bytes that may still arrive before the holder receives some.
    fn free(&self) -> usize {
        let socket = self.socket();
        socket.recv_capacity() - socket.recv_queue()
    }

    /// Whether smoltcp sends a window update, which it does when the window has at least doubled: when more than half
    /// of the room that is free now was consumed since the last segment.
    pub(crate) fn tells_of_room(&self) -> bool {
        self.consumed * 2 >= self.free()
    }

    /// Returns the number of bytes that have arrived since the last segment was sent.
    fn arrived(&self) -> usize {
        (self.socket().recv_queue() + self.consumed).saturating_sub(self.held)
    }

    /// Returns the time to send, if smoltcp would send only an acknowledgement now which may wait for data to travel
    /// with: one of less than two full segments (RFC 9293, section 3.8.6.3). smoltcp 0.14 sends one as soon as there is
    /// more than one segment, so that each request slightly longer than that would be acknowledged by a packet of its
    /// own, a moment before its answer.
    pub(crate) fn acknowledge_later(&mut self, now: Instant) -> Option<Instant> {
        // The other side must be able to go on: the free room suffices for so many bytes that they force an
        // acknowledgement, and no larger window is to be announced.
        let is_only_that = self.may_only_acknowledge()
            && self.early == 0
            && (1..ACKNOWLEDGED_AT_ONCE).contains(&self.arrived())
            && self.free() >= ACKNOWLEDGED_AT_ONCE
            && !self.tells_of_room();
        if !is_only_that {
            return None;
        }
        let at = self.acknowledge_by?;
        if at <= now {
            // There was no answer. A sender with no more than this under way would wait each time.
            self.early = EARLY;
            return None;
        }
        Some(at)
    }

    /// Starts the time limit of an acknowledgement at the first arrival since the last segment was sent.
    pub(crate) fn look_at_arrivals(&mut self, now: Instant) {
        if self.acknowledge_by.is_none() && self.arrived() > 0 {
            self.acknowledge_by = Some(now + ACKNOWLEDGEMENT_DELAY);
        }
    }

    /// Whether a blocked sender should be woken: a fifth of the buffer is free, or all sent data is acknowledged.
    /// Waking for each acknowledged byte would make many small segments.
    pub(crate) fn has_room(&self) -> bool {
        let socket = self.socket();
        let (used, size) = (socket.send_queue(), socket.send_capacity());
        used == 0 || (size - used) * 5 >= size
    }

    /// Whether a segment would make smoltcp 0.14 forget its retransmission timer: a repeated acknowledgement when only
    /// the FIN is outstanding. At the third it stops the timer in order to send the lost *data* again, finds none, and
    /// the lost FIN is never sent again. Such a segment carries no new information.
    pub(crate) fn must_not_see(&self, segment: &Segment) -> bool {
        matches!(self.seen.state, State::FinWait1 | State::Closing | State::LastAck)
            && self.seen.unsent == 0
            && segment.only_acknowledges()
            && segment.acknowledgement == self.acknowledged
    }

    /// Keeps the number that a segment acknowledges, if it can be the other side's: any host can send any number.
    pub(crate) fn note_acknowledgement(&mut self, segment: &Segment) {
        let further = segment.acknowledgement.wrapping_sub(self.acknowledged) as usize;
        // The end of the stream, or its beginning, has a number too.
        if segment.acknowledges() && further <= self.socket().send_queue() + 1 {
            self.acknowledged = segment.acknowledgement;
        }
    }

    /// Returns the sequence number of the other side's next byte.
    pub(crate) fn next_number(&self) -> u32 {
        let ended = matches!(self.seen.state, State::CloseWait | State::Closing | State::LastAck | State::TimeWait);
        let queued = self.socket().recv_queue() as u32;
        self.next_expected.wrapping_add(queued).wrapping_add(u32::from(ended))
    }

    /// Whether a reset or a request comes from the other side, as far as its number can tell: any host can send one
    /// with a number that lies somewhere in the window. (Before the other side's numbers are known, a reset has to
    /// acknowledge ours, which smoltcp checks.)
    pub(crate) fn believes(&self, segment: &Segment) -> bool {
        matches!(self.seen.state, State::SynSent | State::SynReceived | State::Closed)
            || (segment.is_reset() && segment.sequence == self.next_number())
    }

    /// Whether a segment with this number was sent and is not acknowledged yet.
    pub(crate) fn is_under_way(&self, sequence: u32) -> bool {
        let socket = self.socket();
        match socket.state() {
            State::SynSent => sequence == self.remains.ours,
            _ => (sequence.wrapping_sub(self.acknowledged) as usize) < socket.send_queue(),
        }
    }

    pub(crate) fn is_in_window(&self, segment: &Segment) -> bool {
        (segment.sequence.wrapping_sub(self.next_number()) as usize) < self.free()
    }

    /// Returns the time at which all probes will have gone unanswered.
    fn unanswered_at(&self) -> Option<Instant> {
        let keepalive = self.keepalive?;
        if !matches!(self.seen.state, State::Established | State::CloseWait | State::FinWait2) {
            return None;
        }
        let probes = u64::from(keepalive.probes).saturating_add(1);
        Some(self.last_heard + duration(keepalive.interval_ns.saturating_mul(probes)))
    }
}

pub(crate) struct Listener {
    pub(crate) local: LocalEnd,
    pub(crate) options: TcpOptions,
    /// Owner charged for requests and connections.
    pub(crate) owner: Option<Arc<dyn Owner>>,
    pub(crate) backlog: usize,
    /// Requests that were answered and not yet acknowledged.
    pub(crate) half_open: usize,
    /// Time until which a returning cookie may be one that was made for this listener.
    pub(crate) cookies_until: Option<Instant>,
    /// Connections to be accepted, in the order in which they were established.
    pub(crate) queue: VecDeque<u32>,
    /// Connections from this host that found no room.
    pub(crate) waiting: VecDeque<ConnectionId>,
    pub(crate) acceptors: Waiters,
    /// Task that waits for connections.
    pub(crate) reader: Reader,
}

impl Listener {
    pub(crate) fn new(local: LocalEnd, options: TcpOptions, backlog: usize) -> Self {
        Listener {
            local,
            options,
            owner: None,
            backlog,
            half_open: 0,
            cookies_until: None,
            queue: VecDeque::new(),
            waiting: VecDeque::new(),
            acceptors: Waiters::default(),
            reader: Reader::NOBODY,
        }
    }

    /// Whether one more connection may wait to be accepted, and there is memory to queue it. `free` is the number of
    /// further connections that the limit allows: no listener's queue takes more than half of the rest, so that others
    /// have some.
    pub(crate) fn has_room(&mut self, free: usize) -> bool {
        self.queue.len() < self.backlog.min(free) && self.queue.try_reserve(1).is_ok()
    }

    /// Whether the accept queue is full.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= self.backlog
    }
}

/// Bytes of kernel memory for one connection beside its buffers, for statements about memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionMemory {
    /// A connection to another host over IPv4: its record, its socket, and its share of the tables.
    pub wire: usize,
    /// One end of a connection within this host. Its buffer is made with the first byte, and is 512 bytes at first.
    pub local: usize,
}

impl ConnectionMemory {
    /// Returns the sizes in this build.
    pub fn of_this_build() -> Self {
        use core::mem::size_of;
        // A slab entry, entries of two work lists, a timer with its position, a table entry at the load of a table that
        // has just grown.
        let tables = 16 + 2 * 4 + 16 + 4 + ENTRY;
        let record = size_of::<Connection>() + tables;
        ConnectionMemory { wire: record + size_of::<SocketStorage<'static>>(), local: record }
    }
}

/// Makes a `Vec` of `length` equal values, or returns [`Error::OutOfMemory`].
pub(crate) fn zeroed<T: Clone>(value: T, length: usize) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    values.try_reserve_exact(length)?;
    values.resize(length, value);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, SocketAddrV4};

    use ethernet::NoLink;
    use property::with_memory;

    use super::*;
    use crate::{Address, Addressing, Configuration, Sharing, Stack};

    /// With as many connections as all lists and tables are made for, every byte taken is charged.
    #[test]
    fn connections_take_as_much_as_they_are_charged() {
        const CONNECTIONS: usize = 1 << 10;
        // Bytes of tables and lists beside their entries, whatever their number.
        const BESIDE: usize = 512;
        const LIMIT: usize = 1 << 24;
        let own = Ipv4Addr::new(10, 0, 2, 15);
        let address = Addressing::Fixed(Address { address: own, prefix: 8, gateway: None });
        let mut stack = Stack::new(NoLink, &Configuration { address, ..Configuration::default() }, 0).unwrap();
        let options = TcpOptions { receive_buffer: 1024, send_buffer: 1024, ..TcpOptions::default() };
        let one = options.memory();
        let is_there = |bytes: usize| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
        let (at_most, at_least) = with_memory(LIMIT, || {
            for number in 0..CONNECTIONS {
                let from = stack.tcp_bind(SocketAddrV4::new(own, 5000), Sharing::Reuse).unwrap();
                let to = SocketAddrV4::new(Ipv4Addr::from_bits(0x0a01_0000 + number as u32), 80);
                let id = stack.tcp_connect(Some(from), to, &options, 0).unwrap();
                assert!(stack.connection_memory(id) == Ok(one));
            }
            (is_there(LIMIT - CONNECTIONS * one - BESIDE), !is_there(LIMIT - CONNECTIONS * one + BESIDE))
        });
        assert!(at_most, "more than {one} bytes for a connection");
        assert!(at_least, "less than {one} bytes for a connection");
    }

    #[test]
    fn every_duration_is_exact_to_the_microsecond() {
        for (ns, micros) in [(0, 0), (999, 0), (1000, 1), (1999, 1), (64_000_000_000, 64_000_000)] {
            assert_eq!(duration(ns), Duration::from_micros(micros));
        }
        let longest = duration(u64::MAX);
        assert_eq!(longest.total_micros(), u64::MAX / 1000);
        let sum = Instant::from_micros((u64::MAX / 1000) as i64) + longest * 400;
        assert!(sum.total_micros() > 0);
    }
}
