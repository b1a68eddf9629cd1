//! Readiness: `epoll` and `ppoll` (epoll(7), poll(2)).
//!
//! An epoll has an *item* for each descriptor that it watches. The item itself waits: its waker is registered with the
//! file, as that of a blocked reader would be. When the file wakes it, the item enters the epoll's *ready list* and
//! wakes the callers that wait for the epoll. So every event that can make a call go on can make a descriptor ready,
//! pipes and sockets have no code for epoll but `readiness`, and a wait costs as much as there is in the ready list,
//! however many items the epoll has.
//!
//! An item in the list may be ready; it need not. A waiting caller takes items out and looks at each file. A ready item
//! is reported; if it is level-triggered it goes back to the end of the list, because it may still be ready the next
//! time. An item that is not ready gets its waker registered again, in the same look. An edge-triggered item is
//! registered before it is reported, so that it comes back with the next event and not before.
//!
//! So an epoll does not find an event of which its item was not told yet: if so many waiters wait for one thing that
//! they are woken in portions ([`deferred_wakes`](crate::scheduling::deferred_wakes)), an epoll that does not wait may
//! come before its item's turn. While some are still to be woken, such a wait that has found nothing looks at the files
//! of all level-triggered items, in steps, until it finds something. An edge-triggered item reports when it is told,
//! since its file alone does not tell a new event from an old one.
//!
//! # Ownership
//!
//! The epoll owns its items; lists of waiters share them; an item holds its file and its epoll weakly, and owns a share
//! of the ready list. So an item may be woken under the lock of the object behind its file. A file may be closed while
//! it is watched: it takes its items out of their epolls, as on Linux when the last descriptor goes. An epoll that is
//! dropped takes its items out of the files' lists.
//!
//! # Steps
//!
//! An epoll and a list of `ppoll` may have as many descriptors as a process. A step looks at [`steps::ENTRIES`] of
//! them. `epoll_pwait` reports its findings when a step has found something, and goes on otherwise. `ppoll` looks at
//! all; events that come meanwhile ring a [`ListBell`], and then it begins anew. Registrations of a large list or
//! epoll, or with a file, that has gone are taken back in steps too, as [`remains`](crate::files::remains). Until then
//! their wake-ups have no effect. The watchers of a file that has become another object are woken in the same way. The
//! process that has made the epoll or the call pays.
//!
//! # Locks
//!
//! An epoll's items are locked before the objects that they watch; the ready list is locked for a few instructions,
//! under any of them. An epoll cannot be watched by an epoll (`ELOOP`), so that neither lock is taken under another of
//! its kind.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use alloc::vec::Vec;
use core::ops::Bound;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::Status;
use abi_unix::types::epoll::{self as event, Event};
use smallvec::SmallVec;
use spin::Mutex;
use tables::Segments;
use waiters::Waiters;

use crate::files::descriptor::Descriptors;
use crate::files::file::{Attempt, FileOperations, OpenFile, status_of_anonymous};
use crate::files::remains::{Remain, leave};
use crate::process::accounts::{Charge, Resource};
use crate::process::user::{Caller, UserBuffer};
use crate::scheduling::{deferred_wakes, steps};
use crate::time::limit::TimeLimit;

/// Key of an item: a descriptor, and the address of the open file to which it led.
type WatchKey = (usize, usize);

fn key_of(descriptor: usize, file: &Arc<OpenFile>) -> WatchKey {
    (descriptor, Arc::as_ptr(file).addr())
}

/// A descriptor that an epoll watches.
#[doc(alias = "epitem")]
pub(crate) struct Item {
    key: WatchKey,
    file: Weak<OpenFile>,
    epoll: Weak<Epoll>,
    ready: Arc<Ready>,
    /// Events that are watched for, and the word that is reported with them.
    wanted: Mutex<Event>,
    /// Set while the item is in the ready list.
    queued: AtomicBool,
    /// Set when the item is not the epoll's any more.
    // Release and acquire: a caller that sees it sees that the epoll has forgotten the item. One that does not see it
    // yet enters the item in vain.
    removed: AtomicBool,
    /// Its index among the watchers of its file. Changes under their lock.
    place: AtomicUsize,
}

impl Wake for Item {
    fn wake(self: Arc<Item>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Item>) {
        // A removed item may still be among thousands that are woken one after the other, and the list has no room for
        // it any more.
        if !self.removed.load(Ordering::Acquire) {
            self.ready.push(self);
        }
    }
}

/// The items that may be ready, and the callers that wait for them.
struct Ready(Mutex<List>);

#[derive(Default)]
struct List {
    items: VecDeque<Arc<Item>>,
    waiters: Waiters,
    closed: bool,
}

impl Ready {
    /// Enters an item, unless it is in the list. Allocates nothing: [`Epoll::add`] makes room for each item.
    fn push(&self, item: &Arc<Item>) {
        // AcqRel: the caller of [`pop`](Self::pop) sees the event for which the item was entered.
        if item.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut list = self.0.lock();
        if !list.closed {
            list.items.push_back(item.clone());
            list.waiters.wake_all();
        }
    }

    fn pop(&self) -> Option<Arc<Item>> {
        let item = self.0.lock().items.pop_front()?;
        // Before the look at the file: a later event enters the item again.
        item.queued.store(false, Ordering::Release);
        Some(item)
    }
}

/// An epoll, the object of `epoll_create1`.
#[doc(alias = "eventpoll")]
pub(crate) struct Epoll {
    items: Mutex<Items>,
    ready: Arc<Ready>,
    own: Weak<Epoll>,
    /// Number of the process that made it, and pays for its end.
    owner: u32,
}

struct Items {
    /// A tree, since a hash table would be copied in one piece when it grows.
    entries: BTreeMap<WatchKey, Arc<Item>>,
    charge: Charge,
}

/// Bytes of kernel memory for an item: its own, and its places in the table, in the ready list, among the watchers of
/// its file and in lists of waiters.
const MEMORY_OF_AN_ITEM: usize = size_of::<Item>() + 256;

impl Epoll {
    /// Creates an epoll without items, for a process.
    pub(crate) fn new(caller: &dyn Caller) -> Arc<Epoll> {
        let charge = caller.account().nothing(Resource::Memory);
        Arc::new_cyclic(|own| Epoll {
            items: Mutex::new(Items { entries: BTreeMap::new(), charge }),
            ready: Arc::new(Ready(Mutex::default())),
            own: own.clone(),
            owner: caller.number(),
        })
    }

    /// Performs `EPOLL_CTL_ADD`. The caller has been admitted, so there is memory for a place in the tree.
    fn add(&self, caller: &dyn Caller, descriptor: usize, file: &Arc<OpenFile>, wanted: Event) -> Result<(), Errno> {
        let item = {
            let mut items = self.items.lock();
            let Items { entries, charge } = &mut *items;
            // Each item is in the list once at most, so there is room for all, beside removed items that are still in
            // it.
            let room = entries.len() + 1;
            self.ready.0.lock().items.try_reserve(room).map_err(|_| Errno::ENOMEM)?;
            let Entry::Vacant(place) = entries.entry(key_of(descriptor, file)) else { return Err(Errno::EEXIST) };
            charge.resize(room * MEMORY_OF_AN_ITEM)?;
            let item = Arc::new(Item {
                key: *place.key(),
                file: Arc::downgrade(file),
                epoll: self.own.clone(),
                ready: self.ready.clone(),
                wanted: Mutex::new(wanted),
                queued: AtomicBool::new(false),
                removed: AtomicBool::new(false),
                place: AtomicUsize::new(0),
            });
            if let Err(error) = file.watchers.add(&item) {
                charge.shrink_to((room - 1) * MEMORY_OF_AN_ITEM);
                return Err(error);
            }
            place.insert(item).clone()
        };
        let looked = self.look(caller, &item, file, wanted.events);
        if looked.is_err() {
            self.remove(item.key);
        }
        looked
    }

    /// Performs `EPOLL_CTL_MOD`.
    fn change(&self, caller: &dyn Caller, descriptor: usize, file: &Arc<OpenFile>, wanted: Event) -> Result<(), Errno> {
        let item = self.items.lock().entries.get(&key_of(descriptor, file)).cloned().ok_or(Errno::ENOENT)?;
        *item.wanted.lock() = wanted;
        self.look(caller, &item, file, wanted.events)
    }

    /// Enters an item into the list if its file is ready, and registers it with the file in any case.
    fn look(&self, caller: &dyn Caller, item: &Arc<Item>, file: &OpenFile, events: u32) -> Result<(), Errno> {
        if file.readiness(caller, events, Some(&Waker::from(item.clone())))? != 0 {
            self.ready.push(item);
        }
        Ok(())
    }

    /// Performs `EPOLL_CTL_DEL`, or removes an item whose file goes.
    fn remove(&self, key: WatchKey) -> Option<Arc<Item>> {
        let item = {
            let mut items = self.items.lock();
            let item = items.entries.remove(&key)?;
            let left = items.entries.len() * MEMORY_OF_AN_ITEM;
            items.charge.shrink_to(left);
            item
        };
        item.removed.store(true, Ordering::Release);
        if let Some(file) = item.file.upgrade() {
            item.let_go_of(&file);
        }
        Some(item)
    }

    /// Goes on to look for items that were not told yet, as far as a step goes: enters those into the list whose files
    /// are ready. Edge-triggered items report what they are told, so they are left out.
    fn seek_untold(&self, caller: &dyn Caller, untold: &mut Untold) -> Result<(), Errno> {
        let begin = match untold {
            Untold::Unsought => Bound::Unbounded,
            Untold::SoughtTo(key) => Bound::Excluded(*key),
            Untold::Sought => return Ok(()),
        };
        let items: SmallVec<[Arc<Item>; steps::ENTRIES]> = {
            let items = self.items.lock();
            items.entries.range((begin, Bound::Unbounded)).take(steps::ENTRIES).map(|(_, item)| item.clone()).collect()
        };
        for item in &items {
            let events = item.wanted.lock().events;
            let Some(file) = item.file.upgrade().filter(|_| events & event::ET == 0) else { continue };
            if file.readiness(caller, events, None)? != 0 {
                self.ready.push(item);
            }
        }
        *untold = match items.last() {
            Some(last) if items.len() == steps::ENTRIES => Untold::SoughtTo(last.key),
            _ => Untold::Sought,
        };
        Ok(())
    }

    /// Takes up to `*suspects` items out of the list, at most as many as a step looks at, and looks at their files;
    /// writes the events of ready ones. Counts `*suspects` down.
    fn collect(&self, caller: &dyn Caller, address: usize, most: usize, suspects: &mut usize) -> Result<usize, Errno> {
        let asked = steps::ENTRIES.min(*suspects);
        *suspects -= asked;
        let mut count = 0;
        for _ in 0..asked {
            if count == most {
                break;
            }
            let Some(item) = self.ready.pop() else {
                *suspects = 0;
                break;
            };
            let Some(file) = item.file.upgrade() else { continue };
            if item.removed.load(Ordering::Acquire) {
                continue;
            }
            let wanted = *item.wanted.lock();
            let is_edge = wanted.events & event::ET != 0;
            // A level-triggered item that is ready comes back without the file's help.
            let mut found = if is_edge { 0 } else { file.readiness(caller, wanted.events, None)? };
            if found == 0 {
                found = match file.readiness(caller, wanted.events, Some(&Waker::from(item.clone()))) {
                    Ok(found) => found,
                    Err(error) => {
                        // Without a registration only this enters the item again.
                        self.ready.push(&item);
                        return if count > 0 { Ok(count) } else { Err(error) };
                    }
                };
            }
            if found == 0 {
                continue;
            }
            let bytes = Event { events: found, data: wanted.data }.to_bytes();
            if let Err(error) = caller.copy_out(address + count * Event::SIZE, &bytes) {
                self.ready.push(&item);
                return if count > 0 { Ok(count) } else { Err(error) };
            }
            count += 1;
            if wanted.events & event::ONESHOT != 0 {
                // No more events until it is changed, unless it was changed already.
                let mut now = item.wanted.lock();
                if *now == wanted {
                    now.events &= event::MODES;
                }
            } else if !is_edge {
                self.ready.push(&item);
            }
        }
        Ok(count)
    }
}

impl Item {
    /// Takes the item's registrations out of its file.
    fn let_go_of(self: &Arc<Item>, file: &OpenFile) {
        let waker = Waker::from(self.clone());
        file.object().forget_reader(&waker);
        file.object().forget_writer(&waker);
        file.watchers.remove(self);
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let suspects = {
            let mut list = self.ready.0.lock();
            list.closed = true;
            core::mem::take(&mut list.items)
        };
        let Items { entries, charge } = self.items.get_mut();
        let nothing = charge.account().nothing(Resource::Memory);
        let (entries, charge) = (core::mem::take(entries), core::mem::replace(charge, nothing));
        leave(EpollRegistrations { suspects, entries, _charge: charge, owner: self.owner });
    }
}

/// Registrations of an epoll that has gone.
struct EpollRegistrations {
    suspects: VecDeque<Arc<Item>>,
    entries: BTreeMap<WatchKey, Arc<Item>>,
    _charge: Charge,
    owner: u32,
}

impl Remain for EpollRegistrations {
    fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    fn step(&mut self) -> bool {
        if !self.suspects.is_empty() {
            self.suspects.drain(..self.suspects.len().min(steps::ENTRIES));
            return false;
        }
        for _ in 0..steps::ENTRIES {
            let Some((_, item)) = self.entries.pop_first() else { return true };
            item.removed.store(true, Ordering::Release);
            if let Some(file) = item.file.upgrade() {
                item.let_go_of(&file);
            }
        }
        self.entries.is_empty()
    }
}

/// Registrations of a long list that has gone.
pub(super) struct ListRegistrations {
    /// The entries of the list.
    pub entries: PollEntries,
    /// The waker that is registered with their files.
    pub waker: Option<Waker>,
    /// Number of the process that made the call.
    pub owner: u32,
}

impl Remain for ListRegistrations {
    fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    fn step(&mut self) -> bool {
        forget_some(&mut self.entries, self.waker.as_ref());
        self.entries.is_empty()
    }
}

/// Watchers of a file that has gone, which are still in their epolls. The owners of these pay.
struct OrphanedWatchers(Segments<Weak<Item>>);

impl Remain for OrphanedWatchers {
    fn owner(&self) -> Option<u32> {
        Some(self.0.last()?.upgrade()?.epoll.upgrade()?.owner)
    }

    fn step(&mut self) -> bool {
        for item in (0..steps::ENTRIES).map_while(|_| self.0.pop()).filter_map(|item| item.upgrade()) {
            if let Some(epoll) = item.epoll.upgrade() {
                epoll.remove(item.key);
            }
        }
        self.0.is_empty()
    }
}

/// Watchers of a file before an index, which are to be woken.
struct WatchersToWake {
    file: Weak<OpenFile>,
    before: usize,
    owner: u32,
}

impl Remain for WatchersToWake {
    fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    fn step(&mut self) -> bool {
        // A file that has gone takes its items out of their epolls.
        self.before = self.file.upgrade().map_or(0, |file| file.watchers.wake_some(self.before));
        self.before == 0
    }
}

/// The items that watch an open file. Each knows its index, so that leaving takes as long for one of thousands as for
/// the only one.
#[doc(alias = "wait_queue")]
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Segments<Weak<Item>>>);

impl Watchers {
    fn add(&self, item: &Arc<Item>) -> Result<(), Errno> {
        let mut items = self.0.lock();
        items.reserve(1).map_err(|_| Errno::ENOMEM)?;
        // Relaxed: the lock orders all accesses.
        item.place.store(items.len(), Ordering::Relaxed);
        items.push(Arc::downgrade(item));
        Ok(())
    }

    fn remove(&self, item: &Arc<Item>) {
        let mut items = self.0.lock();
        let place = item.place.load(Ordering::Relaxed);
        if items.get(place).is_some_and(|other| core::ptr::eq(other.as_ptr(), Arc::as_ptr(item))) {
            let _ = items.swap_remove(place);
            // The last one has moved to the place. Its epoll still holds it, and removes it under this lock first.
            if let Some(moved) = items.get(place).and_then(Weak::upgrade) {
                moved.place.store(place, Ordering::Relaxed);
            }
        }
    }

    /// Makes all watchers of a file look again: the file has become another object, with which no item is registered.
    pub(crate) fn wake(file: &Arc<OpenFile>, owner: u32) {
        let before = file.watchers.wake_some(usize::MAX);
        if before > 0 {
            leave(WatchersToWake { file: Arc::downgrade(file), before, owner });
        }
    }

    /// Wakes the last few items before an index; returns the index of the first of them. An item that goes meanwhile
    /// is replaced by the last, which has been woken then, or is before the index too; a new one has just looked.
    fn wake_some(&self, before: usize) -> usize {
        let items = self.0.lock();
        let end = items.len().min(before);
        let begin = end.saturating_sub(steps::ENTRIES);
        for item in (begin..end).rev().filter_map(|place| items.get(place)?.upgrade()) {
            item.wake_by_ref();
        }
        begin
    }

    /// Removes the items from their epolls, in steps: the file goes. Those that are still there have no effect.
    pub(crate) fn close(&mut self) {
        let items = core::mem::take(self.0.get_mut());
        if !items.is_empty() {
            leave(OrphanedWatchers(items));
        }
    }
}

/// Performs the `epoll_ctl` call for the epoll behind `holder` and the file behind a descriptor.
pub(crate) fn control(
    caller: &dyn Caller,
    holder: &Arc<OpenFile>,
    operation: u32,
    (descriptor, file): (usize, &Arc<OpenFile>),
    wanted: Event,
) -> Result<usize, Errno> {
    if !file.can_be_polled() {
        return Err(Errno::EPERM);
    }
    if Arc::ptr_eq(holder, file) {
        return Err(Errno::EINVAL);
    }
    let epoll = of(holder)?;
    if of(file).is_ok() {
        return Err(Errno::ELOOP);
    }
    match operation {
        event::CTL_ADD => epoll.add(caller, descriptor, file, wanted)?,
        event::CTL_MOD if wanted.events & event::EXCLUSIVE != 0 => return Err(Errno::EINVAL),
        event::CTL_MOD => epoll.change(caller, descriptor, file, wanted)?,
        event::CTL_DEL => drop(epoll.remove(key_of(descriptor, file)).ok_or(Errno::ENOENT)?),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Returns the epoll behind a file; `EINVAL` for any other kind.
fn of(file: &OpenFile) -> Result<&Arc<Epoll>, Errno> {
    file.as_kind().ok_or(Errno::EINVAL)
}

impl FileOperations for Arc<Epoll> {
    fn status(&self) -> Status {
        status_of_anonymous()
    }
}

/// An `epoll_pwait`, decoded.
#[doc(alias = "ep_poll")]
pub(crate) struct EpollWait {
    epoll: Arc<Epoll>,
    address: usize,
    most: usize,
    limit: TimeLimit,
    /// Number of items of the list that are still to be looked at in this round.
    suspects: usize,
    untold: Untold,
}

/// State of a wait's search for items that are ready and were not told yet.
enum Untold {
    Unsought,
    /// All items up to this one were looked at.
    SoughtTo(WatchKey),
    Sought,
}

impl EpollWait {
    /// Creates a wait for the epoll behind this file.
    // Inlined: its first caller is in the dispatcher.
    #[inline(always)]
    pub(crate) fn new(file: &OpenFile, address: usize, most: usize, limit: TimeLimit) -> Result<EpollWait, Errno> {
        if !(1..=i32::MAX as usize / Event::SIZE).contains(&most) {
            return Err(Errno::EINVAL);
        }
        UserBuffer::new(address, most * Event::SIZE)?;
        let epoll = of(file)?.clone();
        Ok(EpollWait { epoll, address, most, limit, suspects: 0, untold: Untold::Unsought })
    }

    /// Does one step.
    pub(crate) fn poll(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Attempt {
        let epoll = &self.epoll;
        // The first step was the attempt in place.
        let has_begun = self.suspects > 0 || matches!(self.untold, Untold::SoughtTo(_));
        if has_begun && waker.is_some() && steps::must_pause(caller, waker) {
            return Poll::Pending;
        }
        loop {
            if self.suspects == 0 {
                // Items that come back during the round are for the next one.
                self.suspects = epoll.ready.0.lock().items.len();
            }
            loop {
                let count = epoll.collect(caller, self.address, self.most, &mut self.suspects)?;
                if count > 0 {
                    return Poll::Ready(Ok(count));
                }
                if self.suspects == 0 {
                    break;
                }
                if steps::must_pause(caller, waker) {
                    return Poll::Pending;
                }
            }
            if !self.limit.has_passed() {
                break;
            }
            match self.untold {
                Untold::Sought => return Poll::Ready(Ok(0)),
                Untold::Unsought if !deferred_wakes::are_pending() => return Poll::Ready(Ok(0)),
                _ => epoll.seek_untold(caller, &mut self.untold)?,
            }
            if matches!(self.untold, Untold::SoughtTo(_)) && steps::must_pause(caller, waker) {
                return Poll::Pending;
            }
        }
        let Some(waker) = waker else { return Poll::Pending };
        self.limit.arm(waker)?;
        let mut list = epoll.ready.0.lock();
        list.waiters.register(waker).map_err(|_| Errno::ENOMEM)?;
        if !list.items.is_empty() {
            // An event came after the look.
            waker.wake_by_ref();
        }
        Poll::Pending
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&mut self, waker: &Waker) {
        self.epoll.ready.0.lock().waiters.forget(waker);
        self.limit.clear();
    }
}

/// Converts a time limit in milliseconds; a negative one is none.
pub(crate) fn limit_of_ms(timeout_ms: i32) -> TimeLimit {
    match u64::try_from(timeout_ms) {
        Ok(0) => TimeLimit::At(0),
        Ok(ms) => TimeLimit::after_ns(ms * 1_000_000),
        Err(_) => TimeLimit::Never,
    }
}

/// Events, and the file; `None` for a descriptor that is negative (no events) or closed.
pub(super) type PollEntry = (u32, Option<Arc<OpenFile>>);

/// The entries of a list, in pieces of [`steps::ENTRIES`], so that no large block has to be made or moved. The only
/// piece of a short list needs no memory beside its own.
#[derive(Default)]
pub(super) struct PollEntries {
    first: Option<Vec<PollEntry>>,
    others: Segments<Vec<PollEntry>>,
    /// Charge for those behind the first [`UNCHARGED`] entries.
    charge: Option<Charge>,
}

impl PollEntries {
    /// Returns the number of pieces.
    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds a piece. `ENOMEM`.
    pub(super) fn push(&mut self, caller: &dyn Caller, piece: Vec<PollEntry>) -> Result<(), Errno> {
        if self.first.is_none() {
            self.first = Some(piece);
            return Ok(());
        }
        if self.len() >= UNCHARGED / steps::ENTRIES {
            self.charge_for(caller, &piece)?;
        }
        self.others.reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.others.push(piece);
        Ok(())
    }

    #[cold]
    fn charge_for(&mut self, caller: &dyn Caller, piece: &Vec<PollEntry>) -> Result<(), Errno> {
        let account = caller.account();
        account.admit()?;
        let more = size_of_val(piece) + piece.capacity() * size_of::<PollEntry>();
        let charge = self.charge.get_or_insert_with(|| account.nothing(Resource::Memory));
        charge.resize(charge.amount() + more)
    }

    fn get_mut(&mut self, piece: usize) -> Option<&mut Vec<PollEntry>> {
        match piece.checked_sub(1) {
            None => self.first.as_mut(),
            Some(other) => self.others.get_mut(other),
        }
    }

    fn last(&self) -> Option<&Vec<PollEntry>> {
        self.others.last().or(self.first.as_ref())
    }

    fn pop(&mut self) -> Option<Vec<PollEntry>> {
        self.others.pop().or_else(|| self.first.take())
    }
}

#[cfg(test)]
impl FromIterator<Vec<PollEntry>> for PollEntries {
    fn from_iter<I: IntoIterator<Item = Vec<PollEntry>>>(pieces: I) -> PollEntries {
        let mut pieces = pieces.into_iter();
        let mut entries = PollEntries { first: pieces.next(), ..PollEntries::default() };
        for piece in pieces {
            entries.others.reserve(1).unwrap();
            entries.others.push(piece);
        }
        entries
    }
}

/// Waker that is registered for a list of more than one step: it tells the events that come during a look from the
/// wake-ups of the steps themselves.
struct ListBell {
    rung: AtomicBool,
    waker: Waker,
}

impl Wake for ListBell {
    fn wake(self: Arc<ListBell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<ListBell>) {
        // Release: pairs with the acquire after the last step, which then sees the event for which the bell was rung.
        self.rung.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }
}

/// Result of one step of a look at a list.
enum ListLook {
    /// There are more entries, or there is a result.
    GoesOn,
    /// All entries were looked at; the call can only wait.
    FoundNothing,
}

/// The form of a list in the caller's memory.
#[derive(Clone, Copy)]
enum ListForm {
    /// Entries of `struct pollfd` from this address on.
    Entries(usize),
    /// Sets of bits at these addresses (0: an empty set): the descriptors of which it matters whether they can be read,
    /// can be written, or have an exceptional condition. The entry of a descriptor has its index. Events that were
    /// found are kept in the entry, above those that are waited for, and become bits at the end.
    Sets([usize; 3]),
}

/// The events for which a descriptor is put into each set of `pselect6`, and those that make it ready.
const SET_EVENTS: [(u32, u32); 3] = [
    (event::IN, event::IN | event::RDNORM | event::HUP | event::ERR),
    (event::OUT, event::OUT | event::WRNORM | event::ERR),
    (event::PRI, event::PRI),
];

/// Position of the found events in an entry of a list of sets.
const FOUND_SHIFT: u32 = 16;

/// Returns the sets of which an entry with wanted and found events is a part at the end.
fn sets_of(entry: u32) -> [bool; 3] {
    let found = entry >> FOUND_SHIFT;
    SET_EVENTS.map(|(wanted, ready)| entry & wanted != 0 && found & ready != 0)
}

/// A `ppoll` or a `pselect6`, decoded.
#[doc(alias = "do_sys_poll")]
#[doc(alias = "do_select")]
#[doc(alias = "poll_table")]
pub(crate) struct PollFiles {
    form: ListForm,
    /// Number of entries of the list.
    count: usize,
    /// The entries that were read so far.
    entries: PollEntries,
    limit: TimeLimit,
    /// The piece with which a look goes on; `ready` is the number of entries before it that are ready.
    at: usize,
    ready: usize,
    /// Set if all entries before it are registered, unless one was ready.
    are_registered: bool,
    bell: Option<Arc<ListBell>>,
    /// Number of the process that made the call.
    owner: u32,
    /// The result, while registrations are taken back.
    result: Option<Result<usize, Errno>>,
}

/// Entries of a list for which nobody is charged: as many as a process has descriptors unless it wants more.
const UNCHARGED: usize = 16384;

/// Entries of the longest list that fits into the memory kept for each worker's wait.
pub(crate) const SHORT_LIST: usize = 16;

/// Size of `struct pollfd`: descriptor, events, and the events found.
const POLL_ENTRY: usize = 8;

impl PollFiles {
    /// Begins to read the list of a process. A long list is read in steps. `EINVAL` for more entries than the process
    /// may have descriptors, as on Linux.
    pub(crate) fn read(
        caller: &dyn Caller,
        descriptors: &Mutex<Descriptors>,
        address: usize,
        count: usize,
        limit: TimeLimit,
    ) -> Result<PollFiles, Errno> {
        if count > caller.account().descriptors() {
            return Err(Errno::EINVAL);
        }
        UserBuffer::new(address, count * POLL_ENTRY)?;
        PollFiles::begin(caller, descriptors, ListForm::Entries(address), count, limit)
    }

    /// Begins to read the sets of a process, of which the first `count` bits matter.
    pub(crate) fn read_sets(
        caller: &dyn Caller,
        descriptors: &Mutex<Descriptors>,
        sets: [usize; 3],
        count: usize,
        limit: TimeLimit,
    ) -> Result<PollFiles, Errno> {
        for set in sets {
            UserBuffer::new(set, count.div_ceil(8))?;
        }
        PollFiles::begin(caller, descriptors, ListForm::Sets(sets), count, limit)
    }

    fn begin(
        caller: &dyn Caller,
        descriptors: &Mutex<Descriptors>,
        form: ListForm,
        count: usize,
        limit: TimeLimit,
    ) -> Result<PollFiles, Errno> {
        let entries = PollEntries::default();
        let (at, ready, are_registered, owner) = (0, 0, true, caller.number());
        let mut list =
            PollFiles { form, count, entries, limit, at, ready, are_registered, bell: None, owner, result: None };
        if !list.is_long() {
            list.read_some(caller, descriptors)?;
        }
        Ok(list)
    }

    /// Reads on for one step.
    fn read_some(&mut self, caller: &dyn Caller, descriptors: &Mutex<Descriptors>) -> Result<(), Errno> {
        let begin = self.entries.len() * steps::ENTRIES;
        let end = self.count.min(begin + steps::ENTRIES);
        let mut piece = Vec::new();
        match self.form {
            ListForm::Entries(address) => {
                piece.try_reserve_exact(end - begin).map_err(|_| Errno::ENOMEM)?;
                for index in begin..end {
                    let mut bytes = [0; POLL_ENTRY];
                    caller.copy_in(address + index * POLL_ENTRY, &mut bytes)?;
                    let descriptor = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                    let events = u32::from(u16::from_le_bytes([bytes[4], bytes[5]]));
                    piece.push(match usize::try_from(descriptor) {
                        Err(_) => (0, None),
                        Ok(descriptor) => {
                            let file = descriptors.lock().get(descriptor).ok().cloned();
                            (events | event::ERR | event::HUP, file)
                        }
                    });
                }
            }
            ListForm::Sets(sets) => {
                let bits = read_bits(caller, sets, begin, end)?;
                // A piece of none is empty: sets of many descriptors have few.
                let has_some = bits != [0; 3];
                let wanted = if has_some { begin..end } else { begin..begin };
                piece.try_reserve_exact(wanted.len()).map_err(|_| Errno::ENOMEM)?;
                for descriptor in wanted {
                    let mut wanted = 0;
                    for (bits, (events, _)) in bits.iter().zip(SET_EVENTS) {
                        wanted |= if bits >> (descriptor - begin) & 1 != 0 { events } else { 0 };
                    }
                    if wanted & event::IN != 0 {
                        wanted |= event::RDNORM;
                    }
                    if wanted & event::OUT != 0 {
                        wanted |= event::WRNORM;
                    }
                    piece.push(match wanted {
                        0 => (0, None),
                        _ => {
                            let file = descriptors.lock().get(descriptor)?.clone();
                            (wanted | event::ERR | event::HUP, Some(file))
                        }
                    });
                }
            }
        }
        self.entries.push(caller, piece)
    }

    fn pieces(&self) -> usize {
        self.count.div_ceil(steps::ENTRIES)
    }

    fn is_long(&self) -> bool {
        self.count > steps::ENTRIES
    }

    /// Goes on as far as possible.
    pub(crate) fn poll(
        &mut self,
        caller: &dyn Caller,
        descriptors: &Mutex<Descriptors>,
        waker: Option<&Waker>,
    ) -> Attempt {
        // The first step was the attempt in place.
        if self.is_long() && waker.is_some() && steps::must_pause(caller, waker) {
            return Poll::Pending;
        }
        loop {
            if let Some(result) = self.result {
                if let (Ok(_), ListForm::Sets(sets)) = (result, self.form)
                    && let Err(error) = write_bits(caller, sets, &self.entries, self.count)
                {
                    self.result = Some(Err(error));
                    continue;
                }
                if self.is_long() {
                    forget_some(&mut self.entries, self.bell.clone().map(Waker::from).as_ref());
                }
                if !self.is_long() || self.entries.is_empty() {
                    return Poll::Ready(result);
                }
            } else if self.entries.len() < self.pieces() {
                if let Err(error) = self.read_some(caller, descriptors) {
                    self.result = Some(Err(error));
                }
            } else {
                match self.look(caller, waker) {
                    Ok(ListLook::FoundNothing) => {
                        self.begin_anew();
                        return Poll::Pending;
                    }
                    Ok(ListLook::GoesOn) => {}
                    // There is no memory to register with the rest: the look begins anew.
                    Err(Errno::ENOMEM) => {
                        self.begin_anew();
                        self.are_registered = false;
                        return Poll::Ready(Err(Errno::ENOMEM));
                    }
                    Err(error) => self.result = Some(Err(error)),
                }
                if !self.is_long() {
                    continue;
                }
            }
            if steps::must_pause(caller, waker) {
                return Poll::Pending;
            }
        }
    }

    fn begin_anew(&mut self) {
        (self.at, self.ready) = (0, 0);
    }

    /// Looks at as many files as a step allows. After the last one there is a result if some are ready.
    fn look(&mut self, caller: &dyn Caller, waker: Option<&Waker>) -> Result<ListLook, Errno> {
        if self.ready == 0 && !self.are_registered && waker.is_some() {
            self.begin_anew();
        }
        if self.at == 0 {
            self.are_registered = true;
            if let Some(bell) = &self.bell {
                bell.rung.store(false, Ordering::Relaxed);
            }
        }
        if let (true, None, Some(waker)) = (self.is_long(), &self.bell, waker) {
            // A worker has memory for the bell, which was kept free, and an asynchronous call was admitted before this
            // poll.
            let bell = ListBell { rung: AtomicBool::new(false), waker: waker.clone() };
            self.bell = Some(memory::faults::from_what_is_kept(|| Arc::new(bell)));
        }
        let bell = self.bell.clone().filter(|_| waker.is_some()).map(Waker::from);
        let registered = bell.as_ref().or(waker);
        let first = self.at * steps::ENTRIES;
        for (index, (entry, file)) in (first..).zip(self.entries.get_mut(self.at).into_iter().flatten()) {
            let events = &(*entry & ((1 << FOUND_SHIFT) - 1));
            let waker = if self.ready == 0 { registered } else { None };
            self.are_registered &= waker.is_some();
            let found = match file {
                Some(file) if file.can_be_polled() => file.readiness(caller, *events, waker)?,
                // As on Linux, files without readiness are always ready.
                Some(_) => events & (event::IN | event::OUT | event::RDNORM | event::WRNORM),
                None if *events == 0 => 0,
                None => event::NVAL,
            };
            match self.form {
                ListForm::Entries(address) => {
                    self.ready += usize::from(found != 0);
                    caller.copy_out(address + index * POLL_ENTRY + 6, &(found as u16).to_le_bytes())?;
                }
                ListForm::Sets(_) => {
                    *entry = *events | ((found & ((1 << FOUND_SHIFT) - 1)) << FOUND_SHIFT);
                    self.ready += sets_of(*entry).into_iter().filter(|is_part| *is_part).count();
                }
            }
        }
        self.at += 1;
        if self.at < self.pieces() {
            return Ok(ListLook::GoesOn);
        }
        if self.ready > 0 || self.limit.has_passed() {
            self.result = Some(Ok(self.ready));
            return Ok(ListLook::GoesOn);
        }
        let Some(waker) = waker else { return Ok(ListLook::FoundNothing) };
        // Acquire: pairs with the release of the bell.
        if self.bell.as_ref().is_some_and(|bell| bell.rung.swap(false, Ordering::Acquire)) {
            self.begin_anew();
            return Ok(ListLook::GoesOn);
        }
        self.limit.arm(waker)?;
        Ok(ListLook::FoundNothing)
    }

    /// Takes back the registrations of [`poll`](Self::poll). For a long list, dropping this does so.
    pub(crate) fn forget(&mut self, waker: &Waker) {
        if !self.is_long() {
            forget_some(&mut self.entries, Some(waker));
        }
        self.limit.clear();
    }
}

impl Drop for PollFiles {
    fn drop(&mut self) {
        if self.is_long() {
            let entries = core::mem::take(&mut self.entries);
            leave(ListRegistrations { entries, waker: self.bell.take().map(Waker::from), owner: self.owner });
        }
    }
}

/// Reads the bits of some descriptors in each of the sets; the first descriptor is a multiple of eight.
fn read_bits(caller: &dyn Caller, sets: [usize; 3], begin: usize, end: usize) -> Result<[u32; 3], Errno> {
    const { assert!(steps::ENTRIES <= 32 && steps::ENTRIES.is_multiple_of(8)) };
    let mut bits = [0; 3];
    for (bits, set) in bits.iter_mut().zip(sets).filter(|(_, set)| *set != 0) {
        let mut bytes = [0; 4];
        caller.copy_in(set + begin / 8, &mut bytes[..(end - begin).div_ceil(8)])?;
        *bits = u32::from_le_bytes(bytes);
    }
    Ok(bits)
}

/// Writes the bits of the last piece of entries, which are to be forgotten then.
fn write_bits(caller: &dyn Caller, sets: [usize; 3], entries: &PollEntries, count: usize) -> Result<(), Errno> {
    // The bits of an empty piece are none, as they were.
    let Some(piece) = entries.last().filter(|piece| !piece.is_empty()) else { return Ok(()) };
    let begin = (entries.len() - 1) * steps::ENTRIES;
    let mut bits = [0u32; 3];
    for (place, (entry, _)) in piece.iter().enumerate() {
        for (bits, is_part) in bits.iter_mut().zip(sets_of(*entry)) {
            *bits |= u32::from(is_part) << place;
        }
    }
    for (bits, set) in bits.into_iter().zip(sets).filter(|(_, set)| *set != 0) {
        let bytes = bits.to_le_bytes();
        caller.copy_out(set + begin / 8, &bytes[..piece.len().min(count - begin).div_ceil(8)])?;
    }
    Ok(())
}

/// Takes the last piece of some entries out, and its registrations back.
fn forget_some(entries: &mut PollEntries, waker: Option<&Waker>) {
    for (_, file) in entries.pop().into_iter().flatten() {
        if let (Some(file), Some(waker)) = (file, waker) {
            file.object().forget_reader(waker);
            file.object().forget_writer(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use abi_unix::types::{TimeSpec, control, open};
    use abi_unix::{Counter, SystemCall};
    use proptest::prelude::*;

    use super::*;
    use crate::files::remains;
    use crate::observing::counters;
    use crate::testing::{Program, run};

    const PAIRS: usize = 3;

    fn epoll(program: &mut Program) -> usize {
        program.call(SystemCall::EpollCreate, [0]).unwrap()
    }

    fn change(program: &mut Program, epoll: usize, operation: u32, file: usize, events: u32) -> Result<usize, Errno> {
        let event = program.store(&Event { events, data: file as u64 + 1000 }.to_bytes());
        program.call(SystemCall::EpollControl, [epoll, operation as usize, file, event])
    }

    /// Returns the events that come without waiting, by descriptor.
    fn events(program: &mut Program, epoll: usize, most: usize) -> Vec<(usize, u32)> {
        events_within(program, epoll, most, 0)
    }

    fn events_within(program: &mut Program, epoll: usize, most: usize, timeout_ms: i32) -> Vec<(usize, u32)> {
        let place = program.place(16 * most);
        let count = program.call(SystemCall::EpollWait, [epoll, place, most, timeout_ms as usize, 0, 0]).unwrap();
        let found = program.read(place, 16 * count);
        let (found, _) = found.as_chunks();
        found
            .iter()
            .map(|&bytes| Event::from_bytes(bytes))
            .map(|event| (event.data as usize - 1000, event.events))
            .collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Watch(usize, bool, u32),
        Change(usize, bool, u32),
        Forget(usize, bool),
        Write(usize),
        Drain(usize),
        Wait(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let events =
            || prop::sample::select(vec![event::IN, event::OUT, event::IN | event::OUT, 0, event::IN | event::ONESHOT]);
        prop_oneof![
            2 => (0..PAIRS, any::<bool>(), events()).prop_map(|(pipe, end, events)| Step::Watch(pipe, end, events)),
            1 => (0..PAIRS, any::<bool>(), events()).prop_map(|(pipe, end, events)| Step::Change(pipe, end, events)),
            1 => (0..PAIRS, any::<bool>()).prop_map(|(pipe, end)| Step::Forget(pipe, end)),
            3 => (0..PAIRS).prop_map(Step::Write),
            2 => (0..PAIRS).prop_map(Step::Drain),
            4 => (1..4usize).prop_map(Step::Wait),
        ]
    }

    /// Compares with a model: level-triggered watches report exactly the present state, and a one-shot watch is silent
    /// after it was reported.
    fn compare(program: &mut Program, steps: &[Step]) {
        let watching = epoll(program);
        let pipes: Vec<_> = (0..PAIRS).map(|_| program.pipe(open::NONBLOCK)).collect();
        let end_of = |pipe: usize, writes: bool| if writes { pipes[pipe].1 } else { pipes[pipe].0 };
        let mut model: BTreeMap<usize, u32> = BTreeMap::new();
        let mut full = [0usize; PAIRS];
        for step in steps {
            match *step {
                Step::Watch(pipe, writes, events) => {
                    let file = end_of(pipe, writes);
                    let expected = if model.contains_key(&file) { Err(Errno::EEXIST) } else { Ok(0) };
                    assert_eq!(change(program, watching, event::CTL_ADD, file, events), expected);
                    model.entry(file).or_insert(events);
                }
                Step::Change(pipe, writes, events) => {
                    let file = end_of(pipe, writes);
                    let expected = if model.contains_key(&file) { Ok(0) } else { Err(Errno::ENOENT) };
                    assert_eq!(change(program, watching, event::CTL_MOD, file, events), expected);
                    model.entry(file).and_modify(|wanted| *wanted = events);
                }
                Step::Forget(pipe, writes) => {
                    let file = end_of(pipe, writes);
                    let expected = model.remove(&file).map_or(Err(Errno::ENOENT), |_| Ok(0));
                    assert_eq!(change(program, watching, event::CTL_DEL, file, 0), expected);
                }
                Step::Write(pipe) => {
                    // A write that may not wait is short when an interrupt comes.
                    match program.write_to(pipes[pipe].1, &[0; 30_000]) {
                        Ok(written) => full[pipe] += written,
                        Err(error) => assert_eq!((error, full[pipe]), (Errno::EAGAIN, 65536)),
                    }
                }
                Step::Drain(pipe) => {
                    let mut left = full[pipe];
                    while left > 0 {
                        left -= program.read_from(pipes[pipe].0, 40_000).unwrap().len();
                    }
                    full[pipe] = 0;
                }
                Step::Wait(most) => {
                    let mut expected = BTreeMap::new();
                    for (&(reader, writer), &full) in pipes.iter().zip(&full) {
                        let so = |file: usize, found: u32| {
                            model.get(&file).map(|wanted| (file, wanted & found)).filter(|(_, found)| *found != 0)
                        };
                        expected.extend(so(reader, if full > 0 { event::IN } else { 0 }));
                        expected.extend(so(writer, if 65536 - full >= 4096 { event::OUT } else { 0 }));
                    }
                    let found = events(program, watching, most);
                    assert_eq!(found.len(), expected.len().min(most), "{found:?} of {expected:?}");
                    for (file, events) in found {
                        assert_eq!(expected.remove(&file), Some(events), "descriptor {file}");
                        let wanted = model.get_mut(&file).unwrap();
                        if *wanted & event::ONESHOT != 0 {
                            *wanted = 0;
                        }
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(property::cases(48))]

        #[test]
        fn level_triggered_watches_report_the_present_state(steps in prop::collection::vec(step(), 0..50)) {
            run(move |program| compare(program, &steps));
        }
    }

    #[test]
    fn an_edge_is_reported_once_and_a_level_until_it_is_gone() {
        run(|program| {
            let (edges, levels) = (epoll(program), epoll(program));
            let (reader, writer) = program.pipe(0);
            change(program, edges, event::CTL_ADD, reader, event::IN | event::ET).unwrap();
            change(program, levels, event::CTL_ADD, reader, event::IN).unwrap();
            assert_eq!(events(program, edges, 4), []);
            program.write_to(writer, b"one").unwrap();
            assert_eq!(events(program, edges, 4), [(reader, event::IN)]);
            assert_eq!(events(program, edges, 4), [], "nothing new has come");
            for _ in 0..2 {
                assert_eq!(events(program, levels, 4), [(reader, event::IN)]);
            }
            program.write_to(writer, b"two").unwrap();
            assert_eq!(events(program, edges, 4), [(reader, event::IN)], "more has come");
            // Bytes that are there already are an edge for a watch that is new or changed.
            change(program, edges, event::CTL_MOD, reader, event::IN | event::ET).unwrap();
            assert_eq!(events(program, edges, 4), [(reader, event::IN)]);
            program.read_from(reader, 100).unwrap();
            assert_eq!(events(program, levels, 4), []);
        });
    }

    #[test]
    fn a_one_shot_watch_is_silent_until_it_is_changed() {
        run(|program| {
            let watching = epoll(program);
            let (reader, writer) = program.pipe(0);
            change(program, watching, event::CTL_ADD, reader, event::IN | event::ONESHOT).unwrap();
            program.write_to(writer, b"one").unwrap();
            assert_eq!(events(program, watching, 4), [(reader, event::IN)]);
            program.write_to(writer, b"two").unwrap();
            assert_eq!(events(program, watching, 4), []);
            // Not even the end is reported.
            program.close(writer).unwrap();
            assert_eq!(events(program, watching, 4), []);
            change(program, watching, event::CTL_MOD, reader, event::IN | event::ONESHOT).unwrap();
            assert_eq!(events(program, watching, 4), [(reader, event::IN | event::HUP)]);
        });
    }

    #[test]
    fn ends_are_told_without_being_asked_for() {
        run(|program| {
            let watching = epoll(program);
            let (reader, writer) = program.pipe(0);
            let (other_reader, other_writer) = program.pipe(0);
            change(program, watching, event::CTL_ADD, reader, 0).unwrap();
            change(program, watching, event::CTL_ADD, other_writer, 0).unwrap();
            assert_eq!(events(program, watching, 4), []);
            program.close(writer).unwrap();
            program.close(other_reader).unwrap();
            let mut found = events(program, watching, 4);
            found.sort();
            assert_eq!(found, [(reader, event::HUP), (other_writer, event::ERR)]);
        });
    }

    #[test]
    fn a_waiter_is_woken_by_an_event_by_a_new_watch_and_by_the_time_limit() {
        run(|program| {
            let watching = epoll(program);
            let (reader, writer) = program.pipe(0);
            assert_eq!(events_within(program, watching, 4, 5), []);
            let (ready, later) = program.pipe(0);
            program.write_to(later, b"x").unwrap();
            program
                .add_worker(move |program| {
                    program.sleep_ns(1_000_000);
                    change(program, watching, event::CTL_ADD, reader, event::IN).unwrap();
                    program.sleep_ns(1_000_000);
                    program.write_to(writer, b"x").unwrap();
                    program.sleep_ns(1_000_000);
                    change(program, watching, event::CTL_DEL, reader, 0).unwrap();
                    change(program, watching, event::CTL_ADD, ready, event::IN).unwrap();
                })
                .unwrap();
            assert_eq!(events_within(program, watching, 4, -1), [(reader, event::IN)]);
            program.read_from(reader, 1).unwrap();
            assert_eq!(events_within(program, watching, 4, -1), [(ready, event::IN)]);
        });
    }

    #[test]
    fn a_watch_ends_with_the_last_descriptor_of_its_file() {
        run(|program| {
            let watching = epoll(program);
            let (reader, writer) = program.pipe(0);
            let second = program.call(SystemCall::Duplicate, [reader]).unwrap();
            change(program, watching, event::CTL_ADD, reader, event::IN).unwrap();
            assert_eq!(change(program, watching, event::CTL_ADD, second, event::IN), Ok(0), "another descriptor");
            program.write_to(writer, b"x").unwrap();
            program.close(reader).unwrap();
            // As on Linux, the file is watched under the number that is closed, too.
            assert_eq!(events(program, watching, 4), [(reader, event::IN), (second, event::IN)]);
            program.close(second).unwrap();
            assert_eq!(events(program, watching, 4), []);
            let (reader, _) = program.pipe(0);
            assert_eq!(change(program, watching, event::CTL_ADD, reader, event::IN), Ok(0), "the number is free again");
        });
    }

    #[test]
    fn regular_files_and_other_epolls_are_refused() {
        run(|program| {
            let (watching, other) = (epoll(program), epoll(program));
            let (reader, _) = program.pipe(0);
            let path = program.store(b"/bin/test\0");
            let file = program.call(SystemCall::Open, [usize::MAX, path, 0, 0]).unwrap();
            assert_eq!(change(program, watching, event::CTL_ADD, file, event::IN), Err(Errno::EPERM));
            assert_eq!(change(program, watching, event::CTL_ADD, watching, event::IN), Err(Errno::EINVAL));
            assert_eq!(change(program, watching, event::CTL_ADD, other, event::IN), Err(Errno::ELOOP));
            assert_eq!(change(program, reader, event::CTL_ADD, reader, event::IN), Err(Errno::EINVAL));
            assert_eq!(change(program, watching, event::CTL_ADD, 77, event::IN), Err(Errno::EBADF));
            assert_eq!(change(program, watching, 9, reader, event::IN), Err(Errno::EINVAL));
            assert_eq!(change(program, watching, event::CTL_MOD, reader, event::EXCLUSIVE), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::EpollControl, [watching, 1, reader, 0x1000]), Err(Errno::EFAULT));
            for count in [0, usize::MAX] {
                assert_eq!(program.call(SystemCall::EpollWait, [watching, 0x2_0000, count, 0]), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::EpollWait, [reader, 0x2_0000, 1, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::EpollCreate, [1]), Err(Errno::EINVAL));
        });
    }

    /// An event that cannot be written is not lost.
    #[test]
    fn a_bad_address_loses_no_event() {
        run(|program| {
            let watching = epoll(program);
            let (reader, writer) = program.pipe(0);
            change(program, watching, event::CTL_ADD, reader, event::IN | event::ET).unwrap();
            program.write_to(writer, b"x").unwrap();
            assert_eq!(program.call(SystemCall::EpollWait, [watching, 0x1000, 1, 0]), Err(Errno::EFAULT));
            assert_eq!(events(program, watching, 1), [(reader, event::IN)]);
        });
    }

    /// Every watch has a turn although there is room for one event only.
    #[test]
    fn watches_that_are_ready_take_turns() {
        run(|program| {
            let watching = epoll(program);
            let pipes: Vec<_> = (0..4).map(|_| program.pipe(0)).collect();
            for &(reader, writer) in &pipes {
                change(program, watching, event::CTL_ADD, reader, event::IN).unwrap();
                program.write_to(writer, b"x").unwrap();
            }
            let mut seen: Vec<_> = (0..4).flat_map(|_| events(program, watching, 1)).collect();
            seen.sort();
            assert_eq!(seen, pipes.iter().map(|&(reader, _)| (reader, event::IN)).collect::<Vec<_>>());
        });
    }

    /// More watches than one step looks at, also when the epoll is closed: their registrations are taken back in steps.
    #[test]
    fn hundreds_of_watches_come_and_go() {
        run(|program| {
            let watching = epoll(program);
            let (reader, writer) = program.pipe(0);
            let mut copies: Vec<_> = (0..600).map(|_| program.call(SystemCall::Duplicate, [reader]).unwrap()).collect();
            for &copy in &copies {
                let event = 0x2_0000;
                program.write(event, &Event { events: event::IN, data: copy as u64 + 1000 }.to_bytes());
                program.call(SystemCall::EpollControl, [watching, event::CTL_ADD as usize, copy, event]).unwrap();
            }
            assert_eq!(events(program, watching, 1), []);
            program.write_to(writer, b"x").unwrap();
            // So many are woken in portions.
            program.sleep_ns(1_000_000);
            let mut found = Vec::new();
            for _ in 0..100 {
                found.extend(events(program, watching, 64).iter().map(|(file, _)| *file));
                found.sort();
                found.dedup();
            }
            copies.sort();
            assert_eq!(found, copies);
            program.close(watching).unwrap();
            while remains::free_some() {}
            assert!(!remains::has_left());
        });
    }

    /// A wait that does not wait finds an event although so many wait for it that its item is told later.
    #[test]
    fn an_event_with_many_waiters_is_found_at_once() {
        run(|program| {
            let (others, watching) = (epoll(program), epoll(program));
            let (reader, writer) = program.pipe(0);
            for _ in 0..100 {
                let copy = program.call(SystemCall::Duplicate, [reader]).unwrap();
                let event = 0x2_0000;
                program.write(event, &Event { events: event::IN, data: 1 }.to_bytes());
                program.call(SystemCall::EpollControl, [others, event::CTL_ADD as usize, copy, event]).unwrap();
            }
            change(program, watching, event::CTL_ADD, reader, event::IN).unwrap();
            assert_eq!(events(program, watching, 4), []);
            program.write_to(writer, b"x").unwrap();
            assert!(deferred_wakes::are_pending());
            assert_eq!(events(program, watching, 4), [(reader, event::IN)]);
            program.sleep_ns(1_000_000);
            assert!(!deferred_wakes::are_pending());
            assert_eq!(events(program, watching, 4), [(reader, event::IN)]);
        });
    }

    /// As above, by an epoll with far more items than one step looks at, of which the last one is ready.
    #[test]
    fn an_event_with_many_waiters_is_found_at_once_among_hundreds_of_watches() {
        run(|program| {
            let (others, watching) = (epoll(program), epoll(program));
            let (quiet, _keeper) = program.pipe(0);
            let (reader, writer) = program.pipe(0);
            let watch = |program: &mut Program, watching, file| {
                let copy = program.call(SystemCall::Duplicate, [file]).unwrap();
                assert_eq!(change(program, watching, event::CTL_ADD, copy, event::IN), Ok(0));
                copy
            };
            for _ in 0..100 {
                watch(program, others, reader);
                watch(program, watching, quiet);
                watch(program, watching, quiet);
            }
            let last = watch(program, watching, reader);
            assert_eq!(events(program, watching, 4), []);
            // The next calls are in one slice.
            program.sleep_ns(1_000_000);
            program.write_to(writer, b"x").unwrap();
            assert!(deferred_wakes::are_pending());
            let looks = counters::read(Counter::Looks);
            assert_eq!(events(program, watching, 4), [(last, event::IN)]);
            let looks = counters::read(Counter::Looks) - looks;
            assert!(looks >= 200 / steps::ENTRIES as u64, "{looks} looks: it goes in steps");
        });
    }

    fn poll(program: &mut Program, list: &[(i32, u32)], timeout: Option<u64>) -> (Result<usize, Errno>, Vec<u32>) {
        let bytes: Vec<u8> = list
            .iter()
            .flat_map(|(file, events)| [file.to_le_bytes(), (events | 0xabcd_0000).to_le_bytes()].concat())
            .collect();
        let place = program.store(&bytes);
        let timeout = timeout.map_or(0, |ns| program.store(&TimeSpec::from_ns(ns).to_bytes()));
        let result = program.call(SystemCall::Poll, [place, list.len(), timeout, 0, 0]);
        let found = (0..list.len()).map(|index| program.read_u32(place + 8 * index + 4) >> 16).collect();
        (result, found)
    }

    #[test]
    fn poll_reports_every_descriptor_of_its_list() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let path = program.store(b"/bin/test\0");
            let stored = program.call(SystemCall::Open, [usize::MAX, path, 0, 0]).unwrap();
            let list = [
                (reader as i32, event::IN),
                (writer as i32, event::IN | event::OUT),
                (-5, event::IN),
                (99, event::IN),
                (stored as i32, event::IN),
                (reader as i32, 0),
            ];
            let (result, found) = poll(program, &list, None);
            assert_eq!((result, found), (Ok(3), vec![0, event::OUT, 0, event::NVAL, event::IN, 0]));
            assert_eq!(poll(program, &list[..1], Some(0)), (Ok(0), vec![0]));
            assert_eq!(poll(program, &list[..1], Some(1_000_000)), (Ok(0), vec![0]));
            program
                .add_worker(move |program| {
                    program.sleep_ns(1_000_000);
                    program.write_to(writer, b"x").unwrap();
                    program.sleep_ns(1_000_000);
                    program.close(writer).unwrap();
                })
                .unwrap();
            let both = [(reader as i32, event::IN), (reader as i32, 0)];
            assert_eq!(poll(program, &both, None), (Ok(1), vec![event::IN, 0]));
            assert_eq!(poll(program, &both[1..], None), (Ok(1), vec![event::HUP]));
            assert_eq!(program.call(SystemCall::Poll, [0x1000, 1, 0, 0, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::Poll, [0x2_0000, 20_000, 0, 0, 0]), Err(Errno::EINVAL));
        });
    }

    /// As many entries as the process may have descriptors; those of longer lists than usual are charged.
    #[test]
    fn lists_are_as_long_as_tables_of_descriptors() {
        fn limit(program: &mut Program, descriptors: u64) {
            let number = abi_unix::types::limit::DESCRIPTORS as usize;
            let limits = program.store(&[descriptors, 1 << 20].map(u64::to_le_bytes).concat());
            program.call(SystemCall::ProcessLimit, [0, number, limits, 0]).unwrap();
        }
        run(|program| {
            const ENTRIES: usize = 17_000;
            let protection = (abi_unix::types::protection::READ | abi_unix::types::protection::WRITE) as usize;
            let flags = (abi_unix::types::mapping::PRIVATE | abi_unix::types::mapping::ANONYMOUS) as usize;
            let list = program.call(SystemCall::Map, [0, ENTRIES * 8, protection, flags, 0, 0]).unwrap();
            let now = program.store(&TimeSpec::from_ns(0).to_bytes());
            // All are descriptor 0, for no events.
            let is_open = program.call(SystemCall::FileControl, [0, control::GETFD as usize, 0]).is_ok();
            let found = if is_open { 0 } else { ENTRIES };
            assert_eq!(program.call(SystemCall::Poll, [list, ENTRIES, now, 0, 0]), Err(Errno::EINVAL));
            limit(program, ENTRIES as u64);
            let account = program.process().account.clone();
            let before = account.own(Resource::Memory);
            assert_eq!(program.call(SystemCall::Poll, [list, ENTRIES, now, 0, 0]), Ok(found));
            program.sleep_ns(1_000_000);
            assert_eq!(account.own(Resource::Memory), before);
            assert_eq!(program.call(SystemCall::Poll, [list, ENTRIES + 1, now, 0, 0]), Err(Errno::EINVAL));
            limit(program, 3);
            assert_eq!(program.call(SystemCall::Poll, [list, 4, now, 0, 0]), Err(Errno::EINVAL));
            limit(program, 1 << 20);
            // One descriptor far behind the others, which alone has an entry.
            let (reader, writer) = program.pipe(0);
            const FAR: usize = 40_000;
            program.call(SystemCall::DuplicateTo, [reader, FAR, 0]).unwrap();
            let set = program.place(FAR / 8 + 64);
            let put = |program: &mut Program, number: usize| {
                program.write(set + number / 64 * 8, &(1u64 << (number % 64)).to_le_bytes());
            };
            put(program, FAR);
            assert_eq!(program.call(SystemCall::Select, [FAR, set, 0, 0, now, 0]), Ok(0), "one too few");
            assert_eq!(program.call(SystemCall::Select, [FAR + 1, set, 0, 0, now, 0]), Ok(0));
            assert_eq!(program.read_u64(set + FAR / 64 * 8), 0);
            program.write_to(writer, b"x").unwrap();
            put(program, FAR);
            assert_eq!(program.call(SystemCall::Select, [i32::MAX as usize, set, 0, 0, 0, 0]), Ok(1));
            assert_eq!(program.read_u64(set + FAR / 64 * 8), 1 << (FAR % 64));
            put(program, FAR - 64);
            assert_eq!(program.call(SystemCall::Select, [FAR + 1, set, 0, 0, now, 0]), Err(Errno::EBADF));
        });
    }

    /// A list that takes more than one step: looked at anew when something comes at its end.
    #[test]
    fn a_long_list_is_woken_by_its_last_entry() {
        run(|program| {
            let (quiet, keeper) = program.pipe(0);
            let (reader, writer) = program.pipe(0);
            let mut list = vec![(quiet as i32, event::IN); 700];
            list.push((reader as i32, event::IN));
            program
                .add_worker(move |program| {
                    program.sleep_ns(1_000_000);
                    program.write_to(writer, b"x").unwrap();
                })
                .unwrap();
            let (result, found) = poll(program, &list, None);
            assert_eq!(result, Ok(1));
            assert_eq!(found.iter().position(|&found| found != 0), Some(700));
            program.close(keeper).unwrap();
            assert_eq!(poll(program, &list, None).0, Ok(701), "the other pipe has no writer");
        });
    }
}
