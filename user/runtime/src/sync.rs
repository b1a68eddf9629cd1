//! Locks and signals between coroutines: a coroutine that waits here lets others run.
//!
//! [`Mutex`] is our own, because its holder inherits the priority of its waiters, and so is [`Notify`], which keeps a
//! notification; only the mutex passes priorities on. [`broadcast`], [`watch`] and [`CancellationToken`] are our own
//! for want of kept crates without `std`. [`oneshot`] is that of `futures-channel`, and the other types are those of
//! `async-lock` and `event-listener`, which work with any executor and never spin. For a few instructions that never
//! await, a spin lock is cheaper ([`crate::Lock`]); to hand values over, see [`crate::channel`].

pub mod broadcast;
pub mod watch;

pub use crate::cancellation::{CancellationToken, DropGuard};
pub use crate::mutex::{Acquire, Mutex, MutexGuard};
pub use crate::notify::{Notified, Notify};
pub use crate::waker_map::WakerMap;
pub use async_lock::{Barrier, OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphoreGuard};
pub use event_listener::{Event, EventListener};
/// A channel for one value, which its receiver awaits. The sender's `cancellation` is what tokio calls `closed`.
///
/// # Cancellation
///
/// Strict for a receiver that is awaited by `&mut`; dropping it closes the channel, and the value with it.
pub use futures_channel::oneshot;
