//! A shard: the ready coroutines of one worker, and its free slots.
//!
//! A shard has a list for each priority, a bitmap of the lists that are not empty, and one tiny lock for both. The
//! bitmap lies in the caller's memory, because in a process that memory is the page that the kernel reads: the
//! published word is the ready set itself, not a copy that could be stale.
//!
//! The lists are circular and doubly linked through the coroutines' headers, with a link of the list itself at both
//! ends, so that linking and unlinking are four stores without a case distinction, anywhere in a list. So
//! `set_priority` of a ready coroutine is as cheap as a wake. Rejected designs: a heap or tree costs a logarithm; a
//! lock-free queue for each priority cannot remove from the middle, and with several workers its atomic operations cost
//! more than this lock, which is free in almost all cases because most operations of a worker are on its own shard.

use core::ffi::c_void;

use crate::executor::{Header, Hooks, Signals, Slot};
use crate::order::Order;
use crate::state::{Freed, Value};
use crate::sync::{AtomicU32, AtomicU64, Ordering, Plain, ReadyWord, put, spin};
use crate::{PRIORITIES, SHARDS};

/// A place in a circular list.
#[repr(C)]
pub struct Link {
    next: Plain<*const Link>,
    previous: Plain<*const Link>,
}

impl Link {
    pub(crate) fn unlinked() -> Link {
        Link { next: Plain::new(core::ptr::null()), previous: Plain::new(core::ptr::null()) }
    }

    #[cfg(all(test, loom))]
    pub(crate) unsafe fn poison(&self) {
        // SAFETY: the caller's claim, which loom checks.
        unsafe {
            self.next.set(core::ptr::null());
            self.previous.set(core::ptr::null());
        }
    }
}

/// The data of one worker.
#[doc(alias("run queue", "local queue", "rq"))]
#[repr(C, align(128))]
pub(crate) struct Shard {
    lock: AtomicU32,
    /// Workers that may have found this shard empty and gone to sleep. Protected by the lock.
    pub(crate) sleepers: Plain<u32>,
    /// Free slots, linked through their header pointers. Protected by the lock.
    pub(crate) free: Plain<*const Slot>,
    /// The worker's word in the caller's ready words.
    published: *const ReadyWord,
    /// The bit and the list from which the last coroutine was taken, in most programs also the list of the next.
    /// Protected by the lock.
    near_bit: Plain<u64>,
    near_list: Plain<*const Link>,
    /// Not 0 from the first `add_worker` on: other workers take from this shard.
    pub(crate) open: AtomicU32,
    /// The other shards that are open.
    pub(crate) others: AtomicU32,
    pub(crate) wakes: AtomicU64,
    pub(crate) spins: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) polls: AtomicU64,
    /// The value of `polls` when a strict run last returned because its caller has to give the processor away.
    pub(crate) polls_when_given_away: AtomicU64,
    pub(crate) steals: AtomicU64,
    /// The cid that the worker polls, or 0.
    pub(crate) current: AtomicU64,
    pub(crate) signals: Plain<Signals>,
    pub(crate) index: usize,
    lists: [Link; PRIORITIES],
    /// Makes the size a power of two, so that the address of a shard is cheap to compute.
    #[cfg(not(loom))]
    padding: [u64; 102],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Shard>() == 2048);

impl Shard {
    /// Makes an empty shard.
    ///
    /// # Safety
    /// As for [`Executor::initialise`](crate::Executor::initialise), for this part of its memory.
    pub(crate) unsafe fn initialise(
        memory: *mut Shard,
        index: usize,
        ready: *const [ReadyWord; SHARDS],
        signals: Signals,
    ) {
        // SAFETY: every write goes to a field of `memory`, which the caller allows; there is a ready word for each
        // shard.
        unsafe {
            put(&raw mut (*memory).lock, AtomicU32::new(0));
            put(&raw mut (*memory).sleepers, Plain::new(0));
            put(&raw mut (*memory).free, Plain::new(core::ptr::null()));
            put(&raw mut (*memory).published, ready.cast::<ReadyWord>().add(index));
            put(&raw mut (*memory).near_bit, Plain::new(0));
            put(&raw mut (*memory).near_list, Plain::new(core::ptr::null()));
            put(&raw mut (*memory).open, AtomicU32::new(0));
            // Shard 0 takes coroutines that are spawned outside of all workers, so workers take from it even if it
            // never has a worker of its own.
            put(&raw mut (*memory).others, AtomicU32::new(u32::from(index != 0)));
            put(&raw mut (*memory).wakes, AtomicU64::new(0));
            put(&raw mut (*memory).spins, AtomicU64::new(0));
            put(&raw mut (*memory).retries, AtomicU64::new(0));
            put(&raw mut (*memory).polls, AtomicU64::new(0));
            put(&raw mut (*memory).polls_when_given_away, AtomicU64::new(0));
            put(&raw mut (*memory).steals, AtomicU64::new(0));
            put(&raw mut (*memory).current, AtomicU64::new(0));
            put(&raw mut (*memory).signals, Plain::new(signals));
            put(&raw mut (*memory).index, index);
            let lists = (&raw mut (*memory).lists).cast::<Link>();
            for priority in 0..PRIORITIES {
                let list = lists.add(priority);
                put(list, Link { next: Plain::new(list), previous: Plain::new(list) });
            }
        }
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> bool {
        // A swap is one instruction where a compare-exchange is a loop; its write after a failure has no effect,
        // because it writes the value that it has read.
        #[cfg(not(loom))]
        return self.lock.swap(1, Ordering::Acquire) == 0;
        // The model checker does not see the last point: it lets the failed write come after the unlock that it
        // preceded.
        #[cfg(loom)]
        return self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
    }

    #[inline(always)]
    pub(crate) fn lock<O: Order>(&self, hooks: &Hooks<O>) {
        if !self.try_lock() {
            self.lock_slowly(hooks);
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly<O: Order>(&self, hooks: &Hooks<O>) {
        let mut spins = 0;
        loop {
            // Read before trying, so that waiting does not take the cache line from the holder. (In the model a read
            // may stay stale for ever; a try may not.)
            while cfg!(not(loom)) && self.lock.load(Ordering::Relaxed) != 0 {
                spin();
                spins += 1;
                if spins & 0xff == 0
                    && let Some(relax) = hooks.relax
                {
                    // SAFETY: the caller of `initialise` allowed it.
                    unsafe { relax(hooks.context) };
                }
            }
            if self.try_lock() {
                break;
            }
            spin();
            spins += 1;
            // Two waiters could poll in turns for ever without the holder; the model checker has explored the outcome
            // the first time.
            #[cfg(loom)]
            if spins > 2 {
                loom::skip_branch();
            }
        }
        add(&self.spins, spins);
    }

    /// Counts an atomic operation on this shard, or on a coroutine of it, that failed because of another thread's.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_retry(&self) {
        // Relaxed: a statistic.
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn unlock(&self) {
        self.lock.store(0, Ordering::Release);
    }

    /// Returns the worker's word in the caller's ready words; for functions that use it more than once.
    #[inline(always)]
    pub(crate) fn published(&self) -> &ReadyWord {
        // SAFETY: valid since `initialise`, as the caller promised there.
        unsafe { &*self.published }
    }

    /// Returns the ready bitmap. Written only under the lock. Relaxed everywhere: without the lock the value is a hint;
    /// with it, the lock orders the access.
    #[inline(always)]
    pub(crate) fn ready(&self) -> &AtomicU64 {
        &self.published().0
    }

    /// Returns the running word, written only by the worker.
    #[inline(always)]
    pub(crate) fn running(&self) -> &AtomicU64 {
        &self.published().1
    }

    #[inline(always)]
    fn list(&self, priority: usize) -> *const Link {
        // The mask has no effect. It lets the compiler omit the bounds check, whose panic would bring data with
        // relocations into the image.
        &self.lists[priority & (PRIORITIES - 1)]
    }

    /// Returns the list of a bit. (Counting trailing zeros takes nine instructions on RV64GC.)
    ///
    /// # Safety
    /// The caller has the lock.
    #[inline(always)]
    unsafe fn list_of(&self, bit: u64) -> *const Link {
        // SAFETY: the lock protects both.
        unsafe {
            if self.near_bit.get() != bit {
                let list = self.list(bit.trailing_zeros() as usize);
                self.near_bit.set(bit);
                self.near_list.set(list);
            }
            self.near_list.get()
        }
    }

    /// Links a header at the end of the list of its word's priority.
    ///
    /// # Safety
    /// The caller has the lock and is the header's holder; the header is in no list, and its shard is this one.
    #[inline(always)]
    pub(crate) unsafe fn link<O: Order>(&self, header: *const Header<O>, word: Value) {
        let list = self.list(word.priority());
        // SAFETY: the caller's promise.
        unsafe {
            let next = place_from_end(list, header);
            self.insert(header, word, (*next).previous.get(), next);
        }
    }

    /// Links a header at the beginning of its list: its turn was interrupted by a more important coroutine.
    ///
    /// # Safety
    /// As for [`link`](Self::link).
    pub(crate) unsafe fn link_first<O: Order>(&self, header: *const Header<O>, word: Value) {
        let list = self.list(word.priority());
        // SAFETY: the caller's promise.
        unsafe {
            let previous = place_from_front(list, header);
            self.insert(header, word, previous, (*previous).next.get());
        }
    }

    /// Links a header between two links of its list.
    ///
    /// # Safety
    /// As for [`link`](Self::link).
    #[inline(always)]
    unsafe fn insert<O: Order>(&self, header: *const Header<O>, word: Value, previous: *const Link, next: *const Link) {
        let priority = word.priority();
        // SAFETY: the lock protects the links of the lists and of the headers in them.
        unsafe {
            let link = header.cast::<Link>();
            (*link).next.set(next);
            (*link).previous.set(previous);
            (*previous).next.set(link);
            (*next).previous.set(link);
        }
        let bitmap = self.ready().load(Ordering::Relaxed);
        let with = bitmap | 1 << priority;
        if with != bitmap {
            self.ready().store(with, Ordering::Relaxed);
        }
    }

    /// Links a header that has yielded at the end of its list and takes the next one, in one operation.
    ///
    /// If no other coroutine of the same or higher importance is ready, returns the header itself, without a list
    /// operation. If a more important coroutine is ready, only links the header and returns null.
    ///
    /// # Safety
    /// As for [`link`](Self::link); the caller is this shard's worker.
    #[inline(always)]
    pub(crate) unsafe fn rotate<O: Order>(
        &self,
        published: &ReadyWord,
        header: *const Header<O>,
        word: Value,
    ) -> *const Header<O> {
        let priority = word.priority();
        let bit = 1u64 << priority;
        let bitmap = published.0.load(Ordering::Relaxed);
        if bitmap & (bit - 1) != 0 {
            // SAFETY: the caller's promise.
            unsafe { self.link(header, word) };
            return core::ptr::null();
        }
        published.1.store(bit, Ordering::Relaxed);
        if bitmap & bit == 0 {
            return header;
        }
        let list = self.list(priority);
        // SAFETY: as for `link` and `take`; the list is not empty, and is not afterwards.
        unsafe {
            let link = header.cast::<Link>();
            let behind = place_from_end(list, header);
            let last = (*behind).previous.get();
            (*link).next.set(behind);
            (*link).previous.set(last);
            (*last).next.set(link);
            (*behind).previous.set(link);
            let first = (*list).next.get();
            let next = (*first).next.get();
            (*list).next.set(next);
            (*next).previous.set(list);
            (*first).next.set(core::ptr::null());
            first.cast()
        }
    }

    /// Unlinks a header from its list, at any place.
    ///
    /// # Safety
    /// The caller has the lock; the header is in one of the lists.
    pub(crate) unsafe fn unlink<O: Order>(&self, header: *const Header<O>) {
        // SAFETY: as for `link`.
        unsafe {
            let link = header.cast::<Link>();
            let (next, previous) = ((*link).next.get(), (*link).previous.get());
            (*previous).next.set(next);
            (*next).previous.set(previous);
            (*link).next.set(core::ptr::null());
            if next == previous {
                // Only the list's own link can be both: the list is empty now, and the link's address identifies the
                // list.
                let priority = next.offset_from(self.list(0)) as usize;
                let bitmap = self.ready().load(Ordering::Relaxed);
                self.ready().store(bitmap & !(1 << priority), Ordering::Relaxed);
            }
        }
    }

    /// Takes the first coroutine of the most important list, to run it. `bitmap` is the ready bitmap, not 0.
    ///
    /// # Safety
    /// The caller has the lock, and is this shard's worker.
    #[inline(always)]
    pub(crate) unsafe fn take<O: Order>(&self, published: &ReadyWord, bitmap: u64) -> *const Header<O> {
        let bit = bitmap & bitmap.wrapping_neg();
        published.1.store(bit, Ordering::Relaxed);
        // SAFETY: the caller has the lock.
        let list = unsafe { self.list_of(bit) };
        // SAFETY: as for `link`; the list is not empty, as its bit is set, so its next is a header's link, which is at
        // the header's beginning.
        unsafe {
            let link = (*list).next.get();
            let next = (*link).next.get();
            (*list).next.set(next);
            (*next).previous.set(list);
            (*link).next.set(core::ptr::null());
            if next == list {
                published.0.store(bitmap & !bit, Ordering::Relaxed);
            }
            link.cast()
        }
    }

    /// Returns the most important coroutine that any worker can run, and the bit of its list; null and 0 if there is
    /// none. Only its own worker can run a suspended coroutine. There are at most as many of them as the worker has
    /// stacks, so the search is short.
    ///
    /// # Safety
    /// The caller has the lock.
    pub(crate) unsafe fn first_for_others<O: Order>(&self) -> (*const Header<O>, u64) {
        let mut bits = self.ready().load(Ordering::Relaxed);
        while bits != 0 {
            let list = self.list(bits.trailing_zeros() as usize);
            // SAFETY: the caller has the lock; linked headers exist, and the link is at a header's beginning.
            unsafe {
                let mut link = (*list).next.get();
                while link != list {
                    let header = link.cast::<Header<O>>();
                    if !(*(*header).slot.get()).word.read().has_stack() {
                        return (header, bits & bits.wrapping_neg());
                    }
                    link = (*link).next.get();
                }
            }
            bits &= bits - 1;
        }
        (core::ptr::null(), 0)
    }

    /// Returns whether exactly one coroutine is ready, and its turn comes after the worker's current poll, if there is
    /// one: it is as important as the polled coroutine; or less important, if the worker will not continue with more
    /// important ones for ever (`ends`).
    ///
    /// # Safety
    /// The caller has the lock; a coroutine is ready.
    pub(crate) unsafe fn is_one_turn(&self, ends: bool) -> bool {
        let running = self.running().load(Ordering::Relaxed);
        let ready = self.ready().load(Ordering::Relaxed);
        let list = self.list(ready.trailing_zeros() as usize);
        // SAFETY: the caller has the lock.
        let one = unsafe { (*list).next.get() == (*list).previous.get() };
        (running == 0 || running == ready || ends && running < ready) && ready.is_power_of_two() && one
    }

    /// Frees the slot of a coroutine that has ended: from here on its cid is stale.
    ///
    /// # Safety
    /// The caller is the worker that ran it, and has the lock of its own shard, which is this one and the coroutine's.
    #[inline(always)]
    pub(crate) unsafe fn free_slot<O: Order>(&self, header: *const Header<O>) {
        // SAFETY: the worker owns the header until `finish`, and the lock protects the free list.
        unsafe {
            let slot = (*header).slot.get();
            let cid = (*header).cid.get();
            if (*slot).word.exit(cid) == Freed::Reusable {
                (*slot).header.set(self.free.get().cast::<c_void>());
                self.free.set(slot);
            }
        }
    }
}

/// Finds the link before which a header that becomes ready is linked: the list's own unless the header precedes others.
///
/// # Safety
/// The caller has the lock, and is the holder of the header, which is in no list.
#[inline(always)]
unsafe fn place_from_end<O: Order>(list: *const Link, header: *const Header<O>) -> *const Link {
    // SAFETY: the lock protects the links, and the keys of linked headers; the holder owns the header's own key.
    unsafe {
        let mut next = list;
        loop {
            let previous = (*next).previous.get();
            if previous == list || !O::precedes((*header).key.get(), (*previous.cast::<Header<O>>()).key.get()) {
                return next;
            }
            next = previous;
        }
    }
}

/// Finds the link behind which a header whose turn is not over is linked: the list's own unless others precede the
/// header.
///
/// # Safety
/// As for [`place_from_end`].
#[inline(always)]
unsafe fn place_from_front<O: Order>(list: *const Link, header: *const Header<O>) -> *const Link {
    // SAFETY: as there.
    unsafe {
        let mut previous = list;
        loop {
            let next = (*previous).next.get();
            if next == list || !O::precedes((*next.cast::<Header<O>>()).key.get(), (*header).key.get()) {
                return previous;
            }
            previous = next;
        }
    }
}

/// Returns whether a header is in a list.
///
/// # Safety
/// The caller has the lock of its shard, or holds it.
pub(crate) unsafe fn is_linked<O: Order>(header: *const Header<O>) -> bool {
    // SAFETY: the caller's promise.
    unsafe { !(*header).link.next.get().is_null() }
}

/// Adds to a counter that only one worker, or the holder of a lock, writes.
#[inline(always)]
pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}
