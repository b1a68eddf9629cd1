//! The registers by which driver and device agree on features and queues (virtio 1.2 section 3.1), in either place:
//! a block of their own ([`mmio`](crate::mmio)), or a function of PCI ([`pci`](crate::pci)).

use drivers::Registers;

use crate::Error;
use crate::mmio::Mmio;
use crate::pci::Pci;

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
    /// A folder of the host, by 9P.
    Folder,
    /// Another device, by its number in virtio 1.2 section 5.
    Other(u32),
}

impl Kind {
    /// Returns the kind of this number in virtio 1.2 section 5.
    pub(crate) fn of(number: u32) -> Kind {
        match number {
            0 => Kind::Nothing,
            1 => Kind::Network,
            2 => Kind::Block,
            4 => Kind::Entropy,
            9 => Kind::Folder,
            number => Kind::Other(number),
        }
    }
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
    /// Either cause.
    pub(crate) const ANY: Interrupt = Interrupt { queue: true, configuration: true };

    /// Returns the cause that these bits of a status register name.
    pub(crate) fn of(status: u32) -> Interrupt {
        Interrupt { queue: status & 1 != 0, configuration: status & 2 != 0 }
    }

    /// Whether the device had interrupted.
    pub fn is_some(self) -> bool {
        self.queue || self.configuration
    }
}

/// Addresses of the parts of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueAddresses {
    pub(crate) descriptors: u64,
    pub(crate) driver: u64,
    pub(crate) device: u64,
}

/// The registers of either place.
pub(crate) trait Place {
    /// Returns 32 of the offered features: the lower ones for 0, the upper ones for 1.
    fn features(&self, half: u32) -> u32;
    /// Tells the device 32 of the features that are used.
    fn agree(&self, half: u32, features: u32);
    /// Returns the status.
    fn status(&self) -> u32;
    /// Writes the status.
    fn set_status(&self, status: u32);
    /// Returns the largest size of a queue; 0 if there is no such queue.
    fn largest_queue(&self, queue: u32) -> u32;
    /// Tells the device the addresses of a queue, and starts it.
    fn set_queue(&mut self, queue: u32, size: u16, parts: QueueAddresses) -> Result<(), Error>;
    /// Returns whether the device follows the drafts of the standard.
    fn is_legacy(&self) -> bool;
    /// Takes a device's access to memory away if there is a way but the device's own; returns whether there is.
    fn isolate(&self) -> bool;
    /// Returns a byte of the device's own configuration.
    fn configuration(&self, offset: usize) -> u8;
    /// Returns a word of the device's own configuration, whose offset is a multiple of 4. Devices of the standard need
    /// not understand narrower reads of such a field (sections 4.1.3.1 and 4.2.2.2).
    fn configuration_word(&self, offset: usize) -> u32;
}

#[expect(clippy::large_enum_variant, reason = "one value for each device")]
enum Registry<R: Registers> {
    Mmio(Mmio<R>),
    Pci(Pci<R>),
}

/// A virtio device's registers. The driver that has started the device [ends](Transport::end) it before the memory of
/// its queues and buffers goes.
pub struct Transport<R: Registers> {
    registry: Registry<R>,
    kind: Kind,
    status: u32,
    has_memory: bool,
}

/// Whether memory that a device has had may get another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Release {
    /// The device does not reach it any more.
    Safe,
    /// The device was told to stop and has not: the memory is [abandoned](crate::Memory::abandon).
    Never,
}

/// Acknowledges a device's interrupts, apart from its driver: an interrupt handler need not wait for the user of the
/// driver.
///
/// Acknowledge *before* the driver looks at its queues: an acknowledgement after the look clears the interrupt for
/// buffers used in between.
pub struct Acknowledger<R: Registers>(pub(crate) Cause<R>);

/// The place of the causes of interrupts.
#[derive(Clone)]
pub(crate) enum Cause<R: Registers> {
    /// In a block of registers.
    Mmio(R),
    /// In a register of a function, which reading clears.
    Pci(R),
    /// The device has interrupted by a message, which needs no acknowledgement.
    Message,
}

impl<R: Registers> Acknowledger<R> {
    /// Acknowledges the interrupt; returns its cause. A message can have either.
    pub fn acknowledge(&self) -> Interrupt {
        match &self.0 {
            Cause::Mmio(registers) => crate::mmio::acknowledge(registers),
            Cause::Pci(status) => Interrupt::of(status.read8(0).into()),
            Cause::Message => Interrupt::ANY,
        }
    }
}

impl<R: Registers> Transport<R> {
    /// Identifies the device behind a block of registers. This changes nothing there.
    ///
    /// # Errors
    /// [`Error::Absent`] if it is not a virtio device, [`Error::Unsupported`] for an unknown version.
    pub fn probe(registers: R) -> Result<Self, Error> {
        let (mmio, kind) = Mmio::probe(registers)?;
        Ok(Transport { registry: Registry::Mmio(mmio), kind, status: 0, has_memory: false })
    }

    /// Identifies the device that a function of PCI is. `window` opens a region of its registers; with `has_messages`
    /// the device interrupts by the first message of the function's table, otherwise by its wire.
    ///
    /// # Errors
    /// [`Error::Absent`] if it is not a virtio device, [`Error::Unsupported`] if it lacks registers of the standard.
    pub fn of_function(
        function: &drivers::pci::Function<R>,
        has_messages: bool,
        window: impl FnMut(drivers::pci::Region) -> Option<R>,
    ) -> Result<Self, Error>
    where
        R: Clone,
    {
        let kind = crate::pci::kind(function).ok_or(Error::Absent)?;
        let pci = Pci::find(function, has_messages, window).ok_or(Error::Unsupported)?;
        Ok(Transport { registry: Registry::Pci(pci), kind, status: 0, has_memory: false })
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
        Acknowledger(match &self.registry {
            Registry::Mmio(mmio) => Cause::Mmio(mmio.registers().clone()),
            Registry::Pci(pci) => pci.cause(),
        })
    }

    pub(crate) fn acknowledge(&self) -> Interrupt {
        match &self.registry {
            Registry::Mmio(mmio) => crate::mmio::acknowledge(mmio.registers()),
            Registry::Pci(pci) => pci.acknowledge(),
        }
    }

    fn place(&self) -> &dyn Place {
        match &self.registry {
            Registry::Mmio(mmio) => mmio,
            Registry::Pci(pci) => pci,
        }
    }

    fn add_status(&mut self, bits: u32) {
        self.status |= bits;
        self.place().set_status(self.status);
    }

    /// Resets the device, agrees on features (those of `wanted` that it offers, and all of `needed`), and has `make`
    /// make with them what the driver needs. A device for which that fails is stopped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it lacks a needed feature, or does not agree; [`Error::Misbehaved`] if it goes on with
    /// what it did before; the errors of `make`.
    pub(crate) fn start<T>(
        &mut self,
        wanted: u64,
        needed: u64,
        make: impl FnOnce(&mut Self, u64) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let made = self.agree(wanted, needed).and_then(|agreed| make(self, agreed));
        if made.is_err() {
            // It was not started, and has had no memory.
            let _ = self.stop();
        }
        made
    }

    fn agree(&mut self, wanted: u64, needed: u64) -> Result<u64, Error> {
        if !self.reset() {
            return Err(Error::Misbehaved);
        }
        self.add_status(status::ACKNOWLEDGE);
        self.add_status(status::DRIVER);
        let mut offered: u64 = self.place().features(0).into();
        // The two versions need different bits: a modern device insists on VERSION_1, a legacy one has no second word,
        // and one that cannot take a header and its data in one descriptor is too old for this driver.
        let is_legacy = self.place().is_legacy();
        let common = if is_legacy {
            feature::ANY_LAYOUT
        } else {
            offered |= u64::from(self.place().features(1)) << 32;
            feature::VERSION_1
        };
        let needed = needed | common;
        if offered & needed != needed {
            self.add_status(status::FAILED);
            return Err(Error::Unsupported);
        }
        let agreed = offered & (wanted | needed);
        for half in 0..2u32 {
            self.place().agree(half, (agreed >> (32 * half)) as u32);
        }
        if !is_legacy {
            self.add_status(status::FEATURES_OK);
            if self.place().status() & status::FEATURES_OK == 0 {
                self.add_status(status::FAILED);
                return Err(Error::Unsupported);
            }
        }
        Ok(agreed)
    }

    /// Returns the largest size of a queue; 0 if there is no such queue.
    pub(crate) fn largest_queue(&self, queue: u32) -> u32 {
        self.place().largest_queue(queue)
    }

    /// Tells the device the addresses of a queue.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is out of the device's reach.
    pub(crate) fn set_queue(&mut self, queue: u32, size: u16, parts: QueueAddresses) -> Result<(), Error> {
        match &mut self.registry {
            Registry::Mmio(mmio) => mmio.set_queue(queue, size, parts),
            Registry::Pci(pci) => pci.set_queue(queue, size, parts),
        }
    }

    /// Starts the device.
    pub(crate) fn finish(&mut self) {
        self.has_memory = true;
        self.add_status(status::DRIVER_OK);
    }

    /// Has the device forget its queues: it neither touches memory nor interrupts any more. Returns whether it does so.
    #[must_use]
    fn reset(&mut self) -> bool {
        self.place().set_status(0);
        self.status = 0;
        // It has stopped when the register reads zero; a device for which it never does must not hang the hart.
        (0..RESET_LOOKS).any(|_| self.place().status() == 0)
    }

    /// Stops a device that cannot be used, and reports that to it. Returns what becomes of the memory that it has had.
    pub(crate) fn stop(&mut self) -> Release {
        let has_stopped = self.reset();
        if has_stopped {
            self.add_status(status::ACKNOWLEDGE | status::FAILED);
        }
        self.release(has_stopped)
    }

    /// Stops a device that was started, before its memory goes. Returns what becomes of the memory.
    pub(crate) fn end(&mut self) -> Release {
        let has_stopped = !self.has_memory || self.reset();
        self.release(has_stopped)
    }

    fn release(&mut self, has_stopped: bool) -> Release {
        self.has_memory &= !has_stopped && !self.place().isolate();
        if self.has_memory { Release::Never } else { Release::Safe }
    }

    /// Notifies the device of new buffers in a queue. The queue's contents come before this register, as [`Registers`]
    /// promises.
    pub(crate) fn notify(&self, queue: u32) {
        match &self.registry {
            Registry::Mmio(mmio) => mmio.notify(queue),
            Registry::Pci(pci) => pci.notify(queue),
        }
    }

    /// Returns a byte of the device's configuration.
    pub(crate) fn configuration(&self, offset: usize) -> u8 {
        self.place().configuration(offset)
    }

    /// Returns a word of the device's configuration, whose offset is a multiple of 4.
    pub(crate) fn configuration_word(&self, offset: usize) -> u32 {
        self.place().configuration_word(offset)
    }
}
