//! Physical frames, the kernel heap and Sv39 address spaces.
//!
//! A kernel that is written in safe Rust needs four things from memory that safe Rust cannot give: bytes at a physical
//! address, a heap, tables that the hardware walks, and access to memory that a hostile program changes at the same
//! time. This crate is the door to all four. All of its exports are safe to use; its few unsafe blocks rest on the
//! invariants below.
//!
//! * [`frames`] hands out physical memory as owning handles;
//! * [`heap`] is the kernel's `GlobalAlloc`;
//! * [`sv39`] is the page table as data: the mappings, and the flushes that changes to them require;
//! * [`faults`] lets allocations fail on purpose, in a kernel that is built to test that;
//! * [`asid`] gives address spaces the short tags by which the TLB tells them apart;
//! * [`space`] is a process's address space: regions, demand-zero pages, and every access of the kernel to user memory.
//!
//! # Invariants
//!
//! * **BOOT-MEMORY**: the ranges given to [`frames::init`] are ordinary memory, mapped readable and writable at
//!   `address + direct_map_offset` for ever, and have no other user. This is the one promise that the compiler cannot
//!   check and that the caller makes at boot.
//! * **ONE-OWNER**: a frame is either in the free lists, or in one hart's cache, or owned by exactly one handle
//!   ([`Frame`], [`Block`], a count of [`SharedFrame`], a leaf of a page table, the heap). Handles are made only by
//!   taking a frame out of the free lists or from another handle that is consumed.
//! * **NO-REFERENCES**: no `&[u8]`, `&mut [u8]` or other plain reference ever points into a frame. The kernel touches
//!   frames with volatile copies and with atomics only (module [`bytes`] gives the reason), so a program that scribbles
//!   over a page while the kernel reads it can change values, and never their meaning to the compiler.
//! * **HART-LOCAL**: a hart's caches are used by that hart alone. Kernel code runs with interrupts off and does not
//!   migrate in the middle, so the claim that guards a cache is never contended. Memory safety does *not* rest on it
//!   (module [`hart`] explains how); speed does.
//! * **FLUSH-BEFORE-FREE**: a frame or table that a TLB may still hold is freed only after the flush. Values that carry
//!   such frames free them when the flush is reported as done, and leak them (safely) when they are dropped.
//!   Code that makes a table active on a hart promises (that is unsafe code elsewhere) that the closures given to
//!   [`Flush::after`](space::Flush::after) do flush, and that the table outlives its use.
//! * **FETCH-AFTER-WRITE**: a hart runs the contents of a page only after it has synchronised its instruction fetch,
//!   which on RISC-V does not follow stores, with the stores made before the page became executable (module [`space`]
//!   lists the occasions).
//! * **KERNEL-RESERVE**: pages of programs are made only while more than a reserve is free
//!   ([`frames::available_to_programs`]), so a program that takes all available memory does not make the kernel fail.
//! * **KERNEL-HALF**: the upper half of every root is a copy of the kernel's, made when the root is made, so the
//!   kernel's root entries never change after the first address space exists.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;
#[cfg(not(target_os = "none"))]
extern crate std;

pub mod asid;
mod buddy;
pub mod bytes;
#[cfg(not(target_os = "none"))]
pub mod fake;
pub mod faults;
pub mod frames;
pub mod hart;
pub mod heap;
pub mod object;
mod regions;
pub mod space;
pub mod sv39;

pub use bytes::SharedBytes;
pub use frames::{Block, Frame, OutOfMemory, SharedFrame};
pub use object::MemoryObject;
pub use space::AddressSpace;

/// Bytes in a frame and in the smallest page.
pub const PAGE_SIZE: u64 = 4096;

/// Maximum number of harts of one machine.
pub const MAX_HARTS: usize = 8;
