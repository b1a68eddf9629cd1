//! The stack's requirements on a network device, and the adapters that hand single packets to smoltcp.

use alloc::vec::Vec;

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::Error;

/// An Ethernet device: smoltcp's device interface with two additions.
///
/// `receive` must hand out the frames in order and must not wait; a frame given to a transmit token may be
/// kept until [`flush`](Self::flush).
#[doc(alias = "net_device")]
#[doc(alias = "NIC")]
#[doc(alias = "netif")]
pub trait Link: phy::Device {
    /// Returns the device's own address.
    fn hardware_address(&self) -> [u8; 6];

    /// Starts sending everything that was handed over since the last call. Called once for each batch.
    fn flush(&mut self);

    /// Copies the next frame that has arrived to the beginning of `room`, or only its first [`BEGINNING`] bytes: then
    /// the device keeps it, until it is [taken](Self::take_kept) or [dropped](Self::drop_kept). A device does that with
    /// long frames, and has enough buffers left to receive more. `room` holds the largest frame that the device can
    /// receive.
    fn receive_into(&mut self, room: &mut [u8], now: Instant) -> Option<Received> {
        let (frame, _) = self.receive(now)?;
        Some(frame.consume(|frame| {
            let length = frame.len().min(room.len());
            room[..length].copy_from_slice(&frame[..length]);
            Received { length, kept: None }
        }))
    }

    /// Copies a frame that the device keeps to the beginning of `room`, and frees its buffer.
    fn take_kept(&mut self, _kept: u16, _room: &mut [u8]) {}

    /// Frees the buffer of a frame that the device keeps.
    fn drop_kept(&mut self, _kept: u16) {}
}

/// Number of leading bytes that suffice to find a frame's receiver, unless its headers have options: the Ethernet, IPv4
/// and TCP headers.
pub const BEGINNING: usize = 60;

/// A frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Length in bytes.
    pub length: usize,
    /// Number under which the device keeps the frame, if it does.
    pub kept: Option<u16>,
}

/// A machine without a network device: nothing arrives, nothing can be sent.
#[derive(Debug, Default)]
pub struct NoLink;

/// The tokens of a device without any.
pub enum NoToken {}

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

impl phy::Device for NoLink {
    type RxToken<'a> = NoToken;
    type TxToken<'a> = NoToken;

    fn receive(&mut self, _: Instant) -> Option<(NoToken, NoToken)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<NoToken> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

impl Link for NoLink {
    fn hardware_address(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 1]
    }

    fn flush(&mut self) {}
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

/// The means to answer a frame: the device's token, or none if it is full. The answer is then lost, as on any network.
pub(crate) struct Answer<'room, T> {
    pub(crate) token: Option<T>,
    /// Room for an answer that is lost.
    pub(crate) room: &'room mut [u8],
}

impl<T: TxToken> TxToken for Answer<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        match self.token {
            Some(token) => token.consume(length, f),
            // smoltcp keeps to the largest packet that `capabilities` states.
            None => {
                let length = length.min(self.room.len());
                f(&mut self.room[..length])
            }
        }
    }
}

/// A link that records the length of the outgoing frame, for one poll.
pub(crate) struct Outgoing<'link, L> {
    pub(crate) link: &'link mut L,
    pub(crate) length: usize,
}

pub(crate) struct Measured<'a, T> {
    token: T,
    length: &'a mut usize,
}

impl<T: TxToken> TxToken for Measured<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        *self.length = length;
        self.token.consume(length, f)
    }
}

impl<L: Link> phy::Device for Outgoing<'_, L> {
    type RxToken<'a>
        = NoToken
    where
        Self: 'a;
    type TxToken<'a>
        = Measured<'a, L::TxToken<'a>>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(NoToken, Self::TxToken<'_>)> {
        None
    }

    fn transmit(&mut self, now: Instant) -> Option<Self::TxToken<'_>> {
        Some(Measured { token: self.link.transmit(now)?, length: &mut self.length })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        // smoltcp reads this when the interface is made; a poll does not use the answer.
        DeviceCapabilities::default()
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

/// The sending side of the loopback interface.
pub(crate) struct Loopback<'frame>(pub(crate) Option<&'frame mut Frame>);

impl<'frame> phy::Device for Loopback<'frame> {
    type RxToken<'a>
        = NoToken
    where
        Self: 'a;
    type TxToken<'a>
        = &'frame mut Frame
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(NoToken, &'frame mut Frame)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<&'frame mut Frame> {
        self.0.take()
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = LOOPBACK_MTU;
        // Memory has its own protection against errors.
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }
}

/// A device of raw packets that goes nowhere: it keeps the start of the last packet that was sent, for bringing a
/// socket into a state without traffic on a wire.
pub(crate) struct Sink {
    mtu: usize,
    bytes: [u8; Sink::HEADERS],
    length: usize,
}

impl Sink {
    /// Length of the longest IPv4 and TCP headers.
    const HEADERS: usize = 60 + 60;

    pub(crate) fn new(mtu: usize) -> Self {
        Sink { mtu, bytes: [0; Sink::HEADERS], length: 0 }
    }

    /// Returns the last packet, if it consisted of headers only.
    #[cfg(test)]
    pub(crate) fn sent(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl TxToken for &mut Sink {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        // A new socket sends no data, and no options beyond these headers.
        self.length = length.min(self.bytes.len());
        f(&mut self.bytes[..self.length])
    }
}

impl phy::Device for Sink {
    type RxToken<'a> = NoToken;
    type TxToken<'a> = &'a mut Sink;

    fn receive(&mut self, _: Instant) -> Option<(NoToken, &mut Sink)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<&mut Sink> {
        Some(self)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }
}

/// Checksum work that a device takes over, for drivers that fill in [`DeviceCapabilities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumOffload {
    /// The stack computes and verifies everything.
    None,
    /// The device fills in TCP and UDP checksums of outgoing packets.
    Transmit,
    /// The device has verified TCP and UDP checksums of arriving packets.
    Receive,
    /// Both.
    Both,
}

impl ChecksumOffload {
    /// Returns the work that is left to the stack, in smoltcp's terms.
    pub fn remaining(self) -> ChecksumCapabilities {
        let transport = match self {
            ChecksumOffload::None => Checksum::Both,
            ChecksumOffload::Transmit => Checksum::Rx,
            ChecksumOffload::Receive => Checksum::Tx,
            ChecksumOffload::Both => Checksum::None,
        };
        let mut capabilities = ChecksumCapabilities::default();
        capabilities.tcp = transport;
        capabilities.udp = transport;
        capabilities
    }
}
