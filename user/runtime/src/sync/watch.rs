//! A value that many coroutines watch: they see its latest state, and wait for the next change.
//!
//! The value is behind a reference count. Readers take a reference and look at it as long as they like, without a lock;
//! a writer puts a new value in its place. (tokio lends the value under a lock instead, where a reader that keeps it
//! too long blocks the writer.)

use core::fmt;
use core::future::Future;

use alloc::sync::Arc;

use crate::channel::Closed;
use crate::lock::Lock;
use crate::waiting::{Audience, until};

struct WatchState<T> {
    value: Arc<T>,
    /// Number of changes so far.
    version: u64,
    is_closed: bool,
    receivers: usize,
    changed: Audience,
    /// Senders that wait until no receiver is left.
    closed: Audience,
}

impl<T> WatchState<T> {
    fn changed(&mut self) -> &mut Audience {
        &mut self.changed
    }

    fn closed(&mut self) -> &mut Audience {
        &mut self.closed
    }

    /// Whether the value has changed since the version that was seen, which becomes the current one.
    fn change_since(&self, seen: &mut u64) -> Option<Result<(), Closed<()>>> {
        if core::mem::replace(seen, self.version) != self.version {
            return Some(Ok(()));
        }
        self.is_closed.then_some(Err(Closed(())))
    }
}

type SharedWatch<T> = Arc<Lock<WatchState<T>>>;

/// The writing end of a watched value. There is one.
pub struct Sender<T>(SharedWatch<T>);

/// A reading end of a watched value. Clones are further ones, which have seen the same.
pub struct Receiver<T> {
    shared: SharedWatch<T>,
    /// The version that was seen last.
    seen: u64,
}

/// Makes a watched value. Its receivers have seen the initial state.
#[doc(alias = "watch")]
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let state = WatchState {
        value: Arc::new(value),
        version: 0,
        is_closed: false,
        receivers: 1,
        changed: Audience::new(),
        closed: Audience::new(),
    };
    let shared = Arc::new(Lock::new(state));
    (Sender(shared.clone()), Receiver { shared, seen: 0 })
}

impl<T> Sender<T> {
    /// Changes the value, and wakes all that wait for it.
    ///
    /// # Errors
    ///
    /// [`Closed`] with the value, if there is no receiver; the value has not changed then.
    pub fn send(&self, value: T) -> Result<(), Closed<T>> {
        if self.is_closed() {
            return Err(Closed(value));
        }
        self.send_replace(value);
        Ok(())
    }

    /// Changes the value, also if there is no receiver, and returns the one before.
    pub fn send_replace(&self, value: T) -> Arc<T> {
        let value = Arc::new(value);
        let mut state = self.0.lock();
        let before = core::mem::replace(&mut state.value, value);
        state.version += 1;
        let audience = state.changed.take_all();
        drop(state);
        audience.for_each(core::task::Waker::wake);
        before
    }

    /// Changes a copy of the value by a function, and puts it in its place.
    pub fn send_modify(&mut self, modify: impl FnOnce(&mut T))
    where
        T: Clone,
    {
        self.send_if_modified(|value| {
            modify(value);
            true
        });
    }

    /// Changes a copy of the value by a function, and puts it in its place if the function returns `true`; returns
    /// whether it did.
    pub fn send_if_modified(&mut self, modify: impl FnOnce(&mut T) -> bool) -> bool
    where
        T: Clone,
    {
        // By the exclusive reference no other change comes between, so the function runs without the lock.
        let mut value = (*self.borrow()).clone();
        let is_changed = modify(&mut value);
        if is_changed {
            self.send_replace(value);
        }
        is_changed
    }

    /// Returns the current value.
    pub fn borrow(&self) -> Arc<T> {
        self.0.lock().value.clone()
    }

    /// Makes another receiver, which has seen the current value.
    pub fn subscribe(&self) -> Receiver<T> {
        let mut state = self.0.lock();
        state.receivers += 1;
        Receiver { shared: self.0.clone(), seen: state.version }
    }

    /// Returns the number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.0.lock().receivers
    }

    /// Returns whether no receiver is left.
    pub fn is_closed(&self) -> bool {
        self.receiver_count() == 0
    }

    /// Waits until no receiver is left.
    ///
    /// # Cancellation
    ///
    /// Strict.
    pub async fn closed(&self) {
        until(&self.0, WatchState::closed, |state| (state.receivers == 0).then_some(())).await;
    }
}

impl<T> Receiver<T> {
    /// Returns the current value, without marking it as seen.
    pub fn borrow(&self) -> Arc<T> {
        self.shared.lock().value.clone()
    }

    /// Returns the current value, which is thereby seen.
    pub fn borrow_and_update(&mut self) -> Arc<T> {
        let state = self.shared.lock();
        self.seen = state.version;
        state.value.clone()
    }

    /// Returns whether the value has changed since it was seen.
    ///
    /// # Errors
    ///
    /// [`Closed`] if the sender is gone and its last value was seen.
    pub fn has_changed(&self) -> Result<bool, Closed<()>> {
        let state = self.shared.lock();
        match state.version != self.seen {
            false if state.is_closed => Err(Closed(())),
            changed => Ok(changed),
        }
    }

    /// Waits until the value has changed since it was seen; it is seen then.
    ///
    /// # Errors
    ///
    /// [`Closed`] if the sender is gone and its last value was seen.
    ///
    /// # Cancellation
    ///
    /// Strict. The change stays unseen.
    pub fn changed(&mut self) -> impl Future<Output = Result<(), Closed<()>>> + use<'_, T> {
        let Receiver { shared, seen } = self;
        until(shared, WatchState::changed, |state| state.change_since(seen))
    }

    /// Waits until the value, which may be the current one, meets a condition, and returns it.
    ///
    /// # Errors
    ///
    /// [`Closed`] if the sender is gone and its last value does not meet it.
    ///
    /// # Cancellation
    ///
    /// Strict. The next call begins with the current value again.
    pub async fn wait_for(&mut self, mut condition: impl FnMut(&T) -> bool) -> Result<Arc<T>, Closed<()>> {
        loop {
            let value = self.borrow_and_update();
            if condition(&value) {
                return Ok(value);
            }
            drop(value);
            self.changed().await?;
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.lock().receivers += 1;
        Receiver { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        let audience = state.changed.take_all();
        drop(state);
        audience.for_each(core::task::Waker::wake);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.receivers -= 1;
        if state.receivers == 0 {
            let audience = state.closed.take_all();
            drop(state);
            audience.for_each(core::task::Waker::wake);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sender").field("value", &self.borrow()).finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Receiver").field("value", &self.borrow()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use core::pin::pin;
    use core::task::{Context, Poll};
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::vec;

    #[test]
    fn a_condition_is_tried_on_the_current_value_and_on_every_change() {
        let (mut sender, mut receiver) = channel(1);
        let (wakes, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        assert_eq!(pin!(receiver.wait_for(|value| *value == 1)).poll(&mut context), Poll::Ready(Ok(Arc::new(1))));
        let mut waits = pin!(receiver.wait_for(|value| *value > 2));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert!(!sender.send_if_modified(|value| {
            *value = 7;
            false
        }));
        assert_eq!(wakes.count(), 0);
        sender.send_modify(|value| *value += 1);
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(sender);
        assert_eq!(wakes.count(), 2);
        assert_eq!(waits.poll(&mut context), Poll::Ready(Err(Closed(()))));
    }

    #[test]
    fn a_sender_sees_that_all_receivers_have_gone() {
        let (sender, receiver) = channel(1);
        let (wakes, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        let mut closed = pin!(sender.closed());
        assert!(closed.as_mut().poll(&mut context).is_pending());
        drop(receiver.clone());
        assert!(closed.as_mut().poll(&mut context).is_pending() && wakes.count() == 0);
        drop(receiver);
        assert!(closed.poll(&mut context).is_ready() && wakes.count() == 1);
        assert_eq!(sender.send(2), Err(Closed(2)));
        assert_eq!((*sender.send_replace(3), *sender.borrow(), *sender.subscribe().borrow()), (1, 3, 3));
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Beside a number that each receiver has seen: a change that was not seen is never waited for, and one that
        /// comes wakes all that wait, also after a future was dropped.
        #[test]
        fn no_change_is_missed(steps in prop::collection::vec((0..6u8, 0..8usize), 1..200)) {
            let (sender, first) = channel(0u64);
            let (mut version, mut receivers) = (0u64, vec![(first, 0u64)]);
            for (step, which) in steps {
                let which = which % receivers.len().max(1);
                let (wakes, waker) = Wakes::counted();
                let mut context = Context::from_waker(&waker);
                match step {
                    0 if receivers.is_empty() => prop_assert_eq!(sender.send(9), Err(Closed(9))),
                    0 => {
                        version += 1;
                        prop_assert_eq!(sender.send(version), Ok(()));
                    }
                    1 => receivers.push((sender.subscribe(), version)),
                    2 if !receivers.is_empty() => {
                        let (receiver, seen) = &mut receivers[which];
                        prop_assert_eq!(receiver.has_changed(), Ok(*seen != version));
                        let mut changed = Box::pin(receiver.changed());
                        if changed.as_mut().poll(&mut context).is_pending() {
                            prop_assert_eq!(*seen, version);
                            sender.send_replace(version + 1);
                            version += 1;
                            prop_assert_eq!(wakes.count(), 1);
                            prop_assert!(changed.as_mut().poll(&mut context).is_ready());
                        }
                        drop(changed);
                        *seen = version;
                    }
                    3 if !receivers.is_empty() => {
                        let (receiver, seen) = &mut receivers[which];
                        let mut dropped = Box::pin(receiver.changed());
                        prop_assert_eq!(dropped.as_mut().poll(&mut context).is_pending(), *seen == version);
                        drop(dropped);
                        *seen = version;
                        let clone = (receivers[which].0.clone(), version);
                        receivers.push(clone);
                    }
                    4 if !receivers.is_empty() => {
                        let (receiver, seen) = &mut receivers[which];
                        prop_assert_eq!(*receiver.borrow(), version);
                        prop_assert_eq!(*receiver.borrow_and_update(), version);
                        *seen = version;
                    }
                    5 if !receivers.is_empty() => drop(receivers.remove(which)),
                    _ => {}
                }
                prop_assert_eq!(sender.receiver_count(), receivers.len());
            }
        }
    }
}
