//! Owners of open files: whom a file tells of its events by a signal (fcntl(2), "Managing signals").
//!
//! Few files have an owner, and an open file is small, so that these are entries of one table, by the addresses of the
//! files. An entry goes with its file.
//!
//! A file that tells of its events (`O_ASYNC`) has two [`Herald`]s, wakers that are registered with the object behind
//! it as those of an epoll are: one for input, always, and one for room, since a call found none. So kinds of files
//! have no code for this, and files that tell nobody cost nothing. A waker is called under the object's lock, under
//! which no signal can be sent: it enters its herald into a list, and a coroutine of the kernel
//! ([`told_owners`](crate::process::told_owners)) looks at the file, sends the signal, and registers the herald again.

use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::task::Waker;

use abi_unix::Errno;
use abi_unix::types::epoll as event;
use spin::Mutex;
use tables::Table;

use crate::files::file::OpenFile;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::capabilities::Rights;
use crate::process::user::Caller;
use crate::scheduling::executor::Attendant;

/// Settings of an open file about its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ownership {
    /// The process, or the negative number of a group; 0 for none.
    pub owner: i32,
    /// Whether the owner is one thread, with that number.
    pub(crate) is_thread: bool,
    /// The signal instead of `SIGIO`; 0 for that.
    pub signal: u32,
    /// Whether it is to be told of events at all (`O_ASYNC`).
    pub is_told: bool,
}

/// Kind of events that a herald waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// Input, and the end of a connection.
    Input,
    /// Room for output.
    Room,
}

impl Awaited {
    /// Returns the events.
    pub(crate) fn events(self) -> u32 {
        let events = match self {
            Awaited::Input => event::IN | event::RDNORM | event::PRI | event::RDHUP,
            Awaited::Room => event::OUT | event::WRNORM,
        };
        events | event::HUP | event::ERR
    }
}

/// A waker that has the owner of a file told.
pub(crate) struct Herald {
    file: Weak<OpenFile>,
    /// The events that it waits for.
    pub(crate) awaited: Awaited,
    /// The process that has asked for the signals, and pays for them.
    pub(crate) process: u32,
    /// The descriptor by which it has asked.
    pub(crate) descriptor: i32,
    /// Number of times that a group was to be told since signals to it are on their way.
    pub(crate) told: AtomicU32,
    /// Whether it is in the list.
    is_entered: AtomicBool,
    next: Mutex<Option<Arc<Herald>>>,
}

/// Heralds whose files may have events, in the order in which they were woken. Each leads to the next, so that a waker
/// needs no memory.
struct EnteredHeralds {
    first: Option<Arc<Herald>>,
    last: Option<Arc<Herald>>,
}

static ENTERED: Mutex<EnteredHeralds> = Mutex::new(EnteredHeralds { first: None, last: None });

/// The coroutine that tells.
pub(crate) static TELLER: Attendant = Attendant::new();

impl Wake for Herald {
    fn wake(self: Arc<Herald>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Herald>) {
        if !self.is_entered.swap(true, Ordering::AcqRel) {
            let mut entered = ENTERED.lock();
            match entered.last.replace(self.clone()) {
                Some(last) => *last.next.lock() = Some(self.clone()),
                None => entered.first = Some(self.clone()),
            }
            drop(entered);
            TELLER.summon();
        }
    }
}

impl Herald {
    /// Returns the file, unless it is closed.
    pub(crate) fn file(&self) -> Option<Arc<OpenFile>> {
        self.file.upgrade()
    }

    /// Takes one out of the list.
    pub(crate) fn next_entered() -> Option<Arc<Herald>> {
        let mut entered = ENTERED.lock();
        let herald = entered.first.take()?;
        entered.first = herald.next.lock().take();
        if entered.first.is_none() {
            entered.last = None;
        }
        drop(entered);
        // Before the look at the file: a later event enters it again.
        herald.is_entered.store(false, Ordering::Release);
        Some(herald)
    }
}

/// The process that has named the owner of a file, or the signal: the signals have the rights that it had then. By its
/// account too, since numbers are used again.
#[derive(Clone)]
pub(crate) struct Namer {
    pub(crate) process: u32,
    pub(crate) account: Weak<Account>,
    /// As on Linux, not those at the time of an event: meanwhile the process may have executed a program that runs as
    /// another user, who has not asked for signals.
    pub(crate) rights: Rights,
}

struct Owned {
    file: usize,
    ownership: Ownership,
    namer: Option<Namer>,
    /// For input and for room, while the file tells.
    heralds: Option<[Arc<Herald>; 2]>,
    /// Memory of the entry.
    _charge: Charge,
}

/// Bytes of an entry with its heralds.
const BYTES: usize = 2 * (size_of::<Owned>() + size_of::<Herald>() + 32);

static OWNED: Mutex<Table<Owned>> = Mutex::new(Table::new());

fn hash(address: usize) -> u32 {
    ((address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

fn find(owned: &Table<Owned>, file: usize) -> Option<usize> {
    owned.find(hash(file), |entry| entry.file == file)
}

/// Returns the ownership of the open file with this address.
pub(crate) fn of(file: usize) -> Ownership {
    let owned = OWNED.lock();
    find(&owned, file).and_then(|at| owned.get(at)).map_or(Ownership::default(), |entry| entry.ownership)
}

/// Returns the process whose rights the signals of the open file with this address have.
pub(crate) fn namer(file: usize) -> Option<Namer> {
    let owned = OWNED.lock();
    find(&owned, file).and_then(|at| owned.get(at)).and_then(|entry| entry.namer.clone())
}

/// Changes the ownership of an open file, at the expense of the caller if it has none yet. Signals have these rights of
/// the caller from then on. `ENOMEM`.
pub(crate) fn change(
    file: usize,
    caller: &dyn Caller,
    rights: Rights,
    change: impl FnOnce(&mut Ownership),
) -> Result<(), Errno> {
    let namer = Namer { process: caller.number(), account: Arc::downgrade(caller.account()), rights };
    let before = change_entry(file, caller.account(), |entry| {
        change(&mut entry.ownership);
        entry.namer.replace(namer)
    });
    // Dropped outside of the lock.
    before.map(drop)
}

fn change_entry<R>(file: usize, account: &Arc<Account>, change: impl FnOnce(&mut Owned) -> R) -> Result<R, Errno> {
    let mut owned = OWNED.lock();
    let at = match find(&owned, file) {
        Some(at) => at,
        None => {
            account.admit()?;
            let _charge = account.charge(Resource::Memory, BYTES)?;
            owned.reserve().map_err(|_| Errno::ENOMEM)?;
            owned.insert(
                hash(file),
                Owned { file, ownership: Ownership::default(), namer: None, heralds: None, _charge },
            )
        }
    };
    owned.get_mut(at).map(change).ok_or(Errno::ENOMEM)
}

/// Makes an open file tell its owner of events, for a process that knows it by this descriptor; `None` if it does
/// already. `ENOMEM`.
pub(super) fn begin(
    file: &Arc<OpenFile>,
    caller: &dyn Caller,
    descriptor: i32,
) -> Result<Option<[Arc<Herald>; 2]>, Errno> {
    caller.account().admit()?;
    let herald = |awaited| {
        Arc::new(Herald {
            file: Arc::downgrade(file),
            awaited,
            process: caller.number(),
            descriptor,
            told: AtomicU32::new(0),
            is_entered: AtomicBool::new(false),
            next: Mutex::new(None),
        })
    };
    let heralds = [herald(Awaited::Input), herald(Awaited::Room)];
    change_entry(Arc::as_ptr(file).addr(), caller.account(), |entry| {
        entry.ownership.is_told = true;
        match entry.heralds {
            Some(_) => None,
            None => Some(entry.heralds.insert(heralds).clone()),
        }
    })
}

/// Ends what [`begin`] began; returns the heralds, which may be registered with the file's object.
pub(super) fn end(file: usize) -> Option<[Arc<Herald>; 2]> {
    let mut owned = OWNED.lock();
    let entry = find(&owned, file).and_then(|at| owned.get_mut(at))?;
    entry.ownership.is_told = false;
    entry.heralds.take()
}

/// Returns the waker of the herald for these events, if the file tells.
pub(super) fn waker(file: usize, awaited: Awaited) -> Option<Waker> {
    let owned = OWNED.lock();
    let entry = find(&owned, file).and_then(|at| owned.get(at))?;
    entry.heralds.as_ref()?.iter().find(|herald| herald.awaited == awaited).map(|herald| herald.clone().into())
}

/// Returns the herald for input of a file that tells.
#[cfg(test)]
pub(crate) fn herald_of(file: &Arc<OpenFile>) -> Option<Arc<Herald>> {
    let owned = OWNED.lock();
    let entry = find(&owned, Arc::as_ptr(file).addr()).and_then(|at| owned.get(at))?;
    entry.heralds.as_ref().map(|heralds| heralds[0].clone())
}

/// Forgets an open file that is closed; returns its heralds.
pub(super) fn closes(file: usize) -> Option<[Arc<Herald>; 2]> {
    let mut owned = OWNED.lock();
    let at = find(&owned, file)?;
    let entry = owned.remove(at)?;
    drop(owned);
    entry.heralds
}

#[cfg(test)]
mod tests {
    use abi_unix::types::{control, file_control, open};
    use abi_unix::{Errno, SystemCall};

    use crate::testing::run;

    #[test]
    fn the_owner_of_a_file_is_kept_as_long_as_the_file() {
        run(|program| {
            let (near, far) = program.socket_pair(1);
            let file = program.create(b"/tmp/owned\0", open::RDWR);
            let word = program.store(&1u32.to_le_bytes());
            let own = program.id as usize;
            let control_of = |program: &mut crate::testing::Program, file: usize, command: u32, value: usize| {
                program.call(SystemCall::FileControl, [file, command as usize, value])
            };
            assert_eq!(control_of(program, 99, control::SETOWN, own), Err(Errno::EBADF));
            assert_eq!(control_of(program, near, control::SETOWN, 99_999), Err(Errno::ESRCH));
            assert_eq!(control_of(program, near, control::SETOWN, (-99_999i64) as usize), Err(Errno::ESRCH));
            assert_eq!(control_of(program, near, control::SETOWN, 1 << 31), Err(Errno::EINVAL));
            assert_eq!(control_of(program, near, control::SETSIG, 65), Err(Errno::EINVAL));
            let request = file_control::FIOASYNC as usize;
            assert_eq!(program.call(SystemCall::DeviceControl, [near, request, 0x1000]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::DeviceControl, [file, request, word]), Err(Errno::ENOTTY));
            assert_eq!(control_of(program, near, control::GETOWN, 0), Ok(0));
            assert_eq!(control_of(program, near, control::SETOWN, own), Ok(0));
            assert_eq!(control_of(program, near, control::SETSIG, 10), Ok(0));
            assert_eq!(program.call(SystemCall::DeviceControl, [near, request, word]), Ok(0));
            assert_eq!(control_of(program, near, control::GETOWN, 0), Ok(own));
            assert_eq!(control_of(program, near, control::GETSIG, 0), Ok(10));
            assert_eq!(control_of(program, near, control::GETFL, 0), Ok((open::RDWR | open::ASYNC) as usize));
            let second = program.call(SystemCall::Duplicate, [near]).unwrap();
            program.close(near).unwrap();
            assert_eq!(control_of(program, second, control::GETOWN, 0), Ok(own), "it is the open file's");
            assert_eq!(control_of(program, second, control::SETFL, 0), Ok(0));
            assert_eq!(control_of(program, second, control::GETFL, 0), Ok(open::RDWR as usize));
            assert_eq!(control_of(program, far, control::GETOWN, 0), Ok(0));
            program.close(second).unwrap();
            assert!((0..40).all(|_| {
                let (near, far) = program.socket_pair(1);
                let owners = [near, far].map(|file| control_of(program, file, control::GETOWN, 0));
                program.close(near).unwrap();
                program.close(far).unwrap();
                owners == [Ok(0); 2]
            }));
            program.remove(b"/tmp/owned\0");
        });
    }
}
