//! The Rust face of the scheduler: spawn, join, wakers, cancellation.
#![cfg_attr(not(loom), no_std)]

extern crate alloc;

// Under loom there is only the join state: the rest is the scheduler's, which has its own models.
#[cfg(not(loom))]
mod executor;
#[cfg(not(loom))]
mod frame;
#[cfg(not(loom))]
mod image;
#[cfg_attr(loom, allow(dead_code))]
mod join;
#[cfg(all(not(loom), any(test, feature = "suite")))]
pub mod suite;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
mod task;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
pub use {
    abi_queue::{MAXIMUM_WORKERS, Priority, ReadyWord},
    executor::{
        Cancelled, Cid, Executor, InitialiseError, JoinHandle, Outcome, Platform, Sharing, Signals, SpawnError, Stale,
        State, Worker, WorkerError,
    },
    frame::{YieldNow, yield_now},
    scheduler::Counters,
    table::{ImageError, Table},
};
