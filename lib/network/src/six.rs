//! The host's place in IPv6 networks: its addresses, its routers, and what these advertise (RFC 4861, 4862, 8106).
//!
//! The host gives itself a link-local address, made of its hardware address, and one address for each prefix that a
//! router advertises for that. An address is used when a moment has passed in which no other host has claimed it
//! (duplicate address detection). Nothing here waits or sends: [`SixNetwork::due`] returns the next message that is to
//! be sent, [`SixNetwork::hear`] takes one that has come.
//!
//! **Trust.** Any host of the same network can send advertisements, and IPv6 has no protection against that. A liar's
//! power is bounded: numbers of addresses, prefixes, routers and name servers are limited, and the first ones stay as
//! long as they are advertised again; an address that is in use keeps at least two hours (RFC 4862, section 5.5.3); a
//! size of packets below IPv6's least does not count.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use smoltcp::time::{Duration, Instant};

use crate::configuration::{NAME_SERVERS, SixAddress};
use crate::discovery::{
    ALL_NODES, AdvertisedPrefix, Discovery, OwnMessage, RouterAdvertisement, hardware_of_group, is_of_a_host,
    leading_bits, solicited_group,
};
use crate::groups::{GROUPS, Report};
use crate::host::FAR_AWAY;
use crate::neighbours::{NeighbourTable, Question, Told};
use crate::secrets::Secret;
use crate::table::Key;

/// Number of addresses, the link-local one among them.
const ADDRESSES: usize = 5;
const PREFIXES: usize = 8;
const ROUTERS: usize = 4;
/// Shortest prefix whose hosts are neighbours: a liar's short one would have it receive what is for other networks.
const SHORTEST_ON_LINK: u8 = 48;
/// Time after which something that was not advertised again gives its place to something else. Routers advertise at
/// least every 30 minutes (RFC 4861, section 6.2.1).
const ADVERTISED_AGAIN: Duration = Duration::from_secs(60 * 60);
/// Number of destinations whose path carries small packets only; the oldest are forgotten first.
const NARROW_PATHS: usize = 32;
/// Time for which the path to a destination counts as narrow (RFC 8201, section 4).
const NARROW_TIME: Duration = Duration::from_secs(600);

/// Packets of this size reach every destination.
pub(crate) const LEAST_MTU: usize = 1280;

/// Time for which a claim of another host to an address is awaited.
const PROBE_TIME: Duration = Duration::from_secs(1);
/// Number of addresses tried until one is no other host's.
const CANDIDATES: u8 = 3;
/// Number of requests for advertisements at the start, and the pause between two.
const SOLICITATIONS: u8 = 3;
/// Reports of groups, and the pause between two (RFC 3810, sections 9.1 and 9.11).
const REPORTS: u8 = 2;
const REPORT_PAUSE: Duration = Duration::from_secs(1);
// A report has room for the groups of all addresses.
const _: () = assert!(ADDRESSES <= GROUPS);
const SOLICITATION_PAUSE: Duration = Duration::from_secs(4);
/// Seconds that an address keeps, whatever is advertised.
const KEPT: u32 = 2 * 60 * 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressState {
    /// It is asked at this time whether another host has the address.
    Tentative {
        at: Instant,
    },
    /// No host has claimed it up to now.
    Asked {
        until: Instant,
    },
    Usable,
    /// Another host has it.
    Duplicate,
}

#[derive(Clone, Copy, Debug)]
struct HostAddress {
    address: Ipv6Addr,
    state: AddressState,
    /// Number of addresses that other hosts have.
    conflicts: u8,
    preferred_until: Instant,
    valid_until: Instant,
    /// Time of the last advertisement of its prefix.
    heard: Instant,
}

impl HostAddress {
    fn is_usable(&self) -> bool {
        self.state == AddressState::Usable
    }

    fn is_preferred(&self, clock: Instant) -> bool {
        self.preferred_until > clock
    }

    fn next(&self, clock: Instant) -> Instant {
        let next = match self.state {
            AddressState::Tentative { at: next } | AddressState::Asked { until: next } => next,
            AddressState::Usable | AddressState::Duplicate => FAR_AWAY,
        };
        let end = if self.is_preferred(clock) { self.preferred_until.min(self.valid_until) } else { self.valid_until };
        next.min(end)
    }
}

#[derive(Clone, Copy, Debug)]
struct LinkPrefix {
    prefix: Ipv6Addr,
    length: u8,
    until: Instant,
    heard: Instant,
}

#[derive(Clone, Copy, Debug)]
struct NameServer {
    address: Ipv6Addr,
    until: Instant,
    heard: Instant,
}

#[derive(Clone, Copy, Debug)]
struct DefaultRouter {
    address: Ipv6Addr,
    preference: i8,
    until: Instant,
    heard: Instant,
}

/// Consequences of a message that has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reaction {
    pub(crate) answer: Option<OwnMessage>,
    /// Whether a hardware address has become known for which packets wait.
    pub(crate) is_resolved: bool,
    /// Whether packets may have another size than before.
    pub(crate) is_resized: bool,
}

pub(crate) struct SixNetwork {
    hardware: [u8; 6],
    secret: Secret,
    draws: u64,
    /// Whether routers' advertisements count.
    hears_routers: bool,
    addresses: Vec<HostAddress>,
    prefixes: Vec<LinkPrefix>,
    /// The preferred ones first.
    routers: Vec<DefaultRouter>,
    name_servers: Vec<NameServer>,
    narrow: Vec<(Ipv6Addr, Instant)>,
    link_mtu: usize,
    mtu: usize,
    pub(crate) neighbours: NeighbourTable,
    solicitations: u8,
    solicit_at: Instant,
    /// Reports of groups that are due, and when.
    reports: u8,
    report_at: Instant,
    /// The next report answers a router.
    is_asked: bool,
    /// Time at which there is something to do, but for neighbours.
    next: Instant,
    /// Time at which the state was looked at last.
    clock: Instant,
}

fn seconds(lifetime: u32, now: Instant) -> Instant {
    // All ones stand for ever.
    if lifetime == u32::MAX { FAR_AWAY } else { now + Duration::from_secs(lifetime.into()) }
}

/// Returns whether an address begins with a prefix of this length.
fn is_within(address: Ipv6Addr, prefix: Ipv6Addr, length: u8) -> bool {
    (address.to_bits() ^ prefix.to_bits()) & leading_bits(length) == 0
}

/// Makes room in a list for one more, perhaps by removing what was not advertised again for longest.
fn make_room<T>(list: &mut Vec<T>, most: usize, heard: impl Fn(&T) -> Instant, now: Instant) -> bool {
    if list.len() < most {
        return list.try_reserve(1).is_ok();
    }
    let oldest = (0..list.len()).min_by_key(|&index| heard(&list[index]));
    let forgotten = oldest.filter(|&index| heard(&list[index]) + ADVERTISED_AGAIN <= now);
    forgotten.map(|index| list.remove(index)).is_some()
}

/// Whether packets to this group may leave a host.
fn is_group_of_a_network(address: Ipv6Addr) -> bool {
    address.is_multicast() && address.octets()[1] & 0xf > 1
}

impl SixNetwork {
    /// Makes the state of a host without addresses, which sends nothing.
    pub(crate) fn new(hardware: [u8; 6], mtu: usize, secret: Secret) -> SixNetwork {
        SixNetwork {
            hardware,
            secret,
            draws: 0,
            hears_routers: false,
            addresses: Vec::new(),
            prefixes: Vec::new(),
            routers: Vec::new(),
            name_servers: Vec::new(),
            narrow: Vec::new(),
            link_mtu: mtu,
            mtu,
            neighbours: NeighbourTable::default(),
            solicitations: 0,
            solicit_at: FAR_AWAY,
            reports: 0,
            report_at: FAR_AWAY,
            is_asked: false,
            next: FAR_AWAY,
            clock: Instant::ZERO,
        }
    }

    /// Begins with the link-local address. A link whose packets are smaller than IPv6's least has none.
    pub(crate) fn start(&mut self, hears_routers: bool, now: Instant) {
        if self.link_mtu >= LEAST_MTU {
            self.hears_routers = hears_routers;
            let prefix = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
            self.add_address(prefix, FAR_AWAY, FAR_AWAY, now);
        }
    }

    /// Whether the host takes part in IPv6 on the wire.
    pub(crate) fn is_on(&self) -> bool {
        !self.addresses.is_empty()
    }

    fn draw(&mut self) -> u64 {
        self.draws += 1;
        self.secret.of_number(self.draws)
    }

    /// Returns the address of a prefix of 64 bits: of the hardware address (RFC 4291, appendix A), or, if other hosts
    /// have that one, of a keyed hash (RFC 7217).
    fn candidate(&self, prefix: Ipv6Addr, conflicts: u8) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.hardware;
        let identifier = match conflicts {
            0 => u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]),
            _ => {
                let end = SocketAddr::new(prefix.into(), 0);
                self.secret.of(Key::new(end, end), [conflicts.into(), 0x1d])
            }
        };
        Ipv6Addr::from_bits(prefix.to_bits() >> 64 << 64 | u128::from(identifier))
    }

    fn add_address(&mut self, prefix: Ipv6Addr, preferred_until: Instant, valid_until: Instant, now: Instant) {
        if self.addresses.len() >= ADDRESSES {
            // The place is free when the connections of the old one have ended.
            let of_prefixes = self.addresses.iter_mut().filter(|own| !own.address.is_unicast_link_local());
            if let Some(oldest) =
                of_prefixes.min_by_key(|own| own.heard).filter(|own| own.heard + ADVERTISED_AGAIN <= now)
            {
                oldest.valid_until = now;
            }
            return;
        }
        if self.addresses.try_reserve(1).is_err() {
            return;
        }
        // Hosts that start together, or hear the same advertisement, do not all ask at once (RFC 4862, section 5.4.2).
        let at = now + Duration::from_millis(self.draw() % 1000);
        let (address, state) = (self.candidate(prefix, 0), AddressState::Tentative { at });
        self.addresses.push(HostAddress { address, state, conflicts: 0, preferred_until, valid_until, heard: now });
        self.report_groups(at);
        self.next = self.next.min(at);
    }

    /// Returns the time at which there is something to do.
    pub(crate) fn next(&self) -> Instant {
        self.next.min(self.neighbours.next())
    }

    /// Reports the groups at this time and once more: a report may be lost. Reports that are due earlier stay.
    fn report_groups(&mut self, at: Instant) {
        (self.reports, self.is_asked) = (REPORTS, false);
        self.report_at = self.report_at.min(at);
        self.next = self.next.min(at);
    }

    /// Reports the groups within this time, since a router asks for them.
    pub(crate) fn is_asked_for_groups(&mut self, within: Duration, now: Instant) {
        if self.reports == 0 && self.is_on() {
            let delay = self.draw() % (within.total_millis() + 1);
            (self.reports, self.is_asked) = (1, true);
            self.report_at = now + Duration::from_millis(delay);
            self.set_next();
        }
    }

    /// Returns the report of groups that is due.
    fn due_report(&mut self, now: Instant) -> OwnMessage {
        let is_answer = self.is_asked;
        self.reports = self.reports.saturating_sub(1);
        self.report_at = if self.reports > 0 { now + REPORT_PAUSE } else { FAR_AWAY };
        self.is_asked = false;
        self.set_next();
        let mut groups = [None; GROUPS];
        for (place, own) in groups.iter_mut().zip(&self.addresses) {
            *place = Some(solicited_group(own.address));
        }
        OwnMessage::Join(Report { from: self.link_local().unwrap_or(Ipv6Addr::UNSPECIFIED), groups, is_answer })
    }

    fn set_next(&mut self) {
        let addresses = self.addresses.iter().map(|own| own.next(self.clock));
        let paths = self.narrow.iter().map(|&(_, until)| until);
        let prefixes = self.prefixes.iter().map(|prefix| prefix.until);
        let routers = self.routers.iter().map(|router| router.until);
        let servers = self.name_servers.iter().map(|server| server.until);
        let others = addresses.chain(paths).chain(prefixes).chain(routers).chain(servers);
        self.next = others.chain([self.solicit_at, self.report_at]).min().unwrap_or(FAR_AWAY);
    }

    /// Forgets what is over. Returns whether the host has lost an address.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        if self.next > now {
            return false;
        }
        self.clock = now;
        let before = self.addresses.len();
        self.narrow.retain(|&(_, until)| until > now);
        self.addresses.retain(|own| own.valid_until > now);
        self.prefixes.retain(|prefix| prefix.until > now);
        self.keep_routers(|router| router.until > now, now);
        self.name_servers.retain(|server| server.until > now);
        let mut is_new = false;
        for own in &mut self.addresses {
            if matches!(own.state, AddressState::Asked { until } if until <= now) {
                own.state = AddressState::Usable;
                is_new = true;
                // Routers are asked as soon as there is an address to ask from.
                if self.hears_routers && own.address.is_unicast_link_local() {
                    (self.solicitations, self.solicit_at) = (0, now);
                }
            }
        }
        // Again with an address: not every switch takes a report without one (RFC 3590).
        if is_new {
            self.report_groups(now);
        }
        self.set_next();
        self.addresses.len() < before
    }

    /// Keeps some of the routers. When the last one goes, perhaps by a liar's message, routers are asked again.
    fn keep_routers(&mut self, is_kept: impl FnMut(&DefaultRouter) -> bool, now: Instant) {
        let before = self.routers.len();
        self.routers.retain(is_kept);
        if before > 0 && self.routers.is_empty() {
            let at = now + Duration::from_millis(self.draw() % 1000);
            (self.solicitations, self.solicit_at) = (0, at);
        }
    }

    /// Returns the next message that is due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<OwnMessage> {
        if self.next <= now {
            // Before the question whether another host has an address, whose answer comes to its group.
            if self.report_at <= now {
                return Some(self.due_report(now));
            }
            for own in &mut self.addresses {
                if matches!(own.state, AddressState::Tentative { at } if at <= now) {
                    own.state = AddressState::Asked { until: now + PROBE_TIME };
                    let target = own.address;
                    self.set_next();
                    return Some(OwnMessage::Probe { target });
                }
            }
            if self.solicit_at <= now {
                let from = self.link_local();
                self.solicitations += 1;
                let is_last = self.solicitations >= SOLICITATIONS || from.is_none();
                self.solicit_at = if is_last { FAR_AWAY } else { now + SOLICITATION_PAUSE };
                self.set_next();
                if let Some(from) = from {
                    return Some(OwnMessage::AskRouters { from });
                }
            }
        }
        while let Some(Question { target, at }) = self.neighbours.due(now) {
            // Nothing waits for a neighbour if the host has no address to ask from.
            if let Some(from) = self.source_for(target) {
                return Some(OwnMessage::Ask { from, target, at });
            }
        }
        None
    }

    /// Puts a message off which was due, because the device is full.
    pub(crate) fn put_off(&mut self, message: &OwnMessage, until: Instant) {
        match *message {
            OwnMessage::Ask { target, at, .. } => self.neighbours.ask_again(&Question { target, at }, until),
            OwnMessage::Probe { target } => {
                if let Some(own) = self.addresses.iter_mut().find(|own| own.address == target) {
                    own.state = AddressState::Tentative { at: until };
                }
                self.set_next();
            }
            OwnMessage::AskRouters { .. } => {
                (self.solicitations, self.solicit_at) = (self.solicitations.saturating_sub(1), until);
                self.set_next();
            }
            OwnMessage::Join(report) => {
                (self.reports, self.is_asked) = (self.reports.saturating_add(1), report.is_answer);
                self.report_at = until;
                self.set_next();
            }
            OwnMessage::Tell { .. } => {}
        }
    }

    fn link_local(&self) -> Option<Ipv6Addr> {
        let mut usable = self.addresses.iter().filter(|own| own.is_usable());
        usable.find(|own| own.address.is_unicast_link_local()).map(|own| own.address)
    }

    /// Whether the host has this address, and may use it.
    pub(crate) fn is_own(&self, address: Ipv6Addr) -> bool {
        self.addresses.iter().any(|own| own.address == address && own.is_usable())
    }

    /// Whether the host is in this group: that of all hosts, or that of one of its addresses, also of one to be.
    pub(crate) fn is_member(&self, group: Ipv6Addr) -> bool {
        group == ALL_NODES || self.addresses.iter().any(|own| solicited_group(own.address) == group)
    }

    /// Returns the host's address for packets to this destination (RFC 6724): of the same scope, rather one that is
    /// preferred, rather one that has more bits in common.
    pub(crate) fn source_for(&self, remote: Ipv6Addr) -> Option<Ipv6Addr> {
        let is_near = |address: Ipv6Addr| {
            address.is_unicast_link_local() || address.is_multicast() && address.octets()[1] & 0xf <= 2
        };
        let usable = self.addresses.iter().filter(|own| own.is_usable() && is_near(own.address) == is_near(remote));
        let best = usable.max_by_key(|own| {
            let alike = (own.address.to_bits() ^ remote.to_bits()).leading_zeros();
            (own.is_preferred(self.clock), alike)
        });
        best.map(|own| own.address)
    }

    /// Returns the neighbour to which packets for this destination go.
    fn next_hop(&self, remote: Ipv6Addr) -> Option<Ipv6Addr> {
        let is_on_link = remote.is_unicast_link_local()
            || self.prefixes.iter().any(|prefix| is_within(remote, prefix.prefix, prefix.length));
        if is_on_link {
            return Some(remote);
        }
        // One that answers before one that does not.
        let known = self.routers.iter().find(|router| self.neighbours.is_known(router.address));
        known.or(self.routers.first()).map(|router| router.address)
    }

    /// Returns the address for packets to a destination, if there is a way to it.
    pub(crate) fn route(&self, remote: Ipv6Addr) -> Option<Ipv6Addr> {
        let is_reachable = is_group_of_a_network(remote) || is_of_a_host(remote) && self.next_hop(remote).is_some();
        if is_reachable { self.source_for(remote) } else { None }
    }

    /// Returns the hardware address for packets to a destination. If it is not known, it is asked for from now on.
    pub(crate) fn hardware_of(&mut self, remote: IpAddr, now: Instant) -> Option<[u8; 6]> {
        let IpAddr::V6(remote) = remote else { return None };
        if remote.is_multicast() {
            return Some(hardware_of_group(remote));
        }
        let hop = self.next_hop(remote)?;
        self.neighbours.resolve(hop, now)
    }

    /// Whether packets to this destination must not be larger than IPv6's least.
    pub(crate) fn is_narrow(&self, remote: Ipv6Addr) -> bool {
        self.narrow.iter().any(|&(destination, _)| destination == remote)
    }

    /// Takes into account that a packet to this destination was too large.
    pub(crate) fn narrow(&mut self, remote: Ipv6Addr, now: Instant) {
        let entry = (remote, now + NARROW_TIME);
        if let Some(old) = self.narrow.iter_mut().find(|(destination, _)| *destination == remote) {
            *old = entry;
        } else if self.narrow.len() < NARROW_PATHS && self.narrow.try_reserve(1).is_ok() {
            self.narrow.push(entry);
        } else if let Some(oldest) = self.narrow.iter_mut().min_by_key(|(_, until)| *until) {
            *oldest = entry;
        }
        self.set_next();
    }

    /// Returns the size of the largest packet on the link.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns the size of the largest packet to a destination.
    pub(crate) fn mtu_to(&self, remote: Ipv6Addr) -> usize {
        if self.is_narrow(remote) { LEAST_MTU } else { self.mtu }
    }

    /// Handles a message of neighbour discovery from this address and this device.
    pub(crate) fn hear(
        &mut self,
        heard: &Discovery<'_>,
        source: Ipv6Addr,
        sender: [u8; 6],
        destination: Ipv6Addr,
        now: Instant,
    ) -> Reaction {
        let mut reaction = Reaction::default();
        self.clock = now;
        match *heard {
            Discovery::Solicitation { target, hardware } => {
                let Some(own) = self.addresses.iter().position(|own| own.address == target) else { return reaction };
                let is_for_us = destination == target || destination == solicited_group(target);
                match self.addresses[own].state {
                    AddressState::Tentative { .. } | AddressState::Asked { .. } if source.is_unspecified() => {
                        self.give_up(own, now);
                    }
                    AddressState::Usable if is_for_us && source.is_unspecified() => {
                        reaction.answer = Some(OwnMessage::Tell { target, to: None });
                    }
                    AddressState::Usable if is_for_us => {
                        if let Some(hardware) = hardware {
                            reaction.is_resolved = self.neighbours.hear(source, hardware, now);
                        }
                        reaction.answer =
                            Some(OwnMessage::Tell { target, to: Some((source, hardware.unwrap_or(sender))) });
                    }
                    _ => {}
                }
            }
            Discovery::Advertisement { target, hardware, is_router, is_solicited, overrides } => {
                if let Some(own) = self.addresses.iter().position(|own| own.address == target) {
                    // One that is in use stays: else any host could take it away.
                    if matches!(self.addresses[own].state, AddressState::Tentative { .. } | AddressState::Asked { .. })
                    {
                        self.give_up(own, now);
                    }
                    return reaction;
                }
                let told = Told { target, hardware, is_solicited, overrides };
                let Some(is_resolved) = self.neighbours.learn(&told, now) else { return reaction };
                reaction.is_resolved = is_resolved;
                if !is_router {
                    self.keep_routers(|router| router.address != target, now);
                    self.set_next();
                }
            }
            Discovery::Router(advertisement) => {
                let is_for_us = destination == ALL_NODES || self.is_own(destination);
                if self.hears_routers && is_for_us {
                    self.hear_router(&advertisement, source, now, &mut reaction);
                }
            }
        }
        reaction
    }

    /// Takes another address in the place of one that is another host's, from which nothing was sent yet.
    fn give_up(&mut self, index: usize, now: Instant) {
        let at = now + Duration::from_millis(self.draw() % 1000);
        let HostAddress { address, conflicts, .. } = self.addresses[index];
        let conflicts = conflicts + 1;
        let next = self.candidate(address, conflicts);
        let own = &mut self.addresses[index];
        own.conflicts = conflicts;
        if conflicts < CANDIDATES {
            (own.address, own.state) = (next, AddressState::Tentative { at });
            self.report_groups(at);
        } else {
            own.state = AddressState::Duplicate;
        }
        self.set_next();
    }

    fn hear_router(
        &mut self,
        advertisement: &RouterAdvertisement<'_>,
        router: Ipv6Addr,
        now: Instant,
        reaction: &mut Reaction,
    ) {
        if let Some(hardware) = advertisement.hardware {
            reaction.is_resolved = self.neighbours.hear(router, hardware, now);
        }
        let until = now + Duration::from_secs(advertisement.lifetime.into());
        let preference = advertisement.preference;
        let is_same = |known: &&mut DefaultRouter| known.address == router && known.preference == preference;
        if advertisement.lifetime == 0 {
            self.keep_routers(|known| known.address != router, now);
        } else if let Some(known) = self.routers.iter_mut().find(is_same) {
            // It keeps its place: packets do not change their way with every advertisement.
            (known.until, known.heard) = (until, now);
        } else {
            self.routers.retain(|known| known.address != router);
            self.add_router(DefaultRouter { address: router, preference, until, heard: now });
        }
        if advertisement.lifetime > 0 {
            // There was an answer.
            self.solicit_at = FAR_AWAY;
        }
        let wanted = advertisement.mtu.and_then(|mtu| usize::try_from(mtu).ok());
        if let Some(mtu) = wanted.filter(|mtu| (LEAST_MTU..=self.link_mtu).contains(mtu)) {
            reaction.is_resized = core::mem::replace(&mut self.mtu, mtu) != mtu;
        }
        for prefix in advertisement.prefixes() {
            if prefix.is_on_link && prefix.length >= SHORTEST_ON_LINK {
                self.hear_link_prefix(&prefix, now);
            }
            if prefix.is_for_addresses && prefix.length == 64 {
                self.hear_address_prefix(&prefix, now);
            }
        }
        for (server, lifetime) in advertisement.name_servers() {
            self.hear_name_server(server, seconds(lifetime.min(KEPT), now), now);
        }
        self.set_next();
    }

    fn add_router(&mut self, router: DefaultRouter) {
        if make_room(&mut self.routers, ROUTERS, |known| known.heard, router.heard) {
            let behind = self.routers.iter().position(|known| known.preference < router.preference);
            self.routers.insert(behind.unwrap_or(self.routers.len()), router);
        }
    }

    fn hear_link_prefix(&mut self, advertised: &AdvertisedPrefix, now: Instant) {
        let &AdvertisedPrefix { prefix, length, valid, .. } = advertised;
        let known = |known: &LinkPrefix| known.length == length && is_within(known.prefix, prefix, length);
        let until = seconds(valid, now);
        if let Some(index) = self.prefixes.iter().position(known) {
            match valid {
                0 => drop(self.prefixes.swap_remove(index)),
                _ => (self.prefixes[index].until, self.prefixes[index].heard) = (until, now),
            }
        } else if valid > 0 && make_room(&mut self.prefixes, PREFIXES, |known| known.heard, now) {
            self.prefixes.push(LinkPrefix { prefix, length, until, heard: now });
        }
    }

    fn hear_address_prefix(&mut self, advertised: &AdvertisedPrefix, now: Instant) {
        let &AdvertisedPrefix { prefix, valid, preferred, .. } = advertised;
        let (valid_until, preferred_until) = (seconds(valid, now), seconds(preferred, now));
        let Some(own) = self.addresses.iter_mut().find(|own| is_within(own.address, prefix, 64)) else {
            if valid > 0 {
                self.add_address(prefix, preferred_until, valid_until, now);
            }
            return;
        };
        (own.preferred_until, own.heard) = (preferred_until, now);
        let kept = seconds(KEPT, now);
        own.valid_until = if valid > KEPT || valid_until > own.valid_until {
            valid_until
        } else {
            // An address keeps what it has left, and two hours at most, whatever a router says (RFC 4862).
            own.valid_until.min(kept)
        };
    }

    fn hear_name_server(&mut self, address: Ipv6Addr, until: Instant, now: Instant) {
        if let Some(index) = self.name_servers.iter().position(|known| known.address == address) {
            if until <= now {
                self.name_servers.remove(index);
            } else {
                (self.name_servers[index].until, self.name_servers[index].heard) = (until, now);
            }
        } else if until > now && make_room(&mut self.name_servers, NAME_SERVERS, |known| known.heard, now) {
            self.name_servers.push(NameServer { address, until, heard: now });
        }
    }

    /// Returns the host's addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SixAddress> {
        self.addresses.iter().map(|own| SixAddress {
            address: own.address,
            prefix: 64,
            is_tentative: matches!(own.state, AddressState::Tentative { .. } | AddressState::Asked { .. }),
            is_duplicate: own.state == AddressState::Duplicate,
            is_deprecated: !own.is_preferred(self.clock),
            is_permanent: own.valid_until == FAR_AWAY,
        })
    }

    /// Returns the servers that resolve names.
    pub(crate) fn name_servers(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.name_servers.iter().map(|server| server.address)
    }

    /// Returns the networks whose hosts are neighbours, and their number of leading bits.
    pub(crate) fn link_prefixes(&self) -> impl Iterator<Item = (Ipv6Addr, u8)> {
        self.prefixes.iter().map(|prefix| (prefix.prefix, prefix.length))
    }

    /// Returns the routers, the preferred ones first.
    pub(crate) fn routers(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.routers.iter().map(|router| router.address)
    }
}
