//! Back-pressure: coroutines whose calls found as many in flight as a process may have.
//!
//! The kernel refuses such a call with `EBUSY`, which no call that can wait answers for another reason. A program
//! should not see that: the coroutine waits until a call has ended, and then tries again. So the limit makes a program
//! slower and never breaks it.
//!
//! # The protocol
//!
//! Who is refused enters itself and tries *once more* before it waits. If that is refused too, there were as many calls
//! in flight at that moment, their completions come later, and whoever takes them out of the ring sees the entry. Each
//! completion lets one coroutine try. Who tries and finds room, or does not try any more because it was dropped, lets
//! the next one try: it may have used no room, as its call was done in place. So nobody is left waiting while there is
//! room, and nobody tries in vain more often than there are completions.

use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;

use crate::lock::Lock;

struct Queue {
    waiting: BTreeMap<u64, Waker>,
    next: u64,
}

/// Those who wait for room.
pub(crate) struct Room {
    queue: Lock<Queue>,
    /// Whether there is anybody: completions are frequent, and this is not.
    is_short: AtomicBool,
}

/// Room for calls in flight.
pub(crate) static ROOM: Room = Room::new();

impl Room {
    const fn new() -> Room {
        Room { queue: Lock::new(Queue { waiting: BTreeMap::new(), next: 0 }), is_short: AtomicBool::new(false) }
    }

    /// Enters a waker, behind all others or in the place that it has; the caller tries once more after that.
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
        // Relaxed: what the caller tries next goes through the kernel and its locks, as does the completion that
        // somebody takes after it, so that this is seen there.
        self.is_short.store(true, Ordering::Relaxed);
    }

    /// Whether somebody waits.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// So many calls have ended.
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

    /// Whoever has this ticket found room, or wants none any more.
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
            // It had been let try.
            self.made(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;
    use std::sync::Arc;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn woken(count: &Arc<Count>) -> usize {
        count.0.load(Ordering::Relaxed)
    }

    #[test]
    fn each_completion_lets_one_try_in_order() {
        let room = Room::new();
        let counts: [Arc<Count>; 4] = Default::default();
        let mut tickets = [None; 4];
        for (count, ticket) in counts.iter().zip(&mut tickets) {
            room.enter(ticket, &Waker::from(count.clone()));
        }
        // Entering again changes nothing but the waker.
        room.enter(&mut tickets[0], &Waker::from(counts[0].clone()));
        room.made(2);
        assert_eq!(counts.each_ref().map(woken), [1, 1, 0, 0]);
        // The first is refused again, and comes before those who came later.
        room.enter(&mut tickets[0], &Waker::from(counts[0].clone()));
        room.made(1);
        assert_eq!(counts.each_ref().map(woken), [2, 1, 0, 0]);
        room.made(5);
        assert_eq!(counts.each_ref().map(woken), [2, 1, 1, 1]);
        assert!(!room.is_short());
    }

    #[test]
    fn who_goes_after_being_let_try_lets_the_next_try() {
        let room = Room::new();
        let counts: [Arc<Count>; 3] = Default::default();
        let mut tickets = [None; 3];
        for (count, ticket) in counts.iter().zip(&mut tickets) {
            room.enter(ticket, &Waker::from(count.clone()));
        }
        room.made(1);
        room.leave(tickets[0].unwrap());
        assert_eq!(counts.each_ref().map(woken), [1, 1, 0]);
        // One that was not let try passes nothing on.
        room.leave(tickets[2].unwrap());
        assert!(!room.is_short());
        room.leave(tickets[1].unwrap());
        assert_eq!(counts.each_ref().map(woken), [1, 1, 0]);
    }
}
