//! Secret numbers and their uses: initial sequence numbers, SYN cookies, ephemeral ports.
//!
//! **The problem.** With a predictable sequence number a stranger can forge a connection from another host's address,
//! or end one.
//!
//! **The choice.** A number is the clock plus a keyed hash of the connection's two ends (RFC 6528), so it reveals
//! nothing about the numbers of other ends, and grows from one connection of the same ends to the next. The hash is
//! SipHash-2-4. Each use has a key of its own: an attacker that finds one of them learns nothing about the others.

use core::net::IpAddr;

use siphasher::sip::SipHasher24;
use smoltcp::time::Instant;
use tcp::Stamps;

use crate::table::Key;

/// Source of the stack's secrets: independent random numbers, one for each use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seeds {
    /// Initial sequence numbers.
    pub sequence_numbers: [u8; 16],
    /// SYN cookies.
    pub cookies: [u8; 16],
    /// Ephemeral ports of TCP.
    pub tcp_ports: [u8; 16],
    /// Ephemeral ports of UDP.
    pub udp_ports: [u8; 16],
    /// Identifiers of echoes.
    pub identifiers: [u8; 16],
    /// Hash tables.
    pub tables: [u8; 16],
    /// smoltcp's own generators, one for each family.
    pub interfaces: [u8; 16],
    /// Numbers of DHCP's exchanges, and the pauses between its requests.
    pub leases: [u8; 16],
    /// Addresses of IPv6 in the place of those that other hosts have, and pauses before they are asked for.
    pub addresses: [u8; 16],
}

impl Seeds {
    /// Fills each seed with bytes of a generator that must be fit for secrets.
    pub fn draw(mut fill: impl FnMut(&mut [u8])) -> Self {
        let mut seeds = Seeds::default();
        fill(&mut seeds.sequence_numbers);
        fill(&mut seeds.cookies);
        fill(&mut seeds.tcp_ports);
        fill(&mut seeds.udp_ports);
        fill(&mut seeds.identifiers);
        fill(&mut seeds.tables);
        fill(&mut seeds.interfaces);
        fill(&mut seeds.leases);
        fill(&mut seeds.addresses);
        seeds
    }
}

/// Returns the two halves of a seed.
pub(crate) fn halves(seed: [u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(seed);
    [both as u64, (both >> 64) as u64]
}

/// A keyed hash.
#[derive(Clone, Copy)]
pub(crate) struct Secret(SipHasher24);

impl Secret {
    pub(crate) fn new(seed: [u8; 16]) -> Self {
        Secret(SipHasher24::new_with_key(&seed))
    }

    pub(crate) fn of_number(&self, number: u64) -> u64 {
        self.0.hash(&number.to_le_bytes())
    }

    /// Hashes two ends and two more words.
    pub(crate) fn of(&self, key: Key, more: [u32; 2]) -> u64 {
        let mut bytes = [0; 44];
        let mut length = 0;
        let mut add = |part: &[u8]| {
            bytes[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        };
        for end in [key.local(), key.remote()] {
            add(&end.port().to_le_bytes());
            match end.ip() {
                IpAddr::V4(address) => add(&address.to_bits().to_le_bytes()),
                IpAddr::V6(address) => add(&address.octets()),
            }
        }
        add(&more[0].to_le_bytes());
        add(&more[1].to_le_bytes());
        // Keys of the two families have other lengths, so none is the other's.
        self.0.hash(&bytes[..length])
    }
}

/// Returns the number with which a connection of these ends begins now: a clock of 4 microseconds and a keyed hash (RFC
/// 6528, section 3). Beside it are the timestamps of that connection, whose clock has an offset that is another part of
/// the hash: it tells nothing of other ends, either, and the timestamps of equal ends grow from one connection to the
/// next (RFC 7323, section 7.1).
pub(crate) fn beginning(secret: &Secret, key: Key, now: Instant) -> (u32, Stamps) {
    let clock = (now.total_micros() / 4) as u32;
    let hash = secret.of(key, [0, 0]);
    (clock.wrapping_add(hash as u32), Stamps::new((hash >> 32) as u32))
}

/// Period of a cookie's counter. A cookie is good until the counter has changed twice.
const COOKIE_PERIOD_SECONDS: i64 = 64;

/// Segment sizes that a cookie can encode, smallest first: the minimum of every host, those of IPv6's smallest packet,
/// and of Ethernet with IPv6 and IPv4.
const COOKIE_SEGMENTS: [u16; 4] = [536, 1220, 1440, 1460];

/// Returns a SYN cookie (RFC 4987, section 3.6): our first sequence number, which encodes all that must be known of the
/// request when it is acknowledged. Two bits choose the size of segments; all 32 are masked by the hash of the two
/// ends, the other side's number and the time. A guess is good with a probability of 2^-29.
pub(crate) fn cookie(secret: &Secret, key: Key, theirs: u32, segment: u16, now: Instant) -> u32 {
    let choice = COOKIE_SEGMENTS.iter().rposition(|&size| size <= segment).unwrap_or(0);
    mask(secret, key, theirs, period(now)) ^ choice as u32
}

/// Returns the segment size in a cookie, if this host made it a moment ago for a request with these ends and this
/// number.
pub(crate) fn opened_cookie(secret: &Secret, key: Key, theirs: u32, cookie: u32, now: Instant) -> Option<u16> {
    let now = period(now);
    [now, now.wrapping_sub(1)].into_iter().find_map(|period| {
        let choice = mask(secret, key, theirs, period) ^ cookie;
        COOKIE_SEGMENTS.get(choice as usize).copied()
    })
}

/// Longest life of a cookie, in seconds.
pub(crate) const COOKIE_LIFE_SECONDS: u64 = 2 * COOKIE_PERIOD_SECONDS as u64;

fn period(now: Instant) -> u32 {
    (now.secs() / COOKIE_PERIOD_SECONDS) as u32
}

fn mask(secret: &Secret, key: Key, theirs: u32, period: u32) -> u32 {
    (secret.of(key, [theirs, period]) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;
    use std::vec::Vec;

    use super::*;
    use proptest::prelude::*;

    fn key(port: u16) -> Key {
        Key::new("10.0.2.15:80".parse().unwrap(), SocketAddr::new([10, 0, 2, 2].into(), port))
    }

    fn secret(last: u8) -> Secret {
        Secret::new([last; 16])
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn cookies_open_for_their_request_alone(
            theirs: u32,
            segment in prop_oneof![any::<u16>(), 535u16..538, 1219u16..1222, 1451u16..1462],
            start in 0i64..1_000_000,
            wait in 0i64..400,
        ) {
            let secret = secret(1);
            let made = Instant::from_secs(start);
            let cookie = cookie(&secret, key(9), theirs, segment, made);
            let opened = opened_cookie(&secret, key(9), theirs, cookie, made + smoltcp::time::Duration::from_secs(wait as u64));
            if wait <= COOKIE_PERIOD_SECONDS {
                prop_assert!(opened.is_some());
            }
            if wait >= COOKIE_LIFE_SECONDS as i64 {
                prop_assert_eq!(opened, None);
            }
            if let Some(size) = opened {
                prop_assert!(size <= segment || size == COOKIE_SEGMENTS[0]);
                prop_assert!(COOKIE_SEGMENTS.iter().all(|&other| other > segment || other <= size));
            }
            prop_assert_eq!(opened_cookie(&secret, key(10), theirs, cookie, made), None);
            prop_assert_eq!(opened_cookie(&secret, key(9), theirs.wrapping_add(1), cookie, made), None);
            prop_assert_eq!(opened_cookie(&self::secret(2), key(9), theirs, cookie, made), None);
        }
    }

    #[test]
    fn numbers_of_the_same_ends_grow_with_the_clock_and_others_are_unrelated() {
        let secret = secret(3);
        let at = |port, micros: i64| beginning(&secret, key(port), Instant::from_micros(micros)).0;
        assert_eq!(at(1, 4_000_000).wrapping_sub(at(1, 0)), 1_000_000);
        // The clock wraps around in 4.77 hours, as in RFC 9293.
        assert_eq!(at(1, 1 << 34), at(1, 0));
        let mut steps: Vec<u32> = (1..1000).map(|port| at(port + 1, 0).wrapping_sub(at(port, 0))).collect();
        steps.sort_unstable();
        steps.dedup();
        assert_eq!(steps.len(), 999);
    }

    #[test]
    fn timestamps_do_not_tell_how_long_the_machine_is_up_nor_the_numbers() {
        let secret = secret(3);
        let parts = |port, micros: i64| {
            let now = Instant::from_micros(micros);
            let (number, stamps) = beginning(&secret, key(port), now);
            (number, stamps.told(micros as u64).0)
        };
        assert_eq!(parts(1, 5_000_000).1.wrapping_sub(parts(1, 0).1), 5000);
        let mut steps: Vec<u32> = (1..1000).map(|port| parts(port + 1, 0).1.wrapping_sub(parts(port, 0).1)).collect();
        steps.extend((1..1000).map(|port| parts(port, 0).1.wrapping_sub(parts(port, 0).0)));
        steps.sort_unstable();
        steps.dedup();
        assert_eq!(steps.len(), 2 * 999);
    }

    #[test]
    fn every_seed_is_drawn_apart() {
        let mut count = 0;
        let seeds = Seeds::draw(|bytes| {
            bytes.fill_with(|| {
                count += 1;
                count
            });
        });
        assert_eq!(count, 144);
        assert_eq!(seeds.cookies[0], 17);
        assert_eq!(halves(seeds.sequence_numbers)[1].to_le_bytes()[0], 9);
    }
}
