//! The registers (virtio 1.2 sections 4.2.2 and 4.2.4).

use drivers::Registers;

use crate::Error;

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

mod status {
    pub const ACKNOWLEDGE: u32 = 1;
    pub const DRIVER: u32 = 2;
    pub const DRIVER_OK: u32 = 4;
    pub const FEATURES_OK: u32 = 8;
    pub const FAILED: u32 = 128;
}

/// Feature bits of every device.
pub(crate) mod feature {
    /// A legacy device accepts a header and its data in one descriptor.
    pub const ANY_LAYOUT: u64 = 1 << 27;
    /// A descriptor may lead to a table of descriptors.
    pub const INDIRECT: u64 = 1 << 28;
    /// Notifications are requested by index instead of by flag.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// The device follows the standard, not its drafts.
    pub const VERSION_1: u64 = 1 << 32;
}

/// Number of times that a stopped device is polled for having stopped.
const RESET_LOOKS: usize = 1000;

/// Page size for legacy devices, and alignment of their memory.
pub(crate) const PAGE: usize = 4096;

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The register block is there, but no device behind it.
    Nothing,
    /// A network interface.
    Network,
    /// A disk.
    Block,
    /// A source of random numbers.
    Entropy,
    /// Another device, by its number in virtio 1.2 section 5.
    Other(u32),
}

/// Cause of a device's interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interrupt {
    /// It has used buffers.
    pub queue: bool,
    /// Its configuration has changed: the link went up or down.
    pub configuration: bool,
}

impl Interrupt {
    /// Whether the device had interrupted.
    pub fn is_some(self) -> bool {
        self.queue || self.configuration
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Legacy,
    Modern,
}

/// A virtio device's registers. A device that was started is stopped when they are dropped.
pub struct Mmio<R: Registers> {
    registers: R,
    version: Version,
    kind: Kind,
    status: u32,
}

/// Acknowledges a device's interrupts, apart from its driver: an interrupt handler need not wait for the user of the
/// driver.
///
/// Acknowledge *before* the driver looks at its queues: an acknowledgement after the look clears the interrupt for
/// buffers used in between.
pub struct Acknowledger<R: Registers>(R);

impl<R: Registers> Acknowledger<R> {
    /// Acknowledges the interrupt; returns its cause.
    pub fn acknowledge(&self) -> Interrupt {
        acknowledge(&self.0)
    }
}

fn acknowledge<R: Registers>(registers: &R) -> Interrupt {
    let status = registers.read32(register::INTERRUPT_STATUS);
    if status != 0 {
        registers.write32(register::INTERRUPT_ACKNOWLEDGE, status);
    }
    Interrupt { queue: status & 1 != 0, configuration: status & 2 != 0 }
}

impl<R: Registers> Mmio<R> {
    /// Identifies the device behind `registers`. This changes nothing there.
    ///
    /// # Errors
    /// [`Error::Absent`] if it is not a virtio device, [`Error::Unsupported`] for an unknown version.
    pub fn probe(registers: R) -> Result<Self, Error> {
        if registers.read32(register::MAGIC) != MAGIC {
            return Err(Error::Absent);
        }
        let version = match registers.read32(register::VERSION) {
            1 => Version::Legacy,
            2 => Version::Modern,
            _ => return Err(Error::Unsupported),
        };
        let kind = match registers.read32(register::DEVICE) {
            0 => Kind::Nothing,
            1 => Kind::Network,
            2 => Kind::Block,
            4 => Kind::Entropy,
            number => Kind::Other(number),
        };
        Ok(Mmio { registers, version, kind, status: 0 })
    }

    /// Returns the kind of the device.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns a handle for the interrupt handler.
    pub fn acknowledger(&self) -> Acknowledger<R>
    where
        R: Clone,
    {
        Acknowledger(self.registers.clone())
    }

    pub(crate) fn acknowledge(&self) -> Interrupt {
        acknowledge(&self.registers)
    }

    fn add_status(&mut self, bits: u32) {
        self.status |= bits;
        self.registers.write32(register::STATUS, self.status);
    }

    /// Resets the device and agrees on features: those of `wanted` that it offers, and all of `needed`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it lacks a needed one, or does not agree.
    pub(crate) fn start(&mut self, wanted: u64, needed: u64) -> Result<u64, Error> {
        self.reset();
        self.add_status(status::ACKNOWLEDGE);
        self.add_status(status::DRIVER);
        let mut offered = 0;
        for half in 0..2u32 {
            self.registers.write32(register::DEVICE_FEATURES_SELECT, half);
            offered |= u64::from(self.registers.read32(register::DEVICE_FEATURES)) << (32 * half);
        }
        // The two versions need different bits: a modern device insists on VERSION_1, a legacy one has no second word,
        // and one that cannot take a header and its data in one descriptor is too old for this driver.
        let common = match self.version {
            Version::Modern => feature::VERSION_1,
            Version::Legacy => {
                offered &= u64::from(u32::MAX);
                feature::ANY_LAYOUT
            }
        };
        let needed = needed | common;
        if offered & needed != needed {
            self.add_status(status::FAILED);
            return Err(Error::Unsupported);
        }
        let agreed = offered & (wanted | needed);
        for half in 0..2u32 {
            self.registers.write32(register::DRIVER_FEATURES_SELECT, half);
            self.registers.write32(register::DRIVER_FEATURES, (agreed >> (32 * half)) as u32);
        }
        match self.version {
            Version::Modern => {
                self.add_status(status::FEATURES_OK);
                if self.registers.read32(register::STATUS) & status::FEATURES_OK == 0 {
                    self.add_status(status::FAILED);
                    return Err(Error::Unsupported);
                }
            }
            Version::Legacy => {
                self.registers.write32(register::LEGACY_PAGE_SIZE, PAGE as u32);
            }
        }
        Ok(agreed)
    }

    /// Returns the largest size of a queue; 0 if there is no such queue.
    pub(crate) fn largest_queue(&self, queue: u32) -> u32 {
        self.registers.write32(register::QUEUE_SELECT, queue);
        self.registers.read32(register::QUEUE_MAXIMUM)
    }

    /// Tells the device the addresses of a queue.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is out of the device's reach.
    pub(crate) fn set_queue(&mut self, queue: u32, size: u16, parts: QueueAddresses) -> Result<(), Error> {
        self.registers.write32(register::QUEUE_SELECT, queue);
        self.registers.write32(register::QUEUE_SIZE, size.into());
        match self.version {
            Version::Legacy => {
                // The device finds the other parts by itself: they follow in a fixed layout.
                let page = u32::try_from(parts.descriptors / PAGE as u64).map_err(|_| Error::Unsupported)?;
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

    /// Starts the device.
    pub(crate) fn finish(&mut self) {
        self.add_status(status::DRIVER_OK);
    }

    /// Stops the device: it forgets its queues, and neither touches memory nor interrupts any more.
    pub(crate) fn reset(&mut self) {
        self.registers.write32(register::STATUS, 0);
        self.status = 0;
        // It has stopped when the register reads zero; a device for which it never does must not hang the hart.
        for _ in 0..RESET_LOOKS {
            if self.registers.read32(register::STATUS) == 0 {
                break;
            }
        }
    }

    /// Stops a device that cannot be used, and reports that to it.
    pub(crate) fn stop(&mut self) {
        self.reset();
        self.add_status(status::ACKNOWLEDGE | status::FAILED);
    }

    /// Notifies the device of new buffers in a queue. The queue's contents come before this register, as [`Registers`]
    /// promises.
    pub(crate) fn notify(&self, queue: u32) {
        self.registers.write32(register::QUEUE_NOTIFY, queue);
    }

    /// Returns a byte of the device's configuration.
    pub(crate) fn configuration(&self, offset: usize) -> u8 {
        self.registers.read8(register::CONFIGURATION + offset)
    }
}

impl<R: Registers> Drop for Mmio<R> {
    fn drop(&mut self) {
        if self.status & status::DRIVER_OK != 0 {
            self.reset();
        }
    }
}

/// Addresses of the parts of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueAddresses {
    pub(crate) descriptors: u64,
    pub(crate) driver: u64,
    pub(crate) device: u64,
}
