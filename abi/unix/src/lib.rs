//! The contract between Unix programs and the Unix kernel: system calls, error numbers, structures.
//!
//! Nothing here runs; every fact is written once. Calls that Linux has keep its number, registers, flags, error and
//! layout for riscv64, so that unmodified Linux programs can follow later; our own calls (asynchronous form, workers,
//! counters) lie in ranges that Linux does not use.
#![no_std]
#![forbid(unsafe_code)]

pub mod authority;
pub mod call;
pub mod callers;
pub mod errno;
pub mod trace;
pub mod types;

pub use authority::{Act, Capability, CapabilitySet};
pub use call::{ASYNCHRONOUS, SystemCall, WILL_BE_POSTED};
pub use errno::{Errno, Result};
pub use types::Counter;
