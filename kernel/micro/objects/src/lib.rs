//! The layouts of the microkernel's objects, and references to them.
//!
//! The microkernel has no heap: its objects live in memory that users gave it by retyping, at addresses that are known
//! only at run time, and refer to each other in cycles. No owner in Rust's sense exists for such memory. This crate is
//! the one place that turns addresses into objects; the kernel above it is safe Rust over [`Cell`](core::cell::Cell)s
//! and forbids unsafe code. Three invariants carry that:
//!
//! **LIVE-OBJECT**: a [`Ref`] exists in the kernel's state only while its memory holds an object of that kind.
//! References are made by retyping and at boot ([`claim`]), and are gone when the last capability to the object is:
//! deletion takes the object out of everything that refers to it before its memory can be retyped again.
//!
//! **PLAIN**: every bit pattern is a valid value of every object type here, and all zeros are an empty object. So
//! retyping needs to do no more than clear, and a mistake against LIVE-OBJECT confuses the kernel's state, which its
//! consistency checker finds, but is never a value that Rust believes impossible.
//!
//! **ONE-HART**: objects are touched only by the hart that holds the kernel's lock. The two exceptions are a running
//! thread's registers, which belong to the hart that runs it (RUNNING-CONTEXT), and contents of pages, which are only
//! ever accessed as atomics, because programs write them at the same time.
//!
//! **RUNNING-CONTEXT**: between the moment a hart leaves the kernel for a thread and its next trap, nobody else
//! accesses that thread's registers: a hart that wants to first makes the other one come into the kernel.
//!
//! The rejected way is an arena with indexes and generations: it needs a table whose size somebody has to choose, and a
//! comparison at every access.
#![cfg_attr(target_os = "none", no_std)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod capability;
mod lock;
mod memory;
mod reference;
mod types;
mod user;

pub use capability::{Capability, Dying, FrameSize, Mapping, Node, Page, Ring, VirtualRights, tag};
pub use lock::{Lock, Locked, lock_with};
#[cfg(not(target_os = "none"))]
pub use memory::{FAKE_BASE, fake, give_back};
pub use memory::{Object, Row, claim, claim_row, claim_slice, clear, copy_in, permit, physical_of, synchronise_page};
pub use reference::Ref;
pub use types::{
    AsidPool, Endpoint, FloatingPointUse, HANDLER_SLOTS, Handler, HandlerState, Lineage, Notification, PageTable,
    Queue, Slot, TCB_SLOTS, Tcb, ThreadFault, ThreadState, UserInterrupts, Words, frame_words, own,
};
pub use user::{Space, VirtualRoot, activate, enter, enter_virtualised};
