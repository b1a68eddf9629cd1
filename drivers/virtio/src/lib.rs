//! Virtio devices over memory-mapped registers: network, disk, entropy, and folders of the host.
//!
//! A driver is a value over two things that its owner provides: the device's [`Registers`](drivers::Registers) and
//! [`Memory`] that the device can reach. It never waits: requests are put into a queue, and finished ones are taken out
//! on request, usually because the device has interrupted.
//!
//! **No trust.** Data of the device is copied out once and checked then: indices against the offered buffers, lengths
//! against theirs. A device that breaks the rules is reported as [`Error::Misbehaved`] and not used any more. Since
//! memory is only copied and never borrowed, the crate needs no unsafe code; the copy of a frame costs less than the
//! protocol's look at its header, and leaves the frame in the cache for it.
//!
//! **A queue of our own.** The one widely used crate of drivers has its queues built around static functions for memory
//! and pointers whose validity the caller must guarantee; and its queue compares event indices without regard to their
//! wrapping around (a notification can be lost after 65,536 buffers), does not order the publication of a buffer before
//! the check whether the device sleeps, and trusts indices from the device. The queue here has one layout, one
//! descriptor for each request, and is shorter than the adaptation would be.
//!
//! Both versions of the register layout are supported (virtio 1.2 section 4.2, and its legacy interface 4.2.4), because
//! QEMU's default is the legacy one.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod adapter;
mod block_device;
#[cfg(test)]
mod block_tests;
mod checksum;
mod entropy;
#[cfg(test)]
mod fake;
mod folder_device;
#[cfg(test)]
mod folder_tests;
mod mmio;
mod network_device;
mod pci;
mod queue;
#[cfg(test)]
mod tests;
mod transport;

pub use block_device::{Data, Disk, Ended, MOST_PARTS, Request, RequestError, SECTOR, Ticket};
pub use drivers::Memory;
pub use entropy::Entropy;
pub use folder_device::{Folder, LONGEST_MESSAGE};
pub use network_device::{LinkStatus, Network, NetworkCounters};
pub use pci::kind as kind_of_function;
pub use transport::{Acknowledger, Interrupt, Kind, Transport};

use core::fmt;

/// Reason why a device cannot be used. Trying again does not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no virtio device behind the registers.
    Absent,
    /// It is another kind of device, or lacks a feature that the driver needs.
    Unsupported,
    /// There is not enough memory that the device can reach.
    OutOfMemory,
    /// The device has broken the rules; it was stopped.
    Misbehaved,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Error::Absent => "no virtio device",
            Error::Unsupported => "unsupported virtio device",
            Error::OutOfMemory => "no memory for the device",
            Error::Misbehaved => "the device has broken the virtio rules",
        })
    }
}

impl core::error::Error for Error {}
