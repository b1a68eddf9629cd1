use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::vec;

use proptest::prelude::*;

use super::*;

/// Memory of a page: one number.
type Page = Arc<Mutex<u64>>;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Count>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn waker() -> (Waker, Arc<Count>) {
    let count = Arc::<Count>::default();
    (Waker::from(count.clone()), count)
}

fn fresh() -> Option<Page> {
    Some(Page::default())
}

/// A disk whose pages are numbers; it carries out orders in any order.
#[derive(Default)]
struct Disk {
    contents: HashMap<u64, u64>,
    orders: Vec<Order<Page>>,
}

impl Disk {
    fn accept(&mut self, cache: &mut Cache<Page>) {
        while let Some(order) = cache.take_order() {
            let is_alone = self.orders.iter().all(|other| other.index != order.index);
            assert!(is_alone, "two orders for one page");
            self.orders.push(order);
        }
    }

    /// Carries out one of the orders.
    fn carry_out(&mut self, cache: &mut Cache<Page>, which: usize, succeeds: bool) {
        self.accept(cache);
        if self.orders.is_empty() {
            return;
        }
        let order = self.orders.swap_remove(which % self.orders.len());
        if succeeds {
            match order.direction {
                Direction::Read => *order.page.lock().unwrap() = self.contents.get(&order.index).copied().unwrap_or(0),
                Direction::Write => drop(self.contents.insert(order.index, *order.page.lock().unwrap())),
            }
        }
        cache.ended(order.direction, order.index, succeeds);
        self.accept(cache);
    }

    fn carry_out_all(&mut self, cache: &mut Cache<Page>) {
        self.accept(cache);
        while !self.orders.is_empty() {
            self.carry_out(cache, 0, true);
        }
    }
}

/// Gives a page its number, by a task that waits as often as it must.
fn put(cache: &mut Cache<Page>, disk: &mut Disk, index: u64, purpose: Purpose, value: u64) {
    loop {
        match cache.pin(index, purpose, Some(Waker::noop()), fresh) {
            Poll::Ready(pinned) => {
                let pinned = pinned.unwrap();
                *pinned.page.lock().unwrap() = value;
                return cache.unpin(pinned, true);
            }
            Poll::Pending => {
                disk.accept(cache);
                assert!(!disk.orders.is_empty(), "a wait for nothing");
                disk.carry_out(cache, 0, true);
            }
        }
    }
}

fn get(cache: &mut Cache<Page>, disk: &mut Disk, index: u64) -> u64 {
    loop {
        match cache.pin(index, Purpose::Read, Some(Waker::noop()), fresh) {
            // An earlier order has failed.
            Poll::Ready(Err(Error::Unreadable)) => {}
            Poll::Ready(pinned) => {
                let pinned = pinned.unwrap();
                let value = *pinned.page.lock().unwrap();
                cache.unpin(pinned, false);
                return value;
            }
            Poll::Pending => {
                disk.accept(cache);
                assert!(!disk.orders.is_empty(), "a wait for nothing");
                disk.carry_out(cache, 0, true);
            }
        }
    }
}

#[test]
fn a_page_is_read_once_and_its_waiters_are_woken() {
    let (mut cache, mut disk) = (Cache::new(16, 100).unwrap(), Disk::default());
    disk.contents.insert(7, 70);
    let tasks = [waker(), waker()];
    for (waker, _) in &tasks {
        assert!(cache.pin(7, Purpose::Read, Some(waker), fresh).is_pending());
    }
    disk.accept(&mut cache);
    assert_eq!(disk.orders.len(), 1);
    cache.forget(&tasks[1].0);
    disk.carry_out(&mut cache, 0, true);
    assert_eq!(tasks.each_ref().map(|(_, count)| count.0.load(Ordering::Relaxed)), [1, 0]);
    assert_eq!(get(&mut cache, &mut disk, 7), 70);
    assert!(cache.take_order().is_none());
    assert!(matches!(cache.pin(100, Purpose::Read, None, fresh), Poll::Ready(Err(Error::BeyondTheEnd))));
    assert!(matches!(cache.pin(8, Purpose::Read, None, || None), Poll::Ready(Err(Error::OutOfMemory))));
}

#[test]
fn a_failed_read_is_an_error_once_and_can_be_tried_again() {
    let (mut cache, mut disk) = (Cache::new(16, 100).unwrap(), Disk::default());
    assert!(cache.pin(3, Purpose::Change, None, fresh).is_pending());
    disk.carry_out(&mut cache, 0, false);
    assert!(matches!(cache.pin(3, Purpose::Change, None, fresh), Poll::Ready(Err(Error::Unreadable))));
    disk.contents.insert(3, 5);
    assert_eq!(get(&mut cache, &mut disk, 3), 5);
}

#[test]
fn changes_are_written_when_a_task_waits_for_them_and_not_before() {
    let (mut cache, mut disk) = (Cache::new(16, 100).unwrap(), Disk::default());
    put(&mut cache, &mut disk, 1, Purpose::Overwrite, 11);
    put(&mut cache, &mut disk, 2, Purpose::Change, 12);
    disk.accept(&mut cache);
    assert!(disk.orders.is_empty() && cache.unwritten() == 2);
    let (up_to, (waker, woken)) = (cache.last_change(), waker());
    assert!(cache.poll_written(up_to, Some(&waker)).is_pending());
    // A later change is no part of it.
    put(&mut cache, &mut disk, 3, Purpose::Overwrite, 13);
    while cache.poll_written(up_to, Some(&waker)).is_pending() {
        disk.carry_out(&mut cache, 1, true);
    }
    assert!(woken.0.load(Ordering::Relaxed) > 0);
    assert_eq!((disk.contents.get(&1), disk.contents.get(&2), disk.contents.get(&3)), (Some(&11), Some(&12), None));
    assert_eq!(cache.unwritten(), 1);
}

#[test]
fn a_page_changed_while_it_is_written_is_written_again() {
    let (mut cache, mut disk) = (Cache::new(16, 100).unwrap(), Disk::default());
    put(&mut cache, &mut disk, 1, Purpose::Overwrite, 1);
    let first = cache.last_change();
    assert!(cache.poll_written(first, Some(Waker::noop())).is_pending());
    disk.accept(&mut cache);
    put(&mut cache, &mut disk, 1, Purpose::Change, 2);
    let second = cache.last_change();
    disk.carry_out(&mut cache, 0, true);
    assert!(cache.poll_written(first, Some(Waker::noop())).is_ready());
    assert!(cache.poll_written(second, Some(Waker::noop())).is_pending());
    disk.carry_out(&mut cache, 0, true);
    assert!(cache.poll_written(second, Some(Waker::noop())).is_ready());
    assert_eq!((disk.contents[&1], cache.unwritten()), (2, 0));
}

#[test]
fn a_failed_write_is_counted_and_its_change_is_lost() {
    let (mut cache, mut disk) = (Cache::new(16, 100).unwrap(), Disk::default());
    put(&mut cache, &mut disk, 1, Purpose::Overwrite, 1);
    let change = cache.last_change();
    assert!(cache.poll_written(change, Some(Waker::noop())).is_pending());
    disk.carry_out(&mut cache, 0, false);
    assert!(cache.poll_written(change, Some(Waker::noop())).is_ready());
    assert_eq!((cache.write_errors(), cache.unwritten()), (1, 0));
}

#[test]
fn a_page_that_does_not_get_all_of_its_bytes_is_read_from_the_disk() {
    let (mut cache, mut disk) = (Cache::new(16, 100).unwrap(), Disk::default());
    disk.contents.insert(4, 40);
    let Poll::Ready(Ok(pinned)) = cache.pin(4, Purpose::Overwrite, None, fresh) else { panic!("there is room") };
    *pinned.page.lock().unwrap() = 99;
    let (waker, woken) = waker();
    assert!(cache.pin(4, Purpose::Read, Some(&waker), fresh).is_pending());
    cache.unpin(pinned, false);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(get(&mut cache, &mut disk, 4), 40);
}

#[test]
fn writers_wait_for_room_and_readers_do_not() {
    let (mut cache, mut disk) = (Cache::new(16, 1000).unwrap(), Disk::default());
    for index in 0..8 {
        put(&mut cache, &mut disk, index, Purpose::Overwrite, index + 100);
    }
    let (waker, woken) = waker();
    assert!(cache.pin(20, Purpose::Overwrite, Some(&waker), fresh).is_pending());
    // A page that is changed already takes no further room.
    assert!(cache.take_order().is_some_and(|order| order.direction == Direction::Write));
    assert_eq!(get(&mut cache, &mut disk, 30), 0, "a reader finds a place");
    disk.orders.push(Order { direction: Direction::Write, index: 0, page: Page::default(), payer: 0 });
    disk.carry_out(&mut cache, usize::MAX, true);
    assert!(woken.0.load(Ordering::Relaxed) > 0);
    disk.carry_out_all(&mut cache);
    assert_eq!(cache.unwritten(), 0, "under pressure all is written");
}

#[test]
fn pinned_pages_stay_and_others_give_their_memory_back() {
    let (mut cache, mut disk) = (Cache::new(8, 1000).unwrap(), Disk::default());
    for index in 0..3 {
        get(&mut cache, &mut disk, index);
    }
    let Poll::Ready(Ok(pinned)) = cache.pin(0, Purpose::Read, None, fresh) else { panic!("it is there") };
    put(&mut cache, &mut disk, 1, Purpose::Change, 5);
    assert_eq!(cache.give_back(usize::MAX, usize::MAX), 1);
    *pinned.page.lock().unwrap() = 77;
    cache.unpin(pinned, true);
    for index in 100..120 {
        get(&mut cache, &mut disk, index);
    }
    assert_eq!((get(&mut cache, &mut disk, 0), get(&mut cache, &mut disk, 1)), (77, 5));
}

#[derive(Clone, Debug)]
enum Step {
    Put(u64, bool, u64),
    Get(u64),
    Sync,
    ReadAhead(u64),
    GiveBack(usize),
    Take(u64),
    CarryOut(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..40u64, any::<bool>(), 1..1000u64).prop_map(|(index, all, value)| Step::Put(index, all, value)),
        3 => (0..40u64).prop_map(Step::Get),
        1 => Just(Step::Sync),
        1 => (0..50u64).prop_map(Step::ReadAhead),
        1 => (0..20usize).prop_map(Step::GiveBack),
        1 => (0..40u64).prop_map(Step::Take),
        4 => (any::<usize>(), prop::bool::weighted(0.95)).prop_map(|(which, succeeds)| Step::CarryOut(which, succeeds)),
    ]
}

proptest! {
    #![proptest_config(property::cases(256))]

    /// Whatever the order in which the disk carries orders out: a reader sees the last change, and what a sync has
    /// waited for is on the disk, unless a write has failed.
    #[test]
    fn readers_see_the_last_change_and_syncs_make_it_last(steps in prop::collection::vec(step(), 0..200)) {
        let (mut cache, mut disk) = (Cache::new(16, 40).unwrap(), Disk::default());
        let mut model = vec![0; 40];
        // Pages of which a write has failed: the disk's number or ours.
        let mut lost = HashMap::new();
        for step in steps {
            match step {
                Step::Put(index, all, value) => {
                    if let Poll::Ready(Ok(pinned)) = cache.pin(
                        index,
                        if all { Purpose::Overwrite } else { Purpose::Change },
                        Some(Waker::noop()),
                        fresh,
                    ) {
                        *pinned.page.lock().unwrap() = value;
                        cache.unpin(pinned, true);
                        model[index as usize] = value;
                        lost.remove(&index);
                    }
                }
                Step::Get(index) => {
                    if let Poll::Ready(Ok(pinned)) = cache.pin(index, Purpose::Read, Some(Waker::noop()), fresh) {
                        let found = *pinned.page.lock().unwrap();
                        cache.unpin(pinned, false);
                        prop_assert!(found == model[index as usize] || lost.contains_key(&index));
                    }
                }
                Step::Sync => {
                    let up_to = cache.last_change();
                    while cache.poll_written(up_to, Some(Waker::noop())).is_pending() {
                        disk.accept(&mut cache);
                        prop_assert!(!disk.orders.is_empty(), "a wait for nothing");
                        disk.carry_out(&mut cache, 0, true);
                    }
                    for (index, value) in model.iter().enumerate() {
                        let index = index as u64;
                        let on_disk = disk.contents.get(&index).copied().unwrap_or(0);
                        prop_assert!(on_disk == *value || lost.contains_key(&index), "page {index}");
                    }
                }
                Step::ReadAhead(index) => cache.read_ahead(index, fresh),
                Step::GiveBack(most) => drop(cache.give_back(most, 8)),
                Step::Take(index) => {
                    if let Some(page) = cache.take(index) {
                        let mut found = page.lock().unwrap();
                        prop_assert!(*found == model[index as usize] || lost.contains_key(&index));
                        // It is another's memory now.
                        *found = u64::MAX;
                    }
                }
                Step::CarryOut(which, succeeds) => {
                    disk.accept(&mut cache);
                    if !succeeds && !disk.orders.is_empty() {
                        let order = &disk.orders[which % disk.orders.len()];
                        if order.direction == Direction::Write {
                            lost.insert(order.index, ());
                        }
                    }
                    disk.carry_out(&mut cache, which, succeeds);
                }
            }
            prop_assert!(cache.unwritten() <= 8);
        }
        disk.carry_out_all(&mut cache);
        for index in 0..40 {
            let found = get(&mut cache, &mut disk, index);
            prop_assert!(found == model[index as usize] || lost.contains_key(&index));
        }
    }
}

#[test]
fn a_page_is_taken_if_it_is_as_on_the_disk_and_nobody_has_pinned_it() {
    let (mut cache, mut disk) = (Cache::<Page>::new(16, 40).unwrap(), Disk::default());
    assert!(cache.take(3).is_none(), "it is not there");
    put(&mut cache, &mut disk, 3, Purpose::Overwrite, 7);
    assert!(cache.take(3).is_none(), "it was changed");
    cache.write_all();
    disk.accept(&mut cache);
    assert!(cache.take(3).is_none(), "it is being written");
    disk.carry_out_all(&mut cache);
    let Poll::Ready(Ok(pinned)) = cache.pin(3, Purpose::Read, None, fresh) else { panic!("it is there") };
    assert!(cache.take(3).is_none(), "a reader has it");
    cache.unpin(pinned, false);
    assert_eq!(cache.take(3).map(|page| *page.lock().unwrap()), Some(7));
    assert!(cache.take(3).is_none(), "it was taken");
    assert_eq!(get(&mut cache, &mut disk, 3), 7);
}

/// Changes that were not written stay, and so do pages in use and beside the range.
#[test]
fn pages_that_the_disk_has_lost_are_read_again() {
    let (mut cache, mut disk) = (Cache::<Page>::new(64, 100).unwrap(), Disk::default());
    for index in 3..8 {
        put(&mut cache, &mut disk, index, Purpose::Overwrite, 7);
    }
    cache.write_all();
    disk.carry_out_all(&mut cache);
    put(&mut cache, &mut disk, 5, Purpose::Change, 8);
    let Poll::Ready(Ok(pinned)) = cache.pin(6, Purpose::Read, None, fresh) else { panic!("it is there") };
    disk.contents.clear();
    let mut from = Some(0);
    while let Some(place) = from {
        from = cache.lose(4..8, place, 10);
    }
    cache.unpin(pinned, false);
    let found: Vec<_> = (3..8).map(|index| get(&mut cache, &mut disk, index)).collect();
    assert_eq!(found, [7, 0, 8, 7, 0]);
    assert_eq!(cache.lose(0..100, 64, 10), None);
}

#[test]
fn orders_for_neighbours_are_taken_together_and_given_again() {
    let mut cache = Cache::<Page>::new(64, 100).unwrap();
    for index in [5, 6, 7, 9] {
        assert!(cache.pin(index, Purpose::Read, None, fresh).is_pending());
    }
    assert_eq!(cache.take_order().map(|order| order.index), Some(5));
    assert!(cache.take_order_of(Direction::Write, 6).is_none());
    let mut next = |index| cache.take_order_of(Direction::Read, index).map(|order| order.index);
    assert_eq!((next(6), next(7), next(8)), (Some(6), Some(7), None));
    cache.ended(Direction::Read, 5, true);
    // Of a page whose order has ended there is nothing to be done again.
    for index in 5..8 {
        cache.order_again(Direction::Read, index);
    }
    let orders: Vec<_> = core::iter::from_fn(|| cache.take_order()).map(|order| order.index).collect();
    assert_eq!(orders, [9, 6, 7]);
    cache.ended(Direction::Read, 6, false);
    assert!(matches!(cache.pin(6, Purpose::Read, None, fresh), Poll::Ready(Err(Error::Unreadable))));
}

/// A task that changes many pages has the disk write some meanwhile, and one that changes few does not.
#[test]
fn many_changed_pages_are_written_without_a_call_for_it() {
    let (mut cache, mut disk) = (Cache::new(8 * MANY_CHANGED, 1 << 20).unwrap(), Disk::default());
    for index in 0..MANY_CHANGED as u64 {
        assert!(!cache.has_orders(), "page {index}");
        put(&mut cache, &mut disk, index, Purpose::Overwrite, index);
    }
    assert!(cache.has_orders());
    disk.accept(&mut cache);
    let written: Vec<u64> = disk.orders.iter().map(|order| order.index).collect();
    assert_eq!(written, (0..MOST_WRITTEN_AT_ONCE as u64).collect::<Vec<_>>(), "the oldest, in their order");
    // Others wait until these are on the disk.
    for index in 0..MANY_CHANGED as u64 {
        put(&mut cache, &mut disk, MANY_CHANGED as u64 + index, Purpose::Overwrite, index);
    }
    assert!(!cache.has_orders());
    disk.carry_out_all(&mut cache);
    assert!(!cache.has_orders() && cache.unwritten() == 2 * MANY_CHANGED - MOST_WRITTEN_AT_ONCE);
    put(&mut cache, &mut disk, 9999, Purpose::Overwrite, 1);
    assert!(cache.has_orders());
}
