use alloc::collections::TryReserveError;

use crate::Segments;

/// End of a chain.
const NONE: u32 = u32::MAX;

/// Number of chains that are not worth uniting.
const FEW: usize = 8;

#[derive(Debug)]
struct Slot<T> {
    hash: u32,
    /// Next entry of the chain.
    next: u32,
    value: T,
}

/// A hash table of at most 2^32 - 1 entries. Each has an index, from 0 up without gaps, which stays until an entry is
/// removed: then the last one moves into the gap.
///
/// The caller computes hashes, of which the low bits count first, and compares. If outsiders choose the entries, hashes
/// have to depend on a secret.
#[derive(Debug)]
#[doc(alias = "HashMap")]
#[doc(alias = "HashSet")]
#[doc(alias = "HashTable")]
#[doc(alias = "linear hashing")]
pub struct Table<T> {
    slots: Segments<Slot<T>>,
    /// First entry of each chain.
    chains: Segments<u32>,
    /// All ones: as many as the number of the last chain has bits.
    mask: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table::new()
    }
}

impl<T> Table<T> {
    /// Makes an empty table.
    pub const fn new() -> Table<T> {
        Table { slots: Segments::new(), chains: Segments::new(), mask: 0 }
    }

    /// Returns the number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the chain of a hash: the chains that were not split in this round still have the entries of those that
    /// they will be split into.
    #[inline]
    fn chain(&self, hash: u32) -> usize {
        let chain = (hash & self.mask) as usize;
        if chain < self.chains.len() { chain } else { chain & (self.mask >> 1) as usize }
    }

    /// Returns the index of the entry with this hash for which `is_meant` holds.
    #[inline]
    pub fn find(&self, hash: u32, mut is_meant: impl FnMut(&T) -> bool) -> Option<usize> {
        let mut at = *self.chains.get(self.chain(hash))?;
        while let Some(slot) = self.slots.get(at as usize) {
            if slot.hash == hash && is_meant(&slot.value) {
                return Some(at as usize);
            }
            at = slot.next;
        }
        None
    }

    /// Makes room for one more entry.
    ///
    /// # Errors
    /// There is no memory; nothing visible has changed.
    pub fn reserve(&mut self) -> Result<(), TryReserveError> {
        self.slots.reserve(1)?;
        self.chains.reserve(1)
    }

    /// Enters a value that is not there yet, and for which there is [room](Self::reserve); returns its index, the last.
    pub fn insert(&mut self, hash: u32, value: T) -> usize {
        if self.chains.len() <= self.slots.len() {
            self.split();
        }
        let index = self.slots.len();
        let chain = self.chain(hash);
        let next = core::mem::replace(&mut self.chains[chain], index as u32);
        self.slots.push(Slot { hash, next, value });
        index
    }

    /// Adds a chain, with its part of another chain's entries.
    fn split(&mut self) {
        let new = self.chains.len() as u32;
        if new > self.mask {
            self.mask = self.mask << 1 | 1;
        }
        self.chains.push(NONE);
        if new == 0 {
            return;
        }
        // Linear hashing: chain `new` takes the entries of the chain without its highest bit whose hash has that bit.
        let old = (new & self.mask >> 1) as usize;
        let mut at = core::mem::replace(&mut self.chains[old], NONE);
        while at != NONE {
            let slot = &mut self.slots[at as usize];
            let chain = if slot.hash & self.mask == new { new as usize } else { old };
            let next = core::mem::replace(&mut slot.next, self.chains[chain]);
            self.chains[chain] = at;
            at = next;
        }
    }

    /// Merges the last chain back into the one that it was split from.
    fn unite(&mut self) {
        let Some(mut at) = self.chains.pop() else { return };
        let left = self.chains.len() as u32;
        let chain = (left & self.mask >> 1) as usize;
        // The last chain with the highest bit is gone.
        if left == self.mask.div_ceil(2) {
            self.mask >>= 1;
        }
        while at != NONE {
            let slot = &mut self.slots[at as usize];
            let next = core::mem::replace(&mut slot.next, self.chains[chain]);
            self.chains[chain] = at;
            at = next;
        }
    }

    /// Changes the link that leads to an entry.
    fn relink(&mut self, hash: u32, from: u32, to: u32) {
        let chain = self.chain(hash);
        let mut at = self.chains[chain];
        if at == from {
            self.chains[chain] = to;
            return;
        }
        while let Some(slot) = self.slots.get_mut(at as usize) {
            if slot.next == from {
                slot.next = to;
                return;
            }
            at = slot.next;
        }
    }

    /// Takes an entry out. If there was one behind it, the last entry has its index now.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        let slot = self.slots.get(index)?;
        self.relink(slot.hash, index as u32, slot.next);
        let last = self.slots.len() - 1;
        if index != last {
            self.relink(self.slots[last].hash, last as u32, index as u32);
        }
        let slot = self.slots.swap_remove(index)?;
        // Two unions, to keep up with removals.
        for _ in 0..2 {
            if self.chains.len() > FEW && self.chains.len() > 2 * self.slots.len() {
                self.unite();
            }
        }
        Some(slot.value)
    }

    /// Returns the entry with this index.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.slots.get(index).map(|slot| &slot.value)
    }

    /// Returns the entry with this index, to change it. Its hash must stay unchanged.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index).map(|slot| &mut slot.value)
    }

    /// Iterates over all values, by index.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map(|slot| &slot.value)
    }

    /// Iterates over all values, by index, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().map(|slot| &mut slot.value)
    }

    /// Takes out all values.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.slots.into_values().map(|slot| slot.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Compares with a vector, with hashes that are often equal, in runs that fill the table and empty it again.
        #[test]
        fn a_table_is_a_set_with_places(
            runs in prop::collection::vec((any::<bool>(), 0u32..200, 1u32..4000), 0..30),
            spread in prop_oneof![Just(1u32), Just(7), Just(0x9e37_79b9)],
        ) {
            let mut table = Table::new();
            let mut model: Vec<u32> = Vec::new();
            let hash = |key: u32| (key / 2).wrapping_mul(spread);
            for (enters, count, start) in runs {
                for key in (start..start + count).map(|key| key % 1000) {
                    let found = table.find(hash(key), |other| *other == key);
                    prop_assert_eq!(found, model.iter().position(|other| *other == key));
                    match found {
                        None if enters => {
                            table.reserve().unwrap();
                            prop_assert_eq!(table.insert(hash(key), key), model.len());
                            model.push(key);
                        }
                        Some(index) if !enters => {
                            prop_assert_eq!(table.remove(index), Some(key));
                            model.swap_remove(index);
                        }
                        _ => {}
                    }
                }
                prop_assert!(table.values().eq(&model));
                prop_assert!(table.chains.len() <= FEW.max(2 * model.len() + 1));
                prop_assert!(table.chains.len() >= model.len());
                let (chains, mask) = (table.chains.len() as u32, table.mask);
                prop_assert!(chains <= mask + 1 && (chains == 0 || chains > mask >> 1));
            }
            prop_assert_eq!(table.remove(model.len()), None);
            prop_assert!(table.into_values().eq(model));
        }
    }

    /// Chains are split and united one at a time, so that there are as many as entries, up to twice as many when
    /// entries go, and a few in any case.
    #[test]
    fn there_are_as_many_chains_as_entries() {
        let mut table = Table::new();
        assert_eq!((table.len(), table.is_empty()), (0, true));
        for key in 0..100u32 {
            table.reserve().unwrap();
            assert_eq!(table.insert(key, key), key as usize);
            assert_eq!((table.len(), table.is_empty()), (key as usize + 1, false));
            assert_eq!(table.chains.len(), table.len());
            assert_eq!(table.mask, (key + 1).next_power_of_two() - 1);
        }
        for key in (0..100u32).rev() {
            assert_eq!(table.remove(key as usize), Some(key));
            // Before the entry goes the chains are counted, of which two may go with it.
            assert_eq!(table.chains.len(), (2 * table.len()).clamp(FEW, 100));
            assert_eq!(table.mask, (table.chains.len() as u32).next_power_of_two() - 1);
        }
        assert!(table.is_empty());
    }

    #[test]
    fn entries_can_be_changed_where_they_are() {
        let mut table = Table::new();
        for key in 0..100u32 {
            table.reserve().unwrap();
            table.insert(key, key);
        }
        table.values_mut().for_each(|value| *value += 1);
        *table.get_mut(50).unwrap() = 7;
        for index in 0..100 {
            assert_eq!(table.get(index), Some(&if index == 50 { 7 } else { index as u32 + 1 }));
        }
        assert_eq!(table.get(100), None);
        assert_eq!(table.get_mut(100), None);
        assert_eq!(table.find(50, |&value| value == 7), Some(50));
        assert_eq!(table.find(51, |&value| value == 7), None, "another hash");
    }

    #[test]
    fn chains_stay_short() {
        let mut table = Table::new();
        for key in 0..50_000u32 {
            table.reserve().unwrap();
            table.insert(key.wrapping_mul(0x9e37_79b9).rotate_left(16), key);
        }
        let mut longest = 0;
        for chain in 0..table.chains.len() {
            let (mut length, mut at) = (0, table.chains[chain]);
            while at != NONE {
                (length, at) = (length + 1, table.slots[at as usize].next);
            }
            longest = longest.max(length);
        }
        assert!(longest < 16, "{longest}");
    }
}
