//! Wait queues: the wakers of the tasks that wait for a condition.
//!
//! The owner of a condition keeps one list for each way in which it can change, under the lock that guards it. The
//! protocol is always: under the lock, check the condition; if it does not hold, [`register`](Waiters::register) and
//! return; a task that changes it takes the lock, does so, and calls [`wake_all`](Waiters::wake_all). No wake-up can
//! fall between the check and the registration, because both happen under one lock. A task that gives up
//! [`forget`](Waiters::forget)s its waker.
//!
//! A task stays registered until the condition changes or until it is forgotten; no waiter is woken to make room for
//! another. (A list with a limit that wakes its oldest entry for a newcomer never comes to rest when one more waits
//! than it holds: each task that is woken for nothing registers again, and wakes the next.)
//!
//! A change wakes all waiters, not one of them. The one that would be woken might not run for long, because a more
//! important task runs, or might be given up before it runs; the others would sleep although they could go on. Waiters
//! that find nothing left register again, behind those that came meanwhile, so that equals take turns.
//!
//! Any number may wait for one thing: entering, forgetting and waking cost the same for the first and for the
//! thousandth. One waiter, the usual number, costs no allocation; if there is no memory for a further one, that one is
//! refused.
//!
//! # Waking thousands
//! A task that changes a condition holds its lock, and in a kernel that takes no interrupts meanwhile. So no more than
//! [`PORTION`] waiters are woken there; the others are handed on as a [`Remainder`] to the function that the kernel has
//! registered ([`wake_remainders_with`]), which has them woken in portions, without the lock. They are not in the list
//! any more: one of them that gives up meanwhile is woken for nothing, and one that comes back is there twice. The
//! function must have all of them woken; without one, as on the developer's computer, all are woken at once.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::task::Waker;

use spin::Once;
use tables::Table;

/// There is no memory for one more waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no memory for one more waiter")
    }
}

impl core::error::Error for OutOfMemory {}

/// Number of waiters that are woken at once.
pub const PORTION: usize = 32;

/// Function that takes over remainders.
static WAKES_REMAINDERS: Once<fn(Remainder)> = Once::new();

/// Registers the function that takes over remainders: it must have every waiter of a remainder woken, soon and in
/// [portions](Remainder::wake_portion). It is called under the locks of the task that wakes. Only the first
/// registration counts.
pub fn wake_remainders_with(wakes: fn(Remainder)) {
    WAKES_REMAINDERS.call_once(|| wakes);
}

/// Waiters that were not woken with the first portion.
#[derive(Debug)]
#[must_use = "dropping it lets its waiters sleep for ever"]
pub struct Remainder(Box<[Queue; 1]>);

impl Remainder {
    /// Wakes some waiters, in the order in which they came; returns whether there are more.
    pub fn wake_portion(&mut self) -> bool {
        let [queue] = &mut *self.0;
        queue.wake_portion()
    }
}

/// The wakers of the tasks that wait for one condition. All are woken by one change, in portions; each checks the
/// condition again, and registers again if it does not hold.
#[derive(Debug, Default)]
#[doc(alias = "WaitQueue")]
#[doc(alias = "wait_queue_head")]
#[doc(alias = "Notify")]
pub struct Waiters {
    first: Option<Waker>,
    // An array of one, because a box can be made fallibly on stable Rust only from a vector.
    more: Option<Box<[Queue; 1]>>,
}

/// Wakers in the order in which they came, each at most once: a list whose links are indices of the table.
#[derive(Debug)]
struct Queue {
    waiting: Table<Waiting>,
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Waiting {
    waker: Waker,
    before: u32,
    after: u32,
}

/// Stands for "no index".
const NONE: u32 = u32::MAX;

/// Returns a hash of a waker, for tables of wakers: of the address of its data. No outsider chooses these addresses, so
/// mixing suffices.
pub fn hash(waker: &Waker) -> u32 {
    mixed(waker.data().addr() as u64)
}

/// Spreads addresses, whose low bits are alike, over the low bits of a hash, which count first.
fn mixed(address: u64) -> u32 {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl Waiters {
    /// Makes an empty list.
    pub const fn new() -> Waiters {
        Waiters { first: None, more: None }
    }

    /// Enters a waker, unless it is entered already.
    ///
    /// [`OutOfMemory`] if others wait already and there is no memory for one more; the waker is not entered then.
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
        if self.first.is_none() && queue.waiting.is_empty() {
            self.first = Some(waker.clone());
            return Ok(());
        }
        queue.register(waker)
    }

    /// Removes a waker; does nothing if it was woken before.
    #[inline]
    pub fn forget(&mut self, waker: &Waker) {
        if self.first.as_ref().is_some_and(|first| first.will_wake(waker)) {
            self.first = None;
        } else if let Some([queue]) = self.more.as_deref_mut() {
            queue.forget(waker);
        }
    }

    /// Whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_none() && self.more.as_deref().is_none_or(|[queue]| queue.waiting.is_empty())
    }

    /// Wakes all waiters, in the order in which they came, and removes them.
    #[inline]
    #[doc(alias = "notify_all")]
    pub fn wake_all(&mut self) {
        if let Some(first) = self.first.take() {
            first.wake();
        }
        if self.more.is_some() {
            self.wake_others();
        }
    }

    #[cold]
    fn wake_others(&mut self) {
        let Some([queue]) = self.more.as_deref_mut() else { return };
        if queue.wake_portion()
            && let Some(others) = self.more.take()
        {
            let mut remainder = Remainder(others);
            match WAKES_REMAINDERS.get() {
                Some(wakes) => wakes(remainder),
                None => while remainder.wake_portion() {},
            }
        }
    }
}

impl Queue {
    fn boxed() -> Result<Box<[Queue; 1]>, OutOfMemory> {
        let mut one = Vec::new();
        one.try_reserve_exact(1).map_err(|_| OutOfMemory)?;
        one.push(Queue { waiting: Table::new(), first: NONE, last: NONE });
        one.into_boxed_slice().try_into().map_err(|_| OutOfMemory)
    }

    fn find(&self, waker: &Waker) -> Option<usize> {
        self.waiting.find(hash(waker), |other| other.waker.will_wake(waker))
    }

    fn register(&mut self, waker: &Waker) -> Result<(), OutOfMemory> {
        if self.find(waker).is_some() {
            return Ok(());
        }
        self.waiting.reserve().map_err(|_| OutOfMemory)?;
        let newcomer = Waiting { waker: waker.clone(), before: self.last, after: NONE };
        let index = self.waiting.insert(hash(waker), newcomer) as u32;
        self.link(index, self.last, NONE);
        Ok(())
    }

    /// Links the entries before and behind an index to it.
    fn link(&mut self, index: u32, before: u32, after: u32) {
        match self.waiting.get_mut(before as usize) {
            Some(before) => before.after = index,
            None => self.first = index,
        }
        match self.waiting.get_mut(after as usize) {
            Some(after) => after.before = index,
            None => self.last = index,
        }
    }

    fn remove(&mut self, index: usize) -> Option<Waker> {
        let &Waiting { before, after, .. } = self.waiting.get(index)?;
        // The two are linked to each other.
        match self.waiting.get_mut(before as usize) {
            Some(before) => before.after = after,
            None => self.first = after,
        }
        match self.waiting.get_mut(after as usize) {
            Some(after) => after.before = before,
            None => self.last = before,
        }
        let removed = self.waiting.remove(index)?;
        // The last entry of the table has this index now.
        if let Some(&Waiting { before, after, .. }) = self.waiting.get(index) {
            self.link(index as u32, before, after);
        }
        Some(removed.waker)
    }

    fn forget(&mut self, waker: &Waker) {
        if let Some(index) = self.find(waker) {
            self.remove(index);
        }
    }

    /// Wakes some waiters from the front; returns whether there are more.
    fn wake_portion(&mut self) -> bool {
        for _ in 0..PORTION {
            match self.remove(self.first as usize) {
                Some(waker) => waker.wake(),
                None => return false,
            }
        }
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use proptest::prelude::*;

    /// Records the time of its last wake, and the number of wakes.
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
    fn any_number_waits_and_each_is_woken_for_itself() {
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
        waiters.wake_all();
        assert!(bells.iter().all(|(bell, _)| bell.rings() == 1));
    }

    /// For any number of waiters, one portion is woken at once, the others when their turn comes.
    #[test]
    fn a_rest_is_woken_in_portions() {
        let bells = bells(1000);
        let mut waiters = Waiters::default();
        for (_, waker) in &bells {
            waiters.register(waker).unwrap();
        }
        let rung = || bells.iter().filter(|(bell, _)| bell.rings() == 1).count();
        let mut remainder = Remainder(waiters.more.take().unwrap());
        // The very first waiter is not in the queue.
        let mut expected = 0;
        while remainder.wake_portion() {
            expected += PORTION;
            assert_eq!(rung(), expected);
        }
        assert_eq!(rung(), 999);
        assert!(bells[1..].is_sorted_by_key(|(bell, _)| bell.turn.load(Ordering::Relaxed)));
        assert!(!remainder.wake_portion());
    }

    #[test]
    fn addresses_are_spread_over_the_low_bits() {
        use alloc::collections::BTreeSet;
        let low: BTreeSet<u32> = (0..1024).map(|index| mixed(0x7f12_3456_7000 + 64 * index) & 1023).collect();
        assert!(low.len() > 500, "{} of 1024 places", low.len());
        // Also the hashes of real wakers, which lie where the allocator puts them.
        let low: BTreeSet<u32> = bells(1024).iter().map(|(_, waker)| hash(waker) & 1023).collect();
        assert!(low.len() > 500, "{} of 1024 places for wakers", low.len());
    }

    #[test]
    fn forgotten_wakers_are_dropped() {
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

        /// A list of numbers without repetitions is all that is visible.
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
