//! DescriptorRings of descriptors in memory that the device reads and writes.
//!
//! A descriptor is an address and a word of flags, and with wide addresses a third word for the upper half of the
//! address and a fourth that is unused. The last one of a ring says that the first follows.
//!
//! All rings are in one piece of memory, because the device has one register for the upper halves of their addresses:
//! one to receive, one to send, and one descriptor for each direction of queues that are not used.

use core::sync::atomic::{Ordering, fence};

use drivers::Memory;

/// Number of descriptors of a ring.
pub const DESCRIPTORS: u16 = 128;
/// Bytes between two descriptors of a ring, wide ones or not.
const STRIDE: usize = 16;
/// Offsets of the rings, and their bytes in all.
pub const RECEIVE: usize = 0;
pub const TRANSMIT: usize = DESCRIPTORS as usize * STRIDE;
pub const UNUSED_RECEIVE: usize = 2 * TRANSMIT;
pub const UNUSED_TRANSMIT: usize = UNUSED_RECEIVE + STRIDE;
pub const LENGTH: usize = UNUSED_TRANSMIT + STRIDE;

/// Bits of the address of a receive descriptor.
mod received_address {
    /// The driver has it.
    pub const OURS: u32 = 1 << 0;
    pub const WRAP: u32 = 1 << 1;
}

/// Bits of the flags of a receive descriptor.
mod received {
    pub const LENGTH: u32 = 0x1fff;
    pub const START_OF_FRAME: u32 = 1 << 14;
    pub const END_OF_FRAME: u32 = 1 << 15;
}

/// Bits of the flags of a transmit descriptor.
mod transmitted {
    pub const LAST_BUFFER: u32 = 1 << 15;
    pub const WRAP: u32 = 1 << 30;
    /// The driver has it.
    pub const OURS: u32 = 1 << 31;
}

/// DescriptorForm of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorForm {
    /// Two words, addresses below 4 GiB.
    Narrow,
    /// Four words.
    Wide,
}

impl DescriptorForm {
    const fn bytes(self) -> usize {
        match self {
            DescriptorForm::Narrow => 8,
            DescriptorForm::Wide => STRIDE,
        }
    }

    /// Returns whether the device can reach memory that ends there.
    pub fn reaches(self, end: u64) -> bool {
        self == DescriptorForm::Wide || end <= 1 << 32
    }
}

/// The rings.
pub struct DescriptorRings<M> {
    memory: M,
    form: DescriptorForm,
}

fn wrap(index: u16, bit: u32) -> u32 {
    if index == DESCRIPTORS - 1 { bit } else { 0 }
}

impl<M: Memory> DescriptorRings<M> {
    /// Makes the rings in memory of at least [`LENGTH`] bytes. The device has no descriptor of a queue that is not
    /// used.
    pub fn new(memory: M, form: DescriptorForm) -> DescriptorRings<M> {
        memory.store(UNUSED_RECEIVE, received_address::OURS | received_address::WRAP);
        memory.store(UNUSED_TRANSMIT + 4, transmitted::OURS | transmitted::WRAP);
        DescriptorRings { memory, form }
    }

    /// Returns the address of the ring at this offset.
    pub fn address(&self, offset: usize) -> u64 {
        self.memory.physical_address() + offset as u64
    }

    fn at(&self, ring: usize, index: u16) -> usize {
        ring + usize::from(index) * self.form.bytes()
    }

    fn set_upper_half(&self, at: usize, address: u64) {
        if self.form == DescriptorForm::Wide {
            self.memory.store(at + 8, (address >> 32) as u32);
        }
    }

    /// Gives the device a buffer, at a multiple of four, to receive into.
    pub fn offer(&self, index: u16, buffer: u64) {
        let at = self.at(RECEIVE, index);
        self.set_upper_half(at, buffer);
        self.memory.store(at + 4, 0);
        // The device may look at any time, and must find the rest before it finds that it has the descriptor.
        fence(Ordering::Release);
        self.memory.store(at, buffer as u32 | wrap(index, received_address::WRAP));
    }

    /// Looks at a receive descriptor.
    pub fn arrived(&self, index: u16) -> DescriptorState {
        const WHOLE: u32 = received::START_OF_FRAME | received::END_OF_FRAME;
        let at = self.at(RECEIVE, index);
        if self.memory.load(at) & received_address::OURS == 0 {
            return DescriptorState::Nothing;
        }
        // The bit comes before flags and contents.
        fence(Ordering::Acquire);
        match self.memory.load(at + 4) {
            flags if flags & WHOLE == WHOLE => DescriptorState::Frame((flags & received::LENGTH) as usize),
            _ => DescriptorState::Nonsense,
        }
    }

    /// Sets the address of a transmit descriptor's buffer, and keeps the descriptor.
    pub fn describe(&self, index: u16, buffer: u64) {
        let at = self.at(TRANSMIT, index);
        self.set_upper_half(at, buffer);
        self.memory.store(at, buffer as u32);
        self.keep(index);
    }

    /// Takes a transmit descriptor away from the device, which does not transmit.
    pub fn keep(&self, index: u16) {
        let at = self.at(TRANSMIT, index);
        self.memory.store(at + 4, transmitted::OURS | wrap(index, transmitted::WRAP));
    }

    /// Gives the device so many bytes of a transmit descriptor's buffer to send.
    pub fn send(&self, index: u16, length: usize) {
        let at = self.at(TRANSMIT, index);
        // The device may look at any time, and must find the contents.
        fence(Ordering::Release);
        self.memory.store(at + 4, length as u32 | transmitted::LAST_BUFFER | wrap(index, transmitted::WRAP));
    }

    /// Returns whether the device has given a transmit descriptor back.
    pub fn is_sent(&self, index: u16) -> bool {
        let is_sent = self.memory.load(self.at(TRANSMIT, index) + 4) & transmitted::OURS != 0;
        fence(Ordering::Acquire);
        is_sent
    }
}

/// A look at a receive descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorState {
    /// The device still has it.
    Nothing,
    /// It has a whole frame of this alleged length.
    Frame(usize),
    /// It came back without a whole frame.
    Nonsense,
}
