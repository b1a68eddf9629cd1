//! A function of PCI (virtio 1.2 section 4.1): its capabilities name the places of four groups of registers.
//!
//! Transitional devices have these registers too, beside their old ones, which are not used. All queues and changes of
//! the configuration share one message.

use drivers::Registers;
use drivers::pci::{Function, Region, capability};

use crate::Error;
use crate::transport::{Cause, Interrupt, Kind, Place, QueueAddresses};

/// The vendor of all virtio devices.
const VENDOR: u16 = 0x1af4;
/// Number of the first modern device; that of a device is so much more than its kind's.
const MODERN: u16 = 0x1040;
/// Numbers of transitional devices, whose subsystem is their kind's number.
const TRANSITIONAL: core::ops::Range<u16> = 0x1000..0x1040;

/// Most queues of a device that a driver here uses.
const MOST_QUEUES: usize = 4;

/// Kinds of the groups of registers.
mod group {
    pub const COMMON: u32 = 1;
    pub const NOTIFICATIONS: u32 = 2;
    pub const INTERRUPTS: u32 = 3;
    pub const DEVICE: u32 = 4;
}

/// The common registers.
mod register {
    pub const DEVICE_FEATURES_SELECT: usize = 0x00;
    pub const DEVICE_FEATURES: usize = 0x04;
    pub const DRIVER_FEATURES_SELECT: usize = 0x08;
    pub const DRIVER_FEATURES: usize = 0x0c;
    pub const CONFIGURATION_MESSAGE: usize = 0x10;
    pub const STATUS: usize = 0x14;
    pub const QUEUE_SELECT: usize = 0x16;
    pub const QUEUE_SIZE: usize = 0x18;
    pub const QUEUE_MESSAGE: usize = 0x1a;
    pub const QUEUE_ENABLE: usize = 0x1c;
    pub const QUEUE_NOTIFICATION: usize = 0x1e;
    pub const QUEUE_DESCRIPTORS: usize = 0x20;
    pub const QUEUE_DRIVER: usize = 0x28;
    pub const QUEUE_DEVICE: usize = 0x30;
    pub const LENGTH: u64 = 0x38;
}

/// Returns the kind of a virtio device; `None` if the function is something else.
pub fn kind<C: Registers>(function: &Function<C>) -> Option<Kind> {
    let (vendor, device) = function.identity();
    let number = match device {
        _ if vendor != VENDOR => return None,
        device if TRANSITIONAL.contains(&device) => function.subsystem(),
        device => device.checked_sub(MODERN)?,
    };
    Some(Kind::of(number.into()))
}

pub(crate) struct Pci<R: Registers> {
    function: Function<R>,
    common: R,
    notifications: R,
    /// Bytes of the registers for notifications, and between those of neighbouring numbers.
    notifications_length: usize,
    stride: usize,
    interrupts: R,
    device: Option<R>,
    device_length: usize,
    has_messages: bool,
    /// Offset of each queue's register for notifications.
    notification: [usize; MOST_QUEUES],
}

impl<R: Registers> Pci<R> {
    /// Finds the registers; `None` if one of the groups is absent, lies outside of its region, or is not aligned.
    pub(crate) fn find(
        function: &Function<R>,
        has_messages: bool,
        mut window: impl FnMut(Region) -> Option<R>,
    ) -> Option<Pci<R>>
    where
        R: Clone,
    {
        // The first of a kind is the one that the device prefers.
        let find = |wanted: u32| {
            function.capabilities().find_map(|(kind, offset)| {
                let is_wanted = kind == capability::VENDOR && function.read(offset) >> 24 == wanted;
                let (region, start) = (function.read(offset + 4) as u8, function.read(offset + 8));
                let length = function.read(offset + 12);
                is_wanted.then_some((offset, function.part(region.into(), start.into(), length.into())))
            })
        };
        let (_, common) = find(group::COMMON)?;
        let (place, notifications) = find(group::NOTIFICATIONS)?;
        let (_, interrupts) = find(group::INTERRUPTS)?;
        let device = find(group::DEVICE).and_then(|(_, device)| device);
        let (common, interrupts) = (common?, interrupts?);
        if common.1 < register::LENGTH || interrupts.1 < 1 {
            return None;
        }
        // Their registers have up to 32 and 16 bits, each of which is read and written at once.
        let notifications = notifications?;
        let is_apart = device.is_some_and(|device| !device.0.is_multiple_of(4));
        if !common.0.is_multiple_of(4) || !notifications.0.is_multiple_of(2) || is_apart {
            return None;
        }
        function.enable(!has_messages);
        Some(Pci {
            function: function.clone(),
            common: window(common)?,
            notifications_length: notifications.1 as usize,
            notifications: window(notifications)?,
            stride: function.read(place + 16) as usize,
            interrupts: window(interrupts)?,
            device_length: device.map_or(0, |device| device.1 as usize),
            device: device.and_then(window),
            has_messages,
            notification: [0; MOST_QUEUES],
        })
    }

    pub(crate) fn cause(&self) -> Cause<R>
    where
        R: Clone,
    {
        if self.has_messages { Cause::Message } else { Cause::Pci(self.interrupts.clone()) }
    }

    pub(crate) fn acknowledge(&self) -> Interrupt {
        if self.has_messages { Interrupt::ANY } else { Interrupt::of(self.interrupts.read8(0).into()) }
    }

    #[inline]
    pub(crate) fn notify(&self, queue: u32) {
        if let Some(offset) = self.notification.get(queue as usize) {
            self.notifications.write16(*offset, queue as u16);
        }
    }
}

impl<R: Registers> Place for Pci<R> {
    fn isolate(&self) -> bool {
        self.function.isolate();
        true
    }

    fn features(&self, half: u32) -> u32 {
        self.common.write32(register::DEVICE_FEATURES_SELECT, half);
        self.common.read32(register::DEVICE_FEATURES)
    }

    fn agree(&self, half: u32, features: u32) {
        self.common.write32(register::DRIVER_FEATURES_SELECT, half);
        self.common.write32(register::DRIVER_FEATURES, features);
    }

    fn status(&self) -> u32 {
        self.common.read8(register::STATUS).into()
    }

    fn set_status(&self, status: u32) {
        self.common.write8(register::STATUS, status as u8);
    }

    fn largest_queue(&self, queue: u32) -> u32 {
        self.common.write16(register::QUEUE_SELECT, queue as u16);
        self.common.read16(register::QUEUE_SIZE).into()
    }

    fn set_queue(&mut self, queue: u32, size: u16, parts: QueueAddresses) -> Result<(), Error> {
        let place = self.notification.get_mut(queue as usize).ok_or(Error::Unsupported)?;
        self.common.write16(register::QUEUE_SELECT, queue as u16);
        let offset = usize::from(self.common.read16(register::QUEUE_NOTIFICATION)).saturating_mul(self.stride);
        if !offset.is_multiple_of(2) || offset.saturating_add(2) > self.notifications_length {
            return Err(Error::Unsupported);
        }
        *place = offset;
        self.common.write16(register::QUEUE_SIZE, size);
        if self.has_messages {
            // A device without room for the message answers with another number.
            for register in [register::CONFIGURATION_MESSAGE, register::QUEUE_MESSAGE] {
                self.common.write16(register, 0);
                if self.common.read16(register) != 0 {
                    return Err(Error::Unsupported);
                }
            }
        }
        for (register, address) in [
            (register::QUEUE_DESCRIPTORS, parts.descriptors),
            (register::QUEUE_DRIVER, parts.driver),
            (register::QUEUE_DEVICE, parts.device),
        ] {
            self.common.write32(register, address as u32);
            self.common.write32(register + 4, (address >> 32) as u32);
        }
        self.common.write16(register::QUEUE_ENABLE, 1);
        Ok(())
    }

    fn is_legacy(&self) -> bool {
        false
    }

    fn configuration(&self, offset: usize) -> u8 {
        match &self.device {
            Some(device) if offset < self.device_length => device.read8(offset),
            _ => 0,
        }
    }

    fn configuration_word(&self, offset: usize) -> u32 {
        match &self.device {
            Some(device) if offset.saturating_add(4) <= self.device_length => device.read32(offset),
            _ => 0,
        }
    }
}
