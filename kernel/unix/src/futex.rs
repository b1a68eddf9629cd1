//! Futexes: threads of a process wait while a word of its memory has a value, and wake each other (futex(2)).
//!
//! A lock that is free costs its program no call; only who has to wait, and who has to wake, comes here. What makes it
//! right is that *the word is compared under the lock of the table into which the waiter is entered*: whoever changes the
//! word first and wakes then either is seen by the comparison or finds the waiter.
//!
//! A word is known by its address in its process, because there is no memory that two processes can both write; so the
//! table belongs to the process, and private and shared futexes are the same. Waiters of one word are woken in the order
//! in which they came. Who was woken is not in the table any more; that is all that tells a wake-up from a deadline or
//! from a wake-up for another reason.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::futex as operation;
use spin::Mutex;

use crate::operation::read_time;
use crate::process::Process;
use crate::time;
use crate::time_limit::TimeLimit;
use crate::user::USER_END;

struct Waiter {
    waker: Waker,
    bits: u32,
}

#[derive(Default)]
struct Table {
    /// Who waits, by word and then by ticket, which is the order of arrival.
    queue: BTreeMap<(usize, u64), Waiter>,
    /// Where those are who wait for another word than the one they came for.
    moved: BTreeMap<u64, usize>,
    last_ticket: u64,
}

impl Table {
    /// Wakes up to `count` who wait for a word with one of these bits.
    fn wake(&mut self, word: usize, count: usize, bits: u32) -> usize {
        let (mut woken, mut from) = (0, 0);
        while woken < count {
            let mut candidates = self.queue.range((word, from)..=(word, u64::MAX));
            let Some((&key, _)) = candidates.find(|(_, waiter)| waiter.bits & bits != 0) else { break };
            if let Some(waiter) = self.queue.remove(&key) {
                waiter.waker.wake();
            }
            self.moved.remove(&key.1);
            from = key.1 + 1;
            woken += 1;
        }
        woken
    }

    /// Makes up to `count` who wait for a word wait for another one.
    fn move_waiters(&mut self, word: usize, to: usize, count: usize) -> usize {
        let (mut done, mut from) = (0, 0);
        while done < count {
            let Some((&key, _)) = self.queue.range((word, from)..=(word, u64::MAX)).next() else { break };
            if let Some(waiter) = self.queue.remove(&key) {
                self.queue.insert((to, key.1), waiter);
                self.moved.insert(key.1, to);
            }
            from = key.1 + 1;
            done += 1;
        }
        done
    }

    fn key(&self, word: usize, ticket: u64) -> (usize, u64) {
        (self.moved.get(&ticket).copied().unwrap_or(word), ticket)
    }

    /// Takes a waiter out; `false` if it was woken.
    fn remove(&mut self, word: usize, ticket: u64) -> bool {
        let key = self.key(word, ticket);
        self.moved.remove(&ticket);
        self.queue.remove(&key).is_some()
    }
}

/// Who waits for which words of a process.
#[derive(Default)]
pub struct Futexes(Mutex<Table>);

impl Futexes {
    /// Wakes up to `count` who wait for a word with one of these bits; returns how many.
    pub fn wake(&self, word: usize, count: usize, bits: u32) -> usize {
        self.0.lock().wake(word, count, bits)
    }
}

/// A `FUTEX_WAIT`, decoded.
pub struct Wait {
    futexes: Arc<Futexes>,
    word: usize,
    expected: u32,
    bits: u32,
    limit: TimeLimit,
    /// The number under which the table has it; 0 before it is entered.
    ticket: u64,
}

impl Wait {
    /// One step: compares and enters the table if there is a waker; after that, looks whether somebody has taken it out.
    pub fn poll(&mut self, process: &Process, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
        let mut table = self.futexes.0.lock();
        if self.ticket != 0 {
            let key = table.key(self.word, self.ticket);
            if !table.queue.contains_key(&key) {
                return Poll::Ready(Ok(0));
            }
            if self.limit.has_passed() {
                table.remove(self.word, self.ticket);
                return Poll::Ready(Err(Errno::ETIMEDOUT));
            }
            return Poll::Pending;
        }
        if load(process, self.word)? != self.expected {
            return Poll::Ready(Err(Errno::EAGAIN));
        }
        if self.limit.has_passed() {
            return Poll::Ready(Err(Errno::ETIMEDOUT));
        }
        if let Some(waker) = waker {
            self.limit.arm(waker)?;
            table.last_ticket += 1;
            self.ticket = table.last_ticket;
            table.queue.insert((self.word, self.ticket), Waiter { waker: waker.clone(), bits: self.bits });
        }
        Poll::Pending
    }

    /// Whether somebody has woken it: then a wake-up would be lost if it ended in another way.
    pub fn was_woken(&self) -> bool {
        let table = self.futexes.0.lock();
        self.ticket != 0 && !table.queue.contains_key(&table.key(self.word, self.ticket))
    }

    /// Takes back what [`poll`](Self::poll) registered.
    pub fn forget(&mut self) {
        if self.ticket != 0 {
            self.futexes.0.lock().remove(self.word, self.ticket);
        }
        self.limit.clear();
    }
}

/// What a `futex` call is.
pub enum Decoded {
    /// It may have to wait.
    Wait(Wait),
    /// It is done; so many were woken or moved.
    Done(usize),
}

/// A word that can be a futex: aligned, and in the user half.
fn word_at(address: usize) -> Result<usize, Errno> {
    if !address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    if address > USER_END - 4 { Err(Errno::EFAULT) } else { Ok(address) }
}

fn load(process: &Process, word: usize) -> Result<u32, Errno> {
    process.space.lock().load_u32(word as u64).map_err(|_| Errno::EFAULT)
}

/// Number of waiters that a call means. Linux wakes one for every number below.
fn at_least_one(number: usize) -> usize {
    (number as i32).max(1) as usize
}

/// The `futex` call: what need not wait is done at once.
pub fn call(process: &Process, [address, flags, value, timeout, second, value3]: [usize; 6]) -> Result<Decoded, Errno> {
    let (flags, value3) = (flags as u32, value3 as u32);
    let command = flags & !(operation::PRIVATE | operation::CLOCK_REALTIME);
    let is_real_time = flags & operation::CLOCK_REALTIME != 0;
    if is_real_time && command != operation::WAIT_BITSET {
        return Err(Errno::ENOSYS);
    }
    let bits = match command {
        operation::WAIT_BITSET | operation::WAKE_BITSET if value3 == 0 => return Err(Errno::EINVAL),
        operation::WAIT_BITSET | operation::WAKE_BITSET => value3,
        _ => operation::BITSET_ANY,
    };
    Ok(match command {
        operation::WAIT | operation::WAIT_BITSET => {
            let limit = match timeout {
                0 => TimeLimit::Never,
                _ => {
                    let ns = read_time(process, timeout)?;
                    match command {
                        operation::WAIT => TimeLimit::after_ns(ns),
                        _ if is_real_time => TimeLimit::At(time::ticks_at_ns(ns.saturating_sub(time::epoch_ns()))),
                        _ => TimeLimit::At(time::ticks_at_ns(ns)),
                    }
                }
            };
            let futexes = process.futexes.clone();
            Decoded::Wait(Wait { futexes, word: word_at(address)?, expected: value as u32, bits, limit, ticket: 0 })
        }
        operation::WAKE | operation::WAKE_BITSET => {
            Decoded::Done(process.futexes.wake(word_at(address)?, at_least_one(value), bits))
        }
        operation::REQUEUE | operation::CMP_REQUEUE => {
            // In the place of the timeout stands how many are moved.
            let (wake, moves) = (value as i32, timeout as i32);
            if wake < 0 || moves < 0 {
                return Err(Errno::EINVAL);
            }
            let (word, to) = (word_at(address)?, word_at(second)?);
            let mut table = process.futexes.0.lock();
            if command == operation::CMP_REQUEUE && load(process, word)? != value3 {
                return Err(Errno::EAGAIN);
            }
            let woken = table.wake(word, wake as usize, bits);
            Decoded::Done(woken + table.move_waiters(word, to, moves as usize))
        }
        _ => return Err(Errno::ENOSYS),
    })
}

#[cfg(test)]
mod tests {
    use alloc::task::Wake;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn enter(table: &mut Table, word: usize, bits: u32) -> (u64, Arc<Bell>) {
        let bell = Arc::new(Bell::default());
        table.last_ticket += 1;
        table.queue.insert((word, table.last_ticket), Waiter { waker: bell.clone().into(), bits });
        (table.last_ticket, bell)
    }

    #[test]
    fn the_first_come_are_woken_first_and_only_those_meant() {
        let mut table = Table::default();
        let bells: alloc::vec::Vec<_> = (0..5).map(|index| enter(&mut table, 8, 1 << (index % 2)).1).collect();
        let (_, other) = enter(&mut table, 12, u32::MAX);
        assert_eq!(table.wake(8, 1, u32::MAX), 1);
        assert_eq!(table.wake(8, 9, 2), 2);
        let rings: alloc::vec::Vec<_> = bells.iter().map(|bell| bell.0.load(Ordering::Relaxed)).collect();
        assert_eq!(rings, [1, 1, 0, 1, 0]);
        assert_eq!(table.wake(8, 9, u32::MAX), 2);
        assert_eq!(table.wake(8, 9, u32::MAX), 0);
        assert_eq!(other.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn those_who_are_moved_are_found_at_the_other_word() {
        let mut table = Table::default();
        let (first, bell) = enter(&mut table, 8, u32::MAX);
        let (second, _) = enter(&mut table, 8, u32::MAX);
        assert_eq!(table.move_waiters(8, 16, 1), 1);
        assert_eq!(table.wake(8, 9, u32::MAX), 1);
        assert!(!table.remove(8, second), "it was woken");
        assert_eq!(table.move_waiters(16, 24, 9), 1);
        assert_eq!(bell.0.load(Ordering::Relaxed), 0);
        assert!(table.remove(8, first), "it waits for a third word now");
        assert!(table.queue.is_empty() && table.moved.is_empty());
    }
}
