//! Futexes: threads of a process wait while a word of its memory has a value, and wake each other (futex(2)).
//!
//! A lock that is free costs its program no call; only threads that have to wait or to wake come here. The correctness
//! rests on this: *the word is compared under the lock of the table into which the waiter is entered*. A thread that
//! changes the word first and wakes then either is seen by the comparison or finds the waiter.
//!
//! A word's key is its address in its process, in a table that belongs to the process. A word of memory that processes
//! have in common has its distance from the start of that memory as its key, in a table that belongs to the memory,
//! unless the call says that the futex is private. Waiters of one word are woken in the order in which they came. A
//! waiter that was woken is not in the table any more; only this tells a wake-up from a deadline or from a wake-up for
//! another reason.
//!
//! A word can also be a lock with an owner ([`owned_lock`](crate::process::owned_lock)), whose waiters are in the same
//! table under a key of their own: the word's and 1, as words are aligned.
//!
//! A call that wakes or moves thousands goes on in steps ([`steps`]), and is for the waiters at its beginning. Between
//! two steps others may come, which are not touched, and go, which are not counted. Linux does this work at once; the
//! effect is as if they had come after the call, and gone before it.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::RangeInclusive;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::futex::{self as operation, WaitedWord};
use memory::faults;
use memory::space::WordChange;
use spin::{Mutex, MutexGuard};
use tables::Table;
use usermode::Space;

use crate::process::accounts::has_machine_memory;
use crate::process::inheritance::Inheritance;
use crate::process::user::{Caller, USER_END, read_time};
use crate::scheduling::steps::{self, Ends, Long};
use crate::time;
use crate::time::limit::TimeLimit;

/// Number of waiters that one step looks at: to move one takes some thousand instructions if there are thousands.
const AT_A_TIME: usize = 12;

pub(super) struct Waiter {
    pub(super) waker: Waker,
    pub(super) bits: u32,
    /// Number of the thread that waits for a lock with an owner.
    pub(super) thread: u32,
}

/// The waiters of a word when a call begins to wake or to move them, from the first that it has not handled.
struct Round {
    word: usize,
    tickets: RangeInclusive<u64>,
    /// Set if there may be more.
    left: bool,
}

impl Round {
    fn go_on_at(&mut self, ticket: u64) {
        self.tickets = ticket..=*self.tickets.end();
    }
}

#[doc(alias = "futex_hash_bucket")]
#[derive(Default)]
pub(super) struct FutexTable {
    /// Waiters by word and then by ticket, which is the order of arrival.
    pub(super) queue: BTreeMap<(usize, u64), Waiter>,
    /// Present words of waiters that wait for another word than the one for which they came.
    moved: BTreeMap<u64, usize>,
    last_ticket: u64,
    /// Priorities that owners of locks have from their waiters.
    pub(super) inheritances: Table<Inheritance>,
}

impl FutexTable {
    /// Returns a new number for a waiter.
    pub(super) fn next_ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// Creates a round over the present waiters of a word. A call that goes on in steps does not touch later ones.
    fn round(&self, word: usize) -> Round {
        Round { word, tickets: 0..=self.last_ticket, left: true }
    }

    /// Returns the next waiter of a round with one of these bits; `None` if there is none among as many as one step
    /// looks at.
    fn next(&self, round: &mut Round, looks: &mut usize, bits: u32) -> Option<(usize, u64)> {
        if round.tickets.is_empty() {
            round.left = false;
            return None;
        }
        let keys = (round.word, *round.tickets.start())..=(round.word, *round.tickets.end());
        for (&key, waiter) in self.queue.range(keys) {
            if *looks == 0 {
                round.go_on_at(key.1);
                return None;
            }
            *looks -= 1;
            if waiter.bits & bits != 0 {
                round.go_on_at(key.1 + 1);
                return Some(key);
            }
        }
        round.left = false;
        None
    }

    /// Does a step of a round: wakes up to `count` waiters with one of these bits; returns their number.
    fn wake(&mut self, round: &mut Round, count: usize, bits: u32) -> usize {
        let (mut woken, mut looks) = (0, AT_A_TIME);
        while woken < count {
            let Some(key) = self.next(round, &mut looks, bits) else { break };
            if let Some(waiter) = self.queue.remove(&key) {
                waiter.waker.wake();
            }
            self.moved.remove(&key.1);
            woken += 1;
        }
        woken
    }

    /// Does a step of a round: makes up to `count` waiters wait for another word; returns their number.
    fn move_waiters(&mut self, round: &mut Round, to: usize, count: usize) -> usize {
        let (mut done, mut looks) = (0, AT_A_TIME);
        while done < count {
            let Some(key) = self.next(round, &mut looks, operation::BITSET_ANY) else { break };
            if let Some(waiter) = self.queue.remove(&key) {
                self.queue.insert((to, key.1), waiter);
                self.moved.insert(key.1, to);
            }
            done += 1;
        }
        done
    }

    fn key(&self, word: usize, ticket: u64) -> (usize, u64) {
        (self.moved.get(&ticket).copied().unwrap_or(word), ticket)
    }

    /// Takes a waiter out; returns `false` if it was woken.
    fn remove(&mut self, word: usize, ticket: u64) -> bool {
        let key = self.key(word, ticket);
        self.moved.remove(&ticket);
        self.queue.remove(&key).is_some()
    }
}

/// Waiters of a process, by word.
#[derive(Default)]
pub(crate) struct Futexes(pub(super) Mutex<FutexTable>);

/// Wakes the first waiter at a word of this space, or of memory that processes have in common there, for a process with
/// these waiters at its words.
pub(crate) fn wake_one(space: &Space, own: &Futexes, word: usize) {
    let wake = |futexes: &Futexes, word: usize| {
        let mut table = futexes.0.lock();
        let mut round = table.round(word);
        table.wake(&mut round, 1, operation::BITSET_ANY);
    };
    match common(space, word) {
        Some((futexes, key)) => wake(&futexes, key),
        None => wake(own, word),
    }
}

/// A change of a word by `FUTEX_WAKE_OP`, and the comparison of what it was.
struct ChangeAndCompare {
    change: WordChange,
    operand: u32,
    comparison: u32,
    value: i32,
}

impl ChangeAndCompare {
    /// Decodes one. `ENOSYS` for operations that there are not, `EINVAL` for a bit beyond the word.
    fn decode(word: u32) -> Result<ChangeAndCompare, Errno> {
        let signed = |twelve_bits: u32| (twelve_bits << 20) as i32 >> 20;
        let operand = signed(word >> 12 & 0xfff);
        let operand = match word >> 28 & operation::OP_OPARG_SHIFT {
            0 => operand as u32,
            // As on Linux, only the lowest bits of the number count.
            _ => 1 << (operand & 31),
        };
        let (change, operand) = match word >> 28 & !operation::OP_OPARG_SHIFT {
            operation::OP_SET => (WordChange::Set, operand),
            operation::OP_ADD => (WordChange::Add, operand),
            operation::OP_OR => (WordChange::Or, operand),
            operation::OP_ANDN => (WordChange::And, !operand),
            operation::OP_XOR => (WordChange::ExclusiveOr, operand),
            _ => return Err(Errno::ENOSYS),
        };
        let comparison = word >> 24 & 0xf;
        if comparison > operation::OP_CMP_GE {
            return Err(Errno::ENOSYS);
        }
        Ok(ChangeAndCompare { change, operand, comparison, value: signed(word & 0xfff) })
    }

    /// Changes a word; returns whether the comparison holds for what it was.
    fn perform(&self, space: &Space, word: usize) -> Result<bool, Errno> {
        let changed = space.lock().change_u32(word as u64, self.change, self.operand);
        let before = changed.map_err(|_| Errno::EFAULT)? as i32;
        Ok(match self.comparison {
            operation::OP_CMP_EQ => before == self.value,
            operation::OP_CMP_NE => before != self.value,
            operation::OP_CMP_LT => before < self.value,
            operation::OP_CMP_LE => before <= self.value,
            operation::OP_CMP_GT => before > self.value,
            _ => before >= self.value,
        })
    }
}

/// Work of a call on the waiters of a word.
struct Work {
    round: Round,
    bits: u32,
    /// Number of waiters to wake, then number to move, and the word to which they move.
    wake: usize,
    moves: usize,
    to: usize,
    done: usize,
}

impl Work {
    /// Does a step; returns whether all is done.
    fn step(&mut self, table: &mut FutexTable) -> bool {
        if self.wake > 0 {
            let woken = table.wake(&mut self.round, self.wake, self.bits);
            self.wake -= woken;
            self.done += woken;
        } else {
            let moved = table.move_waiters(&mut self.round, self.to, self.moves);
            self.moves -= moved;
            self.done += moved;
        }
        !self.round.left || self.wake == 0 && self.moves == 0
    }

    /// Does the first step, and all of the work if that is enough. The rest of the work, which Linux does at once, goes
    /// on in steps; without memory for that, all of it is done here.
    fn begin<P: Ends + Send + Sync + 'static>(
        mut self,
        payer: &Arc<P>,
        futexes: &Arc<Futexes>,
        mut table: MutexGuard<'_, FutexTable>,
    ) -> FutexCall {
        loop {
            if self.step(&mut table) {
                return FutexCall::Done(self.done);
            }
            if has_machine_memory() {
                break;
            }
        }
        let (payer, futexes) = (payer.clone(), futexes.clone());
        FutexCall::More(Box::pin(async move {
            loop {
                steps::pause(&payer).await;
                if self.step(&mut futexes.0.lock()) {
                    return Ok(self.done);
                }
            }
        }))
    }
}

/// A `FUTEX_WAIT`, decoded.
#[doc(alias = "futex_q")]
#[doc(alias = "futex_wait")]
pub(crate) struct FutexWait {
    futexes: Arc<Futexes>,
    /// The key.
    word: usize,
    address: usize,
    expected: u32,
    bits: u32,
    limit: TimeLimit,
    /// The number by which the table has it; 0 before it is entered.
    ticket: u64,
}

impl FutexWait {
    /// Creates a wait without a time limit, for a process with these waiters at its words.
    pub(crate) fn new(space: &Space, own: &Arc<Futexes>, word: WaitedWord) -> Result<FutexWait, Errno> {
        let address = word_at(word.address as usize)?;
        let shared = if word.flags & operation::PRIVATE != 0 { None } else { common(space, address) };
        let (futexes, key) = shared.unwrap_or_else(|| (own.clone(), address));
        let (expected, bits, limit) = (word.value as u32, operation::BITSET_ANY, TimeLimit::Never);
        Ok(FutexWait { futexes, word: key, address, expected, bits, limit, ticket: 0 })
    }

    /// Returns whether it has entered the table and was taken out.
    pub(crate) fn is_woken(&self) -> bool {
        let table = self.futexes.0.lock();
        self.ticket != 0 && !table.queue.contains_key(&table.key(self.word, self.ticket))
    }

    /// Returns whether it waits for a limited time.
    pub(crate) fn has_limit(&self) -> bool {
        !matches!(self.limit, TimeLimit::Never)
    }

    /// Does one step: compares the word in this space, and enters the table if there is a waker; after that, looks
    /// whether it was taken out.
    pub(crate) fn poll(&mut self, space: &Space, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
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
        if load(space, self.address)? != self.expected {
            return Poll::Ready(Err(Errno::EAGAIN));
        }
        if self.limit.has_passed() {
            return Poll::Ready(Err(Errno::ETIMEDOUT));
        }
        if let Some(waker) = waker {
            self.limit.arm(waker)?;
            self.ticket = table.next_ticket();
            let waiter = Waiter { waker: waker.clone(), bits: self.bits, thread: 0 };
            // A worker has memory for the entry, which was kept free, and an asynchronous call was admitted before this
            // poll.
            faults::from_what_is_kept(|| table.queue.insert((self.word, self.ticket), waiter));
        }
        Poll::Pending
    }

    /// Ends the wait without a wake-up, unless there was one, which would be lost; returns whether there was.
    pub(crate) fn was_woken_before_its_end(&self) -> bool {
        let mut table = self.futexes.0.lock();
        if self.ticket == 0 {
            return false;
        }
        let was_woken = !table.queue.contains_key(&table.key(self.word, self.ticket));
        if !was_woken {
            // Under the same lock: later wake-ups are for others.
            table.remove(self.word, self.ticket);
        }
        was_woken
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&mut self) {
        if self.ticket != 0 {
            self.futexes.0.lock().remove(self.word, self.ticket);
        }
        self.limit.clear();
    }
}

/// A decoded `futex` call.
pub(crate) enum FutexCall {
    /// It may have to wait.
    Wait(FutexWait),
    /// It is done; so many were woken or moved.
    Done(usize),
    /// More must be woken or moved than in one step.
    More(Long),
    /// It is about a lock with an owner.
    OfLock,
}

/// Checks a word that can be a futex: aligned, and in the user half.
pub(super) fn word_at(address: usize) -> Result<usize, Errno> {
    if !address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    if address > USER_END - 4 { Err(Errno::EFAULT) } else { Ok(address) }
}

pub(super) fn load(space: &Space, word: usize) -> Result<u32, Errno> {
    space.lock().load_u32(word as u64).map_err(|_| Errno::EFAULT)
}

/// Returns the table and the key of a word in memory that processes have in common.
pub(super) fn common(space: &Space, word: usize) -> Option<(Arc<Futexes>, usize)> {
    let (companion, key) = {
        let space = space.lock();
        let (object, key) = space.object_at(word as u64)?;
        (object.companion().clone(), key as usize)
    };
    companion.downcast().ok().map(|futexes| (futexes, key))
}

/// Converts the number of waiters of a call. Linux wakes one for every number below.
fn at_least_one(number: usize) -> usize {
    (number as i32).max(1) as usize
}

/// Wakes waiters of a word, and then others of a second one.
fn wake_two<P: Ends + Send + Sync + 'static>(
    payer: &Arc<P>,
    (futexes, word): (Arc<Futexes>, usize),
    wake: usize,
    more: Option<((Arc<Futexes>, usize), usize)>,
) -> FutexCall {
    let bits = operation::BITSET_ANY;
    let all = |round: Round, wake: usize, done: usize| Work { round, bits, wake, moves: 0, to: 0, done };
    let table = futexes.0.lock();
    let round = table.round(word);
    let first = all(round, wake, 0).begin(payer, &futexes, table);
    let Some(((others, second), wake)) = more else { return first };
    match first {
        FutexCall::Done(done) => {
            let table = others.0.lock();
            let round = table.round(second);
            all(round, wake, done).begin(payer, &others, table)
        }
        FutexCall::More(rest) => {
            let payer = payer.clone();
            FutexCall::More(Box::pin(async move {
                let done = rest.await?;
                let round = others.0.lock().round(second);
                let mut work = Work { round, bits, wake, moves: 0, to: 0, done };
                while !work.step(&mut others.0.lock()) {
                    steps::pause(&payer).await;
                }
                Ok(work.done)
            }))
        }
        wait => wait,
    }
}

/// Performs the `futex` call of a process with this space, and these waiters at its words; work that need not wait is
/// done immediately.
#[doc(alias = "do_futex")]
pub(crate) fn call<C: Caller + Send + Sync + 'static>(
    caller: &Arc<C>,
    space: &Space,
    own: &Arc<Futexes>,
    [address, flags, value, timeout, second, value3]: [usize; 6],
) -> Result<FutexCall, Errno> {
    let (flags, value3) = (flags as u32, value3 as u32);
    let command = flags & !(operation::PRIVATE | operation::CLOCK_REALTIME);
    let is_real_time = flags & operation::CLOCK_REALTIME != 0;
    if is_real_time && command == operation::LOCK_WITH_CLOCK {
        return Ok(FutexCall::OfLock);
    }
    if is_real_time && command != operation::WAIT_BITSET {
        return Err(Errno::ENOSYS);
    }
    let bits = match command {
        operation::WAIT_BITSET | operation::WAKE_BITSET if value3 == 0 => return Err(Errno::EINVAL),
        operation::WAIT_BITSET | operation::WAKE_BITSET => value3,
        _ => operation::BITSET_ANY,
    };
    let is_private = flags & operation::PRIVATE != 0;
    let common = |word: usize| if is_private { None } else { common(space, word) };
    Ok(match command {
        operation::WAIT | operation::WAIT_BITSET => {
            let limit = match timeout {
                0 => TimeLimit::Never,
                _ => {
                    let ns = read_time(&**caller, timeout)?;
                    match command {
                        operation::WAIT => TimeLimit::after_ns(ns),
                        _ => limit_until(ns, is_real_time),
                    }
                }
            };
            let address = word_at(address)?;
            let (futexes, word) = common(address).unwrap_or_else(|| (own.clone(), address));
            FutexCall::Wait(FutexWait { futexes, word, address, expected: value as u32, bits, limit, ticket: 0 })
        }
        operation::WAKE | operation::WAKE_BITSET => {
            let address = word_at(address)?;
            let common = common(address);
            let (futexes, word) = common.as_ref().map_or((own, address), |(table, key)| (table, *key));
            let table = futexes.0.lock();
            let (round, wake) = (table.round(word), at_least_one(value));
            Work { round, bits, wake, moves: 0, to: 0, done: 0 }.begin(caller, futexes, table)
        }
        operation::WAKE_OP => {
            let (address, second) = (word_at(address)?, word_at(second)?);
            let change = ChangeAndCompare::decode(value3)?;
            let of = |word: usize| common(word).unwrap_or_else(|| (own.clone(), word));
            let (first, then) = (of(address), of(second));
            // A waiter of the second word sees the change when it compares, or is in the table by now.
            let wakes_both = change.perform(space, second)?;
            let more = wakes_both.then(|| (then, at_least_one(timeout)));
            wake_two(caller, first, at_least_one(value), more)
        }
        operation::REQUEUE | operation::CMP_REQUEUE => {
            // The timeout's place holds the number to move.
            let (wake, moves) = (value as i32, timeout as i32);
            if wake < 0 || moves < 0 {
                return Err(Errno::EINVAL);
            }
            let (address, second) = (word_at(address)?, word_at(second)?);
            // The new word of a moved waiter is recorded.
            caller.account().admit()?;
            let (from, to) = (common(address), common(second));
            let (futexes, word) = from.as_ref().map_or((own, address), |(table, key)| (table, *key));
            let (others, to) = to.as_ref().map_or((own, second), |(table, key)| (table, *key));
            if !Arc::ptr_eq(futexes, others) {
                // Waiters of two tables would have no order.
                return Err(Errno::EINVAL);
            }
            let table = futexes.0.lock();
            if command == operation::CMP_REQUEUE && load(space, address)? != value3 {
                return Err(Errno::EAGAIN);
            }
            let round = table.round(word);
            let work = Work { round, bits, wake: wake as usize, moves: moves as usize, to, done: 0 };
            work.begin(caller, futexes, table)
        }
        operation::LOCK | operation::LOCK_WITH_CLOCK | operation::TRY_LOCK | operation::UNLOCK => FutexCall::OfLock,
        _ => return Err(Errno::ENOSYS),
    })
}

/// Returns the limit of a wait until an absolute time, by one of two clocks.
pub(crate) fn limit_until(ns: u64, is_real_time: bool) -> TimeLimit {
    let ns = if is_real_time { ns.saturating_sub(time::epoch_ns()) } else { ns };
    TimeLimit::At(time::ticks_at_ns(ns))
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;
    use crate::testing::Bell;

    fn enter(table: &mut FutexTable, word: usize, bits: u32) -> (u64, Arc<Bell>) {
        let bell = Arc::new(Bell::default());
        let ticket = table.next_ticket();
        table.queue.insert((word, ticket), Waiter { waker: bell.clone().into(), bits, thread: 0 });
        (ticket, bell)
    }

    fn wake(table: &mut FutexTable, word: usize, count: usize, bits: u32) -> usize {
        let mut round = table.round(word);
        table.wake(&mut round, count, bits)
    }

    fn move_waiters(table: &mut FutexTable, word: usize, to: usize, count: usize) -> usize {
        let mut round = table.round(word);
        table.move_waiters(&mut round, to, count)
    }

    #[test]
    fn the_first_come_are_woken_first_and_only_those_meant() {
        let mut table = FutexTable::default();
        let bells: alloc::vec::Vec<_> = (0..5).map(|index| enter(&mut table, 8, 1 << (index % 2)).1).collect();
        let (_, other) = enter(&mut table, 12, u32::MAX);
        assert_eq!(wake(&mut table, 8, 1, u32::MAX), 1);
        assert_eq!(wake(&mut table, 8, 9, 2), 2);
        let rings: alloc::vec::Vec<_> = bells.iter().map(|bell| bell.0.load(Ordering::Relaxed)).collect();
        assert_eq!(rings, [1, 1, 0, 1, 0]);
        assert_eq!(wake(&mut table, 8, 9, u32::MAX), 2);
        assert_eq!(wake(&mut table, 8, 9, u32::MAX), 0);
        assert_eq!(other.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn requeued_waiters_are_found_at_the_other_word() {
        let mut table = FutexTable::default();
        let (first, bell) = enter(&mut table, 8, u32::MAX);
        let (second, _) = enter(&mut table, 8, u32::MAX);
        assert_eq!(move_waiters(&mut table, 8, 16, 1), 1);
        assert_eq!(wake(&mut table, 8, 9, u32::MAX), 1);
        assert!(!table.remove(8, second), "it was woken");
        assert_eq!(move_waiters(&mut table, 16, 24, 9), 1);
        assert_eq!(bell.0.load(Ordering::Relaxed), 0);
        assert!(table.remove(8, first), "it waits for a third word now");
        assert!(table.queue.is_empty() && table.moved.is_empty());
    }

    /// A step handles a bounded number, however many wait; all are woken in the end, also when most have other bits,
    /// and none that came after the beginning.
    #[test]
    fn thousands_are_woken_in_steps() {
        let mut table = FutexTable::default();
        let bells: alloc::vec::Vec<_> = (0..1000).map(|index| enter(&mut table, 8, 1 << (index % 8)).1).collect();
        let round = table.round(8);
        let mut work = Work { round, bits: 1, wake: usize::MAX, moves: 0, to: 0, done: 0 };
        let (mut rounds, mut late) = (0, None);
        loop {
            let before = work.done;
            let is_over = work.step(&mut table);
            assert!(work.done - before <= AT_A_TIME);
            late = late.or_else(|| Some(enter(&mut table, 8, 1)));
            rounds += 1;
            if is_over {
                break;
            }
        }
        assert_eq!(work.done, 125);
        assert!(rounds >= 1000 / AT_A_TIME);
        assert!(
            bells.iter().enumerate().all(|(index, bell)| bell.0.load(Ordering::Relaxed) == usize::from(index % 8 == 0))
        );
        assert_eq!(late.map(|(_, bell)| bell.0.load(Ordering::Relaxed)), Some(0));
    }

    #[test]
    fn a_change_and_a_comparison_are_decoded_as_linux_packs_them() {
        let pack = |change: u32, comparison: u32, operand: i32, value: i32| {
            change << 28 | comparison << 24 | (operand as u32 & 0xfff) << 12 | value as u32 & 0xfff
        };
        let decode = |word| ChangeAndCompare::decode(word).map(|decoded| (decoded.change, decoded.operand));
        assert_eq!(decode(pack(operation::OP_SET, 0, -1, 0)), Ok((WordChange::Set, u32::MAX)));
        assert_eq!(decode(pack(operation::OP_ADD, 5, 2047, 0)), Ok((WordChange::Add, 2047)));
        assert_eq!(decode(pack(operation::OP_ANDN, 1, 6, 0)), Ok((WordChange::And, !6)));
        let shifted = operation::OP_OR | operation::OP_OPARG_SHIFT;
        assert_eq!(decode(pack(shifted, 0, 31, 0)), Ok((WordChange::Or, 1 << 31)));
        assert_eq!(decode(pack(shifted, 0, 33, 0)), Ok((WordChange::Or, 2)));
        assert_eq!(decode(pack(5, 0, 0, 0)), Err(Errno::ENOSYS));
        assert_eq!(decode(pack(0, 6, 0, 0)), Err(Errno::ENOSYS));
        assert_eq!(ChangeAndCompare::decode(pack(0, 2, 0, -2048)).map(|decoded| decoded.value), Ok(-2048));
    }

    /// Moving to the same word, or in a circle, ends.
    #[test]
    fn a_round_meets_each_waiter_once() {
        let mut table = FutexTable::default();
        for _ in 0..100 {
            enter(&mut table, 8, u32::MAX);
        }
        let round = table.round(8);
        let mut work = Work { round, bits: u32::MAX, wake: 10, moves: usize::MAX, to: 8, done: 0 };
        let mut rounds = 0;
        while !work.step(&mut table) {
            rounds += 1;
            assert!(rounds < 100);
        }
        assert_eq!((work.done, table.queue.len()), (100, 90));
    }
}
