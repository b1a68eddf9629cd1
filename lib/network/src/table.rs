//! From a packet's addresses and ports to its connection, in constant time; and which ports are taken.

use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::Error;

/// The two ends of a conversation, packed. A remote end that is absent (a socket which talks to everybody)
/// is the unspecified address with port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    addresses: u64,
    ports: u32,
}

impl Key {
    pub(crate) fn new(local: SocketAddrV4, remote: SocketAddrV4) -> Self {
        Key {
            addresses: u64::from(local.ip().to_bits()) << 32 | u64::from(remote.ip().to_bits()),
            ports: u32::from(local.port()) << 16 | u32::from(remote.port()),
        }
    }

    /// Everything that arrives at `local`, whoever sent it.
    pub(crate) fn only_local(local: SocketAddrV4) -> Self {
        Key::new(local, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))
    }

    pub(crate) fn local(self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::from_bits((self.addresses >> 32) as u32), (self.ports >> 16) as u16)
    }

    pub(crate) fn remote(self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::from_bits(self.addresses as u32), self.ports as u16)
    }
}

/// A hash function with a secret: whoever chooses ports and addresses must not be able to choose
/// collisions. One multiplication of 64 by 64 to 128 bits, folded.
#[derive(Clone, Copy)]
pub(crate) struct Hash {
    addresses: u64,
    ports: u64,
}

impl Hash {
    /// `seed` must not be guessable from outside.
    pub(crate) fn new(seed: u64) -> Self {
        // Two steps of the splitmix64 sequence. A high bit is set so that no ports can make a factor zero.
        let mix = |step: u64| {
            let mut state = seed.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (state ^ state >> 31) | 1 << 63
        };
        Hash { addresses: mix(1), ports: mix(2) }
    }

    fn of(self, key: Key) -> u64 {
        let product = u128::from(key.addresses ^ self.addresses) * u128::from(u64::from(key.ports) ^ self.ports);
        product as u64 ^ (product >> 64) as u64
    }
}

/// Connections (or listeners, or datagram sockets) by their ends.
pub(crate) struct Table {
    hash: Hash,
    // The key stands beside the index, so that a miss costs no look at a connection.
    entries: HashTable<(Key, u32)>,
}

impl Table {
    pub(crate) fn new(hash: Hash) -> Self {
        Table { hash, entries: HashTable::new() }
    }

    pub(crate) fn find(&self, key: Key) -> Option<u32> {
        self.entries.find(self.hash.of(key), |entry| entry.0 == key).map(|entry| entry.1)
    }

    /// Makes sure that one more entry fits.
    pub(crate) fn reserve(&mut self) -> Result<(), Error> {
        let hash = self.hash;
        self.entries.try_reserve(1, |entry| hash.of(entry.0)).map_err(Error::from)
    }

    /// # Errors
    /// [`Error::AddressInUse`] if the key is taken, [`Error::OutOfMemory`].
    pub(crate) fn insert(&mut self, key: Key, index: u32) -> Result<(), Error> {
        self.reserve()?;
        let hash = self.hash;
        match self.entries.entry(hash.of(key), |entry| entry.0 == key, |entry| hash.of(entry.0)) {
            Entry::Occupied(_) => Err(Error::AddressInUse),
            Entry::Vacant(vacant) => {
                vacant.insert((key, index));
                Ok(())
            }
        }
    }

    pub(crate) fn remove(&mut self, key: Key) {
        if let Ok(entry) = self.entries.find_entry(self.hash.of(key), |entry| entry.0 == key) {
            entry.remove();
        }
    }
}

/// Whether a port may be taken while connections of an earlier owner still end on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The port must be free of everything.
    Exclusive,
    /// Connections that still use the port do not matter (`SO_REUSEADDR`); another listener does.
    Reuse,
}

struct Port {
    number: u16,
    /// The local addresses bound to the port; the unspecified one stands for all.
    bound: Vec<Ipv4Addr>,
    /// Connections that use the port without being its owner.
    connections: u32,
}

/// The ports of one protocol.
pub(crate) struct Ports {
    hash: Hash,
    ports: HashTable<Port>,
    next: u16,
}

/// What Linux uses, and the operators of firewalls expect.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 32768..=60999;

impl Ports {
    pub(crate) fn new(hash: Hash, seed: u64) -> Self {
        let count = EPHEMERAL.end() - EPHEMERAL.start();
        Ports { hash, ports: HashTable::new(), next: EPHEMERAL.start() + (seed % u64::from(count)) as u16 }
    }

    fn hash_of(hash: Hash, number: u16) -> u64 {
        hash.of(Key { addresses: 0, ports: u32::from(number) })
    }

    fn find(&self, number: u16) -> Option<&Port> {
        self.ports.find(Self::hash_of(self.hash, number), |port| port.number == number)
    }

    fn get_or_make(&mut self, number: u16) -> Result<&mut Port, Error> {
        let hash = self.hash;
        self.ports.try_reserve(1, |port| Self::hash_of(hash, port.number))?;
        Ok(self
            .ports
            .entry(Self::hash_of(hash, number), |port| port.number == number, |port| Self::hash_of(hash, port.number))
            .or_insert_with(|| Port { number, bound: Vec::new(), connections: 0 })
            .into_mut())
    }

    fn change(&mut self, number: u16, change: impl FnOnce(&mut Port)) {
        let hash = self.hash;
        if let Ok(mut entry) = self.ports.find_entry(Self::hash_of(hash, number), |port| port.number == number) {
            change(entry.get_mut());
            if entry.get().bound.is_empty() && entry.get().connections == 0 {
                entry.remove();
            }
        }
    }

    /// Takes `local` for one owner; port 0 takes a free ephemeral port. Returns what was taken.
    pub(crate) fn bind(&mut self, local: SocketAddrV4, sharing: Sharing) -> Result<SocketAddrV4, Error> {
        let local = if local.port() == 0 {
            SocketAddrV4::new(*local.ip(), self.ephemeral(|ports, port| ports.find(port).is_none())?)
        } else {
            local
        };
        let address = *local.ip();
        if let Some(port) = self.find(local.port()) {
            let overlaps = |bound: &Ipv4Addr| *bound == address || bound.is_unspecified() || address.is_unspecified();
            if port.bound.iter().any(overlaps) || (port.connections > 0 && sharing == Sharing::Exclusive) {
                return Err(Error::AddressInUse);
            }
        }
        let port = self.get_or_make(local.port())?;
        let reserved = port.bound.try_reserve(1);
        if reserved.is_ok() {
            port.bound.push(address);
        }
        self.change(local.port(), |_| ());
        reserved?;
        Ok(local)
    }

    pub(crate) fn release(&mut self, local: SocketAddrV4) {
        self.change(local.port(), |port| {
            if let Some(position) = port.bound.iter().position(|bound| bound == local.ip()) {
                port.bound.swap_remove(position);
            }
        });
    }

    /// Notes that one more connection uses the port.
    pub(crate) fn join(&mut self, number: u16) -> Result<(), Error> {
        self.get_or_make(number)?.connections += 1;
        Ok(())
    }

    pub(crate) fn leave(&mut self, number: u16) {
        self.change(number, |port| {
            port.connections = port.connections.saturating_sub(1);
        });
    }

    /// Whether somebody owns the port, on any address.
    pub(crate) fn is_bound(&self, number: u16) -> bool {
        self.find(number).is_some_and(|port| !port.bound.is_empty())
    }

    /// The next ephemeral port that `suits`.
    pub(crate) fn ephemeral(&mut self, suits: impl Fn(&Self, u16) -> bool) -> Result<u16, Error> {
        for _ in EPHEMERAL {
            let port = self.next;
            self.next = if port >= *EPHEMERAL.end() { *EPHEMERAL.start() } else { port + 1 };
            if suits(self, port) {
                return Ok(port);
            }
        }
        Err(Error::AddressUnavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddrV4 {
        text.parse().unwrap()
    }

    #[test]
    fn the_table_finds_what_was_put_in() {
        let mut table = Table::new(Hash::new(7));
        let server = at("10.0.2.15:80");
        for port in 1..2000 {
            let key = Key::new(server, SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 2), port));
            assert_eq!((key.local(), key.remote().port()), (server, port));
            table.insert(key, u32::from(port)).unwrap();
            assert_eq!(table.insert(key, 0), Err(Error::AddressInUse));
        }
        for port in 1..2000 {
            let key = Key::new(server, SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 2), port));
            assert_eq!(table.find(key), Some(u32::from(port)));
            table.remove(key);
            assert_eq!(table.find(key), None);
        }
    }

    #[test]
    fn ports_have_one_owner_for_each_address() {
        let mut ports = Ports::new(Hash::new(1), 1);
        assert_eq!(ports.bind(at("127.0.0.1:80"), Sharing::Reuse), Ok(at("127.0.0.1:80")));
        assert_eq!(ports.bind(at("127.0.0.1:80"), Sharing::Reuse), Err(Error::AddressInUse));
        assert_eq!(ports.bind(at("0.0.0.0:80"), Sharing::Reuse), Err(Error::AddressInUse));
        assert!(ports.bind(at("10.0.2.15:80"), Sharing::Exclusive).is_ok());
        ports.release(at("10.0.2.15:80"));
        ports.release(at("127.0.0.1:80"));
        assert!(ports.bind(at("0.0.0.0:80"), Sharing::Exclusive).is_ok());
    }

    #[test]
    fn old_connections_matter_unless_shared() {
        let mut ports = Ports::new(Hash::new(1), 1);
        ports.join(80).unwrap();
        assert_eq!(ports.bind(at("0.0.0.0:80"), Sharing::Exclusive), Err(Error::AddressInUse));
        assert!(ports.bind(at("0.0.0.0:80"), Sharing::Reuse).is_ok());
        ports.release(at("0.0.0.0:80"));
        ports.leave(80);
        assert!(ports.bind(at("0.0.0.0:80"), Sharing::Exclusive).is_ok());
    }

    #[test]
    fn ephemeral_ports_run_out_with_an_error() {
        let mut ports = Ports::new(Hash::new(1), 12345);
        for _ in EPHEMERAL {
            let local = ports.bind(at("0.0.0.0:0"), Sharing::Exclusive).unwrap();
            assert!(EPHEMERAL.contains(&local.port()));
        }
        assert_eq!(ports.bind(at("0.0.0.0:0"), Sharing::Exclusive), Err(Error::AddressUnavailable));
    }
}
