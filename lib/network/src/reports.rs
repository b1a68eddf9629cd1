//! Reports of the network about datagrams that did not arrive (ICMP and ICMPv6), kept for the sockets that want them
//! (ip(7), `IP_RECVERR`).
//!
//! A report quotes the start of the packet that it is about, and leads to its sender by that. A socket keeps few of
//! them, with few of the quoted bytes each: any host of the network can send such reports.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ethernet::ETHERNET_HEADER;
use smoltcp::storage::{PacketBuffer, PacketMetadata};

use crate::Error;
use crate::discovery::IP_HEADER;
use crate::echo::HEADER_OF_FOUR;
use crate::tcp::zeroed;

/// Reports that a socket keeps.
const MOST_REPORTS: usize = 16;
/// Bytes of all quoted packets that it keeps.
const MOST_BYTES: usize = 4096;
/// Bytes of one quoted packet that it keeps.
const MOST_QUOTED: usize = 1024;

/// The bytes that a socket with reports takes more than another one.
pub const MEMORY_OF_REPORTS: usize =
    size_of::<Reports>() + MOST_BYTES + MOST_REPORTS * size_of::<PacketMetadata<Report>>();

const UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const PORT_UNREACHABLE: u8 = 3;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
const UNREACHABLE_OF_SIX: u8 = 1;
const PORT_UNREACHABLE_OF_SIX: u8 = 4;
const TOO_LARGE_OF_SIX: u8 = 2;
const TIME_EXCEEDED_OF_SIX: u8 = 3;
const PARAMETER_PROBLEM_OF_SIX: u8 = 4;

const UDP: u8 = 17;
const HEADER_OF_UDP: usize = 8;
/// Bytes of a message before the quoted packet.
const HEADER_OF_MESSAGE: usize = 8;

/// A report about a datagram.
#[doc(alias = "sock_extended_err")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The receiver that the datagram had.
    pub to: SocketAddr,
    /// The host that reports; `None` for this one, which has not sent it.
    pub from: Option<IpAddr>,
    /// Kind and code of the message, as the protocol of the receiver's family has them.
    pub kind: u8,
    /// See [`kind`](Self::kind).
    pub code: u8,
    /// The size of packets that the way has, if this one was too large; else 0.
    pub size: u32,
    /// The hop limit with which the report came.
    pub hop_limit: u8,
    /// The time of its coming, of the clock that the socket was given; 0 without one.
    pub at_ns: u64,
}

impl Report {
    /// The report of this host that a port has no socket.
    pub(crate) fn of_refusal(to: SocketAddr) -> Report {
        let (kind, code) = match to {
            SocketAddr::V4(_) => (UNREACHABLE, PORT_UNREACHABLE),
            SocketAddr::V6(_) => (UNREACHABLE_OF_SIX, PORT_UNREACHABLE_OF_SIX),
        };
        Report { to, from: Some(to.ip()), kind, code, size: 0, hop_limit: 64, at_ns: 0 }
    }

    /// The report of this host that a datagram is too large for packets of this size.
    pub(crate) fn of_size(to: SocketAddr, size: usize) -> Report {
        Report { to, from: None, kind: 0, code: 0, size: size as u32, hop_limit: 0, at_ns: 0 }
    }

    /// Returns the error that it means, and whether it also ends what a connected socket without reports waits for.
    pub(crate) fn failure(&self) -> (Error, bool) {
        match (self.to, self.kind, self.code) {
            _ if self.from.is_none() => (Error::TooLong, true),
            (SocketAddr::V4(_), UNREACHABLE, PORT_UNREACHABLE) => (Error::Refused, true),
            (SocketAddr::V4(_), UNREACHABLE, FRAGMENTATION_NEEDED) => (Error::TooLong, false),
            // The network; it may come back.
            (SocketAddr::V4(_), UNREACHABLE, 0) => (Error::Unreachable, false),
            (SocketAddr::V4(_), UNREACHABLE, 6 | 9) => (Error::Unreachable, true),
            (SocketAddr::V4(_), UNREACHABLE, 1 | 5 | 11 | 12) => (Error::HostUnreachable, false),
            (SocketAddr::V4(_), UNREACHABLE, _) => (Error::HostUnreachable, true),
            (SocketAddr::V6(_), UNREACHABLE_OF_SIX, PORT_UNREACHABLE_OF_SIX) => (Error::Refused, true),
            (SocketAddr::V6(_), UNREACHABLE_OF_SIX, 0) => (Error::Unreachable, false),
            (SocketAddr::V6(_), UNREACHABLE_OF_SIX, 1 | 5 | 6) => (Error::HostUnreachable, true),
            (SocketAddr::V6(_), TOO_LARGE_OF_SIX, _) => (Error::TooLong, false),
            _ => (Error::HostUnreachable, false),
        }
    }

    /// Reads a report in an Ethernet frame, with the protocol of the quoted packet and the bytes behind that packet's
    /// IP header. The message's checksum is the caller's to check.
    pub(crate) fn read(frame: &[u8]) -> Option<(Report, u8, &[u8])> {
        let packet = frame.get(ETHERNET_HEADER..)?;
        let is_six = packet.first()? >> 4 == 6;
        let (header, hop_limit) = if is_six { (IP_HEADER, *packet.get(7)?) } else { header_of_four(packet)? };
        let from = addresses(packet, is_six)?.0;
        let message = packet.get(header..)?;
        let (kind, code) = (*message.first()?, *message.get(1)?);
        let size = match (is_six, kind, code) {
            (false, UNREACHABLE, FRAGMENTATION_NEEDED) => {
                u32::from(u16::from_be_bytes(*message.get(6..)?.first_chunk()?))
            }
            (true, TOO_LARGE_OF_SIX, _) => u32::from_be_bytes(*message.get(4..)?.first_chunk()?),
            _ => 0,
        };
        let quoted = message.get(HEADER_OF_MESSAGE..)?;
        if (quoted.first()? >> 4 == 6) != is_six {
            return None;
        }
        let (header, protocol) = match is_six {
            true => (IP_HEADER, *quoted.get(6)?),
            false => (header_of_four(quoted)?.0, *quoted.get(9)?),
        };
        let (_, to) = addresses(quoted, is_six)?;
        let transport = quoted.get(header..)?;
        let port = if protocol == UDP { u16::from_be_bytes(*transport.get(2..)?.first_chunk()?) } else { 0 };
        let to = SocketAddr::new(to, port);
        Some((Report { to, from: Some(from), kind, code, size, hop_limit, at_ns: 0 }, protocol, transport))
    }
}

/// Whether a message of ICMP of this kind reports a packet that was lost.
pub(crate) fn is_report(is_six: bool, kind: u8) -> bool {
    match is_six {
        true => (UNREACHABLE_OF_SIX..=PARAMETER_PROBLEM_OF_SIX).contains(&kind),
        false => matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM),
    }
}

const _: () = assert!(TOO_LARGE_OF_SIX + 1 == TIME_EXCEEDED_OF_SIX);

/// Returns the length and the hop limit of a header of IPv4.
fn header_of_four(packet: &[u8]) -> Option<(usize, u8)> {
    let first = *packet.first()?;
    let length = usize::from(first & 0xf) * 4;
    (first >> 4 == 4 && length >= HEADER_OF_FOUR).then_some((length, *packet.get(8)?))
}

/// Returns the addresses of a packet, from and to.
fn addresses(packet: &[u8], is_six: bool) -> Option<(IpAddr, IpAddr)> {
    let six = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?)));
    let four = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?)));
    if is_six { Some((six(8)?, six(24)?)) } else { Some((four(12)?, four(16)?)) }
}

/// Returns the bytes of a datagram that a report quotes, as its sender gave them.
pub(crate) fn payload_of_udp(transport: &[u8]) -> &[u8] {
    transport.get(HEADER_OF_UDP..).unwrap_or_default()
}

/// The reports that a socket keeps.
pub(crate) struct Reports(PacketBuffer<'static, Report>);

impl Reports {
    /// Makes room for reports.
    pub(crate) fn new() -> Result<Reports, Error> {
        Ok(Reports(PacketBuffer::new(zeroed(PacketMetadata::EMPTY, MOST_REPORTS)?, zeroed(0, MOST_BYTES)?)))
    }

    /// Keeps a report with the start of the quoted bytes, or drops it if there is no room.
    pub(crate) fn keep(&mut self, report: Report, quoted: &[u8]) {
        let length = quoted.len().min(MOST_QUOTED);
        if let Ok(room) = self.0.enqueue(length, report) {
            room.copy_from_slice(&quoted[..length]);
        }
    }

    /// Takes the first report.
    pub(crate) fn take<R>(&mut self, take: impl FnOnce(&Report, &[u8]) -> R) -> Option<R> {
        self.0.dequeue().ok().map(|(report, quoted)| take(&report, quoted))
    }

    /// Returns the first report.
    pub(crate) fn first(&mut self) -> Option<Report> {
        self.0.peek().ok().map(|(report, _)| *report)
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Whatever a frame has in it, reading it ends, and what is read lies in it.
        #[test]
        fn any_frame_can_be_read(mut frame in prop::collection::vec(any::<u8>(), 0..160), six in any::<bool>()) {
            if let Some(first) = frame.get_mut(14) {
                *first = if six { 0x60 } else { 0x45 };
            }
            let at = 14 + if six { 48 } else { 28 };
            if let Some(first) = frame.get_mut(at) {
                *first = if six { 0x60 } else { 0x45 };
            }
            if let Some((report, _, transport)) = Report::read(&frame) {
                prop_assert_eq!(report.to.is_ipv6(), six);
                prop_assert!(frame.ends_with(transport));
                let _ = report.failure();
            }
        }

        /// Reports beyond those for which there is room are dropped, and the others keep their order.
        #[test]
        fn few_reports_are_kept(lengths in prop::collection::vec(0..2000usize, 0..40)) {
            let mut reports = Reports::new().unwrap();
            let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7);
            let mut kept = 0;
            for (number, length) in lengths.iter().enumerate() {
                reports.keep(Report { size: number as u32, ..Report::of_refusal(to) }, &alloc::vec![1; *length]);
            }
            let mut last = None;
            while let Some((number, length)) = reports.take(|report, quoted| (report.size, quoted.len())) {
                prop_assert!(last < Some(number));
                prop_assert_eq!(length, lengths[number as usize].min(MOST_QUOTED));
                last = Some(number);
                kept += 1;
            }
            prop_assert!(kept <= MOST_REPORTS && (kept > 0 || lengths.is_empty()));
        }
    }

    #[test]
    fn the_bytes_of_reports_are_those_that_are_stated() {
        let is_there = |bytes: usize| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
        const LIMIT: usize = 1 << 20;
        let taken = property::with_memory(LIMIT, || {
            let reports = Reports::new().unwrap();
            let left = LIMIT - (MEMORY_OF_REPORTS - size_of::<Reports>());
            let is_exact = is_there(left) && !is_there(left + 1);
            drop(reports);
            is_exact
        });
        assert!(taken);
    }
}
