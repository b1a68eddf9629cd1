//! Who waits for an event of a kernel object: the wakers of the coroutines that found it not ready.
//!
//! An object keeps one list for each kind of event, under its own lock. The protocol is always the same: under the lock,
//! look whether the call can go on; if not, [`register`](Waiters::register) and return; whoever makes it ready takes the
//! lock, changes the object and calls [`wake_all`](Waiters::wake_all). No wake-up can fall between the look and the
//! registration, because both happen under one lock. A coroutine that gives up [`forget`](Waiters::forget)s its waker, so
//! that a list never holds more entries than coroutines wait.
//!
//! All waiters are woken, not one: a waiter that was woken may have been cancelled meanwhile, and would have to pass the
//! event on. In practice a list has one entry.

use core::task::Waker;

use smallvec::SmallVec;

/// Wakers of coroutines that wait for one kind of event.
#[derive(Default)]
pub struct Waiters(SmallVec<[Waker; 1]>);

impl Waiters {
    /// Nobody waits.
    pub const fn new() -> Waiters {
        Waiters(SmallVec::new_const())
    }

    /// Adds a waker, once.
    pub fn register(&mut self, waker: &Waker) {
        if !self.0.iter().any(|other| other.will_wake(waker)) {
            if self.0.try_reserve(1).is_ok() {
                self.0.push(waker.clone());
            } else if let Some(first) = self.0.first_mut() {
                // No memory for a longer list: another waiter, which will look and come back, makes room. (The list is not
                // empty, since its first place needs no memory.)
                core::mem::replace(first, waker.clone()).wake();
            }
        }
    }

    /// Takes a waker out again; nothing happens if it was woken already.
    pub fn forget(&mut self, waker: &Waker) {
        if let Some(position) = self.0.iter().position(|other| other.will_wake(waker)) {
            self.0.swap_remove(position);
        }
    }

    /// Wakes everybody and empties the list.
    pub fn wake_all(&mut self) {
        for waker in self.0.drain(..) {
            waker.wake();
        }
    }
}
