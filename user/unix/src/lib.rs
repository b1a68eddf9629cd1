//! System calls of the Unix kernel, raw and typed, and the start and end of programs.
//!
//! Every Rust program is built on this crate: one function for each call of `abi-unix`'s table, descriptors that close
//! themselves, the start-up code that finds the arguments, and a panic handler that prints the place and ends the
//! process. There is no heap and no scheduler here; both are in the runtime, one layer above, and a program that needs
//! neither can do without (see [`entry!`]).
//!
//! The typed functions are *synchronous*: the calling worker waits in the kernel, and the coroutines that it could have
//! run wait with it. Coroutines use the asynchronous form through the runtime instead.
//!
//! The crate also compiles for other machines, so that the crates above can be tested there; every call then returns
//! `ENOSYS`, like a kernel without the call.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(all(feature = "std", target_os = "none"))]
compile_error!("the feature `std` of `cops` is for the target riscv64gc-unknown-linux-gnu");
// musl passes the functions before `main` no arguments, and they would be looked for at a wrong place.
#[cfg(all(on_cops, feature = "std", not(target_env = "gnu")))]
compile_error!("programs with `std` and `cops` need glibc: the target riscv64gc-unknown-linux-gnu");

pub mod authority;
pub mod callers;
pub mod descriptor;
pub mod file;
pub mod interrupt;
pub mod kernel_side;
pub mod memory;
pub mod network;
#[cfg(target_os = "none")]
pub mod panic;
pub mod print;
pub mod process;
pub mod raw;
pub mod readiness;
pub mod scheduling;
pub mod signal;
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
