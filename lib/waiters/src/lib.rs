//! Who waits for a condition: the wakers of those who found that it does not hold.
//!
//! The owner of a condition keeps one list for each way in which it can change, under the lock that guards it. The
//! protocol is always the same: under the lock, look whether one can go on; if not, [`register`](Waiters::register) and
//! return; whoever changes it takes the lock, does so, and calls [`wake_all`](Waiters::wake_all). No wake-up can fall
//! between the look and the registration, because both happen under one lock. Whoever gives up
//! [`forget`](Waiters::forget)s its waker.
//!
//! Whoever registers stays registered until the condition changes or until it is forgotten; nobody is woken to make
//! room for somebody else. (A list with a limit that wakes its oldest entry for a newcomer never comes to rest when one
//! more waits than it holds: each one that is woken for nothing registers again, and wakes the next.)
//!
//! A change wakes all who wait, not one of them. The one that would be woken might not run for long, because something
//! more important does, or might be given up before it runs; the others would sleep beside something that they could
//! have. Those who find nothing left register again, behind those who came meanwhile, so that equals take turns.
//!
//! Any number may wait for one thing: entering, forgetting and waking cost the same for the first and for the
//! thousandth. One waiter, the usual number, costs no allocation; if there is no memory for a further one, that one is
//! refused.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::task::Waker;

use hashbrown::HashTable;

/// There is no memory for one more waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no memory for one more waiter")
    }
}

impl core::error::Error for OutOfMemory {}

/// Memory for more waiters than this is given back when it turns out to be much too large.
const KEPT: usize = 64;

/// The wakers of those who wait for one condition. All are woken at once; each finds out for itself
/// whether it was meant, and registers again if not.
#[derive(Debug, Default)]
pub struct Waiters {
    first: Option<Waker>,
    // An array of one, because a box can be made fallibly on stable Rust only from a vector.
    more: Option<Box<[Queue; 1]>>,
}

/// Wakers in the order in which they came, each at most once.
#[derive(Debug, Default)]
struct Queue {
    /// `None` is the place of one that was forgotten; the last is never `None`.
    wakers: Vec<Option<Waker>>,
    /// Where each stands in `wakers`.
    positions: HashTable<usize>,
}

/// Wakers are looked up by the address of what they wake. No outsider chooses these, so mixing is all that is needed.
fn hash(waker: &Waker) -> u64 {
    mixed(waker.data().addr() as u64)
}

/// Spreads addresses, whose low bits are alike, over the low and the high bits of a hash: the table uses both.
fn mixed(address: u64) -> u64 {
    let product = address.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}

fn hash_at(wakers: &[Option<Waker>], position: usize) -> u64 {
    wakers.get(position).and_then(Option::as_ref).map_or(0, hash)
}

fn is_at(wakers: &[Option<Waker>], position: usize, waker: &Waker) -> bool {
    wakers.get(position).and_then(Option::as_ref).is_some_and(|other| other.will_wake(waker))
}

impl Waiters {
    /// Nobody waits.
    pub const fn new() -> Waiters {
        Waiters { first: None, more: None }
    }

    /// Enters a waker, unless it is there.
    ///
    /// # Errors
    /// [`OutOfMemory`] if others wait already; the waker is not entered then.
    #[inline]
    pub fn register(&mut self, waker: &Waker) -> Result<(), OutOfMemory> {
        match (&self.first, &self.more) {
            (None, None) => {
                self.first = Some(waker.clone());
                Ok(())
            }
            (Some(first), _) if first.will_wake(waker) => Ok(()),
            _ => self.register_beside_others(waker),
        }
    }

    #[cold]
    fn register_beside_others(&mut self, waker: &Waker) -> Result<(), OutOfMemory> {
        let [queue] = match &mut self.more {
            Some(more) => &mut **more,
            none => &mut **none.insert(Queue::boxed()?),
        };
        if self.first.is_none() && queue.wakers.is_empty() {
            self.first = Some(waker.clone());
            return Ok(());
        }
        queue.register(waker)
    }

    /// Takes a waker out; nothing happens if it is not there, because it was woken.
    #[inline]
    pub fn forget(&mut self, waker: &Waker) {
        if self.first.as_ref().is_some_and(|first| first.will_wake(waker)) {
            self.first = None;
        } else if let Some([queue]) = self.more.as_deref_mut() {
            queue.forget(waker);
        }
    }

    /// Whether nobody waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_none() && self.more.as_deref().is_none_or(|[queue]| queue.wakers.is_empty())
    }

    /// Wakes everybody, in the order in which they came, and forgets them.
    #[inline]
    pub fn wake_all(&mut self) {
        if let Some(first) = self.first.take() {
            first.wake();
        }
        if self.more.is_some() {
            self.wake_others();
        }
    }

    /// All who wait, in the order in which they came, for an owner who wakes them one by one, outside of its lock.
    pub fn into_wakers(self) -> impl Iterator<Item = Waker> {
        let others = self.more.into_iter().flat_map(|more| (*more).into_iter());
        self.first.into_iter().chain(others.flat_map(|queue| queue.wakers.into_iter().flatten()))
    }

    #[cold]
    fn wake_others(&mut self) {
        if let Some([queue]) = self.more.as_deref_mut() {
            let count = queue.wakers.len();
            queue.positions.clear();
            for waker in queue.wakers.drain(..).flatten() {
                waker.wake();
            }
            if queue.wakers.capacity() > KEPT.max(4 * count) {
                self.more = None;
            }
        }
    }
}

impl Queue {
    fn boxed() -> Result<Box<[Queue; 1]>, OutOfMemory> {
        let mut one = Vec::new();
        one.try_reserve_exact(1).map_err(|_| OutOfMemory)?;
        one.push(Queue::default());
        one.into_boxed_slice().try_into().map_err(|_| OutOfMemory)
    }

    fn register(&mut self, waker: &Waker) -> Result<(), OutOfMemory> {
        let Queue { wakers, positions } = self;
        if positions.find(hash(waker), |&position| is_at(wakers, position, waker)).is_some() {
            return Ok(());
        }
        wakers.try_reserve(1).map_err(|_| OutOfMemory)?;
        positions.try_reserve(1, |&position| hash_at(wakers, position)).map_err(|_| OutOfMemory)?;
        positions.insert_unique(hash(waker), wakers.len(), |&position| hash_at(wakers, position));
        wakers.push(Some(waker.clone()));
        Ok(())
    }

    fn forget(&mut self, waker: &Waker) {
        let Queue { wakers, positions } = self;
        let Ok(entry) = positions.find_entry(hash(waker), |&position| is_at(wakers, position, waker)) else {
            return;
        };
        let (position, _) = entry.remove();
        if let Some(place) = wakers.get_mut(position) {
            *place = None;
        }
        while let Some(None) = wakers.last() {
            wakers.pop();
        }
        // More than half of the places are empty: as many were forgotten as are moved now.
        if wakers.len() > 2 * positions.len() {
            wakers.retain(Option::is_some);
            positions.clear();
            for (position, waker) in wakers.iter().flatten().enumerate() {
                // There is room, because there are no more of them than before.
                positions.insert_unique(hash(waker), position, |&position| hash_at(wakers, position));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use proptest::prelude::*;

    /// Says when it was woken for the last time, and how often it was.
    #[derive(Default)]
    struct Bell {
        turn: AtomicUsize,
        rings: AtomicUsize,
    }

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            static TURNS: AtomicUsize = AtomicUsize::new(1);
            self.turn.store(TURNS.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            self.rings.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Bell {
        fn rings(&self) -> usize {
            self.rings.load(Ordering::Relaxed)
        }
    }

    fn bells(count: usize) -> Vec<(Arc<Bell>, Waker)> {
        let bells = (0..count).map(|_| Arc::new(Bell::default()));
        bells.map(|bell| (bell.clone(), Waker::from(bell))).collect()
    }

    #[test]
    fn any_number_waits_and_nobody_is_woken_for_another() {
        let bells = bells(1000);
        let mut waiters = Waiters::default();
        for (_, waker) in &bells {
            waiters.register(waker).unwrap();
            waiters.register(waker).unwrap();
        }
        assert!(bells.iter().all(|(bell, _)| bell.rings() == 0));
        waiters.wake_all();
        assert!(waiters.is_empty());
        assert!(bells.iter().all(|(bell, _)| bell.rings() == 1));
        assert!(bells.is_sorted_by_key(|(bell, _)| bell.turn.load(Ordering::Relaxed)));
        assert!(waiters.more.is_some(), "whoever waited with a thousand will do so again");
        waiters.wake_all();
        assert!(bells.iter().all(|(bell, _)| bell.rings() == 1));
        assert!(waiters.more.is_none(), "the memory for a thousand is kept for nobody");
    }

    #[test]
    fn addresses_are_spread_over_both_ends_of_a_hash() {
        use alloc::collections::BTreeSet;
        let hashes: Vec<u64> = (0..1024).map(|index| mixed(0x7f12_3456_7000 + 64 * index)).collect();
        let low: BTreeSet<u64> = hashes.iter().map(|hash| hash & 1023).collect();
        let high: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
        assert!(low.len() > 500, "{} of 1024 places", low.len());
        assert_eq!(high.len(), 128);
    }

    #[test]
    fn memory_for_the_usual_number_is_kept() {
        let bells = bells(KEPT + 1);
        let mut waiters = Waiters::default();
        for (_, waker) in &bells {
            waiters.register(waker).unwrap();
        }
        let room = |waiters: &Waiters| waiters.more.as_deref().map(|[queue]| queue.wakers.capacity());
        assert_eq!(room(&waiters), Some(KEPT), "vectors grow by doubling");
        for _ in 0..3 {
            waiters.wake_all();
            assert_eq!(room(&waiters), Some(KEPT));
        }
    }

    #[test]
    fn what_is_forgotten_is_gone() {
        let bells = bells(100);
        let mut waiters = Waiters::default();
        for (bell, waker) in &bells {
            waiters.register(waker).unwrap();
            assert_eq!(Arc::strong_count(bell), 3);
        }
        for (bell, waker) in &bells {
            waiters.forget(waker);
            waiters.forget(waker);
            assert_eq!(Arc::strong_count(bell), 2);
        }
        assert!(waiters.is_empty());
        waiters.wake_all();
        assert!(bells.iter().all(|(bell, _)| bell.rings() == 0));
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// A list of numbers without repetitions is all there is to see.
        #[test]
        fn waiters_are_an_ordered_set(steps in prop::collection::vec((0usize..30, 0u8..20), 0..300)) {
            let bells = bells(30);
            let mut waiters = Waiters::default();
            let mut model: Vec<usize> = Vec::new();
            let mut rings = [0; 30];
            for (which, what) in steps {
                match what {
                    0 => {
                        waiters.wake_all();
                        for which in model.drain(..) {
                            rings[which] += 1;
                        }
                    }
                    1..10 => {
                        waiters.forget(&bells[which].1);
                        model.retain(|&other| other != which);
                    }
                    _ => {
                        waiters.register(&bells[which].1).unwrap();
                        if !model.contains(&which) {
                            model.push(which);
                        }
                    }
                }
                prop_assert_eq!(waiters.is_empty(), model.is_empty());
                if let Some([queue]) = waiters.more.as_deref() {
                    prop_assert!(queue.wakers.len() <= 2 * queue.positions.len());
                }
                for (index, (bell, _)) in bells.iter().enumerate() {
                    prop_assert_eq!(bell.rings(), rings[index]);
                    let registered = usize::from(model.contains(&index));
                    prop_assert_eq!(Arc::strong_count(bell), 2 + registered);
                }
            }
            waiters.wake_all();
            let turns = model.iter().map(|&which| bells[which].0.turn.load(Ordering::Relaxed));
            prop_assert!(turns.is_sorted());
        }
    }
}
