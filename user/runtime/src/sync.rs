//! Locks and signals between coroutines: a coroutine that waits here lets others run.
//!
//! [`Mutex`] is our own, because its holder inherits the priority of its waiters, and so is [`Notify`], which keeps a
//! notification; only the mutex passes priorities on. [`broadcast`], [`watch`] and [`CancellationToken`] are our own
//! for want of kept crates without `std`. [`oneshot`] is that of `futures-channel`, and the other types are those of
//! `async-lock` and `event-listener`, which work with any executor and never spin. For a few instructions that never
//! await, a spin lock is cheaper ([`crate::Lock`]); to hand values over, see [`crate::channel`].
//!
//! ```no_run
//! use std::sync::Arc; // In a program: `alloc::sync::Arc`.
//!
//! use cops::sync::Mutex;
//!
//! # async fn example() {
//! let total = Arc::new(Mutex::new(0u64));
//! let mut adders = cops::JoinSet::new();
//! for number in 0..10 {
//!     let total = total.clone();
//!     adders.spawn(async move { *total.lock().await += number });
//! }
//! while adders.join_next().await.is_some() {}
//! assert_eq!(*total.lock().await, 45);
//! # }
//! ```
//!
//! # Cancellation
//!
//! Types of other crates have no verdicts in their documentation. Those of the types exported here:
//!
//! * [`RwLock`], [`Semaphore`] and [`EventListener`]: **strict**. A notification that has come goes to the next
//!   listener.
//! * [`OnceCell::get_or_init`]: **weak**. The work of the initialiser is lost, and the next caller begins anew.
//! * [`Barrier::wait`]: **weak**. A coroutine that has begun to wait counts as one that has arrived.

pub mod broadcast;
mod cancellation;
mod mutex;
mod notify;
pub mod watch;

pub use crate::waker_map::WakerMap;
pub use async_lock::{Barrier, OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphoreGuard};
pub use cancellation::{CancellationToken, DropGuard};
pub use event_listener::{Event, EventListener};
/// A channel for one value, which its receiver awaits. The sender's `cancellation` is what tokio calls `closed`.
///
/// # Cancellation
///
/// Strict for a receiver that is awaited by `&mut`; dropping it closes the channel, and the value with it.
pub use futures_channel::oneshot;
pub use mutex::{Acquire, Mutex, MutexGuard};
pub use notify::{Notified, Notify};
