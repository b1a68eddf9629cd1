use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use crate::{segment, shift_for};

/// Lists with room for more segments than this shrink, and are freed when one segment is left.
const KEPT: usize = 16;

/// A vector whose elements never move, except those of a small first segment.
#[derive(Debug)]
#[doc(alias = "Vec")]
pub struct Segments<T> {
    /// All are full but the last in use; empty ones, which are room, come behind. The first grows by doubling, so that
    /// a few elements take little memory, and all others have their size from the beginning.
    segments: Vec<Vec<T>>,
    length: usize,
}

impl<T> Default for Segments<T> {
    fn default() -> Segments<T> {
        Segments::new()
    }
}

impl<T> Segments<T> {
    const SHIFT: u32 = shift_for(size_of::<T>());
    /// Number of elements in a segment.
    pub const PER_SEGMENT: usize = 1 << Self::SHIFT;

    /// Makes an empty vector.
    pub const fn new() -> Segments<T> {
        Segments { segments: Vec::new(), length: 0 }
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
    pub fn capacity(&self) -> usize {
        match &self.segments[..] {
            [] => 0,
            [first] => first.capacity().min(Self::PER_SEGMENT),
            segments => segments.len() << Self::SHIFT,
        }
    }

    /// Makes room for `more` further elements.
    ///
    /// # Errors
    /// There is no memory; nothing visible has changed.
    #[inline]
    pub fn reserve(&mut self, more: usize) -> Result<(), TryReserveError> {
        let wanted = self.length + more;
        if self.capacity() < wanted { self.grow(wanted) } else { Ok(()) }
    }

    #[cold]
    fn grow(&mut self, wanted: usize) -> Result<(), TryReserveError> {
        if self.segments.is_empty() {
            self.segments.try_reserve(1)?;
            self.segments.push(Vec::new());
        }
        // There is a first segment now.
        if let Some(first) = self.segments.first_mut()
            && first.capacity() < Self::PER_SEGMENT.min(wanted)
        {
            let room = wanted.next_power_of_two().clamp(4, Self::PER_SEGMENT);
            first.try_reserve_exact(room - first.len())?;
        }
        while self.capacity() < wanted {
            self.segments.try_reserve(1)?;
            self.segments.push(segment(Self::PER_SEGMENT)?);
        }
        Ok(())
    }

    /// Adds an element at the end, for which there is [room](Self::reserve).
    #[inline]
    pub fn push(&mut self, value: T) {
        debug_assert!(self.length < self.capacity(), "room is reserved first");
        self.segments[self.length >> Self::SHIFT].push(value);
        self.length += 1;
    }

    /// Takes the last element.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.pop_keeping(0)
    }

    /// Takes the last element as [`pop`](Self::pop) does, and keeps room for `room` elements beside the rest.
    pub fn pop_keeping(&mut self, room: usize) -> Option<T> {
        let last = self.length.checked_sub(1)?;
        let value = self.segments[last >> Self::SHIFT].pop();
        self.length = last;
        if last % Self::PER_SEGMENT == 0 {
            self.trim(room);
        }
        value
    }

    /// Frees a segment if more than one is empty, beside room for `room` more elements.
    fn trim(&mut self, room: usize) {
        let needed = (self.length + room).div_ceil(Self::PER_SEGMENT).max(1);
        if self.segments.len() > needed + 1 {
            self.segments.pop();
        }
        if self.segments.len() <= 2 && self.length == 0 && room == 0 && self.segments.capacity() > KEPT {
            self.segments = Vec::new();
        } else if self.segments.len() < self.segments.capacity() / 4 && self.segments.capacity() > 4 * KEPT {
            self.shrink_list();
        }
    }

    /// Shrinks the list of segments to a half, if there is memory for that.
    #[cold]
    fn shrink_list(&mut self) {
        if let Ok(mut list) = segment(self.segments.capacity() / 2) {
            list.append(&mut self.segments);
            self.segments = list;
        }
    }

    /// Returns an element.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.segments.get(index >> Self::SHIFT)?.get(index & (Self::PER_SEGMENT - 1))
    }

    /// Returns a mutable element.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.segments.get_mut(index >> Self::SHIFT)?.get_mut(index & (Self::PER_SEGMENT - 1))
    }

    /// Returns the last element.
    pub fn last(&self) -> Option<&T> {
        self.get(self.length.checked_sub(1)?)
    }

    /// Takes an element out; the last one moves to its place.
    pub fn swap_remove(&mut self, index: usize) -> Option<T> {
        if index + 1 == self.length {
            return self.pop();
        }
        if index >= self.length {
            return None;
        }
        let last = self.pop()?;
        self.get_mut(index).map(|place| core::mem::replace(place, last))
    }

    /// Iterates over all elements, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments.iter().flatten()
    }

    /// Iterates over all elements, in order, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.segments.iter_mut().flatten()
    }

    /// Takes out all elements, in order. The memory of a segment is freed behind its last one.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.segments.into_iter().flatten()
    }
}

impl<T> core::ops::Index<usize> for Segments<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        &self.segments[index >> Self::SHIFT][index & (Self::PER_SEGMENT - 1)]
    }
}

impl<T> core::ops::IndexMut<usize> for Segments<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.segments[index >> Self::SHIFT][index & (Self::PER_SEGMENT - 1)]
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Compares with the standard library's vector, with elements of which few fit into a segment.
        #[test]
        fn segments_are_a_vector(steps in prop::collection::vec((0u8..8, 0usize..200), 0..400)) {
            let mut segments: Segments<[usize; 30]> = Segments::new();
            let mut model = Vec::new();
            for (what, number) in steps {
                match what {
                    0..4 => {
                        segments.reserve(1).unwrap();
                        segments.push([number; 30]);
                        model.push([number; 30]);
                    }
                    4 => prop_assert_eq!(segments.pop(), model.pop()),
                    5 => {
                        segments.reserve(number).unwrap();
                        prop_assert!(segments.capacity() >= model.len() + number);
                    }
                    6 => {
                        let expected = (number < model.len()).then(|| model.swap_remove(number));
                        prop_assert_eq!(segments.swap_remove(number), expected);
                    }
                    _ => {
                        if let Some(place) = segments.get_mut(number) {
                            *place = [7; 30];
                            model[number] = [7; 30];
                        }
                    }
                }
                prop_assert_eq!((segments.len(), segments.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!((segments.get(number), segments.last()), (model.get(number), model.last()));
            }
            prop_assert!(segments.iter().eq(&model));
            prop_assert!(segments.into_values().eq(model));
        }
    }

    #[test]
    fn unneeded_segments_are_given_back_one_at_a_time() {
        let mut segments = Segments::new();
        segments.reserve(10_300).unwrap();
        for number in 0..10_000u64 {
            segments.push(number);
        }
        let mut before = segments.segments.len();
        while segments.pop_keeping(300).is_some() {
            assert!(before - segments.segments.len() <= 1);
            assert!(segments.capacity() >= segments.len() + 300);
            before = segments.segments.len();
        }
        assert!(segments.capacity() <= 300 + 2 * Segments::<u64>::PER_SEGMENT);
    }

    /// Returns the number of segments and the capacity.
    fn room<T>(segments: &Segments<T>) -> (usize, usize) {
        (segments.segments.len(), segments.capacity())
    }

    #[test]
    fn room_grows_as_it_is_needed() {
        const SEGMENT: usize = Segments::<u64>::PER_SEGMENT;
        let mut segments: Segments<u64> = Segments::new();
        assert_eq!(room(&segments), (0, 0));
        segments.reserve(0).unwrap();
        assert_eq!(room(&segments), (0, 0));
        for (wanted, expected) in [
            (1, (1, 4)),
            (4, (1, 4)),
            (5, (1, 8)),
            (33, (1, 64)),
            (SEGMENT - 1, (1, SEGMENT)),
            (SEGMENT, (1, SEGMENT)),
            (SEGMENT + 1, (2, 2 * SEGMENT)),
            (2 * SEGMENT, (2, 2 * SEGMENT)),
            (4 * SEGMENT + 1, (5, 5 * SEGMENT)),
            (1, (5, 5 * SEGMENT)),
        ] {
            segments.reserve(wanted).unwrap();
            assert_eq!(room(&segments), expected, "for {wanted}");
        }
        // Present elements count, too.
        for number in 0..5 * SEGMENT as u64 {
            segments.push(number);
        }
        segments.reserve(0).unwrap();
        assert_eq!(room(&segments), (5, 5 * SEGMENT));
        segments.reserve(1).unwrap();
        assert_eq!(room(&segments), (6, 6 * SEGMENT));
        assert_eq!(segments.len(), 5 * SEGMENT);
        // A first segment that has grown keeps its elements.
        let mut few = Segments::new();
        for number in 0..5u64 {
            few.reserve(1).unwrap();
            few.push(number);
        }
        assert_eq!(room(&few), (1, 8));
        few.reserve(SEGMENT).unwrap();
        assert_eq!(room(&few), (2, 2 * SEGMENT));
        assert!(few.iter().eq(&[0, 1, 2, 3, 4]));
    }

    #[test]
    fn one_empty_segment_is_kept_beside_the_room_that_is_asked_for() {
        const SEGMENT: usize = Segments::<u64>::PER_SEGMENT;
        let filled = |count: usize| {
            let mut segments = Segments::new();
            segments.reserve(count).unwrap();
            (0..count as u64).for_each(|number| segments.push(number));
            segments
        };
        for (kept, expected) in
            [(0, [4, 4, 3, 2, 2]), (1, [4, 4, 4, 3, 2]), (SEGMENT, [4, 4, 4, 3, 2]), (SEGMENT + 1, [4, 4, 4, 4, 3])]
        {
            let mut segments = filled(4 * SEGMENT);
            let mut lengths = std::vec![segments.segments.len()];
            for _ in 0..4 {
                (0..SEGMENT).for_each(|_| _ = segments.pop_keeping(kept));
                lengths.push(segments.segments.len());
            }
            assert_eq!(lengths, expected, "with room for {kept}");
        }
        // The list of segments is freed, too, if it is long, when no element is left and no room is requested.
        for (count, room, is_kept) in [(2, 0, true), (KEPT, 0, true), (KEPT + 1, 0, false), (KEPT + 1, 1, true)] {
            let mut segments = filled(count * SEGMENT);
            segments.segments.shrink_to(count);
            assert_eq!(segments.segments.capacity(), count);
            while segments.len() > 1 {
                segments.pop_keeping(room);
            }
            assert_eq!(segments.segments.capacity(), count);
            assert_eq!(segments.pop_keeping(room), Some(0));
            assert_eq!(segments.segments.capacity() != 0, is_kept, "{count} segments and room for {room}");
            assert_eq!(segments.pop_keeping(room), None);
        }
    }

    #[test]
    fn elements_can_be_changed_where_they_are() {
        const SEGMENT: usize = Segments::<u64>::PER_SEGMENT;
        let mut segments = Segments::new();
        for number in 0..3 * SEGMENT as u64 {
            segments.reserve(1).unwrap();
            segments.push(number);
        }
        segments.iter_mut().for_each(|number| *number += 1);
        segments[SEGMENT + 1] = 7;
        for index in 0..3 * SEGMENT {
            let expected = if index == SEGMENT + 1 { 7 } else { index as u64 + 1 };
            assert_eq!((segments[index], segments.get(index)), (expected, Some(&expected)));
        }
        assert_eq!((segments.get(3 * SEGMENT), segments.last()), (None, Some(&(3 * SEGMENT as u64))));
    }

    #[test]
    fn the_list_of_segments_shrinks_with_them() {
        let mut segments = Segments::new();
        segments.reserve(1 << 17).unwrap();
        for number in 0..1 << 17 {
            segments.push(number as u64);
        }
        while segments.pop().is_some() {
            assert!(segments.segments.capacity() <= (4 * segments.segments.len() + 1).max(4 * KEPT));
        }
        assert_eq!(segments.segments.capacity(), 0);
    }

    #[test]
    fn a_few_take_little() {
        let mut segments = Segments::new();
        segments.reserve(1).unwrap();
        segments.push(1u64);
        assert_eq!(segments.capacity(), 4);
    }
}
