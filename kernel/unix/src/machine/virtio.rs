//! The machine's virtio devices, wherever their registers are: in a block of their own, or in a function of PCI.

use core::fmt;

use alloc::vec::Vec;
use drivers::pci::{Function, Messages};
use heapless::Vec as FixedVec;
use platform::{Interrupt, InterruptHandler, Mapped, Platform, RegisterError};
use spin::Once;
use virtio::{Kind, Transport};

/// A device that no driver has yet.
pub(crate) struct VirtioDevice {
    pub(crate) transport: Transport<Mapped>,
    pub(crate) line: InterruptLine,
    pub(crate) place: DevicePlace,
}

/// The way in which a device interrupts.
pub(crate) enum InterruptLine {
    /// By a wire of its own.
    Wire(Interrupt),
    /// By a wire that others have too.
    SharedWire(Interrupt),
    /// By the first message of its table.
    Message(Messages<Mapped>),
    /// Not at all.
    None,
}

impl InterruptLine {
    /// Has a handler called at each interrupt of the device.
    pub(crate) fn register(self, handler: InterruptHandler, data: usize) -> Result<(), RegisterError> {
        match self {
            InterruptLine::Wire(interrupt) => platform::register_interrupt(interrupt, handler, data),
            InterruptLine::SharedWire(interrupt) => platform::register_shared_interrupt(interrupt, handler, data),
            InterruptLine::Message(messages) => platform::register_message(messages, handler, data),
            InterruptLine::None => Err(RegisterError::NoSuchSource),
        }
    }
}

/// The place of a device, for people.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DevicePlace {
    Address(u64),
    Function(u8, u8, u8),
}

impl fmt::Display for DevicePlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DevicePlace::Address(address) => write!(formatter, "the device at {address:#x}"),
            DevicePlace::Function(bus, device, function) => {
                write!(formatter, "the device {bus:02x}:{device:02x}.{function}")
            }
        }
    }
}

/// Returns the devices of a kind, in the order in which an emulator was told of them.
pub(crate) fn devices(platform: &'static Platform, kind: Kind) -> Vec<VirtioDevice> {
    // An emulator fills its blocks of registers from the last one on.
    let blocks = platform.virtio.iter().rev().filter_map(|device| {
        let registers = Mapped::new((device.address, device.length))?;
        let transport = Transport::probe(registers).ok().filter(|transport| transport.kind() == kind)?;
        let line = device.interrupt.map_or(InterruptLine::None, InterruptLine::Wire);
        Some(VirtioDevice { transport, line, place: DevicePlace::Address(device.address) })
    });
    blocks.chain(functions(platform).filter_map(|(function, wire)| of_function(function, *wire, kind))).collect()
}

/// A function with the source of its wire.
type Connected = (Function<Mapped>, Option<Interrupt>);

/// Most functions that may get drivers.
const MOST_FUNCTIONS: usize = 64;

/// Returns the functions of PCI that are virtio devices.
fn functions(platform: &'static Platform) -> impl Iterator<Item = &'static Connected> {
    static FUNCTIONS: Once<FixedVec<Connected, MOST_FUNCTIONS>> = Once::new();
    let found = FUNCTIONS.call_once(|| {
        let (mut functions, mut left_out) = (FixedVec::new(), 0);
        if let Some(host) = platform.pci_host() {
            host.enumerate(&mut |function| {
                if virtio::kind_of_function(&function).is_some() {
                    let wire = function.wire().and_then(|wire| host.interrupt(wire));
                    left_out += usize::from(functions.push((function, wire)).is_err());
                }
            });
        }
        if left_out > 0 {
            platform::println!("pci: {left_out} virtio devices beyond the first {MOST_FUNCTIONS} are left out");
        }
        functions
    });
    found.iter()
}

fn of_function(function: &Function<Mapped>, wire: Option<Interrupt>, kind: Kind) -> Option<VirtioDevice> {
    let (bus, device, number) = function.place();
    let place = DevicePlace::Function(bus, device, number);
    if virtio::kind_of_function(function) != Some(kind) {
        return None;
    }
    let messages = if platform::has_messages() { Messages::of(function, Mapped::new) } else { None };
    match Transport::of_function(function, messages.is_some(), Mapped::new) {
        Ok(transport) => {
            let line = match (messages, wire) {
                (Some(messages), _) => InterruptLine::Message(messages),
                (None, Some(wire)) => InterruptLine::SharedWire(wire),
                (None, None) => InterruptLine::None,
            };
            Some(VirtioDevice { transport, line, place })
        }
        Err(error) => {
            platform::println!("virtio: {place} cannot be used: {error}");
            None
        }
    }
}
