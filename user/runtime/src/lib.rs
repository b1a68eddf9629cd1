//! The runtime of Rust programs of the Unix kernel: the main coroutine, asynchronous calls, sockets, files.
//!
//! ```ignore
//! #![no_std]
//! #![no_main]
//!
//! #[cops::main]
//! async fn main() {
//!     let handle = cops::spawn(async { 6 * 7 });
//!     cops::println!("{}", handle.await.unwrap());
//! }
//! ```
//!
//! A program is made of coroutines. The scheduler that runs them is the kernel's own, mapped into every process. This
//! crate adds workers to it ([`alloc_cpu`]) and connects it with the kernel's completions ([`call`]). It offers
//! [`spawn`] with priorities and join handles, sleeping and time limits ([`time`]), queues ([`channel`]), locks
//! ([`sync`]), connections ([`net`]), files, directories and pipes ([`mod@file`],
//! [`io`]), processes ([`process`]) and signals ([`mod@signal`]). Any future
//! of the Rust ecosystem that needs no particular executor runs here.
//!
//! # Other crates
//!
//! Features, all off at first, connect crates that need something of the system: `critical-section` and `getrandom`
//! implement these crates, `log` and `tracing` print what others report, `embedded-io-async` and `stream` add the
//! traits of these crates and of `futures-core`.
//!
//! The feature `std` is for programs with the standard library, which are built for Linux on riscv64: they have threads
//! and files of `std` beside coroutines. The book tells the differences.
//!
//! # Blocking and waiting
//!
//! An `await` blocks one coroutine. A synchronous call (everything in [`system`], printing, opening files) blocks the
//! worker, and with one worker the whole process: use it for operations that never wait, or not for long. There is no
//! `spawn_blocking`: code that must block runs on a thread of its own ([`thread::spawn`]). A coroutine that computes
//! for long should call [`yield_now`] now and then, enable [`preemption`], or leave the others another worker.
//!
//! # Cancellation
//!
//! A future that is not polled any more can always be dropped. Buffers of calls in flight stay with the call
//! ([`buffer`]). The section *Cancellation* of an `async` function, or of a function that returns a future, begins with
//! one of three verdicts on dropping that future before it is ready:
//!
//! * **Strict**: at most the place in a queue of waiters is lost. No value, signal or byte is; calling the function
//!   again continues as if the first call had not been made. Such a function is safe in a loop around
//!   [`select::select`] (the property that tokio calls *cancel safe*).
//! * **Weak**: every object stays usable, but the operation may have had its effect, or a part of it, and the result or
//!   the arguments are lost. The text names the loss.
//! * **None**: an object is unusable until the operation has been completed. No function of this crate has this
//!   verdict.
// The models in `tests/loom.rs` compile single modules.
#![cfg(not(loom))]
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(not(target_os = "none"), allow(dead_code, reason = "its users are in the start-up code of the target"))]

extern crate alloc;
#[cfg(not(target_os = "none"))]
extern crate std;

// The examples in the README and in the book are compiled with this crate's own.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/writing-programs.md")]
mod book {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/three-programs.md")]
mod book_three_programs {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/interrupts.md")]
mod book_interrupts {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/authority.md")]
mod book_authority {}

/// The atomics of [`meeting`]; its models have loom's in their place.
mod atomics {
    pub use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
}
pub mod buffer;
mod buffered;
#[doc(alias("reactor", "mio", "I/O driver"))]
pub mod call;
pub mod channel;
#[cfg(feature = "embedded-io-async")]
pub mod embedded;
mod executor;
pub mod file;
#[cfg(feature = "futures-io")]
mod futures_io;
mod heap;
#[cfg(feature = "hyper")]
pub mod hyper;
mod inheritance;
pub mod interrupt;
pub mod io;
mod join_set;
mod local;
mod lock;
#[cfg(feature = "log")]
pub mod logging;
#[doc(hidden)]
pub mod macros;
mod meeting;
mod names;
pub mod net;
mod observing;
pub mod preemption;
pub mod process;
pub mod random;
mod room;
pub mod select;
pub mod signal;
#[doc(hidden)]
pub mod start;
#[cfg(feature = "stream")]
pub mod stream;
mod submission;
pub mod sync;
pub mod thread;
pub mod time;
#[doc(alias("perfetto", "profiling"))]
pub mod trace;
#[cfg(feature = "tracing")]
pub mod tracing;
mod waiting;
pub mod waker_map;
#[cfg(test)]
mod wakes;

pub use abi_queue::{Mode, Priority};
pub use coroutine::{Cancelled, Cid, Counters, Executor, JoinHandle, Stale, State, yield_now};
pub use executor::{
    alloc_cpu, coroutine_run, current, current_priority, default_priority, executor, mode, priority,
    set_default_priority, set_mode, set_priority, spawn, spawn_at, spawn_named, spawn_named_at, wake, workers,
};
pub use join_set::{JoinSet, Scope, scope};
pub use lock::Lock;
pub use runtime_macros::main;
pub use time::{interval, interval_at, sleep, sleep_until, timeout};
/// The system calls, raw and typed, all of them synchronous.
pub use unix as system;
pub use unix::start::{arguments, environment};
pub use unix::{Errno, eprint, eprintln, print, println};

/// Cid of the coroutine that waits for a call: the last argument of the system-call macros.
#[doc(hidden)]
pub struct Waiter(pub u64);

impl From<Cid> for Waiter {
    fn from(cid: Cid) -> Waiter {
        Waiter(cid.raw())
    }
}

impl From<u64> for Waiter {
    fn from(cid: u64) -> Waiter {
        Waiter(cid)
    }
}
