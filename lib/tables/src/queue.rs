use alloc::collections::{TryReserveError, VecDeque};
use alloc::vec::Vec;

use crate::{segment, shift_for};

/// Number of segments that are freed at once.
const TRIMMED: usize = 8;

/// A queue in pieces. Room of removed elements stays, until it is [given back](Queue::trim).
#[derive(Debug)]
#[doc(alias = "VecDeque")]
pub struct Queue<T> {
    /// Oldest elements first. All segments in use are full but the last; empty ones, which are room, come behind.
    segments: VecDeque<Vec<T>>,
    /// Number of elements of the first segment that were taken.
    taken: usize,
    length: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue::new()
    }
}

impl<T> Queue<T> {
    const PER_SEGMENT: usize = 1 << shift_for(size_of::<T>());

    /// Makes an empty queue.
    pub const fn new() -> Queue<T> {
        Queue { segments: VecDeque::new(), taken: 0, length: 0 }
    }

    /// Returns the number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the number of elements for which there is room, including those that are there.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.segments.len() * Self::PER_SEGMENT - self.taken
    }

    /// Makes room for `length` elements, including those that are there.
    ///
    /// # Errors
    /// There is no memory; the elements are unchanged.
    pub fn reserve(&mut self, length: usize) -> Result<(), TryReserveError> {
        while self.capacity() < length {
            self.segments.try_reserve(1)?;
            self.segments.push_back(segment(Self::PER_SEGMENT)?);
        }
        Ok(())
    }

    /// Frees some room, a few segments at most, if there is room for many more than `length` elements.
    #[cold]
    pub fn trim(&mut self, length: usize) {
        let needed = self.taken + length.max(self.length);
        for _ in 0..TRIMMED {
            if self.segments.len() > needed.div_ceil(Self::PER_SEGMENT) + 1 {
                self.segments.pop_back();
            }
        }
    }

    /// Adds an element at the end, for which there is [room](Self::reserve).
    pub fn push_back(&mut self, value: T) {
        self.segments[(self.taken + self.length) / Self::PER_SEGMENT].push(value);
        self.length += 1;
    }

    /// Returns an element by its place from the front.
    pub fn get(&self, place: usize) -> Option<&T> {
        let place = self.taken + place;
        self.segments.get(place / Self::PER_SEGMENT)?.get(place % Self::PER_SEGMENT)
    }

    /// Returns its pieces, for owners that drop a large queue in steps.
    pub fn into_segments(self) -> impl Iterator<Item = Vec<T>> {
        self.segments.into_iter()
    }
}

impl<T: Copy> Queue<T> {
    /// Returns the first element.
    #[inline]
    pub fn front(&self) -> Option<&T> {
        self.segments.front()?.get(self.taken)
    }

    /// Takes the first element.
    pub fn pop_front(&mut self) -> Option<T> {
        let value = *self.front()?;
        self.taken += 1;
        self.length -= 1;
        if self.taken == Self::PER_SEGMENT
            && let Some(mut segment) = self.segments.pop_front()
        {
            self.taken = 0;
            segment.clear();
            self.segments.push_back(segment);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn room_comes_in_whole_segments_and_only_if_there_is_none() {
        const SEGMENT: usize = Queue::<u64>::PER_SEGMENT;
        let mut queue = Queue::new();
        assert_eq!((queue.len(), queue.capacity(), queue.is_empty()), (0, 0, true));
        for (wanted, capacity) in [(0, 0), (1, SEGMENT), (SEGMENT, SEGMENT), (SEGMENT + 1, 2 * SEGMENT)] {
            queue.reserve(wanted).unwrap();
            assert_eq!(queue.capacity(), capacity);
        }
        for number in 0..2 * SEGMENT as u64 {
            queue.push_back(number);
        }
        assert_eq!((queue.len(), queue.is_empty()), (2 * SEGMENT, false));
        // Places of taken elements are no room until the segment is empty; then it comes behind the others.
        for number in 0..SEGMENT as u64 - 1 {
            assert_eq!((queue.front().copied(), queue.pop_front()), (Some(number), Some(number)));
            assert_eq!(queue.capacity(), 2 * SEGMENT - 1 - number as usize);
        }
        assert_eq!(queue.pop_front(), Some(SEGMENT as u64 - 1));
        assert_eq!((queue.len(), queue.capacity()), (SEGMENT, 2 * SEGMENT));
        queue.push_back(7);
        let segments: Vec<_> = queue.into_segments().collect();
        assert_eq!(segments, [(SEGMENT as u64..2 * SEGMENT as u64).collect(), Vec::from([7])]);
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Compares with the standard library's queue.
        #[test]
        fn a_queue_keeps_its_order_and_its_room(steps in prop::collection::vec((any::<bool>(), 0usize..60, any::<bool>()), 0..100)) {
            let mut queue: Queue<[usize; 30]> = Queue::new();
            let mut model = VecDeque::new();
            let mut room = 0;
            for (adds, count, trims) in steps {
                for number in 0..count {
                    if adds {
                        queue.reserve(model.len() + 1).unwrap();
                        queue.push_back([number; 30]);
                        model.push_back([number; 30]);
                    } else {
                        prop_assert_eq!(queue.pop_front(), model.pop_front());
                    }
                }
                prop_assert_eq!((queue.len(), queue.front()), (model.len(), model.front()));
                prop_assert!(queue.capacity() + queue.taken >= room);
                if trims {
                    queue.trim(count);
                    prop_assert!(queue.capacity() >= count.max(model.len()) || queue.capacity() + queue.taken == room);
                    let segment = Queue::<[usize; 30]>::PER_SEGMENT;
                    prop_assert!(queue.capacity() + queue.taken + TRIMMED * segment >= room);
                }
                room = queue.capacity() + queue.taken;
            }
            for _ in 0..100 {
                queue.trim(0);
            }
            prop_assert!(queue.capacity() < model.len() + 2 * Queue::<[usize; 30]>::PER_SEGMENT);
            let left = queue.into_segments().map(|segment| segment.len()).sum::<usize>();
            prop_assert!((model.len()..model.len() + Queue::<[usize; 30]>::PER_SEGMENT).contains(&left));
        }
    }
}
