//! Sockets: the Berkeley interface over the network stack.
//!
//! Data moves straight between a connection's buffers and user pages while the stack's lock is held. A coroutine that
//! begins to wait at a socket tells the stack its importance ([`Reader`]); frames that come for the socket are as
//! important ([`network::stack`](crate::network::stack)).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::num::NonZeroU32;
use core::task::{Context, Poll, Waker, ready};

use abi_queue::Priority;
use abi_unix::authority::Act;
use abi_unix::types::{self, Status, epoll as event, message, mode, socket_option as option};
use abi_unix::{Errno, errno};
use filesystem::Access;
use memory::bytes::copy;
use network::{
    BUFFER_LIMITS, BindingId, Coalescing, ConnectionId, DatagramId, DatagramOptions, DatagramProtocol, Error, Interest,
    Keepalive, ListedState, ListenerId, LocalEnd, MEMORY_OF_REPORTS, Origin, Reader, Received, Report, Sent, Sharing,
    Shutdown, Stack, TcpOptions,
};
use spin::Mutex;

use crate::files::file::{
    self, Accepted, AcceptedConnection, Attempt, FileOperations, OpenFile, Properties, Unit, Waits,
    status_without_contents,
};
use crate::files::gathered::MOST_BYTES;
use crate::files::message::{Arrival, HopLimit, LossReport, MessageDetails, MessageSender, MessageSpace};
use crate::files::sent_files::{OutgoingMessage, Receipt, ReceivedMessage};
use crate::network::addressing::CARD;
use crate::network::netlink::NetlinkSocket;
use crate::network::packet_socket::PacketSocket;
use crate::network::shares::{Limited, Shares};
use crate::network::stack::{STACK, errno_of, with_stack, with_stack_and_send, with_stack_to_receive};
use crate::network::wire::NetworkLink;
use crate::observing::latency;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::{AddressOut, Caller, OptionOut, UserBuffer, length_of};
use crate::process::{Process, authority};
use crate::scheduling::executor::EXHAUSTED;
use crate::scheduling::steps::{self, Effort};
use crate::scheduling::{self, executor, standing};
use crate::time;

/// Longest backlog (Linux's `SOMAXCONN`).
const LONGEST_BACKLOG: usize = 4096;
/// Routers that a packet passes at most unless a program chooses.
const USUAL_HOP_LIMIT: u8 = 64;
/// Behaviour towards packets that are too large unless a program chooses (`IP_PMTUDISC_WANT`).
const USUAL_DISCOVERY: u32 = 1;
/// Protocols of sockets (Linux: `IPPROTO_MAX`).
const PROTOCOLS: u32 = 263;
/// Longest payload of a UDP datagram.
const LONGEST_DATAGRAM: usize = 65507;
/// Probes of a silent connection with `SO_KEEPALIVE`, unless options change them: as on Linux.
const KEEPALIVE: Keepalive = Keepalive { idle: 7200, interval: 75, probes: 9 };

/// Greatest values of the options about probes, as on Linux: seconds, and their number.
const LONGEST_PROBING: u32 = 32_767;
const MOST_PROBES: u32 = 127;

/// The algorithm of congestion control, as `TCP_CONGESTION` names it: with zeros behind.
const CONGESTION: &[u8; 16] = b"cubic\0\0\0\0\0\0\0\0\0\0\0";

/// Options of a new socket: buffers that grow as far as the connection can use them.
const OPTIONS: TcpOptions =
    TcpOptions { receive_buffer: *BUFFER_LIMITS.end(), send_buffer: *BUFFER_LIMITS.end(), ..TcpOptions::SMALL };

/// Returns the calling coroutine, which works for this process, as the reader at a socket.
fn reader(process: u32) -> Reader {
    let level = match executor::current_priority() {
        // These priorities hold for this turn only: the process may be boosted, or its budget may be refilled.
        Priority::HIGHEST | EXHAUSTED => Priority::DEFAULT,
        priority => standing::claim_worth(priority),
    };
    Reader { owner: process, level: level.number() }
}

/// Returns the size of the buffer for a program that wants `wanted` bytes.
fn buffer_size(wanted: u32) -> usize {
    (wanted as usize).clamp(*BUFFER_LIMITS.start(), *BUFFER_LIMITS.end())
}

/// Returns the value of `SO_ERROR` for this failure.
fn number_of(failure: Option<Error>) -> u32 {
    failure.map_or(0, |failure| errno::Errno::number(errno_of(failure)) as u32)
}

/// Returns the number of the error that a report tells of, as Linux translates kinds and codes.
fn error_of_report(report: &Report) -> u32 {
    let error = match (report.to, report.kind, report.code) {
        _ if report.from.is_none() => Errno::EMSGSIZE,
        (SocketAddr::V4(_), 3, 0 | 6 | 9 | 11) | (SocketAddr::V6(_), 1, 0) => Errno::ENETUNREACH,
        (SocketAddr::V4(_), 3, 2) => Errno::ENOPROTOOPT,
        (SocketAddr::V4(_), 3, 3) | (SocketAddr::V6(_), 1, 4) => Errno::ECONNREFUSED,
        (SocketAddr::V4(_), 3, 4) | (SocketAddr::V6(_), 2, _) => Errno::EMSGSIZE,
        (SocketAddr::V4(_), 3, 5) => Errno::EOPNOTSUPP,
        (SocketAddr::V4(_), 12, _) | (SocketAddr::V6(_), 4, _) => Errno::EPROTO,
        (SocketAddr::V6(_), 1, 1 | 5 | 6) => Errno::EACCES,
        _ => Errno::EHOSTUNREACH,
    };
    errno::Errno::number(error) as u32
}

/// Returns the protocol of a socket of datagrams or of packets that a process makes.
fn datagram_protocol(process: &Process, (family, kind): (u16, u32), protocol: u32) -> Result<DatagramProtocol, Errno> {
    if kind == types::SOCK_RAW {
        return match u8::try_from(protocol) {
            Ok(0) | Err(_) => Err(Errno::EPROTONOSUPPORT),
            Ok(protocol) => authority::permit(process, Act::UseRawSockets).map(|()| DatagramProtocol::Raw(protocol)),
        };
    }
    match (protocol, family) {
        (0 | option::IPPROTO_UDP, _) => Ok(DatagramProtocol::Udp),
        (option::IPPROTO_ICMP, types::AF_INET) | (option::IPPROTO_ICMPV6, types::AF_INET6) => {
            Ok(DatagramProtocol::Echo)
        }
        _ => Err(Errno::EPROTONOSUPPORT),
    }
}

/// Returns the end of a socket without an address: any port, on all addresses.
fn anywhere(family: u16, is_six_only: bool) -> LocalEnd {
    match family {
        types::AF_INET6 if is_six_only => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0).into(),
        types::AF_INET6 => LocalEnd::of_both(0),
        _ => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0).into(),
    }
}

enum SocketState {
    /// A stream socket without a role yet.
    Fresh(Option<BindingId>),
    Listening(ListenerId),
    Connected(ConnectionId),
    Datagram(DatagramId),
}

impl SocketState {
    /// Returns whether a reader waits for arrivals at this socket.
    fn is_awaited(&self, stack: &mut Stack<NetworkLink>) -> bool {
        match *self {
            SocketState::Fresh(_) => false,
            SocketState::Listening(id) => stack.is_accepted(id),
            SocketState::Connected(id) => stack.is_read(id),
            SocketState::Datagram(id) => stack.are_datagrams_read(id),
        }
    }

    /// Sets the reader that waits for arrivals at this socket.
    fn set_reader(&self, stack: &mut Stack<NetworkLink>, reader: Reader) {
        match *self {
            SocketState::Fresh(_) => {}
            SocketState::Listening(id) => stack.set_acceptor(id, reader),
            SocketState::Connected(id) => stack.set_reader(id, reader),
            SocketState::Datagram(id) => stack.set_datagram_reader(id, reader),
        }
    }
}

/// The share of the process that has made a socket.
type ShareOwner = Arc<Shares>;

/// A datagram socket of a process's share, and its memory; given back on drop.
struct DatagramShare {
    owner: ShareOwner,
    /// EVERY-BYTE: for buffers of their greatest size.
    _charge: Charge,
}

impl DatagramShare {
    /// Takes one more if `free` are left in the system. Fails with `ENOBUFS` if the process may not have it, or with
    /// `ENOMEM`.
    fn take(owner: &ShareOwner, bytes: usize, free: usize) -> Result<DatagramShare, Errno> {
        let charge = owner.account.charge(Resource::Memory, bytes)?;
        match owner.take(Limited::Datagrams, free) {
            true => Ok(DatagramShare { owner: owner.clone(), _charge: charge }),
            false => Err(Errno::ENOBUFS),
        }
    }

    fn of_datagrams(owner: &ShareOwner) -> Result<DatagramShare, Errno> {
        let free = with_stack(|stack, _| Ok(stack.free_counts().1))?;
        DatagramShare::take(owner, DatagramOptions::default().memory(), free)
    }
}

impl Drop for DatagramShare {
    fn drop(&mut self) {
        self.owner.give_back(Limited::Datagrams);
    }
}

struct Inner {
    state: SocketState,
    /// The share of a datagram socket. Connections are charged by the stack, which keeps them longer than the socket.
    _share: Option<DatagramShare>,
    tcp: TcpOptions,
    /// How a silent peer is probed, if it is.
    keepalive: Keepalive,
    /// Whether the port may have connections of an earlier owner (`SO_REUSEADDR`).
    reuses: bool,
    /// The user with whose other sockets the port is shared (`SO_REUSEPORT`), which reuses it too.
    spread: Option<u32>,
    /// Seconds for which a listener's connections wait for their first bytes (`TCP_DEFER_ACCEPT`).
    deferral: u32,
    /// The memory of reports, if a datagram socket keeps them (`IP_RECVERR`): for failures of all of its datagrams.
    reports: Option<Charge>,
    /// The kind of control messages that tell when datagrams have come (`SO_TIMESTAMP`).
    tells_arrivals: Option<u32>,
    /// The behaviour towards packets that are too large, which is told and has no effect (`IP_MTU_DISCOVER`).
    discovery: u32,
    /// Whether a datagram socket was given its address by the program.
    is_bound: bool,
    /// Whether IPv4 does not reach a socket of IPv6 (`IPV6_V6ONLY`).
    is_six_only: bool,
    /// Whether the options of packets are to be told (`IP_RETOPTS`): the stack leaves them out, so that none are.
    tells_options: bool,
    /// The kind of control messages that tell the hop limits of messages (`IP_RECVTTL`).
    tells_hop_limits: Option<u32>,
    /// The hop limit of what is sent, if it was chosen (`IP_TTL`).
    hop_limit: Option<u8>,
    raw: RawOptions,
    /// `SO_BROADCAST`, which is kept: datagrams to everybody are sent with it and without.
    broadcasts: bool,
    linger: (u32, u32),
}

/// The options of a raw socket.
#[derive(Clone, Copy, Default)]
struct RawOptions {
    /// Packets that are sent have their header (`IP_HDRINCL`).
    has_header: bool,
    /// Kinds of messages that are not received, as bits (`ICMP_FILTER`).
    left_out: [u32; 8],
}

/// A socket of any kind.
#[doc(alias = "sock")]
#[doc(alias = "struct socket")]
pub(crate) struct Socket {
    /// `AF_INET` or `AF_INET6`.
    family: u16,
    kind: u32,
    /// Protocol of a datagram socket.
    protocol: DatagramProtocol,
    owner: ShareOwner,
    inner: Mutex<Inner>,
    /// The request that its next answer is for, if latency is measured.
    request: latency::Request,
}

impl Inner {
    /// Returns the details of a datagram that came at this time, if that is known, with this hop limit.
    fn details(&self, at_ns: u64, hop_limit: u8) -> MessageDetails {
        let arrival = self.tells_arrivals.map(|kind| Arrival::new(kind, at_ns));
        MessageDetails::of_packet(arrival, self.tells_hop_limits.map(|kind| HopLimit { value: hop_limit, kind }))
    }

    /// Returns the seconds for which closing waits for the delivery, 0 for a reset, if that was chosen (`SO_LINGER`).
    fn linger_seconds(&self) -> Option<u32> {
        let (is_on, seconds) = self.linger;
        (is_on != 0).then_some(seconds)
    }

    /// Sets an option of TCP.
    fn set_tcp_option(&mut self, name: u32, number: u32) -> Result<(), Errno> {
        match name {
            option::TCP_NODELAY => {
                self.tcp.coalescing = if number != 0 { Coalescing::None } else { Coalescing::Nagle };
            }
            option::TCP_CORK => self.tcp.is_corked = number != 0,
            option::TCP_KEEPIDLE | option::TCP_KEEPINTVL | option::TCP_KEEPCNT => {
                let most = if name == option::TCP_KEEPCNT { MOST_PROBES } else { LONGEST_PROBING };
                if !(1..=most).contains(&number) {
                    return Err(Errno::EINVAL);
                }
                match name {
                    option::TCP_KEEPIDLE => self.keepalive.idle = number as u16,
                    option::TCP_KEEPINTVL => self.keepalive.interval = number as u16,
                    _ => self.keepalive.probes = number as u8,
                }
                self.tcp.keepalive = self.tcp.keepalive.map(|_| self.keepalive);
            }
            option::TCP_USER_TIMEOUT => {
                let milliseconds = u32::try_from(number as i32).map_err(|_| Errno::EINVAL)?;
                self.tcp.user_timeout = NonZeroU32::new(milliseconds);
            }
            option::TCP_DEFER_ACCEPT => self.deferral = deferral_of(number as i32),
            // For a connection that is there alone.
            option::TCP_QUICKACK => {}
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }

    /// Has the stack know the options of datagrams.
    fn settle(&self) -> Result<(), Errno> {
        let SocketState::Datagram(id) = self.state else { return Ok(()) };
        with_stack(|stack, _| {
            stack.set_datagram_reports(id, self.reports.is_some())?;
            stack.set_datagram_clock(id, self.tells_arrivals.map(|_| time::real_time_ns as fn() -> u64))?;
            stack.set_datagram_hop_limit(id, self.hop_limit)?;
            stack.set_raw_header(id, self.raw.has_header)?;
            stack.set_raw_filter(id, self.raw.left_out)
        })
    }
}

impl Socket {
    fn new(
        (family, kind): (u16, u32),
        state: SocketState,
        tcp: TcpOptions,
        owner: ShareOwner,
        share: Option<DatagramShare>,
    ) -> Socket {
        let inner = Inner {
            state,
            _share: share,
            tcp,
            keepalive: KEEPALIVE,
            reuses: false,
            spread: None,
            deferral: 0,
            reports: None,
            tells_arrivals: None,
            discovery: USUAL_DISCOVERY,
            tells_options: false,
            is_bound: false,
            is_six_only: false,
            tells_hop_limits: None,
            hop_limit: None,
            raw: RawOptions::default(),
            broadcasts: false,
            linger: (0, 0),
        };
        let (inner, protocol) = (Mutex::new(inner), DatagramProtocol::Udp);
        Socket { family, kind, protocol, owner, inner, request: latency::Request::default() }
    }

    /// Returns the socket behind a file; `ENOTSOCK` for any other kind.
    pub(crate) fn of(file: &OpenFile) -> Result<&Socket, Errno> {
        file.as_kind().ok_or(Errno::ENOTSOCK)
    }

    /// Performs the `socket` call.
    pub(crate) fn create(process: &Process, family: u32, kind: u32, protocol: u32) -> Result<usize, Errno> {
        if family == types::AF_NETLINK.into() {
            return Socket::create_netlink(process, kind, protocol);
        }
        if family == types::AF_PACKET.into() {
            return Socket::create_of_packets(process, kind, protocol);
        }
        let family = match u16::try_from(family) {
            Ok(family @ (types::AF_INET | types::AF_INET6)) => family,
            _ => return Err(Errno::EAFNOSUPPORT),
        };
        if protocol >= PROTOCOLS {
            return Err(Errno::EINVAL);
        }
        let charge = file::charge(&process.account)?;
        let flags = kind & (types::SOCK_NONBLOCK | types::SOCK_CLOEXEC);
        let kind = kind & !flags;
        let owner = process.shares.clone();
        let mut share = None;
        let mut datagrams = DatagramProtocol::Udp;
        let state = match (kind, protocol) {
            (types::SOCK_STREAM, 0 | option::IPPROTO_TCP) => SocketState::Fresh(None),
            (types::SOCK_STREAM, _) => return Err(Errno::EPROTONOSUPPORT),
            (types::SOCK_DGRAM | types::SOCK_RAW, _) => {
                datagrams = datagram_protocol(process, (family, kind), protocol)?;
                // Echoes and raw packets of IPv6 are of that family alone.
                let any = anywhere(family, datagrams != DatagramProtocol::Udp);
                share = Some(DatagramShare::of_datagrams(&owner)?);
                let options = DatagramOptions { protocol: datagrams, ..DatagramOptions::default() };
                SocketState::Datagram(with_stack(|stack, _| stack.udp_bind(any, &options))?)
            }
            _ => return Err(Errno::EPROTOTYPE),
        };
        let mut socket = Socket::new((family, kind), state, OPTIONS, owner, share);
        socket.protocol = datagrams;
        let inner = socket.inner.get_mut();
        inner.is_six_only = datagrams != DatagramProtocol::Udp && family == types::AF_INET6;
        if datagrams == DatagramProtocol::Raw(option::IPPROTO_RAW as u8) && family == types::AF_INET {
            inner.raw.has_header = true;
            inner.settle()?;
        }
        let file = OpenFile::new(socket, Access::ReadWrite, flags & types::SOCK_NONBLOCK != 0, charge);
        process.descriptors.lock().add(Arc::new(file), flags & types::SOCK_CLOEXEC != 0, 0)
    }

    /// Performs the `socket` call for requests to the kernel.
    #[cold]
    fn create_netlink(process: &Process, kind: u32, protocol: u32) -> Result<usize, Errno> {
        let flags = kind & (types::SOCK_NONBLOCK | types::SOCK_CLOEXEC);
        let charge = file::charge(&process.account)?;
        let socket = NetlinkSocket::new(&process.account, kind & !flags, protocol)?;
        let file = OpenFile::new(socket, Access::ReadWrite, flags & types::SOCK_NONBLOCK != 0, charge);
        process.descriptors.lock().add(Arc::new(file), flags & types::SOCK_CLOEXEC != 0, 0)
    }

    /// Performs the `socket` call for frames of a device.
    #[cold]
    fn create_of_packets(process: &Process, kind: u32, protocol: u32) -> Result<usize, Errno> {
        let flags = kind & (types::SOCK_NONBLOCK | types::SOCK_CLOEXEC);
        let charge = file::charge(&process.account)?;
        let socket = PacketSocket::new(process, kind & !flags, protocol)?;
        let file = OpenFile::new(socket, Access::ReadWrite, flags & types::SOCK_NONBLOCK != 0, charge);
        process.descriptors.lock().add(Arc::new(file), flags & types::SOCK_CLOEXEC != 0, 0)
    }

    fn is_six(&self) -> bool {
        self.family == types::AF_INET6
    }

    fn is_of_echoes(&self) -> bool {
        self.protocol == DatagramProtocol::Echo
    }

    /// Returns whether it is a raw socket.
    fn is_raw(&self) -> bool {
        matches!(self.protocol, DatagramProtocol::Raw(_))
    }

    /// Returns whether its bytes come and go in datagrams or packets.
    fn is_of_datagrams(&self) -> bool {
        matches!(self.kind, types::SOCK_DGRAM | types::SOCK_RAW)
    }

    /// Returns whether its ends have no ports; that of a sender is then the hop limit of its packet.
    fn has_no_ports(&self) -> bool {
        self.protocol != DatagramProtocol::Udp
    }

    /// Returns the options of its datagrams.
    fn datagram_options(&self) -> DatagramOptions {
        DatagramOptions { protocol: self.protocol, ..DatagramOptions::default() }
    }

    /// Returns an end as a program with this socket sees it: a socket of IPv6 sees IPv4's addresses mapped (RFC 4291,
    /// section 2.5.5.2).
    fn shown(&self, end: SocketAddr) -> SocketAddr {
        match end.ip() {
            IpAddr::V4(address) if self.is_six() => SocketAddr::new(address.to_ipv6_mapped().into(), end.port()),
            IpAddr::V6(address) if address.is_unicast_link_local() => {
                SocketAddrV6::new(address, end.port(), 0, CARD).into()
            }
            _ => end,
        }
    }

    /// Returns the end that a program names to this socket. The scope of an address that holds on one network only must
    /// be the network card's.
    fn named(&self, end: SocketAddr) -> Result<SocketAddr, Errno> {
        if let SocketAddr::V6(six) = end
            && six.ip().is_unicast_link_local()
        {
            match six.scope_id() {
                CARD => {}
                0 => return Err(Errno::EINVAL),
                _ => return Err(Errno::ENODEV),
            }
        }
        let address = match (end.ip(), self.is_six()) {
            (IpAddr::V6(address), true) => address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4),
            (IpAddr::V4(address), false) => address.into(),
            // As on Linux, datagrams may also be sent to an address of the other family itself.
            (IpAddr::V4(address), true) if self.is_of_datagrams() => address.into(),
            _ => return Err(Errno::EAFNOSUPPORT),
        };
        Ok(SocketAddr::new(address, end.port()))
    }

    /// Returns the remote end that a program names.
    fn remote_end(&self, inner: &Inner, to: SocketAddr) -> Result<SocketAddr, Errno> {
        let to = self.named(to)?;
        if inner.is_six_only && to.is_ipv4() { Err(Errno::ENETUNREACH) } else { Ok(to) }
    }

    /// Returns the local end that a program names.
    fn local_end(&self, inner: &Inner, to: SocketAddr) -> Result<LocalEnd, Errno> {
        if self.is_six() && to.is_ipv4() {
            return Err(Errno::EINVAL);
        }
        let address = self.named(to)?;
        if inner.is_six_only && address.is_ipv4() {
            return Err(Errno::EINVAL);
        }
        let is_for_both = address.is_ipv6() && address.ip().is_unspecified() && !inner.is_six_only;
        Ok(LocalEnd { address, is_for_both, spread: inner.spread })
    }

    /// Sets `IPV6_V6ONLY`, as long as the socket has no address.
    fn set_six_only(&self, inner: &mut Inner, is_six_only: bool) -> Result<(), Errno> {
        match inner.state {
            SocketState::Fresh(None) => {}
            SocketState::Datagram(old) if !inner.is_bound => {
                let any = anywhere(self.family, is_six_only);
                let new = with_stack(|stack, _| {
                    if stack.udp_remote_endpoint(old)?.is_some() {
                        return Err(Error::Invalid);
                    }
                    let new = stack.udp_bind(any, &self.datagram_options())?;
                    stack.udp_close(old)?;
                    Ok(new)
                })?;
                inner.state = SocketState::Datagram(new);
            }
            _ => return Err(Errno::EINVAL),
        }
        inner.is_six_only = is_six_only;
        inner.settle()
    }

    /// Performs the `bind` call.
    pub(crate) fn bind(&self, to: SocketAddr) -> Result<usize, Errno> {
        let mut inner = self.inner.lock();
        let local = self.local_end(&inner, to)?;
        match inner.state {
            SocketState::Fresh(None) => {
                let sharing = if inner.reuses || inner.spread.is_some() { Sharing::Reuse } else { Sharing::Exclusive };
                let binding = with_stack(|stack, _| stack.tcp_bind(local, sharing))?;
                inner.state = SocketState::Fresh(Some(binding));
            }
            // With all that it has received.
            SocketState::Datagram(id) if self.is_raw() => {
                with_stack(|stack, _| stack.raw_rebind(id, local))?;
                inner.is_bound = true;
            }
            SocketState::Datagram(old) => {
                let new = with_stack(|stack, _| {
                    if stack.udp_local_endpoint(old)?.port() != 0 && stack.udp_remote_endpoint(old)?.is_some() {
                        return Err(Error::Invalid);
                    }
                    let new = stack.udp_bind(local, &self.datagram_options())?;
                    stack.udp_close(old)?;
                    Ok(new)
                })?;
                inner.state = SocketState::Datagram(new);
                inner.is_bound = true;
                inner.settle()?;
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    /// Returns the connection whose delivery `close` is to wait for, and the time for which it is, in nanoseconds
    /// (`SO_LINGER`).
    pub(crate) fn lingers(&self) -> Option<(ConnectionId, u64)> {
        let inner = self.inner.lock();
        match (&inner.state, inner.linger_seconds()) {
            (SocketState::Connected(id), Some(seconds @ 1..)) => Some((*id, u64::from(seconds) * 1_000_000_000)),
            _ => None,
        }
    }

    /// Performs the `listen` call.
    pub(crate) fn listen(&self, backlog: i32) -> Result<usize, Errno> {
        // A negative number means "as many as possible", and 0 still means one, as on Linux.
        let backlog = usize::try_from(backlog).unwrap_or(LONGEST_BACKLOG).clamp(1, LONGEST_BACKLOG);
        let mut inner = self.inner.lock();
        match inner.state {
            SocketState::Fresh(binding) => {
                let (options, deferral) = (inner.tcp, inner.deferral);
                let any = anywhere(self.family, inner.is_six_only);
                let listener = with_stack(|stack, _| {
                    let own = match binding {
                        Some(binding) => binding,
                        None => stack.tcp_bind(any, Sharing::Exclusive)?,
                    };
                    let listener = stack.tcp_listen(own, backlog, &options);
                    match listener {
                        Ok(listener) => {
                            stack.set_listener_owner(listener, self.owner.clone())?;
                            stack.set_deferral(listener, deferral)?;
                        }
                        Err(_) if binding.is_none() => stack.release(own)?,
                        Err(_) => {}
                    }
                    listener
                })?;
                inner.state = SocketState::Listening(listener);
            }
            SocketState::Listening(listener) => with_stack(|stack, _| stack.set_backlog(listener, backlog))?,
            SocketState::Connected(_) => return Err(Errno::EINVAL),
            SocketState::Datagram(_) => return Err(Errno::EOPNOTSUPP),
        }
        Ok(0)
    }

    /// Performs `connect` with `AF_UNSPEC`: a datagram socket forgets its peer.
    pub(crate) fn dissolve(&self) -> Result<usize, Errno> {
        match self.inner.lock().state {
            SocketState::Datagram(id) => with_stack(|stack, _| stack.udp_connect(id, None)).map(|()| 0),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Tries to send the buffers together as one datagram.
    fn send_datagram(
        &self,
        caller: &dyn Caller,
        buffers: &[UserBuffer],
        to: Option<SocketAddr>,
        sent: &mut usize,
        waker: Option<&Waker>,
    ) -> Attempt {
        let inner = self.inner.lock();
        let SocketState::Datagram(id) = inner.state else { return Poll::Ready(Err(Errno::EOPNOTSUPP)) };
        let length = length_of(buffers);
        if length > LONGEST_DATAGRAM {
            let to = to.map(|to| self.remote_end(&inner, to)).transpose()?;
            return Poll::Ready(with_stack(|stack, _| Err(stack.report_too_long(id, to))));
        }
        // Through a buffer, because the stack's room is taken before it is filled: a bad address must send nothing.
        let mut datagram = Vec::new();
        caller.account().admit()?;
        datagram.try_reserve_exact(length).map_err(|_| Errno::ENOBUFS)?;
        datagram.resize(length, 0);
        // Such a datagram was gathered, and can go on later.
        if length > MOST_BYTES && steps::stops_for_interrupts(waker) {
            return Poll::Pending;
        }
        let mut rest = &mut datagram[..];
        for buffer in buffers {
            let (part, behind) = rest.split_at_mut(buffer.len());
            caller.copy_in(buffer.address(), part)?;
            rest = behind;
        }
        // The stack copies it once more, and within the host for the receiver, too.
        if length > MOST_BYTES && steps::stops_for_interrupts(waker) {
            return Poll::Pending;
        }
        if self.is_of_echoes() {
            self.require_request(&datagram)?;
        }
        // A header without options, which the stack would send as something else.
        if inner.raw.has_header && datagram.first() != Some(&0x45) {
            return Poll::Ready(Err(Errno::EINVAL));
        }
        let to = to.map(|to| self.remote_end(&inner, to)).transpose()?;
        let result = with_stack_and_send(|stack, _| {
            let fill = |room: &mut [u8]| copy(&datagram, room);
            let outcome = stack.udp_send_with(id, to, datagram.len(), fill)?;
            if let (Sent::Full, Some(waker)) = (outcome, waker) {
                stack.udp_register(id, Interest::Send, waker)?;
            }
            Ok(outcome)
        });
        Poll::Ready(match result {
            Ok(Sent::Full) => return Poll::Pending,
            Ok(Sent::Bytes(_)) => {
                *sent = length;
                Ok(length)
            }
            Err(Errno::ENOTCONN) => Err(Errno::EDESTADDRREQ),
            Err(error) => Err(error),
        })
    }

    /// Fails unless a message is an echo request: other messages could be lies.
    fn require_request(&self, message: &[u8]) -> Result<(), Errno> {
        let kind = if self.is_six() { 128 } else { 8 };
        match message {
            [first, 0, ..] if *first == kind && message.len() >= 8 => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Tries to receive one datagram into the buffers, in order; bytes that do not fit are lost.
    fn receive_datagram(
        &self,
        caller: &dyn Caller,
        buffers: &[UserBuffer],
        flags: u32,
        from: Option<AddressOut>,
        waker: Option<&Waker>,
    ) -> Attempt {
        let received = ready!(self.take_datagram(caller, MessageSpace::new(buffers, 0, flags), waker))?;
        if let (Some(out), MessageSender::Network(sender)) = (from, received.sender) {
            out.write(caller, sender)?;
        }
        Poll::Ready(Ok(received.count))
    }

    /// Takes a report about a datagram that did not arrive; `EAGAIN` without one. The bytes are the start of that
    /// datagram, and the sender is the receiver that it had.
    #[cold]
    fn take_report(&self, caller: &dyn Caller, space: MessageSpace<'_>) -> Receipt {
        let inner = self.inner.lock();
        let SocketState::Datagram(id) = inner.state else { return Poll::Ready(Err(Errno::EAGAIN)) };
        caller.account().admit()?;
        let mut bad = None;
        let take = |report: &Report, bytes: &[u8]| {
            let count = space.copy_out(caller, bytes).unwrap_or_else(|error| {
                bad = Some(error);
                0
            });
            let details = inner.details(report.at_ns, report.hop_limit).with_report(LossReport {
                error: error_of_report(report),
                origin: match (report.from, report.to) {
                    (None, _) => message::SO_EE_ORIGIN_LOCAL,
                    (_, SocketAddr::V4(_)) => message::SO_EE_ORIGIN_ICMP,
                    (_, SocketAddr::V6(_)) => message::SO_EE_ORIGIN_ICMP6,
                },
                kind: report.kind,
                code: report.code,
                information: report.size,
                offender: report.from.map(|from| self.shown(SocketAddr::new(from, 0)).ip()),
            });
            let sender = MessageSender::Network(self.shown(report.to));
            ReceivedMessage { count, length: bytes.len(), sender, details, ..ReceivedMessage::default() }
        };
        let taken = with_stack(|stack, _| stack.take_datagram_report(id, take))?;
        Poll::Ready(match (taken, bad) {
            (None, _) => Err(Errno::EAGAIN),
            (_, Some(error)) => Err(error),
            (Some(message), None) => Ok(message),
        })
    }

    /// Tries to receive one datagram in this way; returns its length and its sender too.
    fn take_datagram(&self, caller: &dyn Caller, space: MessageSpace<'_>, waker: Option<&Waker>) -> Receipt {
        let inner = self.inner.lock();
        let SocketState::Datagram(id) = inner.state else { return Poll::Ready(Err(Errno::EOPNOTSUPP)) };
        let mut bad = None;
        let mut message = ReceivedMessage::default();
        let mut take = |origin: &Origin, bytes: &[u8]| {
            let done = space.copy_out(caller, bytes).unwrap_or_else(|error| {
                bad = Some(error);
                0
            });
            let mut source = origin.from;
            if self.has_no_ports() {
                source.set_port(0);
            }
            message.details = inner.details(origin.at_ns, origin.hop_limit);
            message.sender = MessageSender::Network(self.shown(source));
            message.length = bytes.len();
            done
        };
        let result = with_stack(|stack, _| {
            let received = stack.udp_take_with(id, space.is_look(), &mut take)?;
            if let (None, Some(waker)) = (&received, waker) {
                stack.udp_register(id, Interest::Receive, waker)?;
                stack.set_datagram_reader(id, reader(caller.number()));
            }
            Ok(received)
        });
        if let Some(error) = bad {
            return Poll::Ready(Err(error));
        }
        match result? {
            None => Poll::Pending,
            Some(count) => Poll::Ready(Ok(ReceivedMessage { count, ..message })),
        }
    }

    fn forget(&self, interest: Interest, waker: &Waker) {
        let inner = self.inner.lock();
        if let Some(stack) = STACK.lock().as_mut() {
            match (&inner.state, interest) {
                // A socket that came from another state woke all waiters of that state.
                (SocketState::Fresh(_), _) | (SocketState::Listening(_), Interest::Send) => {}
                (SocketState::Listening(id), Interest::Receive) => stack.forget_accept(*id, waker),
                (SocketState::Connected(id), _) => stack.forget(*id, interest, waker),
                (SocketState::Datagram(id), _) => stack.udp_forget(*id, interest, waker),
            }
        }
    }

    /// Returns whether the memory of the socket is charged to this account, that of the process which made the socket.
    fn is_charged_to(&self, account: &Account) -> bool {
        core::ptr::eq(&*self.owner.account, account)
    }

    /// Returns the bytes of kernel memory that belong to the socket.
    fn memory(&self) -> usize {
        let inner = self.inner.lock();
        with_stack(|stack, _| match inner.state {
            SocketState::Fresh(_) => Ok(0),
            SocketState::Listening(id) => stack.listener_memory(id),
            SocketState::Connected(id) => stack.connection_memory(id),
            SocketState::Datagram(id) => stack.datagram_memory(id),
        })
        .unwrap_or(0)
    }

    /// Performs the `shutdown` call.
    pub(crate) fn shutdown(&self, how: u32) -> Result<usize, Errno> {
        let how = match how {
            types::SHUT_RD => Shutdown::Receive,
            types::SHUT_WR => Shutdown::Send,
            types::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno::EINVAL),
        };
        let mut inner = self.inner.lock();
        match inner.state {
            SocketState::Connected(id) => with_stack_and_send(|stack, now| stack.shutdown(id, how, now)).map(|()| 0),
            SocketState::Listening(listener) if !matches!(how, Shutdown::Send) => {
                // As on Linux, a listener that is shut down stops listening; callers that wait in `accept` get an
                // error.
                with_stack_and_send(|stack, now| stack.close_listener(listener, now))?;
                inner.state = SocketState::Fresh(None);
                Ok(0)
            }
            _ => Err(Errno::ENOTCONN),
        }
    }

    /// Performs the `getsockname` call.
    pub(crate) fn local_address(&self) -> Result<SocketAddr, Errno> {
        let inner = self.inner.lock();
        let local = with_stack(|stack, _| match inner.state {
            SocketState::Fresh(None) => Ok(anywhere(self.family, false).address),
            SocketState::Fresh(Some(binding)) => stack.binding_endpoint(binding),
            SocketState::Listening(id) => stack.listener_endpoint(id),
            SocketState::Connected(id) => stack.local_endpoint(id),
            SocketState::Datagram(id) => stack.udp_local_endpoint(id),
        })?;
        let local = match self.protocol {
            // As on Linux.
            DatagramProtocol::Raw(protocol) => SocketAddr::new(local.ip(), protocol.into()),
            _ => local,
        };
        Ok(self.shown(local))
    }

    /// Performs the `getpeername` call.
    pub(crate) fn remote_address(&self) -> Result<SocketAddr, Errno> {
        let inner = self.inner.lock();
        let remote = with_stack(|stack, _| match inner.state {
            SocketState::Connected(id) => {
                if stack.connected(id)? {
                    stack.remote_endpoint(id)
                } else {
                    Err(Error::NotConnected)
                }
            }
            SocketState::Datagram(id) => stack.udp_remote_endpoint(id)?.ok_or(Error::NotConnected),
            _ => Err(Error::NotConnected),
        })?;
        Ok(self.shown(remote))
    }

    /// Has reports kept, or not any more. `ENOMEM`.
    fn keep_reports(&self, inner: &mut Inner, are_kept: bool) -> Result<(), Errno> {
        if are_kept && inner.reports.is_none() {
            inner.reports = Some(self.owner.account.charge(Resource::Memory, MEMORY_OF_REPORTS)?);
        } else if !are_kept {
            inner.reports = None;
        }
        Ok(())
    }

    /// Sets an option of datagrams and packets.
    fn set_datagram_option(
        &self,
        caller: &dyn Caller,
        inner: &mut Inner,
        named: (u32, u32),
        value: UserBuffer,
    ) -> Result<(), Errno> {
        let number = value.read_number(caller)?;
        let is_of = |level: u32| (level == option::IPPROTO_IPV6) == self.is_six();
        match named {
            (option::IPPROTO_IP, option::IP_RECVERR) => self.keep_reports(inner, number != 0)?,
            (option::IPPROTO_IPV6, option::IPV6_RECVERR) if self.is_six() => self.keep_reports(inner, number != 0)?,
            (option::SOL_SOCKET, kind) if Arrival::is_kind(kind) => {
                inner.tells_arrivals = (number != 0).then_some(kind);
            }
            (level @ option::IPPROTO_IP, option::IP_MTU_DISCOVER)
            | (level @ option::IPPROTO_IPV6, option::IPV6_MTU_DISCOVER)
                if is_of(level) =>
            {
                if number > option::MOST_DISCOVERY {
                    return Err(Errno::EINVAL);
                }
                inner.discovery = number;
            }
            (option::IPPROTO_IP, option::IP_RETOPTS) => inner.tells_options = number != 0,
            (option::IPPROTO_IP, option::IP_RECVTTL) if !self.is_six() => {
                inner.tells_hop_limits = (number != 0).then_some(option::IP_TTL);
            }
            (option::IPPROTO_IPV6, option::IPV6_RECVHOPLIMIT) if self.is_six() => {
                inner.tells_hop_limits = (number != 0).then_some(option::IPV6_HOPLIMIT);
            }
            (option::IPPROTO_IPV6, option::IPV6_2292HOPLIMIT) if self.is_six() => {
                inner.tells_hop_limits = (number != 0).then_some(option::IPV6_2292HOPLIMIT);
            }
            (level @ option::IPPROTO_IP, option::IP_TTL)
            | (level @ option::IPPROTO_IPV6, option::IPV6_UNICAST_HOPS)
                if is_of(level) =>
            {
                let chosen =
                    if number == u32::MAX { None } else { Some(u8::try_from(number).map_err(|_| Errno::EINVAL)?) };
                if chosen == Some(0) && !self.is_six() {
                    return Err(Errno::EINVAL);
                }
                inner.hop_limit = chosen;
            }
            (option::IPPROTO_IPV6, option::IPV6_V6ONLY) if self.is_six() && !self.has_no_ports() => {
                return self.set_six_only(inner, number != 0);
            }
            (option::IPPROTO_IP, option::IP_HDRINCL) if self.is_raw() && !self.is_six() => {
                inner.raw.has_header = number != 0;
            }
            (option::SOL_RAW, option::ICMP_FILTER) if self.protocol == DatagramProtocol::Raw(1) && !self.is_six() => {
                inner.raw.left_out = [number, 0, 0, 0, 0, 0, 0, 0];
            }
            (option::SOL_RAW, option::ICMP_FILTER) if self.is_raw() => return Err(Errno::EOPNOTSUPP),
            (option::IPPROTO_ICMPV6, option::ICMPV6_FILTER)
                if self.protocol == DatagramProtocol::Raw(option::IPPROTO_ICMPV6 as u8) && self.is_six() =>
            {
                let mut bytes = [0; 32];
                let length = value.len().min(bytes.len());
                caller.copy_in(value.address(), &mut bytes[..length])?;
                let words = bytes.as_chunks::<4>().0;
                inner.raw.left_out = core::array::from_fn(|at| u32::from_le_bytes(words[at]));
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        inner.settle()
    }

    /// Performs the `setsockopt` call.
    pub(crate) fn set_option(&self, caller: &dyn Caller, named: (u32, u32), value: UserBuffer) -> Result<usize, Errno> {
        if named == (option::IPPROTO_TCP, option::TCP_CONGESTION) && self.kind == types::SOCK_STREAM {
            return choose_congestion_control(caller, value);
        }
        let number = value.read_number(caller)?;
        let mut inner = self.inner.lock();
        match named {
            (option::SOL_SOCKET, option::SO_REUSEADDR) => inner.reuses = number != 0,
            (option::SOL_SOCKET, option::SO_REUSEPORT) => {
                inner.spread = (number != 0).then(|| caller.whom().map_or(0, |whom| whom.users.effective));
            }
            (option::SOL_SOCKET, option::SO_KEEPALIVE) => {
                inner.tcp.keepalive = (number != 0).then_some(inner.keepalive);
            }
            (option::SOL_SOCKET, option::SO_BROADCAST) => inner.broadcasts = number != 0,
            (option::SOL_SOCKET, option::SO_SNDBUF) => inner.tcp.send_buffer = buffer_size(number),
            (option::SOL_SOCKET, option::SO_RCVBUF) => inner.tcp.receive_buffer = buffer_size(number),
            (option::SOL_SOCKET, option::SO_LINGER) => {
                if value.len() < 8 {
                    return Err(Errno::EINVAL);
                }
                let mut bytes = [0; 4];
                caller.copy_in(value.address() + 4, &mut bytes)?;
                inner.linger = (number, u32::from_le_bytes(bytes));
            }
            (option::IPPROTO_TCP, name) if self.kind == types::SOCK_STREAM => inner.set_tcp_option(name, number)?,
            (option::IPPROTO_IPV6, option::IPV6_V6ONLY) if self.is_six() && self.kind == types::SOCK_STREAM => {
                self.set_six_only(&mut inner, number != 0)?;
            }
            named if self.is_of_datagrams() => self.set_datagram_option(caller, &mut inner, named, value)?,
            _ => return Err(Errno::ENOPROTOOPT),
        }
        // Options that can change on a living connection take effect there too; buffer sizes hold for the next
        // connection.
        let options = inner.tcp;
        match inner.state {
            SocketState::Connected(id) => with_stack_and_send(|stack, now| match named {
                (option::IPPROTO_TCP, option::TCP_NODELAY) => stack.set_coalescing(id, options.coalescing, now),
                (option::IPPROTO_TCP, option::TCP_CORK) => stack.set_corked(id, options.is_corked, now),
                (option::IPPROTO_TCP, option::TCP_USER_TIMEOUT) => {
                    stack.set_user_timeout(id, options.user_timeout, now)
                }
                // As on Linux it lasts for a while only.
                (option::IPPROTO_TCP, option::TCP_QUICKACK) if number != 0 => stack.acknowledge_quickly(id, now),
                (option::SOL_SOCKET, option::SO_KEEPALIVE)
                | (option::IPPROTO_TCP, option::TCP_KEEPIDLE | option::TCP_KEEPINTVL | option::TCP_KEEPCNT) => {
                    stack.set_keepalive(id, options.keepalive, now)
                }
                _ => Ok(()),
            })?,
            SocketState::Listening(id) => {
                let deferral = inner.deferral;
                with_stack(|stack, _| {
                    stack.set_listener_options(id, &options)?;
                    stack.set_deferral(id, deferral)
                })?;
            }
            SocketState::Datagram(_) | SocketState::Fresh(_) => {}
        }
        Ok(0)
    }

    /// Performs the `getsockopt` call for the option of this level and name.
    pub(crate) fn get_option(&self, caller: &dyn Caller, asked: (u32, u32), out: OptionOut) -> Result<usize, Errno> {
        let inner = self.inner.lock();
        let mut second = None;
        let number = match asked {
            (option::SOL_SOCKET, option::SO_TYPE) => self.kind,
            (option::SOL_SOCKET, option::SO_DOMAIN) => u32::from(self.family),
            (option::SOL_SOCKET, option::SO_PROTOCOL) => match self.kind {
                types::SOCK_STREAM => option::IPPROTO_TCP,
                _ => match self.protocol {
                    DatagramProtocol::Udp => option::IPPROTO_UDP,
                    DatagramProtocol::Echo if self.is_six() => option::IPPROTO_ICMPV6,
                    DatagramProtocol::Echo => option::IPPROTO_ICMP,
                    DatagramProtocol::Raw(protocol) => protocol.into(),
                },
            },
            (option::SOL_SOCKET, option::SO_ACCEPTCONN) => matches!(inner.state, SocketState::Listening(_)) as u32,
            (option::SOL_SOCKET, option::SO_REUSEADDR) => inner.reuses as u32,
            (option::SOL_SOCKET, option::SO_REUSEPORT) => inner.spread.is_some() as u32,
            (option::SOL_SOCKET, option::SO_KEEPALIVE) => inner.tcp.keepalive.is_some() as u32,
            (option::SOL_SOCKET, option::SO_BROADCAST) => inner.broadcasts as u32,
            (option::SOL_SOCKET, option::SO_SNDBUF) => inner.tcp.send_buffer as u32,
            (option::SOL_SOCKET, option::SO_RCVBUF) => inner.tcp.receive_buffer as u32,
            (option::SOL_SOCKET, option::SO_LINGER) => {
                second = Some(inner.linger.1);
                inner.linger.0
            }
            (option::SOL_SOCKET, option::SO_ERROR) => match inner.state {
                SocketState::Connected(id) => number_of(with_stack(|stack, _| stack.take_failure(id))?),
                SocketState::Datagram(id) => number_of(with_stack(|stack, _| stack.take_datagram_failure(id))?),
                SocketState::Fresh(_) | SocketState::Listening(_) => 0,
            },
            (option::IPPROTO_IP, option::IP_RECVERR) if self.is_of_datagrams() => inner.reports.is_some() as u32,
            (option::SOL_SOCKET, kind) if Arrival::is_kind(kind) && self.is_of_datagrams() => {
                (inner.tells_arrivals == Some(kind)) as u32
            }
            (option::IPPROTO_IP, option::IP_MTU_DISCOVER) | (option::IPPROTO_IPV6, option::IPV6_MTU_DISCOVER)
                if self.is_of_datagrams() =>
            {
                inner.discovery
            }
            (option::IPPROTO_IP, option::IP_RECVTTL) | (option::IPPROTO_IPV6, option::IPV6_RECVHOPLIMIT)
                if self.is_of_datagrams() =>
            {
                inner.tells_hop_limits.is_some() as u32
            }
            (option::SOL_RAW, option::ICMP_FILTER) if self.protocol == DatagramProtocol::Raw(1) && !self.is_six() => {
                inner.raw.left_out[0]
            }
            (option::IPPROTO_IP, option::IP_RETOPTS) if self.is_of_datagrams() => inner.tells_options as u32,
            (option::IPPROTO_IPV6, option::IPV6_RECVERR) if self.is_six() && self.is_of_datagrams() => {
                inner.reports.is_some() as u32
            }
            (option::IPPROTO_IPV6, option::IPV6_V6ONLY) if self.is_six() => inner.is_six_only as u32,
            (option::IPPROTO_IP, option::IP_TTL) | (option::IPPROTO_IPV6, option::IPV6_UNICAST_HOPS)
                if self.is_of_datagrams() =>
            {
                inner.hop_limit.unwrap_or(USUAL_HOP_LIMIT).into()
            }
            (option::IPPROTO_IP, option::IP_HDRINCL) if self.is_raw() && !self.is_six() => inner.raw.has_header as u32,
            (option::IPPROTO_TCP, name) if self.kind == types::SOCK_STREAM => {
                drop(inner);
                return self.get_tcp_option(caller, name, out);
            }
            _ => return Err(Errno::ENOPROTOOPT),
        };
        drop(inner);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4..].copy_from_slice(&second.unwrap_or(0).to_le_bytes());
        let full = if second.is_some() { 8 } else { 4 };
        out.write(caller, &bytes[..full])
    }
}

/// Waits until the other side has everything that a closed connection had to send, or for this many nanoseconds.
pub(crate) async fn linger(connection: ConnectionId, time_ns: u64, reservation: time::Reservation) {
    let end_ns = time::now_ns().saturating_add(time_ns);
    // With the waker of each poll: the first one of a call has another one.
    let is_under_way = |cx: &mut Context<'_>| {
        let waker = cx.waker();
        let registered = with_stack(|stack, _| match time::now_ns() < end_ns {
            true => stack.register_for_delivery(connection, waker),
            false => {
                stack.forget(connection, Interest::Send, waker);
                Ok(false)
            }
        });
        Poll::Ready(registered.unwrap_or(false))
    };
    while poll_fn(is_under_way).await {
        scheduling::sleep_until(&reservation, time::ticks_at_ns(end_ns)).await;
    }
}

/// Returns the seconds for which a listener waits for first bytes that was told to wait for this many: up to the time
/// of the next answer to a request, as on Linux.
fn deferral_of(seconds: i32) -> u32 {
    const LONGEST_WAIT: u32 = 120;
    const MOST: u32 = 29_887;
    let seconds = u32::try_from(seconds).unwrap_or(0).min(MOST);
    let (mut all, mut wait) = (0, 1);
    while all < seconds {
        all += wait;
        wait = (2 * wait).min(LONGEST_WAIT);
    }
    all
}

/// Sets the algorithm of congestion control by its name: `ENOENT` for another one than there is.
fn choose_congestion_control(caller: &dyn Caller, value: UserBuffer) -> Result<usize, Errno> {
    let mut name = [0; CONGESTION.len()];
    let length = value.len().min(name.len());
    if length == 0 {
        return Err(Errno::EINVAL);
    }
    caller.copy_in(value.address(), &mut name[..length])?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name[end..].fill(0);
    if name == *CONGESTION { Ok(0) } else { Err(Errno::ENOENT) }
}

/// Bytes of a `struct tcp_info` up to the number of repeated segments, as Linux had it at first.
const INFORMATION: usize = 104;

/// Returns what `TCP_INFO` tells. Counts are of segments, times in microseconds; values that are not kept are 0.
fn information(state: ListedState, about: Option<network::Information>) -> [u8; INFORMATION] {
    const STAMPED: u8 = 1;
    const SELECTIVE: u8 = 2;
    const SCALED: u8 = 4;
    // A connection within the host has no segments: it is as one with the largest.
    const LARGEST: u32 = 65_483;
    let mut bytes = [0; INFORMATION];
    bytes[0] = state as u8;
    let mut words = [0; (INFORMATION - 8) / 4];
    match about {
        Some(about) => {
            let segments = |bytes: u32| bytes.div_ceil(about.segment.max(1));
            bytes[1] = if about.is_recovering { 3 } else { 0 };
            bytes[2] = about.doublings;
            bytes[4] = about.doublings;
            let (theirs, ours) = about.shifts;
            bytes[5] = u8::from(about.is_selective) * SELECTIVE + u8::from(theirs > 0 || ours > 0) * SCALED;
            bytes[5] |= u8::from(about.is_stamped) * STAMPED;
            bytes[6] = theirs & 0xf | ours << 4;
            words[0] = about.timeout.min(u64::from(u32::MAX)) as u32;
            (words[2], words[3]) = (about.segment, about.largest_received);
            (words[4], words[5]) = (segments(about.under_way), segments(about.held));
            words[13] = about.segment + if about.is_stamped { 52 } else { 40 };
            words[14] = about.room;
            (words[15], words[16]) = (about.round_trip as u32, about.variation as u32);
            // Linux's word for a window that had no loss yet.
            words[17] = if about.threshold >= 1 << 30 { 0x7fff_ffff } else { segments(about.threshold) };
            words[18] = segments(about.congestion_window);
            (words[19], words[20]) = (about.segment, 3);
            words[22] = about.room;
        }
        None => {
            (words[2], words[3], words[18], words[19]) = (LARGEST, LARGEST, 10, LARGEST);
            words[17] = 0x7fff_ffff;
        }
    }
    for (word, place) in words.iter().zip(bytes[8..].chunks_exact_mut(4)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

impl Socket {
    /// Performs `getsockopt` for an option of TCP.
    fn get_tcp_option(&self, caller: &dyn Caller, name: u32, out: OptionOut) -> Result<usize, Errno> {
        let inner = self.inner.lock();
        // Listeners and fresh sockets have no connection to tell of.
        let about = || match inner.state {
            SocketState::Connected(id) => with_stack(|stack, _| stack.information(id)),
            SocketState::Listening(_) => Ok((ListedState::Listening, None)),
            SocketState::Fresh(_) | SocketState::Datagram(_) => Ok((ListedState::Closed, None)),
        };
        let number = match name {
            option::TCP_NODELAY => (inner.tcp.coalescing == Coalescing::None).into(),
            option::TCP_CORK => inner.tcp.is_corked.into(),
            option::TCP_KEEPIDLE => inner.keepalive.idle.into(),
            option::TCP_KEEPINTVL => inner.keepalive.interval.into(),
            option::TCP_KEEPCNT => inner.keepalive.probes.into(),
            option::TCP_USER_TIMEOUT => inner.tcp.user_timeout.map_or(0, NonZeroU32::get),
            option::TCP_DEFER_ACCEPT => inner.deferral,
            option::TCP_QUICKACK => 1,
            // Linux's word for a connection that is not there yet.
            option::TCP_MAXSEG => about()?.1.map_or(536, |about| about.segment),
            option::TCP_CONGESTION => {
                drop(inner);
                return out.write(caller, CONGESTION);
            }
            option::TCP_INFO => {
                let (state, about) = about()?;
                drop(inner);
                return out.write(caller, &information(state, about));
            }
            _ => return Err(Errno::ENOPROTOOPT),
        };
        drop(inner);
        out.write(caller, &number.to_le_bytes())
    }

    /// Shows the bytes of a connection that are there, up to the buffer's length, in steps without a look for
    /// interrupts: a part would be no help to a caller that waits for the whole. Returns their number.
    fn peek(&self, caller: &dyn Caller, id: ConnectionId, buffer: UserBuffer) -> Result<usize, Errno> {
        let mut done = 0;
        loop {
            let (before, mut bad) = (done, None);
            with_stack(|stack, _| {
                stack.tcp_peek_with(id, before, (buffer.len() - before).min(Effort::BYTES), |bytes| {
                    bad = caller.copy_out(buffer.address() + done, bytes).err();
                    done += if bad.is_none() { bytes.len() } else { 0 };
                    bad.is_none()
                })
            })?;
            if let Some(error) = bad {
                return Err(error);
            }
            if done - before < Effort::BYTES || done == buffer.len() {
                return Ok(done);
            }
        }
    }

    /// Tries to receive many bytes of a stream: those that are there, and what of them has come until an interrupt.
    #[inline(never)]
    fn receive_in_steps(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        let mut done = 0;
        loop {
            let step = UserBuffer::new(buffer.address() + done, (buffer.len() - done).min(Effort::BYTES))?;
            // Only the first step may wait.
            match FileOperations::receive(self, caller, step, 0, None, waker.filter(|_| done == 0)) {
                Poll::Ready(Ok(count)) => {
                    done += count;
                    if count < step.len() || done == buffer.len() || steps::has_interrupts() {
                        return Poll::Ready(Ok(done));
                    }
                }
                attempt if done == 0 => return attempt,
                // Of an end or a failure the next call tells.
                _ => return Poll::Ready(Ok(done)),
            }
        }
    }

    /// Tries to send many bytes of a stream, and looks for interrupts after each step.
    #[inline(never)]
    fn send_in_steps(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        to: Option<SocketAddr>,
        sent: &mut usize,
        waker: Option<&Waker>,
    ) -> Attempt {
        loop {
            let step = UserBuffer::new(buffer.address(), buffer.len().min(*sent + Effort::BYTES))?;
            let attempt = FileOperations::send(self, caller, step, to, sent, waker);
            if *sent < step.len() || step.len() == buffer.len() || attempt != Poll::Ready(Ok(*sent)) {
                return attempt;
            }
            if steps::must_stop(caller, waker) {
                return Poll::Pending;
            }
        }
    }
}

impl FileOperations for Socket {
    fn properties(&self) -> Properties {
        // The bytes of one call are one datagram.
        let unit = if self.is_of_datagrams() { Unit::Message(LONGEST_DATAGRAM) } else { Unit::Byte };
        Properties { waits: Waits::ForInput, unit, ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        status_without_contents(mode::SOCKET | 0o777, None)
    }

    fn memory_if_closed(&self, account: &Account) -> usize {
        if self.is_charged_to(account) { 0 } else { self.memory() }
    }

    fn read(&self, caller: &dyn Caller, buffer: UserBuffer, waker: Option<&Waker>) -> Attempt {
        self.receive(caller, buffer, 0, None, waker)
    }

    fn write(&self, caller: &dyn Caller, buffer: UserBuffer, done: &mut usize, waker: Option<&Waker>) -> Attempt {
        self.send(caller, buffer, None, done, waker)
    }

    fn read_all(&self, caller: &dyn Caller, buffers: &[UserBuffer], waker: Option<&Waker>) -> Attempt {
        self.receive_datagram(caller, buffers, 0, None, waker)
    }

    fn write_all(&self, from: &dyn Caller, buffers: &[UserBuffer], sent: &mut usize, waker: Option<&Waker>) -> Attempt {
        self.send_datagram(from, buffers, None, sent, waker)
    }

    fn request(&self) -> Option<&latency::Request> {
        Some(&self.request)
    }

    /// Tries `accept`: makes the next connection a new file, and returns its peer's address.
    fn accept(&self, caller: &dyn Caller, waker: Option<&Waker>) -> Poll<Result<Accepted, Errno>> {
        let inner = self.inner.lock();
        let SocketState::Listening(listener) = inner.state else {
            return Poll::Ready(Err(if self.kind == types::SOCK_STREAM { Errno::EINVAL } else { Errno::EOPNOTSUPP }));
        };
        let accepted = with_stack(|stack, _| {
            let accepted = stack.accept(listener)?;
            if let (None, Some(waker)) = (&accepted, waker) {
                stack.register_accept(listener, waker)?;
                stack.set_acceptor(listener, reader(caller.number()));
            }
            Ok(accepted)
        })?;
        match accepted {
            Some((id, from)) => {
                let (state, owner) = (SocketState::Connected(id), self.owner.clone());
                let socket = Socket::new((self.family, types::SOCK_STREAM), state, inner.tcp, owner, None);
                let connection = AcceptedConnection::Made(Box::new(socket));
                Poll::Ready(Ok((connection, MessageSender::Network(self.shown(from)))))
            }
            None => Poll::Pending,
        }
    }

    /// Tries `connect`. `started` tells whether an earlier attempt began it.
    fn connect(&self, caller: &dyn Caller, to: SocketAddr, started: &mut bool, waker: Option<&Waker>) -> Attempt {
        let mut inner = self.inner.lock();
        match inner.state {
            SocketState::Fresh(binding) => {
                let options = inner.tcp;
                let to = self.remote_end(&inner, to)?;
                let owner: Arc<dyn network::Owner> = self.owner.clone();
                let id = with_stack_and_send(|stack, now| {
                    let id = stack.tcp_connect_for(&owner, binding, to, &options, now)?;
                    stack.set_reader(id, reader(caller.number()));
                    Ok(id)
                })?;
                inner.state = SocketState::Connected(id);
                *started = true;
            }
            SocketState::Connected(id) if !*started => {
                return Poll::Ready(Err(match with_stack(|stack, _| stack.connected(id)) {
                    Ok(true) => Errno::EISCONN,
                    Ok(false) => Errno::EALREADY,
                    Err(error) => error,
                }));
            }
            SocketState::Connected(_) => {}
            SocketState::Listening(_) => return Poll::Ready(Err(Errno::EISCONN)),
            SocketState::Datagram(id) => {
                if inner.is_six_only && to.is_ipv4() {
                    return Poll::Ready(Err(Errno::EAFNOSUPPORT));
                }
                let to = self.remote_end(&inner, to)?;
                with_stack(|stack, _| stack.udp_connect(id, Some(to)))?;
                return Poll::Ready(Ok(0));
            }
        }
        let SocketState::Connected(id) = inner.state else { return Poll::Ready(Err(Errno::EINVAL)) };
        let connected = with_stack(|stack, _| {
            let connected = stack.connected(id)?;
            if let (false, Some(waker)) = (connected, waker) {
                stack.register(id, Interest::Send, waker)?;
                stack.set_writer(id, reader(caller.number()));
            }
            Ok(connected)
        });
        match connected {
            Ok(true) => Poll::Ready(Ok(0)),
            Ok(false) => Poll::Pending,
            Err(error) => {
                // The socket can be used again, as on Linux.
                let _ = with_stack(|stack, now| stack.close(id, now));
                inner.state = SocketState::Fresh(None);
                Poll::Ready(Err(error))
            }
        }
    }

    /// Tries to send the bytes from `*sent` on, and advances it.
    fn send(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        to: Option<SocketAddr>,
        sent: &mut usize,
        waker: Option<&Waker>,
    ) -> Attempt {
        if buffer.len() - *sent > Effort::BYTES && !self.is_of_datagrams() {
            return self.send_in_steps(caller, buffer, to, sent, waker);
        }
        let inner = self.inner.lock();
        let mut bad = None;
        match inner.state {
            SocketState::Connected(id) => {
                let result = with_stack_and_send(|stack, now| {
                    while *sent < buffer.len() && bad.is_none() {
                        let fill = |room: &mut [u8]| {
                            let count = room.len().min(buffer.len() - *sent);
                            match caller.copy_in(buffer.address() + *sent, &mut room[..count]) {
                                Ok(()) => {
                                    *sent += count;
                                    count
                                }
                                Err(error) => {
                                    bad = Some(error);
                                    0
                                }
                            }
                        };
                        if stack.tcp_send_with(id, fill, now)? == Sent::Full {
                            if let Some(waker) = waker {
                                stack.register(id, Interest::Send, waker)?;
                                stack.set_writer(id, reader(caller.number()));
                            }
                            return Ok(false);
                        }
                    }
                    if let Some(waker) = waker {
                        // The sender has found room before the stack woke it: an earlier step's registration is stale.
                        stack.forget(id, Interest::Send, waker);
                    }
                    Ok(true)
                });
                if latency::is_on() && *sent > 0 {
                    self.request.is_answered();
                }
                match (result, bad) {
                    (_, Some(error)) | (Err(error), None) if *sent == 0 => Poll::Ready(Err(error)),
                    (Ok(false), None) => Poll::Pending,
                    _ => Poll::Ready(Ok(*sent)),
                }
            }
            SocketState::Datagram(_) => {
                drop(inner);
                self.send_datagram(caller, &[buffer], to, sent, waker)
            }
            _ => Poll::Ready(Err(if to.is_some() { Errno::EPIPE } else { Errno::ENOTCONN })),
        }
    }

    /// Tries to receive: the bytes that are there, up to the buffer's length.
    fn receive(
        &self,
        caller: &dyn Caller,
        buffer: UserBuffer,
        flags: u32,
        from: Option<AddressOut>,
        waker: Option<&Waker>,
    ) -> Attempt {
        let inner = self.inner.lock();
        let peek = flags & message::PEEK != 0;
        let mut bad = None;
        match inner.state {
            SocketState::Connected(id) => {
                if buffer.is_empty() {
                    return Poll::Ready(Ok(0));
                }
                if peek {
                    let seen = self.peek(caller, id, buffer)?;
                    if seen > 0 {
                        return Poll::Ready(Ok(seen));
                    }
                } else if buffer.len() > Effort::BYTES {
                    drop(inner);
                    return self.receive_in_steps(caller, buffer, waker);
                }
                let mut done = 0;
                let result = with_stack_to_receive(|stack, now| {
                    let take = |bytes: &[u8]| {
                        if peek {
                            return 0;
                        }
                        let count = bytes.len().min(buffer.len() - done);
                        match caller.copy_out(buffer.address() + done, &bytes[..count]) {
                            Ok(()) => {
                                done += count;
                                count
                            }
                            Err(error) => {
                                bad = Some(error);
                                0
                            }
                        }
                    };
                    let received = stack.tcp_receive_with(id, take, now)?;
                    if let (Received::Nothing, Some(waker)) = (&received, waker) {
                        stack.register(id, Interest::Receive, waker)?;
                        stack.set_reader(id, reader(caller.number()));
                    }
                    Ok(received)
                });
                match (result, bad) {
                    (_, Some(error)) if done == 0 || peek => Poll::Ready(Err(error)),
                    (Ok(Received::Nothing), _) => Poll::Pending,
                    (Ok(Received::End), _) => Poll::Ready(Ok(0)),
                    (Ok(Received::Bytes(count)), _) => Poll::Ready(Ok(count)),
                    (Err(error), _) => Poll::Ready(Err(error)),
                }
            }
            SocketState::Datagram(_) => {
                drop(inner);
                self.receive_datagram(caller, &[buffer], flags, from, waker)
            }
            _ => Poll::Ready(Err(Errno::ENOTCONN)),
        }
    }

    /// Tries to send several buffers. Control messages with files are for local sockets only, and ignored here as on
    /// Linux.
    fn send_message(&self, caller: &dyn Caller, message: OutgoingMessage<'_>, waker: Option<&Waker>) -> Attempt {
        let to = message.to().end();
        let (buffers, sent) = message.bytes();
        if self.is_of_datagrams() {
            return self.send_datagram(caller, buffers, to, sent, waker);
        }
        if length_of(buffers) == 0 {
            return FileOperations::send(self, caller, UserBuffer::new(0, 0)?, to, sent, waker);
        }
        let (mut before, mut effort, length) = (0, Effort::with_buffers(usize::MAX, buffers.len()), length_of(buffers));
        for buffer in buffers {
            let start = sent.saturating_sub(before).min(buffer.len());
            before += buffer.len();
            let mut part = start;
            if part == buffer.len() {
                continue;
            }
            let attempt = FileOperations::send(self, caller, *buffer, to, &mut part, waker);
            *sent += part - start;
            match attempt {
                Poll::Ready(Ok(_)) if part == buffer.len() => {}
                Poll::Ready(Err(error)) if *sent == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(_) => return Poll::Ready(Ok(*sent)),
                Poll::Pending => return Poll::Pending,
            }
            if effort.add(part - start) && *sent < length && steps::must_stop(caller, waker) {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(*sent))
    }

    /// Tries to receive into several buffers.
    fn receive_message(&self, caller: &dyn Caller, space: MessageSpace<'_>, waker: Option<&Waker>) -> Receipt {
        if space.flags() & message::ERRQUEUE != 0 {
            return self.take_report(caller, space);
        }
        if self.is_of_datagrams() {
            return self.take_datagram(caller, space, waker);
        }
        let (buffers, done, flags) = (space.buffers(), space.done(), space.flags());
        // Linux takes this flag as a wish to throw bytes away.
        if flags & message::TRUNC != 0 {
            return Poll::Ready(Err(Errno::EOPNOTSUPP));
        }
        if length_of(buffers) == 0 {
            // Nothing is received, but an error is.
            let attempt = self.receive(caller, UserBuffer::new(0, 0)?, flags, None, waker);
            return attempt.map_ok(|_| ReceivedMessage::default());
        }
        let (mut before, mut count, mut effort) = (0, 0, Effort::with_buffers(usize::MAX, buffers.len()));
        for buffer in buffers {
            let part = (done + count).saturating_sub(before).min(buffer.len());
            before += buffer.len();
            if part == buffer.len() {
                continue;
            }
            let rest = UserBuffer::new(buffer.address() + part, buffer.len() - part)?;
            // Only the first buffer may wait; further bytes are taken if they are there.
            match self.receive(caller, rest, flags, None, if count == 0 { waker } else { None }) {
                Poll::Ready(Ok(more)) => count += more,
                Poll::Ready(Err(error)) if count == 0 => return Poll::Ready(Err(error)),
                Poll::Pending if count == 0 => return Poll::Pending,
                _ => break,
            }
            // Looking twice would show the same bytes twice. Bytes that are there may be left for the next call.
            if before > done + count || flags & message::PEEK != 0 || effort.add(rest.len()) && steps::has_interrupts()
            {
                break;
            }
        }
        Poll::Ready(Ok(ReceivedMessage::of_stream(count)))
    }

    /// Returns the bytes that have arrived, of a datagram socket those of the next datagram.
    fn unread(&self) -> Result<usize, Errno> {
        let inner = self.inner.lock();
        with_stack(|stack, _| match inner.state {
            SocketState::Fresh(_) => Ok(0),
            SocketState::Listening(_) => Err(Error::Invalid),
            SocketState::Connected(id) => stack.receivable(id),
            SocketState::Datagram(id) => stack.datagram_receivable(id),
        })
    }

    /// Registers a waker for input, for a call of this priority. Returns `false` if input or its end is there already,
    /// or if registering fails.
    fn register_for_input(&self, caller: &dyn Caller, priority: Priority, waker: &Waker) -> bool {
        let inner = self.inner.lock();
        let reader = Reader { owner: caller.number(), level: priority.number() };
        let register = |stack: &mut Stack<NetworkLink>| match inner.state {
            SocketState::Fresh(_) => Ok(false),
            SocketState::Listening(id) if stack.listener_readiness(id)?.receive => Ok(false),
            SocketState::Listening(id) => {
                stack.set_acceptor(id, reader);
                stack.register_accept(id, waker).map(|()| true)
            }
            SocketState::Connected(id) => stack.register_for_input(id, waker, reader),
            SocketState::Datagram(id) if stack.udp_readiness(id)?.receive => Ok(false),
            SocketState::Datagram(id) => {
                stack.set_datagram_reader(id, reader);
                stack.udp_register(id, Interest::Receive, waker).map(|()| true)
            }
        };
        STACK.lock().as_mut().is_some_and(|stack| register(stack).unwrap_or(false))
    }

    /// Sets the reader: a registered call of this priority waits for input.
    fn set_reader(&self, caller: &dyn Caller, priority: Priority) {
        let inner = self.inner.lock();
        if let Some(stack) = STACK.lock().as_mut() {
            inner.state.set_reader(stack, Reader { owner: caller.number(), level: priority.number() });
        }
    }

    /// Records that a process has looked for input without waiting: if no other reader waits, arrivals are for this
    /// process.
    fn is_asked_by(&self, caller: &dyn Caller) {
        let inner = self.inner.lock();
        if let Some(stack) = STACK.lock().as_mut()
            && !inner.state.is_awaited(stack)
        {
            inner.state.set_reader(stack, reader(caller.number()));
        }
    }

    /// Records that a process has found no room to send, and does not wait for it.
    fn is_filled_by(&self, caller: &dyn Caller) {
        let inner = self.inner.lock();
        if let Some(stack) = STACK.lock().as_mut() {
            match inner.state {
                SocketState::Connected(id) => stack.set_writer(id, reader(caller.number())),
                SocketState::Datagram(id) => stack.set_datagram_writer(id, reader(caller.number())),
                SocketState::Fresh(_) | SocketState::Listening(_) => {}
            }
        }
    }

    /// Returns the epoll events for which this process would not wait. Registers `waker`, if there is one, for the
    /// wanted events and for the end.
    fn readiness(&self, caller: &dyn Caller, wanted: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let inner = self.inner.lock();
        let sends = wanted & (event::OUT | event::WRNORM) != 0;
        let readiness = with_stack(|stack, _| {
            if waker.is_some() {
                inner.state.set_reader(stack, reader(caller.number()));
            }
            match inner.state {
                // No registration: when the socket changes its state, all its watchers look again.
                SocketState::Fresh(_) => Ok(network::Readiness { send: true, hang_up: true, ..Default::default() }),
                SocketState::Listening(id) => {
                    if let Some(waker) = waker {
                        stack.register_accept(id, waker)?;
                    }
                    stack.listener_readiness(id)
                }
                SocketState::Connected(id) => {
                    if let Some(waker) = waker {
                        stack.register(id, Interest::Receive, waker)?;
                        if sends {
                            stack.register(id, Interest::Send, waker)?;
                        }
                    }
                    stack.readiness(id)
                }
                SocketState::Datagram(id) => {
                    if let Some(waker) = waker {
                        stack.udp_register(id, Interest::Receive, waker)?;
                        if sends {
                            stack.udp_register(id, Interest::Send, waker)?;
                        }
                    }
                    stack.udp_readiness(id)
                }
            }
        })?;
        let bit = |is_so: bool, bits: u32| if is_so { bits } else { 0 };
        Ok(bit(readiness.receive, event::IN | event::RDNORM)
            | bit(readiness.send, event::OUT | event::WRNORM)
            | bit(readiness.receive_end, event::RDHUP)
            | bit(readiness.hang_up, event::HUP)
            | bit(readiness.failed, event::ERR))
    }

    /// Takes back the registration of a pending [`receive`](Self::receive) or [`accept`](Self::accept).
    fn forget_reader(&self, waker: &Waker) {
        self.forget(Interest::Receive, waker);
    }

    /// Takes back the registration of a pending [`send`](Self::send) or [`connect`](Self::connect).
    fn forget_writer(&self, waker: &Waker) {
        self.forget(Interest::Send, waker);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        let aborts = inner.linger_seconds() == Some(0);
        // An error means that the stack has forgotten the socket already.
        let _ = with_stack_and_send(|stack, now| match inner.state {
            SocketState::Fresh(None) => Ok(()),
            SocketState::Fresh(Some(binding)) => stack.release(binding),
            SocketState::Listening(id) => stack.close_listener(id, now),
            SocketState::Connected(id) if aborts => stack.abort(id, now),
            SocketState::Connected(id) => stack.close(id, now),
            SocketState::Datagram(id) => stack.udp_close(id),
        });
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use abi_unix::SystemCall;
    use abi_unix::authority::{Capability, CapabilitySet, Held};
    use network::Owner as _;

    use super::*;
    use crate::process;
    use crate::testing::{Program, run};

    #[test]
    fn no_owner_takes_more_than_half_of_the_rest_and_each_gets_a_share() {
        const ALL: usize = 1000;
        let account = Account::of_the_first();
        let owner = || Shares::new(account.clone());
        let mut left = ALL;
        let mut hoarders = Vec::new();
        for _ in 0..6 {
            let hoarder = owner();
            let mut hoard = Vec::new();
            while let Ok(share) = DatagramShare::take(&hoarder, 100, left) {
                hoard.push(share);
                left -= 1;
            }
            assert!(!hoard.is_empty() && hoard.len() <= left + 1);
            hoarders.push((hoarder, hoard));
        }
        assert!(left > 0 && DatagramShare::take(&owner(), 100, left).is_ok());
        assert_eq!(account.used(Resource::Memory), (ALL - left) * 100);
        // Other kinds are counted apart, and a share that was given back can be taken again.
        let (hoarder, hoard) = &mut hoarders[0];
        assert_eq!(hoarder.charge(network::Held::Connection, 10, left, network::Need::Call), Ok(()));
        assert!(DatagramShare::take(hoarder, 100, left).is_err());
        let count = hoard.len();
        hoard.clear();
        assert!(DatagramShare::take(hoarder, 100, left + count).is_ok());
        assert_eq!(hoarder.taken[0].load(Ordering::Relaxed), 0);
        hoarder.refund(network::Held::Connection, 10);
        drop(hoarders);
        assert_eq!(account.used(Resource::Memory), 0);
    }

    fn set(program: &mut Program, socket: usize, (level, name): (u32, u32), value: &[u8]) -> Result<usize, Errno> {
        let place = program.store(value);
        program.call(SystemCall::SetSocketOption, [socket, level as usize, name as usize, place, value.len()])
    }

    fn read_option(program: &mut Program, socket: usize, (level, name): (u32, u32)) -> Result<u32, Errno> {
        let (place, size) = (program.place(8), program.store(&4u32.to_le_bytes()));
        let call = [socket, level as usize, name as usize, place, size];
        program.call(SystemCall::GetSocketOption, call).map(|_| program.read_u32(place))
    }

    /// Each of the two options is told for itself, whichever shares the port.
    #[test]
    fn the_two_ways_to_share_a_port_are_told_apart() {
        run(|program| {
            let [address, port] = [option::SO_REUSEADDR, option::SO_REUSEPORT].map(|name| (option::SOL_SOCKET, name));
            let socket = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
            for (name, value, expected) in [(address, 1u32, (1, 0)), (port, 1, (1, 1)), (address, 0, (0, 1))] {
                assert_eq!(set(program, socket, name, &value.to_le_bytes()), Ok(0));
                let told = (read_option(program, socket, address), read_option(program, socket, port));
                assert_eq!(told, (Ok(expected.0), Ok(expected.1)));
            }
        });
    }

    /// Options of TCP have Linux's numbers, limits and values of a socket that nobody has changed.
    #[test]
    fn options_of_tcp_are_kept_within_their_limits() {
        run(|program| {
            let tcp = |name| (option::IPPROTO_TCP, name);
            let socket = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
            for (name, usual, good, bad) in [
                (option::TCP_KEEPIDLE, 7200, 60, Some(0)),
                (option::TCP_KEEPINTVL, 75, 32_767, Some(32_768)),
                (option::TCP_KEEPCNT, 9, 127, Some(128)),
                (option::TCP_USER_TIMEOUT, 0, 30_000, Some(u32::MAX)),
                (option::TCP_CORK, 0, 1, None),
                (option::TCP_DEFER_ACCEPT, 0, 31, None),
                (option::TCP_NODELAY, 0, 1, None),
            ] {
                assert_eq!(read_option(program, socket, tcp(name)), Ok(usual), "{name}");
                assert_eq!(set(program, socket, tcp(name), &u32::to_le_bytes(good)), Ok(0), "{name}");
                if let Some(bad) = bad {
                    assert_eq!(set(program, socket, tcp(name), &u32::to_le_bytes(bad)), Err(Errno::EINVAL), "{name}");
                }
                assert_eq!(read_option(program, socket, tcp(name)), Ok(good), "{name}");
                assert_eq!(set(program, socket, tcp(name), &[1, 0]), Err(Errno::EINVAL), "{name}");
            }
            assert_eq!(set(program, socket, tcp(option::TCP_QUICKACK), &1u32.to_le_bytes()), Ok(0));
            assert_eq!(set(program, socket, tcp(option::TCP_CONGESTION), b"cubic"), Ok(0));
            assert_eq!(set(program, socket, tcp(option::TCP_CONGESTION), b"cubic\0rest"), Ok(0));
            assert_eq!(set(program, socket, tcp(option::TCP_CONGESTION), b"reno"), Err(Errno::ENOENT));
            assert_eq!(set(program, socket, tcp(option::TCP_CONGESTION), b""), Err(Errno::EINVAL));
            assert_eq!(set(program, socket, tcp(99), &1u32.to_le_bytes()), Err(Errno::ENOPROTOOPT));
            assert_eq!(read_option(program, socket, tcp(99)), Err(Errno::ENOPROTOOPT));
            let (place, size) = (program.place(256), program.store(&256u32.to_le_bytes()));
            let information = [socket, 6, option::TCP_INFO as usize, place, size];
            assert_eq!(program.call(SystemCall::GetSocketOption, information), Ok(0));
            let state = program.read_u32(place) & 0xff;
            assert_eq!((program.read_u32(size), state), (INFORMATION as u32, 7), "there is no connection");
            // Sockets of datagrams have none of them.
            let other = program.call(SystemCall::Socket, [2, 2, 0]).unwrap();
            assert_eq!(read_option(program, other, tcp(option::TCP_KEEPIDLE)), Err(Errno::ENOPROTOOPT));
        });
    }

    /// Values that Linux tells after these were set.
    #[test]
    fn waits_for_first_bytes_end_with_answers() {
        let told = [(i32::MIN, 0), (0, 0), (1, 1), (2, 3), (3, 3), (4, 7), (60, 63), (128, 247), (i32::MAX, 29_887)];
        for (seconds, expected) in told {
            assert_eq!(deferral_of(seconds), expected, "{seconds}");
        }
    }

    /// Two listeners of one user have one port, and another user's has none.
    #[test]
    fn a_port_is_shared_by_the_sockets_of_one_user() {
        run(|program| {
            let on = 1u32.to_le_bytes();
            let address = program.store(&[2, 0, 0x20, 0x31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            let listener = |program: &mut Program, shares: bool| {
                let socket = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
                if shares {
                    set(program, socket, (option::SOL_SOCKET, option::SO_REUSEPORT), &on).unwrap();
                }
                let bound = program.call(SystemCall::Bind, [socket, address, 16]);
                bound.map(|_| program.call(SystemCall::Listen, [socket, 5]).unwrap())
            };
            assert_eq!(listener(program, true), Ok(0));
            assert_eq!(listener(program, false), Err(Errno::EADDRINUSE));
            assert_eq!(listener(program, true), Ok(0));
            assert_eq!(program.call(SystemCall::SetUser, [7]), Ok(0));
            assert_eq!(listener(program, true), Err(Errno::EADDRINUSE));
        });
    }

    /// A connection tells Linux's numbers of its state, and bytes beyond a step are sent, looked at and received whole.
    #[test]
    fn large_transfers_over_a_connection_are_whole() {
        run(|program| {
            let mut address = [0; 16];
            address[..8].copy_from_slice(&[2, 0, 0x20, 0x21, 127, 0, 0, 1]);
            let place = program.store(&address);
            let listener = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
            assert_eq!(program.call(SystemCall::Bind, [listener, place, 16]), Ok(0));
            assert_eq!(program.call(SystemCall::Listen, [listener, 1]), Ok(0));
            let client = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
            assert_eq!(program.call(SystemCall::Connect, [client, place, 16]), Ok(0));
            let server = program.call(SystemCall::Accept, [listener, 0, 0, 0]).unwrap();
            let (room, size) = (program.place(256), program.store(&104u32.to_le_bytes()));
            let information = [client, 6, option::TCP_INFO as usize, room, size];
            assert_eq!(program.call(SystemCall::GetSocketOption, information), Ok(0));
            assert_eq!(program.read_u32(room) & 0xff, 1, "established");
            let bytes: Vec<u8> = (0..50_000u32).map(|index| (index / 3) as u8).collect();
            let from = program.store(&bytes);
            assert_eq!(program.call(SystemCall::SendTo, [client, from, bytes.len(), 0, 0, 0]), Ok(bytes.len()));
            let into = program.place(bytes.len() + 10);
            for flags in [message::PEEK, 0] {
                let call = [server, into, bytes.len() + 10, flags as usize, 0, 0];
                assert_eq!(program.call(SystemCall::ReceiveFrom, call), Ok(bytes.len()), "{flags}");
                assert!(program.read(into, bytes.len()) == bytes);
            }
        });
    }

    /// Sockets of every kind keep it, and programs that never send to everybody set it, too.
    #[test]
    fn a_wish_to_send_to_everybody_is_kept() {
        run(|program| {
            let name = (option::SOL_SOCKET, option::SO_BROADCAST);
            let sockets = [(2, 1), (2, 2), (10, 2), (1, 2)]
                .map(|(family, kind)| program.call(SystemCall::Socket, [family, kind, 0]).unwrap());
            for socket in sockets {
                for value in [0u32, 1, 0] {
                    assert_eq!(set(program, socket, name, &(7 * value).to_le_bytes()), Ok(0));
                    assert_eq!(read_option(program, socket, name), Ok(value));
                }
            }
        });
    }

    /// An echo within the machine: raw sockets see the request, with its header, and the answer, with its hop limit.
    #[test]
    fn raw_sockets_send_and_receive_whole_packets() {
        run(|program| {
            let first = process::table::find(process::FIRST).unwrap();
            let held = Held::of(CapabilitySet::only(Capability::RawNetwork));
            authority::give(&first, &program.process(), held).unwrap();
            let kind = (types::SOCK_RAW | types::SOCK_NONBLOCK) as usize;
            let [raw, other] = [0; 2].map(|_| program.call(SystemCall::Socket, [2, kind, 1]).unwrap());
            assert_eq!(program.call(SystemCall::Socket, [2, kind, 0]), Err(Errno::EPROTONOSUPPORT));
            assert_eq!(program.call(SystemCall::Socket, [2, kind, 256]), Err(Errno::EPROTONOSUPPORT));
            assert_eq!(read_option(program, raw, (1, option::SO_PROTOCOL)), Ok(1));
            assert_eq!(read_option(program, raw, (1, option::SO_TYPE)), Ok(types::SOCK_RAW));
            let to = program.store(&types::SocketAddress { address: [127, 0, 0, 1], port: 0 }.to_bytes());
            let message = program.store(&[8, 0, 0xf7, 0xfd, 0, 1, 0, 1]);
            let one = 1u32.to_le_bytes();
            // `other` receives no answers.
            let filter = (option::SOL_RAW, option::ICMP_FILTER);
            assert_eq!(set(program, other, filter, &one), Ok(0));
            assert_eq!(set(program, raw, (0, option::IP_RECVTTL), &one), Ok(0));
            assert_eq!(set(program, raw, (0, option::IP_TTL), &7u32.to_le_bytes()), Ok(0));
            assert_eq!(read_option(program, raw, (0, option::IP_TTL)), Ok(7));
            assert_eq!(set(program, raw, (0, option::IP_TTL), &256u32.to_le_bytes()), Err(Errno::EINVAL));
            let send = |program: &mut Program, bytes, length| {
                program.call(SystemCall::SendTo, [raw, bytes, length, 0, to, 16])
            };
            assert_eq!(send(program, message, 8), Ok(8));
            let (place, control) = (program.place(64), program.place(32));
            for (kind, hop_limit) in [(8, 7), (0, 64)] {
                let header = program.message_header(&[(place, 64)], (control, 32));
                assert_eq!(program.call(SystemCall::ReceiveMessage, [raw, header, 0]), Ok(28));
                assert_eq!((program.read(place, 1)[0], program.read(place + 20, 1)[0]), (0x45, kind));
                assert_eq!(
                    (program.read_u32(control + 12), program.read_u32(control + 16)),
                    (option::IP_TTL, hop_limit)
                );
            }
            assert_eq!(program.read_from(raw, 64), Err(Errno::EAGAIN));
            assert_eq!(program.read_from(other, 64).unwrap()[20], 8);
            assert_eq!(program.read_from(other, 64), Err(Errno::EAGAIN));
            // With a header of the program's; one with options is refused.
            assert_eq!(set(program, raw, (0, option::IP_HDRINCL), &one), Ok(0));
            assert_eq!(read_option(program, raw, (0, option::IP_HDRINCL)), Ok(1));
            let packet = [&[0x45, 0, 0, 28, 0, 0, 0, 0, 9, 1][..], &[0; 10], &[8, 0, 0xf7, 0xfd, 0, 1, 0, 1]].concat();
            let bytes = program.store(&packet);
            assert_eq!(send(program, bytes, 28), Ok(28));
            assert_eq!(program.read_from(other, 64).unwrap()[8], 9, "the hop limit is the program's");
            assert_eq!(send(program, bytes, 19), Err(Errno::EINVAL));
            program.write(bytes, &[0x46]);
            assert_eq!(send(program, bytes, 28), Err(Errno::EINVAL));
            // Options are those of raw sockets alone.
            let datagrams = program.call(SystemCall::Socket, [2, types::SOCK_DGRAM as usize, 0]).unwrap();
            for named in [filter, (0, option::IP_HDRINCL)] {
                assert_eq!(set(program, datagrams, named, &one), Err(Errno::ENOPROTOOPT));
            }
            for socket in [raw, other, datagrams] {
                program.close(socket).unwrap();
            }
        });
    }

    /// Times of arrival, hop limits, and reports about datagrams that nobody has received; their memory is charged.
    #[test]
    fn datagrams_tell_when_they_came_and_which_were_lost() {
        run(|program| {
            let kind = (types::SOCK_DGRAM | types::SOCK_NONBLOCK) as usize;
            let [own, other] = [0; 2].map(|_| program.call(SystemCall::Socket, [2, kind, 0]).unwrap());
            let at = |program: &mut Program, port| {
                program.store(&types::SocketAddress { address: [127, 0, 0, 1], port }.to_bytes())
            };
            let (here, nobody) = (at(program, 4730), at(program, 4731));
            assert_eq!(program.call(SystemCall::Bind, [own, here, 16]), Ok(0));
            let one = 1u32.to_le_bytes();
            let bytes = program.store(b"bytes");
            let send = move |program: &mut Program, to| {
                let call = [other, bytes, 5, message::CONFIRM as usize, to, 16];
                assert_eq!(program.call(SystemCall::SendTo, call), Ok(5));
            };
            // One that came before the time was asked for has the time of its receipt.
            send(program, here);
            assert_eq!(set(program, own, (1, option::SO_TIMESTAMPNS), &one), Ok(0));
            assert_eq!(set(program, own, (0, option::IP_RECVTTL), &one), Ok(0));
            assert_eq!(read_option(program, own, (1, option::SO_TIMESTAMPNS)), Ok(1));
            assert_eq!(read_option(program, own, (1, option::SO_TIMESTAMP)), Ok(0));
            send(program, here);
            program.sleep_ns(5_000_000);
            let (place, control) = (program.place(64), program.place(160));
            let mut times = Vec::new();
            for _ in 0..2 {
                let header = program.message_header(&[(place, 64)], (control, 160));
                assert_eq!(program.call(SystemCall::ReceiveMessage, [own, header, 0]), Ok(5));
                assert_eq!((program.read_u32(control + 8), program.read_u32(control + 12)), (1, 35));
                let time = types::TimeSpec::from_bytes(program.read(control + 16, 16).try_into().unwrap());
                times.push(time.to_ns().unwrap());
                assert_eq!((program.read_u32(control + 44), program.read_u32(control + 48)), (option::IP_TTL, 64));
            }
            assert!(times[0] >= times[1] + 5_000_000, "{times:?}");
            let before = program.process().account.used(Resource::Memory);
            assert_eq!(set(program, other, (0, option::IP_RECVERR), &one), Ok(0));
            assert!(program.process().account.used(Resource::Memory) >= before + MEMORY_OF_REPORTS);
            let take = |program: &mut Program, socket: usize| {
                let header = program.message_header(&[(place, 3)], (control, 160));
                let call = [socket, header, message::ERRQUEUE as usize];
                let result = program.call(SystemCall::ReceiveMessage, call);
                result.map(|count| (count, program.read_u32(header + 48)))
            };
            assert_eq!(take(program, other), Err(Errno::EAGAIN));
            send(program, nobody);
            assert_eq!(take(program, other), Ok((3, message::ERRQUEUE | message::TRUNC)));
            assert_eq!((program.read_u32(control + 8), program.read_u32(control + 12)), (0, option::IP_RECVERR));
            assert_eq!(program.read(control + 16, 16), [111, 0, 0, 0, 2, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(program.read(control + 32, 8), [2, 0, 0, 0, 127, 0, 0, 1]);
            assert_eq!(program.read_from(other, 8), Err(Errno::EAGAIN), "the failure has gone with the report");
            send(program, nobody);
            assert_eq!(program.read_from(other, 8), Err(Errno::ECONNREFUSED));
            assert_eq!(take(program, own), Err(Errno::EAGAIN));
            assert_eq!(set(program, other, (0, option::IP_RECVERR), &[0; 4]), Ok(0));
            assert_eq!(program.process().account.used(Resource::Memory), before);
            assert_eq!(set(program, own, (0, option::IP_MTU_DISCOVER), &6u32.to_le_bytes()), Err(Errno::EINVAL));
            // Streams have no reports.
            let stream = program.call(SystemCall::Socket, [2, 1, 0]).unwrap();
            assert_eq!(take(program, stream), Err(Errno::EAGAIN));
            for socket in [own, other, stream] {
                program.close(socket).unwrap();
            }
        });
    }

    /// As on Linux, before everything else.
    #[test]
    fn protocols_out_of_range_are_invalid() {
        run(|program| {
            for (kind, protocol) in [(1, 263), (2, usize::MAX), (3, 1000)] {
                assert_eq!(program.call(SystemCall::Socket, [2, kind, protocol]), Err(Errno::EINVAL));
            }
        });
    }

    #[test]
    fn raw_sockets_are_for_those_who_may() {
        run(|program| {
            let child = program.spawn(|program| {
                let kind = types::SOCK_RAW as usize;
                for (family, protocol) in [(2, 1), (10, 58)] {
                    assert_eq!(program.call(SystemCall::Socket, [family, kind, protocol]), Err(Errno::EPERM));
                }
                assert!(program.call(SystemCall::Socket, [2, types::SOCK_DGRAM as usize, 1]).is_ok());
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }
}
