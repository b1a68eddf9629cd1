//! A rendezvous by integer key: a coroutine waits for a key, and another wakes it (WakerMap in the papers).
//!
//! Both agree on a key beforehand; [`WakerMap::key`] counts new ones. Neither needs a reference to the other: the
//! waiter leaves its waker under the key, which for a coroutine of this executor is its cid, and the other side finds
//! it there. An event that comes first is kept under the key, so that a later waiter continues at once. In contrast to
//! a channel only the fact is passed, and neither end has to exist before the other.
//!
//! One lock guards the map, for the length of a tree operation; wakers are called outside of it. A lock-free table
//! would have to keep wakers, which are cloned and dropped, in words that others read at that moment.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};

use crate::lock::Lock;

/// The state of a key.
#[derive(Debug)]
enum KeyState {
    /// The event has come.
    Arrived,
    /// A coroutine waits: its ticket, and its waker.
    Waiting(u64, Waker),
}

#[derive(Debug)]
struct Keys {
    by_key: BTreeMap<u64, KeyState>,
    last_ticket: u64,
}

/// Waiting coroutines by the integer key of their event, and events that have come before a waiter.
#[doc(alias("park", "keyed event"))]
#[derive(Debug)]
pub struct WakerMap {
    places: Lock<Keys>,
    last_key: AtomicU64,
}

/// The state in which an event has found its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// A waiter, which continues.
    Waiter,
    /// No waiter; the event is kept for the next one.
    Nobody,
    /// An event that is being kept already; the two become one.
    Event,
}

impl Default for WakerMap {
    fn default() -> WakerMap {
        WakerMap::new()
    }
}

impl WakerMap {
    /// Creates an empty map; it may be a static.
    pub const fn new() -> WakerMap {
        let places = Keys { by_key: BTreeMap::new(), last_ticket: 0 };
        WakerMap { places: Lock::new(places), last_key: AtomicU64::new(0) }
    }

    /// Returns a key that this map has not returned before. Any other numbers can be keys too.
    pub fn key(&self) -> u64 {
        self.last_key.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Reports the event of this key: wakes its waiter, or keeps the event for the next one.
    pub fn wake(&self, key: u64) -> Met {
        let met = self.places.lock().by_key.insert(key, KeyState::Arrived);
        match met {
            Some(KeyState::Waiting(_, waker)) => {
                waker.wake();
                Met::Waiter
            }
            Some(KeyState::Arrived) => Met::Event,
            None => Met::Nobody,
        }
    }

    /// Waits for the event of this key, and takes it. One coroutine at a time: of several the last to ask is woken.
    ///
    /// # Cancellation
    ///
    /// Strict. An event that has come is kept for the next waiter.
    pub fn wait(&self, key: u64) -> Wait<'_> {
        Wait { map: self, key, ticket: 0 }
    }

    /// Takes an event that has come; `false` if none has.
    pub fn take(&self, key: u64) -> bool {
        match self.places.lock().by_key.entry(key) {
            Entry::Occupied(place) if matches!(place.get(), KeyState::Arrived) => {
                place.remove();
                true
            }
            _ => false,
        }
    }

    /// Returns the number of keys with an event that was not taken, or with a waiter.
    pub fn len(&self) -> usize {
        self.places.lock().by_key.len()
    }

    /// Returns whether there are no such keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Future of [`WakerMap::wait`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct Wait<'a> {
    map: &'a WakerMap,
    key: u64,
    /// 0 before the future has registered.
    ticket: u64,
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut places = self.map.places.lock();
        if self.ticket == 0 {
            places.last_ticket += 1;
            self.ticket = places.last_ticket;
        }
        match places.by_key.entry(self.key) {
            Entry::Occupied(place) if matches!(place.get(), KeyState::Arrived) => {
                place.remove();
                self.ticket = 0;
                Poll::Ready(())
            }
            entry => {
                let waiting = KeyState::Waiting(self.ticket, context.waker().clone());
                let replaced = match entry {
                    Entry::Occupied(mut place) => Some(place.insert(waiting)),
                    Entry::Vacant(place) => {
                        place.insert(waiting);
                        None
                    }
                };
                // A foreign waker may run anything when it is dropped.
                drop(places);
                drop(replaced);
                Poll::Pending
            }
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.ticket == 0 {
            return;
        }
        let mut places = self.map.places.lock();
        let removed = match places.by_key.get(&self.key) {
            Some(KeyState::Waiting(ticket, _)) if *ticket == self.ticket => places.by_key.remove(&self.key),
            _ => None,
        };
        drop(places);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use alloc::vec::Vec;
    use proptest::prelude::*;
    use std::thread;

    #[derive(Clone, Debug)]
    enum Step {
        Wake(u64),
        Take(u64),
        Begin(u64),
        Poll(usize),
        Drop(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..4).prop_map(Step::Wake),
            (0u64..4).prop_map(Step::Take),
            (0u64..4).prop_map(Step::Begin),
            (0usize..8).prop_map(Step::Poll),
            (0usize..8).prop_map(Step::Drop),
        ]
    }

    /// A wait in progress: its key, its future, and how often it was woken.
    type Begun<'a> = (u64, Pin<std::boxed::Box<Wait<'a>>>, Arc<Wakes>);

    /// The model's waiters: by position in the list of futures.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Model {
        Empty,
        Arrived,
        Waiting(usize),
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn histories_agree_with_the_model(steps in prop::collection::vec(step(), 0..60)) {
            let map = WakerMap::new();
            let mut model = [Model::Empty; 4];
            let mut futures: Vec<Option<Begun<'_>>> = Vec::new();
            for step in steps {
                match step {
                    Step::Wake(key) => {
                        let place = &mut model[key as usize];
                        let before = *place;
                        let count = |index: usize, futures: &[Option<Begun<'_>>]| {
                            futures[index].as_ref().map_or(0, |(_, _, wakes)| wakes.count())
                        };
                        let woken = match before { Model::Waiting(index) => count(index, &futures), _ => 0 };
                        let met = map.wake(key);
                        prop_assert_eq!(met, match before {
                            Model::Empty => Met::Nobody,
                            Model::Arrived => Met::Event,
                            Model::Waiting(_) => Met::Waiter,
                        });
                        if let Model::Waiting(index) = before {
                            prop_assert_eq!(count(index, &futures), woken + 1);
                        }
                        *place = Model::Arrived;
                    }
                    Step::Take(key) => {
                        let arrived = model[key as usize] == Model::Arrived;
                        prop_assert_eq!(map.take(key), arrived);
                        if arrived { model[key as usize] = Model::Empty; }
                    }
                    Step::Begin(key) => futures.push(Some((key, std::boxed::Box::pin(map.wait(key)), Arc::default()))),
                    Step::Poll(index) if index < futures.len() => {
                        let Some((key, future, wakes)) = &mut futures[index] else { continue };
                        let place = &mut model[*key as usize];
                        let waker = Waker::from(wakes.clone());
                        let ready = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
                        prop_assert_eq!(ready, *place == Model::Arrived);
                        if ready {
                            *place = Model::Empty;
                            futures[index] = None;
                        } else {
                            *place = Model::Waiting(index);
                        }
                    }
                    Step::Drop(index) if index < futures.len() => {
                        if let Some((key, future, _)) = futures[index].take() {
                            drop(future);
                            if model[key as usize] == Model::Waiting(index) {
                                model[key as usize] = Model::Empty;
                            }
                        }
                    }
                    _ => {}
                }
                let used = model.iter().filter(|place| **place != Model::Empty).count();
                prop_assert_eq!(map.len(), used);
            }
            drop(futures);
        }
    }

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn no_event_is_lost_between_threads() {
        static MAP: WakerMap = WakerMap::new();
        let waiting: Vec<_> = (0..4u64)
            .map(|half| {
                thread::spawn(move || {
                    let waker = Waker::from(Arc::new(Unpark(thread::current())));
                    for round in 0..2000 {
                        let mut wait = core::pin::pin!(MAP.wait(round * 4 + half));
                        while wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                            thread::park();
                        }
                    }
                })
            })
            .collect();
        for key in 0..4 * 2000 {
            MAP.wake(key);
        }
        for thread in waiting {
            thread.join().unwrap();
        }
        assert!(MAP.is_empty());
    }

    #[test]
    fn keys_differ() {
        let map = WakerMap::default();
        assert!(map.key() != map.key());
        assert!(!map.take(1));
    }
}
