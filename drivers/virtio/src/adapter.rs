//! The network device as a link, to a stack of any kind.

use drivers::Registers;
use ethernet::{BEGINNING, ChecksumOffload, Link, ReceivedFrame};

use crate::Memory;
use crate::network_device::{Network, Offload};

/// The permission to send a frame: a single pointer, because a stack moves it about.
pub struct Departing<'a, R: Registers, M: Memory>(&'a mut Network<R, M>);

impl<R: Registers, M: Memory> ethernet::Departing for Departing<'_, R, M> {
    fn send<T>(self, length: usize, write: impl FnOnce(&mut [u8]) -> T) -> T {
        self.0.send(length, write)
    }
}

impl<R: Registers, M: Memory> Link for Network<R, M> {
    type Departing<'a>
        = Departing<'a, R, M>
    where
        Self: 'a;

    fn hardware_address(&self) -> [u8; 6] {
        self.address()
    }

    fn checksum_offload(&self) -> ChecksumOffload {
        match self.offload() {
            Offload::Device => ChecksumOffload::Transmit,
            Offload::Stack => ChecksumOffload::None,
        }
    }

    fn depart(&mut self) -> Option<Departing<'_, R, M>> {
        if !self.can_send() {
            // The device may not have been told yet of frames to send.
            self.notify();
            return None;
        }
        Some(Departing(self))
    }

    fn flush(&mut self) {
        self.notify();
    }

    fn receive_into(&mut self, room: &mut [u8]) -> Option<ReceivedFrame> {
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
