//! A hash table that grows in short steps.
//!
//! A table of half a million entries that is made anew at twice its size keeps everything else waiting for tens of
//! milliseconds. So it consists of small tables, and with every few new entries one of these is split in two (linear
//! hashing: W. Litwin, "Linear hashing: a new tool for file and table addressing", 1980).

use alloc::vec::Vec;

use hashbrown::HashTable;

use crate::Error;

/// Average number of entries of a small table, from which on one is split.
const ENTRIES: usize = 256;
/// The bits of a hash that choose the small table begin here: the table itself uses the lowest and the highest.
const CHOOSING: u32 = 32;

/// A set of `T`, which the callers hash and compare.
pub(crate) struct Sharded<T> {
    /// The first `shards.len() - (mask + 1) / 2` of these, and as many at the end, have entries of one bit more.
    shards: Vec<HashTable<T>>,
    /// Bits of a hash that choose a table, if there are that many already.
    mask: usize,
    count: usize,
}

impl<T> Sharded<T> {
    pub(crate) fn new() -> Self {
        Sharded { shards: Vec::new(), mask: 0, count: 0 }
    }

    #[inline]
    fn place(&self, hash: u64) -> usize {
        let place = (hash >> CHOOSING) as usize & self.mask;
        if place < self.shards.len() { place } else { place & self.mask >> 1 }
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.shards.get(self.place(hash))?.find(hash, is_it)
    }

    pub(crate) fn find_mut(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let place = self.place(hash);
        self.shards.get_mut(place)?.find_mut(hash, is_it)
    }

    /// Makes room for one more entry with this hash. After that, [`insert`](Self::insert) of it takes no memory, nor
    /// does it fail to be reserved once more.
    pub(crate) fn reserve(&mut self, hash: u64, hash_of: impl Fn(&T) -> u64) -> Result<(), Error> {
        if self.shards.is_empty() {
            self.shards.try_reserve(1)?;
            self.shards.push(HashTable::new());
        } else if self.count >= self.shards.len() * ENTRIES {
            // Without memory it stays as it is, which is a little slower.
            let _ = self.split(&hash_of);
        }
        let place = self.place(hash);
        self.shards.get_mut(place).ok_or(Error::OutOfMemory)?.try_reserve(1, hash_of)?;
        Ok(())
    }

    /// Splits the next small table in two.
    #[cold]
    #[inline(never)]
    fn split(&mut self, hash_of: &impl Fn(&T) -> u64) -> Result<(), Error> {
        let new = self.shards.len();
        let mask = if new > self.mask { 2 * self.mask + 1 } else { self.mask };
        let old = new & mask >> 1;
        self.shards.try_reserve(1)?;
        let Some(shard) = self.shards.get_mut(old) else { return Ok(()) };
        let goes = |entry: &T| (hash_of(entry) >> CHOOSING) as usize & mask == new;
        let going = shard.iter().filter(|entry| goes(entry)).count();
        let (mut stays, mut goes_away) = (HashTable::new(), HashTable::new());
        // With room for one more, which may have been reserved in the table before.
        stays.try_reserve(shard.len() - going + 1, hash_of)?;
        goes_away.try_reserve(going + 1, hash_of)?;
        for entry in core::mem::take(shard) {
            let hash = hash_of(&entry);
            let half = if goes(&entry) { &mut goes_away } else { &mut stays };
            half.insert_unique(hash, entry, hash_of);
        }
        *shard = stays;
        self.shards.push(goes_away);
        self.mask = mask;
        Ok(())
    }

    /// Adds an entry that is not there yet, after [`reserve`](Self::reserve).
    pub(crate) fn insert(&mut self, hash: u64, entry: T, hash_of: impl Fn(&T) -> u64) {
        let place = self.place(hash);
        if let Some(shard) = self.shards.get_mut(place) {
            shard.insert_unique(hash, entry, hash_of);
            self.count += 1;
        }
    }

    pub(crate) fn remove(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) {
        let place = self.place(hash);
        if let Some(shard) = self.shards.get_mut(place)
            && let Ok(entry) = shard.find_entry(hash, is_it)
        {
            entry.remove();
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::collections::BTreeSet;
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    /// Spreads numbers over all bits.
    fn hash_of(number: &u32) -> u64 {
        (u64::from(*number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    fn add(table: &mut Sharded<u32>, number: u32) {
        table.reserve(hash_of(&number), hash_of).unwrap();
        table.insert(hash_of(&number), number, hash_of);
    }

    fn has(table: &Sharded<u32>, number: u32) -> bool {
        table.find(hash_of(&number), |entry| *entry == number).is_some()
    }

    #[test]
    fn no_step_moves_many_entries() {
        const ALL: u32 = 1 << 19;
        let mut table = Sharded::new();
        let mut most = 0;
        for number in 0..ALL {
            let moved = Cell::new(0);
            table
                .reserve(hash_of(&number), |entry| {
                    moved.set(moved.get() + 1);
                    hash_of(entry)
                })
                .unwrap();
            table.insert(hash_of(&number), number, hash_of);
            most = most.max(moved.get());
        }
        // Each is hashed a few times by a split, or once when its table grows.
        assert!(most < 5 * 2 * ENTRIES, "{most}");
        assert!((0..ALL).all(|number| has(&table, number)) && !has(&table, ALL));
        assert_eq!(table.shards.len(), ALL as usize / ENTRIES);
        assert!(table.shards.iter().all(|shard| shard.len() < 2 * ENTRIES));
    }

    #[test]
    fn without_memory_it_works_with_what_it_has() {
        for kilobytes in 0..60 {
            let mut table = Sharded::new();
            let mut there = vec![false; 3000];
            property::with_memory(1024 * kilobytes, || {
                for (number, is_there) in there.iter_mut().enumerate() {
                    let number = number as u32;
                    if table.reserve(hash_of(&number), hash_of).is_ok() {
                        table.insert(hash_of(&number), number, hash_of);
                        *is_there = true;
                    }
                }
            });
            assert!((0..3000).all(|number| has(&table, number) == there[number as usize]));
            add(&mut table, 3000);
            assert!(has(&table, 3000));
        }
    }

    proptest! {
        #![proptest_config(property::cases(50))]
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((0u32..3000, any::<bool>()), 0..6000)) {
            let (mut table, mut set) = (Sharded::new(), BTreeSet::new());
            for (number, adds) in steps {
                match adds {
                    true if set.insert(number) => add(&mut table, number),
                    true => *table.find_mut(hash_of(&number), |entry| *entry == number).unwrap() = number,
                    false => {
                        set.remove(&number);
                        table.remove(hash_of(&number), |entry| *entry == number);
                    }
                }
                prop_assert_eq!(table.count, set.len());
            }
            prop_assert!((0..3000).all(|number| has(&table, number) == set.contains(&number)));
        }
    }
}
