//! The cache of a disk's pages (Linux: the page cache of a block device).
//!
//! A [`Cache`] decides and carries out nothing: it says which pages must be [read or written](Order), its owner lets
//! the disk do that and reports the [end](Cache::ended) of each order. Tasks that need a page which is not there, or
//! room for changes, are registered and woken; no method waits.
//!
//! # Pages
//! The cache has a fixed number of places, in sets of [`WAYS`]; a page can lie in the places of one set only. So its
//! memory is bounded, finding a page takes a bounded number of steps, and nothing is allocated after the beginning but
//! the memory of the pages themselves, which the owner gives. A page that was not used since the hand came by last goes
//! first (*clock*); one that was changed goes when it was written.
//!
//! # Changes
//! A task [pins](Cache::pin) a page, changes its memory outside of the cache's lock, and [unpins](Cache::unpin) it.
//! Changed pages are written in the order in which they were changed: when more of them are changed than may be, or
//! when a task [waits](Cache::poll_written) for all that was changed up to a moment. When [many](MANY_CHANGED) are
//! changed and none is being written, some are, so that the disk works beside a task that writes much, and has little
//! left when the task waits for it. A page that is changed while it is
//! written is written once more. Tasks that change pages wait while half of all places hold unwritten changes; tasks
//! that read do not.
//!
//! # Errors
//! A page that could not be read is an error for one task that waits for it; others try again. A change that could not
//! be written is lost, as on Linux: [`write_errors`](Cache::write_errors) counts them, so that each open file can
//! report that once.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZero;
use core::ops::Range;
use core::task::{Poll, Waker};

use waiters::Waiters;

#[cfg(test)]
mod tests;

/// Number of places in which one page can lie.
pub const WAYS: usize = 8;

/// Number of wait queues for pages: a task that gives up looks through all of them.
const QUEUES: usize = 32;

/// Number of pages that are written at once.
pub const MOST_WRITTEN_AT_ONCE: usize = 128;

/// Number of changed pages from which on the oldest are written without a call for it.
pub const MANY_CHANGED: usize = 512;

/// Reason why a page is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no memory for the page or for one more waiter.
    OutOfMemory,
    /// The page is beyond the end of the disk.
    BeyondTheEnd,
    /// The disk could not read the page.
    Unreadable,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Error::OutOfMemory => "no memory for a page of the disk",
            Error::BeyondTheEnd => "the page is beyond the end of the disk",
            Error::Unreadable => "the disk could not read the page",
        })
    }
}

impl core::error::Error for Error {}

/// Direction of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the disk to the page.
    Read,
    /// From the page to the disk.
    Write,
}

/// A transfer that the disk must make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order<P> {
    /// Its direction.
    pub direction: Direction,
    /// Number of the page on the disk.
    pub index: u64,
    /// Memory of the page.
    pub page: P,
    /// The [payer](Cache::works_for) of the task that wanted the page, or changed it last.
    pub payer: u32,
}

/// The purpose for which a page is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Its bytes are read.
    Read,
    /// Some of its bytes are changed.
    Change,
    /// All of its bytes are changed: it need not be read.
    Overwrite,
}

/// A page that stays where it is until it is [unpinned](Cache::unpin).
#[derive(Debug)]
#[must_use = "the page stays pinned until it is unpinned"]
pub struct Pinned<P> {
    /// Memory of the page.
    pub page: P,
    /// Whether the page has no bytes yet: all of them must be given to it, or none counts.
    pub is_empty: bool,
    place: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The bytes are not there, and no order is under way.
    Absent,
    /// The last order to read it has failed, which no task knows yet.
    Unreadable,
    /// An order to read is under way.
    Reading,
    /// A task gives it all of its bytes.
    Filling,
    /// As on the disk.
    Clean,
    /// Changed, and in the queue of changed pages.
    Changed,
    /// An order to write is under way; the number of the first change since it began.
    Writing { changed_at: Option<NonZero<u64>> },
}

#[derive(Debug)]
struct Place<P> {
    index: u64,
    /// Whether it is the place of that page.
    is_taken: bool,
    /// `None` before the first use, and after the memory was given back.
    page: Option<P>,
    state: State,
    /// Number of tasks that have pinned it.
    pins: u32,
    was_used: bool,
    /// Number of the first change that is in the queue or being written.
    changed_at: u64,
    /// The payer of the present or next order.
    payer: u32,
}

impl<P> Place<P> {
    fn can_go(&self) -> bool {
        self.pins == 0 && matches!(self.state, State::Absent | State::Unreadable | State::Clean)
    }
}

/// Pages of a disk in memory. `P` is the memory of a page: a handle whose clones are the same memory.
#[derive(Debug)]
pub struct Cache<P> {
    /// Sets of [`WAYS`].
    places: Vec<Place<P>>,
    /// In each set, the next place to be looked at for one that can go.
    hands: Vec<u8>,
    /// The place at which the next look for memory to give back begins.
    next_given_back: usize,
    /// Number of pages that the disk has.
    pages: u64,
    /// Places with changed pages, in the order of their changes.
    changed: VecDeque<u32>,
    /// Places with pages that are being written.
    writing: Vec<u32>,
    /// Whether changed pages are written until none is left, because a task waits for room.
    writes_all: bool,
    /// Orders that the owner has not taken. Each place has one at most.
    orders: VecDeque<Order<P>>,
    /// The payer of the task for which the cache works.
    payer: u32,
    /// Number of the last change.
    changes: u64,
    write_errors: u64,
    /// Tasks that wait for a page or for a place in a set, by the number of the set.
    for_pages: [Waiters; QUEUES],
    /// Tasks that wait for room for changes, and those that wait for changes to be written.
    for_room: Waiters,
    for_written: Waiters,
}

impl<P: Clone> Cache<P> {
    /// Makes a cache of about `places` places for a disk of so many pages.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(places: usize, pages: u64) -> Result<Cache<P>, Error> {
        let sets = (places / WAYS).clamp(1, u32::MAX as usize / WAYS);
        let count = sets * WAYS;
        let mut cache = Cache {
            places: Vec::new(),
            hands: Vec::new(),
            next_given_back: 0,
            pages,
            changed: VecDeque::new(),
            writing: Vec::new(),
            writes_all: false,
            orders: VecDeque::new(),
            payer: 0,
            changes: 0,
            write_errors: 0,
            for_pages: Default::default(),
            for_room: Waiters::default(),
            for_written: Waiters::default(),
        };
        let no_memory = |_| Error::OutOfMemory;
        cache.places.try_reserve_exact(count).map_err(no_memory)?;
        cache.hands.try_reserve_exact(sets).map_err(no_memory)?;
        cache.changed.try_reserve_exact(count).map_err(no_memory)?;
        cache.writing.try_reserve_exact(MOST_WRITTEN_AT_ONCE).map_err(no_memory)?;
        cache.orders.try_reserve_exact(count).map_err(no_memory)?;
        cache.hands.resize(sets, 0);
        cache.places.resize_with(count, || Place {
            index: 0,
            is_taken: false,
            page: None,
            state: State::Absent,
            pins: 0,
            was_used: false,
            changed_at: 0,
            payer: 0,
        });
        Ok(cache)
    }

    /// Returns the number of pages that the disk has.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the number of places.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of changes that could not be written.
    pub fn write_errors(&self) -> u64 {
        self.write_errors
    }

    /// Returns the number of changed pages that are not on the disk yet.
    pub fn unwritten(&self) -> usize {
        self.changed.len() + self.writing.len()
    }

    /// Returns the number of the last change, for [`poll_written`](Self::poll_written).
    pub fn last_change(&self) -> u64 {
        self.changes
    }

    /// Makes this number the payer of orders for pages that are wanted or changed from now on. It means nothing to the
    /// cache, which gives it back with the order and at its [end](Self::ended).
    pub fn works_for(&mut self, payer: u32) {
        self.payer = payer;
    }

    /// Takes the oldest order that the disk must carry out.
    pub fn take_order(&mut self) -> Option<Order<P>> {
        self.orders.pop_front()
    }

    /// Takes the oldest order if it is of this direction and page: the owner makes it part of the transfer of the page
    /// before.
    pub fn take_order_of(&mut self, direction: Direction, index: u64) -> Option<Order<P>> {
        let is_it = self.orders.front().is_some_and(|order| order.direction == direction && order.index == index);
        if is_it { self.orders.pop_front() } else { None }
    }

    /// Orders a page once more, whose order was carried out with those of others, one of which perhaps has failed
    /// alone.
    pub fn order_again(&mut self, direction: Direction, index: u64) {
        let Some(number) = self.find(index) else { return };
        let place = &self.places[number];
        let is_under_way = match direction {
            Direction::Read => place.state == State::Reading,
            Direction::Write => matches!(place.state, State::Writing { .. }),
        };
        if let Some(page) = place.page.clone().filter(|_| is_under_way) {
            self.orders.push_back(Order { direction, index, page, payer: place.payer });
        }
    }

    /// Pins a page. If that has to wait, registers the waker, if there is one; the task tries again when it is woken,
    /// and [forgets](Self::forget) the page if it gives up. `allocate` gives memory to a place that has none.
    ///
    /// # Errors
    /// Those of [`Error`].
    pub fn pin(
        &mut self,
        index: u64,
        purpose: Purpose,
        waker: Option<&Waker>,
        allocate: impl FnOnce() -> Option<P>,
    ) -> Poll<Result<Pinned<P>, Error>> {
        if index >= self.pages {
            return Poll::Ready(Err(Error::BeyondTheEnd));
        }
        let found = self.find(index);
        if purpose != Purpose::Read && !self.has_room_for_change(found) {
            self.write_all();
            return wait_in(&mut self.for_room, waker);
        }
        let queue = queue_of(self.set_of(index).start);
        let number = match found.map_or_else(|| self.make_place(index), Ok) {
            Ok(number) => number,
            Err(NoPlace) => {
                self.write_all();
                return wait_in(&mut self.for_pages[queue], waker);
            }
        };
        let place = &mut self.places[number];
        let page = match &place.page {
            Some(page) => page.clone(),
            None => match allocate() {
                Some(page) => place.page.insert(page).clone(),
                None => return Poll::Ready(Err(Error::OutOfMemory)),
            },
        };
        match place.state {
            State::Absent | State::Unreadable if purpose == Purpose::Overwrite => place.state = State::Filling,
            State::Unreadable => {
                place.state = State::Absent;
                return Poll::Ready(Err(Error::Unreadable));
            }
            State::Absent => {
                place.state = State::Reading;
                place.payer = self.payer;
                self.orders.push_back(Order { direction: Direction::Read, index, page, payer: self.payer });
                return wait_in(&mut self.for_pages[queue], waker);
            }
            State::Reading | State::Filling => return wait_in(&mut self.for_pages[queue], waker),
            State::Clean | State::Changed | State::Writing { .. } => {}
        }
        place.was_used = true;
        place.pins += 1;
        Poll::Ready(Ok(Pinned { page, is_empty: place.state == State::Filling, place: number }))
    }

    /// Lets a page go, and records whether it was changed. One that was [empty](Pinned::is_empty) counts as changed
    /// only if it has got all of its bytes.
    pub fn unpin(&mut self, pinned: Pinned<P>, is_changed: bool) {
        let place = &mut self.places[pinned.place];
        place.pins -= 1;
        let is_idle = place.pins == 0;
        if is_changed {
            self.changes += 1;
            place.payer = self.payer;
            match &mut place.state {
                State::Writing { changed_at } => *changed_at = changed_at.or(NonZero::new(self.changes)),
                State::Changed => {}
                _ => {
                    place.state = State::Changed;
                    place.changed_at = self.changes;
                    self.changed.push_back(pinned.place as u32);
                }
            }
            if self.changed.len() >= MANY_CHANGED && self.writing.is_empty() {
                while self.write_next() {}
            }
        } else if place.state == State::Filling {
            place.state = State::Absent;
        }
        if is_idle {
            self.for_pages[queue_of(pinned.place)].wake_all();
        }
    }

    /// Takes the memory of a page that is as on the disk, and that nobody has pinned: the cache has it no more.
    pub fn take(&mut self, index: u64) -> Option<P> {
        let number = self.find(index)?;
        let place = &mut self.places[number];
        if place.state != State::Clean || place.pins > 0 {
            return None;
        }
        (place.state, place.was_used) = (State::Absent, false);
        place.page.take()
    }

    /// Whether there are orders that the owner has not taken.
    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Orders a page to be read that will be wanted soon, if there is a place and memory for it.
    pub fn read_ahead(&mut self, index: u64, allocate: impl FnOnce() -> Option<P>) {
        if index >= self.pages || self.find(index).is_some() {
            return;
        }
        let Ok(number) = self.make_place(index) else { return };
        let place = &mut self.places[number];
        let page = match &place.page {
            Some(page) => page.clone(),
            None => match allocate() {
                Some(page) => place.page.insert(page).clone(),
                None => return,
            },
        };
        place.state = State::Reading;
        place.payer = self.payer;
        self.orders.push_back(Order { direction: Direction::Read, index, page, payer: self.payer });
    }

    /// Records the end of an order for this page; returns its [payer](Self::works_for).
    pub fn ended(&mut self, direction: Direction, index: u64, has_succeeded: bool) -> u32 {
        // The page of an order under way is where it was.
        let Some(number) = self.find(index) else { return 0 };
        let place = &mut self.places[number];
        let payer = place.payer;
        match (direction, place.state) {
            (Direction::Read, State::Reading) => {
                place.state = if has_succeeded { State::Clean } else { State::Unreadable };
                // It stays until the task that waits for it has seen it.
                place.was_used = true;
                self.for_pages[queue_of(number)].wake_all();
            }
            (Direction::Write, State::Writing { changed_at }) => {
                if !has_succeeded {
                    self.write_errors += 1;
                }
                let place = &mut self.places[number];
                if let (Some(changed_at), Some(page)) = (changed_at, place.page.clone()) {
                    // Written again at once: the queue of changed pages stays in the order of changes.
                    place.state = State::Writing { changed_at: None };
                    place.changed_at = changed_at.get();
                    self.orders.push_back(Order { direction, index, page, payer });
                } else {
                    place.state = State::Clean;
                    self.for_pages[queue_of(number)].wake_all();
                    if let Some(at) = self.writing.iter().position(|written| *written as usize == number) {
                        self.writing.swap_remove(at);
                    }
                }
                self.for_room.wake_all();
                self.for_written.wake_all();
                if self.writes_all {
                    self.write_changed();
                }
            }
            _ => {}
        }
        payer
    }

    /// Waits until all changes up to this number are on the disk or have failed. Registers the waker, if there is one,
    /// before it answers `Pending`; a task that gives up [forgets](Self::forget_written) it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn poll_written(&mut self, up_to: u64, waker: Option<&Waker>) -> Poll<Result<(), Error>> {
        while let Some(&number) = self.changed.front()
            && self.places[number as usize].changed_at <= up_to
        {
            if !self.write_next() {
                return wait_in(&mut self.for_written, waker);
            }
        }
        let is_older = |number: &u32| self.places[*number as usize].changed_at <= up_to;
        if self.writing.iter().any(is_older) {
            return wait_in(&mut self.for_written, waker);
        }
        Poll::Ready(Ok(()))
    }

    /// Orders all changed pages to be written, as many as may be at once: for changes that have waited for long.
    pub fn write_all(&mut self) {
        self.writes_all = true;
        self.write_changed();
    }

    /// Orders changed pages to be written, the oldest first, as many as may be at once.
    fn write_changed(&mut self) {
        while self.write_next() {}
        if self.changed.is_empty() {
            self.writes_all = false;
        }
    }

    /// Takes back the registration of a task that waits for a page.
    pub fn forget(&mut self, waker: &Waker) {
        self.for_room.forget(waker);
        self.for_pages.iter_mut().for_each(|queue| queue.forget(waker));
    }

    /// Takes back the registration of a task that waits for changes to be written.
    pub fn forget_written(&mut self, waker: &Waker) {
        self.for_written.forget(waker);
    }

    /// Gives back the memory of up to so many pages that are as on the disk, among the next `looks` places; returns
    /// their number.
    pub fn give_back(&mut self, most: usize, looks: usize) -> usize {
        let mut count = 0;
        for _ in 0..looks.min(self.places.len()) {
            if count == most {
                break;
            }
            let place = &mut self.places[self.next_given_back];
            self.next_given_back = (self.next_given_back + 1) % self.hands.len().saturating_mul(WAYS);
            if place.can_go() && place.page.take().is_some() {
                place.state = State::Absent;
                count += 1;
            }
        }
        count
    }

    /// Forgets pages of a range that are as on the disk, which has lost them, among the next `looks` places from one
    /// on; returns the place to go on with.
    pub fn lose(&mut self, range: Range<u64>, from: usize, looks: usize) -> Option<usize> {
        let end = from.saturating_add(looks).min(self.places.len());
        for place in self.places.get_mut(from..end)? {
            if place.can_go() && place.is_taken && range.contains(&place.index) {
                place.page = None;
                place.state = State::Absent;
            }
        }
        (end < self.places.len()).then_some(end)
    }

    fn set_of(&self, index: u64) -> Range<usize> {
        // Neighbours lie in different sets.
        let set = (index % self.hands.len() as u64) as usize;
        set * WAYS..(set + 1) * WAYS
    }

    fn find(&self, index: u64) -> Option<usize> {
        self.set_of(index).find(|number| self.places[*number].index == index && self.places[*number].is_taken)
    }

    /// Takes a place for a page that has none.
    fn make_place(&mut self, index: u64) -> Result<usize, NoPlace> {
        let set = self.set_of(index);
        let hand = &mut self.hands[set.start / WAYS];
        // The second round finds each place unused.
        for _ in 0..2 * WAYS {
            let number = set.start + usize::from(*hand);
            *hand = (*hand + 1) % WAYS as u8;
            let place = &mut self.places[number];
            if place.can_go() && !core::mem::take(&mut place.was_used) {
                place.index = index;
                place.is_taken = true;
                place.state = State::Absent;
                return Ok(number);
            }
        }
        Err(NoPlace)
    }

    fn has_room_for_change(&self, found: Option<usize>) -> bool {
        let is_changed_already = found.is_some_and(|number| {
            matches!(self.places[number].state, State::Changed | State::Writing { changed_at: Some(_) })
        });
        is_changed_already || self.unwritten() < self.places.len() / 2
    }

    /// Orders the oldest changed page to be written; returns `false` if there is none, or if enough are being written.
    fn write_next(&mut self) -> bool {
        if self.writing.len() >= MOST_WRITTEN_AT_ONCE {
            return false;
        }
        let Some(number) = self.changed.pop_front() else { return false };
        let place = &mut self.places[number as usize];
        if let Some(page) = place.page.clone() {
            place.state = State::Writing { changed_at: None };
            self.writing.push(number);
            let (index, payer) = (place.index, place.payer);
            self.orders.push_back(Order { direction: Direction::Write, index, page, payer });
        }
        true
    }
}

/// All places of a set are in use.
struct NoPlace;

/// Returns the queue of the tasks that wait for a place's page.
fn queue_of(place: usize) -> usize {
    place / WAYS % QUEUES
}

fn wait_in<T>(waiters: &mut Waiters, waker: Option<&Waker>) -> Poll<Result<T, Error>> {
    match waker.map(|waker| waiters.register(waker)) {
        Some(Err(_)) => Poll::Ready(Err(Error::OutOfMemory)),
        _ => Poll::Pending,
    }
}
