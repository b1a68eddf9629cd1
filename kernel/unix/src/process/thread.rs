//! Threads: workers that run their own code instead of the process's executor (clone(2)).
//!
//! To the kernel a thread is the same as a worker: registers, a switching coroutine, a place to sleep. The difference
//! lies in the memory that the process shares with the kernel for it, which is none: a worker has a word in the process
//! page in which it publishes its ready bitmap, so there are few workers; a thread publishes nothing, is as important
//! as its process was when it started, and there may be thousands. Workers have the slots below [`MAXIMUM_WORKERS`],
//! threads those from there on; a slot is reused only when all others have had their turn, so that an old thread's
//! number does not soon name a new one.
//!
//! A thread's end is handled for those that stay: its robust locks are marked as their owner's death, the word that it
//! named becomes 0, and waiters there are woken. When the process ends no thread stays; its robust locks are marked all
//! the same, for they may lie in memory that other processes have too.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use abi_queue::Priority;
use abi_unix::Errno;
use abi_unix::authority::Act;
use abi_unix::types::futex as number;
use memory::AddressSpace;

use crate::process::inheritance::LockOwner;
use crate::process::owned_lock::LockWord;
use crate::process::worker::Worker;
use crate::process::{MAXIMUM_WORKERS, Process, futex, table};
use crate::scheduling::steps;

/// Number of threads that one process can have, without its workers.
pub(crate) const MAXIMUM_THREADS: usize = 4096;
/// One more than the last slot: the thread numbers made of slots fit into the owner's bits of a lock word.
const SLOTS: usize = 0x4000;
/// Greatest number of entries of a robust list that are looked at, as on Linux.
const LONGEST_ROBUST_LIST: usize = 2048;
/// Number of times that a robust lock is tried that others change meanwhile.
const TRIES: usize = 64;

const _: () = assert!(SLOTS * 0x1_0000 - 1 <= number::THREAD_MASK as usize);
const _: () = assert!(MAXIMUM_THREADS < SLOTS - MAXIMUM_WORKERS);

/// The threads of a process, by slot.
#[doc(alias = "thread_group")]
#[derive(Default)]
pub(crate) struct Threads {
    entries: BTreeMap<usize, Arc<Worker>>,
    last: usize,
}

impl Threads {
    /// Creates an empty table.
    pub(crate) const fn new() -> Threads {
        Threads { entries: BTreeMap::new(), last: 0 }
    }

    /// Returns all threads.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.entries.values()
    }

    /// Returns the threads from this slot on.
    pub(crate) fn from(&self, slot: usize) -> impl Iterator<Item = &Arc<Worker>> {
        self.entries.range(slot..).map(|(_, thread)| thread)
    }

    /// Returns the thread with this slot.
    pub(crate) fn get(&self, slot: usize) -> Option<&Arc<Worker>> {
        self.entries.get(&slot)
    }

    /// Returns a free slot; `None` if there are too many threads.
    pub(crate) fn free_slot(&mut self) -> Option<usize> {
        if self.entries.len() >= MAXIMUM_THREADS {
            return None;
        }
        loop {
            self.last = if self.last + 1 >= SLOTS { MAXIMUM_WORKERS } else { (self.last + 1).max(MAXIMUM_WORKERS) };
            if !self.entries.contains_key(&self.last) {
                return Some(self.last);
            }
        }
    }

    /// Enters a thread.
    pub(crate) fn insert(&mut self, slot: usize, thread: Arc<Worker>) {
        self.entries.insert(slot, thread);
    }

    /// Removes a thread that has ended.
    pub(crate) fn remove(&mut self, slot: usize) -> Option<Arc<Worker>> {
        self.entries.remove(&slot)
    }

    /// Removes all threads.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

/// Returns the worker or thread of a process with this number; 0 means the caller.
pub(crate) fn find(caller: &Arc<Worker>, number: usize) -> Result<Arc<Worker>, Errno> {
    if number == 0 {
        return Ok(caller.clone());
    }
    with_number(&caller.process, number)
}

/// Returns the number of the process that has a thread of this number, if there is one.
pub(crate) fn process_of(number: u32) -> u32 {
    number % 0x1_0000
}

fn with_number(process: &Process, number: usize) -> Result<Arc<Worker>, Errno> {
    let above = number.checked_sub(process.id as usize).filter(|above| above.is_multiple_of(0x1_0000));
    above.and_then(|above| process.worker_or_thread(above / 0x1_0000)).ok_or(Errno::ESRCH)
}

/// Returns the worker or thread of a process with this number that goes on. A worker that has ended keeps its slot.
pub(crate) fn living(process: &Process, number: usize) -> Result<Arc<Worker>, Errno> {
    with_number(process, number).and_then(|thread| if thread.leaves() { Err(Errno::ESRCH) } else { Ok(thread) })
}

/// Returns the worker or thread with this number as the owner of a lock, if it goes on.
pub(crate) fn lock_owner(number: u32) -> Option<Arc<dyn LockOwner>> {
    let process = table::find(process_of(number))?;
    let owner = living(&process, number as usize).ok()?;
    Some(owner)
}

/// Performs the last actions of a worker or thread, for those who go on.
///
/// # Cancellation
/// Not to be dropped: others would wait for ever.
#[doc(alias = "mm_release")]
#[doc(alias = "CLONE_CHILD_CLEARTID")]
pub(crate) async fn depart(thread: &Worker) {
    give_up_locks(thread).await;
    let process = &thread.process;
    let word = thread.end_word();
    if !process.has_ended()
        && word != 0
        && word.is_multiple_of(4)
        && process.space().lock().store_u32(word as u64, 0).is_ok()
    {
        futex::wake_one(process.space(), process.futexes(), word);
    }
}

/// Marks the robust locks of a worker or thread as their owner's death, when it ends or executes another program.
///
/// # Cancellation
/// Not to be dropped: the rest would not be marked.
#[doc(alias = "exit_robust_list")]
pub(crate) async fn give_up_locks(thread: &Worker) {
    let head = thread.robust_list();
    if head != 0 {
        // A list that cannot be read is its thread's own affair.
        let _ = give_up_robust_locks(&thread.process, head, thread.thread_id()).await;
    }
}

/// Fails with `EFAULT` unless these bytes are there: an end makes no pages, which nobody admits.
fn require_present(space: &AddressSpace, address: usize, length: u64) -> Result<(), Errno> {
    if space.can_be_read_as_it_is(address as u64, length) { Ok(()) } else { Err(Errno::EFAULT) }
}

fn word(process: &Process, address: usize) -> Result<usize, Errno> {
    let (mut bytes, mut space) = ([0; 8], process.space().lock());
    require_present(&space, address, 8)?;
    space.copy_in(address as u64, &mut bytes).map_err(|_| Errno::EFAULT)?;
    Ok(usize::from_le_bytes(bytes))
}

/// Walks the list of robust locks (the kernel's documentation of "robust futexes"): first entry, offset from an entry
/// to its lock word, and the entry that is on its way in or out. The lowest bit of a word that leads to an entry says
/// that its lock is one [with an owner](crate::process::owned_lock).
async fn give_up_robust_locks(process: &Process, head: usize, owner: u32) -> Result<(), Errno> {
    let offset = word(process, head.wrapping_add(8))?;
    let pending = word(process, head.wrapping_add(16))?;
    let mut entry = word(process, head)?;
    for number in 1..=LONGEST_ROBUST_LIST {
        if entry & !1 == head {
            break;
        }
        // Read first: the next owner of the lock may change the list.
        let next = word(process, entry & !1)?;
        if entry & !1 != pending & !1 {
            give_up_lock(process, entry, offset, owner, false)?;
        }
        entry = next;
        if number % steps::ENTRIES == 0 {
            steps::pause_at_the_end().await;
        }
    }
    if pending & !1 != 0 {
        give_up_lock(process, pending, offset, owner, true)?;
    }
    Ok(())
}

fn give_up_lock(process: &Process, entry: usize, offset: usize, owner: u32, is_pending: bool) -> Result<(), Errno> {
    let (lock, has_owner) = ((entry & !1).wrapping_add(offset), entry & 1 != 0);
    if !lock.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    let (space, own) = (process.space(), process.futexes());
    // A lock that its thread has changed is on a page. Only one that the thread still owns is written to: a page that a
    // copy of the process has in common with it is copied then.
    require_present(&space.lock(), lock, 4)?;
    if has_owner {
        // Its owner does not release it by itself once there are waiters, so none can have missed a wake-up.
        return LockWord::new(space, own, lock, false)?.owner_has_died(space, owner, lock_owner).map(drop);
    }
    for _ in 0..TRIES {
        let value = space.lock().load_u32(lock as u64).map_err(|_| Errno::EFAULT)?;
        // It may have been released already, without a wake-up of its waiters.
        if is_pending && value == 0 {
            futex::wake_one(space, own, lock);
            return Ok(());
        }
        if value & number::THREAD_MASK != owner {
            return Ok(());
        }
        let new = value & number::WAITERS | number::OWNER_DIED;
        let exchanged = space.lock().compare_exchange_u32(lock as u64, value, new);
        if exchanged.map_err(|_| Errno::EFAULT)?.is_ok() {
            if value & number::WAITERS != 0 {
                futex::wake_one(space, own, lock);
            }
            return Ok(());
        }
    }
    Err(Errno::EAGAIN)
}

impl LockOwner for Worker {
    fn own_priority(&self) -> Priority {
        self.process.standing.worth(self.process.priority_of_rank())
    }

    fn inherit(&self, priority: Priority) {
        self.process.inherit(priority);
        self.order_anew();
    }

    fn disinherit(&self, priority: Priority) {
        self.process.disinherit(priority);
        self.order_anew();
    }

    fn may_inherit_from(&self, thread: u32) -> bool {
        // As for a call that sets its priority, which is no matter of users.
        let may_schedule =
            |lender: &Process| lender.authority.permits(Act::Schedule) || table::is_below(&self.process, lender);
        let lender = process_of(thread);
        lender == self.process.id || table::find(lender).is_some_and(|lender| may_schedule(&lender))
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use abi_unix::types::{clone as flag, futex};

    use super::*;
    use crate::testing::{Program, run};

    const EXISTING: usize = (flag::SHARED | flag::SETTLS | flag::CHILD_CLEARTID | flag::CHILD_SETTID) as usize;
    const WITH_PARENT: usize = EXISTING | flag::PARENT_SETTID as usize;

    fn start(
        program: &mut Program,
        flags: usize,
        words: (usize, usize),
        body: impl FnOnce(&mut Program) + Send + 'static,
    ) -> Result<usize, Errno> {
        let identity = program.identity_for(body);
        program.call(SystemCall::Clone, [flags, 0x3_0000, words.0, identity, words.1])
    }

    #[test]
    fn a_thread_has_a_number_of_its_own_which_is_told_where_it_was_asked_for() {
        run(|program| {
            let words = (program.place(8), program.place(8));
            let own = program.place(8);
            let process = program.id as usize;
            let thread = start(program, WITH_PARENT, words, move |program| {
                assert_eq!(program.given, 0, "clone gives 0 to the thread");
                let number = program.call(SystemCall::GetThread, []).unwrap();
                program.write(own, &number.to_le_bytes());
                assert_eq!(program.call(SystemCall::GetProcess, []), Ok(process));
                assert_eq!(program.read_u32(words.1) as usize, number);
                program.sleep_ns(1_000_000);
            });
            let thread = thread.unwrap();
            assert_eq!(program.read_u32(words.0) as usize, thread);
            program.sleep_ns(500_000);
            assert_eq!(program.read_u64(own) as usize, thread);
            assert_ne!(program.call(SystemCall::GetThread, []), Ok(thread));
            program.sleep_ns(2_000_000);
            assert_eq!(program.read_u32(words.1), 0, "the word becomes 0 at its end");
        });
    }

    /// `pthread_join`: waits on the word that becomes 0.
    #[test]
    fn the_end_of_a_thread_wakes_the_waiters_at_its_word() {
        run(|program| {
            let word = program.place(8);
            let thread = start(program, EXISTING, (0, word), |program| program.sleep_ns(1_000_000)).unwrap();
            let result = program.call(SystemCall::Futex, [word, futex::WAIT as usize, thread, 0, 0, 0]);
            assert_eq!((result, program.read_u32(word)), (Ok(0), 0));
        });
    }

    #[test]
    fn invalid_thread_numbers_are_refused() {
        run(|program| {
            let clone =
                |program: &mut Program, flags: u64| program.call(SystemCall::Clone, [flags as usize, 0, 0, 0, 0]);
            for without in [flag::VM, flag::SIGHAND] {
                assert_eq!(clone(program, flag::SHARED & !without), Err(Errno::EINVAL), "{without:#x}");
            }
            for flags in [
                flag::VM,
                flag::SHARED & !flag::FS,
                flag::SHARED & !flag::FILES,
                flag::SHARED & !flag::THREAD,
                flag::SHARED | flag::PIDFD,
                flag::FILES | 17,
            ] {
                assert_eq!(clone(program, flags), Err(Errno::ENOSYS), "{flags:#x}");
            }
            assert_eq!(clone(program, flag::SHARED | flag::NEWNS), Err(Errno::EINVAL));
        });
    }

    /// A bad address for the thread's number does not keep it from starting.
    #[test]
    fn numbers_that_cannot_be_written_are_not_missed() {
        run(|program| {
            let done = program.place(8);
            let bad = (0x1000, 0x1001);
            assert!(start(program, WITH_PARENT, bad, move |program| program.write(done, &[1])).is_ok());
            program.sleep_ns(1_000_000);
            assert_eq!(program.read(done, 1), [1]);
        });
    }

    /// Priorities are inherited within a process, and from those that may set them.
    #[test]
    fn a_stranger_lends_no_priority() {
        run(|program| {
            let parent = program.process().worker(0).unwrap();
            assert!(
                parent.may_inherit_from(parent.thread_id()) && parent.may_inherit_from(parent.thread_id() + 0x1_0000)
            );
            let child = program.fork(move |program| {
                let own = program.process().worker(0).unwrap();
                assert!(own.may_inherit_from(parent.thread_id()), "it is below its parent");
                assert!(!parent.may_inherit_from(own.thread_id()));
                assert!(!parent.may_inherit_from(9999));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// The locks on the list of a thread that ends: one that the thread holds is marked and its waiter woken, one that
    /// another thread holds stays, and a free one on its way in or out wakes a waiter that may have missed its wake-up.
    #[test]
    fn robust_locks_of_a_thread_that_ends_are_marked() {
        run(|program| {
            let word = program.place(8);
            // The head (first, offset, pending), then two entries of a link and a lock.
            let head = program.place(24);
            let (held, others, pending) = (program.place(16), program.place(16), program.place(16));
            let thread = start(program, EXISTING, (0, word), move |program| {
                let number = program.call(SystemCall::GetThread, []).unwrap() as u32;
                for (place, value) in
                    [(head, held), (head + 8, 8), (head + 16, pending), (held, others), (others, head)]
                {
                    program.write(place, &value.to_le_bytes());
                }
                program.write(held + 8, &(number | futex::WAITERS).to_le_bytes());
                program.write(others + 8, &(number + 0x1_0000).to_le_bytes());
                assert_eq!(program.call(SystemCall::SetRobustList, [head, 23]), Err(Errno::EINVAL));
                assert_eq!(program.call(SystemCall::SetRobustList, [head, futex::ROBUST_HEAD]), Ok(0));
                program.sleep_ns(2_000_000);
            });
            let thread = thread.unwrap() as u32;
            program.sleep_ns(1_000_000);
            let found = program.place(16);
            assert_eq!(program.call(SystemCall::GetRobustList, [thread as usize, found, found + 8]), Ok(0));
            assert_eq!((program.read_u64(found) as usize, program.read_u64(found + 8)), (head, 24));
            let waiting = program.place(8);
            program
                .add_worker(move |program| {
                    assert_eq!(program.call(SystemCall::Futex, [pending + 8, futex::WAIT as usize, 0, 0]), Ok(0));
                    program.write(waiting, &[1]);
                })
                .unwrap();
            let expected = (thread | futex::WAITERS) as usize;
            assert_eq!(program.call(SystemCall::Futex, [held + 8, futex::WAIT as usize, expected, 0]), Ok(0));
            assert_eq!(program.read_u32(held + 8), futex::WAITERS | futex::OWNER_DIED);
            assert_eq!(program.read_u32(others + 8), thread + 0x1_0000);
            program.sleep_ns(1_000_000);
            assert_eq!(program.read(waiting, 1), [1]);
            assert_eq!(program.call(SystemCall::GetRobustList, [thread as usize, found, found + 8]), Err(Errno::ESRCH));
        });
    }

    /// Lists in a circle, behind bad addresses, or with locks at odd ones end no thread but their own.
    #[test]
    fn a_robust_list_that_makes_no_sense_is_left() {
        run(|program| {
            let word = program.place(8);
            let place = program.place(64);
            let lists: [(usize, usize, usize); 4] =
                [(place + 24, 8, 0), (0x1000, 8, 0), (place + 24, 9, 0), (place, 8, 0x1000)];
            for (first, offset, pending) in lists {
                let thread = start(program, EXISTING, (0, word), move |program| {
                    for (index, value) in [first, offset, pending, place + 24].into_iter().enumerate() {
                        program.write(place + 8 * index, &value.to_le_bytes());
                    }
                    program.call(SystemCall::SetRobustList, [place, futex::ROBUST_HEAD]).unwrap();
                });
                let thread = thread.unwrap();
                let ended = program.call(SystemCall::Futex, [word, futex::WAIT as usize, thread, 0]);
                assert!(matches!(ended, Ok(0) | Err(Errno::EAGAIN)));
            }
        });
    }

    /// Entries on pages that were never touched end the list, and make no pages.
    #[test]
    fn a_robust_list_makes_no_pages() {
        run(|program| {
            const PAGE: usize = 4096;
            let word = program.place(8);
            let mapped = program.call(SystemCall::Map, [0, 64 * PAGE, 3, 0x22, usize::MAX, 0]).unwrap();
            let head = program.place(24);
            let frames = |program: &Program| program.process().space().lock().resident_frames();
            let lists = [(mapped, 8, 0), (head + 24, mapped - head - 24, 0), (head, 8, mapped + PAGE)];
            for (first, offset, pending) in lists {
                let thread = start(program, EXISTING, (0, word), move |program| {
                    for (index, value) in [first, offset, pending, head].into_iter().enumerate() {
                        program.write(head + 8 * index, &value.to_le_bytes());
                    }
                    program.call(SystemCall::SetRobustList, [head, futex::ROBUST_HEAD]).unwrap();
                });
                let thread = thread.unwrap();
                let before = frames(program);
                let ended = program.call(SystemCall::Futex, [word, futex::WAIT as usize, thread, 0]);
                assert!(matches!(ended, Ok(0) | Err(Errno::EAGAIN)));
                assert_eq!(frames(program), before, "{first:#x} {offset:#x} {pending:#x}");
            }
        });
    }

    #[test]
    fn a_slot_is_used_again_only_after_all_others() {
        let mut threads = Threads::new();
        let slots: Vec<_> = (0..SLOTS - MAXIMUM_WORKERS).map(|_| threads.free_slot().unwrap()).collect();
        assert_eq!(slots[0], MAXIMUM_WORKERS);
        assert!(slots.windows(2).all(|pair| pair[1] == pair[0] + 1));
        assert_eq!(slots.last(), Some(&(SLOTS - 1)));
        assert_eq!(threads.free_slot(), Some(MAXIMUM_WORKERS));
    }
}
