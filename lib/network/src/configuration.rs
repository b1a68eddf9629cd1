//! Configuration of a stack, and results of its operations.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::dhcp::is_of_a_host;
use crate::secrets::Seeds;

/// The host's place in an IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The host's own address.
    pub address: Ipv4Addr,
    /// Number of leading bits that name the network.
    pub prefix: u8,
    /// Router that carries packets to other networks.
    pub gateway: Option<Ipv4Addr>,
}

impl Address {
    /// Returns whether a host can have this address in this network.
    pub(crate) fn is_possible(&self) -> bool {
        let host_bits = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
        let host = self.address.to_bits() & host_bits;
        // A network of one or two addresses has none for all (RFC 3021).
        let is_of_one = self.prefix >= 31 || host != 0 && host != host_bits;
        self.prefix <= 32 && is_of_a_host(self.address) && is_of_one
    }

    /// Returns whether a host can have this address in this network, and another one there be the router.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.is_possible() && self.gateway.is_none_or(|gateway| self.is_neighbour(gateway))
    }

    /// Returns whether another host can have this address in the same network.
    pub(crate) fn is_neighbour(&self, other: Ipv4Addr) -> bool {
        let network_bits = !u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
        let is_near = (self.address.to_bits() ^ other.to_bits()) & network_bits == 0;
        is_near && other != self.address && Address { address: other, ..*self }.is_possible()
    }
}

/// Number of name servers that a lease can have: as many as C libraries ask.
pub const NAME_SERVERS: usize = 3;

/// Answer of a DHCP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The host's place in the network.
    pub address: Address,
    /// Servers that resolve names, the first to be asked first.
    pub name_servers: [Option<Ipv4Addr>; NAME_SERVERS],
    /// Bytes of the largest packet that the network carries, if the server has told that (RFC 2132, section 5.1).
    pub mtu: Option<u16>,
}

/// Source of the host's address on the Ethernet interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addressing {
    /// There is none: only the loopback interface is used.
    #[default]
    Nowhere,
    /// The configuration.
    Fixed(Address),
    /// A DHCP server, which is asked from the first poll on. Until it answers, packets to other hosts are
    /// [`Unreachable`](crate::Error::Unreachable).
    Leased,
}

/// Part that the host takes in IPv6 on the Ethernet interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SixAddressing {
    /// None: packets of IPv6 stay within the host.
    #[default]
    Off,
    /// A link-local address alone; routers' advertisements do not count.
    LinkLocal,
    /// A link-local address, and those for which routers advertise prefixes (RFC 4862).
    Automatic,
}

/// An address of the host over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SixAddress {
    /// The address.
    pub address: Ipv6Addr,
    /// Number of leading bits that name the network.
    pub prefix: u8,
    /// Whether it is still asked if another host has it.
    pub is_tentative: bool,
    /// Whether another host has it.
    pub is_duplicate: bool,
    /// Whether nothing new should begin from it.
    pub is_deprecated: bool,
    /// Whether it stays for ever.
    pub is_permanent: bool,
}

/// Upper bounds on the things that strangers and programs can make the stack hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "somaxconn")]
pub struct Limits {
    /// Connections in any state but TIME-WAIT.
    pub connections: usize,
    /// Listeners, and as many ports bound but not used yet.
    pub listeners: usize,
    /// Datagram sockets.
    pub datagrams: usize,
    /// Longest backlog of a listener; longer ones are shortened to it.
    pub backlog: usize,
    /// Requests for connections that were answered and wait for an acknowledgement; further ones get SYN cookies.
    pub half_open: usize,
    /// Closed connections that still deliver or wait for the other side; further ones are reset.
    pub orphans: usize,
    /// Ended connections remembered so that stray packets do not confuse their successors; the oldest go first.
    pub time_wait: usize,
    /// Frames that have arrived and wait to be handled.
    pub arrivals: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 524_288,
            listeners: 1024,
            datagrams: 4096,
            backlog: 4096,
            half_open: 4096,
            orphans: 8192,
            time_wait: 16_384,
            arrivals: 64,
        }
    }
}

/// Time limits on waiting for the other side.
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
    /// Time for which an ended connection is remembered.
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

/// Transport of a TCP connection whose two ends are on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalConnections {
    /// The two ends are joined: bytes that one end sends are written into the ring from which the other receives.
    #[default]
    Joined,
    /// TCP segments over a loopback interface, as on systems without joined ends: for comparisons with these.
    Packets,
}

/// Settings with which a stack is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The address on the Ethernet interface.
    pub address: Addressing,
    /// IPv6 on the Ethernet interface.
    pub six: SixAddressing,
    /// Secrets from which sequence numbers, cookies, ports and hashes are derived.
    pub seeds: Seeds,
    /// Bounds on memory.
    pub limits: Limits,
    /// Bounds on waiting.
    pub patience: Patience,
    /// Transport of connections within the host.
    pub local_connections: LocalConnections,
}

impl Default for Configuration {
    /// Returns a configuration without an Ethernet interface and with seeds of zeros, which an attacker can guess.
    fn default() -> Self {
        Configuration {
            address: Addressing::Nowhere,
            six: SixAddressing::Off,
            seeds: Seeds::default(),
            limits: Limits::default(),
            patience: Patience::default(),
            local_connections: LocalConnections::default(),
        }
    }
}

/// Event that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "EPOLLIN")]
#[doc(alias = "POLLIN")]
pub enum Interest {
    /// Something to receive, or the end of it.
    Receive,
    /// Room to send, or the outcome of `tcp_connect`.
    Send,
}

/// Result of `tcp_receive_with`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes were taken; 0 only if the callback took none.
    Bytes(usize),
    /// Nothing has arrived: register and wait.
    Nothing,
    /// Nothing will arrive any more.
    End,
}

/// Result of `tcp_send_with` or `udp_send_with`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// This many bytes were taken; 0 only if the callback gave none.
    Bytes(usize),
    /// There is no room: register and wait.
    Full,
}

/// Half of a connection to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "SHUT_RD")]
#[doc(alias = "SHUT_WR")]
pub enum Shutdown {
    /// Discard arriving data from now on.
    Receive,
    /// Send nothing more: the other side sees the end of the stream after the data sent before.
    Send,
    /// Both.
    Both,
}

/// Operations that would not wait, for `poll` and the like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "EPOLLIN")]
#[doc(alias = "POLLIN")]
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

/// Counts of events since the stack was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames taken from the link.
    pub frames_received: u64,
    /// Connections between two ends on this host that were joined.
    pub local_connections: u64,
    /// Segments over the loopback interface, for connections that are not joined.
    pub loopback_packets: u64,
    /// Connection requests dropped because too many finished ones waited to be accepted, or memory was short.
    pub requests_dropped: u64,
    /// Segments that have come and found no memory, so that they come again.
    pub arrivals_without_memory: u64,
    /// Requests answered with a SYN cookie, because too many others were not acknowledged.
    pub cookies_sent: u64,
    /// Connections made of a cookie that came back.
    pub cookies_accepted: u64,
    /// Requests in a connection, and resets in the window without the exact sequence number.
    pub challenges: u64,
    /// Connections made, requested or accepted; one on this host counts twice.
    pub connections_made: u64,
    /// Addresses that a server has lent and another host had.
    pub conflicts: u64,
    /// Datagrams dropped because a buffer was full.
    pub datagrams_dropped: u64,
    /// Frames dropped while they waited behind more important work and others arrived.
    pub arrivals_dropped: u64,
}
