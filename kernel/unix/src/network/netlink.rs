//! Sockets of rtnetlink (netlink(7), rtnetlink(7)): programs ask for links, addresses and routes.
//!
//! A request is answered while it is sent: its answers wait in the socket until they are received. Everything is read
//! from the network's stack at that moment, copied out under its lock, and written without it. Links, addresses and
//! routes can only be asked for; requests that would change them are answered with `EOPNOTSUPP`. Nothing is ever told
//! unasked, so groups may be joined and stay silent.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Poll, Waker};

use abi_unix::types::{self, Status, epoll as event, mode, socket_option as option};
use abi_unix::{Errno, errno};
use heapless::Vec as FixedVec;
use network::{Address, SixAddress};
use spin::Mutex;
use waiters::Waiters;

use crate::files::file::{Attempt, FileOperations, OpenFile, Properties, Unit, status_without_contents};
use crate::files::message::{MessageSender, MessageSpace};
use crate::files::sent_files::{OutgoingMessage, Receipt, ReceivedMessage};
use crate::network::addressing::{CARD, LOOPBACK, NAME_OF_CARD, flags_of};
use crate::network::stack::STACK;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::{AddressOut, Caller, OptionOut, UserBuffer, length_of};

/// Longest request, and longest message of answers: what programs have room for.
const LONGEST: usize = 4096;
/// Number of messages that wait to be received.
const MOST_WAITING: usize = 8;
/// Bytes of an address (`struct sockaddr_nl`).
pub(crate) const ADDRESS: usize = 12;
/// Level of a netlink socket's own options, and those of them that change nothing here.
const SOL_NETLINK: u32 = 270;
const ADD_MEMBERSHIP: u32 = 1;
const DROP_MEMBERSHIP: u32 = 2;
const NO_ENOBUFS: u32 = 5;
const CAP_ACK: u32 = 10;
const EXT_ACK: u32 = 11;

/// Bytes of a message's header, and its flags.
const HEADER: usize = 16;
const REQUEST: u16 = 1;
const MULTI: u16 = 2;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
const CAPPED: u16 = 0x100;

/// Kinds of messages.
const NOOP: u16 = 1;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
/// The first kind that is a request to the kernel.
const FIRST_REQUEST: u16 = 16;

const UNSPECIFIED: u8 = 0;
const FOUR: u8 = types::AF_INET as u8;
const SIX: u8 = types::AF_INET6 as u8;

/// Port of the next socket that has not chosen one: far from the numbers of processes, which programs choose.
static NEXT_PORT: AtomicU32 = AtomicU32::new(0xf000_0000);

/// Copy of all that programs can ask for.
#[derive(Clone, Debug, Default)]
pub(super) struct NetworkPicture {
    /// Hardware address and largest packet of the network card.
    pub(super) card: Option<([u8; 6], u32)>,
    pub(super) four: Option<Address>,
    six: FixedVec<SixAddress, 8>,
    prefixes: FixedVec<(Ipv6Addr, u8), 8>,
    routers: FixedVec<Ipv6Addr, 4>,
}

impl NetworkPicture {
    /// Takes the copy.
    pub(super) fn take() -> NetworkPicture {
        let mut picture = NetworkPicture::default();
        let mut guard = STACK.lock();
        let Some(stack) = guard.as_mut() else { return picture };
        if !stack.link().is_connected() {
            return picture;
        }
        let (hardware, mtu) = stack.interface();
        picture.card = Some((hardware, mtu as u32));
        picture.four = stack.place();
        picture.six.extend(stack.six_addresses().take(8));
        picture.prefixes.extend(stack.six_prefixes().take(8));
        picture.routers.extend(stack.six_routers().take(4));
        picture
    }
}

/// A message of answers, which is written in parts. A part that does not fit is left out.
struct NetlinkAnswer {
    bytes: Vec<u8>,
    sequence: u32,
    port: u32,
    flags: u16,
}

impl NetlinkAnswer {
    fn new(sequence: u32, port: u32, flags: u16) -> Result<NetlinkAnswer, Errno> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(LONGEST).map_err(|_| Errno::ENOMEM)?;
        Ok(NetlinkAnswer { bytes, sequence, port, flags })
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.bytes.len() + bytes.len() <= LONGEST {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Adds bytes, and zeros up to the next word.
    fn add_aligned(&mut self, bytes: &[u8]) {
        self.add(bytes);
        self.add(&[0; 4][..bytes.len().next_multiple_of(4) - bytes.len()]);
    }

    /// Adds one message of this kind: its fixed part, and its attributes.
    fn message(&mut self, kind: u16, fixed: &[u8], attributes: &[(u16, &[u8])]) {
        let payload: usize = attributes.iter().map(|(_, value)| 4 + value.len().next_multiple_of(4)).sum();
        let length = HEADER + fixed.len().next_multiple_of(4) + payload;
        if self.bytes.len() + length > LONGEST {
            return;
        }
        self.add(&(length as u32).to_le_bytes());
        self.add(&kind.to_le_bytes());
        self.add(&self.flags.to_le_bytes());
        self.add(&self.sequence.to_le_bytes());
        self.add(&self.port.to_le_bytes());
        self.add_aligned(fixed);
        for (name, value) in attributes {
            self.add(&(4 + value.len() as u16).to_le_bytes());
            self.add(&name.to_le_bytes());
            self.add_aligned(value);
        }
    }

    /// Adds the links (`struct ifinfomsg`), or the one of this number. Returns whether there is one.
    fn links(&mut self, picture: &NetworkPicture, wanted: Option<u32>) -> bool {
        const ETHERNET: u16 = 1;
        const OF_LOOPBACK: u16 = 772;
        /// Up, running and with a carrier; with the loopback's flag, or those of broadcast and groups.
        const UP: u32 = 0x1_0041;
        let mut has_one = false;
        let mut link = |kind: u16, index: u32, flags: u32, name: &[u8], hardware: [u8; 6], mtu: u32| {
            if wanted.is_some_and(|wanted| wanted != index) {
                return;
            }
            has_one = true;
            let mut fixed = [0; 16];
            fixed[2..4].copy_from_slice(&kind.to_le_bytes());
            fixed[4..8].copy_from_slice(&index.to_le_bytes());
            fixed[8..12].copy_from_slice(&(UP | flags).to_le_bytes());
            let everyone = if kind == ETHERNET { [0xff; 6] } else { [0; 6] };
            // Whether the link is up: of the loopback Linux does not know it.
            let state = if kind == ETHERNET { 6 } else { 0 };
            self.message(
                NEW_LINK,
                &fixed,
                &[
                    (3, name),
                    (13, &1000u32.to_le_bytes()),
                    (16, &[state]),
                    (4, &mtu.to_le_bytes()),
                    (6, b"noqueue\0"),
                    (1, &hardware),
                    (2, &everyone),
                ],
            );
        };
        link(OF_LOOPBACK, LOOPBACK, 0x8, b"lo\0", [0; 6], 65_536);
        if let Some((hardware, mtu)) = picture.card {
            link(ETHERNET, CARD, 0x1002, NAME_OF_CARD, hardware, mtu);
        }
        has_one
    }

    /// Adds the addresses of a family (`struct ifaddrmsg`).
    fn addresses(&mut self, picture: &NetworkPicture, family: u8) {
        const OF_HOST: u8 = 254;
        const PERMANENT: u8 = 0x80;
        if matches!(family, UNSPECIFIED | FOUR) {
            let mut four = |own: Ipv4Addr, prefix: u8, scope: u8, index: u32, name: &[u8], all: Option<Ipv4Addr>| {
                let own = own.octets();
                let all = all.unwrap_or(Ipv4Addr::UNSPECIFIED).octets();
                let flags = u32::from(PERMANENT).to_le_bytes();
                let every = [(1, &own[..]), (2, &own), (3, name), (8, &flags), (4, &all)];
                let given = if all == [0; 4] { &every[..4] } else { &every };
                self.message(NEW_ADDRESS, &address_part(FOUR, prefix, PERMANENT, scope, index), given);
            };
            four(Ipv4Addr::LOCALHOST, 8, OF_HOST, LOOPBACK, b"lo\0", None);
            if let Some(Address { address, prefix, .. }) = picture.four {
                let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
                let all = (prefix < 31).then(|| Ipv4Addr::from_bits(address.to_bits() | hosts));
                four(address, prefix, 0, CARD, NAME_OF_CARD, all);
            }
        }
        if matches!(family, UNSPECIFIED | SIX) {
            let mut six = |own: Ipv6Addr, prefix: u8, flags: u8, scope: u8, index: u32| {
                let fixed = address_part(SIX, prefix, flags, scope, index);
                self.message(NEW_ADDRESS, &fixed, &[(1, &own.octets()), (8, &u32::from(flags).to_le_bytes())]);
            };
            six(Ipv6Addr::LOCALHOST, 128, PERMANENT, OF_HOST, LOOPBACK);
            for own in &picture.six {
                six(own.address, own.prefix, flags_of(own), scope_of_route(own.address), CARD);
            }
        }
    }

    /// Adds the routes of a family (`struct rtmsg`).
    fn routes(&mut self, picture: &NetworkPicture, family: u8) {
        const BY_KERNEL: u8 = 2;
        const AT_BOOT: u8 = 3;
        const BY_ROUTER: u8 = 9;
        const OF_LINK: u8 = 253;
        const MAIN: u8 = 254;
        let card = CARD.to_le_bytes();
        let mut route = |to: IpAddr, prefix: u8, protocol: u8, scope: u8, by: Option<IpAddr>, from: Option<IpAddr>| {
            let octets = |address: IpAddr| -> FixedVec<u8, 16> {
                match address {
                    IpAddr::V4(address) => address.octets().into_iter().collect(),
                    IpAddr::V6(address) => address.octets().into_iter().collect(),
                }
            };
            let family = if to.is_ipv4() { FOUR } else { SIX };
            let fixed = [family, prefix, 0, 0, MAIN, protocol, scope, 1, 0, 0, 0, 0];
            let table = u32::from(MAIN).to_le_bytes();
            let metric = if by.is_some() { 1024u32 } else { 256 }.to_le_bytes();
            let (to, by, from) = (octets(to), by.map(octets), from.map(octets));
            let mut attributes: FixedVec<(u16, &[u8]), 6> = FixedVec::new();
            attributes.extend([(15, &table[..]), (4, &card)]);
            attributes.extend((prefix > 0).then_some((1, &to[..])));
            attributes.extend((family == SIX).then_some((6, &metric[..])));
            attributes.extend(by.as_ref().map(|by| (5, &by[..])));
            attributes.extend(from.as_ref().map(|from| (7, &from[..])));
            self.message(NEW_ROUTE, &fixed, &attributes);
        };
        if matches!(family, UNSPECIFIED | FOUR)
            && let Some(Address { address, prefix, gateway }) = picture.four
        {
            if let Some(gateway) = gateway {
                route(Ipv4Addr::UNSPECIFIED.into(), 0, AT_BOOT, 0, Some(gateway.into()), None);
            }
            let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            let network = Ipv4Addr::from_bits(address.to_bits() & !hosts);
            route(network.into(), prefix, BY_KERNEL, OF_LINK, None, Some(address.into()));
        }
        if matches!(family, UNSPECIFIED | SIX) && !picture.six.is_empty() {
            for &(prefix, length) in &picture.prefixes {
                route(prefix.into(), length, BY_ROUTER, 0, None, None);
            }
            route(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 64, BY_KERNEL, 0, None, None);
            for &router in &picture.routers {
                route(Ipv6Addr::UNSPECIFIED.into(), 0, BY_ROUTER, 0, Some(router.into()), None);
            }
        }
    }

    /// Adds the outcome of a request that has this header: an error, or none.
    fn outcome(&mut self, header: &[u8], outcome: Result<(), Errno>) {
        let number = outcome.map_or_else(|error| -(errno::Errno::number(error) as i32), |()| 0);
        self.flags = CAPPED;
        let fixed = [&number.to_le_bytes()[..], header].concat();
        self.message(ERROR, &fixed, &[]);
    }
}

/// Returns the fixed part of an address.
fn address_part(family: u8, prefix: u8, flags: u8, scope: u8, index: u32) -> [u8; 8] {
    let [a, b, c, d] = index.to_le_bytes();
    [family, prefix, flags, scope, a, b, c, d]
}

/// Returns the scope of an address in rtnetlink's numbers.
fn scope_of_route(address: Ipv6Addr) -> u8 {
    match address.segments()[0] & 0xffc0 {
        0xfe80 => 253,
        0xfec0 => 200,
        _ => 0,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the number of the link that a request for one names: by itself, or by its name.
fn wanted_link(payload: &[u8]) -> Result<u32, Errno> {
    const NAME: u16 = 3;
    let index = word(payload, 4).ok_or(Errno::EINVAL)?;
    if index != 0 {
        return Ok(index);
    }
    let mut rest = payload.get(16..).unwrap_or(&[]);
    while let (Some(length), Some(name)) = (half(rest, 0), half(rest, 2)) {
        let length = usize::from(length);
        let value = rest.get(4..length).ok_or(Errno::EINVAL)?;
        if name == NAME {
            let value = value.split(|&byte| byte == 0).next().unwrap_or(value);
            return match value {
                b"lo" => Ok(LOOPBACK),
                _ if NAME_OF_CARD.starts_with(value) && value.len() + 1 == NAME_OF_CARD.len() => Ok(CARD),
                _ => Err(Errno::ENODEV),
            };
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Err(Errno::EINVAL)
}

/// Answers one request, to the socket at this port. `None` if it needs no answer.
fn answer(request: &[u8], port: u32, picture: &NetworkPicture) -> Result<Option<Vec<u8>>, Errno> {
    let (Some(kind), Some(flags), Some(sequence)) = (half(request, 4), half(request, 6), word(request, 8)) else {
        return Ok(None);
    };
    let (Some(header), Some(payload)) = (request.get(..HEADER), request.get(HEADER..)) else { return Ok(None) };
    if flags & REQUEST == 0 || kind < FIRST_REQUEST && kind != NOOP {
        return Ok(None);
    }
    let family = payload.first().copied().unwrap_or(UNSPECIFIED);
    let is_dump = flags & DUMP != 0 && kind != NOOP;
    let mut answer = NetlinkAnswer::new(sequence, port, if is_dump { MULTI } else { 0 })?;
    let outcome = match (kind, is_dump) {
        (NOOP, _) => Ok(()),
        (GET_LINK, true) => {
            answer.links(picture, None);
            Ok(())
        }
        (GET_LINK, false) => wanted_link(payload).and_then(|index| match answer.links(picture, Some(index)) {
            true => Ok(()),
            false => Err(Errno::ENODEV),
        }),
        (GET_ADDRESS, true) => {
            answer.addresses(picture, family);
            Ok(())
        }
        (GET_ROUTE, true) => {
            answer.routes(picture, family);
            Ok(())
        }
        _ => Err(Errno::EOPNOTSUPP),
    };
    match outcome {
        Ok(()) if is_dump => answer.message(DONE, &0u32.to_le_bytes(), &[]),
        Ok(()) if flags & ACKNOWLEDGE == 0 => {}
        outcome => answer.outcome(header, outcome),
    }
    Ok((!answer.bytes.is_empty()).then_some(answer.bytes))
}

#[derive(Default)]
struct AnswerQueue {
    messages: VecDeque<Vec<u8>>,
    readers: Waiters,
}

/// A socket of rtnetlink.
#[doc(alias("netlink_sock", "AF_NETLINK", "NETLINK_ROUTE"))]
pub(crate) struct NetlinkSocket {
    kind: u32,
    port: AtomicU32,
    waiting: Mutex<AnswerQueue>,
    /// EVERY-BYTE: for as many messages as may wait.
    _charge: Charge,
}

impl NetlinkSocket {
    /// Performs the `socket` call.
    pub(crate) fn new(account: &alloc::sync::Arc<Account>, kind: u32, protocol: u32) -> Result<NetlinkSocket, Errno> {
        if !matches!(kind, types::SOCK_RAW | types::SOCK_DGRAM) {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        if protocol != 0 {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let charge = account.charge(Resource::Memory, MOST_WAITING * (LONGEST + size_of::<Vec<u8>>()))?;
        let mut waiting = AnswerQueue::default();
        waiting.messages.try_reserve_exact(MOST_WAITING).map_err(|_| Errno::ENOMEM)?;
        Ok(NetlinkSocket { kind, port: AtomicU32::new(0), waiting: Mutex::new(waiting), _charge: charge })
    }

    /// Returns the socket behind a file; `ENOTSOCK` for any other kind.
    pub(crate) fn of(file: &OpenFile) -> Result<&NetlinkSocket, Errno> {
        file.as_kind().ok_or(Errno::ENOTSOCK)
    }

    /// Returns the socket's port, and chooses one if it has none yet.
    fn own_port(&self) -> u32 {
        let fresh = || NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        match self.port.load(Ordering::Relaxed) {
            0 => {
                let fresh = fresh();
                let old = self.port.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed);
                old.map_or_else(|chosen| chosen, |_| fresh)
            }
            port => port,
        }
    }

    /// Reads an address; returns its port.
    pub(crate) fn port_in(caller: &dyn Caller, address: usize, size: u32) -> Result<u32, Errno> {
        let mut bytes = [0; ADDRESS];
        if (size as usize) < ADDRESS {
            return Err(Errno::EINVAL);
        }
        caller.copy_in(address, &mut bytes)?;
        match half(&bytes, 0) {
            Some(types::AF_NETLINK) => word(&bytes, 4).ok_or(Errno::EINVAL),
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    /// Performs the `bind` call with this port. Groups may be joined; nothing comes to them.
    pub(crate) fn bind(&self, port: u32) -> Result<usize, Errno> {
        let port = if port == 0 { self.own_port() } else { port };
        match self.port.compare_exchange(0, port, Ordering::Relaxed, Ordering::Relaxed) {
            Err(old) if old != port => Err(Errno::EINVAL),
            _ => Ok(0),
        }
    }

    /// Succeeds if the kernel is at this port: no message goes to programs.
    pub(crate) fn require_kernel(port: u32) -> Result<(), Errno> {
        if port == 0 { Ok(()) } else { Err(Errno::ECONNREFUSED) }
    }

    /// Performs the `getsockname` call.
    pub(crate) fn write_address(&self, out: AddressOut, caller: &dyn Caller) -> Result<usize, Errno> {
        out.write_bytes(caller, &types::netlink_address(self.port.load(Ordering::Relaxed))).map(|()| 0)
    }

    /// Performs the `setsockopt` call: nothing that can be set changes anything.
    pub(crate) fn set_option(level: u32, name: u32, value: UserBuffer) -> Result<usize, Errno> {
        match (level, name) {
            (option::SOL_SOCKET, option::SO_SNDBUF | option::SO_RCVBUF)
            | (SOL_NETLINK, ADD_MEMBERSHIP | DROP_MEMBERSHIP | NO_ENOBUFS | CAP_ACK | EXT_ACK) => {
                if value.len() >= 4 {
                    Ok(0)
                } else {
                    Err(Errno::EINVAL)
                }
            }
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    /// Performs the `getsockopt` call.
    pub(crate) fn get_option(&self, caller: &dyn Caller, asked: (u32, u32), out: OptionOut) -> Result<usize, Errno> {
        let number = match asked {
            (option::SOL_SOCKET, option::SO_TYPE) => self.kind,
            (option::SOL_SOCKET, option::SO_DOMAIN) => types::AF_NETLINK.into(),
            (option::SOL_SOCKET, option::SO_SNDBUF | option::SO_RCVBUF) => (MOST_WAITING * LONGEST) as u32,
            (option::SOL_SOCKET, option::SO_PROTOCOL | option::SO_ACCEPTCONN | option::SO_ERROR) => 0,
            _ => return Err(Errno::ENOPROTOOPT),
        };
        out.write(caller, &number.to_le_bytes())
    }

    /// Answers the requests in the buffers.
    fn ask(&self, caller: &dyn Caller, buffers: &[UserBuffer]) -> Result<usize, Errno> {
        let total = length_of(buffers);
        if total > LONGEST {
            return Err(Errno::EMSGSIZE);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(total).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(total, 0);
        let mut rest = &mut bytes[..];
        for buffer in buffers {
            let (part, behind) = rest.split_at_mut(buffer.len());
            caller.copy_in(buffer.address(), part)?;
            rest = behind;
        }
        let (port, picture) = (self.own_port(), NetworkPicture::take());
        let mut rest = &bytes[..];
        while let Some(length) = word(rest, 0) {
            let length = length as usize;
            // As on Linux, requests behind one whose length is wrong are none.
            let Some(request) = rest.get(..length).filter(|request| request.len() >= HEADER) else { break };
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            if self.waiting.lock().messages.len() >= MOST_WAITING {
                return Err(Errno::ENOBUFS);
            }
            if let Some(answer) = answer(request, port, &picture)? {
                let mut waiting = self.waiting.lock();
                // Another thread may have asked meanwhile.
                if waiting.messages.len() >= MOST_WAITING {
                    return Err(Errno::ENOBUFS);
                }
                waiting.messages.push_back(answer);
                waiting.readers.wake_all();
            }
        }
        Ok(total)
    }

    /// Tries to receive the next message of answers.
    fn take(&self, memory: &dyn Caller, space: MessageSpace<'_>, waker: Option<&Waker>) -> Receipt {
        let mut waiting = self.waiting.lock();
        let Some(message) = waiting.messages.front() else {
            if let Some(waker) = waker {
                waiting.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
            }
            return Poll::Pending;
        };
        let (length, count) = (message.len(), space.copy_out(memory, message)?);
        if !space.is_look() {
            waiting.messages.pop_front();
        }
        Poll::Ready(Ok(ReceivedMessage { count, length, sender: MessageSender::Kernel, ..ReceivedMessage::default() }))
    }
}

impl FileOperations for NetlinkSocket {
    fn properties(&self) -> Properties {
        Properties { unit: Unit::Message(LONGEST), ..Properties::USUAL }
    }

    fn status(&self) -> Status {
        status_without_contents(mode::SOCKET | 0o777, None)
    }

    fn read_all(&self, memory: &dyn Caller, buffers: &[UserBuffer], waker: Option<&Waker>) -> Attempt {
        self.take(memory, MessageSpace::new(buffers, 0, 0), waker).map_ok(|received| received.count)
    }

    fn write_all(&self, memory: &dyn Caller, buffers: &[UserBuffer], sent: &mut usize, _: Option<&Waker>) -> Attempt {
        *sent = self.ask(memory, buffers)?;
        Poll::Ready(Ok(*sent))
    }

    fn send_message(&self, memory: &dyn Caller, message: OutgoingMessage<'_>, waker: Option<&Waker>) -> Attempt {
        let (buffers, sent) = message.bytes();
        self.write_all(memory, buffers, sent, waker)
    }

    fn receive_message(&self, memory: &dyn Caller, space: MessageSpace<'_>, waker: Option<&Waker>) -> Receipt {
        self.take(memory, space, waker)
    }

    /// Returns the epoll events for which a call would not wait; `waker` is registered if there is one.
    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        let mut waiting = self.waiting.lock();
        if let Some(waker) = waker {
            waiting.readers.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        let input = if waiting.messages.is_empty() { 0 } else { event::IN | event::RDNORM };
        Ok(input | event::OUT | event::WRNORM)
    }

    fn forget_reader(&self, waker: &Waker) {
        self.waiting.lock().readers.forget(waker);
    }

    /// Returns the bytes of the next message.
    fn unread(&self) -> Result<usize, Errno> {
        Ok(self.waiting.lock().messages.front().map_or(0, Vec::len))
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::message;

    use super::*;
    use crate::testing::{Program, run};

    fn picture() -> NetworkPicture {
        let own = |address: &str, is_permanent| SixAddress {
            address: address.parse().unwrap(),
            prefix: 64,
            is_tentative: false,
            is_duplicate: false,
            is_deprecated: false,
            is_permanent,
        };
        let gateway = Some([10, 0, 2, 2].into());
        NetworkPicture {
            card: Some(([2, 0, 0, 0, 0, 15], 1500)),
            four: Some(Address { address: [10, 0, 2, 15].into(), prefix: 24, gateway }),
            six: [own("fe80::15", true), own("fec0::15", false)].into_iter().collect(),
            prefixes: core::iter::once(("fec0::".parse().unwrap(), 64)).collect(),
            routers: core::iter::once("fe80::2".parse().unwrap()).collect(),
        }
    }

    fn request(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + payload.len()) as u32).to_le_bytes().to_vec();
        bytes.extend(kind.to_le_bytes());
        bytes.extend((flags | REQUEST).to_le_bytes());
        bytes.extend(7u32.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes
    }

    /// A message of an answer: its kind, its payload, and where its attributes begin.
    #[derive(Debug)]
    struct ToldMessage(u16, Vec<u8>);

    impl ToldMessage {
        fn attribute(&self, fixed: usize, name: u16) -> Option<Vec<u8>> {
            let mut rest = &self.1[fixed..];
            while let (Some(length), Some(found)) = (half(rest, 0), half(rest, 2)) {
                let value = &rest[4..usize::from(length)];
                if found == name {
                    return Some(value.to_vec());
                }
                rest = rest.get(usize::from(length).next_multiple_of(4)..).unwrap_or(&[]);
            }
            None
        }
    }

    fn split(mut bytes: &[u8]) -> Vec<ToldMessage> {
        let mut messages = Vec::new();
        while let Some(length) = word(bytes, 0) {
            assert_eq!(word(bytes, 8), Some(7), "the request's number");
            assert_eq!(word(bytes, 12), Some(99), "the receiver's port");
            messages.push(ToldMessage(half(bytes, 4).unwrap(), bytes[HEADER..length as usize].to_vec()));
            bytes = &bytes[(length as usize).next_multiple_of(4)..];
        }
        assert!(bytes.is_empty());
        messages
    }

    fn ask(request: &[u8]) -> Vec<ToldMessage> {
        split(&answer(request, 99, &picture()).unwrap().unwrap_or_default())
    }

    #[test]
    fn links_are_told_with_name_and_hardware_address() {
        let all = ask(&request(GET_LINK, DUMP, &[0]));
        assert_eq!(all.iter().map(|message| message.0).collect::<Vec<_>>(), [NEW_LINK, NEW_LINK, DONE]);
        assert_eq!(word(&all[0].1, 4), Some(1));
        assert_eq!(all[0].attribute(16, 3).unwrap(), b"lo\0");
        assert_eq!(word(&all[1].1, 4), Some(2));
        assert_eq!(all[1].attribute(16, 1).unwrap(), [2, 0, 0, 0, 0, 15]);
        assert_eq!(all[1].attribute(16, 4).unwrap(), 1500u32.to_le_bytes());
        let mut by_number = [0; 16];
        by_number[4] = 2;
        let one = ask(&request(GET_LINK, 0, &by_number));
        assert_eq!((one.len(), one[0].attribute(16, 3).unwrap()), (1, b"eth0\0".to_vec()));
        let by_name = [&[0; 16][..], &[9, 0, 3, 0], b"eth0\0\0\0\0"].concat();
        assert_eq!(ask(&request(GET_LINK, ACKNOWLEDGE, &by_name)).len(), 2);
        by_number[4] = 3;
        let error = ask(&request(GET_LINK, 0, &by_number));
        assert_eq!((error[0].0, word(&error[0].1, 0)), (ERROR, Some(-19i32 as u32)));
    }

    #[test]
    fn addresses_and_routes_are_told_by_family() {
        let count = |kind, family| ask(&request(kind, DUMP, &[family])).len() - 1;
        assert_eq!([UNSPECIFIED, FOUR, SIX, 17].map(|family| count(GET_ADDRESS, family)), [5, 2, 3, 0]);
        assert_eq!([UNSPECIFIED, FOUR, SIX, 17].map(|family| count(GET_ROUTE, family)), [5, 2, 3, 0]);
        let four = ask(&request(GET_ADDRESS, DUMP, &[FOUR]));
        assert_eq!(four[1].1[..8], [2, 24, 0x80, 0, 2, 0, 0, 0]);
        assert_eq!(four[1].attribute(8, 2).unwrap(), [10, 0, 2, 15]);
        assert_eq!(four[1].attribute(8, 4).unwrap(), [10, 0, 2, 255]);
        let six = ask(&request(GET_ADDRESS, DUMP, &[SIX]));
        assert_eq!(six[1].1[..4], [10, 64, 0x80, 253]);
        assert_eq!(six[2].1[..4], [10, 64, 0, 200]);
        let routes = ask(&request(GET_ROUTE, DUMP, &[FOUR]));
        assert_eq!((routes[0].attribute(12, 5).unwrap(), routes[0].attribute(12, 1)), (vec![10, 0, 2, 2], None));
        assert_eq!((routes[1].1[1], routes[1].attribute(12, 1).unwrap()), (24, vec![10, 0, 2, 0]));
    }

    #[test]
    fn other_requests_are_refused_and_no_requests_are_ignored() {
        for kind in [NEW_LINK, 17, 19, NEW_ADDRESS, NEW_ROUTE, 30, 34, 200] {
            let error = ask(&request(kind, 0, &[0; 16]));
            assert_eq!((error[0].0, word(&error[0].1, 0)), (ERROR, Some(-95i32 as u32)), "{kind}");
            assert_eq!(error[0].1[4..20], request(kind, 0, &[0; 16])[..16], "the request's header");
        }
        assert_eq!(word(&ask(&request(NOOP, ACKNOWLEDGE, &[]))[0].1, 0), Some(0));
        assert!(ask(&request(DONE, DUMP, &[])).is_empty());
        let mut none = request(GET_LINK, DUMP, &[0]);
        none[6] = 0;
        assert!(ask(&none).is_empty());
        for length in 0..HEADER {
            assert!(ask(&request(GET_LINK, DUMP, &[])[..length]).is_empty());
        }
    }

    fn open(program: &mut Program) -> usize {
        let kind = (types::SOCK_RAW | types::SOCK_NONBLOCK) as usize;
        program.call(SystemCall::Socket, [types::AF_NETLINK as usize, kind, 0]).unwrap()
    }

    #[test]
    fn a_program_asks_and_hears() {
        run(|program| {
            let socket = open(program);
            let any = program.store(&types::netlink_address(0));
            assert_eq!(program.call(SystemCall::Bind, [socket, any, ADDRESS]), Ok(0));
            let (own, size) = (program.place(ADDRESS), program.store(&(ADDRESS as u32).to_le_bytes()));
            assert_eq!(program.call(SystemCall::GetSocketName, [socket, own, size]), Ok(0));
            let port = word(&program.read(own, ADDRESS), 4).unwrap();
            assert_ne!(port, 0);
            assert_eq!(program.read_from(socket, 100), Err(Errno::EAGAIN));

            let asked = request(GET_ADDRESS, DUMP, &[0; 4]);
            let place = program.store(&asked);
            let to_kernel = [socket, place, asked.len(), 0, any, ADDRESS];
            assert_eq!(program.call(SystemCall::SendTo, to_kernel), Ok(asked.len()));
            // The length first, as `ip` asks.
            let room = program.place(LONGEST);
            let (peek, cut) = (message::PEEK as usize, message::TRUNC as usize);
            let length = program.call(SystemCall::ReceiveFrom, [socket, room, 0, peek | cut, 0, 0]).unwrap();
            assert_eq!(program.call(SystemCall::ReceiveFrom, [socket, room, LONGEST, 0, own, size]), Ok(length));
            assert_eq!(program.read(own, ADDRESS), types::netlink_address(0));
            let heard = program.read(room, length);
            assert_eq!((half(&heard, 4), word(&heard, 12)), (Some(NEW_ADDRESS), Some(port)));
            assert_eq!(half(&heard, length - 4 - HEADER + 4), Some(DONE));

            // A message to other processes is refused, and no more answers wait than are charged.
            let other = program.store(&types::netlink_address(1));
            assert_eq!(
                program.call(SystemCall::SendTo, [socket, place, asked.len(), 0, other, ADDRESS]),
                Err(Errno::ECONNREFUSED)
            );
            assert_eq!(program.call(SystemCall::Connect, [socket, other, ADDRESS]), Err(Errno::ECONNREFUSED));
            assert_eq!(program.call(SystemCall::Connect, [socket, any, ADDRESS]), Ok(0));
            for _ in 0..MOST_WAITING {
                assert_eq!(program.call(SystemCall::SendTo, [socket, place, asked.len(), 0]), Ok(asked.len()));
            }
            assert_eq!(program.write_to(socket, &asked), Err(Errno::ENOBUFS));
            assert_eq!(program.call(SystemCall::SendTo, [socket, room, LONGEST + 1, 0]), Err(Errno::EMSGSIZE));
            assert_eq!(program.call(SystemCall::Listen, [socket, 1]), Err(Errno::EOPNOTSUPP));
            assert_eq!(program.call(SystemCall::Shutdown, [socket, 1]), Err(Errno::EOPNOTSUPP));
            program.close(socket).unwrap();
        });
    }

    #[test]
    fn sockets_of_other_kinds_and_protocols_are_refused() {
        run(|program| {
            let mut socket = |kind: u32, protocol: usize| {
                program.call(SystemCall::Socket, [types::AF_NETLINK as usize, kind as usize, protocol])
            };
            assert_eq!(socket(types::SOCK_STREAM, 0), Err(Errno::ESOCKTNOSUPPORT));
            assert_eq!(socket(types::SOCK_DGRAM, 15), Err(Errno::EPROTONOSUPPORT));
        });
    }
}
