//! What Unix programs and the Unix kernel agree on: system calls, error numbers, structures.
//!
//! Nothing here runs; every fact stands once. Where Linux has the call, its number, registers, flags, error and
//! layout are those of Linux riscv64, so that unmodified Linux programs can follow later; what is our own (asynchronous
//! form, workers, counters) lies in ranges that Linux does not use.
#![no_std]
#![forbid(unsafe_code)]

pub mod authority;
pub mod call;
pub mod errno;
pub mod trace;
pub mod types;

pub use authority::{Act, Capability, CapabilitySet};
pub use call::{ASYNCHRONOUS, SystemCall, WILL_BE_POSTED};
pub use errno::{Errno, Result};
pub use types::Counter;
