//! The stack: operations for the kernel's sockets, and the poll that drives everything.
//!
//! # Invariants
//! * *One owner*: a connection is in the table exactly while its `listed` is set; it then counts as a user of its local port.
//! * *Marked or idle*: after each operation a connection that smoltcp could do something for at once is in the
//!   work list, and one that waits for a time has a timer no later than that time. [`Core::settle`] is the only place
//!   that decides this, and everything that touches a socket ends by calling it.
//! * *Seen once*: wakers fire on the difference between what `settle` saw last and what it sees now.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::task::Waker;

use smoltcp::iface::{Config as InterfaceConfig, Interface, PollResult, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, RxToken, TxToken};
use smoltcp::socket::tcp::State;
use smoltcp::socket::udp::UdpMetadata;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{
    EthernetAddress, HardwareAddress, IpAddress, IpCidr, IpEndpoint, Ipv4Cidr, Ipv4Packet, UdpPacket, UdpRepr,
};

use crate::Error;
use crate::frame::{Packet, Quoted, Segment, classify_ethernet, classify_ipv4};
use crate::link::{Arrived, Frame, Link, Loopback};
use crate::schedule::{Timers, WorkList};
use crate::slab::{BindingId, ConnectionId, DatagramId, ListenerId, Slab};
use crate::table::{Hash, Key, Ports, Sharing, Table};
use crate::tcp::{
    ACKNOWLEDGEMENT_DELAY, Coalescing, Connection, Holder, Keepalive, Listener, Receiving, TcpOptions, Via, duration,
};
use crate::time_wait::{Remains, TimeWait, Verdict};
use crate::udp::{DatagramOptions, Datagrams, LONGEST};

/// The host's place in an IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The host's own address.
    pub address: Ipv4Addr,
    /// How many leading bits of it name the network.
    pub prefix: u8,
    /// Who carries packets to other networks.
    pub gateway: Option<Ipv4Addr>,
}

/// Upper bounds on what strangers and programs can make the stack hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in any state but TIME-WAIT.
    pub connections: usize,
    /// Listeners, and as many ports bound but not used yet.
    pub listeners: usize,
    /// Datagram sockets.
    pub datagrams: usize,
    /// The longest backlog a listener gets, whatever it asks for.
    pub backlog: usize,
    /// Closed connections that still deliver or wait for the other side; further ones are reset.
    pub orphans: usize,
    /// Ended connections remembered so that stray packets do not confuse their successors; the oldest go first.
    pub time_wait: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 65_536,
            listeners: 1024,
            datagrams: 4096,
            backlog: 4096,
            orphans: 8192,
            time_wait: 16_384,
        }
    }
}

/// How long the stack waits for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the answer to a connection request.
    pub connect_ns: u64,
    /// For the end of a handshake that the other side began.
    pub handshake_ns: u64,
    /// For the acknowledgement of sent data, from the last progress.
    pub acknowledgement_ns: u64,
    /// For each further step of the other side after the connection was closed here.
    pub orphan_ns: u64,
    /// How long an ended connection is remembered.
    pub time_wait_ns: u64,
}

const SECOND: u64 = 1_000_000_000;

impl Default for Patience {
    fn default() -> Self {
        Patience {
            connect_ns: 64 * SECOND,
            handshake_ns: 32 * SECOND,
            acknowledgement_ns: 300 * SECOND,
            orphan_ns: 60 * SECOND,
            time_wait_ns: 10 * SECOND,
        }
    }
}

/// What a stack is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The address on the Ethernet interface; `None` leaves only the loopback interface.
    pub address: Option<Address>,
    /// A number that nobody outside can guess: initial sequence numbers, ports and hashes depend on it.
    pub seed: u64,
    /// Bounds on memory.
    pub limits: Limits,
    /// Bounds on waiting.
    pub patience: Patience,
}

impl Default for Configuration {
    /// No Ethernet interface, and a seed of 0, which anybody can guess.
    fn default() -> Self {
        Configuration { address: None, seed: 0, limits: Limits::default(), patience: Patience::default() }
    }
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to receive, or the end of it.
    Receive,
    /// Room to send, or the outcome of `tcp_connect`.
    Send,
}

/// What `tcp_receive_with` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes were taken; 0 only if the callback took none.
    Bytes(usize),
    /// Nothing has arrived: register and wait.
    Nothing,
    /// Nothing will arrive any more.
    End,
}

/// What `tcp_send_with` or `udp_send_with` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// This many bytes were taken; 0 only if the callback gave none.
    Bytes(usize),
    /// There is no room: register and wait.
    Full,
}

/// Which half of a connection to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// What arrives is no longer wanted.
    Receive,
    /// Nothing more will be sent: the other side sees the end of the stream after what was sent.
    Send,
    /// Both.
    Both,
}

/// What would not wait, for `poll` and the like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Receiving (or accepting) would succeed, fail, or report the end at once.
    pub receive: bool,
    /// Sending would succeed or fail at once.
    pub send: bool,
    /// The other side will send nothing more.
    pub receive_end: bool,
    /// Neither side will send anything more.
    pub hang_up: bool,
    /// An error waits to be reported.
    pub failed: bool,
}

/// What has happened since the stack was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames taken from the link.
    pub frames_received: u64,
    /// Packets carried by the loopback interface.
    pub loopback_packets: u64,
    /// Connection requests dropped because a backlog was full or memory short.
    pub requests_dropped: u64,
    /// Connections made in either direction.
    pub connections_made: u64,
    /// Datagrams dropped because a buffer was full.
    pub datagrams_dropped: u64,
}

/// How many frames one `poll` takes from the link, so that others get their turn.
const BATCH: usize = 64;
/// How many segments a connection may send before the next one's turn.
const BURST: usize = 8;
/// How many turns one `poll` gives.
const TURNS: usize = 1024;
/// When a full device is tried again.
const RETRY: Duration = Duration::from_millis(1);
/// How many answers to answers are carried at once on the loopback interface. More than a few mean that
/// two ends disagree; the rest is left to their timers.
const HOPS: usize = 16;

/// What made `settle` look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// An operation on this host, or the passing of time.
    Local,
    /// A segment from the other side.
    Segment,
    /// A reset from the other side.
    Reset,
}

/// When a connection wants its next turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// At once: whoever asked is to put it into the work list, or to go on with it.
    Now,
    /// When something arrives, or its timer says so.
    Later,
    /// It is gone, or its end is already arranged for.
    Gone,
}

struct Binding {
    local: SocketAddrV4,
}

/// TCP, UDP, ICMP and ARP over one Ethernet link and the loopback interface. See the [crate documentation](crate).
pub struct Stack<L: Link> {
    link: L,
    core: Core,
}

/// Everything but the link, because a frame borrows the link while it is looked at.
struct Core {
    ethernet: Interface,
    loopback: Interface,
    own: Ipv4Addr,
    network: Ipv4Cidr,
    gateway: Option<Ipv4Addr>,
    ethernet_mtu: usize,
    checksums: ChecksumCapabilities,
    limits: Limits,
    patience: Patience,
    counters: Counters,

    connections: Slab<Connection>,
    table: Table,
    work: WorkList,
    timers: Timers,
    /// Connections that could not send, perhaps for want of a hardware address.
    unresolved: WorkList,
    orphans: usize,
    time_wait: TimeWait,

    listeners: Slab<Listener>,
    listening: Table,
    bindings: Slab<Binding>,
    ports: Ports,

    datagrams: Slab<Datagrams>,
    datagram_table: Table,
    datagram_ports: Ports,
    datagram_work: WorkList,
    datagram_timers: Timers,

    frames: [Option<Frame>; 2],
    /// For packets that concern no socket: smoltcp answers echo requests, ARP and stray segments.
    nobody: SocketSet<'static>,
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1000) as i64)
}

impl<L: Link> Stack<L> {
    /// A stack on `link`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that no host can have or a link that is not Ethernet;
    /// [`Error::OutOfMemory`].
    pub fn new(mut link: L, configuration: &Configuration, now_ns: u64) -> Result<Self, Error> {
        let now = instant(now_ns);
        let hardware = EthernetAddress(link.hardware_address());
        let capabilities = link.capabilities();
        if capabilities.medium != smoltcp::phy::Medium::Ethernet
            || capabilities.max_transmission_unit < 14 + 576
            || !hardware.is_unicast()
        {
            return Err(Error::Invalid);
        }
        let seed = configuration.seed;
        let mut config = InterfaceConfig::new(HardwareAddress::Ethernet(hardware));
        config.random_seed = seed ^ 0x65_7468_6572;
        let ethernet = Interface::new(config, &mut link, now);
        let mut config = InterfaceConfig::new(HardwareAddress::Ip);
        config.random_seed = seed.rotate_left(32) ^ 0x6c_6f6f_7062;
        let mut loopback = Interface::new(config, &mut Loopback(None), now);
        // Every address that is routed to the loopback interface is this host's.
        loopback.set_any_ip(true);

        let hash = Hash::new(seed);
        let limits = configuration.limits;
        let patience = configuration.patience;
        let mut core = Core {
            ethernet,
            loopback,
            own: Ipv4Addr::UNSPECIFIED,
            network: Ipv4Cidr::new(Ipv4Addr::UNSPECIFIED, 32),
            gateway: None,
            ethernet_mtu: capabilities.ip_mtu(),
            checksums: capabilities.checksum,
            limits,
            patience,
            counters: Counters::default(),
            connections: Slab::new(limits.connections),
            table: Table::new(hash),
            work: WorkList::new(),
            timers: Timers::new(),
            unresolved: WorkList::new(),
            orphans: 0,
            time_wait: TimeWait::new(hash, limits.time_wait, duration(patience.time_wait_ns)),
            listeners: Slab::new(limits.listeners),
            listening: Table::new(hash),
            bindings: Slab::new(limits.listeners),
            ports: Ports::new(hash, seed),
            datagrams: Slab::new(limits.datagrams),
            datagram_table: Table::new(hash),
            datagram_ports: Ports::new(hash, seed >> 16),
            datagram_work: WorkList::new(),
            datagram_timers: Timers::new(),
            frames: [Some(Frame::new()?), Some(Frame::new()?)],
            nobody: SocketSet::new(alloc::vec::Vec::new()),
        };
        core.set_address(configuration.address)?;
        Ok(Stack { link, core })
    }

    /// The device below.
    pub fn link(&mut self) -> &mut L {
        &mut self.link
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.core.counters
    }

    /// How many connections there are in any state but TIME-WAIT, and how many are in TIME-WAIT.
    pub fn connection_counts(&self) -> (usize, usize) {
        (self.core.connections.len(), self.core.time_wait.len())
    }

    /// The host's address on the Ethernet interface.
    pub fn address(&self) -> Option<Ipv4Addr> {
        (!self.core.own.is_unspecified()).then_some(self.core.own)
    }

    /// Does everything that can be done now: takes what has arrived, acts on what has expired, sends what is
    /// to be sent. Returns when to call again at the latest, if nothing else happens before;
    /// a time that has passed means at once, after others had their turn.
    pub fn poll(&mut self, now_ns: u64) -> Option<u64> {
        let now = instant(now_ns);
        let core = &mut self.core;
        let mut more = true;
        for _ in 0..BATCH {
            let Some((frame, answer)) = self.link.receive(now) else {
                more = false;
                break;
            };
            frame.consume(|frame| core.ethernet_input(frame, answer, now));
        }
        core.expire(now);
        core.send_all(&mut self.link, now);
        self.link.flush();
        let next = if more || !core.work.is_empty() || !core.datagram_work.is_empty() {
            Some(now)
        } else {
            [core.timers.next(), core.datagram_timers.next(), core.time_wait.next()].into_iter().flatten().min()
        };
        next.map(|at| at.total_micros().max(0) as u64 * 1000)
    }

    /// Takes a local TCP port: `0.0.0.0` stands for all addresses, port 0 for any free ephemeral port.
    ///
    /// # Errors
    /// [`Error::AddressUnavailable`], [`Error::AddressInUse`], [`Error::Limit`], [`Error::OutOfMemory`].
    pub fn tcp_bind(&mut self, local: SocketAddrV4, sharing: Sharing) -> Result<BindingId, Error> {
        self.core.tcp_bind(local, sharing)
    }

    /// The address and port that a binding took.
    pub fn binding_endpoint(&self, id: BindingId) -> Result<SocketAddrV4, Error> {
        let index = self.core.bindings.resolve(id.index, id.generation)?;
        self.core.bindings.get(index).map(|binding| binding.local).ok_or(Error::Stale)
    }

    /// Gives a bound port back.
    pub fn release(&mut self, id: BindingId) -> Result<(), Error> {
        let local = self.core.take_binding(id)?;
        self.core.ports.release(local);
        Ok(())
    }

    /// Accepts connections on a bound port from now on. The binding becomes the listener, or stays if this fails.
    /// At most `backlog` connections (at least one) wait to be accepted; requests beyond are dropped, so that
    /// the other side asks again.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Limit`], [`Error::OutOfMemory`].
    pub fn tcp_listen(
        &mut self,
        binding: BindingId,
        backlog: usize,
        options: &TcpOptions,
    ) -> Result<ListenerId, Error> {
        self.core.tcp_listen(binding, backlog, options)
    }

    /// Changes the backlog of a listener; what already waits stays.
    pub fn set_backlog(&mut self, id: ListenerId, backlog: usize) -> Result<(), Error> {
        let limit = self.core.limits.backlog;
        self.core.listener(id)?.backlog = backlog.clamp(1, limit);
        Ok(())
    }

    /// Changes the options that accepted connections get.
    pub fn set_listener_options(&mut self, id: ListenerId, options: &TcpOptions) -> Result<(), Error> {
        self.core.listener(id)?.options = *options;
        Ok(())
    }

    /// Takes the connection that was established first, with its remote end, or `None`: register and wait.
    pub fn accept(&mut self, id: ListenerId) -> Result<Option<(ConnectionId, SocketAddrV4)>, Error> {
        self.core.accept(id)
    }

    /// Wakes once when `accept` may have something.
    pub fn register_accept(&mut self, id: ListenerId, waker: &Waker) -> Result<(), Error> {
        self.core.listener(id)?.acceptors.register(waker);
        Ok(())
    }

    /// The address and port that a listener listens on.
    pub fn listener_endpoint(&mut self, id: ListenerId) -> Result<SocketAddrV4, Error> {
        Ok(self.core.listener(id)?.local)
    }

    /// Whether `accept` has something.
    pub fn listener_readiness(&mut self, id: ListenerId) -> Result<Readiness, Error> {
        let listener = self.core.listener(id)?;
        Ok(Readiness { receive: !listener.queue.is_empty(), ..Readiness::default() })
    }

    /// Ends a listener, gives its port back, and resets the connections that were not accepted.
    pub fn close_listener(&mut self, id: ListenerId, now_ns: u64) -> Result<(), Error> {
        self.core.close_listener(id, instant(now_ns))
    }

    /// Begins a connection to `remote`, from a bound port or from a free one. The binding is used up.
    /// Wait with [`Interest::Send`]; then [`connected`](Self::connected) tells the outcome.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::AddressInUse`] (there is such a connection, or there was one a moment ago),
    /// [`Error::AddressUnavailable`], [`Error::Limit`], [`Error::OutOfMemory`], [`Error::Invalid`] for port 0.
    pub fn tcp_connect(
        &mut self,
        from: Option<BindingId>,
        remote: SocketAddrV4,
        options: &TcpOptions,
        now_ns: u64,
    ) -> Result<ConnectionId, Error> {
        self.core.tcp_connect(from, remote, options, instant(now_ns))
    }

    /// Whether the handshake has ended well; `Ok(false)` while it is under way.
    ///
    /// # Errors
    /// Why it failed ([`Error::Refused`], [`Error::TimedOut`], [`Error::Reset`], [`Error::Unreachable`]), once;
    /// [`Error::NotConnected`] after that.
    pub fn connected(&mut self, id: ConnectionId) -> Result<bool, Error> {
        let connection = self.core.connection(id)?;
        match connection.socket().state() {
            State::SynSent | State::SynReceived => Ok(false),
            State::Closed => Err(connection.failure.take().unwrap_or(Error::NotConnected)),
            _ => Ok(true),
        }
    }

    /// Hands free room of the send buffer to `fill`, which returns how many bytes it has written at the start of the slice.
    /// `fill` is called again with a second slice if it filled the first, because the buffer is a ring.
    ///
    /// What was written is sent by the next [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`Error::NotConnected`] before the handshake has ended; the failure of the connection once; [`Error::Closed`]
    /// after that or after a shutdown.
    pub fn tcp_send_with(
        &mut self,
        id: ConnectionId,
        fill: impl FnMut(&mut [u8]) -> usize,
        now_ns: u64,
    ) -> Result<Sent, Error> {
        self.core.send_with(id, fill, instant(now_ns))
    }

    /// Hands what has arrived to `take`, which returns how many bytes it has taken from the start of the slice.
    /// `take` is called again with a second slice if it took all of the first, because the buffer is a ring.
    ///
    /// # Errors
    /// [`Error::NotConnected`] before the handshake has ended; the failure of the connection once, after all that had
    /// arrived before was received; then [`Received::End`].
    pub fn tcp_receive_with(
        &mut self,
        id: ConnectionId,
        take: impl FnMut(&[u8]) -> usize,
        now_ns: u64,
    ) -> Result<Received, Error> {
        self.core.receive_with(id, take, instant(now_ns))
    }

    /// Shows up to `length` bytes of what has arrived without taking them (`MSG_PEEK`); the slice may be shorter
    /// than what there is, because the buffer is a ring.
    pub fn tcp_peek_with<R>(
        &mut self,
        id: ConnectionId,
        length: usize,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let socket = self.core.connection(id)?.socket_mut();
        match socket.peek(length) {
            Ok([]) | Err(_) => Ok(None),
            Ok(bytes) => Ok(Some(look(bytes))),
        }
    }

    /// Bytes that have arrived and were not received yet (`FIONREAD`).
    pub fn receivable(&self, id: ConnectionId) -> Result<usize, Error> {
        let index = self.core.connections.resolve(id.index, id.generation)?;
        let connection = self.core.connections.get(index).ok_or(Error::Stale)?;
        Ok(connection.socket().recv_queue())
    }

    /// Bytes that the other side has not acknowledged yet. When this is 0 after a [`Shutdown::Send`] the other side has
    /// everything: a lingering close waits for that with [`Interest::Send`].
    pub fn unacknowledged(&self, id: ConnectionId) -> Result<usize, Error> {
        let index = self.core.connections.resolve(id.index, id.generation)?;
        let connection = self.core.connections.get(index).ok_or(Error::Stale)?;
        let socket = connection.socket();
        let unfinished = matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck);
        Ok(socket.send_queue() + usize::from(unfinished))
    }

    /// Wakes once when the outcome of an operation that had to wait may have changed. Any number may wait;
    /// a wake may be spurious.
    pub fn register(&mut self, id: ConnectionId, interest: Interest, waker: &Waker) -> Result<(), Error> {
        let connection = self.core.connection(id)?;
        match interest {
            Interest::Receive => connection.receivers.register(waker),
            Interest::Send => connection.senders.register(waker),
        }
        Ok(())
    }

    /// What would not wait.
    pub fn readiness(&mut self, id: ConnectionId) -> Result<Readiness, Error> {
        Ok(self.core.connection(id)?.readiness())
    }

    /// The local end.
    pub fn local_endpoint(&mut self, id: ConnectionId) -> Result<SocketAddrV4, Error> {
        Ok(self.core.connection(id)?.key.local())
    }

    /// The remote end, of a connection that is established or was.
    pub fn remote_endpoint(&mut self, id: ConnectionId) -> Result<SocketAddrV4, Error> {
        Ok(self.core.connection(id)?.key.remote())
    }

    /// Takes the failure of a connection, if there is one nobody was told of (`SO_ERROR`).
    pub fn take_failure(&mut self, id: ConnectionId) -> Result<Option<Error>, Error> {
        Ok(self.core.connection(id)?.failure.take())
    }

    /// Changes whether small writes wait.
    pub fn set_coalescing(&mut self, id: ConnectionId, coalescing: Coalescing, now_ns: u64) -> Result<(), Error> {
        self.core.connection(id)?.set_coalescing(coalescing);
        self.core.touch(id.index, instant(now_ns));
        Ok(())
    }

    /// Changes whether a silent peer is probed.
    pub fn set_keepalive(&mut self, id: ConnectionId, keepalive: Option<Keepalive>, now_ns: u64) -> Result<(), Error> {
        let connection = self.core.connection(id)?;
        connection.last_heard = instant(now_ns);
        connection.set_keepalive(keepalive);
        self.core.touch(id.index, instant(now_ns));
        Ok(())
    }

    /// Ends one half of a connection, or both.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if there is no connection any more.
    pub fn shutdown(&mut self, id: ConnectionId, how: Shutdown, now_ns: u64) -> Result<(), Error> {
        self.core.shutdown(id, how, instant(now_ns))
    }

    /// Gives a connection up: the identifier ends here. What was sent before is still delivered, then the other side sees the
    /// end; but if something has arrived that nobody has received, the other side sees a reset.
    pub fn close(&mut self, id: ConnectionId, now_ns: u64) -> Result<(), Error> {
        self.core.close(id, instant(now_ns))
    }

    /// Gives a connection up with a reset; what was not delivered is lost (`SO_LINGER` with time 0).
    pub fn abort(&mut self, id: ConnectionId, now_ns: u64) -> Result<(), Error> {
        self.core.abort(id, instant(now_ns))
    }

    /// Makes a datagram socket on a local port: `0.0.0.0` stands for all addresses, port 0 for any free port.
    ///
    /// # Errors
    /// [`Error::AddressUnavailable`], [`Error::AddressInUse`], [`Error::Limit`], [`Error::OutOfMemory`].
    pub fn udp_bind(&mut self, local: SocketAddrV4, options: &DatagramOptions) -> Result<DatagramId, Error> {
        self.core.udp_bind(local, options)
    }

    /// Fixes the other end: only its datagrams are received, and datagrams without an address go there.
    /// `None` undoes that.
    pub fn udp_connect(&mut self, id: DatagramId, remote: Option<SocketAddrV4>) -> Result<(), Error> {
        self.core.udp_connect(id, remote)
    }

    /// Sends one datagram of `length` bytes, written by `fill`, to `to` or to the connected end. `fill` is not called if
    /// the receiver is on this host and has no room; the datagram is then dropped, as on any network.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Unreachable`], [`Error::NotConnected`] without any address; a failure reported by the
    /// network once.
    pub fn udp_send_with(
        &mut self,
        id: DatagramId,
        to: Option<SocketAddrV4>,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Sent, Error> {
        self.core.udp_send_with(id, to, length, fill)
    }

    /// Takes the next datagram and its sender, or `None`: register and wait.
    pub fn udp_receive_with<R>(
        &mut self,
        id: DatagramId,
        take: impl FnOnce(SocketAddrV4, &[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let socket = self.core.datagram(id)?;
        if let Some(failure) = socket.failure.take() {
            return Err(failure);
        }
        match socket.arrived.dequeue() {
            Ok((from, payload)) => Ok(Some(take(from, payload))),
            Err(_) => Ok(None),
        }
    }

    /// Shows the next datagram without taking it.
    pub fn udp_peek_with<R>(
        &mut self,
        id: DatagramId,
        look: impl FnOnce(SocketAddrV4, &[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let socket = self.core.datagram(id)?;
        match socket.arrived.peek() {
            Ok((from, payload)) => Ok(Some(look(*from, payload))),
            Err(_) => Ok(None),
        }
    }

    /// Wakes once when the outcome of an operation that had to wait may have changed.
    pub fn udp_register(&mut self, id: DatagramId, interest: Interest, waker: &Waker) -> Result<(), Error> {
        let socket = self.core.datagram(id)?;
        match interest {
            Interest::Receive => socket.receivers.register(waker),
            Interest::Send => socket.senders.register(waker),
        }
        Ok(())
    }

    /// What would not wait.
    pub fn udp_readiness(&mut self, id: DatagramId) -> Result<Readiness, Error> {
        let socket = self.core.datagram(id)?;
        let failed = socket.failure.is_some();
        Ok(Readiness {
            receive: failed || !socket.arrived.is_empty(),
            send: match &mut socket.departing {
                Some(_) => socket.departing()?.can_send(),
                None => true,
            },
            failed,
            ..Readiness::default()
        })
    }

    /// The local end.
    pub fn udp_local_endpoint(&mut self, id: DatagramId) -> Result<SocketAddrV4, Error> {
        Ok(self.core.datagram(id)?.local)
    }

    /// The connected end.
    pub fn udp_remote_endpoint(&mut self, id: DatagramId) -> Result<Option<SocketAddrV4>, Error> {
        Ok(self.core.datagram(id)?.remote)
    }

    /// Ends a datagram socket; what it has not sent yet is lost.
    pub fn udp_close(&mut self, id: DatagramId) -> Result<(), Error> {
        self.core.udp_close(id)
    }
}

impl Core {
    fn set_address(&mut self, address: Option<Address>) -> Result<(), Error> {
        let Some(address) = address else {
            return Ok(());
        };
        let own = address.address;
        if address.prefix > 32 || own.is_unspecified() || own.is_loopback() || own.is_multicast() || own.is_broadcast()
        {
            return Err(Error::Invalid);
        }
        self.own = own;
        self.network = Ipv4Cidr::new(own, address.prefix);
        self.gateway = address.gateway;
        let network = IpCidr::Ipv4(self.network);
        let mut stored = true;
        self.ethernet.update_ip_addrs(|addresses| {
            addresses.clear();
            stored = addresses.push(network).is_ok();
        });
        if let Some(gateway) = address.gateway {
            stored &= self.ethernet.routes_mut().add_default_ipv4_route(gateway).is_ok();
        }
        if stored { Ok(()) } else { Err(Error::Invalid) }
    }

    fn is_own(&self, address: Ipv4Addr) -> bool {
        address.is_loopback() || (address == self.own && !self.own.is_unspecified())
    }

    /// The interface that leads to `remote`, and the local address that packets on it carry.
    fn route(&self, remote: Ipv4Addr) -> Result<(Via, Ipv4Addr), Error> {
        if remote.is_loopback() {
            Ok((Via::Loopback, Ipv4Addr::LOCALHOST))
        } else if self.own.is_unspecified() {
            Err(Error::Unreachable)
        } else if remote == self.own {
            Ok((Via::Loopback, self.own))
        } else if self.network.contains_addr(&remote) || self.gateway.is_some() || remote.is_broadcast() {
            Ok((Via::Ethernet, self.own))
        } else {
            Err(Error::Unreachable)
        }
    }

    /// Likewise, for a socket that may be bound to one address.
    fn route_from(&self, local: Ipv4Addr, remote: Ipv4Addr) -> Result<(Via, Ipv4Addr), Error> {
        let (via, preferred) = self.route(remote)?;
        if local.is_unspecified() {
            Ok((via, preferred))
        } else if via == Via::Ethernet && local.is_loopback() {
            // A loopback address must not appear on a wire.
            Err(Error::Unreachable)
        } else {
            Ok((via, local))
        }
    }

    fn connection(&mut self, id: ConnectionId) -> Result<&mut Connection, Error> {
        let index = self.connections.resolve(id.index, id.generation)?;
        self.connections.get_mut(index).ok_or(Error::Stale)
    }

    fn listener(&mut self, id: ListenerId) -> Result<&mut Listener, Error> {
        let index = self.listeners.resolve(id.index, id.generation)?;
        self.listeners.get_mut(index).ok_or(Error::Stale)
    }

    fn datagram(&mut self, id: DatagramId) -> Result<&mut Datagrams, Error> {
        let index = self.datagrams.resolve(id.index, id.generation)?;
        self.datagrams.get_mut(index).ok_or(Error::Stale)
    }

    // What arrives.

    fn ethernet_input<T: TxToken>(&mut self, frame: &[u8], answer: T, now: Instant) {
        self.counters.frames_received += 1;
        match classify_ethernet(frame, self.own) {
            Packet::Tcp(segment) => self.tcp_input(Via::Ethernet, segment, frame, answer, now),
            Packet::Udp { local, remote } => {
                self.udp_input(local, remote, frame, answer, now);
            }
            Packet::Unreachable { about, local, remote } => self.unreachable(about, local, remote, now),
            Packet::Arp => {
                poll_one(&mut self.ethernet, &mut self.nobody, frame, answer, now);
                // Somebody's hardware address may be known now.
                while let Some(index) = self.unresolved.pop() {
                    self.work.push(index);
                }
                while let Some(index) = self.datagram_timers.expired(Instant::from_micros(i64::MAX)) {
                    self.datagram_work.push(index);
                }
            }
            Packet::Other => poll_one(&mut self.ethernet, &mut self.nobody, frame, answer, now),
            Packet::Drop => {}
        }
    }

    fn tcp_input<T: TxToken>(&mut self, via: Via, segment: Segment, frame: &[u8], answer: T, now: Instant) {
        let key = Key::new(segment.local, segment.remote);
        if let Some(index) = self.table.find(key) {
            let Some(connection) = self.connections.get_mut(index) else {
                return;
            };
            connection.last_heard = now;
            let interface = match via {
                Via::Ethernet => &mut self.ethernet,
                Via::Loopback => &mut self.loopback,
            };
            poll_one(interface, &mut connection.sockets, frame, answer, now);
            let cause = if segment.is_reset() { Cause::Reset } else { Cause::Segment };
            if connection.seen.state != State::TimeWait && connection.socket().state() == State::TimeWait {
                connection.remains = Remains::of(&segment);
            }
            if self.settle(index, now, cause) == Next::Now {
                self.work.push(index);
            }
            return;
        }
        let listener = if segment.opens() { self.find_listener(segment.local) } else { None };
        match self.time_wait.find(key, &segment, listener.is_some()) {
            Verdict::Unknown => {}
            Verdict::Replaced => self.ports.leave(segment.local.port()),
            Verdict::Ignore => return,
            Verdict::Acknowledge(remains) => {
                let checksums = match via {
                    Via::Ethernet => &self.checksums,
                    Via::Loopback => &ChecksumCapabilities::ignored(),
                };
                remains.acknowledge(via, key, frame, answer, checksums);
                return;
            }
        }
        match listener {
            Some(listener) => self.request(via, listener, segment, frame, answer, now),
            // smoltcp checks the segment and answers it with a reset.
            None => {
                let interface = match via {
                    Via::Ethernet => &mut self.ethernet,
                    Via::Loopback => &mut self.loopback,
                };
                poll_one(interface, &mut self.nobody, frame, answer, now);
            }
        }
    }

    fn find_listener(&self, local: SocketAddrV4) -> Option<u32> {
        if !self.is_own(*local.ip()) {
            return None;
        }
        let anywhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, local.port());
        self.listening.find(Key::only_local(local)).or_else(|| self.listening.find(Key::only_local(anywhere)))
    }

    /// A SYN for a listener.
    fn request<T: TxToken>(
        &mut self,
        via: Via,
        listener_index: u32,
        segment: Segment,
        frame: &[u8],
        answer: T,
        now: Instant,
    ) {
        let generation = self.listeners.generation(listener_index);
        let Some(listener) = self.listeners.get_mut(listener_index) else {
            return;
        };
        if !listener.has_room() {
            self.counters.requests_dropped += 1;
            return;
        }
        let holder = Holder::HalfOpen(ListenerId { index: listener_index, generation });
        let options = listener.options;
        let key = Key::new(segment.local, segment.remote);
        // A remote end that no host can have, or that would make the host talk to itself.
        if segment.remote.port() == 0 || segment.remote.ip().is_unspecified() || segment.local == segment.remote {
            return;
        }
        let made = Connection::new(key, via, holder, &options, now).and_then(|mut connection| {
            connection.socket_mut().listen(endpoint(segment.local)).map_err(|_| Error::Invalid)?;
            connection.look();
            self.add(connection)
        });
        let Ok(index) = made else {
            self.counters.requests_dropped += 1;
            return;
        };
        if let Some(listener) = self.listeners.get_mut(listener_index) {
            listener.half_open += 1;
        }
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        let interface = match via {
            Via::Ethernet => &mut self.ethernet,
            Via::Loopback => &mut self.loopback,
        };
        poll_one(interface, &mut connection.sockets, frame, answer, now);
        if connection.socket().state() != State::SynReceived {
            // The segment was damaged.
            self.discard(index);
        } else if self.settle(index, now, Cause::Segment) == Next::Now {
            self.work.push(index);
        }
    }

    /// Enters a connection everywhere. Nothing is changed if this fails.
    fn add(&mut self, connection: Connection) -> Result<u32, Error> {
        let index = self.connections.next_index()?;
        self.work.reserve(index)?;
        self.unresolved.reserve(index)?;
        self.timers.reserve(index)?;
        self.table.reserve()?;
        let key = connection.key;
        if self.table.find(key).is_some() {
            return Err(Error::AddressInUse);
        }
        self.ports.join(key.local().port())?;
        let added = self.connections.insert(connection).and_then(|index| {
            self.table.insert(key, index).inspect_err(|_| self.connections.remove(index))?;
            Ok(index)
        });
        match added {
            Ok(index) => {
                if let Some(connection) = self.connections.get_mut(index) {
                    connection.listed = true;
                }
                self.counters.connections_made += 1;
            }
            Err(_) => self.ports.leave(key.local().port()),
        }
        added
    }

    fn unreachable(&mut self, about: Quoted, local: SocketAddrV4, remote: SocketAddrV4, now: Instant) {
        match about {
            // Only a connection that is being made is given up: anybody can forge such a message, and an established
            // connection has better evidence.
            Quoted::Tcp => {
                if let Some(index) = self.table.find(Key::new(local, remote))
                    && let Some(connection) = self.connections.get_mut(index)
                    && connection.socket().state() == State::SynSent
                {
                    connection.failure = Some(Error::Unreachable);
                    connection.socket_mut().abort();
                    self.settle(index, now, Cause::Local);
                    self.bury(index);
                }
            }
            Quoted::Udp => {
                let index = self.datagram_table.find(Key::new(local, remote)).or_else(|| {
                    let anywhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, local.port());
                    self.datagram_table.find(Key::new(anywhere, remote))
                });
                if let Some(socket) = index.and_then(|index| self.datagrams.get_mut(index))
                    && socket.remote == Some(remote)
                {
                    socket.failure = Some(Error::Refused);
                    socket.receivers.wake();
                    socket.senders.wake();
                }
            }
        }
    }

    // What follows from it.

    /// Compares a connection with what was last seen of it, wakes those who care about the difference, and finds out when it
    /// wants its next turn. Everything that touches a socket ends here.
    fn settle(&mut self, index: u32, now: Instant, cause: Cause) -> Next {
        let Some(connection) = self.connections.get_mut(index) else {
            return Next::Gone;
        };
        let (before, seen) = connection.look();
        if seen.received > before.received {
            connection.receivers.wake();
        }
        if seen.unsent < before.unsent && !connection.senders.is_empty() && connection.has_room() {
            connection.senders.wake();
        }
        if seen.state != before.state {
            if self.changed(index, before.state, seen.state, cause, now) == Next::Gone {
                return Next::Gone;
            }
        } else if seen.unsent < before.unsent || (before.unsent == 0 && seen.unsent > 0) {
            self.be_patient(index, now);
        }
        self.schedule(index, now)
    }

    /// [`settle`](Self::settle) for operations: puts the connection into the work list if it has something to do.
    fn touch(&mut self, index: u32, now: Instant) {
        if self.settle(index, now, Cause::Local) == Next::Now {
            self.work.push(index);
        }
    }

    /// Follows a change of state.
    fn changed(&mut self, index: u32, before: State, state: State, cause: Cause, now: Instant) -> Next {
        let Some(connection) = self.connections.get_mut(index) else {
            return Next::Gone;
        };
        connection.wake_all();
        match state {
            // smoltcp returns a half-open connection that was reset to listening.
            State::Listen => {
                self.discard(index);
                return Next::Gone;
            }
            State::Closed => {
                if cause == Cause::Reset && connection.failure.is_none() {
                    connection.failure = match before {
                        State::SynSent => Some(Error::Refused),
                        State::LastAck | State::TimeWait | State::Closing => None,
                        _ => Some(Error::Reset),
                    };
                }
                connection.give_up_at = None;
                if connection.socket().remote_endpoint().is_none() {
                    return self.bury(index);
                }
                // Otherwise the other side is still to be told; `egress` does that and then buries.
                self.work.push(index);
                return Next::Gone;
            }
            _ if matches!(before, State::SynReceived) => {
                if let Holder::HalfOpen(id) = connection.holder {
                    match self.listeners.resolve(id.index, id.generation) {
                        Ok(listener_index) => {
                            connection.holder = Holder::Queued;
                            if let Some(listener) = self.listeners.get_mut(listener_index) {
                                listener.half_open = listener.half_open.saturating_sub(1);
                                // `has_room` reserved this place when the handshake began.
                                listener.queue.push_back(index);
                                listener.acceptors.wake();
                            }
                        }
                        Err(_) => {
                            connection.holder = Holder::Nobody;
                            self.orphans += 1;
                            connection.socket_mut().abort();
                            connection.look();
                            self.work.push(index);
                            return Next::Gone;
                        }
                    }
                }
            }
            State::TimeWait => {
                // The last acknowledgement is to be sent now; afterwards only what remains is kept.
                connection.give_up_at = None;
                self.work.push(index);
                return Next::Gone;
            }
            _ => {}
        }
        self.be_patient(index, now);
        Next::Later
    }

    /// Restarts the time that the other side has for its next step.
    fn be_patient(&mut self, index: u32, now: Instant) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        let orphan = connection.holder == Holder::Nobody;
        let socket = connection.socket();
        let patience_ns = match socket.state() {
            State::SynSent => Some(self.patience.connect_ns),
            State::SynReceived => Some(self.patience.handshake_ns),
            State::Established | State::CloseWait if socket.send_queue() > 0 => Some(self.patience.acknowledgement_ns),
            State::FinWait1 | State::Closing | State::LastAck if orphan => Some(self.patience.orphan_ns),
            State::FinWait1 | State::Closing | State::LastAck => Some(self.patience.acknowledgement_ns),
            State::FinWait2 if orphan => Some(self.patience.orphan_ns),
            _ => None,
        };
        connection.give_up_at = patience_ns.map(|ns| now + duration(ns));
    }

    /// When a connection wants its next turn; enters its timer.
    fn schedule(&mut self, index: u32, now: Instant) -> Next {
        let Some(connection) = self.connections.get_mut(index) else {
            return Next::Gone;
        };
        match connection.seen.state {
            // smoltcp would drop what has arrived when its own timer ends. `changed` has sent the
            // last acknowledgement on its way; answers to further segments come while they are polled.
            State::TimeWait => return Next::Later,
            State::Closed => return Next::Later,
            _ => {}
        }
        let interface = match connection.via {
            Via::Ethernet => &mut self.ethernet,
            Via::Loopback => &mut self.loopback,
        };
        let wanted = interface.poll_at(now, &connection.sockets);
        if wanted.is_some_and(|at| at <= now) {
            return Next::Now;
        }
        let deadline = [wanted, connection.deadline()].into_iter().flatten().min();
        if let Some(at) = deadline {
            self.timers.no_later_than(index, at);
        }
        Next::Later
    }

    /// Lets a connection send until it has nothing to send or had its turn.
    fn egress<L: Link>(&mut self, link: &mut L, index: u32, now: Instant) {
        for _ in 0..BURST {
            let Some(connection) = self.connections.get_mut(index) else {
                return;
            };
            if !connection.listed {
                return;
            }
            let via = connection.via;
            // The last acknowledgement is not delayed: it may be the only one that is still asked for.
            let time = match connection.socket().state() {
                State::TimeWait => now + ACKNOWLEDGEMENT_DELAY,
                _ => now,
            };
            let sent = match via {
                Via::Ethernet => {
                    self.ethernet.poll_egress(time, link, &mut connection.sockets) == PollResult::SocketStateChanged
                }
                Via::Loopback => {
                    let mut device = Loopback(self.frames[0].as_mut());
                    self.loopback.poll_egress(time, &mut device, &mut connection.sockets)
                        == PollResult::SocketStateChanged
                }
            };
            match connection.socket().state() {
                State::Closed => {
                    // The reset is sent, or cannot be.
                    connection.look();
                    self.bury(index);
                    self.carry(now);
                    return;
                }
                State::TimeWait => {
                    connection.look();
                    if connection.holder == Holder::Nobody {
                        self.retire(index, now);
                    }
                    self.carry(now);
                    return;
                }
                _ => {}
            }
            let next = self.settle(index, now, Cause::Local);
            if via == Via::Loopback && sent {
                self.carry(now);
            }
            match next {
                Next::Now if sent => {}
                Next::Now => {
                    // The device is full.
                    self.timers.no_later_than(index, now + RETRY);
                    return;
                }
                Next::Later if !sent && via == Via::Ethernet => {
                    // Perhaps the next hop's hardware address is not known yet.
                    self.unresolved.push(index);
                    return;
                }
                _ => return,
            }
        }
        self.work.push(index);
    }

    /// Takes the packet that a connection has written on the loopback interface to its receiver, and the
    /// answer back.
    fn carry(&mut self, now: Instant) {
        if self.frames[0].as_ref().is_none_or(|frame| frame.packet().is_none()) {
            return;
        }
        let [Some(mut full), Some(mut empty)] = core::mem::take(&mut self.frames) else {
            return;
        };
        for _ in 0..HOPS {
            let Some(packet) = full.packet() else {
                break;
            };
            self.counters.loopback_packets += 1;
            match classify_ipv4(packet) {
                Packet::Tcp(segment) => {
                    self.tcp_input(Via::Loopback, segment, packet, &mut empty, now);
                }
                _ => poll_one(&mut self.loopback, &mut self.nobody, packet, &mut empty, now),
            }
            full.clear();
            core::mem::swap(&mut full, &mut empty);
        }
        full.clear();
        self.frames = [Some(full), Some(empty)];
    }

    fn send_all<L: Link>(&mut self, link: &mut L, now: Instant) {
        for _ in 0..TURNS {
            let Some(index) = self.work.pop() else {
                break;
            };
            self.egress(link, index, now);
        }
        for _ in 0..TURNS {
            let Some(index) = self.datagram_work.pop() else {
                break;
            };
            self.udp_egress(link, index, now);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some(index) = self.timers.expired(now) {
            let Some(connection) = self.connections.get_mut(index) else {
                continue;
            };
            if connection.deadline().is_some_and(|at| at <= now) {
                if connection.failure.is_none() {
                    connection.failure = Some(Error::TimedOut);
                }
                connection.socket_mut().abort();
            }
            if self.settle(index, now, Cause::Local) == Next::Now {
                self.work.push(index);
            }
        }
        while let Some(index) = self.datagram_timers.expired(now) {
            self.datagram_work.push(index);
        }
        while let Some(key) = self.time_wait.expired(now) {
            self.ports.leave(key.local().port());
        }
    }

    /// Takes a connection out of the table: packets no longer find it. It goes altogether unless somebody
    /// is still to be told how it ended.
    fn bury(&mut self, index: u32) -> Next {
        let Some(connection) = self.connections.get_mut(index) else {
            return Next::Gone;
        };
        if connection.listed {
            connection.listed = false;
            self.table.remove(connection.key);
            self.ports.leave(connection.key.local().port());
            self.timers.remove(index);
        }
        match connection.holder {
            Holder::Nobody | Holder::HalfOpen(_) => self.discard(index),
            Holder::Queued | Holder::Application => connection.wake_all(),
        }
        Next::Gone
    }

    /// Removes every trace of a connection.
    fn discard(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        connection.wake_all();
        let (key, listed, holder) = (connection.key, connection.listed, connection.holder);
        if listed {
            self.table.remove(key);
            self.ports.leave(key.local().port());
        }
        self.timers.remove(index);
        self.connections.remove(index);
        match holder {
            Holder::HalfOpen(id) => {
                if let Ok(listener) = self.listener(id) {
                    listener.half_open = listener.half_open.saturating_sub(1);
                }
            }
            Holder::Nobody => self.orphans = self.orphans.saturating_sub(1),
            Holder::Queued | Holder::Application => {}
        }
    }

    /// Replaces a closed connection in TIME-WAIT by the few words that must be remembered of it.
    fn retire(&mut self, index: u32, now: Instant) {
        let Some(connection) = self.connections.get(index) else {
            return;
        };
        let (key, remains) = (connection.key, connection.remains);
        // The port stays in use until the time is over, or the memory for remembering is short.
        let remembered = self.ports.join(key.local().port()).is_ok();
        self.discard(index);
        if remembered {
            match self.time_wait.enter(key, remains, now) {
                Ok(None) => {}
                Ok(Some(oldest)) => self.ports.leave(oldest.local().port()),
                Err(_) => self.ports.leave(key.local().port()),
            }
        }
    }

    // Operations on TCP.

    fn tcp_bind(&mut self, local: SocketAddrV4, sharing: Sharing) -> Result<BindingId, Error> {
        if !local.ip().is_unspecified() && !self.is_own(*local.ip()) {
            return Err(Error::AddressUnavailable);
        }
        self.bindings.next_index()?;
        let local = self.ports.bind(local, sharing)?;
        let index = self.bindings.insert(Binding { local }).inspect_err(|_| self.ports.release(local))?;
        Ok(BindingId { index, generation: self.bindings.generation(index) })
    }

    /// Ends a binding; the port stays taken.
    fn take_binding(&mut self, id: BindingId) -> Result<SocketAddrV4, Error> {
        let index = self.bindings.resolve(id.index, id.generation)?;
        let local = self.bindings.get(index).ok_or(Error::Stale)?.local;
        self.bindings.remove(index);
        Ok(local)
    }

    fn tcp_listen(&mut self, binding: BindingId, backlog: usize, options: &TcpOptions) -> Result<ListenerId, Error> {
        let index = self.bindings.resolve(binding.index, binding.generation)?;
        let local = self.bindings.get(index).ok_or(Error::Stale)?.local;
        let backlog = backlog.clamp(1, self.limits.backlog.max(1));
        self.listening.reserve()?;
        let listener = self.listeners.insert(Listener::new(local, *options, backlog))?;
        self.listening.insert(Key::only_local(local), listener).inspect_err(|_| self.listeners.remove(listener))?;
        self.take_binding(binding)?;
        Ok(ListenerId { index: listener, generation: self.listeners.generation(listener) })
    }

    fn accept(&mut self, id: ListenerId) -> Result<Option<(ConnectionId, SocketAddrV4)>, Error> {
        while let Some(index) = self.listener(id)?.queue.pop_front() {
            let generation = self.connections.generation(index);
            let Some(connection) = self.connections.get_mut(index) else {
                continue;
            };
            connection.holder = Holder::Application;
            let remote = connection.key.remote();
            return Ok(Some((ConnectionId { index, generation }, remote)));
        }
        Ok(None)
    }

    fn close_listener(&mut self, id: ListenerId, now: Instant) -> Result<(), Error> {
        let listener = self.listener(id)?;
        listener.acceptors.wake();
        let local = listener.local;
        let queue = core::mem::take(&mut listener.queue);
        let half_open = listener.half_open;
        self.listening.remove(Key::only_local(local));
        self.ports.release(local);
        self.listeners.remove(id.index);
        for index in queue {
            self.give_up(index, now);
        }
        if half_open > 0 {
            for index in 0..self.connections.indices() {
                if self.connections.get(index).is_some_and(|connection| connection.holder == Holder::HalfOpen(id)) {
                    self.give_up(index, now);
                }
            }
        }
        Ok(())
    }

    fn tcp_connect(
        &mut self,
        from: Option<BindingId>,
        remote: SocketAddrV4,
        options: &TcpOptions,
        now: Instant,
    ) -> Result<ConnectionId, Error> {
        // As everywhere: a connection to no address in particular is one to this host.
        let remote =
            if remote.ip().is_unspecified() { SocketAddrV4::new(Ipv4Addr::LOCALHOST, remote.port()) } else { remote };
        if remote.port() == 0 {
            return Err(Error::Invalid);
        }
        let bound = match from {
            Some(id) => Some(self.binding_of(id)?),
            None => None,
        };
        let wanted = bound.map_or(Ipv4Addr::UNSPECIFIED, |local| *local.ip());
        let (via, address) = self.route_from(wanted, *remote.ip())?;
        if remote.ip().is_multicast()
            || remote.ip().is_broadcast()
            || (via == Via::Ethernet && self.network.broadcast() == Some(*remote.ip()))
        {
            return Err(Error::Unreachable);
        }
        let port = match bound {
            Some(local) => local.port(),
            None => {
                let (table, time_wait) = (&self.table, &self.time_wait);
                self.ports.ephemeral(|ports, port| {
                    let key = Key::new(SocketAddrV4::new(address, port), remote);
                    !ports.is_bound(port) && table.find(key).is_none() && !time_wait.contains(key)
                })?
            }
        };
        let local = SocketAddrV4::new(address, port);
        let key = Key::new(local, remote);
        // A connection from a port to itself would be two ends in one.
        if local == remote {
            return Err(Error::AddressUnavailable);
        }
        if self.table.find(key).is_some() || self.time_wait.contains(key) {
            return Err(Error::AddressInUse);
        }
        let mut connection = Connection::new(key, via, Holder::Application, options, now)?;
        let interface = match via {
            Via::Ethernet => &mut self.ethernet,
            Via::Loopback => &mut self.loopback,
        };
        connection
            .socket_mut()
            .connect(interface.context(), ip_endpoint(remote), endpoint(local))
            .map_err(|_| Error::Invalid)?;
        let index = self.add(connection)?;
        if let Some(id) = from {
            let local = self.take_binding(id)?;
            self.ports.release(local);
        }
        self.touch(index, now);
        Ok(ConnectionId { index, generation: self.connections.generation(index) })
    }

    fn binding_of(&self, id: BindingId) -> Result<SocketAddrV4, Error> {
        let index = self.bindings.resolve(id.index, id.generation)?;
        self.bindings.get(index).map(|binding| binding.local).ok_or(Error::Stale)
    }

    fn send_with(
        &mut self,
        id: ConnectionId,
        mut fill: impl FnMut(&mut [u8]) -> usize,
        now: Instant,
    ) -> Result<Sent, Error> {
        let connection = self.connection(id)?;
        if let Some(failure) = connection.failure.take() {
            return Err(failure);
        }
        let socket = connection.socket_mut();
        if !socket.may_send() {
            return Err(match socket.state() {
                State::SynSent | State::SynReceived => Error::NotConnected,
                _ => Error::Closed,
            });
        }
        if !socket.can_send() {
            return Ok(Sent::Full);
        }
        let mut total = 0;
        // The buffer is a ring: at most two contiguous parts.
        for _ in 0..2 {
            let step = socket.send(|room| {
                let filled = if room.is_empty() { 0 } else { fill(room).min(room.len()) };
                (filled, (filled, room.len()))
            });
            let Ok((filled, offered)) = step else {
                break;
            };
            total += filled;
            if filled < offered || offered == 0 {
                break;
            }
        }
        if total > 0 {
            self.touch(id.index, now);
        }
        Ok(Sent::Bytes(total))
    }

    fn receive_with(
        &mut self,
        id: ConnectionId,
        mut take: impl FnMut(&[u8]) -> usize,
        now: Instant,
    ) -> Result<Received, Error> {
        let connection = self.connection(id)?;
        let shut = connection.receiving == Receiving::Shut;
        let socket = connection.socket_mut();
        if !socket.can_recv() {
            let state = socket.state();
            if let Some(failure) = connection.failure.take() {
                return Err(failure);
            }
            return match state {
                State::SynSent | State::SynReceived => Err(Error::NotConnected),
                State::Established | State::FinWait1 | State::FinWait2 if !shut => Ok(Received::Nothing),
                _ => Ok(Received::End),
            };
        }
        let mut total = 0;
        for _ in 0..2 {
            let step = socket.recv(|bytes| {
                let taken = if bytes.is_empty() { 0 } else { take(bytes).min(bytes.len()) };
                (taken, (taken, bytes.len()))
            });
            let Ok((taken, offered)) = step else {
                break;
            };
            total += taken;
            if taken < offered || offered == 0 || !socket.can_recv() {
                break;
            }
        }
        if total > 0 {
            self.touch(id.index, now);
        }
        Ok(Received::Bytes(total))
    }

    fn shutdown(&mut self, id: ConnectionId, how: Shutdown, now: Instant) -> Result<(), Error> {
        let connection = self.connection(id)?;
        if matches!(connection.socket().state(), State::Closed | State::SynSent | State::Listen) {
            return Err(Error::NotConnected);
        }
        if matches!(how, Shutdown::Receive | Shutdown::Both) {
            connection.receiving = Receiving::Shut;
            connection.receivers.wake();
        }
        if matches!(how, Shutdown::Send | Shutdown::Both) {
            connection.socket_mut().close();
            self.touch(id.index, now);
        }
        Ok(())
    }

    fn close(&mut self, id: ConnectionId, now: Instant) -> Result<(), Error> {
        let limit = self.limits.orphans;
        let crowded = self.orphans >= limit;
        let connection = self.connection(id)?;
        connection.wake_all();
        let socket = connection.socket();
        let unread = socket.can_recv();
        match socket.state() {
            State::Closed if !connection.listed => {
                self.discard(id.index);
                return Ok(());
            }
            // Nobody has answered yet, so nobody need be told.
            State::SynSent => {
                self.discard(id.index);
                return Ok(());
            }
            State::TimeWait => {
                connection.holder = Holder::Nobody;
                self.orphans += 1;
                // If the last acknowledgement is still to be sent, `egress` retires the connection after that.
                self.work.push(id.index);
                return Ok(());
            }
            _ => {}
        }
        connection.holder = Holder::Nobody;
        if unread || crowded {
            connection.socket_mut().abort();
        } else {
            connection.socket_mut().close();
        }
        self.orphans += 1;
        self.be_patient(id.index, now);
        self.touch(id.index, now);
        Ok(())
    }

    fn abort(&mut self, id: ConnectionId, now: Instant) -> Result<(), Error> {
        self.connection(id)?;
        self.give_up(id.index, now);
        Ok(())
    }

    /// Ends a connection with a reset and forgets it.
    fn give_up(&mut self, index: u32, now: Instant) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        if !connection.listed {
            self.discard(index);
            return;
        }
        if let Holder::HalfOpen(id) = connection.holder
            && let Ok(listener) = self.listener(id)
        {
            listener.half_open = listener.half_open.saturating_sub(1);
        }
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        if connection.holder != Holder::Nobody {
            connection.holder = Holder::Nobody;
            self.orphans += 1;
        }
        connection.wake_all();
        connection.socket_mut().abort();
        self.touch(index, now);
    }

    // Datagrams.

    fn udp_bind(&mut self, local: SocketAddrV4, options: &DatagramOptions) -> Result<DatagramId, Error> {
        if !local.ip().is_unspecified() && !self.is_own(*local.ip()) {
            return Err(Error::AddressUnavailable);
        }
        let index = self.datagrams.next_index()?;
        self.datagram_work.reserve(index)?;
        self.datagram_timers.reserve(index)?;
        let local = self.datagram_ports.bind(local, Sharing::Exclusive)?;
        let made = Datagrams::new(local, *options).and_then(|socket| self.datagrams.insert(socket)).and_then(|index| {
            self.datagram_table.insert(Key::only_local(local), index).inspect_err(|_| self.datagrams.remove(index))?;
            Ok(index)
        });
        let index = made.inspect_err(|_| self.datagram_ports.release(local))?;
        Ok(DatagramId { index, generation: self.datagrams.generation(index) })
    }

    fn udp_connect(&mut self, id: DatagramId, remote: Option<SocketAddrV4>) -> Result<(), Error> {
        if let Some(remote) = remote {
            if remote.port() == 0 {
                return Err(Error::Invalid);
            }
            let local = *self.datagram(id)?.local.ip();
            self.route_from(local, *remote.ip())?;
        }
        let socket = self.datagram(id)?;
        socket.failure = None;
        let old = key_of(socket);
        let previous = socket.remote;
        socket.remote = remote;
        let new = key_of(socket);
        if old != new {
            if let Err(error) = self.datagram_table.insert(new, id.index) {
                self.datagram(id)?.remote = previous;
                return Err(error);
            }
            self.datagram_table.remove(old);
        }
        Ok(())
    }

    /// Who receives a datagram. A port has one owner for each address, so at most one of these exists: a socket bound to
    /// the address or to all addresses, connected to nobody or to the sender.
    fn find_datagrams(&self, local: SocketAddrV4, remote: SocketAddrV4) -> Option<u32> {
        let anywhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, local.port());
        self.datagram_table
            .find(Key::only_local(local))
            .or_else(|| self.datagram_table.find(Key::only_local(anywhere)))
            .or_else(|| self.datagram_table.find(Key::new(local, remote)))
            .or_else(|| self.datagram_table.find(Key::new(anywhere, remote)))
    }

    fn udp_input<T: TxToken>(
        &mut self,
        local: SocketAddrV4,
        remote: SocketAddrV4,
        frame: &[u8],
        answer: T,
        now: Instant,
    ) {
        let for_us =
            self.is_own(*local.ip()) || local.ip().is_broadcast() || self.network.broadcast() == Some(*local.ip());
        let receiver = self.find_datagrams(local, remote).and_then(|index| self.datagrams.get_mut(index));
        match receiver {
            Some(socket) if for_us => {
                if let Some(payload) = datagram_payload(frame, &self.checksums)
                    && !socket.deliver(remote, payload.len(), |room| room.copy_from_slice(payload))
                {
                    self.counters.datagrams_dropped += 1;
                }
            }
            // smoltcp checks the datagram and answers that the port is unreachable.
            _ => poll_one(&mut self.ethernet, &mut self.nobody, frame, answer, now),
        }
    }

    fn udp_send_with(
        &mut self,
        id: DatagramId,
        to: Option<SocketAddrV4>,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Sent, Error> {
        let mtu = self.ethernet_mtu;
        let socket = self.datagram(id)?;
        if let Some(failure) = socket.failure.take() {
            return Err(failure);
        }
        let to = to.or(socket.remote).ok_or(Error::NotConnected)?;
        let local = socket.local;
        let to = if to.ip().is_unspecified() { SocketAddrV4::new(Ipv4Addr::LOCALHOST, to.port()) } else { to };
        if to.port() == 0 {
            return Err(Error::Invalid);
        }
        let (via, address) = self.route_from(*local.ip(), *to.ip())?;
        match via {
            Via::Loopback => {
                if length > LONGEST {
                    return Err(Error::TooLong);
                }
                let from = SocketAddrV4::new(address, local.port());
                match self.find_datagrams(to, from) {
                    Some(index) => {
                        let mut taken = false;
                        if let Some(receiver) = self.datagrams.get_mut(index) {
                            taken = receiver.deliver(from, length, fill);
                        }
                        if !taken {
                            self.counters.datagrams_dropped += 1;
                        }
                    }
                    // What an unreachable port would report, without the packets.
                    None => {
                        let socket = self.datagram(id)?;
                        if socket.remote == Some(to) {
                            socket.failure = Some(Error::Refused);
                            socket.receivers.wake();
                        }
                    }
                }
                Ok(Sent::Bytes(length))
            }
            Via::Ethernet => {
                // 20 bytes of IPv4 header, 8 of UDP header; fragments are not sent.
                if length + 28 > mtu {
                    return Err(Error::TooLong);
                }
                let socket = self.datagram(id)?;
                if length > socket.options.send_buffer {
                    return Err(Error::TooLong);
                }
                let mut meta = UdpMetadata::from(ip_endpoint(to));
                meta.local_address = Some(IpAddress::Ipv4(address));
                match socket.departing()?.send(length, meta) {
                    Ok(room) => fill(room),
                    Err(smoltcp::socket::udp::SendError::BufferFull) => return Ok(Sent::Full),
                    Err(_) => return Err(Error::Unreachable),
                }
                self.datagram_work.push(id.index);
                Ok(Sent::Bytes(length))
            }
        }
    }

    fn udp_egress<L: Link>(&mut self, link: &mut L, index: u32, now: Instant) {
        let Some(socket) = self.datagrams.get_mut(index) else {
            return;
        };
        let Some(sockets) = &mut socket.departing else {
            return;
        };
        let mut sent = 0;
        while sent < BURST && self.ethernet.poll_egress(now, link, sockets) != PollResult::None {
            sent += 1;
        }
        if sent > 0 {
            socket.senders.wake();
        }
        match self.ethernet.poll_at(now, sockets) {
            Some(at) if at <= now && sent == BURST => self.datagram_work.push(index),
            // The device is full.
            Some(at) if at <= now => self.datagram_timers.no_later_than(index, now + RETRY),
            Some(at) => self.datagram_timers.no_later_than(index, at),
            None => {}
        }
    }

    fn udp_close(&mut self, id: DatagramId) -> Result<(), Error> {
        let socket = self.datagram(id)?;
        socket.receivers.wake();
        socket.senders.wake();
        let (key, local) = (key_of(socket), socket.local);
        self.datagram_table.remove(key);
        self.datagram_ports.release(local);
        self.datagram_timers.remove(id.index);
        self.datagrams.remove(id.index);
        Ok(())
    }
}

fn key_of(socket: &Datagrams) -> Key {
    match socket.remote {
        Some(remote) => Key::new(socket.local, remote),
        None => Key::only_local(socket.local),
    }
}

/// Gives one packet to one socket set.
fn poll_one<T: TxToken>(
    interface: &mut Interface,
    sockets: &mut SocketSet<'static>,
    frame: &[u8],
    answer: T,
    now: Instant,
) {
    let mut device = Arrived { frame: Some(frame), answer: Some(answer) };
    interface.poll_ingress_single(now, &mut device, sockets);
}

/// The payload of the datagram in an Ethernet frame, if its lengths and checksums are right.
fn datagram_payload<'frame>(frame: &'frame [u8], checksums: &ChecksumCapabilities) -> Option<&'frame [u8]> {
    let packet = Ipv4Packet::new_checked(frame.get(14..)?).ok()?;
    if checksums.ipv4.rx() && !packet.verify_checksum() {
        return None;
    }
    let (source, destination) = (packet.src_addr().into(), packet.dst_addr().into());
    let datagram = UdpPacket::new_checked(packet.payload()).ok()?;
    UdpRepr::parse(&datagram, &source, &destination, checksums).ok()?;
    Some(datagram.payload())
}

fn ip_endpoint(endpoint: SocketAddrV4) -> IpEndpoint {
    IpEndpoint::new(IpAddress::Ipv4(*endpoint.ip()), endpoint.port())
}

fn endpoint(endpoint: SocketAddrV4) -> smoltcp::wire::IpListenEndpoint {
    smoltcp::wire::IpListenEndpoint { addr: Some(IpAddress::Ipv4(*endpoint.ip())), port: endpoint.port() }
}
