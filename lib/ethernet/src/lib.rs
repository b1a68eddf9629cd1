//! Frames of an Ethernet device: the interface between a driver and a protocol stack.
//!
//! A driver implements [`Link`] and knows no protocol; a stack uses a `Link` and knows no device. Neither depends on
//! the other, so that a driver is built without a stack, for a program that only passes frames on, and a stack runs
//! over a fake wire. Nothing here waits: a device that has no frame, or no room for one, says so, and its interrupt
//! tells when to look again.
//!
//! The interface is not smoltcp's `Device`, which hands out a frame that arrives together with the permission to answer
//! it, from buffers of the device. A frame is *copied* here, into room of the stack: memory that a device can write is
//! never borrowed, and its buffer is free again at once.
#![no_std]
#![forbid(unsafe_code)]

/// Bytes of a frame's header: two hardware addresses and the type.
pub const ETHERNET_HEADER: usize = 14;

/// The largest Ethernet frame without its check sequence.
pub const LARGEST_FRAME: usize = 1514;

/// Number of leading bytes that suffice to find a frame's receiver, unless its headers have options: the Ethernet, IPv4
/// or IPv6, and TCP headers, as far as the flags.
pub const BEGINNING: usize = 76;

/// An Ethernet device.
///
/// It hands out arrived frames in their order. A frame that was written may be kept until [`flush`](Self::flush).
#[doc(alias = "net_device")]
#[doc(alias = "NIC")]
#[doc(alias = "netif")]
#[doc(alias = "Driver")]
pub trait Link {
    /// The permission to send a frame.
    type Departing<'a>: Departing
    where
        Self: 'a;

    /// Returns the device's own address.
    fn hardware_address(&self) -> [u8; 6];

    /// Returns the size of the largest frame that it sends and receives.
    fn largest_frame(&self) -> usize {
        LARGEST_FRAME
    }

    /// Returns the checksums that the device computes or verifies.
    fn checksum_offload(&self) -> ChecksumOffload {
        ChecksumOffload::None
    }

    /// Returns the permission to send a frame; `None` if the device has no room for one.
    fn depart(&mut self) -> Option<Self::Departing<'_>>;

    /// Starts sending everything that was written since the last call. Called once for each batch.
    fn flush(&mut self);

    /// Copies the next frame that has arrived to the beginning of `room`, or only its first [`BEGINNING`] bytes: then
    /// the device keeps it, until it is [taken](Self::take_kept) or [dropped](Self::drop_kept). A device does that with
    /// long frames, and has enough buffers left to receive more. `room` holds the largest frame that the device can
    /// receive.
    fn receive_into(&mut self, room: &mut [u8]) -> Option<ReceivedFrame>;

    /// Copies a frame that the device keeps to the beginning of `room`, and frees its buffer.
    fn take_kept(&mut self, _kept: u16, _room: &mut [u8]) {}

    /// Frees the buffer of a frame that the device keeps.
    fn drop_kept(&mut self, _kept: u16) {}
}

/// The permission to send a frame.
pub trait Departing {
    /// Sends a frame of `length` bytes that `write` fills in.
    fn send<R>(self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R;
}

/// A frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// Length in bytes.
    pub length: usize,
    /// Number under which the device keeps the frame, if it does.
    pub kept: Option<u16>,
}

/// Checksum work that a device takes over.
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

/// A machine without a network device: nothing arrives, nothing can be sent.
#[derive(Debug, Default)]
pub struct NoLink;

/// The permission of a device that never gives it.
#[derive(Debug)]
pub enum NoDeparting {}

impl Departing for NoDeparting {
    fn send<R>(self, _: usize, _: impl FnOnce(&mut [u8]) -> R) -> R {
        match self {}
    }
}

impl Link for NoLink {
    type Departing<'a> = NoDeparting;

    fn hardware_address(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 1]
    }

    fn depart(&mut self) -> Option<NoDeparting> {
        None
    }

    fn flush(&mut self) {}

    fn receive_into(&mut self, _: &mut [u8]) -> Option<ReceivedFrame> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_device_no_frame_comes_and_none_goes() {
        let mut room = [7; 64];
        assert!(NoLink.depart().is_none());
        assert_eq!(NoLink.receive_into(&mut room), None);
        NoLink.take_kept(0, &mut room);
        NoLink.drop_kept(0);
        NoLink.flush();
        assert_eq!(room, [7; 64]);
        assert_eq!(NoLink.largest_frame(), LARGEST_FRAME);
        assert_eq!(NoLink.hardware_address()[0] & 3, 2, "no group's address, and given out by no manufacturer");
    }
}
