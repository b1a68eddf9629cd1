//! The Rust face of the scheduler: spawn, join, wakers, cancellation.
//!
//! An [`Executor`] is a static that runs futures on up to eight workers, most important first. What schedules them is
//! the crate `scheduler`, reached through a [`Table`] of functions: from the image that the kernel and every process
//! share, or linked in. This crate adds what Rust can give: any future may be spawned, wakers are real
//! [`core::task::Waker`]s, and using it takes no unsafe code (except for saying that some memory is the image).
//!
//! ```
//! use coroutine::{Executor, Outcome, Platform, Priority, ReadyWord, Signals, Table, yield_now};
//!
//! struct OneThread;
//! impl Platform for OneThread {
//!     fn worker(&self) -> usize { 0 }
//!     fn notify(&self, _: usize) {}
//! }
//!
//! static EXECUTOR: Executor = Executor::new();
//! static READY: [ReadyWord; 8] = [const { ReadyWord::new() }; 8];
//!
//! # #[cfg(feature = "native")] {
//! EXECUTOR.initialise(Table::native(), &READY, &OneThread).unwrap();
//! let mut worker = EXECUTOR.worker(0, Signals::default()).unwrap();
//!
//! let answer = EXECUTOR.spawn(async { yield_now().await; 42 }, Priority::DEFAULT);
//! EXECUTOR.spawn(async move { assert_eq!(answer.await, Ok(42)) }, Priority::HIGHEST).detach();
//! assert_eq!(worker.run(), Outcome::Idle);
//! # }
//! ```
//!
//! # What a coroutine costs
//!
//! One allocation, made by `spawn`, with the scheduler's header, the join state, and the future, whose place the output
//! takes later. A waker is two words without a reference count: `frame` says how. Yielding is a store and a return.
//!
//! # Cancellation
//!
//! [`JoinHandle::cancel`] marks; a worker drops the future, never during a poll. Whoever awaits the handle gets
//! [`Cancelled`]. Dropping a handle *detaches*: the coroutine goes on.
//!
//! # Unsafe code
//!
//! It is needed where the compiler cannot follow: a block whose type is forgotten between `spawn` and `poll` (`task`),
//! two owners of one block (`join`), the worker's frame (`frame`), and calls through the table (`executor`, `table`).
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
mod trace;

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
    trace::{Tracer, trace_with},
};
