//! Channels: queues that join coroutines.
//!
//! Any number of senders and receivers, bounded or not, first in, first out for values and for waiters. A send or a
//! receive that need not wait is a few dozen instructions under a short lock and allocates nothing once the queue has
//! grown to its usual length. (`async-channel` was measured beside it: its event listeners cost several times as much
//! for each value with a waiter, which is the usual case for queues between coroutines of a server.)
//!
//! Dropping a waiting future loses no wake-up: one that had reached it is passed on to the next in line.
//!
//! ```no_run
//! # async fn example() {
//! let (sender, receiver) = cops::channel::bounded(16);
//! cops::spawn(async move {
//!     for number in 0..100u64 {
//!         // Waits while 16 numbers are in the channel; an error means that nobody receives.
//!         if sender.send(number).await.is_err() {
//!             return;
//!         }
//!     }
//! })
//! .detach();
//! // The channel ends with its last sender.
//! while let Some(number) = receiver.receive().await {
//!     cops::println!("{number}");
//! }
//! # }
//! ```

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use alloc::sync::Arc;

use crate::lock::Lock;
use crate::waiting::{NONE, ShortQueue, Waiting, wake};

/// The error of a send without a receiver; gives back the value.
#[doc(alias = "SendError")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed<T>(pub T);

/// The reason why a value could not be sent at once.
#[doc(alias = "TrySendError")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrySend<T> {
    /// Try again later, or wait.
    Full(T),
    /// No receiver is left.
    Closed(T),
}

/// The reason why no value could be received at once.
#[doc(alias = "TryRecvError")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryReceive {
    /// Try again later, or wait.
    Empty,
    /// The channel is empty and has no sender.
    Closed,
}

struct ChannelState<T> {
    values: ShortQueue<T>,
    capacity: usize,
    senders: u32,
    receivers: u32,
    sending: Waiting,
    receiving: Waiting,
    /// Last ticket given, on either side.
    ticket: u64,
}

impl<T> ChannelState<T> {
    fn try_send(&mut self, value: T) -> Result<Option<Waker>, TrySend<T>> {
        if self.receivers == 0 {
            return Err(TrySend::Closed(value));
        }
        if self.values.len() >= self.capacity {
            return Err(TrySend::Full(value));
        }
        self.values.push_back(value);
        Ok(self.receiving.first())
    }

    fn try_receive(&mut self) -> Result<(T, Option<Waker>), TryReceive> {
        match self.values.pop_front() {
            Some(value) => Ok((value, self.sending.first())),
            None if self.senders == 0 => Err(TryReceive::Closed),
            None => Err(TryReceive::Empty),
        }
    }

    fn wait_to_send(&mut self, ticket: &mut u64, waker: &Waker) {
        self.sending.wait(ticket, &mut self.ticket, waker);
    }

    fn wait_to_receive(&mut self, ticket: &mut u64, waker: &Waker) {
        self.receiving.wait(ticket, &mut self.ticket, waker);
    }
}

type SharedChannel<T> = Arc<Lock<ChannelState<T>>>;

/// The sending end of a channel. Clones are further senders of the same channel.
pub struct Sender<T>(SharedChannel<T>);

/// The receiving end of a channel. Clones are further receivers: each value goes to one of them.
pub struct Receiver<T>(SharedChannel<T>);

/// Makes a channel that holds at most `capacity` values; senders wait while it is full.
///
/// # Panics
///
/// If the capacity is 0.
#[doc(alias("mpsc", "mpmc", "sync_channel", "channel"))]
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel holds at least one value");
    channel(capacity)
}

/// Makes a channel that accepts every value at once, as long as there is memory.
#[doc(alias = "unbounded_channel")]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    channel(usize::MAX)
}

fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let state = ChannelState {
        values: ShortQueue::new(),
        capacity,
        senders: 1,
        receivers: 1,
        sending: Waiting::new(),
        receiving: Waiting::new(),
        ticket: NONE,
    };
    let shared = Arc::new(Lock::new(state));
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Sends without waiting.
    ///
    /// # Errors
    ///
    /// The value, if the channel is full or has no receiver.
    pub fn try_send(&self, value: T) -> Result<(), TrySend<T>> {
        let waker = self.0.lock().try_send(value)?;
        wake(waker);
        Ok(())
    }

    /// Sends, and waits while the channel is full.
    ///
    /// # Errors
    ///
    /// [`Closed`] with the value, if there is no receiver.
    ///
    /// # Cancellation
    ///
    /// Weak. A value that was not sent yet is dropped with the future; one that was sent stays in the channel.
    pub fn send(&self, value: T) -> Send<'_, T> {
        Send { channel: &self.0, value: Some(value), ticket: NONE }
    }

    /// Returns the number of values in the channel.
    pub fn len(&self) -> usize {
        self.0.lock().values.len()
    }

    /// Returns whether the channel is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Receiver<T> {
    /// Receives without waiting.
    ///
    /// # Errors
    ///
    /// If the channel is empty, with a sender or without one.
    #[doc(alias = "try_recv")]
    pub fn try_receive(&self) -> Result<T, TryReceive> {
        let (value, waker) = self.0.lock().try_receive()?;
        wake(waker);
        Ok(value)
    }

    /// Receives, and waits while the channel is empty. `None` when it is empty and has no sender.
    ///
    /// # Cancellation
    ///
    /// Strict. A value that was there stays for the next receiver.
    #[doc(alias("recv", "next"))]
    pub fn receive(&self) -> Receive<'_, T> {
        Receive { channel: &self.0, ticket: NONE }
    }

    /// Returns the number of values in the channel.
    pub fn len(&self) -> usize {
        self.0.lock().values.len()
    }

    /// Returns whether the channel is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> core::fmt::Debug for Sender<T> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Sender").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> core::fmt::Debug for Receiver<T> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Receiver").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.lock().receivers += 1;
        Receiver(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.senders -= 1;
        if state.senders == 0 {
            // No value will come any more: all waiting receivers must see that.
            let waiting = state.receiving.take_all();
            drop(state);
            waiting.for_each(Waker::wake);
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.receivers -= 1;
        if state.receivers == 0 {
            let waiting = state.sending.take_all();
            let values = core::mem::replace(&mut state.values, ShortQueue::new());
            drop(state);
            // No receiver is left for the values. Dropping them may run anything, so not under the lock.
            drop(values);
            waiting.for_each(Waker::wake);
        }
    }
}

/// Future of [`Sender::send`].
#[must_use = "nothing is sent unless this is awaited"]
pub struct Send<'a, T> {
    channel: &'a SharedChannel<T>,
    value: Option<T>,
    ticket: u64,
}

// The value is never pinned: it moves into the channel.
impl<T> Unpin for Send<'_, T> {}

impl<T> Future for Send<'_, T> {
    type Output = Result<(), Closed<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(value) = self.value.take() else { panic!("a finished send was polled") };
        let mut state = self.channel.lock();
        match state.try_send(value) {
            Ok(waker) => {
                // The future may have been woken, or be polled for another reason and still be in the queue.
                let ticket = core::mem::replace(&mut self.ticket, NONE);
                if ticket != NONE {
                    state.sending.leave(ticket);
                }
                drop(state);
                wake(waker);
                Poll::Ready(Ok(()))
            }
            Err(TrySend::Closed(value)) => {
                self.ticket = NONE;
                Poll::Ready(Err(Closed(value)))
            }
            Err(TrySend::Full(value)) => {
                state.wait_to_send(&mut self.ticket, context.waker());
                drop(state);
                self.value = Some(value);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Send<'_, T> {
    fn drop(&mut self) {
        if self.ticket != NONE {
            let mut state = self.channel.lock();
            // Woken, but dropped: the free place is for the next sender in line.
            let next = if state.sending.leave(self.ticket) { None } else { state.sending.first() };
            drop(state);
            wake(next);
        }
    }
}

/// The place of a stream among the waiting receivers; it is left by [`Receiver::leave`].
#[cfg(feature = "stream")]
#[derive(Debug)]
pub(crate) struct Place(u64);

#[cfg(feature = "stream")]
impl Default for Place {
    fn default() -> Place {
        Place(NONE)
    }
}

#[cfg(feature = "stream")]
impl<T> Receiver<T> {
    /// Receives as [`Receiver::receive`] does, with a place that outlives the poll.
    pub(crate) fn poll_receive(&self, place: &mut Place, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut receive = Receive { channel: &self.0, ticket: core::mem::replace(&mut place.0, NONE) };
        let polled = Pin::new(&mut receive).poll(context);
        // Taken out, so that dropping the future does not leave the place.
        place.0 = core::mem::replace(&mut receive.ticket, NONE);
        polled
    }

    /// Leaves the place; a wake-up that had reached it goes to the next in line.
    pub(crate) fn leave(&self, place: &mut Place) {
        drop(Receive { channel: &self.0, ticket: core::mem::replace(&mut place.0, NONE) });
    }
}

/// Future of [`Receiver::receive`].
#[must_use = "nothing is received unless this is awaited"]
pub struct Receive<'a, T> {
    channel: &'a SharedChannel<T>,
    ticket: u64,
}

impl<T> Future for Receive<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.channel.lock();
        match state.try_receive() {
            Ok((value, waker)) => {
                let ticket = core::mem::replace(&mut self.ticket, NONE);
                if ticket != NONE {
                    state.receiving.leave(ticket);
                }
                drop(state);
                wake(waker);
                Poll::Ready(Some(value))
            }
            Err(TryReceive::Closed) => {
                self.ticket = NONE;
                Poll::Ready(None)
            }
            Err(TryReceive::Empty) => {
                state.wait_to_receive(&mut self.ticket, context.waker());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Receive<'_, T> {
    fn drop(&mut self) {
        if self.ticket != NONE {
            let mut state = self.channel.lock();
            let next = if state.receiving.leave(self.ticket) { None } else { state.receiving.first() };
            drop(state);
            wake(next);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::collections::VecDeque;
    use std::vec::Vec;

    #[test]
    fn values_arrive_in_order_and_the_end_is_seen() {
        let (sender, receiver) = bounded(2);
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(2), Ok(()));
        assert_eq!(sender.try_send(3), Err(TrySend::Full(3)));
        drop(sender);
        assert_eq!((receiver.try_receive(), receiver.try_receive()), (Ok(1), Ok(2)));
        assert_eq!(receiver.try_receive(), Err(TryReceive::Closed));
        let (sender, receiver) = unbounded();
        drop(receiver);
        assert_eq!(sender.try_send(1), Err(TrySend::Closed(1)));
    }

    #[test]
    fn a_wake_up_that_reached_a_dropped_future_is_passed_on() {
        let (sender, receiver) = unbounded();
        let (first, second) = (Wakes::counted(), Wakes::counted());
        let mut waits = Box::pin(receiver.receive());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&first.1)).is_pending());
        let mut also = Box::pin(receiver.receive());
        assert!(also.as_mut().poll(&mut Context::from_waker(&second.1)).is_pending());
        sender.try_send(7).unwrap();
        assert_eq!((first.0.count(), second.0.count()), (1, 0));
        drop(waits);
        assert_eq!(second.0.count(), 1);
        assert!(also.as_mut().poll(&mut Context::from_waker(&second.1)) == Poll::Ready(Some(7)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send,
        Receive,
        PollSend(usize),
        PollReceive(usize),
        DropSend(usize),
        DropReceive(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            Just(Step::Send),
            Just(Step::Receive),
            (0..8usize).prop_map(Step::PollSend),
            (0..8usize).prop_map(Step::PollReceive),
            (0..8usize).prop_map(Step::DropSend),
            (0..8usize).prop_map(Step::DropReceive),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Against a plain queue: values keep their order, and no receiver waits while there is a value for it unless
        /// another one has been woken for that value.
        #[test]
        fn no_waiter_is_forgotten(capacity in 1..4usize, steps in steps()) {
            let (sender, receiver) = bounded(capacity);
            let mut model = VecDeque::new();
            let mut next = 0;
            let (wakes, waker) = Wakes::counted();
            let mut sends: Vec<(Pin<Box<Send<'_, i32>>>, i32)> = Vec::new();
            let mut receives: Vec<Pin<Box<Receive<'_, i32>>>> = Vec::new();
            for step in steps {
                let mut context = Context::from_waker(&waker);
                match step {
                    Step::Send => {
                        next += 1;
                        sends.push((Box::pin(sender.send(next)), next));
                    }
                    Step::Receive => receives.push(Box::pin(receiver.receive())),
                    Step::PollSend(which) if !sends.is_empty() => {
                        let which = which % sends.len();
                        let polled = sends[which].0.as_mut().poll(&mut context);
                        prop_assert_eq!(polled.is_ready(), model.len() < capacity);
                        if polled.is_ready() {
                            model.push_back(sends.remove(which).1);
                        }
                    }
                    Step::PollReceive(which) if !receives.is_empty() => {
                        let which = which % receives.len();
                        let expected = model.pop_front();
                        match receives[which].as_mut().poll(&mut context) {
                            Poll::Ready(value) => {
                                prop_assert_eq!(value, expected);
                                drop(receives.remove(which));
                            }
                            Poll::Pending => prop_assert_eq!(None, expected),
                        }
                    }
                    Step::DropSend(which) if !sends.is_empty() => drop(sends.remove(which % sends.len())),
                    Step::DropReceive(which) if !receives.is_empty() => drop(receives.remove(which % receives.len())),
                    _ => {}
                }
            }
            // Polled until no future is woken any more, all that can be served have been.
            loop {
                let before = wakes.count();
                let mut context = Context::from_waker(&waker);
                sends.retain_mut(|(send, _)| send.as_mut().poll(&mut context).is_pending());
                receives.retain_mut(|receive| receive.as_mut().poll(&mut context).is_pending());
                if wakes.count() == before {
                    break;
                }
            }
            prop_assert!(receives.is_empty() || (sends.is_empty() && receiver.is_empty()));
            prop_assert!(sends.is_empty() || receiver.len() == capacity);
        }
    }
}
