//! The entries of one directory: found by name, listed in the order of creation.
//!
//! A program lists a directory with many calls, and others may change it in between. POSIX demands that an entry that
//! was there all the time is reported exactly once. So each entry gets a **cursor** when it is made, a number that only
//! grows; entries are stored in the order of their cursors; and a listing continues after the last cursor it has seen,
//! wherever that now is. A hash table beside them finds an entry by its name.
//!
//! Removal leaves a gap. When more than half of the places are gaps they are closed up, some with each change of the
//! directory: entries move to the front one after the other, in their order, with only gaps between those that have
//! moved and those that have not. Nothing else moves when a directory grows or shrinks, so that no change takes long.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;
use tables::{Segments, Table};

use crate::error::Error;
use crate::memory;
use crate::node::FileKind;
use crate::quota::{Owner, Quota, Share};

/// Cursors 0 and 1 are `.` and `..`, which are not stored.
pub(crate) const FIRST_CURSOR: u64 = 2;

/// Number of places below which gaps are not worth closing.
const SMALL: usize = 32;

/// Number of places that a change visits while gaps are closed up.
const AT_A_TIME: usize = 16;

/// A name and its inode.
pub(crate) struct NamedInode {
    name: Box<[u8]>,
    /// Index of the inode in the table.
    pub(crate) inode: u32,
    /// The inode's kind, which never changes: listings report it.
    pub(crate) kind: FileKind,
    /// Charge to the owner that made the name.
    _share: Option<Share>,
}

impl NamedInode {
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }
}

struct NamePlace {
    cursor: u64,
    entry: Option<NamedInode>,
}

/// A name for which a directory has made room: inserting it cannot fail. It must be inserted into the same directory,
/// before any other change there.
#[must_use]
pub(crate) struct Prepared {
    name: Box<[u8]>,
    share: Option<Share>,
}

/// Progress of closing gaps: the entries in front of `from` have moved to places in front of `to`.
#[derive(Clone, Copy)]
struct Closing {
    to: usize,
    from: usize,
}

pub(crate) struct Directory {
    places: Segments<NamePlace>,
    /// Place of each name.
    names: Table<u32>,
    closing: Option<Closing>,
    hasher: DefaultHashBuilder,
    next_cursor: u64,
    /// Number of entries that are directories.
    pub(crate) subdirectories: u32,
    /// Whether the directory has been removed: it is empty, and stays empty.
    pub(crate) is_removed: bool,
}

impl Directory {
    pub(crate) fn new() -> Directory {
        Directory {
            places: Segments::new(),
            names: Table::new(),
            closing: None,
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

    /// Returns the charge for a name.
    fn cost(name: &[u8]) -> u64 {
        (name.len() + size_of::<NamePlace>() + 4 * size_of::<u32>()) as u64
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<&NamedInode> {
        let place = self.place(name)?;
        self.places[place].entry.as_ref()
    }

    fn hash(&self, name: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(name);
        (hash ^ hash >> 32) as u32
    }

    /// Returns the index of a name in the table of names.
    fn index(&self, name: &[u8]) -> Option<usize> {
        let is_meant =
            |&place: &u32| self.places[place as usize].entry.as_ref().is_some_and(|entry| *entry.name == *name);
        self.names.find(self.hash(name), is_meant)
    }

    fn place(&self, name: &[u8]) -> Option<usize> {
        self.names.get(self.index(name)?).map(|&place| place as usize)
    }

    /// Makes room for a name that is not there yet, and charges it.
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
        self.places.reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.names.reserve().map_err(|_| Error::OutOfMemory)?;
        let share = Share::of(owner, Directory::cost(name))?;
        quota.charge(Directory::cost(name))?;
        Ok(Prepared { name: copy, share })
    }

    /// Refunds the charge of [`Directory::prepare`] for a name that will not be inserted.
    pub(crate) fn forget(quota: &Quota, prepared: Prepared) {
        quota.refund(Directory::cost(&prepared.name));
    }

    /// Adds a prepared name; returns the cursor of the entry.
    pub(crate) fn insert(&mut self, prepared: Prepared, inode: u32, kind: FileKind) -> u64 {
        let cursor = self.next_cursor;
        let hash = self.hash(&prepared.name);
        // `prepare` has made room.
        self.names.insert(hash, self.places.len() as u32);
        let entry = NamedInode { name: prepared.name, inode, kind, _share: prepared.share };
        self.places.push(NamePlace { cursor: self.next_cursor, entry: Some(entry) });
        self.next_cursor += 1;
        self.close_gaps();
        cursor
    }

    /// Lets an existing name refer to another inode; the entry keeps its cursor, which is returned.
    pub(crate) fn replace(&mut self, name: &[u8], inode: u32, kind: FileKind) -> Option<u64> {
        let place = self.place(name)?;
        let NamePlace { cursor, entry } = &mut self.places[place];
        let entry = entry.as_mut()?;
        (entry.kind, entry.inode) = (kind, inode);
        Some(*cursor)
    }

    pub(crate) fn remove(&mut self, quota: &Quota, name: &[u8]) -> Option<NamedInode> {
        let place = self.names.remove(self.index(name)?)?;
        let entry = self.places[place as usize].entry.take();
        quota.refund(Directory::cost(name));
        self.close_gaps();
        entry
    }

    /// Frees the last place of a directory to which nothing leads any more, and which is not used otherwise from now
    /// on; returns `false` if there is none.
    pub(crate) fn free_last(&mut self) -> bool {
        let Some(NamePlace { entry, .. }) = self.places.pop() else { return false };
        let place = self.places.len();
        if let Some(entry) = entry
            && let Some(index) = self.names.find(self.hash(&entry.name), |&found| found as usize == place)
        {
            self.names.remove(index);
        }
        true
    }

    /// Begins or continues to close gaps, if there are enough.
    fn close_gaps(&mut self) {
        if self.names.is_empty() {
            // Only places that were not given back yet are left.
            (self.places, self.names, self.closing) = (Segments::new(), Table::new(), None);
            return;
        }
        if self.closing.is_none() && self.places.len() > SMALL && self.names.len() * 2 < self.places.len() {
            self.closing = Some(Closing { to: 0, from: 0 });
        }
        for _ in 0..AT_A_TIME {
            let Some(Closing { to, from }) = self.closing else { return };
            if from < self.places.len() {
                self.move_entry(from, to);
            } else if to < from {
                self.places.pop();
                self.closing = Some(Closing { to, from: from - 1 });
            } else {
                self.closing = None;
            }
        }
    }

    /// Moves the entry of a place, if it has one, to another place in front of it.
    fn move_entry(&mut self, from: usize, to: usize) {
        let NamePlace { cursor, entry } = &mut self.places[from];
        let cursor = *cursor;
        let Some(entry) = entry.take() else {
            self.closing = Some(Closing { to, from: from + 1 });
            return;
        };
        let index = self.names.find(self.hash(&entry.name), |&place| place as usize == from);
        if let Some(place) = index.and_then(|index| self.names.get_mut(index)) {
            *place = to as u32;
        }
        self.places[to] = NamePlace { cursor, entry: Some(entry) };
        self.closing = Some(Closing { to: to + 1, from: from + 1 });
    }

    /// Returns a cursor that orders a place among the others. Gaps behind the moved entries still have the cursors of
    /// entries that have moved: they count as the place behind them.
    fn order(&self, place: usize) -> u64 {
        let place = match self.closing {
            Some(Closing { to, from }) if (to..from).contains(&place) => from,
            _ => place,
        };
        self.places.get(place).map_or(u64::MAX, |place| place.cursor)
    }

    /// Returns the first place whose cursor is not below this one.
    fn first_place_from(&self, cursor: u64) -> usize {
        let (mut start, mut end) = (0, self.places.len());
        while start < end {
            let middle = start + (end - start) / 2;
            if self.order(middle) < cursor { start = middle + 1 } else { end = middle }
        }
        start
    }

    /// Returns the entry with this cursor.
    pub(crate) fn entry_at(&self, cursor: u64) -> Option<&NamedInode> {
        let place = self.places.get(self.first_place_from(cursor))?;
        if place.cursor == cursor { place.entry.as_ref() } else { None }
    }

    /// Returns the entries from `cursor` on, each with its own cursor.
    pub(crate) fn entries_from(&self, cursor: u64) -> impl Iterator<Item = (u64, &NamedInode)> {
        let start = self.first_place_from(cursor);
        let places = (start..self.places.len()).filter_map(|place| self.places.get(place));
        places.filter_map(|place| Some((place.cursor, place.entry.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn with_names(quota: &Quota, count: usize) -> Directory {
        let mut directory = Directory::new();
        for number in 0..count {
            let prepared = directory.prepare(quota, None, &number.to_le_bytes()).unwrap();
            directory.insert(prepared, number as u32, FileKind::Regular);
        }
        directory
    }

    /// Gaps are closed when they are more than half of more than a few places, some with each change, until none is
    /// left.
    #[test]
    fn gaps_are_closed_when_they_are_many() {
        let quota = Quota::new(u64::MAX);
        for count in [SMALL, SMALL + 1, 10 * SMALL, 10 * SMALL + 1] {
            // Gaps at the start, and everywhere.
            for step in [1, 2] {
                let mut directory = with_names(&quota, count);
                let mut there: Vec<usize> = (0..count).collect();
                let mut index = 0;
                while there.len() * 2 >= count {
                    assert!(directory.closing.is_none() && directory.places.len() == count);
                    let number = there.remove(index % there.len());
                    index += step - 1;
                    assert!(directory.remove(&quota, &number.to_le_bytes()).is_some());
                }
                assert_eq!(directory.closing.is_some(), count > SMALL, "{count}");
                // Changes that leave the number of names alone.
                for round in 0.. {
                    if directory.closing.is_none() {
                        // Each round may have left a gap.
                        let most = if count > SMALL { there.len() + round } else { count };
                        assert!(directory.places.len() <= most, "{} places", directory.places.len());
                        break;
                    }
                    assert!(round < count / AT_A_TIME * 2 + 4);
                    let moved = there.remove(0);
                    assert!(directory.remove(&quota, &moved.to_le_bytes()).is_some());
                    let prepared = directory.prepare(&quota, None, &moved.to_le_bytes()).unwrap();
                    directory.insert(prepared, moved as u32, FileKind::Regular);
                    there.push(moved);
                    let listed: Vec<u32> = directory.entries_from(0).map(|(_, entry)| entry.inode).collect();
                    assert!(listed.iter().map(|&number| number as usize).eq(there.iter().copied()));
                }
                for number in there {
                    assert_eq!(directory.find(&number.to_le_bytes()).map(|entry| entry.inode), Some(number as u32));
                }
            }
        }
    }

    #[test]
    fn the_last_names_are_freed_first() {
        let quota = Quota::new(u64::MAX);
        let mut directory = with_names(&quota, 20);
        for left in (0..20usize).rev() {
            assert!(directory.free_last());
            assert_eq!((directory.length(), directory.places.len()), (left, left));
            assert!((0..20usize).all(|number| directory.find(&number.to_le_bytes()).is_some() == (number < left)));
        }
        assert!(!directory.free_last());
    }

    /// A name is charged with its bytes, its place and four numbers of the table, of which at least a fourth are used.
    #[test]
    fn a_name_costs_its_bytes_and_its_place() {
        for length in [0, 1, 255] {
            let cost = Directory::cost(&[b'n'; 255][..length]);
            assert_eq!(cost, (length + size_of::<NamePlace>() + 16) as u64);
        }
    }

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
            // A listing that reads one entry after each step, and its minimal report: the entries that were there when
            // it began and still are.
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
                        let place = directory.replace(&name, number, FileKind::Regular);
                        prop_assert_eq!(place.is_some(), there);
                        if let (Some(entry), Some(cursor)) = (model.get_mut(&name), place) {
                            entry.0 = number;
                            let found = directory.entries_from(cursor).next().map(|(at, entry)| (at, entry.inode));
                            prop_assert_eq!(found, Some((cursor, number)));
                        }
                    }
                }
                prop_assert_eq!(directory.find(&name).map(|entry| entry.inode), model.get(&name).map(|entry| entry.0));
                prop_assert_eq!(directory.length(), model.len());
                prop_assert!(directory.places.len() <= SMALL + AT_A_TIME + 3 * model.len());
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
            // In the order of creation, each once, and every entry that is there at the end was reported.
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
