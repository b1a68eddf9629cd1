//! The regions of an address space in the order of their addresses, and the room between them.
//!
//! A program may have thousands of regions, and changes a few at a time. In a list of one piece each change would move
//! half of them. So they lie in chunks of at most [`MOST`], and two neighbours with few regions are joined: a change
//! moves one chunk's regions, and now and then the list of chunks. Each chunk knows the largest room between its
//! regions, so a search for room passes over all chunks that have too little.
//!
//! An insertion needs memory only as far as [`Regions::reserve`] did not provide it; nothing else does.
//!
//! Rejected: a vector or a deque (a mapping among thousands moved hundreds of kilobytes); balanced trees. Of the trees
//! that others keep, those of `alloc` and most crates cannot report that memory is missing; one of linked nodes
//! (`intrusive-collections`) can, but does not know the room below a node, and a page fault would follow a pointer at
//! each step where a chunk is searched by halves.

use alloc::vec::Vec;
use core::ops::Range;

use crate::frames::OutOfMemory;

/// Maximum number of regions of a chunk, which take a frame.
const MOST: usize = 48;
/// Number of regions that a full chunk loses, at least, when it gets room.
const LEAST: usize = MOST / 4;

/// A range of addresses.
pub(crate) trait Ranged {
    /// Returns its first address.
    fn start(&self) -> u64;
    /// Returns the address behind its last.
    fn end(&self) -> u64;
}

/// The place of a region in the list, or the end of the list. A change of the list makes it invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    chunk: usize,
    entry: usize,
}

/// Neighbours.
#[derive(Debug)]
pub(crate) struct Chunk<R> {
    /// At least one, except in a list of one chunk.
    entries: Vec<R>,
    /// The largest room between two of them. In a list of one chunk it may be larger: small lists are quick to search,
    /// and then no change looks for it.
    room: u64,
}

impl<R: Ranged> Chunk<R> {
    /// Returns the room between two neighbours: in front of an entry that is not the first one.
    fn room_before(&self, entry: usize) -> u64 {
        match (entry.checked_sub(1).and_then(|before| self.entries.get(before)), self.entries.get(entry)) {
            (Some(before), Some(entry)) => entry.start().saturating_sub(before.end()),
            _ => 0,
        }
    }

    fn largest_room(&self) -> u64 {
        self.entries.windows(2).map(|pair| pair[1].start().saturating_sub(pair[0].end())).max().unwrap_or(0)
    }
}

/// Regions in ascending order that do not overlap.
#[derive(Debug)]
pub(crate) struct Regions<R> {
    chunks: Vec<Chunk<R>>,
    length: usize,
    /// The number of addresses in all regions.
    size: u64,
    /// Memory of the next chunk.
    spare: Vec<R>,
}

impl<R> Default for Regions<R> {
    fn default() -> Self {
        Regions { chunks: Vec::new(), length: 0, size: 0, spare: Vec::new() }
    }
}

impl<R: Ranged> Regions<R> {
    /// Returns the number of regions.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the number of addresses in all regions.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    // ---- looking ----

    /// Returns the place of the first region that ends above the address, or the end.
    #[inline]
    pub(crate) fn above(&self, address: u64) -> Place {
        self.place_where(|region| region.end() <= address)
    }

    /// Returns the place of the first region that does not begin below the address, or the end.
    fn from(&self, address: u64) -> Place {
        self.place_where(|region| region.start() < address)
    }

    /// Returns the place behind all regions for which the predicate holds, which are the first ones.
    #[inline]
    fn place_where(&self, is_before: impl Fn(&R) -> bool) -> Place {
        let chunk = match &self.chunks[..] {
            [] | [_] => 0,
            // Of the chunks that begin before, only the last can have the end of them.
            chunks => chunks.partition_point(|chunk| chunk.entries.first().is_some_and(&is_before)).saturating_sub(1),
        };
        let entry = self.chunks.get(chunk).map_or(0, |chunk| chunk.entries.partition_point(is_before));
        self.normal(Place { chunk, entry })
    }

    /// Makes the place behind the last region of a chunk that of the first in the next.
    #[inline]
    fn normal(&self, place: Place) -> Place {
        match self.chunks.get(place.chunk) {
            Some(chunk) if place.entry >= chunk.entries.len() && place.chunk + 1 < self.chunks.len() => {
                Place { chunk: place.chunk + 1, entry: 0 }
            }
            _ => place,
        }
    }

    /// Returns the region that contains the address.
    #[inline]
    pub(crate) fn at(&self, address: u64) -> Option<&R> {
        self.get(self.above(address)).filter(|region| region.start() <= address)
    }

    #[inline]
    pub(crate) fn get(&self, place: Place) -> Option<&R> {
        self.chunks.get(place.chunk)?.entries.get(place.entry)
    }

    #[inline]
    pub(crate) fn next(&self, place: Place) -> Place {
        self.normal(Place { entry: place.entry + 1, ..place })
    }

    pub(crate) fn previous(&self, place: Place) -> Option<Place> {
        if let Some(entry) = place.entry.checked_sub(1) {
            return Some(Place { entry, ..place });
        }
        let chunk = place.chunk.checked_sub(1)?;
        let entry = self.chunks[chunk].entries.len().checked_sub(1)?;
        Some(Place { chunk, entry })
    }

    /// Returns the last region that begins below the address.
    pub(crate) fn last_below(&self, address: u64) -> Option<Place> {
        self.previous(self.from(address))
    }

    /// Returns all regions from a place on. For a few regions, [`get`](Self::get) and [`next`](Self::next) are quicker.
    pub(crate) fn iter_from(&self, place: Place) -> impl Iterator<Item = &R> {
        let first = self.chunks.get(place.chunk).and_then(|chunk| chunk.entries.get(place.entry..)).unwrap_or_default();
        let rest = self.chunks.get(place.chunk + 1..).unwrap_or_default();
        first.iter().chain(rest.iter().flat_map(|chunk| &chunk.entries))
    }

    /// Returns all regions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &R> {
        self.chunks.iter().flat_map(|chunk| &chunk.entries)
    }

    /// Finds the highest range of this length within some addresses that no region overlaps; returns its start.
    pub(crate) fn highest_room(&self, within: Range<u64>, length: u64) -> Option<u64> {
        let fits = |start: u64, end: u64| end >= start && end - start >= length;
        let Some(mut place) = self.last_below(within.end) else {
            return fits(within.start, within.end).then(|| within.end - length);
        };
        // First the room behind a region, then that before each.
        let mut end = within.end;
        loop {
            let below = self.get(place)?.end().max(within.start);
            if fits(below, end) {
                return Some(end - length);
            }
            if self.chunks[place.chunk].room < length {
                // Only the room before the first of them is left.
                place.entry = 0;
            }
            end = end.min(self.get(place)?.start());
            if end < within.start {
                return None;
            }
            place = match self.previous(place) {
                Some(previous) => previous,
                None => return fits(within.start, end).then(|| end - length),
            };
        }
    }

    // ---- changing ----

    /// Makes sure that the next insertion needs no memory, wherever it is, and whatever is removed before.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn reserve(&mut self) -> Result<(), OutOfMemory> {
        self.chunks.try_reserve(1).map_err(|_| OutOfMemory)?;
        let (list, wanted) = match &mut self.chunks[..] {
            // The only chunk grows as lists do; removals keep it.
            [only] if only.entries.len() < MOST => {
                let wanted = (only.entries.len() + 1).next_power_of_two().clamp(4, MOST);
                (&mut only.entries, wanted)
            }
            [] => (&mut self.spare, 4),
            // All others have the memory of a whole chunk from the beginning.
            _ => (&mut self.spare, MOST),
        };
        if list.capacity() < wanted {
            list.try_reserve_exact(wanted - list.len()).map_err(|_| OutOfMemory)?;
        }
        Ok(())
    }

    /// Inserts a region, for which there is [room](Self::reserve), before the one in a place; returns its place.
    pub(crate) fn insert(&mut self, place: Place, region: R) -> Place {
        if self.chunks.is_empty() {
            self.chunks.push(Chunk { entries: core::mem::take(&mut self.spare), room: u64::MAX });
        }
        let mut place = place;
        if self.chunks[place.chunk].entries.len() == MOST {
            place = self.make_room(place);
        }
        self.length += 1;
        self.size += region.end() - region.start();
        let chunk = &mut self.chunks[place.chunk];
        let before = chunk.room_before(place.entry);
        chunk.entries.insert(place.entry, region);
        let room = chunk.room_before(place.entry).max(chunk.room_before(place.entry + 1));
        self.room_changed(place.chunk, before, room);
        place
    }

    /// Makes room in a full chunk for a region before the one in a place; returns the place.
    ///
    /// Addresses are given out from the top down, so that most regions come at the lower end. If each full chunk were
    /// halved, the upper halves would stay as they are. So a neighbour takes what it has room for, if that is enough to
    /// be worth it, and else a full chunk is cut near the place.
    fn make_room(&mut self, place: Place) -> Place {
        let Place { chunk, entry } = place;
        let room = |chunk: usize| self.chunks.get(chunk).map_or(0, |chunk| MOST - chunk.entries.len());
        let above = room(chunk + 1).min(MOST / 2);
        if above >= LEAST && entry <= MOST - above {
            self.move_up(chunk, MOST - above);
            return place;
        }
        let below = chunk.checked_sub(1).map_or(0, room).min(MOST / 2);
        if below >= LEAST && entry > below {
            if let Some([lower, upper]) = self.pair(chunk - 1) {
                lower.entries.extend(upper.entries.drain(..below));
            }
            self.look_for_room(chunk - 1);
            return Place { chunk, entry: entry - below };
        }
        let entries = core::mem::take(&mut self.spare);
        self.chunks.insert(chunk + 1, Chunk { entries, room: 0 });
        let first = entry.clamp(LEAST, MOST - LEAST);
        self.move_up(chunk, first);
        if entry > first { Place { chunk: chunk + 1, entry: entry - first } } else { place }
    }

    /// Moves the regions of a chunk from an entry on to the next chunk, which has room for them.
    fn move_up(&mut self, chunk: usize, first: usize) {
        if let Some([lower, upper]) = self.pair(chunk) {
            let count = lower.entries.len() - first;
            upper.entries.extend(lower.entries.drain(first..));
            upper.entries.rotate_right(count);
        }
        self.look_for_room(chunk);
    }

    /// Returns a chunk and the next one.
    fn pair(&mut self, lower: usize) -> Option<&mut [Chunk<R>; 2]> {
        self.chunks.get_mut(lower..)?.first_chunk_mut()
    }

    /// Looks for the largest room in a chunk and the next one.
    fn look_for_room(&mut self, lower: usize) {
        for chunk in self.pair(lower).into_iter().flatten() {
            chunk.room = chunk.largest_room();
        }
    }

    /// Records that a chunk has some room between neighbours, in place of other room there.
    fn room_changed(&mut self, chunk: usize, before: u64, now: u64) {
        let is_only = self.chunks.len() == 1;
        let chunk = &mut self.chunks[chunk];
        if now >= chunk.room {
            chunk.room = now;
        } else if before >= chunk.room {
            chunk.room = if is_only { u64::MAX } else { chunk.largest_room() };
        }
    }

    /// Changes a region without changing its range.
    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut R> {
        self.chunks.get_mut(place.chunk)?.entries.get_mut(place.entry)
    }

    /// Changes a region, perhaps with its range.
    pub(crate) fn change(&mut self, place: Place, change: impl FnOnce(&mut R)) {
        let chunk = &mut self.chunks[place.chunk];
        let room = |chunk: &Chunk<R>| (chunk.room_before(place.entry), chunk.room_before(place.entry + 1));
        let before = room(chunk);
        let region = &mut chunk.entries[place.entry];
        let size = region.end() - region.start();
        change(region);
        self.size = self.size - size + (region.end() - region.start());
        let now = room(chunk);
        self.room_changed(place.chunk, before.0, now.0);
        self.room_changed(place.chunk, before.1, now.1);
    }

    /// Removes regions from a place on; returns the place of the first behind them.
    pub(crate) fn remove(&mut self, place: Place, count: usize, mut take: impl FnMut(R)) -> Place {
        let (mut place, mut left) = (place, count);
        while left > 0 {
            let Some(chunk) = self.chunks.get_mut(place.chunk) else { break };
            let end = chunk.entries.len().min(place.entry + left);
            if place.entry >= end {
                break;
            }
            left -= end - place.entry;
            self.length -= end - place.entry;
            // The largest room may be at either end of them, or between them.
            let before = if place.entry == 0 || end == chunk.entries.len() { u64::MAX } else { 0 };
            for region in chunk.entries.drain(place.entry..end) {
                self.size -= region.end() - region.start();
                take(region);
            }
            let room = chunk.room_before(place.entry);
            self.room_changed(place.chunk, before, room);
            place = self.join_chunks(place);
        }
        place
    }

    /// Joins a chunk with its neighbours as far as they have few regions together; returns what becomes of a place in
    /// it.
    fn join_chunks(&mut self, place: Place) -> Place {
        let mut place = place;
        loop {
            let length = |chunk: usize| self.chunks.get(chunk).map(|chunk| chunk.entries.len());
            let own = self.chunks[place.chunk].entries.len();
            let fits = |other: usize| length(other).is_some_and(|length| own == 0 || length + own <= MOST / 2);
            let lower = match place.chunk.checked_sub(1) {
                Some(before) if fits(before) => before,
                _ if fits(place.chunk + 1) => place.chunk,
                _ => return self.normal(place),
            };
            let mut upper = self.chunks.remove(lower + 1);
            let chunk = &mut self.chunks[lower];
            let seam = chunk.entries.len();
            chunk.entries.append(&mut upper.entries);
            chunk.room = chunk.room.max(upper.room).max(chunk.room_before(seam));
            if self.spare.capacity() < MOST {
                self.spare = upper.entries;
            }
            if place.chunk > lower {
                place = Place { chunk: lower, entry: seam + place.entry };
            }
        }
    }

    /// Returns all regions, without needing memory for that.
    pub(crate) fn into_chunks(self) -> Vec<Chunk<R>> {
        self.chunks
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Entry(u64, u64);

    impl Ranged for Entry {
        fn start(&self) -> u64 {
            self.0
        }
        fn end(&self) -> u64 {
            self.1
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Inserts entries of this length at such a distance from each other, as far as they overlap none.
        Insert { start: u64, length: u64, distance: u64, count: u64 },
        /// Removes so many at once from the first above an address on, so many times, leaving out some between.
        Remove { from: u64, count: usize, times: usize, left_out: usize },
        /// Takes an address off the first entry above one, or adds it again.
        Resize { at: u64, is_start: bool, grows: bool },
    }

    fn step() -> impl Strategy<Value = Step> {
        let address = || 0..4000u64;
        prop_oneof![
            (address(), 1..5u64, 0..4u64, 1..300u64).prop_map(|(start, length, distance, count)| Step::Insert {
                start,
                length,
                distance,
                count
            }),
            (address(), 1..80usize, 1..40usize, 0..30usize).prop_map(|(from, count, times, left_out)| Step::Remove {
                from,
                count,
                times,
                left_out
            }),
            (address(), any::<bool>(), any::<bool>()).prop_map(|(at, is_start, grows)| Step::Resize {
                at,
                is_start,
                grows
            }),
        ]
    }

    fn insert(list: &mut Regions<Entry>, model: &mut Vec<Entry>, entry: Entry) {
        let index = model.partition_point(|other| other.1 <= entry.0);
        if model.get(index).is_some_and(|other| other.0 < entry.1) {
            return;
        }
        list.reserve().unwrap();
        let capacity = (list.chunks.capacity(), list.spare.capacity());
        let place = list.above(entry.0);
        assert_eq!(list.get(place), model.get(index));
        let place = list.insert(place, entry.clone());
        assert_eq!(list.get(place), Some(&entry));
        assert_eq!(list.chunks.capacity(), capacity.0);
        assert!(list.chunks.len() < 2 || list.chunks.iter().all(|chunk| chunk.entries.capacity() == MOST));
        model.insert(index, entry);
    }

    fn remove(list: &mut Regions<Entry>, model: &mut Vec<Entry>, place: Place, index: usize, count: usize) -> Place {
        let mut removed = Vec::new();
        let place = list.remove(place, count, |entry| removed.push(entry));
        let end = model.len().min(index + count);
        assert!(model.drain(index..end).eq(removed));
        assert_eq!(list.get(place), model.get(index));
        place
    }

    fn search(model: &[Entry], start: u64, end: u64, length: u64) -> Option<u64> {
        let mut found = None;
        let mut free = start;
        for entry in model.iter().chain([&Entry(end, u64::MAX)]) {
            let above = entry.0.min(end);
            if free + length <= above {
                found = Some(above - length);
            }
            free = free.max(entry.1);
            if entry.1 >= end {
                break;
            }
        }
        found
    }

    fn check(list: &Regions<Entry>, model: &[Entry]) {
        assert_eq!(list.len(), model.len());
        assert_eq!(list.size(), model.iter().map(|entry| entry.1 - entry.0).sum::<u64>());
        assert!(list.iter().eq(model));
        let mut place = list.above(u64::MAX);
        for (index, entry) in model.iter().enumerate().rev() {
            place = list.previous(place).unwrap();
            assert_eq!(list.get(place), Some(entry));
            assert_eq!(list.get(list.next(place)), model.get(index + 1));
            assert_eq!((list.at(entry.0), list.last_below(entry.1)), (Some(entry), Some(place)));
        }
        assert_eq!(list.previous(place), None);
        assert!(list.chunks.len() <= model.len() / (MOST / 4) + 1, "{} of {}", list.chunks.len(), model.len());
        for chunk in &list.chunks {
            assert!(chunk.entries.len() <= MOST);
            let largest = chunk.largest_room();
            assert!(if list.chunks.len() > 1 { chunk.room == largest } else { chunk.room >= largest });
        }
    }

    /// Stacks of threads lie below one another, each with a guard: a range is mapped, and all but its lowest page gets
    /// other rights.
    #[test]
    fn stacks_below_one_another_fill_their_chunks() {
        let (mut list, mut model) = (Regions::default(), Vec::new());
        for stack in (0..1000u64).rev() {
            insert(&mut list, &mut model, Entry(stack * 10, stack * 10 + 1));
            insert(&mut list, &mut model, Entry(stack * 10 + 1, stack * 10 + 10));
        }
        check(&list, &model);
        assert!(list.chunks.len() <= 2000 / MOST + 2, "{}", list.chunks.len());
    }

    proptest! {
        #![proptest_config(property::cases(200))]

        #[test]
        fn regions_are_a_list_in_order_that_knows_its_room(
            steps in proptest::collection::vec(step(), 1..30),
            (start, end) in (0..4000u64, 0..5000u64),
        ) {
            let (mut list, mut model) = (Regions::default(), Vec::new());
            for step in steps {
                match step {
                    Step::Insert { start, length, distance, count } => {
                        for number in 0..count {
                            let start = start + number * (length + distance);
                            insert(&mut list, &mut model, Entry(start, start + length));
                        }
                    }
                    Step::Remove { from, count, times, left_out } => {
                        let mut place = list.above(from);
                        let mut index = model.partition_point(|entry| entry.1 <= from);
                        for _ in 0..times {
                            if index >= model.len() {
                                break;
                            }
                            place = remove(&mut list, &mut model, place, index, count);
                            for _ in 0..left_out {
                                place = list.next(place);
                                index += 1;
                            }
                        }
                    }
                    Step::Resize { at, is_start, grows } => {
                        let place = list.above(at);
                        let index = model.partition_point(|entry| entry.1 <= at);
                        let below = index.checked_sub(1).map_or(0, |below| model[below].1);
                        let above = model.get(index + 1).map_or(u64::MAX, |above| above.0);
                        if let Some(entry) = model.get_mut(index) {
                            match (is_start, grows) {
                                (true, true) if entry.0 > below => entry.0 -= 1,
                                (false, true) if entry.1 < above => entry.1 += 1,
                                (true, false) if entry.1 - entry.0 > 1 => entry.0 += 1,
                                (false, false) if entry.1 - entry.0 > 1 => entry.1 -= 1,
                                _ => {}
                            }
                            list.change(place, |changed| *changed = entry.clone());
                        }
                    }
                }
                check(&list, &model);
                for length in [1, 3, 7] {
                    prop_assert_eq!(list.highest_room(start..end, length), search(&model, start, end, length));
                    prop_assert_eq!(list.highest_room(10..5000, length), search(&model, 10, 5000, length));
                }
            }
            prop_assert!(list.into_chunks().into_iter().flat_map(|chunk| chunk.entries).eq(model));
        }
    }
}
