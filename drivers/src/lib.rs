//! Device drivers without a kernel: UARTs, PLIC, APLIC, IMSIC, UINTC, real-time clock, PCI Express.
//!
//! Each module is about one kind of device and nothing else: mapping registers, waking tasks and locking are left to
//! the owner.
//! A driver is a value over something that implements [`Registers`]; in a kernel that is a window of device memory, in
//! a user-space server a mapped page, and in the tests below a model of the device. So one driver serves both kernels
//! and runs on the developer's own computer.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod aplic;
pub mod imsic;
mod memory;
pub mod pci;
pub mod plic;
pub mod ring;
pub mod rtc;
pub mod uart;
pub mod uintc;

pub use memory::Memory;

/// The registers of a device. Offsets are bytes from the first register; accesses have exactly the stated width, happen
/// exactly once and in program order. Memory written before a register is written is visible to the device, and memory
/// read after a register is not older than the register's value: devices have queues in memory.
#[doc(alias = "MMIO")]
#[doc(alias = "ioremap")]
#[doc(alias = "readl")]
pub trait Registers {
    /// Reads an 8-bit register.
    fn read8(&self, offset: usize) -> u8;
    /// Writes an 8-bit register.
    fn write8(&self, offset: usize, value: u8);
    /// Reads a 16-bit register.
    fn read16(&self, offset: usize) -> u16;
    /// Writes a 16-bit register.
    fn write16(&self, offset: usize, value: u16);
    /// Reads a 32-bit register.
    fn read32(&self, offset: usize) -> u32;
    /// Writes a 32-bit register.
    fn write32(&self, offset: usize, value: u32);
}

#[cfg(test)]
mod tests {
    use super::Registers;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// Registers that keep the written values.
    #[derive(Default)]
    pub struct Block(RefCell<BTreeMap<usize, u32>>);

    impl Block {
        pub fn word(&self, offset: usize) -> u32 {
            self.0.borrow().get(&offset).copied().unwrap_or(0)
        }

        pub fn set(&self, offset: usize, value: u32) {
            self.0.borrow_mut().insert(offset, value);
        }
    }

    impl Registers for &Block {
        fn read8(&self, _: usize) -> u8 {
            panic!("these devices have 32-bit registers")
        }
        fn write8(&self, _: usize, _: u8) {
            panic!("these devices have 32-bit registers")
        }
        fn read16(&self, _: usize) -> u16 {
            panic!("these devices have 32-bit registers")
        }
        fn write16(&self, _: usize, _: u16) {
            panic!("these devices have 32-bit registers")
        }
        fn read32(&self, offset: usize) -> u32 {
            self.word(offset)
        }
        fn write32(&self, offset: usize, value: u32) {
            self.set(offset, value);
        }
    }
}
