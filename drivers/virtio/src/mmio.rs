//! A block of registers in memory (virtio 1.2 sections 4.2.2 and 4.2.4).

use drivers::Registers;

use crate::Error;
use crate::transport::{Interrupt, Kind, PAGE, Place, QueueAddresses};

const MAGIC: u32 = u32::from_le_bytes(*b"virt");

mod register {
    pub const MAGIC: usize = 0x000;
    pub const VERSION: usize = 0x004;
    pub const DEVICE: usize = 0x008;
    pub const DEVICE_FEATURES: usize = 0x010;
    pub const DEVICE_FEATURES_SELECT: usize = 0x014;
    pub const DRIVER_FEATURES: usize = 0x020;
    pub const DRIVER_FEATURES_SELECT: usize = 0x024;
    pub const LEGACY_PAGE_SIZE: usize = 0x028;
    pub const QUEUE_SELECT: usize = 0x030;
    pub const QUEUE_MAXIMUM: usize = 0x034;
    pub const QUEUE_SIZE: usize = 0x038;
    pub const LEGACY_QUEUE_ALIGN: usize = 0x03c;
    pub const LEGACY_QUEUE_PAGE: usize = 0x040;
    pub const QUEUE_READY: usize = 0x044;
    pub const QUEUE_NOTIFY: usize = 0x050;
    pub const INTERRUPT_STATUS: usize = 0x060;
    pub const INTERRUPT_ACKNOWLEDGE: usize = 0x064;
    pub const STATUS: usize = 0x070;
    pub const QUEUE_DESCRIPTORS: usize = 0x080;
    pub const QUEUE_DRIVER: usize = 0x090;
    pub const QUEUE_DEVICE: usize = 0x0a0;
    pub const CONFIGURATION: usize = 0x100;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Legacy,
    Modern,
}

pub(crate) struct Mmio<R: Registers> {
    registers: R,
    version: Version,
}

/// Acknowledges an interrupt; returns its cause.
pub(crate) fn acknowledge<R: Registers>(registers: &R) -> Interrupt {
    let status = registers.read32(register::INTERRUPT_STATUS);
    if status != 0 {
        registers.write32(register::INTERRUPT_ACKNOWLEDGE, status);
    }
    Interrupt::of(status)
}

impl<R: Registers> Mmio<R> {
    /// Identifies the device; see [`Transport::probe`](crate::Transport::probe).
    pub(crate) fn probe(registers: R) -> Result<(Self, Kind), Error> {
        if registers.read32(register::MAGIC) != MAGIC {
            return Err(Error::Absent);
        }
        let version = match registers.read32(register::VERSION) {
            1 => Version::Legacy,
            2 => Version::Modern,
            _ => return Err(Error::Unsupported),
        };
        let kind = Kind::of(registers.read32(register::DEVICE));
        Ok((Mmio { registers, version }, kind))
    }

    pub(crate) fn registers(&self) -> &R {
        &self.registers
    }

    #[inline]
    pub(crate) fn notify(&self, queue: u32) {
        self.registers.write32(register::QUEUE_NOTIFY, queue);
    }
}

impl<R: Registers> Place for Mmio<R> {
    fn isolate(&self) -> bool {
        false
    }

    fn features(&self, half: u32) -> u32 {
        self.registers.write32(register::DEVICE_FEATURES_SELECT, half);
        self.registers.read32(register::DEVICE_FEATURES)
    }

    fn agree(&self, half: u32, features: u32) {
        self.registers.write32(register::DRIVER_FEATURES_SELECT, half);
        self.registers.write32(register::DRIVER_FEATURES, features);
    }

    fn status(&self) -> u32 {
        self.registers.read32(register::STATUS)
    }

    fn set_status(&self, status: u32) {
        self.registers.write32(register::STATUS, status);
    }

    fn largest_queue(&self, queue: u32) -> u32 {
        self.registers.write32(register::QUEUE_SELECT, queue);
        self.registers.read32(register::QUEUE_MAXIMUM)
    }

    fn set_queue(&mut self, queue: u32, size: u16, parts: QueueAddresses) -> Result<(), Error> {
        self.registers.write32(register::QUEUE_SELECT, queue);
        self.registers.write32(register::QUEUE_SIZE, size.into());
        match self.version {
            Version::Legacy => {
                // The device finds the other parts by itself: they follow in a fixed layout.
                let page = u32::try_from(parts.descriptors / PAGE as u64).map_err(|_| Error::Unsupported)?;
                self.registers.write32(register::LEGACY_PAGE_SIZE, PAGE as u32);
                self.registers.write32(register::LEGACY_QUEUE_ALIGN, PAGE as u32);
                self.registers.write32(register::LEGACY_QUEUE_PAGE, page);
            }
            Version::Modern => {
                for (register, address) in [
                    (register::QUEUE_DESCRIPTORS, parts.descriptors),
                    (register::QUEUE_DRIVER, parts.driver),
                    (register::QUEUE_DEVICE, parts.device),
                ] {
                    self.registers.write32(register, address as u32);
                    self.registers.write32(register + 4, (address >> 32) as u32);
                }
                self.registers.write32(register::QUEUE_READY, 1);
            }
        }
        Ok(())
    }

    fn is_legacy(&self) -> bool {
        self.version == Version::Legacy
    }

    fn configuration(&self, offset: usize) -> u8 {
        self.registers.read8(register::CONFIGURATION + offset)
    }

    fn configuration_word(&self, offset: usize) -> u32 {
        self.registers.read32(register::CONFIGURATION + offset)
    }
}
