//! The stack: the socket operations for a kernel, and the poll that drives all work.

use alloc::sync::Arc;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use core::num::NonZeroU32;
use core::task::Waker;

use ::tcp::Information;
use ethernet::{BEGINNING, Link};
use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketSet};
use smoltcp::phy::DeviceCapabilities;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, Ipv4Cidr};

use crate::Error;
use crate::arrivals::{Allowance, Arrivals, Reader, Taken, Turn, Waiting};
use crate::charge::{Need, Owner};
use crate::checksum;
use crate::configuration::{
    Address, Addressing, Configuration, Counters, Interest, Lease, LocalConnections, Readiness, Received, Sent,
    Shutdown, SixAddress, SixAddressing,
};
use crate::dhcp;
use crate::frame::Packet;
use crate::half_open::HalfOpen;
use crate::host::{FAR_AWAY, HEARD_LAST, Host, Interfaces, NO_CONNECTION, SixAllowances, interface_of_six};
use crate::link::{self, Answer, Described, Frame};
use crate::listing::{ListedState, state_of};
use crate::packets::{self, FrameOrigin, PacketCounts, Tapped};
use crate::reports::{Report, Reports};
use crate::resolution::Resolution;
use crate::schedule::{Timers, WorkList};
use crate::secrets::{Secret, halves};
use crate::six::SixNetwork;
use crate::slab::{BindingId, ConnectionId, DatagramId, ListenerId, PacketSocketId, Slab};
use crate::table::{Hash, LocalEnd, Ports, SharedTable, Sharing, Table};
use crate::tcp::{Coalescing, Engine, Keepalive, TcpOptions, Wire, duration};
use crate::time_wait::TimeWait;
use crate::udp::{DatagramOptions, Origin, Payload};

/// Number of frames that one `poll` handles, so that others get their turn.
const BATCH: usize = 8;
/// Number of frames that one `poll` looks at.
const LOOKS: usize = 32;
/// Number of frames that it looks at before it finds one with a reader: of a flood there are many more.
const GLANCES: usize = 8;
/// Number of frames that one `poll` puts behind others.
const MOVES: usize = 32;

/// TCP, UDP, ICMP and ARP over one Ethernet link, and connections within the host. See the [crate
/// documentation](crate).
pub struct Stack<L: Link> {
    link: Tapped<L>,
    host: Host,
    arrivals: Arrivals,
}

/// Chooses the order of the work in a [poll](Stack::poll_in_order), and observes whose work it is.
///
/// [`look`](Self::look) and [`begin`](Self::begin) each start a step, and thereby end the one before.
pub trait Order {
    /// Starts a look at arrived frames, which counts for no reader, or ends the poll. Returns the time of arrival of
    /// frames seen for the first time, in a unit of the implementer's choice; it must not go back.
    fn look(&mut self) -> u64;

    /// Decides about the next frame in order. The answer [`Turn::Handle`] starts its handling.
    fn decide(&mut self, waiting: &Waiting) -> Turn;

    /// Starts other work for this reader: sending segments, an expired timer. `false`: not in this poll.
    fn begin(&mut self, reader: Reader) -> bool;
}

/// First come, first served.
struct AsItComes;

impl Order for AsItComes {
    fn look(&mut self) -> u64 {
        0
    }

    fn decide(&mut self, _: &Waiting) -> Turn {
        Turn::Handle
    }

    fn begin(&mut self, _: Reader) -> bool {
        true
    }
}

/// Work left by a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Time of the next timer. If it has passed, more timers have expired than one poll handles.
    pub next: Option<u64>,
    /// Whether there is more to be sent.
    pub has_work: bool,
    /// Next frame in order, if frames wait.
    pub waiting: Option<Waiting>,
    /// Time of arrival of the oldest waiting frame that is not overdue.
    pub oldest: Option<u64>,
    /// Whether the poll was told to [stop](Turn::Stop).
    pub is_stopped: bool,
    /// Whether frames may have arrived that were not looked at; they may be important.
    pub some_are_unseen: bool,
    /// Whether frames were looked at for the first time, and none was handled.
    pub has_only_looked: bool,
    /// Whether the poll ended early to let others have their turn; frames are left.
    pub is_cut_short: bool,
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1000) as i64)
}

/// Share of the arrived frames that was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    All,
    /// The queue of arrivals is full.
    Full,
    /// There may be more, after others had their turn.
    Some,
}

/// Makes the interfaces.
fn interfaces(
    capabilities: &DeviceCapabilities,
    hardware: EthernetAddress,
    seed: [u8; 16],
    now: Instant,
) -> Interfaces {
    let [ethernet_seed, seed_of_six] = halves(seed);
    let mut config = InterfaceConfig::new(HardwareAddress::Ethernet(hardware));
    config.random_seed = ethernet_seed;
    let ethernet = Interface::new(config, &mut Described(capabilities.clone()), now);
    Interfaces { ethernet, six: interface_of_six(capabilities, capabilities.ip_mtu(), seed_of_six, now) }
}

impl<L: Link> Stack<L> {
    /// Makes a stack on `link`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that no host can have or a link whose frames are too small;
    /// [`Error::OutOfMemory`].
    pub fn new(link: L, configuration: &Configuration, now_ns: u64) -> Result<Self, Error> {
        let now = instant(now_ns);
        let hardware = EthernetAddress(link.hardware_address());
        if link.largest_frame() < 14 + 576 || !hardware.is_unicast() {
            return Err(Error::Invalid);
        }
        let capabilities = link::capabilities(&link);
        let checksums = capabilities.checksum.clone();
        let capabilities = checksum::of_interfaces(capabilities);
        let seeds = configuration.seeds;
        let frames = match configuration.local_connections {
            LocalConnections::Joined => [None, None],
            LocalConnections::Packets => [Some(Frame::new()?), Some(Frame::new()?)],
        };

        let hash = Hash::new(seeds.tables);
        let limits = configuration.limits;
        let patience = configuration.patience;
        let mut host = Host {
            interfaces: interfaces(&capabilities, hardware, seeds.interfaces, now),
            frames,
            own: Ipv4Addr::UNSPECIFIED,
            hardware: hardware.0,
            network: Ipv4Cidr::new(Ipv4Addr::UNSPECIFIED, 32),
            gateway: None,
            ethernet_mtu: capabilities.ip_mtu(),
            six: SixNetwork::new(hardware.0, capabilities.ip_mtu(), Secret::new(seeds.addresses)),
            checksums,
            four: Resolution::default(),
            capabilities: capabilities.clone(),
            answers_of_six: SixAllowances::NEW,
            strays: Allowance::NEW,
            refusals: Allowance::NEW,
            limits,
            admits: |_| true,
            patience,
            local_connections: configuration.local_connections,
            counters: Counters::default(),
            sequence_numbers: Secret::new(seeds.sequence_numbers),
            cookies: Secret::new(seeds.cookies),
            connections: Slab::new(limits.connections),
            table: Table::new(hash),
            work: WorkList::new(),
            timers: Timers::new(),
            unresolved: WorkList::new(),
            urgent_arps: Allowance::NEW,
            heard_last: [NO_CONNECTION; HEARD_LAST],
            orphans: 0,
            delivered: 0,
            half_open: HalfOpen::new(hash, limits.half_open),
            time_wait: TimeWait::new(hash, limits.time_wait, duration(patience.time_wait_ns)),
            listeners: Slab::new(limits.listeners),
            listening: SharedTable::new(hash),
            bindings: Slab::new(limits.listeners),
            ports: Ports::new(hash, Secret::new(seeds.tcp_ports))?,
            datagrams: Slab::new(limits.datagrams),
            datagram_table: SharedTable::new(hash),
            datagram_ports: Ports::new(hash, Secret::new(seeds.udp_ports))?,
            echo_table: SharedTable::new(hash),
            identifiers: Ports::new(hash, Secret::new(seeds.identifiers))?,
            raws: alloc::vec::Vec::new(),
            packets: packets::none(),
            datagram_work: WorkList::new(),
            datagram_timers: Timers::new(),
            stray: SocketSet::new(alloc::vec::Vec::new()),
            dhcp: None,
            lease: None,
            claim: None,
            unswept: 0,
            look_at_addresses: FAR_AWAY,
        };
        match configuration.address {
            Addressing::Nowhere => {}
            Addressing::Fixed(address) => host.set_address(address)?,
            Addressing::Leased => {
                let secret = Secret::new(seeds.leases);
                // Not for programs: answers go to the client.
                host.datagram_ports
                    .bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, dhcp::CLIENT_PORT).into(), Sharing::Exclusive)?;
                host.dhcp = Some(dhcp::Client::new(hardware.0, host.ethernet_mtu, secret, now));
            }
        }
        match configuration.six {
            SixAddressing::Off => {}
            SixAddressing::LinkLocal => host.six.start(false, now),
            SixAddressing::Automatic => host.six.start(true, now),
        }
        host.set_look_at_addresses(now);
        let arrivals = Arrivals::new(limits.arrivals, capabilities.max_transmission_unit)?;
        Ok(Stack { link: Tapped::new(link), host, arrivals })
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Sets the function that admits memory. From now on it is called before the stack takes memory for a stranger's
    /// request or for a byte sent within the host. While it refuses, requests are dropped as if the backlog were full,
    /// so that the other side asks again; senders within the host wait until their earlier bytes are received, or get
    /// [`Error::OutOfMemory`] if there are none.
    ///
    /// Explicit requests (`tcp_listen`, `udp_bind`, `tcp_connect`) are admitted by the caller.
    pub fn set_admission(&mut self, admits: fn(Need) -> bool) {
        self.host.admits = admits;
    }

    /// Returns the bytes of memory of a connection, with its buffers.
    pub fn connection_memory(&mut self, id: ConnectionId) -> Result<usize, Error> {
        Ok(self.host.connection(id)?.memory())
    }

    /// Returns the bytes of memory of the connections that wait to be accepted.
    pub fn listener_memory(&mut self, id: ListenerId) -> Result<usize, Error> {
        self.host.listener_memory(id)
    }

    /// Returns the bytes of memory of a datagram socket's buffers.
    pub fn datagram_memory(&mut self, id: DatagramId) -> Result<usize, Error> {
        Ok(self.host.datagram(id)?.memory())
    }

    /// Returns the device below.
    pub fn link(&mut self) -> &mut L {
        &mut self.link.link
    }

    /// Returns the counts of events so far.
    pub fn counters(&self) -> Counters {
        self.host.counters
    }

    /// Returns the number of connections in any state but TIME-WAIT, and the number in TIME-WAIT.
    pub fn connection_counts(&self) -> (usize, usize) {
        (self.host.connections.len(), self.host.time_wait.len())
    }

    /// Whether a connection that was closed here still has something to send, or to hear that it has arrived.
    ///
    /// Each call looks at some connections, and says that there may be one until it has looked at all: the caller ends
    /// the machine, and asks until none is left.
    pub fn is_delivering(&mut self) -> bool {
        self.host.is_delivering()
    }

    /// Returns how many further connections, and how many further datagram sockets, the limits allow.
    pub fn free_counts(&self) -> (usize, usize) {
        (self.host.connections.free(), self.host.datagrams.free())
    }

    /// Returns the number of requests for connections that were answered and not yet acknowledged.
    pub fn half_open_count(&self) -> usize {
        self.host.half_open.len()
    }

    /// Returns the host's address on the Ethernet interface.
    pub fn address(&self) -> Option<Ipv4Addr> {
        (!self.host.own.is_unspecified()).then_some(self.host.own)
    }

    /// Returns what a DHCP server has lent, if this is the source of the address and the server has answered.
    pub fn lease(&self) -> Option<&Lease> {
        self.host.lease.as_ref()
    }

    /// Returns the host's own hardware address, and the size of the largest packet that it sends.
    pub fn interface(&self) -> ([u8; 6], usize) {
        (self.host.hardware, self.host.ethernet_mtu)
    }

    /// Returns the host's place in an IPv4 network.
    pub fn place(&self) -> Option<Address> {
        let address = self.address()?;
        Some(Address { address, prefix: self.host.network.prefix_len(), gateway: self.host.gateway })
    }

    /// Returns the host's addresses of IPv6 on the Ethernet interface.
    pub fn six_addresses(&self) -> impl Iterator<Item = SixAddress> {
        self.host.six.addresses()
    }

    /// Returns the networks of IPv6 whose hosts are neighbours, with the number of bits that name each.
    pub fn six_prefixes(&self) -> impl Iterator<Item = (Ipv6Addr, u8)> {
        self.host.six.link_prefixes()
    }

    /// Returns the routers of IPv6, the preferred ones first.
    pub fn six_routers(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.host.six.routers()
    }

    /// Returns the servers that resolve names which routers of IPv6 have advertised.
    pub fn six_name_servers(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.host.six.name_servers()
    }

    /// Does all work that is due: takes arrived frames, handles expired timers, sends. Returns the time of the next
    /// call, if no event comes before; a time that has passed means at once, after others had their turn.
    pub fn poll(&mut self, now_ns: u64) -> Option<u64> {
        let Polled { next, has_work, is_cut_short, .. } = self.poll_in_order(now_ns, &mut AsItComes);
        if has_work || is_cut_short { Some(now_ns) } else { next }
    }

    /// Works as [`poll`](Self::poll) does, for a caller with more important work than some frames, and tells it whose
    /// work the rest is. The most important frames come first; see [`set_reader`](Self::set_reader).
    pub fn poll_in_order(&mut self, now_ns: u64, order: &mut impl Order) -> Polled {
        let now = instant(now_ns);
        let (mut handled, mut looks, mut moves) = (0, LOOKS, MOVES);
        let (mut stopped, mut is_over, mut some_are_unseen) = (false, false, false);
        while handled < BATCH && moves > 0 {
            // All frames that have arrived are looked at before one is handled, and again before the next: the last may
            // be the most important.
            let seen = self.look(&mut looks, order.look(), now);
            some_are_unseen = seen != Seen::All;
            // A flood of frames without a reader does not stop this loop: some are handled in each poll.
            if seen == Seen::Some && (handled > 0 || self.arrivals.next().is_none()) {
                break;
            }
            let Some(waiting) = self.arrivals.next() else {
                is_over = true;
                break;
            };
            match order.decide(&waiting) {
                Turn::Behind(level) if self.arrivals.put_behind(level) => moves -= 1,
                Turn::Stop => {
                    if seen == Seen::Full {
                        let dropped = self.arrivals.drop_least(|kept| self.link.drop_kept(kept));
                        self.host.counters.arrivals_dropped += dropped as u64;
                        continue;
                    }
                    (stopped, is_over) = (true, seen == Seen::All);
                    break;
                }
                Turn::Later => break,
                Turn::Handle | Turn::Behind(_) => {
                    handled += 1;
                    if let Some(Taken { packet, connection, kept, frame, spare }) = self.arrivals.take() {
                        if let Some(kept) = kept {
                            self.link.take_kept(kept, frame);
                        }
                        let answer = Answer { link: &mut self.link, room: spare };
                        self.host.ethernet_input(packet, connection, frame, answer, now);
                    }
                }
            }
        }
        let _ = order.look();
        if self.host.look_at_addresses <= now {
            self.host.keep_addresses(&mut self.link, now);
        }
        self.host.expire_records(&mut self.link, now);
        self.host.expire(now, |reader| order.begin(reader));
        if self.host.has_work() {
            self.host.send(&mut self.link, now, |reader| order.begin(reader));
        }
        self.link.flush();
        self.link.show_leaving(&mut self.host);
        let _ = order.look();
        Polled {
            next: self.host.deadline(),
            has_work: self.host.has_work(),
            waiting: self.arrivals.next(),
            oldest: self.arrivals.oldest(),
            is_stopped: stopped,
            some_are_unseen,
            has_only_looked: looks < LOOKS && handled == 0,
            is_cut_short: !is_over,
        }
    }

    /// Enters arrived frames in order. `looks` is the number of frames that may still be looked at.
    fn look(&mut self, looks: &mut usize, arrived: u64, now: Instant) -> Seen {
        loop {
            let is_flooded = *looks == LOOKS - GLANCES && self.arrivals.are_of_nobody();
            let Some(room) = self.arrivals.room() else { return Seen::Full };
            if *looks == 0 || is_flooded {
                return Seen::Some;
            }
            let Some(mut frame) = self.link.receive_into(room) else { return Seen::All };
            *looks -= 1;
            self.host.counters.frames_received += 1;
            let length = frame.length.min(room.len());
            let mut packet = self.host.classify(&room[..if frame.kept.is_some() { BEGINNING } else { length }], length);
            if let (Some(kept), Packet::Drop | Packet::Other | Packet::Echo(_) | Packet::Message(_)) =
                (frame.kept, packet)
            {
                // Its headers may be longer.
                self.link.take_kept(kept, &mut room[..length]);
                frame.kept = None;
                packet = self.host.classify(&room[..length], length);
            }
            if !self.host.is_for_nobody(&packet, now) || self.host.has_packet_sockets() {
                let receiver = self.host.receiver_of(&packet, now);
                self.arrivals.enter(frame, arrived, receiver, packet);
            } else if let Some(kept) = frame.kept {
                self.link.drop_kept(kept);
            }
        }
    }

    /// Moves frames that arrived before this time, and still wait, before all others.
    pub fn boost_arrivals(&mut self, before: u64) {
        self.arrivals.boost(before);
    }

    /// Moves the frames of an owner that were put [behind](Turn::Behind) back to their readers' levels.
    pub fn restore_arrivals(&mut self, owner: u32) {
        self.arrivals.restore(owner);
    }

    /// Sets the task that waits for input of a connection. The last registration or call counts.
    pub fn set_reader(&mut self, id: ConnectionId, reader: Reader) {
        if let Ok(connection) = self.host.connection(id) {
            connection.reader = reader;
        }
    }

    /// Whether a task waits for input of a connection.
    pub fn is_read(&mut self, id: ConnectionId) -> bool {
        self.host.connection(id).is_ok_and(|connection| !connection.waiters(Interest::Receive).is_empty())
    }

    /// Whether a task waits for connections.
    pub fn is_accepted(&mut self, id: ListenerId) -> bool {
        self.host.listener(id).is_ok_and(|listener| !listener.acceptors.is_empty())
    }

    /// Whether a task waits for datagrams.
    pub fn are_datagrams_read(&mut self, id: DatagramId) -> bool {
        self.host.datagram(id).is_ok_and(|socket| !socket.waiters(Interest::Receive).is_empty())
    }

    /// Sets the task that waits for room to send, that is for acknowledgements: counts only if no task waits for input,
    /// or if this one is more important.
    pub fn set_writer(&mut self, id: ConnectionId, writer: Reader) {
        let is_read = self.is_read(id);
        if let Ok(connection) = self.host.connection(id) {
            connection.reader = connection.reader.or_writer(writer, is_read);
        }
    }

    /// Sets the task that waits for a listener's connections: the reader of requests, and of connections not yet
    /// accepted.
    pub fn set_acceptor(&mut self, id: ListenerId, reader: Reader) {
        if let Ok(listener) = self.host.listener(id) {
            listener.reader = reader;
        }
    }

    /// Sets the task that waits for datagrams.
    pub fn set_datagram_reader(&mut self, id: DatagramId, reader: Reader) {
        if let Ok(socket) = self.host.datagram(id) {
            socket.reader = reader;
        }
    }

    /// Sets the task that waits for room to send, as [`set_writer`](Self::set_writer) does, for a datagram socket.
    pub fn set_datagram_writer(&mut self, id: DatagramId, writer: Reader) {
        let is_read = self.are_datagrams_read(id);
        if let Ok(socket) = self.host.datagram(id) {
            socket.reader = socket.reader.or_writer(writer, is_read);
        }
    }

    /// Whether an operation has left something to be sent.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.host.has_work()
    }

    /// Sends the segments that an operation has left to be sent, the part of [`poll`](Self::poll) needed after it:
    /// looks neither for arrivals nor at the clock. Costs next to nothing without such segments, as after all
    /// operations on connections within this host. Returns the same time as `poll`.
    pub fn flush(&mut self, now_ns: u64) -> Option<u64> {
        let now = instant(now_ns);
        if self.host.has_work() {
            self.host.send_new(&mut self.link, now);
            self.link.flush();
            self.link.show_leaving(&mut self.host);
        }
        if self.host.has_work() { Some(now_ns) } else { self.host.deadline() }
    }

    /// Takes a local TCP port: `0.0.0.0` stands for all addresses, port 0 for any free ephemeral port.
    ///
    /// # Errors
    /// [`Error::AddressUnavailable`], [`Error::AddressInUse`], [`Error::Limit`], [`Error::OutOfMemory`].
    #[doc(alias = "bind")]
    pub fn tcp_bind(&mut self, local: impl Into<LocalEnd>, sharing: Sharing) -> Result<BindingId, Error> {
        self.host.tcp_bind(local.into(), sharing)
    }

    /// Returns the address and port that a binding took.
    pub fn binding_endpoint(&self, id: BindingId) -> Result<SocketAddr, Error> {
        Ok(self.host.binding(id)?.address)
    }

    /// Frees a bound port.
    pub fn release(&mut self, id: BindingId) -> Result<(), Error> {
        let local = self.host.take_binding(id)?;
        self.host.ports.release(local);
        Ok(())
    }

    /// Accepts connections on a bound port from now on. The binding becomes the listener, or stays if this fails. At
    /// most `backlog` connections (at least one) wait to be accepted; requests beyond are dropped, so that the other
    /// side asks again. As many unacknowledged requests are remembered; further ones get SYN cookies.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Limit`], [`Error::OutOfMemory`].
    #[doc(alias = "listen")]
    pub fn tcp_listen(
        &mut self,
        binding: BindingId,
        backlog: usize,
        options: &TcpOptions,
    ) -> Result<ListenerId, Error> {
        self.host.tcp_listen(binding, backlog, options)
    }

    /// Sets the seconds for which a connection from another host waits for its first bytes before it is there to be
    /// accepted; 0 for none. Connections within the host do not wait.
    #[doc(alias = "TCP_DEFER_ACCEPT")]
    pub fn set_deferral(&mut self, id: ListenerId, seconds: u32) -> Result<(), Error> {
        self.host.listener(id)?.deferral = seconds;
        Ok(())
    }

    /// Changes the backlog of a listener; waiting connections stay.
    pub fn set_backlog(&mut self, id: ListenerId, backlog: usize) -> Result<(), Error> {
        let limit = self.host.limits.backlog;
        self.host.listener(id)?.backlog = backlog.clamp(1, limit);
        Ok(())
    }

    /// Changes the options of connections accepted from now on.
    pub fn set_listener_options(&mut self, id: ListenerId, options: &TcpOptions) -> Result<(), Error> {
        self.host.listener(id)?.options = *options;
        Ok(())
    }

    /// Charges requests and connections of a listener to this owner from now on.
    pub fn set_listener_owner(&mut self, id: ListenerId, owner: Arc<dyn Owner>) -> Result<(), Error> {
        self.host.listener(id)?.owner = Some(owner);
        Ok(())
    }

    /// Takes the connection that was established first, with its remote end, or returns `None`: register and wait.
    pub fn accept(&mut self, id: ListenerId) -> Result<Option<(ConnectionId, SocketAddr)>, Error> {
        self.host.accept(id)
    }

    /// Registers a waker for one wake when `accept` may have something; see [`register`](Self::register).
    pub fn register_accept(&mut self, id: ListenerId, waker: &Waker) -> Result<(), Error> {
        Ok(self.host.listener(id)?.acceptors.register(waker)?)
    }

    /// Takes back [`register_accept`](Self::register_accept); see [`forget`](Self::forget).
    pub fn forget_accept(&mut self, id: ListenerId, waker: &Waker) {
        if let Ok(listener) = self.host.listener(id) {
            listener.acceptors.forget(waker);
        }
    }

    /// Returns the address and port that a listener listens on.
    #[doc(alias = "local_addr")]
    #[doc(alias = "getsockname")]
    pub fn listener_endpoint(&mut self, id: ListenerId) -> Result<SocketAddr, Error> {
        Ok(self.host.listener(id)?.local.address)
    }

    /// Returns whether `accept` has a connection.
    pub fn listener_readiness(&mut self, id: ListenerId) -> Result<Readiness, Error> {
        let listener = self.host.listener(id)?;
        Ok(Readiness { receive: !listener.queue.is_empty(), ..Readiness::default() })
    }

    /// Closes a listener, frees its port, and resets the connections that were not accepted.
    pub fn close_listener(&mut self, id: ListenerId, now_ns: u64) -> Result<(), Error> {
        self.host.close_listener(id, instant(now_ns))
    }

    /// Begins a connection to `remote`, from a bound port or from a free one. The binding is used up.
    /// Wait with [`Interest::Send`]; then [`connected`](Self::connected) returns the outcome.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::AddressInUse`] (there is such a connection, or there was one a moment ago),
    /// [`Error::AddressUnavailable`], [`Error::Limit`], [`Error::OutOfMemory`], [`Error::Invalid`] for port 0.
    #[doc(alias = "connect")]
    pub fn tcp_connect(
        &mut self,
        from: Option<BindingId>,
        remote: impl Into<SocketAddr>,
        options: &TcpOptions,
        now_ns: u64,
    ) -> Result<ConnectionId, Error> {
        self.host.tcp_connect(from, remote.into(), options, None, instant(now_ns))
    }

    /// Begins a connection as [`tcp_connect`](Self::tcp_connect) does, and charges it to this owner.
    ///
    /// # Errors
    /// Those of [`tcp_connect`](Self::tcp_connect), and the owner's.
    pub fn tcp_connect_for(
        &mut self,
        owner: &Arc<dyn Owner>,
        from: Option<BindingId>,
        remote: impl Into<SocketAddr>,
        options: &TcpOptions,
        now_ns: u64,
    ) -> Result<ConnectionId, Error> {
        self.host.tcp_connect(from, remote.into(), options, Some(owner), instant(now_ns))
    }

    /// Whether the handshake has succeeded; `Ok(false)` while it is under way.
    ///
    /// # Errors
    /// The cause of the failure ([`Error::Refused`], [`Error::TimedOut`], [`Error::Reset`], [`Error::Unreachable`]),
    /// once; [`Error::NotConnected`] after that.
    pub fn connected(&mut self, id: ConnectionId) -> Result<bool, Error> {
        self.host.connection(id)?.connected()
    }

    /// Hands free room of the send buffer to `fill`, which returns the number of bytes written at the start of the
    /// slice. `fill` is called again with the next part as long as it fills them, because the buffer is a ring of
    /// blocks.
    ///
    /// The bytes are sent by the next [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`Error::NotConnected`] before the handshake has ended; the failure of the connection once; [`Error::Closed`]
    /// after that or after a shutdown.
    #[doc(alias = "send")]
    #[doc(alias = "write")]
    pub fn tcp_send_with(
        &mut self,
        id: ConnectionId,
        fill: impl FnMut(&mut [u8]) -> usize,
        now_ns: u64,
    ) -> Result<Sent, Error> {
        self.host.send_with(id, fill, instant(now_ns))
    }

    /// Hands received data to `take`, which returns the number of bytes taken from the start of the slice.
    /// `take` is called again with the next part as long as it takes all, because the buffer is a ring of blocks.
    ///
    /// # Errors
    /// [`Error::NotConnected`] before the handshake has ended; the failure of the connection once, after all data that
    /// arrived before it was received; then [`Received::End`].
    #[doc(alias = "recv")]
    #[doc(alias = "read")]
    pub fn tcp_receive_with(
        &mut self,
        id: ConnectionId,
        take: impl FnMut(&[u8]) -> usize,
        now_ns: u64,
    ) -> Result<Received, Error> {
        self.host.receive_with(id, take, instant(now_ns))
    }

    /// Shows up to `length` bytes of received data, from `skip` bytes on, without taking them (`MSG_PEEK`), part by
    /// part as long as `look` wants more, because the buffer is a ring of blocks.
    #[doc(alias = "recv")]
    #[doc(alias = "peek")]
    #[doc(alias = "MSG_PEEK")]
    pub fn tcp_peek_with(
        &mut self,
        id: ConnectionId,
        skip: usize,
        length: usize,
        look: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Error> {
        self.host.connection(id)?.peek(skip, length, look);
        Ok(())
    }

    /// Returns the bytes that have arrived and were not received yet (`FIONREAD`).
    #[doc(alias = "FIONREAD")]
    pub fn receivable(&mut self, id: ConnectionId) -> Result<usize, Error> {
        Ok(self.host.connection(id)?.receivable())
    }

    /// Returns the bytes that the other side has not acknowledged yet. When this is 0 after a [`Shutdown::Send`] the
    /// other side has everything.
    #[doc(alias = "SIOCOUTQ")]
    pub fn unacknowledged(&mut self, id: ConnectionId) -> Result<usize, Error> {
        Ok(self.host.connection(id)?.unacknowledged())
    }

    /// Registers a waker for one wake when the outcome of an operation that had to wait may have changed. Several tasks
    /// may wait; all are woken, and a wake may be spurious. Registering again before the wake changes nothing.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::OutOfMemory`] if other tasks wait already; their registrations stay.
    pub fn register(&mut self, id: ConnectionId, interest: Interest, waker: &Waker) -> Result<(), Error> {
        Ok(self.host.connection(id)?.waiters(interest).register(waker)?)
    }

    /// Registers for input unless data, the end of the stream or a failure is there. Returns whether it has registered.
    /// `reader` is the waiting task from now on.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_for_input(&mut self, id: ConnectionId, waker: &Waker, reader: Reader) -> Result<bool, Error> {
        let connection = self.host.connection(id)?;
        connection.reader = reader;
        if connection.readiness().receive {
            return Ok(false);
        }
        connection.waiters(Interest::Receive).register(waker)?;
        Ok(true)
    }

    /// Removes a registration of a task that no longer waits; does nothing if there is none.
    #[doc(alias = "deregister")]
    #[doc(alias = "cancel")]
    pub fn forget(&mut self, id: ConnectionId, interest: Interest, waker: &Waker) {
        if let Ok(connection) = self.host.connection(id) {
            connection.waiters(interest).forget(waker);
        }
    }

    /// Returns the operations that would not wait.
    #[doc(alias = "poll")]
    pub fn readiness(&mut self, id: ConnectionId) -> Result<Readiness, Error> {
        self.host.readiness(id)
    }

    /// Returns the local end.
    #[doc(alias = "local_addr")]
    #[doc(alias = "getsockname")]
    pub fn local_endpoint(&mut self, id: ConnectionId) -> Result<SocketAddr, Error> {
        Ok(self.host.connection(id)?.key.local())
    }

    /// Returns the remote end of a connection that is or was established.
    #[doc(alias = "peer_addr")]
    #[doc(alias = "getpeername")]
    pub fn remote_endpoint(&mut self, id: ConnectionId) -> Result<SocketAddr, Error> {
        Ok(self.host.connection(id)?.key.remote())
    }

    /// Takes the failure of a connection, if it was not reported yet (`SO_ERROR`).
    #[doc(alias = "take_error")]
    #[doc(alias = "SO_ERROR")]
    pub fn take_failure(&mut self, id: ConnectionId) -> Result<Option<Error>, Error> {
        Ok(self.host.connection(id)?.failure.take())
    }

    /// Changes a connection, and lets it send what it then can. One within the host has nothing to be changed.
    fn change(&mut self, id: ConnectionId, now_ns: u64, change: impl FnOnce(&mut Wire, Instant)) -> Result<(), Error> {
        let now = instant(now_ns);
        if let Engine::Wire(wire) = &mut self.host.connection(id)?.engine {
            change(wire, now);
            self.host.touch(id.index, now);
        }
        Ok(())
    }

    /// Changes whether small writes wait.
    #[doc(alias = "set_nodelay")]
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_coalescing(&mut self, id: ConnectionId, coalescing: Coalescing, now_ns: u64) -> Result<(), Error> {
        self.change(id, now_ns, |wire, _| wire.set_coalescing(coalescing))
    }

    /// Changes whether a silent peer is probed.
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn set_keepalive(&mut self, id: ConnectionId, keepalive: Option<Keepalive>, now_ns: u64) -> Result<(), Error> {
        self.change(id, now_ns, |wire, now| {
            wire.last_heard = now;
            wire.set_keepalive(keepalive, now);
        })
    }

    /// Changes whether parts of segments wait for more bytes.
    #[doc(alias = "TCP_CORK")]
    pub fn set_corked(&mut self, id: ConnectionId, is_corked: bool, now_ns: u64) -> Result<(), Error> {
        self.change(id, now_ns, |wire, _| wire.tcp_mut().set_corked(is_corked))
    }

    /// Changes how long sent bytes may go unanswered, those under way from now on.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub fn set_user_timeout(
        &mut self,
        id: ConnectionId,
        milliseconds: Option<NonZeroU32>,
        now_ns: u64,
    ) -> Result<(), Error> {
        let now = instant(now_ns);
        if let Engine::Wire(wire) = &mut self.host.connection(id)?.engine {
            wire.set_user_timeout(milliseconds);
            self.host.arm_timeouts(id.index, now);
            self.host.touch(id.index, now);
        }
        Ok(())
    }

    /// Has received bytes acknowledged at once for a while.
    #[doc(alias = "TCP_QUICKACK")]
    pub fn acknowledge_quickly(&mut self, id: ConnectionId, now_ns: u64) -> Result<(), Error> {
        self.change(id, now_ns, |wire, _| wire.tcp_mut().acknowledge_quickly())
    }

    /// Returns the state of a connection, and values about it if it has segments.
    #[doc(alias = "TCP_INFO")]
    pub fn information(&mut self, id: ConnectionId) -> Result<(ListedState, Option<Information>), Error> {
        let connection = self.host.connection(id)?;
        let about = match &connection.engine {
            Engine::Wire(wire) => Some(wire.tcp().information()),
            Engine::Local(_) => None,
        };
        Ok((state_of(connection), about))
    }

    /// Ends one half of a connection, or both.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if there is no connection any more.
    pub fn shutdown(&mut self, id: ConnectionId, how: Shutdown, now_ns: u64) -> Result<(), Error> {
        self.host.shutdown(id, how, instant(now_ns))
    }

    /// Closes a connection: its identifier becomes stale. Data sent before is still delivered, then the other side sees
    /// the end; but if received data was left unread, the other side sees a reset.
    pub fn close(&mut self, id: ConnectionId, now_ns: u64) -> Result<(), Error> {
        self.host.close(id, instant(now_ns))
    }

    /// Registers for the other side's acknowledgement of all that a closed connection had to send, and of its end.
    /// Returns whether there is something to wait for.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn register_for_delivery(&mut self, id: ConnectionId, waker: &Waker) -> Result<bool, Error> {
        match self.host.connection(id) {
            Ok(connection) if connection.is_delivering() => {
                connection.waiters(Interest::Send).register(waker)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Closes a connection with a reset; undelivered data is lost (`SO_LINGER` with time 0).
    #[doc(alias = "SO_LINGER")]
    pub fn abort(&mut self, id: ConnectionId, now_ns: u64) -> Result<(), Error> {
        self.host.abort(id, instant(now_ns))
    }

    /// Makes a datagram socket on a local port: `0.0.0.0` stands for all addresses, port 0 for any free port.
    ///
    /// # Errors
    /// [`Error::AddressUnavailable`], [`Error::AddressInUse`], [`Error::Limit`], [`Error::OutOfMemory`].
    #[doc(alias = "bind")]
    pub fn udp_bind(&mut self, local: impl Into<LocalEnd>, options: &DatagramOptions) -> Result<DatagramId, Error> {
        self.host.udp_bind(local.into(), options)
    }

    /// Fixes the other end: only its datagrams are received, and datagrams without an address go there. `None` undoes
    /// that.
    pub fn udp_connect(&mut self, id: DatagramId, remote: Option<SocketAddr>) -> Result<(), Error> {
        self.host.udp_connect(id, remote)
    }

    /// Sends one datagram of `length` bytes, written by `fill`, to `to` or to the connected end. `fill` is not called
    /// if the receiver is on this host and has no room; the datagram is then dropped, as on any network.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Unreachable`], [`Error::NotConnected`] without any address; a failure reported by
    /// the network once.
    #[doc(alias = "send_to")]
    #[doc(alias = "sendto")]
    pub fn udp_send_with(
        &mut self,
        id: DatagramId,
        to: Option<SocketAddr>,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Sent, Error> {
        let way = self.host.udp_way(id, to)?;
        self.host.udp_send(id, way, Payload { length, fill })
    }

    /// Takes the next datagram and its sender, or returns `None`: register and wait.
    #[doc(alias = "recv_from")]
    #[doc(alias = "recvfrom")]
    pub fn udp_receive_with<R>(
        &mut self,
        id: DatagramId,
        take: impl FnOnce(SocketAddr, &[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let socket = self.host.datagram(id)?;
        if let Some(failure) = socket.failure.take() {
            return Err(failure);
        }
        match socket.arrived.dequeue() {
            Ok((origin, payload)) => Ok(Some(take(origin.from, payload))),
            Err(_) => Ok(None),
        }
    }

    /// Takes the next datagram, or only shows it, with all that is known of its origin; otherwise as
    /// [`udp_receive_with`](Self::udp_receive_with).
    pub fn udp_take_with<R>(
        &mut self,
        id: DatagramId,
        stays: bool,
        take: impl FnOnce(&Origin, &[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let socket = self.host.datagram(id)?;
        if let Some(failure) = socket.failure.take() {
            return Err(failure);
        }
        if stays {
            return Ok(socket.arrived.peek().ok().map(|(origin, payload)| take(origin, payload)));
        }
        Ok(socket.arrived.dequeue().ok().map(|(origin, payload)| take(&origin, payload)))
    }

    /// Takes the first report about a datagram that did not arrive, with the start of its bytes. A failure that was not
    /// reported yet is then that of the next report.
    #[doc(alias = "MSG_ERRQUEUE")]
    pub fn take_datagram_report<R>(
        &mut self,
        id: DatagramId,
        take: impl FnOnce(&Report, &[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let socket = self.host.datagram(id)?;
        let Some(reports) = &mut socket.reports else { return Ok(None) };
        let Some(taken) = reports.take(take) else { return Ok(None) };
        socket.failure = reports.first().map(|next| next.failure().0);
        Ok(Some(taken))
    }

    /// Returns the bytes of the next datagram; 0 if there is none, or a failure goes before it.
    #[doc(alias = "FIONREAD")]
    pub fn datagram_receivable(&mut self, id: DatagramId) -> Result<usize, Error> {
        let socket = self.host.datagram(id)?;
        if socket.failure.is_some() {
            return Ok(0);
        }
        Ok(socket.arrived.peek().map_or(0, |(_, payload)| payload.len()))
    }

    /// Reports to a socket that a datagram is longer than any, and returns the error. As on Linux, of IPv6 alone, and
    /// with the size of packets on its way.
    #[cold]
    pub fn report_too_long(&mut self, id: DatagramId, to: Option<SocketAddr>) -> Error {
        self.host.udp_too_long(id, to)
    }

    /// Has the coming of datagrams told by this clock, or by none.
    #[doc(alias = "SO_TIMESTAMP")]
    pub fn set_datagram_clock(&mut self, id: DatagramId, clock: Option<fn() -> u64>) -> Result<(), Error> {
        self.host.datagram(id)?.clock = clock;
        Ok(())
    }

    /// Gives a raw socket another local address.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has a peer, [`Error::AddressUnavailable`].
    pub fn raw_rebind(&mut self, id: DatagramId, local: impl Into<LocalEnd>) -> Result<(), Error> {
        self.host.raw_rebind(id, local.into())
    }

    /// Shows the next datagram without taking it, or a failure as [`udp_receive_with`](Self::udp_receive_with) does.
    #[doc(alias = "peek_from")]
    #[doc(alias = "MSG_PEEK")]
    pub fn udp_peek_with<R>(
        &mut self,
        id: DatagramId,
        look: impl FnOnce(SocketAddr, &[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let socket = self.host.datagram(id)?;
        if let Some(failure) = socket.failure.take() {
            return Err(failure);
        }
        match socket.arrived.peek() {
            Ok((origin, payload)) => Ok(Some(look(origin.from, payload))),
            Err(_) => Ok(None),
        }
    }

    /// Sets whether reports of the network are kept, which takes [`MEMORY_OF_REPORTS`](crate::MEMORY_OF_REPORTS).
    /// Failures are then those of datagrams to any receiver, else only of those to the connected end. Reports of
    /// strangers are believed as far as they name the socket's port.
    #[doc(alias = "IP_RECVERR")]
    pub fn set_datagram_reports(&mut self, id: DatagramId, are_kept: bool) -> Result<(), Error> {
        let socket = self.host.datagram(id)?;
        if !are_kept {
            socket.reports = None;
        } else if socket.reports.is_none() {
            socket.reports = Some(Reports::new()?);
        }
        Ok(())
    }

    /// Sets the number of routers that the packets of a datagram socket pass at most; `None` is the usual one.
    #[doc(alias = "IP_TTL")]
    pub fn set_datagram_hop_limit(&mut self, id: DatagramId, hop_limit: Option<u8>) -> Result<(), Error> {
        self.host.datagram(id)?.set_hop_limit(hop_limit);
        Ok(())
    }

    /// Sets whether packets that a raw socket sends over IPv4 have their header already.
    #[doc(alias = "IP_HDRINCL")]
    pub fn set_raw_header(&mut self, id: DatagramId, has_header: bool) -> Result<(), Error> {
        self.host.datagram(id)?.raw.has_header = has_header;
        Ok(())
    }

    /// Sets the kinds of ICMP messages that a raw socket does not receive, as bits.
    #[doc(alias = "ICMP_FILTER")]
    #[doc(alias = "ICMP6_FILTER")]
    pub fn set_raw_filter(&mut self, id: DatagramId, left_out: [u32; 8]) -> Result<(), Error> {
        self.host.datagram(id)?.raw.left_out = left_out;
        Ok(())
    }

    /// Takes the failure of a datagram socket, if it was not reported yet (`SO_ERROR`).
    #[doc(alias = "SO_ERROR")]
    pub fn take_datagram_failure(&mut self, id: DatagramId) -> Result<Option<Error>, Error> {
        Ok(self.host.datagram(id)?.failure.take())
    }

    /// Registers a waker as [`register`](Self::register) does, for a datagram socket.
    pub fn udp_register(&mut self, id: DatagramId, interest: Interest, waker: &Waker) -> Result<(), Error> {
        Ok(self.host.datagram(id)?.waiters(interest).register(waker)?)
    }

    /// Takes back [`udp_register`](Self::udp_register); see [`forget`](Self::forget).
    pub fn udp_forget(&mut self, id: DatagramId, interest: Interest, waker: &Waker) {
        if let Ok(socket) = self.host.datagram(id) {
            socket.waiters(interest).forget(waker);
        }
    }

    /// Returns the operations that would not wait.
    pub fn udp_readiness(&mut self, id: DatagramId) -> Result<Readiness, Error> {
        let socket = self.host.datagram(id)?;
        let failed = socket.failure.is_some();
        Ok(Readiness {
            receive: failed || !socket.arrived.is_empty(),
            send: socket.can_send(),
            failed: failed || socket.reports.as_ref().is_some_and(|reports| !reports.is_empty()),
            ..Readiness::default()
        })
    }

    /// Returns the local end; of a connected socket on all addresses, that from which its datagrams leave.
    #[doc(alias = "local_addr")]
    #[doc(alias = "getsockname")]
    pub fn udp_local_endpoint(&mut self, id: DatagramId) -> Result<SocketAddr, Error> {
        self.host.udp_local_end(id)
    }

    /// Returns the connected end.
    #[doc(alias = "peer_addr")]
    #[doc(alias = "getpeername")]
    pub fn udp_remote_endpoint(&mut self, id: DatagramId) -> Result<Option<SocketAddr>, Error> {
        Ok(self.host.datagram(id)?.remote)
    }

    /// Closes a datagram socket; datagrams that it has not sent yet are lost.
    pub fn udp_close(&mut self, id: DatagramId) -> Result<(), Error> {
        self.host.udp_close(id)
    }

    /// Makes a packet socket, which receives copies of the frames of this protocol that come; one for
    /// [`ALL_PROTOCOLS`](crate::ALL_PROTOCOLS) also of those that leave.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::OutOfMemory`].
    #[doc(alias = "AF_PACKET")]
    pub fn packet_open(&mut self, protocol: u16) -> Result<PacketSocketId, Error> {
        self.link.keep_leaving(true)?;
        let made = self.host.packet_open(protocol);
        if !self.host.has_packet_sockets() {
            self.link.keep_leaving(false)?;
        }
        made
    }

    /// Sets the protocol of a packet socket's frames; 0 for none. Frames that wait stay.
    pub fn packet_set_protocol(&mut self, id: PacketSocketId, protocol: u16) -> Result<(), Error> {
        self.host.packet_set_protocol(id, protocol)
    }

    /// Has the coming of frames told by this clock, or by none.
    pub fn packet_set_clock(&mut self, id: PacketSocketId, clock: Option<fn() -> u64>) -> Result<(), Error> {
        self.host.packet_set_clock(id, clock)
    }

    /// Takes the next frame, or only shows it if it stays; `None` if there is none: register and wait.
    pub fn packet_receive_with<R>(
        &mut self,
        id: PacketSocketId,
        stays: bool,
        take: impl FnOnce(&FrameOrigin, &[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        self.host.packet_receive(id, stays, take)
    }

    /// Sends a frame of `length` bytes that `fill` writes, as it is.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Invalid`] if it is shorter than a header, [`Error::Limit`] if the device has no
    /// room at present.
    pub fn packet_send_with(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        self.link.send_frame(length, fill)?;
        self.link.show_leaving(&mut self.host);
        Ok(())
    }

    /// Takes the counts of a packet socket's frames, which begin anew.
    #[doc(alias = "PACKET_STATISTICS")]
    pub fn packet_take_counts(&mut self, id: PacketSocketId) -> Result<PacketCounts, Error> {
        self.host.packet_take_counts(id)
    }

    /// Registers a waker for the next frame.
    pub fn packet_register(&mut self, id: PacketSocketId, waker: &Waker) -> Result<(), Error> {
        self.host.packet_register(id, waker)
    }

    /// Takes back [`packet_register`](Self::packet_register).
    pub fn packet_forget(&mut self, id: PacketSocketId, waker: &Waker) {
        self.host.packet_forget(id, waker);
    }

    /// Returns the operations that would not wait.
    pub fn packet_readiness(&mut self, id: PacketSocketId) -> Result<Readiness, Error> {
        self.host.packet_readiness(id)
    }

    /// Closes a packet socket; frames that it has not received are lost.
    pub fn packet_close(&mut self, id: PacketSocketId) -> Result<(), Error> {
        self.host.packet_close(id)?;
        if !self.host.has_packet_sockets() {
            self.link.keep_leaving(false)?;
        }
        Ok(())
    }
}
