//! The table of a process's calls in flight, by key, in few instructions.
//!
//! A call that waits enters the table once and leaves it once, on the way of every message that a coroutine waits for.
//! A general hash table is made for large groups that vector instructions compare, and for a hash of any key; here the
//! key is one number and there are no such instructions, so that most of its work would be useless.
//!
//! This is the textbook's: open addressing, linear probing, and removal that moves displaced entries back, so that
//! there are no marks of removed ones. The place of a key is the upper part of its product with an odd number. That
//! number is random, different for each process and not known to it, because keys are a process's to choose: with a
//! known one it could choose them so that all want the same place, and make the kernel search for long with a lock
//! held. From how long its calls take it can still learn something of the number; so whenever a key comes to lie far
//! from its place another number is chosen.
//!
//! A table that grows enters all entries anew, which takes long if they are many. So it grows up to [`MOST_PLACES`],
//! and entries that find no room there are in a [`Table`], which grows a little at a time and costs each call a little
//! more.

use core::num::NonZeroU64;

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use tables::Table;

/// Number of places of the smallest table that is not empty.
const SMALLEST: usize = 8;

/// Number of places of the largest table: entering all of them anew is one step.
const MOST_PLACES: usize = 1024;

/// Greatest distance of a key from its place. At three quarters full, keys that were not chosen on purpose lie nowhere
/// near as far.
const FURTHEST: usize = 512;

/// Values by keys that are not 0.
#[doc(alias = "idr")]
#[doc(alias = "xarray")]
pub(crate) struct InFlight<T> {
    /// Empty, or a power of two of places, of which at most three quarters are in use.
    places: Vec<Option<(NonZeroU64, T)>>,
    /// Number of all values, with those in no place.
    count: usize,
    /// Odd.
    multiplier: u64,
    /// Number of bits by which a product is shifted to give a place.
    shift: u32,
    /// Set if values may be in `more`, or are to be.
    are_many: bool,
    /// Number of times that entries have moved to later places.
    shuffles: usize,
    /// Entries that have found no room.
    more: Table<(NonZeroU64, T)>,
}

/// A free place for a key.
pub(crate) struct Vacancy {
    place: usize,
    key: NonZeroU64,
}

/// The place of an entry of the other table.
const ELSEWHERE: usize = usize::MAX;

impl<T> InFlight<T> {
    /// Creates an empty table with a random number.
    pub(crate) const fn new(random: u64) -> InFlight<T> {
        InFlight {
            places: Vec::new(),
            count: 0,
            multiplier: random | 1,
            shift: 0,
            are_many: false,
            shuffles: 0,
            more: Table::new(),
        }
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the preferred place of a key, in a table that has places.
    #[inline(always)]
    fn home(&self, key: NonZeroU64) -> usize {
        (key.get().wrapping_mul(self.multiplier) >> self.shift) as usize
    }

    /// Returns the place of the key, or else the free place for it. A table that has places has free ones.
    #[inline]
    fn search(&self, key: NonZeroU64) -> Result<usize, usize> {
        let mut place = self.home(key);
        loop {
            match &self.places[place] {
                None => return Err(place),
                Some((other, _)) if *other == key => return Ok(place),
                Some(_) => place = (place + 1) & (self.places.len() - 1),
            }
        }
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        self.search(NonZeroU64::new(key)?).ok()
    }

    /// Returns the hash of a key in the other table: the two halves of a long product, of which no part can be told
    /// without the number.
    fn hash(&self, key: NonZeroU64) -> u32 {
        let product = u128::from(key.get() ^ self.multiplier >> 1) * u128::from(self.multiplier);
        let halves = product as u64 ^ (product >> 64) as u64;
        (halves ^ halves >> 32) as u32
    }

    /// Returns the index of a key in the other table.
    #[cold]
    fn find_elsewhere(&self, key: u64) -> Option<usize> {
        let key = NonZeroU64::new(key)?;
        self.more.find(self.hash(key), |(other, _)| *other == key)
    }

    /// Reserves room for one more value.
    ///
    /// # Errors
    /// There is no memory; nothing has changed.
    #[inline]
    pub(crate) fn reserve(&mut self) -> Result<(), TryReserveError> {
        if (self.count + 1) * 4 <= self.places.len() * 3 { Ok(()) } else { self.grow() }
    }

    #[cold]
    fn grow(&mut self) -> Result<(), TryReserveError> {
        if self.places.len() < MOST_PLACES {
            return self.rebuild((self.places.len() * 2).max(SMALLEST));
        }
        self.more.reserve()?;
        self.are_many = true;
        Ok(())
    }

    /// Enters all entries anew, in so many places.
    fn rebuild(&mut self, size: usize) -> Result<(), TryReserveError> {
        let mut places = Vec::new();
        places.try_reserve_exact(size)?;
        places.resize_with(size, || None);
        self.shift = u64::BITS - size.trailing_zeros();
        self.shuffles = self.shuffles.wrapping_add(1);
        for (key, value) in core::mem::replace(&mut self.places, places).into_iter().flatten() {
            if let Err(place) = self.search(key) {
                self.places[place] = Some((key, value));
            }
        }
        Ok(())
    }

    /// Returns the place for a key that is not in the table, after [`reserve`](Self::reserve); `None` if it is there,
    /// or 0.
    #[inline]
    pub(crate) fn vacancy(&mut self, key: u64) -> Option<Vacancy> {
        let key = NonZeroU64::new(key)?;
        if self.are_many {
            return self.vacancy_of_many(key);
        }
        let place = self.search(key).err()?;
        if place.wrapping_sub(self.home(key)) & (self.places.len() - 1) > FURTHEST {
            return self.vacancy_with_another_number(key);
        }
        Some(Vacancy { place, key })
    }

    /// Does as [`vacancy`](Self::vacancy) while there may be entries in the other table.
    #[cold]
    fn vacancy_of_many(&mut self, key: NonZeroU64) -> Option<Vacancy> {
        let place = self.search(key).err()?;
        if self.find_elsewhere(key.get()).is_some() {
            return None;
        }
        let in_places = self.count - self.more.len();
        let distance = place.wrapping_sub(self.home(key)) & (self.places.len() - 1);
        let has_room = (in_places + 1) * 4 <= self.places.len() * 3 && distance <= FURTHEST;
        // If all values would fit into the places, no room was reserved elsewhere.
        let has_room = has_room || (self.count + 1) * 4 <= self.places.len() * 3;
        Some(Vacancy { place: if has_room { place } else { ELSEWHERE }, key })
    }

    /// Does as [`vacancy`](Self::vacancy), with another number if there is memory for the change.
    #[cold]
    fn vacancy_with_another_number(&mut self, key: NonZeroU64) -> Option<Vacancy> {
        // A step of SplitMix64, of which the process sees neither side.
        let mut mixed = self.multiplier.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let before = core::mem::replace(&mut self.multiplier, mixed ^ mixed >> 31 | 1);
        if self.rebuild(self.places.len()).is_err() {
            self.multiplier = before;
        }
        self.search(key).err().map(|place| Vacancy { place, key })
    }

    /// Enters a value. The table must not have changed since the place was found.
    #[inline]
    pub(crate) fn fill(&mut self, vacancy: Vacancy, value: T) {
        self.count += 1;
        match self.places.get_mut(vacancy.place) {
            Some(place) => *place = Some((vacancy.key, value)),
            None => self.fill_elsewhere(vacancy.key, value),
        }
    }

    #[cold]
    fn fill_elsewhere(&mut self, key: NonZeroU64, value: T) {
        self.more.insert(self.hash(key), (key, value));
    }

    /// Returns the value of a key.
    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        let entry = match self.find(key) {
            Some(place) => self.places[place].as_ref(),
            None => self.more.get(self.find_elsewhere(key)?),
        };
        entry.map(|(_, value)| value)
    }

    /// Returns the value of a key, to change it.
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let entry = match self.find(key) {
            Some(place) => self.places[place].as_mut(),
            None => {
                let index = self.find_elsewhere(key)?;
                self.more.get_mut(index)
            }
        };
        entry.map(|(_, value)| value)
    }

    /// Removes a key; returns its value.
    #[inline]
    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let Some(mut hole) = self.find(key) else { return self.remove_elsewhere(key) };
        let (_, value) = self.places[hole].take()?;
        self.count -= 1;
        // Entries that follow without a gap may have been displaced by the removed one. An entry whose way from its
        // preferred place leads over the hole moves there, and leaves the hole at its old place.
        let last = self.places.len() - 1;
        let mut place = hole;
        loop {
            place = (place + 1) & last;
            let Some((key, _)) = &self.places[place] else { return Some(value) };
            if place.wrapping_sub(self.home(*key)) & last >= place.wrapping_sub(hole) & last {
                self.places.swap(hole, place);
                if hole > place {
                    self.shuffles = self.shuffles.wrapping_add(1);
                }
                hole = place;
            }
        }
    }

    #[cold]
    fn remove_elsewhere(&mut self, key: u64) -> Option<T> {
        let index = self.find_elsewhere(key)?;
        let (_, value) = self.more.remove(index)?;
        self.count -= 1;
        self.are_many = !self.more.is_empty();
        Some(value)
    }

    /// Returns the number of places of the table.
    pub(crate) fn places(&self) -> usize {
        self.places.len() + self.more.len()
    }

    /// Returns a number that changes when entries move to later places. A walk over all places, from the last to the
    /// first, has met all entries that were there all the time if this is as before.
    pub(crate) fn shuffles(&self) -> usize {
        self.shuffles
    }

    /// Returns the value in a place, to change it. A walk over all places, some at a time, begins with the last: a
    /// removal moves entries to an earlier place, unless that is beyond the table's end.
    pub(crate) fn at_place(&mut self, place: usize) -> Option<&mut T> {
        let entry = match place.checked_sub(self.places.len()) {
            None => self.places[place].as_mut(),
            Some(index) => self.more.get_mut(index),
        };
        entry.map(|(_, value)| value)
    }

    /// Returns all values, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten().chain(self.more.values()).map(|(_, value)| value)
    }

    /// Takes all values out, in no order.
    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.places.into_iter().flatten().chain(self.more.into_values()).map(|(_, value)| value)
    }

    /// Takes all entries out, with their memory.
    pub(crate) fn take(&mut self) -> InFlight<T> {
        core::mem::replace(self, InFlight::new(self.multiplier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u64, u32),
        Remove(u64),
        Change(u64, u32),
        Take,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Few keys, so that they meet; and keys as a runtime makes them, of an index and a generation.
        let key = || prop_oneof![0u64..40, (0u64..4, 1u64..4).prop_map(|(index, generation)| index | generation << 32)];
        prop::collection::vec(
            prop_oneof![
                8 => (key(), any::<u32>()).prop_map(|(key, value)| Step::Enter(key, value)),
                6 => key().prop_map(Step::Remove),
                2 => (key(), any::<u32>()).prop_map(|(key, value)| Step::Change(key, value)),
                1 => Just(Step::Take),
            ],
            0..400,
        )
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Compares with the standard library's table, also with a number for which nearly all keys want one place.
        #[test]
        fn in_flight_calls_behave_like_a_map(steps in steps(), random in prop_oneof![Just(0), Just(1 << 63), any::<u64>()]) {
            let mut table = InFlight::new(random);
            let mut model = HashMap::new();
            for step in steps {
                match step {
                    Step::Enter(key, value) => {
                        table.reserve().unwrap();
                        let vacancy = table.vacancy(key);
                        prop_assert_eq!(vacancy.is_some(), key != 0 && !model.contains_key(&key));
                        if let Some(vacancy) = vacancy {
                            table.fill(vacancy, value);
                            model.insert(key, value);
                        }
                    }
                    Step::Remove(key) => prop_assert_eq!(table.remove(key), model.remove(&key)),
                    Step::Change(key, value) => {
                        prop_assert_eq!(table.get(key), model.get(&key));
                        if let Some(one) = table.get_mut(key) {
                            *one = value;
                            model.insert(key, value);
                        }
                    }
                    Step::Take => {
                        let mut taken: Vec<_> = table.take().values().copied().collect();
                        let mut expected: Vec<_> = model.drain().map(|(_, value)| value).collect();
                        taken.sort_unstable();
                        expected.sort_unstable();
                        prop_assert_eq!(taken, expected);
                    }
                }
                prop_assert_eq!((table.len(), table.is_empty()), (model.len(), model.is_empty()));
                for (key, value) in &model {
                    prop_assert_eq!(table.get(*key), Some(value));
                }
            }
            for place in 0..table.places() {
                if let Some(value) = table.at_place(place) {
                    *value = 7;
                }
            }
            prop_assert!(table.values().all(|value| *value == 7));
        }
    }

    #[test]
    fn chosen_keys_do_not_lie_far_away_for_long() {
        // With this number the place of a key below 2^40 is always the first.
        let mut table = InFlight::new(1);
        for key in 1..=700u64 {
            table.reserve().unwrap();
            let vacancy = table.vacancy(key).unwrap();
            table.fill(vacancy, key);
        }
        assert_ne!(table.multiplier, 1);
        let distance = |place: usize, key| place.wrapping_sub(table.home(key)) & (table.places.len() - 1);
        let places = table.places.iter().enumerate();
        let furthest = places.filter_map(|(place, entry)| entry.as_ref().map(|(key, _)| distance(place, *key))).max();
        assert!(furthest.unwrap() <= FURTHEST);
        assert!((1..=700).all(|key| table.remove(key) == Some(key)));
    }

    /// Growing moves no more than a step may, however many entries there are; all are found, in either table.
    #[test]
    fn the_table_grows_and_keeps_a_quarter_free() {
        let mut table = InFlight::new(0x9e37_79b9_7f4a_7c15);
        for round in 0..2 {
            for key in 1..=60_000u64 {
                table.reserve().unwrap();
                let vacancy = table.vacancy(key << 32 | key).unwrap();
                table.fill(vacancy, key);
                assert!(table.vacancy(key << 32 | key).is_none());
                let in_places = table.len() - table.more.len();
                assert!(in_places * 4 <= table.places.len() * 3 && table.places.len() <= MOST_PLACES);
            }
            assert_eq!(table.values().sum::<u64>(), 60_000 * 60_001 / 2);
            for place in (0..table.places()).rev() {
                if let Some(value) = table.at_place(place) {
                    *value += 1;
                }
            }
            // In both orders: entries in places go first, or last.
            for number in 1..=60_000u64 {
                let key = if round == 0 { number } else { 60_001 - number };
                assert_eq!(table.get(key << 32 | key), Some(&(key + 1)));
                assert_eq!(table.remove(key << 32 | key), Some(key + 1));
            }
            assert!(table.is_empty() && !table.are_many && table.places.iter().all(Option::is_none));
        }
    }
}
