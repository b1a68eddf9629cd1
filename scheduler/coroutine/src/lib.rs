//! The Rust interface of the scheduler: spawn, join, wakers, cancellation.
//!
//! An [`Executor`] is a static that runs futures on up to eight workers, most important first. The crate `scheduler`
//! schedules them, through a [`Table`] of functions: from the image that the kernel and every process share, or linked
//! in. This crate adds the Rust types: any future may be spawned, wakers are [`core::task::Waker`]s, and its users need
//! no unsafe code (except to assert that some memory is the image).
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
//! let answer = EXECUTOR.spawn(Priority::DEFAULT, async { yield_now().await; 42 });
//! EXECUTOR.spawn(Priority::HIGHEST, async move { assert_eq!(answer.await, Ok(42)) }).detach();
//! assert_eq!(worker.run(), Outcome::Idle);
//! # }
//! ```
//!
//! # Cost of a coroutine
//!
//! `spawn` makes one allocation, with the scheduler's header, the join state, and the future, which the output replaces
//! later. A waker is two words without a reference count (see `frame`). Yielding is a store and a return.
//!
//! # Cancellation
//!
//! [`JoinHandle::cancel`] marks the coroutine; a worker drops the future, never during a poll. Awaiting the handle then
//! returns [`Cancelled`]. Dropping a handle *detaches* the coroutine, which continues.
//!
//! # Unsafe code
//!
//! Unsafe code is needed where the compiler cannot check: a block whose type is erased between `spawn` and `poll`
//! (`task`), two owners of one block (`join`), the worker's frame (`frame`), and calls through the table (`executor`,
//! `table`).
#![cfg_attr(not(loom), no_std)]

extern crate alloc;

// Under loom there is only the join state; the scheduler has its own models.
#[cfg(not(loom))]
mod executor;
#[cfg(not(loom))]
mod frame;
#[cfg(not(loom))]
mod image;
#[cfg_attr(loom, allow(dead_code))]
mod join;
#[cfg(not(loom))]
mod observer;
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

#[cfg(all(not(loom), panic = "unwind"))]
pub use frame::unwinding;
#[cfg(not(loom))]
pub use {
    abi_queue::{MAXIMUM_WORKERS, Priority, ReadyWord},
    executor::{
        Cancelled, Cid, Executor, InitialiseError, JoinHandle, OFFSET_OF_SCHEDULER, Outcome, Platform, Sharing,
        Signals, SpawnError, Stale, State, Worker, WorkerError,
    },
    frame::{YieldNow, yield_now},
    observer::Observer,
    scheduler::Counters,
    table::{ImageError, Table},
    task::OFFSET_OF_FUTURE,
    trace::{Tracer, trace_with},
};
