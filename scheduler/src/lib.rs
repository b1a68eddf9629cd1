//! The priority coroutine scheduler: ready sets, states, many workers.
#![cfg_attr(not(any(test, loom)), no_std)]

pub mod entry;
mod executor;
#[cfg(all(test, loom))]
mod loom_tests;
mod run;
mod shard;
mod state;
pub mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

pub use executor::{
    CANCELLED_OUTCOME, COMPLETED, Counters, DONE, Executor, Finish, Full, Header, Hooks, Outcome, PENDING, Poll,
    Sharing, Signals, Slot, SpawnError, Stale, State, YIELDED,
};
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

// The model checker tracks every word, so it gets few of them.
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

/// Bytes of a chunk of slots: a page.
pub const CHUNK_BYTES: usize = SLOTS_IN_CHUNK * size_of::<Slot>();
