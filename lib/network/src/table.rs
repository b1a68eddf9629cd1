//! Lookup of a connection by a packet's addresses and ports, in constant time; and the ports in use.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Error;
use crate::secrets::{Secret, halves};
use crate::sharded::Sharded;
use crate::slab::Slab;
use crate::tcp::zeroed;

/// The two ends of a conversation, packed. An absent remote end (a socket without a peer) is the unspecified address
/// with port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Four(KeyOfFour),
    Six(KeyOfSix),
}

/// The two ends of a conversation over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyOfFour {
    addresses: u64,
    ports: u32,
}

/// The two ends of a conversation over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyOfSix {
    local: [u64; 2],
    remote: [u64; 2],
    ports: u32,
}

impl KeyOfFour {
    /// Returns the local address and the remote one.
    #[inline(always)]
    pub(crate) fn addresses(self) -> (u32, u32) {
        ((self.addresses >> 32) as u32, self.addresses as u32)
    }
}

/// Returns an address as two words.
fn words(address: Ipv6Addr) -> [u64; 2] {
    let bits = address.to_bits();
    [(bits >> 64) as u64, bits as u64]
}

fn address(words: [u64; 2]) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1])).into()
}

impl Key {
    /// Returns the key of two ends of one family. (Those of two families have nothing to say to each other: their key
    /// is that of no packet.)
    #[inline]
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        let ports = u32::from(local.port()) << 16 | u32::from(remote.port());
        match (local.ip(), remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => Key::of_four(local.to_bits(), remote.to_bits(), ports),
            (local, remote) => Key::of_six(mapped(local), mapped(remote), ports),
        }
    }

    /// Returns the key of two ends over IPv4; `ports` has the local one in its upper half.
    #[inline]
    pub(crate) fn of_four(local: u32, remote: u32, ports: u32) -> Self {
        Key::Four(KeyOfFour { addresses: u64::from(local) << 32 | u64::from(remote), ports })
    }

    /// Returns the key of two ends over IPv6; `ports` has the local one in its upper half.
    pub(crate) fn of_six(local: Ipv6Addr, remote: Ipv6Addr, ports: u32) -> Self {
        Key::Six(KeyOfSix { local: words(local), remote: words(remote), ports })
    }

    /// Returns the key for all packets that arrive at `local`, from any sender.
    pub(crate) fn only_local(local: SocketAddr) -> Self {
        Key::new(local, SocketAddr::new(unspecified(local.ip()), 0))
    }

    /// Returns the local port.
    #[inline]
    pub(crate) fn local_port(self) -> u16 {
        match self {
            Key::Four(key) => (key.ports >> 16) as u16,
            Key::Six(key) => (key.ports >> 16) as u16,
        }
    }

    /// Returns the remote port.
    #[inline]
    pub(crate) fn remote_port(self) -> u16 {
        match self {
            Key::Four(key) => key.ports as u16,
            Key::Six(key) => key.ports as u16,
        }
    }

    /// Returns the local end.
    pub(crate) fn local(self) -> SocketAddr {
        let address = match self {
            Key::Four(key) => Ipv4Addr::from_bits((key.addresses >> 32) as u32).into(),
            Key::Six(key) => address(key.local),
        };
        SocketAddr::new(address, self.local_port())
    }

    /// Returns the remote end.
    pub(crate) fn remote(self) -> SocketAddr {
        match self {
            Key::Four(key) => SocketAddr::new(Ipv4Addr::from_bits(key.addresses as u32).into(), key.ports as u16),
            Key::Six(key) => SocketAddr::new(address(key.remote), key.ports as u16),
        }
    }

    /// Returns the key from the other end's point of view.
    pub(crate) fn mirrored(self) -> Key {
        match self {
            Key::Four(KeyOfFour { addresses, ports }) => {
                Key::Four(KeyOfFour { addresses: addresses.rotate_left(32), ports: ports.rotate_left(16) })
            }
            Key::Six(KeyOfSix { local, remote, ports }) => {
                Key::Six(KeyOfSix { local: remote, remote: local, ports: ports.rotate_left(16) })
            }
        }
    }

    /// Returns the key of a socket with this local end that has no peer.
    #[inline]
    pub(crate) fn without_remote(self) -> Key {
        match self {
            Key::Four(KeyOfFour { addresses, ports }) => {
                Key::Four(KeyOfFour { addresses: addresses & !u64::from(u32::MAX), ports: ports & 0xffff_0000 })
            }
            Key::Six(KeyOfSix { local, ports, .. }) => {
                Key::Six(KeyOfSix { local, remote: [0; 2], ports: ports & 0xffff_0000 })
            }
        }
    }

    /// Returns the key of a socket with this peer that is bound to all addresses.
    #[inline]
    pub(crate) fn anywhere(self) -> Key {
        match self {
            Key::Four(KeyOfFour { addresses, ports }) => {
                Key::Four(KeyOfFour { addresses: addresses & u64::from(u32::MAX), ports })
            }
            Key::Six(key) => Key::Six(KeyOfSix { local: [0; 2], ..key }),
        }
    }

    /// Returns the bytes of a table entry that one over IPv4 does not take.
    pub(crate) fn memory_beyond_four(self) -> usize {
        match self {
            Key::Four(_) => 0,
            Key::Six(_) => 2 * (size_of::<(KeyOfSix, u32)>() - size_of::<(KeyOfFour, u32)>()),
        }
    }
}

/// Bytes of memory for an entry of a table that has just grown, of a conversation over IPv4.
pub(crate) const ENTRY: usize = 2 * (size_of::<(KeyOfFour, u32)>() + 1);

/// Returns the unspecified address of the family of `other`.
pub(crate) fn unspecified(other: IpAddr) -> IpAddr {
    match other {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// A hash function with a secret: a stranger that chooses ports and addresses must not be able to choose collisions.
/// Its results are never visible outside. Multiplications of 64 by 64 to 128 bits, folded: one over IPv4, three over
/// IPv6.
#[derive(Clone, Copy)]
pub(crate) struct Hash {
    addresses: u64,
    ports: u64,
}

fn folded(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

impl Hash {
    pub(crate) fn new(seed: [u8; 16]) -> Self {
        // A high bit is set so that ports cannot make a factor zero.
        let [addresses, ports] = halves(seed).map(|half| half | 1 << 63);
        Hash { addresses, ports }
    }

    fn of_number(self, number: u16) -> u64 {
        KeyOfFour { addresses: 0, ports: u32::from(number) }.hash(self)
    }
}

/// A key of a table.
trait Hashed: Copy + PartialEq {
    fn hash(&self, hash: Hash) -> u64;
}

impl Hashed for KeyOfFour {
    fn hash(&self, hash: Hash) -> u64 {
        folded(self.addresses ^ hash.addresses, u64::from(self.ports) ^ hash.ports)
    }
}

impl Hashed for KeyOfSix {
    fn hash(&self, hash: Hash) -> u64 {
        let remote = folded(self.remote[0] ^ hash.addresses, self.remote[1] ^ hash.ports);
        let both = folded(self.local[0] ^ hash.addresses, self.local[1] ^ hash.ports ^ remote);
        folded(both ^ hash.addresses, u64::from(self.ports) ^ hash.ports)
    }
}

/// The entries of one family.
// The key is stored beside the index, so that a miss costs no look at a connection.
struct Entries<K>(Sharded<(K, u32)>);

impl<K: Hashed> Entries<K> {
    fn find(&self, hash: Hash, key: K) -> Option<u32> {
        self.0.find(key.hash(hash), |entry| entry.0 == key).map(|entry| entry.1)
    }

    fn reserve(&mut self, hash: Hash, key: K) -> Result<(), Error> {
        self.0.reserve(key.hash(hash), |entry| entry.0.hash(hash))
    }

    fn insert(&mut self, hash: Hash, key: K, index: u32) -> Result<(), Error> {
        if self.find(hash, key).is_some() {
            return Err(Error::AddressInUse);
        }
        self.reserve(hash, key)?;
        self.0.insert(key.hash(hash), (key, index), |entry| entry.0.hash(hash));
        Ok(())
    }

    fn get_mut(&mut self, hash: Hash, key: K) -> Option<&mut u32> {
        self.0.find_mut(key.hash(hash), |entry| entry.0 == key).map(|entry| &mut entry.1)
    }

    fn remove(&mut self, hash: Hash, key: K) {
        self.0.remove(key.hash(hash), |entry| entry.0 == key);
    }
}

/// Connections (or listeners, or datagram sockets) by their ends.
pub(crate) struct Table {
    hash: Hash,
    four: Entries<KeyOfFour>,
    six: Entries<KeyOfSix>,
}

impl Table {
    pub(crate) fn new(hash: Hash) -> Self {
        Table { hash, four: Entries(Sharded::new()), six: Entries(Sharded::new()) }
    }

    #[inline]
    pub(crate) fn find(&self, key: Key) -> Option<u32> {
        match key {
            Key::Four(key) => self.four.find(self.hash, key),
            Key::Six(key) => self.six.find(self.hash, key),
        }
    }

    /// Reserves room for an entry with this key.
    pub(crate) fn reserve(&mut self, key: Key) -> Result<(), Error> {
        match key {
            Key::Four(key) => self.four.reserve(self.hash, key),
            Key::Six(key) => self.six.reserve(self.hash, key),
        }
    }

    /// # Errors
    /// [`Error::AddressInUse`] if the key is taken, [`Error::OutOfMemory`].
    pub(crate) fn insert(&mut self, key: Key, index: u32) -> Result<(), Error> {
        match key {
            Key::Four(key) => self.four.insert(self.hash, key, index),
            Key::Six(key) => self.six.insert(self.hash, key, index),
        }
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut u32> {
        match key {
            Key::Four(key) => self.four.get_mut(self.hash, key),
            Key::Six(key) => self.six.get_mut(self.hash, key),
        }
    }

    pub(crate) fn remove(&mut self, key: Key) {
        match key {
            Key::Four(key) => self.four.remove(self.hash, key),
            Key::Six(key) => self.six.remove(self.hash, key),
        }
    }
}

/// Listeners or datagram sockets by their ends. Several may have one end, over which strangers are spread.
pub(crate) struct SharedTable {
    /// An index of a socket, or of a group with [`GROUP`] added.
    table: Table,
    /// The sockets of each end that has more than one.
    groups: Slab<Vec<u32>>,
}

/// Beyond all indexes of listeners and of datagram sockets.
const GROUP: u32 = 1 << 31;

impl SharedTable {
    pub(crate) fn new(hash: Hash) -> Self {
        SharedTable { table: Table::new(hash), groups: Slab::new(GROUP as usize) }
    }

    /// Finds a socket at this end. Among several the whole key of the packet chooses, always the same one while they
    /// stay.
    #[inline]
    pub(crate) fn find(&self, end: Key, packet: Key) -> Option<u32> {
        let found = self.table.find(end)?;
        if found < GROUP { Some(found) } else { self.choose(found - GROUP, packet) }
    }

    #[cold]
    #[inline(never)]
    fn choose(&self, group: u32, packet: Key) -> Option<u32> {
        let group = self.groups.get(group)?;
        let Hash { addresses, ports } = self.table.hash;
        let hash = match packet {
            Key::Four(key) => key.hash(self.table.hash),
            Key::Six(key) => key.hash(self.table.hash),
        };
        // Once more: ports in a row give hashes in a row of equal steps.
        let hash = folded(hash ^ ports, addresses.rotate_left(32) | 1);
        // The upper half chooses, as a fraction of all.
        group.get((((hash >> 32) * group.len() as u64) >> 32) as usize).copied()
    }

    /// Finds what receives a datagram: bound to its address or to all, and then connected to its sender.
    pub(crate) fn find_receiver(&self, key: Key) -> Option<u32> {
        let here = key.without_remote();
        self.find(here, key)
            .or_else(|| self.find(here.anywhere(), key))
            .or_else(|| self.find(key, key))
            .or_else(|| self.find(key.anywhere(), key))
    }

    /// # Errors
    /// [`Error::AddressInUse`] if the end is taken and not to be shared, [`Error::OutOfMemory`].
    fn insert(&mut self, end: Key, index: u32, is_shared: bool) -> Result<(), Error> {
        let found = match self.table.find(end) {
            None => return self.table.insert(end, index),
            Some(_) if !is_shared => return Err(Error::AddressInUse),
            Some(found) => found,
        };
        if found >= GROUP {
            let group = self.groups.get_mut(found - GROUP).ok_or(Error::Stale)?;
            group.try_reserve(1)?;
            group.push(index);
            return Ok(());
        }
        let mut group = Vec::new();
        group.try_reserve(2)?;
        group.extend([found, index]);
        let group = self.groups.insert(group)?;
        if let Some(entry) = self.table.get_mut(end) {
            *entry = GROUP + group;
        }
        Ok(())
    }

    fn remove(&mut self, end: Key, index: u32) {
        let Some(found) = self.table.find(end) else { return };
        if found < GROUP {
            if found == index {
                self.table.remove(end);
            }
            return;
        }
        let Some(group) = self.groups.get_mut(found - GROUP) else { return };
        group.retain(|member| *member != index);
        if let [last] = group[..] {
            self.groups.remove(found - GROUP);
            if let Some(entry) = self.table.get_mut(end) {
                *entry = last;
            }
        }
    }

    /// Enters a socket at all of its ends, or at none.
    pub(crate) fn insert_all(&mut self, ends: [Option<Key>; 2], index: u32, is_shared: bool) -> Result<(), Error> {
        let [first, second] = ends;
        if let Some(end) = first {
            self.insert(end, index, is_shared)?;
        }
        if let Some(end) = second {
            self.insert(end, index, is_shared)
                .inspect_err(|_| first.into_iter().for_each(|end| self.remove(end, index)))?;
        }
        Ok(())
    }

    pub(crate) fn remove_all(&mut self, ends: [Option<Key>; 2], index: u32) {
        ends.into_iter().flatten().for_each(|end| self.remove(end, index));
    }
}

/// The local end of a socket without a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEnd {
    /// Address and port. The unspecified address stands for all of its family, port 0 for a free one.
    pub address: SocketAddr,
    /// Whether `::` stands for all addresses of IPv4 too.
    pub is_for_both: bool,
    /// The user whose other sockets may have the end too, if they have the same number here (`SO_REUSEPORT`): strangers
    /// are spread over all of them.
    pub spread: Option<u32>,
}

impl LocalEnd {
    /// Returns the end at this port on all addresses of both families.
    pub fn of_both(port: u16) -> LocalEnd {
        LocalEnd { address: SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), is_for_both: true, spread: None }
    }

    fn with_port(self, port: u16) -> LocalEnd {
        LocalEnd { address: SocketAddr::new(self.address.ip(), port), ..self }
    }

    /// Returns the addresses that it takes.
    fn addresses(self) -> impl Iterator<Item = IpAddr> {
        let second = self.is_for_both.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        core::iter::once(self.address.ip()).chain(second)
    }

    /// Returns the keys of a socket without a peer.
    pub(crate) fn keys(self) -> [Option<Key>; 2] {
        let second = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), self.address.port());
        [Some(Key::only_local(self.address)), self.is_for_both.then(|| Key::only_local(second))]
    }

    /// Returns the key of a socket with this peer.
    pub(crate) fn key_with(self, remote: SocketAddr) -> Key {
        let local = self.address.ip();
        let address = if local.is_unspecified() { unspecified(remote.ip()) } else { local };
        Key::new(SocketAddr::new(address, self.address.port()), remote)
    }
}

impl<T: Into<SocketAddr>> From<T> for LocalEnd {
    fn from(address: T) -> LocalEnd {
        LocalEnd { address: address.into(), is_for_both: false, spread: None }
    }
}

/// Whether a port may be taken while connections of an earlier owner still end on it.
#[doc(alias = "SO_REUSEADDR")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The port must not be in use.
    Exclusive,
    /// Connections that still use the port do not matter (`SO_REUSEADDR`); another listener does.
    Reuse,
}

struct Port {
    number: u16,
    /// Local addresses bound to the port, with those to whom they are spread; the unspecified one stands for all.
    bound: Vec<(IpAddr, Option<u32>)>,
    /// Number of connections that use the port without being its owner.
    connections: u32,
}

/// The ports of one protocol.
///
/// An ephemeral port is chosen by RFC 6056, algorithm 4, with the random increments of algorithm 5: a keyed hash of the
/// other end and of the local address gives the start, a counter that few other ends share gives the distance. A
/// stranger therefore cannot guess the port of a connection to another host, and a port is reused as late as possible.
/// If the other end is not known yet, each port is drawn afresh (algorithm 2).
pub(crate) struct Ports {
    hash: Hash,
    ports: Sharded<Port>,
    /// A bit for each port that is in `ports`.
    used: Vec<u64>,
    secret: Secret,
    counters: Vec<u16>,
    draws: u64,
}

/// Linux's range, which operators of firewalls expect.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 32768..=60999;
const EPHEMERAL_COUNT: usize = (*EPHEMERAL.end() - *EPHEMERAL.start()) as usize + 1;
const ALL: usize = u16::MAX as usize + 1;
/// Counters of ephemeral ports.
const COUNTERS: usize = 512;
/// Largest step from one port to the next of the same counter, a power of two.
const STEP: u64 = 8;
/// Number of ports tried in turn.
const TRIES: usize = 256;

/// Use of an ephemeral port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A binding without a peer.
    Binding,
    /// A connection from this address to this other end.
    Connection { local: IpAddr, remote: SocketAddr },
}

impl Ports {
    pub(crate) fn new(hash: Hash, secret: Secret) -> Result<Self, Error> {
        Ok(Ports {
            hash,
            ports: Sharded::new(),
            used: zeroed(0, ALL / 64)?,
            secret,
            counters: zeroed(0, COUNTERS)?,
            draws: 0,
        })
    }

    fn mark(&mut self, number: u16, is_used: bool) {
        if let Some(word) = self.used.get_mut(usize::from(number) / 64) {
            let bit = 1 << (number % 64);
            *word = if is_used { *word | bit } else { *word & !bit };
        }
    }

    /// Whether the port has an owner or connections, on any address.
    pub(crate) fn is_used(&self, number: u16) -> bool {
        self.used.get(usize::from(number) / 64).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    /// Returns the first unused ephemeral port from `position` on, around the end.
    fn unused(&self, position: usize) -> Option<u16> {
        let first = usize::from(*EPHEMERAL.start()) / 64;
        let words = EPHEMERAL_COUNT.div_ceil(64);
        let start = position / 64;
        // The word with `position` is visited twice: its rest first, its beginning last.
        (0..=words).find_map(|step| {
            let at = (start + step) % words;
            let beyond = if at == words - 1 { !0 << (EPHEMERAL_COUNT % 64) } else { 0 };
            let before = if step == 0 { (1 << (position % 64)) - 1 } else { 0 };
            let free = !self.used.get(first + at)? & !beyond & !before;
            let found = at * 64 + free.trailing_zeros() as usize;
            (free != 0).then(|| EPHEMERAL.start() + found as u16)
        })
    }

    fn hash_of(hash: Hash, number: u16) -> u64 {
        hash.of_number(number)
    }

    fn find(&self, number: u16) -> Option<&Port> {
        self.ports.find(Self::hash_of(self.hash, number), |port| port.number == number)
    }

    fn find_mut(&mut self, number: u16) -> Option<&mut Port> {
        self.ports.find_mut(Self::hash_of(self.hash, number), |port| port.number == number)
    }

    fn get_or_make(&mut self, number: u16) -> Result<&mut Port, Error> {
        let hash = self.hash;
        if self.find(number).is_none() {
            let hash_of = |port: &Port| Self::hash_of(hash, port.number);
            let port = Port { number, bound: Vec::new(), connections: 0 };
            self.ports.reserve(hash_of(&port), hash_of)?;
            self.ports.insert(hash_of(&port), port, hash_of);
            self.mark(number, true);
        }
        self.find_mut(number).ok_or(Error::OutOfMemory)
    }

    fn change(&mut self, number: u16, change: impl FnOnce(&mut Port)) {
        let Some(port) = self.find_mut(number) else { return };
        change(port);
        if port.bound.is_empty() && port.connections == 0 {
            self.ports.remove(Self::hash_of(self.hash, number), |port| port.number == number);
            self.mark(number, false);
        }
    }

    /// Takes `local` for one owner; port 0 takes a free ephemeral port. Returns the end with the port taken.
    pub(crate) fn bind(&mut self, local: LocalEnd, sharing: Sharing) -> Result<LocalEnd, Error> {
        let mut local = local;
        if local.address.port() == 0 {
            local = local.with_port(self.ephemeral(Purpose::Binding, |ports, port| !ports.is_used(port))?);
        }
        let number = local.address.port();
        if let Some(port) = self.find(number) {
            let overlap = |one: IpAddr, other: IpAddr| {
                one == other || one.is_ipv4() == other.is_ipv4() && (one.is_unspecified() || other.is_unspecified())
            };
            let is_apart = |spread: Option<u32>| spread.is_none() || spread != local.spread;
            let excludes = |one, (other, spread)| overlap(one, other) && is_apart(spread);
            let is_taken = local.addresses().any(|one| port.bound.iter().any(|&other| excludes(one, other)));
            if is_taken || (port.connections > 0 && sharing == Sharing::Exclusive) {
                return Err(Error::AddressInUse);
            }
        }
        let port = self.get_or_make(number)?;
        let reserved = port.bound.try_reserve(if local.is_for_both { 2 } else { 1 });
        if reserved.is_ok() {
            port.bound.extend(local.addresses().map(|address| (address, local.spread)));
        }
        self.change(number, |_| ());
        reserved?;
        Ok(local)
    }

    pub(crate) fn release(&mut self, local: LocalEnd) {
        self.change(local.address.port(), |port| {
            for address in local.addresses() {
                if let Some(position) = port.bound.iter().position(|bound| *bound == (address, local.spread)) {
                    port.bound.swap_remove(position);
                }
            }
        });
    }

    /// Counts one more connection on the port.
    pub(crate) fn join(&mut self, number: u16) -> Result<(), Error> {
        self.get_or_make(number)?.connections += 1;
        Ok(())
    }

    pub(crate) fn leave(&mut self, number: u16) {
        self.change(number, |port| {
            port.connections = port.connections.saturating_sub(1);
        });
    }

    /// Whether the port has an owner, on any address.
    pub(crate) fn is_bound(&self, number: u16) -> bool {
        self.find(number).is_some_and(|port| !port.bound.is_empty())
    }

    /// Chooses an ephemeral port that `suits`; an unused port must suit.
    ///
    /// If many are in use, this may fail although there is a free one; the next try then looks elsewhere.
    pub(crate) fn ephemeral(&mut self, purpose: Purpose, suits: impl Fn(&Self, u16) -> bool) -> Result<u16, Error> {
        let draw = self.secret.of_number(self.draws);
        self.draws += 1;
        let (start, counter) = match purpose {
            Purpose::Binding => ((draw >> 32) as usize, None),
            Purpose::Connection { local, remote } => {
                let hash = self.secret.of(Key::new(SocketAddr::new(local, 0), remote), [1, 1]);
                let counter = hash as usize % COUNTERS;
                let count = self.counters.get(counter).copied().unwrap_or(0);
                ((hash >> 32) as usize + usize::from(count), Some(counter))
            }
        };
        let chosen = (0..TRIES)
            .map(|step| (step, EPHEMERAL.start() + ((start + step) % EPHEMERAL_COUNT) as u16))
            .find(|&(_, port)| suits(self, port))
            .or_else(|| Some((TRIES, self.unused((start + TRIES) % EPHEMERAL_COUNT)?)));
        if let Some(counter) = counter.and_then(|index| self.counters.get_mut(index)) {
            let steps = chosen.map_or(TRIES, |(steps, _)| steps) as u64 + 1 + draw % STEP;
            *counter = ((u64::from(*counter) + steps) % EPHEMERAL_COUNT as u64) as u16;
        }
        chosen.map(|(_, port)| port).ok_or(Error::AddressUnavailable)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn end(text: &str) -> LocalEnd {
        at(text).into()
    }

    fn ports(seed: u8) -> Ports {
        Ports::new(Hash::new([1; 16]), Secret::new([seed; 16])).unwrap()
    }

    #[test]
    fn the_table_finds_inserted_entries() {
        let mut table = Table::new(Hash::new([7; 16]));
        let server = at("10.0.2.15:80");
        for port in 1..2000 {
            let key = Key::new(server, SocketAddr::new([10, 0, 2, 2].into(), port));
            assert_eq!((key.local(), key.remote().port()), (server, port));
            table.insert(key, u32::from(port)).unwrap();
            assert_eq!(table.insert(key, 0), Err(Error::AddressInUse));
        }
        for port in 1..2000 {
            let key = Key::new(server, SocketAddr::new([10, 0, 2, 2].into(), port));
            assert_eq!(table.find(key), Some(u32::from(port)));
            table.remove(key);
            assert_eq!(table.find(key), None);
        }
    }

    /// Also the connections of one other host, whose ports come in a row.
    #[test]
    fn few_visitors_are_spread_over_few_sockets() {
        let end = Key::only_local(at("10.0.2.15:80"));
        for (sockets, visitors, least) in [(8, 64, 1), (4, 200, 15), (2, 40, 3)] {
            let bad = (0..1000u128).filter(|seed| {
                let seed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_d6e8_feb8_6659_fd93).to_le_bytes();
                let mut table = SharedTable::new(Hash::new(seed));
                (0..sockets).for_each(|index| table.insert(end, index, true).unwrap());
                let mut counts = vec![0; sockets as usize];
                for port in 0..visitors {
                    let key = Key::new(at("10.0.2.15:80"), SocketAddr::new([10, 0, 2, 2].into(), 40_000 + port));
                    counts[table.find(end, key).unwrap() as usize] += 1;
                }
                counts.iter().any(|count| *count < least)
            });
            // By chance a socket of 8 has none of 64 in 0.16 % of all cases.
            assert!(bad.count() < 12, "{sockets} {visitors}");
        }
    }

    #[test]
    fn ports_have_one_owner_for_each_address() {
        let mut ports = ports(1);
        assert_eq!(ports.bind(end("127.0.0.1:80"), Sharing::Reuse), Ok(end("127.0.0.1:80")));
        assert_eq!(ports.bind(end("127.0.0.1:80"), Sharing::Reuse), Err(Error::AddressInUse));
        assert_eq!(ports.bind(end("0.0.0.0:80"), Sharing::Reuse), Err(Error::AddressInUse));
        assert!(ports.bind(end("10.0.2.15:80"), Sharing::Exclusive).is_ok());
        ports.release(end("10.0.2.15:80"));
        ports.release(end("127.0.0.1:80"));
        assert!(ports.bind(end("0.0.0.0:80"), Sharing::Exclusive).is_ok());
    }

    /// Families have their own addresses, unless a socket is for both.
    #[test]
    fn ports_of_the_two_families_are_apart() {
        let (both, four, six) = (LocalEnd::of_both(80), end("0.0.0.0:80"), end("[::]:80"));
        let mut ports = ports(1);
        for (first, second, is_free) in [
            (four, six, true),
            (six, four, true),
            (both, four, false),
            (both, six, false),
            (four, both, false),
            (six, both, false),
            (end("127.0.0.1:80"), both, false),
            (end("[::1]:80"), both, false),
            (end("[::1]:80"), six, false),
            (end("[::1]:80"), four, true),
            (end("[::1]:80"), end("127.0.0.1:80"), true),
        ] {
            assert_eq!(ports.bind(first, Sharing::Exclusive), Ok(first));
            let expected = if is_free { Ok(second) } else { Err(Error::AddressInUse) };
            assert_eq!(ports.bind(second, Sharing::Reuse), expected, "{first:?} {second:?}");
            ports.release(first);
            if is_free {
                ports.release(second);
            }
            assert!(ports.find(80).is_none(), "{first:?} {second:?}");
        }
    }

    /// The packed form has every bit, and each way of looking at it is that of its ends.
    #[test]
    fn keys_have_both_ends() {
        for (local, remote, anywhere) in [
            ("10.0.2.15:80", "192.168.255.1:65535", "0.0.0.0:80"),
            ("[fe80::1:2:3]:443", "[2001:db8:ffff::8000:9]:1", "[::]:443"),
        ] {
            let (local, remote, anywhere) = (at(local), at(remote), at(anywhere));
            let key = Key::new(local, remote);
            assert_eq!((key.local(), key.remote(), key.local_port()), (local, remote, local.port()));
            assert_eq!(key.mirrored(), Key::new(remote, local));
            assert_eq!(key.without_remote(), Key::only_local(local));
            assert_eq!(key.anywhere(), Key::new(anywhere, remote));
            assert_eq!(key.without_remote().anywhere(), Key::only_local(anywhere));
        }
        let mixed = Key::new(at("10.0.2.15:80"), at("[::1]:9"));
        assert_eq!(mixed.local(), at("[::ffff:10.0.2.15]:80"));
    }

    #[test]
    fn old_connections_matter_unless_shared() {
        let mut ports = ports(1);
        ports.join(80).unwrap();
        assert_eq!(ports.bind(end("0.0.0.0:80"), Sharing::Exclusive), Err(Error::AddressInUse));
        assert!(ports.bind(end("0.0.0.0:80"), Sharing::Reuse).is_ok());
        ports.release(end("0.0.0.0:80"));
        ports.leave(80);
        assert!(ports.bind(end("0.0.0.0:80"), Sharing::Exclusive).is_ok());
    }

    #[test]
    fn ephemeral_ports_run_out_with_an_error() {
        let mut ports = ports(2);
        for _ in EPHEMERAL {
            let local = ports.bind(end("0.0.0.0:0"), Sharing::Exclusive).unwrap();
            assert!(EPHEMERAL.contains(&local.address.port()));
        }
        assert_eq!(ports.bind(end("0.0.0.0:0"), Sharing::Exclusive), Err(Error::AddressUnavailable));
        // The only free port is found, at any position.
        for given_back in [*EPHEMERAL.start(), 45_678, *EPHEMERAL.end() - 1, *EPHEMERAL.end()] {
            let local = LocalEnd::from(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), given_back));
            ports.release(local);
            assert_eq!(ports.bind(end("0.0.0.0:0"), Sharing::Exclusive), Ok(local));
            assert_eq!(ports.bind(end("0.0.0.0:0"), Sharing::Exclusive), Err(Error::AddressUnavailable));
        }
    }

    /// The ports behind a used one are tried in turn, and then the next unused one of all is taken.
    #[test]
    fn ports_are_tried_in_their_order() {
        let mut ports = ports(5);
        for _ in 0..100 {
            let tried = std::cell::RefCell::new(Vec::new());
            let refuse = |_: &Ports, port| {
                tried.borrow_mut().push(port);
                false
            };
            let chosen = ports.ephemeral(Purpose::Binding, refuse).unwrap();
            let mut tried = tried.into_inner();
            tried.push(chosen);
            assert_eq!(tried.len(), TRIES + 1);
            let next = |port: u16| if port == *EPHEMERAL.end() { *EPHEMERAL.start() } else { port + 1 };
            assert!(tried.windows(2).all(|pair| pair[1] == next(pair[0])), "{tried:?}");
        }
    }

    #[test]
    fn without_memory_a_table_stays_as_it_is() {
        let mut table = Table::new(Hash::new([7; 16]));
        let key = Key::only_local(at("10.0.2.15:80"));
        let refused = property::with_memory(0, || (table.reserve(key), table.insert(key, 1)));
        assert_eq!(refused, (Err(Error::OutOfMemory), Err(Error::OutOfMemory)));
        assert_eq!(table.find(key), None);
        assert_eq!((table.insert(key, 1), table.find(key)), (Ok(()), Some(1)));
    }

    #[test]
    fn ports_of_one_end_say_nothing_about_those_of_another() {
        let mut ports = ports(3);
        let mut next = |last| {
            let purpose = Purpose::Connection {
                local: [10, 0, 2, 15].into(),
                remote: SocketAddr::new([10, 0, 2, last].into(), 80),
            };
            ports.ephemeral(purpose, |_, _| true).unwrap()
        };
        let distance = |from: u16, to: u16| (usize::from(to) + EPHEMERAL_COUNT - usize::from(from)) % EPHEMERAL_COUNT;
        // Ports to one end advance in small steps, so that none is used again soon.
        let own: Vec<u16> = (0..1000).map(|_| next(1)).collect();
        assert!(own.windows(2).all(|pair| (1..=STEP as usize).contains(&distance(pair[0], pair[1]))));
        assert!((2..=STEP as usize).all(|step| own.windows(2).any(|pair| distance(pair[0], pair[1]) == step)));
        // Ports to other ends lie anywhere.
        let close = (2..=201).filter(|&last| distance(own[999], next(last)) < 1000).count();
        assert!((1..=20).contains(&close), "{close} of 200 where 7 are expected");
    }

    #[test]
    fn bound_ports_are_drawn_afresh() {
        let mut ports = ports(4);
        let drawn: Vec<u16> =
            (0..1000).map(|_| ports.bind(end("0.0.0.0:0"), Sharing::Exclusive).unwrap().address.port()).collect();
        let close = drawn.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 100).count();
        assert!(close < 30, "{close} of 999 where 7 are expected");
    }

    /// A stranger that chooses one bit of a port or an address does not know which bits of the hash that changes: each
    /// bit changes half of them, and another half for each secret.
    #[test]
    fn every_bit_of_a_key_changes_half_of_the_hash() {
        each_bit_changes_half(96, |words| KeyOfFour { addresses: words[0], ports: words[1] as u32 });
        each_bit_changes_half(288, |words| KeyOfSix {
            local: [words[0], words[1]],
            remote: [words[2], words[3]],
            ports: words[4] as u32,
        });
    }

    fn each_bit_changes_half<K: Hashed>(bits: usize, key_of: impl Fn([u64; 5]) -> K) {
        const SAMPLES: u64 = 256;
        let random = Secret::new([5; 16]);
        let (mut set, mut numbers) = (0, 0..);
        let mut next = || random.of_number(numbers.next().unwrap());
        for bit in 0..bits {
            let mut changed = 0;
            for _ in 0..SAMPLES {
                let hash = Hash::new((u128::from(next()) << 64 | u128::from(next())).to_le_bytes());
                let words = core::array::from_fn(|_| next());
                let mut other = words;
                other[bit / 64] ^= 1 << (bit % 64);
                let (one, other) = (key_of(words).hash(hash), key_of(other).hash(hash));
                changed += (one ^ other).count_ones();
                set += one.count_ones();
            }
            let expected = SAMPLES as u32 * 32;
            assert!(changed.abs_diff(expected) < expected / 8, "bit {bit} changes {changed} instead of {expected}");
        }
        let expected = bits as u32 * SAMPLES as u32 * 32;
        assert!(set.abs_diff(expected) < expected / 50, "{set} bits are set instead of {expected}");
    }

    /// A factor of zero would give all keys one hash.
    #[test]
    fn no_secret_makes_a_factor_zero() {
        for half in [0u64, 1, 1 << 62, 1 << 63, 3 << 62] {
            let hash = Hash::new((u128::from(half) << 64 | u128::from(half)).to_le_bytes());
            let of_ports = (0..=u16::MAX).map(|port| Ports::hash_of(hash, port)).collect::<BTreeSet<_>>();
            assert_eq!(of_ports.len(), 1 << 16, "{half:#x}");
            let addresses = (0..1000).map(|number| KeyOfFour { addresses: number, ports: 0 }.hash(hash));
            assert_eq!(addresses.collect::<BTreeSet<_>>().len(), 1000, "{half:#x}");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Bind(usize, Sharing),
        Release(usize),
        Join(usize),
        Leave(usize),
    }

    /// Positions about the borders of words, and about both ends.
    fn position() -> impl Strategy<Value = usize> {
        prop_oneof![0..4usize, 60..70usize, 124..130usize, EPHEMERAL_COUNT - 11..EPHEMERAL_COUNT]
    }

    fn step() -> impl Strategy<Value = Step> {
        let sharing = prop_oneof![Just(Sharing::Exclusive), Just(Sharing::Reuse)];
        prop_oneof![
            (position(), sharing).prop_map(|(position, sharing)| Step::Bind(position, sharing)),
            position().prop_map(Step::Release),
            position().prop_map(Step::Join),
            position().prop_map(Step::Leave),
        ]
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Owners and connections come and go, and a port is unused exactly while it has neither.
        #[test]
        fn a_port_is_used_until_its_last_user_has_gone(
            full in (position(), 0..140usize),
            steps in prop::collection::vec(step(), 1..60),
            looks in prop::collection::vec(position(), 1..6),
        ) {
            let mut ports = ports(6);
            let number = |position: usize| EPHEMERAL.start() + (position % EPHEMERAL_COUNT) as u16;
            // For each used port, whether it has an owner, and the number of its connections.
            let mut used = BTreeMap::<u16, (bool, u32)>::new();
            for position in full.0..full.0 + full.1 {
                ports.join(number(position)).unwrap();
                used.insert(number(position), (false, 1));
            }
            for step in steps {
                match step {
                    Step::Bind(position, sharing) => {
                        let local = LocalEnd::from(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), number(position)));
                        let (is_bound, connections) = used.get(&number(position)).copied().unwrap_or_default();
                        let is_free = !is_bound && (connections == 0 || sharing == Sharing::Reuse);
                        let expected = if is_free { Ok(local) } else { Err(Error::AddressInUse) };
                        prop_assert_eq!(ports.bind(local, sharing), expected);
                        if is_free {
                            used.insert(number(position), (true, connections));
                        }
                    }
                    Step::Release(position) => {
                        ports.release(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), number(position)).into());
                        used.entry(number(position)).and_modify(|port| port.0 = false);
                    }
                    Step::Join(position) => {
                        ports.join(number(position)).unwrap();
                        used.entry(number(position)).or_default().1 += 1;
                    }
                    Step::Leave(position) => {
                        ports.leave(number(position));
                        used.entry(number(position)).and_modify(|port| port.1 = port.1.saturating_sub(1));
                    }
                }
                used.retain(|_, port| *port != (false, 0));
                for &look in &looks {
                    let expected = (look..).map(number).find(|port| !used.contains_key(port));
                    prop_assert_eq!(ports.unused(look), expected, "after {:?} from {}", step, look);
                    let is_bound = used.get(&number(look)).is_some_and(|port| port.0);
                    prop_assert_eq!(ports.is_bound(number(look)), is_bound);
                }
            }
        }
    }
}
