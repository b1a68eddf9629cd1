//! Locks and signals between coroutines: a coroutine that waits here lets others run.
//!
//! [`Mutex`] is our own, because its holder inherits the priority of its waiters, and so is [`Notify`], which keeps a
//! notification; only the mutex passes priorities on. The other types are those of `async-lock` and `event-listener`,
//! which work with any executor and never spin. For a few instructions that never await, a spin lock is cheaper
//! ([`crate::Lock`]); to hand values over, see [`crate::channel`].

pub use crate::mutex::{Acquire, Mutex, MutexGuard};
pub use crate::notify::{Notified, Notify};
pub use crate::waker_map::WakerMap;
pub use async_lock::{Barrier, OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphoreGuard};
pub use event_listener::{Event, EventListener};
