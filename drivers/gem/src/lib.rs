//! Cadence's gigabit Ethernet controller (GEM): that of SiFive's FU540 and FU740, Microchip's PolarFire SoC and
//! Xilinx's Zynq.
//!
//! The registers and descriptors are those of the Zynq-7000 and Zynq UltraScale+ technical reference manuals ("Gigabit
//! Ethernet Controller"), and of the PolarFire SoC register map. A [`Gem`] is a value over the device's
//! [`Registers`](drivers::Registers) and [`Memory`] that the device can reach; frames come and go by the trait
//! [`ethernet::Link`].
//!
//! **No trust.** A descriptor that the device gives back is an allegation: its length is checked against the buffer,
//! its address is never read, and a frame that is not whole in one buffer is dropped. The position in a ring is the
//! driver's own. So a device that lies makes the driver drop frames, and nothing else: memory is only copied, and the
//! crate needs no unsafe code.
//!
//! **Frames that are kept.** The device fills descriptors in their order and stops at one that is not free. A stack may
//! keep a frame for long ([`Link::receive_into`](ethernet::Link::receive_into)), so buffers do not belong to
//! descriptors: the descriptor of a kept frame gets a spare buffer at once.
//!
//! **Checksums** are the stack's work. The device could compute them for IPv4, but not on every machine for IPv6.
//!
//! **The firmware's part.** Clocks, resets and the wiring of the pins stay as the firmware has left them, and so does
//! the speed of the line unless the PHY says another. A board that starts from its network, or whose boot loader has
//! used the network, has all of them on.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod controller;
mod descriptor;
#[cfg(test)]
mod fake;
mod link;
mod phy;
mod register;
#[cfg(test)]
mod tests;

pub use controller::{CauseReader, Causes, Gem, LENGTH, Traffic};
pub use drivers::Memory;

use core::fmt;

/// Reason why the device cannot be used. Trying again does not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The registers are those of another device, or of a predecessor.
    Unsupported,
    /// Neither the device nor the device tree has an address for it.
    NoAddress,
    /// There is not enough memory that the device can reach.
    OutOfMemory,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Error::Unsupported => "no Gigabit Ethernet controller of Cadence",
            Error::NoAddress => "the firmware has given it no hardware address",
            Error::OutOfMemory => "no memory for the device",
        })
    }
}

impl core::error::Error for Error {}
