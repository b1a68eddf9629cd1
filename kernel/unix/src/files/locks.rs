//! Locks on files: on ranges of bytes, of a process or of an open file (fcntl(2)), and on whole files (flock(2)).
//!
//! Locks are advice between programs: no other call looks at them. A range that a process has locked is free when the
//! process closes *any* descriptor of the file, so its holder is the table of descriptors, which tells of each
//! descriptor that goes ([`ClosedFile`](crate::files::descriptor::ClosedFile)); the other locks go with their open
//! file.
//!
//! The locks of a file are an entry of one table, by the numbers of the inode, as long as there are any; files that are
//! never locked have nothing of it. Each change is made under the table's lock, with the memory that it could need
//! taken first, and wakes all waiters at the file.
//!
//! # Deadlocks
//! A process that waits for a range which another holds, which waits itself for ..., must not close a circle
//! (`EDEADLK`). Each wait of a process notes whom it waits for, and a new one follows these notes, [`FURTHEST`] steps
//! at most, as Linux does. Open files can be in several processes, so their waits are not followed.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use abi_unix::types::lock::{Kind, Record};
use spin::Mutex;
use tables::Table;
use waiters::Waiters;

use crate::files::descriptor::Descriptors;
use crate::files::file::{Attempt, OpenFile};
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::user::Caller;

/// Number of locks that one file can have (`ENOLCK`): each change looks at all of them.
pub(crate) const MOST: usize = 512;
/// Number of waits that are followed to find a circle.
const FURTHEST: usize = 10;
/// Number of noted waits, beyond which none is noted: the search looks at all of them.
const MOST_NOTES: usize = 256;

/// The numbers of a file ([`OpenFile::identity`]).
type FileIdentity = (usize, u32);

/// The last byte of a range that has no end.
pub(crate) const TO_THE_END: u64 = i64::MAX as u64;

/// The holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A process, by its number.
    Process(u32),
    /// An open file, by its address.
    OpenFile(usize),
}

/// Locks that exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockFamily {
    /// Those on ranges of bytes.
    Ranges,
    /// Those on whole files.
    Whole,
}

/// A change of a holder's locks on a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockChange {
    /// Its family.
    pub family: LockFamily,
    /// Its holder.
    pub holder: Holder,
    /// The lock that the range gets; `None` to unlock it.
    pub kind: Option<Kind>,
    /// First byte of the range.
    pub first: u64,
    /// Last byte of the range.
    pub last: u64,
}

/// A lock.
#[doc(alias = "file_lock")]
struct Lock {
    family: LockFamily,
    holder: Holder,
    kind: Kind,
    first: u64,
    last: u64,
    /// Memory of the lock.
    _charge: Charge,
}

impl Lock {
    fn is_of(&self, change: &LockChange) -> bool {
        self.family == change.family && self.holder == change.holder
    }

    fn overlaps(&self, first: u64, last: u64) -> bool {
        self.first <= last && first <= self.last
    }

    fn excludes(&self, change: &LockChange, kind: Kind) -> bool {
        self.family == change.family
            && self.holder != change.holder
            && self.overlaps(change.first, change.last)
            && (self.kind == Kind::Write || kind == Kind::Write)
    }
}

/// The locks of one file.
struct OfFile {
    file: FileIdentity,
    locks: Vec<Lock>,
    waiting: Waiters,
}

impl OfFile {
    /// Makes room for a change, and takes the memory that it could need. `ENOLCK` if the file has too many locks.
    fn prepare(&mut self, change: &LockChange, account: &Arc<Account>) -> Result<[Charge; 2], Errno> {
        // Unlocking, which can part a lock in two, is still possible when there are that many.
        let most = if change.kind.is_some() { MOST } else { 2 * MOST };
        if self.locks.len() + 2 > most {
            return Err(Errno::ENOLCK);
        }
        let charge = || account.charge(Resource::Memory, 2 * size_of::<Lock>());
        let charges = [charge()?, charge()?];
        self.locks.try_reserve(2).map_err(|_| Errno::ENOMEM)?;
        Ok(charges)
    }

    /// Makes a change for which there is room. The holder's locks on other ranges stay; neighbours of one kind become
    /// one lock.
    fn apply(&mut self, change: &LockChange, charges: [Charge; 2]) {
        let [for_new, mut for_rest] = charges.map(Some);
        let (mut first, mut last) = (change.first, change.last);
        let mut rest = None;
        let mut at = 0;
        while let Some(lock) = self.locks.get_mut(at) {
            if !lock.is_of(change) {
                at += 1;
            } else if Some(lock.kind) == change.kind {
                if lock.first <= last.saturating_add(1) && first <= lock.last.saturating_add(1) {
                    (first, last) = (first.min(lock.first), last.max(lock.last));
                    self.locks.swap_remove(at);
                } else {
                    at += 1;
                }
            } else if !lock.overlaps(change.first, change.last) {
                at += 1;
            } else {
                // Only one of the holder's locks, which do not overlap, reaches beyond the range.
                if lock.last > change.last
                    && let Some(charge) = for_rest.take()
                {
                    let (family, holder, kind) = (lock.family, lock.holder, lock.kind);
                    rest =
                        Some(Lock { family, holder, kind, first: change.last + 1, last: lock.last, _charge: charge });
                }
                if lock.first < change.first {
                    lock.last = change.first - 1;
                    at += 1;
                } else {
                    self.locks.swap_remove(at);
                }
            }
        }
        let fresh = change.kind.zip(for_new);
        let (family, holder) = (change.family, change.holder);
        self.locks.extend(fresh.map(|(kind, charge)| Lock { family, holder, kind, first, last, _charge: charge }));
        self.locks.extend(rest);
        self.shrink();
    }

    /// Gives memory back that is not charged any more. Without memory for a smaller list the large one stays.
    fn shrink(&mut self) {
        let mut fewer = Vec::new();
        if self.locks.capacity() > 4 * self.locks.len().max(4) && fewer.try_reserve_exact(2 * self.locks.len()).is_ok()
        {
            fewer.append(&mut self.locks);
            self.locks = fewer;
        }
    }
}

/// A wait of a process for a lock of another.
struct Note {
    /// Address of the wait.
    wait: usize,
    waiter: Holder,
    awaited: Holder,
}

/// All locks.
struct Locks {
    files: Table<OfFile>,
    notes: Vec<Note>,
}

static LOCKS: Mutex<Locks> = Mutex::new(Locks { files: Table::new(), notes: Vec::new() });

/// Addresses are looked up by their low bits, which are alike.
fn hash((address, number): FileIdentity) -> u32 {
    ((address as u64 ^ u64::from(number) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl Locks {
    fn find(&self, file: FileIdentity) -> Option<usize> {
        self.files.find(hash(file), |of| of.file == file)
    }

    /// Returns the entry of a file, a new one if it has none. `ENOMEM`.
    fn entry(&mut self, file: FileIdentity) -> Result<usize, Errno> {
        if let Some(found) = self.find(file) {
            return Ok(found);
        }
        self.files.reserve().map_err(|_| Errno::ENOMEM)?;
        Ok(self.files.insert(hash(file), OfFile { file, locks: Vec::new(), waiting: Waiters::new() }))
    }

    /// Removes the entry of a file without locks.
    fn tidy(&mut self, at: usize) {
        if self.files.get(at).is_some_and(|of| of.locks.is_empty() && of.waiting.is_empty()) {
            self.files.remove(at);
        }
    }

    /// Returns whether a process would wait for itself if it waited for this holder.
    fn closes_circle(&self, waiter: Holder, awaited: Holder) -> bool {
        let mut next = awaited;
        for _ in 0..FURTHEST {
            if next == waiter {
                return true;
            }
            match self.notes.iter().find(|note| note.waiter == next) {
                Some(note) => next = note.awaited,
                None => return false,
            }
        }
        false
    }

    fn forget_note(&mut self, wait: usize) {
        if let Some(at) = self.notes.iter().position(|note| note.wait == wait) {
            self.notes.swap_remove(at);
        }
    }

    fn note(&mut self, wait: usize, waiter: Holder, awaited: Holder) {
        if let Some(note) = self.notes.iter_mut().find(|note| note.wait == wait) {
            note.awaited = awaited;
        } else if self.notes.len() < MOST_NOTES && self.notes.try_reserve(1).is_ok() {
            self.notes.push(Note { wait, waiter, awaited });
        }
    }

    /// Makes a change on a file, if its locks allow it; else returns the holder of one that does not.
    fn try_change(
        &mut self,
        file: FileIdentity,
        change: &LockChange,
        account: &Arc<Account>,
    ) -> Result<Option<Holder>, Errno> {
        if change.kind.is_none() && self.find(file).is_none() {
            return Ok(None);
        }
        let at = self.entry(file)?;
        let Some(of_file) = self.files.get_mut(at) else { return Err(Errno::ENOLCK) };
        let excluding = change.kind.and_then(|kind| of_file.locks.iter().find(|lock| lock.excludes(change, kind)));
        let result = match excluding {
            Some(lock) => Ok(Some(lock.holder)),
            None => of_file.prepare(change, account).map(|charges| {
                of_file.apply(change, charges);
                // Each looks again.
                of_file.waiting.wake_all();
                None
            }),
        };
        self.tidy(at);
        result
    }
}

/// Frees all locks that a holder has on a file.
fn release(file: FileIdentity, holder: Holder) {
    let mut locks = LOCKS.lock();
    let Some(at) = locks.find(file) else { return };
    if let Some(of_file) = locks.files.get_mut(at) {
        of_file.locks.retain(|lock| lock.holder != holder);
        of_file.shrink();
        of_file.waiting.wake_all();
    }
    locks.tidy(at);
}

/// Frees the locks of a process on a file of which it has closed a descriptor.
pub(crate) fn process_has_closed(file: &OpenFile, process: u32) {
    release(file.identity(), Holder::Process(process));
}

/// Frees the locks of an open file that is closed.
pub(crate) fn open_file_closes(file: &OpenFile) {
    release(file.identity(), Holder::OpenFile(core::ptr::from_ref(file).addr()));
}

/// Returns the first lock that excludes a change, or `None`.
pub(crate) fn excluding(file: &OpenFile, change: &LockChange) -> Option<Record> {
    let kind = change.kind?;
    let locks = LOCKS.lock();
    let of_file = locks.files.get(locks.find(file.identity())?)?;
    let lock = of_file.locks.iter().find(|lock| lock.excludes(change, kind))?;
    let length = if lock.last == TO_THE_END { 0 } else { lock.last - lock.first + 1 };
    let process = match lock.holder {
        Holder::Process(process) => process as i32,
        Holder::OpenFile(_) => -1,
    };
    let (kind, start, length) = (lock.kind.number(), lock.first as i64, length as i64);
    Some(Record { kind, whence: abi_unix::types::SEEK_SET as u16, start, length, process })
}

/// A change of locks that may have to wait, with its file.
pub(crate) struct LockWait {
    file: Arc<OpenFile>,
    change: LockChange,
    /// Descriptor of a lock of a process.
    descriptor: usize,
    /// Whether it waits.
    waits: bool,
    /// Whether it is noted.
    is_noted: bool,
}

impl LockWait {
    /// Makes a change of the locks of a file, which the process has as this descriptor.
    pub(crate) fn new(file: Arc<OpenFile>, descriptor: usize, change: LockChange, waits: bool) -> LockWait {
        LockWait { file, change, descriptor, waits, is_noted: false }
    }

    /// Tries to make the change. `EAGAIN` if it must not wait, `EDEADLK` if it would wait for itself, `EBADF` if the
    /// process, which has this table of descriptors, has closed the lock's meanwhile.
    pub(crate) fn poll(&mut self, caller: &dyn Caller, table: &Mutex<Descriptors>, waker: Option<&Waker>) -> Attempt {
        let (file, holder, own) = (self.file.identity(), self.change.holder, core::ptr::from_ref(self).addr());
        let mut locks = LOCKS.lock();
        if let Some(awaited) = locks.try_change(file, &self.change, caller.account())? {
            if !self.waits {
                return Poll::Ready(Err(Errno::EAGAIN));
            }
            let is_process = matches!(holder, Holder::Process(_));
            if is_process && locks.closes_circle(holder, awaited) {
                return Poll::Ready(Err(Errno::EDEADLK));
            }
            let Some(waker) = waker else { return Poll::Pending };
            // There is an entry: it has the lock that is awaited.
            let at = locks.entry(file)?;
            let registered = locks.files.get_mut(at).map(|of_file| of_file.waiting.register(waker));
            if registered != Some(Ok(())) {
                return Poll::Ready(Err(Errno::ENOMEM));
            }
            if is_process {
                locks.note(own, holder, awaited);
                self.is_noted = true;
            }
            return Poll::Pending;
        }
        self.drop_note(&mut locks);
        drop(locks);
        if let Holder::Process(number) = holder {
            // A close that came in between has found no lock to free.
            let is_open = table.lock().get(self.descriptor).is_ok_and(|file| Arc::ptr_eq(file, &self.file));
            if !is_open && self.change.kind.is_some() {
                process_has_closed(&self.file, number);
                return Poll::Ready(Err(Errno::EBADF));
            }
        }
        Poll::Ready(Ok(0))
    }

    fn drop_note(&mut self, locks: &mut Locks) {
        if core::mem::take(&mut self.is_noted) {
            locks.forget_note(core::ptr::from_ref(self).addr());
        }
    }

    /// Takes back its registration.
    pub(crate) fn forget(&mut self, waker: &Waker) {
        let mut locks = LOCKS.lock();
        self.drop_note(&mut locks);
        if let Some(at) = locks.find(self.file.identity()) {
            if let Some(of_file) = locks.files.get_mut(at) {
                of_file.waiting.forget(waker);
            }
            locks.tidy(at);
        }
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        if self.is_noted {
            self.drop_note(&mut LOCKS.lock());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 24;

    #[derive(Clone, Debug)]
    struct Step {
        holder: u32,
        kind: Option<Kind>,
        first: u64,
        last: u64,
    }

    fn step() -> impl Strategy<Value = Step> {
        let kind = prop_oneof![Just(None), Just(Some(Kind::Read)), Just(Some(Kind::Write))];
        (0..3u32, kind, 0..BYTES as u64, 0..BYTES as u64).prop_map(|(holder, kind, one, other)| Step {
            holder,
            kind,
            first: one.min(other),
            last: one.max(other),
        })
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// The locks are those of a model that has one for each holder and byte; they are as few as they can be, and
        /// all memory is given back.
        #[test]
        fn ranges_behave_as_single_bytes(steps in prop::collection::vec(step(), 0..40)) {
            let _guard = crate::testing::alone();
            let account = Account::of_the_first();
            let before = account.used(Resource::Memory);
            let mut locks = Locks { files: Table::new(), notes: Vec::new() };
            let mut model = [[None; BYTES]; 3];
            for Step { holder, kind, first, last } in steps {
                let change = LockChange { family: LockFamily::Ranges, holder: Holder::Process(holder), kind, first, last };
                let bytes = first as usize..=last as usize;
                let is_excluded = kind.is_some_and(|kind| {
                    let others = model.iter().enumerate().filter(|(other, _)| *other != holder as usize);
                    others.flat_map(|(_, held)| &held[bytes.clone()]).flatten().any(|held| {
                        kind == Kind::Write || *held == Kind::Write
                    })
                });
                let result = locks.try_change((7, 0), &change, &account);
                prop_assert_eq!(result.map(|found| found.is_some()), Ok(is_excluded));
                if !is_excluded {
                    model[holder as usize][bytes].fill(kind);
                }
                for (holder, held) in model.iter().enumerate() {
                    let own = |lock: &&Lock| lock.holder == Holder::Process(holder as u32);
                    let all = locks.find((7, 0)).map_or(&[][..], |at| &locks.files.get(at).unwrap().locks);
                    for (byte, kind) in held.iter().enumerate() {
                        let at = all.iter().filter(own).filter(|lock| lock.overlaps(byte as u64, byte as u64));
                        prop_assert_eq!(at.map(|lock| lock.kind).collect::<Vec<_>>(), Vec::from_iter(*kind));
                    }
                    let runs = held.chunk_by(|one, other| one == other).filter(|run| run[0].is_some()).count();
                    prop_assert_eq!(all.iter().filter(own).count(), runs);
                }
            }
            drop(locks);
            prop_assert_eq!(account.used(Resource::Memory), before);
        }
    }

    #[test]
    fn families_do_not_see_each_other_and_the_end_is_no_byte() {
        let _guard = crate::testing::alone();
        let account = Account::of_the_first();
        let mut locks = Locks { files: Table::new(), notes: Vec::new() };
        let whole = LockChange {
            family: LockFamily::Whole,
            holder: Holder::OpenFile(1),
            kind: Some(Kind::Write),
            first: 0,
            last: TO_THE_END,
        };
        let range = LockChange { family: LockFamily::Ranges, holder: Holder::Process(1), ..whole };
        assert_eq!(locks.try_change((7, 0), &whole, &account), Ok(None));
        assert_eq!(locks.try_change((7, 0), &range, &account), Ok(None));
        let other = LockChange { holder: Holder::OpenFile(2), ..whole };
        assert_eq!(locks.try_change((7, 0), &other, &account), Ok(Some(Holder::OpenFile(1))));
        assert_eq!(locks.try_change((7, 1), &other, &account), Ok(None), "another file");
        let at = locks.find((7, 0)).unwrap();
        let middle = LockChange { kind: None, first: 5, last: 9, ..range };
        assert_eq!(locks.try_change((7, 0), &middle, &account), Ok(None));
        let ends: Vec<_> = locks.files.get(at).unwrap().locks.iter().map(|lock| (lock.first, lock.last)).collect();
        assert_eq!(ends, [(0, TO_THE_END), (0, 4), (10, TO_THE_END)]);
    }

    #[test]
    fn a_file_has_a_limited_number_of_locks() {
        let _guard = crate::testing::alone();
        let account = Account::of_the_first();
        let mut locks = Locks { files: Table::new(), notes: Vec::new() };
        let at = |byte: u64| LockChange {
            family: LockFamily::Ranges,
            holder: Holder::Process(1),
            kind: Some(Kind::Read),
            first: byte,
            last: byte,
        };
        let made =
            (0..2 * MOST as u64).take_while(|byte| locks.try_change((7, 0), &at(2 * byte), &account) == Ok(None));
        assert_eq!(made.count(), MOST - 1);
        assert_eq!(locks.try_change((7, 0), &at(5000), &account), Err(Errno::ENOLCK));
        // The list shrinks with its charges.
        let most = LockChange { kind: None, last: TO_THE_END, ..at(4) };
        assert_eq!(locks.try_change((7, 0), &most, &account), Ok(None));
        let entry = locks.find((7, 0)).unwrap();
        let list = &locks.files.get(entry).unwrap().locks;
        assert!(list.len() == 2 && list.capacity() < 16, "{}", list.capacity());
    }

    #[test]
    fn circles_are_found_across_several_waits() {
        let mut locks = Locks { files: Table::new(), notes: Vec::new() };
        let of = Holder::Process;
        for number in 0..5 {
            locks.note(number as usize, of(number), of(number + 1));
        }
        assert!(locks.closes_circle(of(5), of(0)) && locks.closes_circle(of(5), of(5)));
        assert!(!locks.closes_circle(of(6), of(0)));
        locks.forget_note(3);
        assert!(!locks.closes_circle(of(5), of(0)));
        // A circle of others is left alone.
        locks.note(3, of(3), of(0));
        assert!(!locks.closes_circle(of(9), of(0)));
    }
}
