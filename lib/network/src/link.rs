//! The adapters between an Ethernet device and smoltcp, to which the stack hands single packets.

use alloc::vec::Vec;

use ethernet::{ChecksumOffload, Departing, ETHERNET_HEADER, Link};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::Error;
use crate::checksum;

/// The permission to send a frame, as smoltcp takes it.
pub(crate) struct Token<D>(pub(crate) D);

impl<D: Departing> TxToken for Token<D> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        self.0.send(length, f)
    }
}

/// Whether the stack fills in the checksums of TCP segments that leave by a link.
pub(crate) fn is_summed_here(link: &impl Link) -> bool {
    matches!(link.checksum_offload(), ChecksumOffload::None | ChecksumOffload::Receive)
}

/// Returns a link's permission to send a frame with a segment.
pub(crate) fn depart<L: Link>(link: &mut L) -> Option<Summed<L::Departing<'_>>> {
    let is_summed_here = is_summed_here(link);
    Some(Summed { permit: link.depart()?, is_summed_here })
}

/// The permission to send a frame with a segment, whose checksum is filled in.
pub(crate) struct Summed<D> {
    permit: D,
    is_summed_here: bool,
}

impl<D: Departing> TxToken for Summed<D> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let Summed { permit, is_summed_here } = self;
        permit.send(length, |frame| {
            let result = f(frame);
            if is_summed_here {
                checksum::complete(frame);
            }
            result
        })
    }
}

/// The tokens of a device without any.
pub(crate) enum NoToken {}

impl RxToken for NoToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, _: F) -> R {
        match self {}
    }
}

impl TxToken for NoToken {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, _: usize, _: F) -> R {
        match self {}
    }
}

/// Describes a link in smoltcp's terms.
pub(crate) fn capabilities(link: &impl Link) -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ethernet;
    capabilities.max_transmission_unit = link.largest_frame();
    let transport = match link.checksum_offload() {
        ChecksumOffload::None => Checksum::Both,
        ChecksumOffload::Transmit => Checksum::Rx,
        ChecksumOffload::Receive => Checksum::Tx,
        ChecksumOffload::Both => Checksum::None,
    };
    capabilities.checksum.tcp = transport;
    capabilities.checksum.udp = transport;
    capabilities
}

/// Describes a link for packets of IPv6, of this size at most, without their Ethernet headers.
pub(crate) fn capabilities_of_six(ethernet: &DeviceCapabilities, mtu: usize) -> DeviceCapabilities {
    let mut capabilities = ethernet.clone();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = mtu;
    capabilities
}

/// A device with these capabilities and without frames, with which an interface is made.
pub(crate) struct Described(pub(crate) DeviceCapabilities);

impl phy::Device for Described {
    type RxToken<'a> = NoToken;
    type TxToken<'a> = NoToken;

    fn receive(&mut self, _: Instant) -> Option<(NoToken, NoToken)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<NoToken> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.0.clone()
    }
}

/// One packet that has arrived, with the way to answer it, as a device that smoltcp can poll once.
///
/// The stack looks at a packet to find its connection *before* smoltcp sees it; this type hands the same packet on
/// without a copy.
pub(crate) struct Arrived<'frame, T> {
    pub(crate) frame: Option<&'frame [u8]>,
    pub(crate) answer: Option<T>,
}

pub(crate) struct Borrowed<'frame>(&'frame [u8]);

impl RxToken for Borrowed<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl<'frame, T: TxToken> phy::Device for Arrived<'frame, T> {
    type RxToken<'a>
        = Borrowed<'frame>
    where
        Self: 'a;
    type TxToken<'a>
        = T
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Borrowed<'frame>, T)> {
        Some((Borrowed(self.frame.take()?), self.answer.take()?))
    }

    fn transmit(&mut self, _: Instant) -> Option<T> {
        self.answer.take()
    }

    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities::default()
    }
}

/// The means to answer a frame. If the device is full then, the answer is lost, as on any network.
pub(crate) struct Answer<'a, L> {
    pub(crate) link: &'a mut L,
    /// Room for an answer that is lost.
    pub(crate) room: &'a mut [u8],
}

impl<L: Link> TxToken for Answer<'_, L> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        match depart(self.link) {
            Some(permit) => permit.consume(length, f),
            // smoltcp keeps to the largest packet that `capabilities` states.
            None => {
                let length = length.min(self.room.len());
                f(&mut self.room[..length])
            }
        }
    }
}

/// A link on which only frames leave, for one poll.
pub(crate) struct Outgoing<'link, L>(pub(crate) &'link mut L);

impl<L: Link> phy::Device for Outgoing<'_, L> {
    type RxToken<'a>
        = NoToken
    where
        Self: 'a;
    type TxToken<'a>
        = Token<L::Departing<'a>>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(NoToken, Self::TxToken<'_>)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Self::TxToken<'_>> {
        self.0.depart().map(Token)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        // smoltcp reads this when the interface is made; a poll does not use the answer.
        DeviceCapabilities::default()
    }
}

/// The Ethernet header of a packet of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope([u8; ETHERNET_HEADER]);

impl Envelope {
    /// Makes the header of a frame from this device to that one.
    pub(crate) fn new(from: [u8; 6], to: [u8; 6]) -> Envelope {
        let mut bytes = [0; ETHERNET_HEADER];
        bytes[12..].copy_from_slice(&[0x86, 0xdd]);
        bytes[..6].copy_from_slice(&to);
        bytes[6..12].copy_from_slice(&from);
        Envelope(bytes)
    }

    /// Splits a frame, and returns the header of its answer.
    pub(crate) fn open(frame: &[u8]) -> Option<(Envelope, &[u8])> {
        let (header, packet) = frame.split_first_chunk::<ETHERNET_HEADER>()?;
        let [to, from] = [header.first_chunk()?, header[6..].first_chunk()?];
        Some((Envelope::new(*to, *from), packet))
    }
}

/// The permission to send a packet of IPv6, which is put behind this header.
pub(crate) struct Enveloped<T> {
    pub(crate) token: T,
    pub(crate) envelope: Envelope,
}

impl<T: TxToken> TxToken for Enveloped<T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let Envelope(header) = self.envelope;
        self.token.consume(ETHERNET_HEADER + length, |bytes| {
            let (head, packet) = bytes.split_at_mut(ETHERNET_HEADER);
            head.copy_from_slice(&header);
            f(packet)
        })
    }
}

/// Largest packet on the loopback interface: the largest that IPv4 allows, as on other systems.
pub(crate) const LOOPBACK_MTU: usize = 65_535;

/// Room for one packet on its way through the loopback interface.
///
/// There is no queue: a packet is handed to its receiver as soon as it is written, and the receiver's immediate
/// answer, if any, is written into a second frame while the first is still being read.
pub(crate) struct Frame {
    bytes: Vec<u8>,
    length: usize,
}

impl Frame {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Frame { bytes: crate::tcp::zeroed(0, LOOPBACK_MTU)?, length: 0 })
    }

    /// Returns the packet, if there is one.
    pub(crate) fn packet(&self) -> Option<&[u8]> {
        if self.length == 0 { None } else { self.bytes.get(..self.length) }
    }

    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }
}

impl TxToken for &mut Frame {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        // smoltcp keeps to the largest packet that `capabilities` states.
        self.length = length.min(self.bytes.len());
        f(&mut self.bytes[..self.length])
    }
}
