//! The Rust face of the scheduler: spawn, join, wakers, cancellation.
#![no_std]

extern crate alloc;

mod executor;
mod frame;
mod image;
mod join;
mod table;
mod task;
#[cfg(all(test, not(loom)))]
mod tests;

pub use abi_queue::{MAXIMUM_WORKERS, Priority, ReadyWord};
pub use executor::{
    Cancelled, Cid, Executor, InitialiseError, JoinHandle, Outcome, Platform, Signals, SpawnError, Stale, State,
    Worker, WorkerError,
};
pub use frame::{YieldNow, yield_now};
pub use scheduler::Counters;
pub use table::{ImageError, Table};
