//! The advanced platform-level interrupt controller.
//!
//! Registers as in the RISC-V Advanced Interrupt Architecture, version 1.0, chapter 4. A domain of the controller turns
//! wires into interrupts in one of two ways:
//!
//! * **message mode**: each source has a hart and an identity; when it becomes active the controller stores the
//!   identity to the IMSIC of the hart. The kernel never reads the controller to find the cause.
//! * **direct mode**, on machines without IMSIC: like a PLIC, each hart claims from its own block of registers.
//!
//! A level-sensitive source in message mode sends one message when its wire rises. If the wire is still high after the
//! handler ran, no other message would follow; [`Aplic::retrigger`] makes the controller look again (section 4.9.2).

use crate::Registers;

const DOMAIN: usize = 0;
const DOMAIN_ENABLE: u32 = 1 << 8;
const DOMAIN_MESSAGES: u32 = 1 << 2;
const SOURCE_CONFIGURATION: usize = 0x0000;
const SET_PENDING_NUMBER: usize = 0x1cdc;
/// State of the wires, each inverted if its trigger is.
const INPUT: usize = 0x1d00;
const CLEAR_PENDING_NUMBER: usize = 0x1ddc;
const SET_ENABLE_NUMBER: usize = 0x1edc;
const CLEAR_ENABLE: usize = 0x1f00;
const CLEAR_ENABLE_NUMBER: usize = 0x1fdc;
const TARGET: usize = 0x3000;
const DELIVERY: usize = 0x4000;
const DELIVERY_STRIDE: usize = 32;
const DELIVERY_ENABLE: usize = 0x00;
const DELIVERY_THRESHOLD: usize = 0x08;
const DELIVERY_CLAIM: usize = 0x1c;

/// Minimum bytes of registers of a domain.
pub const LENGTH: u64 = 0x4000;

/// Condition of a source's wire that means an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The wire rises.
    RisingEdge,
    /// The wire falls.
    FallingEdge,
    /// The wire is high.
    HighLevel,
    /// The wire is low.
    LowLevel,
}

impl Trigger {
    /// Returns the trigger in the second cell of an interrupt in a device tree.
    pub const fn from_device_tree(cell: u32) -> Trigger {
        match cell {
            1 => Trigger::RisingEdge,
            2 => Trigger::FallingEdge,
            8 => Trigger::LowLevel,
            _ => Trigger::HighLevel,
        }
    }

    const fn mode(self) -> u32 {
        match self {
            Trigger::RisingEdge => 4,
            Trigger::FallingEdge => 5,
            Trigger::HighLevel => 6,
            Trigger::LowLevel => 7,
        }
    }
}

/// Form in which a domain delivers its interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// As messages to IMSICs.
    Messages,
    /// Through the registers of this controller.
    Direct,
}

/// One domain of a controller.
#[derive(Debug)]
pub struct Aplic<R> {
    registers: R,
    delivery: Delivery,
}

impl<R: Registers> Aplic<R> {
    /// Makes the driver of the domain behind these registers.
    pub const fn new(registers: R, delivery: Delivery) -> Aplic<R> {
        Aplic { registers, delivery }
    }

    /// Returns the bytes of registers of a domain in direct mode whose last hart is at this position.
    pub const fn direct_length(position: u32) -> u64 {
        (DELIVERY + (position as usize + 1) * DELIVERY_STRIDE) as u64
    }

    /// Returns the form of delivery.
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Brings the domain into a known state: `sources` sources, all off; the domain itself on.
    pub fn reset(&self, sources: u32) {
        self.registers.write32(DOMAIN, 0);
        for word in 0..=sources as usize / 32 {
            self.registers.write32(CLEAR_ENABLE + word * 4, u32::MAX);
        }
        for source in 1..=sources {
            self.registers.write32(SOURCE_CONFIGURATION + source as usize * 4, 0);
        }
        let messages = if self.delivery == Delivery::Messages { DOMAIN_MESSAGES } else { 0 };
        self.registers.write32(DOMAIN, DOMAIN_ENABLE | messages);
    }

    /// Enables delivery through the hart's own block of registers, in direct mode. `position` is the hart's place in
    /// the controller's list of harts.
    pub fn enable_delivery(&self, position: u32) {
        let block = DELIVERY + position as usize * DELIVERY_STRIDE;
        self.registers.write32(block + DELIVERY_THRESHOLD, 0);
        self.registers.write32(block + DELIVERY_ENABLE, 1);
    }

    /// Turns a source on, with its interrupts going to the hart at this position of the controller's list (or, with
    /// messages, of the IMSIC's list). `identity` is the content of the message; direct mode does not use it.
    pub fn enable(&self, source: u32, trigger: Trigger, position: u32, identity: u32) {
        self.registers.write32(SOURCE_CONFIGURATION + source as usize * 4, trigger.mode());
        self.set_target(source, position, identity);
        self.registers.write32(SET_ENABLE_NUMBER, source);
        // A wire that was high before the source was on did not rise; look at it now.
        self.retrigger(source);
    }

    /// Sends the interrupts of a source to another hart from now on.
    pub fn set_target(&self, source: u32, position: u32, identity: u32) {
        let low = match self.delivery {
            Delivery::Messages => identity,
            // The priority; 0 is not allowed.
            Delivery::Direct => 1,
        };
        self.registers.write32(TARGET + source as usize * 4, position << 18 | low);
    }

    /// Turns a source off.
    #[inline]
    pub fn disable(&self, source: u32) {
        self.registers.write32(CLEAR_ENABLE_NUMBER, source);
        self.registers.write32(SOURCE_CONFIGURATION + source as usize * 4, 0);
        self.registers.write32(CLEAR_PENDING_NUMBER, source);
    }

    /// Makes a source pending again if its wire is still active. To be called after every handler of a level-sensitive
    /// source, in message mode.
    pub fn retrigger(&self, source: u32) {
        // The controller should look at the wire itself before it makes the source pending, but QEMU before 9.0 does
        // not.
        let word = self.registers.read32(INPUT + source as usize / 32 * 4);
        if self.delivery == Delivery::Messages && word >> (source % 32) & 1 == 1 {
            self.registers.write32(SET_PENDING_NUMBER, source);
        }
    }

    /// Takes the most important interrupt that is pending for the hart at this position, in direct mode.
    #[must_use]
    pub fn claim(&self, position: u32) -> Option<u32> {
        let value = self.registers.read32(DELIVERY + position as usize * DELIVERY_STRIDE + DELIVERY_CLAIM);
        match value >> 16 & 0x3ff {
            0 => None,
            source => Some(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Block;

    #[test]
    fn messages_name_hart_and_identity() {
        let block = Block::default();
        let aplic = Aplic::new(&block, Delivery::Messages);
        aplic.reset(96);
        assert_eq!(block.word(0), 0x104);
        aplic.retrigger(10);
        assert_eq!(block.word(0x1cdc), 0);
        block.set(0x1d00, 1 << 10);
        aplic.enable(10, Trigger::HighLevel, 3, 11);
        assert_eq!(block.word(40), 6);
        assert_eq!(block.word(0x3000 + 40), 3 << 18 | 11);
        assert_eq!(block.word(0x1edc), 10);
        assert_eq!(block.word(0x1cdc), 10);
        aplic.disable(10);
        assert_eq!((block.word(40), block.word(0x1fdc)), (0, 10));
    }

    #[test]
    fn direct_mode_claims_from_the_harts_own_registers() {
        let block = Block::default();
        let aplic = Aplic::new(&block, Delivery::Direct);
        aplic.reset(96);
        assert_eq!(block.word(0), 0x100);
        aplic.enable_delivery(2);
        assert_eq!(block.word(0x4040), 1);
        aplic.enable(10, Trigger::from_device_tree(1), 2, 0);
        assert_eq!(block.word(40), 4);
        assert_eq!(block.word(0x3000 + 40), 2 << 18 | 1);
        assert_eq!(block.word(0x1cdc), 0);
        assert_eq!(aplic.claim(2), None);
        block.set(0x405c, 10 << 16 | 1);
        assert_eq!(aplic.claim(2), Some(10));
    }
}
