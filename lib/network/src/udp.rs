//! Datagram sockets.
//!
//! A receive buffer is a ring of packets which the stack fills itself: a datagram needs no protocol state. Between two
//! sockets of this host there is nothing else. Only datagrams that leave through the Ethernet interface go through a
//! smoltcp socket, because address resolution is smoltcp's; it is made with the first such datagram.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use alloc::vec::Vec;
use ethernet::Link;
use smoltcp::iface::{PollResult, SocketHandle, SocketSet, SocketStorage};
use smoltcp::phy::{ChecksumCapabilities, TxToken};
use smoltcp::socket::{AnySocket, udp};
use smoltcp::storage::{PacketBuffer, PacketMetadata};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{IpListenEndpoint, IpProtocol, Ipv6Packet, Ipv6Repr, UDP_HEADER_LEN, UdpPacket, UdpRepr};
use waiters::Waiters;

use crate::Error;
use crate::arrivals::Reader;
use crate::configuration::{Interest, Sent};
use crate::dhcp;
use crate::echo::{HOP_LIMIT, can_send_packets, have_packets, send_packet_of_six};
use crate::frame::Quoted;
use crate::host::{Host, RESOLUTION_RETRY, RETRY, Via, poll_via};
use crate::link::{Envelope, Enveloped, Outgoing, Token};
use crate::operations::or_this_host;
use crate::raw::RawChoices;
use crate::reply::parse_ip;
use crate::reports::{MEMORY_OF_REPORTS, Report, Reports, payload_of_udp};
use crate::slab::DatagramId;
use crate::table::{Key, LocalEnd, Ports, SharedTable, Sharing};
use crate::tcp::{BUFFER_LIMITS, zeroed};

/// Protocol of a datagram socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatagramProtocol {
    /// UDP.
    #[default]
    Udp,
    /// Echoes of ICMP and ICMPv6 (ping): a datagram is a message from its first byte on. The local port is the
    /// identifier, and the other end has none: the port of a sender is the hop limit with which its message has come.
    Echo,
    /// Packets of this protocol (raw sockets): those of IPv4 come with their header. Neither end has a port, and that
    /// of a sender is the hop limit.
    Raw(u8),
}

/// Behaviour of a datagram socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "SO_RCVBUF")]
#[doc(alias = "SO_SNDBUF")]
pub struct DatagramOptions {
    /// Bytes that may arrive before they are read; datagrams that do not fit are dropped.
    pub receive_buffer: usize,
    /// Bytes that may wait for the device or for address resolution.
    pub send_buffer: usize,
    /// Number of datagrams that may wait in either buffer.
    pub datagrams: usize,
    /// Protocol.
    pub protocol: DatagramProtocol,
}

impl Default for DatagramOptions {
    /// Returns buffers of 8 KiB and 16 datagrams each way, for UDP.
    fn default() -> Self {
        DatagramOptions {
            receive_buffer: 8 * 1024,
            send_buffer: 8 * 1024,
            datagrams: 16,
            protocol: DatagramProtocol::Udp,
        }
    }
}

impl DatagramOptions {
    /// Returns the options with values out of range moved inside.
    fn clamped(self) -> Self {
        let limit = *BUFFER_LIMITS.end();
        DatagramOptions {
            receive_buffer: self.receive_buffer.clamp(256, limit),
            send_buffer: self.send_buffer.clamp(256, limit),
            datagrams: self.datagrams.clamp(1, 4096),
            protocol: self.protocol,
        }
    }

    /// Returns the most memory that a socket with these options may take, in bytes.
    pub fn memory(&self) -> usize {
        let options = self.clamped();
        size_of::<Datagrams>() + options.receive_memory() + options.send_memory()
    }

    /// Returns the bytes of the receive buffer and its records.
    fn receive_memory(&self) -> usize {
        self.receive_buffer + self.datagrams * size_of::<PacketMetadata<Origin>>()
    }

    /// Returns the bytes of the smoltcp socket with the send buffer and its records: the most that datagrams on their
    /// way out take.
    fn send_memory(&self) -> usize {
        size_of::<SocketStorage<'static>>() + self.send_buffer + self.datagrams * size_of::<udp::PacketMetadata>()
    }

    /// Returns the bytes of the send buffer and its records for datagrams over IPv6.
    fn send_memory_of_six(&self) -> usize {
        self.send_buffer + self.datagrams * size_of::<PacketMetadata<SixWay>>()
    }
}

// As many datagrams over IPv6 must fit into what is charged.
const _: () = assert!(size_of::<PacketMetadata<SixWay>>() <= size_of::<udp::PacketMetadata>());

/// The origin of a datagram that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its sender.
    pub from: SocketAddr,
    /// The hop limit with which it has come.
    pub hop_limit: u8,
    /// The time of its coming, of the clock that the socket was given; 0 without one.
    pub at_ns: u64,
}

/// Ends of a datagram over IPv6, but for the local port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SixWay {
    from: Ipv6Addr,
    to: Ipv6Addr,
    port: u16,
    /// Whether it waits for a hardware address, and the milliseconds at which that began.
    waits: bool,
    since: u32,
    /// Turn of the socket in which it was looked at last.
    turn: u8,
}

/// Datagrams that wait for the device, or for a hardware address. A socket has those of one family at a time.
pub(crate) enum DepartingDatagrams {
    None,
    Four(SocketSet<'static>),
    /// Whole packets of IPv4: echoes, and those of raw sockets.
    Packets(SocketSet<'static>),
    Six {
        datagrams: PacketBuffer<'static, SixWay>,
        /// Number of those that wait for a hardware address. They are behind those that were not looked at yet.
        waiting: usize,
        turn: u8,
    },
}

/// Number of datagrams that a socket may send before the next one's turn.
const BURST: usize = 8;

/// Time for which a datagram waits for a hardware address: as long as a neighbour is asked.
const RESOLUTION_PATIENCE: Duration = Duration::from_secs(3);

/// Number of datagrams of a socket that wait for hardware addresses. The oldest makes way for a further one.
const UNRESOLVED: usize = 8;

/// Number of datagrams that a socket looks at before the next one's turn.
const LOOKS: usize = 32;

/// Size of packets within the host, as it is told.
const MTU_WITHIN: usize = 65_536;

/// Longest payload of one datagram: the capacity of an IPv4 packet.
pub(crate) const LONGEST: usize = 65_507;

pub(crate) struct Datagrams {
    pub(crate) local: LocalEnd,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) options: DatagramOptions,
    pub(crate) arrived: PacketBuffer<'static, Origin>,
    pub(crate) departing: DepartingDatagrams,
    /// This host's address in the datagrams that wait in `departing`.
    pub(crate) departs_from: Ipv4Addr,
    /// Receiver of the last datagram over IPv6.
    sent_to: Option<SocketAddr>,
    pub(crate) failure: Option<Error>,
    /// The reports of failures, if they are kept: then also for datagrams to any receiver, and not only for those to
    /// the connected end.
    pub(crate) reports: Option<Reports>,
    /// The clock by which the coming of datagrams and reports is told, if it is.
    pub(crate) clock: Option<fn() -> u64>,
    pub(crate) receivers: Waiters,
    pub(crate) senders: Waiters,
    /// Task that waits for input.
    pub(crate) reader: Reader,
    /// Routers that its packets pass at most, if the program has chosen that.
    pub(crate) hop_limit: Option<u8>,
    pub(crate) raw: RawChoices,
}

impl Datagrams {
    pub(crate) fn new(local: LocalEnd, options: DatagramOptions) -> Result<Self, Error> {
        let options = options.clamped();
        Ok(Datagrams {
            local,
            remote: None,
            options,
            arrived: PacketBuffer::new(
                zeroed(PacketMetadata::EMPTY, options.datagrams)?,
                zeroed(0, options.receive_buffer)?,
            ),
            departing: DepartingDatagrams::None,
            departs_from: Ipv4Addr::UNSPECIFIED,
            sent_to: None,
            failure: None,
            reports: None,
            clock: None,
            receivers: Waiters::default(),
            senders: Waiters::default(),
            reader: Reader::NOBODY,
            hop_limit: None,
            raw: RawChoices::default(),
        })
    }

    pub(crate) fn waiters(&mut self, interest: Interest) -> &mut Waiters {
        match interest {
            Interest::Receive => &mut self.receivers,
            Interest::Send => &mut self.senders,
        }
    }

    /// Returns the keys under which packets find it.
    fn keys(&self) -> [Option<Key>; 2] {
        match self.remote {
            Some(remote) => [Some(self.local.key_with(remote)), None],
            None => self.local.keys(),
        }
    }

    /// Returns the memory of its buffers, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let send = match self.departing {
            DepartingDatagrams::None => 0,
            DepartingDatagrams::Four(_) | DepartingDatagrams::Packets(_) => self.options.send_memory(),
            DepartingDatagrams::Six { .. } => self.options.send_memory_of_six(),
        };
        let reports = if self.reports.is_some() { MEMORY_OF_REPORTS - size_of::<Reports>() } else { 0 };
        self.options.receive_memory() + send + reports
    }

    /// Whether one more datagram may be sent, as far as that is known without its length.
    pub(crate) fn can_send(&self) -> bool {
        match &self.departing {
            DepartingDatagrams::None => true,
            DepartingDatagrams::Four(sockets) => sockets.get::<udp::Socket<'_>>(SocketHandle::default()).can_send(),
            DepartingDatagrams::Packets(sockets) => can_send_packets(sockets),
            DepartingDatagrams::Six { datagrams, .. } => !datagrams.is_full(),
        }
    }

    /// Returns the buffer for datagrams over IPv6, made if there is none yet; `None` while some over IPv4 wait.
    fn departing_six(&mut self) -> Result<Option<&mut PacketBuffer<'static, SixWay>>, Error> {
        let waits = match &self.departing {
            DepartingDatagrams::Four(sockets) => {
                sockets.get::<udp::Socket<'_>>(SocketHandle::default()).send_queue() > 0
            }
            DepartingDatagrams::Packets(sockets) => have_packets(sockets),
            DepartingDatagrams::None | DepartingDatagrams::Six { .. } => false,
        };
        if waits {
            return Ok(None);
        }
        if !matches!(self.departing, DepartingDatagrams::Six { .. }) {
            self.departing = DepartingDatagrams::None;
            let records = zeroed(PacketMetadata::EMPTY, self.options.datagrams)?;
            let datagrams = PacketBuffer::new(records, zeroed(0, self.options.send_buffer)?);
            self.departing = DepartingDatagrams::Six { datagrams, waiting: 0, turn: 0 };
        }
        match &mut self.departing {
            DepartingDatagrams::Six { datagrams, .. } => Ok(Some(datagrams)),
            _ => Err(Error::OutOfMemory),
        }
    }

    /// Returns whether datagrams over IPv6 wait to leave.
    pub(crate) fn have_departing_six(&self) -> bool {
        matches!(&self.departing, DepartingDatagrams::Six { datagrams, .. } if !datagrams.is_empty())
    }

    /// Returns the smoltcp socket for datagrams over IPv4, made if there is none yet; `None` while some over IPv6 wait.
    pub(crate) fn departing_four(&mut self) -> Result<Option<&mut udp::Socket<'static>>, Error> {
        if self.have_departing_six() {
            return Ok(None);
        }
        if !matches!(self.departing, DepartingDatagrams::Four(_)) {
            self.departing = DepartingDatagrams::None;
            let count = self.options.datagrams;
            let mut socket = udp::Socket::new(
                udp::PacketBuffer::new(Vec::new(), Vec::new()),
                udp::PacketBuffer::new(
                    zeroed(udp::PacketMetadata::EMPTY, count)?,
                    zeroed(0, self.options.send_buffer)?,
                ),
            );
            socket.set_hop_limit(self.hop_limit);
            // Each datagram has its own address.
            let port = self.local.address.port();
            socket.bind(IpListenEndpoint { addr: None, port }).map_err(|_| Error::Invalid)?;
            self.departing = DepartingDatagrams::Four(set_of(socket)?);
        }
        match &mut self.departing {
            DepartingDatagrams::Four(sockets) => Ok(Some(sockets.get_mut(SocketHandle::default()))),
            _ => Err(Error::OutOfMemory),
        }
    }

    /// Sets the number of routers that its packets pass at most; `None` is the usual one.
    pub(crate) fn set_hop_limit(&mut self, hop_limit: Option<u8>) {
        self.hop_limit = hop_limit;
        if let DepartingDatagrams::Four(sockets) = &mut self.departing {
            sockets.get_mut::<udp::Socket<'_>>(SocketHandle::default()).set_hop_limit(hop_limit);
        }
    }

    /// Drops the datagrams that wait to leave if they would leave from an address that this host has lost: it may be
    /// another host's by now.
    pub(crate) fn forget_departing_unless_from(&mut self, own: Ipv4Addr) {
        let is_of_four = matches!(self.departing, DepartingDatagrams::Four(_) | DepartingDatagrams::Packets(_));
        if is_of_four && self.departs_from != own {
            self.departing = DepartingDatagrams::None;
            self.senders.wake_all();
        }
    }

    /// Moves the first datagram over IPv6, for which no hardware address is known, behind the others; or drops it, if
    /// it has waited for long or too many wait. Returns whether it is kept.
    fn defer(&mut self, milliseconds: u32, spare: &mut Vec<u8>) -> bool {
        let DepartingDatagrams::Six { datagrams, waiting, turn } = &mut self.departing else { return false };
        let Ok((&way, _)) = datagrams.peek() else { return false };
        let since = if way.waits { way.since } else { milliseconds };
        let waited = u64::from(milliseconds.wrapping_sub(since));
        let is_over = *waiting > UNRESOLVED || waited >= RESOLUTION_PATIENCE.total_millis();
        *waiting -= usize::from(way.waits);
        if !way.waits || !is_over {
            let is_kept = move_behind(datagrams, SixWay { waits: true, since, turn: *turn, ..way }, spare);
            *waiting += usize::from(is_kept);
            return is_kept;
        }
        let _ = datagrams.dequeue();
        if self.remote == Some(SocketAddr::new(way.to.into(), way.port)) || self.reports.is_some() {
            self.fail(Error::Unreachable);
        }
        false
    }

    /// Records a failure, which the next call reports.
    fn fail(&mut self, failure: Error) {
        self.failure = Some(failure);
        self.receivers.wake_all();
        self.senders.wake_all();
    }

    /// Takes a report about one of its datagrams: keeps it with the start of the quoted bytes, or has it end what a
    /// connected socket waits for.
    pub(crate) fn take_report(&mut self, report: Report, quoted: &[u8]) {
        let (failure, is_final) = report.failure();
        match &mut self.reports {
            Some(reports) => {
                reports.keep(Report { at_ns: self.clock.map_or(0, |clock| clock()), ..report }, quoted);
                self.fail(failure);
            }
            None if is_final && self.remote.is_some() => self.fail(failure),
            None => {}
        }
    }

    /// Notes that a datagram was not sent, because it is too long for packets of this size; returns the error.
    #[cold]
    pub(crate) fn is_too_long_for(&mut self, size: usize, to: SocketAddr) -> Error {
        if let Some(reports) = &mut self.reports {
            reports.keep(Report::of_size(to, size), &[]);
        }
        Error::TooLong
    }

    /// Stores a datagram of `length` bytes that `fill` writes, or drops it if there is no room, as users of UDP must
    /// expect. Returns whether it was stored.
    pub(crate) fn deliver(
        &mut self,
        from: SocketAddr,
        hop_limit: u8,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let origin = Origin { from, hop_limit, at_ns: self.clock.map_or(0, |clock| clock()) };
        match self.arrived.enqueue(length, origin) {
            Ok(room) => {
                fill(room);
                self.receivers.wake_all();
                true
            }
            Err(_) => false,
        }
    }
}

/// Makes a set of one socket, in memory of its own.
pub(crate) fn set_of(socket: impl AnySocket<'static>) -> Result<SocketSet<'static>, Error> {
    let mut storage = Vec::new();
    storage.try_reserve_exact(1)?;
    storage.push(SocketStorage::EMPTY);
    let mut sockets = SocketSet::new(storage);
    sockets.add(socket);
    Ok(sockets)
}

/// The bytes of a datagram: their number, and the function that writes them to the place that they get.
pub(crate) struct Payload<Fill: FnOnce(&mut [u8])> {
    pub(crate) length: usize,
    pub(crate) fill: Fill,
}

/// The way of a datagram: the interface, and both ends.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) via: Via,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
}

impl DatagramProtocol {
    /// Returns an end as the protocol has it: that of an echo has no port.
    fn end_of(self, end: SocketAddr) -> SocketAddr {
        match self {
            DatagramProtocol::Udp => end,
            DatagramProtocol::Echo | DatagramProtocol::Raw(_) => SocketAddr::new(end.ip(), 0),
        }
    }

    /// Returns the bytes of the header before a datagram's own.
    fn header(self) -> usize {
        match self {
            DatagramProtocol::Udp => UDP_HEADER_LEN,
            DatagramProtocol::Echo | DatagramProtocol::Raw(_) => 0,
        }
    }
}

impl Host {
    /// Returns the table by which packets find sockets with ports.
    fn table_of(&mut self, protocol: DatagramProtocol) -> &mut SharedTable {
        match protocol {
            DatagramProtocol::Udp => &mut self.datagram_table,
            DatagramProtocol::Echo | DatagramProtocol::Raw(_) => &mut self.echo_table,
        }
    }

    fn ports_of(&mut self, protocol: DatagramProtocol) -> &mut Ports {
        match protocol {
            DatagramProtocol::Udp => &mut self.datagram_ports,
            DatagramProtocol::Echo | DatagramProtocol::Raw(_) => &mut self.identifiers,
        }
    }

    pub(crate) fn udp_bind(&mut self, local: LocalEnd, options: &DatagramOptions) -> Result<DatagramId, Error> {
        if !self.may_bind(local) {
            return Err(Error::AddressUnavailable);
        }
        if let DatagramProtocol::Raw(_) = options.protocol {
            return self.raw_bind(local, options);
        }
        let index = self.datagrams.next_index()?;
        self.datagram_work.reserve(index)?;
        self.datagram_timers.reserve(index)?;
        let protocol = options.protocol;
        let local = self.ports_of(protocol).bind(local, Sharing::Exclusive)?;
        let made = Datagrams::new(local, *options).and_then(|socket| self.datagrams.insert(socket)).and_then(|index| {
            let entered = self.table_of(protocol).insert_all(local.keys(), index, local.spread.is_some());
            entered.inspect_err(|_| self.datagrams.remove(index))?;
            Ok(index)
        });
        let index = made.inspect_err(|_| self.ports_of(protocol).release(local))?;
        Ok(DatagramId { index, generation: self.datagrams.generation(index) })
    }

    pub(crate) fn udp_connect(&mut self, id: DatagramId, remote: Option<SocketAddr>) -> Result<(), Error> {
        let protocol = self.datagram(id)?.options.protocol;
        let remote = remote.map(|remote| protocol.end_of(remote));
        if let Some(remote) = remote {
            if remote.port() == 0 && protocol == DatagramProtocol::Udp {
                return Err(Error::Invalid);
            }
            let local = self.datagram(id)?.local.address.ip();
            self.route_from(local, remote.ip())?;
        }
        let socket = self.datagram(id)?;
        socket.failure = None;
        let old = socket.keys();
        let previous = core::mem::replace(&mut socket.remote, remote);
        let new = socket.keys();
        let is_shared = socket.local.spread.is_some();
        if old != new && !matches!(protocol, DatagramProtocol::Raw(_)) {
            if let Err(error) = self.table_of(protocol).insert_all(new, id.index, is_shared) {
                self.datagram(id)?.remote = previous;
                return Err(error);
            }
            self.table_of(protocol).remove_all(old, id.index);
        }
        Ok(())
    }

    /// Returns the end from which datagrams leave, as far as it is known.
    pub(crate) fn udp_local_end(&mut self, id: DatagramId) -> Result<SocketAddr, Error> {
        let Datagrams { local, remote, .. } = *self.datagram(id)?;
        let way = remote.and_then(|remote| self.route_from(local.address.ip(), remote.ip()).ok());
        Ok(way.map_or(local.address, |(_, address)| SocketAddr::new(address, local.address.port())))
    }

    /// Returns the socket that receives a datagram: bound to the address or to all addresses, without a peer or
    /// connected to the sender; one of several that share the port.
    pub(crate) fn find_datagrams(&self, key: Key) -> Option<u32> {
        // Most datagrams of a flood are for no port.
        self.datagram_ports.is_used(key.local_port()).then(|| self.datagram_table.find_receiver(key)).flatten()
    }

    pub(crate) fn udp_input<T: TxToken>(&mut self, key: Key, frame: &[u8], answer: T, now: Instant) {
        let (local, remote) = (key.local(), key.remote());
        if local.port() == dhcp::CLIENT_PORT && local.is_ipv4() && self.dhcp.is_some() {
            self.lease_input(remote.port(), frame, now);
            return;
        }
        let is_own = self.is_own(local.ip());
        let for_us = is_own || matches!(local.ip(), IpAddr::V4(address) if self.is_broadcast(address));
        if local.is_ipv6() && self.is_forged(key) {
            return;
        }
        let receiver = self.find_datagrams(key).and_then(|index| self.datagrams.get_mut(index));
        match receiver {
            Some(socket) if for_us => {
                // Behind the Ethernet header, in the header of either family.
                let hop_limit = frame.get(if remote.is_ipv4() { 22 } else { 21 }).copied().unwrap_or_default();
                if let Some(payload) = datagram_payload(frame, &self.checksums)
                    && !socket.deliver(remote, hop_limit, payload.len(), |room| room.copy_from_slice(payload))
                {
                    self.counters.datagrams_dropped += 1;
                }
            }
            // smoltcp checks the datagram and answers that the port is unreachable.
            _ if is_own && self.refusals.takes_one(now) => {
                let via = if local.is_ipv4() { Via::Ethernet } else { Via::Six };
                poll_via(&mut self.interfaces, via, &mut self.stray, frame, answer, now);
            }
            _ => {}
        }
    }

    /// Finds the way of a datagram to `to`, or to the socket's connected end.
    pub(crate) fn udp_way(&mut self, id: DatagramId, to: Option<SocketAddr>) -> Result<Way, Error> {
        let socket = self.datagram(id)?;
        if let Some(failure) = socket.failure.take() {
            return Err(failure);
        }
        let to = to.or(socket.remote).ok_or(Error::NotConnected)?;
        let (local, protocol) = (socket.local.address, socket.options.protocol);
        let to = protocol.end_of(or_this_host(to));
        if to.port() == 0 && protocol == DatagramProtocol::Udp {
            return Err(Error::Invalid);
        }
        let (via, address) = self.route_from(local.ip(), to.ip())?;
        Ok(Way { via, from: SocketAddr::new(address, local.port()), to })
    }

    /// Reports that a datagram is longer than any.
    pub(crate) fn udp_too_long(&mut self, id: DatagramId, to: Option<SocketAddr>) -> Error {
        match self.udp_way(id, to) {
            Ok(Way { via, to: to @ SocketAddr::V6(end), .. }) => {
                let size = if via == Via::Local { MTU_WITHIN } else { self.six.mtu_to(*end.ip()) };
                self.datagram(id).map_or_else(|error| error, |socket| socket.is_too_long_for(size, to))
            }
            Ok(_) => Error::TooLong,
            Err(error) => error,
        }
    }

    /// Sends a datagram on its way.
    pub(crate) fn udp_send(
        &mut self,
        id: DatagramId,
        way: Way,
        payload: Payload<impl FnOnce(&mut [u8])>,
    ) -> Result<Sent, Error> {
        match self.datagram(id)?.options.protocol {
            DatagramProtocol::Udp => {}
            DatagramProtocol::Echo => return self.echo_send(id, way, payload),
            DatagramProtocol::Raw(protocol) => return self.raw_send(id, way, protocol, payload),
        }
        match way.via {
            Via::Local => self.udp_send_here(id, way, payload),
            Via::Ethernet => self.udp_send_out(id, way, payload),
            Via::Six | Via::NarrowSix => self.udp_send_six(id, way, payload),
        }
    }

    /// Delivers a datagram to a socket of this host.
    fn udp_send_here(
        &mut self,
        id: DatagramId,
        Way { from, to, .. }: Way,
        Payload { length, fill }: Payload<impl FnOnce(&mut [u8])>,
    ) -> Result<Sent, Error> {
        if length > LONGEST {
            return Err(Error::TooLong);
        }
        match self.find_datagrams(Key::new(to, from)) {
            Some(index) => {
                let mut taken = false;
                if let Some(receiver) = self.datagrams.get_mut(index) {
                    taken = receiver.deliver(from, HOP_LIMIT, length, fill);
                }
                if !taken {
                    self.counters.datagrams_dropped += 1;
                }
            }
            // The report of an unreachable port, without the packets.
            None => {
                let socket = self.datagram(id)?;
                if socket.reports.is_some() {
                    let mut bytes = zeroed(0, length)?;
                    fill(&mut bytes);
                    socket.take_report(Report::of_refusal(to), &bytes);
                } else if socket.remote == Some(to) {
                    socket.fail(Error::Refused);
                }
            }
        }
        Ok(Sent::Bytes(length))
    }

    /// Puts a datagram into the socket's send buffer.
    fn udp_send_out(
        &mut self,
        id: DatagramId,
        Way { from, to, via: _ }: Way,
        Payload { length, fill }: Payload<impl FnOnce(&mut [u8])>,
    ) -> Result<Sent, Error> {
        // 20 bytes of IPv4 header, 8 of UDP header; fragments are not sent.
        let mtu = self.ethernet_mtu;
        if length + 28 > mtu {
            return Err(self.datagram(id)?.is_too_long_for(mtu, to));
        }
        let socket = self.departing_from_here(id, length)?;
        let mut meta = udp::UdpMetadata::from(to);
        meta.local_address = Some(from.ip().into());
        let Some(departing) = socket.departing_four()? else { return Ok(Sent::Full) };
        match departing.send(length, meta) {
            Ok(room) => fill(room),
            Err(udp::SendError::BufferFull) => return Ok(Sent::Full),
            Err(_) => return Err(Error::Unreachable),
        }
        self.datagram_work.push(id.index);
        Ok(Sent::Bytes(length))
    }

    /// Returns the socket from which so many bytes are to leave over IPv4, as they are in its send buffer. Those that
    /// would leave from an address that this host has lost are dropped.
    pub(crate) fn departing_from_here(&mut self, id: DatagramId, length: usize) -> Result<&mut Datagrams, Error> {
        let own = self.own;
        let socket = self.datagram(id)?;
        socket.forget_departing_unless_from(own);
        socket.departs_from = own;
        if length > socket.options.send_buffer { Err(Error::TooLong) } else { Ok(socket) }
    }

    /// Puts a datagram over IPv6 into the socket's send buffer.
    pub(crate) fn udp_send_six(
        &mut self,
        id: DatagramId,
        Way { from, to, via: _ }: Way,
        Payload { length, fill }: Payload<impl FnOnce(&mut [u8])>,
    ) -> Result<Sent, Error> {
        let (IpAddr::V6(own), IpAddr::V6(remote)) = (from.ip(), to.ip()) else { return Err(Error::Invalid) };
        let mtu = self.six.mtu_to(remote);
        let socket = self.datagram(id)?;
        if length + socket.options.protocol.header() + smoltcp::wire::IPV6_HEADER_LEN > mtu {
            return Err(socket.is_too_long_for(mtu, to));
        }
        if length > socket.options.send_buffer {
            return Err(Error::TooLong);
        }
        let Some(departing) = socket.departing_six()? else { return Ok(Sent::Full) };
        match departing
            .enqueue(length, SixWay { from: own, to: remote, port: to.port(), waits: false, since: 0, turn: 0 })
        {
            Ok(room) => fill(room),
            Err(_) => return Ok(Sent::Full),
        }
        self.datagram_work.push(id.index);
        Ok(Sent::Bytes(length))
    }

    /// Reports to the sending socket what happened to its datagram or its echo.
    #[cold]
    pub(crate) fn reported(&mut self, about: Quoted, key: Key, frame: &[u8]) {
        let Some((report, _, transport)) = Report::read(frame) else { return };
        let (index, quoted) = match about {
            Quoted::Echo => (self.find_echoes(key), transport),
            _ => {
                let connected = |end| self.datagram_table.find(end, key).filter(|&index| self.is_connected(index));
                let index = connected(key).or_else(|| connected(key.anywhere()));
                (index.or_else(|| self.find_reporting_anywhere(key)), payload_of_udp(transport))
            }
        };
        if let Some(socket) = index.and_then(|index| self.datagrams.get_mut(index)) {
            socket.take_report(report, quoted);
        }
    }

    /// Reports to the sending socket that a datagram was too large for its way, if it wants such reports. Returns
    /// whether there is such a socket.
    pub(crate) fn udp_too_large(&mut self, key: Key, frame: &[u8]) -> bool {
        self.reported(Quoted::Udp, key, frame);
        // Any host can send such a report: it counts if the socket has just sent there.
        let remote = Some(key.remote());
        let socket = self.find_datagrams(key).and_then(|index| self.datagrams.get(index));
        socket.is_some_and(|socket| socket.remote == remote || socket.sent_to == remote)
    }

    fn is_connected(&self, index: u32) -> bool {
        self.datagrams.get(index).is_some_and(|socket| socket.remote.is_some())
    }

    /// Returns the socket without a peer, at the local end of this key, that reports failures of all of its datagrams.
    fn find_reporting_anywhere(&self, key: Key) -> Option<u32> {
        let here = key.without_remote();
        self.find_reporting(here, key).or_else(|| self.find_reporting(here.anywhere(), key))
    }

    /// Returns the socket at this end, without a peer, that reports failures of all of its datagrams.
    fn find_reporting(&self, end: Key, key: Key) -> Option<u32> {
        let index = self.datagram_table.find(end, key)?;
        self.datagrams.get(index).filter(|socket| socket.reports.is_some()).map(|_| index)
    }

    /// Lets a socket send stored datagrams. Returns their number, and at least one.
    pub(crate) fn udp_egress<L: Link>(&mut self, link: &mut L, index: u32, now: Instant) -> usize {
        let Some(socket) = self.datagrams.get_mut(index) else {
            return 1;
        };
        socket.forget_departing_unless_from(self.own);
        let sockets = match &mut socket.departing {
            DepartingDatagrams::None => return 1,
            DepartingDatagrams::Four(sockets) | DepartingDatagrams::Packets(sockets) => sockets,
            DepartingDatagrams::Six { .. } => return self.egress_of_six(link, index, now),
        };
        let mut sent = 0;
        let mut outgoing = Outgoing(link);
        while sent < BURST && self.interfaces.ethernet.poll_egress(now, &mut outgoing, sockets) != PollResult::None {
            sent += 1;
        }
        if sent > 0 {
            socket.senders.wake_all();
        }
        match self.interfaces.ethernet.poll_at(now, sockets) {
            Some(at) if at <= now && sent == BURST => self.datagram_work.push(index),
            // The device is full.
            Some(at) if at <= now => self.datagram_timers.no_later_than(index, now + RETRY),
            Some(at) => self.datagram_timers.no_later_than(index, at),
            None => {}
        }
        sent.max(1)
    }

    /// Lets a socket send stored datagrams over IPv6. Returns their number, and at least one. One for which no hardware
    /// address is known lets the others go first.
    fn egress_of_six<L: Link>(&mut self, link: &mut L, index: u32, now: Instant) -> usize {
        let milliseconds = now.total_millis() as u32;
        let (mut sent, mut looks) = (0, 0);
        let (mut has_dropped, mut is_waiting) = (false, false);
        let mut spare = Vec::new();
        if let Some(Datagrams { departing: DepartingDatagrams::Six { turn, .. }, .. }) = self.datagrams.get_mut(index) {
            *turn = turn.wrapping_add(1);
        }
        while let Some(socket) = self.datagrams.get_mut(index)
            && let DepartingDatagrams::Six { datagrams, waiting, turn } = &mut socket.departing
            && let Ok((&way, payload)) = datagrams.peek()
        {
            let SixWay { from, to, port, waits, .. } = way;
            let is_seen = waits && way.turn == *turn;
            if is_seen && *waiting <= UNRESOLVED {
                break;
            }
            if sent == BURST || looks == LOOKS {
                self.datagram_work.push(index);
                break;
            }
            looks += 1;
            // The address may be lost meanwhile: another host's by now.
            if self.six.is_own(from) {
                let hardware = if is_seen { None } else { self.six.hardware_of(to.into(), now) };
                let Some(hardware) = hardware else {
                    let is_kept = socket.defer(milliseconds, &mut spare);
                    is_waiting |= is_kept;
                    has_dropped |= !is_kept;
                    continue;
                };
                let Some(departing) = link.depart() else {
                    self.datagram_timers.no_later_than(index, now + RETRY);
                    break;
                };
                let envelope = Envelope::new(self.hardware, hardware);
                let token = Enveloped { token: Token(departing), envelope };
                // A group of the network is not left.
                let usual = if to.is_multicast() { 1 } else { 64 };
                let ends = (from, to, socket.hop_limit.unwrap_or(usual));
                match socket.options.protocol {
                    DatagramProtocol::Udp => {
                        let udp = UdpRepr { src_port: socket.local.address.port(), dst_port: port };
                        send_over_six(ends, &udp, payload, token, &self.checksums);
                    }
                    DatagramProtocol::Echo => send_packet_of_six(ends, IpProtocol::Icmpv6, payload, token),
                    DatagramProtocol::Raw(protocol) => send_packet_of_six(ends, protocol.into(), payload, token),
                }
                socket.sent_to = Some(SocketAddr::new(to.into(), port));
                sent += 1;
            }
            *waiting -= usize::from(waits);
            let _ = datagrams.dequeue();
            has_dropped = true;
        }
        if is_waiting {
            self.datagram_timers.no_later_than(index, now + RESOLUTION_RETRY);
            self.discover(link, now);
        }
        if has_dropped && let Some(socket) = self.datagrams.get_mut(index) {
            socket.senders.wake_all();
        }
        sent.max(1)
    }

    pub(crate) fn udp_close(&mut self, id: DatagramId) -> Result<(), Error> {
        let socket = self.datagram(id)?;
        socket.receivers.wake_all();
        socket.senders.wake_all();
        let (keys, local, protocol) = (socket.keys(), socket.local, socket.options.protocol);
        if let DatagramProtocol::Raw(_) = protocol {
            self.raw_close(id.index);
            self.datagram_timers.remove(id.index);
            self.datagrams.remove(id.index);
            return Ok(());
        }
        self.table_of(protocol).remove_all(keys, id.index);
        self.ports_of(protocol).release(local);
        self.datagram_timers.remove(id.index);
        self.datagrams.remove(id.index);
        Ok(())
    }
}

/// Moves the first datagram behind the others, with this record. It is lost if the memory for that is short.
fn move_behind(datagrams: &mut PacketBuffer<'static, SixWay>, way: SixWay, spare: &mut Vec<u8>) -> bool {
    let Ok((_, payload)) = datagrams.dequeue() else { return false };
    spare.clear();
    if spare.try_reserve(payload.len()).is_err() {
        return false;
    }
    spare.extend_from_slice(payload);
    datagrams.enqueue(spare.len(), way).map(|room| room.copy_from_slice(spare)).is_ok()
}

/// Sends a datagram over IPv6.
fn send_over_six<T: TxToken>(
    (from, to, hop_limit): (Ipv6Addr, Ipv6Addr, u8),
    udp: &UdpRepr,
    payload: &[u8],
    token: T,
    checksums: &ChecksumCapabilities,
) {
    let ip = Ipv6Repr {
        src_addr: from,
        dst_addr: to,
        next_header: IpProtocol::Udp,
        payload_len: UDP_HEADER_LEN + payload.len(),
        hop_limit,
    };
    token.consume(ip.buffer_len() + ip.payload_len, |bytes| {
        let (header, datagram) = bytes.split_at_mut(ip.buffer_len());
        ip.emit(&mut Ipv6Packet::new_unchecked(header));
        let write = |bytes: &mut [u8]| bytes.copy_from_slice(payload);
        let (from, to) = (from.into(), to.into());
        udp.emit(&mut UdpPacket::new_unchecked(datagram), &from, &to, payload.len(), write, checksums);
    });
}

/// Returns the payload of the datagram in an Ethernet frame, if its lengths and checksums are right.
pub(crate) fn datagram_payload<'frame>(frame: &'frame [u8], checksums: &ChecksumCapabilities) -> Option<&'frame [u8]> {
    let (source, destination, payload) = parse_ip(frame.get(14..)?, checksums)?;
    let datagram = UdpPacket::new_checked(payload).ok()?;
    UdpRepr::parse(&datagram, &source, &destination, checksums).ok()?;
    Some(datagram.payload())
}

#[cfg(test)]
mod tests {
    use property::with_memory;

    use super::*;

    /// Every byte that a socket takes is stated: before its first datagram leaves, and after.
    #[test]
    fn a_socket_takes_as_much_as_it_states() {
        const LIMIT: usize = 1 << 20;
        let is_there = |bytes: usize| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
        let local = LocalEnd::from(SocketAddr::new(core::net::Ipv4Addr::LOCALHOST.into(), 53));
        for options in [
            DatagramOptions::default(),
            DatagramOptions { receive_buffer: 1000, send_buffer: 3000, datagrams: 7, ..DatagramOptions::default() },
            DatagramOptions { receive_buffer: 0, send_buffer: 0, datagrams: 0, ..DatagramOptions::default() },
        ] {
            let (stated, taken) = with_memory(LIMIT, || {
                let mut socket = Datagrams::new(local, options).unwrap();
                let is_exact = |bytes: usize| is_there(LIMIT - bytes) && !is_there(LIMIT - bytes + 1);
                let before = socket.memory();
                let receiving = is_exact(before);
                socket.departing_six().unwrap().unwrap();
                let six = socket.memory();
                let with_six = is_exact(six);
                socket.departing_four().unwrap().unwrap();
                let after = socket.memory();
                ((before, after, six), (receiving, with_six, is_exact(after)))
            });
            assert_eq!(taken, (true, true, true), "{options:?}: {stated:?}");
            assert!(stated.0 < stated.2 && stated.2 < stated.1);
            // The socket itself is charged beside its buffers.
            assert_eq!(options.memory(), size_of::<Datagrams>() + stated.1);
        }
    }
}
