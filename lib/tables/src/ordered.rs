use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use crate::{segment, shift_for};

/// Values by numbers, in the order of the numbers.
#[derive(Debug)]
#[doc(alias = "BTreeMap")]
pub struct Ordered<T> {
    /// Neighbours, none without any. The first group grows by doubling, so that a few values take little memory.
    groups: Vec<Vec<(u64, T)>>,
    length: usize,
}

impl<T> Default for Ordered<T> {
    fn default() -> Ordered<T> {
        Ordered::new()
    }
}

impl<T> Ordered<T> {
    /// Maximum number of values of a group.
    const MOST: usize = 1 << shift_for(size_of::<(u64, T)>());

    /// Makes an empty one.
    pub const fn new() -> Ordered<T> {
        Ordered { groups: Vec::new(), length: 0 }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the group of a number, and its place there, or else the place for it.
    #[inline]
    fn find(&self, key: u64) -> (usize, Result<usize, usize>) {
        let group = match &self.groups[..] {
            [] | [_] => 0,
            // Of the groups that begin before, only the last can have it.
            groups => {
                let begins_before = |group: &Vec<(u64, T)>| group.first().is_some_and(|(first, _)| *first <= key);
                groups.partition_point(begins_before).saturating_sub(1)
            }
        };
        let entries = self.groups.get(group).map_or(&[][..], |entries| entries);
        (group, entries.binary_search_by_key(&key, |(key, _)| *key))
    }

    /// Returns the value of a number.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&T> {
        let (group, entry) = self.find(key);
        Some(&self.groups.get(group)?.get(entry.ok()?)?.1)
    }

    /// Returns the value of a number, to change it.
    #[inline]
    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let (group, entry) = self.find(key);
        Some(&mut self.groups.get_mut(group)?.get_mut(entry.ok()?)?.1)
    }

    /// Returns the first number that has a value and is not below this one.
    pub fn first_from(&self, key: u64) -> Option<u64> {
        let (group, entry) = self.find(key);
        let entry = entry.unwrap_or_else(|place| place);
        let in_group = self.groups.get(group)?.get(entry);
        let found = in_group.or_else(|| self.groups.get(group + 1)?.first());
        found.map(|(key, _)| *key)
    }

    /// Sets the value of a number.
    ///
    /// # Errors
    /// There is no memory; nothing has changed.
    pub fn insert(&mut self, key: u64, value: T) -> Result<(), TryReserveError> {
        let (mut group, entry) = self.find(key);
        let mut place = match entry {
            Ok(place) => {
                self.groups[group][place].1 = value;
                return Ok(());
            }
            Err(place) => place,
        };
        if self.groups.is_empty() {
            self.groups.try_reserve_exact(1)?;
            self.groups.push(segment(1)?);
        }
        let length = self.groups[group].len();
        if length == Self::MOST {
            self.groups.try_reserve(1)?;
            let mut next = segment(Self::MOST)?;
            // Values that come in their order leave full groups behind.
            let kept = if place == length { length } else { length / 2 };
            next.extend(self.groups[group].drain(kept..));
            self.groups.insert(group + 1, next);
            if place >= kept {
                (group, place) = (group + 1, place - kept);
            }
        } else if length == self.groups[group].capacity() {
            self.groups[group].try_reserve_exact(length.max(1).min(Self::MOST - length))?;
        }
        self.groups[group].insert(place, (key, value));
        self.length += 1;
        Ok(())
    }

    /// Removes a number; returns its value.
    pub fn remove(&mut self, key: u64) -> Option<T> {
        let (group, entry) = self.find(key);
        let (_, value) = self.groups.get_mut(group)?.remove(entry.ok()?);
        self.length -= 1;
        self.join(group.saturating_sub(1));
        self.join(group);
        Some(value)
    }

    /// Removes the last number; returns it with its value.
    pub fn pop_last(&mut self) -> Option<(u64, T)> {
        let last = self.groups.last_mut()?;
        let popped = last.pop()?;
        self.length -= 1;
        if last.is_empty() {
            self.groups.pop();
        }
        if self.groups.is_empty() {
            self.groups = Vec::new();
        }
        Some(popped)
    }

    /// Joins a group and the next, if they are small; removes the group if it is empty.
    fn join(&mut self, group: usize) {
        let length = |group: usize| self.groups.get(group).map(Vec::len);
        match (length(group), length(group + 1)) {
            (Some(0), None) if group == 0 => self.groups = Vec::new(),
            (Some(0), _) => drop(self.groups.remove(group)),
            (Some(own), Some(next)) if own + next <= self.groups[group].capacity().min(Self::MOST / 2) => {
                let mut next = self.groups.remove(group + 1);
                self.groups[group].append(&mut next);
            }
            _ => {}
        }
    }

    /// Takes out all values from a number on.
    ///
    /// # Errors
    /// There is no memory for their list; nothing has changed.
    pub fn split_off(&mut self, key: u64) -> Result<Ordered<T>, TryReserveError> {
        let (group, entry) = self.find(key);
        let place = entry.unwrap_or_else(|place| place);
        let mut groups = segment(self.groups.len() - group)?;
        let Some(entries) = self.groups.get_mut(group) else { return Ok(Ordered::new()) };
        let mut rest = segment(entries.len() - place)?;
        rest.extend(entries.drain(place..));
        if !rest.is_empty() {
            groups.push(rest);
        }
        groups.extend(self.groups.drain(group + 1..));
        let length = groups.iter().map(Vec::len).sum();
        self.length -= length;
        self.join(group);
        Ok(Ordered { groups, length })
    }

    /// Iterates over all numbers and values.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.groups.iter().flatten().map(|(key, value)| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A value of which few fit into a group.
    type Large = [u64; 16];
    const MOST: usize = Ordered::<Large>::MOST;

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Compares with the standard library's map.
        #[test]
        fn values_are_a_map_in_order(steps in prop::collection::vec((0u8..10, 0u64..300, 1u64..80), 0..200)) {
            let mut ordered: Ordered<Large> = Ordered::new();
            let mut model = BTreeMap::new();
            for (what, key, count) in steps {
                match what {
                    0..4 => for key in key..key + count {
                        ordered.insert(key, [key + count; 16]).unwrap();
                        model.insert(key, [key + count; 16]);
                    },
                    4..7 => for key in key..key + count {
                        prop_assert_eq!(ordered.remove(key), model.remove(&key));
                    },
                    7 => prop_assert_eq!(ordered.pop_last(), model.pop_last()),
                    8 => {
                        let (rest, expected) = (ordered.split_off(key).unwrap(), model.split_off(&key));
                        prop_assert_eq!(rest.len(), expected.len());
                        prop_assert!(rest.iter().eq(expected.iter().map(|(key, value)| (*key, value))));
                    }
                    _ => if let Some(value) = ordered.get_mut(key) {
                        *value = [7; 16];
                        model.insert(key, [7; 16]);
                    },
                }
                prop_assert_eq!((ordered.len(), ordered.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(ordered.get(key), model.get(&key));
                prop_assert_eq!(ordered.first_from(key), model.range(key..).next().map(|(key, _)| *key));
                prop_assert!(ordered.iter().eq(model.iter().map(|(key, value)| (*key, value))));
                prop_assert!(ordered.groups.iter().all(|group| (1..=MOST).contains(&group.len())));
                prop_assert_eq!(ordered.groups.capacity() == 0, model.is_empty());
            }
        }
    }

    #[test]
    fn values_in_their_order_fill_the_groups_and_neighbours_with_few_are_joined() {
        let mut ordered: Ordered<Large> = Ordered::new();
        for key in 0..10 * MOST as u64 {
            ordered.insert(key, [key; 16]).unwrap();
            assert_eq!(ordered.groups.len(), (key as usize / MOST) + 1);
        }
        // One of each group but the first is left.
        for key in (0..10 * MOST as u64).filter(|key| key % MOST as u64 != 0) {
            assert_eq!(ordered.remove(key), Some([key; 16]));
        }
        assert_eq!(ordered.len(), 10);
        assert!(ordered.groups.len() <= 4, "{}", ordered.groups.len());
    }

    #[test]
    fn a_few_take_little() {
        let mut ordered = Ordered::new();
        assert_eq!((ordered.get(0), ordered.first_from(0)), (None, None));
        assert_eq!(ordered.remove(0), None);
        ordered.insert(u64::MAX, 1u64).unwrap();
        assert_eq!(ordered.groups[0].capacity(), 1);
        assert_eq!((ordered.first_from(0), ordered.first_from(u64::MAX)), (Some(u64::MAX), Some(u64::MAX)));
        assert_eq!(ordered.split_off(u64::MAX).unwrap().len(), 1);
        assert_eq!((ordered.pop_last(), ordered.groups.capacity()), (None, 0));
    }
}
