//! The lock between coroutines, with priority inheritance.
//!
//! Without inheritance a coroutine of medium priority could delay an important one without bound, because the
//! unimportant holder of the lock does not get to run. So each waiter lends its priority to the holder
//! ([`inheritance`](crate::inheritance)). The holder hands the lock directly to the most important waiter, and among
//! equals to the first. A holder that itself waits for another lock is woken when its priority changes, so that it
//! waits there with the new one and lends it on.
//!
//! The mutex of `async-lock`, which this one replaces, wakes the first waiter and records no holder. The other locks of
//! that crate have no single holder to lend to.
//!
//! # Ownership
//!
//! A spin lock, held for a few instructions, protects all fields but the value. The value belongs to the owner of the
//! guard: `locked` is set from when a guard is made, or promised to a waiter (`granted`), until it is dropped.

use alloc::collections::BTreeMap;
use core::cell::UnsafeCell;
use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use abi_queue::Priority;

use crate::inheritance::{self, Loan};
use crate::lock::Lock;

/// A mutual exclusion that coroutines wait for, in the order of their importance.
///
/// The holder is at least as important as each waiter. The holder is the coroutine that has locked the mutex, also if
/// it has given the guard to another.
pub struct Mutex<T: ?Sized> {
    state: Lock<MutexState>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through guards only, of which there is one at a time, on whichever worker.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

struct MutexState {
    locked: bool,
    /// Cid of the holder, or of the waiter that the lock is promised to; 0 if it is no coroutine.
    holder: u64,
    /// Ticket of the waiter to which the lock was handed and that has not taken it yet; 0 for none.
    granted: u64,
    /// Whether the waiters have lent the holder a priority.
    lent: bool,
    last_ticket: u64,
    /// By priority, then in the order of arrival.
    waiting: BTreeMap<(u8, u64), WaitingCoroutine>,
}

struct WaitingCoroutine {
    cid: u64,
    waker: Waker,
}

impl MutexState {
    const NEW: MutexState =
        MutexState { locked: false, holder: 0, granted: 0, lent: false, last_ticket: 0, waiting: BTreeMap::new() };

    /// Makes the loan to the holder equal to the most important waiter's priority; returns the coroutine to wake
    /// because of it.
    fn renew_loan(&mut self, lock: usize) -> Option<u64> {
        let most_important = self.waiting.first_key_value().map(|(&(priority, _), _)| priority);
        let loan = match most_important {
            Some(priority) => inheritance::lend(self.holder, lock, Priority::saturating(priority.into()), self.lent),
            None if self.lent => inheritance::repay(self.holder, lock),
            None => Loan::None { changed: false },
        };
        self.lent = matches!(loan, Loan::Made { .. });
        matches!(loan, Loan::Made { changed: true } | Loan::None { changed: true }).then_some(self.holder)
    }
}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { state: Lock::new(MutexState::NEW), value: UnsafeCell::new(value) }
    }

    /// Creates an unlocked mutex.
    #[cfg(loom)]
    pub fn new(value: T) -> Mutex<T> {
        Mutex { state: Lock::new(MutexState::NEW), value: UnsafeCell::new(value) }
    }

    /// Returns the value; by ownership no guard exists.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Returns a reference to the value; by exclusive access no guard exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Locks the mutex if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let mut state = self.state.lock();
        if state.locked {
            return None;
        }
        state.locked = true;
        state.holder = inheritance::caller();
        Some(MutexGuard { mutex: self, value: PhantomData })
    }

    /// Waits until it can be locked, and locks it.
    ///
    /// # Cancellation
    ///
    /// Strict. Gives up the place among the waiters and the loan made for it; a lock that was already handed to this
    /// waiter goes to the next one.
    pub fn lock(&self) -> Acquire<'_, T> {
        Acquire { mutex: self, place: None }
    }

    /// Returns the number under which this lock's loans are entered.
    fn number(&self) -> usize {
        (&raw const self.state).addr()
    }

    /// Hands the lock to the most important waiter.
    fn unlock(&self) {
        let next = {
            let mut state = self.state.lock();
            if core::mem::take(&mut state.lent) {
                inheritance::repay(state.holder, self.number());
            }
            match state.waiting.pop_first() {
                Some(((_, ticket), waiter)) => {
                    state.holder = waiter.cid;
                    state.granted = ticket;
                    // The new holder is woken below, so it need not be woken because of its loan.
                    let _ = state.renew_loan(self.number());
                    Some(waiter.waker)
                }
                None => {
                    state.locked = false;
                    state.holder = 0;
                    None
                }
            }
        };
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = formatter.debug_struct("Mutex");
        match self.try_lock() {
            Some(guard) => text.field("value", &&*guard).finish(),
            None => text.finish_non_exhaustive(),
        }
    }
}

/// Future of [`Mutex::lock`].
#[doc(alias = "MutexLockFuture")]
#[must_use = "a future does nothing unless awaited"]
pub struct Acquire<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// Priority and ticket under which the coroutine waits.
    place: Option<(u8, u64)>,
}

impl<'a, T: ?Sized> Future for Acquire<'a, T> {
    type Output = MutexGuard<'a, T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<MutexGuard<'a, T>> {
        let mutex = self.mutex;
        let changed = {
            let mut state = mutex.state.lock();
            let ticket = match self.place {
                Some((_, ticket)) if ticket == state.granted => {
                    state.granted = 0;
                    self.place = None;
                    return Poll::Ready(MutexGuard { mutex, value: PhantomData });
                }
                Some(place) => {
                    // Its priority and its waker may have changed since.
                    state.waiting.remove(&place);
                    place.1
                }
                None if !state.locked => {
                    state.locked = true;
                    state.holder = inheritance::caller();
                    return Poll::Ready(MutexGuard { mutex, value: PhantomData });
                }
                None => {
                    state.last_ticket += 1;
                    state.last_ticket
                }
            };
            let cid = inheritance::caller();
            let place = (inheritance::priority_of(cid).number(), ticket);
            self.place = Some(place);
            state.waiting.insert(place, WaitingCoroutine { cid, waker: context.waker().clone() });
            state.renew_loan(mutex.number())
        };
        if let Some(cid) = changed {
            crate::executor::wake_raw(cid);
        }
        Poll::Pending
    }
}

impl<T: ?Sized> Drop for Acquire<'_, T> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let mut state = self.mutex.state.lock();
        if state.granted == place.1 {
            state.granted = 0;
            drop(state);
            self.mutex.unlock();
        } else {
            let waiter = state.waiting.remove(&place);
            let changed = state.renew_loan(self.mutex.number());
            drop(state);
            // A foreign waker may run anything when it is dropped.
            drop(waiter);
            if let Some(cid) = changed {
                crate::executor::wake_raw(cid);
            }
        }
    }
}

/// The right to use the value of a [`Mutex`]. Dropping it hands the lock on.
#[must_use = "the lock is given up at once if nothing holds the guard"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// A guard is as shareable as the reference that it represents.
    value: PhantomData<&'a mut T>,
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, and this is it.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, and this is it, borrowed for as long as the reference lives.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::pin::pin;

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_at_a_time_in_order() {
        let mutex = Mutex::new(1);
        let first = poll(pin!(mutex.lock())).unwrap();
        assert!(mutex.try_lock().is_none());
        let (mut second, mut third) = (pin!(mutex.lock()), pin!(mutex.lock()));
        assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
        drop(first);
        assert!(mutex.try_lock().is_none(), "it was handed on");
        assert!(poll(third.as_mut()).is_none());
        let mut guard = poll(second.as_mut()).unwrap();
        *guard += 1;
        drop(guard);
        assert_eq!(*poll(third.as_mut()).unwrap(), 2);
        assert_eq!(mutex.try_lock().as_deref(), Some(&2));
    }

    #[test]
    fn a_dropped_waiter_is_passed_over_even_after_the_lock_was_handed_to_it() {
        let mutex = Mutex::new(());
        let first = poll(pin!(mutex.lock())).unwrap();
        let mut third = pin!(mutex.lock());
        {
            let mut second = pin!(mutex.lock());
            let mut never = pin!(mutex.lock());
            assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
            assert!(poll(never.as_mut()).is_none());
            drop(first);
        }
        drop(poll(third.as_mut()).unwrap());
        assert!(mutex.try_lock().is_some());
    }
}
