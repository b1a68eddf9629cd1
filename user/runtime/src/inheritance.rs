//! Priorities lent to coroutines, because more important ones wait for locks that they hold.
//!
//! A *debtor* has its own priority and one loan for each of its locks with a more important waiter; it runs with the
//! best of them. Own and lent priorities are kept apart, so that locks can be given up in any order, and so that
//! [`set_priority`](crate::set_priority) changes the coroutine's own and does not end a loan. Only debtors are in the
//! table: a lock without a more important waiter is never entered.

use alloc::collections::BTreeMap;

use abi_queue::Priority;
use coroutine::{Cid, Stale};

use crate::executor;
use crate::lock::Lock;

struct Debtor {
    own: Priority,
    /// Lent priorities, by the number of the lock.
    loans: BTreeMap<usize, Priority>,
}

impl Debtor {
    /// Returns the effective priority: the best of its own and the lent ones.
    fn priority(&self) -> Priority {
        self.loans.values().fold(self.own, |best, &loan| if loan.is_more_important_than(best) { loan } else { best })
    }
}

/// Debtors by cid.
static DEBTORS: Lock<BTreeMap<u64, Debtor>> = Lock::new(BTreeMap::new());

/// The outcome of lending or repaying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loan {
    /// No loan: the holder is as important already, or is no coroutine. `changed`: its priority has changed.
    None { changed: bool },
    /// A loan. `changed`: the holder's priority has changed.
    Made { changed: bool },
}

/// Returns the cid of the calling coroutine; 0 outside of one.
pub(crate) fn caller() -> u64 {
    executor::current_or_none().map_or(0, Cid::raw)
}

/// Returns the current priority of a coroutine; the default for cid 0.
pub(crate) fn priority_of(cid: u64) -> Priority {
    if cid == 0 { Priority::DEFAULT } else { executor::priority(Cid::from_raw(cid)).unwrap_or_default() }
}

/// Lends a priority to the holder of a lock, replacing an earlier loan for that lock (`again`).
pub(crate) fn lend(holder: u64, lock: usize, priority: Priority, again: bool) -> Loan {
    if holder == 0 {
        return Loan::None { changed: false };
    }
    let mut debtors = DEBTORS.lock();
    let Ok(before) = executor::priority(Cid::from_raw(holder)) else { return Loan::None { changed: false } };
    if !again && !priority.is_more_important_than(before) {
        return Loan::None { changed: false };
    }
    let debtor = debtors.entry(holder).or_insert_with(|| Debtor { own: before, loans: BTreeMap::new() });
    debtor.loans.insert(lock, priority);
    let after = debtor.priority();
    let _ = executor::set_own_priority(Cid::from_raw(holder), after);
    Loan::Made { changed: after != before }
}

/// Ends the loan for a lock.
pub(crate) fn repay(holder: u64, lock: usize) -> Loan {
    let mut debtors = DEBTORS.lock();
    let mut changed = false;
    if let Some(debtor) = debtors.get_mut(&holder) {
        let before = debtor.priority();
        debtor.loans.remove(&lock);
        let priority = debtor.priority();
        changed = priority != before;
        if debtor.loans.is_empty() {
            debtors.remove(&holder);
        }
        // A coroutine that has ended has given its guard away, and needs no priority.
        let _ = executor::set_own_priority(Cid::from_raw(holder), priority);
    }
    Loan::None { changed }
}

/// Sets a coroutine's own priority; a better loan stays in effect.
pub(crate) fn set_own(cid: Cid, priority: Priority) -> Result<(), Stale> {
    // Locked although there are hardly ever debtors: the first loan may be on its way at another worker, which has read
    // the priority that changes here.
    let mut debtors = DEBTORS.lock();
    let priority = match debtors.get_mut(&cid.raw()) {
        Some(debtor) => {
            debtor.own = priority;
            debtor.priority()
        }
        None => priority,
    };
    executor::set_own_priority(cid, priority)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn a_debtor_has_the_best_of_its_own_and_its_loans(
            own in 0u8..64,
            steps in prop::collection::vec((0usize..4, prop::option::of(0u8..64)), 0..40),
        ) {
            let mut debtor = Debtor { own: Priority::saturating(own.into()), loans: BTreeMap::new() };
            let mut model = [None; 4];
            for (lock, loan) in steps {
                model[lock] = loan;
                match loan {
                    Some(priority) => debtor.loans.insert(lock, Priority::saturating(priority.into())),
                    None => debtor.loans.remove(&lock),
                };
                let expected = model.iter().flatten().copied().fold(own, u8::min);
                prop_assert_eq!(debtor.priority().number(), expected);
            }
        }
    }
}
