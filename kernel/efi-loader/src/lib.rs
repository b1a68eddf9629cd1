//! Starts a kernel from EFI firmware (UEFI 2.10, and the RISC-V EFI Boot Protocol 1.0).
//!
//! # Form
//!
//! `cargo xtask dist` makes one file of this code and of what it starts: the code as the file's first sections, behind
//! them the kernel's image (`.linux`), the archive of programs (`.initrd`) and the boot words (`.cmdline`), under the
//! names that the makers of such files have agreed on (UAPI Group, Unified Kernel Image). So there is one thing to copy
//! to a disk or a server, and nothing that has to be found there. Words that the firmware's user gives replace those of
//! the file.
//!
//! # Course
//!
//! The firmware calls the entry point with paging on or off, in supervisor mode, with all memory at its physical
//! address. The kernel and the archive are copied into memory of their own, the kernel's at a multiple of 2 MiB; the
//! device tree is copied with words and archive in `/chosen`; the firmware's services end; paging goes off, and the
//! kernel begins as under any other boot loader, with its hart in `a0` and its device tree in `a1`.
//!
//! Until the services end, each failure is a line on the firmware's console and a status for it. Afterwards nothing can
//! fail.
#![cfg_attr(target_os = "none", no_std)]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;

#[cfg(target_os = "none")]
mod firmware;
mod parts;
mod tree;

pub use parts::{Parts, kernel_size};
pub use tree::{Prepared, prepare};

/// The reason why a kernel cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The file has no such section, or one that leads out of the file.
    NoPart(&'static str),
    /// The section with the kernel has no kernel for RISC-V.
    NoKernel,
    /// The firmware has no device tree.
    NoDeviceTree,
    /// The firmware calls something a device tree that is none.
    BadDeviceTree,
    /// The firmware does not say which hart this is.
    NoHart,
    /// There is not enough memory.
    NoMemory,
    /// A service of the firmware failed: its name.
    Firmware(&'static str),
}

impl Reason {
    /// Returns a text for the console.
    pub fn text(self) -> [&'static str; 2] {
        match self {
            Reason::NoPart(name) => ["this file is damaged: it has no part ", name],
            Reason::NoKernel => ["this file is damaged: ", "its kernel is none for RISC-V"],
            Reason::NoDeviceTree => {
                ["the firmware has no device tree; ", "QEMU's machine gives it one with: -machine virt,acpi=off"]
            }
            Reason::BadDeviceTree => ["the firmware's device tree ", "cannot be read"],
            Reason::NoHart => ["the firmware does not say ", "which hart starts"],
            Reason::NoMemory => ["there is not enough memory ", "for kernel and archive"],
            Reason::Firmware(service) => ["the firmware refused: ", service],
        }
    }
}
