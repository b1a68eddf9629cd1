//! Deadlines of one hart, each with its waker: a binary heap that knows the position of each entry.
//!
//! Entering a deadline must be able to fail, and must not fail for callers that cannot go on without it: a worker that
//! sleeps with a time limit, and the network. These *reserve* a place once, when they can still be refused, and enter
//! their one deadline with [`set_reserved`](Deadlines::set_reserved) as often as they like. The heap keeps room for all
//! reserved places beside its entries, so that this allocates nothing. All others use [`set`](Deadlines::set), which
//! reports that there is no memory before it changes anything.
//!
//! Rejected: a tree map, whose insertions cannot report that there is no memory; and lists through the waiters' own
//! memory, which would need unsafe code for something that happens a few times in a millisecond.

use core::task::Waker;

use abi_unix::Errno;
use tables::Segments;

const NONE: u32 = u32::MAX;

/// Number of free slots that are given back at a time.
const AT_A_TIME: usize = 32;

/// Name of a deadline that was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    slot: u32,
    number: u64,
}

#[derive(Clone, Copy)]
struct HeapEntry {
    ticks: u64,
    /// Counts up: equal deadlines come in the order in which they were set.
    number: u64,
    slot: u32,
}

/// Fixed place of an entry's waker; the entry itself moves in the heap.
struct WakerSlot {
    /// Position of the entry in the heap. In a slot without a waker: the next free slot, and `number` is the previous
    /// one.
    position: u32,
    number: u64,
    /// Process that pays for waking it; 0 for none.
    payer: u32,
    waker: Option<Waker>,
}

/// Deadlines in ticks, each with a waker.
#[doc(alias = "timerqueue")]
#[doc(alias = "timer_wheel")]
pub(crate) struct Deadlines {
    heap: Segments<HeapEntry>,
    slots: Segments<WakerSlot>,
    free: u32,
    last_number: u64,
    reserved: usize,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines::new()
    }
}

impl Deadlines {
    /// Creates an empty set of deadlines.
    pub(crate) const fn new() -> Deadlines {
        Deadlines { heap: Segments::new(), slots: Segments::new(), free: NONE, last_number: 0, reserved: 0 }
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.get(0).map(|entry| entry.ticks)
    }

    /// Returns the number of deadlines.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.heap.len()
    }

    /// Makes room for one more reserved deadline, to be entered at any time; `ENOMEM` if that is impossible.
    pub(crate) fn reserve(&mut self) -> Result<(), Errno> {
        self.make_room(1)?;
        self.reserved += 1;
        Ok(())
    }

    /// Takes back a [`reserve`](Self::reserve).
    pub(crate) fn release(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Makes room for `more` entries beside the present and the reserved ones.
    fn make_room(&mut self, more: usize) -> Result<(), Errno> {
        let wanted = self.reserved + more;
        self.heap.reserve(wanted).map_err(|_| Errno::ENOMEM)?;
        // As many slots are in use as the heap has entries.
        let free = self.slots.len() - self.heap.len();
        self.slots.reserve(wanted.saturating_sub(free)).map_err(|_| Errno::ENOMEM)
    }

    /// Enters a deadline; `ENOMEM` if there is no memory for it.
    pub(crate) fn set(&mut self, ticks: u64, waker: &Waker, payer: u32) -> Result<Key, Errno> {
        self.make_room(1)?;
        Ok(self.insert(ticks, waker, payer))
    }

    /// Enters the deadline of a caller that has reserved a place for it, and has no other deadline entered.
    pub(crate) fn set_reserved(&mut self, ticks: u64, waker: &Waker, payer: u32) -> Key {
        self.insert(ticks, waker, payer)
    }

    fn insert(&mut self, ticks: u64, waker: &Waker, payer: u32) -> Key {
        self.last_number += 1;
        let number = self.last_number;
        let position = self.heap.len() as u32;
        let fresh = WakerSlot { position, number, payer, waker: Some(waker.clone()) };
        let slot = match self.take_free() {
            Some(slot) => {
                self.slots[slot as usize] = fresh;
                slot
            }
            None => {
                self.slots.push(fresh);
                self.slots.len() as u32 - 1
            }
        };
        self.heap.push(HeapEntry { ticks, number, slot });
        self.sift_up(position as usize);
        Key { slot, number }
    }

    /// Removes a deadline; does nothing if it is not there any more.
    pub(crate) fn remove(&mut self, key: Key) {
        if let Some(slot) = self.slots.get(key.slot as usize)
            && slot.waker.is_some()
            && slot.number == key.number
        {
            self.remove_at(slot.position as usize);
        }
    }

    /// Takes the earliest deadline out if its time has come; returns its waker and its payer.
    pub(crate) fn expired(&mut self, now: u64) -> Option<(Waker, u32)> {
        if self.next()? > now { None } else { self.remove_at(0) }
    }

    fn remove_at(&mut self, position: usize) -> Option<(Waker, u32)> {
        let entry = self.heap[position];
        if let Some(last) = self.heap.pop_keeping(self.reserved + 1)
            && position < self.heap.len()
        {
            self.put(position, last);
            if position > 0 && last.is_before(&self.heap[(position - 1) / 2]) {
                self.sift_up(position);
            } else {
                self.sift_down(position);
            }
        }
        let slot = &mut self.slots[entry.slot as usize];
        let found = slot.waker.take().map(|waker| (waker, slot.payer));
        self.link_free(entry.slot);
        self.give_free_back();
        found
    }

    /// Gives free slots at the end back, some at a time; free slots before used ones stay.
    fn give_free_back(&mut self) {
        for _ in 0..AT_A_TIME {
            if self.slots.last().is_none_or(|slot| slot.waker.is_some()) {
                return;
            }
            self.unlink_free(self.slots.len() as u32 - 1);
            let in_use = self.heap.len() + self.reserved + 1;
            self.slots.pop_keeping(in_use.saturating_sub(self.slots.len() - 1));
        }
    }

    /// Takes the first free slot.
    fn take_free(&mut self) -> Option<u32> {
        let slot = (self.free != NONE).then_some(self.free)?;
        self.unlink_free(slot);
        Some(slot)
    }

    fn link_free(&mut self, slot: u32) {
        let next = core::mem::replace(&mut self.free, slot);
        let place = &mut self.slots[slot as usize];
        (place.position, place.number) = (next, u64::from(NONE));
        if let Some(next) = self.slots.get_mut(next as usize) {
            next.number = u64::from(slot);
        }
    }

    fn unlink_free(&mut self, slot: u32) {
        let (next, previous) = (self.slots[slot as usize].position, self.slots[slot as usize].number as u32);
        match self.slots.get_mut(previous as usize) {
            Some(previous) => previous.position = next,
            None => self.free = next,
        }
        if let Some(next) = self.slots.get_mut(next as usize) {
            next.number = u64::from(previous);
        }
    }

    /// Puts an entry in a position, and records the position in its slot.
    fn put(&mut self, position: usize, entry: HeapEntry) {
        self.heap[position] = entry;
        self.slots[entry.slot as usize].position = position as u32;
    }

    /// Moves an entry up to its place, and the entries in its way down. Each is written once.
    fn sift_up(&mut self, mut position: usize) {
        let entry = self.heap[position];
        while position > 0 {
            let parent = (position - 1) / 2;
            let above = self.heap[parent];
            if !entry.is_before(&above) {
                break;
            }
            self.put(position, above);
            position = parent;
        }
        self.put(position, entry);
    }

    /// Moves an entry down to its place, and the entries in its way up.
    fn sift_down(&mut self, mut position: usize) {
        let entry = self.heap[position];
        let length = self.heap.len();
        loop {
            let left = 2 * position + 1;
            if left >= length {
                break;
            }
            let (mut child, mut below) = (left, self.heap[left]);
            if left + 1 < length {
                let right = self.heap[left + 1];
                if right.is_before(&below) {
                    (child, below) = (left + 1, right);
                }
            }
            if !below.is_before(&entry) {
                break;
            }
            self.put(position, below);
            position = child;
        }
        self.put(position, entry);
    }
}

impl HeapEntry {
    fn is_before(&self, other: &HeapEntry) -> bool {
        (self.ticks, self.number) < (other.ticks, other.number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::Bell;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64),
        Remove(usize),
        Pass(u64),
        Reserve,
        Release,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..1000).prop_map(Step::Set),
            2 => any::<usize>().prop_map(Step::Remove),
            2 => (0u64..50).prop_map(Step::Pass),
            1 => Just(Step::Reserve),
            1 => Just(Step::Release),
        ]
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn behaves_as_a_sorted_map(steps in prop::collection::vec(step(), 0..400)) {
            let mut deadlines = Deadlines::new();
            let mut model = BTreeMap::new();
            let mut keys = Vec::new();
            let (mut now, mut number) = (0, 0u64);
            for step in steps {
                match step {
                    Step::Set(after) => {
                        let bell = Arc::new(Bell::default());
                        number += 1;
                        let key = deadlines.set(now + after, &Waker::from(bell.clone()), number as u32).unwrap();
                        model.insert((now + after, number), bell);
                        keys.push((key, (now + after, number)));
                    }
                    Step::Remove(which) if !keys.is_empty() => {
                        // Removed or expired keys too.
                        let (key, place) = keys[which % keys.len()];
                        deadlines.remove(key);
                        model.remove(&place);
                    }
                    Step::Pass(time) => {
                        now += time;
                        while let Some((waker, payer)) = deadlines.expired(now) {
                            let ((_, number), bell) = model.pop_first().unwrap();
                            prop_assert_eq!(u64::from(payer), number);
                            let before = bell.0.load(Ordering::Relaxed);
                            waker.wake();
                            prop_assert_eq!(bell.0.load(Ordering::Relaxed), before + 1);
                        }
                        prop_assert!(model.first_key_value().is_none_or(|(key, _)| key.0 > now));
                    }
                    Step::Reserve => deadlines.reserve().unwrap(),
                    Step::Release => deadlines.release(),
                    Step::Remove(_) => {}
                }
                prop_assert_eq!(deadlines.len(), model.len());
                prop_assert_eq!(deadlines.next(), model.first_key_value().map(|(key, _)| key.0));
                // Entering a reserved deadline never allocates.
                let room = |capacity: usize| capacity >= deadlines.heap.len() + deadlines.reserved;
                prop_assert!(room(deadlines.heap.capacity()) && room(deadlines.slots.capacity()));
                let after = |slot: &u32| deadlines.slots.get(*slot as usize).map(|slot| slot.position);
                let free = core::iter::successors(Some(deadlines.free), after);
                prop_assert_eq!(free.take_while(|slot| *slot != NONE).count(), deadlines.slots.len() - deadlines.len());
            }
        }
    }

    #[test]
    fn reserved_places_hold_with_others_beside_them() {
        let mut deadlines = Deadlines::new();
        for _ in 0..10 {
            deadlines.reserve().unwrap();
        }
        let keys: Vec<_> = (0..1000).map(|ticks| deadlines.set(ticks, Waker::noop(), 0).unwrap()).collect();
        let (heap, slots) = (deadlines.heap.capacity(), deadlines.slots.capacity());
        let reserved: Vec<_> = (0..10).map(|ticks| deadlines.set_reserved(ticks, Waker::noop(), 0)).collect();
        assert_eq!((deadlines.heap.capacity(), deadlines.slots.capacity()), (heap, slots));
        keys.into_iter().chain(reserved).for_each(|key| deadlines.remove(key));
        assert_eq!(deadlines.len(), 0);
        // Free slots that were before used ones are given back by later deadlines.
        for _ in 0..1000 / AT_A_TIME {
            let key = deadlines.set(1, Waker::noop(), 0).unwrap();
            deadlines.remove(key);
        }
        assert!(deadlines.slots.capacity() >= 10 && deadlines.slots.capacity() < 200);
    }
}
