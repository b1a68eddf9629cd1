//! The layouts of the microkernel's objects, and references to them.
//!
//! The microkernel has no heap: its objects live in memory that users have retyped, at addresses that are known only at
//! run time, and refer to each other in cycles. No owner in Rust's sense exists for such memory. Only this crate
//! converts addresses into objects; the kernel above it is safe Rust over [`Cell`](core::cell::Cell)s and forbids
//! unsafe code. Four invariants make that sound:
//!
//! **LIVE-OBJECT**: a [`Ref`] exists in the kernel's state only while its memory holds an object of that kind.
//! References are made by retyping and at boot ([`claim`]), and cease to exist with the last capability to the object:
//! deletion removes the object from every structure that refers to it before its memory can be retyped again.
//!
//! **PLAIN**: every bit pattern is a valid value of every object type here, and all zeros are an empty object. So
//! retyping only clears the memory. A violation of LIVE-OBJECT corrupts the kernel's state, which its consistency
//! checker finds, but never produces a value that is invalid in Rust.
//!
//! **ONE-HART**: only the hart that holds the kernel's lock accesses objects. The two exceptions are a running thread's
//! registers, which belong to the hart that runs it (RUNNING-CONTEXT), and contents of pages, which are only accessed
//! as atomics, because programs write them at the same time.
//!
//! **RUNNING-CONTEXT**: from the moment at which a hart leaves the kernel for a thread until its next trap, no other
//! hart accesses that thread's registers: a hart that needs them first makes the other hart enter the kernel.
//!
//! The rejected design is an arena with indexes and generations: it needs a table of a fixed size, and a comparison at
//! every access.
#![cfg_attr(target_os = "none", no_std)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod capability;
mod lock;
mod memory;
mod reference;
mod types;
mod user;

pub use capability::{CNode, Capability, Dying, FrameSize, Mapping, Page, PageRights, Ring, SmallPage, tag};
pub use lock::{Lock, Locked, lock_with};
#[cfg(not(target_os = "none"))]
pub use memory::{FAKE_BASE, fake, give_back};
pub use memory::{Object, Row, claim, claim_row, claim_slice, clear, copy_in, permit, physical_of, synchronise_page};
pub use reference::Ref;
pub use types::{
    AsidPool, Endpoint, FloatingPointUse, HandlerState, Lineage, Notification, OwnInterrupts, PageTable,
    PriorityQueues, Queue, Slot, SyscallHandler, TCB_SLOTS, Tcb, ThreadFault, ThreadState, Used, UserInterrupts, Words,
    frame_words, own,
};
pub use user::{
    Space, VirtualRoot, activate, arm, enter, enter_armed, enter_virtualised, forget_armed, prepare_virtualised,
    save_armed,
};
