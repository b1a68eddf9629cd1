//! Waits at several futexes at once (`futex_waitv`).
//!
//! The words are entered one after the other, each compared under the lock of its own table: so a word that changes
//! before the call is complete is either seen, or its waker finds the waiter. All of them have the waiter's one waker;
//! the first that was woken, in the order of the list, is the result. The others are taken out then, and a wake-up that
//! comes to one of them meanwhile is lost, as on Linux: the program looks at its words again.

use alloc::vec::Vec;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use usermode::Space;

use crate::files::remains::{Remain, leave};
use crate::process::accounts::{Charge, Resource};
use crate::process::futex::FutexWait;
use crate::scheduling::steps::{self, Ends};
use crate::time::limit::TimeLimit;

/// Bytes of memory for a word of a list, with its entry in the table.
pub(crate) const MEMORY_OF_A_WORD: usize = size_of::<FutexWait>() + 96;

/// A `futex_waitv`, decoded.
#[doc(alias = "futex_wait_multiple")]
pub(crate) struct FutexList {
    waits: Vec<FutexWait>,
    /// Number of words whose tables it is in.
    entered: usize,
    limit: TimeLimit,
    /// Number of the process that pays.
    owner: u32,
    charge: Charge,
}

impl FutexList {
    /// Creates one for these words, with the charge for their memory, for the process with this number.
    pub(crate) fn new(waits: Vec<FutexWait>, limit: TimeLimit, owner: u32, charge: Charge) -> FutexList {
        FutexList { waits, entered: 0, limit, owner, charge }
    }

    /// Returns the index of the first word that was woken.
    fn woken(&self) -> Option<usize> {
        self.waits[..self.entered].iter().position(FutexWait::is_woken)
    }

    /// Goes on as far as possible: compares the words, and enters their tables if there is a waker; after that, looks
    /// whether one was woken. Each part of the entries is admitted by itself: `ENOMEM`.
    pub(crate) fn poll(
        &mut self,
        payer: &(impl Ends + ?Sized),
        space: &Space,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        while self.entered < self.waits.len() {
            if waker.is_some()
                && let Err(error) = self.charge.account().admit()
            {
                return Poll::Ready(self.woken().ok_or(error));
            }
            let end = self.waits.len().min(self.entered + steps::ENTRIES);
            for index in self.entered..end {
                if let Poll::Ready(result) = self.waits[index].poll(space, waker) {
                    return Poll::Ready(self.woken().map_or(result, Ok));
                }
                if waker.is_some() {
                    self.entered = index + 1;
                }
            }
            // In place one step is all, and enters nothing.
            if waker.is_none() || end < self.waits.len() && steps::must_pause(payer, waker) {
                return Poll::Pending;
            }
        }
        if let Some(index) = self.woken() {
            return Poll::Ready(Ok(index));
        }
        if self.limit.has_passed() {
            return Poll::Ready(Err(Errno::ETIMEDOUT));
        }
        if let Some(waker) = waker {
            self.limit.arm(waker)?;
        }
        Poll::Pending
    }

    /// Ends the wait without a wake-up, unless there was one, which would be lost; returns its index.
    pub(crate) fn woken_before_its_end(&self) -> Option<usize> {
        // Each is taken out, so that later wake-ups are for others.
        let entered = self.waits[..self.entered].iter().enumerate();
        entered.fold(None, |first, (index, wait)| {
            let was_woken = wait.was_woken_before_its_end();
            first.or(was_woken.then_some(index))
        })
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&mut self) {
        self.limit.clear();
        let entered = core::mem::take(&mut self.entered);
        let mut waits = core::mem::take(&mut self.waits);
        waits.truncate(entered);
        if !waits.is_empty() {
            let charge = self.charge.account().nothing(Resource::Memory);
            leave(EnteredWords { waits, owner: self.owner, _charge: core::mem::replace(&mut self.charge, charge) });
        }
    }
}

impl Drop for FutexList {
    fn drop(&mut self) {
        // It may have failed in the middle of the list.
        self.forget();
    }
}

/// Words whose tables a wait is still in.
struct EnteredWords {
    waits: Vec<FutexWait>,
    owner: u32,
    _charge: Charge,
}

impl Remain for EnteredWords {
    fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    fn step(&mut self) -> bool {
        for _ in 0..steps::ENTRIES {
            let Some(mut wait) = self.waits.pop() else { break };
            wait.forget();
        }
        self.waits.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::futex as operation;
    use abi_unix::types::{TimeSpec, clock};

    use super::*;
    use crate::process::accounts::Resource;
    use crate::testing::{Program, run};

    /// Stores a list of words with the values that are waited for.
    fn list(program: &mut Program, words: &[(usize, u32)]) -> usize {
        let flags = u64::from(operation::SIZE_U32 | operation::PRIVATE);
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|&(address, value)| [u64::from(value), address as u64, flags].map(u64::to_le_bytes).concat())
            .collect();
        program.store(&bytes)
    }

    fn wake(program: &mut Program, word: usize) -> Result<usize, Errno> {
        program.call(SystemCall::Futex, [word, (operation::WAKE | operation::PRIVATE) as usize, 9, 0, 0, 0])
    }

    #[test]
    fn nonsense_is_refused() {
        run(|program| {
            let word = program.place(8);
            let words = list(program, &[(word, 0)]);
            let time = program.store(&TimeSpec::from_ns(1).to_bytes());
            let bad = program.store(&[0, 1_000_000_000u64].map(u64::to_le_bytes).concat());
            for (arguments, error) in [
                ([0, 1, 0, 0, 0], Errno::EINVAL),
                ([words, 0, 0, 0, 0], Errno::EINVAL),
                ([words, 129, 0, 0, 0], Errno::EINVAL),
                ([words, 1, 1, 0, 0], Errno::EINVAL),
                ([words, 1, 0, time, 5], Errno::EINVAL),
                ([words, 1, 0, bad, 1], Errno::EINVAL),
                ([words, 1, 0, 0x1000, 1], Errno::EFAULT),
                ([0x1000, 1, 0, 0, 0], Errno::EFAULT),
                ([words, 1, 0, time, clock::MONOTONIC as usize], Errno::ETIMEDOUT),
            ] {
                assert_eq!(program.call(SystemCall::FutexWaits, arguments), Err(error), "{arguments:?}");
            }
            for (at, value, error) in [
                (0, 1u64, Errno::EAGAIN),
                (0, 1 << 32, Errno::EINVAL),
                (8, word as u64 + 2, Errno::EINVAL),
                (8, 0x1000, Errno::EFAULT),
                (16, 0, Errno::EINVAL),
                (16, 3, Errno::EINVAL),
                (16, 2 | 1 << 32, Errno::EINVAL),
                (16, 2 | 4, Errno::EINVAL),
            ] {
                let words = list(program, &[(word, 0)]);
                program.write(words + at, &value.to_le_bytes());
                assert_eq!(program.call(SystemCall::FutexWaits, [words, 1, 0, 0, 0]), Err(error), "{at} {value}");
            }
        });
    }

    /// The reserve of memory is looked at before each part of a list enters its tables.
    #[test]
    fn each_part_of_a_list_is_admitted() {
        use abi_unix::types::futex::WaitedWord;

        use crate::process::accounts::ResourceLimit;

        run(|program| {
            let place = program.place(4 * operation::WAITV_MAX);
            let process = program.process();
            let account = &process.account;
            let make = || {
                let words = (0..operation::WAITV_MAX).map(|index| {
                    let address = (place + 4 * index) as u64;
                    let flags = operation::SIZE_U32 | operation::PRIVATE;
                    let word = WaitedWord { value: 0, address, flags, reserved: 0 };
                    FutexWait::new(process.space(), process.futexes(), word).unwrap()
                });
                let charge = account.charge(Resource::Memory, operation::WAITV_MAX * MEMORY_OF_A_WORD).unwrap();
                FutexList::new(words.collect(), TimeLimit::Never, process.id, charge)
            };
            let waker = Waker::noop();
            let mut list = make();
            assert_eq!(list.poll(&process, process.space(), Some(waker)), Poll::Pending);
            list.forget();
            let mut list = make();
            let before = account.limit(Resource::Memory);
            account.set_limit(Resource::Memory, ResourceLimit { soft: 1, ..before });
            assert_eq!(list.poll(&process, process.space(), None), Poll::Pending, "nothing is entered in place");
            assert_eq!(list.poll(&process, process.space(), Some(waker)), Poll::Ready(Err(Errno::ENOMEM)));
            assert_eq!(list.entered, 0);
            account.set_limit(Resource::Memory, before);
        });
    }

    /// The longest list is entered in steps; any of its words ends the wait, and none is left in a table.
    #[test]
    fn any_word_of_a_list_ends_the_wait() {
        run(|program| {
            let place = program.place(4 * operation::WAITV_MAX);
            let words: Vec<_> = (0..operation::WAITV_MAX).map(|index| (place + 4 * index, 0)).collect();
            let all = list(program, &words);
            let charged = |program: &Program| program.process().account.used(Resource::Memory);
            // Calls in flight are charged some at a time: measured after the first.
            assert_eq!(program.submit(SystemCall::FutexWaits, [all, words.len(), 0, 0, 0], 6), None);
            program.sleep_ns(1_000_000);
            assert_eq!(wake(program, words[5].0), Ok(1));
            assert_eq!(program.await_completions(), [(6, Ok(5))]);
            program.sleep_ns(1_000_000);
            let before = charged(program);
            for index in [0, 1, 31, 32, 100, 127] {
                assert_eq!(program.submit(SystemCall::FutexWaits, [all, words.len(), 0, 0, 0], 7), None);
                program.sleep_ns(1_000_000);
                assert_eq!(wake(program, words[index].0), Ok(1));
                assert_eq!(program.await_completions(), [(7, Ok(index))]);
                program.sleep_ns(1_000_000);
                for (word, _) in &words {
                    assert_eq!(wake(program, *word), Ok(0), "nobody waits any more");
                }
            }
            // One value differs, of the last word; the words before it are left again.
            program.write(words[127].0, &1u32.to_le_bytes());
            assert_eq!(program.call(SystemCall::FutexWaits, [all, words.len(), 0, 0, 0]), Err(Errno::EAGAIN));
            program.sleep_ns(1_000_000);
            assert_eq!(wake(program, words[0].0), Ok(0));
            // A cancelled wait, and one that ends with its time.
            assert_eq!(program.submit(SystemCall::FutexWaits, [all, 100, 0, 0, 0], 8), None);
            program.sleep_ns(1_000_000);
            assert_eq!(program.call(SystemCall::Cancel, [8]), Ok(0));
            assert_eq!(program.await_completions(), [(8, Err(Errno::ECANCELED))]);
            let soon = TimeSpec::from_ns(crate::time::now_ns() + 2_000_000).to_bytes();
            let soon = program.store(&soon);
            let limited = [all, 100, 0, soon, clock::MONOTONIC as usize];
            assert_eq!(program.call(SystemCall::FutexWaits, limited), Err(Errno::ETIMEDOUT));
            program.sleep_ns(1_000_000);
            assert_eq!(wake(program, words[99].0), Ok(0));
            let after = charged(program);
            assert!(after <= before + 4096, "{before} bytes were charged, and {after} afterwards");
        });
    }
}
