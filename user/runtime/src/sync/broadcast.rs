//! A queue of which every receiver gets every value.
//!
//! Values stand in one queue until all receivers have had them, or until they are pushed out: a sender never waits. A
//! receiver that falls behind by more than the queue's capacity loses the oldest values, and is told how many. So one
//! slow receiver costs the others nothing, and memory is bounded. (`async-broadcast`, where a sender waits for the
//! slowest, needs `std`.)

use core::fmt;
use core::future::Future;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::channel::Closed;
use crate::lock::Lock;
use crate::waiting::{Audience, until};

/// The reason why no value was received.
#[doc(alias = "RecvError")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// All values were received, and no sender is left.
    Closed,
    /// This many values were pushed out unseen. The next call gives the oldest that is left.
    Lagged(u64),
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiveError::Closed => formatter.write_str("no sender is left"),
            ReceiveError::Lagged(count) => write!(formatter, "{count} values were pushed out unseen"),
        }
    }
}

impl core::error::Error for ReceiveError {}

struct Slot<T> {
    value: Arc<T>,
    /// Number of receivers that have not had it yet.
    unread: usize,
}

struct BroadcastState<T> {
    slots: VecDeque<Slot<T>>,
    /// Number of the first slot's value among all values ever sent.
    first: u64,
    capacity: usize,
    senders: usize,
    receivers: usize,
    audience: Audience,
}

impl<T> BroadcastState<T> {
    fn audience(&mut self) -> &mut Audience {
        &mut self.audience
    }

    /// Number of the next value to be sent.
    fn end(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Returns the value with this number, which the receiver has then had; `None` if there is no such value yet.
    fn take(&mut self, next: &mut u64) -> Option<Result<Arc<T>, ReceiveError>> {
        if *next < self.first {
            let lost = self.first - *next;
            *next = self.first;
            return Some(Err(ReceiveError::Lagged(lost)));
        }
        let place = (*next - self.first) as usize;
        let Some(slot) = self.slots.get_mut(place) else {
            return (self.senders == 0).then_some(Err(ReceiveError::Closed));
        };
        *next += 1;
        slot.unread -= 1;
        if slot.unread > 0 {
            return Some(Ok(slot.value.clone()));
        }
        // All values before have been had by those that were to get them: each receiver goes through them in order.
        self.first += 1;
        self.slots.pop_front().map(|slot| Ok(slot.value))
    }
}

type SharedBroadcast<T> = Arc<Lock<BroadcastState<T>>>;

/// The sending end of a broadcast. Clones are further senders.
pub struct Sender<T>(SharedBroadcast<T>);

/// A receiving end of a broadcast: it gets every value that is sent after it was made.
pub struct Receiver<T> {
    shared: SharedBroadcast<T>,
    /// Number of the next value to receive.
    next: u64,
}

/// Makes a broadcast that keeps at most `capacity` values for receivers that have not had them.
///
/// # Panics
///
/// If the capacity is 0.
#[doc(alias("broadcast", "pubsub"))]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a broadcast holds at least one value");
    let state = BroadcastState {
        slots: VecDeque::new(),
        first: 0,
        capacity,
        senders: 1,
        receivers: 1,
        audience: Audience::new(),
    };
    let shared = Arc::new(Lock::new(state));
    (Sender(shared.clone()), Receiver { shared, next: 0 })
}

fn subscribe<T>(shared: &SharedBroadcast<T>) -> Receiver<T> {
    let mut state = shared.lock();
    state.receivers += 1;
    Receiver { shared: shared.clone(), next: state.end() }
}

impl<T> Sender<T> {
    /// Sends a value to all receivers that exist, and returns their number. It never waits: if the queue is full the
    /// oldest value is pushed out.
    ///
    /// # Errors
    ///
    /// [`Closed`] with the value, if there is no receiver; there may be one again ([`Sender::subscribe`]).
    pub fn send(&self, value: T) -> Result<usize, Closed<T>> {
        let value = Arc::new(value);
        let mut state = self.0.lock();
        let receivers = state.receivers;
        if receivers == 0 {
            drop(state);
            return match Arc::try_unwrap(value) {
                Ok(value) => Err(Closed(value)),
                Err(_) => unreachable!("no other code has had the value"),
            };
        }
        let mut pushed_out = None;
        if state.slots.len() == state.capacity {
            pushed_out = state.slots.pop_front();
            state.first += 1;
        }
        state.slots.push_back(Slot { value, unread: receivers });
        let audience = state.audience.take_all();
        drop(state);
        // Dropping a value may run anything, as a waker may.
        drop(pushed_out);
        audience.for_each(core::task::Waker::wake);
        Ok(receivers)
    }

    /// Makes another receiver, for the values that are sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        subscribe(&self.0)
    }

    /// Returns the number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.0.lock().receivers
    }
}

impl<T: Clone> Receiver<T> {
    /// Receives the next value, and waits until there is one.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]: values were lost, or none will come.
    ///
    /// # Cancellation
    ///
    /// Strict. The value stays the next one.
    #[doc(alias = "recv")]
    pub fn receive(&mut self) -> impl Future<Output = Result<T, ReceiveError>> + Send + use<'_, T>
    where
        T: Send + Sync,
    {
        let Receiver { shared, next } = self;
        async move { until(shared, BroadcastState::audience, |state| state.take(next)).await.map(own) }
    }

    /// Receives the next value if there is one.
    ///
    /// # Errors
    ///
    /// As [`Receiver::receive`].
    #[doc(alias = "try_recv")]
    pub fn try_receive(&mut self) -> Result<Option<T>, ReceiveError> {
        let taken = self.shared.lock().take(&mut self.next);
        taken.transpose().map(|value| value.map(own))
    }
}

/// Returns the value, without a copy if no other receiver is to get it. Not under the lock: `clone` may run anything.
fn own<T: Clone>(value: Arc<T>) -> T {
    Arc::try_unwrap(value).unwrap_or_else(|shared| (*shared).clone())
}

impl<T> Receiver<T> {
    /// Makes another receiver, for the values that are sent from now on.
    pub fn resubscribe(&self) -> Receiver<T> {
        subscribe(&self.shared)
    }

    /// Returns the number of values to receive, those that were pushed out included.
    pub fn len(&self) -> usize {
        (self.shared.lock().end() - self.next) as usize
    }

    /// Returns whether there is no value to receive.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.senders -= 1;
        if state.senders == 0 {
            let audience = state.audience.take_all();
            drop(state);
            audience.for_each(core::task::Waker::wake);
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.receivers -= 1;
        let unread = self.next.saturating_sub(state.first) as usize;
        state.slots.iter_mut().skip(unread).for_each(|slot| slot.unread -= 1);
        let seen = state.slots.iter().take_while(|slot| slot.unread == 0).count();
        state.first += seen as u64;
        let dropped: Vec<Slot<T>> = state.slots.drain(..seen).collect();
        drop(state);
        drop(dropped);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Receiver").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use core::pin::pin;
    use core::task::{Context, Poll};
    use proptest::prelude::*;

    #[test]
    fn all_ends_see_that_the_other_side_has_gone() {
        let (sender, receiver) = channel(2);
        drop(receiver);
        assert_eq!(sender.send(1), Err(Closed(1)));
        let mut receiver = sender.subscribe();
        let (wakes, waker) = Wakes::counted();
        let mut waits = pin!(receiver.receive());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(sender.clone());
        assert_eq!((wakes.count(), sender.receiver_count()), (0, 1));
        drop(sender);
        assert_eq!(wakes.count(), 1);
        assert_eq!(waits.poll(&mut Context::from_waker(&waker)), Poll::Ready(Err(ReceiveError::Closed)));
    }

    #[test]
    fn the_last_receiver_of_a_value_gets_it_without_a_copy() {
        #[derive(Debug)]
        struct Counted(Arc<core::sync::atomic::AtomicUsize>);
        impl Clone for Counted {
            fn clone(&self) -> Counted {
                self.0.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
                Counted(self.0.clone())
            }
        }
        let (sender, mut one) = channel(2);
        let mut two = one.resubscribe();
        let copies = Arc::default();
        sender.send(Counted(Arc::clone(&copies))).unwrap();
        assert!(one.try_receive().unwrap().is_some() && two.try_receive().unwrap().is_some());
        assert_eq!(copies.load(core::sync::atomic::Ordering::Relaxed), 1);
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Beside a list of all values ever sent, in which each receiver has a place: every receiver gets every value
        /// in order, or the number of those it lost; every send wakes those that wait; and no value stays that all have
        /// had.
        #[test]
        fn every_receiver_gets_every_value(
            capacity in 1..4usize,
            steps in prop::collection::vec((0..6u8, 0..8usize), 1..200),
        ) {
            let (sender, first) = channel(capacity);
            let (mut sent, mut receivers): (usize, _) = (0, std::vec![(first, 0usize)]);
            for (step, which) in steps {
                let which = which % receivers.len().max(1);
                match step {
                    0 | 1 => {
                        let expected = if receivers.is_empty() { Err(Closed(sent)) } else { Ok(receivers.len()) };
                        prop_assert_eq!(sender.send(sent), expected);
                        sent += usize::from(!receivers.is_empty());
                    }
                    2 => receivers.push((sender.subscribe(), sent)),
                    3 | 4 if !receivers.is_empty() => {
                        let count = receivers.len();
                        let (receiver, next) = &mut receivers[which];
                        prop_assert_eq!(receiver.len(), sent - *next);
                        let oldest = sent.saturating_sub(capacity);
                        let expected = if *next < oldest {
                            Err(ReceiveError::Lagged((oldest - core::mem::replace(next, oldest)) as u64))
                        } else if *next < sent {
                            *next += 1;
                            Ok(Some(*next - 1))
                        } else {
                            Ok(None)
                        };
                        // Both forms, and a future that is dropped, agree.
                        let (wakes, waker) = Wakes::counted();
                        let mut context = Context::from_waker(&waker);
                        if expected == Ok(None) {
                            let mut waits = std::boxed::Box::pin(receiver.receive());
                            prop_assert!(waits.as_mut().poll(&mut context).is_pending());
                            prop_assert_eq!(sender.send(sent), Ok(count));
                            prop_assert_eq!(wakes.count(), 1);
                            sent += 1;
                        } else {
                            prop_assert_eq!(receiver.try_receive(), expected);
                        }
                    }
                    5 if !receivers.is_empty() => drop(receivers.remove(which)),
                    _ => {}
                }
                let oldest = receivers.iter().map(|(_, next)| *next).min().unwrap_or(sent);
                let kept = (sent - oldest.min(sent)).min(capacity);
                prop_assert_eq!(sender.0.lock().slots.len(), kept);
            }
        }
    }
}
