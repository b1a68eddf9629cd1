//! Schedule of the connections: for work now ([`WorkList`]) and later ([`Timers`]).
//!
//! Both are indexed by the connection's slab index and sized when a connection is made, so that marking one
//! never allocates and never fails. Both are sets: marking twice is marking once.

use alloc::vec::Vec;

use smoltcp::time::Instant;

use crate::Error;

const NONE: u32 = u32::MAX;
const LAST: u32 = u32::MAX - 1;

/// A first-in, first-out set of indices: a list through an array, in constant time.
pub(crate) struct WorkList {
    /// For each index: `NONE` if it is not in the list, else the next index, or `LAST`.
    next: Vec<u32>,
    head: u32,
    tail: u32,
    /// Last index that was in the list when it was [left](Self::leave); `LAST` if none of those remain.
    left: u32,
}

impl WorkList {
    pub(crate) fn new() -> Self {
        WorkList { next: Vec::new(), head: LAST, tail: LAST, left: LAST }
    }

    /// Allocates the entry for `index`, so that pushing it cannot fail.
    pub(crate) fn reserve(&mut self, index: u32) -> Result<(), Error> {
        let wanted = index as usize + 1;
        if let Some(missing) = wanted.checked_sub(self.next.len()) {
            self.next.try_reserve(missing)?;
            self.next.resize(wanted, NONE);
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == LAST
    }

    pub(crate) fn push(&mut self, index: u32) {
        let Some(slot) = self.next.get_mut(index as usize) else {
            return;
        };
        if *slot != NONE {
            return;
        }
        *slot = LAST;
        if self.head == LAST {
            self.head = index;
        } else if let Some(previous) = self.next.get_mut(self.tail as usize) {
            *previous = index;
        }
        self.tail = index;
    }

    pub(crate) fn first(&self) -> Option<u32> {
        (self.head != LAST).then_some(self.head)
    }

    pub(crate) fn pop(&mut self) -> Option<u32> {
        let index = self.head;
        let slot = self.next.get_mut(index as usize)?;
        self.head = *slot;
        *slot = NONE;
        if index == self.left {
            self.left = LAST;
        }
        Some(index)
    }

    /// Takes out the first index that was pushed since the list was [left](Self::leave).
    pub(crate) fn pop_new(&mut self) -> Option<u32> {
        if self.left == LAST {
            return self.pop();
        }
        let index = *self.next.get(self.left as usize)?;
        let following = core::mem::replace(self.next.get_mut(index as usize)?, NONE);
        *self.next.get_mut(self.left as usize)? = following;
        if following == LAST {
            self.tail = self.left;
        }
        Some(index)
    }

    /// Marks all present entries as old.
    pub(crate) fn leave(&mut self) {
        if self.head != LAST {
            self.left = self.tail;
        }
    }
}

#[derive(Clone, Copy)]
struct Deadline {
    at: Instant,
    index: u32,
}

/// Deadlines, at most one for each index, in a binary heap that records the position of each index.
///
/// A connection's true deadline moves with nearly every packet (the retransmission timer starts, stops, starts). The
/// heap therefore receives only *earlier* deadlines; a deadline that moved away is found when its old time comes, and
/// is then entered anew. A busy connection touches the heap about once for each delayed acknowledgement, not once for
/// each packet.
pub(crate) struct Timers {
    heap: Vec<Deadline>,
    position: Vec<u32>,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Timers { heap: Vec::new(), position: Vec::new() }
    }

    /// Allocates the entry for `index`, so that entering it cannot fail.
    pub(crate) fn reserve(&mut self, index: u32) -> Result<(), Error> {
        let wanted = index as usize + 1;
        if let Some(missing) = wanted.checked_sub(self.position.len()) {
            self.position.try_reserve(missing)?;
            self.heap.try_reserve(wanted.saturating_sub(self.heap.len()))?;
            self.position.resize(wanted, NONE);
        }
        Ok(())
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|first| first.at)
    }

    /// Enters `index`, or moves it forward; a later deadline than the entered one changes nothing.
    pub(crate) fn no_later_than(&mut self, index: u32, at: Instant) {
        let Some(&position) = self.position.get(index as usize) else {
            return;
        };
        if position == NONE {
            // `reserve` made room for one entry of each index, so this does not allocate.
            self.heap.push(Deadline { at, index });
            self.sift_up(self.heap.len() - 1);
        } else if let Some(entry) = self.heap.get_mut(position as usize)
            && at < entry.at
        {
            entry.at = at;
            self.sift_up(position as usize);
        }
    }

    /// Takes out one index whose deadline has come.
    pub(crate) fn expired(&mut self, now: Instant) -> Option<u32> {
        let first = self.heap.first()?;
        if first.at > now {
            return None;
        }
        let index = first.index;
        self.remove(index);
        Some(index)
    }

    pub(crate) fn remove(&mut self, index: u32) {
        let Some(slot) = self.position.get_mut(index as usize) else {
            return;
        };
        let position = core::mem::replace(slot, NONE) as usize;
        if position >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(position);
        if position < self.heap.len() {
            self.place(position);
            self.sift_down(position);
            self.sift_up(position);
        }
    }

    fn place(&mut self, position: usize) {
        let index = self.heap[position].index;
        self.position[index as usize] = position as u32;
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent].at <= self.heap[position].at {
                break;
            }
            self.heap.swap(parent, position);
            self.place(position);
            position = parent;
        }
        self.place(position);
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let left = 2 * position + 1;
            let right = left + 1;
            if left >= self.heap.len() {
                break;
            }
            let child = if right < self.heap.len() && self.heap[right].at < self.heap[left].at { right } else { left };
            if self.heap[position].at <= self.heap[child].at {
                break;
            }
            self.heap.swap(position, child);
            self.place(position);
            position = child;
        }
        self.place(position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeMap, VecDeque};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn the_work_list_is_a_queue_without_repetitions(steps in prop::collection::vec((0u8..6, 0u32..20), 0..200)) {
            let mut list = WorkList::new();
            list.reserve(19).unwrap();
            let mut model = VecDeque::new();
            // Number of leading entries that are not new.
            let mut old = 0usize;
            for step in steps {
                match step {
                    (0..3, index) => {
                        list.push(index);
                        if !model.contains(&index) {
                            model.push_back(index);
                        }
                    }
                    (3, _) => {
                        prop_assert_eq!(list.pop(), model.pop_front());
                        old = old.saturating_sub(1);
                    }
                    (4, _) => prop_assert_eq!(list.pop_new(), model.remove(old)),
                    _ => {
                        list.leave();
                        old = model.len();
                    }
                }
                prop_assert_eq!(list.is_empty(), model.is_empty());
            }
        }

        #[test]
        fn timers_come_in_order(steps in prop::collection::vec((0u32..20, 0i64..100, 0u8..4), 0..300)) {
            let mut timers = Timers::new();
            timers.reserve(19).unwrap();
            let mut model: BTreeMap<u32, i64> = BTreeMap::new();
            for (index, time, kind) in steps {
                match kind {
                    0 => {
                        timers.remove(index);
                        model.remove(&index);
                    }
                    1 => {
                        let expired = timers.expired(Instant::from_micros(time));
                        let earliest = model.values().min().copied();
                        prop_assert_eq!(expired.is_some(), earliest.is_some_and(|earliest| earliest <= time));
                        if let Some(expired) = expired {
                            prop_assert_eq!(model.remove(&expired), earliest);
                        }
                    }
                    _ => {
                        timers.no_later_than(index, Instant::from_micros(time));
                        model.entry(index).and_modify(|at| *at = time.min(*at)).or_insert(time);
                    }
                }
                prop_assert_eq!(timers.next().map(|at| at.total_micros()), model.values().min().copied());
            }
        }
    }
}
