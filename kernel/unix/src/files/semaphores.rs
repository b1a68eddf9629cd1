//! Sets of semaphores with numbers and keys (System V's, semop(2)).
//!
//! A call changes several semaphores of a set at once, or none and waits. All waiters of a set are woken by each change
//! of it, and look again: a call can wait for any combination, and sets are small. A set outlives its maker, and is
//! charged as a file is (`Resource::Files`).
//!
//! # Undoing
//!
//! With `SEM_UNDO` a process owes the set the contrary of a change, and pays at its end, when none of its calls goes
//! on. Its debts are noted in the process, at its own expense, with the set's number and the serial number that no
//! other set has; no debt is greater than a value can be. A semaphore that is set to a value begins a new age, and
//! debts of an older age are forgotten. Debts to sets that were removed are looked for whenever a new debt is noted,
//! two at a time: so they are never more than the others.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::segment as shared;
use abi_unix::types::semaphore::{self as number, SemaphoreOperation, SetStatus};
use spin::Mutex;
use tables::Table;
use waiters::Waiters;

use crate::files::keyed::KeyedObjects;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::capabilities::{Authority, Maker};
use crate::random;
use crate::scheduling::steps::{self, Ends};
use crate::time;
use crate::time::limit::TimeLimit;

/// Bytes for a set beside its semaphores: itself, its maker, and its entries in the table.
const BYTES: usize = size_of::<SemaphoreSet>() + Maker::BYTES + 256;
/// Bytes for a debt.
const BYTES_OF_A_DEBT: usize = size_of::<Debt>() + 32;

/// A semaphore.
#[derive(Clone, Copy, Default)]
struct Semaphore {
    value: u16,
    /// Numbers of waits for a greater value, and for 0.
    wait_for_more: u16,
    wait_for_zero: u16,
    /// Number of the process that has changed it last.
    last: u32,
    age: u32,
}

/// The part of a set that changes.
struct SetState {
    key: i32,
    mode: u32,
    user: u32,
    group: u32,
    semaphores: Vec<Semaphore>,
    is_removed: bool,
    /// Times in seconds.
    operated: u64,
    changed: u64,
    waiters: Waiters,
}

/// A set of semaphores.
#[doc(alias = "sem_array")]
pub(crate) struct SemaphoreSet {
    id: u32,
    /// A number that no other set has or had.
    serial: u64,
    maker: Maker,
    state: Mutex<SetState>,
    _charge: Charge,
}

static TABLE: Mutex<KeyedObjects<Arc<SemaphoreSet>>> = Mutex::new(KeyedObjects::new());
/// The serial number of the next set.
static SERIALS: AtomicU64 = AtomicU64::new(0);
/// Debts that are looked at when a new one is noted.
const LOOKED_AT: usize = 2;

fn seconds() -> u64 {
    time::epoch_ns().saturating_add(time::now_ns()) / 1_000_000_000
}

/// Returns the set with this number. `EINVAL` if there is none.
pub(crate) fn find(id: i32) -> Result<Arc<SemaphoreSet>, Errno> {
    let id = u32::try_from(id).map_err(|_| Errno::EINVAL)?;
    TABLE.lock().get(id).cloned().ok_or(Errno::EINVAL)
}

/// Performs `semget` for a process with this account, as the maker.
pub(crate) fn get(account: &Arc<Account>, maker: Maker, key: i32, count: i32, flags: u32) -> Result<u32, Errno> {
    let count = usize::try_from(count).ok().filter(|count| *count <= number::MOST_OF_A_SET).ok_or(Errno::EINVAL)?;
    let found = TABLE.lock().with_key(key, flags)?.cloned();
    if let Some(set) = found {
        let (has, mode) = {
            let state = set.state.lock();
            (state.semaphores.len(), state.mode)
        };
        set.maker.permit_use_by(&maker, mode, flags)?;
        return if count > has { Err(Errno::EINVAL) } else { Ok(set.id) };
    }
    if count == 0 || flags & !(shared::CREATE | shared::EXCLUSIVE | 0o777) != 0 {
        return Err(Errno::EINVAL);
    }
    let charge = account.charge(Resource::Files, BYTES + count * size_of::<Semaphore>())?;
    let mut semaphores = Vec::new();
    semaphores.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    semaphores.resize(count, Semaphore::default());
    let state = SetState {
        key,
        mode: flags & 0o777,
        user: 0,
        group: 0,
        semaphores,
        is_removed: false,
        operated: 0,
        changed: seconds(),
        waiters: Waiters::new(),
    };
    let mut table = TABLE.lock();
    if !matches!(table.with_key(key, flags), Ok(None)) {
        // Another process was faster.
        drop(table);
        return get(account, maker, key, count as i32, flags);
    }
    let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
    let state = Mutex::new(state);
    Ok(table.insert(key, |id| Arc::new(SemaphoreSet { id, serial, maker, state, _charge: charge })))
}

impl SetState {
    /// Fails with `EIDRM` if the set was removed.
    fn require(&mut self) -> Result<&mut SetState, Errno> {
        if self.is_removed { Err(Errno::EIDRM) } else { Ok(self) }
    }

    fn semaphore(&mut self, index: usize) -> Result<&mut Semaphore, Errno> {
        self.require()?.semaphores.get_mut(index).ok_or(Errno::EINVAL)
    }

    /// Sets a semaphore, of which nothing is owed any more.
    fn set(&mut self, index: usize, value: u16, by: u32) {
        if let Some(semaphore) = self.semaphores.get_mut(index) {
            (semaphore.value, semaphore.last) = (value, by);
            semaphore.age = semaphore.age.wrapping_add(1);
        }
    }

    /// Makes all changes, or none: then returns the index of the operation that cannot be made, and why.
    fn change(&mut self, operations: &[SemaphoreOperation], by: u32) -> Result<(), Refusal> {
        for (done, operation) in operations.iter().enumerate() {
            let change = i32::from(operation.change);
            let refusal = match self.semaphores.get_mut(usize::from(operation.index)) {
                None => Some(Refusal::Fails(Errno::EFBIG)),
                Some(semaphore) => {
                    let value = i32::from(semaphore.value) + change;
                    match change {
                        0 if value != 0 => Some(Refusal::Waits(done)),
                        _ if value < 0 => Some(Refusal::Waits(done)),
                        _ if value > i32::from(number::GREATEST_VALUE) => Some(Refusal::Fails(Errno::ERANGE)),
                        _ => {
                            semaphore.value = value as u16;
                            None
                        }
                    }
                }
            };
            if let Some(refusal) = refusal {
                for operation in &operations[..done] {
                    let semaphore = &mut self.semaphores[usize::from(operation.index)];
                    semaphore.value = (i32::from(semaphore.value) - i32::from(operation.change)) as u16;
                }
                return Err(refusal);
            }
        }
        for operation in operations {
            self.semaphores[usize::from(operation.index)].last = by;
        }
        self.operated = seconds();
        Ok(())
    }
}

/// Reason why changes were not made.
enum Refusal {
    Fails(Errno),
    /// The operation with this index has to wait.
    Waits(usize),
}

/// A change of several semaphores, decoded.
#[doc(alias = "do_semtimedop")]
pub(crate) struct SemaphoreWait {
    set: Arc<SemaphoreSet>,
    operations: Vec<SemaphoreOperation>,
    /// Number of operations for whose debts there is room.
    noted: usize,
    limit: TimeLimit,
    /// Number of the process.
    process: u32,
    /// The semaphore for which it is counted as a waiter, and whether it waits for 0.
    counted: Option<(usize, bool)>,
    _charge: Charge,
}

impl SemaphoreWait {
    /// Creates one for these operations of a process, with the charge for their memory. `EFBIG` if one is on a
    /// semaphore that the set does not have; `EIDRM`.
    pub(crate) fn new(
        set: Arc<SemaphoreSet>,
        operations: Vec<SemaphoreOperation>,
        limit: TimeLimit,
        process: u32,
        charge: Charge,
    ) -> Result<SemaphoreWait, Errno> {
        // Before anything is noted of them.
        let count = set.count()?;
        if operations.iter().any(|operation| usize::from(operation.index) >= count) {
            return Err(Errno::EFBIG);
        }
        Ok(SemaphoreWait { set, operations, noted: 0, limit, process, counted: None, _charge: charge })
    }

    fn count(&mut self, state: &mut SetState, wanted: Option<(usize, bool)>) {
        for (place, change) in [(self.counted, u16::MAX), (wanted, 1)] {
            let Some((index, for_zero)) = place else { continue };
            if let Some(semaphore) = state.semaphores.get_mut(index) {
                let count = if for_zero { &mut semaphore.wait_for_zero } else { &mut semaphore.wait_for_more };
                *count = count.wrapping_add(change);
            }
        }
        self.counted = wanted;
    }

    /// Makes the changes if all can be made; else registers the waker, if there is one. The process's debts have the
    /// rest.
    pub(crate) fn poll(
        &mut self,
        payer: &(impl Ends + ?Sized),
        debts: &Mutex<Debts>,
        waker: Option<&Waker>,
    ) -> Poll<Result<usize, Errno>> {
        let set = self.set.clone();
        // Without memory for the debts nothing is done.
        while self.noted < self.operations.len() {
            let end = self.operations.len().min(self.noted + steps::ENTRIES);
            let owed = self.operations[self.noted..end].iter().filter(|operation| operation.is_owed());
            let mut debts = debts.lock();
            for operation in owed {
                debts.reserve(&set, usize::from(operation.index))?;
            }
            drop(debts);
            self.noted = end;
            if end < self.operations.len() && steps::must_pause(payer, waker) {
                return Poll::Pending;
            }
        }
        // The process's debts before the set, as at the end of the process.
        let mut debts = debts.lock();
        let mut state = set.state.lock();
        if state.is_removed {
            self.counted = None;
            return Poll::Ready(Err(Errno::EIDRM));
        }
        // A debt that would be too great is found before anything is changed.
        debts.owe_all(&set, &state, &self.operations)?;
        let changed = state.change(&self.operations, self.process);
        if changed.is_err() {
            debts.take_back(&set, &self.operations);
        }
        match changed {
            Ok(()) => {
                self.count(&mut state, None);
                if self.operations.iter().any(|operation| operation.change != 0) {
                    state.waiters.wake_all();
                }
                Poll::Ready(Ok(0))
            }
            Err(Refusal::Fails(error)) => Poll::Ready(Err(error)),
            Err(Refusal::Waits(at)) => {
                let operation = self.operations[at];
                if operation.must_not_wait() || self.limit.has_passed() {
                    return Poll::Ready(Err(Errno::EAGAIN));
                }
                if let Some(waker) = waker {
                    self.limit.arm(waker)?;
                    state.waiters.register(waker).map_err(|_| Errno::ENOMEM)?;
                    self.count(&mut state, Some((usize::from(operation.index), operation.change == 0)));
                }
                Poll::Pending
            }
        }
    }

    /// Takes back the registrations of [`poll`](Self::poll).
    pub(crate) fn forget(&mut self, waker: &Waker) {
        let set = self.set.clone();
        let mut state = set.state.lock();
        state.waiters.forget(waker);
        self.count(&mut state, None);
        self.limit.clear();
    }
}

impl SemaphoreSet {
    /// Returns the number of its semaphores. `EIDRM` if it was removed.
    pub(crate) fn count(&self) -> Result<usize, Errno> {
        Ok(self.state.lock().require()?.semaphores.len())
    }

    /// Checks a use with these rights. `EACCES`.
    pub(crate) fn permit_use(&self, caller: &Authority, rights: u32) -> Result<(), Errno> {
        let mode = self.state.lock().mode;
        self.maker.permit_use(caller, mode, rights)
    }

    /// Returns its maker.
    pub(crate) fn maker(&self) -> &Maker {
        &self.maker
    }

    /// Removes it, and wakes all waiters.
    pub(crate) fn remove(&self) {
        let removed = {
            let mut table = TABLE.lock();
            let mut state = self.state.lock();
            table.forget_key(state.key, self.id);
            state.is_removed = true;
            state.waiters.wake_all();
            drop(state);
            table.remove(self.id)
        };
        drop(removed);
    }

    /// Returns what `IPC_STAT` tells.
    pub(crate) fn status(&self) -> Result<SetStatus, Errno> {
        let mut state = self.state.lock();
        let state = state.require()?;
        let (count, operated, changed) = (state.semaphores.len() as u64, state.operated, state.changed);
        let SetState { key, user, group, mode, .. } = *state;
        Ok(SetStatus { key, user, group, mode, operated, changed, count })
    }

    /// Performs `IPC_SET`: its mode, and its owner, by whom it is not known here.
    pub(crate) fn change_status(&self, status: &SetStatus) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let state = state.require()?;
        (state.user, state.group, state.mode) = (status.user, status.group, status.mode & 0o777);
        state.changed = seconds();
        Ok(())
    }

    /// Performs `GETVAL`, `GETPID`, `GETNCNT` and `GETZCNT`.
    pub(crate) fn tell(&self, index: usize, what: u32) -> Result<usize, Errno> {
        let mut state = self.state.lock();
        let semaphore = *state.semaphore(index)?;
        Ok(match what {
            number::GET_VALUE => semaphore.value.into(),
            number::GET_LAST => semaphore.last as usize,
            number::GET_WAITING_FOR_MORE => semaphore.wait_for_more.into(),
            _ => semaphore.wait_for_zero.into(),
        })
    }

    /// Returns the values of some semaphores.
    pub(crate) fn values(&self, from: usize, values: &mut [u16]) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let state = state.require()?;
        for (value, semaphore) in values.iter_mut().zip(state.semaphores.iter().skip(from)) {
            *value = semaphore.value;
        }
        Ok(())
    }

    /// Sets semaphores from an index on, and wakes all waiters. `ERANGE` for values that none can have.
    pub(crate) fn set_values(&self, from: usize, values: &[u16], by: u32) -> Result<(), Errno> {
        if values.iter().any(|value| *value > number::GREATEST_VALUE) {
            return Err(Errno::ERANGE);
        }
        let mut state = self.state.lock();
        let state = state.require()?;
        if from + values.len() > state.semaphores.len() {
            return Err(Errno::EINVAL);
        }
        for (index, value) in values.iter().enumerate() {
            state.set(from + index, *value, by);
        }
        state.changed = seconds();
        state.waiters.wake_all();
        Ok(())
    }
}

/// The debt of a process to a semaphore.
struct Debt {
    id: u32,
    serial: u64,
    index: usize,
    age: u32,
    change: i32,
}

impl Debt {
    /// Returns the set, if it was not removed.
    fn set(&self) -> Option<Arc<SemaphoreSet>> {
        TABLE.lock().get(self.id).filter(|set| set.serial == self.serial).cloned()
    }
}

/// The debts of a process to the sets that it has changed.
pub(crate) struct Debts {
    debts: Table<Debt>,
    /// The debt that was looked at last.
    looked_at: usize,
    /// Random odd numbers: a program chooses the semaphores, and may not choose their places in the table.
    factors: [u64; 2],
    charge: Charge,
}

impl Debts {
    /// Creates the debts of a process with this account: none.
    pub(crate) fn new(account: &Arc<Account>) -> Debts {
        let factors = [random::word() | 1, random::word() | 1];
        Debts { debts: Table::new(), looked_at: 0, factors, charge: account.nothing(Resource::Memory) }
    }

    fn hash(&self, set: &Arc<SemaphoreSet>, index: usize) -> u32 {
        let [of_set, of_index] = self.factors;
        let (set, index) = (set.serial, index as u64);
        let sum = set.wrapping_mul(of_set).wrapping_add(index.wrapping_mul(of_index));
        // The upper bits depend on more of both than the lower ones, which the table looks at first.
        (sum >> 32 ^ sum >> 48) as u32
    }

    fn find(&self, set: &Arc<SemaphoreSet>, index: usize) -> Option<usize> {
        let is_meant = |debt: &Debt| debt.index == index && debt.serial == set.serial;
        self.debts.find(self.hash(set, index), is_meant)
    }

    /// Makes sure that there is a debt of this semaphore.
    fn reserve(&mut self, set: &Arc<SemaphoreSet>, index: usize) -> Result<(), Errno> {
        if self.find(set, index).is_some() {
            return Ok(());
        }
        self.forget_some();
        self.charge.resize((self.debts.len() + 1) * BYTES_OF_A_DEBT)?;
        self.debts.reserve().map_err(|_| Errno::ENOMEM)?;
        let debt = Debt { id: set.id, serial: set.serial, index, age: 0, change: 0 };
        self.debts.insert(self.hash(set, index), debt);
        Ok(())
    }

    /// Forgets debts to sets that were removed, among the next few.
    fn forget_some(&mut self) {
        for _ in 0..LOOKED_AT.min(self.debts.len()) {
            self.looked_at = self.looked_at.min(self.debts.len()).checked_sub(1).unwrap_or(self.debts.len() - 1);
            if self.debts.get(self.looked_at).is_some_and(|debt| debt.set().is_none()) {
                self.debts.remove(self.looked_at);
            }
        }
    }

    fn debt(&mut self, set: &Arc<SemaphoreSet>, index: usize) -> Option<&mut Debt> {
        let at = self.find(set, index)?;
        self.debts.get_mut(at)
    }

    /// Adds to a debt that was reserved. `ERANGE` if it would be greater than a value can be.
    fn owe(&mut self, set: &Arc<SemaphoreSet>, index: usize, age: u32, change: i32) -> Result<(), Errno> {
        let Some(debt) = self.debt(set, index) else { return Ok(()) };
        if debt.age != age {
            (debt.age, debt.change) = (age, 0);
        }
        let sum = debt.change + change;
        // Linux's range, which is that of `semadj`, a short.
        i16::try_from(sum).map_err(|_| Errno::ERANGE)?;
        debt.change = sum;
        Ok(())
    }

    /// Notes what these operations will owe, or nothing: `ERANGE`.
    fn owe_all(
        &mut self,
        set: &Arc<SemaphoreSet>,
        state: &SetState,
        operations: &[SemaphoreOperation],
    ) -> Result<(), Errno> {
        for (done, operation) in operations.iter().enumerate().filter(|(_, operation)| operation.is_owed()) {
            let index = usize::from(operation.index);
            let age = state.semaphores.get(index).ok_or(Errno::EFBIG)?.age;
            if let Err(error) = self.owe(set, index, age, -i32::from(operation.change)) {
                self.take_back(set, &operations[..done]);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes back what was noted for operations that were not done.
    fn take_back(&mut self, set: &Arc<SemaphoreSet>, operations: &[SemaphoreOperation]) {
        for operation in operations.iter().filter(|operation| operation.is_owed()) {
            if let Some(debt) = self.debt(set, usize::from(operation.index)) {
                debt.change += i32::from(operation.change);
            }
        }
    }

    /// Pays some of them; returns whether none are left.
    #[doc(alias = "exit_sem")]
    pub(crate) fn pay_some(&mut self, process: u32) -> bool {
        for _ in 0..steps::ENTRIES {
            let Some(last) = self.debts.len().checked_sub(1) else { break };
            let Some(debt) = self.debts.remove(last) else { break };
            let Some(set) = debt.set() else { continue };
            let mut state = set.state.lock();
            let Some(semaphore) = state.semaphores.get_mut(debt.index).filter(|semaphore| semaphore.age == debt.age)
            else {
                continue;
            };
            let value = i32::from(semaphore.value) + debt.change;
            semaphore.value = value.clamp(0, number::GREATEST_VALUE.into()) as u16;
            semaphore.last = process;
            state.waiters.wake_all();
        }
        self.debts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A debt is paid once, and not to a semaphore that was set since.
    #[test]
    fn debts_are_paid_to_the_age_in_which_they_were_made() {
        crate::testing::run(|program| {
            let account = program.process().account.clone();
            let maker = crate::process::authority::maker(&program.process()).unwrap();
            let id = get(&account, maker, shared::PRIVATE, 2, 0).unwrap();
            let set = find(id as i32).unwrap();
            let mut debts = Debts::new(&account);
            for (index, change) in [(0, 3), (0, 2), (1, 7)] {
                debts.reserve(&set, index).unwrap();
                debts.owe(&set, index, 0, change).unwrap();
            }
            set.set_values(1, &[1], 9).unwrap();
            assert!(debts.pay_some(5) && debts.pay_some(5));
            let told = [0, 1].map(|index| set.tell(index, number::GET_VALUE).unwrap());
            assert_eq!((told, set.tell(0, number::GET_LAST)), ([5, 1], Ok(5)));
            set.remove();
            assert_eq!(set.tell(0, number::GET_VALUE), Err(Errno::EIDRM));
            assert_eq!(find(id as i32).err(), Some(Errno::EINVAL));
        });
    }

    /// Debts to sets that were removed are forgotten, with their charge, while others are made.
    #[test]
    fn debts_to_removed_sets_do_not_grow() {
        crate::testing::run(|program| {
            let account = program.process().account.clone();
            let mut debts = Debts::new(&account);
            let before = account.used(Resource::Memory);
            for _ in 0..200 {
                let maker = crate::process::authority::maker(&program.process()).unwrap();
                let id = get(&account, maker, shared::PRIVATE, 3, 0).unwrap();
                let set = find(id as i32).unwrap();
                for index in 0..3 {
                    debts.reserve(&set, index).unwrap();
                    debts.owe(&set, index, 0, 1).unwrap();
                }
                set.remove();
            }
            assert!(debts.debts.len() <= 6, "{} are left", debts.debts.len());
            assert!(account.used(Resource::Memory) - before <= 6 * BYTES_OF_A_DEBT);
            assert!(debts.pay_some(5));
        });
    }

    /// Operations that fail leave no debt, and debts stay in the range of a value.
    #[test]
    fn operations_that_fail_leave_no_debts() {
        use abi_unix::SystemCall;

        crate::testing::run(|program| {
            let made = program.call(SystemCall::SemaphoreGet, [0, 2, 0o1600]);
            let set = find(made.unwrap() as i32).unwrap();
            let id = set.id as usize;
            let mut operate = |operations: &[(u16, i16, u16)]| {
                let words = operations.iter().flat_map(|(index, change, flags)| [*index, *change as u16, *flags]);
                let bytes: Vec<u8> = words.flat_map(u16::to_le_bytes).collect();
                let list = program.store(&bytes);
                let result = program.call(SystemCall::SemaphoreOperate, [id, list, operations.len()]);
                let process = program.process();
                let mut debts = process.debts.lock();
                let owed = [0, 1].map(|index| debts.debt(&set, index).map_or(0, |debt| debt.change));
                let values = [0, 1].map(|index| set.tell(index, number::GET_VALUE).unwrap());
                (result, debts.debts.len(), owed, values)
            };
            let (undo, nowait) = (number::UNDO, number::MUST_NOT_WAIT);
            for index in [2, 77, u16::MAX] {
                assert_eq!(operate(&[(0, 1, undo), (index, 1, undo)]), (Err(Errno::EFBIG), 0, [0, 0], [0, 0]));
            }
            assert_eq!(operate(&[(0, 32767, undo)]), (Ok(0), 1, [-32767, 0], [32767, 0]));
            assert_eq!(operate(&[(0, -32767, 0)]), (Ok(0), 1, [-32767, 0], [0, 0]));
            assert_eq!(operate(&[(0, 1, undo)]), (Ok(0), 1, [-32768, 0], [1, 0]));
            let more = [(1, 5, undo), (0, 1, undo)];
            assert_eq!(operate(&more), (Err(Errno::ERANGE), 2, [-32768, 0], [1, 0]));
            let waits = [(1, 5, undo), (0, -2, undo | nowait)];
            assert_eq!(operate(&waits), (Err(Errno::EAGAIN), 2, [-32768, 0], [1, 0]));
            assert_eq!(operate(&[(0, -1, undo)]), (Ok(0), 2, [-32767, 0], [0, 0]));
            set.remove();
        });
    }

    /// No program can choose semaphores whose debts are all in one place of the table.
    #[test]
    fn places_of_debts_depend_on_a_secret() {
        crate::testing::run(|program| {
            let account = program.process().account.clone();
            let maker = crate::process::authority::maker(&program.process()).unwrap();
            let id = get(&account, maker, shared::PRIVATE, 1, 0).unwrap();
            let set = find(id as i32).unwrap();
            let tables = [Debts::new(&account), Debts::new(&account)];
            // That two of four are equal by chance happens once in 2^30 times.
            let hashes = tables.each_ref().map(|debts| [0, 1].map(|index| debts.hash(&set, index)));
            assert!(hashes[0][0] != hashes[1][0] && hashes[0][1] != hashes[1][1], "{hashes:x?}");
            let steps = hashes.map(|[first, second]| first.wrapping_sub(second));
            assert_ne!(steps[0], steps[1]);
            set.remove();
        });
    }
}
