//! The priority coroutine scheduler: ready sets, states, many workers.
//!
//! One implementation schedules the coroutines of the Unix-like kernel and, through the shared image (crate `vdso`), of
//! every process; programs of the microkernel link it. It depends on no machine and no kernel, allocates nothing, has
//! no globals and never panics: all its state is an [`Executor`] and its slots, in the caller's memory. Rust programs
//! use the crate `coroutine`, a safe interface; C programs use `user/c/cops.h`.
//!
//! # The objects
//!
//! ```text
//!   Executor                                    the caller's memory
//!  +--------------------------------+          +---------------------+
//!  | shard 0: lock, bitmap*, lists -+--------->| Header: links, cid, |<---> next in the list
//!  |          free slots            |          |  poll, finish       |
//!  | shard 1 ...                    |          | (future, result, …) |
//!  | directory --> chunk of slots   |          +---------------------+
//!  +---------------|----------------+                    ^
//!                  v                                     |
//!            Slot: state word, header pointer -----------+        * in the caller's ready words
//! ```
//!
//! * A [`Header`] is the control block of one coroutine, at the beginning of the caller's data for it.
//! * A [`Slot`] outlives its coroutine. A *cid* is the slot's index and its generation, so that an old cid is an error
//!   ([`Stale`]) and never identifies another coroutine.
//! * A *shard* (`shard`) holds the ready coroutines of one worker. A *worker* is a stack that calls [`Executor::run`].
//!
//! # Guarantees
//!
//! * A worker takes the most important ready coroutine that it can see in any shard; among equals its own shard's, in
//!   the order of [`order`]: first in, first out in the image.
//! * A wake is never lost: a wake during the poll makes the coroutine ready again. The poll that follows sees
//!   everything that the waking thread wrote before the wake.
//! * [`Executor::set_priority`] works in every state.
//! * A cancelled coroutine is not polled again, and `finish` is called exactly once for each.
//! * The cost of every operation is independent of the number of coroutines, under the image's order.
//! * The caller's functions are called without a lock held. If workers are not preempted inside this code, no worker
//!   ever waits for one that does not run.
//!
//! Implementation: `state` documents the state word and each transition, `shard` the ready set, `executor` the
//! permitted access to each field, and `docs/decisions/001-ready-set.md` the rejected designs.
//!
//! # Verification
//!
//! Four methods: traces on one thread; random histories against a naive model (`tests`); interleavings of small cases
//! with a bounded number of preemptions (`loom_tests`); and `coroutine::suite`, which runs on the host and on the
//! target, there through the image.
#![cfg_attr(not(any(test, loom)), no_std)]

pub mod entry;
mod executor;
#[cfg(all(test, loom))]
mod loom_tests;
pub mod order;
mod run;
mod shard;
mod state;
pub mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

pub use executor::{
    CANCELLED_OUTCOME, COMPLETED, Counters, DEBUGGER_LAYOUT, DONE, Executor, Full, Header, Hooks, Outcome, PENDING,
    Sharing, Signals, Slot, SpawnError, Stale, State, Step, StepOf, YIELDED, step_of,
};
pub use order::{Fifo, Image, Order};
pub use sync::ReadyWord;

/// Number of priorities.
#[cfg(not(loom))]
pub const PRIORITIES: usize = abi_queue::PRIORITIES;
/// Number of shards, which is the largest number of workers.
#[cfg(not(loom))]
pub const SHARDS: usize = abi_queue::MAXIMUM_WORKERS;
/// Number of chunks of slots that an executor can have.
#[cfg(not(loom))]
pub const CHUNKS: usize = 1024;
/// Number of slots in a chunk.
#[cfg(not(loom))]
pub const SLOTS_IN_CHUNK: usize = 256;

// The model checker tracks every word, so under loom there are only few.
#[cfg(loom)]
#[allow(missing_docs)]
mod small {
    pub const PRIORITIES: usize = 2;
    pub const SHARDS: usize = 2;
    pub const CHUNKS: usize = 1;
    pub const SLOTS_IN_CHUNK: usize = 2;
}
#[cfg(loom)]
pub use small::*;

/// Size of a chunk of slots in bytes: a page.
pub const CHUNK_BYTES: usize = SLOTS_IN_CHUNK * size_of::<Slot>();
