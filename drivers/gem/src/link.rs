//! The controller as a link, to a stack of any kind.

use drivers::{Memory, Registers};
use ethernet::{BEGINNING, Link, ReceivedFrame};

use crate::controller::Gem;

/// The permission to send a frame.
pub struct DepartingFrame<'a, R: Registers, M: Memory>(&'a mut Gem<R, M>);

impl<R: Registers, M: Memory> ethernet::Departing for DepartingFrame<'_, R, M> {
    fn send<T>(self, length: usize, write: impl FnOnce(&mut [u8]) -> T) -> T {
        self.0.send(length, write)
    }
}

impl<R: Registers, M: Memory> Link for Gem<R, M> {
    type Departing<'a>
        = DepartingFrame<'a, R, M>
    where
        Self: 'a;

    fn hardware_address(&self) -> [u8; 6] {
        self.address()
    }

    fn depart(&mut self) -> Option<DepartingFrame<'_, R, M>> {
        if !self.can_send() {
            // The device may not have been told yet of frames to send.
            self.flush_frames();
            return None;
        }
        Some(DepartingFrame(self))
    }

    fn drop_kept(&mut self, kept: u16) {
        self.give_back(kept);
    }

    fn take_kept(&mut self, kept: u16, room: &mut [u8]) {
        self.read_frame(kept, room);
        self.drop_kept(kept);
    }

    fn receive_into(&mut self, room: &mut [u8]) -> Option<ReceivedFrame> {
        self.next_frame_into(room, BEGINNING)
    }

    fn flush(&mut self) {
        self.flush_frames();
    }
}
