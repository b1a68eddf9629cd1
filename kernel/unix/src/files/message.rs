//! Messages of sockets, as the calls that move them see them: to whom one goes, from whom one came, and what is told of
//! it beside its bytes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::net::{IpAddr, SocketAddr};

use abi_unix::Errno;
use abi_unix::types::{LinkAddress, TimeSpec, bytes_of_address, message, netlink_address, socket_option as option};

use crate::files::local_name::{self, LONGEST_LOCAL_ADDRESS, LocalName};
use crate::process::user::{Caller, Credentials, UserBuffer, length_of};
use crate::time;

/// The sender of a message, or the peer of a connection, as its receiver is told of it.
#[derive(Default)]
pub(crate) enum MessageSender {
    /// It has no name, or is not told.
    #[default]
    Unnamed,
    /// The kernel, which answers a netlink socket.
    Kernel,
    /// An end in the network.
    Network(SocketAddr),
    /// A local socket.
    Local(Arc<LocalName>),
    /// A device in the network.
    Link(LinkAddress),
}

/// Room for the address of any sender.
pub(crate) type AddressRoom = [u8; LONGEST_LOCAL_ADDRESS];

impl MessageSender {
    /// Writes its address to a buffer; returns the bytes, none for one without a name.
    pub(crate) fn write_to<'a>(&self, room: &'a mut AddressRoom) -> &'a [u8] {
        let length = match self {
            MessageSender::Unnamed => 0,
            MessageSender::Kernel => {
                let bytes = netlink_address(0);
                room[..bytes.len()].copy_from_slice(&bytes);
                bytes.len()
            }
            MessageSender::Network(end) => {
                let (bytes, length) = bytes_of_address(*end);
                room[..length].copy_from_slice(&bytes[..length]);
                length
            }
            MessageSender::Link(link) => {
                room[..LinkAddress::SIZE].copy_from_slice(&link.to_bytes());
                LinkAddress::SIZE
            }
            MessageSender::Local(name) => local_name::write_address(Some(name), room),
        };
        &room[..length]
    }
}

/// The receiver of a message.
#[derive(Default)]
pub(crate) enum Recipient {
    /// The socket's peer.
    #[default]
    Peer,
    /// An end in the network.
    Network(SocketAddr),
    /// A local socket that was found by its name: its kind knows it.
    Local(Arc<dyn Any + Send + Sync>),
}

impl Recipient {
    /// Returns the end in the network.
    pub(crate) fn end(&self) -> Option<SocketAddr> {
        match self {
            Recipient::Network(end) => Some(*end),
            Recipient::Peer | Recipient::Local(_) => None,
        }
    }
}

/// The place for a message that is received, and the flags of the call.
#[derive(Clone, Copy)]
pub(crate) struct MessageSpace<'a> {
    buffers: &'a [UserBuffer],
    /// Bytes of a stream that are in the buffers already.
    done: usize,
    flags: u32,
}

impl<'a> MessageSpace<'a> {
    /// Makes the place of these buffers from `done` bytes on.
    pub(crate) fn new(buffers: &'a [UserBuffer], done: usize, flags: u32) -> MessageSpace<'a> {
        MessageSpace { buffers, done, flags }
    }

    /// Returns all buffers.
    pub(crate) fn buffers(&self) -> &'a [UserBuffer] {
        self.buffers
    }

    /// Returns the number of bytes in the buffers that the call has filled before.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Returns the number of bytes for which there is room.
    pub(crate) fn left(&self) -> usize {
        length_of(self.buffers).saturating_sub(self.done)
    }

    /// Returns the flags of the call.
    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    /// Returns whether the message stays (`MSG_PEEK`).
    pub(crate) fn is_look(&self) -> bool {
        self.flags & message::PEEK != 0
    }

    /// Copies a message to the buffers, as far as there is room; returns the number of bytes. `EFAULT`.
    #[inline]
    pub(crate) fn copy_out(&self, memory: &dyn Caller, message: &[u8]) -> Result<usize, Errno> {
        let mut count = 0;
        for buffer in self.buffers {
            let part = (message.len() - count).min(buffer.len());
            memory.copy_out(buffer.address(), &message[count..count + part])?;
            count += part;
        }
        Ok(count)
    }
}

/// Level and kind of a control message (`struct cmsghdr`).
pub(crate) type ControlKind = (u32, u32);

/// Bytes of the longest data of a control message without files.
pub(crate) const LONGEST_DETAIL: usize = REPORT + 28;
/// Bytes of a report, before the address of the host that reports.
const REPORT: usize = 16;

/// The time at which a message has come, in nanoseconds since 1970, and the kind of its control message: an option's
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// The time.
    pub at_ns: u64,
    /// The kind.
    pub kind: u32,
}

/// The hop limit with which a message has come, and the kind of its control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HopLimit {
    /// The number.
    pub value: u8,
    /// The kind.
    pub kind: u32,
}

impl Arrival {
    /// Returns whether this option of sockets has such times told, and is their kind.
    pub(crate) fn is_kind(name: u32) -> bool {
        use option::{SO_TIMESTAMP, SO_TIMESTAMP_NEW, SO_TIMESTAMPNS, SO_TIMESTAMPNS_NEW};
        matches!(name, SO_TIMESTAMP | SO_TIMESTAMP_NEW | SO_TIMESTAMPNS | SO_TIMESTAMPNS_NEW)
    }

    /// Makes the time of a message. One that came before its time was asked for, at 0, has the present time, as on
    /// Linux.
    pub(crate) fn new(kind: u32, at_ns: u64) -> Arrival {
        Arrival { at_ns: if at_ns == 0 { time::real_time_ns() } else { at_ns }, kind }
    }

    fn bytes(self) -> [u8; 16] {
        let time = TimeSpec::from_ns(self.at_ns);
        match self.kind {
            option::SO_TIMESTAMPNS | option::SO_TIMESTAMPNS_NEW => time.to_bytes(),
            _ => TimeSpec { nanoseconds: time.nanoseconds / 1000, ..time }.to_bytes(),
        }
    }
}

/// A report about a message that did not arrive, told in its place.
#[doc(alias = "sock_extended_err")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LossReport {
    /// Number of the error.
    pub error: u32,
    /// Origin: this host, ICMP or ICMPv6.
    pub origin: u32,
    /// Kind and code of the network's message.
    pub kind: u8,
    /// See [`kind`](Self::kind).
    pub code: u8,
    /// The size of packets, if this one was too large.
    pub information: u32,
    /// The host that reports.
    pub offender: Option<IpAddr>,
}

impl LossReport {
    /// Returns the bytes, with the address of the host that reports in this family.
    fn bytes(&self, is_six: bool) -> ([u8; LONGEST_DETAIL], usize) {
        let mut bytes = [0; LONGEST_DETAIL];
        bytes[..4].copy_from_slice(&self.error.to_le_bytes());
        (bytes[4], bytes[5], bytes[6]) = (self.origin as u8, self.kind, self.code);
        bytes[8..12].copy_from_slice(&self.information.to_le_bytes());
        if let Some(offender) = self.offender {
            let (address, length) = bytes_of_address(SocketAddr::new(offender, 0));
            bytes[REPORT..REPORT + length].copy_from_slice(&address[..length]);
        }
        (bytes, REPORT + if is_six { 28 } else { 16 })
    }
}

/// Details of a message, told in control messages to receivers that ask for them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct MessageDetails {
    /// The process that has sent it (`SO_PASSCRED`).
    process: Option<Credentials>,
    /// The time at which it has come (`SO_TIMESTAMP`).
    arrival: Option<Arrival>,
    /// The hop limit with which it has come (`IP_RECVTTL`).
    hop_limit: Option<HopLimit>,
    /// The report that it is (`MSG_ERRQUEUE`). Boxed, because it is rare and larger than all others.
    report: Option<Box<LossReport>>,
}

impl MessageDetails {
    /// Returns those of a message from a process, if that is to be told.
    pub(crate) fn of_process(process: Option<Credentials>) -> MessageDetails {
        MessageDetails { process, ..MessageDetails::default() }
    }

    /// Returns those of a message that came at this time with this hop limit, as far as these are to be told.
    pub(crate) fn of_packet(arrival: Option<Arrival>, hop_limit: Option<HopLimit>) -> MessageDetails {
        MessageDetails { arrival, hop_limit, ..MessageDetails::default() }
    }

    /// Makes them those of a report.
    pub(crate) fn with_report(self, report: LossReport) -> MessageDetails {
        MessageDetails { report: Some(Box::new(report)), ..self }
    }

    /// Returns whether the message is a report.
    pub(crate) fn is_report(&self) -> bool {
        self.report.is_some()
    }

    /// Gives each control message to `tell`, as its kind and its data. The sender says which family a message is of.
    pub(crate) fn tell(&self, sender: &MessageSender, mut tell: impl FnMut(ControlKind, &[u8])) {
        if let Some(process) = self.process {
            tell((option::SOL_SOCKET, message::SCM_CREDENTIALS), &process.to_bytes());
        }
        if let Some(arrival) = self.arrival {
            tell((option::SOL_SOCKET, arrival.kind), &arrival.bytes());
        }
        let is_six = matches!(sender, MessageSender::Network(SocketAddr::V6(_)));
        if let Some(hop_limit) = self.hop_limit {
            let level = if is_six { option::IPPROTO_IPV6 } else { option::IPPROTO_IP };
            tell((level, hop_limit.kind), &u32::from(hop_limit.value).to_le_bytes());
        }
        if let Some(report) = &self.report {
            let kind = match is_six {
                true => (option::IPPROTO_IPV6, option::IPV6_RECVERR),
                false => (option::IPPROTO_IP, option::IP_RECVERR),
            };
            let (bytes, length) = report.bytes(is_six);
            tell(kind, &bytes[..length]);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use abi_unix::types;

    use super::*;
    use crate::process::accounts::Account;

    #[test]
    fn senders_have_the_addresses_of_their_families() {
        let mut room = [0xff; LONGEST_LOCAL_ADDRESS];
        assert_eq!(MessageSender::Unnamed.write_to(&mut room), []);
        let kernel = MessageSender::Kernel.write_to(&mut room);
        assert_eq!((kernel.len(), kernel[0]), (12, types::AF_NETLINK as u8));
        let four = MessageSender::Network(SocketAddr::new(Ipv4Addr::new(10, 0, 2, 2).into(), 0x1234));
        assert_eq!(four.write_to(&mut room)[..8], [2, 0, 0x12, 0x34, 10, 0, 2, 2]);
        let six = MessageSender::Network(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 1));
        assert_eq!(six.write_to(&mut room).len(), 28);
        let name = LocalName::new(&Account::of_the_first(), b"/a").unwrap();
        assert_eq!(MessageSender::Local(name).write_to(&mut room), b"\x01\0/a\0");
    }

    #[test]
    fn details_are_told_in_the_words_of_the_family() {
        let told = |details: MessageDetails, sender: &MessageSender| {
            let mut all = alloc::vec::Vec::new();
            details.tell(sender, |kind, data| {
                assert!(data.len() <= LONGEST_DETAIL);
                all.push((kind, data.to_vec()));
            });
            all
        };
        let network = |address: core::net::IpAddr| MessageSender::Network(SocketAddr::new(address, 0));
        let (four, six) = (network(Ipv4Addr::LOCALHOST.into()), network(Ipv6Addr::LOCALHOST.into()));
        assert_eq!(told(MessageDetails::default(), &four), []);
        let process = MessageDetails::of_process(Some(Credentials { process: 7, user: 8, group: 9 }));
        assert_eq!(told(process, &MessageSender::Unnamed), [((1, 2), vec![7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0])]);
        let hops = |kind| MessageDetails::of_packet(None, Some(HopLimit { value: 64, kind }));
        assert_eq!(told(hops(option::IP_TTL), &four), [((0, 2), vec![64, 0, 0, 0])]);
        assert_eq!(told(hops(option::IPV6_HOPLIMIT), &six), [((41, 52), vec![64, 0, 0, 0])]);
        let at_ns = 5_000_000_000 + 123_456_789;
        for (kind, fraction) in [(29, 123_456u64), (63, 123_456), (35, 123_456_789), (64, 123_456_789)] {
            let bytes = [5u64, fraction].map(u64::to_le_bytes).concat();
            let arrival = MessageDetails::of_packet(Some(Arrival { at_ns, kind }), None);
            assert_eq!(told(arrival, &four), [((1, kind), bytes)]);
        }
        let offender = Some(Ipv4Addr::new(10, 0, 2, 2).into());
        let report = LossReport { error: 113, origin: 2, kind: 11, code: 0, information: 0, offender };
        let bytes =
            [113, 0, 0, 0, 2, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 10, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        let lost = MessageDetails::default().with_report(report);
        assert!(lost.is_report());
        assert_eq!(told(lost, &four), [((0, 11), bytes.to_vec())]);
        let of_here = LossReport { error: 90, origin: 1, kind: 0, code: 0, information: 1500, offender: None };
        let told = told(MessageDetails::default().with_report(of_here), &six);
        assert_eq!((told[0].0, told[0].1.len(), told[0].1[8]), ((41, 25), 44, (1500 % 256) as u8));
    }
}
