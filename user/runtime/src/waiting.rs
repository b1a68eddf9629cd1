//! Waiters of the runtime's own channels and signals: wakers in the order of their tickets.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::lock::Lock;

/// A queue whose first place is in the queue itself. Most queues have one element or none, and a server has a channel
/// or two for each of its connections: further elements are in a deque that is allocated only when needed.
pub(crate) struct ShortQueue<T> {
    /// `None` only if the queue is empty.
    first: Option<T>,
    #[expect(clippy::box_collection, reason = "every channel has three, mostly empty ones; each takes a word")]
    others: Option<Box<VecDeque<T>>>,
}

impl<T> ShortQueue<T> {
    pub(crate) const fn new() -> ShortQueue<T> {
        ShortQueue { first: None, others: None }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.as_ref().map_or(0, |others| others.len())
    }

    #[inline]
    pub(crate) fn push_back(&mut self, value: T) {
        match self.first {
            None => self.first = Some(value),
            Some(_) => self.others.get_or_insert_default().push_back(value),
        }
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let value = self.first.take()?;
        if let Some(others) = &mut self.others {
            self.first = others.pop_front();
        }
        Some(value)
    }
}

impl<T> IntoIterator for ShortQueue<T> {
    type Item = T;
    type IntoIter = core::iter::Chain<core::option::IntoIter<T>, alloc::collections::vec_deque::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.others.map_or_else(VecDeque::new, |others| *others))
    }
}

/// Ticket of a future that does not wait.
pub(crate) const NONE: u64 = 0;

/// Waiters, in their order. Tickets grow, so the queue is sorted by them.
pub(crate) struct Waiting(ShortQueue<(u64, Waker)>);

impl Waiting {
    pub(crate) const fn new() -> Waiting {
        Waiting(ShortQueue::new())
    }

    /// Registers a waker: at its place if the ticket is in the queue still, else at the end with the next ticket.
    pub(crate) fn wait(&mut self, ticket: &mut u64, next: &mut u64, waker: &Waker) {
        if *ticket != NONE
            && let Some(place) = self.place_of(*ticket)
        {
            place.clone_from(waker);
            return;
        }
        *next += 1;
        *ticket = *next;
        self.0.push_back((*next, waker.clone()));
    }

    /// Returns whether the ticket is in the queue.
    pub(crate) fn is_there(&mut self, ticket: u64) -> bool {
        self.place_of(ticket).is_some()
    }

    fn place_of(&mut self, ticket: u64) -> Option<&mut Waker> {
        match &mut self.0.first {
            Some((first, waker)) if *first == ticket => Some(waker),
            _ => {
                let others = self.0.others.as_mut()?;
                let position = others.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()?;
                Some(&mut others[position].1)
            }
        }
    }

    /// Removes the ticket; returns whether it was still in the queue, that is, not woken.
    pub(crate) fn leave(&mut self, ticket: u64) -> bool {
        if self.0.first.as_ref().is_some_and(|(first, _)| *first == ticket) {
            self.0.pop_front();
            return true;
        }
        let Some(others) = &mut self.0.others else { return false };
        match others.binary_search_by_key(&ticket, |(ticket, _)| *ticket) {
            Ok(position) => {
                others.remove(position);
                true
            }
            Err(_) => false,
        }
    }

    #[inline]
    pub(crate) fn first(&mut self) -> Option<Waker> {
        self.0.pop_front().map(|(_, waker)| waker)
    }

    /// Removes all waiters.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Waker> + use<> {
        core::mem::replace(&mut self.0, ShortQueue::new()).into_iter().map(|(_, waker)| waker)
    }
}

/// Wakes a waiter, if any; without a lock, because a waker may run anything.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Waiters that are all woken together, by every change that may concern them.
pub(crate) struct Audience {
    waiting: Waiting,
    /// Last ticket given.
    ticket: u64,
}

impl Audience {
    pub(crate) const fn new() -> Audience {
        Audience { waiting: Waiting::new(), ticket: NONE }
    }

    /// Removes all waiters, to be woken without the lock.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Waker> + use<> {
        self.waiting.take_all()
    }
}

/// Future of an answer that a shared state has, now or after a change.
///
/// Dropping it loses at most its place in the audience: the answer is taken from the state only by the poll that is
/// ready.
#[must_use = "nothing is waited for unless this is awaited"]
pub(crate) struct Until<'a, S, L> {
    state: &'a Lock<S>,
    audience: fn(&mut S) -> &mut Audience,
    look: L,
    ticket: u64,
}

/// Waits until `look`, which is called under the lock, finds an answer; the `audience` is woken when that may be so.
pub(crate) fn until<S, T, L: FnMut(&mut S) -> Option<T>>(
    state: &Lock<S>,
    audience: fn(&mut S) -> &mut Audience,
    look: L,
) -> Until<'_, S, L> {
    Until { state, audience, look, ticket: NONE }
}

// The function is called, and never pinned.
impl<S, L> Unpin for Until<'_, S, L> {}

impl<S, T, L: FnMut(&mut S) -> Option<T>> Future for Until<'_, S, L> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let mut state = this.state.lock();
        if let Some(answer) = (this.look)(&mut state) {
            if this.ticket != NONE {
                (this.audience)(&mut state).waiting.leave(core::mem::replace(&mut this.ticket, NONE));
            }
            return Poll::Ready(answer);
        }
        let audience = (this.audience)(&mut state);
        audience.waiting.wait(&mut this.ticket, &mut audience.ticket, context.waker());
        Poll::Pending
    }
}

impl<S, L> Drop for Until<'_, S, L> {
    fn drop(&mut self) {
        if self.ticket != NONE {
            (self.audience)(&mut self.state.lock()).waiting.leave(self.ticket);
        }
    }
}
