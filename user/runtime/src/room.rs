//! Back-pressure: coroutines whose calls were refused because the process has reached its limit of calls in flight.
//!
//! The kernel refuses such a call with `EBUSY`, which no call that can wait answers for another reason. Programs do not
//! see it: the coroutine waits until a call has ended, and then tries again. So the limit makes a program slower and
//! never breaks it.
//!
//! # The protocol
//!
//! A refused coroutine enters its waker and tries *once more* before it waits. If that is refused too, the limit was
//! reached at that moment, so completions are still to come, and the worker that takes them out of the ring sees the
//! entry. Each completion lets one coroutine try. A coroutine that finds room, or was dropped before it tried, lets the
//! next one try: it may have used no room, because its call was done in place. So no coroutine waits while there is
//! room, and there are no more futile attempts than completions.

use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;

use crate::lock::Lock;

struct RoomQueue {
    waiting: BTreeMap<u64, Waker>,
    next: u64,
}

/// The queue of coroutines that wait for room.
pub(crate) struct Room {
    queue: Lock<RoomQueue>,
    /// Whether the queue has an entry: completions are frequent, and waiters are not.
    is_short: AtomicBool,
}

/// Room for calls in flight.
pub(crate) static ROOM: Room = Room::new();

impl Room {
    const fn new() -> Room {
        Room { queue: Lock::new(RoomQueue { waiting: BTreeMap::new(), next: 0 }), is_short: AtomicBool::new(false) }
    }

    /// Enters a waker, at the end or at the place that its ticket has; the caller tries once more after that.
    pub(crate) fn enter(&self, ticket: &mut Option<u64>, waker: &Waker) {
        let mut queue = self.queue.lock();
        let number = *ticket.get_or_insert(queue.next);
        queue.next = queue.next.max(number + 1);
        match queue.waiting.get_mut(&number) {
            Some(place) => place.clone_from(waker),
            None => {
                queue.waiting.insert(number, waker.clone());
            }
        }
        // Relaxed: the caller's next attempt goes through the kernel and its locks, as does every completion taken
        // after it, so the worker that takes the completion sees this store.
        self.is_short.store(true, Ordering::Relaxed);
    }

    /// Returns whether a coroutine waits.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Lets one coroutine try for each of the calls that have ended.
    #[inline]
    pub(crate) fn made(&self, calls: usize) {
        if self.is_short() {
            self.let_try(calls);
        }
    }

    #[cold]
    fn let_try(&self, calls: usize) {
        for _ in 0..calls {
            let mut queue = self.queue.lock();
            let first = queue.waiting.pop_first();
            if queue.waiting.is_empty() {
                self.is_short.store(false, Ordering::Relaxed);
            }
            // Without the lock: a waker may run anything.
            drop(queue);
            match first {
                Some((_, waker)) => waker.wake(),
                None => return,
            }
        }
    }

    /// Removes a ticket whose coroutine found room, or was dropped.
    #[cold]
    pub(crate) fn leave(&self, ticket: u64) {
        let was_waiting = {
            let mut queue = self.queue.lock();
            let was_waiting = queue.waiting.remove(&ticket).is_some();
            if queue.waiting.is_empty() {
                self.is_short.store(false, Ordering::Relaxed);
            }
            was_waiting
        };
        if !was_waiting {
            // It had been let try and may have used no room: pass the attempt on.
            self.made(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use std::sync::Arc;

    fn woken(wakes: &Arc<Wakes>) -> usize {
        wakes.count()
    }

    #[test]
    fn each_completion_lets_one_try_in_order() {
        let room = Room::new();
        let counts: [Arc<Wakes>; 4] = Default::default();
        let mut tickets = [None; 4];
        for (count, ticket) in counts.iter().zip(&mut tickets) {
            room.enter(ticket, &Waker::from(count.clone()));
        }
        // Entering again changes nothing but the waker.
        room.enter(&mut tickets[0], &Waker::from(counts[0].clone()));
        room.made(2);
        assert_eq!(counts.each_ref().map(woken), [1, 1, 0, 0]);
        // The first is refused again, and keeps its place before later entries.
        room.enter(&mut tickets[0], &Waker::from(counts[0].clone()));
        room.made(1);
        assert_eq!(counts.each_ref().map(woken), [2, 1, 0, 0]);
        room.made(5);
        assert_eq!(counts.each_ref().map(woken), [2, 1, 1, 1]);
        assert!(!room.is_short());
    }

    #[test]
    fn a_waiter_that_leaves_after_its_wake_up_passes_it_on() {
        let room = Room::new();
        let counts: [Arc<Wakes>; 3] = Default::default();
        let mut tickets = [None; 3];
        for (count, ticket) in counts.iter().zip(&mut tickets) {
            room.enter(ticket, &Waker::from(count.clone()));
        }
        room.made(1);
        room.leave(tickets[0].unwrap());
        assert_eq!(counts.each_ref().map(woken), [1, 1, 0]);
        // A waiter that was not let try passes no attempt on.
        room.leave(tickets[2].unwrap());
        assert!(!room.is_short());
        room.leave(tickets[1].unwrap());
        assert_eq!(counts.each_ref().map(woken), [1, 1, 0]);
    }
}
