//! Messages about groups of receivers (MLDv2, RFC 3810): switches that listen to them pass packets of a group to its
//! members only, so that a host that says nothing hears no question about its own addresses.
//!
//! The groups of this host are those of its addresses. It reports them when an address is to be, when one is in use,
//! and when a router asks. A message has a header between that of the packet and its own, by which routers notice it;
//! no other packet with such a header is read. A router that asks by the older version gets the same answer, which says
//! which groups there are.

use core::net::Ipv6Addr;

use ethernet::ETHERNET_HEADER;
use smoltcp::phy::TxToken;
use smoltcp::time::Duration;
use smoltcp::wire::Icmpv6Packet;

use crate::discovery::{IP_HEADER, hardware_of_group};

/// Kind of a router's question which groups there are.
pub(crate) const QUERY: u8 = 130;
const REPORT: u8 = 143;
/// The group of routers that listen.
const LISTENERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// Groups in one report: those of all addresses that a host can have.
pub(crate) const GROUPS: usize = 5;
/// Longest time until a report is sent on request.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// The header before the message: the message follows, in it all routers on the way are told of MLD (RFC 2711).
const BEFORE: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
const RECORD: usize = 20;
/// Kinds of records: all is received from now on, or still.
const JOINS: u8 = 4;
const IS_IN: u8 = 2;

/// A report of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// Unspecified for a host whose address is not in use yet.
    pub(crate) from: Ipv6Addr,
    pub(crate) groups: [Option<Ipv6Addr>; GROUPS],
    /// It answers a router.
    pub(crate) is_answer: bool,
}

impl Report {
    /// Sends the report from the device with this address.
    pub(crate) fn send<T: TxToken>(&self, own: [u8; 6], token: T) {
        let groups = self.groups.iter().flatten();
        let count = groups.clone().count();
        let length = 8 + count * RECORD;
        token.consume(ETHERNET_HEADER + IP_HEADER + BEFORE.len() + length, |frame| {
            frame.fill(0);
            frame[..6].copy_from_slice(&hardware_of_group(LISTENERS));
            frame[6..12].copy_from_slice(&own);
            frame[12..ETHERNET_HEADER].copy_from_slice(&[0x86, 0xdd]);
            let packet = &mut frame[ETHERNET_HEADER..];
            // The header of options follows, and the packet passes no router.
            packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, (BEFORE.len() + length) as u8, 0, 1]);
            packet[8..24].copy_from_slice(&self.from.octets());
            packet[24..IP_HEADER].copy_from_slice(&LISTENERS.octets());
            let (before, message) = packet[IP_HEADER..].split_at_mut(BEFORE.len());
            before.copy_from_slice(&BEFORE);
            (message[0], message[7]) = (REPORT, count as u8);
            for (record, group) in message[8..].chunks_exact_mut(RECORD).zip(groups) {
                record[0] = if self.is_answer { IS_IN } else { JOINS };
                record[4..].copy_from_slice(&group.octets());
            }
            Icmpv6Packet::new_unchecked(message).fill_checksum(&self.from, &LISTENERS);
        });
    }
}

/// Returns whether the bytes behind the header of a packet may be a router's question.
pub(crate) fn may_be_query(payload: &[u8]) -> bool {
    payload.first() == Some(&58) && payload.get(1) == Some(&0) && payload.get(BEFORE.len()) == Some(&QUERY)
}

/// Returns the time within which a router wants to hear of groups, if the frame has such a question of a router of this
/// network.
pub(crate) fn delay_of_query(frame: &[u8]) -> Option<Duration> {
    let packet = frame.get(ETHERNET_HEADER..)?;
    let length = usize::from(u16::from_be_bytes(*packet.get(4..)?.first_chunk()?));
    let (header, payload) = (packet.get(..IP_HEADER)?, packet.get(IP_HEADER..IP_HEADER + length)?);
    let (before, message) = payload.split_first_chunk::<8>()?;
    let address = |at: usize| Some(Ipv6Addr::from(*header.get(at..)?.first_chunk::<16>()?));
    let (source, destination) = (address(8)?, address(24)?);
    // Options of routers: the one that tells them of MLD, and padding.
    let tells_routers = before[2..6] == BEFORE[2..6] || before[4..8] == BEFORE[2..6];
    let is_right = header[6] == 0
        && header[7] == 1
        && source.is_unicast_link_local()
        && tells_routers
        && message.len() >= 24
        && message[..2] == [QUERY, 0];
    if !is_right || !Icmpv6Packet::new_unchecked(message).verify_checksum(&source, &destination) {
        return None;
    }
    let code = u64::from(u16::from_be_bytes([message[4], message[5]]));
    // Of the newer version great times are a mantissa and an exponent (RFC 3810, section 5.1.3).
    let milliseconds = if code < 0x8000 { code } else { (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3) };
    Some(Duration::from_millis(milliseconds).min(LONGEST_DELAY))
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::discovery::tests::Kept;

    fn address(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    /// A frame with a router's question.
    fn query(code: u16, from: &str, hops: u8) -> Vec<u8> {
        let report = Report {
            from: address(from),
            groups: [Some(address("ff02::1")), None, None, None, None],
            is_answer: false,
        };
        let mut frame = Vec::new();
        report.send([2, 0, 0, 0, 0, 2], Kept(&mut frame));
        frame[21] = hops;
        let message = &mut frame[62..];
        message.fill(0);
        message[0] = QUERY;
        message[4..6].copy_from_slice(&code.to_be_bytes());
        Icmpv6Packet::new_unchecked(message).fill_checksum(&address(from), &LISTENERS);
        frame
    }

    #[test]
    fn a_report_has_a_record_for_each_group() {
        let groups = [Some(address("ff02::1:ff00:f")), None, Some(address("ff02::1:ff12:3456")), None, None];
        for is_answer in [false, true] {
            let mut frame = Vec::new();
            Report { from: address("fe80::f"), groups, is_answer }.send([2, 0, 0, 0, 0, 15], Kept(&mut frame));
            assert_eq!(frame.len(), 14 + 40 + 8 + 8 + 40);
            assert_eq!(frame[..14], [0x33, 0x33, 0, 0, 0, 0x16, 2, 0, 0, 0, 0, 15, 0x86, 0xdd]);
            assert_eq!((frame[19], frame[20], frame[21]), (56, 0, 1));
            assert_eq!(frame[54..62], [58, 0, 5, 2, 0, 0, 1, 0]);
            let message = &frame[62..];
            assert_eq!((message[0], message[1], message[7], message[8]), (143, 0, 2, if is_answer { 2 } else { 4 }));
            assert_eq!(message[12..28], address("ff02::1:ff00:f").octets());
            assert_eq!(message[32..48], address("ff02::1:ff12:3456").octets());
            assert!(Icmpv6Packet::new_unchecked(message).verify_checksum(&address("fe80::f"), &LISTENERS));
        }
    }

    #[test]
    fn a_question_is_read_as_the_standard_says() {
        let delay = |code| delay_of_query(&query(code, "fe80::2", 1)).map(|delay| delay.total_millis());
        assert_eq!(delay(0), Some(0));
        assert_eq!(delay(1000), Some(1000));
        assert_eq!(delay(0x7fff), Some(10_000));
        assert_eq!(delay(0xffff), Some(10_000));
        assert_eq!(delay_of_query(&query(1000, "2001:db8::2", 1)), None, "not of this network");
        assert_eq!(delay_of_query(&query(1000, "fe80::2", 64)), None, "through a router");
        let mut damaged = query(1000, "fe80::2", 1);
        damaged[70] ^= 1;
        assert_eq!(delay_of_query(&damaged), None);
        let mut other = query(1000, "fe80::2", 1);
        other[56..60].fill(0);
        assert_eq!(delay_of_query(&other), None, "without the option");
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn any_frame_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..120), at in 0..90usize, byte in any::<u8>()) {
            prop_assert_eq!(delay_of_query(&bytes), None);
            let mut frame = query(100, "fe80::2", 1);
            let at = at % frame.len();
            frame[at] = byte;
            let _ = delay_of_query(&frame);
            prop_assert_eq!(delay_of_query(&frame[..at]), None);
        }
    }
}
