//! The network device in the form that the stack requires. Only this module uses the stack's traits.

use drivers::Registers;
use network::phy::{Device, DeviceCapabilities, Medium, TxToken};
use network::time::Instant;
use network::{BEGINNING, ChecksumOffload, Link, NoLink, ReceivedFrame};

use crate::Memory;
use crate::network_device::{LARGEST_FRAME, Network, Offload, Sender};

/// The permission to send a frame.
pub struct Departing<'a, M: Memory>(Sender<'a, M>);

impl<M: Memory> TxToken for Departing<'_, M> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        self.0.send(length, f)
    }
}

impl<R: Registers, M: Memory> Device for Network<R, M> {
    type RxToken<'a>
        = <NoLink as Device>::RxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Departing<'a, M>
    where
        Self: 'a;

    /// Returns `None`: frames arrive by [`Link::receive_into`] alone, which copies them to the stack's buffer.
    fn receive(&mut self, _: Instant) -> Option<(Self::RxToken<'_>, Departing<'_, M>)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Departing<'_, M>> {
        if !self.can_send() {
            // The device may not have been told yet of frames to send.
            self.notify();
            return None;
        }
        Some(Departing(self.sender()))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = LARGEST_FRAME;
        capabilities.checksum = match self.offload() {
            Offload::Device => ChecksumOffload::Transmit.remaining(),
            Offload::Stack => ChecksumOffload::None.remaining(),
        };
        capabilities
    }
}

impl<R: Registers, M: Memory> Link for Network<R, M> {
    fn hardware_address(&self) -> [u8; 6] {
        self.address()
    }

    fn flush(&mut self) {
        self.notify();
    }

    fn receive_into(&mut self, room: &mut [u8], _: Instant) -> Option<ReceivedFrame> {
        self.next_frame_into(room, BEGINNING)
    }

    fn take_kept(&mut self, kept: u16, room: &mut [u8]) {
        self.read_frame(kept, room);
        self.drop_kept(kept);
    }

    fn drop_kept(&mut self, kept: u16) {
        self.give_back(kept);
    }
}
