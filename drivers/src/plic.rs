//! The platform-level interrupt controller.
//!
//! Registers as in the RISC-V PLIC specification, version 1.0: a priority for each source, an enable bit for each pair
//! of source and *context* (a hart in one privilege mode), and for each context a threshold and the register through
//! which an interrupt is claimed and completed. A claimed source does not interrupt again until it is completed.

use crate::Registers;

const PRIORITY: usize = 0;
const ENABLE: usize = 0x2000;
const ENABLE_STRIDE: usize = 0x80;
const CONTEXT: usize = 0x20_0000;
const CONTEXT_STRIDE: usize = 0x1000;
const THRESHOLD: usize = 0;
const CLAIM: usize = 4;

/// A controller.
#[derive(Debug)]
pub struct Plic<R> {
    registers: R,
}

impl<R: Registers> Plic<R> {
    /// Makes the driver of the controller behind these registers.
    pub const fn new(registers: R) -> Plic<R> {
        Plic { registers }
    }

    /// Returns the bytes of registers of a controller whose last context is `context`.
    pub const fn length(context: u32) -> u64 {
        (CONTEXT + (context as usize + 1) * CONTEXT_STRIDE) as u64
    }

    /// Brings a context into a known state: no source enabled, all priorities let through.
    pub fn reset_context(&self, context: u32, sources: u32) {
        for word in 0..=sources as usize / 32 {
            self.registers.write32(ENABLE + context as usize * ENABLE_STRIDE + word * 4, 0);
        }
        self.registers.write32(CONTEXT + context as usize * CONTEXT_STRIDE + THRESHOLD, 0);
    }

    /// Sets the priority of a source; 0 means that it never interrupts.
    pub fn set_priority(&self, source: u32, priority: u32) {
        self.registers.write32(PRIORITY + source as usize * 4, priority);
    }

    /// Lets a source interrupt a context. Callers change enable bits one at a time: this is not one step.
    pub fn enable(&self, context: u32, source: u32) {
        self.change(context, source, |word, bit| word | bit);
    }

    /// Forbids a source to interrupt a context. Callers change enable bits one at a time.
    pub fn disable(&self, context: u32, source: u32) {
        self.change(context, source, |word, bit| word & !bit);
    }

    /// Takes the most important interrupt that is pending for a context, if there is any.
    #[must_use]
    pub fn claim(&self, context: u32) -> Option<u32> {
        match self.registers.read32(CONTEXT + context as usize * CONTEXT_STRIDE + CLAIM) {
            0 => None,
            source => Some(source),
        }
    }

    /// Completes a claimed interrupt, so that the source may interrupt again.
    pub fn complete(&self, context: u32, source: u32) {
        self.registers.write32(CONTEXT + context as usize * CONTEXT_STRIDE + CLAIM, source);
    }

    fn change(&self, context: u32, source: u32, change: impl FnOnce(u32, u32) -> u32) {
        let offset = ENABLE + context as usize * ENABLE_STRIDE + source as usize / 32 * 4;
        let word = self.registers.read32(offset);
        self.registers.write32(offset, change(word, 1 << (source % 32)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Block;

    #[test]
    fn enable_bits_stand_where_the_specification_says() {
        let block = Block::default();
        let plic = Plic::new(&block);
        plic.enable(3, 33);
        plic.enable(3, 35);
        assert_eq!(block.word(0x2000 + 3 * 0x80 + 4), 1 << 1 | 1 << 3);
        plic.disable(3, 33);
        assert_eq!(block.word(0x2000 + 3 * 0x80 + 4), 1 << 3);
        plic.set_priority(35, 2);
        assert_eq!(block.word(35 * 4), 2);
        plic.reset_context(3, 95);
        assert_eq!(block.word(0x2000 + 3 * 0x80 + 4), 0);
    }

    #[test]
    fn claims_and_completes_in_the_register_of_the_context() {
        let block = Block::default();
        let plic = Plic::new(&block);
        assert_eq!(plic.claim(2), None);
        block.set(0x20_2004, 10);
        assert_eq!(plic.claim(2), Some(10));
        block.set(0x20_2004, 0);
        plic.complete(2, 10);
        assert_eq!(block.word(0x20_2004), 10);
        assert_eq!(Plic::<&Block>::length(2), 0x20_3000);
    }
}
