//! Messages of neighbour discovery (RFC 4861): reading those that arrive, and writing this host's own.
//!
//! Everything is read with a check; a message with one malformed option is none. The sender must be of this network: a
//! message whose hop limit is not 255 has passed a router.

use core::net::Ipv6Addr;

use ethernet::ETHERNET_HEADER;
use smoltcp::phy::TxToken;
use smoltcp::wire::{Icmpv6Packet, Ipv6Packet};

use crate::groups::Report;

pub(crate) const IP_HEADER: usize = 40;
const PROTOCOL_ICMP: u8 = 58;

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;
const OPTION_NAME_SERVERS: u8 = 25;

/// The group of all hosts of the network.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Whether the kind of an ICMPv6 message is one of neighbour discovery.
pub(crate) fn is_discovery(kind: u8) -> bool {
    (ROUTER_SOLICITATION..=137).contains(&kind)
}

/// Returns the group to which hosts with this address belong.
pub fn solicited_group(address: Ipv6Addr) -> Ipv6Addr {
    let low = u128::from(u32::from_be_bytes([0xff, address.octets()[13], address.octets()[14], address.octets()[15]]));
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_0000_0000 | low)
}

/// Returns the hardware address of a group (RFC 2464, section 7).
pub(crate) fn hardware_of_group(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Whether one host can have this address on a network.
pub(crate) fn is_of_a_host(address: Ipv6Addr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.to_ipv4_mapped().is_some())
}

/// Returns a mask of so many leading bits.
pub(crate) fn leading_bits(length: u8) -> u128 {
    !u128::MAX.checked_shr(length.into()).unwrap_or(0)
}

/// Whether a hardware address is that of one device.
fn is_of_one_device(address: [u8; 6]) -> bool {
    address[0] & 1 == 0 && address != [0; 6]
}

fn address_at(data: &[u8], at: usize) -> Option<Ipv6Addr> {
    Some(Ipv6Addr::from(*data.get(at..)?.first_chunk::<16>()?))
}

fn word_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

/// Returns the ICMPv6 message in an Ethernet frame with its IPv6 header, if its lengths and its checksum are right.
pub(crate) fn message_in(frame: &[u8]) -> Option<(Ipv6Packet<&[u8]>, &[u8])> {
    let packet = Ipv6Packet::new_checked(frame.get(ETHERNET_HEADER..)?).ok()?;
    let message = packet.payload();
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    let is_right = message.len() >= 8 && Icmpv6Packet::new_unchecked(message).verify_checksum(&source, &destination);
    is_right.then_some((packet, message))
}

/// An option: its kind and all of its bytes.
type DiscoveryOption<'a> = (u8, &'a [u8]);

/// Splits the first option off.
fn split_option(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::from(*data.get(1)?) * 8;
    if length == 0 { None } else { data.split_at_checked(length) }
}

/// Returns the options of a message; `None` if one is malformed.
fn options(data: &[u8]) -> Option<impl Iterator<Item = DiscoveryOption<'_>>> {
    let mut rest = data;
    while !rest.is_empty() {
        rest = split_option(rest)?.1;
    }
    let mut left = data;
    Some(core::iter::from_fn(move || {
        let (option, rest) = split_option(left)?;
        left = rest;
        Some((option[0], option))
    }))
}

/// Returns the hardware address in the first option of this kind, if there is one; `None` if an option is malformed.
#[allow(clippy::option_option, reason = "a message without the option is not one that is malformed")]
fn hardware_in(data: &[u8], wanted: u8) -> Option<Option<[u8; 6]>> {
    let option = options(data)?.find(|&(kind, _)| kind == wanted);
    let hardware = option.and_then(|(_, option)| option.get(2..)?.first_chunk::<6>().copied());
    Some(hardware.filter(|&hardware| is_of_one_device(hardware)))
}

/// A prefix that a router advertises; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdvertisedPrefix {
    pub(crate) prefix: Ipv6Addr,
    pub(crate) length: u8,
    pub(crate) is_on_link: bool,
    pub(crate) is_for_addresses: bool,
    pub(crate) valid: u32,
    pub(crate) preferred: u32,
}

/// A router's advertisement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterAdvertisement<'a> {
    /// Seconds for which the sender is a router; 0 if it is none.
    pub(crate) lifetime: u16,
    /// Preference among routers (RFC 4191): 1, 0 or -1.
    pub(crate) preference: i8,
    /// Hardware address of the sender, if it tells.
    pub(crate) hardware: Option<[u8; 6]>,
    pub(crate) mtu: Option<u32>,
    options: &'a [u8],
}

impl<'a> RouterAdvertisement<'a> {
    fn read(message: &'a [u8]) -> Option<RouterAdvertisement<'a>> {
        let lifetime = u16::from_be_bytes(*message.get(6..)?.first_chunk()?);
        let preference = match message.get(5)? >> 3 & 3 {
            1 => 1,
            3 => -1,
            _ => 0,
        };
        let data = message.get(16..)?;
        let hardware = hardware_in(data, OPTION_SOURCE)?;
        let mtu = options(data)?.find(|&(kind, _)| kind == OPTION_MTU).and_then(|(_, option)| word_at(option, 4));
        Some(RouterAdvertisement { lifetime, preference, hardware, mtu, options: data })
    }

    /// Returns the prefixes that a host may use.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = AdvertisedPrefix> + use<'a> {
        let read = |(kind, option): DiscoveryOption<'_>| {
            let length = *option.get(2)?;
            let found = AdvertisedPrefix {
                length,
                is_on_link: option.get(3)? & 0x80 != 0,
                is_for_addresses: option.get(3)? & 0x40 != 0,
                valid: word_at(option, 4)?,
                preferred: word_at(option, 8)?,
                prefix: Ipv6Addr::from_bits(address_at(option, 16)?.to_bits() & leading_bits(length)),
            };
            let is_usable = kind == OPTION_PREFIX
                && found.length <= 128
                && found.preferred <= found.valid
                && is_of_a_host(found.prefix)
                && !found.prefix.is_unicast_link_local();
            is_usable.then_some(found)
        };
        options(self.options).into_iter().flatten().filter_map(read)
    }

    /// Returns the servers that resolve names, with the seconds for which that holds (RFC 8106).
    pub(crate) fn name_servers(&self) -> impl Iterator<Item = (Ipv6Addr, u32)> + use<'a> {
        let of_option = |(kind, option): DiscoveryOption<'a>| {
            let lifetime = word_at(option, 4).filter(|_| kind == OPTION_NAME_SERVERS)?;
            let addresses = option.get(8..)?.as_chunks::<16>().0;
            let addresses = addresses.iter().map(|&octets| Ipv6Addr::from(octets));
            Some(addresses.filter(|&address| is_of_a_host(address)).map(move |address| (address, lifetime)))
        };
        options(self.options).into_iter().flatten().filter_map(of_option).flatten()
    }
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Discovery<'a> {
    /// A host asks for the hardware address of `target`, or, without an address of its own, whether another has it.
    Solicitation {
        target: Ipv6Addr,
        hardware: Option<[u8; 6]>,
    },
    /// A host tells its hardware address.
    Advertisement {
        target: Ipv6Addr,
        hardware: Option<[u8; 6]>,
        is_router: bool,
        is_solicited: bool,
        overrides: bool,
    },
    Router(RouterAdvertisement<'a>),
}

impl<'a> Discovery<'a> {
    /// Reads a message of a host of the same network.
    pub(crate) fn read(packet: &Ipv6Packet<&[u8]>, message: &'a [u8]) -> Option<Discovery<'a>> {
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        if packet.hop_limit() != 255 || *message.get(1)? != 0 {
            return None;
        }
        match *message.first()? {
            NEIGHBOUR_SOLICITATION => {
                let target = address_at(message, 8).filter(|&target| is_of_a_host(target))?;
                let hardware = hardware_in(message.get(24..)?, OPTION_SOURCE)?;
                // A question whether an address is in use goes to its group, and tells nothing of the sender.
                let is_question = source.is_unspecified();
                let is_right = !is_question || destination == solicited_group(target) && hardware.is_none();
                is_right.then_some(Discovery::Solicitation { target, hardware })
            }
            NEIGHBOUR_ADVERTISEMENT => {
                let target = address_at(message, 8).filter(|&target| is_of_a_host(target))?;
                let hardware = hardware_in(message.get(24..)?, OPTION_TARGET)?;
                let [is_router, is_solicited, overrides] = [0x80, 0x40, 0x20].map(|bit| message[4] & bit != 0);
                let is_right = is_of_a_host(source) && !(is_solicited && destination.is_multicast());
                let read = Discovery::Advertisement { target, hardware, is_router, is_solicited, overrides };
                is_right.then_some(read)
            }
            ROUTER_ADVERTISEMENT if source.is_unicast_link_local() => {
                RouterAdvertisement::read(message).map(Discovery::Router)
            }
            _ => None,
        }
    }
}

/// A message of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnMessage {
    /// Asks for the hardware address of `target`: all hosts, or the one that had this hardware address.
    Ask { from: Ipv6Addr, target: Ipv6Addr, at: Option<[u8; 6]> },
    /// Asks whether another host has the address.
    Probe { target: Ipv6Addr },
    /// Tells this host's hardware address to the host with this one, or to all.
    Tell { target: Ipv6Addr, to: Option<(Ipv6Addr, [u8; 6])> },
    /// Asks for advertisements of routers.
    AskRouters { from: Ipv6Addr },
    /// Tells routers and switches in which groups the host is.
    Join(Report),
}

impl OwnMessage {
    /// Sends the message from the device with this address.
    pub(crate) fn send<T: TxToken>(&self, own: [u8; 6], token: T) {
        let unspecified = Ipv6Addr::UNSPECIFIED;
        let (kind, flags, target, option, from, to, hardware) = match *self {
            OwnMessage::Join(report) => return report.send(own, token),
            OwnMessage::Ask { from, target, at } => {
                let (to, hardware) = match at {
                    Some(hardware) => (target, hardware),
                    None => (solicited_group(target), hardware_of_group(solicited_group(target))),
                };
                (NEIGHBOUR_SOLICITATION, 0, Some(target), Some(OPTION_SOURCE), from, to, hardware)
            }
            OwnMessage::Probe { target } => {
                let group = solicited_group(target);
                (NEIGHBOUR_SOLICITATION, 0, Some(target), None, unspecified, group, hardware_of_group(group))
            }
            OwnMessage::Tell { target, to } => {
                // Solicited, and overriding; or to all only overriding.
                let (flags, (to, hardware)) = match to {
                    Some(to) => (0x60, to),
                    None => (0x20, (ALL_NODES, hardware_of_group(ALL_NODES))),
                };
                (NEIGHBOUR_ADVERTISEMENT, flags, Some(target), Some(OPTION_TARGET), target, to, hardware)
            }
            OwnMessage::AskRouters { from } => {
                let hardware = hardware_of_group(ALL_ROUTERS);
                (ROUTER_SOLICITATION, 0, None, Some(OPTION_SOURCE), from, ALL_ROUTERS, hardware)
            }
        };
        let option_at = 8 + if target.is_some() { 16 } else { 0 };
        let length = option_at + if option.is_some() { 8 } else { 0 };
        token.consume(ETHERNET_HEADER + IP_HEADER + length, |frame| {
            let (head, message) = frame.split_at_mut(ETHERNET_HEADER + IP_HEADER);
            head[..6].copy_from_slice(&hardware);
            head[6..12].copy_from_slice(&own);
            head[12..ETHERNET_HEADER].copy_from_slice(&[0x86, 0xdd]);
            let packet = &mut head[ETHERNET_HEADER..];
            packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, length as u8, PROTOCOL_ICMP, 255]);
            packet[8..24].copy_from_slice(&from.octets());
            packet[24..].copy_from_slice(&to.octets());
            message.fill(0);
            (message[0], message[4]) = (kind, flags);
            if let Some(target) = target {
                message[8..24].copy_from_slice(&target.octets());
            }
            if let Some(option) = option {
                message[option_at..option_at + 2].copy_from_slice(&[option, 1]);
                message[option_at + 2..].copy_from_slice(&own);
            }
            Icmpv6Packet::new_unchecked(message).fill_checksum(&from, &to);
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 15];

    /// Keeps the frame that is sent.
    pub(crate) struct Kept<'a>(pub(crate) &'a mut Vec<u8>);

    impl TxToken for Kept<'_> {
        fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
            *self.0 = vec![0xaa; length];
            f(self.0)
        }
    }

    fn sent(message: OwnMessage) -> Vec<u8> {
        let mut frame = Vec::new();
        message.send(OWN, Kept(&mut frame));
        frame
    }

    fn address(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    #[test]
    fn groups_are_those_of_the_standard() {
        assert_eq!(solicited_group(address("2001:db8::12:3456:789a")), address("ff02::1:ff56:789a"));
        assert_eq!(hardware_of_group(address("ff02::1:ff56:789a")), [0x33, 0x33, 0xff, 0x56, 0x78, 0x9a]);
    }

    #[test]
    fn what_is_sent_can_be_read() {
        let (own, other) = (address("fe80::1"), address("fe80::2:3:4"));
        let frame = sent(OwnMessage::Ask { from: own, target: other, at: None });
        let (packet, message) = message_in(&frame).unwrap();
        assert_eq!((packet.src_addr(), packet.dst_addr()), (own, address("ff02::1:ff03:4")));
        assert_eq!(frame[..12], [&hardware_of_group(packet.dst_addr())[..], &OWN].concat());
        let read = Discovery::read(&packet, message).unwrap();
        assert!(matches!(read, Discovery::Solicitation { target, hardware: Some(OWN) } if target == other), "{read:?}");

        let frame = sent(OwnMessage::Probe { target: other });
        let (packet, message) = message_in(&frame).unwrap();
        let read = Discovery::read(&packet, message).unwrap();
        assert!(matches!(read, Discovery::Solicitation { target, hardware: None } if target == other), "{read:?}");

        let frame = sent(OwnMessage::Tell { target: own, to: Some((other, [2, 0, 0, 0, 0, 2])) });
        let (packet, message) = message_in(&frame).unwrap();
        assert_eq!(packet.dst_addr(), other);
        let read = Discovery::read(&packet, message).unwrap();
        let Discovery::Advertisement { target, hardware, is_router, is_solicited, overrides } = read else {
            panic!("{read:?}");
        };
        assert_eq!((target, hardware), (own, Some(OWN)));
        assert_eq!((is_router, is_solicited, overrides), (false, true, true));
        // A host that asks routers is none, so that nothing of it counts.
        let frame = sent(OwnMessage::AskRouters { from: own });
        let (packet, message) = message_in(&frame).unwrap();
        assert!(Discovery::read(&packet, message).is_none());
    }

    #[test]
    fn a_message_from_another_network_or_with_a_damaged_byte_is_none() {
        let good = sent(OwnMessage::Ask { from: address("fe80::1"), target: address("fe80::2"), at: None });
        let mut far = good.clone();
        far[ETHERNET_HEADER + 7] = 254;
        let (packet, message) = message_in(&far).unwrap();
        assert!(Discovery::read(&packet, message).is_none());
        for at in ETHERNET_HEADER + 8..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 4;
            assert!(message_in(&damaged).is_none(), "byte {at}");
        }
    }

    /// Returns an advertisement with these options.
    pub(crate) fn advertisement(lifetime: u16, options: &[u8]) -> Vec<u8> {
        let mut message = vec![ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0];
        message.extend(lifetime.to_be_bytes());
        message.extend([0; 8]);
        message.extend(options);
        message
    }

    #[test]
    fn options_are_read_as_far_as_they_are_whole() {
        let mut prefix = vec![OPTION_PREFIX, 4, 64, 0xc0];
        prefix.extend(3600u32.to_be_bytes());
        prefix.extend(1800u32.to_be_bytes());
        prefix.extend([0; 4]);
        prefix.extend(address("fec0::").octets());
        let mut servers = vec![OPTION_NAME_SERVERS, 5, 0, 0, 0, 0, 0, 60];
        servers.extend(address("fec0::3").octets());
        servers.extend(address("ff02::3").octets());
        let mtu = [OPTION_MTU, 1, 0, 0, 0, 0, 0x05, 0x78];
        let source = [OPTION_SOURCE, 1, 2, 0, 0, 0, 0, 2];
        let options = [&prefix[..], &mtu, &[200, 1, 0, 0, 0, 0, 0, 0], &servers, &source].concat();
        let message = advertisement(1800, &options);
        let read = RouterAdvertisement::read(&message).unwrap();
        assert_eq!((read.lifetime, read.mtu, read.hardware), (1800, Some(1400), Some([2, 0, 0, 0, 0, 2])));
        let expected = AdvertisedPrefix {
            prefix: address("fec0::"),
            length: 64,
            is_on_link: true,
            is_for_addresses: true,
            valid: 3600,
            preferred: 1800,
        };
        assert_eq!(read.prefixes().collect::<Vec<_>>(), [expected]);
        assert_eq!(read.name_servers().collect::<Vec<_>>(), [(address("fec0::3"), 60)]);
        // An option without a length, or cut off, makes the whole message one of a liar.
        let mut endless = message.clone();
        endless[16 + 1] = 0;
        assert!(RouterAdvertisement::read(&endless).is_none());
        for cut in [1, 7, 8 * 3 + 1, 17] {
            assert!(RouterAdvertisement::read(&message[..message.len() - cut]).is_none(), "{cut}");
        }
    }

    proptest! {
        #![proptest_config(property::cases(512))]

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 133u8..138) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let mut frame = vec![0; ETHERNET_HEADER];
            frame.extend([0x60, 0, 0, 0, 0, bytes.len() as u8, PROTOCOL_ICMP, 255]);
            frame.extend(address("fe80::1").octets());
            frame.extend(address("ff02::1").octets());
            frame.extend(&bytes);
            let (from, to) = (address("fe80::1"), address("ff02::1"));
            if bytes.len() >= 8 {
                Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&from, &to);
            }
            if let Some((packet, message)) = message_in(&frame)
                && let Some(Discovery::Router(router)) = Discovery::read(&packet, message)
            {
                prop_assert!(router.prefixes().count() <= bytes.len() / 32);
                prop_assert!(router.name_servers().count() <= bytes.len() / 16);
            }
        }
    }
}
