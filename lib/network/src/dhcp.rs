//! The client of DHCP (RFC 2131): asks for the host's address, and keeps it as long as a server lends it.
//!
//! smoltcp has a client too. This one is the stack's own because that one believes any server's refusal, and lets a
//! server that lends an address for no time make it ask without a pause.
//!
//! **Trust.** DHCP has no protection against hosts of the same network: any of them can answer. An answer counts only
//! if it carries the number of the exchange, drawn at random, and this host's hardware address; after an offer was
//! chosen, only if it comes from the server that made it, until the lease is about to end and every server is asked. An
//! answer whose address no host can have, whose mask is none, or whose time is shorter than [`SHORTEST_LEASE`] is no
//! answer. Requests follow each other in growing times ([`Client::pause`]), whatever is answered. A server that makes
//! an offer and then says nothing gives others a chance: the next round's first offer of its own does not count.

use core::net::Ipv4Addr;

use ethernet::ETHERNET_HEADER;
use smoltcp::phy::{ChecksumCapabilities, TxToken};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{
    DHCP_CLIENT_PORT, DHCP_SERVER_PORT, DhcpMessageType, DhcpOpCode, DhcpPacket, DhcpRepr, EthernetAddress,
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};

use crate::configuration::{Address, Lease, NAME_SERVERS};
use crate::secrets::Secret;

/// Port at which answers arrive.
pub(crate) const CLIENT_PORT: u16 = DHCP_CLIENT_PORT;

/// Shortest time for which an address is taken. Shorter ones would be over before they are of use.
const SHORTEST_LEASE: u32 = 10;
/// Shortest time until a lease is renewed.
const SHORTEST_RENEWAL: u32 = SHORTEST_LEASE / 2;
/// Shortest pause before a lease is asked for once more (RFC 2131, section 4.4.5).
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// Shortest pause after an address was declined (RFC 2131, section 3.1).
const DECLINE_PAUSE: Duration = Duration::from_secs(10);
/// Number of requests for an offered address before another is looked for.
const REQUESTS: u32 = 4;
/// The longest pause is 4 seconds times 2 to this power.
const DOUBLINGS: u32 = 4;

/// Shortest message: BOOTP's, which some relays and servers insist on (RFC 1542, section 2.1).
const SHORTEST_MESSAGE: usize = 300;

const BROADCAST: [u8; 6] = [0xff; 6];

const OPTION_MASK: u8 = 1;
const OPTION_ROUTER: u8 = 3;
const OPTION_NAME_SERVER: u8 = 6;
const OPTION_MTU: u8 = 26;
const OPTION_LEASE_TIME: u8 = 51;
const OPTION_MESSAGE_TYPE: u8 = 53;
const OPTION_SERVER: u8 = 54;
const OPTION_RENEWAL_TIME: u8 = 58;
const OPTION_REBINDING_TIME: u8 = 59;

/// Least size of packets that a server can choose: what every host must take (RFC 791, section 3.1). A server that
/// could choose less could make a host send mostly headers.
const LEAST_MTU: u16 = 576;

/// Whether one host can have this address, on any network but the loopback's.
pub(crate) fn is_of_a_host(address: Ipv4Addr) -> bool {
    !(address.octets()[0] == 0 || address.is_loopback() || address.octets()[0] >= 224)
}

/// A server's message, as far as it can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerMessage {
    Offer(Terms),
    Acknowledgement(Terms),
    Refusal(Ipv4Addr),
}

/// Terms on which a server lends an address; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    server: Ipv4Addr,
    lease: Lease,
    time: u32,
    renewal: u32,
    rebinding: u32,
}

/// Reads a word of four bytes.
fn word(data: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(data.try_into().ok()?))
}

/// Options of a message that count. Of an option that comes twice the first does.
#[derive(Default)]
struct Options {
    kind: Option<DhcpMessageType>,
    server: Option<Ipv4Addr>,
    mask: Option<u32>,
    router: Option<Ipv4Addr>,
    time: Option<u32>,
    renewal: Option<u32>,
    rebinding: Option<u32>,
    mtu: Option<u16>,
    name_servers: [Option<Ipv4Addr>; NAME_SERVERS],
}

impl Options {
    fn read(packet: &DhcpPacket<&[u8]>) -> Options {
        let mut options = Options::default();
        for option in packet.options() {
            let data = option.data;
            let addresses = || data.chunks_exact(4).filter_map(word).map(Ipv4Addr::from_bits);
            let or_read = |old: Option<u32>| old.or_else(|| word(data));
            match option.kind {
                OPTION_MESSAGE_TYPE => {
                    options.kind = options.kind.or_else(|| data.first().map(|&kind| DhcpMessageType::from(kind)));
                }
                OPTION_SERVER => options.server = options.server.or_else(|| word(data).map(Ipv4Addr::from_bits)),
                OPTION_MASK => options.mask = or_read(options.mask),
                OPTION_ROUTER => options.router = options.router.or_else(|| addresses().next()),
                OPTION_LEASE_TIME => options.time = or_read(options.time),
                OPTION_MTU => {
                    let size = data.try_into().ok().map(u16::from_be_bytes);
                    options.mtu = options.mtu.or(size.filter(|size| *size >= LEAST_MTU));
                }
                OPTION_RENEWAL_TIME => options.renewal = or_read(options.renewal),
                OPTION_REBINDING_TIME => options.rebinding = or_read(options.rebinding),
                OPTION_NAME_SERVER if options.name_servers == [None; NAME_SERVERS] => {
                    let usable = addresses().filter(|&address| is_of_a_host(address));
                    for (place, address) in options.name_servers.iter_mut().zip(usable) {
                        *place = Some(address);
                    }
                }
                _ => {}
            }
        }
        options
    }
}

impl ServerMessage {
    /// Reads an answer to the exchange of this number, for this hardware address.
    fn read(message: &[u8], exchange: u32, hardware: [u8; 6]) -> Option<ServerMessage> {
        const COOKIE: u32 = 0x6382_5363;
        let packet = DhcpPacket::new_checked(message).ok()?;
        if packet.opcode() != DhcpOpCode::Reply
            || packet.hardware_len() != 6
            || packet.client_hardware_address().0 != hardware
            || packet.transaction_id() != exchange
            || packet.magic_number() != COOKIE
        {
            return None;
        }
        let Options { kind, server, mask, router, time, renewal, rebinding, mtu, name_servers } =
            Options::read(&packet);
        let server = server.filter(|&server| is_of_a_host(server))?;
        let kind = kind?;
        if kind == DhcpMessageType::Nak {
            return Some(ServerMessage::Refusal(server));
        }
        let prefix =
            mask.filter(|mask| *mask != 0 && mask.leading_ones() + mask.trailing_zeros() == 32)?.leading_ones() as u8;
        let time = time.filter(|&time| time >= SHORTEST_LEASE)?;
        let address = Address { address: packet.your_ip(), prefix, gateway: None };
        let gateway = router.filter(|&router| address.is_neighbour(router));
        if !address.is_possible() {
            return None;
        }
        let (renewal, rebinding) = match (renewal, rebinding) {
            (Some(renewal), Some(rebinding))
                if (SHORTEST_RENEWAL..rebinding).contains(&renewal) && rebinding < time =>
            {
                (renewal, rebinding)
            }
            // The half and seven eighths (RFC 2131, section 4.4.5).
            _ => (time / 2, time - time / 8 - 1),
        };
        let lease = Lease { address: Address { gateway, ..address }, name_servers, mtu };
        let terms = Terms { server, lease, time, renewal, rebinding };
        match kind {
            DhcpMessageType::Offer => Some(ServerMessage::Offer(terms)),
            DhcpMessageType::Ack => Some(ServerMessage::Acknowledgement(terms)),
            _ => None,
        }
    }
}

/// An address that a server lends, and the times of its renewal.
#[derive(Clone, Copy, Debug)]
struct Loan {
    lease: Lease,
    server: Ipv4Addr,
    /// Hardware address from which the server's last answer came: its own, or that of the router before it.
    hardware: [u8; 6],
    rebinding: Instant,
    end: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Any server is asked for an offer.
    Selecting,
    /// A server is asked for the address that it has offered.
    Requesting { server: Ipv4Addr, address: Ipv4Addr },
    /// The address is lent. From the client's `next` on the server is asked to lend it for longer, and from `rebinding`
    /// on every server.
    Bound(Loan),
}

/// The effect of an answer or of the passing of time on the host's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// From now on the host has this one.
    Lent(Lease),
    /// From now on it has none.
    Lost,
}

/// A message to servers.
struct LeaseRequest {
    kind: DhcpMessageType,
    hardware: [u8; 6],
    /// Address in use; unspecified if there is none.
    source: Ipv4Addr,
    destination: Ipv4Addr,
    server: Option<Ipv4Addr>,
    wanted: Option<Ipv4Addr>,
}

pub(crate) struct Client {
    hardware: [u8; 6],
    largest_packet: u16,
    secret: Secret,
    draws: u64,
    stage: Stage,
    /// Server that has made an offer and then said nothing: others have the advantage in the next round.
    silent: Option<Ipv4Addr>,
    /// Number of the exchange under way.
    exchange: u32,
    /// Requests since the last loan, and those of this stage.
    tries: u32,
    requests: u32,
    begun: Instant,
    /// Time of the next request.
    next: Instant,
}

impl Client {
    /// Makes a client that sends its first request at once.
    pub(crate) fn new(hardware: [u8; 6], largest_packet: usize, secret: Secret, now: Instant) -> Client {
        let largest_packet = largest_packet.clamp(576, 1500) as u16;
        let (stage, exchange) = (Stage::Selecting, secret.of_number(0) as u32);
        let (draws, tries, requests) = (1, 0, 0);
        let silent = None;
        Client {
            hardware,
            largest_packet,
            secret,
            draws,
            stage,
            silent,
            exchange,
            tries,
            requests,
            begun: now,
            next: now,
        }
    }

    /// Draws a number that no other host knows.
    pub(crate) fn draw(&mut self) -> u64 {
        self.draws += 1;
        self.secret.of_number(self.draws)
    }

    /// Returns the pause before the next try to get an address: 4 seconds, then twice as long each time up to 64, a
    /// random second more or less (RFC 2131, section 4.1).
    fn pause(&mut self) -> Duration {
        let jitter = Duration::from_millis(self.draw() % 2001);
        let pause = Duration::from_secs(4 << self.tries.min(DOUBLINGS)) + jitter - Duration::from_secs(1);
        self.tries = self.tries.saturating_add(1);
        pause
    }

    /// Looks for another address, at the given time.
    fn start_again(&mut self, at: Instant) {
        (self.stage, self.requests, self.begun, self.next) = (Stage::Selecting, 0, at, at);
        self.exchange = self.draw() as u32;
    }

    /// Returns the time at which there is something to do.
    pub(crate) fn next(&self) -> Instant {
        match self.stage {
            Stage::Bound(loan) => self.next.min(loan.end),
            _ => self.next,
        }
    }

    /// Puts the next request off, because the device is full.
    pub(crate) fn put_off(&mut self, until: Instant) {
        self.next = until;
    }

    /// Gives back an address whose time is over.
    pub(crate) fn lapse(&mut self, now: Instant) -> Option<Change> {
        match self.stage {
            Stage::Bound(loan) if loan.end <= now => {
                self.start_again(now);
                Some(Change::Lost)
            }
            _ => None,
        }
    }

    /// Tells the server that another host has the address that it has lent, and asks for another after a pause (RFC
    /// 2131, section 3.1).
    pub(crate) fn decline<T: TxToken>(
        &mut self,
        token: T,
        checksums: &ChecksumCapabilities,
        now: Instant,
    ) -> Option<Change> {
        let Stage::Bound(loan) = self.stage else { return None };
        self.exchange = self.draw() as u32;
        let outgoing = LeaseRequest {
            kind: DhcpMessageType::Decline,
            hardware: BROADCAST,
            source: Ipv4Addr::UNSPECIFIED,
            destination: Ipv4Addr::BROADCAST,
            server: Some(loan.server),
            wanted: Some(loan.lease.address.address),
        };
        self.send(&outgoing, token, checksums, now);
        let pause = self.pause();
        self.start_again(now + DECLINE_PAUSE.max(pause));
        Some(Change::Lost)
    }

    /// Sends the request that is due.
    pub(crate) fn ask<T: TxToken>(&mut self, token: T, checksums: &ChecksumCapabilities, now: Instant) {
        if let Stage::Requesting { server, .. } = self.stage
            && self.requests >= REQUESTS
        {
            self.start_again(now);
            self.silent = Some(server);
        }
        self.requests = self.requests.saturating_add(1);
        let none = Ipv4Addr::UNSPECIFIED;
        let (to, everyone) = (BROADCAST, Ipv4Addr::BROADCAST);
        let (kind, hardware, source, destination, server, wanted) = match self.stage {
            Stage::Selecting => (DhcpMessageType::Discover, to, none, everyone, None, None),
            Stage::Requesting { server, address } => {
                (DhcpMessageType::Request, to, none, everyone, Some(server), Some(address))
            }
            Stage::Bound(loan) => {
                let own = loan.lease.address.address;
                let is_rebinding = loan.rebinding <= now;
                // A refusal of an earlier request would be one of this request too.
                self.exchange = self.draw() as u32;
                let (to, destination) = if is_rebinding { (to, everyone) } else { (loan.hardware, loan.server) };
                let limit = if is_rebinding { loan.end } else { loan.rebinding };
                // Half of the time that is left, and a minute at least (RFC 2131, section 4.4.5).
                self.next = (now + RENEWAL_PAUSE.max((limit - now) / 2)).min(limit);
                (DhcpMessageType::Request, to, own, destination, None, None)
            }
        };
        if !matches!(self.stage, Stage::Bound(_)) {
            self.next = now + self.pause();
        }
        let outgoing = LeaseRequest { kind, hardware, source, destination, server, wanted };
        self.send(&outgoing, token, checksums, now);
    }

    /// Sends a message.
    fn send<T: TxToken>(&self, outgoing: &LeaseRequest, token: T, checksums: &ChecksumCapabilities, now: Instant) {
        let &LeaseRequest { kind, hardware, source, destination, server, wanted } = outgoing;
        let none = Ipv4Addr::UNSPECIFIED;
        // An answer is wanted.
        let asks = kind != DhcpMessageType::Decline;
        let options: &[u8] = &[OPTION_MASK, OPTION_ROUTER, OPTION_NAME_SERVER, OPTION_MTU];
        let message = DhcpRepr {
            message_type: kind,
            transaction_id: self.exchange,
            secs: (now - self.begun).secs().min(u16::MAX.into()) as u16,
            client_hardware_address: EthernetAddress(self.hardware),
            // The address in use.
            client_ip: source,
            your_ip: none,
            server_ip: none,
            router: None,
            subnet_mask: None,
            relay_agent_ip: none,
            broadcast: false,
            requested_ip: wanted,
            client_identifier: Some(EthernetAddress(self.hardware)),
            server_identifier: server,
            parameter_request_list: asks.then_some(options),
            dns_servers: None,
            max_size: asks.then_some(self.largest_packet),
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: &[],
        };
        let length = message.buffer_len().max(SHORTEST_MESSAGE);
        let ip = Ipv4Repr {
            src_addr: source,
            dst_addr: destination,
            next_header: IpProtocol::Udp,
            payload_len: smoltcp::wire::UDP_HEADER_LEN + length,
            hop_limit: 64,
        };
        token.consume(ETHERNET_HEADER + ip.buffer_len() + ip.payload_len, |bytes| {
            let (head, packet) = bytes.split_at_mut(ETHERNET_HEADER);
            let mut frame = EthernetFrame::new_unchecked(head);
            frame.set_dst_addr(EthernetAddress(hardware));
            frame.set_src_addr(EthernetAddress(self.hardware));
            frame.set_ethertype(EthernetProtocol::Ipv4);
            let (header, datagram) = packet.split_at_mut(ip.buffer_len());
            ip.emit(&mut Ipv4Packet::new_unchecked(header), checksums);
            let udp = UdpRepr { src_port: CLIENT_PORT, dst_port: DHCP_SERVER_PORT };
            let write = |bytes: &mut [u8]| {
                // Padding follows the end of the options.
                bytes.fill(0);
                // Fails for want of room only, and the room is that of this message.
                let _ = message.emit(&mut DhcpPacket::new_unchecked(bytes));
            };
            let (from, to) = (source.into(), destination.into());
            let mut datagram = UdpPacket::new_unchecked(datagram);
            udp.emit(&mut datagram, &from, &to, length, write, checksums);
        });
    }

    /// Handles a message that has come to the client's port from this port and hardware address.
    pub(crate) fn hear(&mut self, message: &[u8], port: u16, hardware: [u8; 6], now: Instant) -> Option<Change> {
        if port != DHCP_SERVER_PORT || self.requests == 0 || hardware[0] & 1 != 0 {
            return None;
        }
        match (ServerMessage::read(message, self.exchange, self.hardware)?, self.stage) {
            (ServerMessage::Offer(Terms { server, lease, .. }), Stage::Selecting) => {
                if self.silent == Some(server) && self.requests == 1 {
                    return None;
                }
                self.stage = Stage::Requesting { server, address: lease.address.address };
                (self.requests, self.next) = (0, now);
                None
            }
            (ServerMessage::Acknowledgement(terms), Stage::Requesting { server, address })
                if server == terms.server && address == terms.lease.address.address =>
            {
                Some(self.bind(terms, hardware, now))
            }
            (ServerMessage::Acknowledgement(terms), Stage::Bound(loan))
                if (terms.server == loan.server || loan.rebinding <= now)
                    && terms.lease.address.address == loan.lease.address.address =>
            {
                Some(self.bind(terms, hardware, now))
            }
            (ServerMessage::Refusal(by), Stage::Requesting { server, .. }) if server == by => {
                let at = now + self.pause();
                self.start_again(at);
                // One that offers and refuses lets others win as well.
                self.silent = Some(server);
                None
            }
            (ServerMessage::Refusal(by), Stage::Bound(loan)) if by == loan.server || loan.rebinding <= now => {
                let at = now + self.pause();
                self.start_again(at);
                Some(Change::Lost)
            }
            _ => None,
        }
    }

    fn bind(&mut self, terms: Terms, hardware: [u8; 6], now: Instant) -> Change {
        let after = |seconds: u32| now + Duration::from_secs(seconds.into());
        // The time began when the server answered, at most the time of an exchange ago: it is short beside the shortest
        // lease, and servers wait for longer before they lend the address to others.
        self.stage = Stage::Bound(Loan {
            lease: terms.lease,
            server: terms.server,
            hardware,
            rebinding: after(terms.rebinding),
            end: after(terms.time),
        });
        (self.tries, self.requests, self.silent) = (0, 0, None);
        (self.begun, self.next) = (now, after(terms.renewal));
        Change::Lent(terms.lease)
    }
}
