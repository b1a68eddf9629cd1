//! The entries of one directory: found by name, listed in the order of creation.
//!
//! A program lists a directory with many calls, and others may change it in between. POSIX demands that an entry that
//! was there all the time is reported exactly once. So each entry gets a **cursor** when it is made, a number that only
//! grows; entries are stored in the order of their cursors; and a listing continues after the last cursor it has seen,
//! wherever that now is. A hash table beside them finds an entry by its name.
//!
//! Removal leaves a gap; when more than half of the places are gaps they are closed up, so that removing takes constant
//! time on average.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::error::Error;
use crate::memory;
use crate::node::FileKind;
use crate::quota::{Owner, Quota, Share};

/// Cursors 0 and 1 are `.` and `..`, which are not stored.
pub(crate) const FIRST_CURSOR: u64 = 2;

/// Below this many places gaps are not worth closing.
const SMALL: usize = 32;

/// A name and what it names.
pub(crate) struct Entry {
    name: Box<[u8]>,
    /// The inode's place in the table.
    pub(crate) inode: u32,
    /// The inode's kind, which never changes: listings report it.
    pub(crate) kind: FileKind,
    /// What whoever made the name is charged.
    _share: Option<Share>,
}

impl Entry {
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }
}

struct Place {
    cursor: u64,
    entry: Option<Entry>,
}

/// A name for which a directory has made room: inserting it cannot fail. It must be given to the same directory, before
/// anything else changes there.
#[must_use]
pub(crate) struct Prepared {
    name: Box<[u8]>,
    share: Option<Share>,
}

pub(crate) struct Directory {
    places: Vec<Place>,
    names: HashTable<u32>,
    hasher: DefaultHashBuilder,
    next_cursor: u64,
    /// How many of the entries are directories.
    pub(crate) subdirectories: u32,
    /// The directory has been removed: it is empty, and stays empty.
    pub(crate) is_removed: bool,
}

impl Directory {
    pub(crate) fn new() -> Directory {
        Directory {
            places: Vec::new(),
            names: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            next_cursor: FIRST_CURSOR,
            subdirectories: 0,
            is_removed: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn length(&self) -> usize {
        self.names.len()
    }

    /// What a name is charged.
    fn cost(name: &[u8]) -> u64 {
        (name.len() + size_of::<Place>() + size_of::<u32>()) as u64
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<&Entry> {
        let place = self.place(name)?;
        self.places[place].entry.as_ref()
    }

    fn place(&self, name: &[u8]) -> Option<usize> {
        let hash = self.hasher.hash_one(name);
        self.names.find(hash, |&place| holds(&self.places, place, name)).map(|&place| place as usize)
    }

    /// Makes room for a name that is not there yet, and charges for it.
    pub(crate) fn prepare(
        &mut self,
        quota: &Quota,
        owner: Option<&Arc<dyn Owner>>,
        name: &[u8],
    ) -> Result<Prepared, Error> {
        if u32::try_from(self.places.len()).is_err() {
            return Err(Error::NoSpace);
        }
        let copy = memory::copy(name)?;
        self.places.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        let (hasher, places) = (&self.hasher, &self.places);
        self.names.try_reserve(1, |&place| hash_of(hasher, places, place)).map_err(|_| Error::OutOfMemory)?;
        let share = Share::of(owner, Directory::cost(name))?;
        quota.charge(Directory::cost(name))?;
        Ok(Prepared { name: copy, share })
    }

    /// Gives back what [`Directory::prepare`] charged, when the name will not be inserted after all.
    pub(crate) fn forget(quota: &Quota, prepared: Prepared) {
        quota.refund(Directory::cost(&prepared.name));
    }

    pub(crate) fn insert(&mut self, prepared: Prepared, inode: u32, kind: FileKind) {
        let hash = self.hasher.hash_one(&prepared.name[..]);
        // `prepare` has seen to it that this fits.
        let place = self.places.len() as u32;
        let entry = Entry { name: prepared.name, inode, kind, _share: prepared.share };
        self.places.push(Place { cursor: self.next_cursor, entry: Some(entry) });
        self.next_cursor += 1;
        let (hasher, places) = (&self.hasher, &self.places);
        self.names.insert_unique(hash, place, |&place| hash_of(hasher, places, place));
    }

    /// Lets an existing name mean something else; the entry keeps its cursor. Returns the former inode.
    pub(crate) fn replace(&mut self, name: &[u8], inode: u32, kind: FileKind) -> Option<u32> {
        let place = self.place(name)?;
        let entry = self.places[place].entry.as_mut()?;
        entry.kind = kind;
        Some(core::mem::replace(&mut entry.inode, inode))
    }

    pub(crate) fn remove(&mut self, quota: &Quota, name: &[u8]) -> Option<Entry> {
        let hash = self.hasher.hash_one(name);
        let places = &self.places;
        let place = self.names.find_entry(hash, |&place| holds(places, place, name)).ok()?.remove().0;
        let entry = self.places[place as usize].entry.take();
        quota.refund(Directory::cost(name));
        self.close_gaps();
        entry
    }

    fn close_gaps(&mut self) {
        if self.names.is_empty() {
            self.places = Vec::new();
            self.names = HashTable::new();
        } else if self.places.len() > SMALL && self.names.len() * 2 < self.places.len() {
            self.places.retain(|place| place.entry.is_some());
            // Clearing keeps the capacity, so that the insertions below never allocate.
            self.names.clear();
            let (hasher, places) = (&self.hasher, &self.places);
            for place in 0..places.len() as u32 {
                let hash = hash_of(hasher, places, place);
                self.names.insert_unique(hash, place, |&place| hash_of(hasher, places, place));
            }
        }
    }

    /// The entries from `cursor` on, each with its own cursor.
    pub(crate) fn entries_from(&self, cursor: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let start = self.places.partition_point(|place| place.cursor < cursor);
        self.places[start..].iter().filter_map(|place| Some((place.cursor, place.entry.as_ref()?)))
    }
}

fn holds(places: &[Place], place: u32, name: &[u8]) -> bool {
    places[place as usize].entry.as_ref().is_some_and(|entry| *entry.name == *name)
}

fn hash_of(hasher: &DefaultHashBuilder, places: &[Place], place: u32) -> u64 {
    match &places[place as usize].entry {
        Some(entry) => hasher.hash_one(&entry.name[..]),
        // Gaps are not in the table of names.
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn directory_behaves_like_a_map_with_an_order(
            steps in prop::collection::vec((0..120u8, prop_oneof![3 => Just(0u8), 2 => Just(1), 1 => Just(2)]), 0..600),
        ) {
            let quota = Quota::new(u64::MAX);
            let mut directory = Directory::new();
            // Name to inode and the order of creation.
            let mut model: BTreeMap<[u8; 1], (u32, u32)> = BTreeMap::new();
            // A listing that reads one entry after each step, and what it must report at least: what was there when it
            // began and still is.
            let mut cursor = FIRST_CURSOR;
            let mut seen: Vec<(u32, [u8; 1])> = Vec::new();
            for (number, (name, action)) in (0u32..).zip(steps) {
                let name = [name];
                match (action, model.contains_key(&name)) {
                    (0, false) => {
                        let prepared = directory.prepare(&quota, None, &name).unwrap();
                        directory.insert(prepared, number, FileKind::Regular);
                        model.insert(name, (number, number));
                    }
                    (1, _) => {
                        let removed = directory.remove(&quota, &name).map(|entry| entry.inode);
                        prop_assert_eq!(removed, model.remove(&name).map(|entry| entry.0));
                    }
                    (_, there) => {
                        let former = directory.replace(&name, number, FileKind::Regular);
                        prop_assert_eq!(former.is_some(), there);
                        if let Some(entry) = model.get_mut(&name) {
                            prop_assert_eq!(former, Some(entry.0));
                            entry.0 = number;
                        }
                    }
                }
                prop_assert_eq!(directory.find(&name).map(|entry| entry.inode), model.get(&name).map(|entry| entry.0));
                prop_assert_eq!(directory.length(), model.len());
                prop_assert!(directory.places.len() <= SMALL.max(2 * model.len()) + 1);
                if let Some((at, entry)) = directory.entries_from(cursor).next() {
                    cursor = at + 1;
                    let name = [entry.name()[0]];
                    seen.push((model[&name].1, name));
                }
            }
            for (_, entry) in directory.entries_from(cursor) {
                let name = [entry.name()[0]];
                seen.push((model[&name].1, name));
            }
            // In the order of creation, each once, and whatever is there at the end was reported.
            prop_assert!(seen.is_sorted_by(|one, other| one.0 < other.0));
            for (name, (_, created)) in &model {
                prop_assert!(seen.contains(&(*created, *name)));
            }
            let names: Vec<_> = model.keys().copied().collect();
            for name in names {
                directory.remove(&quota, &name);
            }
            prop_assert_eq!(quota.used(), 0);
            prop_assert!(directory.is_empty());
        }
    }
}
