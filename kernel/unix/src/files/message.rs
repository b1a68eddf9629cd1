//! Messages of sockets, as the calls that move them see them: to whom one goes, from whom one came, and what is told of
//! it beside its bytes.

use alloc::sync::Arc;
use core::any::Any;
use core::net::SocketAddr;

use abi_unix::types::{bytes_of_address, message, netlink_address, socket_option as option};

use crate::files::local_name::{self, LONGEST_LOCAL_ADDRESS, LocalName};
use crate::process::user::{UserBuffer, length_of};

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
}

/// Level and kind of a control message (`struct cmsghdr`).
pub(crate) type ControlKind = (u32, u32);

/// Bytes of the longest data of a control message without files.
pub(crate) const LONGEST_DETAIL: usize = 12;

/// Details of a message, told in control messages to receivers that ask for them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct MessageDetails {
    /// The process that has sent it (`SO_PASSCRED`).
    process: Option<u32>,
    /// The hop limit with which it has come (`IP_RECVTTL`).
    hop_limit: Option<u8>,
}

impl MessageDetails {
    /// Returns those of a message from a process, if that is to be told.
    pub(crate) fn of_process(process: Option<u32>) -> MessageDetails {
        MessageDetails { process, hop_limit: None }
    }

    /// Returns those of a message that came with this hop limit, if that is to be told.
    pub(crate) fn of_hop_limit(hop_limit: Option<u8>) -> MessageDetails {
        MessageDetails { process: None, hop_limit }
    }

    /// Gives each control message to `tell`, as its kind and its data. The sender says which family a message is of.
    pub(crate) fn tell(&self, sender: &MessageSender, mut tell: impl FnMut(ControlKind, &[u8])) {
        if let Some(process) = self.process {
            // User and group are 0.
            let words = [process, 0, 0].map(u32::to_le_bytes);
            tell((option::SOL_SOCKET, message::SCM_CREDENTIALS), words.as_flattened());
        }
        if let Some(hop_limit) = self.hop_limit {
            let kind = match sender {
                MessageSender::Network(SocketAddr::V6(_)) => (option::IPPROTO_IPV6, option::IPV6_HOPLIMIT),
                _ => (option::IPPROTO_IP, option::IP_TTL),
            };
            tell(kind, &u32::from(hop_limit).to_le_bytes());
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
        let process = MessageDetails::of_process(Some(7));
        assert_eq!(told(process, &MessageSender::Unnamed), [((1, 2), vec![7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])]);
        let hops = MessageDetails::of_hop_limit(Some(64));
        assert_eq!(told(hops, &four), [((0, 2), vec![64, 0, 0, 0])]);
        assert_eq!(told(hops, &six), [((41, 52), vec![64, 0, 0, 0])]);
    }
}
