//! A signal that is kept if it comes before its waiter.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::lock::Lock;
use crate::waiting::{NONE, Waiting, wake};

/// A signal that wakes coroutines that wait for it.
///
/// Each notification goes to one waiter. A notification without a waiter is kept, once: the next coroutine that waits
/// continues at once. To wake all waiters, use [`Event`](crate::sync::Event) with `notify(usize::MAX)`.
#[doc(alias("condition variable", "Condvar", "wait queue"))]
pub struct Notify(Lock<NotifyState>);

struct NotifyState {
    waiting: Waiting,
    /// Whether a notification has come for which no coroutine waited. Never set while a coroutine waits.
    kept: bool,
    /// Last ticket given.
    ticket: u64,
}

impl NotifyState {
    /// Gives a notification to the first waiter, or keeps it; returns the waker to call without the lock.
    fn notify(&mut self) -> Option<core::task::Waker> {
        let first = self.waiting.first();
        self.kept |= first.is_none();
        first
    }
}

impl Notify {
    /// Creates a signal without a kept notification.
    pub const fn new() -> Notify {
        Notify(Lock::new(NotifyState { waiting: Waiting::new(), kept: false, ticket: NONE }))
    }

    /// Wakes the first waiter, or the next one to come.
    ///
    /// Two notifications wake two waiters, also if the first has not run in between; two without a waiter are one.
    pub fn notify_one(&self) {
        let first = self.0.lock().notify();
        wake(first);
    }

    /// Waits for a notification.
    ///
    /// # Cancellation
    ///
    /// Strict. A notification that has come goes to the next waiter, or is kept.
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, ticket: NONE }
    }
}

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Notify").finish_non_exhaustive()
    }
}

/// Future of [`Notify::notified`].
#[must_use = "nothing is waited for unless this is awaited"]
pub struct Notified<'a> {
    notify: &'a Notify,
    /// While the ticket is not in the queue any more, its notification belongs to this future.
    ticket: u64,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let notify = self.notify;
        let mut state = notify.0.lock();
        let state = &mut *state;
        let waits = self.ticket != NONE;
        let notified = match waits {
            true => !state.waiting.is_there(self.ticket),
            false => core::mem::take(&mut state.kept),
        };
        if notified {
            self.ticket = NONE;
            return Poll::Ready(());
        }
        state.waiting.wait(&mut self.ticket, &mut state.ticket, context.waker());
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if self.ticket != NONE {
            let mut state = self.notify.0.lock();
            // Notified, but dropped: the notification is for the next in line.
            let next = if state.waiting.leave(self.ticket) { None } else { state.notify() };
            drop(state);
            wake(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::vec::Vec;

    #[test]
    fn a_notification_is_kept_once() {
        let notify = Notify::new();
        let waker = Wakes::counted().1;
        let mut context = Context::from_waker(&waker);
        notify.notify_one();
        notify.notify_one();
        assert!(Box::pin(notify.notified()).as_mut().poll(&mut context).is_ready());
        assert!(Box::pin(notify.notified()).as_mut().poll(&mut context).is_pending());
    }

    #[test]
    fn two_notifications_wake_two_waiters_before_either_has_run() {
        let notify = Notify::new();
        let (wakes, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        let (mut first, mut second) = (Box::pin(notify.notified()), Box::pin(notify.notified()));
        assert!(first.as_mut().poll(&mut context).is_pending() && second.as_mut().poll(&mut context).is_pending());
        notify.notify_one();
        notify.notify_one();
        assert_eq!(wakes.count(), 2);
        assert!(second.as_mut().poll(&mut context).is_ready() && first.as_mut().poll(&mut context).is_ready());
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Beside a model: the notifications that were given are those taken, those kept (at most one), and those on
        /// their way to a woken waiter. Dropping a future never loses one.
        #[test]
        fn no_notification_is_lost(steps in prop::collection::vec((0..4u8, 0..8usize), 1..200)) {
            let notify = Notify::new();
            let (_, waker) = Wakes::counted();
            let mut context = Context::from_waker(&waker);
            // Futures in the order of their first poll, with whether the model has given them a notification.
            let mut waiting: Vec<(Pin<Box<Notified<'_>>>, bool)> = Vec::new();
            let mut kept = false;
            fn give(waiting: &mut [(Pin<Box<Notified<'_>>>, bool)], kept: &mut bool) {
                match waiting.iter_mut().find(|(_, given)| !given) {
                    Some((_, given)) => *given = true,
                    None => *kept = true,
                }
            }
            for (step, which) in steps {
                match step {
                    0 => {
                        notify.notify_one();
                        give(&mut waiting, &mut kept);
                    }
                    1 => {
                        let mut future = Box::pin(notify.notified());
                        let ready = future.as_mut().poll(&mut context).is_ready();
                        prop_assert_eq!(ready, core::mem::take(&mut kept));
                        if !ready {
                            waiting.push((future, false));
                        }
                    }
                    2 if !waiting.is_empty() => {
                        let which = which % waiting.len();
                        let (future, given) = &mut waiting[which];
                        prop_assert_eq!(future.as_mut().poll(&mut context).is_ready(), *given);
                        if *given {
                            drop(waiting.remove(which));
                        }
                    }
                    3 if !waiting.is_empty() => {
                        let (future, given) = waiting.remove(which % waiting.len());
                        drop(future);
                        if given {
                            give(&mut waiting, &mut kept);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
