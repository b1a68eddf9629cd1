//! State of each TCP connection and each listener.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use smoltcp::time::{Duration, Instant};
use tcp::{ControlBlock, Reaction, Silence, State};
use waiters::Waiters;

use crate::Error;
use crate::arrivals::Reader;
use crate::charge::{Charge, Need, Owner, RESERVED};
use crate::configuration::{Interest, Readiness};
use crate::host::{FAR_AWAY, Via};
use crate::local::{Direction, Local, Phase};
use crate::segments::time;
use crate::six::LEAST_MTU;
use crate::slab::ConnectionId;
use crate::table::{ENTRY, Key, LocalEnd};
use crate::time_wait::Remains;

/// Probing a silent peer (`SO_KEEPALIVE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "SO_KEEPALIVE")]
#[doc(alias = "TCP_KEEPIDLE")]
#[doc(alias = "TCP_KEEPINTVL")]
#[doc(alias = "TCP_KEEPCNT")]
pub struct Keepalive {
    /// Seconds of silence before the connection is probed.
    pub idle: u16,
    /// Seconds from one probe to the next.
    pub interval: u16,
    /// Number of unanswered probes after which the connection has failed.
    pub probes: u8,
}

/// Behaviour of a connection. A listener's options are inherited by the connections that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "SO_RCVBUF")]
#[doc(alias = "SO_SNDBUF")]
pub struct TcpOptions {
    /// The most bytes that may arrive before they are read: the window offered to the other side grows up to it, if it
    /// is large, as far as that carries more.
    pub receive_buffer: usize,
    /// The most bytes that may be written before the other side has acknowledged them; a connection begins with fewer,
    /// if these are many.
    pub send_buffer: usize,
    /// Whether small writes wait for earlier ones to be acknowledged.
    pub coalescing: Coalescing,
    /// Whether and how a silent peer is probed.
    pub keepalive: Option<Keepalive>,
    /// Whether parts of segments wait for more bytes, for 200 ms at most (`TCP_CORK`).
    pub is_corked: bool,
    /// Milliseconds for which sent bytes, and probes, may go unanswered (`TCP_USER_TIMEOUT`), if they were chosen.
    pub user_timeout: Option<NonZeroU32>,
}

impl TcpOptions {
    /// Buffers of up to 8 KiB each way, Nagle's algorithm, no keepalive.
    pub const SMALL: TcpOptions = TcpOptions {
        receive_buffer: 8 * 1024,
        send_buffer: 8 * 1024,
        coalescing: Coalescing::Nagle,
        keepalive: None,
        is_corked: false,
        user_timeout: None,
    };

    /// Returns the limits of the buffers of a connection to another host.
    pub(crate) fn buffers(&self) -> tcp::Limits {
        tcp::Limits { incoming: clamped(self.receive_buffer), outgoing: clamped(self.send_buffer) }
    }
}

/// Data of a segment in a packet of IPv6's least size.
const SEGMENT_OF_LEAST: u16 = (LEAST_MTU - smoltcp::wire::IPV6_HEADER_LEN - tcp::HEADER) as u16;

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
pub const BUFFER_LIMITS: core::ops::RangeInclusive<usize> = 1024..=1024 * 1024;

/// Time after which buffers give back memory that they have not used. It doubles while they use all of it, up to
/// 2 to the power of [`LONGEST_REST`] times, so that a connection that is stuck wakes nobody every second.
const REST: Duration = Duration::from_secs(1);
const LONGEST_REST: u8 = 8;
/// Time after which they give back more, if that was much.
const SOON: Duration = Duration::from_millis(10);

/// Whether a sender that waits for room in this ring should be woken: a fifth of the limit is free, or all. After there
/// was no memory for more bytes, only the latter counts.
#[inline(always)]
pub(crate) fn has_room(ring: &tcp::Ring, is_refused: bool) -> bool {
    ring.is_empty() || !is_refused && ring.free() * 5 >= ring.limit()
}

/// Returns the bytes that are charged for a connection with segments that holds no bytes.
pub(crate) fn wire_charge(key: Key) -> usize {
    ConnectionMemory::of_this_build().wire + key.memory_beyond_four() + 2 * RESERVED
}

/// Returns the bytes that are charged for one end of a connection within the host that holds no bytes.
pub(crate) fn local_charge(key: Key) -> usize {
    ConnectionMemory::of_this_build().local + key.memory_beyond_four() + RESERVED
}

impl Default for TcpOptions {
    /// Returns [`SMALL`](Self::SMALL).
    fn default() -> Self {
        TcpOptions::SMALL
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
    /// Time to give back memory of the buffers, if they have any.
    pub(crate) shrink_at: Instant,
    /// Times that they had none to give back, one after the other.
    rests: u8,
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
    block: Block,
    pub(crate) seen: SeenState,
    /// Whether there was no memory for bytes to be sent.
    is_refused: bool,
    pub(crate) last_heard: Instant,
    pub(crate) keepalive: Option<Keepalive>,
    user_timeout: Option<NonZeroU32>,
}

/// A control block in memory of its own, which may be short: connections within the host have none.
struct Block(Vec<ControlBlock>);

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
            shrink_at: FAR_AWAY,
            rests: 0,
            engine,
            charge,
        }
    }

    /// Whether segments with this key are for the connection, as the table says.
    #[inline(always)]
    pub(crate) fn is_found_by(&self, key: Key) -> bool {
        self.listed && self.key == key
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

    /// Takes a segment in, with memory for its data as far as the owner and the machine allow. Returns whether they
    /// were asked, and then, whether they have allowed it.
    #[inline(always)]
    pub(crate) fn input(
        &mut self,
        segment: &tcp::Segment<'_>,
        admits: fn(Need) -> bool,
        now: Instant,
    ) -> (Reaction, Option<bool>) {
        match &mut self.engine {
            Engine::Wire(wire) if wire.tcp().has_room_for(segment) => {
                (wire.tcp_mut().input(segment, time(now), &mut |_, _| false), None)
            }
            _ => self.input_with_memory(segment, admits, now),
        }
    }

    #[cold]
    #[inline(never)]
    fn input_with_memory(
        &mut self,
        segment: &tcp::Segment<'_>,
        admits: fn(Need) -> bool,
        now: Instant,
    ) -> (Reaction, Option<bool>) {
        let is_held = self.is_received_from();
        let Engine::Wire(wire) = &mut self.engine else { return (Reaction::Usual, None) };
        let mut asked = None;
        let reaction = wire.tcp_mut().input(segment, time(now), &mut |step, memory| {
            let is_allowed = self.charge.step((step, memory), Need::Packet, is_held, admits);
            asked = Some(is_allowed);
            is_allowed
        });
        (reaction, asked)
    }

    /// Whether the connection was closed, and the other side has not acknowledged everything and the end.
    pub(crate) fn is_delivering(&self) -> bool {
        matches!(&self.engine, Engine::Wire(wire)
            if matches!(wire.tcp().state(), State::FinWait1 | State::Closing | State::LastAck))
    }

    /// Whether a program holds the connection that may receive.
    fn is_received_from(&self) -> bool {
        self.holder == Holder::Application && self.receiving == Receiving::Open
    }

    /// Gives the buffer for bytes that are to be sent, or within the host that have been, memory for at least one more
    /// byte, if the owner and the machine allow. Returns whether that was done.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_room(&mut self, admits: fn(Need) -> bool) -> bool {
        // Within the host the sender is no stranger, and often writes before the other end is accepted.
        let is_held = self.receiving == Receiving::Open;
        let charge = &mut self.charge;
        let is_made = match &mut self.engine {
            Engine::Wire(wire) => {
                let is_made = wire
                    .tcp_mut()
                    .make_room_to_send(|step, memory| charge.step((step, memory), Need::Call, true, admits));
                wire.is_refused = !is_made;
                is_made
            }
            Engine::Local(local) => {
                let is_made =
                    local.ring.make_room(1, 1, |step, memory| charge.step((step, memory), Need::Call, is_held, admits));
                local.is_refused = !is_made;
                is_made
            }
        };
        self.settle_charge();
        is_made
    }

    /// Refunds steps that were charged and not made, or were given back.
    pub(crate) fn settle_charge(&mut self) {
        self.charge.shrink_to(self.charged());
    }

    /// Returns the bytes that are charged.
    fn charged(&self) -> usize {
        let beyond_reserve = |ring: &tcp::Ring| ring.memory().saturating_sub(RESERVED);
        match &self.engine {
            Engine::Wire(wire) => {
                let tcp = wire.tcp();
                wire_charge(self.key) + beyond_reserve(tcp.incoming()) + beyond_reserve(tcp.outgoing())
            }
            Engine::Local(local) => local_charge(self.key) + beyond_reserve(&local.ring),
        }
    }

    /// Enters the time at which buffers give memory back, if they have any and it is not entered; returns that time.
    pub(crate) fn set_rest(&mut self, now: Instant) -> Option<Instant> {
        if self.shrink_at != FAR_AWAY || self.buffers() == 0 {
            return None;
        }
        (self.shrink_at, self.rests) = (now + REST, 0);
        Some(self.shrink_at)
    }

    /// Has the buffers give back memory that they do not need, if it is time; returns the time to do so again, and the
    /// bytes that were given back.
    pub(crate) fn shrink(&mut self, now: Instant) -> (Instant, usize) {
        if self.shrink_at > now {
            return (self.shrink_at, 0);
        }
        let before = self.buffers();
        let is_more = match &mut self.engine {
            Engine::Wire(wire) => wire.tcp_mut().shrink(),
            Engine::Local(local) => local.ring.shrink(0),
        };
        let after = self.buffers();
        self.settle_charge();
        self.rests = if after < before { 0 } else { (self.rests + 1).min(LONGEST_REST) };
        self.shrink_at = match after {
            0 => FAR_AWAY,
            _ if is_more => now + SOON,
            _ => now + REST * (1 << self.rests),
        };
        (self.shrink_at, before - after)
    }

    /// Gives the memory of buffers back that have no use when a connection has ended. Others stay: the connection has
    /// no timer any more.
    pub(crate) fn clear(&mut self) {
        self.shrink_at = FAR_AWAY;
        if let Engine::Wire(wire) = &mut self.engine {
            wire.tcp_mut().clear();
        }
        self.settle_charge();
    }

    /// Returns the bytes of memory of the buffers.
    fn buffers(&self) -> usize {
        match &self.engine {
            Engine::Wire(wire) => wire.tcp().memory(),
            Engine::Local(local) => local.ring.memory(),
        }
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
                let tcp = wire.tcp();
                (matches!(tcp.state(), State::SynSent | State::SynReceived), tcp.may_receive(), tcp.may_send())
            }
            Engine::Local(local) => {
                let joined = matches!(local.phase, Phase::Joined(_));
                (
                    local.is_waiting(),
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
            Engine::Wire(wire) => match wire.tcp().state() {
                State::SynSent | State::SynReceived => (false, false),
                State::Closed => (false, true),
                _ => (true, false),
            },
            Engine::Local(local) => match local.phase {
                Phase::Waiting { .. } => (false, false),
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
            Engine::Wire(wire) => !matches!(wire.tcp().state(), State::Closed | State::SynSent),
            Engine::Local(local) => matches!(local.phase, Phase::Joined(_)),
        }
    }

    pub(crate) fn receivable(&self) -> usize {
        match &self.engine {
            Engine::Wire(wire) => wire.tcp().incoming().len(),
            Engine::Local(local) => local.ring.len(),
        }
    }

    /// Returns the memory that the connection takes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let sizes = ConnectionMemory::of_this_build();
        let record = match &self.engine {
            Engine::Wire(_) => sizes.wire,
            Engine::Local(_) => sizes.local,
        };
        record + self.buffers() + self.key.memory_beyond_four()
    }

    /// Shows received bytes, up to so many behind the first ones, in parts, until `look` wants no more.
    pub(crate) fn peek(&self, skip: usize, length: usize, look: impl FnMut(&[u8]) -> bool) {
        match &self.engine {
            Engine::Wire(wire) => wire.tcp().incoming().look(skip, length, look),
            Engine::Local(local) => local.ring.look(skip, length, look),
        }
    }

    /// Returns the number of bytes, and the end of the stream as one, that the other side has not acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        match &self.engine {
            Engine::Wire(wire) => {
                let tcp = wire.tcp();
                match tcp.state() {
                    State::FinWait1 | State::Closing | State::LastAck => tcp.outgoing().len() + 1,
                    // The buffer has been given back.
                    State::Closed => tcp.outgoing().len().max(wire.seen.unsent),
                    _ => tcp.outgoing().len(),
                }
            }
            // Sent bytes are already with the receiver.
            Engine::Local(_) => 0,
        }
    }
}

impl Wire {
    /// Makes the end that this control block is.
    pub(crate) fn new(via: Via, tcp: ControlBlock, options: &TcpOptions, now: Instant) -> Result<Self, Error> {
        let mut block = Vec::new();
        block.try_reserve_exact(1)?;
        let seen = SeenState { state: State::Closed, received: 0, unsent: 0 };
        block.push(tcp);
        let mut wire = Wire {
            via,
            block: Block(block),
            seen,
            is_refused: false,
            last_heard: now,
            keepalive: None,
            user_timeout: options.user_timeout,
        };
        wire.set_coalescing(options.coalescing);
        wire.set_keepalive(options.keepalive, now);
        wire.tcp_mut().set_corked(options.is_corked);
        Ok(wire)
    }

    #[inline(always)]
    pub(crate) fn tcp(&self) -> &ControlBlock {
        &self.block.0[0]
    }

    #[inline(always)]
    pub(crate) fn tcp_mut(&mut self) -> &mut ControlBlock {
        &mut self.block.0[0]
    }

    pub(crate) fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.tcp_mut().set_nagle(coalescing == Coalescing::Nagle);
    }

    pub(crate) fn set_keepalive(&mut self, keepalive: Option<Keepalive>, now: Instant) {
        self.keepalive = keepalive;
        let silence = keepalive.map(|Keepalive { idle, interval, .. }| Silence {
            first: u64::from(idle) * 1_000_000,
            next: u64::from(interval) * 1_000_000,
        });
        self.tcp_mut().set_keepalive(silence, time(now));
    }

    /// Has the connection send packets of IPv6's least size.
    pub(crate) fn narrow(&mut self) {
        if self.via == Via::Six {
            self.via = Via::NarrowSix;
            self.tcp_mut().limit_segment(SEGMENT_OF_LEAST);
        }
    }

    pub(crate) fn set_user_timeout(&mut self, timeout: Option<NonZeroU32>) {
        self.user_timeout = timeout;
    }

    /// Returns how long sent bytes may go unanswered; `usual` unless it was chosen.
    #[inline(always)]
    pub(crate) fn patience_ns(&self, usual: u64) -> u64 {
        self.user_timeout.map_or(usual, |timeout| u64::from(timeout.get()) * 1_000_000)
    }

    /// Records the state; returns the last recorded one and the new one.
    pub(crate) fn look(&mut self) -> (SeenState, SeenState) {
        let tcp = self.tcp();
        let now = SeenState { state: tcp.state(), received: tcp.incoming().len(), unsent: tcp.outgoing().len() };
        (core::mem::replace(&mut self.seen, now), now)
    }

    /// Whether a blocked sender should be woken, as [`has_room`] says: waking for each acknowledged byte would make
    /// many small segments.
    pub(crate) fn has_room(&self) -> bool {
        has_room(self.tcp().outgoing(), self.is_refused)
    }

    /// Returns the record to keep when the connection has ended in TIME-WAIT.
    pub(crate) fn remains(&self) -> Remains {
        let tcp = self.tcp();
        Remains { ours: tcp.unacknowledged(), theirs: tcp.expected(), stamps: tcp.stamps() }
    }

    /// Returns the time at which all probes will have gone unanswered.
    fn unanswered_at(&self) -> Option<Instant> {
        let keepalive = self.keepalive?;
        if !matches!(self.seen.state, State::Established | State::CloseWait | State::FinWait2) {
            return None;
        }
        let [idle, interval] = [keepalive.idle, keepalive.interval].map(|seconds| u64::from(seconds) * 1000);
        let all = idle + interval * u64::from(keepalive.probes);
        let patience = self.user_timeout.map_or(all, |timeout| u64::from(timeout.get()).max(idle));
        Some(self.last_heard + Duration::from_millis(patience))
    }
}

pub(crate) struct Listener {
    pub(crate) local: LocalEnd,
    pub(crate) options: TcpOptions,
    /// Owner charged for requests and connections.
    pub(crate) owner: Option<Arc<dyn Owner>>,
    pub(crate) backlog: usize,
    /// Seconds for which a connection from another host waits for its first bytes before it is queued.
    pub(crate) deferral: u32,
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
            deferral: 0,
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

/// Bytes of kernel memory for one connection beside its buffers, which are made with their first bytes: from 512 bytes
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionMemory {
    /// A connection to another host over IPv4: its record, its control block, and its share of the tables.
    pub wire: usize,
    /// One end of a connection within this host.
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
        ConnectionMemory { wire: record + size_of::<ControlBlock>(), local: record }
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
        const BESIDE: usize = 1024;
        const LIMIT: usize = 1 << 24;
        let own = Ipv4Addr::new(10, 0, 2, 15);
        let address = Addressing::Fixed(Address { address: own, prefix: 8, gateway: None });
        let mut stack = Stack::new(NoLink, &Configuration { address, ..Configuration::default() }, 0).unwrap();
        let options = TcpOptions { receive_buffer: 1024, send_buffer: 1024, ..TcpOptions::default() };
        let one = ConnectionMemory::of_this_build().wire;
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
