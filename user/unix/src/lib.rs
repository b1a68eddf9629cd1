//! System calls of the Unix kernel, raw and typed, and how a program starts and ends.
//!
//! This is the floor that every Rust program stands on: one function for each call of `abi-unix`'s table, descriptors
//! that close themselves, the start-up code that finds the arguments, and a panic that ends the process and says where.
//! There is no heap and no scheduler here; both live one floor up, in the runtime, and a program that needs neither can
//! do without (see [`entry!`]).
//!
//! The typed functions are *synchronous*: the calling worker waits in the kernel, and the coroutines it could have run
//! wait with it. Coroutines use the asynchronous form through the runtime instead.
//!
//! On a machine that is not COPS's the crate still compiles, so that the crates above can be tested there; every call
//! then answers `ENOSYS`, as a kernel does that does not know it.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod authority;
pub mod descriptor;
pub mod file;
pub mod interrupt;
pub mod kernel_side;
pub mod memory;
pub mod network;
#[cfg(all(target_arch = "riscv64", target_os = "none"))]
pub mod panic;
pub mod print;
pub mod process;
pub mod raw;
pub mod readiness;
pub mod scheduling;
pub mod start;
pub mod system;
pub mod terminal;
pub mod thread;
pub mod trace;
pub mod worker;

pub use abi_unix as abi;
pub use abi_unix::{Errno, Result, SystemCall};
pub use descriptor::Descriptor;
pub use raw::{syscall, syscall_asynchronous};
