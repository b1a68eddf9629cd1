//! Locks with owners at words of a program's memory (`FUTEX_LOCK_PI`, `FUTEX_UNLOCK_PI`).
//!
//! The word of such a lock is the number of the thread that owns it, or 0. A program takes and releases a lock that
//! nobody waits for by itself. A thread that finds an owner comes here, sets the bit [`WAITERS`] in the word, so that
//! the owner comes here too, and waits. The owner passes the lock on to the most important waiter, and to the first
//! among equals, by writing that one's number into the word *before* it is woken: nobody overtakes it.
//!
//! # Inheritance
//!
//! While a waiter is more important than the owner, the owner's process has the waiter's priority, as far as its
//! ceiling allows, wherever it publishes none of its own: programs for Linux never do. Priorities are the process's
//! here, not the thread's, and so is the inherited one. It lasts until the lock is passed on or the waiter has gone. It
//! is not inherited further, by the owner of another lock for which this owner waits.
//!
//! A word in memory that processes have in common names whatever thread one of them has written there. So a waiter
//! lends its priority only to its own process and to those whose priority its process may set.
//!
//! Without memory to note the owner the waiter waits without lending its priority.
//!
//! # Ends
//!
//! A thread that ends passes on the locks of its robust list, with the bit [`OWNER_DIED`]
//! ([`thread`](crate::process::thread)). A lock that is not on that list stays its owner's.

use alloc::sync::Arc;
use core::task::{Poll, Waker};

use abi_queue::Priority;
use abi_unix::Errno;
use abi_unix::types::futex::{OWNER_DIED, THREAD_MASK, WAITERS};
use memory::faults;
use usermode::Space;

use crate::process::futex::{self, FutexTable, Futexes, Waiter};
use crate::process::inheritance::{Inheritance, LockOwner};
use crate::time::limit::TimeLimit;

/// Number of times that a step tries to change a word that others change meanwhile.
const TRIES: usize = 16;
/// Bits of a waiter's number for its arrival, below its priority: so the first entry of a word is the next owner.
const ARRIVAL_BITS: u32 = 56;

/// Finds the thread with this number, if it goes on.
pub(crate) type FindOwner = fn(u32) -> Option<Arc<dyn LockOwner>>;

fn hash(key: usize) -> u32 {
    ((key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

fn priority_of(ticket: u64) -> Priority {
    Priority::saturating(ticket >> ARRIVAL_BITS)
}

impl FutexTable {
    /// Returns the place of the first waiter for a lock, and the number of its thread.
    fn first_for(&self, key: usize) -> Option<((usize, u64), u32)> {
        self.queue.range((key, 0)..=(key, u64::MAX)).next().map(|(place, waiter)| (*place, waiter.thread))
    }

    fn inheritance(&self, key: usize) -> Option<usize> {
        self.inheritances.find(hash(key), |inheritance| inheritance.key() == key)
    }

    /// Lets the owner of a lock, if there is one, inherit the priority of the first waiter, if that is more important,
    /// and takes from the owner before what that has inherited.
    fn settle(&mut self, key: usize, owner: Option<Arc<dyn LockOwner>>) {
        let first = self.first_for(key).map(|((_, ticket), thread)| (priority_of(ticket), thread));
        let present = self.inheritance(key).and_then(|index| self.inheritances.remove(index));
        if let (Some((priority, thread)), Some(owner)) = (first, owner)
            && owner.may_inherit_from(thread)
            && priority.is_more_important_than(owner.own_priority())
            && self.inheritances.reserve().is_ok()
        {
            self.inheritances.insert(hash(key), Inheritance::new(key, &owner, priority));
        }
        // Given back after the new one was inherited: the owner is not unimportant in between.
        drop(present);
    }

    /// Takes a waiter for a lock out; returns `false` if the lock was passed to it.
    fn leave_lock(&mut self, key: usize, ticket: u64) -> bool {
        let waited = self.queue.remove(&(key, ticket)).is_some();
        if waited {
            let present = self.inheritance(key).and_then(|index| self.inheritances.get(index));
            let owner = present.and_then(Inheritance::owner);
            self.settle(key, owner);
        }
        waited
    }

    /// Passes a lock on to the first waiter, or frees it; returns `false` if its word has changed.
    fn pass_on(
        &mut self,
        space: &Space,
        (key, address): (usize, usize),
        (value, bits): (u32, u32),
        find: FindOwner,
    ) -> Result<bool, Errno> {
        let first = self.first_for(key);
        let new = first.map_or(0, |(_, thread)| thread | WAITERS) | bits;
        if !exchange(space, address, value, new)? {
            return Ok(false);
        }
        if let Some((place, thread)) = first {
            if let Some(waiter) = self.queue.remove(&place) {
                waiter.waker.wake();
            }
            self.settle(key, find(thread));
        } else {
            self.settle(key, None);
        }
        Ok(true)
    }
}

fn exchange(space: &Space, address: usize, old: u32, new: u32) -> Result<bool, Errno> {
    let exchanged = space.lock().compare_exchange_u32(address as u64, old, new);
    Ok(exchanged.map_err(|_| Errno::EFAULT)?.is_ok())
}

/// A lock's word: where its waiters are, and its address.
#[derive(Clone)]
pub(crate) struct LockWord {
    futexes: Arc<Futexes>,
    key: usize,
    address: usize,
}

impl LockWord {
    /// Finds the waiters for the lock at this address. `EINVAL` or `EFAULT` if no lock can be there.
    pub(crate) fn new(space: &Space, own: &Arc<Futexes>, address: usize, is_private: bool) -> Result<LockWord, Errno> {
        let address = futex::word_at(address)?;
        let common = if is_private { None } else { futex::common(space, address) };
        let (futexes, word) = common.unwrap_or_else(|| (own.clone(), address));
        Ok(LockWord { futexes, key: word | 1, address })
    }

    /// Performs `FUTEX_UNLOCK_PI` for the thread with this number. `EPERM` if another one has the lock.
    pub(crate) fn unlock(&self, space: &Space, thread: u32, find: FindOwner) -> Result<usize, Errno> {
        match self.give_up(space, thread, 0, find)? {
            true => Ok(0),
            false => Err(Errno::EPERM),
        }
    }

    /// Passes the lock of a thread that ends on, marked as its owner's death; returns whether the thread had it.
    pub(super) fn owner_has_died(&self, space: &Space, thread: u32, find: FindOwner) -> Result<bool, Errno> {
        self.give_up(space, thread, OWNER_DIED, find)
    }

    fn give_up(&self, space: &Space, thread: u32, bits: u32, find: FindOwner) -> Result<bool, Errno> {
        let mut table = self.futexes.0.lock();
        for _ in 0..TRIES {
            let value = futex::load(space, self.address)?;
            if value & THREAD_MASK != thread {
                return Ok(false);
            }
            if table.pass_on(space, (self.key, self.address), (value, bits), find)? {
                return Ok(true);
            }
        }
        Err(Errno::EAGAIN)
    }
}

/// A `FUTEX_LOCK_PI`, decoded.
#[doc(alias = "rt_mutex")]
#[doc(alias = "futex_lock_pi")]
pub(crate) struct LockRequest {
    word: LockWord,
    /// The number of the thread that wants it.
    thread: u32,
    priority: Priority,
    /// The time limit; `None` for `FUTEX_TRYLOCK_PI`.
    limit: Option<TimeLimit>,
    find: FindOwner,
    /// The number by which the table has it; 0 before it is entered.
    ticket: u64,
}

impl LockRequest {
    /// Creates a request of a thread with this priority, that waits until a time limit, or not at all.
    pub(crate) fn new(
        word: LockWord,
        (thread, priority): (u32, Priority),
        limit: Option<TimeLimit>,
        find: FindOwner,
    ) -> LockRequest {
        LockRequest { word, thread, priority, limit, find, ticket: 0 }
    }

    /// Does one step: takes the lock, or enters the table if there is a waker; after that, looks whether the lock was
    /// passed to it. `EDEADLK` if the thread has the lock, `ESRCH` if the owner has gone, `EAGAIN` without a limit.
    pub(crate) fn poll(&mut self, space: &Space, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
        let LockWord { futexes, key, address } = &self.word;
        let (key, address) = (*key, *address);
        let mut table = futexes.0.lock();
        if self.ticket != 0 {
            if !table.queue.contains_key(&(key, self.ticket)) {
                return Poll::Ready(Ok(0));
            }
            if self.limit.is_some_and(TimeLimit::has_passed) {
                table.leave_lock(key, self.ticket);
                return Poll::Ready(Err(Errno::ETIMEDOUT));
            }
            return Poll::Pending;
        }
        for _ in 0..TRIES {
            let value = futex::load(space, address)?;
            let owner = value & THREAD_MASK;
            if owner == self.thread {
                return Poll::Ready(Err(Errno::EDEADLK));
            }
            if owner == 0 {
                let waiters = if table.first_for(key).is_some() { WAITERS } else { 0 };
                if exchange(space, address, value, self.thread | value & OWNER_DIED | waiters)? {
                    table.settle(key, (self.find)(self.thread));
                    return Poll::Ready(Ok(0));
                }
                continue;
            }
            let owner = (self.find)(owner).ok_or(Errno::ESRCH)?;
            let Some(limit) = &mut self.limit else { return Poll::Ready(Err(Errno::EAGAIN)) };
            if limit.has_passed() {
                return Poll::Ready(Err(Errno::ETIMEDOUT));
            }
            let Some(waker) = waker else { return Poll::Pending };
            limit.arm(waker)?;
            if value & WAITERS == 0 && !exchange(space, address, value, value | WAITERS)? {
                continue;
            }
            // From now on the owner finds the bit, and waits for this lock of the table.
            self.ticket = u64::from(self.priority.number()) << ARRIVAL_BITS | table.next_ticket();
            let waiter = Waiter { waker: waker.clone(), bits: 0, thread: self.thread };
            // A worker has memory for the entry, which was kept free.
            faults::from_what_is_kept(|| table.queue.insert((key, self.ticket), waiter));
            table.settle(key, Some(owner));
            return Poll::Pending;
        }
        // Others change the word again and again.
        if let Some(waker) = waker {
            waker.wake_by_ref();
        }
        Poll::Pending
    }

    /// Ends the wait without the lock, unless it was passed to the thread; returns whether it was.
    pub(crate) fn was_granted_before_its_end(&self) -> bool {
        self.ticket != 0 && !self.word.futexes.0.lock().leave_lock(self.word.key, self.ticket)
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&mut self) {
        if self.ticket != 0 {
            self.word.futexes.0.lock().leave_lock(self.word.key, self.ticket);
        }
        if let Some(limit) = &mut self.limit {
            limit.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::TimeSpec;
    use abi_unix::types::futex as operation;

    use super::*;
    use crate::testing::{Program, run};

    fn call(program: &mut Program, word: usize, command: u32, time: usize) -> Result<usize, Errno> {
        program.call(SystemCall::Futex, [word, command as usize, 0, time, 0, 0])
    }

    fn number(program: &mut Program) -> u32 {
        program.call(SystemCall::GetThread, []).unwrap() as u32
    }

    #[test]
    fn a_lock_that_is_free_is_taken_and_one_of_the_caller_is_a_deadlock() {
        run(|program| {
            let word = program.place(8);
            let own = number(program);
            assert_eq!(call(program, word, operation::UNLOCK, 0), Err(Errno::EPERM));
            for command in [operation::LOCK, operation::LOCK_WITH_CLOCK, operation::TRY_LOCK] {
                assert_eq!(call(program, word, command | operation::PRIVATE, 0), Ok(0));
                assert_eq!(program.read_u32(word), own);
                assert_eq!(call(program, word, command | operation::PRIVATE, 0), Err(Errno::EDEADLK));
                assert_eq!(call(program, word, operation::UNLOCK | operation::PRIVATE, 0), Ok(0));
                assert_eq!(program.read_u32(word), 0);
            }
            // A thread that there is not, a death, bad addresses and flags.
            program.write(word, &(own + 77 * 0x1_0000).to_le_bytes());
            assert_eq!(call(program, word, operation::LOCK, 0), Err(Errno::ESRCH));
            program.write(word, &OWNER_DIED.to_le_bytes());
            assert_eq!(call(program, word, operation::LOCK, 0), Ok(0));
            assert_eq!(program.read_u32(word), own | OWNER_DIED);
            for (word, error) in [(word + 1, Errno::EINVAL), (0x1000, Errno::EFAULT), (usize::MAX - 3, Errno::EFAULT)] {
                for command in [operation::LOCK, operation::TRY_LOCK, operation::UNLOCK] {
                    assert_eq!(call(program, word, command, 0), Err(error), "{word:#x}");
                }
            }
            let with_clock = operation::LOCK | operation::CLOCK_REALTIME;
            assert_eq!(call(program, word, with_clock, 0), Err(Errno::ENOSYS));
            assert_eq!(call(program, word, operation::LOCK, 0x1000), Err(Errno::EFAULT));
            let asynchronous = [word, operation::LOCK as usize, 0, 0, 0, 0];
            assert_eq!(program.submit(SystemCall::Futex, asynchronous, 1), Some(Err(Errno::EOPNOTSUPP)));
        });
    }

    /// The owner passes the lock on in the order of arrival, and nobody overtakes a waiter.
    #[test]
    fn a_lock_is_passed_on_to_those_who_wait() {
        run(|program| {
            let (word, order) = (program.place(8), program.place(64));
            assert_eq!(call(program, word, operation::LOCK, 0), Ok(0));
            for index in 1..=3u32 {
                program
                    .add_worker(move |program| {
                        assert_eq!(call(program, word, operation::LOCK, 0), Ok(0));
                        assert_eq!(program.read_u32(word), number(program) | WAITERS);
                        let count = program.read_u32(order) + 1;
                        program.write(order, &count.to_le_bytes());
                        program.write(order + 4 * count as usize, &index.to_le_bytes());
                        assert_eq!(call(program, word, operation::UNLOCK, 0), Ok(0));
                    })
                    .unwrap();
                program.sleep_ns(100_000);
            }
            assert_eq!(program.read_u32(word), number(program) | WAITERS);
            assert_eq!(call(program, word, operation::WAKE, 0), Ok(0), "they wait for a lock");
            assert_eq!(call(program, word, operation::UNLOCK, 0), Ok(0));
            program.sleep_ns(1_000_000);
            let order: alloc::vec::Vec<_> = (0..4).map(|index| program.read_u32(order + 4 * index)).collect();
            assert_eq!((order, program.read_u32(word)), (alloc::vec![3, 1, 2, 3], 0));
        });
    }

    #[test]
    fn a_wait_for_a_lock_ends_with_its_time_and_leaves_nothing() {
        run(|program| {
            let word = program.place(8);
            let soon = crate::time::now_ns() + 2_000_000;
            let times = [soon, soon + crate::time::epoch_ns()].map(|ns| TimeSpec::from_ns(ns).to_bytes());
            let [monotonic, real] = times.map(|time| program.store(&time));
            assert_eq!(call(program, word, operation::LOCK, 0), Ok(0));
            program
                .add_worker(move |program| {
                    for (command, time) in [
                        (operation::LOCK_WITH_CLOCK, monotonic),
                        (operation::LOCK_WITH_CLOCK | operation::CLOCK_REALTIME, real),
                        (operation::LOCK, real),
                    ] {
                        assert_eq!(call(program, word, command, time), Err(Errno::ETIMEDOUT));
                    }
                    assert_eq!(call(program, word, operation::TRY_LOCK, 0), Err(Errno::EAGAIN));
                })
                .unwrap();
            program.sleep_ns(5_000_000);
            assert_eq!(call(program, word, operation::UNLOCK, 0), Ok(0));
            assert_eq!(program.read_u32(word), 0);
        });
    }

    /// A lock that is passed to a thread that has gone leaves nothing to the thread that had it.
    #[test]
    fn an_owner_that_passes_on_gives_the_priority_back() {
        use core::sync::atomic::Ordering;

        use crate::process::inheritance::tests::Counter;

        run(|program| {
            let word = program.store(&(7 | WAITERS).to_le_bytes());
            let process = program.process();
            let owner = Arc::new(Counter::default());
            let (mut table, key) = (FutexTable::default(), word | 1);
            for thread in [8, 9] {
                let ticket = 1 << ARRIVAL_BITS | table.next_ticket();
                let waiter = Waiter { waker: Waker::noop().clone(), bits: 0, thread };
                table.queue.insert((key, ticket), waiter);
            }
            table.settle(key, Some(owner.clone()));
            assert_eq!(owner.0.load(Ordering::Relaxed), 1);
            let passed = table.pass_on(process.space(), (key, word), (7 | WAITERS, 0), |_| None);
            assert_eq!((passed, program.read_u32(word)), (Ok(true), 8 | WAITERS));
            assert_eq!(owner.0.load(Ordering::Relaxed), 0, "it has the lock no more");
            assert_eq!(table.first_for(key).map(|(_, thread)| thread), Some(9));
        });
    }

    /// Inheritance as the tables have it, with an owner that only counts.
    #[test]
    fn the_owner_has_the_priority_of_its_most_important_waiter() {
        use alloc::vec::Vec;

        struct Owner(spin::Mutex<Vec<u8>>);
        impl LockOwner for Owner {
            fn own_priority(&self) -> Priority {
                Priority::saturating(10)
            }
            fn inherit(&self, priority: Priority) {
                self.0.lock().push(priority.number());
            }
            fn disinherit(&self, priority: Priority) {
                let at = self.0.lock().iter().position(|number| *number == priority.number()).unwrap();
                self.0.lock().remove(at);
            }
            fn may_inherit_from(&self, thread: u32) -> bool {
                thread != 1
            }
        }
        let owner = Arc::new(Owner(spin::Mutex::default()));
        let mut table = FutexTable::default();
        let enter = |table: &mut FutexTable, priority: u64| {
            let ticket = priority << ARRIVAL_BITS | table.next_ticket();
            let waiter = Waiter { waker: Waker::noop().clone(), bits: 0, thread: priority as u32 };
            table.queue.insert((9, ticket), waiter);
            table.settle(9, Some(owner.clone()));
            (ticket, owner.0.lock().clone())
        };
        assert_eq!(enter(&mut table, 12).1, [], "it is more important itself");
        let (stranger, inherited) = enter(&mut table, 1);
        assert_eq!(inherited, [], "it may not set the owner's priority");
        assert!(table.leave_lock(9, stranger));
        table.settle(9, Some(owner.clone()));
        assert_eq!(enter(&mut table, 8).1, [8]);
        let (most, inherited) = enter(&mut table, 3);
        assert_eq!(inherited, [3]);
        assert_eq!(enter(&mut table, 3).1, [3]);
        assert_eq!(table.first_for(9), Some(((9, most), 3)), "the first among equals");
        assert!(table.leave_lock(9, most) && !table.leave_lock(9, most));
        assert_eq!(*owner.0.lock(), [3]);
        table.queue.retain(|(_, ticket), _| priority_of(*ticket).number() > 10);
        table.settle(9, None);
        assert!(owner.0.lock().is_empty() && table.inheritances.is_empty());
    }
}
