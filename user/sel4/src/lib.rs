//! The library of programs for the microkernel: root tasks and the servers that they start.
//!
//! ```ignore
//! #[sel4::root_task]
//! fn main(boot: sel4::BootInformation) {
//!     sel4::println!("{} untyped memories", boot.untypeds().count());
//! }
//! ```
//!
//! There are two layers. [`raw`] has system calls and invocations with numbers as arguments and results. Above it every
//! kind of capability is a type ([`capability`]) with a method for each invocation, which names the invocation of seL4
//! to which it corresponds. Most programs also need slots and memory ([`allocator`]), page tables made as needed
//! ([`mapping`]), threads ([`thread`]), faults ([`fault`]), and printing.
//!
//! A capability here is a name, a number that the kernel resolves at each use, and not an owner: whether it may be
//! used, how long the object lives and which other programs have it are the kernel's matter, as with file descriptors
//! that several processes share.
//!
//! # Capabilities and Rust's promises
//!
//! A program that has capabilities to its own pages and threads can unmap the pages and set the registers of the
//! threads, and so break any promise of the language from outside. As with `/proc/self/mem` on Unix, the operations
//! that could be used for this are not `unsafe` functions; Rust's promises are about the effects of a program through
//! the language. Functions that make memory out of addresses are `unsafe`.
//!
//! # Cancellation
//!
//! Sections of this name begin with one of the verdicts *Strict*, *Weak* and *None*, which the crate `cops`
//! (`user/runtime`) defines.
//!
//! # The thread pointer
//!
//! Each thread needs to find its IPC buffer. Programs built with this crate use no thread-local storage, so `tp` holds
//! the buffer's address. [`thread`] sets it for threads that it starts.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;
// For the examples in the book, which are whole programs: the host's heap and panic.
#[cfg(not(any(test, target_os = "none")))]
extern crate std;

// The examples in the book are compiled with this crate's own.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/microkernel.md")]
mod book {}

pub mod allocator;
pub mod asynchronous;
pub mod boot;
pub mod capability;
pub mod channel;
pub mod device;
pub mod executor;
pub mod fault;
pub mod heap;
mod lock;
pub mod mapping;
pub mod message;
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
mod panic;
pub mod print;
pub mod process;
pub mod raw;
pub mod shared;
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
mod start;
pub mod syscall_buffer;
pub mod thread;
pub mod time;
pub mod user_interrupt;

pub use abi_sel4 as abi;
pub use abi_sel4::{CNodeData, Error, Numbering, ObjectType, Rights};
pub use allocator::Allocator;
pub use boot::BootInformation;
pub use message::{Message, Received};
pub use raw::{Failure, Result};
pub use sel4_macros::root_task;
pub use shared::SharedMemory;
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
pub use start::exit;
pub use syscall_buffer::SyscallBuffer;
