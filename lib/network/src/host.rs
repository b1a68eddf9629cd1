//! The stack without the link: its objects, the tables that find them, and the effects of arriving packets and passing
//! time.
//!
//! # Invariants
//! * *One owner*: a connection is in the table exactly while its `listed` is set; it then counts as a user of its local
//!   port.
//! * *Marked or idle*: after each operation a connection with a segment to send at once is in the work list, and
//!   one that waits for a time has a timer no later than that time. [`Host::settle`] decides this; a cheaper decision
//!   elsewhere carries a comment with the reason why the invariant still holds.
//! * *Seen once*: wakers fire on the difference between the states that `settle` saw last and sees now.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use alloc::vec::Vec;
use ethernet::{ETHERNET_HEADER, Link};
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, DeviceCapabilities, TxToken};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{
    EthernetAddress, HardwareAddress, Icmpv4Packet, IpCidr, Ipv4Cidr, Ipv4Packet, TcpControl, TcpRepr,
};
use tcp::{Planned, Reaction, State, Turn};

use crate::Error;
use crate::arrivals::{Allowance, Reader};
use crate::charge::{Charge, Held, Need};
use crate::claim::{Claim, Heard};
use crate::configuration::{Address, Counters, Lease, Limits, LocalConnections, Patience};
use crate::dhcp::{self, Change};
use crate::discovery::{Discovery, is_discovery, is_of_a_host, message_in};
use crate::echo::ECHO_REPLY_OF_SIX;
use crate::frame::{Packet, Quoted, Segment, classify_ethernet, classify_ipv4, classify_six};
use crate::groups::{self, delay_of_query};
use crate::half_open::HalfOpen;
use crate::link::{Arrived, Described, Envelope, Enveloped, Frame, Token, capabilities_of_six, is_summed_here};
use crate::packets::PacketSocket;
use crate::reply::Course;
use crate::resolution::{self, Resolution};
use crate::schedule::{Timers, WorkList};
use crate::secrets::Secret;
use crate::segments::{instant, segment_in, time};
use crate::six::{LEAST_MTU, SixNetwork};
use crate::slab::{ConnectionId, DatagramId, ListenerId, Slab};
use crate::table::{Key, LocalEnd, Ports, SharedTable, Table};
use crate::tcp::{Connection, Engine, Holder, Listener, Wire, duration};
use crate::time_wait::{self, TimeWait, Verdict};
use crate::udp::{Datagrams, datagram_payload};

/// The time of something that never happens.
pub(crate) const FAR_AWAY: Instant = Instant::from_micros_const(i64::MAX);
/// Number of connections that one poll looks at after the host's address has changed.
const SWEEPS: u32 = 64;
/// Longest time until the lease is looked at.
const LONGEST_TIMER: Duration = Duration::from_secs(24 * 60 * 60);
/// Number of segments that a connection may send before the next one's turn.
const BURST: usize = 8;
/// Number of segments that one poll or operation sends, give or take a burst; also the number of stored datagrams.
const SEGMENTS: usize = 32;
/// Number of expired timers of each kind that one poll handles, so that others get their turn.
pub(crate) const EXPIRIES: usize = 128;
/// Bytes of memory that are given back in as much time as an expired timer takes.
const BYTES_OF_AN_EXPIRY: usize = 16 * 1024;
/// Number of connections, and of datagram sockets, that try again when a hardware address becomes known. Further ones
/// try when they next request the address.
const RESOLUTIONS: usize = 256;
/// Delay before a full device is tried again.
pub(crate) const RETRY: Duration = Duration::from_millis(1);
/// Delay before a full device is tried again for the lease, which is in no hurry.
const LEASE_RETRY: Duration = Duration::from_millis(100);
/// Delay before a connection within the host that found no memory is tried again.
pub(crate) const ADMISSION_RETRY: Duration = Duration::from_millis(100);
/// Delay before a local connection that found its listener full looks again.
pub(crate) const FULL_RETRY: Duration = Duration::from_secs(1);
/// Pause before a connection tries again whose next hop has not told its hardware address.
pub(crate) const RESOLUTION_RETRY: Duration = Duration::from_secs(1);
/// Number of messages of neighbour discovery that one poll or operation sends.
const DISCOVERIES: usize = 8;
/// Kind of an ICMPv6 message that asks for an echo.
const ECHO_REQUEST_OF_SIX: u8 = 128;
/// Place of the size in a frame with an ICMPv6 message that a packet was too large.
const MTU_AT: usize = ETHERNET_HEADER + 40 + 4;
/// Number of a connection that does not exist.
pub(crate) const NO_CONNECTION: u32 = u32::MAX;
/// Number of connections that are found without the table.
pub(crate) const HEARD_LAST: usize = 256;
/// Number of answers to answers carried at once on the loopback interface. More than a few mean that the two ends
/// disagree; the rest is left to their timers.
const HOPS: usize = 16;

/// Cause of a call of `settle`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// An operation on this host, or the passing of time.
    Local,
    /// A segment from the other side.
    Segment,
    /// A reset from the other side.
    Reset,
}

/// Time of a connection's next turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// At once: the caller must put it into the work list, or go on with it.
    Now,
    /// At the next arrival, or when its timer expires.
    Later,
    /// Never: the connection is gone, or its end is already arranged.
    Gone,
}

/// Interface that a packet leaves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Ethernet,
    /// The packet stays on this host.
    Local,
    /// The Ethernet device, for packets of IPv6.
    Six,
    /// The Ethernet device, for packets of IPv6's least size.
    NarrowSix,
}

impl Via {
    /// Whether it carries packets of IPv6 over the Ethernet device.
    pub(crate) fn is_six(self) -> bool {
        matches!(self, Via::Six | Via::NarrowSix)
    }
}

/// smoltcp's half of the interface, for datagrams, echoes and resolution, one for each family.
pub(crate) struct Interfaces {
    pub(crate) ethernet: Interface,
    /// That for packets of IPv6, without an Ethernet header.
    pub(crate) six: Interface,
}

/// Makes the interface for packets of IPv6 of at most this size.
pub(crate) fn interface_of_six(ethernet: &DeviceCapabilities, mtu: usize, seed: u64, now: Instant) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut interface = Interface::new(config, &mut Described(capabilities_of_six(ethernet, mtu)), now);
    // The stack decides which packets are for this host.
    interface.set_any_ip(true);
    interface
}

/// Bounds of the answers to strangers over IPv6. No kind takes another one's.
pub(crate) struct SixAllowances {
    /// Messages of neighbour discovery that are handled before their turn.
    urgent: Allowance,
    advertisements: Allowance,
    echoes: Allowance,
}

impl SixAllowances {
    pub(crate) const NEW: SixAllowances =
        SixAllowances { urgent: Allowance::NEW, advertisements: Allowance::NEW, echoes: Allowance::NEW };
}

pub(crate) struct Host {
    pub(crate) interfaces: Interfaces,
    /// A packet on its way through the loopback interface, and the answer to it. `None` if the interface is unused.
    pub(crate) frames: [Option<Frame>; 2],
    pub(crate) own: Ipv4Addr,
    pub(crate) hardware: [u8; 6],
    pub(crate) network: Ipv4Cidr,
    pub(crate) gateway: Option<Ipv4Addr>,
    pub(crate) ethernet_mtu: usize,
    /// Addresses, routers and neighbours of IPv6.
    pub(crate) six: SixNetwork,
    /// Neighbours of IPv4.
    pub(crate) four: Resolution,
    pub(crate) capabilities: DeviceCapabilities,
    /// Answers to packets of IPv6 that need one.
    pub(crate) answers_of_six: SixAllowances,
    /// Datagrams to ports without a socket, over either family, that wait for their turn; and the answers to them.
    pub(crate) strays: Allowance,
    pub(crate) refusals: Allowance,
    pub(crate) checksums: ChecksumCapabilities,
    pub(crate) limits: Limits,
    /// Whether memory may be taken on behalf of strangers and programs.
    pub(crate) admits: fn(Need) -> bool,
    pub(crate) patience: Patience,
    pub(crate) local_connections: LocalConnections,
    pub(crate) counters: Counters,
    pub(crate) sequence_numbers: Secret,
    pub(crate) cookies: Secret,

    pub(crate) connections: Slab<Connection>,
    pub(crate) table: Table,
    /// Connections from which segments came last, by the remote port: those that are busy are found without the table.
    pub(crate) heard_last: [u32; HEARD_LAST],
    pub(crate) work: WorkList,
    pub(crate) timers: Timers,
    /// Connections that could not send, perhaps for lack of a hardware address.
    pub(crate) unresolved: WorkList,
    pub(crate) urgent_arps: Allowance,
    pub(crate) orphans: usize,
    /// Connections below this index have delivered all, when the machine ends.
    pub(crate) delivered: u32,
    pub(crate) half_open: HalfOpen,
    pub(crate) time_wait: TimeWait,

    pub(crate) listeners: Slab<Listener>,
    pub(crate) listening: SharedTable,
    pub(crate) bindings: Slab<LocalEnd>,
    pub(crate) ports: Ports,

    pub(crate) datagrams: Slab<Datagrams>,
    pub(crate) datagram_table: SharedTable,
    pub(crate) datagram_ports: Ports,
    /// Sockets for echoes, by their identifiers.
    pub(crate) echo_table: SharedTable,
    pub(crate) identifiers: Ports,
    /// Raw sockets.
    pub(crate) raws: Vec<u32>,
    pub(crate) packets: Slab<PacketSocket>,
    pub(crate) datagram_work: WorkList,
    pub(crate) datagram_timers: Timers,

    /// Empty socket set for packets without a socket: smoltcp answers echo requests and ARP.
    pub(crate) stray: SocketSet<'static>,

    /// Client that asks for the host's address, unless it is fixed.
    pub(crate) dhcp: Option<dhcp::Client>,
    pub(crate) lease: Option<Lease>,
    /// The claim to the address that was lent.
    pub(crate) claim: Option<Claim>,
    /// Connections below this index may have an address that is no longer the host's.
    pub(crate) unswept: u32,
    /// Time at which there is something to do for the lease, or for the connections of a lost one.
    pub(crate) look_at_addresses: Instant,
}

impl Host {
    pub(crate) fn set_address(&mut self, address: Address) -> Result<(), Error> {
        let own = address.address;
        // smoltcp looks for the hardware address of a router, and panics if that can be none.
        if !address.is_valid() {
            return Err(Error::Invalid);
        }
        self.own = own;
        self.network = Ipv4Cidr::new(own, address.prefix);
        self.gateway = address.gateway;
        self.four.clear();
        let network = IpCidr::Ipv4(self.network);
        let mut stored = true;
        self.interfaces.ethernet.update_ip_addrs(|addresses| {
            addresses.clear();
            stored = addresses.push(network).is_ok();
        });
        self.interfaces.ethernet.routes_mut().remove_default_ipv4_route();
        if let Some(gateway) = address.gateway {
            stored &= self.interfaces.ethernet.routes_mut().add_default_ipv4_route(gateway).is_ok();
        }
        if stored { Ok(()) } else { Err(Error::Invalid) }
    }

    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        address.is_loopback()
            || match address {
                IpAddr::V4(address) => address == self.own && !self.own.is_unspecified(),
                IpAddr::V6(address) => self.six.is_own(address),
            }
    }

    /// Returns whether an address is that of all hosts of the network.
    pub(crate) fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        address.is_broadcast() || self.network.broadcast() == Some(address)
    }

    /// Returns the interface for packets to `remote`, and their local address.
    fn route(&self, remote: IpAddr) -> Result<(Via, IpAddr), Error> {
        match remote {
            IpAddr::V4(remote) => self.route_of_four(remote).map(|(via, address)| (via, address.into())),
            IpAddr::V6(remote) => self.route_of_six(remote).map(|(via, address)| (via, address.into())),
        }
    }

    fn route_of_six(&self, remote: Ipv6Addr) -> Result<(Via, Ipv6Addr), Error> {
        if self.is_own(remote.into()) {
            return Ok((Via::Local, remote));
        }
        let own = self.six.route(remote).ok_or(Error::Unreachable)?;
        let via = if self.six.is_narrow(remote) { Via::NarrowSix } else { Via::Six };
        Ok((via, own))
    }

    fn route_of_four(&self, remote: Ipv4Addr) -> Result<(Via, Ipv4Addr), Error> {
        if remote.is_loopback() {
            Ok((Via::Local, Ipv4Addr::LOCALHOST))
        } else if self.own.is_unspecified() {
            Err(Error::Unreachable)
        } else if remote == self.own {
            Ok((Via::Local, self.own))
        } else if self.network.contains_addr(&remote) || self.gateway.is_some() || remote.is_broadcast() {
            Ok((Via::Ethernet, self.own))
        } else {
            Err(Error::Unreachable)
        }
    }

    /// Returns the route as [`route`](Self::route) does, for a socket that may be bound to one address.
    pub(crate) fn route_from(&self, local: IpAddr, remote: IpAddr) -> Result<(Via, IpAddr), Error> {
        let (via, preferred) = self.route(remote)?;
        if local.is_unspecified() {
            Ok((via, preferred))
        } else if local.is_ipv4() != preferred.is_ipv4() {
            Err(Error::Unreachable)
        } else if via != Via::Local && local.is_loopback() {
            // A loopback address must not appear on a wire.
            Err(Error::Unreachable)
        } else if via != Via::Local && !self.is_own(local) {
            // That of a lease which is lost.
            Err(Error::AddressUnavailable)
        } else {
            Ok((via, local))
        }
    }

    pub(crate) fn connection(&mut self, id: ConnectionId) -> Result<&mut Connection, Error> {
        let index = self.connections.resolve(id.index, id.generation)?;
        self.connections.get_mut(index).ok_or(Error::Stale)
    }

    pub(crate) fn listener(&mut self, id: ListenerId) -> Result<&mut Listener, Error> {
        let index = self.listeners.resolve(id.index, id.generation)?;
        self.listeners.get_mut(index).ok_or(Error::Stale)
    }

    pub(crate) fn datagram(&mut self, id: DatagramId) -> Result<&mut Datagrams, Error> {
        let index = self.datagrams.resolve(id.index, id.generation)?;
        self.datagrams.get_mut(index).ok_or(Error::Stale)
    }

    /// Returns the listener for a packet with this key.
    pub(crate) fn find_listener(&self, key: Key) -> Option<u32> {
        if !self.is_own(key.local().ip()) {
            return None;
        }
        let here = key.without_remote();
        self.listening.find(here, key).or_else(|| self.listening.find(here.anywhere(), key))
    }

    // Arriving packets.

    /// Classifies a frame of `length` bytes by its beginning.
    pub(crate) fn classify(&self, beginning: &[u8], length: usize) -> Packet {
        classify_ethernet(beginning, length, self.own, |beginning, length| self.classify_six(beginning, length))
    }

    #[inline(never)]
    fn classify_six(&self, beginning: &[u8], length: usize) -> Packet {
        let is_for_us = |destination| self.six.is_own(destination) || self.six.is_member(destination);
        let packet = || classify_six(beginning, length, self.hardware, is_for_us);
        self.six.is_on().then(packet).flatten().unwrap_or(Packet::Drop)
    }

    /// Returns the reader that waits for a packet that has just arrived, and the connection that it is for.
    pub(crate) fn receiver_of(&mut self, packet: &Packet, now: Instant) -> (Reader, u32) {
        if let Packet::Tcp(key) = *packet {
            return self.receiver_of_segment(key);
        }
        (self.reader_of_other(packet, now), NO_CONNECTION)
    }

    /// Whether nothing comes of a packet that has just arrived: mostly one of too many datagrams to ports without a
    /// socket.
    pub(crate) fn is_for_nobody(&mut self, packet: &Packet, now: Instant) -> bool {
        match *packet {
            Packet::Drop => true,
            Packet::Udp(key) => {
                let port = key.local_port();
                !self.datagram_ports.is_used(port)
                    && self.raws.is_empty()
                    && (port != dhcp::CLIENT_PORT || self.dhcp.is_none())
                    && !self.strays.takes_one(now)
            }
            _ => false,
        }
    }

    #[inline(always)]
    fn receiver_of_segment(&mut self, key: Key) -> (Reader, u32) {
        let remembered = &mut self.heard_last[usize::from(key.remote_port()) % HEARD_LAST];
        if let Some(connection) = self.connections.get(*remembered)
            && connection.is_found_by(key)
            && connection.reader != Reader::NOBODY
        {
            return (connection.reader, *remembered);
        }
        let found = self.table.find(key).unwrap_or(NO_CONNECTION);
        *remembered = found;
        match self.connections.get(found).map(|connection| connection.reader) {
            // The connection is not accepted yet, or has no reader.
            None | Some(Reader::NOBODY) => {
                let listener = self.find_listener(key).and_then(|index| self.listeners.get(index));
                (listener.map_or(Reader::NOBODY, |one| one.reader), found)
            }
            Some(reader) => (reader, found),
        }
    }

    fn reader_of_other(&mut self, packet: &Packet, now: Instant) -> Reader {
        let is_urgent = match *packet {
            Packet::Message(kind) if !is_discovery(kind) => return Reader::NOBODY,
            Packet::Message(_) => self.answers_of_six.urgent.takes_one(now),
            Packet::Arp => self.urgent_arps.takes_one(now),
            Packet::Echo(key) => {
                let socket = self.find_echoes(key).and_then(|index| self.datagrams.get(index));
                return socket.map_or(Reader::NOBODY, |socket| socket.reader);
            }
            Packet::Udp(key) => {
                let socket = self.find_datagrams(key).and_then(|index| self.datagrams.get(index));
                return socket.map_or(Reader::NOBODY, |socket| socket.reader);
            }
            Packet::Tcp(_)
            | Packet::Unreachable(..)
            | Packet::TooLarge(..)
            | Packet::Reported(..)
            | Packet::Other
            | Packet::Drop => return Reader::NOBODY,
        };
        if is_urgent { Reader::STACK } else { Reader::NOBODY }
    }

    /// Handles a frame. `connection` is that which its segment was found to be for; it may be gone by now.
    pub(crate) fn ethernet_input<T: TxToken>(
        &mut self,
        packet: Packet,
        connection: u32,
        frame: &[u8],
        answer: T,
        now: Instant,
    ) {
        if self.has_packet_sockets() {
            self.show_frame(frame, false);
        }
        if !self.raws.is_empty() && packet != Packet::Drop {
            self.raw_input(frame);
        }
        match packet {
            Packet::Tcp(key) => {
                let via = match key {
                    Key::Four(_) => Via::Ethernet,
                    Key::Six(_) if self.is_forged(key) => return,
                    Key::Six(_) => Via::Six,
                };
                self.tcp_input(via, key, connection, frame, answer, now);
            }
            Packet::Udp(key) => self.udp_input(key, frame, answer, now),
            Packet::Echo(key) => self.echo_input(key, frame),
            Packet::Unreachable(about, key) => {
                if self.can_have_sent(about, key, frame) && is_intact_message(frame, &self.checksums) {
                    self.unreachable(about, key, frame, now);
                }
            }
            Packet::Reported(about, key) => {
                if self.can_have_sent(about, key, frame) && is_intact_message(frame, &self.checksums) {
                    self.reported(about, key, frame);
                }
            }
            Packet::TooLarge(about, key) => {
                if self.can_have_sent(about, key, frame) && is_intact_message(frame, &self.checksums) {
                    self.too_large(about, key, frame, now);
                }
            }
            Packet::Message(kind) => self.message_of_six(kind, frame, answer, now),
            Packet::Arp => {
                let heard = self.claim.as_mut().map(|claim| claim.hear(frame, now));
                match heard {
                    None | Some(Heard::Nothing) => {}
                    Some(Heard::Attack) => self.set_look_at_addresses(now),
                    Some(Heard::Conflict) => return self.decline(answer, now),
                }
                let is_resolved = self.four.hear(frame, self.own, &self.network, now);
                poll_one(&mut self.interfaces.ethernet, &mut self.stray, frame, answer, now);
                if is_resolved {
                    self.try_unresolved();
                } else {
                    // smoltcp, which sends them, may have heard of theirs.
                    self.try_unresolved_datagrams();
                }
            }
            Packet::Other => poll_one(&mut self.interfaces.ethernet, &mut self.stray, frame, answer, now),
            Packet::Drop => {}
        }
    }

    /// Gives up an address that another host has.
    #[cold]
    fn decline<T: TxToken>(&mut self, token: T, now: Instant) {
        self.counters.conflicts += 1;
        let change = self.dhcp.as_mut().and_then(|client| client.decline(token, &self.checksums, now));
        self.take_change(change, now);
        self.set_look_at_addresses(now);
    }

    /// Lets those try again that wait for a hardware address, which may be known now.
    fn try_unresolved(&mut self) {
        for _ in 0..RESOLUTIONS {
            let Some(index) = self.unresolved.pop() else { break };
            self.work.push(index);
        }
        self.try_unresolved_datagrams();
    }

    fn try_unresolved_datagrams(&mut self) {
        for _ in 0..RESOLUTIONS {
            let Some(index) = self.datagram_timers.expired(FAR_AWAY) else { break };
            self.datagram_work.push(index);
        }
    }

    /// Whether this host can have sent a packet with these ends over the wire, which an error in `frame` quotes: from
    /// the address to which the error came, to another host.
    #[cold]
    fn can_have_sent(&self, about: Quoted, key: Key, frame: &[u8]) -> bool {
        let (local, remote) = (key.local(), key.remote());
        let came_to = |offset: usize, octets: &[u8]| {
            frame.get(ETHERNET_HEADER + offset..).is_some_and(|rest| rest.starts_with(octets))
        };
        let ends = match (local.ip(), remote.ip()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let is_of_none = other.is_unspecified() || other.is_loopback() || other.is_multicast();
                came_to(16, &own.octets()) && !is_of_none && !self.is_broadcast(other)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => came_to(24, &own.octets()) && is_of_a_host(other),
            _ => false,
        };
        let is_own = self.is_own(local.ip()) && !local.ip().is_loopback() && !self.is_own(remote.ip());
        ends && is_own && local.port() != 0 && (remote.port() != 0 || about == Quoted::Echo)
    }

    /// Whether a packet of IPv6 from the wire has a source that is this host's.
    pub(crate) fn is_forged(&self, key: Key) -> bool {
        matches!(key.remote().ip(), IpAddr::V6(source) if self.six.is_own(source))
    }

    /// Handles a message of ICMPv6 that is no error.
    #[cold]
    fn message_of_six<T: TxToken>(&mut self, kind: u8, frame: &[u8], answer: T, now: Instant) {
        if kind == groups::QUERY {
            if let Some(delay) = delay_of_query(frame) {
                self.six.is_asked_for_groups(delay, now);
                self.set_look_at_addresses(now);
            }
            return;
        }
        let Some((packet, message)) = message_in(frame) else { return };
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        if kind == ECHO_REQUEST_OF_SIX {
            let is_possible = self.six.is_own(destination) && !source.is_unspecified() && !self.six.is_own(source);
            if is_possible && self.answers_of_six.echoes.takes_one(now) {
                poll_via(&mut self.interfaces, Via::Six, &mut self.stray, frame, answer, now);
            }
            return;
        }
        if kind == ECHO_REPLY_OF_SIX {
            if self.six.is_own(destination) && !self.six.is_own(source) {
                self.echo_reply(destination.into(), source.into(), packet.hop_limit(), message);
            }
            return;
        }
        // No other host has this one's address.
        if !is_discovery(kind) || self.six.is_own(source) {
            return;
        }
        let Some(sender) = frame.get(6..12).and_then(|sender| sender.first_chunk()) else { return };
        let Some(heard) = Discovery::read(&packet, message) else { return };
        let reaction = self.six.hear(&heard, source, *sender, destination, now);
        if let Some(own) = reaction.answer
            && self.answers_of_six.advertisements.takes_one(now)
        {
            own.send(self.hardware, answer);
        }
        if reaction.is_resolved {
            self.try_unresolved();
        }
        if reaction.is_resized {
            let seed = self.cookies.of_number(now.total_micros() as u64);
            self.interfaces.six = interface_of_six(&self.capabilities, self.six.mtu(), seed, now);
            self.limit_segments(Via::Six);
        }
        self.set_look_at_addresses(now);
    }

    /// Sends the messages of neighbour discovery that are due, or some of them.
    #[cold]
    pub(crate) fn discover<L: Link>(&mut self, link: &mut L, now: Instant) {
        for _ in 0..DISCOVERIES {
            let Some(message) = self.six.due(now) else { break };
            match link.depart() {
                Some(departing) => message.send(self.hardware, Token(departing)),
                None => {
                    self.six.put_off(&message, now + LEASE_RETRY);
                    break;
                }
            }
        }
        for _ in 0..DISCOVERIES {
            let Some(question) = self.four.due(now) else { break };
            match link.depart() {
                Some(departing) if !self.own.is_unspecified() => {
                    resolution::ask(&question, self.own, self.hardware, Token(departing));
                }
                _ => {
                    self.four.put_off(&question, now + LEASE_RETRY);
                    break;
                }
            }
        }
        self.set_look_at_addresses(now);
    }

    /// Takes into account that a packet was too large for its way.
    #[cold]
    fn too_large(&mut self, about: Quoted, key: Key, frame: &[u8], now: Instant) {
        let IpAddr::V6(remote) = key.remote().ip() else { return };
        // The size that the link behind it has (RFC 8201, section 4): one that changes nothing tells nothing.
        let size = frame.get(MTU_AT..).and_then(|rest| rest.first_chunk()).map(|size| u32::from_be_bytes(*size));
        if !size.is_some_and(|size| (LEAST_MTU..self.six.mtu_to(remote)).contains(&(size as usize))) {
            return;
        }
        let is_true = match about {
            // A host that has not seen the packet does not know its number (RFC 5927, section 7.2).
            Quoted::Tcp { sequence } => match self.table.find(key).and_then(|index| self.connections.get_mut(index)) {
                Some(Connection { engine: Engine::Wire(wire), .. }) if wire.tcp().is_under_way(sequence) => {
                    wire.narrow();
                    true
                }
                _ => false,
            },
            Quoted::Udp => self.udp_too_large(key, frame),
            Quoted::Echo => false,
        };
        if is_true {
            self.six.narrow(remote, now);
        }
    }

    #[inline(always)]
    fn tcp_input<T: TxToken>(&mut self, via: Via, key: Key, connection: u32, frame: &[u8], answer: T, now: Instant) {
        let Some(arrived) = segment_in(via, frame, self.hardware, &self.checksums) else { return };
        let index = match self.connections.get(connection).is_some_and(|found| found.is_found_by(key)) {
            true => Some(connection),
            false => self.table.find(key),
        };
        if let Some(index) = index {
            if self.unswept > 0 && self.abort_if_lost(index, now) {
                return;
            }
            let admits = self.admits;
            let Some(connection) = self.connections.get_mut(index) else { return };
            let Engine::Wire(wire) = &mut connection.engine else { return };
            if (wire.via == Via::Local) != (via == Via::Local) {
                return;
            }
            wire.last_heard = now;
            let (reaction, asked) = connection.input(&arrived, admits, now);
            let Engine::Wire(wire) = &mut connection.engine else { return };
            let is_kept_waiting = is_kept_waiting(wire, &arrived);
            if connection.holder == Holder::None && !wire.tcp().incoming().is_empty() {
                // The bytes would never be received (RFC 9293, section 3.6.1).
                wire.tcp_mut().abort();
            }
            if let Some(asked) = asked {
                self.memory_was_asked_for(index, asked, now);
            }
            if reaction != Reaction::Usual {
                self.react(reaction, (via, index), &Segment::of(key, &arrived), frame, answer, now);
            }
            if is_kept_waiting {
                self.arm_timeouts(index, now);
            }
            let cause = if reaction == Reaction::Ended { Cause::Reset } else { Cause::Segment };
            if self.settle(index, now, cause) == Next::Now {
                self.work.push(index);
            }
            return;
        }
        self.stray_input(via, Segment::of(key, &arrived), frame, answer, now);
    }

    /// A connection has asked for memory for a segment, which was allowed or not: then the other side sends the bytes
    /// again.
    #[cold]
    #[inline(never)]
    pub(crate) fn memory_was_asked_for(&mut self, index: u32, is_allowed: bool, now: Instant) {
        if !is_allowed {
            self.counters.arrivals_without_memory += 1;
        }
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.settle_charge();
        if let Some(at) = connection.set_rest(now) {
            self.timers.no_later_than(index, at);
        }
    }

    /// Handles a segment that is for no connection.
    #[cold]
    #[inline(never)]
    fn stray_input<T: TxToken>(&mut self, via: Via, segment: Segment, frame: &[u8], answer: T, now: Instant) {
        let key = segment.key;
        // A lease may have been lost: nothing new begins with its address.
        if via != Via::Local && !self.is_own(key.local().ip()) {
            return;
        }
        // Not a connection: in turn a request, a record of an ended connection, a listener, a cookie.
        if let Some(index) = self.half_open.find(key) {
            self.half_open_input(index, via, segment, frame, answer, now);
            return;
        }
        let listener = if segment.opens() { self.find_listener(key) } else { None };
        let stamp = || Some(segment_in(via, frame, self.hardware, &self.checksums)?.options().stamps?.0);
        match self.time_wait.find(key, &segment, listener.is_some(), stamp, now) {
            Verdict::Unknown => {}
            Verdict::Replaced => self.ports.leave(segment.key.local_port()),
            Verdict::Ignore => return,
            Verdict::Acknowledge(remains) => {
                if let Some(course) = Course::back(via, key, frame, self.hardware) {
                    remains.acknowledge(&course, answer, &self.checksums_of(via), now);
                }
                return;
            }
        }
        match listener {
            Some(listener) => self.request(via, listener, segment, frame, answer, now),
            None => {
                if let Some(answer) = self.cookie_input(via, segment, frame, answer, now) {
                    self.refuse(via, &segment, frame, answer);
                }
            }
        }
    }

    /// Answers a segment of no connection, or one that is refused, with a reset (RFC 9293, section 3.5.2).
    pub(crate) fn refuse<T: TxToken>(&mut self, via: Via, segment: &Segment, frame: &[u8], answer: T) {
        let from = segment.key.remote().ip();
        let course = Course::back(via, segment.key, frame, self.hardware);
        let Some(course) = course.filter(|_| !segment.is_reset()) else { return };
        if from.is_unspecified() || self.is_for_many(via, from) {
            return;
        }
        let reset = if segment.acknowledges() {
            TcpRepr { ack_number: None, ..course.segment(TcpControl::Rst, segment.acknowledgement, 0) }
        } else {
            course.segment(TcpControl::Rst, 0, segment.sequence.wrapping_add(segment.length))
        };
        course.send(&reset, answer, &self.checksums_of(via));
    }

    /// Answers a segment at once that needs that, and counts challenges to resets and requests that another host may
    /// have forged (RFC 5961, sections 3.2 and 4.2).
    #[cold]
    #[inline(never)]
    fn react<T: TxToken>(
        &mut self,
        reaction: Reaction,
        (via, index): (Via, u32),
        segment: &Segment,
        frame: &[u8],
        answer: T,
        now: Instant,
    ) {
        match reaction {
            Reaction::Answer => {
                let Some(course) = Course::back(via, segment.key, frame, self.hardware) else { return };
                let Some(Connection { engine: Engine::Wire(wire), .. }) = self.connections.get_mut(index) else {
                    return;
                };
                let departure = wire.tcp_mut().acknowledgement();
                // The way back fills in the checksum, where that is to be done here.
                course.depart(wire.tcp(), &departure, false, answer, now);
            }
            Reaction::Refused => self.refuse(via, segment, frame, answer),
            Reaction::Challenged if segment.resets_or_synchronizes() => self.counters.challenges += 1,
            Reaction::Challenged | Reaction::Ended | Reaction::Usual => {}
        }
    }

    /// Enters a connection in all tables. Nothing is changed if this fails.
    pub(crate) fn add(&mut self, connection: Connection) -> Result<u32, Error> {
        let index = self.connections.next_index()?;
        self.work.reserve(index)?;
        self.unresolved.reserve(index)?;
        self.timers.reserve(index)?;
        let key = connection.key;
        if self.table.find(key).is_some() {
            return Err(Error::AddressInUse);
        }
        self.ports.join(key.local_port())?;
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
            Err(_) => self.ports.leave(key.local_port()),
        }
        added
    }

    fn unreachable(&mut self, about: Quoted, key: Key, frame: &[u8], now: Instant) {
        match about {
            // Only a connection that is being made is given up, and only if its request is quoted, whose number no
            // other host knows (RFC 5927, section 4.1): any host can forge such a message, and an established
            // connection has better evidence.
            Quoted::Tcp { sequence } => {
                if let Some(index) = self.table.find(key)
                    && let Some(connection) = self.connections.get_mut(index)
                    && let Engine::Wire(wire) = &mut connection.engine
                    && wire.via != Via::Local
                    && wire.tcp().state() == State::SynSent
                    && wire.tcp().is_under_way(sequence)
                {
                    connection.failure = Some(Error::Unreachable);
                    wire.tcp_mut().abort();
                    self.settle(index, now, Cause::Local);
                    self.remove_closed(index);
                }
            }
            Quoted::Udp | Quoted::Echo => self.reported(about, key, frame),
        }
    }

    // Reactions to changes.

    /// Compares a connection with its last seen state, wakes the tasks that wait for the difference, and returns the
    /// time of its next turn.
    pub(crate) fn settle(&mut self, index: u32, now: Instant, cause: Cause) -> Next {
        let Some(connection) = self.connections.get_mut(index) else {
            return Next::Gone;
        };
        let Engine::Wire(wire) = &mut connection.engine else {
            return Next::Gone;
        };
        let (before, seen) = wire.look();
        if seen.received > before.received {
            connection.receivers.wake_all();
        }
        if seen.unsent < before.unsent && !connection.senders.is_empty() && wire.has_room() {
            connection.senders.wake_all();
        }
        if seen.state != before.state {
            if self.changed(index, before.state, seen.state, cause, now) == Next::Gone {
                return Next::Gone;
            }
        } else if seen.unsent < before.unsent {
            self.arm_timeouts(index, now);
        }
        self.schedule(index, now)
    }

    /// Calls [`settle`](Self::settle) after an operation, and puts the connection into the work list if it can go on.
    pub(crate) fn touch(&mut self, index: u32, now: Instant) {
        if self.settle(index, now, Cause::Local) == Next::Now {
            self.work.push(index);
        }
    }

    /// Reacts to a change of state.
    fn changed(&mut self, index: u32, before: State, state: State, cause: Cause, now: Instant) -> Next {
        let Some(connection) = self.connections.get_mut(index) else {
            return Next::Gone;
        };
        connection.wake_all();
        let Engine::Wire(wire) = &mut connection.engine else {
            return Next::Gone;
        };
        match state {
            State::Closed => {
                if cause == Cause::Reset && connection.failure.is_none() {
                    connection.failure = match before {
                        State::SynSent => Some(Error::Refused),
                        State::LastAck | State::TimeWait | State::Closing => None,
                        _ => Some(Error::Reset),
                    };
                }
                connection.give_up_at = None;
                if wire.tcp().is_finished() {
                    return self.remove_closed(index);
                }
                // Otherwise `egress` still tells the other side, and then removes the connection.
                self.work.push(index);
                return Next::Gone;
            }
            State::TimeWait => {
                // The last acknowledgement is sent now; `egress` keeps the record that remains after that.
                connection.give_up_at = None;
                self.work.push(index);
                return Next::Gone;
            }
            _ => {}
        }
        self.arm_timeouts(index, now);
        Next::Later
    }

    /// Restarts the time limit for the other side's next step.
    #[inline(always)]
    pub(crate) fn arm_timeouts(&mut self, index: u32, now: Instant) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        let Engine::Wire(wire) = &connection.engine else {
            return;
        };
        let orphan = connection.holder == Holder::None;
        let tcp = wire.tcp();
        let patience_ns = match tcp.state() {
            State::SynSent => Some(self.patience.connect_ns),
            State::SynReceived => Some(self.patience.handshake_ns),
            State::Established | State::CloseWait if !tcp.outgoing().is_empty() => {
                Some(wire.patience_ns(self.patience.acknowledgement_ns))
            }
            State::FinWait1 | State::Closing | State::LastAck if orphan => Some(self.patience.orphan_ns),
            State::FinWait1 | State::Closing | State::LastAck => Some(self.patience.acknowledgement_ns),
            State::FinWait2 if orphan => Some(self.patience.orphan_ns),
            _ => None,
        };
        connection.give_up_at = patience_ns.map(|ns| now + duration(ns));
    }

    /// Returns the time of a connection's next turn; enters its timer.
    fn schedule(&mut self, index: u32, now: Instant) -> Next {
        let Some(connection) = self.connections.get_mut(index) else {
            return Next::Gone;
        };
        let deadline = connection.deadline();
        let Engine::Wire(wire) = &mut connection.engine else {
            return Next::Gone;
        };
        if wire.seen.state == State::Closed {
            return Next::Later;
        }
        // Without lists of possible times, which would be half of this function.
        let at = match wire.tcp_mut().turn(time(now)) {
            Turn::Now => return Next::Now,
            Turn::At(at) => instant(at).min(deadline.unwrap_or(FAR_AWAY)),
            Turn::Idle => deadline.unwrap_or(FAR_AWAY),
        };
        if at != FAR_AWAY {
            self.timers.no_later_than(index, at);
        }
        Next::Later
    }

    /// Lets a connection send until it has nothing to send or had its turn. Returns an upper bound on the segments
    /// sent.
    fn egress<L: Link>(&mut self, link: &mut L, index: u32, now: Instant) -> usize {
        for sent in 1..=BURST {
            let next = self.send_one(link, index, now);
            // A packet on the loopback interface now finds its sender settled, like a frame that comes later.
            self.carry(now);
            if next != Next::Now {
                return sent;
            }
        }
        self.work.push(index);
        BURST
    }

    /// Lets a connection send one segment. Returns `Now` if it may have more.
    fn send_one<L: Link>(&mut self, link: &mut L, index: u32, now: Instant) -> Next {
        if self.unswept > 0 && self.abort_if_lost(index, now) {
            return Next::Gone;
        }
        let Some(connection) = self.connections.get_mut(index).filter(|connection| connection.listed) else {
            return Next::Gone;
        };
        let Engine::Wire(wire) = &mut connection.engine else { return Next::Gone };
        let Some(planned) = wire.tcp_mut().plan(time(now)) else { return self.sent_all(index, now) };
        let (via, key) = (wire.via, connection.key);
        let hardware = match (via, key) {
            (Via::Local, _) => Some([0; 6]),
            (_, Key::Four(key)) => {
                let (_, remote) = key.addresses();
                let hop = next_hop(&self.network, self.gateway, Ipv4Addr::from_bits(remote));
                let hardware = self.four.hardware_of(hop, now);
                // A neighbour that has been silent is asked in a while.
                self.look_at_addresses = self.look_at_addresses.min(self.four.next());
                hardware
            }
            (_, key) => {
                let hardware = self.six.hardware_of(key.remote().ip(), now);
                self.look_at_addresses = self.look_at_addresses.min(self.six.next());
                hardware
            }
        };
        let Some(hardware) = hardware else {
            let at = now + RESOLUTION_RETRY;
            let at = connection.deadline().map_or(at, |deadline| deadline.min(at));
            self.unresolved.push(index);
            self.timers.no_later_than(index, at);
            self.discover(link, now);
            return match self.sent_all(index, now) {
                Next::Now => Next::Later,
                next => next,
            };
        };
        let course = Course { via, key, hardware: [self.hardware, hardware] };
        let is_sent = if via == Via::Local {
            let [frame, _] = &mut self.frames;
            emit(wire, &course, planned, false, frame.as_mut(), now)
        } else {
            let is_summed = is_summed_here(link);
            emit(wire, &course, planned, is_summed, link.depart().map(Token), now)
        };
        match self.sent_all(index, now) {
            Next::Now if !is_sent => {
                // The device is full.
                self.timers.no_later_than(index, now + RETRY);
                Next::Later
            }
            next => next,
        }
    }

    /// Returns the time of the next turn of a connection that has had one; one that has ended is removed.
    #[inline]
    fn sent_all(&mut self, index: u32, now: Instant) -> Next {
        let Some(connection) = self.connections.get_mut(index) else { return Next::Gone };
        let Engine::Wire(wire) = &mut connection.engine else { return Next::Gone };
        match wire.tcp().state() {
            State::Closed => {
                // The reset is sent, or cannot be.
                wire.look();
                self.remove_closed(index)
            }
            State::TimeWait => {
                wire.look();
                if connection.holder == Holder::None {
                    self.retire(index, now);
                }
                Next::Gone
            }
            _ => self.schedule(index, now),
        }
    }

    /// Delivers the packet that a connection has written on the loopback interface, and the answer in return.
    pub(crate) fn carry(&mut self, now: Instant) {
        let [Some(first), Some(_)] = &self.frames else {
            return;
        };
        if first.packet().is_none() {
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
            if let Packet::Tcp(key) = classify_ipv4(packet) {
                self.tcp_input(Via::Local, key, NO_CONNECTION, packet, &mut empty, now);
            }
            full.clear();
            core::mem::swap(&mut full, &mut empty);
        }
        full.clear();
        self.frames = [Some(full), Some(empty)];
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.is_empty() || !self.datagram_work.is_empty() || self.half_open.has_work()
    }

    /// Sends the segments that the last operation has left to be sent, or some of them.
    pub(crate) fn send_new<L: Link>(&mut self, link: &mut L, now: Instant) {
        let mut left = SEGMENTS;
        while left > 0
            && let Some(index) = self.work.pop_new()
        {
            left = left.saturating_sub(self.egress(link, index, now));
        }
        let mut left = SEGMENTS;
        while left > 0
            && let Some(index) = self.datagram_work.pop_new()
        {
            left = left.saturating_sub(self.udp_egress(link, index, now));
        }
        self.work.leave();
        self.datagram_work.leave();
    }

    /// Sends some of the pending segments. `begin` is called with each reader, and may refuse for now.
    pub(crate) fn send<L: Link>(&mut self, link: &mut L, now: Instant, mut begin: impl FnMut(Reader) -> bool) {
        let mut left = SEGMENTS;
        while left > 0
            && let Some(index) = self.work.first()
            && begin(self.connections.get(index).map_or(Reader::NOBODY, |connection| connection.reader))
        {
            self.work.pop();
            left = left.saturating_sub(self.egress(link, index, now));
        }
        let mut left = SEGMENTS;
        while left > 0
            && let Some(index) = self.datagram_work.first()
            && begin(self.datagrams.get(index).map_or(Reader::NOBODY, |socket| socket.reader))
        {
            self.datagram_work.pop();
            left = left.saturating_sub(self.udp_egress(link, index, now));
        }
        self.work.leave();
        self.datagram_work.leave();
    }

    /// Returns the earliest time at which there is something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let or_never = |at: Option<Instant>| at.unwrap_or(FAR_AWAY);
        let connections = or_never(self.timers.next()).min(self.look_at_addresses);
        let datagrams = or_never(self.datagram_timers.next());
        let records = or_never(self.time_wait.next()).min(or_never(self.half_open.next()));
        let next = connections.min(datagrams).min(records);
        (next != FAR_AWAY).then(|| next.total_micros().max(0) as u64 * 1000)
    }

    /// Handles some of the expired timers of connections. `begin` is called with each reader, and may refuse for now.
    pub(crate) fn expire(&mut self, now: Instant, mut begin: impl FnMut(Reader) -> bool) {
        let mut left = EXPIRIES;
        while left > 0
            && let Some(index) = self.timers.expired(now)
        {
            let Some(connection) = self.connections.get_mut(index) else {
                continue;
            };
            if !begin(connection.reader) {
                self.timers.no_later_than(index, now);
                break;
            }
            let (shrink_at, given_back) = connection.shrink(now);
            left = left.saturating_sub(1 + given_back / BYTES_OF_AN_EXPIRY);
            if shrink_at != FAR_AWAY {
                self.timers.no_later_than(index, shrink_at);
            }
            let is_over = connection.deadline().is_some_and(|at| at <= now);
            match &mut connection.engine {
                Engine::Local(_) if is_over => {
                    self.local_refuse(index, Error::TimedOut);
                    continue;
                }
                Engine::Local(_) => {
                    self.local_try_again(index, now);
                    continue;
                }
                Engine::Wire(wire) if is_over => {
                    wire.tcp_mut().abort();
                    if connection.failure.is_none() {
                        connection.failure = Some(Error::TimedOut);
                    }
                }
                Engine::Wire(_) => {}
            }
            self.touch(index, now);
        }
        for _ in 0..EXPIRIES {
            let Some(index) = self.datagram_timers.expired(now) else { break };
            self.datagram_work.push(index);
        }
    }

    /// Asks for a lease or its renewal, gives a lapsed one up, discovers neighbours, and aborts some connections whose
    /// address is lost.
    #[cold]
    pub(crate) fn keep_addresses<L: Link>(&mut self, link: &mut L, now: Instant) {
        if self.six.expire(now) {
            self.unswept = self.connections.indexes();
        }
        self.discover(link, now);
        let change = self.dhcp.as_mut().and_then(|client| client.lapse(now));
        self.take_change(change, now);
        if let Some(client) = self.dhcp.as_mut().filter(|client| client.next() <= now) {
            match link.depart() {
                Some(departing) => client.ask(Token(departing), &self.checksums, now),
                None => client.put_off(now + LEASE_RETRY),
            }
        }
        if let Some(claim) = self.claim.as_mut().filter(|claim| claim.next() <= now) {
            match link.depart() {
                Some(departing) => claim.send(Token(departing), now),
                None => claim.put_off(now + LEASE_RETRY),
            }
        }
        for _ in 0..SWEEPS.min(self.unswept) {
            self.unswept -= 1;
            self.abort_if_lost(self.unswept, now);
        }
        self.set_look_at_addresses(now);
    }

    pub(crate) fn set_look_at_addresses(&mut self, now: Instant) {
        let lease = self.dhcp.as_ref().map_or(FAR_AWAY, dhcp::Client::next);
        let claim = self.claim.as_ref().map_or(FAR_AWAY, Claim::next);
        let neighbours = self.six.next().min(self.four.next());
        let next = if self.unswept > 0 { now } else { lease.min(neighbours).min(claim) };
        self.look_at_addresses = if next == FAR_AWAY { next } else { next.min(now + LONGEST_TIMER) };
    }

    /// Handles an answer of a DHCP server.
    #[cold]
    pub(crate) fn lease_input(&mut self, port: u16, frame: &[u8], now: Instant) {
        let Some(payload) = datagram_payload(frame, &self.checksums) else { return };
        let Some(&sender) = frame.get(6..12).and_then(|sender| sender.as_array()) else { return };
        let change = self.dhcp.as_mut().and_then(|client| client.hear(payload, port, sender, now));
        self.take_change(change, now);
        self.set_look_at_addresses(now);
    }

    /// Sends packets of IPv4 of this size at most, or of the size that the device can send.
    fn resize(&mut self, mtu: Option<usize>) {
        let most = self.capabilities.ip_mtu();
        let mtu = mtu.map_or(most, |mtu| mtu.min(most));
        if mtu == self.ethernet_mtu {
            return;
        }
        self.ethernet_mtu = mtu;
        let mut capabilities = self.capabilities.clone();
        capabilities.max_transmission_unit = mtu + ETHERNET_HEADER;
        // smoltcp's interface, which sends datagrams, has its size for life. The new one asks its neighbours again.
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(self.hardware)));
        config.random_seed = self.cookies.of_number(mtu as u64);
        self.interfaces.ethernet = Interface::new(config, &mut Described(capabilities), Instant::ZERO);
        self.limit_segments(Via::Ethernet);
        if let Some(Lease { address, .. }) = self.lease {
            // It was stored before, in as much room.
            let _ = self.set_address(address);
        }
    }

    /// Has the connections by this way send segments as small as it now needs.
    #[cold]
    fn limit_segments(&mut self, via: Via) {
        for index in 0..self.connections.indexes() {
            let Some(Connection { key, engine: Engine::Wire(wire), .. }) = self.connections.get(index) else {
                continue;
            };
            if wire.via != via {
                continue;
            }
            let size = self.segment_size(via, *key);
            if let Some(Connection { engine: Engine::Wire(wire), .. }) = self.connections.get_mut(index) {
                wire.tcp_mut().limit_segment(size);
            }
        }
    }

    /// Takes or gives up an address.
    fn take_change(&mut self, change: Option<Change>, now: Instant) {
        let old = self.own;
        match change {
            None => return,
            Some(Change::Lent(lease)) => {
                if self.lease.is_none_or(|old| old.address != lease.address) && self.set_address(lease.address).is_err()
                {
                    // There is room for one address and one route.
                    return;
                }
                if self.lease.is_none_or(|old| old.address.address != lease.address.address) {
                    let random = self.dhcp.as_mut().map_or(0, dhcp::Client::draw);
                    self.claim = Some(Claim::new(lease.address.address, self.hardware, random, now));
                }
                self.lease = Some(lease);
                self.resize(lease.mtu.map(usize::from));
            }
            Some(Change::Lost) => {
                (self.lease, self.claim) = (None, None);
                self.four.clear();
                self.own = Ipv4Addr::UNSPECIFIED;
                self.network = Ipv4Cidr::new(Ipv4Addr::UNSPECIFIED, 32);
                self.gateway = None;
                self.interfaces.ethernet.update_ip_addrs(|addresses| addresses.clear());
                self.interfaces.ethernet.routes_mut().remove_default_ipv4_route();
                self.resize(None);
            }
        }
        if self.own != old && !old.is_unspecified() {
            self.unswept = self.connections.indexes();
        }
    }

    /// Aborts a connection from an address that is no longer this host's, and returns whether it has done so. The other
    /// side is told nothing: the address may be another host's by now. Nothing is sent from it although some
    /// connections are not swept yet: each is looked at here before it sends, too.
    #[cold]
    fn abort_if_lost(&mut self, index: u32, now: Instant) -> bool {
        let local = self.connections.get(index).map(|connection| connection.key.local().ip());
        let is_lost = local.is_some_and(|local| !self.is_own(local));
        let Some(connection) = self.connections.get_mut(index) else { return false };
        let is_lost = connection.listed && is_lost;
        let Engine::Wire(wire) = &mut connection.engine else { return false };
        if !is_lost || wire.via == Via::Local {
            return false;
        }
        // A connection that both sides have ended has not failed.
        let has_ended = matches!(wire.tcp().state(), State::Closed | State::Closing | State::LastAck | State::TimeWait);
        wire.tcp_mut().abort();
        if connection.failure.is_none() && !has_ended {
            connection.failure = Some(Error::Aborted);
        }
        self.settle(index, now, Cause::Local);
        self.remove_closed(index);
        true
    }

    /// Handles some of the expired timers of half-open connections and of records of ended ones.
    pub(crate) fn expire_records<L: Link>(&mut self, link: &mut L, now: Instant) {
        self.expire_half_open(now);
        self.answer_again(link, now);
        for _ in 0..EXPIRIES {
            let Some(record) = self.time_wait.expired(now) else { break };
            if let Some(key) = record {
                self.ports.leave(key.local_port());
            }
        }
    }

    /// Takes a connection out of the table: packets no longer find it. It is discarded unless its holder must still
    /// learn how it ended.
    pub(crate) fn remove_closed(&mut self, index: u32) -> Next {
        let Some(connection) = self.connections.get_mut(index) else {
            return Next::Gone;
        };
        if connection.listed {
            connection.listed = false;
            connection.clear();
            self.table.remove(connection.key);
            self.ports.leave(connection.key.local_port());
            self.timers.remove(index);
        }
        match connection.holder {
            Holder::None => self.discard(index),
            Holder::Queued | Holder::Application => connection.wake_all(),
        }
        Next::Gone
    }

    /// Removes every trace of a connection.
    pub(crate) fn discard(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        connection.wake_all();
        let (key, listed, holder) = (connection.key, connection.listed, connection.holder);
        if listed {
            self.table.remove(key);
            self.ports.leave(key.local_port());
        }
        self.timers.remove(index);
        self.connections.remove(index);
        match holder {
            Holder::None => self.orphans = self.orphans.saturating_sub(1),
            Holder::Queued | Holder::Application => {}
        }
    }

    /// Replaces a closed connection in TIME-WAIT by its record, a few words.
    fn retire(&mut self, index: u32, now: Instant) {
        let Some(Connection { key, engine: Engine::Wire(wire), charge, .. }) = self.connections.get(index) else {
            return;
        };
        let (key, remains) = (*key, wire.remains());
        let free = self.time_wait.free();
        let memory = time_wait::MEMORY + key.memory_beyond_four();
        // The connection's charge is larger, but another task may wait for that memory.
        let charged = Charge::new(charge.owner(), Held::Record, (memory, free), Need::Packet);
        // The port stays in use until the time is over, or the memory for the record is short.
        let remembered = charged.and_then(|charge| self.ports.join(key.local_port()).map(|()| charge));
        self.discard(index);
        if let Ok(charge) = remembered {
            match self.time_wait.enter(key, remains, charge, now) {
                Ok(None) => {}
                Ok(Some(oldest)) => self.ports.leave(oldest.local().port()),
                Err(_) => self.ports.leave(key.local_port()),
            }
        }
    }
}

/// Whether the lengths and checksums of the ICMP message in an Ethernet frame are right.
fn is_intact_message(frame: &[u8], checksums: &ChecksumCapabilities) -> bool {
    if frame.get(ETHERNET_HEADER).is_some_and(|first| first >> 4 == 6) {
        return message_in(frame).is_some();
    }
    let Some(Ok(packet)) = frame.get(ETHERNET_HEADER..).map(Ipv4Packet::new_checked) else {
        return false;
    };
    let Ok(message) = Icmpv4Packet::new_checked(packet.payload()) else {
        return false;
    };
    (!checksums.ipv4.rx() || packet.verify_checksum()) && (!checksums.icmpv4.rx() || message.verify_checksum())
}

/// Hands one packet to one socket set.
pub(crate) fn poll_one<T: TxToken>(
    interface: &mut Interface,
    sockets: &mut SocketSet<'static>,
    frame: &[u8],
    answer: T,
    now: Instant,
) {
    let mut device = Arrived { frame: Some(frame), answer: Some(answer) };
    interface.poll_ingress_single(now, &mut device, sockets);
}

/// Hands a frame to one socket set.
pub(crate) fn poll_via<T: TxToken>(
    interfaces: &mut Interfaces,
    via: Via,
    sockets: &mut SocketSet<'static>,
    frame: &[u8],
    answer: T,
    now: Instant,
) {
    if via.is_six() {
        return poll_six(&mut interfaces.six, sockets, frame, answer, now);
    }
    poll_one(&mut interfaces.ethernet, sockets, frame, answer, now);
}

/// Hands the packet of IPv6 in a frame to one socket set. An answer goes back to the device from which the frame came.
#[inline(never)]
fn poll_six<T: TxToken>(
    interface: &mut Interface,
    sockets: &mut SocketSet<'static>,
    frame: &[u8],
    token: T,
    now: Instant,
) {
    if let Some((envelope, packet)) = Envelope::open(frame) {
        poll_one(interface, sockets, packet, Enveloped { token, envelope }, now);
    }
}

/// Lets a connection send its next segment, if there is room for it; returns whether there was.
#[inline(always)]
fn emit<T: TxToken>(
    wire: &mut Wire,
    course: &Course,
    planned: Planned,
    is_summed: bool,
    token: Option<T>,
    now: Instant,
) -> bool {
    let Some(token) = token else { return false };
    let departure = wire.tcp_mut().send_planned(planned, time(now));
    course.depart(wire.tcp(), &departure, is_summed, token, now);
    true
}

/// Whether this segment of the other side of an open connection tells that there is no room for what waits to be sent.
/// As long as it says so, it is not given up (RFC 9293, section 3.8.6.1).
#[inline(always)]
fn is_kept_waiting(wire: &Wire, segment: &tcp::Segment<'_>) -> bool {
    let tcp = wire.tcp();
    tcp.waits_for_window() && matches!(tcp.state(), State::Established | State::CloseWait) && tcp.has_window_of(segment)
}

/// Returns the neighbour to which packets to this address go.
#[inline(always)]
fn next_hop(network: &Ipv4Cidr, gateway: Option<Ipv4Addr>, remote: Ipv4Addr) -> Ipv4Addr {
    let differing = u64::from(remote.to_bits() ^ network.address().to_bits());
    match gateway {
        Some(gateway) if differing >> (32 - network.prefix_len().min(32)) != 0 => gateway,
        _ => remote,
    }
}
